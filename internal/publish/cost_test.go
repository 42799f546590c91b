package publish

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// manySets is how many sets there are where each costs little.
const manySets = inlineEntries + 1

func withManySets() *sliceLog {
	l := newLog()
	for i := range manySets {
		l.make(fmt.Sprint("s", i), event.Mirror, 10)
	}
	return l
}

// While nothing happens, a set of which nothing is kept costs neither a read of the log nor a
// look at the disk, for which something is allocated each time.
func TestIdleSets(t *testing.T) {
	for _, partial := range []bool{false, true} {
		l := withManySets()
		for _, set := range l.sets {
			set.set.Partial = partial // as while its Source fails
		}
		p := newPublisher(t, l)
		plans, again, dumps := map[string]*schedule{}, map[string]time.Time{}, map[string]*dumpPlan{}
		check := func() {
			must(t, errors.Join(p.checkSets(t.Context(), plans, again), p.checkDumps(t.Context(), dumps)))
		}
		check()
		check()
		l.asked = 0
		allocated := testing.AllocsPerRun(1, check)
		if l.asked > 0 || allocated > 3*manySets {
			t.Errorf("partial %t: %d sets are read, %.0f allocations made", partial, l.asked, allocated)
		}
	}
}

// The documents of all sets are made once where there are many.
func TestDocumentsOfManySets(t *testing.T) {
	l := withManySets()
	for _, path := range []string{"/.well-known/resourcesync", "/robots.txt"} {
		p := newPublisher(t, l)
		want, _ := get(t, p, path, false)
		again, meta := get(t, p, path, false)
		if string(want) != string(again) || len(cacheFiles(t, p)) != 2 {
			t.Errorf("%s is made each time: the cache has %v", path, cacheFiles(t, p))
		}
		l.make("new", event.Mirror, 10)
		if _, now := get(t, p, path, false); now.ETag == meta.ETag {
			t.Errorf("%s does not change with the sets", path)
		}
		delete(l.sets, "new")
	}
}

// A Compressor that is used again writes what a new one writes, also after its writer
// has failed.
func TestCompressorAgain(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	again := NewCompressor()
	for n := range 40 {
		var doc []byte
		for i := range 3000 * (n % 7) {
			doc = fmt.Appendf(doc, "<identifier>oai:repository.example.org:%d</identifier>\n", (n+1)*i%1999)
		}
		var want, got bytes.Buffer
		must(t, Compress(&want, doc))
		again.Begin(&got)
		for rest := doc; len(rest) > 0; { // in other pieces
			piece := rest[:min(len(rest), 1+n*997)]
			if _, err := again.Write(piece); err != nil {
				t.Fatal(err)
			}
			rest = rest[len(piece):]
		}
		if err := again.Close(); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("document %d of %d bytes: %d bytes, want %d: %v", n, len(doc), got.Len(), want.Len(), err)
		}
		broken := errors.New("the connection is gone")
		again.Begin(failingWriter{broken})
		_, _ = again.Write(doc) // it may be told so already
		if err := again.Close(); !errors.Is(err, broken) {
			t.Fatalf("%v, want %v", err, broken)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
