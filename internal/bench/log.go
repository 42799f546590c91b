package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// batchSize is the number of events in one transaction of a built log, as in a harvest.
const batchSize = 50_000

// builder appends invented new records of one Source to a log.
type builder struct {
	log     *eventlog.Log
	source  event.SourceID
	version int64
	next    int // number of the next record
}

// newBuilder opens the log of a job for writing; its set has segments of Segment events, 0
// is the default.
func newBuilder(ctx context.Context, j job) (*builder, error) {
	set := cmp.Or(j.Set, "main")
	mode, err := event.ParseContent(j.Content)
	if err != nil {
		return nil, err
	}
	l, err := eventlog.Open(ctx, j.Folder, eventlog.Options{Holder: "bench"})
	if err != nil {
		return nil, err
	}
	b := &builder{log: l}
	err = l.EnsureSet(ctx, eventlog.SetConfig{Name: set, Content: mode, SegmentEvents: j.Segment})
	if err == nil {
		b.source, err = l.EnsureSource(ctx, set, "atompmh", j.URL+fixtures.Subscription, 0)
	}
	if err == nil {
		var p event.Progress
		p, err = l.Progress(ctx, b.source)
		b.version = p.Cursor.Version
	}
	if err == nil {
		var s event.Set
		s, err = l.Set(ctx, set)
		b.next = int(s.Events)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

// newRecordsFrom invents n records.
func newRecordsFrom(first, n int) []*event.Item {
	items := make([]*event.Item, n)
	for i := range items {
		items[i] = &event.Item{Observation: observation(first + i)}
	}
	return items
}

// append appends new records in one transaction, and returns how long that took. Their walk
// has ended when it returns.
func (b *builder) append(ctx context.Context, items []*event.Item) (time.Duration, error) {
	batch := event.Batch{Source: b.source, Cursor: b.version, Start: true, Items: items,
		Documents: []event.Document{{URL: "https://repository.example/feed.atom", FeedID: "urn:example:feed", FeedTitle: "Catalogue"}}}
	for i := range items {
		items[i].Claim = items[i].ClaimOf()
	}
	start := time.Now()
	out, err := b.log.Append(ctx, &batch)
	took := time.Since(start)
	if err == nil && out.Created != len(items) {
		err = fmt.Errorf("%d of %d records were new", out.Created, len(items))
	}
	b.version = out.Cursor
	b.next += len(items)
	return took, err
}

// observation returns a fetched record of a realistic size. Its identifier is random, like
// most real ones.
func observation(n int) event.Observation {
	sum := sha256.Sum256(fmt.Appendf(nil, "record %d", n))
	return event.Observation{
		Record: fmt.Sprintf("urn:uuid:%x-%x-4%x-8%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])[:45],
		Title:  fmt.Sprintf("Observation series %08d", n), Fetched: true,
		Order:    event.StampFromNanos(1_577_836_800_000_000_000 + int64(n)*1_000_000),
		Modified: event.StampFromNanos(1_577_836_800_000_000_000 + int64(n)*1_000_000),
		Representations: []event.Representation{{Href: fmt.Sprintf("https://repository.example/records/%08d.xml", n),
			Type: "application/xml", Length: mirrorBody, Hash: event.HashOf(sum)}},
	}
}

// buildLog grows a set to Number events, with their contents if Body is their size. Took is
// the total time, Count the number of appended events.
func buildLog(ctx context.Context, j job, _ func(result)) (r result, err error) {
	b, err := newBuilder(ctx, j)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.log.Close()) }()
	var store *content.Store
	size := batchSize
	if j.Body > 0 {
		if store, err = content.Open(ctx, filepath.Join(j.Folder, "content.db"), content.Options{}); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		size /= 5
	}
	for b.next < j.Number {
		items := newRecordsFrom(b.next, min(size, j.Number-b.next))
		start := time.Now()
		if store != nil {
			err = putContents(ctx, store, b.next, items)
		}
		if err == nil {
			_, err = b.append(ctx, items)
		}
		if err != nil {
			return r, err
		}
		r.Took += time.Since(start)
		r.Count += int64(len(items))
	}
	return r, nil
}

// putContents stores the contents of items, the records from number first on.
func putContents(ctx context.Context, store *content.Store, first int, items []*event.Item) error {
	drafts := make([]*content.Draft, len(items))
	for i := range items {
		record := appendRecord(nil, first+i, 1, filling())
		drafts[i] = content.NewDraft(record)
		r := &items[i].Representations[0]
		r.Hash, r.Length = event.HashOf(sha256.Sum256(record)), int64(len(record))
	}
	return store.Put(ctx, drafts...)
}
