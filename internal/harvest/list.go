package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Rules of this adapter: an entry that cannot be taken, one that says too much, a change that nobody
// knows, content that is not what its list says, changes that are not in the
// order of time, a time that lies in the future, a resource that stands twice in
// a Resource List, and one whose loc has a user name.
const (
	ruleLocal   = "local"
	ruleTooMuch = "size"
	ruleChange  = "change"
	ruleHash    = "hash"
	ruleOrder   = "order"
	ruleLate    = "late"
	ruleTwice   = "twice"
	ruleUser    = "user"
)

// listing is one list of a pass on its way from entries to observations.
type listing struct {
	r     *run
	doc   *resourcesync.List
	id    int64 // of the list, for places
	wants translate.Wants
	at    event.Stamp // of a baseline
	items []event.Item
	piece piece
	meter meter
	met   map[string]struct{} // the records of a baseline's list
}

// list reads one list to its end, picks each record's last word, and hands that
// on. Of a list that cannot be read to its end nothing is taken.
func (r *run) list(ctx context.Context, d *resourcesync.List, p *pipe) error {
	g := &listing{r: r, doc: d, id: listID(d.Identity), wants: r.wants(), meter: r.meter(), piece: piece{doc: event.Document{URL: d.URL}}}
	g.at = stampOf(d.Head().At)
	g.items = make([]event.Item, 0, p.latest) // the lists of an index are mostly of one length
	if d.Baseline {
		g.met = make(map[string]struct{}, p.latest)
	}
	defer func() { r.place.done(g.meter.taken) }() // unless it goes to the log
	for {
		e, err := d.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err := g.meter.entry(ctx); err != nil {
			return err
		}
		var bad *resourcesync.EntryError
		switch {
		case errors.As(err, &bad):
			g.bad(bad)
		case err != nil:
			return err
		default:
			g.take(e)
		}
		if r.entries.Add(1)%1000 == 0 {
			r.tell()
		}
	}
	if err := g.finish(p); err != nil {
		return err
	}
	g.piece.memory, g.meter.taken = g.meter.taken, 0
	return p.send(g.piece)
}

// listID is 64 bits of a hash of what identifies a list; never 0, which is no
// list.
func listID(identity string) int64 { return event.KeyBits(identity) | 1 }

// wants is what the set wants, as far as translating needs to know it.
func (r *run) wants() translate.Wants {
	w := r.src.Wants
	w.Published = r.src.Content != event.Mirror
	return w
}

// bad puts an entry into quarantine. Its record is met all the same.
func (g *listing) bad(e *resourcesync.EntryError) {
	g.r.note(func(p *Report) { p.Quarantined++ })
	record := cmp.Or(e.ID, e.Loc)
	g.piece.quarantine = append(g.piece.quarantine,
		event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: record, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if meets(record) {
		it := event.Item{Quarantine: true}
		it.Record, it.SourceIdentifier = g.wants.Identifier(record)
		it.Order = stampOf(e.Datetime)
		g.add(&it)
	}
}

// take translates an entry.
func (g *listing) take(e *resourcesync.Entry) {
	it, err := observe(e, &g.wants, g.doc.Baseline)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		g.r.note(func(p *Report) { p.Skipped++ })
		if errors.Is(err, translate.ErrUnselected) && e.Metadata.ID != "" && e.Metadata.ID != e.Loc { // another entry of it may be selected
			it.Unselected = true
			g.add(&it)
		}
		return
	case err != nil:
		g.refuse(e, ruleOf(err), err.Error())
		return
	case !g.doc.Baseline && !understood(e.Metadata.Change):
		g.refuse(e, ruleChange, fmt.Sprintf("change %q; want created, updated or deleted", e.Metadata.Change))
		return
	}
	if hasUser(e.Loc) {
		g.r.problem(ruleUser, fmt.Sprintf("%s:%d:%d: record %q: its loc has a user name or password, which is not sent", g.doc.URL, e.Line, e.Column, it.Record))
	}
	if !g.add(&it) {
		g.r.problem(ruleTwice, fmt.Sprintf("%s:%d:%d: record %q stands in the list twice; the first entry is taken", g.doc.URL, e.Line, e.Column, it.Record))
	} else if g.doc.Baseline && !it.Deleted {
		g.piece.active++
	}
}

// observe is what an entry says of its record. A deletion without a datetime says
// where to ask whether it holds (D83).
func observe(e *resourcesync.Entry, wants *translate.Wants, baseline bool) (event.Item, error) {
	o, err := translate.FromResource(e, wants)
	if o.Deleted && !baseline && !o.Order.Known() && e.Metadata.Change == resourcesync.Deleted {
		o.Representations = []event.Representation{{Href: e.Loc, Length: event.NoLength}}
	}
	return event.Item{Observation: o, Baseline: baseline}, err
}

// add gives an item its place; false when it is left out, since its record stands
// in a baseline already.
func (g *listing) add(it *event.Item) bool {
	it.Place = event.Place{List: g.id, Position: int64(g.doc.Position())}
	if it.Baseline = g.doc.Baseline; it.Baseline {
		if _, again := g.met[it.Record]; again {
			return false
		}
		g.met[it.Record] = struct{}{}
		it.Place.Position, it.Order = 0, g.at
	}
	g.date(it)
	g.items = append(g.items, *it)
	return true
}

// refuse puts an entry into quarantine that was read and cannot be taken.
func (g *listing) refuse(e *resourcesync.Entry, rule, reason string) {
	g.bad(&resourcesync.EntryError{Rule: rule, URL: g.doc.URL, Line: e.Line, Column: e.Column, Loc: e.Loc, ID: e.Metadata.ID, Reason: reason, Input: g.doc.Input()})
}

// understood tells whether it is known what became of a resource. Where the word
// is missing it is there, as in any other list.
func understood(change string) bool {
	switch change {
	case "", resourcesync.Created, resourcesync.Updated, resourcesync.Deleted:
		return true
	}
	return false
}

// hasUser tells whether a URL has a user name.
func hasUser(loc string) bool {
	if !strings.Contains(loc, "@") {
		return false
	}
	u, err := url.Parse(loc)
	return err == nil && u.User != nil
}

// date finds out whether the moment of an item can be trusted.
func (g *listing) date(it *event.Item) {
	it.Late = it.Order.Known() && g.doc.Late(it.Order.Time())
	if it.Late {
		g.r.problem(ruleLate, fmt.Sprintf("%s: record %q at %s, which is later than the answer itself; it does not move the mark", g.doc.URL, it.Record, it.Order))
	}
}

// finish completes the piece, now that the whole list was read.
func (g *listing) finish(p *pipe) error {
	x := &g.piece
	x.active += p.active
	if g.doc.Baseline {
		x.items = g.items
	} else {
		g.order()
		x.items = g.winners()
	}
	c, ok := g.doc.Cursor()
	if !ok {
		return fmt.Errorf("%s: the list was not read to its end", g.doc.URL)
	}
	var err error
	x.cursor, err = json.Marshal(listCursor{Lists: &c, Active: x.active})
	return err
}

// order turns a list round that begins with its newest change, so that of changes
// of one moment the last one stands last, and so that places count from the end
// that stays.
func (g *listing) order() {
	if !backwards(g.items, g.doc.Head().Dialect == resourcesync.DialectBeta) {
		return
	}
	slices.Reverse(g.items)
	for i, entries := 0, int64(g.doc.Entries); i < len(g.items); i++ {
		at := &g.items[i].Place.Position
		*at = entries + 1 - *at
	}
}

// backwards reports whether each change is no later than the one before it, and
// some are earlier. Where none has a datetime it is what the dialect says: in the
// beta of 2013 the newest stands first. When a resource was modified says
// nothing of when a change was listed (D5).
func backwards(items []event.Item, beta bool) bool {
	earlier, dated := false, 0
	for i := range items {
		if items[i].Order.Known() {
			dated++
		}
		if i > 0 {
			a, b := &items[i-1], &items[i]
			if a.Order.Before(b.Order) {
				return false
			}
			earlier = earlier || b.Order.Before(a.Order)
		}
	}
	if dated == 0 {
		return beta
	}
	return dated == len(items) && (earlier || beta)
}

// winners picks the last word on each record, and puts them in the order of
// time.
func (g *listing) winners() []event.Item {
	last := make(map[string]int, len(g.items))
	ordered := true
	for i := range g.items {
		it := &g.items[i]
		if j, again := last[it.Record]; again && before(it, &g.items[j]) {
			g.r.problem(ruleOrder, fmt.Sprintf("%s: a change of record %q at %s stands after its later one at %s", g.doc.URL, it.Record, it.Order, g.items[j].Order))
			continue
		}
		last[it.Record] = i
		ordered = ordered && it.Order.Known() && !it.Late
	}
	out := g.items[:0]
	for i := range g.items {
		if last[g.items[i].Record] == i {
			out = append(out, g.items[i])
		}
	}
	if ordered {
		slices.SortStableFunc(out, func(a, b event.Item) int { return a.Order.Compare(b.Order) })
	}
	return out
}

// before tells whether a came before b, as far as stamps that can be trusted
// tell.
func before(a, b *event.Item) bool {
	return a.Order.Known() && b.Order.Known() && !a.Late && !b.Late && a.Order.Before(b.Order)
}

// inputOf writes an observation as a list with the entry that said it, for
// quarantine.
func inputOf(o *event.Observation, list string) ([]byte, error) {
	rep := &o.Representations[0]
	e := resourcesync.Entry{Loc: rep.Href, Metadata: resourcesync.Metadata{Hash: rep.Hash, Encoding: rep.Encoding, Length: resourcesync.Bytes(rep.Length), Type: rep.Type, Title: o.Title}}
	if o.Record != rep.Href {
		e.Metadata.ID = o.Record
	}
	if o.SourceIdentifier != "" {
		e.Metadata.ID = o.SourceIdentifier
	}
	if o.Modified.Known() {
		e.LastMod = resourcesync.Exact(o.Modified.Time())
	}
	doc := resourcesync.Document{Capability: resourcesync.ResourceList, At: resourcesync.Seconds(time.Unix(0, 0)),
		Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: list}}, Entries: []resourcesync.Entry{e}}
	var b bytes.Buffer
	_, err := doc.WriteTo(&b)
	return b.Bytes(), err
}
