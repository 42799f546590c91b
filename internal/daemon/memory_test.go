package daemon

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// D66: the collector's goal leaves room above what is in use, until the machine's
// memory ends.
func TestGoalFollowsWhatIsInUse(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct{ live, stacks, most, want int64 }{
		{0, 0, math.MaxInt64, 128 * mib},
		{50 * mib, 10 * mib, math.MaxInt64, 128 * mib},
		{100 * mib, 30 * mib, math.MaxInt64, 186 * mib},
		{1000 * mib, 0, 768 * mib, 768 * mib},
		{0, 0, 128 * mib, 128 * mib},
	} {
		if got := goalFor(c.live, c.stacks, c.most); got != c.want {
			t.Errorf("%d MiB in use, %d MiB of stacks: goal %d MiB, want %d", c.live/mib, c.stacks/mib, got/mib, c.want/mib)
		}
	}
}

// A small heap grows by 8 MiB, a large one to twice its size.
func TestHeapGrowsByALeastAmount(t *testing.T) {
	const mib = 1 << 20
	for live, want := range map[int64]int64{0: 200, 1 * mib: 200, 4 * mib: 200, 5 * mib: 160, 8 * mib: 100, 1000 * mib: 100} {
		if got := percentFor(live); got < want-1 || got > want+1 {
			t.Errorf("%d MiB in use: %d %%, want %d", live/mib, got, want)
		}
	}
}

// D66: what there is comes from the machine, or from a control group that has less.
func TestMemoryOf(t *testing.T) {
	const machine, group0, own = "proc/meminfo", "proc/self/cgroup", "sys/fs/cgroup/system.slice/bridge.service/memory.max"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing to be read": {nil, math.MaxInt64},
		"a machine":          {map[string]string{machine: "MemTotal:        1024 kB\nMemFree: 1 kB\n"}, 1 << 20},
		"a group":            {map[string]string{machine: "MemTotal: 1024 kB\n", group0: "0::/system.slice/bridge.service\n", own: "4096\n"}, 4096},
		"a group within one": {map[string]string{group0: "0::/system.slice/bridge.service\n", own: "max\n", "sys/fs/cgroup/system.slice/memory.max": "8192\n"}, 8192},
		"a container":        {map[string]string{machine: "MemTotal: 1024 kB\n", group0: "0::/\n", "sys/fs/cgroup/memory.max": "65536\n"}, 65536},
		"version 1":          {map[string]string{group0: "4:memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "65536\n"}, 65536},
		"no limit":           {map[string]string{machine: "MemTotal: 1024 kB\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1 << 20},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if got := memoryOf(root); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}
