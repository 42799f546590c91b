package server_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A package is a file that can be fetched in pieces: its ETag is strong and stays, and
// nobody compresses it again.
func TestDumpIsResumed(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror).fill("main")
	ctx := context.Background()
	if err := h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 5, Dumps: true}); err != nil {
		t.Fatal(err)
	}
	if err := h.pub.Dump(ctx, "main"); err != nil {
		t.Fatal(err)
	}
	set, err := h.log.Set(ctx, "main")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/sets/main/resourcedump/%d/1.zip", set.Last)
	whole := h.get(path, "Accept-Encoding", "gzip").want(t, 200)
	etag := whole.header.Get("ETag")
	whole.field(t, "Content-Type", "application/zip").field(t, "Content-Encoding", "").field(t, "Accept-Ranges", "bytes").
		field(t, "Content-Length", strconv.Itoa(len(whole.body))).field(t, "Cache-Control", "public, max-age=86400")
	z, err := zip.NewReader(strings.NewReader(whole.body), int64(len(whole.body)))
	if err != nil || len(z.File) != 23 {
		t.Fatalf("%d files: %v", len(z.File), err)
	}
	if strings.HasPrefix(etag, "W/") || !strings.Contains(h.get("/sets/main/resourcedump.xml").want(t, 200).body, strings.Trim(etag, `"`)) {
		t.Errorf("the ETag %s is not that of the document", etag)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, h.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.web.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.ContentLength != int64(len(whole.body)) || resp.Header.Get("ETag") != etag {
		t.Errorf("HEAD: %s %v", resp.Status, resp.Header)
	}
	var got bytes.Buffer
	for got.Len() < len(whole.body) {
		end := min(got.Len()+1000, len(whole.body)) - 1
		piece := h.get(path, "Range", fmt.Sprintf("bytes=%d-%d", got.Len(), end), "If-Range", etag).want(t, 206)
		piece.field(t, "Content-Range", fmt.Sprintf("bytes %d-%d/%d", got.Len(), end, len(whole.body))).field(t, "ETag", etag)
		got.WriteString(piece.body)
	}
	if got.String() != whole.body {
		t.Error("the pieces together are not the package")
	}
	h.get(path, "Range", "bytes=5-", "If-Range", `"other"`).want(t, 200)
	h.get(path, "If-None-Match", etag).want(t, 304)
}
