package server

import (
	"bytes"
	"container/list"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/pmh-bridge/bridge/internal/publish"
)

// document answers with a published document.
func (s *Server) document(c echo.Context) error {
	r, w := c.Request(), c.Response().Writer
	key := docKey{r.URL.Path, acceptsGzip(r.Header)}
	forgotten := s.docs.timesForgotten()
	if d := s.docs.get(key); d != nil {
		maps.Copy(w.Header(), d.header)
		if !answeredNotModified(w, r, &d.meta) {
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
	if answeredNotModified(w, r, &doc.Meta) {
		return nil
	}
	body, size, err := doc.Open()
	if err != nil && forgotten != s.docs.timesForgotten() {
		s.writeBusy(w) // another set may have the name by now
		return nil
	}
	if err != nil {
		return err
	}
	defer body.Close()
	if doc.Permanent && size <= maxCachedDoc {
		b := make([]byte, size)
		if _, err := io.ReadFull(body, b); err != nil {
			return err
		}
		s.docs.put(&cachedDoc{key, doc.Meta, header, b, forgotten})
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
		// It is immutable in this log only: a new data folder has other bytes at the
		// same URL. So caches must revalidate after a day.
		h.Set("Cache-Control", "public, max-age=86400")
	}
	if !m.LastModified.IsZero() {
		h.Set("Last-Modified", m.LastModified.UTC().Format(http.TimeFormat))
	}
	for _, hub := range m.Hubs { // WebSub 4
		h.Add("Link", "<"+hub+`>; rel="hub"`)
	}
	if m.Self != "" {
		h.Add("Link", "<"+m.Self+`>; rel="self"`)
	}
	if m.Gzip {
		h.Set("Content-Encoding", "gzip")
	} else {
		h.Set("Accept-Ranges", "bytes")
	}
	return h
}

// answeredNotModified answers 304 if the client has the document, which then need not
// be rendered, and reports whether it did.
func answeredNotModified(w http.ResponseWriter, r *http.Request, m *publish.Meta) bool {
	if notModified(r.Header, m.ETag, m.LastModified, true) {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	return false
}

// send answers with a document's bytes. It calls http.ServeContent only for requests
// that need it: that sends compressed bytes without a length and without sendfile, and
// reads the header for longer than a small document takes to send. Compressed bytes
// have no ranges.
func send(w http.ResponseWriter, r *http.Request, m *publish.Meta, body io.ReadSeeker, size int64) {
	if !m.Gzip && r.Header["Range"] != nil || r.Header["If-Match"] != nil {
		if m.Gzip {
			r.Header.Del("Range")
		}
		// Without a time it leaves If-Modified-Since alone, see publish.Meta.
		http.ServeContent(w, r, "", time.Time{}, body)
		return
	}
	w.Header()["Content-Length"] = []string{strconv.FormatInt(size, 10)}
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = io.CopyN(w, body, size) // responseWriter keeps the error
	}
}

// docCache keeps small permanent documents in memory. They never change at their URLs
// (I1), so nothing in it is ever stale. Without it, to find and open the file of a
// small document costs more than to send it.
type docCache struct {
	mu    sync.Mutex
	byKey map[docKey]*list.Element
	order *list.List // of *cachedDoc, last used first
	size  int

	forgotten int
}

// docKey identifies a document and its encoding.
type docKey struct {
	path string
	gzip bool
}

// cachedDoc is a document that never changes. Its fields must not be modified.
type cachedDoc struct {
	key    docKey
	meta   publish.Meta
	header http.Header
	body   []byte
	// forgotten is timesForgotten of before it was read.
	forgotten int
}

const (
	// maxCachedDoc bounds one document: above it, sendfile is the faster way.
	maxCachedDoc = 256 << 10
	// maxDocCache bounds all of them together.
	maxDocCache = 16 << 20
	// docCost is about how much memory one takes besides its body.
	docCost = 1 << 10
)

func (d *cachedDoc) size() int { return len(d.body) + docCost }

func newDocCache() *docCache { return &docCache{byKey: map[docKey]*list.Element{}, order: list.New()} }

// get returns a document, nil when it is not kept.
func (c *docCache) get(k docKey) *cachedDoc {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[k]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedDoc)
}

// put keeps a document of at most maxCachedDoc bytes, and removes the least recently
// used ones above maxDocCache. One that was read before others were forgotten may have to
// be forgotten too, so it is not kept.
func (c *docCache) put(d *cachedDoc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey[d.key] != nil || d.forgotten != c.forgotten {
		return
	}
	c.byKey[d.key] = c.order.PushFront(d)
	c.size += d.size()
	for c.size > maxDocCache {
		old := c.order.Remove(c.order.Back()).(*cachedDoc)
		delete(c.byKey, old.key)
		c.size -= old.size()
	}
}

// timesForgotten is how often forget was called.
func (c *docCache) timesForgotten() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgotten
}

// forget drops the documents below a path.
func (c *docCache) forget(prefix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten++
	for key, e := range c.byKey {
		if strings.HasPrefix(key.path, prefix) {
			c.size -= c.order.Remove(e).(*cachedDoc).size()
			delete(c.byKey, key)
		}
	}
}

// notModified evaluates If-None-Match and, without that, If-Modified-Since (RFC
// 9110 13.1.2, 13.1.3). etag is strong and quoted; modified may be zero. With
// exact an If-Modified-Since counts only when it is modified itself.
func notModified(h http.Header, etag string, modified time.Time, exact bool) bool {
	if tags, ok := h["If-None-Match"]; ok {
		return matches(strings.Join(tags, ","), etag)
	}
	since := h.Get("If-Modified-Since")
	if since == "" || modified.IsZero() {
		return false
	}
	t, err := http.ParseTime(since)
	if err != nil {
		return false
	}
	return t.Equal(modified) || !exact && t.After(modified)
}

// matches finds etag in a list of entity tags, by weak comparison (RFC 9110
// 8.8.3.2). The list ends where it is broken.
func matches(list, etag string) bool {
	for {
		list = strings.TrimLeft(list, " \t,")
		if strings.HasPrefix(list, "*") {
			return true
		}
		list = strings.TrimPrefix(list, "W/")
		if !strings.HasPrefix(list, `"`) {
			return false
		}
		end := strings.IndexByte(list[1:], '"')
		if end < 0 {
			return false
		}
		if list[:end+2] == etag {
			return true
		}
		list = list[end+2:]
	}
}

// acceptsGzip reports whether a client asks for gzip (RFC 9110 12.5.3): it names gzip
// with no less weight than identity, or refuses identity and accepts anything else. An
// asterisk alone does not count.
func acceptsGzip(h http.Header) bool {
	values, ok := h["Accept-Encoding"]
	if !ok {
		return false
	}
	gzip, identity, other := -1.0, -1.0, -1.0 // -1: not named
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			coding, params, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				gzip = max(gzip, weight(params))
			case "identity":
				identity = max(identity, weight(params))
			case "*":
				other = max(other, weight(params))
			}
		}
	}
	if gzip >= 0 {
		return gzip > 0 && gzip >= identity
	}
	return other > 0 && identity == 0
}

// weight reads the parameters of a coding: 1 without a q, 0 for a q that cannot
// be read.
func weight(params string) float64 {
	name, value, ok := strings.Cut(params, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 0
	}
	return q
}
