package oaipmh

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// direct answers requests by a handler, without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// TestHistories: whatever happens to an honest repository while it is walked, and
// however often its lists and the walks break off, after the next whole walk in which
// nothing changes all records are as they are there.
func TestHistories(t *testing.T) {
	testenv.Heavy(t)
	for seed := range uint64(testenv.Rounds(t, 200, 20_000)) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, 14))) }) {
			return
		}
	}
}

func history(t *testing.T, random *rand.Rand) {
	some := func(p float64) bool { return random.Float64() < p }
	h := &harvester{t: t, repo: testserver.NewRepository(), now: time.Date(2026, 1, 1, 23, 50, 0, 0, time.UTC), has: map[string]*Record{}}
	repo := h.repo
	clock := func() time.Time { return h.now }
	repo.Now, repo.PageSize = clock, 1+random.IntN(12)
	repo.Days, repo.Stateless, repo.Scattered = some(.3), some(.5), some(.5)
	repo.Earliest = h.now.AddDate(0, 0, -40)
	if some(.3) {
		repo.TokenLife = time.Duration(1+random.IntN(300)) * time.Second
	}
	h.walk = Walk{Client: &http.Client{Transport: direct{repo}}, URL: "http://repository.example/oai", Now: func() time.Time { return h.now.Add(time.Duration(random.IntN(60)-30) * time.Second) }}
	if some(.3) {
		h.walk.Window = time.Duration(1+random.IntN(20)) * 24 * time.Hour
	}
	n := 0
	change := func(at time.Time) {
		id := fmt.Sprintf("oai:x:%d", random.IntN(80))
		n++
		repo.Put(testserver.Item{Identifier: id, Datestamp: at, Deleted: some(.2), Metadata: map[string]string{DC: testserver.DublinCore(fmt.Sprintf("State %d", n))}})
	}
	for range random.IntN(60) {
		change(h.now.Add(-time.Duration(random.IntN(40*24*3600)) * time.Second))
	}
	quiet := false
	repo.OnPage = func(string, int) {
		h.now = h.now.Add(time.Duration(random.IntN(40)) * time.Second)
		for !quiet && some(.4) {
			change(time.Time{})
		}
		if !quiet && some(.02) {
			repo.Restart()
		}
	}
	hows := []testserver.How{testserver.TokenRefused, testserver.NotFound, testserver.ServerError, testserver.Unavailable, testserver.CutPage, testserver.NoEndTag, testserver.EmptyBody, testserver.HTMLPage, testserver.Broken}
	for range 1 + random.IntN(5) {
		for some(.4) {
			repo.Fail(testserver.Failure{Page: 1 + random.IntN(4), Times: 1 + random.IntN(3), How: hows[random.IntN(len(hows))]})
		}
		h.stop = 0
		if some(.4) {
			h.stop = 1 + random.IntN(5)
		}
		r, err := h.run()
		if err == nil && !r.Whole && h.stop == 0 {
			t.Fatalf("it has ended neither whole nor with an error: %+v", r)
		}
		if r.Whole && r.Full {
			for _, it := range repo.Items() {
				if it.Datestamp.Before(h.begun.Truncate(time.Second)) && !h.named[it.Identifier] {
					t.Errorf("%s is absent from a whole list", it.Identifier)
				}
			}
		}
		if some(.7) {
			h.walk.State = h.saved // it may go on, or begin again
			if r.Whole {
				h.walk.State = h.stored(r.State)
			}
		}
		h.now = h.now.Add(time.Duration(random.IntN(3)) * time.Hour)
		for some(.5) {
			change(time.Time{})
		}
	}
	// The last walk goes on where an unfinished one has ended, and tells what was there
	// then. The next one has all.
	quiet, h.stop = true, 0
	repo.Honest()
	for repo.TokenLife = 0; ; {
		unfinished := h.walk.State.Unfinished()
		r, err := h.run()
		if unfinished && errors.Is(err, ErrIncomplete) {
			continue // it had given something up already
		}
		if err != nil || !r.Whole {
			t.Fatalf("%+v, %v", r, err)
		}
		if !unfinished {
			break
		}
	}
	if wrong := h.differs(); wrong != nil {
		t.Errorf("%q; %+v", wrong, h.walk.State)
	}
}
