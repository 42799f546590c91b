package limit

import (
	"sync"
	"time"
)

// linesEvery is how long it is until the next line.
const linesEvery = time.Minute

// LogThrottle keeps events that any client can cause from filling the server's log:
// the first one is logged at once, the following ones together, once a minute. Its
// methods may be called from any goroutine. The zero LogThrottle is ready, and serves
// one kind of line.
type LogThrottle struct {
	mu   sync.Mutex
	open bool // a minute has begun
	n    int  // occurrences in it that were not logged
	log  func(n int)
}

// Note counts an occurrence. log is called, now or within a minute, with how many
// there were since the last line, this one being the last of them, unless another
// one follows before that. It must not call Note.
func (l *LogThrottle) Note(log func(n int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	l.log = log
	if !l.open {
		l.flush()
	}
}

// flush logs what there is, and again in a minute, until there is nothing. The
// caller holds mu.
func (l *LogThrottle) flush() {
	if l.open = l.n > 0; !l.open {
		l.log = nil
		return
	}
	l.log(l.n)
	l.n = 0
	time.AfterFunc(linesEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flush()
	})
}
