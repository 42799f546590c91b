package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// TestLogElsewhere: the log that [store] names is opened, and no other: while it cannot be
// had none begins in the data folder. The error does not show the password.
func TestLogElsewhere(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	c := loadText(t, folder, fmt.Sprintf("data = %q\n[store]\nlog = \"postgres://bridge:rosebud@127.0.0.1:1/bridge?connect_timeout=5\"\n", data))
	for _, o := range []Options{{}, {ReadOnly: true}, {DryRun: true}} {
		b, err := Open(t.Context(), c, o)
		if err == nil {
			t.Fatalf("%+v: there is a log: %v", o, b.Close())
		}
		if strings.Contains(err.Error(), "rosebud") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := os.Stat(filepath.Join(data, eventlog.FileName)); !os.IsNotExist(err) {
		t.Errorf("a log was begun in the data folder: %v", err)
	}
}

// TestReloadKeepsLog: where the log is cannot change while bridge runs.
func TestReloadKeepsLog(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	text := fmt.Sprintf("data = %q\n", filepath.Join(folder, "data"))
	b := openWritten(t, file, text)
	if err := os.WriteFile(file, []byte(text+"[store]\nlog = \"postgres://bridge:rosebud@db.example/bridge\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	was := b.generation.Load()
	if said, err := b.Reload(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "these keys cannot be changed while bridge runs: restart bridge serve, or write them as they were: store") || len(said) > 0 || b.generation.Load() != was {
		t.Errorf("said %q, %v", said, err)
	}
}

// TestSizes: Prometheus reads the size of the log where it is: that of log.db, or of the
// tables on the server.
func TestSizes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	b := openWritten(t, filepath.Join(folder, "bridge.toml"), fmt.Sprintf("data = %q\n", data))
	files := func() (names []string) {
		w := httptest.NewRecorder()
		b.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, m := range regexp.MustCompile(`(?m)^bridge_file_bytes\{file="(.*)"\} [1-9]`).FindAllStringSubmatch(w.Body.String(), -1) {
			names = append(names, m[1])
		}
		if !strings.Contains(w.Body.String(), "\nbridge_state_readable 1\n") {
			t.Error("the state was not read")
		}
		return names
	}
	if all := strings.Join(files(), " "); all != "content.db log.db" {
		t.Errorf("in the data folder: %s", all)
	}
	if err := os.WriteFile(filepath.Join(data, eventlog.URLName), []byte("postgres://bridge@db.example/bridge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(files(), " "); all != "content.db log" {
		t.Errorf("on a server: %s", all)
	}
}

// D150: a bridge whose log has records that it mirrors, and whose content.db is
// empty, is not ready; with one content, or with nothing to mirror, it is.
func TestNotReadyWithoutContents(t *testing.T) {
	ctx := t.Context()
	for _, mode := range []event.Content{event.Mirror, event.Reference} {
		c := config.Default()
		c.Data = t.TempDir()
		h, err := Open(ctx, c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if err := h.ready(ctx); err != nil {
			t.Errorf("%v, empty: %v", mode, err)
		}
		if err := h.Log.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: mode}); err != nil {
			t.Fatal(err)
		}
		id, err := h.Log.EnsureSource(ctx, "main", "atompmh", "https://origin.example/feed.atom", 0)
		if err != nil {
			t.Fatal(err)
		}
		draft := content.NewDraft([]byte("content"))
		item := &event.Item{Observation: event.Observation{Record: "urn:example:1", Modified: event.StampFromNanos(1), Fetched: true,
			Representations: []event.Representation{{Href: "https://origin.example/1", Type: "text/plain", Length: 7, Hash: event.HashOf(draft.Sum())}}}}
		if _, err := h.Log.Append(ctx, &event.Batch{Source: id, Start: true, Documents: []event.Document{{URL: "https://origin.example/feed.atom"}}, Items: []*event.Item{item}}); err != nil {
			t.Fatal(err)
		}
		err = h.ready(ctx)
		if lost := mode == event.Mirror; lost != (err != nil) || lost && !strings.Contains(err.Error(), "content.db") {
			t.Errorf("%v, without contents: %v", mode, err)
		}
		if err := h.Contents.Put(ctx, draft); err != nil {
			t.Fatal(err)
		}
		if err := h.ready(ctx); err != nil {
			t.Errorf("%v, with a content: %v", mode, err)
		}
	}
}

// What to do about an address that cannot be listened on depends on why.
func TestListenAdvice(t *testing.T) {
	for why, want := range map[syscall.Errno]string{syscall.EACCES: "put a web server in front", syscall.EADDRINUSE: "stop what uses that address", syscall.EADDRNOTAVAIL: "give this machine that address"} {
		if got := listenAdvice(&net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", why)}); !strings.Contains(got, want) {
			t.Errorf("%v: %s", why, got)
		}
	}
}
