package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
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

// RetryAfter returns the wait that an answer asks for (RFC 9110 10.2.3), 0 when
// it asks for none or in no known form. A date is compared with the answer's own
// Date, which tells the server's clock, or else with now. Of several fields the
// longest counts.
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

// Reasons for which a Guard refuses a request or gives it up. Each is wrapped in an
// *Error, except ErrTooLarge.
var (
	// ErrAddress: the host has an address that it may not have. See Reach.
	ErrAddress = errors.New("the address is not public")
	// ErrHost: the host is none of those that may be asked. See Reach.Only.
	ErrHost = errors.New("not one of the hosts that contents may come from")
	// ErrPort: the port is that of another service. See Reach.SafePorts.
	ErrPort = errors.New("no notification goes to port")
	// ErrUnresolved: the host's name could not be looked up, so it is not known
	// whether its address is public. See Guard.Allowed.
	ErrUnresolved = errors.New("the host's name has no address")
	// errScheme: neither http nor https, nor file where that is allowed.
	errScheme = errors.New("not an http or https address, and local files are not allowed here")
	// errFile: a file: URL leads out of the folder that is allowed, or not to a
	// file.
	errFile = errors.New("the local file is refused")
	// errRedirects: there were more redirects than are followed.
	errRedirects = errors.New("too many redirects")
	// errURL: a redirect leads to a URL that is too long.
	errURL = fmt.Errorf("it redirects to a URL of more than %d bytes", maxURL)
	// errRatio: the body unpacks to more than Options.Ratio allows.
	errRatio = errors.New("the compressed body unpacks to suspiciously many bytes")
	// errEncoding: the body has a Content-Encoding that we did not ask for, or
	// is not what that says.
	errEncoding = errors.New("the body's encoding cannot be undone")
	// ErrTooLarge: a body is larger than its cap. See Limit.
	ErrTooLarge = errors.New("larger than its cap")
	// errBroken: the body ended before its end. It wraps io.ErrUnexpectedEOF.
	errBroken = fmt.Errorf("the body broke off: %w", io.ErrUnexpectedEOF)
	// errIdle: the body came too slowly. See Options.IdleTimeout.
	errIdle = errors.New("the body came too slowly")
	// errLong: the body took too long in all. See Options.BodyTimeout.
	errLong = errors.New("the body took too long")
	// ErrWait: the server asked for a longer wait than Options.MaxWait.
	ErrWait = errors.New("the server asked not to be asked yet")
)

// WaitError is an ErrWait that says until when the server wants no request.
type WaitError struct{ Until time.Time }

func (e *WaitError) Error() string {
	return ErrWait.Error() + ", but after " + e.Until.UTC().Format(time.RFC3339)
}

// Is makes it an ErrWait.
func (e *WaitError) Is(target error) bool { return target == ErrWait }

// Error is a request that was refused or that failed, from http.Client's
// methods (inside its *url.Error) or from a body's Read.
type Error struct {
	// URL is what was asked for, as Plain has it.
	URL string
	// Attempts is how often it was tried; 0 when it was not sent, and when its
	// answer came but not the whole body.
	Attempts int
	// Err is the reason: one of this package's errors, or the network's.
	Err error

	body      bool // from a body, where no *url.Error says the URL
	transient bool
}

// Error says what happened, and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	if e.body {
		b.WriteString(e.URL + ": ")
	}
	if e.Attempts > 1 {
		b.WriteString("tried " + strconv.Itoa(e.Attempts) + " times: ")
	}
	b.WriteString(e.Err.Error())
	if advice := e.advice(); advice != "" {
		b.WriteString("; " + advice)
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) advice() string {
	var (
		dns  *net.DNSError
		path *fs.PathError
	)
	switch {
	case errors.As(e.Err, &path):
		return "check the file and who may read it"
	case forbidden(e.Err), errors.Is(e.Err, errFile):
		return "" // has its own
	case errors.Is(e.Err, errScheme):
		return "a file is read only as the operator typed it, or from its folder"
	case errors.Is(e.Err, errRedirects):
		return "give the address that they end at, or tell the server's operator"
	case errors.Is(e.Err, errRatio), errors.Is(e.Err, errEncoding), errors.Is(e.Err, errURL):
		return "tell the server's operator"
	case errors.Is(e.Err, ErrWait):
		return "try again then"
	case errors.As(e.Err, &dns) && dns.IsNotFound:
		return "check the host name"
	case e.transient:
		return "try again later, and check the address and the server"
	}
	return "check the address and the server"
}

// explain wraps what a request ended with; nil stays nil.
func explain(req *http.Request, attempts int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrWait) || forbidden(err) {
		attempts = 0
	}
	return &Error{URL: Plain(req.URL), Attempts: attempts, Err: err, transient: retryable(err) || errors.Is(err, ErrWait)}
}

// retryable reports whether a request that failed without an answer may succeed
// when it is sent again.
func retryable(err error) bool {
	var (
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		dns         *net.DNSError
	)
	switch {
	case forbidden(err), errors.Is(err, ErrWait), errors.Is(err, http.ErrSchemeMismatch),
		errors.Is(err, context.Canceled), errors.As(err, &certificate), errors.As(err, &record):
		return false
	case errors.As(err, &dns):
		return !dns.IsNotFound
	}
	return true
}

// forbidden reports whether the Guard's Reach has refused the request.
func forbidden(err error) bool {
	return errors.Is(err, ErrAddress) || errors.Is(err, ErrHost) || errors.Is(err, ErrPort)
}

// Transient reports whether the same request may succeed later: the network
// failed, a body broke off or stood still, the server asked to wait. What the
// guard refuses stays refused.
func Transient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.transient
}

// TransientStatus reports whether an answer with the status may be another one
// later: 429, 500, 502, 503, 504.
func TransientStatus(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Gone reports whether the status says that there is nothing at the URL: 403,
// 404, 410 (S9).
func Gone(status int) bool {
	return status == http.StatusForbidden || status == http.StatusNotFound || status == http.StatusGone
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

// Waiting says what a request waits for.
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
