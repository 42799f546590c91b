package event

import (
	"errors"
	"time"
)

// SourceID is the log's number for a Source.
type SourceID int64

// Observation is a Source's report about one record: that it is there with these
// representations, or that it is deleted.
type Observation struct {
	Record  string // identifier, byte for byte
	Deleted bool
	// Fetched: the contents are in the store, and the representations' Hash and
	// Length are theirs.
	Fetched bool
	// Order is the Source's stamp that orders its reports about one record: atom:updated,
	// the datetime of a change, the moment that a list of all records shows. Where it is
	// unknown, the first item in a walk applies if it differs.
	Order Stamp
	// Place is the list that it stood in, and where, for Sources whose lists order what
	// their stamps do not; zero for others.
	Place Place
	// Modified is when the record was last modified or deleted, at its origin.
	Modified Stamp
	// CopyModified is when the Source's copy was last modified, where the
	// original is elsewhere (Via) and the Source states both.
	CopyModified Stamp
	Title        string
	Categories   []Category
	// Details is what is passed on and is no part of the state; nil for none.
	Details         *Details
	Representations []Representation
	// Preferred is the index of the representation that stands for the record.
	Preferred int
	// Via is the inherited via (ResourceSync 14.8); without an Href the
	// preferred representation at the Source is the original.
	Via   Link
	Links []Link
	// SourceIdentifier is the identifier at the Source where it differs from
	// Record.
	SourceIdentifier string
	// Loc overrides the URI under which a set in mode reference publishes the
	// record; "" is the preferred representation's Href.
	Loc string
	// Inline is the content of the first representation, if the document contained it and
	// it is not known to be in the store. The log does not keep it.
	Inline []byte
	// ContentBits are 64 bits of a hash of content that the document contained and that
	// no representation states: a set that keeps no contents sends consumers to different
	// bytes. 0 is none.
	ContentBits int64
	// Claim is the digest of the document's report, before anything was fetched: equal
	// claims need no fetching. 0 lets the log take ClaimOf.
	Claim int64
}

// Place is a place in a list of changes, or in one of all records
// (ResourceSync 10 and 12).
type Place struct {
	// Part is the number of the set of resources that the list belongs to, where
	// the Source has several (ResourceSync 9); 0 is the first.
	Part int
	// List is 64 bits of a hash of what identifies the list; positions in lists
	// with different ones cannot be compared.
	List int64
	// Position of the change in the list, from 1; 0 in a list of all records.
	Position int64
	// From is where the list of changes begins (ResourceSync 12.1), where it says
	// so: of two lists of a set the later one begins later.
	From Stamp
}

// Before reports whether a list of changes is earlier than another one of the same set,
// as far as both state when they begin.
func (p Place) Before(q Place) bool {
	return p.Part == q.Part && p.From.Known() && q.From.After(p.From)
}

// IsZero reports whether there is no place.
func (p Place) IsZero() bool { return p.List == 0 && p.Position == 0 }

// Document is a document that a batch's observations come from.
type Document struct {
	URL         string
	FeedID      string
	FeedTitle   string
	FeedUpdated Stamp
	// Feed is the other metadata of the feed; nil when there is none.
	Feed *Feed
}

// Outcome is what the log made of one observation. It does not include that another
// Source becomes the record's authority because the order of the configuration has
// changed (A15).
type Outcome uint8

// The outcomes of an observation.
const (
	// Logged: the record's state changed, an event was appended.
	Logged Outcome = iota + 1
	// Unchanged: nothing that counts (I5) differs from the stored state.
	Unchanged
	// Historical: the walk has seen the record before, with a stamp no earlier.
	Historical
	// Regressed: its stamp is earlier than the stored one (A1). It is kept
	// until the walk has ended.
	Regressed
	// Tombstone: the deletion of a record that was never seen alive; kept, and
	// no event.
	Tombstone
	// Suppressed: another Source, earlier in the configuration, is the authority of
	// the record (A15); kept, and no event.
	Suppressed
	// Waiting: the content could not be had; kept as pending (A13).
	Waiting
	// NeedsContent: it applies, and its content did not come with it; or its URL
	// has to be asked whether it does (Answer). It is kept as pending, due at
	// once: whoever has the content settles it (ModeSettle).
	NeedsContent
	// Unselected: the configuration selects other records.
	Unselected
	// Bad: quarantined.
	Bad
	// Loopback: another bridge returns a record that the set has, or had, from a Source
	// of its own. It gives the record no presence.
	Loopback
)

// Answer is the result of a request to a record's URL that checks whether an item is
// true.
type Answer uint8

// The answers.
const (
	// Unasked: nobody has asked.
	Unasked Answer = iota
	// Confirmed: the URL of a deleted record is gone, or that of an existing one answers.
	Confirmed
	// Refuted: it is the other way round, so the item is out of date.
	Refuted
)

// Item is one observation in a batch.
type Item struct {
	Observation
	// Document is an index into the batch's Documents.
	Document int
	// Paths are the places of the bytes of each representation in the package that the
	// document describes (ResourceSync 11.2 and 13.2), "" for none; nil if it describes
	// no package. The log does not keep them.
	Paths []string
	// Pending is why content could not be fetched; "" when it was, or need not
	// be.
	Pending string
	// Reason is why somebody has decided on a deletion; the event keeps it. "" is a
	// deletion that the Source has reported.
	Reason string
	// After is the earliest time at which the content may be requested again, as its
	// server has asked; 0 leaves that to the log.
	After Micros
	// Asked is the observation with all its representations, where Partial has
	// left some out.
	Asked *Observation
	// Partial: not all of its content is Pending. The representations that were
	// fetched are logged, and the others asked again.
	Partial bool
	// Baseline: the document lists all records as they were at Order (a Resource List),
	// and shows no later change.
	Baseline bool
	// Complete: the document is a complete enumeration, so presence revives what is
	// deleted, and a deletion does not count as seen alive (A5).
	Complete bool
	// Current: the document has the Source's current state (a list of OAI-PMH). So an
	// earlier stamp than the stored one applies, and of several items of a record with
	// one stamp the last. Where nothing orders the items: it is later than the deletion that was
	// met before it.
	Current bool
	// Present: the document shows only that the record exists, as the log has it: the
	// record counts as seen, and nothing changes.
	Present bool
	// Late: the stamp is later than the answer's own date (A3).
	Late bool
	// Open is how much later than Order its change may have been, where the Source states a day or a
	// minute, and no second.
	Open time.Duration
	// Answer is the answer of the record's own URL, where nothing else shows whether the
	// item is newer than the stored state.
	Answer Answer
	// Unselected: the configuration selects other records. The record counts as seen, and
	// nothing else changes.
	Unselected bool
	// Quarantine: the item is bad. Its record counts as seen, and nothing else changes.
	// The input itself is in Batch.Quarantine.
	Quarantine bool
}

// Outdates reports whether the item, seen before another one of its record in the same
// walk, makes that one historical and leaves nothing else to learn from it.
func (it *Item) Outdates(later *Item) bool {
	switch {
	case later.Baseline || later.Complete, it.Place.Part != later.Place.Part: // it shows that the record exists
		return false
	case later.Current && later.Order == it.Order:
		return false
	case it.Place.IsZero() && later.Place.IsZero():
		return !later.Order.After(it.Order)
	}
	return !later.Order.Known() || !it.Order.Known() || later.Late || it.Late || !later.Order.After(it.Order)
}

// Quarantined is a piece of bad input, kept whole.
type Quarantined struct {
	ID       int64
	Source   SourceID
	Set      string
	URL      string // of the document it stood in
	Line     int
	Column   int
	Record   string // identifier, when it could be read
	Rule     string // id of the broken rule
	Reason   string
	Input    []byte
	First    Micros // first and last time it was seen
	Last     Micros
	Times    int
	Replayed Micros // when a replay took it in; 0 when none did
}

// QuarantineQuery selects bad input; its zero value is all of it.
type QuarantineQuery struct {
	Set, Rule string   // "" is any
	Source    SourceID // 0 is any
	Waiting   bool     // only what was not replayed
	Newest    bool     // the largest number first
	After     int64    // only what comes after this number in that order; 0 is all
	Limit     int      // 0 is no limit
}

// Cursor is how far the unfinished walk of a Source has come. The log keeps it
// for the harvest and compares its Version; Data is the harvest's own.
type Cursor struct {
	Version int64
	Data    []byte // nil when no walk is under way
}

// Progress is what the log keeps of a Source between and during harvests.
type Progress struct {
	Cursor Cursor
	// Mark is the high-water mark: the largest stamp that was harvested whole.
	Mark Stamp
	// Memory is data of the harvest itself: validators, heads of archives, feed id, …
	Memory []byte
	// Gap is the open gap, "" when there is none (A8).
	Gap string
}

// Mode says what the items of a batch are.
type Mode uint8

// The modes of a batch.
const (
	// ModeWalk: items of the documents of a walk.
	ModeWalk Mode = iota
	// ModeAbsent: deletions of records that a complete enumeration did not
	// have (A5), or that were held and are now released (A6).
	ModeAbsent
	// ModeHold: the same, kept back by the guard (A6).
	ModeHold
	// ModeLeft: one part of the Source does not have records any more, and others
	// do (Place.Part). No event follows.
	ModeLeft
	// ModeRegressed: observations that the walk set aside as regressed, and whose turn
	// comes at its end (A1).
	ModeRegressed
	// ModeSettle: what was pending, fetched now or pending again (A13).
	ModeSettle
	// ModeReplay: bad input that can be taken in after all. Which records were seen does
	// not count, and an item earlier than the stored state changes nothing.
	ModeReplay
	// ModeRepair: the current state of records at a Source whose state in the log
	// differs, found by an audit that has read the whole Source. It applies, whatever its
	// order.
	ModeRepair
	// ModeSubmission: records that were submitted, or dispositions (SIP). There is no
	// walk: each item is the newest report of the Source, the cursor is neither compared
	// nor moved, and Next and Progress are not used.
	ModeSubmission
)

// Left is a record that one part of a Source does not have any more, though
// another one does.
type Left struct {
	Record string
	Part   int
}

// Enumerated is a part of a Source that a complete enumeration has, and the moment that this
// shows of the part. Where that is unknown it is the one of the whole enumeration.
type Enumerated struct {
	Part int
	At   Stamp
}

// Batch is a piece of a harvest. It commits as a whole or not at all (I2).
type Batch struct {
	Source SourceID
	// Cursor is the version of the cursor that the harvest expects to be stored. If
	// another one is stored, nothing is written and Append returns ErrConflict.
	Cursor int64
	// Next is the cursor's new data; nil ends the walk, and forgets which records were
	// seen and which have regressed.
	Next []byte
	// Start begins a new walk: no record counts as seen yet.
	Start bool
	// Progress, when set, replaces what the log keeps besides the cursor.
	Progress *Progress
	// Lazy: where nothing but the cursor would change, it need not be stored yet.
	// A crash then repeats a little of the walk, which changed nothing.
	Lazy bool

	Documents []Document
	// Items are what the documents say. Append fills in what a document may leave out: the
	// Claim, and in mode reference the Loc.
	Items      []*Item
	Quarantine []Quarantined

	// Mode says what the items are.
	Mode Mode
	// Person: what ModeHold keeps back only a person may release.
	Person bool
	// Parts are the parts that the Source has, for ModeAbsent, if it ever had several:
	// its reports in other parts do not count.
	Parts []int

	// Rejections of a batch of ModeSubmission are logged after the items.
	Rejections []Rejection
}

// Rejection is a record that was submitted and rejected. The log has an event of kind
// rejected of it, which belongs to no record and no segment.
type Rejection struct {
	// Record is the identifier, "" when it has none.
	Record           string
	SourceIdentifier string
	Reason           string
	Title            string
}

// Appended is what became of a batch.
type Appended struct {
	// First and Last are the Seq of the events; 0 when there are none.
	First, Last Seq
	// Cursor is the cursor's new version.
	Cursor int64
	// Outcomes has one entry an item.
	Outcomes []Outcome
	// Broken lists items whose record an earlier document of the walk had with an earlier
	// stamp: the documents are in the wrong order (S2).
	Broken []int
	// Created, Updated, Deleted and Rejected count the events.
	Created, Updated, Deleted, Rejected int
	// Dropped counts bad inputs of the Source that were removed from quarantine to
	// make room for newer ones, without having been taken in.
	Dropped int
}

// WaitingItem is an observation that waits in the harvest state: pending or regressed.
type WaitingItem struct {
	Observation
	// Number is the record's, for going on after it.
	Number   int64
	Document Document
	// Flag: of a pending one, that it is partial; of a regressed one, that the stored
	// stamp lay in the future when it was stored.
	Flag   bool
	Reason string
	Tries  int
}

// Due is a pending observation whose content may be asked for.
type Due struct {
	// Number is the record's.
	Number int64
	// Asked is when its content was last asked for, 0 never.
	Asked Micros
}

// Presence is whether a Source has a record, by its last report about it.
type Presence uint8

// The presences.
const (
	// NeverPresent: the Source has never had the record.
	NeverPresent Presence = iota
	// Present: the Source has it, or its content is awaited. This does not mean that the
	// Source is the record's authority (A15).
	Present
	// Withdrawn: the Source has taken it back.
	Withdrawn
)

// Errors of the log that decide what a caller does next.
var (
	// ErrConflict: somebody else has moved the Source's cursor.
	ErrConflict = errors.New("the walk's cursor has moved: another harvest of this Source is under way")
	// ErrUnavailable: the log's database, or the bucket that has contents, cannot be reached at
	// the moment, as while its server is restarted. Nothing was written, and the same call may
	// succeed later.
	ErrUnavailable = errors.New("the server of the data cannot be reached at the moment")
	// ErrClock: the clock has jumped ahead by more than a day (I3).
	ErrClock = errors.New("the clock has jumped ahead by more than a day: nothing is logged until it is put right or confirmed with --accept-clock")
)
