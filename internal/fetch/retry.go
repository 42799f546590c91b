package fetch

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxDuration stands for a Retry-After that does not fit into a Duration: 292 years.
const maxDuration = time.Duration(math.MaxInt64)

// backoff returns the wait after the given attempt, counted from 1: first,
// doubled each time, and up to a quarter more, so that clients which failed
// together do not come back together.
func backoff(first time.Duration, attempt int) time.Duration {
	d := first << (attempt - 1)
	return d + rand.N(d/4+1)
}

// RetryAfter returns the wait that an answer asks for (RFC 9110 10.2.3), 0 when it asks
// for none or in no known form. A date is compared with the answer's own Date, which
// shows the server's clock, or else with now. Of several fields the longest counts.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	var longest time.Duration
	for _, v := range h.Values("Retry-After") {
		v = strings.TrimSpace(v)
		if d, ok := seconds(v); ok {
			longest = max(longest, d)
		} else if at, ok := httpDate(v); ok {
			if date, ok := httpDate(h.Get("Date")); ok {
				now = date
			}
			longest = max(longest, at.Sub(now)) // saturates
		}
	}
	return longest
}

// seconds reads decimal digits, also with a fraction, which some servers send.
func seconds(v string) (time.Duration, bool) {
	if v == "" || strings.Trim(v, "0123456789.") != "" {
		return 0, false
	}
	s, err := strconv.ParseFloat(v, 64)
	if err != nil && !math.IsInf(s, 1) {
		return 0, false
	}
	if s *= float64(time.Second); s >= float64(maxDuration) {
		return maxDuration, true
	}
	return time.Duration(math.Ceil(s)), true
}

// httpDate reads the three formats of RFC 9110 5.6.7, and two that servers send
// by mistake.
func httpDate(v string) (time.Time, bool) {
	if t, err := http.ParseTime(v); err == nil {
		return t, true
	}
	for _, layout := range [...]string{time.RFC1123Z, time.RFC3339} {
		if t, err := time.Parse(layout, v); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// Waiting is what a request waits for.
type Waiting struct {
	For   string    // in words for people
	Until time.Time // zero when that is not known
}

type waitingKey struct{}

// WithWaiting returns a context whose requests call tell with what they wait for, from
// the goroutine of the request.
func WithWaiting(ctx context.Context, tell func(Waiting)) context.Context {
	return context.WithValue(ctx, waitingKey{}, tell)
}

type onceKey struct{}

// Once returns a context for requests that are not tried again.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

func reportWaiting(ctx context.Context, w Waiting) {
	if tell, ok := ctx.Value(waitingKey{}).(func(Waiting)); ok {
		tell(w)
	}
}
