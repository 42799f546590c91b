package validate

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files and docs/conformance.md anew")

// The examples of the specifications and documents of other people's software give known
// results.
func TestKnownDocuments(t *testing.T) {
	for name, pattern := range map[string]string{
		"atom-pmh":     "../../atompmh/testdata/draft/*",
		"resourcesync": "../../resourcesync/testdata/examples/*",
		"considered":   "../../resourcesync/testdata/considered/*",
		"oai-pmh":      "../../oaipmh/testdata/golden/*.xml",
		"sip":          "../../sip/testdata/*.xml",
		"samples":      "../../../shared/samples/*/*",
	} {
		t.Run(name, func(t *testing.T) {
			files, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) == 0 {
				if name == "samples" {
					t.Skip("the folder of samples is not there")
				}
				t.Fatalf("no file %s", pattern)
			}
			var got strings.Builder
			for _, file := range files {
				count, kind := map[string]int{}, "not checked"
				findings, _ := check(t, Options{Base: "http://example.org/dir/document", Checked: func(d Document) { kind = d.Kind }}, file)
				for _, f := range findings {
					count[strings.TrimSpace(f.Severity+" "+f.Rule)] += max(f.More, 1)
				}
				fmt.Fprintf(&got, "%s: %s\n", filepath.Base(file), kind)
				for _, rule := range slices.Sorted(maps.Keys(count)) {
					fmt.Fprintf(&got, "    %s: %d\n", rule, count[rule])
				}
			}
			golden(t, "testdata/known-"+name+".golden", got.String())
		})
	}
}

// golden compares a text with a file, or writes the file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // everybody may read it
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		old := strings.Split(string(want), "\n")
		for i, line := range strings.Split(got, "\n") {
			if i >= len(old) || line != old[i] {
				t.Fatalf("%s differs from line %d on; run make golden and look at the difference. Got:\n%s", file, i+1, line)
			}
		}
		t.Errorf("%s is longer than what the code makes; run make golden", file)
	}
}
