package testenv

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// The allowed cost of reading a document: a fixed part, and a part for each byte that
// arrived. Reading takes about a hundredth of it, so that a loaded machine or the
// instrumentation of a fuzz run causes no failure, and work that grows faster than its
// input does.
const (
	fixedTime     = 500 * time.Millisecond
	timePerByte   = 2 * time.Microsecond
	fixedMemory   = 2 << 20
	memoryPerByte = 512
)

// Affordable runs f, which reads n bytes from an unknown peer, in this goroutine. It fails
// the test when f takes more processor time, or allocates more, than is allowed for n
// bytes, three times in a row: what an earlier test has left running, or the collector, can
// only add to it. It skips under the race detector, which makes both larger.
func Affordable(t testing.TB, n int, f func()) {
	t.Helper()
	Heavy(t)
	most, memory := fixedTime+time.Duration(n)*timePerByte, uint64(fixedMemory+n*memoryPerByte)
	took, allocated := cost(f)
	for try := 1; try < 3 && (took > most || allocated > memory); try++ {
		again, more := cost(f)
		took, allocated = min(took, again), min(allocated, more)
	}
	if took > most {
		t.Errorf("%d bytes took %v of processor time; want at most %v", n, took, most)
	}
	if allocated > memory {
		t.Errorf("%d bytes made it allocate %d bytes (%d each); want at most %d", n, allocated, allocated/uint64(max(n, 1)), memory)
	}
}

// AffordableAll is Affordable for each document of docs, by name; times multiplies the
// allowed cost of a byte.
func AffordableAll(t *testing.T, docs map[string][]byte, times int, read func([]byte)) {
	t.Helper()
	for name, doc := range docs {
		t.Run(name, func(t *testing.T) {
			Affordable(t, times*len(doc), func() { read(doc) })
		})
	}
}

// FuzzAffordable is AffordableAll for any document; docs are the seeds.
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
	runtime.LockOSThread() // the time of this thread is measured
	defer runtime.UnlockOSThread()
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before, start := sample[0].Value.Uint64(), threadTime()
	f()
	took = threadTime() - start
	metrics.Read(sample)
	return took, sample[0].Value.Uint64() - before
}
