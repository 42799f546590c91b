package harvest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// slotsAtOnce is how many harvests read or write at a time, and slotAfter how
	// long one may wait for its server, or for the log, before another one gets its
	// slot: slow harvests must not hold up the others.
	slotsAtOnce = 16
	slotAfter   = time.Second
	// inFlight is about how many bytes all harvests together have in memory, of
	// what was read and is not durable yet.
	inFlight = 96 << 20
	// entryCost is what an entry takes in memory besides its own text.
	entryCost = 1 << 10
)

// capacity limits how many harvests work at a time (slots), and how much memory all of
// them use for what they have read. Its zero value is ready.
type capacity struct {
	mu    sync.Mutex
	slots int     // in use
	queue []*slot // harvests that wait for a slot, in the order in which they came

	used        int64        // bytes in flight
	waiting     []*memoryUse // harvests that wait for memory, the oldest first
	beyondLimit *memoryUse   // may continue although all memory is used
	youngest    int64        // age of the youngest harvest
}

// slot is the permission of one harvest to work.
type slot struct {
	capacity *capacity
	waiting  bool          // for something other than a slot
	onServer bool          // namely for the Source's server
	released bool          // another harvest has it
	granted  chan struct{} // closed when the slot is free
	memory   *memoryUse
}

// acquire waits for a slot.
func (c *capacity) acquire(ctx context.Context) (*slot, error) {
	p := &slot{capacity: c, released: true}
	c.mu.Lock()
	c.youngest++
	p.memory = &memoryUse{capacity: c, age: c.youngest}
	c.mu.Unlock()
	if err := p.reacquire(ctx, false); err != nil {
		p.close() // it may have been granted meanwhile
		return nil, err
	}
	return p, nil
}

// reacquire waits for the slot again if another harvest has it; first puts it at the
// head of the queue.
func (s *slot) reacquire(ctx context.Context, first bool) error {
	c := s.capacity
	c.mu.Lock()
	if !s.released {
		c.mu.Unlock()
		return nil
	}
	// The harvest that may exceed the memory limit needs no slot: all slots may be held
	// by harvests that wait for that memory.
	if c.slots < slotsAtOnce || c.beyondLimit == s.memory {
		c.slots++
		s.released = false
		c.mu.Unlock()
		return nil
	}
	s.granted = make(chan struct{})
	if first {
		c.queue = slices.Insert(c.queue, 0, s)
	} else {
		c.queue = append(c.queue, s)
	}
	c.mu.Unlock()
	select {
	case <-s.granted:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = slices.DeleteFunc(c.queue, func(q *slot) bool { return q == s })
	return context.Cause(ctx)
}

// freeSlot gives the slot to the next harvest. Callers hold mu.
func (c *capacity) freeSlot() {
	if len(c.queue) == 0 || c.slots > slotsAtOnce {
		c.slots--
		return
	}
	next := c.queue[0]
	c.queue = c.queue[1:]
	next.released = false
	close(next.granted)
}

// whileWaiting runs do, which may take long. After a while another harvest gets the
// slot; then whileWaiting waits for it once do has returned. A nil slot only runs do.
func (s *slot) whileWaiting(ctx context.Context, do func()) { s.runWaiting(ctx, false, do) }

// whileServerAnswers is whileWaiting for the Source's server.
func (s *slot) whileServerAnswers(ctx context.Context, do func()) { s.runWaiting(ctx, true, do) }

func (s *slot) runWaiting(ctx context.Context, server bool, do func()) {
	if s == nil {
		do()
		return
	}
	c := s.capacity
	c.mu.Lock()
	s.waiting, s.onServer = true, server
	c.mu.Unlock()
	timer := time.AfterFunc(slotAfter, s.lend)
	do()
	timer.Stop()
	c.mu.Lock()
	s.waiting = false
	c.mu.Unlock()
	_ = s.reacquire(ctx, true) // a cancelled harvest needs none
}

// lend gives the slot to another harvest while this one waits.
func (s *slot) lend() {
	c := s.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.waiting || s.released {
		return
	}
	s.released = true
	c.freeSlot()
	// A harvest that waits for the log may still exceed the memory limit: it holds what
	// it has read. One that waits for a slow server may not, unless the next one would
	// take too much.
	if c.beyondLimit == s.memory && s.onServer && c.used < 2*inFlight {
		c.beyondLimit = nil
		c.wake()
	}
}

// close gives the slot and all memory back.
func (s *slot) close() {
	c := s.capacity
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.released {
		s.released = true
		c.freeSlot()
	}
	s.memory.freeLocked(s.memory.held)
}

// takeMemory waits for memory for what was read.
func (s *slot) takeMemory(ctx context.Context, n int64) error {
	if s == nil {
		return nil
	}
	return s.memory.take(ctx, n)
}

// freeMemory gives memory back.
func (s *slot) freeMemory(n int64) {
	if s != nil {
		s.memory.free(n)
	}
}

// memoryUse is what one harvest has in flight.
type memoryUse struct {
	capacity *capacity
	age      int64
	held     int64
	wants    int64         // bytes that it waits for
	granted  chan struct{} // closed when it has them
}

// take waits for memory. When none is left, the oldest harvest that wants more may
// continue all the same: otherwise a document that was read in part could never be
// written.
func (l *memoryUse) take(ctx context.Context, n int64) error {
	c := l.capacity
	c.mu.Lock()
	l.wants, l.granted = n, make(chan struct{})
	at, _ := slices.BinarySearchFunc(c.waiting, l.age, func(w *memoryUse, age int64) int { return cmp.Compare(w.age, age) })
	c.waiting = slices.Insert(c.waiting, at, l)
	c.wake()
	c.mu.Unlock()
	// It keeps its slot: another harvest would soon wait for memory too, with half a
	// document of its own in memory.
	select {
	case <-l.granted:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(w *memoryUse) bool { return w == l })
	return context.Cause(ctx)
}

func (l *memoryUse) free(n int64) {
	l.capacity.mu.Lock()
	defer l.capacity.mu.Unlock()
	l.freeLocked(n)
}

// freeLocked gives memory back. Callers hold mu.
func (l *memoryUse) freeLocked(n int64) {
	c := l.capacity
	n = min(n, l.held)
	l.held -= n
	c.used -= n
	if c.beyondLimit == l && l.held == 0 {
		c.beyondLimit = nil
	}
	c.wake()
}

func (c *capacity) fits(n int64) bool { return c.used == 0 || c.used+n <= inFlight }

// wake lets the harvests continue that may have the memory they wait for. Callers
// hold mu.
func (c *capacity) wake() {
	for i := 0; i < len(c.waiting); {
		l := c.waiting[i]
		if !c.fits(l.wants) {
			if c.beyondLimit == nil {
				c.beyondLimit = l
			}
			if c.beyondLimit != l {
				i++
				continue
			}
		}
		l.held += l.wants
		c.used += l.wants
		c.waiting = slices.Delete(c.waiting, i, i+1)
		close(l.granted)
	}
}

// memoryMeter takes memory for the entries of one document as they are read, many at a
// time. What it has taken goes with the document to the log.
type memoryMeter struct {
	r     *run
	read  int64 // bytes of all documents, when memory was taken last
	next  int64 // entries since then
	taken int64
}

// meterStep is for how many bytes a meter asks at a time.
const meterStep = 256 << 10

func (r *run) newMeter() memoryMeter { return memoryMeter{r: r, read: r.bytes.Load()} }

// entry counts one, with the bytes that have been read since the last.
func (m *memoryMeter) entry(ctx context.Context) error {
	m.next++
	read := m.r.bytes.Load()
	n := entryCost*m.next + 2*(read-m.read)
	if n < meterStep {
		return nil
	}
	m.read, m.next = read, 0
	if err := m.r.slot.takeMemory(ctx, n); err != nil {
		return err
	}
	m.taken += n
	return nil
}
