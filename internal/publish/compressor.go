package publish

import (
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// Compressor compresses what is written to it as Document.Write does, in a goroutine of
// its own: rendering a list and compressing it cost about the same, so on two processors
// both together take the time of one. Its output depends on the bytes written, not on the
// sizes of the writes or their timing. After Close it may be begun again: it needs a
// megabyte, which a short answer should not cost anew.
type Compressor struct {
	gzip *gzip.Writer
	full chan []byte // pieces to compress
	free chan []byte // pieces to fill again
	done chan struct{}
	err  error // of the goroutine; to be read after done
	dead chan struct{}
}

// compressorPieces bounds how far the writer may be ahead of the compression.
const compressorPieces = 8

// NewCompressor returns a Compressor, which is to be begun.
func NewCompressor() *Compressor {
	zw, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // there is such a level
	}
	c := &Compressor{gzip: zw, free: make(chan []byte, compressorPieces)}
	for range compressorPieces {
		c.free <- nil
	}
	return c
}

// Begin begins a stream to w, which is the goroutine's until Close returns.
func (c *Compressor) Begin(w io.Writer) {
	c.gzip.Reset(w)
	c.full, c.done, c.dead, c.err = make(chan []byte, compressorPieces), make(chan struct{}), make(chan struct{}), nil
	go c.run()
}

func (c *Compressor) run() {
	defer close(c.done)
	for b := range c.full {
		if c.err == nil {
			c.err = defect.Guard(func() error {
				_, err := c.gzip.Write(b)
				return err
			})
			if c.err != nil {
				close(c.dead)
			}
		}
		c.free <- b
	}
	if c.err == nil {
		c.err = defect.Guard(c.gzip.Close)
	}
}

// Write queues a copy of p for compression.
func (c *Compressor) Write(p []byte) (int, error) {
	select {
	case <-c.dead:
		return 0, io.ErrClosedPipe // Close returns the error
	case b := <-c.free:
		c.full <- append(b[:0], p...)
		return len(p), nil
	}
}

// Close ends the stream and returns the first error of the writer below. It must
// be called, and once.
func (c *Compressor) Close() error {
	close(c.full)
	<-c.done
	return c.err
}

// compress runs write with a writer that compresses to w. The goroutine ends also
// when write panics.
func compress(w io.Writer, write func(io.Writer) error) (err error) {
	c := NewCompressor()
	c.Begin(w)
	defer func() {
		if below := c.Close(); below != nil {
			err = below
		}
	}()
	return write(c)
}

// Compress writes a document as Document.Write compresses it.
func Compress(w io.Writer, document []byte) error {
	return compress(w, func(w io.Writer) error {
		_, err := w.Write(document)
		return err
	})
}
