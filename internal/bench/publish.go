package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/export"
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

// exportTree exports a log to a folder beside it, after Changes new records. Count is the
// number of written files, and Bytes their total size.
func exportTree(ctx context.Context, j job, _ func(result)) (r result, err error) {
	if j.Changes > 0 {
		b, err := newBuilder(ctx, j)
		if err != nil {
			return r, err
		}
		j.Number = b.next + j.Changes
		if err := b.log.Close(); err != nil {
			return r, err
		}
		if _, err := buildLog(ctx, j, nil); err != nil {
			return r, err
		}
	}
	c, err := config.FromArguments(config.Flags{Data: j.Folder, Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		return r, err
	}
	h, err := daemon.Open(ctx, c, daemon.Options{ReadOnly: true})
	if err != nil {
		return r, err
	}
	start := time.Now()
	report, err := h.Export(ctx, export.Options{BaseURL: base, Folder: j.Folder + "-site"})
	r.Took, r.Count, r.Bytes = time.Since(start), report.Files, report.Bytes
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("problems: %q", report.Problems)
	}
	return r, errors.Join(err, h.Close())
}

// exportRows are a first export and one after a few changes.
func exportRows(n int, mode string, bars bool) rowsOf {
	return func(all []results) ([]row, error) {
		first, second := last(all).jobs[0], last(all).jobs[1]
		written := func(r result) string {
			return fmt.Sprintf("%s, %s files, %s", short(r.Took), thousands(r.Count), megabytes(r.Bytes))
		}
		rows := []row{
			{name: "export of " + thousands(n) + " records, mode " + mode + ", durable (once)", ours: written(first), peak: first.Peak, cpu: first.CPU},
			{name: fmt.Sprintf("again, with %d new records", fewRecords), ours: written(second), peak: second.Peak, cpu: second.CPU},
		}
		if bars {
			rows[0].bars = []bar{below("under 60 s", first.Took.Seconds(), 60)}
			rows[1].bars = []bar{below("under 3 s", second.Took.Seconds(), 3), below("under 100 files", float64(second.Count), 100)}
		}
		return rows, nil
	}
}
