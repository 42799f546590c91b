package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Validators are what makes a request conditional (RFC 9110 8.8).
type Validators struct {
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
}

// Answer is an answer of status 200. It holds its connection until it is closed.
type Answer struct {
	// Requested is the URL that was asked for, URL the one that answered after
	// redirects; links are resolved against the latter.
	Requested, URL string
	// Header and Body are the answer's.
	Header http.Header
	Body   io.Reader
	// Date is the answer's Date, else the Client's clock, in UTC.
	Date time.Time
	// Validators of the answer.
	Validators Validators

	dated  bool // Date is the answer's
	body   io.Closer
	cancel context.CancelFunc
}

func (c *Client) answer(to string, resp *http.Response) *Answer {
	a := &Answer{
		Requested: to, URL: resp.Request.URL.String(), Header: resp.Header, Body: resp.Body, body: resp.Body,
		Validators: Validators{ETag: resp.Header.Get("ETag"), LastModified: resp.Header.Get("Last-Modified")},
	}
	t, err := http.ParseTime(resp.Header.Get("Date"))
	a.dated = err == nil
	switch {
	case a.dated:
	case c.o.Now != nil:
		t = c.o.Now()
	default:
		t = time.Now()
	}
	a.Date = t.UTC()
	return a
}

// Late reports whether a stamp lies after the answer's date, so that it must not
// become the mark. Date has whole seconds: a stamp within its second is not
// late.
func (a *Answer) Late(stamp time.Time) bool {
	if a.dated {
		return !stamp.Before(a.Date.Truncate(time.Second).Add(time.Second))
	}
	return stamp.After(a.Date)
}

// Close gives the connection back.
func (a *Answer) Close() {
	// Nothing is lost when closing fails: what counts has been read.
	_ = a.body.Close()
	a.cancel()
}

// StatusError is an answer with a status that a walk cannot go on from.
type StatusError struct {
	URL    string
	Status int
	// Partial is the PartialHeader of a bridge that has not walked all its own
	// Sources yet, else "".
	Partial string
}

// Error returns the status, the URL and what to do.
func (e *StatusError) Error() string {
	do := "check the URL"
	switch s := e.Status; {
	case s == http.StatusUnauthorized || s == http.StatusForbidden || s == http.StatusProxyAuthRequired:
		do = "check the credentials and whether this address may read it"
	case s == http.StatusTooManyRequests || s >= 500:
		do = "try again later"
	case s == http.StatusNotModified:
		do = "the server answered an unconditional request with 304; tell its operator"
	case s < 300:
		do = "want 200 with a document"
	}
	return fmt.Sprintf("%s: HTTP status %d %s: %s", e.URL, e.Status, http.StatusText(e.Status), do)
}

// Status returns the status of a *StatusError within err, else 0.
func Status(err error) int {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status
	}
	return 0
}

// Missing reports whether err says that there is nothing at a URL: 404 or 410. 401
// and 5xx may pass. 403 is a matter of credentials or of a firewall far more
// often than of a document taken away, and as a gap it would invite the operator
// to accept it.
func Missing(err error) bool {
	s := Status(err)
	return s == http.StatusNotFound || s == http.StatusGone
}
