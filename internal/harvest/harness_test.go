package harvest_test

import (
	"context"
	"math"
	"net/http"
	"os"
	"path/filepath"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// tester is a test, or one case of a property.
type tester interface {
	rapid.TB
	Cleanup(func())
}

// tempDir returns a folder that is removed when the test, or the case, has ended.
func tempDir(t tester) string {
	folder, err := os.MkdirTemp("", "harvest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// harness is a log with the set main, and a Source of that set.
type harness struct {
	t        tester
	log      *eventlog.Log
	contents *content.Store
	harvest  *harvest.Harvester
	src      harvest.Source
	seen     event.Seq // the last event that was told
}

func newHarness(t tester, folder string, mode event.Content, o eventlog.Options) *harness {
	h := &harness{t: t, src: harvest.Source{Set: "main", Content: mode}}
	ctx := context.Background()
	o.Holder = "a test"
	var err error
	h.log, err = eventlog.Open(ctx, folder, o)
	h.must(err)
	t.Cleanup(func() { h.must(h.log.Close()) })
	h.contents, err = content.Open(ctx, filepath.Join(folder, "content.db"), content.Options{})
	h.must(err)
	t.Cleanup(func() { h.must(h.contents.Close()) })
	h.harvest = &harvest.Harvester{Log: h.log, Contents: h.contents}
	h.must(h.log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: mode}))
	return h
}

func (h *harness) must(err error) {
	if err != nil {
		h.t.Helper()
		h.t.Fatal(err)
	}
}

// from makes the Source one of a server.
func (h *harness) from(kind, url string, client *http.Client) {
	h.src.Kind, h.src.URL, h.src.Client, h.src.Selection.PublicURL = kind, url, client, ""
	var err error
	h.src.ID, err = h.log.EnsureSource(context.Background(), h.src.Set, kind, url, 0)
	h.must(err)
}

// told returns what say says of each event since it was called last.
func (h *harness) told(say func(*event.Event) string) (out []string) {
	h.t.Helper()
	for ev, err := range h.log.Events(context.Background(), h.src.Set, event.Range{After: h.seen, Upto: math.MaxInt64}) {
		h.must(err)
		h.seen = ev.Seq
		out = append(out, say(ev))
	}
	return out
}

// verify fails if the log finds fault with itself.
func (h *harness) verify() {
	h.t.Helper()
	h.must(h.log.Verify(context.Background(), func(f eventlog.Finding) { h.t.Errorf("the log finds fault with itself: %s: %s", f.Where, f.What) }))
}
