package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// openManyOn opens a data folder with many Sources at the provider of a job, each
// in a set of its own.
func openManyOn(ctx context.Context, j *job) (*daemon.Bridge, error) {
	var sources []string
	for n := range j.Number {
		one := *j
		sources = append(sources, fmt.Sprintf("s%d=%s?source=%d", n, one.source(), n))
	}
	c, err := config.FromArguments(config.Flags{Data: j.Folder}, sources)
	if err != nil {
		return nil, err
	}
	for i := range c.Sets {
		c.Sets[i].Content = j.Content
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// harvestSources makes one pass over many Sources at once, as bridge harvest does.
// Count is the entries read, Bytes the Sources that were harvested whole, Other
// the time until half of them were.
func harvestSources(ctx context.Context, j job, _ func(result)) (result, error) {
	h, err := openManyOn(ctx, &j)
	if err != nil {
		return result{}, err
	}
	var mu sync.Mutex
	var out result
	var group sync.WaitGroup
	start := time.Now()
	for _, src := range h.Sources {
		group.Go(func() {
			r, err := h.Harvest(ctx, src, harvest.Options{})
			mu.Lock()
			defer mu.Unlock()
			out.Count += r.Entries
			if err == nil && r.Created == r.Entries && r.Entries > 0 {
				out.Bytes++
			}
			if out.Bytes == int64(j.Number)/2 {
				out.Other = time.Since(start)
			}
		})
	}
	group.Wait()
	out.Took = time.Since(start)
	return out, h.Close()
}

// openSources opens a data folder with many Sources, twice; Took is the first
// time, Other the second.
func openSources(ctx context.Context, j job, _ func(result)) (r result, err error) {
	for _, took := range []*time.Duration{&r.Took, &r.Other} {
		start := time.Now()
		h, err := openManyOn(ctx, &j)
		*took = time.Since(start)
		if err == nil {
			r.Count = int64(len(h.Sources))
			err = h.Close()
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// sources: many Sources at once, of one large document each, and of many small
// ones; and what it costs to open so many.
func (b *bench) sources() error {
	for _, c := range []struct{ sources, entries int }{{40, 100_000}, {1000, 10_000}} {
		entries := b.scaled(c.entries)
		var r result
		err := b.in("sources", func(folder string) error {
			return b.beside(chainOf(1, entries, 0), func(url string) error {
				return b.try(&r, job{Name: "sources", Folder: folder, URL: url, Number: c.sources, Content: config.Reference})
			})
		})
		err = show(err, row{name: fmt.Sprintf("%s Sources of %s entries at once", thousands(float64(c.sources)), thousands(float64(entries))),
			ours:  fmt.Sprintf("%s, %s; half of them after %s", short(r.Took), perSecond(rate(r.Count, r.Took), "entries"), short(r.Other)),
			rival: fmt.Sprintf("%d harvested whole", r.Bytes), peak: r.Peak, cpu: r.CPU,
			bars: []bar{under(400, r.Peak), atLeast("all done", float64(r.Bytes), float64(c.sources))}})
		if err != nil {
			return err
		}
	}
	const many = 2000
	var best result
	err := b.repeatedly("open", func(folder string) error {
		return b.try(&best, job{Name: "open", Folder: folder, URL: "http://127.0.0.1:9", Number: many, Content: config.Reference})
	})
	if err == nil && best.Count != many {
		err = errors.New("not all Sources are there")
	}
	return show(err, row{name: fmt.Sprintf("opening %s new Sources", thousands(many)), ours: short(best.Took), rival: "again: " + short(best.Other), peak: best.Peak, cpu: best.CPU,
		bars: []bar{below("1 s", best.Took.Seconds(), 1)}})
}
