package harvest

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pmh-bridge/bridge/event"
)

// Of a document that cannot be read to its end nothing is taken, so what a document
// says has to wait for its end. What is too much to wait in memory waits in a
// temporary file, in parts by record: the last word on a record is found in its
// part, and no more than one part is in memory.

const (
	// listMemory is how many observations of one list wait in memory. Lists as long
	// as they may be (ResourceSync 7) have 50,000.
	listMemory = 1 << 16
	// textMemory is how many bytes of text do, bad input included.
	textMemory = 64 << 20
	// quarantinePiece is how many bytes of bad input go to the log at once.
	quarantinePiece = 8 << 20

	// spillParts is in how many parts of records a spill is. The largest list that
	// is read has some 10 million entries.
	spillParts = 128
	// spillChunk is how much of a part is gathered before it is written.
	spillChunk = 16 << 10
	// maxSpill is how large the file may become.
	maxSpill = 4 << 30
)

// errSpill: a list says so much that there is no room for it.
var errSpill = errors.New("the list says more than 4 GiB")

// spill is a temporary file with what one list says.
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
	f, err := os.CreateTemp(folder, "bridge-list-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("a long list needs room: %w", err)
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

// add appends an item to its record's part.
func (s *spill) add(it *event.Item) error {
	return s.parts[uint64(event.KeyBits(it.Record))%spillParts].add(s, it)
}

// addBad appends bad input.
func (s *spill) addBad(q *event.Quarantined) error { return s.bad.add(s, q) }

// memory is about how many bytes the items of a part take.
func (s *spill) memory(part int) int64 {
	p := &s.parts[part]
	n := int64(p.buf.Len())
	for _, c := range p.chunks {
		n += c.size
	}
	return 4 * n
}

// items returns the items of a part, in the order in which they were added.
func (s *spill) items(part int) (items []event.Item, err error) {
	err = s.parts[part].each(s, func(d *gob.Decoder) error {
		var it event.Item
		err := d.Decode(&it)
		if err == nil {
			items = append(items, it)
		}
		return err
	})
	return items, err
}

// eachBad calls f with all bad input.
func (s *spill) eachBad(f func(*event.Quarantined) error) error {
	return s.bad.each(s, func(d *gob.Decoder) error {
		var q event.Quarantined
		if err := d.Decode(&q); err != nil {
			return err
		}
		return f(&q)
	})
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
		return fmt.Errorf("a long list needs room: %w", err)
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
