package bucket

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// Address says where objects are: in a bucket of an S3 server, below a prefix. Parse makes
// one.
type Address struct {
	Bucket string
	// Prefix is the first part of all keys, without a slash at either end; "" is none.
	Prefix string
	// Endpoint is the server, as scheme://host or scheme://host:port in lower case; "" is
	// AWS.
	Endpoint string
	// Region is that of the bucket. "" is the region that AWS says, and us-east-1 at any
	// other server.
	Region string
}

const (
	example     = `write it like "s3://bucket/prefix", or for a server other than AWS like "s3://bucket/prefix?endpoint=https://s3.example.org"`
	credentials = "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or from the shared credentials file (AWS_PROFILE)"

	// A key has at most 1024 bytes; most of them are left for what comes after the prefix.
	longestPrefix = 512
)

var (
	bucketName   = pattern.Of(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)
	endpointForm = pattern.Of(`^https?://([a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)
	regionName   = pattern.Of(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// Parse reads an address: s3://bucket/prefix?endpoint=https://s3.example.org&region=eu-central-1,
// of which the bucket is required. It uses no network. Its errors do not repeat the text,
// which may have a secret in any place.
func Parse(raw string) (Address, error) {
	switch {
	case !strings.HasPrefix(raw, "s3://"):
		return Address{}, errors.New("is not the address of a bucket; " + example)
	case strings.ContainsFunc(raw, unicode.IsSpace):
		return Address{}, errors.New("has a space or a line break, which no URL has; leave it out, or write %20 for a space")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return Address{}, errors.New("cannot be read as a URL; a ? # or % in the prefix is written with %3F %23 or %25, and " + credentials)
	case u.User != nil:
		return Address{}, errors.New("has a user or password; leave it out: " + credentials)
	case u.Host == "":
		return Address{}, errors.New("names no bucket; " + example)
	case !isBucket(u.Host):
		return Address{}, errors.New("has a name that no bucket has; a bucket is 3 to 63 letters, digits, dots, - and _, begins and ends with a letter or digit, and is no IP address; " + example)
	case strings.HasSuffix(u.Host, "--x-s3"):
		return Address{}, errors.New("names a directory bucket, which does not list its objects in order; write the name of a general purpose bucket")
	}
	a := Address{Bucket: u.Host, Prefix: strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), "/")}
	if a.Prefix != "" && !isPrefix(a.Prefix) {
		return Address{}, errors.New(`has a prefix that cannot be used; write names with single slashes between them, none of them "." or "..", at most 512 bytes of UTF-8`)
	}
	parameters, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Address{}, errors.New("has a part behind the ? that cannot be read; write ?endpoint=https://s3.example.org&region=eu-central-1")
	}
	for name, values := range parameters {
		value := values[0]
		switch {
		case name != "endpoint" && name != "region":
			return Address{}, errors.New("has a parameter besides endpoint and region; leave it out: " + credentials)
		case len(values) > 1:
			return Address{}, errors.New("has " + name + " twice; write it once")
		case name == "region":
			if !regionName().MatchString(value) {
				return Address{}, errors.New(`has a region that is none; write it like "eu-central-1"`)
			}
			a.Region = value
		default:
			if a.Endpoint, err = parseEndpoint(value); err != nil {
				return Address{}, err
			}
		}
	}
	return a, nil
}

func isBucket(name string) bool {
	_, noIP := netip.ParseAddr(name)
	return bucketName().MatchString(name) && !strings.Contains(name, "..") && noIP != nil
}

func isPrefix(prefix string) bool {
	for name := range strings.SplitSeq(prefix, "/") {
		if name == "" || name == "." || name == ".." {
			return false
		}
	}
	return len(prefix) <= longestPrefix && utf8.ValidString(prefix) && !strings.ContainsFunc(prefix, unicode.IsControl)
}

// parseEndpoint returns the stored form of an endpoint.
func parseEndpoint(typed string) (string, error) {
	u, err := url.Parse(typed)
	if err == nil && u.User != nil {
		return "", errors.New("has a user or password in its endpoint; leave it out: " + credentials)
	}
	endpoint := strings.TrimSuffix(strings.ToLower(typed), "/")
	if err != nil || !endpointForm().MatchString(endpoint) {
		return "", errors.New(`has an endpoint that is no server; write it like "https://s3.example.org" or "http://10.0.0.7:9000", without a path: the bucket comes first, as in "s3://bucket/prefix?endpoint=https://s3.example.org"`)
	}
	if u.Scheme == "https" {
		return strings.TrimSuffix(endpoint, ":443"), nil
	}
	return strings.TrimSuffix(endpoint, ":80"), nil
}

// String returns the one form of the address that Parse reads as a.
func (a Address) String() string {
	path := ""
	if a.Prefix != "" {
		path = "/" + a.Prefix
	}
	text := "s3://" + a.Bucket + (&url.URL{Path: path}).EscapedPath()
	separator := "?"
	for _, p := range [...]struct{ name, value string }{{"endpoint", a.Endpoint}, {"region", a.Region}} {
		if p.value != "" {
			text += separator + p.name + "=" + p.value // has nothing that is escaped
			separator = "&"
		}
	}
	return text
}
