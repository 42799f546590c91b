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
}

// feed harvests a legacy feed: RSS, Atom or JSON Feed, one document. It says what
// is new; what it does not have says nothing, because every such feed drops what
// is old.
func (r *run) feed(ctx context.Context) error {
	answer, err := r.askFeed(ctx)
	switch status := follow.Status(err); {
	case status == http.StatusNotModified && r.memory.Feed.Validators != follow.Validators{}:
		r.note(func(p *Report) { p.NotModified = true })
		return nil
	case status == http.StatusGone:
		r.warn("the feed has ended (410); the records stay as they are: take the Source out of the configuration")
		return nil
	case err != nil:
		return err
	}
	defer answer.Close()
	body, err := io.ReadAll(fetch.Limit(answer.Body, cmp.Or(r.src.Limits.Document, 64<<20), "a feed document"))
	if err != nil {
		return fmt.Errorf("%s: %w", answer.URL, err)
	}
	// Its parser holds all of it, several times.
	if err := r.place.add(ctx, 8*int64(len(body))); err != nil {
		return err
	}
	defer r.place.done(8 * int64(len(body)))
	doc, err := r.newFeedReading(answer.URL, answer.Header.Get("Content-Type")).read(body)
	if err != nil {
		return err
	}
	r.advise(doc, answer.URL)
	if err := r.takeFeed(ctx, doc, answer); err != nil {
		return err
	}
	r.memory.Feed.Validators = answer.Validators
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// askFeed asks for the feed, conditionally unless everything is wanted.
func (r *run) askFeed(ctx context.Context) (*follow.Answer, error) {
	client, err := follow.New(follow.Options{HTTP: r.documentClient(), Start: r.src.URL, AllowHost: r.src.AllowHost, Now: r.h.now,
		Accept: "application/atom+xml, application/rss+xml, application/rdf+xml, application/feed+json, application/xml;q=0.9, text/xml;q=0.9, application/json;q=0.8, */*;q=0.1"})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if r.opt.Full {
		r.memory.Feed.Validators = follow.Validators{}
	}
	return client.Get(ctx, r.src.URL, r.memory.Feed.Validators)
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

// takeFeed hands the items of a document to the log, in the order of their dates.
func (r *run) takeFeed(ctx context.Context, doc *feedDocument, a *follow.Answer) error {
	x := piece{doc: event.Document{URL: a.URL, FeedID: doc.id, FeedTitle: doc.title, FeedUpdated: doc.updated}, cursor: []byte(unread)}
	mark := r.stored.Mark
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
		if !item.Late && item.Modified.After(mark) {
			mark = item.Modified
		}
		x.items = append(x.items, item)
	}
	slices.SortStableFunc(x.items, func(a, b event.Item) int { return a.Modified.Compare(b.Modified) })
	var met []event.Item
	x.quarantine, met = r.badItems(doc, a.URL)
	x.items = append(x.items, met...)
	r.entries.Add(int64(len(doc.items)))
	p := newPipe(ctx, r, true)
	if err := errors.Join(p.send(x), p.close()); err != nil {
		return err
	}
	r.stored.Mark = mark
	return nil
}

// feedWinners returns of each record the item that counts: the first, and a
// deletion unless the item is later.
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
		r.problem(ruleFeedID, fmt.Sprintf("%s: identity %q is there twice; the first counts, that in line %d",
			strictxml.Place(url, it.entry.Line, it.entry.Column), strictxml.Clip(it.entry.ID), first.entry.Line))
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
	wants := r.wants()
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
			bad.Record, bad.SourceIdentifier = r.src.Wants.Identifier(it.entry.ID)
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
