package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithPostgres(m)) }

// testServer is a real log, content store and Publisher behind a real server.
type testServer struct {
	t        testing.TB
	folder   string // of the log
	log      *eventlog.Log
	contents *content.Store
	pub      *publish.Publisher
	opt      server.Options // as served; set what differs with change
	server   *server.Server
	web      *httptest.Server
	base     string
	journal  *journal
	asked    atomic.Int64 // how often, for the time
	sources  map[string]event.SourceID
	cursors  map[string]int64
	stamp    int64
	ahead    atomic.Int64 // nanoseconds that the log's clock is ahead
	began    time.Time
	history  bool // of sets that are made from now on
}

// stored lets the content store be what the server asks for.
type stored struct{ *content.Store }

func (s stored) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	b, err := s.Store.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return b, b.Size(), nil
}

// now is a clock that is a minute later each time that it is looked at: all that a
// test logs is a while ago, and nothing is still as it was found out before.
func (h *testServer) now() time.Time {
	return time.Now().Add(time.Duration(h.asked.Add(1))*time.Minute + time.Duration(h.ahead.Load()))
}

// clock is that of the log.
func (h *testServer) clock() (wall time.Time, running time.Duration) {
	ahead := time.Duration(h.ahead.Load())
	return time.Now().Add(ahead), time.Since(h.began) + ahead
}

// newTestServer serves under path; change, if not nil, adapts the options.
func newTestServer(t testing.TB, path string, change func(*server.Options)) *testServer {
	t.Helper()
	ctx, dir := context.Background(), t.TempDir()
	h := &testServer{t: t, folder: filepath.Join(dir, "data"), journal: &journal{}, sources: map[string]event.SourceID{}, cursors: map[string]int64{}, began: time.Now()}
	var err error
	if h.log, err = eventlog.Open(ctx, h.folder, eventlog.Options{Clock: h.clock}); err != nil {
		t.Fatal(err)
	}
	if h.contents, err = content.Open(ctx, filepath.Join(h.folder, "content.db"), content.Options{}); err != nil {
		t.Fatal(err)
	}
	h.web = httptest.NewUnstartedServer(nil)
	h.base = "http://" + h.web.Listener.Addr().String() + path
	h.pub, err = publish.New(publish.Options{Log: h.log, BaseURL: h.base, CacheDir: filepath.Join(dir, "cache"), SnapshotDir: filepath.Join(dir, "snapshots"), CacheBytes: 1 << 30, Content: stored{h.contents}.Open})
	if err != nil {
		t.Fatal(err)
	}
	h.opt = server.Options{Documents: h.pub, Log: h.log, Contents: stored{h.contents}, BaseURL: h.base, Logger: slog.New(h.journal),
		Now: h.now}
	if change != nil {
		change(&h.opt)
	}
	h.server = server.New(h.opt)
	h.web.Config.Handler = h.server.Handler()
	h.web.Start()
	h.web.Client().Transport.(*http.Transport).DisableCompression = true // it would ask for gzip unasked
	t.Cleanup(func() {
		h.web.Close()
		if err := h.contents.Close(); err != nil {
			t.Error(err)
		}
		if err := h.log.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// set makes a set whose segments have five events.
func (h *testServer) set(name, title string, mode event.Content) *testServer {
	h.t.Helper()
	ctx := context.Background()
	if err := h.log.EnsureSet(ctx, eventlog.SetConfig{Name: name, Title: title, Content: mode, SegmentEvents: 5, History: h.history}); err != nil {
		h.t.Fatal(err)
	}
	id, err := h.log.EnsureSource(ctx, name, "atompmh", "https://origin.example/feed.atom", 0)
	if err != nil {
		h.t.Fatal(err)
	}
	h.sources[name] = id
	return h
}

// long makes a set with one closed segment of n events.
func (h *testServer) long(set string, n int) {
	h.t.Helper()
	ctx := context.Background()
	if err := h.log.EnsureSet(ctx, eventlog.SetConfig{Name: set, Content: event.Mirror, SegmentEvents: n}); err != nil {
		h.t.Fatal(err)
	}
	id, err := h.log.EnsureSource(ctx, set, "atompmh", "https://origin.example/feed.atom", 0)
	if err != nil {
		h.t.Fatal(err)
	}
	items := make([]*event.Item, n)
	for i := range items {
		body := fmt.Sprint("content ", i)
		items[i] = &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:example:", i), Title: fmt.Sprint("Record ", i), Modified: event.StampFromNanos(int64(1 + i)), Fetched: true,
			Representations: []event.Representation{{Href: fmt.Sprint("https://origin.example/data/", i), Type: "text/plain", Length: int64(len(body)), Hash: "sha-256:" + hexSum(body)}}}}
	}
	if _, err := h.log.Append(ctx, &event.Batch{Source: id, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}, Items: items}); err != nil {
		h.t.Fatal(err)
	}
}

// rep is one format of a record: its media type and its bytes.
type rep struct{ kind, body string }

// alive logs that a record is there with these formats.
func (h *testServer) alive(set, id string, reps ...rep) {
	h.t.Helper()
	drafts := make([]*content.Draft, len(reps))
	for i, r := range reps {
		drafts[i] = content.NewDraft([]byte(r.body))
	}
	if err := h.contents.Put(context.Background(), drafts...); err != nil {
		h.t.Fatal(err)
	}
	h.unstored(set, id, reps...)
}

// unstored is alive for contents that are not in the store.
func (h *testServer) unstored(set, id string, reps ...rep) {
	h.t.Helper()
	o := event.Observation{Record: id, Title: "Record " + id, Fetched: true}
	for i, r := range reps {
		o.Representations = append(o.Representations, event.Representation{
			Href: fmt.Sprintf("https://origin.example/data/%s/%d", id, i), Type: r.kind, Length: int64(len(r.body)), Hash: event.HashOf(sha256.Sum256([]byte(r.body)))})
	}
	h.observe(set, o)
}

func (h *testServer) dead(set, id string) {
	h.t.Helper()
	h.observe(set, event.Observation{Record: id, Deleted: true})
}

func (h *testServer) observe(set string, o event.Observation) {
	h.t.Helper()
	h.stamp++
	o.Modified = event.StampFromNanos(1_700_000_000_000_000_000 + h.stamp)
	o.Order = o.Modified
	out, err := h.log.Append(context.Background(), &event.Batch{Source: h.sources[set], Cursor: h.cursors[set], Start: true,
		Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}, Items: []*event.Item{{Observation: o}}})
	if err != nil {
		h.t.Fatal(err)
	}
	if out.Outcomes[0] != event.Logged {
		h.t.Fatalf("%s was not logged: outcome %d", o.Record, out.Outcomes[0])
	}
	h.cursors[set] = out.Cursor
}

// recordPath is where a record is, with the name of a representation or "".
func recordPath(set, id, name string) string {
	path := "/sets/" + set + "/records/" + event.Key(id)
	if name != "" {
		path += "." + name
	}
	return path
}

// reply is an answer read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

// get asks for a path below the base URL, with header fields in pairs, as they
// are: nothing is decompressed.
func (h *testServer) get(path string, header ...string) reply {
	h.t.Helper()
	return h.ask(http.MethodGet, h.base+path, header...)
}

func (h *testServer) ask(method, url string, header ...string) reply {
	h.t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	client := *h.web.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, url, err)
	}
	return reply{res.StatusCode, res.Header, string(body)}
}

// want fails the test unless the reply has this status.
func (r reply) want(t testing.TB, status int) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d; body %.300q", r.status, status, r.body)
	}
	return r
}

// field fails the test unless a header field has this value.
func (r reply) field(t testing.TB, name, value string) reply {
	t.Helper()
	if got := r.header.Get(name); got != value {
		t.Errorf("%s is %q, want %q", name, got, value)
	}
	return r
}

func unzip(t testing.TB, s string) string {
	t.Helper()
	zr, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// journal keeps what is logged, and tells who waits for a line.
type journal struct {
	mu    sync.Mutex
	lines []string
	wait  map[string]chan string
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, b.String())
	for text, c := range j.wait {
		if strings.Contains(b.String(), text) {
			c <- b.String()
			delete(j.wait, text)
		}
	}
	return nil
}

// expect returns a channel that gets the next line with a text in it.
func (j *journal) expect(text string) <-chan string {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := make(chan string, 1)
	if j.wait == nil {
		j.wait = map[string]chan string{}
	}
	j.wait[text] = c
	return c
}

// at returns the lines of a level.
func (j *journal) at(level slog.Level) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, l := range j.lines {
		if strings.HasPrefix(l, level.String()) {
			out = append(out, l)
		}
	}
	return out
}
