package daemon_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// filesSet is a set that has nothing to do with SIP, as a part of a configuration file.
func filesSet(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("[[set]]\nname = \"files\"\n[[set.source]]\nkind = \"folder\"\nurl = %q\n", t.TempDir())
}

// withoutSet takes a set out of the configuration of a bridge, and restarts it.
func (h *sipBridge) withoutSet(name string) {
	h.t.Helper()
	h.restart(func() {
		h.config.Sets = slices.DeleteFunc(slices.Clone(h.config.Sets), func(s config.Set) bool { return s.Name == name })
	})
}

// What is under review is still decided when its set is not configured any more, and when
// nothing else here uses SIP: its submitters are told, and then the set can be removed.
func TestFormerReview(t *testing.T) {
	submitter := newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode)+filesSet(t))
	for _, name := range []string{"1", "2"} {
		h.send("/sip/main", requestNaming(name, submitter.URL), 200)
	}
	h.withoutSet("main")
	if _, err := h.bridge.RemoveSet(t.Context(), "main", false); err == nil || !strings.Contains(err.Error(), "2 submissions to conclude") {
		t.Errorf("removed with what is under review: %v", err)
	}
	if said, err := h.bridge.Forget(t.Context(), "main", "", true, false); err == nil || !strings.Contains(err.Error(), "2 submissions to conclude") {
		t.Fatalf("its Source is forgotten with what is under review: %q, %v", said, err)
	}
	for i, err := range decided(t, h.config.Data, daemon.Decision{ID: 1, Accept: true, Assigned: "L1"}, daemon.Decision{ID: 2, Reason: "no title"}) {
		if err != nil {
			t.Fatalf("decision %d: %v", i+1, err)
		}
	}
	var told []string
	for range 2 {
		got := submitter.next()
		reason := ""
		if got.Rejected != nil {
			reason = got.Rejected.Reason
		}
		told = append(told, got.Assigned+reason)
	}
	slices.Sort(told)
	h.want("the submitters are told", told, "L1", "no title")
	h.want("the set has", h.told("main"), "created L1", "rejected 2: no title")
	eventually(t, "the Source is forgotten", func() bool { // once it is logged that they have been told
		_, err := h.bridge.Forget(t.Context(), "main", "", true, false)
		return err == nil
	})
	if _, err := h.bridge.RemoveSet(t.Context(), "main", false); err != nil {
		t.Error(err)
	}
	h.verified()
}

// Nobody can conclude a submission or a notification that is damaged: it keeps no set from being
// removed, unless others wait beside it.
func TestRemoveSetWithDamagedSubmissions(t *testing.T) {
	submitter := newRecipient(t)
	submitter.Close()
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode)+filesSet(t))
	for _, name := range []string{"1", "2", "3"} {
		h.send("/sip/main", requestNaming(name, submitter.URL), 200)
	}
	h.withoutSet("main")
	if err := decided(t, h.config.Data, daemon.Decision{ID: 1, Accept: true, Assigned: "L1"})[0]; err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ damage, want string }{
		{"outgoing_notification SET message = 'other'", "2 submissions to conclude, and 1 notification"},
		{"submission SET title = 'other' WHERE id = 2", "2 submissions to conclude, and 1 notification"},
		{"submission SET late = 300 WHERE id = 3", ""},
	} {
		if err := h.bridge.SIP.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.Exec(ctx, "UPDATE "+c.damage) }); err != nil {
			t.Fatal(err)
		}
		_, err := h.bridge.RemoveSet(t.Context(), "main", false)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.damage, err, c.want)
		}
	}
	h.verified()
}

// What a gateway has sent on ends at its deadline when the gateway is not configured any
// more, also what a killed process was sending, and can be settled.
func TestFormerGateway(t *testing.T) {
	library, clock := testserver.NewIngestServer(t, testserver.Defers), &testClock{}
	submitter := newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", "mode = \"gateway\"\ndeadline = \"24h\"\nupstream = \""+library.URL+"\"")+filesSet(t))
	h.restart(func() { h.options.Now = clock.now })
	h.send("/sip/main", requestNaming("1", submitter.URL), 200)
	h.want("sent on", h.submissions("main"), "provisional 1 -> "+submitter.URL)
	source := h.bridge.Sources()[0].ID
	left := submission.Submission{Source: source, State: submission.StateForwarding, Request: [32]byte{1}, Tries: 1, SourceIdentifier: "2"}
	if _, err := h.bridge.SIP.Write(t.Context(), &submission.Batch{Source: source, Updates: []submission.Update{{Submission: left}}}); err != nil {
		t.Fatal(err)
	}
	h.withoutSet("main")
	eventually(t, "what was being sent is in doubt", func() bool { return slices.Contains(h.submissions("main"), "in doubt 2 -> ") })
	h.restart(func() { clock.pass(169 * time.Hour) })
	eventually(t, "all is unresolved", func() bool {
		return slices.Equal(h.submissions("main"), []string{"unresolved 1 -> " + submitter.URL, "unresolved 2 -> "})
	})
	all, err := h.bridge.SIP.Submissions(t.Context(), submission.Query{Set: "main"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		how := &daemon.Settlement{Outcome: submission.StateUnsent}
		if all[i].SourceIdentifier == "1" { // its submitter waits for a decision
			how = &daemon.Settlement{Outcome: submission.StateRejected, Reason: "lost"}
		}
		if err := decided(t, h.config.Data, daemon.Decision{ID: all[i].ID, Settle: how})[0]; err != nil {
			t.Errorf("settle %s: %v", all[i].SourceIdentifier, err)
		}
	}
	eventually(t, "its submitter is notified", func() bool {
		sent, err := h.bridge.SIP.Outgoing(t.Context(), "main", submission.DeliveryDone, 0, 10)
		return err == nil && len(sent) == 1
	})
	if _, err := h.bridge.RemoveSet(t.Context(), "main", false); err != nil {
		t.Error(err)
	}
	h.verified()
}

// What a target that is not configured any more has not answered can be settled, also when
// its set has nothing to do with SIP any more.
func TestFormerTargetSettled(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSIPBridge(t, filesSet(t)+fmt.Sprintf("[[set.submit]]\nurl = %q\n", library.URL))
	targets, err := h.bridge.Log.Targets(t.Context(), "files")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(targets, func(s eventlog.Source) bool { return s.URL == library.URL })
	silent := submission.Submission{Source: targets[i].ID, State: submission.StateUnresolved, Seq: 1, Record: "urn:1", SourceIdentifier: "urn:1", Tries: 1}
	if _, err := h.bridge.SIP.Write(t.Context(), &submission.Batch{Source: silent.Source, Updates: []submission.Update{{Submission: silent}}}); err != nil {
		t.Fatal(err)
	}
	h.restart(func() {
		h.config.Sets = slices.Clone(h.config.Sets)
		h.config.Sets[0].Submit = nil
	})
	if err := decided(t, h.config.Data, daemon.Decision{ID: 1, Settle: &daemon.Settlement{Outcome: submission.StateRejected, Reason: "too old"}})[0]; err != nil {
		t.Fatal(err)
	}
	h.want("settled", h.submissions("files"), "rejected urn:1 -> ")
	h.want("the set has", h.told("files"), "rejected urn:1: too old")
}

// An ingest server that was sent records to still says what it has decided when the set does
// not use SIP any more: the address with the token takes that, and nothing else is taken.
func TestFormerTargetIsTold(t *testing.T) {
	library, folder := testserver.NewIngestServer(t, testserver.Defers), t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "1.xml"), []byte(`<r xmlns="urn:r">1</r>`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newSIPBridge(t, fmt.Sprintf("[[set]]\nname = \"files\"\n[[set.source]]\nkind = \"folder\"\nurl = %q\n[[set.submit]]\nurl = %q\nformats = { \"{urn:r}r\" = \"http://schemas.example/r.xsd\" }\n", folder, library.URL))
	state := func() string {
		all, err := h.bridge.SIP.Submissions(t.Context(), submission.Query{Set: "files"})
		if err != nil || len(all) != 1 {
			t.Fatalf("%d submissions, %v", len(all), err)
		}
		return all[0].State.String() + " " + all[0].Assigned
	}
	eventually(t, "it is submitted", func() bool { return len(library.Requests("")) == 1 && state() == "provisional " })
	h.restart(func() {
		h.config.Sets = slices.Clone(h.config.Sets)
		h.config.Sets[0].Submit = nil
	})
	h.send("/sip/files", notifyOf(sourceOf("1")+acceptedAs("L1")), http.StatusNotFound)
	h.send("/sip/files/t0ken", notifyOf(sourceOf("1")+acceptedAs("L1")), http.StatusForbidden)
	h.ask(http.MethodGet, "/sip/files?wsdl").want(t, http.StatusNotFound)
	sent := library.Requests("")[0]
	h.send(strings.TrimPrefix(sent.Recipient, h.base), ingestOf("2", "x"), http.StatusInternalServerError)
	tell(t, sent.Recipient, sent, testserver.Accepts)
	if got, want := state(), "accepted "+testserver.AssignedTo(*sent.Source.Identifier); got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	h.verified()
}

// The ingest server behind a gateway that is not configured any more still says what it has
// decided, and the submitter is told.
func TestFormerGatewayIsTold(t *testing.T) {
	library, submitter := testserver.NewIngestServer(t, testserver.Defers), newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", "mode = \"gateway\"\nupstream = \""+library.URL+"\"")+filesSet(t))
	h.send("/sip/main", requestNaming("1", submitter.URL), 200)
	h.withoutSet("main")
	sent := library.Requests("1")[0]
	tell(t, sent.Recipient, sent, testserver.Accepts)
	if got := submitter.next(); got.Assigned != testserver.AssignedTo("1") {
		t.Errorf("the submitter is told %+v", got)
	}
	h.want("the set has", h.told("main"), "created "+testserver.AssignedTo("1"))
	h.verified()
}

// An ingest server that was sent records to says what it has decided at the address that it
// was given, also when the set was renamed since.
func TestRenamedSetIsTold(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Defers)
	h := newSubmitter(t, "", library)
	id := h.take("1")
	h.becomes(id, submission.StateProvisional)
	h.restart(func() {
		h.open()
		defer h.close()
		if _, err := h.bridge.RenameSet(t.Context(), "main", "maps", false); err != nil {
			t.Fatal(err)
		}
	})
	sent := library.Requests("")[0]
	tell(t, sent.Recipient, sent, testserver.Accepts)
	h.want("the submissions", h.submissions("maps"), "accepted "+id+" -> ")
	h.verified()
}

// The ingest servers behind sets that do not use SIP any more are listened to at the addresses
// that they were given also when such a set is renamed while bridge serves.
func TestRenamedFormerSetIsTold(t *testing.T) {
	library, submitter := testserver.NewIngestServer(t, testserver.Defers), newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", "mode = \"gateway\"\nupstream = \""+library.URL+"\"")+filesSet(t))
	h.send("/sip/main", requestNaming("1", submitter.URL), 200)
	h.withoutSet("main")
	if _, err := h.bridge.RenameSet(t.Context(), "main", "maps", false); err != nil {
		t.Fatal(err)
	}
	sent := library.Requests("1")[0]
	tell(t, sent.Recipient, sent, testserver.Accepts)
	if got := submitter.next(); got.Assigned != testserver.AssignedTo("1") {
		t.Errorf("the submitter is told %+v", got)
	}
	h.want("the set has", h.told("maps"), "created "+testserver.AssignedTo("1"))
	h.restart(nil)
	tell(t, sent.Recipient, sent, testserver.Accepts) // again
	h.want("the notifications", h.verdicts("maps"), "matched 1: accepted "+testserver.AssignedTo("1")+" x2")
	h.verified()
}

// What an ingest server accepts is published, also when it was received by a SIP Source of
// the set that is not configured any more, and another one is.
func TestFormerSourceIsPublished(t *testing.T) {
	const record = `<r xmlns="urn:r">1</r>`
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "1"), http.StatusOK).disposition(t).Assigned // which keeps the content
	h.restart(func() {
		h.open()
		defer h.close()
		former, err := h.bridge.Log.EnsureSource(t.Context(), "main", config.KindSIP, "https://library.example.org", 9)
		if err != nil {
			t.Fatal(err)
		}
		sent := submission.Submission{Source: former, State: submission.StateProvisional, Request: [32]byte{1}, Tries: 1, Token: "t0ken", Content: sha256.Sum256([]byte(record)), Length: int64(len(record))}
		if _, err := h.bridge.SIP.Write(t.Context(), &submission.Batch{Source: former, Updates: []submission.Update{{Submission: sent}}}); err != nil {
			t.Fatal(err)
		}
	})
	h.notify("/sip/main/t0ken", acceptedAs("L1"))
	h.want("the set has", h.told("main"), "created "+id, "created L1")
	h.verified()
}

// withPeer gives the SIP Source of the set main the url of its peer, "" is none, and restarts
// the bridge; with nil the set has no Source.
func (h *sipBridge) withPeer(sources []config.Source, url string) {
	h.t.Helper()
	h.restart(func() {
		h.config.Sets = slices.Clone(h.config.Sets)
		h.config.Sets[0].Sources = slices.Clone(sources)
		for i := range sources {
			h.config.Sets[0].Sources[i].URL = cmp.Or(url, "/sip/main")
		}
	})
}

// The SIP Source of a set is the same, whatever its url says of its peer: a library goes on
// with the records that it has.
func TestPeerURLChanges(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode)+"[[set.submit]]\nurl = \"http://127.0.0.1:1/\"\n")
	sources := h.config.Sets[0].Sources
	id := h.send("/sip/main", ingestOf("1", "first"), http.StatusOK).disposition(t).Assigned
	h.withPeer(sources, "https://museum.example.org")
	h.send("/sip/main", ingestOf("1", "second"), http.StatusOK)
	h.withPeer(nil, "")
	h.withPeer(sources, "")
	h.send("/sip/main", ingestOf("1", "third"), http.StatusOK)
	if err := decided(t, h.config.Data, h.order(id))[0]; err != nil {
		t.Fatal(err)
	}
	h.want("the set has", h.told("main"), "created "+id, "updated "+id, "updated "+id, "deleted "+id)
	h.verified()
}

// A record that was accepted under an identifier of somebody else, a reviewer or the ingest
// server behind a gateway, keeps it when the set becomes a library: it is updated, and is no
// second record.
func TestLibraryAfterOtherModes(t *testing.T) {
	upstream, submitter := testserver.NewIngestServer(t, testserver.Accepts), newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", reviewMode)+sipSet("gate", `formats = { "{urn:r}r" = "http://schemas.example/r.xsd" }`, "mode = \"gateway\"\nupstream = \""+upstream.URL+"\""))
	h.send("/sip/main", requestNaming("1", submitter.URL), 200)
	if err := decided(t, h.config.Data, daemon.Decision{ID: 1, Accept: true, Assigned: "B-1"})[0]; err != nil {
		t.Fatal(err)
	}
	h.send("/sip/gate", ingestOf("1", "first"), 200)
	h.restart(func() {
		for i := range h.config.Sets {
			h.config.Sets[i].Sources[0].SIP.Mode = config.Library
		}
	})
	for set, id := range map[string]string{"main": "B-1", "gate": testserver.AssignedTo("1")} {
		if got := h.send("/sip/"+set, ingestOf("1", "second"), 200).disposition(t).Assigned; got != id {
			t.Errorf("set %s: it is accepted as %q, was %q", set, got, id)
		}
		h.send("/sip/"+set, ingestOf("1", "second"), 200)
		h.want("set "+set+" has", h.told(set), "created "+id, "updated "+id)
	}
	h.verified()
}

// Where a notification of a set that is not configured any more may go, is what the
// allow_hosts in force let it, as the reload says: nothing else needs a restart for that.
func TestFormerReview_AllowedByReload(t *testing.T) {
	submitter := newRecipient(t)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\", \"localhost\"]\n"+sipSet("main", reviewMode)+filesSet(t))
	h.send("/sip/main", requestNaming("1", submitter.URL), 200)
	h.send("/sip/main", requestNaming("2", strings.Replace(submitter.URL, "127.0.0.1", "localhost", 1)), 200) // that one's pause is not its
	allow := func(hosts string) {
		t.Helper()
		text, err := os.ReadFile(h.config.File)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "allow_hosts")
		_, files, _ := strings.Cut(string(text), "[[set]]\nname = \"files\"")
		if err := os.WriteFile(h.config.File, []byte(head+"allow_hosts = ["+hosts+"]\n[[set]]\nname = \"files\""+files), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allow("")
	h.restart(func() {
		var err error
		if h.config, err = config.Load(h.config.File); err != nil {
			t.Fatal(err)
		}
	})
	decide := func(id int64) {
		t.Helper()
		if err := decided(t, h.config.Data, daemon.Decision{ID: id, Accept: true, Assigned: fmt.Sprint("L", id)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	decide(1)
	eventually(t, "the address is refused", func() bool {
		all, err := h.bridge.SIP.Outgoing(t.Context(), "main", 0, 0, 10)
		return err == nil && len(all) == 1 && strings.Contains(all[0].Reason, "allow_hosts")
	})
	allow(`"localhost"`)
	if said, err := h.bridge.Reload(t.Context()); err != nil || len(said) != 1 {
		t.Fatal(said, err)
	}
	decide(2)
	h.want("the submitter is told", []string{submitter.next().Assigned}, "L2")
}
