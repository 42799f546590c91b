package harvest

import (
	"bytes"
	"compress/gzip"
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
		{"a text file, which is called one (D57)", "Hello\nhttps://example.org/b\n", ""},
		{"a sitemap in plain text", "https://example.org/a\nhttps://example.org/b\n", Sitemap},
		{"CSV", "Title;URL;Modified\r\nA;https://example.org/a;2026-01-01\r\n", CSV},
		{"CSV in quotes, after a mark", "\xEF\xBB\xBF\"loc\",\"type\"\n", CSV},
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
		{"an answer of OAI-PMH", `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate/><error code="badVerb"/></OAI-PMH>`, OAIPMH},
		{"an answer of OAI-PMH in no namespace", `<OAI-PMH><error code="badVerb"/></OAI-PMH>`, OAIPMH},
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

// What an answer cannot show for certain is not taken for a kind: that would be remembered when the
// server answers as it should.
func TestDetectNothing(t *testing.T) {
	const begun = `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>F</title><updated>2026-01-01T00:00:00Z</updated><entry>`
	cut := begun + "<title>" + strings.Repeat("T", 8<<10)
	packed := func(doc string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, doc)
		_ = z.Close()
		return b.String()
	}
	for _, tt := range []struct{ name, doc, want, says string }{
		{"a feed as a gzip file", packed(begun + "</entry></feed>"), "", "a gzip file, and no Content-Encoding that says so"},
		{"RSS as a gzip file", packed(`<rss version="2.0"><channel/></rss>`), "", "a gzip file, and no Content-Encoding that says so"},
		{"a sitemap as a gzip file", packed(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"/>`), ResourceSync, "<nil>"},
		{"a broken gzip file", packed(begun)[:20], ResourceSync, "<nil>"},
		{"a message of an error in JSON", `{"error":"try again later"}`, "", "JSON, but not a JSON Feed"},
		{"JSON Feed", `{"version":"https://jsonfeed.org/version/1.1","title":"T","items":[]}`, Feed, "<nil>"},
		{"a feed that breaks off", cut, "", "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/doc" {
					http.NotFound(w, r)
					return
				}
				if tt.doc == cut {
					w.Header().Set("Content-Length", "100000")
				}
				_, _ = io.WriteString(w, tt.doc)
			}))
			defer s.Close()
			got, err := detect(t.Context(), &Source{URL: s.URL + "/doc", Client: s.Client()})
			if got != tt.want || !strings.Contains(fmt.Sprint(err), tt.says) {
				t.Errorf("kind %q, %v; want %q, %s", got, err, tt.want, tt.says)
			}
		})
	}
}

// A host is that of a ResourceSync Source also while one of several Capability Lists fails.
func TestDetectWithAFailingSet(t *testing.T) {
	const root = `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s"/>`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/resourcesync":
			fmt.Fprintf(w, root+`<url><loc>http://%s/1</loc></url><url><loc>http://%[2]s/2</loc></url></urlset>`, "description", r.Host)
		case "/1":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/2":
			fmt.Fprintf(w, root+`<url><loc>http://%s/rl</loc><rs:md capability="resourcelist"/></url></urlset>`, "capabilitylist", r.Host)
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	if got, err := detect(t.Context(), &Source{URL: s.URL, Client: s.Client()}); got != ResourceSync || err != nil {
		t.Errorf("kind %q, %v", got, err)
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

// An OAI-PMH repository is known by any request that a person copies, and by its base
// URL, which some software answers for only when a verb is asked. That takes one more
// request, and what is none is looked at as before.
func TestDetectRepository(t *testing.T) {
	const identify = `<?xml version="1.0"?><OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><Identify/></OAI-PMH>`
	for _, tt := range []struct {
		name, url, bare string
		status          int
		want            string
		requests        int
	}{
		{"a list", "/oai?verb=ListRecords&metadataPrefix=oai_dc&set=a%3Ab", "", 200, OAIPMH, 1},
		{"a base URL that answers with an error", "/oai", `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><error code="badVerb"/></OAI-PMH>`, 200, OAIPMH, 1},
		{"DSpace: a page", "/oai/request", "<!DOCTYPE html><html><title>DSpace OAI-PMH Data Provider</title></html>", 200, OAIPMH, 2},
		{"EPrints: not found", "/cgi/oai2", "not found", 404, OAIPMH, 2},
		{"OJS: bad request", "/index.php/journal/oai", "", 400, OAIPMH, 2},
		{"one that fails without a verb", "/oai", "a null pointer", 500, OAIPMH, 2},
		{"a failure of something else", "/fails", "", 500, "", 2},
		{"a resumptionToken that has expired", "/oai?verb=ListRecords&resumptionToken=x%26y", "expired", 404, OAIPMH, 2},
		{"a page of something else", "/home", "<html>Welcome</html>", 200, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			requests := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				switch path, _, _ := strings.Cut(tt.url, "?"); {
				case r.URL.Path != path:
					http.NotFound(w, r)
				case tt.want != "" && r.URL.Query().Get("verb") != "" && r.URL.Query().Get("resumptionToken") == "":
					_, _ = io.WriteString(w, identify)
				default:
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.bare)
				}
			}))
			defer s.Close()
			got, err := detect(context.Background(), &Source{URL: s.URL + tt.url, Client: s.Client()})
			if got != tt.want || tt.requests != 0 && requests != tt.requests {
				t.Errorf("kind %q after %d requests, %v; want %q after %d", got, requests, err, tt.want, tt.requests)
			}
			says := "the request of OAI-PMH " + s.URL + "/home?verb=Identify: an HTML page"
			if tt.status == 500 {
				says = "HTTP status 500 Internal Server Error: try again later"
			}
			if tt.want == "" && !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("%v does not say what was tried", err)
			}
		})
	}
}
