package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/translate"
)

// atomWalk is a walk over an Atom-PMH Source.
type atomWalk struct {
	r    *run
	walk *atompmh.Walk
	// Used again from document to document: the bytes of entries, one after the
	// other, and the index of each record among the entries that count.
	inputs []byte
	found  map[string]int
}

// atomEntry is an entry that was read, as an item for its record.
type atomEntry struct {
	Item         *event.Item
	Kind         atompmh.Kind // 0 of a bad entry
	Line, Column int
	Input        []byte
}

func (w *atomWalk) begin(_ context.Context, state []byte) error {
	r, l := w.r, &w.r.src.Limits
	w.walk = &atompmh.Walk{
		Client: r.documentClient(), URL: r.src.URL, Overlap: r.src.Overlap, State: r.memory.Atom, FeedID: r.memory.FeedID,
		Full: r.full(), Accepted: r.memory.Accepted, MaxDocuments: r.src.MaxDocuments, AllowHost: r.src.AllowHost, Content: r.src.Selection.Inline,
		Limits: atompmh.Limits(l.document()), Now: r.h.now,
		Report: func(p atompmh.Problem) { r.problem(p.Rule, p.String()) },
	}
	return unmarshal(state, &w.walk.State)
}

func (w *atomWalk) documents(ctx context.Context) iter.Seq2[document[atomEntry], error] {
	return func(yield func(document[atomEntry], error) bool) {
		for d, err := range w.walk.Documents(ctx) {
			if err != nil {
				yield(nil, w.explain(err))
				return
			}
			if !yield(&atomDocument{w: w, doc: d}, nil) {
				return
			}
		}
	}
}

// explain returns an error of the walk in the form by which the harvest decides how to
// go on.
func (w *atomWalk) explain(err error) error {
	var many *atompmh.TooManyError
	switch {
	case errors.As(err, &many):
		w.r.memory.Atom = w.walk.Result().State
		return &tooManyError{error: err, url: many.URL}
	case errors.Is(err, atompmh.ErrLoop):
		return &startAnewError{err}
	case errors.Is(err, atompmh.ErrFeedID):
		return fmt.Errorf("%w: nothing was harvested; if the feed was replaced on purpose, run bridge source reset %s %s", err, w.r.src.Set, w.r.src.URL)
	}
	return err
}

func (w *atomWalk) result() walkResult {
	result, memory := w.walk.Result(), &w.r.memory
	o := walkResult{
		NotModified: result.NotModified, Ended: result.Ended, Mark: result.Target, Complete: result.Complete, Stamped: true,
		Whole: result.Oldest || result.Complete, Full: result.Full, Memory: memory.walkMemory, Short: memory.Short,
	}
	if result.Ended {
		o.Warnings = []string{"the feed has ended (410); the records stay as they are: take the Source out of the configuration"}
	}
	if result.Lost {
		o.Warnings = append(o.Warnings, "the chain of archive documents ends while everything in it is newer than the last harvest: deletions may be lost")
	}
	switch g := result.Gap; {
	case result.NotModified, result.Ended:
	case g != nil:
		o.Gap = &gap{URL: g.URL, Reason: g.Reason, Target: result.Target}
		o.Memory.FeedID, o.Memory.Atom = cmp.Or(memory.FeedID, result.FeedID), result.State
		return o
	default:
		o.Memory.FeedID, o.Memory.Atom = cmp.Or(result.FeedID, memory.FeedID), result.State
		if o.Whole {
			o.Short = shortfallOf(result.TotalResults, result.Entries)
		}
	}
	if o.Short != nil && !result.Ended {
		o.Warnings = append(o.Warnings, o.Short.String())
	}
	return o
}

func (w *atomWalk) record(e atomEntry) string { return e.Item.Record }

// atomDocument is one document of the feed.
type atomDocument struct {
	w   *atomWalk
	doc *atompmh.Document
}

func (d *atomDocument) origin() event.Document {
	feed := d.doc.Feed()
	out := event.Document{URL: d.doc.URL, FeedID: feed.ID, FeedTitle: feed.Title, Feed: translate.FeedOf(feed)}
	out.FeedUpdated, _ = event.StampOf(feed.Updated)
	return out
}

func (d *atomDocument) read(b *backlog[atomEntry], afterEntry func() error) (whole bool, err error) {
	for e, bad := range d.doc.Entries() {
		if bad != nil {
			d.quarantine(b, bad)
		} else {
			d.add(b, e)
		}
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
	// The walk has compared the id only if it comes before the first entry.
	if id, want := d.doc.Feed().ID, d.w.r.memory.FeedID; d.doc.Whole() && d.doc.Index == 0 && id != "" && want != "" && id != want {
		return false, d.w.explain(fmt.Errorf("%s: %w from %q to %q", d.doc.URL, atompmh.ErrFeedID, want, id))
	}
	if d.doc.Whole() {
		d.w.r.active = int64(d.doc.Active)
	}
	return d.doc.Whole(), nil
}

// add translates an entry. One that cannot be translated is bad. One that the
// configuration does not select, and a copy of our own record from another bridge, is
// ignored.
func (d *atomDocument) add(b *backlog[atomEntry], e *atompmh.Entry) {
	r := d.w.r
	it, err := r.item(e)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		r.updateReport(func(p *Report) { p.Skipped++ })
		if !errors.Is(err, translate.ErrUnselected) || r.beforeSince(&it.Observation) {
			return
		}
		it.Unselected = true
	case err != nil:
		d.quarantine(b, &atompmh.EntryError{Rule: ruleOf(err), URL: d.doc.URL, Line: e.Line, Column: e.Column, ID: e.Record(), Updated: e.Updated, Reason: err.Error(), Input: d.doc.Input()})
		return
	}
	if len(it.Links) > 0 {
		for _, l := range e.Alternates() {
			r.reportUnreachable(d.doc.URL, e.Line, e.Column, l.Href)
		}
	}
	it.Late = d.doc.Late(e.Updated)
	input := d.input()
	b.add(atomEntry{Item: it, Kind: e.Kind, Line: e.Line, Column: e.Column, Input: input}, 2*len(input)+len(it.Inline))
}

// item translates an entry into an item for the log.
func (r *run) item(e *atompmh.Entry) (*event.Item, error) {
	wants := r.selection()
	o, err := translate.FromEntry(e, &wants)
	it := &event.Item{Observation: o}
	it.Claim = it.ClaimOf()
	return it, err
}

// beforeSince reports whether since leaves an observation out, and with it all that is
// older: then the log need not note that its record was met.
func (r *run) beforeSince(o *event.Observation) bool {
	since := r.src.Selection.Since
	return since.Known() && o.Modified.Known() && o.Modified.Before(since) && o.Modified == o.Order
}

// reportUnreachable reports an alternate that cannot be asked for.
func (r *run) reportUnreachable(url string, line, column int, href string) {
	if event.Public(href) && !event.OnTheWeb(href) {
		r.problem(ruleUnreachable, fmt.Sprintf("%s: alternate %s is not on the web; it is passed on as a related link", strictxml.Place(url, line, column), strictxml.Clip(href)))
	}
}

// inputBlock is about how many bytes of entries are in one block of memory.
const inputBlock = 256 << 10

// input returns the bytes of the last entry.
func (d *atomDocument) input() []byte {
	w := d.w
	if len(w.inputs) >= inputBlock {
		w.inputs = make([]byte, 0, inputBlock+inputBlock/4)
	}
	from := len(w.inputs)
	w.inputs = d.doc.AppendEntry(w.inputs)
	return w.inputs[from:len(w.inputs):len(w.inputs)]
}

// quarantine puts an entry into quarantine. Its record counts as met.
func (d *atomDocument) quarantine(b *backlog[atomEntry], e *atompmh.EntryError) {
	b.addBad(event.Quarantined{URL: e.URL, Line: e.Line, Column: e.Column, Record: e.ID, Rule: e.Rule, Reason: e.Reason, Input: e.Input})
	if !identifiesRecord(e.ID) {
		return
	}
	met := atomEntry{Item: &event.Item{Quarantine: true}}
	met.Item.Record, met.Item.SourceIdentifier = d.w.r.src.Selection.Identifier(e.ID)
	met.Item.Order = stampOrUnknown(e.Updated)
	b.add(met, 0)
}

// identifiesRecord reports whether the identifier of a bad entry says which record it
// is about. The log has no record with an identifier longer than event.MaxIdentifier.
func identifiesRecord(id string) bool { return id != "" && len(id) <= event.MaxIdentifier }

// ruleOf returns the rule that an entry breaks that was read but cannot be translated.
func ruleOf(err error) string {
	switch {
	case errors.Is(err, event.ErrTooMuch):
		return ruleTooMuch
	case errors.Is(err, translate.ErrUnreachable):
		return ruleUnreachable
	}
	return ruleLocal
}

// latest returns of each record the entry that counts: the newest one, of several the
// first that is not bad. They are in the order of their stamps, and those with
// equal stamps in the order of the document.
func (d *atomDocument) latest(ctx context.Context, b *backlog[atomEntry], entries []atomEntry) ([]*event.Item, error) {
	if d.w.found == nil {
		d.w.found = map[string]int{}
	}
	found, complete, n := d.w.found, d.doc.Complete(), 0
	clear(found)
	for i := range entries {
		e := &entries[i]
		at, again := found[e.Item.Record]
		if !again {
			found[e.Item.Record] = n
			entries[n] = *e
			n++
			continue
		}
		counts := &entries[at]
		switch c := e.Item.Order.Compare(counts.Item.Order); {
		case c > 0, c == 0 && counts.Kind == 0 && e.Kind != 0:
			*counts = *e
		case c == 0 && e.Kind != 0 && e.Kind != counts.Kind && !counts.Item.Unselected:
			if err := d.breakTie(ctx, b, counts, e); err != nil {
				return nil, err
			}
		}
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(entries[a].Item.Order.Compare(entries[b].Item.Order), a-b) })
	items := make([]*event.Item, n)
	for i, at := range order {
		e := &entries[at]
		// An active entry without a wanted format (A14) is no absence.
		e.Item.Complete = complete && e.Kind != 0 && (e.Kind == atompmh.Deletion || !e.Item.Deleted)
		items[i] = e.Item
	}
	return items, nil
}

// breakTie decides between an active and a deletion entry with the same stamp by asking
// for an alternate (A1, S9). If that does not decide it, both go to quarantine
// together.
func (d *atomDocument) breakTie(ctx context.Context, b *backlog[atomEntry], counts, e *atomEntry) error {
	q := event.Quarantined{URL: d.doc.URL, Line: e.Line, Column: e.Column, Record: cmp.Or(e.Item.SourceIdentifier, e.Item.Record), Rule: ruleTie,
		Input: d.doc.Frame(counts.Input, e.Input)}
	var alive bool
	entries, err := d.w.r.entriesOf(&q)
	if err == nil {
		alive, err = d.w.r.anyAlive(ctx, entries)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		q.Reason = "an active and a deletion entry have the same stamp, and whether the record exists could not be found out: " + err.Error()
		b.addBad(q)
		counts.Item.Quarantine = true
		return nil
	}
	is := "gone"
	if alive {
		is = "there"
	}
	d.w.r.problem(ruleTie, fmt.Sprintf("%s:%d:%d: record %q has an active and a deletion entry with the same stamp; its alternate says that it is %s",
		d.doc.URL, e.Line, e.Column, q.Record, is))
	if alive == (e.Kind == atompmh.Active) {
		*counts = *e
	}
	return nil
}

// ruleTie is the rule of what breakTie quarantines; Replay asks again.
const ruleTie = "A1"

// anyAlive asks whether the record of some entries exists, by the first active one of
// them.
func (r *run) anyAlive(ctx context.Context, entries []*atompmh.Entry) (bool, error) {
	for _, e := range entries {
		if e.Kind == atompmh.Active {
			return r.alive(ctx, e)
		}
	}
	return false, nil
}

// alive asks whether a record with an active entry exists: it does if one alternate
// answers, and does not if all are gone (S9).
func (r *run) alive(ctx context.Context, e *atompmh.Entry) (bool, error) {
	if r.src.Selection.Inline && e.Content.Taken() && !e.Content.HasSrc && len(e.Alternates()) == 0 {
		return false, errors.New("its content came with the entry, and nothing else can be asked for")
	}
	for _, l := range e.Alternates() {
		j := newJob(0, 0, l.Href)
		host := r.host(j.host)
		if host.failing() { // there may be any number of such records, and each request may take a minute
			return false, fmt.Errorf("%s is not asked: the last requests to its host failed", l.Href)
		}
		r.slot.whileServerAnswers(ctx, func() { j = r.askURL(ctx, j, l.Href) })
		host.record(&j, r.h.now())
		switch {
		case j.err == nil:
			return true, nil
		case !j.gone:
			return false, j.err
		}
	}
	return false, nil
}

func (d *atomDocument) state() ([]byte, error) {
	state, _ := d.doc.State() // it was read whole
	// While the next document is awaited, the memory that this one needed must be free.
	if d.w.inputs = nil; len(d.w.found) > 2*fileBacklog {
		d.w.found = nil
	}
	clear(d.w.found)
	return json.Marshal(state)
}

// reread reads quarantined entries.
func (w *atomWalk) reread(ctx context.Context, q *event.Quarantined) (out []event.Observation, err error) {
	entries, err := w.r.entriesOf(q)
	if err == nil && q.Rule == ruleTie {
		entries, err = w.r.resolveTie(ctx, entries)
	}
	for _, e := range entries {
		it, err := w.r.item(e)
		if err != nil {
			return nil, err
		}
		out = append(out, it.Observation)
	}
	return out, err
}

// entriesOf reads the entries of quarantined input.
func (r *run) entriesOf(q *event.Quarantined) ([]*atompmh.Entry, error) {
	rd := atompmh.NewReader(bytes.NewReader(q.Input), atompmh.ReadOptions{URL: q.URL, Content: r.src.Selection.Inline, Limits: atompmh.Limits(r.src.Limits.document())})
	return readAgain(rd.Next, func(bad *atompmh.EntryError) { bad.Line, bad.Column = q.Line, q.Column },
		func(e *atompmh.Entry) (*atompmh.Entry, error) { return e, nil })
}

// resolveTie asks again which of an active and a deletion entry with the same stamp
// holds (A1).
func (r *run) resolveTie(ctx context.Context, entries []*atompmh.Entry) ([]*atompmh.Entry, error) {
	alive, err := r.anyAlive(ctx, entries)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if alive == (e.Kind == atompmh.Active) {
			return []*atompmh.Entry{e}, nil
		}
	}
	return nil, errors.New("it has not the two entries that it should have")
}
