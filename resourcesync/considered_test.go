package resourcesync

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func considered(tb testing.TB) map[string][]byte {
	tb.Helper()
	files, err := filepath.Glob("testdata/considered/*.xml")
	if err != nil || len(files) != 3 {
		tb.Fatal(files, err)
	}
	docs := map[string][]byte{}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		docs[filepath.Base(file)] = doc
	}
	return docs
}

// The three syntaxes that were considered and not adopted say the same, and break no rule.
func TestConsidered(t *testing.T) {
	dialects := map[string]Dialect{"atom-links.xml": DialectAtomLinks, "atom-contents.xml": DialectAtomContents, "items.xml": DialectItems}
	for name, doc := range considered(t) {
		t.Run(name, func(t *testing.T) {
			var rules []string
			d, bad, inputs, err := readInputs(doc, Limits{})
			if err != nil || len(bad) > 0 {
				t.Fatal(bad, err)
			}
			if _, _, err := readDocument(bytes.NewReader(doc), ReadOptions{URL: docURL, Strict: true, Report: func(p Problem) { rules = append(rules, p.String()) }}); err != nil || rules != nil {
				t.Error(rules, err)
			}
			if d.Dialect != dialects[name] || d.Capability != ChangeList || d.Index || d.Up() != "http://tides.example.org/capabilities.xml" || d.Modified.String() != "2012-11-20T08:00:00Z" {
				t.Errorf("%+v", d)
			}
			if !d.Dialect.NewestFirst() || len(d.Entries) != 2 {
				t.Fatalf("%+v", d.Entries)
			}
			title := ""
			if name != "items.xml" {
				title = "Tides at the mole"
			}
			at := func(s string) Datetime { v, _ := readTime(s); return v }
			want := Entry{
				Loc: "http://tides.example.org/mole", LastMod: at("2012-11-19T17:00:00Z"),
				Metadata: Metadata{Change: Updated, Hash: "md5:5d41402abc4b2a76b9719d911017c592", Type: "text/csv", Title: title},
				Links: []Link{
					{Rel: RelDuplicate, Href: "http://mirror.example.org/mole", Modified: at("2012-11-19T17:00:00Z")},
					{Rel: RelAlternate, Href: "http://tides.example.org/mole.json", Type: "application/json"},
				},
			}
			got := d.Entries[0]
			got.Line, got.Column = 0, 0
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
			if e := d.Entries[1]; e.Loc != "http://tides.example.org/pier" || e.Metadata.Change != Deleted || e.LastMod.String() != "2012-11-18T06:00:00Z" {
				t.Errorf("%+v", e)
			}
			for i, input := range inputs {
				one, bad, _, err := readInputs(input, Limits{})
				if err != nil || len(bad) > 0 || len(one.Entries) != 1 {
					t.Fatalf("%v %v\n%s", bad, err, input)
				}
				a, b := one.Entries[0], d.Entries[i]
				a.Line, a.Column, b.Line, b.Column = 0, 0, 0, 0
				if !reflect.DeepEqual(a, b) {
					t.Errorf("%+v\n%+v\n%s", a, b, input)
				}
			}
			var broken *RuleError
			if _, err := d.WriteTo(io.Discard); !errors.As(err, &broken) {
				t.Errorf("it was written: %v", err)
			}
		})
	}
}

// What is wrong in them is reported, and one bad entry ends nothing.
func TestConsideredBroken(t *testing.T) {
	const feed = `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:rs="http://www.openarchives.org/rs/" rs:type="http://www.openarchives.org/rs/changelist">`
	const items = `<resync xmlns="http://www.openarchives.org/rs/" rstype="http://www.openarchives.org/rs/changelist">`
	good := `<entry><updated>2012-01-01T00:00:00Z</updated><content src="http://a.example/1" rs:change="created"/></entry>`
	for _, c := range []struct {
		name, doc, rules string
		bad              int
	}{
		{"no resource", feed + `<entry/>` + good + `</feed>`, "", 1},
		{"an empty URI", items + `<item change="created" href=" "/></resync>`, "", 1},
		{"a URI that is none", items + `<item change="created" href=":"/></resync>`, "", 1},
		{"no length", items + `<item change="created" href="http://a.example/1" length="long" x:href="http://a.example/2" xmlns:x="urn:x"/></resync>`, "rs-length", 0},
		{"foreign elements", feed + `<entry><x xmlns="urn:x" href="http://a.example/2"><content src="http://a.example/3"/></x>` + good[len("<entry>"):] + `</feed>`, "", 0},
		{"relative", feed + `<entry><content src="1" rs:change="created"/></entry></feed>`, "rs-loc", 0},
		{"no change", items + `<item href="http://a.example/1"/></resync>`, "rs-change", 0},
		{"change on another link", feed + `<entry><link rel="alternate" href="http://a.example/2" rs:change="created"/><content src="http://a.example/1" rs:change="created"/></entry></feed>`, "rs-change", 0},
		{"two resources", feed + `<entry><link rel="canonical" href="http://a.example/2" rs:change="created"/><content src="http://a.example/1"/></entry></feed>`, "rs-loc", 0},
		{"unknown type", strings.Replace(items, "http://www.openarchives.org/rs/changelist", "changes", 1) + `</resync>`, "rs-capability rs-head", 0},
		{"a link after the items", items + `<item change="created" href="http://a.example/1"/><link rel="x" href="http://a.example/2"/></resync>`, "rs-position", 0},
		{"no time", feed + `<updated>now</updated></feed>`, "rs-date", 0},
	} {
		var rules []string
		_, bad, err := readDocument(strings.NewReader(c.doc), ReadOptions{URL: docURL, Report: func(p Problem) { rules = append(rules, p.Rule) }})
		if err != nil || len(bad) != c.bad || strings.Join(rules, " ") != c.rules {
			t.Errorf("%s: %v, bad %v, %v; want %s", c.name, rules, bad, err, c.rules)
		}
	}
}

// A walk follows them as a Source.
func TestConsideredAsSource(t *testing.T) {
	for name, doc := range considered(t) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/list" {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write(bytes.ReplaceAll(doc, []byte("http://tides.example.org"), []byte("http://"+r.Host))) // who asked may have gone
		}))
		w := Walk{Client: server.Client(), URL: server.URL + "/list"}
		var locs []string
		for list, err := range w.Documents(t.Context()) {
			if err != nil {
				t.Fatal(name, err)
			}
			for e, bad := range list.Entries() {
				if bad != nil {
					t.Fatal(name, bad)
				}
				locs = append(locs, strings.TrimPrefix(e.Loc, server.URL)+" "+e.Metadata.Change)
			}
		}
		if !slices.Equal(locs, []string{"/mole updated", "/pier deleted"}) {
			t.Errorf("%s: %v", name, locs)
		}
		server.Close()
	}
}

// FuzzConsidered: nothing panics, and every entry can be read again from its Input.
func FuzzConsidered(f *testing.F) {
	for _, doc := range considered(f) {
		f.Add(doc)
	}
	f.Add([]byte(`<t:feed xmlns:t="http://www.w3.org/2005/Atom" xmlns="http://www.openarchives.org/rs/" xmlns:tt="http://www.openarchives.org/rs/" tt:type=""><t:entry><t:content src=" http://a/ "/></t:entry></t:feed>`))
	limits := Limits{Document: 64 << 10, Depth: 20, Attributes: 10, Text: 10_000}
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, bad, inputs, err := readInputs(doc, limits)
		if err != nil || !d.Dialect.considered() {
			return
		}
		for i, input := range inputs {
			one, _, _, err := readInputs(input, Limits{})
			if err != nil || len(one.Entries) != 1 || !reflect.DeepEqual(shape(one).Entries[0], shape(d).Entries[i]) {
				t.Fatalf("%v\n%s\n%+v\n%+v", err, input, one, d.Entries[i])
			}
		}
		for _, b := range bad {
			_, again, _, err := readInputs(b.Input, Limits{})
			if err != nil || len(again) != 1 || again[0].Rule != b.Rule {
				t.Fatalf("%v %v\n%s", err, again, b.Input)
			}
		}
	})
}
