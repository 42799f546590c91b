package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// readyTime is how long /readyz waits for an answer of the log.
const readyTime = 5 * time.Second

// healthz answers while the process serves at all.
func (s *Server) healthz(c echo.Context) error {
	say(c.Response().Writer, http.StatusOK, "ok\n")
	return nil
}

// readyz answers 200 when log and Change Lists are served, else 503 and why.
func (s *Server) readyz(c echo.Context) error {
	w := c.Response().Writer
	if s.opt.Ready != nil {
		if err := s.ready.ask(c.Request().Context(), s.opt.Ready); err != nil {
			why := "not ready; bridge status and the server's log say why\n"
			if s.operator(c.Request()) {
				why = "not ready: " + public(err.Error()) + "\n"
			}
			w.Header().Set("Retry-After", "5")
			say(w, http.StatusServiceUnavailable, why)
			return nil
		}
	}
	say(w, http.StatusOK, "ready\n")
	return nil
}

// readiness asks once for all who ask at the same time: no limit bounds how many
// these are, so they must not cost more than one of them.
type readiness struct {
	mu    sync.Mutex
	asked *readyAnswer // nil while nobody asks
}

type readyAnswer struct {
	done chan struct{}
	err  error
}

func (r *readiness) ask(ctx context.Context, ready func(context.Context) error) error {
	r.mu.Lock()
	a := r.asked
	if a == nil {
		a = &readyAnswer{done: make(chan struct{})}
		r.asked = a
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTime)
			defer cancel()
			a.err = defect.Guard(func() error { return ready(ctx) })
			r.mu.Lock()
			r.asked = nil
			r.mu.Unlock()
			close(a.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
