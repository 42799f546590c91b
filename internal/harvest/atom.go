package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// memory is what a harvest leaves for the next one, besides the mark.
type memory struct {
	// URL is where the Source was when it was harvested last.
	URL    string `json:"url,omitempty"`
	FeedID string `json:"feed_id,omitempty"`
	// Atom is what a walk over a feed of Atom-PMH leaves.
	Atom atompmh.State `json:"atom,omitzero"`
	// Accepted are archive documents whose absence an operator has accepted.
	Accepted []string `json:"accepted,omitempty"`
	// Complete: the last enumeration was a complete feed.
	Complete bool `json:"complete,omitempty"`
	// Whole is the Epoch in which the Source was walked whole.
	Whole string `json:"whole,omitempty"`
	// Waits is for which sets the Source waits, which is a bridge that said so when
	// it was asked last.
	Waits *follow.Waits `json:"waits,omitempty"`
	// Short is what the Source claims to have beyond what could be read, nil when
	// that is not far more.
	Short *shortfall `json:"short,omitempty"`
	// FullAt is when a walk last climbed as far as the chain goes.
	FullAt time.Time `json:"full_at,omitzero"`
	// Lists is what a walk over a ResourceSync Source leaves, Feed what one over
	// a legacy feed does.
	Lists resourcesync.State `json:"lists,omitzero"`
	Feed  feedMemory         `json:"feed,omitzero"`
}

// shortfall is how many results a feed claims to have, and how many it leads to.
type shortfall struct {
	Claimed int64 `json:"claimed"`
	Read    int64 `json:"read"`
}

// String says so, and what it means.
func (s *shortfall) String() string {
	return fmt.Sprintf("the feed claims to have %d results, and leads to %d: the others are not harvested, and nothing is deleted because it is absent; look for a feed that leads to all of them", s.Claimed, s.Read)
}

// compare takes note of how many results a feed claims, once all that it leads to
// was read.
func (m *memory) compare(claimed, read int64) {
	m.Short = nil
	if atompmh.Short(claimed, read) {
		m.Short = &shortfall{Claimed: claimed, Read: read}
	}
}

// gap is a missing archive document, and the mark that will be when an operator
// accepts it (A8).
type gap struct {
	URL    string    `json:"url"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Target time.Time `json:"target,omitzero"`
}

// cursor is an unfinished walk. Once its documents are read only its end is
// left: Ending is set then.
type cursor struct {
	Walk   atompmh.State `json:"walk"`
	Ending *ending       `json:"ending,omitempty"`
	// Active counts the active entries of the last document.
	Active int64 `json:"active"`
}

// unread is the cursor of a walk of which no document has been taken in whole.
const unread = `{"walk":{"documents":0},"active":0}`

// ending is what a walk was worth.
type ending struct {
	Result atompmh.Result `json:"result"`
	Active int64          `json:"active"`
	// Full: the walk was to climb as far as it could.
	Full bool `json:"full"`
}

// run is one harvest of one Source.
type run struct {
	h   *Harvester
	src *Source
	opt Options
	// place is that of a harvest; nil when only what waits is asked for.
	place *place

	stored  event.Progress
	saved   event.Progress // as the log has it
	memory  memory
	version int64  // of the stored cursor
	data    []byte // the stored cursor
	// absent: the Source was seen, whole, and does not have what is held (A6).
	absent bool
	// whole: the lists were read to their end, so that nothing newer is said of
	// what is pending.
	whole bool
	// doubtful are the records whose content was not what its list says when the
	// pass began.
	doubtful map[int64]bool
	hurry    bool    // a walk is under way, which does not wait for slow contents
	left     int     // contents that were needed, and not asked for to the end
	reading  reading // the document that is being read
	doubted  bool    // some deletion by absence waits for the answer of its URL

	mu      sync.Mutex // guards report and hosts
	report  Report
	telling sync.Mutex // held while Options.Progress is called

	hosts                               map[string]*hostState // of contents
	documents, entries, events, fetched atomic.Int64
	needed                              atomic.Int64 // contents, fetched or not
	bytes                               atomic.Int64 // of the documents
	activity                            atomic.Pointer[activity]
}

// atom harvests an Atom-PMH Source: first what is left of an unfinished walk,
// then a new one.
func (r *run) atom(ctx context.Context) error {
	if err := r.resume(ctx); err != nil || r.report.Gap != "" {
		return err
	}
	return r.walk(ctx, nil)
}

// resume ends an unfinished walk. When it cannot go on from where it was left,
// the next walk starts anew: an archive document that has been failing for long
// must not keep back what is new in the subscription document.
func (r *run) resume(ctx context.Context) error {
	if r.data == nil {
		return nil
	}
	var c cursor
	if err := json.Unmarshal(r.data, &c); err != nil {
		return fmt.Errorf("the unfinished walk cannot be read (%w): run bridge source reset %s", err, r.src.Set)
	}
	switch {
	case c.Ending != nil:
		return r.end(ctx, c.Ending)
	case !c.Walk.Unfinished():
		return nil // it had not come to the end of its first document
	}
	err := r.walk(ctx, &c)
	switch {
	case r.atItsEnd():
		return nil
	case err == nil, r.documents.Load() > 0, ctx.Err() != nil, errors.Is(err, event.ErrConflict):
		return err
	}
	r.problem("A10", "the unfinished walk could not be resumed and starts anew: "+err.Error())
	return nil
}

// walk follows the chain and applies what it says while walking.
func (r *run) walk(ctx context.Context, from *cursor) error {
	w := r.walker(from)
	p := newPipe(ctx, r, from == nil)
	if from != nil {
		p.active = from.Active
	}
	err, written := p.during(func() error {
		for d, err := range w.Documents(p.ctx) {
			if err == nil {
				err = r.document(p.ctx, d, p)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	result := w.Result()
	if written != nil {
		return written
	}
	var many *atompmh.TooManyError
	switch {
	case errors.Is(err, atompmh.ErrLoop):
		// The same walk would end the same way: the next one starts anew.
		return errors.Join(err, r.commit(ctx, &event.Batch{Next: nil}))
	case errors.As(err, &many):
		r.memory.Atom = result.State
		return r.tooMany(ctx, many.URL, err)
	case errors.Is(err, atompmh.ErrFeedID):
		return fmt.Errorf("%w: nothing was taken in; if the feed was replaced on purpose, run bridge source reset %s %s", err, r.src.Set, r.src.URL)
	case err != nil:
		return err
	case result.NotModified:
		r.note(func(p *Report) { p.NotModified = r.documents.Load() == 0 })
		r.absent = r.memory.Complete
		r.warnShort()
		return nil
	case result.Ended:
		r.warn("the feed has ended (410); the records stay as they are: take the Source out of the configuration")
		return nil
	}
	return r.end(ctx, &ending{Result: result, Active: p.active, Full: result.Full})
}

func (r *run) walker(from *cursor) *atompmh.Walk {
	l := &r.src.Limits
	w := &atompmh.Walk{
		Client: r.documentClient(), URL: r.src.URL, Overlap: r.src.Overlap, State: r.memory.Atom, FeedID: r.memory.FeedID,
		Full: r.full(), Accepted: r.memory.Accepted, MaxDocuments: r.src.MaxDocuments, AllowHost: r.src.AllowHost,
		Limits: atompmh.Limits{Document: l.Document, Text: l.Text, Depth: l.Depth, Attributes: l.Attributes}, Now: r.h.now,
		Report: func(p atompmh.Problem) { r.problem(p.Rule, p.String()) },
	}
	if from != nil {
		w.State = from.Walk
	}
	return w
}

// full tells whether the walk is to read all that the Source has.
func (r *run) full() bool {
	due := r.src.FullEvery > 0 && !r.memory.FullAt.IsZero() && r.h.now().Sub(r.memory.FullAt) >= r.src.FullEvery
	return r.opt.Full || due
}

// end does what only a whole walk allows: step backs, deletions by absence, and
// the new mark.
func (r *run) end(ctx context.Context, e *ending) error {
	result := &e.Result
	if result.Lost {
		r.warn("the chain of archive documents ends while everything in it is newer than the last harvest: deletions may be lost")
	}
	if g := result.Gap; g != nil {
		return r.gap(ctx, g, result)
	}
	next, err := json.Marshal(cursor{Ending: e})
	if err != nil {
		return err
	}
	if err := r.stepBacks(ctx, result, next); err != nil {
		return err
	}
	if result.Complete {
		if err := r.absences(ctx, event.Stamp{}, e.Active, next); err != nil {
			return err
		}
	}
	whole := result.Oldest || result.Complete
	if whole {
		r.memory.compare(result.TotalResults, result.Entries)
	}
	r.warnShort()
	r.absent = result.Complete
	r.note(func(p *Report) { p.Full = whole })
	m := &r.memory
	m.FeedID, m.Atom, m.Complete = cmp.Or(result.FeedID, m.FeedID), result.State, result.Complete
	if whole || e.Full {
		r.readWhole(e.Full)
	}
	r.stored.Gap = ""
	if t, ok := event.StampOf(result.Target); ok && !result.Target.IsZero() {
		r.stored.Mark = t
	}
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// readWhole takes note of when the Source was read whole. Where that happens each
// time it alone is not worth a transaction (D151).
func (r *run) readWhole(asked bool) {
	if now := r.h.now().UTC(); asked || now.Sub(r.memory.FullAt) >= r.src.FullEvery/7 {
		r.memory.FullAt = now
	}
}

// warnShort says that the last whole walk found far less than the feed claims.
func (r *run) warnShort() {
	if s := r.memory.Short; s != nil {
		r.warn(s.String())
	}
}

// gap keeps the mark: what is newer than the missing archive has been applied,
// what is older has not been seen (A8).
func (r *run) gap(ctx context.Context, g *atompmh.Gap, result *atompmh.Result) error {
	if err := r.openGap(gap{URL: g.URL, Reason: g.Reason, Target: result.Target}); err != nil {
		return err
	}
	r.memory.FeedID, r.memory.Atom = cmp.Or(r.memory.FeedID, result.FeedID), result.State
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// tooMany ends a harvest that has read as many documents as it may. What it has
// not read is a gap; the walk can go on should the cap be raised.
func (r *run) tooMany(ctx context.Context, at string, why error) error {
	if err := r.openGap(gap{URL: at, Reason: why.Error()}); err != nil {
		return err
	}
	return r.commit(ctx, &event.Batch{Next: r.data, Progress: r.progress()})
}

// atItsEnd reports whether an unfinished walk had read as many documents as it
// may, before this harvest. The walk begins anew then, for what is new since.
func (r *run) atItsEnd() bool {
	if r.report.Gap == "" || r.documents.Load() > 0 || r.data == nil {
		return false
	}
	r.note(func(p *Report) { p.Gap = "" })
	return true
}

// openGap takes note of a gap, since when it has been there included.
func (r *run) openGap(g gap) error {
	r.note(func(p *Report) { p.Gap = g.URL + ": " + g.Reason })
	g.Since = r.h.now().UTC()
	var before gap
	if json.Unmarshal([]byte(r.stored.Gap), &before) == nil && before.URL == g.URL {
		g.Since = before.Since
	}
	data, err := json.Marshal(g)
	r.stored.Gap = string(data)
	return err
}

// progress is what is stored beside the cursor.
func (r *run) progress() *event.Progress {
	data, err := json.Marshal(r.memory)
	if err != nil {
		panic(err) // strings, numbers and times only
	}
	return &event.Progress{Mark: r.stored.Mark, Memory: data, Gap: r.stored.Gap}
}

// remember keeps what the harvest has learned, unless that is what is kept
// already: a harvest that finds nothing new writes nothing.
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

func (r *run) append(ctx context.Context, b *event.Batch) (event.Appended, error) {
	b.Source, b.Cursor, b.Lazy = r.src.ID, r.version, true
	out, err := r.h.Log.Append(ctx, b)
	if err != nil {
		return out, err
	}
	r.version, r.data = out.Cursor, b.Next
	if b.Progress != nil {
		r.saved = *b.Progress
	}
	r.count(b, &out)
	r.tell()
	return out, nil
}
