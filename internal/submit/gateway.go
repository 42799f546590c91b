package submit

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// Upstream is the ingest server that requests go on to; *sip.HTTPClient is one.
type Upstream interface {
	GetProperties(context.Context) (*sip.Properties, error)
	Ingest(context.Context, *sip.Request) (*sip.Disposition, error)
}

// gate is what a desk remembers of requests that have a row in the log. The zero
// value is ready.
type gate struct {
	requests   flights[[32]byte, *event.Submission]
	properties flights[struct{}, *sip.Properties]
	rest       rest
	// sending lets one version of a record be on its way at a time, by its source
	// element: else the later one might arrive first.
	sending turns

	mu sync.Mutex
	// owed is what came of sending requests on, as long as the log has not taken
	// it. It may be more than the log can ever find out again: a server that
	// answers at once sends no notification.
	owed map[[32]byte]debt
	// known are the properties of the ingest server, asked for at a time.
	known *sip.Properties
	asked time.Time
}

// debt is what came of the newest submission of a request, if that has a higher ID
// than after: else it is not in the log.
type debt struct {
	reply reply
	after int64
}

// propertiesKept is how long a gateway answers with the properties that it has.
const propertiesKept = time.Minute

// gatewayProperties returns those of the ingest server behind the gateway.
func (d *Desk) gatewayProperties(ctx context.Context) (*sip.Properties, error) {
	g := &d.gate
	g.mu.Lock()
	known, age := g.known, d.now().Sub(g.asked)
	g.mu.Unlock()
	if known != nil && age >= 0 && age < propertiesKept {
		return known, nil
	}
	p, err := g.properties.do(ctx, struct{}{}, func() (*sip.Properties, error) {
		if err := g.rest.over(d.now()); err != nil {
			return nil, err
		}
		asking, stop := lasting(ctx)
		defer stop()
		p, err := d.Upstream.GetProperties(asking)
		if err != nil {
			g.rest.take(d.now(), err)
			return nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.known, g.asked = p, d.now()
		return p, nil
	})
	if err != nil && (ctx.Err() == nil || serverEnds(ctx)) {
		d.log().Warn("the ingest server does not tell its properties", "set", d.Set, "error", err)
		return nil, &sip.Fault{Code: sip.Server, Text: "the ingest server behind this gateway does not tell its properties: try again later" + said(err)}
	}
	return p, err
}

// ingestGateway passes a request on and relays the reply. Of equal requests that
// come while one is under way only the first is sent.
func (d *Desk) ingestGateway(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	if err := d.checkRecipient(ctx, r.Recipient); err != nil {
		return nil, err
	}
	digest := requestDigest(r)
	s, err := d.gate.requests.do(ctx, digest, func() (*event.Submission, error) {
		// What was begun is brought to its end, although the submitter has hung up.
		going, stop := lasting(ctx)
		defer stop()
		return d.forward(going, r, digest, func() bool { return ctx.Err() == nil })
	})
	if err != nil {
		return nil, err
	}
	return d.answer(s, r.Source)
}

// forward brings the submission of a request as far as it gets now. It is in the
// log before the request goes on, and the reply is in the log before it is
// relayed: whatever breaks off between, a repeat of the request finds where it
// stands. here tells whether the submitter is still on the line.
func (d *Desk) forward(ctx context.Context, r *sip.Request, digest [32]byte, here func() bool) (*event.Submission, error) {
	newest, err := d.settled(ctx, digest, here)
	if err != nil {
		return nil, err
	}
	s, err := d.repeated(ctx, newest)
	if err != nil || s != nil && s.State != event.StateUnsent {
		return s, err
	}
	defer d.gate.turn(r.Source)()
	if s, err = d.repeated(ctx, s); err != nil { // another version may have had its turn before
		return nil, err
	}
	if s, err = d.begin(ctx, s, r, digest, newest); err != nil || s.State != event.StateForwarding {
		return s, err
	}
	return d.send(ctx, s, r.Source, r.Record.XML, here)
}

// turn waits until no other version of a record is on its way, and returns what
// lets the next one go.
func (g *gate) turn(source *sip.Source) (end func()) {
	if !identifies(source) {
		return func() {}
	}
	return g.sending.take(string(sip.AppendSource(nil, source)))
}

// newest returns the newest submission with a digest, nil when there is none.
func (d *Desk) newest(ctx context.Context, digest [32]byte) (*event.Submission, error) {
	found, err := d.Store.Submissions(ctx, event.SubmissionQuery{Source: d.Source, Request: &digest, Newest: true, Limit: 1})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// repeated returns the newest submission of a request when that is what the same
// request is a repeat of, else nil: as long as its answer is awaited, and for a day
// from then on unless its record is withdrawn; and no longer than until a later
// version of its record comes, which it would take back.
func (d *Desk) repeated(ctx context.Context, s *event.Submission) (*event.Submission, error) {
	if s == nil {
		return nil, nil
	}
	if over, err := d.superseded(ctx, s); err != nil || over {
		return nil, err
	}
	switch s.State {
	case event.StateForwarding, event.StateInDoubt, event.StateProvisional:
		return s, nil
	}
	if s.Changed < event.MicrosOf(d.now().Add(-repeatsFor)) {
		return nil, nil
	}
	over, err := d.answersNoMore(ctx, s)
	if err != nil || over {
		return nil, err
	}
	return s, nil
}

// repeatsFor is how long the same whole request is the same submission.
const repeatsFor = 24 * time.Hour

// newSubmission is that of a request that was received, its record stored.
func (d *Desk) newSubmission(ctx context.Context, r *sip.Request, digest [32]byte) (*event.Submission, error) {
	if err := d.Contents.Put(ctx, r.Record.XML); err != nil {
		return nil, fmt.Errorf("store the record: %w", err)
	}
	s := &event.Submission{
		Source: d.Source, Request: digest, Recipient: r.Recipient,
		Content: sha256.Sum256(r.Record.XML), Length: int64(len(r.Record.XML)), Type: "application/xml", Title: translate.RecordTitle(r.Record.XML),
	}
	if r.Source != nil {
		s.SourceXML = sip.AppendSource(nil, r.Source)
		if r.Source.Identifier != nil {
			s.SourceIdentifier = *r.Source.Identifier
		}
	}
	return s, nil
}

// begin commits that a request is about to be sent on for the first time, or
// again after it is certain that it was not. s is what it is a repeat of, newest
// the newest submission with its digest; both may be nil.
func (d *Desk) begin(ctx context.Context, s *event.Submission, r *sip.Request, digest [32]byte, newest *event.Submission) (*event.Submission, error) {
	var err error
	if s == nil {
		s, err = d.newSubmission(ctx, r, digest)
	}
	if err != nil {
		return nil, err
	}
	// Should the commit take effect and fail all the same, the row can be put right.
	owed := debt{reply: reply{err: errNotSent}}
	if newest != nil {
		owed.after = newest.ID
	}
	if s.ID != 0 {
		owed.after = s.ID - 1
	}
	d.gate.owe(digest, owed)
	if s.ID != 0 {
		s, err = d.change(ctx, s.ID, func(s *event.Submission) bool {
			if s.State != event.StateUnsent {
				return false
			}
			s.State, s.Reason = event.StateForwarding, ""
			s.Tries++
			return true
		})
	} else {
		s.State, s.Tries = event.StateForwarding, 1
		if r.Recipient != "" {
			s.Token = newToken()
		}
		var out event.Appended
		if out, err = d.append(ctx, event.SubmissionUpdate{Submission: *s}); err == nil {
			s.ID = out.IDs[0]
		}
	}
	if err != nil {
		return nil, err
	}
	d.gate.paid(digest)
	return s, nil
}

// newToken returns 128 random bits, for a URL or a mailbox.
func newToken() string { return strings.ToLower(rand.Text()) }

// send sends a request on and commits what comes of it.
func (d *Desk) send(ctx context.Context, s *event.Submission, source *sip.Source, record []byte, here func() bool) (*event.Submission, error) {
	r := &sip.Request{Source: source, Record: sip.Record{XML: record}}
	if s.Token != "" {
		r.Recipient = d.recipient(s.Token)
	}
	sent := reply{err: d.gate.rest.over(d.now())}
	if sent.err == nil {
		sent = ask(ctx, d.Upstream, r)
		d.gate.rest.take(d.now(), sent.err)
		if serverEnds(ctx) && !sent.refused() && (errors.Is(sent.err, context.Canceled) || errors.Is(sent.err, http.ErrServerClosed)) {
			sent.err = errLeft
		}
	}
	s, err := d.land(context.WithoutCancel(ctx), s, sent, here())
	if err != nil {
		return nil, err
	}
	if s.State == event.StateUnsent {
		return nil, sent.fault()
	}
	return s, nil
}

// recipient is where the ingest server shall send its disposition.
func (d *Desk) recipient(token string) string {
	if d.Named != nil {
		return d.Named(token)
	}
	return d.Endpoint() + "/" + token
}

// answer is what a submission's request is answered now.
func (d *Desk) answer(s *event.Submission, source *sip.Source) (*sip.Disposition, error) {
	switch s.State {
	case event.StateAccepted:
		return &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: s.Assigned}, nil
	case event.StateRejected:
		return &sip.Disposition{Source: source, Outcome: sip.Rejected, Reason: s.Reason}, nil
	case event.StateProvisional:
		if s.Recipient != "" {
			return &sip.Disposition{Source: source, Outcome: sip.ProvisionallyAccepted}, nil
		}
		return nil, &sip.Fault{Code: sip.Server, Text: "the ingest server has accepted the record provisionally, which cannot be passed on without a notification-recipient: repeat the request later, or name one"}
	case event.StateInDoubt:
		return nil, &sip.Fault{Code: sip.Server, Text: "in doubt: the request may have reached the ingest server, and is not sent again lest the record be ingested twice; repeat it later to learn what has become of it"}
	case event.StateUnresolved:
		return nil, &sip.Fault{Code: sip.Server, Text: "unresolved: the ingest server has not told its decision in time; should it still come, a repeat of the request is answered with it"}
	}
	return nil, &sip.Fault{Code: sip.Server, Text: "the request could not be passed on: send it again"}
}

func (g *gate) owe(request [32]byte, d debt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owed == nil {
		g.owed = map[[32]byte]debt{}
	}
	g.owed[request] = d
}

func (g *gate) paid(request [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.owed, request)
}

func (g *gate) owes(request [32]byte) (debt, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.owed[request]
	return d, ok
}

// flights lets what is asked for several times at once be done once. The zero
// value is ready.
type flights[K comparable, V any] struct {
	mu    sync.Mutex
	under map[K]*flight[V]
}

// flight is under way until done is closed; then value and err are set.
type flight[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// do returns what work returns, or what the one under way with the same key
// does; when ctx ends sooner, whoever waits for another's work goes.
func (f *flights[K, V]) do(ctx context.Context, key K, work func() (V, error)) (V, error) {
	f.mu.Lock()
	if other := f.under[key]; other != nil {
		f.mu.Unlock()
		select {
		case <-other.done:
			return other.value, other.err
		case <-ctx.Done():
			var none V
			return none, ctx.Err()
		}
	}
	if f.under == nil {
		f.under = map[K]*flight[V]{}
	}
	own := &flight[V]{done: make(chan struct{}), err: errors.New("the request has failed")} // should work panic
	f.under[key] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.under, key)
		f.mu.Unlock()
		close(own.done)
	}()
	own.value, own.err = work()
	return own.value, own.err
}

func (f *flights[K, V]) underWay(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.under[key] != nil
}
