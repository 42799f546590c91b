package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
)

// testClock is the time of day, and what the test has let pass besides.
type testClock struct{ ahead atomic.Int64 }

func (c *testClock) now() time.Time       { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *testClock) pass(d time.Duration) { c.ahead.Add(int64(d)) }

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

// tell notifies a recipient of what answer decides about a request.
func tell(t testing.TB, url string, r *sip.Request, answer testserver.Answer) {
	t.Helper()
	d, err := answer(r)
	if err == nil {
		err = (&sip.HTTPClient{URL: url}).Notify(t.Context(), d)
	}
	if err != nil {
		t.Errorf("notify %s: %v", url, err)
	}
}

// submitter is a bridge whose set main takes records in and submits them to
// ingest servers; what those accept goes into set kept.
type submitter struct {
	*sipBridge
	clock *testClock
}

// newSubmitter has a target for each server. The keys are for all of them. What has
// failed waits for its next try until the test lets time pass.
func newSubmitter(t *testing.T, keys string, servers ...*testserver.IngestServer) *submitter {
	t.Helper()
	return newSubmitterOf(t, sipSet("main", libraryMode), keys, servers...)
}

// newSubmitterOf has a set main that begins as given.
func newSubmitterOf(t *testing.T, main, keys string, servers ...*testserver.IngestServer) *submitter {
	t.Helper()
	text := main
	for _, s := range servers {
		text += fmt.Sprintf("[[set.submit]]\nurl = %q\nimport_accepted_to = \"kept\"\nevery = \"1m\"\nsubmitter_name = \"Ann Gr\u00fcn\"\nsubmitter_email = \"ann@bridge.example\"\n"+
			"formats = { \"{urn:r}r\" = \"http://schemas.example/r.xsd\" }\n%s\n", s.URL, keys)
	}
	h := &submitter{newSIPBridge(t, text+sipSet("kept")), &testClock{}}
	h.restart(func() { h.options.Now = h.clock.now })
	return h
}

// restart ends the bridge and starts it again; meanwhile is done while it is
// down.
func (h *sipBridge) restart(meanwhile func()) {
	h.t.Helper()
	h.halt()
	h.close()
	if meanwhile != nil {
		meanwhile()
	}
	h.run()
}

// take has set main accept a record, and returns its identifier there.
func (h *submitter) take(name string) string {
	h.t.Helper()
	return h.send("/sip/main", ingestOf(name, "this is "+name), 200).disposition(h.t).Assigned
}

// inVain does what has the bridge ask a server that is down, and waits until the
// bridge knows that it is.
func (h *submitter) inVain(do func()) {
	h.t.Helper()
	told := func() int {
		return strings.Count(h.said.String(), "the ingest server fails; no request is sent for a while")
	}
	before := told()
	do()
	eventually(h.t, "the server that is down is asked", func() bool { return told() > before })
}

// of returns the submissions of a record, in the order of the targets that they
// went to.
func (h *submitter) of(record string) []submission.Submission {
	h.t.Helper()
	all, err := h.bridge.SIP.Submissions(context.Background(), submission.Query{Set: "main", Subject: record})
	if err != nil {
		h.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b submission.Submission) int { return int(a.Source - b.Source) })
	return all
}

// becomes waits until the only submission of a record is in a state.
func (h *submitter) becomes(record string, state submission.State) *submission.Submission {
	h.t.Helper()
	var last []submission.Submission
	defer func() {
		if h.t.Failed() {
			h.t.Logf("the submissions of %s are %+v", record, last)
		}
	}()
	eventually(h.t, record+" is "+state.String(), func() bool {
		last = h.of(record)
		return len(last) == 1 && last[0].State == state
	})
	return &last[0]
}

// tried waits until the only submission of a record was sent so often.
func (h *submitter) tried(record string, times int) *submission.Submission {
	h.t.Helper()
	var s []submission.Submission
	eventually(h.t, fmt.Sprintf("%s is sent, %d times", record, times), func() bool {
		s = h.of(record)
		return len(s) == 1 && s[0].Tries >= times
	})
	return &s[0]
}

// counts returns what the status says of the targets of main: "accepted 1,
// waiting 2; matched 3" for each.
func (h *submitter) counts() []string {
	h.t.Helper()
	now, err := h.bridge.Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, s := range now.Sets {
		for i := range s.Submissions {
			if p := &s.Submissions[i]; s.Name == "main" && p.Direction == status.Sent {
				out = append(out, counted(p.States)+"; "+counted(p.NotificationsReceived))
			}
		}
	}
	return out
}

func counted[K interface {
	comparable
	fmt.Stringer
}](counts map[K]int64) string {
	var out []string
	for k, n := range counts {
		if n != 0 {
			out = append(out, fmt.Sprintf("%s %d", k, n))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// wantCounts fails unless the status says this.
func (h *submitter) wantCounts(want ...string) {
	h.t.Helper()
	h.want("the status", h.counts(), want...)
}

// page returns what a set's page says, without its markup.
func (h *sipBridge) page(set string) string {
	h.t.Helper()
	var b strings.Builder
	for part := range strings.SplitSeq(string(h.get("/sets/"+set+"/").body), "<") {
		if _, text, ok := strings.Cut(part, ">"); ok {
			b.WriteString(text)
		}
	}
	return b.String()
}

// shows fails unless a set's page says all of this.
func (h *sipBridge) shows(set string, texts ...string) {
	h.t.Helper()
	page := h.page(set)
	for _, text := range texts {
		if !strings.Contains(page, text) {
			h.t.Errorf("the page of set %s does not say %q:\n%s", set, text, page)
		}
	}
}

// TestSIPStates_AtOnce: the reply is the ultimate disposition.
func TestSIPStates_AtOnce(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Accepts)
	h := newSubmitter(t, "", library)
	good := h.take("good")
	s := h.becomes(good, submission.StateAccepted)
	if s.Assigned != testserver.AssignedTo(good) || s.Late || s.Tries != 1 || s.Due != 0 || s.Deadline != 0 {
		t.Errorf("accepted as %+v", s)
	}
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))

	library.SetAnswer(testserver.Rejects)
	bad := h.take("bad")
	s = h.becomes(bad, submission.StateRejected)
	if s.Reason != "no author of "+bad {
		t.Errorf("rejected as %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))
	if r := library.Requests(good)[0]; r.Recipient != h.base+"/sip/main/"+h.of(good)[0].Token || len(r.Source.Submitter.Name) != len("Ann Gr\u00fcn") || *r.Source.Sequence != "main" ||
		string(r.Record.XML) != `<r xmlns="urn:r">this is good</r>` {
		t.Errorf("the server was sent %+v %+v", r, r.Source)
	}
	// A final reply leaves nothing to be told.
	tell(t, library.Requests(good)[0].Recipient, library.Requests(good)[0], testserver.Accepts)
	h.wantCounts("accepted 1, rejected 1; matched 1")
	h.want("set kept, told again", h.kept(), "created "+testserver.AssignedTo(good))
	h.shows("main", bad, "rejected", "no author of "+bad)
	if strings.Contains(h.page("main"), h.of(good)[0].Token) {
		t.Error("the page has a token")
	}
	h.verified()
}

// TestSIPStates_Provisional: the ultimate disposition comes in a notification.
func TestSIPStates_Provisional(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitter(t, "", library)
	good, bad := h.take("good"), h.take("bad")
	for _, record := range []string{good, bad} {
		s := h.becomes(record, submission.StateProvisional)
		if wait := time.Duration(s.Deadline-event.MicrosOf(h.clock.now())) * time.Microsecond; s.Due != s.Deadline || wait > 168*time.Hour || wait < 167*time.Hour {
			t.Errorf("provisional, for %v: %+v", wait, s)
		}
	}
	h.wantCounts("provisional 2; ")
	h.want("set kept", h.kept())
	h.shows("main", "provisional")
	h.restart(nil) // what is awaited is durable
	tell(t, library.Requests(good)[0].Recipient, library.Requests(good)[0], testserver.Accepts)
	tell(t, library.Requests(bad)[0].Recipient, library.Requests(bad)[0], testserver.Rejects)
	// Notified is committed: nobody need be waited for.
	if s := h.of(good)[0]; s.State != submission.StateAccepted || s.Assigned != testserver.AssignedTo(good) || s.Late {
		t.Errorf("notified of acceptance: %+v", s)
	}
	if s := h.of(bad)[0]; s.State != submission.StateRejected || s.Reason != "no author of "+bad {
		t.Errorf("notified of rejection: %+v", s)
	}
	h.want("set main", h.told("main"), "created "+good, "created "+bad, "rejected "+bad+": no author of "+bad)
	h.want("set kept", h.kept(), "created "+testserver.AssignedTo(good))
	h.wantCounts("accepted 1, rejected 1; matched 2")
	h.shows("main", "no author of "+bad)
	if n := len(library.Requests(good)) + len(library.Requests(bad)); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	h.verified()
}

// A record keeps the identifier that it was assigned when a backup is restored: its next
// version is an update, and no second record.
func TestSIPIdentifiersAfterARestore(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("145", "one"), 200).disposition(t).Assigned
	for n := range 2 {
		h.restart(func() {
			if err := os.Remove(filepath.Join(h.config.Data, eventlog.HeadName)); err != nil { // as a backup has none
				t.Fatal(err)
			}
		})
		if all, err := h.bridge.Log.Epochs(t.Context()); err != nil || len(all) != n+1 {
			t.Fatalf("%d epochs have begun, %v", len(all), err)
		}
		if now := h.send("/sip/main", ingestOf("145", fmt.Sprint("two ", n)), 200).disposition(t).Assigned; now != id {
			t.Errorf("it is %s, and was %s", now, id)
		}
	}
	h.want("the set has", h.told("main"), "created "+id, "updated "+id, "updated "+id)
	h.verified()
}
