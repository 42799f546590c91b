package ingest

import (
	"context"
	"errors"
	"net/http"
)

// detach returns a context for what goes on although the caller has hung up, until
// stop. When the server ends, it ends too, and then calls can still be answered:
// the cause is http.ErrServerClosed.
func detach(ctx context.Context) (lasts context.Context, stop func()) {
	lasts, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, func() {
		if serverClosing(ctx) {
			end(http.ErrServerClosed)
		}
	})
	return lasts, func() {
		unwatch()
		end(nil)
	}
}

// serverClosing tells whether a call ends since the server does.
func serverClosing(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), http.ErrServerClosed)
}
