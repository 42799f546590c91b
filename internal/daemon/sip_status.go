package daemon

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/submit"
)

// PeerStatus is what became of the submissions that one SIP service has received,
// or that went to one ingest server.
type PeerStatus struct {
	// Sent tells that they went to the ingest server at URL; else our own service
	// has received them.
	Sent bool
	URL  string
	event.SubmissionCounts
	// Through is the Seq up to which a set's events are in the outbox; of one that
	// sends only.
	Through event.Seq
	// Former tells that the configuration, if there is one, does not name the
	// ingest server any more.
	Former bool
	// Trouble is as Bridge.Trouble has it.
	Trouble *Trouble
}

// Trouble is how an ingest server fails that a set's records go to.
type Trouble = submit.Trouble

// Trouble returns how a target fails, nil when it answers. Again is zero when that
// moment has passed.
func (b *Bridge) Trouble(target *eventlog.Source) (*Trouble, error) {
	t, err := submit.StoredTrouble(&target.Progress)
	if err != nil {
		return nil, fmt.Errorf("set %s, target %s: %w", target.Set, Redact(target.URL), err)
	}
	if t != nil && !t.Again.After(b.now()) {
		t.Again = time.Time{}
	}
	return t, nil
}

// attentionStates are those that an operator should look at.
func attentionStates() []event.State {
	return []event.State{event.StateInDoubt, event.StateRejected, event.StateUnresolved, event.StateUnsent}
}

// peers tells of the submissions of a set.
func (b *Bridge) peers(ctx context.Context, set string) ([]PeerStatus, error) {
	sources, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	targets, err := b.Log.Targets(ctx, set)
	if err != nil {
		return nil, err
	}
	var out []PeerStatus
	for _, src := range append(sources, targets...) {
		if src.Kind != config.KindSIP && src.Kind != eventlog.Target {
			continue
		}
		p := PeerStatus{Sent: isSent(&src), URL: src.URL}
		if p.SubmissionCounts, err = b.Log.Counts(ctx, src.ID); err != nil {
			return nil, err
		}
		if p.Sent {
			p.Former = b.Config.File != "" && !b.submitsTo(set, src.URL)
			newest, err := b.Log.Submissions(ctx, event.SubmissionQuery{Source: src.ID, Newest: true, Limit: 1})
			if err != nil {
				return nil, err
			}
			for _, s := range newest {
				p.Through = s.Seq
			}
			if p.Trouble, err = b.Trouble(&src); err != nil {
				return nil, err
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// submitsTo tells whether a set is configured to submit to an ingest server.
func (b *Bridge) submitsTo(set, url string) bool {
	for i := range b.Config.Sets {
		s := &b.Config.Sets[i]
		if s.Name == set && slices.ContainsFunc(s.Submit, func(t config.Target) bool { return t.URL == url }) {
			return true
		}
	}
	return false
}

// submissionStatus is the same for the pages.
func (b *Bridge) submissionStatus(ctx context.Context, set string) (server.SubmissionStatus, error) {
	peers, err := b.peers(ctx, set)
	if err != nil || len(peers) == 0 {
		return server.SubmissionStatus{}, err
	}
	out := server.SubmissionStatus{Notices: map[event.DeliveryState]int64{}, Notifications: map[event.NotificationVerdict]int64{}}
	for i := range peers {
		p := &peers[i]
		states := p.States()
		row := server.PeerStatus{States: states, Conflicts: p.Contradicted}
		if p.Sent {
			row.URL = p.URL
		}
		if t := p.Trouble; t != nil {
			row.Reason, row.Since, row.Again = t.Reason, t.Since, t.Again
		}
		out.Peers = append(out.Peers, row)
		for s, n := range p.Outgoing {
			out.Notices[s] += n
		}
		for v, n := range p.Incoming {
			out.Notifications[v] += n
		}
	}
	problems, err := b.problems(ctx, set)
	if err != nil {
		return out, err
	}
	decider, err := b.decider(ctx, set)
	if err != nil {
		return out, err
	}
	urls := map[event.SourceID]string{}
	targets, err := b.Log.Targets(ctx, set)
	if err != nil {
		return out, err
	}
	for _, t := range targets {
		urls[t.ID] = t.URL
	}
	for i := range problems {
		s := &problems[i]
		identifier := s.SourceIdentifier
		if identifier == "" {
			identifier = s.Record
		}
		out.Problems = append(out.Problems, server.SubmissionProblem{URL: urls[s.Source], Identifier: brief(identifier), Title: brief(s.Title), State: s.State,
			By: decider(s), Conflicts: s.Conflicts, Reason: brief(s.Reason), Since: s.Changed.Time()})
	}
	return out, nil
}

// brief cuts a stranger's text, which may have megabytes, to more than a page
// shows of it: a page looks through all that it is given, for secrets.
func brief(text string) string { return text[:min(len(text), 4<<10)] }

// problemsShown is how many problems a page is given.
const problemsShown = 20

// problems returns the newest submissions of a set that an operator should look
// at; one without an ID is a rejection that has no submission of its own.
func (b *Bridge) problems(ctx context.Context, set string) ([]event.Submission, error) {
	out, err := b.Log.Submissions(ctx, event.SubmissionQuery{Set: set, States: attentionStates(), Newest: true, Limit: problemsShown})
	if err != nil {
		return nil, err
	}
	conflicts, err := b.Log.Incoming(ctx, set, event.NotificationConflict, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, n := range conflicts {
		if slices.ContainsFunc(out, func(s event.Submission) bool { return s.ID == n.Submission }) {
			continue
		}
		s, err := b.Log.Submission(ctx, n.Submission)
		if err != nil {
			return nil, err
		}
		out = append(out, *s)
	}
	rejected, err := b.rejections(ctx, set)
	if err != nil {
		return nil, err
	}
	out = append(out, rejected...)
	slices.SortFunc(out, func(a, b event.Submission) int { return cmp.Compare(b.Changed, a.Changed) })
	return out, nil
}

// rejections returns the last rejections that have no submission of their own: those
// of strangers, and among the newest events of a set those of kind rejected.
func (b *Bridge) rejections(ctx context.Context, set string) ([]event.Submission, error) {
	const looked = 2000
	own := b.service(set)
	if own == nil || own.server.Mode != submit.Library && own.server.Mode != submit.Recipient {
		return nil, nil // all others have one
	}
	last, err := b.Log.LastSeq(ctx)
	if err != nil {
		return nil, err
	}
	var out []event.Submission
	for ev, err := range b.Log.Events(ctx, set, event.Range{After: max(0, last-looked), Upto: math.MaxInt64}) {
		if err != nil {
			return nil, err
		}
		if ev.Kind == event.Rejected && ev.Origin.Source == own.server.URL {
			if len(out) == problemsShown { // a stranger's texts may be long, so no more of them are held
				out = slices.Delete(out, 0, 1)
			}
			out = append(out, event.Submission{State: event.StateRejected, SourceIdentifier: ev.Origin.SourceIdentifier, Record: ev.Record, Title: ev.Title,
				Reason: ev.Origin.Reason, Changed: ev.Observed})
		}
	}
	ofStrangers, err := b.Log.Rejections(ctx, set, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, r := range ofStrangers {
		out = append(out, event.Submission{State: event.StateRejected, SourceIdentifier: r.SourceIdentifier, Record: r.Record, Title: r.Title, Reason: r.Reason, Changed: r.At})
	}
	told, err := b.Log.Incoming(ctx, set, event.NotificationRejected, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	for _, n := range told {
		if n.Anonymous { // the others are events
			out = append(out, event.Submission{State: event.StateRejected, SourceIdentifier: n.SourceIdentifier, Reason: n.Reason, Changed: n.First})
		}
	}
	return out, nil
}

// decider tells who has rejected what problems returns: a set that decides at
// once may be told of rejections as well, and then has kept what it was told.
func (b *Bridge) decider(ctx context.Context, set string) (func(*event.Submission) server.Decider, error) {
	own := b.service(set)
	told, err := b.Log.Incoming(ctx, set, event.NotificationRejected, 0, problemsShown)
	if err != nil {
		return nil, err
	}
	return func(s *event.Submission) server.Decider {
		isTold := func(n event.IncomingNotification) bool {
			return n.SourceIdentifier == s.SourceIdentifier && n.Reason == s.Reason
		}
		switch {
		case own == nil, s.ID != 0 && (own.server.Mode != submit.Review || s.Source != own.server.Source):
			return server.DecidedThere
		case s.ID == 0 && (own.server.Mode == submit.Recipient || slices.ContainsFunc(told, isTold)):
			return server.DecidedElsewhere
		}
		return server.DecidedHere
	}, nil
}

// States counts all submissions, those included that were decided at once.
func (p *PeerStatus) States() map[event.State]int64 {
	states := map[event.State]int64{}
	for s, n := range p.Submissions {
		states[s] += n
	}
	for s, n := range p.Direct {
		states[s] += n
	}
	return states
}
