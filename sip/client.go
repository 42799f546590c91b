package sip

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// callTimeout is the default of HTTPClient.Timeout.
const callTimeout = time.Minute

// HTTPClient calls a service over HTTP, each operation once: it never repeats a
// call. Its methods may be called from any goroutine.
//
// An error that the server answered is, or wraps, a *Fault or a *StatusError (see
// errors.As); see Temporary and Sent for what to do about it.
type HTTPClient struct {
	// HTTP sends the requests; nil is http.DefaultClient. Redirects are not followed, whatever
	// its CheckRedirect is: a message could get lost, or go to a server that nobody has named.
	// Only Notify and Post go from http to https for the same URL.
	// Its Transport may take the body of a request a second time (http.Request.GetBody) only
	// when it is sure that the first has not arrived, as that of net/http is; Sent relies on
	// it.
	HTTP *http.Client
	// URL of the service, http or https. A user name in it is not sent.
	URL string
	// User and Password of basic authentication; none if User is "".
	User, Password string
	// MaxBytes is how long an answer may be; 0 is 4 MiB.
	MaxBytes int64
	// Timeout is how long a call may take until its message is sent, and again from then
	// to the end of the answer; 0 is 60 s. So a message that had to wait for a connection,
	// or for its turn in HTTP, has the whole time for its answer, or is not sent.
	Timeout time.Duration
}

// GetProperties calls get-properties of an ingest server.
func (c *HTTPClient) GetProperties(ctx context.Context) (*Properties, error) {
	m, err := c.ask(ctx, "get-properties", &Message{Kind: KindGetProperties}, KindProperties)
	if err != nil {
		return nil, err
	}
	return m.Properties, nil
}

// Ingest calls ingest of an ingest server. A record that the server does not
// want is no error but a disposition that is Rejected. The draft demands that the
// disposition repeats the source of the request; that is not checked.
func (c *HTTPClient) Ingest(ctx context.Context, r *Request) (*Disposition, error) {
	m, err := c.ask(ctx, "ingest", &Message{Kind: KindRequest, Request: r}, KindDisposition)
	if err != nil {
		return nil, err
	}
	return m.Disposition, nil
}

// Notify calls notify of a notification recipient, with an ultimate disposition:
// Accepted or Rejected. Nil means that the recipient has acknowledged it.
func (c *HTTPClient) Notify(ctx context.Context, d *Disposition) error {
	return c.Post(ctx, AppendMessage(nil, &Message{Kind: KindDisposition, Disposition: d}))
}

// Post is Notify with a message that is written already, envelope included.
func (c *HTTPClient) Post(ctx context.Context, message []byte) error {
	a, err := c.call(ctx, "notify", message)
	if err == nil && a.isSecured() {
		secured := *c
		secured.URL = a.Header.Get("Location")
		a, err = secured.call(ctx, "notify", message)
	}
	if err != nil {
		return err
	}
	return a.acknowledgement()
}

// ask calls an operation whose answer is a document of the wanted kind.
func (c *HTTPClient) ask(ctx context.Context, operation string, m *Message, want Kind) (*Message, error) {
	a, err := c.call(ctx, operation, AppendMessage(nil, m))
	if err != nil {
		return nil, err
	}
	return a.document(want)
}

// call posts a message and reads the answer to its end.
func (c *HTTPClient) call(ctx context.Context, operation string, message []byte) (*answer, error) {
	limit, timeout := c.MaxBytes, c.Timeout
	if limit == 0 {
		limit = maxMessage
	}
	if timeout == 0 {
		timeout = callTimeout
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &delivery{message: message, timeout: timeout, cancel: cancel}
	d.timer = time.AfterFunc(timeout, d.expire)
	defer d.timer.Stop()
	req, err := c.request(ctx, operation, d)
	if err != nil {
		return nil, err
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return nil, d.failed(ctx, operation, req.URL, err)
	}
	defer resp.Body.Close()
	a := &answer{operation: operation, url: req.URL.String(), Response: resp}
	a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case a.err != nil && ctx.Err() != nil:
		a.err = context.Cause(ctx)
	case a.err == nil && int64(len(a.body)) > limit:
		a.err = fmt.Errorf("the answer is %w: more than %d bytes", ErrTooLarge, limit)
	}
	return a, nil
}

func (c *HTTPClient) client() *http.Client {
	base := c.HTTP
	if base == nil {
		base = http.DefaultClient
	}
	h := *base
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

func (c *HTTPClient) request(ctx context.Context, operation string, d *delivery) (*http.Request, error) {
	u, err := url.Parse(c.URL)
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		err = fmt.Errorf("%q is no http or https URL", u.Redacted())
	}
	if err != nil {
		return nil, &callError{operation: operation, err: fmt.Errorf("the service's address cannot be used: %w", err), unsent: true}
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	req := (&http.Request{
		Method: http.MethodPost,
		URL:    u,
		Header: http.Header{
			"Content-Type": {typeXML},
			"Accept":       {"text/xml"},
			// Else net/http would ask for gzip, and undo it without a cap.
			"Accept-Encoding": {"identity"},
			// SOAP 1.1, 6.1.1; the name is written in its own way.
			"SOAPAction": {`"` + Namespace + "/" + operation + `"`},
		},
		ContentLength: int64(len(d.message)),
		GetBody:       d.open,
	}).WithContext(ctx)
	if req.Body, err = d.open(); err != nil {
		return nil, err
	}
	if c.User != "" {
		req.SetBasicAuth(c.User, c.Password)
	}
	return req, nil
}

// answer is the HTTP answer to a call. err is why body is not the whole of it.
type answer struct {
	operation, url string
	*http.Response
	body []byte
	err  error
}

// isSecured reports whether the answer redirects to the URL of the call with https in place of
// http. A submitter names its recipient with http, as the draft wants, and its web server may
// take nothing there. These statuses do not demand another method (RFC 9110, 15.4). A server
// may write the same URL otherwise (RFC 9110, 4.2.3).
func (a *answer) isSecured() bool {
	switch a.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return false
	}
	from := a.Request.URL
	to, err := url.Parse(a.Header.Get("Location"))
	if err != nil || from.Scheme != "http" || to.Scheme != "https" {
		return false
	}
	ports := [2]string{cmp.Or(from.Port(), "80"), cmp.Or(to.Port(), "443")}
	return strings.EqualFold(from.Hostname(), to.Hostname()) && (ports[0] == ports[1] || ports == [2]string{"80", "443"}) &&
		cmp.Or(from.EscapedPath(), "/") == cmp.Or(to.EscapedPath(), "/") && from.RawQuery == to.RawQuery
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

// acknowledgement returns nil when the answer acknowledges a notification: 202 (WS-I Basic
// Profile 1.1, R1112), or 200 or 204 with nothing in it. Servers without one-way operations
// send an envelope with some document or none.
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

// message reads the answer: a document with a status from 200 to 203, or a fault with 500 or
// one of those.
func (a *answer) message() (*Message, error) {
	done := a.StatusCode >= http.StatusOK && a.StatusCode <= http.StatusNonAuthoritativeInfo
	switch {
	case !done && a.StatusCode != http.StatusInternalServerError:
		return nil, a.status()
	case a.err != nil && done:
		return nil, &callError{operation: a.operation, url: a.url, err: a.err, unanswered: !errors.Is(a.err, ErrTooLarge)}
	}
	m, err := readBytes(a.body, ReadOptions{
		ContentType: a.Header.Get("Content-Type"),
		Limits:      Limits{Document: int64(len(a.body)) + 1}, // it has been capped
	}, func(r *reader) (*Message, error) { return r.message(false) })
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

// unreadable is the error of an answer that is no message. It does not wrap the reader's
// *Fault, which a caller would take for one that the server has sent.
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

// encoding returns the Content-Encoding of the answer, although the request asked for none; ""
// is none.
func (a *answer) encoding() string {
	encoding := strings.Join(a.Header.Values("Content-Encoding"), ", ")
	if strings.EqualFold(encoding, "identity") {
		return ""
	}
	return encoding
}

// form describes what is unexpected in the header of the answer, and quotes the answer if it is
// plain text.
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

// endless reports whether nothing but the end of the connection ended the answer,
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

// printable makes one short line of what a peer wrote: it may end up on a
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

// wait reads Retry-After (RFC 9110, 10.2.3); it returns 0 when there is none. A date is
// compared with the answer's Date, which is of the server's clock.
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

// harmless reports whether the answer is an envelope whose body holds no fault,
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

// delivery is the message of one call. It records whether the message may have been sent: it
// was not while no byte of the body has been read, and once sealed no byte can be read any
// more, even if a goroutine of the transport is about to. The first byte starts the time for
// the answer.
type delivery struct {
	message []byte
	timeout time.Duration
	timer   *time.Timer
	cancel  context.CancelCauseFunc // of the call

	mu     sync.Mutex
	taken  bool
	sealed bool
}

var errSealed = errors.New("the call has ended")

// open returns a body, from the start. The transport calls it again when it is
// sure that nothing has arrived.
func (d *delivery) open() (io.ReadCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = false
	return io.NopCloser(&deliveryBody{delivery: d, rest: bytes.NewReader(d.message)}), nil
}

type deliveryBody struct {
	delivery *delivery
	rest     *bytes.Reader
}

func (b *deliveryBody) Read(p []byte) (int, error) {
	d := b.delivery
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.sealed && !d.taken {
		d.taken = d.timer.Reset(d.timeout)
		d.sealed = !d.taken // expire is about to run
	}
	if d.sealed {
		return 0, errSealed
	}
	return b.rest.Read(p)
}

// expire ends the call when its time is over.
func (d *delivery) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	missed := "no whole answer"
	if !d.taken {
		d.sealed, missed = true, "not sent"
	}
	d.cancel(fmt.Errorf("%s within %v: %w", missed, d.timeout, context.DeadlineExceeded))
}

// failed seals the message and returns the error of a call without an answer.
func (d *delivery) failed(ctx context.Context, operation string, to *url.URL, err error) error {
	d.mu.Lock()
	d.sealed = true
	taken := d.taken
	d.mu.Unlock()
	var u *url.Error
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &u):
		err = u.Err
	}
	return &callError{operation: operation, url: to.String(), err: err, unsent: !taken, unanswered: true}
}
