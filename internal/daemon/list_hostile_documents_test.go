package daemon_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// loneList is a bridge over a Source that has only a Resource List, or only a
// Change List, with resources a and b, which were harvested.
func loneList(t *testing.T, path string) *listHarness {
	t.Helper()
	o := fixtures.SourceOptions{ChangeLists: fixtures.NoChangeLists}
	if path == fixtures.ChangeList {
		o = fixtures.SourceOptions{ChangeLists: fixtures.SingleChangeList, NoResourceList: true}
	}
	b := newListHarness(t, o, content(config.Reference))
	b.quick(func(o *fetch.Options) { o.Attempts = 1 })
	b.create("a", "b")
	b.expect("first", "created a 1", "created b 1")
	return b
}

// wantRefused harvests with --full a list that must not be taken, and returns why
// it was not. Nothing may be logged, and nothing held.
func (b *listHarness) wantRefused(what string) string {
	b.t.Helper()
	before, mark := b.last(), b.stored().Mark
	r, err := b.try(harvest.Options{Full: true})
	why := r.Gap
	if err != nil {
		why = err.Error()
	}
	if why == "" {
		b.t.Fatalf("%s: it was taken: %s", what, said(r))
	}
	if now := b.stored(); b.last() != before || now.Held != 0 || now.Mark != mark || r.Full {
		b.t.Fatalf("%s: %q, %d held, mark %s, %s", what, b.told(before), now.Held, now.Mark, said(r))
	}
	return why
}

var listPlaced = regexp.MustCompile(`list\.xml:\d+:\d+: `)

// TestListFault_HostileDocuments: a list that is not what it should be is refused
// whole, with the place and the reason, and nothing is inferred from it.
func TestListFault_HostileDocuments(t *testing.T) {
	testenv.Heavy(t)
	head := func(path string) string {
		md := `capability="resourcelist" at="2025-01-02T00:00:00Z"`
		if path == fixtures.ChangeList {
			md = `capability="changelist" from="2025-01-01T00:00:00Z"`
		}
		return `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md ` + md + `/>`
	}
	type doc struct{ text, want string }
	for _, path := range []string{fixtures.ResourceList, fixtures.ChangeList} {
		entry := func(inside string) string {
			return head(path) + `<url><loc>http://x.example/x</loc><rs:md change="created" datetime="2025-01-01T12:00:00Z"/>` + inside + `</url></urlset>`
		}
		bomb := `<!DOCTYPE urlset [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>`
		for name, d := range map[string]doc{
			"DOCTYPE":            {`<!DOCTYPE urlset>` + entry(""), "DOCTYPE"},
			"entities in it":     {bomb + entry("<x>&c;</x>"), "DOCTYPE"},
			"an external entity": {`<!DOCTYPE urlset [<!ENTITY x SYSTEM "file:///etc/passwd">]>` + entry("<x>&x;</x>"), "DOCTYPE"},
			"an unknown entity":  {entry("<x>&nbsp;</x>"), "entity"},
			"depth":              {entry(strings.Repeat("<b>", 300) + strings.Repeat("</b>", 300)), `"depth"`},
			"attributes":         {entry("<x " + attributes(300) + "/>"), `"attributes"`},
			"one long text":      {entry("<lastmod>" + strings.Repeat("x", 9<<20) + "</lastmod>"), `"text"`},
			"one long attribute": {entry(`<rs:ln rel="` + strings.Repeat("x", 9<<20) + `"/>`), `"text"`},
			"not closed":         {head(path) + "<url>", "list.xml"},
			"crossed":            {head(path) + "\n\n  <a><b></a></b></urlset>", ":3:"},
			"two roots":          {entry("") + "<urlset/>", "root"},
			"undeclared prefix":  {entry("<x:y/>"), "prefix"},
			"wrong root":         {`<rss version="2.0"/>`, "RSS 2.0"},
			"wrong namespace":    {strings.Replace(entry(""), "sitemap/0.9", "sitemap/9", 1), "{http://www.sitemaps.org/schemas/sitemap/0.9}urlset"},
			"not UTF-8":          {entry("<x>\xff\xfe</x>"), "UTF-8"},
			"nothing":            {"", "list.xml"},
			"a page":             {"<html><body>Sorry!</body></html>", "HTML page"},
		} {
			t.Run(strings.Trim(path, "/")+", "+name, func(t *testing.T) {
				t.Parallel()
				b := loneList(t, path)
				b.origin.SetHook(path, fixtures.Hook{Body: fixed(d.text)})
				if why := b.wantRefused(name); !strings.Contains(why, d.want) || !listPlaced.MatchString(why) {
					t.Errorf("%q\nhas no %q or no place", why, d.want)
				}
			})
		}
		t.Run(strings.Trim(path, "/")+", too large", func(t *testing.T) {
			b := loneList(t, path)
			b.source().Limits.List = 500
			if why := b.wantRefused("too large"); !strings.Contains(why, `"document"`) {
				t.Error(why)
			}
		})
	}
}

// TestListFault_CutAtEveryByte: of a list that is not whole nothing is applied, and
// from what it lacks nothing is inferred. A connection that breaks does so
// wherever that is: only a soak tries every place.
func TestListFault_CutAtEveryByte(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	for _, path := range []string{fixtures.ResourceList, fixtures.ChangeList} {
		for name, cut := range map[string]struct {
			hook func(doc []byte, n int) fixtures.Hook
			step int
		}{
			"the connection breaks": {func(doc []byte, n int) fixtures.Hook {
				return fixtures.Hook{Body: fixed(string(doc)), Break: n}
			}, 9},
			"a short list, well sent": {func(doc []byte, n int) fixtures.Hook {
				return fixtures.Hook{Body: fixed(string(doc[:n]))}
			}, 1},
		} {
			if testenv.Soaking() {
				cut.step = 1
			}
			t.Run(strings.Trim(path, "/")+", "+name, func(t *testing.T) {
				b := loneList(t, path)
				b.apart()
				b.update("a")
				b.remove("b")
				doc := shortest(b.fetchSource(path))
				end := bytes.LastIndexByte(doc, '>') // what follows is white space
				for n := 1; n <= end; n += cut.step {
					b.origin.SetHook(path, cut.hook(doc, n))
					b.wantRefused(fmt.Sprintf("cut after %d of %d bytes", n, len(doc)))
				}
				b.origin.ClearHook(path)
				b.expectFull("whole", "deleted b", "updated a 2")
			})
		}
	}
}

var needless = regexp.MustCompile(`\s*<rs:ln[^>]*>|<lastmod>[^<]*</lastmod>| (length|type)="[^"]*"|<\?xml[^>]*>|\n\s*`)

// shortest is a list without what it need not have.
func shortest(doc []byte) []byte { return needless.ReplaceAll(doc, nil) }

// indexes serves an index at every path, which names so many others that nobody
// has seen yet; or itself.
type indexes struct {
	capability string
	each       int
	self       bool
}

// ServeHTTP is http.Handler.
func (x indexes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	base := "http://" + r.Host
	if r.URL.Path == fixtures.CapabilityList {
		fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="capabilitylist"/><url><loc>%s/i</loc><rs:md capability="%s"/></url></urlset>`, base, x.capability)
		return
	}
	fmt.Fprintf(w, `<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s" at="2025-01-01T00:00:00Z"/>`, x.capability)
	for n := range x.each {
		next := fmt.Sprintf("%s/%d", r.URL.Path, n)
		if x.self {
			next = r.URL.Path
		}
		fmt.Fprintf(w, "<sitemap><loc>%s%s</loc></sitemap>", base, next)
	}
	fmt.Fprint(w, "</sitemapindex>")
}

// TestListFault_IndexesWithoutEnd: indexes of indexes, of themselves, and of more
// lists than anybody has, end with a clear message.
func TestListFault_IndexesWithoutEnd(t *testing.T) {
	for _, c := range []string{"resourcelist", "changelist"} {
		for name, row := range map[string]struct {
			handler indexes
			most    int
			want    string
		}{
			"of indexes":           {indexes{c, 3, false}, 1000, "nested"},
			"of itself":            {indexes{c, 2, true}, 1000, ""},
			"of 100,000 lists":     {indexes{c, 100_000, false}, 20, "more than 50000 entries"},
			"of more than allowed": {indexes{c, 500, false}, 20, "too many documents"},
		} {
			t.Run(c+", "+name, func(t *testing.T) {
				if row.handler.each > 1000 {
					testenv.Heavy(t)
				}
				b := newListHarness(t, fixtures.SourceOptions{}, content(config.Reference), func(cf *config.Config) { cf.Sets[0].Sources[0].MaxDocuments = row.most })
				var requests atomic.Int64
				b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					row.handler.ServeHTTP(w, r)
				})
				r, err := b.try(harvest.Options{})
				why := said(r)
				if err != nil {
					why = err.Error()
				}
				if n := int(requests.Load()); !strings.Contains(why, row.want) || n > 3*row.most || b.last() != 0 {
					t.Errorf("after %d requests: %s", n, why)
				}
			})
		}
	}
}

// packed is a gzip file of a document with so many bytes of white space in it.
func packed(t *testing.T, doc []byte, spaces int) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	cut := bytes.LastIndex(doc, []byte("</urlset>"))
	for _, part := range [][]byte{doc[:cut], bytes.Repeat([]byte(" "), spaces), doc[cut:]} {
		if _, err := z.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestListFault_GzipBombs(t *testing.T) {
	for _, path := range []string{fixtures.ResourceList, fixtures.ChangeList} {
		for name, row := range map[string]struct{ encoding, want string }{
			"Content-Encoding": {"gzip", "suspiciously many bytes"},
			"a gzip file":      {"", "more than 100 times"},
		} {
			t.Run(strings.Trim(path, "/")+", "+name, func(t *testing.T) {
				b := loneList(t, path)
				header := http.Header{}
				if row.encoding != "" {
					header.Set("Content-Encoding", row.encoding)
				}
				list := b.fetchSource(path)
				bomb := packed(t, list, 8<<20)
				b.origin.SetHook(path, fixtures.Hook{Header: header, Body: fixed(string(bomb))})
				if why := b.wantRefused(name); !strings.Contains(why, row.want) {
					t.Error(why)
				}
				b.origin.SetHook(path, fixtures.Hook{Header: header, Body: fixed(string(packed(t, list, 1000)))})
				b.expectFull("the same list, honestly packed")
			})
		}
	}
	t.Run("of content", func(t *testing.T) {
		b := newListHarness(t, fixtures.SourceOptions{Hashes: []string{}})
		b.create("a", "b")
		bomb := packed(t, []byte("<urlset></urlset>"), 8<<20)
		b.origin.SetHook("/res/a", fixtures.Hook{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: fixed(string(bomb))})
		if r := b.expect("the other", "created b 1"); r.Pending != 1 {
			t.Error(said(r))
		}
	})
}

// TestListFault_Endless: a list that never ends is cut at the cap.
func TestListFault_Endless(t *testing.T) {
	b := loneList(t, fixtures.ResourceList)
	b.source().Limits.List = 1 << 20
	b.server.Config.Handler = endlessList{b.server.Config.Handler}
	if why := b.wantRefused("endless"); !strings.Contains(why, `"document"`) {
		t.Error(why)
	}
}

// endlessList answers a Resource List without an end.
type endlessList struct{ source http.Handler }

// ServeHTTP is http.Handler.
func (e endlessList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != fixtures.ResourceList {
		e.source.ServeHTTP(w, r)
		return
	}
	_, err := io.WriteString(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2025-01-01T00:00:00Z"/>`)
	for n := 0; err == nil; n++ {
		_, err = fmt.Fprintf(w, "<url><loc>http://%s/res/%d</loc></url>\n", r.Host, n)
	}
}
