package submit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// reply is what came of sending a request to an ingest server: a disposition, or
// an error.
type reply struct {
	disposition *sip.Disposition
	err         error
}

// ask sends a request to an ingest server, once. An answer that is not about the
// request, or that nobody could keep, is an error: it decides nothing, and yet the
// request has arrived.
func ask(ctx context.Context, server Upstream, r *sip.Request) reply {
	disposition, err := server.Ingest(ctx, r)
	if err != nil {
		return reply{err: err}
	}
	disposition, err = keepable(disposition)
	var fault *sip.Fault
	if errors.As(err, &fault) { // ours about its answer, not its own
		return reply{err: fmt.Errorf("the answer cannot be used: %s: %s", fault.Path, fault.Text)}
	}
	if other := otherSource(r.Source, disposition.Source); other != "" {
		return reply{err: fmt.Errorf("the answer is not about what was sent: %s", other)}
	}
	return reply{disposition: disposition}
}

// otherSource tells in what the source that a disposition repeats is another one
// than was sent; "" when in nothing. What it leaves out, or empty, and white space
// around a text say nothing.
func otherSource(sent, repeated *sip.Source) string {
	ours, theirs := sourceTexts(sent), sourceTexts(repeated)
	for _, path := range slices.Sorted(maps.Keys(theirs)) {
		said, want := strings.TrimSpace(theirs[path]), strings.TrimSpace(ours[path])
		if said != "" && said != want {
			return fmt.Sprintf("its %s is %q, and %q was sent", path, clip(said), clip(want))
		}
	}
	return ""
}

var (
	// errNotSent: there was no time for it.
	errNotSent = errors.New("it could not be committed, and was not sent")
	// errLeft: the log shows a request under way, and nobody is at it.
	errLeft = errors.New("the gateway was stopped while the request was under way")
)

// refused reports whether the ingest server has certainly not taken the request. One
// that redirects has not: nobody follows it.
func (r reply) refused() bool {
	var fault *sip.Fault
	var status *sip.StatusError
	var resting *pausedError
	switch {
	case errors.Is(r.err, errNotSent), errors.As(r.err, &resting), errors.As(r.err, &fault):
		return true
	case errors.As(r.err, &status):
		// Other answers may come from somebody between, who knows nothing of what
		// has become of it; or they say that it was taken, and not what is decided.
		return status.Status/100 == 3 || status.Status/100 == 4 || status.Status == http.StatusNotImplemented || status.Status == http.StatusServiceUnavailable
	}
	return !sip.Sent(r.err)
}

// failure returns what it means that the ingest server has sent no disposition.
func (r reply) failure() submission.FailureClass {
	switch {
	case aboutRecord(r.err):
		return submission.RecordRefused
	case r.refused():
		return submission.NotTaken
	case !sip.Temporary(r.err): // it has answered
		return submission.Undecided
	}
	return submission.ReplyLost
}

// aboutRecord tells whether a failure is of this record alone, which will not be
// taken whenever it is sent. Others may be put right: by the server, or by whoever
// has given us its address and password.
func aboutRecord(err error) bool {
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

// fault is what the submitter is told of a request that was not taken: what the
// ingest server says, as far as it is about the request and not about the gateway.
func (r reply) fault() error {
	var fault *sip.Fault
	var status *sip.StatusError
	switch {
	case !aboutRecord(r.err):
		return &sip.Fault{Code: sip.Server, Text: "the ingest server behind this gateway has not taken the request: send it again later" + upstreamMessage(r.err)}
	case errors.As(r.err, &fault):
		return &sip.Fault{Code: sip.Client, Text: fault.Text, Path: fault.Path}
	}
	errors.As(r.err, &status)
	text := "the ingest server behind this gateway refuses the request"
	if status.Status == http.StatusRequestEntityTooLarge {
		text += ", which is too long for it as it is passed on"
	}
	return &sip.Fault{Code: sip.Client, Text: text + ": " + clip(status.Error())}
}

// upstreamMessage is what an ingest server says of its own state, to be added to a text; ""
// when it says nothing, or speaks of how we call it.
func upstreamMessage(err error) string {
	var fault *sip.Fault
	var status *sip.StatusError
	var resting *pausedError
	switch {
	case errors.As(err, &resting):
		return "; " + resting.Error()
	case errors.As(err, &fault) && fault.Code == sip.Server:
		return "; it says: " + clip(fault.Text)
	case errors.As(err, &status) && sip.Temporary(err):
		return "; it says: " + clip(status.Error())
	}
	return ""
}
