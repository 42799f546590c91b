package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// SubmissionStatus is what became of a set's submissions: of those that its SIP
// service received, and of those that it sends to ingest servers.
type SubmissionStatus struct {
	// Peers are this set's own service, if it takes submissions, and the ingest
	// servers that its records are submitted to.
	Peers []PeerStatus
	// Notices counts the dispositions that submitters are owed.
	Notices map[event.DeliveryState]int64
	// Notifications counts the dispositions that were sent to us.
	Notifications map[event.NotificationVerdict]int64
	// Problems are the submissions that need attention (rejected, unresolved, in
	// doubt, unsent, or with contradicting dispositions), the newest first. A page
	// shows 20 of them.
	Problems []SubmissionProblem
}

// PeerStatus is what became of the submissions to one ingest server.
type PeerStatus struct {
	// URL of the ingest server; "" is our own service. Pages show it, and the
	// texts of a SubmissionProblem, without user, query, token and local folder.
	URL string
	// States counts the submissions in each state.
	States map[event.State]int64
	// Conflicts counts those, of any state, that have an ultimate disposition and
	// another one that contradicts it.
	Conflicts int64
	// Reason is why the ingest server fails, and Since when it does; "" is that it
	// answers. Again is when it is asked again; zero is within an hour.
	Reason       string
	Since, Again time.Time
}

// Decider tells who has decided on a submission.
type Decider uint8

// The deciders.
const (
	// DecidedThere: the ingest server that it was submitted or passed on to, or
	// nobody yet.
	DecidedThere Decider = iota
	// DecidedHere: our own service.
	DecidedHere
	// DecidedElsewhere: an ingest server that somebody else has submitted to, and
	// which has told us.
	DecidedElsewhere
)

// SubmissionProblem is a submission that needs attention.
type SubmissionProblem struct {
	// URL of the ingest server; "" is our own service.
	URL string
	// Identifier of the record, as whoever looks for it knows it best.
	Identifier string
	// Title of the record, "" when it has none.
	Title string
	State event.State
	// By is who has rejected it; of other states it tells nothing.
	By Decider
	// Conflicts counts the dispositions that contradict the one in force.
	Conflicts int
	// Reason of the rejection, of the last failure, or of what is unsent.
	Reason string
	// Since is when it came into its state; zero when that is not known.
	Since time.Time
}

// problemsShown is how many a page shows.
const problemsShown = 20

// submissionsView is what became of submissions as a page shows it.
type submissionsView struct {
	// Service is the URL of the set's own service, "" when it has none.
	Service string
	States  []event.State // the columns of Peers
	Peers   []peerView
	// Notices and Notifications say how many there are of which sort, "" when
	// there are none.
	Notices, Notifications string
	Problems               []problemView
	// Attention are sentences about what an operator should look at.
	Attention []string
}

// peerView is a row of numbers.
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

func viewSubmissions(s *SubmissionStatus) submissionsView {
	v := submissionsView{Attention: warnings(s)}
	v.States = event.States()
	for i := range s.Peers {
		p := &s.Peers[i]
		row := peerView{Name: peerName(p.URL), Conflicts: p.Conflicts}
		for _, state := range v.States {
			row.Counts = append(row.Counts, p.States[state])
		}
		v.Peers = append(v.Peers, row)
	}
	v.Notices = listCounts(s.Notices, event.DeliveryWaiting, event.DeliveryExpired, event.DeliveryRefused, event.DeliveryDone)
	v.Notifications = listCounts(s.Notifications, event.NotificationUncorrelated, event.NotificationConflict, event.NotificationMatched,
		event.NotificationRecord, event.NotificationRejected)
	for _, p := range s.Problems[:min(len(s.Problems), problemsShown)] {
		view := problemView{
			Identifier: clip(public(p.Identifier), 200), Title: clip(public(p.Title), 120), State: p.State.String(), How: p.how(),
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
	return v.Service != "" || len(v.Peers) > 0 || len(v.Problems) > 0 || v.Notices != "" || v.Notifications != ""
}

// warnings says what waits for a person. What was rejected or is unsent came to
// an end, and waits for nobody.
func warnings(s *SubmissionStatus) (sentences []string) {
	var unresolved, inDoubt, conflicts int64
	for i := range s.Peers {
		unresolved += s.Peers[i].States[event.StateUnresolved]
		inDoubt += s.Peers[i].States[event.StateInDoubt]
		conflicts += s.Peers[i].Conflicts
		if p := &s.Peers[i]; p.Reason != "" {
			sentences = append(sentences, p.failure())
		}
	}
	say := func(n int64, what, advice string) {
		if n > 0 {
			sentences = append(sentences, what+": "+number(n)+". "+advice)
		}
	}
	say(unresolved, "Submissions without an answer when their time was up", "Ask the ingest server what became of them; a late answer still counts.")
	say(inDoubt, "Submissions in doubt, since nobody knows whether they arrived", "Ask the ingest server, and say what it says with bridge submission settle.")
	say(conflicts, "Submissions with contradicting answers", "The first answer stays in force; ask the ingest server which one is right.")
	say(s.Notices[event.DeliveryExpired], "Answers that could not be delivered to their submitters", "Tell the submitters.")
	say(s.Notifications[event.NotificationUncorrelated], "Notifications that belong to no submission", "Nothing is published of them; with record_url their records can be fetched.")
	say(s.Notifications[event.NotificationConflict], "Notifications that contradict an earlier one", "The first one stays in force; ask the library which one is right.")
	return sentences
}

// failure says how the ingest server fails. Of waiting submissions nothing else
// shows it, since they are not tried one by one.
func (p *PeerStatus) failure() string {
	const moment = "2006-01-02 15:04:05 UTC"
	again := "within an hour"
	if !p.Again.IsZero() {
		again = "at " + p.Again.UTC().Format(moment)
	}
	return fmt.Sprintf("%s fails since %s: %s. It is asked again %s.", peerName(p.URL), p.Since.UTC().Format(moment), shownReason(p.Reason), again)
}

// shownReason is a reason as strangers may read it.
func shownReason(reason string) string {
	return clip(mailbox.ReplaceAllString(public(reason), "...@"), 300)
}

// listCounts writes counts as "3 waiting, 1 expired", without those of zero.
func listCounts[K interface {
	comparable
	String() string
}](counts map[K]int64, order ...K) string {
	var parts []string
	for _, k := range order {
		if n := counts[k]; n != 0 {
			parts = append(parts, number(n)+" "+k.String())
		}
	}
	return strings.Join(parts, ", ")
}

// how says where the submission went, or who told of it.
func (p *SubmissionProblem) how() string {
	switch {
	case p.State == event.StateRejected && p.By == DecidedHere:
		return "decided here"
	case p.State == event.StateRejected && p.By == DecidedElsewhere:
		return "told by an ingest server"
	}
	return "submitted to " + peerName(p.URL)
}

func peerName(url string) string {
	if url == "" {
		return "this service"
	}
	return clip(public(url), 200)
}

// clip writes a stranger's text in one line of at most n characters.
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
