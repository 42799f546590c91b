package submission

import "github.com/pmh-bridge/bridge/event"

// Batch is what is committed together about the submissions of one Source: all of it,
// or nothing.
type Batch struct {
	Source event.SourceID
	// URL of the service, which the log keeps as the document that the events came
	// from; "" is none.
	URL string
	// Items are observations that belong to no update and no notification: records that
	// were accepted at once.
	Items   []*event.Item
	Updates []Update
	// Rejections are logged as events of kind rejected, after the items, except
	// Anonymous ones, which are rows.
	Rejections []Rejection
	// Outgoing replace the stored notifications with the same ID.
	Outgoing []OutgoingNotification
	// Incoming are those that belong to no update.
	Incoming []IncomingNotification
	// Replies are remembered for a day.
	Replies []StoredReply
}

// Update inserts a submission (ID and Version 0), or replaces the stored one with that
// ID if it still has the same Version. The other fields take effect only together with
// it. What a stored submission was made of does not change: its Source, Seq, Request,
// Created and Subject.
type Update struct {
	Submission Submission
	// Item is the observation that belongs to the update; nil is none.
	Item *event.Item
	// Rejected: an event of kind rejected is logged for it, with its Record,
	// SourceIdentifier and Reason.
	Rejected bool
	// Outgoing is to be delivered to the submission's recipient; nil is none.
	Outgoing *OutgoingNotification
	// Incoming is the disposition that was received; nil is none.
	Incoming *IncomingNotification
	// Settled: an operator has found out what the ingest server decided. The submission
	// loses its Conflicts. Its notifications, and the one with the ID SettledNotification
	// (0 is none), become NotificationSettled.
	Settled             bool
	SettledNotification int64
}

// Written is the result of writing a batch.
type Written struct {
	// Appended is the result of the log; its Outcomes are those of Batch.Items.
	event.Appended
	// Stale lists the indexes of the updates that were not written, because their
	// submission has another version by now. What belongs to them was not written either.
	Stale []int
	// IDs are those of the submissions of all updates, in their order.
	IDs []int64
}

// Query selects submissions; zero fields do not restrict it.
type Query struct {
	Set    string
	Source event.SourceID
	States []State
	// Request selects received submissions by their digest, Subject the versions of
	// one Subject.
	Request *[32]byte
	Subject string
	// ImportPending selects those that wait to be imported, UnderReview those that wait for
	// a reviewer, whatever States are.
	ImportPending, UnderReview bool
	// Damaged returns damaged rows too, which are an error otherwise. They have the State 0,
	// the ID and the Set, and a Due that cannot be trusted if it is 0.
	Damaged bool
	// After and Limit page in the order of their ID; Limit 0 is 1000. Newest
	// reverses that order: submissions with an ID below After, or all when it is 0.
	After  int64
	Limit  int
	Newest bool
}

// Counts counts the submissions and notifications of a Source or target by their
// states and verdicts.
type Counts struct {
	Submissions map[State]int64
	Outgoing    map[DeliveryState]int64
	Incoming    map[NotificationVerdict]int64
	// Direct counts the decisions that an ingest server made at once: accepted records,
	// if they were new or changed, and rejections.
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
