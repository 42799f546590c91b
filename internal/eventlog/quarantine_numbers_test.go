package eventlog_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// The number of a bad input that was discarded is not that of another one while the log is
// open: who has noted it would discard, or replay, an input that nobody has seen.
func TestQuarantineNumbers(t *testing.T) {
	ctx := t.Context()
	folder := t.TempDir()
	l := mustOpen(t, folder, eventlog.Options{})
	defer func() { closed(t, l) }()
	must(t, l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Redirect}))
	source, err := l.EnsureSource(ctx, "main", "atompmh", "https://origin.example/feed.atom", 0)
	must(t, err)
	cursor, inputs := int64(0), 0
	keep := func() int64 {
		t.Helper()
		inputs++
		out, err := l.Append(ctx, &event.Batch{Source: source, Cursor: cursor, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}},
			Quarantine: []event.Quarantined{{URL: "https://origin.example/feed.atom", Rule: "S2", Reason: "bad", Input: fmt.Appendf(nil, "input %d", inputs)}}})
		must(t, err)
		cursor = out.Cursor
		all, err := l.QuarantinePage(ctx, event.QuarantineQuery{Newest: true, Limit: 1})
		must(t, err)
		return all[0].ID
	}
	for _, reopened := range []bool{false, true} {
		noted := keep()
		if reopened {
			closed(t, l)
			l = mustOpen(t, folder, eventlog.Options{})
		}
		must(t, l.Discard(ctx, noted))
		if other := keep(); other == noted {
			t.Errorf("another input got the number %d of one that was discarded", noted)
		}
		if err := l.Discard(ctx, noted); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("number %d was discarded again: %v", noted, err)
		}
	}
}
