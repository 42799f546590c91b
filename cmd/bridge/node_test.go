package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// nodeConfig is what all nodes of a test have in their configuration, for the end of a file.
func nodeConfig(t *testing.T, postgres *testenv.PostgresServer, s3 *testenv.S3Server) string {
	t.Helper()
	bucket := s3.NewBucket(t)
	return bucketConfig(s3.Address(bucket, "contents")) + fmt.Sprintf("files = %q\nlog = %q\n", s3.Address(bucket, "files"), postgres.NewSchema(t))
}

// sourceConfig is what such a file begins with, with a Source that the set main mirrors.
func sourceConfig(url string) string {
	return fmt.Sprintf("contact = \"mailto:before@bridge.example\"\nlisten = \"127.0.0.1:0\"\nbase_url = \"http://bridge.example.org\"\n[[set]]\nname = \"main\"\n[[set.source]]\nurl = %q\nevery = \"1s\"\n", url)
}

// TestNodes: web nodes publish what the worker has, and take nothing; when the worker has gone,
// the next one goes on.
func TestNodes(t *testing.T) {
	postgres, s3 := testenv.SharedPostgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	provider, feed := newUpstream(t)
	create := func(n int) { provider.Create(fixtures.Record{Name: fmt.Sprint("r", n)}) }
	for n := range 5 {
		create(n)
	}
	config := `
data = "data"
listen = "127.0.0.1:0"
base_url = "http://bridge.example.org"
[[set]]
name = "main"
content = "reference"
[[set.source]]
url = "` + feed + `"
every = "1s"
[[set]]
name = "again"
content = "reference"
[[set.source]]
url = "set:main"
[[set]]
name = "in"
[[set.source]]
kind = "sip"
mode = "library"
formats = { "{http://places.example/1}place" = "http://places.example/1/place.xsd" }
` + nodeConfig(t, postgres, s3)
	before := strings.Replace(config, "search_path=", "default_transaction_read_only=on&search_path=", 1) // while the server is a standby
	worker, standby, web := newFolder(t, config), newFolder(t, config, "before.toml", before), newFolder(t, config)
	if c := web.run(exitFailed, "serve", "--role", "web"); !strings.Contains(c.stderr, "there is no log in") {
		t.Errorf("a web node without a log: %s", c.stderr)
	}
	if c := standby.run(exitFailed, "serve", "--role", "worker", "--config", "before.toml"); !strings.Contains(c.stderr, "can only be read") {
		t.Errorf("a worker that cannot make the log: %s", c.stderr)
	}
	first, atFirst := worker.serve("--role", "worker")
	second, atSecond := standby.serve("--role", "worker")
	third, atWeb := web.serve("--role", "web")
	defer func() {
		if t.Failed() {
			<-time.After(3 * time.Second)
			for _, c := range []*child{first, second, third} {
				t.Logf("%s%s", c.stdout.String(), c.stderr.String())
			}
		}
	}()
	if has := eventsAt(t, atFirst, 5); eventsAt(t, atWeb, 5) != has || eventsAt(t, atSecond, 5) != has {
		t.Error("nodes publish different Change Lists")
	}
	request := `<ingest-request xmlns="http://www.alexandria.ucsb.edu"><source><source-identifier>1</source-identifier></source><record>` + placeRecord + `</record></ingest-request>`
	post := func(url string) (status int, header http.Header) {
		t.Helper()
		resp, err := http.Post(url, "text/xml", strings.NewReader(enveloped(request)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header
	}
	submit := func(server string) (status int, header http.Header) {
		t.Helper()
		return post(server + "/sip/in")
	}
	for _, server := range []string{atSecond, atWeb} {
		// Whether a set that has no SIP service had one is for the node that works to know.
		if status, header := post(server + "/sip/main/token"); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("a message with a token to a node that does not work: %d %v", status, header)
		}
		if status, header := submit(server); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("a submission to a node that does not work: %d %v", status, header)
		}
	}
	if status, _ := submit(atFirst); status != http.StatusOK {
		t.Errorf("a submission to the node that works: %d", status)
	}
	if status, _ := post(atFirst + "/sip/main/token"); status != http.StatusNotFound {
		t.Errorf("a message with a token to the node that works: %d", status)
	}
	if c := web.run(exitDone, "status"); !strings.Contains(c.stdout, "main (") {
		t.Errorf("status of a web node:\n%s", c.stdout)
	}
	worker.run(exitDone, "set", "rename", "again", "twice")
	for limit := time.Now().Add(patience); !strings.Contains(bodyOf(t, atWeb+"/sets/again/resourcelist.xml"), "/sets/twice/"); <-time.After(lookEvery) {
		if time.Now().After(limit) {
			t.Fatal("the web node does not know the new name of the set")
		}
	}
	first.kill()
	create(5)
	if has := eventsAt(t, atSecond, 6); eventsAt(t, atWeb, 6) != has {
		t.Error("after another node took over, nodes publish different Change Lists")
	}
	if status, _ := submit(atSecond); status != http.StatusOK {
		t.Errorf("a submission to the node that took over: %d", status)
	}
	first, atFirst = worker.serve("--role", "worker") // stands by
	if status, _ := submit(atFirst); status != http.StatusServiceUnavailable {
		t.Errorf("a submission to the node that worked before: %d", status)
	}
	second.kill()
	create(6)
	eventsAt(t, atFirst, 7)
	eventsAt(t, atWeb, 7)
	worker.end(first, os.Interrupt)
	worker.run(exitDone, "verify")
	// Nodes that were forgotten do not go on with a log that was copied away.
	away := filepath.Join(worker.path, "away.toml")
	if err := os.WriteFile(away, []byte("data = \"away\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	worker.run(exitDone, "copy", "--from", "bridge.toml", "--to", away)
	select {
	case <-third.ended:
	case <-time.After(patience):
		t.Fatal("the web node goes on with a log that was copied away")
	}
	web.wantStatus(third, exitFailed)
	for _, text := range []string{third.stderr.String(), standby.run(exitFailed, "serve", "--role", "worker").stderr, worker.run(exitFailed, "serve", "--role", "worker").stderr} {
		if !strings.Contains(text, filepath.Join(worker.path, "away")) {
			t.Errorf("where the log goes on is not said: %s", text)
		}
	}
	for _, c := range []*child{first, second, third} {
		if text := c.stderr.String(); strings.Contains(text, "LOST") {
			t.Error(text)
		}
	}
}

// TestHarvestOfNodeBefore: a harvest that a node was killed in does not count as failed when it works
// again, if another node has harvested the Source meanwhile.
func TestHarvestOfNodeBefore(t *testing.T) {
	postgres, s3 := testenv.SharedPostgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	provider := fixtures.New(fixtures.Options{})
	provider.Create(fixtures.Record{Name: "first"})
	asked, hangs := make(chan struct{}, 1), atomic.Bool{}
	hangs.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-r.Context().Done()
			return
		}
		provider.ServeHTTP(w, r)
	}))
	defer server.Close()
	config := sourceConfig(server.URL+fixtures.Subscription) + nodeConfig(t, postgres, s3)
	killed, other := newFolder(t, config), newFolder(t, config)
	first, _ := killed.serve("--role", "worker")
	second, atSecond := other.serve("--role", "worker")
	<-asked
	first.kill()
	hangs.Store(false)
	eventsAt(t, atSecond, 1)
	_, atFirst := killed.serve("--role", "worker") // stands by
	other.end(second, os.Interrupt)
	provider.Create(fixtures.Record{Name: "second"})
	eventsAt(t, atFirst, 2)
	if history := killed.run(exitDone, "source", "history", "main", "--json").stdout; strings.Contains(history, "interrupted") || strings.Count(history, `"result":`) < 2 {
		t.Errorf("the history of the Source:\n%s", history)
	}
}

// TestFirstLate: a worker that finds no log, and then one that another worker has made meanwhile, looks
// again. One that is older is of other folders.
func TestFirstLate(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	open := func(why error) error {
		n := &node{config: &config.Config{Data: t.TempDir(), Store: config.Store{Log: url}}}
		log, err := n.first(t.Context(), why)
		return errors.Join(err, closeLog(log))
	}
	if err := open(fs.ErrNotExist); err != nil {
		t.Fatal(err)
	}
	if err := open(fs.ErrNotExist); !errors.Is(err, errAgain) {
		t.Errorf("made meanwhile: %v", err)
	}
	if err := open(eventlog.ErrOlder); !errors.Is(err, eventlog.ErrOthers) {
		t.Errorf("made before: %v", err)
	}
}

// eventsAt waits until a node has so many events of the set main, and returns its Change List.
func eventsAt(t *testing.T, server string, n int) (list string) {
	t.Helper()
	for limit := time.Now().Add(patience); strings.Count(list, "<url>") < n; <-time.After(lookEvery) {
		if time.Now().After(limit) {
			t.Fatalf("%s has not %d events:\n%s", server, n, list)
		}
		list = bodyOf(t, server+"/sets/main/changelist.xml")
	}
	return list
}

// TestNewNodeOfOlderLog: a worker with an empty folder does not bring a log up to date, which others
// may still work with; it says who does, and not how to take the log over.
func TestNewNodeOfOlderLog(t *testing.T) {
	url := testenv.SharedPostgres(t).NewSchema(t)
	log, err := eventlog.Open(t.Context(), t.TempDir(), eventlog.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close(t.Context())
	if _, err := server.Exec(t.Context(), "UPDATE format SET version = version - 1"); err != nil {
		t.Fatal(err)
	}
	f := newFolder(t, sourceConfig("http://127.0.0.1:1/")+fmt.Sprintf("[store]\nlog = %q\ncontents = \"s3://bucket/contents?endpoint=http://127.0.0.1:1\"\nfiles = \"s3://bucket/files?endpoint=http://127.0.0.1:1\"\n", url))
	if said := f.run(exitFailed, "serve", "--role", "worker").stderr; !strings.Contains(said, "start a node that has had it") || strings.Contains(said, "take the log over") {
		t.Errorf("it says: %s", said)
	}
}

// TestNodesForgetSets: the dumps of a set that is renamed or removed at the node that works go
// at the others too.
func TestNodesForgetSets(t *testing.T) {
	testenv.Heavy(t)
	postgres, s3 := testenv.SharedPostgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	_, feed := newUpstream(t, "r")
	config := "data = \"data\"\nlisten = \"127.0.0.1:0\"\nbase_url = \"http://bridge.example.org\"\n"
	for _, name := range []string{"stays", "renamed", "removed"} {
		config += fmt.Sprintf("[[set]]\nname = %q\ndumps = true\n[[set.source]]\nurl = %q\n", name, feed)
	}
	config += nodeConfig(t, postgres, s3)
	worker, web := newFolder(t, config), newFolder(t, config)
	first, _ := worker.serve("--role", "worker")
	second, _ := web.serve("--role", "web")
	// wantDumps waits until both nodes have dumps of some sets, and a folder of no others.
	wantDumps := func(sets ...string) {
		t.Helper()
		for _, f := range []*folder{worker, web} {
			var has, whole []string
			for limit := time.Now().Add(patience); !slices.Equal(has, sets) || !slices.Equal(whole, sets); <-time.After(lookEvery) {
				if time.Now().After(limit) {
					t.Fatalf("%s has snapshots of %v and whole dumps of %v, want %v\n%s%s", f.path, has, whole, sets, first.stderr.String(), second.stderr.String())
				}
				has, whole = nil, nil
				entries, _ := os.ReadDir(filepath.Join(f.path, "data", "snapshots"))
				for _, e := range entries {
					has = append(has, e.Name())
					if made, _ := filepath.Glob(filepath.Join(f.path, "data", "snapshots", e.Name(), "resourcedump", "[0-9]*", "1.zip")); len(made) > 0 {
						whole = append(whole, e.Name())
					}
				}
			}
		}
	}
	wantDumps("removed", "renamed", "stays")
	worker.run(exitDone, "set", "rename", "renamed", "anew")
	wantDumps("anew", "removed", "stays")
	worker.run(exitDone, "set", "rm", "--yes", "--from-config", "removed")
	wantDumps("anew", "stays")
	web.end(second, os.Interrupt)
	worker.end(first, os.Interrupt)
}

// bodyOf returns the body of a response that is 200 OK, "" of another.
func bodyOf(t *testing.T, url string) string {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// TestContentsLost: when a server has lost the last commit of the contents, as a standby of it may, bridge
// goes on: a node by itself, one without others when it is started again.
func TestContentsLost(t *testing.T) {
	postgres, s3 := testenv.SharedPostgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	serve := func(t *testing.T) (config string, create func(string), lose func()) {
		provider, feed := newUpstream(t, "first")
		create = func(name string) { provider.Create(fixtures.Record{Name: name}) }
		config = sourceConfig(feed) + nodeConfig(t, postgres, s3)
		log := regexp.MustCompile(`log = "(.*)"`).FindStringSubmatch(config)[1]
		return config, create, func() {
			t.Helper()
			db, err := pgx.Connect(t.Context(), log)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close(context.Background()) }()
			_, schema, _ := strings.Cut(log, "search_path=")
			if _, err := db.Exec(t.Context(), "UPDATE "+schema+"_contents.format SET last = 'an older one'"); err != nil {
				t.Fatal(err)
			}
			postgres.EndWriter(t, log+"_contents")
		}
	}
	t.Run("alone", func(t *testing.T) {
		config, create, lose := serve(t)
		f := newFolder(t, config)
		c, server := f.serve()
		eventsAt(t, server, 1)
		lose()
		create("second")
		f.wantStatus(c, exitFailed)
		c, server = f.serve()
		eventsAt(t, server, 2)
		f.end(c, os.Interrupt)
		f.run(exitDone, "verify", "--contents")
	})
	t.Run("nodes", func(t *testing.T) {
		config, create, lose := serve(t)
		worker, standby := newFolder(t, config), newFolder(t, config)
		first, atFirst := worker.serve("--role", "worker")
		second, atSecond := standby.serve("--role", "worker")
		eventsAt(t, atFirst, 1)
		eventsAt(t, atSecond, 1)
		worker.configure(strings.Replace(config, "before@", "reloaded@", 1))
		worker.run(exitDone, "reload")
		wantContact(t, atFirst, "reloaded@")
		worker.configure("what somebody is still writing")
		lose()
		create("second")
		if _, err := first.stderr.expect(regexp.MustCompile("and this one does no longer")); err != nil {
			t.Fatal(err)
		}
		eventsAt(t, atFirst, 2)
		eventsAt(t, atSecond, 2)
		wantContact(t, atFirst, "reloaded@") // what it worked by last, and not at first
		worker.end(first, os.Interrupt)
		standby.end(second, os.Interrupt)
		standby.run(exitDone, "verify", "--contents")
	})
}

// TestHangupOfNode: a node that publishes goes on while PostgreSQL is away, and reads its configuration
// again as soon as that is back. One that cannot be used changes nothing.
func TestHangupOfNode(t *testing.T) {
	postgres, s3 := testenv.Postgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	_, feed := newUpstream(t, "first")
	config := sourceConfig(feed) + nodeConfig(t, postgres, s3)
	worker, web := newFolder(t, config), newFolder(t, config)
	working, atWorker := worker.serve("--role", "worker")
	eventsAt(t, atWorker, 1)
	publishing, server := web.serve("--role", "web")
	eventsAt(t, server, 1)
	reread := func(t *testing.T, replaced, by string) {
		t.Helper()
		web.configure(strings.Replace(config, replaced, by, 1))
		if err := publishing.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	says := func(t *testing.T, pattern string) {
		t.Helper()
		if _, err := publishing.stderr.expect(regexp.MustCompile(pattern)); err != nil {
			t.Fatal(err)
		}
	}
	wantContact(t, server, "before@")
	t.Run("while it is away", func(t *testing.T) {
		postgres.Stop(t, testenv.FastShutdown)
		reread(t, "before@", "during@")
		says(t, "the configuration was read again")
		resp, err := (&http.Client{Timeout: patience / 3}).Get(server + "/sets/main/changelist.xml")
		if err != nil {
			t.Error(err)
		} else if resp.Body.Close(); resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "") {
			t.Errorf("answered %s, %v", resp.Status, resp.Header)
		}
		postgres.Start(t)
		wantContact(t, server, "during@")
	})
	t.Run("just before", func(t *testing.T) {
		c, err := net.Dial("tcp", strings.TrimPrefix(server, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		// As long as the body of this one does not come, what is to be opened anew has not ended.
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		reread(t, "before@", "after@")
		postgres.Stop(t, testenv.FastShutdown)
		c.Close()
		says(t, "cannot be opened again|(?s:as soon as the log.*as soon as the log)")
		postgres.Start(t)
		wantContact(t, server, "after@")
	})
	t.Run("unusable", func(t *testing.T) {
		reread(t, `name = "main"`, `name = "main"`+"\ncontent = \"reference\"")
		says(t, "cannot be used; the former one is")
		wantContact(t, server, "after@")
	})
	t.Run("without sets", func(t *testing.T) {
		_, sets, _ := strings.Cut(sourceConfig(feed), "[[set]]")
		reread(t, "[[set]]"+sets, "")
		says(t, `was not read again, and nothing has changed.*has no \[\[set\]\] any more`)
		wantContact(t, server, "after@")
	})
	web.end(publishing, os.Interrupt)
	worker.end(working, os.Interrupt)
}

// TestTakeOverTLS: a worker takes over although it has encrypted connections that a restart of the server
// has ended.
func TestTakeOverTLS(t *testing.T) {
	postgres, s3 := testenv.Postgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	encrypt(t, postgres)
	provider, feed := newUpstream(t, "first")
	config := sourceConfig(feed) + strings.ReplaceAll(nodeConfig(t, postgres, s3), "sslmode=disable", "sslmode=require")
	worker, standby := newFolder(t, config), newFolder(t, config)
	first, atFirst := worker.serve("--role", "worker")
	second, atSecond := standby.serve("--role", "worker")
	defer func() {
		if t.Failed() {
			<-time.After(3 * time.Second)
			t.Log(second.stderr.String())
		}
	}()
	eventsAt(t, atFirst, 1)
	postgres.Stop(t, testenv.FastShutdown)
	postgres.Start(t)
	provider.Create(fixtures.Record{Name: "second"})
	eventsAt(t, atFirst, 2)
	eventsAt(t, atSecond, 2)
	first.kill()
	provider.Create(fixtures.Record{Name: "third"})
	eventsAt(t, atSecond, 3)
	standby.end(second, os.Interrupt)
}

// TestTakeOverAway: a worker goes on when the server of the data cannot be reached at the moment at
// which it takes over.
func TestTakeOverAway(t *testing.T) {
	postgres, s3 := testenv.SharedPostgres(t), testenv.SharedS3(t)
	s3.Setenv(t)
	way := newProxy(t, idle())
	provider, feed := newUpstream(t, "first")
	config := sourceConfig(feed) + nodeConfig(t, postgres, s3)
	u, err := url.Parse(postgres.URL())
	if err == nil {
		err = way.forwardTo(u.Host)
	}
	if err != nil {
		t.Fatal(err)
	}
	worker, standby := newFolder(t, config), newFolder(t, strings.Replace(config, u.Host, way.address, 1))
	first, atFirst := worker.serve("--role", "worker")
	eventsAt(t, atFirst, 1)
	second, atSecond := standby.serve("--role", "worker")
	eventsAt(t, atSecond, 1)
	way.interceptor.Store(&interceptor{word: "_contents", lose: true, always: true})
	worker.end(first, os.Interrupt)
	provider.Create(fixtures.Record{Name: "second"})
	if _, err := second.stderr.expect(regexp.MustCompile("(?s)no other node works.*this node cannot be opened")); err != nil {
		t.Fatal(err)
	}
	way.interceptor.Store(&interceptor{})
	eventsAt(t, atSecond, 2)
	standby.end(second, os.Interrupt)
}

// encrypt makes a server of the test's own take encrypted connections too.
func encrypt(t *testing.T, postgres *testenv.PostgresServer) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	key, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgx.Connect(t.Context(), postgres.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }() // the server ends it
	statements := []string{"ALTER SYSTEM SET ssl = on"}
	for name, block := range map[string]*pem.Block{
		"server.key": {Type: "PRIVATE KEY", Bytes: key},
		"server.crt": {Type: "CERTIFICATE", Bytes: web.Certificate().Raw},
	} {
		statements = append(statements, fmt.Sprintf("COPY (SELECT unnest(string_to_array('%s', E'\\n'))) TO PROGRAM 'umask 077; cat > %s'", pem.EncodeToMemory(block), name))
	}
	for _, s := range statements {
		if _, err := db.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	postgres.Stop(t, testenv.FastShutdown)
	postgres.Start(t)
}

// wantContact waits until a node names a contact.
func wantContact(t *testing.T, server, contact string) {
	t.Helper()
	page := ""
	for limit := time.Now().Add(patience); !strings.Contains(page, contact); <-time.After(lookEvery) {
		if time.Now().After(limit) {
			t.Fatalf("the contact %s is not in force:\n%s", contact, page)
		}
		page = bodyOf(t, server+"/sets/main/")
	}
}

// TestKillNodes is TestKill with three workers and two web nodes that have one log on a
// PostgreSQL server and one bucket. Workers are killed while they work and while they stand by;
// both servers are stopped and started. Nothing may be lost or doubled, and no Source may be
// harvested by two nodes at once.
func TestKillNodes(t *testing.T) {
	testenv.Heavy(t)
	postgres, s3 := testenv.Postgres(t), testenv.S3(t)
	s3.Setenv(t)
	k := newKilling(t, 20)
	own, err := os.ReadFile(k.config())
	if err != nil {
		t.Fatal(err)
	}
	config := string(own) + nodeConfig(t, postgres, s3)
	for _, s := range k.sources {
		s.Handler = alone(t, s.Handler)
	}
	k.away.Store(true)
	var workers []*folder
	for n := range 3 {
		k.configure(fmt.Sprintf("contact = \"mailto:worker%d@bridge.example\"\n%s", n, config))
		workers = append(workers, k.folder)
	}
	work := make([]*child, len(workers))
	for i, f := range workers {
		if work[i] = f.start("serve", "--role", "worker"); i == 0 {
			if _, err := work[i].ready(); err != nil { // it makes the log
				t.Fatal(err)
			}
		}
	}
	webs := []*folder{newFolder(t, config), newFolder(t, config)}
	web, at := make([]*child, len(webs)), make([]string, len(webs))
	for i, f := range webs {
		web[i], at[i] = f.serve("--role", "web")
	}
	defer func() {
		if t.Failed() {
			for _, c := range append(work, web...) {
				t.Logf("%s%s", c.stdout.String(), c.stderr.String())
			}
		}
	}()
	rounds, took := testenv.Rounds(t, 10, 300), 0
	for round := range rounds {
		for n := range k.sources {
			for range k.random.IntN(6) {
				k.sources[n].evolve()
			}
		}
		done, read := make(chan struct{}), make(chan error)
		go func() { read <- k.readUntil(done, at[round%2]) }()
		victim := k.random.IntN(len(workers))
		k.killSoon(work[victim])
		took += strings.Count(work[victim].stderr.String(), "no other node works")
		for i, c := range work { // one that finds no server when it starts ends with that error
			if i == victim {
				continue
			}
			if _, err := c.stdout.expect(servingLine); err != nil {
				t.Fatal(err)
			}
		}
		switch round % 5 {
		case 1:
			postgres.Stop(t, testenv.ImmediateShutdown)
			postgres.Start(t)
		case 2:
			postgres.Stop(t, testenv.FastShutdown)
			postgres.Start(t)
		case 3:
			s3.Stop(t)
			s3.Start(t)
		}
		work[victim] = workers[victim].start("serve", "--role", "worker")
		close(done)
		web[round%2].kill()
		if err := <-read; err != nil {
			t.Fatalf("round %d of seed %d: %v", round, k.seed, err)
		}
		web[round%2], at[round%2] = webs[round%2].serve("--role", "web")
	}
	for i, c := range append(work, web...) {
		append(workers, webs...)[i].end(c, os.Interrupt)
		if text := c.stderr.String(); strings.Contains(text, "LOST") {
			t.Error(text)
		}
	}
	k.end(rounds)
	t.Logf("nodes that were killed had taken over %d times", took)
}

// TestPollThousands asks 2,000 Sources once a minute for ten minutes, with two workers. It
// measures the work of the nodes, of PostgreSQL and S3, and of the Sources together.
func TestPollThousands(t *testing.T) {
	if !testenv.Soaking() {
		t.Skip("it takes ten minutes: make soak")
	}
	const sources, sets = 2000, 20
	postgres, s3 := testenv.DefaultPostgres(t), testenv.S3(t)
	s3.Setenv(t)
	var asked, unchanged atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			unchanged.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", "application/atom+xml")
		fmt.Fprintf(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x:%[1]s</id><title>%[1]s</title><updated>2026-01-01T00:00:00Z</updated><entry><id>urn:x:%[1]s:1</id><title>One</title><updated>2026-01-01T00:00:00Z</updated><link href="http://records.example%[1]s/1"/></entry></feed>`, r.URL.Path)
	}))
	defer upstream.Close()
	var config strings.Builder
	config.WriteString("data = \"data\"\nlisten = \"127.0.0.1:0\"\nbase_url = \"http://bridge.example.org\"\n[limits]\nrate = 1000\n")
	for set := range sets {
		fmt.Fprintf(&config, "[[set]]\nname = \"set-%d\"\ncontent = \"reference\"\n", set)
		for n := range sources / sets {
			fmt.Fprintf(&config, "[[set.source]]\nkind = \"atompmh\"\nurl = \"%s/%d/%d\"\nevery = \"1m\"\n", upstream.URL, set, n)
		}
	}
	config.WriteString(nodeConfig(t, postgres, s3))
	worker, standby := newFolder(t, config.String()), newFolder(t, config.String())
	first, _ := worker.serve("--role", "worker")
	second, _ := standby.serve("--role", "worker")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for limit := time.Now().Add(patience); asked.Load() < 2*sources; <-tick.C {
		if time.Now().After(limit) {
			t.Fatalf("%d requests", asked.Load())
		}
	}
	const minutes = 10
	before, used, began := asked.Load(), busy(t), time.Now()
	for asked.Load() < before+sources*minutes {
		<-tick.C
	}
	took, n := time.Since(began), asked.Load()-before
	t.Logf("%d requests in %v, %d of all unchanged; %.2f cores were busy", n, took.Round(time.Second), unchanged.Load(), (busy(t)-used).Seconds()/took.Seconds())
	if took > (minutes+1)*time.Minute || took < (minutes-1)*time.Minute {
		t.Errorf("%d requests of %d Sources took %v", n, sources, took)
	}
	worker.end(first, os.Interrupt)
	standby.end(second, os.Interrupt)
}

// busy returns how long this process and all that it has started have worked, on all cores.
func busy(t *testing.T) time.Duration {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(all) == 0 {
		t.Skip("there is no /proc")
	}
	parents, ticks := map[int]int{}, map[int]int{}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		number := func(text string) int {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		pid := number(strings.Split(path, "/")[2])
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		parents[pid] = number(fields[1])
		for _, f := range fields[11:15] { // user and system, of it and of its children that have ended
			ticks[pid] += number(f)
		}
	}
	sum := 0
	for pid := range ticks {
		for p := pid; p > 1; p = parents[p] {
			if p == os.Getpid() {
				sum += ticks[pid]
				break
			}
		}
	}
	return time.Duration(sum) * time.Second / 100
}

// alone fails the test when two nodes ask for documents of one Source at the same time.
func alone(t *testing.T, h http.Handler) http.Handler {
	var mu sync.Mutex
	asking := map[*http.Request]bool{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		for other := range asking {
			if node := other.Header.Get("User-Agent"); other.Context().Err() == nil && node != r.Header.Get("User-Agent") {
				t.Errorf("%s and %s ask for documents of one Source at once", node, r.Header.Get("User-Agent"))
			}
		}
		asking[r] = true
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			delete(asking, r)
		}()
		h.ServeHTTP(w, r)
	})
}

// readUntil reads documents of a server, which may go and come, until a channel is closed.
func (k *killing) readUntil(done <-chan struct{}, server string) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		if err := k.readUntilGone(server); err != nil {
			return err
		}
	}
}
