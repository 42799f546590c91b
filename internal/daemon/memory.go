package daemon

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/limit"
)

const (
	// memoryGoal is the memory limit while little is in use: enough for the batch that is
	// being written, the next one, and working memory.
	memoryGoal = 128 << 20
	// headroom is how many bytes a larger heap may grow between two collections, besides
	// two fifths of what is in use.
	headroom = 16 << 20
	// leastGrowth is how many bytes the heap grows at least between two collections.
	// Otherwise the heap of a server with little in use would be collected about ten times
	// a second under load, and each collection wakes all cores: with 32 submitters that
	// took a quarter of the processor time.
	leastGrowth = 8 << 20
	// The least and the most growth in percent, as in Go's GOGC. Nothing is collected before
	// the heap has 4 MiB times the growth.
	leastPercent, mostPercent = 100, 200
)

// LimitMemory keeps this process small: the heap grows to twice what is in use, and by 8
// MiB at least, before it is collected. The limit follows what is in use, since the
// collector would run all the time at a fixed limit that is reached; it is at most three
// quarters of the memory of the machine or the control group. Above that the collector
// works harder, and nothing fails. GOGC and GOMEMLIMIT in the environment take precedence.
// A command calls it once, when it starts.
func LimitMemory() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	most := max(memoryGoal, memoryOf("/")/4*3)
	debug.SetMemoryLimit(memoryGoal)
	debug.SetGCPercent(mostPercent)
	afterCollection(&memoryGoalFollower{set: memoryGoal, percent: mostPercent, most: most})
}

// memoryGoalFollower adapts the memory limit and the growth after a collection.
type memoryGoalFollower struct{ set, percent, most int64 }

// afterCollection calls f.follow after each collection: it creates garbage whose finalizer
// makes the call.
func afterCollection(f *memoryGoalFollower) {
	runtime.SetFinalizer(&struct{ p *memoryGoalFollower }{f}, func(*struct{ p *memoryGoalFollower }) {
		f.follow()
		afterCollection(f)
	})
}

func (f *memoryGoalFollower) follow() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	live, stacks := int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())
	// Setting one of them stops all goroutines. A change of less than a tenth is not worth
	// that.
	if goal := goalFor(live, stacks, f.most); differs(goal, f.set) {
		f.set = goal
		debug.SetMemoryLimit(goal)
	}
	if percent := percentFor(live); differs(percent, f.percent) {
		f.percent = percent
		debug.SetGCPercent(int(percent))
	}
}

// differs reports whether two figures differ by more than a tenth.
func differs(a, b int64) bool { return a > b+b/10 || a < b-b/10 }

// percentFor returns by how much of what is in use the heap grows before it is collected.
func percentFor(live int64) int64 {
	return min(max(leastPercent, leastGrowth/max(1, live/100)), mostPercent)
}

// goalFor returns the memory limit for the bytes of heap and stacks in use.
func goalFor(live, stacks, most int64) int64 {
	return min(max(memoryGoal, live/5*7+stacks+headroom), most)
}

// memoryOf returns the memory in bytes of the machine, or the limit of the control group of
// this process; math.MaxInt64 when neither is known. root is the folder in which /proc and
// /sys are looked up.
func memoryOf(root string) int64 {
	most := int64(math.MaxInt64)
	if b, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		if fields := strings.Fields(string(b)); len(fields) > 2 && fields[0] == "MemTotal:" {
			if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				most = kib << 10
			}
		}
	}
	for _, name := range groupFiles(root) {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // "max" means no limit
			most = min(most, n)
		}
	}
	return most
}

// groupFiles returns the files with the memory limits of our control group and its parents,
// of both versions of control groups.
func groupFiles(root string) []string {
	at := "/"
	if b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup")); err == nil {
		for line := range strings.Lines(string(b)) {
			if path, ok := strings.CutPrefix(line, "0::"); ok {
				at = filepath.Clean("/" + strings.TrimSpace(path))
			}
		}
	}
	names := []string{filepath.Join(root, "sys/fs/cgroup/memory/memory.limit_in_bytes")}
	for ; ; at = filepath.Dir(at) {
		names = append(names, filepath.Join(root, "sys/fs/cgroup", at, "memory.max"))
		if at == "/" {
			return names
		}
	}
}

// newRequestBudget returns the budget in bytes of all requests under way, of all protocols
// together. It has room for several of the longest messages, and a quarter of it is for one
// client.
func newRequestBudget(message int64) *limit.Bytes {
	share := max(16<<20, 2*message) // a message is a third longer in mail
	return limit.NewBytes(4*share, share)
}
