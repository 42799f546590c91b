package content

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

const (
	// recentPacks is how many packs are remembered that were read from lately, recentWhole
	// how many of them are in memory.
	recentPacks, recentWhole = 64, 4
	// readsOfWhole: so many contents of a pack are read one by one, and with the next the
	// whole pack: who reads so many reads a set in its order.
	readsOfWhole = 3
)

// recent remembers the packs that were read from lately, the last one first.
type recent struct {
	sync.Mutex
	packs []*recentPack
}

type recentPack struct {
	key   string
	reads int
	bytes []byte        // nil while the pack is not in memory
	turn  chan struct{} // holds a token of the one who reads the pack
}

// touch notes that a content of a pack is read, and says whether the pack should be read
// whole.
func (r *recent) touch(key string) (p *recentPack, whole bool) {
	r.Lock()
	defer r.Unlock()
	if i := slices.IndexFunc(r.packs, func(p *recentPack) bool { return p.key == key }); i >= 0 {
		p = r.packs[i]
		r.packs = slices.Delete(r.packs, i, i+1)
	} else {
		p = &recentPack{key: key, turn: make(chan struct{}, 1)}
	}
	p.reads++
	r.packs = slices.Insert(r.packs, 0, p)
	r.packs = r.packs[:min(len(r.packs), recentPacks)]
	return p, p.reads > readsOfWhole
}

// body returns the bytes of a pack, nil if they are not in memory.
func (r *recent) body(p *recentPack) []byte {
	r.Lock()
	defer r.Unlock()
	return p.bytes
}

// hold keeps the bytes of a pack in memory, in the place of those read longest ago.
func (r *recent) hold(p *recentPack, body []byte) {
	r.Lock()
	defer r.Unlock()
	p.bytes = body
	whole := 0
	for _, other := range r.packs {
		if other.bytes == nil {
			continue
		}
		if whole++; whole > recentWhole {
			other.bytes, other.reads = nil, 0
		}
	}
}

// forget drops a pack from memory.
func (r *recent) forget(key string) {
	r.Lock()
	defer r.Unlock()
	r.packs = slices.DeleteFunc(r.packs, func(p *recentPack) bool { return p.key == key })
}

// read returns a part of a pack. It reads the whole pack, and remembers it, when several of
// its contents were asked for.
func (p *packs) read(ctx context.Context, at place, n int64) ([]byte, error) {
	if at.at < 0 || at.at+n > at.length {
		return nil, fmt.Errorf("%s is %w (a content ends behind the end of %s): restore it from a backup", p.store.name, ErrDamaged, at.key)
	}
	r, whole := p.recent.touch(at.key)
	if !whole {
		return p.get(ctx, at.key, at.at, n)
	}
	select { // those who need it at the same time wait for the first
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.turn }()
	body := p.recent.body(r)
	if body == nil {
		select { // not more than are remembered
		case p.wholes <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-p.wholes }()
		var err error
		if body, err = p.get(ctx, at.key, 0, at.length); err != nil {
			return nil, err
		}
		p.recent.hold(r, body)
	}
	return slices.Clone(body[at.at : at.at+n]), nil
}
