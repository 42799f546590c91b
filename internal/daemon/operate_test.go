package daemon

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// heldFeed serves a feed: asked is told of each request, which then waits for an answer.
func heldFeed(t *testing.T, asked chan<- struct{}, answer <-chan bool) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
			fmt.Fprint(w, smallFeed)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// TestOperatorEndsHarvest: a harvest that hangs does not keep an operator waiting. It is no
// failure, and goes on afterwards.
func TestOperatorEndsHarvest(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	answer := make(chan bool, 4)
	server := heldFeed(t, asked, answer)
	b := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, b)
	ctx, cancel := context.WithCancelCause(t.Context())
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		b.schedule(ctx, cancel, func(_ *Source, _ harvest.Report, err error) { done <- err })
	}()
	b.stop.Store(&cancel)
	defer func() { cancel(nil); <-ended }()

	<-asked
	if _, err := b.Pause(ctx, "main", "", "a test", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if said, err := b.Release(ctx, "main", "", 0); err != nil || said != "main: 0 held deletions applied" {
		t.Errorf("%q, %v", said, err)
	}
	if wait, err := b.DueIn(ctx, b.Sources()[0]); err != nil || wait != forever {
		t.Errorf("paused, it is due in %s, %v", wait, err)
	}
	if _, err := b.HarvestNow(ctx, "main", ""); err == nil {
		t.Error("it is harvested while it is paused")
	}
	if _, err := b.Resume(ctx, "main", ""); err != nil {
		t.Fatal(err)
	}
	<-asked // the harvest begins anew
	if _, err := b.Forget(ctx, "main", "", false, true); err == nil {
		t.Error("it is forgotten, and goes on being harvested")
	}
	<-asked // which has ended the harvest too
	if _, err := b.Reset(ctx, "main", ""); err != nil {
		t.Fatal(err)
	}
	<-asked // and once more
	answer <- true
	if err := <-done; err != nil {
		t.Error(err)
	}
	s, err := b.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if src := s.Sets[0].Sources[0]; src.Failures != 0 || src.Paused != nil || s.Sets[0].Events != 1 {
		t.Errorf("%d failures, paused %v, %d events", src.Failures, src.Paused, s.Sets[0].Events)
	}
	if _, err := b.HarvestNow(ctx, "main", ""); err != nil {
		t.Error(err)
	}
	<-asked
	answer <- true
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEndedHarvestIsCounted: what a harvest has logged until an operator, or the end of bridge, ends
// it, is in the history of its Source and in the metrics.
func TestEndedHarvestIsCounted(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(r.URL.Path, "/")
		if name == "c" {
			select {
			case asked <- struct{}{}:
				<-r.Context().Done()
				return
			case <-answer: // by now
			}
		}
		prev := map[string]string{"a": "b", "b": "c"}[name]
		if prev != "" {
			prev = fmt.Sprintf(`<link rel="prev-archive" href="http://%s/%s"/>`, r.Host, prev)
		}
		fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author>%s
<entry><id>urn:%[2]s</id><title>t</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="text/plain" href="http://%[3]s/%[2]s"/></entry></feed>`, prev, name, r.Host)
	}))
	defer server.Close()
	folder := t.TempDir()
	open := func() *Bridge {
		t.Helper()
		c := sourcesOf(t, folder, "atompmh:"+server.URL+"/a")
		c.Sets[0].Content = config.Reference
		b := openBridge(t, c, Options{Network: Unresolved})
		b.harvest.BatchSize = 1
		return b
	}
	// ended begins to harvest, and calls end when the last document is asked for and what the others
	// have is logged. It returns when the harvest has ended.
	ended := func(b *Bridge, end func(stop context.CancelFunc)) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.harvestSource(ctx, b.Sources()[0], time.Hour, harvest.Options{})
		}()
		<-asked
		for {
			changed := b.Log.Changed()
			set, err := b.Log.Set(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			if set.Events == 2 {
				break
			}
			<-changed
		}
		end(stop)
		<-done
	}
	check := func(b *Bridge, want int64, counted string) {
		t.Helper()
		rows, err := b.Log.Harvests(t.Context(), b.Sources()[0].ID, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		var created int64
		for i := range rows {
			if created += rows[i].Created; rows[i].Result == event.ResultFailed {
				t.Errorf("%+v", rows[i])
			}
		}
		w := httptest.NewRecorder()
		b.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		line := ""
		if counted != "" { // else it has just begun to count
			line = fmt.Sprintf("bridge_events_total{kind=\"created\",set=\"main\",source=%q} %s\n", server.URL+"/a", counted)
		}
		if set, err := b.Log.Set(t.Context(), "main"); err != nil || set.Events != want || created != want || !strings.Contains(w.Body.String(), line) {
			t.Errorf("%d events, %v; the history has %d, the metrics lack %s", set.Events, err, created, line)
		}
		if s, err := b.Log.Schedule(t.Context(), b.Sources()[0].ID); err != nil || s.Failures != 0 {
			t.Errorf("%d failures, %v", s.Failures, err)
		}
	}
	b := open()
	ended(b, func(stop context.CancelFunc) { stop() })
	closeBridge(t, b)
	b = open()
	check(b, 2, "")
	closeBridge(t, b)

	folder = t.TempDir()
	b = open()
	defer closeBridge(t, b)
	ended(b, func(context.CancelFunc) {
		if _, err := b.Pause(t.Context(), "main", "", "", time.Time{}); err != nil {
			t.Error(err)
		}
	})
	check(b, 2, "2")
	close(answer)
	if _, err := b.Harvest(t.Context(), b.Sources()[0], harvest.Options{}); err != nil {
		t.Fatal(err)
	}
	check(b, 3, "3")
}

// TestHarvestNowWhileContentsArePending: a Source whose pending contents are being asked for is not
// being harvested: an operator who wants that does not wait for a content that does not come.
func TestHarvestNowWhileContentsArePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		c := sourcesOf(t, t.TempDir(), "atompmh:http://source.example/feed")
		c.Sets[0].Sources[0].Every = 24 * time.Hour
		b := openBridge(t, c, Options{Network: Unresolved})
		src := b.Sources()[0]
		var feeds, contents atomic.Int64
		src.Client = &http.Client{Transport: statuses(func(r *http.Request) (int, string) {
			if r.URL.Path == "/feed" {
				feeds.Add(1)
				return http.StatusOK, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author>
<entry><id>urn:a</id><title>t</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="text/plain" href="http://source.example/a"/></entry></feed>`
			}
			if contents.Add(1) > 1 {
				<-r.Context().Done()
			}
			return http.StatusNotFound, ""
		})}
		ctx, cancel := context.WithCancelCause(t.Context())
		b.stop.Store(&cancel)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.schedule(ctx, cancel, nil)
		}()
		for contents.Load() < 2 {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := feeds.Load(); n != 1 {
			t.Fatalf("the feed was asked for %d times", n)
		}
		said, err := b.HarvestNow(ctx, "main", "")
		if err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if feeds.Load() != 2 {
			t.Errorf("it says %q, and the feed is not asked for", said)
		}
		if said, err = b.HarvestNow(ctx, "main", ""); err != nil || !strings.Contains(said, "is being harvested now") {
			t.Errorf("while it is harvested: %q, %v", said, err)
		}
		cancel(nil)
		<-ended
		closeBridge(t, b)
	})
}

// statuses is a Source that answers with a status and a text.
type statuses func(r *http.Request) (status int, text string)

func (a statuses) RoundTrip(r *http.Request) (*http.Response, error) {
	status, text := a(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// TestReplayEndsHarvest: bad input can be replayed beside a harvest of its Source, which does
// not fail because of that.
func TestReplayEndsHarvest(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan bool)
	server := heldFeed(t, asked, answer)
	b := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, b)
	ctx, src := t.Context(), b.Sources()[0]
	if _, err := b.Log.Append(ctx, &event.Batch{Source: src.ID, Quarantine: []event.Quarantined{{URL: server.URL + "/", Rule: "a-rule", Input: []byte(strings.ReplaceAll(smallFeed, ">a<", ">b<"))}}}); err != nil {
		t.Fatal(err)
	}
	all, err := b.Log.Quarantined(ctx, "main")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	q, err := b.Log.QuarantinedInput(ctx, all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	harvested := make(chan error, 1)
	go func() {
		_, err := b.Harvest(ctx, src, harvest.Options{})
		harvested <- err
	}()
	<-asked
	report, err := b.Replay(ctx, &q)
	close(answer)
	if err != nil || report.Created != 1 {
		t.Errorf("replay: %d created, %v", report.Created, err)
	}
	if err := <-harvested; !errors.Is(err, errInterrupted) {
		t.Errorf("the harvest under way: %v", err)
	}
}

// TestReplayOfPaused: the content of bad input that is replayed would be asked for, which a paused
// Source is not.
func TestReplayOfPaused(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, "content")
	}))
	defer server.Close()
	c := sourcesOf(t, t.TempDir(), "feed:"+server.URL+"/")
	b := openBridge(t, c, Options{Network: Unresolved})
	defer closeBridge(t, b)
	ctx, src := t.Context(), b.Sources()[0]
	entry := strings.Replace(smallFeed, "http://h.example", server.URL, 1)
	if _, err := b.Log.Append(ctx, &event.Batch{Source: src.ID, Quarantine: []event.Quarantined{{URL: server.URL + "/", Rule: "a-rule", Input: []byte(entry)}}}); err != nil {
		t.Fatal(err)
	}
	all, err := b.Log.Quarantined(ctx, "main")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if _, err := b.Pause(ctx, "main", "", "", time.Time{}); err != nil {
		t.Fatal(err)
	}
	replay := Decision{Quarantine: "replay", ID: all[0].ID}
	if _, err := b.Decide(ctx, replay); err == nil || !strings.Contains(err.Error(), "is paused, and not asked for anything: resume it with bridge source resume") || asked.Load() > 0 {
		t.Errorf("while it is paused: %v, and %d requests", err, asked.Load())
	}
	if _, err := b.Resume(ctx, "main", ""); err != nil {
		t.Fatal(err)
	}
	if done, err := b.Decide(ctx, replay); err != nil || done.Result != "replayed: 1 event" || asked.Load() != 1 {
		t.Errorf("resumed: %+v, %v, and %d requests", done, err, asked.Load())
	}
}

// TestPauseEndsByItself: a pause with an end is over then, and a Source is asked neither for
// documents nor for contents until then.
func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	b := openFeeds(t, t.TempDir(), server, "/", "/other")
	defer closeBridge(t, b)
	ctx := t.Context()
	src := b.Sources()[0]
	if _, err := b.Pause(ctx, "", server.URL+"/", "", b.now().Add(-time.Second)); err == nil {
		t.Error("a pause that has ended is accepted")
	}
	if _, err := b.Pause(ctx, "main", server.URL+"/", "why", b.now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if wait, err := b.DueIn(ctx, src); err != nil || wait < 59*time.Minute || wait > time.Hour {
		t.Errorf("due in %s, %v", wait, err)
	}
	// It may have been due before, and have had its turn since.
	if _, err := b.harvestSource(ctx, src, src.Every, harvest.Options{}); !errors.Is(err, errInterrupted) {
		t.Errorf("paused, it is harvested: %v", err)
	}
	later := b.now().Add(2 * time.Hour)
	b.opt.Now = func() time.Time { return later }
	wait, err := b.DueIn(ctx, src)
	pauses, perr := b.pauseStatus(ctx)
	if err := errors.Join(err, perr); err != nil || wait > 0 || len(pauses) != 0 {
		t.Errorf("after the pause it is due in %s, %v; %v", wait, pauses, err)
	}
	if _, err := b.Lookup(ctx, "", ""); err == nil {
		t.Error("nothing names a Source")
	}
}

// TestDecisions: what a command asks the serving process to do with a Source, with bad input or
// with a set is done, and answered in a sentence; what it does not know is refused.
func TestDecisions(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, smallFeed) }))
	defer server.Close()
	b := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, b)
	ctx, src := t.Context(), b.Sources()[0]
	if _, err := b.Harvest(ctx, src, harvest.Options{}); err != nil {
		t.Fatal(err)
	}
	var bad []event.Quarantined
	for _, name := range []string{"b", "c"} {
		bad = append(bad, event.Quarantined{URL: server.URL + "/", Rule: "a-rule", Input: []byte(strings.ReplaceAll(smallFeed, ">a<", ">"+name+"<"))})
	}
	progress, err := b.Log.Progress(ctx, src.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Log.Append(ctx, &event.Batch{Source: src.ID, Cursor: progress.Cursor.Version, Next: progress.Cursor.Data, Quarantine: bad}); err != nil {
		t.Fatal(err)
	}
	inputs, err := b.Log.Quarantined(ctx, "main")
	if err != nil || len(inputs) != 2 {
		t.Fatal(inputs, err)
	}
	source := func(do string) Decision {
		return Decision{Action: &SourceAction{Do: do, Set: "main", Reason: "a test"}}
	}
	set := func(do, to string, yes bool) Decision {
		return Decision{SetAction: &SetAction{Do: do, Set: "main", To: to, Yes: yes}}
	}
	const unknown = "this version of bridge does not know \"melt\": restart bridge serve with the version of the command"
	for _, step := range []struct {
		what    string
		do      Decision
		want    string // of the answer, or of the error
		refused bool
	}{
		{"pause", source("pause"), "main: " + server.URL + "/ is paused", false},
		{"resume", source("resume"), "main: " + server.URL + "/ is resumed", false},
		{"harvest", source("harvest"), "main: " + server.URL + "/ is harvested: 0 created, 0 updated, 0 deleted", false},
		{"reset", source("reset"), "main: " + server.URL + "/ is read from the beginning in the next harvest; its records and events stay", false},
		{"accept that it was not read", source("accept-gap"), "main: the set is published without waiting until " + server.URL + "/ was read whole", false},
		{"accept no gap", source("accept-gap"), "main: " + server.URL + "/ has no gap: nothing to accept", false},
		{"release", source("release"), "main: 0 held deletions applied", false},
		{"keep", source("keep"), "main: 0 held deletions kept until a person releases them", false},
		{"an action of another version", source("melt"), unknown, true},
		{"replay", Decision{Quarantine: "replay", ID: inputs[0].ID}, "replayed: 1 event", false},
		{"discard", Decision{Quarantine: "discard", ID: inputs[1].ID}, "discarded for good", false},
		{"discard again", Decision{Quarantine: "discard", ID: inputs[1].ID}, "", true},
		{"replay what is gone", Decision{Quarantine: "replay", ID: inputs[1].ID}, "", true},
		{"an input of another version", Decision{Quarantine: "melt", ID: inputs[0].ID}, unknown, true},
		{"forget, undecided", source("forget"), "main: " + server.URL + "/ has 2 records: say --delete", true},
		{"forget both ways, undecided", Decision{Action: &SourceAction{Do: "forget", Set: "main", Keep: true, Delete: true}}, "keep and delete exclude each other: say one of them", true},
		{"rename", set("rename", "news", false), "set main is called news; the addresses under its former name lead to the new ones", false},
		{"free, undecided", set("free", "", false), `the addresses of "main" lead to set "news"`, true},
		{"free", set("free", "", true), "the addresses of main do not lead to set news any more", false},
		{"free again", set("free", "", true), `"main" is no former name of a set`, true},
		{"a set of another version", set("melt", "", true), unknown, true},
		{"remove no set", set("rm", "", false), "main", true},
	} {
		done, err := b.Decide(ctx, step.do)
		text := done.Result
		if err != nil {
			text = err.Error()
		}
		if (err != nil) != step.refused || !strings.Contains(text, step.want) || done.Undecided != strings.Contains(step.what, "undecided") {
			t.Errorf("%s: %+v, %v, want %q", step.what, done, err, step.want)
		}
	}
	infos, err := b.SetInfos(ctx)
	if err != nil || len(infos) != 1 || infos[0].Name != "news" || infos[0].Records != 2 || infos[0].Events != 2 || infos[0].Sources != 1 || len(infos[0].FormerNames) > 0 || infos[0].Content != "reference" {
		t.Errorf("%+v, %v", infos, err)
	}
	if left, err := b.Log.Quarantined(ctx, "news"); err != nil || len(left) != 1 || left[0].Replayed == 0 {
		t.Errorf("%+v, %v", left, err)
	}
}

// TestLookAt: a look at a Source of a configuration needs no data folder and tells no secret.
func TestLookAt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/feed?key=hush", http.StatusMovedPermanently)
			return
		}
		fmt.Fprint(w, strings.Replace(smallFeed, "<title>t</title>", `<title>t</title><atom:link xmlns:atom="http://www.w3.org/2005/Atom" rel="next" href="/feed?key=hush&amp;page=2"/><item><title>no guid</title></item>`, 1))
	}))
	defer server.Close()
	folder := filepath.Join(t.TempDir(), "data")
	url := server.URL + "/?key=hush"
	c := sourcesOf(t, folder, "feed:"+url)
	look, err := LookAt(t.Context(), c, "main", url, Options{Network: Unresolved})
	if err != nil || look.Kind != harvest.Feed || look.Error != "" || len(look.Read) != 1 || look.Read[0].Records != 1 || look.Bad != 1 || len(look.Requests) != 2 ||
		look.Moved != server.URL+"/feed?***" || look.Read[0].URL != server.URL+"/feed?***" {
		t.Errorf("%+v, %v", look, err)
	}
	if text := fmt.Sprintf("%+v", look); strings.Contains(text, "hush") {
		t.Errorf("a secret is told: %s", text)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a data folder: %v", err)
	}
	if _, err := LookAt(t.Context(), c, "other", url, Options{Network: Unresolved}); err == nil || !strings.Contains(err.Error(), `set "other" has no Source `+server.URL+"/?***") {
		t.Errorf("of no set: %v", err)
	}
}

// The repairs that are sent at once fit into one request, however large the records are.
func TestLargestRepairs(t *testing.T) {
	var o event.Observation
	for o.Bound() == nil {
		o.Links = append(o.Links, event.Link{Rel: "describedby", Href: strings.Repeat("x", 5000)})
	}
	r, _, err := NewRepair(&audit.Page{Differences: []audit.Difference{{Findings: make([]audit.Finding, 1), Repair: &harvest.Repair{Observation: o}}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := RepairedAtOnce * base64.StdEncoding.EncodedLen(len(r.Records)); n < mostDecisions/2 || n > mostDecisions-1<<20 {
		t.Errorf("%d bytes; a request may have %d", n, mostDecisions)
	}
}

// Two operators who act at once on a Source that is not configured any more do so one after the
// other: of its records half would be deleted if one forgot it with keep meanwhile.
func TestOperatorsTakeTurns(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	server := &httptest.Server{URL: "http://source.example"}
	closeBridge(t, openFeeds(t, folder, server, "/former"))
	b := openFeeds(t, folder, server, "/other")
	defer closeBridge(t, b)
	if _, err := b.operate(t.Context(), "main", server.URL+"/former", func(src *Source) (string, error) {
		again, err := b.Find(t.Context(), "main", src.URL)
		if err != nil {
			return "", err
		}
		if _, done, ok := again.turn.try(t.Context()); ok {
			done()
			t.Error("another operator can act on it meanwhile")
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSocketThatCannotBeMade: when commands cannot reach a process, its log says which those are
// and what to do.
func TestSocketThatCannotBeMade(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	h, err := Open(t.Context(), loadText(t, t.TempDir(), "data = \"data\"\n[[set]]\nname = \"main\"\n"), Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer closeBridge(t, h)
	if err := os.MkdirAll(filepath.Join(h.Config().Data, controlName, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.serveDecisions(t.Context())
	for _, part := range []string{"bridge reload", "bridge source pause", "cannot reach this process", "restart bridge serve", "SIGHUP", filepath.Join("data", controlName)} {
		if !strings.Contains(said.String(), part) {
			t.Errorf("the log does not say %q:\n%s", part, &said)
		}
	}
}
