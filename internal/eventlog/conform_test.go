package eventlog_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/eventlog/eventlogtest"
)

// sqlite is the log as package conform knows it.
type sqlite struct{ *eventlog.Log }

func (l sqlite) Make(ctx context.Context, s eventlogtest.Set, sources ...string) ([]event.SourceID, error) {
	if err := l.EnsureSet(ctx, eventlog.SetConfig{Name: s.Name, Content: s.Content, SegmentEvents: s.SegmentEvents, SegmentHours: s.SegmentHours}); err != nil {
		return nil, err
	}
	var out []event.SourceID
	for rank, url := range sources {
		id, err := l.EnsureSource(ctx, s.Name, cmp.Or(s.Kind, "atompmh"), url, rank)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}

func (l sqlite) Faults(ctx context.Context) (out []string, err error) {
	err = l.Verify(ctx, func(f eventlog.Finding) { out = append(out, fmt.Sprintf("%s: %s: %s", f.Where, f.What, f.Do)) })
	return out, err
}

func open(ctx context.Context, folder string, o eventlogtest.Options) (eventlogtest.Log, error) {
	l, err := eventlog.Open(ctx, folder, eventlog.Options{ReadOnly: o.ReadOnly, DryRun: o.DryRun, AcceptClock: o.AcceptClock, Clock: o.Clock, Holder: "a test"})
	if err != nil {
		return nil, err
	}
	return sqlite{l}, nil
}

func TestConform(t *testing.T) { eventlogtest.Test(t, open, raced) }

func TestLaws(t *testing.T) {
	heavy(t)
	eventlogtest.Laws(t, open)
}

func TestLinkLaws(t *testing.T) {
	heavy(t)
	eventlogtest.LinkLaws(t, open)
}
