package server

import (
	"container/list"
	"net/http"
	"sync"

	"github.com/pmh-bridge/bridge/internal/publish"
)

// memo keeps small closed documents. They never change at their URLs (I1), so
// nothing in it is ever stale, and it never has to be told of anything. Without
// it, to name and open the file of a small document costs more than to send it.
type memo struct {
	mu    sync.Mutex
	byKey map[memoKey]*list.Element
	order *list.List // of *closed, last used first
	size  int
}

// memoKey is what a client asks for.
type memoKey struct {
	path string
	gzip bool
}

// closed is a document that never changes. Nobody may change it here either.
type closed struct {
	key    memoKey
	meta   publish.Meta
	header http.Header
	body   []byte
}

const (
	// memoOne bounds one document: above it, sendfile is the faster way.
	memoOne = 256 << 10
	// memoAll bounds all of them together.
	memoAll = 16 << 20
)

func newMemo() *memo { return &memo{byKey: map[memoKey]*list.Element{}, order: list.New()} }

// get returns a document, nil when it is not kept.
func (m *memo) get(k memoKey) *closed {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byKey[k]
	if e == nil {
		return nil
	}
	m.order.MoveToFront(e)
	return e.Value.(*closed)
}

// put keeps a document of at most memoOne bytes, and lets go of what was not
// used for the longest time.
func (m *memo) put(d *closed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey[d.key] != nil {
		return
	}
	m.byKey[d.key] = m.order.PushFront(d)
	m.size += len(d.body)
	for m.size > memoAll {
		old := m.order.Remove(m.order.Back()).(*closed)
		delete(m.byKey, old.key)
		m.size -= len(old.body)
	}
}
