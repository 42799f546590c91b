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
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// walker walks over a Source in one protocol: it yields the documents, reads their
// entries, and returns what the end of the walk allows. All else is the same for every
// protocol, and is in this file and in pipeline.go. T is what an entry is read as.
type walker[T any] interface {
	// begin prepares a new walk when state is nil, else the rest of an unfinished
	// one, whose last document returned this state.
	begin(ctx context.Context, state []byte) error
	// documents yields the documents of the walk. An error ends it.
	documents(ctx context.Context) iter.Seq2[document[T], error]
	// result returns the result of the walk, once it has ended without an error.
	result() walkResult
	// record returns the identifier of the record that an entry is about.
	record(entry T) string
}

// document is one document of a walk.
type document[T any] interface {
	// origin is what the log keeps of the document. It is whole once read has
	// returned.
	origin() event.Document
	// read adds what the entries say to the backlog, and calls afterEntry after each,
	// whose error ends it. whole is false when the document cannot be read to its end:
	// nothing of it is taken then, and the walk decides what that means when it is asked
	// for the next document.
	read(b *backlog[T], afterEntry func() error) (whole bool, err error)
	// latest returns what the document says last of each of some records, in the order
	// in which it is to be applied. entries is all that it says of them.
	latest(ctx context.Context, b *backlog[T], entries []T) ([]*event.Item, error)
	// state is where the walk goes on after the document; nil when that is not to be
	// stored yet. It is called once, after latest, and drops what was needed to read the
	// document.
	state() ([]byte, error)
}

// tooManyError: a walk has read as many documents as it may.
type tooManyError struct {
	error
	url string // of the document that was not read
}

// startAnewError: the same walk would end the same way if it were resumed.
type startAnewError struct{ error }

// pausedError: the Source is busy, and the walk goes on later where it was.
type pausedError struct{ error }

// appendError: the log has not taken a batch. What it has of the Source's cursor may have
// gone with it, so it takes no other one of this harvest.
type appendError struct{ error }

// Error says what went wrong.
func (e *appendError) Error() string { return "appending to the log: " + e.error.Error() }

// Unwrap returns what went wrong.
func (e *tooManyError) Unwrap() error { return e.error }

// Unwrap returns what went wrong.
func (e *startAnewError) Unwrap() error { return e.error }

// Unwrap returns what went wrong.
func (e *pausedError) Unwrap() error { return e.error }

// Unwrap returns what went wrong.
func (e *appendError) Unwrap() error { return e.error }

// walkResult is the result of a walk, and what its end allows. It is stored while that
// is applied.
type walkResult struct {
	// NotModified: nothing has changed. Ended: the Source will never change again.
	// In both cases no document was read.
	NotModified bool `json:"not_modified,omitempty"`
	Ended       bool `json:"ended,omitempty"`
	// Gap is a missing document; nil when none is missing. The mark stays.
	Gap *gap `json:"gap,omitempty"`
	// Mark is the new mark; zero leaves it as it is.
	Mark time.Time `json:"mark,omitzero"`
	// Complete: the walk has enumerated all records as they were at the time At, which may
	// be unknown: records that were absent are deleted. Parts are the sets of resources of
	// the Source, if it ever had several, and Ats the moments of each, where they are known. Doubtful: the Source says that there are some
	// more than it has enumerated, or has changed meanwhile, so that the deletions are held.
	// Unsure: so are they since nothing would show that it has left some out. Empty: one of its
	// lists has no entry, so that they are held where they are more than a few.
	Complete bool        `json:"complete,omitempty"`
	Doubtful bool        `json:"doubtful,omitempty"`
	Unsure   bool        `json:"unsure,omitempty"`
	Empty    bool        `json:"empty,omitempty"`
	At       time.Time   `json:"at,omitzero"`
	Parts    []int       `json:"parts,omitempty"`
	Ats      []time.Time `json:"ats,omitempty"`
	// Stamped: entries are ordered by their stamps, so that records may have fallen
	// back to an earlier one (A1).
	Stamped bool `json:"stamped,omitempty"`
	// Whole: the walk has read all that the Source has. Full: it was to do that.
	Whole bool `json:"whole,omitempty"`
	Full  bool `json:"full,omitempty"`
	// Confirmed: the Source states nothing newer about content that differs from what it
	// states.
	Confirmed bool `json:"confirmed,omitempty"`
	// Memory is for the next walk, Short what the Source claims to have beyond what was
	// read.
	Memory   walkMemory `json:"memory"`
	Short    *shortfall `json:"short,omitempty"`
	Dialects []string   `json:"dialects,omitempty"`
	Warnings []string   `json:"warnings,omitempty"`
}

// cursor is an unfinished walk, as the log keeps it. Once its documents are read only
// its end is left: End is set then.
type cursor struct {
	// Walk is the state of the walker; nil before the end of the first document.
	Walk json.RawMessage `json:"walk,omitempty"`
	// Active is run.active.
	Active int64       `json:"active"`
	End    *walkResult `json:"end,omitempty"`
}

// unread is the cursor of a walk of which no document was taken in whole.
const unread = `{"active":0}`

// walkSource follows a Source: first what is left of an unfinished walk, then a new
// one.
func walkSource[T any](ctx context.Context, r *run, w walker[T]) error {
	if err := resumeWalk(ctx, r, w); err != nil || r.report.Gap != "" {
		return err
	}
	return runWalk(ctx, r, w, nil)
}

// resumeWalk ends an unfinished walk. When it cannot go on from where it was left, the
// next walk starts anew: a document that has been failing for long must not keep back
// what is new at the Source.
func resumeWalk[T any](ctx context.Context, r *run, w walker[T]) error {
	if r.data == nil {
		return nil
	}
	var c cursor
	if err := json.Unmarshal(r.data, &c); err != nil {
		return fmt.Errorf("the unfinished walk cannot be read (%w): run bridge source reset %s", err, r.src.Set)
	}
	switch {
	case c.End != nil:
		r.active = c.Active
		return r.end(ctx, c.End)
	case c.Walk == nil:
		return nil
	}
	err := runWalk(ctx, r, w, &c)
	switch {
	case r.retryAfterTooMany():
		return nil
	case err == nil, r.documents.Load() > 0, ctx.Err() != nil, errors.As(err, new(*appendError)):
		return err
	case errors.As(err, new(*pausedError)):
		return err
	}
	r.problem("A10", "the unfinished walk could not be resumed and starts anew: "+err.Error())
	return nil
}

// runWalk walks: a new walk, or what is left of the one that has a cursor. What its
// documents say is applied on the way; its end is applied when all of that is durable.
func runWalk[T any](ctx context.Context, r *run, w walker[T], from *cursor) error {
	var state []byte
	r.active = 0
	if from != nil {
		r.active, state = from.Active, from.Walk
	}
	if err := w.begin(ctx, state); err != nil {
		return err
	}
	p := newPipeline(ctx, r, from == nil)
	r.flush = p.flush
	walked, written := p.run(func() error {
		b := backlog[T]{r: r, record: w.record}
		for d, err := range w.documents(p.ctx) {
			if err == nil {
				err = readDocument(p.ctx, p, d, &b)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	var many *tooManyError
	switch {
	case written != nil:
		return written
	case errors.As(walked, &many):
		return r.tooMany(ctx, many.url, walked)
	case errors.As(walked, new(*startAnewError)):
		return errors.Join(walked, r.commit(ctx, &event.Batch{}))
	case walked != nil:
		return walked
	}
	o := w.result()
	if !o.NotModified && !o.Ended {
		return r.end(ctx, &o)
	}
	r.warn(o.Warnings...)
	if o.NotModified {
		r.updateReport(func(p *Report) { p.NotModified = r.documents.Load() == 0 })
		r.absenceSeen, r.confirmed = r.memory.Complete, o.Confirmed
		r.memory.walkMemory, r.memory.Short = o.Memory, o.Short
	}
	return nil
}

// readDocument reads one document to its end and sends what it says to the log. Of a
// document that cannot be read to its end nothing is taken.
func readDocument[T any](ctx context.Context, p *pipeline, d document[T], b *backlog[T]) error {
	b.begin(p.lastSize)
	defer b.close()
	whole, err := d.read(b, func() error {
		if err := b.afterEntry(ctx); err != nil {
			return fmt.Errorf("%s: %w", d.origin().URL, err)
		}
		return nil
	})
	if err != nil || !whole {
		return err
	}
	return b.send(ctx, p, d)
}

// end does what only a whole walk allows: records that have fallen back, deletions by
// absence, and the new mark.
func (r *run) end(ctx context.Context, o *walkResult) error {
	r.h.walked.Store(r.src.ID, r.h.now())
	if o.Whole {
		r.h.walkedWhole.Store(r.src.ID, r.h.now())
	}
	r.warn(o.Warnings...)
	r.updateReport(func(p *Report) {
		for _, d := range o.Dialects {
			p.Dialects = appendNew(p.Dialects, d)
		}
	})
	if o.Gap != nil {
		// What is newer than the missing document was applied, what is older has not
		// been seen (A8).
		if err := r.setGap(*o.Gap); err != nil {
			return err
		}
		r.memory.walkMemory = o.Memory
		return r.commit(ctx, &event.Batch{Progress: r.progress()})
	}
	next, err := json.Marshal(cursor{Active: r.active, End: o})
	if err != nil {
		return err
	}
	if o.Stamped {
		if err := r.regressions(ctx, o, next); err != nil {
			return err
		}
	}
	r.emptyList = o.Empty
	if r.doubtful = o.Doubtful || o.Unsure; o.Complete {
		at := stampOrUnknown(o.At)
		parts := make([]event.Enumerated, len(o.Parts))
		for i, part := range o.Parts {
			parts[i].Part = part
			if i < len(o.Ats) {
				parts[i].At = stampOrUnknown(o.Ats[i])
			}
		}
		if len(parts) > 0 {
			if err := r.absencesInParts(ctx, at, parts, next); err != nil {
				return err
			}
		}
		if err := r.absences(ctx, at, next, parts...); err != nil {
			return err
		}
	}
	r.absenceSeen, r.confirmed = o.Complete, o.Confirmed
	r.updateReport(func(p *Report) { p.Full, p.complete, p.at = o.Whole, o.Complete && !o.Doubtful, stampOrUnknown(o.At) })
	r.memory.walkMemory, r.memory.Complete, r.memory.Short = o.Memory, o.Complete, o.Short
	// Where the Source is read whole each time, that alone is not worth a transaction.
	if now := r.h.now().UTC(); o.Full || o.Whole && now.Sub(r.memory.FullAt) >= r.src.FullEvery/7 {
		r.memory.FullAt = now
	}
	r.stored.Gap = ""
	if mark := stampOrUnknown(o.Mark); mark.Known() {
		r.stored.Mark = mark
	}
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// endBatch is how many records the end of a walk handles at once.
const endBatch = 10_000

// regressions applies observations that are earlier than what was stored, now
// that the walk has met nothing later: where it has read all that the Source has, or
// the stored stamp lay in the future (A1).
func (r *run) regressions(ctx context.Context, o *walkResult, next []byte) error {
	skipped := 0
	err := r.h.Log.Regressed(ctx, r.src.ID, r.batchSize(), func(kept []event.WaitingItem) error {
		b := event.Batch{Mode: event.ModeRegressed, Next: next}
		for i := range kept {
			if !o.Whole && !kept[i].Flag {
				skipped++
				continue
			}
			b.Documents = append(b.Documents, kept[i].Document)
			b.Items = append(b.Items, r.itemAgain(kept[i].Observation, len(b.Documents)-1))
		}
		if len(b.Items) == 0 {
			return nil
		}
		return r.fetchAndCommit(ctx, &b)
	})
	if skipped > 0 {
		r.problem("S4", fmt.Sprintf("%s: records with an earlier stamp than before: %d; a harvest with --full reads them", r.src.URL, skipped))
	}
	return err
}

// itemAgain makes an item of an observation that was kept. Whether its stamp lies in
// the future is decided anew, by the present time.
func (r *run) itemAgain(o event.Observation, document int) *event.Item {
	return &event.Item{Observation: o, Document: document, Late: o.Order.Time().After(r.h.now())}
}

// absencesInParts notes which records some sets of resources of the Source do not have
// any more, while others do.
func (r *run) absencesInParts(ctx context.Context, at event.Stamp, parts []event.Enumerated, next []byte) error {
	for after := int64(0); ; {
		left, last, err := r.h.Log.Left(ctx, r.src.ID, at, after, endBatch, parts...)
		if err != nil || len(left) == 0 {
			return err
		}
		after = last
		b := &event.Batch{Mode: event.ModeLeft, Next: next}
		for _, l := range left {
			b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: l.Record, Deleted: true, Place: event.Place{Part: l.Part}}})
		}
		if err := r.commit(ctx, b); err != nil {
			return err
		}
	}
}

// isMassDeletion reports whether deletions by absence are so many of a Source's records
// that they are held (A6): all of them, or more than a few and more than a fifth.
func isMassDeletion(absent, have int64) bool {
	return absent == have || absent > fewDeletions && absent*5 > have
}

// fewDeletions is how many deletions by absence are not held, unless they are those of all records.
const fewDeletions = 10

// guardDeletions returns how deletions by absence are applied: held, where they are too
// many or in doubt, for a person to release if the Source has no record any more.
func (r *run) guardDeletions(absent, have int64) (mode event.Mode, person bool) {
	mass := isMassDeletion(absent, have) || r.emptyList && absent > fewDeletions
	if !r.doubtful && !mass {
		return event.ModeAbsent, false
	}
	if r.doubtful && !mass {
		r.warn(fmt.Sprintf("the Source does not list %d of %d records%s its lists ended too early, or changed while they were read, or would not show what they leave out; "+
			"what is absent still after hold_deletions is deleted, or at once with bridge source release %s %s", absent, have, areHeld, r.src.Set, r.src.URL))
		return event.ModeHold, r.active == 0
	}
	r.warn(fmt.Sprintf("the Source no longer has %d of %d records%s look at the Source, then apply them with bridge source release %s %s", absent, have, areHeld, r.src.Set, r.src.URL))
	return event.ModeHold, r.active == 0
}

// areHeld is in the warning about deletions that a harvest has held.
const areHeld = ": these deletions are held;"

// IsAboutHeld reports whether a warning of a Report says that deletions are held. Once they
// are released, it is no longer true.
func IsAboutHeld(warning string) bool { return strings.Contains(warning, areHeld) }

// absences deletes the records that a complete enumeration did not have (A5),
// unless the guard keeps that back (A6). What the Source has said since the
// moment at, which the enumeration shows, is newer; at may be unknown. parts are its
// sets of resources, where it has several.
func (r *run) absences(ctx context.Context, at event.Stamp, next []byte, parts ...event.Enumerated) error {
	absent, have, err := r.h.Log.CountAbsent(ctx, r.src.ID, at, parts...)
	if err != nil || absent == 0 {
		return err
	}
	numbers := make([]int, len(parts))
	for i := range parts {
		numbers[i] = parts[i].Part
	}
	mode, person := r.guardDeletions(absent, have)
	for after := int64(0); ; {
		ids, last, err := r.h.Log.Absent(ctx, r.src.ID, at, after, endBatch, parts...)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return r.askDoubted(ctx)
		}
		after = last
		if err := r.deleteAbsent(ctx, ids, mode, person, next, numbers...); err != nil {
			return err
		}
	}
}

// deleteAbsent appends deletions by absence. If a list of changes
// was the last to name a record, without a time, its URL is asked first.
func (r *run) deleteAbsent(ctx context.Context, ids []string, mode event.Mode, person bool, next []byte, parts ...int) error {
	b := &event.Batch{Mode: mode, Person: person, Parts: parts, Next: next, Documents: []event.Document{{URL: r.src.URL, FeedID: r.memory.FeedID}}}
	for _, id := range ids {
		b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: id, Deleted: true}})
	}
	out, err := r.append(ctx, b)
	if err == nil && slices.Contains(out.Outcomes, event.NeedsContent) {
		r.absencesDoubted = true
	}
	return err
}

// askDoubted asks the URLs of the deletions by absence that are in doubt.
func (r *run) askDoubted(ctx context.Context) error {
	if !r.absencesDoubted {
		return nil
	}
	r.absencesDoubted = false
	return r.fetchPending(ctx)
}

// full reports whether the walk is to read all that the Source has.
func (r *run) full() bool { return r.opt.Full || r.fullDue() }

// fullDue reports whether that is so because the last such walk is at least FullEvery
// ago, or as far ahead: then the clock was wrong.
func (r *run) fullDue() bool {
	return r.src.FullEvery > 0 && !r.memory.FullAt.IsZero() && r.h.now().Sub(r.memory.FullAt).Abs() >= r.src.FullEvery
}

// stampOrUnknown is the stamp of a time that may be absent.
func stampOrUnknown(t time.Time) event.Stamp {
	s, _ := event.StampOf(t)
	return s
}

// memory is what a harvest leaves for the next one, besides the mark.
type memory struct {
	// URL is where the Source was when it was harvested last.
	URL string `json:"url,omitempty"`
	// Asked is what a repository was asked for beside it (see Source.asks).
	Asked string `json:"asked,omitempty"`
	walkMemory
	// Accepted are documents whose absence an operator has accepted.
	Accepted []string `json:"accepted,omitempty"`
	// Complete: the last walk was a complete enumeration.
	Complete bool `json:"complete,omitempty"`
	// Whole is the Epoch in which the Source was walked whole.
	Whole string `json:"whole,omitempty"`
	// Waiting is for which sets the Source waits, a bridge that answered so when it was
	// asked last.
	Waiting *follow.Waits `json:"waits,omitempty"`
	// Short is what the Source claims to have beyond what could be read, nil when
	// that is not far more.
	Short *shortfall `json:"short,omitempty"`
	// FullAt is when a walk last read all that the Source has.
	FullAt time.Time `json:"full_at,omitzero"`
}

// walkMemory is what a walk leaves for the next one.
type walkMemory struct {
	FeedID string             `json:"feed_id,omitempty"`
	Atom   atompmh.State      `json:"atom,omitzero"`
	Lists  resourcesync.State `json:"lists,omitzero"`
	Feed   feedMemory         `json:"feed,omitzero"`
	OAI    oaiMemory          `json:"oai,omitzero"`
	Folder folderMemory       `json:"folder,omitzero"`
	Rows   rowMemory          `json:"rows,omitzero"`
	Set    setMemory          `json:"set,omitzero"`
}

// shortfall is how many results a feed claims to have, and how many it leads to.
type shortfall struct {
	Claimed int64 `json:"claimed"`
	Read    int64 `json:"read"`
}

// shortfallOf returns what is missing of the results that a feed claims to have, once
// all that it leads to was read; nil when that is not far more.
func shortfallOf(claimed, read int64) *shortfall {
	if !atompmh.Short(claimed, read) {
		return nil
	}
	return &shortfall{Claimed: claimed, Read: read}
}

// String describes the shortfall, and what follows from it.
func (s *shortfall) String() string {
	return fmt.Sprintf("the feed claims to have %d results, and leads to %d: the others are not harvested, and nothing is deleted because it is absent; look for a feed that leads to all of them", s.Claimed, s.Read)
}

// gap is a missing document, and the mark that will be when an operator accepts it
// (A8).
type gap struct {
	URL    string    `json:"url"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Target time.Time `json:"target,omitzero"`
}

// tooMany ends a harvest that has read as many documents as it may. The document that
// was not read is a gap; the walk can go on if the operator raises the cap.
func (r *run) tooMany(ctx context.Context, at string, why error) error {
	if err := r.setGap(gap{URL: at, Reason: why.Error()}); err != nil {
		return err
	}
	return r.commit(ctx, &event.Batch{Next: r.data, Progress: r.progress()})
}

// retryAfterTooMany reports whether an unfinished walk had read as many documents as it
// may, before this harvest. The walk begins anew then, for what is new since.
func (r *run) retryAfterTooMany() bool {
	if r.report.Gap == "" || r.documents.Load() > 0 || r.data == nil {
		return false
	}
	r.updateReport(func(p *Report) { p.Gap = "" })
	return true
}

// setGap notes a gap, and since when there has been one.
func (r *run) setGap(g gap) error {
	r.updateReport(func(p *Report) { p.Gap = g.URL + ": " + g.Reason })
	g.Since = r.h.now().UTC()
	var before gap
	if json.Unmarshal([]byte(r.stored.Gap), &before) == nil && before.URL == g.URL {
		g.Since = before.Since
	}
	data, err := json.Marshal(g)
	r.stored.Gap = string(data)
	return err
}

// gapURL returns the URL of the document that was missing in the last harvest, "" for none.
func (r *run) gapURL() string {
	var open gap
	_ = json.Unmarshal([]byte(r.stored.Gap), &open) // where there is none, nothing is missing
	return open.URL
}

// progress is what is stored beside the cursor.
func (r *run) progress() *event.Progress {
	data, err := json.Marshal(r.memory)
	if err != nil {
		panic(err) // strings, numbers and times only
	}
	return &event.Progress{Mark: r.stored.Mark, Memory: data, Gap: r.stored.Gap}
}

// remember stores the progress of the harvest, unless it is stored already: a harvest
// that finds nothing new writes nothing.
func (r *run) remember(ctx context.Context) error {
	p := r.progress()
	if p.Mark == r.saved.Mark && p.Gap == r.saved.Gap && bytes.Equal(p.Memory, r.saved.Memory) {
		return nil
	}
	return r.commit(ctx, &event.Batch{Next: r.data, Progress: p})
}

// commit appends a batch under the cursor's present version.
func (r *run) commit(ctx context.Context, b *event.Batch) error {
	_, err := r.append(ctx, b)
	return err
}

// append is commit, and returns what became of the batch.
func (r *run) append(ctx context.Context, b *event.Batch) (out event.Appended, err error) {
	version, data := r.version, r.data
	err = r.transaction(b)(ctx, func(ctx context.Context, tx *eventlog.Tx) error {
		out, err = r.appendTo(ctx, tx, b)
		return err
	})
	if err != nil {
		r.version, r.data = version, data
		return event.Appended{}, &appendError{err}
	}
	if b.Progress != nil {
		r.saved = *b.Progress
	}
	r.reportProgress()
	return out, nil
}

// manyItems is from how many items on a batch is the first of its transaction, so that
// work of others that is done need not wait for its COMMIT (eventlog.Log.DoFirst).
// Smaller ones, of however many Sources, share a COMMIT.
const manyItems = 2000

// transaction returns what runs the transaction that appends a batch, or begins with it.
func (r *run) transaction(b *event.Batch) func(context.Context, func(context.Context, *eventlog.Tx) error) error {
	if len(b.Items) < manyItems {
		return r.h.Log.Do
	}
	return r.h.Log.DoFirst
}

// appendTo appends a batch in a transaction of the log, under the cursor's version there.
// What became of it is counted when it is durable.
func (r *run) appendTo(ctx context.Context, tx *eventlog.Tx, b *event.Batch) (event.Appended, error) {
	b.Source, b.Cursor, b.Lazy = r.src.ID, r.version, true
	out, err := tx.Append(ctx, b)
	if err != nil {
		return out, err
	}
	r.version, r.data = out.Cursor, b.Next
	tx.OnCommit(r.count(b, &out))
	return out, nil
}

// overdue applies deletions that have been held for long enough. That is done
// by itself only after a harvest in which they were absent once more: not after
// an error, a 410, or an archived feed, where absence says nothing.
func (r *run) overdue(ctx context.Context) error {
	if !r.absenceSeen {
		return nil
	}
	return r.release(ctx, false, r.overdueSince())
}

// overdueSince returns the time at or before which a deletion was held first that is
// overdue now.
func (r *run) overdueSince() event.Micros {
	wait := cmp.Or(r.src.HoldDeletions, 24*time.Hour)
	return event.MicrosOf(r.h.now().Add(-wait))
}

// release applies deletions that were held: all, or those held since no later
// than a time.
func (r *run) release(ctx context.Context, person bool, since event.Micros) error {
	ids, err := r.h.Log.Held(ctx, r.src.ID, person, since)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(ids, endBatch) {
		if err := r.deleteAbsent(ctx, part, event.ModeAbsent, false, r.data); err != nil {
			return err
		}
	}
	return r.askDoubted(ctx)
}
