package delivery

import (
	"context"
	"fmt"
	"iter"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Importer is where accepted records go on to.
type Importer interface {
	// Import takes in what was accepted. It may be asked for the same submission
	// again, and that changes nothing.
	Import(ctx context.Context, accepted ...*submission.Submission) error
}

// SetImporter takes accepted records into another set, under their assigned
// identifiers. Where the original is they inherit from the event whose record was
// submitted. Of two submissions of one record that were accepted under the same
// identifier the later one stays, whichever was accepted first.
type SetImporter struct {
	Store Store
	// Events returns the events of the log.
	Events interface {
		Event(ctx context.Context, seq event.Seq) (*event.Event, error)
		Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error]
	}
	// Source is the other set's Source of kind sip, URL what the log calls it.
	Source event.SourceID
	URL    string
}

var _ Importer = (*SetImporter)(nil)

// Import commits all of them together. Their acceptance is in the log before.
func (i *SetImporter) Import(ctx context.Context, accepted ...*submission.Submission) error {
	var last []*submission.Submission
	for _, s := range accepted {
		passed, err := HasNewerAccepted(ctx, i.Store, s)
		if err != nil {
			return err
		}
		if !passed {
			last = append(last, s)
		}
	}
	if len(last) == 0 {
		return nil
	}
	originals, err := i.originals(ctx, last)
	if err != nil {
		return err
	}
	batch := event.Batch{Source: i.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: i.URL}}, Items: make([]event.Item, len(last))}
	for n, s := range last {
		batch.Items[n].Observation = importObservation(s, originals[s.Seq])
	}
	_, err = i.Store.Append(ctx, &batch)
	return err
}

// originals returns the events behind submissions. Where they follow each other
// closely, as when an outbox is drained, they are read together.
func (i *SetImporter) originals(ctx context.Context, of []*submission.Submission) (map[event.Seq]*event.Event, error) {
	out := make(map[event.Seq]*event.Event, len(of))
	first, last := of[0].Seq, of[0].Seq
	for _, s := range of {
		first, last = min(first, s.Seq), max(last, s.Seq)
		out[s.Seq] = nil
	}
	if last-first < event.Seq(4*len(of)) {
		for ev, err := range i.Events.Events(ctx, of[0].Set, event.Range{After: first - 1, Upto: last}) {
			if err != nil {
				return nil, fmt.Errorf("the events behind submissions: %w", err)
			}
			if _, wanted := out[ev.Seq]; wanted {
				own := *ev
				out[ev.Seq] = &own
			}
		}
	}
	for _, s := range of {
		if out[s.Seq] != nil {
			continue
		}
		ev, err := i.Events.Event(ctx, s.Seq)
		if err != nil {
			return nil, fmt.Errorf("the event behind submission %d: %w", s.ID, err)
		}
		out[s.Seq] = ev
	}
	return out, nil
}

// importAccepted takes into the other set what was accepted, and then notes that it is
// there. Should the process end in between it is taken again, which changes
// nothing; and what was not accepted in the end is never taken.
func (d *submitLoop) importAccepted(ctx context.Context) error {
	for d.importDue && d.s.Importer != nil {
		rows, err := d.s.Store.Submissions(ctx, submission.Query{Source: d.s.Source, ImportPending: true, Limit: chunkLimit})
		if err != nil {
			return err
		}
		var out submission.Written
		if len(rows) > 0 {
			accepted, updates := make([]*submission.Submission, len(rows)), make([]submission.Update, len(rows))
			for i := range rows {
				accepted[i] = &rows[i]
				updates[i].Submission, _ = submission.Apply(rows[i], submission.Imported{}, d.s.Now())
			}
			if err := d.s.Importer.Import(ctx, accepted...); err != nil {
				return err
			}
			if out, err = d.append(ctx, updates); err != nil {
				return err
			}
		}
		// One that is stale was contradicted meanwhile.
		d.importDue, d.accepted = len(out.Stale) > 0 || len(rows) == chunkLimit, 0
	}
	return nil
}

// importObservation is an accepted record as the other set observes it.
func importObservation(s *submission.Submission, original *event.Event) event.Observation {
	order, _ := event.StampOf(original.Observed.Time())
	return event.Observation{
		Record:           s.Assigned,
		SourceIdentifier: s.Record,
		Order:            order,
		Modified:         original.Modified,
		Title:            s.Title,
		Representations:  []event.Representation{{Href: original.Via.Href, Type: s.Type, Length: s.Length, Hash: event.HashOf(s.Content)}},
		Via:              original.Via,
		Fetched:          true,
	}
}

// Versions reports what the log has of other versions of a submission.
type Versions interface {
	HasNewerVersion(ctx context.Context, s *submission.Submission, states []submission.State, assigned string) (bool, error)
}

// HasNewerAccepted reports whether a later version of an accepted submission has been
// accepted under the same identifier, so that this one changes nothing any more:
// dispositions come in any order.
func HasNewerAccepted(ctx context.Context, store Versions, s *submission.Submission) (bool, error) {
	if s.Seq == 0 && !submission.Versioned(s) {
		return false, nil
	}
	return store.HasNewerVersion(ctx, s, []submission.State{submission.StateAccepted}, s.Assigned)
}
