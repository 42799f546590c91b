package database

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestServerVanished: a connection to a machine that has vanished ends within a minute, also
// while nobody waits for the server, and when what was sent does not arrive.
func TestServerVanished(t *testing.T) {
	r, err := testKind.openPostgres(testenv.SharedPostgres(t).URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := r.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Raw(func(c any) error {
		raw, err := c.(*postgresConn).inner.Conn().PgConn().Conn().(syscall.Conn).SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) {
			option := func(option int) time.Duration {
				n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
				if err != nil {
					t.Error(err)
				}
				return time.Duration(n)
			}
			if sent := option(unix.TCP_USER_TIMEOUT) * time.Millisecond; sent != time.Minute {
				t.Errorf("what was sent may take %v", sent)
			}
			if quiet := (option(unix.TCP_KEEPIDLE) + option(unix.TCP_KEEPINTVL)*option(unix.TCP_KEEPCNT)) * time.Second; quiet < 50*time.Second || quiet > time.Minute {
				t.Errorf("the server may be quiet for %v", quiet)
			}
			if on, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on != 1 {
				t.Errorf("probes: %d %v", on, err)
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
}
