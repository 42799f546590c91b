package publish

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// A page of events that say as much as events may has few of them: a reader of pages, or of
// a stream, makes the server hold no more than that. Read on, they are all there, once.
func TestChangesOfLongEvents(t *testing.T) {
	testenv.Heavy(t)
	const events = 60
	log := newLog().make("maps", event.Reference, 1000)
	for i := range events {
		e := event.Event{Record: fmt.Sprint("urn:", i), Kind: event.Created}
		for n := range 45 { // about event.MaxMetadata
			e.Representations = append(e.Representations, event.Representation{Href: fmt.Sprintf("https://origin.example/%d/%d/%s", i, n, strings.Repeat("x", 8<<10)), Type: "text/xml", Length: event.NoLength})
		}
		log.add("maps", e)
	}
	set, err := log.Set(t.Context(), "maps")
	if err != nil {
		t.Fatal(err)
	}
	var got []event.Seq
	tags := map[string]bool{}
	for after := event.Seq(0); ; {
		page, err := Changes(t.Context(), log, "https://bridge.example", &set, after, MostChanges)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > changesBytes+2*event.MaxMetadata {
			t.Fatalf("a page has %d bytes", len(text))
		}
		for i := range page.Changes {
			got = append(got, page.Changes[i].Seq)
		}
		tags[page.ETag()] = true
		if page.After <= after || page.Complete {
			break
		}
		after = page.After
	}
	if len(got) != events || len(tags) < 10 {
		t.Errorf("%d events in %d pages", len(got), len(tags))
	}
	for i := range got {
		if i > 0 && got[i] <= got[i-1] {
			t.Fatalf("their places are %v", got)
		}
	}
}

// The weight of a segment of a set in mode reference may be less than what its URIs take.
func TestWindowOfLongAddresses(t *testing.T) {
	for content, first := range map[event.Content]int{event.Mirror: 2, event.Reference: 3} {
		segments := []event.Segment{{N: 1, Weight: 20_000_000, Until: 1}, {N: 2, Weight: 20_000_000, Until: 2}, {N: 3, Weight: 20_000_000}}
		if it := changeListWindow(event.Set{Name: "main", Content: content}, segments); it.N != first {
			t.Errorf("%v: the window begins with segment %d, want %d", content, it.N, first)
		}
	}
}
