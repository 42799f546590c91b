package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
)

func reloadCommand() *cobra.Command {
	cmd := command("reload")
	in := newInputs(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// serve checks the file, and has the secrets that the service alone may read.
		folder, err := in.folder()
		if err != nil {
			return err
		}
		refused := ""
		err = daemon.SendDecisions(cmd.Context(), folder, []daemon.Decision{{Reload: true}}, func(_ int, done daemon.DecisionResult) {
			if refused = done.Error; refused == "" {
				fmt.Fprintln(cmd.OutOrStdout(), done.Result)
			}
		})
		switch {
		case errors.Is(err, daemon.ErrNotServing):
			return fmt.Errorf("no bridge serve has the data folder %s: there is nothing to reload; bridge serve reads its configuration when it starts", folder)
		case refused != "":
			return usage(fmt.Errorf("nothing has changed: %s", refused))
		}
		return err
	}
	return cmd
}
