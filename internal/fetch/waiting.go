package fetch

import (
	"context"
	"time"
)

// Waiting is what a request waits for.
type Waiting struct {
	For   string    // in words for people
	Until time.Time // zero when that is not known
}

type waitingKey struct{}

// WithWaiting returns a context for requests that tell what they wait for. tell
// is called from the goroutine of the request.
func WithWaiting(ctx context.Context, tell func(Waiting)) context.Context {
	return context.WithValue(ctx, waitingKey{}, tell)
}

type onceKey struct{}

// Once returns a context for requests that are not tried again.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

func report(ctx context.Context, w Waiting) {
	if tell, ok := ctx.Value(waitingKey{}).(func(Waiting)); ok {
		tell(w)
	}
}
