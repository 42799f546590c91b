package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/export"
)

// exportTree exports a log to a folder beside it, after Changes new records. Count is the
// number of written files, and Bytes their total size.
func exportTree(ctx context.Context, j job, _ func(result)) (r result, err error) {
	if j.Changes > 0 {
		b, err := newBuilder(ctx, j)
		if err != nil {
			return r, err
		}
		j.Number = b.next + j.Changes
		if err := b.log.Close(); err != nil {
			return r, err
		}
		if _, err := buildLog(ctx, j, nil); err != nil {
			return r, err
		}
	}
	c, err := config.FromArguments(config.Flags{Data: j.Folder, Listen: "127.0.0.1:0"}, nil)
	if err != nil {
		return r, err
	}
	h, err := daemon.Open(ctx, c, daemon.Options{ReadOnly: true})
	if err != nil {
		return r, err
	}
	start := time.Now()
	report, err := h.Export(ctx, export.Options{BaseURL: base, Folder: j.Folder + "-site"})
	r.Took, r.Count, r.Bytes = time.Since(start), report.Files, report.Bytes
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("problems: %q", report.Problems)
	}
	return r, errors.Join(err, h.Close())
}

// exportRows are a first export and one after a few changes.
func exportRows(n int, mode string, bars bool) rowsOf {
	return func(all []results) ([]row, error) {
		first, second := last(all).jobs[0], last(all).jobs[1]
		written := func(r result) string {
			return fmt.Sprintf("%s, %s files, %s", short(r.Took), thousands(r.Count), megabytes(r.Bytes))
		}
		rows := []row{
			{name: "export of " + thousands(n) + " records, mode " + mode + ", durable (once)", ours: written(first), peak: first.Peak, cpu: first.CPU},
			{name: fmt.Sprintf("again, with %d new records", fewRecords), ours: written(second), peak: second.Peak, cpu: second.CPU},
		}
		if bars {
			rows[0].bars = []bar{below("under 60 s", first.Took.Seconds(), 60)}
			rows[1].bars = []bar{below("under 3 s", second.Took.Seconds(), 3), below("under 100 files", float64(second.Count), 100)}
		}
		return rows, nil
	}
}
