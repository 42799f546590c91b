package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// growingFeeds serves a feed at each path, which has one more item each time it is asked for,
// and the records below /record/.
type growingFeeds struct {
	mu    sync.Mutex
	items map[string]int
	still bool // no feed grows any more
}

func (g *growingFeeds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/record/") {
		w.Header().Set("Content-Type", "text/html")
		return
	}
	g.mu.Lock()
	if !g.still && g.items[r.URL.Path] < 200 {
		g.items[r.URL.Path]++
	}
	n := g.items[r.URL.Path]
	g.mu.Unlock()
	fmt.Fprint(w, `<rss version="2.0"><channel><title>t</title>`)
	for i := range n {
		fmt.Fprintf(w, "<item><guid>%s-%d</guid><title>%[2]d</title><link>http://%[3]s/record%[1]s/%[2]d</link></item>", r.URL.Path, i, r.Host)
	}
	fmt.Fprint(w, `</channel></rss>`)
}

// written is a configuration as a file: the sets with the numbers of their Sources.
func written(listen, data, feeds string, sets map[string][]int, settings string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen = %q\ndata = %q\n", listen, data)
	for _, name := range []string{"stays", "a", "b", "c"} {
		sources, ok := sets[name]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "[[set]]\nname = %q\ncontent = \"reference\"\n", name)
		if name != "stays" {
			b.WriteString(settings)
		}
		for _, n := range sources {
			fmt.Fprintf(&b, "[[set.source]]\nkind = \"feed\"\nurl = \"%s/%s/%d\"\n", feeds, name, n)
			if n == 2 {
				b.WriteString("every = \"2h\"\n")
			}
		}
	}
	return b.String()
}

// TestReloadUnderLoad: while the configuration is read again and again, valid and invalid, no
// request for a set that stays fails, no event is lost or logged twice, the harvests of
// Sources that stay go on, and what is invalid changes nothing.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(t, 12, 1000)
	random := rand.New(rand.NewPCG(1, uint64(rounds)))
	feeds := &growingFeeds{items: map[string]int{}}
	server := httptest.NewServer(feeds)
	defer server.Close()
	folder := t.TempDir()
	file, data := filepath.Join(folder, "bridge.toml"), filepath.Join(folder, "data")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const listen = "127.0.0.1:0"
	all := map[string][]int{"stays": {0, 1}, "a": {0, 1, 2}, "b": {0, 1, 2}, "c": {0, 1, 2}}
	valid := func() string {
		sets := map[string][]int{"stays": {0, 1}}
		for _, name := range []string{"a", "b", "c"} {
			if random.IntN(3) > 0 {
				sets[name] = random.Perm(3)[:1+random.IntN(3)]
			}
		}
		return written(listen, data, server.URL, sets, []string{"", "title = \"T\"\n", "prefer = [\"text/html\"]\n", "feeds = false\n"}[random.IntN(4)])
	}
	invalid := func() (text, why string) {
		text = valid()
		switch random.IntN(6) {
		case 0:
			return text + "[[set]\n", ":"
		case 1:
			return text + "colour = \"red\"\n", "colour"
		case 2:
			return text + "[[set]]\nname = \"stays\"\n", "another set"
		case 3:
			return strings.Replace(text, `content = "reference"`, `content = "redirect"`, 1), "stays"
		case 4:
			return strings.Replace(text, "127.0.0.1:0", "127.0.0.1:1", 1), "listen"
		}
		return text + "[limits]\ndepth = 100\n", "limits"
	}
	write(written(listen, data, server.URL, all, ""))
	b := openFile(t, file)
	defer closeBridge(t, b)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	var harvested [2]atomic.Int64 // of the set that stays
	harvestedTwice := make(chan struct{}, 1)
	go func() {
		served <- b.Serve(ctx, l, func(src *Source, _ harvest.Report, err error) {
			if err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", src.URL, err)
			}
			if src.Set == "stays" {
				harvested[src.URL[len(src.URL)-1]-'0'].Add(1)
				if harvested[0].Load() > 1 && harvested[1].Load() > 1 {
					wake(harvestedTwice)
				}
			}
			if _, err := b.HarvestNow(context.WithoutCancel(ctx), src.Set, src.URL); err != nil && ctx.Err() == nil && src.Set == "stays" {
				t.Errorf("harvesting %s again: %v", src.URL, err)
			}
		})
	}()

	<-harvestedTwice // no list of it is withheld any more
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	var group sync.WaitGroup
	loaded := make(chan struct{})
	var requests atomic.Int64
	for _, path := range []string{"/sets/stays/changelist.xml", "/.well-known/resourcesync", "/sets/stays/feed.atom", "/sets/stays/oai?verb=ListIdentifiers&metadataPrefix=oai_dc", "/sets/a/changelist.xml"} {
		group.Go(func() {
			for {
				select {
				case <-loaded:
					return
				default:
				}
				resp, err := client.Get("http://" + l.Addr().String() + path)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if requests.Add(1); err != nil || resp.StatusCode != http.StatusOK && (!strings.HasPrefix(path, "/sets/a/") || resp.StatusCode != http.StatusNotFound) {
					t.Errorf("%s: %s, %v", path, resp.Status, err)
				}
			}
		})
	}

	refused, stays := 0, b.sourceOf("stays", server.URL+"/stays/0")
	for range rounds {
		if random.IntN(3) > 0 {
			write(valid())
			if _, err := b.Reload(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, why := invalid()
		write(text)
		was := b.generation.Load()
		if said, err := b.Reload(ctx); err == nil || !strings.Contains(err.Error(), why) || len(said) > 0 || b.generation.Load() != was {
			t.Fatalf("said %q, %v about\n%s", said, err, text)
		}
		refused++
	}
	// What stays was not touched, and goes on.
	if b.sourceOf("stays", server.URL+"/stays/0") != stays {
		t.Error("a Source that stays was made anew")
	}
	select {
	case <-harvestedTwice:
	default:
	}
	<-harvestedTwice
	close(loaded)
	group.Wait()
	client.CloseIdleConnections() // the server waits for one on which nothing was asked

	// In the end everything is configured again, and each set has each record once.
	feeds.mu.Lock()
	feeds.still = true
	feeds.mu.Unlock()
	write(written(listen, data, server.URL, all, ""))
	if _, err := b.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	for _, src := range b.Sources() {
		b.loops.end(src)
	}
	for _, src := range b.Sources() {
		if _, err := b.Harvest(t.Context(), src, harvest.Options{}); err != nil {
			t.Errorf("%s: %v", src.URL, err)
		}
	}
	sets, err := b.Log.Sets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sets {
		want := int64(0)
		for path, n := range feeds.items {
			if strings.HasPrefix(path, "/"+s.Name+"/") {
				want += int64(n)
			}
		}
		if s.Live != want || s.Events != want {
			t.Errorf("set %s has %d records and %d events, want %d of each", s.Name, s.Live, s.Events, want)
		}
	}
	stop()
	if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	t.Logf("%d reloads, %d of them refused; %d requests; %d harvests of the set that stays", rounds, refused, requests.Load(), harvested[0].Load()+harvested[1].Load())
}

// TestReloadLeavesNothing: what is removed leaves no goroutine behind, neither while bridge
// runs nor after it.
func TestReloadLeavesNothing(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	server := httptest.NewServer(&growingFeeds{items: map[string]int{}})
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	write := func(sets map[string][]int) {
		if err := os.WriteFile(file, []byte(written("127.0.0.1:0", filepath.Join(folder, "data"), server.URL, sets, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string][]int{"stays": {0}})
	b := openFile(t, file)
	ctx, cancel := context.WithCancelCause(t.Context())
	done, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		b.schedule(ctx, cancel, func(*Source, harvest.Report, error) { done <- struct{}{} })
	}()
	<-done
	for range 5 {
		for _, sets := range []map[string][]int{{"stays": {0}, "a": {0, 1}, "b": {2}}, {"stays": {0, 1}}} {
			write(sets)
			if _, err := b.Reload(ctx); err != nil {
				t.Fatal(err)
			}
			b.loops.mu.Lock()
			running := len(b.loops.running)
			b.loops.mu.Unlock()
			if running != len(b.Sources()) {
				t.Errorf("%d loops for %d Sources", running, len(b.Sources()))
			}
		}
	}
	cancel(nil)
	<-ended
	closeBridge(t, b)
	server.Close()
	goleak.VerifyNone(t, leaks)
}

// TestReloadOfFailing: a Source that fails is asked at once when its settings are mended, unless
// its server wants no request yet; others wait for their time.
func TestReloadOfFailing(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	write := func(mended, busy string) {
		t.Helper()
		text := "listen = \"127.0.0.1:0\"\ndata = \"data\"\n[[set]]\nname = \"main\"\n"
		for _, s := range [][2]string{{"mended", mended}, {"busy", busy}, {"other", "/other"}} {
			text += fmt.Sprintf("[[set.source]]\nname = %q\nkind = \"feed\"\nurl = %q\n", s[0], server.URL+s[1])
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/old", "/busy")
	b := openFile(t, file)
	defer closeBridge(t, b)
	for _, src := range b.Sources() {
		for range 8 {
			if _, err := b.harvestSource(t.Context(), src, src.Every, harvest.Options{}); err == nil {
				t.Fatal("it was harvested")
			}
		}
	}
	write("/new", "/busier")
	if said, err := b.Reload(t.Context()); err != nil || len(said) == 0 {
		t.Fatal(said, err)
	}
	for _, src := range b.Sources() {
		wait, err := b.DueIn(t.Context(), src)
		if err != nil || (wait <= 0) != (src.Name == "mended") || src.Name == "busy" && wait > 2*time.Hour {
			t.Errorf("%s is due in %v, %v", src.Name, wait, err)
		}
	}
}

// thousands writes a configuration of a set with so many Sources, and returns its length.
func thousands(t *testing.T, file string, sources int) (bytes int) {
	t.Helper()
	var all []int
	for n := range sources {
		all = append(all, n)
	}
	text := written("127.0.0.1:0", filepath.Join(filepath.Dir(file), "data"), "http://127.0.0.1:1", map[string][]int{"a": all}, "")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// TestReloadThousands: what it takes to read the configuration of a set again grows with its Sources,
// and not with their square. Ten thousand took minutes.
func TestReloadThousands(t *testing.T) {
	testenv.Heavy(t)
	file := filepath.Join(t.TempDir(), "bridge.toml")
	const sources = 2000
	bytes := thousands(t, file, sources)
	b := openFile(t, file)
	defer closeBridge(t, b)
	n := 0
	testenv.Affordable(t, 2*bytes, func() { // the former configuration, and the new one
		n++
		thousands(t, file, sources+n)
		if _, err := b.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if has := len(b.Sources()); has != sources+n {
		t.Errorf("%d Sources, want %d", has, sources+n)
	}
}

// TestHarvestOfThousands: while one of its Sources was never read, the harvests of a set's others
// do not each look at all of them.
func TestHarvestOfThousands(t *testing.T) {
	testenv.Heavy(t)
	file := filepath.Join(t.TempDir(), "bridge.toml")
	thousands(t, file, 2000)
	b := openFile(t, file)
	defer closeBridge(t, b)
	testenv.Affordable(t, 1<<10, func() {
		for range 20 {
			if err := b.completeSetOf(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	})
	if set, err := b.Log.Set(t.Context(), "a"); err != nil || !set.Partial {
		t.Errorf("%+v, %v", set, err)
	}
}

// TestMembersOfThousands: of a set that is made of many others, those alone are looked at that have
// grown: each commit of any of them comes with a look.
func TestMembersOfThousands(t *testing.T) {
	testenv.Heavy(t)
	folder := t.TempDir()
	var sets, union strings.Builder
	fmt.Fprintf(&sets, "data = %q\n", filepath.Join(folder, "data"))
	for n := range 500 {
		fmt.Fprintf(&sets, "[[set]]\nname = \"s%d\"\ncontent = \"reference\"\n[[set.source]]\nkind = \"feed\"\nurl = \"http://127.0.0.1:1/%[1]d\"\n", n)
		fmt.Fprintf(&union, "[[set.source]]\nurl = \"set:s%d\"\n", n)
	}
	b := openWritten(t, filepath.Join(folder, "bridge.toml"), sets.String()+"[[set]]\nname = \"all\"\ncontent = \"reference\"\n"+union.String())
	woken := func() (all []string) {
		for _, src := range b.Sources() {
			select {
			case <-src.wake:
				all = append(all, src.URL)
			default:
			}
		}
		return all
	}
	looked := map[string]event.Set{}
	b.wakeMembers(t.Context(), looked)
	if all := woken(); len(all) != 500 { // none has been read
		t.Errorf("at first %d are woken", len(all))
	}
	testenv.Affordable(t, 10<<10, func() {
		for range 5 {
			b.wakeMembers(t.Context(), looked)
		}
	})
	if all := woken(); len(all) != 0 {
		t.Errorf("without a change %d are woken", len(all))
	}
	src := b.sourceOf("s7", "http://127.0.0.1:1/7")
	if _, err := b.Log.Append(t.Context(), &event.Batch{Source: src.ID, Mode: event.ModeWalk, Start: true, Items: []*event.Item{{Observation: event.Observation{Record: "a",
		Representations: []event.Representation{{Href: "http://127.0.0.1:1/a", Type: "text/plain"}}}}}}); err != nil {
		t.Fatal(err)
	}
	b.wakeMembers(t.Context(), looked)
	if all := woken(); len(all) != 1 || all[0] != "set:s7" {
		t.Errorf("after a change of s7 %d are woken", len(all))
	}
}

// TestManyChanges: a reload that changes very many Sources names some of them in the log, and
// counts the others; whoever asked for it is told all.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := func(every string) string {
		text := "data = \"data\"\n[defaults]\nevery = \"" + every + "\"\n[[set]]\nname = \"main\"\n"
		for i := range 1000 {
			text += fmt.Sprintf("[[set.source]]\nkind = \"feed\"\nurl = \"https://h.example/%d\"\n", i)
		}
		return text
	}
	var said strings.Builder
	h, err := Open(t.Context(), loadText(t, folder, text("1h")), Options{Logger: slog.New(slog.NewTextHandler(&said, nil)), Network: Unresolved})
	if err != nil {
		t.Fatal(err)
	}
	defer closeBridge(t, h)
	said.Reset()
	loadText(t, folder, text("2h"))
	changes, err := h.Reload(t.Context())
	if err != nil || len(changes) != 1000 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
	if line := said.String(); len(line) > 4000 || !strings.Contains(line, "https://h.example/19 ") || !strings.Contains(line, "; and 980 more") {
		t.Errorf("the log has %d bytes: %.5000s", len(line), line)
	}
}

// TestManyFormerSources: of very many Sources that are not configured any more the log names some at
// each start, and counts the others; so does a reload.
func TestManyFormerSources(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := func(sources int) string {
		text := "data = \"data\"\n[[set]]\nname = \"main\"\n"
		for i := range sources {
			text += fmt.Sprintf("[[set.source]]\nkind = \"feed\"\nurl = \"https://h.example/%d\"\n", i)
		}
		return text
	}
	var said strings.Builder
	want := func(when string) {
		t.Helper()
		if log := said.String(); strings.Count(log, "a Source is no longer configured") != 20 || !strings.Contains(log, "more Sources are no longer configured: bridge source ls shows them") || !strings.Contains(log, "number=79") {
			t.Errorf("%s the log says:\n%s", when, log)
		}
	}
	o := Options{Logger: slog.New(slog.NewTextHandler(&said, nil)), Network: Unresolved}
	h, err := Open(t.Context(), loadText(t, folder, text(100)), o)
	if err != nil {
		t.Fatal(err)
	}
	said.Reset()
	loadText(t, folder, text(1))
	if _, err := h.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("after a reload")
	closeBridge(t, h)
	said.Reset()
	if h, err = Open(t.Context(), loadText(t, folder, text(1)), o); err != nil {
		t.Fatal(err)
	}
	want("after a start")
	closeBridge(t, h)
}
