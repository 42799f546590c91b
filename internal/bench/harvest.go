package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// open opens a data folder with Sources at the provider of a job: one in the set main,
// or many, each in a set of its own.
func open(ctx context.Context, j *job, many int) (*daemon.Bridge, error) {
	sources := []string{j.source()}
	if many > 0 {
		sources = nil
	}
	for n := range many {
		sources = append(sources, fmt.Sprintf("s%d=%s?source=%d", n, j.source(), n))
	}
	c, err := config.FromArguments(config.Flags{Data: j.Folder}, sources)
	if err != nil {
		return nil, err
	}
	for i := range c.Sets {
		if j.Content != "" {
			c.Sets[i].Content = j.Content
		}
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// harvestOnce makes one pass over a provider as bridge harvest does, or Repeat passes,
// of which the fastest counts. Count is the entries read.
func harvestOnce(ctx context.Context, j job, _ func(result)) (best result, err error) {
	for range max(j.Repeat, 1) {
		h, err := open(ctx, &j, 0)
		if err != nil {
			return best, err
		}
		r, err := pass(ctx, h, &j)
		best = faster(best, r)
		if err := errors.Join(err, h.Close()); err != nil {
			return best, err
		}
	}
	return best, nil
}

// pass harvests the only Source. Every problem is an error, except for a list that is
// longer than allowed.
func pass(ctx context.Context, h *daemon.Bridge, j *job) (result, error) {
	before, err := requests(ctx, j.URL)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	r, err := h.Harvest(ctx, h.Sources()[0], harvest.Options{Full: j.Full})
	took := time.Since(start)
	if err != nil {
		return result{}, err
	}
	if r.Gap != "" || r.Error != "" || j.LongList == "" && (r.Partial() || r.Problems > 0) {
		return result{}, fmt.Errorf("the harvest of the provider had problems: %+v", r)
	}
	after, err := requests(ctx, j.URL)
	return result{Took: took, Count: r.Entries, Events: r.Events(), Requests: after - before}, err
}

// pollsEach is how many polls a job makes; the Change List grows before each.
const pollsEach = 10

// followLists polls a Source whose Change List gets Changes more entries before each poll.
// Took is the mean, Requests those of the last one.
func followLists(ctx context.Context, j job, _ func(result)) (out result, err error) {
	h, err := open(ctx, &j, 0)
	if err != nil {
		return out, err
	}
	for i := 0; i < pollsEach && err == nil; i++ {
		if _, err = get(ctx, j.URL+changesPath+strconv.Itoa(j.Changes)); err != nil {
			break
		}
		var r result
		if r, err = pass(ctx, h, &j); err == nil && r.Events != int64(j.Changes) {
			err = fmt.Errorf("%d changes were harvested, not %d", r.Events, j.Changes)
		}
		out.Took += r.Took / pollsEach
		out.Requests = r.Requests
	}
	return out, errors.Join(err, h.Close())
}

// harvestSources makes one pass over many Sources at once, as bridge harvest does. Count is
// the entries read, Events the number of Sources that were harvested completely.
func harvestSources(ctx context.Context, j job, _ func(result)) (out result, err error) {
	h, err := open(ctx, &j, j.Number)
	if err != nil {
		return out, err
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	start := time.Now()
	for _, src := range h.Sources() {
		group.Go(func() {
			r, err := h.Harvest(ctx, src, harvest.Options{})
			mu.Lock()
			defer mu.Unlock()
			out.Count += r.Entries
			if err != nil || r.Created != r.Entries || r.Entries == 0 {
				return
			}
			out.Events++
			if out.Events == 1 {
				out.First = time.Since(start)
			}
			if out.Events == int64(j.Number+1)/2 {
				out.Half = time.Since(start)
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
		h, err := open(ctx, &j, j.Number)
		*took = time.Since(start)
		if err == nil && len(h.Sources()) != j.Number {
			err = errors.New("not all Sources are there")
		}
		if h != nil {
			err = errors.Join(err, h.Close())
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

const mirrorBody = 2048

// fetchBodies is a mirror's rival: it reads Number bodies, Repeat at once, and discards
// them. The job's Path is a format for their numbers. A single worker opens a connection
// for each, as simple clients do.
func fetchBodies(ctx context.Context, j job, _ func(result)) (result, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: j.Repeat, DisableCompression: true, DisableKeepAlives: j.Repeat == 1}}
	took, err := parallel(ctx, j.Repeat, j.Number, func(ctx context.Context, next func() (int, bool)) error {
		for n, more := next(); more; n, more = next() {
			if err := fetchBody(ctx, client, j.URL+fmt.Sprintf(j.Path, n)); err != nil {
				return err
			}
		}
		return nil
	})
	return result{Took: took, Count: int64(j.Number)}, err
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
