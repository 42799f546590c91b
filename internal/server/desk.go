package server

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// SIPService is the SIP service of one set; sip.Handler is one.
type SIPService interface {
	// Serve answers a request of any method to /sip/{set}, when token is "", or to
	// /sip/{set}/{token}. It bounds how long a body may be; how long it may take
	// is bounded here, and then reading it fails with os.ErrDeadlineExceeded. A
	// Serve that returns without an answer has its connection cut. When the server
	// ends, the request's context ends with the cause http.ErrServerClosed a while
	// before its connection is cut, so that it can still be answered.
	Serve(w http.ResponseWriter, r *http.Request, token string)
}

// deskOf returns the desk of a set, nil when it has none.
func (s *Server) deskOf(set string) SIPService {
	if s.opt.SIPService == nil {
		return nil
	}
	return s.opt.SIPService(set)
}

// serveDesk answers a request whose path is /sip/ and this rest.
func (s *Server) serveDesk(a *answer, r *http.Request, rest string) {
	set, token, more := strings.Cut(rest, "/")
	var d SIPService
	if r.URL.RawPath == "" && set != "" && more == (token != "") && !strings.Contains(token, "/") {
		d = s.deskOf(set)
	}
	if d == nil {
		s.nothing(a)
		return
	}
	a.token = token
	if r.Method == http.MethodPost && s.opt.Full != nil && s.opt.Full() != nil {
		a.Header().Set("Retry-After", "300")
		say(a, http.StatusServiceUnavailable, "There is too little room on this server's disk: send it again later.\n")
		return
	}
	client, login := limit.ClientOf(r.RemoteAddr), r.Header.Get("Authorization") != ""
	if wait := s.logins.Wait(client, s.opt.Now()); login && wait > 0 {
		a.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		say(a, http.StatusTooManyRequests, "Too many logins of your address have failed: wait a little.\n")
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.ending, func() { cancel(http.ErrServerClosed) })()
	d.Serve(a, r.WithContext(ctx), token)
	if login && a.status == http.StatusUnauthorized {
		s.logins.Failed(client, s.opt.Now())
	}
	if a.status == 0 {
		// To return would be to answer 200, which a submitter takes for our word.
		panic(http.ErrAbortHandler)
	}
}

// intake is the body of a request. It must come in time, and as long as there is
// room for it in the budget of all bodies.
type intake struct {
	io.ReadCloser
	conn  *http.ResponseController
	until time.Time
	hold  *limit.Hold
	// refuse answers a request that there is no room for.
	refuse func()
	ended  bool
}

func (s *Server) newIntake(a *answer, body io.ReadCloser, client netip.Addr, began time.Time) *intake {
	b := &intake{ReadCloser: body, conn: http.NewResponseController(a.ResponseWriter), until: began.Add(s.opt.Limits.BodyTime)}
	b.hold = s.opt.Bodies.Hold(client, func() { b.await(time.Unix(1, 0)) })
	b.refuse = func() {
		if a.status == 0 {
			s.busy(a)
			a.refused = true
		}
	}
	b.await(b.until)
	return b
}

// readAtOnce is how much of a body is read before others have their turn.
const readAtOnce = 16 << 10

// Read implements io.Reader. Of hundreds of bodies that come at full speed each would
// be read for as long as the scheduler lets it, 10 ms, before the next has its turn,
// and /healthz after all of them: so each yields after every piece.
func (b *intake) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), readAtOnce)])
	runtime.Gosched()
	if b.hold.Add(int64(n)) != nil {
		b.refuse()
		return 0, limit.ErrFull
	}
	// At the end net/http lifts the deadline, and reads on to see whether the
	// client goes away: another one would look like that.
	if b.ended = err == io.EOF; b.ended {
		b.hold.Whole()
	}
	return n, err
}

// await bounds the reading. A connection without deadlines is no network's.
func (b *intake) await(t time.Time) { _ = b.conn.SetReadDeadline(t) }

// leave is for an answer that begins: what is left of the body must come in some
// time too, or goes unread, and then nothing can follow it.
func (b *intake) leave(h http.Header, limit time.Duration) {
	if !b.ended {
		h.Set("Connection", "close")
		b.await(time.Now().Add(limit))
	}
}

// tokenPath is a path with a token, wherever a proxy has put it.
var tokenPath = regexp.MustCompile(`(?is)(/sip/[^/]*/).+`)

// loggable returns a path without the token that may be in it: who knows it may
// tell us what became of a submission.
func (s *Server) loggable(path string) string {
	below := s.below(path)
	return path[:len(path)-len(below)] + tokenPath.ReplaceAllString(below, "${1}***")
}
