package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// Earlier versions of records, as Memento has them (RFC 7089): each record of a set with a
// history, and each of its further representations, is an Original Resource with a TimeGate and
// a TimeMap of its own (pattern 2.1). Each event of the record is a Memento. See
// docs/decisions/history.md.

// recordURL is the URL of a record or of one of its representations, absolute.
type recordURL string

// recordURL returns the URL of what stands as {key} or {key}.{name} in a path.
func (s *Server) recordURL(set, name string) recordURL {
	return recordURL(s.base + "/sets/" + set + "/records/" + name)
}

// The parts of a link as application/link-format and the Link header have it.
func linkTo(href, rel string) string { return "<" + href + `>; rel="` + rel + `"` }

func (u recordURL) originalLink() string { return linkTo(string(u), "original") }
func (u recordURL) timeGateLink() string { return linkTo(event.TimeGateURL(string(u)), "timegate") }

func (u recordURL) timeMapLink() string {
	return linkTo(event.TimeMapURL(string(u)), "timemap") + `; type="application/link-format"`
}

// mementoLink is the link to a version. rels are what it is beside being one: first,
// last and so on.
func (u recordURL) mementoLink(v event.Version, rels ...string) string {
	return linkTo(event.MementoURL(string(u), v.Seq), strings.Join(append(rels, "memento"), " ")) + `; datetime="` + mementoTime(v) + `"`
}

// mementoTime is when a version became what was there, in whole seconds of UTC, which is all
// that the protocol has (RFC 7089 2.1.1.1). Versions of one second are distinguished by their
// URLs, and stand in the order of the log.
func mementoTime(v event.Version) string { return v.Observed.Time().Format(http.TimeFormat) }

// link adds Link fields that lead to the history of a record.
func (u recordURL) link(h http.Header) {
	h.Add("Link", u.originalLink())
	h.Add("Link", u.timeGateLink())
	h.Add("Link", u.timeMapLink())
}

// linkVersions adds the links to a version and those beside it, each once.
func (u recordURL) linkVersions(h http.Header, v *event.Versions) {
	all := []struct {
		event.Version
		rel string
	}{{v.First, "first"}, {v.Previous, "prev"}, {v.Version, ""}, {v.Next, "next"}, {v.Last, "last"}}
	for i, one := range all {
		var rels []string
		first := i
		for j, other := range all {
			if other.Seq != one.Seq {
				continue
			}
			if first = min(first, j); other.rel != "" {
				rels = append(rels, other.rel)
			}
		}
		if one.Seq == 0 || first < i {
			continue
		}
		h.Add("Link", u.mementoLink(one.Version, rels...))
	}
}

// historyOf splits the name in the path, {key} or {key}.{name}.
func historyOf(c echo.Context) (set, key, name string, named bool, err error) {
	key, name, named, err = splitName(c.Param("name"))
	return c.Param("set"), key, name, named, err
}

// writeWithdrawn answers for a record that was withdrawn: no version of it is
// to be had.
func writeWithdrawn(w http.ResponseWriter) {
	writeText(w, http.StatusGone, "This record was withdrawn, with its earlier versions.\n")
}

// timeGate leads to the version of a record at the datetime that the client asks for
// (RFC 7089 4.1.2): the last one up to the end of that second; the first one when all
// are later; the newest without a datetime.
func (s *Server) timeGate(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	set, key, _, _, err := historyOf(c)
	if err != nil {
		return err
	}
	at, ok := acceptDatetime(r.Header)
	v, err := s.opt.Log.Version(r.Context(), set, key, math.MaxInt64, at)
	if err != nil {
		return notFound(err)
	}
	if v.Last.Withdrawn {
		writeWithdrawn(w)
		return nil
	}
	u, h := s.recordURL(set, c.Param("name")), w.Header()
	h.Set("Vary", "accept-datetime")
	h.Add("Link", u.originalLink())
	h.Add("Link", u.timeMapLink())
	if !ok {
		u.linkVersions(h, &event.Versions{First: v.First, Last: v.Last})
		writeText(w, http.StatusBadRequest, "Accept-Datetime has to have the form of \""+mementoTime(v.Last)+"\".\n")
		return nil
	}
	u.linkVersions(h, v)
	h.Set("Location", event.MementoURL(string(u), v.Seq))
	writeText(w, http.StatusFound, "")
	return nil
}

// acceptDatetime returns the end of the second that a client asks for, the end of time
// when it asks for none. ok is false when it is no datetime of RFC 1123.
func acceptDatetime(h http.Header) (at event.Micros, ok bool) {
	values := h.Values("Accept-Datetime")
	if len(values) == 0 {
		return math.MaxInt64, true
	}
	t, err := time.Parse(http.TimeFormat, strings.TrimSpace(values[0]))
	if err != nil || len(values) > 1 {
		return math.MaxInt64, false
	}
	return event.MicrosOf(t.Add(time.Second)) - 1, true
}

// olderVersion is how long caches may keep what never changes any more. It is immutable
// in this log only: a new data folder has other versions at the same URLs.
const olderVersion = "public, max-age=86400"

// memento answers with one version of a record, as it was answered then: with 410 where
// it was deleted (RFC 7089 4.5.6). The newest one may get a next one.
func (s *Server) memento(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	set, key, name, named, err := historyOf(c)
	seq, bad := strconv.ParseInt(c.Param("seq"), 10, 64)
	if err != nil || bad != nil || seq < 1 || strconv.FormatInt(seq, 10) != c.Param("seq") {
		return publish.ErrNotFound
	}
	v, err := s.opt.Log.Version(r.Context(), set, key, event.Seq(seq), math.MaxInt64)
	if err != nil {
		return notFound(err)
	}
	if v.Seq != event.Seq(seq) {
		return publish.ErrNotFound
	}
	if v.Last.Withdrawn {
		writeWithdrawn(w)
		return nil
	}
	u, h := s.recordURL(set, c.Param("name")), w.Header()
	h.Set("Memento-Datetime", mementoTime(v.Version))
	u.link(h)
	u.linkVersions(h, v)
	caching := olderVersion
	if v.Next.Seq == 0 {
		caching = "no-cache"
	}
	if !v.Event.Live() {
		writeText(w, http.StatusGone, "This record was deleted then.\n")
		return nil
	}
	rep, via, ok := representation(v.Event, name, named)
	if !ok {
		writeText(w, http.StatusNotFound, "This record had no such representation then.\n")
		return nil
	}
	addVia(h, via)
	return s.serveCopy(w, r, v.Event, rep, caching)
}

// timeMapPage is how many versions a TimeMap lists.
const timeMapPage = 1000

// timeMap lists the versions of a record (RFC 7089 5): the newest ones, with links to the
// TimeMaps of the others where one would be too long.
func (s *Server) timeMap(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	set, key, _, _, err := historyOf(c)
	if err != nil {
		return err
	}
	page := 0
	if p := c.Param("page"); p != "" {
		if page, err = strconv.Atoi(p); err != nil || page < 1 || strconv.Itoa(page) != p {
			return publish.ErrNotFound
		}
	}
	list, first, last, err := s.opt.Log.VersionPage(r.Context(), set, key, page, timeMapPage)
	if err != nil {
		return notFound(err)
	}
	switch {
	case last.Withdrawn:
		writeWithdrawn(w)
		return nil
	case len(list) == 0:
		return publish.ErrNotFound
	}
	u := s.recordURL(set, c.Param("name"))
	body := u.timeMapOf(list, first, last, page == 0)
	h, caching := w.Header(), "no-cache"
	if list[len(list)-1] != last {
		caching = olderVersion
	}
	sum := sha256.Sum256(body)
	etag := `"` + hex.EncodeToString(sum[:16]) + `"`
	h.Set("Content-Type", "application/link-format")
	h.Set("ETag", etag)
	h.Set("Cache-Control", caching)
	if notModified(r.Header, etag, time.Time{}, true) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	return nil
}

// timeMapOf writes the TimeMap of a page of versions: that at the TimeMap's own URL if it
// is the entry, else that at the URL of the page.
func (u recordURL) timeMapOf(list []event.Version, first, last event.Version, entry bool) []byte {
	pageURL := func(n int) string { return event.TimeMapURL(string(u)) + "/" + strconv.Itoa(n) }
	page, end := (list[0].Number-1)/timeMapPage+1, list[len(list)-1]
	self := pageURL(page)
	if entry {
		self = event.TimeMapURL(string(u))
	}
	const kind = `; type="application/link-format"`
	lines := []string{u.originalLink(), linkTo(self, "self") + kind + `; from="` + mementoTime(list[0]) + `"; until="` + mementoTime(end) + `"`, u.timeGateLink()}
	if page > 1 {
		lines = append(lines, linkTo(pageURL(page-1), "timemap")+kind)
	}
	if end != last {
		lines = append(lines, linkTo(pageURL(page+1), "timemap")+kind)
	}
	if entry && list[0] != first {
		lines = append(lines, u.mementoLink(first, "first"))
	}
	for _, v := range list {
		var rels []string
		if v == first {
			rels = append(rels, "first")
		}
		if v == last {
			rels = append(rels, "last")
		}
		lines = append(lines, u.mementoLink(v, rels...))
	}
	return []byte(strings.Join(lines, ",\n") + "\n")
}
