package resourcesync

import "testing"

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
		"sha-256:n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg": "sha-256:" + sha256,
		"sha256:n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=": "sha-256:" + sha256,
		" md5:" + md5 + "\n sha-256:" + sha256 + " ":          "md5:" + md5 + " sha-256:" + sha256,
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
