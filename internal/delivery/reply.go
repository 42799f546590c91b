package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// Upstream is an ingest server that requests are sent to; *sip.HTTPClient is one.
type Upstream interface {
	GetProperties(context.Context) (*sip.Properties, error)
	Ingest(context.Context, *sip.Request) (*sip.Disposition, error)
}

// Reply is the result of sending a request to an ingest server: a disposition, or an
// error.
type Reply struct {
	Disposition *sip.Disposition
	Err         error
}

// Ask sends a request to an ingest server, once. An answer that is not about the request,
// or that is too long to be stored, is an error: it has no usable disposition, although
// the request has arrived.
func Ask(ctx context.Context, server Upstream, r *sip.Request) Reply {
	disposition, err := server.Ingest(ctx, r)
	if err != nil {
		return Reply{Err: err}
	}
	disposition, err = submission.Storable(disposition)
	var fault *sip.Fault
	if errors.As(err, &fault) { // ours about its answer, not its own
		return Reply{Err: fmt.Errorf("the answer cannot be used: %s: %s", fault.Path, fault.Text)}
	}
	if other := otherSource(r.Source, disposition.Source); other != "" {
		return Reply{Err: fmt.Errorf("the answer is not about what was sent: %s", other)}
	}
	return Reply{Disposition: disposition}
}

// otherSource describes how the source element of a disposition differs from the one that
// was sent; "" if it does not. Elements that are left out or empty, and white space
// around a text, do not count.
func otherSource(sent, repeated *sip.Source) string {
	ours, theirs := submission.SourceTexts(sent), submission.SourceTexts(repeated)
	for _, path := range slices.Sorted(maps.Keys(theirs)) {
		said, want := strings.TrimSpace(theirs[path]), strings.TrimSpace(ours[path])
		if said != "" && said != want {
			return fmt.Sprintf("its %s is %q, and %q was sent", path, submission.Clip(said), submission.Clip(want))
		}
	}
	return ""
}

// ErrNotSent is the error of a request that was not sent, because the state before
// sending could not be committed.
var ErrNotSent = errors.New("it could not be committed, and was not sent")

// Refused reports whether the ingest server has certainly not taken the request. A
// redirect is such an answer: we do not follow it.
func (r Reply) Refused() bool {
	var status *sip.StatusError
	switch {
	case errors.Is(r.Err, ErrNotSent), errors.As(r.Err, new(*PausedError)), errors.As(r.Err, new(*sip.Fault)):
		return true
	case errors.As(r.Err, &status):
		// Other answers may come from a proxy that does not know what has become of the
		// request; or they mean that it was taken, without a decision.
		return status.Status/100 == 3 || status.Status/100 == 4 || status.Status == http.StatusNotImplemented || status.Status == http.StatusServiceUnavailable
	}
	return !sip.Sent(r.Err)
}

// Failure returns the class of a reply without a disposition.
func (r Reply) Failure() submission.FailureClass {
	switch {
	case AboutRecord(r.Err):
		return submission.RecordRefused
	case r.Refused():
		return submission.NotTaken
	case !sip.Temporary(r.Err): // it has answered
		return submission.Undecided
	}
	return submission.ReplyLost
}

// AboutRecord reports whether a failure concerns only this record, which will not be
// taken whenever it is sent. Other failures may be mended: by the server, or by the
// operator who configured its address and password.
func AboutRecord(err error) bool {
	var fault *sip.Fault
	var status *sip.StatusError
	switch {
	case errors.As(err, &fault):
		return fault.Code == sip.Client
	case errors.As(err, &status):
		switch status.Status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusProxyAuthRequired:
			return false
		}
		return status.Status/100 == 4 && !sip.Temporary(err)
	}
	return false
}

// ParseRecipient returns an error if a URL is not valid for a notification recipient. The
// draft has http and smtp; https and mailto are accepted as well.
func ParseRecipient(recipient string) error {
	u, err := url.Parse(recipient)
	if err != nil {
		return fmt.Errorf("it is no URL")
	}
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return fmt.Errorf("it names no host")
		}
		return nil
	case "smtp", "mailto":
		_, err := mail.ParseRecipient(recipient)
		return err
	}
	return fmt.Errorf("it must be an http:, https:, smtp: or mailto: URL")
}

// NewToken returns a random token of 128 bits, for a URL or a mailbox.
func NewToken() string { return strings.ToLower(rand.Text()) }
