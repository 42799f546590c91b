package config

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Headers, tokens and authorities of Sources.
func TestAccess(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("BRIDGE_TEST_KEY", "from the environment")
	t.Setenv("CREDENTIALS_DIRECTORY", folder)
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	write(t, folder, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	for name, text := range map[string]string{"key": "in a file\n", "empty": "\n", "lines": "a\nb\n", "spaced": "Bearer abc\n", "feed.atom": "<feed/>"} {
		write(t, folder, name, text)
	}
	read := func(keys string) (*Config, error) {
		text := "[[set]]\nname = \"main\"\n[[set.source]]\n"
		if !strings.Contains(keys, "url") {
			text += "url = \"https://data.example.org/feed\"\n"
		}
		return Load(write(t, folder, "bridge.toml", text+keys+"\n"))
	}
	const all = `headers = { "x-api-key" = "file:key", "X-Env" = "${BRIDGE_TEST_KEY}", "X-Unit" = "credential:key", "Accept-Language" = "de" }` +
		"\ntoken_file = \"key2\"\nca_file = \"ca.pem\"\ntimeout = \"5m\""
	if _, err := read(all); err == nil || !strings.Contains(err.Error(), "token_file: open") {
		t.Errorf("a token file that is not there: %v", err)
	}
	write(t, folder, "key2", "\ufeffabc\r\n") // as Windows' editor writes it
	c, err := read(all)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sets[0].Sources[0]
	for name, want := range map[string]string{"X-Api-Key": "in a file", "X-Env": "from the environment", "X-Unit": "in a file", "Accept-Language": "de"} {
		if s.Headers[name].Reveal() != want {
			t.Errorf("%s: %q", name, s.Headers[name].Reveal())
		}
	}
	if len(s.Headers) != 4 || s.Token.Reveal() != "abc" || len(s.CA) == 0 || s.Timeout != 5*time.Minute {
		t.Errorf("%d headers, token %q, %d bytes of authorities, %v", len(s.Headers), s.Token.Reveal(), len(s.CA), s.Timeout)
	}
	// A changed file is a change of the Source.
	write(t, folder, "key", "changed")
	again, err := c.Reload()
	if err != nil || len(c.Changes(again)) != 1 {
		t.Errorf("after a change of a file: %v %v", c.Changes(again), err)
	}
	for keys, want := range map[string]string{
		`headers = { "X Key" = "a" }`:                                           `set "main": source 1: headers: X Key: is not a name of a header field`,
		`headers = { "host" = "a" }`:                                            `headers: host: is set by bridge itself, or by HTTP; leave it out`,
		`headers = { "Content-Length" = "1" }`:                                  `headers: Content-Length: is set by bridge itself`,
		`headers = { "Range" = "1" }`:                                           `headers: Range: is set by bridge itself`,
		`headers = { "If-None-Match" = "1" }`:                                   `headers: If-None-Match: is set by bridge itself`,
		`headers = { "X-Key" = "a", "x-key" = "b" }`:                            `appears twice`,
		`headers = { "X-Key" = "" }`:                                            `headers: X-Key: is empty`,
		`headers = { "X-Key" = "a\nb" }`:                                        `a character that no header field may have`,
		`headers = { "X-Key" = "a ${HOME}" }`:                                   `has a variable among other text`,
		`headers = { "X-Key" = "${BRIDGE_TEST_UNSET}" }`:                        `the environment variable BRIDGE_TEST_UNSET is not set`,
		`headers = { "X-Key" = "file:missing" }`:                                `headers: X-Key: open `,
		`headers = { "X-Key" = "file:empty" }`:                                  `empty must hold one line, the secret`,
		`headers = { "X-Key" = "file:lines" }`:                                  `lines must hold one line, the secret`,
		`headers = { "X-Key" = 7 }`:                                             `headers: X-Key: is a number; write a string`,
		`headers = "X-Key: a"`:                                                  `headers: is a string; write a table`,
		`token = "hunter2"`:                                                     `token: must not stand in this file`,
		`token_file = "spaced"`:                                                 `token_file: the token has a space`,
		"user = \"a\"\npassword_file = \"key\"\ntoken_file = \"key2\"":          `token_file: goes without user and password`,
		"headers = { \"authorization\" = \"ApiKey a\" }\ntoken_file = \"key2\"": `headers: has Authorization, which user or token makes as well`,
		`ca_file = "missing"`:                                                   `ca_file: open `,
		`ca_file = "key"`:                                                       `key has no certificate in PEM`,
		`ca_file = 7`:                                                           `ca_file: is a number; write a string`,
		`ca_file = ""`:                                                          `ca_file: is empty`,
		`timeout = "10ms"`:                                                      `timeout: 10ms is too short`,
		"url = \"http://data.example.org/\"\nca_file = \"ca.pem\"":              `ca_file: is of no use where the url begins with http:`,
		"url = \"feed.atom\"\ntoken_file = \"key2\"":                            `token_file: is of no use with a local file`,
	} {
		if _, err := read(keys); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s\n%v\nwant %s", keys, err, want)
		}
	}
}

// What others may read is warned of: the file of a value, and the configuration where a
// value in it looks like a secret.
func TestExposedHeaders(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "key", "hush")
	for keys, want := range map[string]string{
		`headers = { "X-Api-Key" = "file:key" }`: filepath.Join(folder, "key"),
		`headers = { "X-Api-Key" = "hush" }`:     filepath.Join(folder, "bridge.toml"),
		`headers = { "Accept-Language" = "de" }`: "",
	} {
		c, err := Load(write(t, folder, "bridge.toml", "[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"https://data.example.org/\"\n"+keys+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"key", "bridge.toml"} {
			if err := os.Chmod(filepath.Join(folder, file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if c, err = c.Reload(); err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(c.Warnings(), "\n"); (all == "") != (want == "") || !strings.HasPrefix(all, want) || strings.Contains(all, "hush") {
			t.Errorf("%s: %q", keys, all)
		}
	}
}
