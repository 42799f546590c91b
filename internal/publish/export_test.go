package publish

import (
	"context"

	"github.com/pmh-bridge/bridge/event"
)

// LimitEntries makes documents of at most so many entries, for the tests beside this package.
func (p *Publisher) LimitEntries(n int) { p.limits.Entries, p.packageLimits.Entries = n, n }

// SnapshotSeq is SnapshotSeqOf of a set by its name.
func (p *Publisher) SnapshotSeq(ctx context.Context, name string) (event.Seq, error) {
	set, err := p.set(ctx, name)
	if err != nil {
		return 0, err
	}
	return p.SnapshotSeqOf(ctx, &set)
}
