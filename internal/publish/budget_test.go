package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// D75, D131: the cache keeps to its size, also what an earlier run has left in it;
// what goes is what nobody has asked for for the longest time.
func TestCacheHasASize(t *testing.T) {
	dir := t.TempDir()
	made := map[string]int{}
	ask := func(c *cache, name string, size int) {
		t.Helper()
		body, n, err := c.open(t.Context(), "closed/main/"+name, func(_ context.Context, w io.Writer) error {
			made[name]++
			_, err := w.Write(make([]byte, size))
			return err
		})
		if err != nil || n != int64(size) {
			t.Fatalf("%s: %d bytes, %v", name, n, err)
		}
		body.Close()
	}
	onDisk := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(dir, "closed/main"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".sum") {
				names = append(names, e.Name())
			}
		}
		return names
	}
	c := newCache(dir, disk{}, 10*(4096+4096)) // each of these has a block, and one for its sum
	for i := range 10 {
		ask(c, fmt.Sprint(i), 100)
	}
	ask(c, "0", 100) // again, so 1 is the one that was not used for the longest time
	ask(c, "new", 100)
	if got, want := onDisk(), []string{"0", "3", "4", "5", "6", "7", "8", "9", "new"}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	ask(c, "large", 100_000)
	if got := onDisk(); !slices.Equal(got, []string{"large"}) {
		t.Errorf("beside one that is larger than all may be: %q", got)
	}
	ask(c, "1", 100)
	ask(c, "2", 100)
	if made["1"] != 2 || made["0"] != 1 || made["large"] != 1 {
		t.Errorf("made %v", made)
	}
	later := newCache(dir, disk{}, 10_000)
	must(t, later.cleanup())
	if got := onDisk(); len(got) != 1 || later.bytes != 4096+4096 {
		t.Errorf("after a start with a smaller size: %q, %d bytes", got, later.bytes)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "closed/main/*.sum")); err != nil || len(left) != 1 {
		t.Errorf("sums: %q, %v", left, err)
	}
}

// D69: nothing is written where the disk is nearly full, and documents are served
// all the same.
func TestNothingIsCachedOnAFullDisk(t *testing.T) {
	p := newPublisher(t, history(10, event.Mirror).fill("main", 15))
	p.cache.full = func() error { return errors.New("the disk is nearly full") }
	if body, _ := get(t, p, "/sets/main/changelist/1.xml", false); len(body) == 0 {
		t.Error("no document")
	}
	if files := cacheFiles(t, p); len(files) > 0 {
		t.Errorf("written: %q", files)
	}
}

// D68: what is made for one set does not keep another one waiting.
func TestSlotsOfASet(t *testing.T) {
	c := newCache(t.TempDir(), disk{}, 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	began, ended := make(chan struct{}, 10), make(chan error)
	const crowd = 10
	for i := range crowd {
		go func() {
			_, _, err := c.open(ctx, fmt.Sprintf("open/busy/%d", i), func(ctx context.Context, _ io.Writer) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			ended <- err
		}()
	}
	for range slotsOfSet {
		<-began
	}
	body, _, err := c.open(t.Context(), "open/quiet/1", func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "here")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	select {
	case <-began:
		t.Error("more documents of one set are made at a time than it has slots")
	default:
	}
	cancel()
	for range crowd {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// D75: a panic while a document is made is an error of those who wait for it.
func TestPanicOfARendering(t *testing.T) {
	c := newCache(t.TempDir(), disk{}, 1<<20)
	for range 2 {
		if _, _, err := c.open(t.Context(), "open/main/1", func(context.Context, io.Writer) error { panic("no such thing") }); err == nil || !strings.Contains(err.Error(), "no such thing") {
			t.Fatalf("got %v", err)
		}
	}
	if len(c.calls) > 0 || len(c.slots) > 0 {
		t.Error("it goes on")
	}
}

// D68: a large open document is made anew only when it is old enough, whatever the
// log does; a small one, and one that has closed, at once.
func TestOpenDocumentsHaveAnAge(t *testing.T) {
	testenv.Heavy(t)
	const large, small = 3000, 20
	l := newLog().make("large", event.Mirror, large+2).make("small", event.Mirror, 1000)
	l.many("large", large).many("small", small)
	now := time.Unix(1_800_000_000, 0)
	p := newPublisher(t, l)
	p.opts.Now = func() time.Time { return now }
	p.opts.MinAge = time.Second
	paths := []string{"/changelist/1.xml", "/changelist.xml", "/resourcelist.xml", "/feed.atom", "/complete.atom"}
	tag := func(set, path string, gzip bool) string {
		t.Helper()
		_, meta := get(t, p, "/sets/"+set+path, gzip)
		return strings.TrimSuffix(strings.Trim(meta.ETag, `"`), "-gz")
	}
	first := map[string]string{}
	for _, path := range paths {
		first[path] = tag("large", path, false)
		first["small"+path] = tag("small", path, false)
	}
	l.many("large", 1).many("small", 1)
	now = now.Add(3*time.Second - 1)
	for _, path := range paths {
		if tag("large", path, false) != first[path] || tag("large", path, true) != first[path] {
			t.Errorf("%s was made anew after less than its age", path)
		}
		if tag("small", path, false) == first["small"+path] {
			t.Errorf("%s of a small set was not made anew", path)
		}
	}
	now = now.Add(1)
	for _, path := range paths {
		if tag("large", path, false) == first[path] {
			t.Errorf("%s was not made anew in time", path)
		}
	}
	l.many("large", 1) // closes the segment
	if _, meta := get(t, p, "/sets/large/changelist/1.xml", false); !meta.Immutable {
		t.Error("a Change List that has closed is served as it was while open")
	}
}

// Of the open documents of a set, one of each kind is kept, however many segments it has had.
func TestOneOpenDocumentOfAKind(t *testing.T) {
	l := history(10, event.Mirror)
	p := newPublisher(t, l)
	for n := 1; n <= 12; n++ {
		l.many("main", 5)
		paths := []string{changeListPath("main", n), "/sets/main/feed.atom", "/sets/main/changelist.xml"}
		if n > 1 {
			paths = append(paths, archivePath("main", n-1)) // it lacks its link to the next one
		}
		for _, path := range paths {
			for _, gzip := range []bool{false, true} {
				if _, meta := get(t, p, path, gzip); meta.Immutable {
					t.Fatalf("%s is closed", path)
				}
			}
		}
		l.many("main", 5) // closes the segment
	}
	var open []string
	for _, name := range cacheFiles(t, p) {
		if strings.HasPrefix(name, "open/") && !strings.HasSuffix(name, ".sum") {
			open = append(open, name)
		}
	}
	if len(open) != 8 || len(p.openDocs) != 4 || len(p.latest) != 8 {
		t.Errorf("%d and %d open documents are known, want 4 and 8, and 8 are kept: %q", len(p.openDocs), len(p.latest), open)
	}
}

// A Change Notification of a large set is small, and made anew at once: a push must not wait
// until the set's large documents may be.
func TestNotificationOfALargeSetHasNoAge(t *testing.T) {
	const large = 3000
	l := newLog().make("large", event.Mirror, 10_000)
	l.many("large", large)
	now := time.Unix(1_800_000_000, 0)
	p := newPublisher(t, l)
	p.opts.Now = func() time.Time { return now }
	p.opts.MinAge = time.Second
	p.opts.Hubs = func(string) []string { return []string{"https://hub.example/"} }
	_, before := get(t, p, "/sets/large/change-notification.xml", false)
	l.many("large", 1)
	now = now.Add(time.Second)
	topics, err := p.Topics(t.Context(), "large")
	if err != nil || topics[0].Stale {
		t.Errorf("%+v, %v", topics, err)
	}
	if _, meta := get(t, p, "/sets/large/change-notification.xml", false); meta.ETag == before.ETag {
		t.Error("the notification was not made anew")
	}
}

// A Change Notification is no longer than a Change List may be, however long its changes are. It
// has the newest ones.
func TestNotificationOfLongChanges(t *testing.T) {
	testenv.Heavy(t)
	const records = 160
	l := openRepositoryLog(t, event.Redirect)
	var links []event.Link
	for n := range 40 {
		links = append(links, event.Link{Rel: event.RelLicense, Href: fmt.Sprintf("https://source.example/%d?%s", n, strings.Repeat("x", 8000)), Length: event.NoLength})
	}
	var items []*event.Item
	for i := range records {
		it := live(fmt.Sprint("urn:x:", i), fmt.Sprint("version-", i))
		it.Links = links
		items = append(items, it)
	}
	l.add(items...)
	p, err := New(Options{Log: l.Log, BaseURL: "https://bridge.example", CacheDir: t.TempDir(), SnapshotDir: t.TempDir(), CacheBytes: 1 << 30,
		Hubs: func(string) []string { return []string{"https://hub.example/"} }})
	must(t, err)
	body, _ := get(t, p, "/sets/main/change-notification.xml", false)
	if len(body) > int(resourcesync.MaxBytes) {
		t.Errorf("it has %d bytes, and may have %d", len(body), resourcesync.MaxBytes)
	}
	last := translate.RecordURL("https://bridge.example", "main", fmt.Sprint("urn:x:", records-1))
	if !bytes.Contains(body, []byte("<loc>"+last+"</loc>")) {
		t.Error("it lacks the newest change")
	}
}

// The changes before a new epoch are none of the set any more: its Change Notification begins
// with the first one after that.
func TestNotificationAfterALoss(t *testing.T) {
	const path = "/sets/main/change-notification.xml"
	l := history(100, event.Mirror)
	l.many("main", 5)
	s := l.sets["main"]
	s.set.LastObserved++ // as the log does when an epoch begins
	s.set.Created = s.set.LastObserved
	p := newPublisher(t, l)
	p.opts.Hubs = func(string) []string { return []string{"https://hub.example/"} }
	if body, _ := get(t, p, path, false); bytes.Contains(body, []byte("<loc>")) {
		t.Errorf("it has changes:\n%s", body)
	}
	l.add("main", sample(event.Created, len(s.events), 1))
	if body, _ := get(t, p, path, false); bytes.Count(body, []byte("<loc>")) != 1 {
		t.Errorf("want one change:\n%s", body)
	}
}

// D115: after a restored backup, or with a folder made anew, other events have the
// same Seqs: no tag and no file of the cache is that of the old ones.
func TestTagsOfAnotherHistory(t *testing.T) {
	const events = 7
	tags := map[string]string{}
	for name, change := range map[string]func(*sliceLog){
		"first":    func(l *sliceLog) { l.many("main", events) },
		"restored": func(l *sliceLog) { l.many("main", events-1).add("main", later(l, "main")) },
		"anew": func(l *sliceLog) {
			l.sets["main"].set.Feed = "urn:uuid:another"
			l.many("main", events)
		},
	} {
		l := history(100, event.Mirror)
		change(l)
		p := newPublisher(t, l)
		for _, path := range []string{"/changelist/1.xml", "/changelist.xml", "/resourcelist.xml", "/feed.atom", "/complete.atom"} {
			_, meta := get(t, p, "/sets/main"+path, false)
			if other, ok := tags[meta.ETag]; ok {
				t.Errorf("%s of %s has the tag of %s", path, name, other)
			}
			tags[meta.ETag] = path + " of " + name
		}
	}
}

// later is an event as history makes it, observed a microsecond later.
func later(l *sliceLog, set string) event.Event {
	s := l.sets[set]
	e := sample(event.Created, len(s.events), 1)
	e.Observed = s.set.LastObserved + 1_000_002
	return e
}

// D130: snapshots stay for their age, within a number and a size; two always do.
func TestHowManySnapshotsStay(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	// Newest first, one each hour; all have 10 bytes.
	kept := make([]*storedSnapshot, 40)
	for i := range kept {
		kept[i] = &storedSnapshot{made: now.Add(-time.Duration(i) * time.Hour), bytes: 10}
	}
	for _, c := range []struct {
		name  string
		kept  []*storedSnapshot
		limit Retention
		want  int
	}{
		{"none", nil, Retention{24 * time.Hour, 100, 1000}, 0},
		{"all are young", kept[:10], Retention{24 * time.Hour, 100, 1000}, 10},
		{"a day", kept, Retention{24 * time.Hour, 100, 1000}, 26}, // the last one was current until 24 hours ago
		{"a number", kept, Retention{24 * time.Hour, 5, 1000}, 5},
		{"a size", kept, Retention{24 * time.Hour, 100, 75}, 7},
		{"two are too large", kept, Retention{24 * time.Hour, 100, 15}, 2},
		{"two are too many", kept, Retention{24 * time.Hour, 1, 1000}, 2},
		{"two are too old", kept[30:], Retention{24 * time.Hour, 100, 1000}, 2},
	} {
		if got := c.limit.keeps(c.kept, now); got != c.want {
			t.Errorf("%s: %d stay, want %d", c.name, got, c.want)
		}
	}
}

// D131: an index has no more entries than a document may, and says where it starts.
func TestIndexOfTooManySegments(t *testing.T) {
	segments := make([]event.Segment, resourcesync.MaxEntries+2)
	for i := range segments {
		from := created + event.Micros(i)
		segments[i] = event.Segment{N: i + 1, From: from, Until: from + 1, First: event.Seq(i + 1), Last: event.Seq(i + 1), Events: 1, Entries: 1}
	}
	segments[len(segments)-1].Until = 0
	it := changeListIndex(event.Set{Name: "main", Created: created}, segments, resourcesync.MaxEntries)
	if len(it.segments) != resourcesync.MaxEntries || it.segments[0].N != 3 || it.From != segments[2].From {
		t.Errorf("%d entries, the first is %d, from %d", len(it.segments), it.segments[0].N, it.From)
	}
	if err := Render(io.Discard, base, &it, nil); err != nil {
		t.Error(err)
	}
}

// D114: who asks what there is finds the snapshots of a set whatever base URL they
// were made for; who serves another one does not.
func TestSnapshotOfAnyBase(t *testing.T) {
	l, dir := history(100, event.Mirror).many("main", 20), t.TempDir()
	of := func(base string, anyBase bool) *Publisher {
		p := publisherIn(t, l, dir)
		p.base, p.opts.AnyBase = base, anyBase
		p.limits.Entries = 5
		return p
	}
	must(t, of("https://one.example", false).Snapshot(t.Context(), "main"))
	for anyBase, want := range map[bool]event.Seq{true: 20, false: 0} {
		if seq, err := of("https://two.example", anyBase).SnapshotSeq(t.Context(), "main"); seq != want || err != nil {
			t.Errorf("any base %t: Seq %d, %v, want %d", anyBase, seq, err, want)
		}
	}
}
