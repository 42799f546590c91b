package status_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// The JSON object is an interface: scripts read it.
func TestJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 4, 4, 5, 678_000_000, time.FixedZone("", 3600))
	mark, ok := event.StampOf(at)
	if !ok {
		t.Fatalf("%v is no stamp", at)
	}
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"nothing": {&status.Status{Sets: []status.Set{}}, `{"summary":{"sources":0,"ok":0,"failing":0,"waiting":0,"paused":0,"former":0},"sets":[]}`},
		"an empty set": {&status.Set{Name: "main", Sources: []status.Source{}, Content: event.Redirect, Newest: at, Problems: []status.Problem{{Title: "x"}}},
			`{"name":"main","records":0,"events":0,"last_seq":0,"snapshot_seq":0,"sources":[]}`},
		"a new Source": {&status.Source{ID: 1, Set: "main", URL: "https://a.example/?b&c", Unfinished: true, PartialRecords: 1, Waits: []string{"x"}},
			`{"kind":"","url":"https://a.example/?b&c","pending":0,"held":0,"quarantined":0,"state":""}`},
		"a Source": {&status.Source{Name: "n", Former: true, Kind: "feed", URL: "u", Mark: status.Mark{Stamp: mark}, Pending: 1, Held: 2, Quarantined: 3, Dropped: 4, Gap: "g",
			Next: status.Time{Time: at}, RetryAfter: status.Time{Time: at}, State: status.Failing, LastSuccess: status.Time{Time: at}, FailingSince: status.Time{Time: at}, Failures: 5,
			LastError: &status.HarvestError{At: status.Time{Time: at}, Text: "<x>", Kind: "http", Rule: "r"}, Unchanged: &status.Unchanged{Count: 6, First: status.Time{Time: at}, Last: status.Time{Time: at}},
			Moved: "m", Paused: &status.Pause{Since: status.Time{Time: at}, Reason: "p"}, Last: &status.Harvest{Report: harvest.Report{}}, Underway: &status.Underway{}},
			`{"name":"n","former":true,"kind":"feed","url":"u","mark":"2026-01-02T03:04:05.678Z",` +
				`"last":{"started":"0001-01-01T00:00:00Z","ended":"0001-01-01T00:00:00Z","documents":0,"entries":0,"events":0,"problems":0},` +
				`"pending":1,"held":2,"quarantined":3,"dropped":4,"gap":"g","next":"2026-01-02T03:04:05Z","retry_after":"2026-01-02T03:04:05Z","state":"failing",` +
				`"last_success":"2026-01-02T03:04:05Z","failing_since":"2026-01-02T03:04:05Z","failures":5,"last_error":{"at":"2026-01-02T03:04:05Z","text":"<x>","kind":"http","rule":"r"},` +
				`"unchanged":{"count":6,"first":"2026-01-02T03:04:05Z","last":"2026-01-02T03:04:05Z"},"moved":"m","paused":{"since":"2026-01-02T03:04:05Z","reason":"p"},` +
				`"underway":{"started":"0001-01-01T00:00:00Z","documents":0,"entries":0,"events":0,"fetched":0,"wanted":0}}`},
		"a harvest": {&status.Harvest{Report: harvest.Report{Started: at, Ended: at, Documents: 1, Entries: 2, Created: 3, Updated: 4, Deleted: 5, Problems: 6, Skipped: 7, NotModified: true,
			Dialects: []string{"sitemap"}, Moved: "https://a.example/?b&c", Error: "<x>", Warnings: []string{"w"}}},
			`{"started":"2026-01-02T03:04:05Z","ended":"2026-01-02T03:04:05Z","documents":1,"entries":2,"events":12,"problems":6,"skipped":7,"dialects":["sitemap"],` +
				`"moved":"https://a.example/?b&c","error":"<x>","warnings":["w"]}`},
		"a harvest under way": {&status.Underway{Started: at, Progress: harvest.Progress{Documents: 1, Entries: 2, Events: 3, Fetched: 4, Wanted: 5, Doing: "waiting for a&b", Until: at}},
			`{"started":"2026-01-02T03:04:05Z","doing":"waiting for a&b","until":"2026-01-02T03:04:05Z","documents":1,"entries":2,"events":3,"fetched":4,"wanted":5}`},
		"no submissions": {&status.Peer{Direction: status.Received, URL: "/sip/main", NotificationsSent: map[submission.DeliveryState]int64{submission.DeliveryDone: 0}, Conflicts: 1},
			`{"direction":"received","url":"/sip/main","states":{}}`},
		"submissions": {&status.Peer{Direction: status.Sent, URL: "u", States: map[submission.State]int64{submission.StateInDoubt: 1, submission.StateAccepted: 2, submission.StateWaiting: 0}, UnderReview: 3,
			NotificationsSent: map[submission.DeliveryState]int64{submission.DeliveryDone: 4}, NotificationsReceived: map[submission.NotificationVerdict]int64{submission.NotificationMatched: 5}, Dropped: 6, Through: 7, Former: true,
			Failing: &status.Failure{Since: status.Time{Time: at}, Reason: "r"}},
			`{"direction":"sent","url":"u","states":{"accepted":2,"in doubt":1},"under_review":3,"notifications_sent":{"delivered":4},"notifications_received":{"matched":5},"dropped":6,"through":7,"former":true,` +
				`"failing":{"since":"2026-01-02T03:04:05Z","reason":"r"}}`},
	} {
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetEscapeHTML(false)
		if err := e.Encode(c.value); err != nil || got.String() != c.want+"\n" {
			t.Errorf("%s: %v\n got %swant %s", name, err, &got, c.want)
		}
	}
}

// What a harvest under way leaves in its file is read when its process has ended.
func TestUnderwayIsReadAgain(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	was := status.Underway{Started: at, Progress: harvest.Progress{Documents: 1, Entries: 2, Events: 3, Fetched: 4, Wanted: 5, Doing: "d", Until: at}}
	text, err := json.Marshal(&was)
	if err != nil {
		t.Fatal(err)
	}
	var got status.Underway
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, was) {
		t.Errorf("%s became %+v, %v", text, got, err)
	}
}

// Sources yields the Sources of one set after the other, as long as they are wanted.
func TestSources(t *testing.T) {
	s := &status.Status{Sets: []status.Set{{Sources: []status.Source{{ID: 3}}}, {}, {Sources: []status.Source{{ID: 1}, {ID: 2}}}}}
	var got []event.SourceID
	for src := range s.Sources() {
		if got = append(got, src.ID); src.ID == 1 {
			break
		}
	}
	if !slices.Equal(got, []event.SourceID{3, 1}) {
		t.Errorf("the Sources are %v", got)
	}
}
