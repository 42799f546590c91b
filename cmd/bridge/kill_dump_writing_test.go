package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKillDumpWriting kills bridge serve with SIGKILL while it makes dumps. What it leaves behind
// is a whole dump or none, and has the bytes of those that nobody has disturbed.
func TestKillDumpWriting(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const records, segment = 1000, 50
	provider := fixtures.New(fixtures.Options{PerArchive: 500})
	for n := range records {
		provider.Create(fixtures.Record{Name: fmt.Sprintf("r-%d", n)})
	}
	source := httptest.NewServer(provider)
	defer source.Close()
	f := newFolder(t, fmt.Sprintf(`
data = "data"
listen = "127.0.0.1:0"
base_url = "http://bridge.example.org"
[[set]]
name = "pool"
dumps = true
segment_events = %d
[[set.source]]
url = "%s"
every = "1h"
`, segment, source.URL+fixtures.Subscription))
	f.run(exitDone, "harvest")
	snapshots := filepath.Join(f.path, "data", "snapshots")

	// whole are the files of all dumps, and how many dumps there are.
	whole := func() (files map[string][32]byte, dumps int) {
		files = map[string][32]byte{}
		err := filepath.WalkDir(snapshots, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || d.IsDir() && !strings.HasPrefix(d.Name(), "."):
				return err
			case d.IsDir():
				return fs.SkipDir // unfinished
			}
			b, err := os.ReadFile(path)
			files[strings.TrimPrefix(path, snapshots)] = sha256.Sum256(b)
			if d.Name() == "snapshot.json" {
				dumps++
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return files, dumps
	}
	const all = records/segment + 1 // packages of segments, and the Resource Dump
	undisturbed := func() (map[string][32]byte, time.Duration) {
		began := time.Now()
		c, _ := f.serve()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for limit := time.After(patience); ; {
			select {
			case <-limit:
				t.Fatalf("not all dumps are made: %s", c.stderr.String())
			case <-tick.C:
			}
			if _, dumps := whole(); dumps >= all {
				break
			}
		}
		took := time.Since(began)
		f.end(c, os.Interrupt)
		files, _ := whole()
		return files, took
	}
	want, took := undisturbed()
	same := func(got map[string][32]byte) {
		for name, sum := range got {
			if want[name] != sum {
				t.Errorf("%s differs from what is made undisturbed", name)
			}
		}
	}
	rounds := testenv.Rounds(t, 8, 200)
	random, between := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0)), 0
	for i := range rounds {
		if i%4 == 0 {
			if err := os.RemoveAll(snapshots); err != nil {
				t.Fatal(err)
			}
		}
		c := f.start("serve")
		<-time.After(time.Duration(random.Int64N(int64(took))))
		c.kill()
		got, dumps := whole()
		if same(got); dumps > 0 && dumps < all {
			between++
		}
	}
	got, _ := undisturbed()
	if same(got); len(got) != len(want) {
		t.Errorf("%d files in the end, want %d", len(got), len(want))
	}
	f.run(exitDone, "verify")
	t.Logf("%d rounds, in %d some of %d dumps were made; undisturbed they take %v", rounds, between, all, took)
}
