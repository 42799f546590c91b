package audit

import (
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// What differs between two states of a record, and what does not count.
func TestCompare(t *testing.T) {
	const sum, other = "sha-256:00000000000000000000000000000000000000000000000000000000000000aa", "sha-256:00000000000000000000000000000000000000000000000000000000000000bb"
	said := func(change func(*eventlog.SourceRecord)) *eventlog.SourceRecord {
		s := &eventlog.SourceRecord{Record: "urn:r", Known: true, Alive: true, Live: true, Authority: true, Observation: event.Observation{
			Record: "urn:r", Title: "A map", Modified: event.StampFromNanos(1e9), Claim: 1, Categories: []event.Category{{Term: "maps"}, {Term: "old"}},
			Representations: []event.Representation{
				{Href: "http://s.example/r", Type: "text/xml", Length: 7, Hash: sum},
				{Href: "http://s.example/r.html", Type: "text/html", Length: 9, Hash: sum},
			}}}
		if change != nil {
			change(s)
		}
		return s
	}
	rep := func(change func(*event.Representation)) func(*eventlog.SourceRecord) {
		return func(s *eventlog.SourceRecord) { change(&s.Observation.Representations[0]) }
	}
	obs := func(change func(*event.Observation)) func(*eventlog.SourceRecord) {
		return func(s *eventlog.SourceRecord) { change(&s.Observation) }
	}
	later := obs(func(o *event.Observation) { o.Modified, o.Claim, o.Title = event.StampFromNanos(2e9), 2, "A later map" })
	describes := func(inSet bool) func(*eventlog.SourceRecord) {
		return obs(func(o *event.Observation) {
			o.Links = []event.Link{{Rel: event.RelDescribes, Href: "http://s.example/x", Record: "urn:x", InSet: inSet}}
		})
	}
	for _, c := range []struct {
		name        string
		kind        string
		content     event.Content
		here, there func(*eventlog.SourceRecord)
		want        string // kinds
	}{
		{name: "nothing"},
		{name: "modified since: the rest follows from it", there: later, want: "stale"},
		{name: "a later time that is known already", there: obs(func(o *event.Observation) { o.Modified = event.StampFromNanos(2e9) })},
		{name: "an earlier time", there: obs(func(o *event.Observation) { o.Modified, o.Claim = event.StampFromNanos(5), 2 })},
		{name: "no time here", here: obs(func(o *event.Observation) { o.Modified = event.Stamp{}; o.Claim = 3 }), want: "stale"},
		{name: "hash", there: rep(func(r *event.Representation) { r.Hash = other }), want: "hash"},
		{name: "no hash stated", there: rep(func(r *event.Representation) { r.Hash = "" })},
		{name: "one of several hashes", there: rep(func(r *event.Representation) { r.Hash = "md5:00 " + sum })},
		{name: "length and hash", there: rep(func(r *event.Representation) { r.Hash, r.Length = other, 8 }), want: "hash length"},
		{name: "a length is a hint in Atom", kind: harvest.AtomPMH, there: rep(func(r *event.Representation) { r.Length = 8 })},
		{name: "no length stated", there: rep(func(r *event.Representation) { r.Length = event.NoLength })},
		{name: "those of a coding", there: rep(func(r *event.Representation) { r.Hash, r.Length, r.Encoding = other, 3, "gzip" })},
		{name: "type", there: rep(func(r *event.Representation) { r.Type = "application/xml" }), want: "type"},
		{name: "no type stated", there: rep(func(r *event.Representation) { r.Type = "" })},
		{name: "a type is a guess in a legacy feed", kind: harvest.Feed, there: rep(func(r *event.Representation) { r.Type = "text/plain" })},
		{name: "language", there: rep(func(r *event.Representation) { r.Hreflang = "de" }), want: "metadata"},
		{name: "another place", there: rep(func(r *event.Representation) { r.Href = "http://t.example/r" }), want: "representations representations"},
		{name: "order", there: obs(func(o *event.Observation) {
			r := o.Representations
			r[0], r[1] = r[1], r[0]
			o.Categories[0], o.Categories[1] = o.Categories[1], o.Categories[0]
		})},
		{name: "title", there: obs(func(o *event.Observation) { o.Title = "Maps" }), want: "metadata"},
		{name: "original", there: obs(func(o *event.Observation) { o.Via.Href = "http://o.example/r" }), want: "metadata"},
		{name: "original in another format", here: obs(func(o *event.Observation) {
			o.Via.Href = "http://o.example/oai?verb=GetRecord&identifier=1&metadataPrefix=mods"
		}),
			there: obs(func(o *event.Observation) {
				o.Via.Href = "http://o.example/oai?verb=GetRecord&identifier=1&metadataPrefix=oai_dc"
			})},
		{name: "a category twice", there: obs(func(o *event.Observation) { o.Categories = append(o.Categories, o.Categories[0]) })},
		{name: "label of a category", there: obs(func(o *event.Observation) { o.Categories[1].Label = "Old" }), want: "metadata"},
		{name: "scheme of a category", there: obs(func(o *event.Observation) { o.Categories[1].Scheme = "urn:s" }), want: "metadata"},
		{name: "categories", there: obs(func(o *event.Observation) { o.Categories = o.Categories[:1] }), want: "metadata"},
		{name: "a link", there: describes(true), want: "metadata"},
		{name: "whose target the set has or not", here: describes(true), there: describes(false)},
		{name: "a link that is not published", there: obs(func(o *event.Observation) { o.Links = []event.Link{{Rel: "collection", Href: "http://s.example/c"}} })},
		{name: "redirect: what was stated", content: event.Redirect, there: rep(func(r *event.Representation) { r.Hash, r.Length = "", event.NoLength }), want: "hash length"},
		{name: "reference: an alternate that is no URI at the Source", content: event.Reference, here: rep(func(r *event.Representation) { r.Href = "http://s.example/r%5B1%5D" }),
			there: rep(func(r *event.Representation) { r.Href = "http://s.example/r[1]" })},
		{name: "reference: the URI", content: event.Reference, there: obs(func(o *event.Observation) { o.Loc = "http://s.example/other" }), want: "metadata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := compared{kind: harvest.ResourceSync, content: event.Mirror, here: said(c.here), there: said(c.there)}
			if c.kind != "" {
				a.kind = c.kind
			}
			if c.content != 0 {
				a.content = c.content
			}
			a.compare()
			var got []string
			for _, f := range a.found {
				got = append(got, string(f.Kind))
				if f.Found == f.Expected {
					t.Errorf("it says %+v", f)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q: %+v", got, c.want, a.found)
			}
		})
	}
}

func TestOrdinals(t *testing.T) {
	var o ordinals
	const set = int64(3) << 32
	for _, n := range []int64{1, 64, 5000, 1_000_000} {
		o.add(set | n)
	}
	for n := range int64(1_100_000) {
		if want := n == 1 || n == 64 || n == 5000 || n == 1_000_000; o.has(set|n) != want {
			t.Fatalf("%d: %t", n, !want)
		}
	}
	if len(o) > 40_000 {
		t.Errorf("%d words for a million ordinals", len(o))
	}
}
