package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The bill names what is in the binary that runs this test.
func TestBill(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second strings.Builder
	for _, out := range []*strings.Builder{&first, &second} {
		if err := run([]string{self, "v1.2.3+x", "2026-11-23T19:00:00Z"}, out); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two bills of the same file differ")
	}
	var b bill
	if err := json.Unmarshal([]byte(first.String()), &b); err != nil {
		t.Fatal(err)
	}
	own := b.Metadata.Component
	if own.PURL != "pkg:golang/github.com/pmh-bridge/bridge@v1.2.3%2Bx" || own.Version != "v1.2.3+x" || len(own.Hashes) != 1 || len(own.Hashes[0].Content) != 64 {
		t.Errorf("%+v", own)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(b.SerialNumber) {
		t.Error(b.SerialNumber)
	}
	if len(b.Components) == 0 || b.Components[0].Name != "std" || !strings.HasPrefix(b.Components[0].Version, "1.") || len(b.Dependencies[0].DependsOn) != len(b.Components) {
		t.Errorf("%+v", b.Components)
	}
	if err := run([]string{"main.go", "v1", "now"}, new(strings.Builder)); err == nil {
		t.Error("a bill of a text")
	}
}
