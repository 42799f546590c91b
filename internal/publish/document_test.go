package publish

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/translate"
)

// setFault puts fault around every change to the file system.
func (p *Publisher) setFault(fault func(op, path string, step func() error) error) {
	p.disk.fault = fault
	p.cache.disk.fault = fault
}

// cacheFiles lists the cache's files, without the folder of the epoch.
func cacheFiles(t testing.TB, p *Publisher) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(p.cache.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, p.cache.dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestNotFound(t *testing.T) {
	p := newPublisher(t, history(10, event.Mirror).fill("main", 15))
	for _, path := range []string{
		"", "/", "/sets", "/sets/", "/sets/main", "/sets/main/", "/sets/none/capabilitylist.xml", "/sets/none/resourcelist.xml",
		"/sets/none/resourcelist/1/1.xml", "/sets/main/other.xml", "/sets/main/changelist/0.xml", "/sets/main/changelist/3.xml",
		"/sets/main/changelist/01.xml", "/sets/main/changelist/+1.xml", "/sets/main/changelist/1", "/sets/main/changelist/.xml",
		"/sets/main/changelist/1.xml/", "/sets/main/changelist/99999999999999999999.xml", "/sets/main/resourcelist/9/1.xml",
		"/sets/main/resourcelist/1.xml", "/sets/main/resourcelist/00/1.xml", "/sets//capabilitylist.xml", "/sets/../robots.txt",
		"robots.txt", "/sets/main/changelist/-1.xml", "/sets/main/feed/2.atom", "/sets/main/feed/3.atom", "/sets/main/feed/0.atom",
		"/sets/main/feed/1.xml", "/sets/main/feed/01.atom", "/sets/main/feed/", "/sets/main/feed", "/sets/main/feed.atom/", "/sets/none/feed.atom",
		"/sets/none/complete.atom", "/sets/none/feed/1.atom", "/sets/main/changelist/1.atom",
	} {
		if _, err := p.Document(t.Context(), path, false); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: got %v, want ErrNotFound", path, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, url := range []string{"", "bridge.example", "ftp://bridge.example", "https://", "https://bridge.example/?a=1", "https://a/#b", ":"} {
		if _, err := New(Options{Log: newLog(), BaseURL: url, CacheDir: "c", SnapshotDir: "s"}); err == nil {
			t.Errorf("base URL %q was taken", url)
		}
	}
	if _, err := New(Options{BaseURL: base}); err == nil {
		t.Error("a Publisher without a log was made")
	}
}

// A base URL may have a path and a slash at its end.
func TestBaseURL(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 5)
	dir := t.TempDir()
	p, err := New(Options{Log: l, BaseURL: "https://host.example/bridge/", CacheDir: dir, SnapshotDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	doc, _ := get(t, p, "/sets/main/changelist.xml", false)
	if !bytes.Contains(doc, []byte("<loc>https://host.example/bridge/sets/main/records/")) || bytes.Contains(doc, []byte(base)) {
		t.Errorf("got\n%.900s", doc)
	}
	if got, want := p.LinkHeader("main"), `<https://host.example/bridge/sets/main/capabilitylist.xml>; rel="resourcesync"`; got != want {
		t.Errorf("Link: got %s, want %s", got, want)
	}
	record := translate.RecordURL(p.base, "main", "urn:example:record:1")
	if !bytes.Contains(doc, []byte("<loc>"+record+"</loc>")) {
		t.Errorf("no entry has the loc %s", record)
	}
	if alternate := record + ".html"; !bytes.Contains(doc, []byte(`href="`+alternate+`"`)) {
		t.Errorf("no entry has the alternate %s", alternate)
	}
}

// What differs in a byte differs in its tag; what is the same has the same tag,
// in another process too.
func TestTags(t *testing.T) {
	seen := map[string][]byte{} // body by tag
	see := func(p *Publisher, l *sliceLog) {
		for _, path := range goldenPaths(t, p, l) {
			doc, meta := get(t, p, path, false)
			if was, ok := seen[meta.ETag]; ok && !bytes.Equal(was, doc) {
				t.Errorf("%s: two bodies have the tag %s", path, meta.ETag)
			}
			seen[meta.ETag] = doc
		}
	}
	l := goldenLog()
	see(newPublisher(t, l), l)
	n := len(seen)
	see(newPublisher(t, goldenLog()), l)
	if len(seen) != n {
		t.Errorf("the same log gave %d tags, and %d in another process", n, len(seen))
	}
	for range 15 {
		l.fill("campus", 1).fill("away", 1)
		see(newPublisher(t, l), l)
	}
	later := goldenLog()
	for _, s := range later.sets {
		s.set.Created++ // a log made anew
	}
	see(newPublisher(t, later), later)
	two, err := New(Options{Log: l, BaseURL: "https://two.example", CacheDir: t.TempDir(), SnapshotDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	see(two, l)
}

// A document is the one whose tag was given, however the log grows before it is
// read; and of open documents only the last rendering is kept.
func TestDocumentStaysAtItsSeq(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	p := newPublisher(t, l)
	paths := []string{"/sets/main/changelist/2.xml", "/sets/main/changelist.xml", "/sets/main/resourcelist.xml", "/sets/main/changelist-index.xml"}
	for _, path := range paths {
		want, meta := get(t, p, path, false)
		old, err := p.Document(t.Context(), path, false)
		if err != nil {
			t.Fatal(err)
		}
		l.fill("main", 11)
		if _, now := get(t, p, path, false); now.ETag == meta.ETag {
			t.Errorf("%s: the tag stayed when the log grew", path)
		}
		if got := read(t, old); old.ETag != meta.ETag || !bytes.Equal(got, want) {
			t.Errorf("%s changed between Document and Open:\n%s\n%s", path, want, got)
		}
	}
	open := 0
	for _, f := range cacheFiles(t, p) {
		if strings.HasPrefix(f, "open/") {
			open++
		}
	}
	if open > 2*len(paths) {
		t.Errorf("%d files of open documents are kept: %v", open, cacheFiles(t, p))
	}
}

// Closed documents come from the cache without asking the log, also after a
// restart; damage and truncation are noticed.
func TestCacheDamage(t *testing.T) {
	const path = "/sets/main/changelist/1.xml"
	l := history(10, event.Mirror).fill("main", 15)
	dir := t.TempDir()
	want, _ := get(t, publisherIn(t, l, dir), path, false)

	p := publisherIn(t, l, dir)
	if _, err := p.Document(t.Context(), path, false); err != nil {
		t.Fatal(err)
	}
	reads := l.reads
	for range 3 {
		if got, _ := get(t, p, path, false); !bytes.Equal(got, want) {
			t.Fatal("the cached document differs")
		}
	}
	if l.reads != reads {
		t.Errorf("a cached document asked the log %d times", l.reads-reads)
	}
	files := cacheFiles(t, p)
	if len(files) != 2 {
		t.Fatalf("the cache has %v", files)
	}
	file, sumFile := filepath.Join(p.cache.dir, files[0]), filepath.Join(p.cache.dir, files[1])
	damage := map[string]func() error{
		"truncated": func() error { return os.Truncate(file, 100) },
		"emptied":   func() error { return os.Truncate(file, 0) },
		"flipped": func() error {
			return os.WriteFile(file, bytes.Replace(want, []byte("created"), []byte("updated"), 1), 0o666)
		},
		"removed":     func() error { return os.Remove(file) },
		"without sum": func() error { return os.Remove(sumFile) },
		"sum cut":     func() error { return os.Truncate(sumFile, 10) },
		"no cache":    func() error { return os.RemoveAll(filepath.Dir(p.opts.CacheDir)) },
	}
	for name, do := range damage {
		for _, when := range []string{"while running", "before a start"} {
			must(t, do())
			if when == "before a start" {
				p = publisherIn(t, l, dir)
			}
			if got, _ := get(t, p, path, false); !bytes.Equal(got, want) {
				t.Errorf("%s %s: served something else:\n%.300s", name, when, got)
			}
			// Both files are there again for the next kind of damage.
			if _, err := os.Stat(sumFile); err != nil {
				get(t, publisherIn(t, l, dir), path, false)
			}
		}
	}
}

// Whatever step of keeping a document fails, before it took effect or although
// it did, the document is served; and nothing half is ever found by a later run.
func TestCacheFaults(t *testing.T) {
	const path = "/sets/main/changelist/1.xml"
	l := history(10, event.Mirror).fill("main", 15)
	want, _ := get(t, newPublisher(t, l), path, false)
	eachFault(t, func(t *testing.T, fault func(op, path string, step func() error) error) {
		dir := t.TempDir()
		p := publisherIn(t, l, dir)
		p.setFault(fault)
		for range 2 {
			if got, _ := get(t, p, path, false); !bytes.Equal(got, want) {
				t.Errorf("served %.200s", got)
			}
		}
		if got, _ := get(t, publisherIn(t, l, dir), path, false); !bytes.Equal(got, want) {
			t.Errorf("a later run served %.200s", got)
		}
	})
}

// eachFault runs body once for each step that it takes on the disk and each way
// of failing there: an error without effect, an error with the effect, and both
// again with nothing working afterwards (as after a crash). It ends with the
// first step number that body does not reach.
func eachFault(t *testing.T, body func(t *testing.T, fault func(op, path string, step func() error) error)) {
	for _, way := range []string{"failed", "failed although it took effect", "crashed"} {
		for at := 1; ; at++ {
			n, reached := 0, ""
			var mu sync.Mutex
			fault := func(op, path string, step func() error) error {
				mu.Lock()
				defer mu.Unlock()
				n++
				switch {
				case n > at && way == "crashed":
					return syscall.EIO
				case n != at:
					return step()
				}
				reached = op + " " + filepath.Base(path)
				if way == "failed although it took effect" {
					if err := step(); err != nil {
						return err
					}
				}
				return fmt.Errorf("%s: %w", reached, syscall.ENOSPC)
			}
			t.Run(fmt.Sprintf("step %d %s", at, way), func(t *testing.T) { body(t, fault) })
			if reached == "" {
				if at < 6 {
					t.Fatal("the faults were not reached")
				}
				break
			}
		}
	}
}

// That the cache cannot be written is logged once, and that it can be again; a disk that is
// nearly full was logged by whoever says so.
func TestCacheSaysThatItCannotBeWritten(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 35)
	p := newPublisher(t, l)
	var out bytes.Buffer
	p.logger = slog.New(slog.NewTextHandler(&out, nil))
	var fault error
	p.setFault(func(_, _ string, step func() error) error { return cmp.Or(fault, step()) })
	for _, row := range []struct {
		fault, full error
		lists       []int
		want        string
	}{
		{nil, nil, []int{1}, ""},
		{syscall.ENOENT, nil, []int{2}, ""}, // cleanup has removed the folder meanwhile
		{syscall.EACCES, errors.New("nearly full"), []int{2}, ""},
		{syscall.EACCES, nil, []int{2, 3}, "permission denied"},
		{nil, nil, []int{2, 3}, "the cache can be written again"},
	} {
		fault = row.fault
		p.cache.full = func() error { return row.full }
		out.Reset()
		for _, n := range row.lists {
			get(t, p, fmt.Sprintf("/sets/main/changelist/%d.xml", n), false)
		}
		if said := out.String(); strings.Count(said, "\n") != min(1, len(row.want)) || !strings.Contains(said, row.want) {
			t.Errorf("with %v and %v: %q", row.fault, row.full, said)
		}
	}
}

// A document that cannot be kept and is too large for memory is a clear error.
func TestCacheFullAndDocumentTooLarge(t *testing.T) {
	testenv.Heavy(t)
	c := newCache(t.TempDir(), disk{func(string, string, func() error) error { return syscall.ENOSPC }}, 1<<30)
	big := func(_ context.Context, w io.Writer) error {
		for range 1 + memoryLimit>>20 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return nil
	}
	_, _, err := c.open(t.Context(), "x", big)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("got %v", err)
	}
}

// Documents that cannot be kept are in memory while clients read them: those of one document
// share it, and of others only so much is made that the memory has room for it.
func TestDocumentsInMemoryAreBounded(t *testing.T) {
	c := newCache(t.TempDir(), disk{func(string, string, func() error) error { return syscall.EACCES }}, 1<<30)
	c.memory = 40
	made := map[string]int{}
	open := func(name string) (io.ReadSeekCloser, error) {
		f, _, err := c.open(t.Context(), name, func(_ context.Context, w io.Writer) error {
			made[name]++
			_, err := w.Write(make([]byte, 10))
			return err
		})
		return f, err
	}
	var readers []io.Closer
	for range 2 {
		for _, name := range []string{"1", "2", "3", "4", "5"} {
			f, err := open(name)
			if err != nil {
				t.Fatal(err)
			}
			readers = append(readers, f)
		}
	}
	var wait *NotReadyError
	if _, err := open("6"); !errors.As(err, &wait) || !errors.Is(err, syscall.EACCES) {
		t.Errorf("a sixth document: %v", err)
	}
	for _, f := range readers {
		if err := errors.Join(f.Close(), f.Close()); err != nil { // the second one counts for nothing
			t.Fatal(err)
		}
	}
	if _, err := open("6"); err != nil || made["1"] != 1 || made["6"] != 1 {
		t.Errorf("after the others: %v; made so often: %v", err, made)
	}
	if len(c.inUse) != 1 || c.inUseBytes != 10 {
		t.Errorf("%d documents, %d bytes are in memory", len(c.inUse), c.inUseBytes)
	}
}

// gate is a log whose events wait until they are let through.
type gate struct {
	*sliceLog
	entered chan struct{}
	open    chan struct{}
}

func (g *gate) Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		g.entered <- struct{}{}
		select {
		case <-g.open:
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		}
		for e, err := range g.sliceLog.Events(ctx, set, r) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// Many who ask for the same document have it rendered once.
func TestRenderedOnce(t *testing.T) {
	const path = "/sets/main/changelist/1.xml"
	l := history(10, event.Mirror).fill("main", 15)
	g := &gate{l, make(chan struct{}, 100), make(chan struct{})}
	p := newPublisher(t, g)
	want, _ := get(t, newPublisher(t, l), path, false)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			doc, err := p.Document(t.Context(), path, false)
			if err != nil {
				t.Error(err)
				return
			}
			if body, _, err := doc.Open(); err != nil {
				t.Error(err)
			} else if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %v, %.200s", err, got)
			}
		})
	}
	<-g.entered
	close(g.open)
	wg.Wait()
	if n := len(g.entered); n != 0 {
		t.Errorf("rendered %d times more", n)
	}
}

// Rendering ends when nobody waits for it any more, and not before.
func TestRenderingIsCancelled(t *testing.T) {
	const path = "/sets/main/changelist/1.xml"
	l := history(10, event.Mirror).fill("main", 15)
	g := &gate{l, make(chan struct{}, 100), make(chan struct{})}
	p := newPublisher(t, g)
	ask := func() (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		doc, err := p.Document(ctx, path, false)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			body, _, err := doc.Open()
			if err == nil {
				body.Close()
			}
			done <- err
		}()
		return cancel, done
	}
	cancel, done := ask()
	<-g.entered
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	cancel, done = ask()
	defer cancel()
	<-g.entered // the first one has given up: this is another rendering
	close(g.open)
	if err := <-done; err != nil {
		t.Errorf("who waits was not served: %v", err)
	}
}

// damageCache cuts all kept copies short.
func damageCache(t testing.TB, p *Publisher) {
	t.Helper()
	for _, f := range cacheFiles(t, p) {
		if !strings.HasSuffix(f, ".sum") {
			must(t, os.Truncate(filepath.Join(p.cache.dir, f), 90))
		}
	}
}

func TestVerifySegment(t *testing.T) {
	const path = "/sets/main/changelist/1.xml"
	l := history(10, event.Mirror).fill("main", 15)
	p := newPublisher(t, l)
	check, err := p.VerifySegment(t.Context(), "main", 1)
	if err != nil || check.Kept != 0 || len(check.Damaged) != 0 {
		t.Fatalf("without a copy: %+v, %v", check, err)
	}
	get(t, p, path, false)
	get(t, p, path, true)
	check, err = p.VerifySegment(t.Context(), "main", 1)
	if err != nil || check.Kept != 2 || len(check.Damaged) != 0 {
		t.Fatalf("with two copies: %+v, %v", check, err)
	}
	damageCache(t, p)
	if check, err = p.VerifySegment(t.Context(), "main", 1); err != nil || len(check.Damaged) != 2 {
		t.Errorf("with two damaged copies: %+v, %v", check, err)
	}
	for _, n := range []int{0, 2, 3} {
		if _, err := p.VerifySegment(t.Context(), "main", n); !errors.Is(err, ErrNotFound) {
			t.Errorf("segment %d: got %v", n, err)
		}
	}
}

// Write gives what Open gives, and what the same document has when it was requested
// compressed: of what is rendered, of parts of snapshots, and of packages of dumps.
func TestWrite(t *testing.T) {
	l, c := dumping(10, 25)
	p := dumper(t, l, c, t.TempDir())
	p.limits.Entries = 4
	if err := errors.Join(p.Snapshot(t.Context(), "main"), runDumps(t, p)); err != nil {
		t.Fatal(err)
	}
	paths := goldenPaths(t, p, l)
	for _, dump := range []string{"resourcedump", "changedump"} {
		doc, _ := get(t, p, setPath("main", dump+".xml"), false)
		for _, piece := range strings.Split(string(doc), "<loc>")[1:] {
			paths = append(paths, strings.TrimPrefix(between("<loc>"+piece, "<loc>", "</loc>"), base))
		}
	}
	parts, packages := 0, 0
	for _, path := range paths {
		want, _ := get(t, p, path, false)
		doc, err := p.Document(t.Context(), path, false)
		if err != nil {
			t.Fatal(err)
		}
		var plain, packed, alone bytes.Buffer
		if err := errors.Join(doc.Write(t.Context(), &plain, &packed), doc.Write(t.Context(), &alone, nil)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if !bytes.Equal(plain.Bytes(), want) || !bytes.Equal(alone.Bytes(), want) {
			t.Errorf("%s: Write gives %d and %d bytes, Open %d", path, plain.Len(), alone.Len(), len(want))
		}
		zr, err := gzip.NewReader(&packed)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got, err := io.ReadAll(zr); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: compressed it is another document: %v", path, err)
		}
		if strings.Contains(path, "/resourcelist/") {
			parts++
		}
		if bytes.HasPrefix(want, []byte("PK")) {
			packages++
		}
		broken := failingWriter{errors.New("the disk is full")}
		if err := doc.Write(t.Context(), broken, nil); !errors.Is(err, broken.err) {
			t.Errorf("%s: written where nothing can be: %v", path, err)
		}
	}
	if parts < 2 || packages < 2 {
		t.Errorf("%d parts and %d packages among %v", parts, packages, paths)
	}
}

// That another set gets the name is noticed also by who is just looking at the one before.
func TestForgetWhileLookedAt(t *testing.T) {
	l, other := history(10, event.Mirror).fill("main", 15), history(10, event.Reference).fill("main", 15)
	other.sets["main"].set.Feed = "urn:uuid:9d1c7f5e-2b44-4f0a-8d63-7a5b3c9e1f01"
	looked := &lookedAt{sliceLog: l}
	p := newPublisher(t, looked)
	looked.then = func() {
		looked.then = nil
		l.sets["main"] = other.sets["main"]
		p.Forget("main")
	}
	_, _ = p.Document(t.Context(), "/sets/main/feed.atom", false) // of either set, or an error
	fresh := newPublisher(t, other)
	for _, path := range []string{"/sets/main/feed.atom", "/sets/main/capabilitylist.xml", "/sets/main/changelist/1.xml"} {
		got, _ := get(t, p, path, false)
		if want, _ := get(t, fresh, path, false); !bytes.Equal(got, want) {
			t.Errorf("%s is\n%s\nwant\n%s", path, got, want)
		}
	}
}

// lookedAt is a log in which something happens after a set was read.
type lookedAt struct {
	*sliceLog
	then func()
}

func (l *lookedAt) Set(ctx context.Context, name string) (event.Set, error) {
	set, err := l.sliceLog.Set(ctx, name)
	if l.then != nil {
		l.then()
	}
	return set, err
}

// A set that has the name of another one from now on has its own documents.
func TestForget(t *testing.T) {
	l := history(10, event.Mirror).fill("main", 15)
	dir := t.TempDir()
	p := small(t, l, dir)
	if err := p.Snapshot(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	for _, path := range goldenPaths(t, p, l) {
		get(t, p, path, false)
	}

	other := history(10, event.Mirror).many("main", 12)
	other.sets["main"].set.Feed, other.sets["main"].set.Complete = "urn:uuid:9d1c7f5e-2b44-4f0a-8d63-7a5b3c9e1f01", "urn:uuid:9d1c7f5e-2b44-4f0a-8d63-7a5b3c9e1f02"
	l.sets["main"] = other.sets["main"]
	p.Forget("main")
	fresh := small(t, other, t.TempDir())
	for _, q := range []*Publisher{p, fresh} {
		if err := q.Snapshot(t.Context(), "main"); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range goldenPaths(t, fresh, other) {
		got, _ := get(t, p, path, false)
		if want, _ := get(t, fresh, path, false); !bytes.Equal(got, want) {
			t.Errorf("%s is\n%s\nwant\n%s", path, got, want)
		}
	}
}
