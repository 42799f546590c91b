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
	"syscall"

	"github.com/pmh-bridge/bridge/internal/limit"
)

const (
	// memoryGoal is what the collector keeps the heap near while little is in use:
	// enough for a batch that is written, the next one, and room to work.
	memoryGoal = 128 << 20
	// headroom is what a heap that is larger may grow by between two collections,
	// besides two fifths of what is in use.
	headroom = 16 << 20
)

// LimitMemory keeps this process small: without it the heap grows to twice what
// is in use before it is collected. The goal follows what is in use, since a
// fixed one that has been reached makes the collector run all the time; it ends
// at three quarters of what the machine, or the control group, has. There the
// collector works harder, and nothing fails. GOGC or GOMEMLIMIT in the
// environment win. A command calls it once, when it starts.
func LimitMemory() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	most := max(memoryGoal, memoryOf("/")/4*3)
	debug.SetMemoryLimit(memoryGoal)
	afterCollection(&memoryGoalFollower{set: memoryGoal, most: most})
}

// memoryGoalFollower moves the goal after a collection.
type memoryGoalFollower struct{ set, most int64 }

// afterCollection has f look at each collection, for which it makes garbage of its
// own.
func afterCollection(f *memoryGoalFollower) {
	runtime.SetFinalizer(&struct{ p *memoryGoalFollower }{f}, func(*struct{ p *memoryGoalFollower }) {
		f.follow()
		afterCollection(f)
	})
}

func (f *memoryGoalFollower) follow() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	// A move of less than a tenth is not worth that all goroutines stop for it.
	if goal := goalFor(int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64()), f.most); goal > f.set+f.set/10 || goal < f.set-f.set/10 {
		f.set = goal
		debug.SetMemoryLimit(goal)
	}
}

// goalFor is the goal when so much of the heap and of stacks is in use.
func goalFor(live, stacks, most int64) int64 {
	return min(max(memoryGoal, live/5*7+stacks+headroom), most)
}

// memoryOf returns how many bytes the machine has, or the control group that this
// process is in; without an answer of the system, as much as there can be. root
// is where the system's files are.
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
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // "max" is none
			most = min(most, n)
		}
	}
	return most
}

// groupFiles names the files with the limits of our control group and of those
// that it is in, of both versions.
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

// newRequestBudget returns the budget of the bytes of requests under way: of all
// protocols together, with room for several of the longest messages, and a
// quarter of it for one client.
func newRequestBudget(message int64) *limit.Bytes {
	share := max(16<<20, 2*message) // in mail a message is a third longer
	return limit.NewBytes(4*share, share)
}

// connections returns how many connections strangers may have in all, and one
// client: half of the file descriptors at most, so that the log, the cache and
// harvests have theirs.
func connections() (all, perClient int) {
	all = 4096
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil && files.Cur/2 < uint64(all) {
		all = max(int(files.Cur/2), 64)
	}
	return all, max(all/4, min(256, all*3/4))
}
