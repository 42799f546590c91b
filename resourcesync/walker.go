package resourcesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const (
	defaultMaxDocuments = 10_000
	// maxIndexes is how deep indexes may be nested. The standard defines one level.
	maxIndexes = 4
	// maxSteps is how many lists a walk may have to read at a time, unless MaxDocuments is more.
	// Each step takes some 300 bytes.
	maxSteps = 4 * MaxEntries
	// keptValidators is how many lists a State can ask for conditionally.
	keptValidators = 2_000
	// keptProblems bounds what is remembered so as to report it once.
	keptProblems = 10_000
	// movedMost is how many baselines are read one after the other because the lists
	// of each were changed while they were read.
	movedMost = 5
	// keptLost is how many things that are lost a Result names.
	keptLost = 10

	accept = "application/xml, text/xml;q=0.9, text/html;q=0.5, */*;q=0.1"
)

// walker is one walk. Only the goroutine of the loop uses it; the one request that is under way
// ahead of it has its own data.
type walker struct {
	w        *Walk
	ctx      context.Context
	client   *follow.Client
	before   memory // what the State of the Walk holds
	cur      cursor
	read     map[string]readAs // documents of this run, as asked for and as answered
	changes  map[string]bool   // those of them that were read as Change Lists, or as an index of some
	readFor  map[string][]int  // the numbers of the sets of resources that they were asked for
	reported map[Problem]bool  // of documents that may be opened again
	held     *List             // opened, and perhaps the next to be read
	asked    map[int]bool      // streams whose Capability List was asked in this run
	later    map[int]bool      // streams whose Change List was put behind those of the others

	saved   bool // a cursor of this run was to be stored
	unsaved int  // lists since then
	lists   int  // of this run

	ended    bool // the Source has ended
	surveyed bool // discovery was made in this run
	mended   bool // a Capability List that has changed is not Partial, although the Source was
	resumed  bool // an unfinished walk goes on; what it has read before is not known
	resuming bool // its first document has not answered yet
}

// readAs is what a document was read as.
type readAs int

const (
	readList readAs = iota + 1
	readIndex
	readTarget // as a list that another address was redirected to
)

func newWalker(ctx context.Context, w *Walk) (*walker, error) {
	k := &walker{w: w, ctx: ctx, read: map[string]readAs{}, changes: map[string]bool{}, readFor: map[string][]int{}, reported: map[Problem]bool{}, asked: map[int]bool{}, later: map[int]bool{}}
	if w.State.m != nil {
		k.before = *w.State.m
	}
	unfinished := k.before.Walk
	k.before.Walk = nil
	switch {
	case unfinished != nil:
		k.cur, k.resumed, k.resuming = unfinished.clone(), true, true
		for i := range k.cur.Steps {
			k.cur.Steps[i].Validators = follow.Validators{}
		}
	case k.before.URL == w.URL:
		k.cur.Memory = k.before.clone()
		for i := range k.cur.Memory.Streams {
			s := &k.cur.Memory.Streams[i]
			if !w.Full {
				s.before = s.Validators
			}
			if !s.Closed {
				s.opened = s.Open
			}
			s.Validators = nil
		}
	}
	k.cur.Memory.URL = w.URL
	if unfinished == nil {
		k.cur.Full = w.Full
		k.cur.Due = w.Full || k.cur.Memory.Moved > 0 && k.cur.Memory.Moved < movedMost
		if w.Full {
			k.cur.Memory.Hosts = nil
		}
	}
	var err error
	k.client, err = follow.New(follow.Options{HTTP: w.Client, Start: w.URL, AllowHost: w.AllowHost, Hosts: k.cur.Memory.Hosts, Accept: accept, Refused: ErrRefused, Now: w.Now})
	if err != nil {
		return nil, fmt.Errorf("ResourceSync Source: %w", err)
	}
	return k, nil
}

// get asks for a document.
func (k *walker) get(url string, v follow.Validators) (*follow.Answer, error) {
	a, err := k.client.Get(k.ctx, url, v)
	k.cur.Memory.Hosts = k.client.Hosts()
	return a, statusError(err)
}

// statusError makes an error of the client one of this package.
func statusError(err error) error {
	if status, ok := errors.AsType[*follow.StatusError](err); ok {
		return (*StatusError)(status)
	}
	return err
}

func (k *walker) close() {
	if k.held != nil {
		k.held.close()
	}
	k.client.Close()
}

func (k *walker) most() int { return cmp.Or(k.w.MaxDocuments, defaultMaxDocuments) }

func (k *walker) stream(i int) *stream { return &k.cur.Memory.Streams[i] }

// run yields lists until there are no more, and reports whether the loop has taken them
// all.
func (k *walker) run(yield func(*List, error) bool) (ended bool, err error) {
	if !k.resumed {
		if err := k.start(); err != nil || k.ended {
			return true, err
		}
	}
	for {
		l, err := k.next()
		if err != nil || l == nil {
			return true, err
		}
		if more, err := k.yield(l, yield); !more || err != nil {
			return more, err
		}
	}
}

// next returns the list that is read next; nil when the walk has ended.
func (k *walker) next() (*List, error) {
	for {
		if len(k.cur.Steps) == 0 {
			// Was a Change List read that an earlier walk went on without? Then what was
			// absent from the Resource Lists meanwhile was not taken as deleted.
			found := slices.ContainsFunc(k.cur.Memory.Streams, func(s stream) bool { return s.Missed && !s.New.Missed && s.baseline() != "" })
			if k.cur.Planned || !k.cur.Due && !found {
				return nil, nil
			}
			k.planBaseline()
			continue
		}
		s := k.cur.Steps[0]
		k.cur.Steps = k.cur.Steps[1:]
		l, err := k.openList(s)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// passed reports whether the document of a step was read in this run, under another name
// or because two indexes name it.
func (k *walker) passed(s step) bool {
	key := follow.Key(s.URL)
	return s.Sum == "" && k.read[key] != 0 && (!s.Baseline || !k.changes[key]) && !k.instead(s) && !k.shared(s)
}

// shared reports whether the document of a step was read for other sets of resources only. Where
// there are changes it says for each set that names it which resources that has.
func (k *walker) shared(s step) bool {
	key, stream := follow.Key(s.URL), k.stream(s.Stream)
	return k.read[key] != 0 && len(k.readFor[key]) > 0 && !slices.Contains(k.readFor[key], stream.Number) && stream.changes() != ""
}

// note notes that a document was read for a step.
func (k *walker) note(l *List, s step, as readAs) {
	target := as
	if as == readList {
		target = readTarget
	}
	key := follow.Key(l.Requested)
	k.read[follow.Key(l.URL)] = target
	k.read[key], k.changes[key] = as, !s.Baseline
	k.readFor[key] = append(k.readFor[key], k.stream(s.Stream).Number)
}

// instead reports whether an index that was read stands where an index should name a part: an index
// that names itself, or the one that names it.
func (k *walker) instead(s step) bool {
	return s.Baseline && s.Sum == "" && s.Depth > 0 && k.read[follow.Key(s.URL)] == readIndex && !k.shared(s)
}

// openList opens a list; nil when it is not to be read.
func (k *walker) openList(s step) (*List, error) {
	switch {
	case s.Sum != "":
		return nil, k.compare(s)
	case s.Baseline && k.changes[follow.Key(s.URL)]:
		k.cur.Incomplete = true
		k.report(Problem{Rule: ruleMissing, URL: s.URL, Found: "a document that was read as a Change List", Expected: "a Resource List; nothing counts as deleted"}, false)
		return nil, k.countOther(s.URL)
	case k.instead(s):
		k.cur.Incomplete = true
		k.report(Problem{Rule: ruleMissing, URL: s.URL, Found: "an index that was read already, where an index names its lists", Expected: "a Resource List; nothing counts as deleted"}, false)
		return nil, k.countOther(s.URL)
	case k.passed(s):
		return nil, nil
	}
	accepted := slices.Contains(k.w.Accepted, s.URL)
	if accepted && s.Package != nil {
		k.cur.Incomplete = k.cur.Incomplete || s.Baseline
		return nil, nil
	}
	stream := k.stream(s.Stream)
	l, err := k.openStep(s)
	if accepted && err != nil && !k.ends(err) && follow.Status(err) != http.StatusNotModified { // it is still gone
		if !s.Baseline && stream.baseline() != "" {
			return nil, k.handleMissing(s, err)
		}
		k.cur.Incomplete = true
		return nil, k.countOther(s.URL)
	}
	resuming := k.resuming
	k.resuming = false
	switch {
	case follow.Status(err) == 304 && s.Validators != follow.Validators{}:
		k.unchanged(s)
		return nil, nil
	case resuming && follow.Missing(err):
		return nil, fmt.Errorf("%w (%w)", ErrStale, err)
	case errors.Is(err, ErrRefused) && s.Depth == 0 && !s.Baseline && !k.surveyed && !k.resumed:
		return nil, k.discover() // the Source has moved, perhaps
	case missing(err), err != nil && k.ctx.Err() == nil && k.replaceable(s):
		return nil, k.handleMissing(s, err)
	case err != nil && k.failsForLong(s, err, resuming):
		return nil, k.handleMissing(s, err)
	case err != nil && k.postpone(s, err):
		return nil, nil
	case err != nil && k.passOver(s, err):
		return nil, k.countOther(s.URL)
	case err != nil:
		return nil, err
	case k.read[follow.Key(l.URL)] != 0 && !k.shared(s):
		l.close()
		return nil, k.redirected(s, l.URL)
	case s.Baseline && follow.Key(l.URL) != follow.Key(s.URL) && (k.resumed || slices.ContainsFunc(k.cur.Steps, func(o step) bool { return o.Baseline && o.URL == l.URL })):
		if err := k.redirected(s, l.URL); err != nil {
			l.close()
			return nil, err
		}
	}
	l.step, l.Baseline, l.Lists, l.Set, l.resuming = s, s.Baseline, stream.Lists, stream.Number, resuming
	head, want := l.Head(), s.capability()
	archive := want == ChangeList && head.Capability == ChangeListArchive // one that goes on in place of an index
	if c := head.Capability; c != "" && c != want && !archive {
		l.close()
		return nil, k.handleMissing(s, fmt.Errorf("%s is a %s, want a %s", l.URL, c, want))
	}
	if head.Index || s.Dump || archive {
		return nil, k.expand(l)
	}
	if !s.Baseline && s.Depth == 0 {
		if _, replanned, err := k.checkReach(l, head.From.Time(), []step{s}); replanned || err != nil {
			return nil, err
		}
	}
	return l, nil
}

// failsForLong reports whether the walk goes on without a list that fails: it has failed before,
// as far as is known, or has to do so now. resuming: it is what the walk before ended at.
func (k *walker) failsForLong(s step, err error, resuming bool) bool {
	stream, status := k.stream(s.Stream), follow.Status(err)
	first := !stream.Known || k.cur.Full
	if !k.dispensable(s, err) {
		return false
	}
	replaced := !s.Baseline && stream.baseline() != "" // by the Resource List
	if replaced && first && status != 0 {
		return true
	}
	alone := k.cur.Documents == 0 && answered(err) // no other walk could go on here where none was read yet
	long := resuming || s.URL == k.w.Failing || slices.Contains(k.w.Accepted, s.URL) || replaced && (first && alone || stream.Missed || stream.New.Missed)
	if !replaced {
		long = long || k.cur.Gap != nil || alone
	}
	if !long || s.Depth == 0 {
		return long && (len(k.cur.Memory.Streams) > 1 || s.Baseline && k.cur.Documents > 0 && stream.changes() != "")
	}
	return replaced && status != 0 || k.answers(s)
}

// dispensable reports whether a walk may go on without a list that fails with an error.
func (k *walker) dispensable(s step, err error) bool {
	switch status := follow.Status(err); {
	case k.ends(err), errors.Is(err, ErrRefused), errors.As(err, new(*fs.PathError)), errors.As(err, new(interface{ PauseUntil() time.Time })):
		return false
	case status > 0 && status < http.StatusBadRequest, slices.Contains(notAtFault, status), withheld(err):
		return false
	case s.Depth == 0 && status < http.StatusInternalServerError: // the network fails, or who asks is not welcome
		return false
	}
	return true
}

// answered reports whether an error is that of an answer: a status, or a document that breaks off.
// Otherwise it is the network that fails.
func answered(err error) bool {
	return follow.Status(err) != 0 || errors.Is(err, io.ErrUnexpectedEOF)
}

// passOver makes the newest Change List of an index a gap, where the Resource Lists would replace it
// if it fails for long: the others are read, and the next walk knows it as Failing. No walk
// could go on behind it otherwise.
func (k *walker) passOver(s step, err error) bool {
	if s.Baseline || s.Depth == 0 || k.cur.Documents > 0 || !k.dispensable(s, err) || !answered(err) && !k.answers(s) {
		return false
	}
	k.noteGap(Gap{URL: s.URL, Reason: err.Error()})
	return true
}

// postpone puts the Change List, or the index, of one set of several that fails as the first document
// of a walk behind those of the others, once: no walk could go on behind it otherwise.
func (k *walker) postpone(s step, err error) bool {
	if s.Baseline || s.Depth > 0 || k.cur.Documents > 0 || k.later[s.Stream] || k.ends(err) || withheld(err) || follow.Status(err) < http.StatusInternalServerError {
		return false
	}
	i := slices.IndexFunc(k.cur.Steps, func(o step) bool { return o.Baseline })
	if i < 0 {
		i = len(k.cur.Steps)
	}
	if i == 0 || slices.ContainsFunc(k.cur.Steps[:i], func(o step) bool { return o.Stream == s.Stream }) {
		return false // of one set the newest list comes first
	}
	k.later[s.Stream] = true
	k.cur.Steps = slices.Insert(k.cur.Steps, i, s)
	return true
}

// notAtFault are answers that say nothing of the document: a login is wanted, or fewer requests.
var notAtFault = []int{http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusTooManyRequests}

// withheld reports whether a bridge has not walked all its own Sources yet.
func withheld(err error) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.Partial != ""
}

// answers reports whether the index that has led to a step can be had, so that it is not the
// server that fails, or the network.
func (k *walker) answers(s step) bool {
	stream := k.stream(s.Stream)
	index := stream.changes()
	if s.Baseline {
		index = k.baseline(s.Stream).URL
	}
	l, err := k.open(index, follow.Validators{})
	if err == nil {
		l.close()
	}
	return err == nil || missing(err)
}

// capability is what the document of a step must be.
func (s *step) capability() Capability {
	switch {
	case s.Baseline && s.Package != nil:
		return ResourceDumpManifest
	case s.Package != nil:
		return ChangeDumpManifest
	case s.Baseline && s.Dump:
		return ResourceDump
	case s.Dump:
		return ChangeDump
	case s.Baseline:
		return ResourceList
	}
	return ChangeList
}

// openStep opens the document of a step, or the manifest of its package.
func (k *walker) openStep(s step) (*List, error) {
	if s.Package != nil {
		return k.openPackage(s)
	}
	return k.open(s.URL, s.Validators)
}

// replaceable reports whether a list can be read instead of a dump, or of a package.
func (k *walker) replaceable(s step) bool {
	if s.Baseline {
		return (s.Dump || s.Package != nil) && k.stream(s.Stream).ResourceList != ""
	}
	return s.Package != nil && s.URL != s.Package.URL
}

// open asks for a document of the framework and reads its head.
func (k *walker) open(url string, v follow.Validators) (*List, error) {
	if h := k.held; h != nil {
		k.held = nil
		if h.Requested == url && v == (follow.Validators{}) {
			return h, nil
		}
		h.close()
	}
	a, err := k.get(url, v)
	if err != nil {
		return nil, err
	}
	l, err := newList(k, a, unpacked(a))
	if err != nil {
		a.Close()
		return nil, err
	}
	return l, nil
}

// hold keeps an open list for when it is the next one to be read.
func (k *walker) hold(l *List) {
	if k.held != nil {
		k.held.close()
	}
	k.held = l
}

// yield yields a list, which the loop reads to its end, and asks for the next one
// meanwhile. It reports whether the loop wants another.
func (k *walker) yield(l *List, yield func(*List, error) bool) (more bool, err error) {
	defer l.close()
	if k.cur.Documents >= k.most() {
		return true, &TooManyError{URL: l.Requested, Read: k.most()}
	}
	k.note(l, l.step, readList)
	l.Index = k.cur.Documents
	l.live = true
	if len(k.cur.Steps) > 0 && k.cur.Documents+1 < k.most() {
		s := &k.cur.Steps[0]
		url := s.URL
		if s.Package != nil {
			url = s.Package.Copy // the package itself may be of no use
		}
		if url != "" && k.read[follow.Key(s.URL)] == 0 && !slices.Contains(k.w.Accepted, s.URL) && k.client.Allowed(url) == nil {
			k.client.Ahead(k.ctx, url, s.Validators)
		}
	}
	if !yield(l, nil) {
		return false, nil
	}
	switch {
	case faulty(l.fatal):
		return true, k.handleMissing(l.step, l.fatal)
	case l.fatal != nil && l.fatal != io.EOF:
		if k.failsForLong(l.step, l.fatal, l.resuming) {
			return true, k.handleMissing(l.step, l.fatal)
		}
		if k.passOver(l.step, l.fatal) {
			return true, k.countOther(l.step.URL)
		}
		return true, l.fatal
	case !l.ended:
		return true, fmt.Errorf("%s: %w: read all its Entries", l.URL, errUnread)
	}
	return true, nil
}

// report passes a problem on. Documents that are not visited may be opened
// several times; their problems are reported once.
func (k *walker) report(q Problem, live bool) {
	if k.w.Report == nil {
		return
	}
	if !live {
		if k.reported[q] {
			return
		}
		if len(k.reported) < keptProblems {
			k.reported[q] = true
		}
	}
	k.w.Report(q)
}

// ends reports whether an error ends the walk although it could do without the document.
func (k *walker) ends(err error) bool {
	return k.ctx.Err() != nil || k.w.Ends != nil && k.w.Ends(err)
}

// missing reports whether a list is missing: it is gone, or is no document
// of the framework. 401, 403 and 5xx may pass.
func missing(err error) bool { return follow.Missing(err) || faulty(err) }

// faulty reports whether a document, or a package, is itself at fault.
func faulty(err error) bool {
	var fault *DocumentError
	var refused *DumpError
	return errors.As(err, &fault) || errors.As(err, &refused)
}

func (k *walker) result(whole bool) Result {
	c := &k.cur
	lost := slices.Clone(c.Lost)
	if c.Moved {
		lost = append(lost, "the Resource Lists were changed while they were read, so that some resources may be missing")
	}
	if c.MoreLost > 0 {
		lost = append(lost, fmt.Sprintf("and %d times more", c.MoreLost))
	}
	r := Result{Ended: k.ended, Full: c.Full, Empty: c.Empty, Gap: c.Gap, Documents: c.Documents, Dialects: c.Dialects, Lost: strings.Join(lost, "; ")}
	lists := 0
	for i := range c.Memory.Streams {
		if c.Memory.Streams[i].baseline() != "" {
			lists++
		}
		if c.Memory.Numbers > 1 {
			r.Sets = append(r.Sets, c.Memory.Streams[i].Number)
		}
	}
	r.Baseline = c.Planned && lists > 0
	whole = whole && !k.ended
	r.Complete = whole && r.Baseline && !c.Incomplete && !c.Memory.Partial && c.Gap == nil && lists == len(c.Memory.Streams)
	if r.Baseline && !c.Timeless {
		r.At = c.At
		for i := range r.Sets {
			r.Ats = append(r.Ats, latest(c.At, c.Memory.Streams[i].New.At))
		}
	}
	if whole && c.Gap == nil {
		r.NotModified = c.Documents == 0 && !c.Due && len(c.Lost) == 0
		m := c.Memory.clone()
		m.complete(r.Baseline, c.Moved || c.Mixed)
		r.State, r.Mark = State{&m}, m.mark()
	} else {
		before := k.before
		if c.Documents > 0 {
			before.takeNumbers(&c.Memory, k.most())
		}
		r.State, r.Mark = State{&before}, c.Memory.mark()
	}
	return r
}

// mark is the earliest mark of the streams that have one.
func (m *memory) mark() time.Time {
	var earliest time.Time
	for i := range m.Streams {
		if t := m.Streams[i].Mark; !t.IsZero() && (earliest.IsZero() || t.Before(earliest)) {
			earliest = t
		}
	}
	return earliest
}

// expand puts the lists that an index names in its place.
func (k *walker) expand(l *List) error {
	s, head := l.step, l.Head()
	if s.Depth >= maxIndexes {
		l.close()
		return k.handleMissing(s, fmt.Errorf("%s: indexes are nested more than %d deep", l.URL, maxIndexes))
	}
	if s.Depth > 0 && head.Index {
		l.broken(ruleNested, "an index in an index", "a list; it is followed")
	}
	at := head.At.Time()
	moment := at
	if !s.Baseline {
		moment = l.Date
	}
	var lists []step
	var sum []string
	var open time.Duration // how much later a border may be than it says: one may be a date
	whole, err := l.entries(func(e *Entry) {
		m := &e.Metadata
		open = max(open, l.reader.openBorder)
		sum = append(sum, e.Loc, e.LastMod.String(), m.At.String())
		next := step{Stream: s.Stream, URL: e.Loc, Baseline: s.Baseline, Depth: s.Depth + 1,
			From: m.From.Time(), Until: l.until(e), At: m.At.Time(), IndexAt: moment}
		if s.Dump && !head.Index {
			next.Package = packageOf(e)
			if t := next.At; s.Baseline && !t.IsZero() && !l.Late(t) { // what is later is not in the dump
				k.stream(s.Stream).New.At = earliest(k.stream(s.Stream).New.At, t)
			}
		} else {
			next.Dump = s.Dump
		}
		lists = append(lists, next)
	})
	if faulty(err) {
		return k.handleMissing(s, err)
	}
	if err != nil {
		return err
	}
	if err := k.countOther(l.URL); err != nil {
		return err
	}
	if most := max(maxSteps, k.most()); len(lists)+len(k.cur.Steps) > most {
		return fmt.Errorf("%s: %w: its indexes name more than %d lists; if the Source is that large, raise the cap", l.URL, ErrTooManyDocuments, most)
	}
	k.note(l, s, readIndex)
	k.cur.Memory.validate(s.Stream, l)
	if len(lists) == 0 && (s.Baseline || !s.Dump) { // nothing may have changed yet
		k.cur.Empty = k.cur.Empty || s.Baseline
		l.broken(ruleEmpty, "an index without a list", "the lists of the Source")
	}
	if !s.Baseline {
		return k.expandChanges(l, lists, open, whole)
	}
	stream := k.stream(s.Stream)
	k.cur.Incomplete = k.cur.Incomplete || !whole || s.Dump && len(lists) == 0 // no manifest enumerates anything
	if !at.IsZero() {
		k.cur.moment(l, at)
	}
	if s.Depth == 0 {
		stream.Parts = nil
	}
	dated := true
	for i := range lists {
		dated = dated && !lists[i].At.IsZero()
		// One more than can be asked for shows settle that there are too many.
		if stream.changes() == "" && lists[i].Package == nil && len(stream.Parts) <= keptValidators {
			stream.Parts = append(stream.Parts, lists[i].URL)
		}
	}
	if !dated {
		lists = append(lists, step{Stream: s.Stream, URL: l.Requested, Baseline: true, Dump: s.Dump, Depth: s.Depth, Sum: digest(sum)})
	}
	k.cur.Steps = merge(lists, k.cur.Steps)
	return nil
}

// expandChanges plans the lists of a Change List Index that are needed. A list may reach so much
// further than its until says as open.
func (k *walker) expandChanges(l *List, lists []step, open time.Duration, whole bool) (err error) {
	s, stream := l.step, k.stream(l.step.Stream)
	sorted := chronological(lists)
	if i := slices.IndexFunc(sorted, func(s step) bool { return s.From.IsZero() }); i >= 0 {
		l.broken(ruleFrom, "no from on "+sorted[i].URL, "one on every list, so that a Destination knows where it begins")
	}
	reach(sorted)
	if n := len(sorted); n > 0 && sorted[n-1].Until.IsZero() {
		sorted[n-1].Until = s.Until
	}
	for i := 1; i < len(sorted); i++ {
		if until, from := sorted[i-1].Until, sorted[i].From; !until.IsZero() && until.Before(from) {
			l.broken(ruleHole, fmt.Sprintf("%s reaches to %s, and %s begins at %s", sorted[i-1].URL, stamp(until), sorted[i].URL, stamp(from)), "no time between them")
		}
	}
	older := false // lists of the archive are to be read too
	if s.Depth == 0 {
		// An index may say an earlier from, of lists that it has dropped since.
		oldest := l.Head().From.Time()
		if len(sorted) > 0 && !sorted[0].From.IsZero() {
			oldest = sorted[0].From
		}
		var replanned bool
		if older, replanned, err = k.checkReach(l, oldest, sorted); replanned || err != nil {
			return err
		}
		stream.Open, stream.Closed = nil, !s.Dump || l.Head().Index || !l.open()
	}
	if !whole {
		k.noteLost("some Change Lists may be unknown, because an entry of " + l.URL + " cannot be read")
	}
	for i := range sorted {
		// A list that is closed now has changed: a 304 would be that of a cache.
		if sorted[i].Until.IsZero() || !slices.Contains(stream.opened, sorted[i].URL) {
			sorted[i].Validators = stream.before[sorted[i].URL]
		}
		if sorted[i].Until.IsZero() && sorted[i].Package == nil {
			stream.Open, stream.Closed = append(stream.Open, sorted[i].URL), false
		}
	}
	// To know all changes since a moment, the lists from the first that reaches to it.
	since := k.since(stream)
	first := slices.IndexFunc(sorted, func(s step) bool { return s.Until.IsZero() || !s.Until.Add(open).Before(since) })
	if n := len(sorted); n > 0 && len(stream.Open) == 0 && sorted[n-1].Package == nil {
		stream.Open = []string{sorted[n-1].URL}
		if first < 0 && stream.Known {
			first = n - 1
		}
	}
	if first < 0 {
		return nil
	}
	// All lists newer than one that was not read before are read again, although they
	// have not changed: else an older change would be the first that is met of its
	// resource.
	wanted := sorted[first:]
	if err := k.substitute(stream, wanted); err != nil {
		return err
	}
	fresh := slices.IndexFunc(wanted, func(s step) bool { return s.Validators == follow.Validators{} })
	for i := range wanted {
		if older || fresh >= 0 && i > fresh {
			wanted[i].Validators = follow.Validators{}
		}
	}
	slices.Reverse(wanted)
	k.cur.Steps = merge(wanted, k.cur.Steps)
	return nil
}

// since is the moment after which the changes of a stream are wanted.
func (k *walker) since(s *stream) time.Time {
	switch {
	case !s.Known:
		return s.New.At
	case s.Missed && !s.At.IsZero():
		return s.At
	case s.Mark.IsZero():
		return time.Time{}
	}
	return earliest(s.Mark.Add(-k.w.Overlap), s.Stale)
}

// checkReach compares where the Change List of a stream, or the index of some lists, begins
// and ends with what has been read. When changes may be missing, the Capability List is
// asked once more; replanned: the plan has changed then. If they are still missing, the
// archive may have them; older: lists of it are to be read too.
func (k *walker) checkReach(l *List, oldest time.Time, lists []step) (older, replanned bool, err error) {
	s, stream := l.step, k.stream(l.step.Stream)
	covered := latest(latest(stream.Mark, stream.Covered), s.Behind)
	late := stream.Known && !covered.IsZero() && oldest.After(covered)
	closed := !l.Head().Index && !l.open() && !k.surveyed && !k.asked[s.Stream] && stream.CapabilityList != ""
	if (late || closed) && !s.Again {
		return false, true, k.again(l, late)
	}
	known := covered
	if !stream.Known {
		known = stream.New.At
	}
	if behind := !known.IsZero() && oldest.After(known); !s.Dump && (behind || !stream.Known && known.IsZero() && stream.baseline() == "") {
		reaches, err := k.addArchived(s.Stream, k.since(stream), known, oldest, lists)
		if err != nil {
			return false, false, err
		}
		older = reaches.Before(oldest)
		oldest = reaches
	}
	late = stream.Known && !covered.IsZero() && oldest.After(covered)
	switch {
	case !stream.Known && stream.New.At.IsZero() && stream.baseline() != "": // it may be that of the baseline is not known yet
		stream.New.Owed = latest(stream.New.Owed, oldest)
	case late:
		stream.New.Owed = latest(stream.New.Owed, oldest)
		k.noteLost(fmt.Sprintf("the changes from %s to %s are no longer in %s", stamp(covered), stamp(oldest), l.URL))
	case !stream.Known && !stream.New.At.IsZero() && oldest.After(stream.New.At) && k.baseline(s.Stream).Dump && stream.ResourceList != "":
		stream.New.At = time.Time{}
		k.readList(s.Stream)
		if err := k.peek(); err != nil {
			return false, false, err
		}
		return k.checkReach(l, oldest, lists)
	case !stream.Known && !stream.New.At.IsZero() && oldest.After(stream.New.At):
		stream.New.Owed = latest(stream.New.Owed, oldest)
		l.broken(ruleReach, "Change Lists that begin at "+stamp(oldest), "not later than the Resource List's at, "+stamp(stream.New.At)+"; what changed between is missing until there is a newer Resource List")
	}
	return older, false, nil
}

// again asks the Capability List whether the Change List is another one by now.
func (k *walker) again(l *List, late bool) error {
	s := l.step
	if err := k.tolerate(k.ask(s.Stream), namesLists); err != nil {
		l.close()
		return err
	}
	stream := k.stream(s.Stream)
	next := step{Stream: s.Stream, URL: stream.changes(), Dump: stream.dumpedChanges()}
	if next.URL == "" { // this one is read all the same
		next.URL, next.Dump = s.URL, s.Dump
	}
	delete(k.read, follow.Key(l.Requested)) // of an index no list was read
	delete(k.read, follow.Key(l.URL))
	if next.URL == s.URL {
		next.Again, next.Behind = true, s.Behind
		if late {
			l.close()
		} else {
			k.hold(l)
		}
		k.cur.Steps = append([]step{next}, k.cur.Steps...)
		return nil
	}
	l.close()
	steps := []step{next}
	if until := l.Head().Until.Time(); !l.Head().Index && !until.IsZero() && !until.Add(l.reader.openBorder).Before(k.since(stream)) {
		steps[0].Behind = until
		steps = append(steps, step{Stream: s.Stream, URL: s.URL, Dump: s.Dump, Again: true, Until: until})
	}
	k.cur.Steps = merge(steps, k.cur.Steps)
	return nil
}

// ask reads the Capability List of a stream again, if it has changed. When it
// names no list any more, the stream stays as it is. It is done once in a run,
// unless the Change List turns out to be behind.
func (k *walker) ask(stream int) error {
	s := k.stream(stream)
	k.asked[stream] = true
	if s.CapabilityList == "" {
		return nil
	}
	l, err := k.open(s.CapabilityList, s.Named)
	if follow.Status(err) == http.StatusNotModified && s.Named != (follow.Validators{}) {
		return nil
	}
	if err != nil {
		return err
	}
	named, err := readContents(l)
	if err != nil {
		return err
	}
	s.Named = l.answer.Validators
	k.mended = k.cur.Memory.Partial && !named.partial
	k.cur.Memory.Partial = k.cur.Memory.Partial || named.partial
	if named.changes() != "" || named.baseline() != "" {
		k.rename(s, named.Lists)
	}
	return nil
}

// namesLists is the Expected of a Problem with a Capability List.
const namesLists = "the Capability List, which may name another list"

// tolerate reports a document that is missing or fails, and without which the walk goes
// on. It returns any other error.
func (k *walker) tolerate(err error, expected string) error {
	if !missing(err) && follow.Status(err) < http.StatusInternalServerError {
		return err
	}
	k.report(Problem{Rule: ruleMissing, URL: k.w.URL, Found: err.Error(), Expected: expected}, false)
	return nil
}

// unchanged takes note of a list that answered 304. Of an index the open lists
// are asked all the same: they grow without it.
func (k *walker) unchanged(s step) {
	stream := k.stream(s.Stream)
	if stream.Validators == nil {
		stream.Validators = map[string]follow.Validators{}
	}
	stream.Validators[s.URL] = s.Validators
	if s.Depth > 0 {
		return
	}
	maps.Copy(stream.Validators, stream.before)
	var open []step
	for _, url := range slices.Backward(stream.Open) {
		open = append(open, step{Stream: s.Stream, URL: url, Dump: s.Dump, Depth: 1, Validators: stream.before[url]})
	}
	k.cur.Steps = merge(open, k.cur.Steps)
}

// handleMissing decides what a needed list that is missing means.
func (k *walker) handleMissing(s step, why error) error {
	stream := k.stream(s.Stream)
	if s.Depth == 0 && follow.Missing(why) && !k.surveyed && !k.resumed {
		return k.discover()
	}
	if err := k.countOther(s.URL); err != nil {
		return err
	}
	k.report(Problem{Rule: ruleMissing, URL: s.URL, Found: why.Error(), Expected: "a list of the Source"}, false)
	if k.replaceable(s) {
		if !s.Baseline {
			s.Package = nil
			k.cur.Steps = append([]step{s}, k.cur.Steps...)
			return nil
		}
		stream.New.Missed = stream.New.Missed || stream.New.Skipped
		k.cur.Mixed = k.cur.Mixed || k.cur.Dumped
		k.cur.Incomplete = k.cur.Incomplete || k.cur.Dumped
		k.readList(s.Stream)
		return nil
	}
	if s.Baseline || stream.baseline() == "" {
		k.noteGap(Gap{URL: s.URL, Reason: why.Error()})
		return nil
	}
	if follow.Missing(why) {
		delete(stream.Validators, stream.changes()) // what the index states of the list is wanted again
		if stream.replaced(s.Until) {
			return nil
		}
	}
	due := k.cur.Due
	stream.New.Owed = latest(stream.New.Owed, s.Until)
	k.noteLost(fmt.Sprintf("the Change List %s is missing (%v)", s.URL, why))
	if !follow.Missing(why) { // it may be readable later; until then its changes are unknown
		k.cur.Incomplete, stream.New.Missed, stream.New.Stale = true, true, earliest(stream.New.Stale, s.Until)
		k.cur.Due = due || !stream.Missed // one baseline makes up for it, not one a walk
	}
	return nil
}

// replaced reports whether a Resource List was read in the place of a Change List that reaches to
// until, or a newer one is waited for already, so that a walk needs no baseline again while the
// index goes on to name that list.
func (s *stream) replaced(until time.Time) bool {
	if until.IsZero() || s.Missed || !s.Stale.IsZero() {
		return false
	}
	reaches := until.Add(time.Minute)
	if until.Equal(until.Truncate(24 * time.Hour)) { // it may be a date, to whose end the list reaches
		reaches = until.Add(24 * time.Hour)
	}
	return !s.At.Before(reaches) || !s.Owed.Before(until)
}

// redirected decides what it means that a list is redirected to another document of the walk.
// Many a server does that with an address that it does not know. Change Lists may have been put
// together, and plain sitemaps often have two addresses; else its own entries are missing.
func (k *walker) redirected(s step, to string) error {
	why := fmt.Errorf("a redirect to %s, which is another document of the Source", to)
	if k.resumed && k.read[follow.Key(to)] == 0 {
		why = fmt.Errorf("a redirect to %s, which may be a document that was read before the walk was broken off", to)
	}
	switch {
	case !s.Baseline && k.read[follow.Key(to)] != readList:
		return k.handleMissing(s, why)
	case s.Baseline && (s.Depth > 0 || k.stream(s.Stream).CapabilityList != ""):
		k.cur.Incomplete = true
		k.report(Problem{Rule: ruleMissing, URL: s.URL, Found: why.Error(), Expected: "a list of its own; nothing counts as deleted"}, false)
		return k.countOther(s.URL)
	}
	return nil
}

// countOther counts a document that is not yielded. Without a cap, an index of
// missing lists could keep a walk busy for days.
func (k *walker) countOther(at string) error {
	if k.cur.Others++; k.cur.Others > k.most() {
		return fmt.Errorf("%s: %w: %d were indexes or missing lists; if the Source is that large, raise the cap and go on", at, ErrTooManyDocuments, k.most())
	}
	return nil
}

// noteGap notes a missing list that nothing replaces.
func (k *walker) noteGap(g Gap) {
	k.cur.Incomplete = true
	if k.cur.Gap == nil && !slices.Contains(k.w.Accepted, g.URL) {
		k.cur.Gap = &g
	}
}

// noteLost notes changes that cannot be read any more. A baseline replaces them.
func (k *walker) noteLost(what string) {
	k.cur.Due = true
	if slices.Contains(k.cur.Lost, what) {
		return
	}
	if len(k.cur.Lost) >= keptLost {
		k.cur.MoreLost++
		return
	}
	k.cur.Lost = append(k.cur.Lost, what)
}

// compare asks again for an index whose parts were read, since the parts do not show whether
// they belong to one snapshot.
func (k *walker) compare(s step) error {
	l, err := k.open(s.URL, follow.Validators{})
	var sum []string
	if err == nil {
		_, err = l.entries(func(e *Entry) { sum = append(sum, e.Loc, e.LastMod.String(), e.Metadata.At.String()) })
	}
	switch {
	case err == nil && digest(sum) == s.Sum:
		return nil
	case err != nil && !missing(err):
		return err
	}
	k.cur.Incomplete, k.cur.Moved = true, true
	k.report(Problem{Rule: ruleStable, URL: s.URL, Found: "an index that was changed while its lists were read",
		Expected: "one snapshot; nothing counts as deleted"}, false)
	return nil
}
