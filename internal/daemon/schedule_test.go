package daemon

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

const smallFeed = `<rss version="2.0"><channel><title>t</title><item><guid>a</guid><title>a</title><link>http://h.example/a</link></item></channel></rss>`

// Unresolved is a network where no name has an address, and no name server is asked.
var Unresolved = fetch.Network{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() { // one question, as over TCP; the answer is that there is no such name
		defer theirs.Close()
		var length [2]byte
		_, err := io.ReadFull(theirs, length[:])
		message := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, failed := io.ReadFull(theirs, message); err != nil || failed != nil || len(message) < 12 {
			return
		}
		message[2], message[3] = message[2]|0x80, 0x83
		_, _ = theirs.Write(append(length[:], message...))
	}()
	return ours, nil
}}}

// openFeeds opens a bridge over legacy feeds at the paths of a server.
func openFeeds(t *testing.T, folder string, server *httptest.Server, paths ...string) *Bridge {
	t.Helper()
	var args []string
	for _, p := range paths {
		args = append(args, "feed:"+server.URL+p)
	}
	c := sourcesOf(t, folder, args...)
	c.Sets[0].Content = config.Reference
	return openBridge(t, c, Options{Network: Unresolved})
}

// sourcesOf is the configuration of Sources that are named on a command line.
func sourcesOf(t *testing.T, folder string, sources ...string) *config.Config {
	t.Helper()
	c, err := config.FromArguments(config.Flags{Data: folder}, sources)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openBridge(t *testing.T, c *config.Config, o Options) *Bridge {
	t.Helper()
	h, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func closeBridge(t *testing.T, h *Bridge) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// scheduled lets the Sources of a bridge be harvested until stop is called, which closes it.
func scheduled(t *testing.T, h *Bridge) (stop func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.schedule(ctx, cancel, nil)
	}()
	return func() {
		cancel(nil)
		<-ended
		closeBridge(t, h)
	}
}

// TestRestartAsksOnlyWhatIsDue: when a Source is asked next outlives the process
// (D51): after a success, after failures in a row, and with the Source's own wish.
// A bridge that still walks its own Sources has not failed, and has nothing yet (D143).
func TestRestartAsksOnlyWhatIsDue(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/later":
			w.Header().Set("Retry-After", "1800")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/withheld":
			w.Header().Set("Retry-After", "30")
			w.Header().Set(follow.PartialHeader, "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, smallFeed)
		}
	}))
	defer server.Close()
	folder := t.TempDir()
	paths := []string{"/good", "/missing", "/later", "/withheld", "/new"}
	h := openFeeds(t, folder, server, paths...)
	for i := range 4 {
		for range i + 1 { // the second fails twice, the third is refused by our own guard from the second time on
			_, err := h.harvestSource(t.Context(), h.Sources()[i], h.Sources()[i].Every, harvest.Options{})
			if (err != nil) != (i == 1 || i == 2) {
				t.Fatalf("%s: %v", paths[i], err)
			}
		}
	}
	closeBridge(t, h)

	h = openFeeds(t, folder, server, paths...)
	for i, want := range []struct {
		failures int
		from, to time.Duration
	}{
		{0, 59 * time.Minute, 66 * time.Minute}, {2, time.Minute, 132 * time.Second}, {3, 28 * time.Minute, 31 * time.Minute}, {0, 50 * time.Second, 67 * time.Second}, {0, 0, 0},
	} {
		s, err := h.Log.Schedule(t.Context(), h.Sources()[i].ID)
		due, dueErr := h.DueIn(t.Context(), h.Sources()[i])
		if err = errors.Join(err, dueErr); err != nil || s.Failures != want.failures || due < want.from || due > want.to {
			t.Errorf("%s: due in %s after %d failures, %v; want between %s and %s, %d", paths[i], due, s.Failures, err, want.from, want.to, want.failures)
		}
	}

	// Who asks by hand asks now, and a success ends the failures.
	before := asked.Load()
	if _, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{}); err != nil || asked.Load() != before+1 {
		t.Errorf("by hand: %v, %d requests", err, asked.Load()-before)
	}
	if s, err := h.Log.Schedule(t.Context(), h.Sources()[0].ID); err != nil || s.Next != 0 {
		t.Errorf("after that serve asks when it starts; planned for %v, %v", s.Next, err)
	}
	closeBridge(t, h)
}

// TestUnchangedHarvestWritesNothing: a feed that has nothing new costs no
// transaction (D151); when it was asked is written later.
func TestUnchangedHarvestWritesNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, smallFeed)
	}))
	defer server.Close()
	folder := t.TempDir()
	h := openFeeds(t, folder, server, "/")
	size := func() int64 {
		info, err := os.Stat(filepath.Join(folder, "log.db-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	pass := func() harvest.Report {
		r, err := h.harvestSource(t.Context(), h.Sources()[0], time.Hour, harvest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	pass()
	before := size()
	var last harvest.Report
	for range 20 {
		if last = pass(); !last.NotModified {
			t.Fatalf("%+v", last)
		}
	}
	if after := size(); after != before {
		t.Errorf("20 harvests without a change wrote %d bytes", after-before)
	}
	// It is known here and now, and to the next process.
	for range 2 {
		sets, err := h.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s := sets.Sets[0].Sources[0]; s.Last == nil || !s.Last.Ended.Equal(last.Ended) || s.Next.Before(last.Ended.Add(time.Hour)) {
			t.Errorf("last harvest %+v, next %s; want one that ended %s", s.Last, s.Next, last.Ended)
		}
		closeBridge(t, h)
		h = openFeeds(t, folder, server, "/")
	}
	closeBridge(t, h)
}

// TestDeathDuringHarvestCounts: a Source that was being harvested when the
// process died is asked ever later, as after other failures (D64).
func TestDeathDuringHarvestCounts(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-leave
		fmt.Fprint(w, smallFeed)
	}))
	defer server.Close()
	folder := t.TempDir()
	for death := 1; death <= 3; death++ {
		h := openFeeds(t, folder, server, "/")
		ended := make(chan error)
		go func() {
			_, err := h.harvestSource(context.WithoutCancel(t.Context()), h.Sources()[0], time.Hour, harvest.Options{})
			ended <- err
		}()
		<-entered
		sets, err := h.Status(t.Context())
		if err != nil || sets.Sets[0].Sources[0].Underway == nil || sets.Sets[0].Sources[0].Failures != death-1 {
			t.Errorf("status while it is harvested: %+v, %v", sets, err)
		}
		// What the process leaves when it dies now.
		file := filepath.Join(folder, underwayFolder, fmt.Sprintf("%d.json", h.Sources()[0].ID))
		left, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := h.Log.Schedule(t.Context(), h.Sources()[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		leave <- struct{}{}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if err := h.Log.SaveSchedule(t.Context(), h.Sources()[0].ID, stored, false); err != nil {
			t.Fatal(err)
		}
		closeBridge(t, h)
		if err := os.WriteFile(file, left, 0o600); err != nil {
			t.Fatal(err)
		}

		h = openFeeds(t, folder, server, "/")
		s, err := h.Log.Schedule(t.Context(), h.Sources()[0].ID)
		due, dueErr := h.DueIn(t.Context(), h.Sources()[0])
		least := retryDelay(death, time.Hour) - 10*time.Second
		if err = errors.Join(err, dueErr); err != nil || s.Failures != death || due < least || due > 2*least+time.Minute {
			t.Errorf("after death %d: %d failures, due in %s, %v; want about %s", death, s.Failures, due, err, least)
		}
		if sets, err := h.Status(t.Context()); err != nil || !strings.Contains(sets.Sets[0].Sources[0].Last.Error, "ended during this harvest") || sets.Sets[0].Sources[0].Underway != nil {
			t.Errorf("status after it: %+v, %v", sets, err)
		}
		closeBridge(t, h)
	}
}

// TestEventsBeforeDeath: what a harvest had logged when the process died is in its row of the
// history.
func TestEventsBeforeDeath(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, smallFeed) }))
	defer server.Close()
	folder := t.TempDir()
	h := openFeeds(t, folder, server, "/")
	src := h.Sources()[0]
	job := h.underway.begin(src)
	report, err := h.harvest.Run(t.Context(), &src.Source, harvest.Options{Progress: job.update})
	if err != nil || report.Created == 0 {
		t.Fatalf("%d created, %v", report.Created, err)
	}
	job.write()
	file := filepath.Join(folder, underwayFolder, fmt.Sprintf("%d.json", src.ID))
	left, err := os.ReadFile(file) // what the process leaves when it dies now
	if err != nil {
		t.Fatal(err)
	}
	closeBridge(t, h)
	if err := os.WriteFile(file, left, 0o600); err != nil {
		t.Fatal(err)
	}
	h = openFeeds(t, folder, server, "/")
	defer closeBridge(t, h)
	rows, err := h.History(t.Context(), src.ID, 0, 1)
	if err != nil || len(rows) != 1 || rows[0].Error == nil || rows[0].Created != report.Created || rows[0].Updated != report.Updated || rows[0].Deleted != report.Deleted {
		t.Errorf("the history has %+v, %v; want a row that has failed with %d created", rows, err, report.Created)
	}
}

// TestRetryAfterOfPartialBridge: a bridge that has not walked all its own Sources is asked again
// soon, but not before the time that it gives.
func TestRetryAfterOfPartialBridge(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Bridge-Partial", "unknown")
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	c := sourcesOf(t, t.TempDir(), "atompmh:"+server.URL+"/feed.atom")
	h := openBridge(t, c, Options{})
	defer closeBridge(t, h)
	src := h.Sources()[0]
	report, err := h.harvestSource(t.Context(), src, 2*time.Hour, harvest.Options{})
	if err != nil || !report.Withheld {
		t.Fatalf("withheld: %v, %v", report.Withheld, err)
	}
	if due, err := h.DueIn(t.Context(), src); err != nil || due < 59*time.Minute || due > 61*time.Minute {
		t.Errorf("it is asked again in %s, %v; want an hour", due, err)
	}
}

type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a defect") }

// TestPanicBacksTheSourceOff: a panic in a harvest is that Source's failure and
// does not end the process (D75).
func TestPanicBacksTheSourceOff(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, smallFeed) }))
	defer server.Close()
	h := openFeeds(t, t.TempDir(), server, "/", "/other")
	defer closeBridge(t, h)
	h.Sources()[0].Client = &http.Client{Transport: panics{}}
	for i, src := range h.Sources() {
		_, err := h.harvestSource(t.Context(), src, time.Hour, harvest.Options{})
		s, serr := h.Log.Schedule(t.Context(), src.ID)
		if errors.As(err, new(*defect.Error)) != (i == 0) || serr != nil || s.Failures != 1-i {
			t.Errorf("Source %d: %v, %d failures, %v", i, err, s.Failures, serr)
		}
	}
}

// TestFullQuarantineIsSaid: what makes room in quarantine for newer bad inputs is
// said in the harvest's report, and counted in the status (D131, I8).
func TestFullQuarantineIsSaid(t *testing.T) {
	testenv.Heavy(t)
	var feed strings.Builder
	feed.WriteString(`<rss version="2.0"><channel><title>t</title>`)
	for i := range 10_100 {
		fmt.Fprintf(&feed, "<item><title>nothing says which item %d is</title></item>", i)
	}
	feed.WriteString(`</channel></rss>`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, feed.String()) }))
	defer server.Close()
	h := openFeeds(t, t.TempDir(), server, "/")
	defer closeBridge(t, h)
	report, err := h.harvestSource(t.Context(), h.Sources()[0], time.Hour, harvest.Options{})
	if err != nil || report.Quarantined != 10_100 || report.Dropped != 1100 || len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "this harvest dropped 1100 ") {
		t.Errorf("%d quarantined, %d dropped, %q, %v", report.Quarantined, report.Dropped, report.Warnings, err)
	}
	sets, err := h.Status(t.Context())
	if err != nil || sets.Sets[0].Sources[0].Quarantined != 9000 || sets.Sets[0].Sources[0].Dropped != 1100 {
		t.Errorf("status: %+v, %v", sets, err)
	}
}

// TestFailingSinceIsNotAhead: a Source that began to fail while the clock was ahead has failed since
// the next failure, or nobody would be alerted before the wrong time has come.
func TestFailingSinceIsNotAhead(t *testing.T) {
	now := time.Now()
	for was, want := range map[time.Time]time.Time{now.AddDate(0, 6, 0): now, now.AddDate(0, -6, 0): now.AddDate(0, -6, 0)} {
		next, _, err := nextSchedule(event.Schedule{FailingSince: event.MicrosOf(was)}, &harvest.Report{Ended: now, Error: "it answered 500"})
		if err != nil || next.FailingSince != event.MicrosOf(want) {
			t.Errorf("failing since %v: %v, %v, want %v", was, next.FailingSince, err, want)
		}
	}
}

// TestRetryDelayIsCapped: a Source that fails for days is asked ever less often,
// down to 24 times its own interval or once a day, and never without a pause (D100, D141).
func TestRetryDelayIsCapped(t *testing.T) {
	for _, every := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 1<<63 - 1} {
		most := 24 * time.Hour
		if every < time.Hour {
			most = 24 * every
		}
		before := time.Duration(0)
		for failures := 1; failures <= 200; failures++ {
			got := retryDelay(failures, every)
			if got < min(time.Minute, most) || got > most || got < before {
				t.Fatalf("every %s: %s after %d failures, %s after one less, want between %s and %s", every, got, failures, before, min(time.Minute, most), most)
			}
			before = got
		}
		if before != most {
			t.Errorf("every %s: %s after 200 failures, want %s", every, before, most)
		}
	}
}

// answers is a Source that is asked without a network, by the paths of its URLs.
type answers func(path string) string

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(f(r.URL.Path))), Request: r}, nil
}

// TestLogAwayDoesNotDelay: a Source whose harvest has met a log that cannot be read is asked again
// within two minutes after it can, however rarely it is asked else, and then again as rarely.
func TestLogAwayDoesNotDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		folder := t.TempDir()
		h := openFeeds(t, folder, &httptest.Server{URL: "http://source.example"}, "/")
		log := filepath.Join(folder, "log.db")
		began, asked := time.Now(), []time.Time(nil)
		src := h.Sources()[0]
		src.Every = 24 * time.Hour
		src.Client = &http.Client{Transport: answers(func(string) string {
			if len(asked) == 0 && time.Now().Equal(began) {
				change(t, log, "ALTER TABLE schedule RENAME TO schedule_away")
			}
			asked = append(asked, time.Now())
			return smallFeed
		})}
		stop := scheduled(t, h)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(asked) == 0 || asked[len(asked)-1] != began {
			t.Errorf("while the log cannot be read, since %v, the Source is asked at %v", began, asked)
		}
		asked = nil
		change(t, log, "ALTER TABLE schedule_away RENAME TO schedule")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(asked) == 0 {
			t.Error("within two minutes after the log can be read the Source is not asked")
		}
		asked = nil
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if len(asked) != 0 {
			t.Errorf("it is asked at %v", asked)
		}
		stop()
	})
}

// A Source that waits for space on the disk is harvested again even if the log cannot be read
// at the moment when there is space.
func TestLogAwayWhenThereIsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		folder := t.TempDir()
		h := openFeeds(t, folder, &httptest.Server{URL: "http://source.example"}, "/")
		asked := 0
		h.Sources()[0].Client = &http.Client{Transport: full(func() { asked++ })}
		stop := scheduled(t, h)
		time.Sleep(probeEvery / 2)
		synctest.Wait()
		if asked != 1 {
			t.Errorf("the Source is asked %d times", asked)
		}
		log := filepath.Join(folder, "log.db")
		change(t, log, "ALTER TABLE schedule RENAME TO schedule_away")
		time.Sleep(probeEvery)
		synctest.Wait()
		change(t, log, "ALTER TABLE schedule_away RENAME TO schedule")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if asked < 2 {
			t.Error("within two minutes after the log can be read the Source is not asked")
		}
		stop()
	})
}

// Contents are counted again an hour after the log could not be read.
func TestContentsAreCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		folder := t.TempDir()
		h := openFeeds(t, folder, &httptest.Server{URL: "http://source.example"}, "/")
		log := filepath.Join(folder, "log.db")
		if err := h.Log.MarkSetComplete(t.Context(), "main"); err != nil { // sets are read again after a commit
			t.Fatal(err)
		}
		change(t, log, "ALTER TABLE sets RENAME TO sets_away")
		before := &missingContents{1, 2}
		h.missingContents.Store(before)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.watchContents(t.Context())
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("they are not counted any more")
		default:
		}
		if h.missingContents.Load() != before {
			t.Error("what is not known counts as nothing missing")
		}
		change(t, log, "ALTER TABLE sets_away RENAME TO sets")
		time.Sleep(countEvery)
		<-ended
		if m := h.missingContents.Load(); m != nil {
			t.Error(m)
		}
		closeBridge(t, h)
	})
}

// Each template is asked for its sets as often as the configuration says, whatever becomes of
// another one, which is asked with growing delays while it fails.
func TestTemplatesAreAskedWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		c := sourcesOf(t, t.TempDir(), "good=resourcesync:http://good.example/", "bad=resourcesync:http://bad.example/")
		c.Sets[0].Sources[0].Sets, c.Sets[0].Sources[0].Every = config.EachSet, 6*time.Hour
		c.Sets[1].Sources[0].Sets = config.EachSet
		h := openBridge(t, c, Options{Network: Unresolved})
		var mu sync.Mutex
		var asked [2][]time.Duration
		times := func(i int) []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Compact(slices.Clone(asked[i]))
		}
		began := time.Now()
		for i, source := range h.Templates() {
			source.Client = &http.Client{Transport: answers(func(path string) string {
				if path != "/list" {
					mu.Lock()
					defer mu.Unlock()
					asked[i] = append(asked[i], time.Since(began).Round(time.Minute))
					if i == 1 {
						return ""
					}
				}
				return oneSet("http://good.example", path)
			})}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.watchTemplates(ctx, func(*Source) {})
		}()
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		good, bad := times(0), times(1)
		if len(good) != 1 {
			t.Errorf("one that does not fail is asked at %v", good)
		}
		if len(bad) < 6 || len(bad) > 10 {
			t.Errorf("one that fails is asked at %v", bad)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if good = times(0); len(good) != 2 {
			t.Errorf("in seven hours one that is asked every six is asked at %v", good)
		}
		stop()
		<-ended
		closeBridge(t, h)
	})
}

// oneSet returns the Source Description of a Source with one set, or at /list its Capability List.
func oneSet(host, path string) string {
	is, leadsTo, to := "description", "list", "capabilitylist"
	if path == "/list" {
		is, leadsTo, to = "capabilitylist", "resources", "resourcelist"
	}
	return fmt.Sprintf(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s"/><url><loc>%s/%s</loc><rs:md capability="%s"/></url></urlset>`, is, host, leadsTo, to)
}

// A template whose Source cannot be asked for its sets twice in a row is warned of until it can.
func TestFailingTemplateIsWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		c := sourcesOf(t, t.TempDir(), "maps=resourcesync:http://maps.example/")
		c.Sets[0].Sources[0].Sets = config.EachSet
		h := openBridge(t, c, Options{Network: Unresolved})
		var works atomic.Bool
		h.Templates()[0].Client = &http.Client{Transport: answers(func(path string) string {
			if !works.Load() {
				return ""
			}
			return oneSet("http://maps.example", path)
		})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.watchTemplates(ctx, func(*Source) {})
		}()
		// warned returns the warnings after a time.
		warned := func(after time.Duration) string {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			s, err := h.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return strings.Join(s.Warnings, "\n")
		}
		if text := warned(time.Second); text != "" {
			t.Errorf("after the first failure: %s", text)
		}
		if text := warned(5 * time.Minute); !strings.HasPrefix(text, "template maps: its sets cannot be found out: ") || !strings.Contains(text, "http://maps.example/") {
			t.Errorf("when it goes on: %q", text)
		}
		works.Store(true)
		if text := warned(10 * time.Minute); text != "" || len(h.Sources()) != 1 {
			t.Errorf("when it works, with %d Sources: %s", len(h.Sources()), text)
		}
		stop()
		<-ended
		closeBridge(t, h)
	})
}

// What a set logs is applied to a set of sets at once also when that was last harvested while the
// clock was ahead.
func TestMemberAfterClockWasAhead(t *testing.T) {
	t.Parallel()
	var entries atomic.Int32
	entries.Store(1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated>`)
		for i := range entries.Load() {
			fmt.Fprintf(w, `<entry><id>urn:%d</id><title>t</title><updated>2025-01-01T00:00:00Z</updated><link href="http://x.example/%[1]d"/></entry>`, i)
		}
		fmt.Fprint(w, `</feed>`)
	}))
	defer server.Close()
	c := sourcesOf(t, t.TempDir(), "one=feed:"+server.URL, "all=set:one")
	c.Sets[0].Content, c.Sets[1].Content = config.Reference, config.Reference
	now := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC) // six hours ahead
	b := openBridge(t, c, Options{Network: Unresolved, Now: func() time.Time { return now }})
	defer closeBridge(t, b)
	one, all := b.Sources()[0], b.Sources()[1]
	for _, src := range []*Source{one, all} {
		if _, err := b.harvestSource(t.Context(), src, src.Every, harvest.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(-6 * time.Hour)
	entries.Store(2)
	if r, err := b.harvestSource(t.Context(), one, one.Every, harvest.Options{}); err != nil || r.Created != 1 {
		t.Fatalf("%d created, %v", r.Created, err)
	}
	if wait, err := b.DueIn(t.Context(), all); err != nil || wait > memberPace {
		t.Errorf("the set of sets is due in %s, %v", wait, err)
	}
}

// A set of sets that cannot take what its sets have logged, as while the clock is not believed, is
// tried again after a minute, as other Sources are, and not without a pause.
func TestMemberThatFailsHerePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		c := sourcesOf(t, t.TempDir(), "one=feed:http://one.example/", "all=set:one")
		c.Sets[0].Content, c.Sets[1].Content = config.Reference, config.Reference
		b := openBridge(t, c, Options{Network: Unresolved})
		defer closeBridge(t, b)
		one, all := b.Sources()[0], b.Sources()[1]
		text := smallFeed
		one.Client = &http.Client{Transport: answers(func(string) string { return text })}
		for _, src := range []*Source{one, all, one} {
			if _, err := b.harvestSource(t.Context(), src, src.Every, harvest.Options{}); err != nil {
				t.Fatal(err)
			}
			text = strings.ReplaceAll(smallFeed, "<title>a<", "<title>b<")
		}
		if wait, err := b.DueIn(t.Context(), all); err != nil || wait > memberPace {
			t.Errorf("it is due in %s, %v", wait, err)
		}
		time.Sleep(25 * time.Hour) // for the log the clock has jumped
		if _, err := b.harvestSource(t.Context(), all, all.Every, harvest.Options{}); !errors.Is(err, event.ErrClock) {
			t.Fatalf("%v", err)
		}
		if wait, err := b.DueIn(t.Context(), all); err != nil || wait < retryFirst {
			t.Errorf("after a failure it is due in %s, %v", wait, err)
		}
	})
}

// A disk that is full elsewhere, as that of a server with the log, does not have a Source asked again
// and again because there is space in the data folder.
func TestFullElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testenv.ThisDecade()
		h := openFeeds(t, t.TempDir(), &httptest.Server{URL: "http://source.example"}, "/")
		var asked []time.Duration
		began := time.Now()
		h.Sources()[0].Client = &http.Client{Transport: full(func() { asked = append(asked, time.Since(began).Round(time.Second)) })}
		stop := scheduled(t, h)
		time.Sleep(10*retryFirst + retryFirst/2)
		synctest.Wait()
		if len(asked) < 8 || len(asked) > 11 {
			t.Errorf("the Source is asked at %v", asked)
		}
		stop()
	})
}

// full is a Source whose answers there is no space for.
type full func()

func (f full) RoundTrip(*http.Request) (*http.Response, error) {
	f()
	return nil, content.ErrFull
}

// change changes a database. Any goroutine may call it.
func change(t *testing.T, file, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = db.Exec(text)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Error(err)
	}
}

// The metrics count events of contents that were fetched after the harvest, too. That is no
// harvest.
func TestPendingContentsAreCounted(t *testing.T) {
	var there atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/feed", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author>`)
		for _, name := range []string{"a", "b"} {
			fmt.Fprintf(w, `<entry><id>urn:%[1]s</id><title>t</title><updated>2025-01-01T00:00:00Z</updated><link type="text/plain" href="http://%[2]s/%[1]s"/></entry>`, name, r.Host)
		}
		fmt.Fprint(w, "</feed>")
	})
	mux.HandleFunc("/a", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a") })
	mux.HandleFunc("/b", func(w http.ResponseWriter, r *http.Request) {
		if !there.Load() {
			http.NotFound(w, r)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := sourcesOf(t, t.TempDir(), "atompmh:"+server.URL+"/feed")
	h := openBridge(t, c, Options{Network: Unresolved})
	defer closeBridge(t, h)
	want := func(events int, harvests string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, line := range []string{
			fmt.Sprintf("bridge_events_total{kind=\"created\",set=\"main\",source=%q} %d\n", server.URL+"/feed", events),
			fmt.Sprintf("bridge_harvests_total{result=\"partial\",set=\"main\",source=%q} %s\n", server.URL+"/feed", harvests),
		} {
			if !strings.Contains(w.Body.String(), line) {
				t.Errorf("no line %s", line)
			}
		}
		if set, err := h.Log.Set(t.Context(), "main"); err != nil || set.Events != int64(events) {
			t.Errorf("%d events, %v", set.Events, err)
		}
	}
	if r, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{}); err != nil || r.Pending != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	want(1, "1")
	there.Store(true)
	h.harvest.Now = func() time.Time { return time.Now().Add(time.Hour) }
	if err := h.retryPendingOf(t.Context(), h.Sources()[0]); err != nil {
		t.Fatal(err)
	}
	want(2, "1")
}

// D75: a loop of the daemon that panics is begun anew after a minute, until it ends by
// itself or with the daemon.
func TestLoopIsBegunAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		h := &Bridge{opt: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
		began, start := 0, time.Now()
		h.restartOnPanic(t.Context(), "a loop", func(context.Context) {
			if began++; began < 3 {
				panic("a defect")
			}
		})
		if took := time.Since(start); began != 3 || took != 2*restartAfter {
			t.Errorf("begun %d times in %s", began, took)
		}
		if text := said.String(); strings.Count(text, "a loop has failed") != 2 || !strings.Contains(text, "schedule_test.go") {
			t.Errorf("the log says %s", text)
		}
		ctx, cancel := context.WithCancel(t.Context())
		h.restartOnPanic(ctx, "a loop", func(context.Context) {
			began++
			cancel()
			panic("a defect")
		})
		if began != 4 {
			t.Errorf("begun %d times, the last after the end", began)
		}
	})
}

// What is written to find out whether there is space is in no file with a name: a crash leaves
// nothing of it.
func TestProbeSpace(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Data = t.TempDir()
	b := &Bridge{}
	b.generation.Store(newGeneration(c))
	done := make(chan error)
	go func() { done <- errors.Join(b.probeSpace(), b.probeSpace(), b.probeSpace()) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		files, err := os.ReadDir(c.Data)
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			if st, err := f.Info(); err == nil && st.Size() > 0 {
				t.Errorf("%s has %d bytes", f.Name(), st.Size())
			}
		}
	}
}
