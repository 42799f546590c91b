package delivery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// send is a worker: it does jobs until there are no more. When ctx has ended it
// begins none.
func (d *submitLoop) send(ctx, calls context.Context) {
	for j := range d.jobs {
		r := report{Submission: j.Submission}
		if now := d.s.Now(); ctx.Err() != nil || !d.breaker.allows(now) {
			r.skipped = true
		} else if err := defect.Guard(func() error { d.sendOne(calls, &r, j.formats, now); return nil }); err != nil {
			r.local, r.Err = true, err
			d.s.Log.Error("a record could not be submitted", "record", r.Record, "error", err)
			defect.Log(d.s.Log, err)
		}
		d.reports <- r
	}
}

// sendOne sends one, and tells the line what came of it.
func (d *submitLoop) sendOne(calls context.Context, r *report, formats []string, now time.Time) {
	request := d.s.request(calls, r, formats)
	if request == nil {
		return
	}
	r.Reply = Ask(calls, d.s.Server, request)
	r.skipped = calls.Err() != nil && r.Err != nil
	if r.Err == nil || AboutRecord(r.Err) {
		d.breaker.succeeded()
	} else if !r.skipped {
		d.warn(d.breaker.failed(d.s.Every, now, d.s.Now(), r.Err, false), r.Err)
	}
}

// request makes the request of a submission; nil when it is not to be sent, and
// then r says why.
func (o *Submitter) request(ctx context.Context, r *report, formats []string) *sip.Request {
	content, err := o.content(ctx, r.Content)
	if err != nil {
		r.local, r.Err, r.skipped = true, fmt.Errorf("its content cannot be read here: %w", err), ctx.Err() != nil
		return nil
	}
	record, err := sip.ReadRecord(bytes.NewReader(content), sip.ReadOptions{}.Limits)
	if err != nil {
		r.unsent = "the record cannot be read: " + submission.Clip(err.Error())
		return nil
	}
	format := formatOf(&record, o.Formats[record.Root], formats)
	if !o.SkipProperties {
		r.unsent = unlisted(&record, format, formats)
	}
	if r.unsent != "" {
		if format == "" {
			r.unsent += "; name its schema under formats of the target"
		}
		return nil
	}
	request := &sip.Request{Source: sourceElement(o.Submitter, o.Sequence, &r.Record), Record: record}
	if o.Recipient != nil && r.Token != "" {
		request.Recipient = o.Recipient(r.Token)
	}
	return request
}

// assignTokens gives a token to those that have none, since they were made when no
// recipient was named. It is in the log before anybody can notify of it.
func (d *submitLoop) assignTokens(ctx context.Context, due []*event.Submission) ([]*event.Submission, error) {
	var steps []event.SubmissionUpdate
	var of []*event.Submission
	for _, s := range due {
		if s.Token == "" && d.s.Recipient != nil {
			s.Token = NewToken()
			steps, of = append(steps, event.SubmissionUpdate{Submission: *s}), append(of, s)
		}
	}
	if len(steps) == 0 {
		return due, nil
	}
	out, err := d.append(ctx, steps)
	if err != nil {
		return nil, err
	}
	for i, s := range of {
		if slices.Contains(out.Stale, i) {
			s.ID = 0 // it was answered meanwhile
		}
		s.Version++
	}
	return slices.DeleteFunc(due, func(s *event.Submission) bool { return s.ID == 0 }), nil
}

func (o *Submitter) content(ctx context.Context, sum [32]byte) ([]byte, error) {
	r, length, err := o.Contents.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content := make([]byte, length)
	_, err = io.ReadFull(r, content)
	return content, err
}

// formatOf is the schema that a record names itself, if the server lists it, else
// the one that was configured for it, if any.
func formatOf(record *sip.Record, configured string, listed []string) string {
	own := record.Locations()[record.Root.Space]
	if own != "" && (configured == "" || slices.Contains(listed, own)) {
		return own
	}
	return configured
}

// unlisted says why a record is not sent to a server that lists these formats; ""
// when it may be.
func unlisted(record *sip.Record, format string, listed []string) string {
	const shown = 5
	if format != "" && slices.Contains(listed, format) {
		return ""
	}
	accepts := strings.Join(listed[:min(len(listed), shown)], ", ")
	if more := len(listed) - shown; more > 0 {
		accepts += fmt.Sprintf(" and %d more", more)
	}
	if format == "" {
		return fmt.Sprintf("its format is not known: the record names no schema for its root %s; the server accepts %s", submission.Clip(submission.QualifiedName(record.Root)), accepts)
	}
	return fmt.Sprintf("the server does not accept the format %s; it accepts %s", format, accepts)
}
