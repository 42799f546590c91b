package harvest

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"

	"github.com/pmh-bridge/bridge/event"
)

// hashCheck compares a representation with the hashes that its link states, in the form
// of translate.Hashes. It ignores hashes of unknown kinds. The store computes that of
// SHA-256.
type hashCheck struct {
	sha256 string
	others digests
	// coded is of the bytes as they are transferred, where hash and length are
	// stated of these.
	coded coded
	// unknown: they are stated of a coding that nobody asks for.
	unknown bool
}

// digests are stated hashes, and the bytes so far.
type digests []stated

type stated struct {
	name, digits string
	hash         hash.Hash
}

// coded is the body of an answer in gzip.
type coded struct {
	digests
	wanted bool
	size   int64
}

func newHashCheck(rep *event.Representation) *hashCheck {
	c := &hashCheck{}
	switch rep.Encoding {
	case "":
	case "gzip":
		c.coded.wanted = true
	default:
		c.unknown = true
		return c
	}
	for h := range strings.FieldsSeq(rep.Hash) {
		name, digits, _ := strings.Cut(h, ":")
		var of func() hash.Hash
		switch {
		case name == "sha-256" && len(digits) == 2*sha256.Size:
			of, c.sha256 = sha256.New, digits
		case name == "md5" && len(digits) == 2*md5.Size:
			of = md5.New
		case name == "sha-1" && len(digits) == 2*sha1.Size:
			of = sha1.New
		case name == "sha-384" && len(digits) == 2*sha512.Size384:
			of = sha512.New384
		case name == "sha-512" && len(digits) == 2*sha512.Size:
			of = sha512.New
		default:
			continue
		}
		if name != "sha-256" {
			c.others = append(c.others, stated{name, digits, of()})
		}
		if c.coded.wanted {
			c.coded.digests = append(c.coded.digests, stated{name, digits, of()})
		}
	}
	return c
}

// Write is io.Writer.
func (c *hashCheck) Write(b []byte) (int, error) { return c.others.Write(b) }

// Write is io.Writer.
func (c *coded) Write(b []byte) (int, error) {
	if c.wanted {
		c.size += int64(len(b))
		return c.digests.Write(b)
	}
	return len(b), nil
}

// Write is io.Writer.
func (d digests) Write(b []byte) (int, error) {
	for _, s := range d {
		s.hash.Write(b)
	}
	return len(b), nil
}

// compare returns how the bytes differ from the stated ones, "" if they do not. If hash
// and length are stated of the body in a coding, either that body or the bytes
// themselves have to match: many Sources mean the latter, and a server need not send
// the coding.
func (c *hashCheck) compare(got *contentJob, length int64) string {
	if c.unknown {
		return ""
	}
	why := compareLength(got.size, length)
	if sum := hex.EncodeToString(got.sum[:]); why == "" && c.sha256 != "" && sum != c.sha256 {
		why = "its SHA-256 is " + sum + ", the Source says " + c.sha256
	}
	if why == "" {
		why = c.others.compare()
	}
	if why == "" || c.coded.size == 0 {
		return why
	}
	if why = compareLength(c.coded.size, length); why == "" {
		why = c.coded.compare()
	}
	if why != "" {
		why = "in gzip " + why
	}
	return why
}

func compareLength(got, stated int64) string {
	if stated >= 0 && stated != got {
		return fmt.Sprintf("it has %d bytes, the Source says %d", got, stated)
	}
	return ""
}

func (d digests) compare() string {
	for _, s := range d {
		if got := hex.EncodeToString(s.hash.Sum(nil)); got != s.digits {
			return "its " + strings.ToUpper(s.name) + " is " + got + ", the Source says " + s.digits
		}
	}
	return ""
}
