// Package ingest is the server side of the Simple Ingest Protocol: it lets a set be
// an ingest server in the modes library, review and gateway, and a notification
// recipient.
//
// A Server serves one set. An ingest request passes these functions:
//
//   - [Server.Admit] (access.go) lets the caller in, before the message is read.
//   - [Server.Ingest] (server.go) checks access and quota, and chooses by mode.
//   - Library (library.go): ingestLibrary checks the record. conclude gathers requests
//     that arrive together, and concludeAll commits their contents, and then, in one
//     transaction, what writeConclusions makes of them.
//   - Gateway (gateway.go): ingestGateway lets only one of equal requests go on, with
//     forward. recoverNewest (recover.go) and repeatOf look for an earlier one, begin
//     commits the submission, send sends it, and recordReply (recover.go) commits the
//     reply.
//   - Review (review.go): ingestReview queues the request, until [Server.Decide].
//
// An ultimate disposition, from a reply, from a notification ([Server.Notify]) or from a
// reviewer, ends in resolve (notify.go). operator.go has the commands that settle
// submissions and withdraw records. What a Server sends to others, package delivery
// sends.
//
// All state is in the log. What follows from a request or from a disposition happens
// in one transaction, which reads the submission as it is then, and nothing is
// acknowledged before that is committed. Requests that arrive together share a commit:
// see database.Writer.
package ingest

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// queries are the queries of a *store.Store, on what is committed, and of a *store.Tx,
// inside a transaction.
type queries interface {
	HasNewerVersion(ctx context.Context, s *submission.Submission, states []submission.State, assigned string) (bool, error)
	Submissions(context.Context, submission.Query) ([]submission.Submission, error)
	Presence(ctx context.Context, source event.SourceID, identifier string) (event.Presence, error)
	IncomingNotification(ctx context.Context, id int64) (*submission.IncomingNotification, error)
}

// Mode is the role of a Server besides that of a notification recipient.
type Mode string

// The modes.
const (
	// Recipient: it takes notifications and nothing else.
	Recipient Mode = ""
	// Library: an ingest server that accepts at once and assigns identifiers.
	Library Mode = "library"
	// Review: an ingest server that accepts provisionally, until somebody
	// decides.
	Review Mode = "review"
	// Gateway: an ingest server that passes requests on to another one.
	Gateway Mode = "gateway"
)

// Server is the SIP service of one set: its sip.Backend. Every method may be called
// from any goroutine; Run must be running for Ingest to answer. A Server that is in
// use is not copied and its fields do not change.
type Server struct {
	Set string
	// Feed is the id that the set's feed had first (urn:uuid:...); identifiers that we
	// assign are derived from it, so that those of two sets differ. Epoch is the id that it
	// has now, "" is Feed: Message-IDs have that, since a log that has lost submissions
	// gives their numbers out again.
	Feed, Epoch string
	// Source is the Source under which the log keeps what arrives here, URL its URL
	// there.
	Source event.SourceID
	URL    string
	// Content is how the set treats content; 0 is event.Mirror.
	Content event.Content
	Mode    Mode

	Store *store.Store
	// Keep stores records. When it returns nil they are durable.
	Keep func(ctx context.Context, records ...[]byte) error

	// Formats that are accepted: the root element of a record, and the URL of its
	// schema.
	Formats map[xml.Name]string
	// Validate checks a record against the schema of that URL; nil is no check. reason is
	// why the record is invalid, "" if it is valid; an error means that this could not be
	// found out.
	Validate func(ctx context.Context, schema string, record []byte) (reason string, err error)
	// RecordURL is the URL from which a record that a notification names can be fetched:
	// http or https, with {assigned-identifier} in its path; "" is none.
	RecordURL string
	// Recipient returns an error if a notification-recipient may not be used; nil allows
	// all.
	Recipient func(ctx context.Context, url string) error
	Access    Access
	// Quota bounds how much callers whom Access allows without a secret may store in a
	// day; nil is no bound.
	Quota *limit.Quota

	// Upstream is the ingest server behind a gateway.
	Upstream delivery.Upstream
	// Endpoint returns the URL of this service, without a slash at its end.
	Endpoint func() string
	// Named returns the notification recipient that a gateway sends upstream with a
	// token; nil is the service itself.
	Named func(token string) string
	// Deadline is how long a provisional answer may stay provisional (gateway).
	Deadline time.Duration

	// Targets: the set submits its records to an ingest server, so that
	// notifications come here in every mode.
	Targets bool
	// ImportPending is called when a record of a target was accepted (see
	// delivery.Submitter.ImportPending). It may be nil and must not block.
	ImportPending func(target event.SourceID)

	// Notified is called after outgoing notifications were committed, Pending after
	// observations that wait for their content. Both may be nil and must not block.
	Notified, Pending func()
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets failures that are reported nowhere else; nil discards them.
	Log *slog.Logger

	service service
	gateway gatewayState
	damaged delivery.Damaged
	// concludeTurn has an element while a goroutine concludes a group of requests.
	concludeOnce sync.Once
	concludeTurn chan struct{}
	// mu guards waiting, expected and patience.
	mu      sync.Mutex
	waiting []*conclusion // requests for the next groups
	// expected is how many requests the next group should have, full is sent to once they
	// wait, and patience is how long the group waits for them.
	expected int
	full     chan struct{}
	patience time.Duration
	// denied throttles the log messages of Admit, overQuota those of takeQuota, silent those
	// of gatewayProperties.
	denied, overQuota, silent limit.LogThrottle
}

var _ sip.Backend = (*Server)(nil)

// duePoll is how long something that is due may wait, should the moment be missed.
const duePoll = time.Minute

// Run does what is due, each at its time: it must be called once. When it returns, Ingest
// answers with an error. Until the log has stored the results of the last run's requests,
// Ingest answers with an error too.
func (d *Server) Run(ctx context.Context) {
	recovered := false
	delivery.Loop(ctx, func() (time.Duration, error) {
		if !recovered {
			if err := d.recover(ctx); err != nil {
				return 0, fmt.Errorf("set %s: read what was under way when the last run ended: %w", d.Set, err)
			}
			recovered = true
			d.service.set(nil)
		}
		next, err := d.doDue(ctx)
		if next.IsZero() {
			return duePoll, err
		}
		return min(duePoll, max(next.Sub(d.now()), time.Millisecond)), err
	}, nil, func(err error, again time.Duration) {
		if !recovered {
			d.service.set(err)
			d.log().Error("the service waits for the log", "set", d.Set, "error", err, "again_in", again)
		} else {
			d.log().Warn("due work failed; it is tried again", "set", d.Set, "error", err)
		}
		defect.Log(d.log(), err)
	})
	d.service.set(errEnded)
}

// service holds whether requests are taken. The zero value is ready.
type service struct {
	once   sync.Once
	known  chan struct{} // closed by the first set
	mu     sync.Mutex
	closed bool
	err    error // why not; nil when they are
}

func (s *service) init() { s.once.Do(func() { s.known = make(chan struct{}) }) }

// set stores why requests are not taken; nil means that they are.
func (s *service) set(err error) {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; !s.closed {
		s.closed = true
		close(s.known)
	}
}

// ready waits until it is decided whether requests are taken, and returns why not.
func (s *service) ready(ctx context.Context) error {
	s.init()
	select {
	case <-s.known:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Offers returns the operations of the mode. In every mode Notify takes a
// notification with the token of a submission, too.
func (d *Server) Offers() sip.Operations {
	switch d.Mode {
	case Recipient:
		return sip.Operations{Notify: true}
	case Gateway:
		return sip.Operations{Ingest: true, Notify: true}
	}
	return sip.Operations{Ingest: true, Notify: d.Targets}
}

// GetProperties returns the notification style of the mode and the accepted
// formats.
func (d *Server) GetProperties(ctx context.Context, caller sip.Caller) (*sip.Properties, error) {
	if err := d.mayIngest(&caller); err != nil {
		return nil, err
	}
	switch d.Mode {
	case Gateway:
		return d.gatewayProperties(ctx)
	case Review:
		return &sip.Properties{Style: sip.Asynchronous, Formats: d.schemas()}, nil
	}
	return &sip.Properties{Style: sip.Synchronous, Formats: d.schemas()}, nil
}

// schemas returns the URLs of the accepted formats, each once, sorted.
func (d *Server) schemas() []string {
	urls := make([]string, 0, len(d.Formats))
	for _, u := range d.Formats {
		urls = append(urls, u)
	}
	slices.Sort(urls)
	return slices.Compact(urls)
}

// Ingest answers a request according to the mode, after its effects have been committed.
func (d *Server) Ingest(ctx context.Context, caller sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	if err := d.mayIngest(&caller); err != nil {
		return nil, err
	}
	if err := d.service.ready(ctx); err != nil {
		return nil, err
	}
	if err := submission.CheckTexts("ingest-request", r.Source, ""); err != nil {
		return nil, err
	}
	if err := d.takeQuota(&caller, requestBytes(r)); err != nil {
		return nil, err
	}
	switch d.Mode {
	case Review:
		return d.ingestReview(ctx, r)
	case Gateway:
		return d.ingestGateway(ctx, r)
	}
	return d.ingestLibrary(ctx, r)
}

// requestBytes estimates the stored bytes of a request.
func requestBytes(r *sip.Request) int64 {
	n := len(r.Record.XML) + len(r.Recipient)
	for _, text := range submission.SourceTexts(r.Source) {
		n += len(text)
	}
	return int64(n)
}

// mayIngest returns why the caller may not use the operations of an ingest server. Admit
// also allows callers with the token of a submission; those may only notify.
func (d *Server) mayIngest(caller *sip.Caller) error {
	if d.Mode == Recipient {
		return &sip.Fault{Code: sip.Client, Text: "this service is a notification recipient: it offers notify, not get-properties or ingest"}
	}
	if denied := d.Access.check(caller); denied != nil {
		return denied
	}
	return nil
}

// checkRecipient returns a fault when a notification-recipient is not a valid one, or may
// not be used. "" is allowed: it names nobody.
func (d *Server) checkRecipient(ctx context.Context, recipient string) error {
	if recipient == "" {
		return nil
	}
	const path = "ingest-request/notification-recipient"
	if len(recipient) > submission.MaxText {
		return submission.TooLong(path, recipient)
	}
	err := delivery.ParseRecipient(recipient)
	if err == nil && d.Recipient != nil {
		err = d.Recipient(ctx, recipient)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &sip.Fault{Code: sip.Client, Path: path, Text: fmt.Sprintf("the notification-recipient %q cannot be used: %v", submission.Clip(recipient), err)}
}

func (d *Server) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

func (d *Server) log() *slog.Logger {
	if d.Log != nil {
		return d.Log
	}
	return slog.New(slog.DiscardHandler)
}

// errEnded: the service has been stopped, or could not be started.
var errEnded = errors.New("the service is not running")
