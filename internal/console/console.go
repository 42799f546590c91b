// Package console has the pages for the people who run a bridge: its state, what needs
// their attention, and what they can do about it.
//
// A Console serves pages below /console, and programs below /api/v1 (package api), either
// on an address of its own or on the public one. Every request passes ServeHTTP: access
// (access.go), then one page. Pages are templates in assets; none needs a script. Each page
// is read anew from the daemon.Bridge, except for the status, which may be up to statusAge
// old. Links are relative, so that a proxy may add a path before them.
package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/status"
)

// Path is the path of a console.
const Path = "/console"

// statusAge is how long pages show the same status.
const statusAge = 2 * time.Second

//go:embed assets
var assets embed.FS

// Options are the content of a console, and who may see it.
type Options struct {
	Bridge *daemon.Bridge
	// Base is the start of published URLs.
	Base string
	// Token is the token to sign in with. Without one the console accepts only requests
	// from this machine.
	Token string
	// Secure means that browsers reach it over https; they then send the cookie of a
	// session only over https.
	Secure bool
	// Version is that of the program.
	Version string
	// Logger gets failures, and the actions of people; nil discards all.
	Logger *slog.Logger
	// Now is the clock; nil is the system's.
	Now func() time.Time
}

// Console is the handler of a console. Its methods may be called from any goroutine.
type Console struct {
	opt    Options
	bridge *daemon.Bridge
	log    *slog.Logger
	mux    *http.ServeMux
	api    *api.API
	pages  map[string]*template.Template
	files  map[string]file // style and script, by name
	cross  *http.CrossOriginProtection
	logins limit.Attempts
	notes  notes

	statusMu sync.Mutex // held while the status is read, so that requests share it
	statusAt time.Time
	last     *status.Status
}

// file is a style or a script.
type file struct {
	bytes   []byte
	kind    string
	version string // a hash of its bytes, for its URL
}

// New returns a console.
func New(o Options) *Console {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Console{opt: o, bridge: o.Bridge, log: o.Logger, files: map[string]file{}, cross: http.NewCrossOriginProtection()}
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"} {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // it is compiled in
		}
		sum := sha256.Sum256(text)
		c.files[name] = file{text, kind, hex.EncodeToString(sum[:6])}
	}
	c.pages = c.templates()
	c.mux = c.routes()
	c.api = api.New(api.Options{Bridge: o.Bridge, Base: o.Base, Status: c.status, Forget: c.forget, Logger: o.Logger})
	return c
}

// handler handles one request. Its errors become pages.
type handler func(w http.ResponseWriter, r *http.Request) error

func (c *Console) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"GET /console/{$}":                      c.overview,
		"GET /console/sources/{id}":             c.source,
		"GET /console/sources/{id}/held":        c.held,
		"GET /console/sets":                     c.sets,
		"GET /console/sets/{set}":               c.set,
		"GET /console/sets/{set}/events":        c.events,
		"GET /console/sets/{set}/records":       c.records,
		"GET /console/sets/{set}/records/{key}": c.record,
		"GET /console/quarantine":               c.quarantine,
		"GET /console/quarantine/{id}":          c.quarantined,
		"GET /console/quarantine/{id}/input":    c.quarantinedInput,
		"GET /console/reviews":                  c.reviews,
		"GET /console/reviews/{id}":             c.review,
		"GET /console/sign-in":                  c.signInPage,
		"GET /console/metrics":                  c.metrics,
		"POST /console/sources/{id}/{action}":   c.actOnSource,
		"POST /console/quarantine":              c.decideQuarantined,
		"POST /console/reviews":                 c.decideReviews,
		"POST /console/sign-out":                c.signOut,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := defect.Guard(func() error { return h(w, r) }); err != nil {
				c.fail(w, r, err)
			}
		})
	}
	return mux
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, api.Path+"/") {
		if c.admitProgram(w, r) {
			c.api.ServeHTTP(w, r)
		}
		return
	}
	// Also of those who are not admitted: r.PostFormValue reads the parts of any method's body.
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	path, ok := strings.CutPrefix(r.URL.Path, Path)
	switch {
	case path == "" && ok:
		redirect(w, "console/")
		return
	case r.URL.Path == "/":
		redirect(w, "console/")
		return
	case !ok || path[0] != '/' || r.URL.RawPath != "" || strings.Contains(path, "//") || strings.Contains(path, "/."):
		if c.admit(w, r, "") {
			c.fail(w, r, errNotFound)
		}
		return
	}
	if f, ok := c.files[strings.TrimPrefix(path, "/")]; ok {
		h.Set("Content-Type", f.kind)
		h.Set("Cache-Control", "private, max-age=86400")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.bytes))
		return
	}
	if !c.admit(w, r, path) {
		return
	}
	if _, pattern := c.mux.Handler(r); pattern == "" {
		c.fail(w, r, errNotFound)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// metrics serves the metrics for Prometheus.
func (c *Console) metrics(w http.ResponseWriter, r *http.Request) error {
	c.bridge.Metrics().ServeHTTP(w, r)
	return nil
}

// formBytes bounds the bytes of a form: one with 500 choices has a tenth of it.
const formBytes = 256 << 10

// redirect redirects with GET to a URL that is relative to that of the request.
// (http.Redirect would resolve it without the path that a proxy has cut off.)
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// errNotFound means that there is no such page, or no object for it.
var errNotFound = errors.New("There is nothing at this address. It may have been renamed, removed or decided on since.") //nolint:staticcheck // it is a page's text

// problem is an error that the person who made the request can correct.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

// fail writes the page of an error.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, err error) {
	var known *problem
	switch {
	case r.Context().Err() != nil:
		return // the client has disconnected
	case errors.As(err, &known):
	case errors.Is(err, errNotFound), errors.Is(err, fs.ErrNotExist):
		known = &problem{http.StatusNotFound, errNotFound.Error()}
	default:
		c.log.Error("a page of the console failed", "path", r.URL.Path, "error", err)
		defect.Log(c.log, err)
		known = &problem{http.StatusInternalServerError, "This page cannot be shown: " + daemon.Redact(err.Error())}
	}
	c.write(w, r, known.status, "error", &page{Title: http.StatusText(known.status), Body: known.text})
}

// refuse responds to a request that is not admitted: the page reveals nothing about this
// bridge, and reads nothing from it.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, p *problem) {
	c.write(w, r, p.status, "error", &page{Title: http.StatusText(p.status), Bare: true, Body: p.text})
}

// status returns the status of everything, which is at most statusAge old.
func (c *Console) status(ctx context.Context) (*status.Status, error) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	if age := c.opt.Now().Sub(c.statusAt); c.last != nil && age >= 0 && age < statusAge {
		return c.last, nil
	}
	s, err := c.bridge.Status(context.WithoutCancel(ctx))
	if err == nil {
		c.last, c.statusAt = s, c.opt.Now()
	}
	return s, err
}

// forget drops the stored status, so that the next page reads it again.
func (c *Console) forget() {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	c.last = nil
}
