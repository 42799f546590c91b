package harvest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/follow"
)

// Reset forgets how far a Source has been harvested: mark, unfinished walk, gap,
// feed id, and when it is asked next. Records and events stay: the next harvest reads
// everything and logs what differs. It is what helps when a feed's id has changed (A7).
func (h *Harvester) Reset(ctx context.Context, id event.SourceID) error {
	kept, err := h.numbers(ctx, id)
	if err != nil {
		return err
	}
	return errors.Join(h.Log.ResetHarvest(ctx, id, kept), h.Log.ResetSchedule(ctx, id))
}

// numbers returns the memory of a Source with nothing in it but the numbers of its sets of
// resources, nil if it has none: what was reported of its records is kept by them.
func (h *Harvester) numbers(ctx context.Context, id event.SourceID) ([]byte, error) {
	var was memory
	if p, err := h.Log.Progress(ctx, id); err != nil || unmarshal(p.Memory, &was) != nil || was.Lists.Numbers() == 0 {
		return nil, nil // it is damaged, perhaps: that may be why
	}
	return json.Marshal(memory{walkMemory: walkMemory{Lists: was.Lists.Numbered()}})
}

// Forget removes a Source. The records that only it has are deleted or, with keep, stay
// as they are. Its held deletions, pending contents and quarantined input are removed.
func (h *Harvester) Forget(ctx context.Context, src *Source, keep bool) (Report, error) {
	if err := h.Reset(ctx, src.ID); err != nil {
		return Report{}, err
	}
	return h.report(ctx, src, func(r *run) error {
		if !keep {
			if err := r.deleteAll(ctx); err != nil {
				return err
			}
		}
		kept, err := h.numbers(ctx, src.ID) // it may be configured again
		if err != nil {
			return err
		}
		return h.Log.Forget(ctx, src.ID, kept)
	})
}

// deleteAll deletes all that the Source has.
func (r *run) deleteAll(ctx context.Context) error {
	ever := event.StampFromNanos(math.MaxInt64)
	for after := int64(0); ; {
		ids, last, err := r.h.Log.Absent(ctx, r.src.ID, ever, after, endBatch)
		if err != nil || len(ids) == 0 {
			return err
		}
		after = last
		b := &event.Batch{Mode: event.ModeAbsent, Documents: []event.Document{{URL: r.src.URL}}}
		for _, id := range ids {
			b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: id, Deleted: true}, Reason: "its Source was forgotten"})
		}
		if err := r.commit(ctx, b); err != nil {
			return err
		}
	}
}

// ErrNoGap: the Source has no gap that could be accepted.
var ErrNoGap = errors.New("the Source has no gap")

// AcceptGap accepts that an archive document is gone for good: from now on the chain
// counts as ending before it (A8). It returns the document's URL. For a Source without
// a gap that was never walked whole it accepts that its set is published without it, and
// returns the Source's URL; else the error is ErrNoGap.
func (h *Harvester) AcceptGap(ctx context.Context, src *Source) (string, error) {
	r, err := h.open(ctx, src)
	if err != nil {
		return "", err
	}
	whole := r.memory.Whole == src.Epoch
	r.memory.Whole = src.Epoch
	if r.stored.Gap != "" && r.src.Kind == OAIPMH {
		return "", errors.New("the list of the repository was not read to its end: the next harvest goes on there; raise max_documents")
	}
	if r.stored.Gap == "" {
		if whole || src.Kind == SIP {
			return "", ErrNoGap
		}
		return src.URL, r.commit(ctx, &event.Batch{Next: r.data, Progress: r.progress()})
	}
	var open gap
	if err := json.Unmarshal([]byte(r.stored.Gap), &open); err != nil {
		return "", err
	}
	if !slices.Contains(r.memory.Accepted, open.URL) {
		r.memory.Accepted = append(r.memory.Accepted, open.URL)
	}
	if mark := stampOrUnknown(open.Target); mark.Known() {
		r.stored.Mark = mark
	}
	r.stored.Gap = ""
	r.memory.FullAt = h.now().UTC() // the chain was read as far as it will go
	return open.URL, r.commit(ctx, &event.Batch{Progress: r.progress()})
}

func unmarshal(data []byte, v any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, v)
}

// Gap describes a stored gap (event.Progress.Gap) for people, "" when there is none.
func Gap(stored string) string {
	var open gap
	if stored == "" || json.Unmarshal([]byte(stored), &open) != nil {
		return stored
	}
	return fmt.Sprintf("%s: %s (since %s)", open.URL, open.Reason, open.Since.Format("2006-01-02 15:04"))
}

// AwaitedSets returns the sets of other bridges for which a set waits before it is
// published as whole. feed is the URN of its feed, sources are what is stored of its
// Sources. Nothing is awaited when all of them were walked whole.
func AwaitedSets(feed string, sources []event.Progress, now time.Time) *follow.Waits {
	var said []*follow.Waits
	for i := range sources {
		var m memory
		walked := unmarshal(sources[i].Memory, &m) == nil && m.Whole == feed
		switch {
		case walked && m.Waiting == nil:
		case !walked && m.Waiting != nil && !m.Waiting.Over.IsZero(): // in another epoch
			said = append(said, nil)
		default:
			said = append(said, m.Waiting)
		}
	}
	return follow.WaitsOf(feed, said, now)
}

// open loads what is stored of a Source for work outside a walk, which leaves an
// unfinished walk as it is.
func (h *Harvester) open(ctx context.Context, src *Source) (*run, error) {
	r := newRun(h, src)
	r.report.Started = h.now().UTC()
	return r, r.load(ctx)
}

// report does work on a Source outside a walk, and reports what came of it.
func (h *Harvester) report(ctx context.Context, src *Source, work func(*run) error) (Report, error) {
	r, err := h.open(ctx, src)
	if err == nil {
		err = work(r)
	}
	return r.finalReport(err), err
}

// Settle asks for the pending contents of a Source that are due.
func (h *Harvester) Settle(ctx context.Context, src *Source) (Report, error) {
	return h.report(ctx, src, func(r *run) error {
		return defect.Guard(func() error { return r.fetchPending(ctx) })
	})
}

// Release applies the held deletions of a Source (A6) that are held since no later than a
// time.
func (h *Harvester) Release(ctx context.Context, src *Source, since event.Micros) (Report, error) {
	return h.report(ctx, src, func(r *run) error { return r.release(ctx, true, since) })
}

// ErrStillBad: quarantined input still cannot be read.
var ErrStillBad = errors.New("still bad")

// Replay logs quarantined input that can be read by now: with a new version of bridge or
// another configuration, or because a server answers that did not before. The error is
// ErrStillBad when it cannot. What is earlier than the stored state changes nothing.
func (h *Harvester) Replay(ctx context.Context, src *Source, q *event.Quarantined) (Report, error) {
	return h.report(ctx, src, func(r *run) error { return r.replay(ctx, q) })
}

// rereader reads quarantined input of one protocol.
type rereader interface {
	reread(ctx context.Context, q *event.Quarantined) ([]event.Observation, error)
}

// readAgain returns what is made of the entries that next reads of quarantined input. at
// makes the place of a bad one that of the input in the document that it came from.
func readAgain[E, T any, B error](next func() (E, error), at func(bad B), made func(E) (T, error)) (out []T, err error) {
	for {
		e, err := next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if bad, ok := errors.AsType[B](err); ok {
			at(bad)
		}
		if err != nil {
			return nil, err
		}
		one, err := made(e)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
}

func (r *run) replay(ctx context.Context, q *event.Quarantined) error {
	var w rereader = &atomWalk{r: r}
	switch r.src.Kind {
	case ResourceSync:
		w = &listWalk{r: r}
	case OAIPMH:
		w = &oaiWalk{r: r}
	case Feed:
		w = &feedWalk{r: r}
	case Folder:
		w = &folderWalk{r: r}
	case CSV, Sitemap:
		w = &rowWalk{r: r}
	}
	observed, err := w.reread(ctx, q)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrStillBad, err)
	case len(observed) == 0:
		return fmt.Errorf("%w: it has no entry", ErrStillBad)
	}
	b := &event.Batch{Mode: event.ModeReplay, Next: r.data, Documents: []event.Document{{URL: q.URL, FeedID: r.memory.FeedID}}}
	for _, o := range observed {
		b.Items = append(b.Items, r.itemAgain(o, 0))
	}
	return r.fetchAndCommit(ctx, b)
}
