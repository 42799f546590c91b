package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithS3(m)) }

// node is a Publisher with folders of its own and a bucket that others have too. Its clock
// stands, and what its log says is kept.
type node struct {
	*Publisher
	t        testing.TB
	schedule map[string]*schedule
	dumps    map[string]*dumpPlan
	lists    map[string]time.Time
	follows  []*follower

	mu   sync.Mutex
	now  time.Time
	said []string
}

func newNode(t testing.TB, l Log, c *contentStore, address, dir string) *node {
	t.Helper()
	return nodeOf(t, Options{Log: l, FilesOwner: "library"}, c, address, dir)
}

// newFollower is a node that follows another.
func newFollower(t testing.TB, l Log, c *contentStore, address, dir string) *node {
	t.Helper()
	return nodeOf(t, Options{Log: l, FilesOwner: "library", Follow: true}, c, address, dir)
}

func nodeOf(t testing.TB, o Options, c *contentStore, address, dir string) *node {
	t.Helper()
	a, err := bucket.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	n := &node{t: t, now: time.Now(), schedule: map[string]*schedule{}, dumps: map[string]*dumpPlan{}, lists: map[string]time.Time{}}
	o.BaseURL, o.CacheDir, o.SnapshotDir, o.CacheBytes, o.Files = base, dir+"/cache", dir+"/snapshots", 1<<30, b
	o.AfterDeletion, o.AfterChange, o.DumpEvery, o.Content = time.Second, time.Second, time.Second, c.open
	o.Retention = Retention{Age: time.Hour, Count: 2, Bytes: 4 << 30}
	o.Poll, o.Logger = time.Millisecond, slog.New(slog.NewTextHandler(n, nil))
	o.Now = func() time.Time {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.now
	}
	n.Publisher, err = New(o)
	if err != nil {
		t.Fatal(err)
	}
	n.limits.Entries, n.packageLimits.Entries = 4, 4
	return n
}

// Write takes a line of the log.
func (n *node) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, string(line))
	return len(line), nil
}

// heard returns how many lines of the log have a text, and forgets all.
func (n *node) heard(text string) (lines int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, line := range n.said {
		if strings.Contains(line, text) {
			lines++
		}
	}
	n.said = nil
	return lines
}

func (n *node) pass(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = n.now.Add(d)
}

// writes does twice what Run does at each Poll: the first time may plan only.
func (n *node) writes() {
	n.t.Helper()
	for range 2 {
		n.pass(2 * time.Second)
		for n.checks() {
		}
		n.shares()
	}
}

// checks makes what is due, and reports whether more is.
func (n *node) checks() (more bool) {
	n.t.Helper()
	ctx := n.t.Context()
	if err := errors.Join(n.checkSets(ctx, n.schedule, n.lists), n.checkDumps(ctx, n.dumps)); err != nil {
		n.t.Error(err)
		return false
	}
	select {
	case <-n.wakeups:
		return true
	default:
		return false
	}
}

func (n *node) shares() {
	n.t.Helper()
	if err := n.files.shareOnce(n.t.Context()); err != nil && !errors.Is(err, errBucket) {
		n.t.Error(err)
	}
}

// reads does what Follow does at each Poll.
func (n *node) reads() {
	n.t.Helper()
	if n.follows == nil {
		n.follows = n.followers()
	}
	for _, w := range n.follows {
		if err := w.check(n.t.Context()); err != nil {
			n.t.Error(err)
		}
	}
}

// documents returns all documents of the plan, with their headers.
func (n *node) documents() map[string]string {
	n.t.Helper()
	items, err := n.Plan(n.t.Context(), "main")
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[string]string{}
	for i := range items {
		for _, gzip := range []bool{false, true} {
			body, meta := get(n.t, n.Publisher, items[i].Path, gzip)
			all[fmt.Sprint(items[i].Path, gzip)] = fmt.Sprintf("%+v %s", meta, body)
		}
	}
	return all
}

// mustAgree compares all documents of two nodes.
func mustAgree(t testing.TB, a, b *node) {
	t.Helper()
	want, got := a.documents(), b.documents()
	if len(want) < 20 || !maps.Equal(want, got) {
		t.Errorf("%d documents, and %d", len(want), len(got))
		for path := range want {
			if want[path] != got[path] {
				t.Errorf("%s:\n%.300q\n%.300q", path, want[path], got[path])
			}
		}
		for path := range got {
			if _, ok := want[path]; !ok {
				t.Errorf("%s: only the other one has it", path)
			}
		}
	}
}

// withAll returns a log whose set has Resource Lists in parts, kept lists, and dumps.
func withAll() (*sliceLog, *contentStore) {
	l, c := overDays(10, 6*hour, event.Mirror), &contentStore{all: map[[32]byte][]byte{}}
	l.keep(2, 0)
	l.sets["main"].set.Dumps = true
	c.take(l)
	return l, c
}

// grow logs a change, which closes a segment.
func grow(l *sliceLog, c *contentStore) {
	s := l.sets["main"]
	e := sample(event.Updated, len(s.events)%7, len(s.events))
	e.Observed = s.set.LastObserved + 6*hour
	l.add("main", e)
	c.take(l)
}

// objects returns the objects of snapshots, as files of the server.
func objects(t testing.TB, s3 *testenv.S3Server, address, pattern string) []string {
	t.Helper()
	place, _, _ := strings.Cut(strings.TrimPrefix(address, "s3://"), "?")
	files, err := filepath.Glob(filepath.Join(s3.Folder(), filepath.FromSlash(place), "files", pattern))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func sharedBucket(t testing.TB) (*testenv.S3Server, string) {
	t.Helper()
	s3 := testenv.SharedS3(t)
	s3.Setenv(t)
	return s3, s3.Address(s3.NewBucket(t), "library", "files")
}

// A node that follows publishes what the other one does, byte for byte: at first, after new
// snapshots and dumps, after some were removed, and when it starts again. When it becomes
// the one that writes, it makes nothing again, puts nothing into the bucket again, and the
// other one follows it.
func TestFollow(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	l, c := withAll()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	a.opts.Retention.Count = 3 // what the other one would keep does not count
	var notReady *NotReadyError
	for _, path := range []string{"resourcelist.xml", "resourcelist/10/1.xml"} { // even before it has asked
		if _, err := b.Document(t.Context(), setPath("main", path), false); !errors.As(err, &notReady) {
			t.Errorf("%s, before there is any: %v", path, err)
		}
	}
	a.writes()
	b.pass(time.Minute)
	b.reads()
	mustAgree(t, a, b)
	if folders := objects(t, s3, address, "*/*/*"); len(folders) != 1+2+1+10 {
		t.Errorf("something was put into the bucket twice: %v", folders)
	}
	was := slices.Collect(maps.Keys(a.documents()))
	for range 4 {
		grow(l, c)
		a.writes()
		b.reads()
		mustAgree(t, a, b)
	}
	gone := 0
	for _, path := range was {
		path, gzip := strings.CutSuffix(path, "true")
		path = strings.TrimSuffix(path, "false")
		_, errA := a.Document(t.Context(), path, gzip)
		_, errB := b.Document(t.Context(), path, gzip)
		if fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Errorf("%s: %v, and %v", path, errA, errB)
		}
		if errors.Is(errB, ErrNotFound) {
			gone++
		}
	}
	if gone == 0 {
		t.Error("nothing was removed by retention")
	}
	for _, dir := range []string{"main", "main/past", "main/resourcedump", "main/changedump"} {
		mine, _ := snapshotNumbers(filepath.Join(a.opts.SnapshotDir, dir))
		theirs, _ := snapshotNumbers(filepath.Join(b.opts.SnapshotDir, dir))
		if len(mine) == 0 || !slices.Equal(mine, theirs) {
			t.Errorf("%s has %v, and %v", dir, mine, theirs)
		}
	}
	if bad, err := b.VerifyFiles(t.Context()); err != nil || bad != nil {
		t.Errorf("incomplete: %v, %v", bad, err)
	}

	again := newFollower(t, l, c, address, filepath.Dir(b.opts.SnapshotDir))
	mustAgree(t, a, again)
	again.reads()
	mustAgree(t, a, again)
	if again.heard("is published") > 0 {
		t.Error("it got snapshots again")
	}

	before := objects(t, s3, address, "*/*/*/*")
	a, b = newFollower(t, l, c, address, filepath.Dir(a.opts.SnapshotDir)), newNode(t, l, c, address, filepath.Dir(b.opts.SnapshotDir))
	b.writes()
	if made := b.heard("made") + b.heard("kept"); made > 0 {
		t.Errorf("it made %d", made)
	}
	if after := objects(t, s3, address, "*/*/*/*"); !slices.Equal(before, after) {
		t.Errorf("the bucket had %d objects, and has %d", len(before), len(after))
	}
	mustAgree(t, a, b)
	index := filepath.Join(s3.Folder(), strings.Split(address, "/")[2], "library", "files", indexKey)
	old, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	grow(l, c)
	b.writes()
	a.reads()
	mustAgree(t, b, a)

	// As if a node that has not noticed that it writes no more had written the index.
	must(t, os.WriteFile(index, old, 0o600))
	a.reads()
	if seq, err := a.SnapshotSeq(t.Context(), "main"); err != nil || seq != mustSet(t, l).Last {
		t.Errorf("a node goes back to %d: %v", seq, err)
	}
	b.pass(lookEvery)
	b.shares()
	fresh := newFollower(t, l, c, address, t.TempDir())
	for _, n := range []*node{a, fresh} {
		n.reads()
		mustAgree(t, b, n)
	}
}

// Whatever step fails while a node gets a snapshot, before it took effect or although it did,
// and whatever a crash leaves: it publishes nothing or all of it, and gets it the next time.
func TestFollowFaults(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := history(100, event.Mirror).many("main", 5), &contentStore{}
	a := newNode(t, l, c, address, t.TempDir())
	a.writes()
	want, _ := resources(t, a.Publisher, "main")
	eachFault(t, func(t *testing.T, fault func(op, path string, step func() error) error) {
		dir := t.TempDir()
		b := newFollower(t, l, c, address, dir)
		consistent := func(n *node) (all bool) {
			var notReady *NotReadyError
			if _, err := n.Document(t.Context(), "/sets/main/resourcelist.xml", false); errors.As(err, &notReady) {
				return false
			}
			got, _ := resources(t, n.Publisher, "main")
			if !slices.Equal(got, want) {
				t.Errorf("the Resource List has %d entries", len(got))
			}
			return true
		}
		b.follows = b.followers()
		b.setFault(fault)
		_ = b.follows[0].check(t.Context())
		b.setFault(nil)
		consistent(b)
		again := newFollower(t, l, c, address, dir) // after a crash
		consistent(again)
		again.reads()
		folders, err := os.ReadDir(filepath.Join(dir, "snapshots", "main"))
		if !consistent(again) || err != nil || len(folders) != 1 {
			t.Errorf("left behind: %v, %v", folders, err)
		}
		b.pass(dumpRetry)
		b.reads()
		if !consistent(b) {
			t.Error("it is not got without a restart")
		}
	})
}

// The loops of Run and Follow do all that by themselves.
func TestRunAndFollow(t *testing.T) {
	_, address := sharedBucket(t)
	l, c := withAll()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	got := make(chan struct{}, 1000)
	b.logger = slog.New(slog.NewTextHandler(writer(func(line []byte) {
		if bytes.Contains(line, []byte("is published")) {
			got <- struct{}{}
		}
	}), nil))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	running.Go(func() { b.Follow(ctx) })
	for range 1 + 2 + 1 + 10 { // a snapshot, kept lists, a Resource Dump, Change Dumps
		<-got
	}
	mustAgree(t, a, b)
	cancel()
	running.Wait()
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// While the bucket is away both nodes publish what they have, which is logged once each; when it is back all
// goes on.
func TestFilesAway(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.S3(t)
	s3.Setenv(t)
	address := s3.Address(s3.NewBucket(t), "files")
	l, c := withAll()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	a.writes()
	b.reads()
	mustAgree(t, a, b)
	before, _ := get(t, b.Publisher, "/sets/main/resourcelist.xml", false)
	a.heard("")
	b.heard("")
	s3.Stop(t)
	for range 2 {
		grow(l, c)
		a.pass(lastWait)
		a.writes()
		b.pass(lastWait)
		b.reads()
	}
	last := mustSet(t, l).Last
	if seq, err := a.SnapshotSeq(t.Context(), "main"); err != nil || seq != last {
		t.Errorf("the node that writes publishes %d of %d: %v", seq, last, err)
	}
	if got, _ := get(t, b.Publisher, "/sets/main/resourcelist.xml", false); !bytes.Equal(got, before) {
		t.Errorf("the other one publishes\n%s", got)
	}
	var notReady *NotReadyError
	for path, want := range map[string]bool{"resourcelist/12/1.xml": true, "resourcelist/13/1.xml": false, "resourcedump/12/1.zip": true, "changedump/12.zip": true, "changedump/13.zip": false, "resourcelist/10/9.xml": false} {
		if _, err := b.Document(t.Context(), setPath("main", path), false); errors.As(err, &notReady) != want || !want && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}
	const away = "the bucket of the snapshots cannot be used"
	if n, m := a.heard(away), b.heard(away); n != 1 || m != 1 {
		t.Errorf("it was logged %d and %d times", n, m)
	}
	fresh := newFollower(t, l, c, address, t.TempDir())
	fresh.reads()
	for _, path := range []string{"resourcelist.xml", "resourcelist/10/1.xml", "resourcedump.xml", "resourcedump-archive.xml", "changedump/1.zip", "changedump/1-4.xml", "changedump-archive.xml", "changelist.xml", "capabilitylist.xml"} {
		if _, err := fresh.Document(t.Context(), setPath("main", path), false); (path != "changelist.xml" && path != "capabilitylist.xml") != errors.As(err, &notReady) {
			t.Errorf("%s, on a new node: %v", path, err)
		}
	}
	s3.Start(t)
	for _, n := range []*node{a, b, fresh} {
		n.pass(lastWait)
	}
	a.writes()
	for _, n := range []*node{b, fresh} {
		n.reads()
		mustAgree(t, a, n)
	}
	if a.heard("can be used again") != 1 || b.heard("can be used again") != 1 {
		t.Error("the end was not logged")
	}
}

// A bucket that takes a Resource List slowly holds up neither that nor those of the other sets:
// both are published here, and are put there later.
func TestFilesSlow(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	var slow atomic.Bool
	proxy := s3.Proxy(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && slow.Load() {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return true
		}
		return false
	})
	l := history(1000, event.Mirror).many("main", 10)
	l.make("other", event.Mirror, 1000).many("other", 10)
	a := newNode(t, l, &contentStore{}, strings.Replace(address, s3.Endpoint(), proxy, 1), t.TempDir())
	a.uploadWait = 100 * time.Millisecond
	slow.Store(true)
	for range 2 {
		a.pass(2 * time.Second)
		if err := a.checkSets(t.Context(), a.schedule, a.lists); err != nil {
			t.Error(err)
		}
	}
	for set, want := range map[string]event.Seq{"main": 10, "other": 20} {
		if got, err := a.SnapshotSeq(t.Context(), set); err != nil || got != want {
			t.Errorf("the Resource List of %s is of %d, want %d: %v", set, got, want, err)
		}
	}
	if n := a.heard("could not be put into the bucket"); n != 2 {
		t.Errorf("it was logged %d times, want twice", n)
	}
	slow.Store(false)
	a.shares()
	b := newFollower(t, l, &contentStore{}, address, t.TempDir())
	b.reads()
	for set, want := range map[string]event.Seq{"main": 10, "other": 20} {
		if got, err := b.SnapshotSeq(t.Context(), set); err != nil || got != want {
			t.Errorf("on another node the Resource List of %s is of %d, want %d: %v", set, got, want, err)
		}
	}
}

// A node that begins to write, and that a bucket gives the Resource List of one set slowly, makes
// it, and those of the other sets. Later it gets what the bucket has.
func TestFilesSlowAtTheStart(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	var slow atomic.Bool
	proxy := s3.Proxy(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, ".xml.gz") || !slow.Load() {
			return false
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	l := history(1000, event.Mirror).many("main", 10)
	l.make("other", event.Mirror, 1000).many("other", 10)
	newNode(t, l, &contentStore{}, address, t.TempDir()).writes()
	b := newNode(t, l, &contentStore{}, strings.Replace(address, s3.Endpoint(), proxy, 1), t.TempDir())
	b.uploadWait = 100 * time.Millisecond
	slow.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than a silent server has
	defer cancel()
	for range 2 {
		b.pass(2 * time.Second)
		if err := b.checkSets(ctx, b.schedule, b.lists); err != nil {
			t.Error(err)
		}
	}
	for set, want := range map[string]event.Seq{"main": 10, "other": 20} {
		if got, err := b.SnapshotSeq(t.Context(), set); err != nil || got != want {
			t.Errorf("the Resource List of %s is of %d, want %d: %v", set, got, want, err)
		}
	}
	if n := b.heard("cannot be fetched now"); n < 2 {
		t.Errorf("it was logged %d times, want twice at least", n)
	}
	slow.Store(false)
	b.pass(dumpRetry)
	b.writes()
	for _, set := range []string{"main", "other"} {
		st, err := b.state(t.Context(), set)
		if err != nil {
			t.Fatal(err)
		}
		if !st.isSettled() {
			t.Errorf("the Resource Lists of %s are not settled", set)
		}
	}
}

// Whatever was put into the bucket when the node that writes was killed: nothing of it is
// published before the index names it, and what stays is removed after a day.
func TestFilesCrash(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	l, c := withAll()
	dir := t.TempDir()
	a, b := newNode(t, l, c, address, dir), newFollower(t, l, c, address, t.TempDir())
	a.writes()
	b.reads()
	grow(l, c)
	a.pass(2 * time.Second)
	for a.checks() { // everything is there but the index
	}
	a.pass(2 * time.Second)
	for a.checks() {
	}
	b.reads()
	if seq, _ := b.SnapshotSeq(t.Context(), "main"); seq != 10 {
		t.Errorf("the other node publishes %d before the index names it", seq)
	}
	lost := objects(t, s3, address, "main/resourcelist/11-*/*")
	if len(lost) == 0 {
		t.Fatal("nothing was put")
	}
	if err := os.Remove(lost[len(lost)-1]); err != nil { // the manifest, as it had not been put
		t.Fatal(err)
	}
	a = newNode(t, l, c, address, dir)
	a.writes()
	b.reads()
	mustAgree(t, a, b)
	aged := func() {
		a.pass(sweepEvery)
		for _, file := range objects(t, s3, address, "*/*/*/*") {
			old := a.now.Add(-unneeded)
			must(t, os.Chtimes(file, old, old))
		}
		before := len(objects(t, s3, address, "*/*/*/*"))
		a.shares()
		a.pass(unneeded - 2*sweepEvery)
		a.shares()
		if after := len(objects(t, s3, address, "*/*/*/*")); after != before {
			t.Errorf("the bucket had %d objects, and has %d: a download may be under way", before, after)
		}
		a.pass(2 * sweepEvery)
		a.shares()
	}
	aged()
	left := objects(t, s3, address, "main/resourcelist/11-*/*")
	if len(left) != len(lost) || left[0] == lost[0] {
		t.Errorf("left: %v, of the first attempt were %v", left, lost)
	}
	for range 3 { // retention
		grow(l, c)
		a.writes()
	}
	aged()
	if left := objects(t, s3, address, "main/resourcelist/11-*/*"); len(left) > 0 {
		t.Errorf("nothing needs %v", left)
	}
	b.reads()
	mustAgree(t, a, b)
	st, err := a.state(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	has := 0
	for _, se := range st.all() {
		has += len(se.snapshots())
	}
	if len(a.files.objects) != has || len(a.files.uploads) > 0 {
		t.Errorf("of %d snapshots it keeps %d and %d in mind", has, len(a.files.objects), len(a.files.uploads))
	}
}

// What is removed here while it is being put into the bucket does not stay there.
func TestFilesRemovedMeanwhile(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	l, c := withAll()
	dir := t.TempDir()
	must(t, small(t, l, dir).Snapshot(t.Context(), "main")) // by a node without the bucket
	var a *node
	remove := sync.OnceFunc(func() {
		for range 2 {
			grow(l, c)
			must(t, a.Snapshot(t.Context(), "main"))
		}
	})
	direct, _ := url.Parse(address)
	proxy := s3.Proxy(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/resourcelist/10-") && strings.HasSuffix(r.URL.Path, manifestName) {
			remove()
		}
		return false
	})
	a = newNode(t, l, c, strings.Replace(address, direct.Query().Get("endpoint"), proxy, 1), dir)
	a.shares()
	a.shares()
	if put := objects(t, s3, address, "main/resourcelist/10-*/"+manifestName); len(put) != 1 {
		t.Fatalf("put: %v", put)
	}
	for _, file := range objects(t, s3, address, "*/*/*/*") {
		old := a.now.Add(-unneeded)
		must(t, os.Chtimes(file, old, old))
	}
	for range 2 {
		a.pass(unneeded)
		a.shares()
	}
	if left := objects(t, s3, address, "main/resourcelist/10-*/*"); len(left) > 0 {
		t.Errorf("nothing needs %v", left)
	}
	if len(objects(t, s3, address, "main/resourcelist/12-*/*")) == 0 {
		t.Error("the newest has gone")
	}
}

// An object with other bytes is never published, logged, and got when it has been put right. One that
// is gone is put again by the node that writes.
func TestFilesDamaged(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	l, c := withAll()
	a := newNode(t, l, c, address, t.TempDir())
	a.writes()
	var b *node
	for _, name := range []string{"resourcelist/10-*/2.xml.gz", "resourcelist/10-*/" + manifestName, "changedump/3-*/1.zip"} {
		file := objects(t, s3, address, "main/"+name)[0]
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b = newFollower(t, l, c, address, t.TempDir())
		for _, damaged := range [][]byte{bytes.ToUpper(whole), whole[:len(whole)/2], {}} {
			must(t, os.WriteFile(file, damaged, 0o600))
			b.pass(dumpRetry)
			b.reads()
			if b.heard("cannot be published") != 1 {
				t.Errorf("%s, of %d bytes, was not logged", name, len(damaged))
			}
			st, err := b.state(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			if name[0] == 'r' && st.current() != nil || name[0] == 'c' && (st.changeDumps.find(3) != nil || st.changeDumps.find(4) == nil) {
				t.Errorf("%s is published, or not the others", name)
			}
		}
		must(t, os.WriteFile(file, whole, 0o600))
		b.pass(dumpRetry)
		b.reads()
		mustAgree(t, a, b)
	}

	gone := objects(t, s3, address, "main/resourcedump/10-*/1.zip")
	must(t, os.Remove(gone[0]))
	if bad, err := a.VerifyFiles(t.Context()); err != nil || len(bad) != 1 || !strings.Contains(gone[0], bad[0]) {
		t.Errorf("incomplete: %v, %v", bad, err)
	}
	a.pass(sweepEvery)
	a.shares()
	a.shares()
	if bad, err := a.VerifyFiles(t.Context()); err != nil || len(bad) != 0 {
		t.Errorf("still incomplete: %v, %v", bad, err)
	}

	index := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(gone[0]))))), indexKey)
	must(t, os.WriteFile(index, []byte("x"), 0o600))
	b.reads()
	mustAgree(t, a, b)
	if b.heard("cannot be used") != 1 {
		t.Error("a damaged index was not logged")
	}
	a.pass(lookEvery)
	a.shares()
	b.pass(lastWait)
	b.reads()
	mustAgree(t, a, b)
	fresh := newFollower(t, l, c, address, t.TempDir())
	fresh.reads()
	mustAgree(t, a, fresh)

	before := objects(t, s3, address, "*/*/*/*")
	must(t, a.files.bucket.Remove(t.Context(), indexKey))
	a.pass(lookEvery)
	a.shares()
	if after := objects(t, s3, address, "*/*/*/*"); !slices.Equal(before, after) {
		t.Errorf("without its index the bucket had %d objects, and has %d", len(before), len(after))
	}
	if _, err := os.Stat(index); err != nil {
		t.Error(err)
	}
}

// A snapshot that is another one here than in the bucket is replaced.
func TestFollowReplaces(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := withAll()
	dir := t.TempDir()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, dir)
	a.writes()
	b.reads()
	file := filepath.Join(dir, "snapshots", "main", "10", manifestName)
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(file, append(want, '\n'), 0o600))
	b = newFollower(t, l, c, address, dir)
	b.reads()
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) || b.heard("is published") != 1 {
		t.Errorf("it was not replaced: %v", err)
	}
	mustAgree(t, a, b)
}

// A node that has much to get gets a new Resource List before all the rest.
func TestFollowNewestFirst(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := withAll()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	a.writes()
	var grown sync.Once
	b.setFault(func(op, _ string, step func() error) error {
		if op == "rename" {
			grown.Do(func() {
				grow(l, c)
				a.writes()
				b.pass(b.opts.Poll)
			})
		}
		return step()
	})
	b.follows = b.followers()
	must(t, b.follows[0].check(t.Context()))
	var order []string
	for _, line := range b.said {
		if _, what, ok := strings.Cut(line, "is published"); ok {
			order = append(order, what)
		}
	}
	if len(order) < 3 || !strings.Contains(order[0], "kind=resourcelist number=10") || !strings.Contains(order[1], "kind=resourcelist number=11") {
		t.Errorf("it gets %q", order)
	}
	b.reads()
	mustAgree(t, a, b)
}

// A place in a bucket is of one log: another one neither writes there nor reads.
func TestFilesOfAnotherLog(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := withAll()
	a := newNode(t, l, c, address, t.TempDir())
	a.writes()
	want := a.files.loaded().sum
	b := nodeOf(t, Options{Log: l, FilesOwner: "museum"}, c, address, t.TempDir())
	r := nodeOf(t, Options{Log: l, FilesOwner: "museum", Follow: true}, c, address, t.TempDir())
	b.writes()
	r.reads()
	if b.heard("another log") != 1 || r.heard("another log") != 1 {
		t.Error("it was not logged")
	}
	if seq, err := b.SnapshotSeq(t.Context(), "main"); seq != 10 {
		t.Errorf("it makes none: %d, %v", seq, err)
	}
	if seq, err := r.SnapshotSeq(t.Context(), "main"); seq != 0 {
		t.Errorf("it publishes those of the other: %d, %v", seq, err)
	}
	a.pass(lookEvery)
	a.shares()
	if got := a.files.loaded().sum; got != want || a.heard("cannot be used") > 0 {
		t.Error("the index has changed")
	}
}

// A node that begins to write with an empty folder gets what the bucket has, and does not
// make it. Sets with few and large records get a snapshot although nobody asks this node.
func TestFilesOfANewNode(t *testing.T) {
	testenv.Heavy(t)
	s3, address := sharedBucket(t)
	l, c := withAll()
	a := newNode(t, l, c, address, t.TempDir())
	a.writes()
	grow(l, c)
	a.writes()
	before := objects(t, s3, address, "*/*/*/*")
	b := newNode(t, l, c, address, t.TempDir())
	b.writes()
	if made := b.heard("made") + b.heard("kept"); made > 0 {
		t.Errorf("it made %d", made)
	}
	if after := objects(t, s3, address, "*/*/*/*"); !slices.Equal(before, after) {
		t.Errorf("the bucket had %d objects, and has %d", len(before), len(after))
	}
	mustAgree(t, a, b)

	l = history(10_000, event.Mirror)
	for i := range 20 {
		e := sample(event.Created, i, 1)
		e.Title = strings.Repeat("long ", 600_000)
		l.add("main", e)
	}
	_, address = sharedBucket(t)
	a, b = newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	a.limits.Entries, b.limits.Entries = resourcesync.MaxEntries, resourcesync.MaxEntries
	a.writes()
	b.reads()
	mine, _ := get(t, a.Publisher, "/sets/main/resourcelist.xml", false)
	theirs, _ := get(t, b.Publisher, "/sets/main/resourcelist.xml", false)
	if !bytes.Contains(mine, []byte("<sitemapindex")) || !bytes.Equal(mine, theirs) {
		t.Errorf("%.300s\n%.300s", mine, theirs)
	}
}

// After a loss each set has a new feed, and a set that is made anew has one too: the bucket
// takes what is made then, and nobody publishes what was there.
func TestFilesOfANewEpoch(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := withAll()
	newNode(t, l, c, address, t.TempDir()).writes()
	l.sets["main"].set.Feed = "urn:uuid:7f0e1a52-7a3c-4c39-9a0e-51d2c2b7f0a1"
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	b.reads()
	if seq, err := b.SnapshotSeq(t.Context(), "main"); err != nil || seq != 0 {
		t.Errorf("it publishes %d of the epoch before: %v", seq, err)
	}
	a.writes()
	if a.heard("cannot be used") > 0 || a.heard("is published") > 0 {
		t.Error("the bucket is refused, or what it had is used")
	}
	b.reads()
	mustAgree(t, a, b)
}

// A node that begins to write while the bucket is away makes what is due. The index goes on
// naming what the others have, and when the bucket is back the node gets that too.
func TestFilesAwayAtTheStart(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.S3(t)
	s3.Setenv(t)
	address := s3.Address(s3.NewBucket(t), "files")
	l, c := withAll()
	a, b := newNode(t, l, c, address, t.TempDir()), newFollower(t, l, c, address, t.TempDir())
	a.writes()
	grow(l, c)
	a.writes()
	b.reads()
	had := slices.Collect(maps.Keys(b.files.loaded().folders()))
	s3.Stop(t)
	grow(l, c)
	w := newNode(t, l, c, address, t.TempDir())
	var notReady *NotReadyError
	late := []string{"resourcelist/10/1.xml", "resourcedump/10/1.zip", "resourcedump/10.xml", "changedump/1.zip"}
	for _, path := range late {
		if _, err := w.Document(t.Context(), setPath("main", path), false); !errors.As(err, &notReady) {
			t.Errorf("%s, before the bucket was asked: %v", path, err)
		}
	}
	w.writes()
	if seq, err := w.SnapshotSeq(t.Context(), "main"); err != nil || seq != mustSet(t, l).Last {
		t.Errorf("it makes none: %d, %v", seq, err)
	}
	if _, err := w.Document(t.Context(), "/sets/main/resourcelist/10/1.xml", false); !errors.As(err, &notReady) {
		t.Errorf("while the bucket is away: %v", err)
	}
	s3.Start(t)
	w.pass(lastWait)
	w.shares()
	if w.files.loaded() == nil {
		t.Fatal("the index was not read")
	}
	names := w.files.loaded().folders()
	for _, folder := range had {
		if _, ok := names[folder]; !ok {
			t.Errorf("the index does not name %s any more", folder)
		}
	}
	w.pass(dumpRetry)
	w.writes()
	b.pass(lastWait)
	b.reads()
	mustAgree(t, w, b)
	st, err := w.state(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	for _, se := range st.all() {
		if !se.isSettled() {
			t.Errorf("%s is not settled", se.name())
		}
	}
}

// While only writing is refused, reads that succeed in between end nothing: that is logged once.
func TestFilesReadOnly(t *testing.T) {
	_, address := sharedBucket(t)
	l, c := withAll()
	a := newNode(t, l, c, address, t.TempDir())
	ask := func(what action, err error) {
		a.pass(lastWait)
		if got := a.files.attempt(t.Context(), what, func() error { return err }); (got == nil) != (err == nil) {
			t.Error(got)
		}
	}
	for range 3 {
		ask(reading, nil)
		ask(writing, bucket.ErrRefused)
		ask(tidying, nil)
	}
	if n, m := a.heard("cannot be used"), a.heard("can be used again"); n != 1 || m != 0 || !a.files.failing(writing) {
		t.Errorf("it was logged %d times, and %d times that it has ended", n, m)
	}
	a.pass(lastWait)
	a.shares() // it has nothing new to write
	a.pass(lastWait)
	a.shares()
	if a.heard("can be used again") != 1 || a.files.failing(writing) {
		t.Error("it does not end")
	}
}

// A disk that becomes nearly full ends a download in the middle of a file. One on which a
// snapshot has no room is not begun. What was fetched in vain for long waits as long.
func TestFollowFull(t *testing.T) {
	testenv.Heavy(t)
	_, address := sharedBucket(t)
	l, c := withAll()
	a := newNode(t, l, c, address, t.TempDir())
	a.writes()
	noRoom, written := errors.New("no room"), 0
	var b *node
	var asked []int64
	room := noRoom
	b = nodeOf(t, Options{Log: l, FilesOwner: "library", Follow: true, Full: func() error {
		if written > 0 {
			return noRoom
		}
		return nil
	}, Room: func(bytes int64) error {
		asked = append(asked, bytes)
		return room
	}}, c, address, t.TempDir())
	creates := 0
	b.setFault(func(op, _ string, step func() error) error {
		switch op {
		case "create":
			creates++
		case "write":
			written++
			b.pass(3 * time.Hour)
		}
		return step()
	})
	b.follows = b.followers()
	lists := b.follows[0]
	check := func() {
		t.Helper()
		if err := lists.check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	check()
	index := b.files.loaded().folders()
	if len(asked) == 0 || creates > 0 {
		t.Errorf("without room for %v bytes it has begun %d files", asked, creates)
	}
	b.pass(dumpRetry)
	room = nil
	check()
	if written != 1 {
		t.Errorf("on a full disk it has written %d times", written)
	}
	longest := time.Duration(0)
	for folder, r := range lists.again {
		if _, ok := index[folder]; !ok {
			t.Errorf("%s is not in the index", folder)
		}
		longest = max(longest, r.wait)
	}
	if longest != 3*time.Hour {
		t.Errorf("it waits %v", longest)
	}
}

// A node that follows does not go on reporting that a dump of its own has failed, when it still
// made them.
func TestFollowerForgetsFaults(t *testing.T) {
	_, address := sharedBucket(t)
	l, c := withAll()
	dir := t.TempDir()
	a := newNode(t, l, &contentStore{}, address, dir)
	if err := a.checkDumps(t.Context(), a.dumps); err == nil {
		t.Fatal("there is a dump without its contents")
	}
	faults := func() []string { // as bridge status, which is another process, reports them
		t.Helper()
		d, err := newNode(t, l, c, address, dir).DumpState(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		return d.Faults
	}
	if len(faults()) == 0 {
		t.Fatal("that is not reported")
	}
	newNode(t, l, c, address, t.TempDir()).writes()
	a = newFollower(t, l, c, address, dir)
	a.reads()
	if all := faults(); len(all) > 0 {
		t.Errorf("still reported: %q", all)
	}
}
