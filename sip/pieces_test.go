package sip

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// What is read in pieces is what came, at every border of a piece; of what breaks off
// there are the beginning and the length (D35).
func TestReadPieces(t *testing.T) {
	broken := errors.New("broken")
	for _, n := range []int{0, 1, 4<<10 - 1, 4 << 10, 4<<10 + 1, 12 << 10, 12<<10 + 1, 1 << 20, 1<<20 + 4095} {
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i * 31 >> 3)
		}
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(want), "in halves": iotest.HalfReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want))} {
			if got, k, err := readPieces(r); err != nil || k != n || !bytes.Equal(got, want) {
				t.Errorf("%d bytes %s: got %d and %d, %v", n, name, len(got), k, err)
			}
		}
		got, k, err := readPieces(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || k != n || !bytes.HasPrefix(want, got) || n > 0 && len(got) == 0 {
			t.Errorf("%d bytes that break off: got %d and %d, %v", n, len(got), k, err)
		}
	}
}
