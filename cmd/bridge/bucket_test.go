package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// bucketConfig moves contents to a bucket and keeps none of them here.
func bucketConfig(address string) string {
	return fmt.Sprintf("[store]\ncontents = %q\ncontents_cache = 1\n", address)
}

// While the server of the bucket is away, records that are there are answered 503, with the
// time to ask again, and everything else goes on: harvests too. Then all goes on by itself.
func TestServeBucketAway(t *testing.T) {
	s3 := testenv.S3(t)
	s3.Setenv(t)
	provider, feed := newUpstream(t)
	for n := range 20 {
		provider.Create(fixtures.Record{Name: fmt.Sprint("r", n)})
	}
	f := newFolder(t, "listen = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \""+feed+"\"\nevery = \"1s\"\n"+bucketConfig(s3.Address(s3.NewBucket(t), "library", "test")))
	f.run(exitDone, "harvest", "--config", "bridge.toml")
	f.run(exitDone, "gc")
	c, server := f.serve()
	ask := func(path string) (int, string, http.Header) { return answerOf(t, server+path) }
	_, list, _ := ask("/sets/main/resourcelist.xml")
	locs := regexp.MustCompile(`<loc>https?://[^/]+(/sets/main/records/[^<]+)</loc>`).FindAllStringSubmatch(list, -1)
	if len(locs) != 20 {
		t.Fatalf("%d records are in the list:\n%s", len(locs), list)
	}
	var first string
	for i, loc := range locs {
		status, body, _ := ask(loc[1])
		if status != http.StatusOK || body == "" {
			t.Fatalf("%s: %d", loc[1], status)
		}
		if i == 0 {
			first = body
		}
	}
	f.end(c, os.Interrupt)
	c, server = f.serve() // nothing of the bucket is in memory
	s3.Stop(t)
	if status, body, header := ask(locs[0][1]); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(body, "cannot be reached at the moment") {
		t.Errorf("without the server: %d, %v\n%s", status, header, body)
	}
	provider.Create(fixtures.Record{Name: "new"})
	for limit := time.Now().Add(patience); ; <-time.After(lookEvery) {
		_, list, _ := ask("/sets/main/changelist.xml")
		loc := regexp.MustCompile(`<loc>https?://[^/]+(/sets/main/records/[^<]+)</loc>[^<]*<lastmod>[^<]*</lastmod>[^<]*<rs:md [^>]*b:title="new"`).FindStringSubmatch(list)
		if loc != nil {
			if status, _, _ := ask(loc[1]); status != http.StatusOK {
				t.Errorf("a record that was harvested since: %d", status)
			}
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("nothing is harvested without the server:\n%s", list)
		}
	}
	if status, _, _ := ask("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d", status)
	}
	gc := f.run(exitFailed, "gc")
	if !strings.Contains(gc.stderr, "cannot be reached at the moment") {
		t.Errorf("gc without the server: %s", gc.stderr)
	}
	s3.Start(t)
	for limit := time.Now().Add(patience); ; <-time.After(lookEvery) {
		status, body, _ := ask(locs[0][1])
		if status == http.StatusOK && body == first {
			break
		}
		if status != http.StatusServiceUnavailable || time.Now().After(limit) {
			t.Fatalf("with the server again: %d\n%s", status, body)
		}
	}
	f.run(exitDone, "gc")
	f.end(c, os.Interrupt)
	f.run(exitDone, "verify", "--contents", "--config", "bridge.toml")
}

// TestServeTogetherAway: while the PostgreSQL server that has the log and the places of contents
// is away, records are answered 503, and harvests fail without counting against their Source.
// Then all goes on by itself. If the schema of the contents is lost it is made anew from the
// bucket, and not without being asked.
func TestServeTogetherAway(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.Postgres(t)
	log := postgres.NewSchema(t)
	s3 := testenv.SharedS3(t)
	s3.Setenv(t)
	provider, feed := newUpstream(t, "first")
	f := newFolder(t, "listen = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = \""+feed+"\"\nevery = \"1s\"\n"+
		bucketConfig(s3.Address(s3.NewBucket(t)))+fmt.Sprintf("log = %q\n", log))
	f.run(exitDone, "harvest", "--config", "bridge.toml")
	c, server := f.serve()
	ask := func(path string) (int, string, http.Header) { return answerOf(t, server+path) }
	locs := func(list string) (paths []string) {
		for _, m := range regexp.MustCompile(`<loc>https?://[^/]+(/sets/main/records/[^<]+)</loc>`).FindAllStringSubmatch(list, -1) {
			paths = append(paths, m[1])
		}
		return paths
	}
	_, list, _ := ask("/sets/main/resourcelist.xml")
	if len(locs(list)) != 1 {
		t.Fatalf("want one record:\n%s", list)
	}
	record := locs(list)[0]
	for round, how := range []testenv.Shutdown{testenv.FastShutdown, testenv.ImmediateShutdown} {
		postgres.Stop(t, how)
		for range 3 {
			if status, body, header := ask(record); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
				t.Errorf("without the server: %d, %v\n%s", status, header, body)
			}
		}
		provider.Create(fixtures.Record{Name: fmt.Sprint("new", round)})
		postgres.Start(t)
		for limit := time.Now().Add(patience); ; <-time.After(lookEvery) {
			status, list, _ := ask("/sets/main/changelist.xml")
			if all := locs(list); status == http.StatusOK && len(all) == round+2 {
				for _, path := range append(all, record) {
					if status, body, _ := ask(path); status != http.StatusOK {
						t.Errorf("with the server again: %d\n%s", status, body)
					}
				}
				break
			}
			if status != http.StatusOK && status != http.StatusServiceUnavailable || time.Now().After(limit) {
				t.Fatalf("with the server again: %d\n%s", status, list)
			}
		}
	}
	f.end(c, os.Interrupt)
	var status struct {
		Sets []struct {
			Sources []struct {
				Failures int `json:"failures"`
			} `json:"sources"`
		} `json:"sets"`
	}
	if text := f.run(exitDone, "status", "--json", "--config", "bridge.toml").stdout; json.Unmarshal([]byte(text), &status) != nil || len(status.Sets) != 1 || len(status.Sets[0].Sources) != 1 || status.Sets[0].Sources[0].Failures != 0 {
		t.Errorf("it counts against the Source: %s", text)
	}
	f.run(exitDone, "gc", "--config", "bridge.toml")
	f.run(exitDone, "verify", "--contents", "--config", "bridge.toml")

	db, err := pgx.Connect(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	_, schema, _ := strings.Cut(log, "search_path=")
	if _, err := db.Exec(t.Context(), "DROP SCHEMA "+schema+"_contents CASCADE"); err != nil {
		t.Fatal(err)
	}
	if c := f.run(exitFailed, "harvest", "--config", "bridge.toml"); !strings.Contains(c.stderr, "has no contents, although the log names some") {
		t.Errorf("without its contents: %s", c.stderr)
	}
	f.run(exitDone, "gc", "--adopt", "--config", "bridge.toml")
	f.run(exitDone, "verify", "--contents", "--config", "bridge.toml")
}

// TestKillBucket is TestKill with contents in a bucket, which are moved while bridges are
// killed, and whose server is away for one round in three. At the end each content is there,
// and nothing that nobody knows of.
func TestKillBucket(t *testing.T) {
	testenv.Heavy(t)
	s3 := testenv.S3(t)
	s3.Setenv(t)
	rounds := testenv.Rounds(t, 8, 300)
	k := newKilling(t, 20)
	config, err := os.ReadFile(k.config())
	if err != nil {
		t.Fatal(err)
	}
	k.configure(string(config) + bucketConfig(s3.Address(s3.NewBucket(t))))
	k.run("harvest", exitPartly)
	moved := 0
	for i := range rounds {
		for n := range k.sources {
			for range k.random.IntN(6) {
				k.sources[n].evolve()
			}
		}
		if i%3 == 1 {
			s3.Stop(t)
			k.killHarvest()
			s3.Start(t)
		}
		k.round(i)
		c := k.folder.start("gc", "--config", "bridge.toml", "--keep", "0s")
		select {
		case <-c.ended:
		case <-time.After(time.Duration(k.random.IntN(300)) * time.Millisecond):
		}
		c.kill()
		if c.cmd.ProcessState.ExitCode() == exitDone {
			moved++
		}
	}
	k.settle()
	k.folder.run(exitDone, "gc", "--config", "bridge.toml", "--keep", "0s")
	said := k.folder.run(exitDone, "gc", "--config", "bridge.toml", "--keep", "0s", "--json").stdout
	var did daemon.Tidied
	if err := json.Unmarshal([]byte(said), &did); err != nil || did.Unknown+did.Waiting+did.Removed+did.Rewritten != 0 {
		t.Errorf("%v: %s", err, said)
	}
	k.folder.run(exitDone, "verify", "--contents", "--config", "bridge.toml")
	k.end(rounds)
	t.Logf("contents were moved to the end in %d rounds", moved)
}
