package server_test

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/server"
)

// turns are bodies that come at full speed, and how often one was read in a row.
type turns struct {
	mu                         sync.Mutex
	bodies                     map[int]bool
	reads, last, row, mostRow  int
	largest, bodiesWanted, end int
}

type turn struct {
	*turns
	id int
}

func (b turn) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads >= b.end {
		return 0, io.EOF
	}
	b.bodies[b.id] = true
	b.largest = max(b.largest, len(p))
	if len(b.bodies) < b.bodiesWanted {
		return len(p), nil // not all have begun
	}
	b.reads++
	if b.row++; b.last != b.id {
		b.last, b.row = b.id, 1
	}
	b.mostRow = max(b.mostRow, b.row)
	return len(p), nil
}

func (turn) Close() error { return nil }

// D35: of hundreds of bodies that come at full speed each is read a small piece at a
// time, so that whoever else has something to do, such as /healthz, waits for a
// piece of each and not for 10 ms of each.
func TestBodiesTakeTurns(t *testing.T) {
	const bodies = 100
	h := newHouse(t, "", func(o *server.Options) {
		withDesk(func(w http.ResponseWriter, r *http.Request, _ string) {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{r.Body})
			w.WriteHeader(http.StatusAccepted)
		})(o)
		o.Bodies = limit.NewBytes(math.MaxInt64, math.MaxInt64)
	})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	all := &turns{bodies: map[int]bool{}, bodiesWanted: bodies, end: 1000 * bodies}
	var running sync.WaitGroup
	for i := range bodies {
		running.Go(func() {
			h.web.Config.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/sip/main", turn{all, i}))
		})
	}
	running.Wait()
	if all.reads < all.end || all.mostRow > 20 || all.largest > 16<<10 {
		t.Errorf("of %d pieces, of up to %d bytes, %d of one body were read in a row", all.reads, all.largest, all.mostRow)
	}
}
