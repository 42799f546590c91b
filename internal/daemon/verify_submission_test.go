package daemon_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
)

// submissionBridge is a bridge that does all that there is with submissions: main takes
// records in and submits them to library, and kept takes what that accepts; desk
// reviews; gate passes on to behind.
type submissionBridge struct {
	*submitter
	library, behind *testserver.IngestServer
	// box takes notices, as long as boxOpen.
	box     *httptest.Server
	boxOpen atomic.Bool
}

func newSubmissionBridge(t *testing.T) *submissionBridge {
	t.Helper()
	x := &submissionBridge{library: testserver.NewIngestServer(t, testserver.Accepts), behind: testserver.NewIngestServer(t, testserver.Accepts)}
	x.boxOpen.Store(true)
	x.box = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if x.boxOpen.Load() {
			w.WriteHeader(http.StatusAccepted)
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(x.box.Close)
	x.submitter = newSubmitterOf(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("desk", reviewMode)+
		sipSet("gate", fmt.Sprintf("mode = \"gateway\"\nupstream = %q\ndeadline = \"24h\"", x.behind.URL))+
		sipSet("main", libraryMode), `deadline = "24h"`, x.library)
	return x
}

// ask submits a record to a set, and reports whether it was answered.
func (x *submissionBridge) ask(set, name, text string, recipient bool) bool {
	parts := sourceOf(name)
	if recipient {
		parts += recipientAt(x.box.URL)
	}
	r, err := x.post("/sip/"+set, inSOAP(sipDoc("ingest-request", parts+recordOf(text))))
	return err == nil && r.status == http.StatusOK
}

func mapOf(text string) string { return `<r xmlns="urn:r">` + text + `</r>` }

// in returns the submissions in a state.
func (x *submissionBridge) in(state submission.State) []submission.Submission {
	x.t.Helper()
	found, err := x.bridge.SIP.Submissions(context.Background(), submission.Query{States: []submission.State{state}})
	if err != nil {
		x.t.Fatal(err)
	}
	return found
}

// everyState makes a bridge with a submission in each state, notices that wait and
// that were delivered, and notifications with each verdict.
func everyState(t *testing.T) *submissionBridge {
	t.Helper()
	x := newSubmissionBridge(t)
	x.library.SetAnswer(testserver.Defers)
	late := x.take("late")
	x.becomes(late, submission.StateProvisional)
	x.restart(func() { x.clock.pass(25 * time.Hour) })
	x.becomes(late, submission.StateUnresolved)

	provisional := x.take("provisional")
	x.becomes(provisional, submission.StateProvisional)
	x.library.SetAnswer(testserver.Accepts)
	good := x.take("good")
	x.becomes(good, submission.StateAccepted)
	tell(t, x.library.Requests(good)[0].Recipient, x.library.Requests(good)[0], testserver.Rejects) // a conflict
	x.library.SetAnswer(testserver.Rejects)
	x.becomes(x.take("bad"), submission.StateRejected)
	page := x.send("/sip/main", inSOAP(sipDoc("ingest-request", sourceOf("page")+recordOf(`<html xmlns="http://www.w3.org/1999/xhtml"/>`))), 200).disposition(t).Assigned
	x.becomes(page, submission.StateUnsent)
	x.library.SetAnswer(testserver.BreaksOff)
	changed := x.take("changed")
	x.tried(changed, 1)
	x.send("/sip/main", ingestOf("changed", "another text"), 200)
	eventually(t, "the first text is replaced", func() bool { return len(x.in(submission.StateReplaced)) == 1 })

	for _, name := range []string{"undecided", "accepted", "refused"} {
		if !x.ask("desk", name, mapOf(name), true) {
			t.Fatal("not taken")
		}
	}
	x.ask("desk", "nobody is to be told", mapOf("x"), false)
	x.decide("accepted", true)
	eventually(t, "a notice is delivered", func() bool { return len(x.notices(submission.DeliveryDone)) == 1 })
	x.boxOpen.Store(false)
	x.decide("refused", false)

	x.behind.SetAnswer(testserver.BreaksOff)
	x.ask("gate", "doubtful", mapOf("doubtful"), true)
	began, end := make(chan struct{}), make(chan struct{})
	x.behind.SetAnswer(func(r *sip.Request) (*sip.Disposition, error) {
		close(began)
		<-end
		return testserver.Accepts(r)
	})
	answered := make(chan bool, 1)
	go func() { answered <- x.ask("gate", "under way", mapOf("under way"), true) }()
	<-began
	t.Cleanup(func() {
		close(end)
		<-answered
	})
	x.notify("/sip/kept", sourceOf("unknown")+rejectedFor("out of range"))
	x.notify("/sip/kept", sourceOf("unknown")+acceptedAs("nowhere"))
	for _, state := range submission.States() {
		if len(x.in(state)) == 0 {
			t.Errorf("no submission is %s", state)
		}
	}
	return x
}

// decide settles a submission under review.
func (x *submissionBridge) decide(name string, accept bool) {
	x.t.Helper()
	for _, s := range x.in(submission.StateProvisional) {
		if s.Set == "desk" && s.SourceIdentifier == name {
			if _, err := x.bridge.Decide(context.Background(), daemon.Decision{ID: s.ID, Accept: accept}); err != nil {
				x.t.Fatal(err)
			}
			return
		}
	}
	x.t.Fatalf("%s is not under review", name)
}

func (x *submissionBridge) notices(state submission.DeliveryState) []submission.OutgoingNotification {
	x.t.Helper()
	var out []submission.OutgoingNotification
	for _, set := range []string{"desk", "gate"} {
		found, err := x.bridge.SIP.Outgoing(context.Background(), set, state, 0, 1000)
		if err != nil {
			x.t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// copied is a data folder as the bridge would leave it if it were killed now.
func (x *submissionBridge) copied() string {
	x.t.Helper()
	folder := x.t.TempDir()
	for _, name := range []string{eventlog.FileName, "content.db"} { // contents last
		tamper(x.t, filepath.Join(x.config.Data, name), "VACUUM INTO ?", filepath.Join(folder, name))
	}
	return folder
}

// tamper changes a database behind the bridge's back.
func tamper(t *testing.T, file, text string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// findings is what bridge verify says of a data folder.
func findings(t *testing.T, folder string) (out []string) {
	t.Helper()
	h, err := daemon.Open(t.Context(), &config.Config{Data: folder, BaseURL: "http://bridge.example"}, daemon.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Verify(t.Context(), true, func(f daemon.Finding) { out = append(out, f.Where+": "+f.What+": "+f.Do) })
	if err := errors.Join(err, h.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

// Whatever state submissions are in, verify has nothing to say; and what it says
// when a record is gone, is damaged or is another one, is that and nothing else.
func TestVerifySubmitted(t *testing.T) {
	testenv.Heavy(t)
	x := everyState(t)
	if found := findings(t, x.copied()); len(found) > 0 {
		t.Fatalf("of a sound folder: %q", found)
	}
	where := func(s *submission.Submission) string { return "content " + hex.EncodeToString(s.Content[:]) + ": " }
	remove := func(t *testing.T, folder string, s *submission.Submission) {
		tamper(t, filepath.Join(folder, "content.db"), "DELETE FROM content WHERE sum = ?", s.Content[:])
	}
	for _, state := range []submission.State{submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional} {
		t.Run("gone while "+state.String(), func(t *testing.T) {
			i := slices.IndexFunc(x.in(state), func(s submission.Submission) bool { return s.Seq == 0 })
			s, folder := &x.in(state)[i], x.copied()
			remove(t, folder, s)
			wantFinding(t, folder, fmt.Sprintf("%ssubmission %d of set %s, which is %s, keeps its record there, and it is not there: restore the contents", where(s), s.ID, s.Set, state))
		})
	}
	// The record of what a target sends, or what was accepted, is that of an event.
	for _, state := range []submission.State{submission.StateWaiting, submission.StateProvisional, submission.StateUnresolved, submission.StateUnsent, submission.StateAccepted} {
		t.Run("gone from a target, or from whoever reads, while "+state.String(), func(t *testing.T) {
			i := slices.IndexFunc(x.in(state), func(s submission.Submission) bool {
				return s.Seq != 0 || s.Set == "desk" && state == submission.StateAccepted
			})
			s, folder := &x.in(state)[i], x.copied()
			remove(t, folder, s)
			found := findings(t, folder)
			if len(found) == 0 || slices.ContainsFunc(found, func(f string) bool { return !strings.HasPrefix(f, where(s)+"it is not there; event ") }) {
				t.Errorf("%q", found)
			}
		})
	}
	t.Run("damaged", func(t *testing.T) {
		s, folder := &x.in(submission.StateInDoubt)[0], x.copied()
		tamper(t, filepath.Join(folder, "content.db"), "UPDATE content SET bytes = zeroblob(length) WHERE sum = ?", s.Content[:])
		wantFinding(t, folder, where(s))
	})
	t.Run("of another length", func(t *testing.T) {
		s, folder := x.in(submission.StateInDoubt)[0], x.copied()
		l, err := eventlog.Open(t.Context(), folder, eventlog.Options{AcceptClock: true})
		if err == nil {
			s.Length++
			_, err = store.New(l).Write(t.Context(), &submission.Batch{Source: s.Source, Updates: []submission.Update{{Submission: s}}})
			err = errors.Join(err, l.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		wantFinding(t, folder, fmt.Sprintf("%ssubmission %d of set gate, which is in doubt, says that its record there has %d bytes, and it has %d", where(&s), s.ID, s.Length, s.Length-1))
	})
	t.Run("no store", func(t *testing.T) {
		folder := x.copied()
		if err := os.Remove(filepath.Join(folder, "content.db")); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, folder, "content.db: it is not there, and set desk is a mirror")
	})
}

// wantFinding fails unless verify finds one thing, and that.
func wantFinding(t *testing.T, folder, want string) {
	t.Helper()
	if found := findings(t, folder); len(found) != 1 || !strings.HasPrefix(found[0], want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// TestVerifySubmitted_NoEvents: a set that only reviews has no event, and its
// records are missed all the same.
func TestVerifySubmitted_NoEvents(t *testing.T) {
	x := newSubmissionBridge(t)
	x.ask("desk", "1", mapOf("1"), true)
	folder := x.copied()
	if err := os.Remove(filepath.Join(folder, "content.db")); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, folder, "content.db: it is not there, and the records of submissions are kept in it: restore the contents")
}

// TestSubmittedRecordsAreKept: nothing cleans away a record that no event names;
// it is there, byte for byte, for whoever decides months later.
func TestSubmittedRecordsAreKept(t *testing.T) {
	x := newSubmissionBridge(t)
	tamper(t, filepath.Join(x.config.Data, "content.db"), "CREATE TRIGGER kept BEFORE DELETE ON content BEGIN SELECT RAISE(ABORT, 'a content is removed'); END")
	record := mapOf("undecided")
	x.ask("desk", "undecided", record, true)
	s := x.in(submission.StateProvisional)[0]
	if s.Content != sha256.Sum256([]byte(record)) || x.last() != 0 {
		t.Fatalf("%d events, and %+v", x.last(), s)
	}
	for range 2 {
		x.restart(func() { x.clock.pass(40 * 24 * time.Hour) })
		x.take("something else") // and its documents are made
		x.page("desk")
		x.get("/sets/desk/resourcelist.xml")
	}
	x.verified()
	x.decide("undecided", true)
	x.verified()
	for ev := range x.eventsOf("desk", 0) {
		if got := x.get("/sets/desk/records/"+event.Key(ev.Record)).want(t, http.StatusOK); string(got.body) != record {
			t.Errorf("served is %q, want %q", got.body, record)
		}
	}
}

// A damaged submission does not keep the records of the others from being looked up.
func TestVerifySubmitted_BesideADamagedOne(t *testing.T) {
	x := newSubmissionBridge(t)
	x.ask("desk", "1", mapOf("1"), true)
	x.ask("desk", "2", mapOf("2"), true)
	second, folder := sha256.Sum256([]byte(mapOf("2"))), x.copied()
	tamper(t, filepath.Join(folder, eventlog.FileName), "UPDATE submission SET title = 'other' WHERE id = ?", 1)
	tamper(t, filepath.Join(folder, "content.db"), "DELETE FROM content WHERE sum = ?", second[:])
	found := findings(t, folder)
	if len(found) != 2 || !slices.ContainsFunc(found, func(f string) bool {
		return strings.Contains(f, "submission 2 of set desk, which is provisional, keeps its record there, and it is not there")
	}) {
		t.Errorf("%q", found)
	}
}
