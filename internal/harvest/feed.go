package harvest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/translate"
)

// feedMemory is what a harvest of kind feed leaves for the next one.
type feedMemory struct {
	Validators follow.Validators `json:"validators,omitzero"`
	// Advised: the operator was told that kind atompmh would harvest more.
	Advised bool `json:"advised,omitempty"`
	// Whole: all its archives or pages were read.
	Whole bool `json:"whole,omitempty"`
	// Pages is how many were read of a feed that has more than max_documents, else 0.
	Pages int `json:"pages,omitempty"`
}

// feedWalk is a walk over a legacy feed: RSS, Atom or JSON Feed. Absence from it means
// nothing, because every such feed drops old items. If it names archives or further pages
// (RFC 5005 3 and 4, JSON Feed's next_url) these are read too.
type feedWalk struct {
	r      *run
	client *follow.Client

	notModified, ended bool
	url                string // that answered
	validators         follow.Validators
	mark               event.Stamp
	// whole: all documents that were wanted could be read. In the first walk that is all
	// of them, later those that may have something new. limited is feedMemory.Pages.
	whole   bool
	limited int
	short   *shortfall
	// unfinished: the last walk was interrupted, and may have left pages unread.
	unfinished bool
	// deleted has the records of which the pages so far have a tombstone, of maxItems at most,
	// and when they were deleted.
	deleted map[string]event.Stamp
}

func (w *feedWalk) begin(context.Context, []byte) (err error) {
	r := w.r
	if r.opt.Full {
		r.memory.Feed.Validators = follow.Validators{}
	}
	*w = feedWalk{r: r, url: r.src.URL, mark: r.stored.Mark, short: r.memory.Short, unfinished: r.data != nil,
		deleted: map[string]event.Stamp{}}
	w.client, err = follow.New(follow.Options{HTTP: r.documentClient(), Start: r.src.URL, AllowHost: r.src.AllowHost, Now: r.h.now,
		Accept: "application/atom+xml, application/rss+xml, application/rdf+xml, application/feed+json, application/xml;q=0.9, text/xml;q=0.9, application/json;q=0.8, */*;q=0.1"})
	return err
}

func (w *feedWalk) documents(ctx context.Context) iter.Seq2[document[*event.Item], error] {
	return func(yield func(document[*event.Item], error) bool) {
		defer w.client.Close()
		if err := w.pages(ctx, func(d *feedPage) bool { return yield(d, nil) }); err != nil {
			yield(nil, err)
		}
	}
}

// pages yields the feed, and the pages with older items that it leads to.
func (w *feedWalk) pages(ctx context.Context, yield func(*feedPage) bool) error {
	r := w.r
	doc, answer, err := w.get(ctx, r.src.URL, r.memory.Feed.Validators)
	switch status := follow.Status(err); {
	case status == http.StatusNotModified && r.memory.Feed.Validators != follow.Validators{}:
		w.notModified = true
		return nil
	case status == http.StatusGone:
		w.ended = true
		return nil
	case err != nil:
		return err
	}
	r.advise(doc, answer.URL)
	w.url, w.validators = answer.URL, answer.Validators
	seen := map[string]bool{follow.Key(r.src.URL): true, follow.Key(answer.URL): true}
	since, limit := r.stored.Mark.Add(-r.src.Overlap), cmp.Or(r.src.MaxDocuments, 10_000)
	claimed, read := doc.results, int64(0)
	before := r.memory.Feed
	all := r.opt.Full || w.unfinished || !before.Whole && before.Pages < limit
	cut := func(pages int) {
		w.limited = pages
		r.warn(fmt.Sprintf("the feed has more than %d pages, and those behind them were not read; raise max_documents", pages))
	}
	known := map[[sha256.Size]byte]bool{doc.sum(): true}
	for n := 1; ; n++ {
		read += int64(len(doc.items))
		page := r.newFeedPage(doc, answer)
		page.looksUp, page.deleted = !all, w.deleted
		if !yield(page) {
			return nil
		}
		if mark := stampOrUnknown(answer.Mark(page.newest.Time())); mark.After(w.mark) {
			w.mark = mark
		}
		if doc.older == "" || seen[follow.Key(doc.older)] {
			w.whole, w.short = true, shortfallOf(claimed, read)
			return nil
		}
		if !all && !page.fresh && !page.newest.After(since) && (page.familiar || !page.unsure) {
			if w.whole = before.Whole; !w.whole {
				cut(before.Pages)
			}
			return nil
		}
		if n >= limit {
			cut(limit)
			return nil
		}
		if follow.Foreign(answer.URL, doc.older) {
			return fmt.Errorf("%s: %w: a page of %s, which is not local, may not lead to a file", doc.older, follow.ErrRefused, answer.URL)
		}
		seen[follow.Key(doc.older)] = true
		from := answer.URL
		doc, answer, err = w.get(ctx, doc.older, follow.Validators{})
		switch {
		case follow.Missing(err): // the page after the last one
			r.problem(ruleFeedPage, from+": "+err.Error())
			w.whole, w.short = true, shortfallOf(claimed, read)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.warn("a page of the feed could not be read, those behind it neither: " + err.Error())
			return nil
		case len(doc.items) > 0 && known[doc.sum()]: // so some software answers for any page after the last one
			r.problem(ruleFeedPage, fmt.Sprintf("%s: the items of another page again; the pages end there", answer.URL))
			w.whole, w.short = true, shortfallOf(claimed, read)
			return nil
		}
		known[doc.sum()] = true
	}
}

func (w *feedWalk) result() walkResult {
	o := walkResult{NotModified: w.notModified, Ended: w.ended, Mark: w.mark.Time(), Memory: w.r.memory.walkMemory, Short: w.short}
	if w.ended {
		o.Warnings = []string{"the feed has ended (410); the records stay as they are: take the Source out of the configuration"}
		return o
	}
	if w.short != nil {
		// To claim far more is as usual as it is with feeds of what is new: the operator
		// is warned once.
		w.r.problem(ruleFeedResults, w.url+": "+w.short.String())
		if w.r.memory.Short == nil {
			o.Warnings = []string{w.short.String()}
		}
	}
	if !w.notModified {
		o.Memory.Feed.Validators, o.Memory.Feed.Whole, o.Memory.Feed.Pages = w.validators, w.whole, w.limited
		if !w.whole {
			o.Memory.Feed.Validators = follow.Validators{} // the rest is asked for again
		}
	}
	return o
}

func (w *feedWalk) record(it *event.Item) string { return it.Record }

// get asks for a document of the feed and reads it whole.
func (w *feedWalk) get(ctx context.Context, url string, v follow.Validators) (*feedDocument, *follow.Answer, error) {
	r := w.r
	answer, err := w.client.Get(ctx, url, v)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Close()
	body, err := io.ReadAll(fetch.Limit(answer.Body, cmp.Or(r.src.Limits.Document, 64<<20), "a feed document"))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", answer.URL, err)
	}
	// The parser keeps several copies of it in memory.
	if err := r.slot.takeMemory(ctx, 8*int64(len(body))); err != nil {
		return nil, nil, err
	}
	defer r.slot.freeMemory(8 * int64(len(body)))
	doc, err := r.newFeedReader(answer.URL, answer.Header.Get("Content-Type")).read(body)
	return doc, answer, err
}

// newFeedReader returns a reader for one document.
func (r *run) newFeedReader(url, contentType string) *feedReader {
	return &feedReader{url: url, contentType: contentType, report: r.problem, inline: r.src.Selection.Inline,
		limits: r.src.Limits.document()}
}

// advise warns the operator of a feed that has ended, or that another kind suits better.
func (r *run) advise(doc *feedDocument, url string) {
	if doc.ended {
		r.warn("the feed says that it has ended (expired); the records stay as they are: take the Source out of the configuration")
	}
	if !doc.protocol {
		return
	}
	const advice = `the feed has archives or is complete (prev-archive or fh:complete), as in Atom-PMH: kind = "atompmh" would see its deletions and all that it holds`
	r.problem(ruleFeedKind, url+": "+advice)
	if !r.memory.Feed.Advised {
		r.memory.Feed.Advised = true
		r.warn(advice)
	}
}

// feedPage is one document of the feed.
type feedPage struct {
	r      *run
	doc    *feedDocument
	answer *follow.Answer
	counts map[string]*feedItem // by identifier, which item counts
	newest event.Stamp          // of all items that do not lie in the future
	// fresh: the Source has not reported the record of one of them before. familiar: it has
	// reported that of one. Both are found out if looksUp. unsure: one that was not taken has no
	// date, so that it may be new.
	looksUp, fresh, familiar, unsure bool
	deleted                          map[string]event.Stamp // feedWalk.deleted
}

func (r *run) newFeedPage(doc *feedDocument, answer *follow.Answer) *feedPage {
	return &feedPage{r: r, doc: doc, answer: answer, counts: doc.latestItems(answer.URL, r.problem), deleted: map[string]event.Stamp{}}
}

func (p *feedPage) origin() event.Document {
	d := p.doc
	return event.Document{URL: p.answer.URL, FeedID: d.ID, FeedTitle: d.Title, FeedUpdated: stampOrUnknown(d.Updated),
		Feed: translate.FeedOf(&atompmh.Feed{Metadata: d.Metadata, Links: d.Links})}
}

// read translates the items. One that cannot be taken goes to quarantine; its record, if
// it is known, counts as met.
func (p *feedPage) read(b *backlog[*event.Item], afterEntry func() error) (whole bool, err error) {
	for i := range p.doc.items {
		it := &p.doc.items[i]
		p.note(it.entry.Updated)
		if p.counts[it.entry.ID] == it {
			p.translate(b, it)
		}
		if it.rule != "" {
			p.unsure = p.unsure || it.entry.Updated.IsZero()
			b.addBad(event.Quarantined{URL: p.answer.URL, Line: it.entry.Line, Column: it.entry.Column, Record: it.entry.ID, Rule: it.rule, Reason: it.reason, Input: it.input})
			if identifiesRecord(it.entry.ID) {
				bad := &event.Item{Quarantine: true}
				bad.Record, bad.SourceIdentifier = p.r.src.Selection.Identifier(it.entry.ID)
				b.add(bad, 0)
			}
		}
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// note takes note of when an item was modified, whether it is taken or not: what is behind it may be
// new as well.
func (p *feedPage) note(modified time.Time) {
	if at := stampOrUnknown(modified); at.After(p.newest) && !p.answer.Late(modified) {
		p.newest = at
	}
}

func (p *feedPage) translate(b *backlog[*event.Item], it *feedItem) {
	item, err := p.r.feedItem(it)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		p.r.updateReport(func(p *Report) { p.Skipped++ })
		p.unsure = p.unsure || it.entry.Updated.IsZero()
	case err != nil:
		it.reject(ruleOf(err), "%s", err)
	default:
		item.Late = p.answer.Late(item.Modified.Time())
		if p.isDeleted(item) {
			p.r.updateReport(func(r *Report) { r.Historical++ })
			return
		}
		b.add(item, textOf(&item.Observation)+len(item.Inline))
	}
}

// isDeleted reports whether an item is no later than a tombstone on a page before, which counts
// then (RFC 6721 3). It takes note of tombstones. Where the times are in doubt, the newer page counts,
// or each walk would delete the record and create it anew.
func (p *feedPage) isDeleted(item *event.Item) bool {
	at, known := p.deleted[item.Record]
	later := !known || item.Modified.After(at)
	switch {
	case !item.Deleted:
		item.Current = known && !item.Late
		return !later
	case later && item.Modified.Known() && p.doc.older != "" && len(p.deleted) < maxItems:
		p.deleted[item.Record] = item.Modified
	}
	return false
}

// latest returns the items in the order of their dates, those that are bad last. It
// takes over the memory of the entries.
func (p *feedPage) latest(ctx context.Context, b *backlog[*event.Item], items []*event.Item) ([]*event.Item, error) {
	b.values = nil
	if err := p.lookUp(ctx, items); err != nil {
		return nil, err
	}
	slices.SortStableFunc(items, func(a, b *event.Item) int {
		switch {
		case a.Quarantine != b.Quarantine && a.Quarantine:
			return 1
		case a.Quarantine != b.Quarantine:
			return -1
		case a.Quarantine:
			return 0
		}
		return a.Modified.Compare(b.Modified)
	})
	return items, nil
}

// lookUp finds out whether items are of records that the Source has not reported before: new
// items may have old dates, or none.
func (p *feedPage) lookUp(ctx context.Context, items []*event.Item) error {
	for part := range slices.Chunk(items, lookedUp) {
		if !p.looksUp || p.fresh {
			break
		}
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = part[i].Record
		}
		known, err := p.r.h.Log.SourceRecordsOf(ctx, p.r.src.ID, ids)
		if err != nil {
			return err
		}
		for i := range part {
			reported := known[i].Known || known[i].Pending != ""
			p.fresh = p.fresh || !part[i].Quarantine && !reported
			p.familiar = p.familiar || reported
		}
	}
	return nil
}

// state returns nil: a walk over a feed always starts anew.
func (p *feedPage) state() ([]byte, error) { return nil, nil }

// latestItems returns of each record the item that counts: the latest, of several with
// one date the first, and a deletion unless an item is later.
func (doc *feedDocument) latestItems(url string, problem func(rule, text string)) map[string]*feedItem {
	latest := map[string]*feedItem{}
	for i := range doc.items {
		it := &doc.items[i]
		if it.rule != "" {
			continue
		}
		first, again := latest[it.entry.ID]
		switch {
		case !again:
			latest[it.entry.ID] = it
			continue
		case first.entry.Kind != it.entry.Kind:
			latest[it.entry.ID] = undeleted(first, it)
			continue
		}
		counts := "the first counts, that"
		if it.entry.Updated.After(first.entry.Updated) {
			counts, latest[it.entry.ID] = "the later one counts, not that", it
		}
		problem(ruleFeedID, fmt.Sprintf("%s: identity %q is there twice; %s in line %d",
			strictxml.Place(url, it.entry.Line, it.entry.Column), strictxml.Clip(it.entry.ID), counts, first.entry.Line))
	}
	return latest
}

// undeleted decides between an item and the deletion of its record: the item
// counts when it is later (RFC 6721 3).
func undeleted(a, b *feedItem) *feedItem {
	if a.entry.Kind == atompmh.Deletion {
		a, b = b, a
	}
	if a.entry.Updated.After(b.entry.Updated) {
		return a
	}
	return b
}

// feedItem translates an item into an observation. Nothing in such feeds orders items
// reliably, so Order stays unknown. Items are edited without a new date, so the claim
// covers the whole item.
func (r *run) feedItem(it *feedItem) (*event.Item, error) {
	wants := r.selection()
	if len(wants.Formats) > 0 && translate.Wanted(wants.Formats, "text/html") {
		// Most links of most feeds have no type and lead to a page.
		wants.Formats = append(slices.Clone(wants.Formats), "")
	}
	o, err := translate.FromEntry(&it.entry, &wants)
	if err != nil {
		return nil, err
	}
	o.Order = event.Stamp{}
	if !o.Deleted {
		for _, l := range it.enclosures {
			href, ok := wants.Public(l.Href)
			if l.Href = href; ok {
				o.Links = append(o.Links, l)
			}
		}
	}
	if err := o.Bound(); err != nil {
		return nil, err
	}
	o.Claim = o.ClaimOf()
	if it.content != [sha256.Size]byte{} {
		both := sha256.Sum256(binary.BigEndian.AppendUint64(it.content[:], uint64(o.Claim)))
		o.Claim = int64(binary.BigEndian.Uint64(both[:]))
	}
	return &event.Item{Observation: o}, nil
}

// reread reads quarantined items.
func (w *feedWalk) reread(_ context.Context, q *event.Quarantined) (out []event.Observation, err error) {
	doc, err := w.r.newFeedReader(q.URL, "").read(q.Input)
	if err != nil {
		return nil, err
	}
	for i := range doc.items {
		it := &doc.items[i]
		if it.rule != "" {
			return nil, errors.New(it.reason)
		}
		item, err := w.r.feedItem(it)
		if err != nil {
			return nil, err
		}
		out = append(out, item.Observation)
	}
	return out, nil
}
