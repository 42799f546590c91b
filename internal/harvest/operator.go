package harvest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Reset forgets how far a Source has been harvested: mark, unfinished walk, gap,
// feed id, and when it is asked next. Records and events stay; the next harvest reads everything and
// logs what differs. It is the way on when a feed's id has changed (A7).
func (h *Harvester) Reset(ctx context.Context, id event.SourceID) error {
	p, err := h.Log.Progress(ctx, id)
	if err != nil {
		return err
	}
	if _, err := h.Log.Append(ctx, &event.Batch{Source: id, Cursor: p.Cursor.Version, Progress: &event.Progress{}}); err != nil {
		return err
	}
	return h.Log.SaveSchedule(ctx, id, event.Schedule{}, false)
}

// Forget ends a Source. What only it has is deleted, or kept as it is. Held
// deletions, pending contents and quarantined input of it go with it.
func (h *Harvester) Forget(ctx context.Context, src *Source, keep bool) (Report, error) {
	if err := h.Reset(ctx, src.ID); err != nil {
		return Report{}, err
	}
	r, err := h.begin(ctx, src)
	if err == nil && !keep {
		err = r.withdraw(ctx)
	}
	if err == nil {
		err = h.Log.Forget(ctx, src.ID)
	}
	return r.ended(err), err
}

// withdraw takes back all that the Source has.
func (r *run) withdraw(ctx context.Context) error {
	ever := event.StampFromNanos(math.MaxInt64)
	for after := int64(0); ; {
		ids, last, err := r.h.Log.Absent(ctx, r.src.ID, ever, after, endBatch)
		if err != nil || len(ids) == 0 {
			return err
		}
		after = last
		b := &event.Batch{Mode: event.ModeAbsent, Documents: []event.Document{{URL: r.src.URL}}}
		for _, id := range ids {
			b.Items = append(b.Items, event.Item{Observation: event.Observation{Record: id, Deleted: true}, Reason: "its Source was forgotten"})
		}
		if err := r.commit(ctx, b); err != nil {
			return err
		}
	}
}

// ErrNoGap: there is nothing to accept.
var ErrNoGap = errors.New("the Source has no gap")

// AcceptGap takes note that an archive document is gone for good: from now on
// the chain counts as ending before it (A8). It returns the document's URL. Of a
// Source that was never walked whole it takes note that its set is published
// without it, and returns the Source's URL.
func (h *Harvester) AcceptGap(ctx context.Context, src *Source) (string, error) {
	p, err := h.Log.Progress(ctx, src.ID)
	if err != nil {
		return "", err
	}
	var m memory
	if err := unmarshal(p.Memory, &m); err != nil {
		return "", err
	}
	whole := m.Whole == src.Epoch
	m.Whole = src.Epoch
	if p.Gap == "" {
		if whole || src.Kind == SIP {
			return "", ErrNoGap
		}
		r := &run{h: h, src: src, memory: m, stored: p, version: p.Cursor.Version}
		return src.URL, r.commit(ctx, &event.Batch{Next: p.Cursor.Data, Progress: r.progress()})
	}
	var open gap
	if err := json.Unmarshal([]byte(p.Gap), &open); err != nil {
		return "", err
	}
	if !slices.Contains(m.Accepted, open.URL) {
		m.Accepted = append(m.Accepted, open.URL)
	}
	r := &run{h: h, src: src, memory: m, stored: p, version: p.Cursor.Version}
	if t, ok := event.StampOf(open.Target); ok && !open.Target.IsZero() {
		r.stored.Mark = t
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

// Gap describes an open gap for people, "" when there is none.
func Gap(stored string) string {
	var open gap
	if stored == "" || json.Unmarshal([]byte(stored), &open) != nil {
		return stored
	}
	return fmt.Sprintf("%s: %s (since %s)", open.URL, open.Reason, open.Since.Format("2006-01-02 15:04"))
}

// Waits returns for which sets one waits whose feed has the URN, and whose Sources are
// these. It is whole when it waits for none.
func Waits(feed string, sources []event.Progress, now time.Time) *follow.Waits {
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

// begin loads what is stored of a Source for work outside a walk. An unfinished
// walk stays as it is.
func (h *Harvester) begin(ctx context.Context, src *Source) (*run, error) {
	r := &run{h: h, src: src}
	r.report.Started = h.now().UTC()
	var err error
	if r.stored, err = h.Log.Progress(ctx, src.ID); err != nil {
		return r, err
	}
	r.version, r.data = r.stored.Cursor.Version, r.stored.Cursor.Data
	return r, unmarshal(r.stored.Memory, &r.memory)
}

// Settle asks again for the pending contents of a Source that are due.
func (h *Harvester) Settle(ctx context.Context, src *Source) (Report, error) {
	r, err := h.begin(ctx, src)
	if err == nil {
		err = r.settleDue(ctx)
	}
	return r.ended(err), err
}

func (r *run) settleDue(ctx context.Context) (err error) {
	defer defect.Recover(&err)
	return r.pending(ctx)
}

// Release applies all held deletions of a Source (A6).
func (h *Harvester) Release(ctx context.Context, src *Source) (Report, error) {
	r, err := h.begin(ctx, src)
	if err == nil {
		err = r.release(ctx, true, 0)
	}
	return r.ended(err), err
}

// ErrStillBad: what was quarantined cannot be taken in.
var ErrStillBad = errors.New("still bad")

// Replay takes in quarantined input, if it can be by now: after a new version
// of bridge, another configuration, or when a question can be answered that
// could not be before. What is earlier than the stored state changes nothing.
func (h *Harvester) Replay(ctx context.Context, src *Source, q *event.Quarantined) (Report, error) {
	r, err := h.begin(ctx, src)
	if err == nil {
		err = r.replay(ctx, q)
	}
	return r.ended(err), err
}

func (r *run) replay(ctx context.Context, q *event.Quarantined) error {
	read := r.entriesAgain
	switch r.src.Kind {
	case ResourceSync:
		read = r.resourcesAgain
	case Feed:
		read = r.itemsAgain
	}
	observed, err := read(ctx, q)
	if err != nil {
		return err
	}
	b := &event.Batch{Mode: event.ModeReplay, Next: r.data, Documents: []event.Document{{URL: q.URL, FeedID: r.memory.FeedID}}}
	for _, o := range observed {
		b.Items = append(b.Items, r.again(o, 0))
	}
	return r.fetchAndCommit(ctx, b)
}

// stillBad says why input is still bad. An entry's place is the one where it stood
// in its document, not the one in the input that was kept.
func stillBad(err error, q *event.Quarantined) error {
	var entry *atompmh.EntryError
	var resource *resourcesync.EntryError
	switch {
	case errors.As(err, &entry):
		entry.Line, entry.Column = q.Line, q.Column
	case errors.As(err, &resource):
		resource.Line, resource.Column = q.Line, q.Column
	}
	return fmt.Errorf("%w: %w", ErrStillBad, err)
}

// entriesAgain reads quarantined Atom-PMH entries.
func (r *run) entriesAgain(ctx context.Context, q *event.Quarantined) ([]event.Observation, error) {
	entries, err := entriesOf(q)
	if err == nil && q.Rule == ruleTie {
		entries, err = r.told(ctx, entries)
	}
	if err != nil {
		return nil, err
	}
	var out []event.Observation
	for _, e := range entries {
		it, err := r.item(e)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrStillBad, err)
		}
		out = append(out, it.Observation)
	}
	return out, nil
}

// resourcesAgain reads quarantined entries of a ResourceSync list.
func (r *run) resourcesAgain(_ context.Context, q *event.Quarantined) ([]event.Observation, error) {
	rd := resourcesync.NewReader(bytes.NewReader(q.Input), resourcesync.ReadOptions{URL: q.URL})
	wants := r.selection()
	var out []event.Observation
	for {
		e, err := rd.Next()
		switch {
		case errors.Is(err, io.EOF) && len(out) > 0:
			return out, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it has no entry", ErrStillBad)
		case err != nil:
			return nil, stillBad(err, q)
		case !understood(e.Metadata.Change):
			return nil, fmt.Errorf("%w: change %q is none that is known", ErrStillBad, e.Metadata.Change)
		}
		it, err := observe(e, &wants, false)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrStillBad, err)
		}
		out = append(out, it.Observation)
	}
}

// entriesOf reads the input anew.
func entriesOf(q *event.Quarantined) ([]*atompmh.Entry, error) {
	rd := atompmh.NewReader(bytes.NewReader(q.Input), atompmh.Options{URL: q.URL})
	var out []*atompmh.Entry
	for {
		e, err := rd.Next()
		switch {
		case errors.Is(err, io.EOF) && len(out) > 0:
			return out, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it has no entry", ErrStillBad)
		case err != nil:
			return nil, stillBad(err, q)
		}
		out = append(out, e)
	}
}

// told asks again which of two entries with the same stamp holds (A1).
func (r *run) told(ctx context.Context, entries []*atompmh.Entry) ([]*atompmh.Entry, error) {
	holds := atompmh.Deletion
	if alive, err := r.anyAlive(ctx, entries); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStillBad, err)
	} else if alive {
		holds = atompmh.Active
	}
	for _, e := range entries {
		if e.Kind == holds {
			return []*atompmh.Entry{e}, nil
		}
	}
	return nil, fmt.Errorf("%w: it has not the two entries that it should have", ErrStillBad)
}
