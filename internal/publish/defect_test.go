package publish

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
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
		stop, done := make(chan struct{}), make(chan error, 1)
		ctx, cancel := contextUntil(t, stop)
		defer cancel()
		go func() { done <- p.Run(ctx) }()
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
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
}
