package harvest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// placesAtOnce is how many harvests read or write at a time, and placeAfter
	// how long one may wait for its server, or for the log, before its place goes
	// to another one: those that are slow must not keep the others waiting.
	placesAtOnce = 16
	placeAfter   = time.Second
	// inFlight is about how many bytes all harvests together have in memory, of
	// what was read and is not durable yet.
	inFlight = 96 << 20
	// entryCost is what an entry takes in memory besides its own text.
	entryCost = 1 << 10
)

// capacity is what the harvests of all Sources share: places for those that work,
// and memory for what they have read. Its zero value is ready.
type capacity struct {
	mu    sync.Mutex
	taken int      // places
	queue []*place // those that wait for a place, first come first

	used    int64   // bytes in flight
	waiting []*load // those that wait for memory, the eldest first
	over    *load   // may go on although all memory is used
	last    int64   // age of the youngest load
}

// place is that of one harvest.
type place struct {
	of      *capacity
	waiting bool          // for something else than a place
	server  bool          // and that is the Source's server
	lent    bool          // another harvest has it meanwhile
	given   chan struct{} // closed when it is this one's turn
	load    *load
}

// enter waits for a place.
func (c *capacity) enter(ctx context.Context) (*place, error) {
	p := &place{of: c, lent: true}
	c.mu.Lock()
	c.last++
	p.load = &load{of: c, place: p, age: c.last}
	c.mu.Unlock()
	if err := p.reclaim(ctx, false); err != nil {
		return nil, err
	}
	return p, nil
}

// reclaim waits until the place is there again.
func (p *place) reclaim(ctx context.Context, first bool) error {
	c := p.of
	c.mu.Lock()
	if !p.lent {
		c.mu.Unlock()
		return nil
	}
	// Who may go on beyond the memory there is needs no place: all of them may be
	// with those that wait for that memory.
	if c.taken < placesAtOnce || c.over == p.load {
		c.taken++
		p.lent = false
		c.mu.Unlock()
		return nil
	}
	p.given = make(chan struct{})
	if first {
		c.queue = slices.Insert(c.queue, 0, p)
	} else {
		c.queue = append(c.queue, p)
	}
	c.mu.Unlock()
	select {
	case <-p.given:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = slices.DeleteFunc(c.queue, func(q *place) bool { return q == p })
	return context.Cause(ctx)
}

// free gives a place to the next one. Callers hold mu.
func (c *capacity) free() {
	if len(c.queue) == 0 || c.taken > placesAtOnce {
		c.taken--
		return
	}
	next := c.queue[0]
	c.queue = c.queue[1:]
	next.lent = false
	close(next.given)
}

// wait does something that may take long. After a while the place goes to
// another harvest, and is waited for afterwards. A nil place has none to lend.
func (p *place) wait(ctx context.Context, do func()) { p.waitFor(ctx, false, do) }

// waitServer is wait for the Source's server.
func (p *place) waitServer(ctx context.Context, do func()) { p.waitFor(ctx, true, do) }

func (p *place) waitFor(ctx context.Context, server bool, do func()) {
	if p == nil {
		do()
		return
	}
	c := p.of
	c.mu.Lock()
	p.waiting, p.server = true, server
	c.mu.Unlock()
	timer := time.AfterFunc(placeAfter, p.lend)
	do()
	timer.Stop()
	c.mu.Lock()
	p.waiting = false
	c.mu.Unlock()
	_ = p.reclaim(ctx, true) // a harvest that is told to end needs none
}

func (p *place) lend() {
	c := p.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.waiting || p.lent {
		return
	}
	p.lent = true
	c.free()
	// Who waits for the log keeps its leave to go on beyond the memory there is:
	// it holds what it has read. Who waits for a slow server loses it, unless its
	// successor would take too much.
	if c.over == p.load && p.server && c.used < 2*inFlight {
		c.over = nil
		c.wake()
	}
}

// leave gives the place and all memory back.
func (p *place) leave() {
	c := p.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.lent {
		p.lent = true
		c.free()
	}
	p.load.freed(p.load.held)
}

// add takes memory for what was read, and waits for it.
func (p *place) add(ctx context.Context, n int64) error {
	if p == nil {
		return nil
	}
	return p.load.add(ctx, n)
}

// done gives memory back.
func (p *place) done(n int64) {
	if p != nil {
		p.load.done(n)
	}
}

// load is what one harvest has in flight.
type load struct {
	of    *capacity
	place *place
	age   int64
	held  int64
	wants int64         // bytes that it waits for
	room  chan struct{} // closed when it has them
}

// add waits for memory. When there is none left one harvest may go on all the
// same, the eldest that wants more: what was read in part could never be written
// otherwise.
func (l *load) add(ctx context.Context, n int64) error {
	c := l.of
	c.mu.Lock()
	l.wants, l.room = n, make(chan struct{})
	at, _ := slices.BinarySearchFunc(c.waiting, l.age, func(w *load, age int64) int { return cmp.Compare(w.age, age) })
	c.waiting = slices.Insert(c.waiting, at, l)
	c.wake()
	c.mu.Unlock()
	// It keeps its place: another one would soon wait for memory too, with half a
	// document of its own in it.
	select {
	case <-l.room:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(w *load) bool { return w == l })
	return context.Cause(ctx)
}

func (l *load) done(n int64) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.freed(n)
}

// freed is done. Callers hold mu.
func (l *load) freed(n int64) {
	c := l.of
	n = min(n, l.held)
	l.held -= n
	c.used -= n
	if c.over == l && l.held == 0 {
		c.over = nil
	}
	c.wake()
}

func (c *capacity) fits(n int64) bool { return c.used == 0 || c.used+n <= inFlight }

// wake lets those go on who may. Callers hold mu.
func (c *capacity) wake() {
	for i := 0; i < len(c.waiting); {
		l := c.waiting[i]
		if !c.fits(l.wants) {
			if c.over == nil {
				c.over = l
			}
			if c.over != l {
				i++
				continue
			}
		}
		l.held += l.wants
		c.used += l.wants
		c.waiting = slices.Delete(c.waiting, i, i+1)
		close(l.room)
	}
}

// meter takes memory for the entries of one document as they are read, many at a
// time. What it has taken goes with the document to the log.
type meter struct {
	r     *run
	read  int64 // bytes of all documents, when memory was taken last
	next  int64 // entries since then
	taken int64
}

// meterStep is for how many bytes a meter asks at a time.
const meterStep = 256 << 10

func (r *run) meter() meter { return meter{r: r, read: r.bytes.Load()} }

// entry counts one, with the bytes that have been read since the last.
func (m *meter) entry(ctx context.Context) error {
	m.next++
	read := m.r.bytes.Load()
	n := entryCost*m.next + 2*(read-m.read)
	if n < meterStep {
		return nil
	}
	m.read, m.next = read, 0
	if err := m.r.place.add(ctx, n); err != nil {
		return err
	}
	m.taken += n
	return nil
}
