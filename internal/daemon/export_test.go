package daemon

import "github.com/pmh-bridge/bridge/internal/harvest"

// Harvester returns the Harvester, for tests that limit it or move its clock.
func (b *Bridge) Harvester() *harvest.Harvester { return b.harvest }
