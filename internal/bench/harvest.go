package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// harvestOnce makes one pass over a provider as bridge harvest does. Count is the
// entries read, Bytes the events logged.
func harvestOnce(ctx context.Context, j job, _ func(result)) (result, error) {
	h, err := openOn(ctx, &j)
	if err != nil {
		return result{}, err
	}
	r, took, err := pass(ctx, h, harvest.Options{Full: j.Full})
	return result{Took: took, Count: r.Entries, Bytes: r.Events()}, errors.Join(err, h.Close())
}

// openOn opens a data folder with the provider of a job as its Source.
func openOn(ctx context.Context, j *job) (*daemon.Bridge, error) {
	c, err := config.FromArguments(config.Flags{Data: j.Folder}, []string{j.source()})
	if err != nil {
		return nil, err
	}
	if j.Content != "" {
		c.Sets[0].Content = j.Content
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// pass harvests the one Source there is, and accepts no problem.
func pass(ctx context.Context, h *daemon.Bridge, o harvest.Options) (harvest.Report, time.Duration, error) {
	start := time.Now()
	r, err := h.Harvest(ctx, h.Sources[0], o)
	took := time.Since(start)
	if err == nil && (r.Partial() || r.Problems > 0) {
		err = fmt.Errorf("the harvest of the provider had problems: %+v", r)
	}
	return r, took, err
}

// harvestTimes are the harvests of many records: new ones, with bare INSERTs of the
// same rows beside them, the same ones again, and again read whole.
type harvestTimes struct{ first, rival, again, full result }

// harvestMany measures them in mode reference. Of again, Count is the number of
// requests.
func (b *bench) harvestMany(provider job) (best harvestTimes, err error) {
	err = b.repeatedly("harvest", func(folder string) error {
		return b.beside(provider, func(url string) error {
			j := job{Name: "harvest", Kind: provider.Kind, Folder: folder, URL: url, Content: config.Reference}
			full := j
			full.Full = true
			if err := b.try(&best.first, j); err != nil {
				return err
			}
			return errors.Join(b.try(&best.rival, job{Name: "insert", Folder: folder}), b.unchanged(&best.again, j), b.try(&best.full, full))
		})
	})
	return best, err
}

// row is what the first harvest came to.
func (p *harvestTimes) row(name, unit string, bars ...bar) row {
	have, bare := rate(p.first.Count, p.first.Took), rate(p.rival.Count, p.rival.Took)
	return row{name: name, ours: perSecond(have, unit), rival: "the same rows, bare INSERTs: " + perSecond(bare, unit),
		ratio: have / bare, peak: p.first.Peak, cpu: p.first.CPU,
		bars: append([]bar{atLeast("60,000/s", have, 60_000), under(200, p.first.Peak)}, bars...)}
}

func (p *harvestTimes) ratio() float64 {
	return rate(p.first.Count, p.first.Took) / rate(p.rival.Count, p.rival.Took)
}

// harvests: a chain of a million entries, new, unchanged, and read again whole;
// then one of two million, for its memory.
func (b *bench) harvests() error {
	const documents = 100
	entries := b.scaled(10_000)
	p, err := b.harvestMany(chainOf(documents, entries, 0))
	if err != nil {
		return err
	}
	p.row("harvest of "+thousands(float64(documents*entries))+" entries, mode reference", "entries", atLeast("ratio 0.7", p.ratio(), 0.7)).print()
	row{name: "harvested again, unchanged", ours: fmt.Sprintf("%s, %d request, %d events", short(p.again.Took), p.again.Count, p.again.Bytes), peak: p.again.Peak,
		bars: []bar{below("50 ms", p.again.Took.Seconds(), 0.050), atLeast("1 request", -float64(p.again.Count), -1), atLeast("0 events", -float64(p.again.Bytes), 0)}}.print()
	have := rate(p.full.Count, p.full.Took)
	row{name: "harvested again with --full", ours: fmt.Sprintf("%s, %d events", perSecond(have, "entries"), p.full.Bytes), peak: p.full.Peak, cpu: p.full.CPU,
		bars: []bar{atLeast("90,000/s", have, 90_000), atLeast("0 events", -float64(p.full.Bytes), 0)}}.print()
	return b.twice("harvest of "+thousands(float64(2*documents*entries))+" entries (once)", "entries", chainOf(2*documents, entries, 0), p.first)
}

// twice harvests double the number of records of an earlier harvest, for its
// memory.
func (b *bench) twice(name, unit string, provider job, once result) error {
	var r result
	err := b.in("harvest", func(folder string) error {
		return b.beside(provider, func(url string) error {
			return b.try(&r, job{Name: "harvest", Kind: provider.Kind, Folder: folder, URL: url, Content: config.Reference})
		})
	})
	growth := float64(r.Peak) / float64(once.Peak)
	return show(err, row{name: name, ours: perSecond(rate(r.Count, r.Took), unit), rival: "memory of half as many: " + megabytes(once.Peak), ratio: growth, peak: r.Peak, cpu: r.CPU,
		bars: []bar{under(200, r.Peak), below("memory within 1.1", growth, 1.1)}})
}

// unchanged harvests again, several times; Count is the number of requests of
// the best one.
func (b *bench) unchanged(best *result, j job) error {
	for range 3 {
		before, err := requests(b.ctx, j.URL)
		if err != nil {
			return err
		}
		r, err := b.do(j)
		after, countErr := requests(b.ctx, j.URL)
		if err := errors.Join(err, countErr); err != nil {
			return err
		}
		r.Count = after - before
		*best = faster(*best, r)
	}
	return nil
}

// faster returns the result that took less time.
func faster(best, r result) result {
	if best.Took == 0 || r.Took < best.Took {
		return r
	}
	return best
}

const mirrorBody = 2048

// mirrors: small records with their contents.
func (b *bench) mirrors() error {
	entries := b.scaled(10_000)
	ours, rival, err := b.mirrored(chainOf(2, entries, mirrorBody), job{Path: "/records/%08d.xml", Number: 2 * entries, Repeat: connections})
	have, bare := rate(ours.Count, ours.Took), rate(rival.Count, rival.Took)
	return show(err, row{name: fmt.Sprintf("mirror of %s records of 2 KB, durable", thousands(float64(2*entries))), ours: perSecond(have, "records"),
		rival: "http.Client, 32 workers, bodies thrown away: " + perSecond(bare, "records"), ratio: have / bare, peak: ours.Peak, cpu: ours.CPU,
		bars: []bar{atLeast("5,000/s", have, 5000)}})
}

// mirrored harvests a provider with its contents, beside a rival that fetches
// bodies.
func (b *bench) mirrored(provider, rival job) (ours, other result, err error) {
	rival.Name = "fetch"
	err = b.repeatedly("mirror", func(folder string) error {
		return b.beside(provider, func(url string) error {
			rival.URL = url
			return errors.Join(b.try(&ours, job{Name: "harvest", Kind: provider.Kind, Folder: folder, URL: url, Content: config.Mirror}), b.try(&other, rival))
		})
	})
	return ours, other, err
}

// fetchBodies is a mirror's rival: Number bodies, Repeat at once, read and thrown
// away. The job's Path is a format for their numbers. A single worker opens a
// connection for each, as clients do that know no better.
func fetchBodies(ctx context.Context, j job, _ func(result)) (result, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: j.Repeat, DisableCompression: true, DisableKeepAlives: j.Repeat == 1}}
	numbers := make(chan int)
	failed := make(chan error, j.Repeat)
	var group sync.WaitGroup
	start := time.Now()
	for range j.Repeat {
		group.Go(func() {
			for n := range numbers {
				if err := fetchBody(ctx, client, j.URL+fmt.Sprintf(j.Path, n)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	err := func() error {
		defer close(numbers)
		for n := range j.Number {
			select {
			case numbers <- n:
			case err := <-failed:
				return err
			}
		}
		return nil
	}()
	group.Wait()
	return result{Took: time.Since(start), Count: int64(j.Number)}, err
}

func fetchBody(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && (resp.StatusCode != http.StatusOK || n != mirrorBody) {
		err = fmt.Errorf("%s: %s, %d bytes", url, resp.Status, n)
	}
	return err
}
