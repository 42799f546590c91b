package ingest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/sip"
)

// sayings is a log that is read while it is written.
type sayings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sayings) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// take returns what was said since the last time.
func (s *sayings) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}

// Of callers who are not let in an operator is told, at once, and once a minute.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said sayings
		log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		d := &Server{Set: "maps", Access: Access{Kind: AccessBasic, User: "u", Password: "p"}, Log: log}
		refuse := func(last byte, c sip.Caller) {
			t.Helper()
			c.Address = netip.AddrFrom4([4]byte{192, 0, 2, last})
			if err := d.Admit(context.Background(), c); err == nil {
				t.Error("let in")
			}
		}
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			got := strings.TrimSuffix(said.take(), "\n")
			if want := strings.Join(lines, "\n"); got != want {
				t.Errorf("the log has\n%s\nwant\n%s", got, want)
			}
		}
		line := func(calls, last int, why string) string {
			return fmt.Sprintf(`level=INFO msg="callers were denied access" set=maps calls=%d last=192.0.2.%d why=%q`, calls, last, why)
		}
		refuse(1, sip.Caller{})
		want(line(1, 1, "no user name and password"))
		for i := range 100 {
			refuse(byte(i), sip.Caller{HasLogin: true, User: "u", Password: "x"})
		}
		want("")
		time.Sleep(time.Minute)
		want(line(100, 99, "a wrong user name or password"))
		time.Sleep(time.Hour)
		want("")
		refuse(7, sip.Caller{})
		want(line(1, 7, "no user name and password"))
	})
}
