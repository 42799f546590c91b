// Package ingest is the server side of the Simple Ingest Protocol: it lets a set be
// an ingest server in the modes library, review and gateway, and a notification
// recipient.
//
// A Server serves one set: server.go lists the operations of each mode, access.go
// checks callers, library.go, review.go and gateway.go answer ingest requests,
// notify.go takes notifications, withdraw.go takes records back. What a Server sends
// to others, package delivery sends.
//
// All state is in the log. What follows from a request or from a disposition happens
// in one transaction, which reads the submission as it is then, and nothing is
// acknowledged before that is committed. Requests that arrive together share a commit:
// see sqlite.Writer.
package ingest

import (
	"context"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/delivery"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

// Store is the log with its submissions: a *store.Store.
type Store interface {
	queries
	delivery.Due
	// IncomingNotification returns one by its ID; fs.ErrNotExist when there is none.
	IncomingNotification(ctx context.Context, id int64) (*submission.IncomingNotification, error)
	// Do runs work in a transaction.
	Do(ctx context.Context, work func(ctx context.Context, tx *store.Tx) error) error
	// SubmissionByToken returns the one whose notification recipient has the token;
	// fs.ErrNotExist when there is none.
	SubmissionByToken(ctx context.Context, token string) (*submission.Submission, error)
}

// queries are asked of what is committed (Store), or inside of a transaction (*store.Tx).
type queries interface {
	// HasNewerVersion reports whether a later version of a submission is in one of some
	// states: one of the same Source and Subject with a higher ID. With assigned only
	// those count to which that identifier was assigned.
	delivery.Versions
	// Submission returns one by its ID; fs.ErrNotExist when there is none.
	Submission(ctx context.Context, id int64) (*submission.Submission, error)
	// Submissions returns those that a query selects.
	Submissions(context.Context, submission.Query) ([]submission.Submission, error)
	// Presence returns what a Source has of a record of its set.
	Presence(ctx context.Context, source event.SourceID, identifier string) (event.Presence, error)
}

// Contents keeps records. What Put returned for is durable.
type Contents interface {
	Put(ctx context.Context, records ...[]byte) error
}
