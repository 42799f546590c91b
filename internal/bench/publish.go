package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/publish"
)

const (
	base    = "https://bridge.example"
	segment = 50_000 // events of the longest Change List that there is
)

// openServing opens a data folder as bridge serve does without Sources.
func openServing(ctx context.Context, folder string) (*daemon.Bridge, error) {
	c, err := config.FromArguments(config.Flags{Data: folder, Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// changeLists: the longest Change List there is, from the log to compressed
// bytes in the cache.
func (b *bench) changeLists() error {
	return b.rendered("cold Change List of 50,000 events, log to gzip", "urls", "/sets/main/changelist/1.xml", "changelist",
		func(have float64) bar { return atLeast("250,000/s", have, 250_000) })
}

// feeds: the archive document of the same segment. Only when the next one has
// closed too has it its last form.
func (b *bench) feeds() error {
	return b.rendered("cold archive document of 50,000 events, log to gzip", "entries", "/sets/main/feed/1.atom", "feed")
}

// rendered measures the document at a path of a set whose first two segments have
// closed, beside the task of a rival.
func (b *bench) rendered(name, unit, path, task string, bars ...func(float64) bar) error {
	var ours, rival result
	err := b.in(task, func(folder string) error {
		_, err := b.do(job{Name: "build", Folder: folder, Content: config.Mirror, Number: 2 * segment, Segment: segment})
		for run := 0; run < b.runs && err == nil; run++ {
			err = errors.Join(b.try(&ours, job{Name: "render", Folder: folder, Path: path, Repeat: 5}), b.try(&rival, job{Name: task, Folder: folder, Repeat: 2}))
		}
		return err
	})
	have, bare := rate(segment, ours.Took), rate(segment, rival.Took)
	all := []bar{under(30, ours.Peak)}
	for _, bar := range bars {
		all = append(all, bar(have))
	}
	return show(err, row{name: name, ours: perSecond(have, unit), rival: "encoding/xml and compress/gzip: " + perSecond(bare, unit), ratio: have / bare, peak: ours.Peak, bars: all})
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
	if err := os.RemoveAll(filepath.Join(h.Config.Data, "cache")); err != nil {
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
	body, size, err := doc.Open()
	if err != nil {
		return result{}, err
	}
	took := time.Since(start)
	if !doc.Immutable {
		err = errors.New("the segment is not closed: its document is not what was to be measured")
	}
	return result{Took: took, Bytes: size}, errors.Join(err, body.Close())
}

// snapshots: all live records into the parts of a Resource List.
func (b *bench) snapshots() error {
	records := b.scaled(million)
	var ours result
	err := b.in("snapshot", func(folder string) error {
		_, err := b.do(job{Name: "build", Folder: folder, Content: config.Mirror, Number: records})
		for run := 0; run < b.runs && err == nil; run++ {
			err = b.try(&ours, job{Name: "snapshot", Folder: folder})
		}
		return err
	})
	return show(err, row{name: "snapshot of " + thousands(float64(records)) + " records, gzip, durable", ours: fmt.Sprintf("%s (%s)", short(ours.Took), perSecond(rate(int64(records), ours.Took), "urls")),
		peak: ours.Peak, cpu: ours.CPU, bars: []bar{below("under 7 s", ours.Took.Seconds(), 7), under(100, ours.Peak)}})
}

// makeSnapshot makes one where none is, and checks that it is shown.
func makeSnapshot(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := openServing(ctx, j.Folder)
	if err != nil {
		return r, err
	}
	r, err = snapshot(ctx, h)
	return r, errors.Join(err, h.Close())
}

func snapshot(ctx context.Context, h *daemon.Bridge) (r result, err error) {
	if err := os.RemoveAll(filepath.Join(h.Config.Data, "snapshots")); err != nil {
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
