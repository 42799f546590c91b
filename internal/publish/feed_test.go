package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

var nextLink = regexp.MustCompile(`(?m)^ <link rel="next-archive" .*/>\n`)

// withoutNext takes the one thing out of an archive document that may come.
func withoutNext(doc []byte) []byte { return nextLink.ReplaceAll(doc, nil) }

// readFeed reads a feed document, which must break no rule.
func readFeed(t testing.TB, path string, doc []byte) (*atompmh.Feed, []atompmh.Entry) {
	t.Helper()
	r := atompmh.NewReader(bytes.NewReader(doc), atompmh.ReadOptions{URL: base + path, Report: func(p atompmh.Problem) { t.Error(p) }})
	var entries []atompmh.Entry
	for {
		e, err := r.Next()
		if err == io.EOF {
			return r.Feed(), entries
		}
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, *e)
	}
}

// head is what decides how a feed document is taken.
func head(f *atompmh.Feed) string {
	trim := func(s string) string { return strings.TrimPrefix(s, base+"/sets/main/") }
	return fmt.Sprintf("%s archive=%v complete=%v self=%s current=%s prev=%s next=%s", f.Title, f.Archive, f.Complete,
		trim(f.Self), trim(f.Current), trim(f.PrevArchive), trim(f.NextArchive))
}

func TestFeedHeads(t *testing.T) {
	l := history(10, event.Mirror)
	p := newPublisher(t, l)
	want := func(name, wanted string, entries int, updated event.Micros, immutable bool) {
		t.Helper()
		path := "/sets/main/" + name
		doc, meta := get(t, p, path, false)
		f, got := readFeed(t, path, doc)
		if h := head(f); h != wanted || len(got) != entries {
			t.Errorf("%s: got %s with %d entries\nwant %s with %d", name, h, len(got), wanted, entries)
		}
		if !f.Updated.Equal(updated.Time()) || len(f.Authors) != 1 || f.Authors[0].Name != f.Title {
			t.Errorf("%s: updated %v, want %v; authors %q", name, f.Updated, updated.Time(), f.Authors)
		}
		if id := l.sets["main"].set.Feed; f.Complete == (f.ID == id) || f.Complete != (f.ID == l.sets["main"].set.Complete) {
			t.Errorf("%s: id %s", name, f.ID)
		}
		if meta.ContentType != "application/atom+xml" || meta.Immutable != immutable || immutable == meta.LastModified.IsZero() {
			t.Errorf("%s: meta %+v", name, meta)
		}
	}
	want("feed.atom", "MAIN archive=false complete=false self=feed.atom current=feed.atom prev= next=", 0, created, false)
	want("complete.atom", "MAIN archive=false complete=true self=complete.atom current= prev= next=", 0, created, false)

	l.many("main", 10) // closes segment 1
	borders := func() []event.Segment { return l.sets["main"].segments }
	want("feed.atom", "MAIN archive=false complete=false self=feed.atom current=feed.atom prev=feed/1.atom next=", 0, borders()[0].Until, false)
	want("feed/1.atom", "main archive=true complete=false self=feed/1.atom current=feed.atom prev= next=", 10, borders()[0].Until, false)
	want("complete.atom", "MAIN archive=false complete=true self=complete.atom current= prev= next=", 10, borders()[0].Until, false)

	l.many("main", 13) // closes segment 2
	last := l.sets["main"].set.LastObserved
	want("feed.atom", "MAIN archive=false complete=false self=feed.atom current=feed.atom prev=feed/2.atom next=", 3, last, false)
	want("feed/1.atom", "main archive=true complete=false self=feed/1.atom current=feed.atom prev= next=feed/2.atom", 10, borders()[0].Until, true)
	want("feed/2.atom", "main archive=true complete=false self=feed/2.atom current=feed.atom prev=feed/1.atom next=", 10, borders()[1].Until, false)
	want("complete.atom", "MAIN archive=false complete=true self=complete.atom current= prev= next=", 23, last, false)
	_, meta := get(t, p, "/sets/main/feed/1.atom", false)
	if end := borders()[1].Until; !meta.LastModified.Equal(end.Time().Truncate(1e9)) {
		t.Errorf("the archive's Last-Modified is %v, and it got its last form at %v", meta.LastModified.Format(http.TimeFormat), end)
	}
}

// The operator may change the title: open documents get it, and another tag;
// archive documents stay as they are.
func TestFeedTitleChanges(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 25)
	p := newPublisher(t, l)
	paths := []string{"/sets/main/feed.atom", "/sets/main/complete.atom", "/sets/main/feed/1.atom", "/sets/main/feed/2.atom"}
	type form struct {
		doc []byte
		tag string
	}
	before := map[string]form{}
	for _, path := range paths {
		doc, meta := get(t, p, path, false)
		before[path] = form{doc, meta.ETag}
	}
	l.mu.Lock()
	l.sets["main"].set.Title = "Maps & plans"
	l.mu.Unlock()
	for _, path := range paths {
		doc, meta := get(t, p, path, false)
		same := bytes.Equal(doc, before[path].doc) && meta.ETag == before[path].tag
		if archive := strings.Contains(path, "/feed/"); archive != same || !archive && !bytes.Contains(doc, []byte("<title>Maps &amp; plans</title>")) {
			t.Errorf("%s after the title has changed: same %v\n%.400s", path, same, doc)
		}
	}
}

// The log may grow between two readings of it: the document is then of the
// earlier moment.
func TestSubscriptionOfAnEarlierMoment(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 14)
	old := l.sets["main"].set
	l.fill("main", 2)
	it := subscription(old, l.sets["main"].segments)
	if it.Events.Upto != old.Last || it.Entries != -1 || it.At != old.LastObserved {
		t.Errorf("got %+v", it)
	}
	var b bytes.Buffer
	if err := Render(&b, base, &it, l.Events(t.Context(), "main", it.Events)); err != nil {
		t.Error(err)
	}
	l.fill("main", 20)
	it = subscription(old, l.sets["main"].segments)
	if it.Events != (event.Range{}) || it.Entries != 0 || it.At != it.From || it.N != 4 {
		t.Errorf("got %+v", it)
	}
}

// In mode reference records may share a Loc. A Resource List has it once; in a
// complete feed each of them must be there, or it would be taken for deleted.
func TestCompleteFeedHasEveryRecord(t *testing.T) {
	l := history(7, event.Reference)
	p := newPublisher(t, l)
	shared := false
	for range 40 {
		l.fill("main", 3)
		doc, _ := get(t, p, "/sets/main/complete.atom", false)
		_, entries := readFeed(t, "/sets/main/complete.atom", doc)
		var got, want []string
		for _, e := range entries {
			if e.Kind != atompmh.Active {
				t.Errorf("%s is there as a %v entry", e.ID, e.Kind)
			}
			got = append(got, e.ID)
		}
		locs := map[string]bool{}
		for record, loc := range l.sets["main"].live {
			want = append(want, record)
			shared = shared || locs[loc]
			locs[loc] = true
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q\nwant %q", got, want)
		}
	}
	if !shared {
		t.Error("no two records have shared a Loc")
	}
}

func TestCompleteFeedPassesTheLogsErrorOn(t *testing.T) {
	l := history(7, event.Reference).fill("main", 50)
	p := newPublisher(t, l)
	doc, err := p.Document(t.Context(), "/sets/main/complete.atom", false)
	if err != nil {
		t.Fatal(err)
	}
	l.fail = errors.New("the disk is gone")
	if _, _, err := doc.Open(); !errors.Is(err, l.fail) {
		t.Errorf("got %v", err)
	}
}

func TestCompleteFeedAboveTheLimit(t *testing.T) {
	s := newStream(completeLimit)
	p := newPublisher(t, s)
	if _, err := p.Document(t.Context(), "/sets/main/complete.atom", true); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	s.sets["main"].set.Live++
	var tooMany *TooManyError
	_, err := p.Document(t.Context(), "/sets/main/complete.atom", true)
	if !errors.As(err, &tooMany) || tooMany.Records != completeLimit+1 || !strings.Contains(err.Error(), base+"/sets/main/feed.atom") {
		t.Errorf("above the limit: %v", err)
	}
	for _, it := range planFeeds(s.sets["main"].set, s.sets["main"].segments) {
		if it.Kind == Complete {
			t.Error("the plan has a complete feed above the limit")
		}
	}
}

// jing, with the schema of RFC 4287, takes every feed document.
func TestFeedSchema(t *testing.T) {
	testenv.Heavy(t)
	jing, schema := testenv.Need(t, "jing", "jing"), filepath.Join(testenv.Shared(t, "schemas"), "atom-rfc4287.rnc")
	l := goldenLog()
	p := newPublisher(t, l)
	args := []string{"-c", schema}
	dir := t.TempDir()
	for i, path := range goldenPaths(t, p, l) {
		if !strings.HasSuffix(path, ".atom") {
			continue
		}
		doc, _ := get(t, p, path, false)
		readFeed(t, path, doc)
		file := filepath.Join(dir, fmt.Sprintf("%d.atom", i))
		must(t, os.WriteFile(file, doc, 0o666))
		args = append(args, file)
	}
	if len(args) < 2+4*2+3 {
		t.Fatalf("only %d documents", len(args)-2)
	}
	if out, err := exec.CommandContext(context.Background(), jing, args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestVerifySegmentCoversTheArchive(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	p := newPublisher(t, l)
	for _, grown := range []int{0, 10} { // not final, then final
		l.fill("main", grown)
		get(t, p, "/sets/main/feed/1.atom", false)
		get(t, p, "/sets/main/feed/1.atom", true)
		check, err := p.VerifySegment(t.Context(), "main", 1)
		if err != nil || check.Kept != 2 || len(check.Damaged) != 0 {
			t.Fatalf("with two copies: %+v, %v", check, err)
		}
		damageCache(t, p)
		if check, err = p.VerifySegment(t.Context(), "main", 1); err != nil || len(check.Damaged) != 2 {
			t.Errorf("with two damaged copies: %+v, %v", check, err)
		}
	}
}

// D64: a complete feed that would be longer than consumers take is not offered, and
// no part of it is. It is made in a file, so that its length takes no memory, and
// not made again for each who asks.
func TestCompleteFeedThatIsTooLong(t *testing.T) {
	testenv.Heavy(t)
	const records, path = 1000, "/sets/main/complete.atom"
	title := strings.Repeat("long ", 2000)
	l := history(100, event.Redirect)
	for i := range records {
		l.add("main", event.Event{Record: fmt.Sprint("urn:x:", i), Kind: event.Created, Title: title,
			Representations: []event.Representation{{Href: "http://source.example/r", Type: "text/xml", Length: event.NoLength}}})
	}
	p := newPublisher(t, l)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	doc, err := p.Document(t.Context(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	body, size, err := doc.Open()
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	runtime.ReadMemStats(&after)
	if took := int64(after.TotalAlloc - before.TotalAlloc); size < 10_000_000 || took > size/2 {
		t.Errorf("%d bytes were allocated for a document of %d", took, size)
	}

	for _, gzip := range []bool{false, true} {
		p = newPublisher(t, l)
		p.completeBytes = size - 1
		for again := range 2 {
			reads := l.reads
			doc, err := p.Document(t.Context(), path, gzip)
			if err == nil {
				_, _, err = doc.Open()
			}
			var tooMany *TooManyError
			if !errors.As(err, &tooMany) || !strings.Contains(err.Error(), fmt.Sprint(size-1)) || !strings.Contains(err.Error(), base+"/sets/main/feed.atom") {
				t.Fatalf("gzip %t: %v", gzip, err)
			}
			if again == 1 && l.reads > reads {
				t.Error("it is made again for the next one who asks")
			}
		}
		if files := cacheFiles(t, p); len(files) > 0 {
			t.Errorf("left behind: %q", files)
		}
		for i := range records / 5 {
			l.add("main", event.Event{Record: fmt.Sprint("urn:x:", i), Kind: event.Deleted})
		}
		if body, _ := get(t, p, path, gzip); len(body) == 0 {
			t.Error("it is not there once the set has become smaller")
		}
		for i := range records / 5 {
			l.add("main", event.Event{Record: fmt.Sprint("urn:x:", i), Kind: event.Created, Title: title,
				Representations: []event.Representation{{Href: "http://source.example/r", Type: "text/xml", Length: event.NoLength}}})
		}
	}
	few := history(100, event.Redirect).fill("main", 3)
	p = newPublisher(t, few)
	p.completeBytes = 100
	reads := 0
	for range 2 {
		reads = few.reads
		var tooMany *TooManyError
		doc, err := p.Document(t.Context(), path, false)
		if err == nil {
			_, _, err = doc.Open()
		}
		if !errors.As(err, &tooMany) {
			t.Fatal(err)
		}
	}
	if few.reads > reads {
		t.Error("that of a few records is made again for the next one who asks")
	}
	p = newPublisher(t, l)
	p.completeBytes = size * 2
	if body, _ := get(t, p, path, false); int64(len(body)) < size/2 {
		t.Errorf("%d bytes of one that is short enough", len(body))
	}
}

// A title of blanks is none: without an author whose name says something there would be no feed.
func TestFeedWithoutATitle(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 5)
	l.sets["main"].set.Title = " \t"
	p := newPublisher(t, l)
	for _, path := range []string{"/sets/main/feed.atom", "/sets/main/complete.atom"} {
		if doc, _ := get(t, p, path, false); !bytes.Contains(doc, []byte("<title>main</title>")) || !bytes.Contains(doc, []byte("<name>main</name>")) {
			t.Errorf("%s:\n%.400s", path, doc)
		}
	}
}

// A record whose identifier is no IRI has the same atom:id in all documents of the feeds, also
// after a backup was restored: it never changes (RFC 4287 4.2.6).
func TestEntryIDsInANewEpoch(t *testing.T) {
	t.Parallel()
	l := openRepositoryLog(t, event.Reference)
	l.add(live("Post: my first one", "First"))
	ids := func(path string) (all []string) {
		doc, _ := get(t, newPublisher(t, l.Log), path, false)
		for _, e := range strings.SplitAfter(string(doc), "<entry")[1:] {
			all = append(all, between(e, "<id>", "</id>"))
		}
		return all
	}
	was := ids("/sets/main/feed.atom")
	must(t, l.Close())
	l.pass(time.Hour)
	must(t, os.Remove(filepath.Join(l.dir, eventlog.HeadName))) // which no backup has
	l.open(eventlog.Options{Restored: l.wall})
	l.add(live("Post: my first one", "Second"))
	must(t, l.MarkSetComplete(t.Context(), "main"))
	_, segments, err := newPublisher(t, l.Log).Segments(t.Context(), "main")
	must(t, err)
	for _, path := range []string{"/sets/main/feed.atom", archivePath("main", segments[0].N), "/sets/main/complete.atom"} {
		if now := ids(path); len(was) != 1 || !strings.HasPrefix(was[0], "urn:uuid:") || !slices.Equal(now, was) {
			t.Errorf("%s has %q, and before it was %q", path, now, was)
		}
	}
}
