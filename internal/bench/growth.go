package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// costs are the costs of work on a log of one size, which is in the folder of the job.
type costs struct {
	job
	events      int
	ready       time.Duration
	peak        int64 // of the process that started
	few, many   time.Duration
	source      time.Duration // a harvest that finds nothing new
	destination time.Duration // a poll of what the bridge publishes
}

// growth measures start, append and poll on a log of a million events, and on a long one, in
// turn.
func (b *bench) growth(folder string) error {
	p, at, err := b.serve(chainOf(1, fewRecords, 512))
	if err != nil {
		return err
	}
	err = b.growBeside(folder, at.URL)
	_, ended := p.end()
	return errors.Join(err, ended)
}

func (b *bench) growBeside(folder, url string) error {
	var logs [2]costs
	for i, wanted := range []int{b.scaled(million), b.soak * b.scaled(million)} {
		c := &logs[i]
		c.job = job{Name: "harvest", Folder: filepath.Join(folder, fmt.Sprint(i)), URL: url, Content: config.Mirror}
		err := os.Mkdir(c.Folder, 0o755)
		if err == nil {
			_, err = b.do(c.job) // so that there is a Source to poll
		}
		if err == nil {
			err = b.grow(c, wanted)
		}
		if err != nil {
			return err
		}
	}
	for range b.runs {
		for i := range logs {
			if err := b.measureCosts(&logs[i]); err != nil {
				return err
			}
		}
	}
	compareCosts(&logs[0], &logs[1])
	return nil
}

// grow appends to the log up to a number of events, or as many as the time allows.
func (b *bench) grow(c *costs, events int) error {
	for start := time.Now(); c.events < events && time.Since(start) < b.patient; {
		c.events = min(c.events+b.scaled(million), events)
		c.Name, c.Number = "build", c.events
		r, err := b.do(c.job)
		if err != nil {
			return err
		}
		b.say("%s events: %s", thousands(c.events), perSecond(rate(r.Count, r.Took), "events"))
	}
	return nil
}

// measureCosts measures once, and keeps the best of all times.
func (b *bench) measureCosts(c *costs) error {
	ready, peak, err := b.readyAfter(c.Folder)
	if err != nil {
		return err
	}
	if c.ready == 0 || ready < c.ready {
		c.ready, c.peak = ready, peak
	}
	c.Name = "append"
	r, err := b.do(c.job)
	if err != nil {
		return err
	}
	c.few, c.many = shorter(c.few, r.Took), shorter(c.many, r.Other)
	c.Name = "poll"
	if r, err = b.do(c.job); err != nil {
		return err
	}
	c.source, c.destination = shorter(c.source, r.Took), shorter(c.destination, r.Other)
	return nil
}

func shorter(best, d time.Duration) time.Duration {
	if best == 0 || d < best {
		return d
	}
	return best
}

// readyAfter starts a bridge on the log, and waits until it reports that it is ready.
func (b *bench) readyAfter(folder string) (time.Duration, int64, error) {
	start := time.Now()
	p, at, err := b.serve(job{Name: "serve", Folder: folder})
	if err != nil {
		return 0, 0, err
	}
	for {
		resp, err := http.Get(at.URL + "/readyz")
		if err != nil {
			return 0, 0, err
		}
		if err := resp.Body.Close(); err != nil {
			return 0, 0, err
		}
		if resp.StatusCode == http.StatusOK {
			break
		}
		if time.Since(start) > time.Minute {
			return 0, 0, errors.New("not ready after a minute")
		}
	}
	took := time.Since(start)
	r, err := p.end()
	return took, r.Peak, err
}

// appendMore appends new records: Took is the mean time of a small append, Other that of a
// whole transaction of a big harvest.
func appendMore(ctx context.Context, j job, _ func(result)) (r result, err error) {
	b, err := newBuilder(ctx, j)
	if err != nil {
		return r, err
	}
	const tries, transactions = 50, 3
	for i := 0; i < tries && err == nil; i++ {
		var took time.Duration
		took, err = b.append(ctx, newRecordsFrom(b.next, fewRecords))
		r.Took += took / tries
	}
	for i := 0; i < transactions && err == nil; i++ {
		var took time.Duration
		took, err = b.append(ctx, newRecordsFrom(b.next, batchSize))
		r.Other += took / transactions
	}
	return r, errors.Join(err, b.log.Close())
}

// pollBridge polls a Source that has nothing new, and polls ourselves as a Destination
// does: whether the Change List, or its index, has changed. Took and Other are the mean
// times.
func pollBridge(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := open(ctx, &j, 0)
	if err != nil {
		return r, err
	}
	const tries = 20
	for i := 0; i < tries && err == nil; i++ {
		start := time.Now()
		var report harvest.Report
		if report, err = h.Harvest(ctx, h.Sources()[0], harvest.Options{}); err == nil && !report.NotModified {
			err = fmt.Errorf("the Source has something new: %+v", report)
		}
		r.Took += time.Since(start) / tries
	}
	if err == nil {
		r.Other, err = destinationPoll(ctx, h)
	}
	return r, errors.Join(err, h.Close())
}

func destinationPoll(ctx context.Context, h *daemon.Bridge) (time.Duration, error) {
	p, err := h.Publisher(base)
	if err != nil {
		return 0, err
	}
	look := func() error {
		for _, path := range []string{"/sets/main/changelist.xml", "/sets/main/changelist-index.xml"} {
			if _, err := p.Document(ctx, path, true); err != nil { // the request has its ETag, so the response is a 304
				return err
			}
		}
		return nil
	}
	if err := look(); err != nil { // the first one reads the list of the segments
		return 0, err
	}
	const tries = 100
	start := time.Now()
	for range tries {
		if err := look(); err != nil {
			return 0, err
		}
	}
	return time.Since(start) / tries, nil
}

func compareCosts(small, large *costs) {
	size := func(c *costs) string { return fmt.Sprintf("%.3g million events", float64(c.events)/million) }
	row{name: "start of bridge serve with " + size(large), ours: short(large.ready), rival: size(small) + ": " + short(small.ready),
		ratio: ratioOf(large.ready, small.ready), peak: large.peak, bars: []bar{below("ready in 2 s", large.ready.Seconds(), 2)}}.print()
	for _, c := range []struct {
		name         string
		large, small time.Duration
	}{
		{"append of 100 new records", large.few, small.few},
		{"append of 50,000 new records", large.many, small.many},
		{"poll of an unchanged Source", large.source, small.source},
		{"poll by a Destination (changelist.xml and the index, 304)", large.destination, small.destination},
	} {
		ratio := ratioOf(c.large, c.small)
		row{name: c.name + ", " + size(large), ours: short(c.large), rival: size(small) + ": " + short(c.small), ratio: ratio,
			bars: []bar{below("within 1.3", ratio, 1.3)}}.print()
	}
}
