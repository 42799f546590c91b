package harvest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// listCursor is an unfinished walk over the lists of a ResourceSync Source.
type listCursor struct {
	Lists  resourcesync.State `json:"lists,omitzero"`
	Ending *listEnding        `json:"list_ending,omitempty"`
	// Active counts the records that the baseline's documents had.
	Active int64 `json:"active"`
}

// listEnding is what such a walk was worth.
type listEnding struct {
	Result resourcesync.Result `json:"result"`
	Active int64               `json:"active"`
	Full   bool                `json:"full"`
}

// sync harvests a ResourceSync Source: first what is left of an unfinished walk,
// then a new one.
func (r *run) sync(ctx context.Context) error {
	if err := r.resumeLists(ctx); err != nil || r.report.Gap != "" {
		return err
	}
	return r.lists(ctx, nil)
}

// resumeLists ends an unfinished walk. When it cannot go on from where it was
// left, the next walk starts anew.
func (r *run) resumeLists(ctx context.Context) error {
	if r.data == nil || string(r.data) == unread {
		return nil
	}
	var c listCursor
	if err := json.Unmarshal(r.data, &c); err != nil {
		return fmt.Errorf("the unfinished walk cannot be read (%w): run bridge source reset %s", err, r.src.Set)
	}
	if c.Ending != nil {
		return r.endLists(ctx, c.Ending)
	}
	if !c.Lists.Unfinished() {
		return nil
	}
	err := r.lists(ctx, &c)
	switch {
	case r.atItsEnd():
		return nil
	case err == nil, r.documents.Load() > 0, ctx.Err() != nil, errors.Is(err, event.ErrConflict):
		return err
	}
	r.problem("A10", "the unfinished walk could not be resumed and starts anew: "+err.Error())
	return nil
}

// lists makes one pass over the Source's lists, from the newest to the oldest
// that is needed, and applies what they say on the way.
func (r *run) lists(ctx context.Context, from *listCursor) error {
	full, err := r.fullLists(ctx)
	if err != nil {
		return err
	}
	if from == nil {
		if err := r.noteDoubtful(ctx); err != nil {
			return err
		}
	}
	w := r.src.lists()
	w.Client = r.documentClient()
	w.State, w.Full, w.Accepted, w.Now = r.memory.Lists, full, r.memory.Accepted, r.h.now
	w.Report = func(p resourcesync.Problem) { r.problem(p.Rule, p.String()) }
	p := newPipe(ctx, r, from == nil)
	if from != nil {
		w.State, p.active = from.Lists, from.Active
	}
	err, written := p.during(func() error {
		for d, err := range w.Documents(p.ctx) {
			if err == nil {
				err = r.list(p.ctx, d, p)
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
	var many *resourcesync.TooManyError
	switch {
	case errors.As(err, &many):
		return r.tooMany(ctx, many.URL, err)
	case err != nil:
		return err
	case result.NotModified:
		r.note(func(p *Report) { p.NotModified = r.documents.Load() == 0 })
		r.absent = r.memory.Complete
		r.memory.Lists = result.State
		r.whole = true
		return nil
	case result.Ended:
		r.warn("the Source has ended (410); the records stay as they are: take it out of the configuration")
		return nil
	}
	return r.endLists(ctx, &listEnding{Result: result, Active: p.active, Full: full})
}

// fullLists tells whether the pass is to compare a baseline. It is, too, while
// deletions are held that only another baseline can confirm (A6).
func (r *run) fullLists(ctx context.Context) (bool, error) {
	if r.full() {
		return true, nil
	}
	held, err := r.h.Waiting.Held(ctx, r.src.ID, false, r.overdueSince())
	return len(held) > 0, err
}

// endLists does what only a whole pass allows: deletions by absence, the last
// word on content that is not what the lists say, and the new mark.
func (r *run) endLists(ctx context.Context, e *listEnding) error {
	result := &e.Result
	if result.Lost != "" {
		r.warn(result.Lost)
	}
	for _, d := range result.Dialects {
		if d != string(resourcesync.Dialect11) {
			r.note(func(p *Report) { p.Dialects = appendNew(p.Dialects, d) })
		}
	}
	if g := result.Gap; g != nil {
		if err := r.openGap(gap{URL: g.URL, Reason: g.Reason, Target: result.Mark}); err != nil {
			return err
		}
		return r.commit(ctx, &event.Batch{Progress: r.progress()})
	}
	next, err := json.Marshal(listCursor{Ending: e, Active: e.Active})
	if err != nil {
		return err
	}
	if result.Complete {
		at := known(result.At)
		if len(result.Sets) > 0 {
			if err := r.leave(ctx, at, result.Sets, next); err != nil {
				return err
			}
		}
		if err := r.absences(ctx, at, e.Active, next, result.Sets...); err != nil {
			return err
		}
	}
	r.absent, r.whole = result.Complete, true
	r.note(func(p *Report) { p.Full = result.Baseline })
	r.memory.Lists, r.memory.Complete = result.State, result.Complete
	if result.Baseline || e.Full {
		r.readWhole(e.Full)
	}
	r.stored.Gap = ""
	if mark := known(result.Mark); mark.Known() {
		r.stored.Mark = mark
	}
	return r.commit(ctx, &event.Batch{Progress: r.progress()})
}

// stampOf is the stamp of a datetime that may be absent.
func stampOf(d resourcesync.Datetime) event.Stamp { return known(d.Time()) }

// known is the stamp of a time that may be absent.
func known(t time.Time) event.Stamp {
	if t.IsZero() {
		return event.Stamp{}
	}
	s, _ := event.StampOf(t)
	return s
}

// mismatches puts content into quarantine that was not what its list says before
// this pass began, was asked for again and still is not, although the lists have
// been read to their end since and said nothing newer of the record. Else the Source
// may have changed it after its list was read. It goes on being asked for like all
// that is pending: quarantine shows it to a person.
func (r *run) mismatches(ctx context.Context, next []byte) error {
	return r.eachMismatch(ctx, func(kept []event.WaitingItem) error {
		b := event.Batch{Next: next}
		for i := range kept {
			k := &kept[i]
			if k.Tries == 0 || !r.doubtful[k.Number] {
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
		r.note(func(p *Report) { p.Quarantined += int64(len(b.Quarantine)) })
		return r.commit(ctx, &b)
	})
}

// noteDoubtful remembers whose content is not what its list says, now that a pass
// begins.
func (r *run) noteDoubtful(ctx context.Context) error {
	r.whole, r.doubtful = false, map[int64]bool{}
	return r.eachMismatch(ctx, func(kept []event.WaitingItem) error {
		for i := range kept {
			r.doubtful[kept[i].Number] = true
		}
		return nil
	})
}

// eachMismatch calls f with pending observations whose content was not what their
// list says when it was asked for last, some at a time.
func (r *run) eachMismatch(ctx context.Context, f func([]event.WaitingItem) error) error {
	for after := int64(0); ; {
		kept, err := r.h.Waiting.Pending(ctx, r.src.ID, math.MaxInt64, after, mirrorBatch)
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
