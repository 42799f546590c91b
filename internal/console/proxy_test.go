package console_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// A console at an address of its own, behind a trusted web server, counts wrong tokens for each
// client of that server: nobody locks out the others.
func TestWrongTokensBehindAProxy(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	file := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(file, []byte("data = \"data\"\ntrusted_proxies = [\"127.0.0.1\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	public, private := listen(t), listen(t)
	b.SetConsole(console.New(console.Options{Bridge: b, Token: token}), private)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx, public, nil) }()
	transport := &http.Transport{}
	defer func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := &site{t: t, client: &http.Client{Transport: transport}}
	ask := func(client, token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+private.Addr().String()+"/api/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", client)
		req.Header.Set("Authorization", "Bearer "+token)
		return s.do(req).StatusCode
	}
	for range 20 {
		if got := ask("203.0.113.7", "a wrong token"); got != http.StatusUnauthorized {
			t.Fatalf("a wrong token: %d", got)
		}
	}
	if got := ask("203.0.113.7", token); got != http.StatusUnauthorized {
		t.Errorf("after twenty wrong ones of its address: %d", got)
	}
	if got := ask("203.0.113.8", token); got != http.StatusOK {
		t.Errorf("the token from another address: %d", got)
	}
}
