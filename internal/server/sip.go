package server

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/pattern"
)

// SIPService is the SIP service of one set, such as the method Serve of a sip.Handler. It
// answers a request of any method to /sip/{set}, when token is "", or to
// /sip/{set}/{token}. It bounds how long a body may be; how long it may take is bounded
// here, and then reading it fails with os.ErrDeadlineExceeded. When it returns without
// an answer, the connection is cut. When the server ends, the request's context ends
// with the cause http.ErrServerClosed a while before its connection is cut, so that it
// can still be answered.
type SIPService func(w http.ResponseWriter, r *http.Request, token string)

// sipService returns the SIP service of a set, nil when it has none.
func (s *Server) sipService(set string) SIPService {
	if s.opt.SIPService == nil {
		return nil
	}
	return s.opt.SIPService(set)
}

// calledService returns what takes a message to a set, nil when nothing does. A renamed set
// is also known by its former names: an ingest server sends a disposition to the address
// that was named when the record was submitted, and SIP has no redirects.
func (s *Server) calledService(set, token string) SIPService {
	if s.opt.Moved != nil {
		set = cmp.Or(s.opt.Moved(set), set)
	}
	serve := s.sipService(set)
	if serve == nil && token != "" && s.opt.FormerSIPService != nil {
		serve = s.opt.FormerSIPService(set)
	}
	return serve
}

// serveSIP answers a request whose path is /sip/ and this rest.
func (s *Server) serveSIP(rw *responseWriter, r *http.Request, rest string) {
	set, token, more := strings.Cut(rest, "/")
	var serve SIPService
	if r.URL.RawPath == "" && set != "" && more == (token != "") && !strings.Contains(token, "/") {
		serve = s.calledService(set, token)
	}
	if serve == nil {
		s.writeNotFound(rw)
		return
	}
	rw.token = token
	if r.Method == http.MethodPost && s.opt.Full != nil && s.opt.Full() != nil {
		rw.Header().Set("Retry-After", "300")
		writeText(rw, http.StatusServiceUnavailable, "There is too little room on this server's disk: send it again later.\n")
		return
	}
	client, login := limit.ClientOf(r.RemoteAddr), r.Header.Get("Authorization") != ""
	if wait := s.logins.Wait(client, s.opt.Now()); login && wait > 0 {
		rw.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		writeText(rw, http.StatusTooManyRequests, "Too many logins of your address have failed: wait a little.\n")
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.draining, func() { cancel(http.ErrServerClosed) })()
	serve(rw, r.WithContext(ctx), token)
	if login && rw.status == http.StatusUnauthorized {
		s.logins.Failed(client, s.opt.Now())
	}
	if rw.status == 0 {
		// To return would answer 200, which a submitter takes as an acknowledgement.
		panic(http.ErrAbortHandler)
	}
}

// requestBody is the body of a request. Reading it fails when its time is over, or when
// the budget of all bodies has no room for it.
type requestBody struct {
	io.ReadCloser
	conn  *http.ResponseController
	until time.Time
	hold  *limit.Hold
	// refuse answers a request that there is no room for.
	refuse func()
	ended  bool
	// streamed: what is read is not kept, so it does not count in the budget.
	streamed bool
}

func (s *Server) newRequestBody(rw *responseWriter, body io.ReadCloser, client netip.Addr, began time.Time) *requestBody {
	b := &requestBody{ReadCloser: body, conn: http.NewResponseController(rw.ResponseWriter), until: began.Add(s.opt.Limits.BodyTime)}
	b.hold = s.opt.Bodies.Hold(client, func() { b.setDeadline(time.Unix(1, 0)) })
	b.refuse = func() {
		if rw.status == 0 {
			s.writeBusy(rw)
			rw.answered = true
		}
	}
	b.setDeadline(b.until)
	return b
}

// readChunk is how much of a body is read before other goroutines run.
const readChunk = 16 << 10

// Read implements io.Reader. It yields after every chunk: otherwise each of hundreds of
// fast bodies would be read for as long as the scheduler allows, 10 ms, and /healthz
// would wait for all of them.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), readChunk)])
	runtime.Gosched()
	if !b.streamed && b.hold.Add(int64(n)) != nil {
		b.refuse()
		return 0, limit.ErrFull
	}
	// At the end net/http lifts the deadline and reads on, to notice when the client
	// goes away. A deadline that is set later would look like that.
	if b.ended = err == io.EOF; b.ended {
		b.hold.Received()
	}
	return n, err
}

// setDeadline bounds the reading. A connection without deadlines is not a network's.
func (b *requestBody) setDeadline(t time.Time) { _ = b.conn.SetReadDeadline(t) }

// abandon is called when the answer begins. The rest of the body must arrive within
// limit, and the connection serves no further request.
func (b *requestBody) abandon(h http.Header, limit time.Duration) {
	if !b.ended {
		h.Set("Connection", "close")
		b.setDeadline(time.Now().Add(limit))
	}
}

// tokenPath matches a path with a token, below any mount.
var tokenPath = pattern.Of(`(?is)(/sip/[^/]*/|/websub/).+`)

// loggable returns a path without the token in it: the token authorizes notifications
// about a submission, or pushes of a hub.
func (s *Server) loggable(path string) string {
	below := s.stripMount(path)
	return path[:len(path)-len(below)] + tokenPath().ReplaceAllString(below, "${1}***")
}
