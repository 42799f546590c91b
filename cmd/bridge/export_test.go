package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// A web server of a tree, and what it can do of what serve does.
type treeServer struct {
	name    string
	path    string // of the base URL
	headers bool   // it sends the headers of records
	types   bool   // it knows the types of records
	start   func(t *testing.T, address, folder string) (stop func())
}

func treeServers() []treeServer {
	return []treeServer{
		{name: "python", start: func(t *testing.T, address, folder string) func() {
			python := testenv.Need(t, "python3", "python3")
			_, port, _ := net.SplitHostPort(address)
			return startPeer(t, address, exec.Command(python, "-m", "http.server", "--bind", "127.0.0.1", "--directory", folder, port))
		}},
		{name: "nginx", headers: true, types: true, start: startNginx},
		{name: "nginx", path: "/a.b/records", headers: true, types: true, start: startNginx},
		{name: "caddy", headers: true, types: true, start: startCaddy},
		{name: "caddy", path: "/a.b/records", headers: true, types: true, start: startCaddy},
	}
}

// startNginx serves a tree with the configuration in it.
func startNginx(t *testing.T, address, folder string) (stop func()) {
	path, err := exec.LookPath("/usr/sbin/nginx") // on Debian it is not in everybody's PATH
	if err != nil {
		path = testenv.Need(t, "nginx", "nginx-light")
	}
	prefix := t.TempDir()
	own := filepath.Join(folder, ".bridge", "nginx")
	conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events { }
http {
    access_log off;
    client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
    gzip on; gzip_types *; gzip_min_length 1;
    include "%[2]s/maps.conf";
    server {
        listen %[3]s;
        include "%[2]s/locations.conf";
    }
}
`, prefix, own, address)
	if err := os.WriteFile(prefix+"/nginx.conf", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return startPeer(t, address, exec.Command(path, "-p", prefix, "-e", "stderr", "-c", prefix+"/nginx.conf"))
}

// startCaddy serves a tree with the configuration in it.
func startCaddy(t *testing.T, address, folder string) (stop func()) {
	path, err := exec.LookPath("caddy") // no peer that make deps installs: it is large
	if err != nil {
		t.Skip("caddy is not installed, so its configuration is not tried")
	}
	home := t.TempDir()
	conf := fmt.Sprintf("{\n\tadmin off\n}\nhttp://%s {\n\timport \"%s/.bridge/Caddyfile\"\n}\n", address, folder)
	if err := os.WriteFile(home+"/Caddyfile", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "run", "--config", home+"/Caddyfile", "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home)
	return startPeer(t, address, cmd)
}

// startPeer starts a program that serves at an address, until the test ends.
func startPeer(t *testing.T, address string, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(func() {
		if stop(); t.Failed() {
			t.Logf("%s said:\n%s", cmd.Args[0], said.String())
		}
	})
	waitFor(t, func() bool {
		select {
		case <-ended:
			t.Fatalf("%s has ended: %s", cmd.Args[0], said.String())
		default:
		}
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return stop
}

// freeAddress returns an address on loopback where nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// history returns the live records of a data folder's set as lines, and how many events
// of each kind there are.
func (f *folder) history(data string) (live []string, kinds map[string]int) {
	f.t.Helper()
	byRecord := map[string]string{}
	kinds = map[string]int{}
	for line := range strings.Lines(f.run(exitDone, "log", "--data", data, "--json").stdout) {
		var ev api.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			f.t.Fatal(err)
		}
		kinds[ev.Kind]++
		text := []string{ev.Record, ev.Title, ev.Modified}
		for _, r := range ev.Representations {
			text = append(text, r.Type+" "+r.SHA256)
		}
		if delete(byRecord, ev.Record); ev.Kind != event.Deleted.String() {
			byRecord[ev.Record] = strings.Join(text, " | ")
		}
	}
	return slices.Sorted(maps.Values(byRecord)), kinds
}

// A tree is harvested from other web servers as from bridge serve itself: the same
// records, bytes and deletions, over ResourceSync and as a feed, whole and by what has
// changed.
func TestExportedTreeIsHarvestedLikeServe(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	for _, s := range treeServers() {
		t.Run(s.name+s.path, func(t *testing.T) {
			t.Parallel()
			catalogue, charts := fixtures.Catalogue(nil), fixtures.Maps(nil)
			a, b := httptest.NewServer(catalogue), httptest.NewServer(charts)
			t.Cleanup(a.Close)
			t.Cleanup(b.Close)
			f := newFolder(t, fmt.Sprintf(`data = "data"
listen = "127.0.0.1:0"
[[set]]
name = "sea-maps"
segment_events = 20
[[set.source]]
url = %q
every = "1s"
[[set.source]]
url = %q
every = "1s"
`, a.URL+fixtures.Subscription, b.URL))
			f.run(exitDone, "harvest")
			_, live := f.serve("--config", "bridge.toml") // reads and harvests beside all that follows

			address := freeAddress(t)
			out := filepath.Join(f.path, "site")
			base := "http://" + address + s.path
			export := func(args ...string) {
				f.run(exitDone, append([]string{"export", "--base-url", base, "--out", "site"}, args...)...)
			}
			export()
			f.checkSums(out)
			stop := s.start(t, address, out)
			both := func() (serve, tree [2]map[string]int) {
				for i, from := range [][2]string{{live, base}, {live + "/sets/sea-maps/feed.atom", base + "/sets/sea-maps/feed.atom"}} {
					for n, data := range []string{fmt.Sprint("serve", i), fmt.Sprint("tree", i)} {
						f.run(exitDone, "harvest", "--data", data, from[n])
					}
					want, kinds := f.history(fmt.Sprint("serve", i))
					got, treeKinds := f.history(fmt.Sprint("tree", i))
					if !slices.Equal(got, want) || len(want) < 40 {
						t.Fatalf("from %s: %d records, want %d:\n%s\n\n%s", from[1], len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
					serve[i], tree[i] = kinds, treeKinds
				}
				return serve, tree
			}
			both()

			// What changes comes through both in the same way.
			catalogue.Delete("tide-gauges")
			charts.Update(fixtures.Resource{Name: "railway-1847"})
			charts.Delete("tramways-1911")
			charts.Create(fixtures.Resource{Name: "new-chart", Title: "New chart"})
			gone := event.Key("tag:maps.averil.example,2024:tramways-1911")
			waitFor(t, func() bool {
				_, kinds := f.history("data")
				return kinds["deleted"] >= 2 && kinds["updated"] >= 1
			})
			export("--prune")
			f.checkSums(out)
			stop() // so that it reads its configuration again
			s.start(t, address, out)
			serve, tree := both()
			for i := range serve {
				if serve[i]["deleted"] != 2 || !maps.Equal(serve[i], tree[i]) {
					t.Errorf("events %v, from serve %v", tree[i], serve[i])
				}
			}
			f.checkAnswers(s, base, live, out, gone)
		})
	}
}

// waitFor waits until something is true.
func waitFor(t *testing.T, so func() bool) {
	t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for limit := time.Now().Add(patience); !so(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatal("it does not come")
		}
	}
}

// checkSums lets sha256sum check all files of a tree, and finds files that it does not
// check.
func (f *folder) checkSums(out string) {
	f.t.Helper()
	sums, err := filepath.Glob(out + "/.bridge/*.sha256")
	if err != nil || len(sums) == 0 {
		f.t.Fatalf("%v, %v", sums, err)
	}
	cmd := exec.Command(testenv.Need(f.t, "sha256sum", "coreutils"), append([]string{"-c", "--quiet", "--strict"}, sums...)...)
	cmd.Dir = out
	if said, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("sha256sum: %v\n%s", err, said)
	}
	known := map[string]bool{}
	for _, name := range sums {
		data, err := os.ReadFile(name)
		if err != nil {
			f.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			known[strings.TrimSpace(line[66:])] = true
		}
	}
	err = filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(out, path)
		if err == nil && !d.IsDir() && !strings.HasPrefix(name, ".bridge") && !known[name] {
			f.t.Errorf("%s is in no list of hashes", name)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// checkAnswers compares what a web server answers with what serve does.
func (f *folder) checkAnswers(s treeServer, base, live, out, gone string) {
	f.t.Helper()
	files, err := filepath.Glob(out + "/sets/sea-maps/records/*")
	if err != nil || len(files) < 80 {
		f.t.Fatalf("%d files of records, %v", len(files), err)
	}
	paths := []string{"/", "/robots.txt", "/.well-known/resourcesync", "/sets/sea-maps/", "/sets/sea-maps/.well-known/resourcesync", "/sets/sea-maps/capabilitylist.xml", "/sets/sea-maps/changelist/1.xml",
		"/sets/sea-maps/feed.atom", "/sets/sea-maps/feed/1.atom", "/sets/sea-maps/recent.rss", "/sets/sea-maps/recent.json", "/sets/sea-maps/records/" + gone}
	for _, file := range files {
		paths = append(paths, "/sets/sea-maps/records/"+filepath.Base(file))
	}
	names := []string{"Content-Type", "Cache-Control", "X-Content-Type-Options", "Content-Disposition"}
	for _, path := range paths {
		want, got := f.ask(live+path, false), f.ask(base+path, false)
		record := strings.Contains(path, "/records/")
		if got.status != want.status && (s.headers || got.status != http.StatusNotFound || want.status != http.StatusGone) {
			f.t.Errorf("%s: status %d, of serve %d", path, got.status, want.status)
			continue
		}
		if record && got.status == http.StatusOK && (!bytes.Equal(got.body, want.body) || got.header.Get("Content-Encoding") != "") {
			f.t.Errorf("%s: other bytes", path)
		}
		if path == "/" || path == "/sets/sea-maps/changelist/1.xml" || path == "/sets/sea-maps/feed/1.atom" {
			continue // closed documents are revalidated each time
		}
		for _, name := range names {
			if (s.types && name == "Content-Type" || s.headers) && got.status == http.StatusOK && got.header.Get(name) != want.header.Get(name) {
				f.t.Errorf("%s: %s %q, of serve %q", path, name, got.header.Get(name), want.header.Get(name))
			}
		}
		link := fmt.Sprintf(`<%s/sets/sea-maps/capabilitylist.xml>; rel="resourcesync"`, base)
		if record && s.headers && !slices.Contains(got.header.Values("Link"), link) {
			f.t.Errorf("%s: links %q", path, got.header.Values("Link"))
		}
		if lastmod := want.header.Get("Last-Modified"); record && got.status == http.StatusOK && lastmod != "" && got.header.Get("Last-Modified") != lastmod {
			f.t.Errorf("%s: last modified %q, of serve %q", path, got.header.Get("Last-Modified"), lastmod)
		}
		if !s.headers || got.status != http.StatusOK {
			continue
		}
		packed := f.ask(base+path, true)
		if want := map[bool]string{false: "gzip", true: ""}[record]; packed.header.Get("Content-Encoding") != want {
			f.t.Errorf("%s: asked for gzip: %q, want %q", path, packed.header.Get("Content-Encoding"), want)
		}
	}
	if s.headers {
		for _, path := range []string{"/.bridge/export.json", "/.bridge/t1/sea-maps/" + filepath.Base(files[0])} {
			if got := f.ask(base+path, false); got.status != http.StatusNotFound {
				f.t.Errorf("%s: status %d", path, got.status)
			}
		}
		if got := f.ask(base+"/sets/sea-maps", false); got.status != http.StatusOK || !strings.HasSuffix(got.path, "/") {
			f.t.Errorf("a set without a slash: status %d at %s", got.status, got.path)
		}
	}
}

// answered is what a web server has answered.
type answered struct {
	status int
	path   string // after redirects
	header http.Header
	body   []byte
}

func (f *folder) ask(url string, gzip bool) answered {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	if gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Request.URL.Path, resp.Header, body}
}

// An export that is killed, whenever that is, leaves a tree from which the Source can be
// harvested, and the next one makes of it what a new export gives.
func TestExportKilled(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	charts := fixtures.Maps(nil)
	source := httptest.NewServer(charts)
	t.Cleanup(source.Close)
	f := newFolder(t, fmt.Sprintf("data = \"data\"\n[[set]]\nname = \"maps\"\nsegment_events = 10\n[[set.source]]\nurl = %q\n", source.URL))
	f.run(exitDone, "harvest")
	files := http.FileServer(http.Dir(filepath.Join(f.path, "site")))
	tree := httptest.NewServer(files)
	t.Cleanup(tree.Close)
	export := []string{"export", "--base-url", tree.URL, "--out", "site"}
	f.run(exitDone, export...)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range testenv.Rounds(t, 4, 200) {
		name := fmt.Sprint("chart-", n)
		charts.Create(fixtures.Resource{Name: name, Title: name})
		charts.Update(fixtures.Resource{Name: "railway-1847"})
		if n > 0 {
			charts.Delete(fmt.Sprint("chart-", n-1))
		}
		f.run(exitDone, "harvest")
		c := f.start(export...)
		select {
		case <-c.ended:
		case <-time.After(time.Duration(r.IntN(120)) * time.Millisecond):
			c.kill()
		}
		// What was changed may be newer than the list that names it: done in part.
		f.runEnding([]int{exitDone, exitPartly}, "harvest", "--data", fmt.Sprint("copy", n), tree.URL)
		if live, _ := f.history(fmt.Sprint("copy", n)); len(live) < 19 {
			t.Fatalf("round %d: %d records", n, len(live))
		}
	}
	f.run(exitDone, append(export, "--prune")...)
	f.checkSums(filepath.Join(f.path, "site"))
	f.run(exitDone, "export", "--base-url", tree.URL, "--out", "fresh")
	var want, got bytes.Buffer
	for folder, to := range map[string]*bytes.Buffer{"site": &got, "fresh": &want} {
		for _, list := range []string{"documents", "records-maps"} {
			text, err := os.ReadFile(filepath.Join(f.path, folder, ".bridge", list+".sha256"))
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(string(text), "\n")
			slices.Sort(lines)
			to.WriteString(strings.Join(lines, ""))
		}
	}
	if got.String() != want.String() {
		t.Errorf("the tree has\n%s\na new one\n%s", got.String(), want.String())
	}
}
