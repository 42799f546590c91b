package fetch

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// minBodyRate is how many bytes a second a body has to bring, over each
	// IdleTimeout.
	minBodyRate = 1 << 10
	// ratioFloor is the output from which on the ratio is checked: short
	// documents of spaces compress as well as bombs do.
	ratioFloor = 1 << 20
	// A body that is closed early is read on so far and so long, so that its
	// connection can be used again.
	drainBytes = 64 << 10
	drainTime  = 250 * time.Millisecond
)

// errTime ends a request whose body has no time left.
var errTime = errors.New("no time left")

// guardBody gives the answer a body that keeps the Guard's limits. w is the body as it
// comes from the network.
func (g *Guard) guardBody(req *http.Request, resp *http.Response, w *guardedBody) {
	w.caller = req.Context()
	w.url = req.URL
	w.length = resp.ContentLength
	w.idle, w.left, w.most = g.options.IdleTimeout, g.options.IdleTimeout, g.options.BodyTimeout
	w.least = max(1, int64(minBodyRate*w.idle.Seconds()))
	w.reuse = resp.ProtoMajor == 1 && !resp.Close
	w.timer = time.AfterFunc(w.left, func() { w.cancel(errTime) })
	w.timer.Stop()
	w.slot.pause()
	resp.Body = w

	if req.Header.Get("Accept-Encoding") != "gzip" {
		return // the caller asked for something, and gets it as it is
	}
	encoding := strings.Join(resp.Header["Content-Encoding"], ", ")
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity", "none", "utf-8": // the last two are no codings: servers write them where there is none
	case "gzip", "x-gzip":
		resp.Body = &unzippedBody{guardedBody: w, guard: g}
		resp.Header.Del("Content-Encoding")
		resp.Header.Del("Content-Length")
		resp.ContentLength = -1
		resp.Uncompressed = true
	default:
		// This fails only a Read: of many answers only the status counts.
		w.fail(fmt.Errorf("%w: Content-Encoding %q, asked for gzip", errEncoding, encoding), false)
	}
}

// guardedBody is a body as it comes from the network. Its end is io.EOF only when it is
// whole; Transport sees to that by Content-Length, chunks or streams.
type guardedBody struct {
	src    io.ReadCloser
	caller context.Context
	ctx    context.Context // of the request: cancelling it ends a Read
	cancel context.CancelCauseFunc
	slot   *slot
	url    *url.URL
	length int64 // Content-Length, -1 when unknown
	reuse  bool  // reading to the end saves the connection

	timer  *time.Timer
	idle   time.Duration
	left   time.Duration // waiting time until more has to have come
	most   time.Duration // waiting time until all has to have come
	least  int64         // bytes that have to come in each idle
	recent int64         // bytes since left was last filled up
	n      int64
	err    error // what all further Reads return
	closed bool
}

// Read implements io.Reader.
func (w *guardedBody) Read(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.read(p)
	switch {
	case err == io.EOF:
		w.err = err
		w.finish()
	case err != nil:
		w.diagnose(err)
	}
	return n, w.err
}

// read waits for bytes as long as the limits allow.
func (w *guardedBody) read(p []byte) (int, error) {
	w.slot.reading()
	start := time.Now()
	w.timer.Reset(min(w.left, w.most))
	n, err := w.src.Read(p)
	w.timer.Stop()
	w.slot.pause()
	waited := time.Since(start)
	w.n += int64(n)
	w.most -= waited
	if w.recent += int64(n); w.recent >= w.least {
		w.recent, w.left = 0, w.idle
	} else {
		w.left -= waited
	}
	return n, err
}

// diagnose sets the error of a Read that failed.
func (w *guardedBody) diagnose(err error) {
	switch {
	case w.caller.Err() != nil:
		w.err = context.Cause(w.caller)
	case errors.Is(context.Cause(w.ctx), errTime) && w.most <= 0:
		w.fail(fmt.Errorf("%w: %d bytes in all", errLong, w.n), true)
	case errors.Is(context.Cause(w.ctx), errTime):
		w.fail(fmt.Errorf("%w: under %d bytes in %s, %d in all", errIdle, w.least, w.idle, w.n), true)
	case err == io.ErrUnexpectedEOF:
		w.fail(fmt.Errorf("%w after %d bytes", errBroken, w.n), true)
	default:
		w.fail(fmt.Errorf("%w after %d bytes: %w", errBroken, w.n, err), true)
	}
	w.finish()
}

// fail makes all further Reads fail.
func (w *guardedBody) fail(err error, transient bool) {
	w.err = &Error{URL: Plain(w.url), Err: err, body: true, transient: transient}
	w.reuse = false
}

// finish releases what the request holds. It may be called again.
func (w *guardedBody) finish() {
	w.timer.Stop()
	w.slot.release()
	w.cancel(nil)
}

// Close implements io.Closer.
func (w *guardedBody) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	if w.err == nil && w.reuse && w.length-w.n <= drainBytes {
		w.drain()
	}
	if w.err == nil {
		w.err = http.ErrBodyReadAfterClose
	}
	err := w.src.Close()
	w.finish()
	return err
}

func (w *guardedBody) drain() {
	w.idle, w.left, w.least = drainTime, drainTime, 1<<10
	var buf [4 << 10]byte
	for start := w.n; w.n-start <= drainBytes; {
		if _, err := w.read(buf[:]); err != nil {
			return
		}
		w.recent = 0 // drainTime is for all of it
	}
}

// unzippedBody is the content of a gzip body.
type unzippedBody struct {
	*guardedBody
	guard *Guard
	zr    *gzip.Reader
	out   int64
	err   error
}

// Read implements io.Reader.
func (u *unzippedBody) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.unzip(p)
	u.out += int64(n)
	switch {
	case u.out > ratioFloor && u.out/u.guard.options.Ratio > u.guardedBody.n:
		u.guardedBody.fail(fmt.Errorf("%w: over %d for each one", errRatio, u.guard.options.Ratio), false)
		n, u.err = 0, u.guardedBody.err
	case err == io.EOF:
		u.err = err
	case err != nil:
		u.err = u.explain(err)
	}
	if u.err != nil {
		u.finish()
		u.returnReader()
	}
	return n, u.err
}

func (u *unzippedBody) unzip(p []byte) (int, error) {
	if u.zr == nil {
		u.zr = u.guard.unzip.Get().(*gzip.Reader)
		if err := u.zr.Reset(u.coded()); err == io.EOF {
			return 0, io.ErrUnexpectedEOF // an empty body is no gzip
		} else if err != nil {
			return 0, err
		}
	}
	return u.zr.Read(p)
}

// coded returns the body as it is transferred, with a copy to the writer of WithCoded.
func (u *unzippedBody) coded() io.Reader {
	if to, ok := u.caller.Value(codedKey{}).(io.Writer); ok {
		return io.TeeReader(u.guardedBody, to)
	}
	return u.guardedBody
}

// codedKey is the key of what WithCoded adds.
type codedKey struct{}

// WithCoded returns a context under which the bytes of a body that comes in gzip are
// written to a writer as they are transferred, while the caller reads the decoded body.
// Nothing is written of a body without a coding.
func WithCoded(ctx context.Context, to io.Writer) context.Context {
	return context.WithValue(ctx, codedKey{}, to)
}

// explain returns an error that distinguishes a body that broke off from one that is no gzip.
func (u *unzippedBody) explain(err error) error {
	switch {
	case u.guardedBody.err != nil && u.guardedBody.err != io.EOF:
		return u.guardedBody.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		u.guardedBody.fail(fmt.Errorf("%w inside gzip after %d bytes", errBroken, u.guardedBody.n), true)
	default:
		u.guardedBody.fail(fmt.Errorf("%w: %w", errEncoding, err), false)
	}
	return u.guardedBody.err
}

func (u *unzippedBody) returnReader() {
	if u.zr != nil {
		u.guard.unzip.Put(u.zr)
		u.zr = nil
	}
}

// Close implements io.Closer.
func (u *unzippedBody) Close() error {
	if u.err == nil {
		u.err = http.ErrBodyReadAfterClose
	}
	u.returnReader()
	return u.guardedBody.Close()
}

// Limit returns a reader of r that fails with ErrTooLarge when there are more
// than n bytes. what names them, and the cap, in the error.
func Limit(r io.Reader, n int64, what string) io.Reader {
	return &limited{r: r, left: n, n: n, what: what}
}

type limited struct {
	r       io.Reader
	left, n int64
	what    string
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, l.err()
	}
	// One byte more than is left distinguishes the end from too much.
	if int64(len(p)) > l.left {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n - 1, l.err()
	}
	return n, err
}

func (l *limited) err() error {
	return fmt.Errorf("%s: %w of %d bytes; raise the cap if it is right", l.what, ErrTooLarge, l.n)
}
