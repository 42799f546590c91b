package resourcesync

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// List is one list of a walk. It is valid until the loop over the walk's lists
// goes on.
type List struct {
	// Index counts the lists of the walk from 0.
	Index int
	// Requested is the URL that was asked for, URL the one that answered after
	// redirects; links are resolved against the latter.
	Requested, URL string
	// Date is the answer's Date, else the walk's clock, in UTC.
	Date time.Time
	// Baseline tells a Resource List, or a part of one, from a Change List.
	Baseline bool
	// Lists are the documents of the stream that the list belongs to, and Set its
	// number: 0 as long as the Source has one set of resources. It stays the same
	// from walk to walk.
	Lists Lists
	Set   int
	// Identity is URL, a bar, and the list's from. While it stays, a Change List
	// only grows at its end, so that positions of two walks can be compared.
	Identity string
	p        *pass
	answer   *follow.Answer
	reader   *Reader
	step     step
	ended    bool  // read to io.EOF, and taken into the pass's cursor
	fatal    error // what Next returned last, if it ends the reading
	live     bool  // it is being visited
	// datetime is the largest of the entries, late ones left out; nameless counts
	// bad entries without a readable loc.
	datetime time.Time
	nameless int
	read     int // entries, bad ones included
}

// newList reads the head of an answer whose body is in.
func newList(p *pass, a *follow.Answer, in io.Reader) (*List, error) {
	l := &List{Requested: a.Requested, URL: a.URL, Date: a.Date, p: p, answer: a}
	l.reader = NewReader(in, ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Limits: p.w.Limits, Report: l.problem})
	head, err := l.reader.Head()
	if err != nil {
		return nil, l.fault(err)
	}
	l.Identity = a.URL + "|" + head.From.String()
	return l, nil
}

// Head returns what the list has said of itself so far, see Reader.Document.
func (l *List) Head() *Document { return l.reader.Document() }

// Next returns the next entry, see Reader.Next.
func (l *List) Next() (*Entry, error) {
	e, err := l.reader.Next()
	if err == nil && follow.Foreign(l.URL, e.Loc) && !follow.Foreign(l.p.w.URL, e.Loc) {
		// A walk that begins at a local document may go to local files otherwise.
		e, err = nil, &EntryError{Rule: ruleLoc, URL: l.URL, Line: e.Line, Column: e.Column, Loc: e.Loc, ID: e.Metadata.ID,
			Reason: "it names a local file; want an http or https address, since the list is not local", Input: l.reader.Input()}
	}
	switch bad := err.(type) { //nolint:errorlint // Reader.Next returns it bare
	case nil:
		l.read++
		l.count(e)
	case *EntryError:
		l.read++
		if bad.Loc == "" {
			l.nameless++
		}
	default:
		err = l.fault(err)
		l.fatal = err
		if err == io.EOF && l.live && !l.ended {
			l.ended = true
			l.p.cur.take(l, l.p.w.Overlap)
		}
	}
	return e, err
}

// Entries returns what is left of the entries, each as an *Entry or as an
// *EntryError for one that cannot be taken. They end where Next returns io.EOF or
// another error, which Walk.Documents then deals with; List.State reports which of
// them it was.
func (l *List) Entries() iter.Seq2[*Entry, *EntryError] {
	return func(yield func(*Entry, *EntryError) bool) {
		for {
			e, err := l.Next()
			var bad *EntryError
			if err != nil && !errors.As(err, &bad) || !yield(e, bad) {
				return
			}
		}
	}
}

// Position is the place of the last entry in the list, from 1; 0 before the
// first.
func (l *List) Position() int { return l.read }

// Input returns the last entry whole, see Reader.Input.
func (l *List) Input() []byte { return l.reader.Input() }

// Late tells whether a stamp lies after the answer's date, so that it must not
// become the mark. Date has whole seconds: a stamp within its second is not
// late.
func (l *List) Late(stamp time.Time) bool { return l.answer.Late(stamp) }

// State returns that of a walk which goes on after this list. It is to be stored in
// one transaction with what the list said; ok is false until Next has returned
// io.EOF.
func (l *List) State() (s State, ok bool) {
	if !l.ended {
		return State{}, false
	}
	m, c := l.p.before, l.p.cur.clone()
	m.Walk = &c
	return State{&m}, true
}

// cursorParts is how many parts of a cursor may be written for each list.
const cursorParts = 64

// Checkpoint reports whether the State after this list is to be stored: it names
// all lists that are still to be read, so that storing it each time would cost the
// square of their number (D121). It is due after every list while few are left,
// after the first one, and else after so many that their share of it is small.
// Who goes on from an earlier one reads the lists since then again. It is to be
// asked once for each list.
func (l *List) Checkpoint() bool {
	p := l.p
	parts := len(p.cur.Steps)
	for i := range p.cur.Memory.Streams {
		parts += len(p.cur.Memory.Streams[i].Validators)
	}
	if p.unsaved++; p.saved && p.unsaved*cursorParts < parts {
		return false
	}
	p.saved, p.unsaved = true, 0
	return true
}

func (l *List) count(e *Entry) {
	if t := e.Metadata.Datetime; !t.IsZero() {
		l.datetime = l.later(l.datetime, t)
	}
}

// later returns the later of two times, but none that is late.
func (l *List) later(t time.Time, d Datetime) time.Time {
	if o := d.Time(); !d.IsZero() && o.After(t) && !l.Late(o) {
		return o
	}
	return t
}

// mark is the largest time of a change. Where no change has one it is the latest
// border of the list, which the Source gives as its own time; what lastmod says is
// not when a change was listed (D5).
func (l *List) mark() time.Time {
	if l.datetime.IsZero() && l.read > 0 {
		return l.later(l.later(time.Time{}, l.Head().From), l.Head().Until)
	}
	return l.datetime
}

// open tells that the list may still grow.
func (l *List) open() bool { return l.Head().Until.IsZero() }

// modified is the answer's Last-Modified; zero when there is none, or a late one.
func (l *List) modified() time.Time {
	t, err := http.ParseTime(l.answer.Validators.LastModified)
	if err != nil || l.Late(t) {
		return time.Time{}
	}
	return t
}

func (l *List) problem(p Problem) { l.p.report(p, l.live) }

// broken reports a rule that the list as a whole breaks.
func (l *List) broken(rule, found, expected string) {
	l.problem(Problem{Rule: rule, URL: l.URL, Found: found, Expected: expected})
}

// fault makes a gzip file that cannot be unpacked the document's own fault.
func (l *List) fault(err error) error {
	var packed *packedError
	if errors.As(err, &packed) {
		return &DocumentError{URL: l.URL, Line: 1, Column: 1, Reason: packed.reason}
	}
	return err
}

func (l *List) close() { l.answer.Close() }

// entries reads a document that is not handed out, such as an index, to its end,
// and tells of each entry. whole is false when the loc of an entry could not be
// read. Its entries stay in memory: there may be no more of them than clause 7
// allows.
func (l *List) entries(each func(*Entry)) (whole bool, err error) {
	defer l.close()
	for {
		e, err := l.Next()
		if l.read > MaxEntries {
			return false, &DocumentError{URL: l.URL, Line: 1, Column: 1, Reason: fmt.Sprintf("more than %d entries; want several documents", MaxEntries)}
		}
		var bad *EntryError
		switch {
		case err == io.EOF:
			return l.nameless == 0, nil
		case errors.As(err, &bad):
			l.problem(Problem{Rule: bad.Rule, URL: bad.URL, Line: bad.Line, Column: bad.Column, Found: bad.Reason, Expected: "a loc that leads to a document"})
		case err != nil:
			return false, err
		default:
			each(e)
		}
	}
}
