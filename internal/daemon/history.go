package daemon

import (
	"context"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/status"
)

// History returns rows of the history of a Source, newest first: at most limit, with
// numbers below before; 0 means no bound. All texts are redacted.
func (b *Bridge) History(ctx context.Context, id event.SourceID, before int64, limit int) ([]status.HarvestRow, error) {
	rows, err := b.Log.Harvests(ctx, id, before, limit)
	if err != nil {
		return nil, err
	}
	out := make([]status.HarvestRow, len(rows))
	for i := range rows {
		out[i] = status.RowOf(&rows[i])
		if e := out[i].Error; e != nil {
			e.Text = Redact(e.Text)
		}
		for j := range out[i].Problems {
			out[i].Problems[j].First = Redact(out[i].Problems[j].First)
		}
	}
	return out, nil
}

// Activity returns the sums of each Source's harvests for each of the last days in UTC,
// today included, oldest first. Source 0 is the sum of all. Sources without a harvest in
// these days are left out.
func (b *Bridge) Activity(ctx context.Context, days int) (map[event.SourceID][]status.Day, error) {
	first := b.now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-days)
	stored, err := b.Log.HarvestDays(ctx, event.MicrosOf(first))
	if err != nil {
		return nil, err
	}
	none := func() []status.Day {
		out := make([]status.Day, days)
		for i := range out {
			out[i].Date = first.AddDate(0, 0, i).Format(time.DateOnly)
		}
		return out
	}
	out := map[event.SourceID][]status.Day{0: none()}
	for id, all := range stored {
		out[id] = none()
		for _, d := range all {
			at := int(d.Start.Time().Sub(first) / (24 * time.Hour))
			if at < 0 || at >= days {
				continue // a clock was ahead
			}
			for _, sum := range []*status.Day{&out[id][at], &out[0][at]} {
				sum.Harvests += d.Harvests
				sum.Failed += d.Failed
				sum.Created += d.Created
				sum.Updated += d.Updated
				sum.Deleted += d.Deleted
			}
		}
	}
	return out, nil
}
