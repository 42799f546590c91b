package daemon_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// TestList_ChangeListFailsForLong: a Change List of an index that goes on failing does not keep
// back what the others and the Resource List have.
func TestList_ChangeListFailsForLong(t *testing.T) {
	for name, o := range map[string]harvest.Options{"again": {}, "in full": {Full: true}} {
		t.Run(name, func(t *testing.T) {
			b := newListHarness(t, fixtures.SourceOptions{}, content(config.Reference))
			b.create("a", "b", "c", "d")
			b.harvest()
			for _, n := range []string{"a", "b", "c"} {
				b.apart()
				b.origin.CloseChangeList()
				b.update(n)
			}
			b.origin.SetHook(fixtures.ChangeListPart(3), answer(http.StatusInternalServerError))
			before := b.last()
			b.wantError("HTTP status 500")
			b.want("it fails once", b.eventsAfter(before), "updated c 2")
			r := b.expectOf("it fails again", o, "updated a 2", "updated b 2")
			if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], fixtures.ChangeListPart(3)+" is missing") {
				t.Errorf("%s", said(r))
			}
			b.apart()
			b.remove("d")
			b.update("c")
			b.expect("it goes on failing", "deleted d", "updated c 3")
			b.origin.ClearHook(fixtures.ChangeListPart(3))
			b.quiet("it answers", b.expect("it answers"))
			b.wantSame("in the end")
		})
	}
}

// TestList_ChangeWaitsBesideAnOlderList: a Resource List that does not say when it was made, and
// is older, takes nothing from a change whose content waits.
func TestList_ChangeWaitsBesideAnOlderList(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{})
	b.origin.Misbehave(fixtures.MissingAt)
	b.create("a", "b")
	var list []byte
	b.origin.SetHook(fixtures.ResourceList, fixtures.Hook{Body: func(body []byte) []byte {
		if list == nil {
			list = body
		}
		return list
	}})
	b.harvest()
	b.apart()
	b.update("a")
	b.origin.SetHook("/res/a", answer(http.StatusInternalServerError))
	b.expect("its content cannot be had")
	b.wantPending(1)
	b.apart()
	b.origin.CloseChangeList()
	b.update("b")
	b.expect("another change", "updated b 2")
	b.apart()
	b.origin.CloseChangeList()
	b.update("b")
	b.expect("and one more", "updated b 3")
	b.expectFull("in full")
	b.wantPending(1)
	b.origin.ClearHook("/res/a")
	if r, err := b.try(harvest.Options{AllPending: true}); err != nil || r.Updated != 1 {
		t.Errorf("%v, %s", err, said(r))
	}
	b.wantPending(0)
	b.wantSame("in the end")
}
