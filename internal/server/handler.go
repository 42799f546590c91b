package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// serveHTTP wraps every request: client address, limits, security headers, access log,
// panic recovery. It routes the request to its handler.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(*limit.Conn)
	if conn != nil {
		conn.Begin()
	}
	r = s.withClientAddress(r)
	began, client := time.Now(), limit.ClientOf(r.RemoteAddr)
	rw := &responseWriter{ResponseWriter: w, writeTime: s.opt.Limits.WriteTime, drainTime: s.opt.Limits.HeaderTime, buffers: &s.buffers}
	if r.ContentLength != 0 {
		rw.body = s.newRequestBody(rw, r.Body, client, began)
		defer rw.body.hold.Release()
	}
	path := s.stripMount(r.URL.Path)
	if r.URL.Path == "" { // of the absolute form "GET http://host" (RFC 9110 4.2.3)
		path = "/"
	}
	health := path == "/healthz" || path == "/readyz"
	if !s.limiter.acquire(client, health) {
		w.Header().Set("Retry-After", "1")
		writeText(rw, http.StatusTooManyRequests, "Too many requests of your address at a time: wait for some of them to end.\n")
		return
	}
	defer s.limiter.release(client)
	defer s.logRequest(rw, r, began)
	defer s.recoverPanic(rw, r)

	h := w.Header()
	if conn != nil && limit.IsSpare(conn) {
		h.Set("Connection", "close")
		if !health {
			s.writeBusy(rw)
			return
		}
	}
	h["X-Content-Type-Options"] = s.nosniff
	h["Content-Security-Policy"] = s.policy
	if !health && s.misdirected(r) {
		writeText(rw, http.StatusMisdirectedRequest, "This server is not at the host that the request names.\n")
		return
	}
	if r.Method != http.MethodGet || strings.Contains(r.Header.Get("Range"), ",") {
		// Only GET has ranges (RFC 9110 14.2). Each of several is read and sent separately;
		// no known client of ours asks for them, and the whole document costs less.
		r.Header.Del("Range")
	}
	if s.redirectMoved(rw, r, path) {
		return
	}
	if rest, ok := strings.CutPrefix(path, "/sip/"); ok {
		rw.route = "/sip/:set"
		s.serveSIP(rw, withPath(r, path, rw.body), rest)
		return
	}
	if token, ok := strings.CutPrefix(path, "/websub/"); ok && s.opt.Callback != nil {
		rw.route, rw.token = "/websub/:token", token
		if rw.body != nil {
			rw.body.streamed = true
		}
		s.opt.Callback(rw, withPath(r, path, rw.body), token)
		return
	}
	if s.opt.Console != nil && (path == "/console" || strings.HasPrefix(path, "/console/") || strings.HasPrefix(path, "/api/")) {
		rw.route = "/console"
		s.opt.Console.ServeHTTP(rw, withPath(r, path, rw.body))
		return
	}
	if set, ok := repositoryPath(path); ok && s.opt.Repository != nil {
		rw.route = "/sets/:set/oai"
		s.serveRepository(rw, withPath(r, path, rw.body), set)
		return
	}
	if s.rejectRequest(rw, r) {
		return
	}
	if path == "" && r.URL.Path != "" {
		http.Redirect(rw, r, (&url.URL{Path: s.mount + "/"}).EscapedPath(), http.StatusPermanentRedirect)
		return
	}
	s.echo.ServeHTTP(rw, withPath(r, path, nil))
}

// redirectMoved redirects a request for a set under one of its former names to the present
// name, and reports whether it did: with 301, or with 308 where there may be a body. Caches may
// not keep the answer, since a set can get a former name back. It leaves messages to a SIP
// service alone: see calledService.
func (s *Server) redirectMoved(rw *responseWriter, r *http.Request, path string) bool {
	if s.opt.Moved == nil || r.URL.RawPath != "" {
		return false
	}
	code, route := http.StatusMovedPermanently, "/sets/"
	rest, ok := strings.CutPrefix(path, route)
	if !ok {
		code, route = http.StatusPermanentRedirect, "/sip/"
		rest, ok = strings.CutPrefix(path, route)
	}
	name, below, _ := strings.Cut(rest, "/")
	if !ok || name == "" {
		return false
	}
	now := s.opt.Moved(name)
	if now == "" {
		return false
	}
	switch _, repository := repositoryPath(path); {
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		code = http.StatusMovedPermanently
	case repository && r.Method == http.MethodPost:
		code = http.StatusPermanentRedirect
	case route == "/sets/", r.Method == http.MethodPost:
		return false
	}
	if rw.route = route + ":set"; route == "/sip/" {
		rw.token = below
	}
	to := url.URL{Path: s.mount + route + now + strings.TrimPrefix(rest, name), RawQuery: r.URL.RawQuery}
	rw.Header().Set("Cache-Control", "no-cache")
	rw.Header().Set("Location", to.String())
	rw.WriteHeader(code)
	return true
}

// stripMount returns the part of a path behind the base URL's path, or the whole path
// when it is not below that.
func (s *Server) stripMount(path string) string {
	if rest, ok := strings.CutPrefix(path, s.mount); ok && (rest == "" || rest[0] == '/') {
		return rest
	}
	return path
}

// withPath returns a copy of the request with another path, and with body if that is
// not nil. net/http needs the original unchanged.
func withPath(r *http.Request, path string, body *requestBody) *http.Request {
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

// rejectRequest answers requests with other methods or with a body, and those whose path is
// escaped in another way than in published URLs, such as %2e%2e. It reports whether it did.
func (s *Server) rejectRequest(rw *responseWriter, r *http.Request) bool {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		rw.Header().Set("Allow", "GET, HEAD")
		writeText(rw, http.StatusMethodNotAllowed, "This address is for reading: use GET or HEAD.\n")
	case r.ContentLength != 0:
		writeText(rw, http.StatusRequestEntityTooLarge, "A request here has no body: send it without one.\n")
	case r.URL.RawPath != "":
		s.writeNotFound(rw)
	default:
		return false
	}
	return true
}

// recoverPanic logs the panic of a handler and answers 500.
func (s *Server) recoverPanic(rw *responseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http knows it by the same comparison
		panic(v)
	}
	what := fmt.Sprint(v)
	if rw.token != "" {
		what = strings.ReplaceAll(what, rw.token, "***")
	}
	s.log.Error("a request made its handler panic: please report this", "path", s.loggable(r.URL.Path), "panic", what, "stack", string(debug.Stack()))
	s.writeFault(rw)
}

// logRequest writes the access log, and logs answers that were cut short.
func (s *Server) logRequest(rw *responseWriter, r *http.Request, began time.Time) {
	if s.opt.Answered != nil {
		s.opt.Answered(cmp.Or(rw.route, "other"), rw.status, time.Since(began))
	}
	if rw.err != nil {
		level := slog.LevelDebug // the client's doing
		if rw.readFailed {
			level = slog.LevelError
		}
		s.log.Log(r.Context(), level, "an answer was cut short", "path", s.loggable(r.URL.Path), "bytes", rw.bytes, "error", rw.err)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "method", r.Method, "path", s.loggable(r.URL.Path), "status", rw.status, "bytes", rw.bytes,
			"took", time.Since(began), "client", r.RemoteAddr)
	}
}

// requestLimiter bounds the requests under way of each address, and counts all of them.
type requestLimiter struct {
	limit int // below 0: none
	all   int // of all addresses; 0: none

	mu    sync.Mutex
	busy  map[netip.Addr]int
	total int
	empty chan struct{} // closed when total falls to 0; nil while wait is not running
}

func newRequestLimiter(limit int) *requestLimiter {
	return &requestLimiter{limit: limit, busy: map[netip.Addr]int{}}
}

// acquire counts a request; ok is false when its address has as many as it may, unless
// always is set. After ok the caller must call release.
func (l *requestLimiter) acquire(a netip.Addr, always bool) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !always && (l.limit >= 0 && l.busy[a] >= l.limit || l.all > 0 && l.total >= l.all) {
		return false
	}
	l.busy[a]++
	l.total++
	return true
}

func (l *requestLimiter) release(a netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[a]--; l.busy[a] == 0 {
		delete(l.busy, a)
	}
	if l.total--; l.total == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
}

// wait returns when no request is under way, or after a time, with their number.
func (l *requestLimiter) wait(d time.Duration) int {
	l.mu.Lock()
	if l.total == 0 {
		l.mu.Unlock()
		return 0
	}
	if l.empty == nil {
		l.empty = make(chan struct{})
	}
	empty := l.empty
	l.mu.Unlock()
	select {
	case <-empty:
	case <-time.After(d):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// forwarded is the header to whose end each proxy adds the address of its client.
const forwarded = "X-Forwarded-For"

// withClientAddress returns the request with its client's address in RemoteAddr. That
// is the connection's, unless a trusted proxy made the connection: then it is the
// address that the proxy states, and so on for a chain of trusted proxies. The header
// of any other client is ignored.
func (s *Server) withClientAddress(r *http.Request) *http.Request {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.isProxy(peer.Addr()) {
		return r
	}
	at := s.clientAddress(peer, strings.Join(r.Header.Values(forwarded), ","))
	if at == peer {
		return r
	}
	in := *r
	in.RemoteAddr = at.String()
	return &in
}

// WithClientAddress returns a handler for requests that come through some proxies: it passes them
// on with their clients' addresses, as a Server with these Proxies takes them.
func WithClientAddress(proxies []netip.Prefix, h http.Handler) http.Handler {
	s := &Server{opt: Options{Proxies: proxies}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, s.withClientAddress(r)) })
}

// clientAddress follows the header from its end: to the first address that is not a
// trusted proxy's, to the last one in the header, or up to something that is not an
// address.
func (s *Server) clientAddress(at netip.AddrPort, header string) netip.AddrPort {
	for s.isProxy(at.Addr()) && header != "" {
		last := strings.LastIndexByte(header, ',')
		before, ok := parseHop(strings.Trim(header[last+1:], " \t"))
		if !ok {
			break
		}
		at, header = before, header[:max(last, 0)]
	}
	return at
}

// isProxy reports whether an address is one of our proxies'.
func (s *Server) isProxy(a netip.Addr) bool {
	a = plain(a)
	return slices.ContainsFunc(s.opt.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// parseHop reads an address as proxies write it: with or without a port, one of
// IPv6 with or without brackets.
func parseHop(text string) (netip.AddrPort, bool) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(plain(ap.Addr()), ap.Port()), true
	}
	inside, brackets := strings.CutPrefix(text, "[")
	if brackets {
		inside, brackets = strings.CutSuffix(inside, "]")
		if !brackets {
			return netip.AddrPort{}, false
		}
	}
	a, err := netip.ParseAddr(inside)
	return netip.AddrPortFrom(plain(a), 0), err == nil && (!brackets || a.Is6())
}

// plain returns an address in the form in which networks are configured.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// misdirected reports whether a request on loopback names a host that is not this server's name
// there. A browser sends such a request for a web page whose host name was made to lead to this
// machine, and would let that page read the answer.
func (s *Server) misdirected(r *http.Request) bool {
	if r.Host == "" || !onLoopback(r) {
		return false
	}
	host := hostOf(r.Host)
	_, err := netip.ParseAddr(host)
	return err != nil && !strings.EqualFold(host, s.host) && !isLocalhost(host)
}

// hostOf returns a Host header without its port, the brackets of IPv6, and the dot of an absolute
// name.
func hostOf(header string) string {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
}

func isLocalhost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// onLoopback reports whether a request has come in at an address of loopback.
func onLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ap, err := netip.ParseAddrPort(at.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// operator reports whether a request may be answered with details of the configuration
// and of failures: there is no console, it comes from this machine, and the base URL is on
// loopback. All others get the public view; operators of a public server have bridge
// status and the console.
func (s *Server) operator(r *http.Request) bool {
	if s.opt.HasConsole {
		return false
	}
	host, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s.host, "["), "]"))
	local := isLocalhost(s.host) || err == nil && host.IsLoopback()
	return local && onLoopback(r) && r.Header.Get(forwarded) == "" && r.Header.Get("Forwarded") == ""
}

// publicName reports whether the host of a URL is on the public Internet, and not a
// name or address of a private network.
func publicName(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil || !isWeb(rawURL) {
		return false
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return a.IsGlobalUnicast() && !a.IsPrivate()
	}
	if isLocalhost(host) || !strings.Contains(host, ".") {
		return false
	}
	own := []string{".internal", ".intranet", ".local", ".localdomain", ".lan", ".home", ".corp", ".private", ".home.arpa"}
	return !slices.ContainsFunc(own, func(domain string) bool { return strings.HasSuffix(host, domain) })
}

const (
	// chunkSize is how much of a file goes out under one deadline.
	chunkSize = 256 << 10
	// bufferSize is how much of anything else does. A file of this size goes the
	// same way: one read and one write cost less than setting up sendfile.
	bufferSize = 64 << 10
)

// responseWriter is the response writer of a request. It lets a client take as long as
// it wants in all, and no longer than writeTime for one piece, and it passes
// files on to sendfile, which echo's own would not.
type responseWriter struct {
	http.ResponseWriter
	writeTime time.Duration
	// drainTime is how long the server waits for the unread rest of a body.
	drainTime time.Duration
	buffers   *sync.Pool
	body      *requestBody // of the request, nil when it has none
	token     string       // in the request's path; no log may have it
	route     string       // of the table of URLs, "" when there is none

	status int // 0: nothing was sent
	// answered: the server itself has answered, and what the handler writes is dropped.
	answered bool
	bytes    int64
	err      error // the first that cut the answer short
	// readFailed: the error is one of reading our own bytes.
	readFailed bool
}

// Unwrap is for http.ResponseController.
func (rw *responseWriter) Unwrap() http.ResponseWriter { return rw.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (rw *responseWriter) WriteHeader(status int) {
	if rw.answered {
		return
	}
	rw.start(status)
	rw.ResponseWriter.WriteHeader(status)
}

// start is called before anything is sent; only its first call counts.
func (rw *responseWriter) start(status int) {
	if rw.status != 0 {
		return
	}
	rw.status = status
	if rw.body != nil {
		rw.body.abandon(rw.Header(), rw.drainTime)
	}
	rw.extendDeadline()
}

// extendDeadline gives the client its time anew.
func (rw *responseWriter) extendDeadline() {
	// A writer that has no deadlines is not on a network.
	_ = http.NewResponseController(rw.ResponseWriter).SetWriteDeadline(time.Now().Add(rw.writeTime))
}

// Write implements io.Writer.
func (rw *responseWriter) Write(p []byte) (int, error) {
	if rw.answered {
		return len(p), nil
	}
	rw.start(http.StatusOK)
	rw.extendDeadline()
	n, err := rw.ResponseWriter.Write(p)
	rw.count(int64(n), err)
	return n, err
}

func (rw *responseWriter) count(n int64, err error) {
	rw.bytes += n
	if rw.err == nil {
		rw.err = err
	}
}

// ReadFrom implements io.ReaderFrom, through which io.CopyN and http.ServeContent hand
// over a body.
func (rw *responseWriter) ReadFrom(src io.Reader) (int64, error) {
	if lr, ok := src.(*io.LimitedReader); ok && lr.N > bufferSize {
		_, file := lr.R.(*os.File)
		if w, ok := rw.ResponseWriter.(io.ReaderFrom); ok && file {
			return rw.sendFile(w, lr)
		}
	}
	return rw.copy(src)
}

// sendFile hands a file to sendfile, piece by piece.
func (rw *responseWriter) sendFile(w io.ReaderFrom, file *io.LimitedReader) (total int64, err error) {
	rw.start(http.StatusOK)
	for file.N > 0 && err == nil {
		piece := io.LimitedReader{R: file.R, N: min(file.N, chunkSize)}
		rw.extendDeadline()
		var n int64
		n, err = w.ReadFrom(&piece)
		if n == 0 && err == nil {
			err = fmt.Errorf("a file became shorter while it was sent: %w", io.ErrUnexpectedEOF)
			rw.readFailed = true
		}
		rw.count(n, err)
		total += n
		file.N -= n
	}
	return total, err
}

// copy sends what is no file.
func (rw *responseWriter) copy(src io.Reader) (total int64, err error) {
	buf := rw.buffers.Get().(*[bufferSize]byte)
	defer rw.buffers.Put(buf)
	for {
		n, err := io.ReadFull(src, buf[:])
		if n > 0 {
			m, err := rw.Write(buf[:n])
			total += int64(m)
			if err != nil {
				return total, err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return total, nil
		default:
			rw.readFailed = rw.err == nil
			rw.count(0, err)
			return total, err
		}
	}
}

// writeText answers in plain text. It removes header fields that were set for another answer.
func writeText(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	for _, name := range []string{"Etag", "Last-Modified", "Content-Encoding", "Accept-Ranges", "Content-Range"} {
		h.Del(name)
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // responseWriter keeps the error
}

// writeBusy answers that the server is too busy for the request.
func (s *Server) writeBusy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	writeText(w, http.StatusServiceUnavailable, "The server is busy: ask again.\n")
}

// writeNotFound answers that there is nothing at this address.
func (s *Server) writeNotFound(w http.ResponseWriter) {
	writeText(w, http.StatusNotFound, "There is nothing at this address. The pages start at "+s.base+"/, the documents for programs at "+
		s.base+"/.well-known/resourcesync; a set is an OAI-PMH repository at "+s.base+"/sets/SET/oai, and takes SIP, if it does, at "+s.base+"/sip/SET.\n")
}

// writeNotThere is writeNotFound, unless the request is for a set that gets another name at the
// moment: whoever is told 404 may take its records for deleted.
func (s *Server) writeNotThere(w http.ResponseWriter, r *http.Request) {
	if !s.isRenamed(r) {
		s.writeNotFound(w)
		return
	}
	w.Header().Set("Retry-After", "2")
	writeText(w, http.StatusServiceUnavailable, "The set is getting another name: ask again.\n")
}

// isRenamed reports whether a request is for a set that gets another name at the moment.
func (s *Server) isRenamed(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, "/sets/") // withPath has taken the mount away
	name, _, _ := strings.Cut(rest, "/")
	return ok && r.URL.RawPath == "" && s.opt.Renamed != nil && s.opt.Renamed(r.Context(), name)
}

// writeFault answers 500. Where a part of another answer was sent, it cuts the connection, so
// that no client takes that part for whole.
func (s *Server) writeFault(rw *responseWriter) {
	if rw.status != 0 {
		panic(http.ErrAbortHandler)
	}
	writeText(rw, http.StatusInternalServerError, "The server failed to make this answer; its log says why.\n")
}

// handleError is echo's error handler.
func (s *Server) handleError(err error, c echo.Context) {
	s.writeError(c.Response().Writer.(*responseWriter), c.Request(), err)
}

// writeError turns the error of a handler into an answer.
func (s *Server) writeError(rw *responseWriter, r *http.Request, err error) {
	var route *echo.HTTPError
	var wait *publish.NotReadyError
	var tooMany *publish.TooManyError
	switch {
	case rw.status != 0:
		s.writeFault(rw)
	case errors.Is(err, publish.ErrNotFound), errors.Is(err, fs.ErrNotExist) && s.isRenamed(r), errors.As(err, &route) && route.Code == http.StatusNotFound:
		s.writeNotThere(rw, r)
	case errors.As(err, &tooMany):
		writeText(rw, http.StatusNotFound, tooMany.Error()+"\n")
	case errors.As(err, &wait):
		rw.Header().Set("Retry-After", strconv.FormatInt(int64((wait.RetryAfter+time.Second-1)/time.Second), 10))
		if wait.Partial != "" && s.opt.PartialHeader != nil {
			rw.Header().Set("Bridge-Partial", s.opt.PartialHeader(r.Context(), wait.Partial))
		}
		writeText(rw, http.StatusServiceUnavailable, "This document will be here, but it is still being made: ask again.\n")
	case errors.Is(err, event.ErrUnavailable):
		s.log.Error("a request failed", "path", s.loggable(r.URL.Path), "error", err)
		rw.Header().Set("Retry-After", "5")
		writeText(rw, http.StatusServiceUnavailable, "The server's data cannot be reached at the moment: ask again.\n")
	case r.Context().Err() != nil:
		// The client has gone. To return would answer 200.
		panic(http.ErrAbortHandler)
	default:
		s.log.Error("a request failed", "path", s.loggable(r.URL.Path), "error", err)
		s.writeFault(rw)
	}
}

// notFound turns the log's fs.ErrNotExist into publish.ErrNotFound, which writeError answers
// with 404. Any other fs.ErrNotExist is an internal error.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return publish.ErrNotFound
	}
	return err
}
