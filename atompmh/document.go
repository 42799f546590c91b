package atompmh

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"iter"
	"maps"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

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

	// Smallest and Largest are the earliest and latest stamps read so far, zero
	// before the first. Largest leaves out what is Late.
	Smallest, Largest time.Time
	// Active, Deletions and Bad count the entries read so far.
	Active, Deletions, Bad int

	reader *Reader
	answer *follow.Answer
	sum    hash.Hash
	nameless,
	ended bool // a bad entry without a readable id; read to io.EOF
	fatal error // what Next returned last, if it ends the reading
	// held are the problems of the head, which count only if the document is
	// visited; live tells that they go to report at once.
	held   []Problem
	live   bool
	report func(Problem)
	before *memory // what the walk began with
	after  cursor  // the cursor once this document is done
}

// Feed returns what the feed has said so far, see Reader.Feed.
func (d *Document) Feed() *Feed { return d.reader.Feed() }

// Next returns the next entry, see Reader.Next.
func (d *Document) Next() (*Entry, error) {
	e, err := d.reader.Next()
	switch bad := err.(type) { //nolint:errorlint // Reader.Next returns it bare
	case nil:
		d.count(e)
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

// Entries returns what is left of the entries, each as an *Entry or as an
// *EntryError for one that cannot be taken. They end where Next returns io.EOF or
// another error, which Walk.Documents then deals with; Document.State reports which of
// them it was.
func (d *Document) Entries() iter.Seq2[*Entry, *EntryError] {
	return func(yield func(*Entry, *EntryError) bool) {
		for {
			e, err := d.Next()
			var bad *EntryError
			if err != nil && !errors.As(err, &bad) || !yield(e, bad) {
				return
			}
		}
	}
}

// Input returns the last entry whole, see Reader.Input.
func (d *Document) Input() []byte { return d.reader.Input() }

// AppendEntry appends the bytes of the last entry to b, see Reader.AppendEntry.
func (d *Document) AppendEntry(b []byte) []byte { return d.reader.AppendEntry(b) }

// Frame makes a document of entries of this one, see Reader.Frame.
func (d *Document) Frame(entries ...[]byte) []byte { return d.reader.Frame(entries...) }

// Late tells whether a stamp lies after the answer's date, so that it must not
// become the mark. Date has whole seconds: a stamp within its second is not
// late.
func (d *Document) Late(stamp time.Time) bool { return d.answer.Late(stamp) }

// Complete tells whether the document is a complete enumeration, so that absence
// from it means deletion: it has fh:complete, no newer document of the walk had
// an active entry or a bad one that may have been active, each of its own entries
// had a readable id, and the feed does not claim to have far more of them. It is
// false until Next has returned io.EOF.
func (d *Document) Complete() bool {
	return d.ended && d.mayComplete() && !d.nameless && !Short(d.after.TotalResults, d.after.Entries)
}

// mayComplete is Complete as far as the head can tell.
func (d *Document) mayComplete() bool {
	return d.reader.feed.Complete && !d.after.Active
}

// State returns that of a walk which goes on after this document. It is to be stored
// in one transaction with what the document said; ok is false until Next has
// returned io.EOF.
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
	c.Active = c.Active || d.Active+d.Bad > 0
	return c
}

func (d *Document) count(e *Entry) {
	if e.Kind == Deletion {
		d.Deletions++
	} else {
		d.Active++
	}
	if d.Smallest.IsZero() || e.Updated.Before(d.Smallest) {
		d.Smallest = e.Updated
	}
	if e.Updated.After(d.Largest) && !d.Late(e.Updated) {
		d.Largest = e.Updated
	}
}

// empty tells that the document gives no bound: it had no entry with a stamp.
func (d *Document) empty() bool { return d.Active+d.Deletions == 0 }

// advance completes the cursor, except for Active: Complete still asks for that
// of the newer documents.
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
	c.Last = d.Smallest
	if d.empty() {
		return
	}
	if c.Smallest.IsZero() || d.Smallest.Before(c.Smallest) {
		c.Smallest = d.Smallest
	}
	if !c.Fixed {
		c.Fixed, c.Target = true, d.Largest
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

// open reads the head of an answer.
func open(a *follow.Answer, o ReadOptions) (*Document, error) {
	d := &Document{Requested: a.Requested, URL: a.URL, Date: a.Date, answer: a, sum: sha256.New()}
	o.URL = a.URL
	o.ContentType = a.Header.Get("Content-Type")
	o.Report = d.problem
	d.reader = NewReader(io.TeeReader(a.Body, d.sum), o)
	_, err := d.reader.Head()
	return d, err
}

func (d *Document) problem(p Problem) {
	switch {
	case !d.live:
		d.held = append(d.held, p)
	case d.report != nil:
		d.report(p)
	}
}

// begin lets the held problems out.
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
