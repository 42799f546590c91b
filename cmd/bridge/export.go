package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/export"
)

func exportCommand() *cobra.Command {
	cmd := command("export")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	var o export.Options
	cmd.Flags().StringVar(&o.BaseURL, "base-url", "", "the `URL` under which the files will be served")
	cmd.Flags().StringVar(&o.Folder, "out", "", "the `folder` to write to: a new or empty one, or that of an earlier export")
	cmd.Flags().StringArrayVar(&o.Sets, "set", nil, "only the set with this `name`; can be given several times")
	cmd.Flags().BoolVar(&o.Prune, "prune", false, "remove documents that nothing names any more")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.BaseURL == "" || o.Folder == "" {
			return usage(errors.New("give the URL under which the files will be served with --base-url, and the folder to write to with --out"))
		}
		return in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			r, err := b.Export(ctx, o)
			if _, ok := errors.AsType[*export.InputError](err); ok {
				return usage(err)
			}
			if err != nil {
				return err
			}
			if *asJSON {
				err = printExportJSON(w, &r)
			} else {
				err = printExport(w, &r)
			}
			if err != nil || len(r.Problems) == 0 {
				return err
			}
			return partFailure(fmt.Errorf("done in part: %s", plural(len(r.Problems), "problem", "problems")))
		})
	}
	return cmd
}

func printExport(w io.Writer, r *export.Report) error {
	for _, s := range r.Sets {
		files := ""
		if s.Content != "reference" {
			files = ", " + plural(int(s.Files), "file or redirect of them", "files or redirects of them")
		}
		if _, err := fmt.Fprintf(w, "%s: %s as of event %d%s\n", s.Name, plural(int(s.Records), "record", "records"), s.Seq, files); err != nil {
			return err
		}
	}
	for _, p := range r.Problems {
		if _, err := fmt.Fprintf(w, "PROBLEM: %s\n", daemon.Redact(p)); err != nil {
			return err
		}
	}
	if r.Stale > 0 {
		if _, err := fmt.Fprintf(w, "%s that nothing names any more: --prune removes them\n", plural(r.Stale, "document", "documents")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "wrote %s (%d bytes), removed %d; %d of %s unchanged; %s\nserve the folder %s; .bridge in it has configurations for web servers\n",
		plural(int(r.Files), "file", "files"), r.Bytes, r.Removed, r.Unchanged, plural(r.Documents, "document", "documents"), r.Took.Round(time.Millisecond), r.Folder)
	return err
}

// jsonExport is the last line of bridge export --json; a line for each set comes before.
type jsonExport struct {
	Folder string `json:"folder"`
	export.Written
	Documents int      `json:"documents"`
	Unchanged int      `json:"unchanged"`
	Stale     int      `json:"stale"`
	Problems  []string `json:"problems"`
	Seconds   float64  `json:"seconds"`
}

func printExportJSON(w io.Writer, r *export.Report) error {
	for _, s := range r.Sets {
		if err := printJSON(w, s); err != nil {
			return err
		}
	}
	problems := []string{}
	for _, p := range r.Problems {
		problems = append(problems, daemon.Redact(p))
	}
	return printJSON(w, jsonExport{r.Folder, r.Written, r.Documents, r.Unchanged, r.Stale, problems, r.Took.Seconds()})
}
