package publish

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// go test ./internal/publish -update writes the golden files anew.
var update = flag.Bool("update", false, "write the golden files anew")

// get returns a document's bytes and what is known of it.
func get(t testing.TB, p *Publisher, path string, gz bool) ([]byte, Meta) {
	t.Helper()
	doc, err := p.Document(context.Background(), path, gz)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return read(t, doc), doc.Meta
}

func read(t testing.TB, doc *Document) []byte {
	t.Helper()
	body, size, err := doc.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(data)) != size {
		t.Fatalf("Open says %d bytes and gives %d", size, len(data))
	}
	return data
}

// goldenLog has a set in each mode, one of them empty.
func goldenLog() *sliceLog {
	l := newLog().make("campus", event.Mirror, 10).make("empty", event.Mirror, 10).
		make("links", event.Redirect, 10).make("away", event.Reference, 10).
		fill("campus", 26).fill("links", 8).fill("away", 17).
		make("details", event.Reference, 10)
	for _, kind := range []event.Kind{event.Created, event.Deleted, event.Created} {
		e := detailed(kind)
		if e.Live() {
			e.Loc = e.Via.Href
		}
		l.add("details", e)
	}
	return l
}

// detailed is an event with all that few records have.
func detailed(kind event.Kind) event.Event {
	n := 1
	if kind == event.Deleted {
		n = 2
	}
	e := sample(kind, 1, n)
	e.Categories = []event.Category{{Term: "maps", Scheme: "https://scheme.example/", Label: "Maps & plans"}, {Term: "old"}}
	e.Details = &event.Details{Language: "en", EntryLanguage: "de", Authors: []event.Person{{Name: "A", URI: "https://a.example/", Email: "a@a.example"}}, Contributors: []event.Person{{Name: "C"}},
		Rights: event.Text{Value: "© \"us\"", Language: "fr"}, Published: event.StampFromNanos(1.7e18), Edited: event.StampFromNanos(1.7e18 + 1), ChangeFreq: "monthly",
		Source: &event.Feed{ID: "urn:x:feed", Title: event.Text{Value: "Feed", Language: "en"}, Links: []event.Link{{Rel: "self", Href: "https://a.example/feed"}}}}
	if kind == event.Deleted {
		e.Details.DeletedBy, e.Details.Comment = event.Person{Name: "The editor"}, event.Text{Value: "Withdrawn", Language: "en"}
		e.Links = []event.Link{{Rel: "successor-version", Href: "https://a.example/2", Length: event.NoLength}}
		return e
	}
	e.Links = []event.Link{{Rel: "profile", Href: "https://profile.example/"}, {Rel: "license", Href: "https://licence.example/", Type: "text/html"},
		{Rel: "canonical", Href: "https://a.example/canonical", Length: event.NoLength}, {Rel: "collection", Href: "https://a.example/all", Length: event.NoLength},
		{Rel: "duplicate", Href: "https://mirror.example/1", Pri: 1, Type: "text/xml", Length: 5, Hash: "md5:00000000000000000000000000000000", Modified: event.StampFromNanos(1.7e18)}}
	r := &e.Representations[len(e.Representations)-1]
	r.Pri, r.Hreflang, r.Encoding = 3, "de", "gzip" // the schema at hand is too old for profile
	return e
}

func goldenPaths(t *testing.T, p *Publisher, l *sliceLog) []string {
	paths := []string{"/robots.txt", "/.well-known/resourcesync"}
	sets, _ := l.Sets(t.Context())
	for _, s := range sets {
		items, err := p.Plan(t.Context(), s.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			paths = append(paths, it.Path)
		}
	}
	return paths
}

func TestGolden(t *testing.T) {
	l := goldenLog()
	p := newPublisher(t, l)
	for _, path := range goldenPaths(t, p, l) {
		got, _ := get(t, p, path, false)
		testenv.Golden(t, *update, filepath.Join("testdata", "golden", strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "_")), got)
	}
}

// The compressed form is the same document under another tag.
func TestGzip(t *testing.T) {
	l := goldenLog()
	p := newPublisher(t, l)
	tags := map[string]string{}
	for _, path := range goldenPaths(t, p, l) {
		plain, meta := get(t, p, path, false)
		packed, metaGz := get(t, p, path, true)
		zr, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(zr)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: the compressed form is not the document: %v", path, err)
		}
		if !metaGz.Gzip || meta.Gzip || meta.Immutable != metaGz.Immutable || meta.Immutable == meta.LastModified.IsZero() {
			t.Errorf("%s: meta is %+v and %+v", path, meta, metaGz)
		}
		for _, tag := range []string{meta.ETag, metaGz.ETag} {
			if other, ok := tags[tag]; ok {
				t.Errorf("%s and %s have the tag %s", path, other, tag)
			}
			tags[tag] = path
		}
	}
}

func schemas(t *testing.T) (lint, dir string) {
	lint, err := exec.LookPath("xmllint")
	if err != nil {
		t.Skip("the peer xmllint is not installed (libxml2-utils)")
	}
	dir = filepath.Join("..", "..", "..", "shared", "schemas")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the joint schemas of the sitemap and ResourceSync are not beside this checkout")
	}
	return lint, dir
}

// The schema refuses an empty list and a media type with a dot or a parameter,
// though both are valid. Documents without either must pass; those with one
// must fail for that reason alone.
func TestSchema(t *testing.T) {
	testenv.Heavy(t)
	lint, dir := schemas(t)
	l := goldenLog().make("dotted", event.Mirror, 10)
	e := sample(event.Created, 1, 1)
	e.Representations[0].Type = "application/vnd.example+xml; charset=utf-8"
	l.add("dotted", e)
	p := newPublisher(t, l)
	refused := 0
	for _, path := range goldenPaths(t, p, l) {
		if path == "/robots.txt" || strings.HasSuffix(path, ".atom") {
			continue
		}
		doc, _ := get(t, p, path, false)
		schema := "joint-sitemap-11.xsd"
		if bytes.Contains(doc, []byte("<sitemapindex")) {
			schema = "joint-siteindex-11.xsd"
		}
		cmd := exec.Command(lint, "--noout", "--nonet", "--schema", filepath.Join(dir, schema), "-")
		cmd.Stdin = bytes.NewReader(doc)
		out, err := cmd.CombinedOutput()
		empty := !bytes.Contains(doc, []byte("<loc>"))
		dotted := bytes.Contains(doc, []byte("vnd.example"))
		if !empty && !dotted {
			if err != nil {
				t.Errorf("%s: %v\n%s", path, err, out)
			}
			continue
		}
		refused++
		if err == nil {
			t.Errorf("%s: the schema takes what it is known to refuse: see to the filter", path)
		}
		for line := range strings.Lines(string(out)) {
			known := strings.Contains(line, "- fails to validate") || strings.Contains(line, "- validates") ||
				empty && strings.Contains(line, "Missing child element(s)") ||
				dotted && strings.Contains(line, "attribute 'type'") && strings.Contains(line, "vnd.example")
			if strings.Contains(line, "error") && !known {
				t.Errorf("%s: %s", path, line)
			}
		}
	}
	if refused < 4 {
		t.Errorf("only %d documents of the known refusals were tried", refused)
	}
}

// history is a log that can be grown in any steps.
func history(every int, content event.Content) *sliceLog {
	return newLog().make("main", content, every)
}

// Publishing in any steps gives the bytes of publishing once; closed documents
// never change; open ones grow only at their end (I1, I4). While a list is empty
// nobody has read anything of it, so its first entry may declare a namespace.
func TestAnyStepsSameBytes(t *testing.T) {
	testenv.Checks(t, 40)
	rapid.Check(t, func(rt *rapid.T) {
		every := rapid.IntRange(1, 9).Draw(rt, "every")
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(rt, "content")
		steps := rapid.SliceOfN(rapid.IntRange(0, 12), 1, 8).Draw(rt, "steps")
		l := history(every, content)
		p := newPublisher(t, l)
		closed, open := map[string][]byte{}, map[string][]byte{}
		total := 0
		for _, n := range steps {
			l.fill("main", n)
			total += n
			items, err := p.Plan(t.Context(), "main")
			if err != nil {
				rt.Fatal(err)
			}
			for _, it := range items {
				got, meta := get(t, p, it.Path, false)
				if meta.Immutable != it.Closed {
					rt.Fatalf("%s: closed %v, immutable %v", it.Path, it.Closed, meta.Immutable)
				}
				if was, ok := closed[it.Path]; ok && !bytes.Equal(was, got) {
					rt.Fatalf("%s was closed and has changed", it.Path)
				}
				if was, ok := open[it.Path]; ok && it.Kind == Archive && !bytes.Equal(withoutNext(was), withoutNext(got)) {
					rt.Fatalf("%s has changed, and not by next-archive alone:\n%s\n%s", it.Path, was, got)
				}
				if it.Closed {
					closed[it.Path] = got
				} else if was, ok := open[it.Path]; ok && (it.Kind == ChangeList) && len(entriesOf(was)) > 0 && !bytes.HasPrefix(got, bytes.TrimSuffix(was, []byte("</urlset>\n"))) {
					rt.Fatalf("%s was open and has changed behind its readers:\n%s\n%s", it.Path, was, got)
				}
				open[it.Path] = got
			}
		}
		once := newPublisher(t, history(every, content).fill("main", total))
		items, err := once.Plan(t.Context(), "main")
		if err != nil {
			rt.Fatal(err)
		}
		for _, it := range items {
			if got, _ := get(t, once, it.Path, false); !bytes.Equal(got, open[it.Path]) {
				rt.Fatalf("%s in %v steps:\n%s\nat once:\n%s", it.Path, steps, open[it.Path], got)
			}
		}
		if len(items) != len(open) {
			rt.Fatalf("%d documents in steps, %d at once", len(open), len(items))
		}
	})
}

// entries gives the url elements of a list, in order.
func entriesOf(doc []byte) []string {
	parts := strings.Split(string(doc), " <url>\n")
	if len(parts) < 2 {
		return nil
	}
	parts = parts[1:]
	parts[len(parts)-1] = strings.TrimSuffix(parts[len(parts)-1], "</urlset>\n")
	return parts
}

// All segments together are the window, when it holds them all, and the window
// is in every case their end, whole segments.
func TestWindow(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 47)
	p := newPublisher(t, l)
	var all []string
	for n := 1; n <= 5; n++ {
		doc, _ := get(t, p, fmt.Sprintf("/sets/main/changelist/%d.xml", n), false)
		all = append(all, entriesOf(doc)...)
	}
	window, meta := get(t, p, "/sets/main/changelist.xml", false)
	if got := entriesOf(window); strings.Join(got, "") != strings.Join(all, "") || len(got) != 44 {
		t.Errorf("the window has %d entries, the segments %d", len(got), len(all))
	}
	if meta.Immutable || bytes.Contains(window, []byte("until=")) || bytes.Contains(window, []byte(`rel="index"`)) {
		t.Errorf("the window has an end or an index:\n%.600s", window)
	}
}

func TestWindowRule(t *testing.T) {
	segment := func(n, entries int, weight int64, open bool) event.Segment {
		s := event.Segment{N: n, From: event.Micros(n), Until: event.Micros(n + 1), Events: entries, Entries: entries, Weight: weight,
			First: event.Seq(n*100000 + 1), Last: event.Seq(n*100000 + entries)}
		if open {
			s.Until = 0
		}
		if entries == 0 {
			s.First, s.Last = 0, 0
		}
		return s
	}
	for _, c := range []struct {
		name     string
		segments []event.Segment
		from     int // number of the first segment in the window
		entries  int
		events   event.Range
	}{
		{"new set", []event.Segment{segment(1, 0, 0, true)}, 1, 0, event.Range{}},
		{"open and empty after closed", []event.Segment{segment(1, 5, 9, false), segment(2, 0, 0, true)}, 1, 5, event.Range{After: 100000, Upto: 100005}},
		{"exactly full", []event.Segment{segment(1, 1, 1, false), segment(2, 40000, 1, false), segment(3, 10000, 1, true)}, 2, 50000,
			event.Range{After: 200000, Upto: 310000}},
		{"one too many", []event.Segment{segment(1, 40001, 1, false), segment(2, 10000, 1, true)}, 2, 10000, event.Range{After: 200000, Upto: 210000}},
		{"too heavy", []event.Segment{segment(1, 1, 1, false), segment(2, 1, 40e6, false), segment(3, 1, 10e6, true)}, 3, 1, event.Range{After: 300000, Upto: 300001}},
		{"a heavy open one stays", []event.Segment{segment(1, 1, 1, false), segment(2, 1, 60e6, true)}, 2, 1, event.Range{After: 200000, Upto: 200001}},
		{"nothing beyond what does not fit", []event.Segment{segment(1, 1, 1, false), segment(2, 50000, 1, false), segment(3, 1, 1, true)}, 3, 1,
			event.Range{After: 300000, Upto: 300001}},
	} {
		it := changeListWindow(event.Set{Name: "main"}, c.segments)
		if it.From != event.Micros(c.from) || it.Entries != c.entries || it.Events != c.events || it.Until != 0 || it.Closed {
			t.Errorf("%s: got from %d, %d entries, events %+v", c.name, it.From, it.Entries, it.Events)
		}
	}
}

// A Resource List is the Change Lists played through.
func TestResourceListIsTheChangesPlayed(t *testing.T) {
	for _, content := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		l := history(7, content)
		p := newPublisher(t, l)
		for step := range 12 {
			l.fill("main", step)
			state := map[string]bool{}
			segments, _ := l.Segments(t.Context(), "main")
			for _, s := range segments {
				doc, _ := get(t, p, changeListPath("main", s.N), false)
				for _, e := range entriesOf(doc) {
					loc := between(e, "<loc>", "</loc>")
					switch change := between(e, `change="`, `"`); {
					case change != "created" && !state[loc], change == "created" && state[loc]:
						t.Fatalf("%v: %s is %s, present %v", content, loc, change, state[loc])
					case change == "deleted":
						delete(state, loc)
					default:
						state[loc] = true
					}
				}
			}
			list, _ := get(t, p, "/sets/main/resourcelist.xml", false)
			entries := entriesOf(list)
			for _, e := range entries {
				if loc := between(e, "<loc>", "</loc>"); !state[loc] {
					t.Fatalf("%v: %s is listed and was not created", content, loc)
				}
			}
			if len(entries) != len(state) {
				t.Fatalf("%v: %d listed, %d after the changes", content, len(entries), len(state))
			}
		}
	}
}

func between(s, after, before string) string {
	_, s, _ = strings.Cut(s, after)
	s, _, _ = strings.Cut(s, before)
	return s
}

func TestRenderRefusesAShortList(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	l.sets["main"].events = append([]event.Event{}, l.sets["main"].events[1:]...)
	p := newPublisher(t, l)
	for _, path := range []string{"/sets/main/changelist/1.xml", "/sets/main/changelist.xml", "/sets/main/feed/1.atom"} {
		doc, err := p.Document(t.Context(), path, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := doc.Open(); err == nil || !strings.Contains(err.Error(), "the log may be damaged") {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestRenderPassesTheLogsErrorOn(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	l.fail = errors.New("the disk is gone")
	p := newPublisher(t, l)
	for _, path := range []string{"/sets/main/changelist/1.xml", "/sets/main/resourcelist.xml", "/sets/main/feed.atom", "/sets/main/feed/1.atom", "/sets/main/complete.atom"} {
		for _, gz := range []bool{false, true} {
			doc, err := p.Document(t.Context(), path, gz)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := doc.Open(); !errors.Is(err, l.fail) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %v", path, err)
			}
		}
	}
}
