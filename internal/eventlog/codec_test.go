package eventlog

import (
	"reflect"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// detailed has everything that few records have.
var detailed = event.Observation{Record: "urn:x:1", CopyModified: event.StampFromNanos(8), ContentBits: -9, Categories: []event.Category{{Term: "maps", Scheme: "urn:s", Label: "Maps"}, {Term: "b"}},
	Representations: []event.Representation{{Href: "https://a.example/1", Hreflang: "de", Profile: "urn:p"}, {Href: "https://a.example/2", Pri: 7}},
	Links:           []event.Link{{Rel: "describes", Href: "urn:2", Record: "urn:2", InSet: true}, {Rel: "related", Href: "urn:3"}, {Rel: "duplicate", Href: "urn:4", Pri: 999_999}},
	Details: &event.Details{Language: "de", EntryLanguage: "en", Published: event.StampFromNanos(5), Edited: event.StampFromNanos(-6),
		DeletedBy: event.Person{Name: "D", URI: "urn:d", Email: "d@d.example"}, Comment: event.Text{Value: "gone", Language: "fr"}, Authors: []event.Person{{Name: "A", URI: "https://a.example/", Email: "a@a.example"}}, Contributors: []event.Person{{Name: "C"}},
		Rights: event.Text{Value: "free", Language: "en"}, ChangeFreq: "weekly",
		Source: &event.Feed{ID: "urn:feed", Title: event.Text{Value: "Feed"}, Updated: event.StampFromNanos(3), Authors: []event.Person{{Name: "F"}},
			Contributors: []event.Person{{Name: "G"}}, Rights: event.Text{Value: "none"}, Categories: []event.Category{{Term: "t"}},
			Links: []event.Link{{Rel: "self", Href: "https://a.example/feed", Length: event.NoLength}}}}}

// What the body of an event holds is read as it was written, and what is absent
// takes no room (D15, D16).
func TestBodyOfDetails(t *testing.T) {
	var got body
	if err := readBody(appendBody(nil, &body{obs: detailed}), &got); err != nil || !reflect.DeepEqual(got.obs, detailed) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got.obs, detailed)
	}
	// Details without any of the newer ones are as long as they were.
	older := body{obs: event.Observation{Record: "urn:x:1", Details: &event.Details{Language: "de"}}}
	// version, flags (three bytes), record, document, back, title, own identifier, loc, representations, preferred, links; language, two lists of people, rights, changefreq, source
	if n, want := len(appendBody(nil, &older)), 1+3+8+1+1+1+1+1+1+1+1+3+1+1+2+1+1; n != want {
		t.Errorf("a body with a language has %d bytes, want %d", n, want)
	}
	plain := event.Observation{Record: "urn:x:1", Title: "A", Representations: []event.Representation{{Href: "https://a.example/1", Type: "text/xml", Length: 3}}}
	// version, flags (one byte), record, document, back, title, own identifier, loc,
	// a representation of 5 fields, preferred, links
	if n, want := len(appendBody(nil, &body{obs: plain})), 1+1+8+1+1+2+1+1+(1+20+9+1+1+1)+1+1; n != want {
		t.Errorf("a plain body has %d bytes, want %d", n, want)
	}
}

// FuzzBody reads any bytes as a body: it never panics, and what it takes it
// writes and reads again as the same.
func FuzzBody(f *testing.F) {
	whole := &body{document: 7, gone: "https://a.example/old", unlisted: true, obs: event.Observation{
		Record: "urn:x:1", Title: "A title", Modified: event.StampFromNanos(-5), Fetched: true, SourceIdentifier: "1", Loc: "https://a.example/new",
		Representations: []event.Representation{{Href: "https://a.example/1", Type: "text/xml", Length: event.NoLength, Hash: "md5:00", Name: "xml"}, {Href: "b", Length: 3}},
		Preferred:       1,
		Via:             event.Link{Href: "https://o.example/", Length: 9, Modified: event.StampFromNanos(1)},
		Links:           []event.Link{{Rel: "describedby", Href: "https://a.example/d", Length: event.NoLength}},
	}}
	f.Add(appendBody(nil, whole))
	placed := *whole
	placed.obs.Order, placed.obs.Place, placed.obs.Claim = event.StampFromNanos(9), event.Place{List: -3, Position: 70000}, 5
	placed.obs.Links = []event.Link{{Rel: "describes", Href: "https://a.example/d", Length: event.NoLength, Record: "urn:x:2"}, {Href: "x", Length: 1}}
	f.Add(appendBody(nil, &placed))
	placed.obs.Order = placed.obs.Modified
	f.Add(appendBody(nil, &placed))
	f.Add(appendBody(nil, &body{obs: event.Observation{Record: "x", Deleted: true}}))
	f.Add(appendBody(nil, &body{obs: detailed}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var first, second body
		if readBody(raw, &first) != nil {
			return
		}
		if err := readBody(appendBody(nil, &first), &second); err != nil {
			t.Fatalf("%+v: %v", first, err)
		}
		if len(first.obs.Representations)+len(second.obs.Representations) == 0 {
			first.obs.Representations, second.obs.Representations = nil, nil
		}
		if len(first.obs.Links)+len(second.obs.Links) == 0 {
			first.obs.Links, second.obs.Links = nil, nil
		}
		if !reflect.DeepEqual(first, second) {
			t.Fatalf("\n%+v\n%+v", first, second)
		}
	})
}
