package daemon

import (
	"context"
	"sync"
)

// loops are the scheduled harvests: one goroutine for each Source, which can be started and
// stopped while the others continue.
type loops struct {
	mu      sync.Mutex
	ctx     context.Context                // ends all loops; nil before run
	harvest func(context.Context, *Source) // the body of one loop
	running map[*Source]*loop
	group   sync.WaitGroup
}

type loop struct {
	end   context.CancelFunc
	ended chan struct{}
}

// run begins a loop for each of the Sources, and returns when ctx has ended and no loop runs.
func (l *loops) run(ctx context.Context, all func() []*Source, harvest func(context.Context, *Source)) {
	l.mu.Lock()
	l.ctx, l.harvest, l.running = ctx, harvest, map[*Source]*loop{}
	l.mu.Unlock()
	for _, src := range all() { // whoever adds a Source from now on calls begin
		l.begin(src)
	}
	<-ctx.Done()
	l.mu.Lock() // after this no loop begins
	l.ctx = nil
	l.mu.Unlock()
	l.group.Wait()
}

// begin begins the loop of a Source, if loops run at all and it has none.
func (l *loops) begin(src *Source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil || l.running[src] != nil || src.turn.isClosed() {
		return
	}
	ctx, end := context.WithCancel(l.ctx)
	this, harvest := &loop{end, make(chan struct{})}, l.harvest
	l.running[src] = this
	l.group.Go(func() {
		defer close(this.ended)
		harvest(ctx, src)
	})
}

// end ends the loop of a Source, if it has one, and waits until it has ended.
func (l *loops) end(src *Source) {
	l.mu.Lock()
	this := l.running[src]
	delete(l.running, src)
	l.mu.Unlock()
	if this != nil {
		this.end()
		<-this.ended
	}
}
