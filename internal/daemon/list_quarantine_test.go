package daemon_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// A change with a word that nobody knows is kept back whole: whether the
// resource is there cannot be told. Put right, it can be taken in after all.
func TestListQuarantine_UnknownChange(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{Carry: true, ChangeLists: fixtures.SingleChangeList})
	b.create("a")
	b.expect("baseline", "created a 1")
	b.origin.SetHook(fixtures.ChangeList, fixtures.Hook{Body: func(body []byte) []byte {
		return bytes.Replace(body, []byte(`change="updated"`), []byte(`change="moved"`), 1)
	}})
	b.update("a")
	b.create("b")
	r := b.expect("one change of two", "created b 1")
	list := b.quarantined()
	if r.Quarantined != 1 || len(list) != 1 || list[0].Rule != "change" || list[0].Record != "urn:a" || !strings.Contains(list[0].Reason, `"moved"`) {
		t.Fatalf("in quarantine %+v", list)
	}
	if _, err := b.replay(list[0]); !errors.Is(err, harvest.ErrStillBad) {
		t.Errorf("replayed as it was: %v", err)
	}
	b.origin.ClearHook(fixtures.ChangeList)
	b.expect("the Source has put it right", "updated a 2")
}
