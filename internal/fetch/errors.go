package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Reasons for which a Guard refuses a request or gives it up. Each is wrapped in an
// *Error, except ErrTooLarge.
var (
	// ErrAddress: the host has an address that it may not have. See Reach.
	ErrAddress = errors.New("the address is not public")
	// ErrHost: the host is none of those that may be asked. See Reach.Only.
	ErrHost = errors.New("not one of the hosts that contents may come from")
	// ErrPort: the port is that of another service. See Reach.SafePorts.
	ErrPort = errors.New("requests must not go to port")
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

// PauseUntil is Until. Protocol packages, which do not import this one, know by it that the
// request was not made (see oaipmh.Walk.Client).
func (e *WaitError) PauseUntil() time.Time { return e.Until }

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
	b.WriteString(e.reason())
	if advice := e.advice(); advice != "" {
		b.WriteString("; " + advice)
	}
	return b.String()
}

// reason describes what happened, in words of its own where the network's error is
// terse.
func (e *Error) reason() string {
	var timeout net.Error
	switch {
	case e.body:
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, io.ErrUnexpectedEOF):
		return "the server closed the connection without an answer"
	case errors.As(e.Err, &timeout) && timeout.Timeout() && strings.Contains(e.Err.Error(), "awaiting response headers"):
		return "the server did not begin to answer in time (header_timeout)"
	}
	return e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) advice() string {
	var (
		dns         *net.DNSError
		path        *fs.PathError
		certificate *tls.CertificateVerificationError
	)
	switch {
	case errors.As(e.Err, &certificate):
		return "tell the server's operator, or name who has signed it with ca_file"
	case errors.As(e.Err, &path):
		return "check the file and who may read it"
	case forbidden(e.Err), errors.Is(e.Err, errFile):
		return "" // its text has the advice
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

// Transient reports whether the same request may succeed later: the network failed, a
// body broke off or came too slowly, the server asked to wait. What the guard refuses
// stays refused.
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
