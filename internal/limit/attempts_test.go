package limit_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// D75: who guesses has ten attempts, and then one every six seconds; nobody else
// waits for that.
func TestAttempts(t *testing.T) {
	var a limit.Attempts
	now := time.Unix(1_800_000_000, 0)
	for i := range 10 {
		if wait := a.Wait(eve, now); wait != 0 {
			t.Errorf("attempt %d waits %v", i+1, wait)
		}
		a.Failed(eve, now)
	}
	if wait := a.Wait(eve, now); wait != 6*time.Second {
		t.Errorf("after ten failures: %v", wait)
	}
	if a.Wait(ann, now) != 0 {
		t.Error("another client waits")
	}
	now = now.Add(6 * time.Second)
	if a.Wait(eve, now) != 0 {
		t.Error("six seconds later it waits still")
	}
	a.Failed(eve, now)
	if wait := a.Wait(eve, now); wait != 6*time.Second {
		t.Errorf("after one more: %v", wait)
	}
	if now = now.Add(time.Minute); a.Wait(eve, now) != 0 {
		t.Error("a minute later it waits")
	}
	// However many guess, what is remembered has an end.
	for i := range 50_000 {
		a.Failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	a.Failed(eve, now)
	if a.Wait(eve, now) != 0 {
		t.Error("one failure makes it wait")
	}
}
