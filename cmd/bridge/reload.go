package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
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
		err = sendReload(cmd.Context(), folder, func(done daemon.DecisionResult) {
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

// sendReload asks the process that serves from a data folder to read its configuration again. It
// waits for one that is starting, which may have read that already; a node of several that stands
// by takes no commands.
func sendReload(ctx context.Context, folder string, told func(daemon.DecisionResult)) error {
	for limit := time.Now().Add(lockPatience); ; {
		err := daemon.SendDecisions(ctx, folder, []daemon.Decision{{Reload: true}}, func(_ int, done daemon.DecisionResult) { told(done) })
		holder := eventlog.Holder(folder)
		if !errors.Is(err, daemon.ErrNotServing) || !strings.HasPrefix(holder, "bridge serve (") {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s has the data folder %s, and accepts no commands yet: try again when it serves", holder, folder)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
}
