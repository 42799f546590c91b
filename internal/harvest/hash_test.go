package harvest

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// Bytes are compared with every hash of a known kind that their link states, and with the
// length. Of a resource in gzip either the body or what it unpacks to may match.
func TestHashCheck(t *testing.T) {
	content := []byte("<record>the bytes of a record</record>")
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	if _, err := zw.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	all := func(b []byte) map[string]string {
		return map[string]string{"md5": fmt.Sprintf("%x", md5.Sum(b)), "sha-1": fmt.Sprintf("%x", sha1.Sum(b)), "sha-256": fmt.Sprintf("%x", sha256.Sum256(b)),
			"sha-384": fmt.Sprintf("%x", sha512.Sum384(b)), "sha-512": fmt.Sprintf("%x", sha512.Sum512(b))}
	}
	type row struct {
		name, hash, encoding string
		length               int64
		body                 []byte // as transferred, in gzip
		want                 string // part of what differs; "" for nothing
	}
	whole, size := int64(len(content)), int64(packed.Len())
	rows := []row{
		{"nothing is stated", "", "", event.NoLength, nil, ""},
		{"the length", "", "", whole, nil, ""},
		{"another length", "", "", whole + 1, nil, fmt.Sprintf("it has %d bytes, the Source says %d", whole, whole+1)},
		{"an unknown kind", "crc32:00000000", "", whole, nil, ""},
		{"too short for its kind", "sha-256:00", "", whole, nil, ""},
		{"a coding that is not asked for", "md5:" + all([]byte("other"))["md5"], "br", 1, nil, ""},
		{"gzip, stated of the bytes", "md5:" + all(content)["md5"], "gzip", whole, packed.Bytes(), ""},
		{"gzip, another length", "", "gzip", 1, packed.Bytes(), fmt.Sprintf("in gzip it has %d bytes, the Source says 1", size)},
		{"gzip that is not sent", "sha-1:" + all(content)["sha-1"], "gzip", whole, nil, ""},
		{"gzip that is not sent, another length", "", "gzip", 1, nil, fmt.Sprintf("it has %d bytes, the Source says 1", whole)},
	}
	for kind, digits := range all(content) {
		other := all([]byte("other"))[kind]
		rows = append(rows,
			row{kind, kind + ":" + digits, "", whole, nil, ""},
			row{kind + " of other bytes", kind + ":" + other, "", whole, nil, "its " + strings.ToUpper(kind) + " is " + digits + ", the Source says " + other},
			row{kind + " behind a known one", "md5:" + all(content)["md5"] + " " + kind + ":" + digits, "", whole, nil, ""},
			row{kind + " of the gzip body", kind + ":" + all(packed.Bytes())[kind], "gzip", size, packed.Bytes(), ""},
			row{kind + " of neither", kind + ":" + other, "gzip", size, packed.Bytes(), "in gzip its " + strings.ToUpper(kind) + " is "})
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			c := newHashCheck(&event.Representation{Hash: r.hash, Encoding: r.encoding})
			_, digits, _ := strings.Cut(r.hash, ":")
			if want := len(digits) >= 32 && r.encoding != "br"; c.compares() != want {
				t.Errorf("it compares: %t", !want)
			}
			for _, b := range content { // in pieces
				if _, err := c.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range r.body {
				if _, err := c.coded.Write([]byte{b}); err != nil {
					t.Fatal(err)
				}
			}
			got := c.compare(&contentJob{size: whole, sum: sha256.Sum256(content)}, r.length)
			if (r.want == "") != (got == "") || !strings.Contains(got, r.want) {
				t.Errorf("got %q, want %q", got, r.want)
			}
		})
	}
}
