package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// TestTerminateGateway ends a gateway with SIGTERM while 32 requests wait for an
// ingest server that takes its time: all of them are told that they are in doubt,
// and so they are when it starts again.
func TestTerminateGateway(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const n = 32
	arrived, release := make(chan struct{}, n), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !bytes.Contains(body, []byte("ingest-request")) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		arrived <- struct{}{}
		<-release
	}))
	defer slow.Close()
	defer close(release)

	s := newStation(t, "gateway", newProxy(t, idle()), fmt.Sprintf("\n[[set]]\nname = \"gate\"\n[[set.source]]\nkind = \"sip\"\nmode = \"gateway\"\nupstream = %q\n", slow.URL))
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	client := &sip.HTTPClient{URL: s.proxy.url() + "/sip/gate"}
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			id := fmt.Sprint("record ", i)
			_, err := client.Ingest(context.Background(), &sip.Request{Source: &sip.Source{Identifier: &id}, Record: sip.Record{XML: []byte("<r/>")}})
			var fault *sip.Fault
			if !errors.As(err, &fault) || fault.Code != sip.Server || !strings.HasPrefix(fault.Text, "in doubt: ") {
				t.Errorf("%s is answered: %v", id, err)
			}
		})
	}
	for range n {
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatalf("the requests are not sent on\n%s", s.serve.stderr.String())
		}
	}
	began := time.Now()
	if err := s.serve.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	callers.Wait()
	status, err := s.serve.status()
	if took := time.Since(began); err != nil || status != exitDone || overdue(took, 10*time.Second) {
		t.Errorf("ended with %d after %v, %v; want 0 within 10 s\n%s", status, took, err, s.serve.stderr.String())
	}
	s.proxy.shut()
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(s.run("submission", "ls", "--set", "gate", "--state", "in doubt", "--limit", "0"), "in doubt"); got != n {
		t.Errorf("%d of %d are in doubt", got, n)
	}
}
