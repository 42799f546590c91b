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

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// submissionDiffCommand shows what a submission under review would change.
func submissionDiffCommand() *cobra.Command {
	cmd := command("submission diff")
	in := newInputs(cmd)
	cmd.Args = cobra.ExactArgs(1)
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
			_, err = fmt.Fprintf(w, "--- %s\n+++ submission %d\n%s", oneLine(name), s.ID, diff(elements(published), elements(record)))
			return err
		})
	}
	return cmd
}

// elements parts XML into lines: those that it has, and one for each start tag that
// follows another tag at once.
func elements(xml []byte) []string {
	if len(xml) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(strings.ReplaceAll(strings.ReplaceAll(string(xml), "\r\n", "\n"), "><", ">\n<"), "\n"), "\n")
}

// mostCompared bounds what diff compares line by line: beyond it, what is between
// the first and the last difference is shown as other altogether.
const mostCompared = 4_000_000

// diff returns the lines of two texts, those of one alone with - or + in front.
func diff(old, new []string) string {
	var out strings.Builder
	same := 0
	for same < len(old) && same < len(new) && old[same] == new[same] {
		fmt.Fprintf(&out, "  %s\n", oneLine(old[same]))
		same++
	}
	old, new = old[same:], new[same:]
	end := 0
	for end < len(old) && end < len(new) && old[len(old)-1-end] == new[len(new)-1-end] {
		end++
	}
	tail := old[len(old)-end:]
	old, new = old[:len(old)-end], new[:len(new)-end]
	if len(old)*len(new) > mostCompared {
		writeLines(&out, "- ", old)
		writeLines(&out, "+ ", new)
	} else {
		compare(&out, old, new)
	}
	writeLines(&out, "  ", tail)
	return out.String()
}

// compare writes the lines of both, with as many in common as there are.
func compare(out *strings.Builder, old, new []string) {
	// common[i][j] is how many lines old[i:] and new[j:] have in common, in their
	// order.
	common := make([][]int32, len(old)+1)
	for i := range common {
		common[i] = make([]int32, len(new)+1)
	}
	for i := len(old) - 1; i >= 0; i-- {
		for j := len(new) - 1; j >= 0; j-- {
			if old[i] == new[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(old) && j < len(new) {
		switch {
		case old[i] == new[j]:
			writeLines(out, "  ", old[i:i+1])
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			writeLines(out, "- ", old[i:i+1])
			i++
		default:
			writeLines(out, "+ ", new[j:j+1])
			j++
		}
	}
	writeLines(out, "- ", old[i:])
	writeLines(out, "+ ", new[j:])
}

func writeLines(out *strings.Builder, mark string, lines []string) {
	for _, line := range lines {
		out.WriteString(mark + oneLine(line) + "\n")
	}
}

// submissionExportCommand writes submissions and their records as files.
func submissionExportCommand() *cobra.Command {
	cmd := command("submission export")
	in, set, pick := newInputs(cmd), addSet(cmd), newSelection(cmd)
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := pick.query(*set)
		if err != nil {
			return err
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			n, err := exportSubmissions(ctx, b, q, pick.review, args[0])
			if err == nil {
				fmt.Fprintf(w, "%s in %s\n", plural(n, "submission", "submissions"), args[0])
			}
			return err
		})
	}
	return cmd
}

// exportSubmissions writes NUMBER.xml for each that has a record, and a line of
// JSON in submissions.jsonl for each.
func exportSubmissions(ctx context.Context, h *daemon.Bridge, q submission.Query, review bool, folder string) (n int, err error) {
	peers, err := partners(ctx, h)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	var index bytes.Buffer
	if err := eachSelected(ctx, h, q, review, 0, func(s *submission.Submission) error {
		n++
		line, err := submissionLine(ctx, h, s, peers)
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
