package eventlog_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// commits counts the transactions in the log's write-ahead file: of each the
// last frame says how large the database is then.
func commits(t *testing.T, folder string) int {
	t.Helper()
	wal, err := os.ReadFile(filepath.Join(folder, eventlog.FileName+"-wal"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	const header, frameHeader = 32, 24
	if len(wal) < header {
		return 0
	}
	page, n := int(binary.BigEndian.Uint32(wal[8:])), 0
	for at := header; at+frameHeader+page <= len(wal); at += frameHeader + page {
		if binary.BigEndian.Uint32(wal[at+4:]) != 0 && string(wal[at+8:at+16]) == string(wal[16:24]) {
			n++
		}
	}
	return n
}

// TestConfigureIsOneTransaction: opening with many Sources costs one
// transaction, and none when nothing has changed (D126).
func TestConfigureIsOneTransaction(t *testing.T) {
	folder := t.TempDir()
	config := func() []eventlog.SetConfig {
		var sets []eventlog.SetConfig
		for i := range 10 {
			s := eventlog.SetConfig{Name: fmt.Sprintf("s%d", i), Content: event.Reference}
			for j := range 20 {
				s.Sources = append(s.Sources, eventlog.SourceConfig{Kind: "feed", URL: fmt.Sprintf("http://h.example/%d/%d", i, j)})
			}
			sets = append(sets, s)
		}
		return sets
	}
	l := mustOpen(t, folder, eventlog.Options{})
	before := commits(t, folder)
	first := config()
	if _, err := l.Configure(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if n := commits(t, folder) - before; n != 1 {
		t.Errorf("200 Sources were made in %d transactions, want 1", n)
	}
	before = commits(t, folder)
	second := config()
	if _, err := l.Configure(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if n := commits(t, folder) - before; n != 0 {
		t.Errorf("the same configuration again took %d transactions, want 0", n)
	}
	for i := range first {
		if !slices.Equal(first[i].Sources, second[i].Sources) {
			t.Errorf("set %s: other Sources the second time: %v, then %v", first[i].Name, first[i].Sources, second[i].Sources)
		}
	}
	closed(t, l)
}

// TestConfigureRanks: Sources speak in the order of the configuration, and those
// that it no longer has come last.
func TestConfigureRanks(t *testing.T) {
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer closed(t, l)
	for _, urls := range [][]string{{"a", "b", "c"}, {"c", "a", "b"}, {"d", "b"}, {"a"}, {"b", "d", "a", "c"}, {"c", "c"}} {
		set := eventlog.SetConfig{Name: "main", Content: event.Reference}
		for _, u := range urls {
			set.Sources = append(set.Sources, eventlog.SourceConfig{Kind: "feed", URL: u})
		}
		if _, err := l.Configure(t.Context(), []eventlog.SetConfig{set}); err != nil {
			t.Fatal(err)
		}
		stored, err := l.Sources(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		ranks := map[int]bool{}
		for _, s := range stored {
			got = append(got, s.URL)
			if ranks[s.Rank] {
				t.Errorf("after %v: two Sources have rank %d", urls, s.Rank)
			}
			ranks[s.Rank] = true
		}
		want := slices.Compact(slices.Clone(urls))
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("configured %v, the order is %v", urls, got)
		}
	}
}

// A Source that moves is found by its name: the one that is configured, else the newest,
// whatever others had the name before.
func TestConfigureMoved(t *testing.T) {
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer l.Close()
	const sets = 50
	// configure gives all sets the same Sources, and returns the numbers of those at one URL.
	configure := func(url string, sources ...eventlog.SourceConfig) (ids []event.SourceID) {
		t.Helper()
		var all []eventlog.SetConfig
		for i := range sets {
			all = append(all, eventlog.SetConfig{Name: fmt.Sprintf("s%d", i), Content: event.Reference, Whole: true, Sources: slices.Clone(sources)})
		}
		if _, err := l.Configure(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			for _, src := range s.Sources {
				if src.URL == url {
					ids = append(ids, src.ID)
				}
			}
		}
		return ids
	}
	source := func(name, url string) eventlog.SourceConfig {
		return eventlog.SourceConfig{Kind: "feed", Name: name, URL: url}
	}
	const a, b, c, d, e = "http://h.example/a", "http://h.example/b", "http://h.example/c", "http://h.example/d", "http://h.example/e"
	other := configure(b, source("other", b))
	first := configure(a, source("other", b), source("campus", a))
	configure(b, source("other", b))
	configure(b, source("campus", b))
	if moved := configure(c, source("campus", c)); !slices.Equal(moved, other) {
		t.Errorf("at c are %v, want those that were at b: %v", moved, other)
	}
	configure(c)
	if moved := configure(d, source("campus", d)); !slices.Equal(moved, first) {
		t.Errorf("at d are %v, want the newest, those that were at a: %v", moved, first)
	}
	if moved := configure(e, source("campus", e), source("campus2", d)); !slices.Equal(moved, other) {
		t.Errorf("at e are %v, want those that were at c: %v", moved, other)
	}
}

// TestSetsAreBounded: a set whose number is too large for the ids of its events is not
// made; the last one that is made can be read.
func TestSetsAreBounded(t *testing.T) {
	const most = 1<<23 - 2
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	if err := errors.Join(add(l, src, 0, 2), l.EnsureSet(ctx, eventlog.SetConfig{Name: "other", Content: event.Reference}),
		l.Exec(ctx, fmt.Sprintf("UPDATE sets SET id = %d WHERE name = 'other'; UPDATE segment SET set_id = %[1]d WHERE set_id = 2", most))); err != nil {
		t.Fatal(err)
	}
	other, err := l.EnsureSource(ctx, "other", "atompmh", "https://other.example/", 0)
	if err != nil {
		t.Fatal(err)
	}
	must(t, add(l, other, 0, 3))
	sound(t, l)
	for set, want := range map[string]int{"": 5, "other": 3} {
		if events, err := eventsIn(l, set); err != nil || len(events) != want {
			t.Errorf("set %q: %d events, %v, want %d", set, len(events), err, want)
		}
	}
	if ev, err := l.Event(ctx, 4); err != nil || ev.Set != "other" {
		t.Errorf("event 4: %v, %v", ev, err)
	}
	if err := l.EnsureSet(ctx, eventlog.SetConfig{Name: "too many", Content: event.Reference}); err == nil || !strings.Contains(err.Error(), "8 million sets") {
		t.Errorf("another set: %v", err)
	}
	sound(t, l)
}

// TestDeriveSet: a set of resources keeps its set, and two never share one.
func TestDeriveSet(t *testing.T) {
	ctx := t.Context()
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer l.Close()
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "copy-a"}))
	for _, step := range []struct{ template, url, names, others, want string }{
		{"copy", "1", "copy-a copy-a-1", "", "copy-a-1"},       // there is a set of that name
		{"copy", "1", "copy-b copy-b-1", "", "copy-a-1"},       // it has one
		{"copy", "2", "copy-b copy-b-2", "", "copy-b"},         //
		{"copy", "3", "copy-b copy-b-3", "", "copy-b-3"},       // that of another
		{"other", "2", "copy-b copy-b-2", "", "copy-b-2"},      // also of another template
		{"copy", "4", "copy-c copy-c-4", "copy-c", "copy-c-4"}, // configured, and not made yet
		{"copy", "5", "copy-a copy-b", "", ""},
	} {
		got, err := l.DeriveSet(ctx, step.template, step.url, strings.Fields(step.names), strings.Fields(step.others))
		if got != step.want || (err == nil) != (step.want != "") {
			t.Errorf("%+v: %q, %v", step, got, err)
		}
	}
	all, err := l.DerivedSets(ctx, "copy")
	if err != nil || len(all) != 4 || all[0].Name != "copy-a-1" || all[0].URL != "1" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestSetsReadOnce: the sets are read again when something was committed, and only then; what a
// caller does with them changes nothing.
func TestSetsReadOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	sets := func(want int, last event.Seq) {
		t.Helper()
		all, err := l.Sets(ctx)
		if err != nil || len(all) != want || all[0].Name != "main" || all[0].Last != last {
			t.Fatalf("%+v, %v", all, err)
		}
		all[0].Name = "changed"
	}
	sets(1, 0)
	must(t, add(l, src, 0, 2))
	sets(1, 2)
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "other", Content: event.Reference}))
	sets(2, 2)
	must(t, l.Exec(ctx, "UPDATE sets SET title = 'damaged' WHERE name = 'other'"))
	sets(2, 2)
	must(t, add(l, src, 2, 1))
	if all, err := l.Sets(ctx); err == nil {
		t.Errorf("a damaged set is read: %+v", all)
	}
}

// Where a Source writes an address that is no URI, events are logged with the URI of it, so that
// documents name the original by that. A record that was logged without, as formerly, is no event
// for it alone.
func TestOriginalsAsURIs(t *testing.T) {
	for _, content := range []event.Content{event.Mirror, event.Redirect} {
		l, src := filled(t, t.TempDir(), content)
		defer l.Close()
		stamp := int64(0)
		report := func(title, href, via string) {
			t.Helper()
			stamp++
			it := &event.Item{Observation: event.Observation{Record: "urn:a", Title: title, Order: event.StampFromNanos(stamp), Fetched: true, Via: event.Link{Href: via, Length: event.NoLength},
				Representations: []event.Representation{{Href: href, Type: "text/html", Length: 1, Hash: event.HashOf([32]byte{1})}}}}
			p, err := l.Progress(t.Context(), src)
			must(t, err)
			_, err = l.Append(t.Context(), &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: true, Items: []*event.Item{it}})
			must(t, err)
		}
		last := func() *event.Event {
			t.Helper()
			ev, err := l.Record(t.Context(), "main", event.Key("urn:a"))
			must(t, err)
			return ev
		}
		const href, uri = "https://h.example/a b[1]?ü", "https://h.example/a%20b%5B1%5D?%C3%BC"
		report("one", href, "")
		l.LogFormerly(t, content, func(o *event.Observation) { o.Loc = "" })
		report("one", href, "")
		if ev := last(); ev.Seq != 1 || ev.Loc != "" {
			t.Errorf("%v: logged formerly: %+v", content, ev)
		}
		for i, c := range []struct{ title, href, via, loc, logged string }{
			{"two", href, "", uri, href}, {"two", href, "", uri, href}, {"three", uri, "", "", uri}, {"four", href, uri, "", uri}, {"five", href, href, uri, href},
			{"six", href, "https://o.example/c d", "", "https://o.example/c%20d"}, {"seven", href, "urn:c d", "", "urn:c d"},
		} {
			report(c.title, c.href, c.via)
			if ev := last(); ev.Title != c.title || ev.Loc != c.loc || ev.Via.Href != c.logged || ev.Seq != event.Seq(i+2-min(i, 1)) {
				t.Errorf("%v, %+v: logged as %+v", content, c, ev)
			}
		}
		// An original elsewhere, as it was logged formerly.
		report("eight", href, "https://o.example/c d")
		l.LogFormerly(t, content, func(o *event.Observation) { o.Via.Href = "https://o.example/c d" })
		report("eight", href, "https://o.example/c d")
		if ev := last(); ev.Seq != 8 || ev.Via.Href != "https://o.example/c d" {
			t.Errorf("%v: logged formerly: %+v", content, ev)
		}
	}
}

// The same goes for links to other resources, but for a profile, which is a name.
func TestLinksAsURIs(t *testing.T) {
	const raw, uri = "https://h.example/a b[1]?%zz", "https://h.example/a%20b%5B1%5D?%25zz"
	for _, content := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		l, src := filled(t, t.TempDir(), content)
		defer l.Close()
		stamp := int64(0)
		report := func(title string, deleted bool) []event.Link {
			t.Helper()
			stamp++
			it := &event.Item{Observation: event.Observation{Record: "urn:a", Title: title, Order: event.StampFromNanos(stamp), Deleted: deleted,
				Links: []event.Link{{Rel: event.RelProfile, Href: raw}, {Rel: event.RelLicense, Href: raw}, {Rel: event.RelCollection, Href: raw}, {Rel: event.RelLicense, Href: "https://h.example/"}}}}
			if !deleted {
				it.Fetched, it.Representations = true, []event.Representation{{Href: "https://h.example/a", Type: "text/html", Length: 1, Hash: event.HashOf([32]byte{1})}}
			}
			given := slices.Clone(it.Links)
			p, err := l.Progress(t.Context(), src)
			must(t, err)
			_, err = l.Append(t.Context(), &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: true, Items: []*event.Item{it}})
			must(t, err)
			ev, err := l.Record(t.Context(), "main", event.Key("urn:a"))
			must(t, err)
			if it.Claim != (&event.Observation{Title: title, Deleted: deleted, Representations: it.Representations, Links: given}).ClaimOf() {
				t.Errorf("%v: the claim is not that of the document", content)
			}
			return ev.Links
		}
		hrefs := func(links []event.Link) (all []string) {
			for i := range links {
				all = append(all, links[i].Href)
			}
			return all
		}
		want := []string{raw, uri, uri, "https://h.example/"}
		if got := hrefs(report("one", false)); !slices.Equal(got, want) {
			t.Errorf("%v: logged %q", content, got)
		}
		l.LogFormerly(t, content, func(o *event.Observation) {
			o.Links[1].Href, o.Links[2].Href = raw, raw
		})
		if got := hrefs(report("one", false)); !slices.Equal(got, []string{raw, raw, raw, "https://h.example/"}) {
			t.Errorf("%v: logged formerly, and then %q", content, got)
		}
		if last, err := l.LastSeq(t.Context()); err != nil || last != 1 {
			t.Errorf("%v: event %d, %v", content, last, err)
		}
		for _, deleted := range []bool{false, true} {
			if got := hrefs(report("two", deleted)); !slices.Equal(got, want) {
				t.Errorf("%v: then logged %q", content, got)
			}
		}
	}
}

// In mode reference, where documents have the addresses of the other representations too, events are
// logged with the URIs of these.
func TestAlternatesAsURIs(t *testing.T) {
	const raw, uri, other = "https://h.example/a b[1]?%zz", "https://h.example/a%20b%5B1%5D?%25zz", "https://h.example/c[2]"
	for content, want := range map[event.Content][]string{event.Redirect: {raw, raw + "2", other}, event.Reference: {raw, uri + "2", "https://h.example/c%5B2%5D"}} {
		l, src := filled(t, t.TempDir(), content)
		defer l.Close()
		stamp := int64(0)
		report := func(title string) (hrefs []string) {
			t.Helper()
			stamp++
			it := &event.Item{Observation: event.Observation{Record: "urn:a", Title: title, Order: event.StampFromNanos(stamp)}}
			for _, href := range []string{raw, raw + "2", other} {
				it.Representations = append(it.Representations, event.Representation{Href: href, Type: "text/html", Length: 1, Hash: event.HashOf([32]byte{1})})
			}
			claim := it.ClaimOf()
			p, err := l.Progress(t.Context(), src)
			must(t, err)
			_, err = l.Append(t.Context(), &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: true, Items: []*event.Item{it}})
			must(t, err)
			if it.Claim != claim {
				t.Errorf("%v: the claim is not that of the document", content)
			}
			ev, err := l.Record(t.Context(), "main", event.Key("urn:a"))
			must(t, err)
			for i := range ev.Representations {
				hrefs = append(hrefs, ev.Representations[i].Href)
			}
			return hrefs
		}
		if got := report("one"); !slices.Equal(got, want) {
			t.Errorf("%v: logged %q", content, got)
		}
		former := []string{raw, raw + "2", other}
		l.LogFormerly(t, content, func(o *event.Observation) {
			for i := range former {
				o.Representations[i].Href = former[i]
			}
		})
		if got := report("one"); !slices.Equal(got, former) {
			t.Errorf("%v: logged formerly, and then %q", content, got)
		}
		if last, err := l.LastSeq(t.Context()); err != nil || last != 1 {
			t.Errorf("%v: event %d, %v", content, last, err)
		}
		if got := report("two"); !slices.Equal(got, want) {
			t.Errorf("%v: then logged %q", content, got)
		}
	}
}
