//go:build unix

package database

import (
	"net"
	"strings"
	"syscall"
	"time"
)

// silence is how long a server may say nothing to what it has been sent, or asked, before
// the connection counts as lost: its machine may have vanished.
const silence = time.Minute

// dialer connects to a server. A server that is busy with a long statement still answers
// the probes of its connection.
func dialer() *net.Dialer {
	const probes = 6
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 2 / probes, Count: probes},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var err error
			if outer := c.Control(func(fd uintptr) { err = limitSilence(int(fd)) }); outer != nil {
				return outer
			}
			return err
		},
	}
}
