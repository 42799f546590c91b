package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// roundTrip is a network that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// taken is a recipient's acknowledgement.
func taken(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// posting runs a Notifier over a network until the test ends.
func (h *harness) posting(network roundTrip) *Notifier {
	p := &Notifier{Store: h.store, Now: h.now, HTTP: func(recipient string) *sip.HTTPClient {
		return &sip.HTTPClient{URL: recipient, HTTP: &http.Client{Transport: network}}
	}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	h.t.Cleanup(func() {
		stop()
		<-ended
	})
	return p
}

// D75: recipients that never answer, however many hosts they are on, do not keep the
// senders from others.
func TestTarpitsHoldNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		var mu sync.Mutex
		hanging, most := 0, 0
		const tarpits = 150
		for i := range tarpits {
			h.owe(fmt.Sprintf("http://tarpit-%d.example/", i), fmt.Sprint(i))
		}
		good := make(chan time.Time, 1)
		begin := time.Now()
		p := h.posting(func(r *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(r.URL.Host, "tarpit") {
				good <- time.Now()
				return taken(r)
			}
			mu.Lock()
			hanging++
			most = max(most, hanging)
			mu.Unlock()
			<-r.Context().Done()
			mu.Lock()
			hanging--
			mu.Unlock()
			return nil, r.Context().Err()
		})
		time.Sleep(20 * time.Second)
		h.owe("http://good.example/", fmt.Sprint(tarpits))
		p.Wake()
		// Its turn comes when each of the others has had a sender for a moment, which
		// keep it for a minute else.
		if took := (<-good).Sub(begin) - 20*time.Second; took > time.Minute {
			t.Errorf("who answers was called after %v", took)
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if most > 128 || most <= 8 {
			t.Errorf("%d were waited for at once", most)
		}
	})
}

// The same where they have failed before, as has who would answer now.
func TestTarpitsHoldNoRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		for i := range 300 {
			h.owe(fmt.Sprintf("http://tarpit-%d.example/", i), fmt.Sprint(i))
		}
		h.owe("http://good.example/", "good")
		begin := time.Now()
		good := make(chan time.Time, 1)
		h.posting(func(r *http.Request) (*http.Response, error) {
			switch {
			case time.Since(begin) < 30*time.Second:
				return nil, errors.New("no route to host")
			case r.URL.Host == "good.example":
				good <- time.Now()
				return taken(r)
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		if took := (<-good).Sub(begin); took > 90*time.Second {
			t.Errorf("who answers was called after %v", took)
		}
	})
}

// A log that takes long to tell what is due is asked less often while no other call can
// begin. Recipients that never answer are given up all the same.
func TestTarpitsHoldNobodyWhileTheLogIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		for i := range 130 {
			h.owe(fmt.Sprintf("http://tarpit-%d.example/", i), fmt.Sprint(i))
		}
		h.owe("http://good.example/", "good")
		h.page = 2 * time.Second
		good := make(chan time.Time, 1)
		begin := time.Now()
		p := h.posting(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "good.example" {
				good <- time.Now()
				return taken(r)
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		time.Sleep(7 * time.Second) // it has read three pages, and all calls hang
		p.Wake()
		if took := (<-good).Sub(begin); took > 20*time.Second {
			t.Errorf("who answers was called after %v", took)
		}
	})
}

// A slow host for which very much is due does not keep others from being found.
func TestSlowHostHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		for i := range 10 * notifyPage {
			h.owe(fmt.Sprintf("http://slow.example/%d", i), fmt.Sprint(i))
		}
		h.page = 100 * time.Millisecond
		good := make(chan time.Time, 1)
		p := h.posting(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "good.example" {
				good <- time.Now()
			} else {
				time.Sleep(1900 * time.Millisecond)
			}
			return taken(r)
		})
		time.Sleep(20 * time.Second)
		begin := time.Now()
		h.owe("http://good.example/", "good")
		p.Wake()
		if took := (<-good).Sub(begin); took > 2*loadShare*time.Second {
			t.Errorf("who answers was called after %v", took)
		}
	})
}

// A recipient that takes nothing does not hide the others of its host, however much is
// due for it.
func TestBadRecipientHidesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		bad := make([]string, maxPerHost+100)
		for i := range bad {
			bad[i] = fmt.Sprint(i)
		}
		h.owe("http://town.example/bad", bad...)
		for i := range 10 {
			h.owe(fmt.Sprintf("http://town.example/good/%d", i), fmt.Sprintf("good-%d", i), fmt.Sprintf("good-too-%d", i))
		}
		var good atomic.Int32
		h.posting(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/good/") {
				good.Add(1)
				return taken(r)
			}
			return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		time.Sleep(5 * time.Minute)
		if n := good.Load(); n != 20 {
			t.Errorf("%d of 20 were delivered", n)
		}
	})
}

// The same when so many hosts wait that fewer items of each are held.
func TestQueueHoldsEverySubject(t *testing.T) {
	const hosts = 9
	q := newQueue(&queue[int]{now: time.Now})
	for host := range hosts {
		for i := range maxPerHost {
			subject := "bad"
			if i >= maxPerHost-10 {
				subject = fmt.Sprint(i)
			}
			q.add(item[int]{id: int64(host*maxPerHost + i + 1), host: keyOf(fmt.Sprint(host)), subject: keyOf(subject)})
		}
	}
	q.sort()
	total := 0
	for _, h := range q.hosts {
		held := map[key]bool{}
		for i := range h.due {
			held[h.due[i].subject] = true
		}
		if len(held) != 11 || !h.truncated {
			t.Errorf("%d items of %d subjects, truncated: %v", len(h.due), len(held), h.truncated)
		}
		total += len(h.due)
	}
	if total != q.total || total > maxQueued {
		t.Errorf("%d items, counted as %d", total, q.total)
	}
}

// A host that cannot be reached is asked once in a while, however many wait for it.
func TestDeadHostIsCalledOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		for i := range 60 {
			h.owe(fmt.Sprintf("http://dead.example/%d", i), fmt.Sprint(i))
		}
		var calls atomic.Int32
		h.posting(func(*http.Request) (*http.Response, error) {
			calls.Add(1)
			time.Sleep(time.Second)
			return nil, errors.New("no route to host")
		})
		time.Sleep(30 * time.Second)
		first := calls.Load()
		time.Sleep(10 * time.Minute)
		if n := calls.Load() - first; n < 5 || n > 10 {
			t.Errorf("%d calls in ten minutes", n)
		}
	})
}

// D75: what hits a defect of ours is tried again, and neither the process nor the
// other notices come to harm.
func TestNotifierPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.owe("http://evil.example/", fmt.Sprint(1))
		h.owe("http://good.example/", fmt.Sprint(2))
		good := make(chan struct{}, 1)
		h.posting(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "evil.example" {
				panic("a parser's defect")
			}
			good <- struct{}{}
			return taken(r)
		})
		<-good
		time.Sleep(time.Second)
		synctest.Wait()
		left := h.notices()
		if len(left) != 1 || left[0].Recipient != "http://evil.example/" || left[0].Tries != 1 || !strings.Contains(left[0].Reason, "defect") {
			t.Errorf("notices %+v", left)
		}
	})
}

// D75: the same when a record is submitted, or due work is done.
func TestSubmitterPanics(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.keep([2]string{"urn:a", "evil"}, [2]string{"urn:b", ""})
		server := beforehand{h.server, func(r *sip.Request) error {
			if *r.Source.Identifier == "urn:a" {
				panic("a parser's defect")
			}
			return nil
		}}
		h.run(func(o *Submitter) { o.Server = server })
		time.Sleep(time.Second)
		synctest.Wait()
		for _, s := range h.rows() {
			if want := map[string]submission.State{"urn:a": submission.StateWaiting, "urn:b": submission.StateAccepted}[s.Record]; s.State != want {
				t.Errorf("%s is %s (%s)", s.Record, s.State, s.Reason)
			}
		}
	})
}
