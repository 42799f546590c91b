package eventlog_test

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// What each Source has told of the records of its set can be read, page by page or by their
// identifiers: whose report is published, what is pending, and which deletions are held.
func TestSourceRecords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, first := filled(t, t.TempDir(), event.Mirror)
	defer l.Close()
	second, err := l.EnsureSource(ctx, "main", "atompmh", "https://other.example/feed.atom", 1)
	if err != nil {
		t.Fatal(err)
	}
	all := items(0, 5)
	for i := range all {
		all[i].Fetched = true
		all[i].Representations[0].Hash = event.HashOf([32]byte{byte(i)})
		all[i].Claim = all[i].ClaimOf()
	}
	late := items(1, 2) // of which the second one waits for its content
	for i := range late {
		late[i].Title, late[i].Fetched = "As the other one calls it", true
		late[i].Representations[0].Hash = event.HashOf([32]byte{100})
		late[i].Claim = late[i].ClaimOf()
	}
	late[1].Pending, late[1].Fetched = "503", false
	gone := []*event.Item{{Observation: event.Observation{Record: all[0].Record, Deleted: true}}}
	deleted := []*event.Item{{Observation: event.Observation{Record: all[4].Record, Deleted: true, Order: event.StampFromNanos(1_800_000_000_000_000_000)}}}
	for _, in := range []*event.Batch{
		{Source: first, Start: true, Items: all}, {Source: first, Items: deleted}, {Source: first, Mode: event.ModeHold, Items: gone}, {Source: second, Start: true, Items: late},
	} {
		p, err := l.Progress(ctx, in.Source)
		if err != nil {
			t.Fatal(err)
		}
		in.Cursor, in.Next, in.Documents = p.Cursor.Version, []byte("on"), []event.Document{{URL: "https://repository.example/feed.atom"}}
		if _, err := l.Append(ctx, in); err != nil {
			t.Fatal(err)
		}
	}

	type state struct {
		live, known, alive, authority, held bool
		pending, title                      string
	}
	title := func(i int) string { return all[i].Title }
	want := map[event.SourceID][]state{
		first:  {{true, true, true, true, true, "", title(0)}, {true, true, true, true, false, "", title(1)}, {true, true, true, true, false, "", title(2)}, {true, true, true, true, false, "", title(3)}, {false, true, false, true, false, "", ""}},
		second: {{live: true}, {true, true, true, false, false, "", "As the other one calls it"}, {live: true, pending: "503"}, {live: true}, {}},
	}
	of := func(r eventlog.SourceRecord) state {
		if (r.Seq == 0) || r.Alive == r.Observation.Deleted && r.Known || (r.Pending != "") != (r.PendingSince != 0) {
			t.Errorf("%+v", r)
		}
		return state{r.Live, r.Known, r.Alive, r.Authority, r.Held, r.Pending, r.Observation.Title}
	}
	for source, states := range want {
		byRecord, after := map[string]state{}, int64(0)
		for {
			page, err := l.SourceRecords(ctx, source, after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				byRecord[r.Record], after = of(r), r.Number
			}
		}
		for i := range all {
			if got := byRecord[all[i].Record]; got != states[i] {
				t.Errorf("Source %d, record %d: %+v, want %+v", source, i, got, states[i])
			}
		}
		if len(byRecord) != len(all) {
			t.Errorf("%d records", len(byRecord))
		}
		has, err := l.SourceHas(ctx, source, 0, 10, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range has {
			want := byRecord[r.Record]
			if want.title = ""; of(r) != want || !want.alive {
				t.Errorf("Source %d, states only: %+v, want %+v", source, of(r), want)
			}
		}
		alive := 0
		for _, st := range states {
			if st.alive {
				alive++
			}
		}
		if len(has) != alive {
			t.Errorf("Source %d has %d records, want %d", source, len(has), alive)
		}
		some, err := l.SourceRecordsOf(ctx, source, []string{all[3].Record, "urn:none", all[1].Record})
		if err != nil || len(some) != 3 || of(some[0]) != states[3] || some[1].Number != 0 || some[1].Seq != 0 || of(some[2]) != states[1] {
			t.Errorf("%+v, %v", some, err)
		}
	}
	if _, err := l.SourceRecords(ctx, 99, 0, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no Source: %v", err)
	}

	// What is held waits for time, and for a person when that is asked for.
	held, err := l.HeldDeletions(ctx, first, 0, 10)
	if err != nil || len(held) != 1 || held[0].Record != all[0].Record || held[0].Person || held[0].Since == 0 {
		t.Fatalf("held are %+v, %v", held, err)
	}
	if newest, err := l.HeldUntil(ctx, first); err != nil || newest != held[0].Since {
		t.Errorf("held since %v, %v", newest, err)
	}
	if newest, err := l.HeldUntil(ctx, second); err != nil || newest != 0 {
		t.Errorf("the second Source has held since %v, %v", newest, err)
	}
	for range 2 {
		if n, err := l.KeepHeld(ctx, first); err != nil || n != 1 {
			t.Errorf("%d are held, %v", n, err)
		}
	}
	if kept, err := l.HeldDeletions(ctx, first, 0, 10); err != nil || len(kept) != 1 || !kept[0].Person {
		t.Errorf("held are %+v, %v", kept, err)
	}
	if rest, err := l.HeldDeletions(ctx, first, held[0].Number, 10); err != nil || len(rest) > 0 {
		t.Errorf("after the last: %+v, %v", rest, err)
	}

	// Other questions that the log answers of a Source and of its records.
	if due, err := l.DuePending(ctx, 1<<60); err != nil || !slices.Equal(due, []event.SourceID{second}) {
		t.Errorf("due are %v, %v", due, err)
	}
	if due, err := l.DuePending(ctx, held[0].Since-event.Micros(time.Hour/time.Microsecond)); err != nil || len(due) > 0 {
		t.Errorf("due an hour ago are %v, %v", due, err)
	}
	if due, err := l.DuePending(ctx, 1); err != nil || !slices.Equal(due, []event.SourceID{second}) {
		t.Errorf("due for a clock that was set back are %v, %v", due, err)
	}
	if logged, err := l.Logged(ctx, "main", []string{all[0].Record, "urn:none"}); err != nil || len(logged) != 1 || !logged[all[0].Record] {
		t.Errorf("logged are %v, %v", logged, err)
	}
	for i, want := range []event.Presence{event.Present, event.Present, event.Present, event.Present, event.Withdrawn} {
		if holds, err := l.Presence(ctx, first, all[i].Record); err != nil || holds != want {
			t.Errorf("record %d: %v, %v, want %v", i, holds, err, want)
		}
	}
	if holds, err := l.Presence(ctx, second, all[2].Record); err != nil || holds != event.Present { // it waits
		t.Errorf("the pending record: %v, %v", holds, err)
	}
	if kind, err := l.SourceKind(ctx, first); err != nil || kind != "atompmh" {
		t.Errorf("kind %q, %v", kind, err)
	}
	for what, err := range map[string]error{
		"kind": func() error { _, err := l.SourceKind(ctx, 99); return err }(), "set": func() error { _, err := l.Logged(ctx, "none", nil); return err }(), "quarantine": l.Discard(ctx, 99),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no such %s: %v", what, err)
		}
	}

	// The events of a record and of a set can be read backwards.
	back := func(do func(func(*event.Event) bool) error) (kinds string) {
		if err := do(func(e *event.Event) bool { kinds += e.Kind.String() + " "; return strings.Count(kinds, " ") < 2 }); err != nil {
			t.Error(err)
		}
		return kinds
	}
	key := event.Key(all[4].Record)
	for what, row := range map[string]struct{ got, want string }{
		"of a record":       {back(func(do func(*event.Event) bool) error { return l.EventsOf(ctx, "main", key, 0, do) }), "deleted created "},
		"before its last":   {back(func(do func(*event.Event) bool) error { return l.EventsOf(ctx, "main", key, 6, do) }), "created "},
		"before its first":  {back(func(do func(*event.Event) bool) error { return l.EventsOf(ctx, "main", key, 1, do) }), ""},
		"of a set":          {back(func(do func(*event.Event) bool) error { _, err := l.Back(ctx, "main", 0, do); return err }), "deleted created "},
		"before the second": {back(func(do func(*event.Event) bool) error { _, err := l.Back(ctx, "main", 2, do); return err }), "created "},
	} {
		if row.got != row.want {
			t.Errorf("events %s: %q, want %q", what, row.got, row.want)
		}
	}
	sound(t, l)
}
