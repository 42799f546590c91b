package harvest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/translate"
)

// shelf is a folder of files, and a log that follows it.
type shelf struct {
	*harness
	dir   string        // the folder
	later time.Duration // how far the clock of the harvests is ahead
}

func newShelf(t tester, folder string, mode event.Content) *shelf {
	s := &shelf{harness: newHarness(t, filepath.Join(folder, "data"), mode, eventlog.Options{}), dir: filepath.Join(folder, "records")}
	s.must(os.MkdirAll(s.dir, 0o755))
	s.harvest.Now = func() time.Time { return time.Now().Add(s.later) }
	s.src.Kind, s.src.Folder, s.src.HoldDeletions, s.src.FullEvery = harvest.Folder, harvest.FolderNames{Name: "records"}, time.Hour, 24*time.Hour
	if mode != event.Mirror {
		s.src.Selection.PublicURL = "https://www.example.org/r/"
	}
	s.at(s.dir)
	return s
}

// at tells the Source where the folder is.
func (s *shelf) at(dir string) {
	var err error
	s.src.URL = "file://" + dir + "/"
	if s.src.ID == 0 {
		s.src.ID, err = s.log.EnsureSource(context.Background(), "main", harvest.Folder, s.src.URL, 0)
		s.must(err)
	}
	s.src.Client = fetch.New(fetch.Options{}).Client(dir)
}

// put writes a file.
func (s *shelf) put(name, text string) {
	s.t.Helper()
	at := filepath.Join(s.dir, name)
	s.must(os.MkdirAll(filepath.Dir(at), 0o755))
	s.must(os.WriteFile(at, []byte(text), 0o644))
}

func (s *shelf) run() harvest.Report {
	s.t.Helper()
	r, err := s.try(harvest.Options{AllPending: true})
	s.must(err)
	return r
}

func (s *shelf) try(o harvest.Options) (harvest.Report, error) {
	src := s.src
	return s.harvest.Run(context.Background(), &src, o)
}

// news returns the events since it was called last.
func (s *shelf) news() string {
	out := s.told(func(ev *event.Event) string {
		return fmt.Sprintf("%v %s", ev.Kind, strings.TrimPrefix(ev.Record, "urn:x-bridge:folder:main:records:"))
	})
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// live returns the hashes of the records that live, by their identifiers.
func (s *shelf) live() map[string]string {
	out := map[string]string{}
	for ev, err := range s.log.Live(context.Background(), s.src.Set, math.MaxInt64) {
		s.must(err)
		var sums []string
		for i := range ev.Representations {
			sums = append(sums, ev.Representations[i].SHA256())
		}
		slices.Sort(sums)
		out[ev.Record] = strings.Join(sums, " ")
	}
	return out
}

// is compares the events since it was called last, and what the harvest warned of.
func (s *shelf) is(what, want string, r harvest.Report, warns string) {
	s.t.Helper()
	s.compare(what, s.news(), want, r, warns)
}

// compare compares events, and what the harvest warned of.
func (s *shelf) compare(what, news, want string, r harvest.Report, warns string) {
	s.t.Helper()
	if news != want {
		s.t.Fatalf("%s: events %q, want %q", what, news, want)
	}
	if got := strings.Join(r.Warnings, "; "); !strings.Contains(got, warns) || warns == "" && got != "" {
		s.t.Fatalf("%s: warnings %q, want %q", what, got, warns)
	}
}

func hashOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// TestFolderLaw: whatever happens in a folder between harvests, the log has what a naive
// model has, and the same harvest once more logs nothing.
func TestFolderLaw(t *testing.T) {
	testenv.Checks(t, 30)
	rapid.Check(t, func(t *rapid.T) {
		s := newShelf(t, tempDir(t), rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content"))
		s.src.Folder.ByName = rapid.Bool().Draw(t, "by name")
		s.harvest.BacklogMemory = rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "in memory")
		s.harvest.BatchSize = rapid.IntRange(1, 6).Draw(t, "batch")
		s.put("keep.xml", "<keep/>")
		model := map[string]string{"keep.xml": "<keep/>"}
		version := 0
		for range rapid.IntRange(1, 6).Draw(t, "harvests") {
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				version++
				s.happens(t, model, version)
			}
			if rapid.IntRange(0, 3).Draw(t, "at once") == 0 {
				s.run() // may miss a change in the same tick of the clock, for now
			}
			s.later = 3 * time.Second
			full := rapid.IntRange(0, 4).Draw(t, "full") == 0
			_, err := s.try(harvest.Options{Full: full, AllPending: true})
			s.must(err)
			if got, want := s.live(), s.wants(model); !maps.Equal(got, want) {
				t.Fatalf("the log has %v, want %v", got, want)
			}
			s.news()
			if r := s.run(); !r.NotModified || s.news() != "" {
				t.Fatalf("the same once more: %+v", r)
			}
			s.later = 0
		}
		s.verify()
	})
}

// happens does something in the folder. Files keep the time of their modification, which
// tells nothing then.
func (s *shelf) happens(t *rapid.T, model map[string]string, version int) {
	names := slices.Sorted(maps.Keys(model))
	// No two files of different folders have one name.
	fresh := strings.Repeat(fmt.Sprintf("d%d/", version%3), version%4) + fmt.Sprintf("%d\xff ?#%%ü.xml", version)
	some := rapid.SampledFrom(names).Draw(t, "file")
	at := filepath.Join(s.dir, some)
	switch rapid.SampledFrom([]string{"create", "change", "rename", "delete", "touch", "hide", "empty", "link"}).Draw(t, "what") {
	case "create":
		model[fresh] = fmt.Sprintf("<r>%05d</r>", version)
		s.put(fresh, model[fresh])
	case "change":
		info, err := os.Stat(at)
		s.must(err)
		text := fmt.Sprintf("<r>%05d</r>", version)
		model[some] = text
		s.put(some, text)
		s.must(os.Chtimes(at, info.ModTime(), info.ModTime()))
	case "rename":
		if some == "keep.xml" {
			return
		}
		model[fresh] = model[some]
		delete(model, some)
		s.must(os.MkdirAll(filepath.Dir(filepath.Join(s.dir, fresh)), 0o755))
		s.must(os.Rename(at, filepath.Join(s.dir, fresh)))
	case "delete":
		if some == "keep.xml" {
			return
		}
		delete(model, some)
		s.must(os.Remove(at))
	case "touch":
		now := time.Now().Add(time.Duration(version) * time.Second)
		s.must(os.Chtimes(at, now, now))
	case "hide":
		for _, name := range []string{".hidden.xml", "a.xml.part", "b.tmp", "c.xml~", ".d/e.xml"} {
			s.put(name, "<r/>")
		}
	case "empty":
		s.put("empty.xml", "") // somebody begins to write it
		s.must(os.Remove(filepath.Join(s.dir, "empty.xml")))
	case "link":
		for name, to := range map[string]string{"out.xml": "/etc/passwd", "up": "..", "loop": ".", "dead.xml": "nothing"} {
			_ = os.Symlink(to, filepath.Join(s.dir, name)) // it may be there
		}
	}
}

// wants returns what the model has, as live does.
func (s *shelf) wants(model map[string]string) map[string]string {
	out := map[string]string{}
	base := "urn:x-bridge:folder:main:records:"
	if s.src.Selection.PublicURL != "" {
		base = s.src.Selection.PublicURL
	}
	for name, text := range model {
		if s.src.Folder.ByName {
			name = strings.TrimSuffix(filepath.Base(name), ".xml")
		}
		id := base
		for i := range len(name) {
			if c := name[i]; c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '/' || c == '.' {
				id += string(rune(c))
			} else {
				id += fmt.Sprintf("%%%02X", c)
			}
		}
		out[id] = hashOf(text)
	}
	return out
}

// A folder that is moved keeps its identifiers and logs nothing, whatever the times of its
// files become; so does one whose set has another name by now.
func TestFolderMoves(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := newShelf(t, folder, event.Mirror)
	for i := range 20 {
		s.put(fmt.Sprintf("d%d/%d.xml", i%3, i), fmt.Sprintf("<r>%d</r>", i))
	}
	s.run()
	if s.news() == "" {
		t.Fatal("nothing was logged")
	}
	moved := filepath.Join(folder, "elsewhere")
	s.must(os.CopyFS(moved, os.DirFS(s.dir)))
	s.dir, s.src.Folder.Name = moved, "another"
	s.at(moved)
	r := s.run()
	s.is("moved", "", r, "was file://")
	if r.Fetched != 20 {
		t.Errorf("%d contents were read, want 20: nothing else tells that they are the same", r.Fetched)
	}
}

// A set gets another name when its first harvest of a folder has committed some records, and
// was interrupted: these keep their identifiers, and the others get such ones.
func TestFolderInterrupted(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	for i := range 20 {
		s.put(fmt.Sprintf("%02d.xml", i), fmt.Sprintf("<r>%d</r>", i))
	}
	s.harvest.BatchSize = 5
	ctx, end := context.WithCancel(context.Background())
	defer end()
	src := s.src
	_, err := s.harvest.Run(ctx, &src, harvest.Options{AllPending: true, Progress: func(p harvest.Progress) {
		if p.Events > 0 {
			end()
		}
	}})
	if got := strings.Count(s.news(), "created"); !errors.Is(err, context.Canceled) || got == 0 || got == 20 {
		t.Fatalf("the first harvest has created %d records, and says %v", got, err)
	}
	s.must(s.log.RenameSet(context.Background(), "main", "other", false))
	s.src.Set = "other"
	if r := s.run(); r.Deleted != 0 || r.Held != 0 {
		t.Errorf("what was taken before has other identifiers: %d deleted, %d held", r.Deleted, r.Held)
	}
	for id := range s.live() {
		if !strings.HasPrefix(id, "urn:x-bridge:folder:main:records:") {
			t.Errorf("a record is called %s", id)
		}
	}
}

// A set that has the former name of another one, whose folder is called like that of the
// other, gives its records other identifiers.
func TestFolderOfFormerName(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	s.put("1.xml", "<r/>")
	s.run()
	ctx := context.Background()
	s.must(s.log.RenameSet(ctx, "main", "old", false))
	s.must(s.log.FreeName(ctx, "main"))
	s.must(s.log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Mirror}))
	var err error
	s.src.ID, err = s.log.EnsureSource(ctx, "main", harvest.Folder, s.src.URL, 0)
	s.must(err)
	s.run()
	if got := slices.Collect(maps.Keys(s.live())); !slices.Equal(got, []string{"urn:x-bridge:folder:main-2:records:1.xml"}) {
		t.Errorf("the new set has %q", got)
	}
}

// A folder that has the former name of another one in its set gives its files other
// identifiers. One that takes the place of a folder that is no Source any more does not.
func TestFoldersOfOneName(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	ctx := context.Background()
	for n, x := range []struct {
		was, id string // of the first folder, and what the file of the new one is called
	}{{"old", "records-2:1.xml"}, {"", "records:1.xml"}} {
		name := fmt.Sprintf("main%d", n)
		first, second := filepath.Join(s.dir, name, "1"), filepath.Join(s.dir, name, "2")
		s.put(filepath.Join(name, "1", "1.xml"), "<r>first</r>")
		s.put(filepath.Join(name, "2", "1.xml"), "<r>second</r>")
		configure := func(sources ...eventlog.SourceConfig) {
			t.Helper()
			sets := []eventlog.SetConfig{{Name: name, Content: event.Mirror, Whole: true, Sources: sources}}
			_, err := s.log.Configure(ctx, sets)
			s.must(err)
			s.src.Set, s.src.ID = name, sets[0].Sources[0].ID
		}
		one := eventlog.SourceConfig{Name: "records", Kind: harvest.Folder, URL: "file://" + first + "/"}
		two := eventlog.SourceConfig{Name: "records", Kind: harvest.Folder, URL: "file://" + second + "/"}
		configure(one)
		s.at(first)
		s.run()
		if one.Name = x.was; x.was != "" {
			configure(two, one)
		} else {
			one.Name = "gone"
			configure(one)
			configure(two)
		}
		s.at(second)
		s.run()
		if _, ok := s.live()["urn:x-bridge:folder:"+name+":"+x.id]; !ok {
			t.Errorf("the set has %v, want %s", s.live(), x.id)
		}
	}
}

// What cannot be looked at behind a link may be there, and is not deleted.
func TestFolderLinkUnread(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	for _, name := range []string{"a.xml", "b.xml", ".store/c.xml"} {
		s.put(name, "<r/>")
	}
	s.must(os.Symlink(".store/c.xml", filepath.Join(s.dir, "c.xml")))
	s.is("at first", "created a.xml, created b.xml, created c.xml", s.run(), "")
	store := filepath.Join(s.dir, ".store")
	s.must(os.Chmod(store, 0))
	t.Cleanup(func() { s.must(os.Chmod(store, 0o700)) })
	s.is("what the link leads to cannot be looked at", "", s.run(), "c.xml: ")
}

// What is missing because a disk is, or cannot be looked at, is not deleted.
func TestFolderGone(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	for i := range 30 {
		s.put(fmt.Sprintf("%02d.xml", i), "<r/>")
	}
	s.run()
	s.news()
	away := s.dir + ".away"
	s.must(os.Rename(s.dir, away))
	if _, err := s.try(harvest.Options{}); err == nil || !strings.Contains(err.Error(), "is that mounted?") || s.news() != "" {
		t.Fatalf("the folder is missing: %v", err)
	}
	s.must(os.Mkdir(s.dir, 0o755)) // where it was mounted
	s.is("an empty folder", "", s.run(), "30 of 30 records")
	s.later = 48 * time.Hour
	s.is("an empty folder for days", "", s.run(), "30 of 30 records")
	s.must(os.Remove(s.dir))
	s.must(os.Rename(away, s.dir))
	s.is("the folder is back", "", s.run(), "")
	s.later = 0
	for i := range 12 {
		s.must(os.Remove(filepath.Join(s.dir, fmt.Sprintf("%02d.xml", i))))
	}
	s.is("many at once", "", s.run(), "12 of 30 records")
	s.later = 2 * time.Hour
	s.run()
	if got := s.news(); strings.Count(got, "deleted") != 12 {
		t.Errorf("when they were held long enough: %q", got)
	}
	s.must(os.Remove(filepath.Join(s.dir, "20.xml")))
	s.is("one alone", "deleted 20.xml", s.run(), "")
}

// What is no file is not taken, and keeps nobody waiting.
func TestFolderOfOddities(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	s.put("a.xml", "<r/>")
	s.put(strings.Repeat("d/", 10)+"deep.xml", "<r/>")
	s.put("sub/target.xml", "<r>target</r>")
	s.put("empty.xml", "")
	s.put("big.bin", strings.Repeat("x", 2000))
	s.src.Limits.Record = 1000
	s.must(syscall.Mkfifo(filepath.Join(s.dir, "pipe.xml"), 0o644))
	for name, to := range map[string]string{"in.xml": "sub/target.xml", "out.xml": "/etc/passwd", "up": "..", "loop": ".", "dead.xml": "nothing", "self": "self", "pipe2.xml": "pipe.xml"} {
		s.must(os.Symlink(to, filepath.Join(s.dir, name)))
	}
	r := s.run()
	s.is("oddities", "created a.xml, created d/d/d/d/d/d/d/d/d/d/deep.xml, created in.xml, created sub/target.xml", r, "")
	found := map[string]int64{}
	for _, e := range r.Examples {
		found[e.Rule] = e.Count
	}
	if want := map[string]int64{"folder-link": 5, "folder-special": 2, "folder-changing": 1, "A13": 1}; !maps.Equal(found, want) || r.Pending != 1 {
		t.Errorf("reported %v, pending %d; want %v", found, r.Pending, want)
	}
	s.put("empty.xml", "<r/>")
	s.is("no longer empty", "created empty.xml", s.run(), "")
	s.put("a.xml", "")
	s.is("empty now: somebody writes it", "", s.run(), "")
}

// What a file is its name says, and of XML its root element.
func TestFolderTypes(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	s.put("a.xml", `<?xml version="1.0"?><mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title>A title</title></titleInfo></mods>`)
	s.put("b.xml", `<feed xmlns="http://www.w3.org/2005/Atom"/>`)
	s.put("c", `<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>`)
	s.put("d.xml", `<r>`)
	s.put("e.pdf", `%PDF`)
	s.put("f", `?`)
	s.run()
	got := map[string]string{}
	for ev, err := range s.log.Live(context.Background(), "main", math.MaxInt64) {
		s.must(err)
		got[ev.Record[strings.LastIndexByte(ev.Record, ':')+1:]] = ev.Representations[0].Type + " " + ev.Representations[0].Profile + " " + ev.Title
	}
	want := map[string]string{"a.xml": "application/xml http://www.loc.gov/mods/v3 A title", "b.xml": "application/atom+xml http://www.w3.org/2005/Atom ", "c": "application/rdf+xml http://www.w3.org/1999/02/22-rdf-syntax-ns# ",
		"d.xml": "application/xml  ", "e.pdf": "application/pdf  ", "f": "application/octet-stream  "}
	if !maps.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	s.news()
	s.src.Selection = translate.Selection{Formats: []string{"application/xml"}}
	s.is("other formats", "deleted b.xml, deleted c, deleted e.pdf, deleted f", s.run(), "")
}

// Files with one name are the representations of one record, if they lie in one folder.
func TestFolderByName(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Redirect)
	s.src.Folder.ByName = true
	s.put("a/1.xml", "<r/>")
	s.put("a/1.pdf", "%PDF")
	s.put("b/1.xml", "<other/>")
	s.put("2.tar.gz", "x")
	r := s.run()
	if got, want := s.live(), map[string]string{"https://www.example.org/r/1": hashOf("%PDF") + " " + hashOf("<r/>"), "https://www.example.org/r/2.tar": hashOf("x")}; !sameSums(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(r.Examples) != 1 || r.Examples[0].Rule != "folder-names" {
		t.Errorf("reported %+v", r.Examples)
	}
	s.news()
	s.must(os.Remove(filepath.Join(s.dir, "a/1.pdf")))
	s.is("one of two", "updated https://www.example.org/r/1", s.run(), "")
}

func sameSums(a, b map[string]string) bool {
	return maps.EqualFunc(a, b, func(x, y string) bool {
		one, other := strings.Fields(x), strings.Fields(y)
		slices.Sort(one)
		slices.Sort(other)
		return slices.Equal(one, other)
	})
}

// A folder that changes all the while it is read deletes nothing, and ends.
func TestFolderChangesWhileRead(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	for i := range 1100 {
		s.put(fmt.Sprintf("%03d.xml", i), "<r/>")
	}
	s.put("z/0.xml", "<r/>")
	s.run()
	s.news()
	s.must(os.Remove(filepath.Join(s.dir, "007.xml")))
	scans := 0
	r, err := s.try(harvest.Options{Progress: func(p harvest.Progress) {
		if p.Documents == 0 && p.Entries > 0 && p.Entries/1000 > int64(scans) {
			scans++
			s.put(fmt.Sprintf("z/%d.xml", scans), "<r/>") // where the harvest has not looked yet
		}
	}})
	s.must(err)
	if scans != 3 {
		t.Errorf("looked through the folder %d times, want 3", scans)
	}
	s.is("changed all the while", "created z/1.xml, created z/2.xml, created z/3.xml", r, "was changed all the while")
	s.is("left alone", "deleted 007.xml", s.run(), "")
}

// Thousands of files: unchanged they are not opened, and a second round finds one change.
func TestFolderOfThousands(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Mirror)
	for i := range 2_500 {
		s.put(fmt.Sprintf("%d/%d/%d.xml", i%10, i%100, i), fmt.Sprintf("<r>%d</r>", i))
	}
	s.later = 3 * time.Second
	if r := s.run(); r.Created != 2_500 {
		t.Fatalf("created %d: %v", r.Created, r)
	}
	if r := s.run(); !r.NotModified {
		t.Errorf("the same once more: %+v", r)
	}
	s.put("3/3/3.xml", "<r>other</r>")
	asked := 0
	inner := s.src.Client.Transport
	s.src.ContentClient = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		asked++
		return inner.RoundTrip(r)
	})}
	s.news()
	s.is("one of thousands", "updated 3/3/3.xml", s.run(), "")
	if asked != 1 {
		t.Errorf("%d files were read, want 1", asked)
	}
}

// When the log has no room for what is new, the harvest says that alone: nobody else has
// moved its cursor, which the log forgets with what could not be written.
func TestFolderOfFullLog(t *testing.T) {
	t.Parallel()
	s := newShelf(t, t.TempDir(), event.Redirect)
	s.harvest.BatchSize = 30
	name := strings.Repeat("n", 200)
	for n := range 30 {
		s.put(fmt.Sprint("a", n, name), "a")
	}
	s.run()
	_, err := s.try(harvest.Options{Full: true})
	s.must(err)
	s.must(s.log.Do(t.Context(), func(ctx context.Context, tx *eventlog.Tx) error {
		return tx.Exec(ctx, "PRAGMA max_page_count = 1")
	}))
	s.must(os.Rename(s.dir, s.dir+"-moved"))
	s.dir += "-moved"
	s.at(s.dir)
	for n := range 60 {
		s.put(fmt.Sprint("b", n, name), "b")
	}
	if _, err := s.try(harvest.Options{}); !errors.Is(err, eventlog.ErrFull) || errors.Is(err, event.ErrConflict) {
		t.Errorf("with a full log: %v", err)
	}
}
