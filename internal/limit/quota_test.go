package limit_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// D69: an address, of IPv6 a /64, has its messages and its bytes of a day, all
// together have theirs, and at midnight UTC everybody begins anew.
func TestQuota(t *testing.T) {
	q := &limit.Quota{PerClient: limit.Amount{Messages: 3, Bytes: 100}, All: limit.Amount{Messages: 6, Bytes: 150}}
	now := time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC)
	take := func(client string, n int64, want string) {
		t.Helper()
		err := q.Take(netip.MustParseAddr(client), n, now)
		var full *limit.QuotaError
		switch {
		case want == "" && err != nil:
			t.Errorf("%s, %d bytes: %v", client, n, err)
		case want != "" && (!errors.As(err, &full) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s, %d bytes: %v, want %q in it", client, n, err, want)
		}
	}
	take("2001:db8::1", 10, "")
	take("2001:db8::2", 10, "")
	take("2001:db8:0:0:ffff::", 10, "")
	take("2001:db8::3", 10, "of one address is used up (3 messages and 100 bytes): send it again after 2026-11-23 00:00 UTC")
	take("2001:db8:0:1::1", 101, "of one address")
	take("2001:db8:0:1::1", 100, "") // what was refused does not count
	take("192.0.2.1", 21, "of all addresses together is used up (6 messages and 150 bytes)")
	take("192.0.2.1", 5, "")
	take("::ffff:192.0.2.1", 5, "")
	take("192.0.2.2", 0, "of all addresses together")
	now = now.Add(time.Minute)
	take("2001:db8::3", 100, "")
	take("192.0.2.1", 50, "")
}

// D69: zero is no limit, and however many clients there are, what is remembered of
// them has an end.
func TestQuotaWithoutLimit(t *testing.T) {
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	var none limit.Quota
	bytes := limit.Quota{PerClient: limit.Amount{Bytes: 1}}
	refused := 0
	for i := range 100_500 {
		client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if err := none.Take(client, 1<<40, now); err != nil {
			t.Fatal(err)
		}
		if bytes.Take(client, 1, now) != nil {
			refused++
		}
	}
	if refused != 499 {
		t.Errorf("of 500 clients beyond those that are remembered %d were refused, want all but the first", refused)
	}
	if err := bytes.Take(ann, 2, now); err == nil || !strings.Contains(err.Error(), "(1 bytes)") {
		t.Errorf("of bytes alone: %v", err)
	}
}

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

// D40: what anybody can cause is logged at once, then once a minute with how often it
// was, the last one as the example; and when nothing happens nothing is logged.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l limit.LogThrottle
		var mu sync.Mutex // the lines of a minute come from its timer
		var said []string
		note := func(what int) {
			l.Note(func(n int) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, fmt.Sprintf("%d, last %d", n, what))
			})
		}
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(said, lines) {
				t.Errorf("said %q, want %q", said, lines)
			}
			said = nil
		}
		note(1)
		want("1, last 1")
		for i := range 8000 {
			note(i)
		}
		want()
		time.Sleep(time.Minute)
		want("8000, last 7999")
		note(5)
		time.Sleep(59 * time.Second)
		want()
		time.Sleep(time.Second)
		want("1, last 5")
		time.Sleep(time.Hour)
		want()
		note(6)
		want("1, last 6")
	})
}
