package event

import "errors"

// SourceID is the number under which the log knows a Source.
type SourceID int64

// Observation is what a Source said about one record: that it is there with
// these representations, or that it is deleted.
type Observation struct {
	Record  string // identifier, byte for byte
	Deleted bool
	// Fetched: the contents are in the store, and the representations' Hash and
	// Length are theirs.
	Fetched bool
	// Order is the Source's stamp that orders what it says of one record:
	// atom:updated, the datetime of a change, the moment that a list of all
	// records shows. Where it is unknown, what differs at the first meeting
	// applies.
	Order Stamp
	// Place is where in which list it stood, for Sources whose lists order what
	// their stamps do not; zero for others.
	Place Place
	// Modified is when the record was last modified or deleted, at its origin.
	Modified Stamp
	// CopyModified is when the Source's copy was last modified, where the
	// original is elsewhere (Via) and the Source says both.
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
	// Inline is the content of the first representation, where it came with what was
	// said and is not known to be in the store. The log does not keep it.
	Inline []byte
	// ContentBits are 64 bits of a hash of content that came with what was said, and
	// that no representation states: a set that keeps no contents sends others to
	// different bytes. 0 is none.
	ContentBits int64
	// Claim is the digest of what the document said, before anything was
	// fetched: equal claims need no fetching. 0 lets the log take ClaimOf.
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

// Before reports whether a list of changes lies before another one of the same
// set, as far as they say.
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
	// Feed is what else the feed says of itself; nil when it says nothing.
	Feed *Feed
}

// Outcome is what the log made of one observation. That the record is given to
// another Source, since the order of the configuration has changed (A15), is no part
// of it.
type Outcome uint8

// The outcomes of an observation.
const (
	// Logged: the record's state changed, an event was appended.
	Logged Outcome = iota + 1
	// Unchanged: nothing that counts (I5) differs from the stored state.
	Unchanged
	// Historical: the walk has met the record before, with a stamp no earlier.
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
	// Loopback: another bridge gives back what the set has, or had, from a Source
	// of its own. It gives the record no presence.
	Loopback
)

// Answer is what the URL of a record said when it was asked whether an item
// holds.
type Answer uint8

// The answers.
const (
	// Unasked: nobody has asked.
	Unasked Answer = iota
	// Confirmed: what was deleted is gone, what is there answers.
	Confirmed
	// Refuted: it is the other way round, so the item is an old one.
	Refuted
)

// Item is one observation in a batch.
type Item struct {
	Observation
	// Document is an index into the batch's Documents.
	Document int
	// Paths are where the bytes of each representation are in the package that the
	// document describes (ResourceSync 11.2 and 13.2), "" for none; nil where it describes
	// none. The log does not keep them.
	Paths []string
	// Pending is why content could not be fetched; "" when it was, or need not
	// be.
	Pending string
	// Reason is why somebody has decided on a deletion; the event keeps it. ""
	// is a deletion that the Source has told of.
	Reason string
	// After is when it may be asked for again at the earliest, as its server wants
	// it; 0 leaves that to the log.
	After Micros
	// Asked is the observation with all its representations, where Partial has
	// left some out.
	Asked *Observation
	// Partial: not all of its content is Pending. The representations that were
	// fetched are logged, and the others asked again.
	Partial bool
	// Baseline: the document lists all records as they were at Order (a
	// Resource List), and says nothing of what has changed since.
	Baseline bool
	// Complete: the document is a complete enumeration, so presence revives
	// what is deleted and a deletion does not count as met alive (A5).
	Complete bool
	// Current: the document says what the Source has now (a list of OAI-PMH). So an
	// earlier stamp than the stored one applies, and of several items of a record with
	// one stamp the last.
	Current bool
	// Present: the document says no more than that the record is there, as the log
	// knows it: it is met, and nothing changes.
	Present bool
	// Late: the stamp is later than the answer's own date (A3).
	Late bool
	// Answer is what the record's own URL said, where nothing else shows whether
	// the item is newer than what is known.
	Answer Answer
	// Unselected: the configuration selects other records. The record is met, and
	// nothing else changes.
	Unselected bool
	// Quarantine is why the item is bad; its record is met, and nothing else
	// changes. The input itself travels in Batch.Quarantine.
	Quarantine bool
}

// Outdates reports whether the item, met before another one of its record in the
// same walk, makes that one historical and leaves nothing else to learn from it.
func (it *Item) Outdates(later *Item) bool {
	switch {
	case later.Baseline || later.Complete, it.Place.Part != later.Place.Part: // it tells that the record is there
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
	First    Micros // first and last time it was met
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
	// Memory is the harvest's own: validators, heads of archives, feed id, …
	Memory []byte
	// Gap is the open gap, "" when there is none (A8).
	Gap string
}

// Mode says what the items of a batch are.
type Mode uint8

// The modes of a batch.
const (
	// ModeWalk: what the documents of a walk said.
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
	// ModeReplay: bad input that can be taken in after all. Who was met does
	// not count, and what is earlier than the stored state changes nothing.
	ModeReplay
	// ModeRepair: what a Source says now, by an audit that has read all of it, of records
	// of which the log says something else. It applies, whatever its order.
	ModeRepair
	// ModeSubmission: records that were handed in, or dispositions (SIP). There
	// is no walk: each item is the newest word of the Source, the cursor is
	// neither compared nor moved, and Next and Progress are not used.
	ModeSubmission
)

// Left is a record that one part of a Source does not have any more, though
// another one does.
type Left struct {
	Record string
	Part   int
}

// Batch is a piece of a harvest. It commits as a whole or not at all (I2).
type Batch struct {
	Source SourceID
	// Cursor is the version that the harvest believes to be stored. When it is
	// not, nothing is written and Append returns ErrConflict.
	Cursor int64
	// Next is the cursor's new data; nil ends the walk, and its bookkeeping
	// (what was met, what has regressed) with it.
	Next []byte
	// Start begins a new walk: nobody is met yet.
	Start bool
	// Progress, when set, replaces what the log keeps besides the cursor.
	Progress *Progress
	// Lazy: where nothing but the cursor would change, it need not be stored yet.
	// A crash then repeats a little of the walk, which changed nothing.
	Lazy bool

	Documents  []Document
	Items      []Item
	Quarantine []Quarantined

	// Mode says what the items are.
	Mode Mode
	// Person: what ModeHold keeps back only a person may release.
	Person bool
	// Parts are those that the Source has, for ModeAbsent, if it ever had several:
	// what it said last in another one counts for nothing.
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
	// Broken lists items that an earlier document of the walk should have
	// followed: met before with an earlier stamp (S2).
	Broken []int
	// Created, Updated, Deleted and Rejected count the events.
	Created, Updated, Deleted, Rejected int
	// Dropped counts bad inputs of the Source that were removed from quarantine to
	// make room for newer ones, without having been taken in.
	Dropped int
}

// WaitingItem is an observation that waits in the harvest state: pending, or stepped
// back.
type WaitingItem struct {
	Observation
	// Number is the record's, for going on after it.
	Number   int64
	Document Document
	// Flag: of a pending one, that it is partial; of one that was stepped
	// back, that the stored stamp lay in the future when it was stored.
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

// Presence is what a Source has of a record, by what it last said of it.
type Presence uint8

// The presences.
const (
	// NeverPresent: the Source has never had the record.
	NeverPresent Presence = iota
	// Present: the Source has it, or its content is awaited. Whether it is
	// published under this Source's word is another question (A15).
	Present
	// Withdrawn: the Source has taken it back.
	Withdrawn
)

// Errors of the log that decide what a caller does next.
var (
	// ErrConflict: somebody else has moved the Source's cursor.
	ErrConflict = errors.New("the walk's cursor has moved: another harvest of this Source is under way")
	// ErrClock: the clock has jumped ahead by more than a day (I3).
	ErrClock = errors.New("the clock has jumped ahead by more than a day: nothing is logged until it is put right or confirmed with --accept-clock")
)
