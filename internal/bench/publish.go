package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/publish"
)

const (
	base    = "https://bridge.example"
	segment = 50_000 // events of the longest allowed Change List
)

// openServing opens a data folder as bridge serve does without Sources.
func openServing(ctx context.Context, folder string) (*daemon.Bridge, error) {
	c, err := config.FromArguments(config.Flags{Data: folder, Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// renderDocument renders a document, each time with an empty cache; Took is the
// best time.
func renderDocument(ctx context.Context, j job, _ func(result)) (best result, err error) {
	h, err := openServing(ctx, j.Folder)
	if err != nil {
		return best, err
	}
	for range j.Repeat {
		var r result
		if r, err = renderCold(ctx, h, j.Path); err != nil {
			break
		}
		best = faster(best, r)
	}
	return best, errors.Join(err, h.Close())
}

func renderCold(ctx context.Context, h *daemon.Bridge, path string) (result, error) {
	if err := os.RemoveAll(filepath.Join(h.Config().Data, "cache")); err != nil {
		return result{}, err
	}
	p, err := h.Publisher(base)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	doc, err := p.Document(ctx, path, true)
	if err != nil {
		return result{}, err
	}
	body, _, err := doc.Open()
	if err != nil {
		return result{}, err
	}
	took := time.Since(start)
	if !doc.Immutable {
		err = errors.New("the segment is not closed: its document is not what was to be measured")
	}
	return result{Took: took}, errors.Join(err, body.Close())
}

// makeSnapshot makes a snapshot where there is none, and checks that it is published.
func makeSnapshot(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := openServing(ctx, j.Folder)
	if err != nil {
		return r, err
	}
	r, err = snapshot(ctx, h)
	return r, errors.Join(err, h.Close())
}

// makeDump makes a Resource Dump where there is none, and checks that it is published.
func makeDump(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := openServing(ctx, j.Folder)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	err = errors.Join(h.Log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Mirror, Dumps: true}),
		os.RemoveAll(filepath.Join(h.Config().Data, "snapshots")))
	if err != nil {
		return r, err
	}
	p, err := h.Publisher(base)
	if err != nil {
		return r, err
	}
	start := time.Now()
	if err := p.Dump(ctx, "main"); err != nil {
		return r, err
	}
	r.Took = time.Since(start)
	_, err = p.Document(ctx, "/sets/main/resourcedump.xml", false)
	return r, err
}

func snapshot(ctx context.Context, h *daemon.Bridge) (r result, err error) {
	if err := os.RemoveAll(filepath.Join(h.Config().Data, "snapshots")); err != nil {
		return r, err
	}
	p, err := h.Publisher(base)
	if err != nil {
		return r, err
	}
	start := time.Now()
	if err := p.Snapshot(ctx, "main"); err != nil {
		return r, err
	}
	r.Took = time.Since(start)
	items, err := p.Plan(ctx, "main")
	if err != nil {
		return r, err
	}
	for _, it := range items {
		if it.Kind == publish.ResourceListPart {
			r.Count++
		}
	}
	if r.Count == 0 {
		err = errors.New("the snapshot has no parts: the set is too small for one")
	}
	return r, err
}
