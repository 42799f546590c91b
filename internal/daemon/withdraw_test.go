package daemon_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// order is what bridge submission withdraw leaves for who has the data folder.
func (h *soapHouse) order(identifier string) daemon.Decision {
	h.t.Helper()
	return daemon.Decision{Set: "main", Withdraw: identifier, Seq: h.last(), Reason: "take-down notice 17"}
}

// A record that is withdrawn while the bridge serves is deleted in every document,
// and gone where it was; submitted again it is back.
func TestWithdrawnIsPublished(t *testing.T) {
	h := newSoapHouse(t, soapSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.send("/sip/main", ingestOf("2", "ham"), http.StatusOK)
	loc := h.changes()[0].Loc
	h.get(loc).want(t, http.StatusOK)
	if err := daemon.LeaveDecision(t.Context(), h.config.Data, h.order(id), time.Minute); err != nil {
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
	kinds := map[string]atompmh.Kind{}
	h.walk("feed.atom", func(e *atompmh.Entry) {
		if _, newer := kinds[e.ID]; !newer {
			kinds[e.ID] = e.Kind
		}
	})
	if len(kinds) != 2 || kinds[id] != atompmh.Deletion {
		t.Errorf("the feed has %v", kinds)
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

// A decision that was left lives through the end of the process that should take
// it, before it has and after; and what was submitted anew meanwhile is not meant.
func TestWithdrawalAndCrash(t *testing.T) {
	h := newSoapHouse(t, soapSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.halt()
	order := h.order(id)
	h.close()
	err := daemon.LeaveDecision(t.Context(), h.config.Data, order, 0)
	if err == nil || !strings.Contains(err.Error(), "has not taken it yet: see bridge log --set main") {
		t.Errorf("nobody is there: %v", err)
	}
	h.run()
	h.await(2)
	h.want("taken", h.told("main"), "created "+id, "deleted "+id)
	decisions := filepath.Join(h.config.Data, "decisions")
	left := func() bool {
		files, err := os.ReadDir(decisions)
		return err == nil && len(files) > 0
	}
	eventually(t, "nothing is left", func() bool { return !left() })

	// As a crash leaves it between the commit and the end of the file.
	h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK)
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	h.halt()
	h.close()
	if err := os.WriteFile(filepath.Join(decisions, "1.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	h.run()
	eventually(t, "it was taken", func() bool { return !left() })
	h.want("not meant", h.told("main"), "created "+id, "deleted "+id, "created "+id)
	h.verified()
}

// Several are told apart, and each is answered.
func TestWithdrawSeveral(t *testing.T) {
	h := newSoapHouse(t, soapSet("main", libraryMode)+soapSet("inbox")+"[[set]]\nname = \"campus\"\n[[set.source]]\nurl = \"http://127.0.0.1:1/\"\nkind = \"atompmh\"\n")
	var orders []daemon.Decision
	for _, own := range []string{"1", "2", "3"} {
		orders = append(orders, h.order(h.send("/sip/main", ingestOf(own, own), http.StatusOK).disposition(t).Assigned))
	}
	orders[1].Withdraw = "urn:nobody"
	orders = append(orders, daemon.Decision{Set: "campus", Withdraw: "x"}, daemon.Decision{Set: "none", Withdraw: "x"})
	errs := daemon.LeaveDecisions(t.Context(), h.config.Data, orders, time.Minute)
	for i, want := range []string{"", `no record "urn:nobody" from its SIP Source`, "", "set campus has no SIP Source: only what came by SIP can be withdrawn", `no set "none"`} {
		if got := errs[i]; (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("decision %d: %v, want %q", i, got, want)
		}
	}
	if got := len(h.resources()); got != 1 {
		t.Errorf("%d records are left, want 1", got)
	}
}

// Where nobody takes decisions all of them together are waited for as long as one
// is, and stay.
func TestDecisionsThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, begin := t.TempDir(), time.Now()
		errs := daemon.LeaveDecisions(t.Context(), folder, []daemon.Decision{{Set: "main", Withdraw: "a"}, {ID: 7}, {Set: "main", Resend: "unsent"}}, time.Minute)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("it took %v", took)
		}
		for i, want := range []string{
			`the decision on record "a" of set main was left for the process that holds the data folder, which has not taken it yet: see bridge log --set main`,
			"the decision on submission 7 was left for the process that holds the data folder, which has not taken it yet: see bridge submission show 7",
			"the decision on the submissions of set main was left for the process that holds the data folder, which has not taken it yet: see bridge status",
		} {
			if errs[i] == nil || errs[i].Error() != want {
				t.Errorf("decision %d: %v, want %s", i, errs[i], want)
			}
		}
		if files, err := filepath.Glob(filepath.Join(folder, "decisions", "*.json")); err != nil || len(files) != 3 {
			t.Errorf("there are %q, %v", files, err)
		}
	})
}

// What a set has had by SIP can be withdrawn when it is not configured any more.
func TestWithdrawWithoutConfiguration(t *testing.T) {
	h := newSoapHouse(t, soapSet("main", libraryMode))
	id := h.send("/sip/main", ingestOf("1", "spam"), http.StatusOK).disposition(t).Assigned
	h.halt()
	order := h.order(id)
	h.config.Sets = nil
	h.reopen()
	if err := h.house.Decide(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	h.want("events", h.told("main"), "created "+id, "deleted "+id)
	if stays, err := h.house.Stays(t.Context(), "main", id); err != nil || stays {
		t.Errorf("it stays: %v, %v", stays, err)
	}
	h.verified()
}

// With record_url the library's record is fetched no more: not by a repeat, not
// when it is due.
func TestWithdrawnFromALibraryElsewhere(t *testing.T) {
	l := newLibrary(t)
	h := newSoapHouse(t, soapSet("main", l.records()))
	l.put("1", "<r>1</r>")
	h.notify("/sip/main", sourceOf("own")+acceptedAs("1"))
	h.notify("/sip/main", sourceOf("own")+acceptedAs("2")) // the library has not got it yet
	h.await(1)
	l.wasAsked("/records/2")
	for _, id := range []string{"1", "2"} {
		if err := daemon.LeaveDecision(t.Context(), h.config.Data, h.order(id), time.Minute); err != nil {
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
	h := newSoapHouse(t, soapSet("main", l.records(), "[[set.source]]\nkind = \"atompmh\"\nurl = \"http://127.0.0.1:1/\""))
	l.put("1", "<r>ours</r>")
	h.notify("/sip/main", acceptedAs("1"))
	h.await(1)
	ev := h.logged(allAfter(0))[0]
	other := h.house.Sources[1]
	p, err := h.house.Log.Progress(t.Context(), other.ID)
	if err != nil {
		t.Fatal(err)
	}
	theirs := event.Observation{Record: "1", Title: "Theirs", Representations: ev.Representations, Fetched: true}
	if _, err := h.house.Log.Append(t.Context(), &event.Batch{Source: other.ID, Cursor: p.Cursor.Version, Start: true,
		Documents: []event.Document{{URL: other.URL}}, Items: []event.Item{{Observation: theirs}}}); err != nil {
		t.Fatal(err)
	}
	if err := daemon.LeaveDecision(t.Context(), h.config.Data, h.order("1"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if stays, err := h.house.Stays(t.Context(), "main", "1"); err != nil || !stays {
		t.Errorf("it stays: %v, %v", stays, err)
	}
	h.want("events", h.told("main"), "created 1", "updated 1")
	if got := len(h.resources()); got != 1 {
		t.Errorf("%d records, want 1", got)
	}
	h.verified()
}
