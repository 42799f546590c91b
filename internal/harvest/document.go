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
	r      *run
	doc    *atompmh.Document
	said   backlog[saying]
	inputs []byte         // the bytes of the entries in said, one after the other
	found  map[string]int // identifier -> index among the entries that count
}

// saying is what an entry says of its record.
type saying struct {
	Item         event.Item
	Updated      time.Time
	Kind         atompmh.Kind // 0 of a bad entry
	Line, Column int
	Input        []byte // its bytes, once it has waited in a file
	from, to     int    // else their place in reading.inputs
}

// begin readies g for a document. What it has allocated for the one before is
// used again.
func (g *reading) begin(r *run, d *atompmh.Document) {
	g.empty()
	*g = reading{r: r, doc: d, found: g.found, inputs: g.inputs,
		said: backlog[saying]{r: r, values: g.said.values, meter: r.meter(), record: func(s *saying) string { return s.Item.Record }}}
}

// empty forgets what was read.
func (g *reading) empty() {
	if len(g.found) > 2*spillBehind || g.found == nil {
		g.found = map[string]int{}
	}
	clear(g.found)
	g.said.values, g.inputs = reuse(g.said.values), g.inputs[:0]
	if cap(g.inputs) > inputsKept {
		g.inputs = nil
	}
}

// inputsKept is how many bytes are kept for the entries of the next document.
const inputsKept = 4 << 20

// document reads one document to its end, picks of each record the entry that
// counts, and hands them on in the order of the Source's stamps. Of a document that
// cannot be read to its end nothing is taken.
func (r *run) document(ctx context.Context, d *atompmh.Document, p *pipe) error {
	g := &r.reading
	g.begin(r, d)
	defer g.said.close()
	broken := false
	err := g.said.read(ctx, d.URL, func() error {
		e, err := d.Next()
		var bad *atompmh.EntryError
		switch {
		case errors.As(err, &bad):
			g.bad(bad)
		case err != nil:
			broken = !errors.Is(err, io.EOF)
			return err
		default:
			g.take(e)
		}
		return nil
	}, g.toFile)
	if broken {
		return nil // the walk says what that means
	}
	if err != nil {
		return err
	}
	if id := d.Feed().ID; d.Index == 0 && id != "" && r.memory.FeedID != "" && id != r.memory.FeedID {
		// The walk sees this before the first entry, unless the id stands behind
		// the entries.
		return fmt.Errorf("%s: %w from %q to %q", d.URL, atompmh.ErrFeedID, r.memory.FeedID, id)
	}
	return g.finish(ctx, p)
}

// toFile lets what was read so far wait in a file.
func (g *reading) toFile() error {
	for i := range g.said.values {
		s := &g.said.values[i]
		s.Input = g.inputs[s.from:s.to]
	}
	err := g.said.toFile()
	g.empty()
	return err
}

// bad puts an entry into quarantine. Its record is met all the same.
func (g *reading) bad(e *atompmh.EntryError) {
	g.said.addBad(event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: e.ID, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if !meets(e.ID) {
		return
	}
	s := saying{Item: event.Item{Quarantine: true}, Updated: e.Updated}
	s.Item.Record, s.Item.SourceIdentifier = g.r.src.Selection.Identifier(e.ID)
	if !e.Updated.IsZero() {
		s.Item.Order, _ = event.StampOf(e.Updated)
	}
	g.said.add(s, 0)
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

// take translates an entry. What cannot be translated is bad; what the
// configuration does not select, and what another bridge gives back, is left
// alone.
func (g *reading) take(e *atompmh.Entry) {
	it, err := g.r.item(e)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		g.r.note(func(p *Report) { p.Skipped++ })
		if !errors.Is(err, translate.ErrUnselected) || g.r.old(&it.Observation) {
			return
		}
		it.Unselected = true
	case err != nil:
		g.bad(&atompmh.EntryError{Rule: ruleOf(err), URL: g.doc.URL, Line: e.Line, Column: e.Column, ID: e.Record(), Updated: e.Updated, Reason: err.Error(), Input: g.doc.Input()})
		return
	}
	if len(it.Links) > 0 {
		for _, l := range e.Alternates() {
			g.r.unreachable(g.doc.URL, e.Line, e.Column, l.Href)
		}
	}
	it.Late = g.doc.Late(e.Updated)
	s := saying{Item: it, Updated: e.Updated, Kind: e.Kind, Line: e.Line, Column: e.Column, from: len(g.inputs)}
	g.inputs = g.doc.AppendEntry(g.inputs)
	s.to = len(g.inputs)
	g.said.add(s, 2*(s.to-s.from))
}

// counting picks of each record the entry that counts, whatever becomes of it: the
// newest, of equal ones the first, but what is bad has nothing to say (D106). They
// come in the order of their stamps, of equal ones in that of the document.
func (g *reading) counting(ctx context.Context, said []saying) ([]event.Item, error) {
	clear(g.found)
	complete, n := g.doc.Complete(), 0
	for i := range said {
		s := &said[i]
		at, again := g.found[s.Item.Record]
		if !again {
			g.found[s.Item.Record] = n
			said[n] = *s
			n++
			continue
		}
		counts := &said[at]
		switch c := s.Updated.Compare(counts.Updated); {
		case c > 0, c == 0 && counts.Kind == 0 && s.Kind != 0:
			*counts = *s
		case c == 0 && s.Kind != 0 && s.Kind != counts.Kind && !counts.Item.Unselected:
			if err := g.tie(ctx, counts, s); err != nil {
				return nil, err
			}
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(said[a].Item.Order.Compare(said[b].Item.Order), a-b) })
	items := make([]event.Item, n)
	for i, at := range order {
		s := &said[at]
		// An active entry without a wanted format (A14) is no absence.
		s.Item.Complete = complete && s.Kind != 0 && (s.Kind == atompmh.Deletion || !s.Item.Deleted)
		items[i] = s.Item
	}
	return items, nil
}

// old reports whether since leaves an observation out, and with it all that is
// older: then nothing has to remember that its record was met.
func (r *run) old(o *event.Observation) bool {
	since := r.src.Selection.Since
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
	wants := r.selection()
	o, err := translate.FromEntry(e, &wants)
	it := event.Item{Observation: o}
	it.Claim = it.ClaimOf()
	return it, err
}

// tie decides between an active and a deletion entry with the same stamp by
// asking for an alternate (A1, S9). Where the answer does not tell, both go to
// quarantine, as one piece.
func (g *reading) tie(ctx context.Context, old, s *saying) error {
	q := event.Quarantined{URL: g.doc.URL, Line: s.Line, Column: s.Column, Record: cmp.Or(s.Item.SourceIdentifier, s.Item.Record), Rule: ruleTie,
		Input: g.doc.Frame(g.input(old), g.input(s))}
	var alive bool
	entries, err := entriesOf(&q)
	if err == nil {
		alive, err = g.r.anyAlive(ctx, entries)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		q.Reason = "an active and a deletion entry have the same stamp, and whether the record exists could not be found out: " + err.Error()
		g.said.addBad(q)
		old.Item.Quarantine = true
		return nil
	}
	is := "gone"
	if alive {
		is = "there"
	}
	g.r.problem(ruleTie, fmt.Sprintf("%s:%d:%d: record %q has an active and a deletion entry with the same stamp; its alternate says that it is %s",
		g.doc.URL, s.Line, s.Column, q.Record, is))
	if alive == (s.Kind == atompmh.Active) {
		*old = *s
	}
	return nil
}

func (g *reading) input(s *saying) []byte {
	if s.Input != nil {
		return s.Input
	}
	return g.inputs[s.from:s.to]
}

// ruleTie is the rule of what tie quarantines; Replay asks again.
const ruleTie = "A1"

// finish hands on what counts, now that the whole document was read.
func (g *reading) finish(ctx context.Context, p *pipe) error {
	feed := g.doc.Feed()
	x := piece{doc: event.Document{URL: g.doc.URL, FeedID: feed.ID, FeedTitle: feed.Title, Feed: translate.FeedOf(feed)}}
	x.doc.FeedUpdated, _ = event.StampOf(feed.Updated)
	if g.said.spill != nil {
		if err := g.toFile(); err != nil { // the rest, with its bytes
			return err
		}
	}
	x, err := g.said.handOn(ctx, p, x, func(said []saying) ([]event.Item, error) { return g.counting(ctx, said) })
	if err != nil {
		return err
	}
	state, ok := g.doc.State()
	if !ok {
		return fmt.Errorf("%s: %w", g.doc.URL, atompmh.ErrUnread)
	}
	x.active = int64(g.doc.Active)
	x.last = true
	if x.cursor, err = json.Marshal(cursor{Walk: state, Active: x.active}); err != nil {
		return err
	}
	g.empty() // while it waits
	return p.send(x)
}
