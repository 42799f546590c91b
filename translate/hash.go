package translate

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// digestLength is how many bytes a hash of an algorithm has, 0 of one that is
// not known.
func digestLength(algorithm string) int {
	switch algorithm {
	case "md5":
		return 16
	case "sha-1":
		return 20
	case "sha-256":
		return 32
	case "sha-384":
		return 48
	case "sha-512":
		return 64
	}
	return 0
}

// Hashes returns a list of hashes (ResourceSync 7) in one form: the algorithm in
// lower case, a colon, hexadecimal digits in lower case. Sources also write
// upper case, base64 and base64url, as the specification's own examples seem to.
// What is of an algorithm that is not known stays as it is stated.
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

// inForm tells whether a list is one hash in that form already, as most are.
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
