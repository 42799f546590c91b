package submission

import "github.com/pmh-bridge/bridge/event"

// OutgoingNotification is a disposition that is to be delivered to a notification
// recipient, at least once (SIP, "notify").
type OutgoingNotification struct {
	ID int64
	// Source is that of the submission, and Set its set; the store fills in both.
	Source event.SourceID
	Set    string
	// Submission it belongs to. The store fills it in when it comes with an Update.
	Submission int64
	// Recipient is the URL at which the submitter wants the notification.
	Recipient string
	// Disposition is the document, without an envelope.
	Disposition []byte
	// Message is the stable Message-ID of its mail, without brackets.
	Message string
	State   DeliveryState
	// Created is when it was stored, or when an operator has had it sent again: it is given
	// up some time after that.
	Created event.Micros
	// Due is when it is to be tried next; 0 when it is not tried any more.
	Due    event.Micros
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
	// DeliveryExpired: it was given up after too long (delivery.Notifier.GiveUp).
	DeliveryExpired
)

// String returns the word for people and for JSON. 0 is a row that is damaged in the log.
func (s DeliveryState) String() string {
	words := [...]string{"damaged", "waiting", "delivered", "refused", "expired"}
	if int(s) < len(words) {
		return words[s]
	}
	return "unknown"
}

// IncomingNotification is a disposition that was sent to a notification recipient of
// ours, or a reply that contradicts one. The same one twice is stored once, with
// Times counted.
type IncomingNotification struct {
	ID int64
	// Source that received it, and its Set; the store fills in both.
	Source event.SourceID
	Set    string
	// Digest identifies it: SHA-256 over the token and the disposition.
	Digest [32]byte
	// Submission that it belongs to; 0 when that is not known.
	Submission int64
	Verdict    NotificationVerdict
	// The disposition: the source's identifier for the record, the outcome (StateAccepted
	// or StateRejected), the assigned identifier, the reason.
	SourceIdentifier string
	Outcome          State
	Assigned         string
	Reason           string
	// SourceXML is its source element as a document, nil when there is none.
	SourceXML []byte
	// First and Last are when it came first and last, Times how often.
	First, Last event.Micros
	Times       int
	// Anonymous: the sender showed no secret. While the notification belongs to no
	// submission it is no event, and may be removed in favour of newer anonymous ones.
	Anonymous bool
	// Item is the observation that it gives rise to; nil is none. When the notification
	// has come before, and the Source has withdrawn the record, the observation is
	// ignored: a repeat does not bring back a withdrawn record. It is not stored.
	Item *event.Item
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
	// NotificationSettled: an operator has settled the submission that it is about, and
	// its disposition does not count any more.
	NotificationSettled
)

// String returns the word for people and for JSON. 0 is a row that is damaged in the log.
func (v NotificationVerdict) String() string {
	words := [...]string{"damaged", "matched", "record", "rejected", "uncorrelated", "conflict", "settled"}
	if int(v) < len(words) {
		return words[v]
	}
	return "unknown"
}

// Rejection is a submission that was rejected and has no row of its own: one to our
// ingest server, or one of another submitter that we were notified of.
type Rejection struct {
	// Anonymous: the submitter or sender showed no secret. Such a rejection is no
	// event: the newest of a Source are kept, and have an ID, Source, Set and At.
	Anonymous bool
	ID        int64
	Source    event.SourceID
	Set       string
	At        event.Micros
	event.Rejection
}

// StoredReply is the disposition with which an ingest server has answered a whole
// request. A repeat of the request within a day gets the same.
type StoredReply struct {
	Request     [32]byte // SHA-256
	Disposition []byte   // the document
}
