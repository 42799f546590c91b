package daemon_test

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
)

// origin is where records come from, in one protocol or the other.
type origin interface {
	put(t tale, alive, known bool)
	touch(name string, at time.Time)
	remove(name string, at time.Time, bury bool)
	closeList()
	// history is what the origin's own history says of each record, as a bridge
	// in this mode tells it.
	history(fetches bool, prefer string) recordStates
	// source is how a bridge harvests it; hashed reports whether it states hashes.
	source() string
	hashed() bool
}

// tale is what a record is made of.
type tale struct {
	name, id, title string
	formats         []fixtures.Format
	at              time.Time
	via             string
	viaAt           time.Time
	more            int // index into moreOf
}

// moreOf is what else an entry may say, and how recordState.more has it.
var moreOf = [...]struct{ xml, words string }{
	{`<link rel="license" href="http://licence.example/?a&amp;b"/>`, "license http://licence.example/?a&b"},
	{`<category term="maps" scheme="urn:s"/><category term="old"/><rights xml:lang="en">"ours" &amp; theirs</rights>`, `category maps urn:s, category old , rights "ours" & theirs en`},
	{`<published>2020-01-01T00:00:00.5Z</published><author><name>A &lt;B></name></author><link rel="license" href="http://licence.example/2"/>`,
		"license http://licence.example/2, author A <B>, published 2020-01-01T00:00:00.5Z"},
}

// atomOrigin is an Atom-PMH provider.
type atomOrigin struct {
	*fixtures.Provider
	url   string
	whole bool            // it is a complete feed
	gone  map[string]bool // records with tombstones, which say no title
}

func newAtomOrigin(t *testing.T, o fixtures.Options) *atomOrigin {
	p := fixtures.New(o)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return &atomOrigin{p, server.URL, o.Complete, map[string]bool{}}
}

func (o *atomOrigin) source() string { return "atompmh:" + o.url + fixtures.Subscription }
func (o *atomOrigin) hashed() bool   { return false }

func (o *atomOrigin) closeList() {
	if !o.whole {
		o.CloseArchive()
	}
}

func (o *atomOrigin) put(t tale, alive, known bool) {
	r := fixtures.Record{Name: t.name, ID: t.id, Title: t.title, Formats: t.formats, Extra: moreOf[t.more].xml, Stamp: t.at}
	switch {
	case alive:
		o.Update(r)
	case known:
		o.Recreate(r)
	default:
		o.Create(r)
	}
}

func (o *atomOrigin) touch(name string, at time.Time) { o.Touch(name, at) }

func (o *atomOrigin) remove(name string, at time.Time, bury bool) {
	o.gone[name] = bury
	if bury {
		o.Bury(name, at)
	} else {
		o.Delete(name, at)
	}
}

func (o *atomOrigin) history(fetches bool, prefer string) recordStates {
	b, content := recordStates{}, map[string]string{}
	for _, c := range o.History() {
		p := recordState{alive: c.Kind != fixtures.Deleted, title: c.Title, modified: nanos(c.Stamp)}
		if c.Title == c.ID || !p.alive && o.gone[c.Name] {
			p.title = ""
		}
		if !p.alive && o.whole { // absence says neither
			p.title, p.modified = "", ""
		}
		for _, a := range c.Alternates {
			p.images = append(p.images, image{a.Type, a.SHA256}.typed())
			content[a.SHA256] = o.url + a.Href
		}
		for _, m := range moreOf {
			if m.xml == c.Extra {
				p.more = m.words
			}
		}
		p = p.prefers(prefer)
		if p.alive {
			first := p.images[0]
			p.via, p.viaType = content[first.sum], first.kind // what is not stated is asked for
			if fetches {
				p.viaHash = "sha-256:" + first.sum
			}
		}
		b[c.ID] = p
	}
	return b
}

func nanos(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// listOrigin is a ResourceSync Source.
type listOrigin struct {
	*fixtures.Source
	url   string
	carry bool
	whole bool // it has no Change Lists
}

func newListOrigin(t *testing.T, o fixtures.SourceOptions) *listOrigin {
	s := fixtures.NewSource(o)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.SetBase(server.URL)
	return &listOrigin{s, server.URL, o.Carry, o.ChangeLists == fixtures.NoChangeLists}
}

func (o *listOrigin) source() string { return "resourcesync:" + o.url + fixtures.CapabilityList }
func (o *listOrigin) hashed() bool   { return true }
func (o *listOrigin) closeList()     { o.CloseChangeList() }

func (o *listOrigin) put(t tale, alive, known bool) {
	first := t.formats[0]
	r := fixtures.Resource{Name: t.name, ID: t.id, Title: t.title, Type: first.Type, Body: first.Body, Alternates: t.formats[1:],
		LastMod: t.at, Stamp: t.at.Truncate(time.Microsecond), Via: t.via, ViaModified: t.viaAt}
	switch {
	case alive:
		o.Update(r)
	case known:
		o.Recreate(r)
	default:
		o.Create(r)
	}
}

func (o *listOrigin) touch(name string, at time.Time)             { o.Touch(name, at) }
func (o *listOrigin) remove(name string, at time.Time, bury bool) { o.Delete(name, at) }

func (o *listOrigin) history(fetches bool, prefer string) recordStates {
	b := recordStates{}
	for _, c := range o.History() {
		p := recordState{alive: c.Kind != fixtures.Deleted, modified: nanos(c.LastMod), via: c.Via}
		if o.carry {
			p.title = c.Title
		}
		if !p.alive {
			p.modified = nanos(c.Stamp)
		}
		if !c.ViaModified.IsZero() {
			p.modified = nanos(c.ViaModified)
		}
		if !p.alive && o.whole { // absence says neither
			p.title, p.modified = "", ""
		}
		content := map[string]string{}
		for _, a := range c.Representations {
			p.images = append(p.images, image{a.Type, a.SHA256}.typed())
			content[a.SHA256] = o.url + a.Href
		}
		p = p.prefers(prefer)
		if p.alive && p.via == "" {
			first := p.images[0]
			p.via, p.viaType, p.viaHash = content[first.sum], first.stated(fetches), "sha-256:"+first.sum
		}
		b[c.ID] = p
	}
	return b
}

// randomOrigin has an origin go through whatever it likes.
type randomOrigin struct {
	rt     *rapid.T
	origin origin
	now    time.Time
	names  []string
	alive  map[string]bool
	count  int
}

func newRandomOrigin(rt *rapid.T, o origin) *randomOrigin {
	s := &randomOrigin{rt: rt, origin: o, now: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), alive: map[string]bool{}}
	s.write("anchor") // stays, so that the origin is never empty
	return s
}

// tick is the next stamp, with nanoseconds: in most cases some time later.
func (s *randomOrigin) tick() time.Time {
	s.now = s.now.Add(rapid.SampledFrom([]time.Duration{time.Microsecond, 1_234_567, time.Second, 25*time.Hour + 1}).Draw(s.rt, "later"))
	return s.now
}

// change makes one thing happen.
func (s *randomOrigin) change() {
	what := rapid.SampledFrom([]string{"create", "create", "update", "update", "delete", "delete", "recreate", "touch", "close"}).Draw(s.rt, "change")
	pick := func(alive bool) string {
		names := slices.DeleteFunc(slices.Clone(s.names[1:]), func(n string) bool { return s.alive[n] != alive })
		if len(names) == 0 {
			return ""
		}
		return rapid.SampledFrom(names).Draw(s.rt, "record")
	}
	name := ""
	switch what {
	case "create":
		name = fmt.Sprint("r", len(s.names))
	case "recreate":
		name = pick(false)
	case "close":
		s.origin.closeList()
		return
	default:
		name = pick(true)
	}
	switch {
	case name == "":
	case what == "delete":
		s.alive[name] = false
		s.origin.remove(name, s.tick(), rapid.Bool().Draw(s.rt, "bury"))
	case what == "touch":
		s.origin.touch(name, s.tick())
	default:
		s.write(name)
	}
}

// write creates a record, updates it, or brings it back.
func (s *randomOrigin) write(name string) {
	known := slices.Contains(s.names, name)
	t := tale{name: name, at: s.tick()}
	if !known { // else it is as it was
		s.names = append(s.names, name)
		t.id = rapid.SampledFrom(ids(name)).Draw(s.rt, "identifier")
	}
	s.count++
	titles := []string{fmt.Sprint("Title ", s.count), `<b>"Tom" & 'Jerry'</b> ]]>`, "Żółw ☃ 𝄞", "&amp;lt;"}
	if _, ok := s.origin.(*atomOrigin); ok { // in a feed, the title of what has none
		titles = append(titles, t.id)
	}
	t.title = rapid.SampledFrom(titles).Draw(s.rt, "title")
	t.formats = s.formats()
	t.more = rapid.IntRange(0, len(moreOf)-1).Draw(s.rt, "more")
	if rapid.IntRange(0, 3).Draw(s.rt, "has an original") == 0 {
		t.via = rapid.SampledFrom([]string{"http://elsewhere.example/1?a=1&b=2", "http://elsewhere.example/" + name}).Draw(s.rt, "original")
		t.viaAt = s.now.Add(-36*time.Hour - 7)
	}
	s.origin.put(t, s.alive[name], known)
	s.alive[name] = true
}

// ids are identifiers that a record may have.
func ids(name string) []string {
	return []string{"urn:x-test:" + name, "https://data.example/" + name + "?v=1&w=<2>", "no IRI & " + name, "10.1234/" + name}
}

// formats are a row of them, each with content that was never seen before.
func (s *randomOrigin) formats() []fixtures.Format {
	rows := [][]fixtures.Format{
		{{Ext: "xml", Type: "application/xml"}},
		{{Ext: "atom", Type: "application/atom+xml"}, {Ext: "rdf", Type: "application/rdf+xml"}, {Ext: "txt", Type: "text/plain"}},
		{{Ext: "1.xml", Type: "text/xml"}, {Ext: "2.xml", Type: "text/xml"}, {Ext: "3.xml", Type: "text/xml"}},
		{{Ext: "json", Type: "application/vnd.example+json; v=1"}, {Ext: "raw"}, {Ext: "raw2"}},
	}
	if _, ok := s.origin.(*atomOrigin); ok { // a fixtures.Source has a type for each first one
		rows = append(rows, []fixtures.Format{{Ext: "raw"}, {Ext: "txt", Type: "text/plain"}})
	}
	row := slices.Clone(rapid.SampledFrom(rows).Draw(s.rt, "formats"))
	for i := range row {
		row[i].Body = fmt.Appendf(nil, "content %d.%d", s.count, i)
	}
	return row
}
