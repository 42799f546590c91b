// Command bridge harvests metadata records from servers that speak older or rarer
// protocols and republishes them in the protocols that others want to read. See
// "bridge --help".
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func main() {
	log.SetOutput(io.Discard) // net/http writes there what servers say beyond the end of an answer
	daemon.LimitMemory()
	ctx, cancel := context.WithCancel(context.Background())
	ends := make(chan os.Signal, 2)
	signal.Notify(ends, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ends
		cancel()
		// A second signal ends the process without waiting for requests under way. What was
		// acknowledged is durable.
		fmt.Fprintf(os.Stderr, "bridge: %s: ending at once\n", <-ends)
		os.Exit(exitFailed)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
