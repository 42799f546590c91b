package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// TestLogElsewhere: the log that [store] names is opened, and no other: while it cannot be
// had none begins in the data folder. The error does not show the password.
func TestLogElsewhere(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, data := filepath.Join(folder, "bridge.toml"), filepath.Join(folder, "data")
	if err := os.WriteFile(file, fmt.Appendf(nil, "data = %q\n[store]\nlog = \"postgres://bridge:rosebud@127.0.0.1:1/bridge?connect_timeout=5\"\n", data), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
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
