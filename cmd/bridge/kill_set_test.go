package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestKillSetRemoval kills bridge set rm, and the bridge serve that does it, at random points
// of a removal. Whoever opens the folder next goes on: the set is gone or as it was, verify
// finds nothing, and the other set has each of its events.
func TestKillSetRemoval(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	p, feed := newUpstream(t)
	for n := range 1500 {
		p.Create(fixtures.Record{Name: fmt.Sprint("r", n)})
	}
	const one = "[[set]]\nname = %q\n[[set.source]]\nurl = %q\n"
	fewer := "data = \"data\"\nlisten = \"127.0.0.1:0\"\n" + fmt.Sprintf(one, "stays", feed)
	f := newFolder(t, fewer, "all.toml", fewer+fmt.Sprintf(one, "goes", feed))
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	f.run(exitDone, "harvest")
	before := f.run(exitDone, "log", "--set", "stays", "--json").stdout
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
		switch {
		case f.runEnding([]int{exitDone, exitFailed}, "verify").status != exitDone:
			halfway++
		case strings.Contains(f.run(exitDone, "set", "ls").stdout, "goes"):
			early++
			f.run(exitDone, "set", "rm", "goes", "--yes")
		default:
			done++
		}
		again, base := f.serve() // which goes on with it
		if status, _, _ := answerOf(t, base+"/sets/stays/capabilitylist.xml"); status != http.StatusOK {
			t.Errorf("seed %d: the other set: %d", seed, status)
		}
		f.end(again, os.Interrupt)
		if found := f.run(exitDone, "verify").stdout; !none.MatchString(found) {
			t.Fatalf("seed %d: %s", seed, found)
		}
		if ls := f.run(exitDone, "set", "ls").stdout; strings.Contains(ls, "goes") {
			t.Fatalf("seed %d: %s", seed, ls)
		}
		if f.run(exitDone, "log", "--set", "stays", "--json").stdout != before {
			t.Fatalf("seed %d: the other set has changed", seed)
		}
	}
	t.Logf("killed %d before, %d halfway, %d when it was done, in at most %v", early, halfway, done, took)
}

// TestKillUnion kills bridges while records are submitted to a set that two others are made
// of, one of them over the other, and while sets get other names. Each of them has every event
// of the set once, in its order.
func TestKillUnion(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	f := newFolder(t, `
data = "data"
listen = "127.0.0.1:0"
[[set]]
name = "in"
[[set.source]]
kind = "sip"
mode = "library"
formats = { "{http://places.example/1}place" = "http://places.example/1/place.xsd" }
[[set]]
name = "all"
[[set.source]]
url = "set:in"
[[set]]
name = "above"
[[set.source]]
url = "set:all"
`)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	submitted, all := 0, "all"
	submit := func(base string) error {
		submitted++
		record := strings.Replace(placeRecord, "Storke", fmt.Sprint("Storke ", submitted), 1)
		res, err := http.Post(base+"/sip/in", "text/xml", strings.NewReader(enveloped(`<ingest-request xmlns="http://www.alexandria.ucsb.edu"><source><source-identifier>`+
			fmt.Sprint(submitted%40)+`</source-identifier></source><record>`+record+`</record></ingest-request>`)))
		if err == nil {
			err = res.Body.Close()
		}
		return err
	}
	// The first harvest of a set takes its records as they are, without their past. Here all
	// have ended one before there is a record, so each set takes every event.
	f.run(exitDone, "harvest")
	for round := range testenv.Rounds(t, 6, 100) {
		serve, base := f.serve()
		kill, end := make(chan struct{}), make(chan struct{})
		var posting sync.WaitGroup
		posting.Go(func() {
			for left := random.IntN(60); ; left-- {
				if left == 0 {
					close(kill)
				}
				select {
				case <-end:
					return
				default:
				}
				_ = submit(base) // which may have been killed
			}
		})
		if round%2 == 1 { // the set in the middle: a member of one, and made of another
			former := all
			all = fmt.Sprint("all-", round)
			f.run(exitDone, "set", "rename", former, all)
		}
		<-kill
		serve.kill()
		close(end)
		posting.Wait()
	}
	// A harvest that was killed is tried again after minutes, since it may be what has ended
	// the process. An operator who cannot wait says so.
	f.run(exitDone, "harvest")
	serve, base := f.serve()
	if err := submit(base); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Open(t.Context(), f.path+"/data", eventlog.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	events := func(set string) (all []string) {
		for ev, err := range log.Events(t.Context(), set, event.Range{Upto: 1 << 40}) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(ev.Kind, ev.Record, ev.Title, ev.Representations))
		}
		return all
	}
	want := events("in")
	for _, set := range []string{all, "above"} {
		for late := time.Now().Add(patience); len(events(set)) < len(want); {
			if time.Now().After(late) {
				t.Fatalf("seed %d: set %s has %d events of %d", seed, set, len(events(set)), len(want))
			}
			<-time.After(20 * time.Millisecond)
		}
		got := events(set)
		if len(got) != len(want) {
			t.Errorf("seed %d: set %s has %d events, want %d", seed, set, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("seed %d: event %d of set %s is\n%s\nwant\n%s", seed, i+1, set, got[i], want[i])
			}
		}
	}
	t.Logf("%d submitted, %d events", submitted, len(want))
	serve.kill()
	f.run(exitDone, "verify")
}
