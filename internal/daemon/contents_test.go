package daemon_test

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// logged returns what the log of a bridge has: "created a, text/xml /a 3" with the
// path and the length of each representation.
func logged(t *testing.T, h *daemon.Bridge) []string {
	t.Helper()
	var out []string
	for ev, err := range h.Log.Events(t.Context(), "", allAfter(0)) {
		if err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%s %s", ev.Kind, strings.TrimPrefix(ev.Record, "urn:"))
		for _, r := range ev.Representations {
			s += fmt.Sprintf(", %s %s", r.Type, r.Href[strings.LastIndexByte(r.Href, '/'):])
			if r.Length != event.NoLength {
				s += fmt.Sprintf(" %d", r.Length)
			}
		}
		out = append(out, s)
	}
	return out
}

// feedWith is an Atom feed with one entry that has these links.
func feedWith(links string) string {
	return `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:feed</id><title>t</title><updated>2025-01-01T00:00:00Z</updated>` +
		`<author><name>n</name></author><fh:complete/><entry><id>urn:a</id><title>a</title><updated>2025-01-01T00:00:00Z</updated>` + links + `</entry></feed>`
}

// listWith is a Resource List with one resource.
func listWith(url string) string {
	return `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2025-01-01T00:00:00Z"/><url>` +
		url + `</url></urlset>`
}

// source is a bridge over one document and what lies beside it.
func (w *testNetwork) source(kind, document string, beside map[string]http.HandlerFunc, change ...func(*config.Config)) *daemon.Bridge {
	w.name("source.example", "93.184.216.34")
	w.serve("93.184.216.34:80", func(rw http.ResponseWriter, r *http.Request) {
		if h := beside[r.URL.Path]; h != nil {
			h(rw, r)
		} else if r.URL.Path == "/doc" {
			rw.Header().Set("Content-Type", "application/xml")
			fmt.Fprint(rw, document)
		} else {
			rw.WriteHeader(http.StatusNotFound)
		}
	})
	h := w.openIn(w.t.TempDir(), []string{kind + ":http://source.example/doc"}, change...)
	h.Harvester().Workers = 1
	return h
}

func text(mediaType, body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Content-Type"] = nil
		if mediaType != "" {
			rw.Header().Set("Content-Type", mediaType)
		}
		fmt.Fprint(rw, body)
	}
}

func answerWith(code int) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
}

// D4: an alternate that cannot be had does not keep the record back. What is not
// http is not asked for at all; the others are, again and again.
func TestAlternateThatCannotBeHad(t *testing.T) {
	testenv.Heavy(t)
	for href, partial := range map[string]bool{
		"gsiftp://source.example/a": false, "urn:x:a": false, "ftp://source.example/a": false, "file:///etc/passwd": false,
		"http://unknown.example/a": true, "http://source.example/locked": true, "http://source.example/none": true, "http://10.0.0.1/a": true, "http://source.example/teapot": true,
	} {
		for kind, document := range map[string]string{
			"atompmh":      feedWith(`<link rel="alternate" type="text/xml" href="/a.xml"/><link rel="alternate" type="text/plain" href="` + href + `"/>`),
			"resourcesync": listWith(`<loc>http://source.example/a.xml</loc><rs:md type="text/xml"/><rs:ln rel="alternate" type="text/plain" href="` + href + `"/>`),
		} {
			w := newNetwork(t)
			h := w.source(kind, document, map[string]http.HandlerFunc{"/a.xml": text("text/xml", "<a/>"), "/locked": answerWith(401), "/teapot": answerWith(418)})
			r, err := w.harvest(h, 0)
			if err != nil || r.Created != 1 || r.Pending > 0 != partial || r.Quarantined != 0 {
				t.Errorf("%s, %s: %+v, %v", kind, href, r, err)
			}
			if got := logged(t, h); len(got) != 1 || !strings.HasSuffix(got[0], ", text/xml /a.xml 4") {
				t.Errorf("%s, %s: logged %q", kind, href, got)
			}
			// What leads to no content for us is a link like others; a file is no link.
			if first := reported(r, "A13"); strings.Contains(first, href) != (partial || strings.HasPrefix(href, "file:")) {
				t.Errorf("%s, %s: reported %q", kind, href, first)
			}
			sources, err := h.Log.Sources(t.Context(), "main")
			if err != nil || sources[0].Pending != sources[0].Partial || sources[0].Partial > 0 != partial {
				t.Errorf("%s, %s: %d pending, %d partial, %v", kind, href, sources[0].Pending, sources[0].Partial, err)
			}
		}
	}
}

// D4: what fails for the moment is waited for once, so that an outage is no event;
// then the rest is published, and the missing one when it can be had.
func TestAlternateThatFailsForLong(t *testing.T) {
	w := newNetwork(t)
	broken := true
	h := w.source("atompmh", feedWith(`<link rel="alternate" type="text/xml" href="/a.xml"/><link rel="alternate" type="text/plain" href="/a.txt"/>`), map[string]http.HandlerFunc{
		"/a.xml": text("text/xml", "<a/>"),
		"/a.txt": func(rw http.ResponseWriter, r *http.Request) {
			if broken {
				rw.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			text("text/plain", "a")(rw, r)
		}})
	once := fetch.New(fetch.Options{Attempts: 1, Network: w.network(), Reach: fetch.Reach{Origin: "http://source.example/doc"}})
	defer once.Close()
	h.Sources()[0].Client = once.Client("")
	pass := func(what string, want ...string) {
		t.Helper()
		if _, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{AllPending: true}); err != nil {
			t.Fatal(err)
		}
		if got := logged(t, h); !slices.Equal(got, want) {
			t.Errorf("%s: logged %q, want %q", what, got, want)
		}
	}
	pass("first")
	pass("asked again", "created a, text/xml /a.xml 4")
	pass("and again", "created a, text/xml /a.xml 4")
	broken = false
	pass("at last", "created a, text/xml /a.xml 4", "updated a, text/xml /a.xml 4, text/plain /a.txt 1")
}

// D6: hash and length with encoding="gzip" are those of the body as transferred
// in that coding; what is kept is the body itself, with our own hash.
func TestStatedEncoding(t *testing.T) {
	testenv.Heavy(t)
	body := []byte(strings.Repeat("<a>the same again</a>\n", 50))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(body)
	z.Close()
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	md := func(b []byte) string { s := md5.Sum(b); return hex.EncodeToString(s[:]) }
	coded := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", "gzip")
		rw.Write(packed.Bytes())
	}
	file := func(rw http.ResponseWriter, r *http.Request) { rw.Write(packed.Bytes()) }
	plain := func(rw http.ResponseWriter, r *http.Request) { rw.Write(body) }
	for what, c := range map[string]struct {
		md      string
		serve   http.HandlerFunc
		kept    []byte // nil: quarantined sooner or later, never published
		decoded bool
	}{
		"hash and length of the coded body":   {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s md5:%s" length="%d"`, sum(packed.Bytes()), md(packed.Bytes()), packed.Len()), coded, body, true},
		"in other letters":                    {fmt.Sprintf(`encoding=" X-GZIP " hash="md5:%s"`, md(packed.Bytes())), coded, body, true},
		"length alone":                        {fmt.Sprintf(`encoding="gzip" length="%d"`, packed.Len()), coded, body, true},
		"of the body all the same":            {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s" length="%d"`, sum(body), len(body)), coded, body, true},
		"of the body, which is not coded":     {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s" length="%d"`, sum(body), len(body)), plain, body, true},
		"of a packed file":                    {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s" length="%d"`, sum(packed.Bytes()), packed.Len()), file, packed.Bytes(), false},
		"a coding that nobody asks for":       {fmt.Sprintf(`encoding="br" hash="sha-256:%s" length="7"`, sum([]byte("x"))), plain, body, true},
		"another hash":                        {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s"`, sum([]byte("x"))), coded, nil, false},
		"the hash of one, the other's length": {fmt.Sprintf(`encoding="gzip" hash="sha-256:%s" length="%d"`, sum(packed.Bytes()), len(body)), coded, nil, false},
		"no encoding stated":                  {fmt.Sprintf(`hash="sha-256:%s"`, sum(packed.Bytes())), coded, nil, false},
	} {
		w := newNetwork(t)
		h := w.source("resourcesync", listWith(`<loc>http://source.example/a.xml</loc><rs:md type="text/xml" `+c.md+`/>`), map[string]http.HandlerFunc{"/a.xml": c.serve})
		r, err := w.harvest(h, 0)
		if err != nil || (r.Created == 1) != (c.kept != nil) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		if c.kept == nil {
			continue
		}
		for ev, err := range h.Log.Events(t.Context(), "", allAfter(0)) {
			if err != nil {
				t.Fatal(err)
			}
			rep := ev.Representations[0]
			if rep.Hash != "sha-256:"+sum(c.kept) || rep.Length != int64(len(c.kept)) || rep.Encoding != "" {
				t.Errorf("%s: published %+v", what, rep)
			}
			blob, err := h.Contents.Open(t.Context(), sha256.Sum256(c.kept))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got := readAll(t, blob); !bytes.Equal(got, c.kept) {
				t.Errorf("%s: the store has %q", what, got)
			}
			blob.Close()
		}
	}
	// What is not kept is published as it was stated.
	w := newNetwork(t)
	h := w.source("resourcesync", listWith(`<loc>http://source.example/a.xml</loc><rs:md type="text/xml" encoding="gzip" hash="md5:`+md(packed.Bytes())+`" length="9"/>`), nil,
		func(c *config.Config) { c.Sets[0].Content = config.Reference })
	if r, err := w.harvest(h, 0); err != nil || r.Created != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	for ev, err := range h.Log.Events(t.Context(), "", allAfter(0)) {
		if err != nil {
			t.Fatal(err)
		}
		if rep := ev.Representations[0]; rep.Encoding != "gzip" || rep.Hash != "md5:"+md(packed.Bytes()) || rep.Length != 9 {
			t.Errorf("reference: %+v", rep)
		}
	}
}

// D10: of a legacy feed's links HTTP says what they are.
func TestFeedLinksHaveTheTypeOfHTTP(t *testing.T) {
	rss := `<rss version="2.0"><channel><title>t</title><item><guid isPermaLink="false">urn:a</guid><link>http://source.example/a.pdf</link></item>` +
		`<item><guid isPermaLink="false">urn:b</guid><link>http://source.example/b</link></item></channel></rss>`
	for mode, want := range map[string][]string{
		config.Mirror:    {"created a, application/pdf /a.pdf 1", "created b,  /b 1"},
		config.Reference: {"created a, application/pdf /a.pdf", "created b, application/octet-stream /b"},
	} {
		w := newNetwork(t)
		h := w.source("feed", rss, map[string]http.HandlerFunc{"/a.pdf": text("application/pdf", "p"), "/b": text("", "b")}, content(mode))
		if r, err := w.harvest(h, 0); err != nil || r.Created != 2 {
			t.Fatalf("%s: %+v, %v", mode, r, err)
		}
		got := logged(t, h)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", mode, got, want)
		}
	}
	// formats that want pages take links of which the feed says nothing.
	for format, want := range map[string]int64{"text/html": 2, "application/pdf": 0} {
		w := newNetwork(t)
		h := w.source("feed", rss, map[string]http.HandlerFunc{"/a.pdf": text("text/html", "p"), "/b": text("text/html", "b")}, func(c *config.Config) { c.Sets[0].Formats = []string{format} })
		if r, err := w.harvest(h, 0); err != nil || r.Created != want {
			t.Errorf("%s: %+v, %v", format, r, err)
		}
	}
}

// D13: where nothing is fetched, the type that the Source does not state is asked
// for once, with HEAD; where that does not tell, it is nothing but bytes, which
// is reported.
func TestTypeIsAskedForWhereNothingIsFetched(t *testing.T) {
	testenv.Heavy(t)
	for _, mode := range []string{config.Redirect, config.Reference} {
		for kind, document := range map[string]func(path, more string) string{
			"atompmh":      func(path, more string) string { return feedWith(`<link rel="alternate" href="` + path + `"/>` + more) },
			"resourcesync": func(path, more string) string { return listWith(`<loc>http://source.example` + path + `</loc>` + more) },
		} {
			for path, want := range map[string]string{"/a": "text/turtle; charset=utf-8", "/none": "application/octet-stream", "/silent": "application/octet-stream", "/odd": "application/octet-stream"} {
				w := newNetwork(t)
				var methods []string
				h := w.source(kind, document(path, ""), map[string]http.HandlerFunc{
					"/a": func(rw http.ResponseWriter, r *http.Request) {
						methods = append(methods, r.Method)
						text(want, "a")(rw, r)
					},
					"/silent": text("", ""), "/odd": text("nothing", ""),
				}, content(mode))
				r, err := w.harvest(h, 0)
				if err != nil || r.Created != 1 || r.Partial() {
					t.Fatalf("%s, %s, %s: %+v, %v", mode, kind, path, r, err)
				}
				if got := logged(t, h); len(got) != 1 || !strings.Contains(got[0], ", "+want+" "+path) {
					t.Errorf("%s, %s, %s: %q", mode, kind, path, got)
				}
				if first := reported(r, "type"); strings.Contains(first, "published as application/octet-stream") != (want == "application/octet-stream") {
					t.Errorf("%s, %s, %s: reported %q", mode, kind, path, first)
				}
				w.requests()
				if r, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{Full: true}); err != nil || r.Events() != 0 {
					t.Errorf("%s, %s, %s, again: %+v, %v", mode, kind, path, r, err)
				}
				if asked := w.requests(); slices.Contains(asked, "source.example"+path) {
					t.Errorf("%s, %s, %s: asked again: %q", mode, kind, path, asked)
				}
				if path == "/a" && !slices.Equal(methods, []string{"HEAD"}) {
					t.Errorf("asked with %q", methods)
				}
			}
		}
	}
}
