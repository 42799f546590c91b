package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// pollsEach is how often a run polls; the Change List grows all the while.
const pollsEach = 10

// polls: a set of ResourceSync that is followed: what a poll costs that brings a
// few changes, and one that brings none, with a tenth of the records and with
// all.
func (b *bench) polls() error {
	var some, none [2]result
	sizes := [2]int{b.scaled(million / 10), b.scaled(million)}
	for i, size := range sizes {
		err := b.in("poll", func(folder string) error {
			return b.beside(sourceOf(size, 1, 0, 0), func(url string) error {
				j := job{Name: "harvest", Kind: config.ResourceSync, Folder: folder, URL: url, Content: config.Reference}
				_, err := b.do(j)
				j.Name = "follow"
				for run := 0; run < b.runs && err == nil; run++ {
					j.Changes = 1 + run*pollsEach*fewRecords
					var r result
					r, err = b.do(j)
					some[i], none[i] = faster(some[i], r), faster(none[i], result{Took: r.Other, Count: r.Count, Peak: r.Peak})
				}
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	small, large := thousands(float64(sizes[0])), thousands(float64(sizes[1]))
	for _, c := range []struct {
		name string
		took [2]result
	}{
		{fmt.Sprintf("poll of a Change List with %d new resources, %s records", fewRecords, large), some},
		{fmt.Sprintf("poll of a Change List that has nothing new (%d requests), %s records", none[1].Count, large), none},
	} {
		ratio := ratioOf(c.took[1].Took, c.took[0].Took)
		row{name: c.name, ours: short(c.took[1].Took), rival: small + " records: " + short(c.took[0].Took), ratio: ratio, peak: c.took[1].Peak,
			bars: []bar{below("within 1.5", ratio, 1.5)}}.print()
	}
	return nil
}

// followLists polls a Source whose Change List has so many changes, after a few
// more, and again. Took and Other are the mean of each, Count the requests of a
// poll that finds nothing.
func followLists(ctx context.Context, j job, _ func(result)) (r result, err error) {
	h, err := openOn(ctx, &j)
	if err != nil {
		return r, err
	}
	for i := 1; i <= pollsEach && err == nil; i++ {
		if err = setChanges(ctx, j.URL, j.Changes+i*fewRecords); err != nil {
			break
		}
		var some, none result
		if some, err = poll(ctx, h, j.URL, fewRecords); err == nil {
			none, err = poll(ctx, h, j.URL, 0)
		}
		r.Took += some.Took / pollsEach
		r.Other += none.Took / pollsEach
		r.Count = none.Count
	}
	return r, errors.Join(err, h.Close())
}

// poll harvests a Source that has so many new changes; Count is the number of
// requests.
func poll(ctx context.Context, h *daemon.Bridge, url string, events int64) (result, error) {
	before, err := requests(ctx, url)
	if err != nil {
		return result{}, err
	}
	report, took, err := pass(ctx, h, harvest.Options{})
	if err == nil && report.Events() != events {
		err = fmt.Errorf("%d changes were harvested, not %d", report.Events(), events)
	}
	after, countErr := requests(ctx, url)
	return result{Took: took, Count: after - before}, errors.Join(err, countErr)
}
