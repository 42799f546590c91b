package server

import (
	"fmt"
	"testing"
)

func TestMemoKeepsWhatIsUsed(t *testing.T) {
	m := newMemo()
	key := func(i int) memoKey { return memoKey{fmt.Sprint(i), i%2 == 0} }
	const fit = memoAll / memoOne
	for i := range fit {
		m.put(&closed{key: key(i), body: make([]byte, memoOne)})
	}
	if m.get(key(0)) == nil || m.size != memoAll {
		t.Fatalf("%d bytes are kept, want %d", m.size, memoAll)
	}
	m.put(&closed{key: key(0), body: []byte("two requests at once")})
	if len(m.get(key(0)).body) != memoOne || m.size != memoAll {
		t.Error("what was kept changed")
	}
	if m.get(memoKey{key(0).path, false}) != nil {
		t.Error("a compressed document for one who did not ask for it")
	}
	m.put(&closed{key: key(fit), body: make([]byte, memoOne)})
	if m.get(key(1)) != nil {
		t.Error("what was not used for the longest time is kept")
	}
	if m.get(key(0)) == nil || m.get(key(fit)) == nil || m.size != memoAll || len(m.byKey) != fit || m.order.Len() != fit {
		t.Errorf("%d bytes in %d documents", m.size, len(m.byKey))
	}
}
