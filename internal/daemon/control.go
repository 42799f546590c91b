package daemon

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// ContentError: a set was made with another content mode, which is fixed.
type ContentError = eventlog.ContentError

// Replay takes quarantined input in again, and marks it when that worked.
func (b *Bridge) Replay(ctx context.Context, q *event.Quarantined) (harvest.Report, error) {
	all, err := b.Log.Sources(ctx, q.Set)
	if err != nil {
		return harvest.Report{}, err
	}
	for i := range all {
		if all[i].ID != q.Source {
			continue
		}
		src, err := b.Find(ctx, q.Set, all[i].URL)
		if err != nil {
			return harvest.Report{}, err
		}
		report, err := b.harvest.Replay(ctx, &src.Source, q)
		if err != nil {
			return report, err
		}
		return report, b.Log.Replayed(ctx, q.ID)
	}
	return harvest.Report{}, fmt.Errorf("set %s no longer has the Source it came from", q.Set)
}

// Only leaves of the configured Sources those that names name: sets, or Sources.
func (b *Bridge) Only(names []string) {
	if len(names) > 0 {
		b.Sources = slices.DeleteFunc(b.Sources, func(s *Source) bool {
			return !slices.Contains(names, s.Set) && (s.Name == "" || !slices.Contains(names, s.Name))
		})
	}
}

// PathWarning says what the operator has to do when the base URL has a path, ""
// when it has none.
func (b *Bridge) PathWarning() string {
	u, err := url.Parse(b.Config.BaseURL)
	if err != nil || u.Path == "" || u.Path == "/" {
		return ""
	}
	return fmt.Sprintf("base_url has a path: let the web server of %s answer /.well-known/resourcesync and /robots.txt with those of %s", u.Host, b.Config.BaseURL)
}
