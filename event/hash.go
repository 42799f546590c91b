package event

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// SHA256Of returns the hex digits of the SHA-256 in a list of hashes
// (ResourceSync 7), in lower case, or "" when there is none.
func SHA256Of(hashes string) string {
	for h := range strings.FieldsSeq(hashes) {
		if alg, hexa, ok := strings.Cut(h, ":"); ok && strings.EqualFold(alg, "sha-256") && len(hexa) == 64 {
			return strings.ToLower(hexa)
		}
	}
	return ""
}

// HashOf returns the hash of content in the form of ResourceSync 7.
func HashOf(sum [sha256.Size]byte) string { return "sha-256:" + hex.EncodeToString(sum[:]) }

// keyDigits is the alphabet of the last part of a record's key: base32 without
// padding in lower case, 26 digits for the first 130 bits.
var keyDigits = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// KeyLength is the number of base32 digits at the end of a record's key.
const KeyLength = 26

// Key returns the name of a record in our URLs: up to 60 characters that help a
// reader, a hyphen, and 26 base32 digits of the SHA-256 of the identifier. Only
// the digits decide which record is meant.
func Key(identifier string) string {
	return string(AppendKey(make([]byte, 0, 87), identifier))
}

// AppendKey appends Key(identifier) to b.
func AppendKey(b []byte, identifier string) []byte {
	start := len(b)
	hyphen := true // no hyphen at the front, no two in a row
	for i := 0; i < len(identifier) && len(b)-start < 60; i++ {
		c := identifier[i]
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
			fallthrough
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '_':
			b = append(b, c)
			hyphen = false
		case !hyphen:
			b = append(b, '-')
			hyphen = true
		}
	}
	for len(b) > start && b[len(b)-1] == '-' {
		b = b[:len(b)-1]
	}
	if len(b) > start {
		b = append(b, '-')
	}
	sum := sha256.Sum256([]byte(identifier))
	var digits [32]byte
	keyDigits.Encode(digits[:], sum[:20])
	return append(b, digits[:KeyLength]...)
}

// KeyBits returns the first 64 bits of the identifier's SHA-256, under which
// the log finds the record. Different identifiers may share them.
func KeyBits(identifier string) int64 {
	sum := sha256.Sum256([]byte(identifier))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// KeyBitsOf reads the same 64 bits from a key. ok is false when key does not end
// in 26 base32 digits.
func KeyBitsOf(key string) (bits int64, ok bool) {
	if len(key) < KeyLength {
		return 0, false
	}
	// 13 digits hold 65 bits; 16 are a whole number of bytes.
	var raw [10]byte
	if n, err := keyDigits.Decode(raw[:], []byte(key[len(key)-KeyLength:][:16])); err != nil || n != 10 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(raw[:8])), true
}

// IsKeyOf reports whether key is a name of the record: whether its digits are
// those of the identifier's hash.
func IsKeyOf(key, identifier string) bool {
	if len(key) < KeyLength {
		return false
	}
	want := Key(identifier)
	return key[len(key)-KeyLength:] == want[len(want)-KeyLength:]
}
