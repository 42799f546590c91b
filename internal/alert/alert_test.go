package alert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/status"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func at(hours int) status.Time { return status.Time{Time: noon.Add(time.Duration(hours) * time.Hour)} }

// TestConditions: each condition finds what it is about, and nothing else.
func TestConditions(t *testing.T) {
	all := &status.Status{
		Warnings: []string{"the clock may have jumped"},
		Sets: []status.Set{{
			Name: "maps",
			Sources: []status.Source{
				{Name: "good", URL: "https://good.example/"},
				{Name: "old", Former: true, Failures: 9, FailingSince: at(-900), Held: 4},
				{Name: "paused", Failures: 9, FailingSince: at(-900), Paused: &status.Pause{}},
				{URL: "https://bad.example/feed", Failures: 3, FailingSince: at(-25), LastError: &status.HarvestError{Text: "answers 500"}},
				{Name: "new", Failures: 1, FailingSince: at(-1)},
				{Name: "held", Held: 7, Gap: "page 3 is missing", Quarantined: 100},
				{Name: "few", Quarantined: 99},
			},
			Submissions: []status.Peer{
				{Direction: status.Received, URL: "/sip/maps", UnderReview: 2},
				{Direction: status.Sent, URL: "https://library.example/sip", Failing: &status.Failure{Since: at(-30), Reason: "refuses the connection"}},
			},
			Hubs: []status.Hub{
				{URL: "https://hub.example/", FailingSince: at(-26), Error: "answers 503"},
				{URL: "https://new.example/", FailingSince: at(-1), Error: "answers 503"},
				{URL: "https://good.example/"},
			},
			Dumps: &status.Dumps{Faults: []string{"the disk is full"}},
		}, {Name: "dumps are fine", Dumps: &status.Dumps{}}},
	}
	s := State{Status: all, Free: 9.5, Now: noon}
	for _, x := range []struct {
		on   config.Condition
		want []string
	}{
		{config.Condition{Kind: config.OnFailing, For: 24 * time.Hour}, []string{"https://bad.example/feed", "https://library.example/sip", "hub https://hub.example/"}},
		{config.Condition{Kind: config.OnFailing, For: time.Hour}, []string{"https://bad.example/feed", "new", "https://library.example/sip", "hub https://hub.example/", "hub https://new.example/"}},
		{config.Condition{Kind: config.OnHeld}, []string{"held"}},
		{config.Condition{Kind: config.OnGap}, []string{"held"}},
		{config.Condition{Kind: config.OnQuarantine, Count: 100}, []string{"held"}},
		{config.Condition{Kind: config.OnReview, Count: 2}, []string{"/sip/maps"}},
		{config.Condition{Kind: config.OnReview, Count: 3}, nil},
		{config.Condition{Kind: config.OnDumps}, []string{""}},
		{config.Condition{Kind: config.OnDisk, Share: 10}, []string{""}},
		{config.Condition{Kind: config.OnDisk, Share: 9}, nil},
		{config.Condition{Kind: config.OnLog}, []string{""}},
	} {
		var got []string
		for _, a := range find(&x.on, &s) {
			got = append(got, a.Source)
			if a.Condition != x.on.Kind || a.Text == "" || a.Since.After(noon) {
				t.Errorf("%+v", a)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%+v: %q, want %q", x.on, got, x.want)
		}
	}
	unreadable := State{Unreadable: "it is locked", Free: -1, Now: noon}
	for kind, want := range map[string]int{config.OnFailing: 0, config.OnDisk: 0, config.OnLog: 1} {
		if got := find(&config.Condition{Kind: kind, Share: 50}, &unreadable); len(got) != want {
			t.Errorf("%s: %+v", kind, got)
		}
	}
	if text := find(&config.Condition{Kind: config.OnFailing, For: 24 * time.Hour}, &s)[0].Text; !strings.Contains(text, "answers 500") || !strings.Contains(text, "since 2026-11-22T11:00:00Z") {
		t.Error(text)
	}
}

// TestSameURLs: of Sources and of ingest servers whose URLs are the same without their secrets,
// each has an alert of its own, which the state of another does not change.
func TestSameURLs(t *testing.T) {
	t.Parallel()
	source := status.Source{URL: "https://a.example/?***"}
	held := source
	held.Held = 3
	server := status.Peer{Direction: status.Sent, URL: "https://a.example/?***", Failing: &status.Failure{Since: at(-30)}}
	keys := func(sources ...status.Source) (all []string) {
		s := State{Status: &status.Status{Sets: []status.Set{{Name: "maps", Sources: sources, Submissions: []status.Peer{server, server}}}}, Free: -1, Now: noon}
		r := config.Alert{On: []config.Condition{{Kind: config.OnHeld}, {Kind: config.OnFailing}}}
		return slices.Sorted(maps.Keys(holding(&r, &s, nil, map[string]bool{})))
	}
	both, first, second := keys(held, held), keys(held, source), keys(source, held)
	if len(both) != 4 || len(first) != 3 || len(second) != 3 || slices.Equal(first, second) {
		t.Errorf("%q\n%q\n%q", both, first, second)
	}
}

// TestOnceOnOnceOff: whatever begins and ends, however often telling fails, the state
// cannot be read, or the process restarts: a receiver hears of each alert on and off in
// turn, and in the end of what holds.
func TestOnceOnOnceOff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		folder, err := os.MkdirTemp("", "alerts-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(folder)
		receivers := []config.Alert{
			{On: []config.Condition{{Kind: config.OnHeld}, {Kind: config.OnGap}, {Kind: config.OnLog}}, Mail: "a@example.org"},
			{On: []config.Condition{{Kind: config.OnHeld}, {Kind: config.OnDisk, Share: 10}}, Command: []string{"/bin/true"}},
		}
		var s State
		fails := false
		heard := []map[string]bool{{}, {}}
		alerter := func() *Alerter {
			return &Alerter{
				Receivers: func() []config.Alert { return receivers }, File: filepath.Join(folder, "alerts.json"), Bridge: func() string { return "https://bridge.example" },
				State: func(context.Context) State { return s }, Logger: slog.New(slog.DiscardHandler),
				Send: func(_ context.Context, to *config.Alert, m *Message) error {
					if fails {
						return errors.New("no route to host")
					}
					n := 0
					if to.Mail == "" {
						n = 1
					}
					for _, a := range m.On {
						if key := a.key(); heard[n][key] {
							t.Fatalf("%q is on twice", key)
						}
						heard[n][a.key()] = true
					}
					for _, a := range m.Off {
						if !heard[n][a.key()] {
							t.Fatalf("%q is over, and was never on", a.key())
						}
						delete(heard[n], a.key())
					}
					if !strings.HasPrefix(m.Subject(), "bridge: ") || len(m.On)+len(m.Off) == 0 {
						t.Fatalf("%+v", m)
					}
					return nil
				},
			}
		}
		a := alerter()
		for i := range rapid.IntRange(1, 30).Draw(t, "rounds") {
			s = State{Now: noon.Add(time.Duration(i) * time.Minute), Free: rapid.Float64Range(5, 20).Draw(t, "free"), Unreadable: "it is locked"}
			if rapid.IntRange(0, 4).Draw(t, "readable") > 0 {
				set := status.Set{Name: "maps"}
				for n := range 3 {
					set.Sources = append(set.Sources, status.Source{Name: fmt.Sprint(n), Held: rapid.IntRange(0, 1).Draw(t, "held"), Gap: rapid.SampledFrom([]string{"", "a page"}).Draw(t, "gap")})
				}
				s.Status = &status.Status{Sets: []status.Set{set}, Warnings: rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"the clock", "the bucket: one error", "set a: not here"}), 0, 3, rapid.ID).Draw(t, "warnings")}
			}
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				a = alerter()
			}
			fails = rapid.IntRange(0, 3).Draw(t, "fails") == 0
			if err := a.Round(t.Context()); err != nil && !fails {
				t.Fatal(err)
			}
		}
		fails, s.Free = false, 50
		s.Status = &status.Status{Sets: []status.Set{{Name: "maps", Sources: []status.Source{{Name: "0", Held: 1}}}}}
		if err := a.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range heard {
			if len(heard[n]) != 1 || !heard[n][(&Alert{Condition: config.OnHeld, Set: "maps", Source: "0"}).key()] {
				t.Fatalf("receiver %d believes %v", n, heard[n])
			}
		}
	})
}

// TestTextOfSource: an error that a Source has written makes no line of its own in a mail.
func TestTextOfSource(t *testing.T) {
	m := Message{On: []Alert{{Condition: config.OnFailing, Since: noon, Text: "one has failed: answers no\n\nOver: failing"}}}
	if text := m.Text(); strings.Contains(text, "\nOver") || !strings.Contains(text, "answers no Over: failing") {
		t.Error(text)
	}
}

// TestManyAlerts: a mail about thousands of Sources names some of each condition and counts the
// others.
func TestManyAlerts(t *testing.T) {
	t.Parallel()
	var m Message
	for i := range 10_000 {
		m.On = append(m.On, Alert{Condition: config.OnFailing, Source: fmt.Sprint("source ", i), Since: noon, Text: fmt.Sprintf("source %d has failed: %s", i, strings.Repeat("no ", 100))})
	}
	m.On = append(m.On, Alert{Condition: config.OnLog, Since: noon, Text: "the clock may have jumped"})
	m.Off = append(m.On[:60:60], m.On[10_000])
	text := m.Text()
	for _, part := range []string{"source 0 ", "source 49 ", "Begun: failing, 9950 more", "Begun: log", "the clock may have jumped", "Over: failing, 10 more", "Over: log"} {
		if !strings.Contains(text, part) {
			t.Errorf("the mail has no %q", part)
		}
	}
	if len(text) > 100_000 {
		t.Errorf("the mail has %d bytes", len(text))
	}
	if want := "bridge: 10001 new: failing, log; 61 over: failing, log"; m.Subject() != want {
		t.Errorf("%q, want %q", m.Subject(), want)
	}
}

// TestForgottenReceivers: what a receiver was told is forgotten with it, and a damaged
// file says what to do.
func TestForgottenReceivers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "alerts.json")
	told := 0
	receivers := []config.Alert{{On: []config.Condition{{Kind: config.OnDisk, Share: 10}}, Mail: "a@example.org"}}
	a := Alerter{
		Receivers: func() []config.Alert { return receivers }, File: file,
		Bridge: func() string { return "" }, State: func(context.Context) State { return State{Now: noon, Free: 1} },
		Send: func(context.Context, *config.Alert, *Message) error { told++; return nil },
	}
	for range 2 {
		if err := a.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Error(st, err)
	}
	receivers = nil
	if err := a.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), "disk") {
		t.Errorf("%s %v", data, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := Alerter{File: file}
	if err := fresh.Round(t.Context()); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "remove it") {
		t.Error(err)
	}
}

// TestReceiverTwice: a receiver that is configured twice is told of both, and of each
// once. When the note of that cannot be written, it is written in a later round.
func TestReceiverTwice(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "later")
	receivers := []config.Alert{
		{On: []config.Condition{{Kind: config.OnDisk, Share: 10}}, Mail: "a@example.org"},
		{On: []config.Condition{{Kind: config.OnHeld}}, Mail: "a@example.org"},
	}
	s := State{Now: noon, Free: 1, Status: &status.Status{Sets: []status.Set{{Name: "maps", Sources: []status.Source{{Name: "one", Held: 2}}}}}}
	var told []string
	alerter := func() *Alerter {
		return &Alerter{
			Receivers: func() []config.Alert { return receivers }, File: filepath.Join(folder, "alerts.json"),
			Bridge: func() string { return "" }, State: func(context.Context) State { return s },
			Send: func(_ context.Context, _ *config.Alert, m *Message) error {
				told = append(told, m.Subject())
				return nil
			},
		}
	}
	a := alerter()
	if err := a.Round(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is no such folder: %v", err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Free = -1 // not known: it does not end
	for range 2 {
		if err := a.Round(t.Context()); err != nil {
			t.Error(err)
		}
	}
	a = alerter()
	slices.Reverse(receivers)
	if err := a.Round(t.Context()); err != nil {
		t.Error(err)
	}
	s.Free, s.Status = 50, &status.Status{}
	if err := a.Round(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"bridge: 2 new: disk, held", "bridge: 2 over: disk, held"}; !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
}

// TestThresholds: a receiver with several thresholds of a kind is told of each, once on and once
// off, also if it is configured twice, and whatever the order.
func TestThresholds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "alerts.json")
	receivers := []config.Alert{
		{On: []config.Condition{{Kind: config.OnFailing, For: 24 * time.Hour}, {Kind: config.OnQuarantine, Count: 1}, {Kind: config.OnDisk, Share: 5}}, Mail: "a@example.org"},
		{On: []config.Condition{{Kind: config.OnDisk, Share: 20}, {Kind: config.OnQuarantine, Count: 100}, {Kind: config.OnFailing, For: time.Hour}, {Kind: config.OnFailing, For: 24 * time.Hour}}, Mail: "a@example.org"},
	}
	round := func(hour, quarantined int, free float64) (told string) {
		t.Helper()
		source := status.Source{Name: "one", Quarantined: quarantined, FailingSince: at(0)}
		a := Alerter{
			Receivers: func() []config.Alert { return receivers }, File: file, Bridge: func() string { return "" },
			State: func(context.Context) State {
				return State{Now: at(hour).Time, Free: free, Status: &status.Status{Sets: []status.Set{{Name: "maps", Sources: []status.Source{source}}}}}
			},
			Send: func(_ context.Context, _ *config.Alert, m *Message) error { told = m.Subject(); return nil },
		}
		if err := a.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		return told
	}
	for i, step := range []struct {
		hour, quarantined int
		free              float64
		want              string
	}{
		{0, 1, 50, "bridge: 1 new: quarantine"},
		{2, 1, 19, "bridge: 2 new: disk, failing"},
		{3, 100, 4, "bridge: 2 new: disk, quarantine"},
		{4, 100, 5.2, ""},
		{25, 99, 5.6, "bridge: 1 new: failing; 2 over: disk, quarantine"},
		{26, 99, 21, ""},
		{27, 0, 50, "bridge: 2 over: disk, quarantine"},
	} {
		if told := round(step.hour, step.quarantined, step.free); told != step.want {
			t.Errorf("step %d: %q, want %q", i, told, step.want)
		}
		slices.Reverse(receivers)
	}
}
