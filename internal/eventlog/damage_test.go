package eventlog_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestFlippedBytes: a byte that is flipped anywhere in the database is found by
// Verify or by whoever reads, or has changed nothing; never is another event read
// than was written. One in what a row holds is always found.
func TestFlippedBytes(t *testing.T) {
	testenv.Heavy(t)
	original := damageable(t)
	file, err := os.ReadFile(filepath.Join(original, eventlog.FileName))
	if err != nil {
		t.Fatal(err)
	}
	want, events := read(t, original), eventsOf(t, original)
	flip := func(what string, at int, bit byte) (found bool) {
		t.Helper()
		folder := t.TempDir()
		file[at] ^= bit
		err := errors.Join(os.WriteFile(filepath.Join(folder, eventlog.FileName), file, 0o600), os.Link(filepath.Join(original, eventlog.HeadName), filepath.Join(folder, eventlog.HeadName)))
		file[at] ^= bit
		if err != nil {
			t.Fatal(err)
		}
		what = fmt.Sprintf("%s: byte %d, bit %08b", what, at, bit)
		served(t, folder, events, what)
		got, findings, err := survey(folder)
		if found = err != nil || len(findings) > 0; !found && got != want {
			t.Errorf("%s: other content is read, and nobody noticed", what)
		}
		return found
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range testenv.Rounds(t, 60, 1000) {
		at := random.IntN(len(file))
		if i%3 == 0 {
			at = random.IntN(int(binary.BigEndian.Uint16(file[16:]))) // the first page: the header and the schema
		}
		flip("anywhere", at, 1<<random.IntN(8))
	}
	for column, places := range stored(t, original, file) {
		if len(places) == 0 {
			t.Errorf("%s: none of its values is found in the file", column)
		}
		for _, at := range places {
			if !flip(column, at, 1<<random.IntN(8)) {
				t.Errorf("%s: byte %d was flipped, and nobody noticed", column, at)
			}
		}
	}
}

// stored returns the places of a few values of each column in the file: of those
// that stand there once, so that no index, no free page and no other row has them
// too.
func stored(t *testing.T, folder string, file []byte) map[string][]int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, eventlog.FileName)+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	out := map[string][]int{}
	for _, column := range []string{"sets.feed", "source.memory", "document.url", "event.body", "record.source_state", "presence.source_state", "presence.suppressed",
		"regressed.observation", "pending.observation", "quarantine.input", "harvest.error"} {
		table, name, _ := strings.Cut(column, ".")
		out[column] = nil
		var all string // in hexadecimal
		must(t, db.QueryRowContext(t.Context(), "SELECT coalesce(group_concat(hex("+name+"), ' '), '') FROM (SELECT "+name+" FROM "+table+" ORDER BY 1 DESC LIMIT 200)").Scan(&all))
		for word := range strings.FieldsSeq(all) {
			value, err := hex.DecodeString(word)
			if err != nil {
				t.Fatal(err)
			}
			if len(out[column]) < 3 && bytes.Count(file, value) == 1 {
				out[column] = append(out[column], bytes.Index(file, value)+len(value)/2)
			}
		}
	}
	return out
}

// eventsOf returns the events of all sets together, and of each.
func eventsOf(t *testing.T, folder string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	l, err := eventlog.Open(context.Background(), folder, eventlog.Options{ReadOnly: true})
	if err != nil {
		return nil
	}
	defer l.Close()
	for _, set := range []string{"", "main", "mirror"} {
		if events, err := eventsIn(l, set); err == nil {
			out[set] = events
		}
	}
	return out
}

// served fails when a damaged copy serves other events without an error, whether
// or not anybody has called Verify.
func served(t *testing.T, folder string, want map[string][]string, what string) {
	t.Helper()
	for set, got := range eventsOf(t, folder) {
		if !slices.Equal(got, want[set]) {
			t.Errorf("%s: of set %q other events are served, %d instead of %d", what, set, len(got), len(want[set]))
		}
	}
}

// survey opens a copy and returns all that can be read of it.
func survey(folder string) (content string, findings []string, err error) {
	ctx := context.Background()
	l, err := eventlog.Open(ctx, folder, eventlog.Options{ReadOnly: true})
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.Verify(ctx, func(f eventlog.Finding) { findings = append(findings, f.Where+": "+f.What) }); err != nil {
		return "", findings, err
	}
	content, err = everything(ctx, l)
	return content, findings, err
}

func read(t *testing.T, folder string) string {
	t.Helper()
	content, findings, err := survey(folder)
	if err != nil || len(findings) > 0 {
		t.Fatalf("the original: %v, %q", err, findings)
	}
	return content
}

// everything is all that the log answers.
func everything(ctx context.Context, l *eventlog.Log) (string, error) {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	events, err := all(l)
	if err != nil {
		return "", err
	}
	sets, err := l.Sets(ctx)
	if err := errors.Join(err, enc.Encode(events), enc.Encode(sets)); err != nil {
		return "", err
	}
	for _, s := range sets {
		segments, err := l.Segments(ctx, s.Name)
		sources, serr := l.Sources(ctx, s.Name)
		if err := errors.Join(err, serr, enc.Encode(segments), enc.Encode(sources)); err != nil {
			return "", err
		}
		for ev, err := range l.Live(ctx, s.Name, s.Last) {
			if err := errors.Join(err, enc.Encode(ev)); err != nil {
				return "", err
			}
		}
		for _, src := range sources {
			pending, err := l.Pending(ctx, src.ID, math.MaxInt64, 0, 1000)
			var backs []event.WaitingItem
			berr := l.Regressed(ctx, src.ID, math.MaxInt, func(kept []event.WaitingItem) error {
				backs = append(backs, kept...)
				return nil
			})
			held, herr := l.Held(ctx, src.ID, true, math.MaxInt64)
			harvests, hierr := l.Harvests(ctx, src.ID, 0, 0)
			if err := errors.Join(err, berr, herr, hierr, enc.Encode(pending), enc.Encode(backs), enc.Encode(held), enc.Encode(harvests)); err != nil {
				return "", err
			}
		}
	}
	days, err := l.HarvestDays(ctx, 0)
	if err := errors.Join(err, enc.Encode(days)); err != nil {
		return "", err
	}
	hosts, err := l.Hosts(ctx)
	if err := errors.Join(err, enc.Encode(hosts)); err != nil {
		return "", err
	}
	pauses, err := l.Pauses(ctx)
	if err := errors.Join(err, enc.Encode(pauses)); err != nil {
		return "", err
	}
	told, err := l.HubTopics(ctx)
	subscriptions, serr := l.Subscriptions(ctx)
	if err := errors.Join(err, serr, enc.Encode(told), enc.Encode(subscriptions)); err != nil {
		return "", err
	}
	bad, err := l.Quarantined(ctx, "")
	if err := errors.Join(err, enc.Encode(bad)); err != nil {
		return "", err
	}
	return out.String(), nil
}

// damageable makes a log that has something in every table.
func damageable(t *testing.T) string {
	t.Helper()
	ctx := context.Background()
	folder := t.TempDir()
	l, src := filled(t, folder, event.Reference)
	second, err := l.EnsureSource(ctx, "main", "atompmh", "https://other.example/feed.atom", 1)
	if err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(add(l, src, 0, 400), add(l, second, 300, 200), l.RememberHost(ctx, "other.example", true), l.RememberHost(ctx, "third.example", false)))
	for i := range 5 {
		if _, err := l.DeriveSet(ctx, "maps", fmt.Sprintf("https://maps.example/%d/capabilitylist.xml", i), []string{fmt.Sprintf("maps-%d", i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	older := items(0, 30)
	for i := range older {
		older[i].Modified = older[i].Modified.Add(-time.Hour)
		older[i].Order = older[i].Modified
	}
	describing := items(600, 100)
	for i := range describing {
		describing[i].Links = []event.Link{{Rel: event.RelDescribes, Href: "urn:601", Record: describing[1].Record}, {Rel: event.RelDescribedBy, Href: "urn:0", Record: "urn:0"}}
	}
	gone := items(40, 60)
	for i := range gone {
		gone[i].Deleted, gone[i].Order, gone[i].Modified = true, event.Stamp{}, event.Stamp{}
	}
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "mirror", Content: event.Mirror}))
	third, err := l.EnsureSource(ctx, "mirror", "atompmh", "https://third.example/feed.atom", 0)
	if err != nil {
		t.Fatal(err)
	}
	waiting := items(0, 40)
	for i := range waiting {
		waiting[i].Pending = "503"
	}
	var bad []event.Quarantined
	for i := range 20 {
		bad = append(bad, event.Quarantined{URL: "https://repository.example/feed.atom", Line: i, Rule: "S10", Reason: "neither content nor alternate", Input: fmt.Appendf(nil, "<entry><id>%d</id></entry>", i)})
	}
	for _, in := range []*event.Batch{
		{Source: src, Start: true, Next: []byte("on"), Items: append(older, describing...), Quarantine: bad},
		{Source: src, Next: []byte("on"), Mode: event.ModeAbsent, Items: gone[:20]},
		{Source: src, Next: []byte("on"), Mode: event.ModeHold, Items: gone[20:], Progress: &event.Progress{Mark: event.StampFromNanos(1), Memory: []byte(`{"feed_id":"urn:x"}`), Gap: "gap"}},
		{Source: third, Next: []byte("on"), Items: waiting},
	} {
		p, err := l.Progress(ctx, in.Source)
		if err != nil {
			t.Fatal(err)
		}
		in.Cursor = p.Cursor.Version
		in.Documents = []event.Document{{URL: "https://repository.example/feed.atom"}}
		if _, err := l.Append(ctx, in); err != nil {
			t.Fatal(err)
		}
	}
	for i, source := range []event.SourceID{src, second, third} {
		s := event.Schedule{Next: event.Micros(1e15 + i), Failures: i, Report: []byte(`{"events":1}`), Harvests: 1, Quiet: event.Quiet{Count: 7, First: 1e15, Last: 2e15}}
		row := event.Harvest{Number: 1, Started: 1e15, Ended: 1e15 + 1e6, Result: event.ResultFailed, Documents: 1, Created: 3, Problems: []event.BrokenRule{{Rule: "S2", Count: 4, First: "there"}},
			Error: event.Failure{Text: fmt.Sprintf("harvest %d was refused", i), Kind: "http"}}
		must(t, errors.Join(l.SaveHarvest(ctx, source, s, &row), l.SaveSchedule(ctx, source, s, i > 0)))
	}
	must(t, l.SetPause(ctx, second, &eventlog.Pause{Since: 1e15, Until: 2e15, Reason: "their server moves"}))
	must(t, l.SaveHubTopics(ctx, []eventlog.HubTopic{{Hub: "https://hub.example/", Topic: "https://bridge.example/feed", Tag: "a", Told: 1e15, Since: 2e15, Error: "it is down"}}, nil))
	if err := l.SaveSubscription(ctx, &eventlog.Subscription{Token: "token", Source: second, Base: "https://bridge.example", Hub: "https://hub.example/", Topic: "https://source.example/feed",
		Secret: "secret", Asked: 1e15, Until: 2e15, Due: 3e15, Failures: 1, Error: "it is down", Pushed: 4e15}); err != nil {
		t.Fatal(err)
	}
	sound(t, l)
	closed(t, l)
	return folder
}

// TestLastEventBehind: a log that has later events than it has noted gives their Seqs to
// no others, neither when it is open nor when it is opened.
func TestLastEventBehind(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	if err := errors.Join(add(l, src, 0, 3), l.Exec(ctx, "CREATE TEMP TABLE older AS SELECT last_event, sum FROM log"), add(l, src, 3, 3),
		l.Exec(ctx, "UPDATE log SET (last_event, sum) = (SELECT last_event, sum FROM older)")); err != nil {
		t.Fatal(err)
	}
	if err := add(l, src, 6, 1); err == nil || !strings.Contains(err.Error(), "the last event is recorded as 3, and the log has event 6") {
		t.Errorf("appending: %v", err)
	}
	closed(t, l)
	if l, err := eventlog.Open(ctx, folder, eventlog.Options{}); err == nil || !strings.Contains(err.Error(), "run bridge verify") {
		t.Errorf("opening: %v", err)
		_ = l.Close()
	}
	if l, findings := reader(t, folder); len(findings) != 1 || !strings.Contains(findings[0], "the last event is 6; the log has noted 3") {
		t.Errorf("verify found %q", findings)
	} else {
		closed(t, l)
	}
}

// TestOtherRecordsEvent: nothing is made of the event of another record, to which a
// damaged row leads.
func TestOtherRecordsEvent(t *testing.T) {
	ctx := context.Background()
	l, src := filled(t, t.TempDir(), event.Reference)
	defer l.Close()
	must(t, errors.Join(add(l, src, 0, 9), l.Exec(ctx, "UPDATE record SET seq = 7 WHERE seq = 6")))
	changed := items(5, 1)
	changed[0].Deleted = true
	changed[0].Order = event.StampFromNanos(changed[0].Order.Nanos() + 1)
	_, err := l.Append(ctx, &event.Batch{Source: src, Mode: event.ModeSubmission, Items: changed})
	if err == nil || !strings.Contains(err.Error(), "event 7, which is stored as its last one, is of another record") {
		t.Errorf("got %v", err)
	}
}

// What a walk has seen is lost, or older than what was stored last: the records would count as
// absent. The next process does not go on with that walk, and a walk from the beginning does.
func TestLostPagesOfAWalk(t *testing.T) {
	ctx := context.Background()
	for _, damage := range []string{
		"DELETE FROM seen",
		"UPDATE seen SET bits = (SELECT bits FROM older.seen)",
	} {
		folder := t.TempDir()
		l, src := filled(t, folder, event.Reference)
		must(t, add(l, src, 0, 10))
		older := filepath.Join(t.TempDir(), "older.db")
		must(t, l.Exec(ctx, fmt.Sprintf("VACUUM INTO '%s'", older)))
		must(t, add(l, src, 10, 10))
		must(t, l.Exec(ctx, fmt.Sprintf("ATTACH '%s' AS older", older)))
		must(t, l.Exec(ctx, damage))
		closed(t, l)
		l, src = filled(t, folder, event.Reference)
		if absent, have, err := l.CountAbsent(ctx, src, event.Stamp{}); err == nil || !strings.Contains(err.Error(), "harvest with --full") {
			t.Errorf("%s: %d of %d count as absent: %v", damage, absent, have, err)
		}
		if err := add(l, src, 20, 10); err == nil || !strings.Contains(err.Error(), "harvest with --full") {
			t.Errorf("%s: the walk goes on: %v", damage, err)
		}
		p, err := l.Progress(ctx, src)
		must(t, err)
		_, err = l.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: true, Next: []byte("20"), Documents: []event.Document{{}}, Items: items(0, 20)})
		must(t, err)
		if absent, have, err := l.CountAbsent(ctx, src, event.Stamp{}); err != nil || absent != 0 || have != 20 {
			t.Errorf("%s, then from the beginning: %d of %d are absent, %v", damage, absent, have, err)
		}
		sound(t, l)
		closed(t, l)
	}
}

// A walk that began before its pages were added up goes on, and has them added up from then on.
func TestWalkWithoutSum(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	must(t, add(l, src, 0, 10))
	must(t, l.Exec(ctx, "UPDATE source SET seen_sum = NULL"))
	closed(t, l)
	l, src = filled(t, folder, event.Reference)
	must(t, add(l, src, 10, 10))
	must(t, l.Exec(ctx, "DELETE FROM seen"))
	closed(t, l)
	l, src = filled(t, folder, event.Reference)
	defer closed(t, l)
	if err := add(l, src, 20, 10); err == nil || !strings.Contains(err.Error(), "harvest with --full") {
		t.Errorf("without its pages the walk goes on: %v", err)
	}
}
