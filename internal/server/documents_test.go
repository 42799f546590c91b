package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
)

// fill makes a set of eleven records in two formats: two closed segments and an
// open one.
func (h *testServer) fill(set string) *testServer {
	h.t.Helper()
	for i := range 11 {
		id := fmt.Sprintf("urn:example:%s:%d", set, i)
		h.alive(set, id, rep{"text/xml", "<record>" + id + "</record>"}, rep{"text/html; charset=utf-8", "<p>" + id})
	}
	return h
}

func (h *testServer) paths(set string) []publish.Item {
	h.t.Helper()
	items, err := h.pub.Plan(context.Background(), set)
	if err != nil {
		h.t.Fatal(err)
	}
	return items
}

func TestDocumentsAnswer(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror).set("away", "Away", event.Reference)
	h.fill("main").fill("away")
	items := append(h.paths("main"), h.paths("away")...)
	items = append(items, publish.Item{Path: "/robots.txt"}, publish.Item{Path: "/.well-known/resourcesync"})
	closed := 0
	for _, it := range items {
		t.Run(it.Path, func(t *testing.T) {
			plain := h.get(it.Path).want(t, 200)
			switch {
			case it.Path == "/robots.txt":
				plain.field(t, "Content-Type", "text/plain; charset=utf-8")
			case strings.HasSuffix(it.Path, ".atom"):
				plain.field(t, "Content-Type", "application/atom+xml")
			default:
				plain.field(t, "Content-Type", "application/xml")
			}
			plain.field(t, "X-Content-Type-Options", "nosniff").field(t, "Vary", "Accept-Encoding").field(t, "Accept-Ranges", "bytes").
				field(t, "Content-Encoding", "").field(t, "Content-Length", strconv.Itoa(len(plain.body)))
			if it.Closed {
				closed++
				end := it.Until
				if it.Kind == publish.Archive { // it got its last form when the next one closed
					end = it.Next
				}
				plain.field(t, "Cache-Control", "public, max-age=86400").
					field(t, "Last-Modified", end.Time().Format(http.TimeFormat))
			} else {
				plain.field(t, "Cache-Control", "no-cache").field(t, "Last-Modified", "")
			}
			checkConditions(t, h, it.Path, plain)
			checkGzip(t, h, it.Path, plain)
		})
	}
	if closed != 6 {
		t.Errorf("%d closed documents were checked, want 6", closed)
	}
	if lines := h.journal.at(slog.LevelError); len(lines) > 0 {
		t.Error(lines)
	}
}

func checkConditions(t *testing.T, h *testServer, path string, plain reply) {
	t.Helper()
	tag := plain.header.Get("ETag")
	if !regexp.MustCompile(`^"[^"]+"$`).MatchString(tag) {
		t.Fatalf("ETag %s is not strong", tag)
	}
	for _, match := range []string{tag, "W/" + tag, `"x", W/"y,z" , ` + tag, "*"} {
		got := h.get(path, "If-None-Match", match).want(t, 304).field(t, "ETag", tag).field(t, "Vary", "Accept-Encoding").
			field(t, "Cache-Control", plain.header.Get("Cache-Control")).field(t, "Last-Modified", plain.header.Get("Last-Modified"))
		if got.body != "" {
			t.Error("a 304 has a body")
		}
	}
	h.ask(http.MethodHead, h.base+path, "If-None-Match", tag).want(t, 304)
	h.get(path, "If-None-Match", `"other"`).want(t, 200)
	// If-None-Match goes before If-Modified-Since.
	h.get(path, "If-None-Match", `"other"`, "If-Modified-Since", plain.header.Get("Last-Modified")).want(t, 200)
	head := h.ask(http.MethodHead, h.base+path).want(t, 200)
	for _, name := range []string{"Content-Type", "ETag", "Last-Modified", "Cache-Control", "Vary", "Accept-Ranges"} {
		head.field(t, name, plain.header.Get(name))
	}
	part := h.get(path, "Range", "bytes=5-9").want(t, 206).field(t, "Content-Range", fmt.Sprintf("bytes 5-9/%d", len(plain.body)))
	if part.body != plain.body[5:10] {
		t.Errorf("bytes 5-9 are %q", part.body)
	}
	h.get(path, "Range", "bytes=5-9", "If-Range", `"other"`).want(t, 200)
	h.get(path, "Range", "bytes=999999-").want(t, 416)
	for _, encoding := range []string{"identity", "gzip"} {
		own := h.get(path, "Accept-Encoding", encoding).header.Get("ETag")
		h.get(path, "Accept-Encoding", encoding, "If-Match", `"other", `+own).want(t, 200).field(t, "ETag", own)
		h.get(path, "Accept-Encoding", encoding, "If-Match", `"other"`).want(t, 412)
	}
}

func checkGzip(t *testing.T, h *testServer, path string, plain reply) {
	t.Helper()
	small := h.get(path, "Accept-Encoding", "br, gzip;q=0.8").want(t, 200).field(t, "Content-Encoding", "gzip").
		field(t, "Vary", "Accept-Encoding").field(t, "Content-Type", plain.header.Get("Content-Type"))
	small.field(t, "Content-Length", strconv.Itoa(len(small.body)))
	if unzip(t, small.body) != plain.body {
		t.Error("gzip holds other bytes")
	}
	tag := small.header.Get("ETag")
	if tag == plain.header.Get("ETag") {
		t.Error("gzip has the same ETag")
	}
	h.get(path, "Accept-Encoding", "gzip", "If-None-Match", tag).want(t, 304)
	h.get(path, "Accept-Encoding", "gzip", "If-None-Match", plain.header.Get("ETag")).want(t, 200)
	h.get(path, "Accept-Encoding", "gzip;q=0").want(t, 200).field(t, "Content-Encoding", "")
	h.ask(http.MethodHead, h.base+path, "Accept-Encoding", "gzip").want(t, 200).field(t, "Content-Encoding", "gzip").field(t, "ETag", tag)
}

// An If-Modified-Since with any other time than Last-Modified must not give 304:
// the same URL has answered without one while it was open.
func TestClosedDocumentKnowsOneTime(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	path := "/sets/main/changelist/1.xml"
	stamp := h.get(path).want(t, 200).header.Get("Last-Modified")
	at, err := http.ParseTime(stamp)
	if err != nil {
		t.Fatal(err)
	}
	h.get(path, "If-Modified-Since", stamp).want(t, 304)
	for _, d := range []time.Duration{-time.Second, time.Second, 24 * time.Hour} {
		h.get(path, "If-Modified-Since", at.Add(d).Format(http.TimeFormat)).want(t, 200)
	}
	h.get(path, "If-Modified-Since", "yesterday").want(t, 200)
	// An open document knows none.
	h.get("/sets/main/changelist/3.xml", "If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)).want(t, 200)
}

func TestOpenDocumentGrows(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	const end = "</urlset>"
	paths := []string{"/sets/main/changelist/1.xml", "/sets/main/changelist.xml"}
	old := map[string]reply{}
	for _, p := range paths {
		old[p] = h.get(p).want(t, 200)
	}
	for i := range 5 {
		h.alive("main", fmt.Sprint("urn:example:", i), rep{"text/plain", fmt.Sprint("content ", i)})
		for _, p := range paths {
			now := h.get(p, "If-None-Match", old[p].header.Get("ETag"), "If-Modified-Since", time.Now().UTC().Format(http.TimeFormat)).want(t, 200)
			closing := i == 4 && p == paths[0]
			before := strings.TrimSuffix(strings.TrimSpace(old[p].body), end)
			if !closing && i > 0 && !strings.HasPrefix(now.body, before) {
				t.Errorf("%s did not grow at its end alone", p)
			}
			if n := strings.Count(now.body, "<url>"); n != i+1 {
				t.Errorf("%s has %d entries after %d events", p, n, i+1)
			}
			if closing != (now.header.Get("Last-Modified") != "") || closing != (now.header.Get("Cache-Control") == "public, max-age=86400") {
				t.Errorf("%s: Last-Modified %q, Cache-Control %q", p, now.header.Get("Last-Modified"), now.header.Get("Cache-Control"))
			}
			old[p] = now
		}
	}
	// Later events leave the closed one alone.
	h.alive("main", "urn:example:later", rep{"text/plain", "later"})
	h.get(paths[0], "If-None-Match", old[paths[0]].header.Get("ETag")).want(t, 304)
}

// unready stands for a Publisher whose snapshots are being made.
type unready struct {
	server.Documents
	err error
}

func (u unready) Document(ctx context.Context, path string, gzip bool) (*publish.Document, error) {
	if strings.HasSuffix(path, "/resourcelist.xml") {
		return nil, u.err
	}
	return u.Documents.Document(ctx, path, gzip)
}

func TestDocumentThatIsStillMade(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) {
		o.Documents = unready{o.Documents, &publish.NotReadyError{Path: "/sets/main/resourcelist.xml", RetryAfter: 1500 * time.Millisecond}}
	}).set("main", "Main", event.Mirror)
	h.get("/sets/main/resourcelist.xml").want(t, 503).field(t, "Retry-After", "2").field(t, "ETag", "")
	h.get("/sets/main/changelist.xml").want(t, 200)
}

// A set that has too many records for a document says which one to use.
func TestDocumentThatIsTooLong(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) {
		o.Documents = unready{o.Documents, &publish.TooManyError{Path: "/sets/main/complete.atom", Records: 9, Limit: 8, Instead: "http://h.example/feed.atom"}}
	})
	r := h.get("/sets/main/resourcelist.xml").want(t, 404).field(t, "Content-Type", "text/plain; charset=utf-8").field(t, "ETag", "")
	if !strings.Contains(r.body, "http://h.example/feed.atom") {
		t.Errorf("answered %q", r.body)
	}
}

func TestFaultOfTheLog(t *testing.T) {
	h := newTestServer(t, "", func(o *server.Options) { o.Documents = unready{o.Documents, fmt.Errorf("the disk is gone")} })
	r := h.get("/sets/main/resourcelist.xml").want(t, 500)
	if strings.Contains(r.body, "disk") {
		t.Errorf("the fault is told to clients: %q", r.body)
	}
	lines := h.journal.at(slog.LevelError)
	if len(lines) != 1 || !strings.Contains(lines[0], "the disk is gone") || !strings.Contains(lines[0], "/sets/main/resourcelist.xml") {
		t.Errorf("log: %q", lines)
	}
}

// hanging waits until nobody waits for it.
type hanging struct {
	server.Documents
	asked chan struct{}
}

func (d hanging) Document(ctx context.Context, _ string, _ bool) (*publish.Document, error) {
	close(d.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestClientThatLeavesIsNoFault(t *testing.T) {
	asked := make(chan struct{})
	h := newTestServer(t, "", func(o *server.Options) { o.Documents = hanging{o.Documents, asked} })
	done := h.journal.expect("DEBUG request")
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.base+"/robots.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := h.web.Client().Do(req); err == nil {
		res.Body.Close()
		t.Fatal("the request was answered")
	}
	<-done
	if lines := h.journal.at(slog.LevelError); len(lines) > 0 {
		t.Error(lines)
	}
}

// A set that gets the name of another is served as what it is once the name is forgotten, and so
// are its documents that never change.
func TestForget(t *testing.T) {
	h := newTestServer(t, "", nil).set("maps", "Maps", event.Mirror).set("plans", "Plans", event.Redirect)
	h.fill("maps").fill("plans")
	const closed = "/sets/maps/changelist/1.xml"
	before := h.get(closed).want(t, 200).field(t, "Cache-Control", "public, max-age=86400")
	h.get(recordPath("maps", "urn:example:maps:0", "")).want(t, 200)
	kept := h.get("/sets/plans/changelist/1.xml").want(t, 200)
	if err := errors.Join(h.log.RenameSet(t.Context(), "maps", "charts", false), h.log.RenameSet(t.Context(), "plans", "maps", true)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"maps", "plans", "charts"} {
		h.pub.Forget(name)
		h.server.Forget(name)
	}
	if after := h.get(closed).want(t, 200); after.body == before.body || after.body != strings.ReplaceAll(kept.body, "/sets/plans/", "/sets/maps/") {
		t.Errorf("the closed Change List of the new set is\n%s", after.body)
	}
	h.get(recordPath("maps", "urn:example:plans:0", "")).want(t, 307)
	h.get(recordPath("maps", "urn:example:maps:0", "")).want(t, 404)
	h.get("/sets/plans/changelist/1.xml").want(t, 404)
}

// A request that meets the moment in which its set gets another name is to be sent again, and no
// reason to take the log for damaged.
func TestForgetWhileRead(t *testing.T) {
	const closed = "/sets/maps/changelist/1.xml"
	var read func() // while a document is read
	h := newTestServer(t, "", func(o *server.Options) { o.Documents = during{o.Documents, &read} }).set("maps", "Maps", event.Mirror).set("plans", "Plans", event.Mirror)
	h.fill("maps").fill("plans")
	kept := h.get("/sets/plans/changelist/1.xml").want(t, 200)
	read = func() {
		read = nil
		if err := errors.Join(h.log.RenameSet(t.Context(), "maps", "charts", false), h.log.RenameSet(t.Context(), "plans", "maps", true)); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"maps", "plans", "charts"} {
			h.pub.Forget(name)
			h.server.Forget(name)
		}
	}
	h.get(closed).want(t, 503)
	if lines := h.journal.at(slog.LevelError); len(lines) > 0 {
		t.Error(lines)
	}
	if after := h.get(closed).want(t, 200); after.body != strings.ReplaceAll(kept.body, "/sets/plans/", "/sets/maps/") {
		t.Errorf("the closed Change List of the new set is\n%s", after.body)
	}
}

// during is documents whose reading is followed by a call.
type during struct {
	server.Documents
	read *func()
}

func (d during) Document(ctx context.Context, path string, gzip bool) (*publish.Document, error) {
	doc, err := d.Documents.Document(ctx, path, gzip)
	if *d.read != nil {
		(*d.read)()
	}
	return doc, err
}

// D18: the Source Description of one set answers who types its URL, and nothing
// leads there: no document, no page, no record and no header of them.
func TestNothingLeadsToTheDescriptionOfOneSet(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	const description = "/sets/main/.well-known/resourcesync"
	own := h.get(description).want(t, 200)
	if !strings.Contains(own.body, "/sets/main/capabilitylist.xml") {
		t.Errorf("it does not name the Capability List: %s", own.body)
	}
	paths := []string{"/", "/sets/main/", "/robots.txt", "/.well-known/resourcesync", "/sets/main/recent.atom", "/sets/main/recent.rss", "/sets/main/recent.json"}
	for _, it := range h.paths("main") {
		if it.Path != description {
			paths = append(paths, it.Path)
		}
	}
	list := h.get("/sets/main/resourcelist.xml").want(t, 200).body
	for _, m := range regexp.MustCompile(`<loc>`+regexp.QuoteMeta(h.base)+`(/[^<]+)</loc>`).FindAllStringSubmatch(list, 5) {
		paths = append(paths, m[1])
	}
	if len(paths) < 20 {
		t.Fatalf("only %d documents, pages and records: %q", len(paths), paths)
	}
	for _, path := range paths {
		r := h.get(path).want(t, 200)
		if strings.Contains(r.body, description) || strings.Contains(fmt.Sprint(r.header), description) {
			t.Errorf("%s leads to it", path)
		}
	}
}
