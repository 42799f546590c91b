package eventlog

import (
	"context"
	"fmt"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKeyFilter: what was added is there, what was not mostly is not, and what there is
// no room for is refused.
func TestKeyFilter(t *testing.T) {
	testenv.Heavy(t)
	f := new(keyFilter)
	key := func(i int) int64 { return event.KeyBits(fmt.Sprintf("urn:example:%d", i)) }
	const n = 300_000
	for i := range n {
		if !f.add(key(i)) {
			t.Fatalf("no room for key %d", i)
		}
	}
	wrong := 0
	for i := range n {
		if !f.has(key(i)) {
			t.Fatalf("key %d is missing", i)
		}
		if f.has(key(n + i)) {
			wrong++
		}
		if f.has(uriKey(key(i))) {
			wrong++
		}
	}
	if most := 2 * n / 20; wrong > most {
		t.Errorf("%d of %d keys are taken for others, more than %d", wrong, 2*n, most)
	}
	words := 0
	for _, l := range f.layers {
		words += len(l)
	}
	if most := n; words > most {
		t.Errorf("%d words for %d keys, more than %d", words, n, most)
	}
	if none := (*keyFilter)(nil); !none.has(1) {
		t.Error("without a filter a key may be there")
	}
	full := &keyFilter{layers: make([]filterLayer, maxLayers), keys: firstLayer << (maxLayers - 1)}
	if full.add(1) {
		t.Error("a full filter has room")
	}
}

// TestKeyFilterOfSet: a set has a filter from the first batch of its first walk to the
// end of that, and no longer.
func TestKeyFilterOfSet(t *testing.T) {
	ctx := context.Background()
	l, err := Open(ctx, t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := l.EnsureSet(ctx, SetConfig{Name: "main", Content: event.Reference}); err != nil {
		t.Fatal(err)
	}
	src, err := l.EnsureSource(ctx, "main", "atompmh", "https://repository.example/feed.atom", 0)
	if err != nil {
		t.Fatal(err)
	}
	var cursor int64
	for walk, steps := range [][]bool{{true, true, false}, {false, false}} { // whether the set has a filter after each batch
		for i, want := range steps {
			var next []byte
			if i < len(steps)-1 {
				next = []byte("x")
			}
			out, err := l.Append(ctx, &event.Batch{Source: src, Cursor: cursor, Start: i == 0, Next: next, Items: []*event.Item{
				{Observation: event.Observation{Record: fmt.Sprint("urn:example:", i), Representations: []event.Representation{{Href: fmt.Sprint("https://repository.example/", i)}}}},
				{Observation: event.Observation{Record: "urn:example:again", Title: fmt.Sprint(walk, i), Order: event.StampFromNanos(int64(10*walk + i + 1)),
					Representations: []event.Representation{{Href: "https://repository.example/again"}}}},
				{Observation: event.Observation{Record: "urn:example:shares", Title: fmt.Sprint(walk, i), Order: event.StampFromNanos(int64(10*walk + i + 1)),
					Representations: []event.Representation{{Href: "https://repository.example/0"}}}}}}) // the URI of the first record
			if err != nil {
				t.Fatal(err)
			}
			cursor = out.Cursor
			if have := len(l.filters) > 0; have != want {
				t.Errorf("walk %d, batch %d: a filter: %v, want %v", walk, i, have, want)
			}
		}
	}
	if err := l.Verify(ctx, func(f Finding) { t.Errorf("%s: %s", f.Where, f.What) }); err != nil {
		t.Error(err)
	}
	s, err := l.Set(ctx, "main")
	if err != nil || s.Live != 5 {
		t.Errorf("%d records are live, %v, want 5", s.Live, err)
	}
}
