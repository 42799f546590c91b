package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// packages is a Source with nothing but dumps: packages of small records. At a byte that
// the test chooses it stands still until the test lets it go on.
type packages struct {
	t     *testing.T
	pages map[string][]byte

	sent   atomic.Int64  // bytes of packages
	stopAt atomic.Int64  // where it stands still; 0 is nowhere
	stands chan struct{} // gets one when it does
	mu     sync.Mutex
	goOn   chan struct{} // closed to let it go on
}

func packedRecord(n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("<record>%d</record>\n", n)), 40+n%30)
}

// newPackages serves a dump with so many packages of so many records, and a Change Dump
// that deletes the first record of each and updates the second.
func newPackages(t *testing.T, number, each int) (*packages, *httptest.Server) {
	t.Helper()
	p := &packages{t: t, pages: map[string][]byte{}, stands: make(chan struct{}, 1), goOn: make(chan struct{})}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	at := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	up := []resourcesync.Link{{Rel: resourcesync.RelUp, Href: server.URL + "/cap.xml"}}
	dump := resourcesync.Document{Capability: resourcesync.ResourceDump, At: resourcesync.Seconds(at), Links: up}
	for i := range number {
		var records []resourcesync.Entry
		for j := range each {
			records = append(records, record(server.URL, i*each+j, 0))
		}
		e := p.write(fmt.Sprintf("/%d.zip", i), &resourcesync.Document{Capability: resourcesync.ResourceDumpManifest, At: dump.At, Links: up}, records)
		e.Loc, e.Metadata.At = server.URL+e.Loc, dump.At
		dump.Entries = append(dump.Entries, e)
	}
	var changed []resourcesync.Entry
	until := at
	for i := range number {
		gone, other := record(server.URL, i*each, 0), record(server.URL, i*each+1, number*each)
		gone.Metadata = resourcesync.Metadata{Change: resourcesync.Deleted}
		other.Metadata.Change = resourcesync.Updated
		for _, e := range []resourcesync.Entry{gone, other} {
			until = until.Add(time.Second)
			e.Metadata.Datetime = resourcesync.Seconds(until)
			changed = append(changed, e)
		}
	}
	changes := resourcesync.Document{Capability: resourcesync.ChangeDump, From: dump.At, Links: up}
	e := p.write("/changes.zip", &resourcesync.Document{Capability: resourcesync.ChangeDumpManifest, From: dump.At, Until: resourcesync.Seconds(until), Links: up}, changed)
	e.Loc, e.Metadata.From, e.Metadata.Until = server.URL+e.Loc, dump.At, resourcesync.Seconds(until)
	changes.Entries = append(changes.Entries, e)
	p.put("/dump.xml", &dump)
	p.put("/changes.xml", &changes)
	p.put("/cap.xml", &resourcesync.Document{Capability: resourcesync.CapabilityList, Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: server.URL + "/"}}, Entries: []resourcesync.Entry{
		{Loc: server.URL + "/dump.xml", Metadata: resourcesync.Metadata{Capability: resourcesync.ResourceDump}},
		{Loc: server.URL + "/changes.xml", Metadata: resourcesync.Metadata{Capability: resourcesync.ChangeDump}},
	}})
	return p, server
}

// record is the entry of record n, with the bytes of record n+version.
func record(base string, n, version int) resourcesync.Entry {
	content := packedRecord(n + version)
	return resourcesync.Entry{Loc: fmt.Sprintf("%s/records/%d", base, n), Metadata: resourcesync.Metadata{Path: fmt.Sprintf("/records/%d", n+version),
		Hash: fmt.Sprintf("sha-256:%x", sha256.Sum256(content)), Length: resourcesync.Bytes(int64(len(content))), Type: "application/xml"}}
}

func (p *packages) put(path string, doc *resourcesync.Document) {
	var b bytes.Buffer
	if _, err := doc.WriteTo(&b); err != nil {
		p.t.Fatal(err)
	}
	p.pages[path] = b.Bytes()
}

// write writes a package and returns its entry.
func (p *packages) write(path string, head *resourcesync.Document, records []resourcesync.Entry) resourcesync.Entry {
	manifest, err := os.CreateTemp(p.t.TempDir(), "manifest")
	if err != nil {
		p.t.Fatal(err)
	}
	defer manifest.Close()
	var b bytes.Buffer
	w := resourcesync.NewDumpWriter(&b, manifest, head)
	for i := range records {
		err := w.Entry(&records[i], func(m *resourcesync.Metadata) (io.ReadCloser, error) {
			var n int
			_, err := fmt.Sscanf(m.Path, "/records/%d", &n)
			return io.NopCloser(bytes.NewReader(packedRecord(n))), err
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.pages[path] = b.Bytes()
	return resourcesync.Entry{Loc: path, Metadata: resourcesync.Metadata{Type: "application/zip", Length: resourcesync.Bytes(int64(b.Len())), Hash: fmt.Sprintf("sha-256:%x", sha256.Sum256(b.Bytes()))}}
}

func (p *packages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page, ok := p.pages[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(page)))
	in := io.ReadSeeker(bytes.NewReader(page))
	if strings.HasSuffix(r.URL.Path, ".zip") {
		in = &slowReader{ReadSeeker: in, p: p}
	}
	http.ServeContent(w, r, r.URL.Path, time.Time{}, in)
}

// slowReader stands still where the test wants it.
type slowReader struct {
	io.ReadSeeker
	p *packages
}

func (s *slowReader) Read(b []byte) (int, error) {
	n, err := s.ReadSeeker.Read(b[:min(len(b), 2048)])
	if sent, at := s.p.sent.Add(int64(n)), s.p.stopAt.Load(); at > 0 && sent >= at && s.p.stopAt.CompareAndSwap(at, 0) {
		s.p.mu.Lock()
		goOn := s.p.goOn
		s.p.mu.Unlock()
		s.p.stands <- struct{}{}
		<-goOn
	}
	return n, err
}

// A bridge that is killed while it harvests a dump, in the middle of a package or after
// it, goes on or repeats: in the end each record was logged once, with its bytes.
func TestKillInDump(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const number, each = 6, 100
	p, server := newPackages(t, number, each)
	var whole int64
	for path, page := range p.pages {
		if strings.HasSuffix(path, ".zip") {
			whole += int64(len(page))
		}
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range testenv.Rounds(t, 3, 60) {
		f := newFolder(t, "data = \"data\"\n[[set]]\nname = \"main\"\n[[set.source]]\nkind = \"resourcesync\"\nurl = \""+server.URL+"/cap.xml\"\n")
		for kill := range 5 {
			p.sent.Store(0)
			p.stopAt.Store(1 + random.Int64N(whole))
			c := f.start("harvest", "--config", "bridge.toml", "--quiet")
			stood := false
			select {
			case <-p.stands:
				stood = true
				if kill%2 == 1 { // or some time after that byte
					p.release()
					select {
					case <-c.ended:
					case <-time.After(time.Duration(random.IntN(100)) * time.Millisecond):
					}
				}
			case <-c.ended:
			}
			c.kill()
			if stood {
				p.release()
			}
		}
		p.stopAt.Store(0)
		f.run(exitDone, "harvest", "--config", "bridge.toml")
		f.run(exitDone, "verify", "--config", "bridge.toml")
		wantPacked(t, f, number, each)
		if left, err := filepath.Glob(filepath.Join(f.path, "data", "underway", "*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if t.Failed() {
			t.Fatalf("in round %d of seed %d", round, seed)
		}
	}
}

// release lets the server go on.
func (p *packages) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.goOn)
	p.goOn = make(chan struct{})
}

// wantPacked fails unless each record was logged once, as it is at last: the changes are
// read before what they changed.
func wantPacked(t *testing.T, f *folder, number, each int) {
	t.Helper()
	log := f.run(exitDone, "log", "--config", "bridge.toml", "--json").stdout
	seen := map[string]string{}
	for line := range strings.Lines(log) {
		var e struct {
			Record, Kind    string
			Representations []struct{ SHA256 string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if seen[e.Record] != "" || e.Kind != "created" || len(e.Representations) != 1 {
			t.Errorf("%s", line)
			continue
		}
		seen[e.Record] = e.Representations[0].SHA256
	}
	for n := range number * each {
		content := packedRecord(n)
		if n%each == 1 {
			content = packedRecord(n + number*each)
		}
		want := fmt.Sprintf("%x", sha256.Sum256(content))
		for record, sum := range seen {
			if strings.HasSuffix(record, fmt.Sprintf("/records/%d", n)) && sum == want {
				delete(seen, record)
				want = ""
			}
		}
		if (want == "") != (n%each != 0) {
			t.Errorf("record %d is not as it should be", n)
		}
	}
	if len(seen) > 0 {
		t.Errorf("besides: %v", seen)
	}
}

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
