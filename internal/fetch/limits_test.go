package fetch

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting, release := 0, make(chan struct{})
		var mu sync.Mutex
		g, stop := bubble(Options{PerHost: 3}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			waiting++
			mu.Unlock()
			<-release
		})
		defer stop()
		var all sync.WaitGroup
		for i := range 12 {
			url := "http://a.example/"
			if i%2 == 1 {
				url = "http://b.example/"
			}
			all.Go(func() {
				if _, _, err := get(g.Client(""), url); err != nil {
					t.Error(err)
				}
			})
		}
		for _, want := range []int{6, 12} {
			synctest.Wait()
			if waiting != want {
				t.Errorf("%d requests were sent to two hosts, want %d", waiting, want)
			}
			for range 6 {
				release <- struct{}{}
			}
		}
		all.Wait()
	})
}

// Requests that are never answered do not keep others of their host from being
// sent (D151), and there is a bound on how many wait for it at a time.
func TestHangingRequestsGiveTheirSlotUp(t *testing.T) {
	const slots, hanging = 16, 60
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		g, stop := bubble(Options{PerHost: slots}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			if r.URL.Path != "/good" {
				<-r.Context().Done()
			}
			mu.Lock()
			open--
			mu.Unlock()
		})
		defer stop()
		var all sync.WaitGroup
		for range hanging {
			all.Go(func() {
				if _, _, err := get(g.Client(""), "http://h.example/hangs"); !Transient(err) {
					t.Errorf("a request that hangs: %v", err)
				}
			})
		}
		synctest.Wait()
		for i := range 10 {
			start := time.Now()
			if _, _, err := get(g.Client(""), "http://h.example/good"); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > 4*slowAfter {
				t.Errorf("good request %d took %s", i, took)
			}
		}
		all.Wait()
		synctest.Wait() // a handler may return after its client has
		if most <= slots {
			t.Errorf("%d requests waited at a time, and the good ones were not sent beside them", most)
		}
	})
}

// There is a bound on how many requests without an answer a host has at a time.
func TestSlowRequestsAreBounded(t *testing.T) {
	const slots = 2
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		release := make(chan struct{})
		g, stop := bubble(Options{PerHost: slots, HeaderTimeout: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			<-release
			mu.Lock()
			open--
			mu.Unlock()
		})
		defer stop()
		var all sync.WaitGroup
		for range 10 * slots {
			all.Go(func() {
				if _, _, err := get(g.Client(""), "http://h.example/"); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute) // synctest's, which takes no time
		synctest.Wait()
		if most != slots*(slowMost+1) {
			t.Errorf("%d requests waited for their answers after a minute, want %d", most, slots*(slowMost+1))
		}
		close(release)
		all.Wait()
		if h := g.hosts["h.example:80"]; h.slow != 0 || len(h.slots) != 0 || len(h.held) != 0 {
			t.Errorf("%d slow, %d slots, %d held are left", h.slow, len(h.slots), len(h.held))
		}
	})
}

// A body counts until it has been read, or closed, or left alone for a while.
func TestBodiesHoldTheirSlot(t *testing.T) {
	for _, c := range []struct {
		what string
		then func(resp *http.Response)
		wait time.Duration
	}{
		{"read", func(resp *http.Response) { _, _ = io.ReadAll(resp.Body) }, 0},
		{"closed", func(resp *http.Response) { resp.Body.Close() }, 0},
		{"left alone", func(resp *http.Response) {}, idleAfter},
	} {
		inBubble(t, Options{PerHost: 1}, func(_ int, w http.ResponseWriter) { fmt.Fprintf(w, "%050000d", 0) }, func(client *http.Client, a *asks) {
			first, err := client.Get("http://h.example/first")
			if err != nil {
				t.Fatal(err)
			}
			c.then(first)
			// Without lending this would never end: we hold what it waits for.
			if _, _, err := get(client, "http://h.example/second"); err != nil {
				t.Fatal(err)
			}
			if d := a.at[1]; d < c.wait || d > 2*c.wait {
				t.Errorf("%s: the second request was sent after %s", c.what, d)
			}
			if b, err := io.ReadAll(first.Body); c.what == "left alone" && (err != nil || len(b) != 50000) {
				t.Errorf("%s: read %d bytes afterwards, %v", c.what, len(b), err)
			}
			first.Body.Close()
			h := client.Transport.(*transport).guard.hosts["h.example:80"]
			if len(h.slots) != 0 || len(h.held) != 0 {
				t.Errorf("%s: %d slots are left", c.what, len(h.slots))
			}
		})
	}
}

func TestRate(t *testing.T) {
	inBubble(t, Options{Rate: 4}, func(int, http.ResponseWriter) {}, func(c *http.Client, a *asks) {
		for range 5 {
			if _, _, err := get(c, "http://h.example/"); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := get(c, "http://other.example/"); err != nil {
			t.Fatal(err)
		}
		ms := time.Millisecond
		a.within(t, 0, 250*ms, 500*ms, 750*ms, 1000*ms, 1000*ms)
	})
}

// After a Retry-After those who waited start one by one.
func TestRateAfterRetryAfter(t *testing.T) {
	do := func(n int, w http.ResponseWriter) {
		if n == 1 {
			w.Header().Set("Retry-After", "20")
			w.WriteHeader(503)
		}
	}
	inBubble(t, Options{Rate: 1, Attempts: 1}, do, func(c *http.Client, a *asks) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, _, err := get(c, "http://h.example/"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		a.within(t, 0, 20*time.Second, 21*time.Second, 22*time.Second)
	})
}

// Under any mixture of readers nothing is lost or held for ever.
func TestManyReaders(t *testing.T) {
	doc := noise(100_000)
	zipped := gz(doc)
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped)
			return
		}
		w.Write(doc)
	})
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL}, PerHost: 4})
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := range 20 {
				resp, err := g.Client("").Get(s.URL + []string{"/", "/gzip"}[i%2])
				if err != nil {
					t.Error(err)
					return
				}
				want := int64(len(doc))
				if (worker+i)%3 == 0 {
					want = 5000 // and leave the rest
				}
				if n, err := io.CopyN(io.Discard, resp.Body, want); err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
				resp.Body.Close()
			}
		})
	}
	all.Wait()
	for name, h := range g.hosts {
		if h.users != 0 || len(h.slots) != 0 || len(h.held) != 0 {
			t.Errorf("%s: %d users, %d slots, %d held are left", name, h.users, len(h.slots), len(h.held))
		}
	}
}

func TestHostsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		busy := g.acquireHost("busy")
		closed := g.acquireHost("closed")
		closed.postpone(time.Minute, &g.options, "/")
		g.releaseHost(closed)
		refused := g.acquireHost("refused")
		refused.postpone(time.Hour, &g.options, "/")
		g.releaseHost(refused)
		for i := range 10_000 {
			g.releaseHost(g.acquireHost(fmt.Sprint(i)))
			time.Sleep(time.Millisecond) // synctest's, which takes no time
		}
		if n := len(g.hosts); n > 2048 {
			t.Errorf("%d hosts are remembered", n)
		}
		if g.hosts["busy"] != busy || g.hosts["closed"] != closed || g.hosts["refused"] != refused {
			t.Error("a host that is in use, or that asked to wait, was forgotten")
		}
	})
}

// A long Retry-After counts, however many documents of the host have had one before.
func TestRefusedDocumentsAreForgotten(t *testing.T) {
	h, o := &host{refused: map[string]time.Time{}}, withDefaults(Options{})
	for i := range refusedMost {
		h.refused[fmt.Sprint("/", i)] = time.Now().Add(-time.Minute)
	}
	h.postpone(2*o.MaxWait, &o, "/new")
	if _, err := h.pauseLeft(t.Context(), "/new"); err == nil {
		t.Errorf("the document may be asked for at once; %d others are kept", len(h.refused))
	}
}
