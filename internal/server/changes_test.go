package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/translate"
)

// changesPage is a page as a consumer reads it.
type changesPage struct {
	Set      string
	Feed     string
	Changes  []translate.Change
	After    int64
	Complete bool
	Next     string
}

func (h *testServer) changes(url string) (p changesPage) {
	h.t.Helper()
	r := h.ask(http.MethodGet, url).want(h.t, http.StatusOK)
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		h.t.Fatalf("%s: %v: %s", url, err, r.body)
	}
	return p
}

func TestChanges(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "/bridge", nil)
	for name, mode := range map[string]event.Content{"mirrored": event.Mirror, "redirected": event.Redirect, "referred": event.Reference} {
		h.set(name, "Maps", mode)
		h.alive(name, "urn:a", rep{"text/xml", "<a/>"}, rep{"text/html", "<p>a"})
		h.alive(name, "urn:b", rep{"text/xml", "<b/>"})
		h.dead(name, "urn:a")
		p := h.changes(h.base + "/sets/" + name + "/changes.json?after=0&limit=2")
		if len(p.Changes) != 2 || p.Complete || p.Set != name {
			t.Fatalf("%+v", p)
		}
		first := p.Changes[0]
		record, other := h.base+recordPath(name, "urn:a", ""), h.base+recordPath(name, "urn:a", "html")
		if mode == event.Reference {
			record, other = "https://origin.example/data/urn:a/0", "https://origin.example/data/urn:a/1"
		}
		if first.Identifier != "urn:a" || first.Kind != "created" || first.Title != "Record urn:a" || first.Via.URL != "https://origin.example/data/urn:a/0" ||
			len(first.Representations) != 2 || first.Representations[0].URL != record || first.Representations[1].URL != other ||
			first.Representations[0].Type != "text/xml" || *first.Representations[0].Length != 4 || first.Representations[0].Hash != "sha-256:"+hexSum("<a/>") {
			got, _ := json.Marshal(first)
			t.Errorf("%s: %s", name, got)
		}
		p = h.changes(p.Next)
		if len(p.Changes) != 1 || !p.Complete || p.Changes[0].Kind != "deleted" || p.Changes[0].Representations == nil || len(p.Changes[0].Representations) != 0 {
			t.Errorf("%s: %+v", name, p)
		}
		end := h.ask(http.MethodGet, p.Next).want(t, http.StatusOK).field(t, "Link", "<"+p.Next+`>; rel="next"`).field(t, "Content-Type", "application/json")
		h.ask(http.MethodGet, p.Next, "If-None-Match", end.header.Get("Etag")).want(t, http.StatusNotModified)
		packed := h.ask(http.MethodGet, p.Next, "Accept-Encoding", "gzip", "If-None-Match", end.header.Get("Etag")).want(t, http.StatusOK)
		if unzip(t, packed.body) != end.body {
			t.Errorf("%s: compressed it is %q", name, unzip(t, packed.body))
		}
		h.alive(name, "urn:c", rep{"text/xml", "<c/>"})
		if h.ask(http.MethodGet, p.Next, "If-None-Match", end.header.Get("Etag")).want(t, http.StatusOK); len(h.changes(p.Next).Changes) != 1 {
			t.Errorf("%s: the new change is missing", name)
		}
	}
	for path, want := range map[string]int{
		"/sets/other/changes.json": 404, "/sets/other/changes/stream": 404, "/sets/mirrored/changes.json?after=-1": 400, "/sets/mirrored/changes.json?after=x": 400,
		"/sets/mirrored/changes.json?limit=0": 400, "/sets/mirrored/changes.json?limit=100000": 200, "/sets/mirrored/changes.json?after=1000000": 410,
		"/sets/mirrored/changes.json?feed=urn:uuid:other": 410, "/sets/mirrored/changes/stream?after=1000000": 410, "/sets/mirrored/changes/": 404,
	} {
		r := h.get(path).want(t, want)
		if want == 400 || want == 410 {
			var p server.Problem
			if err := json.Unmarshal([]byte(r.field(t, "Cache-Control", "no-cache").body), &p); err != nil || p.Status != want || p.Detail == "" || (want == 410) != (p.Restart != "") {
				t.Errorf("%s: %s", path, r.field(t, "Content-Type", "application/problem+json").body)
			}
			if want == 410 {
				h.changes(p.Restart)
			}
		}
	}
	if r := h.get("/sets/mirrored/changes/stream", "Last-Event-ID", "x").want(t, 400); !strings.Contains(r.body, "no place") {
		t.Error(r.body)
	}
	h.ask(http.MethodHead, h.base+"/sets/mirrored/changes/stream").want(t, 200).field(t, "Content-Type", "text/event-stream").field(t, "X-Accel-Buffering", "no")
}

// stream reads a stream until take returns false, or it ends.
func (h *testServer) stream(ctx context.Context, url, lastID string, take func(id int64, c *translate.Change) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := h.web.Client().Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	var id int64
	var c *translate.Change
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			if id, err = strconv.ParseInt(value, 10, 64); err != nil {
				return err
			}
		case "data":
			c = new(translate.Change)
			if err := json.Unmarshal([]byte(value), c); err != nil {
				return err
			}
		case "":
			if c != nil && !take(id, c) {
				return nil
			}
			c = nil
		}
	}
	return lines.Err()
}

// Whatever is logged while they read, and wherever they break off and come back: those who
// read pages and those who read streams get each event once, in the order of the log.
func TestChangesLaw(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	h := newTestServer(t, "", nil).set("maps", "Maps", event.Redirect).set("other", "", event.Redirect)
	const all = 200
	var want []string // appended to by this goroutine alone
	log := func() {
		set := "maps"
		if random.IntN(4) == 0 {
			set = "other" // whose events take Seqs in between
		}
		name := fmt.Sprintf("urn:%d", random.IntN(20))
		switch ev, err := h.log.Record(t.Context(), set, event.Key(name)); {
		case err == nil && ev.Live() && random.IntN(3) == 0:
			h.dead(set, name)
		default:
			h.unstored(set, name, rep{"text/xml", fmt.Sprint(len(want), " ", random.Int())})
		}
		if set == "maps" {
			ev, err := h.log.Record(t.Context(), set, event.Key(name))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, fmt.Sprint(ev.Seq, ev.Record, ev.Kind))
		}
	}
	for len(want) < all/4 {
		log()
	}
	var group sync.WaitGroup
	got := make([][]string, 6)
	for reader := range got {
		random := rand.New(rand.NewPCG(seed, uint64(2+reader)))
		take := func(c *translate.Change) { got[reader] = append(got[reader], fmt.Sprint(c.Seq, c.Identifier, c.Kind)) }
		group.Go(func() {
			for next := h.base + "/sets/maps/changes.json?after=0&limit=" + strconv.Itoa(1+random.IntN(30)); reader%2 == 0 && len(got[reader]) < all; {
				p := h.changes(next)
				for i := range p.Changes {
					take(&p.Changes[i])
				}
				next = p.Next
			}
			for last := ""; reader%2 == 1 && len(got[reader]) < all; {
				most := 1 + random.IntN(60)
				if err := h.stream(t.Context(), h.base+"/sets/maps/changes/stream", last, func(id int64, c *translate.Change) bool {
					if id != int64(c.Seq) {
						t.Errorf("change %d has the id %d", c.Seq, id)
					}
					take(c)
					last = strconv.FormatInt(id, 10)
					most--
					return most > 0 && len(got[reader]) < all
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for len(want) < all {
		log()
	}
	group.Wait()
	for reader := range got {
		if strings.Join(got[reader], "\n") != strings.Join(want, "\n") {
			t.Errorf("reader %d got %d events, the log has %d", reader, len(got[reader]), len(want))
		}
	}
}

// A server that ends, ends its streams at once; one that serves too many opens no more.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "", nil).set("maps", "Maps", event.Redirect)
	h.unstored("maps", "urn:a", rep{"text/xml", "a"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.New(h.opt).Run(ctx, l) }()
	url := "http://" + l.Addr().String() + "/sets/maps/changes/stream"
	streams, opened := make(chan error), make(chan struct{})
	const most = 64 // of one address
	for range most {
		go func() {
			streams <- h.stream(t.Context(), url, "", func(int64, *translate.Change) bool { opened <- struct{}{}; return true })
		}()
	}
	for range most {
		<-opened
	}
	h.ask(http.MethodGet, url).want(t, http.StatusServiceUnavailable).field(t, "Retry-After", "60")
	began := time.Now()
	stop()
	for range most {
		if err := <-streams; err != nil {
			t.Errorf("a stream ended with %v", err)
		}
	}
	if err := <-ended; err != nil || time.Since(began) > 7*time.Second {
		t.Errorf("the server ended after %v: %v", time.Since(began), err)
	}
}

// Streams leave connections to everybody else, however few there may be.
func TestStreamsLeaveConnections(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "", func(o *server.Options) { o.Limits.Connections = 8 }).set("maps", "Maps", event.Redirect)
	h.unstored("maps", "urn:a", rep{"text/xml", "a"})
	ctx, stop := context.WithCancel(t.Context())
	const most = 2 // of one address, of four in all
	opened, ended := make(chan struct{}), make(chan struct{})
	for range most {
		go func() {
			defer func() { ended <- struct{}{} }()
			_ = h.stream(ctx, h.base+"/sets/maps/changes/stream", "", func(int64, *translate.Change) bool { opened <- struct{}{}; return true }) // stop ends it
		}()
	}
	for range most {
		<-opened
	}
	h.ask(http.MethodHead, h.base+"/sets/maps/changes/stream").want(t, http.StatusServiceUnavailable)
	stop()
	for range most {
		<-ended
	}
}

// hooked calls a function before it reads events.
type hooked struct {
	server.Log
	before func()
}

func (l *hooked) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	l.before()
	return l.Log.Events(ctx, set, r)
}

// A stream of a set that gets another name, or is not published any more, while it sends what
// there is, ends, and goes on from there where the set is now.
func TestStreamOfRenamedSet(t *testing.T) {
	t.Parallel()
	var h *testServer
	var pages atomic.Int64
	h = newTestServer(t, "", func(o *server.Options) {
		o.Log = &hooked{o.Log, func() {
			if pages.Add(1) != 2 {
				return
			}
			if err := h.log.RenameSet(t.Context(), "maps", "charts", false); err != nil {
				t.Error(err)
			}
		}}
	})
	h.long("maps", 250)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []int64
	take := func(id int64, _ *translate.Change) bool { got = append(got, id); return len(got) < 250 }
	if err := h.stream(ctx, h.base+"/sets/maps/changes/stream", "", take); err != nil || pages.Load() > 3 {
		t.Fatalf("after %d pages the stream ended with %v", pages.Load(), err)
	}
	if err := h.stream(ctx, h.base+"/sets/charts/changes/stream", strconv.FormatInt(got[len(got)-1], 10), take); err != nil {
		t.Fatal(err)
	}
	for i, id := range got {
		if i > 0 && id <= got[i-1] || len(got) != 250 {
			t.Fatalf("it is sent %v", got)
		}
	}
}

// A silent stream says every 15 seconds that it is alive, and a client that does not read is
// dropped.
func TestStreamIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(1)
		c, began := r.dial(), time.Now()
		defer c.Close()
		fmt.Fprint(c, "GET /sets/maps/changes/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		for said := 0; said < 4 && lines.Scan(); {
			if strings.HasPrefix(lines.Text(), ":") {
				said++
			}
		}
		if took := time.Since(began); took < 45*time.Second || took > 50*time.Second {
			t.Errorf("three signs of life took %v", took)
		}
		began = time.Now()
		time.Sleep(10 * time.Minute) // without reading
		left := 0                    // in the buffer
		for lines.Scan() {
			left++
		}
		if time.Since(began) > 10*time.Minute || left > 3 {
			t.Errorf("the stream of a client that does not read goes on: it has %d lines more", left)
		}
		r.end(t)
	})
}

// The commands that the page of a set shows, and docs/consumers.md, work as they stand there,
// also after the set was renamed.
func TestWays(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	doc, err := os.ReadFile("../../docs/consumers.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range server.Ways("http://bridge.example.org", "maps")[:3] {
		if indented := "    " + strings.ReplaceAll(strings.TrimSpace(w.Script), "\n", "\n    "); !strings.Contains(string(doc), strings.ReplaceAll(indented, "    \n", "\n")) {
			t.Errorf("docs/consumers.md lacks\n%s", indented)
		}
	}
	h := newTestServer(t, "", func(o *server.Options) {
		o.Moved = func(name string) string { return map[string]string{"atlas": "maps"}[name] }
	}).set("maps", "Maps", event.Redirect)
	for i := range 120 {
		h.unstored("maps", fmt.Sprintf("urn:%03d", i), rep{"text/xml", "x"})
	}
	h.dead("maps", "urn:007")
	folder := t.TempDir()
	run := func(program, argument, script string) []string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, argument, script)
		cmd.Dir, cmd.Env = folder, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "no_proxy=*"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	has := func(tools ...string) bool {
		for _, tool := range tools {
			if _, err := exec.LookPath(tool); err != nil {
				t.Logf("%s is not installed", tool)
				return false
			}
		}
		return true
	}
	all, former := server.Ways(h.base, "maps"), server.Ways(h.base, "atlas")
	check := func(lines []string) {
		t.Helper()
		if len(lines) != 121 || !strings.HasPrefix(lines[120], "deleted") || !strings.HasSuffix(lines[120], "urn:007") || !strings.Contains(lines[0], "/sets/maps/records/") {
			t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
		}
	}
	if has("sh", "curl", "jq") {
		check(run("sh", "-c", all[0].Script))
		check(run("sh", "-c", former[0].Script))
		h.dead("maps", "urn:008")
		if lines := run("sh", "-c", all[0].Script); len(lines) != 1 || !strings.Contains(lines[0], "urn:008") {
			t.Errorf("then there is %q", lines)
		}
		for _, w := range []server.Way{all[1], former[1]} {
			if lines := run("sh", "-c", strings.Replace(w.Script, "/changes/stream |", "/changes/stream 2>/dev/null | head -n 8 |", 1)); len(lines) != 2 || !strings.Contains(lines[0], "urn:000") {
				t.Errorf("the stream gives %q", lines)
			}
		}
		if lines := run("sh", "-c", all[4].Script); !strings.Contains(strings.Join(lines, ""), "OAI-PMH") && h.opt.Repository != nil {
			t.Errorf("OAI-PMH gives %q", lines)
		}
	}
	if has("python3") {
		h.alive("maps", "urn:007", rep{"text/xml", "y"})
		if lines := run("python3", "-c", all[2].Script); len(lines) != 123 || !strings.HasPrefix(lines[0], "created urn:000 http") {
			t.Errorf("%d lines, the first is %q", len(lines), lines[0])
		}
	}
}
