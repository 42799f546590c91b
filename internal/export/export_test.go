package export

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

const testBase = "https://data.example.org/a"

// world is a log that a test appends to.
type world struct {
	t       testing.TB
	folder  string
	log     *eventlog.Log
	content *content.Store
	sources map[string]event.SourceID
	cursors map[string]int64
	stamp   int64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, folder: t.TempDir(), sources: map[string]event.SourceID{}, cursors: map[string]int64{}}
	var err error
	if w.log, err = eventlog.Open(t.Context(), w.folder, eventlog.Options{Holder: "test"}); err != nil {
		t.Fatal(err)
	}
	if w.content, err = content.Open(t.Context(), filepath.Join(w.folder, "content.db"), content.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.content.Close(), w.log.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) set(c eventlog.SetConfig) {
	w.t.Helper()
	err := w.log.EnsureSet(w.t.Context(), c)
	if err == nil {
		w.sources[c.Name], err = w.log.EnsureSource(w.t.Context(), c.Name, "atompmh", "https://source.example/"+c.Name, 0)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// record is an observation of a record: one representation for each type, of this
// text.
func (w *world) record(name, text string, types ...string) event.Observation {
	w.t.Helper()
	w.stamp++
	o := event.Observation{Record: "urn:example:" + name, Title: name, Fetched: true, Order: event.StampFromNanos(1_577_836_800_000_000_000 + w.stamp*1e9)}
	o.Modified = o.Order
	for i, mediaType := range types {
		body := fmt.Appendf(nil, "%s as %s", text, mediaType)
		if err := w.content.Put(w.t.Context(), content.NewDraft(body)); err != nil {
			w.t.Fatal(err)
		}
		o.Representations = append(o.Representations, event.Representation{Href: fmt.Sprintf("https://source.example/%s/%d", name, i), Type: mediaType,
			Length: int64(len(body)), Hash: event.HashOf(sha256.Sum256(body))})
	}
	o.Deleted = len(types) == 0
	return o
}

func (w *world) append(set string, all ...event.Observation) {
	w.t.Helper()
	batch := event.Batch{Source: w.sources[set], Cursor: w.cursors[set], Start: true, Documents: []event.Document{{URL: "https://source.example/feed.atom", FeedID: "urn:example:feed"}}}
	for _, o := range all {
		it := &event.Item{Observation: o}
		it.Claim = it.ClaimOf()
		batch.Items = append(batch.Items, it)
	}
	out, err := w.log.Append(w.t.Context(), &batch)
	if err != nil {
		w.t.Fatal(err)
	}
	w.cursors[set] = out.Cursor
}

func (w *world) options(out string) Options {
	return Options{Log: w.log, Contents: w.content, BaseURL: testBase, Folder: out, Data: w.folder,
		Publisher: func(l publish.Log, folder string) (*publish.Publisher, error) {
			return publish.New(publish.Options{Content: w.open, DumpEvery: time.Hour, Log: l, BaseURL: testBase, CacheDir: filepath.Join(folder, "cache"), SnapshotDir: filepath.Join(folder, "snapshots"), CacheBytes: 1 << 30})
		}}
}

func (w *world) open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	blob, err := w.content.Open(ctx, sum)
	if err != nil {
		return nil, 0, err
	}
	return blob, blob.Size(), nil
}

// export exports and must have no problems.
func (w *world) export(out string, change ...func(*Options)) Report {
	w.t.Helper()
	o := w.options(out)
	for _, f := range change {
		f(&o)
	}
	r, err := Run(w.t.Context(), o)
	if err != nil || len(r.Problems) > 0 {
		w.t.Fatalf("%v, %v", err, r.Problems)
	}
	return r
}

func prune(o *Options) { o.Prune = true }

// files reads the files of a tree that are published, and of bridge's own those that web
// servers and sha256sum read.
func files(t testing.TB, out string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(out, path)
		if err != nil || d.IsDir() || strings.HasPrefix(name, own) && !strings.Contains(name, "nginx") && !strings.HasSuffix(name, ".sha256") {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.HasSuffix(name, ".sha256") || strings.Contains(name, "nginx") { // of records they are in the order of the log or of changes
			lines := strings.SplitAfter(strings.ReplaceAll(string(data), out, "OUT"), "\n")
			slices.Sort(lines)
			data = []byte(strings.Join(lines, ""))
		}
		all[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sameFiles(t testing.TB, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have, ok := got[name]; !ok || have != want[name] {
			t.Errorf("%s: is there: %v, and other than of an export into a new folder\n%.300s\n\n%.300s", name, ok, have, want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: should not be there", name)
		}
	}
}

// history changes a set at random.
func (w *world) history(r *rand.Rand, set string, n int) {
	for range n {
		name, types := fmt.Sprintf("r%d", r.IntN(12)), []string{"text/xml", "application/xml", "text/html", "application/gzip", "text/html; charset=us-ascii"}
		r.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
		w.append(set, w.record(name, fmt.Sprint(r.IntN(3)), types[:r.IntN(4)]...))
	}
}

// There is no empty list of hashes, for which sha256sum fails: not of a set without files, nor
// of one that has lost them, nor one that an earlier version has left.
func TestNoEmptyHashes(t *testing.T) {
	w, out := newWorld(t), t.TempDir()
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.set(eventlog.SetConfig{Name: "to", Content: event.Redirect})
	hashes := func(want ...string) {
		t.Helper()
		w.export(out)
		got, err := fs.Glob(os.DirFS(out), own+"/*.sha256")
		if want = append([]string{own + "/documents.sha256"}, want...); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	w.append("main", w.record("a", "a", "text/plain"))
	w.append("to", w.record("b", "b", "text/plain"))
	hashes(sumsPath("main"))
	w.append("main", w.record("a", ""))
	hashes()
	if err := os.WriteFile(filepath.Join(out, sumsPath("to")), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hashes()
	w.append("main", w.record("a", "c", "text/plain"))
	hashes(sumsPath("main"))
}

var errCrash = errors.New("crash")

// crashAt ends everything at the n-th change of the file system, before it or after it.
func crashAt(n int, after bool) func(*Options) {
	return func(o *Options) {
		steps := 0
		o.step = func(_, _ string, do func() error) error {
			steps++
			if steps < n || steps == n && after {
				if err := do(); err != nil || steps < n {
					return err
				}
			}
			return errCrash
		}
	}
}

// Whatever was exported before, and wherever exports ended unfinished: an export gives
// the tree that one into a new folder gives.
func TestExportAgain(t *testing.T) {
	for seed := range testenv.Rounds(t, 2, 300) {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		w := newWorld(t)
		modes := map[string]event.Content{"main": event.Mirror, "other-1": event.Mirror, "to": event.Redirect, "names": event.Reference}
		for _, name := range slices.Sorted(maps.Keys(modes)) {
			w.set(eventlog.SetConfig{Name: name, Content: modes[name], SegmentEvents: 5})
		}
		out := t.TempDir()
		for range 4 {
			for _, name := range slices.Sorted(maps.Keys(modes)) {
				w.history(r, name, r.IntN(12))
			}
			for range r.IntN(3) {
				o := w.options(out)
				crashAt(1+r.IntN(250), r.IntN(2) == 0)(&o)
				if r.IntN(3) == 0 {
					o.Sets = []string{"main"}
				}
				if _, err := Run(t.Context(), o); err != nil && !errors.Is(err, errCrash) {
					t.Fatalf("seed %d: %v", seed, err)
				}
				w.history(r, "main", r.IntN(3))
			}
			if r.IntN(3) > 0 {
				w.export(out)
			}
		}
		w.export(out, prune)
		fresh := t.TempDir()
		w.export(fresh)
		if sameFiles(t, files(t, out), files(t, fresh)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if again := w.export(out); again.Files != 0 || again.Removed != 0 || again.Unchanged != again.Documents {
			t.Errorf("seed %d: an export of nothing new: %+v", seed, again)
		}
	}
}

// A set that gets another name while it is exported is not published by the former one, even if
// another set has that now. The next export has both.
func TestExportOfARenamedSet(t *testing.T) {
	w, out := newWorld(t), t.TempDir()
	for _, name := range []string{"first", "second"} {
		w.set(eventlog.SetConfig{Name: name, Content: event.Redirect})
		w.append(name, w.record(name, name, "text/html"))
	}
	w.export(out)
	was := files(t, out)
	w.append("first", w.record("more", "more", "text/html"))
	o := w.options(out)
	var renamed bool
	o.step = func(_, _ string, do func() error) error {
		if !renamed {
			renamed = true
			for _, names := range [][2]string{{"first", "swapped"}, {"second", "first"}, {"swapped", "second"}} {
				if err := w.log.RenameSet(t.Context(), names[0], names[1], true); err != nil {
					t.Fatal(err)
				}
			}
		}
		return do()
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "was renamed or removed while it was exported") {
		t.Errorf("the export says: %v", err)
	}
	sameFiles(t, files(t, out), was)
	w.export(out)
	fresh := t.TempDir()
	w.export(fresh)
	sameFiles(t, files(t, out), files(t, fresh))
}

// Wherever an export ends, the tree can be harvested: each list that others lead to is
// whole and as one of the two states has it, and each record that lists name has its
// bytes of one of the two.
func TestCrashLeavesATree(t *testing.T) {
	testenv.Heavy(t)
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 5})
	r := rand.New(rand.NewPCG(7, 7))
	w.history(r, "main", 23)
	before := filepath.Join(t.TempDir(), "before")
	w.export(before)
	old := files(t, before)
	w.history(r, "main", 23)
	after := t.TempDir()
	w.export(after)
	want := files(t, after)
	steps, stride := 1, 5
	if testenv.Soaking() {
		stride = 1
	}
	for done := false; !done; steps += stride {
		out := filepath.Join(t.TempDir(), "out")
		if err := os.CopyFS(out, os.DirFS(before)); err != nil {
			t.Fatal(err)
		}
		o := w.options(out)
		crashAt(steps, steps%2 == 1)(&o)
		_, err := Run(t.Context(), o)
		if done = err == nil; err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		got := files(t, out)
		for name, data := range got {
			if !strings.HasPrefix(name, own) && data != old[name] && data != want[name] {
				t.Errorf("after %d steps %s is of neither state", steps, name)
			}
		}
		for name, data := range got {
			for _, leads := range named(data) {
				if _, ok := got[leads]; !ok && !strings.HasPrefix(name, own) && !strings.Contains(leads, "/records/") {
					t.Errorf("after %d steps %s leads to %s, which is not there", steps, name, leads)
				}
			}
		}
		// All records that the Resource List names are there: they are removed after it
		// has changed.
		for _, leads := range named(got["sets/main/resourcelist.xml"]) {
			if _, ok := got[leads]; !ok {
				t.Errorf("after %d steps the Resource List names %s, which is not there", steps, leads)
			}
		}
		if t.Failed() {
			return
		}
	}
	if steps < 60 {
		t.Errorf("there were only %d steps", steps)
	}
}

// named returns the files that a list or feed names by loc, or as an archive.
func named(data string) (names []string) {
	for _, pattern := range []string{"<loc>" + testBase + "/", `<link rel="prev-archive" href="` + testBase + "/"} {
		for _, piece := range strings.Split(data, pattern)[1:] {
			names = append(names, piece[:strings.IndexAny(piece, `<"`)])
		}
	}
	return names
}

// An export writes what has changed and nothing else.
func TestExportOnlyChanges(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 10})
	for i := range 35 {
		w.append("main", w.record(fmt.Sprint("r", i), "one", "text/xml", "text/html"))
	}
	out := t.TempDir()
	w.export(out)
	times := func() map[string]time.Time {
		all := map[string]time.Time{}
		for name := range files(t, out) {
			info, err := os.Stat(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			all[name] = info.ModTime()
		}
		return all
	}
	first := times()
	w.append("main", w.record("r3", "two", "text/xml", "text/html"))
	w.append("main", w.record("r4", "", []string{}...))
	r := w.export(out)
	var changed []string
	for name, at := range times() {
		if !at.Equal(first[name]) && !strings.HasPrefix(name, own) && !strings.HasSuffix(name, ".gz") {
			changed = append(changed, strings.TrimPrefix(name, "sets/main/"))
		}
		if old, ok := first[name]; ok && at.Before(old) {
			t.Errorf("%s: time of modification %v, before %v", name, at, old)
		}
	}
	slices.Sort(changed)
	key := event.Key("urn:example:r3")
	want := []string{"changelist.xml", "changelist/4.xml", "complete.atom", "feed.atom", "index.html", "index.html", "recent.atom", "recent.json", "recent.rss",
		"records/" + key, "records/" + key + ".html", "records/" + key + ".xml", "resourcelist.xml"}
	if !slices.Equal(changed, want) || r.Removed != 3 || r.Files != 3+10*2 {
		t.Errorf("changed %q; %+v", changed, r)
	}
	if _, err := os.Stat(filepath.Join(out, "sets/main/records", event.Key("urn:example:r4"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the deleted record: %v", err)
	}
	// Between equal lengths and seconds a web server would see no difference.
	w.append("main", w.record("r3", "six", "text/xml", "text/html"))
	before := times()
	w.export(out)
	for name, at := range times() {
		if strings.HasSuffix(name, key) && at.Unix() == before[name].Unix() {
			t.Errorf("%s: two versions with the time %v", name, at)
		}
	}
}

// A large list is made anew when it has to be.
func TestExportLargeList(t *testing.T) {
	testenv.Heavy(t)
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Reference})
	var all []event.Observation
	for i := range 50_001 {
		o := event.Observation{Record: fmt.Sprint("urn:example:", i), Order: event.StampFromNanos(int64(i+1) * 1e9), Modified: event.StampFromNanos(int64(i+1) * 1e9),
			Representations: []event.Representation{{Href: fmt.Sprint("https://source.example/", i), Type: "text/xml", Length: event.NoLength}}}
		all = append(all, o)
	}
	w.append("main", all...)
	w.stamp = 100_000
	out := t.TempDir()
	w.export(out)
	parts := func() string {
		found, err := filepath.Glob(filepath.Join(out, "sets/main/resourcelist/*/*.xml"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range found {
			found[i], _ = filepath.Rel(filepath.Join(out, "sets/main/resourcelist"), found[i])
		}
		return strings.Join(found, " ")
	}
	if got := parts(); got != "50001/1.xml 50001/2.xml" {
		t.Fatalf("parts %s", got)
	}
	change := func(from, n int) {
		for i := range n {
			all[from+i].Title, all[from+i].Order = fmt.Sprint("again ", w.stamp), event.StampFromNanos((w.stamp+int64(i))*1e9)
		}
		w.stamp += int64(n)
		w.append("main", all[from:from+n]...)
	}
	change(0, 10)
	w.export(out)
	if got := parts(); got != "50001/1.xml 50001/2.xml" {
		t.Errorf("after a few changes: parts %s", got)
	}
	// changelist.xml no longer leads on from the list.
	change(0, 50_001)
	r := w.export(out)
	if got := parts(); got != "100012/1.xml 100012/2.xml 50001/1.xml 50001/2.xml" || r.Stale != 2 {
		t.Errorf("after many changes: parts %s, %+v", got, r)
	}
	if r := w.export(out, prune); parts() != "100012/1.xml 100012/2.xml" || r.Stale != 0 || r.Removed != 4 {
		t.Errorf("pruned: parts %s, %+v", parts(), r)
	}
	fresh := t.TempDir()
	w.export(fresh)
	sameFiles(t, files(t, out), files(t, fresh))

	// What an export for another base URL has made, and one that was killed has left, goes.
	if err := os.Mkdir(filepath.Join(out, own, "snapshots/main/.new-60000"), 0o777); err != nil {
		t.Fatal(err)
	}
	const moved = "https://moved.example.org"
	w.export(out, func(o *Options) {
		o.BaseURL = moved
		o.Publisher = func(l publish.Log, folder string) (*publish.Publisher, error) {
			return publish.New(publish.Options{Log: l, BaseURL: moved, CacheDir: filepath.Join(folder, "cache"), SnapshotDir: filepath.Join(folder, "snapshots"), CacheBytes: 1 << 30})
		}
	})
	var left []string
	entries, err := os.ReadDir(filepath.Join(out, own, "snapshots/main"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if err != nil || !slices.Equal(left, []string{"100012"}) {
		t.Errorf("snapshots %v are left, want that of 100012: %v", left, err)
	}
}

// Dumps come along: the Capability List names them, their packages are files, and a set
// that has none any more loses them.
func TestExportDumps(t *testing.T) {
	w := newWorld(t)
	config := eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 5, Dumps: true}
	w.set(config)
	for i := range 12 {
		w.append("main", w.record(fmt.Sprint("r", i), "one", "text/xml"))
	}
	out := t.TempDir()
	w.export(out)
	names := []string{"resourcedump.xml", "resourcedump/12/1.zip", "resourcedump/12/1.xml", "resourcedump/12/1.xml.gz", "changedump.xml", "changedump/1.zip", "changedump/2.zip", "changedump/2.xml"}
	got := files(t, out)
	for _, name := range names {
		if _, ok := got["sets/main/"+name]; !ok {
			t.Errorf("%s is not there", name)
		}
	}
	if caps := got["sets/main/capabilitylist.xml"]; !strings.Contains(caps, `"resourcedump"`) || !strings.Contains(caps, `"changedump"`) {
		t.Errorf("the Capability List names no dumps: %s", caps)
	}
	if sums := got[own+"/documents.sha256"]; !strings.Contains(sums, fmt.Sprintf("%x  sets/main/changedump/2.zip", sha256.Sum256([]byte(got["sets/main/changedump/2.zip"])))) {
		t.Errorf("the hashes lack a package: %s", sums)
	}
	w.append("main", w.record("r3", "two", "text/xml"))
	if again := w.export(out, prune); again.Removed != 0 {
		t.Errorf("%+v", again)
	}
	config.Dumps = false
	w.set(config)
	w.export(out, prune)
	for name := range files(t, out) {
		if strings.Contains(name, "dump") {
			t.Errorf("%s is still there", name)
		}
	}
}

// The dumps of a set that was removed or renamed leave the tree with its documents, also those
// from which the packages were linked. Those of a set that is left out stay.
func TestPruneDumpsOfFormerSets(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"main", "removed", "renamed", "other"} {
		w.set(eventlog.SetConfig{Name: name, Content: event.Mirror, Dumps: true})
		w.append(name, w.record(name, "one", "text/xml"))
	}
	out := t.TempDir()
	w.export(out)
	if err := errors.Join(w.log.RemoveSet(t.Context(), "removed"), w.log.RenameSet(t.Context(), "renamed", "anew", false)); err != nil {
		t.Fatal(err)
	}
	w.export(out, prune, func(o *Options) { o.Sets = []string{"main", "anew"} })
	var left []string
	entries, err := os.ReadDir(filepath.Join(out, own, "snapshots"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"anew", "main", "other"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("there are snapshots of %v, want %v: %v", left, want, err)
	}
}

// Resource Lists of the past come along with their archive.
func TestExportKeptLists(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 5, KeepLists: 3})
	for i := range 12 {
		w.append("main", w.record(fmt.Sprint("r", i), "one", "text/xml"))
	}
	out := t.TempDir()
	w.export(out)
	got := files(t, out)
	for _, name := range []string{"resourcelist-archive.xml", "resourcelist-archive/5.xml", "resourcelist-archive/5/1.xml", "resourcelist-archive/5/1.xml.gz"} {
		if _, ok := got["sets/main/"+name]; !ok {
			t.Errorf("%s is not there", name)
		}
	}
	if again := w.export(out); again.Files != 0 {
		t.Errorf("%+v", again)
	}
}

// What is not an export's folder is left alone.
func TestExportRefuses(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.append("main", w.record("a", "one", "text/xml"))
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"a full folder":    {func(o *Options) { o.Folder = full }, "it is not empty"},
		"a file":           {func(o *Options) { o.Folder = filepath.Join(full, "thesis.txt") }, "not a directory"},
		"the data folder":  {func(o *Options) { o.Folder = w.folder }, "must not be in each other"},
		"in the data":      {func(o *Options) { o.Folder = filepath.Join(w.folder, "a", "b") }, "must not be in each other"},
		"around the data":  {func(o *Options) { o.Folder = filepath.Dir(w.folder) }, "must not be in each other"},
		"odd path":         {func(o *Options) { o.Folder = filepath.Join(full, "a$b") }, "a character"},
		"unknown set":      {func(o *Options) { o.Sets = []string{"mian"} }, "there is: main"},
		"URL with query":   {func(o *Options) { o.BaseURL = "https://a.example/?x=1" }, "no query"},
		"URL with escapes": {func(o *Options) { o.BaseURL = "https://a.example/a%20b" }, "only letters"},
		"no URL":           {func(o *Options) { o.BaseURL = "data" }, "want http"},
	} {
		o := w.options(filepath.Join(full, "new"))
		c.change(&o)
		var input *InputError
		if _, err := Run(t.Context(), o); !errors.As(err, &input) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if left := files(t, full); len(left) != 1 {
		t.Errorf("files %v", slices.Collect(maps.Keys(left)))
	}

	out := t.TempDir()
	w.export(out)
	lock, err := openTree(out)
	if err != nil {
		t.Fatal(err)
	}
	var input *InputError
	if _, err := Run(t.Context(), w.options(out)); !errors.As(err, &input) || !strings.Contains(err.Error(), "another bridge export") {
		t.Errorf("two at a time: %v", err)
	}
	if err := lock.close(); err != nil {
		t.Error(err)
	}

	// A link in the tree leads nobody out of it; what is not bridge's stays.
	if err := os.WriteFile(filepath.Join(out, "favicon.ico"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(out, "sets/main/records")), os.Symlink(full, filepath.Join(out, "sets/main/records"))); err != nil {
		t.Fatal(err)
	}
	w.append("main", w.record("b", "one", "text/xml"))
	if _, err := Run(t.Context(), w.options(out)); err == nil {
		t.Error("it followed a link out of the tree")
	}
	if left := files(t, full); len(left) != 1 {
		t.Errorf("files %v", slices.Collect(maps.Keys(left)))
	}
	if err := os.Remove(filepath.Join(out, "sets/main/records")); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(out, linked); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(out, stateFile)); err != nil { // so that all is compared
		t.Fatal(err)
	}
	w.export(linked, prune)
	fresh := t.TempDir()
	w.export(fresh)
	want := files(t, fresh)
	want["favicon.ico"] = "x"
	sameFiles(t, files(t, out), want)
}

// A content that is gone is reported, and the record's file comes with the export after
// the content came back.
func TestExportMissingContent(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	o := w.record("a", "one", "text/xml")
	lost := []byte("lost as text/html")
	o.Representations = append(o.Representations, event.Representation{Href: "https://source.example/lost", Type: "text/html", Length: int64(len(lost)), Hash: event.HashOf(sha256.Sum256(lost))})
	w.append("main", o)
	out := t.TempDir()
	r, err := Run(t.Context(), w.options(out))
	if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], `record "urn:example:a" (event 1) has no file`) {
		t.Fatalf("%v, %q", err, r.Problems)
	}
	w.record("a", "lost", "text/html")
	w.export(out)
	if data, err := os.ReadFile(filepath.Join(out, "sets/main/records", event.Key("urn:example:a")+".html")); err != nil || string(data) != string(lost) {
		t.Errorf("%q, %v", data, err)
	}
}

// A damaged list of the records that the tree has ends no export, and keeps no file: then all
// records are compared.
func TestExportDamagedList(t *testing.T) {
	testenv.Heavy(t)
	for name, damage := range map[string]func(list []byte) []byte{
		"no list":    func([]byte) []byte { return []byte("no\tlist\n") },
		"zeros":      func(list []byte) []byte { return make([]byte, len(list)) },
		"empty":      func([]byte) []byte { return nil },
		"a line off": func(list []byte) []byte { return list[bytes.IndexByte(list, '\n')+1:] },
	} {
		w, out := newWorld(t), t.TempDir()
		w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
		w.append("main", w.record("a", "one", "text/xml", "text/html"), w.record("b", "one", "text/xml"), w.record("c", "one", "text/xml"))
		w.export(out)
		path := filepath.Join(out, listPath("main"))
		list, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, damage(list), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.append("main", w.record("a", ""), w.record("b", "two", "text/xml"))
		fresh := t.TempDir()
		if _, err := Run(t.Context(), w.options(out)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		w.export(fresh)
		t.Log(name)
		sameFiles(t, files(t, out), files(t, fresh))
	}
}

// Of records without a file each set names five and counts the others.
func TestExportCountsMissingContents(t *testing.T) {
	w := newWorld(t)
	lost := map[string]int{"main": 7, "other": 6, "some": 2}
	for _, set := range slices.Sorted(maps.Keys(lost)) {
		w.set(eventlog.SetConfig{Name: set, Content: event.Mirror})
		for i := range lost[set] {
			o := w.record(fmt.Sprint(set, i), fmt.Sprint(set, i), "text/xml", "text/html")
			w.append(set, o)
			for _, r := range o.Representations {
				sum, err := content.ParseSum(r.SHA256())
				if err == nil {
					err = w.content.Remove(t.Context(), sum)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	r, err := Run(t.Context(), w.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	named, more := map[string]int{}, []string{}
	for _, p := range r.Problems {
		set, what, _ := strings.Cut(strings.TrimPrefix(p, "set "), ": ")
		if named[set]++; !strings.HasPrefix(what, "record ") {
			more = append(more, p)
		}
	}
	if want := map[string]int{"main": 6, "other": 6, "some": 2}; !maps.Equal(named, want) {
		t.Errorf("problems by set: %v, want %v:\n%s", named, want, strings.Join(r.Problems, "\n"))
	}
	if want := []string{"set main: records without a file besides these: 2; bridge verify names all", "set other: records without a file besides these: 1; bridge verify names all"}; !slices.Equal(more, want) {
		t.Errorf("%q, want %q", more, want)
	}
}

// An export that has begun waits while the server of the bucket is away, and goes on where it
// was.
func TestExportWaitsForBucket(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.SharedS3(t)
	s3.Setenv(t)
	var reads, away atomic.Int64 // requests for objects, and of these so many are refused, from the second on
	endpoint := s3.Proxy(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || r.URL.Query().Has("list-type") {
			return false
		}
		n := reads.Add(1)
		refuse := n > 1 && n <= 1+away.Load()
		if refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return refuse
	})
	w := newWorld(t)
	if err := w.content.Close(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(w.folder, "content.db")
	o := content.Options{Bucket: "s3://" + s3.NewBucket(t) + "?endpoint=" + endpoint, Keep: -1, Idle: true}
	var err error
	if w.content, err = content.Open(t.Context(), at, o); err != nil {
		t.Fatal(err)
	}
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	for i := range 8 {
		w.append("main", w.record(fmt.Sprint(i), fmt.Sprint(i), "text/xml"))
	}
	if _, err := w.content.Tidy(t.Context(), content.TidyOptions{}); err != nil {
		t.Fatal(err)
	}
	reads.Store(0)
	away.Store(4) // one more than the requests of one read
	r, err := Run(t.Context(), w.options(t.TempDir()))
	if err != nil || len(r.Problems) > 0 || r.Sets[0].Files != 16 || reads.Load() <= 5 {
		t.Errorf("%v, %q, %+v, %d reads", err, r.Problems, r.Sets, reads.Load())
	}
}

// A set that is not whole yet is left out, or as it was.
func TestExportPartialSet(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.set(eventlog.SetConfig{Name: "young", Content: event.Mirror, Partial: true})
	w.append("young", w.record("a", "one", "text/xml"))
	out := t.TempDir()
	r, err := Run(t.Context(), w.options(out))
	if err != nil || len(r.Problems) != 1 || len(r.Sets) != 1 {
		t.Fatalf("%v, %+v", err, r)
	}
	if data, err := os.ReadFile(filepath.Join(out, ".well-known/resourcesync")); err != nil || strings.Contains(string(data), "young") {
		t.Errorf("%s, %v", data, err)
	}
}

// Types and URLs are a Source's, and may not say anything in a configuration.
func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"text/xml": "text/xml", "text/html; charset=utf-8": "text/html; charset=utf-8", "image/svg+xml": "image/svg+xml",
		"text/html\"; return 200 \"": unknownType, "text/$uri": unknownType, "a/b;c={env.HOME}": unknownType, "": unknownType, "a/b;c=d\\": unknownType,
	} {
		if got := plainType(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"https://a.example/b?c=d&e=%20#f": "https://a.example/b?c=d&e=%20#f",
		`https://a.example/";return 200`:  "https://a.example/%22;return%20200",
		"https://a.example/$uri{x}\\`":    "https://a.example/%24uri%7Bx%7D%5C%60",
		"https://a.example/ü\n":           "https://a.example/%C3%BC%0A",
	} {
		if got := plainURL(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Each server's configuration has a limit, and what is above it is said.
func TestMapsHaveALimit(t *testing.T) {
	testenv.Heavy(t)
	for _, c := range []struct {
		targets, types, want int
	}{{maxMappedCaddy, maxMappedCaddy, 0}, {maxMappedCaddy + 1, 0, 1}, {0, maxMappedCaddy + 1, 1}, {maxMapped + 1, 0, 2}, {0, maxMapped + 1, 2}} {
		var m mapFiles
		for i := range c.targets {
			m.addTarget(fmt.Sprint(i), "https://source.example/")
		}
		for i := range c.types {
			m.addType(fmt.Sprint(i), "a", "text/xml", map[string]string{"text/xml": "t1"})
		}
		var got []string
		m.report(func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) })
		if len(got) != c.want || c.want > 0 && !strings.Contains(got[len(got)-1], fmt.Sprint("of ", c.targets+c.types)) {
			t.Errorf("%+v: %q", c, got)
		}
	}
	// Of deleted records those are left out that were deleted first.
	var m mapFiles
	for i := range 3*maxMapped + 1 {
		m.addGone(fmt.Sprint(i))
	}
	m.writeGone()
	for most, text := range map[int]string{maxMapped: m.nginxGone.String(), maxMappedCaddy: m.caddyGone.String()} {
		if lines := strings.Fields(text); len(lines) != 2*most || lines[0] != fmt.Sprint(3*maxMapped+1-most) || lines[2*most-2] != fmt.Sprint(3*maxMapped) {
			t.Errorf("%d deleted records, from %.6q to %.6q; want the last %d", len(lines)/2, lines, lines[max(len(lines)-2, 0):], most)
		}
	}
}

// A list of records reads as it was written; damage is an error.
func TestRecordList(t *testing.T) {
	for _, r := range []record{{key: "a", gone: true}, {key: "a"}, {key: "b", files: []recordFile{{"", "00", "text/xml"}, {"xml", "00", "text/xml"}, {"0a.gz", "", "https://a.example/"}}}} {
		line := string(r.append(nil))
		var got record
		if err := got.parse(strings.TrimSuffix(line, "\n")); err != nil || string(got.append(nil)) != line {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "a\tb", "a\tb\tc", "../a\t-x\t\t", "a\t../b\t0\ttext/xml"} {
		if err := new(record).parse(line); err == nil {
			t.Errorf("%q is a record", line)
		}
	}
}

func TestCancelled(t *testing.T) {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.append("main", w.record("a", "one", "text/xml"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, w.options(t.TempDir())); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// young is a log with the same sets, of which one has not been harvested whole yet.
func young(t *testing.T) *world {
	w := newWorld(t)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror, SegmentEvents: 2})
	w.set(eventlog.SetConfig{Name: "other", Content: event.Mirror, SegmentEvents: 2, Partial: true})
	w.append("main", w.record("main1", "two", "text/xml"))
	w.append("other", w.record("other1", "two", "text/xml"))
	return w
}

// twoSets exports two sets.
func twoSets(t *testing.T) (w *world, out string) {
	w, out = newWorld(t), t.TempDir()
	for _, set := range []string{"main", "other"} {
		w.set(eventlog.SetConfig{Name: set, Content: event.Mirror, SegmentEvents: 2})
		for i := range 5 {
			w.append(set, w.record(fmt.Sprint(set, i), "one", "text/xml", "text/html"))
		}
	}
	w.export(out)
	return w, out
}

// What was exported before of a set that is left out now is never removed, also when the
// state is lost that says what it is.
func TestPruneLeavesOtherSets(t *testing.T) {
	testenv.Heavy(t)
	for name, lose := range map[string]func(file string) error{
		"intact":  func(string) error { return nil },
		"missing": os.Remove,
		"damaged": func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
	} {
		for _, partial := range []bool{false, true} {
			w, out := twoSets(t)
			before := files(t, out)
			if err := lose(filepath.Join(out, stateFile)); err != nil {
				t.Fatal(err)
			}
			only := []string{"main"}
			if partial {
				w, only = young(t), nil
			}
			o := w.options(out)
			o.Prune, o.Sets = true, only
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			after := files(t, out)
			for file, data := range before {
				if strings.HasPrefix(file, "sets/other/") && after[file] != data {
					t.Errorf("state %s, partial %v: %s has gone or is another", name, partial, file)
				}
			}
		}
	}
}

// A tree that moves to another base URL leads to no documents for the former one.
func TestExportMoves(t *testing.T) {
	const moved = "https://moved.example"
	move := func(w *world, out string) Options {
		o := w.options(out)
		o.BaseURL = moved
		o.Publisher = func(l publish.Log, folder string) (*publish.Publisher, error) {
			return publish.New(publish.Options{Content: w.open, DumpEvery: time.Hour, Log: l, BaseURL: moved, CacheDir: filepath.Join(folder, "cache"), SnapshotDir: filepath.Join(folder, "snapshots"), CacheBytes: 1 << 30})
		}
		return o
	}
	w, out := twoSets(t)
	before := files(t, out)
	o := move(w, out)
	o.Sets = []string{"main"}
	var input *InputError
	if _, err := Run(t.Context(), o); !errors.As(err, &input) || !strings.Contains(err.Error(), "without --set") {
		t.Fatalf("one of two sets: %v", err)
	}
	sameFiles(t, files(t, out), before)

	// An export that did not end has left documents of both.
	o = move(w, out)
	crashAt(60, true)(&o)
	if _, err := Run(t.Context(), o); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	for range 2 {
		o = w.options(out)
		o.Sets = []string{"main"}
		if _, err := Run(t.Context(), o); !errors.As(err, &input) {
			t.Fatalf("one of two sets, after a crash: %v", err)
		}
		o = w.options(out)
		crashAt(60, true)(&o)
		if _, err := Run(t.Context(), o); !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
	}

	r, err := Run(t.Context(), move(young(t), out))
	if err != nil || len(r.Problems) != 1 {
		t.Fatalf("a set that cannot be exported: %v, %q", err, r.Problems)
	}
	if site := files(t, out)[".well-known/resourcesync"]; !strings.Contains(site, moved+"/sets/main/") || strings.Contains(site, "/sets/other/") {
		t.Errorf("the Source Description is %s", site)
	}
	if _, err := Run(t.Context(), move(w, out)); err != nil {
		t.Fatal(err)
	}
	for name, data := range files(t, out) {
		if !strings.HasPrefix(name, own) && strings.Contains(data, testBase) {
			t.Errorf("%s has the former base URL", name)
		}
	}
}

// An export that fails leaves no drafts: the disk may be full, and others use it.
func TestNoDraftsAfterFailure(t *testing.T) {
	w, out := newWorld(t), t.TempDir()
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.append("main", w.record("a", "a", "text/plain"))
	o := w.options(out)
	o.step = func(op, path string, do func() error) error {
		if op == "rename" && !strings.Contains(path, "/records/") && !strings.HasPrefix(path, own) {
			return syscall.ENOSPC
		}
		return do()
	}
	if _, err := Run(t.Context(), o); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("exported: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(out, stageFolder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left %v, %v", left, err)
	}
	w.export(out)
}

// s3.sh names the files with an unusual media type one by one, each once as long as it does not
// change. It also runs where no set has files.
func TestCopyUnusualTypes(t *testing.T) {
	testenv.Heavy(t) // it starts a hundred processes
	w, out, bin := newWorld(t), t.TempDir(), t.TempDir()
	w.set(eventlog.SetConfig{Name: "names", Content: event.Reference})
	w.append("names", w.record("a", "one", "text/xml"))
	if err := os.WriteFile(filepath.Join(bin, "aws"), []byte("#!/bin/sh\necho \"$@\" >>\"$CALLS\"\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	single := func(want int) {
		t.Helper()
		w.export(out)
		calls := filepath.Join(t.TempDir(), "calls")
		c := exec.CommandContext(t.Context(), "sh", filepath.Join(out, own, "s3.sh"), "s3://bucket")
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CALLS="+calls)
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if data, err := os.ReadFile(calls); err != nil || strings.Count(string(data), "s3 cp sets/") != want {
			t.Errorf("%v, want %d files one by one:\n%s", err, want, data)
		}
	}
	single(0)
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	w.append("main", w.record("a", "one", "text/xml"), w.record("b", "one", "text/xml"), w.record("c", "one", "text/xml"), w.record("d", "one", "application/xml"), w.record("e", "one", "application/xml"))
	single(4)
	w.append("main", w.record("e", "two", "application/xml"))
	single(2)
}

// After s3.sh the bucket has the bytes of the tree, also of a record of which a version of equal
// length was logged before the former one was copied. A second copy makes it right if the first
// one was interrupted.
func TestCopyToBucket(t *testing.T) {
	testenv.Soak(t)                                 // its client starts forty times
	if _, err := exec.LookPath("aws"); err != nil { // no peer that make deps installs: it is large
		t.Skip("the command line client of AWS is not installed, so s3.sh is not tried")
	}
	s3 := testenv.SharedS3(t)
	bucket := s3.NewBucket(t)
	w, out := newWorld(t), t.TempDir()
	w.set(eventlog.SetConfig{Name: "main", Content: event.Mirror})
	send := func(endpoint string, want bool) {
		t.Helper()
		c := exec.CommandContext(t.Context(), "sh", filepath.Join(out, own, "s3.sh"), "s3://"+bucket, "--endpoint-url", endpoint)
		c.Env = append(append(os.Environ(), "AWS_DEFAULT_REGION=us-east-1", "AWS_MAX_ATTEMPTS=1"), s3.Env()...)
		if text, err := c.CombinedOutput(); (err == nil) != want {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	w.append("main", w.record("a", "one", "text/xml"), w.record("b", "one", "text/xml"))
	w.export(out)
	w.append("main", w.record("a", "two", "text/xml"))
	send(s3.Endpoint(), true)
	w.export(out)
	send("http://127.0.0.1:1", false)
	send(s3.Endpoint(), true)
	want := map[string]string{}
	for name, data := range files(t, out) {
		if !strings.HasPrefix(name, own) && !strings.HasSuffix(name, ".gz") {
			want[name] = data
		}
	}
	sameFiles(t, files(t, filepath.Join(s3.Folder(), bucket)), want)
}
