package server_test

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// BenchmarkChangeListOfLog makes a compressed Change List of 50,000 events that nobody has
// asked for yet, from the rows of a log in a file, and on a server that is set up by default.
func BenchmarkChangeListOfLog(b *testing.B) {
	b.Run("file", func(b *testing.B) { coldChangeList(b, "") })
	b.Run("server", func(b *testing.B) { coldChangeList(b, testenv.DefaultPostgres(b).NewSchema(b)) })
}

func coldChangeList(b *testing.B, url string) {
	const events = 50_000
	ctx := b.Context()
	log, err := eventlog.Open(ctx, b.TempDir(), eventlog.Options{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	if err := log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Reference, SegmentEvents: events}); err != nil {
		b.Fatal(err)
	}
	src, err := log.EnsureSource(ctx, "main", "atompmh", "https://repository.example/feed.atom", 0)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 10_000
	for from := 0; from <= events; from += batch { // one more closes the segment
		p, err := log.Progress(ctx, src)
		if err != nil {
			b.Fatal(err)
		}
		items := make([]event.Item, batch)
		for i := range items {
			n := from + i
			o := &items[i].Observation
			*o = event.Observation{Record: fmt.Sprintf("urn:uuid:%08x-8000-4000-8000-%012x", uint32(n)*2654435761, n), Title: fmt.Sprintf("Record number %d of the catalogue", n),
				Order: event.StampFromNanos(int64(1_700_000_000_000_000_000 + n)), Modified: event.StampFromNanos(int64(1_700_000_000_000_000_000 + n)),
				Representations: []event.Representation{{Href: fmt.Sprintf("https://repository.example/records/%d.xml", n), Type: "application/xml", Length: event.NoLength}}}
			o.Claim = o.ClaimOf()
		}
		if _, err := log.Append(ctx, &event.Batch{Source: src, Cursor: p.Cursor.Version, Start: p.Cursor.Data == nil, Next: fmt.Append(nil, from+batch),
			Documents: []event.Document{{URL: fmt.Sprintf("https://repository.example/%d.atom", from)}}, Items: items}); err != nil {
			b.Fatal(err)
		}
	}
	folder := b.TempDir()
	read := func(n int) {
		p, err := publish.New(publish.Options{Log: log, BaseURL: "https://bridge.example", CacheDir: filepath.Join(folder, fmt.Sprint(n)), CacheBytes: 1 << 30, SnapshotDir: filepath.Join(folder, "snapshots")})
		if err != nil {
			b.Fatal(err)
		}
		d, err := p.Document(ctx, "/sets/main/changelist/1.xml", true)
		if err != nil {
			b.Fatal(err)
		}
		body, _, err := d.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, body)
		}
		if err != nil {
			b.Fatal(err)
		}
		body.Close()
	}
	read(-1) // the first time rows are read they are written too, by both engines' means
	b.ResetTimer()
	for n := range b.N {
		read(n)
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "urls/s")
}
