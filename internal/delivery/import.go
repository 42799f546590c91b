package delivery

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// SetImporter takes accepted records into another set, under their assigned
// identifiers. Where the original is they inherit from the event whose record was
// submitted. Of two submissions of one record that were accepted under the same
// identifier the later one stays, whichever was accepted first.
type SetImporter struct {
	Store *store.Store
	// Source is the other set's Source of kind sip, URL what the log calls it.
	Source event.SourceID
	URL    string
}

// Import commits all of them together. Their acceptance is in the log before. To import
// the same again changes nothing.
func (i *SetImporter) Import(ctx context.Context, accepted ...*submission.Submission) error {
	var last []*submission.Submission
	for _, s := range accepted {
		passed, err := i.Store.HasNewerAccepted(ctx, s)
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
	batch := event.Batch{Source: i.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: i.URL}}, Items: make([]event.Item, len(last))}
	for n, s := range last {
		original, err := i.Store.Event(ctx, s.Seq)
		if err != nil {
			return fmt.Errorf("the event behind submission %d: %w", s.ID, err)
		}
		batch.Items[n].Observation = importObservation(s, original)
	}
	_, err := i.Store.Append(ctx, &batch)
	return err
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
