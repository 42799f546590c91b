package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// published serves what the harness has and returns its URL, and what ends it.
func published(t *testing.T, serve func(context.Context, net.Listener) error) (url string, end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l) }()
	return "http://" + l.Addr().String(), func() error { cancel(); return <-ended }
}

// answered returns the status of a URL, its Retry-After and its body.
func answered(t *testing.T, url string) (status int, again, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Retry-After"), string(b)
}

// D143: a part of a set is not published as all of it. The complete lists answer
// 503 until each of its Sources was walked whole once; then a Source that joins, or
// fails, takes them away no more. A new epoch begins like a new set.
func TestPartialSet(t *testing.T) {
	p := fixtures.Catalogue(nil)
	var other string
	b := newHarness(t, p, content("reference"), func(c *config.Config) {
		other = strings.Replace(c.Sets[0].Sources[0].URL, "feed.atom", "other.atom", 1)
		second := c.Sets[0].Sources[0]
		second.URL = other
		c.Sets[0].Sources = append(c.Sets[0].Sources, second)
	})
	url, end := published(t, b.bridge.Publish)
	complete := []string{"/sets/main/resourcelist.xml", "/sets/main/complete.atom"}
	want := func(when string, status int) {
		t.Helper()
		for _, path := range complete {
			if got, again, _ := answered(t, url+path); got != status || (again != "") != (status == http.StatusServiceUnavailable) {
				t.Errorf("%s: %s answered %d, Retry-After %q, want %d", when, path, got, again, status)
			}
		}
		for _, path := range []string{"/sets/main/changelist.xml", "/sets/main/feed.atom", "/sets/main/capabilitylist.xml"} {
			if got, _, _ := answered(t, url+path); got != http.StatusOK {
				t.Errorf("%s: %s answered %d", when, path, got)
			}
		}
	}
	want("before the first harvest", http.StatusServiceUnavailable)
	b.harvest()
	want("one Source was walked", http.StatusServiceUnavailable)
	if _, err := b.bridge.Harvest(t.Context(), b.bridge.Sources()[1], harvest.Options{}); err == nil {
		t.Fatal("the second Source answers: this test shows nothing")
	}
	want("the other fails", http.StatusServiceUnavailable)
	if _, err := b.bridge.Harvester().AcceptGap(t.Context(), &b.bridge.Sources()[1].Source); err != nil {
		t.Fatal(err)
	}
	b.harvest()
	want("the other was given up", http.StatusOK)
	if err := end(); err != nil {
		t.Fatal(err)
	}

	b.close()
	third := b.config.Sets[0].Sources[1]
	third.URL = strings.Replace(third.URL, "other", "third", 1)
	b.config.Sets[0].Sources = append(b.config.Sets[0].Sources, third)
	b.open()
	url, end = published(t, b.bridge.Publish)
	want("a third has joined", http.StatusOK)
	if err := end(); err != nil {
		t.Fatal(err)
	}

	b.close()
	b.config.Sets[0].Sources = b.config.Sets[0].Sources[:1]
	if err := os.Remove(filepath.Join(b.config.Data, eventlog.HeadName)); err != nil {
		t.Fatal(err)
	}
	b.open()
	if warnings, err := b.bridge.Warnings(t.Context()); err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], "epoch 2 began at") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	url, end = published(t, b.bridge.Publish)
	want("a backup was put back", http.StatusServiceUnavailable)
	b.harvest()
	want("and harvested", http.StatusOK)
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// D143: where a configuration names a folder that was used and has gone, no new
// log is made unless that is asked for; the first use needs nothing.
func TestFolderWasUsed(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	if err := os.WriteFile(file, []byte("data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"http://127.0.0.1:1/\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(o daemon.Options) error {
		c, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		h, err := daemon.Open(t.Context(), c, o)
		if err != nil {
			return err
		}
		return h.Close()
	}
	for range 2 {
		if err := open(daemon.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(folder, "data"), filepath.Join(folder, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(folder, "data"), 0o700); err != nil { // as an empty mount point
		t.Fatal(err)
	}
	if err := open(daemon.Options{}); err == nil || !strings.Contains(err.Error(), "was used before, and holds no log now") {
		t.Errorf("opened: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(folder, "data")); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if err := open(daemon.Options{NewData: true}); err != nil {
		t.Error(err)
	}
}

// serving has the bridge serve until ctx ends, and tells with what it ended.
func serving(t *testing.T, b *harness, done func(*daemon.Source, harvest.Report, error)) (ctx context.Context, ended <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	end := make(chan error, 1)
	go func() { end <- b.bridge.Serve(ctx, l, done) }()
	return ctx, end
}

// D144: serve ends with an error, soon, when its data folder has gone.
func TestServeFolderGone(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("reference"))
	ctx, ended := serving(t, b, nil)
	if err := os.Rename(b.config.Data, b.config.Data+".old"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Rename(b.config.Data+".old", b.config.Data) })
	if err := <-ended; !errors.Is(err, eventlog.ErrStopped) || ctx.Err() != nil {
		t.Errorf("serve ended with %v", err)
	}
	if err := b.bridge.Close(); err != nil {
		t.Error(err)
	}
	b.bridge = nil
}

// Serve ends when a commit to the tables of SIP says that the log has stopped, and not
// when something cannot be shown.
func TestServeEndsWithTheLog(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("reference"))
	harvested := make(chan struct{}, 1)
	ctx, ended := serving(t, b, func(*daemon.Source, harvest.Report, error) {
		select {
		case harvested <- struct{}{}:
		default:
		}
	})
	<-harvested
	for _, c := range [...]struct{ query, what string }{{"SELECT 1", "a page"}, {"", "a commit"}} {
		why := fmt.Errorf("%s: %w", c.what, eventlog.ErrStopped)
		if err := b.bridge.SIP.Hook(c.query, func() error { return why }); !errors.Is(err, why) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	// The first that ends it is its cause.
	if err := <-ended; !errors.Is(err, eventlog.ErrStopped) || !strings.Contains(err.Error(), "a commit") || ctx.Err() != nil {
		t.Errorf("serve ended with %v", err)
	}
}

// Where verify advises to reset a Source, that helps.
func TestResetDamaged(t *testing.T) {
	testenv.Heavy(t)
	b := newHarness(t, fixtures.Catalogue(nil), content("redirect"))
	b.harvest()
	for _, text := range []string{
		"UPDATE source SET mark = mark + 1",
		"UPDATE source SET memory = NULL; UPDATE sets SET partial = 1",
		"UPDATE schedule SET failures = failures + 1",
		"INSERT INTO seen (source, page, bits) VALUES (1, 0, x'00')",
		"INSERT INTO pending (source, record, partial, since, tries, asked, next, reason, observation, sum) VALUES (1, 1 << 32 | 1, 0, 0, 0, 0, 0, '', x'00', 0)",
		"INSERT INTO held_deletion (source, record, since, person, sum) VALUES (1, 1 << 32 | 1, 0, 0, 0)",
		"INSERT INTO quarantine (id, source, digest, url, line, col, identifier, rule, reason, input, first, last, times, replayed, sum) VALUES (1, 1, x'00', '', 0, 0, '', '', '', x'00', 0, 0, 1, 0, 0)",
	} {
		b.close()
		tamper(t, filepath.Join(b.config.Data, eventlog.FileName), text)
		b.open()
		var advice []string
		verify := func() {
			t.Helper()
			advice = nil
			if _, err := b.bridge.Verify(t.Context(), false, func(f daemon.Finding) { advice = append(advice, f.Do) }); err != nil {
				t.Fatal(err)
			}
		}
		if verify(); len(advice) == 0 || slices.ContainsFunc(advice, func(do string) bool { return !strings.Contains(do, "bridge source reset") }) {
			t.Errorf("%s: verify advises %q", text, advice)
		}
		if sets, err := b.bridge.SetInfos(t.Context()); err != nil || len(sets) != 1 || sets[0].Sources != 1 {
			t.Errorf("%s: the sets are %+v, %v", text, sets, err)
		}
		if _, err := b.bridge.Reset(t.Context(), "main", ""); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		before := b.last()
		b.full()
		b.want("no event is new", b.events(before))
		if verify(); len(advice) > 0 {
			t.Errorf("%s: after the reset verify advises %q", text, advice)
		}
	}
}

// D9, D150: verify names the record whose content is damaged or gone, and harvest
// --full fetches it again; when many have gone /readyz says so.
func TestHealContents(t *testing.T) {
	p := fixtures.Catalogue(nil)
	b := newHarness(t, p, content("mirror"))
	b.harvest()
	path := filepath.Join(b.config.Data, "content.db")
	b.close()
	tamper(t, path, "UPDATE content SET bytes = zeroblob(length) WHERE id = 3")
	tamper(t, path, "DELETE FROM content WHERE id = 5; UPDATE total SET count = count - 1, length = (SELECT sum(length) FROM content)")
	b.open()
	found := func() (out []string) {
		t.Helper()
		if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) { out = append(out, f.Where+": "+f.What+": "+f.Do) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := found()
	if len(before) != 2 {
		t.Fatalf("verify finds %q", before)
	}
	for _, f := range before {
		if !strings.Contains(f, "of record \"") || !strings.Contains(f, "of set main, as "+b.server.URL) || !strings.Contains(f, "bridge harvest --full fetches it again") {
			t.Errorf("verify says %s", f)
		}
	}
	seq := b.last()
	if r := b.full(); len(r.Warnings) > 0 || r.Fetched < 2 {
		t.Errorf("the full harvest: %+v", r)
	}
	b.want("no event is new", b.events(seq))
	if left := found(); len(left) > 0 {
		t.Errorf("healed, and verify finds %q", left)
	}

	b.close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.open()
	url, end := published(t, func(ctx context.Context, l net.Listener) error { return b.bridge.Serve(ctx, l, nil) })
	for {
		status, _, body := answered(t, url+"/readyz")
		if status == http.StatusServiceUnavailable && strings.Contains(body, "contents are missing") {
			break
		}
		if t.Context().Err() != nil {
			t.Fatalf("/readyz answers %d: %s", status, body)
		}
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	b.full()
	if left := found(); len(left) > 0 {
		t.Errorf("healed, and verify finds %q", left)
	}
}

// Where an event cannot be read, verify does not say that no event names a content, but that those
// of the later events were not looked up.
func TestVerifyBehindADamagedEvent(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("mirror"))
	b.harvest()
	b.close()
	tamper(t, filepath.Join(b.config.Data, "content.db"), "UPDATE content SET bytes = zeroblob(length) WHERE id = 3")
	tamper(t, filepath.Join(b.config.Data, "log.db"), "UPDATE event SET body = zeroblob(length(body)) WHERE id & 255 = 2")
	b.open()
	var found []string
	if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) { found = append(found, f.Where+": "+f.What) }); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(found, "\n")
	for _, want := range []string{"set main: the contents that its events after event 1 name were not looked up: ", "restore it from a backup; which event names it is not known"} {
		if strings.Count(all, want) != 1 || strings.Contains(all, "no event names it") {
			t.Errorf("%q is not once in\n%s", want, all)
		}
	}
}

// A set that gets another name while verify runs is no damage.
func TestVerifyBesideRename(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("mirror"), segments(5))
	b.harvest()
	b.close()
	tamper(t, filepath.Join(b.config.Data, "content.db"), "UPDATE content SET bytes = zeroblob(length) WHERE id = 3")
	b.open()
	var found []string
	if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) {
		if found = append(found, f.Where+": "+f.What); len(found) > 1 {
			return
		}
		if err := b.bridge.Log.RenameSet(t.Context(), "main", "renamed", false); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Error(err)
	}
	if want := "set main: it was renamed or removed meanwhile, and not all of it was checked"; len(found) != 2 || found[1] != want {
		t.Errorf("%q, want the damaged content and %q", found, want)
	}
}

// The memory of verify is in proportion to the contents, not to what it says of them.
func TestVerifyManyDamaged(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("mirror"))
	b.harvest()
	b.close()
	const many = 30_000
	tamper(t, filepath.Join(b.config.Data, "content.db"), fmt.Sprintf("INSERT INTO content (id, sum, length, bytes) WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT i, CAST(printf('%%032d', i) AS BLOB), 1, x'00' FROM n", 999+many))
	b.open()
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	said, before, grown := 0, heap(), int64(0)
	if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) {
		if said++; said == 1 {
			grown = heap() - before
		}
		if f.What != "it is damaged (its bytes do not have its hash): restore it from a backup; no event names it" {
			t.Fatalf("%+v", f)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if said != many || grown > 200*many {
		t.Errorf("%d findings, want %d; %d bytes for each", said, many, grown/many)
	}
}

// Where the bucket of snapshots cannot be read, verify says so and checks all the rest.
func TestVerifyWithoutFiles(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	b := newHarness(t, fixtures.Catalogue(nil), content("mirror"), func(c *config.Config) {
		c.Store.Files = "s3://library/files?endpoint=http://127.0.0.1:1"
	})
	b.harvest()
	var found []daemon.Finding
	v, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) { found = append(found, f) })
	if err != nil || len(found) != 1 || found[0].Where != "s3://library/files?endpoint=http://127.0.0.1:1" || v.Events == 0 {
		t.Errorf("%+v finds %+v: %v", v, found, err)
	}

	// The log has one identity there, from the first serve on.
	var owners []string
	for range 3 {
		owner, err := os.ReadFile(filepath.Join(b.config.Data, "files.owner"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		owners = append(owners, string(owner))
		_, end := published(t, b.bridge.Publish)
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if owners[0] != "" || len(owners[1]) < 20 || owners[2] != owners[1] {
		t.Errorf("the identities are %q", owners)
	}
}

// While servers are slow to give contents again, everybody else reads the log.
func TestHealSlowly(t *testing.T) {
	p := fixtures.Catalogue(nil)
	b := newHarness(t, p, content("mirror"), func(c *config.Config) {
		for _, name := range []string{"second", "third", "fourth"} {
			set := c.Sets[0]
			set.Name = name
			c.Sets = append(c.Sets, set)
		}
	})
	each := func(do func(s *daemon.Source)) {
		var group sync.WaitGroup
		for _, s := range b.bridge.Sources() {
			group.Go(func() { do(s) })
		}
		group.Wait()
	}
	each(func(s *daemon.Source) {
		if _, err := b.bridge.Harvest(t.Context(), s, harvest.Options{AllPending: true}); err != nil {
			t.Error(err)
		}
	})
	b.close()
	tamper(t, filepath.Join(b.config.Data, "content.db"), "UPDATE content SET bytes = zeroblob(length) WHERE id = 3")
	b.open()
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != fixtures.Subscription && !strings.HasPrefix(r.URL.Path, "/archive/") {
			asked <- struct{}{}
			<-answer
		}
		p.ServeHTTP(w, r)
	})
	var group sync.WaitGroup
	group.Go(func() {
		each(func(s *daemon.Source) {
			if r, err := b.bridge.Harvest(t.Context(), s, harvest.Options{Full: true}); err != nil || len(r.Warnings) > 0 {
				t.Errorf("%s: %+v, %v", s.Set, r, err)
			}
		})
	})
	for range 4 {
		<-asked
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := b.bridge.Log.Set(ctx, "main"); err != nil {
		t.Errorf("while contents are fetched again: %v", err)
	}
	close(answer)
	group.Wait()
	if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) { t.Errorf("verify says %+v", f) }); err != nil {
		t.Fatal(err)
	}
}

// What a Source has replaced is not taken for what was published.
func TestHealOther(t *testing.T) {
	p := fixtures.Catalogue(nil)
	b := newHarness(t, p, content("mirror"))
	b.harvest()
	b.close()
	tamper(t, filepath.Join(b.config.Data, "content.db"), "UPDATE content SET bytes = zeroblob(length) WHERE id = 3")
	b.open()
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == fixtures.Subscription || strings.HasPrefix(r.URL.Path, "/archive/") {
			p.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, "other bytes")
	})
	if r := b.full(); len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "contents missing or damaged that could not be fetched again: 1") {
		t.Errorf("the full harvest: %+v", r)
	}
	if _, err := b.bridge.Verify(t.Context(), true, func(f daemon.Finding) {
		if !strings.Contains(f.What, "damaged") {
			t.Errorf("verify says %+v", f)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
