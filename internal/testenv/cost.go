package testenv

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// What reading a document may cost: a fixed part, and so much for each byte that
// arrived. Reading costs about a hundredth of it, so that a loaded machine and the
// instrumentation of a fuzz run are no reason to fail, and work that grows faster
// than its input is one.
const (
	fixedTime     = 500 * time.Millisecond
	timePerByte   = 2 * time.Microsecond
	fixedMemory   = 2 << 20
	memoryPerByte = 512
)

// Affordable runs f, which reads n bytes that an unknown peer sent, in this goroutine,
// and fails the test when it took more processor time, or allocated more, than
// that many bytes may cost. Nothing else may run in the process meanwhile. It skips
// under the race detector, which takes and allocates more of both.
func Affordable(t testing.TB, n int, f func()) {
	t.Helper()
	Heavy(t)
	most, memory := fixedTime+time.Duration(n)*timePerByte, uint64(fixedMemory+n*memoryPerByte)
	took, allocated := cost(f)
	if took > most {
		t.Errorf("%d bytes took %v of processor time; want at most %v", n, took, most)
	}
	if allocated > memory {
		t.Errorf("%d bytes made it allocate %d bytes (%d each); want at most %d", n, allocated, allocated/uint64(max(n, 1)), memory)
	}
}

// AffordableAll is Affordable of each of some documents, by name; a byte may cost
// so many times what Affordable allows.
func AffordableAll(t *testing.T, docs map[string][]byte, times int, read func([]byte)) {
	t.Helper()
	for name, doc := range docs {
		t.Run(name, func(t *testing.T) {
			Affordable(t, times*len(doc), func() { read(doc) })
		})
	}
}

// FuzzAffordable is AffordableAll of any document; it begins with these.
func FuzzAffordable(f *testing.F, docs map[string][]byte, times int, read func([]byte)) {
	f.Helper()
	for _, doc := range docs {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		Affordable(t, times*len(doc), func() { read(doc) })
	})
}

// cost returns the processor time and the bytes of heap that f has used.
func cost(f func()) (took time.Duration, allocated uint64) {
	runtime.LockOSThread() // whose time is taken
	defer runtime.UnlockOSThread()
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before, start := sample[0].Value.Uint64(), threadTime()
	f()
	took = threadTime() - start
	metrics.Read(sample)
	return took, sample[0].Value.Uint64() - before
}
