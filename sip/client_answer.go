package sip

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// StatusError is an answer that is neither a document nor a fault.
type StatusError struct {
	URL    string
	Status int
	// Text is what the answer says, as far as that is for people and short.
	Text string
	// RetryAfter is how long the server wants to be left alone; 0 when it did not
	// say.
	RetryAfter time.Duration
}

// Error returns status and text.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("HTTP %d %s", e.Status, http.StatusText(e.Status))
	if e.Text != "" {
		text += ": " + e.Text
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; wants to be asked again in %v", e.RetryAfter)
	}
	return text
}

// Temporary tells whether the same call may succeed later: there was no whole
// answer, or it was a fault of code Server, or status 408, 425, 429 or 5xx
// without a fault. It may have succeeded already; see Sent.
func Temporary(err error) bool {
	var (
		fault  *Fault
		status *StatusError
		call   *callError
	)
	switch {
	case errors.As(err, &fault):
		return fault.Code == Server
	case errors.As(err, &status):
		switch status.Status {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return true
		}
		return status.Status >= 500
	case errors.As(err, &call):
		return call.unanswered
	}
	return false
}

// Sent tells whether the message of a call that ended with err may have reached
// the server. False is certain: the address was refused, there was no
// connection, or nothing of the message was written to it.
func Sent(err error) bool {
	var call *callError
	return !errors.As(err, &call) || !call.unsent
}

// callError is a call that failed. A *Fault or a *StatusError in it is what the
// server answered.
type callError struct {
	operation, url string
	err            error
	// unsent: no byte of the message has left. unanswered: no whole answer came.
	unsent, unanswered bool
}

func (e *callError) Error() string {
	text := e.operation
	if e.url != "" {
		text += " at " + e.url
	}
	text += ": " + e.err.Error()
	switch {
	case e.unsent && e.unanswered:
		text += "; nothing was sent"
	case e.unanswered:
		text += "; whether the message was taken is not known"
	}
	return text
}

func (e *callError) Unwrap() error { return e.err }

// answer is what came back. err tells why body is not the whole of it.
type answer struct {
	operation, url string
	*http.Response
	body []byte
	err  error
}

// document returns the answer's document, if it is of the wanted kind.
func (a *answer) document(want Kind) (*Message, error) {
	m, err := a.message()
	switch {
	case err != nil:
		return nil, err
	case m.Kind != want:
		return nil, a.fail(fmt.Errorf("the answer is <%s>, expected <%s>", m.Kind, want))
	}
	return m, nil
}

// acknowledgement returns nil when the answer acknowledges a notification: 202
// (WS-I Basic Profile 1.1, R1112), or 200 or 204 with nothing in it. Servers
// that know no one-way operations send an envelope with some document or none.
func (a *answer) acknowledgement() error {
	switch {
	case a.StatusCode == http.StatusAccepted, a.StatusCode == http.StatusNoContent:
		return nil
	case a.StatusCode == http.StatusOK && a.err == nil && (len(bytes.TrimSpace(a.body)) == 0 || a.harmless()):
		return nil
	}
	m, err := a.message()
	if err != nil {
		return err
	}
	return a.fail(fmt.Errorf("the answer is <%s>, expected an acknowledgement", m.Kind))
}

// message reads the answer: a document with 200, or with 201 to 203, which say no
// less; or a fault with 500, or, since nothing else can be meant, with one of
// those.
func (a *answer) message() (*Message, error) {
	done := a.StatusCode >= http.StatusOK && a.StatusCode <= http.StatusNonAuthoritativeInfo
	switch {
	case !done && a.StatusCode != http.StatusInternalServerError:
		return nil, a.status()
	case a.err != nil && done:
		return nil, &callError{operation: a.operation, url: a.url, err: a.err, unanswered: !errors.Is(a.err, ErrTooLarge)}
	}
	m, err := ReadMessage(bytes.NewReader(a.body), ReadOptions{
		ContentType: a.Header.Get("Content-Type"),
		Limits:      Limits{Document: int64(len(a.body)) + 1}, // it has been capped
	})
	switch {
	case err == nil && m.Kind == KindFault:
		return nil, a.fail(m.Fault)
	case err == nil && done:
		return m, nil
	case a.StatusCode != http.StatusOK:
		return nil, a.status()
	}
	return nil, a.unreadable(err)
}

func (a *answer) fail(err error) error {
	return &callError{operation: a.operation, url: a.url, err: err}
}

// unreadable is the error of an answer that is no message. The reader's fault is
// about the answer: as an error it would be taken for the server's.
func (a *answer) unreadable(err error) error {
	reason := err.Error()
	var fault *Fault
	if errors.As(err, &fault) {
		reason = fault.Text
		if fault.Path != "" {
			reason = fault.Path + ": " + reason
		}
	}
	return &callError{operation: a.operation, url: a.url, err: errors.New("the answer cannot be read: " + reason + a.form()), unanswered: a.endless()}
}

// encoding returns what was done to the answer, though we have asked for it as it
// is; "" is nothing.
func (a *answer) encoding() string {
	encoding := strings.Join(a.Header.Values("Content-Encoding"), ", ")
	if strings.EqualFold(encoding, "identity") {
		return ""
	}
	return encoding
}

// form says in which form the answer came, as far as it should have been another,
// and what it says if that is for people.
func (a *answer) form() string {
	text := ""
	if encoding := a.encoding(); encoding != "" {
		text = "; its Content-Encoding is " + printable(encoding) + ", and none was asked for"
	}
	sent := a.Header.Get("Content-Type")
	switch mediaType, _, _ := strings.Cut(strings.ToLower(sent), ";"); {
	case mediaType == "", strings.TrimSpace(mediaType) == "text/xml":
	case strings.HasPrefix(mediaType, "multipart/"):
		text += "; its Content-Type is " + printable(sent) + ": messages with attachments (MTOM) are not read"
	default:
		text += "; its Content-Type is " + printable(sent)
	}
	if said := a.said(); said != "" {
		text += "; it says: " + said
	}
	return text
}

// endless tells whether nothing but the end of the connection ended the answer,
// so that one that was cut off looks whole.
func (a *answer) endless() bool {
	return a.ContentLength < 0 && len(a.TransferEncoding) == 0 && a.ProtoMajor == 1
}

func (a *answer) status() error {
	e := &StatusError{URL: a.url, Status: a.StatusCode, Text: a.said(), RetryAfter: wait(a.Header, time.Now())}
	to := a.Header.Get("Location")
	switch {
	case a.StatusCode/100 == 3 && to != "":
		e.Text = fmt.Sprintf("the service has moved to %s; give that address if it is right", printable(to))
	case a.StatusCode/100 == 2:
		e.Text = "what was asked for is not in the answer" + a.form()
	case a.StatusCode == http.StatusInternalServerError && e.Text == "":
		e.Text = strings.TrimPrefix(a.form(), "; ")
	}
	return a.fail(e)
}

// said returns the beginning of an answer in plain text, as one line.
func (a *answer) said() string {
	if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") || a.encoding() != "" {
		return ""
	}
	return printable(string(a.body[:min(len(a.body), 1000)]))
}

// printable makes one short line of what a stranger wrote: it may end up on a
// terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	return strictxml.Clip(strings.Join(strings.Fields(s), " "))
}

// wait reads Retry-After (RFC 9110, 10.2.3). A date is compared with the
// answer's own, which tells the server's clock.
func wait(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseUint(v, 10, 64); err == nil {
		return time.Duration(min(s, uint64(math.MaxInt64/time.Second))) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now))
}

// harmless tells whether the answer is an envelope whose body holds no fault,
// whatever else it holds.
func (a *answer) harmless() bool {
	s := strictxml.New(bytes.NewReader(a.body), strictxml.Options{ContentType: a.Header.Get("Content-Type")})
	inBody := false
	for {
		err := s.Next()
		if err != nil {
			return inBody && errors.Is(err, io.EOF)
		}
		if s.Kind != strictxml.StartTag {
			continue
		}
		soap := s.Space == soapNamespace
		switch s.Depth() {
		case 1:
			if !soap || s.Local != "Envelope" {
				return false
			}
		case 2:
			inBody = soap && s.Local == "Body"
		case 3:
			if inBody && soap && s.Local == "Fault" {
				return false
			}
		}
	}
}
