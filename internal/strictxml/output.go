package strictxml

import "io"

// PieceSize is how many bytes an Output gathers before it is full.
const PieceSize = 32 << 10

// Output gathers what the writer of a document appends and hands it on in
// pieces, so that memory does not grow with the document. It is used by one
// goroutine at a time.
type Output struct {
	// Buf is what was gathered; its owner appends to it.
	Buf []byte

	w      io.Writer
	passed int64
}

// NewOutput returns an Output that hands on to w, which is never closed.
func NewOutput(w io.Writer) *Output {
	return &Output{w: w, Buf: make([]byte, 0, PieceSize+4096)}
}

// Full reports whether it is time for Flush.
func (o *Output) Full() bool { return len(o.Buf) >= PieceSize }

// Len counts the bytes appended so far, those that were handed on included.
func (o *Output) Len() int64 { return o.passed + int64(len(o.Buf)) }

// Passed counts the bytes that the underlying writer has taken.
func (o *Output) Passed() int64 { return o.passed }

// Flush hands on what was gathered. After an error the document is lost.
func (o *Output) Flush() error {
	n, err := o.w.Write(o.Buf)
	if err == nil && n < len(o.Buf) {
		err = io.ErrShortWrite
	}
	o.passed += int64(n)
	o.Buf = o.Buf[:0]
	return err
}
