// Package status is the state of the sets, Sources and submissions at a moment: the daemon
// returns it in this one form, and commands, pages and API read it. As JSON it is the
// object of bridge status --json; fields that are not in that object have the tag "-".
package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Status is the state of a data folder.
type Status struct {
	// Warnings are sentences about events that the log has lost, why nothing is logged, and
	// which templates have no sets.
	Warnings []string `json:"warnings,omitempty"`
	Summary  Summary  `json:"summary"`
	Sets     []Set    `json:"sets"`
}

// Sources returns the Sources of all sets.
func (s *Status) Sources() iter.Seq[*Source] {
	return func(yield func(*Source) bool) {
		for i := range s.Sets {
			for j := range s.Sets[i].Sources {
				if !yield(&s.Sets[i].Sources[j]) {
					return
				}
			}
		}
	}
}

// Set is the state of a set.
type Set struct {
	Name    string    `json:"name"`
	Records int64     `json:"records"` // live ones
	Events  int64     `json:"events"`
	LastSeq event.Seq `json:"last_seq"`
	// SnapshotSeq is the Seq whose state the Resource List shows, 0 when there is no
	// list yet.
	SnapshotSeq event.Seq `json:"snapshot_seq"`
	// Hubs are the WebSub hubs that are notified of its changes.
	Hubs []Hub `json:"hubs,omitempty"`
	// Dumps is the state of the set's dumps, nil when it has none.
	Dumps *Dumps `json:"dumps,omitempty"`
	// Partial reports that not all of its Sources were read to the end yet; its complete
	// lists answer 503.
	Partial     bool     `json:"partial,omitempty"`
	Sources     []Source `json:"sources"`
	Submissions []Peer   `json:"submissions,omitempty"`

	Content event.Content `json:"-"`
	Newest  time.Time     `json:"-"` // when its last event was observed
	// Problems are the submissions that need attention, the newest first; only pages
	// have them.
	Problems []Problem `json:"-"`
}

// Hub is a WebSub hub that is notified of the changes of a set.
type Hub struct {
	URL string `json:"url"`
	// Told is when it was last notified of one, zero never.
	Told Time `json:"told,omitzero"`
	// FailingSince is since when notifications fail, zero when they do not, and Error why.
	FailingSince Time   `json:"failing_since,omitzero"`
	Error        string `json:"error,omitempty"`
}

// The states of a Push.
const (
	PushAsked      = "asked"      // the hub has not confirmed it yet
	PushSubscribed = "subscribed" // a push from the hub starts a harvest
	PushFailing    = "failing"    // the hub refuses, or does not answer or does not confirm
	PushNone       = "none"       // the Source names no hub, or cannot be read
	PushEnding     = "ending"     // it is not wanted any more
)

// Push is a subscription at a WebSub hub of a Source.
type Push struct {
	State string `json:"state"`
	Hub   string `json:"hub,omitempty"`
	Topic string `json:"topic,omitempty"`
	Until Time   `json:"until,omitzero"` // end of the lease
	// Last is when a push last started a harvest, zero never.
	Last  Time   `json:"last,omitzero"`
	Error string `json:"error,omitempty"`
}

// Dumps is the state of the dumps of a set.
type Dumps struct {
	// Seq is the Seq whose state the Resource Dump has, 0 when there is none yet.
	Seq event.Seq `json:"seq"`
	// Segments counts the closed segments, and Packed those that the Change Dump has.
	Segments int `json:"segments"`
	Packed   int `json:"packed"`
	// Faults are the reasons why the newest dumps could not be made.
	Faults []string `json:"faults,omitempty"`
}

// Source is the state of a Source of a set.
type Source struct {
	Name   string `json:"name,omitempty"` // in the configuration, "" when it has none
	Former bool   `json:"former,omitempty"`
	// Kind is that of the configuration; "" means not yet known.
	Kind string `json:"kind"`
	URL  string `json:"url"`
	// Mark is the time up to which the Source has been harvested, by its own clock.
	Mark Mark `json:"mark,omitzero"`
	// Last is the last harvest, nil when there was none.
	Last *Harvest `json:"last,omitempty"`
	// Pending, Held and Quarantined count the waiting contents, deletions and bad inputs.
	Pending     int `json:"pending"`
	Held        int `json:"held"`
	Quarantined int `json:"quarantined"`
	// Dropped counts bad inputs that were removed from quarantine for newer ones.
	Dropped int `json:"dropped,omitempty"`
	// Gap describes the missing document of an open gap, "" when there is none.
	Gap string `json:"gap,omitempty"`
	// Next is when the next harvest is planned, zero when none is. RetryAfter is the time
	// before which the Source wants no request, zero when it has given none.
	Next       Time `json:"next,omitzero"`
	RetryAfter Time `json:"retry_after,omitzero"`
	// State sums up the fields below.
	State State `json:"state"`
	// LastSuccess is when the last harvest without an error ended, zero when none has.
	LastSuccess Time `json:"last_success,omitzero"`
	// FailingSince is when the first of the failed harvests in a row ended, zero when the
	// last one did not fail. Failures counts those that were the Source's fault.
	FailingSince Time `json:"failing_since,omitzero"`
	Failures     int  `json:"failures,omitempty"`
	// LastError is the newest error, which may be long ago; nil when there was none.
	LastError *HarvestError `json:"last_error,omitempty"`
	// Unchanged counts the harvests since the last row of the history, which found nothing
	// new; nil when there are none.
	Unchanged *Unchanged `json:"unchanged,omitempty"`
	// Moved is the URL to which the Source has moved permanently, "" when it has not.
	Moved string `json:"moved,omitempty"`
	// Paused is the pause by an operator; nil when there is none.
	Paused *Pause `json:"paused,omitempty"`
	// Push are the subscriptions at the WebSub hubs of the Source.
	Push []Push `json:"push,omitempty"`
	// Underway is the harvest under way, nil when there is none.
	Underway *Underway `json:"underway,omitempty"`

	ID  event.SourceID `json:"-"`
	Set string         `json:"-"`
	// Unfinished means that a walk has begun, and the next harvest continues it.
	Unfinished bool `json:"-"`
	// PartialRecords counts the pending records that are published without some of
	// their representations.
	PartialRecords int `json:"-"`
	// Waits are the first few pending records, each with the reason.
	Waits []string `json:"-"`
}

// Pause is the reason and the end of a pause of a Source.
type Pause struct {
	Since  Time   `json:"since"`
	Reason string `json:"reason,omitempty"`
	Until  Time   `json:"until,omitzero"` // absent means until it is resumed
}

// Mark is a Source's mark. As JSON it is the text of the stamp.
type Mark struct{ event.Stamp }

// IsZero reports whether the Source has no mark.
func (m Mark) IsZero() bool { return !m.Known() }

// MarshalText implements encoding.TextMarshaler.
func (m Mark) MarshalText() ([]byte, error) { return m.Append(nil), nil }

// Time is a moment. As JSON it is in UTC, in whole seconds.
type Time struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return t.UTC().AppendFormat(nil, `"`+time.RFC3339+`"`), nil
}

// Harvest is the report of a harvest. As JSON it is a summary of the report; the log stores
// the report in the report's own form.
type Harvest struct{ harvest.Report }

// MarshalJSON implements json.Marshaler.
func (h *Harvest) MarshalJSON() ([]byte, error) {
	return marshal(struct {
		Started   Time     `json:"started"`
		Ended     Time     `json:"ended"`
		Documents int64    `json:"documents"`
		Entries   int64    `json:"entries"`
		Events    int64    `json:"events"`
		Problems  int64    `json:"problems"`
		Skipped   int64    `json:"skipped,omitempty"`
		Dialects  []string `json:"dialects,omitempty"`
		Moved     string   `json:"moved,omitempty"`
		Error     string   `json:"error,omitempty"`
		Warnings  []string `json:"warnings,omitempty"`
	}{Time{h.Started}, Time{h.Ended}, h.Documents, h.Entries, h.Events(), h.Problems, h.Skipped, h.Dialects, h.Moved, h.Error, h.Warnings})
}

// Underway is a harvest under way.
type Underway struct {
	Started time.Time
	harvest.Progress
}

// MarshalJSON implements json.Marshaler. What it writes can be read again.
func (u *Underway) MarshalJSON() ([]byte, error) {
	return marshal(struct {
		Started   Time   `json:"started"`
		Doing     string `json:"doing,omitempty"`
		Until     Time   `json:"until,omitzero"` // absent when unknown
		Documents int64  `json:"documents"`
		Entries   int64  `json:"entries"`
		Events    int64  `json:"events"`
		Fetched   int64  `json:"fetched"`
		Wanted    int64  `json:"wanted"`
	}{Time{u.Started}, u.Doing, Time{u.Until}, u.Documents, u.Entries, u.Events, u.Fetched, u.Wanted})
}

// marshal leaves "&" unescaped: the encoder of the whole object decides about that.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// The directions of submissions.
const (
	Received = "received"
	Sent     = "sent"
)

// Names keeps apart what is called by its URL: without their secrets, two URLs may be equal. A new
// one is for one set of a Status.
type Names map[[2]string]bool

// Add returns a name that no other of its kind has, with as many stars as that takes.
func (n Names) Add(kind, name string) string {
	for n[[2]string{kind, name}] {
		name += "*"
	}
	n[[2]string{kind, name}] = true
	return name
}

// Peer counts the submissions that the set's own SIP service has received, or that
// went to one ingest server.
type Peer struct {
	Direction string `json:"direction"` // Received or Sent
	// URL is that of the ingest server, or of our own service.
	URL string `json:"url"`
	// States counts all submissions, including those that were decided at once.
	States                Counts[submission.State]               `json:"states"`
	UnderReview           int64                                  `json:"under_review,omitempty"`
	NotificationsSent     Counts[submission.DeliveryState]       `json:"notifications_sent,omitzero"`     // notifications to submitters
	NotificationsReceived Counts[submission.NotificationVerdict] `json:"notifications_received,omitzero"` // those that were sent to us
	// Dropped counts rejections and notifications of unauthenticated clients that were
	// removed for newer ones.
	Dropped int64 `json:"dropped,omitempty"`
	// Through is the Seq up to which the set's events are in the outbox, if it is Sent.
	Through event.Seq `json:"through,omitempty"`
	// Former means that the configuration does not have the ingest server any more.
	Former bool `json:"former,omitempty"`
	// Failing describes how the ingest server fails, nil while it works or is Former.
	Failing *Failure `json:"failing,omitempty"`

	// Stored counts the submissions that have a row of their own: States without those
	// that were decided at once.
	Stored map[submission.State]int64 `json:"-"`
	// Conflicts counts the submissions, in any state, whose ultimate disposition is
	// contradicted by another one.
	Conflicts int64 `json:"-"`
}

// Undelivered returns how many notifications to submitters were refused or given up: their
// submitters do not know the decision.
func (p *Peer) Undelivered() int64 {
	return p.NotificationsSent[submission.DeliveryRefused] + p.NotificationsSent[submission.DeliveryExpired]
}

// Failure is how an ingest server fails.
type Failure struct {
	Since  Time   `json:"since"`
	Reason string `json:"reason"`
	// Again is when it is tried again; zero means within an hour.
	Again Time `json:"again,omitzero"`
}

// Counts has a number for each value of K. As JSON the values have their names, and numbers
// of 0 are left out.
type Counts[K interface {
	comparable
	fmt.Stringer
}] map[K]int64

// Words returns the numbers that are not 0 by the names of the values.
func (c Counts[K]) Words() map[string]int64 {
	out := map[string]int64{}
	for k, n := range c {
		if n != 0 {
			out[k.String()] = n
		}
	}
	return out
}

// IsZero reports whether nothing was counted.
func (c Counts[K]) IsZero() bool {
	for _, n := range c {
		if n != 0 {
			return false
		}
	}
	return true
}

// MarshalJSON implements json.Marshaler.
func (c Counts[K]) MarshalJSON() ([]byte, error) { return json.Marshal(c.Words()) }

// Decider is who has decided on a submission.
type Decider uint8

// The deciders.
const (
	// DecidedThere is the ingest server that it was submitted or forwarded to, or nobody
	// yet.
	DecidedThere Decider = iota
	// DecidedHere is our own service.
	DecidedHere
	// DecidedElsewhere is an ingest server to which another submitter has submitted, and
	// that has notified us.
	DecidedElsewhere
)

// Problem is a submission that needs attention: rejected, unresolved, in doubt,
// unsent, or with contradicting dispositions; or one that is damaged in the log: then it has
// the State 0, its number as Identifier, and no URL.
type Problem struct {
	// URL is that of the ingest server; "" means our own service.
	URL string
	// Identifier is that of the record, in the form that an operator knows best.
	Identifier string
	// Title of the record, "" when it has none.
	Title string
	State submission.State
	// By is who has rejected it. It has no meaning in other states.
	By Decider
	// Conflicts counts the dispositions that contradict the one in force.
	Conflicts int
	// Reason is that of the rejection, of the last failure, or of what is unsent.
	Reason string
	// Since is when it came into its state; zero when that is not known.
	Since time.Time
}
