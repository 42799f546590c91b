package harvest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/mmcdole/gofeed"

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
	// Advised: it was said that kind atompmh would see more.
	Advised bool `json:"advised,omitempty"`
	// Whole: its archives or pages were read to the last one.
	Whole bool `json:"whole,omitempty"`
}

// feed harvests a legacy feed: RSS, Atom or JSON Feed. It says what is new; what it
// does not have says nothing, because every such feed drops what is old. Where it
// names archives or further pages (RFC 5005 3 and 4, JSON Feed's next_url) these are
// read too.
func (r *run) feed(ctx context.Context) error {
	client, err := follow.New(follow.Options{HTTP: r.documentClient(), Start: r.src.URL, AllowHost: r.src.AllowHost, Now: r.h.now,
		Accept: "application/atom+xml, application/rss+xml, application/rdf+xml, application/feed+json, application/xml;q=0.9, text/xml;q=0.9, application/json;q=0.8, */*;q=0.1"})
	if err != nil {
		return err
	}
	defer client.Close()
	if r.opt.Full {
		r.memory.Feed.Validators = follow.Validators{}
	}
	doc, answer, err := r.feedDocument(ctx, client, r.src.URL, r.memory.Feed.Validators)
	switch status := follow.Status(err); {
	case status == http.StatusNotModified && r.memory.Feed.Validators != follow.Validators{}:
		r.note(func(p *Report) { p.NotModified = true })
		r.reportShort(r.src.URL, true)
		return nil
	case status == http.StatusGone:
		r.warn("the feed has ended (410); the records stay as they are: take the Source out of the configuration")
		return nil
	case err != nil:
		return err
	}
	r.advise(doc, answer.URL)
	p, mark, known := newPipe(ctx, r, true), r.stored.Mark, r.memory.Short != nil
	whole := false
	if err := errors.Join(p.during(func() (err error) {
		whole, err = r.feedPages(ctx, client, p, doc, answer, &mark)
		return err
	})); err != nil {
		return err
	}
	r.reportShort(answer.URL, known)
	r.stored.Mark = mark
	r.memory.Feed.Validators, r.memory.Feed.Whole = answer.Validators, whole
	if !whole {
		r.memory.Feed.Validators = follow.Validators{} // the rest is asked for again
	}
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// feedPages hands a document to the log, and those with older items that it leads
// to. It reports whether all that were wanted could be read: the first time all of
// them, later those that may have something new.
func (r *run) feedPages(ctx context.Context, client *follow.Client, p *pipe, doc *feedDocument, answer *follow.Answer, mark *event.Stamp) (whole bool, err error) {
	seen := map[string]bool{follow.Key(r.src.URL): true, follow.Key(answer.URL): true}
	since, limit := r.stored.Mark.Add(-r.src.Overlap), cmp.Or(r.src.MaxDocuments, 10_000)
	claimed, read := doc.results, int64(0)
	for n := 1; ; n++ {
		read += int64(len(doc.items))
		x, newest := r.feedPiece(doc, answer)
		if newest.After(*mark) {
			*mark = newest
		}
		if err := p.send(x); err != nil {
			return false, err
		}
		all := r.opt.Full || !r.memory.Feed.Whole
		if doc.older == "" || seen[follow.Key(doc.older)] {
			r.memory.compare(claimed, read)
			return true, nil
		}
		if !all && !newest.After(since) {
			return true, nil
		}
		if n >= limit {
			r.warn(fmt.Sprintf("the feed has more than %d pages: %s and those behind it were not read; raise max_documents", limit, doc.older))
			return false, nil
		}
		if follow.Foreign(answer.URL, doc.older) {
			return false, fmt.Errorf("%s: %w: a page of %s, which is not local, may not lead to a file", doc.older, follow.ErrRefused, answer.URL)
		}
		seen[follow.Key(doc.older)] = true
		next, page, err := r.feedDocument(ctx, client, doc.older, follow.Validators{})
		switch {
		case follow.Missing(err): // the page after the last one
			r.problem(ruleFeedPage, answer.URL+": "+err.Error())
			r.memory.compare(claimed, read)
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil:
			r.warn("a page of the feed could not be read, those behind it neither: " + err.Error())
			return false, nil
		}
		doc, answer = next, page
	}
}

// feedDocument asks for a document of the feed and reads it whole.
func (r *run) feedDocument(ctx context.Context, client *follow.Client, url string, v follow.Validators) (*feedDocument, *follow.Answer, error) {
	answer, err := client.Get(ctx, url, v)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Close()
	body, err := io.ReadAll(fetch.Limit(answer.Body, cmp.Or(r.src.Limits.Document, 64<<20), "a feed document"))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", answer.URL, err)
	}
	// Its parser holds all of it, several times.
	if err := r.place.add(ctx, 8*int64(len(body))); err != nil {
		return nil, nil, err
	}
	defer r.place.done(8 * int64(len(body)))
	doc, err := r.newFeedReading(answer.URL, answer.Header.Get("Content-Type")).read(body)
	return doc, answer, err
}

// newFeedReading readies the reading of one document.
func (r *run) newFeedReading(url, contentType string) *feedReading {
	l, parser := r.src.Limits, gofeed.NewParser()
	parser.RSSTranslator = &gofeed.DefaultRSSTranslator{DisableContentImageScan: true}
	return &feedReading{url: url, contentType: contentType, report: r.problem, parse: parser.Parse,
		limits: strictxml.Limits{Document: l.Document, Text: l.Text, Depth: l.Depth, Attributes: l.Attributes}}
}

// advise says what an operator should know of a feed.
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

// reportShort reports a feed that claims to have far more than it leads to. That
// is as usual as it is with feeds of what is new: the operator is warned once.
func (r *run) reportShort(url string, known bool) {
	s := r.memory.Short
	if s == nil {
		return
	}
	r.problem(ruleFeedResults, url+": "+s.String())
	if !known {
		r.warn(s.String())
	}
}

// feedPiece translates the items of a document, in the order of their dates. newest
// is the latest of them that does not lie in the future.
func (r *run) feedPiece(doc *feedDocument, a *follow.Answer) (x piece, newest event.Stamp) {
	x = piece{doc: event.Document{URL: a.URL, FeedID: doc.id, FeedTitle: doc.title, FeedUpdated: doc.updated,
		Feed: translate.FeedOf(&atompmh.Feed{Metadata: doc.metadata.Metadata, Links: doc.links})}, last: true, cursor: []byte(unread)}
	for _, it := range r.feedWinners(doc, a.URL) {
		item, err := r.feedItem(it)
		switch {
		case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
			r.note(func(p *Report) { p.Skipped++ })
			continue
		case err != nil:
			it.bad(ruleOf(err), "%s", err)
			continue
		}
		item.Late = a.Late(item.Modified.Time())
		if !item.Late && item.Modified.After(newest) {
			newest = item.Modified
		}
		x.items = append(x.items, item)
	}
	slices.SortStableFunc(x.items, func(a, b event.Item) int { return a.Modified.Compare(b.Modified) })
	var met []event.Item
	x.quarantine, met = r.badItems(doc, a.URL)
	x.items = append(x.items, met...)
	r.entries.Add(int64(len(doc.items)))
	return x, newest
}

// feedWinners returns of each record the item that counts: the latest, of equally
// late ones the first, and a deletion unless the item is later.
func (r *run) feedWinners(doc *feedDocument, url string) []*feedItem {
	var winners []*feedItem
	found := map[string]int{}
	for i := range doc.items {
		it := &doc.items[i]
		if it.rule != "" {
			continue
		}
		at, again := found[it.entry.ID]
		if !again {
			found[it.entry.ID] = len(winners)
			winners = append(winners, it)
			continue
		}
		first := winners[at]
		if first.entry.Kind != it.entry.Kind {
			winners[at] = undeleted(first, it)
			continue
		}
		counts := "the first counts, that"
		if it.entry.Updated.After(first.entry.Updated) {
			counts, winners[at] = "the later one counts, not that", it
		}
		r.problem(ruleFeedID, fmt.Sprintf("%s: identity %q is there twice; %s in line %d",
			strictxml.Place(url, it.entry.Line, it.entry.Column), strictxml.Clip(it.entry.ID), counts, first.entry.Line))
	}
	return winners
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

// feedItem translates an item into an observation. Such feeds say nothing that
// orders what they say, so Order stays unknown; and they edit items without a
// new date, so the claim is of all that stands in the item.
func (r *run) feedItem(it *feedItem) (event.Item, error) {
	wants := r.selection()
	if len(wants.Formats) > 0 && translate.Wanted(wants.Formats, "text/html") {
		// Most links of most feeds have no type and lead to a page.
		wants.Formats = append(slices.Clone(wants.Formats), "")
	}
	o, err := translate.FromEntry(&it.entry, &wants)
	if err != nil {
		return event.Item{}, err
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
		return event.Item{}, err
	}
	o.Claim = o.ClaimOf()
	if it.content != [sha256.Size]byte{} {
		both := sha256.Sum256(binary.BigEndian.AppendUint64(it.content[:], uint64(o.Claim)))
		o.Claim = int64(binary.BigEndian.Uint64(both[:]))
	}
	return event.Item{Observation: o}, nil
}

// badItems puts what cannot be taken into quarantine. Its record, where it is
// known, is met all the same.
func (r *run) badItems(doc *feedDocument, url string) (quarantine []event.Quarantined, met []event.Item) {
	for i := range doc.items {
		it := &doc.items[i]
		if it.rule == "" {
			continue
		}
		quarantine = append(quarantine, event.Quarantined{URL: url, Line: it.entry.Line, Column: it.entry.Column,
			Record: it.entry.ID, Rule: it.rule, Reason: it.reason, Input: it.input})
		if meets(it.entry.ID) {
			bad := event.Item{Quarantine: true}
			bad.Record, bad.SourceIdentifier = r.src.Selection.Identifier(it.entry.ID)
			met = append(met, bad)
		}
	}
	r.note(func(p *Report) { p.Quarantined += int64(len(quarantine)) })
	return quarantine, met
}

// itemsAgain reads quarantined items of a feed.
func (r *run) itemsAgain(_ context.Context, q *event.Quarantined) ([]event.Observation, error) {
	doc, err := r.newFeedReading(q.URL, "").read(q.Input)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStillBad, err)
	}
	var out []event.Observation
	for i := range doc.items {
		it := &doc.items[i]
		if it.rule != "" {
			return nil, fmt.Errorf("%w: %s", ErrStillBad, it.reason)
		}
		item, err := r.feedItem(it)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrStillBad, err)
		}
		out = append(out, item.Observation)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: it has no item", ErrStillBad)
	}
	return out, nil
}
