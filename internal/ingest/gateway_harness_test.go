package ingest

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
)

// library is an ingest server in memory.
type library struct {
	// recognises: the same whole request is the same, however often it comes.
	recognises bool
	// answers is what requests are answered; a test may change it between them.
	answers sip.Outcome
	// instead, when set, is called first, and may answer something else.
	instead func(r *sip.Request) (*sip.Disposition, error)

	mu      sync.Mutex
	entries []*entry
}

// entry is what the library has taken in.
type entry struct {
	request  *sip.Request
	times    int
	ultimate *sip.Disposition // nil: not decided yet
	notified bool             // the ultimate disposition has been delivered
}

func (e *entry) identifier() string { return *e.request.Source.Identifier }

func (l *library) Admit(context.Context, sip.Caller) error { return nil }

func (l *library) Notify(context.Context, sip.Caller, *sip.Disposition) error {
	return &sip.Fault{Code: sip.Client, Text: "no notifications here"}
}

func (l *library) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Asynchronous, Formats: []string{mapFormat}}, nil
}

func (l *library) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.instead != nil {
		if disp, err := l.instead(r); disp != nil || err != nil {
			return disp, err
		}
	}
	var e *entry
	for _, known := range l.entries {
		if l.recognises && requestDigest(known.request) == requestDigest(r) {
			e = known
		}
	}
	if e == nil {
		e = &entry{request: r}
		l.entries = append(l.entries, e)
		if l.answers != sip.ProvisionallyAccepted {
			l.decideOne(e, l.answers)
			e.notified = true // by the answer
		}
	}
	e.times++
	if e.ultimate == nil {
		return &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}, nil
	}
	return e.ultimate, nil
}

func (l *library) decideOne(e *entry, outcome sip.Outcome) {
	e.ultimate = &sip.Disposition{Source: e.request.Source, Outcome: outcome}
	if outcome == sip.Accepted {
		e.ultimate.AssignedIdentifier = "urn:lib:" + e.identifier()
	} else {
		e.ultimate.Reason = "not wanted: " + e.identifier()
	}
}

// decide decides what is provisional and notifies whoever is to be; what could not
// be delivered it delivers the next time.
func (l *library) decide(outcome sip.Outcome) (undelivered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.ultimate == nil {
			l.decideOne(e, outcome)
		}
		if e.notified || e.request.Recipient == "" {
			continue
		}
		c := sip.HTTPClient{URL: e.request.Recipient, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		if e.notified = c.Notify(context.Background(), e.ultimate) == nil; !e.notified {
			undelivered++
		}
	}
	return undelivered
}

// of returns what the library has taken in under an identifier.
func (l *library) of(identifier string) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*entry
	for _, e := range l.entries {
		if e.identifier() == identifier {
			out = append(out, e)
		}
	}
	return out
}

// gatewayHarness is a Server between a submitter and an ingest server, all over sockets,
// on a real log and a real content store. The Server is a process of its own: it may
// be killed and started anew.
type gatewayHarness struct {
	*storage
	clock   *testenv.Clock
	library *library
	boxes   *testserver.Recipients
	change  func(*Server)
	what    string // for what goes wrong

	libraryURL, boxURL, bridgeURL string

	process atomic.Pointer[process]
	stop    func() // ends the process
}

type process struct {
	*Server
	life    *testenv.Life
	handler *sip.Handler
}

// newGatewayHarness makes the house; change completes each Server before it runs.
func newGatewayHarness(t testing.TB, mode Mode, change func(*Server)) *gatewayHarness {
	t.Helper()
	clock := testenv.NewClock()
	h := &gatewayHarness{storage: newStorage(t, clock.Both), clock: clock, library: &library{recognises: true, answers: sip.Accepted}, boxes: &testserver.Recipients{}, change: change}
	h.ensureSet(event.Mirror)
	h.libraryURL = serve(t, &sip.Handler{Backend: h.library, Offers: sip.Operations{Ingest: true}})
	h.boxURL = serve(t, &sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}})
	h.bridgeURL = serve(t, http.HandlerFunc(h.serve))
	h.start(mode, nil)
	t.Cleanup(func() { h.stop() })
	return h
}

func serve(t testing.TB, handler http.Handler) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// serve is the door of the process. What it answers passes a point too.
func (h *gatewayHarness) serve(w http.ResponseWriter, r *http.Request) {
	p := h.process.Load()
	recorder := httptest.NewRecorder()
	err := p.life.Pass("call", func() error {
		p.handler.Serve(recorder, r, strings.TrimPrefix(r.URL.Path, "/"))
		return p.life.Pass("relay", func() error { return nil })
	})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for k, v := range recorder.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(recorder.Code)
	w.Write(recorder.Body.Bytes())
}

// start starts the process, as fate has it, and ends the one before it.
func (h *gatewayHarness) start(mode Mode, plan func(n int, point string) testenv.Fate) {
	h.t.Helper()
	if h.stop != nil {
		h.stop()
	}
	p := &process{life: &testenv.Life{Plan: plan}}
	wire := testenv.Wire{RoundTripper: &http.Transport{DisableKeepAlives: true}, Life: p.life, Point: "upstream"}
	p.Server = &Server{
		Set: "maps", Feed: h.feed, URL: "/sip/maps", Source: h.source, Mode: mode,
		Store: store.New(h.log.Log), Keep: func(ctx context.Context, records ...[]byte) error {
			return p.life.Pass("put", func() error { return keep(h.contents)(ctx, records...) })
		},
		Upstream: &sip.HTTPClient{URL: h.libraryURL, HTTP: &http.Client{Transport: wire}},
		Endpoint: func() string { return h.bridgeURL }, Deadline: 48 * time.Hour, Now: h.clock.Now,
	}
	p.Store.Hook = p.life.Hook
	if mode != Gateway {
		p.Formats = map[xml.Name]string{{Space: "urn:maps", Local: "map"}: mapFormat}
	}
	if h.change != nil {
		h.change(p.Server)
	}
	p.handler = &sip.Handler{Backend: p.Server, Offers: p.Offers()}
	// What Run does, but that a test says when it is time to tend.
	if err := p.recover(context.Background()); err != nil {
		if !errors.Is(err, testenv.ErrBroken) && !errors.Is(err, testenv.ErrKilled) {
			h.t.Errorf("the server does not start: %v", err)
		}
		p.life.Kill()
	}
	p.service.set(nil)
	h.stop = func() { p.service.set(errEnded) }
	h.process.Store(p)
}

// restart starts the process again when it was killed, and then all goes well.
func (h *gatewayHarness) restart() {
	if p := h.process.Load(); p.life.Killed() {
		h.start(p.Mode, nil)
	}
}

// request is one that names the submitter's mailbox.
func (h *gatewayHarness) request(identifier string) *sip.Request {
	r := request(identifier, "map "+identifier)
	r.Recipient = h.boxURL
	return r
}

// submit sends a request to the bridge once.
func (h *gatewayHarness) submit(r *sip.Request) (*sip.Disposition, error) {
	c := sip.HTTPClient{URL: h.bridgeURL, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	return c.Ingest(context.Background(), r)
}

// answered sends it and wants a disposition.
func (h *gatewayHarness) answered(r *sip.Request, want sip.Outcome) *sip.Disposition {
	h.t.Helper()
	disp, err := h.submit(r)
	h.do(err)
	if disp.Outcome != want {
		h.t.Fatalf("answered %v (%s), want %v", disp.Outcome, disp.Reason, want)
	}
	if !bytes.Equal(sip.AppendSource(nil, disp.Source), sip.AppendSource(nil, r.Source)) {
		h.t.Fatalf("the source is not repeated: %+v", disp.Source)
	}
	return disp
}

// faulted sends it and wants a fault whose text has a word.
func (h *gatewayHarness) faulted(r *sip.Request, code sip.Code, word string) {
	h.t.Helper()
	disp, err := h.submit(r)
	var fault *sip.Fault
	if !errors.As(err, &fault) || fault.Code != code || !strings.Contains(fault.Text, word) {
		h.t.Fatalf("answered %+v, %v; want a fault %s with %q", disp, err, code, word)
	}
}

// of returns the only submission of a request.
func (h *gatewayHarness) of(r *sip.Request) *submission.Submission {
	h.t.Helper()
	digest := requestDigest(r)
	found, err := h.log.Submissions(context.Background(), submission.Query{Source: h.source, Request: &digest})
	h.do(err)
	if len(found) != 1 {
		h.t.Fatalf("%d submissions of one request: %+v", len(found), found)
	}
	return &found[0]
}

// state wants the only submission of a request in a state.
func (h *gatewayHarness) state(r *sip.Request, want submission.State) *submission.Submission {
	h.t.Helper()
	s := h.of(r)
	if s.State != want {
		h.t.Fatalf("state %v (%s), want %v", s.State, s.Reason, want)
	}
	return s
}

// tend lets time pass and does what is due then.
func (h *gatewayHarness) tend(after time.Duration) {
	h.t.Helper()
	h.clock.Advance(after)
	_, err := h.process.Load().doDue(context.Background())
	h.do(err)
}

// events returns the events of a record's source-identifier or assigned
// identifier.
func (h *gatewayHarness) events(identifier string) (out []string) {
	h.t.Helper()
	for e, err := range h.log.Events(context.Background(), "maps", event.Range{Upto: 1 << 40}) {
		h.do(err)
		if e.Origin.SourceIdentifier == identifier || e.Record == identifier {
			out = append(out, e.Kind.String())
		}
	}
	return out
}

// notices returns those that wait.
func (h *gatewayHarness) notices() []submission.OutgoingNotification {
	h.t.Helper()
	return h.due(h.clock.Now().Add(1000 * time.Hour))
}

// deliver delivers the notifications that wait.
func (h *gatewayHarness) deliver() {
	h.t.Helper()
	ctx := context.Background()
	for _, n := range h.notices() {
		m, err := sip.ReadDocument(n.Disposition)
		h.do(err)
		h.do(plainClient(n.Recipient).Post(ctx, sip.AppendMessage(nil, m)))
		n.State, n.Tries, n.Due = submission.DeliveryDone, n.Tries+1, 0
		_, err = h.log.Write(ctx, &submission.Batch{Source: h.source, Outgoing: []submission.OutgoingNotification{n}})
		h.do(err)
	}
}

func plainClient(recipient string) *sip.HTTPClient {
	return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// upstreamFunc is an ingest server that is a function.
type upstreamFunc func(*sip.Request) (*sip.Disposition, error)

func (f upstreamFunc) GetProperties(context.Context) (*sip.Properties, error) {
	return nil, errors.New("nobody asks")
}

func (f upstreamFunc) Ingest(_ context.Context, r *sip.Request) (*sip.Disposition, error) {
	return f(r)
}
