package submission

import (
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// MaxRetry is the longest time between two tries to send a submission.
const MaxRetry = time.Hour

// Input is something that happens to a submission: one of the types of this package with
// the method input.
type Input interface{ input() }

// Enqueue makes a new submission of a target wait to be sent. It is due at once.
type Enqueue struct{}

// Forward: a gateway is about to send a received submission on: a new one, or one that
// the ingest server has certainly not taken.
type Forward struct{}

// Review hands a new received submission to a reviewer. It has no deadline.
type Review struct{}

// Unsendable: a submission of a target cannot be sent, for Reason.
type Unsendable struct{ Reason string }

// Replace: a later change of the record is submitted instead.
type Replace struct{}

// Resend puts a submission of a target that ended without an answer back in the
// queue. It is due at once, and its tries start again.
type Resend struct{}

// Disposition is a decision of an ingest server or a reviewer: in a reply, in a
// notification, or as an operator has found out.
type Disposition struct {
	// State is the decision: StateAccepted, StateRejected or StateProvisional.
	State State
	// Assigned is the identifier of an accepted record, Reason why it was rejected, if
	// that is known.
	Assigned, Reason string
	// Deadline is how long a provisional disposition may stay the last one.
	Deadline time.Duration
	// Reply: it is the reply to a request. Otherwise it is from a notification, a
	// reviewer or an operator.
	Reply bool
	// Relayed: the submitter gets it as the reply to its own request, and no
	// notification.
	Relayed bool
	// Settled: it is the decision of an operator. It replaces an ultimate disposition
	// that it contradicts.
	Settled bool
}

// FailureClass is the meaning of a failed request.
type FailureClass uint8

// The classes of failures.
const (
	// NotTried: nothing was sent, for a reason on our side.
	NotTried FailureClass = iota + 1
	// NotTaken: the ingest server has certainly not taken the request.
	NotTaken
	// RecordRefused: NotTaken, and the server never takes this record.
	RecordRefused
	// Undecided: the ingest server has answered, and may have taken the request, but
	// the answer has no disposition. Asking again would not help.
	Undecided
	// ReplyLost: the ingest server may have taken the request.
	ReplyLost
)

// Failure is a request to an ingest server that brought no disposition.
type Failure struct {
	Class  FailureClass
	Reason string
	// Retry is how long a target waits before it tries again, doubled with each try up to
	// MaxRetry. RetryAfter is how long the server has asked the target to wait.
	Retry, RetryAfter time.Duration
	// Deadline is how long to wait for the disposition of a request that may have been
	// taken.
	Deadline time.Duration
}

// Expire: time has passed. It ends a submission that has reached its deadline.
type Expire struct{}

// LimitWait shortens a wait that is longer than it can be now: the deadline was longer
// when the wait began, or the clock was wrong.
type LimitWait struct{ Retry, Deadline time.Duration }

// Imported: the accepted record was imported into the other set.
type Imported struct{}

// SettleUnsent: an operator has found out that the ingest server has not taken the
// request, for Reason.
type SettleUnsent struct{ Reason string }

func (Enqueue) input()      {}
func (Forward) input()      {}
func (Review) input()       {}
func (Unsendable) input()   {}
func (Replace) input()      {}
func (Resend) input()       {}
func (Disposition) input()  {}
func (Failure) input()      {}
func (Expire) input()       {}
func (LimitWait) input()    {}
func (Imported) input()     {}
func (SettleUnsent) input() {}

// Effects are the consequences of an input besides the new state.
type Effects struct {
	// Changed: the submission is stored. Otherwise the input does not apply to its
	// state, and nothing else is done in the transaction.
	Changed bool

	// The other effects happen in the same transaction.

	// Resolution is the meaning of a disposition; 0 of other inputs. A disposition that
	// contradicts another, and is not Settled, is stored as an incoming notification with
	// the verdict NotificationConflict.
	Resolution Resolution
	// Rejected: an event of kind rejected is logged.
	Rejected bool
	// Publish: the record was accepted here, and becomes an observation of the set
	// unless a newer version of it was accepted under the same identifier.
	Publish bool
	// Notify: the submitter gets an outgoing notification with the disposition.
	Notify bool

	// Import: the record waits to be imported into another set, after the transaction. A
	// repeated disposition sets it again: the import after the first one may have failed.
	Import bool
}

// Apply returns a submission as it is after an input at a time, and the effects. A new
// submission has no state yet. An input that its state does not allow changes nothing:
// the submission was answered, replaced or given up in the meantime.
func Apply(s Submission, in Input, now time.Time) (Submission, Effects) {
	changed := Effects{Changed: true}
	target := s.Seq != 0
	switch in := in.(type) {
	case Enqueue:
		if target && s.State == 0 {
			s.State, s.Due = StateWaiting, event.MicrosOf(now)
			return s, changed
		}
	case Forward:
		if !target && (s.State == 0 || s.State == StateUnsent) {
			s.State, s.Reason = StateForwarding, ""
			s.Tries++
			return s, changed
		}
	case Review:
		if !target && s.State == 0 {
			s.State = StateProvisional
			return s, changed
		}
	case Unsendable:
		if target && (s.State == 0 || s.State == StateWaiting) {
			end(&s, StateUnsent, in.Reason)
			return s, changed
		}
	case Replace:
		if target && s.State == StateWaiting {
			end(&s, StateReplaced, "")
			return s, changed
		}
	case Resend:
		if target && (s.State == StateUnsent || s.State == StateUnresolved) {
			end(&s, StateWaiting, "")
			s.Due, s.Tries = event.MicrosOf(now), 0
			return s, changed
		}
	case Disposition:
		return applyDisposition(s, in, now)
	case Failure:
		return applyFailure(s, in, now)
	case Expire:
		return expire(s, event.MicrosOf(now))
	case LimitWait:
		return limitWait(s, in, now)
	case Imported:
		if s.ImportPending {
			s.ImportPending = false
			return s, changed
		}
	case SettleUnsent:
		if s.State == StateInDoubt || s.State == StateUnresolved || s.State == StateProvisional || s.State == StateWaiting && s.Tries > 0 {
			end(&s, StateUnsent, in.Reason)
			return s, changed
		}
	}
	return s, Effects{}
}

// end brings a submission to a state in which nothing is due.
func end(s *Submission, to State, reason string) {
	s.State, s.Reason, s.Due, s.Deadline = to, reason, 0, 0
}

// applyDisposition follows docs/decisions/sip-order.md: a submission has one ultimate
// disposition, the first, and its submitter gets no other.
func applyDisposition(s Submission, d Disposition, now time.Time) (Submission, Effects) {
	if s.State == 0 {
		return s, Effects{}
	}
	e := Effects{Resolution: s.Resolve(d.State, d.Assigned), Import: s.ImportPending}
	if d.State == StateProvisional && s.Seq == 0 && s.State != StateForwarding {
		e.Resolution = Repeats // only a reply is provisional, and the gateway has recorded another end of the request
	}
	switch {
	case e.Resolution == Repeats:
		e.Changed = d.Settled // a settlement ends conflicts all the same
		return s, e
	case e.Resolution == Contradicts && !d.Settled:
		e.Changed = true
		s.Conflicts++
		return s, e
	}
	e.Changed = true
	told := s.State.Final()
	if d.Reply && s.Seq != 0 { // a gateway counts when it sends
		s.Tries++
	}
	s.Late = d.State.Final() && s.State == StateUnresolved
	end(&s, d.State, d.Reason)
	s.Assigned = d.Assigned
	s.ImportPending = d.State == StateAccepted && s.Seq != 0
	if d.State == StateProvisional {
		if s.Seq == 0 && s.Recipient == "" {
			s.Reason = "accepted provisionally, although no notification-recipient was named: its decision can only be learned from the ingest server itself"
		}
		s.Deadline = event.MicrosOf(now.Add(d.Deadline))
		s.Due = s.Deadline
	}
	e.Rejected = d.State == StateRejected
	e.Publish = d.State == StateAccepted && s.Seq == 0
	e.Notify = d.State.Final() && !d.Relayed && !told && s.Recipient != ""
	e.Import = s.ImportPending
	return s, e
}

// applyFailure never lets a gateway send again what may have been taken. A target does
// send it again, since the server recognizes a repeat by the identifier of its record.
func applyFailure(s Submission, f Failure, now time.Time) (Submission, Effects) {
	changed := Effects{Changed: true}
	refused := f.Class == NotTried || f.Class == NotTaken || f.Class == RecordRefused
	switch {
	case s.State == StateForwarding && refused:
		end(&s, StateUnsent, f.Reason)
		return s, changed
	case s.State == StateForwarding:
		s.State, s.Reason = StateInDoubt, f.Reason
		s.Deadline = event.MicrosOf(now.Add(f.Deadline))
		s.Due = s.Deadline
		return s, changed
	case s.State != StateWaiting:
		return s, Effects{}
	case f.Class == NotTried:
		s.Reason, s.Due = f.Reason, event.MicrosOf(now.Add(f.Retry))
		return s, changed
	}
	s.Tries++
	s.Reason = f.Reason
	switch f.Class {
	case RecordRefused:
		end(&s, StateUnsent, f.Reason)
		return s, changed
	case Undecided:
		end(&s, StateUnresolved, f.Reason)
		return s, changed
	}
	if s.Deadline == 0 && !refused { // only for a request that may have been taken
		s.Deadline = event.MicrosOf(now.Add(f.Deadline))
	}
	s.Due = event.MicrosOf(now.Add(max(BackOff(f.Retry, MaxRetry, s.Tries), f.RetryAfter)))
	if s.Deadline != 0 {
		s.Due = min(s.Due, s.Deadline)
	}
	return s, changed
}

// noDecision is the reason of a submission that was accepted provisionally until its
// deadline. That of one that was in doubt has more.
const noDecision = "the ingest server has not sent its decision in time"

// expire ends a submission that may have been taken, or was accepted provisionally, at
// its deadline.
func expire(s Submission, now event.Micros) (Submission, Effects) {
	switch s.State {
	case StateWaiting, StateInDoubt, StateProvisional:
	default:
		return s, Effects{}
	}
	if s.Deadline == 0 || s.Deadline > now {
		if s.State == StateWaiting || s.Due == s.Deadline {
			return s, Effects{}
		}
		s.Due = s.Deadline // it was due too early
		return s, Effects{Changed: true}
	}
	reason := noDecision
	if s.State != StateProvisional && s.Reason != "" {
		reason += ": " + s.Reason
	}
	s.State, s.Reason, s.Due = StateUnresolved, reason, 0
	if s.Seq != 0 {
		s.Deadline = 0
	}
	return s, Effects{Changed: true}
}

func limitWait(s Submission, in LimitWait, now time.Time) (Submission, Effects) {
	was := s
	last := event.MicrosOf(now.Add(in.Deadline))
	switch s.State {
	case StateWaiting:
		if s.Due > event.MicrosOf(now.Add(max(MaxRetry, in.Retry))) {
			s.Due = event.MicrosOf(now)
		}
		s.Deadline = min(s.Deadline, last)
	case StateInDoubt, StateProvisional:
		if s.Due > last {
			s.Due, s.Deadline = last, last
		}
	}
	return s, Effects{Changed: s.Due != was.Due || s.Deadline != was.Deadline}
}

// BackOff returns how long to wait after a number of tries: first, doubled with each
// try up to longest.
func BackOff(first, longest time.Duration, tries int) time.Duration {
	wait := first
	for ; tries > 1 && wait < longest; tries-- {
		wait *= 2
	}
	return min(wait, longest)
}
