package harvest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// D85: the kind is found as leniently as the readers read, and atompmh only where
// entries have alternates.
func TestDetect(t *testing.T) {
	const head = `<id>urn:f</id><title>F</title><updated>2026-01-01T00:00:00Z</updated>`
	atom := func(more string) string {
		return `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0">` + head + more + `</feed>`
	}
	entry := func(more string) string {
		return `<entry><id>urn:1</id><title>T</title><updated>2026-01-01T00:00:00Z</updated>` + more + `</entry>`
	}
	for _, tt := range []struct{ name, doc, want string }{
		{"a text file, which is called one (D57)", "https://example.org/a\nhttps://example.org/b\n", ""},
		{"RSS", `<rss version="2.0"><channel/></rss>`, Feed},
		{"RSS after a blank line", "\n<?xml version=\"1.0\"?>\n<rss version=\"2.0\"><channel/></rss>", Feed},
		{"RSS with a prefix that is not declared", `<rss version="2.0" media:x="1"><channel/></rss>`, Feed},
		{"sitemap after a blank line", "\n<?xml version=\"1.0\"?><urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"/>", ResourceSync},
		{"figure 9 of D-Lib 19 (1/2)", `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:rs="http://www.openarchives.org/rs/" rs:type="http://www.openarchives.org/rs/changelist"/>`, ResourceSync},
		{"figure 11 of D-Lib 19 (1/2)", `<resync xmlns="http://www.openarchives.org/rs/" rstype="http://www.openarchives.org/rs/changelist"/>`, ResourceSync},
		{"Atom without entries", atom(""), AtomPMH},
		{"Atom-PMH", atom(entry(`<link href="/r" type="a/b"/>`)), AtomPMH},
		{"a blog", atom(entry(`<link href="/r"/><content>text</content>`)), Feed},
		{"an archived blog with alternates", atom(`<link rel="prev-archive" href="/1"/>` + entry(`<link href="/r"/><content>text</content>`)), AtomPMH},
		{"archived, with content src alone", atom(`<link rel="prev-archive" href="/1"/>` + entry(`<content src="/r" type="a/b"/>`)), Feed},
		{"a blog with a prefix that is not declared", `<feed xmlns="http://www.w3.org/2005/Atom">` + head + `<georss:point>1 2</georss:point>` + entry(`<link href="/r"/><content>text</content>`) + `</feed>`, Feed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/doc" {
					http.NotFound(w, r)
					return
				}
				_, _ = io.WriteString(w, tt.doc)
			}))
			defer s.Close()
			got, err := detect(context.Background(), &Source{URL: s.URL + "/doc", Client: s.Client()})
			says := "<nil>"
			if tt.want == "" {
				says = "a text file"
			}
			if got != tt.want || !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("kind %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// A set that has nothing but dumps, and no Capability List, is harvested by its dump.
func TestSetsOfDumps(t *testing.T) {
	for _, capability := range []string{"resourcedump", "changedump"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/dump" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s" at="2026-01-01T00:00:00Z" from="2026-01-01T00:00:00Z"/></urlset>`, capability)
		}))
		defer s.Close()
		urls, err := new(Harvester).SetsOf(context.Background(), &Source{URL: s.URL + "/dump", Client: s.Client()})
		if err != nil || len(urls) != 1 || urls[0] != s.URL+"/dump" {
			t.Errorf("%s: %q, %v", capability, urls, err)
		}
	}
}
