package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// endlessLog is a log with one set of any number of records, which it makes up as they are
// read: it takes no memory. The content of the record that was yielded last is at hand.
type endlessLog struct {
	*sliceLog
	records int
	body    func(n int) []byte // the block that the content of record n repeats
	repeats int
	current int // the record that was yielded last
}

func (l *endlessLog) Set(ctx context.Context, name string) (event.Set, error) {
	set, err := l.sliceLog.Set(ctx, name)
	set.Live, set.Last, set.Dumps = int64(l.records), event.Seq(l.records), true
	return set, err
}

func (l *endlessLog) Listed(context.Context, string, event.Seq) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for n := range l.records {
			e := sample(event.Created, 2*n, 1)
			e.Seq, e.Observed = event.Seq(n+1), created+event.Micros(n)
			h, body := sha256.New(), l.body(n)
			for range l.repeats {
				h.Write(body)
			}
			r := &e.Representations[0]
			r.Hash, r.Length = event.HashOf([32]byte(h.Sum(nil))), int64(len(body)*l.repeats)
			l.current = n
			if !yield(&e, nil) {
				return
			}
		}
	}
}

// repeated reads a block many times.
type repeated struct {
	io.Seeker // not asked for
	block     []byte
	left, at  int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.left, r.at = r.left-1, 0
	}
	return n, nil
}

func (*repeated) Close() error { return nil }

// Memory does not grow with the number of records, nor with their bytes.
func TestDumpMemory(t *testing.T) {
	testenv.Soak(t)
	python := testenv.Need(t, "python3", "python3")
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	for name, l := range map[string]*endlessLog{
		"200,000 records of 2 KB": {records: 200_000, repeats: 1, body: func(n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "<record>%d</record>\n", n), 120)[:2000] }},
		"60 records of 80 MiB":    {records: 60, repeats: 80, body: func(int) []byte { return noise }},
	} {
		dir, err := os.MkdirTemp("/var/tmp", "dump") // TMPDIR may be in memory
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		l.sliceLog = history(10, event.Mirror)
		p := publisherIn(t, l, dir)
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		peak, opened := before.HeapInuse, 0
		p.opts.Content = func(context.Context, [32]byte) (io.ReadSeekCloser, int64, error) {
			if opened++; opened%(l.records/50) == 0 {
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapInuse)
			}
			b := l.body(l.current)
			return &repeated{block: b, left: l.repeats}, int64(len(b) * l.repeats), nil
		}
		if err := p.Dump(t.Context(), "main"); err != nil {
			t.Fatal(err)
		}
		st, err := p.state(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		made := st.resourceDumps.current()
		grown := (int64(peak) - int64(before.HeapInuse)) >> 20
		t.Logf("%s: %d packages, %d bytes; the heap grew by %d MiB at most", name, made.Parts, made.bytes, grown)
		if grown > 64 {
			t.Errorf("%s: the heap grew by %d MiB", name, grown)
		}
		entries := 0
		for n := range made.packages {
			pack := filepath.Join(made.Dir, fmt.Sprintf(packagePattern, n+1))
			out, err := exec.Command(python, filepath.Join(testenv.Root(t), "testdata", "check_dump.py"), pack, filepath.Join(made.Dir, fmt.Sprintf(contentsPattern, n+1))).CombinedOutput()
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("entries=%d ", made.packages[n].Entries)) {
				t.Errorf("%s: %v", pack, err)
			}
			entries += made.packages[n].Entries
		}
		if entries != l.records {
			t.Errorf("%d entries of %d", entries, l.records)
		}
	}
}
