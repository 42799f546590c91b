package eventlog

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// D110, D116: whatever an event is made of, its weights are no less than the bytes
// that it takes in a Change List and in an archive document.
func TestWeightLaw(t *testing.T) {
	base := "https://" + strings.Repeat("b", 88) // with the set's name 100 bytes
	// Most have next to nothing of what varies, so that the markup counts.
	text := rapid.OneOf(rapid.Just(""), rapid.Just(""), rapid.Just(""), rapid.SampledFrom([]string{"", " ", "urn:x:1", "https://a.example/" + strings.Repeat("&", 50), "<&>\"'", "ü", "\x00\x01", "\xff\xfe", "\t\n", "text/xml", "pdf", "de", "weekly"}), rapid.String())
	href := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"https://o/", "urn:o:", "file:///"}).Draw(t, "scheme") + text.Draw(t, "rest")
	})
	number := rapid.SampledFrom([]int64{-1, 0, 1<<63 - 1})
	stamp := rapid.SampledFrom([]event.Stamp{{}, event.StampFromNanos(1), event.StampFromNanos(1<<62 + 123456789)})
	link := rapid.Custom(func(t *rapid.T) event.Link {
		return event.Link{Rel: rapid.SampledFrom([]string{event.RelDescribedBy, event.RelDescribes, event.RelProfile, event.RelRelated, event.RelLicense, event.RelDuplicate, event.RelCollection, event.RelSuccessor, "memento"}).Draw(t, "rel"),
			Href: href.Draw(t, "href"), Type: text.Draw(t, "type"), Length: number.Draw(t, "length"), Record: text.Draw(t, "record"), InSet: rapid.Bool().Draw(t, "in set"),
			Hash: text.Draw(t, "hash"), Modified: stamp.Draw(t, "modified"), Pri: rapid.SampledFrom([]int{0, 0, 999_999}).Draw(t, "pri")}
	})
	person := rapid.Custom(func(t *rapid.T) event.Person {
		return event.Person{Name: text.Draw(t, "name"), URI: text.Draw(t, "uri"), Email: text.Draw(t, "email") + "@a"}
	})
	category := rapid.Custom(func(t *rapid.T) event.Category {
		return event.Category{Term: text.Draw(t, "term"), Scheme: text.Draw(t, "scheme"), Label: text.Draw(t, "label")}
	})
	feed := rapid.Custom(func(t *rapid.T) *event.Feed {
		return &event.Feed{ID: text.Draw(t, "id"), Title: event.Text{Value: text.Draw(t, "title"), Language: text.Draw(t, "language")}, Updated: stamp.Draw(t, "updated"),
			Authors: rapid.SliceOfN(person, 0, 2).Draw(t, "authors"), Rights: event.Text{Value: text.Draw(t, "rights"), Language: text.Draw(t, "language")},
			Categories: rapid.SliceOfN(category, 0, 2).Draw(t, "categories"), Links: rapid.SliceOfN(link, 0, 2).Draw(t, "links")}
	})
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content")
		kind := rapid.SampledFrom([]event.Kind{event.Created, event.Updated, event.Deleted}).Draw(t, "kind")
		v := body{obs: event.Observation{Record: strings.Repeat("r", rapid.SampledFrom([]int{1, 70}).Draw(t, "length")) + text.Draw(t, "record"), Title: text.Draw(t, "title"), Modified: stamp.Draw(t, "modified"), CopyModified: stamp.Draw(t, "copy"),
			SourceIdentifier: text.Draw(t, "source identifier"), Deleted: kind == event.Deleted}}
		o := &v.obs
		if rapid.Bool().Draw(t, "via") {
			o.Via = event.Link{Href: href.Draw(t, "via"), Type: text.Draw(t, "type"), Length: number.Draw(t, "length"), Hash: text.Draw(t, "hash"), Modified: stamp.Draw(t, "stamp")}
		}
		if rapid.Bool().Draw(t, "details") {
			o.Details = &event.Details{Language: text.Draw(t, "language"), Authors: rapid.SliceOfN(person, 0, 20).Draw(t, "authors"), Contributors: rapid.SliceOfN(person, 0, 2).Draw(t, "contributors"),
				Rights: event.Text{Value: text.Draw(t, "rights"), Language: "de"}, ChangeFreq: rapid.SampledFrom([]string{"", "monthly", "often"}).Draw(t, "changefreq"),
				EntryLanguage: text.Draw(t, "entry language"), Published: stamp.Draw(t, "published"), Edited: stamp.Draw(t, "edited"),
				DeletedBy: person.Draw(t, "deleted by"), Comment: event.Text{Value: text.Draw(t, "comment"), Language: text.Draw(t, "comment language")}}
			if rapid.Bool().Draw(t, "source") {
				o.Details.Source = feed.Draw(t, "own source")
			}
		}
		o.Links = rapid.SliceOfN(link, 0, rapid.SampledFrom([]int{1, 20}).Draw(t, "most links")).Draw(t, "links")
		if !o.Deleted {
			for range rapid.SampledFrom([]int{0, 1, 3, 20}).Draw(t, "representations") {
				o.Representations = append(o.Representations, event.Representation{Href: href.Draw(t, "href"), Type: text.Draw(t, "type"), Hash: text.Draw(t, "hash"),
					Length: number.Draw(t, "length"), Hreflang: text.Draw(t, "hreflang"), Encoding: rapid.SampledFrom([]string{"", "gzip"}).Draw(t, "encoding"), Profile: text.Draw(t, "profile"),
					Pri: rapid.SampledFrom([]int{0, 0, 999_999}).Draw(t, "pri")})
			}
			if n := len(o.Representations); n > 0 {
				o.Preferred = rapid.IntRange(0, n-1).Draw(t, "preferred")
			}
			event.NameRepresentations(o.Representations, nil)
			o.Categories = rapid.SliceOfN(category, 0, 20).Draw(t, "categories")
		}
		if content == event.Reference {
			o.Loc = href.Draw(t, "loc")
			if kind == event.Updated && rapid.Bool().Draw(t, "moved") {
				v.arrived, v.gone = true, href.Draw(t, "gone")
			}
		}
		if content != event.Reference {
			o.Loc = originalURI(o)
		}
		e := &event.Event{Seq: 1, Set: "main", Record: o.Record, Kind: kind, Observed: event.MicrosOf(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)),
			Modified: o.Modified, CopyModified: o.CopyModified, Title: o.Title, Categories: o.Categories, Details: o.Details, Representations: o.Representations, Preferred: o.Preferred,
			Via: viaOf(o, ""), Links: o.Links, Loc: o.Loc, Gone: v.gone, Arrived: v.arrived, Origin: event.Origin{Protocol: rapid.SampledFrom([]string{"sip", "atom-pmh"}).Draw(t, "protocol"), SourceIdentifier: o.SourceIdentifier}}
		var source int64
		if rapid.Bool().Draw(t, "document") {
			f := feed.Draw(t, "feed")
			e.Origin.FeedID, e.Origin.FeedTitle, e.Origin.FeedUpdated, e.Origin.Feed = f.ID, f.Title.Value, f.Updated, f
			source = documentWeight(&event.Document{FeedID: f.ID, FeedTitle: f.Title.Value, Feed: f})
		}
		w := weightOf(&v, content, entriesOf(kind, &v), source)

		var doc bytes.Buffer
		list := resourcesync.NewWriter(&doc, &resourcesync.Document{Capability: resourcesync.ChangeList, From: resourcesync.Seconds(time.Unix(0, 0)),
			Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "http://h.example/"}}})
		before := list.Size()
		for _, entry := range translate.NewListEncoder(base, "main", content).ChangeEntries(e) {
			if err := list.Entry(&entry); err != nil {
				t.Skip("no such entry can be written: ", err)
			}
		}
		if n := list.Size() - before; n > w.list {
			t.Fatalf("%d bytes in a list, weight %d:\n%s", n, w.list, doc.Bytes())
		}

		doc.Reset()
		set := &event.Set{Name: "main", Content: content, Feed: "urn:uuid:6f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1"}
		head := &atompmh.Feed{ID: set.Feed, Title: "t", Metadata: atompmh.Metadata{Authors: []atompmh.Person{{Name: "a"}}}, Updated: e.Observed.Time(), Archive: true}
		empty := atompmh.NewWriter(&doc, head)
		if err := empty.Close(); err != nil {
			t.Fatal(err)
		}
		n := -int64(doc.Len())
		doc.Reset()
		archive := atompmh.NewWriter(&doc, head)
		if err := archive.Entry(translate.NewFeedEncoder(base, set).Entry(e)); err != nil {
			t.Fatal(err)
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		if n += int64(doc.Len()); n > w.feed {
			t.Fatalf("%d bytes in a feed, weight %d:\n%s", n, w.feed, doc.Bytes())
		}
	})
}

// A record in mode reference has its URI twice in a list, which may be three times as long as the
// address that its Source writes. Lists keep to their size all the same (ResourceSync 7).
func TestListsOfLongAddresses(t *testing.T) {
	l, err := Open(t.Context(), t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.EnsureSet(t.Context(), SetConfig{Name: "main", Content: event.Reference, SegmentEvents: 50_000}); err != nil {
		t.Fatal(err)
	}
	src, err := l.EnsureSource(t.Context(), "main", "atompmh", "https://source.example/feed.atom", 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &event.Batch{Source: src, Start: true}
	for i := range 4200 {
		b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:", i), Order: event.StampFromNanos(1),
			Representations: []event.Representation{{Href: fmt.Sprint("https://source.example/", i, strings.Repeat("録", 800)), Length: event.NoLength}}}})
	}
	if _, err := l.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	segments, err := l.Segments(t.Context(), "main")
	if err != nil || len(segments) < 2 {
		t.Fatalf("%d segments, %v", len(segments), err)
	}
	for _, s := range segments {
		list := resourcesync.NewWriter(io.Discard, &resourcesync.Document{Capability: resourcesync.ChangeList, From: resourcesync.Seconds(time.Unix(0, 0)),
			Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "http://h.example/"}}})
		list.MaxBytes = resourcesync.MaxBytes
		encoder := translate.NewListEncoder("https://b.example", "main", event.Reference)
		for e, err := range l.Events(t.Context(), "main", s.Range()) {
			if err == nil {
				err = list.Entry(&encoder.ChangeEntries(e)[0])
			}
			if err != nil {
				t.Fatalf("segment %d of %d events: %v", s.N, s.Events, err)
			}
		}
	}
}
