package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// small returns a Publisher whose Resource Lists hold four records.
func small(t testing.TB, l Log, dir string) *Publisher {
	p := publisherIn(t, l, dir)
	p.limits.Entries = 4
	return p
}

// resources reads the set's Resource List to its end: the entries of all parts
// that its index names, or of the list itself.
func resources(t testing.TB, p *Publisher, set string) (entries []string, at string) {
	t.Helper()
	doc, _ := get(t, p, setPath(set, "resourcelist.xml"), false)
	at = between(string(doc), ` at="`, `"`)
	if !bytes.Contains(doc, []byte("<sitemapindex")) {
		return entriesOf(doc), at
	}
	for _, piece := range strings.Split(string(doc), "<loc>")[1:] {
		path := strings.TrimPrefix(between("<loc>"+piece, "<loc>", "</loc>"), base)
		part, meta := get(t, p, path, false)
		packed, _ := get(t, p, path, true)
		if !meta.Immutable || meta.LastModified.IsZero() {
			t.Errorf("%s: %+v", path, meta)
		}
		if got := between(string(part), ` at="`, `"`); got != at {
			t.Errorf("%s is of %s, its index of %s", path, got, at)
		}
		if !bytes.Contains(part, []byte(`rel="index" href="`+base+setPath(set, "resourcelist.xml")+`"`)) {
			t.Errorf("%s has no link to its index", path)
		}
		if s, err := sumOf(bytes.NewReader(packed), true); err != nil || s.length != int64(len(part)) {
			t.Errorf("%s: its compressed form is not the part: %v", path, err)
		}
		entries = append(entries, entriesOf(part)...)
	}
	return entries, at
}

// A folder of snapshots that cannot be read takes nothing else of its set along, and is named.
func TestUnreadableSnapshots(t *testing.T) {
	l := history(10, event.Mirror).many("main", 11)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "snapshots"), nil, 0o600); err != nil { // as unreadable as a folder of another user, for root too
		t.Fatal(err)
	}
	var said bytes.Buffer
	p, err := New(Options{Log: l, BaseURL: base, CacheDir: filepath.Join(dir, "cache"), SnapshotDir: filepath.Join(dir, "snapshots"), CacheBytes: 1 << 30, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"capabilitylist.xml", "changelist.xml", "resourcelist.xml", "feed.atom"} {
		get(t, p, setPath("main", path), false)
	}
	if !strings.Contains(said.String(), "folder="+filepath.Join(dir, "snapshots", "main")) {
		t.Errorf("it says %q", said.String())
	}
	p.limits.Entries = 4
	var notReady *NotReadyError
	if _, err := p.Document(t.Context(), setPath("main", "resourcelist.xml"), false); !errors.As(err, &notReady) {
		t.Errorf("a list that needs a snapshot: %v", err)
	}
}

// direct gives the entries of the whole list in one document.
func direct(t testing.TB, l *sliceLog, set string) []string {
	t.Helper()
	entries, _ := resources(t, newPublisher(t, l), set)
	return entries
}

func TestSnapshot(t *testing.T) {
	l := history(10, event.Mirror).many("main", 11)
	p := small(t, l, t.TempDir())
	const path = "/sets/main/resourcelist.xml"
	var notReady *NotReadyError
	if _, err := p.Document(t.Context(), path, false); !errors.As(err, &notReady) || notReady.RetryAfter <= 0 || !strings.Contains(err.Error(), path) {
		t.Fatalf("before the first snapshot: %v", err)
	}
	if _, err := p.Plan(t.Context(), "main"); !errors.As(err, &notReady) {
		t.Fatalf("plan before the first snapshot: %v", err)
	}
	if seq, err := p.SnapshotSeq(t.Context(), "main"); seq != 0 || err != nil {
		t.Errorf("snapshot %d, %v", seq, err)
	}
	must(t, p.Snapshot(t.Context(), "main"))
	first, at := resources(t, p, "main")
	set, _ := l.Set(t.Context(), "main")
	if at != set.LastObserved.String() || !slices.Equal(first, direct(t, l, "main")) {
		t.Errorf("at %s: %d entries", at, len(first))
	}
	if seq, _ := p.SnapshotSeq(t.Context(), "main"); seq != set.Last {
		t.Errorf("snapshot %d of %d", seq, set.Last)
	}
	items, err := p.Plan(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	parts := 0
	for _, it := range items {
		if it.Kind == ResourceListPart {
			parts++
		}
	}
	if parts != 3 {
		t.Errorf("the plan has %d parts, want 3", parts)
	}

	// Growth does not show before the next snapshot; then the parts of the one
	// before stay, and those of the one before that go.
	l.many("main", 3)
	if again, _ := resources(t, p, "main"); !slices.Equal(again, first) {
		t.Error("the snapshot has changed")
	}
	old := partPath("main", Snapshot{Seq: set.Last}, 1)
	p.opts.Retention.Count = 2
	for i := range 3 {
		must(t, p.Snapshot(t.Context(), "main"))
		if got, _ := resources(t, p, "main"); !slices.Equal(got, direct(t, l, "main")) {
			t.Errorf("snapshot %d has %d entries", i, len(got))
		}
		_, err := p.Document(t.Context(), old, false)
		if want := i < 1; want != (err == nil) || err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("after %d newer snapshots: %v", i+1, err)
		}
		l.many("main", 1)
	}
	folders, _ := os.ReadDir(filepath.Join(p.opts.SnapshotDir, "main"))
	if len(folders) != 2 {
		t.Errorf("%d snapshots are kept: %v", len(folders), folders)
	}
	for _, f := range cacheFiles(t, p) {
		if strings.HasPrefix(f, partFolder("main", Snapshot{Seq: set.Last})) {
			t.Errorf("the cache keeps %s", f)
		}
	}

	// Another process finds what is there; another format, base or log does not.
	q := small(t, l, filepath.Dir(p.opts.SnapshotDir))
	a, _ := resources(t, p, "main")
	if b, _ := resources(t, q, "main"); !slices.Equal(a, b) {
		t.Error("after a restart the Resource List is another")
	}
	other := small(t, l, filepath.Dir(p.opts.SnapshotDir))
	other.base = "https://two.example"
	if _, err := other.Document(t.Context(), path, false); !errors.As(err, &notReady) {
		t.Errorf("for another base URL: %v", err)
	}
	for i := range l.sets["main"].events {
		l.sets["main"].events[i].Observed++
	}
	if _, err := small(t, l, filepath.Dir(p.opts.SnapshotDir)).Document(t.Context(), path, false); !errors.As(err, &notReady) {
		t.Errorf("for another log: %v", err)
	}
}

// Parts end where they are full, by entries or by bytes, and no part is over.
func TestParts(t *testing.T) {
	l := history(1000, event.Mirror).many("main", 100)
	want := direct(t, l, "main")
	for _, limits := range []Limits{{Entries: 1000, Bytes: 8000}, {Entries: 7, Bytes: 1 << 30}, {Entries: 100, Bytes: 1 << 30}, {Entries: 5, Bytes: 1}} {
		p := newPublisher(t, l)
		p.limits = limits
		p.limits.Entries = min(p.limits.Entries, 99) // or there are no parts
		must(t, p.Snapshot(t.Context(), "main"))
		if got, _ := resources(t, p, "main"); !slices.Equal(got, want) {
			t.Errorf("%+v: %d entries of %d", limits, len(got), len(want))
		}
		st, _ := p.state(t.Context(), "main")
		current := st.current()
		for i, f := range current.Files {
			if f.Entries > limits.Entries || f.Length > limits.Bytes && f.Entries > 1 {
				t.Errorf("%+v: part %d has %d entries and %d bytes", limits, i+1, f.Entries, f.Length)
			}
		}
	}
}

// Whatever step of a snapshot fails, before it took effect or although it did,
// and whatever a crash leaves behind: the Resource List is wholly the old one or
// wholly the new one, and the next run makes the new one.
func TestSnapshotFaults(t *testing.T) {
	testenv.Heavy(t)
	l := history(100, event.Mirror).many("main", 5)
	before := direct(t, l, "main")
	for _, first := range []bool{false, true} {
		eachFault(t, func(t *testing.T, fault func(op, path string, step func() error) error) {
			l := history(100, event.Mirror).many("main", 5)
			dir := t.TempDir()
			p := small(t, l, dir)
			var notReady *NotReadyError
			if !first {
				must(t, p.Snapshot(t.Context(), "main"))
				l.many("main", 2)
			}
			after := direct(t, l, "main")
			consistent := func(p *Publisher) []string {
				if _, err := p.Document(t.Context(), "/sets/main/resourcelist.xml", false); first && errors.As(err, &notReady) {
					return nil
				}
				got, _ := resources(t, p, "main")
				if !slices.Equal(got, before) && !slices.Equal(got, after) {
					t.Errorf("the Resource List has %d entries", len(got))
				}
				return got
			}
			p.setFault(fault)
			err := p.Snapshot(t.Context(), "main")
			p.setFault(nil)
			if got := consistent(p); err == nil && !slices.Equal(got, after) {
				t.Errorf("Snapshot reported success and %d entries are shown", len(got))
			}
			q := small(t, l, dir) // after a crash
			consistent(q)
			if err := q.checkSet(t.Context(), map[string]*schedule{}, mustSet(t, l)); err != nil { // as Run does, once
				t.Error(err)
			}
			if got := consistent(q); !slices.Equal(got, after) {
				t.Errorf("after the next run %d entries are shown, want %d", len(got), len(after))
			}
			folders, err := os.ReadDir(filepath.Join(q.opts.SnapshotDir, "main"))
			if err != nil || len(folders) > 2 || slices.ContainsFunc(folders, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), newPrefix) }) {
				t.Errorf("left behind: %v, %v", folders, err)
			}
			if err := p.Snapshot(t.Context(), "main"); err != nil {
				t.Errorf("the next attempt without a restart: %v", err)
			}
		})
	}
}

func mustSet(t testing.TB, l *sliceLog) event.Set {
	t.Helper()
	set, err := l.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A damaged part is never served; the snapshot is given up and made again with
// the same bytes.
func TestSnapshotDamage(t *testing.T) {
	l := history(100, event.Mirror).many("main", 10)
	dir := t.TempDir()
	for name, damage := range map[string]func(file string) error{
		"flipped": func(file string) error {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			data[len(data)/2] ^= 1
			return os.WriteFile(file, data, 0o666)
		},
		"truncated": func(file string) error { return os.Truncate(file, 100) },
		"removed":   os.Remove,
	} {
		for _, when := range []string{"while running", "before a start"} {
			p := small(t, l, dir)
			must(t, p.Snapshot(t.Context(), "main"))
			want, _ := resources(t, p, "main")
			set := mustSet(t, l)
			must(t, damage(filepath.Join(dir, "snapshots", "main", fmt.Sprint(set.Last), "2.xml.gz")))
			if when == "before a start" {
				p = small(t, l, dir)
			}
			var notReady *NotReadyError
			if _, err := p.Document(t.Context(), partPath("main", Snapshot{Seq: set.Last}, 2), true); !errors.As(err, &notReady) && !errors.Is(err, ErrNotFound) {
				t.Errorf("%s %s: got %v", name, when, err)
			}
			must(t, p.Snapshot(t.Context(), "main"))
			if got, _ := resources(t, p, "main"); !slices.Equal(got, want) {
				t.Errorf("%s %s: made again with other bytes", name, when)
			}
		}
	}
}

// A file that cannot be opened now need not be damaged: nothing is given up.
func TestUnreadableIsNotDamaged(t *testing.T) {
	l, dir := history(100, event.Mirror).many("main", 10), t.TempDir()
	p := small(t, l, dir)
	must(t, p.Snapshot(t.Context(), "main"))
	at := Snapshot{Seq: mustSet(t, l).Last}
	file := filepath.Join(dir, "snapshots", "main", fmt.Sprint(at.Seq), "2.xml.gz")
	if err := errors.Join(os.Rename(file, file+".aside"), os.Symlink(file, file)); err != nil { // ELOOP
		t.Fatal(err)
	}
	var notReady *NotReadyError
	if _, err := p.Document(t.Context(), partPath("main", at, 2), true); err == nil || errors.As(err, &notReady) || errors.Is(err, ErrNotFound) {
		t.Errorf("while it cannot be opened: %v", err)
	}
	must(t, os.Rename(file+".aside", file))
	if got, _ := resources(t, p, "main"); len(got) != 10 {
		t.Errorf("afterwards the list has %d resources", len(got))
	}
}

// Nor is a snapshot given up whose list cannot be read while bridge starts.
func TestUnreadableAtStart(t *testing.T) {
	l, dir := history(100, event.Mirror).many("main", 10), t.TempDir()
	p := small(t, l, dir)
	must(t, p.Snapshot(t.Context(), "main"))
	old := partPath("main", Snapshot{Seq: mustSet(t, l).Last}, 2)
	was, _ := get(t, p, old, false)
	list := filepath.Join(dir, "snapshots", "main", fmt.Sprint(mustSet(t, l).Last), manifestName)
	l.many("main", 3)
	if err := errors.Join(os.Rename(list, list+".aside"), os.Symlink(list, list)); err != nil { // ELOOP
		t.Fatal(err)
	}
	must(t, small(t, l, dir).Snapshot(t.Context(), "main"))
	must(t, os.Rename(list+".aside", list))
	if now, _ := get(t, small(t, l, dir), old, false); !bytes.Equal(now, was) {
		t.Error("a part of the former list has other bytes")
	}
}

// slow is a context under which each file is read only when the test lets it.
type slow struct {
	context.Context
	let   chan struct{}
	reads atomic.Int64
}

func (s *slow) Err() error {
	s.reads.Add(1)
	<-s.let
	return s.Context.Err()
}

// What has just been written is not read again; else the hash of a file is computed once, also
// if all who wait for it give up, so that the next one finds it. Nobody waits for another file's.
func TestHashesOfOneFileEach(t *testing.T) {
	l, dir := history(100, event.Mirror).many("main", 10), t.TempDir()
	p := small(t, l, dir)
	must(t, p.Snapshot(t.Context(), "main"))
	st, err := p.state(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if s := st.current(); len(s.checked) != len(s.Files) {
		t.Errorf("%d files of %d are known to be whole", len(s.checked), len(s.Files))
	}

	p = small(t, l, dir) // as after a restart
	lasting := &slow{Context: p.lasting, let: make(chan struct{})}
	p.lasting = lasting
	impatient, leave := context.WithCancel(t.Context())
	leave()
	get := func(ctx context.Context, n int) error {
		doc, err := p.Document(ctx, partPath("main", Snapshot{Seq: 10}, n), true)
		if err != nil {
			return err
		}
		body, _, err := doc.Open()
		if err != nil {
			return err
		}
		return body.Close()
	}
	for range 3 {
		if err := get(impatient, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("before its hash is known: %v", err)
		}
	}
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if err := get(t.Context(), 2); err != nil {
				t.Error(err)
			}
		})
	}
	if st, err = p.state(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	s := st.current()
	s.mu.Lock()
	first := s.checking["1.xml.gz"]
	s.mu.Unlock()
	close(lasting.let)
	<-first.done
	waiting.Wait()
	for n := 1; n <= 2; n++ {
		if err := get(impatient, n); err != nil {
			t.Errorf("part %d, whose hash is known: %v", n, err)
		}
	}
	if n := lasting.reads.Load(); n != 4 { // each to its end
		t.Errorf("the two files were read %d times, want 4", n)
	}
	if len(s.checking) > 0 {
		t.Errorf("still being read: %v", s.checking)
	}

	// With the Publisher all ends.
	p = small(t, l, dir)
	p.end()
	if err := get(t.Context(), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

func TestVerifySnapshot(t *testing.T) {
	l := history(100, event.Mirror).many("main", 10)
	p := small(t, l, t.TempDir())
	if checks, err := p.VerifySnapshot(t.Context(), "main"); err != nil || checks != nil {
		t.Errorf("without a snapshot: %v, %v", checks, err)
	}
	must(t, p.Snapshot(t.Context(), "main"))
	l.fill("main", 3) // what is newer does not matter
	damaged := func() (names []string) {
		checks, err := p.VerifySnapshot(t.Context(), "main")
		if err != nil || len(checks) != 3 {
			t.Fatalf("%d checks, %v", len(checks), err)
		}
		for _, c := range checks {
			names = append(names, c.Damaged...)
		}
		return names
	}
	if names := damaged(); names != nil {
		t.Errorf("a whole snapshot: %v", names)
	}
	file := filepath.Join(p.opts.SnapshotDir, "main", "10", "2.xml.gz")
	must(t, os.Truncate(file, 100))
	if names := damaged(); !slices.Equal(names, []string{file}) {
		t.Errorf("a damaged snapshot: %v", names)
	}
}

// A list of few records that is too large for one document becomes a snapshot.
func TestFewLargeRecords(t *testing.T) {
	testenv.Heavy(t)
	l := history(10_000, event.Mirror)
	for i := range 20 {
		e := sample(event.Created, i, 1)
		e.Title = strings.Repeat("long ", 600_000)
		l.add("main", e)
	}
	dir := t.TempDir()
	p := publisherIn(t, l, dir)
	var notReady *NotReadyError
	if _, err := p.Document(t.Context(), "/sets/main/resourcelist.xml", true); !errors.As(err, &notReady) {
		t.Fatalf("got %v", err)
	}
	if len(p.wakeups) == 0 {
		t.Error("Run was not told")
	}
	must(t, p.checkSet(t.Context(), map[string]*schedule{}, mustSet(t, l)))
	index, _ := get(t, p, "/sets/main/resourcelist.xml", false)
	if n := bytes.Count(index, []byte("<sitemap>")); n != 2 {
		t.Errorf("the index names %d parts, want 2", n)
	}
	part, _ := get(t, publisherIn(t, l, dir), "/sets/main/resourcelist/20/1.xml", false)
	if int64(len(part)) > resourcesync.MaxBytes {
		t.Errorf("a part has %d bytes", len(part))
	}
	// Another process, such as bridge status, knows what the list shows, also when the log has grown.
	l.add("main", sample(event.Updated, 1, 2))
	status := publisherIn(t, l, dir)
	if seq, err := status.SnapshotSeq(t.Context(), "main"); seq != 20 || err != nil {
		t.Errorf("the list shows the state at 20; another process says %d, %v", seq, err)
	}
	// It shrinks and fits again.
	for i := range 10 {
		l.add("main", sample(event.Deleted, i, 2))
	}
	must(t, p.Snapshot(t.Context(), "main"))
	if list, _ := get(t, p, "/sets/main/resourcelist.xml", false); bytes.Contains(list, []byte("<sitemapindex")) {
		t.Error("what fits into one document is still an index")
	}
}

func TestSnapshotRefusesAShortLog(t *testing.T) {
	l := history(100, event.Mirror).many("main", 10)
	l.sets["main"].events = l.sets["main"].events[:9]
	p := small(t, l, t.TempDir())
	if err := p.Snapshot(t.Context(), "main"); err == nil || !strings.Contains(err.Error(), "the log may be damaged") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.opts.SnapshotDir, "main", "10")); err == nil {
		t.Error("it was published all the same")
	}
}

// Run makes snapshots when they are due: the first at once, after a change ten
// minutes, after a deletion one minute; and after a restart at once.
func TestRunSchedule(t *testing.T) {
	dir := t.TempDir()
	l := history(1000, event.Mirror).many("main", 10)
	var full atomic.Bool // the disk
	run := func(t *testing.T, body func(shows func(event.Seq))) {
		synctest.Test(t, func(t *testing.T) {
			p := small(t, l, dir)
			p.setFault(func(_, _ string, step func() error) error {
				if full.Load() {
					return errors.New("no space left")
				}
				return step()
			})
			end := run(p)
			body(func(want event.Seq) {
				t.Helper()
				synctest.Wait()
				if got, err := p.SnapshotSeq(t.Context(), "main"); err != nil || got != want {
					t.Errorf("the snapshot is %d, want %d (%v)", got, want, err)
				}
			})
			end()
		})
	}
	run(t, func(shows func(event.Seq)) {
		shows(10)
		l.many("main", 1)
		time.Sleep(9 * time.Minute)
		shows(10)
		l.many("main", 1) // does not put it off
		time.Sleep(time.Minute + 5*time.Second)
		shows(12)
		time.Sleep(time.Hour)
		shows(12)

		l.many("main", 1)
		time.Sleep(5 * time.Second)
		l.add("main", sample(event.Deleted, 1, 2))
		time.Sleep(50 * time.Second)
		shows(12)
		time.Sleep(15 * time.Second)
		shows(14)
		l.many("main", 1)
	})
	l.many("main", 1)
	run(t, func(shows func(event.Seq)) {
		shows(16)
		l.many("main", 1)
		full.Store(true)
		time.Sleep(11 * time.Minute)
		shows(16)
		full.Store(false)
		time.Sleep(30 * time.Second)
		shows(17)

		// While it fits into one document nothing is made; when it no longer does
		// the list does not go back to what an old snapshot shows for long.
		for i := range 14 {
			l.add("main", sample(event.Deleted, i, 2))
		}
		shows(17 + 14)
		time.Sleep(time.Hour)
		synctest.Wait() // Run's tick and this are at the same moment
		l.many("main", 5)
		time.Sleep(5 * time.Second)
		shows(17 + 14 + 5)
	})
}

// Run tidies what an earlier run has left in the cache, and nothing else.
func TestRunTidies(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	dir := t.TempDir()
	p := publisherIn(t, l, dir)
	get(t, p, "/sets/main/changelist.xml", false)
	get(t, p, "/sets/main/changelist/1.xml", false)
	for _, name := range []string{"cache/" + cacheEpoch("other") + "/closed/x.xml", "cache/notes.txt",
		strings.TrimPrefix(p.cache.dir, dir+"/") + "/closed/main/x.xml.12.tmp"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	}
	synctest.Test(t, func(t *testing.T) {
		end := run(publisherIn(t, l, dir))
		synctest.Wait()
		end()
	})
	for _, f := range cacheFiles(t, p) {
		if !strings.HasPrefix(f, "closed/main/8-1-") && f != baseName {
			t.Errorf("left: %s", f)
		}
	}
	left, _ := os.ReadDir(filepath.Join(dir, "cache"))
	if len(left) != 2 {
		t.Errorf("the cache's folder has %v", left)
	}
	// D152: whoever verifies finds out for which base URL it was rendered.
	if bases := Bases(filepath.Join(dir, "cache"), filepath.Join(dir, "snapshots")); !slices.Equal(bases, []string{p.base}) {
		t.Errorf("kept for %q, want %q", bases, p.base)
	}
}

// Where a backup was restored and nothing has changed since, the Resource List and the dump of
// the same Seq have another time, and so other URLs: caches may have the former ones.
func TestSnapshotsOfANewEpoch(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Mirror)
	must(t, l.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main", Content: event.Mirror, Dumps: true}))
	for i := range 5 {
		l.add(l.held(fmt.Sprintf("urn:x:%d", i), [3]string{fmt.Sprint(i), "text/plain", ""}))
	}
	dir, closed := t.TempDir(), map[string]string{}
	publish := func(parts int) {
		t.Helper()
		p := publisherIn(t, l.Log, dir)
		p.limits.Entries, p.opts.Content = 2, l.content
		must(t, errors.Join(p.Snapshot(t.Context(), "main"), p.Dump(t.Context(), "main")))
		items, err := p.Plan(t.Context(), "main")
		must(t, err)
		for i := range items {
			path := items[i].Path
			body, meta := get(t, p, path, false)
			if was, ok := closed[path]; ok && was != meta.ETag+string(body) {
				t.Errorf("%s never changes, and has other bytes", path)
			}
			if strings.Contains(path, "/resourcelist/") || strings.HasSuffix(path, ".zip") {
				parts--
			}
			if meta.Immutable {
				closed[path] = meta.ETag + string(body)
			}
		}
		if parts != 0 {
			t.Errorf("%d parts and packages are missing", parts)
		}
	}
	publish(3 + 1)
	must(t, l.Close())
	l.pass(time.Hour)
	must(t, os.Remove(filepath.Join(l.dir, eventlog.HeadName))) // which no backup has
	l.open(eventlog.Options{Restored: l.wall})
	must(t, l.MarkSetComplete(t.Context(), "main"))
	publish(3 + 1)
	publish(3 + 1) // after a restart
}

// The dump of a set without events, and that of one whose epoch has none yet, stay after a
// restart too, as long as others do: somebody may be reading them.
func TestDumpFromBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Mirror)
	must(t, l.EnsureSet(t.Context(), eventlog.SetConfig{Name: "main", Content: event.Mirror, Dumps: true}))
	dir := t.TempDir()
	stays := func(record string) {
		t.Helper()
		start := func() *Publisher {
			p := publisherIn(t, l.Log, dir)
			p.opts.Content = l.content
			return p
		}
		p := start()
		must(t, p.Dump(t.Context(), "main"))
		doc, _ := get(t, p, "/sets/main/resourcedump.xml", false)
		path := strings.TrimPrefix(between(string(doc), "<loc>", "</loc>"), base)
		was, _ := get(t, p, path, false)
		l.add(l.held(record, [3]string{record, "text/plain", ""}))
		if now, _ := get(t, start(), path, false); !bytes.Equal(now, was) {
			t.Errorf("%s has other bytes after a restart", path)
		}
	}
	stays("urn:a")
	must(t, l.Close())
	l.pass(time.Hour)
	must(t, os.Remove(filepath.Join(l.dir, eventlog.HeadName))) // which no backup has
	l.open(eventlog.Options{Restored: l.wall})
	must(t, l.MarkSetComplete(t.Context(), "main"))
	stays("urn:b")
}
