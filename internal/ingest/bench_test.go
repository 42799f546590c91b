package ingest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/sip"
)

// benchClients is how many submitters there are at once.
const benchClients = 32

// BenchmarkIngest takes in records of 2 KB, in mode library, from 32 clients;
// each is answered when it is durable.
func BenchmarkIngest(b *testing.B) {
	h := newHarness(b, Library, nil)
	benchIngest(b, h, func(r *sip.Request) error {
		_, err := h.server.Ingest(context.Background(), sip.Caller{}, r)
		return err
	})
}

func benchIngest(b *testing.B, h *harness, ingest func(*sip.Request) error) {
	filling := strings.Repeat("<name>Blatt 25</name>", 95)
	var next atomic.Int64
	commits := h.faults.Calls.Load()
	b.ResetTimer()
	var wait sync.WaitGroup
	for range benchClients {
		wait.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				if err := ingest(request(fmt.Sprint("map ", n), fmt.Sprintf("<n>%d</n>%s", n, filling))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ingests/s")
	b.ReportMetric(float64(b.N)/float64(h.faults.Calls.Load()-commits), "ingests/commit")
	b.ReportMetric(0, "ns/op")
	b.StopTimer()
	if set, err := h.log.Set(context.Background(), "maps"); err != nil || set.Live != int64(b.N) {
		b.Errorf("%d records are in the log, %v, want %d", set.Live, err, b.N)
	}
}
