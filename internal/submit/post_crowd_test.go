package submit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/peer"
	"github.com/pmh-bridge/bridge/sip"
)

// crowd is a recipient that wants one notice at a time.
type crowd struct {
	mailboxes
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

// runUntil runs a Post until what tells so.
func runUntil(t *testing.T, p *Post, done <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it takes too long")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestThousandNotices(t *testing.T) {
	for _, recipients := range []int{10, 3} {
		t.Run(fmt.Sprint(recipients, " recipients"), func(t *testing.T) {
			h := newGate(t, Gateway, nil)
			c, url := newCrowd(t)
			want := map[string][]string{}
			for i := range 1000 {
				box := fmt.Sprint("box-", i%recipients)
				want[box] = append(want[box], fmt.Sprint(i))
			}
			for box, ids := range want {
				h.owe(url+"/"+box, ids...)
			}
			p := h.postOf(&life{})
			store := &counting{Store: p.Store, left: 1000, done: make(chan struct{}), each: p.Poke}
			p.Store = store
			runUntil(t, p, store.done)
			for box, ids := range want {
				if !slices.Equal(c.order[box], ids) {
					t.Errorf("%s got %v", box, c.order[box])
				}
			}
			if n := len(h.in(event.NoticeDelivered)); n != 1000 {
				t.Errorf("%d are delivered", n)
			}
			if n := c.most.Load(); n > 8 {
				t.Errorf("%d at once", n)
			}
			if store.appends > 900 {
				t.Errorf("%d commits for 1,000 notices", store.appends)
			}
			h.verified()
		})
	}
}

// counting closes done when so many notices have been delivered.
type counting struct {
	Store
	left, appends int
	done          chan struct{}
	each          func() // after each commit
}

func (c *counting) Append(ctx context.Context, b *event.Batch) (event.Appended, error) {
	out, err := c.Store.Append(ctx, b)
	if err != nil {
		return out, err
	}
	c.appends++
	c.each()
	for _, n := range b.Exchange.Notices {
		if n.State == event.NoticeDelivered {
			c.left--
		}
	}
	if c.left == 0 {
		c.left = -1
		close(c.done)
	}
	return out, nil
}

// A recipient with very many notices, which takes its time, does not keep others
// from theirs.
func TestManyNoticesHideNoOthers(t *testing.T) {
	peer.Heavy(t)
	h := newGate(t, Gateway, nil)
	release := make(chan struct{})
	slow := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-release
		(&sip.Handler{Backend: h.boxes, Offers: sip.Operations{Notify: true}}).ServeHTTP(w, r)
	}))
	var ids []string
	for i := range 3 * postWindow {
		ids = append(ids, fmt.Sprint("slow-", i))
	}
	h.owe(slow, ids...)
	h.clock.advance(time.Second)
	h.owe(h.boxURL, "other")
	done := make(chan struct{})
	h.boxes.refuse = func(d *sip.Disposition) error {
		if *d.Source.Identifier == "other" {
			close(done)
		}
		return nil
	}
	runUntil(t, h.postOf(&life{}), done)
	close(release)
}
