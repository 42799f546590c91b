package harvest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// hashCheck compares a representation with the hashes that its link states, in the form
// of resourcesync.Hashes. It ignores hashes of unknown kinds. The store computes that of
// SHA-256.
type hashCheck struct {
	sha256 string
	others *resourcesync.HashCheck
	// coded is of the bytes as they are transferred, where hash and length are
	// stated of these.
	coded coded
	// unknown: they are stated of a coding that we do not ask for.
	unknown bool
	head    []byte // the first bytes
}

// headBytes is how many bytes of a representation show whether it is an HTML page.
const headBytes = 512

// coded is the body of an answer in gzip.
type coded struct {
	*resourcesync.HashCheck
	wanted bool
	size   int64
}

func newHashCheck(rep *event.Representation) *hashCheck {
	c := &hashCheck{others: &resourcesync.HashCheck{}}
	switch rep.Encoding {
	case "":
	case "gzip":
		c.coded.wanted = true
		c.coded.HashCheck = resourcesync.NewHashCheck(rep.Hash)
	default:
		c.unknown = true
		return c
	}
	var others []string
	for h := range strings.FieldsSeq(rep.Hash) {
		if digits, is := strings.CutPrefix(h, "sha-256:"); !is {
			others = append(others, h)
		} else if len(digits) == 2*sha256.Size {
			c.sha256 = digits
		}
	}
	if len(others) > 0 {
		c.others = resourcesync.NewHashCheck(strings.Join(others, " "))
	}
	return c
}

// compares reports whether bytes other than those that the hashes are of would be
// noticed.
func (c *hashCheck) compares() bool { return !c.unknown && (c.sha256 != "" || c.others.Compares()) }

// Write is io.Writer.
func (c *hashCheck) Write(b []byte) (int, error) {
	c.head = append(c.head, b[:min(len(b), headBytes-len(c.head))]...)
	return c.others.Write(b)
}

// isPage reports whether the bytes are an HTML page, and cannot be meant as XML.
func (c *hashCheck) isPage() bool {
	head := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(c.head, []byte("\xef\xbb\xbf"))))
	return (bytes.HasPrefix(head, []byte("<!doctype html")) || bytes.HasPrefix(head, []byte("<html"))) && !bytes.Contains(head, []byte("http://www.w3.org/1999/xhtml"))
}

// Write is io.Writer.
func (c *coded) Write(b []byte) (int, error) {
	if c.wanted {
		c.size += int64(len(b))
		return c.HashCheck.Write(b)
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
		why = c.others.Differs()
	}
	if why == "" || c.coded.size == 0 {
		return why
	}
	if why = compareLength(c.coded.size, length); why == "" {
		why = c.coded.Differs()
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
