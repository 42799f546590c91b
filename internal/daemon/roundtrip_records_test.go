package daemon_test

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// recordState is all that must survive a way through bridges.
type recordState struct {
	alive    bool
	title    string
	modified string // RFC 3339, nanoseconds
	// via is the original: its URL, and of a live record what is stated of it.
	via, viaHash, viaType string
	// images are the representations, the preferred one first.
	images []image
	// more is what few records have: licence, categories, rights, people, dates.
	more string
}

// image is a representation: its media type and the SHA-256 of what is served.
type image struct{ kind, sum string }

// words puts the representations but the preferred one into an order, which
// means nothing.
func (p recordState) words() string {
	if !p.alive {
		return fmt.Sprintf("deleted %q at %s, original %s", p.title, p.modified, p.via)
	}
	rest := slices.SortedFunc(slices.Values(p.images[1:]), func(a, b image) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.sum, b.sum)) })
	return fmt.Sprintf("%q of %s, original %s %q %q, preferred %v, others %v, with %s", p.title, p.modified, p.via, p.viaType, p.viaHash, p.images[0], rest, p.more)
}

// recordStates is what somebody has of each record, by its identifier.
type recordStates map[string]recordState

// observe is what becomes of a recordStates when everything is looked at: the rules of
// the log (I5, A14) in few words. stamped: the one who is looked at states no
// hashes, and nobody fetches.
func (b recordStates) observe(of recordStates, stamped bool) {
	for id, now := range of {
		old := b[id]
		switch {
		case !now.alive && old.alive:
			b[id] = recordState{title: cmp.Or(now.title, old.title), modified: cmp.Or(now.modified, old.modified), via: old.via}
		case now.alive && !old.is(now, stamped):
			b[id] = now
		}
	}
}

// is reports whether nothing that counts has changed.
func (p recordState) is(now recordState, stamped bool) bool {
	by := func(a, b image) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.sum, b.sum)) }
	return p.alive && p.title == now.title && p.via == now.via && (!stamped || p.modified == now.modified) &&
		slices.Equal(slices.SortedFunc(slices.Values(p.images), by), slices.SortedFunc(slices.Values(now.images), by))
}

// typed is what a bridge makes of types that nobody states: in a mirror they are
// those of the answers, and no feed has an alternate without a type (D13).
func (im image) typed() image {
	if im.kind == "" {
		im.kind = "application/octet-stream"
	}
	return im
}

// stated is the type that is stated of the original: where nobody fetches, none
// of what has none.
func (im image) stated(fetches bool) string {
	if !fetches && im.kind == "application/octet-stream" {
		return ""
	}
	return im.kind
}

// told is what the bridge tells at a URL: a complete feed says nothing of what is
// deleted but that it is not there.
func (r *relay) told(url string) recordStates {
	out := maps.Clone(r.has)
	for id, p := range out {
		if !p.alive && url == r.whole() {
			out[id] = recordState{}
		}
	}
	return out
}

// observe has the bridge look at what another one has.
func (r *relay) observe(of recordStates, stamped bool) {
	seen := recordStates{}
	for id, p := range of {
		p.images = slices.Clone(p.images)
		for i := range p.images {
			p.images[i] = p.images[i].typed()
		}
		seen[id] = p
	}
	r.has.observe(seen, stamped && !r.fetches)
}

// prefers puts the representation of a media type first.
func (p recordState) prefers(kind string) recordState {
	for i, im := range p.images {
		if kind != "" && strings.EqualFold(im.kind, kind) {
			p.images = slices.Concat([]image{im}, p.images[:i], p.images[i+1:])
			break
		}
	}
	return p
}

// wantPublished reads both protocols and compares them with what the bridge
// should have: every record, and the deletion of every record that it had.
func (r *relay) wantPublished(t faults) {
	t.Helper()
	want := r.has
	for how, got := range map[string]recordStates{"feeds": r.readFeeds(t), "lists": r.readLists(t)} {
		for _, id := range slices.Sorted(maps.Keys(want)) {
			if g, ok := got[id]; !ok || g.words() != want[id].words() {
				t.Errorf("the %s of %s: record %q is\n got %s\nwant %s", how, r.base, id, g.describe(ok), want[id].words())
			}
		}
		for id, g := range got {
			if _, ok := want[id]; !ok {
				t.Errorf("the %s of %s have a record %q too: %s", how, r.base, id, g.words())
			}
		}
	}
}

func (p recordState) describe(there bool) string {
	if !there {
		return "not there"
	}
	return p.words()
}

// readFeeds reads the archived feed of set main as any consumer may, checks it
// against the complete one, and gets every alternate.
func (r *relay) readFeeds(t faults) recordStates {
	t.Helper()
	docs := r.chain()
	r.checkChain(t, docs)
	r.checkComplete(t, docs, r.readFeed(r.setURL("complete.atom")))
	got := recordStates{}
	for id, e := range newest(docs) {
		p := recordState{title: e.Title[0]}
		if p.title == e.ID[0] { // which every entry without a title has
			p.title = ""
		}
		via := e.of("via")
		if len(via) != 1 {
			t.Fatalf("record %q has the originals %v", id, via)
		}
		p.via, p.viaHash, p.viaType, p.modified = via[0].Href, via[0].Hash, via[0].Type, cmp.Or(e.Modified, via[0].Modified)
		links := e.of("alternate")
		p.alive = len(links) > 0
		if p.alive && len(e.alternates()) != len(links) { // of one type several
			links = e.alternates()
		}
		for _, l := range links {
			p.images = append(p.images, stated(t, l.Href, l.Type, l.Hash))
		}
		if p.alive {
			p.more = e.more()
		}
		got[id] = p
	}
	return got
}

// more is what else an entry says.
func (e *feedEntry) more() string {
	var out []string
	for _, l := range e.of("license") {
		out = append(out, "license "+l.Href)
	}
	for _, c := range e.Categories {
		out = append(out, "category "+c.Term+" "+c.Scheme)
	}
	if e.Rights.Text != "" {
		out = append(out, "rights "+e.Rights.Text+" "+e.Rights.Language)
	}
	for _, name := range e.Authors {
		out = append(out, "author "+name)
	}
	if e.Published != "" {
		out = append(out, "published "+e.Published)
	}
	return strings.Join(out, ", ")
}

// more is the same of an entry of a list, as another bridge reads it.
func (e *carryingEntry) more(t faults) string {
	t.Helper()
	var d struct {
		Categories      []struct{ Term, Scheme string }
		Rights          struct{ Text, Lang string }
		Authors         []struct{ Name string }
		Published, Lang string
	}
	if e.Meta.Details != "" {
		if err := json.Unmarshal([]byte(e.Meta.Details), &d); err != nil {
			t.Errorf("details %s: %v", e.Meta.Details, err)
		}
	}
	f := feedEntry{Published: d.Published}
	for _, l := range linked(e.Links, "license") {
		f.Links = append(f.Links, feedLink{Rel: "license", Href: l.Href})
	}
	for _, c := range d.Categories {
		f.Categories = append(f.Categories, struct {
			Term   string `xml:"term,attr"`
			Scheme string `xml:"scheme,attr"`
		}(c))
	}
	f.Rights.Text, f.Rights.Language = d.Rights.Text, d.Rights.Lang
	for _, a := range d.Authors {
		f.Authors = append(f.Authors, a.Name)
	}
	return f.more()
}

// stated gets a representation, whose bytes must have the hash that is stated.
func stated(t faults, href, kind, hash string) image {
	t.Helper()
	im := image{kind, served(t, href)}.typed()
	for h := range strings.FieldsSeq(hash) {
		if sum, ok := strings.CutPrefix(h, "sha-256:"); ok && sum != im.sum {
			t.Errorf("%s serves %s, and %s is stated", href, im.sum, sum)
		}
	}
	return im
}

// The entries of a list with what only another bridge reads.
type (
	carryingList struct {
		URLs []carryingEntry `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 url"`
	}
	carryingEntry struct {
		Loc  string `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 loc"`
		Meta struct {
			ID    string `xml:"urn:x-bridge:terms:1 id,attr"`
			Title string `xml:"urn:x-bridge:terms:1 title,attr"`
			// When the record was modified, where the via does not say so (D12).
			Modified string `xml:"urn:x-bridge:terms:1 modified,attr"`
			Details  string `xml:"urn:x-bridge:terms:1 details,attr"`
			Change   string `xml:"change,attr"`
			Hash     string `xml:"hash,attr"`
			Type     string `xml:"type,attr"`
		} `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links []listLink `xml:"http://www.openarchives.org/rs/terms/ ln"`
	}
)

// readLists plays all Change Lists of set main, checks that against the Resource
// List, and gets every representation.
func (r *relay) readLists(t faults) recordStates {
	t.Helper()
	last := map[string]carryingEntry{}
	for _, e := range r.list(r.setURL("changelist-index.xml"), "sitemapindex", "changelist").Maps {
		for _, c := range r.entries(t, e.Loc) {
			last[c.record()] = c
		}
	}
	got, live := recordStates{}, map[string]string{}
	for id, e := range last {
		got[id] = e.recordState(t)
		if got[id].alive {
			live[id] = got[id].words()
		}
	}
	listed := map[string]string{}
	for _, e := range r.entries(t, r.setURL("resourcelist.xml")) {
		listed[e.record()] = e.recordState(t).words()
	}
	if !maps.Equal(live, listed) {
		t.Errorf("%s: the Change Lists come to\n%q\nand the Resource List has\n%q", r.base, live, listed)
	}
	return got
}

func (r *relay) entries(t faults, url string) []carryingEntry {
	t.Helper()
	var doc carryingList
	if err := xml.Unmarshal(r.get(url).body, &doc); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return doc.URLs
}

func (e *carryingEntry) record() string { return cmp.Or(e.Meta.ID, e.Loc) }

func (e *carryingEntry) recordState(t faults) recordState {
	t.Helper()
	p := recordState{alive: e.Meta.Change != "deleted", title: e.Meta.Title}
	via := linked(e.Links, "via")
	if len(via) != 1 {
		t.Fatalf("record %q has the originals %v", e.record(), via)
	}
	p.via, p.viaHash, p.viaType, p.modified = via[0].Href, via[0].Hash, via[0].Type, cmp.Or(e.Meta.Modified, via[0].Modified)
	if !p.alive {
		return p
	}
	p.images = append(p.images, stated(t, e.Loc, e.Meta.Type, e.Meta.Hash))
	for _, l := range linked(e.Links, "alternate") {
		p.images = append(p.images, stated(t, l.Href, l.Type, l.Hash))
	}
	p.more = e.more(t)
	return p
}
