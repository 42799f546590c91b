package ingest

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// Withdraw takes back a record that this Source has brought into the set: spam, or
// what must be taken down. It becomes an event of kind deleted, with the reason,
// unless another Source of the set has the record too (A15); and its content is
// not waited for any more. With nil that is committed. Of the Server it needs only
// Set, Source, URL and Store.
//
// It is no ban. What is submitted, or accepted, after that is new and is published
// again; only repeats of what came before are not.
func (d *Server) Withdraw(ctx context.Context, identifier, reason string) error {
	if len(reason) > submission.MaxText {
		return fmt.Errorf("the reason has %d bytes: %d are the most that are taken", len(reason), submission.MaxText)
	}
	// When the original was modified is not known from this: the library may have it
	// as it was.
	o := event.Observation{Record: identifier, Deleted: true}
	o.Order, _ = event.StampOf(d.now())
	var refused error
	if err := d.Store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		presence, err := tx.Presence(ctx, d.Source, identifier)
		switch {
		case err != nil:
			return err
		case presence == event.NeverPresent:
			refused = fmt.Errorf("set %s has no record %q from its SIP Source: see bridge log --set %s for the identifiers", d.Set, identifier, d.Set)
		case presence == event.Withdrawn:
			refused = fmt.Errorf("record %q of set %s has been withdrawn already: there is nothing to do", identifier, d.Set)
		}
		if refused != nil {
			return refused
		}
		_, err = tx.Append(ctx, &event.Batch{Source: d.Source, Mode: event.ModeSubmission, Documents: []event.Document{{URL: d.URL}},
			Items: []event.Item{{Observation: o, Reason: reason}}})
		return err
	}); refused != nil {
		return refused
	} else if err != nil {
		return fmt.Errorf("log that record %q of set %s is withdrawn: %w", identifier, d.Set, err)
	}
	d.log().Info("a record was withdrawn", "set", d.Set, "record", identifier, "reason", reason)
	return nil
}

// withdrawn reports whether the record of an accepted submission was taken back
// since.
func withdrawn(ctx context.Context, q queries, s *submission.Submission) (bool, error) {
	if s.State != submission.StateAccepted {
		return false, nil
	}
	presence, err := q.Presence(ctx, s.Source, s.Assigned)
	return presence == event.Withdrawn, err
}
