package eventlog

import (
	"reflect"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// FuzzBody reads any bytes as a body: it never panics, and what it takes it
// writes and reads again as the same.
func FuzzBody(f *testing.F) {
	whole := &body{document: 7, gone: "https://a.example/old", shared: true, obs: event.Observation{
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
