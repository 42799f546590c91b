package resourcesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk is one pass of a Destination over a Source (clause 5.2): it finds the
// Source's lists, chooses those that are needed, and hands them out one at a
// time. What a list says, and storing it, is the caller's. A Walk is used for
// one loop over its Documents at a time.
//
// A Source has one or more sets of resources (clause 9). What the Walk follows
// of a set, its Resource List and its Change List (each may be an index), is
// called a stream.
//
// # Order
//
// Lists are handed out newest first: the Change Lists of all streams from the
// newest to the oldest that is needed, then, when a baseline is due, the
// Resource Lists of all streams. So who takes, for each record, the first list
// that speaks of it (and in that the last entry) has the Source's last word,
// without remembering more than which records were met.
//
// # Which Change Lists
//
// A list reaches to its until, else to the from of the list after it. Needed are
// the lists from the first one that reaches to the stream's mark less Overlap,
// or of which that is unknown. In a stream that was never walked they are those
// that reach to the at of its Resource List, or all.
//
// # When a baseline is due
//
// In the first pass; with Full; in a stream without a Change List; when the
// Change Lists begin later than what has been read (then Capability List and
// index are asked once more before); when a needed Change List is missing, and
// when one that had failed is had; after a baseline whose lists were changed while
// they were read; when a stream has come or gone. When one stream needs a baseline, all that have a
// Resource List get one, since only all of them together say what is absent.
//
// # Steady state
//
// With a State the walk begins at the Change Lists themselves, conditionally.
// When an index answers 304 its open lists are asked all the same: they grow
// without it. A Source Description is asked too, since a new set shows nowhere
// else. A stream that has only a Resource List is asked for that and, when it is
// an index, for every part; when all answer 304 nothing is due.
//
// Where no open Change List is followed, only the Capability List can tell of
// another list (clause 12.1): it is asked first, conditionally. A Change List
// that comes or goes, or another Resource List, makes a baseline due. The newest
// Change List is asked for although it is closed: some Sources go on writing to
// it, which is reported.
type Walk struct {
	// Client makes every request; nil is http.DefaultClient. Its CheckRedirect
	// is called after the walk's own check of where a redirect leads; without
	// one, five redirects are followed.
	Client *http.Client
	// URL is any document of the framework, a sitemap, a page that leads to one,
	// or a bare host; see Discover. http, https, or file when the Client's
	// transport can read it.
	URL string

	// State is what the last walk of this URL left: Result.State, or the List.State
	// of a list that was taken in, from which an unfinished walk goes on. With the
	// zero State the Source is discovered, and everything is read.
	State State
	// Overlap is how far before a stream's mark the walk reads again, to catch
	// changes that were published late.
	Overlap time.Duration
	// Full discovers anew, reads a baseline, and asks unconditionally. An unfinished
	// walk goes on as it began.
	Full bool
	// Accepted are URLs of lists that are known to be gone. They are not asked
	// for.
	Accepted []string

	// MaxDocuments caps the lists of one walk, resumed parts included, and each
	// on their own its indexes and missing lists, and the documents of its
	// discovery; 0 is 10,000.
	MaxDocuments int
	// AllowHost tells whether links and redirects may lead to a host (without
	// port) other than that of URL; nil allows none. It may be called from two
	// goroutines at once. A host that URL itself, or a well-known address of its
	// host, is redirected to needs no leave: the Client has to refuse what may not
	// be asked at all.
	AllowHost func(host string) bool
	// Limits cap each document, as it is once it was unpacked.
	Limits Limits
	// Report is told of each broken rule; nil is allowed. It is called from the
	// goroutine of the loop.
	Report func(Problem)
	// Now is the clock for answers without a Date; nil is time.Now. Nothing else
	// goes by it.
	Now func() time.Time

	result Result
}

// Lists are the documents of one set of resources. What is unknown is "".
type Lists struct {
	// CapabilityList names the others.
	CapabilityList string `json:"capability_list,omitempty"`
	// ChangeList and ResourceList are lists or indexes.
	ChangeList   string `json:"change_list,omitempty"`
	ResourceList string `json:"resource_list,omitempty"`
}

// State is what a walk leaves for the next one: which lists the Source has, how far
// they were read, what makes the next requests conditional and, in an unfinished
// walk, which lists are still to be read. It belongs to the URL of its Walk. The
// zero State is that of a Source of which nothing was read.
//
// Its text is JSON. As a field of something that is stored as JSON it is an object.
type State struct{ m *memory }

// Unfinished reports whether the walk goes on with this State where another one
// was broken off.
func (s State) Unfinished() bool { return s.m != nil && s.m.Walk != nil }

// IsZero reports whether this is the State of a Source of which nothing was read.
func (s State) IsZero() bool { return s.m == nil }

// MarshalText returns the form in which a State is stored.
func (s State) MarshalText() ([]byte, error) {
	if s.m == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(s.m)
}

// UnmarshalText reads what MarshalText has returned.
func (s *State) UnmarshalText(text []byte) error {
	m := new(memory)
	if err := json.Unmarshal(text, m); err != nil {
		return fmt.Errorf("state of a walk: %w", err)
	}
	s.m = m
	return nil
}

// MarshalJSON returns the text as it is.
func (s State) MarshalJSON() ([]byte, error) { return s.MarshalText() }

// UnmarshalJSON reads what MarshalJSON has returned.
func (s *State) UnmarshalJSON(text []byte) error { return s.UnmarshalText(text) }

// memory is what a State holds.
type memory struct {
	// URL is that of the Walk; for another one the memory is of no use.
	URL string `json:"url,omitempty"`
	// Descriptions are the Source Descriptions that led to the streams.
	Descriptions []naming `json:"descriptions,omitempty"`
	Streams      []stream `json:"streams,omitempty"`
	// Numbers counts the numbers that were given to streams.
	Numbers int `json:"numbers,omitempty"`
	// Hosts are others that the Walk's URL was redirected to, and where its
	// documents may be.
	Hosts []string `json:"hosts,omitempty"`
	// Partial: the Source has sets of resources that are not followed.
	Partial bool `json:"partial,omitempty"`
	// Moved counts the baselines in a row whose lists were changed while they were
	// read.
	Moved int `json:"moved,omitempty"`
	// Walk is an unfinished walk; nil when none is.
	Walk *cursor `json:"walk,omitempty"`
}

// naming is a Source Description, or an index of some.
type naming struct {
	URL        string            `json:"url"`
	Validators follow.Validators `json:"validators,omitzero"`
	// Sum is the digest of what it names.
	Sum string `json:"sum"`
}

// stream is what is known of one set of resources.
type stream struct {
	Lists
	times
	// Number is that of the set of resources among all that the Source ever had. It
	// stays.
	Number int `json:"number,omitempty"`
	// New are the times of a walk that has not ended yet.
	New times `json:"new,omitzero"`
	// Known: a walk over the stream has ended whole.
	Known bool `json:"known,omitempty"`
	// Named makes the next request for the Capability List conditional.
	Named follow.Validators `json:"named,omitzero"`
	// Closed: no Change List is open, so that only the Capability List can tell of
	// the next one (clause 12.1).
	Closed bool `json:"closed,omitempty"`
	// Open are the lists in the Change List Index that may still grow, or the
	// newest one when all are closed.
	Open []string `json:"open,omitempty"`
	// Final is the newest Change List as it was when it was found closed.
	Final closing `json:"final,omitzero"`
	// Parts are the lists in the Resource List Index, in a stream without a
	// Change List.
	Parts []string `json:"parts,omitempty"`
	// Validators of the lists, by URL.
	Validators map[string]follow.Validators `json:"validators,omitempty"`

	// before are the Validators of the last walk.
	before map[string]follow.Validators
}

// closing is a closed Change List: its until, and how many entries it had.
type closing struct {
	URL     string    `json:"url"`
	Until   time.Time `json:"until"`
	Entries int       `json:"entries"`
}

// times say how far a stream has been read, by the Source's own clock.
type times struct {
	// Mark is the largest datetime that was read in the Change Lists and did not
	// lie after its answer's Date, or the latest border of one without any
	// datetime; without either, the at of the Resource List; without that, the
	// from of the Change List. It never falls.
	Mark time.Time `json:"mark,omitzero"`
	// Covered is up to when all changes have been read, as far as the Source's
	// own times tell: it is never before Mark. A Change List that begins later
	// leaves something out.
	Covered time.Time `json:"covered,omitzero"`
	// At is that of the last Resource List.
	At time.Time `json:"at,omitzero"`
	// Missed: a Change List failed, or was damaged. It is asked for again, with all
	// that reach to At; once it is had, a baseline is due.
	Missed bool `json:"missed,omitempty"`
}

// cursor is an unfinished walk.
type cursor struct {
	// Steps are the lists that are still to be read, in order.
	Steps []step `json:"steps,omitempty"`
	// Documents counts the lists that were read to their end.
	Documents int `json:"documents"`
	// Others counts indexes, and lists that were not to be had.
	Others int `json:"others,omitempty"`
	// Memory is the one of the next walk, in the making.
	Memory memory `json:"memory"`
	Full   bool   `json:"full,omitempty"`
	// Due: a baseline is due; Planned: its lists are among Steps, or were read.
	Due     bool `json:"due,omitempty"`
	Planned bool `json:"planned,omitempty"`
	// Incomplete: the baseline is no complete enumeration.
	Incomplete bool `json:"incomplete,omitempty"`
	// Moved: the lists of the baseline were changed while they were read. What went
	// from one that was not read yet into one that was is not known.
	Moved bool `json:"moved,omitempty"`
	// At is the earliest at of the baseline; Timeless: some list has none.
	At       time.Time `json:"at,omitzero"`
	Timeless bool      `json:"timeless,omitempty"`
	Gap      *Gap      `json:"gap,omitempty"`
	// Lost says what is lost, and MoreLost counts what is not said.
	Lost     []string `json:"lost,omitempty"`
	MoreLost int      `json:"more_lost,omitempty"`
	Dialects []string `json:"dialects,omitempty"`
}

// Result says what a walk was worth, as far as it came. A walk has ended whole when
// Documents ended without an error, there is no Gap, and the Source has not Ended.
type Result struct {
	// State is for the next Walk, also when nothing has changed. After a walk that
	// has not ended whole it is the one that this walk began with, so that the next
	// one reads again what this one read; to go on instead use List.State.
	State State
	// NotModified: nothing has changed, no list was read.
	NotModified bool
	// Ended: URL answered 410; the Source has ended. Nothing was read.
	Ended bool
	// Baseline: Resource Lists were read.
	Baseline bool
	// Complete: they enumerate all resources of the Source, so that absence from
	// them means deletion. Every stream had a Resource List, read to its end;
	// each loc in it could be read; none stops at 50,000 entries without an
	// index; none was changed while it was read, as far as can be told.
	Complete bool
	// At is the earliest moment that the baseline shows (clause 7, at); zero
	// when one of its lists does not say.
	At time.Time
	// Mark is the earliest of the streams' marks, zero when none has one.
	Mark time.Time
	// Sets are the numbers of its sets of resources (List.Set), if it ever had
	// several.
	Sets []int
	// Lost says in a sentence which changes are not to be had any more, or that some
	// resources may be missing because the baseline was changed while it was read; ""
	// when none are. A baseline was compared if the Source has one, or the next walk
	// reads it again.
	Lost string
	// Gap is a list that is missing and that no baseline makes up for; nil when
	// none is. All others were read.
	Gap *Gap
	// Documents counts the lists read to their end, those before the walk was broken
	// off included.
	Documents int
	// Dialects of the lists, each once, in the order in which they were met.
	Dialects []string
}

// Gap is a missing or unreadable list.
type Gap struct {
	URL    string `json:"url"`
	Reason string `json:"reason"`
}

// String returns both in one line.
func (g Gap) String() string { return g.URL + ": " + g.Reason }

// Errors of a walk that decide what to do next.
var (
	// ErrTooManyDocuments: MaxDocuments were read. The walk can go on from the last
	// List.State with a higher one.
	ErrTooManyDocuments = errors.New("too many documents in one walk")
	// ErrStale: the list where an unfinished walk was to go on is gone; start anew.
	ErrStale = errors.New("the walk cannot be resumed: its next document is gone; start anew")
	// ErrUnread: the loop went on before it had read the list to its end.
	ErrUnread = errors.New("the document was not read to its end")
	// ErrOnlyDumps: the Source publishes its resources in dumps only.
	ErrOnlyDumps = errors.New("the Source has dumps and neither a Resource List nor a Change List; ask its operator for lists")
	// ErrNoBaseline: what the Source had before its Change Lists begin stands in a
	// Resource Dump only.
	ErrNoBaseline = errors.New("the Source has a Resource Dump and Change Lists, and no Resource List, which is missing: dumps are not read, so what it had before its changes would be left out; ask its operator for a Resource List")
	// ErrRefused: a link or redirect leads where the walk may not go.
	ErrRefused = errors.New("address refused")
)

// StatusError is an answer with a status that the walk cannot go on from.
type StatusError struct {
	URL    string
	Status int // of HTTP
	// Partial is the answer's header field Bridge-Partial, "" when it has none. A
	// bridge sends it while its lists do not have all that its own Sources have.
	Partial string
}

// Error returns the status, the URL and what to do.
func (e *StatusError) Error() string { return (*follow.StatusError)(e).Error() }

// Unwrap returns the error of the HTTP client.
func (e *StatusError) Unwrap() error { return (*follow.StatusError)(e) }

// Documents walks, and returns the lists, newest first. Read the entries of each with
// List.Next until it returns io.EOF, or another error that is no *EntryError; then go
// on with the loop, which knows what that error means: a list that cannot be read
// counts as missing, any other error ends the walk. An error of Documents is its last
// value. When the loop has ended, Result says what the walk was worth.
//
// Of a list that was not read to io.EOF nothing should be taken: the next walk reads
// it again. After each other one List.State is where the walk can go on should it be
// broken off.
//
// The next list is requested while the one before is read.
func (w *Walk) Documents(ctx context.Context) iter.Seq2[*List, error] {
	return func(yield func(*List, error) bool) {
		w.result = Result{State: w.State}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		p, err := newPass(ctx, w)
		if err != nil {
			yield(nil, err)
			return
		}
		defer p.close()
		ended, err := p.run(yield)
		w.result = p.result(ended && err == nil)
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result returns what the walk of the last Documents was worth.
func (w *Walk) Result() Result { return w.result }

// TooManyError is an ErrTooManyDocuments that says which document was not read.
type TooManyError struct {
	URL  string
	Read int // documents
}

// Error says so, and what to do.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s: %v: %d were read; if the Source is that large, raise the cap and go on", e.URL, ErrTooManyDocuments, e.Read)
}

// Unwrap returns ErrTooManyDocuments.
func (e *TooManyError) Unwrap() error { return ErrTooManyDocuments }
