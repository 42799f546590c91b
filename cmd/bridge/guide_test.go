package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// step is a command of a guide and what it prints; or, where file is set, a file that the
// reader writes.
type step struct {
	line    int
	command string
	prints  []string
	file    []string // lines
}

// stepsOf returns the steps of a Markdown text: of indented blocks the lines that begin
// with "$ " and those after them, and blocks of TOML. Blocks in lists are indented more.
func stepsOf(text string) (steps []step) {
	inFile := false
	for i, line := range strings.Split(text, "\n") {
		last := len(steps) - 1
		switch trimmed := strings.TrimLeft(line, " "); {
		case line == "```toml":
			inFile = true
			steps = append(steps, step{line: i + 1, file: []string{}})
		case line == "```":
			inFile = false
		case inFile:
			steps[last].file = append(steps[last].file, line)
		case len(line)-len(trimmed) >= 4 && strings.HasPrefix(trimmed, "$ "):
			steps = append(steps, step{line: i + 1, command: trimmed[2:]})
		case len(line)-len(trimmed) >= 4 && last >= 0 && steps[last].command != "":
			steps[last].prints = append(steps[last].prints, trimmed)
		}
	}
	return steps
}

// varying is what no two runs print alike.
var varying = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ|\d+(\.\d+)?(ms|s|µs)\b|\(\d+ bytes\)`)

// The commands of docs/migration.md do what it says, one after the other, and print what
// it shows, but for times and sizes.
func TestMigrationGuide(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	follow(t, readGuide(t, "docs/migration.md"))
}

// So do those of the example in README.md.
func TestReadmeExample(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	_, example, _ := strings.Cut(readGuide(t, "README.md"), "\n### Move an OAI-PMH repository\n")
	example, _, _ = strings.Cut(example, "\n## ")
	follow(t, example)
}

func readGuide(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// follow does the steps of a guide that moves the museum.
func follow(t *testing.T, guide string) {
	t.Helper()
	testenv.Need(t, "curl", "curl")
	const repository, published = "https://repository.example.org/oai", "http://127.0.0.1:8080"
	museum := httptest.NewServer(fixtures.Museum(nil))
	defer museum.Close()
	f := &folder{t: t, path: t.TempDir()}
	base := published
	real := func(s string) string {
		return strings.NewReplacer(repository, museum.URL+fixtures.MuseumOAI, published, base).Replace(s)
	}
	told := func(s string) string {
		return varying.ReplaceAllString(strings.NewReplacer(museum.URL+fixtures.MuseumOAI, repository, base, published, f.path, "/srv").Replace(s), "N")
	}
	var server *child
	file := ""
	steps := stepsOf(guide)
	if len(steps) < 7 {
		t.Fatalf("only %d steps", len(steps))
	}
	for _, s := range steps {
		switch {
		case s.file != nil:
			// From here on the other folder is published.
			f.end(server, os.Interrupt)
			file = real(strings.Join(s.file, "\n"))
			if err := os.WriteFile(filepath.Join(f.path, "bridge.toml"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		case strings.HasSuffix(s.command, " &"):
			args := strings.Fields(strings.TrimSuffix(s.command, " &"))
			server, base = f.serve(append(args[2:], "--listen", "127.0.0.1:0")...)
			continue
		case slices.Contains(s.prints, "set museum: mirror, 0 Sources"):
			// The reader has taken the Source out.
			without, _, _ := strings.Cut(file, "[[set.source]]")
			if err := os.WriteFile(filepath.Join(f.path, "bridge.toml"), []byte(without), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-c", real(s.command))
		cmd.Dir = f.path
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("line %d: %s: %v\n%s%s", s.line, s.command, err, out, stderr.String())
			continue
		}
		var got []string
		for line := range strings.Lines(told(string(out))) {
			got = append(got, strings.TrimLeft(strings.TrimSuffix(line, "\n"), " "))
		}
		want := told(strings.Join(s.prints, "\n"))
		if strings.Join(got, "\n") != want {
			t.Errorf("line %d: %s prints\n%s\nand not\n%s", s.line, s.command, strings.Join(got, "\n"), want)
		}
	}
}
