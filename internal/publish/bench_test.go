package publish

import (
	"context"
	"iter"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/event"
)

// stream is a log that makes the events of a Change List up as they are read.
type stream struct{ *sliceLog }

func newStream(records int) stream {
	l := newLog().make("main", event.Mirror, 50_000)
	s := l.sets["main"]
	s.set.Live, s.set.Last, s.set.LastObserved = int64(records), event.Seq(records), created+event.Micros(records)
	s.segments = []event.Segment{
		{N: 1, From: created, Until: created + 50_000, First: 1, Last: 50_000, Events: 50_000, Entries: 50_000, Weight: 40 << 20},
		{N: 2, From: created + 50_000},
	}
	return stream{l}
}

func (s stream) Events(context.Context, string, event.Range) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		events := make([]event.Event, 1000)
		for i := range events {
			events[i] = sample(event.Created, i*2, 1)
		}
		for i := range 50_000 {
			e := &events[i%len(events)]
			e.Seq, e.Observed = event.Seq(i+1), created+event.Micros(i+1)
			if !yield(e, nil) {
				return
			}
		}
	}
}

// BenchmarkGzipLevels is why the compression is the fastest there is.
func BenchmarkGzipLevels(b *testing.B) {
	log := newStream(50_000)
	p, s := newPublisher(b, log), log.sets["main"]
	it := changeList(s.set, s.segments[0])
	var doc resizable
	if err := p.render(it, false)(b.Context(), &doc); err != nil {
		b.Fatal(err)
	}
	for _, level := range []int{1, 2, 5, 6} {
		b.Run(string('0'+rune(level)), func(b *testing.B) {
			var out counter
			for range b.N {
				out = 0
				zw, _ := gzip.NewWriterLevel(&out, level)
				zw.Write(doc)
				zw.Close()
			}
			b.ReportMetric(float64(len(doc))/float64(out), "ratio")
		})
	}
	b.ReportMetric(float64(len(doc)), "bytes")
}

type resizable []byte

func (r *resizable) Write(p []byte) (int, error) { *r = append(*r, p...); return len(p), nil }

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// BenchmarkDocument: what serving a closed document costs before its bytes.
func BenchmarkDocument(b *testing.B) {
	p := newPublisher(b, newLog().make("main", event.Mirror, 10).fill("main", 30))
	for range b.N {
		doc, err := p.Document(b.Context(), "/sets/main/changelist/1.xml", true)
		if err != nil {
			b.Fatal(err)
		}
		body, _, err := doc.Open()
		if err != nil {
			b.Fatal(err)
		}
		body.Close()
	}
}
