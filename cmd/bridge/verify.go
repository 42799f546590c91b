package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func verifyCommand() *cobra.Command {
	cmd := command("verify")
	in, asJSON := newInputs(cmd), addJSON(cmd)
	packs := cmd.Flags().Bool("contents", false, "read all contents that are in a bucket too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		found := 0
		err := in.read(cmd, func(ctx context.Context, w io.Writer, b *daemon.Bridge) error {
			var printed error
			did, err := b.Verify(ctx, *packs, func(f daemon.Finding) {
				found++
				if *asJSON {
					printed = errors.Join(printed, printJSON(w, f))
					return
				}
				_, err := fmt.Fprintf(w, "%s: %s\n    %s\n", f.Where, f.What, f.Do)
				printed = errors.Join(printed, err)
			})
			switch {
			case err != nil || printed != nil:
				return errors.Join(err, printed)
			case *asJSON:
				return printJSON(w, jsonVerified{did, found})
			}
			_, err = fmt.Fprintf(w, "checked %s, %s, %s: %s\n", plural(int(did.Events), "event", "events"), plural(int(did.Contents), "content", "contents"),
				plural(int(did.Documents), "closed document", "closed documents"), plural(found, "finding", "findings"))
			return err
		})
		if err == nil && found > 0 {
			return &exitError{status: exitFailed}
		}
		return err
	}
	return cmd
}

// The last line of bridge verify --json.
type jsonVerified struct {
	daemon.Verified
	Findings int `json:"findings"`
}
