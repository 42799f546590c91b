package publish

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

const hour = event.Micros(time.Hour / time.Microsecond)

// overDays logs a change of some records every few hours, each in a segment of its own.
func overDays(events int, every event.Micros, content event.Content) *sliceLog {
	l := history(1, content)
	for i := range events {
		kind := event.Created
		switch {
		case i >= 14 && i%7 == 3 && i/7%2 == 0:
			kind = event.Deleted
		case i >= 14 && i%7 == 3 && i/7%2 == 1, i < 7:
		case i >= 7:
			kind = event.Updated
		}
		e := sample(kind, i%7, i)
		if content == event.Reference {
			e.Loc = "https://origin.example/data/" + strconv.Itoa(i%7)
		}
		e.Observed = l.sets["main"].set.LastObserved + every
		l.add("main", e)
	}
	return l
}

// keep says how many lists the set keeps.
func (l *sliceLog) keep(lists int, for_ event.Micros) {
	s := &l.sets["main"].set
	s.KeepLists, s.KeepListsFor = lists, for_
}

// keptDocuments returns the documents of the kept lists by path, and checks what the
// archive and the indexes say of them.
func keptDocuments(t testing.TB, p *Publisher, l *sliceLog) map[string]string {
	t.Helper()
	documents := map[string]string{}
	_, archive := lists(t, p, "/sets/main/resourcelist-archive.xml")
	for _, kept := range archive {
		path := strings.TrimPrefix(kept.Loc, base)
		head, parts := lists(t, p, path)
		if head.Capability != resourcesync.ResourceList || !head.Index || head.At != kept.Metadata.At || head.Up() != base+"/sets/main/capabilitylist.xml" {
			t.Fatalf("%s: %+v, in the archive %+v", path, head, kept)
		}
		data, meta := get(t, p, path, false)
		documents[path] = string(data)
		var locs []string
		for _, part := range parts {
			path := strings.TrimPrefix(part.Loc, base)
			own, entries := lists(t, p, path)
			if own.At != head.At || own.Link(resourcesync.RelIndex) != kept.Loc || own.Index {
				t.Fatalf("%s: %+v in %+v", path, own, head)
			}
			for _, e := range entries {
				locs = append(locs, e.Loc)
			}
			packed, of := get(t, p, path, true)
			plain, _ := get(t, p, path, false)
			documents[path], documents[path+".gz"] = string(plain), string(packed)
			if !of.Immutable || !meta.Immutable {
				t.Fatalf("%s may change", path)
			}
		}
		slices.Sort(locs)
		if want := playedUpTo(t, p, l, head.At); !slices.Equal(locs, want) {
			t.Fatalf("the list of %s has %v, want %v", head.At, locs, want)
		}
	}
	return documents
}

// playedUpTo returns what lives at a moment according to the Change Lists.
func playedUpTo(t testing.TB, p *Publisher, l *sliceLog, at resourcesync.Datetime) (locs []string) {
	t.Helper()
	live := map[string]bool{}
	for _, s := range l.sets["main"].segments {
		_, changes := lists(t, p, changeListPath("main", s.N))
		for _, e := range changes {
			if !e.Metadata.Datetime.Time().After(at.Time()) {
				live[e.Loc] = e.Metadata.Change != resourcesync.Deleted
			}
		}
	}
	for loc, lives := range live {
		if lives {
			locs = append(locs, loc)
		}
	}
	slices.Sort(locs)
	return locs
}

// The lists that a set keeps are those that the rule names, and show what was there.
// Their files may be deleted: the same bytes are made again. Exactly what is no longer
// kept is removed.
func TestKeptLists(t *testing.T) {
	testenv.Heavy(t)
	for _, content := range []event.Content{event.Mirror, event.Reference} {
		for _, most := range []int{3, 100} { // in parts, and in one
			t.Run(content.String()+strconv.Itoa(most), func(t *testing.T) {
				dir := t.TempDir()
				l := overDays(20, 7*hour, content)
				p := publisherIn(t, l, dir)
				p.limits.Entries = most
				if _, err := p.Document(t.Context(), "/sets/main/resourcelist-archive.xml", false); !errors.Is(err, ErrNotFound) {
					t.Fatalf("a set that keeps nothing has an archive: %v", err)
				}
				l.keep(3, 0)
				reopen := func() *Publisher {
					p := publisherIn(t, l, dir)
					p.limits.Entries = most
					return p
				}
				p = reopen()
				_, archive := lists(t, p, "/sets/main/resourcelist-archive.xml")
				var notReady *NotReadyError
				if _, err := p.Document(t.Context(), strings.TrimPrefix(archive[0].Loc, base), false); !errors.As(err, &notReady) || len(archive) != 3 {
					t.Fatalf("%d lists, the first one before it is made: %v", len(archive), err)
				}
				must(t, p.KeepLists(t.Context(), "main"))
				before := keptDocuments(t, p, l)
				checks, err := p.VerifyLists(t.Context(), "main")
				if err != nil || len(checks) == 0 || slices.ContainsFunc(checks, func(c Check) bool { return c.Kept != 1 || len(c.Damaged) > 0 }) {
					t.Fatalf("verified: %+v, %v", checks, err)
				}

				// All of it, one file, and one file damaged.
				folder := filepath.Join(dir, "snapshots", "main", pastFolder)
				files, _ := filepath.Glob(filepath.Join(folder, "*", "1.xml.gz"))
				for _, spoil := range []func() error{
					func() error { return os.RemoveAll(dir + "/cache") },
					func() error { return errors.Join(os.RemoveAll(folder), os.RemoveAll(dir+"/cache")) },
					func() error { return os.Remove(files[1]) },
				} {
					for _, again := range []func() *Publisher{func() *Publisher { return p }, reopen} {
						must(t, spoil())
						p := again()
						must(t, p.KeepLists(t.Context(), "main"))
						now := keptDocuments(t, p, l)
						for path, was := range before {
							if now[path] != was {
								t.Fatalf("%s has other bytes when it is made again", path)
							}
						}
					}
				}
				must(t, os.WriteFile(files[0], []byte("x"), 0o666))
				if checks, err := p.VerifyLists(t.Context(), "main"); err != nil || !slices.ContainsFunc(checks, func(c Check) bool { return len(c.Damaged) == 1 }) {
					t.Errorf("verify finds no damage: %+v, %v", checks, err)
				}
				must(t, p.KeepLists(t.Context(), "main"))
				keptDocuments(t, p, l)

				// Two days later other lists are kept; of those that are not any more, the newest
				// may still be read.
				for range 7 {
					e := sample(event.Updated, 0, 90)
					e.Observed = l.sets["main"].set.LastObserved + 7*hour
					if content == event.Reference {
						e.Loc = "https://origin.example/data/0"
					}
					l.add("main", e)
				}
				must(t, p.KeepLists(t.Context(), "main"))
				keptDocuments(t, p, l)
				set, segments, _ := p.Segments(t.Context(), "main")
				kept, dropped := keptLists(set, segments)
				want := []string{strconv.FormatInt(int64(dropped.Last), 10)}
				for _, s := range kept {
					want = append(want, strconv.FormatInt(int64(s.Last), 10))
				}
				entries, _ := os.ReadDir(folder)
				var have []string
				for _, e := range entries {
					have = append(have, e.Name())
				}
				slices.Sort(want)
				if !slices.Equal(have, want) {
					t.Errorf("the folder has %v, want %v", have, want)
				}
				gone := 0
				for path := range before {
					seq := strings.TrimSuffix(strings.Split(strings.TrimPrefix(path, "/sets/main/resourcelist-archive/"), "/")[0], ".xml")
					if strings.HasSuffix(path, ".gz") {
						continue
					}
					switch _, err := p.Document(t.Context(), path, false); {
					case slices.Contains(want, seq) && err != nil:
						t.Error(err)
					case !slices.Contains(want, seq) && !errors.Is(err, ErrNotFound):
						t.Errorf("%s is still there: %v", path, err)
					case err != nil:
						gone++
					}
				}
				if gone == 0 {
					t.Error("nothing was removed")
				}
				for _, name := range []string{"0.xml", "1.xml", "01.xml", "x", "", want[0] + "/99.xml", want[0] + "/0.xml"} {
					if _, err := p.Document(t.Context(), "/sets/main/resourcelist-archive/"+name, false); !errors.Is(err, ErrNotFound) {
						t.Errorf("%s: %v, want ErrNotFound", name, err)
					}
				}
			})
		}
	}
}

// keptFolders returns the lists of the past that a set has, oldest first.
func keptFolders(t testing.TB, p *Publisher) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.setDir("main"), pastFolder))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Lists of the past wait for the Resource Lists of all sets; one at a time is made.
func TestKeptListsComeLast(t *testing.T) {
	l := overDays(20, 7*hour, event.Mirror)
	l.keep(3, 0)
	l.make("zoo", event.Mirror, 100).many("zoo", 9)
	p := small(t, l, t.TempDir())
	var made []string
	p.setFault(func(op, path string, step func() error) error {
		if op == "rename" && strings.HasPrefix(path, p.opts.SnapshotDir) {
			rel, _ := filepath.Rel(p.opts.SnapshotDir, path)
			made = append(made, filepath.Dir(rel))
		}
		return step()
	})
	plans, again := map[string]*schedule{}, map[string]time.Time{}
	for i, want := range [][]string{{"main", "zoo", "main/past"}, {"main/past"}, {"main/past"}, nil} {
		made = nil
		must(t, p.checkSets(t.Context(), plans, again))
		if slices.Sort(made[:max(len(made)-1, 0)]); !slices.Equal(made, want) {
			t.Errorf("pass %d made %q, want %q", i+1, made, want)
		}
		if due := len(p.wakeups) == 1; due != (i < 2) {
			t.Errorf("pass %d: another one is due: %v", i+1, due)
		}
		for len(p.wakeups) > 0 {
			<-p.wakeups
		}
	}
}

// On a full disk no list is made, also none after the first, and those that are not kept
// any more go.
func TestKeptListsOnAFullDisk(t *testing.T) {
	l, dir := overDays(20, 7*hour, event.Mirror), t.TempDir()
	l.keep(3, 0)
	p := publisherIn(t, l, dir)
	p.opts.Full = func() error {
		if len(keptFolders(t, p)) > 0 {
			return errFull
		}
		return nil
	}
	if err := p.KeepLists(t.Context(), "main"); !errors.Is(err, errFull) || len(keptFolders(t, p)) != 1 {
		t.Fatalf("%v; made %v", err, keptFolders(t, p))
	}
	p.opts.Full = nil
	must(t, p.KeepLists(t.Context(), "main"))
	all := keptFolders(t, p)
	l.keep(1, 0)
	p = publisherIn(t, l, dir)
	p.opts.Full = func() error { return errFull }
	must(t, p.checkSets(t.Context(), map[string]*schedule{}, map[string]time.Time{}))
	if left := keptFolders(t, p); len(all) != 3 || !slices.Equal(left, all[1:]) { // the last and the one before
		t.Errorf("left %v of %v", left, all)
	}
}

var errFull = errors.New("the disk is full")

// A snapshot that two have read at the same time is there once.
func TestSnapshotIsThereOnce(t *testing.T) {
	var se series
	for _, seq := range []event.Seq{3, 5, 4, 5, 3} {
		se.add(&storedSnapshot{Snapshot: Snapshot{Seq: seq}})
	}
	var have []int64
	for _, s := range se.snapshots() {
		have = append(have, s.number())
	}
	if !slices.Equal(have, []int64{5, 4, 3}) {
		t.Errorf("have %v", have)
	}
}

// The rule against a model of it: of each day the first border, as many as are to be
// kept, none older than allowed, without gaps.
func TestKeptListsLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var segments []event.Segment
		from := created
		for i := range rapid.IntRange(1, 40).Draw(t, "segments") {
			until := from + event.Micros(rapid.IntRange(1, 40).Draw(t, "hours"))*hour
			segments = append(segments, event.Segment{N: i + 1, From: from, Until: until, First: event.Seq(i + 1), Last: event.Seq(i + 1), Events: 1})
			from = until
		}
		closed := slices.Clone(segments)
		segments = append(segments, event.Segment{N: len(segments) + 1, From: from})
		set := event.Set{Name: "main", Created: created, KeepLists: rapid.IntRange(0, 5).Draw(t, "lists"), KeepListsFor: event.Micros(rapid.IntRange(0, 9).Draw(t, "days")) * 24 * hour}
		first := map[string]event.Segment{}
		for _, s := range slices.Backward(closed) {
			first[s.Until.Time().UTC().Format(time.DateOnly)] = s
		}
		days := []string{}
		for d := range first {
			days = append(days, d)
		}
		slices.Sort(days)
		slices.Reverse(days)
		var want []event.Segment
		var next *event.Segment
		for _, d := range days {
			s := first[d]
			if len(want) == set.KeepLists && set.KeepLists > 0 || set.KeepListsFor > 0 && from-s.Until > set.KeepListsFor {
				next = &s
				break
			}
			want = append([]event.Segment{s}, want...)
		}
		if set.KeepLists == 0 && set.KeepListsFor == 0 {
			want, next = nil, nil
		}
		kept, dropped := keptLists(set, segments)
		if !slices.Equal(kept, want) || (dropped == nil) != (next == nil) || dropped != nil && *dropped != *next {
			t.Fatalf("kept %v and %v, want %v and %v", kept, dropped, want, next)
		}
	})
}

// Run keeps the lists that become due, and a list that is being read is made again.
func TestRunKeepsLists(t *testing.T) {
	l := overDays(20, 7*hour, event.Mirror)
	l.keep(2, 0)
	p := newPublisher(t, l)
	p.opts.Poll = time.Millisecond
	end := run(p)
	defer end()
	_, archive := lists(t, p, "/sets/main/resourcelist-archive.xml")
	for _, kept := range archive {
		path := strings.TrimPrefix(kept.Loc, base)
		for {
			_, err := p.Document(t.Context(), path, false)
			if err == nil {
				break
			}
			var notReady *NotReadyError
			if !errors.As(err, &notReady) {
				t.Fatal(err)
			}
		}
	}
}
