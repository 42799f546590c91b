package harvest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// piece is what one document came to, or a part of that.
type piece struct {
	doc        event.Document
	items      []event.Item
	quarantine []event.Quarantined
	active     int64
	memory     int64  // taken of the harvest's load, given back once it is durable
	last       bool   // of its document
	cursor     []byte // where the walk goes on after the document; nil before its last piece, and where that is not to be stored
}

// badAtOnce is how many bytes of bad input make a transaction.
const badAtOnce = 16 << 20

// piecesQueued bounds how many documents wait for the log, however small.
const piecesQueued = 64

// pipe carries pieces from the walker to the log. While one transaction is
// written the documents of the next are read: as many observations wait in
// between as one transaction takes.
type pipe struct {
	r      *run
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan error
	ch     chan piece

	mu        sync.Mutex
	room      *sync.Cond
	queued    int // observations that were sent and are not yet durable
	queuedBad int // bytes of bad input, likewise

	// Of the walker's goroutine, and of the last document that was sent.
	active int64
	latest int // observations

	// Of the writer's goroutine.
	batch    event.Batch
	has      map[string]int // of a mirror: where a record's item stands in batch
	batchBad int            // bytes of the bad input in batch
	// memory is what is given back after the next commit.
	memory int64
	safe   []byte // the cursor after the last document that was taken in whole
	since  time.Time
}

// newPipe opens a pipe for a walk that begins anew, or goes on.
func newPipe(ctx context.Context, r *run, anew bool) *pipe {
	p := &pipe{r: r, done: make(chan error, 1), ch: make(chan piece, piecesQueued), since: r.h.now()}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.room = sync.NewCond(&p.mu)
	p.safe = r.data
	if anew {
		p.batch.Start = true
		p.safe = []byte(unread)
	}
	go func() {
		err := p.write()
		if err != nil {
			p.cancel(err)
		}
		p.mu.Lock()
		p.queued, p.queuedBad = -1<<40, -1<<40 // nobody waits any more
		p.mu.Unlock()
		p.room.Broadcast()
		for range p.ch {
		}
		p.done <- err
	}()
	return p
}

// send hands a document on and waits while too much is queued: beside the
// transaction that is being written there is room for one more, and for one
// document, however large.
func (p *pipe) send(x piece) (err error) {
	p.active, p.latest = x.active, len(x.items)
	if x.last {
		p.r.documents.Add(1)
	}
	p.r.tell()
	p.r.place.wait(p.ctx, func() {
		p.mu.Lock()
		bad := badOf(x.quarantine)
		for size := p.r.size(); p.queued > size && p.queued+len(x.items) > 2*size || p.queuedBad > badAtOnce && p.queuedBad+bad > 2*badAtOnce; {
			p.room.Wait()
		}
		p.queued += len(x.items)
		p.queuedBad += bad
		p.mu.Unlock()
		select {
		case p.ch <- x:
		case <-p.ctx.Done():
			err = context.Cause(p.ctx)
		}
	})
	return err
}

// during runs the walk that sends to the pipe, and waits until everything that was
// sent is durable, also after a panic of the walk.
func (p *pipe) during(walk func() error) (walked, written error) {
	walked = defect.Guard(walk)
	close(p.ch)
	p.r.place.wait(p.ctx, func() { written = <-p.done })
	p.cancel(nil)
	return walked, written
}

// write takes pieces and commits them in batches, which may end in the middle
// of a document: the cursor then still names the document before.
func (p *pipe) write() (err error) {
	defer defect.Recover(&err)
	size, wait := p.r.size(), p.r.h.BatchTime
	if wait == 0 {
		wait = time.Second
	}
	for x := range p.ch {
		b := &p.batch
		doc := len(b.Documents)
		b.Documents = append(b.Documents, x.doc)
		b.Quarantine = append(b.Quarantine, x.quarantine...)
		p.batchBad += badOf(x.quarantine)
		for len(x.items) > 0 {
			n := p.fill(x.items[:min(len(x.items), size-len(b.Items))], doc)
			x.items = x.items[n:]
			if len(x.items) > 0 {
				if err := p.commit(); err != nil {
					return err
				}
				b.Documents, doc = append(b.Documents, x.doc), 0
			}
		}
		if x.cursor != nil {
			p.safe = x.cursor
		}
		p.memory += x.memory
		if len(b.Items) >= size || p.batchBad >= badAtOnce || p.r.h.now().Sub(p.since) >= wait {
			if err := p.commit(); err != nil {
				return err
			}
		}
	}
	if p.ctx.Err() == nil && (len(p.batch.Documents) > 0) {
		return p.commit()
	}
	return nil
}

// badOf is how many bytes bad input takes.
func badOf(quarantine []event.Quarantined) (n int) {
	for i := range quarantine {
		n += costOf(&quarantine[i])
	}
	return n
}

// fill adds items of a document to the batch and returns how many it has taken.
// In a mirror a batch has a record once, so that what the log says of contents
// before they are fetched is what Append says: an item that the one in the batch
// outdates is historical, and another one begins a new batch.
func (p *pipe) fill(items []event.Item, doc int) int {
	b := &p.batch
	if p.r.src.Content != event.Mirror {
		from := len(b.Items)
		if from == 0 {
			b.Items = slices.Clip(items)
		} else {
			b.Items = append(b.Items, items...)
		}
		for i := range b.Items[from:] {
			b.Items[from+i].Document = doc
		}
		return len(items)
	}
	if p.has == nil {
		p.has = make(map[string]int, p.r.size())
	}
	for i := range items {
		it := &items[i]
		if at, again := p.has[it.Record]; again {
			if !b.Items[at].Outdates(it) {
				return i
			}
			p.r.note(func(r *Report) { r.Historical++ })
			p.left(1, 0)
			continue
		}
		p.has[it.Record] = len(b.Items)
		b.Items = append(b.Items, *it)
		b.Items[len(b.Items)-1].Document = doc
	}
	return len(items)
}

// left makes room for so many observations, and bytes of bad input.
func (p *pipe) left(n, bad int) {
	p.mu.Lock()
	p.queued -= n
	p.queuedBad -= bad
	p.mu.Unlock()
	p.room.Broadcast()
}

// commit fetches what the batch needs and appends it.
func (p *pipe) commit() error {
	b := p.batch
	b.Next = p.safe
	n := len(b.Items)
	if err := p.r.take(p.ctx, &b); err != nil {
		return err
	}
	p.left(n, p.batchBad)
	p.r.place.done(p.memory)
	p.memory, p.batchBad = 0, 0
	clear(p.has)
	p.batch, p.since = event.Batch{Items: reuse(b.Items)}, p.r.h.now()
	return nil
}
