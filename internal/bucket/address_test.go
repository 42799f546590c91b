package bucket_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/bucket"
)

// An address is read, and written in one form that is read as the same.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		raw, stored string // "" is the same
		want        bucket.Address
	}{
		{"s3://library", "", bucket.Address{Bucket: "library"}},
		{"s3://library/", "s3://library", bucket.Address{Bucket: "library"}},
		{"s3://library?region=eu-central-1", "", bucket.Address{Bucket: "library", Region: "eu-central-1"}},
		{"s3://my.library_1/a/prefix", "", bucket.Address{Bucket: "my.library_1", Prefix: "a/prefix"}},
		{"s3://library/a/prefix/?endpoint=https://s3.example.org/", "s3://library/a/prefix?endpoint=https://s3.example.org", bucket.Address{Bucket: "library", Prefix: "a/prefix", Endpoint: "https://s3.example.org"}},
		{"s3://library/p?region=garage&endpoint=HTTPS://S3.Example.org:443", "s3://library/p?endpoint=https://s3.example.org&region=garage", bucket.Address{Bucket: "library", Prefix: "p", Endpoint: "https://s3.example.org", Region: "garage"}},
		{"s3://library/p?endpoint=http%3A%2F%2F10.0.0.7%3A9000", "s3://library/p?endpoint=http://10.0.0.7:9000", bucket.Address{Bucket: "library", Prefix: "p", Endpoint: "http://10.0.0.7:9000"}},
		{"s3://library?endpoint=http://[2001:db8::1]:80", "s3://library?endpoint=http://[2001:db8::1]", bucket.Address{Bucket: "library", Endpoint: "http://[2001:db8::1]"}},
		{"s3://library?endpoint=http://localhost:9000", "", bucket.Address{Bucket: "library", Endpoint: "http://localhost:9000"}},
		{"s3://library/a%20b%3F%23%25/Bücher@home", "s3://library/a%20b%3F%23%25/B%C3%BCcher@home", bucket.Address{Bucket: "library", Prefix: "a b?#%/Bücher@home"}},
	} {
		a, err := bucket.Parse(c.raw)
		if err != nil || a != c.want {
			t.Errorf("%s: %+v, %v", c.raw, a, err)
			continue
		}
		if c.stored == "" {
			c.stored = c.raw
		}
		if a.String() != c.stored {
			t.Errorf("%s: written %s, want %s", c.raw, a, c.stored)
		}
	}
}

// What is no address is refused with what to write instead, and is not repeated: it may have
// a secret in any place.
func TestParseRefuses(t *testing.T) {
	const (
		example    = `write it like "s3://bucket/prefix", or for a server other than AWS like "s3://bucket/prefix?endpoint=https://s3.example.org"`
		no         = "is not the address of a bucket; " + example
		unreadable = "cannot be read as a URL"
		user       = "has a user or password; leave it out: credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
		name       = "has a name that no bucket has; a bucket is 3 to 63 letters"
		prefix     = "has a prefix that cannot be used; write names with single slashes between them"
		endpoint   = `has an endpoint that is no server; write it like "https://s3.example.org" or "http://10.0.0.7:9000", without a path`
		parameter  = "has a parameter besides endpoint and region; leave it out: credentials come from"
		region     = `has a region that is none; write it like "eu-central-1"`
	)
	for raw, want := range map[string]string{
		"": no, "library": no, "https://library.s3.amazonaws.com/rosebud": no, "S3://library": no, "s3:library": no, " s3://library": no,
		"s3://library/rose bud": "has a space or a line break", "s3://library\n": "has a space",
		"s3://library/a#rosebud": unreadable, "s3://library#": unreadable, "s3://library/%zz": unreadable, "s3://AKIA:rose/bud@library": unreadable,
		"s3://AKIA:rosebud@library/p": user, "s3://rosebud@library": user, "s3://@library": user,
		"s3://": "names no bucket; " + example, "s3:///p": "names no bucket", "s3://?endpoint=https://s3.example.org": "names no bucket",
		"s3://ab": name, "s3://library:9000/p": name, "s3://-library": name, "s3://my..library": name, "s3://10.0.0.7/p": name, "s3://[::1]": name, "s3://b%C3%BCcher": name, "s3://" + strings.Repeat("b", 64): name,
		"s3://library--use1-az4--x-s3": "names a directory bucket",
		"s3://library//p":              prefix, "s3://library/a//b": prefix, "s3://library/a/../b": prefix, "s3://library/.": prefix, "s3://library/a//": prefix, "s3://library/%00": prefix, "s3://library/%ff": prefix, "s3://library/" + strings.Repeat("p", 513): prefix,
		"s3://library?endpoint=": endpoint, "s3://library?endpoint=s3.example.org": endpoint, "s3://library?endpoint=ftp://s3.example.org": endpoint, "s3://library?endpoint=https://s3.example.org/rosebud": endpoint,
		"s3://library?endpoint=https://": endpoint, "s3://library?endpoint=https://s3.example.org:port": endpoint, "s3://library?endpoint=https://s3.example.org?x": endpoint, "s3://library?endpoint=https://b%C3%BC.example": endpoint,
		"s3://library?endpoint=https://AKIA:rosebud@s3.example.org": "has a user or password in its endpoint; leave it out",
		"s3://library?secret=rosebud":                               parameter, "s3://library?rosebud": parameter, "s3://library?Region=x": parameter,
		"s3://library?region=": region, "s3://library?region=eu+central": region, "s3://library?region=rosebud%26x": region,
		"s3://library?region=a&region=b": "has region twice; write it once",
		"s3://library?region=%zz":        "has a part behind the ? that cannot be read; write ?endpoint=", "s3://library?region=a;b": "has a part behind the ?",
	} {
		a, err := bucket.Parse(raw)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rose") {
			t.Errorf("%q: %+v, %v\nwant %s", raw, a, err, want)
		}
	}
}

// What is read has one form, and can be opened; some names of hosts that companies have are
// left to the library.
func FuzzParse(f *testing.F) {
	for _, raw := range []string{"s3://library/a%20b/c?endpoint=https://s3.example.org:9000&region=eu-central-1", "s3://a:b@c", "s3://library?endpoint=http://[::1]:80", "s3://b-1.c_2//"} {
		f.Add(raw)
	}
	companies := regexp.MustCompile(`amazonaws|googleapis|outposts`)
	f.Fuzz(func(t *testing.T, raw string) {
		a, err := bucket.Parse(raw)
		if err != nil {
			return
		}
		if again, err := bucket.Parse(a.String()); err != nil || again != a {
			t.Fatalf("%q is %+v, written %s, and read %+v, %v", raw, a, a, again, err)
		}
		b, err := bucket.Open(a)
		switch {
		case err == nil:
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		case !companies.MatchString(a.Endpoint):
			t.Errorf("%s cannot be opened: %v", a, err)
		}
	})
}
