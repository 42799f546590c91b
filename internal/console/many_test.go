package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// withMany opens a bridge with a number of sets of one Source each, and one set of several.
func withMany(t *testing.T, sets, inOne int) *daemon.Bridge {
	t.Helper()
	var file strings.Builder
	file.WriteString("data = \"data\"\n")
	source := func(n int) {
		fmt.Fprintf(&file, "[[set.source]]\nkind = \"atompmh\"\nname = \"source %d\"\nurl = \"http://127.0.0.1:9/%[1]d.atom\"\n", n)
	}
	for n := range sets {
		fmt.Fprintf(&file, "[[set]]\nname = \"set-%04d\"\ncontent = \"redirect\"\n", n)
		source(n)
	}
	file.WriteString("[[set]]\nname = \"large\"\ncontent = \"redirect\"\n")
	for n := range inOne {
		source(sets + n)
	}
	path := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// The state of everything is read for each page, and by everybody who may ask for one: of very
// many sets it must not cost some requests to the log for each.
func TestStatusOfMany(t *testing.T) { // not parallel: it counts allocations
	const sets = 500
	b := withMany(t, sets, 1)
	if cost := testing.AllocsPerRun(3, func() {
		if _, err := b.Status(t.Context()); err != nil {
			t.Error(err)
		}
	}) / sets; cost > 250 {
		t.Errorf("the state of one set takes %.0f allocations", cost)
	}
}

// A bridge with very many sets and Sources has pages that a browser can show, and which lead to
// all of them.
func TestManySources(t *testing.T) {
	t.Parallel()
	const sets, inOne = 450, 210
	b := withMany(t, sets, inOne)
	pages := console.New(console.Options{Bridge: b})
	get := func(path string) *html.Node {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+console.Path+path, nil)
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Body.Len() > 1<<20 {
			t.Fatalf("%s: status %d, %d bytes; want at most a megabyte", path, w.Code, w.Body.Len())
		}
		root, err := html.Parse(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	next := func(root *html.Node) string {
		for _, a := range elements(root, "a") {
			if attr(a, "rel") == "next" {
				return attr(a, "href")
			}
		}
		return ""
	}
	for _, of := range []struct {
		path, links string
		want        int
	}{{"/", "./sources/", sets + inOne}, {"/?sort=name&order=desc", "./sources/", sets + inOne}, {"/?set=large", "./sources/", inOne}, {"/sets", "./sets/", sets + 1}} {
		var met []string
		folder := of.path[:strings.LastIndexByte(of.path, '/')+1]
		for path := of.path; path != ""; {
			root := get(path)
			for _, row := range elements(root, "tr") {
				for _, a := range elements(row, "a") {
					if href := attr(a, "href"); strings.HasPrefix(href, of.links) && !slices.Contains(met, href) {
						met = append(met, href)
					}
				}
			}
			base, _, _ := strings.Cut(of.path, "?")
			switch path = next(root); {
			case strings.HasPrefix(path, "?"):
				path = base + path
			case path != "":
				path = folder + path
			}
		}
		if len(met) != of.want {
			t.Errorf("%s and the pages after it have %d of %d", of.path, len(met), of.want)
		}
	}
	if said := text(get("/sets/large")); !strings.Contains(said, "All 210 Sources") {
		t.Errorf("the page of a set with %d Sources does not lead to all of them", inOne)
	}
}
