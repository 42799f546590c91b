package server_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
)

// kernel is a response writer that takes files, as a TCP connection does.
type kernel struct {
	*httptest.ResponseRecorder
	pieces []int64
}

func (k *kernel) ReadFrom(src io.Reader) (int64, error) {
	lr, ok := src.(*io.LimitedReader)
	if !ok {
		return 0, errors.New("no LimitedReader: sendfile would not know how much to send")
	}
	if _, ok := lr.R.(*os.File); !ok {
		return 0, errors.New("no file: sendfile is lost")
	}
	k.pieces = append(k.pieces, lr.N)
	return io.Copy(k.ResponseRecorder, src)
}

func TestLargeDocuments(t *testing.T) {
	h := newHouse(t, "", nil)
	h.long("long", 5000)
	const path = "/sets/long/changelist/1.xml"
	handler := server.New(h.opt).Handler()
	plain := h.get(path).want(t, 200)
	small := h.get(path, "Accept-Encoding", "gzip").want(t, 200)
	if len(plain.body) < 1<<20 || len(small.body) <= 256<<10 || unzip(t, small.body) != plain.body {
		t.Fatalf("%d and %d bytes", len(plain.body), len(small.body))
	}
	if part := h.get(path, "Range", "bytes=300000-899999").want(t, 206); part.body != plain.body[300_000:900_000] {
		t.Error("a range has other bytes")
	}
	for _, c := range []struct {
		coding, ranges string
		want           string
		status         int
	}{{"", "", plain.body, 200}, {"gzip", "", small.body, 200}, {"", "bytes=300000-899999", plain.body[300_000:900_000], 206}} {
		k := &kernel{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if c.coding != "" {
			r.Header.Set("Accept-Encoding", c.coding)
		}
		if c.ranges != "" {
			r.Header.Set("Range", c.ranges)
		}
		handler.ServeHTTP(k, r)
		got := reply{k.Code, k.Header(), k.Body.String()}
		got.want(t, c.status).field(t, "Content-Length", strconv.Itoa(len(c.want)))
		if got.body != c.want {
			t.Errorf("status %d: %d bytes, want %d", c.status, len(got.body), len(c.want))
		}
		if len(k.pieces) < len(c.want)>>18 {
			t.Errorf("sendfile got %d pieces of %d bytes", len(k.pieces), len(c.want))
		}
	}
}

// faulty is a log whose events cannot be read.
type faulty struct{ *eventlog.Log }

func (faulty) Events(context.Context, string, event.Range) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) { yield(nil, errors.New("disk I/O error")) }
}

// What is known of a document before it is rendered must not stick to the fault
// that rendering ends in.
func TestDocumentThatCannotBeRendered(t *testing.T) {
	h := newHouse(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	pub, err := publish.New(publish.Options{Log: faulty{h.log}, BaseURL: h.base, CacheDir: t.TempDir(), SnapshotDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h.opt.Documents = pub
	handler := server.New(h.opt).Handler()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/sets/main/changelist/1.xml", nil))
	r := reply{w.Code, w.Header(), w.Body.String()}
	r.want(t, 500).field(t, "ETag", "").field(t, "Last-Modified", "").field(t, "Accept-Ranges", "").field(t, "Cache-Control", "no-cache").
		field(t, "Content-Type", "text/plain; charset=utf-8")
	if lines := h.journal.at(slog.LevelError); len(lines) != 1 || !strings.Contains(lines[0], "disk I/O error") {
		t.Errorf("log: %q", lines)
	}
}
