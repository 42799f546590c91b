package daemon

import (
	"os"
	"runtime/debug"
)

// memoryGoal is what the collector keeps the heap near: enough for a batch that
// is written, the next one, and room to work.
const memoryGoal = 128 << 20

// LimitMemory keeps this process small: without it the heap grows to twice what
// is in use before it is collected. Above the goal the collector works harder,
// and nothing fails. GOGC or GOMEMLIMIT in the environment win. A command calls
// it once, when it starts.
func LimitMemory() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
}
