package harvest

import (
	"context"
	"errors"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// keepsArrivals reports whether all contents of a Source come with its documents, and
// are stored as they come: a list has the records as they are now, so nearly all
// contents are needed, and asking the log which costs more than storing them.
func (r *run) keepsArrivals() bool {
	return r.src.mirrors() && r.src.Kind == OAIPMH && len(r.src.Repository.Also) == 0
}

// startArrivals starts a goroutine that stores the contents that came with the
// documents, while the log takes in earlier batches. It returns the channel of the
// batches whose contents are stored. At its end the goroutine sends its error, or nil,
// to ended.
func (p *pipeline) startArrivals(ended chan<- error) <-chan docBatch {
	out := make(chan docBatch, batchesQueued)
	go func() {
		err := p.storeArrivals(out)
		if err != nil {
			p.end(err)
		}
		close(out)
		for range p.ch {
		}
		ended <- err
	}()
	return out
}

// storeArrivals stores the contents of several documents in one transaction: each
// transaction touches the page of nearly every sum, so a large one is much cheaper.
func (p *pipeline) storeArrivals(out chan<- docBatch) (err error) {
	defer defect.Recover(&err)
	for x := range p.ch {
		group := p.gatherArrivals(x)
		stored, err := p.putArrivals(group)
		if err != nil {
			return err
		}
		p.release(0, stored)
		for _, x := range group {
			select {
			case out <- x:
			case <-p.ctx.Done():
				return nil // whoever has ended the pipeline reports why
			}
		}
	}
	return nil
}

// gatherArrivals returns x and what is sent after it, until there are as many items as
// a batch has, putBytes bytes, or batchTime is over. The first two are less than half
// of what may be queued, so that the sender never waits for the third.
func (p *pipeline) gatherArrivals(x docBatch) []docBatch {
	group, items, size := []docBatch{x}, len(x.items), x.bytes()
	late := time.NewTimer(batchTime)
	defer late.Stop()
	for more := true; more && !x.flush && items < p.r.batchSize() && size < putBytes; {
		select {
		case x, more = <-p.ch:
			if more {
				group, items, size = append(group, x), items+len(x.items), size+x.bytes()
			}
		case <-late.C:
			return group
		case <-p.ctx.Done():
			return group
		}
	}
	return group
}

// putArrivals stores the contents of some documents, and returns how many bytes they had.
func (p *pipeline) putArrivals(group []docBatch) (size int, err error) {
	limit := p.r.recordLimit()
	var drafts []*content.Draft
	var items []*event.Item
	for _, x := range group {
		for _, it := range x.items {
			if it.Inline != nil && len(it.Representations) == 1 && int64(len(it.Inline)) <= limit {
				drafts, items = append(drafts, content.NewDraft(it.Inline)), append(items, it)
			}
		}
	}
	if len(drafts) == 0 {
		return 0, nil
	}
	if err := p.r.h.Contents.Put(p.ctx, drafts...); err != nil {
		if cause := context.Cause(p.ctx); cause != nil && errors.Is(err, p.ctx.Err()) {
			err = cause
		}
		return 0, err
	}
	for i, it := range items {
		rep := &it.Representations[0]
		rep.Hash, rep.Length = event.HashOf(drafts[i].Sum()), drafts[i].Size()
		size += len(it.Inline)
		it.Fetched, it.Inline = true, nil
	}
	return size, nil
}
