package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
)

func initCommand() *cobra.Command {
	cmd := command("init")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := writeTemplate(defaultFile); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "wrote %s\nadd a [[set]] with a [[set.source]] to it, then: bridge config check\n", defaultFile)
		return err
	}
	return cmd
}

// writeTemplate never replaces a file: it may be the only copy of somebody's
// work.
func writeTemplate(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already and stays as it is: move it away first", name)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(config.Template())
	return errors.Join(err, f.Close())
}
