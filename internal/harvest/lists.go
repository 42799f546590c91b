package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Rules of our own that a list, or an entry of any protocol, can break.
const (
	ruleLocal       = "local"       // the entry cannot be translated
	ruleUnreachable = "unreachable" // its alternates cannot be asked for over HTTP
	ruleTooMuch     = "size"        // it says more of its record than is taken
	ruleChange      = "change"      // its change is none that is known
	ruleHash        = "hash"        // its content is not as the list says
	ruleOrder       = "order"       // changes are not in the order of time
	ruleLate        = "late"        // its time lies in the future
	ruleTwice       = "twice"       // its resource is in a Resource List already
	ruleUser        = "user"        // its loc has a user name
)

// listWalk is a walk over the lists of a ResourceSync Source, from the newest to the
// oldest that is needed.
type listWalk struct {
	r         *run
	walk      *resourcesync.Walk
	datetimes datetimes
}

func (w *listWalk) begin(ctx context.Context, state []byte) (err error) {
	r := w.r
	if w.walk != nil { // the unfinished walk could not go on; the numbers of its sets of resources stay
		r.memory.Lists = w.walk.Result().State
	}
	w.walk = r.src.lists()
	if w.walk.Full, err = r.fullLists(ctx); err != nil {
		return err
	}
	if state == nil {
		if err := r.noteMismatched(ctx); err != nil {
			return err
		}
	}
	w.walk.Client = r.documentClient()
	w.walk.Folder, w.walk.Contents = r.h.Folder, r.wantsDumps()
	w.walk.State, w.walk.Accepted, w.walk.Now = r.memory.Lists, r.memory.Accepted, r.h.now
	w.walk.Failing = r.gapURL()
	w.walk.Ends = func(err error) bool { return errors.Is(err, ErrSpent) }
	w.walk.Report = func(p resourcesync.Problem) { r.problem(p.Rule, p.String()) }
	return unmarshal(state, &w.walk.State)
}

// fullLists reports whether the walk is to read a baseline, either because it is to read
// everything, or because deletions are held that only another baseline can confirm
// (A6).
func (r *run) fullLists(ctx context.Context) (bool, error) {
	if r.full() {
		return true, nil
	}
	held, err := r.h.Log.Held(ctx, r.src.ID, false, r.overdueSince())
	return len(held) > 0, err
}

func (w *listWalk) documents(ctx context.Context) iter.Seq2[document[*event.Item], error] {
	return func(yield func(document[*event.Item], error) bool) {
		for d, err := range w.walk.Documents(ctx) {
			if many, ok := errors.AsType[*resourcesync.TooManyError](err); ok {
				err = &tooManyError{error: err, url: many.URL}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			l := &listDocument{r: w.r, doc: d, id: listID(d.Identity), wants: w.r.selection(), datetimes: &w.datetimes}
			if l.at = w.datetimes.sure(d.At().Time()); !d.Baseline {
				l.from = stampOf(d.Head().From)
			}
			more := yield(l, nil)
			w.r.pack.Store(nil) // what needed it is durable
			w.r.slot.freeMemory(l.memory)
			if !more {
				return
			}
		}
	}
}

func (w *listWalk) result() walkResult {
	result := w.walk.Result()
	o := walkResult{
		NotModified: result.NotModified, Ended: result.Ended, Mark: result.Mark, Complete: result.Complete, Empty: result.Empty, At: w.datetimes.sure(result.At).Time(), Parts: result.Sets,
		Whole: result.Baseline, Full: result.Full, Confirmed: true, Memory: w.r.memory.walkMemory, Short: w.r.memory.Short,
	}
	for _, at := range result.Ats {
		o.Ats = append(o.Ats, w.datetimes.sure(at).Time())
	}
	if result.Ended {
		o.Warnings = []string{"the Source has ended (410); the records stay as they are: take it out of the configuration"}
		return o
	}
	if result.Lost != "" {
		o.Warnings = []string{result.Lost}
	}
	for _, d := range result.Dialects {
		if d != string(resourcesync.Dialect11) {
			o.Dialects = append(o.Dialects, d)
		}
	}
	if g := result.Gap; g != nil {
		o.Gap = &gap{URL: g.URL, Reason: g.Reason, Target: result.Mark}
	}
	o.Memory.Lists = result.State
	return o
}

func (w *listWalk) record(it *event.Item) string { return it.Record }

// listDocument is one list of the Source.
type listDocument struct {
	r         *run
	doc       *resourcesync.List
	id        int64 // of the list, for places
	wants     translate.Selection
	at        event.Stamp // of a baseline
	from      event.Stamp // of a list of changes
	trend     trend
	datetimes *datetimes // of the walk
	// single: the package was of no use, so contents are asked for one by one.
	single bool
	memory int64 // that was taken for the package
}

// listID returns 64 bits of a hash of what identifies a list. It is never 0, which
// means no list.
func listID(identity string) int64 { return event.KeyBits(identity) | 1 }

// selection returns what the set wants, as far as translation needs it.
func (r *run) selection() translate.Selection {
	w := r.src.Selection
	w.Published = r.src.Content != event.Mirror
	return w
}

func (d *listDocument) origin() event.Document { return event.Document{URL: d.doc.URL} }

func (d *listDocument) read(b *backlog[*event.Item], afterEntry func() error) (whole bool, err error) {
	for e, bad := range d.doc.Entries() {
		if bad != nil {
			d.quarantine(b, bad)
		} else {
			d.translate(b, e)
		}
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
	return d.doc.Whole(), nil
}

// quarantine puts an entry into quarantine. Its record counts as met.
func (d *listDocument) quarantine(b *backlog[*event.Item], e *resourcesync.EntryError) {
	record := cmp.Or(e.ID, e.Loc)
	b.addBad(event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: record, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if identifiesRecord(record) {
		it := &event.Item{Quarantine: true}
		it.Record, it.SourceIdentifier = d.wants.Identifier(record)
		it.Order = stampOf(e.Datetime)
		d.add(b, it)
	}
}

// translate makes an observation of an entry.
func (d *listDocument) translate(b *backlog[*event.Item], e *resourcesync.Entry) {
	refuse := func(rule, reason string) {
		d.quarantine(b, &resourcesync.EntryError{Rule: rule, URL: d.doc.URL, Line: e.Line, Column: e.Column, Loc: e.Loc, ID: e.Metadata.ID, Datetime: e.Metadata.Datetime, Reason: reason, Input: d.doc.Input()})
	}
	it, err := observe(e, &d.wants, d.doc.Baseline)
	if d.doc.Package() != nil {
		it.Paths = pathsOf(e, it.Representations)
	}
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		d.r.updateReport(func(p *Report) { p.Skipped++ })
		if errors.Is(err, translate.ErrUnselected) && e.Metadata.ID != "" && e.Metadata.ID != e.Loc { // another entry of it may be selected
			it.Unselected = true
			d.add(b, it)
		}
		return
	case err != nil:
		refuse(ruleOf(err), err.Error())
		return
	case !d.doc.Baseline && !understood(e.Metadata.Change):
		refuse(ruleChange, fmt.Sprintf("change %q; want created, updated or deleted", e.Metadata.Change))
		return
	}
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == resourcesync.RelAlternate && !it.Deleted {
			d.r.reportUnreachable(d.doc.URL, e.Line, e.Column, l.Href)
		}
	}
	if hasUser(e.Loc) {
		d.r.problem(ruleUser, fmt.Sprintf("%s:%d:%d: record %q: its loc has a user name or password, which is not sent", d.doc.URL, e.Line, e.Column, it.Record))
	}
	d.add(b, it)
}

// observe translates an entry into an item. A deletion without a datetime gets the URL
// that can be asked whether it holds.
func observe(e *resourcesync.Entry, wants *translate.Selection, baseline bool) (*event.Item, error) {
	o, err := translate.FromResource(e, wants)
	if o.Deleted && !baseline && !o.Order.Known() && e.Metadata.Change == resourcesync.Deleted {
		o.Representations = asked(e.Loc)
	}
	return &event.Item{Observation: o, Baseline: baseline}, err
}

// asked returns the URL of a deletion that can be asked whether it holds.
func asked(loc string) []event.Representation {
	return []event.Representation{{Href: loc, Length: event.NoLength}}
}

// add adds an item with its place. Its stamp is not trusted if it lies in the future.
func (d *listDocument) add(b *backlog[*event.Item], it *event.Item) {
	it.Place = event.Place{Part: d.doc.Set, List: d.id, Position: int64(d.doc.Position()), From: d.from}
	if it.Baseline = d.doc.Baseline; it.Baseline {
		it.Order = d.at
	}
	if it.Late = it.Order.Known() && d.doc.Late(it.Order.Time()); it.Late {
		d.r.problem(ruleLate, fmt.Sprintf("%s: record %q at %s, which is later than the answer itself; it does not move the mark", d.doc.URL, it.Record, it.Order))
	}
	if !it.Late || !d.doc.Late(it.Order.Time().Add(-aheadMost)) {
		d.trend.add(it.Order)
	}
	if !it.Baseline {
		if open := d.doc.OpenTime(); open >= time.Second {
			it.Open = open
		}
		d.datetimes.add(it.Order, it.Open)
	}
	text := textOf(&it.Observation)
	for _, p := range it.Paths {
		text += len(p)
	}
	b.add(it, text)
}

// textOf returns about how many bytes of text an observation has.
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

// understood reports whether a change is a known one. Without any the resource is there,
// as in a Resource List.
func understood(change string) bool {
	switch change {
	case "", resourcesync.Created, resourcesync.Updated, resourcesync.Deleted:
		return true
	}
	return false
}

// hasUser reports whether a URL has a user name.
func hasUser(loc string) bool {
	if !strings.Contains(loc, "@") {
		return false
	}
	u, err := url.Parse(loc)
	return err == nil && u.User != nil
}

// latest returns of each record the entry that counts: in a baseline the first one, in a
// list of changes the last one. It takes over the memory of the entries.
func (d *listDocument) latest(ctx context.Context, b *backlog[*event.Item], entries []*event.Item) (items []*event.Item, err error) {
	b.values = nil
	n := len(entries)
	switch {
	case d.doc.Baseline:
		items = d.firsts(entries)
	case d.trend.backwards(d.doc.Head().Dialect.NewestFirst()):
		d.reverse(entries)
		fallthrough
	default:
		items = d.lasts(entries)
	}
	return items, d.loadPackage(ctx, items, n)
}

// firsts returns the first entry of each record of a baseline.
func (d *listDocument) firsts(items []*event.Item) []*event.Item {
	met := make(map[string]struct{}, len(items))
	out := items[:0]
	for _, it := range items {
		good := !it.Quarantine && !it.Unselected
		if _, again := met[it.Record]; again {
			if good {
				d.r.problem(ruleTwice, fmt.Sprintf("%s: record %q is in the list twice, also as entry %d; the first counts", d.doc.URL, it.Record, it.Place.Position))
			}
			continue
		}
		met[it.Record] = struct{}{}
		if good && !it.Deleted {
			d.r.active++
		}
		it.Place.Position = 0
		out = append(out, it)
	}
	return out
}

// reverse reverses a list that begins with its newest change. Then of changes with the
// same time the last one comes last, and positions count from the end that does not
// grow.
func (d *listDocument) reverse(items []*event.Item) {
	slices.Reverse(items)
	for i := range items {
		at := &items[i].Place.Position
		*at = int64(d.doc.Position()) + 1 - *at
	}
}

// aheadMost is how far a Source's clock may be ahead of the time of its answers, or its zone be wrong.
// A datetime that is later than that is a mistake, and does not show in which order a list is.
const aheadMost = 24 * time.Hour

// trend is whether the datetimes of a list rise or fall.
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

// backwards reports whether each change is no later than the one before it, and some
// are earlier. If none has a datetime, the dialect decides: in the beta of 2013 the
// newest comes first. lastmod does not say when a change was listed.
func (t *trend) backwards(beta bool) bool {
	switch {
	case t.forward:
		return false
	case t.dated == 0:
		return beta
	}
	return t.dated == t.n && (t.earlier || beta)
}

// lasts returns the last entry of each record, in the order of time.
func (d *listDocument) lasts(items []*event.Item) []*event.Item {
	last := make(map[string]int, len(items))
	ordered := true
	for i, it := range items {
		if j, again := last[it.Record]; again && before(it, items[j]) {
			d.r.problem(ruleOrder, fmt.Sprintf("%s: a change of record %q at %s comes after its later one at %s", d.doc.URL, it.Record, it.Order, items[j].Order))
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
		slices.SortStableFunc(out, func(a, b *event.Item) int { return a.Order.Compare(b.Order) })
	}
	return out
}

// before reports whether a is earlier than b, by stamps that can be trusted.
func before(a, b *event.Item) bool {
	return a.Order.Known() && b.Order.Known() && !a.Late && !b.Late && a.Order.Before(b.Order)
}

func (d *listDocument) state() ([]byte, error) {
	if !d.doc.Checkpoint() {
		return nil, nil
	}
	state, _ := d.doc.State() // it was read whole
	return json.Marshal(state)
}

// datetimes says how exact those of a Source's changes are.
type datetimes struct {
	whole, fractions bool
	open             time.Duration // the longest Item.Open
}

func (d *datetimes) add(s event.Stamp, open time.Duration) {
	if s.Known() {
		whole := s.Time().Nanosecond() == 0
		d.whole, d.fractions = d.whole || whole, d.fractions || !whole
		d.open = max(d.open, open)
	}
}

// sure returns the latest moment whose changes a baseline with this at is sure to show. Of an
// at with a fraction that is the end of the second before, unless the changes have fractions
// too: one that is stated in whole seconds may be the later one of the two. Where some are stated
// as dates it is a day before.
func (d *datetimes) sure(at time.Time) event.Stamp {
	if d.open > 0 && !at.IsZero() {
		at = at.Add(-d.open - 1)
	} else if at.Nanosecond() != 0 && (d.whole || !d.fractions) {
		at = at.Truncate(time.Second).Add(-1)
	}
	return stampOrUnknown(at)
}

// stampOf returns the stamp of a datetime that may be absent.
func stampOf(d resourcesync.Datetime) event.Stamp { return stampOrUnknown(d.Time()) }

// mismatches puts content into quarantine that differed from its list before this walk
// began and still does. It was asked for again, and the lists, which were read to their
// end, state nothing newer of the record; otherwise the Source might have changed it
// after its list was read. It stays pending: quarantine shows it to the operator.
func (r *run) mismatches(ctx context.Context, next []byte) error {
	return r.eachMismatch(ctx, func(kept []event.WaitingItem) error {
		b := event.Batch{Next: next}
		for i := range kept {
			k := &kept[i]
			if k.Tries == 0 || !r.mismatched[k.Number] {
				continue
			}
			input, err := inputOf(&k.Observation, k.Document.URL)
			if err != nil {
				return err
			}
			b.Quarantine = append(b.Quarantine, event.Quarantined{URL: k.Document.URL, Record: k.Record, Rule: ruleHash, Input: input,
				Reason: k.Reason + "; it was asked for again, and the lists say nothing newer"})
		}
		if len(b.Quarantine) == 0 {
			return nil
		}
		r.updateReport(func(p *Report) { p.Quarantined += int64(len(b.Quarantine)) })
		return r.commit(ctx, &b)
	})
}

// noteMismatched notes, before a walk, which records have content that is not as their
// list says.
func (r *run) noteMismatched(ctx context.Context) error {
	r.confirmed, r.mismatched = false, map[int64]bool{}
	return r.eachMismatch(ctx, func(kept []event.WaitingItem) error {
		for i := range kept {
			r.mismatched[kept[i].Number] = true
		}
		return nil
	})
}

// eachMismatch calls f with the pending observations whose content was not as their
// list says when it was last asked for, some at a time.
func (r *run) eachMismatch(ctx context.Context, f func([]event.WaitingItem) error) error {
	for after := int64(0); ; {
		kept, err := r.h.Log.Pending(ctx, r.src.ID, math.MaxInt64, after, mirrorBatch)
		if err != nil || len(kept) == 0 {
			return err
		}
		after = kept[len(kept)-1].Number
		kept = slices.DeleteFunc(kept, func(k event.WaitingItem) bool { return !strings.HasPrefix(k.Reason, mismatch) })
		if err := f(kept); err != nil {
			return err
		}
	}
}

// reread reads quarantined entries.
func (w *listWalk) reread(_ context.Context, q *event.Quarantined) ([]event.Observation, error) {
	rd := resourcesync.NewReader(bytes.NewReader(q.Input), resourcesync.ReadOptions{URL: q.URL, Limits: resourcesync.Limits(w.r.src.Limits.list())})
	wants := w.r.selection()
	return readAgain(rd.Next, func(bad *resourcesync.EntryError) { bad.Line, bad.Column = q.Line, q.Column }, func(e *resourcesync.Entry) (o event.Observation, err error) {
		if !understood(e.Metadata.Change) {
			return o, fmt.Errorf("change %q is none that is known", e.Metadata.Change)
		}
		it, err := observe(e, &wants, false)
		if it.Deleted && e.Metadata.Change == resourcesync.Deleted { // it may have stood in one of several sets of resources
			it.Representations = asked(e.Loc)
		}
		return it.Observation, err
	})
}

// inputOf returns, for quarantine, a list with an entry that states the same as an
// observation.
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
