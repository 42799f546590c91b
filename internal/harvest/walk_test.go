package harvest

import "testing"

func TestA6_MassDeletion(t *testing.T) {
	for _, c := range []struct {
		have, left int64
		held       bool
	}{
		{1, 0, true}, {2, 0, true}, {10, 0, true}, {11, 1, false}, {30, 0, true},
		{12, 2, false}, {12, 1, true}, {55, 45, false}, {54, 43, true}, {55, 44, false}, {56, 44, true}, {100, 20, true},
	} {
		if got := isMassDeletion(c.have-c.left, c.have); got != c.held {
			t.Errorf("%d of %d records are left: held %t, want %t", c.left, c.have, got, c.held)
		}
	}
}
