package database

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkDo stores one row a call, by some callers at once. Callers that wait share
// a COMMIT, and with it a sync of the disk: commits/row tells how many.
func BenchmarkDo(b *testing.B) {
	for _, callers := range []int{1, 4, 32} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			path := b.TempDir() + "/bench.db"
			if err := testKind.Create(b.Context(), path); err != nil {
				b.Fatal(err)
			}
			var commits, next atomic.Int64
			w, err := testKind.OpenWriter(b.Context(), path, WriterOptions{AfterCommit: func(context.Context, *Tx) error {
				commits.Add(1)
				return nil
			}})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						if err := w.Do(b.Context(), func(ctx context.Context, tx *Tx) error { return insert(ctx, tx, int(n), 0) }); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(commits.Load())/float64(b.N), "commits/row")
		})
	}
}
