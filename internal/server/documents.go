package server

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/internal/publish"
)

// document answers with a published document.
func (s *Server) document(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	key := memoKey{r.URL.Path, acceptsGzip(r.Header)}
	if d := s.memo.get(key); d != nil {
		maps.Copy(w.Header(), d.header)
		if !current(w, r, &d.meta) {
			send(w, r, &d.meta, bytes.NewReader(d.body), int64(len(d.body)))
		}
		return nil
	}
	doc, err := s.opt.Documents.Document(r.Context(), key.path, key.gzip)
	if err != nil {
		return err
	}
	header := headerOf(&doc.Meta)
	maps.Copy(w.Header(), header)
	if current(w, r, &doc.Meta) {
		return nil
	}
	body, size, err := doc.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	if doc.Immutable && size <= memoOne {
		b := make([]byte, size)
		if _, err := io.ReadFull(body, b); err != nil {
			return err
		}
		s.memo.put(&closed{key, doc.Meta, header, b})
		send(w, r, &doc.Meta, bytes.NewReader(b), size)
		return nil
	}
	send(w, r, &doc.Meta, body, size)
	return nil
}

// headerOf returns the header of a document.
func headerOf(m *publish.Meta) http.Header {
	h := http.Header{
		"Content-Type":  {m.ContentType},
		"Etag":          {m.ETag},
		"Vary":          {"Accept-Encoding"},
		"Cache-Control": {"no-cache"},
	}
	if m.Immutable {
		// Of this log; a data folder that is made anew has other bytes at the same
		// URL. So nobody keeps it for longer than a day without asking.
		h.Set("Cache-Control", "public, max-age=86400")
	}
	if !m.LastModified.IsZero() {
		h.Set("Last-Modified", m.LastModified.UTC().Format(http.TimeFormat))
	}
	if m.Gzip {
		h.Set("Content-Encoding", "gzip")
	} else {
		h.Set("Accept-Ranges", "bytes")
	}
	return h
}

// current answers 304, which needs no bytes, so that nothing is rendered for it.
func current(w http.ResponseWriter, r *http.Request, m *publish.Meta) bool {
	if notModified(r.Header, m.ETag, m.LastModified, true) {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	return false
}

// send answers with a document's bytes. http.ServeContent is for requests that
// need it: it gives compressed bytes neither a length nor sendfile, and to look
// at a request takes it longer than to send a small document. Of compressed
// bytes there are no ranges: they are of no use to anybody.
func send(w http.ResponseWriter, r *http.Request, m *publish.Meta, body io.ReadSeeker, size int64) {
	if !m.Gzip && (r.Header["Range"] != nil || r.Header["If-Match"] != nil) {
		// Without a time it leaves If-Modified-Since alone, see publish.Meta.
		http.ServeContent(w, r, "", time.Time{}, body)
		return
	}
	w.Header()["Content-Length"] = []string{strconv.FormatInt(size, 10)}
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = io.CopyN(w, body, size) // answer remembers the error
	}
}
