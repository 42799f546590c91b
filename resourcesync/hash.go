package resourcesync

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// Hashes returns a list of hashes (clause 7, hash) in one form: the algorithm in lower case, a
// colon, hexadecimal digits in lower case. Sources also write upper case, base64 and base64url,
// as the specification's own examples seem to. A hash of an unknown algorithm stays as it is.
func Hashes(stated string) string {
	if stated == "" || inForm(stated) {
		return stated
	}
	fields := strings.Fields(stated)
	for i, f := range fields {
		algorithm, digits, ok := strings.Cut(f, ":")
		algorithm = strings.ToLower(algorithm)
		if algorithm == "sha256" || algorithm == "sha1" || algorithm == "sha384" || algorithm == "sha512" {
			algorithm = "sha-" + algorithm[3:]
		}
		n := digestLength(algorithm)
		if !ok || n == 0 {
			continue
		}
		if sum := readDigits(digits, n); sum != nil {
			fields[i] = algorithm + ":" + hex.EncodeToString(sum)
		}
	}
	return strings.Join(fields, " ")
}

// inForm reports whether a list is one hash in that form already, as most are.
func inForm(stated string) bool {
	algorithm, digits, _ := strings.Cut(stated, ":")
	n := digestLength(algorithm)
	if n == 0 || len(digits) != 2*n {
		return false
	}
	for i := range len(digits) {
		if c := digits[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// digestLength is how many bytes a hash of an algorithm has, 0 of one that is
// not known.
func digestLength(algorithm string) int {
	switch algorithm {
	case "md5":
		return md5.Size
	case "sha-1":
		return sha1.Size
	case "sha-256":
		return sha256.Size
	case "sha-384":
		return sha512.Size384
	case "sha-512":
		return sha512.Size
	}
	return 0
}

// readDigits returns the n bytes that digits stand for, nil when they do not.
func readDigits(digits string, n int) []byte {
	if len(digits) == 2*n {
		if sum, err := hex.DecodeString(digits); err == nil {
			return sum
		}
	}
	digits = strings.TrimRight(digits, "=")
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if sum, err := e.DecodeString(digits); err == nil && len(sum) == n {
			return sum
		}
	}
	return nil
}

// HashCheck compares bytes with the hashes that are stated of them (clause 7, hash). Write the
// bytes, then call Differs. It ignores hashes of algorithms that are not known, and what is no
// hash. The zero value expects nothing.
type HashCheck struct{ sums []statedSum }

// statedSum is one stated hash, and that of the bytes so far.
type statedSum struct {
	algorithm, digits string
	hash              hash.Hash
}

// NewHashCheck returns a check by all hashes of a list, in the form of Hashes.
func NewHashCheck(stated string) *HashCheck {
	c := &HashCheck{}
	for h := range strings.FieldsSeq(stated) {
		if !inForm(h) {
			continue
		}
		algorithm, digits, _ := strings.Cut(h, ":")
		var of hash.Hash
		switch algorithm {
		case "md5":
			of = md5.New()
		case "sha-1":
			of = sha1.New()
		case "sha-256":
			of = sha256.New()
		case "sha-384":
			of = sha512.New384()
		case "sha-512":
			of = sha512.New()
		default:
			continue
		}
		c.sums = append(c.sums, statedSum{algorithm, digits, of})
	}
	return c
}

// Compares reports whether there is any hash of a known kind to compare with.
func (c *HashCheck) Compares() bool { return len(c.sums) > 0 }

// Write adds bytes. It never fails.
func (c *HashCheck) Write(b []byte) (int, error) {
	for _, s := range c.sums {
		s.hash.Write(b)
	}
	return len(b), nil
}

// Differs describes the first hash of the bytes that is not the stated one, "" when all are.
func (c *HashCheck) Differs() string {
	for _, s := range c.sums {
		if got := hex.EncodeToString(s.hash.Sum(nil)); got != s.digits {
			return fmt.Sprintf("its %s is %s, the Source says %s", strings.ToUpper(s.algorithm), got, s.digits)
		}
	}
	return ""
}
