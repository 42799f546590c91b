package oaipmh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const (
	defaultMaxDocuments = 1_000_000

	accept = "text/xml, application/xml;q=0.9, */*;q=0.1"

	// maxBarren is how many lists may break off before they have given anything, maxLost
	// how many may be given up. The others are bounded by MaxDocuments.
	maxBarren = 100
	maxLost   = 100
	// maxStale is how many documents in a row may have no new identifier (O2), and maxEmpty
	// how many may have no record at all: some repositories leave out what is not public when
	// they make a document.
	maxStale, maxEmpty = 3, 100
)

// walker is one walk. Only the goroutine of the loop over its documents touches it.
type walker struct {
	w        *Walk
	ctx      context.Context
	client   *follow.Client
	base     string
	ask      Request // what each list has in common
	before   memory  // what the State of the Walk holds
	cur      cursor
	identity *Identity
	once     map[string]bool // rules that were reported
	moved    bool            // a document was read to its end in this run
	whole    bool
	loop     loop
}

func newWalker(ctx context.Context, w *Walk) (*walker, error) {
	k := &walker{w: w, ctx: ctx, before: w.State.memory(), once: map[string]bool{}}
	base, copied, err := ParseURL(w.URL)
	if err != nil {
		return nil, fmt.Errorf("base URL: %w", err)
	}
	k.base = base
	k.ask = Request{
		Verb: cmp.Or(w.Verb, ListRecords), Prefix: cmp.Or(w.Prefix, copied.Prefix, DC), Set: cmp.Or(w.Set, copied.Set),
		From: w.From, Until: w.Until,
	}
	if k.ask.Verb != ListRecords && k.ask.Verb != ListIdentifiers {
		return nil, fmt.Errorf("verb %q: want ListRecords or ListIdentifiers", clip(string(w.Verb)))
	}
	if k.ask.From.IsZero() {
		k.ask.From = copied.From
	}
	if k.ask.Until.IsZero() {
		k.ask.Until = copied.Until
	}
	if k.before.Walk != nil {
		k.cur = *k.before.Walk
		k.cur.Rest = slices.Clone(k.cur.Rest)
	}
	k.client, err = newClient(w.Client, base, w.AllowHost, k.cur.Hosts, w.Now)
	return k, err
}

// newClient returns the client that makes the requests to a repository.
func newClient(client *http.Client, base string, allow func(string) bool, led []string, now func() time.Time) (*follow.Client, error) {
	c, err := follow.New(follow.Options{
		HTTP: client, Start: base, AllowHost: allow, Hosts: led, Accept: accept, Refused: ErrRefused, Now: now, Queries: true, Documents: mayExplain,
	})
	if err != nil {
		return nil, fmt.Errorf("base URL: %w", err)
	}
	return c, nil
}

// mayExplain reports whether an answer with this status may have an error of the
// protocol in it, which says more: some repositories send them so.
func mayExplain(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500 || status == http.StatusInternalServerError
}

func (k *walker) report(p Problem) {
	if k.w.Report != nil {
		k.w.Report(p)
	}
}

// reportAll reports a problem of a document; odd datestamps once, as each record has one
// (O7).
func (k *walker) reportAll(p Problem) {
	if p.Rule == ruleDatestamp && !k.w.Strict {
		k.reportOnce(p)
		return
	}
	k.report(p)
}

// reportOnce reports the first problem of a rule.
func (k *walker) reportOnce(p Problem) {
	if !k.once[p.Rule] {
		k.once[p.Rule] = true
		k.report(p)
	}
}

func (k *walker) now() time.Time {
	if k.w.Now != nil {
		return k.w.Now().UTC()
	}
	return time.Now().UTC()
}

// granule is the unit of the repository's datestamps.
func (k *walker) granule() time.Duration {
	if k.granularity() == Second {
		return time.Second
	}
	return 24 * time.Hour
}

func (k *walker) granularity() Granularity {
	if k.cur.Days {
		return Day
	}
	return k.identity.Granularity
}

// begin asks the repository for its Identity, and decides what to ask for.
func (k *walker) begin() error {
	at := k.now()
	r, _, err := answer(k.ctx, k.client, k.base, Request{Verb: Identify},
		ReadOptions{Limits: k.w.Limits, Strict: k.w.Strict, Lenient: true, Report: k.report})
	k.cur.Hosts = k.client.Hosts()
	if err != nil {
		return err
	}
	id := r.Identity
	k.identity = id
	moved := r.movedTo != "" && sameRepository(r.movedTo, id.BaseURL) // it says so itself
	if was := k.before.BaseURL; was != "" && id.BaseURL != "" && !sameRepository(was, id.BaseURL) && !moved {
		return fmt.Errorf("%s: %w: its baseURL was %q and is %q", k.base, ErrRepository, clip(was), clip(id.BaseURL))
	}
	if id.BaseURL != "" && !sameRepository(k.base, id.BaseURL) && !moved {
		k.report(Problem{Rule: ruleBaseURL, URL: k.base, Found: "baseURL " + strconv.Quote(clip(id.BaseURL)), Expected: "the address that was asked"})
	}
	earlier := !k.before.Earliest.IsZero() && !id.Earliest.IsZero() && id.Earliest.Before(k.before.Earliest)
	k.before.BaseURL = cmp.Or(id.BaseURL, k.before.BaseURL)
	if k.before.Walk != nil {
		return nil
	}
	if earlier && !k.before.Mark.IsZero() {
		k.report(Problem{Rule: ruleEarliest, URL: k.base, Found: "earliestDatestamp " + Second.Format(id.Earliest), Expected: "that of the last walk, or a later one; everything is read again"})
	}
	// A clock of the repository that is ahead, or in another time zone than it says, would
	// make the next walk begin too late.
	if k.cur.Start = at; !r.ResponseDate.IsZero() && r.ResponseDate.Before(at) {
		k.cur.Start = r.ResponseDate
	}
	all := span{From: k.ask.From, Until: k.ask.Until}
	if mark := k.before.Mark; !mark.IsZero() && !k.w.Full && !earlier {
		if mark.After(k.cur.Start) {
			k.report(Problem{Rule: ruleFrom, URL: k.base, Found: "responseDate " + Second.Format(k.cur.Start), Expected: "not before that of the last walk, " + Second.Format(mark)})
			mark = k.cur.Start
		}
		granule := k.granule()
		if k.before.Coarse {
			granule = 24 * time.Hour
		}
		if from := mark.Add(-granule - k.w.Overlap); from.After(all.From) {
			all.From = from
		}
	}
	k.cur.Full = all == span{}
	if k.ask.Until.IsZero() || !all.From.After(all.Until) {
		k.cur.Rest = []span{all}
	} // else nothing that is selected can have changed
	k.cur.Ended = true
	return nil
}

// sameRepository compares two base URLs. It ignores the scheme and the port, since
// servers have moved to https, and a slash at the end of the path.
func sameRepository(a, b string) bool {
	plain := func(s string) string {
		u, err := url.Parse(s)
		if err != nil {
			return s
		}
		return strings.ToLower(u.Hostname()) + strings.TrimRight(u.Path, "/") + "?" + u.RawQuery
	}
	return plain(a) == plain(b)
}

// next returns the next document; nil when the walk has ended.
func (k *walker) next() (*Document, error) {
	for {
		if k.cur.Ended && !k.nextSpan() {
			return nil, k.end()
		}
		doc, err := k.get()
		var refused *Error
		var status *StatusError
		var fault *DocumentError
		switch {
		case err == nil:
			return doc, nil
		case errors.As(err, &refused):
			err = k.refused(err)
		case errors.As(err, &status) && k.cur.Token != "" && mayBreakOff(status.Status), errors.As(err, &fault) && (k.cur.Token != "" || doc != nil):
			err = k.lost(err)
		case k.stuck(err):
			err = k.lost(err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// stuck reports whether a fault of the network keeps a walk from going on: it occurs at
// the document where an earlier walk has ended, or in a list that has broken off
// before.
func (k *walker) stuck(err error) bool {
	var network *url.Error
	var pause interface{ PauseUntil() time.Time }
	if k.cur.Token == "" || errors.As(err, &pause) || k.ctx.Err() != nil || errors.Is(err, ErrRefused) || !errors.As(err, &network) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	return k.cur.Failures > 0 || k.before.Walk != nil && !k.moved
}

// mayBreakOff reports whether a status in the middle of a list may say that its token
// has expired. Statuses about access or load do not say that, and are temporary.
func mayBreakOff(status int) bool {
	return mayExplain(status) || status >= 500 && status != http.StatusServiceUnavailable
}

// nextSpan begins the list of the next span; false when none is left.
func (k *walker) nextSpan() bool {
	c := &k.cur
	if len(c.Rest) == 0 {
		return false
	}
	c.Span = c.Rest[len(c.Rest)-1]
	c.Rest = c.Rest[:len(c.Rest)-1]
	c.Again = false
	if window := max(k.w.Window.Truncate(k.granule()), k.granule()); k.w.Window > 0 {
		if first, end := k.bounds(c.Span); end.Sub(first) > window {
			cut := first.Add(window)
			c.Rest = append(c.Rest, span{cut, c.Span.Until})
			c.Span.Until = cut
		}
	}
	k.anew()
	return true
}

// anew begins the list of the span.
func (k *walker) anew() {
	c := &k.cur
	c.Token, c.Listed, c.Claimed, c.Led, c.Ended = "", 0, 0, false, false
	k.loop = loop{}
}

// bounds returns where a span begins and ends that may be open, in granules. What begins
// before the repository has anything begins there: its first part has all that is earlier.
func (k *walker) bounds(s span) (first, end time.Time) {
	first, end = s.From, s.Until
	if end.IsZero() {
		end = k.now()
	}
	least := k.identity.Earliest
	if epoch := time.Unix(0, 0); least.Before(epoch) && end.After(epoch) {
		least = epoch.UTC()
	}
	if least.After(end) {
		least = end
	}
	if first.Before(least) {
		first = least
	}
	return first.Truncate(k.granule()), end.Truncate(k.granule())
}

// request is the next one.
func (k *walker) request() Request {
	q := k.ask
	q.From, q.Until, q.Granularity, q.Token = k.cur.Span.From, k.cur.Span.Until, k.granularity(), k.cur.Token
	return q
}

// get asks for the next document and reads its head. When the repository has answered
// and was at fault, both the document and err are set.
func (k *walker) get() (*Document, error) {
	if k.cur.Documents >= cmp.Or(k.w.MaxDocuments, defaultMaxDocuments) {
		q := k.request()
		return nil, &TooManyError{URL: q.URL(k.base), Read: k.cur.Documents}
	}
	q := k.request()
	answer, err := fetch(k.ctx, k.client, q.URL(k.base))
	k.cur.Hosts = k.client.Hosts()
	if err != nil {
		return nil, err
	}
	doc := &Document{Index: k.cur.Documents, Requested: answer.Requested, URL: answer.URL, Date: answer.Date, k: k, answer: answer, token: k.cur.Token}
	doc.reader = NewReader(answer.Body, ReadOptions{
		URL: answer.URL, ContentType: answer.Header.Get("Content-Type"), Limits: k.w.Limits, Strict: k.w.Strict, Lenient: true, Report: doc.problem,
	})
	err = doc.reader.head()
	a := &doc.reader.answer
	var refused *Error
	switch {
	case errors.As(err, &refused):
		k.accept(doc)
	case answer.Status != http.StatusOK:
		doc, err = nil, &StatusError{URL: answer.Requested, Status: answer.Status, Partial: answer.Header.Get(follow.PartialHeader)}
	case err != nil && !errors.Is(err, io.EOF):
		if doc.reader.prologue == nil { // it is no answer of the protocol
			doc = nil
		}
	case a.Verb != q.Verb:
		err = &DocumentError{URL: answer.URL, Line: 1, Column: 1, Reason: fmt.Sprintf("an answer to %s; want one to %s", a.Verb, q.Verb)}
	default:
		k.accept(doc)
		return doc, nil
	}
	answer.Close()
	return doc, err
}

// accept takes note of an answer of the protocol.
func (k *walker) accept(doc *Document) {
	doc.live = true
	for _, p := range doc.held {
		k.reportAll(p)
	}
	doc.held = nil
	if doc.URL != doc.Requested {
		k.reportOnce(Problem{Rule: ruleRedirect, URL: doc.Requested, Found: "a redirect to " + clip(doc.URL), Expected: "an answer; it is followed"})
	}
	if doc.answer.Status != http.StatusOK {
		k.reportOnce(Problem{Rule: ruleStatus, URL: doc.URL, Found: "an error with HTTP status " + strconv.Itoa(doc.answer.Status), Expected: "status 200"})
	}
}

// refused decides what follows from an error of the protocol: nil to go on.
func (k *walker) refused(err error) error {
	c := &k.cur
	none := only(err, NoRecordsMatch)
	span := !c.Span.From.IsZero() || !c.Span.Until.IsZero()
	switch {
	case c.Token == "" && none:
		c.Ended = true // O4
		return nil
	case c.Token == "" && has(err, BadArgument) && span && k.granularity() == Second:
		k.report(Problem{Rule: ruleGranularity, URL: k.base, Found: clip(err.Error()), Expected: "that from and until are taken in seconds, as Identify says; days are used"})
		c.Days = true
		return nil
	case c.Token == "":
		return err
	case none && (c.Claimed > 0 && c.Listed >= c.Claimed || c.Claimed == 0 && c.Led && c.None == c.Listed):
		k.report(Problem{Rule: ruleToken, URL: k.base, Found: "a token that leads to no record", Expected: "an empty token at the end of the list"})
		c.Ended = true
		return nil
	case none:
		c.None = c.Listed
	}
	return k.lost(err)
}

// has reports whether the repository has answered with an error of a code.
func has(err error, code Code) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return has(err, code) })
	}
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// only reports whether a repository has answered with errors of a code alone.
func only(err error, code Code) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !only(err, code) })
	}
	return has(err, code)
}

// lost decides what to do when a list has broken off (O3): the first one is asked for
// again, every later one in halves. What cannot be halved is asked for once more, and
// then given up; the rest of the walk goes on, and ends with an *IncompleteError.
func (k *walker) lost(reason error) error {
	c := &k.cur
	// A request has the token, which may be longer than a message.
	q := k.request()
	why := clip(strings.ReplaceAll(reason.Error(), strings.TrimPrefix(q.URL(k.base), k.base), ""))
	k.reportOnce(Problem{Rule: ruleLost, URL: k.base, Found: why, Expected: "the rest of the list; it is asked for again"})
	c.Failures++
	if c.Listed == 0 {
		var fault *DocumentError
		if c.Barren++; errors.As(reason, &fault) && fault.Cap != "" {
			c.Barren += 4 // it has cost as much as an answer may
		}
		if c.Barren > maxBarren {
			return &IncompleteError{Parts: c.Lost + 1 + len(c.Rest), From: c.Span.From, Until: c.Span.Until, Reason: why}
		}
	}
	c.Unsure = c.Unsure || c.Failures > 1
	whole := c.Span
	tail := whole.Until.IsZero() && whole.From.Equal(c.Start)
	if c.Failures > 1 && whole.Until.IsZero() && !tail {
		// What has changed since the walk began is a part of its own: with an open end the
		// parts could grow faster than they are halved.
		c.Rest = append(c.Rest, span{From: c.Start})
		if whole.Until = c.Start; whole.From.After(whole.Until) {
			whole.From = whole.Until
		}
	}
	first, end := k.bounds(whole)
	g := k.granule()
	if c.Failures == 1 || (tail || end.Equal(first)) && !c.Again {
		c.Span, c.Again = whole, true
		k.anew()
		return nil
	}
	c.Ended = true
	switch {
	case tail: // it is for the next walk
		c.Full = false
	case end.Sub(first) >= 2*g:
		// Both halves have the border: a repository may have finer datestamps than it says.
		middle := first.Add(end.Sub(first) / 2).Truncate(g)
		c.Rest = append(c.Rest, span{middle, whole.Until}, span{whole.From, middle})
	case end.Sub(first) == g:
		c.Rest = append(c.Rest, span{end, whole.Until}, span{whole.From, first})
	default:
		if c.Lost++; c.Lost == 1 {
			c.First, c.Reason = whole, why
		}
		if c.Lost == maxLost {
			return k.end()
		}
	}
	return nil
}

// visit hands a document to the loop, which reads it to its end. more is false when
// the loop was left.
func (k *walker) visit(doc *Document, yield func(*Document, error) bool) (more bool, err error) {
	defer doc.answer.Close()
	if !yield(doc, nil) {
		return false, nil
	}
	var fault *DocumentError
	var refused *Error
	switch {
	case errors.As(doc.fatal, &fault), errors.As(doc.fatal, &refused), k.stuck(doc.fatal):
		return true, k.lost(doc.fatal)
	case doc.fatal != nil && !errors.Is(doc.fatal, io.EOF):
		return true, doc.fatal
	case !doc.ended:
		return true, fmt.Errorf("%s: %w: read all its Entries", doc.URL, errUnread)
	}
	k.cur, k.moved = doc.after, true
	err = k.loop.turned(doc)
	if c := &k.cur; err != nil && doc.Records == 0 && c.Claimed > 0 && c.Listed >= c.Claimed {
		k.report(Problem{Rule: ruleToken, URL: k.base, Found: "a token that leads to no record, after as many as completeListSize says", Expected: "an empty token at the end of the list"})
		c.Ended, c.Full, err = true, false, nil // that number may be wrong
	}
	return true, err
}

// met takes note of a record of a document: of a bad one, which is nil, by its text where its
// identifier is not known.
func (k *walker) met(doc *Document, id string, rec *Record) {
	if k.loop.add(id) {
		doc.news++
	}
	if rec == nil {
		return
	}
	if rec.Datestamp.IsZero() { // it may have changed at any time
		doc.changed = doc.changed || doc.token != ""
		return
	}
	h := &rec.Header
	granule := k.granule()
	if h.Datestamp.Unix()%(24*60*60) == 0 {
		doc.midnight, granule = true, 24*time.Hour // it may be of any time of the day
	} else {
		doc.timed = true
	}
	doc.changed = doc.changed || doc.token != "" && !h.Datestamp.Before(k.cur.Start.Truncate(granule))
	// O7: datestamps that are not as they should be are taken.
	found := ""
	switch day := k.identity.Granularity == Day; {
	case h.Day != day:
		found = "a datestamp that is finer than its granularity"
		if h.Day {
			found, doc.coarse = "a datestamp that is coarser than its granularity", true
		}
		k.odd(ruleGranularity, doc, rec, found)
	case h.Datestamp.Before(k.identity.Earliest):
		k.odd(ruleEarliest, doc, rec, "a datestamp before earliestDatestamp")
	}
	if s := &k.cur.Span; h.Datestamp.Before(s.From.Add(-k.granule())) || !s.Until.IsZero() && h.Datestamp.After(s.Until.Add(k.granule())) {
		k.odd(ruleRange, doc, rec, "a datestamp that was not asked for")
	}
	if at := doc.reader.answer.ResponseDate; !at.IsZero() && h.Datestamp.After(at) {
		k.odd(ruleFuture, doc, rec, "a datestamp after the responseDate")
	}
}

// odd reports a datestamp, once a walk.
func (k *walker) odd(rule string, doc *Document, rec *Record, found string) {
	if !k.once[rule] {
		k.reportOnce(Problem{Rule: rule, URL: doc.URL, Line: rec.Line, Column: rec.Column, Record: rec.Identifier, Found: found + ", " + rec.stamp(), Expected: "what Identify and the request say; it is taken"})
	}
}

// read takes note of a document that was read to its end, and asks for the next one, unless
// Walk.InTurn.
func (k *walker) read(doc *Document) {
	c := k.cur
	c.Documents++
	c.Records += int64(doc.Records)
	c.Listed += int64(doc.Records)
	c.Led = c.Led || doc.token != "" && doc.news > 0
	c.Coarse, c.Midnight, c.Timed = c.Coarse || doc.coarse, c.Midnight || doc.midnight, c.Timed || doc.timed
	t := doc.reader.answer.Token
	c.Changed = c.Changed || doc.changed || doc.token != "" && t != nil && t.Size > 0 && c.Claimed > 0 && t.Size != c.Claimed
	if doc.token == "" {
		c.Claimed = int64(doc.Records)
		if t != nil {
			c.Claimed = max(t.Size, 0)
		}
		c.Size += c.Claimed
	} else if t != nil && t.Size > 0 && t.Size < c.Claimed { // some have gone meanwhile
		c.Claimed = t.Size
	}
	c.Unsure = c.Unsure || doc.token != "" && c.Claimed == 0
	c.Token = ""
	if t != nil {
		c.Token = t.Value
	}
	c.Rest = slices.Clone(c.Rest)
	if c.Ended = c.Token == ""; c.Ended {
		if c.Claimed > c.Listed {
			c.Missing += c.Claimed - c.Listed
			k.report(Problem{Rule: ruleSize, URL: doc.URL, Found: fmt.Sprintf("completeListSize %d, and %d records", c.Claimed, c.Listed), Expected: "as many records"})
		}
	} else if !k.w.InTurn && c.Documents < cmp.Or(k.w.MaxDocuments, defaultMaxDocuments) && c.Token != doc.token {
		q := k.request()
		q.Token = c.Token
		k.client.Ahead(k.ctx, q.URL(k.base), follow.Validators{})
	}
	doc.after = c
}

// end ends the walk.
func (k *walker) end() error {
	c := &k.cur
	if c.Lost > 0 {
		return &IncompleteError{Parts: c.Lost, From: c.First.From, Until: c.First.Until, Reason: c.Reason}
	}
	k.whole = true
	return nil
}

func (k *walker) result(ended bool) Result {
	c := &k.cur
	r := Result{
		Identity: k.identity, Whole: ended && k.whole, Full: c.Full, Split: c.Failures > 0,
		Documents: c.Documents, Records: c.Records, Size: c.Size, Missing: c.Missing, Changed: c.Changed, Unsure: c.Unsure,
	}
	r.Empty = r.Whole && c.Records == 0
	m := k.w.State.memory()
	if m.Walk = nil; r.Whole {
		m.Coarse = c.Coarse || m.Coarse && !c.Full || c.Midnight && !c.Timed
		m.BaseURL, m.Mark = k.before.BaseURL, c.Start
		if at := k.identity.Earliest; !at.IsZero() {
			m.Earliest = at
		}
	}
	r.State = State{&m}
	return r
}

// loop finds out that a list does not come to an end (O2). Its memory is bounded: it
// recognizes at least the last 250,000 identifiers. It finds longer loops by a document
// that has the same records as one before: it keeps a hash of the document at each
// power of two, and compares each that follows with it.
type loop struct {
	seen  []*filter // each has more room than the one before, up to filterMost
	seed  maphash.Seed
	stale int // documents in a row without a new identifier, but for those without a record
	empty int // documents in a row without a record
	page  maphash.Hash
	kept  uint64
	turns uint
}

// filter is a Bloom filter. It errs once in 100,000 identifiers when it is full, at 32
// bits for each.
type filter struct {
	bits []uint64
	n    int
}

const (
	filterLeast = 1 << 10 // words of 64 bits
	filterMost  = 1 << 17
	// remembered is how many identifiers a loop recognizes at least. Older ones are
	// forgotten, so that the memory of a walk does not grow beyond a quarter of a million
	// records.
	remembered = 2 * filterMost
)

// add reports whether an identifier is new.
func (l *loop) add(id string) bool {
	if l.seen == nil {
		l.seed, l.seen = maphash.MakeSeed(), []*filter{{bits: make([]uint64, filterLeast)}}
		l.page.SetSeed(l.seed)
	}
	// The page's hash takes the identifiers in their order.
	h := maphash.String(l.seed, id)
	maphash.WriteComparable(&l.page, h)
	for _, f := range l.seen {
		if f.has(h) {
			return false
		}
	}
	f := l.seen[len(l.seen)-1]
	if f.n == 2*len(f.bits) {
		known := 0
		for _, later := range slices.Backward(l.seen) {
			if known += later.n; known >= remembered {
				l.seen = []*filter{later} // it is of the last size, and full
				break
			}
		}
		f = &filter{bits: make([]uint64, min(4*len(f.bits), filterMost))}
		l.seen = append(l.seen, f)
	}
	f.add(h)
	return true
}

func (f *filter) has(h uint64) bool {
	for i := range uint64(8) {
		word, bit := f.place(h, i)
		if f.bits[word]&bit == 0 {
			return false
		}
	}
	return true
}

func (f *filter) add(h uint64) {
	f.n++
	for i := range uint64(8) {
		word, bit := f.place(h, i)
		f.bits[word] |= bit
	}
}

// place is where the i-th bit of a hash is.
func (f *filter) place(h, i uint64) (word, bit uint64) {
	at := h + i*(h>>32|1)
	return at >> 6 % uint64(len(f.bits)), 1 << (at & 63)
}

// turned takes note of a document that was read whole. It returns an ErrLoop if the
// list repeats itself.
func (l *loop) turned(doc *Document) error {
	if doc.after.Ended {
		return nil
	}
	if doc.after.Token == doc.token {
		return fmt.Errorf("%s: %w: the resumptionToken is the one that was sent; tell the repository's operator", doc.URL, ErrLoop)
	}
	switch {
	case doc.news > 0:
		l.stale, l.empty = 0, 0
	case doc.Records > 0:
		l.stale++
		l.empty = 0
	default:
		l.empty++
	}
	if l.stale == maxStale {
		return fmt.Errorf("%s: %w: %d documents in a row have no record that the list did not have before; tell the repository's operator", doc.URL, ErrLoop, maxStale)
	}
	if l.empty == maxEmpty {
		return fmt.Errorf("%s: %w: %d documents in a row have no record; tell the repository's operator", doc.URL, ErrLoop, maxEmpty)
	}
	page := l.page.Sum64()
	l.page.Reset()
	l.turns++
	if doc.news > 0 && page == l.kept { // its records were forgotten meanwhile
		return fmt.Errorf("%s: %w: the document has the same records as one before; tell the repository's operator", doc.URL, ErrLoop)
	}
	if l.turns&(l.turns-1) == 0 {
		l.kept = page
	}
	return nil
}
