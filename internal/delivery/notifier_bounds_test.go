package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/sip/mail"
)

// crowd is a recipient that wants one notice at a time.
type crowd struct {
	testserver.Recipients
	mu        sync.Mutex
	now, most atomic.Int32 // of all recipients
	t         *testing.T
	order     map[string][]string
	inside    map[string]bool
}

func (c *crowd) Notify(_ context.Context, caller sip.Caller, d *sip.Disposition) error {
	if n := c.now.Add(1); n > c.most.Load() {
		c.most.Store(n)
	}
	defer c.now.Add(-1)
	c.mu.Lock()
	if c.inside[caller.Token] {
		c.t.Errorf("two notices at once for %s", caller.Token)
	}
	c.inside[caller.Token] = true
	c.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside[caller.Token] = false
	c.order[caller.Token] = append(c.order[caller.Token], *d.Source.Identifier)
	return nil
}

func newCrowd(t *testing.T) (*crowd, string) {
	c := &crowd{t: t, order: map[string][]string{}, inside: map[string]bool{}}
	handler := &sip.Handler{Backend: c, Offers: sip.Operations{Notify: true}}
	return c, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Serve(w, r, strings.TrimPrefix(r.URL.Path, "/")) }))
}

// runUntil runs a Notifier until what tells so.
func runUntil(t *testing.T, p *Notifier, done <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		t.Error("it takes too long")
	}
	cancel()
	<-ended
}

func TestThousandNotices(t *testing.T) {
	testenv.Heavy(t)
	for _, recipients := range []int{10, 3} {
		t.Run(fmt.Sprint(recipients, " recipients"), func(t *testing.T) {
			h := newHarness(t, testenv.NewClock())
			c, url := newCrowd(t)
			want := map[string][]string{}
			for i := range 1000 {
				box := fmt.Sprint("box-", i%recipients)
				want[box] = append(want[box], fmt.Sprint(i))
			}
			for box, ids := range want {
				h.owe(url+"/"+box, ids...)
			}
			p := h.notifier(&testenv.Life{})
			done := make(chan struct{})
			p.Store.Hook = func(query string, call func() error) error {
				err := call()
				if query == "" {
					p.Wake()
					if counts, _ := h.log.Counts(context.Background(), h.maps); counts.Outgoing[submission.DeliveryDone] == 1000 {
						close(done)
					}
				}
				return err
			}
			runUntil(t, p, done)
			for box, ids := range want {
				if !slices.Equal(c.order[box], ids) {
					t.Errorf("%s got %v", box, c.order[box])
				}
			}
			if n := len(h.in(submission.DeliveryDone)); n != 1000 {
				t.Errorf("%d are delivered", n)
			}
			if n := c.most.Load(); n > 8 {
				t.Errorf("%d at once", n)
			}
			h.verified()
		})
	}
}

// A recipient with very many notices, which takes its time, does not keep others
// from theirs.
func TestManyNoticesHideNoOthers(t *testing.T) {
	testenv.Heavy(t)
	h := newHarness(t, testenv.NewClock())
	release := make(chan struct{})
	slow := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		(&sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}}).ServeHTTP(w, r)
	}))
	var ids []string
	for i := range maxPerHost + 1000 {
		ids = append(ids, fmt.Sprint("slow-", i))
	}
	h.owe(slow, ids...)
	h.clock.Advance(time.Second)
	h.owe(h.boxURL, "other")
	done := make(chan struct{})
	h.boxes.Refuse = func(d *sip.Disposition) error {
		if *d.Source.Identifier == "other" {
			close(done)
		}
		return nil
	}
	runUntil(t, h.notifier(&testenv.Life{}), done)
	close(release)
}

// Of notices that wait nothing is kept that others have written; they are read
// when it is their turn.
func TestWaitingNoticesTakeNoMemory(t *testing.T) {
	testenv.Heavy(t)
	h := newHarness(t, testenv.NewClock())
	const n = 500
	long := "/" + strings.Repeat("x", 8000)
	for i := range n / 100 {
		var ids []string
		for j := range 100 {
			ids = append(ids, fmt.Sprint(i*100+j))
		}
		h.owe(h.boxURL+long+fmt.Sprint(i), ids...)
	}
	p := h.notifier(&testenv.Life{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := newNotifyLoop(p)
	h.do(r.load(t.Context()))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 2<<20 || r.total != n {
		t.Errorf("%d tickets of notices with 8 KB each hold %d KiB", r.total, held>>10)
	}
	r.deliverDue()
	if left := h.notices(); len(left) != 0 {
		t.Errorf("%d wait", len(left))
	}
}

// However many hosts there are, and however many notices to one: what is kept is
// bounded, and of each host there is something.
func TestTicketsAreBounded(t *testing.T) {
	testenv.Heavy(t)
	q := newQueue(&queue[int]{now: time.Now})
	for i := range 4 * maxQueued {
		host := min(i%100, 40) // most are for one
		if i%100 == 99 {
			host = i
		}
		q.add(item[int]{id: int64(i + 1), host: keyOf(fmt.Sprint(host))})
	}
	if q.total > maxQueued || len(q.hosts) != 41+4*maxQueued/100 || len(q.order) != len(q.hosts) {
		t.Errorf("%d items, %d hosts, %d of them have a turn", q.total, len(q.hosts), len(q.order))
	}
	held := 0
	for _, h := range q.hosts {
		held += len(h.due)
	}
	if big := q.hosts[keyOf("40")]; held != q.total || len(big.due) != q.most || !big.truncated {
		t.Errorf("%d items are there, counted are %d; of the host with most %d of %d, cut %v", held, q.total, len(big.due), q.most, big.truncated)
	}
	for i := range 2 * maxQueued {
		q.add(item[int]{id: int64(i), host: keyOf(fmt.Sprint("other ", i))})
	}
	if q.total != maxQueued || q.most != 1 || !q.hidden {
		t.Errorf("%d items, %d of one host, cut %v", q.total, q.most, q.hidden)
	}
}

// What a clock that was ahead has put off for years is due.
func TestNoticeOfAWrongClock(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	fail := true
	p := h.notifier(&testenv.Life{})
	p.Mail = mailerFunc(func(context.Context, *mail.Mail) error {
		if fail {
			return errors.New("not now")
		}
		return nil
	})
	const ahead = 10 * 365 * 24 * time.Hour
	h.clock.Advance(ahead)
	h.owe("mailto:maps@maps.example", "1")
	drive(p)
	h.clock.Advance(-ahead)
	if due := h.in(submission.DeliveryWaiting)[0].Due.Time(); due.Sub(h.clock.Now()) < ahead {
		t.Fatalf("due %v", due)
	}
	fail = false
	drive(p)
	if got := h.in(submission.DeliveryDone); len(got) != 1 {
		t.Errorf("waiting: %+v", h.in(submission.DeliveryWaiting))
	}
}

// Nothing is logged while the clock is not believed, and no notification is given up by it.
func TestNoticeExpires_ClockAhead(t *testing.T) {
	h := newHarness(t, testenv.NewClock())
	h.owe("http://"+testenv.Nobody(t), "1")
	l := &testenv.Life{Plan: func(_ int, point string) testenv.Fate {
		if point == "commit" {
			return testenv.Fails
		}
		return testenv.GoesWell
	}}
	p, ahead := h.notifier(l), 365*24*time.Hour
	p.Now = func() time.Time { return h.clock.Now().Add(ahead) }
	r := newNotifyLoop(p)
	r.deliverDue()
	if len(r.done) != 1 {
		t.Fatalf("%d results wait for the log", len(r.done))
	}
	ahead = 0
	l.Calm()
	r.deliverDue()
	got := h.in(submission.DeliveryWaiting)
	if len(got) != 1 || got[0].Tries != 1 {
		t.Fatalf("waiting: %+v; expired: %+v", got, h.in(submission.DeliveryExpired))
	}
	if due := got[0].Due.Time(); due.Sub(h.clock.Now()) > time.Minute {
		t.Errorf("due %v, and it is %v", due, h.clock.Now())
	}
}
