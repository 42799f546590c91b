package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

const (
	// outboxWorkers is how many requests an outbox has under way, as configured by
	// default.
	outboxWorkers = 4
	// lookEvery is how often the way of an outbox is looked at.
	lookEvery = 50 * time.Millisecond
	tenths    = 10
)

// drains: a set of many records whose target has just been configured, and a
// server that accepts everything at once.
func (b *bench) drains() error {
	n := b.scaled(b.outbox)
	return b.in("drain", func(folder string) error { return b.drain(folder, n) })
}

func (b *bench) drain(folder string, n int) error {
	built, err := b.do(job{Name: "set to submit", Folder: folder, Number: n})
	if err != nil {
		return err
	}
	b.say("%s records with their contents: %s", thousands(float64(n)), short(built.Took))
	return b.beside(job{Name: "sink"}, func(url string) error {
		bare, err := b.do(job{Name: "postbare", URL: url, Number: n, Repeat: outboxWorkers})
		if err != nil {
			return err
		}
		r, err := b.do(job{Name: "drain", Folder: folder, URL: url, Number: n})
		if err != nil {
			return err
		}
		drainRows(n, r, bare)
		return nil
	})
}

func drainRows(n int, r, bare result) {
	first, last := r.Tenths[0].At-r.Other, r.Took-r.Tenths[tenths-2].At
	have := rate(r.Count, r.Took)
	row{name: fmt.Sprintf("outbox of %s records of 2 KB drains, %d workers (once)", thousands(float64(n)), outboxWorkers), ours: perSecond(have, "records"),
		rival: "bare POSTs of the same records: " + perSecond(rate(bare.Count, bare.Took), "records"), ratio: ratioOf(bare.Took, r.Took),
		peak: r.Peak, cpu: r.CPU}.print()
	row{name: "its last tenth", ours: perSecond(float64(n)/tenths/last.Seconds(), "records"),
		rival: "its first tenth: " + perSecond(float64(n)/tenths/first.Seconds(), "records"), ratio: ratioOf(first, last),
		bars: []bar{below("slower by less than 1.5", ratioOf(last, first), 1.5)}}.print()
	early, late := r.Tenths[0].Resident, r.Tenths[tenths-2].Resident
	growth := float64(late) / float64(early)
	row{name: "its memory when 90 % have been sent", ours: fmt.Sprintf("%.0f MB", float64(late)/1e6), rival: fmt.Sprintf("at 10 %%: %.0f MB", float64(early)/1e6), ratio: growth,
		bars: []bar{below("flat, within 1.25", growth, 1.25)}}.print()
	row{name: "from the start of bridge serve to the first record at the server", ours: short(r.Other)}.print()
}

// buildSetToSubmit makes a set of Number records with their contents. Took is all of it.
func buildSetToSubmit(ctx context.Context, j job, _ func(result)) (r result, err error) {
	j.Content = config.Mirror
	b, err := newBuilder(ctx, j, "main", 0)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.log.Close()) }()
	store, err := content.Open(ctx, filepath.Join(j.Folder, "content.db"), content.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	start, filling := time.Now(), filling()
	for b.next < j.Number {
		items := make([]event.Item, min(batchSize/5, j.Number-b.next))
		drafts := make([]*content.Draft, len(items))
		for i := range items {
			n := b.next + i
			record := appendRecord(nil, n, 1, filling)
			drafts[i] = content.NewDraft(record)
			o := &items[i].Observation
			*o = observation(n)
			o.Representations[0].Hash, o.Representations[0].Length = event.HashOf(sha256.Sum256(record)), int64(len(record))
		}
		if err := store.Put(ctx, drafts...); err != nil {
			return r, err
		}
		if _, err := b.append(ctx, items); err != nil {
			return r, err
		}
	}
	return result{Took: time.Since(start), Count: int64(j.Number)}, nil
}

// tenth is how far an outbox has come when it has sent another tenth.
type tenth struct {
	At       time.Duration // since the start
	Resident int64         // memory of the process, in bytes
}

// drainOutbox is bridge serve until all Number records have been submitted to the
// server at the job's URL and accepted. Other is when the first one was there.
func drainOutbox(ctx context.Context, j job, _ func(result)) (r result, err error) {
	before, err := requests(ctx, j.URL)
	if err != nil {
		return r, err
	}
	start := time.Now()
	h, err := openSIP(ctx, j.Folder, targetLines(j.URL+servicePath))
	if err != nil {
		return r, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, errors.Join(err, h.Close())
	}
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := h.Serve(ctx, l, nil)
		stop(err)
		ended <- err
	}()
	err = r.watch(ctx, j, h, start, before)
	stop(nil)
	return r, errors.Join(err, <-ended, h.Close())
}

// watch looks at the server until it has everything, then at the log until that
// knows.
func (r *result) watch(ctx context.Context, j job, h *daemon.Bridge, start time.Time, before int64) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the bridge ended early: %w", context.Cause(ctx))
		case <-tick.C:
		}
		n, err := requests(ctx, j.URL)
		if err != nil {
			return err
		}
		n -= before
		if n > 0 && r.Other == 0 {
			r.Other = time.Since(start)
		}
		for n >= int64((len(r.Tenths)+1)*j.Number/tenths) && len(r.Tenths) < tenths {
			r.Tenths = append(r.Tenths, tenth{time.Since(start), resident()})
		}
		if n < int64(j.Number) {
			continue
		}
		r.Took = time.Since(start)
		if r.Count, err = acceptedBy(ctx, h.SIP); err != nil || r.Count == int64(j.Number) {
			return err
		}
		if n > int64(j.Number) {
			return fmt.Errorf("%d requests were sent for %d records", n, j.Number)
		}
	}
}
