// Package ingest is the server side of the Simple Ingest Protocol: it lets a set be
// an ingest server in the modes library, review and gateway, and a notification
// recipient.
//
// A Server serves one set: server.go lists the operations of each mode, access.go
// checks callers, library.go, review.go and gateway.go answer ingest requests,
// notify.go takes notifications, withdraw.go takes records back. What a Server sends
// to others, package delivery sends.
//
// All state is in the log. A submission, its state, and what follows from a
// disposition commit in one transaction, and nothing is acknowledged before. Two
// concurrent changes of one submission meet at its version: the second reads it
// again and decides again.
package ingest

import (
	"context"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
)

// Store is what the log keeps of submissions; eventlog.Log is one.
type Store interface {
	delivery.Due
	// HasNewerVersion reports whether a later version of a submission is in one of some states:
	// one of the same Source and Subject with a higher ID. With assigned only those
	// count to which that identifier was assigned.
	delivery.Versions
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
	// StoredReply returns the disposition that a Source gave to the same whole
	// request no longer than a day ago, nil when it gave none.
	StoredReply(ctx context.Context, source event.SourceID, request [32]byte) ([]byte, error)
	// Presence returns what a Source has of a record of its set.
	Presence(ctx context.Context, source event.SourceID, identifier string) (event.Presence, error)
}

// Contents keeps records. What Put returned for is durable.
type Contents interface {
	Put(ctx context.Context, records ...[]byte) error
}
