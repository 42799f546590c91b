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
)

// climb is one run of a Walk. Only the goroutine of the loop touches it; the one
// request that is under way ahead of it has its own.
type climb struct {
	w      *Walk
	ctx    context.Context
	client *follow.Client
	cur    Cursor
	res    Result
	urls   map[string]bool              // documents of this run, as asked for and as answered
	bodies map[[sha256.Size]byte]string // hash of a body -> URL
	heads  map[string]time.Time         // feed/updated of this run's documents
}

func newClimb(ctx context.Context, w *Walk) (*climb, error) {
	client, err := newClient(w)
	if err != nil {
		return nil, err
	}
	c := &climb{w: w, ctx: ctx, client: client, urls: map[string]bool{}, bodies: map[[sha256.Size]byte]string{}, heads: map[string]time.Time{}}
	c.cur.Full = w.Full
	if w.Resume != nil {
		c.cur = *w.Resume
	}
	c.cur.Heads = maps.Clone(c.cur.Heads)
	if c.cur.Heads == nil {
		c.cur.Heads = map[string]time.Time{}
	}
	return c, nil
}

// first returns the document that the run starts with; nil when there is nothing
// to read.
func (c *climb) first() (*Document, error) {
	if c.w.Resume == nil {
		return c.subscription()
	}
	if c.cur.Next == "" {
		c.end()
		return nil, nil
	}
	if slices.Contains(c.w.Accepted, c.cur.Next) {
		return nil, nil
	}
	doc, err := c.get(c.cur.Next, Validators{})
	if missing(err) {
		return nil, fmt.Errorf("%w (%w)", ErrStaleCursor, err)
	}
	if err != nil || c.cur.Paged {
		return doc, err
	}
	return c.arrive(doc)
}

func (c *climb) subscription() (*Document, error) {
	v := c.w.Validators
	if c.w.Full {
		v = Validators{}
	}
	doc, err := c.get(c.w.URL, v)
	var status *StatusError
	if errors.As(err, &status) {
		switch {
		case status.Status == http.StatusGone:
			c.res.Ended = true
			return nil, nil
		case status.Status == http.StatusNotModified && v != Validators{}:
			c.res.NotModified = true
			c.cur.Validators, c.cur.FeedID = v, c.w.WantID
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	c.cur.Validators = doc.Validators
	if doc, err = c.current(doc); err != nil {
		return nil, err
	}
	if err := c.identify(doc); err != nil {
		doc.close()
		return nil, err
	}
	c.heads[follow.Key(doc.Requested)] = doc.reader.feed.Updated
	return doc, nil
}

// current returns the subscription document where URL leads to an archive
// document, which will never tell of anything new.
func (c *climb) current(doc *Document) (*Document, error) {
	feed := &doc.reader.feed
	if !feed.Archive || feed.Complete {
		return doc, nil
	}
	p := Problem{Rule: ruleCurrent, URL: doc.URL, Found: "an archive document", Expected: "the feed's subscription document; this one will never have anything new"}
	to := feed.Current
	if to == "" || follow.Key(to) == follow.Key(doc.URL) || follow.Key(to) == follow.Key(doc.Requested) {
		doc.problem(p)
		return doc, nil
	}
	p.Expected = "the feed's subscription document, " + clip(to) + ", which is read instead"
	doc.close()
	doc, err := c.linked(doc, relCurrent, to)
	if err != nil {
		return nil, err
	}
	c.cur.Validators = Validators{} // they would be of another URL than the one that is asked
	doc.problem(p)
	return doc, nil
}

// identify compares the id of the subscription document with the one expected.
func (c *climb) identify(doc *Document) error {
	id := doc.reader.feed.ID
	if id != "" && c.w.WantID != "" && id != c.w.WantID {
		return fmt.Errorf("%s: %w from %q to %q; if that is meant, forget what was harvested and start anew", doc.URL, ErrFeedID, clip(c.w.WantID), clip(id))
	}
	c.cur.FeedID = id
	return nil
}

// visit has a document read to its end. It reports whether the loop wants another.
func (c *climb) visit(doc *Document, yield func(*Document, error) bool) (more bool, err error) {
	defer doc.close()
	if c.cur.Documents >= cmp.Or(c.w.MaxDocuments, defaultMaxDocuments) {
		return true, &TooManyError{URL: doc.Requested, Read: c.cur.Documents}
	}
	c.urls[follow.Key(doc.Requested)], c.urls[follow.Key(doc.URL)] = true, true
	doc.Index = c.cur.Documents
	doc.after = c.cur
	c.lookAhead(doc)
	doc.begin(c.w.Report)
	if !yield(doc, nil) {
		return false, nil
	}
	var fault *DocumentError
	switch {
	case doc.Index > 0 && errors.As(doc.fatal, &fault):
		c.res.Gap = &Gap{URL: doc.Requested, Reason: fault.Error()}
	case doc.fatal != nil && doc.fatal != io.EOF:
		return true, doc.fatal
	case !doc.ended:
		return true, fmt.Errorf("%s: %w: read it with Next until io.EOF", doc.URL, ErrUnread)
	}
	return true, nil
}

// lookAhead asks for the next document already, when it is sure to be needed:
// to climb on, or for its feed/updated in the stop rule (A2).
func (c *climb) lookAhead(doc *Document) {
	to, paged := doc.reader.feed.older()
	if to == "" || paged || doc.mayComplete() || c.urls[follow.Key(to)] || slices.Contains(c.w.Accepted, to) || follow.Foreign(doc.URL, to) ||
		c.cur.Documents+1 >= cmp.Or(c.w.MaxDocuments, defaultMaxDocuments) || c.client.Allowed(to) != nil {
		return
	}
	if _, known := c.head(to); known && !c.cur.Full && !c.w.Mark.IsZero() {
		return
	}
	c.client.Ahead(c.ctx, to, Validators{})
}

// head returns feed/updated of a document without asking for it.
func (c *climb) head(to string) (updated time.Time, known bool) {
	if updated, known = c.heads[follow.Key(to)]; known {
		return updated, true
	}
	updated, known = c.w.Heads[to]
	return updated, known
}

// next returns the document after doc; nil when the walk has ended.
func (c *climb) next(doc *Document) (*Document, error) {
	if c.res.Gap != nil {
		return nil, nil
	}
	if doc.Index == 0 && c.cur.FeedID == "" {
		// An id may stand after the entries.
		if err := c.identify(doc); err != nil {
			return nil, err
		}
	}
	c.checkComplete(doc)
	c.cur, _ = doc.Cursor()
	if c.cur.Paged {
		return c.nextPage(doc)
	}
	sum := doc.bodyHash()
	if before, seen := c.bodies[sum]; seen {
		return nil, fmt.Errorf("%s is byte for byte the same as %s: %w; tell the feed's operator", doc.URL, before, ErrLoop)
	}
	c.bodies[sum] = doc.URL
	to := c.cur.Next
	if to == "" {
		c.end()
		return nil, nil
	}
	if slices.Contains(c.w.Accepted, to) {
		return nil, nil
	}
	if updated, known := c.head(to); known && c.stops(updated) {
		return nil, nil
	}
	if c.urls[follow.Key(to)] {
		return nil, fmt.Errorf("%s: prev-archive leads to %s, which this walk has read: %w; tell the feed's operator", doc.URL, to, ErrLoop)
	}
	prev, err := c.linked(doc, relPrevArchive, to)
	if missing(err) {
		c.res.Gap = &Gap{URL: to, Reason: err.Error()}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.arrive(prev)
}

// linked asks for the document that a link of doc leads to.
func (c *climb) linked(doc *Document, rel, to string) (*Document, error) {
	if follow.Foreign(doc.URL, to) {
		return nil, fmt.Errorf("%s: %w: %s of %s, which is not local, may not lead to a file", to, ErrRefused, rel, doc.URL)
	}
	return c.get(to, Validators{})
}

// nextPage returns the page after doc (RFC 5005 3). Pages promise nothing: by
// convention the newest entries come first, so the walk ends at the first page that
// lies below the mark, at one that it has read, and at one that is not there.
func (c *climb) nextPage(doc *Document) (*Document, error) {
	if doc.Index == 0 {
		doc.problem(Problem{Rule: rulePaged, URL: doc.URL, Found: "next pages instead of archives", Expected: "prev-archive; the pages are read, but entries that change place meanwhile may be missed"})
	}
	sum := doc.bodyHash()
	_, seen := c.bodies[sum]
	c.bodies[sum] = doc.URL
	to, last := c.cur.Next, c.cur.Last
	below := !c.cur.Full && !c.w.Mark.IsZero() && !last.IsZero() && last.Before(c.w.Mark.Add(-c.w.Overlap))
	if below {
		return nil, nil
	}
	if seen || c.urls[follow.Key(to)] {
		c.end()
		return nil, nil
	}
	page, err := c.linked(doc, relNext, to)
	if follow.Missing(err) {
		c.end()
		return nil, nil
	}
	if missing(err) {
		c.res.Gap = &Gap{URL: to, Reason: err.Error()}
		return nil, nil
	}
	if err == nil && c.urls[follow.Key(page.URL)] {
		page.close()
		c.end()
		return nil, nil
	}
	return page, err
}

// arrive judges an archive document by its head: nil when the walk ends before
// it.
func (c *climb) arrive(doc *Document) (*Document, error) {
	if c.urls[follow.Key(doc.URL)] {
		doc.close()
		return nil, fmt.Errorf("%s leads to %s, which this walk has read: %w; tell the feed's operator", doc.Requested, doc.URL, ErrLoop)
	}
	feed := &doc.reader.feed
	c.heads[follow.Key(doc.Requested)] = feed.Updated
	if !feed.Updated.IsZero() && len(c.cur.Heads) < keptHeads {
		c.cur.Heads[doc.Requested] = feed.Updated
	}
	if c.stops(feed.Updated) {
		doc.close()
		return nil, nil
	}
	if !c.cur.Last.IsZero() && feed.Updated.After(c.cur.Last) {
		doc.problem(Problem{Rule: ruleS2, URL: doc.URL, Found: "feed/updated " + feed.UpdatedRaw,
			Expected: "not later than the earliest entry of the document that names it, " + c.cur.Last.Format(time.RFC3339Nano)})
	}
	if want := cmp.Or(c.cur.FeedID, c.w.WantID); feed.ID != "" && want != "" && feed.ID != want {
		doc.problem(Problem{Rule: ruleFeedID, URL: doc.URL, Found: strconv.Quote(clip(feed.ID)), Expected: strconv.Quote(clip(want))})
	}
	return doc, nil
}

// stops is the stop rule (A2): the last document reaches below the mark, and the
// one behind it has nothing later than that.
func (c *climb) stops(head time.Time) bool {
	last := c.cur.Last
	return !c.cur.Full && !c.w.Mark.IsZero() && !last.IsZero() && last.Before(c.w.Mark.Add(-c.w.Overlap)) &&
		!head.IsZero() && !head.After(last)
}

// checkComplete reports an fh:complete that does not count, or that has company.
func (c *climb) checkComplete(doc *Document) {
	feed := &doc.reader.feed
	p := Problem{URL: doc.URL}
	switch {
	case !feed.Complete:
		return
	case Short(doc.after.TotalResults, doc.after.Entries):
		return // the walk's end says so
	case !doc.Complete() && doc.after.Active:
		p.Rule, p.Found, p.Expected = ruleS8, "fh:complete", "none: a newer document has entries that are or may be active; it is ignored"
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
func (c *climb) end() {
	c.res.Oldest = true
	c.res.Complete = c.cur.Complete
	if Short(c.cur.TotalResults, c.cur.Entries) && c.w.Report != nil {
		c.w.Report(Problem{Rule: ruleResults, URL: c.w.URL, Found: fmt.Sprintf("%d results claimed and %d read", c.cur.TotalResults, c.cur.Entries),
			Expected: "all of them; fh:complete, where it is, is ignored"})
	}
	c.res.Lost = !c.cur.Complete && !c.w.Mark.IsZero() && c.cur.Smallest.After(c.w.Mark)
}

func (c *climb) result() Result {
	r := c.res
	r.FeedID = c.cur.FeedID
	r.Target = c.cur.Target
	r.Validators = c.cur.Validators
	r.Documents, r.Entries, r.TotalResults = c.cur.Documents, c.cur.Entries, c.cur.TotalResults
	r.Heads = newest(c.cur.Heads, c.w.Heads)
	return r
}

// newest merges what this walk and the last one know.
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
