package harvest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pmh-bridge/bridge/event"
)

const (
	// backlogMemory is how much of what one document says waits in memory, in
	// observations. Lists as long as they may be (ResourceSync 7) have 50,000.
	backlogMemory = 1 << 16
	// textMemory is how many bytes of text do, bad input included.
	textMemory = 64 << 20
	// badCost is what a bad input takes besides its text.
	badCost = 512
	// quarantinePiece is how much bad input goes to the log at once, and how much
	// waits in memory once a file has other.
	quarantinePiece = 8 << 20

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
	record     func(*T) string // that a value is about
	values     []T
	quarantine []event.Quarantined
	text       int // bytes of both
	meter      meter
	spill      *spill
}

// add appends what was said of a record, with about so many bytes of text.
func (b *backlog[T]) add(value T, text int) {
	b.text += text
	b.values = append(b.values, value)
}

// addBad appends bad input.
func (b *backlog[T]) addBad(q event.Quarantined) {
	b.r.note(func(p *Report) { p.Quarantined++ })
	b.text += costOf(&q)
	b.quarantine = append(b.quarantine, q)
}

// read reads a document to its end: next takes one entry, and returns io.EOF behind
// the last one; toFile is called when what was said is too much for memory.
func (b *backlog[T]) read(ctx context.Context, url string, next, toFile func() error) error {
	for {
		if err := next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := b.meter.entry(ctx); err != nil {
			return err
		}
		if values, text := b.most(); len(b.values) >= values || b.text >= text {
			if err := toFile(); err != nil {
				return fmt.Errorf("%s: %w", url, err)
			}
		}
		if b.r.entries.Add(1)%1000 == 0 {
			b.r.tell()
		}
	}
}

// costOf is how many bytes a bad input takes.
func costOf(q *event.Quarantined) int { return badCost + len(q.Input) + len(q.Record) + len(q.Reason) }

// most is how many values wait in memory, and how many bytes of text.
func (b *backlog[T]) most() (values, text int) {
	values = cmp.Or(b.r.h.BacklogMemory, backlogMemory)
	if b.spill != nil {
		return min(values, spillBehind), quarantinePiece
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

// handOn sends to the log what pick makes of the values, in the order in which they
// were added: those of one record are always together. The last piece of the
// document, x with what is left, is returned and not sent: only that one has a cursor,
// and until it is stored the walk goes on at this document.
func (b *backlog[T]) handOn(ctx context.Context, p *pipe, x piece, pick func([]T) ([]event.Item, error)) (piece, error) {
	var err error
	if b.spill == nil {
		if x.items, err = pick(b.values); err != nil {
			return x, err
		}
		x.quarantine, x.memory = b.quarantine, b.meter.taken
		b.meter.taken = 0
		return x, nil
	}
	if err := b.toFile(); err != nil { // the rest
		return x, err
	}
	b.values = nil
	x.active = p.active
	for part := range spillParts {
		x.memory = b.spill.memory(part)
		if err := b.r.place.add(ctx, x.memory); err != nil {
			return x, err
		}
		values, err := valuesOf[T](b.spill, part)
		if err != nil {
			return x, err
		}
		if x.items, err = pick(values); err != nil {
			return x, err
		}
		if err := p.send(x); err != nil {
			return x, err
		}
	}
	for i := range b.quarantine { // by pick
		if err := b.spill.bad.add(b.spill, &b.quarantine[i]); err != nil {
			return x, err
		}
	}
	x.items, x.memory = nil, 0
	size := 0
	err = b.spill.bad.each(b.spill, func(d *gob.Decoder) error {
		var q event.Quarantined
		if err := d.Decode(&q); err != nil {
			return err
		}
		x.quarantine = append(x.quarantine, q)
		if size += costOf(&q); size < quarantinePiece {
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
