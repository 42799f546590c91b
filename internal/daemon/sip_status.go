package daemon

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

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
	event.Counts
	// Through is the Seq up to which a set's events are in the outbox; of one that
	// sends only.
	Through event.Seq
}

// attentionStates are those that an operator should look at.
func attentionStates() []event.State {
	return []event.State{event.StateInDoubt, event.StateRejected, event.StateUnresolved, event.StateUnsent}
}

// peers tells of the submissions of a set.
func (h *House) peers(ctx context.Context, set string) ([]PeerStatus, error) {
	sources, err := h.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	targets, err := h.Log.Targets(ctx, set)
	if err != nil {
		return nil, err
	}
	var out []PeerStatus
	for _, src := range append(sources, targets...) {
		if src.Kind != config.KindSIP && src.Kind != eventlog.Target {
			continue
		}
		p := PeerStatus{Sent: src.Kind == eventlog.Target && !strings.HasPrefix(src.URL, servicePath), URL: src.URL}
		if p.Counts, err = h.Log.Counts(ctx, src.ID); err != nil {
			return nil, err
		}
		if p.Sent {
			newest, err := h.Log.Submissions(ctx, event.SubmissionQuery{Source: src.ID, Newest: true, Limit: 1})
			if err != nil {
				return nil, err
			}
			for _, s := range newest {
				p.Through = s.Seq
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// submissionStatus is the same for the pages.
func (h *House) submissionStatus(ctx context.Context, set string) (server.SubmissionStatus, error) {
	peers, err := h.peers(ctx, set)
	if err != nil || len(peers) == 0 {
		return server.SubmissionStatus{}, err
	}
	out := server.SubmissionStatus{Notices: map[event.NoticeState]int64{}, Notifications: map[event.NotificationVerdict]int64{}}
	for i := range peers {
		p := &peers[i]
		states := p.States()
		row := server.PeerStatus{States: states, Conflicts: p.Contradicted}
		if p.Sent {
			row.URL = p.URL
		}
		out.Peers = append(out.Peers, row)
		for s, n := range p.Notices {
			out.Notices[s] += n
		}
		for v, n := range p.Notifications {
			out.Notifications[v] += n
		}
	}
	problems, err := h.problems(ctx, set)
	if err != nil {
		return out, err
	}
	urls := map[event.SourceID]string{}
	targets, err := h.Log.Targets(ctx, set)
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
			Conflicts: s.Conflicts, Reason: brief(s.Reason), Since: s.Changed.Time()})
	}
	return out, nil
}

// brief cuts a stranger's text, which may have megabytes, to more than a page
// shows of it: a page looks through all that it is given, for secrets.
func brief(text string) string { return text[:min(len(text), 4<<10)] }

// problems returns the newest submissions of a set that an operator should look
// at.
func (h *House) problems(ctx context.Context, set string) ([]event.Submission, error) {
	const shown = 20
	out, err := h.Log.Submissions(ctx, event.SubmissionQuery{Set: set, States: attentionStates(), Newest: true, Limit: shown})
	if err != nil {
		return nil, err
	}
	conflicts, err := h.Log.Notifications(ctx, set, event.NotificationConflict, shown)
	if err != nil {
		return nil, err
	}
	for _, n := range conflicts {
		if slices.ContainsFunc(out, func(s event.Submission) bool { return s.ID == n.Submission }) {
			continue
		}
		s, err := h.Log.Submission(ctx, n.Submission)
		if err != nil {
			return nil, err
		}
		out = append(out, *s)
	}
	rejected, err := h.rejections(ctx, set, shown)
	if err != nil {
		return nil, err
	}
	out = append(out, rejected...)
	slices.SortFunc(out, func(a, b event.Submission) int { return cmp.Compare(b.Changed, a.Changed) })
	return out, nil
}

// rejections returns the last events of kind rejected that have no submission of
// their own, among the newest events of a set.
func (h *House) rejections(ctx context.Context, set string, most int) ([]event.Submission, error) {
	const looked = 2000
	own := h.decidesAt(set)
	if own == "" {
		return nil, nil
	}
	last, err := h.Log.LastSeq(ctx)
	if err != nil {
		return nil, err
	}
	var out []event.Submission
	for ev, err := range h.Log.Events(ctx, set, event.Range{After: max(0, last-looked), Upto: math.MaxInt64}) {
		if err != nil {
			return nil, err
		}
		if ev.Kind == event.Rejected && ev.Origin.Source == own {
			if len(out) == most { // a stranger's texts may be long, so no more of them are held
				out = slices.Delete(out, 0, 1)
			}
			out = append(out, event.Submission{State: event.StateRejected, SourceIdentifier: ev.Origin.SourceIdentifier, Record: ev.Record, Title: ev.Title,
				Reason: ev.Origin.Reason, Changed: ev.Observed})
		}
	}
	return out, nil
}

// decidesAt returns the URL of the set's own SIP Source where that decides at
// once, or hears of submissions that are not ours; "" when there is none.
func (h *House) decidesAt(set string) string {
	for _, v := range h.exchange.services {
		if v.set == set && (v.desk.Mode == submit.Library || v.desk.Mode == submit.Recipient) {
			return v.desk.URL
		}
	}
	return ""
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
