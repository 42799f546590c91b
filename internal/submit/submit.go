// Package submit lets a set take part in the Simple Ingest Protocol: as an ingest
// server in the modes library, review and gateway, as a notification recipient,
// and as a submitter.
//
// A Server serves one set: server.go lists the operations of each mode, access.go
// checks callers, library.go, review.go and gateway.go answer ingest requests,
// notify.go takes notifications, withdraw.go takes records back. A Submitter submits
// a set's records to an ingest server (submitter.go). A Notifier delivers outgoing
// notifications (notifier.go).
//
// All state is in the log. A submission, its state, and what follows from a
// disposition commit in one transaction, and nothing is acknowledged before. Two
// concurrent changes of one submission meet at its version: the second reads it
// again and decides again.
package submit

import (
	"context"
	"io"

	"github.com/pmh-bridge/bridge/event"
)

// Store is what the log keeps of submissions; eventlog.Log is one.
type Store interface {
	// Append commits a batch of event.ModeSubmission.
	Append(context.Context, *event.Batch) (event.Appended, error)
	// Submission returns one by its ID; fs.ErrNotExist when there is none.
	Submission(ctx context.Context, id int64) (*event.Submission, error)
	// SubmissionByToken returns the one whose notification recipient has the
	// token; fs.ErrNotExist when there is none.
	SubmissionByToken(ctx context.Context, token string) (*event.Submission, error)
	// Submissions returns those that a query selects.
	Submissions(context.Context, event.SubmissionQuery) ([]event.Submission, error)
	// IncomingNotification returns one by its ID; fs.ErrNotExist when there is none.
	IncomingNotification(ctx context.Context, id int64) (*event.IncomingNotification, error)
	// SubmissionsDue returns those of a Source in a state that are due at a time,
	// the longest due first, after the Due and ID of another one (nil: all), and no
	// more than limit.
	SubmissionsDue(ctx context.Context, source event.SourceID, state event.State, at event.Micros, after *event.Submission, limit int) ([]event.Submission, error)
	// HasNewerVersion reports whether a later version of a submission is in one of some states:
	// one of the same Source and Subject with a higher ID. With assigned only those
	// count to which that identifier was assigned.
	HasNewerVersion(ctx context.Context, s *event.Submission, states []event.State, assigned string) (bool, error)
	// StoredReply returns the disposition that a Source gave to the same whole
	// request no longer than a day ago, nil when it gave none.
	StoredReply(ctx context.Context, source event.SourceID, request [32]byte) ([]byte, error)
	// Presence returns what a Source has of a record of its set.
	Presence(ctx context.Context, source event.SourceID, identifier string) (event.Presence, error)
	// Progress returns what the log keeps of a Source; of a target, its Trouble.
	Progress(ctx context.Context, source event.SourceID) (event.Progress, error)
	// OutgoingDue returns those that are due at a time, the longest due first, after the
	// Due and ID of another one (nil: all), and no more than limit.
	OutgoingDue(ctx context.Context, due event.Micros, after *event.OutgoingNotification, limit int) ([]event.OutgoingNotification, error)
}

// Contents keeps records. What Put returned for is durable.
type Contents interface {
	Put(ctx context.Context, records ...[]byte) error
	// Open returns a record and its length; ctx holds until it is closed.
	Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
}
