package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// TestKillSnapshot kills bridge serve while it makes the snapshots of a set that
// is too large for a Resource List on request. Whoever asks gets an old snapshot
// whole or a new one whole, and no snapshot is older than one seen before. It needs more than
// 50,000 records. Elsewhere TestSnapshotFaults of internal/publish ends a snapshot at each of
// its steps, and TestKillDumpWriting kills what writes dumps, which are kept the same way.
func TestKillSnapshot(t *testing.T) {
	testenv.Soak(t)
	t.Parallel()
	rounds := testenv.Rounds(t, 1, 100)
	const perDocument = 1000
	var chain atomic.Pointer[testserver.Chain]
	chain.Store(&testserver.Chain{Documents: 51, Entries: perDocument})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { chain.Load().ServeHTTP(w, r) }))
	defer upstream.Close()
	f := newFolder(t, fmt.Sprintf("listen = \"127.0.0.1:0\"\nbase_url = %q\nsnapshot = { after_change = \"1s\" }\n[[set]]\nname = \"big\"\ncontent = \"reference\"\n"+
		"[[set.source]]\nurl = %q\nevery = \"1s\"\n", killBase, upstream.URL+fixtures.Subscription))
	seen, answers := 0, 0
	look := func(server string) error {
		n, err := wholeSnapshot(server, "/sets/big/resourcelist.xml")
		switch {
		case err != nil:
			return err
		case n < seen || n%perDocument != 0 || n > chain.Load().Records():
			return fmt.Errorf("a Resource List of %d records, after one of %d; the Source has %d, in documents of %d", n, seen, chain.Load().Records(), perDocument)
		}
		if seen = n; n > 0 {
			answers++
		}
		return nil
	}
	for i := range rounds {
		c, server := f.serve()
		var err error
		chain.Store(&testserver.Chain{Documents: 52 + i, Entries: perDocument})
		died := time.AfterFunc(time.Duration(rand.IntN(2500))*time.Millisecond, c.kill)
		for err == nil || errors.Is(err, errNotReady) {
			err = look(server)
		}
		if !errors.Is(err, errCut) {
			t.Errorf("round %d: %v", i, err)
		}
		died.Stop()
		c.kill()
	}

	c, server := f.serve()
	var err error
	for limit := time.Now().Add(patience); err == nil && seen < chain.Load().Records() && time.Now().Before(limit); {
		if err = look(server); errors.Is(err, errNotReady) {
			err = nil
		}
	}
	if err != nil || seen != chain.Load().Records() {
		t.Errorf("in the end the Resource List has %d records, want %d; %v\n%s", seen, chain.Load().Records(), err, c.stderr.String())
	}
	c.kill()
	f.run(exitDone, "verify")
	t.Logf("%d rounds, %d whole Resource Lists, the last of %d records", rounds, answers, seen)
}

// errNotReady: there is no snapshot yet.
var errNotReady = errors.New("there is no snapshot yet")

// wholeSnapshot counts the records of a Resource List and of all its parts.
func wholeSnapshot(server, path string) (int, error) {
	resp, err := http.Get(server + path)
	if err != nil {
		return 0, errCut
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, errCut
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
		return 0, errNotReady
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	var l list
	if err := xml.Unmarshal(body, &l); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	n := len(l.Resources)
	for _, part := range l.Lists {
		in, err := wholeSnapshot(server, strings.TrimPrefix(part.Loc, killBase))
		if err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}
