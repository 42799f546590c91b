package server

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/publish"
)

func TestDocCacheKeepsWhatIsUsed(t *testing.T) {
	m := newDocCache()
	key := func(i int) docKey { return docKey{fmt.Sprint(i), i%2 == 0} }
	const fit = maxDocCache / (maxCachedDoc + docCost)
	for i := range fit {
		m.put(&cachedDoc{key: key(i), body: make([]byte, maxCachedDoc)})
	}
	full := m.size
	if m.get(key(0)) == nil || full > maxDocCache || full < maxDocCache-maxCachedDoc-docCost {
		t.Fatalf("%d bytes are kept, want about %d", full, maxDocCache)
	}
	m.put(&cachedDoc{key: key(0), body: []byte("two requests at once")})
	if len(m.get(key(0)).body) != maxCachedDoc || m.size != full {
		t.Error("what was kept changed")
	}
	if m.get(docKey{key(0).path, false}) != nil {
		t.Error("a compressed document for one who did not ask for it")
	}
	m.put(&cachedDoc{key: key(fit), body: make([]byte, maxCachedDoc)})
	if m.get(key(1)) != nil {
		t.Error("what was not used for the longest time is kept")
	}
	if m.get(key(0)) == nil || m.get(key(fit)) == nil || m.size != full || len(m.byKey) != fit || m.order.Len() != fit {
		t.Errorf("%d bytes in %d documents", m.size, len(m.byKey))
	}
}

// Of thousands of small documents most of the memory is not that of their bodies.
func TestDocCacheOfSmall(t *testing.T) { // not parallel: it measures memory
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, m := memory(), newDocCache()
	for i := range 60_000 {
		meta := publish.Meta{ContentType: "application/xml", ETag: fmt.Sprintf(`"%032d"`, i)}
		m.put(&cachedDoc{key: docKey{path: fmt.Sprintf("/sets/set-%05d/changelist/1.xml", i)}, meta: meta, header: headerOf(&meta), body: make([]byte, 320)})
	}
	if after := memory(); after > before+maxDocCache*3/2 {
		t.Errorf("%d documents take %d bytes; want about %d", m.order.Len(), after-before, maxDocCache)
	}
	runtime.KeepAlive(m)
}

func TestDocCacheForgets(t *testing.T) {
	m := newDocCache()
	d := &cachedDoc{key: docKey{path: "/sets/maps/changelist/1.xml"}, body: []byte("of the set that had the name"), forgotten: m.timesForgotten()}
	m.put(d)
	m.forget("/sets/maps/")
	m.put(d) // by a request that has read it before
	if m.get(d.key) != nil || m.size != 0 {
		t.Error("a document of a forgotten set is kept")
	}
	m.put(&cachedDoc{key: d.key, forgotten: m.timesForgotten()})
	if m.get(d.key) == nil {
		t.Error("what was read afterwards is not kept")
	}
}

func TestAcceptsGzip(t *testing.T) {
	for value, want := range map[string]bool{
		"":                          false,
		"gzip":                      true,
		"GZip":                      true,
		"x-gzip":                    true,
		"deflate, gzip;q=1.0, br":   true,
		"gzip;q=0.001":              true,
		"gzip;q=0":                  false,
		"gzip; q=0.0":               false,
		"gzip ; Q = 0.5":            true,
		"gzip;q=nonsense":           false,
		"gzip;q=NaN":                false,
		"gzip;q=-1":                 false,
		"gzip;q=2":                  false,
		"gzip;level=9":              true,
		"identity":                  false,
		"identity;q=1, gzip;q=0.5":  false,
		"identity;q=0.5, gzip;q=1":  true,
		"identity, gzip":            true,
		"*":                         false,
		"*;q=0":                     false,
		"*;q=0, gzip":               true,
		"*, identity;q=0":           true,
		"*, identity;q=0, gzip;q=0": false,
		"gzipped":                   false,
		"br;q=1.0, deflate":         false,
		",,gzip,":                   true,
	} {
		if got := acceptsGzip(http.Header{"Accept-Encoding": {value}}); got != want {
			t.Errorf("Accept-Encoding %q: gzip %v, want %v", value, got, want)
		}
	}
	if acceptsGzip(http.Header{}) {
		t.Error("gzip for a client that did not ask")
	}
	if !acceptsGzip(http.Header{"Accept-Encoding": {"br", "gzip"}}) {
		t.Error("the second line does not count")
	}
}

func TestNotModified(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		exact, want bool
	}{
		{"If-None-Match", `"a"`, false, true},
		{"If-None-Match", `W/"a"`, false, true},
		{"If-None-Match", `"b" , "a"`, false, true},
		{"If-None-Match", `"b,\"", "a"`, false, false}, // a tag has no quotes in it: broken
		{"If-None-Match", `"b, "a"`, false, false},
		{"If-None-Match", `a`, false, false},
		{"If-None-Match", `"a`, false, false},
		{"If-None-Match", `"A"`, false, false},
		{"If-None-Match", `*`, false, true},
		{"If-None-Match", ``, false, false},
		{"If-Modified-Since", "Fri, 02 Jan 2026 03:04:05 GMT", true, true},
		{"If-Modified-Since", "Fri, 02 Jan 2026 03:04:06 GMT", true, false},
		{"If-Modified-Since", "Fri, 02 Jan 2026 03:04:06 GMT", false, true},
		{"If-Modified-Since", "Fri, 02 Jan 2026 03:04:04 GMT", false, false},
		{"If-Modified-Since", "2026-01-02T03:04:05Z", false, false},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		if got := notModified(h, `"a"`, at, c.exact); got != c.want {
			t.Errorf("%s: %s, exact %v: %v, want %v", c.name, c.value, c.exact, got, c.want)
		}
	}
	since := http.Header{"If-Modified-Since": {at.Format(http.TimeFormat)}}
	if notModified(since, `"a"`, time.Time{}, false) {
		t.Error("304 for a document without a time")
	}
	since.Set("If-None-Match", `"b"`)
	if notModified(since, `"a"`, at, false) {
		t.Error("If-Modified-Since won over If-None-Match")
	}
}
