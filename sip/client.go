package sip

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// callTimeout is the default of HTTPClient.Timeout.
const callTimeout = time.Minute

// HTTPClient calls a service over HTTP, each operation once: it never repeats a
// call. Its methods may be called from any goroutine.
//
// An error that the server answered is a *Fault or a *StatusError; see Temporary
// and Sent for what to do about it.
type HTTPClient struct {
	// HTTP sends the requests; nil is http.DefaultClient. Redirects are not
	// followed, whatever it says: a message would be dropped on the way or go to
	// somebody whom nobody has named. Its Transport may take the body of a request
	// a second time (http.Request.GetBody) only when it is sure that the first has
	// not arrived, as that of net/http is; Sent relies on it.
	HTTP *http.Client
	// URL of the service, http or https. A user name in it is not sent.
	URL string
	// User and Password of basic authentication; none if User is "".
	User, Password string
	// MaxBytes is how long an answer may be; 0 is 4 MiB.
	MaxBytes int64
	// Timeout of one call, from the connection to the end of the answer; 0 is
	// 60 s.
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
// want is no error but a disposition. That the disposition repeats the request's
// source is the draft's demand on the server and is not checked.
func (c *HTTPClient) Ingest(ctx context.Context, r *Request) (*Disposition, error) {
	m, err := c.ask(ctx, "ingest", &Message{Kind: KindRequest, Request: r}, KindDisposition)
	if err != nil {
		return nil, err
	}
	return m.Disposition, nil
}

// Notify calls notify of a notification recipient. Nil means that the recipient
// has acknowledged the disposition.
func (c *HTTPClient) Notify(ctx context.Context, d *Disposition) error {
	return c.Post(ctx, AppendMessage(nil, &Message{Kind: KindDisposition, Disposition: d}))
}

// Post is Notify with a message that is written already, envelope included.
func (c *HTTPClient) Post(ctx context.Context, message []byte) error {
	a, err := c.call(ctx, "notify", message)
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
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no whole answer within %v: %w", timeout, context.DeadlineExceeded))
	defer cancel()
	d := &delivery{message: message}
	req, err := c.request(ctx, operation, d)
	if err != nil {
		return nil, err
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return nil, d.failed(operation, req.URL, err)
	}
	defer resp.Body.Close()
	a := &answer{operation: operation, url: req.URL.String(), Response: resp}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1)); err == nil && int64(len(a.body)) > limit {
		err = fmt.Errorf("the answer is %w: more than %d bytes", ErrTooLarge, limit)
	}
	a.err = err
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
