package daemon_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// The tests of the rules write a provider's documents entry by entry: record a
// is urn:a, and the title of an entry says which state of it it tells of. Sets in
// mode reference take what the documents say and fetch nothing.

// newEntryHarness opens a bridge over a provider whose documents the test writes.
func newEntryHarness(t *testing.T, o fixtures.Options, change ...func(*config.Config)) *harness {
	t.Helper()
	return newHarness(t, fixtures.New(o), append([]func(*config.Config){content(config.Reference)}, change...)...)
}

// day is the n-th day of 2025, long past for every clock.
func day(n int) time.Time { return time.Date(2025, 1, n, 0, 0, 0, 0, time.UTC) }

// active is an entry of record name in a state.
func active(name, state string, stamp time.Time) fixtures.Entry {
	return fixtures.Entry{ID: "urn:" + name, Title: state, Updated: stamp,
		Alternates: []fixtures.Alternate{{Href: "/records/" + name + ".xml", Type: "application/xml"}}}
}

func deletion(name string, stamp time.Time) fixtures.Entry {
	return fixtures.Entry{Kind: fixtures.Deletion, ID: "urn:" + name, Title: "gone", Updated: stamp}
}

// raw is an entry as it stands.
func raw(text string) fixtures.Entry { return fixtures.Entry{Raw: text} }

// feed replaces the entries of the subscription document.
func (b *harness) feed(entries ...fixtures.Entry) { b.write(fixtures.Subscription, entries...) }

func (b *harness) write(path string, entries ...fixtures.Entry) {
	b.provider.Edit(path, func(d *fixtures.Document) { d.Entries = entries })
}

// archive writes the subscription document's entries and closes it.
func (b *harness) archive(entries ...fixtures.Entry) {
	b.feed(entries...)
	b.provider.CloseArchive()
}

// log returns the events after a position: "created a v1".
func (b *harness) log(after event.Seq) []string {
	b.t.Helper()
	var out []string
	for ev := range b.eventsOf("", after) {
		out = append(out, fmt.Sprintf("%s %s %s", ev.Kind, strings.TrimPrefix(ev.Record, "urn:"), ev.Title))
	}
	return out
}

// wantLog harvests once, which must not fail, and compares what was logged.
func (b *harness) wantLog(what string, want ...string) harvest.Report {
	b.t.Helper()
	return b.wantLogOf(what, harvest.Options{}, want...)
}

// wantFull does the same with --full.
func (b *harness) wantFull(what string, want ...string) harvest.Report {
	b.t.Helper()
	return b.wantLogOf(what, harvest.Options{Full: true}, want...)
}

func (b *harness) wantLogOf(what string, o harvest.Options, want ...string) harvest.Report {
	b.t.Helper()
	before := b.last()
	r, err := b.try(o)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	b.want(what, b.log(before), want...)
	return r
}

// wantError harvests once, which must fail with these words, and returns the
// error and what was logged.
func (b *harness) wantError(words ...string) (logged []string) {
	b.t.Helper()
	return b.wantErrorOf(harvest.Options{}, words...)
}

func (b *harness) wantErrorFull(words ...string) (logged []string) {
	b.t.Helper()
	return b.wantErrorOf(harvest.Options{Full: true}, words...)
}

func (b *harness) wantErrorOf(o harvest.Options, words ...string) (logged []string) {
	b.t.Helper()
	before := b.last()
	_, err := b.try(o)
	if err == nil {
		b.t.Fatalf("the harvest did not fail; want an error with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.t.Errorf("error %q\nhas no %q", err, w)
		}
	}
	return b.log(before)
}

// stored is what the log keeps of the Source.
func (b *harness) stored() eventlog.Source {
	b.t.Helper()
	all, err := b.bridge.Log.Sources(b.t.Context(), "main")
	if err != nil || len(all) == 0 {
		b.t.Fatal("no Source: ", err)
	}
	return all[0]
}

// wantMark compares the stored mark.
func (b *harness) wantMark(want time.Time) {
	b.t.Helper()
	if got := b.stored().Mark.Time(); !got.Equal(want) {
		b.t.Errorf("the mark is %s, want %s", got, want)
	}
}

// wantAsked compares the requests since the last look, by path, and forgets
// them.
func (b *harness) wantAsked(want map[string]int) {
	b.t.Helper()
	got := b.provider.Asked()
	b.provider.ForgetRequests()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Errorf("asked for %v\nwant %v", got, want)
	}
}

// reported reports whether a rule was reported as broken; it returns the first
// place.
func reported(r harvest.Report, rule string) string {
	for _, e := range r.Examples {
		if e.Rule == rule {
			return e.First
		}
	}
	return ""
}

// later puts the harvest's clock forward.
func (b *harness) later(d time.Duration) {
	b.bridge.Harvester().Now = func() time.Time { return time.Now().Add(d) }
}

// quick replaces the Source's client by one of the same guard rules that waits
// a millisecond before it asks again.
func (b *harness) quick(change ...func(*fetch.Options)) {
	o := fetch.Options{Backoff: time.Millisecond, Reach: fetch.Reach{Origin: b.server.URL, Allowed: []string{"127.0.0.1"}}}
	for _, f := range change {
		f(&o)
	}
	g := fetch.New(o)
	b.t.Cleanup(g.Close)
	b.source().Client = g.Client("")
}

// quarantined returns what is in quarantine, whole.
func (b *harness) quarantined() []event.Quarantined {
	b.t.Helper()
	list, err := b.bridge.Log.Quarantined(b.t.Context(), "main")
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range list {
		if list[i], err = b.bridge.Log.QuarantinedInput(b.t.Context(), list[i].ID); err != nil {
			b.t.Fatal(err)
		}
	}
	return list
}

// replay takes in a piece of quarantine again, and returns what was logged.
func (b *harness) replay(q event.Quarantined) ([]string, error) {
	b.t.Helper()
	before := b.last()
	_, err := b.bridge.Harvester().Replay(b.t.Context(), &b.source().Source, &q)
	return b.log(before), err
}

// titles returns the live records with the state that the log has of them.
func (b *harness) titles() []string {
	b.t.Helper()
	return b.eachLive(func(ev *event.Event) string { return strings.TrimPrefix(ev.Record, "urn:") + " " + ev.Title })
}

// fixed is a body that a hook answers whatever the path holds.
func fixed(body string) func([]byte) []byte {
	return func([]byte) []byte { return []byte(body) }
}

func readAll(t testing.TB, r io.Reader) []byte {
	t.Helper()
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func hexSum(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func allAfter(seq event.Seq) event.Range { return event.Range{After: seq, Upto: math.MaxInt64} }
