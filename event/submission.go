package event

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
	// StateReplaced: it was not sent, because a later change of its record is
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

// Open reports whether an ultimate disposition would be the first.
func (s State) Open() bool { return s != 0 && !s.Final() && s < StateUnsent }

// Resolution is what an arriving disposition means to its submission.
type Resolution uint8

// The resolutions.
const (
	// Resolves: it is the ultimate disposition, or the next step towards it.
	Resolves Resolution = iota + 1
	// Repeats: it says what is known, or less.
	Repeats
	// Contradicts: another ultimate disposition is in force and stays so.
	Contradicts
)

// Resolve returns what a disposition (StateAccepted, StateRejected or
// StateProvisional) with an assigned identifier means to the submission.
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
	// ID is assigned by the log; 0 is a new submission.
	ID int64
	// Version is compared and swapped: an update with another Version than the stored
	// one is not applied.
	Version int64
	// Source is the SIP Source that received it, or the target that sends it.
	Source SourceID
	// Set of that Source; the log fills it in.
	Set   string
	State State
	// Token is the unguessable part of the notification recipient that we named
	// upstream; "" when none was named.
	Token string
	// Seq is the event whose record a target submits; 0 of a received submission.
	Seq Seq
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
	// Recipient is the notification-recipient of a received request; "" when it named
	// none.
	Recipient string
	// Assigned is the identifier that the ingest server has assigned.
	Assigned string
	// Reason of a rejection, of the last failure, or of what is unsent.
	Reason string
	// Created is when it was committed first, Changed when last; the log fills in
	// both.
	Created, Changed Micros
	// Due is when it is to be sent (again), or given up at its Deadline; 0 is never.
	Due Micros
	// Deadline is when it becomes unresolved; 0 is never.
	Deadline Micros
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

// UnderReview reports whether the submission was received and never sent on: a
// reviewer decides, and no notification.
func (s *Submission) UnderReview() bool { return s.Token == "" && s.Seq == 0 && s.Tries == 0 }

// Subject returns what a submission is a version of: the record that a target
// submits, or the source element of a request that was received; "" is none.
func (s *Submission) Subject() string {
	if s.Seq != 0 {
		return s.Record
	}
	return string(s.SourceXML)
}

// SubmissionUpdate inserts a submission (ID and Version 0), or replaces the stored
// one with that ID if it still has the same Version. The other fields take effect
// only together with it.
type SubmissionUpdate struct {
	Submission Submission
	// Item is the index in Batch.Items, plus one, of the observation that belongs to
	// the update; 0 is none.
	Item int
	// Rejected: an event of kind rejected is logged for it, with its Record,
	// SourceIdentifier and Reason.
	Rejected bool
	// Outgoing is to be delivered to the submission's recipient; nil is none.
	Outgoing *OutgoingNotification
	// Incoming is the disposition that was received; nil is none.
	Incoming *IncomingNotification
	// Settled: an operator has said what the ingest server decided. The submission
	// loses its Conflicts, and its notifications, and the one with the ID
	// SettledNotification (0 is none), become NotificationSettled.
	Settled             bool
	SettledNotification int64
}

// OutgoingNotification is a disposition that is to be delivered to a notification
// recipient, at least once (SIP, "notify").
type OutgoingNotification struct {
	ID int64
	// Submission it belongs to. The log fills it in when it comes with a
	// SubmissionUpdate.
	Submission int64
	Set        string
	// Recipient is the URL that the submitter named.
	Recipient string
	// Disposition is the document, without an envelope.
	Disposition []byte
	// Message is the stable Message-ID of its mail, without brackets.
	Message string
	State   DeliveryState
	Created Micros
	// Due is when it is to be tried next; 0 when it is not tried any more.
	Due    Micros
	Tries  int
	Reason string // of the last failure
}

// DeliveryState is how far the delivery of an outgoing notification has come.
type DeliveryState uint8

// The states of a delivery.
const (
	DeliveryWaiting DeliveryState = iota + 1
	DeliveryDone
	// DeliveryRefused: the recipient refuses it for good.
	DeliveryRefused
	// DeliveryExpired: it could not be delivered for five days.
	DeliveryExpired
)

// String returns the word for people and for JSON.
func (s DeliveryState) String() string {
	words := [...]string{"", "waiting", "delivered", "refused", "expired"}
	if int(s) < len(words) {
		return words[s]
	}
	return "unknown"
}

// IncomingNotification is a disposition that was sent to a notification recipient of
// ours, or a reply that contradicts one. The same one twice is stored once, with
// Times counted.
type IncomingNotification struct {
	ID  int64
	Set string
	// Digest identifies it: SHA-256 over the token and what it says.
	Digest [32]byte
	// Submission that it belongs to; 0 when that is not known.
	Submission int64
	Verdict    NotificationVerdict
	// What it says: the source's identifier for the record, the outcome
	// (StateAccepted or StateRejected), the assigned identifier, the reason.
	SourceIdentifier string
	Outcome          State
	Assigned         string
	Reason           string
	// SourceXML is its source element as a document, nil when there is none.
	SourceXML []byte
	// First and Last are when it came first and last, Times how often.
	First, Last Micros
	Times       int
	// Anonymous: the sender showed no secret. While the notification belongs to
	// nothing it is no event, and may be removed in favour of newer anonymous ones.
	Anonymous bool
	// Item is the index in Batch.Items, plus one, of the observation that it gives
	// rise to; 0 is none. When the notification has come before, and the Source has
	// deleted the record, that observation is ignored (its outcome is 0): a repeat
	// does not bring back a withdrawn record. The log does not store it.
	Item int
}

// NotificationVerdict is what was done with an incoming notification.
type NotificationVerdict uint8

// The verdicts on notifications.
const (
	// NotificationMatched: it is the ultimate disposition of a submission.
	NotificationMatched NotificationVerdict = iota + 1
	// NotificationRecord: its record is fetched from the library.
	NotificationRecord
	// NotificationRejected: it belongs to no submission of ours, and was logged as
	// an event of kind rejected unless it is Anonymous.
	NotificationRejected
	// NotificationUncorrelated: it belongs to no submission, and there is nowhere to
	// fetch the record from.
	NotificationUncorrelated
	// NotificationConflict: it contradicts the ultimate disposition in force.
	NotificationConflict
	// NotificationSettled: an operator has settled the submission that it is about,
	// and what it says does not count any more.
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

// Rejection is a submission that was rejected and has no row of its own: one to our
// ingest server, or one of another submitter that we were notified of.
type Rejection struct {
	// Anonymous: the submitter or sender showed no secret. Such a rejection is no
	// event: the newest of a Source are kept, and have an ID, their Set, and At.
	Anonymous bool
	ID        int64
	Set       string
	At        Micros
	// Record is the identifier, "" when it has none.
	Record           string
	SourceIdentifier string
	Reason           string
	Title            string
}

// StoredReply is the disposition with which an ingest server has answered a whole
// request. A repeat of the request gets the same.
type StoredReply struct {
	Request     [32]byte // SHA-256
	Disposition []byte   // the document
}

// SubmissionBatch is what a batch of ModeSubmission changes besides its items.
type SubmissionBatch struct {
	Updates []SubmissionUpdate
	// Rejections are logged as events of kind rejected, after the items, except
	// Anonymous ones.
	Rejections []Rejection
	// Outgoing replace the stored notifications with the same ID.
	Outgoing []OutgoingNotification
	// Incoming are those that belong to no update.
	Incoming []IncomingNotification
	// Replies are remembered for a day.
	Replies []StoredReply
}

// SubmissionQuery selects submissions; zero fields do not restrict it.
type SubmissionQuery struct {
	Set    string
	Source SourceID
	States []State
	// Request selects received submissions by their digest, Subject the versions of
	// one Subject.
	Request *[32]byte
	Subject string
	// ImportPending selects those that are.
	ImportPending bool
	// After and Limit page in the order of their ID; Limit 0 is 1000. Newest
	// reverses that order: submissions with an ID below After, or all when it is 0.
	After  int64
	Limit  int
	Newest bool
}

// SubmissionCounts counts the submissions and notifications of a Source or target by
// their states and verdicts.
type SubmissionCounts struct {
	Submissions map[State]int64
	Outgoing    map[DeliveryState]int64
	Incoming    map[NotificationVerdict]int64
	// Direct counts what an ingest server has decided at once: accepted records, if
	// they were new or changed, and rejections.
	Direct map[State]int64
	// Contradicted counts the submissions that got another ultimate disposition than
	// the one in force.
	Contradicted int64
	// UnderReview counts those that wait for a decision here.
	UnderReview int64
	// Dropped counts the anonymous rejections and notifications that were removed in
	// favour of newer ones.
	Dropped int64
}
