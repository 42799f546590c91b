package server

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
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
		ctx, cancel := context.WithTimeout(c.Request().Context(), readyTime)
		defer cancel()
		if err := s.opt.Ready(ctx); err != nil {
			w.Header().Set("Retry-After", "5")
			say(w, http.StatusServiceUnavailable, "not ready: "+public(err.Error())+"\n")
			return nil
		}
	}
	say(w, http.StatusOK, "ready\n")
	return nil
}
