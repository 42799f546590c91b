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

// Reply is what came of sending a request to an ingest server: a disposition, or
// an error.
type Reply struct {
	Disposition *sip.Disposition
	Err         error
}

// Ask sends a request to an ingest server, once. An answer that is not about the
// request, or that is too long to be stored, is an error: it decides nothing, and yet the
// request has arrived.
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

// otherSource returns in what the source element of a disposition differs from the one
// that was sent; "" is in nothing. What is left out or empty, and white space around a
// text, do not count.
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

// ErrNotSent is the error of a request that was not sent, since it could not be
// committed that it is going to be.
var ErrNotSent = errors.New("it could not be committed, and was not sent")

// Refused reports whether the ingest server has certainly not taken the request. One
// that redirects has not: nobody follows it.
func (r Reply) Refused() bool {
	var fault *sip.Fault
	var status *sip.StatusError
	var resting *PausedError
	switch {
	case errors.Is(r.Err, ErrNotSent), errors.As(r.Err, &resting), errors.As(r.Err, &fault):
		return true
	case errors.As(r.Err, &status):
		// Other answers may come from somebody between, who knows nothing of what
		// has become of it; or they say that it was taken, and not what is decided.
		return status.Status/100 == 3 || status.Status/100 == 4 || status.Status == http.StatusNotImplemented || status.Status == http.StatusServiceUnavailable
	}
	return !sip.Sent(r.Err)
}

// Failure returns what it means that the ingest server has sent no disposition.
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

// AboutRecord reports whether a failure is of this record alone, which will not be
// taken whenever it is sent. Others may be put right: by the server, or by whoever
// has given us its address and password.
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

// ParseRecipient returns what is wrong with the URL of a notification recipient.
// The draft has http and smtp; https and mailto are taken as well.
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

// NewToken returns 128 random bits, for a URL or a mailbox.
func NewToken() string { return strings.ToLower(rand.Text()) }
