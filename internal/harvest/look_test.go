package harvest_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/translate"
)

// The documents of a ResourceSync Source, with BASE for its URL.
func rsDocument(root, capability, entries string) string {
	moment := map[string]string{"resourcelist": ` at="2026-01-02T00:00:00Z"`, "changelist": ` from="2026-01-01T00:00:00Z"`}[capability]
	return `<` + root + ` xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">` +
		`<rs:ln rel="up" href="BASE/capabilitylist.xml"/><rs:md capability="` + capability + `"` + moment + `/>` + entries + `</` + root + `>`
}

func rsEntry(loc, md string) string {
	return "<url><loc>BASE" + loc + "</loc><lastmod>2026-01-01T00:00:00Z</lastmod><rs:md " + md + "/></url>"
}

// A look tells of each kind of Source what it is, what it has, and what a harvest can do with it,
// from the documents that a harvest begins with; what is wrong with it is told too.
func TestLook(t *testing.T) {
	const (
		atom     = `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0" xmlns:at="http://purl.org/atompub/tombstones/1.0" xmlns:os="http://a9.com/-/spec/opensearch/1.1/"><title>Maps</title><author><name>Ann</name></author><id>urn:x:feed</id><updated>2026-01-02T00:00:00Z</updated>`
		entry    = `<entry><id>urn:x:1</id><title>One</title><updated>2026-01-01T00:00:00Z</updated><link href="http://h.example/1" type="text/html"/><link rel="alternate" href="http://h.example/1.xml" type="text/xml"/></entry>`
		inline   = `<entry><id>urn:x:2</id><title>Two</title><updated>2026-01-01T00:00:00Z</updated><content type="text">two</content></entry>`
		deletion = `<at:deleted-entry ref="urn:x:3" when="2026-01-01T00:00:00Z"/>`
		rss      = `<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom" xmlns:os="http://a9.com/-/spec/opensearch/1.1/"><channel><title>News</title><link>http://h.example/</link><description/>`
		item     = `<item><guid isPermaLink="false">1</guid><title>One</title><link>http://h.example/1</link></item>`
	)
	capabilities := rsDocument("urlset", "capabilitylist", `<url><loc>BASE/list</loc><rs:md capability="resourcelist"/></url><url><loc>BASE/changes</loc><rs:md capability="changelist"/></url>`)
	formats := func(pairs ...any) map[string]int64 {
		m := map[string]int64{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = int64(pairs[i+1].(int))
		}
		return m
	}
	for name, row := range map[string]struct {
		kind, path string
		documents  map[string]string
		want       harvest.Look // its Requests are not compared
		notes      []string     // how each begins
		rules      []string     // of the problems
	}{
		"complete Atom-PMH": {harvest.AtomPMH, "/feed", map[string]string{"/feed": atom + `<fh:complete/>` + entry + inline + `</feed>`},
			harvest.Look{Title: "Maps", Total: 2, TotalFrom: "the feed is complete", Read: []harvest.LookedAt{{URL: "/feed", What: "feed document", Records: 2, Complete: true, Formats: formats("text/html", 1, "text/xml", 1, "text/plain; charset=utf-8", 1)}}},
			[]string{"the feed is complete (fh:complete): a record that is missing from it is deleted"}, nil},
		"Atom-PMH with archives": {harvest.AtomPMH, "/feed", map[string]string{"/feed": atom + `<os:totalResults>40</os:totalResults><link rel="prev-archive" href="BASE/1"/>` + entry + deletion + `</feed>`},
			harvest.Look{Title: "Maps", Total: 40, TotalFrom: "totalResults of the feed", Read: []harvest.LookedAt{{URL: "/feed", What: "feed document", Records: 1, Deletions: 1, Formats: formats("text/html", 1, "text/xml", 1)}}},
			[]string{"the feed has archives: the first harvest reads them all, from BASE/1 back"}, nil},
		"Atom-PMH that is neither": {harvest.AtomPMH, "/feed", map[string]string{"/feed": atom + strings.Replace(entry, "2026-01-01T00:00:00Z", "yesterday", 1) + inline + `</feed>`},
			harvest.Look{Title: "Maps", Total: -1, Bad: 1, Read: []harvest.LookedAt{{URL: "/feed", What: "feed document", Records: 1, Formats: formats("text/plain; charset=utf-8", 1)}}},
			[]string{"the feed has neither archives nor fh:complete: older records than those in it are not seen"}, []string{"4287-date"}},
		"Atom-PMH in pages": {harvest.AtomPMH, "/feed", map[string]string{"/feed": atom + `<fh:complete/><link rel="next" href="BASE/2"/>` + entry + `</feed>`},
			harvest.Look{Title: "Maps", Total: -1, Read: []harvest.LookedAt{{URL: "/feed", What: "feed document", Records: 1, Formats: formats("text/html", 1, "text/xml", 1)}}},
			[]string{"the feed has pages instead of archives: the first harvest reads them all, from BASE/2 on"}, nil},
		"Atom-PMH with archives elsewhere": {harvest.AtomPMH, "/feed", map[string]string{"/feed": atom + `<link rel="prev-archive" href="http://h.example/1"/>` + entry + `</feed>`},
			harvest.Look{Title: "Maps", Total: -1, Error: `host "h.example" is not that of`, ErrorKind: harvest.KindRefused, Read: []harvest.LookedAt{{URL: "/feed", What: "feed document", Records: 1, Formats: formats("text/html", 1, "text/xml", 1)}}},
			[]string{"the feed has archives: "}, nil},
		"RSS with pages elsewhere": {harvest.Feed, "/rss", map[string]string{"/rss": rss + `<atom:link rel="next" href="http://h.example/2"/>` + item + `</channel></rss>`},
			harvest.Look{Title: "News", Total: -1, Read: []harvest.LookedAt{{URL: "/rss", What: "feed", Records: 1, Formats: formats("", 1)}}},
			[]string{"it has older items that no harvest reads: http://h.example/2: address refused", "a feed says nothing of deletions"}, nil},
		"RSS": {harvest.Feed, "/rss", map[string]string{"/rss": rss + `<atom:link rel="next" href="BASE/rss2"/><os:totalResults>9</os:totalResults>` + item + strings.ReplaceAll(item, "1<", "2<") + `</channel></rss>`},
			harvest.Look{Title: "News", Total: 9, TotalFrom: "totalResults of the feed", Read: []harvest.LookedAt{{URL: "/rss", What: "feed", Records: 2, Formats: formats("", 2)}}},
			[]string{"it has older items at BASE/rss2, which the first harvest reads too", "a feed says nothing of deletions"}, nil},
		"RSS with an item twice": {harvest.Feed, "/rss", map[string]string{"/rss": rss + item + item + `</channel></rss>`},
			harvest.Look{Title: "News", Total: -1, Read: []harvest.LookedAt{{URL: "/rss", What: "feed", Records: 1, Formats: formats("", 1)}}},
			[]string{"a feed says nothing of deletions"}, []string{"feed-id"}},
		"Atom as a feed": {harvest.Feed, "/feed", map[string]string{"/feed": atom + `<fh:complete/>` + entry + `</feed>`},
			harvest.Look{Title: "Maps", Total: -1, Read: []harvest.LookedAt{{URL: "/feed", What: "feed", Records: 1, Formats: formats("text/html", 1, "text/xml", 1)}}},
			[]string{`it has archives or is complete, as in Atom-PMH: kind = "atompmh"`, "a feed says nothing of deletions"}, nil},
		"a JSON Feed that has ended": {"", "/json", map[string]string{"/json": `{"version":"https://jsonfeed.org/version/1.1","title":"News","expired":true,"items":[{"id":"1","url":"http://h.example/1"},{"title":"no id"}]}`},
			harvest.Look{Kind: harvest.Feed, Detected: true, Title: "News", Total: -1, Bad: 1, Read: []harvest.LookedAt{{URL: "/json", What: "feed", Records: 1, Formats: formats("", 1)}}},
			[]string{"it says that it has ended", "a feed says nothing of deletions"}, []string{"feed-id"}},
		"ResourceSync": {"", "/", map[string]string{
			"/": `<html><head><link rel="resourcesync" href="BASE/capabilitylist.xml"></head></html>`, "/capabilitylist.xml": capabilities,
			"/list":    rsDocument("sitemapindex", "resourcelist", `<sitemap><loc>BASE/list1</loc></sitemap><sitemap><loc>BASE/list2</loc></sitemap><sitemap><loc>BASE/list3</loc></sitemap>`),
			"/list1":   rsDocument("urlset", "resourcelist", rsEntry("/1", `type="text/html"`)+rsEntry("/2", `type="text/xml"`)),
			"/changes": rsDocument("urlset", "changelist", rsEntry("/1", `change="updated" type="text/html" datetime="2026-01-01T00:00:00Z"`)+rsEntry("/3", `change="deleted" datetime="2026-01-01T00:00:00Z"`)),
		},
			harvest.Look{Kind: harvest.ResourceSync, Detected: true, Total: 6, TotalFrom: "estimate: 3 parts like the first", Read: []harvest.LookedAt{
				{URL: "/list", What: "resourcelist index", Parts: 3, Formats: formats()}, {URL: "/list1", What: "resourcelist", Records: 2, Formats: formats("text/html", 1, "text/xml", 1)},
				{URL: "/changes", What: "changelist", Records: 1, Deletions: 1, Formats: formats("text/html", 1)}}},
			[]string{"its documents were found by ", "the Capability List BASE/capabilitylist.xml has a Resource List, a Change List"}, nil},
		"a sitemap": {harvest.ResourceSync, "/sitemap.xml", map[string]string{"/sitemap.xml": `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>BASE/1</loc></url><url><loc></loc></url></urlset>`},
			harvest.Look{Total: 1, TotalFrom: "the list has all", Bad: 1, Read: []harvest.LookedAt{{URL: "/sitemap.xml", What: "sitemap", Records: 1, Complete: true, Formats: formats("", 1)}}},
			[]string{"it has no list of changes: each harvest reads all of what there is"}, []string{"rs-loc"}},
		"changes alone": {harvest.ResourceSync, "/changes", map[string]string{"/changes": rsDocument("urlset", "changelist", rsEntry("/1", `change="created" datetime="2026-01-01T00:00:00Z"`))},
			harvest.Look{Total: -1, Read: []harvest.LookedAt{{URL: "/changes", What: "changelist", Records: 1, Formats: formats("", 1)}}},
			[]string{"it has no list of what there is, only changes"}, nil},
		"a table": {harvest.CSV, "/table", map[string]string{"/table": "url,type,deleted\nBASE/1,text/html,\nBASE/2,,true\nBASE/1,,\nno url,,\n"},
			harvest.Look{Total: 1, TotalFrom: "the list has all", Bad: 1, Read: []harvest.LookedAt{{URL: "/table", What: "table", Records: 1, Deletions: 1, Formats: formats("text/html", 1)}}},
			[]string{"a record whose row is gone is deleted"}, []string{"row-twice", "row-url", "row-end"}},
		"a text sitemap": {harvest.Sitemap, "/urls", map[string]string{"/urls": "BASE/1\nBASE/2\n"},
			harvest.Look{Total: 2, TotalFrom: "the list has all", Read: []harvest.LookedAt{{URL: "/urls", What: "text sitemap", Records: 2, Complete: true, Formats: formats("", 2)}}},
			[]string{"a record whose row is gone is deleted"}, nil},
		"a set":  {harvest.Set, "", nil, harvest.Look{Total: -1}, []string{"it is a set of this bridge"}, nil},
		"a call": {harvest.SIP, "", nil, harvest.Look{Total: -1}, []string{"it calls bridge; nothing is harvested"}, nil},

		"a Source that has moved": {harvest.Sitemap, "/moved", map[string]string{"/urls": "BASE/1\n"},
			harvest.Look{Moved: "/urls", Total: 1, TotalFrom: "the list has all", Read: []harvest.LookedAt{{URL: "/urls", What: "text sitemap", Records: 1, Complete: true, Formats: formats("", 1)}}},
			[]string{"a record whose row is gone is deleted"}, nil},
		"nothing there":        {harvest.AtomPMH, "/none", nil, harvest.Look{Total: -1, Error: "404", ErrorKind: harvest.KindHTTP}, nil, nil},
		"no document":          {harvest.AtomPMH, "/feed", map[string]string{"/feed": "<feed"}, harvest.Look{Total: -1, Error: "/feed:1:6: the document is cut off", ErrorKind: harvest.KindDocument}, nil, nil},
		"no lists":             {harvest.ResourceSync, "/none", nil, harvest.Look{Total: -1, Error: "no ResourceSync Source and no sitemap found", ErrorKind: harvest.KindDocument}, nil, nil},
		"a kind that is none":  {"", "/x", map[string]string{"/x": "hello"}, harvest.Look{Total: -1, Error: "want an Atom, RSS or JSON feed, a ResourceSync document, a sitemap", ErrorKind: harvest.KindDocument}, nil, nil},
		"a feed cut off":       {harvest.Feed, "/feed", map[string]string{"/feed": "<rss><channel>"}, harvest.Look{Total: -1, Error: "/feed:1:15: the document is cut off", ErrorKind: harvest.KindDocument}, nil, nil},
		"a feed too deep":      {harvest.Feed, "/feed", map[string]string{"/feed": "<rss>" + strings.Repeat("<a>", 256)}, harvest.Look{Total: -1, Error: `(cap "depth")`, ErrorKind: harvest.KindLimit}, nil, nil},
		"no table":             {harvest.CSV, "/table", map[string]string{"/table": "title\nMaps\n"}, harvest.Look{Total: -1, Error: "/table: line 1: the first line must name the columns", ErrorKind: harvest.KindDocument}, nil, nil},
		"no repository at all": {harvest.OAIPMH, "/x", map[string]string{"/x": "<html/>"}, harvest.Look{Total: -1, Error: "want an answer of OAI-PMH 2.0", ErrorKind: harvest.KindDocument}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, ok := row.documents[r.URL.Path]
				switch {
				case r.URL.Path == "/moved":
					http.Redirect(w, r, "/urls", http.StatusMovedPermanently)
				case !ok:
					http.NotFound(w, r)
				default:
					_, _ = w.Write([]byte(strings.ReplaceAll(text, "BASE", "http://"+r.Host)))
				}
			}))
			defer server.Close()
			look := harvest.LookAt(t.Context(), &harvest.Source{Set: "main", Kind: row.kind, URL: server.URL + row.path, Client: server.Client(), Selection: translate.Selection{Inline: true}})
			checkLook(t, server.URL, look, row.kind, row.want, row.notes, row.rules)
		})
	}
}

func checkLook(t *testing.T, base string, got *harvest.Look, kind string, want harvest.Look, notes, rules []string) {
	t.Helper()
	want.Kind = cmp.Or(want.Kind, kind)
	var rulesGot []string
	for _, p := range got.Problems {
		rulesGot = append(rulesGot, p.Rule)
	}
	if len(got.Notes) != len(notes) || !slices.EqualFunc(got.Notes, notes, func(got, want string) bool { return strings.HasPrefix(got, strings.ReplaceAll(want, "BASE", base)) }) {
		t.Errorf("notes %q, want %q", got.Notes, notes)
	}
	if !slices.Equal(rulesGot, rules) {
		t.Errorf("problems %+v, want %q", got.Problems, rules)
	}
	if !strings.Contains(got.Error, want.Error) || (got.Error == "") != (want.Error == "") || got.ErrorKind != want.ErrorKind || got.ErrorRule != want.ErrorRule {
		t.Errorf("error %q of %s %s, want %q of %s %s", got.Error, got.ErrorKind, got.ErrorRule, want.Error, want.ErrorKind, want.ErrorRule)
	}
	if got.Kind != want.Kind || got.Detected != want.Detected || got.Title != want.Title || strings.TrimPrefix(got.Moved, base) != want.Moved ||
		got.Total != want.Total || got.TotalFrom != want.TotalFrom || got.Bad != want.Bad {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	same := func(got, want harvest.LookedAt) bool {
		return got.URL == base+want.URL && got.What == want.What && got.Records == want.Records && got.Deletions == want.Deletions && got.Parts == want.Parts &&
			got.Complete == want.Complete && maps.Equal(got.Formats, want.Formats)
	}
	if !slices.EqualFunc(got.Read, want.Read, same) {
		t.Errorf("read %+v\nwant %+v", got.Read, want.Read)
	}
}

// A look at a repository tells how it tells of deletions, what its formats are, and how many
// records it claims to have.
func TestLookAtRepository(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*archive)
		want   harvest.Look
		notes  []string
	}{
		"whole": {func(a *archive) { a.repo.Fill(3); a.repo.Delete("oai:repository.example:2") },
			harvest.Look{Total: 3, TotalFrom: "the first answer has all", Read: []harvest.LookedAt{{Records: 2, Deletions: 1, Complete: true, Formats: map[string]int64{"oai_dc": 2}}}},
			[]string{"it tells of all deletions", "its formats are \"oai_dc\"; oai_dc is harvested"}},
		"in parts": {func(a *archive) { a.repo.Fill(5); a.repo.PageSize, a.repo.Deleted = 2, "transient" },
			harvest.Look{Total: 5, TotalFrom: "completeListSize of the repository", Read: []harvest.LookedAt{{Records: 2, Formats: map[string]int64{"oai_dc": 2}}}},
			[]string{"it tells of deletions for some time: full_every compares the headers of all records", "its formats are \"oai_dc\"; oai_dc is harvested"}},
		"empty": {func(a *archive) { a.repo.Deleted = "no" },
			harvest.Look{TotalFrom: "noRecordsMatch"},
			[]string{"it does not tell of deletions: full_every compares the headers of all records, and deletes what is missing", "its formats are \"oai_dc\"; oai_dc is harvested", "no record matches: the repository is empty, or the selection is"}},
		"of another format": {func(a *archive) { a.repo.Fill(1); a.src.Repository.Format = "mods" },
			harvest.Look{Total: -1, Error: "cannotDisseminateFormat", ErrorKind: harvest.KindDocument, ErrorRule: "cannotDisseminateFormat"},
			[]string{"it tells of all deletions", "its formats are \"oai_dc\"; mods is harvested"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Reference)
			row.change(a)
			look := harvest.LookAt(t.Context(), &a.src)
			for i := range row.want.Read {
				row.want.Read[i].URL, row.want.Read[i].What = "?verb=ListRecords&metadataPrefix=oai_dc", "first answer of ListRecords"
			}
			row.want.Title = "Example Repository"
			checkLook(t, a.url, look, harvest.OAIPMH, row.want, row.notes, nil)
			if n := len(look.Requests); n != 3 || look.Requests[0].URL != a.url+"?verb=Identify" || look.Requests[0].Status != 200 {
				t.Errorf("requests %+v", look.Requests)
			}
		})
	}
}

// Errors of the protocol that come with a status of their own, and formats that are not
// listed, keep no harvest from its records: a look says so.
func TestLookAtRepositoryWithStatus(t *testing.T) {
	a := newArchive(t, event.Reference)
	next, client := a.src.Client.Transport, *a.src.Client
	client.Transport = transport(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil && strings.Contains(r.URL.RawQuery, "verb=ListRecords") {
			resp.StatusCode = http.StatusUnprocessableEntity
		}
		return resp, err
	})
	a.src.Client = &client
	a.repo.Fail(testserver.Failure{Verb: "ListMetadataFormats", How: testserver.ServerError})
	look := harvest.LookAt(t.Context(), &a.src)
	if notes := strings.Join(look.Notes, "\n"); look.Error != "" || look.Total != 0 || !strings.Contains(notes, "no record matches") || !strings.Contains(notes, "formats are not listed") {
		t.Errorf("%+v", look)
	}
	a.run()
	a.put("a", "A")
	a.src.Repository.Format = "mods"
	if look := harvest.LookAt(t.Context(), &a.src); !strings.Contains(look.Error, "cannotDisseminateFormat") {
		t.Errorf("%+v", look)
	}
	a.src.URL += "/missing"
	a.repo.Fail(testserver.Failure{How: testserver.NotFound})
	if look := harvest.LookAt(t.Context(), &a.src); !strings.Contains(look.Error, "HTTP status 404") {
		t.Errorf("%+v", look)
	}
}

// A look at a folder counts its records, and opens no file.
func TestLookAtFolder(t *testing.T) {
	const gone = "a file that is gone is deleted, behind the guard"
	for name, row := range map[string]struct {
		byName bool
		files  []string // nil: there is no folder
		want   harvest.Look
		notes  []string
	}{
		"by path": {false, []string{"a.xml", "a.pdf", "b/c.xml"}, harvest.Look{Total: 3, Read: []harvest.LookedAt{{Records: 3, Complete: true, Formats: map[string]int64{"application/xml": 2, "application/pdf": 1}}}},
			[]string{"each file is a record, called by its path", gone}},
		"by name": {true, []string{"a.xml", "a.pdf", "b/c.xml"}, harvest.Look{Total: 2, Read: []harvest.LookedAt{{Records: 2, Complete: true, Formats: map[string]int64{"application/xml": 2, "application/pdf": 1}}}},
			[]string{"files of one folder whose names differ in the extension only are one record", gone}},
		"empty": {false, []string{}, harvest.Look{Read: []harvest.LookedAt{{Complete: true}}},
			[]string{"each file is a record, called by its path", "no file in it can be a record: is its disk or server mounted?", gone}},
		"missing": {false, nil, harvest.Look{Total: -1, Error: "is that mounted?", ErrorKind: harvest.KindLocal}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, t.TempDir(), event.Reference)
			for _, file := range row.files {
				s.put(file, "x")
				s.must(os.Chmod(filepath.Join(s.dir, file), 0))
			}
			if row.files == nil {
				s.must(os.Remove(s.dir))
			} else {
				row.want.TotalFrom, row.want.Read[0].What = "a look through the folder", "folder"
			}
			s.src.Folder.ByName = row.byName
			checkLook(t, s.src.URL, harvest.LookAt(t.Context(), &s.src), harvest.Folder, row.want, row.notes, nil)
		})
	}
}

// A look that is ended tells why.
func TestLookThatIsEnded(t *testing.T) {
	a := newArchive(t, event.Reference)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no more patience"))
	if look := harvest.LookAt(ctx, &a.src); !strings.Contains(look.Error, "no more patience") || len(look.Read) > 0 || len(a.repo.Calls()) > 0 {
		t.Errorf("%+v", look)
	}
}
