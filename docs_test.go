package bridge_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notAnchor = regexp.MustCompile("[^a-z0-9 _-]")
	wayStep   = regexp.MustCompile("(?m)^\\| \\d+ \\| `[^`]*?(\\w+)` \\| \\[[^]]*\\]\\(\\.\\./([^)]+)\\)")
)

// TestDocsLinks: every relative link in the documentation leads to a file, and to a
// heading of it where it names one.
func TestDocsLinks(t *testing.T) {
	files := []string{"README.md", "CHANGELOG.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		for _, m := range mdLink.FindAllStringSubmatch(read(t, file), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another site
			}
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: the link %s leads nowhere", file, m[1])
				continue
			}
			if anchor != "" && !anchors(read(t, path))[anchor] {
				t.Errorf("%s: the link %s leads to no heading", file, m[1])
			}
		}
	}
}

// TestDocsLength: no page is too long to be read, but for the one that is generated.
func TestDocsLength(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	if err != nil || len(files) < 10 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if n := strings.Count(read(t, file), "\n"); n > 300 && file != "docs/conformance.md" {
			t.Errorf("%s has %d lines: split it", file, n)
		}
	}
}

// TestDocsWayOfEntry: the comment of each package on the way from an entry to a url names
// the package's functions on it, in their order.
func TestDocsWayOfEntry(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/how-it-works.md"), "## From an entry")
	table, _, _ = strings.Cut(table, "\n## ")
	rest := map[string]string{} // of the comment of a folder's package, behind the last name
	for _, s := range regexp.MustCompile("(?m)^\\| \\d+ \\| `([^`]+)` \\| \\[([^]]*)\\]").FindAllStringSubmatch(table, -1) {
		name, dir := s[1], filepath.Dir(s[2])
		if _, known := rest[dir]; !known {
			rest[dir] = packageComment(t, dir)
		}
		if first, short, _ := strings.Cut(name, "."); first == filepath.Base(dir) {
			name = short
		}
		_, after, found := strings.Cut(rest[dir], name)
		if !found {
			t.Errorf("the comment of package %s does not name %s, or not in this order", dir, name)
		}
		rest[dir] = after
	}
	if len(rest) != 6 {
		t.Errorf("%d packages, expected 6", len(rest))
	}
}

// TestDocsRules: terms.md explains every rule that a comment names.
func TestDocsRules(t *testing.T) {
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([IAP]\d+) \|`).FindAllStringSubmatch(read(t, "docs/terms.md"), -1) {
		known[m[1]] = true
	}
	rule := regexp.MustCompile(`[(, ]([IAP]\d+)[,)]`)
	for _, pattern := range []string{"*/*.go", "internal/*/*.go", "internal/*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for line := range strings.Lines(read(t, file)) {
				_, comment, _ := strings.Cut(line, "//")
				for _, m := range rule.FindAllStringSubmatch(comment, -1) {
					if !known[m[1]] {
						t.Errorf("%s names the rule %s, which terms.md does not explain", file, m[1])
					}
				}
			}
		}
	}
}

// packageComment returns the comment of the package in a folder.
func packageComment(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if comment, _, _ := strings.Cut(read(t, file), "\npackage "); strings.HasPrefix(comment, "// Package ") {
			return comment
		}
	}
	t.Fatalf("package %s has no comment", dir)
	return ""
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// anchors returns the names that a web view of the text gives its headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

// TestDocsWays: the functions on the ways that how-it-works.md shows stand in the
// files that it names.
func TestDocsWays(t *testing.T) {
	steps := wayStep.FindAllStringSubmatch(read(t, "docs/how-it-works.md"), -1)
	if len(steps) < 40 {
		t.Fatalf("%d steps", len(steps))
	}
	for _, s := range steps {
		if name := regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + s[1] + `[\[(]`); !name.MatchString(read(t, s[2])) {
			t.Errorf("%s has no function %s", s[2], s[1])
		}
	}
}
