package event

// State is how far a submission has come: an ingest request that was sent, or
// received, and waits for its ultimate disposition.
type State uint8

// The states of a submission. From StateAccepted on they are ends, but that what
// is unresolved gets its disposition when that arrives late.
const (
	// StateWaiting: in the outbox, to be sent when it is due.
	StateWaiting State = iota + 1
	// StateForwarding: a gateway has committed it and is sending it on. Nobody
	// knows whether it has arrived until the reply is there.
	StateForwarding
	// StateInDoubt: it was forwarded, and the reply was lost, or the process ended
	// before it was there. It is never sent again by itself.
	StateInDoubt
	// StateProvisional: provisionally accepted; the ultimate disposition is to
	// come in a notification, or from whoever reviews it.
	StateProvisional
	// StateAccepted: accepted, Assigned is its identifier.
	StateAccepted
	// StateRejected: rejected, Reason says why when the server said so.
	StateRejected
	// StateUnresolved: no ultimate disposition came before the deadline. A late
	// one still counts.
	StateUnresolved
	// StateUnsent: it cannot be sent: a deletion, a format that the server does
	// not list, no XML. Reason says which.
	StateUnsent
	// StateReplaced: it was not sent, since a later change of its record is
	// submitted instead.
	StateReplaced
)

// String returns the word for people and for JSON.
func (s State) String() string {
	words := [...]string{"", "waiting", "forwarding", "in doubt", "provisional", "accepted", "rejected", "unresolved", "unsent", "replaced"}
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

// ParseState is the inverse of State.String; 0 for what is no state.
func ParseState(word string) State {
	for _, s := range States() {
		if s.String() == word {
			return s
		}
	}
	return 0
}

// Final tells whether the submission has its ultimate disposition.
func (s State) Final() bool { return s == StateAccepted || s == StateRejected }

// Open tells whether an ultimate disposition would be the first.
func (s State) Open() bool { return s != 0 && !s.Final() && s < StateUnsent }

// Resolution is what a disposition that arrives means to its submission.
type Resolution uint8

// The resolutions.
const (
	// Resolves: it is the answer, or the next step towards it.
	Resolves Resolution = iota + 1
	// Repeats: it says what is known, or less.
	Repeats
	// Contradicts: another ultimate disposition is in force and stays so.
	Contradicts
)

// Resolve tells what a disposition (StateAccepted, StateRejected or
// StateProvisional) means to a submission that is in state s, with the
// identifier that was assigned.
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

// Submission is one ingest request and what became of it.
type Submission struct {
	// ID is given by the log; 0 is a new one.
	ID int64
	// Version is compared and swapped: a step that names another one than is
	// stored does not happen.
	Version int64
	// Source is the SIP Source that has received it, or the target that sends
	// it.
	Source SourceID
	// Set of that Source; the log fills it in.
	Set   string
	State State
	// Token is the unguessable part of the notification recipient that we named
	// upstream; "" when none was named.
	Token string
	// Seq is the event whose record a target submits; 0 of a received one.
	Seq Seq
	// Request is the SHA-256 of a received request, by which a repeat is known.
	Request [32]byte
	// Block is the request's source element as a document of its own, nil when
	// there was none.
	Block []byte
	// SourceIdentifier in it.
	SourceIdentifier string
	// Record is the identifier of the record that a target submits.
	Record string
	// Content is the SHA-256 of the record, and Length its bytes; it is in the
	// content store.
	Content [32]byte
	Length  int64
	// Type is the record's media type, Title what it is called, if known.
	Type, Title string
	// Recipient is whom the sender of a received request wants to be notified;
	// "" when it named nobody.
	Recipient string
	// Assigned is the identifier that the library has assigned.
	Assigned string
	// Reason of a rejection, of the last failure, or of what is unsent.
	Reason string
	// Created is when it was committed first, Changed when last; the log fills
	// both in.
	Created, Changed Micros
	// Due is when something is to be done about it: sent (again), or given up at
	// its deadline; 0 is never.
	Due Micros
	// Deadline is when it becomes unresolved; 0 is never.
	Deadline Micros
	// Tries counts how often it was sent.
	Tries int
	// Late: its ultimate disposition came after the deadline.
	Late bool
	// Owed: a target has submitted it, it was accepted, and it was not taken into
	// another set yet. Where there is none to take it into it stays so.
	Owed bool
	// Conflicts counts ultimate dispositions that contradict the first.
	Conflicts int
}

// UnderReview reports whether the submission was received and never sent on:
// whoever reviews it decides, and no notification.
func (s *Submission) UnderReview() bool { return s.Token == "" && s.Seq == 0 && s.Tries == 0 }

// Subject is what a submission is a version of: the record that a target
// submits, or the source element of a request that was received; "" is none.
func (s *Submission) Subject() string {
	if s.Seq != 0 {
		return s.Record
	}
	return string(s.Block)
}

// Step is a change of one submission: it is new (ID and Version 0), or it
// replaces the stored one with that ID if that has still the same Version. What
// belongs to a step happens only with it.
type Step struct {
	Submission Submission
	// Item is the place in Batch.Items, plus one, of the observation that
	// belongs to it; 0 is none.
	Item int
	// Rejected: an event of kind rejected is logged for it, with its Record,
	// SourceIdentifier and Reason.
	Rejected bool
	// Notice is to be delivered to the submission's recipient; nil is none.
	Notice *Notice
	// Notification is the disposition that was received; nil is none.
	Notification *Notification
	// Settled: somebody has said what the ingest server decided. The submission has
	// no Conflicts any more, and its notifications, and the one with the ID Settles
	// (0 is none), become NotificationSettled.
	Settled bool
	Settles int64
}

// Notice is a disposition that is to be delivered to a notification recipient,
// at least once.
type Notice struct {
	ID int64
	// Submission it belongs to. The log fills it in when it comes with a Step.
	Submission int64
	Set        string
	// Recipient is the URL that the submitter named.
	Recipient string
	// Disposition is the document, without an envelope.
	Disposition []byte
	// Message is the stable Message-ID of its mail, without brackets.
	Message string
	State   NoticeState
	Created Micros
	// Due is when it is to be tried next; 0 when that is over.
	Due    Micros
	Tries  int
	Reason string // of the last failure
}

// NoticeState is how far a notice has come.
type NoticeState uint8

// The states of a notice.
const (
	NoticeWaiting NoticeState = iota + 1
	NoticeDelivered
	// NoticeRefused: the recipient will not have it, whenever it is tried.
	NoticeRefused
	// NoticeExpired: it could not be delivered for five days.
	NoticeExpired
)

// String returns the word for people and for JSON.
func (s NoticeState) String() string {
	words := [...]string{"", "waiting", "delivered", "refused", "expired"}
	if int(s) < len(words) {
		return words[s]
	}
	return "unknown"
}

// Notification is a disposition that a notification recipient of ours was sent,
// or a reply that contradicts one. The same one twice is one, with Times counted.
type Notification struct {
	ID  int64
	Set string
	// Digest identifies it: SHA-256 over the token and what it says.
	Digest [32]byte
	// Submission that it belongs to; 0 when it is not known which.
	Submission int64
	Verdict    NotificationVerdict
	// What it says: the source's identifier for the record, the outcome
	// (StateAccepted or StateRejected), the assigned identifier, the reason.
	SourceIdentifier string
	Outcome          State
	Assigned         string
	Reason           string
	// Block is its source element as a document, nil when there is none.
	Block []byte
	// First and Last are when it came first and last, Times how often.
	First, Last Micros
	Times       int
	// Stranger: it came from somebody who showed no secret. While it belongs to
	// nothing it is no event, and may make room for newer ones of strangers.
	Stranger bool
	// Item is the place in Batch.Items, plus one, of the observation that it gives
	// rise to; 0 is none. When the notification has come before, and the Source has
	// deleted the record, that observation is left alone (its outcome is 0): a
	// repeat does not bring back what was withdrawn. The log does not keep it.
	Item int
}

// NotificationVerdict is what became of a notification.
type NotificationVerdict uint8

// The verdicts on notifications.
const (
	// NotificationMatched: it is the ultimate disposition of a submission.
	NotificationMatched NotificationVerdict = iota + 1
	// NotificationRecord: its record is fetched from the library.
	NotificationRecord
	// NotificationRejected: it belongs to no submission of ours, and was logged as
	// an event of kind rejected unless it is a Stranger's.
	NotificationRejected
	// NotificationUncorrelated: it belongs to no submission, or to several, and
	// there is nowhere to fetch the record from.
	NotificationUncorrelated
	// NotificationConflict: it contradicts the ultimate disposition in force.
	NotificationConflict
	// NotificationSettled: somebody has settled the submission that it is about, and
	// what it says does not count any more.
	NotificationSettled
)

// String returns the word for people and for JSON.
func (v NotificationVerdict) String() string {
	words := [...]string{"", "matched", "record", "rejected", "uncorrelated", "conflict", "settled"}
	if int(v) < len(words) {
		return words[v]
	}
	return "unknown"
}

// Rejection is a submission that was rejected and has no row of its own: one to
// our ingest server, or one of somebody else's that we were notified of.
type Rejection struct {
	// Stranger: it came from somebody who showed no secret. Such a rejection is no
	// event: the newest of a Source are kept, and have an ID, their Set, and At.
	Stranger bool
	ID       int64
	Set      string
	At       Micros
	// Record is the identifier, "" when it has none.
	Record           string
	SourceIdentifier string
	Reason           string
	Title            string
}

// Answered is what an ingest server has answered to a whole request, so that its
// repeat gets the same.
type Answered struct {
	Request     [32]byte
	Disposition []byte // the document
}

// Exchange is what a batch of ModeSubmission does besides its items.
type Exchange struct {
	Steps []Step
	// Rejections are logged as events of kind rejected, after the items, but those
	// of strangers.
	Rejections []Rejection
	// Notices, which have an ID, replace the stored ones.
	Notices []Notice
	// Notifications are those that belong to no step.
	Notifications []Notification
	// Answered are remembered for a day.
	Answered []Answered
}

// SubmissionQuery selects submissions; what is zero does not count.
type SubmissionQuery struct {
	Set    string
	Source SourceID
	States []State
	// Request selects received ones by their digest, Subject the versions of one
	// Subject.
	Request *[32]byte
	Subject string
	// Owed selects those that are.
	Owed bool
	// After and Limit page in the order of their ID; Limit 0 is 1000. Newest
	// turns that order around: those with an ID below After, or all when it is 0.
	After  int64
	Limit  int
	Newest bool
}

// Counts says how many submissions, notices and notifications a Source or target
// has, by their states and verdicts.
type Counts struct {
	Submissions   map[State]int64
	Notices       map[NoticeState]int64
	Notifications map[NotificationVerdict]int64
	// Direct counts what an ingest server has decided at once: accepted records,
	// as far as they were new or changed, and rejections.
	Direct map[State]int64
	// Contradicted counts the submissions that were told another ultimate
	// disposition than the one in force.
	Contradicted int64
	// UnderReview counts those that wait for a decision here.
	UnderReview int64
	// Dropped counts the rejections and notifications of strangers that are not kept
	// any more, since newer ones have taken their place.
	Dropped int64
}
