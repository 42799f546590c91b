package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// attempt is the result of one delivery.
type attempt struct {
	dueItem
	// notice as it is now; nil when it was not tried.
	notice *event.OutgoingNotification
	// unread is why it could not be read.
	unread error
	// down: nobody has answered, which is not about this notice or recipient.
	down bool
	// Until when the host and the recipient are left alone; zero is not at all.
	hostUntil, recipientUntil time.Time
}

// try reads a notice, sends it, and returns what has become of it. ctx ends with the
// Notifier, call also when this call is given up.
func (r *notifyLoop) try(ctx, call context.Context, t dueItem) attempt {
	s := attempt{dueItem: t}
	found, err := r.Store.OutgoingDue(ctx, t.due, &event.OutgoingNotification{Due: t.due, ID: t.id - 1}, 1)
	switch {
	case ctx.Err() != nil:
		return s
	case err != nil:
		s.unread = err
		return s
	case len(found) == 0 || found[0].ID != t.id:
		return s
	}
	n := &found[0]
	err = defect.Guard(func() (err error) {
		s.down, err = r.deliver(call, n)
		return err
	})
	if err != nil && context.Cause(call) == errTooSlow { //nolint:errorlint // it is set as it is
		s.down, err = true, errTooSlow
	}
	if err != nil && ctx.Err() != nil {
		return s // broken off by the end of the process: that is no try
	}
	s.notice = n
	n.Tries++
	n.Reason, n.Due = "", 0
	if err == nil {
		n.State = event.DeliveryDone
		return s
	}
	r.failed(&s, err)
	defect.Log(r.log(), err)
	n.Reason = FailureText(err)
	r.log().Warn("a notice was not delivered", "set", n.Set, "submission", n.Submission, "notice", n.ID, "state", n.State, "tries", n.Tries, "reason", n.Reason)
	return s
}

// failed says what follows from a failure: for the notice, and for whoever else
// waits for its recipient, or its host.
func (r *notifyLoop) failed(s *attempt, err error) {
	var fault *sip.Fault
	var status *sip.StatusError
	n, now, faulted := s.notice, r.now(), errors.As(err, &fault)
	errors.As(err, &status)
	switch {
	case faulted && fault.Code == sip.Client || mail.Permanent(err):
		n.State = event.DeliveryRefused
		return
	case now.Sub(n.Created.Time()) >= r.giveUp:
		n.State = event.DeliveryExpired
	default:
		n.Due = event.MicrosOf(r.again(now, n, status))
	}
	switch {
	case s.down:
		s.hostUntil = now.Add(r.first)
	case faulted: // that is about this notice
	case status != nil && status.RetryAfter > 0 && (status.Status == http.StatusTooManyRequests || status.Status == http.StatusServiceUnavailable):
		s.hostUntil = now.Add(min(status.RetryAfter, r.longest))
	default:
		s.recipientUntil = now.Add(r.first)
	}
}

// again returns when a notice is tried again: after its back-off, or later if the
// recipient wants so; for the last time when it is given up. status may be nil.
func (r *notifyLoop) again(now time.Time, n *event.OutgoingNotification, status *sip.StatusError) time.Time {
	wait := submission.BackOff(r.first, r.longest, n.Tries)
	if status != nil {
		wait = max(wait, min(status.RetryAfter, r.longest))
	}
	at, last := now.Add(wait), n.Created.Time().Add(r.giveUp)
	if at.After(last) {
		return last
	}
	return at
}

// deliver sends a notice the way its recipient wants it. down tells, of an error,
// that nobody has answered.
func (r *notifyLoop) deliver(ctx context.Context, n *event.OutgoingNotification) (down bool, err error) {
	m, err := sip.ReadDocument(n.Disposition)
	if err != nil {
		return false, fmt.Errorf("the stored disposition cannot be read: %w", err)
	}
	message := sip.AppendMessage(nil, m)
	scheme, _, _ := strings.Cut(n.Recipient, ":")
	if scheme = strings.ToLower(scheme); scheme == "http" || scheme == "https" {
		err = r.HTTP(n.Recipient).Post(ctx, message)
		var fault *sip.Fault
		var status *sip.StatusError
		return !errors.As(err, &fault) && !errors.As(err, &status) && sip.Temporary(err), err
	}
	to, err := mail.ParseRecipient(n.Recipient)
	switch {
	case err != nil:
		return false, err
	case r.Mail == nil:
		return false, errors.New("no mail can be sent from here: set from in [mail] of the configuration")
	}
	err = r.Mail.Send(ctx, &mail.Mail{ID: n.Message, To: to, Message: message, Subject: "Ingest disposition: " + m.Disposition.Outcome.String()})
	return err != nil && !mail.Answered(err), err
}

// FailureText returns what an error of a call says, without whom it was to: a URL
// may hold what only the two know, and a mailbox is somebody's.
func FailureText(err error) string {
	var fault *sip.Fault
	var status *sip.StatusError
	var several interface{ Unwrap() []error }
	switch {
	case errors.As(err, &fault):
		return submission.Clip(fault.Error())
	case errors.As(err, &status):
		return submission.Clip(status.Error())
	case errors.As(err, &several): // servers of one domain; they were asked in order
		all := several.Unwrap()
		err = all[len(all)-1]
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return submission.Clip(err.Error())
}
