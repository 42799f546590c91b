// Command bridge harvests metadata records from servers that speak older or rarer
// protocols and republishes them in the protocols that others want to read. See
// "bridge --help".
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func main() {
	daemon.LimitMemory()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
