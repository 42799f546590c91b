package resourcesync

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const (
	openList  = `<urlset xmlns="` + SitemapNamespace + `" xmlns:rs="` + Namespace + `"><rs:ln rel="up" href="http://example.org/cap.xml"/>`
	headMD    = `<rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`
	changesMD = `<rs:md capability="changelist" from="2026-01-01T00:00:00Z"/>`
)

func listOf(entries string) string { return openList + headMD + entries + `</urlset>` }

func changesOf(entries string) string { return openList + changesMD + entries + `</urlset>` }

// What a Source gets nearly right is read as what it means, and reported.
func TestTolerance(t *testing.T) {
	lastmod := func(s string) string { return `<url><loc>http://a.example/1</loc><lastmod>` + s + `</lastmod></url>` }
	change := func(attrs string) string { return `<url><loc>http://a.example/1</loc><rs:md ` + attrs + `/></url>` }
	const dated = ` datetime="2026-01-02T00:00:00Z"`
	hashes := `hash="sha-1:` + strings.Repeat("0", 40) + " sha-224:" + strings.Repeat("1", 56) + " sha-384:" + strings.Repeat("2", 96) + " SHA-512:" + strings.Repeat("3", 128) + `"`
	for _, c := range []struct{ name, doc, rules, want string }{
		{"nothing wrong", listOf(lastmod("2026-01-02T03:04:05Z")), "", "http://a.example/1 2026-01-02T03:04:05Z"},
		{"white space in loc", listOf("<url><loc>\n http://a.example/1\n</loc></url>"), "rs-loc", "http://a.example/1"},
		{"relative loc", listOf("<url><loc>../1?x#y</loc></url>"), "rs-loc", "http://example.org/1?x#y"},
		{"dot segments", listOf("<url><loc>http://a.example/b/../1</loc></url>"), "rs-loc", "http://a.example/1"},
		{"dot segments at the end", listOf("<url><loc>http://a.example/b/..?c</loc></url><url><loc>http://a.example/b/.</loc></url>"), "rs-loc rs-loc", "http://a.example/?c | http://a.example/b/"},
		{"a hidden folder", listOf("<url><loc>http://a.example/.x/{\u00fc}</loc></url><url><loc>http://a.example/1?{}=/../..</loc></url>"), "", "http://a.example/.x/{\u00fc} | http://a.example/1?{}=/../.."},
		{"spaces in loc (D87)", listOf("<url><loc> http://a.example/a b/c  d </loc></url>"), "rs-loc", "http://a.example/a%20b/c%20%20d"},
		{"base", listOf(`<url xml:base="http://b.example/c/"><loc>1</loc></url>`), "rs-loc", "http://b.example/c/1"},
		{"two locs", listOf("<url><loc>http://a.example/1</loc><loc>http://a.example/2</loc></url>"), "rs-loc", "http://a.example/1"},
		{"other schemes", listOf("<url><loc>urn:x:1</loc></url><url><loc>gsiftp://g/1</loc></url>"), "", "urn:x:1 | gsiftp://g/1"},
		{"an IRI", listOf("<url><loc>http://a.example/\u00fc</loc></url>"), "", "http://a.example/\u00fc"},
		{"white space in lastmod", listOf(lastmod(" 2026-01-02T03:04:05Z\n")), "", "http://a.example/1 2026-01-02T03:04:05Z"},
		{"fraction", listOf(lastmod("2026-01-02T03:04:05.120Z")), "", "http://a.example/1 2026-01-02T03:04:05.120Z"},
		{"long fraction", listOf(lastmod("2026-01-02T03:04:05.1234567899Z")), "", "http://a.example/1 2026-01-02T03:04:05.123456789Z"},
		{"offset", listOf(lastmod("2026-01-02T03:04:05+02:30")), "rs-utc", "http://a.example/1 2026-01-02T00:34:05Z"},
		{"negative offset", listOf(lastmod("2026-01-02T03:04:05-02:30")), "rs-utc", "http://a.example/1 2026-01-02T05:34:05Z"},
		{"day", listOf(lastmod("2026-01-02")), "rs-utc", "http://a.example/1 2026-01-02T00:00:00Z"},
		{"month", listOf(lastmod("2026-02")), "rs-utc", "http://a.example/1 2026-02-01T00:00:00Z"},
		{"year", listOf(lastmod("2026")), "rs-utc", "http://a.example/1 2026-01-01T00:00:00Z"},
		{"minutes", listOf(lastmod("2026-01-02T03:04Z")), "rs-utc", "http://a.example/1 2026-01-02T03:04:00Z"},
		{"naive", listOf(lastmod("2026-01-02T03:04:05")), "rs-naive", "http://a.example/1 2026-01-02T03:04:05Z"},
		{"naive, told once", listOf(lastmod("2026-01-02T03:04:05") + lastmod("2026-01-02T03:04:06")), "rs-naive", "http://a.example/1 2026-01-02T03:04:05Z | http://a.example/1 2026-01-02T03:04:06Z"},
		{"a blank for the T", listOf(lastmod("2026-01-02 03:04:05Z")), "rs-date", "http://a.example/1 2026-01-02T03:04:05Z"},
		{"offset without colon", listOf(lastmod("2026-01-02T03:04:05+0100")), "rs-date", "http://a.example/1 2026-01-02T02:04:05Z"},
		{"no time at all", listOf(lastmod("yesterday")), "rs-date", "http://a.example/1"},
		{"a letter in the year", listOf(lastmod("2O26-01-02 03:04:05Z")), "rs-date", "http://a.example/1"},
		{"no such day", listOf(lastmod("2026-02-29T00:00:00Z")), "rs-date", "http://a.example/1"},
		{"leap second", listOf(lastmod("2016-12-31T23:59:60Z")), "", "http://a.example/1 2017-01-01T00:00:00Z"},
		{"two lastmods", listOf(`<url><loc>http://a.example/1</loc><lastmod>2026-01-02</lastmod><lastmod>2027</lastmod></url>`), "rs-utc rs-entry", "http://a.example/1 2026-01-02T00:00:00Z"},
		{"two mds", listOf(`<url><loc>http://a.example/1</loc><rs:md type="a/b"/><rs:md type="c/d" length="1"/></url>`), "rs-entry", "http://a.example/1 type=a/b length=1"},
		{"length", listOf(change(`length="1 KB"`)), "rs-length", "http://a.example/1"},
		{"negative length", listOf(change(`length="-1"`)), "rs-length", "http://a.example/1"},
		{"hash in base64", listOf(change(`hash="md5:1B2M2Y8AsgTpgAmY7PhCfg=="`)), "rs-hash", "http://a.example/1 hash=md5:1B2M2Y8AsgTpgAmY7PhCfg=="},
		{"hash too short", listOf(change(`hash="sha-256:00"`)), "rs-hash", "http://a.example/1 hash=sha-256:00"},
		{"hash in capitals, an unknown algorithm, line breaks", listOf(change("hash='MD5:D41D8CD98F00B204E9800998ECF8427E\n\t x-crc:00'")), "", "http://a.example/1 hash=MD5:D41D8CD98F00B204E9800998ECF8427E x-crc:00"},
		{"hashes too short", listOf(change(`hash="sha-1:00"`) + change(`hash="sha-512:`+strings.Repeat("0", 96)+`"`)), "rs-hash", "http://a.example/1 hash=sha-1:00 | http://a.example/1 hash=sha-512:" + strings.Repeat("0", 96)},
		{"a hash of each algorithm", listOf(change(hashes)), "", "http://a.example/1 " + strings.ReplaceAll(hashes, `"`, "")},
		{"prefixed attributes", listOf(change(`rs:type="a/b"`)), "rs-attribute", "http://a.example/1 type=a/b"},
		{"unknown attribute", listOf(change(`colour="red"`)), "rs-attribute", "http://a.example/1 colour=red"},
		{"foreign elements", listOf(`<url><loc>http://a.example/1</loc><x xmlns="urn:x"><loc>no</loc></x></url><y xmlns="urn:y"><url/></y>`), "", "http://a.example/1"},
		{"changefreq", listOf(`<url><loc>http://a.example/1</loc><changefreq> often </changefreq><priority>2</priority></url>`), "rs-sitemap", "http://a.example/1 changefreq=often priority=2"},
		{"no change", changesOf(change(dated)), "rs-change", "http://a.example/1 at 2026-01-02T00:00:00Z"},
		{"unknown change", changesOf(change(`change="moved"` + dated)), "rs-change", "http://a.example/1 moved at 2026-01-02T00:00:00Z"},
		{"change in capitals", changesOf(change(`change="DELETED "` + dated)), "rs-change", "http://a.example/1 deleted at 2026-01-02T00:00:00Z"},
		{"no datetime", changesOf(change(`change="created"`)), "rs-datetime", "http://a.example/1 created"},
		{"before from", changesOf(change(`change="created" datetime="2025-12-31T23:59:59Z"`)), "rs-interval", "http://a.example/1 created at 2025-12-31T23:59:59Z"},
		{"sitemap in a urlset", listOf(`<sitemap><loc>http://a.example/1</loc></sitemap>`), "rs-entry", "http://a.example/1"},
		{"link without href", listOf(`<url><loc>http://a.example/1</loc><rs:ln rel="via"/></url>`), "rs-link", "http://a.example/1"},
		{"link without rel", listOf(`<url><loc>http://a.example/1</loc><rs:ln href="urn:x"/></url>`), "rs-link", "http://a.example/1 -> urn:x"},
		{"relative link", listOf(`<url><loc>http://a.example/1</loc><rs:ln rel=" Via" href="x"/></url>`), "rs-link", "http://a.example/1 via-> http://example.org/dir/x"},
		{"pri", listOf(`<url><loc>http://a.example/1</loc><rs:ln rel="duplicate" href="urn:x" pri="0"/></url>`), "rs-pri", "http://a.example/1 duplicate-> urn:x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := readAll(t, []byte(c.doc))
			var all []string
			for i := range got.doc.Entries {
				all = append(all, summary(&got.doc.Entries[i]))
			}
			if s := strings.Join(all, " | "); s != c.want || len(got.bad) > 0 {
				t.Errorf("read %s, bad %v, want %s", s, got.bad, c.want)
			}
			if got.rules() != c.rules {
				t.Errorf("reported %v, want %s", got.problems, c.rules)
			}
			for _, p := range got.problems {
				if p.URL != docURL || p.Line < 1 || p.Column < 1 || p.Found == "" || p.Expected == "" || !strings.Contains(p.String(), p.Rule) {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

// summary says in a line what an entry says.
func summary(e *Entry) string {
	var b strings.Builder
	b.WriteString(e.Loc)
	add := func(format string, value string) {
		if value != "" {
			fmt.Fprintf(&b, format, value)
		}
	}
	m := &e.Metadata
	add(" %s", e.LastMod.String())
	add(" %s", m.Change)
	add(" at %s", m.Datetime.String())
	add(" type=%s", m.Type)
	if n, ok := m.Length.Bytes(); ok {
		fmt.Fprintf(&b, " length=%d", n)
	}
	add(" hash=%s", m.Hash)
	for _, a := range m.Extra {
		fmt.Fprintf(&b, " %s=%s", a.Name.Local, a.Value)
	}
	add(" changefreq=%s", e.ChangeFreq)
	add(" priority=%s", e.Priority)
	for _, l := range e.Links {
		fmt.Fprintf(&b, " %s-> %s", l.Rel, l.Href)
	}
	return b.String()
}

// What a document as a whole breaks.
func TestDocumentRules(t *testing.T) {
	testenv.Heavy(t)
	changed := func(at string) string {
		return `<url><loc>http://a.example/1</loc><rs:md change="updated" datetime="` + at + `"/></url>`
	}
	many := strings.Repeat("<url><loc>http://a.example/1</loc></url>", MaxEntries+1)
	noUp := strings.Replace(openList, `<rs:ln rel="up" href="http://example.org/cap.xml"/>`, "", 1)
	for _, c := range []struct{ name, doc, rules string }{
		{"no at", openList + `<rs:md capability="resourcelist"/></urlset>`, "rs-at"},
		{"from on a Resource List", openList + `<rs:md capability="resourcelist" at="2026-01-01T00:00:00Z" from="2026-01-01T00:00:00Z"/></urlset>`, "rs-at"},
		{"no from", openList + `<rs:md capability="changelist"/></urlset>`, "rs-from"},
		{"at on a Change List", openList + `<rs:md capability="changelist" from="2026-01-01T00:00:00Z" at="2026-01-01T00:00:00Z"/></urlset>`, "rs-from"},
		{"until before from", openList + `<rs:md capability="changelist" from="2026-01-01T00:00:00Z" until="2025-01-01T00:00:00Z"/></urlset>`, "rs-until"},
		{"no up", noUp + headMD + `</urlset>`, "rs-up"},
		{"two ups", openList + `<rs:ln rel="up" href="http://example.org/2"/>` + headMD + `</urlset>`, "rs-up"},
		{"two indexes", openList + `<rs:ln rel="index" href="http://example.org/1"/><rs:ln rel="index" href="http://example.org/2"/>` + headMD + `</urlset>`, "rs-index"},
		{"no capability", openList + `<rs:md at="2026-01-01T00:00:00Z"/></urlset>`, "rs-head"},
		{"no md", openList + `</urlset>`, "rs-head"},
		{"two mds", openList + headMD + headMD + `</urlset>`, "rs-head"},
		{"unknown capability", openList + `<rs:md capability="patchlist"/></urlset>`, "rs-capability"},
		{"capability in capitals", openList + `<rs:md capability="ResourceList" at="2026-01-01T00:00:00Z"/></urlset>`, "rs-capability"},
		{"index of Capability Lists", `<sitemapindex xmlns="` + SitemapNamespace + `" xmlns:rs="` + Namespace + `"><rs:ln rel="up" href="http://example.org/1"/><rs:md capability="capabilitylist"/></sitemapindex>`, "rs-capability-index"},
		{"head behind entries", openList + `<url><loc>http://a.example/1</loc></url>` + headMD + `</urlset>`, "rs-position"},
		{"newest first", changesOf(changed("2026-01-03T00:00:00Z") + changed("2026-01-02T00:00:00Z") + changed("2026-01-01T00:00:00Z")), "rs-order"},
		{"newest first in 1.0", changesOf(`<url><loc>http://a.example/1</loc><lastmod>2026-01-03T00:00:00Z</lastmod><rs:md change="updated"/></url><url><loc>http://a.example/2</loc><lastmod>2026-01-02T00:00:00Z</lastmod><rs:md change="updated"/></url>`), "rs-datetime rs-order"},
		{"packages newest first", openList + `<rs:md capability="changedump" from="2026-01-01T00:00:00Z"/><url><loc>http://a.example/2</loc><rs:md from="2026-01-02T00:00:00Z"/></url>` +
			`<url><loc>http://a.example/1</loc><rs:md from="2026-01-01T00:00:00Z"/></url></urlset>`, "rs-dump-order"},
		{"index newest first", `<sitemapindex xmlns="` + SitemapNamespace + `" xmlns:rs="` + Namespace + `"><rs:ln rel="up" href="http://example.org/1"/>` + changesMD +
			`<sitemap><loc>http://a.example/2</loc><rs:md from="2026-02-01T00:00:00Z"/></sitemap><sitemap><loc>http://a.example/1</loc><rs:md from="2026-01-01T00:00:00Z"/></sitemap></sitemapindex>`, "rs-order"},
		{"too many entries", listOf(many), "rs-entries"},
		{"too long", listOf("<!--" + strings.Repeat("x", 7<<20) + "-->" + strings.Repeat("<!--"+strings.Repeat("x", 7<<20)+"-->", 7)), "rs-size"},
		{"Capability List without capabilities", openList + `<rs:md capability="capabilitylist"/><url><loc>http://a.example/1</loc></url></urlset>`, "rs-listed"},
		{"manifest without path", openList + `<rs:md capability="resourcedump-manifest" at="2026-01-01T00:00:00Z"/><url><loc>http://a.example/1</loc></url><url><loc>http://a.example/1</loc><rs:md path="x"/></url></urlset>`, "rs-path rs-path"},
		{"manifest with a deletion", openList + `<rs:md capability="changedump-manifest" from="2026-01-01T00:00:00Z"/><url><loc>http://a.example/1</loc><rs:md change="deleted" datetime="2026-01-01T00:00:00Z"/></url></urlset>`, ""},
		{"md in a sitemap without head", noUp + `<url><loc>http://a.example/1</loc><rs:md length="1"/></url></urlset>`, "rs-head rs-up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := readAll(t, []byte(c.doc))
			if len(got.bad) > 0 || strings.Join(strings.Fields(got.rules()), " ") != c.rules {
				t.Errorf("reported %v, want %s; bad %v", got.problems, c.rules, got.bad)
			}
		})
	}
}

// What a bridge carries in a namespace of its own is read, but for what it cannot be: each
// attribute once, and details that are a JSON object of no more than MaxDetails bytes.
func TestCarried(t *testing.T) {
	for _, c := range []struct {
		attrs, rules string
		want         Metadata
	}{
		{`b:id="urn:x:1" b:title="T" b:hreflang="de" b:modified="2026-01-02T03:04:05Z" b:details='{"a":[1]}'`, "",
			Metadata{ID: "urn:x:1", Title: "T", Hreflang: "de", CarriedModified: Seconds(moment), Details: `{"a":[1]}`}},
		{`b:details='["a"]'`, "rs-attribute", Metadata{}},
		{`b:details='{"a"'`, "rs-attribute", Metadata{}},
		{`b:details='{"a":"` + strings.Repeat("x", MaxDetails-8) + `"}'`, "", Metadata{Details: `{"a":"` + strings.Repeat("x", MaxDetails-8) + `"}`}},
		{`b:details='{"a":"` + strings.Repeat("x", MaxDetails-7) + `"}'`, "rs-attribute", Metadata{}},
		{`b:modified="yesterday"`, "rs-date", Metadata{}},
	} {
		doc := strings.Replace(listOf(`<url><loc>http://a.example/1</loc><rs:md `+c.attrs+`/><rs:ln rel="via" href="urn:x" b:id="urn:x:2" b:hreflang="fr"/></url>`), "<urlset", `<urlset xmlns:b="`+CarriedNamespace+`"`, 1)
		got := readAll(t, []byte(doc))
		if len(got.bad) > 0 || got.rules() != c.rules || len(got.doc.Entries) != 1 {
			t.Errorf("%.100s: reported %v, bad %v, want %s", c.attrs, got.problems, got.bad, c.rules)
			continue
		}
		e := got.doc.Entries[0]
		if !reflect.DeepEqual(e.Metadata, c.want) {
			t.Errorf("%.100s: %.300v\nwant %.300v", c.attrs, e.Metadata, c.want)
		}
		if l := e.Links[0]; l.ID != "urn:x:2" || l.Hreflang != "fr" {
			t.Errorf("%.100s: the link is %+v", c.attrs, l)
		}
	}
}

func TestNamespaces(t *testing.T) {
	doc := func(sitemaps, terms string) string {
		return `<urlset xmlns="` + sitemaps + `" xmlns:rs="` + terms + `"><rs:ln rel="up" href="http://example.org/cap.xml"/>` + changesMD +
			`<url><loc>http://a.example/1</loc><rs:md change="created" datetime="2026-01-02T00:00:00Z"/></url></urlset>`
	}
	for _, c := range []struct {
		sitemaps, terms string
		dialect         Dialect
		rules           string
	}{
		{SitemapNamespace, Namespace, Dialect11, ""},
		{SitemapNamespace, strings.TrimSuffix(Namespace, "/"), Dialect11, "rs-namespace"},
		{SitemapNamespace, "https://www.openarchives.org/rs/terms/", Dialect11, "rs-namespace"},
		{SitemapNamespace, "http://www.OpenArchives.org/RS/Terms/", Dialect11, "rs-namespace"},
		{SitemapNamespace, "http://openarchives.org/rs/terms/#", Dialect11, "rs-namespace"},
		{SitemapNamespace, BetaNamespace, DialectBeta, ""},
		{SitemapNamespace, strings.TrimSuffix(BetaNamespace, "/"), DialectBeta, "rs-namespace"},
		{SitemapNamespace, "http://www.openarchives.org/OAI/2.0/", DialectSitemap, ""},
		{SitemapNamespace + "/", Namespace, Dialect11, "rs-root"},
		{"https://www.sitemaps.org/schemas/sitemap/0.9", Namespace, Dialect11, "rs-root"},
		{"http://www.google.com/schemas/sitemap/0.84", Namespace, Dialect11, "rs-root"},
		{"", Namespace, Dialect11, "rs-root"},
	} {
		got := readAll(t, []byte(doc(c.sitemaps, c.terms)))
		if got.doc.Dialect != c.dialect || got.rules() != c.rules || len(got.doc.Entries) != 1 {
			t.Errorf("%s, %s: %s, %v, %d entries", c.sitemaps, c.terms, got.doc.Dialect, got.problems, len(got.doc.Entries))
		}
	}
	upper := strings.NewReplacer("urlset", "URLSET", "<url>", "<URL>", "</url>", "</URL>", "loc>", "Loc>").Replace(doc(SitemapNamespace, Namespace))
	if got := readAll(t, []byte(upper)); got.rules() != "rs-root" || len(got.doc.Entries) != 1 || got.doc.Capability != ChangeList {
		t.Errorf("in capitals: %v, %+v", got.problems, got.doc)
	}
}

// A document that is none of the framework says what it is instead.
func TestDocumentFaults(t *testing.T) {
	for doc, reason := range map[string]string{
		"":                             "is empty; want a ResourceSync document",
		`{"a":1}`:                      "perhaps JSON, not a ResourceSync document",
		"<!doctype html><html></html>": "an HTML page",
		"<html/>":                      "an HTML page; want a ResourceSync document",
		`<feed xmlns="http://www.w3.org/2005/Atom"/>`:               "an Atom Feed Document",
		`<rss version="2.0"/>`:                                      "RSS 2.0",
		`<urlset xmlns="urn:x"/>`:                                   "<urlset>",
		`<url xmlns="` + SitemapNamespace + `"/>`:                   "<url> in namespace",
		listOf("<url><loc>http://a.example/1</loc></url>") + "<x/>": "a second root element",
		openList + headMD + "<url><loc>http://a.example/1</loc>":    "cut off inside <url>",
		strings.TrimSuffix(listOf(""), "</urlset>"):                 "cut off inside <urlset>",
		listOf("<url>&nbsp;</url>"):                                 "broken XML",
		listOf("<rs:x y:z='1'/>"):                                   "prefix that is not declared",
	} {
		_, _, err := readDocument(strings.NewReader(doc), ReadOptions{URL: docURL})
		var fault *DocumentError
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), reason) || fault.URL != docURL || fault.Line < 1 {
			t.Errorf("%s: %v, want %s", doc, err, reason)
		}
	}
}

// Only a document that was read to its last byte is whole.
func TestCut(t *testing.T) {
	doc := listOf("<url><loc>http://a.example/1</loc></url>")
	for n := range doc {
		var fault *DocumentError
		if _, _, err := readDocument(strings.NewReader(doc[:n]), ReadOptions{}); !errors.As(err, &fault) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	in := io.MultiReader(strings.NewReader(doc), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, _, err := readDocument(in, ReadOptions{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an error of the network: %v", err)
	}
}

func TestBadEntries(t *testing.T) {
	const good = `<url><loc>http://a.example/9</loc></url>`
	for _, c := range []struct{ name, entry, rule, loc, id string }{
		{"no loc", `<url><lastmod>2026-01-01T00:00:00Z</lastmod><rs:md length="1" xmlns:b="urn:x-bridge:terms:1" b:id="urn:x:1"/></url>`, "rs-loc", "", "urn:x:1"},
		{"empty", `<url/>`, "rs-loc", "", ""},
		{"empty loc", `<url><loc> </loc></url>`, "rs-loc", "", ""},
		{"loc with elements", `<url><loc>http://a.example/<b>1</b></loc></url>`, "rs-loc", "", ""},
		{"loc without host", `<url><loc>http:///x</loc></url>`, "rs-loc", "", ""},
		{"loc with a blank in its host", `<url><loc>http://a b.example/</loc></url>`, "rs-loc", "", ""},
		{"loc with a tab", "<url><loc>http://a.example/a\tb</loc></url>", "rs-loc", "", ""},
		{"loc that is no reference", `<url><loc>http://a.example/../%zz</loc></url>`, "rs-loc", "", ""},
		{"url in a url", `<url><loc>http://a.example/1</loc><url><loc>http://a.example/2</loc></url></url>`, "rs-entry", "http://a.example/1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := readAll(t, []byte(listOf(good+"\n"+c.entry+good)))
			if len(got.doc.Entries) != 2 || len(got.bad) != 1 {
				t.Fatalf("%d entries, bad %v", len(got.doc.Entries), got.bad)
			}
			bad := got.bad[0]
			if bad.Rule != c.rule || bad.Loc != c.loc || bad.ID != c.id || bad.Line != 2 || bad.Column != 1 || bad.URL != docURL || !strings.Contains(bad.Error(), bad.Reason) {
				t.Errorf("%+v", bad)
			}
			again := readAll(t, bad.Input)
			if len(again.bad) != 1 || again.bad[0].Rule != bad.Rule || again.bad[0].Reason != bad.Reason || !bytes.Equal(again.bad[0].Input, bad.Input) || again.doc.Capability != ResourceList {
				t.Errorf("read again from %s: %v", bad.Input, again.bad)
			}
		})
	}
	// Without a URL nothing can be resolved.
	_, bad, err := readDocument(strings.NewReader(listOf(`<url><loc>x</loc></url>`)), ReadOptions{})
	if err != nil || len(bad) != 1 || !strings.Contains(bad[0].Reason, "want an absolute URI") {
		t.Errorf("%v %v", bad, err)
	}
}

// The head says by and by what the document is.
func TestHead(t *testing.T) {
	doc := openList + changesMD + `<url><loc>http://a.example/1</loc><rs:md change="created"/></url>` +
		`<rs:ln rel="index" href="i.xml"/><url><loc>http://a.example/2</loc><rs:md change="created"/></url></urlset>`
	r := NewReader(iotest.OneByteReader(strings.NewReader(doc)), ReadOptions{URL: docURL})
	head, err := r.Head()
	if err != nil || head.Capability != ChangeList || head.Dialect != Dialect11 || head.Link(RelIndex) != "" || head.Up() != "http://example.org/cap.xml" || head.From.String() != "2026-01-01T00:00:00Z" {
		t.Fatalf("%+v %v", head, err)
	}
	if r.Input() != nil {
		t.Error("an input before the first entry")
	}
	var inputs []string
	for {
		if _, err := r.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, string(r.Input()))
	}
	if got := r.Document(); got.Dialect != Dialect10 || got.Link(RelIndex) != "http://example.org/dir/i.xml" || len(head.Links) != 1 {
		t.Errorf("at the end %+v", got)
	}
	if len(inputs) != 2 || !strings.HasPrefix(inputs[1], "<urlset ") || !strings.Contains(inputs[1], `<url><loc>http://a.example/2</loc><rs:md change="created"/></url></urlset>`) || strings.Contains(inputs[1], "example/1") {
		t.Errorf("inputs %s", inputs)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	if d, err := NewReader(strings.NewReader(listOf("")), ReadOptions{}).Head(); err != nil || d.Capability != ResourceList {
		t.Errorf("a list without entries: %+v, %v", d, err)
	}
}

// The drafts named the way up in other words.
func TestUp(t *testing.T) {
	for want, d := range map[string]*Document{
		"a": {Links: []Link{{Rel: RelUp, Href: "a"}, {Rel: "top", Href: "b"}}},
		"b": {Dialect: DialectBeta, Links: []Link{{Rel: RelUp, Href: "a"}, {Rel: "top", Href: "b"}}},
		"c": {Dialect: Dialect091, Links: []Link{{Rel: "resourcesync", Href: "c"}}},
		"":  {Links: []Link{{Rel: RelIndex, Href: "d"}}},
	} {
		if got := d.Up(); got != want {
			t.Errorf("%+v: %q, want %q", d, got, want)
		}
	}
}

func TestLimitsOfReading(t *testing.T) {
	doc := listOf("<url><loc>http://a.example/1</loc></url>")
	for _, c := range []struct {
		limits Limits
		cap    string
	}{{Limits{Document: 50}, "document"}, {Limits{Depth: 2}, "depth"}, {Limits{Text: 10}, "text"}, {Limits{Attributes: 1}, "attributes"}} {
		_, _, err := readDocument(strings.NewReader(doc), ReadOptions{Limits: c.limits})
		var fault *DocumentError
		if !errors.As(err, &fault) || fault.Cap != c.cap {
			t.Errorf("%s: %v", c.cap, err)
		}
	}
}

func TestReadingRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if r.ID == "" || r.Title == "" || r.Clause == "" || seen[r.ID] {
			t.Errorf("%+v", r)
		}
		seen[r.ID] = true
	}
	// Every rule that a test above has seen reported is in the table.
	for _, id := range strings.Fields("rs-root rs-namespace rs-head rs-position rs-capability rs-at rs-from rs-until rs-up rs-index rs-entries rs-size rs-order rs-interval " +
		"rs-entry rs-loc rs-listed rs-change rs-datetime rs-date rs-utc rs-naive rs-hash rs-length rs-path rs-pri rs-link rs-attribute rs-sitemap rs-charset rs-base") {
		if !seen[id] {
			t.Errorf("%s is not in the table", id)
		}
	}
}

func TestScannerNotices(t *testing.T) {
	doc := `<?xml version="1.0" encoding="utf-8"?>` + strings.Replace(listOf(""), "<rs:md", `<rs:md xml:base=":"`, 1)
	var got []string
	_, _, err := readDocument(strings.NewReader(doc), ReadOptions{ContentType: "text/xml; charset=iso-8859-1", Report: func(p Problem) { got = append(got, p.Rule) }})
	if err != nil || !reflect.DeepEqual(got, []string{"rs-charset", "rs-base"}) {
		t.Errorf("%v %v", got, err)
	}
}

func TestCompare(t *testing.T) {
	at := func(s string) Datetime {
		d, form := readTime(s)
		if form == noTime {
			t.Fatal(s)
		}
		return d
	}
	order := []Datetime{{}, at("0001-01-01T00:00:00Z"), at("2026-01-02T03:04:05Z"), at("2026-01-02T03:04:05.5Z"), at("2026-01-02T03:04:06Z")}
	for i, a := range order {
		for j, b := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if a.Compare(b) != want {
				t.Errorf("%v and %v: %d", a, b, a.Compare(b))
			}
		}
	}
	if a, b := at("2026-01-02T03:04:05.50Z"), Exact(time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)); a == b || a.Compare(b) != 0 || a.String() != "2026-01-02T03:04:05.50Z" {
		t.Errorf("%v and %v", a, b)
	}
}
