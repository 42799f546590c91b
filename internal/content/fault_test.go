package content

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The child process of TestKill finds its store and its first batch here.
const (
	crashStore = "BRIDGE_TEST_CONTENT_STORE"
	crashFirst = "BRIDGE_TEST_CONTENT_FIRST"
	// The bucket of the store, or nothing.
	crashBucket = "BRIDGE_TEST_CONTENT_BUCKET"
	// Its folder for temporary files.
	crashSpool = "BRIDGE_TEST_CONTENT_SPOOL"
)

// crashBatch returns the contents of batch n; every fourth has a large one.
func crashBatch(n int) [][]byte {
	var contents [][]byte
	for i := range 20 {
		contents = append(contents, noise(uint64(n*100+i), 500+i*37))
	}
	if n%4 == 0 {
		contents = append(contents, noise(uint64(n*100+99), 2*chunkSize+n%1000))
	}
	return contents
}

// crashChild stores batches until it is killed, and says "begin n" before and
// "stored n" after each.
func crashChild() int {
	err := func() error {
		ctx := context.Background()
		s, err := Open(ctx, os.Getenv(crashStore), Options{Spool: os.Getenv(crashSpool), Bucket: os.Getenv(crashBucket), Keep: -1, packBytes: 20 << 10})
		if err != nil {
			return err
		}
		first, err := strconv.Atoi(os.Getenv(crashFirst))
		if err != nil {
			return err
		}
		for n := first; ; n++ {
			fmt.Println("begin", n)
			var ds []*Draft
			for _, c := range crashBatch(n) {
				d, err := s.Draft(bytes.NewReader(c), 64<<20)
				if err != nil {
					return err
				}
				ds = append(ds, d)
			}
			if err := s.Put(ctx, ds...); err != nil {
				return err
			}
			fmt.Println("stored", n)
			for _, d := range ds {
				if err := d.Close(); err != nil {
					return err
				}
			}
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// kill -9 at random between and inside Puts: what was acknowledged is there and
// whole, the batch under way is there whole or not at all.
func TestKill(t *testing.T) {
	testenv.Heavy(t)
	kill(t, testenv.Rounds(t, 15, 1000))
}

// kill does that for some rounds. The store has the bucket that the variable crashBucket of
// the environment names, if it names one.
func kill(t *testing.T, rounds int) {
	path := newPlace(t)
	t.Setenv(crashSpool, t.TempDir())
	r := rand.New(rand.NewPCG(7, 7))
	next, halfway := 0, 0
	for range rounds {
		begun, stored := crashRound(t, path, next, 1+r.IntN(8), time.Duration(r.IntN(3000))*time.Microsecond)
		s, err := Open(context.Background(), path, Options{Spool: os.Getenv(crashSpool), Bucket: os.Getenv(crashBucket), Keep: -1, Idle: true})
		if err != nil {
			t.Fatal(err)
		}
		for n := next; n <= stored; n++ {
			for _, c := range crashBatch(n) {
				mustHold(t, s, c)
			}
		}
		if begun > stored {
			halfway++
			mustBeWhole(t, s, begun)
		}
		closed(t, s)
		next = max(begun, next)
	}
	if halfway == 0 {
		t.Error("no round was killed inside a Put: this shows less than it should")
	}
	s := openStore(t, path, Options{Spool: os.Getenv(crashSpool)})
	st, err := s.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	mustVerify(t, s, st)
	mustBeAlone(t, s)
	if os.Getenv(crashBucket) != "" {
		mustBeTidy(t, s)
	}
	t.Logf("%d rounds, %d killed inside a Put, %d contents", rounds, halfway, st.Count)
}

// mustBeWhole fails when a part of batch n is stored.
func mustBeWhole(t *testing.T, s *Store, n int) {
	t.Helper()
	batch := crashBatch(n)
	sums := make([]Sum, len(batch))
	for i, c := range batch {
		sums[i] = sumOf(c)
	}
	missing, err := s.Missing(context.Background(), sums)
	if err != nil {
		t.Fatal(err)
	}
	switch len(missing) {
	case len(batch):
	case 0:
		mustHold(t, s, batch...)
	default:
		t.Fatalf("batch %d: %d of %d contents are missing", n, len(missing), len(batch))
	}
}

// crashRound starts a child with batch first, kills it some time after it has
// written lines lines, and returns the last batches that it said to have begun
// and stored; first-1 for none.
func crashRound(t *testing.T, path string, first, lines int, delay time.Duration) (begun, stored int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashStore+"="+path, crashFirst+"="+strconv.Itoa(first))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must(t, cmd.Start())
	begun, stored = first-1, first-1
	var kill *time.Timer
	in := bufio.NewScanner(out)
	for n := 1; in.Scan(); n++ {
		var word string
		var batch int
		if _, err := fmt.Sscan(in.Text(), &word, &batch); err != nil {
			t.Fatalf("child: %q: %v", in.Text(), err)
		}
		if word == "begin" {
			begun = batch
		} else {
			stored = batch
		}
		if n == lines {
			kill = time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // ended by the signal
	if kill == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the child ended by itself: %v\n%s", cmd.ProcessState, stderr.String())
	}
	kill.Stop()
	return begun, stored
}

// script runs statements on the connection that writes, outside of any transaction.
func script(s *Store, text string) error {
	return s.writer.Use(context.Background(), func(ctx context.Context, tx *database.Tx) error {
		return database.Each(ctx, tx, text, nil, func(*sql.Rows) error { return nil })
	})
}

// Disk full: nothing is acknowledged, reading goes on, and the same call
// succeeds once there is space.
func TestFull(t *testing.T) {
	testenv.Heavy(t)
	ctx := context.Background()
	s := newStore(t)
	kept := [][]byte{noise(1, 2000), noise(2, 1<<20)}
	put(t, s, kept...)
	want := Stats{Count: 2, Bytes: 2000 + 1<<20}

	limit := func(pages int) {
		t.Helper()
		must(t, script(s, fmt.Sprintf(`PRAGMA max_page_count = %d`, pages)))
	}
	var many [][]byte
	for i := range 2000 {
		many = append(many, noise(uint64(1000+i), 2000))
	}
	for name, batch := range map[string][][]byte{
		"many small":         many,
		"one large":          {noise(3, 4<<20)},
		"small before large": {noise(4, 10), noise(5, 4<<20)},
	} {
		limit(1) // SQLite keeps what there is
		for range 3 {
			if err := s.Put(ctx, drafts(batch...)...); !errors.Is(err, ErrFull) {
				t.Fatalf("%s: %v, want ErrFull", name, err)
			}
			mustStats(t, s, want)
			mustHold(t, s, kept...)
			put(t, s, kept...) // known: needs no space
			if has, err := s.Has(ctx, sumOf(batch[0])); err != nil || has {
				t.Fatalf("%s: half a batch: %v, %v", name, has, err)
			}
		}
		limit(1 << 30)
		put(t, s, batch...)
		kept = append(kept, batch...)
		for _, c := range batch {
			want.Count++
			want.Bytes += int64(len(c))
		}
		mustStats(t, s, want)
	}
	mustVerify(t, s, want)
}

// flipped is a copy of a store's file with one byte changed.
func flipped(t *testing.T, file []byte, at int, mask byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "content.db")
	file[at] ^= mask
	defer func() { file[at] ^= mask }()
	must(t, os.WriteFile(path, file, 0o644))
	return path
}

// makeDamageable returns contents of all forms and the bytes of a store's file
// that holds them.
func makeDamageable(t *testing.T) (contents [][]byte, file []byte) {
	t.Helper()
	s := newStore(t)
	for i := range 100 {
		contents = append(contents, noise(uint64(i), 100+i*40))
	}
	contents = append(contents, noise(200, 100_000), noise(201, chunkSize+1), noise(202, 2*chunkSize+100))
	put(t, s, contents...)
	closed(t, s)
	file, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	return contents, file
}

// Flipped bytes: whatever is changed, no content is ever answered with other
// bytes than its own, and Verify finds what cannot be answered.
func TestFlippedBytes(t *testing.T) {
	testenv.Heavy(t)
	contents, file := makeDamageable(t)
	r := rand.New(rand.NewPCG(3, 4))
	refused, found := 0, 0
	pageSize := int(binary.BigEndian.Uint16(file[16:]))
	rounds := testenv.Rounds(t, 80, 800)
	for i := range rounds {
		at := r.IntN(len(file))
		switch i % 3 {
		case 1: // what structures the file is in few pages: aim at the first ones
			at = r.IntN(20 * pageSize)
		case 2: // and at the ends of pages, where rows' first bytes are
			at = r.IntN(len(file)/pageSize)*pageSize + r.IntN(64)
		}
		bad, err := damageSeen(t, flipped(t, file, at, byte(1<<r.IntN(8))), contents)
		if bad {
			refused++
		}
		if err != nil {
			found++
		}
		if bad && err == nil {
			t.Errorf("byte %d: a content is refused, and Verify finds nothing", at)
		}
	}
	t.Logf("of %d flips %d made a content unreadable, %d were found by Open or Verify", rounds, refused, found)
	if refused < rounds*3/10 {
		t.Errorf("only %d of %d flips hit a content", refused, rounds)
	}
}

// damageSeen reads every content, fails when one is answered wrongly, and
// returns whether one was refused and what Open or Verify says.
func damageSeen(t *testing.T, path string, contents [][]byte) (refused bool, found error) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return true, err
	}
	defer s.Close()
	for _, c := range contents {
		got, err := read(s, sumOf(c))
		switch {
		case err != nil:
			refused = true
			if !bytes.HasPrefix(c, got) {
				t.Fatalf("%s: wrong bytes before the error %v", path, err)
			}
		case !bytes.Equal(got, c):
			t.Fatalf("%s: content %s answers with wrong bytes", path, sumOf(c))
		}
	}
	_, err = s.Verify(ctx, true, func(_ Sum, err error) {
		if err != nil {
			found = err
		}
	})
	return refused, errors.Join(found, err)
}

// Contents of every form are guarded: a byte is flipped where they begin. SQLite
// leaves old copies of rows in free space, so all copies are changed.
func TestFlippedContent(t *testing.T) {
	contents, file := makeDamageable(t)
	for _, i := range []int{0, 7, 50, 99, 100, 101, 102} {
		c := contents[i]
		part := c[:40] // stands in the row itself, whatever its length
		if !bytes.Contains(file, part) {
			t.Fatalf("content %d is not in the file", i)
		}
		other := bytes.Clone(part)
		other[5] ^= 1
		path := filepath.Join(t.TempDir(), "content.db")
		must(t, os.WriteFile(path, bytes.ReplaceAll(file, part, other), 0o644))
		s := openStore(t, path, Options{ReadOnly: true})
		if _, err := read(s, sumOf(c)); !errors.Is(err, ErrDamaged) {
			t.Errorf("content %d (%d bytes): %v, want ErrDamaged", i, len(c), err)
		}
		var named []Sum
		if _, err := s.Verify(context.Background(), true, func(sum Sum, err error) {
			if errors.Is(err, ErrDamaged) {
				named = append(named, sum)
			}
		}); err != nil {
			t.Error(err)
		}
		if len(named) != 1 || named[0] != sumOf(c) {
			t.Errorf("Verify names %v, want %s", named, sumOf(c))
		}
		for j, other := range contents {
			if j != i {
				mustHold(t, s, other)
			}
		}
	}
}

// A content that is damaged, or missing, is found and replaced, and nothing else is
// touched.
func TestReplace(t *testing.T) {
	ctx := t.Context()
	contents, file := makeDamageable(t)
	var want Stats
	for _, c := range contents {
		want.Count++
		want.Bytes += int64(len(c))
	}
	for _, i := range []int{7, 101} { // a row, and chunks
		c := contents[i]
		other := bytes.Clone(c[:40])
		other[5] ^= 1
		path := filepath.Join(t.TempDir(), "content.db")
		must(t, os.WriteFile(path, bytes.ReplaceAll(file, c[:40], other), 0o644))
		s := openStore(t, path, Options{})
		if err := s.Check(ctx, sumOf(c)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes, damaged: %v, want ErrDamaged", len(c), err)
		}
		must(t, s.Replace(ctx, NewDraft(c)))
		if err := s.Check(ctx, sumOf(c)); err != nil {
			t.Errorf("%d bytes, replaced: %v", len(c), err)
		}
		mustHold(t, s, c)
		mustVerify(t, s, want)

		missing := noise(9, len(c))
		if err := s.Check(ctx, sumOf(missing)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d bytes, missing: %v, want fs.ErrNotExist", len(c), err)
		}
		must(t, s.Replace(ctx, NewDraft(missing)))
		mustHold(t, s, missing)
		mustVerify(t, s, Stats{Count: want.Count + 1, Bytes: want.Bytes + int64(len(c))})

		r := openStore(t, path, Options{ReadOnly: true})
		if err := r.Replace(ctx, NewDraft(c)); !errors.Is(err, errReadOnly) {
			t.Errorf("replaced without writing: %v", err)
		}
	}
}

// A chunk in another chunk's place is refused although it is whole.
func TestSwappedChunks(t *testing.T) {
	ctx := context.Background()
	s := newStore(t)
	a, b := noise(1, 2*chunkSize+9), noise(2, 2*chunkSize+9)
	put(t, s, a, b)
	for name, change := range map[string]string{
		"two chunks of one content": `UPDATE chunk SET n = CASE n WHEN 0 THEN 9 ELSE 0 END WHERE n < 2 AND content = 1; UPDATE chunk SET n = 1 WHERE n = 9`,
		"of two contents":           `UPDATE chunk SET content = CASE content WHEN 1 THEN -1 ELSE -2 END; UPDATE chunk SET content = 3 + content`,
		"another length":            `UPDATE content SET length = length - 1`,
	} {
		var got []byte
		err := s.writer.Do(ctx, func(ctx context.Context, tx *database.Tx) error {
			for _, text := range strings.Split(change, "; ") {
				if err := tx.Exec(ctx, text); err != nil {
					return err
				}
			}
			// Only this connection sees the change, and it is undone.
			inside := &Store{path: s.path, query: tx}
			blob, err := inside.Open(ctx, sumOf(a))
			if err != nil {
				return err
			}
			got, err = io.ReadAll(blob)
			return err
		})
		if !errors.Is(err, ErrDamaged) || len(got) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		mustHold(t, s, a)
	}
}
