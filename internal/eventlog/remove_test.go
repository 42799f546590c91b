package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A removal that is broken off at any of its transactions goes on when it is called again,
// leaves the other set as it was, and the log is one that has lost nothing.
func TestRemoveSetInterrupted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	open := func() *eventlog.Log {
		l := mustOpen(t, folder, eventlog.Options{})
		return l
	}
	cursors := map[event.SourceID]int64{}
	fill := func(l *eventlog.Log, set string, from, n int) {
		t.Helper()
		must(t, l.EnsureSet(t.Context(), eventlog.SetConfig{Name: set, Content: event.Reference}))
		id, err := l.EnsureSource(t.Context(), set, "atompmh", "https://origin.example/"+set, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := &event.Batch{Source: id, Cursor: cursors[id], Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}}
		for i := range n {
			href := fmt.Sprintf("https://origin.example/%s/%d", set, from+i)
			b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: href, Loc: href, Representations: []event.Representation{{Name: "a", Href: href}}}})
			b.Quarantine = append(b.Quarantine, event.Quarantined{URL: href, Rule: "S2", Input: []byte(href)})
		}
		out, err := l.Append(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		cursors[id] = out.Cursor
	}
	verify := func(l *eventlog.Log) (found []eventlog.Finding) {
		t.Helper()
		must(t, l.Verify(t.Context(), func(f eventlog.Finding) { found = append(found, f) }))
		return found
	}
	l := open()
	fill(l, "stays", 0, 50)
	fill(l, "goes", 0, 1200)
	fill(l, "stays", 50, 50)
	fill(l, "goes", 1200, 1300) // the log ends with it
	if found := verify(l); found != nil {
		t.Fatal(found)
	}
	last, err := l.LastSeq(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, l.RemoveSet(t.Context(), "goes"))
	if _, err := l.Set(t.Context(), "goes"); err == nil {
		t.Error("a removed set is still there")
	}
	if found := verify(l); len(found) != 1 {
		t.Errorf("while it is removed: %v", found)
	}
	for tries := 0; ; tries++ { // each breaks off a little later, and the log is closed and opened
		if tries > 1000 {
			t.Fatal("it does not end")
		}
		ctx, cancel := context.WithCancel(t.Context())
		counting := &countingContext{Context: ctx, cancel: cancel}
		counting.left.Store(int64(2 + 3*tries))
		err := l.FinishRemovals(counting)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		closed(t, l)
		l = open()
		if l.Loss() != nil {
			t.Fatalf("try %d: the log has lost something: %v", tries, l.Loss())
		}
	}
	if found := verify(l); found != nil {
		t.Error(found)
	}
	if now, err := l.LastSeq(t.Context()); err != nil || now != last {
		t.Errorf("the last Seq is %d, %v, and was %d", now, err, last)
	}
	n := 0
	for ev, err := range l.Events(t.Context(), "", event.Range{Upto: last}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; ev.Set != "stays" {
			t.Fatalf("event %d is of set %s", ev.Seq, ev.Set)
		}
	}
	if n != 100 {
		t.Errorf("%d events are left of the other set, want 100", n)
	}
	fill(l, "goes", 0, 20) // another one of that name
	fill(l, "stays", 100, 20)
	if found := verify(l); found != nil {
		t.Error(found)
	}
	if all, err := l.RemovedSets(t.Context()); err != nil || len(all) != 1 || all[0].Events != 2500 || all[0].UnderWay {
		t.Errorf("removed: %v, %v", all, err)
	}
	closed(t, l)
	l = open()
	defer l.Close()
	if l.Loss() != nil || verify(l) != nil {
		t.Errorf("after another start: %v", l.Loss())
	}
}

// countingContext ends after it was asked so many times whether it has.
type countingContext struct {
	context.Context
	left   atomic.Int64 // database/sql asks from its own goroutines
	cancel context.CancelFunc
}

func (c *countingContext) Err() error {
	if c.left.Add(-1) < 0 {
		c.cancel()
	}
	return c.Context.Err()
}

// A set that is removed while the log is checked is no damage.
func TestVerifyBesideRemoveSet(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "goes", Content: event.Reference}))
	goes, err := l.EnsureSource(ctx, "goes", "atompmh", "https://origin.example/goes", 0)
	must(t, errors.Join(err, add(l, src, 0, 700), add(l, goes, 0, 700), add(l, src, 700, 700), l.Exec(ctx, "UPDATE event SET body = zeroblob(length(body)) WHERE id = 1 << 40 | 10")))
	var found []string
	if err := l.Verify(ctx, func(f eventlog.Finding) {
		if found = append(found, f.Where); len(found) == 1 {
			if err := errors.Join(l.RemoveSet(ctx, "goes"), l.FinishRemovals(ctx)); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"table event, event 10", "table event, event 11", "table event, set main, segment 1", "set goes"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// A log that has no set, or none any more, is sound.
func TestVerifyWithoutSets(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := mustOpen(t, t.TempDir(), eventlog.Options{})
	defer l.Close()
	sound(t, l)
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "goes", Content: event.Reference}))
	goes, err := l.EnsureSource(ctx, "goes", "atompmh", "https://origin.example/goes", 0)
	must(t, errors.Join(err, add(l, goes, 0, 3), l.RemoveSet(ctx, "goes"), l.FinishRemovals(ctx)))
	sound(t, l)
}

// Two epochs that begin one after the other, without an event between them, lose the same Seqs.
func TestVerifyAfterTwoEpochs(t *testing.T) {
	t.Parallel()
	ctx, folder := t.Context(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "goes", Content: event.Reference}))
	goes, err := l.EnsureSource(ctx, "goes", "atompmh", "https://origin.example/goes", 0)
	must(t, errors.Join(err, add(l, src, 0, 3), add(l, goes, 0, 3), add(l, src, 3, 3), l.RemoveSet(ctx, "goes"), l.FinishRemovals(ctx)))
	for range 2 {
		must(t, errors.Join(l.Close(), os.Remove(filepath.Join(folder, eventlog.HeadName))))
		l, src = filled(t, folder, event.Reference)
	}
	defer l.Close()
	must(t, add(l, src, 6, 3))
	sound(t, l)
}

// Contents that a removed set has named stay while it is unknown what a damaged event names, and
// that is no error: a data folder could not be opened with it.
func TestUnusedContentsBesideDamage(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	must(t, errors.Join(add(l, src, 0, 3), l.Exec(ctx, "INSERT INTO removed_content (sha256) VALUES (zeroblob(32))")))
	for want, change := range []string{"CAST(body || x'00' AS BLOB)", "substr(body, 1, length(body) - 1)"} {
		must(t, l.Exec(ctx, "UPDATE event SET body = "+change+" WHERE id = 1 << 40 | 2"))
		if unused, _, err := l.UnusedContents(ctx); err != nil || len(unused) != want {
			t.Errorf("%s: %d contents are unused, want %d; %v", change, len(unused), want, err)
		}
	}
}

// The walk of a Source that was under way goes from memory with its set.
func TestRemovedSetLeavesNoWalk(t *testing.T) {
	t.Parallel()
	l, err := eventlog.Open(t.Context(), t.TempDir(), eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.EnsureSet(t.Context(), eventlog.SetConfig{Name: "goes", Content: event.Redirect}); err != nil {
		t.Fatal(err)
	}
	id, err := l.EnsureSource(t.Context(), "goes", "atompmh", "https://origin.example/", 0)
	if err != nil {
		t.Fatal(err)
	}
	href := "https://origin.example/1"
	if _, err := l.Append(t.Context(), &event.Batch{Source: id, Start: true, Next: []byte("page 2"), Documents: []event.Document{{URL: "https://origin.example/feed.atom"}},
		Items: []*event.Item{{Observation: event.Observation{Record: href, Representations: []event.Representation{{Href: href}}}}}}); err != nil {
		t.Fatal(err)
	}
	if n := l.Walks(t); n != 1 {
		t.Fatalf("%d walks in memory, want the one under way", n)
	}
	if err := l.RemoveSet(t.Context(), "goes"); err != nil {
		t.Fatal(err)
	}
	if err := l.FinishRemovals(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := l.Walks(t); n != 0 {
		t.Errorf("%d walks in memory, and no set", n)
	}
}
