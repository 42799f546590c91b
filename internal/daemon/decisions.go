package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/ingest"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// A person or a program decides on submissions with bridge submission accept, reject,
// settle, resend and withdraw, and on repairs with bridge audit. While bridge serve holds
// the data folder, the command sends the decision over a Unix socket in that folder: only
// those who may write there can decide. Otherwise the command locks the folder and applies
// the decision itself.

// Settlement is what an operator has found out about a submission in doubt.
type Settlement = ingest.Settlement

// Decision is one decision of an operator: it settles a submission, sends submissions
// again, withdraws a record, repairs records, or acts on a Source, a set or bad input.
type Decision struct {
	ID     int64 `json:"id,omitempty"` // 0 means all in Set, with Resend or Withdraw
	Accept bool  `json:"accept,omitempty"`
	// Replace allows the record to replace one that already has the identifier Assigned and
	// belongs to another submitter.
	Replace bool `json:"replace,omitempty"`
	// Settle is the outcome of a submission that was sent on; nil means a decision on a
	// submission under review.
	Settle *Settlement `json:"settle,omitempty"`
	// Resend is the state (unsent or unresolved) of the submissions to targets that are put
	// back into the outbox, or that (refused or expired) of the notifications to submitters that
	// are sent again; "" means another decision. With the ID of a received submission it is the
	// notification to its submitter that is sent again, whatever its state.
	Resend string `json:"resend,omitempty"`
	Set    string `json:"set,omitempty"`
	// Assigned is the identifier of an accepted record; "" lets the set assign
	// one.
	Assigned string `json:"assigned-identifier,omitempty"`
	// Withdraw is the identifier of a record of Set that its SIP Source withdraws; "" means
	// another decision.
	Withdraw string `json:"withdraw,omitempty"`
	// Reason is that of a rejection or a withdrawal.
	Reason string `json:"reason,omitempty"`
	// Repair is the records that an audit found to differ, see NewRepair; nil means another
	// decision.
	Repair *Repair `json:"repair,omitempty"`
	// Action is what is done to a Source; nil means another decision.
	Action *SourceAction `json:"action,omitempty"`
	// Quarantine is what is done to the bad input ID: replay or discard; "" means another
	// decision.
	Quarantine string `json:"quarantine,omitempty"`
	// SetAction is what is done to a set; nil means another decision.
	SetAction *SetAction `json:"set_action,omitempty"`
	// Tidy tidies up the bucket of the contents; nil means another decision.
	Tidy *Tidy `json:"tidy,omitempty"`
	// Reload reads the configuration again.
	Reload bool `json:"reload,omitempty"`
}

// Tidy is how the bucket of the contents is tidied up, Tidied what was done.
type (
	Tidy   = content.TidyOptions
	Tidied = content.Tidied
)

// DecisionResult is the outcome of a Decision.
type DecisionResult struct {
	// Published is the identifier under which the submission had been accepted before it
	// was settled otherwise: the record is still published. "" means none.
	Published string `json:"published,omitempty"`
	// Stays reports that the withdrawn record is still published, since another Source of
	// the set has it.
	Stays bool `json:"stays,omitempty"`
	// Packed reports that the set publishes dumps, and that packages with the record keep
	// it.
	Packed bool `json:"packed,omitempty"`
	// Left has for each record of a Repair the reason why it is not repaired, "" if it is.
	Left []string `json:"left,omitempty"`
	// Result describes in sentences what was done to a Source or what has changed.
	Result string `json:"result,omitempty"`
	// Tidied is what Tidy did.
	Tidied *Tidied `json:"tidied,omitempty"`
	// Undecided means that the operator must give another option.
	Undecided bool `json:"undecided,omitempty"`
	// Error is the reason why the decision was refused; "" when it is committed.
	Error string `json:"error,omitempty"`
}

// Decide applies a decision, in the process that holds the data folder.
func (b *Bridge) Decide(ctx context.Context, d Decision) (DecisionResult, error) {
	switch {
	case d.Reload:
		said, err := b.Reload(ctx)
		if err == nil && len(said) == 0 {
			said = []string{"nothing has changed"}
		}
		return DecisionResult{Result: strings.Join(said, "\n")}, err
	case d.Tidy != nil:
		done, err := b.Contents.Tidy(ctx, *d.Tidy)
		return DecisionResult{Tidied: &done}, err
	case d.SetAction != nil:
		said, err := b.actOnSet(ctx, d.SetAction)
		return DecisionResult{Result: said, Undecided: errors.As(err, new(*UndecidedError))}, err
	case d.Quarantine != "":
		said, err := b.actOnInput(ctx, d.Quarantine, d.ID)
		return DecisionResult{Result: said}, err
	case d.Action != nil:
		said, err := b.actOnSource(ctx, d.Action)
		return DecisionResult{Result: said, Undecided: errors.As(err, new(*UndecidedError))}, err
	case d.Repair != nil:
		left, err := b.repair(ctx, d.Repair)
		return DecisionResult{Left: left}, err
	case d.Resend != "":
		return b.resend(ctx, d)
	case d.Withdraw != "":
		return b.withdraw(ctx, d)
	}
	s, err := b.Submission(ctx, d.ID)
	if err != nil {
		return DecisionResult{}, err
	}
	if d.Settle != nil && d.Settle.Told {
		return DecisionResult{}, b.endNotification(ctx, s)
	}
	server, err := b.serverOf(ctx, s, d.Settle != nil)
	if err != nil {
		return DecisionResult{}, err
	}
	if d.Settle == nil {
		return DecisionResult{}, server.Decide(ctx, ingest.Verdict{ID: d.ID, Accept: d.Accept, Assigned: d.Assigned, Reason: d.Reason, Replace: d.Replace})
	}
	before, err := server.Settle(ctx, d.ID, *d.Settle)
	if err != nil || before.State != submission.StateAccepted {
		return DecisionResult{}, err
	}
	after, err := b.SIP.Submission(ctx, d.ID)
	if err != nil || after.State == before.State && after.Assigned == before.Assigned {
		return DecisionResult{}, err
	}
	return DecisionResult{Published: before.Assigned}, nil
}

// serverOf returns the server that decides on a submission or, with settles, takes the
// decision of another one. If the Source or target of the submission is not configured any
// more, that is a server of the set, under the name that it has now, that nobody can call.
func (b *Bridge) serverOf(ctx context.Context, s *submission.Submission, settles bool) (*ingest.Server, error) {
	if v := b.service(s.Set); v != nil && (settles || v.server.Source == s.Source) {
		return v.server, nil
	}
	former := slices.ContainsFunc(b.sip.former, func(d *ingest.Server) bool { return d.Source == s.Source }) || settles && slices.Contains(b.sip.expiry.Targets, s.Source)
	if len(b.Config().Sets) == 0 || !former {
		return nil, fmt.Errorf("submission %d belongs to set %s, which is not configured as a SIP service: give its configuration with --config", s.ID, s.Set)
	}
	set, err := b.Log.Set(ctx, s.Set)
	if err != nil {
		return nil, err
	}
	return b.formerServer(&set, s.Source, servicePath+set.Name), nil
}

// resend puts submissions back into the queues of their targets.
func (b *Bridge) resend(ctx context.Context, d Decision) (done DecisionResult, err error) {
	set, target := d.Set, event.SourceID(0)
	if d.ID != 0 {
		s, err := b.Submission(ctx, d.ID)
		if err != nil {
			return done, err
		}
		if s.Seq == 0 {
			return b.notifyAgain(ctx, s)
		}
		set, target = s.Set, s.Source
	} else if state := notificationState(d.Resend); state != 0 {
		return b.notifyAllAgain(ctx, set, state)
	}
	found := false
	for i, o := range b.sip.submitters {
		if o.Set != set || target != 0 && target != o.Source {
			continue
		}
		found = true
		n, err := o.Resend(ctx, d.ID, submission.ParseState(d.Resend))
		if n > 0 {
			wake(b.sip.reload[i])
		}
		if err != nil {
			return done, err
		}
		b.opt.Logger.Info("submissions are sent again", "set", o.Set, "target", o.URL, "number", n)
	}
	if !found {
		return done, fmt.Errorf("set %q has no configured [[set.submit]] that this could be sent to: give its configuration with --config", set)
	}
	return done, nil
}

// notifyAgain has the notification to the submitter of a received submission sent again, which
// was refused or given up.
func (b *Bridge) notifyAgain(ctx context.Context, s *submission.Submission) (done DecisionResult, err error) {
	n, err := b.SIP.Undelivered(ctx, s)
	if errors.Is(err, fs.ErrNotExist) || err == nil && n.State == submission.DeliveryWaiting {
		return done, fmt.Errorf("submission %d was received, and no notification of it was refused or given up; only what a [[set.submit]] sends can be sent again: its submitter may repeat it; enter the ingest server's decision with bridge submission settle", s.ID)
	}
	if err != nil {
		return done, err
	}
	if err := b.again(n, s); err != nil {
		return done, err
	}
	if _, err := b.SIP.Write(ctx, &submission.Batch{Source: n.Source, Outgoing: []submission.OutgoingNotification{*n}}); err != nil {
		return done, err
	}
	b.sip.notifier.Wake()
	done.Result = fmt.Sprintf("the notification to its submitter is sent again: see bridge notification ls --sent --set %s", s.Set)
	return done, nil
}

// again makes a notification wait that was refused or given up. It is an error if its submission
// has another decision by now.
func (b *Bridge) again(n *submission.OutgoingNotification, s *submission.Submission) error {
	m, err := sip.ReadDocument(n.Disposition)
	if err != nil {
		return fmt.Errorf("notification %d: %w", n.ID, err)
	}
	if submission.StateAfter(m.Disposition) != s.State || m.Disposition.AssignedIdentifier != s.Assigned {
		return fmt.Errorf("submission %d has been settled otherwise since notification %d of it was written: tell its submitter yourself", s.ID, n.ID)
	}
	n.State, n.Due, n.Tries, n.Reason = submission.DeliveryWaiting, event.MicrosOf(b.now()), 0, ""
	return nil
}

// notificationState returns the state of notifications that are sent again, by its name; 0 is
// another word.
func notificationState(word string) submission.DeliveryState {
	for _, state := range []submission.DeliveryState{submission.DeliveryRefused, submission.DeliveryExpired} {
		if state.String() == word {
			return state
		}
	}
	return 0
}

// resendGroup is how many notifications are sent again in a transaction.
const resendGroup = 500

// notifyAllAgain has all notifications of a set in a state, refused or expired, sent again. Those
// that cannot be are left as they are, and the error gives the reason of the first one.
func (b *Bridge) notifyAllAgain(ctx context.Context, set string, state submission.DeliveryState) (done DecisionResult, err error) {
	var first error
	sent, left := int64(0), int64(0)
	for after := int64(0); ; {
		page, err := b.SIP.Outgoing(ctx, set, state, after, resendGroup)
		if err != nil {
			return done, err
		}
		if len(page) == 0 {
			done.Result = fmt.Sprintf("%s sent again: see bridge notification ls --sent --set %s", count(sent, "notification"), set)
			if left > 0 {
				err = fmt.Errorf("%s; %s left as before: %w", done.Result, count(left, "other"), first)
			}
			return done, err
		}
		after = page[len(page)-1].ID
		var again []submission.OutgoingNotification
		for i := range page {
			n := &page[i]
			var s *submission.Submission
			if n.State == 0 {
				err = fmt.Errorf("notification %d is damaged in the log: run bridge verify", n.ID)
			} else if s, err = b.SIP.Submission(ctx, n.Submission); err == nil {
				err = b.again(n, s)
			}
			if err != nil {
				if left++; first == nil {
					first = err
				}
				continue
			}
			again = append(again, *n)
		}
		if len(again) > 0 {
			if _, err := b.SIP.Write(ctx, &submission.Batch{Source: again[0].Source, Outgoing: again}); err != nil {
				return done, err
			}
			b.sip.notifier.Wake()
			sent += int64(len(again))
		}
	}
}

// endNotification has the notification to the submitter of a received submission not sent any
// more, since an operator has told the submitter, or nobody can.
func (b *Bridge) endNotification(ctx context.Context, s *submission.Submission) error {
	n, err := b.SIP.Undelivered(ctx, s)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("submission %d has no notification to its submitter that waits, was refused or was given up: see bridge notification ls --sent --set %s", s.ID, s.Set)
	}
	if err != nil {
		return err
	}
	n.State, n.Due, n.Reason = submission.DeliveryDone, 0, "its submitter was told otherwise"
	_, err = b.SIP.Write(ctx, &submission.Batch{Source: n.Source, Outgoing: []submission.OutgoingNotification{*n}})
	return err
}

// withdraw applies the decision to withdraw a record. It needs only the log, so the set
// need not be configured here, or not any more. Another Source of the set may have the
// record too (A15).
func (b *Bridge) withdraw(ctx context.Context, d Decision) (done DecisionResult, err error) {
	set, err := b.Log.Set(ctx, d.Set)
	if err != nil {
		return done, err
	}
	all, err := b.Log.Sources(ctx, d.Set)
	if err != nil {
		return done, err
	}
	all = slices.DeleteFunc(all, func(s eventlog.Source) bool { return s.Kind != config.KindSIP })
	if len(all) == 0 {
		return done, fmt.Errorf("set %s has no SIP Source: only what came by SIP can be withdrawn; what another Source has goes when that Source deletes it", d.Set)
	}
	source := &all[0]
	for i := range all { // there may be several in the log: the one that has the record counts
		holds, err := b.Log.Presence(ctx, all[i].ID, d.Withdraw)
		if err != nil {
			return done, err
		}
		if holds != event.NeverPresent {
			source = &all[i]
		}
		if holds == event.Present {
			break
		}
	}
	server := ingest.Server{Set: d.Set, Source: source.ID, URL: source.URL, Store: b.SIP, Now: b.opt.Now, Log: b.opt.Logger}
	if err := server.Withdraw(ctx, d.Withdraw, d.Reason); err != nil {
		return done, err
	}
	done.Packed = set.Dumps
	ev, err := b.Log.Record(ctx, d.Set, event.Key(d.Withdraw))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return done, nil // its content has never been fetched
	case err != nil || !ev.Live():
		return done, err
	}
	holds, err := b.Log.Presence(ctx, source.ID, d.Withdraw)
	done.Stays = holds == event.Withdrawn // otherwise it has been submitted again since
	return done, err
}

// subject returns a description of what a decision is about.
func (d *Decision) subject() string {
	switch {
	case d.SetAction != nil:
		return fmt.Sprintf("%s of set %s", d.SetAction.Do, d.SetAction.Set)
	case d.Quarantine != "":
		return fmt.Sprintf("the %s of bad input %d", d.Quarantine, d.ID)
	case d.ID != 0:
		return fmt.Sprintf("submission %d", d.ID)
	case d.Tidy != nil:
		return "the bucket of the contents"
	case d.Reload:
		return "the configuration"
	case d.Action != nil:
		return strings.TrimSpace(fmt.Sprintf("%s of Source %s %s", d.Action.Do, d.Action.Set, d.Action.Source))
	case d.Repair != nil:
		return fmt.Sprintf("the repair of records of set %s", d.Repair.Set)
	case d.Withdraw != "":
		return fmt.Sprintf("record %q of set %s", d.Withdraw, d.Set)
	}
	return "the submissions of set " + d.Set
}

// seen returns the command that shows whether a decision was applied.
func (d *Decision) seen() string {
	switch {
	case d.SetAction != nil:
		return "bridge set ls"
	case d.Quarantine != "":
		return "bridge quarantine ls"
	case d.ID != 0:
		return fmt.Sprintf("bridge submission show %d", d.ID)
	case d.Action != nil:
		return "bridge source ls " + d.Action.Set
	case d.Repair != nil:
		return "bridge audit --set " + d.Repair.Set
	case d.Withdraw != "":
		return "bridge log --set " + d.Set
	}
	return "bridge status"
}

// Submission returns a submission with its record.
func (b *Bridge) Submission(ctx context.Context, id int64) (*submission.Submission, error) {
	s, err := b.SIP.Submission(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no submission %d in %s: see bridge submission ls", id, b.Config().Data)
	}
	return s, err
}

// Replaces returns the last event of the record that a submission under review would
// update, if it were accepted without an identifier; nil when it would be a new
// record.
func (b *Bridge) Replaces(ctx context.Context, s *submission.Submission) (*event.Event, error) {
	set, err := b.Log.Set(ctx, s.Set)
	if err != nil {
		return nil, err
	}
	identifier, err := ingest.IdentifierOf(ctx, b.SIP, set.IdentifierFeed(), s)
	if err != nil {
		return nil, err
	}
	ev, err := b.Log.Record(ctx, s.Set, event.Key(identifier))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !ev.Live() {
		return nil, nil
	}
	return ev, err
}

// Record returns the bytes of a submission's record.
func (b *Bridge) Record(ctx context.Context, s *submission.Submission) ([]byte, error) {
	if s.Content == [32]byte{} {
		return nil, fmt.Errorf("submission %d has no record here", s.ID)
	}
	return b.content(ctx, s.Content)
}

// Published returns the bytes of the preferred representation that an event has.
func (b *Bridge) Published(ctx context.Context, ev *event.Event) ([]byte, error) {
	sum, err := content.ParseSum(ev.Representations[ev.Preferred].SHA256())
	if err != nil {
		return nil, errors.New("the content of the record is not kept here")
	}
	return b.content(ctx, sum)
}

func (b *Bridge) content(ctx context.Context, sum content.Sum) ([]byte, error) {
	if b.Contents == nil {
		return nil, errors.New("there are no contents here")
	}
	blob, err := b.Contents.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	bytes, err := io.ReadAll(blob)
	return bytes, errors.Join(err, blob.Close())
}
