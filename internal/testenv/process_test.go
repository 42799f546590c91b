package testenv_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// fated returns a process whose second point has a fate.
func fated(f testenv.Fate) *testenv.Life {
	return &testenv.Life{Plan: func(n int, _ string) testenv.Fate {
		if n == 2 {
			return f
		}
		return testenv.GoesWell
	}}
}

// What a fate says is done has been done, and nothing is done by a process that has ended.
func TestFates(t *testing.T) {
	for _, c := range []struct {
		fate testenv.Fate
		done string // of the three actions
		err  error  // of the second
	}{
		{testenv.GoesWell, "123", nil},
		{testenv.Fails, "13", testenv.ErrBroken},
		{testenv.CutOff, "123", testenv.ErrBroken},
		{testenv.Refused, "13", testenv.ErrBroken},
		{testenv.Muted, "123", nil},
		{testenv.KilledBefore, "1", testenv.ErrKilled},
		{testenv.KilledAfter, "12", testenv.ErrKilled},
	} {
		l, done := fated(c.fate), ""
		for i, query := range []string{"", "SELECT 1", ""} {
			err := l.Hook(query, func() error { done += string('1' + rune(i)); return nil })
			if want := c.err; i == 1 && !errors.Is(err, want) {
				t.Errorf("%v: %v, want %v", c.fate, err, want)
			}
		}
		if killed := c.err == testenv.ErrKilled; done != c.done || l.Killed() != killed {
			t.Errorf("%v: the actions %s were done, want %s; killed: %t, want %t", c.fate, done, c.done, l.Killed(), killed)
		}
	}
	calm := fated(testenv.Fails)
	calm.Calm()
	for range 2 {
		if err := calm.Pass("any", func() error { return nil }); err != nil {
			t.Errorf("after Calm: %v", err)
		}
	}
	calm.Kill()
	if err := calm.Pass("any", func() error { t.Error("a dead process has acted"); return nil }); !errors.Is(err, testenv.ErrKilled) {
		t.Errorf("after Kill: %v", err)
	}
}

// A message with a fate arrives, or does not, and its sender is told so, or not.
func TestFatesOfMessages(t *testing.T) {
	arrived := 0
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived++
		w.WriteHeader(http.StatusTeapot)
	}))
	defer peer.Close()
	for _, c := range []struct {
		fate            testenv.Fate
		arrived, status int // status 0: an error
	}{
		{testenv.GoesWell, 2, http.StatusTeapot},
		{testenv.Fails, 1, 0},
		{testenv.CutOff, 2, 0},
		{testenv.Refused, 1, 0},
		{testenv.Muted, 2, http.StatusAccepted},
		{testenv.KilledBefore, 1, 0},
		{testenv.KilledAfter, 2, 0},
	} {
		arrived = 0
		client := &http.Client{Transport: testenv.Wire{RoundTripper: http.DefaultTransport, Life: fated(c.fate), Point: "send"}}
		status := 0
		for range 2 {
			status = 0
			resp, err := client.Post(peer.URL, "text/plain", strings.NewReader("a message"))
			if err == nil {
				status = resp.StatusCode
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Error(err)
				}
				resp.Body.Close()
			}
		}
		if arrived != c.arrived || status != c.status {
			t.Errorf("%v: %d messages arrived, want %d; the status was %d, want %d", c.fate, arrived, c.arrived, status, c.status)
		}
	}
}

// As many calls fail as were asked for, before or after they have acted; a query never does.
func TestFaults(t *testing.T) {
	var f testenv.Faults
	acted := 0
	act := func() error { acted++; return nil }
	f.Before.Store(1)
	f.After.Store(1)
	for i, want := range []error{testenv.ErrBroken, testenv.ErrBroken, nil} {
		if err := f.Hook("", act); !errors.Is(err, want) || acted != i {
			t.Errorf("call %d: %v after %d actions; want %v after %d", i+1, err, acted, want, i)
		}
	}
	f.Before.Store(1)
	if err := f.Hook("SELECT 1", act); err != nil || acted != 3 || f.Calls.Load() != 2 {
		t.Errorf("a query: %v; %d actions, %d calls counted", err, acted, f.Calls.Load())
	}
}
