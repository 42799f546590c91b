package eventlog_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestVerify: whatever is changed behind the log's back is found, and where.
func TestVerify(t *testing.T) {
	testenv.Heavy(t)
	ctx := context.Background()
	original := damageable(t)
	another := func() *eventlog.Log {
		t.Helper()
		folder := filepath.Join(t.TempDir(), "copy")
		must(t, os.CopyFS(folder, os.DirFS(original)))
		l := mustOpen(t, folder, eventlog.Options{})
		return l
	}
	l := another()
	defer func() { _ = l.Close() }()
	const one = " WHERE id = 1 << 40 | 7"
	for _, c := range []struct{ where, text string }{
		{"table sets", "UPDATE sets SET title = 'another' WHERE id = 1"},
		{"table sets", "UPDATE sets SET live = live + 1 WHERE id = 1"},
		{"table sets", "UPDATE sets SET events = events - 1 WHERE id = 1"},
		{"table sets", "UPDATE sets SET last_observed = last_observed + 1 WHERE id = 1"},
		{"table sets", "UPDATE sets SET clock = clock + 1 WHERE id = 1"},
		{"table sets", "UPDATE sets SET base_seq = 3 WHERE id = 1"},
		{"table record", "UPDATE sets SET records = records + 1 WHERE id = 1"},
		{"table source", "UPDATE source SET url = url || 'x' WHERE id = 1"},
		{"table source", "UPDATE source SET rank = 5 WHERE id = 1"},
		{"table source", "UPDATE source SET mark = 2 WHERE id = 1"},
		{"table source", "UPDATE source SET memory = NULL WHERE id = 1"},
		{"table host", "UPDATE host SET public = 1 - public"},
		{"table host", "UPDATE host SET name = 'x.example' WHERE public = 1"},
		{"table document", "UPDATE document SET title = 'x' WHERE id = 1"},
		{"table event", "DELETE FROM document WHERE id = 1"},
		{"table event", "UPDATE document SET id = 1 << 60 WHERE id = 1"},
		{"table event", "UPDATE document SET id = -(SELECT max(id) FROM document WHERE source = 3) WHERE id = 1; UPDATE document SET id = 1 WHERE source = 3; UPDATE document SET id = -id WHERE id < 0"},
		{"table record", "UPDATE record_key SET key = key + 1 WHERE record & 4294967295 = 7; UPDATE recent_key SET key = key + 1 WHERE record & 4294967295 = 7"},
		{"table record", "INSERT OR IGNORE INTO recent_key SELECT * FROM record_key; INSERT OR IGNORE INTO record_key SELECT * FROM recent_key"},
		{"table record", "INSERT OR IGNORE INTO record_key SELECT * FROM recent_key WHERE record = 1 << 32 | 207; INSERT OR IGNORE INTO recent_key SELECT * FROM record_key WHERE record = 1 << 32 | 207; DELETE FROM record_key WHERE record = 1 << 32 | 209; DELETE FROM recent_key WHERE record = 1 << 32 | 209"},
		{"table record", "UPDATE record SET identifier = 'x' WHERE id & 4294967295 = 9"},
		{"table record", "DELETE FROM record WHERE id & 4294967295 = 9"},
		{"table record", "INSERT INTO record (id, identifier, seq) VALUES (3, 'of no set', 0)"},
		{"table event", "UPDATE record SET identifier = 'x' WHERE id & 4294967295 = 9; UPDATE record_key SET key = 3245873640637467413 WHERE record & 4294967295 = 9; UPDATE recent_key SET key = 3245873640637467413 WHERE record & 4294967295 = 9"},
		{"table event", "UPDATE event SET body = zeroblob(length(body))" + one},
		{"table event", "UPDATE event SET kind = 2" + one},
		{"table event", "UPDATE event SET observed = observed + 1" + one},
		{"table event", "UPDATE event SET record = record + 1" + one},
		{"table event", "UPDATE event SET id = id + (1 << 40)" + one},
		{"table event", "UPDATE event SET id = id + (9 << 40)" + one},
		{"table event", "UPDATE event SET id = id + 100000" + one},
		{"table event", "UPDATE log SET last_event = last_event - 1"},
		{"table event", "UPDATE log SET sum = sum + 1"},
		{"table event", "DELETE FROM event" + one},
		{"table sets", "DELETE FROM event WHERE id = (SELECT last_event FROM log)"},
		{"table segment", "UPDATE segment SET from_at = from_at + 1 WHERE n = 2"},
		{"table event", "UPDATE segment SET until_at = until_at - 1 WHERE n = 1 AND set_id = 1"},
		{"table event", "UPDATE segment SET last = last - 1 WHERE n = 1 AND set_id = 1"},
		{"table event", "UPDATE segment SET events = events + 1 WHERE n = 1 AND set_id = 1"},
		{"table event", "UPDATE segment SET entries = entries + 1 WHERE n = 1 AND set_id = 1"},
		{"table event", "UPDATE segment SET weight = weight + 1 WHERE n = 1 AND set_id = 1"},
		{"table event", "UPDATE segment SET start = start + 1 WHERE n = 1 AND set_id = 1"},
		{"table segment", "DELETE FROM segment WHERE n = 2 AND set_id = 1"},
		{"table record", "UPDATE record SET seq = seq + 1 WHERE seq = 7"},
		{"table record", "UPDATE record SET seq = 0 WHERE seq = 7"},
		{"table record", "UPDATE record SET digest = digest + 1 WHERE seq = 7"},
		{"table record", "UPDATE record SET digest = NULL WHERE seq = 7"},
		{"table record", "UPDATE record SET source_state = (SELECT source_state FROM record WHERE seq = 8) WHERE seq = 7"},
		{"table record", "UPDATE record SET source_state = NULL WHERE seq = 7"},
		{"table record", "UPDATE record SET seq = 0, digest = NULL, source_state = NULL WHERE seq = 7"},
		{"table record", "DELETE FROM record WHERE seq = 7"},
		{"table presence", "UPDATE presence SET suppressed = NULL"},
		{"table presence", "UPDATE presence SET source = 3"},
		{"table link", "DELETE FROM link WHERE key = (SELECT min(key) FROM link)"},
		{"table link", "INSERT INTO link SELECT 5, record FROM link LIMIT 1"},
		{"table source_records", "DELETE FROM source_records WHERE source = 1"},
		{"table source_records", "UPDATE source_records SET bits = zeroblob(4100) WHERE source = 1"},
		{"table source_records", "UPDATE source_records SET source = 2, page = 9 WHERE source = 1"},
		{"table loc", "DELETE FROM loc WHERE key = (SELECT min(key) FROM loc)"},
		{"table loc", "DELETE FROM recent_loc WHERE key = (SELECT min(key) FROM recent_loc)"},
		{"table loc", "INSERT OR IGNORE INTO loc SELECT * FROM recent_loc WHERE owner = 1 << 32 | 207; INSERT OR IGNORE INTO recent_loc SELECT * FROM loc WHERE owner = 1 << 32 | 207; DELETE FROM loc WHERE owner = 1 << 32 | 209; DELETE FROM recent_loc WHERE owner = 1 << 32 | 209"},
		{"table loc", "UPDATE loc SET others = others + 1 WHERE key = (SELECT min(key) FROM loc)"},
		{"table pending", "UPDATE pending SET next = 0"},
		{"table pending", "UPDATE pending SET asked = 0"},
		{"table pending", "UPDATE pending SET observation = zeroblob(9)"},
		{"table regressed", "UPDATE regressed SET stamp = stamp + 1"},
		{"table held_deletion", "UPDATE held_deletion SET since = 0"},
		{"table seen", "UPDATE seen SET bits = zeroblob(8196)"},
		{"table seen", "DELETE FROM seen"},
		{"table seen", "UPDATE source SET seen_sum = seen_sum + 1"},
		{"table schedule", "UPDATE schedule SET next = next + 1"},
		{"table schedule", "UPDATE schedule SET source = 99 WHERE source = 2"},
		{"table quarantine", "UPDATE quarantine SET input = zeroblob(3) WHERE id = 2"},
		{"table quarantine", "UPDATE quarantine SET replayed = 9 WHERE id = 2"},
		{"table quarantine", "UPDATE quarantine SET digest = zeroblob(32) WHERE id = 2"},
		{"database schema", "CREATE TABLE unknown (id INTEGER)"},
		{"database schema", "DROP INDEX presence_source"},
	} {
		if err := l.Exec(ctx, c.text); err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		var found []string
		if err := l.Verify(ctx, func(f eventlog.Finding) {
			found = append(found, f.Where)
			if f.What == "" || f.Do == "" {
				t.Errorf("%s: %+v", c.text, f)
			}
		}); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		if !strings.Contains(strings.Join(found, "\n"), c.where) {
			t.Errorf("%s: not found in %s, but in %q", c.text, c.where, found)
		}
		// The next one damages another copy.
		closed(t, l)
		l = another()
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := l.Verify(ended, func(eventlog.Finding) { t.Error("a check that could not be done has found something") }); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// D123: while a log is verified others append, and what they write is checkpointed.
// What is found is the same.
func TestD123_VerifyBesideAppends(t *testing.T) {
	testenv.Heavy(t)
	ctx, folder := context.Background(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	defer closed(t, l)
	must(t, errors.Join(add(l, src, 0, 2000), l.Exec(ctx, "UPDATE event SET body = zeroblob(length(body)) WHERE id = 1 << 40 | 10")))
	found := func(meanwhile func()) (all []string) {
		t.Helper()
		if err := l.Verify(ctx, func(f eventlog.Finding) {
			if len(all) == 0 {
				meanwhile()
			}
			all = append(all, f.Where)
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := found(func() {})
	got := found(func() {
		for i := range 500 {
			must(t, add(l, src, 2000+i*10, 10))
		}
		if st, err := os.Stat(filepath.Join(folder, eventlog.FileName+"-wal")); err != nil || st.Size() > 8<<20 {
			t.Errorf("the write-ahead log has %d bytes, %v", st.Size(), err)
		}
	})
	if !slices.Equal(got, want) || len(want) == 0 || !strings.HasPrefix(want[0], "table event, event 10") {
		t.Errorf("found\n%q\nwithout others\n%q", got, want)
	}

	// Beside one that goes on and on nothing is found in a sound log.
	sound, other := filled(t, t.TempDir(), event.Reference)
	defer sound.Close()
	must(t, add(sound, other, 0, 500))
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for from := 500; ; from += 7 {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			if err := errors.Join(add(sound, other, from, 7), add(sound, other, from-3, 5)); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 10 {
		if err := sound.Verify(ctx, func(f eventlog.Finding) { t.Errorf("%+v", f) }); err != nil {
			t.Error(err)
		}
	}
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
