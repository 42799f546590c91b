package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
)

// wantDecided fails unless each record has exactly one submission, which was
// decided as it must be.
func (k *chain) wantDecided(s *instance, got map[string][]event.Submission, live []fixtures.Change) {
	k.t.Helper()
	if len(got) != len(live) {
		k.t.Errorf("%s has submissions of %d records, want %d", s.name, len(got), len(live))
	}
	for _, r := range live {
		want := decisionOn(r.ID)
		if all := got[r.ID]; len(all) != 1 || all[0].State != stateOn(r.ID) || all[0].Assigned != want.AssignedIdentifier || all[0].Reason != want.Reason ||
			all[0].Conflicts != 0 || all[0].Late {
			k.t.Errorf("%s has of %s\n%+v, want\n%+v once", s.name, r.ID, all, want)
		}
	}
}

// wantQuiet fails unless every notice was delivered, one of a submission, and
// every notification belongs to a submission.
func (k *chain) wantQuiet(s *instance, set string) {
	k.t.Helper()
	const many = 1 << 20
	notices, err := s.log.Log.Outgoing(k.t.Context(), set, 0, 0, many)
	k.do(err)
	owed := map[int64]int{}
	for _, n := range notices {
		if owed[n.Submission]++; n.State != event.DeliveryDone || owed[n.Submission] > 1 {
			k.t.Errorf("%s has %d notices of a submission: %+v", s.name, owed[n.Submission], n)
		}
	}
	if s == k.reviewer && len(owed) != len(k.provider.Live()) {
		k.t.Errorf("%s has notified of %d records", s.name, len(owed))
	}
	for v := event.NotificationRecord; v <= event.NotificationConflict; v++ {
		strays, err := s.log.Log.Incoming(k.t.Context(), set, v, 0, many)
		k.do(err)
		for _, n := range strays {
			k.t.Errorf("%s has a notification that is %s: %+v", s.name, v, n)
		}
	}
}

// wantEvents fails unless the log has each record and each rejection exactly
// once.
func (k *chain) wantEvents(s *instance, set string, live []fixtures.Change) {
	k.t.Helper()
	want := map[string]int{}
	for _, r := range live {
		switch {
		case stateOn(r.ID) == event.StateRejected:
			want["rejected "+r.ID] = 1
		case s != k.submitter:
			want["created "+decisionOn(r.ID).AssignedIdentifier] = 1
		}
		if s == k.submitter {
			want["created "+r.ID] = 1
		}
	}
	got := map[string]int{}
	for _, ev := range s.history() {
		id := ev.Record
		if ev.Kind == event.Rejected {
			id = ev.Origin.SourceIdentifier
		}
		if got[ev.Kind.String()+" "+id]++; ev.Set != set {
			k.t.Errorf("%s has event %d in set %s", s.name, ev.Seq, ev.Set)
		}
	}
	if !maps.Equal(got, want) {
		k.t.Errorf("%s has the events\n%v, want\n%v", s.name, got, want)
	}
}

// verify lets bridge verify look at every data folder.
func (k *chain) verify() {
	k.t.Helper()
	for _, s := range []*instance{k.submitter, k.gateway, k.reviewer} {
		if s != nil {
			s.run("verify", "--data", "data")
		}
	}
}

// shownInDoubt returns what the command line shows as in doubt at the gateway,
// sorted.
func (k *chain) shownInDoubt() (shown []string) {
	k.t.Helper()
	for line := range strings.Lines(k.gateway.run("submission", "ls", "--data", "data", "--state", "in doubt", "--limit", "0", "--json")) {
		var s jsonSubmission
		k.do(json.Unmarshal([]byte(line), &s))
		shown = append(shown, s.SourceIdentifier)
	}
	slices.Sort(shown)
	return shown
}
