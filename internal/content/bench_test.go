package content

import (
	"context"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// benchBatch is how many contents of benchSize bytes go into one transaction.
const (
	benchBatch = 1000
	benchSize  = 2048
)

// freshBatches returns a function that makes batches of contents never seen
// before; the time it takes is not measured.
func freshBatches(b *testing.B) func() [][]byte {
	var n uint64
	return func() [][]byte {
		b.StopTimer()
		defer b.StartTimer()
		batch := make([][]byte, benchBatch)
		for i := range batch {
			n++
			batch[i] = noise(n, benchSize)
		}
		return batch
	}
}

func perSecond(b *testing.B, unit string) {
	b.ReportMetric(float64(b.N)*benchBatch/b.Elapsed().Seconds(), unit)
}

// BenchmarkPut stores new contents of 2 KB, 1,000 a transaction, hashing
// included.
func BenchmarkPut(b *testing.B) {
	s := newStore(b)
	next := freshBatches(b)
	for b.Loop() {
		put(b, s, next()...)
	}
	perSecond(b, "contents/s")
}

// benchOnServer runs a benchmark with stores on a PostgreSQL server.
func benchOnServer(b *testing.B, bench func(*testing.B)) {
	server = testenv.SharedPostgres(b)
	defer func() { server = nil }()
	bench(b)
}

// BenchmarkPutOnServer is BenchmarkPut of a store on a server.
func BenchmarkPutOnServer(b *testing.B) { benchOnServer(b, BenchmarkPut) }

// BenchmarkOpenOnServer is BenchmarkOpen of a store on a server.
func BenchmarkOpenOnServer(b *testing.B) { benchOnServer(b, BenchmarkOpen) }

// BenchmarkPackOnServer is BenchmarkPack of a store on a server.
func BenchmarkPackOnServer(b *testing.B) { benchOnServer(b, BenchmarkPack) }

// BenchmarkPutKnown stores contents that are there already.
func BenchmarkPutKnown(b *testing.B) {
	s := newStore(b)
	batch := freshBatches(b)()
	put(b, s, batch...)
	ds := drafts(batch...)
	b.ResetTimer()
	for b.Loop() {
		if err := s.Put(context.Background(), ds...); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b, "contents/s")
}

// BenchmarkOpen reads and checks one content of 2 KB out of 20,000.
func BenchmarkOpen(b *testing.B) {
	s := newStore(b)
	next := freshBatches(b)
	var sums []Sum
	for range 20 {
		batch := next()
		put(b, s, batch...)
		for _, c := range batch {
			sums = append(sums, sumOf(c))
		}
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := read(s, sums[i*7919%len(sums)]); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.SetBytes(benchSize)
}

// BenchmarkLarge stores and reads back one content of 64 MiB, the cap of a
// record.
func BenchmarkLarge(b *testing.B) {
	s := newStore(b)
	c := noise(1, 64<<20)
	b.SetBytes(int64(len(c)))
	var n byte
	for b.Loop() {
		n++
		c[0] = n
		put(b, s, c)
		mustHold(b, s, c)
	}
}
