package harvest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestSlotsAreLent: harvests that wait for their servers do not keep others from
// working, however many they are (D148, D151).
func TestSlotsAreLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c capacity
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 10 * slotsAtOnce { // they hang
			all.Go(func() {
				p, err := c.acquire(ctx)
				if err != nil {
					return
				}
				defer p.close()
				p.whileWaiting(ctx, func() { <-ctx.Done() })
			})
		}
		synctest.Wait()
		start := time.Now()
		for range 50 {
			p, err := c.acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			p.close()
		}
		if took := time.Since(start); took > 11*slotAfter {
			t.Errorf("50 good harvests had their slots after %s", took)
		}
		end()
		all.Wait()
		if c.slots != 0 || len(c.queue) != 0 {
			t.Errorf("%d slots are in use in the end, %d wait", c.slots, len(c.queue))
		}
	})
}

// A harvest that is interrupted just when it gets its slot gives it back: else each such moment
// would take one of them for ever.
func TestSlotOfAnInterruptedHarvest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c capacity
		for range 2 * slotsAtOnce {
			var working []*slot
			for range slotsAtOnce {
				p, err := c.acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				working = append(working, p)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			waiting.Go(func() {
				if p, err := c.acquire(ctx); err == nil {
					p.close()
				}
			})
			synctest.Wait()
			c.mu.Lock()
			interrupt()
			c.mu.Unlock()
			for _, p := range working {
				p.close()
			}
			waiting.Wait()
			if c.slots != 0 {
				t.Fatalf("%d slots are in use in the end", c.slots)
			}
		}
	})
}

// TestSlotsAreBounded: no more harvests work at a time than there are slots.
func TestSlotsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c capacity
		var mu sync.Mutex
		working, most := 0, 0
		work := func(d time.Duration) {
			mu.Lock()
			working++
			most = max(most, working)
			mu.Unlock()
			time.Sleep(d) // of the bubble's clock
			mu.Lock()
			working--
			mu.Unlock()
		}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				p, err := c.acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer p.close()
				for range 5 {
					work(time.Duration(i) * time.Millisecond)
					p.whileWaiting(t.Context(), func() { time.Sleep(time.Duration(i) * 50 * time.Millisecond) })
				}
			})
		}
		all.Wait()
		if most != slotsAtOnce || c.slots != 0 {
			t.Errorf("%d harvests worked at a time, want %d; %d slots are in use in the end", most, slotsAtOnce, c.slots)
		}
	})
}

// TestMemoryIsBounded is a law (D120): whatever documents harvests read at the
// same time, and however long they wait for servers and for the log, all of them
// end, and the memory that they take has a bound that does not grow with them.
func TestMemoryIsBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		documents := rapid.SliceOfN(rapid.SampledFrom([]int64{1, inFlight / 100, inFlight / 4, inFlight, 2 * inFlight}), 1, 60).Draw(rt, "documents")
		hangs := rapid.SliceOfN(rapid.Bool(), len(documents), len(documents)).Draw(rt, "hangs")
		if rapid.Bool().Draw(rt, "none hangs") {
			clear(hangs)
		}
		synctest.Test(t, func(t *testing.T) {
			var c capacity
			var all sync.WaitGroup
			largest, most := int64(0), int64(0)
			partly, mostPartly := 0, 0 // documents that were read in part
			for i, size := range documents {
				largest = max(largest, size)
				all.Go(func() {
					p, err := c.acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					defer p.close()
					const step = inFlight / 50
					for range 2 { // documents
						for read := int64(0); read < size; read += step {
							if err := p.takeMemory(t.Context(), min(step, size-read)); err != nil {
								t.Error(err)
								return
							}
							c.mu.Lock()
							most = max(most, c.used)
							if read == 0 {
								partly++
								mostPartly = max(mostPartly, partly)
							}
							c.mu.Unlock()
							if hangs[i] {
								p.whileServerAnswers(t.Context(), func() { time.Sleep(time.Minute) }) // of the bubble's clock
							}
						}
						c.mu.Lock()
						partly--
						c.mu.Unlock()
						p.whileWaiting(t.Context(), func() { time.Sleep(time.Minute) }) // for the log
						p.freeMemory(size)
					}
				})
			}
			all.Wait()
			// Those that may go on beyond what there is are not more at a time than it
			// takes to use it twice, and each has one document.
			if bound := 2*inFlight + 2*largest + int64(len(documents))*inFlight/50; most > bound {
				t.Errorf("%d bytes in flight, want %d at most", most, bound)
			}
			if !slices.Contains(hangs, true) && mostPartly > slotsAtOnce+1 {
				t.Errorf("%d documents were read in part at a time, want %d at most", mostPartly, slotsAtOnce+1)
			}
			if c.used != 0 || c.slots != 0 || len(c.waiting) != 0 || c.beyondLimit != nil {
				t.Errorf("in the end %d bytes, %d slots in use and %d waiters are left", c.used, c.slots, len(c.waiting))
			}
		})
	})
}
