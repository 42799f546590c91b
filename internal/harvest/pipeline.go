package harvest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// docBatch has the items of one document, or a part of them.
type docBatch struct {
	doc         event.Document
	items       []*event.Item
	quarantine  []event.Quarantined
	takenMemory int64  // that was taken for it, freed once the batch is durable
	last        bool   // of its document
	flush       bool   // send waits until everything is durable: what the document needs goes with it
	cursor      []byte // where the walk goes on after the document; nil before its last batch, or when not to be stored
}

// bytesAtOnce is how many bytes of bad input, and of content that came with the entries,
// are committed at once.
const bytesAtOnce = 16 << 20

// batchTime is how long observations wait for others to be committed with them.
const batchTime = time.Second

// batchesQueued bounds how many documents wait for the log, however small.
const batchesQueued = 64

// pipeline passes the items of documents from the walk to the log. While one
// transaction is written, the documents of the next one are read. In between there are
// as many observations as one transaction takes. Contents that came along are stored on
// the way (arrivals.go).
type pipeline struct {
	r      *run
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan error
	ch     chan docBatch

	mu          sync.Mutex
	room        *sync.Cond
	queued      int // observations that were sent and are not yet appended
	unsaved     int // and not yet durable
	queuedBytes int // of bad input and of content that came with the entries, likewise

	// Of the walk's goroutine: how many observations were sent last.
	lastSize int

	// Of the writer's goroutine.
	in         <-chan docBatch // what was sent, once its contents are stored
	rest       docBatch        // what of the last one that was sent is not in batch yet
	saved      int             // observations in the transaction
	batch      event.Batch
	index      map[string]int // of a mirror: where a record's item stands in batch
	batchBytes int            // as queuedBytes, of batch
	// takenMemory is freed when the batch was appended.
	takenMemory int64
	cursor      []byte // the cursor after the last document that was taken in whole
	since       time.Time
}

// newPipeline opens a pipeline for a new walk (anew), or for the rest of one.
func newPipeline(ctx context.Context, r *run, anew bool) *pipeline {
	p := &pipeline{r: r, done: make(chan error, 1), ch: make(chan docBatch, batchesQueued), since: r.h.now()}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.room = sync.NewCond(&p.mu)
	p.cursor = r.data
	if anew {
		p.batch.Start = true
		p.cursor = []byte(unread)
	}
	p.in = p.ch
	stored := make(chan error, 1)
	if r.keepsArrivals() {
		p.in = p.startArrivals(stored)
	} else {
		stored <- nil
	}
	go func() {
		err := p.write()
		p.end(err)
		for range p.in {
		}
		p.done <- errors.Join(<-stored, err)
	}()
	return p
}

// end ends the pipeline, early where there is an error: send never waits again.
func (p *pipeline) end(err error) {
	if err != nil {
		p.cancel(err)
	}
	p.mu.Lock()
	p.queued, p.unsaved, p.queuedBytes = -1<<40, -1<<40, -1<<40
	p.mu.Unlock()
	p.room.Broadcast()
}

// send queues the items of a document. Then it waits while more is queued than the
// transaction that is being written and the next one: a long document is not read while
// all of another one waits.
func (p *pipeline) send(x docBatch) (err error) {
	p.lastSize = len(x.items)
	if x.last {
		p.r.documents.Add(1)
	}
	p.r.reportProgress()
	p.r.slot.whileWaiting(p.ctx, func() {
		p.mu.Lock()
		p.queued += len(x.items)
		p.unsaved += len(x.items)
		p.queuedBytes += x.bytes()
		p.mu.Unlock()
		select {
		case p.ch <- x:
		case <-p.ctx.Done():
			err = context.Cause(p.ctx)
			return
		}
		p.mu.Lock()
		for x.flush && p.unsaved > 0 || p.queued > 2*p.r.batchSize() || p.queuedBytes > 2*bytesAtOnce {
			p.room.Wait()
		}
		p.mu.Unlock()
	})
	return err
}

// flush waits until everything that was sent is durable.
func (p *pipeline) flush() error { return p.send(docBatch{flush: true}) }

// run runs the walk that sends to the pipeline, and waits until everything that was
// sent is durable, even if the walk panics.
func (p *pipeline) run(walk func() error) (walked, written error) {
	walked = defect.Guard(walk)
	close(p.ch)
	p.r.slot.whileWaiting(p.ctx, func() { written = <-p.done })
	p.cancel(nil)
	return walked, written
}

// write commits what was sent.
func (p *pipeline) write() (err error) {
	defer defect.Recover(&err)
	for p.fill(true) {
		for filled := true; filled; {
			if filled, err = p.commit(); err != nil {
				return err
			}
		}
	}
	if p.ctx.Err() == nil && len(p.batch.Documents) > 0 {
		_, err = p.commit()
	}
	return err
}

// fill takes what was sent into the batch, until the batch is to be appended. It reports
// false when it is not: then nothing more is queued or, with wait, the walk has ended. A
// batch may end in the middle of a document: then its cursor is still that of the
// document before.
func (p *pipeline) fill(wait bool) bool {
	b, x := &p.batch, &p.rest
	for {
		if len(x.items) == 0 && !p.receive(wait) {
			return false
		}
		if len(b.Documents) == 0 && len(x.items) > 0 {
			b.Documents = append(b.Documents, x.doc)
		}
		size := p.r.batchSize()
		n := p.fillBatch(x.items[:min(len(x.items), max(size-len(b.Items), 0))], len(b.Documents)-1)
		if x.items = x.items[n:]; len(x.items) > 0 {
			return true
		}
		if x.cursor != nil {
			p.cursor = x.cursor
		}
		p.takenMemory += x.takenMemory
		switch {
		case x.flush && (len(b.Documents) > 0 || !wait):
			return len(b.Documents) > 0
		case len(b.Items) >= size, p.batchBytes >= bytesAtOnce, p.r.h.now().Sub(p.since) >= batchTime:
			return true
		}
	}
}

// receive takes in the next of what was sent, all but its items.
func (p *pipeline) receive(wait bool) (ok bool) {
	if wait {
		p.rest, ok = <-p.in
	} else {
		select {
		case p.rest, ok = <-p.in:
		default:
		}
	}
	if !ok {
		return false
	}
	b, x := &p.batch, &p.rest
	if x.doc.URL != "" {
		b.Documents = append(b.Documents, x.doc)
	}
	b.Quarantine = append(b.Quarantine, x.quarantine...)
	p.batchBytes += x.bytes()
	return true
}

// bytes returns how many bytes of memory the bad inputs take, and the content that came
// with the items.
func (x *docBatch) bytes() (n int) {
	for i := range x.quarantine {
		n += badSize(&x.quarantine[i])
	}
	for i := range x.items {
		n += len(x.items[i].Inline)
	}
	return n
}

// fillBatch adds items of a document to the batch and returns how many it has added.
// In a mirror a batch has each record once, so that NeedsContent answers what Append
// will find: an item that is older than the one in the batch is historical, and a newer
// one begins a new batch.
func (p *pipeline) fillBatch(items []*event.Item, doc int) int {
	b := &p.batch
	if !p.r.src.mirrors() {
		for _, it := range items {
			it.Document = doc
		}
		b.Items = append(b.Items, items...)
		return len(items)
	}
	if p.index == nil {
		p.index = make(map[string]int, p.r.batchSize())
	}
	for i, it := range items {
		if at, again := p.index[it.Record]; again {
			if !b.Items[at].Outdates(it) {
				return i
			}
			p.r.updateReport(func(r *Report) { r.Historical++ })
			p.saved++
			p.release(1, 0)
			continue
		}
		p.index[it.Record] = len(b.Items)
		it.Document = doc
		b.Items = append(b.Items, it)
	}
	return len(items)
}

// release makes room for n observations and so many bytes, of which nothing is needed any
// more.
func (p *pipeline) release(n, bytes int) {
	p.mu.Lock()
	p.queued -= n
	p.queuedBytes -= bytes
	p.mu.Unlock()
	p.room.Broadcast()
}

// commit fetches the contents that the batch needs and appends it to the log. It may
// append others with it, and reports whether there is another one to commit.
func (p *pipeline) commit() (filled bool, err error) {
	if p.alone() {
		b := p.next()
		if err := p.r.fetchAndCommit(p.ctx, b); err != nil {
			return false, err
		}
		p.appended(b)
	} else if filled, err = p.commitMany(); err != nil {
		return false, err
	}
	p.mu.Lock()
	p.unsaved -= p.saved
	p.mu.Unlock()
	p.saved, p.since = 0, p.r.h.now()
	p.room.Broadcast()
	return filled, nil
}

const (
	// manyBatches is how many batches a transaction has at most, and manyTime how long
	// it may go on taking more.
	manyBatches = 5
	manyTime    = 2 * batchTime
)

// commitMany appends the batch, and those that are filled while it is appended, in one
// transaction: a transaction writes nearly every page of the tables with random keys,
// and five batches together hardly more than one. It ends when nothing more is
// queued, or somebody else wants to write.
func (p *pipeline) commitMany() (filled bool, err error) {
	r, began := p.r, p.r.h.now()
	version, data := r.version, r.data
	var missed []*event.Batch
	err = r.transaction(&p.batch)(p.ctx, func(ctx context.Context, tx *eventlog.Tx) error {
		for n := 1; ; n++ {
			b := p.next()
			out, err := r.appendTo(ctx, tx, b)
			if err != nil {
				return err
			}
			if m := r.missed(b, nil, out.Outcomes); m != nil {
				missed = append(missed, m)
			}
			p.appended(b)
			if n == manyBatches || tx.Awaited() || r.h.now().Sub(began) >= manyTime || p.ctx.Err() != nil {
				return nil
			}
			if filled = p.fill(false); !filled || p.alone() {
				return nil
			}
			filled = false
		}
	})
	if err != nil {
		r.version, r.data = version, data
		return false, &appendError{err}
	}
	for _, m := range missed {
		m.Next = r.data // where the last batch has put it
		if err := r.fetchAndCommit(p.ctx, m); err != nil {
			return false, err
		}
	}
	return filled, nil
}

// alone reports whether something has to be asked for before the batch is appended, or may
// have to be: then it has a transaction of its own.
func (p *pipeline) alone() bool {
	if p.r.src.Content == event.Mirror {
		return !p.r.keepsArrivals() && p.r.src.Kind != Set || lackContent(p.batch.Items)
	}
	return p.r.src.Kind != Set && lackType(p.batch.Items)
}

// next returns the batch as it is to be appended.
func (p *pipeline) next() *event.Batch {
	b := p.batch
	b.Next = p.cursor
	return &b
}

// appended begins another batch, since this one was appended.
func (p *pipeline) appended(b *event.Batch) {
	p.saved += len(b.Items)
	p.release(len(b.Items), p.batchBytes)
	p.r.slot.freeMemory(p.takenMemory)
	p.takenMemory, p.batchBytes = 0, 0
	clear(p.index)
	p.batch = event.Batch{Items: reuse(b.Items)}
}

const (
	// backlogMemory is how many observations of one document are kept in memory. The
	// longest valid lists have 50,000 (ResourceSync 7).
	backlogMemory = 1 << 16
	// textMemory is how many bytes of their text are, bad input included.
	textMemory = 64 << 20
	// badCost is how many bytes a bad input takes besides its text.
	badCost = 512
	// quarantineBatch is how many bytes of bad input go to the log at once, and how
	// many are kept in memory once there is a file.
	quarantineBatch = 8 << 20

	// fileParts is how many parts a file has. The largest list that is read has some
	// 10 million entries.
	fileParts = 128
	// fileBacklog is how many observations of a document are kept in memory once there
	// is a file, or where their contents are to be fetched.
	fileBacklog = 1 << 12
	// fileChunk is how many bytes of a part are written at once.
	fileChunk = 8 << 10
	// fileCost is about how many bytes of memory a file takes.
	fileCost = fileParts * (fileChunk + 8<<10)
	// maxFile is how many bytes a file may have.
	maxFile = 4 << 30
)

// errFileFull: a document has more entries than fit into a file.
var errFileFull = errors.New("the document has more than 4 GiB of entries")

// backlog holds the entries of one document, and its bad input, until the document was
// read to its end: nothing is taken of one that cannot be. What does not fit into
// memory is kept in a temporary file, in parts by record: all entries of a record are
// in one part, and no more than one part is read into memory.
type backlog[T any] struct {
	r          *run
	record     func(T) string // that an entry is about
	values     []T
	quarantine []event.Quarantined
	text       int // bytes of both
	meter      memoryMeter
	file       *entryFile
	expected   int // entries that the last document had, as many as memory may hold
}

// begin empties the backlog for the next document, and reuses its array if that is
// small. expected is how many entries the last document had: a new array has room for as
// many, at first for 2*fileBacklog at most. add makes the rest of the room in one step.
func (b *backlog[T]) begin(expected int) {
	b.values, b.quarantine, b.text, b.file = reuse(b.values), nil, 0, nil
	if b.values == nil {
		b.values = make([]T, 0, min(expected, 2*fileBacklog))
	}
	b.expected = min(expected, backlogMemory)
	b.meter = b.r.newMeter()
}

// add adds an entry, with about so many bytes of text.
func (b *backlog[T]) add(value T, text int) {
	b.text += text
	if n := len(b.values); n == cap(b.values) && n >= 2*fileBacklog && n < b.expected {
		b.values = slices.Grow(b.values, b.expected-n)
	}
	b.values = append(b.values, value)
}

// countedBad is how many bad inputs a harvest recognizes when it reads them again.
const countedBad = 10_000

// addBad adds bad input. What is read again, as in a list that is asked for again, counts
// once, as it is once in quarantine.
func (b *backlog[T]) addBad(q event.Quarantined) {
	if digest := sha256.Sum256(q.Input); !b.r.bad[digest] {
		b.r.updateReport(func(p *Report) { p.Quarantined++ })
		if b.r.bad == nil {
			b.r.bad = map[[sha256.Size]byte]bool{}
		}
		if len(b.r.bad) < countedBad {
			b.r.bad[digest] = true
		}
	}
	b.text += badSize(&q)
	b.quarantine = append(b.quarantine, q)
}

// afterEntry counts an entry that was read. It waits for memory, and moves what does not fit
// into memory to a file.
func (b *backlog[T]) afterEntry(ctx context.Context) error {
	if err := b.meter.entry(ctx); err != nil {
		return err
	}
	if values, text := b.limits(); len(b.values) >= values || b.text >= text {
		if err := b.toFile(); err != nil {
			return err
		}
	}
	if b.r.entries.Add(1)%1000 == 0 {
		b.r.reportProgress()
	}
	return nil
}

// badSize returns how many bytes of memory a bad input takes.
func badSize(q *event.Quarantined) int { return badCost + len(q.Input) + len(q.Record) + len(q.Reason) }

// limits returns how many entries are kept in memory, and how many bytes of text: few where
// their contents are to be fetched, since that can take hours.
func (b *backlog[T]) limits() (values, text int) {
	values = cmp.Or(b.r.h.BacklogMemory, backlogMemory)
	if b.file != nil || b.r.fetchesContents() {
		return min(values, fileBacklog), quarantineBatch
	}
	return values, textMemory
}

// toFile moves the backlog to a file.
func (b *backlog[T]) toFile() error {
	if b.file == nil {
		var err error
		if b.file, err = newEntryFile(b.r.h.Folder); err != nil {
			return err
		}
	}
	for i := range b.values {
		if err := b.file.add(b.record(b.values[i]), &b.values[i]); err != nil {
			return err
		}
	}
	for i := range b.quarantine {
		if err := b.file.bad.add(b.file, &b.quarantine[i]); err != nil {
			return err
		}
	}
	b.values, b.quarantine, b.text = reuse(b.values), nil, 0
	b.freeMemory(fileCost)
	return nil
}

// reuse empties a slice. It drops a long one: the memory of what is kept for later is
// not counted, and a thousand harvests may be under way.
func reuse[T any](s []T) []T {
	if cap(s) > 2*fileBacklog {
		return nil
	}
	clear(s)
	return s[:0]
}

// freeMemory frees all but so many bytes of the memory that was taken for the document.
func (b *backlog[T]) freeMemory(but int64) {
	if n := b.meter.taken - but; n > 0 {
		b.r.slot.freeMemory(n)
		b.meter.taken = but
	}
}

// close ends the document, whether or not it was sent.
func (b *backlog[T]) close() {
	b.freeMemory(0)
	if b.file != nil {
		b.file.close()
	}
}

// send sends the document to the pipeline, now that it was read to its end: of its
// entries those that count. All of a record are in one batch. Only the last batch has a
// cursor: until that is stored the walk goes on at this document.
func (b *backlog[T]) send(ctx context.Context, p *pipeline, d document[T]) (err error) {
	x := docBatch{doc: d.origin()}
	if b.file == nil {
		if x.items, err = d.latest(ctx, b, b.values); err != nil {
			return err
		}
		x.quarantine, x.takenMemory = b.quarantine, b.meter.taken
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
	x.last, x.flush = true, b.r.pack.Load() != nil
	b.values, b.quarantine = reuse(b.values), nil // send may wait long
	return p.send(x)
}

// sendParts sends the file, one part after the other. It returns x with the last of the
// bad input.
func (b *backlog[T]) sendParts(ctx context.Context, p *pipeline, d document[T], x docBatch) (docBatch, error) {
	if err := b.toFile(); err != nil {
		return x, err
	}
	b.values = nil
	for part := range fileParts {
		x.takenMemory = b.file.memory(part)
		if err := b.r.slot.takeMemory(ctx, x.takenMemory); err != nil {
			return x, err
		}
		values, err := valuesOf[T](b.file, part)
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
		if err := b.file.bad.add(b.file, &b.quarantine[i]); err != nil {
			return x, err
		}
	}
	x.items, x.takenMemory = nil, 0
	size := 0
	err := b.file.bad.each(b.file, func(d *gob.Decoder) error {
		var q event.Quarantined
		if err := d.Decode(&q); err != nil {
			return err
		}
		x.quarantine = append(x.quarantine, q)
		if size += badSize(&q); size < quarantineBatch {
			return nil
		}
		full := x
		full.takenMemory = int64(size)
		x.quarantine, size = nil, 0
		if err := b.r.slot.takeMemory(ctx, full.takenMemory); err != nil {
			return err
		}
		return p.send(full)
	})
	return x, err
}

// entryFile is a temporary file with the entries of one document.
type entryFile struct {
	file  *os.File
	size  int64
	parts [fileParts]entryFilePart // of records
	bad   entryFilePart            // input for quarantine
}

// entryFilePart is a stream of values, in chunks that lie anywhere in the file.
type entryFilePart struct {
	buf    bytes.Buffer
	values *gob.Encoder
	chunks []chunk
}

type chunk struct{ from, size int64 }

// newEntryFile makes the file in a folder; "" is the system's for temporary files.
func newEntryFile(folder string) (*entryFile, error) {
	f, err := os.CreateTemp(folder, "bridge-document-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("a long document needs disk space: %w", err)
	}
	// Where an open file cannot be removed, close does it.
	_ = os.Remove(f.Name())
	return &entryFile{file: f}, nil
}

// close deletes the file.
func (s *entryFile) close() {
	_ = s.file.Close()
	_ = os.Remove(s.file.Name())
}

// add adds an entry to the part of its record.
func (s *entryFile) add(record string, value any) error {
	return s.parts[uint64(event.KeyBits(record))%fileParts].add(s, value)
}

// memory returns about how many bytes of memory the entries of a part take.
func (s *entryFile) memory(part int) int64 {
	p := &s.parts[part]
	n := int64(p.buf.Len())
	for _, c := range p.chunks {
		n += c.size
	}
	return 4 * n
}

// valuesOf returns the entries of a part, in the order in which they were added.
func valuesOf[T any](s *entryFile, part int) (values []T, err error) {
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

func (p *entryFilePart) add(s *entryFile, value any) error {
	if p.values == nil {
		p.values = gob.NewEncoder(&p.buf)
	}
	if err := p.values.Encode(value); err != nil {
		return err
	}
	if p.buf.Len() < fileChunk {
		return nil
	}
	return p.flush(s)
}

func (p *entryFilePart) flush(s *entryFile) error {
	if s.size+int64(p.buf.Len()) > maxFile {
		return errFileFull
	}
	n, err := s.file.WriteAt(p.buf.Bytes(), s.size)
	if err != nil {
		return fmt.Errorf("a long document needs disk space: %w", err)
	}
	p.chunks = append(p.chunks, chunk{s.size, int64(n)})
	s.size += int64(n)
	p.buf.Reset()
	return nil
}

// each calls decode for each entry of the part, in order.
func (p *entryFilePart) each(s *entryFile, decode func(*gob.Decoder) error) error {
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
