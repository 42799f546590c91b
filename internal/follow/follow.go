// Package follow makes the requests of a walk: it starts at an address that the
// operator typed and goes where documents lead, under the rules that both
// protocols share.
//
//   - A remote document leads to http and https addresses of its own host (on any
//     port), or of one that the operator allows; never to a file.
//   - A local document leads to files below its own folder, and to the hosts that
//     the operator allows.
//   - Redirects obey the same rules, and there are at most five of them.
package follow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

const (
	maxRedirects = 5
	// maxURL is how long the address of a document may be, in bytes: it is the base
	// of all that the document names.
	maxURL = 8 << 10
)

// ErrRefused: a link or redirect leads where the walk may not go.
var ErrRefused = errors.New("address refused")

// Options say where a Client starts and how far it may go.
type Options struct {
	// HTTP makes every request; nil is http.DefaultClient. Its CheckRedirect is
	// called after the Client's own check of where a redirect leads; without
	// one, five redirects are followed.
	HTTP *http.Client
	// Start is the address that the operator typed: http, https, or file when
	// HTTP's transport can read it.
	Start string
	// AllowHost tells whether links and redirects may lead to a host (without
	// port) other than that of Start; nil allows none. It may be called from two
	// goroutines at once.
	AllowHost func(host string) bool
	// Accept is the header field of that name.
	Accept string
	// Now is the clock for answers without a Date; nil is time.Now.
	Now func() time.Time
}

// Client follows links. It belongs to one goroutine; the one request that is
// under way ahead of it has its own.
type Client struct {
	o     Options
	http  *http.Client
	start *url.URL
	ahead *ahead
}

// New returns a Client, or an error that says why Start cannot be one.
func New(o Options) (*Client, error) {
	start, err := url.Parse(o.Start)
	if err != nil {
		return nil, fmt.Errorf("URL to start from: %w", err)
	}
	switch start.Scheme {
	case "http", "https", "file":
	default:
		return nil, fmt.Errorf("%s: %w: want http, https or file", o.Start, ErrRefused)
	}
	client := http.Client{}
	if o.HTTP != nil {
		client = *o.HTTP
	}
	c := &Client{o: o, http: &client, start: start}
	inner := client.CheckRedirect
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if err := c.check(req.URL); err != nil {
			return err
		}
		if inner != nil {
			return inner(req, via)
		}
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		return nil
	}
	return c, nil
}

// Allowed tells whether the walk may go to a URL: nil, or an error that wraps
// ErrRefused and says why not.
func (c *Client) Allowed(to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return c.check(u)
}

func (c *Client) check(u *url.URL) error {
	if n := len(u.String()); n > maxURL {
		return fmt.Errorf("%w: an address of %d bytes; want at most %d", ErrRefused, n, maxURL)
	}
	switch u.Scheme {
	case "http", "https":
		host := u.Hostname()
		if c.start.Scheme != "file" && strings.EqualFold(host, c.start.Hostname()) {
			return nil
		}
		if c.o.AllowHost != nil && c.o.AllowHost(host) {
			return nil
		}
		return fmt.Errorf("%s: %w: host %q is not that of %s; allow it if it belongs to the Source", u.Redacted(), ErrRefused, host, c.start.Redacted())
	case "file":
		if c.start.Scheme != "file" {
			return fmt.Errorf("%s: %w: a remote document may not lead to a file", u.Redacted(), ErrRefused)
		}
		folder := path.Dir(path.Clean(c.start.Path))
		if u.Host != c.start.Host || !strings.HasPrefix(path.Clean(u.Path), strings.TrimSuffix(folder, "/")+"/") {
			return fmt.Errorf("%s: %w: a local document may lead only to files below its own folder %s", u.Redacted(), ErrRefused, folder)
		}
		return nil
	}
	return fmt.Errorf("%s: %w: want http or https", u.Redacted(), ErrRefused)
}

// Get asks for a document. An answer with another status than 200 is a
// *StatusError. When Ahead has asked for the same, its answer is taken, which
// belongs to Ahead's context; otherwise what was asked for ahead is dropped.
func (c *Client) Get(ctx context.Context, to string, v Validators) (*Answer, error) {
	if a := c.ahead; a != nil && a.url == to && a.v == v {
		c.ahead = nil
		return a.take()
	}
	c.Close()
	return c.get(ctx, to, v)
}

// Ahead starts asking for the document that is likely to be next. It does not
// wait.
func (c *Client) Ahead(ctx context.Context, to string, v Validators) {
	c.Close()
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{url: to, v: v, cancel: cancel, done: make(chan struct{})}
	c.ahead = a
	go func() {
		defer close(a.done)
		a.answer, a.err = c.get(ctx, to, v)
	}()
}

// Close drops what was asked for ahead. The Client stays usable.
func (c *Client) Close() {
	if a := c.ahead; a != nil {
		c.ahead = nil
		a.drop()
	}
}

// get makes one request. It reads nothing that changes, so that two goroutines
// may be in it.
func (c *Client) get(ctx context.Context, to string, v Validators) (*Answer, error) {
	if err := c.Allowed(to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	a, err := c.request(ctx, to, v)
	if err != nil {
		cancel()
		return nil, err
	}
	a.cancel = cancel
	return a, nil
}

func (c *Client) request(ctx context.Context, to string, v Validators) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if c.o.Accept != "" {
		req.Header.Set("Accept", c.o.Accept)
	}
	if v.ETag != "" {
		req.Header.Set("If-None-Match", v.ETag)
	}
	if v.LastModified != "" {
		req.Header.Set("If-Modified-Since", v.LastModified)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		// The answer is of no use; closing it cannot make that worse.
		_ = resp.Body.Close()
		return nil, &StatusError{URL: to, Status: resp.StatusCode}
	}
	return c.answer(to, resp), nil
}

// ahead is a request under way.
type ahead struct {
	url    string
	v      Validators
	cancel context.CancelFunc
	done   chan struct{}
	answer *Answer
	err    error
}

// take waits for the answer and hands over its cancellation.
func (a *ahead) take() (*Answer, error) {
	<-a.done
	if a.err != nil {
		a.cancel()
		return nil, a.err
	}
	inner := a.answer.cancel
	a.answer.cancel = func() { inner(); a.cancel() }
	return a.answer, nil
}

func (a *ahead) drop() {
	a.cancel()
	<-a.done
	if a.answer != nil {
		a.answer.Close()
	}
}

// Key is how a walk recognises a URL: without its fragment.
func Key(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.Fragment, u.RawFragment = "", ""
	return u.String()
}
