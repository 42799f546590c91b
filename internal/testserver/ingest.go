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

// Answer makes the response to a request.
type Answer func(*sip.Request) (*sip.Disposition, error)

// IngestServer is a SIP ingest server on loopback with the responses of a test. It stores
// the requests. Its methods may be called from any goroutine.
type IngestServer struct {
	*httptest.Server
	listener *GatedListener

	mu       sync.Mutex
	answer   Answer
	requests []*sip.Request
}

// NewIngestServer starts an IngestServer, which serves until the test ends.
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

// SetAnswer changes the responses from now on.
func (s *IngestServer) SetAnswer(answer Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// Shut stops the server: connections are cut, and new ones are refused until Open.
func (s *IngestServer) Shut() {
	s.listener.Shut()
	s.CloseClientConnections()
}

// Open accepts connections again after Shut.
func (s *IngestServer) Open() { s.listener.Open() }

// Requests returns the requests to the server, in order; with an identifier only those
// whose source has that identifier.
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

// Recipients is a notification recipient: a sip.Backend that stores the notifications.
type Recipients struct {
	// Refuse, when set, may return an error as the response.
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

// Of returns the notifications about a record, by its source-identifier.
func (r *Recipients) Of(identifier string) []*sip.Disposition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[identifier]
}

// AssignedTo returns the identifier that Accepts assigns to a record.
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

// BreaksOff closes the connection without a response.
func BreaksOff(*sip.Request) (*sip.Disposition, error) { panic(http.ErrAbortHandler) }

// GatedListener cuts every connection while it is shut, like the address of a server that
// is starting.
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
		l.refused.Add(1) // before the client can notice
		_ = c.Close()
	}
}

// Shut cuts connections until Open.
func (l *GatedListener) Shut() { l.shut.Store(true) }

// Open accepts connections again.
func (l *GatedListener) Open() { l.shut.Store(false) }

// Refused returns how many connections were cut.
func (l *GatedListener) Refused() int64 { return l.refused.Load() }
