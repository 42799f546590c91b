package daemon_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// order is what bridge submission withdraw asks who has the data folder for.
func (h *sipBridge) order(identifier string) daemon.Decision {
	h.t.Helper()
	return daemon.Decision{Set: "main", Withdraw: identifier, Reason: "take-down notice 17"}
}

// A record that is withdrawn while the bridge serves is deleted in every document,
// and gone where it was; submitted again it is back.
func TestWithdrawnIsPublished(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.send("/sip/main", ingestOf("2", "ham"), http.StatusOK)
	loc := h.changes()[0].Loc
	h.get(loc).want(t, http.StatusOK)
	if err := decided(t, h.config.Data, h.order(id))[0]; err != nil {
		t.Fatal(err)
	}
	changes := h.changes()
	gone := changes[len(changes)-1]
	if len(changes) != 3 || gone.Meta.Change != "deleted" || gone.Loc != loc {
		t.Errorf("the Change Lists have %+v", changes)
	}
	h.checkDeleted(t, config.Mirror, gone)
	h.ask(http.MethodGet, loc+".xml").want(t, http.StatusGone)
	if all := h.resources(); len(all) != 1 || all[0].Loc == loc {
		t.Errorf("the Resource List has %+v", all)
	}
	if entries := newest(h.chain()); len(entries) != 2 || entries[id] == nil || len(entries[id].alternates()) > 0 {
		t.Errorf("the feed has %v", entries)
	}
	for url, r := range h.allDocuments() {
		if strings.Contains(string(r.body), "take-down") {
			t.Errorf("%s tells the reason", url)
		}
	}
	if !strings.Contains(h.said.String(), "take-down notice 17") {
		t.Error("the reason is not in what it says")
	}
	if again := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned; again != id {
		t.Errorf("submitted again it is %q, was %q", again, id)
	}
	h.get(loc).want(t, http.StatusOK)
	h.verified()
}

// Several are told apart, and each is answered.
func TestWithdrawSeveral(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode)+sipSet("inbox")+"[[set]]\nname = \"campus\"\n[[set.source]]\nurl = \"http://127.0.0.1:1/\"\nkind = \"atompmh\"\n")
	var orders []daemon.Decision
	for _, own := range []string{"1", "2", "3"} {
		orders = append(orders, h.order(h.send("/sip/main", ingestOf(own, own), http.StatusOK).disposition(t).Assigned))
	}
	orders[1].Withdraw = "urn:nobody"
	orders = append(orders, daemon.Decision{Set: "campus", Withdraw: "x"}, daemon.Decision{Set: "none", Withdraw: "x"})
	errs := decided(t, h.config.Data, orders...)
	for i, want := range []string{"", `no record "urn:nobody" from its SIP Source`, "", "set campus has no SIP Source: only what came by SIP can be withdrawn", `no set "none"`} {
		if got := errs[i]; (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("decision %d: %v, want %q", i, got, want)
		}
	}
	if got := len(h.resources()); got != 1 {
		t.Errorf("%d records are left, want 1", got)
	}
}

// What a set has had by SIP can be withdrawn when it is not configured any more.
func TestWithdrawWithoutConfiguration(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.halt()
	order := h.order(id)
	h.config.Sets = nil
	h.reopen()
	if done, err := h.bridge.Decide(t.Context(), order); err != nil || done.Stays {
		t.Fatalf("%+v, %v", done, err)
	}
	h.want("events", h.told("main"), "created "+id, "deleted "+id)
	h.verified()
}

// With record_url the library's record is fetched no more: not by a repeat, not
// when it is due.
func TestWithdrawnFromALibraryElsewhere(t *testing.T) {
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records()))
	l.put("1", "<r>1</r>")
	h.notify("/sip/main", sourceOf("own")+acceptedAs("1"))
	h.notify("/sip/main", sourceOf("own")+acceptedAs("2")) // the library has not got it yet
	h.await(1)
	l.wasAsked("/records/2")
	for _, id := range []string{"1", "2"} {
		if err := decided(t, h.config.Data, h.order(id))[0]; err != nil {
			t.Fatal(err)
		}
	}
	asked := len(l.paths())
	l.put("2", "<r>2</r>")
	h.notify("/sip/main", sourceOf("own")+acceptedAs("1"))
	h.notify("/sip/main", sourceOf("own")+acceptedAs("2"))
	h.settle()
	if n := h.pending(); n != 0 || len(l.paths()) != asked {
		t.Errorf("%d pending, asked for %q", n, l.paths()[asked:])
	}
	h.want("events", h.told("main"), "created 1", "deleted 1")
	h.notify("/sip/main", sourceOf("own, new")+acceptedAs("2"))
	h.await(3)
	h.want("a new notification", h.told("main"), "created 1", "deleted 1", "created 2")
	h.verified()
}

// A record that another Source of the set has too stays.
func TestWithdrawnStays(t *testing.T) {
	l := newLibrary(t)
	h := newSIPBridge(t, sipSet("main", l.records(), "[[set.source]]\nkind = \"atompmh\"\nurl = \"http://127.0.0.1:1/\""))
	l.put("1", "<r>ours</r>")
	h.notify("/sip/main", acceptedAs("1"))
	h.await(1)
	ev := h.logged(allAfter(0))[0]
	other := h.bridge.Sources()[1]
	p, err := h.bridge.Log.Progress(t.Context(), other.ID)
	if err != nil {
		t.Fatal(err)
	}
	theirs := event.Observation{Record: "1", Title: "Theirs", Representations: ev.Representations, Fetched: true}
	if _, err := h.bridge.Log.Append(t.Context(), &event.Batch{Source: other.ID, Cursor: p.Cursor.Version, Start: true,
		Documents: []event.Document{{URL: other.URL}}, Items: []*event.Item{{Observation: theirs}}}); err != nil {
		t.Fatal(err)
	}
	if err := daemon.SendDecisions(t.Context(), h.config.Data, []daemon.Decision{h.order("1")}, func(_ int, done daemon.DecisionResult) {
		if done.Error != "" || !done.Stays {
			t.Errorf("%+v", done)
		}
	}); err != nil {
		t.Fatal(err)
	}
	h.want("events", h.told("main"), "created 1", "updated 1")
	if err := h.bridge.Log.MarkSetComplete(t.Context(), "main"); err != nil { // the other Source never answers
		t.Fatal(err)
	}
	if got := len(h.resources()); got != 1 {
		t.Errorf("%d records, want 1", got)
	}
	h.verified()
}

// A record of a SIP Source of the set that is not configured any more can be withdrawn where
// another one is configured.
func TestWithdrawnFromAFormerSource(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "1"), http.StatusOK).disposition(t).Assigned
	former, err := h.bridge.Log.EnsureSource(t.Context(), "main", config.KindSIP, "https://library.example.org", 9)
	if err != nil {
		t.Fatal(err)
	}
	theirs := event.Observation{Record: "L1", Representations: h.logged(allAfter(0))[0].Representations, Fetched: true}
	theirs.Order, _ = event.StampOf(time.Now())
	if _, err := h.bridge.Log.Append(t.Context(), &event.Batch{Source: former, Mode: event.ModeSubmission,
		Documents: []event.Document{{URL: "https://library.example.org"}}, Items: []*event.Item{{Observation: theirs}}}); err != nil {
		t.Fatal(err)
	}
	for _, record := range []string{"L1", id} {
		if err := decided(t, h.config.Data, h.order(record))[0]; err != nil {
			t.Error(err)
		}
	}
	if err := decided(t, h.config.Data, h.order("L1"))[0]; err == nil || !strings.Contains(err.Error(), "withdrawn already") {
		t.Errorf("once more: %v", err)
	}
	h.want("events", h.told("main"), "created "+id, "created L1", "deleted L1", "deleted "+id)
	h.verified()
}

// An order to withdraw a record is carried out also where nothing is configured
// any more that has to do with SIP.
func TestWithdrawnWithoutAService(t *testing.T) {
	h := newSIPBridge(t, sipSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.restart(func() { h.config.Sets = nil })
	if err := decided(t, h.config.Data, h.order(id))[0]; err != nil {
		t.Fatal(err)
	}
	h.want("the events", h.told("main"), "created "+id, "deleted "+id)
}
