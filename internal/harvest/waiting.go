package harvest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
)

// piecewise is how many records the end of a walk takes at once.
const piecewise = 10_000

// stepBacks applies observations that are earlier than what was stored, now
// that the walk has met nothing later: where it was a complete enumeration, or
// the stored stamp lay in the future (A1).
func (r *run) stepBacks(ctx context.Context, result *atompmh.Result, next []byte) error {
	kept, err := r.h.Waiting.StepBacks(ctx, r.src.ID)
	if err != nil {
		return err
	}
	whole := result.Complete || result.Oldest
	b := event.Batch{Mode: event.ModeStepBack, Next: next}
	for i := range kept {
		if whole || kept[i].Flag {
			b.Documents = append(b.Documents, kept[i].Document)
			b.Items = append(b.Items, r.again(kept[i].Observation, len(b.Documents)-1))
		}
	}
	if skipped := len(kept) - len(b.Items); skipped > 0 {
		r.problem("S4", fmt.Sprintf("%s: records with an earlier stamp than before: %d; a harvest with --full takes them", r.src.URL, skipped))
	}
	if len(b.Items) == 0 {
		return nil
	}
	for part := range slices.Chunk(b.Items, r.size()) {
		if err := r.take(ctx, &event.Batch{Mode: b.Mode, Next: next, Documents: b.Documents, Items: part}); err != nil {
			return err
		}
	}
	return nil
}

// again makes an item of an observation that was kept. Whether its stamp lies in
// the future counts from now, when it is stored.
func (r *run) again(o event.Observation, document int) event.Item {
	return event.Item{Observation: o, Document: document, Late: o.Order.Time().After(r.h.now())}
}

// absences deletes the records that a complete enumeration did not have (A5),
// unless the guard keeps that back (A6). What the Source has said since the
// moment at, which the enumeration shows, is newer; at may be unknown. parts are its
// sets of resources, where it has several.
func (r *run) absences(ctx context.Context, at event.Stamp, active int64, next []byte, parts ...int) error {
	absent, have, err := r.h.Absences.CountAbsent(ctx, r.src.ID, at, parts...)
	if err != nil || absent == 0 {
		return err
	}
	mode, person := event.ModeAbsent, false
	if absent == have || absent > 10 && absent*5 > have {
		mode, person = event.ModeHold, active == 0
		r.warn(fmt.Sprintf("the Source no longer has %d of %d records: these deletions are held; look at the Source, then apply them with bridge source release %s %s", absent, have, r.src.Set, r.src.URL))
	}
	for after := int64(0); ; {
		ids, last, err := r.h.Absences.Absent(ctx, r.src.ID, at, after, piecewise, parts...)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return r.settleDoubts(ctx)
		}
		after = last
		if err := r.gone(ctx, ids, mode, person, next, parts...); err != nil {
			return err
		}
	}
}

// leave notes which records some sets of resources of the Source do not have any
// more, while others do.
func (r *run) leave(ctx context.Context, at event.Stamp, parts []int, next []byte) error {
	for after := int64(0); ; {
		left, last, err := r.h.Absences.Left(ctx, r.src.ID, at, after, piecewise, parts...)
		if err != nil || len(left) == 0 {
			return err
		}
		after = last
		b := &event.Batch{Mode: event.ModeLeft, Next: next}
		for _, l := range left {
			b.Items = append(b.Items, event.Item{Observation: event.Observation{Record: l.Record, Deleted: true, Place: event.Place{Part: l.Part}}})
		}
		if err := r.commit(ctx, b); err != nil {
			return err
		}
	}
}

// gone appends deletions by absence. Of what a list of changes spoke of last,
// without saying when, the URL is asked first.
func (r *run) gone(ctx context.Context, ids []string, mode event.Mode, person bool, next []byte, parts ...int) error {
	b := &event.Batch{Mode: mode, Person: person, Parts: parts, Next: next, Documents: []event.Document{{URL: r.src.URL, FeedID: r.memory.FeedID}}}
	for _, id := range ids {
		b.Items = append(b.Items, event.Item{Observation: event.Observation{Record: id, Deleted: true}})
	}
	out, err := r.append(ctx, b)
	if err == nil && slices.Contains(out.Outcomes, event.NeedsContent) {
		r.doubted = true
	}
	return err
}

// settleDoubts asks the URLs of what was found to be in doubt.
func (r *run) settleDoubts(ctx context.Context) error {
	if !r.doubted {
		return nil
	}
	r.doubted = false
	return r.pending(ctx)
}

// overdue applies deletions that have been held for long enough. That is done
// by itself only after a harvest in which they were absent once more: not after
// an error, a 410, or an archived feed, where absence says nothing.
func (r *run) overdue(ctx context.Context) error {
	if !r.absent {
		return nil
	}
	return r.release(ctx, false, r.overdueSince())
}

// overdueSince is when a deletion that is overdue now was held first, or later.
func (r *run) overdueSince() event.Micros {
	wait := r.src.GuardWait
	if wait == 0 {
		wait = 24 * time.Hour
	}
	return event.MicrosOf(r.h.now().Add(-wait))
}

// pendingMost is how long one harvest asks for pending contents: what is left
// stays due.
const pendingMost = 10 * time.Minute

// pending asks for the contents that are due: first those that were never asked
// for, then in the order in which they are due. What this harvest has asked for
// already is left for the next.
func (r *run) pending(ctx context.Context) error {
	start := r.h.now()
	due := event.MicrosOf(start)
	if r.opt.AllPending {
		due = math.MaxInt64
	}
	list, err := r.h.Waiting.Due(ctx, r.src.ID, due)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(d event.Due) bool { return d.Asked >= event.MicrosOf(r.report.Started) })
	for part := range slices.Chunk(list, mirrorBatch) {
		if r.h.now().Sub(start) > pendingMost {
			return nil
		}
		for _, d := range part {
			if d.Asked == 0 && r.left > 0 { // it counts anew
				r.left--
				r.note(func(p *Report) { p.Pending-- })
			}
		}
		kept, err := r.h.Waiting.PendingOf(ctx, r.src.ID, part)
		if err != nil {
			return err
		}
		b := event.Batch{Mode: event.ModeSettle, Next: r.data}
		for i := range kept {
			b.Documents = append(b.Documents, kept[i].Document)
			b.Items = append(b.Items, r.again(kept[i].Observation, i))
		}
		if len(b.Items) == 0 {
			continue
		}
		if err := r.take(ctx, &b); err != nil {
			return err
		}
	}
	return nil
}

// release applies deletions that were held: all, or those held since no later
// than a time.
func (r *run) release(ctx context.Context, all bool, since event.Micros) error {
	ids, err := r.h.Waiting.Held(ctx, r.src.ID, all, since)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(ids, piecewise) {
		if err := r.gone(ctx, part, event.ModeAbsent, false, r.data); err != nil {
			return err
		}
	}
	return r.settleDoubts(ctx)
}
