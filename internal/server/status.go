package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// problemsShown is how many a page shows.
const problemsShown = 20

// submissionsView is the state of submissions as a page shows it.
type submissionsView struct {
	// Service is the URL of the set's own service, "" when it has none.
	Service string
	States  []submission.State // the columns of Peers
	Peers   []peerView
	// Sent and Received are the numbers of notifications by state, as a text; "" when there are
	// none.
	Sent, Received string
	Problems       []problemView
	// Attention are sentences about what an operator should look at.
	Attention []string
}

// peerView is the row of one peer, with its submissions by state.
type peerView struct {
	Name      string // redacted
	Counts    []int64
	Conflicts int64
}

// problemView is a submission that needs attention.
type problemView struct {
	Identifier, Title, State, Conflicts, How, Reason string
	Since                                            *time.Time
}

func viewSubmissions(s *status.Set) submissionsView {
	sent, received := sum(s.Submissions, func(p *status.Peer) map[submission.DeliveryState]int64 { return p.NotificationsSent }),
		sum(s.Submissions, func(p *status.Peer) map[submission.NotificationVerdict]int64 { return p.NotificationsReceived })
	v := submissionsView{Attention: warnings(s.Submissions, sent, received)}
	v.States = submission.States()
	for i := range s.Submissions {
		p := &s.Submissions[i]
		row := peerView{Name: peerName(p), Conflicts: p.Conflicts}
		for _, state := range v.States {
			row.Counts = append(row.Counts, p.States[state])
		}
		v.Peers = append(v.Peers, row)
	}
	v.Sent = listCounts(sent, submission.DeliveryWaiting, submission.DeliveryExpired, submission.DeliveryRefused, submission.DeliveryDone)
	v.Received = listCounts(received, submission.NotificationUncorrelated, submission.NotificationConflict, submission.NotificationMatched,
		submission.NotificationRecord, submission.NotificationRejected)
	for _, p := range s.Problems[:min(len(s.Problems), problemsShown)] {
		view := problemView{
			Identifier: clip(public(p.Identifier), 200), Title: clip(public(p.Title), 120), State: p.State.String(), How: how(&p),
			Reason: shownReason(p.Reason), Since: optionalTime(p.Since),
		}
		if p.Conflicts > 0 {
			view.Conflicts = times(int64(p.Conflicts))
		}
		v.Problems = append(v.Problems, view)
	}
	return v
}

// Shown reports whether the set has anything to do with submissions.
func (v submissionsView) Shown() bool {
	return v.Service != "" || len(v.Peers) > 0 || len(v.Problems) > 0 || v.Sent != "" || v.Received != ""
}

// warnings returns sentences about what needs a person. Rejected and unsent submissions
// do not: they have ended.
func warnings(peers []status.Peer, sent map[submission.DeliveryState]int64, received map[submission.NotificationVerdict]int64) (sentences []string) {
	var unresolved, inDoubt, conflicts int64
	for i := range peers {
		p := &peers[i]
		unresolved += p.States[submission.StateUnresolved]
		inDoubt += p.States[submission.StateInDoubt]
		conflicts += p.Conflicts
		if p.Failing != nil {
			sentences = append(sentences, failure(p))
		}
	}
	say := func(n int64, what, advice string) {
		if n > 0 {
			sentences = append(sentences, what+": "+Number(n)+". "+advice)
		}
	}
	say(unresolved, "Submissions without a disposition at their deadline", "Ask the ingest server; a late disposition still counts.")
	say(inDoubt, "Submissions in doubt, which may have arrived or not", "Ask the ingest server, and enter its answer with bridge submission settle.")
	say(conflicts, "Submissions with contradicting answers", "The first answer stays in force; ask the ingest server which one is right.")
	say(sent[submission.DeliveryExpired]+sent[submission.DeliveryRefused], "Notifications that could not be delivered to submitters", "Tell the submitters.")
	say(received[submission.NotificationUncorrelated], "Notifications that belong to no submission", "Nothing is published of them; with record_url their records can be fetched.")
	say(received[submission.NotificationConflict], "Notifications that contradict an earlier one", "The first one stays in force; ask the library which one is right.")
	return sentences
}

// sum adds up the counts of all peers.
func sum[K comparable](peers []status.Peer, of func(*status.Peer) map[K]int64) map[K]int64 {
	all := map[K]int64{}
	for i := range peers {
		for k, n := range of(&peers[i]) {
			all[k] += n
		}
	}
	return all
}

// failure describes how an ingest server fails. Waiting submissions do not show it, since they
// are not tried one by one.
func failure(p *status.Peer) string {
	const moment = "2006-01-02 15:04:05 UTC"
	again := "within an hour"
	if !p.Failing.Again.IsZero() {
		again = "at " + p.Failing.Again.UTC().Format(moment)
	}
	return fmt.Sprintf("%s has failed since %s: %s. bridge tries again %s.", peerName(p), p.Failing.Since.UTC().Format(moment), shownReason(p.Failing.Reason), again)
}

// shownReason returns a reason without mailboxes and secrets.
func shownReason(reason string) string {
	return clip(mailbox().ReplaceAllString(public(reason), "...@"), 300)
}

// listCounts writes counts as "3 waiting, 1 expired", without those of zero.
func listCounts[K interface {
	comparable
	String() string
}](counts map[K]int64, order ...K) string {
	var parts []string
	for _, k := range order {
		if n := counts[k]; n != 0 {
			parts = append(parts, Number(n)+" "+k.String())
		}
	}
	return strings.Join(parts, ", ")
}

// how returns where the submission went, or who reported it.
func how(p *status.Problem) string {
	switch {
	case p.State == 0:
		return "in the log"
	case p.State == submission.StateRejected && p.By == status.DecidedHere:
		return "decided here"
	case p.State == submission.StateRejected && p.By == status.DecidedElsewhere:
		return "reported by an ingest server"
	}
	return "submitted to " + serverName(p.URL)
}

func peerName(p *status.Peer) string {
	if p.Direction == status.Received {
		return serverName("")
	}
	return serverName(p.URL)
}

// serverName returns what pages call an ingest server; "" is our own service.
func serverName(url string) string {
	if url == "" {
		return "this service"
	}
	return clip(public(url), 200)
}

// clip returns a text in one line of at most n characters.
func clip(text string, n int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	if len(text) <= n {
		return text
	}
	for i := range text {
		if n--; n < 0 {
			return text[:i] + "..."
		}
	}
	return text
}
