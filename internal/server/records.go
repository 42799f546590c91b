package server

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/pattern"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// keyPattern matches the keys of event.Key. The log compares only the last digits.
var keyPattern = pattern.Of(`^[a-z0-9_-]{0,61}[a-z2-7]{26}$`)

// namePattern matches the names that event.NameRepresentations gives. The history of a
// record quotes the name in links and redirects, also one that the record never had.
var namePattern = pattern.Of(`^[a-z0-9-]+(\.[a-z0-9]+)?$`)

// splitName splits the name in a path, {key} or {key}.{name}.
func splitName(path string) (key, name string, named bool, err error) {
	key, name, named = strings.Cut(path, ".")
	if !keyPattern().MatchString(key) || named && !namePattern().MatchString(name) {
		err = publish.ErrNotFound
	}
	return key, name, named, err
}

// record answers with a record, or one representation of it. It reads the event once,
// and the content by the hash in the event: so a concurrent change cannot mix two
// states of the record.
func (s *Server) record(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	set, err := s.opt.Log.Set(r.Context(), c.Param("set"))
	if err != nil {
		return notFound(err)
	}
	if set.Content == event.Reference {
		writeText(w, http.StatusNotFound, "This set serves no records: its lists name the originals themselves.\n")
		return nil
	}
	key, name, named, err := splitName(c.Param("name"))
	if err != nil {
		return err
	}
	e, err := s.opt.Log.Record(r.Context(), set.Name, key)
	if err != nil {
		return notFound(err)
	}
	w.Header().Set("Link", s.opt.Documents.LinkHeader(set.Name))
	if set.History && !e.Withdrawn() {
		s.recordURL(set.Name, c.Param("name")).link(w.Header())
	}
	if !e.Live() {
		addVia(w.Header(), e.Via.Href)
		writeText(w, http.StatusGone, "This record was deleted.\n")
		return nil
	}
	rep, via, ok := representation(e, name, named)
	if !ok {
		writeText(w, http.StatusNotFound, "This record has no such representation.\n")
		return nil
	}
	addVia(w.Header(), via)
	if set.Content == event.Redirect {
		redirect(w, r, rep.Href)
		return nil
	}
	return s.serveCopy(w, r, e, rep, "no-cache")
}

// representation returns the representation at a URL of a record: {key} is the
// preferred one, {key}.{name} the one of that name. via is the URL of its original.
func representation(e *event.Event, name string, named bool) (rep event.Representation, via string, ok bool) {
	if !named {
		rep, ok = e.Pref()
		return rep, e.Via.Href, ok
	}
	for _, rep := range e.Representations {
		if rep.Name == name {
			return rep, rep.Href, true
		}
	}
	return rep, "", false
}

// addVia adds a link to the original.
func addVia(h http.Header, href string) {
	if isWeb(href) {
		h.Add("Link", "<"+event.URI(href)+`>; rel="via"`)
	}
}

// isWeb reports whether a URL from outside is http or https, and so may be linked.
func isWeb(href string) bool {
	u, err := url.Parse(event.URI(href))
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func redirect(w http.ResponseWriter, r *http.Request, href string) {
	if !isWeb(href) {
		writeText(w, http.StatusNotFound, "The original of this record is not on the web.\n")
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8") // else it writes a page
	http.Redirect(w, r, event.URI(href), http.StatusTemporaryRedirect)
}

// lastModified returns the lastmod of the record in our lists. It is zero while the
// record may still change within that second, since a client that compares seconds
// would miss the change; then only the entity tag counts.
func (s *Server) lastModified(e *event.Event) time.Time {
	lastmod := e.Observed.Time().Truncate(time.Second)
	if s.opt.Now().Sub(lastmod) < 2*time.Second { // the last event of that second is a second old
		return time.Time{}
	}
	return lastmod
}

// recordPolicy lets a foreign page be displayed, and do nothing else.
const recordPolicy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"

// setContentHeaders sets the header of foreign content: in a browser it must not act on
// behalf of our host, nor report that it is being read. A browser saves what it would
// otherwise run as a page.
func setContentHeaders(h http.Header, kind string) {
	h.Set("Content-Security-Policy", recordPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Content-Type", kind)
	if lower := strings.ToLower(kind); strings.Contains(lower, "html") || strings.Contains(lower, "svg") {
		h.Set("Content-Disposition", "attachment")
	}
}

// serveCopy answers with our copy. It is never compressed, so the hash and length in our lists
// are those of the body. caching is its Cache-Control.
func (s *Server) serveCopy(w http.ResponseWriter, r *http.Request, e *event.Event, rep event.Representation, caching string) error {
	digits, lastmod := rep.SHA256(), s.lastModified(e)
	var sum [32]byte
	if n, err := hex.Decode(sum[:], []byte(digits)); err != nil || n != len(sum) {
		return fmt.Errorf("record %q of set %s (event %d) has no SHA-256 although its set is a mirror: run bridge verify", e.Record, e.Set, e.Seq)
	}
	describeCopy := func() {
		h := w.Header()
		setContentHeaders(h, publish.ServedType(rep.Type))
		h.Set("ETag", `"`+digits+`"`)
		if !lastmod.IsZero() {
			h.Set("Last-Modified", lastmod.Format(http.TimeFormat))
		}
		h.Set("Cache-Control", caching)
	}
	if notModified(r.Header, `"`+digits+`"`, lastmod, false) {
		describeCopy()
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body, size, err := s.opt.Contents.Open(r.Context(), sum)
	if err != nil {
		return fmt.Errorf("record %q of set %s (event %d): its content cannot be served: %w; run bridge verify", e.Record, e.Set, e.Seq, err)
	}
	defer body.Close()
	if size != rep.Length && rep.Length != event.NoLength {
		return fmt.Errorf("record %q of set %s (event %d): its content has %d bytes, but the log says %d: run bridge verify", e.Record, e.Set, e.Seq, size, rep.Length)
	}
	describeCopy()
	http.ServeContent(w, r, "", lastmod, body)
	return nil
}
