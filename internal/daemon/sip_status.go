package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/ingest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Trouble is how an ingest server fails to which a set submits records.
type Trouble = delivery.Failure

// Trouble returns how a target fails, nil when it works. Again is zero when the time of the
// next attempt has passed.
func (b *Bridge) Trouble(target *eventlog.Source) (*Trouble, error) {
	t, err := delivery.StoredFailure(&target.Progress)
	if err != nil {
		return nil, fmt.Errorf("set %s, target %s: %w", target.Set, Redact(target.URL), err)
	}
	if t != nil && !t.Again.After(b.now()) {
		t.Again = time.Time{}
	}
	return t, nil
}

// attentionStates returns the states that need an operator's attention.
func attentionStates() []submission.State {
	return []submission.State{submission.StateInDoubt, submission.StateRejected, submission.StateUnresolved, submission.StateUnsent}
}

// submissionStatus returns the state of the submissions of a set, whose Sources and targets
// are peers.
func (b *Bridge) submissionStatus(ctx context.Context, set string, peers []eventlog.Source) ([]status.Peer, error) {
	var out []status.Peer
	for _, src := range peers {
		if src.Kind != config.KindSIP && src.Kind != eventlog.Target {
			continue
		}
		counts, err := b.SIP.Counts(ctx, src.ID)
		if err != nil {
			return nil, err
		}
		p := status.Peer{Direction: status.Received, URL: src.URL, Stored: counts.Submissions, States: status.Counts[submission.State]{}, UnderReview: counts.UnderReview,
			NotificationsSent: counts.Outgoing, NotificationsReceived: counts.Incoming, Conflicts: counts.Contradicted, Dropped: counts.Dropped}
		for _, states := range []map[submission.State]int64{counts.Submissions, counts.Direct} {
			for s, n := range states {
				p.States[s] += n
			}
		}
		if isSent(&src) {
			p.Direction, p.Former = status.Sent, b.Config().File != "" && !b.submitsTo(set, src.URL)
			if p.Through, err = b.SIP.LastSubmitted(ctx, src.ID); err != nil {
				return nil, err
			}
			trouble, err := b.Trouble(&src)
			if err != nil {
				return nil, err
			}
			if trouble != nil && !p.Former { // nothing is sent there that could work again
				p.Failing = &status.Failure{Since: status.Time{Time: trouble.Since}, Reason: trouble.Reason, Again: status.Time{Time: trouble.Again}}
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// submitsTo reports whether a set is configured to submit to an ingest server.
func (b *Bridge) submitsTo(set, url string) bool {
	for i := range b.Config().Sets {
		s := &b.Config().Sets[i]
		if s.Name == set && slices.ContainsFunc(s.Submit, func(t config.Target) bool { return t.URL == url }) {
			return true
		}
	}
	return false
}

// problems returns the newest submissions of a set that need an operator's attention.
func (b *Bridge) problems(ctx context.Context, set string) ([]status.Problem, error) {
	found, err := b.troubled(ctx, set)
	if err != nil {
		return nil, err
	}
	decider, err := b.decider(ctx, set)
	if err != nil {
		return nil, err
	}
	urls := map[event.SourceID]string{}
	targets, err := b.Log.Targets(ctx, set)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		urls[t.ID] = t.URL
	}
	var out []status.Problem
	for i := range found {
		s := &found[i]
		if s.State == 0 {
			out = append(out, status.Problem{Identifier: fmt.Sprintf("submission %d", s.ID), Reason: "run bridge verify"})
			continue
		}
		out = append(out, status.Problem{URL: urls[s.Source], Identifier: brief(cmp.Or(s.SourceIdentifier, s.Record)), Title: brief(s.Title), State: s.State,
			By: decider(s), Conflicts: s.Conflicts, Reason: brief(s.Reason), Since: s.Changed.Time()})
	}
	return out, nil
}

// brief cuts a client's text, which may have megabytes, to 4 KiB, which is more than a page
// shows: a page searches the whole text for secrets.
func brief(text string) string { return text[:min(len(text), 4<<10)] }

// problemsShown is the largest number of problems on a page.
const problemsShown = 20

// troubled returns the submissions for problems. One without an ID is a rejection that has
// no submission of its own.
func (b *Bridge) troubled(ctx context.Context, set string) ([]submission.Submission, error) {
	out, err := b.SIP.Submissions(ctx, submission.Query{Set: set, States: attentionStates(), Newest: true, Limit: problemsShown, Damaged: true})
	if err != nil {
		return nil, err
	}
	conflicts, err := b.SIP.Incoming(ctx, set, submission.NotificationConflict, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, n := range conflicts {
		if n.Verdict == 0 || slices.ContainsFunc(out, func(s submission.Submission) bool { return s.ID == n.Submission }) {
			continue
		}
		s, err := b.SIP.SubmissionsOf(ctx, []int64{n.Submission})
		if err != nil {
			return nil, err
		}
		out = append(out, s...)
	}
	rejected, err := b.rejections(ctx, set)
	if err != nil {
		return nil, err
	}
	for _, r := range rejected { // a reviewer's have a submission, and are events as well
		if !slices.ContainsFunc(out, func(s submission.Submission) bool {
			return s.State == r.State && s.Changed == r.Changed && s.SourceIdentifier == r.SourceIdentifier && s.Reason == r.Reason
		}) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b submission.Submission) int {
		if (a.State == 0) != (b.State == 0) { // what is damaged first: when it changed is not known
			return cmp.Compare(a.State, b.State)
		}
		return cmp.Compare(b.Changed, a.Changed)
	})
	return out, nil
}

// rejections returns the last rejections that have no submission of their own: those
// of unauthenticated clients, and among the newest events of a set those of kind rejected. Of
// a gateway nearly all of these have a submission, so it has those that it was notified of.
func (b *Bridge) rejections(ctx context.Context, set string) ([]submission.Submission, error) {
	const looked = 2000
	own := b.service(set)
	if own == nil {
		return nil, nil
	}
	last, err := b.Log.LastSeq(ctx)
	if err != nil {
		return nil, err
	}
	gateway, first := own.server.Mode == ingest.Gateway, max(0, last-looked)
	if gateway {
		first = last
	}
	var out []submission.Submission
	for ev, err := range b.Log.Events(ctx, set, event.Range{After: first, Upto: last}) {
		if err != nil {
			return nil, err
		}
		if ev.Kind == event.Rejected && ev.Origin.Source == own.server.URL {
			if len(out) == problemsShown { // the texts may be long, so no more of them are kept in memory
				out = slices.Delete(out, 0, 1)
			}
			out = append(out, submission.Submission{State: submission.StateRejected, SourceIdentifier: ev.Origin.SourceIdentifier, Record: ev.Record, Title: ev.Title,
				Reason: ev.Origin.Reason, Changed: ev.Observed})
		}
	}
	unauthenticated, err := b.SIP.Rejections(ctx, set, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, r := range unauthenticated {
		if r.Source == 0 { // it is damaged
			continue
		}
		out = append(out, submission.Submission{State: submission.StateRejected, SourceIdentifier: r.SourceIdentifier, Record: r.Record, Title: r.Title, Reason: r.Reason, Changed: r.At})
	}
	told, err := b.SIP.Incoming(ctx, set, submission.NotificationRejected, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, n := range told {
		if n.Verdict != 0 && (n.Anonymous || gateway) { // the others are events
			out = append(out, submission.Submission{State: submission.StateRejected, SourceIdentifier: n.SourceIdentifier, Reason: n.Reason, Changed: n.First})
		}
	}
	return out, nil
}

// decider returns a function that returns who has decided on a submission of problems. A
// set that decides at once may also receive notifications of rejections; these are stored.
func (b *Bridge) decider(ctx context.Context, set string) (func(*submission.Submission) status.Decider, error) {
	own := b.service(set)
	told, err := b.SIP.Incoming(ctx, set, submission.NotificationRejected, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	return func(s *submission.Submission) status.Decider {
		isTold := func(n submission.IncomingNotification) bool {
			return n.SourceIdentifier == s.SourceIdentifier && n.Reason == s.Reason
		}
		switch {
		case s.ID != 0 && !s.UnderReview(): // it was sent on
			return status.DecidedThere
		case s.ID == 0 && own != nil && (own.server.Mode == ingest.Recipient || slices.ContainsFunc(told, isTold)):
			return status.DecidedElsewhere
		}
		return status.DecidedHere
	}, nil
}
