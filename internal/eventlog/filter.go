package eventlog

import "github.com/pmh-bridge/bridge/event"

// keyFilter is a Bloom filter over the keys of all records of a set, and of the URIs they
// are listed under. A key that it does not have is new, and need not be looked up: in the
// first harvest of a set that is nearly every record, and the two look-ups took a tenth
// of the time.
//
// A set has one only while it is first harvested, from its first record on. Keys of a
// transaction that was undone stay in it, and are looked up in vain.
type keyFilter struct {
	layers []filterLayer
	keys   int // in the last layer
}

// filterLayer is a power of two of words. A key sets four bits of one word.
type filterLayer []uint64

const (
	// firstLayer is how many keys the first layer has room for, each next one for twice
	// as many. At four keys a word one key in 200 is taken for one that is there.
	firstLayer  = 1 << 12
	keysOfAWord = 4
	// maxLayers bounds a filter to 8 million keys, in 16 MB.
	maxLayers = 11
)

// add adds a key, and reports whether there was room for it.
func (f *keyFilter) add(key int64) bool {
	if n := len(f.layers); n == 0 || f.keys == firstLayer<<(n-1) {
		if n == maxLayers {
			return false
		}
		f.layers, f.keys = append(f.layers, make(filterLayer, firstLayer<<n/keysOfAWord)), 0
	}
	last := f.layers[len(f.layers)-1]
	word, bits := last.place(key)
	*word |= bits
	f.keys++
	return true
}

// has reports whether a key may have been added; false is certain. Without a filter any
// key may be there.
func (f *keyFilter) has(key int64) bool {
	if f == nil {
		return true
	}
	for _, l := range f.layers {
		if word, bits := l.place(key); *word&bits == bits {
			return true
		}
	}
	return false
}

// place returns where a key has its bits. Keys are hashes, so their bits serve as they
// are.
func (l filterLayer) place(key int64) (word *uint64, bits uint64) {
	k := uint64(key)
	bits = 1<<(k&63) | 1<<(k>>6&63) | 1<<(k>>12&63) | 1<<(k>>18&63)
	return &l[k>>24&uint64(len(l)-1)], bits
}

// uriKey is the key of a URI in the filter, where it must not be taken for the key of
// the record that has the URI as its identifier.
func uriKey(loc int64) int64 { return ^loc }

// beginFilter gives the set a filter if a walk begins to fill it.
func (b *batch) beginFilter() {
	if b.set.records == 0 && b.in.Mode == event.ModeWalk {
		b.l.filters[b.set.id] = new(keyFilter)
	}
	b.filter = b.l.filters[b.set.id]
}

// addToFilter adds the key of a new record, or of a URI.
func (b *batch) addToFilter(key int64) {
	if b.filter != nil && !b.filter.add(key) {
		b.endFilter()
	}
}

// endFilter ends the filter of the set: a later harvest has few records that are new.
func (b *batch) endFilter() {
	delete(b.l.filters, b.set.id)
	b.filter = nil
}
