package translate

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

func feedSet(content event.Content) *event.Set {
	return &event.Set{Name: "main", Content: content, Feed: "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1"}
}

func feedHead() *atompmh.Feed {
	return &atompmh.Feed{ID: "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1", Title: "t", Metadata: atompmh.Metadata{Authors: []atompmh.Person{{Name: "a"}}}, Updated: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// feedWith is a document with one entry.
func feedWith(t interface{ Fatal(...any) }, e *atompmh.Entry) []byte {
	var b bytes.Buffer
	w := atompmh.NewWriter(&b, feedHead())
	if err := w.Entry(e); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// written gives an entry as it is written, without its indentation.
func written(t *testing.T, e *atompmh.Entry) string {
	_, body, _ := strings.Cut(string(feedWith(t, e)), " <entry")
	body, _, _ = strings.Cut(body, " </entry>\n")
	var out strings.Builder
	for line := range strings.Lines("<entry" + body) {
		out.WriteString(strings.TrimSpace(line) + "\n")
	}
	return out.String()
}

func TestFeederEntry(t *testing.T) {
	record := RecordURL(listerBase, "main", "urn:x:Record-1")
	hash := "sha-256:" + strings.Repeat("ab", 32)
	const top = "<entry>\n<id>urn:x:Record-1</id>\n<title>A &amp; B</title>\n<updated>2026-01-02T03:04:05.000006Z</updated>\n"
	const via = `<link rel="via" href="https://origin.example/1.xml" type="text/xml" b:modified="2026-01-02T02:04:05.000006007Z" b:hash="md5:0f" b:length="7"/>` + "\n"
	own := `<link rel="alternate" href="` + record + `" type="text/xml" length="0" b:hash="` + hash + `"/>` + "\n" +
		`<link rel="alternate" href="` + record + `.html" type="text/html"/>` + "\n" +
		`<link rel="alternate" href="` + record + `.12345678.json" type="application/json" length="3" b:hash="md5:00"/>` + "\n"
	theirs := `<link rel="alternate" href="https://origin.example/1.xml" type="text/xml" length="0" b:hash="` + hash + `"/>` + "\n" +
		`<link rel="alternate" href="https://origin.example/1.html" type="text/html"/>` + "\n" +
		`<link rel="alternate" href="https://origin.example/1.json" type="application/json" length="3" b:hash="md5:00"/>` + "\n"
	const deleted = "<content/>\n"
	const octets = ` type="application/octet-stream"`
	updated, _ := event.StampOf(time.Date(2025, 12, 31, 23, 59, 59, 5, time.UTC))
	modified := strings.Replace(top, "<entry>", `<entry b:modified="2026-01-02T02:04:05.000006007Z">`, 1)
	withSource := func(e *event.Event) { // D15
		e.Details = &event.Details{Language: "de", Authors: []event.Person{{Name: "A", URI: "https://a.example/", Email: "a@a.example"}, {Name: " "}, {Name: "B", URI: "b", Email: "b"}},
			Contributors: []event.Person{{Name: "C"}}, Rights: event.Text{Value: "ours", Language: "x y"},
			Source: &event.Feed{ID: "urn:s", Title: event.Text{Value: "S", Language: "fr"}, Updated: updated, Authors: []event.Person{{Name: "D"}}, Categories: []event.Category{{Term: "all"}},
				Links: []event.Link{{Rel: "self", Href: "https://s.example/feed"}, {Rel: "alternate", Href: "file:///s"}}}}
		e.Categories = []event.Category{{Term: "maps", Scheme: "urn:maps", Label: "Maps"}, {Term: "b", Scheme: "no iri"}, {Label: "none"}}
		e.Origin = event.Origin{FeedID: "urn:f", FeedTitle: "the bridge between"}
	}
	describes := event.Link{Rel: "describes", Href: "https://origin.example/2", Type: "text/html", Length: event.NoLength, Record: "urn:x:2", InSet: true}

	for _, c := range []struct {
		name    string
		content event.Content
		kind    event.Kind
		edit    func(*event.Event)
		want    string
	}{
		{"created in a mirror", event.Mirror, event.Created, nil, top + own + via},
		{"updated by redirect", event.Redirect, event.Updated, nil, top + own + via},
		{"by reference", event.Reference, event.Created, nil, top + theirs + via},
		{"deleted", event.Mirror, event.Deleted, nil, top + via + deleted},
		{"a deletion that lists do not have", event.Reference, event.Deleted, func(e *event.Event) { e.Unlisted = true }, top + via + deleted},
		{"moved, which is nothing here", event.Reference, event.Updated, func(e *event.Event) { e.Gone, e.Arrived = "https://origin.example/0", true }, top + theirs + via},
		{"via in a local file", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Href = "FILE:///etc/passwd" }, modified + deleted},
		{"D12: an inherited via without its own stamp", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Modified = event.Stamp{} },
			modified + strings.Replace(via, ` b:modified="2026-01-02T02:04:05.000006007Z"`, "", 1) + deleted},
		{"D15: people, rights, categories, languages, its own source", event.Mirror, event.Created, withSource,
			strings.Replace(top, "<title>", `<title xml:lang="de">`, 1) + "<author><name>A</name><uri>https://a.example/</uri><email>a@a.example</email></author>\n<author><name>B</name></author>\n" +
				"<contributor><name>C</name></contributor>\n" + `<category term="maps" scheme="urn:maps" label="Maps"/>` + "\n" + `<category term="b"/>` + "\n<rights>ours</rights>\n" + own + via +
				`<source><id>urn:s</id><title xml:lang="fr">S</title><updated>2025-12-31T23:59:59.000000005Z</updated><author><name>D</name></author><category term="all"/><link rel="self" href="https://s.example/feed"/></source>` + "\n"},
		{"D15: what the feed says", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Origin = event.Origin{FeedID: "urn:f", FeedTitle: "F", Feed: &event.Feed{Title: event.Text{Language: "en"}, Authors: []event.Person{{Name: "F. Author"}}, Rights: event.Text{Value: "theirs", Language: "en"}}}
		}, top + via + `<source><id>urn:f</id><title xml:lang="en">F</title><author><name>F. Author</name></author><rights xml:lang="en">theirs</rights></source>` + "\n" + deleted},
		{"D90: a feed whose id is none", event.Mirror, event.Deleted, func(e *event.Event) { e.Origin = event.Origin{FeedID: "/feed", FeedTitle: "F"} },
			top + via + "<source><title>F</title></source>\n" + deleted},
		{"D16: one type in two languages", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[0].Type, e.Representations[0].Hreflang, e.Representations[1].Hreflang = "text/xml", "de", "en"
			e.Representations[2].Type, e.Representations[2].Hreflang = "text/xml", "EN"
		}, top + strings.NewReplacer(`type="text/xml"`, `type="text/xml" hreflang="en"`, `type="text/html"`, `type="text/xml" hreflang="de"`,
			`rel="alternate" href="`+record+`.12345678.json" type="application/json"`, `rel="urn:x-bridge:terms:1:alternate" href="`+record+`.12345678.json" type="text/xml" hreflang="EN"`).Replace(own) + via},
		{"D14, D24: related to what is not on the web, and a profile", event.Mirror, event.Created, func(e *event.Event) {
			e.Links = []event.Link{{Rel: "related", Href: "urn:isbn:1", Type: "a/b"}, {Rel: "profile", Href: "https://p.example/"}, {Rel: "related", Href: "https://elsewhere.example/"}}
		}, top + own + via + `<link rel="related" href="urn:isbn:1" type="a/b"/>` + "\n" + `<link rel="profile" href="https://p.example/"/>` + "\n"},
		{"D17: an identifier that only begins like an IRI", event.Mirror, event.Deleted, func(e *event.Event) { e.Record = "Post: my first one" },
			strings.NewReplacer("<entry>", `<entry b:id="Post: my first one">`, "urn:x:Record-1", "urn:uuid:23d5a036-64cb-5e56-aaa3-0b7ddd6a4213").Replace(top) + via + deleted},
		{"D23: handed in to us", event.Mirror, event.Created, func(e *event.Event) {
			e.Via, e.Origin.Protocol = event.Link{Href: e.Record, Length: event.NoLength, Modified: e.Modified}, "sip"
		}, modified + own},
		{"nothing stated of the original", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Modified, e.Via = event.Stamp{}, event.Link{Href: e.Via.Href, Length: event.NoLength}
		}, top + `<link rel="via" href="https://origin.example/1.xml"/>` + "\n" + deleted},
		{"no title", event.Mirror, event.Deleted, func(e *event.Event) { e.Title = " " },
			strings.Replace(top, "A &amp; B", "urn:x:Record-1", 1) + via + deleted},
		{"an identifier that is no IRI", event.Mirror, event.Deleted, func(e *event.Event) { e.Record, e.Title = "2026/17", "" },
			"<entry b:id=\"2026/17\">\n<id>urn:uuid:03f2078c-247e-5918-bd64-ffd3dba812fb</id>\n<title>urn:uuid:03f2078c-247e-5918-bd64-ffd3dba812fb</title>\n" +
				"<updated>2026-01-02T03:04:05.000006Z</updated>\n" + via + deleted},
		{"known feed", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Origin = event.Origin{FeedID: "urn:f", FeedTitle: "F & G", FeedUpdated: updated}
		}, top + via + "<source><id>urn:f</id><title>F &amp; G</title><updated>2025-12-31T23:59:59.000000005Z</updated></source>\n" + deleted},
		{"feed with an id alone", event.Mirror, event.Deleted, func(e *event.Event) { e.Origin.FeedID = "urn:f" },
			top + via + "<source><id>urn:f</id></source>\n" + deleted},
		{"feed with endless names", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Origin = event.Origin{FeedID: "urn:f", FeedTitle: strings.Repeat("ü", 1000)}
		}, top + via + "<source><id>urn:f</id><title>" + strings.Repeat("ü", 100) + "</title></source>\n" + deleted},
		{"feed with an endless id", event.Mirror, event.Deleted, func(e *event.Event) { e.Origin.FeedID = "urn:" + strings.Repeat("f", 1000) }, top + via + deleted},
		{"several of one type", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[0].Type, e.Representations[2].Type = "TEXT/xml", "text/xml; charset=utf-8"
		}, top + strings.NewReplacer(`rel="alternate" href="`+record+`.html" type="text/html"`, `rel="urn:x-bridge:terms:1:alternate" href="`+record+`.html" type="TEXT/xml"`,
			`application/json`, `text/xml; charset=utf-8`).Replace(own) + via},
		{"types that are none", event.Redirect, event.Created, func(e *event.Event) {
			e.Representations[0].Type, e.Representations[1].Type, e.Representations[2].Type = "xml", "", "text/"
		}, top + strings.NewReplacer(` type="text/xml"`, octets, `rel="alternate" href="`+record+`.`, `rel="urn:x-bridge:terms:1:alternate" href="`+record+`.`,
			` type="text/html"`, octets, ` type="application/json"`, octets).Replace(own) + via}, // D13
		{"nothing preferred", event.Mirror, event.Created, func(e *event.Event) { e.Representations, e.Preferred = nil, -1 },
			top + `<link rel="alternate" href="` + record + `" type="application/octet-stream"/>` + "\n" + via},
		{"nothing but local files", event.Reference, event.Created, func(e *event.Event) {
			e.Loc = "file:///a"
			for i := range e.Representations {
				e.Representations[i].Href = fmt.Sprint("file:///", i)
			}
		}, top + `<link rel="alternate" href="` + record + `" type="application/octet-stream"/>` + "\n" + via},
		{"describes another record", event.Mirror, event.Created, func(e *event.Event) {
			e.Links = []event.Link{describes, {Rel: "describedby", Href: "https://elsewhere.example/", Length: event.NoLength}, {Rel: "memento", Href: "https://origin.example/m", Record: "urn:x:3"}}
		}, top + own + via + `<link rel="describes" href="` + RecordURL(listerBase, "main", "urn:x:2") + `" type="text/html" b:id="urn:x:2"/>` + "\n"},
		{"describes another record, by reference", event.Reference, event.Created, func(e *event.Event) { e.Links = []event.Link{describes} },
			top + theirs + via + `<link rel="describes" href="https://origin.example/2" type="text/html" b:id="urn:x:2"/>` + "\n"},
		{"describes a local file", event.Reference, event.Created, func(e *event.Event) {
			e.Links = []event.Link{describes}
			e.Links[0].Href = "file:///2"
		}, top + theirs + via},
	} {
		e := listed(c.kind, c.content)
		if c.edit != nil {
			c.edit(e)
		}
		f := NewFeedEncoder(listerBase, feedSet(c.content))
		f.Entry(listed(event.Created, c.content)) // what it remembers must not show
		if got := written(t, f.Entry(e)); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
	if e := NewFeedEncoder(listerBase, feedSet(event.Mirror)).Entry(listed(event.Rejected, event.Mirror)); e != nil {
		t.Errorf("a rejected event has the entry %+v", e)
	}
}

// Two sets give one identifier two ids, and one set gives it the same again.
func TestFeederNamesIdentifiers(t *testing.T) {
	id := func(feed, record string) string {
		set := feedSet(event.Mirror)
		set.Feed = feed
		e := listed(event.Deleted, event.Mirror)
		e.Record = record
		return NewFeedEncoder(listerBase, set).Entry(e).ID
	}
	const one, two = "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1", "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a2"
	first := id(one, "7")
	if again := id(one, "7"); again != first || first == id(two, "7") || first == id(one, "8") {
		t.Error(first, again, id(two, "7"), id(one, "8"))
	}
	// RFC 9562 A.4, in the namespace of domain names.
	if got, want := id("urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8", "www.example.com"), "urn:uuid:2ed6657d-e927-568b-95e1-2665a8aea6a2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Whatever an event is made of, its entry breaks no rule, and says who the record
// is, which representations it has and where its original is.
func TestFeederIsRead(t *testing.T) {
	text := rapid.OneOf(rapid.SampledFrom([]string{"", " ", "urn:x:1", "a b", "<&>\"'", "ü", "\x00", "\xff", "text/xml", "text/html", "application/json", "/"}), rapid.String())
	href := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"https://o.example/", "urn:o:", "file:///"}).Draw(t, "scheme") + rapid.StringMatching(`[a-z0-9]{1,4}`).Draw(t, "rest")
	})
	length := rapid.Int64Range(-1, 1000)
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content")
		e := &event.Event{Kind: rapid.SampledFrom([]event.Kind{event.Created, event.Updated, event.Deleted}).Draw(t, "kind"),
			Record: rapid.StringN(1, -1, -1).Draw(t, "record"), Title: text.Draw(t, "title"), Observed: event.MicrosOf(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)),
			Loc: href.Draw(t, "loc"), Via: event.Link{Href: href.Draw(t, "via"), Type: text.Draw(t, "type"), Length: length.Draw(t, "length"), Hash: "md5:0f"},
			Modified: event.StampFromNanos(rapid.Int64().Draw(t, "modified")),
			Origin:   event.Origin{FeedID: text.Draw(t, "feed"), FeedTitle: text.Draw(t, "feed title")}}
		if e.Live() {
			for i := range rapid.IntRange(0, 5).Draw(t, "representations") {
				e.Representations = append(e.Representations, event.Representation{Href: href.Draw(t, "href"), Type: text.Draw(t, "type"), Length: length.Draw(t, "length"),
					Hash: rapid.SampledFrom([]string{"", "md5:00"}).Draw(t, "hash"), Name: fmt.Sprint(i)})
			}
			e.Preferred = rapid.IntRange(-1, len(e.Representations)-1).Draw(t, "preferred")
		}
		checkRead(t, e, NewFeedEncoder(listerBase, feedSet(content)).Entry(e))
	})
}

func checkRead(t *rapid.T, e *event.Event, entry *atompmh.Entry) {
	doc := feedWith(t, entry)
	if bytes.Contains(doc, []byte("file:")) && !strings.Contains(e.Record+e.Title+e.Via.Type+e.Origin.FeedID+e.Origin.FeedTitle, "file:") {
		t.Fatalf("a local file is named:\n%s", doc)
	}
	got, err := atompmh.NewReader(bytes.NewReader(doc), atompmh.ReadOptions{Report: func(p atompmh.Problem) {
		if p.Record != "" {
			t.Errorf("%v", p)
		}
	}}).Next()
	if err != nil {
		t.Fatal(err)
	}
	if got.Record() != e.Record && got.Record() != entry.ID {
		t.Errorf("record %q is read as %q", e.Record, got.Record())
	}
	if links := got.Alternates(); e.Live() && (len(links) < 1 || len(links) > max(1, len(e.Representations)+1)) || !e.Live() && len(links) > 0 {
		t.Errorf("%d alternates of %d representations", len(links), len(e.Representations))
	}
	if v, ok := got.Via(); ok != event.Public(e.Via.Href) || ok && v.Href != e.Via.Href {
		t.Errorf("via %q is read as %q", e.Via.Href, v.Href)
	}
	if got.Untitled() && strings.TrimSpace(e.Title) != "" && strings.Join(strings.Fields(e.Title), " ") != strings.Join(strings.Fields(entry.ID), " ") {
		t.Errorf("title %q is lost", e.Title)
	}
}
