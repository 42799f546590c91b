package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

// listConnections is how many harvesters walk a list at once.
const listConnections = 8

// oaiList measures the OAI-PMH repository of a mirrored set: one harvester lists it to its
// end, which shows the cost of the last pages, and then several at once.
func (b *bench) oaiList(folder string) error {
	records := b.scaled(million)
	source, at, err := b.serve(recordsOf(records))
	if err != nil {
		return err
	}
	_, err = b.do(job{Name: "harvest", Folder: folder, URL: at.URL, Kind: config.OAIPMH, Content: config.Mirror})
	if _, e := source.end(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	ours, at, err := b.serve(job{Name: "serve", Folder: folder})
	if err != nil {
		return err
	}
	base := at.URL + "/sets/main/oai"
	// The single harvester runs first: a server that has just started also makes the
	// Resource List, which would slow down the eight.
	walk, err := walkOAIList(b.ctx, base, nil)
	if err != nil {
		return errors.Join(err, ours.cmd.Process.Kill())
	}
	best := 0.0
	for range b.runs {
		n, err := b.walkLists(base, time.Duration(b.scaled(10_000))*time.Millisecond)
		if err != nil {
			return errors.Join(err, ours.cmd.Process.Kill())
		}
		best = max(best, n)
	}
	end, err := ours.end()
	if err != nil {
		return err
	}
	if walk.records != int64(records) {
		return fmt.Errorf("the list has %d of %d records", walk.records, records)
	}
	first, last := walk.part(0), walk.part(9)
	growth := last.Seconds() / first.Seconds()
	row{name: fmt.Sprintf("ListRecords of %s records of 1.6 KB, mirror, %d connections", thousands(records), listConnections), ours: perSecond(best, "records"),
		peak: end.Peak, cpu: end.CPU, bars: []bar{atLeast("20,000/s", best, 20_000), under(250, end.Peak)}}.print()
	row{name: fmt.Sprintf("a page of that list at its end (%s pages)", thousands(len(walk.pages))), ours: short(last), rival: "at its beginning: " + short(first), ratio: growth,
		bars: []bar{below("within 1.2", growth, 1.2)}}.print()
	return nil
}

// walkLists walks the list on several connections for some time, and returns the total of
// records a second.
func (b *bench) walkLists(base string, wait time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(b.ctx, wait)
	defer cancel()
	var records atomic.Int64
	var group sync.WaitGroup
	failed := make(chan error, listConnections)
	start := time.Now()
	for range listConnections {
		group.Go(func() {
			for ctx.Err() == nil {
				if _, err := walkOAIList(ctx, base, &records); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return rate(records.Load(), time.Since(start)), nil
	}
}

// listWalk is the result of a walk of a list.
type listWalk struct {
	records int64
	pages   []time.Duration
}

// part returns the mean time of a page in a tenth of the list.
func (w *listWalk) part(tenth int) time.Duration {
	n := max(1, len(w.pages)/10)
	var sum time.Duration
	for _, d := range w.pages[tenth*n : (tenth+1)*n] {
		sum += d
	}
	return sum / time.Duration(n)
}

// walkOAIList walks a list to its end, and adds the records of each page to total, if
// that is not nil.
func walkOAIList(ctx context.Context, base string, total *atomic.Int64) (*listWalk, error) {
	w := &listWalk{}
	for query := (url.Values{"verb": {"ListRecords"}, "metadataPrefix": {"oai_dc"}}); ; {
		start := time.Now()
		page, err := get(ctx, base+"?"+query.Encode())
		if err != nil {
			return w, err
		}
		w.pages = append(w.pages, time.Since(start))
		n := int64(bytes.Count(page, []byte("<record>")))
		if w.records += n; total != nil {
			total.Add(n)
		}
		token, err := tokenOf(page)
		if err != nil || token == "" {
			return w, err
		}
		query = url.Values{"verb": {"ListRecords"}, "resumptionToken": {token}}
	}
}
