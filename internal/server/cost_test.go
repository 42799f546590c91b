package server

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// hostileHeaders are values of header fields of about n bytes that ask much of who
// reads them.
func hostileHeaders(n int) []string {
	var values []string
	for _, each := range []string{"0-1,", "1-0,", "-1,", "0-,", "1,", ",", " ", `"a",`, `W/"a",`, `W/`, `"`, "*,", "gzip;q=0.5,", "gzip;", "q=1;", "a/b,", "Mon, 01 Jan 2024 00:00:00 GMT,"} {
		values = append(values, strings.Repeat(each, n/len(each)), "bytes="+strings.Repeat(each, n/len(each)))
	}
	return values
}

// answerTo answers a request for a document of 4 KiB that has a value in each of
// the fields that are looked at.
func answerTo(value string) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Accept-Encoding", "Accept"} {
		r.Header[name] = []string{value}
	}
	acceptsGzip(r.Header)
	notModified(r.Header, `"etag"`, time.Now(), false)
	delete(r.Header, "If-Match") // else these decide
	delete(r.Header, "If-Range")
	delete(r.Header, "If-None-Match")
	delete(r.Header, "If-Unmodified-Since")
	body := bytes.Repeat([]byte("x"), 4<<10)
	w := httptest.NewRecorder()
	w.Header().Set("Etag", `"etag"`)
	send(w, r, &publish.Meta{ETag: `"etag"`}, bytes.NewReader(body), int64(len(body)))
}

// D77: whatever is in the header of a request, answering it costs time and memory
// in proportion to its length.
func TestCost(t *testing.T) {
	for _, value := range hostileHeaders(512 << 10) {
		t.Run(value[:min(20, len(value))], func(t *testing.T) {
			testenv.Affordable(t, len(value), func() { answerTo(value) })
		})
	}
}

// FuzzCost: the same of any value.
func FuzzCost(f *testing.F) {
	for _, value := range hostileHeaders(4 << 10) {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		testenv.Affordable(t, len(value), func() { answerTo(value) })
	})
}
