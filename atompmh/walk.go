package atompmh

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"maps"
	"net/http"
	"reflect"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk follows a logical feed from its subscription document back along the
// prev-archive links (RFC 5005 4), one document at a time. It decides how far back to
// read; the caller reads and stores the entries. A Walk is used by one goroutine at a
// time. Each loop over Documents begins anew, with the fields as they are then.
type Walk struct {
	// Client makes every request; nil is http.DefaultClient, which has no timeout. The
	// walk repeats no request and does not heed Retry-After: that is for the Client's
	// Transport. Its CheckRedirect is called after the walk's own check of where a
	// redirect leads; without one, five redirects are followed.
	Client *http.Client
	// URL of the subscription document: http, https, or file when the Client's
	// transport can read it.
	URL string

	// State is what the last walk of this URL left: Result.State, or the
	// Document.State of the last document that was taken in, from which an
	// unfinished walk goes on. With the zero State everything is read.
	State State
	// Overlap is how far before the mark of State the walk reads again, to catch
	// entries that were committed late. An unfinished walk goes on with the same.
	Overlap time.Duration
	// Full reads to the oldest document whatever State says. An unfinished walk
	// goes on as it began.
	Full bool
	// FeedID is the atom:id that the feed must have; "" is that of State.
	FeedID string
	// Accepted are URLs of archive documents that are known to be gone, such as
	// Gap.URL. The chain counts as ending before them.
	Accepted []string

	// MaxDocuments caps the documents of one walk, resumed parts included; 0 is
	// 10,000.
	MaxDocuments int
	// AllowHost reports whether links and redirects may lead to a host (without port)
	// other than that of URL; nil allows none. It may be called from two goroutines at
	// once. A host that URL itself is redirected to is allowed: the Client has to refuse
	// the hosts that may not be asked at all.
	AllowHost func(host string) bool
	// Limits cap each document.
	Limits Limits
	// Content: the atom:content of an entry is its record, see ReadOptions.Content.
	Content bool
	// Strict checks also the rules that no consumer depends on, see ReadOptions.Strict.
	Strict bool
	// Report is called with each broken rule, from the goroutine of the loop over
	// Documents; nil is allowed.
	Report func(Problem)
	// Now is the clock for answers without a Date, for marks, which are never later, and for
	// how old the next document is that was requested meanwhile; nil is time.Now.
	Now func() time.Time

	result Result
}

// State is what a walk leaves for the next one: how far the feed was read, which
// feed it is, what makes the next request conditional and, in an unfinished walk,
// where it goes on. It belongs to the URL of its Walk, which is not checked. The zero
// State is that of a feed of which nothing was read.
//
// How far the feed was read is the mark of a State: the latest Updated of a walk
// that has ended whole. The next walk ends at the first document with an entry that
// is earlier than the mark less Overlap, unless the document behind may have a later
// one.
//
// Its text is JSON. As a field of something that is stored as JSON it is an object.
type State struct{ m *memory }

// Unfinished reports whether the walk goes on with this State where another one
// was broken off.
func (s State) Unfinished() bool { return s.m != nil && s.m.Walk != nil }

// IsZero reports whether this is the State of a feed of which nothing was read.
func (s State) IsZero() bool { return s.m == nil || reflect.ValueOf(*s.m).IsZero() }

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
	// Mark is the largest stamp that counts as read.
	Mark   time.Time `json:"mark,omitzero"`
	FeedID string    `json:"feed_id,omitempty"`
	// Validators of the subscription document.
	Validators follow.Validators `json:"validators,omitzero"`
	// Heads maps URLs of archive documents to their feed/updated, at most the
	// newest 100.
	Heads map[string]time.Time `json:"heads,omitempty"`
	// Gap is the archive document that was missing, and Target the mark once it is
	// accepted.
	Gap    string    `json:"gap,omitempty"`
	Target time.Time `json:"target,omitzero"`
	// Walk is where an unfinished walk goes on; nil when none is.
	Walk *cursor `json:"walk,omitempty"`
}

// cursor is an unfinished walk.
type cursor struct {
	// Next is the URL of the document that comes next, "" when the chain has
	// ended.
	Next string `json:"next,omitempty"`
	// Documents counts those that were read to their end.
	Documents int `json:"documents"`
	// Entries counts those of these documents, TotalResults is what the first
	// one that says so claims to be there.
	Entries      int64 `json:"entries,omitempty"`
	TotalResults int64 `json:"total_results,omitempty"`
	// Full: the walk reads to the oldest document.
	Full bool `json:"full,omitempty"`
	// Paged: Next is a page (RFC 5005 3), not an archive document.
	Paged bool `json:"paged,omitempty"`
	// Target is the mark to be, once the first document with entries was read.
	Target time.Time `json:"target,omitzero"`
	// Fixed: Target will not change any more. It may be zero then: all stamps were
	// later than the answer's date.
	Fixed bool `json:"fixed,omitempty"`
	// FeedID is the atom:id of the subscription document.
	FeedID string `json:"feed_id,omitempty"`
	// Active: some document had, or may have had, an active entry.
	Active bool `json:"active,omitempty"`
	// Complete: the last document is a complete enumeration.
	Complete bool `json:"complete,omitempty"`
	// Smallest is the earliest stamp of the walk, Last that of the last
	// document, of a page that of its last entry; zero when there was none.
	Smallest time.Time `json:"smallest,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	// Validators of the subscription document, for when the walk has ended.
	Validators follow.Validators `json:"validators,omitzero"`
	// Hosts are others that the Walk's URL was redirected to, and where the
	// chain may go on.
	Hosts []string `json:"hosts,omitempty"`
	// Heads are feed/updated of the archive documents met so far.
	Heads map[string]time.Time `json:"heads,omitempty"`
}

// Result says what a walk has read. A walk has ended whole when Documents ended without
// an error and there is no Gap.
type Result struct {
	// State is for the next Walk. After a walk that has not ended whole it is the
	// one that this walk began with, so that the next one reads again what this one
	// read; to go on instead use Document.State.
	State State
	// NotModified: the subscription document has not changed; nothing was read.
	NotModified bool
	// Ended: the subscription document answered 410; the feed has ended. That is no
	// error.
	Ended bool
	// FeedID is the atom:id of the subscription document, "" when it has none.
	FeedID string
	// Target is the largest stamp in the first document that had entries, or the walk's
	// clock where that is earlier; stamps later than the date of its answer do not count. It
	// is the mark of State once the walk has ended whole. Zero when there is none: the mark
	// stays.
	Target time.Time
	// Full: the walk was to read to the oldest document, as Walk.Full asked for when
	// it began.
	Full bool
	// Documents counts those read to their end, those before the walk was broken off
	// included. When the caller leaves the loop with break, the document of the last turn
	// is not counted.
	Documents int
	// Entries counts those of these documents, bad and historical ones included, and
	// TotalResults is how many the feed claims to have, 0 when it does not say.
	Entries, TotalResults int64
	// Oldest: the walk read the whole logical feed, to its oldest document or to
	// a complete one.
	Oldest bool
	// Complete: the last document was a complete enumeration: fh:complete, read
	// to its end, no active entry in any newer document, and not Short of what the
	// feed claims to have.
	Complete bool
	// Lost: the chain ended while everything in it was later than the mark of State.
	// Archives are missing at its end; deletions may be lost.
	Lost bool
	// Gap is the archive document that is missing; nil when none is. That is no
	// error: what is newer was read, and the mark stays.
	Gap *Gap
}

// Documents walks, and returns the documents, newest first. Read all Entries of each,
// and go on with the loop: it ends with an error where entries were left unread. An
// archive document that cannot be read to its end is the Gap; any other such document
// ends the walk with an error. When the loop has ended, Result says what the walk has
// read.
//
// An error of Documents is its last value. To errors.Is and errors.As it is a
// *StatusError, a *DocumentError, one of the package's variables, or what the Client
// has returned, as when ctx is done.
//
// Store nothing of a document that was not read to its end: the next walk reads it
// again. After each document that was, Document.State is where an interrupted walk can
// continue.
//
// The next document is requested while the one before is read.
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
		doc, err := k.first()
		for err == nil && doc != nil {
			if more, err = k.visit(doc, yield); more && err == nil {
				doc, err = k.next(doc)
			}
			if !more {
				break
			}
		}
		w.result = k.result(more && err == nil)
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result returns the result of the last loop over Documents.
func (w *Walk) Result() Result { return w.result }

// Document is one Atom Feed Document of a walk. It is valid in the body of the loop over
// Walk.Documents.
type Document struct {
	// Index counts the documents of the walk from 0, the subscription document.
	Index int
	// Requested is the URL that was asked for, URL the one that answered after
	// redirects; links are resolved against the latter.
	Requested, URL string
	// Date is the answer's Date, else the walk's clock, in UTC.
	Date time.Time

	// Smallest and Largest are the earliest and latest Updated read so far, zero
	// before the first. Largest leaves out what is Late.
	Smallest, Largest time.Time
	// Active, Deletions and Bad count the entries read so far.
	Active, Deletions, Bad int

	last   time.Time // the Updated read last
	reader *Reader
	answer *follow.Answer
	sum    hash.Hash
	nameless,
	ended bool // a bad entry without a readable id; read to its end
	fatal error // what next returned last, if it ends the reading
	// held are the problems of the head, which count only if the document is
	// visited; live: they go to report at once.
	held   []Problem
	live   bool
	report func(Problem)
	before *memory // what the walk began with
	after  cursor  // the cursor once this document is done
}

// Feed returns the metadata of the feed that was read so far, see Reader.Feed.
func (d *Document) Feed() *Feed { return d.reader.Feed() }

// next returns the next entry, see Reader.Next.
func (d *Document) next() (*Entry, error) {
	if d.fatal != nil {
		return nil, d.fatal
	}
	e, err := d.reader.Next()
	switch bad := err.(type) { //nolint:errorlint // Reader.Next returns it bare
	case nil:
		if e.Kind == Deletion {
			d.Deletions++
		} else {
			d.Active++
		}
		d.last = e.Updated
		if d.Smallest.IsZero() || e.Updated.Before(d.Smallest) {
			d.Smallest = e.Updated
		}
		if e.Updated.After(d.Largest) && !d.Late(e.Updated) {
			d.Largest = e.Updated
		}
	case *EntryError:
		d.Bad++
		d.nameless = d.nameless || bad.ID == ""
	default:
		d.fatal = err
		d.ended = err == io.EOF
		if d.ended {
			d.advance()
		}
	}
	return e, err
}

// Entries returns what is left of the entries, each as an *Entry or as an *EntryError
// for one that cannot be taken. They end where the document ends, and where it cannot
// be read any further, which Walk.Documents then deals with. Whole reports which of the
// two it was.
func (d *Document) Entries() iter.Seq2[*Entry, *EntryError] {
	return func(yield func(*Entry, *EntryError) bool) {
		for {
			e, err := d.next()
			var bad *EntryError
			if err != nil && !errors.As(err, &bad) || !yield(e, bad) {
				return
			}
		}
	}
}

// Whole reports whether the document was read to its end.
func (d *Document) Whole() bool { return d.ended }

// Input returns the last entry whole, see Reader.Input.
func (d *Document) Input() []byte { return d.reader.Input() }

// AppendEntry appends the bytes of the last entry to b, see Reader.AppendEntry.
func (d *Document) AppendEntry(b []byte) []byte { return d.reader.AppendEntry(b) }

// Frame makes a document of entries of this one, see Reader.Frame.
func (d *Document) Frame(entries ...[]byte) []byte { return d.reader.Frame(entries...) }

// Late reports whether an Updated lies after the answer's Date, so that it must not
// become the mark. Date has whole seconds: what lies within its second is not late.
func (d *Document) Late(stamp time.Time) bool { return d.answer.Late(stamp) }

// Complete reports whether the document is a complete enumeration, so that absence
// from it means deletion: it has fh:complete and no further page, no newer document of
// the walk had an active entry or a bad one that may have been active, each of its own
// entries had a readable id and none stood inside of another element, and the feed does not claim to have far more of them. It is
// false until the document was read to its end.
func (d *Document) Complete() bool {
	return d.ended && d.mayComplete() && !d.nameless && d.reader.seen.nested == 0 && !Short(d.after.TotalResults, d.after.Entries)
}

// mayComplete reports whether the document may be Complete, judged by its head alone.
func (d *Document) mayComplete() bool {
	_, paged := d.reader.feed.older()
	return d.reader.feed.Complete && !paged && !d.after.Active
}

// State returns that of a walk which goes on after this document. Store it in one
// transaction with the entries of the document; ok is false until the document was read
// to its end.
func (d *Document) State() (s State, ok bool) {
	if !d.ended {
		return State{}, false
	}
	m := *d.before
	c := d.cursor()
	m.Walk = &c
	return State{&m}, true
}

// cursor returns where the walk goes on after a document that was read to its end.
func (d *Document) cursor() cursor {
	c := d.after
	c.Heads = maps.Clone(c.Heads)
	c.Active = c.Active || d.Active+d.Bad+d.reader.seen.nested > 0
	return c
}

// advance completes the cursor, except for Active: Complete still needs the one of the
// newer documents.
func (d *Document) advance() {
	c := &d.after
	c.Documents++
	c.Entries += int64(d.Active + d.Deletions + d.Bad)
	c.TotalResults = cmp.Or(c.TotalResults, d.reader.feed.TotalResults)
	if d.Index == 0 {
		c.FeedID = d.reader.feed.ID
	}
	c.Complete = d.Complete()
	c.Next, c.Paged = d.reader.feed.older()
	if c.Complete {
		c.Next, c.Paged = "", false
	}
	if c.Last = d.Smallest; c.Paged { // the newest come first, but for some that stay in front
		c.Last = d.last
	}
	if d.Active+d.Deletions == 0 {
		return // it had no entry with a stamp
	}
	if c.Smallest.IsZero() || d.Smallest.Before(c.Smallest) {
		c.Smallest = d.Smallest
	}
	if !c.Fixed {
		c.Fixed, c.Target = true, d.answer.Mark(d.Largest)
	}
}

// older returns the link to the document with older entries, "" when there is none:
// the archive document before, or in a feed that has no archives its next page.
func (f *Feed) older() (href string, paged bool) {
	if f.PrevArchive != "" || f.Archive {
		return f.PrevArchive, false
	}
	for i := range f.Links {
		if f.Links[i].Rel == relNext {
			return f.Links[i].Href, true
		}
	}
	return "", false
}

// maxHeld is how many problems in front of the first entry are reported.
const maxHeld = 100

func (d *Document) problem(p Problem) {
	switch {
	case !d.live && len(d.held) == maxHeld:
	case !d.live:
		d.held = append(d.held, p)
	case d.report != nil:
		d.report(p)
	}
}

// begin reports the held problems.
func (d *Document) begin(report func(Problem)) {
	d.live, d.report = true, report
	for _, p := range d.held {
		d.problem(p)
	}
	d.held = nil
}

func (d *Document) close() { d.answer.Close() }

// bodyHash is the SHA-256 of the body; it is called once all of it was read.
func (d *Document) bodyHash() [sha256.Size]byte {
	return [sha256.Size]byte(d.sum.Sum(nil))
}
