package daemon_test

import (
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
)

// TestMaxDocumentsIsNoEnd: a Source with more documents than a harvest may read is
// harvested on: what is new comes in, and the gap is shown (D108).
func TestMaxDocumentsIsNoEnd(t *testing.T) {
	p := fixtures.New(fixtures.Options{})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		p.Create(record(name, fixtures.Atom()))
		p.CloseArchive()
	}
	p.Create(record("f", fixtures.Atom()))
	b := newHarness(t, p, content(config.Reference), func(c *config.Config) { c.Sets[0].Sources[0].MaxDocuments = 3 })
	first := b.harvest()
	if first.Gap == "" || first.Created == 0 {
		t.Fatalf("the first harvest: %+v", first)
	}
	for _, name := range []string{"g", "h"} {
		p.Create(record(name, fixtures.Atom()))
		if r := b.harvest(); r.Gap == "" || r.Created != 1 {
			t.Errorf("after %s was created: %+v", name, r)
		}
	}
	b.config.Sets[0].Sources[0].MaxDocuments = 100
	b.reopen()
	if r := b.harvest(); r.Gap != "" {
		t.Errorf("with a higher cap: %+v", r)
	}
	b.wantLive()
}
