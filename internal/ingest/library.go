package ingest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// ingestLibrary accepts or rejects a request at once. A notification-recipient is not
// used: the reply is the ultimate disposition, and nothing is notified later.
func (d *Server) ingestLibrary(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	reason, err := d.rejectReason(ctx, &r.Record)
	if err != nil {
		return nil, err
	}
	return d.conclude(ctx, r, reason)
}

// rejectReason returns why a record is not accepted: its format is not accepted, or the
// validator finds it invalid. The error means that the validator could not find out.
func (d *Server) rejectReason(ctx context.Context, r *sip.Record) (string, error) {
	schema, ok := d.Formats[r.Root]
	if !ok {
		names := make([]string, 0, len(d.Formats))
		for n := range d.Formats {
			names = append(names, submission.QualifiedName(n))
		}
		slices.Sort(names)
		return fmt.Sprintf("the format %s is not accepted; accepted are: %s", submission.Clip(submission.QualifiedName(r.Root)), strings.Join(names, ", ")), nil
	}
	if d.Validate == nil {
		return "", nil
	}
	reason, err := d.Validate(ctx, schema, r.XML)
	if err != nil {
		return "", fmt.Errorf("validate a record against %s: %w", schema, err)
	}
	return reason, nil
}

// conclusion is a request that is accepted or rejected at once.
type conclusion struct {
	request *sip.Request
	reason  string // of its rejection; "" when it is accepted
	// whole: a repeat is recognized by digest, the SHA-256 of the whole request, for a
	// day, since the source names no record or the request was rejected. Any other repeat
	// finds its record by its identifier.
	whole       bool
	digest      [32]byte
	observation event.Observation // of its record, as if it were accepted

	done        chan struct{} // closed when disposition and err are known
	disposition *sip.Disposition
	err         error
}

// groupLimit is how many requests are concluded together at most.
const groupLimit = 256

// maxPatience is how long a group waits at most for requests that may come.
const maxPatience = 3 * time.Millisecond

// conclude accepts or, for a reason, rejects a request at once. Requests that arrive
// during a commit are committed together next, in one batch: a batch for each would take
// half as much processor time again, although they would share the commit.
func (d *Server) conclude(ctx context.Context, r *sip.Request, reason string) (*sip.Disposition, error) {
	own := &conclusion{request: r, reason: reason, whole: reason != "" || !submission.Identifies(r.Source), done: make(chan struct{}),
		observation: translate.FromRecord(d.assign(r.Source), r.Source, &r.Record, d.now())}
	if own.whole {
		own.digest = requestDigest(r)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.concludeOnce.Do(func() { d.concludeTurn, d.full = make(chan struct{}, 1), make(chan struct{}, 1) })
	d.mu.Lock()
	if d.waiting = append(d.waiting, own); len(d.waiting) == d.expected {
		select {
		case d.full <- struct{}{}:
		default:
		}
	}
	d.mu.Unlock()
	for {
		select {
		case <-own.done: // also when another goroutine has the turn
			return own.disposition, own.err
		default:
		}
		select {
		case <-own.done:
		case d.concludeTurn <- struct{}{}:
			// The requests of others are committed whether or not ctx ends meanwhile.
			if group := d.takeGroup(); len(group) > 0 {
				began := time.Now()
				d.concludeAll(context.WithoutCancel(ctx), group)
				d.expect(len(group), time.Since(began))
				clear(group) // the array is that of d.waiting
			}
			<-d.concludeTurn
		}
	}
}

// takeGroup returns the requests that are concluded next. Submitters that were just
// answered often send their next requests at once. The group waits a little for them:
// else there would be two groups in turn, each of half of the submitters, at nearly the
// cost of a whole one. The caller has concludeTurn.
func (d *Server) takeGroup() []*conclusion {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.full:
	default:
	}
	if n := len(d.waiting); n > 0 && n < d.expected {
		patience := time.After(d.patience)
		d.mu.Unlock()
		select {
		case <-d.full:
		case <-patience:
		}
		d.mu.Lock()
	}
	d.expected = 0 // until the group is concluded nobody sends to full
	n := min(len(d.waiting), groupLimit)
	group := d.waiting[:n:n]
	d.waiting = d.waiting[n:]
	return group
}

// expect notes that a group of n requests was concluded, and how long that took: the next
// one should have as many, and those that wait already. It waits for half as long at most,
// so that submitters that do not come again delay others little.
func (d *Server) expect(n int, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expected = min(n+len(d.waiting), groupLimit)
	d.patience = min(took/2, maxPatience)
}

// concludeAll commits the contents of a group and the rows that name them at the same
// time: the log decides and writes its rows while the contents are written, and waits for
// them before its COMMIT. That takes longer for the contents, so they are written here: a new
// goroutine may have to wait until a processor is free.
func (d *Server) concludeAll(ctx context.Context, group []*conclusion) {
	kept, logged := make(chan error, 1), make(chan error, 1)
	go func() {
		logged <- defect.Guard(func() error { return d.logConclusions(ctx, group, sync.OnceValue(func() error { return <-kept })) })
	}()
	kept <- defect.Guard(func() error { return d.keepRecords(ctx, group) })
	err := <-logged
	for _, c := range group {
		c.err = cmp.Or(c.err, err)
		close(c.done)
	}
}

// keepRecords commits the contents of those of a group that are accepted.
func (d *Server) keepRecords(ctx context.Context, group []*conclusion) error {
	var records [][]byte
	for _, c := range group {
		if c.reason == "" {
			records = append(records, c.request.Record.XML)
		}
	}
	if len(records) == 0 {
		return nil
	}
	if err := d.Keep(ctx, records...); err != nil {
		return fmt.Errorf("store %d submitted records: %w", len(records), err)
	}
	return nil
}

// logConclusions commits the rows that name the contents of a group, once kept returns
// nil: then the contents are durable. If the log fails, each request is tried alone: one
// that needs a damaged row must not fail the others, again with each repeat.
func (d *Server) logConclusions(ctx context.Context, group []*conclusion, kept func() error) error {
	err := d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := d.writeConclusions(ctx, tx, group); err != nil {
			return err
		}
		return kept()
	})
	if lost := kept(); lost != nil {
		return lost
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("log %d submitted records: %w", len(group), err)
	if len(group) == 1 {
		return err
	}
	for i := range group {
		group[i].err = d.logConclusions(ctx, group[i:i+1], kept)
	}
	return nil
}

// writeConclusions decides on each request of a group, in their order.
func (d *Server) writeConclusions(ctx context.Context, tx *store.Tx, group []*conclusion) error {
	batch, first := d.batch(), map[[32]byte]*sip.Disposition{}
	counts, err := tx.Counts(ctx, d.Source)
	if err != nil {
		return err
	}
	for _, c := range group {
		if c.whole {
			if c.disposition = first[c.digest]; c.disposition == nil {
				c.disposition, err = d.previousReply(ctx, tx, c)
			}
			if err != nil {
				return err
			}
			if c.disposition != nil {
				continue
			}
		}
		outruns := false
		if c.reason == "" && counts.UnderReview+counts.Submissions[submission.StateAccepted] > 0 {
			if outruns, err = d.checkVersions(ctx, tx, c); err != nil {
				return err
			}
		}
		o := c.observation
		c.disposition = &sip.Disposition{Source: c.request.Source, Outcome: sip.Accepted, AssignedIdentifier: o.Record}
		if c.reason != "" {
			c.disposition.Outcome, c.disposition.AssignedIdentifier, c.disposition.Reason = sip.Rejected, "", c.reason
			batch.Rejections = append(batch.Rejections, submission.Rejection{Anonymous: d.anonymous(),
				Rejection: event.Rejection{SourceIdentifier: o.SourceIdentifier, Reason: c.reason, Title: o.Title}})
		} else {
			// Use the moment of the commit: of two requests that overtook each other, the
			// later commit is in force.
			o.Order, _ = event.StampOf(d.now())
			o.Modified = o.Order
			if item := (&event.Item{Observation: o}); outruns {
				batch.Updates = append(batch.Updates, submission.Update{Submission: *d.acceptedAtOnce(c), Item: item})
			} else {
				batch.Items = append(batch.Items, item)
			}
		}
		if c.whole {
			first[c.digest] = c.disposition
			batch.Replies = append(batch.Replies, submission.StoredReply{Request: c.digest, Disposition: submission.Document(c.disposition)})
		}
	}
	_, err = tx.Write(ctx, batch)
	return err
}

// checkVersions looks for earlier versions of a record that is accepted at once, from before
// the mode changed. The record keeps the identifier under which the last one was accepted,
// unless this mode has given it one already. outruns reports that a version is under review,
// and none was accepted after that: then the record needs a submission, so that the earlier
// version, should it be accepted, does not replace it.
func (d *Server) checkVersions(ctx context.Context, tx *store.Tx, c *conclusion) (outruns bool, err error) {
	if !submission.Identifies(c.request.Source) {
		return false, nil
	}
	versions, err := tx.Submissions(ctx, submission.Query{Source: d.Source, Subject: string(sip.AppendSource(nil, c.request.Source)), Newest: true, Limit: 100,
		States: []submission.State{submission.StateProvisional, submission.StateAccepted}})
	for i := range versions {
		s := &versions[i]
		if s.State == submission.StateAccepted {
			presence, err := tx.Presence(ctx, d.Source, c.observation.Record)
			if err == nil && presence == event.NeverPresent {
				c.observation = translate.FromRecord(s.Assigned, c.request.Source, &c.request.Record, d.now())
			}
			return outruns, err
		}
		outruns = outruns || s.UnderReview()
	}
	return outruns, err
}

// acceptedAtOnce returns the submission of a request that is accepted at once.
func (d *Server) acceptedAtOnce(c *conclusion) *submission.Submission {
	s := d.received(c.request, requestDigest(c.request))
	*s, _ = submission.Apply(*s, submission.Review{}, d.now())
	*s, _ = submission.Apply(*s, submission.Disposition{State: submission.StateAccepted, Assigned: c.observation.Record, Relayed: true}, d.now())
	return s
}

// previousReply returns the answer to an equal request in the last 24 hours. It ignores a
// rejection if there is no reason for it any more.
func (d *Server) previousReply(ctx context.Context, tx *store.Tx, c *conclusion) (*sip.Disposition, error) {
	stored, err := tx.StoredReply(ctx, d.Source, c.digest)
	if err != nil || stored == nil {
		return nil, err
	}
	m, err := sip.ReadDocument(stored)
	if err != nil {
		return nil, fmt.Errorf("read the disposition that was stored for a request: %w", err)
	}
	if m.Disposition.Outcome == sip.Rejected && c.reason == "" {
		return nil, nil
	}
	return m.Disposition, nil
}

// batch returns an empty batch of this Source.
func (d *Server) batch() *submission.Batch { return &submission.Batch{Source: d.Source, URL: d.URL} }

// assign returns the identifier of a record from a source: the same for the same record,
// a new one if the source element does not name a record.
func (d *Server) assign(s *sip.Source) string {
	if submission.Identifies(s) {
		return translate.AssignedIdentifier(d.Feed, s)
	}
	unique := rand.Text()
	return translate.AssignedIdentifier(d.Feed, &sip.Source{Identifier: &unique})
}

// requestDigest returns the SHA-256 that identifies a whole request.
func requestDigest(r *sip.Request) [32]byte {
	var b []byte
	if r.Source != nil {
		b = sip.AppendSource(b, r.Source)
	}
	h := sha256.New()
	for _, part := range [][]byte{b, []byte(r.Recipient), r.Record.XML} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return [32]byte(h.Sum(nil))
}
