package daemon

import (
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// D150: a bridge whose log has records that it mirrors, and whose content.db is
// empty, is not ready; with one content, or with nothing to mirror, it is.
func TestNotReadyWithoutContents(t *testing.T) {
	ctx := t.Context()
	for _, mode := range []event.Content{event.Mirror, event.Reference} {
		c := config.Default()
		c.Data = t.TempDir()
		h, err := Open(ctx, c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if err := h.ready(ctx); err != nil {
			t.Errorf("%v, empty: %v", mode, err)
		}
		if err := h.Log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: mode}); err != nil {
			t.Fatal(err)
		}
		id, err := h.Log.EnsureSource(ctx, "main", "atompmh", "https://origin.example/feed.atom", 0)
		if err != nil {
			t.Fatal(err)
		}
		draft := content.NewDraft([]byte("content"))
		item := event.Item{Observation: event.Observation{Record: "urn:example:1", Modified: event.StampFromNanos(1), Fetched: true,
			Representations: []event.Representation{{Href: "https://origin.example/1", Type: "text/plain", Length: 7, Hash: event.HashOf(draft.Sum())}}}}
		if _, err := h.Log.Append(ctx, &event.Batch{Source: id, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}, Items: []event.Item{item}}); err != nil {
			t.Fatal(err)
		}
		err = h.ready(ctx)
		if lost := mode == event.Mirror; lost != (err != nil) || lost && !strings.Contains(err.Error(), "content.db") {
			t.Errorf("%v, without contents: %v", mode, err)
		}
		if err := h.Contents.Put(ctx, draft); err != nil {
			t.Fatal(err)
		}
		if err := h.ready(ctx); err != nil {
			t.Errorf("%v, with a content: %v", mode, err)
		}
	}
}
