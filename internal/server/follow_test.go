package server_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The script that docs/consumers.md offers keeps a folder equal to a set, over segments
// that close, deletions, records that come back, and runs that are far apart.
func TestScriptOfTheGuide(t *testing.T) {
	h := newTestServer(t, "", nil).set("main", "Main", event.Mirror)
	folder := filepath.Join(t.TempDir(), "copy")
	rnd, live := rand.New(rand.NewPCG(7, 7)), map[string]string{}
	for run := range 6 {
		if run == 5 { // as if the log had lost what it had before
			if err := os.WriteFile(filepath.Join(folder, ".mark"), []byte("2001-01-01T00:00:00.000000Z"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, event.Key("urn:example:lost")), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for i := range rnd.IntN(20) + 1 {
			id := fmt.Sprint("urn:example:", rnd.IntN(12))
			if live[event.Key(id)] != "" && rnd.IntN(3) == 0 {
				h.dead("main", id)
				delete(live, event.Key(id))
				continue
			}
			body := fmt.Sprintf("%s, run %d, change %d", id, run, i)
			h.alive("main", id, rep{"text/plain", body})
			live[event.Key(id)] = body
		}
		h.followGuide(run, folder, live)
	}
}

// followGuide runs the script of docs/consumers.md over the set main; then its folder must have the
// live records, by their keys, and nothing else.
func (h *testServer) followGuide(run int, folder string, live map[string]string) {
	h.t.Helper()
	cmd := exec.Command(testenv.Need(h.t, "python3", "python3"), filepath.Join(testenv.Root(h.t), "docs", "follow.py"), h.base+"/sets/main/capabilitylist.xml", folder)
	cmd.Env = append(os.Environ(), "no_proxy=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("run %d: %v\n%s", run, err, out)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil || len(files) != len(live)+1 { // its mark
		h.t.Errorf("run %d: %d files, want %d: %v", run, len(files), len(live)+1, err)
	}
	for key, want := range live {
		if got, err := os.ReadFile(filepath.Join(folder, key)); err != nil || string(got) != want {
			h.t.Errorf("run %d: %s is %q, want %q: %v", run, key, got, want, err)
		}
	}
}

// What the script cannot read ends it with a sentence.
func TestScriptOfTheGuideSaysWhatFails(t *testing.T) {
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy.xml" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "no XML")
	}))
	defer source.Close()
	for path, want := range map[string]string{
		"/busy.xml":  source.URL + "/busy.xml answers 503; nothing is lost: run this again, ",
		"/other.xml": "syntax error: line 1, column 0; nothing is lost: run this again\n",
		"":           "python3 follow.py http",
	} {
		args := []string{filepath.Join(testenv.Root(t), "docs", "follow.py"), source.URL + path, filepath.Join(t.TempDir(), "copy")}
		if path == "" {
			args = args[:1]
		}
		cmd := exec.Command(testenv.Need(t, "python3", "python3"), args...)
		cmd.Env = append(os.Environ(), "no_proxy=*")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "Traceback") {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// meddled are contents before the next of which something happens, once.
type meddled struct {
	server.Contents
	before atomic.Pointer[func()]
}

func (m *meddled) Open(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error) {
	if do := m.before.Swap(nil); do != nil {
		(*do)()
	}
	return m.Contents.Open(ctx, sum)
}

// A run of the script ends although records change while it fetches them: the first one, and one
// that begins anew.
func TestScriptOfTheGuideUnderChange(t *testing.T) {
	contents := &meddled{}
	h := newTestServer(t, "", func(o *server.Options) { contents.Contents, o.Contents = o.Contents, contents }).set("main", "Main", event.Mirror)
	folder, live := filepath.Join(t.TempDir(), "copy"), map[string]string{}
	set := func(id, body string) {
		if live[event.Key(id)] = body; body == "" {
			h.dead("main", id)
			delete(live, event.Key(id))
			return
		}
		h.alive("main", id, rep{"text/plain", body})
	}
	for _, id := range []string{"urn:a", "urn:b", "urn:c", "urn:d"} {
		set(id, "first of "+id)
	}
	set("urn:d", "")
	for run, meanwhile := range []func(){
		func() { set("urn:b", "second"); set("urn:c", "") },
		func() { set("urn:b", "third"); set("urn:d", "back") },
	} {
		if run == 1 { // as if the log had lost what it had before
			set("urn:e", "new")
			for name, text := range map[string]string{".mark": "2001-01-01T00:00:00.000000Z", event.Key("urn:d"): "old", event.Key("urn:lost"): "old"} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		contents.before.Store(&meanwhile)
		h.followGuide(run, folder, live)
	}
}
