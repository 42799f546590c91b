package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
)

// doc is a page, parsed as a browser parses it.
type doc struct {
	links, lists []string // of a, and of link rel="resourcesync"; absolute
	feeds        []string // of link rel="alternate": type and href
	elements     map[string]int
	attributes   map[string]int
	style, text  string
}

func parsePage(t *testing.T, at, body string) doc {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	d := doc{elements: map[string]int{}, attributes: map[string]int{}}
	for n := range root.Descendants() {
		switch n.Type {
		case html.TextNode:
			if n.Parent.Data == "style" {
				d.style += n.Data
			} else {
				d.text += n.Data + " "
			}
		case html.ElementNode:
			d.elements[n.Data]++
			attr := map[string]string{}
			for _, a := range n.Attr {
				d.attributes[a.Key]++
				attr[a.Key] = a.Val
			}
			if n.Data != "a" && n.Data != "link" {
				continue
			}
			u, err := base.Parse(attr["href"])
			if err != nil {
				t.Fatal(err)
			}
			if n.Data == "a" {
				d.links = append(d.links, u.String())
			} else if attr["rel"] == "resourcesync" && n.Parent.Data == "head" {
				d.lists = append(d.lists, attr["href"])
			} else if attr["rel"] == "alternate" && n.Parent.Data == "head" && attr["title"] != "" {
				d.feeds = append(d.feeds, attr["type"]+" "+attr["href"])
			}
		}
	}
	d.text = strings.Join(strings.Fields(d.text), " ")
	return d
}

// page gets a page and checks what holds for all pages.
func (h *testServer) page(path string) doc {
	h.t.Helper()
	t := h.t.(*testing.T)
	r := h.get(path).want(t, 200).field(t, "Content-Type", "text/html; charset=utf-8").field(t, "X-Content-Type-Options", "nosniff").
		field(t, "Referrer-Policy", "no-referrer").field(t, "Cache-Control", "no-cache")
	wantNested(t, path, r.body)
	d := parsePage(t, h.base+path, r.body)
	sum := sha256.Sum256([]byte(d.style))
	r.field(t, "Content-Security-Policy", "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	for _, bad := range []string{"script", "img", "iframe", "object", "form", "base", "svg"} {
		if d.elements[bad] > 0 {
			t.Errorf("%s has an element %s", path, bad)
		}
	}
	for name := range d.attributes {
		if name == "style" || strings.HasPrefix(name, "on") || name == "src" {
			t.Errorf("%s has an attribute %s", path, name)
		}
	}
	if d.elements["meta"] != 2 || !strings.Contains(r.body, `<meta name="viewport"`) {
		t.Errorf("%s does not say how wide it is", path)
	}
	if head := h.ask(http.MethodHead, h.base+path).want(t, 200); head.header.Get("Content-Length") != r.header.Get("Content-Length") {
		t.Error("HEAD has another length")
	}
	return d
}

// wantNested fails unless every element of a page is closed in its turn: a parser of
// HTML closes what is open.
func wantNested(t *testing.T, at, body string) {
	t.Helper()
	var open []string
	for z := html.NewTokenizer(strings.NewReader(body)); ; {
		switch z.Next() {
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("%s: never closed: %v", at, open)
			}
			return
		case html.StartTagToken:
			if name, _ := z.TagName(); !slices.Contains([]string{"meta", "link", "br"}, string(name)) {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("%s: </%s> while these are open: %v", at, name, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func has(t *testing.T, d doc, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(d.text, s) {
			t.Errorf("the page does not say %q: %s", s, d.text)
		}
	}
}

func TestPagesWithoutSets(t *testing.T) {
	h := newTestServer(t, "", nil)
	d := h.page("/")
	has(t, d, "There is no set yet")
	for _, l := range d.links {
		h.ask(http.MethodGet, l).want(t, 200)
	}
	h.get("/sets/main/").want(t, 404)
}

func TestPagesLeadEverywhere(t *testing.T) {
	for _, path := range []string{"", "/bridge/here"} {
		h := newTestServer(t, path, nil).set("main", "The campus", event.Mirror).set("empty", "", event.Reference)
		h.fill("main")
		seen := map[string]bool{}
		todo := []string{h.base + "/"}
		for len(todo) > 0 {
			at := todo[0]
			todo = todo[1:]
			if seen[at] {
				continue
			}
			seen[at] = true
			r := h.ask(http.MethodGet, at).want(t, 200)
			if strings.HasPrefix(r.header.Get("Content-Type"), "text/html") {
				for _, l := range parsePage(t, at, r.body).links {
					u, _, _ := strings.Cut(l, "#")
					todo = append(todo, u)
				}
			}
			// Archive documents are reached from the feed.
			if f, err := atompmh.NewReader(strings.NewReader(r.body), atompmh.ReadOptions{URL: at}).Head(); err == nil && f.PrevArchive != "" {
				todo = append(todo, f.PrevArchive)
			}
		}
		for _, set := range []string{"main", "empty"} {
			for _, it := range h.paths(set) {
				if hidden := strings.Contains(it.Path, ".well-known"); seen[h.base+it.Path] == hidden {
					t.Errorf("%s: linked %v", it.Path, !hidden)
				}
			}
		}
		for _, p := range []string{"/.well-known/resourcesync", "/robots.txt", "/healthz", "/readyz"} {
			if !seen[h.base+p] {
				t.Errorf("%s is linked from nowhere", p)
			}
		}
		// D19: neither page is a resource that a Capability List covers.
		if lists := append(h.page("/").lists, h.page("/sets/main/").lists...); len(lists) > 0 {
			t.Errorf("pages lead to %q with rel=resourcesync", lists)
		}
		at := h.base + "/sets/main/"
		want := []string{"application/atom+xml " + at + "recent.atom", "application/rss+xml " + at + "recent.rss",
			"application/feed+json " + at + "recent.json", "application/atom+xml " + at + "feed.atom"}
		if got := h.page("/sets/main/").feeds; !slices.Equal(got, want) {
			t.Errorf("the set's page leads feed readers to %q", got)
		}
		want = []string{want[0], "application/atom+xml " + h.base + "/sets/empty/recent.atom"}
		slices.Sort(want)
		if got := slices.Sorted(slices.Values(h.page("/").feeds)); !slices.Equal(got, want) {
			t.Errorf("the first page leads feed readers to %q", got)
		}
	}
}

func report(r harvest.Report) *status.Harvest { return &status.Harvest{Report: r} }

func TestPagesTellNumbers(t *testing.T) {
	ended := time.Date(2026, 5, 6, 7, 8, 9, 0, time.FixedZone("", 7200))
	mark, _ := event.StampOf(ended.Add(-time.Hour))
	status := func(context.Context) ([]status.Set, error) { //nolint:unparam // Options.Status has an error
		return []status.Set{{Name: "main", Sources: []status.Source{
			{Kind: "atompmh", URL: "https://origin.example/feed.atom", Mark: status.Mark{Stamp: mark}, Next: status.Time{Time: ended.Add(time.Hour)}, Pending: 7, Held: 1234567, Quarantined: 4,
				Gap: "https://origin.example/archive/3?token=secret",
				Last: report(harvest.Report{Ended: ended, Documents: 3, Entries: 12345, Created: 5, Updated: 2, Deleted: 1, Fetched: 9, Problems: 2,
					Examples: []harvest.Example{{Rule: "S2", Count: 2, First: "line 3, column 5"}},
					Warnings: []string{"deletions may be lost"}, Error: "GET https://user:secret@origin.example/feed.atom?key=secret: status 503"})},
			{Kind: "atompmh", URL: "https://origin.example/feed?key=secret"},
			{URL: "https://origin.example/unknown"},
			{Kind: "resourcesync", URL: "https://maps.example/", Last: report(harvest.Report{Ended: ended, Moved: "https://charts.example/?key=secret", Documents: 1, Entries: 9, Skipped: 6, Dialects: []string{"sitemap", "2013 beta"}})},
			{Kind: "atompmh", URL: "file:///home/secret/catalogue.atom", Last: report(harvest.Report{Ended: ended, NotModified: true})},
		}}}, nil
	}
	h := newTestServer(t, "", func(o *server.Options) { o.Status = status }).set("main", "Main", event.Mirror)
	h.fill("main")
	h.dead("main", "urn:example:main:1")
	set, err := h.log.Set(context.Background(), "main")
	if err != nil {
		t.Fatal(err)
	}
	last := set.LastObserved.Time().Format("2006-01-02 15:04:05") + " UTC"
	d := h.page("/sets/main/")
	has(t, d, "records 10", "events 12", "last change "+last, "mirror: records are copied", "harvested up to 2026-05-06 04:08:09 UTC",
		"last harvest 2026-05-06 05:08:09 UTC : 3 documents, 12,345 entries, 9 fetched, 8 events, 2 problems", "next harvest 2026-05-06 06:08:09 UTC",
		"pending 7", "held 1,234,567", "quarantined 4", "A document is missing", "https://origin.example/archive/3?***", "deletions may be lost",
		"Rule S2 was broken 2 times, first: line 3, column 5", "The last harvest failed: GET https://origin.example/feed.atom?***: status 503",
		"https://origin.example/feed?***", "file:.../catalogue.atom", "kind not known yet", "kind resourcesync, plain sitemap, ResourceSync 2013 beta", "harvested up to the end; the Source states no times", "0 problems, 6 skipped", "Moved permanently to https://charts.example/?***: change url in the configuration.", "not planned", "none yet", ": nothing new",
		"Change List 1 : 5 entries from", "until", "Change List 3 : 2 entries from", ", still open")
	home := h.page("/")
	has(t, home, "records 10", "last change "+last, "This set needs attention", "from origin.example, last harvest 2026-05-06 05:08:09 UTC")
	for _, d := range []doc{d, home} {
		if strings.Contains(d.text, "secret") || strings.Contains(strings.Join(d.links, " "), "secret") {
			t.Errorf("a page tells a secret: %s %v", d.text, d.links)
		}
	}
	if !strings.Contains(strings.Join(d.links, " "), "https://origin.example/feed.atom") {
		t.Error("a Source is not linked")
	}
}

func TestPagesEscape(t *testing.T) {
	const evil = `</title></style><script>alert(1)</script>"'><img src=x onerror=alert(1)>`
	status := func(context.Context) ([]status.Set, error) {
		return []status.Set{{Name: "main", Sources: []status.Source{
			{Kind: evil, URL: "javascript:alert(1)", Gap: evil, Last: report(harvest.Report{Error: evil, Warnings: []string{evil},
				Examples: []harvest.Example{{Rule: evil, Count: 1, First: evil}}})},
			{Kind: "atompmh", URL: `https://origin.example/"><script>alert(1)</script>`},
		}}}, nil
	}
	h := newTestServer(t, "", func(o *server.Options) { o.Status = status }).set("main", evil, event.Mirror)
	for _, path := range []string{"/", "/sets/main/"} {
		d := h.page(path) // finds no script, no img, no handler
		has(t, d, evil)
		for _, l := range d.links {
			if !strings.HasPrefix(l, "http") {
				t.Errorf("a link to %s", l)
			}
		}
	}
}

func TestPagesWithoutStatus(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) {
		o.Status = func(context.Context) ([]status.Set, error) { return nil, errors.New("database is locked") }
	}).set("main", "Main", event.Mirror)
	has(t, h.page("/"), "cannot be read at present", "Main", "records 0")
	has(t, h.page("/sets/main/"), "cannot be read at present", "Capability List")
	if lines := h.journal.at(slog.LevelError); len(lines) == 0 || !strings.Contains(lines[0], "database is locked") {
		t.Errorf("log: %q", lines)
	}
}

func TestPrivate(t *testing.T) {
	for text, want := range map[string]string{
		"https://library.example/sip/main/Secret_0-1":                                      "https://library.example/sip/main/***",
		"https://library.example:8443/bridge/SIP/main/secret/more?wsdl":                    "https://library.example:8443/bridge/SIP/main/***?***",
		"https://ann:secret@library.example/feed.atom?key=secret&x=1#top":                  "https://library.example/feed.atom?***#top",
		"https://library.example/?secret":                                                  "https://library.example/?***",
		"https://library.example/feed?":                                                    "https://library.example/feed?***",
		`Post "http://h.example/sip/a/secret": EOF`:                                        `Post "http://h.example/sip/a/***": EOF`,
		"ingest at http://h.example/sip/a/secret: HTTP 503; http://b.example/?secret":      "ingest at http://h.example/sip/a/***: HTTP 503; http://b.example/?***",
		"see http://h.example/sip/a/secret.":                                               "see http://h.example/sip/a/***.",
		"/sip/main/secret":                                                                 "/sip/main/***",
		"smtp://mail.example/box+abcdefghijklmnopqrstuvwxyz@example.org":                   "smtp://mail.example/box+***@example.org",
		"smtp:box+0123456789abcdef@example.org, mailto:x+0123456789ABCDEF@a.example":       "smtp:box+***@example.org, mailto:x+***@a.example",
		"to https://library.example/a/websub/ABCDEFGH234567ABC, or %2Fwebsub%2FABCDEFGH23": "to https://library.example/a/websub/***, or %2Fwebsub%2F***",
		"opening postgres://bridge:secret@db.example:5433/bridge?sslmode=require: refused": "opening postgres://bridge:***@db.example:5433/bridge?sslmode=require: refused",
		"postgres://ann@home:se@cret@a.example:1,b.example:2/bridge":                       "postgres://ann@home:***@a.example:1,b.example:2/bridge",
		"postgresql:///bridge?host=/run/postgresql&password=secret, or elsewhere":          "postgresql:///bridge?host=/run/postgresql&password=***, or elsewhere",
		"postgres://db.example/bridge?sslpassword=secret&sslmode=require":                  "postgres://db.example/bridge?sslpassword=***&sslmode=require",
		"https://h.example/odata?$filter=kind%20eq%20'map'&key=secret":                     "https://h.example/odata?***",
		`Get "https://h.example/sru?query=title=\"maps\"&key=secret": EOF`:                 `Get "https://h.example/sru?***": EOF`,
		"'https://h.example/?a='secret'' is not":                                           "'https://h.example/?***'' is not",
		`https://h.example/feed?key=a"b<c>secret`:                                          "https://h.example/feed?***",
		"https://h.example/o'neill/feed?key=secret":                                        "https://h.example/o'neill/feed?***",
		`https://h.example/"maps"/<a>?key=secret`:                                          `https://h.example/"maps"/<a>?***`,
		"https://o'neill:se'cret@h.example/":                                               "https://h.example/",
		"postgres://o'neill:se'cret@db.example/bridge?password=se'cret&sslmode=require":    "postgres://o'neill:***@db.example/bridge?password=***&sslmode=require",
		// What holds no secret stays.
		"postgres://bridge@db.example:5433/bridge?sslmode=require": "postgres://bridge@db.example:5433/bridge?sslmode=require",
		"https://hub.example/websub/subscribe":                     "https://hub.example/websub/subscribe",
		"https://library.example/sip":                              "https://library.example/sip",
		"https://library.example/sip/main takes it":                "https://library.example/sip/main takes it",
		"http://127.0.0.1:8080/sip/library (description: ?wsdl)":   "http://127.0.0.1:8080/sip/library (description: ?wsdl)",
		"https://library.example/records/{assigned-identifier}":    "https://library.example/records/{assigned-identifier}",
		"file:///srv/feeds/feed.atom":                              "file:///srv/feeds/feed.atom",
		"ann+list@example.org wrote what? 1+1@2":                   "ann+list@example.org wrote what? 1+1@2",
		"does not leave room for the token in box+token@domain":    "does not leave room for the token in box+token@domain",
		"": "",
	} {
		if got := server.Redact(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// A secret is in no text that a URL with it is a part of, and what was made
// private once is private.
func TestPrivateHidesItAnywhere(t *testing.T) {
	const secret = "Secret-0123456789_abc"
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.SampledFrom([]string{"library.example", "127.0.0.1:8080", "[::1]:80", "LIBRARY.example"}).Draw(t, "host")
		url := rapid.SampledFrom([]string{"http://", "https://", "HTTPS://"}).Draw(t, "scheme") + host + rapid.SampledFrom([]string{
			"/sip/main/" + secret, "/a/b/sip/main/" + secret, "/feed?key=" + secret, "/feed?a=1&key=" + secret + "&b=2", "?" + secret, "/sip/main/" + secret + "?wsdl",
		}).Draw(t, "place")
		if rapid.Bool().Draw(t, "a database") {
			url = rapid.SampledFrom([]string{"postgres://", "postgresql://"}).Draw(t, "database") + host + "/bridge?" + rapid.SampledFrom([]string{
				"password=" + secret, "sslmode=require&password=" + secret + "&port=1", "sslpassword=" + secret,
			}).Draw(t, "setting")
		}
		if rapid.Bool().Draw(t, "with a login") {
			url = strings.Replace(url, "://", "://ann:"+secret+"@", 1)
		}
		around := rapid.SampledFrom([]string{"", " ", `"`, "'", "(", ")", "<", ">", ": ", ", ", ".", ";", "; see ", "\n", "\u00e9 "})
		text := around.Draw(t, "before") + url + around.Draw(t, "behind") + url
		got := server.Redact(text)
		if strings.Contains(got, secret) || !strings.Contains(got, host) {
			t.Fatalf("%q becomes %q", text, got)
		}
		if again := server.Redact(got); again != got {
			t.Fatalf("%q becomes %q again", got, again)
		}
		anything := rapid.StringMatching(`(https?://|postgres://|password=|/sip/|[a-c?&=@+#.,:*'" ]|a{16}){0,14}`).Draw(t, "anything")
		if once := server.Redact(anything); server.Redact(once) != once {
			t.Fatalf("%q becomes %q, and then %q", anything, once, server.Redact(once))
		}
	})
}

// The page of a set says how to follow it, and what the configuration says of it; a tree of
// files shows nothing that needs a server.
func TestSetPageLeadsConsumers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		licence, contact string
		static           bool
		has, lacks       []string
	}{
		"URLs": {"https://licences.example/by", "https://example.org/help", false, []string{`<a href="https://licences.example/by" rel="license noreferrer">`, `<a href="https://example.org/help"`,
			"/sets/main/changes.json?after=0", "/sets/main/changes/stream", "resync --baseline", "/sets/main/recent.atom\n</code>"}, nil},
		"texts":   {"Free <b>use</b>", "ops@example.org", false, []string{"<dd>Free &lt;b&gt;use&lt;/b&gt;</dd>", `<a href="mailto:ops@example.org"`}, nil},
		"hostile": {"javascript:alert(1)", "javascript:alert(2)", false, []string{"<dd>javascript:alert(1)</dd>", "<dd>javascript:alert(2)</dd>"}, []string{`href="javascript`}},
		"nothing": {"", "", false, nil, []string{"licence", "contact"}},
		"files":   {"", "", true, []string{"resync --baseline"}, []string{"changes.json", "changes/stream"}},
	} {
		h := newTestServer(t, "", func(o *server.Options) {
			o.Static, o.About = c.static, func(string) (string, string) { return c.licence, c.contact }
		}).set("main", "Maps", event.Redirect)
		body := h.get("/sets/main/").want(t, 200).body
		for _, text := range c.has {
			if !strings.Contains(body, text) {
				t.Errorf("%s: the page lacks %s", name, text)
			}
		}
		for _, text := range c.lacks {
			if strings.Contains(body, text) {
				t.Errorf("%s: the page has %s", name, text)
			}
		}
	}
}

// The page of all sets has a part of very many, with links to the others.
func TestPageOfManySets(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "", nil)
	for n := range 401 {
		h.set(fmt.Sprintf("set-%03d", n), "", event.Reference)
	}
	for _, part := range []struct {
		path, says, before, after string
		first, sets               int
	}{
		{"/", "Sets 1 to 200 of 401", "", "200", 0, 200},
		{"/?from=200", "Sets 201 to 400 of 401", "0", "400", 200, 200},
		{"/?from=400", "Sets 401 to 401 of 401", "200", "", 400, 1},
		{"/?from=401", "Sets 1 to 200 of 401", "", "200", 0, 200},
		{"/?from=-1", "Sets 1 to 200 of 401", "", "200", 0, 200},
	} {
		body := h.get(part.path).want(t, 200).body
		if n := strings.Count(body, `<h2><a href="sets/`); n != part.sets || !strings.Contains(body, fmt.Sprintf(`href="sets/set-%03d/"`, part.first)) || !strings.Contains(body, part.says) {
			t.Errorf("%s has %d sets; want %d from set-%03d, and %q", part.path, n, part.sets, part.first, part.says)
		}
		for rel, from := range map[string]string{"prev": part.before, "next": part.after} {
			link := fmt.Sprintf(`<a href="./?from=%s" rel="%s">`, from, rel)
			if strings.Contains(body, `rel="`+rel+`"`) != (from != "") || from != "" && !strings.Contains(body, link) {
				t.Errorf("%s: want %s, or no such link", part.path, link)
			}
		}
	}
}

// TestPagesOfNewEpoch: after a backup was restored, pages give the time of the last event as that
// of the last change, and not that of the new epoch.
func TestPagesOfNewEpoch(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	set, err := h.log.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.log.Close(), os.Remove(filepath.Join(h.folder, eventlog.HeadName))); err != nil { // as a backup has none
		t.Fatal(err)
	}
	h.ahead.Add(int64(time.Hour))
	if h.log, err = eventlog.Open(t.Context(), h.folder, eventlog.Options{Clock: h.clock}); err != nil {
		t.Fatal(err)
	}
	h.opt.Log = h.log
	h.opt.Documents, err = publish.New(publish.Options{Log: h.log, BaseURL: h.base, CacheDir: t.TempDir(), SnapshotDir: t.TempDir(), CacheBytes: 1 << 30, Content: stored{h.contents}.Open})
	if err != nil {
		t.Fatal(err)
	}
	h.web.Config.Handler = server.New(h.opt).Handler()
	for _, path := range []string{"/", "/sets/main/"} {
		has(t, h.page(path), "last change "+set.Newest.Time().Format("2006-01-02 15:04:05")+" UTC")
	}
}

// A set of very many Sources has pages that a browser can show, and which anybody may ask for: they
// have a part of the Sources, and for operators those that need attention.
func TestPagesOfManySources(t *testing.T) {
	t.Parallel()
	const sources, gap = 1000, 700
	var all []status.Source
	for n := range sources {
		all = append(all, status.Source{URL: fmt.Sprintf("https://origin.example/%03d.atom", n), Kind: "atompmh"})
	}
	all[gap].Gap = "https://origin.example/missing.atom"
	for _, operator := range []bool{false, true} {
		h := newTestServer(t, "", func(o *server.Options) {
			o.HasConsole = !operator
			o.Status = func(context.Context) ([]status.Set, error) {
				return []status.Set{{Name: "main", Sources: all}}, nil
			}
		}).set("main", "Main", event.Reference)
		for path, most := range map[string]int{"/": 10, "/sets/main/": 200} {
			body := h.get(path).want(t, 200).body
			shown := strings.Count(body, "<dt>from</dt>") - 1 // with the line of the others
			if path != "/" {
				shown = strings.Count(body, "<dt>kind</dt>")
			}
			if others := fmt.Sprintf("%d more Sources", sources-most); shown != most || !strings.Contains(body, others) {
				t.Errorf("operator %v: %s shows %d Sources, want %d and %q", operator, path, shown, most, others)
			}
			if operator && path == "/" && !strings.Contains(body, "needs attention") || operator && path != "/" && !strings.Contains(body, fmt.Sprintf("%03d.atom", gap)) {
				t.Errorf("%s does not show what needs attention", path)
			}
		}
	}
}
