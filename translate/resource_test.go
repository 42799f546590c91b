package translate

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

func TestFromResource(t *testing.T) {
	at := func(day int) resourcesync.Datetime {
		return resourcesync.Exact(time.Date(2026, 3, day, 0, 0, 0, 5, time.UTC))
	}
	stamp := func(day int) event.Stamp {
		s, _ := event.StampOf(time.Date(2026, 3, day, 0, 0, 0, 5, time.UTC))
		return s
	}
	const loc = "https://source.example/maps/1.xml"
	entry := func(change func(*resourcesync.Entry)) *resourcesync.Entry {
		e := &resourcesync.Entry{Loc: loc, LastMod: at(2), Metadata: resourcesync.Metadata{Change: "updated", Datetime: at(3), Hash: "md5:AB", Length: resourcesync.Bytes(0), Type: "text/xml"}}
		if change != nil {
			change(e)
		}
		return e
	}
	rep := event.Representation{Href: loc, Type: "text/xml", Length: 0, Hash: "md5:AB"}
	plain := func(change func(*event.Observation)) event.Observation {
		o := event.Observation{Record: loc, Order: stamp(3), Modified: stamp(2), Representations: []event.Representation{rep}}
		if change != nil {
			change(&o)
		}
		return o
	}
	link := func(rel, href string, more func(*resourcesync.Link)) func(*resourcesync.Entry) {
		return func(e *resourcesync.Entry) {
			l := resourcesync.Link{Rel: rel, Href: href}
			if more != nil {
				more(&l)
			}
			e.Links = append(e.Links, l)
		}
	}
	bare := func(rel, href string) event.Link { return event.Link{Rel: rel, Href: href, Length: event.NoLength} }
	for _, c := range []struct {
		name  string
		entry *resourcesync.Entry
		wants Selection
		want  event.Observation
		err   error
	}{
		{"as it is", entry(nil), Selection{}, plain(nil), nil},
		{"carried by another bridge", entry(func(e *resourcesync.Entry) { e.Metadata.ID, e.Metadata.Title = "urn:x:1", "A map" }), Selection{},
			plain(func(o *event.Observation) { o.Record, o.Title = "urn:x:1", "A map" }), nil},
		{"identifiers of its own", entry(nil), Selection{Name: "maps"},
			plain(func(o *event.Observation) { o.Record, o.SourceIdentifier = ownIdentifier("maps", loc), loc }), nil},
		{"no lastmod", entry(func(e *resourcesync.Entry) { e.LastMod = resourcesync.Datetime{} }), Selection{},
			plain(func(o *event.Observation) { o.Modified = stamp(3) }), nil},
		{"nothing but a loc", &resourcesync.Entry{Loc: loc}, Selection{}, event.Observation{Record: loc,
			Representations: []event.Representation{{Href: loc, Length: event.NoLength}}}, nil},
		{"deleted", entry(func(e *resourcesync.Entry) { e.Metadata.Change = "deleted" }), Selection{},
			event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2)}, nil},
		{"via", entry(link("via", "https://origin.example/1", func(l *resourcesync.Link) {
			l.Modified, l.Hash, l.Length, l.Type = at(1), "md5:1B2CF535F27731C974343645A3985328", resourcesync.Bytes(7), "text/html"
		})), Selection{}, plain(func(o *event.Observation) {
			o.Modified, o.CopyModified = stamp(1), stamp(2) // D11
			o.Via = event.Link{Href: "https://origin.example/1", Type: "text/html", Length: 7, Hash: "md5:1b2cf535f27731c974343645a3985328", Modified: stamp(1)}
		}), nil},
		{"via of a deletion", entry(func(e *resourcesync.Entry) {
			e.Metadata.Change = "deleted"
			link("via", "https://origin.example/1", nil)(e)
		}), Selection{}, event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2),
			Via: event.Link{Href: "https://origin.example/1", Length: event.NoLength}}, nil},
		{"D12: via without a stamp, the bridge's before it carries that", entry(func(e *resourcesync.Entry) {
			link("via", "https://origin.example/1", nil)(e)
			e.Metadata.CarriedModified = at(1)
		}), Selection{}, plain(func(o *event.Observation) {
			o.Modified, o.CopyModified, o.Via = stamp(1), stamp(2), bare("", "https://origin.example/1")
		}), nil},
		{"D14: an alternate that is not on the web", entry(link("alternate", "urn:isbn:1", func(l *resourcesync.Link) { l.Type = "text/plain" })), Selection{},
			plain(func(o *event.Observation) {
				o.Links = []event.Link{{Rel: "related", Href: "urn:isbn:1", Type: "text/plain", Length: event.NoLength}}
			}), nil},
		{"D14: nothing on the web", &resourcesync.Entry{Loc: "ftp://source.example/1"}, Selection{}, event.Observation{Record: "ftp://source.example/1", Representations: nil}, ErrUnreachable},
		{"D16, D24: a language, a profile, changefreq", entry(func(e *resourcesync.Entry) {
			link("alternate", "https://source.example/maps/1.de", func(l *resourcesync.Link) { l.Hreflang, l.Profile = "de", "urn:p" })(e)
			link("profile", "urn:q", nil)(e)
			e.Metadata.Hreflang, e.ChangeFreq = "en", "weekly"
		}), Selection{}, plain(func(o *event.Observation) {
			o.Representations = []event.Representation{rep, {Href: "https://source.example/maps/1.de", Hreflang: "de", Profile: "urn:p", Length: event.NoLength}}
			o.Representations[0].Hreflang = "en"
			o.Details, o.Links = &event.Details{ChangeFreq: "weekly"}, []event.Link{bare("profile", "urn:q")}
		}), nil},
		{"a word that is none of sitemaps, a profile that is no IRI, the priority of an alternate", entry(func(e *resourcesync.Entry) {
			e.ChangeFreq = "often"
			link("alternate", "https://source.example/maps/1.de", func(l *resourcesync.Link) { l.Profile, l.Pri = "maps", 7 })(e)
			link("profile", "https://profile.example/?a[]=b c", nil)(e)
		}), Selection{}, plain(func(o *event.Observation) {
			o.Representations = append(o.Representations, event.Representation{Href: "https://source.example/maps/1.de", Pri: 7, Length: event.NoLength})
		}), nil},
		{"details that another bridge carries, with some of another type", entry(func(e *resourcesync.Entry) {
			e.Metadata.Details = `{"lang":"de","rights":5,"authors":[{"name":"A","uri":"urn:a"},{"email":"nobody"},7],"edited":"2026-03-01T00:00:00.000000005Z","published":"soon","new":1,` +
				`"categories":[{"term":"maps","scheme":"urn:s"},{"label":"none"}],"source":{"links":[{"rel":"self","href":"file:///f"},{"rel":"next","href":"https://f.example/2"}]}}`
		}), Selection{}, plain(func(o *event.Observation) {
			o.Details = &event.Details{Language: "de", Authors: []event.Person{{Name: "A", URI: "urn:a"}}, Edited: stamp(1), Source: &event.Feed{}}
			o.Categories = []event.Category{{Term: "maps", Scheme: "urn:s"}}
		}), nil},
		{"details that say nothing", entry(func(e *resourcesync.Entry) { e.Metadata.Details = `{"rights":{}}` }), Selection{}, plain(nil), nil},
		{"a deletion with what is said of it", entry(func(e *resourcesync.Entry) {
			e.Metadata.Change, e.Metadata.Details = "deleted", `{"deletedBy":{"name":"The editor"},"comment":{"text":"Withdrawn","lang":"en"},"categories":[{"term":"maps"}]}`
			link("successor-version", "https://source.example/maps/2.xml", nil)(e)
			link("collection", "https://source.example/maps/", nil)(e)
		}), Selection{}, event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2),
			Details: &event.Details{DeletedBy: event.Person{Name: "The editor"}, Comment: event.Text{Value: "Withdrawn", Language: "en"}},
			Links:   []event.Link{bare("successor-version", "https://source.example/maps/2.xml")}}, nil},
		{"via that is a file", entry(link("via", "file:///etc/passwd", nil)), Selection{}, plain(nil), nil},
		{"comes back to us", entry(link("via", "https://we.example/sets/main/records/x", nil)), Selection{Own: []string{"https://we.example/sets/main/"}},
			plain(func(o *event.Observation) { o.Via = bare("", "https://we.example/sets/main/records/x") }), ErrOwn},
		{"alternates", entry(func(e *resourcesync.Entry) {
			link("alternate", "https://source.example/maps/1.json", func(l *resourcesync.Link) { l.Type = "application/json" })(e)
			link("alternate", loc, nil)(e)
		}), Selection{Prefer: []string{"application/json"}}, plain(func(o *event.Observation) {
			o.Representations = append(o.Representations, event.Representation{Href: "https://source.example/maps/1.json", Type: "application/json", Length: event.NoLength})
			o.Preferred = 1
		}), nil},
		{"no wanted format", entry(nil), Selection{Formats: []string{"text/html"}}, event.Observation{Record: loc, Deleted: true, Order: stamp(3), Modified: stamp(2)}, nil},
		{"mirrors, the best first", entry(func(e *resourcesync.Entry) {
			link("duplicate", "https://m.example/none", nil)(e)
			link("duplicate", "https://m.example/2", func(l *resourcesync.Link) { l.Pri = 2 })(e)
			link("duplicate", "https://m.example/1", func(l *resourcesync.Link) { l.Pri = 1 })(e)
		}), Selection{}, plain(func(o *event.Observation) {
			o.Links = []event.Link{bare("duplicate", "https://m.example/1"), bare("duplicate", "https://m.example/2"), bare("duplicate", "https://m.example/none")}
			o.Links[0].Pri, o.Links[1].Pri = 1, 2
		}), nil},
		{"other links", entry(func(e *resourcesync.Entry) {
			link("describedby", "https://source.example/maps/1.rdf", nil)(e)
			link("describes", "https://source.example/x", func(l *resourcesync.Link) { l.ID = "urn:x:9" })(e)
			link("collection", "https://source.example/maps/", nil)(e)
			link("up", "https://source.example/capabilitylist.xml", nil)(e)
		}), Selection{}, plain(func(o *event.Observation) {
			described, describes := bare("describedby", "https://source.example/maps/1.rdf"), bare("describes", "https://source.example/x")
			described.Record, describes.Record = "https://source.example/maps/1.rdf", "urn:x:9"
			o.Links = []event.Link{described, describes, bare("collection", "https://source.example/maps/")}
		}), nil},
		{"selected by its prefix", entry(nil), Selection{Prefixes: []string{"https://other.example/", "https://source.example/maps/"}}, plain(nil), nil},
		{"not selected by its prefix", entry(nil), Selection{Prefixes: []string{"https://source.example/books/"}}, plain(nil), ErrUnselected},
		{"modified before", entry(nil), Selection{Since: stamp(3)}, plain(nil), ErrUnselected},
		{"modified since", entry(nil), Selection{Since: stamp(2)}, plain(nil), nil},
		{"a local file without a place", &resourcesync.Entry{Loc: "file:///data/1.xml"}, Selection{Published: true},
			event.Observation{Record: "file:///data/1.xml"}, ErrLocal},
		{"a local file in capitals", &resourcesync.Entry{Loc: "FILE:///data/1.xml"}, Selection{Published: true, LocalURL: "file:///data/", PublicURL: "https://p.example/d"},
			event.Observation{Record: "FILE:///data/1.xml"}, ErrLocal},
		{"a local file that is published", &resourcesync.Entry{Loc: "file:///data/1.xml"}, Selection{Published: true, LocalURL: "file:///data/", PublicURL: "https://p.example/d"},
			event.Observation{Record: "file:///data/1.xml", Representations: []event.Representation{{Href: "https://p.example/d/1.xml", Length: event.NoLength}}}, nil},
	} {
		got, err := FromResource(c.entry, &c.wants)
		if !errors.Is(err, c.err) || err != nil && c.err == nil {
			t.Errorf("%s: error %v, want %v", c.name, err, c.err)
		}
		if len(got.Links) == 0 {
			got.Links = nil
		}
		if errors.Is(err, ErrLocal) {
			got.Representations = nil
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// What is in a closed list stays as it is: an event that was logged when brackets of an address stood
// in its Loc names its original so too.
func TestOriginalAtFormerLoc(t *testing.T) {
	l := NewListEncoder(listerBase, "main", event.Reference)
	for _, loc := range []string{"https://h.example/a%20b[1]", "https://h.example/a%20b%5B1%5D"} {
		const href = "https://h.example/a b[1]"
		e := &event.Event{Kind: event.Created, Record: "urn:a", Loc: loc, Representations: []event.Representation{{Href: href, Length: event.NoLength}}, Via: event.Link{Href: href, Length: event.NoLength}}
		if entry := l.ResourceEntry(e); entry.Loc != loc || len(entry.Links) != 1 || entry.Links[0].Href != loc {
			t.Errorf("%s: %+v", loc, entry)
		}
	}
	const uri = "https://h.example/a%20b%5B1%5D"
	e := &event.Event{Kind: event.Created, Record: "urn:a", Loc: uri, Representations: []event.Representation{{Href: "https://h.example/a b[1]", Length: event.NoLength}}, Via: event.Link{Href: "https://h.example/a b[1]", Length: event.NoLength}}
	if p := NewOAIEncoder(listerBase, &event.Set{Name: "main", Content: event.Mirror}, nil).Encode(e, nil).Provenance; p == nil || p.BaseURL != uri {
		t.Errorf("the provenance is %+v", p)
	}
}

const listerBase = "https://bridge.example"

// listed is an event of a record with three representations, the second of
// which is preferred.
func listed(kind event.Kind, content event.Content) *event.Event {
	observed := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	modified, _ := event.StampOf(observed.Add(-time.Hour + 7))
	e := &event.Event{Seq: 9, Set: "main", Record: "urn:x:Record-1", Kind: kind, Title: "A & B",
		Observed: event.MicrosOf(observed), Modified: modified, Preferred: 1,
		Via: event.Link{Href: "https://origin.example/1.xml", Type: "text/xml", Length: 7, Hash: "md5:0f", Modified: modified}}
	if kind != event.Deleted {
		e.Representations = []event.Representation{
			{Href: "https://origin.example/1.html", Type: "text/html", Length: event.NoLength, Name: "html"},
			{Href: "https://origin.example/1.xml", Type: "text/xml", Length: 0, Hash: "sha-256:" + strings.Repeat("ab", 32), Name: "xml"},
			{Href: "https://origin.example/1.json", Type: "application/json", Length: 3, Hash: "md5:00", Name: "12345678.json"},
		}
	}
	if content == event.Reference {
		e.Loc = "https://origin.example/1.xml"
	}
	return e
}

// lines gives each entry as it is written, without its indentation.
func lines(t *testing.T, capability resourcesync.Capability, entries ...resourcesync.Entry) string {
	t.Helper()
	head := resourcesync.Document{Capability: capability, Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "u"}}, Entries: entries}
	if capability == resourcesync.ChangeList {
		head.From = resourcesync.Seconds(time.Unix(0, 0))
	} else {
		head.At = resourcesync.Seconds(time.Unix(0, 0))
	}
	var b bytes.Buffer
	if _, err := head.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(b.String(), " <url>\n")
	body = strings.TrimSuffix(body, "</urlset>\n")
	var out strings.Builder
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "<url>" && line != "</url>" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// Our own name for content that came with an entry is nothing that another document can
// state.
func TestFromResourceWithAnInlineName(t *testing.T) {
	name := event.InlineHref("urn:x:other")
	e := &resourcesync.Entry{Loc: "https://h.example/a", Links: []resourcesync.Link{{Rel: resourcesync.RelAlternate, Href: name}}}
	o, err := FromResource(e, &Selection{Inline: true})
	if err != nil || len(o.Representations) != 1 || len(o.Links) != 0 {
		t.Errorf("as an alternate: %+v, %v", o, err)
	}
	if o, err = FromResource(&resourcesync.Entry{Loc: name}, &Selection{Inline: true}); !errors.Is(err, ErrUnreachable) || len(o.Representations) != 0 {
		t.Errorf("as a loc: %+v, %v", o, err)
	}
}

func TestListerChangeEntries(t *testing.T) {
	record := RecordURL(listerBase, "main", "urn:x:Record-1")
	hash := "sha-256:" + strings.Repeat("ab", 32)
	via := `<rs:ln rel="via" href="https://origin.example/1.xml" modified="2026-01-02T02:04:05.000006007Z" hash="md5:0f" length="7" type="text/xml"/>` + "\n"
	const carried = ` b:id="urn:x:Record-1" b:title="A &amp; B"/>` + "\n"
	const carriedModified = ` b:id="urn:x:Record-1" b:title="A &amp; B" b:modified="2026-01-02T02:04:05.000006007Z"/>` + "\n"
	own := `<loc>` + record + "</loc>\n<lastmod>2026-01-02T03:04:05Z</lastmod>\n"
	ownAlternates := `<rs:ln rel="alternate" href="` + record + `.html" type="text/html"/>` + "\n" +
		`<rs:ln rel="alternate" href="` + record + `.12345678.json" hash="md5:00" length="3" type="application/json"/>` + "\n"
	theirs := "<loc>https://origin.example/1.xml</loc>\n<lastmod>2026-01-02T02:04:05Z</lastmod>\n"
	theirAlternates := `<rs:ln rel="alternate" href="https://origin.example/1.html" type="text/html"/>` + "\n" +
		`<rs:ln rel="alternate" href="https://origin.example/1.json" hash="md5:00" length="3" type="application/json"/>` + "\n"
	md := func(change string) string {
		s := `<rs:md change="` + change + `" datetime="2026-01-02T03:04:05.000006Z"`
		if change != "deleted" {
			s += ` hash="` + hash + `" length="0" type="text/xml"`
		}
		return s + carried
	}
	gone := "<loc>https://origin.example/old</loc>\n<lastmod>2026-01-02T02:04:05Z</lastmod>\n" + md("deleted") +
		`<rs:ln rel="via" href="https://origin.example/old" modified="2026-01-02T02:04:05.000006007Z"/>` + "\n"

	for _, c := range []struct {
		name    string
		content event.Content
		kind    event.Kind
		edit    func(*event.Event)
		want    string
	}{
		{"created in a mirror", event.Mirror, event.Created, nil, own + md("created") + via + ownAlternates},
		{"updated by redirect", event.Redirect, event.Updated, nil, own + md("updated") + via + ownAlternates},
		{"deleted", event.Mirror, event.Deleted, nil, own + md("deleted") + via},
		{"rejected", event.Mirror, event.Rejected, nil, ""},
		{"created by reference", event.Reference, event.Created, nil, theirs + md("created") + via + theirAlternates},
		{"D109: created at a loc that another record owns", event.Reference, event.Created, func(e *event.Event) { e.Unlisted = true }, ""},
		{"D109: deleted there", event.Reference, event.Deleted, func(e *event.Event) { e.Unlisted = true }, ""},
		{"moved", event.Reference, event.Updated, func(e *event.Event) { e.Gone, e.Arrived = "https://origin.example/old", true },
			gone + theirs + md("created") + via + theirAlternates},
		{"D109: moved to a loc that another record owns", event.Reference, event.Updated, func(e *event.Event) {
			e.Gone, e.Unlisted = "https://origin.example/old", true
		}, gone},
		{"D109: it comes to own its loc", event.Reference, event.Updated, func(e *event.Event) { e.Arrived = true },
			theirs + md("created") + via + theirAlternates},
		{"modified in the future", event.Reference, event.Created, func(e *event.Event) {
			e.Modified, _ = event.StampOf(e.Observed.Time().Add(1))
			e.Representations = e.Representations[1:2]
			e.Preferred = 0
			e.Via.Modified = e.Modified
		}, "<loc>https://origin.example/1.xml</loc>\n" + md("created") + strings.Replace(via, "02T02:04:05.000006007Z", "02T03:04:05.000006001Z", 1)},
		{"D12: an inherited via without its own stamp", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Modified = event.Stamp{} },
			own + strings.Replace(md("deleted"), carried, carriedModified, 1) + strings.Replace(via, ` modified="2026-01-02T02:04:05.000006007Z"`, "", 1)},
		{"D11: the copy has a stamp of its own", event.Reference, event.Created, func(e *event.Event) {
			e.CopyModified, e.Via.Href = event.StampFromNanos(1e18), "https://elsewhere.example/1.xml"
		}, strings.Replace(theirs, "2026-01-02T02:04:05Z", "2001-09-09T01:46:40Z", 1) + md("created") + strings.Replace(via, "origin", "elsewhere", 1) + theirAlternates},
		{"D11: the copy's stamp is not known", event.Reference, event.Created, func(e *event.Event) { e.Via.Href = "https://elsewhere.example/1.xml" },
			"<loc>https://origin.example/1.xml</loc>\n" + md("created") + strings.Replace(via, "origin", "elsewhere", 1) + theirAlternates},
		{"D11: the copy alone has a stamp", event.Reference, event.Created, func(e *event.Event) {
			e.Via.Href, e.Via.Modified = "https://elsewhere.example/1.xml", event.Stamp{}
		}, theirs + strings.Replace(md("created"), carried, carriedModified, 1) +
			strings.NewReplacer("origin", "elsewhere", ` modified="2026-01-02T02:04:05.000006007Z"`, "").Replace(via) + theirAlternates},
		{"D16, D24: languages, profiles, changefreq", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[0].Hreflang, e.Representations[1].Hreflang, e.Representations[2].Profile = "no tag", "de-AT", "urn:p"
			e.Details = &event.Details{ChangeFreq: "weekly"}
			e.Links = []event.Link{{Rel: "profile", Href: "https://profile.example/"}, {Rel: "related", Href: "urn:isbn:1", Type: "pdf"}, {Rel: "related", Href: "https://elsewhere.example/"}}
		}, strings.Replace(own, "</lastmod>\n", "</lastmod>\n<changefreq>weekly</changefreq>\n", 1) + strings.Replace(md("created"), "/>", ` b:hreflang="de-AT"/>`, 1) + via +
			strings.Replace(ownAlternates, `application/json"`, `application/json" profile="urn:p"`, 1) +
			`<rs:ln rel="profile" href="https://profile.example/"/>` + "\n" + `<rs:ln rel="related" href="urn:isbn:1"/>` + "\n"},
		{"D24: no word of sitemaps", event.Mirror, event.Created, func(e *event.Event) { e.Details = &event.Details{ChangeFreq: "often"} }, own + md("created") + via + ownAlternates},
		{"D90: types that are none", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[1].Type, e.Representations[2].Type, e.Via.Type = "pdf", "", "xml"
		}, own + strings.Replace(md("created"), "text/xml", "application/octet-stream", 1) + strings.Replace(via, ` type="text/xml"`, "", 1) +
			strings.Replace(ownAlternates, "application/json", "application/octet-stream", 1)},
		{"D90: types that are none, by reference", event.Reference, event.Created, func(e *event.Event) {
			e.Representations[1].Type, e.Representations[2].Type = "pdf", ""
		}, theirs + strings.Replace(md("created"), ` type="text/xml"`, "", 1) + via + strings.Replace(theirAlternates, ` type="application/json"`, "", 1)},
		{"D23: handed in to us", event.Mirror, event.Created, func(e *event.Event) {
			e.Via, e.Origin.Protocol = event.Link{Href: "urn:x:Record-1", Length: event.NoLength, Modified: e.Modified}, "sip"
		}, own + strings.Replace(md("created"), carried, carriedModified, 1) + ownAlternates},
		{"D23: handed in to us, with the submitter's URL", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Via = event.Link{Href: "urn:x:Record-1", Length: event.NoLength, Modified: e.Modified}
			e.Origin.Protocol, e.Origin.SourceIdentifier = "sip", "https://submitter.example/1"
		}, own + strings.Replace(md("deleted"), carried, carriedModified, 1) + `<rs:ln rel="via" href="https://submitter.example/1"/>` + "\n"},
		{"no stamp at all", event.Mirror, event.Deleted, func(e *event.Event) { e.Modified, e.Via.Modified = event.Stamp{}, event.Stamp{} },
			own + md("deleted") + strings.Replace(via, ` modified="2026-01-02T02:04:05.000006007Z"`, "", 1)},
		{"via in a local file", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Href = "FILE:///etc/passwd" }, own + strings.Replace(md("deleted"), carried, carriedModified, 1)},
		{"nothing preferred", event.Mirror, event.Created, func(e *event.Event) { e.Representations, e.Preferred = nil, -1 },
			own + strings.Replace(md("created"), ` hash="`+hash+`" length="0" type="text/xml"`, "", 1) + via},
		{"describes another record", event.Mirror, event.Created, func(e *event.Event) {
			e.Links = []event.Link{{Rel: "describes", Href: "https://origin.example/2", Type: "text/html", Record: "urn:x:2", InSet: true},
				{Rel: "describedby", Href: "https://elsewhere.example/"}, {Rel: "collection", Href: "https://origin.example/all", Record: "urn:x:3"}}
		}, own + md("created") + via + ownAlternates +
			`<rs:ln rel="describes" href="` + RecordURL(listerBase, "main", "urn:x:2") + `" type="text/html" b:id="urn:x:2"/>` + "\n"},
		{"is described, by reference", event.Reference, event.Created, func(e *event.Event) {
			e.Links = []event.Link{{Rel: "describedby", Href: "urn:x:2", Record: "urn:x:2", InSet: true}, {Rel: "describedby", Href: "file:///3", Record: "urn:x:3", InSet: true}}
		}, theirs + md("created") + via + theirAlternates + `<rs:ln rel="describedby" href="urn:x:2"/>` + "\n"},
		{"id is the loc", event.Reference, event.Deleted, func(e *event.Event) { e.Record, e.Title = e.Loc, "" },
			theirs + strings.Replace(md("deleted"), carried, "/>\n", 1) + via},
	} {
		e := listed(c.kind, c.content)
		if c.edit != nil {
			c.edit(e)
		}
		l := NewListEncoder(listerBase, "main", c.content)
		l.ChangeEntries(listed(event.Created, c.content)) // what it remembers must not show
		entries := l.ChangeEntries(e)
		if len(entries) != e.Entries() {
			t.Errorf("%s: %d entries, the event says %d", c.name, len(entries), e.Entries())
		}
		if got := lines(t, resourcesync.ChangeList, entries...); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
}

func TestListerResourceEntry(t *testing.T) {
	l := NewListEncoder(listerBase, "main", event.Mirror)
	e := listed(event.Updated, event.Mirror)
	change := lines(t, resourcesync.ChangeList, l.ChangeEntries(e)...)
	want := strings.Replace(change, ` change="updated" datetime="2026-01-02T03:04:05.000006Z"`, "", 1)
	if got := lines(t, resourcesync.ResourceList, *l.ResourceEntry(e)); got != want || got == change {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestRecordURLs(t *testing.T) {
	record := RecordURL(listerBase, "main", "urn:x:Record-1")
	if want := listerBase + "/sets/main/records/" + event.Key("urn:x:Record-1"); record != want {
		t.Errorf("got %s, want %s", record, want)
	}
}
