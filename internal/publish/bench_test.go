package publish

import (
	stdgzip "compress/gzip"
	"context"
	"encoding/xml"
	"io"
	"iter"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/translate"
)

// stream is a log that makes its events up as they are read, so that what is
// measured is publishing.
type stream struct {
	*sliceLog
	records int
}

func newStream(records int) *stream {
	l := newLog().make("main", event.Mirror, 50_000)
	s := l.sets["main"]
	s.set.Live, s.set.Last, s.set.LastObserved = int64(records), event.Seq(records), created+event.Micros(records)
	s.segments = []event.Segment{
		{N: 1, From: created, Until: created + 50_000, First: 1, Last: 50_000, Events: 50_000, Entries: 50_000, Weight: 40 << 20},
		{N: 2, From: created + 50_000},
	}
	return &stream{l, records}
}

func (s *stream) sequence(n int) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		events := make([]event.Event, 1000)
		for i := range events {
			events[i] = sample(event.Created, i*2, 1)
		}
		for i := range n {
			e := &events[i%len(events)]
			e.Seq, e.Observed = event.Seq(i+1), created+event.Micros(i+1)
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *stream) Events(context.Context, string, event.Range) iter.Seq2[*event.Event, error] {
	return s.sequence(50_000)
}

func (s *stream) Live(context.Context, string, event.Seq) iter.Seq2[*event.Event, error] {
	return s.sequence(s.records)
}

func (s *stream) Listed(context.Context, string, event.Seq) iter.Seq2[*event.Event, error] {
	return s.sequence(s.records)
}

func perURL(b *testing.B, urls int) {
	b.ReportMetric(float64(urls)*float64(b.N)/b.Elapsed().Seconds(), "urls/s")
}

// BenchmarkChangeListCold: 50,000 events to a compressed Change List.
func BenchmarkChangeListCold(b *testing.B) {
	p := newPublisher(b, newStream(50_000))
	it := changeList(p.log.(*stream).sets["main"].set, p.log.(*stream).sets["main"].segments[0])
	b.Run("compressed", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if err := p.render(it, true)(b.Context(), io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		perURL(b, 50_000)
	})
	b.Run("plain", func(b *testing.B) {
		for range b.N {
			if err := p.render(it, false)(b.Context(), io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		perURL(b, 50_000)
	})
	b.Run("cached", func(b *testing.B) {
		for range b.N {
			p.cache.forgetFolder("closed")
			body, _, err := p.cached(b.Context(), it, true)
			if err != nil {
				b.Fatal(err)
			}
			body.Close()
		}
		perURL(b, 50_000)
	})
	b.Run("rival/encodingxml+gzip6", func(b *testing.B) { rival(b, p, stdgzip.DefaultCompression) })
	b.Run("rival/encodingxml+gzip1", func(b *testing.B) { rival(b, p, 1) })
}

// BenchmarkArchiveCold: the same events to a compressed archive document.
func BenchmarkArchiveCold(b *testing.B) {
	p := newPublisher(b, newStream(50_000))
	s := p.log.(*stream).sets["main"]
	it := archive(s.set, 1, s.segments[0], s.segments[1])
	for _, gzip := range []bool{true, false} {
		b.Run(map[bool]string{true: "compressed", false: "plain"}[gzip], func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if err := p.render(it, gzip)(b.Context(), io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			perURL(b, 50_000)
		})
	}
}

type xmlLink struct {
	Rel      string `xml:"rel,attr"`
	Href     string `xml:"href,attr"`
	Modified string `xml:"modified,attr,omitempty"`
	Hash     string `xml:"hash,attr,omitempty"`
	Length   int64  `xml:"length,attr"`
	Type     string `xml:"type,attr,omitempty"`
}

type xmlURL struct {
	XMLName xml.Name `xml:"url"`
	Loc     string   `xml:"loc"`
	LastMod string   `xml:"lastmod"`
	MD      struct {
		Change   string `xml:"change,attr"`
		Datetime string `xml:"datetime,attr"`
		Hash     string `xml:"hash,attr"`
		Length   int64  `xml:"length,attr"`
		Type     string `xml:"type,attr"`
		ID       string `xml:"b:id,attr"`
		Title    string `xml:"b:title,attr"`
	} `xml:"rs:md"`
	Links []xmlLink `xml:"rs:ln"`
}

// rival writes the same entries with the standard library alone.
func rival(b *testing.B, p *Publisher, level int) {
	for range b.N {
		zw, err := stdgzip.NewWriterLevel(io.Discard, level)
		if err != nil {
			b.Fatal(err)
		}
		enc := xml.NewEncoder(zw)
		for e, err := range p.log.Events(b.Context(), "main", event.Range{}) {
			if err != nil {
				b.Fatal(err)
			}
			u := xmlURL{Loc: translate.RecordURL(p.base, "main", e.Record), LastMod: e.Observed.Time().Format("2006-01-02T15:04:05Z")}
			r, _ := e.Pref()
			u.MD.Change, u.MD.Datetime, u.MD.Hash, u.MD.Length, u.MD.Type = e.Kind.String(), e.Observed.String(), r.Hash, r.Length, r.Type
			u.MD.ID, u.MD.Title = e.Record, e.Title
			u.Links = []xmlLink{{Rel: "via", Href: e.Via.Href, Modified: e.Via.Modified.String(), Hash: e.Via.Hash, Length: e.Via.Length, Type: e.Via.Type}}
			if err := enc.Encode(&u); err != nil {
				b.Fatal(err)
			}
		}
		if err := enc.Close(); err != nil {
			b.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			b.Fatal(err)
		}
	}
	perURL(b, 50_000)
}

// BenchmarkSnapshot: a million records into durable, compressed parts.
func BenchmarkSnapshot(b *testing.B) {
	const records = 1_000_000
	for range b.N {
		p := newPublisher(b, newStream(records))
		if err := p.Snapshot(b.Context(), "main"); err != nil {
			b.Fatal(err)
		}
		if seq, err := p.SnapshotSeq(b.Context(), "main"); err != nil || seq != records {
			b.Fatal(seq, err)
		}
	}
	perURL(b, records)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/1e6, "MB-from-OS")
}

// BenchmarkGzipLevels is why the compression is the fastest there is.
func BenchmarkGzipLevels(b *testing.B) {
	p := newPublisher(b, newStream(50_000))
	it := changeList(p.log.(*stream).sets["main"].set, p.log.(*stream).sets["main"].segments[0])
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
