package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
)

// Whoever asks for documents gets them, however many ask at once, while the log
// grows, the cache has no room to keep what is made, it is tidied, and others hang up.
func TestDocumentsUnderLoad(t *testing.T) {
	ctx, folder := t.Context(), t.TempDir()
	log, err := eventlog.Open(ctx, folder, eventlog.Options{Holder: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Redirect, SegmentEvents: 20}); err != nil {
		t.Fatal(err)
	}
	source, err := log.EnsureSource(ctx, "main", "atompmh", "http://source.example/feed", 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := publish.New(publish.Options{Log: log, BaseURL: "http://bridge.example", CacheDir: folder + "/cache", SnapshotDir: folder + "/snapshots", CacheBytes: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { p.Run(running) })
	var asked, given atomic.Int64
	for i := range 24 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for running.Err() == nil {
				asked.Add(1)
				ok, err := askOnce(running, p, random)
				if err != nil && running.Err() == nil {
					t.Error(err)
					return
				}
				if ok {
					given.Add(1)
				}
			}
		})
	}
	append1 := func(n, size int) {
		b := &event.Batch{Source: source, Documents: []event.Document{{URL: fmt.Sprintf("http://source.example/feed/%d", n), FeedID: "urn:f", FeedTitle: "F"}}}
		progress, err := log.Progress(ctx, source)
		if err != nil {
			t.Fatal(err)
		}
		b.Cursor = progress.Cursor.Version
		for i := range size {
			o := event.Observation{Record: fmt.Sprintf("urn:x:%d", (n+i*7)%150), Title: fmt.Sprint("Title ", n, i), Order: event.StampFromNanos(int64(n*1000+i) * 1e9)}
			o.Modified = o.Order
			if (n+i)%9 == 0 {
				o.Deleted = true
			} else {
				o.Representations = []event.Representation{{Href: fmt.Sprintf("http://source.example/%d", i), Type: "text/xml", Length: event.NoLength}}
			}
			b.Items = append(b.Items, &event.Item{Observation: o})
		}
		if _, err := log.Append(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 120 {
		append1(n, 1+n%17)
	}
	stop()
	group.Wait()
	t.Logf("%d of %d documents were given", given.Load(), asked.Load())
	if given.Load() == 0 {
		t.Error("none was given")
	}
}

// askOnce asks for one document and reads it; now and then it hangs up on the way.
func askOnce(ctx context.Context, p *publish.Publisher, random *rand.Rand) (given bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangsUp := random.IntN(4) == 0
	if hangsUp {
		go cancel()
	}
	names := []string{"feed.atom", "changelist.xml", "changelist-index.xml", "changelist/1.xml", fmt.Sprintf("changelist/%d.xml", 1+random.IntN(200)),
		fmt.Sprintf("feed/%d.atom", 1+random.IntN(200)), "complete.atom", "resourcelist.xml"}
	path := "/sets/main/" + names[random.IntN(len(names))]
	doc, err := p.Document(ctx, path, random.IntN(2) == 0)
	switch {
	case errors.Is(err, publish.ErrNotFound), errors.As(err, new(*publish.NotReadyError)), err != nil && hangsUp && ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", path, err)
	}
	body, size, err := doc.Open()
	switch {
	case err != nil && hangsUp && ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("opening %s: %w", path, err)
	}
	n, err := io.Copy(io.Discard, body)
	if err := errors.Join(err, body.Close()); err != nil || n != size {
		return false, fmt.Errorf("reading %s: %d of %d bytes: %w", path, n, size, err)
	}
	return true, nil
}
