package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// docBatch is what one document says, or a part of that.
type docBatch struct {
	doc        event.Document
	items      []event.Item
	quarantine []event.Quarantined
	memory     int64  // taken of the harvest's load, given back once it is durable
	last       bool   // of its document
	cursor     []byte // where the walk goes on after the document; nil before its last batch, and where that is not to be stored
}

// badAtOnce is how many bytes of bad input make a transaction.
const badAtOnce = 16 << 20

// batchesQueued bounds how many documents wait for the log, however small.
const batchesQueued = 64

// pipeline carries what documents say from the walk to the log. While one transaction is
// written the documents of the next are read: as many observations wait in
// between as one transaction takes.
type pipeline struct {
	r      *run
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan error
	ch     chan docBatch

	mu        sync.Mutex
	room      *sync.Cond
	queued    int // observations that were sent and are not yet durable
	queuedBad int // bytes of bad input, likewise

	// Of the walk's goroutine: how many observations were sent last.
	latest int

	// Of the writer's goroutine.
	batch    event.Batch
	index    map[string]int // of a mirror: where a record's item stands in batch
	batchBad int            // bytes of the bad input in batch
	// memory is what is given back after the next commit.
	memory int64
	cursor []byte // the cursor after the last document that was taken in whole
	since  time.Time
}

// newPipeline opens a pipeline for a walk that begins anew, or goes on.
func newPipeline(ctx context.Context, r *run, anew bool) *pipeline {
	p := &pipeline{r: r, done: make(chan error, 1), ch: make(chan docBatch, batchesQueued), since: r.h.now()}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.room = sync.NewCond(&p.mu)
	p.cursor = r.data
	if anew {
		p.batch.Start = true
		p.cursor = []byte(unread)
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
func (p *pipeline) send(x docBatch) (err error) {
	p.latest = len(x.items)
	if x.last {
		p.r.documents.Add(1)
	}
	p.r.tell()
	p.r.place.wait(p.ctx, func() {
		p.mu.Lock()
		bad := badBytes(x.quarantine)
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

// during runs the walk that sends to the pipeline, and waits until everything that was
// sent is durable, also after a panic of the walk.
func (p *pipeline) during(walk func() error) (walked, written error) {
	walked = defect.Guard(walk)
	close(p.ch)
	p.r.place.wait(p.ctx, func() { written = <-p.done })
	p.cancel(nil)
	return walked, written
}

// write commits what was sent in transactions, which may end in the middle
// of a document: the cursor then still names the document before.
func (p *pipeline) write() (err error) {
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
		p.batchBad += badBytes(x.quarantine)
		for len(x.items) > 0 {
			n := p.add(x.items[:min(len(x.items), size-len(b.Items))], doc)
			x.items = x.items[n:]
			if len(x.items) > 0 {
				if err := p.commit(); err != nil {
					return err
				}
				b.Documents, doc = append(b.Documents, x.doc), 0
			}
		}
		if x.cursor != nil {
			p.cursor = x.cursor
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

// badBytes is how many bytes bad input takes.
func badBytes(quarantine []event.Quarantined) (n int) {
	for i := range quarantine {
		n += badSize(&quarantine[i])
	}
	return n
}

// add adds items of a document to the batch and returns how many it has taken.
// In a mirror a batch has a record once, so that what the log says of contents
// before they are fetched is what Append says: an item that the one in the batch
// outdates is historical, and another one begins a new batch.
func (p *pipeline) add(items []event.Item, doc int) int {
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
	if p.index == nil {
		p.index = make(map[string]int, p.r.size())
	}
	for i := range items {
		it := &items[i]
		if at, again := p.index[it.Record]; again {
			if !b.Items[at].Outdates(it) {
				return i
			}
			p.r.note(func(r *Report) { r.Historical++ })
			p.release(1, 0)
			continue
		}
		p.index[it.Record] = len(b.Items)
		b.Items = append(b.Items, *it)
		b.Items[len(b.Items)-1].Document = doc
	}
	return len(items)
}

// release makes room for so many observations, and bytes of bad input.
func (p *pipeline) release(n, bad int) {
	p.mu.Lock()
	p.queued -= n
	p.queuedBad -= bad
	p.mu.Unlock()
	p.room.Broadcast()
}

// commit fetches what the batch needs and appends it.
func (p *pipeline) commit() error {
	b := p.batch
	b.Next = p.cursor
	n := len(b.Items)
	if err := p.r.fetchAndCommit(p.ctx, &b); err != nil {
		return err
	}
	p.release(n, p.batchBad)
	p.r.place.done(p.memory)
	p.memory, p.batchBad = 0, 0
	clear(p.index)
	p.batch, p.since = event.Batch{Items: reuse(b.Items)}, p.r.h.now()
	return nil
}

const (
	// backlogMemory is how much of what one document says waits in memory, in
	// observations. Lists as long as they may be (ResourceSync 7) have 50,000.
	backlogMemory = 1 << 16
	// textMemory is how many bytes of text do, bad input included.
	textMemory = 64 << 20
	// badCost is what a bad input takes besides its text.
	badCost = 512
	// quarantineBatch is how much bad input goes to the log at once, and how much
	// waits in memory once a file has other.
	quarantineBatch = 8 << 20

	// spillParts is in how many parts of records a spill is. The largest list that
	// is read has some 10 million entries.
	spillParts = 128
	// spillBehind is how many observations of a document wait in memory once a
	// file has others.
	spillBehind = 1 << 12
	// spillChunk is how much of a part is gathered before it is written.
	spillChunk = 8 << 10
	// spillCost is about how much memory a file takes, for what is gathered.
	spillCost = spillParts * (spillChunk + 8<<10)
	// maxSpill is how large the file may become.
	maxSpill = 4 << 30
)

// errSpill: a document says so much that there is no room for it.
var errSpill = errors.New("the document says more than 4 GiB")

// backlog is what one document has said so far of its records, and its bad input.
// Of a document that cannot be read to its end nothing is taken, so all of it has to
// wait for that end. What is too much to wait in memory waits in a temporary file, in
// parts by record: the last word on a record is found in its part, and no more than
// one part is in memory.
type backlog[T any] struct {
	r          *run
	record     func(*T) string // that an entry is about
	values     []T
	quarantine []event.Quarantined
	text       int // bytes of both
	meter      meter
	spill      *spill
}

// begin empties the backlog for a document, which probably says as much as the one
// before. What was allocated for that one is used again.
func (b *backlog[T]) begin(latest int) {
	b.values, b.quarantine, b.text, b.spill = reuse(b.values), nil, 0, nil
	if b.values == nil {
		b.values = make([]T, 0, min(latest, backlogMemory))
	}
	b.meter = b.r.meter()
}

// add appends what was said of a record, with about so many bytes of text.
func (b *backlog[T]) add(value T, text int) {
	b.text += text
	b.values = append(b.values, value)
}

// addBad appends bad input.
func (b *backlog[T]) addBad(q event.Quarantined) {
	b.r.note(func(p *Report) { p.Quarantined++ })
	b.text += badSize(&q)
	b.quarantine = append(b.quarantine, q)
}

// count counts an entry that was read. It waits for memory, and moves what is too
// much for memory to a file.
func (b *backlog[T]) count(ctx context.Context) error {
	if err := b.meter.entry(ctx); err != nil {
		return err
	}
	if values, text := b.most(); len(b.values) >= values || b.text >= text {
		if err := b.toFile(); err != nil {
			return err
		}
	}
	if b.r.entries.Add(1)%1000 == 0 {
		b.r.tell()
	}
	return nil
}

// badSize is how many bytes a bad input takes.
func badSize(q *event.Quarantined) int { return badCost + len(q.Input) + len(q.Record) + len(q.Reason) }

// most is how many values wait in memory, and how many bytes of text.
func (b *backlog[T]) most() (values, text int) {
	values = cmp.Or(b.r.h.BacklogMemory, backlogMemory)
	if b.spill != nil {
		return min(values, spillBehind), quarantineBatch
	}
	return values, textMemory
}

// toFile lets what was said so far wait in a file.
func (b *backlog[T]) toFile() error {
	if b.spill == nil {
		var err error
		if b.spill, err = newSpill(b.r.h.Folder); err != nil {
			return err
		}
	}
	for i := range b.values {
		if err := b.spill.add(b.record(&b.values[i]), &b.values[i]); err != nil {
			return err
		}
	}
	for i := range b.quarantine {
		if err := b.spill.bad.add(b.spill, &b.quarantine[i]); err != nil {
			return err
		}
	}
	b.values, b.quarantine, b.text = reuse(b.values), nil, 0
	b.giveBack(spillCost)
	return nil
}

// reuse empties a slice. A long one goes: nobody counts the memory of what is
// kept for later, and a thousand harvests may be under way.
func reuse[T any](s []T) []T {
	if cap(s) > 2*spillBehind {
		return nil
	}
	clear(s)
	return s[:0]
}

// giveBack gives back the memory that was taken for the document, but for so many
// bytes.
func (b *backlog[T]) giveBack(but int64) {
	if n := b.meter.taken - but; n > 0 {
		b.r.place.done(n)
		b.meter.taken = but
	}
}

// close ends the document, whether or not it was handed on.
func (b *backlog[T]) close() {
	b.giveBack(0)
	if b.spill != nil {
		b.spill.close()
	}
}

// send sends what the document says to the log, now that it was read to its end:
// what counts of its entries, in the order in which they were added, those of one
// record always together. Only the last batch has a cursor: until it is stored the walk
// goes on at this document.
func (b *backlog[T]) send(ctx context.Context, p *pipeline, d document[T]) (err error) {
	x := docBatch{doc: d.origin()}
	if b.spill == nil {
		if x.items, err = d.latest(ctx, b, b.values); err != nil {
			return err
		}
		x.quarantine, x.memory = b.quarantine, b.meter.taken
		b.meter.taken = 0
	} else if x, err = b.sendParts(ctx, p, d, x); err != nil {
		return err
	}
	state, err := d.state()
	if err != nil {
		return err
	}
	if state != nil {
		if x.cursor, err = json.Marshal(cursor{Walk: state, Active: b.r.active}); err != nil {
			return err
		}
	}
	x.last = true
	b.values, b.quarantine = reuse(b.values), nil // while it waits
	return p.send(x)
}

// sendParts sends what waits in a file, one part after the other. It returns the rest
// of the bad input.
func (b *backlog[T]) sendParts(ctx context.Context, p *pipeline, d document[T], x docBatch) (docBatch, error) {
	if err := b.toFile(); err != nil {
		return x, err
	}
	b.values = nil
	for part := range spillParts {
		x.memory = b.spill.memory(part)
		if err := b.r.place.add(ctx, x.memory); err != nil {
			return x, err
		}
		values, err := valuesOf[T](b.spill, part)
		if err != nil {
			return x, err
		}
		if x.items, err = d.latest(ctx, b, values); err != nil {
			return x, err
		}
		if err := p.send(x); err != nil {
			return x, err
		}
	}
	for i := range b.quarantine { // by latest
		if err := b.spill.bad.add(b.spill, &b.quarantine[i]); err != nil {
			return x, err
		}
	}
	x.items, x.memory = nil, 0
	size := 0
	err := b.spill.bad.each(b.spill, func(d *gob.Decoder) error {
		var q event.Quarantined
		if err := d.Decode(&q); err != nil {
			return err
		}
		x.quarantine = append(x.quarantine, q)
		if size += badSize(&q); size < quarantineBatch {
			return nil
		}
		full := x
		full.memory = int64(size)
		x.quarantine, size = nil, 0
		if err := b.r.place.add(ctx, full.memory); err != nil {
			return err
		}
		return p.send(full)
	})
	return x, err
}

// spill is a temporary file with what one document says.
type spill struct {
	file  *os.File
	size  int64
	parts [spillParts]spillPart // of records
	bad   spillPart             // input for quarantine
}

// spillPart is a stream of values, in chunks that lie anywhere in the file.
type spillPart struct {
	buf    bytes.Buffer
	values *gob.Encoder
	chunks []chunk
}

type chunk struct{ from, size int64 }

// newSpill makes the file in a folder; "" is the system's for temporary files.
func newSpill(folder string) (*spill, error) {
	f, err := os.CreateTemp(folder, "bridge-document-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("a long document needs room: %w", err)
	}
	// Where an open file cannot be removed, close does it.
	_ = os.Remove(f.Name())
	return &spill{file: f}, nil
}

func (s *spill) close() {
	// Nothing that it holds is needed any more.
	_ = s.file.Close()
	_ = os.Remove(s.file.Name())
}

// add appends what was said of a record to its part.
func (s *spill) add(record string, value any) error {
	return s.parts[uint64(event.KeyBits(record))%spillParts].add(s, value)
}

// memory is about how many bytes the values of a part take.
func (s *spill) memory(part int) int64 {
	p := &s.parts[part]
	n := int64(p.buf.Len())
	for _, c := range p.chunks {
		n += c.size
	}
	return 4 * n
}

// valuesOf returns the values of a part, in the order in which they were added.
func valuesOf[T any](s *spill, part int) (values []T, err error) {
	err = s.parts[part].each(s, func(d *gob.Decoder) error {
		var v T
		err := d.Decode(&v)
		if err == nil {
			values = append(values, v)
		}
		return err
	})
	return values, err
}

func (p *spillPart) add(s *spill, value any) error {
	if p.values == nil {
		p.values = gob.NewEncoder(&p.buf)
	}
	if err := p.values.Encode(value); err != nil {
		return err
	}
	if p.buf.Len() < spillChunk {
		return nil
	}
	return p.flush(s)
}

func (p *spillPart) flush(s *spill) error {
	if s.size+int64(p.buf.Len()) > maxSpill {
		return errSpill
	}
	n, err := s.file.WriteAt(p.buf.Bytes(), s.size)
	if err != nil {
		return fmt.Errorf("a long document needs room: %w", err)
	}
	p.chunks = append(p.chunks, chunk{s.size, int64(n)})
	s.size += int64(n)
	p.buf.Reset()
	return nil
}

// each decodes the values of the part, one at a time.
func (p *spillPart) each(s *spill, decode func(*gob.Decoder) error) error {
	if err := p.flush(s); err != nil {
		return err
	}
	var chunks []io.Reader
	for _, c := range p.chunks {
		chunks = append(chunks, io.NewSectionReader(s.file, c.from, c.size))
	}
	values := gob.NewDecoder(io.MultiReader(chunks...))
	for {
		if err := decode(values); err != nil {
			if err == io.EOF { //nolint:errorlint // gob returns it bare, and only between values
				return nil
			}
			return err
		}
	}
}
