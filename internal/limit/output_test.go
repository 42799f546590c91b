package limit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// However much a program writes, and in whatever pieces, only the beginning is kept.
func TestOutput(t *testing.T) {
	o := limit.Output{Most: 10}
	for _, piece := range []string{"", "abc", "defgh", "ijkl", "mno", strings.Repeat("x", 1000)} {
		if n, err := fmt.Fprint(&o, piece); n != len(piece) || err != nil {
			t.Errorf("%q: %d, %v", piece, n, err)
		}
	}
	if got := o.String(); got != "abcdefghij" {
		t.Errorf("%q was kept", got)
	}
}
