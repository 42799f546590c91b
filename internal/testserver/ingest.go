package testserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/sip"
)

// Answer is what an ingest server makes of a request.
type Answer func(*sip.Request) (*sip.Disposition, error)

// IngestServer is a SIP ingest server on loopback that answers as the test says, and
// remembers what it was asked. Its methods may be called from any goroutine.
type IngestServer struct {
	*httptest.Server
	listener *GatedListener

	mu       sync.Mutex
	answer   Answer
	requests []*sip.Request
}

// NewIngestServer serves until the test ends.
func NewIngestServer(t testing.TB, answer Answer) *IngestServer {
	s := &IngestServer{answer: answer}
	h := &sip.Handler{Backend: s, Offers: sip.Operations{Ingest: true}}
	s.Server = httptest.NewUnstartedServer(h)
	s.listener = &GatedListener{Listener: s.Listener}
	s.Listener = s.listener
	s.Start()
	h.Location = s.URL
	t.Cleanup(s.Close)
	return s
}

// SetAnswer changes what is answered from now on.
func (s *IngestServer) SetAnswer(answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// Shut takes the server down: connections are cut, and no other is taken until Open.
func (s *IngestServer) Shut() {
	s.listener.Shut()
	s.CloseClientConnections()
}

// Open ends what Shut began.
func (s *IngestServer) Open() { s.listener.Open() }

// Requests returns what the server was asked, in order; with an identifier only what
// names it as its source's own.
func (s *IngestServer) Requests(identifier string) (out []*sip.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if identifier == "" || r.Source != nil && r.Source.Identifier != nil && *r.Source.Identifier == identifier {
			out = append(out, r)
		}
	}
	return out
}

// GetProperties implements sip.Backend.
func (s *IngestServer) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Asynchronous, Formats: []string{"http://schemas.example/r.xsd"}}, nil
}

// Ingest implements sip.Backend.
func (s *IngestServer) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	answer := s.answer
	s.mu.Unlock()
	return answer(r)
}

// Notify implements sip.Backend.
func (s *IngestServer) Notify(context.Context, sip.Caller, *sip.Disposition) error {
	return &sip.Fault{Code: sip.Client, Text: "an ingest server is not notified"}
}

// Admit implements sip.Backend.
func (s *IngestServer) Admit(context.Context, sip.Caller) error { return nil }

// Recipients are notification recipients: a sip.Backend that remembers what it was told.
type Recipients struct {
	// Refuse, when set, may answer something else.
	Refuse func(*sip.Disposition) error

	mu  sync.Mutex
	got map[string][]*sip.Disposition // by source-identifier
}

// Admit implements sip.Backend.
func (r *Recipients) Admit(context.Context, sip.Caller) error { return nil }

// GetProperties implements sip.Backend.
func (r *Recipients) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return nil, errors.New("not here")
}

// Ingest implements sip.Backend.
func (r *Recipients) Ingest(context.Context, sip.Caller, *sip.Request) (*sip.Disposition, error) {
	return nil, errors.New("not here")
}

// Notify implements sip.Backend.
func (r *Recipients) Notify(_ context.Context, _ sip.Caller, d *sip.Disposition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Refuse != nil {
		if err := r.Refuse(d); err != nil {
			return err
		}
	}
	if r.got == nil {
		r.got = map[string][]*sip.Disposition{}
	}
	r.got[*d.Source.Identifier] = append(r.got[*d.Source.Identifier], d)
	return nil
}

// Of returns what they were told of a record, by its source-identifier.
func (r *Recipients) Of(identifier string) []*sip.Disposition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[identifier]
}

// AssignedTo is the identifier that Accepts assigns to a record.
func AssignedTo(record string) string { return "assigned:" + strings.TrimPrefix(record, "urn:uuid:") }

// Accepts accepts every record.
func Accepts(r *sip.Request) (*sip.Disposition, error) {
	return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: AssignedTo(*r.Source.Identifier)}, nil
}

// Rejects rejects every record.
func Rejects(r *sip.Request) (*sip.Disposition, error) {
	return &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: "no author of " + *r.Source.Identifier}, nil
}

// Defers accepts every record provisionally.
func Defers(r *sip.Request) (*sip.Disposition, error) {
	return &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}, nil
}

// BreaksOff hangs up.
func BreaksOff(*sip.Request) (*sip.Disposition, error) { panic(http.ErrAbortHandler) }

// Faults answers a fault that is the caller's.
func Faults(*sip.Request) (*sip.Disposition, error) {
	return nil, &sip.Fault{Code: sip.Client, Text: "not like this"}
}

// GatedListener cuts every connection while it is shut, as the address of a server
// does that is being started.
type GatedListener struct {
	net.Listener
	shut    atomic.Bool
	refused atomic.Int64
}

// Accept implements net.Listener.
func (l *GatedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || !l.shut.Load() {
			return c, err
		}
		l.refused.Add(1) // before the other side can notice
		_ = c.Close()
	}
}

// Shut has connections cut until Open.
func (l *GatedListener) Shut() { l.shut.Store(true) }

// Open takes connections again.
func (l *GatedListener) Open() { l.shut.Store(false) }

// Refused returns how many connections were cut.
func (l *GatedListener) Refused() int64 { return l.refused.Load() }
