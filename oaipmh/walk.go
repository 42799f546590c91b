package oaipmh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk harvests a repository: it asks for a list, one document after the other, and
// decides where to begin, when to ask again and when to give up. The caller reads and
// stores the records. A Walk is used by one goroutine at a time. Each loop over Documents
// begins anew, with the fields as they are then.
type Walk struct {
	// Client makes every request, one at a time; nil is http.DefaultClient, which has no
	// timeout. The walk does not heed Retry-After, and does not decode a coding such as
	// gzip: both are for the Client's Transport. An error of that with a method PauseUntil()
	// time.Time says that it has not asked, since the server wants no request yet: the walk
	// ends, and can go on later. Its CheckRedirect is called after the walk's own check of where
	// a redirect leads; without one, five redirects are followed.
	Client *http.Client
	// URL is the base URL, or any request that somebody has copied: see ParseURL. What it
	// selects counts where the fields below are zero.
	URL string
	// Prefix is the metadataPrefix, "" is DC. Set is a setSpec, "" all records.
	Prefix, Set string
	// From and Until select by datestamp, both inclusive, in UTC. A time that is finer
	// than the granularity of the repository is rounded to it, and selects more.
	From, Until time.Time
	// Verb is ListRecords, or ListIdentifiers, which has headers alone; "" is
	// ListRecords.
	Verb Verb

	// State is what the last walk with these fields left: Result.State, or the
	// Document.State of the last document that was taken in, from which an
	// unfinished walk goes on. With the zero State everything is read.
	State State
	// Overlap is how far before the mark of State the walk reads again, besides one
	// granule, to find records that the repository lists later than it has stamped them.
	Overlap time.Duration
	// Full reads from the beginning whatever State says. An unfinished walk goes on
	// as it began.
	Full bool
	// Window is how much time, by datestamp, one list may cover, for repositories whose
	// tokens never survive; 0 is one list for all. With a Window datestamps have to be
	// roughly right.
	Window time.Duration
	// InTurn requests a document only when the loop goes on after the one before, and not while
	// the loop takes that in. If that takes minutes, the server may have given up on an answer that
	// nobody read, and the token may not be good a second time.
	InTurn bool

	// MaxDocuments caps the documents of one walk, resumed parts and what was read
	// again included; 0 is 1,000,000.
	MaxDocuments int
	// AllowHost reports whether redirects may lead to a host (without port) other than
	// that of URL; nil allows none. A host that URL itself is redirected to is allowed:
	// the Client has to refuse the hosts that may not be asked at all.
	AllowHost func(host string) bool
	// Limits cap each document.
	Limits Limits
	// Strict checks also the rules that no harvester depends on.
	Strict bool
	// Report is called with each broken rule, from the goroutine of the loop over
	// Documents; nil is allowed.
	Report func(Problem)
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	result Result
}

// State is what a walk leaves for the next one: how far the repository was read, which
// one it is, and, in an unfinished walk, where it goes on. It belongs to the URL, Prefix,
// Set, From, Until and Verb of its Walk, which is not checked. The zero State is that of
// a repository of which nothing was read.
//
// How far the repository was read is the mark of a State: the responseDate of the first
// answer of a walk that has ended whole, or the walk's own clock where that was earlier. It
// is never taken from datestamps. The next walk asks from one granule before it, a day where
// records had days as datestamps.
//
// Its text is JSON. As a field of something that is stored as JSON it is an object.
type State struct{ m *memory }

// Unfinished reports whether the walk goes on with this State where another one
// was broken off.
func (s State) Unfinished() bool { return s.m != nil && s.m.Walk != nil }

// IsZero reports whether this is the State of a repository of which nothing was read.
func (s State) IsZero() bool { return s.m == nil || reflect.ValueOf(*s.m).IsZero() }

// Mark is how far the repository was read, in UTC; zero when no walk has ended whole.
func (s State) Mark() time.Time { return s.memory().Mark }

// BaseURL is the base URL that the repository states for itself, "" when it is not
// known.
func (s State) BaseURL() string { return s.memory().BaseURL }

// MarshalText returns the form in which a State is stored.
func (s State) MarshalText() ([]byte, error) { return json.Marshal(s.memory()) }

// UnmarshalText reads what MarshalText has returned. No text at all is an error.
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

func (s State) memory() memory {
	if s.m == nil {
		return memory{}
	}
	return *s.m
}

// memory is what a State holds.
type memory struct {
	// BaseURL and Earliest are those of the repository's Identity.
	BaseURL  string    `json:"base_url,omitempty"`
	Earliest time.Time `json:"earliest,omitzero"`
	// Mark is when the last whole walk began.
	Mark time.Time `json:"mark,omitzero"`
	// Coarse: datestamps are days, or all of them midnights, where Identify says seconds. They are
	// earlier then than what they are of, by a day at most.
	Coarse bool `json:"coarse,omitempty"`
	// Walk is where an unfinished walk goes on; nil when none is.
	Walk *cursor `json:"walk,omitempty"`
}

// cursor is an unfinished walk.
type cursor struct {
	// Span is the part that the current list covers, Rest are the parts to ask for after
	// it, from the last to the first.
	Span span   `json:"span,omitzero"`
	Rest []span `json:"rest,omitempty"`
	// Token is that of the next request, "" for a list that begins. Listed counts the
	// records of the list so far, Claimed is how many it says that it has, 0 when it does
	// not.
	Token   string `json:"token,omitempty"`
	Listed  int64  `json:"listed,omitempty"`
	Claimed int64  `json:"claimed,omitempty"`
	// Led: a token of the list has led to new records. None is how many records a list had
	// when its next token led to noRecordsMatch: where a list does not say how many it
	// has, that is its end when it comes twice at the same place.
	Led  bool  `json:"led,omitempty"`
	None int64 `json:"none,omitempty"`
	// Ended: the list of Span has come to its end. Again: it was begun a second time.
	Ended bool `json:"ended,omitempty"`
	Again bool `json:"again,omitempty"`
	// Start is the mark to be.
	Start time.Time `json:"start,omitzero"`
	// Documents counts those that were read to their end, Records those in them, Size
	// what the lists claim to have, and Missing what those that have come to their end
	// did not have of it.
	Documents int   `json:"documents"`
	Records   int64 `json:"records,omitempty"`
	Size      int64 `json:"size,omitempty"`
	Missing   int64 `json:"missing,omitempty"`
	// Full: the walk asks from the beginning. Changed and Unsure are those of a Result.
	Full    bool `json:"full,omitempty"`
	Changed bool `json:"changed,omitempty"`
	Unsure  bool `json:"unsure,omitempty"`
	// Days: the repository takes days only, whatever its granularity. Coarse: a datestamp was
	// a day, where Identify says seconds. Midnight, Timed: one was a midnight, or another time.
	Days     bool `json:"days,omitempty"`
	Coarse   bool `json:"coarse,omitempty"`
	Midnight bool `json:"midnight,omitempty"`
	Timed    bool `json:"timed,omitempty"`
	// Failures counts the lists that broke off, Barren those of them that had no record,
	// Lost the spans that were given up, of which First is the first one, and Reason says
	// why.
	Failures int    `json:"failures,omitempty"`
	Barren   int    `json:"barren,omitempty"`
	Lost     int    `json:"lost,omitempty"`
	First    span   `json:"first,omitzero"`
	Reason   string `json:"reason,omitempty"`
	// Hosts are others that the Walk's URL was redirected to.
	Hosts []string `json:"hosts,omitempty"`
}

// span is a part of all records, by their datestamps, both inclusive; zero where it is
// open.
type span struct {
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// Result says what a walk has read.
type Result struct {
	// State is for the next Walk. After a walk that has not ended whole it is the
	// one that this walk began with, so that the next one reads again what this one
	// read; to go on instead use Document.State.
	State State
	// Identity is the repository's description of itself; nil when it was not reached.
	Identity *Identity
	// Whole: every list was read to its end.
	Whole bool
	// Full: the walk was to read all records from the beginning, with neither From nor
	// Until. Where it has ended Whole, an identifier that no record had is not in the
	// repository (any more). It is false where the changes made meanwhile could not be
	// listed.
	Full bool
	// Empty: the walk has ended whole, and no record matched.
	Empty bool
	// Split: lists were asked for again, or in parts, since their tokens did not survive
	// (O3).
	Split bool
	// Documents counts those read to their end, those before the walk was broken off
	// included. When the caller leaves the loop with break, the document of the last turn
	// is not counted.
	Documents int
	// Records counts those of these documents, bad ones and those that came again
	// included, and Size is how many the repository claims to have: the sum over the lists
	// that state it, 0 when none does. It is a hint. Missing is how many fewer records the
	// lists had, at their end, than they claimed: a record that none of them had may exist
	// all the same.
	Records, Size, Missing int64
	// Changed: records have changed, come or gone while a list of several documents was
	// read. A repository whose tokens count records may have left one out then that it
	// has all the time. Unsure: nothing would show that a record was left out: a list of several
	// documents does not say how many it has, or one was asked for in parts, by datestamps, since
	// it broke off.
	Changed, Unsure bool
}

// Documents walks, and returns the documents. Read all Entries of each, and go on with
// the loop: it ends with an error where entries were left unread.
//
// An error of Documents is its last value. To errors.Is and errors.As it is an *Error
// with which the repository answered, a *StatusError, a *DocumentError, one of the
// package's variables, or what the Client has returned, as when ctx is done. That no
// record matches is no error.
//
// Store nothing of a document that was not read to its end (Document.Whole): the walk
// asks again. A record may come more than once, since lists are asked for again and
// records change: of two with one identifier the one with the later Datestamp counts, of
// those with the same the one that came later. After each document that was read to its
// end, Document.State is where an interrupted walk can continue.
//
// The next document is requested as soon as the one before was read.
func (w *Walk) Documents(ctx context.Context) iter.Seq2[*Document, error] {
	return func(yield func(*Document, error) bool) {
		w.result = Result{State: w.State}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		k, err := newWalker(ctx, w)
		if err != nil {
			yield(nil, err)
			return
		}
		defer k.client.Close()
		more := true
		err = k.begin()
		for more && err == nil {
			var doc *Document
			if doc, err = k.next(); doc == nil || err != nil {
				break
			}
			more, err = k.visit(doc, yield)
		}
		w.result = k.result(more && err == nil)
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result returns the result of the last loop over Documents.
func (w *Walk) Result() Result { return w.result }

// Document is one part of a list. It is valid in the body of the loop over
// Walk.Documents.
type Document struct {
	// Index counts the documents of the walk from 0.
	Index int
	// Requested is the URL that was asked for, URL the one that answered after
	// redirects.
	Requested, URL string
	// Date is the HTTP answer's Date, else the walk's clock, in UTC.
	Date time.Time
	// Records counts the records read so far, bad ones included.
	Records int

	k      *walker
	reader *Reader
	answer *follow.Answer
	token  string // that was sent
	news   int    // identifiers that this list did not have before
	ended  bool   // read to its end
	// changed: it is not the first of its list, and has a record that has changed since the
	// walk began.
	changed bool
	// coarse, midnight, timed: those of a cursor, for its own datestamps.
	coarse, midnight, timed bool

	fatal error // what next returned last, if it ends the reading
	held  []Problem
	live  bool
	after cursor // the cursor once this document is done
}

// Answer returns what was read of the answer so far, see Reader.Answer.
func (d *Document) Answer() *Answer { return d.reader.Answer() }

// Entries returns what is left of the records, each as a *Record or as a *RecordError
// for one that cannot be taken. They end where the document ends, and where it cannot
// be read any further, which Walk.Documents then deals with. Whole reports which of the
// two it was.
func (d *Document) Entries() iter.Seq2[*Record, *RecordError] {
	return func(yield func(*Record, *RecordError) bool) {
		for {
			rec, err := d.next()
			var bad *RecordError
			if err != nil && !errors.As(err, &bad) || !yield(rec, bad) {
				return
			}
		}
	}
}

// next returns the next record, see Reader.Next.
func (d *Document) next() (*Record, error) {
	if d.fatal != nil {
		return nil, d.fatal
	}
	rec, err := d.reader.Next()
	switch bad := err.(type) { //nolint:errorlint // Reader.Next returns it bare
	case nil:
		d.Records++
		d.k.met(d, rec.Identifier, rec)
	case *RecordError:
		d.Records++
		id := bad.Header.Identifier
		if id == "" {
			id = string(bad.Input)
		}
		d.k.met(d, id, nil)
	default:
		d.fatal = err
		if d.ended = errors.Is(err, io.EOF); d.ended {
			d.k.read(d)
		}
	}
	return rec, err
}

// Whole reports whether the document was read to its end.
func (d *Document) Whole() bool { return d.ended }

// Err returns what has ended the reading of the document before its end: nil where
// nothing has.
func (d *Document) Err() error {
	if d.ended {
		return nil
	}
	return d.fatal
}

// Input returns the last record whole, see Reader.Input.
func (d *Document) Input() []byte { return d.reader.Input() }

// State returns that of a walk which goes on after this document. Store it in one
// transaction with the records of the document; ok is false until the document was read
// to its end.
func (d *Document) State() (s State, ok bool) {
	if !d.ended {
		return State{}, false
	}
	m := d.k.before
	c := d.after
	c.Rest = slices.Clone(c.Rest) // the walk changes its own as it goes on
	m.Walk = &c
	return State{&m}, true
}

// maxHeld is how many problems in front of the first record are reported.
const maxHeld = 100

func (d *Document) problem(p Problem) {
	if !d.live {
		if len(d.held) < maxHeld {
			d.held = append(d.held, p)
		}
		return
	}
	d.k.reportAll(p)
}
