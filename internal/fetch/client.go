// Package fetch is the one guarded HTTP client: everything that bridge asks of
// another server goes through a Guard.
//
// Protocol packages take an *http.Client and do not import this package, so the
// client's Transport and CheckRedirect do all the work: which addresses may be reached
// at all, credentials, retries and Retry-After, limits for each host, gzip with a cap,
// bodies that are whole or an error, and file: URLs inside one folder.
package fetch

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Options configure a Guard. The zero value works: it reaches public addresses
// only.
type Options struct {
	// UserAgent is the product that requests name; "" is "bridge".
	UserAgent string
	// Contact is a URL or a mail address that a server's operator finds in his
	// log; it is added to UserAgent.
	Contact string

	// Reach says where requests may go; see Guard.With for another one.
	Reach Reach
	// Network is what connections are made with.
	Network Network
	// Names keeps what is known of the host names that the operator typed; nil is one
	// of this Guard's own.
	Names *Names
	// Proxy, when set, gets all requests but those to loopback hosts that the
	// operator typed. The environment is never asked. A proxy resolves names itself, so
	// it has to refuse private addresses; only those written in a URL are checked here.
	Proxy *url.URL

	// PerHost is how many requests to one host and port may be under way; 0 is
	// 16.
	PerHost int
	// Rate is how many requests a second one host and port gets; 0 is no limit.
	Rate float64

	// Attempts is how often a GET or HEAD is tried; 0 is 4.
	Attempts int
	// Backoff is the wait before the second attempt. It doubles each time, and
	// up to a quarter of it is added at random. 0 is 1 s.
	Backoff time.Duration
	// MaxWait is the longest wait that a server may ask for with Retry-After;
	// 0 is 60 s. When a server asks for more, its answer is returned at once, and
	// requests for the same document fail with a *WaitError until that time, or for
	// an hour.
	MaxWait time.Duration

	// ConnectTimeout bounds the name lookup and the connection, and the TLS
	// handshake; 0 is 15 s.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the wait for the answer's header; 0 is 60 s.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the time in which a body brings less than 1 KiB for
	// each second of it, and does not end. Only waiting for the server counts;
	// 0 is 60 s.
	IdleTimeout time.Duration
	// BodyTimeout bounds how long a body may take in all. Only waiting for the
	// server counts; 0 is an hour.
	BodyTimeout time.Duration

	// Redirects is how many are followed; 0 is 5.
	Redirects int
	// HeaderBytes caps the answer's header; 0 is 64 KiB.
	HeaderBytes int64
	// Ratio caps how many bytes one byte of gzip may become, checked from 1 MiB
	// of output on; 0 is 100.
	Ratio int64

	// Asked, if not nil, is called for each request that was sent, with its host and the
	// status of the answer, 0 when there was none.
	Asked func(host string, status int)

	// Log gets retries, and credentials that were not sent; nil discards them.
	Log *slog.Logger
}

// Guard makes HTTP clients for one Reach: that of a Source, an ingest server or a
// recipient of notifications. It has connections of its own. It shares with the other
// Guards of the process the limits for each host, and the Retry-After of each. Its
// methods may be called from any goroutine.
type Guard struct {
	*shared
	reach reach
	base  *http.Transport
	own   *http.Transport // for the Reach's Origin: base, unless that has settings of its own
}

// shared is what all Guards of a process have in common.
type shared struct {
	options Options
	agent   string
	names   *Names
	unzip   sync.Pool // of *gzip.Reader

	mu       sync.Mutex
	hosts    map[string]*host // by authority
	forgetAt int
}

// New returns a Guard. It starts nothing; see Close.
func New(o Options) *Guard {
	s := &shared{options: withDefaults(o), names: o.Names, hosts: map[string]*host{}, forgetAt: 1024}
	if s.names == nil {
		s.names = NewNames(nil, nil)
	}
	s.unzip.New = func() any { return new(gzip.Reader) }
	s.agent = s.options.UserAgent
	if o.Contact != "" {
		s.agent += " (+" + o.Contact + ")"
	}
	return (&Guard{shared: s}).With(o.Reach)
}

// With returns a Guard for another Reach, with connections of its own.
func (g *Guard) With(r Reach) *Guard {
	with := &Guard{shared: g.shared, reach: r.compile()}
	with.base = &http.Transport{
		DialContext:            with.dial,
		TLSHandshakeTimeout:    g.options.ConnectTimeout,
		ResponseHeaderTimeout:  g.options.HeaderTimeout,
		MaxResponseHeaderBytes: g.options.HeaderBytes,
		DisableCompression:     true, // we ask for gzip ourselves, to cap it
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    g.options.PerHost,
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if g.options.Proxy != nil {
		with.base.Proxy = with.proxy
	}
	with.own = with.base
	if r.Roots != nil || r.HeaderTimeout > 0 {
		with.own = with.base.Clone()
		with.own.TLSClientConfig = &tls.Config{RootCAs: r.Roots}
		with.own.ResponseHeaderTimeout = cmp.Or(r.HeaderTimeout, g.options.HeaderTimeout)
	}
	return with
}

// transport returns what sends the requests for a URL, and how long it waits for the
// answer's header.
func (g *Guard) transport(u *url.URL) (*http.Transport, time.Duration) {
	t := g.base
	if origin(u) == g.reach.origin {
		t = g.own
	}
	return t, t.ResponseHeaderTimeout
}

func withDefaults(o Options) Options {
	o.UserAgent = cmp.Or(o.UserAgent, "bridge")
	o.PerHost = cmp.Or(o.PerHost, 16)
	o.Attempts = cmp.Or(o.Attempts, 4)
	o.Backoff = cmp.Or(o.Backoff, time.Second)
	o.MaxWait = cmp.Or(o.MaxWait, time.Minute)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 15*time.Second)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, time.Hour)
	o.Redirects = cmp.Or(o.Redirects, 5)
	o.HeaderBytes = cmp.Or(o.HeaderBytes, 64<<10)
	o.Ratio = cmp.Or(o.Ratio, 100)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Client returns a client that works under the guard. A root other than ""
// is a local folder: file: URLs that lie in it or below are answered as a web
// server would answer them. Without a root file: URLs are refused. Clients are
// cheap, and all of a Guard's share their connections and limits.
//
// An answer with any status is returned to the caller, after the last attempt also one
// of 429 or 5xx. Errors wrap an *Error; see Transient. Unless a GET has a Range or an
// Accept-Encoding of its own, gzip is asked for and decoded.
//
// Request the Plain form of a URL: http.Client puts the user name into its
// errors otherwise.
func (g *Guard) Client(root string) *http.Client {
	return &http.Client{
		Transport:     &transport{guard: g, root: root},
		CheckRedirect: g.checkRedirect,
	}
}

// Close closes the idle connections. Requests under way go on.
func (g *Guard) Close() {
	g.base.CloseIdleConnections()
	g.own.CloseIdleConnections()
}

// transport is the http.RoundTripper of one client.
type transport struct {
	guard *Guard
	root  string
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *transport) CloseIdleConnections() { t.guard.Close() }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.roundTrip(req)
	if err != nil && req.Body != nil {
		req.Body.Close() // as a RoundTripper must, however early it fails
	}
	return resp, err
}

func (t *transport) roundTrip(req *http.Request) (*http.Response, error) {
	switch req.URL.Scheme {
	case "http", "https":
		if _, err := t.guard.checkURL(req.URL); err != nil {
			return nil, err
		}
		return t.guard.send(t.guard.prepare(req))
	case "file":
		// A local document may name local files, an answer from elsewhere may not.
		if req.Response == nil {
			return t.file(req)
		}
	}
	return nil, &Error{URL: Plain(req.URL), Err: errScheme}
}

// prepare returns a copy of the request with our header fields, and with the
// credentials that the operator gave for its origin.
func (g *Guard) prepare(req *http.Request) *http.Request {
	r := req.WithContext(req.Context())
	r.Header = req.Header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header.Set("User-Agent", g.agent)
	}
	if r.Method == http.MethodGet && r.Header.Get("Accept-Encoding") == "" && r.Header.Get("Range") == "" {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	g.authorize(r)
	return r
}

// send tries the request as often as is allowed.
func (g *Guard) send(req *http.Request) (*http.Response, error) {
	h := g.acquireHost(authority(req.URL))
	defer g.releaseHost(h)
	attempts := 1
	if idempotent(req) && req.Context().Value(onceKey{}) == nil {
		attempts = g.options.Attempts
	}
	_, longest := g.transport(req.URL)
	for attempt := 1; ; attempt++ {
		var sent time.Time
		resp, asked, err := g.sendOnce(req, h, &sent)
		if err != nil && req.Context().Err() != nil {
			return nil, err // the caller no longer wants it
		}
		// There is no second attempt after the longest wait for an answer.
		if attempt == attempts || !g.mayRetry(resp, asked, err) || err != nil && time.Since(sent) >= longest {
			return resp, explain(req, attempt, err)
		}
		wait := backoff(g.options.Backoff, attempt)
		g.logRetry(req, attempt, max(wait, asked), resp, err)
		if resp != nil {
			resp.Body.Close()
		}
		reportWaiting(req.Context(), Waiting{For: "another attempt", Until: time.Now().Add(wait)})
		if err := sleep(req.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// mayRetry reports whether another attempt may help, within the wait that the
// server asked for.
func (g *Guard) mayRetry(resp *http.Response, asked time.Duration, err error) bool {
	if err != nil {
		return retryable(err)
	}
	return isTransient(resp) && asked <= g.options.MaxWait
}

// isTransient reports whether the same request may soon get another answer. The answer of
// a bridge that waits for its own Sources (see PartialHeader of package follow) does not
// change that soon.
func isTransient(resp *http.Response) bool {
	return TransientStatus(resp.StatusCode) && resp.Header.Get("Bridge-Partial") == ""
}

// sendOnce waits until the host may be asked, and sends the request, at the time sent. asked
// is the wait before the next request that the answer asks for.
func (g *Guard) sendOnce(req *http.Request, h *host, sent *time.Time) (resp *http.Response, asked time.Duration, err error) {
	slot, err := h.waitTurn(req.Context(), &g.options, req.URL.RequestURI())
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	to, _ := g.transport(req.URL)
	out := req.WithContext(ctx)
	out.URL = withQuery(req.URL)
	*sent = time.Now()
	slot.send()
	resp, err = to.RoundTrip(out)
	slot.answered()
	if g.options.Asked != nil {
		status := 0
		if err == nil {
			status = resp.StatusCode
		}
		g.options.Asked(req.URL.Host, status)
	}
	if err != nil {
		cancel(nil)
		slot.release()
		return nil, 0, err
	}
	if out.URL != req.URL { // else it would look like a redirect
		resp.Request = req
	}
	if isTransient(resp) {
		if asked = RetryAfter(resp.Header, time.Now()); asked > 0 {
			h.postpone(asked, &g.options, req.URL.RequestURI())
		}
	}
	if resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		cancel(nil)
		slot.release()
		return resp, asked, nil
	}
	g.guardBody(req, resp, &guardedBody{src: resp.Body, ctx: ctx, cancel: cancel, slot: slot})
	return resp, asked, nil
}

// withQuery returns the URL with a query that can be sent: net/http escapes what no URI may
// have in a path, and not in a query (RFC 3987 3.1).
func withQuery(u *url.URL) *url.URL {
	var query strings.Builder
	for _, c := range []byte(u.RawQuery) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			fmt.Fprintf(&query, "%%%02X", c)
		} else {
			query.WriteByte(c)
		}
	}
	if query.Len() == len(u.RawQuery) {
		return u
	}
	sent := *u
	sent.RawQuery = query.String()
	return &sent
}

func (g *Guard) logRetry(req *http.Request, attempt int, wait time.Duration, resp *http.Response, err error) {
	status := ""
	if resp != nil {
		status = resp.Status
	}
	g.options.Log.LogAttrs(req.Context(), slog.LevelInfo, "trying again",
		slog.String("url", Plain(req.URL)), slog.Int("attempt", attempt),
		slog.Duration("wait", wait), slog.String("status", status), slog.Any("err", err))
}

// idempotent reports whether asking twice does no harm (RFC 9110 9.2.2), for the
// methods that we use.
func idempotent(req *http.Request) bool {
	return (req.Method == http.MethodGet || req.Method == "" || req.Method == http.MethodHead) &&
		(req.Body == nil || req.Body == http.NoBody)
}

// Plain returns the URL without user name, password and fragment: the form to
// request, store, print and publish. Logins are the Guard's (Reach.User), which
// adds them where they belong.
func Plain(u *url.URL) string {
	if u.User == nil && u.Fragment == "" {
		return u.String()
	}
	p := *u
	p.User, p.Fragment, p.RawFragment = nil, "", ""
	return p.String()
}

func origin(u *url.URL) string { return u.Scheme + "://" + authority(u) }

// maxURL caps the URL that a redirect leads to, in bytes.
const maxURL = 8 << 10

// authorize sets the credentials and other fields that the operator gave for exactly
// the request's origin. An Authorization that the caller has set stays. It never sends
// a user name from a URL: URLs come from documents, and the operator has not typed
// them.
func (g *Guard) authorize(r *http.Request) {
	if user := r.URL.User; user != nil {
		// http.Client has made a header of it already.
		if r.Header.Get("Authorization") == basic(user) {
			r.Header.Del("Authorization")
		}
		u := *r.URL
		u.User = nil
		r.URL = &u
		g.options.Log.WarnContext(r.Context(), "a user name in the address was not sent: the operator did not type it", "url", Plain(r.URL))
	}
	if origin(r.URL) != g.reach.origin {
		return
	}
	for name, values := range g.reach.header {
		if name != "Authorization" || r.Header.Get(name) == "" {
			r.Header[name] = values
		}
	}
}

// basic is the value of an Authorization header (RFC 7617).
func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// checkRedirect is the client's CheckRedirect.
func (g *Guard) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > g.options.Redirects {
		return &Error{URL: Plain(req.URL), Err: errRedirects}
	}
	if len(req.URL.String()) > maxURL {
		return &Error{URL: Plain(via[len(via)-1].URL), Err: errURL}
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return &Error{URL: Plain(req.URL), Err: errScheme}
	}
	// net/http would pass these fields on to subdomains, other ports and unencrypted
	// connections. A relative Location inherits the user name, and the referrer may have a
	// token in its query.
	if origin(via[0].URL) != origin(req.URL) {
		for _, k := range [...]string{"Authorization", "Proxy-Authorization", "Cookie", "Cookie2"} {
			req.Header.Del(k)
		}
	}
	req.Header.Del("Referer")
	req.URL.User = nil
	if tell, ok := req.Context().Value(redirects{}).(func(*http.Request, []*http.Request)); ok {
		tell(req, via)
	}
	return nil
}

// redirects is the key of what WithRedirects adds.
type redirects struct{}

// WithRedirects returns a context whose requests call tell before they follow a redirect,
// with the next request, whose Response has led to it, and those before, as
// http.Client.CheckRedirect has them. tell may be called from several goroutines.
func WithRedirects(ctx context.Context, tell func(next *http.Request, via []*http.Request)) context.Context {
	return context.WithValue(ctx, redirects{}, tell)
}
