package limit_test

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/limit"
)

var (
	ann = netip.MustParseAddr("192.0.2.1")
	bob = netip.MustParseAddr("192.0.2.2")
	eve = netip.MustParseAddr("192.0.2.3")
)

// D66, D35: one client gets its share and no more, and what it has does not keep
// others out.
func TestOneClientHasItsShare(t *testing.T) {
	b := limit.NewBytes(100, 40)
	first, second := b.Hold(eve, nil), b.Hold(eve, nil)
	if err := errors.Join(first.Add(25), second.Add(15)); err != nil {
		t.Fatal(err)
	}
	if err := second.Add(1); !errors.Is(err, limit.ErrFull) || !second.Failed() || first.Failed() {
		t.Errorf("more than its share: %v", err)
	}
	if err := b.Hold(ann, nil).Add(40); err != nil {
		t.Errorf("another client: %v", err)
	}
	second.Release()
	second.Release()
	slow := b.Hold(eve, func() {})
	if slow.Add(15) != nil || b.Hold(eve, nil).Add(1) == nil || !slow.Failed() {
		t.Error("the slow request of a client goes on, although another one of it has no room")
	}
	slow.Release()
	third := b.Hold(eve, nil)
	if err := third.Add(15); err != nil {
		t.Errorf("after a release: %v", err)
	}
	if err := third.Add(1); err == nil {
		t.Error("a second Release gave back more than there was")
	}
	b = limit.NewBytes(100, 40)
	if b.Hold(netip.MustParseAddr("2001:db8::1"), nil).Add(20) != nil || b.Hold(netip.MustParseAddr("2001:db8::2"), nil).Add(21) == nil {
		t.Error("a client of IPv6, which has a /64, gets a share for each address of it")
	}
}

// D66: who has been sending for the longest time is cut off where all is used up;
// what has been received whole, or is the newcomer itself, is not.
func TestTheSlowestGivesWay(t *testing.T) {
	b := limit.NewBytes(100, 60)
	var cut []string
	hold := func(name string, client netip.Addr, n int64) *limit.Hold {
		h := b.Hold(client, func() { cut = append(cut, name) })
		if err := h.Add(n); err != nil {
			t.Fatal(name, err)
		}
		return h
	}
	hold("whole", ann, 20).Received()
	slow := hold("slow", eve, 60)
	hold("middle", bob, 20)
	late := b.Hold(bob, func() { cut = append(cut, "late") })
	if err := late.Add(10); !errors.Is(err, limit.ErrFull) {
		t.Errorf("above the total: %v", err)
	}
	if len(cut) != 1 || cut[0] != "slow" || !slow.Failed() {
		t.Errorf("cut off: %q", cut)
	}
	slow.Release()
	if err := b.Hold(bob, nil).Add(10); err != nil {
		t.Errorf("after the slow one has gone: %v", err)
	}
}

// D35, law: whatever is held, added and released, no more than the total is held,
// no client has more than its share, and in the end nothing is.
func TestBudgetIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 60).Draw(t, "total")
		share := rapid.Int64Range(1, 40).Draw(t, "share")
		b := limit.NewBytes(total, share)
		type held struct {
			*limit.Hold
			client netip.Addr
			n      int64
		}
		var open []*held
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				client := rapid.SampledFrom([]netip.Addr{ann, bob, eve}).Draw(t, "client")
				var cut func()
				if rapid.Bool().Draw(t, "can be cut") {
					cut = func() {}
				}
				open = append(open, &held{Hold: b.Hold(client, cut), client: client})
			case 1:
				if len(open) > 0 {
					h := rapid.SampledFrom(open).Draw(t, "hold")
					n := rapid.Int64Range(0, 20).Draw(t, "bytes")
					if h.Add(n) == nil {
						h.n += n
					}
				}
			case 2:
				if len(open) > 0 {
					rapid.SampledFrom(open).Draw(t, "hold").Received()
				}
			case 3:
				if len(open) > 0 {
					i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
					open[i].Release()
					open = append(open[:i], open[i+1:]...)
				}
			}
			all, each := int64(0), map[netip.Addr]int64{}
			for _, h := range open {
				all += h.n
				each[h.client] += h.n
			}
			if all > total || each[ann] > share || each[bob] > share || each[eve] > share {
				t.Fatalf("held %d of %d, by client %v of %d", all, total, each, share)
			}
		}
		for _, h := range open {
			h.Release()
		}
		if err := b.Hold(ann, nil).Add(min(total, share)); err != nil {
			t.Fatalf("all was released: %v", err)
		}
	})
}
