package publish

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// lists returns the head and the entries of a document, which breaks no rule.
func lists(t testing.TB, p *Publisher, path string) (*resourcesync.Document, []resourcesync.Entry) {
	t.Helper()
	data, _ := get(t, p, path, false)
	if int64(len(data)) > resourcesync.MaxBytes {
		t.Errorf("%s has %d bytes", path, len(data))
	}
	r := resourcesync.NewReader(bytes.NewReader(data), resourcesync.ReadOptions{URL: base + path, Strict: strings.Contains(path, "-archive"),
		Report: func(q resourcesync.Problem) { t.Errorf("%s: %v", path, q) }})
	var entries []resourcesync.Entry
	for {
		e, err := r.Next()
		if err != nil {
			break
		}
		entries = append(entries, *e)
	}
	return r.Document(), entries
}

// archived returns the Change Lists that the archive names, in order, from its parts if
// it has some. There is no archive without entries.
func archived(t testing.TB, p *Publisher, set string) (found []resourcesync.Entry) {
	t.Helper()
	path := setPath(set, "changelist-archive.xml")
	_, capabilities := lists(t, p, setPath(set, "capabilitylist.xml"))
	named := slices.ContainsFunc(capabilities, func(e resourcesync.Entry) bool {
		return e.Metadata.Capability == resourcesync.ChangeListArchive && e.Loc == base+path
	})
	if _, err := p.Document(t.Context(), path, false); named != (err == nil) || err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatalf("the Capability List names the archive: %t, but: %v", named, err)
	}
	if !named {
		return nil
	}
	head, entries := lists(t, p, path)
	if head.Capability != resourcesync.ChangeListArchive || head.Up() != base+setPath(set, "capabilitylist.xml") || len(entries) == 0 {
		t.Fatalf("%s: %+v, %d entries", path, head, len(entries))
	}
	if !head.Index {
		return entries
	}
	for _, part := range entries {
		head, entries := lists(t, p, strings.TrimPrefix(part.Loc, base))
		if head.Capability != resourcesync.ChangeListArchive || head.Link(resourcesync.RelIndex) != base+path || head.Index || len(entries) == 0 ||
			part.Metadata.From != entries[0].Metadata.From || !part.Metadata.Until.IsZero() && part.Metadata.Until != entries[len(entries)-1].Metadata.Until {
			t.Fatalf("%s in the index: %+v; itself %+v with %d entries", part.Loc, part.Metadata, head, len(entries))
		}
		found = append(found, entries...)
	}
	return found
}

// Every Change List stands in the index or in the archive, whatever the log has grown
// to; no document has more entries than it may; what is final stays byte for byte.
func TestArchiveLaw(t *testing.T) {
	testenv.Heavy(t)
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(1, 4).Draw(rt, "entries of a document")
		l := history(rapid.IntRange(1, 3).Draw(rt, "events of a segment"), event.Mirror)
		p := newPublisher(t, l)
		p.limits.Entries = most
		final := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			l.fill("main", rapid.IntRange(0, 20).Draw(rt, "events"))
			_, indexed := lists(t, p, "/sets/main/changelist-index.xml")
			all := append(archived(t, p, "main"), indexed...)
			if len(indexed) > most {
				t.Fatalf("the index has %d entries", len(indexed))
			}
			border := resourcesync.Micros(created.Time())
			for i, e := range all {
				if e.Loc != base+changeListPath("main", i+1) || e.Metadata.From != border || e.Metadata.Until.IsZero() != (i == len(all)-1) {
					t.Fatalf("list %d: %+v after %s", i+1, e, border)
				}
				border = e.Metadata.Until
			}
			if n := len(l.sets["main"].segments); len(all) != n {
				t.Fatalf("%d of %d segments are named", len(all), n)
			}
			set, segments, err := p.Segments(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range planChangeListArchive(set, segments, most) {
				if _, entries := lists(t, p, it.Path); len(entries) > most && it.Kind != ChangeListArchiveIndex {
					t.Fatalf("%s has %d entries", it.Path, len(entries))
				}
				data, meta := get(t, p, it.Path, false)
				if before, ok := final[it.Path]; ok && before != string(data) || ok && !meta.Immutable {
					t.Fatalf("%s has changed", it.Path)
				}
				if meta.Immutable {
					final[it.Path] = string(data)
				}
			}
			if checks, err := p.VerifyArchives(t.Context(), "main"); err != nil || len(checks) != len(final) {
				t.Fatalf("%d full parts are verified, %v; there are %d", len(checks), err, len(final))
			}
		}
	})
}

// The forms of an archive, to be looked at.
func TestGoldenArchives(t *testing.T) {
	l := history(2, event.Mirror).fill("main", 12)
	for _, c := range []struct {
		name  string
		most  int
		paths []string
	}{
		{"one", 4, []string{"capabilitylist.xml", "changelist-index.xml", "changelist-archive.xml"}},
		{"parts", 2, []string{"changelist-archive.xml", "changelist-archive/1.xml", "changelist-archive/2.xml", "changelist-archive/3.xml"}},
	} {
		p := newPublisher(t, l)
		p.limits.Entries = c.most
		for _, path := range c.paths {
			got, _ := get(t, p, setPath("main", path), false)
			testenv.Golden(t, *update, filepath.Join("testdata", "golden", "archive_"+c.name+"_"+strings.ReplaceAll(path, "/", "_")), got)
		}
		for _, path := range []string{"changelist-archive/0.xml", "changelist-archive/4.xml", "changelist-archive/01.xml", "changelist-archive/", "changelist-archive"} {
			if _, err := p.Document(t.Context(), setPath("main", path), false); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v, want ErrNotFound", path, err)
			}
		}
	}
}

// Lists of an epoch that has ended are named nowhere, and the numbers of parts go on, so
// that no URL gets other bytes.
func TestArchiveAfterALoss(t *testing.T) {
	l := history(1, event.Mirror).fill("main", 12)
	p := newPublisher(t, l)
	p.limits.Entries = 3
	before, _ := get(t, p, "/sets/main/changelist-archive/1.xml", false)
	s := l.sets["main"]
	s.set.Created = s.set.LastObserved
	p = newPublisher(t, l)
	p.limits.Entries = 3
	if got := archived(t, p, "main"); len(got) != 0 {
		t.Errorf("%d lists are archived, %v", len(got), got)
	}
	l.fill("main", 12)
	got := archived(t, p, "main")
	if want := base + changeListPath("main", 13); len(got) == 0 || got[0].Loc != want {
		t.Errorf("the archive begins with %v, want %s", got, want)
	}
	if _, err := p.Document(t.Context(), "/sets/main/changelist-archive/1.xml", false); !errors.Is(err, ErrNotFound) || len(before) == 0 {
		t.Errorf("part 1 is there: %v", err)
	}
}

// tenYears is a log with 60,000 closed segments.
func tenYears() *sliceLog {
	l := history(1, event.Mirror)
	s := l.sets["main"]
	const n = 60_000
	s.segments = make([]event.Segment, n+1)
	for i := range s.segments {
		from := created + event.Micros(i)*5_256_000_001
		s.segments[i] = event.Segment{N: i + 1, From: from, Until: from + 5_256_000_001, First: event.Seq(i + 1), Last: event.Seq(i + 1), Events: 1, Entries: 1, Weight: 1000}
	}
	s.segments[n] = event.Segment{N: n + 1, From: s.segments[n-1].Until}
	l.seq = n
	s.set.Last, s.set.LastObserved = n, s.segments[n].From
	return l
}

// Ten years of segments: no document is too large, and a request costs no work for each
// segment of the log.
func TestTenYearsOfSegments(t *testing.T) {
	testenv.Heavy(t)
	l := tenYears()
	p := newPublisher(t, l)
	_, indexed := lists(t, p, "/sets/main/changelist-index.xml")
	all := append(archived(t, p, "main"), indexed...)
	if len(indexed) != resourcesync.MaxEntries || len(all) != 60_001 || all[0].Loc != base+changeListPath("main", 1) {
		t.Errorf("the index has %d entries, with the archive %d", len(indexed), len(all))
	}
	for i, e := range all {
		if want := fmt.Sprintf("%s/sets/main/changelist/%d.xml", base, i+1); e.Loc != want {
			t.Fatalf("entry %d is %s", i+1, e.Loc)
		}
	}
	l.fill("main", 1)
	read := l.rows
	for range 10 {
		get(t, p, "/sets/main/changelist-index.xml", false)
		get(t, p, "/sets/main/changelist-archive.xml", true)
		get(t, p, "/sets/main/capabilitylist.xml", true)
	}
	if n := l.rows - read; n > 3 {
		t.Errorf("30 requests after an event read %d segments", n)
	}
}

func BenchmarkTenYearsOfSegments(b *testing.B) {
	l := tenYears()
	p := newPublisher(b, l)
	for _, path := range []string{"capabilitylist.xml", "changelist-index.xml", "changelist-archive.xml", "changelist.xml", "changelist/30000.xml"} {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				if _, err := p.Document(b.Context(), "/sets/main/"+path, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("index, sent", func(b *testing.B) {
		for b.Loop() {
			get(b, p, "/sets/main/changelist-index.xml", false)
		}
	})
}
