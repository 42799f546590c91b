package publish

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// D75: a panic while a snapshot is made ends neither Run nor what it does for other
// sets, and is tried again.
func TestPanicOfASnapshot(t *testing.T) {
	l := history(1000, event.Mirror).many("main", 10)
	l.make("other", event.Mirror, 1000).many("other", 10)
	synctest.Test(t, func(t *testing.T) {
		p := small(t, l, t.TempDir())
		var broken atomic.Bool
		broken.Store(true)
		p.setFault(func(_, path string, step func() error) error {
			if broken.Load() && strings.Contains(path, "main") {
				panic("a defect")
			}
			return step()
		})
		end := run(p)
		shows := func(set string, want event.Seq) {
			t.Helper()
			synctest.Wait()
			if got, err := p.SnapshotSeq(t.Context(), set); err != nil || got != want {
				t.Errorf("the snapshot of %s is %d, want %d (%v)", set, got, want, err)
			}
		}
		shows("main", 0)
		shows("other", 20)
		broken.Store(false)
		time.Sleep(time.Minute)
		shows("main", 10)
		end()
	})
}

// flawedLog panics after the first event.
type flawedLog struct{ *sliceLog }

func flawed(events iter.Seq2[*event.Event, error]) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for e, err := range events {
			if !yield(e, err) {
				return
			}
			panic("a defect")
		}
	}
}

func (l flawedLog) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return flawed(l.sliceLog.Events(ctx, set, r))
}

func (l flawedLog) Live(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return flawed(l.sliceLog.Live(ctx, set, at))
}

func (l flawedLog) Listed(ctx context.Context, set string, at event.Seq) iter.Seq2[*event.Event, error] {
	return flawed(l.sliceLog.Listed(ctx, set, at))
}

// D75: a panic in the middle of a document leaves no goroutine behind that
// compresses it, nor its file: it comes again each time the document is asked for.
func TestPanicInADocument(t *testing.T) {
	l := history(1000, event.Mirror).many("main", 10)
	synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
		p := small(t, flawedLog{l}, t.TempDir())
		for _, gzip := range []bool{false, true} {
			for _, name := range []string{"changelist/1.xml", "feed.atom"} {
				doc, err := p.Document(t.Context(), "/sets/main/"+name, gzip)
				if err != nil {
					t.Fatal(err)
				}
				var found *defect.Error
				if _, _, err := doc.Open(); !errors.As(err, &found) {
					t.Errorf("%s: got %v", name, err)
				}
			}
		}
		var found *defect.Error
		if err := defect.Guard(func() error { return p.Snapshot(t.Context(), "main") }); !errors.As(err, &found) {
			t.Errorf("the snapshot: got %v", err)
		}
	})
}
