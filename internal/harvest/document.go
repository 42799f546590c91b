package harvest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/translate"
)

// reading is one document of a walk on its way from entries to observations.
type reading struct {
	r       *run
	doc     *atompmh.Document
	found   map[string]int // identifier -> index in winners
	winners []winner
	inputs  []byte // the bytes of the winners, one after the other
	meter   meter
	piece   piece
}

// winner is the entry of a document that counts for its record: the newest, of
// equal ones the first, whatever becomes of it (D106).
type winner struct {
	item     event.Item
	updated  time.Time
	entry    *atompmh.Entry // nil of a bad one
	from, to int            // its place in reading.inputs
}

// begin readies g for a document. What it has allocated for the one before is
// used again.
func (g *reading) begin(r *run, d *atompmh.Document) {
	if g.found == nil {
		g.found = map[string]int{}
	}
	clear(g.found)
	clear(g.winners)
	*g = reading{r: r, doc: d, found: g.found, winners: g.winners[:0], inputs: g.inputs[:0], meter: r.meter(), piece: piece{doc: event.Document{URL: d.URL}}}
}

// document reads one document to its end, picks each record's winner, and hands
// them on in the order of the Source's stamps. Of a document that cannot be read
// to its end nothing is taken.
func (r *run) document(ctx context.Context, d *atompmh.Document, p *pipe) error {
	g := &r.reading
	g.begin(r, d)
	defer func() { r.place.done(g.meter.taken) }() // unless it goes to the log
	for {
		e, err := d.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err := g.meter.entry(ctx); err != nil {
			return err
		}
		var bad *atompmh.EntryError
		switch {
		case errors.As(err, &bad):
			g.bad(bad)
		case err != nil:
			return err
		default:
			if err := g.take(ctx, e); err != nil {
				return err
			}
		}
		if r.entries.Add(1)%1000 == 0 {
			r.tell()
		}
	}
	if id := d.Feed().ID; d.Index == 0 && id != "" && r.memory.FeedID != "" && id != r.memory.FeedID {
		// The walk sees this before the first entry, unless the id stands behind
		// the entries.
		return fmt.Errorf("%s: %w from %q to %q", d.URL, atompmh.ErrFeedID, r.memory.FeedID, id)
	}
	if err := g.finish(); err != nil {
		return err
	}
	g.piece.memory, g.meter.taken = g.meter.taken, 0
	return p.send(g.piece)
}

// bad puts an entry into quarantine. Its record is met all the same.
func (g *reading) bad(e *atompmh.EntryError) {
	g.r.note(func(p *Report) { p.Quarantined++ })
	g.piece.quarantine = append(g.piece.quarantine,
		event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: e.ID, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if !meets(e.ID) {
		return
	}
	w := winner{item: event.Item{Quarantine: true}, updated: e.Updated}
	w.item.Record, w.item.SourceIdentifier = g.r.src.Wants.Identifier(e.ID)
	if !e.Updated.IsZero() {
		w.item.Order, _ = event.StampOf(e.Updated)
	}
	if at, again := g.found[e.ID]; !again {
		g.set(e.ID, w)
	} else if e.Updated.After(g.winners[at].updated) {
		g.winners[at] = w
	}
}

func (g *reading) set(id string, w winner) {
	g.found[id] = len(g.winners)
	g.winners = append(g.winners, w)
}

// meets reports whether the identifier of a bad entry tells which record it is
// about. The log has none with a longer one than it takes.
func meets(id string) bool { return id != "" && len(id) <= event.MaxIdentifier }

// ruleOf is the rule that an entry breaks which was read and cannot be translated.
func ruleOf(err error) string {
	switch {
	case errors.Is(err, event.ErrTooMuch):
		return ruleTooMuch
	case errors.Is(err, translate.ErrUnreachable):
		return ruleUnreachable
	}
	return ruleLocal
}

// take makes an entry its record's winner, when it is.
func (g *reading) take(ctx context.Context, e *atompmh.Entry) error {
	at, again := g.found[e.Record()]
	if !again {
		if w, ok := g.winner(e); ok {
			g.set(e.Record(), w)
		}
		return nil
	}
	old := &g.winners[at]
	switch c := e.Updated.Compare(old.updated); {
	case c > 0, c == 0 && old.entry == nil: // what is bad has nothing to say
		if w, ok := g.winner(e); ok {
			g.winners[at] = w
		}
	case c == 0 && e.Kind != old.entry.Kind && !old.item.Unselected:
		return g.tie(ctx, old, e)
	}
	return nil
}

// winner translates an entry. What cannot be translated is bad; what the
// configuration does not select, and what another bridge gives back, is left
// alone.
func (g *reading) winner(e *atompmh.Entry) (winner, bool) {
	it, err := g.r.item(e)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		g.r.note(func(p *Report) { p.Skipped++ })
		if !errors.Is(err, translate.ErrUnselected) || g.r.old(&it.Observation) {
			return winner{}, false
		}
		it.Unselected = true
	case err != nil:
		g.bad(&atompmh.EntryError{Rule: ruleOf(err), URL: g.doc.URL, Line: e.Line, Column: e.Column, ID: e.Record(), Updated: e.Updated, Reason: err.Error(), Input: g.doc.Input()})
		return winner{}, false
	}
	if len(it.Links) > 0 {
		for _, l := range e.Alternates() {
			g.r.unreachable(g.doc.URL, e.Line, e.Column, l.Href)
		}
	}
	it.Late = g.doc.Late(e.Updated)
	w := winner{item: it, updated: e.Updated, entry: e, from: len(g.inputs)}
	g.inputs = g.doc.AppendEntry(g.inputs)
	w.to = len(g.inputs)
	return w, true
}

// old reports whether since leaves an observation out, and with it all that is
// older: then nothing has to remember that its record was met.
func (r *run) old(o *event.Observation) bool {
	since := r.src.Wants.Since
	return since.Known() && o.Modified.Known() && o.Modified.Before(since) && o.Modified == o.Order
}

// unreachable reports an alternate that cannot be asked for.
func (r *run) unreachable(url string, line, column int, href string) {
	if event.Public(href) && !event.OnTheWeb(href) {
		r.problem(ruleUnreachable, fmt.Sprintf("%s: alternate %s is not on the web; it is passed on as a related link", strictxml.Place(url, line, column), strictxml.Clip(href)))
	}
}

// item is what an entry says of its record, as the log takes it.
func (r *run) item(e *atompmh.Entry) (event.Item, error) {
	wants := r.wants()
	o, err := translate.FromEntry(e, &wants)
	it := event.Item{Observation: o}
	it.Claim = it.ClaimOf()
	return it, err
}

// tie decides between an active and a deletion entry with the same stamp by
// asking for an alternate (A1, S9). Where the answer does not tell, both go to
// quarantine, as one piece.
func (g *reading) tie(ctx context.Context, old *winner, e *atompmh.Entry) error {
	active := old.entry
	if e.Kind == atompmh.Active {
		active = e
	}
	alive, err := g.r.alive(ctx, active)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		g.r.note(func(p *Report) { p.Quarantined++ })
		g.piece.quarantine = append(g.piece.quarantine, event.Quarantined{
			URL: g.doc.URL, Line: e.Line, Column: e.Column, Record: e.ID, Rule: ruleTie, Input: g.doc.Frame(g.inputs[old.from:old.to], g.doc.AppendEntry(nil)),
			Reason: "an active and a deletion entry have the same stamp, and whether the record exists could not be found out: " + err.Error(),
		})
		old.item.Quarantine = true
		return nil
	}
	is := "gone"
	if alive {
		is = "there"
	}
	g.r.problem(ruleTie, fmt.Sprintf("%s:%d:%d: record %q has an active and a deletion entry with the same stamp; its alternate says that it is %s",
		g.doc.URL, e.Line, e.Column, e.ID, is))
	if alive == (e.Kind == atompmh.Active) {
		if w, ok := g.winner(e); ok {
			*old = w
		}
	}
	return nil
}

// ruleTie is the rule of what tie quarantines; Replay asks again.
const ruleTie = "A1"

// finish completes the piece, now that the whole document was read.
func (g *reading) finish() error {
	feed, x := g.doc.Feed(), &g.piece
	x.doc.FeedID, x.doc.FeedTitle = feed.ID, feed.Title
	x.doc.FeedUpdated, _ = event.StampOf(feed.Updated)
	x.doc.Feed = translate.FeedOf(feed)
	complete := g.doc.Complete()
	x.items = make([]event.Item, 0, len(g.winners))
	for _, i := range g.inOrder() {
		w := &g.winners[i]
		// An active entry without a wanted format (A14) is no absence.
		w.item.Complete = complete && w.entry != nil && (w.entry.Kind == atompmh.Deletion || !w.item.Deleted)
		x.items = append(x.items, w.item)
	}
	c, ok := g.doc.Cursor()
	if !ok {
		return fmt.Errorf("%s: %w", g.doc.URL, atompmh.ErrUnread)
	}
	x.active = int64(g.doc.Active)
	var err error
	x.last = true
	x.cursor, err = json.Marshal(cursor{Walk: c, Active: x.active})
	return err
}

// inOrder returns the indexes of the winners in the order of their stamps, of
// equal ones in that of the document.
func (g *reading) inOrder() []int {
	order := make([]int, len(g.winners))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(g.winners[a].item.Order.Compare(g.winners[b].item.Order), a-b)
	})
	return order
}
