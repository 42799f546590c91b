package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKillSetRemoval kills bridge set rm, and the bridge serve that does it, at random points
// of a removal. Whoever opens the folder next goes on: the set is gone or as it was, verify
// finds nothing, and the other set has each of its events.
func TestKillSetRemoval(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	p := fixtures.New(fixtures.Options{})
	for n := range 1500 {
		p.Create(fixtures.Record{Name: fmt.Sprint("r", n)})
	}
	upstream := httptest.NewServer(p)
	t.Cleanup(upstream.Close)
	const one = "[[set]]\nname = %q\n[[set.source]]\nurl = %q\n"
	feed := upstream.URL + fixtures.Subscription
	fewer := "data = \"data\"\nlisten = \"127.0.0.1:0\"\n" + fmt.Sprintf(one, "stays", feed)
	f := newFolder(t, fewer, "all.toml", fewer+fmt.Sprintf(one, "goes", feed))
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	f.run(exitDone, "harvest")
	before := f.run(exitDone, "log", "--set", "stays", "--json").stdout.String()
	none := regexp.MustCompile(`: 0 findings\n$`)
	early, halfway, done, took := 0, 0, 0, time.Duration(0)
	for range testenv.Rounds(t, 4, 200) {
		f.run(exitDone, "harvest", "--config", "all.toml")
		var serve *child
		if random.IntN(2) == 0 {
			serve, _ = f.serve()
		}
		rm := f.start("set", "rm", "goes", "--yes")
		at := time.Now()
		if took == 0 { // the first shows how long it takes
			<-rm.ended
			took = time.Since(at)
		}
		select {
		case <-rm.ended:
		case <-time.After(time.Duration(random.Int64N(int64(took)))):
		}
		if serve != nil {
			serve.kill()
		}
		rm.kill()
		verify := f.start("verify")
		switch status, err := verify.status(); {
		case err != nil:
			t.Fatal(err)
		case status != exitDone:
			halfway++
		case strings.Contains(f.run(exitDone, "set", "ls").stdout.String(), "goes"):
			early++
			f.run(exitDone, "set", "rm", "goes", "--yes")
		default:
			done++
		}
		again, base := f.serve() // which goes on with it
		res, err := http.Get(base + "/sets/stays/capabilitylist.xml")
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != http.StatusOK {
			t.Errorf("seed %d: the other set: %s", seed, res.Status)
		}
		f.end(again, os.Interrupt)
		if found := f.run(exitDone, "verify").stdout.String(); !none.MatchString(found) {
			t.Fatalf("seed %d: %s", seed, found)
		}
		if ls := f.run(exitDone, "set", "ls").stdout.String(); strings.Contains(ls, "goes") {
			t.Fatalf("seed %d: %s", seed, ls)
		}
		if f.run(exitDone, "log", "--set", "stays", "--json").stdout.String() != before {
			t.Fatalf("seed %d: the other set has changed", seed)
		}
	}
	t.Logf("killed %d before, %d halfway, %d when it was done, in at most %v", early, halfway, done, took)
}
