package harvest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"testing"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err        error
		kind, rule string
	}{
		{&fetch.Error{Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}, harvest.KindNetwork, ""},
		{&net.DNSError{}, harvest.KindNetwork, ""},
		{&atompmh.StatusError{Status: 404}, harvest.KindHTTP, ""},
		{&resourcesync.StatusError{Status: 503}, harvest.KindHTTP, ""},
		{&oaipmh.StatusError{Status: 401}, harvest.KindLogin, ""},
		{&fetch.Error{Err: &fetch.WaitError{}}, harvest.KindWait, ""},
		{&fetch.Error{Err: fetch.ErrAddress}, harvest.KindRefused, ""},
		{&atompmh.DocumentError{Reason: "no XML"}, harvest.KindDocument, ""},
		{&resourcesync.NoSourceError{}, harvest.KindDocument, ""},
		{&atompmh.EntryError{Rule: "S2"}, harvest.KindDocument, "S2"},
		{&oaipmh.Error{Code: oaipmh.BadArgument}, harvest.KindDocument, "badArgument"},
		{&atompmh.DocumentError{Cap: "depth"}, harvest.KindLimit, ""},
		{fetch.ErrTooLarge, harvest.KindLimit, ""},
		{harvest.ErrSpent, harvest.KindSpent, ""},
		{eventlog.ErrFull, harvest.KindLocal, ""},
		{event.ErrClock, harvest.KindLocal, ""},
		{&fs.PathError{Op: "open", Path: "records", Err: syscall.ENOENT}, harvest.KindLocal, ""},
		{defect.Guard(func() error { panic("a defect") }), harvest.KindDefect, ""},
		{errors.New("something else"), harvest.KindOther, ""},
	} {
		if kind, rule := harvest.Classify(fmt.Errorf("a Source: %w", c.err)); kind != c.kind || rule != c.rule {
			t.Errorf("%T %v: %q, %q, want %q, %q", c.err, c.err, kind, rule, c.kind, c.rule)
		}
	}
}
