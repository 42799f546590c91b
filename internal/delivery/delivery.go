// Package delivery sends the records of a set to an ingest server (Submitter) and
// outgoing notifications to their recipients (Notifier), until they are acknowledged.
// Files submits documents that belong to no set.
//
// A queue delivers due rows. Its loop reads what is due from the log, no more than a
// bounded number, and fewer of one host when many hosts wait. Hosts take turns; of a
// host those rows go first that were tried least, and one at a time to a subject (a
// record, a recipient). Calls are limited in all, to a host, and for what has failed
// before, so that nothing that fails or hangs holds up what would be delivered. What
// follows from a call is decided when it ends: for the row a back-off or its end, for
// the host a pause, and of a host that is left alone the queue holds nothing. The loop
// commits what has become of rows, many together; before that they are not delivered
// again, and when nothing can be committed no call begins. A row that somebody else
// has changed meanwhile is read and decided again.
//
// All state is in the log, and nothing counts as delivered before it is committed
// there: what was delivered when the process ends before that is delivered again.
package delivery

import (
	"context"
	"io"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Store is what is used here of the log; store.Store is one.
type Store interface {
	Due
	Versions
	// Write commits what has become of submissions, Append observations of the log.
	Write(context.Context, *submission.Batch) (submission.Written, error)
	Append(context.Context, *event.Batch) (event.Appended, error)
	// Submission returns one by its ID; fs.ErrNotExist when there is none.
	Submission(ctx context.Context, id int64) (*submission.Submission, error)
	// Submissions returns those that a query selects.
	Submissions(context.Context, submission.Query) ([]submission.Submission, error)
	// Progress returns what the log keeps of a target: its Failure.
	Progress(ctx context.Context, source event.SourceID) (event.Progress, error)
	// OutgoingDue returns those that are due at a time, the longest due first, after the
	// Due and ID of another one (nil: all), and no more than limit.
	OutgoingDue(ctx context.Context, due event.Micros, after *submission.OutgoingNotification, limit int) ([]submission.OutgoingNotification, error)
}

// Contents reads records.
type Contents interface {
	// Open returns a record and its length; ctx holds until it is closed.
	Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
}
