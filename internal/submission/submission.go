// Package submission has SIP's submissions and notifications, the states of a submission,
// and the rules for their transitions. Apply is the only code that changes a state. The
// package is pure: it uses no log, no network and no clock. Its callers commit the
// results of Apply, all in one transaction, and apply the input again when another change
// was faster. Package store keeps all of it.
package submission

import "github.com/pmh-bridge/bridge/event"

// State is how far a submission has come. A submission is an ingest request (SIP,
// "ingest") that was sent or received and whose ultimate disposition is awaited or
// known.
type State uint8

// The states of a submission. From StateAccepted on they are final, except that an
// unresolved submission takes a disposition that arrives late.
const (
	// StateWaiting: a target sends it when it is due.
	StateWaiting State = iota + 1
	// StateForwarding: a gateway has committed it and is sending it on. Whether it
	// has arrived is unknown until the reply is there.
	StateForwarding
	// StateInDoubt: a gateway has sent it on, and the reply was lost, or the process
	// ended before the reply came. It is never sent again automatically.
	StateInDoubt
	// StateProvisional: provisionally accepted. The ultimate disposition comes in a
	// notification, or from a reviewer.
	StateProvisional
	// StateAccepted: accepted; Assigned is its identifier.
	StateAccepted
	// StateRejected: rejected; Reason is the server's, if it gave one.
	StateRejected
	// StateUnresolved: no ultimate disposition came before the deadline. A late one
	// still counts.
	StateUnresolved
	// StateUnsent: it cannot be sent: a deletion, a format that the server does not
	// list, no XML. Reason says which.
	StateUnsent
	// StateReplaced: it was not sent, or its reply was lost, and a later change of its
	// record is submitted instead.
	StateReplaced
)

// String returns the word for people and for JSON. 0 is a row that is damaged in the log.
func (s State) String() string {
	words := [...]string{"damaged", "waiting", "forwarding", "in doubt", "provisional", "accepted", "rejected", "unresolved", "unsent", "replaced"}
	if int(s) < len(words) {
		return words[s]
	}
	return "unknown"
}

// States returns all states, in their order.
func States() []State {
	var all []State
	for s := StateWaiting; s <= StateReplaced; s++ {
		all = append(all, s)
	}
	return all
}

// ParseState is the inverse of State.String; it returns 0 for an unknown word.
func ParseState(word string) State {
	for _, s := range States() {
		if s.String() == word {
			return s
		}
	}
	return 0
}

// Final reports whether the submission has its ultimate disposition.
func (s State) Final() bool { return s == StateAccepted || s == StateRejected }

// Open reports whether a disposition that arrives now would be the first ultimate one.
func (s State) Open() bool { return s != 0 && !s.Final() && s < StateUnsent }

// Resolution is the meaning of an arriving disposition for its submission.
type Resolution uint8

// The resolutions.
const (
	// Resolves: it is the ultimate disposition, or the next step towards it.
	Resolves Resolution = iota + 1
	// Repeats: it adds nothing to what is known.
	Repeats
	// Contradicts: another ultimate disposition is in force and stays so.
	Contradicts
)

// Resolve returns the meaning of a disposition (StateAccepted, StateRejected or
// StateProvisional) with an assigned identifier for the submission.
func (s *Submission) Resolve(to State, assigned string) Resolution {
	switch {
	case s.State.Final() && to == StateProvisional:
		return Repeats // the ultimate one was faster than the reply
	case s.State.Final() && to == s.State && (to == StateRejected || assigned == s.Assigned):
		return Repeats
	case s.State.Final():
		return Contradicts
	case to == StateProvisional && (s.State == StateProvisional || s.State == StateUnresolved):
		return Repeats
	}
	return Resolves
}

// Submission is one ingest request and its state.
type Submission struct {
	// ID is assigned by the store; 0 is a new submission.
	ID int64
	// Version is compared and swapped: an update with another Version than the stored
	// one is not applied.
	Version int64
	// Source is the SIP Source that received it, or the target that sends it.
	Source event.SourceID
	// Set of that Source; the store fills it in.
	Set   string
	State State
	// Token is the unguessable part of the notification recipient that we sent to the
	// ingest server; "" when we sent none.
	Token string
	// Seq is the event whose record a target submits; 0 of a received submission.
	Seq event.Seq
	// Request is the SHA-256 of a received request, by which a repeat is recognized.
	Request [32]byte
	// SourceXML is the request's source element as a document of its own, nil when
	// there was none.
	SourceXML []byte
	// SourceIdentifier is the source-identifier in SourceXML.
	SourceIdentifier string
	// Record is the identifier of the record that a target submits.
	Record string
	// Content is the SHA-256 of the record, and Length its bytes; the content store
	// has it.
	Content [32]byte
	Length  int64
	// Type is the record's media type, Title its title, if known.
	Type, Title string
	// Recipient is the notification-recipient of a received request; "" when it has none.
	Recipient string
	// Assigned is the identifier that the ingest server has assigned.
	Assigned string
	// Reason of a rejection or of the last failure, or why it is unsent.
	Reason string
	// Created is when it was committed first, Changed when last; the store fills in
	// both.
	Created, Changed event.Micros
	// Due is when it is to be sent (again), or given up at its Deadline; 0 is never.
	Due event.Micros
	// Deadline is when it becomes unresolved; 0 is never.
	Deadline event.Micros
	// Tries counts how often it was sent.
	Tries int
	// Late: its ultimate disposition came after the deadline.
	Late bool
	// ImportPending: a target has submitted it, it was accepted, and it was not
	// imported into another set yet. It stays so while no such set is configured.
	ImportPending bool
	// Conflicts counts ultimate dispositions that contradict the first.
	Conflicts int
}

// UnderReview reports whether the submission was received and never sent on: a reviewer
// decides on it, and no notification does.
func (s *Submission) UnderReview() bool { return s.Token == "" && s.Seq == 0 && s.Tries == 0 }

// Promised reports whether the submitter of a received submission was told that the
// decision will be sent to its recipient, and has had none yet.
func (s *Submission) Promised() bool {
	return s.Seq == 0 && s.Recipient != "" && (s.State == StateProvisional || s.State == StateUnresolved && s.Reason == noDecision)
}

// Subject returns the record of which a submission is a version: the identifier that a
// target submits, or the source element of a request that was received; "" is none.
func (s *Submission) Subject() string {
	if s.Seq != 0 {
		return s.Record
	}
	return string(s.SourceXML)
}
