package ingest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

// ingestLibrary accepts or rejects a request at once. A notification-recipient is not
// looked at: nobody will ever be notified.
func (d *Server) ingestLibrary(ctx context.Context, r *sip.Request) (*sip.Disposition, error) {
	reason, err := d.rejectReason(ctx, &r.Record)
	if err != nil {
		return nil, err
	}
	p := &ingestRequest{request: r, reason: reason, whole: reason != "" || !submission.Identifies(r.Source)}
	if p.whole {
		p.digest = requestDigest(r)
	}
	p.observation = translate.FromRecord(d.assign(r.Source), r.Source, &r.Record, d.now())
	return d.requests.submit(ctx, p)
}

// assign returns the identifier of a record from that source: the same for the
// same record, a new one where the source does not tell which it is.
func (d *Server) assign(s *sip.Source) string {
	if submission.Identifies(s) {
		return translate.AssignedIdentifier(d.Feed, s)
	}
	unique := rand.Text()
	return translate.AssignedIdentifier(d.Feed, &sip.Source{Identifier: &unique})
}

// checkRecipient returns a fault when a notification-recipient is none, or may
// not be used. "" is allowed: nobody is named.
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

// rejectReason returns why a record is not accepted: its format is none of ours, or
// the validator says so. The error is that the validator does not know.
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

// requestDigest identifies a whole request.
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

// build decides about each request of a group, in their order.
func (g *ingestBatch) build(ctx context.Context, group []*ingestRequest) error {
	for i, p := range group {
		if p.whole {
			if first, ok := g.seen[p.digest]; ok {
				g.answers[i] = g.answers[first]
				continue
			}
			g.seen[p.digest] = i
			known, err := g.previousReply(ctx, p)
			if err != nil {
				return err
			}
			if known != nil {
				g.answers[i].disposition = known
				continue
			}
		}
		g.answers[i].disposition = g.add(p)
	}
	return nil
}

// previousReply returns what the same whole request was answered today. A rejection does
// not bind when there is no reason for it any more.
func (g *ingestBatch) previousReply(ctx context.Context, p *ingestRequest) (*sip.Disposition, error) {
	stored, err := g.desk.Store.StoredReply(ctx, g.desk.Source, p.digest)
	if err != nil || stored == nil {
		return nil, err
	}
	m, err := sip.ReadDocument(stored)
	if err != nil {
		return nil, fmt.Errorf("read the disposition that was stored for a request: %w", err)
	}
	if m.Disposition.Outcome == sip.Rejected && p.reason == "" {
		return nil, nil
	}
	return m.Disposition, nil
}

// add adds a request to the batch and returns its disposition.
func (g *ingestBatch) add(p *ingestRequest) *sip.Disposition {
	o := p.observation
	disp := &sip.Disposition{Source: p.request.Source, Outcome: sip.Accepted, AssignedIdentifier: o.Record}
	if p.reason != "" {
		disp.Outcome, disp.AssignedIdentifier, disp.Reason = sip.Rejected, "", p.reason
		g.exchange.Rejections = append(g.exchange.Rejections,
			event.Rejection{Anonymous: g.desk.anonymous(), SourceIdentifier: o.SourceIdentifier, Reason: p.reason, Title: o.Title})
	} else {
		// The moment of the commit, so that of two that overtook each other the
		// one in force is not the older.
		o.Order, _ = event.StampOf(g.now)
		o.Modified = o.Order
		g.records = append(g.records, p.request.Record.XML)
		g.items = append(g.items, event.Item{Observation: o})
	}
	if p.whole {
		g.exchange.Replies = append(g.exchange.Replies, event.StoredReply{Request: p.digest, Disposition: submission.Document(disp)})
	}
	return disp
}

// store commits the contents, then what names them.
func (g *ingestBatch) store(ctx context.Context) error {
	if len(g.records) > 0 {
		if err := g.desk.Contents.Put(ctx, g.records...); err != nil {
			return fmt.Errorf("store %d submitted records: %w", len(g.records), err)
		}
	}
	if len(g.items)+len(g.exchange.Replies) == 0 {
		return nil
	}
	if _, err := g.desk.Store.Append(ctx, g.desk.batch(g.items, &g.exchange)); err != nil {
		return fmt.Errorf("log %d submitted records and %d rejections: %w", len(g.items), len(g.exchange.Rejections), err)
	}
	return nil
}

// batch returns a batch of this Source.
func (d *Server) batch(items []event.Item, x *event.SubmissionBatch) *event.Batch {
	return &event.Batch{Source: d.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: d.URL}}, Items: items, Submissions: x}
}
