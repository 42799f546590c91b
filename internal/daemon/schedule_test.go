package daemon

import (
	"testing"
	"time"
)

// TestRetryDelayIsCapped: a Source that fails for days is asked ever less often,
// down to its own interval or once a day, and never without a pause (D100, D141).
func TestRetryDelayIsCapped(t *testing.T) {
	for _, every := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 1<<63 - 1} {
		most := min(every, 24*time.Hour)
		before := time.Duration(0)
		for failures := 1; failures <= 200; failures++ {
			got := retryDelay(failures, every)
			if got < min(time.Minute, most) || got > most || got < before {
				t.Fatalf("every %s: %s after %d failures, %s after one less, want between %s and %s", every, got, failures, before, min(time.Minute, most), most)
			}
			before = got
		}
		if before != most {
			t.Errorf("every %s: %s after 200 failures, want %s", every, before, most)
		}
	}
}
