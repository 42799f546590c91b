package translate

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// What is true of every copy, and in mode reference also what is true of the Source's,
// passes through a list and through a feed as it was, in either order.
func TestDetailsPassThrough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content")
		e := listed(rapid.SampledFrom([]event.Kind{event.Created, event.Deleted}).Draw(t, "kind"), content)
		e.Details = drawDetails(t, e.Live())
		if e.Live() {
			e.Categories = rapid.SliceOfNDistinct(rapid.Custom(drawCategory), 0, 3, rapid.ID[event.Category]).Draw(t, "categories")
			e.Links = rapid.SliceOfN(rapid.Custom(drawLink), 0, 4).Draw(t, "links")
			e.Representations[0].Pri = rapid.IntRange(0, 2).Draw(t, "pri")
			e.Representations[2].Profile = rapid.SampledFrom([]string{"", "urn:p"}).Draw(t, "profile")
			if content == event.Reference {
				e.Representations[0].Encoding = rapid.SampledFrom([]string{"", "gzip"}).Draw(t, "encoding")
			}
		} else {
			e.Links = []event.Link{{Rel: event.RelSuccessor, Href: "https://o.example/2", Length: event.NoLength}}
		}
		first := throughList(t, e, content)
		check(t, "a list", e, &first, content)
		// What came by a list goes on in a feed, and the other way round.
		again := *e
		again.Details, again.Categories, again.Links = first.Details, first.Categories, first.Links
		second := throughFeed(t, &again, content)
		check(t, "a list and a feed", e, &second, content)
		third := throughFeed(t, e, content)
		check(t, "a feed", e, &third, content)
	})
}

func check(t *rapid.T, way string, e *event.Event, got *event.Observation, content event.Content) {
	t.Helper()
	want := e.Details
	if !reflect.DeepEqual(got.Details, want) && (got.Details != nil || !reflect.DeepEqual(want, &event.Details{})) {
		t.Fatalf("through %s: details\n got %+v\nwant %+v", way, got.Details, want)
	}
	if !reflect.DeepEqual(got.Categories, e.Categories) && len(got.Categories)+len(e.Categories) > 0 {
		t.Fatalf("through %s: categories %+v, want %+v", way, got.Categories, e.Categories)
	}
	var links []event.Link
	for i := range e.Links {
		if l := e.Links[i]; e.Live() && l.Published(content) || !e.Live() && l.PublishedOfDeletion() {
			links = append(links, l)
		}
	}
	order := func(l []event.Link) map[event.Link]int {
		n := map[event.Link]int{}
		for i := range l {
			l := l[i]
			if l.Record == l.Href {
				l.Record = ""
			}
			n[l]++
		}
		return n
	}
	if !reflect.DeepEqual(order(got.Links), order(links)) {
		t.Fatalf("through %s: links\n got %+v\nwant %+v", way, got.Links, links)
	}
	for i := range got.Representations { // the preferred one comes first
		r := &got.Representations[i]
		for j := range e.Representations {
			if w := &e.Representations[j]; w.Type == r.Type && j != e.Preferred && (w.Pri != r.Pri || w.Profile != r.Profile || w.Encoding != r.Encoding || w.Hash != r.Hash || w.Length != r.Length) {
				t.Fatalf("through %s: representation %+v, want %+v", way, r, w)
			}
		}
	}
}

func throughList(t *rapid.T, e *event.Event, content event.Content) event.Observation {
	head := resourcesync.Document{Capability: resourcesync.ChangeList, From: resourcesync.Seconds(time.Unix(0, 0)), Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "http://u.example/"}},
		Entries: NewListEncoder(listerBase, "main", content).ChangeEntries(e)}
	var doc bytes.Buffer
	if _, err := head.WriteTo(&doc); err != nil {
		t.Fatal(err)
	}
	entry, err := resourcesync.NewReader(bytes.NewReader(doc.Bytes()), resourcesync.ReadOptions{}).Next()
	if err != nil {
		t.Fatalf("%v\n%s", err, doc.Bytes())
	}
	o, err := FromResource(entry, &Selection{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func throughFeed(t *rapid.T, e *event.Event, content event.Content) event.Observation {
	doc := feedWith(t, NewFeedEncoder(listerBase, feedSet(content)).Entry(e))
	entry, err := atompmh.NewReader(bytes.NewReader(doc), atompmh.ReadOptions{}).Next()
	if err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	o, err := FromEntry(entry, &Selection{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

var someStamp = rapid.SampledFrom([]event.Stamp{{}, event.StampFromNanos(1), event.StampFromNanos(1_700_000_000_123_456_789)})

// drawDetails draws what a document of either protocol can hold: a text that has no
// language inherits one from the entry.
func drawDetails(t *rapid.T, live bool) *event.Details {
	language := rapid.SampledFrom([]string{"en", "de-AT"})
	text := rapid.SampledFrom([]string{"a", `<b> & "c"`, "Żółw ☃ 𝄞"})
	words := rapid.Custom(func(t *rapid.T) event.Text {
		if rapid.Bool().Draw(t, "none") {
			return event.Text{}
		}
		return event.Text{Value: text.Draw(t, "text"), Language: language.Draw(t, "language")}
	})
	person := rapid.Custom(func(t *rapid.T) event.Person {
		return event.Person{Name: text.Draw(t, "name"), URI: rapid.SampledFrom([]string{"", "urn:p"}).Draw(t, "uri"), Email: rapid.SampledFrom([]string{"", "a@b.example"}).Draw(t, "email")}
	})
	persons := rapid.Custom(func(t *rapid.T) (out []event.Person) {
		for range rapid.IntRange(0, 2).Draw(t, "persons") {
			out = append(out, person.Draw(t, "person"))
		}
		return out
	})
	d := &event.Details{Rights: words.Draw(t, "rights"), Published: someStamp.Draw(t, "published"), Edited: someStamp.Draw(t, "edited"),
		Authors: persons.Draw(t, "authors"), Contributors: persons.Draw(t, "contributors")}
	if rapid.Bool().Draw(t, "languages") {
		if d.Language = "en"; rapid.Bool().Draw(t, "another one") {
			d.EntryLanguage = "de"
		}
	}
	if live {
		d.ChangeFreq = rapid.SampledFrom([]string{"", "never", "always"}).Draw(t, "changefreq")
	} else {
		d.Comment = words.Draw(t, "comment")
		if rapid.Bool().Draw(t, "by") {
			d.DeletedBy = person.Draw(t, "deleted by")
		}
	}
	if rapid.Bool().Draw(t, "source") {
		d.Source = &event.Feed{ID: "urn:f", Title: event.Text{Value: text.Draw(t, "title"), Language: "fr"}, Updated: someStamp.Draw(t, "updated"), Authors: persons.Draw(t, "feed authors"),
			Rights: words.Draw(t, "feed rights"), Links: []event.Link{{Rel: "self", Href: "https://f.example/", Length: event.NoLength}}}
	}
	return d
}

func drawCategory(t *rapid.T) event.Category {
	return event.Category{Term: rapid.SampledFrom([]string{"maps", "a:b&c", "ü"}).Draw(t, "term"), Scheme: rapid.SampledFrom([]string{"", "urn:s"}).Draw(t, "scheme"),
		Label: rapid.SampledFrom([]string{"", "Maps"}).Draw(t, "label")}
}

func drawLink(t *rapid.T) event.Link {
	l := event.Link{Rel: rapid.SampledFrom([]string{event.RelProfile, event.RelLicense, event.RelCanonical, event.RelCollection, event.RelDuplicate}).Draw(t, "rel"),
		Href: "https://o.example/" + rapid.StringMatching("[a-z]{1,3}").Draw(t, "href"), Type: rapid.SampledFrom([]string{"", "text/html"}).Draw(t, "type"), Length: event.NoLength,
		Pri: rapid.SampledFrom([]int{0, 1, 999_999}).Draw(t, "pri")}
	if l.OfCopy() {
		l.Hash, l.Length = rapid.SampledFrom([]string{"", "md5:0123456789abcdef0123456789abcdef"}).Draw(t, "hash"), rapid.Int64Range(-1, 9).Draw(t, "length")
		l.Modified = someStamp.Draw(t, "modified")
	}
	return l
}

// Whatever another bridge is said to carry, reading it neither fails nor takes much
// memory, and what was taken is written and read again as the same.
func FuzzDetails(f *testing.F) {
	f.Add(`{"lang":"de","authors":[{"name":"A"}],"categories":[{"term":"x"}],"source":{"id":"urn:f","links":[{"rel":"self","href":"u"}]},"comment":{"text":"c"}}`)
	f.Add(`{"authors":{"name":1},"source":[],"edited":"2026-01-01T00:00:00Z"}`)
	f.Fuzz(func(t *testing.T, stated string) {
		for _, kind := range []event.Kind{event.Created, event.Deleted} {
			d, categories := readDetails(stated, kind == event.Deleted)
			first := appendDetails(&event.Event{Kind: kind, Details: d, Categories: categories})
			again, more := readDetails(first, kind == event.Deleted)
			if second := appendDetails(&event.Event{Kind: kind, Details: again, Categories: more}); second != first {
				t.Fatalf("%s\n%s", first, second)
			}
		}
	})
}

// A profile is a name: one that is no IRI cannot be published, and is left out.
func TestProfileThatIsNoIRI(t *testing.T) {
	entry := &atompmh.Entry{Kind: atompmh.Active, ID: "urn:a", Updated: time.Unix(0, 0), Links: []atompmh.Link{{Rel: "alternate", Href: "https://a.example/"},
		{Rel: "profile", Href: "https://p.example/?a[]=b c"}, {Rel: "profile", Href: "https://p.example/ü"}, {Rel: "profile", Href: "file:///p"}}}
	if o, err := FromEntry(entry, &Selection{}); err != nil || len(o.Links) != 1 || o.Links[0].Href != "https://p.example/ü" {
		t.Errorf("%+v, %v", o.Links, err)
	}
}
