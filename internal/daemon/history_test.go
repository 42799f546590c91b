package daemon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// modelSource is what a naive reader of all reports would know of a Source.
type modelSource struct {
	rows                      []status.HarvestRow // all, oldest first
	success, since, lastError time.Time
	failures                  int
	errorText                 string
	quiet                     []time.Time
	ended                     string // how the last harvest did
}

func (m *modelSource) add(r *harvest.Report, failed bool) {
	ended := r.Ended.Truncate(time.Microsecond)
	result := "ok"
	switch {
	case failed:
		result = "failed"
	case r.Held > 0 || r.Error != "" || r.Withheld:
		result = "partial"
	}
	if failed {
		m.failures++
		m.lastError, m.errorText = ended, r.Error
		if m.since.IsZero() {
			m.since = ended
		}
	} else {
		m.failures, m.since = 0, time.Time{}
		if !r.Withheld {
			m.success = ended
		}
	}
	how := fmt.Sprint(result, r.Held)
	if !failed && r.Created == 0 && how == m.ended {
		m.quiet = append(m.quiet, ended)
		return
	}
	row := status.HarvestRow{Number: int64(len(m.rows) + 1), Started: status.Time{Time: r.Started}, Ended: status.Time{Time: ended}, Documents: r.Documents, Created: r.Created, Held: r.Held}
	if n := len(m.quiet); n > 0 {
		row.Unchanged = &status.Unchanged{Count: int64(n), First: status.Time{Time: m.quiet[0]}, Last: status.Time{Time: m.quiet[n-1]}}
	}
	if failed {
		row.Error = &status.HarvestError{At: row.Ended, Text: r.Error, Kind: r.ErrorKind}
	}
	switch result {
	case "partial":
		row.Result = event.ResultPartial
	case "failed":
		row.Result = event.ResultFailed
	}
	m.rows, m.quiet, m.ended = append(m.rows, row), nil, how
}

// TestHistoryIsThatOfTheReports: whatever harvests report, and however often bridge is
// begun anew between them, the history, the status and the days are what a naive reader
// of all reports makes of them; old rows are removed, a hundred always stay.
func TestHistoryIsThatOfTheReports(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 1))
		folder := t.TempDir()
		server := httptest.NewUnstartedServer(nil)
		defer server.Close()
		now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		var h *Bridge
		open := func() {
			h = openFeeds(t, folder, server, "http://h.example/a", "http://h.example/b")
			h.opt.Now = func() time.Time { return now }
		}
		open()
		var models [2]modelSource
		for range 700 {
			if random.IntN(40) == 0 {
				closeBridge(t, h)
				open()
			}
			which, pace := 0, time.Duration(1+random.IntN(600))*time.Minute
			if random.IntN(4) == 0 {
				which = 1
			}
			r := harvest.Report{Started: now, Documents: 1}
			now = now.Add(pace)
			r.Ended = now
			var failed error
			switch random.IntN(7) {
			case 0:
				r.Created = 1 + random.Int64N(5)
			case 1, 2:
				r.Held = random.Int64N(3)
			case 3:
				failed = errors.New("it did not answer")
				r.Error, r.ErrorKind = failed.Error(), harvest.KindNetwork
			case 4:
				if random.IntN(2) == 0 {
					failed = harvest.ErrSpent
					r.Error, r.ErrorKind = failed.Error(), harvest.KindSpent
				} else {
					r.Withheld = true
				}
			}
			src, m := h.Sources()[which], &models[which]
			m.add(&r, r.ErrorKind == harvest.KindNetwork)
			if err := h.saveSchedule(t.Context(), src, time.Hour, &r, failed); err != nil {
				t.Fatal(err)
			}
			if random.IntN(10) == 0 {
				checkHistory(t, h, src, m)
			}
		}
		for i := range models {
			checkHistory(t, h, h.Sources()[i], &models[i])
		}
		checkActivity(t, h, &models, now)
		var found []string
		if _, err := h.Verify(t.Context(), true, func(f Finding) { found = append(found, f.Where+": "+f.What) }); err != nil || len(found) > 0 {
			t.Errorf("verify: %v, %q", err, found)
		}
		closeBridge(t, h)
	}
}

func checkHistory(t *testing.T, h *Bridge, src *Source, m *modelSource) {
	t.Helper()
	rows, err := h.History(t.Context(), src.ID, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(m.rows)
	slices.Reverse(want)
	// Each 32nd row removes those that are older than 90 days, but for a hundred.
	if pruned := len(m.rows) / 32 * 32; pruned > 0 {
		cutoff := m.rows[pruned-1].Ended.AddDate(0, 0, -90)
		want = slices.DeleteFunc(want, func(r status.HarvestRow) bool { return r.Number <= int64(pruned-100) && r.Started.Before(cutoff) })
	}
	if !reflect.DeepEqual(rows, want) {
		t.Fatalf("%d rows, want %d of %d:\n%+v\n%+v", len(rows), len(want), len(m.rows), rows[:min(len(rows), 3)], want[:min(len(want), 3)])
	}
	if len(rows) > 7 {
		page, err := h.History(t.Context(), src.ID, rows[3].Number, 4)
		if err != nil || !reflect.DeepEqual(page, rows[4:8]) {
			t.Fatalf("a page: %v, %+v, want %+v", err, page, rows[4:8])
		}
	}
	all, err := h.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Sets[0].Sources {
		if s.ID != src.ID {
			continue
		}
		quiet := 0
		if s.Unchanged != nil {
			quiet = int(s.Unchanged.Count)
		}
		text := ""
		if s.LastError != nil {
			text = s.LastError.Text
		}
		if !s.LastSuccess.Equal(m.success) || !s.FailingSince.Equal(m.since) || s.Failures != m.failures || text != m.errorText || quiet != len(m.quiet) ||
			(s.State == status.Failing) != !m.since.IsZero() {
			t.Fatalf("status %+v, want %+v", s, m)
		}
	}
}

func checkActivity(t *testing.T, h *Bridge, models *[2]modelSource, now time.Time) {
	t.Helper()
	const days = 60
	got, err := h.Activity(t.Context(), days)
	if err != nil {
		t.Fatal(err)
	}
	sum := map[string]int64{}
	for i := range models {
		own := map[string]int64{}
		for _, r := range models[i].rows {
			own[r.Ended.Format(time.DateOnly)] += r.Created
			sum[r.Ended.Format(time.DateOnly)] += r.Created
		}
		for at, d := range got[h.Sources()[i].ID] {
			if date := now.AddDate(0, 0, at+1-days).Format(time.DateOnly); d.Date != date || d.Created != own[date] {
				t.Errorf("Source %d, day %s: %+v, want %d events", i, date, d, own[date])
			}
		}
	}
	if len(got[0]) != days {
		t.Errorf("%d days, want %d", len(got[0]), days)
	}
	for _, d := range got[0] {
		if d.Created != sum[d.Date] {
			t.Errorf("day %s: %+v, want %d events", d.Date, d, sum[d.Date])
		}
	}
}
