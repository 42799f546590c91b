// Package follow makes the requests of a walk: it starts at an address that the
// operator typed and goes where documents lead, under rules that all protocols share.
//
//   - A remote document leads to http and https addresses of its own host (on any
//     port), or of one that the operator allows; never to a file.
//   - A local document leads to files below its own folder, and to the hosts that
//     the operator allows.
//   - Redirects obey the same rules, and there are at most five of them. But the
//     address that the operator typed, and the well-known ones of its host, may be
//     redirected to any host, which then counts as the Source's own: the operator of
//     the first host has put the documents on the other. The HTTP client decides
//     which addresses may be asked at all.
package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/idna"

	"github.com/pmh-bridge/bridge/internal/defect"
)

const (
	maxRedirects = 5
	// maxURL is how long the address of a document may be, in bytes: it is the base
	// of all that the document names.
	maxURL = 8 << 10
	// maxHosts is how many hosts Start may lead to by redirects.
	maxHosts = 10
	// aheadFor is how long what was asked for ahead is good: a server gives up on a client that
	// does not read its answer.
	aheadFor = 10 * time.Second
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
	// AllowHost reports whether links and redirects may lead to a host (without
	// port) other than that of Start; nil allows none. It may be called from two
	// goroutines at once.
	AllowHost func(host string) bool
	// Queries: each request is Start with a query of its own, and counts as the address
	// that the operator typed. It may be answered only once.
	Queries bool
	// Documents reports whether the answer of another status than 200 is a document all
	// the same; nil: none is.
	Documents func(status int) bool
	// Hosts are those that Start was redirected to in an earlier walk: see Client.Hosts.
	Hosts []string
	// Accept is the header field of that name.
	Accept string
	// Refused is wrapped by the error for an address where the walk may not go; nil
	// is ErrRefused.
	Refused error
	// Now is the clock, for answers without a Date and for how old those to Ahead are; nil is
	// time.Now.
	Now func() time.Time
}

// Client follows links. Only one goroutine uses it; the request that is made ahead has
// a goroutine of its own.
type Client struct {
	o     Options
	http  *http.Client
	start *url.URL
	ahead *ahead

	mu    sync.Mutex // the request under way ahead may be redirected too
	hosts []string
}

// New returns a Client, or an error when no walk can start at Start.
func New(o Options) (*Client, error) {
	start, err := url.Parse(o.Start)
	if err != nil {
		return nil, fmt.Errorf("URL to start from: %w", err)
	}
	if o.Refused == nil {
		o.Refused = ErrRefused
	}
	switch start.Scheme {
	case "http", "https", "file":
	default:
		return nil, fmt.Errorf("%s: %w: want http, https or file", o.Start, o.Refused)
	}
	client := http.Client{}
	if o.HTTP != nil {
		client = *o.HTTP
	}
	c := &Client{o: o, http: &client, start: start, hosts: slices.Clone(o.Hosts)}
	inner := client.CheckRedirect
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if err := c.redirected(via[0].URL, req.URL); err != nil {
			return err
		}
		if v, ok := req.Context().Value(validatorsKey{}).(Validators); ok {
			v.apply(req)
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

// Allowed returns nil when the walk may go to a URL, else an error that wraps
// Options.Refused and says why not.
func (c *Client) Allowed(to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return fmt.Errorf("%w: %w", c.o.Refused, err)
	}
	return c.check(u)
}

// Hosts returns the hosts, besides its own, that Start was redirected to.
func (c *Client) Hosts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.hosts)
}

// redirected reports whether a request may be redirected to a URL.
func (c *Client) redirected(asked, to *url.URL) error {
	if to.Scheme == "file" {
		return fmt.Errorf("%s: %w: a redirect may not lead to a file", to.Redacted(), c.o.Refused)
	}
	err := c.check(to)
	// Is it what the operator typed, or a well-known address of its host?
	typed := Key(asked.String()) == Key(c.start.String()) ||
		c.o.Queries && asked.Scheme == c.start.Scheme && asked.Host == c.start.Host && asked.Path == c.start.Path || asked.Scheme == c.start.Scheme && asked.Host == c.start.Host &&
		(asked.Path == "/.well-known/resourcesync" || asked.Path == "/robots.txt")
	if err == nil || !typed || to.Scheme != "http" && to.Scheme != "https" || len(to.String()) > maxURL {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hosts) == maxHosts {
		return fmt.Errorf("%w; %s has led to %d others already", err, c.start.Redacted(), maxHosts)
	}
	c.hosts = append(c.hosts, Host(to.Hostname()))
	return nil
}

func (c *Client) check(u *url.URL) error {
	if n := len(u.String()); n > maxURL {
		return fmt.Errorf("%w: an address of %d bytes; want at most %d", c.o.Refused, n, maxURL)
	}
	switch u.Scheme {
	case "http", "https":
		host := u.Hostname()
		if c.start.Scheme != "file" && Host(host) == Host(c.start.Hostname()) {
			return nil
		}
		if c.o.AllowHost != nil && c.o.AllowHost(host) || slices.Contains(c.Hosts(), Host(host)) {
			return nil
		}
		return fmt.Errorf("%s: %w: host %q is not that of %s; if it belongs to the Source, allow it (allow_hosts)", u.Redacted(), c.o.Refused, host, c.start.Redacted())
	case "file":
		if c.start.Scheme != "file" {
			return fmt.Errorf("%s: %w: a remote document may not lead to a file", u.Redacted(), c.o.Refused)
		}
		folder := path.Dir(path.Clean(c.start.Path))
		if u.Host != c.start.Host || !strings.HasPrefix(path.Clean(u.Path), strings.TrimSuffix(folder, "/")+"/") {
			return fmt.Errorf("%s: %w: a local document may lead only to files below its own folder %s", u.Redacted(), c.o.Refused, folder)
		}
		return nil
	}
	return fmt.Errorf("%s: %w: want http or https", u.Redacted(), c.o.Refused)
}

// Host returns the form in which names and addresses of hosts are compared.
func Host(name string) string {
	name = strings.TrimSuffix(name, ".")
	if a, err := netip.ParseAddr(name); err == nil {
		return a.Unmap().String()
	}
	if ascii, err := idna.Lookup.ToASCII(name); err == nil {
		return ascii
	}
	return strings.ToLower(name)
}

// Among reports whether a host is one of some that people have listed, each with or without a port
// or a path behind it.
func Among(listed []string, host string) bool {
	return slices.ContainsFunc(listed, func(typed string) bool {
		name, _, _ := strings.Cut(typed, "/")
		if without, _, err := net.SplitHostPort(name); err == nil {
			name = without
		}
		return Host(strings.Trim(name, "[]")) == Host(host)
	})
}

// Get asks for a document. An answer with another status than 200 is a
// *StatusError. When Ahead has asked for the same, and not long ago, its answer is taken, which
// belongs to Ahead's context; otherwise what was asked for ahead is dropped.
func (c *Client) Get(ctx context.Context, to string, v Validators) (*Answer, error) {
	var answer *Answer
	var err error
	if a := c.ahead; a != nil && a.url == to && a.v == v {
		wait(ctx, func() { <-a.done })
		switch old := c.now().Sub(a.ended) > aheadFor; {
		case a.err != nil && !old:
			c.ahead = nil
			a.cancel()
			return nil, a.err
		case a.err == nil && (!old || c.o.Queries):
			c.ahead = nil
			inner := a.answer.cancel
			a.answer.cancel = func() { inner(); a.cancel() }
			return a.answer, nil
		}
	}
	c.Close()
	wait(ctx, func() { answer, err = c.get(ctx, to, v, nil) })
	return answer, err
}

// GetFile asks for a long file as it is stored, without a coding. With an offset in
// bytes it asks for the rest of the file that had the validators v (RFC 9110 13.1.5):
// Answer.Offset is where the answer begins, 0 when the server sends all of it again. It
// does not use the answer to Ahead.
func (c *Client) GetFile(ctx context.Context, to string, v Validators, offset int64) (answer *Answer, err error) {
	file := http.Header{"Accept-Encoding": {"identity"}, "Accept": {"application/zip, */*;q=0.1"}}
	if offset > 0 {
		file.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		file.Set("If-Range", cmp.Or(v.ETag, v.LastModified))
		v = Validators{}
	}
	wait(ctx, func() { answer, err = c.get(ctx, to, v, file) })
	if err == nil && offset > 0 && answer.Header.Get("Content-Range") != "" {
		if !strings.HasPrefix(answer.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)) {
			answer.Close()
			return nil, &StatusError{URL: to, Status: http.StatusPartialContent}
		}
		answer.Offset = offset
	}
	return answer, err
}

type waitKey struct{}

// WithWait returns a context for Get. around is called whenever Get has to wait for a
// server, and must call do once.
func WithWait(ctx context.Context, around func(do func())) context.Context {
	return context.WithValue(ctx, waitKey{}, around)
}

func wait(ctx context.Context, do func()) {
	if around, ok := ctx.Value(waitKey{}).(func(func())); ok {
		around(do)
		return
	}
	do()
}

// Ahead starts asking for the document that is likely to be next. It does not
// wait.
func (c *Client) Ahead(ctx context.Context, to string, v Validators) {
	c.Close()
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{url: to, v: v, cancel: cancel, done: make(chan struct{})}
	c.ahead = a
	go func() {
		defer func() {
			a.ended = c.now()
			close(a.done)
		}()
		defer defect.Recover(&a.err)
		a.answer, a.err = c.get(ctx, to, v, nil)
	}()
}

// Close drops what was asked for ahead. The Client stays usable.
func (c *Client) Close() {
	if a := c.ahead; a != nil {
		c.ahead = nil
		a.cancel()
		<-a.done
		if a.answer != nil {
			a.answer.Close()
		}
	}
}

// get makes one request, with header fields of its own for a file. It uses nothing that
// changes, so two goroutines may call it at once.
func (c *Client) get(ctx context.Context, to string, v Validators, file http.Header) (*Answer, error) {
	if err := c.Allowed(to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	answered := false
	defer func() {
		if !answered {
			cancel()
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", c.o.Refused, err)
	}
	// A time in the future says nothing: a server that compares times would answer 304 until
	// then, whatever has changed.
	if t, err := http.ParseTime(v.LastModified); err == nil && t.After(c.now()) {
		v.LastModified = ""
	}
	v.URL = cmp.Or(v.URL, req.URL.String())
	req = req.WithContext(context.WithValue(ctx, validatorsKey{}, v))
	if c.o.Accept != "" {
		req.Header.Set("Accept", c.o.Accept)
	}
	v.apply(req)
	maps.Copy(req.Header, file)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	document := c.o.Documents != nil && c.o.Documents(resp.StatusCode)
	if resp.StatusCode != http.StatusOK && !document && (resp.StatusCode != http.StatusPartialContent || file.Get("Range") == "") {
		// The answer is of no use; closing it cannot make that worse.
		_ = resp.Body.Close()
		return nil, &StatusError{URL: to, Status: resp.StatusCode, Partial: resp.Header.Get(PartialHeader)}
	}
	answered = true
	a := &Answer{
		Requested: to, URL: resp.Request.URL.String(), Moved: movedForGood(resp), Status: resp.StatusCode, Header: resp.Header, Body: resp.Body, body: resp.Body, cancel: cancel,
		Validators: Validators{ETag: resp.Header.Get("ETag"), LastModified: resp.Header.Get("Last-Modified")},
	}
	a.Delimited = resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 || resp.ProtoMajor >= 2 || resp.Uncompressed
	t, err := http.ParseTime(resp.Header.Get("Date"))
	a.dated = err == nil
	if a.came = c.now().UTC(); !a.dated {
		t = a.came
	}
	a.Date = t.UTC()
	// Within the second in which a document was written it may be written again (RFC 9110 8.8.2.2).
	if written, err := http.ParseTime(a.Validators.LastModified); err == nil && written.Equal(a.Date.Truncate(time.Second)) {
		a.Validators.LastModified = ""
	}
	if resp.Request.Response != nil && a.Validators != (Validators{}) {
		a.Validators.URL = a.URL
	}
	return a, nil
}

func (c *Client) now() time.Time {
	if c.o.Now != nil {
		return c.o.Now()
	}
	return time.Now()
}

// ahead is a request that was made ahead.
type ahead struct {
	url    string
	v      Validators
	cancel context.CancelFunc
	done   chan struct{}
	answer *Answer
	err    error
	ended  time.Time // when answer or err came
}

// Foreign reports whether a remote document names a local file, which it may not.
func Foreign(document, link string) bool {
	return isFile(link) && !isFile(document)
}

func isFile(url string) bool {
	scheme, _, ok := strings.Cut(url, ":")
	return ok && strings.EqualFold(scheme, "file")
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

// Validators are what makes a request conditional (RFC 9110 8.8).
type Validators struct {
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"`
	// URL is that of the document that they are of, where a redirect has led to it, else "".
	// Another document may be older than this one, or have an equal ETag.
	URL string `json:"url,omitempty"`
}

// validatorsKey is the key of the Validators of a request, for when it is redirected.
type validatorsKey struct{}

// apply makes a request conditional if it is one for the document of the Validators.
func (v Validators) apply(req *http.Request) {
	for field, value := range map[string]string{"If-None-Match": v.ETag, "If-Modified-Since": v.LastModified} {
		if req.Header.Del(field); value != "" && req.URL.String() == v.URL {
			req.Header.Set(field, value)
		}
	}
}

// Answer is an answer with a document. It holds its connection until it is closed.
type Answer struct {
	// Requested is the URL that was asked for, URL the one that answered after
	// redirects; links are resolved against the latter.
	Requested, URL string
	// Moved: there were redirects, and all of them were for good (301 or 308).
	Moved bool
	// Status is 200, 206 to GetFile, or one of Options.Documents.
	Status int
	// Header and Body are the answer's.
	Header http.Header
	Body   io.Reader
	// Date is the answer's Date, else the Client's clock, in UTC.
	Date time.Time
	// Validators of the answer.
	Validators Validators
	// Offset is where the body begins in what was asked for, see GetFile.
	Offset int64
	// Delimited: the transfer states where the body ends, so that reading one that was cut
	// off fails.
	Delimited bool

	dated  bool      // Date is the answer's
	came   time.Time // when it came, by the Client's clock
	body   io.Closer
	cancel context.CancelFunc
}

// movedForGood reports whether redirects led to an answer, all of them for good.
func movedForGood(answer *http.Response) bool {
	by := answer.Request.Response
	moved := by != nil
	for ; by != nil; by = by.Request.Response {
		moved = moved && (by.StatusCode == http.StatusMovedPermanently || by.StatusCode == http.StatusPermanentRedirect)
	}
	return moved
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

// Mark returns a stamp that is not late as a mark: it is the Client's clock if that is earlier,
// since the server's may be ahead, and be set right later.
func (a *Answer) Mark(stamp time.Time) time.Time {
	if stamp.After(a.came) {
		return a.came
	}
	return stamp
}

// Close closes the body and releases the connection.
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
	if e.Status == http.StatusNotFound && strings.HasPrefix(e.URL, "file:") {
		return e.URL + ": there is no such file: check the path, and whether its disk is mounted"
	}
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
	if status, ok := errors.AsType[*StatusError](err); ok {
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
