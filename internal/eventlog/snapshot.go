package eventlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// Snapshot is a log at one moment, for a copy beside the process that writes it.
type Snapshot struct {
	*database.Snapshot
	Sets []event.Set
	// Last is the last event, Observed when it was observed; 0 when there is none.
	Last     event.Seq
	Observed event.Micros
	// Loss is what the log has lost, nil when nothing. A process that opens it for
	// writing begins a new epoch.
	Loss *Loss
}

// TakeSnapshot begins a Snapshot of the log in a data folder, which must not have been moved
// to another one: a copy of what is over would pass for a copy of what goes on. The caller
// has to close it.
func TakeSnapshot(ctx context.Context, folder string) (*Snapshot, error) {
	if err := refuseMarked(folder, false, ""); err != nil {
		return nil, err
	}
	if OnServer(folder) {
		return nil, fmt.Errorf("the log of %s is on a PostgreSQL server: copy it with pg_dump or pg_basebackup, and the data folder beside it, see docs/scale.md#backup", folder)
	}
	h, _, headErr := readHead(folder) // first: a log that is being written only grows
	copying, err := kind().Snapshot(ctx, filepath.Join(folder, FileName))
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Snapshot: copying}
	top, err := topOf(ctx, s.Query(), maxSeq)
	if err == nil {
		s.Loss, err = lossSince(ctx, s.Query(), h, headErr)
	}
	if err == nil {
		s.Sets, err = allSets(ctx, reading{s.Query()})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Last, s.Observed = top.Seq, top.Observed
	return s, nil
}
