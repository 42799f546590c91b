package server

import (
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
)

// door is what every request passes before it is routed, and what is left of it
// when something has gone wrong.
func (s *Server) door(w http.ResponseWriter, r *http.Request) {
	began, client := time.Now(), clientOf(r.RemoteAddr)
	a := &answer{ResponseWriter: w, patience: s.opt.Limits.Patience, buffers: &s.buffers}
	if !s.gate.enter(client) {
		w.Header().Set("Retry-After", "1")
		say(a, http.StatusTooManyRequests, "Too many requests of your address at a time: wait for some of them to end.\n")
		return
	}
	defer s.gate.leave(client)
	defer s.note(a, r, began)
	defer s.rescue(a, r)

	h := w.Header()
	h["X-Content-Type-Options"] = s.nosniff
	h["Content-Security-Policy"] = s.policy
	if s.refused(a, r) {
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, s.mount); ok && s.mount != "" {
		if rest == "" {
			http.Redirect(a, r, (&url.URL{Path: s.mount + "/"}).EscapedPath(), http.StatusPermanentRedirect)
			return
		}
		if rest[0] == '/' {
			under := *r
			u := *r.URL
			u.Path = rest
			under.URL = &u
			r = &under
		}
	}
	s.echo.ServeHTTP(a, r)
}

// refused answers requests that nothing here answers: other methods, bodies,
// and paths that are written in another way than we write ours. Of these last,
// %2e%2e is one.
func (s *Server) refused(a *answer, r *http.Request) bool {
	if r.ContentLength != 0 {
		// What is left of the body must come in time too, or go unread.
		_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(s.opt.Limits.HeaderTime))
		a.Header().Set("Connection", "close")
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		a.Header().Set("Allow", "GET, HEAD")
		say(a, http.StatusMethodNotAllowed, "This server is for reading: use GET or HEAD.\n")
	case r.ContentLength != 0:
		say(a, http.StatusRequestEntityTooLarge, "A request here has no body: send it without one.\n")
	case r.URL.RawPath != "":
		s.nothing(a)
	default:
		return false
	}
	return true
}

// rescue ends a request whose handler panicked.
func (s *Server) rescue(a *answer, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http knows it by the same comparison
		panic(v)
	}
	s.log.Error("a request made its handler panic: please report this", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	s.broken(a)
}

// note is the access log, and tells of answers that did not get through.
func (s *Server) note(a *answer, r *http.Request, began time.Time) {
	if a.err != nil {
		level := slog.LevelDebug // the client's doing
		if a.reading {
			level = slog.LevelError
		}
		s.log.Log(r.Context(), level, "an answer was cut short", "path", r.URL.Path, "bytes", a.bytes, "error", a.err)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", a.status, "bytes", a.bytes,
			"took", time.Since(began), "client", r.RemoteAddr)
	}
}
