package content

import (
	"context"

	"github.com/pmh-bridge/bridge/internal/database"
)

// TakeSnapshot begins a Snapshot of the store in a file, for a copy beside the process
// that writes it. It has all contents that events name which were committed before. The
// caller has to close it.
func TakeSnapshot(ctx context.Context, path string) (*database.Snapshot, error) {
	return kind().Snapshot(ctx, path)
}
