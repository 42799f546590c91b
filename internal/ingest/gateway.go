package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// gatewayState is the state of a gateway that is not in the log. The zero value is ready.
type gatewayState struct {
	requests   singleflight[[32]byte, *submission.Submission]
	properties singleflight[struct{}, *sip.Properties]
	pause      delivery.RetryAfterGate
	// sending, by source element, lets only one version of a record be sent at a time:
	// else the later one might arrive first.
	sending keyedMutex

	mu sync.Mutex
	// unsaved are results of sending requests that the log has not stored yet. Some
	// cannot be found out again: a server that answers at once sends no notification.
	unsaved map[[32]byte]unsavedReply
	// known are the properties of the ingest server, asked the time when it was asked for
	// them.
	known *sip.Properties
	asked time.Time
}

// unsavedReply is the result of sending the newest submission of a request. It applies
// only if that submission has a higher ID than after: else the submission is not in the
// log.
type unsavedReply struct {
	reply delivery.Reply
	after int64
}

// ingestGateway passes a request on and relays the reply. Of equal requests that
// come while one is under way only the first is sent.
func (d *Server) ingestGateway(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	if err := d.checkRecipient(ctx, r.Recipient); err != nil {
		return nil, err
	}
	digest := requestDigest(r)
	for {
		s, err := d.gateway.requests.do(ctx, digest, func() (*submission.Submission, error) {
			// Finish what was begun, even if the submitter hangs up.
			going, stop := detach(ctx)
			defer stop()
			return d.forward(going, r, digest, func() bool { return ctx.Err() == nil || d.gateway.requests.waitedFor(digest) })
		})
		switch {
		case errors.Is(err, errRecovered):
		case err != nil:
			return nil, err
		default:
			return d.answer(s, r.Source)
		}
	}
}

// forward takes the submission of a request as far as it gets now. The submission is in
// the log before the request is sent on, and the reply is in the log before it is
// relayed: after a failure in between, a repeat of the request continues from there.
// submitterWaits reports whether the submitter still waits for the reply, on whichever of its
// connections.
func (d *Server) forward(ctx context.Context, r *sip.Request, digest [32]byte, submitterWaits func() bool) (*submission.Submission, error) {
	newest, err := d.recoverNewest(ctx, digest, submitterWaits)
	if err != nil {
		return nil, err
	}
	s, err := d.repeatOf(ctx, d.Store, newest)
	if err != nil || s != nil && s.State != submission.StateUnsent {
		return s, err
	}
	if submission.Identifies(r.Source) { // no other version may be sent meanwhile
		end, err := d.gateway.lockVersions(ctx, r.Source)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	if s, err = d.repeatOf(ctx, d.Store, s); err != nil { // another version may have been sent before
		return nil, err
	}
	if s, err = d.begin(ctx, s, r, digest, newest); err != nil || s.State != submission.StateForwarding {
		return s, err
	}
	return d.send(ctx, s, r.Source, r.Record.XML, submitterWaits)
}

// turnWait is how long a request waits for the answers to other versions of its record.
const turnWait = time.Minute

// lockVersions waits until no other version of the record of a source element is being sent,
// and returns the function that lets the next one be sent.
func (g *gatewayState) lockVersions(ctx context.Context, source *sip.Source) (end func(), err error) {
	waits, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	if end = g.sending.lock(waits, string(sip.AppendSource(nil, source))); end != nil {
		return end, nil
	}
	return nil, &sip.Fault{Code: sip.Server, Text: "the request was not sent, since another version of its record waits for its answer: send it again later"}
}

// newest returns the newest submission with a digest, nil when there is none.
func (d *Server) newest(ctx context.Context, q queries, digest [32]byte) (*submission.Submission, error) {
	found, err := q.Submissions(ctx, submission.Query{Source: d.Source, Request: &digest, Newest: true, Limit: 1})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// repeatOf returns s, the newest submission with the digest of a request, if the request
// is a repeat of it; else nil. It is a repeat while the answer of s is awaited, and for a
// day from then on, unless the record is withdrawn. It is none once a later version of
// the record has come, which the repeat would undo.
func (d *Server) repeatOf(ctx context.Context, q queries, s *submission.Submission) (*submission.Submission, error) {
	if s == nil {
		return nil, nil
	}
	if submission.Versioned(s) {
		sent := slices.DeleteFunc(submission.States(), func(s submission.State) bool { return s == submission.StateUnsent })
		if newer, err := q.HasNewerVersion(ctx, s, sent, ""); err != nil || newer {
			return nil, err
		}
	}
	switch s.State {
	case submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional:
		return s, nil
	}
	if s.Changed < event.MicrosOf(d.now().Add(-repeatWindow)) {
		return nil, nil
	}
	if submission.Versioned(s) { // else a new submission looks like a repeat
		if gone, err := withdrawn(ctx, q, s); err != nil || gone {
			return nil, err
		}
	}
	return s, nil
}

// repeatWindow is how long an equal request counts as the same submission.
const repeatWindow = 24 * time.Hour

// begin commits that a request is about to be sent on for the first time, or again when
// it was certainly not sent before. s is the submission that it repeats, newest the
// newest submission with its digest; both may be nil.
func (d *Server) begin(ctx context.Context, s *submission.Submission, r *sip.Request, digest [32]byte, newest *submission.Submission) (*submission.Submission, error) {
	var err error
	if s == nil {
		s, err = d.newSubmission(ctx, r, digest)
	}
	if err != nil {
		return nil, err
	}
	// If the commit takes effect and fails all the same, this puts the row right.
	unsaved := unsavedReply{reply: delivery.Reply{Err: delivery.ErrNotSent}}
	if newest != nil {
		unsaved.after = newest.ID
	}
	if s.ID != 0 {
		unsaved.after = s.ID - 1
	}
	d.gateway.save(digest, unsaved)
	if s.ID != 0 {
		s, err = d.apply(ctx, s.ID, submission.Forward{})
	} else {
		*s, _ = submission.Apply(*s, submission.Forward{}, d.now())
		if r.Recipient != "" {
			s.Token = delivery.NewToken()
		}
		batch := d.batch()
		batch.Updates = []submission.Update{{Submission: *s}}
		var out submission.Written
		if out, err = d.Store.Write(ctx, batch); err == nil {
			s.ID = out.IDs[0]
		}
	}
	if err != nil {
		return nil, err
	}
	d.gateway.clear(digest)
	return s, nil
}

// newSubmission stores the record of a request, and returns its submission, which is not
// stored yet and has no state.
func (d *Server) newSubmission(ctx context.Context, r *sip.Request, digest [32]byte) (*submission.Submission, error) {
	if err := d.Keep(ctx, r.Record.XML); err != nil {
		return nil, fmt.Errorf("store the record: %w", err)
	}
	return d.received(r, digest), nil
}

// received returns a submission of a request that has no state yet.
func (d *Server) received(r *sip.Request, digest [32]byte) *submission.Submission {
	s := &submission.Submission{
		Source: d.Source, Request: digest, Recipient: r.Recipient,
		Content: sha256.Sum256(r.Record.XML), Length: int64(len(r.Record.XML)), Type: "application/xml", Title: translate.RecordTitle(r.Record.XML),
	}
	if r.Source != nil {
		s.SourceXML = sip.AppendSource(nil, r.Source)
		if r.Source.Identifier != nil {
			s.SourceIdentifier = *r.Source.Identifier
		}
	}
	return s
}

// send sends a request on and commits the result.
func (d *Server) send(ctx context.Context, s *submission.Submission, source *sip.Source, record []byte, submitterWaits func() bool) (*submission.Submission, error) {
	r := &sip.Request{Source: source, Record: sip.Record{XML: record}}
	switch {
	case s.Token == "":
	case d.Named != nil:
		r.Recipient = d.Named(s.Token)
	default:
		r.Recipient = d.Endpoint() + "/" + s.Token
	}
	sent := delivery.Reply{Err: d.gateway.pause.Check(d.now())}
	if sent.Err == nil {
		sent = delivery.Ask(ctx, d.Upstream, r)
		d.gateway.pause.Record(d.now(), sent.Err)
		if serverClosing(ctx) && !sent.Refused() && (errors.Is(sent.Err, context.Canceled) || errors.Is(sent.Err, http.ErrServerClosed)) {
			sent.Err = errLeft
		}
	}
	s, err := d.recordReply(context.WithoutCancel(ctx), s, sent, submitterWaits())
	if err != nil {
		return nil, err
	}
	if s.State == submission.StateUnsent {
		return nil, notTaken(sent)
	}
	if sent.Disposition != nil && sent.Disposition.Outcome == sip.ProvisionallyAccepted && s.State.Final() {
		// The notification was faster. The submitter gets it too, so its reply is the one that
		// was sent, and not the same decision again.
		promised := *s
		promised.State = submission.StateProvisional
		return &promised, nil
	}
	return s, nil
}

// notTaken is the fault that answers a request that was not taken: the fault of the
// ingest server if it is about the request, and not about the gateway.
func notTaken(r delivery.Reply) error {
	var fault *sip.Fault
	var status *sip.StatusError
	switch {
	case !delivery.AboutRecord(r.Err):
		return &sip.Fault{Code: sip.Server, Text: "the ingest server behind this gateway has not taken the request: send it again later" + upstreamMessage(r.Err)}
	case errors.As(r.Err, &fault):
		return &sip.Fault{Code: sip.Client, Text: fault.Text, Path: fault.Path}
	}
	errors.As(r.Err, &status)
	text := "the ingest server behind this gateway refuses the request"
	if status.Status == http.StatusRequestEntityTooLarge {
		text += ", which is too long for it as it is passed on"
	}
	return &sip.Fault{Code: sip.Client, Text: text + ": " + submission.Clip(status.Error())}
}

// answer returns the answer to a submission's request by its present state.
func (d *Server) answer(s *submission.Submission, source *sip.Source) (*sip.Disposition, error) {
	switch s.State {
	case submission.StateAccepted:
		return &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: s.Assigned}, nil
	case submission.StateRejected:
		return &sip.Disposition{Source: source, Outcome: sip.Rejected, Reason: s.Reason}, nil
	case submission.StateProvisional:
		if s.Recipient != "" {
			return &sip.Disposition{Source: source, Outcome: sip.ProvisionallyAccepted}, nil
		}
		return nil, &sip.Fault{Code: sip.Server, Text: "the ingest server has accepted the record provisionally, which cannot be passed on without a notification-recipient: repeat the request later, or name one"}
	case submission.StateInDoubt:
		return nil, &sip.Fault{Code: sip.Server, Text: "in doubt: the request may have reached the ingest server; it is not sent again, because that could ingest the record twice; repeat it later to learn the disposition"}
	case submission.StateUnresolved:
		return nil, &sip.Fault{Code: sip.Server, Text: "unresolved: the ingest server has not sent its decision in time; if it still comes, a repeat of the request is answered with it"}
	}
	return nil, &sip.Fault{Code: sip.Server, Text: "the request could not be passed on: send it again"}
}

func (g *gatewayState) save(request [32]byte, d unsavedReply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unsaved == nil {
		g.unsaved = map[[32]byte]unsavedReply{}
	}
	g.unsaved[request] = d
}

func (g *gatewayState) clear(request [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.unsaved, request)
}

func (g *gatewayState) unsavedReply(request [32]byte) (unsavedReply, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.unsaved[request]
	return d, ok
}

// errLeft: in the log a request is being sent on, but no goroutine sends it.
var errLeft = errors.New("the gateway was stopped while the request was under way")

// propertiesKept is how long a gateway answers with the properties that it has stored.
const propertiesKept = time.Minute

// gatewayProperties returns the properties of the ingest server behind the gateway.
func (d *Server) gatewayProperties(ctx context.Context) (*sip.Properties, error) {
	g := &d.gateway
	g.mu.Lock()
	known, age := g.known, d.now().Sub(g.asked)
	g.mu.Unlock()
	if known != nil && age >= 0 && age < propertiesKept {
		return known, nil
	}
	p, err := g.properties.do(ctx, struct{}{}, func() (*sip.Properties, error) {
		if err := g.pause.Check(d.now()); err != nil {
			return nil, err
		}
		asking, stop := detach(ctx)
		defer stop()
		p, err := d.Upstream.GetProperties(asking)
		if err != nil {
			g.pause.Record(d.now(), err)
			return nil, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.known, g.asked = p, d.now()
		return p, nil
	})
	if err != nil && (ctx.Err() == nil || serverClosing(ctx)) {
		d.silent.Note(func(n int) {
			d.log().Warn("the ingest server does not report its properties", "set", d.Set, "requests", n, "error", submission.Clip(err.Error()))
		})
		return nil, &sip.Fault{Code: sip.Server, Text: "the ingest server behind this gateway does not report its properties: try again later" + upstreamMessage(err)}
	}
	return p, err
}

// singleflight does work once for all callers that ask for it at the same time. The zero
// value is ready.
type singleflight[K comparable, V any] struct {
	mu    sync.Mutex
	calls map[K]*call[V]
}

// call is under way until done is closed; then value and err are set.
type call[V any] struct {
	done    chan struct{}
	waiting int // callers that wait for another's work
	value   V
	err     error
}

// do returns the result of work, or of the work under way with the same key. If ctx ends
// sooner, a caller that waits for another's work returns with its error.
func (f *singleflight[K, V]) do(ctx context.Context, key K, work func() (V, error)) (V, error) {
	f.mu.Lock()
	if other := f.calls[key]; other != nil {
		other.waiting++
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			other.waiting--
		}()
		select {
		case <-other.done:
			return other.value, other.err
		case <-ctx.Done():
			var none V
			return none, ctx.Err()
		}
	}
	if f.calls == nil {
		f.calls = map[K]*call[V]{}
	}
	own := &call[V]{done: make(chan struct{}), err: errors.New("the request has failed")} // should work panic
	f.calls[key] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.calls, key)
		f.mu.Unlock()
		close(own.done)
	}()
	own.value, own.err = work()
	return own.value, own.err
}

func (f *singleflight[K, V]) inFlight(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[key] != nil
}

// waitedFor reports whether other callers wait for the work under way with a key.
func (f *singleflight[K, V]) waitedFor(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[key] != nil && f.calls[key].waiting > 0
}

// upstreamMessage returns the message of an ingest server about its own state, to be
// added to a text; "" when there is none, or when it is about our call.
func upstreamMessage(err error) string {
	var fault *sip.Fault
	var status *sip.StatusError
	var resting *delivery.PausedError
	switch {
	case errors.As(err, &resting):
		return "; " + resting.Error()
	case errors.As(err, &fault) && fault.Code == sip.Server:
		return "; it says: " + submission.Clip(fault.Text)
	case errors.As(err, &status) && sip.Temporary(err):
		return "; it says: " + submission.Clip(status.Error())
	}
	return ""
}

// keyedMutex is a mutex for each key. The zero value is ready.
type keyedMutex struct {
	mu     sync.Mutex
	locked map[string]chan struct{} // closed when the key is unlocked
}

// lock locks a key, and returns the function that unlocks it; nil if ctx ends sooner.
func (t *keyedMutex) lock(ctx context.Context, key string) (end func()) {
	own := make(chan struct{})
	for {
		t.mu.Lock()
		other := t.locked[key]
		if other == nil {
			if t.locked == nil {
				t.locked = map[string]chan struct{}{}
			}
			t.locked[key] = own
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				close(own)
				delete(t.locked, key)
			}
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil
		}
	}
}

// detach returns a context for work that goes on when the caller has hung up, until stop
// is called. It also ends, with the cause http.ErrServerClosed, when the server shuts
// down: then calls can still be answered.
func detach(ctx context.Context) (lasts context.Context, stop func()) {
	lasts, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, func() {
		if serverClosing(ctx) {
			end(http.ErrServerClosed)
		}
	})
	return lasts, func() {
		unwatch()
		end(nil)
	}
}

// serverClosing reports whether a call ends because the server does.
func serverClosing(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), http.ErrServerClosed)
}
