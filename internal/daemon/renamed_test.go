package daemon_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
)

// While a set gets another name its addresses are not answered 404, which says that its records
// are gone: the log has the name before this process redirects from the former one.
func TestServeWhileRenamed(t *testing.T) {
	b := newHarness(t, fixtures.Catalogue(nil), content("reference"))
	b.harvest()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- b.bridge.Serve(ctx, l, nil) }()
	status := func(path string, want int) {
		t.Helper()
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != want || err != nil || want == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s is answered %s, %v; want %d", path, resp.Status, err, want)
		}
		_ = resp.Body.Close() // it was read
	}
	const list, repository = "/changelist.xml", "/oai?verb=ListIdentifiers&metadataPrefix=oai_dc&from=2020-01-01"
	status("/sets/main"+list, 200)
	status("/sets/main"+repository, 200)
	if err := b.bridge.Log.RenameSet(t.Context(), "main", "renamed", false); err != nil {
		t.Fatal(err)
	}
	status("/sets/main"+list, 503)
	status("/sets/main"+repository, 503)
	status("/sets/main/records/none", 503)
	status("/sets/renamed"+list, 200)
	status("/sets/none"+list, 404)
	status("/none", 404)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
