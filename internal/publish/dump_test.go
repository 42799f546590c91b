package publish

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// contentStore has the contents of a log's events, by their hash.
type contentStore struct {
	mu  sync.Mutex
	all map[[32]byte][]byte
}

func (c *contentStore) open(_ context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.all[sum]
	if !ok {
		return nil, 0, fmt.Errorf("content %x: %w", sum[:4], fs.ErrNotExist)
	}
	return memoryFile{bytes.NewReader(b)}, int64(len(b)), nil
}

// take keeps the contents that the events of a set name, and makes some for those
// representations that have none.
func (c *contentStore) take(l *sliceLog) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range l.sets["main"].events {
		e := &l.sets["main"].events[i]
		var number, version int
		_, _ = fmt.Sscanf(e.Title, "Record <%d> & version %d", &number, &version)
		for j := range e.Representations {
			r := &e.Representations[j]
			b := fmt.Appendf(nil, "content %d of record %d", version, number)
			if j > 0 {
				b = append(b, " as HTML"...)
			}
			sum := sha256.Sum256(b)
			r.Hash, r.Length = event.HashOf(sum), int64(len(b))
			c.all[sum] = b
		}
	}
}

// dumping returns a log with so many events, whose set has dumps, and its contents.
func dumping(every, events int) (*sliceLog, *contentStore) {
	l, c := history(every, event.Mirror).fill("main", events), &contentStore{all: map[[32]byte][]byte{}}
	l.sets["main"].set.Dumps = true
	c.take(l)
	return l, c
}

// dumper is a Publisher with dumps, two records to a package.
func dumper(t testing.TB, l Log, c *contentStore, dir string) *Publisher {
	p := publisherIn(t, l, dir)
	p.opts.Content, p.opts.DumpEvery = c.open, time.Hour
	p.packageLimits.Entries = 4
	return p
}

// runDumps does once what Run does for dumps.
func runDumps(t testing.TB, p *Publisher) error {
	t.Helper()
	return p.checkDumps(t.Context(), map[string]*dumpPlan{})
}

// packagesOf reads a dump: the manifests of its packages, each checked, with their bytes.
func packagesOf(t testing.TB, p *Publisher, path string) (entries []*resourcesync.Entry, zips map[string][]byte) {
	t.Helper()
	doc, _ := get(t, p, path, false)
	r := resourcesync.NewReader(bytes.NewReader(doc), resourcesync.ReadOptions{URL: base + path, ContentType: "application/xml", Report: func(p resourcesync.Problem) { t.Error(p) }})
	zips = map[string][]byte{}
	for {
		e, err := r.Next()
		if err == io.EOF {
			return entries, zips
		}
		if err != nil {
			t.Fatal(err)
		}
		pack, meta := get(t, p, strings.TrimPrefix(e.Loc, base), true)
		if length, _ := e.Metadata.Length.Bytes(); !meta.Immutable || meta.Gzip || meta.ContentType != "application/zip" || e.Metadata.Type != "application/zip" ||
			length != int64(len(pack)) || e.Metadata.Hash != event.HashOf(sha256.Sum256(pack)) || meta.ETag != `"`+event.SHA256Of(e.Metadata.Hash)+`"` {
			t.Errorf("%s: %+v, %+v, %d bytes", e.Loc, meta, e.Metadata, len(pack))
		}
		zips[e.Loc] = pack
		contents, _ := get(t, p, strings.TrimPrefix(e.Links[0].Href, base), true)
		d, err := resourcesync.NewDumpReader(bytes.NewReader(pack), int64(len(pack)), resourcesync.DumpOptions{URL: e.Loc, Report: func(p resourcesync.Problem) { t.Error(p) }})
		if err != nil {
			t.Fatal(err)
		}
		inside, err := zip.NewReader(bytes.NewReader(pack), int64(len(pack)))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := fs.ReadFile(inside, resourcesync.ManifestName)
		if err != nil || !bytes.Equal(manifest, contents) || e.Links[0].Rel != resourcesync.RelContents || e.Links[0].Hash != event.HashOf(sha256.Sum256(contents)) {
			t.Errorf("%s is not the manifest of its package: %v", e.Links[0].Href, err)
		}
		for entry, err := range d.Entries() {
			if err != nil {
				t.Fatal(err)
			}
			if entry.Metadata.Path != "" {
				body, err := d.Open(&entry.Metadata)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, body); err != nil {
					t.Error(err)
				}
			}
			entries = append(entries, entry)
		}
	}
}

// A Resource Dump has the resources of the Resource List, and a Change Dump the changes of
// the closed Change Lists, with the contents of that time.
func TestDumps(t *testing.T) {
	l, c := dumping(10, 45)
	p := dumper(t, l, c, t.TempDir())
	for _, path := range []string{"/sets/main/resourcedump.xml", "/sets/main/changedump.xml"} {
		if _, err := p.Document(t.Context(), path, false); !errors.Is(err, ErrNotFound) {
			t.Errorf("before the first dump: %s: %v", path, err)
		}
	}
	if doc, _ := get(t, p, "/sets/main/capabilitylist.xml", false); bytes.Contains(doc, []byte("dump")) {
		t.Errorf("before the first dump: %s", doc)
	}
	must(t, runDumps(t, p))
	list, at := resources(t, p, "main")
	dump, zips := packagesOf(t, p, "/sets/main/resourcedump.xml")
	if doc, _ := get(t, p, "/sets/main/resourcedump.xml", false); between(string(doc), ` at="`, `"`) != at || len(dump) != len(list) || len(zips) != (len(list)+3)/4 {
		t.Errorf("%d of %d resources in %d packages:\n%s", len(dump), len(list), len(zips), doc)
	}
	for i, e := range dump {
		if !strings.Contains(list[i], "<loc>"+e.Loc+"</loc>") || !strings.Contains(list[i], e.Metadata.Hash) {
			t.Errorf("resource %d is %s of %s, the list has %s", i, e.Loc, e.Metadata.Hash, list[i])
		}
		for _, link := range e.Links {
			if link.Rel == resourcesync.RelAlternate && !strings.HasSuffix(link.Path, ".html") {
				t.Errorf("%s: the alternate is not in the package: %+v", e.Loc, link)
			}
		}
	}
	changes, _ := packagesOf(t, p, "/sets/main/changedump.xml")
	var listed []string
	set, segments, err := p.Segments(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range segments[:len(segments)-1] {
		doc, _ := get(t, p, changeListPath("main", g.N), false)
		listed = append(listed, entriesOf(doc)...)
	}
	if len(changes) != len(listed) {
		t.Errorf("%d changes of %d", len(changes), len(listed))
	}
	deleted := 0
	for i, e := range changes {
		if !strings.Contains(listed[i], "<loc>"+e.Loc+"</loc>") || !strings.Contains(listed[i], `datetime="`+e.Metadata.Datetime.String()+`"`) || e.Metadata.Hash != "" && !strings.Contains(listed[i], e.Metadata.Hash) {
			t.Errorf("change %d is %s of %s, the list has %s", i, e.Loc, e.Metadata.Datetime, listed[i])
		}
		if gone := e.Metadata.Change == resourcesync.Deleted; gone != (e.Metadata.Path == "") {
			t.Errorf("%s of %s has the path %q", e.Metadata.Change, e.Loc, e.Metadata.Path)
		} else if gone {
			deleted++
		}
	}
	if deleted == 0 {
		t.Error("no deletion is tested")
	}
	if doc, _ := get(t, p, "/sets/main/capabilitylist.xml", false); !bytes.Contains(doc, []byte(`capability="resourcedump"`)) || !bytes.Contains(doc, []byte(`capability="changedump"`)) {
		t.Errorf("the Capability List names no dumps: %s", doc)
	}
	items, err := p.Plan(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	planned := 0
	for _, it := range items {
		get(t, p, it.Path, false)
		if it.Kind == Package {
			planned++
		}
	}
	if want := 2 * (len(zips) + len(segments) - 1); planned != want {
		t.Errorf("the plan has %d files of packages, want %d", planned, want)
	}
	for _, path := range []string{"resourcedump/1/1.zip", "resourcedump/" + fmt.Sprint(set.Last) + "/9.zip", "resourcedump/" + fmt.Sprint(set.Last) + "/1.txt", "resourcedump/0" + fmt.Sprint(set.Last) + "/1.zip", "changedump/99.zip", "changedump/1/1.zip", "changedump/", "resourcedump//.zip"} {
		if _, err := p.Document(t.Context(), setPath("main", path), false); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}

	// Another log with the same events gives the same bytes.
	l2, c2 := dumping(10, 45)
	q := dumper(t, l2, c2, t.TempDir())
	must(t, runDumps(t, q))
	if _, again := packagesOf(t, q, "/sets/main/resourcedump.xml"); len(again) != len(zips) {
		t.Error("another number of packages")
	} else {
		for loc := range zips {
			if !bytes.Equal(zips[loc], again[loc]) {
				t.Errorf("%s has other bytes", loc)
			}
		}
	}
	for _, path := range []string{"/sets/main/changedump.xml", "/sets/main/resourcedump.xml"} {
		a, _ := get(t, p, path, false)
		b, _ := get(t, q, path, false)
		if !bytes.Equal(a, b) {
			t.Errorf("%s has other bytes", path)
		}
	}

	// A set that is to have no dumps any more has none, and their files go.
	l.sets["main"].set.Dumps = false
	must(t, runDumps(t, p))
	if _, err := p.Document(t.Context(), "/sets/main/resourcedump.xml", false); !errors.Is(err, ErrNotFound) {
		t.Errorf("without dumps: %v", err)
	}
	if left, _ := os.ReadDir(p.setDir("main")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Run makes dumps at the start; a package of a segment soon after that has closed, and a
// new Resource Dump when the last one is old, or was made while the clock was ahead, and something
// has changed. Two are kept.
func TestDumpSchedule(t *testing.T) {
	l, c := dumping(10, 45)
	p := dumper(t, l, c, t.TempDir())
	plans, now := map[string]*dumpPlan{}, time.Now()
	p.opts.Now = func() time.Time { return now }
	var first event.Seq
	for _, step := range []struct {
		later    time.Duration
		events   int
		segments int
		made     bool
	}{{0, 0, 4, true}, {time.Minute, 20, 6, false}, {2 * time.Hour, 0, 6, true}, {2 * time.Hour, 0, 6, false}, {2 * time.Hour, 1, 6, true}, {-30 * 24 * time.Hour, 1, 6, true}} {
		l.fill("main", step.events)
		c.take(l)
		now = now.Add(step.later)
		must(t, p.checkDumps(t.Context(), plans))
		d, err := p.DumpState(t.Context(), "main")
		if err != nil || d.Packed != step.segments || (d.Seq != first) != step.made || d.Faults != nil {
			t.Errorf("%+v: %+v, %v", step, d, err)
		}
		first = d.Seq
	}
	if left, err := os.ReadDir(filepath.Join(p.setDir("main"), "resourcedump")); err != nil || len(left) != 2 {
		t.Errorf("kept: %v, %v", left, err)
	}
}

// A package is given up as soon as the disk is nearly full.
func TestDumpOnAFullDisk(t *testing.T) {
	l, c := dumping(20, 25)
	p := dumper(t, l, c, t.TempDir())
	asked := 0
	p.opts.Full = func() error {
		if asked++; asked > 10 {
			return errFull
		}
		return nil
	}
	if err := p.ChangeDump(t.Context(), "main", l.sets["main"].segments[0]); !errors.Is(err, errFull) {
		t.Errorf("it was made: %v", err)
	}
	if left, err := snapshotNumbers(filepath.Join(p.setDir("main"), "changedump")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// Between two attempts that fail there is time, however long each takes.
func TestDumpRetryAfterALongAttempt(t *testing.T) {
	l, c := dumping(10, 15)
	p := dumper(t, l, c, t.TempDir())
	now, opened := time.Now(), 0
	p.opts.Now = func() time.Time { return now }
	p.opts.Content = func(context.Context, [32]byte) (io.ReadSeekCloser, int64, error) {
		if opened++; opened == 1 {
			now = now.Add(time.Hour)
		}
		return nil, 0, os.ErrNotExist
	}
	plans := map[string]*dumpPlan{}
	if err := p.checkDumps(t.Context(), plans); err == nil || opened == 0 {
		t.Fatalf("%v, after %d contents", err, opened)
	}
	first := opened
	if err := p.checkDumps(t.Context(), plans); err != nil || opened != first {
		t.Errorf("it was tried again at once: %v", err)
	}
	now = now.Add(dumpRetry + time.Second)
	if err := p.checkDumps(t.Context(), plans); err == nil || opened == first {
		t.Errorf("it was not tried again: %v", err)
	}
}

// The tag of a dump is that of all its packages.
func TestDumpTag(t *testing.T) {
	it := Item{Kind: ResourceDump, Path: "/sets/main/resourcedump.xml"}
	tags := map[string]bool{}
	for _, middle := range []packedPart{{SHA256: "b", ContentsSHA256: "1"}, {SHA256: "c", ContentsSHA256: "1"}, {SHA256: "b", ContentsSHA256: "2"}} {
		it.packages = []packageItem{{packedPart: packedPart{SHA256: "a"}}, {packedPart: middle}, {packedPart: packedPart{SHA256: "z"}}}
		tags[it.Tag(base, false)] = true
	}
	if len(tags) != 3 {
		t.Errorf("three dumps have %d tags", len(tags))
	}
}

// What a dump no longer names stands in an archive, oldest first, and what is full never
// changes.
func TestDumpArchives(t *testing.T) {
	l, c := dumping(10, 25)
	p := dumper(t, l, c, t.TempDir())
	p.opts.DumpEvery, p.limits.Entries = 0, 3
	full := map[string][]byte{}
	for step := range 8 {
		l.fill("main", 20)
		c.take(l)
		must(t, runDumps(t, p))
		_, segments, err := p.Segments(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		capabilities, _ := get(t, p, "/sets/main/capabilitylist.xml", false)
		resources, changes := bytes.Contains(capabilities, []byte("/resourcedump-archive.xml<")), bytes.Contains(capabilities, []byte("/changedump-archive.xml<"))
		if closed := len(segments) - 1; resources != (step > 0) || changes != (closed > 3) || bytes.Count(capabilities, []byte("<url>")) > 7 {
			t.Errorf("step %d, %d closed segments:\n%s", step, closed, capabilities)
		}
		var listed []string // packages, oldest first
		if changes {
			archive, _ := get(t, p, "/sets/main/changedump-archive.xml", false)
			until := ""
			for _, e := range entriesOf(archive) {
				if until != "" && between(e, ` from="`, `"`) != until {
					t.Errorf("a gap in:\n%s", archive)
				}
				until = between(e, ` until="`, `"`)
				path := strings.TrimPrefix(between(e, "<loc>", "</loc>"), base)
				doc, meta := get(t, p, path, false)
				if was := full[path]; was != nil && !bytes.Equal(was, doc) || meta.Immutable != (until != "") {
					t.Errorf("%s was full and has changed, or is not: %+v", path, meta)
				}
				if until != "" {
					full[path] = doc
				}
				if _, packages := packagesOf(t, p, path); len(packages) > 3 {
					t.Errorf("%s names %d packages", path, len(packages))
				}
				for _, e := range entriesOf(doc) {
					listed = append(listed, between(e, "<loc>", "</loc>"))
				}
			}
		}
		current, _ := get(t, p, "/sets/main/changedump.xml", false)
		for _, e := range entriesOf(current) {
			listed = append(listed, between(e, "<loc>", "</loc>"))
		}
		for n := range len(segments) - 1 {
			if want := base + changeDumpPath("main", n+1) + ".zip"; n >= len(listed) || listed[n] != want {
				t.Errorf("package %d of %d is not %s", n+1, len(listed), want)
			}
		}
		if resources {
			archive, _ := get(t, p, "/sets/main/resourcedump-archive.xml", false)
			for _, e := range entriesOf(archive) {
				path := strings.TrimPrefix(between(e, "<loc>", "</loc>"), base)
				packagesOf(t, p, path)
				if doc, meta := get(t, p, path, true); !meta.Immutable || between(e, ` at="`, `"`) == "" || len(doc) == 0 {
					t.Errorf("%s: %+v", path, meta)
				}
			}
		}
	}
	if len(full) < 2 {
		t.Errorf("only %d archived dumps are full", len(full))
	}
}

// A document of earlier Change Dumps that lacks a package while that is made again is not
// closed: it gets it back at the same URL.
func TestEarlierChangeDumpWithAGap(t *testing.T) {
	const path, lost = "/sets/main/changedump/1-3.xml", "/sets/main/changedump/2.zip"
	l, c := dumping(10, 100)
	dir := t.TempDir()
	p := dumper(t, l, c, dir)
	p.limits.Entries = 3
	must(t, runDumps(t, p))
	whole, meta := get(t, p, path, false)
	if !meta.Immutable || len(entriesOf(whole)) != 3 {
		t.Fatalf("%+v:\n%s", meta, whole)
	}
	must(t, os.Remove(filepath.Join(dir, "snapshots/main/changedump/2/1.zip")))
	var notReady *NotReadyError
	if _, err := p.Document(t.Context(), lost, false); !errors.As(err, &notReady) {
		t.Fatal(err)
	}
	if part, meta := get(t, p, path, false); meta.Immutable || len(entriesOf(part)) != 1 {
		t.Errorf("%+v:\n%s", meta, part)
	}
	must(t, runDumps(t, p))
	if again, meta := get(t, p, path, false); !meta.Immutable || !bytes.Equal(again, whole) {
		t.Errorf("%+v:\n%s", meta, again)
	}
}

// Run does it too, beside the snapshots.
func TestDumpRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := dumping(10, 45)
		p := dumper(t, l, c, t.TempDir())
		end := run(p)
		synctest.Wait()
		end()
		if d, err := p.DumpState(t.Context(), "main"); err != nil || d.Seq == 0 || d.Packed != 4 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// Contents that cannot be read at the moment are no damage: nobody is told to look for one.
func TestDumpUnavailable(t *testing.T) {
	l, c := dumping(10, 25)
	p := dumper(t, l, c, t.TempDir())
	p.opts.Content = func(context.Context, [32]byte) (io.ReadSeekCloser, int64, error) {
		return nil, 0, fmt.Errorf("the bucket: %w", event.ErrUnavailable)
	}
	if err := p.Dump(t.Context(), "main"); !errors.Is(err, event.ErrUnavailable) || strings.Contains(err.Error(), "bridge verify") {
		t.Errorf("it says %v", err)
	}
}

// Without one of its contents there is no dump, the one before stays, and bridge says why;
// with the content it is made.
func TestDumpWithoutContent(t *testing.T) {
	for name, spoil := range map[string]func(c *contentStore, sum [32]byte){
		"missing": func(c *contentStore, sum [32]byte) { delete(c.all, sum) },
		"damaged": func(c *contentStore, sum [32]byte) { c.all[sum] = []byte("content ?? of record ??") },
		"shorter": func(c *contentStore, sum [32]byte) { c.all[sum] = c.all[sum][1:] },
	} {
		l, c := dumping(10, 25)
		p := dumper(t, l, c, t.TempDir())
		p.opts.DumpEvery = 0
		must(t, runDumps(t, p))
		before, zips := packagesOf(t, p, "/sets/main/resourcedump.xml")
		l.fill("main", 20)
		c.take(l)
		var last *event.Event // in segment 3, and live
		for i := range l.sets["main"].events {
			if e := &l.sets["main"].events[i]; e.Live() && e.Seq > l.sets["main"].segments[2].First && e.Seq <= l.sets["main"].segments[2].Last {
				last = e
			}
		}
		var sum [32]byte
		for s := range c.all {
			if event.HashOf(s) == last.Representations[0].Hash {
				sum = s
			}
		}
		good := c.all[sum]
		spoil(c, sum)
		err := runDumps(t, p)
		if err == nil || !strings.Contains(err.Error(), "segment 3") || !strings.Contains(err.Error(), event.Key(last.Record)) {
			t.Errorf("%s: %v", name, err)
		}
		state, err := p.DumpState(t.Context(), "main")
		if err != nil || len(state.Faults) == 0 || !strings.Contains(strings.Join(state.Faults, ""), event.Key(last.Record)) {
			t.Errorf("%s: the state is %+v, %v", name, state, err)
		}
		after, same := packagesOf(t, p, "/sets/main/resourcedump.xml")
		if len(after) != len(before) && len(same) == len(zips) && len(state.Faults) == 2 {
			t.Errorf("%s: the dump before has gone", name)
		}
		// The Change Dump goes on behind the hole, and says so.
		doc, _ := get(t, p, "/sets/main/changedump.xml", false)
		if from := between(string(doc), ` from="`, `"`); from != l.sets["main"].segments[3].From.String() || strings.Contains(string(doc), "/changedump/2.zip") {
			t.Errorf("%s: the Change Dump begins at %s:\n%s", name, from, doc)
		}
		c.all[sum] = good
		must(t, runDumps(t, p))
		if state, err := p.DumpState(t.Context(), "main"); err != nil || state.Faults != nil || state.Packed != 4 {
			t.Errorf("%s: with the content again: %+v, %v", name, state, err)
		}
		if doc, _ := get(t, p, "/sets/main/changedump.xml", false); !strings.Contains(string(doc), "/changedump/1.zip") {
			t.Errorf("%s: with the content again:\n%s", name, doc)
		}
	}
}

// Whatever step of a dump fails, or is the last before a crash: what is published is the
// dump before or the new one, whole, and the next run makes the new one.
func TestDumpFaults(t *testing.T) {
	testenv.Heavy(t)
	eachFault(t, func(t *testing.T, fault func(op, path string, step func() error) error) {
		l, c := dumping(10, 12)
		dir := t.TempDir()
		p := dumper(t, l, c, dir)
		p.opts.DumpEvery = 0
		must(t, runDumps(t, p))
		l.fill("main", 10)
		c.take(l)
		p.setFault(fault)
		_ = runDumps(t, p)
		p.setFault(nil)
		for _, q := range []*Publisher{p, dumper(t, l, c, dir)} {
			q.opts.DumpEvery = 0
			packagesOf(t, q, "/sets/main/resourcedump.xml")
			packagesOf(t, q, "/sets/main/changedump.xml")
			must(t, runDumps(t, q))
			dump, _ := packagesOf(t, q, "/sets/main/resourcedump.xml")
			if set := mustSet(t, l); int64(len(dump)) != set.Live {
				t.Errorf("after the next run the dump has %d resources, want %d", len(dump), set.Live)
			}
			for folder, want := range map[string]int{"resourcedump": 2, "changedump": 2} {
				left, err := os.ReadDir(filepath.Join(q.setDir("main"), folder))
				if err != nil || len(left) != want {
					t.Errorf("%s has %v, want %d: %v", folder, left, want, err)
				}
			}
		}
	})
}

// A package that has been damaged on disk is never served, and made again with the same
// bytes.
func TestDumpDamage(t *testing.T) {
	l, c := dumping(10, 25)
	dir := t.TempDir()
	must(t, runDumps(t, dumper(t, l, c, dir)))
	for _, path := range []string{"/sets/main/changedump/1.zip", "/sets/main/changedump/1.xml", fmt.Sprintf("%s.zip", resourceDumpPath("main", Snapshot{Seq: mustSet(t, l).Last}, 1))} {
		p := dumper(t, l, c, dir)
		want, _ := get(t, p, path, false)
		file := filepath.Join(dir, "snapshots", strings.TrimPrefix(path, "/sets/"))
		if strings.Contains(path, "changedump") {
			file = strings.Replace(file, "/1.", "/1/1.", 1)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		must(t, os.WriteFile(file, b, 0o600))
		p = dumper(t, l, c, dir)
		checks, err := p.VerifyDumps(t.Context(), "main")
		if damaged := slices.Concat(mapChecks(checks)...); err != nil || len(damaged) != 1 || damaged[0] != file {
			t.Errorf("%s: found %v, %v", file, damaged, err)
		}
		var notReady *NotReadyError
		if _, err := p.Document(t.Context(), path, false); !errors.As(err, &notReady) {
			t.Errorf("%s: %v", path, err)
		}
		must(t, runDumps(t, p))
		if got, _ := get(t, p, path, false); !bytes.Equal(got, want) {
			t.Errorf("%s has other bytes", path)
		}
	}
}

// A snapshot or dump that is not used since it is not whole is found; one of another base URL is
// whole, and one that is being removed is none.
func TestVerifyFolders(t *testing.T) {
	l, c := dumping(10, 45)
	dir := t.TempDir()
	p := dumper(t, l, c, dir)
	must(t, errors.Join(runDumps(t, p), p.Snapshot(t.Context(), "main")))
	last := fmt.Sprint(mustSet(t, l).Last)
	for _, c := range []struct {
		folder, file string
		damage       func(path string) error
		found        bool
	}{
		{last, manifestName, func(path string) error { return os.Truncate(path, 100) }, true},
		{last, "1.xml.gz", os.Remove, true},
		{"resourcedump/" + last, "1.zip", func(path string) error { return os.Truncate(path, 100) }, true},
		{"changedump/1", "1.xml", os.Remove, true},
		{"changedump/1", manifestName, os.Remove, false},
		{last, manifestName, func(string) error { return nil }, false},
	} {
		folder := t.TempDir()
		must(t, os.CopyFS(folder, os.DirFS(dir)))
		damaged := filepath.Join(folder, "snapshots", "main", c.folder)
		must(t, c.damage(filepath.Join(damaged, c.file)))
		var want []string
		if c.found {
			want = []string{damaged}
		}
		for _, base := range []string{base, "https://other.example"} {
			p := publisherIn(t, l, folder)
			p.base = base
			if got, err := p.VerifyFolders(t.Context(), "main"); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s of %s: found %q, %v, want %q", c.file, c.folder, got, err, want)
			}
		}
	}
}

func mapChecks(checks []Check) (damaged [][]string) {
	for _, c := range checks {
		damaged = append(damaged, c.Damaged)
	}
	return damaged
}

// Info-ZIP and a script that knows nothing of this program take what we made.
func TestDumpUnzip(t *testing.T) {
	testenv.Heavy(t)
	unzip, python := testenv.Need(t, "unzip", "unzip"), testenv.Need(t, "python3", "python3")
	l, c := dumping(10, 45)
	p := dumper(t, l, c, t.TempDir())
	must(t, runDumps(t, p))
	n := 0
	for _, path := range []string{"/sets/main/resourcedump.xml", "/sets/main/changedump.xml"} {
		_, zips := packagesOf(t, p, path)
		for loc, b := range zips {
			dir := t.TempDir()
			pack, copied := filepath.Join(dir, "1.zip"), filepath.Join(dir, "1.xml")
			contents, _ := get(t, p, strings.TrimSuffix(strings.TrimPrefix(loc, base), ".zip")+".xml", false)
			must(t, errors.Join(os.WriteFile(pack, b, 0o600), os.WriteFile(copied, contents, 0o600)))
			if out, err := exec.Command(unzip, "-q", pack, "-d", filepath.Join(dir, "unpacked")).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", loc, err, out)
			}
			for _, what := range []string{filepath.Join(dir, "unpacked"), pack} {
				out, err := exec.Command(python, filepath.Join(testenv.Root(t), "testdata", "check_dump.py"), what, copied).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", loc, err, out)
				}
			}
			n++
		}
	}
	if n < 5 {
		t.Errorf("%d packages are tested", n)
	}
}

// endlessLog is a log with one set of any number of records, which it makes up as they are
// read: it takes no memory. The content of the record that was yielded last is at hand.
type endlessLog struct {
	*sliceLog
	records int
	body    func(n int) []byte // the block that the content of record n repeats
	repeats int
	current int // the record that was yielded last
}

func (l *endlessLog) Set(ctx context.Context, name string) (event.Set, error) {
	set, err := l.sliceLog.Set(ctx, name)
	set.Live, set.Last, set.Dumps = int64(l.records), event.Seq(l.records), true
	return set, err
}

func (l *endlessLog) Listed(context.Context, string, event.Seq) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for n := range l.records {
			e := sample(event.Created, 2*n, 1)
			e.Seq, e.Observed = event.Seq(n+1), created+event.Micros(n)
			h, body := sha256.New(), l.body(n)
			for range l.repeats {
				h.Write(body)
			}
			r := &e.Representations[0]
			r.Hash, r.Length = event.HashOf([32]byte(h.Sum(nil))), int64(len(body)*l.repeats)
			l.current = n
			if !yield(&e, nil) {
				return
			}
		}
	}
}

// repeated reads a block many times.
type repeated struct {
	io.Seeker // not asked for
	block     []byte
	left, at  int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.left, r.at = r.left-1, 0
	}
	return n, nil
}

func (*repeated) Close() error { return nil }

// Memory does not grow with the number of records, nor with their bytes.
func TestDumpMemory(t *testing.T) {
	testenv.Soak(t)
	python := testenv.Need(t, "python3", "python3")
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	for name, l := range map[string]*endlessLog{
		"200,000 records of 2 KB": {records: 200_000, repeats: 1, body: func(n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "<record>%d</record>\n", n), 120)[:2000] }},
		"60 records of 80 MiB":    {records: 60, repeats: 80, body: func(int) []byte { return noise }},
	} {
		dir, err := os.MkdirTemp("/var/tmp", "dump") // TMPDIR may be in memory
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		l.sliceLog = history(10, event.Mirror)
		p := publisherIn(t, l, dir)
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		peak, opened := before.HeapInuse, 0
		p.opts.Content = func(context.Context, [32]byte) (io.ReadSeekCloser, int64, error) {
			if opened++; opened%(l.records/50) == 0 {
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapInuse)
			}
			b := l.body(l.current)
			return &repeated{block: b, left: l.repeats}, int64(len(b) * l.repeats), nil
		}
		must(t, p.Dump(t.Context(), "main"))
		st, err := p.state(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		made := st.resourceDumps.current()
		grown := (int64(peak) - int64(before.HeapInuse)) >> 20
		t.Logf("%s: %d packages, %d bytes; the heap grew by %d MiB at most", name, made.Parts, made.bytes, grown)
		if grown > 64 {
			t.Errorf("%s: the heap grew by %d MiB", name, grown)
		}
		entries := 0
		for n := range made.packages {
			pack := filepath.Join(made.Dir, fmt.Sprintf(packagePattern, n+1))
			out, err := exec.Command(python, filepath.Join(testenv.Root(t), "testdata", "check_dump.py"), pack, filepath.Join(made.Dir, fmt.Sprintf(contentsPattern, n+1))).CombinedOutput()
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("entries=%d ", made.packages[n].Entries)) {
				t.Errorf("%s: %v", pack, err)
			}
			entries += made.packages[n].Entries
		}
		if entries != l.records {
			t.Errorf("%d entries of %d", entries, l.records)
		}
	}
}
