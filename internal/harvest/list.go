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

// Rules of this adapter: an entry that cannot be taken, one whose alternates
// cannot be asked for over HTTP, one that says too much, a change that nobody
// knows, content that is not what its list says, changes that are not in the
// order of time, a time that lies in the future, a resource that stands twice in
// a Resource List, and one whose loc has a user name.
const (
	ruleLocal       = "local"
	ruleUnreachable = "unreachable"
	ruleTooMuch     = "size"
	ruleChange      = "change"
	ruleHash        = "hash"
	ruleOrder       = "order"
	ruleLate        = "late"
	ruleTwice       = "twice"
	ruleUser        = "user"
)

// listing is one list of a pass on its way from entries to observations.
type listing struct {
	r     *run
	doc   *resourcesync.List
	id    int64 // of the list, for places
	wants translate.Selection
	at    event.Stamp // of a baseline
	from  event.Stamp // of a list of changes
	said  backlog[event.Item]

	active    int64 // records that a baseline has
	trend     trend
	backwards bool // the newest change comes first
}

// list reads one list to its end, picks each record's last word, and hands that
// on. Of a list that cannot be read to its end nothing is taken.
func (r *run) list(ctx context.Context, d *resourcesync.List, p *pipe) error {
	g := &listing{r: r, doc: d, id: listID(d.Identity), wants: r.selection()}
	if g.at = stampOf(d.Head().At); !d.Baseline {
		g.from = stampOf(d.Head().From)
	}
	g.said = backlog[event.Item]{r: r, meter: r.meter(), record: func(it *event.Item) string { return it.Record },
		values: make([]event.Item, 0, min(p.latest, backlogMemory))} // the lists of an index are mostly of one length
	defer g.said.close()
	broken := false
	err := g.said.read(ctx, d.URL, func() error {
		e, err := d.Next()
		var bad *resourcesync.EntryError
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
	}, g.said.toFile)
	if broken {
		return nil // the walk says what that means
	}
	if err != nil {
		return err
	}
	return g.finish(ctx, p)
}

// listID is 64 bits of a hash of what identifies a list; never 0, which is no
// list.
func listID(identity string) int64 { return event.KeyBits(identity) | 1 }

// selection is what the set wants, as far as translating needs to know it.
func (r *run) selection() translate.Selection {
	w := r.src.Selection
	w.Published = r.src.Content != event.Mirror
	return w
}

// bad puts an entry into quarantine. Its record is met all the same.
func (g *listing) bad(e *resourcesync.EntryError) {
	record := cmp.Or(e.ID, e.Loc)
	g.said.addBad(event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: record, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
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
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == resourcesync.RelAlternate && !it.Deleted {
			g.r.unreachable(g.doc.URL, e.Line, e.Column, l.Href)
		}
	}
	if hasUser(e.Loc) {
		g.r.problem(ruleUser, fmt.Sprintf("%s:%d:%d: record %q: its loc has a user name or password, which is not sent", g.doc.URL, e.Line, e.Column, it.Record))
	}
	g.add(&it)
}

// observe is what an entry says of its record. A deletion without a datetime says
// where to ask whether it holds (D83).
func observe(e *resourcesync.Entry, wants *translate.Selection, baseline bool) (event.Item, error) {
	o, err := translate.FromResource(e, wants)
	if o.Deleted && !baseline && !o.Order.Known() && e.Metadata.Change == resourcesync.Deleted {
		o.Representations = []event.Representation{{Href: e.Loc, Length: event.NoLength}}
	}
	return event.Item{Observation: o, Baseline: baseline}, err
}

// add gives an item its place.
func (g *listing) add(it *event.Item) {
	it.Place = event.Place{Part: g.doc.Set, List: g.id, Position: int64(g.doc.Position()), From: g.from}
	if it.Baseline = g.doc.Baseline; it.Baseline {
		it.Order = g.at
	}
	g.date(it)
	g.trend.add(it.Order)
	g.said.add(*it, textOf(&it.Observation))
}

// textOf is about how many bytes of text an observation has.
func textOf(o *event.Observation) int {
	n := len(o.Record) + len(o.Title) + len(o.Via.Href) + len(o.Via.Hash)
	for i := range o.Representations {
		n += len(o.Representations[i].Href) + len(o.Representations[i].Hash)
	}
	for i := range o.Links {
		n += len(o.Links[i].Href) + len(o.Links[i].Hash)
	}
	return n
}

// refuse puts an entry into quarantine that was read and cannot be taken.
func (g *listing) refuse(e *resourcesync.Entry, rule, reason string) {
	g.bad(&resourcesync.EntryError{Rule: rule, URL: g.doc.URL, Line: e.Line, Column: e.Column, Loc: e.Loc, ID: e.Metadata.ID, Datetime: e.Metadata.Datetime, Reason: reason, Input: g.doc.Input()})
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

// finish hands on what counts, now that the whole list was read.
func (g *listing) finish(ctx context.Context, p *pipe) error {
	g.backwards = g.trend.backwards(g.doc.Head().Dialect == resourcesync.DialectBeta)
	before := p.active
	last, err := g.said.handOn(ctx, p, piece{doc: event.Document{URL: g.doc.URL}}, func(items []event.Item) ([]event.Item, error) {
		return g.counting(items), nil
	})
	if err != nil {
		return err
	}
	last.last, last.active = true, before+g.active
	if g.doc.Checkpoint() {
		state, ok := g.doc.State()
		if !ok {
			return fmt.Errorf("%s: the list was not read to its end", g.doc.URL)
		}
		if last.cursor, err = json.Marshal(listCursor{Lists: state, Active: last.active}); err != nil {
			return err
		}
	}
	return p.send(last)
}

// counting picks what counts of all that the list says of some records: in a
// baseline the first entry of each, in a list of changes the last one.
func (g *listing) counting(items []event.Item) []event.Item {
	if g.doc.Baseline {
		return g.firsts(items)
	}
	if g.backwards {
		g.turn(items)
	}
	return g.winners(items)
}

// firsts leaves out the entries of records that stand in a baseline already.
func (g *listing) firsts(items []event.Item) []event.Item {
	met := make(map[string]struct{}, len(items))
	out := items[:0]
	for i := range items {
		it := &items[i]
		good := !it.Quarantine && !it.Unselected
		if _, again := met[it.Record]; again {
			if good {
				g.r.problem(ruleTwice, fmt.Sprintf("%s: record %q stands in the list twice, as entry %d too; the first is taken", g.doc.URL, it.Record, it.Place.Position))
			}
			continue
		}
		met[it.Record] = struct{}{}
		if good && !it.Deleted {
			g.active++
		}
		it.Place.Position = 0
		out = append(out, *it)
	}
	return out
}

// turn turns a list round that begins with its newest change, so that of changes
// of one moment the last one stands last, and so that places count from the end
// that stays.
func (g *listing) turn(items []event.Item) {
	slices.Reverse(items)
	for i := range items {
		at := &items[i].Place.Position
		*at = int64(g.doc.Entries) + 1 - *at
	}
}

// trend is the way that the datetimes of a list go.
type trend struct {
	last             event.Stamp
	n, dated         int
	forward, earlier bool // some are later than the one before; earlier
}

func (t *trend) add(s event.Stamp) {
	if t.n > 0 {
		t.forward = t.forward || t.last.Before(s)
		t.earlier = t.earlier || s.Before(t.last)
	}
	if s.Known() {
		t.dated++
	}
	t.last = s
	t.n++
}

// backwards reports whether each change is no later than the one before it, and
// some are earlier. Where none has a datetime it is what the dialect says: in the
// beta of 2013 the newest stands first. When a resource was modified says
// nothing of when a change was listed (D5).
func (t *trend) backwards(beta bool) bool {
	switch {
	case t.forward:
		return false
	case t.dated == 0:
		return beta
	}
	return t.dated == t.n && (t.earlier || beta)
}

// winners picks the last word on each record, and puts them in the order of
// time.
func (g *listing) winners(items []event.Item) []event.Item {
	last := make(map[string]int, len(items))
	ordered := true
	for i := range items {
		it := &items[i]
		if j, again := last[it.Record]; again && before(it, &items[j]) {
			g.r.problem(ruleOrder, fmt.Sprintf("%s: a change of record %q at %s stands after its later one at %s", g.doc.URL, it.Record, it.Order, items[j].Order))
			continue
		}
		last[it.Record] = i
		ordered = ordered && it.Order.Known() && !it.Late
	}
	out := items[:0]
	for i := range items {
		if last[items[i].Record] == i {
			out = append(out, items[i])
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
