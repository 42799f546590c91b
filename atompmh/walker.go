package atompmh

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const (
	defaultMaxDocuments = 10_000
	keptHeads           = 100

	accept = "application/atom+xml, application/xml;q=0.9, text/xml;q=0.8, */*;q=0.1"
)

// walker is one walk. Only the goroutine of the loop over its documents uses it; the
// request that is made ahead has a goroutine of its own.
type walker struct {
	w      *Walk
	ctx    context.Context
	client *follow.Client
	before memory // what the State of the Walk holds
	mark   time.Time
	cur    cursor
	res    Result
	urls   map[string]bool              // documents of this run, as asked for and as answered
	bodies map[[sha256.Size]byte]string // hash of a body -> URL
	heads  map[string]time.Time         // feed/updated of this run's documents
}

func newWalker(ctx context.Context, w *Walk) (*walker, error) {
	k := &walker{w: w, ctx: ctx, before: w.State.memory(), urls: map[string]bool{}, bodies: map[[sha256.Size]byte]string{}, heads: map[string]time.Time{}}
	if slices.Contains(w.Accepted, k.before.Gap) {
		if !k.before.Target.IsZero() {
			k.before.Mark = k.before.Target
		}
		k.before.Gap, k.before.Target = "", time.Time{}
	}
	k.mark = k.before.Mark
	k.cur.Full = w.Full
	if k.before.Walk != nil {
		k.cur = *k.before.Walk
	}
	k.cur.Heads = maps.Clone(k.cur.Heads)
	if k.cur.Heads == nil {
		k.cur.Heads = map[string]time.Time{}
	}
	var err error
	k.client, err = follow.New(follow.Options{HTTP: w.Client, Start: w.URL, AllowHost: w.AllowHost, Hosts: k.cur.Hosts, Accept: accept, Refused: ErrRefused, Now: w.Now})
	if err != nil {
		return nil, fmt.Errorf("subscription document: %w", err)
	}
	return k, nil
}

// feedID is the atom:id that the feed must have, "" for any.
func (k *walker) feedID() string { return cmp.Or(k.w.FeedID, k.before.FeedID) }

// first returns the document that the run starts with; nil when there is nothing
// to read.
func (k *walker) first() (*Document, error) {
	if k.before.Walk == nil {
		return k.subscription()
	}
	if k.cur.Next == "" {
		k.end()
		return nil, nil
	}
	if slices.Contains(k.w.Accepted, k.cur.Next) {
		return nil, nil
	}
	doc, err := k.get(k.cur.Next, follow.Validators{})
	if missing(err) {
		return nil, fmt.Errorf("%w (%w)", ErrStale, err)
	}
	if err != nil || k.cur.Paged {
		return doc, err
	}
	return k.checkArchive(doc)
}

func (k *walker) subscription() (*Document, error) {
	v := k.before.Validators
	if k.w.Full {
		v = follow.Validators{}
	}
	doc, err := k.get(k.w.URL, v)
	if status, ok := errors.AsType[*StatusError](err); ok {
		switch {
		case status.Status == http.StatusGone:
			k.res.Ended = true
			return nil, nil
		case status.Status == http.StatusNotModified && v != follow.Validators{}:
			k.res.NotModified = true
			k.cur.Validators, k.cur.FeedID = v, k.feedID()
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	k.cur.Validators = doc.answer.Validators
	if doc, err = k.current(doc); err != nil {
		return nil, err
	}
	if err := k.identify(doc); err != nil {
		doc.close()
		return nil, err
	}
	k.heads[follow.Key(doc.Requested)] = doc.reader.feed.Updated
	return doc, nil
}

// current returns the subscription document where URL leads to an archive
// document, which will never have anything new.
func (k *walker) current(doc *Document) (*Document, error) {
	feed := &doc.reader.feed
	if !feed.Archive || feed.Complete {
		return doc, nil
	}
	p := Problem{Rule: ruleCurrent, URL: doc.URL, Found: "an archive document", Expected: "the feed's subscription document; an archive document never gets new entries"}
	to := feed.Current
	if to == "" || follow.Key(to) == follow.Key(doc.URL) || follow.Key(to) == follow.Key(doc.Requested) {
		doc.problem(p)
		return doc, nil
	}
	p.Expected = "the feed's subscription document, " + clip(to) + ", which is read instead"
	doc.close()
	doc, err := k.linked(doc, relCurrent, to)
	if err != nil {
		return nil, err
	}
	k.cur.Validators = follow.Validators{} // they would be of another URL than the one that is asked
	doc.problem(p)
	return doc, nil
}

// identify compares the id of the subscription document with the one expected.
func (k *walker) identify(doc *Document) error {
	id := doc.reader.feed.ID
	if id != "" && k.feedID() != "" && id != k.feedID() {
		return fmt.Errorf("%s: %w from %q to %q", doc.URL, ErrFeedID, clip(k.feedID()), clip(id))
	}
	k.cur.FeedID = id
	return nil
}

// visit hands a document to the loop, which reads it to its end. more is false when
// the loop was left.
func (k *walker) visit(doc *Document, yield func(*Document, error) bool) (more bool, err error) {
	defer doc.close()
	if k.cur.Documents >= cmp.Or(k.w.MaxDocuments, defaultMaxDocuments) {
		return true, &TooManyError{URL: doc.Requested, Read: k.cur.Documents}
	}
	k.urls[follow.Key(doc.Requested)], k.urls[follow.Key(doc.URL)] = true, true
	doc.Index = k.cur.Documents
	doc.before, doc.after = &k.before, k.cur
	k.lookAhead(doc)
	doc.begin(k.w.Report)
	if !yield(doc, nil) {
		return false, nil
	}
	var fault *DocumentError
	switch {
	case doc.Index > 0 && errors.As(doc.fatal, &fault):
		k.res.Gap = &Gap{URL: doc.Requested, Reason: fault.Error()}
	case doc.fatal != nil && doc.fatal != io.EOF:
		return true, doc.fatal
	case !doc.ended:
		return true, fmt.Errorf("%s: %w: read all its Entries", doc.URL, errUnread)
	}
	return true, nil
}

// lookAhead asks for the next document already, when it is sure to be needed:
// to read on, or for its feed/updated in the stop rule (A2).
func (k *walker) lookAhead(doc *Document) {
	to, paged := doc.reader.feed.older()
	if to == "" || paged || doc.mayComplete() || k.urls[follow.Key(to)] || slices.Contains(k.w.Accepted, to) || follow.Foreign(doc.URL, to) ||
		k.cur.Documents+1 >= cmp.Or(k.w.MaxDocuments, defaultMaxDocuments) || k.client.Allowed(to) != nil {
		return
	}
	if _, known := k.head(to); known && !k.cur.Full && !k.mark.IsZero() {
		return
	}
	k.client.Ahead(k.ctx, to, follow.Validators{})
}

// head returns feed/updated of a document without asking for it.
func (k *walker) head(to string) (updated time.Time, known bool) {
	if updated, known = k.heads[follow.Key(to)]; known {
		return updated, true
	}
	updated, known = k.before.Heads[to]
	return updated, known
}

// next returns the document after doc; nil when the walk has ended.
func (k *walker) next(doc *Document) (*Document, error) {
	if k.res.Gap != nil {
		return nil, nil
	}
	if doc.Index == 0 && k.cur.FeedID == "" {
		// An id may stand after the entries.
		if err := k.identify(doc); err != nil {
			return nil, err
		}
	}
	k.checkComplete(doc)
	k.cur = doc.cursor()
	if k.cur.Paged {
		return k.nextPage(doc)
	}
	sum := doc.bodyHash()
	if before, seen := k.bodies[sum]; seen {
		return nil, fmt.Errorf("%s is byte for byte the same as %s: %w; tell the feed's operator", doc.URL, before, ErrLoop)
	}
	k.bodies[sum] = doc.URL
	to := k.cur.Next
	if to == "" {
		k.end()
		return nil, nil
	}
	if slices.Contains(k.w.Accepted, to) {
		return nil, nil
	}
	if updated, known := k.head(to); known && k.stops(updated) {
		return nil, nil
	}
	if k.urls[follow.Key(to)] {
		return nil, fmt.Errorf("%s: prev-archive leads to %s, which this walk has read: %w; tell the feed's operator", doc.URL, to, ErrLoop)
	}
	prev, err := k.linked(doc, relPrevArchive, to)
	if missing(err) {
		k.res.Gap = &Gap{URL: to, Reason: err.Error()}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return k.checkArchive(prev)
}

// linked asks for the document that a link of doc leads to.
func (k *walker) linked(doc *Document, rel, to string) (*Document, error) {
	if follow.Foreign(doc.URL, to) {
		return nil, fmt.Errorf("%s: %w: %s of %s, which is not local, may not lead to a file", to, ErrRefused, rel, doc.URL)
	}
	return k.get(to, follow.Validators{})
}

// nextPage returns the page after doc (RFC 5005 3). Pages promise nothing: by
// convention the newest entries come first, so the walk ends at the first page whose last
// entry lies below the mark, at one that it has read, and at one that is not there.
func (k *walker) nextPage(doc *Document) (*Document, error) {
	if doc.Index == 0 {
		doc.problem(Problem{Rule: rulePaged, URL: doc.URL, Found: "next pages instead of archives", Expected: "prev-archive; the pages are read, but entries that move between them meanwhile may be missed"})
	}
	sum := doc.bodyHash()
	_, seen := k.bodies[sum]
	k.bodies[sum] = doc.URL
	to, last := k.cur.Next, k.cur.Last
	below := !k.cur.Full && !k.mark.IsZero() && !last.IsZero() && last.Before(k.mark.Add(-k.w.Overlap))
	if below {
		return nil, nil
	}
	if seen || k.urls[follow.Key(to)] {
		k.end()
		return nil, nil
	}
	page, err := k.linked(doc, relNext, to)
	if follow.Missing(err) {
		k.end()
		return nil, nil
	}
	if missing(err) {
		k.res.Gap = &Gap{URL: to, Reason: err.Error()}
		return nil, nil
	}
	if err == nil && k.urls[follow.Key(page.URL)] {
		page.close()
		k.end()
		return nil, nil
	}
	return page, err
}

// checkArchive checks an archive document by its head: nil when the walk ends before
// it.
func (k *walker) checkArchive(doc *Document) (*Document, error) {
	if k.urls[follow.Key(doc.URL)] {
		doc.close()
		return nil, fmt.Errorf("%s leads to %s, which this walk has read: %w; tell the feed's operator", doc.Requested, doc.URL, ErrLoop)
	}
	feed := &doc.reader.feed
	k.heads[follow.Key(doc.Requested)] = feed.Updated
	if !feed.Updated.IsZero() && len(k.cur.Heads) < keptHeads {
		k.cur.Heads[doc.Requested] = feed.Updated
	}
	if k.stops(feed.Updated) {
		doc.close()
		return nil, nil
	}
	if !k.cur.Last.IsZero() && feed.Updated.After(k.cur.Last) {
		doc.problem(Problem{Rule: ruleS2, URL: doc.URL, Found: "feed/updated " + clip(feed.UpdatedRaw),
			Expected: "not later than the earliest entry of the document that names it, " + k.cur.Last.Format(time.RFC3339Nano)})
	}
	if want := cmp.Or(k.cur.FeedID, k.feedID()); feed.ID != "" && want != "" && feed.ID != want {
		doc.problem(Problem{Rule: ruleFeedID, URL: doc.URL, Found: strconv.Quote(clip(feed.ID)), Expected: strconv.Quote(clip(want))})
	}
	if k.w.Strict && !k.cur.Paged {
		doc.strictArchive(k.cur.Documents == 1)
	}
	return doc, nil
}

// stops is the stop rule (A2): the last document reaches below the mark, and the
// one behind it has nothing later than that.
func (k *walker) stops(head time.Time) bool {
	last := k.cur.Last
	return !k.cur.Full && !k.mark.IsZero() && !last.IsZero() && last.Before(k.mark.Add(-k.w.Overlap)) &&
		!head.IsZero() && !head.After(last)
}

// checkComplete reports an fh:complete that does not count, or that stands beside a prev-archive.
func (k *walker) checkComplete(doc *Document) {
	feed := &doc.reader.feed
	p := Problem{URL: doc.URL}
	to, paged := feed.older()
	switch {
	case !feed.Complete:
		return
	case Short(doc.after.TotalResults, doc.after.Entries):
		return // the end of the walk reports that
	case !doc.Complete() && doc.after.Active:
		p.Rule, p.Found, p.Expected = ruleS8, "fh:complete", "none, because a newer document has entries that are or may be active; fh:complete is ignored"
	case paged:
		p.Rule, p.Found, p.Expected = ruleS8, "fh:complete, and a next page "+clip(to), "all entries in one document; fh:complete is ignored, and the pages are read"
	case !doc.Complete() && doc.reader.seen.nested > 0:
		p.Rule, p.Found, p.Expected = ruleS8, "fh:complete with an entry inside of another element", "all entries right in the feed; fh:complete is ignored"
	case !doc.Complete():
		p.Rule, p.Found, p.Expected = ruleS8, "fh:complete with an entry whose id cannot be read", "an id on every entry; fh:complete is ignored"
	case feed.PrevArchive != "":
		p.Rule, p.Found, p.Expected = ruleS11, "prev-archive "+clip(feed.PrevArchive)+" beside fh:complete", "none; it is not followed"
	default:
		return
	}
	doc.problem(p)
}

// end notes that the chain has ended.
func (k *walker) end() {
	k.res.Oldest = true
	k.res.Complete = k.cur.Complete
	if Short(k.cur.TotalResults, k.cur.Entries) && k.w.Report != nil {
		k.w.Report(Problem{Rule: ruleResults, URL: k.w.URL, Found: fmt.Sprintf("totalResults %d, and %d entries", k.cur.TotalResults, k.cur.Entries),
			Expected: "all of them; the feed is not taken to be complete"})
	}
	k.res.Lost = !k.cur.Complete && !k.mark.IsZero() && k.cur.Smallest.After(k.mark)
}

func (k *walker) result(ended bool) Result {
	r := k.res
	r.FeedID = k.cur.FeedID
	r.Target = k.cur.Target
	r.Full = k.cur.Full
	r.Documents, r.Entries, r.TotalResults = k.cur.Documents, k.cur.Entries, k.cur.TotalResults
	m := k.before
	m.Walk = nil
	switch {
	case r.NotModified || r.Ended:
	case !ended || r.Gap != nil:
		// The subscription document may be the same next time, and has to be read.
		m.Validators = follow.Validators{}
		if r.Gap != nil {
			m.Gap, m.Target = r.Gap.URL, r.Target
		}
	default:
		m = memory{Mark: m.Mark, FeedID: cmp.Or(r.FeedID, m.FeedID), Validators: k.cur.Validators, Heads: newest(k.cur.Heads, m.Heads)}
		if !r.Target.IsZero() {
			m.Mark = r.Target
		}
	}
	r.State = State{&m}
	return r
}

// newest merges the feed/updated of the documents that this walk and the last one have
// met, and keeps the newest keptHeads.
func newest(now, before map[string]time.Time) map[string]time.Time {
	all := maps.Clone(before)
	if all == nil {
		all = map[string]time.Time{}
	}
	maps.Copy(all, now)
	if len(all) <= keptHeads {
		return all
	}
	urls := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(all[b].Compare(all[a]), cmp.Compare(a, b))
	})
	for _, u := range urls[keptHeads:] {
		delete(all, u)
	}
	return all
}

// get asks for a document and reads its head. The document holds its connection
// until it is closed.
func (k *walker) get(to string, v follow.Validators) (*Document, error) {
	answer, err := k.client.Get(k.ctx, to, v)
	k.cur.Hosts = k.client.Hosts()
	if status, ok := errors.AsType[*follow.StatusError](err); ok {
		return nil, (*StatusError)(status)
	}
	if err != nil {
		return nil, err
	}
	doc := &Document{Requested: answer.Requested, URL: answer.URL, Date: answer.Date, answer: answer, sum: sha256.New()}
	doc.reader = NewReader(io.TeeReader(answer.Body, doc.sum), ReadOptions{
		URL: answer.URL, ContentType: answer.Header.Get("Content-Type"), Limits: k.w.Limits, Content: k.w.Content, Strict: k.w.Strict, Report: doc.problem,
	})
	if _, err := doc.reader.Head(); err != nil {
		answer.Close()
		return nil, err
	}
	return doc, nil
}

// missing reports whether an archive document is missing (A8): it is gone,
// or is no document. 403 is the one status of S9 that counts for an entry's own
// URI and not here.
func missing(err error) bool {
	var fault *DocumentError
	return follow.Missing(err) || errors.As(err, &fault)
}
