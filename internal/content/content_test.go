package content

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashStore) != "" {
		os.Exit(crashChild())
	}
	goleak.VerifyTestMain(testenv.WithS3(testenv.WithPostgres(m)))
}

// server has the stores that newPlace makes; nil is that they are files.
var server *testenv.PostgresServer

// newPlace returns where a new store can be.
func newPlace(t testing.TB) string {
	t.Helper()
	if server != nil {
		return server.NewSchema(t)
	}
	return filepath.Join(t.TempDir(), FileName)
}

// TestOnServer: what is true of a store in a file is true of one on a PostgreSQL server.
func TestOnServer(t *testing.T) {
	testenv.Heavy(t)
	server = testenv.SharedPostgres(t)
	defer func() { server = nil }()
	testenv.Checks(t, 1)
	for name, test := range map[string]func(*testing.T){
		"Put": TestPutOpen, "Missing": TestMissing, "Draft": TestDraft, "Atomic": TestPutIsAtomic, "Concurrent": TestConcurrentUse, "Small": TestSmall, "Known": TestPutPartlyKnown, "ReadOnly": TestReadOnly,
		"DryRun": TestDryRun, "Swapped": TestSwappedChunks, "Bucket": TestBucket, "Packer": TestPacker, "Histories": TestBucketHistories, "Gone": TestGoneWhileKept,
		"Damaged": TestManyDamaged, "ManyPacks": TestBucketOfMany, "Cache": TestDamagedCache, "Adopt": TestAdopt, "Kill": TestKillPacker,
	} {
		t.Run(name, test)
	}
}

func openStore(t testing.TB, path string, o Options) *Store {
	t.Helper()
	if database.OnServer(path) && o.Spool == "" {
		o.Spool = t.TempDir()
	}
	s, err := Open(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, s) })
	return s
}

func newStore(t testing.TB) *Store {
	return openStore(t, newPlace(t), Options{})
}

// noise returns n bytes that depend on seed only.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	copy(key[:], fmt.Sprint(seed))
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func put(t testing.TB, s *Store, contents ...[]byte) {
	t.Helper()
	must(t, s.Put(context.Background(), drafts(contents...)...))
}

func drafts(contents ...[]byte) []*Draft {
	ds := make([]*Draft, len(contents))
	for i, c := range contents {
		ds[i] = NewDraft(c)
	}
	return ds
}

func read(s *Store, sum Sum) ([]byte, error) {
	b, err := s.Open(context.Background(), sum)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return io.ReadAll(b)
}

// mustHold fails unless the store answers exactly these bytes.
func mustHold(t testing.TB, s *Store, contents ...[]byte) {
	t.Helper()
	for _, content := range contents {
		got, err := read(s, sumOf(content))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, content) {
			t.Fatalf("content %s: %d bytes that differ from the %d stored", sumOf(content), len(got), len(content))
		}
	}
}

func mustStats(t testing.TB, s *Store, want Stats) {
	t.Helper()
	got, err := s.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("stats %+v, want %+v", got, want)
	}
}

// sizes are those at which the form of storage changes.
var sizes = []int{0, 1, 2048, 60000, chunkSize - 1, chunkSize, chunkSize + 1, 2 * chunkSize, 2*chunkSize + 1, 1 << 20, 3<<20 + 77}

func TestPutOpen(t *testing.T) {
	testenv.Heavy(t)
	path := newPlace(t)
	if server == nil {
		path = filepath.Join(t.TempDir(), "a b?c#d%41.db") // nothing in a name is taken for more than a name
	}
	s := openStore(t, path, Options{})
	var all [][]byte
	var want Stats
	for i, n := range sizes {
		all = append(all, noise(uint64(i), n))
		want.Count++
		want.Bytes += int64(n)
	}
	put(t, s, all...)
	put(t, s, all...)                     // known already
	put(t, s, all[3], all[3], all[9])     // twice in one batch
	put(t, s)                             // nothing at all
	put(t, s, noise(99, 7), noise(99, 7)) // new, and twice
	want.Count, want.Bytes = want.Count+1, want.Bytes+7
	mustStats(t, s, want)
	if _, err := os.Stat(path); server == nil && err != nil {
		t.Fatal(err)
	}
	other := openStore(t, path, Options{ReadOnly: true})
	for _, c := range all {
		mustHold(t, s, c)
		mustHold(t, other, c)
		b, err := s.Open(context.Background(), sumOf(c))
		if err != nil {
			t.Fatal(err)
		}
		if err := iotest.TestReader(b, c); err != nil {
			t.Errorf("%d bytes: %v", len(c), err)
		}
		if b.Size() != int64(len(c)) {
			t.Errorf("size %d of %d bytes", b.Size(), len(c))
		}
		closed(t, b)
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("reading after Close: %v", err)
		}
	}
	mustVerify(t, s, want)
}

// mustVerify fails unless every content is whole and they are as many as said.
func mustVerify(t testing.TB, s *Store, want Stats) {
	t.Helper()
	got, err := s.Verify(context.Background(), true, func(sum Sum, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("verified %+v, want %+v", got, want)
	}
}

// What is removed while contents are being checked is not damaged.
func TestVerifyBesideRemoval(t *testing.T) {
	s := newStore(t)
	small, large := noise(1, 9), noise(2, chunkSize+1)
	put(t, s, small)
	put(t, s, large)
	did, err := s.Verify(t.Context(), false, func(_ Sum, err error) {
		if err = errors.Join(err, s.Remove(t.Context(), sumOf(large))); err != nil {
			t.Error(err)
		}
	})
	if want := (Stats{Count: 1, Bytes: 9}); did != want || err != nil {
		t.Errorf("verified %+v, want %+v: %v", did, want, err)
	}
}

func TestManyInOneBatch(t *testing.T) {
	s := newStore(t)
	var all [][]byte
	for i := range 3*50 + 7 {
		all = append(all, noise(uint64(i), 100))
	}
	put(t, s, all[10:20]...)
	put(t, s, all...)
	mustHold(t, s, all...)
	mustVerify(t, s, Stats{Count: int64(len(all)), Bytes: int64(100 * len(all))})
}

func TestMissing(t *testing.T) {
	s := newStore(t)
	var stored, want, ask []Sum
	var contents [][]byte
	for i := range 2*lookups + 3 {
		c := noise(uint64(i), 10)
		if i%3 == 0 {
			stored = append(stored, sumOf(c))
			contents = append(contents, c)
		} else {
			want = append(want, sumOf(c))
		}
		ask = append(ask, sumOf(c))
	}
	put(t, s, contents...)
	got, err := s.Missing(context.Background(), append(ask, ask...))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d missing, want %d in the order asked", len(got), len(want))
	}
	for sum, want := range map[Sum]bool{stored[0]: true, want[0]: false} {
		if has, err := s.Has(context.Background(), sum); err != nil || has != want {
			t.Errorf("Has = %v, %v, want %v", has, err, want)
		}
	}
	if got, err := s.Missing(context.Background(), nil); err != nil || got != nil {
		t.Errorf("of none are missing %v, %v", got, err)
	}
	if _, err := read(s, want[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening what is not there: %v", err)
	}
}

func TestDraft(t *testing.T) {
	s := newStore(t)
	for i, n := range sizes {
		c := noise(uint64(i), n)
		d, err := s.Draft(iotest.HalfReader(bytes.NewReader(c)), int64(n))
		if err != nil {
			t.Fatal(err)
		}
		if d.Sum() != sumOf(c) || d.Size() != int64(n) {
			t.Errorf("%d bytes: sum %s, size %d", n, d.Sum(), d.Size())
		}
		if spooled := d.file != nil; spooled != (n > chunkSize) {
			t.Errorf("%d bytes: in a file: %v", n, spooled)
		}
		for range 2 {
			must(t, s.Put(context.Background(), d))
		}
		mustHold(t, s, c)
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
	mustBeAlone(t, s)
}

// mustBeAlone fails when the store has left files beside its own.
func mustBeAlone(t *testing.T, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(s.spool)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(s.path)) {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestDraftLimit(t *testing.T) {
	s := newStore(t)
	for _, limit := range []int64{0, 1, 1000, chunkSize - 1, chunkSize, chunkSize + 1, 1 << 20} {
		c := noise(1, int(limit)+1)
		if _, err := s.Draft(bytes.NewReader(c), limit); !errors.Is(err, ErrTooLarge) {
			t.Errorf("one byte more than %d: %v", limit, err)
		}
		d, err := s.Draft(bytes.NewReader(c[1:]), limit)
		if err != nil {
			t.Errorf("just %d bytes: %v", limit, err)
		} else {
			closed(t, d)
		}
	}
	mustBeAlone(t, s)
}

func TestDraftOfBrokenReader(t *testing.T) {
	s := newStore(t)
	broken := errors.New("connection reset")
	for _, n := range []int{0, 100, chunkSize, chunkSize + 1, 1 << 20} {
		r := io.MultiReader(bytes.NewReader(noise(1, n)), iotest.ErrReader(broken))
		if _, err := s.Draft(r, 64<<20); !errors.Is(err, broken) {
			t.Errorf("broken after %d bytes: %v", n, err)
		}
	}
	mustBeAlone(t, s)
	mustStats(t, s, Stats{})
}

// A batch is all or nothing: the last draft's file is not readable any more.
func TestPutIsAtomic(t *testing.T) {
	s := newStore(t)
	small, large := noise(1, 100), noise(2, 1<<20)
	d, err := s.Draft(bytes.NewReader(large), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, d)
	if err := s.Put(context.Background(), NewDraft(small), d); err == nil {
		t.Fatal("a closed draft was stored")
	}
	mustStats(t, s, Stats{})
	if has, err := s.Has(context.Background(), sumOf(small)); err != nil || has {
		t.Errorf("half a batch: %v, %v", has, err)
	}
	put(t, s, small, large)
	mustVerify(t, s, Stats{Count: 2, Bytes: 100 + 1<<20})
}

func TestPutCancelled(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Put(ctx, drafts([]byte("a"))...); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	mustStats(t, s, Stats{})
	put(t, s, []byte("a"))
	mustVerify(t, s, Stats{Count: 1, Bytes: 1})
}

func TestConcurrentUse(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 10 {
				// Half of them come from two goroutines.
				c := noise(uint64(g/2*1000+i), 100+i*60000)
				if err := s.Put(context.Background(), NewDraft(c)); err != nil {
					t.Error(err)
					return
				}
				if got, err := read(s, sumOf(c)); err != nil || !bytes.Equal(got, c) {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	st, err := s.Stats(context.Background())
	if err != nil || st.Count != 20 {
		t.Fatalf("%+v, %v, want 20 contents", st, err)
	}
	mustVerify(t, s, st)
}

func TestParseSum(t *testing.T) {
	sum := sumOf([]byte("x"))
	for _, digits := range []string{sum.String(), strings.ToUpper(sum.String())} {
		if got, err := ParseSum(digits); err != nil || got != sum {
			t.Errorf("%s: %s, %v", digits, got, err)
		}
	}
	for _, bad := range []string{"", "00", sum.String() + "00", strings.Repeat("g", 64)} {
		if _, err := ParseSum(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSeek(t *testing.T) {
	testenv.Heavy(t)
	s := newStore(t)
	c := noise(1, 3*chunkSize+5)
	put(t, s, c)
	b, err := s.Open(context.Background(), sumOf(c))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		at := r.Int64N(int64(len(c)))
		if _, err := b.Seek(at-int64(len(c)), io.SeekEnd); err != nil {
			t.Fatal(err)
		}
		part := make([]byte, min(1+r.Int64N(2*chunkSize), int64(len(c))-at))
		if _, err := io.ReadFull(b, part); err != nil || !bytes.Equal(part, c[at:at+int64(len(part))]) {
			t.Fatalf("%d bytes at %d: %v", len(part), at, err)
		}
	}
	if _, err := b.Seek(-1, io.SeekStart); err == nil {
		t.Error("sought before the start")
	}
	if _, err := b.Seek(0, 9); err == nil {
		t.Error("whence 9 was taken")
	}
	if _, err := b.Seek(10, io.SeekEnd); err != nil {
		t.Error(err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v", err)
	}
}

// Small returns what stands in one piece, checked, and leaves the rest to Open.
func TestSmall(t *testing.T) {
	ctx := t.Context()
	s := newStore(t)
	want := map[Sum][]byte{}
	var sums []Sum
	for i := range 70 { // more than one statement has
		body := []byte(strings.Repeat(fmt.Sprint(i), i*i*20))
		must(t, s.Put(ctx, NewDraft(body)))
		sum := sumOf(body)
		sums = append(sums, sum, sum)
		if len(body) <= 256<<10 {
			want[sum] = body
		}
	}
	sums = append(sums, Sum{1}) // that is not there
	got, err := s.Small(ctx, sums)
	if err != nil || !maps.EqualFunc(got, want, bytes.Equal) || len(want) < 60 {
		t.Errorf("%d of %d contents, %v", len(got), len(want), err)
	}
	if none, err := s.Small(ctx, nil); err != nil || len(none) > 0 {
		t.Errorf("of no sums: %d, %v", len(none), err)
	}
}

// Of many contents the first ones say whether the others are looked up before they are
// stored. Whatever is known, what is counted is what there is.
func TestPutPartlyKnown(t *testing.T) {
	var all [][]byte
	for i := range 2*lookups + 100 {
		all = append(all, noise(uint64(i), 10+i%5))
	}
	slices.SortFunc(all, func(a, b []byte) int {
		x, y := sumOf(a), sumOf(b)
		return bytes.Compare(x[:], y[:])
	})
	for name, known := range map[string][][]byte{
		"none": nil, "the first": all[:1], "the last": all[len(all)-1:], "all but the first ones": all[lookups:], "some in the middle": all[lookups : lookups+50], "all": all,
	} {
		for _, large := range []bool{false, true} {
			if large && server != nil {
				continue
			}
			t.Run(fmt.Sprint(name, large), func(t *testing.T) {
				s := newStore(t)
				put(t, s, known...)
				together := all
				if large {
					b := noise(7, chunkSize+1)
					put(t, s, b)
					together = append(slices.Clone(all), b)
				}
				put(t, s, together...)
				want := Stats{Count: int64(len(together))}
				for _, b := range together {
					want.Bytes += int64(len(b))
				}
				mustStats(t, s, want)
				mustVerify(t, s, want)
			})
		}
	}
}
