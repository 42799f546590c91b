package harvest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

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
	return r.take(ctx, b)
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
