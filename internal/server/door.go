package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// door is what every request passes before it is routed, and what is left of it
// when something has gone wrong.
func (s *Server) door(w http.ResponseWriter, r *http.Request) {
	r = s.attributed(r)
	began, client := time.Now(), limit.ClientOf(r.RemoteAddr)
	a := &answer{ResponseWriter: w, patience: s.opt.Limits.Patience, goodbye: s.opt.Limits.HeaderTime, buffers: &s.buffers}
	if r.ContentLength != 0 {
		a.body = s.newIntake(a, r.Body, client, began)
		defer a.body.hold.Release()
	}
	path := s.below(r.URL.Path)
	health := path == "/healthz" || path == "/readyz"
	if !s.gate.enter(client, health) {
		w.Header().Set("Retry-After", "1")
		say(a, http.StatusTooManyRequests, "Too many requests of your address at a time: wait for some of them to end.\n")
		return
	}
	defer s.gate.leave(client)
	defer s.note(a, r, began)
	defer s.rescue(a, r)

	h := w.Header()
	if r.Context().Value(spareKey{}) != nil {
		h.Set("Connection", "close")
		if !health {
			s.busy(a)
			return
		}
	}
	h["X-Content-Type-Options"] = s.nosniff
	h["Content-Security-Policy"] = s.policy
	if !health && s.misdirected(r) {
		say(a, http.StatusMisdirectedRequest, "This server is not at the host that the request names.\n")
		return
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		// Each range is read and sent anew, and nobody who means well has asked for
		// several: the whole costs less.
		r.Header.Del("Range")
	}
	if rest, ok := strings.CutPrefix(path, "/sip/"); ok {
		s.serveDesk(a, inside(r, path, a.body), rest)
		return
	}
	if s.refused(a, r) {
		return
	}
	if path == "" && r.URL.Path != "" {
		http.Redirect(a, r, (&url.URL{Path: s.mount + "/"}).EscapedPath(), http.StatusPermanentRedirect)
		return
	}
	s.echo.ServeHTTP(a, inside(r, path, nil))
}

// below returns what follows the base URL's path, and a path that is not below
// it as it is.
func (s *Server) below(path string) string {
	if rest, ok := strings.CutPrefix(path, s.mount); ok && (rest == "" || rest[0] == '/') {
		return rest
	}
	return path
}

// inside returns the request with another path, and with body if that is not
// nil. The server's own must stay as it is.
func inside(r *http.Request, path string, body *intake) *http.Request {
	if path == r.URL.Path && body == nil {
		return r
	}
	in, u := *r, *r.URL
	u.Path = path
	in.URL = &u
	if body != nil {
		in.Body = body
	}
	return &in
}

// refused answers requests that nothing here answers: other methods, bodies,
// and paths that are written in another way than we write ours. Of these last,
// %2e%2e is one.
func (s *Server) refused(a *answer, r *http.Request) bool {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		a.Header().Set("Allow", "GET, HEAD")
		say(a, http.StatusMethodNotAllowed, "This address is for reading: use GET or HEAD.\n")
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
	what := fmt.Sprint(v)
	if a.token != "" {
		what = strings.ReplaceAll(what, a.token, "***")
	}
	s.log.Error("a request made its handler panic: please report this", "path", s.loggable(r.URL.Path), "panic", what, "stack", string(debug.Stack()))
	s.broken(a)
}

// note is the access log, and tells of answers that did not get through.
func (s *Server) note(a *answer, r *http.Request, began time.Time) {
	if a.err != nil {
		level := slog.LevelDebug // the client's doing
		if a.reading {
			level = slog.LevelError
		}
		s.log.Log(r.Context(), level, "an answer was cut short", "path", s.loggable(r.URL.Path), "bytes", a.bytes, "error", a.err)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "method", r.Method, "path", s.loggable(r.URL.Path), "status", a.status, "bytes", a.bytes,
			"took", time.Since(began), "client", r.RemoteAddr)
	}
}
