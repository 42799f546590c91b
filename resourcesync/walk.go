package resourcesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Walk is what a Destination does with a Source (clause 5.2): it finds the
// Source's lists, chooses those that are needed, and yields them one at a time. The
// caller reads and stores their entries. Run one loop over Documents at a time. Each
// loop begins anew, with the fields as they are then.
//
// A Source has one or more sets of resources (clause 9). What the Walk follows
// of a set, its Resource List and its Change List (each may be an index), is
// called a stream. Its mark is the time up to which its changes were read: the latest
// datetime of a change or, before there is one, the at of its Resource List.
//
// # Order
//
// Lists are yielded newest first: the Change Lists of all streams from the
// newest to the oldest that is needed, then, when a baseline is due, the
// Resource Lists of all streams. For each record, the last entry in the first list that
// names it is the newest state. So a caller has to remember only which records it has
// seen.
//
// # Which Change Lists
//
// A list reaches to its until, else to the from of the list after it; where that is a date, to
// the end of the day. Needed are
// the lists from the first one that reaches to the stream's mark less Overlap,
// or of which that is unknown. In a stream that was never walked they are those
// that reach to the at of its Resource List, or all.
//
// # When a baseline is due
//
// In the first walk; with Full; in a stream without a Change List; when the
// Change Lists begin later than what has been read, and the Change List Archive, if there
// is one, does so too (then Capability List and index are asked once more before), or has
// more lists than MaxDocuments; when a needed Change List is missing, or fails for long; and
// when one that had failed can be read again; when a Resource List shows by now what no Change
// List has had; after a baseline whose lists were changed while they were read; when a
// stream has come or gone. When one stream needs a
// baseline, all that have a Resource List get one, since only all of them together show
// what is absent.
//
// # Lists that fail
//
// A list that fails ends the walk, and the next one goes on at it. If a list of an index, or of
// one of several sets of resources, or the Resource List of a stream whose changes were read,
// still fails then, it fails for long: all others are read. So
// it is at once where it has the URL Failing; where it is the first list of a walk; and, of a
// Change List whose stream has a Resource List, in the first walk and with Full. That
// is for 5xx, in an index also for 4xx and, where the index itself can be had, for what breaks off
// or is not answered; it is not for 401, 407 and 429. What nothing replaces, a Resource List or
// the changes of a stream that has none, is a Gap. So is the newest Change List of an index that
// fails as the first list of a walk, until it fails for long.
//
// # Steady state
//
// With a State the walk begins at the Change Lists themselves, conditionally.
// When an index answers 304 its open lists are asked all the same: they grow
// without it. A Source Description is asked too, since a new set shows nowhere
// else. A stream that has only a Resource List is asked for that and, when it is
// an index, for every part; when all answer 304 nothing is due.
//
// Where no open Change List is followed, only the Capability List names
// another list (clause 12.1): it is asked first, conditionally. A Change List
// that comes or goes, or another Resource List, makes a baseline due. The newest
// Change List is asked for although it is closed: some Sources go on writing to
// it, which is reported. A list that the index has closed, and of which a cache still
// had an open copy, is read again in the next walk.
//
// # Dumps
//
// A Resource Dump, or an index of some, is read where there is no Resource List, and a
// Change Dump where there is no Change List. Each of their packages is yielded as a List
// of its own, which reads the manifest: the copy that a link of relation contents names,
// else the one in the package, which is downloaded for it. List.Package has the bytes.
//
// Where there are lists too, they are read, unless the caller wants Contents. Then the first
// baseline of a stream that has changes is its Resource Dump, and packages take the place of
// closed Change Lists of the same time of which nothing was read yet. Where a dump is older
// than the first Change List, or of no use, the lists are read instead. Changes that lie before
// the at of such a dump are left out, but for deletions: the dump has the states that they led
// to.
type Walk struct {
	// Client makes every request; nil is http.DefaultClient, which waits without end. The walk
	// repeats no request and ignores Retry-After: that is for the Client's Transport. (Only a
	// download of a package is resumed.) Its CheckRedirect is called after the walk's own check
	// of where a redirect leads; without one, five redirects are followed.
	Client *http.Client
	// URL is any document of the framework, a sitemap, a page that leads to one, or
	// a host with no path, as in https://example.org; see Discover. http, https, or
	// file when the Client's transport can read it.
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
	// Accepted are URLs of lists that are known to be gone: that they are missing is no Gap.
	// A list is read when it is there again; packages, and what leads to lists, are not asked for.
	Accepted []string

	// Failing is the URL of the Gap of the walk before, "" for none: if that list still fails,
	// the walk goes on without it at once.
	Failing string

	// MaxDocuments caps the lists of one walk, resumed parts included, and each
	// on their own its indexes and missing lists, and the documents of its
	// discovery; 0 is 10,000.
	MaxDocuments int
	// AllowHost reports whether links and redirects may lead to a host (without
	// port) other than that of URL; nil allows none. It may be called from two
	// goroutines at once. A host that URL itself, or a well-known address of its
	// host, is redirected to is allowed: the Client has to refuse what may not be
	// asked at all.
	AllowHost func(host string) bool
	// Contents: the caller wants the bytes of the resources, and not only what the lists
	// say of them. Then the walk reads dumps where they save requests, see Dumps.
	Contents bool
	// Folder is where packages are kept while they are read, one at a time; "" is the
	// system's folder for temporary files. MaxPackage caps the bytes of one; 0 is 16 GiB.
	Folder     string
	MaxPackage int64
	// Ends reports whether an error of the Client ends the walk although it could do without
	// the document, for example because the Client has reached a limit of its own. With nil,
	// none does.
	Ends func(error) bool
	// Limits cap each document, as it is once it was unpacked.
	Limits Limits
	// Report is called with each broken rule; nil is allowed. It is called from the
	// goroutine of the loop.
	Report func(Problem)
	// Now is the clock for answers without a Date, and for how old the next list is that was
	// requested meanwhile; nil is time.Now. It is used for nothing else.
	Now func() time.Time

	result Result
}

// Lists are the documents of one set of resources. What is unknown is "".
type Lists struct {
	// CapabilityList names the others.
	CapabilityList string `json:"capability_list,omitempty"`
	// ChangeList and ResourceList are lists or indexes, and so are the dumps.
	ChangeList   string `json:"change_list,omitempty"`
	ResourceList string `json:"resource_list,omitempty"`
	ChangeDump   string `json:"change_dump,omitempty"`
	ResourceDump string `json:"resource_dump,omitempty"`
	// ChangeListArchive names earlier Change Lists than ChangeList. It is read only where
	// that no longer reaches back to the mark.
	ChangeListArchive string `json:"change_list_archive,omitempty"`
}

// changes returns the document with the changes that is followed, "" for none.
func (l *Lists) changes() string { return cmp.Or(l.ChangeList, l.ChangeDump) }

// baseline returns the document with all resources that is followed, "" for none.
func (l *Lists) baseline() string { return cmp.Or(l.ResourceList, l.ResourceDump) }

// dumpedChanges reports whether the changes are in a dump only.
func (l *Lists) dumpedChanges() bool { return l.ChangeList == "" }

// Result is what a walk has read. A walk has ended whole when Documents ended without an error,
// there is no Gap, and the Source has not Ended.
type Result struct {
	// State is for the next Walk, also when nothing has changed. After a walk that
	// has not ended whole it is the one that this walk began with, so that the next
	// one reads again what this one read, and has the numbers (List.Set) that this one
	// gave; to go on instead use List.State.
	State State
	// NotModified: nothing has changed, no list was read.
	NotModified bool
	// Ended: URL answered 410; the Source has ended. Nothing was read. That is no
	// error.
	Ended bool
	// Full: it was a walk with Full, also when it began in an earlier one.
	Full bool
	// Baseline: the Resource Lists were due, and those that could be had were read.
	Baseline bool
	// Complete: they enumerate all resources of the Source, so that absence from
	// them means deletion. Every stream had a Resource List, read to its end;
	// each loc in it could be read; none stops at 50,000 entries without an
	// index; none leads to another one by a redirect; none was changed while it was read, as
	// far as is known.
	Complete bool
	// Empty: a Resource List, a part of one, or an index of some had no entry, as where a server has lost its
	// database for a while.
	Empty bool
	// At is the earliest moment that the baseline shows (clause 7, at); zero
	// when one of its lists does not say, or says one that is later than its answer.
	At time.Time
	// Ats are the moments that the baseline shows of each of Sets; nil when At is zero, or the
	// Source never had several.
	Ats []time.Time
	// Mark is the earliest of the streams' marks, zero when none has one.
	Mark time.Time
	// Sets are the numbers of its sets of resources (List.Set), if it ever had
	// several.
	Sets []int
	// Lost describes the changes that cannot be read any more, or that some resources may be
	// missing because the baseline was changed while it was read; "" when none are. A baseline
	// was compared if the Source has one, or the next walk reads it again.
	Lost string
	// Gap is a list that is missing and that no baseline makes up for; nil when
	// none is. That is no error: all others were read.
	Gap *Gap
	// Documents counts the lists read to their end, those before the walk was broken
	// off included.
	Documents int
	// Dialects of the lists, each once, in the order in which they were met.
	Dialects []string
}

// Documents walks, and returns the lists, newest first. Read all Entries of each, and
// go on with the loop: it ends with an error where entries were left unread. A list that
// cannot be read to its end counts as missing, any other error ends the walk. When the
// loop has ended, Result is what the walk has read.
//
// An error of Documents is its last value. To errors.Is and errors.As it is a
// *NoSourceError, a *StatusError, one of the package's variables, or what the Client
// has returned, as when ctx is done.
//
// Store nothing of a list that was not read to its end: the next walk reads it again.
// After each list that was, List.State is where an interrupted walk can continue.
//
// The next list is requested while the one before is read, and once more if that takes long.
func (w *Walk) Documents(ctx context.Context) iter.Seq2[*List, error] {
	return func(yield func(*List, error) bool) {
		w.result = Result{State: w.State}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		k, err := newWalker(ctx, w)
		if err != nil {
			yield(nil, err)
			return
		}
		defer k.close()
		ended, err := k.run(yield)
		w.result = k.result(ended && err == nil)
		if err != nil {
			yield(nil, err)
		}
	}
}

// Result returns the result of the last loop over Documents.
func (w *Walk) Result() Result { return w.result }

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
	// Baseline: it is a Resource List, or a part of one, or the manifest of a package of a
	// Resource Dump, and has no changes.
	Baseline bool
	// Lists are the documents of the stream that the list belongs to, and Set its
	// number: 0 as long as the Source has one set of resources. It stays the same
	// from walk to walk.
	Lists Lists
	Set   int
	// Identity is URL, a bar, and the list's from. While it stays, a Change List
	// only grows at its end, so that positions of two walks can be compared.
	Identity string
	walker   *walker
	pack     *Package
	answer   *follow.Answer
	reader   *Reader
	step     step
	ended    bool  // read to io.EOF, and taken into the walker's cursor
	fatal    error // what next returned last, if it ends the reading
	live     bool  // the loop is reading it
	resuming bool  // the walk before ended at it
	// datetime is the largest of the entries, late ones left out; nameless counts
	// bad entries without a readable loc.
	datetime time.Time
	nameless int
	read     int // entries, bad ones included
}

// newList reads the head of an answer whose body is in.
func newList(k *walker, a *follow.Answer, in io.Reader) (*List, error) {
	l := &List{Requested: a.Requested, URL: a.URL, Date: a.Date, walker: k, answer: a}
	l.reader = NewReader(in, ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Limits: k.w.Limits, Report: l.problem})
	if _, err := l.reader.Head(); err != nil {
		return nil, err
	}
	l.identify(a.URL)
	return l, nil
}

// identify sets Identity, once the head was read.
func (l *List) identify(url string) { l.Identity = url + "|" + l.Head().From.String() }

// At returns the moment that a baseline shows: its own at, else that which an index or
// dump states of it, else that of the index itself; zero when none does.
func (l *List) At() Datetime {
	head := l.Head()
	if !l.Baseline {
		return head.At
	}
	for _, t := range []Datetime{head.At, Exact(l.step.At), Exact(l.step.IndexAt)} {
		if !t.Time().IsZero() {
			return t
		}
	}
	return Datetime{}
}

// Package returns the package that the list is the manifest of, nil for other lists.
func (l *List) Package() *Package { return l.pack }

// substitute reports whether a package was read in the place of a Change List.
func (l *List) substitute() bool { return l.pack != nil && l.step.URL != l.pack.ref.URL }

// Head returns the head of the list as far as it was read, see Reader.Document.
func (l *List) Head() *Document { return l.reader.Document() }

// next returns the next entry that the caller needs, see Reader.Next.
func (l *List) next() (*Entry, error) {
	for {
		e, err := l.readEntry()
		if err != nil || !l.inDump(e) {
			return e, err
		}
		l.walker.stream(l.step.Stream).New.Skipped = true
	}
}

// inDump reports whether a change is in the Resource Dump that is read after the list. That has
// its bytes, so that they need not be requested.
func (l *List) inDump(e *Entry) bool {
	k := l.walker
	if !l.live || l.Baseline || e.Metadata.Change == Deleted || e.Metadata.Datetime.IsZero() || !k.cur.Planned || !k.w.Contents {
		return false
	}
	s := k.stream(l.step.Stream)
	return !s.Known && k.baseline(l.step.Stream).Dump && e.Metadata.Datetime.Time().Add(l.OpenTime()).Before(s.New.At)
}

// readEntry reads the next entry, also one that is in a dump.
func (l *List) readEntry() (*Entry, error) {
	e, err := l.reader.Next()
	if err == nil && follow.Foreign(l.URL, e.Loc) && !follow.Foreign(l.walker.w.URL, e.Loc) {
		// Where the walk itself may read local files, a remote list must not name them.
		e, err = nil, &EntryError{Rule: ruleLoc, URL: l.URL, Line: e.Line, Column: e.Column, Loc: e.Loc, ID: e.Metadata.ID,
			Reason: "it names a local file; a list that is not local may only name http and https addresses", Input: l.reader.Input()}
	}
	if l.pack != nil && l.pack.copied != nil && (err == nil || errors.As(err, new(*EntryError))) {
		summarize(l.pack.copied, e)
	}
	switch bad := err.(type) { //nolint:errorlint // Reader.Next returns it bare
	case nil:
		l.read++
		l.datetime = l.later(l.datetime, e.Metadata.Datetime)
	case *EntryError:
		l.read++
		if bad.Loc == "" {
			l.nameless++
		}
	default:
		l.fatal = err
		if err == io.EOF && l.live && !l.ended {
			l.ended = true
			l.walker.cur.advance(l, l.walker.w.Overlap)
		}
	}
	return e, err
}

// Entries returns what is left of the entries, each as an *Entry or as an
// *EntryError for one that cannot be taken. They end where the list ends, and where it
// cannot be read any further, which Walk.Documents then deals with. Whole reports which
// of them it was.
func (l *List) Entries() iter.Seq2[*Entry, *EntryError] {
	return func(yield func(*Entry, *EntryError) bool) {
		for {
			e, err := l.next()
			var bad *EntryError
			if err != nil && !errors.As(err, &bad) || !yield(e, bad) {
				return
			}
		}
	}
}

// Whole reports whether the list was read to its end.
func (l *List) Whole() bool { return l.ended }

// Position is the place of the last entry in the list, from 1; 0 before the
// first.
func (l *List) Position() int { return l.read }

// Input returns the last entry whole, see Reader.Input.
func (l *List) Input() []byte { return l.reader.Input() }

// OpenTime is how exact the datetime of the last entry is, see Reader.OpenTime.
func (l *List) OpenTime() time.Duration { return l.reader.OpenTime() }

// Late reports whether the time of a change lies after the answer's Date, so that it
// must not become the mark. Date has whole seconds: what lies within its second is not
// late.
func (l *List) Late(stamp time.Time) bool { return l.answer.Late(stamp) }

// State returns that of a walk which goes on after this list. Store it in one transaction with
// the list's entries; ok is false until the list was read to its end.
func (l *List) State() (s State, ok bool) {
	if !l.ended {
		return State{}, false
	}
	m, c := l.walker.before, l.walker.cur.clone()
	// What this run would not read again, another one must not read either.
	c.Steps = slices.DeleteFunc(c.Steps, l.walker.passed)
	m.Walk = &c
	return State{&m}, true
}

// stateParts is how many parts of a State may be written for each list.
const stateParts = 64

// Checkpoint reports whether the State after this list is worth storing. A State names all
// lists that are still to be read: storing it after each would cost the square of their number.
// So it is due after the first list, after every list while few are left, and else after so
// many that it is short beside them. A walk from an earlier State reads the lists since then
// again; such a walk has one due after two lists, four, eight and so on as well, so that a few
// more come to a list that fails each time. Call it once for each list.
func (l *List) Checkpoint() bool {
	k := l.walker
	parts := len(k.cur.Steps)
	for _, m := range []*memory{&k.cur.Memory, &k.before} {
		for i := range m.Streams {
			parts += len(m.Streams[i].Validators)
		}
	}
	k.unsaved++
	k.lists++
	again := k.resumed && k.lists&(k.lists-1) == 0
	if k.saved && !again && k.unsaved*stateParts < parts {
		return false
	}
	k.saved, k.unsaved = true, 0
	return true
}

// later returns the later of two times, but none that is late.
func (l *List) later(t time.Time, d Datetime) time.Time {
	if o := d.Time(); !d.IsZero() && o.After(t) && !l.Late(o) {
		return o
	}
	return t
}

// until returns the until that an index or archive states for the list of its last entry; none for
// one that is before its from, and cannot be true.
func (l *List) until(e *Entry) time.Time {
	from, until := e.Metadata.From.Time(), e.Metadata.Until.Time()
	if until.IsZero() || !until.Add(l.reader.openBorder).Before(from) {
		return until
	}
	l.broken(ruleUntil, "until "+stamp(until)+" before from "+stamp(from)+" of "+e.Loc, "until at from or later; the list is read as if it had none")
	return time.Time{}
}

// open reports whether the list may still grow.
func (l *List) open() bool { return l.Head().Until.IsZero() }

func (l *List) problem(p Problem) { l.walker.report(p, l.live) }

// broken reports a rule that the list as a whole breaks.
func (l *List) broken(rule, found, expected string) {
	l.problem(Problem{Rule: rule, URL: l.URL, Found: found, Expected: expected})
}

func (l *List) close() {
	l.answer.Close()
	if l.pack != nil {
		l.pack.close()
	}
}

// entries reads a document that is not yielded, such as an index, to its end,
// and calls each with every entry. whole is false when the loc of an entry could not be
// read. Its entries stay in memory: there may be no more of them than clause 7
// allows.
func (l *List) entries(each func(*Entry)) (whole bool, err error) {
	defer l.close()
	for {
		e, err := l.next()
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
