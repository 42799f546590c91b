package resourcesync

import (
	"strings"
	"testing"
)

func TestHashes(t *testing.T) {
	const (
		md5    = "1b2cf535f27731c974343645a3985328"
		sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	)
	for stated, want := range map[string]string{
		"":                                     "",
		"md5:" + md5:                           "md5:" + md5,
		"MD5:1B2CF535F27731C974343645A3985328": "md5:" + md5,
		"md5:Gyz1NfJ3Mcl0NDZFo5hTKA==":         "md5:" + md5,
		"sha-256:n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg":                        "sha-256:" + sha256,
		"sha256:n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=":                        "sha-256:" + sha256,
		" md5:" + md5 + "\n sha-256:" + sha256 + " ":                                 "md5:" + md5 + " sha-256:" + sha256,
		"SHA512:" + strings.Repeat("0A", 64) + " sha384:" + strings.Repeat("0B", 48): "sha-512:" + strings.Repeat("0a", 64) + " sha-384:" + strings.Repeat("0b", 48),
		"md5:123":             "md5:123", // of no length that can be read
		"blake3:Abc":          "blake3:Abc",
		"no colon at all":     "no colon at all",
		"sha-1:" + md5:        "sha-1:" + md5, // too short for one
		"whirlpool:ABC md5:x": "whirlpool:ABC md5:x",
	} {
		if got := Hashes(stated); got != want {
			t.Errorf("%q: got %q, want %q", stated, got, want)
		}
	}
}

// A HashCheck compares with every hash of a known algorithm, also when the bytes are
// written in pieces, and names the one that differs (clause 7, hash). The sums are those of
// "abc" in RFC 1321 A.5 and FIPS 180.
func TestHashCheck(t *testing.T) {
	sums := map[string]string{
		"md5":     "900150983cd24fb0d6963f7d28e17f72",
		"sha-1":   "a9993e364706816aba3e25717850c26c9cd0d89d",
		"sha-256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		"sha-384": "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
		"sha-512": "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
	}
	var all []string
	for algorithm, sum := range sums {
		stated := algorithm + ":" + sum
		all = append(all, stated)
		other := strings.Repeat("0", len(sum))
		for stated, want := range map[string]string{
			stated:                                "",
			algorithm + ":" + other + " x-crc:00": "its " + strings.ToUpper(algorithm) + " is " + sum + ", the Source says " + other,
		} {
			if got := differs(stated, "abc"); got != want {
				t.Errorf("%s: %q, want %q", stated, got, want)
			}
		}
	}
	if got := differs(strings.Join(all, " "), "abc"); got != "" {
		t.Errorf("all of them: %s", got)
	}
	if differs(strings.Join(all, " "), "abd") == "" {
		t.Error("other bytes have the same hashes")
	}
	for _, stated := range []string{"", "x-crc:00", "x:", "md5", "md5:00", "sha-1:" + sums["md5"], "md5:" + strings.Repeat("zz", 16)} {
		if c := NewHashCheck(stated); c.Compares() || c.Differs() != "" {
			t.Errorf("%q is compared with", stated)
		}
	}
	if c := new(HashCheck); c.Compares() || c.Differs() != "" {
		t.Error("the zero value expects something")
	}
}

// differs writes a text to a HashCheck in two pieces.
func differs(stated, text string) string {
	c := NewHashCheck(stated)
	for _, piece := range []string{text[:1], text[1:]} {
		if n, err := c.Write([]byte(piece)); n != len(piece) || err != nil || !c.Compares() {
			return "it was not written, or does not compare"
		}
	}
	return c.Differs()
}
