package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// requestsPath is where a provider tells how many requests it has answered.
const requestsPath = "/bench/requests"

// serveChain is a provider: Number documents of Repeat entries, with bodies of
// Segment bytes.
func serveChain(_ context.Context, j job, ready func(result)) (result, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return result{}, err
	}
	chain := &fixtures.Chain{Documents: j.Number, Entries: j.Repeat, BodySize: j.Segment}
	mux := http.NewServeMux()
	mux.Handle("/", chain)
	mux.HandleFunc(requestsPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, chain.Requests())
	})
	s := &http.Server{Handler: mux}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	ready(result{URL: "http://" + l.Addr().String()})
	err = s.Close()
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return result{Count: chain.Requests()}, err
}

// requests asks a provider how many requests it has answered.
func requests(ctx context.Context, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+requestsPath, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// harvestOnce makes one pass over a Chain as bridge harvest does. Count is the
// entries read, Bytes the events logged.
func harvestOnce(ctx context.Context, j job, _ func(result)) (result, error) {
	c, err := config.FromArguments(config.Flags{Data: j.Folder}, []string{"atompmh:" + j.URL + fixtures.Subscription})
	if err != nil {
		return result{}, err
	}
	c.Sets[0].Content = j.Content
	h, err := daemon.Open(ctx, c, daemon.Options{Command: "bench"})
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	r, err := h.Harvest(ctx, h.Sources[0], harvest.Options{Full: j.Full})
	took := time.Since(start)
	if err == nil && (r.Partial() || r.Problems > 0) {
		err = fmt.Errorf("the harvest of the provider had problems: %+v", r)
	}
	return result{Took: took, Count: r.Entries, Bytes: r.Events()}, errors.Join(err, h.Close())
}

// harvests: a chain of a million entries, new, unchanged, and read again whole;
// then one of two million, for its memory.
func (b *bench) harvests() error {
	const documents = 100
	entries := b.scaled(10_000)
	var ours, rival, again, full result
	for range b.runs {
		folder, done, err := b.work("harvest")
		if err != nil {
			return err
		}
		err = b.chain(documents, entries, 0, func(url string) error {
			j := job{Name: "harvest", Folder: folder, URL: url, Content: config.Reference}
			r, err := b.do(j)
			if err != nil {
				return err
			}
			ours = faster(ours, r)
			if r, err = b.do(job{Name: "insert", Folder: folder}); err != nil {
				return err
			}
			rival = faster(rival, r)
			if r, err = b.unchanged(j); err != nil {
				return err
			}
			again = faster(again, r)
			j.Full = true
			if r, err = b.do(j); err != nil {
				return err
			}
			full = faster(full, r)
			return nil
		})
		done()
		if err != nil {
			return err
		}
	}
	total := thousands(float64(documents * entries))
	have, bare := rate(ours.Count, ours.Took), rate(rival.Count, rival.Took)
	row{name: "harvest of " + total + " entries, mode reference", ours: perSecond(have, "entries"),
		rival: "the same rows, bare INSERTs: " + perSecond(bare, "entries"), ratio: have / bare, peak: ours.Peak, cpu: ours.CPU,
		bars: []bar{atLeast("60,000/s", have, 60_000), atLeast("ratio 0.7", have/bare, 0.7), under(200, ours.Peak)}}.print()
	row{name: "harvested again, unchanged", ours: fmt.Sprintf("%s, %d request, %d events", short(again.Took), again.Count, again.Bytes), peak: again.Peak,
		bars: []bar{below("50 ms", again.Took.Seconds(), 0.050), atLeast("1 request", -float64(again.Count), -1), atLeast("0 events", -float64(again.Bytes), 0)}}.print()
	have = rate(full.Count, full.Took)
	row{name: "harvested again with --full", ours: fmt.Sprintf("%s, %d events", perSecond(have, "entries"), full.Bytes), peak: full.Peak, cpu: full.CPU,
		bars: []bar{atLeast("90,000/s", have, 90_000), atLeast("0 events", -float64(full.Bytes), 0)}}.print()
	return b.twice(documents, entries, ours)
}

// twice harvests a chain of double length.
func (b *bench) twice(documents, entries int, once result) error {
	folder, done, err := b.work("harvest")
	if err != nil {
		return err
	}
	defer done()
	return b.chain(2*documents, entries, 0, func(url string) error {
		r, err := b.do(job{Name: "harvest", Folder: folder, URL: url, Content: config.Reference})
		if err != nil {
			return err
		}
		growth := float64(r.Peak) / float64(once.Peak)
		row{name: "harvest of " + thousands(float64(2*documents*entries)) + " entries (once)", ours: perSecond(rate(r.Count, r.Took), "entries"),
			rival: "memory of half as many: " + fmt.Sprintf("%.0f MB", float64(once.Peak)/1e6), ratio: growth, peak: r.Peak, cpu: r.CPU,
			bars: []bar{under(200, r.Peak), below("memory within 1.1", growth, 1.1)}}.print()
		return nil
	})
}

// unchanged harvests again, several times; Count is the number of requests of
// the best one.
func (b *bench) unchanged(j job) (best result, err error) {
	for range 3 {
		before, err := requests(b.ctx, j.URL)
		if err != nil {
			return best, err
		}
		r, err := b.do(j)
		if err != nil {
			return best, err
		}
		after, err := requests(b.ctx, j.URL)
		if err != nil {
			return best, err
		}
		r.Count = after - before
		best = faster(best, r)
	}
	return best, nil
}

// chain runs use beside a provider of a chain.
func (b *bench) chain(documents, entries, body int, use func(url string) error) error {
	p, at, err := b.serve(job{Name: "provider", Number: documents, Repeat: entries, Segment: body})
	if err != nil {
		return err
	}
	err = use(at.URL)
	_, ended := p.end()
	return errors.Join(err, ended)
}

// faster returns the result that took less time.
func faster(best, r result) result {
	if best.Took == 0 || r.Took < best.Took {
		return r
	}
	return best
}

const mirrorBody = 2048

// mirrors: small records with their contents.
func (b *bench) mirrors() error {
	entries := b.scaled(10_000)
	var ours, rival result
	for range b.runs {
		folder, done, err := b.work("mirror")
		if err != nil {
			return err
		}
		err = b.chain(2, entries, mirrorBody, func(url string) error {
			r, err := b.do(job{Name: "harvest", Folder: folder, URL: url, Content: config.Mirror})
			if err != nil {
				return err
			}
			ours = faster(ours, r)
			r, err = b.do(job{Name: "fetch", URL: url, Number: 2 * entries})
			rival = faster(rival, r)
			return err
		})
		done()
		if err != nil {
			return err
		}
	}
	have, bare := rate(ours.Count, ours.Took), rate(rival.Count, rival.Took)
	row{name: fmt.Sprintf("mirror of %s records of 2 KB, durable", thousands(float64(2*entries))), ours: perSecond(have, "records"),
		rival: "http.Client, 32 workers, bodies thrown away: " + perSecond(bare, "records"), ratio: have / bare, peak: ours.Peak, cpu: ours.CPU,
		bars: []bar{atLeast("5,000/s", have, 5000)}}.print()
	return nil
}

// fetchBodies is the mirror's rival: the same bodies, read and thrown away.
func fetchBodies(ctx context.Context, j job, _ func(result)) (result, error) {
	const workers = 32
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers, DisableCompression: true}}
	numbers := make(chan int)
	failed := make(chan error, workers)
	var group sync.WaitGroup
	start := time.Now()
	for range workers {
		group.Go(func() {
			for n := range numbers {
				if err := fetchBody(ctx, client, fmt.Sprintf("%s/records/%08d.xml", j.URL, n)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	err := func() error {
		defer close(numbers)
		for n := range j.Number {
			select {
			case numbers <- n:
			case err := <-failed:
				return err
			}
		}
		return nil
	}()
	group.Wait()
	return result{Took: time.Since(start), Count: int64(j.Number)}, err
}

func fetchBody(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && (resp.StatusCode != http.StatusOK || n != mirrorBody) {
		err = fmt.Errorf("%s: %s, %d bytes", strings.TrimSpace(url), resp.Status, n)
	}
	return err
}
