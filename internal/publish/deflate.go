package publish

import (
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/pmh-bridge/bridge/internal/defect"
)

// deflater compresses what is written to it, in a goroutine of its own: rendering a
// list and compressing it cost about the same, so on two processors both together take
// the time of one. Its output depends on the bytes written, not on the sizes of the
// writes or their timing.
type deflater struct {
	full chan []byte // pieces to compress
	free chan []byte // pieces to fill again
	done chan struct{}
	err  error // of the goroutine; to be read after done
	dead chan struct{}
}

// deflatePieces bounds how far the writer may be ahead of the compression.
const deflatePieces = 8

// newDeflater compresses to w, which is the goroutine's until Close returns.
func newDeflater(w io.Writer) (*deflater, error) {
	zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	d := &deflater{
		full: make(chan []byte, deflatePieces),
		free: make(chan []byte, deflatePieces),
		done: make(chan struct{}),
		dead: make(chan struct{}),
	}
	for range deflatePieces {
		d.free <- nil
	}
	go d.run(zw)
	return d, nil
}

func (d *deflater) run(zw *gzip.Writer) {
	defer close(d.done)
	for b := range d.full {
		if d.err == nil {
			d.err = defect.Guard(func() error {
				_, err := zw.Write(b)
				return err
			})
			if d.err != nil {
				close(d.dead)
			}
		}
		d.free <- b
	}
	if d.err == nil {
		d.err = defect.Guard(zw.Close)
	}
}

// Write queues a copy of p for compression.
func (d *deflater) Write(p []byte) (int, error) {
	select {
	case <-d.dead:
		return 0, io.ErrClosedPipe // Close returns the error
	case b := <-d.free:
		d.full <- append(b[:0], p...)
		return len(p), nil
	}
}

// Close ends the stream and returns the first error of the writer below. It must
// be called, and once.
func (d *deflater) Close() error {
	close(d.full)
	<-d.done
	return d.err
}

// compress runs write with a writer that compresses to w. The goroutine ends also
// when write panics.
func compress(w io.Writer, write func(io.Writer) error) (err error) {
	d, err := newDeflater(w)
	if err != nil {
		return err
	}
	defer func() {
		if below := d.Close(); below != nil {
			err = below
		}
	}()
	return write(d)
}

// NewCompressor returns a writer that compresses to w as Document.Write does, while more
// is written. Close must be called, once; until it returns w is the compressor's.
func NewCompressor(w io.Writer) (io.WriteCloser, error) { return newDeflater(w) }

// Compress writes a document as Document.Write compresses it.
func Compress(w io.Writer, document []byte) error {
	return compress(w, func(w io.Writer) error {
		_, err := w.Write(document)
		return err
	})
}
