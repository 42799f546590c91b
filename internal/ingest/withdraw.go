package ingest

import (
	"context"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
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
	holds, err := d.Store.Presence(ctx, d.Source, identifier)
	switch {
	case err != nil:
		return err
	case holds == event.NeverPresent:
		return fmt.Errorf("set %s has no record %q from its SIP Source: see bridge log --set %s for the identifiers", d.Set, identifier, d.Set)
	case holds == event.Withdrawn:
		return fmt.Errorf("record %q of set %s has been withdrawn already: there is nothing to do", identifier, d.Set)
	}
	// When the original was modified is not known from this: the library may have it
	// as it was.
	o := event.Observation{Record: identifier, Deleted: true}
	o.Order, _ = event.StampOf(d.now())
	// Not through the tray: what is no exchange has no place in one with others.
	_, err = d.Store.Append(ctx, d.batch([]event.Item{{Observation: o, Reason: reason}}, nil))
	if err != nil {
		return fmt.Errorf("log that record %q of set %s is withdrawn: %w", identifier, d.Set, err)
	}
	d.log().Info("a record was withdrawn", "set", d.Set, "record", identifier, "reason", reason)
	return nil
}

// withdrawn tells whether the record of an accepted submission was taken back
// since.
func (d *Server) withdrawn(ctx context.Context, s *event.Submission) (bool, error) {
	if s.State != event.StateAccepted {
		return false, nil
	}
	holds, err := d.Store.Presence(ctx, s.Source, s.Assigned)
	return holds == event.Withdrawn, err
}

// withdrawnSince tells whether a submission that has ended is not the answer to
// another request of the same bytes any more: its record was withdrawn, and the
// request names it, so that it is submitted anew. Without a source-identifier
// nothing tells that from a repeat on the way.
func (d *Server) withdrawnSince(ctx context.Context, s *event.Submission) (bool, error) {
	if !submission.Versioned(s) {
		return false, nil
	}
	return d.withdrawn(ctx, s)
}
