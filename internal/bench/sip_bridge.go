package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
)

const (
	// servicePath is where the set main is served.
	servicePath = "/sip/main"
	// format is the root element and the schema of all records here.
	format = `{ "{urn:example:bench}map" = "https://bench.example/map.xsd" }`
	// recordSize is about how long a record is.
	recordSize = 2048
)

// filling makes a record of recordSize bytes, together with what is around it.
func filling() string {
	line := "<name>Sheet of the survey, printed in two colours</name>"
	return strings.Repeat(line, (recordSize-90)/len(line))
}

// appendRecord appends record n as a document of its own. Another version is
// other bytes.
func appendRecord(to []byte, n, version int, filling string) []byte {
	return fmt.Appendf(to, `<map xmlns="urn:example:bench"><number>%08d</number><version>%d</version>%s</map>`, n, version, filling)
}

// identifier is how the source of a record, or a log, names it.
func identifier(n int) string { return fmt.Sprintf("urn:example:map:%08d", n) }

// openSIP opens a data folder whose set main takes part in the protocol as these
// lines of a configuration say.
func openSIP(ctx context.Context, folder, lines string) (*daemon.Bridge, error) {
	file := filepath.Join(folder, "bridge.toml")
	text := fmt.Sprintf("data = %q\nlisten = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n%s", folder, lines)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	c, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	return daemon.Open(ctx, c, daemon.Options{Command: "bench"})
}

// libraryLines make it an ingest server that knows who calls, so that there is no
// quota, targetLines a submitter to a URL, which
// is notified of what became of its submissions.
func libraryLines() string {
	return "[[set.source]]\nkind = \"sip\"\nmode = \"library\"\nformats = " + format + "\naccess = \"addresses\"\naccess_addresses = [\"127.0.0.1\"]\n"
}

func targetLines(url string) string {
	return fmt.Sprintf("[[set.submit]]\nurl = %q\nformats = %s\n", url, format)
}

// serveLibrary is bridge serve as an ingest server. Count is how many records it
// has in the end.
func serveLibrary(ctx context.Context, j job, ready func(result)) (r result, err error) {
	h, err := openSIP(ctx, j.Folder, libraryLines())
	if err != nil {
		return r, err
	}
	if err = served(ctx, h, ready); err == nil {
		var s event.Set
		s, err = h.Log.Set(context.WithoutCancel(ctx), "main")
		r.Count = s.Live
	}
	return r, errors.Join(err, h.Close())
}

// serveTarget is bridge serve as a submitter that is owed dispositions. Count is
// how many submissions are accepted in the end.
func serveTarget(ctx context.Context, j job, ready func(result)) (r result, err error) {
	h, err := openSIP(ctx, j.Folder, targetLines(unusedServer))
	if err != nil {
		return r, err
	}
	if err = served(ctx, h, ready); err == nil {
		r.Count, err = acceptedBy(context.WithoutCancel(ctx), h.SIP)
	}
	return r, errors.Join(err, h.Close())
}

// served serves until the parent wants no more.
func served(ctx context.Context, h *daemon.Bridge, ready func(result)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(ctx, l, nil) }()
	ready(result{URL: "http://" + l.Addr().String()})
	stop()
	return <-ended
}

// acceptedBy returns how many submissions the targets of the set main have
// accepted.
func acceptedBy(ctx context.Context, l *store.Store) (n int64, err error) {
	targets, err := l.Targets(ctx, "main")
	if err != nil {
		return 0, err
	}
	for _, t := range targets {
		c, err := l.Counts(ctx, t.ID)
		if err != nil {
			return 0, err
		}
		n += c.Submissions[submission.StateAccepted]
	}
	return n, nil
}
