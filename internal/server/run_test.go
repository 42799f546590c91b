package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// oneRecord is a set with one record of some bytes.
type oneRecord struct {
	server.Documents
	server.Log
	body    string
	service server.SIPService // of every set
}

func (oneRecord) LinkHeader(string) string                  { return "<x>" }
func (oneRecord) Sets(context.Context) ([]event.Set, error) { return nil, nil }
func (oneRecord) Segments(context.Context, string) (set event.Set, segments []event.Segment, err error) {
	return set, nil, nil
}
func (oneRecord) Set(_ context.Context, name string) (event.Set, error) {
	return event.Set{Name: name, Content: event.Mirror}, nil
}
func (o oneRecord) Record(context.Context, string, string) (*event.Event, error) {
	return &event.Event{Kind: event.Created, Representations: []event.Representation{
		{Type: "text/plain", Length: int64(len(o.body)), Hash: "sha-256:" + hexSum(o.body)}}}, nil
}
func (o oneRecord) Events(context.Context, string, event.Range) iter.Seq2[*event.Event, error] {
	return func(func(*event.Event, error) bool) {}
}
func (o oneRecord) Open(context.Context, [32]byte) (io.ReadSeekCloser, int64, error) {
	return struct {
		io.ReadSeeker
		io.Closer
	}{strings.NewReader(o.body), io.NopCloser(nil)}, int64(len(o.body)), nil
}

// running is a server that runs on pipes.
type running struct {
	pipes   *testenv.Pipes
	journal *journal
	stop    context.CancelFunc
	ended   chan error
}

func run(size int) *running { return runWith(oneRecord{body: strings.Repeat("x", size)}) }

func runWith(o oneRecord) *running {
	return runOptions(server.Options{Documents: o, Log: o, Contents: o, SIPService: func(string) server.SIPService { return o.service }})
}

func runOptions(o server.Options) *running {
	r := &running{pipes: testenv.NewPipes(), journal: &journal{}, ended: make(chan error, 1)}
	o.BaseURL, o.Logger = "http://x", slog.New(r.journal)
	s := server.New(o)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() { r.ended <- s.Run(ctx, r.pipes) }()
	return r
}

func (r *running) dial() net.Conn {
	c, err := r.pipes.Dial(context.Background(), "", "")
	if err != nil {
		panic(err)
	}
	return c
}

// begin asks for the record and returns its answer, with the body unread.
func (r *running) begin(t *testing.T) (net.Conn, *http.Response) {
	t.Helper()
	c := r.dial()
	io.WriteString(c, "GET "+recordPath("main", "urn:example:1", "")+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, res
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c, began := r.dial(), time.Now()
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHo")
		b, err := io.ReadAll(c)
		if took := time.Since(began); took != 10*time.Second || err != nil {
			t.Errorf("cut after %v, answer %q, %v", took, b, err)
		}
		r.end(t)
	})
}

func TestBodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c, began := r.dial(), time.Now()
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
		b, err := io.ReadAll(c)
		if took := time.Since(began); took != 10*time.Second || err != nil || !strings.Contains(string(b), " 405 ") {
			t.Errorf("cut after %v, answer %q, %v", took, b, err)
		}
		r.end(t)
	})
}

func TestLargeHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c := r.dial()
		go io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 80<<10)+"\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 431 {
			t.Errorf("%v, %v", res, err)
		}
		c.Close()
		r.end(t)
	})
}

func TestIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c, res := r.begin(t)
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF || time.Since(began) != 2*time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		r.end(t)
	})
}

// A client that reads slowly gets everything, however long that takes.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2 << 20
		r := run(size)
		c, res := r.begin(t)
		var n int64
		for {
			m, err := io.CopyN(io.Discard, res.Body, 64<<10)
			n += m
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			time.Sleep(20 * time.Second)
		}
		if n != size {
			t.Errorf("%d bytes, want %d", n, size)
		}
		c.Close()
		r.end(t)
	})
}

// One that reads no more is cut, and its request ends.
func TestReaderThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(2 << 20)
		told := r.journal.expect("an answer was cut short")
		_, res := r.begin(t)
		began := time.Now()
		if line := <-told; !strings.HasPrefix(line, "DEBUG") || time.Since(began) != 30*time.Second {
			t.Errorf("after %v: %s", time.Since(began), line)
		}
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Error("the answer looks whole")
		}
		r.end(t)
	})
}

func TestEndWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		r := run(size)
		_, res := r.begin(t)
		began := time.Now()
		r.stop()
		time.Sleep(7 * time.Second)
		if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if err := <-r.ended; err != nil || time.Since(began) > 8*time.Second {
			t.Errorf("ended after %v: %v", time.Since(began), err)
		}
		if len(r.journal.at(slog.LevelWarn)) > 0 {
			t.Error(r.journal.lines)
		}
	})
}

func TestEndWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1 << 20)
		_, res := r.begin(t)
		began := time.Now()
		r.stop()
		if err := <-r.ended; err != nil || time.Since(began) != 8*time.Second {
			t.Errorf("ended after %v: %v", time.Since(began), err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Error("the answer looks whole")
		}
		if lines := r.journal.at(slog.LevelWarn); len(lines) != 1 || !strings.Contains(lines[0], "still running=0") {
			t.Errorf("log: %q", lines)
		}
	})
}

// A client that has connected and sends nothing does not add to that time.
func TestEndWaitsNoLongerForSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1 << 20)
		silent := r.dial()
		defer silent.Close()
		c, _ := r.begin(t)
		defer c.Close()
		began := time.Now()
		r.stop()
		if err := <-r.ended; err != nil || time.Since(began) != 8*time.Second {
			t.Errorf("ended after %v: %v", time.Since(began), err)
		}
	})
}

// A call of a service that takes longer is told so while it can still be answered.
func TestEndLetsSIPAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		r := runWith(oneRecord{service: server.SIPService(func(w http.ResponseWriter, r *http.Request, _ string) {
			close(asked)
			<-r.Context().Done()
			http.Error(w, "in doubt: "+context.Cause(r.Context()).Error(), http.StatusInternalServerError)
		})})
		c := r.dial()
		io.WriteString(c, "POST /sip/main HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
		<-asked
		began := time.Now()
		r.stop()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if took := time.Since(began); took != 7*time.Second || err != nil || res.StatusCode != 500 || string(body) != "in doubt: http: Server closed\n" {
			t.Errorf("after %v: %d %q, %v", took, res.StatusCode, body, err)
		}
		if err := <-r.ended; err != nil || time.Since(began) >= 8*time.Second {
			t.Errorf("ended after %v: %v", time.Since(began), err)
		}
	})
}

// A client that has begun its next request already is not seen to go; its
// request ends all the same.
func TestEndReachesEveryRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		r := runWith(oneRecord{Documents: hanging{nil, asked}})
		c := r.dial()
		io.WriteString(c, "GET /robots.txt HTTP/1.1\r\nHost: localhost\r\n\r\n")
		<-asked
		io.WriteString(c, "G")
		r.end(t)
		if lines := r.journal.at(slog.LevelWarn); len(lines) != 1 || !strings.Contains(lines[0], "still running=0") {
			t.Errorf("log: %q", lines)
		}
	})
}

// slow takes longer to find a document than a client may to read.
type slow struct{ server.Documents }

func (slow) Document(context.Context, string, bool) (*publish.Document, error) {
	time.Sleep(time.Minute)
	return &publish.Document{Meta: publish.Meta{ETag: `"x"`}}, nil
}

// The client's time begins with the answer.
func TestSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runWith(oneRecord{Documents: slow{}})
		c := r.dial()
		io.WriteString(c, "HEAD /robots.txt HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"x\"\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodHead})
		if err != nil || res.StatusCode != 304 {
			t.Fatalf("%v, %v", res, err)
		}
		c.Close()
		r.end(t)
	})
}

// Nor does net/http's own word to a client that sends nonsense wait for ever.
func TestNonsenseThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c := r.dial()
		io.WriteString(c, "nonsense\r\n\r\n")
		time.Sleep(31 * time.Second)
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		r.end(t)
	})
}

// broken is a listener that fails.
type broken struct{ *testenv.Pipes }

func (broken) Accept() (net.Conn, error) { return nil, errors.New("too many open files") }

func TestRunTellsWhyItFailed(t *testing.T) {
	o := oneRecord{}
	s := server.New(server.Options{Documents: o, Log: o, Contents: o, BaseURL: "http://x"})
	if err := s.Run(context.Background(), broken{testenv.NewPipes()}); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("error %v", err)
	}
}

// Under load on real sockets: what was answered was answered whole.
func TestEndUnderLoad(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	h.fill("main")
	h.alive("main", "urn:example:big", rep{"text/plain", strings.Repeat("0123456789", 50_000)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.New(h.opt).Run(ctx, l) }()
	paths := []string{"/sets/main/changelist/1.xml", "/sets/main/changelist.xml", recordPath("main", "urn:example:big", ""), "/", "/sets/main/"}
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	client := &http.Client{Transport: tr}
	var done atomic.Int64
	warm := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 32 {
		clients.Go(func() {
			for {
				res, err := client.Get("http://" + l.Addr().String() + paths[i%len(paths)])
				if err != nil {
					return // it takes no more
				}
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 {
					t.Errorf("%s: status %d, %v", paths[i%len(paths)], res.StatusCode, err)
				}
				if done.Add(1) == 500 {
					close(warm)
				}
			}
		})
	}
	<-warm
	stop()
	if err := <-ended; err != nil {
		t.Errorf("ended: %v", err)
	}
	clients.Wait()
	tr.CloseIdleConnections()
	if lines := append(h.journal.at(slog.LevelError), h.journal.at(slog.LevelWarn)...); len(lines) > 0 {
		t.Error(lines)
	}
}

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
	testenv.Heavy(t)
	h := newTestServer(t, "", nil)
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
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
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

// turns are bodies that come at full speed, and how often one was read in a row.
type turns struct {
	mu                         sync.Mutex
	bodies                     map[int]bool
	reads, last, row, mostRow  int
	largest, bodiesWanted, end int
}

type turn struct {
	*turns
	id int
}

func (b turn) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads >= b.end {
		return 0, io.EOF
	}
	b.bodies[b.id] = true
	b.largest = max(b.largest, len(p))
	if len(b.bodies) < b.bodiesWanted {
		return len(p), nil // not all have begun
	}
	b.reads++
	if b.row++; b.last != b.id {
		b.last, b.row = b.id, 1
	}
	b.mostRow = max(b.mostRow, b.row)
	return len(p), nil
}

func (turn) Close() error { return nil }

// D35: of hundreds of bodies that come at full speed each is read a small piece at a
// time, so that whoever else has something to do, such as /healthz, waits for a
// piece of each and not for 10 ms of each.
func TestBodiesTakeTurns(t *testing.T) {
	const bodies = 100
	h := newTestServer(t, "", func(o *server.Options) {
		withSIP(func(w http.ResponseWriter, r *http.Request, _ string) {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{r.Body})
			w.WriteHeader(http.StatusAccepted)
		})(o)
		o.Bodies = limit.NewBytes(math.MaxInt64, math.MaxInt64)
	})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	all := &turns{bodies: map[int]bool{}, bodiesWanted: bodies, end: 1000 * bodies}
	var running sync.WaitGroup
	for i := range bodies {
		running.Go(func() {
			h.web.Config.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/sip/main", turn{all, i}))
		})
	}
	running.Wait()
	if all.reads < all.end || all.mostRow > 20 || all.largest > 16<<10 {
		t.Errorf("of %d pieces, of up to %d bytes, %d of one body were read in a row", all.reads, all.largest, all.mostRow)
	}
}

// TestHandOver: of the requests that arrive while one server after the other ends on the same socket, each
// is answered, also those that net/http would drop because it has not read them yet.
func TestHandOver(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	get := func() {
		one := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := one.Get("http://" + socket.Addr().String() + "/healthz")
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "ok\n" {
			t.Errorf("%q, %v", b, err)
		}
	}
	clients, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for clients.Err() == nil && !t.Failed() {
				get()
			}
		})
	}
	serve := func(during func()) {
		f, err := socket.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		o := oneRecord{}
		s := server.New(server.Options{Documents: o, Log: o, Contents: o, BaseURL: "http://x", Logger: slog.New(&journal{})})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, l) }()
		during()
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		serve(get)
	}
	stop()
	serve(group.Wait)
}

// TestHangsUpOnTheSilent: a client that has connected and sends nothing delays the end of a server little.
func TestHangsUpOnTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c := r.dial()
		defer c.Close()
		synctest.Wait()
		began := time.Now()
		r.end(t)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the end took %v", took)
		}
	})
}
