package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func verifyCommand() *cobra.Command {
	cmd := command("verify")
	var in inputs
	var asJSON bool
	in.addFile(cmd)
	in.addData(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON lines")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := in.read(cmd)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		found := 0
		var printed error
		did, err := h.Verify(cmd.Context(), func(f daemon.Finding) {
			found++
			printed = errors.Join(printed, printFinding(out, f, asJSON))
		})
		if err = errors.Join(err, printed, h.Close()); err != nil {
			return err
		}
		if asJSON {
			err = printJSON(out, jsonVerified{did, found})
		} else {
			_, err = fmt.Fprintf(out, "checked %s, %s, %s: %s\n", plural(int(did.Events), "event", "events"), plural(int(did.Contents), "content", "contents"),
				plural(int(did.Documents), "closed document", "closed documents"), plural(found, "finding", "findings"))
		}
		if err != nil {
			return err
		}
		if found > 0 {
			return &exitError{status: exitFailed}
		}
		return nil
	}
	return cmd
}

// The last line of bridge verify --json.
type jsonVerified struct {
	daemon.Verified
	Findings int `json:"findings"`
}

func printFinding(w io.Writer, f daemon.Finding, asJSON bool) error {
	if asJSON {
		return printJSON(w, f)
	}
	_, err := fmt.Fprintf(w, "%s: %s\n    %s\n", f.Where, f.What, f.Do)
	return err
}
