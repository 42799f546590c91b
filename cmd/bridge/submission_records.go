package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// submissionDiffCommand prints what a submission under review would change.
func submissionDiffCommand() *cobra.Command {
	cmd := command("submission diff")
	in := newInputs(cmd)
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := submissionID(args[0])
		if err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			s, err := b.Submission(ctx, id)
			if err != nil {
				return err
			}
			replaced, err := b.Replaces(ctx, s)
			if err != nil {
				return err
			}
			record, err := b.Record(ctx, s)
			if err != nil {
				return err
			}
			var published []byte
			name := "nothing: it is a new record"
			if replaced != nil {
				name = replaced.Record
				if published, err = b.Published(ctx, replaced); err != nil {
					return err
				}
			}
			var out strings.Builder
			fmt.Fprintf(&out, "--- %s\n+++ submission %d\n", oneLine(name), s.ID)
			for _, line := range daemon.Diff(string(published), string(record)) {
				fmt.Fprintf(&out, "%s %s\n", line.Sign, oneLine(line.Text))
			}
			_, err = io.WriteString(w, out.String())
			return err
		})
	}
	return cmd
}

// submissionExportCommand writes submissions and their records as files.
func submissionExportCommand() *cobra.Command {
	cmd := command("submission export")
	in, set, pick := newInputs(cmd), addSet(cmd), newSelection(cmd)
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := pick.query(*set)
		if err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			n, err := exportSubmissions(ctx, b, q, args[0])
			if err == nil {
				fmt.Fprintf(w, "%s in %s\n", plural(n, "submission", "submissions"), args[0])
			}
			return err
		})
	}
	return cmd
}

// exportSubmissions writes NUMBER.xml for each submission that has a record, and a line of
// JSON in submissions.jsonl for each submission.
func exportSubmissions(ctx context.Context, h *daemon.Bridge, q submission.Query, folder string) (n int, err error) {
	peers, err := api.Partners(ctx, h)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	var index bytes.Buffer
	if err := eachSelected(ctx, h, q, 0, func(s *submission.Submission) error {
		n++
		line, err := api.SubmissionOf(ctx, h, s, peers)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(&index).Encode(line); err != nil || s.Content == [32]byte{} {
			return err
		}
		record, err := h.Record(ctx, s)
		if err != nil {
			return fmt.Errorf("submission %d: %w", s.ID, err)
		}
		return os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.xml", s.ID)), record, 0o644)
	}); err != nil {
		return n, err
	}
	return n, os.WriteFile(filepath.Join(folder, "submissions.jsonl"), index.Bytes(), 0o644)
}
