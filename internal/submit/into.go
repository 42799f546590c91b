package submit

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
)

// Into is where accepted records go on to.
type Into interface {
	// Take takes in what was accepted. It may be asked for the same submission
	// again, and that changes nothing.
	Take(ctx context.Context, accepted ...*event.Submission) error
}

// SetInto takes accepted records into another set, under their assigned
// identifiers. Where the original is they inherit from the event whose record was
// submitted. Of two submissions of one record the one that is accepted last
// stays.
type SetInto struct {
	Store Store
	// Events returns the events of the log.
	Events interface {
		Event(ctx context.Context, seq event.Seq) (*event.Event, error)
	}
	// Source is the other set's Source of kind sip, URL what the log calls it.
	Source event.SourceID
	URL    string
}

var _ Into = (*SetInto)(nil)

// Take commits all of them together.
func (i *SetInto) Take(ctx context.Context, accepted ...*event.Submission) error {
	if len(accepted) == 0 {
		return nil
	}
	batch := event.Batch{Source: i.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: i.URL}}, Items: make([]event.Item, len(accepted))}
	for n, s := range accepted {
		original, err := i.Events.Event(ctx, s.Seq)
		if err != nil {
			return fmt.Errorf("the event behind submission %d: %w", s.ID, err)
		}
		batch.Items[n].Observation = passedOn(s, original)
	}
	_, err := i.Store.Append(ctx, &batch)
	return err
}

// passedOn is an accepted record as the other set observes it.
func passedOn(s *event.Submission, original *event.Event) event.Observation {
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
