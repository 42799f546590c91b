package harvest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// rowMemory is what a harvest of a list in plain text leaves for the next one.
type rowMemory struct {
	Validators follow.Validators `json:"validators,omitzero"`
	// Round counts the harvests that were to read everything: in each of them the
	// contents are asked for again of which the list does not say when they change.
	Round int `json:"round,omitempty"`
}

const (
	acceptRows = "text/csv, text/plain;q=0.9, */*;q=0.1"
	maxList    = 256 << 20 // bytes of a list, if nothing else is configured
)

// rowWalk is a walk over a list in plain text, of kind CSV or Sitemap. It is one
// document, which lists all records: they have no order, and a record that is absent
// from a whole list was deleted.
type rowWalk struct {
	r      *run
	client *follow.Client
	wants  translate.Selection
	next   rowMemory
	full   bool

	notModified, ended, complete bool
}

func (w *rowWalk) begin(context.Context, []byte) (err error) {
	r := w.r
	*w = rowWalk{r: r, full: r.full()}
	w.prepare()
	if w.full {
		w.next.Round++
		w.next.Validators = follow.Validators{}
	}
	w.client, err = follow.New(follow.Options{HTTP: r.documentClient(), Start: r.src.URL, AllowHost: r.src.AllowHost, Now: r.h.now, Accept: acceptRows})
	return err
}

// prepare sets what translation needs to know.
func (w *rowWalk) prepare() {
	w.next = w.r.memory.Rows
	if w.wants = w.r.selection(); len(w.wants.Formats) > 0 {
		w.wants.Formats = append(slices.Clone(w.wants.Formats), "") // such lists rarely say the type
	}
}

func (w *rowWalk) documents(ctx context.Context) iter.Seq2[document[*event.Item], error] {
	return func(yield func(document[*event.Item], error) bool) {
		answer, err := w.client.Get(ctx, w.r.src.URL, w.next.Validators)
		switch status := follow.Status(err); {
		case status == http.StatusNotModified && w.next.Validators != follow.Validators{}:
			w.notModified = true
			return
		case status == http.StatusGone:
			w.ended = true
			return
		case err != nil:
			yield(nil, err)
			return
		}
		defer answer.Close()
		yield(&rowDocument{w: w, answer: answer}, nil)
	}
}

func (w *rowWalk) result() walkResult {
	m := &w.r.memory
	o := walkResult{NotModified: w.notModified, Ended: w.ended, Memory: m.walkMemory, Short: m.Short}
	switch {
	case w.ended:
		o.Warnings = []string{"the list has ended (410); the records stay as they are: take the Source out of the configuration"}
	case !w.notModified:
		o.Whole, o.Full, o.Complete = true, w.full, w.complete
		o.Memory.Rows = w.next
	}
	return o
}

func (w *rowWalk) record(it *event.Item) string { return it.Record }

// rowDocument is the list.
type rowDocument struct {
	w      *rowWalk
	answer *follow.Answer
}

func (d *rowDocument) origin() event.Document { return event.Document{URL: d.answer.URL} }

// read reads the list to its end. Rows that cannot be taken go to quarantine, with the
// header. Then absence means nothing, as in a list that may have been cut off.
func (d *rowDocument) read(b *backlog[*event.Item], afterEntry func() error) (whole bool, err error) {
	src := d.w.r.src
	fail := func(err error) (bool, error) { return false, fmt.Errorf("%s: %w", d.answer.URL, err) }
	rd, err := newRowReader(fetch.Limit(d.answer.Body, cmp.Or(src.Limits.List, maxList), "a list"), src.Kind)
	if err != nil {
		return fail(err)
	}
	bad, rows := 0, 0
	for {
		e, err := rd.row()
		var wrong *rowFault
		switch {
		case errors.Is(err, io.EOF):
			d.end(rd, rows, bad)
			return true, nil
		case errors.As(err, &wrong):
			bad++
			d.quarantine(b, rd, wrong, "")
		case err != nil:
			return fail(err)
		default:
			rows++
			if wrong = d.add(b, e); wrong != nil {
				bad++
				d.quarantine(b, rd, wrong, cmp.Or(e.Metadata.ID, e.Loc))
			}
		}
		if err := afterEntry(); err != nil {
			return false, err
		}
	}
}

// end decides, once the list was read to its end, whether absence from it counts.
func (d *rowDocument) end(rd *rowReader, rows, bad int) {
	w := d.w
	w.next.Validators = d.answer.Validators
	why := rd.doubt(bad, d.answer.Delimited)
	if w.complete = why == ""; w.complete {
		return
	}
	w.next.Validators = follow.Validators{} // or the next harvest would not report it again
	w.r.problem(ruleRowEnd, fmt.Sprintf("%s: %s: nothing is deleted because it is absent", d.answer.URL, why))
	if n, err := w.has(); err == nil && n > int64(rows) {
		w.r.warn(fmt.Sprintf("the list has fewer records than before, and %s: nothing is deleted because it is absent", why))
	}
}

// has returns how many records the Source has by now.
func (w *rowWalk) has() (int64, error) { return w.r.h.Log.Has(context.Background(), w.r.src.ID) }

// add adds what a row says; it returns why the row cannot be taken.
func (d *rowDocument) add(b *backlog[*event.Item], e *resourcesync.Entry) *rowFault {
	w := d.w
	it, err := w.item(e)
	switch {
	case errors.Is(err, translate.ErrUnselected), errors.Is(err, translate.ErrOwn):
		w.r.updateReport(func(p *Report) { p.Skipped++ })
		return nil
	case err != nil:
		return &rowFault{rule: ruleOf(err), reason: err.Error()}
	}
	it.Late = d.answer.Late(it.Modified.Time())
	b.add(it, textOf(&it.Observation))
	return nil
}

// item translates a row into an item for the log. Where neither a time nor a hash shows
// when the content changes, it is asked for again in each harvest that reads
// everything.
func (w *rowWalk) item(e *resourcesync.Entry) (*event.Item, error) {
	o, err := translate.FromResource(e, &w.wants)
	if err != nil {
		return nil, err
	}
	o.Claim = o.ClaimOf()
	if !o.Modified.Known() && e.Metadata.Hash == "" && !o.Deleted {
		o.Claim = event.KeyBits(fmt.Sprintf("%d %d", o.Claim, w.next.Round)) | 1
	}
	return &event.Item{Observation: o}, nil
}

// quarantine puts a row into quarantine. record is its identifier, if that is known: then
// it counts as met.
func (d *rowDocument) quarantine(b *backlog[*event.Item], rd *rowReader, why *rowFault, record string) {
	input := append(bytes.Clone(rd.header), rd.raw...)
	b.addBad(event.Quarantined{URL: d.answer.URL, Line: rd.line, Column: 1, Record: record, Rule: why.rule, Reason: why.reason, Input: input})
	if identifiesRecord(record) {
		it := &event.Item{Quarantine: true}
		it.Record, it.SourceIdentifier = d.w.wants.Identifier(record)
		b.add(it, 0)
	}
}

// latest returns of each record the first row that can be taken. It takes over the memory
// of the entries.
func (d *rowDocument) latest(_ context.Context, b *backlog[*event.Item], items []*event.Item) ([]*event.Item, error) {
	b.values = nil
	at := make(map[string]int, len(items))
	out := items[:0]
	for _, it := range items {
		i, again := at[it.Record]
		switch {
		case !again:
			at[it.Record] = len(out)
			out = append(out, it)
		case out[i].Quarantine && !it.Quarantine:
			out[i] = it
		case !it.Quarantine:
			d.w.r.problem(ruleRowTwice, fmt.Sprintf("%s: record %q is in the list twice; the first row counts", d.answer.URL, it.Record))
		}
	}
	for _, it := range out {
		if !it.Quarantine && !it.Deleted {
			d.w.r.active++
		}
	}
	return out, nil
}

// state returns nil: a walk over a list in plain text always starts anew.
func (d *rowDocument) state() ([]byte, error) { return nil, nil }

func (w *rowWalk) reread(_ context.Context, q *event.Quarantined) ([]event.Observation, error) {
	w.prepare()
	rd, err := newRowReader(bytes.NewReader(q.Input), w.r.src.Kind)
	if err != nil {
		return nil, err
	}
	e, err := rd.row()
	if err != nil {
		return nil, err
	}
	it, err := w.item(e)
	if err != nil {
		return nil, err
	}
	return []event.Observation{it.Observation}, nil
}
