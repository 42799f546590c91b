package delivery

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// serverBackend serves a ingestServer to others.
type serverBackend struct {
	*ingestServer
	ingested atomic.Int64
	all      chan struct{} // closed when the last of want was ingested
	want     int64
}

func (s *serverBackend) Admit(context.Context, sip.Caller) error { return nil }

func (s *serverBackend) GetProperties(ctx context.Context, _ sip.Caller) (*sip.Properties, error) {
	return s.ingestServer.GetProperties(ctx)
}

func (s *serverBackend) Ingest(ctx context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	d, err := s.ingestServer.Ingest(ctx, r)
	if s.ingested.Add(1) == s.want {
		close(s.all)
	}
	return d, err
}

func (s *serverBackend) Notify(context.Context, sip.Caller, *sip.Disposition) error {
	return fmt.Errorf("nobody notifies an ingest server")
}

// serve puts the ingest server of a harness on loopback. all is closed when it has got so
// many requests.
func (h *harness) serve(t testing.TB, want int) (client *sip.HTTPClient, all <-chan struct{}) {
	backend := &serverBackend{ingestServer: h.server, want: int64(want), all: make(chan struct{})}
	server := httptest.NewServer(&sip.Handler{Backend: backend, Offers: sip.Operations{Ingest: true}})
	t.Cleanup(server.Close)
	own := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(own.CloseIdleConnections)
	return &sip.HTTPClient{URL: server.URL, HTTP: &http.Client{Transport: own}}, backend.all
}

// shelve makes n records of about 2 KB, each with a content of its own.
func (h *harness) keepMany(n int) {
	filler := strings.Repeat("All the world's a stage. ", 70)
	for from := 0; from < n; from += 1000 {
		var records [][2]string
		for i := from; i < min(from+1000, n); i++ {
			records = append(records, [2]string{fmt.Sprintf("urn:%07d", i), fmt.Sprintf("%s%d", filler, i)})
		}
		h.keep(records...)
	}
}

// Over real connections, with several workers, each record arrives once.
func TestSubmitterOverHTTP(t *testing.T) {
	const n = 1000
	h := newHarness(t, nil)
	h.keepMany(n)
	client, all := h.serve(t, n)
	stop := h.start(h.submitter(func(o *Submitter) { o.Server = client }))
	<-all
	stop()
	sent := map[string]int{}
	for i := range h.server.got {
		sent[*h.server.got[i].Source.Identifier]++
	}
	for _, s := range h.rows() {
		if s.State != submission.StateAccepted || sent[s.Record] != 1 {
			t.Fatalf("%s is %v (%s) after %d requests", s.Record, s.State, s.Reason, sent[s.Record])
		}
	}
	if len(sent) != n || len(h.server.got) != n || h.server.sameTwice {
		t.Errorf("%d records were sent in %d requests, want %d", len(sent), len(h.server.got), n)
	}
}

// BenchmarkDrain drains 10,000 records of 2 KB into a server in this process, over
// loopback. Its rival is the bare client: the same requests, and nothing kept.
func BenchmarkDrain(b *testing.B) {
	const records = 10_000
	h := newHarness(b, nil)
	h.keepMany(records)
	client, all := h.serve(b, records)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	stop := h.start(h.submitter(func(o *Submitter) { o.Server = client }))
	<-all
	stop()
	b.StopTimer()
	h.server.got, h.server.at, h.server.kept = nil, nil, nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(records/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(after.HeapAlloc)/1e6-float64(before.HeapAlloc)/1e6, "MB-kept")
	b.ReportMetric(0, "ns/op")
}
