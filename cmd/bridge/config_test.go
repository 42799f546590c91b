package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What has serve end at once is an error of the configuration already: schemas
// that nothing here can check records against.
func TestConfigCheckWithoutXMLLint(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	schema := filepath.Join(folder, "place.xsd")
	for _, f := range [][2]string{
		{schema, `<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"/>`},
		{filepath.Join(folder, "bridge.toml"), `[[set]]
name = "deposits"
[[set.source]]
kind = "sip"
mode = "library"
formats = { "place" = "urn:place.xsd" }
schemas = { "urn:place.xsd" = "place.xsd" }
`},
	} {
		if err := os.WriteFile(f[0], []byte(f[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"config", "check", "--config", filepath.Join(folder, "bridge.toml")}, nil, &stdout, &stderr)
	if status != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "xmllint, which checks records against them, is not installed: install it") {
		t.Errorf("status %d\n%s%s", status, stdout.String(), stderr.String())
	}
	if err := os.WriteFile(filepath.Join(folder, "xmllint"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	status = run(t.Context(), []string{"config", "check", "--config", filepath.Join(folder, "bridge.toml")}, nil, &stdout, &stderr)
	if status != exitDone || !strings.Contains(stdout.String(), "bridge.toml: no errors\n") {
		t.Errorf("with it: status %d\n%s%s", status, stdout.String(), stderr.String())
	}
}
