package publish

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// A Compressor that is used again writes what a new one writes, also after its writer
// has failed.
func TestCompressorAgain(t *testing.T) {
	t.Parallel()
	again := NewCompressor()
	for n := range 40 {
		var doc []byte
		for i := range 3000 * (n % 7) {
			doc = fmt.Appendf(doc, "<identifier>oai:repository.example.org:%d</identifier>\n", (n+1)*i%1999)
		}
		var want, got bytes.Buffer
		if err := Compress(&want, doc); err != nil {
			t.Fatal(err)
		}
		again.Begin(&got)
		for rest := doc; len(rest) > 0; { // in other pieces
			piece := rest[:min(len(rest), 1+n*997)]
			if _, err := again.Write(piece); err != nil {
				t.Fatal(err)
			}
			rest = rest[len(piece):]
		}
		if err := again.Close(); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("document %d of %d bytes: %d bytes, want %d: %v", n, len(doc), got.Len(), want.Len(), err)
		}
		broken := errors.New("the connection is gone")
		again.Begin(failingWriter{broken})
		_, _ = again.Write(doc) // it may be told so already
		if err := again.Close(); !errors.Is(err, broken) {
			t.Fatalf("%v, want %v", err, broken)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
