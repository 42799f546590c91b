package limit_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// D40: what anybody can cause is logged at once, then once a minute with how often it
// was, the last one as the example; and when nothing happens nothing is logged.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limit.LogThrottle
		var mu sync.Mutex // the lines of a minute come from its timer
		var said []string
		note := func(what int) {
			l.Note(func(n int) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, fmt.Sprintf("%d, last %d", n, what))
			})
		}
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(said, lines) {
				t.Errorf("said %q, want %q", said, lines)
			}
			said = nil
		}
		note(1)
		want("1, last 1")
		for i := range 8000 {
			note(i)
		}
		want()
		time.Sleep(time.Minute)
		want("8000, last 7999")
		note(5)
		time.Sleep(59 * time.Second)
		want()
		time.Sleep(time.Second)
		want("1, last 5")
		time.Sleep(time.Hour)
		want()
		note(6)
		want("1, last 6")
	})
}
