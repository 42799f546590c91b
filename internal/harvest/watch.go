package harvest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/internal/fetch"
)

// documentClient returns the client that asks for the Source's documents: it tells
// what is waited for, until when the Source wants to be left alone, and ends a
// harvest that takes too much.
func (r *run) documentClient() *http.Client {
	c := *r.src.Client
	c.Transport = &watch{run: r, next: c.Transport}
	return &c
}

// watch is the transport of that client.
type watch struct {
	run  *run
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w *watch) RoundTrip(req *http.Request) (*http.Response, error) {
	r := w.run
	if err := r.spent(); err != nil {
		return nil, err
	}
	next := w.next
	if next == nil {
		next = http.DefaultTransport
	}
	url := fetch.Plain(req.URL)
	ctx := fetch.WithWaiting(req.Context(), func(x fetch.Waiting) { r.doing("waiting for "+x.For+": "+url, x.Until) })
	r.doing("asking for "+url, time.Time{})
	resp, err := next.RoundTrip(req.WithContext(ctx))
	var wait *fetch.WaitError
	if errors.As(err, &wait) {
		r.leaveAlone(wait.Until)
	}
	if err != nil {
		return nil, err
	}
	if fetch.TransientStatus(resp.StatusCode) {
		if asked := fetch.RetryAfter(resp.Header, r.h.now()); asked > 0 {
			r.leaveAlone(r.h.now().Add(min(asked, retryAfterMost)))
		}
	}
	r.doing("reading "+url, time.Time{})
	resp.Body = &watchedBody{ReadCloser: resp.Body, run: r, ctx: req.Context()}
	return resp, nil
}

// retryAfterMost is the longest that a Source is left alone because it asks for
// it.
const retryAfterMost = time.Hour

// leaveAlone takes note until when the Source does not want to be asked.
func (r *run) leaveAlone(until time.Time) {
	r.note(func(p *Report) {
		if until.After(p.RetryAfter) {
			p.RetryAfter = until.UTC()
		}
	})
}

// watchedBody counts the bytes of a document.
type watchedBody struct {
	io.ReadCloser
	run *run
	ctx context.Context
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (n int, err error) {
	b.run.place.waitServer(b.ctx, func() { n, err = b.ReadCloser.Read(p) })
	b.run.bytes.Add(int64(n))
	if err == nil {
		err = b.run.spent()
	}
	return n, err
}

// ErrSpent: a harvest has taken all the time or all the bytes that it may. What
// it has read is kept, and the next one goes on from there.
var ErrSpent = errors.New("the harvest has used up what one may take, and the next one goes on from here")

// spent reports whether the harvest may ask and read on.
func (r *run) spent() error {
	l := &r.src.Limits
	if took := r.h.now().Sub(r.report.Started); l.Time > 0 && took > l.Time {
		return fmt.Errorf("%w: %s of %s", ErrSpent, took.Round(time.Second), l.Time)
	}
	if n := r.bytes.Load(); l.Bytes > 0 && n > l.Bytes {
		return fmt.Errorf("%w: %d of %d bytes", ErrSpent, n, l.Bytes)
	}
	return nil
}
