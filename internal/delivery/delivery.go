// Package delivery sends what the log says is to be sent to others, until they have
// acknowledged it: the records of a set to an ingest server (Submitter), and the
// outgoing notifications to their recipients (Notifier). Files submits documents
// that belong to no set.
//
// All state is in the log, and nothing counts as delivered before it is committed
// there. Two concurrent changes of one submission meet at its version: the second
// reads it again and decides again.
package delivery

import (
	"context"
	"io"

	"github.com/pmh-bridge/bridge/event"
)

// Store is what is used here of the log; eventlog.Log is one.
type Store interface {
	Due
	Versions
	// Append commits a batch of event.ModeSubmission.
	Append(context.Context, *event.Batch) (event.Appended, error)
	// Submission returns one by its ID; fs.ErrNotExist when there is none.
	Submission(ctx context.Context, id int64) (*event.Submission, error)
	// Submissions returns those that a query selects.
	Submissions(context.Context, event.SubmissionQuery) ([]event.Submission, error)
	// Progress returns what the log keeps of a target: its Trouble.
	Progress(ctx context.Context, source event.SourceID) (event.Progress, error)
	// OutgoingDue returns those that are due at a time, the longest due first, after the
	// Due and ID of another one (nil: all), and no more than limit.
	OutgoingDue(ctx context.Context, due event.Micros, after *event.OutgoingNotification, limit int) ([]event.OutgoingNotification, error)
}

// Contents reads records.
type Contents interface {
	// Open returns a record and its length; ctx holds until it is closed.
	Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
}
