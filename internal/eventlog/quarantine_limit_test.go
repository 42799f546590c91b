package eventlog_test

import (
	"fmt"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// D131: of a Source so many bad inputs are kept and no more; the newest stay, what
// goes is counted, and another Source loses none.
func TestQuarantineHasALimit(t *testing.T) {
	testenv.Heavy(t)
	ctx := t.Context()
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer l.Close()
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Mirror}))
	cursors, dropped := map[event.SourceID]int64{}, map[event.SourceID]int{}
	keep := func(source event.SourceID, from, n int, size int) {
		t.Helper()
		b := &event.Batch{Source: source, Cursor: cursors[source], Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}}
		for i := range n {
			b.Quarantine = append(b.Quarantine, event.Quarantined{URL: "https://origin.example/feed.atom", Rule: "S2", Reason: "bad",
				Input: fmt.Appendf(make([]byte, size), "input %d", from+i)})
		}
		out, err := l.Append(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		cursors[source] = out.Cursor
		dropped[source] += out.Dropped
	}
	source := func(i int) event.SourceID {
		t.Helper()
		id, err := l.EnsureSource(ctx, "main", "atompmh", fmt.Sprintf("https://origin.example/%d", i), i)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	flood, large, other := source(0), source(1), source(2)
	keep(other, 0, 3, 0)
	for i := range 11 {
		keep(flood, i*1000, 1000, 0)
	}
	for i := range 9 {
		keep(large, i, 1, 32<<20)
	}
	// In one batch, twice: what would make room at once is not written, but counted.
	burst := source(3)
	for range 2 {
		keep(burst, 0, 12_500, 0)
	}
	all, err := l.Quarantined(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	kept, newest := map[event.SourceID]int{}, map[event.SourceID]int64{}
	for _, q := range all {
		kept[q.Source]++
		newest[q.Source] = q.ID
	}
	if kept[flood] != 9000 || kept[large] != 7 || kept[other] != 3 || kept[burst] != 9000 {
		t.Errorf("kept: %d of 11,000, %d of 9 with 32 MiB each, %d of 3, %d of 12,500 twice", kept[flood], kept[large], kept[other], kept[burst])
	}
	stored, err := l.Sources(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		if want := map[event.SourceID]int{flood: 2000, large: 2, other: 0, burst: 3500 + 3500}[s.ID]; s.Dropped != want || dropped[s.ID] != want {
			t.Errorf("Source %d: %d are said to be dropped, %d in all, want %d", s.ID, dropped[s.ID], s.Dropped, want)
		}
	}
	// Of so many a page reads a page.
	page, err := l.QuarantinePage(ctx, event.QuarantineQuery{Set: "main", Source: flood, Rule: "S2", Waiting: true, Newest: true, Limit: 2})
	if err != nil || len(page) != 2 || page[0].ID != newest[flood] || page[1].ID != newest[flood]-1 {
		t.Errorf("the newest page is %v, %v", page, err)
	}
	page, err = l.QuarantinePage(ctx, event.QuarantineQuery{Source: flood, After: newest[flood] - 1, Limit: 5})
	if err != nil || len(page) != 1 || page[0].ID != newest[flood] {
		t.Errorf("the last page is %v, %v", page, err)
	}
	if page, err := l.QuarantinePage(ctx, event.QuarantineQuery{Rule: "S3"}); err != nil || len(page) != 0 {
		t.Errorf("of another rule: %v, %v", page, err)
	}
	if sets, rules, err := l.QuarantineKinds(ctx); err != nil || len(sets) != 1 || sets[0] != "main" || len(rules) != 1 || rules[0] != "S2" {
		t.Errorf("kinds: %q, %q, %v", sets, rules, err)
	}
	if err := l.Verify(ctx, func(f eventlog.Finding) { t.Errorf("verify: %v", f) }); err != nil {
		t.Error(err)
	}
	if q, err := l.QuarantinedInput(ctx, newest[flood]); err != nil || string(q.Input) != "input 10999" {
		t.Errorf("the newest is %q, %v", q.Input, err)
	}
	// A Source that was forgotten has none when it is there again.
	if err := l.Forget(ctx, flood, nil); err != nil {
		t.Fatal(err)
	}
	source(0)
	if stored, err = l.Sources(ctx, "main"); err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		if s.ID == flood && (s.Dropped != 0 || s.Quarantined != 0) {
			t.Errorf("Source %d was forgotten, and has %d bad inputs and %d that were dropped", s.ID, s.Quarantined, s.Dropped)
		}
	}
}

// A bad input that a harvest finds again, while somebody reads it or marks it as taken in,
// stays what was stored.
func TestQuarantineBesideAHarvest(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	var cursor int64
	again := func(line int) error {
		b := &event.Batch{Source: src, Cursor: cursor, Start: true, Quarantine: []event.Quarantined{{URL: "https://origin.example/feed.atom", Line: line, Rule: "S10", Reason: "bad", Input: []byte("<entry/>")}}}
		out, err := l.Append(ctx, b)
		cursor = out.Cursor
		return err
	}
	must(t, again(0))
	ended := make(chan error, 1)
	go func() {
		for line := range 500 {
			if err := again(line); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for {
		must(t, l.Replayed(ctx, 1))
		if _, err := l.QuarantinedInput(ctx, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			sound(t, l)
			return
		default:
		}
	}
}
