package eventlog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A log that has lost events, and from which sets were removed, is whole wherever the events of
// these stood: before the loss, after it, or on both sides, and with others behind them or not.
func TestVerifyRemovedAndLost(t *testing.T) {
	t.Parallel()
	for _, steps := range []string{
		"stays lose goes remove", "goes stays lose remove", "goes stays lose goes remove", "stays goes lose remove", "stays goes lose goes remove stays",
		"goes lose remove stays", "stays lose goes lose remove", "stays lose goes remove lose stays", "goes lose goes remove", "stays lose goes remove goes",
		"goes remove lose stays", "goes remove stays lose", "goes stays remove lose goes remove",
	} {
		t.Run(steps, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			l := mustOpen(t, folder, eventlog.Options{})
			defer func() { closed(t, l) }()
			n := 0
			for step := range strings.FieldsSeq(steps) {
				switch step {
				case "lose":
					closed(t, l)
					must(t, os.Remove(filepath.Join(folder, eventlog.HeadName)))
					l = mustOpen(t, folder, eventlog.Options{})
				case "remove":
					must(t, l.RemoveSet(t.Context(), "goes"))
					must(t, l.FinishRemovals(t.Context()))
				default:
					must(t, l.EnsureSet(t.Context(), eventlog.SetConfig{Name: step, Content: event.Reference}))
					id, err := l.EnsureSource(t.Context(), step, "atompmh", "https://origin.example/"+step, 0)
					must(t, err)
					p, err := l.Progress(t.Context(), id)
					must(t, err)
					b := &event.Batch{Source: id, Cursor: p.Cursor.Version, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}}
					for range 10 {
						n++
						href := fmt.Sprintf("https://origin.example/%d", n)
						b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: href, Loc: href, Representations: []event.Representation{{Name: "a", Href: href}}}})
					}
					_, err = l.Append(t.Context(), b)
					must(t, err)
				}
				must(t, l.Verify(t.Context(), func(f eventlog.Finding) { t.Errorf("after %s: %+v", step, f) }))
				if _, err := eventsIn(l, ""); err != nil {
					t.Errorf("after %s: %v", step, err)
				}
				closed(t, l)
				l = mustOpen(t, folder, eventlog.Options{})
				if step != "lose" && l.Loss() != nil {
					t.Errorf("after %s: the log has lost: %v", step, l.Loss())
				}
			}
		})
	}
}
