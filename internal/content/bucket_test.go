package content

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// inBucket returns the options of a store whose contents are moved to a bucket by Tidy alone,
// and kept nowhere else.
func inBucket(address string) Options {
	return Options{Bucket: address, Idle: true, Keep: -1, packBytes: 1 << 20}
}

// newBucket returns the address of a new bucket on the shared server.
func newBucket(t testing.TB) (s3 *testenv.S3Server, address string) {
	s3 = testenv.SharedS3(t)
	s3.Setenv(t)
	return s3, s3.Address(s3.NewBucket(t), "library", "contents")
}

func tidy(t testing.TB, s *Store, keep time.Duration) Tidied {
	t.Helper()
	did, err := s.Tidy(t.Context(), TidyOptions{Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	return did
}

// bytesHere returns how many bytes of contents the database has.
func bytesHere(t testing.TB, s *Store) (n int64) {
	t.Helper()
	must(t, s.query.QueryRowContext(t.Context(), "SELECT coalesce((SELECT sum(length(bytes)) FROM content), 0) + coalesce((SELECT sum(length(bytes)) FROM chunk), 0)").Scan(&n))
	return n
}

// mixed returns contents of all sizes that are treated differently.
func mixed(seed uint64) [][]byte {
	all := [][]byte{{}, noise(seed, 1), noise(seed+1, chunkSize), noise(seed+2, chunkSize+1), noise(seed+3, 3*chunkSize), noise(seed+4, 4*chunkSize+99)}
	for i := range 60 { // more than a pack has
		all = append(all, noise(seed+10+uint64(i), 1000+i*500))
	}
	return all
}

// sameSize returns n contents of 3000 bytes.
func sameSize(n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = noise(uint64(i), 3000)
	}
	return all
}

// files returns the files of the objects below an address.
func files(t testing.TB, s3 *testenv.S3Server, address string) (all []string) {
	t.Helper()
	place, _, _ := strings.Cut(strings.TrimPrefix(address, "s3://"), "?")
	err := filepath.WalkDir(filepath.Join(s3.Folder(), filepath.FromSlash(place)), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && e.Name() != markKey {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Contents are moved to the bucket, from where each is read as before: alone, with others,
// from any place in it, by another process, and after the store was closed.
func TestBucket(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	path := newPlace(t)
	s := openStore(t, path, inBucket(address))
	all := mixed(1)
	put(t, s, all...)
	want := Stats{Count: int64(len(all))}
	for _, c := range all {
		want.Bytes += int64(len(c))
	}
	if did := tidy(t, s, 0); did != (Tidied{}) {
		t.Errorf("the first time there is nothing to remove: %+v", did)
	}
	if n := bytesHere(t, s); n != 0 {
		t.Errorf("%d bytes are still in the database", n)
	}
	check := func(s *Store) {
		t.Helper()
		mustStats(t, s, want)
		mustVerify(t, s, want)
		var sums []Sum
		for _, c := range all {
			mustHold(t, s, c)
			sums = append(sums, sumOf(c))
		}
		small, err := s.Small(t.Context(), sums)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if got, found := small[sumOf(c)]; found != (len(c) <= chunkSize) || found && !bytes.Equal(got, c) {
				t.Fatalf("%d bytes: small %v, %d bytes", len(c), found, len(got))
			}
		}
		large := all[5]
		b, err := s.Open(t.Context(), sumOf(large))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, at := range []int64{900_000, 5, chunkSize - 3, chunkSize, 0, int64(len(large)) - 2} {
			if _, err := b.Seek(at, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, min(2*chunkSize, int64(len(large))-at))
			if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, large[at:at+int64(len(got))]) {
				t.Fatalf("at %d: %v", at, err)
			}
		}
	}
	check(s)
	put(t, s, all...) // known: nothing is stored again
	mustStats(t, s, want)
	if n := bytesHere(t, s); n != 0 {
		t.Errorf("%d bytes were stored again", n)
	}
	check(openStore(t, path, Options{ReadOnly: true}))
	closed(t, s)
	check(openStore(t, path, Options{Idle: true})) // the store knows its bucket

	// Whoever has the bucket alone has all contents under their names.
	found := map[string]bool{}
	for _, file := range files(t, s3, address) {
		if sum, _, isLarge := strings.Cut(filepath.Base(file), "-"); isLarge {
			body, err := os.ReadFile(file)
			if err != nil || sumOf(body).String() != sum {
				t.Errorf("%s: %v", file, err)
			}
			found[sum] = true
			continue
		}
		z, err := zip.OpenReader(file)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, e := range z.File {
			r, err := e.Open()
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r)
			if err != nil || sumOf(body).String() != e.Name {
				t.Errorf("%s, %s: %v", file, e.Name, err)
			}
			found[e.Name] = true
		}
		closed(t, z)
	}
	if len(found) != len(all)-1 {
		t.Errorf("%d contents are in the bucket, want all %d but the empty one", len(found), len(all))
	}
}

// The packer moves what fills a pack by itself, and the newest stay in the database too.
func TestPacker(t *testing.T) {
	s3, address := newBucket(t)
	var failed []error
	s := openStore(t, newPlace(t), Options{Bucket: address, Keep: 3 << 20, packBytes: 1 << 20, Report: func(err error) { failed = append(failed, err) }})
	var all [][]byte
	var total int64
	for n := range 30 {
		var some [][]byte
		for i := range 20 {
			some = append(some, noise(uint64(n*20+i), 10_000))
			total += 10_000
		}
		all = append(all, some...)
		put(t, s, some...)
	}
	s.packs.note(1 << 20)
	for late := time.Now().Add(time.Minute); bytesHere(t, s) > 4<<20; <-time.After(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d bytes are in the database after a minute; reported: %v", bytesHere(t, s), failed)
		}
	}
	if n := bytesHere(t, s); n < 3<<20-1<<20 {
		t.Errorf("%d bytes are kept in the database, want about 3 MiB", n)
	}
	mustHold(t, s, all...)
	closed(t, s)
	if n := int64(len(files(t, s3, address))); n < total>>20-2 || n > total>>20 {
		t.Errorf("%d bytes are in %d packs", total, n)
	}
	if len(failed) > 0 {
		t.Errorf("reported: %v", failed)
	}
}

// Any history of a store with a bucket has the same contents as the same history of one
// without; what nothing needs is removed, and nothing else.
func TestBucketHistories(t *testing.T) {
	testenv.Heavy(t)
	if server == nil {
		testenv.Checks(t, 8)
	}
	rapid.Check(t, func(rt *rapid.T) {
		_, address := newBucket(t)
		path := newPlace(t)
		o := inBucket(address)
		o.packBytes, o.Spool = 30_000, t.TempDir()
		o.Keep = []int64{-1, 40_000, 1 << 30}[rapid.IntRange(0, 2).Draw(rt, "keep")]
		open := func() *Store {
			s, err := Open(t.Context(), path, o)
			if err != nil {
				rt.Fatal(err)
			}
			return s
		}
		s := open()
		defer func() { _ = s.Close() }() // it is closed below, unless a check has failed
		model := map[Sum][]byte{}
		next := uint64(0)
		fresh := func() []byte {
			next++
			size := rapid.SampledFrom([]int{0, 1, 700, 3000, 9000, chunkSize + 1}).Draw(rt, "size")
			return noise(next<<20, size)
		}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			some := slices.SortedFunc(maps.Keys(model), func(a, b Sum) int { return bytes.Compare(a[:], b[:]) })
			switch what := rapid.SampledFrom([]string{"put", "put", "put", "remove", "replace", "pack", "tidy", "reopen"}).Draw(rt, "step"); what {
			case "put":
				var batch [][]byte
				for range rapid.IntRange(1, 12).Draw(rt, "batch") {
					c := fresh()
					if len(some) > 0 && rapid.Bool().Draw(rt, "known") {
						c = model[rapid.SampledFrom(some).Draw(rt, "which")]
					}
					batch = append(batch, c)
					model[sumOf(c)] = c
				}
				must(rt, s.Put(t.Context(), drafts(batch...)...))
			case "remove":
				for _, sum := range some {
					if rapid.IntRange(0, 2).Draw(rt, "remove") == 0 {
						must(rt, s.Remove(t.Context(), sum))
						delete(model, sum)
					}
				}
			case "replace":
				if len(some) > 0 {
					must(rt, s.Replace(t.Context(), NewDraft(model[rapid.SampledFrom(some).Draw(rt, "which")])))
				}
			case "pack":
				all := rapid.Bool().Draw(rt, "all")
				must(rt, s.packs.work(t.Context(), func(ctx context.Context) error { return s.packs.move(ctx, all) }))
			case "tidy":
				if _, err := s.Tidy(t.Context(), TidyOptions{}); err != nil {
					rt.Fatal(err)
				}
			case "reopen":
				closed(rt, s)
				s = open()
			}
			mustBe(rt, s, model)
		}
		mustBeTidy(rt, s)
		mustBe(rt, s, model)
		if o.Keep < 0 && bytesHere(t, s) > 0 {
			rt.Fatal("a content was never moved")
		}
		must(rt, s.Unpack(t.Context()))
		mustBe(rt, s, model)
		closed(rt, s)
		o = Options{Spool: o.Spool}
		s = open()
		mustBe(rt, s, model)
		if s.Bucket() != "" {
			rt.Fatalf("unpacked, and still in %s", s.Bucket())
		}
		closed(rt, s)
	})
}

// failer is a test or one of rapid's.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// closed closes a store, or what was read of it.
func closed(t failer, c io.Closer) {
	t.Helper()
	must(t, c.Close())
}

// must ends the test with an error.
func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustBe fails unless the store has just the contents of a model, in order.
func mustBe(t failer, s *Store, model map[Sum][]byte) {
	t.Helper()
	ctx := context.Background()
	want := Stats{Count: int64(len(model))}
	for sum, c := range model {
		want.Bytes += int64(len(c))
		if got, err := read(s, sum); err != nil || !bytes.Equal(got, c) {
			t.Fatalf("content of %d bytes: %d bytes, %v", len(c), len(got), err)
		}
	}
	small, err := s.Small(ctx, slices.Collect(maps.Keys(model)))
	if err != nil {
		t.Fatal(err)
	}
	for sum, c := range model {
		if got, found := small[sum]; found != (len(c) <= chunkSize) || found && !bytes.Equal(got, c) {
			t.Fatalf("content of %d bytes among others: %v, %d bytes", len(c), found, len(got))
		}
	}
	for _, whole := range []bool{false, true} {
		seen, err := s.Verify(ctx, whole, func(sum Sum, err error) {
			if err != nil || model[sum] == nil && sum != sumOf(nil) {
				t.Fatalf("verify: %s: %v", sum, err)
			}
		})
		if err != nil || seen != want {
			t.Fatalf("verify: %+v, %v, want %+v", seen, err, want)
		}
	}
	if st, err := s.Stats(ctx); err != nil || st != want {
		t.Fatalf("%+v, %v, want %+v", st, err, want)
	}
}

// mustBeTidy tidies a store up, and fails unless just the packs are left that it needs, with
// at least half of each needed.
func mustBeTidy(t failer, s *Store) {
	t.Helper()
	ctx := context.Background()
	for range 2 { // what is written anew leaves its pack unneeded
		if _, err := s.Tidy(ctx, TidyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var rows, poor, waiting, contents, live int64
	for text, n := range map[string]*int64{
		"SELECT count(*) FROM pack": &rows,
		"SELECT count(*) FROM pack WHERE live * 2 < held OR live = 0 AND held > 0":                &poor,
		"SELECT count(*) FROM content WHERE length > 0 AND id NOT IN (SELECT content FROM place)": &waiting,
		"SELECT coalesce(sum(c.length), 0) FROM content c JOIN place l ON l.content = c.id":       &contents,
		"SELECT coalesce(sum(live), 0) FROM pack":                                                 &live,
	} {
		must(t, s.query.QueryRowContext(ctx, text).Scan(n))
	}
	objects := int64(-1) // without the mark
	for _, err := range s.packs.bucket.Objects(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		objects++
	}
	if poor > 0 || waiting > 0 || rows != objects || contents != live {
		t.Fatalf("%d packs, %d of them mostly unneeded, %d objects; %d contents wait; %d bytes in packs, which count %d", rows, poor, objects, waiting, contents, live)
	}
}

// While the server is away contents are stored, and those that are kept here are read; others
// are unavailable, not missing. Afterwards all goes on.
func TestBucketAway(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.S3(t)
	s3.Setenv(t)
	s := openStore(t, newPlace(t), inBucket(s3.Address(s3.NewBucket(t))))
	old, large, fresh := noise(1, 5000), noise(2, 60*chunkSize), noise(3, 6000)
	put(t, s, old, large)
	tidy(t, s, 0)
	b, err := s.Open(t.Context(), sumOf(large))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s3.Stop(t)
	s.packs.answered.Store(false) // as of a store that was just opened
	put(t, s, fresh)
	mustHold(t, s, fresh)
	for name, err := range map[string]error{
		"open":   func() error { _, err := s.Open(t.Context(), sumOf(old)); return err }(),
		"small":  func() error { _, err := s.Small(t.Context(), []Sum{sumOf(fresh), sumOf(old)}); return err }(),
		"check":  s.Check(t.Context(), sumOf(old)),
		"read":   func() error { _, err := io.ReadAll(b); return err }(),
		"tidy":   func() error { _, err := s.Tidy(t.Context(), TidyOptions{}); return err }(),
		"verify": func() error { _, err := s.Verify(t.Context(), false, func(Sum, error) {}); return err }(),
		"unpack": s.Unpack(t.Context()),
	} {
		if !errors.Is(err, event.ErrUnavailable) || errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, without the server: %v", name, err)
		}
	}
	s3.Start(t)
	s.packs.away.Store(0) // two seconds later
	for _, c := range [][]byte{old, large, fresh} {
		mustHold(t, s, c)
	}
	mustBeTidy(t, s)
	mustVerify(t, s, Stats{Count: 3, Bytes: int64(len(old) + len(large) + len(fresh))})
}

// A server that was away while the clock was ahead, as of a machine that starts without a network,
// is asked again once the clock is right.
func TestAwayOfTomorrow(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	c := noise(1, 5000)
	put(t, s, c)
	tidy(t, s, 0)
	s.packs.away.Store(time.Now().Add(2*time.Hour + awayFor).UnixNano()) // with a clock that was two hours ahead
	mustHold(t, s, c)
}

// A long job that has begun waits while the server is away, and goes on where it was. It does not
// wait when somebody has to act.
func TestJobsWait(t *testing.T) {
	testenv.Heavy(t)
	s3, _ := newBucket(t)
	var reads, status, away atomic.Int64 // requests for objects, and of these so many are answered thus, from the second on
	endpoint := s3.Proxy(t, func(w http.ResponseWriter, r *http.Request) bool {
		n := int64(0)
		if r.Method == http.MethodGet && !r.URL.Query().Has("list-type") {
			n = reads.Add(1)
		}
		spoilt := n > 1 && n <= 1+away.Load()
		if spoilt {
			w.WriteHeader(int(status.Load()))
		}
		return spoilt
	})
	all := append(sameSize(60), noise(99, 60*chunkSize))
	for name, job := range map[string]func(s *Store) error{
		"read": func(s *Store) error { // as a dump does
			for _, c := range all {
				b, err := s.OpenPatiently(t.Context(), sumOf(c))
				if err != nil {
					return err
				}
				body, err := io.ReadAll(b)
				if err := errors.Join(err, b.Close()); err != nil {
					return err
				}
				if !bytes.Equal(body, c) {
					t.Errorf("%d bytes of a content are others", len(c))
				}
			}
			return nil
		},
		"read a large one": func(s *Store) error {
			b, err := s.OpenPatiently(t.Context(), sumOf(all[60]))
			if err != nil {
				return err
			}
			defer b.Close()
			body, err := io.ReadAll(b)
			if err == nil && !bytes.Equal(body, all[60]) {
				t.Errorf("%d bytes of a content are others", len(body))
			}
			return err
		},
		"verify": func(s *Store) error {
			seen, err := s.Verify(t.Context(), true, func(sum Sum, err error) {
				if err != nil {
					t.Errorf("%s: %v", sum, err)
				}
			})
			if err == nil && seen.Count != int64(len(all)) {
				t.Errorf("%d contents were checked", seen.Count)
			}
			return err
		},
		"unpack": func(s *Store) error { return s.Unpack(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			away.Store(0)
			o := inBucket("s3://" + s3.NewBucket(t) + "?endpoint=" + endpoint)
			o.packBytes, o.awayFor = 30_000, time.Millisecond
			s := openStore(t, newPlace(t), o)
			put(t, s, all...)
			tidy(t, s, 0)
			reads.Store(0)
			status.Store(http.StatusForbidden)
			away.Store(1 << 30)
			if err := job(s); !errors.Is(err, bucket.ErrRefused) {
				t.Errorf("access is refused: %v", err)
			}
			s.packs.recent.packs = nil
			reads.Store(0)
			status.Store(http.StatusServiceUnavailable)
			away.Store(7)
			if err := job(s); err != nil {
				t.Error(err)
			}
			if n := reads.Load(); n <= 8 {
				t.Errorf("it has asked %d times: the server was never away", n)
			}
		})
	}
}

// An object that has gone, is too short, or has other bytes makes the contents damaged that
// are in it, and no others; each can be stored again.
func TestDamagedObjects(t *testing.T) {
	testenv.Heavy(t)
	s3, _ := newBucket(t)
	for name, damage := range map[string]func(path string) error{
		"gone": os.Remove,
		"short": func(path string) error {
			st, err := os.Stat(path)
			return errors.Join(err, os.Truncate(path, st.Size()/3))
		},
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"other": func(path string) error {
			body, err := os.ReadFile(path)
			for i := range body {
				body[i] ^= 0x20
			}
			return errors.Join(err, os.WriteFile(path, body, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := s3.Address(s3.NewBucket(t))
			s := openStore(t, newPlace(t), inBucket(address))
			var sound [][]byte
			lost := append(sameSize(20), noise(99, 2*chunkSize+5))
			put(t, s, lost...)
			tidy(t, s, 0)
			for _, path := range files(t, s3, address) {
				must(t, damage(path))
			}
			for i := range 20 {
				sound = append(sound, noise(uint64(1000+i), 3000))
			}
			put(t, s, sound...)
			tidy(t, s, 0)
			s.packs.recent.packs = nil
			mustHold(t, s, sound...)
			for range 2 { // first one by one, then of whole packs
				for _, c := range lost {
					switch got, err := read(s, sumOf(c)); {
					case err == nil && name == "short" && bytes.Equal(got, c): // it is in the part that is left
					case !errors.Is(err, ErrDamaged) || !bytes.HasPrefix(c, got):
						t.Fatalf("%d bytes of a damaged content, %v", len(got), err)
					}
				}
			}
			if _, err := s.Small(t.Context(), []Sum{sumOf(sound[0]), sumOf(lost[0])}); !errors.Is(err, ErrDamaged) && name != "short" {
				t.Errorf("among others: %v", err)
			}
			for _, whole := range []bool{false, true} {
				bad := 0
				seen, err := s.Verify(t.Context(), whole, func(sum Sum, err error) {
					if err == nil {
						return
					}
					if name == "other" && !strings.Contains(err.Error(), address) {
						t.Errorf("verify does not name the object: %v", err)
					}
					if bad++; !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), sum.String()) || !slices.ContainsFunc(lost, func(c []byte) bool { return sumOf(c) == sum }) {
						t.Errorf("verify: %s: %v", sum, err)
					}
				})
				if want := len(lost); err != nil || seen.Count != int64(len(lost)+len(sound)) || bad != want && (whole || name != "other") {
					t.Errorf("verify, whole %v: %d are bad of %d, %v", whole, bad, seen.Count, err)
				}
			}
			if err := s.Unpack(t.Context()); !errors.Is(err, ErrDamaged) {
				t.Errorf("unpack: %v", err)
			}
			must(t, s.Replace(t.Context(), drafts(lost...)...))
			tidy(t, s, 0)
			mustHold(t, s, lost...)
			mustVerify(t, s, Stats{Count: int64(len(lost) + len(sound)), Bytes: 40*3000 + 2*chunkSize + 5})
		})
	}
}

// A bucket is of one store. A store finds its own again, also under another address, and takes
// none of another or one that lacks its packs.
func TestBucketOfAnother(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	folder := t.TempDir()
	first := filepath.Join(folder, "first.db")
	s := openStore(t, first, inBucket(address))
	put(t, s, []byte("mine"))
	tidy(t, s, 0)
	closed(t, s)
	refused := func(what, path, address string) {
		t.Helper()
		s, err := Open(t.Context(), path, inBucket(address))
		if !errors.Is(err, ErrBucket) {
			t.Errorf("%s: %v", what, errors.Join(err, func() error {
				if s == nil {
					return nil
				}
				return s.Close()
			}()))
		}
	}
	refused("the bucket of another store", filepath.Join(folder, "second.db"), address)
	refused("a bucket without the packs", first, s3.Address(s3.NewBucket(t)))
	refused("no bucket", first, s3.Address("none"))

	strange := s3.NewBucket(t)
	for _, body := range []string{"", "store: ", markText} {
		must(t, os.WriteFile(filepath.Join(s3.Folder(), strange, markKey), []byte(body), 0o644))
		refused("a mark of something else", filepath.Join(folder, "third.db"), s3.Address(strange))
	}

	moved := s3.NewBucket(t)
	for _, from := range append(files(t, s3, address), filepath.Join(filepath.Dir(filepath.Dir(files(t, s3, address)[0])), markKey)) {
		body, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(filepath.ToSlash(from), "/library/contents/")
		to := filepath.Join(s3.Folder(), moved, filepath.FromSlash(rest))
		must(t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, body, 0o644)))
	}
	lacks := filepath.Join(s3.Folder(), moved, packKeys)
	must(t, os.Rename(lacks, lacks+".not"))
	refused("a place with the mark alone", first, s3.Address(moved))
	must(t, os.Rename(lacks+".not", lacks))
	s = openStore(t, first, inBucket(s3.Address(moved)))
	for _, path := range files(t, s3, address) {
		must(t, os.Remove(path))
	}
	mustHold(t, s, []byte("mine"))
	closed(t, s)
	mustHold(t, openStore(t, first, Options{Idle: true}), []byte("mine"))
}

// What nothing needs stays for a time; what the store does not know stays until somebody says
// otherwise.
func TestKeep(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	path := filepath.Join(t.TempDir(), "content.db")
	s := openStore(t, path, inBucket(address))
	gone, stays := noise(1, 9000), noise(2, 8000)
	put(t, s, gone)
	tidy(t, s, 0)
	closed(t, s)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path, inBucket(address))
	put(t, s, stays)
	tidy(t, s, 0)
	must(t, s.Remove(t.Context(), sumOf(gone)))
	if did := tidy(t, s, time.Hour); did.Waiting != 1 || did.Removed != 0 || len(files(t, s3, address)) != 2 {
		t.Errorf("within the hour: %+v", did)
	}
	if did := tidy(t, s, 0); did.Waiting != 0 || did.Removed != 1 || did.RemovedBytes < 9000 || did.Unknown != 0 || len(files(t, s3, address)) != 1 {
		t.Errorf("after it: %+v", did)
	}
	closed(t, s)

	// A store that was put back from a backup knows nothing of the newer pack.
	old := filepath.Join(t.TempDir(), "content.db")
	must(t, os.WriteFile(old, before, 0o600))
	s = openStore(t, old, inBucket(address))
	if did := tidy(t, s, 0); did.Unknown != 1 || did.UnknownBytes < 8000 || did.Removed != 0 || len(files(t, s3, address)) != 1 {
		t.Errorf("with a pack that it does not know: %+v", did)
	}
	if did, err := s.Tidy(t.Context(), TidyOptions{Unknown: true}); err != nil || did.Contents != 1 || did.Removed != 0 || len(files(t, s3, address)) != 1 {
		t.Errorf("it has what the store has lost: %+v, %v", did, err)
	}
	mustHold(t, s, stays)

	// One of which all is known is removed, when it is old.
	known := files(t, s3, address)[0]
	body, err := os.ReadFile(known)
	if err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(filepath.Dir(known), strings.Repeat("Z", 26)+".zip")
	must(t, os.WriteFile(again, body, 0o600))
	if did, err := s.Tidy(t.Context(), TidyOptions{Keep: time.Hour, Unknown: true}); err != nil || did.Unknown != 1 || did.Removed != 0 {
		t.Errorf("a young one: %+v, %v", did, err)
	}
	if did, err := s.Tidy(t.Context(), TidyOptions{Unknown: true}); err != nil || did.Unknown != 0 || did.Removed != 1 || len(files(t, s3, address)) != 1 {
		t.Errorf("an old one: %+v, %v", did, err)
	}
	mustHold(t, s, stays)
}

// What nothing has needed since a time that is still to come, since the clock was ahead, is
// removed as all else is.
func TestUnneededOfTomorrow(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	gone := noise(1, 9000)
	put(t, s, gone)
	tidy(t, s, 0)
	must(t, s.Remove(t.Context(), sumOf(gone)))
	tidy(t, s, time.Hour)
	must(t, script(s, "UPDATE pack SET unneeded = unneeded + 86400"))
	if did := tidy(t, s, 0); did.Waiting != 0 || did.Removed != 1 || len(files(t, s3, address)) != 0 {
		t.Errorf("%+v", did)
	}
}

// While the clock is not trusted, as one that has jumped ahead or stands in 1970, nothing is removed
// because its time has come: a backup that is put back needs it for as long as was said.
func TestKeepByTrustedClock(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	const month = 30 * 24 * time.Hour
	now, wrong := time.Now(), error(nil)
	o := inBucket(address)
	o.Now = func() (time.Time, error) { return now, wrong }
	s := openStore(t, newPlace(t), o)
	gone, stays := noise(1, 9000), noise(2, 8000)
	put(t, s, gone)
	tidy(t, s, 0)
	put(t, s, stays)
	tidy(t, s, 0)
	must(t, s.Remove(t.Context(), sumOf(gone)))
	tidy(t, s, month)
	for _, file := range files(t, s3, address) { // one that the store does not know
		body, err := os.ReadFile(file)
		must(t, err)
		if bytes.Contains(body, []byte(sumOf(stays).String())) {
			must(t, os.WriteFile(filepath.Join(filepath.Dir(file), strings.Repeat("Z", 26)+".zip"), body, 0o600))
			break
		}
	}
	right := now
	for _, jump := range []time.Duration{40 * 24 * time.Hour, -50 * 365 * 24 * time.Hour} {
		now, wrong = right.Add(jump), event.ErrClock
		if did, err := s.Tidy(t.Context(), TidyOptions{Keep: month, Unknown: true}); err != nil || did.Waiting != 1 || did.Unknown != 1 || did.Removed != 0 {
			t.Errorf("with a clock that is %v wrong: %+v, %v", jump, did, err)
		}
	}
	now, wrong = right, nil
	if did := tidy(t, s, month); did.Waiting != 1 || did.Removed != 0 {
		t.Errorf("with a clock that is right again: %+v", did)
	}
	now, wrong = right.Add(2*month), nil
	if did := tidy(t, s, month); did.Waiting != 0 || did.Removed != 1 {
		t.Errorf("after the time has passed: %+v", did)
	}
	now, wrong = right, event.ErrClock
	must(t, s.Remove(t.Context(), sumOf(stays)))
	if did := tidy(t, s, 0); did.Waiting != 0 || did.Removed != 1 {
		t.Errorf("what is to be removed at once: %+v", did)
	}
}

// A store that was put back from a backup finds again what was written anew since, and nothing
// that it needs is removed.
func TestRestored(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	path := filepath.Join(t.TempDir(), "content.db")
	s := openStore(t, path, inBucket(address))
	stays, large, gone := noise(1, 5000), noise(2, 2*chunkSize), noise(3, 9000)
	put(t, s, stays, large, gone)
	tidy(t, s, 0)
	closed(t, s)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path, inBucket(address))
	must(t, s.Remove(t.Context(), sumOf(gone)))
	must(t, s.Replace(t.Context(), NewDraft(large)))
	mustBeTidy(t, s) // writes the others anew, and removes the packs that the backup names
	closed(t, s)
	must(t, os.WriteFile(path, before, 0o600))
	s = openStore(t, path, inBucket(address))
	if _, err := read(s, sumOf(stays)); !errors.Is(err, ErrDamaged) {
		t.Fatalf("its pack has gone: %v", err)
	}
	if did, err := s.Tidy(t.Context(), TidyOptions{Unknown: true}); err != nil || did.Contents != 2 {
		t.Fatalf("%+v, %v", did, err)
	}
	mustHold(t, s, stays)
	mustHold(t, s, large)
	if _, err := read(s, sumOf(gone)); !errors.Is(err, ErrDamaged) { // it is nowhere any more
		t.Errorf("%v", err)
	}
}

// A pack that has gone while the database still has its contents is written anew: by tidying
// up, and at the latest before they are dropped here.
func TestGoneWhileKept(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	o := inBucket(address)
	o.Keep = 1 << 30
	path := newPlace(t)
	s := openStore(t, path, o)
	small, large := noise(1, 3000), noise(2, 3*chunkSize)
	for _, again := range []func(){
		func() { tidy(t, s, 0) },
		func() { // the cache is smaller
			closed(t, s)
			o.Keep = -1
			s = openStore(t, path, o)
			must(t, s.packs.work(t.Context(), s.packs.evict))
		},
	} {
		put(t, s, small, large)
		must(t, s.packs.work(t.Context(), func(ctx context.Context) error { return s.packs.pack(ctx, true) }))
		for _, path := range files(t, s3, address) {
			must(t, os.Remove(path))
		}
		again()
		mustHold(t, s, small)
		mustHold(t, s, large)
		tidy(t, s, 0)
		mustVerify(t, s, Stats{Count: 2, Bytes: int64(len(small) + len(large))})
	}
}

// Before an object is removed that the store does not know it is seen that its contents can be
// read elsewhere: in a pack of the right length that has other bytes they cannot.
func TestUnknownOfRotten(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	all := sameSize(30)
	put(t, s, all...)
	tidy(t, s, 0)
	known := files(t, s3, address)[0]
	body, err := os.ReadFile(known)
	if err != nil {
		t.Fatal(err)
	}
	rotten := bytes.Clone(body)
	for i := range 20_000 {
		rotten[i] ^= 1
	}
	again := filepath.Join(filepath.Dir(known), strings.Repeat("Z", 26)+".zip")
	must(t, errors.Join(os.WriteFile(again, body, 0o600), os.WriteFile(known, rotten, 0o600)))
	if did, err := s.Tidy(t.Context(), TidyOptions{Unknown: true}); err != nil || did.Adopted != 1 || did.Contents < 5 || did.Contents > 9 || did.Unknown != 0 {
		t.Errorf("%+v, %v", did, err)
	}
	mustHold(t, s, all...)
	mustVerify(t, s, Stats{Count: 30, Bytes: 30 * 3000})
}

// Damaged contents that cannot be moved keep the packer from nothing, and do not keep it busy.
func TestManyDamaged(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	o := inBucket(address)
	o.largeAtOnce = 4
	s := openStore(t, newPlace(t), o)
	put(t, s, noise(1, 3000))
	var all [][]byte
	for i := range 6 {
		all = append(all, noise(uint64(10+i), chunkSize+1))
	}
	for some := range slices.Chunk(all, 100) {
		put(t, s, some...)
	}
	must(t, zero(s, "chunk WHERE n = 1"))
	last := noise(2, chunkSize+1)
	put(t, s, last)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, whole := range []bool{false, true} {
		must(t, s.packs.work(ctx, func(ctx context.Context) error { return s.packs.move(ctx, whole) }))
	}
	mustHold(t, s, last)
	var left int64
	if err := s.query.QueryRowContext(ctx, "SELECT count(*) FROM content WHERE id NOT IN (SELECT content FROM place)").Scan(&left); err != nil || left != 6 {
		t.Errorf("%d contents are not moved, want the damaged ones; %v", left, err)
	}
}

// zero damages the bytes of rows.
func zero(s *Store, rows string) error {
	table, which, _ := strings.Cut(rows, " ")
	zeros := "zeroblob(length(bytes))"
	if s.OnServer() {
		zeros = "decode(repeat('00', length(bytes)), 'hex')"
	}
	return script(s, "UPDATE "+table+" SET bytes = "+zeros+" "+which)
}

// What is moved makes room in the database: for contents of any size its file does not grow
// with all that was ever stored.
func TestBucketMakesRoom(t *testing.T) {
	testenv.Heavy(t)
	for _, size := range []int{300, 2000, 6000, 20_000, 2 * chunkSize} {
		_, address := newBucket(t)
		s := openStore(t, filepath.Join(t.TempDir(), "content.db"), inBucket(address))
		for round := range 4 {
			var all [][]byte
			for i := range 1 << 20 / size {
				all = append(all, noise(uint64(round*100_000+i), size))
			}
			put(t, s, all...)
			tidy(t, s, 0)
		}
		var used, contents int64
		must(t, s.query.QueryRowContext(t.Context(), "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&used))
		must(t, s.query.QueryRowContext(t.Context(), "SELECT count FROM total").Scan(&contents))
		if most := 400*contents + 1<<18; used > most {
			t.Errorf("%d contents of %d bytes, all moved, take %d bytes, want %d at most", contents, size, used, most)
		}
	}
}

// Many large contents are all moved, and packs of the smallest are bounded too.
func TestBucketOfMany(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	o := inBucket(address)
	o.packBytes, o.largeAtOnce = 300_000, 4
	s := openStore(t, newPlace(t), o)
	var all [][]byte
	for i := range 10 {
		all = append(all, noise(uint64(i), chunkSize+1))
	}
	for i := range 4000 {
		all = append(all, noise(uint64(10_000+i), 50))
	}
	for some := range slices.Chunk(all, 1000) {
		put(t, s, some...)
	}
	tidy(t, s, 0)
	if n := bytesHere(t, s); n > 0 {
		t.Errorf("%d bytes were not moved", n)
	}
	for _, path := range files(t, s3, address) {
		if st, err := os.Stat(path); err != nil || st.Size() > o.packBytes*5/2 {
			t.Errorf("%s: %v, %d bytes", path, err, st.Size())
		}
	}
	mustBeTidy(t, s)
}

// An object that was damaged, and was put back, is read again, although it was in memory.
func TestPutBack(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	all := sameSize(20)
	put(t, s, all...)
	tidy(t, s, 0)
	path := files(t, s3, address)[0]
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, bytes.Repeat([]byte{1}, len(sound)), 0o600))
	for _, c := range all {
		if _, err := read(s, sumOf(c)); !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
	}
	must(t, os.WriteFile(path, sound, 0o600))
	mustHold(t, s, all...)
}

// Bytes in the database that are damaged are read from their pack.
func TestDamagedCache(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	o := inBucket(address)
	o.Keep = 1 << 30
	s := openStore(t, newPlace(t), o)
	small, large := noise(1, 3000), noise(2, 3*chunkSize)
	put(t, s, small, large)
	tidy(t, s, 0)
	for _, rows := range []string{"content WHERE bytes IS NOT NULL", "chunk WHERE n = 1"} {
		must(t, zero(s, rows))
	}
	mustHold(t, s, small)
	mustHold(t, s, large)
	got, err := s.Small(t.Context(), []Sum{sumOf(small)})
	if err != nil || !bytes.Equal(got[sumOf(small)], small) {
		t.Errorf("among others: %v", err)
	}
	mustVerify(t, s, Stats{Count: 2, Bytes: int64(len(small) + len(large))})
}

// What nobody can read is not sound, although the bucket has all of its bytes: the database has
// lost how to check them.
func TestDamagedSeals(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	all := [][]byte{noise(1, 3*chunkSize), noise(2, 3*chunkSize), noise(3, 3*chunkSize)}
	for _, c := range all {
		put(t, s, c)
	}
	tidy(t, s, 0)
	for _, text := range []string{"UPDATE chunk SET seal = sum FROM content AS other WHERE chunk.n = 1 AND chunk.content = 1 AND other.id = 2", "DELETE FROM chunk WHERE n = 2 AND content = 2"} {
		must(t, script(s, text))
	}
	for _, c := range all[:2] {
		if _, err := read(s, sumOf(c)); !errors.Is(err, ErrDamaged) {
			t.Fatalf("read: %v", err)
		}
	}
	mustHold(t, s, all[2])
	var bad []Sum
	seen, err := s.Verify(t.Context(), true, func(sum Sum, err error) {
		if err != nil {
			bad = append(bad, sum)
		}
	})
	if err != nil || seen.Count != 3 || !slices.Equal(bad, []Sum{sumOf(all[0]), sumOf(all[1])}) {
		t.Errorf("verify: %d are bad of %d, %v", len(bad), seen.Count, err)
	}
}

// A pack of which too little counts as needed is found: it would be removed, with all that it has.
func TestDamagedCounts(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	s := openStore(t, newPlace(t), inBucket(address))
	put(t, s, sameSize(20)...)
	put(t, s, noise(1, 3*chunkSize))
	tidy(t, s, 0)
	want := Stats{Count: 21, Bytes: 20*3000 + 3*chunkSize}
	for _, c := range []struct{ damage, mend, found string }{
		{"UPDATE pack SET live = 0 WHERE key LIKE 'packs/%'", "UPDATE pack SET live = held", "0 bytes of contents were counted in packs/"},
		{"UPDATE pack SET live = live - 1 WHERE key LIKE 'large/%'", "UPDATE pack SET live = held", "786431 bytes of contents were counted in large/"},
	} {
		mustVerify(t, s, want)
		must(t, script(s, c.damage))
		if _, err := s.Verify(t.Context(), false, func(Sum, error) {}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.found) {
			t.Errorf("%s: %v, want %q", c.damage, err, c.found)
		}
		must(t, script(s, c.mend))
	}
	mustVerify(t, s, want)
}

// A store that was lost, or put back from an older backup, finds its contents in the bucket
// again. Damaged ones it does not take, nor what others have put there.
func TestAdopt(t *testing.T) {
	testenv.Heavy(t)
	s3, address := newBucket(t)
	path := newPlace(t)
	s := openStore(t, path, inBucket(address))
	first, second := mixed(1), mixed(500)
	put(t, s, first...)
	tidy(t, s, 0)
	closed(t, s)
	stores := map[string][]byte{"lost": nil}
	if server == nil {
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stores["older"] = before
	}
	s = openStore(t, path, inBucket(address))
	put(t, s, second...)
	tidy(t, s, 0)
	want, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a, err := s.Tidy(t.Context(), TidyOptions{Adopt: true}); err != nil || a != (Tidied{}) {
		t.Errorf("nothing is lost: %+v, %v", a, err)
	}
	for _, other := range []string{"packs/note.zip", "packs/" + strings.Repeat("A", 26) + ".zip", "large/" + sumOf([]byte("x")).String() + "-" + strings.Repeat("B", 26), "readme.txt", "other/packs/" + strings.Repeat("A", 26) + ".zip"} {
		body := bytes.Repeat([]byte(other), len(other)%5*100_000)
		must(t, s.packs.bucket.Put(t.Context(), other, bytes.NewReader(body), int64(len(body))))
	}
	closed(t, s)
	for name, body := range stores {
		path := newPlace(t)
		o := inBucket(address)
		if body == nil {
			o.Adopt = true
		} else if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, path, o)
		a, err := s.Tidy(t.Context(), TidyOptions{Adopt: true})
		if err != nil {
			t.Fatal(err)
		}
		if body == nil { // the empty one is in no bucket
			put(t, s, []byte{})
		}
		for _, c := range append(first, second...) {
			mustHold(t, s, c)
		}
		mustVerify(t, s, want)
		mustStats(t, s, want)
		if a.Adopted == 0 || a.Contents == 0 || body == nil && a.ContentsBytes != want.Bytes {
			t.Errorf("%s: %+v", name, a)
		}
		if did := tidy(t, s, 0); did.Unknown != 2 {
			t.Errorf("%s: %+v", name, did)
		}
		closed(t, s)
	}

	// The same with damaged objects: what is whole is found.
	for _, path := range files(t, s3, address) {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > 5000 {
			body[3000] ^= 1
			must(t, os.WriteFile(path, body, 0o600))
		}
	}
	o := inBucket(address)
	o.Adopt = true
	s = openStore(t, newPlace(t), o)
	if a, err := s.Tidy(t.Context(), TidyOptions{Adopt: true}); err != nil || a.Contents == 0 || a.Contents >= want.Count-4 {
		t.Errorf("with damage: %+v, %v, of %+v", a, err, want)
	}
	if _, err := s.Verify(t.Context(), true, func(sum Sum, err error) {
		if err != nil {
			t.Errorf("%s: %v", sum, err)
		}
	}); err != nil {
		t.Error(err)
	}
}

// kill -9 at random while contents are stored and moved: what was acknowledged is there and
// whole, and no object is left that nobody knows of.
func TestKillPacker(t *testing.T) {
	testenv.Heavy(t)
	_, address := newBucket(t)
	t.Setenv(crashBucket, address)
	rounds := 10
	if server != nil {
		rounds = 4
	}
	kill(t, testenv.Rounds(t, rounds, 100*rounds))
}

// BenchmarkPack moves contents of 2 KB to a bucket. Its rival puts the same bytes there, in
// pieces of 16 MiB, and knows nothing of contents.
func BenchmarkPack(b *testing.B) {
	s3, address := newBucket(b)
	o := inBucket(address)
	o.packBytes = 0
	all := make([][]byte, 16_000)
	for i := range all {
		all[i] = noise(uint64(i), 2048)
	}
	open := func(b *testing.B) *Store {
		o := o
		o.Bucket = s3.Address(s3.NewBucket(b))
		return openStore(b, newPlace(b), o)
	}
	b.Run("contents", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			s := open(b)
			put(b, s, all...)
			b.StartTimer()
			tidy(b, s, 0)
		}
		b.ReportMetric(float64(len(all)*b.N)/b.Elapsed().Seconds(), "contents/s")
	})
	b.Run("bytes", func(b *testing.B) {
		s, body := open(b), bytes.Join(all, nil)
		b.ResetTimer()
		for n := range b.N {
			for part := range slices.Chunk(body, packBytes) {
				must(b, s.packs.bucket.Put(b.Context(), fmt.Sprint(n, len(part)), bytes.NewReader(part), int64(len(part))))
			}
		}
		b.ReportMetric(float64(len(all)*b.N)/b.Elapsed().Seconds(), "contents/s")
	})
}

// BenchmarkBucketRead reads contents of 2 KB that are in a bucket: of many packs at random, and
// of one in their order, 32 at once. Its rival is a request for an object of its own.
func BenchmarkBucketRead(b *testing.B) {
	_, address := newBucket(b)
	o := inBucket(address)
	o.packBytes = 0
	s := openStore(b, filepath.Join(b.TempDir(), "content.db"), o)
	var all [][]byte
	for i := range 80_000 {
		all = append(all, noise(uint64(i), 2048))
	}
	for some := range slices.Chunk(all, 1000) {
		put(b, s, some...)
	}
	tidy(b, s, 0)
	sums := make([]Sum, len(all))
	for i := range all {
		sums[i] = sumOf(all[i])
	}
	b.Run("random", func(b *testing.B) {
		r := rand.New(rand.NewPCG(1, 1))
		for b.Loop() {
			s.packs.recent.packs = nil // no pack is read whole
			if _, err := read(s, sums[r.IntN(len(sums))]); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "contents/s")
	})
	b.Run("in order", func(b *testing.B) {
		n := 0
		for b.Loop() {
			at := n * 32 % (len(sums) - 32)
			if got, err := s.Small(b.Context(), sums[at:at+32]); err != nil || len(got) != 32 {
				b.Fatal(len(got), err)
			}
			n++
		}
		b.ReportMetric(float64(32*b.N)/b.Elapsed().Seconds(), "contents/s")
	})
	b.Run("object", func(b *testing.B) {
		must(b, s.packs.bucket.Put(b.Context(), "rival", bytes.NewReader(all[0]), int64(len(all[0]))))
		for b.Loop() {
			if _, err := s.packs.bucket.Get(b.Context(), "rival", 0, -1); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "contents/s")
	})
}
