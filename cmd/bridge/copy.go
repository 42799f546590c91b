package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/backup"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func copyCommand() *cobra.Command {
	cmd := command("copy")
	var from, to string
	cmd.Flags().StringVar(&from, "from", "", "the configuration `file` of the data folder as it is")
	cmd.Flags().StringVar(&to, "to", "", "the configuration `file` of what it is copied to")
	quiet, asJSON := cmd.Flags().Bool("quiet", false, "show no progress"), addJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if from == "" || to == "" {
			return usage(errors.New("copy needs two configurations: --from that of now, --to that of later"))
		}
		was, err := config.LoadWith(from, config.Flags{WithoutSecrets: true})
		if err != nil {
			return usage(err)
		}
		will, err := config.LoadWith(to, config.Flags{WithoutSecrets: true})
		if err != nil {
			return usage(err)
		}
		if !daemon.HasLog(was.Data) {
			return usage(fmt.Errorf("%s, the data folder of %s, holds no log", was.Data, from))
		}
		var told func(rows int64)
		if bar := newBar(cmd.ErrOrStderr(), *quiet, -1, "copying", "rows"); bar != nil {
			told = func(rows int64) { _ = bar.Set64(rows) }
			defer func() { _ = bar.Finish() }()
		}
		c, err := backup.Copy(cmd.Context(), backup.Place{Folder: was.Data, URL: was.Store.Log}, backup.Place{Folder: will.Data, URL: will.Store.Log, Bucket: will.Store.Contents}, told)
		if err == nil {
			if err := daemon.Remember(will); err != nil {
				return fmt.Errorf("the data folder was copied, but that the new one is used could not be noted beside %s: %w", to, err)
			}
		}
		switch {
		case errors.As(err, new(*backup.InputError)), errors.Is(err, backup.ErrInUse):
			return usage(err)
		case err != nil:
			return err
		case *asJSON:
			return printJSON(cmd.OutOrStdout(), &c)
		}
		return printCopied(cmd.OutOrStdout(), &c, will.Store.Log, to)
	}
	return cmd
}

func printCopied(w io.Writer, c *backup.Copied, url, config string) error {
	end := "no events"
	if c.LastObserved != nil {
		end = fmt.Sprintf("last event %d of %s", c.Last, c.LastObserved.UTC().Format("2006-01-02T15:04:05Z"))
	}
	if _, err := fmt.Fprintf(w, "copied %s to %s, the log in %s, %s\n", c.From, c.To, cmp.Or(daemon.Redact(url), "log.db"), end); err != nil {
		return err
	}
	if err := printSets(w, c.Sets); err != nil {
		return err
	}
	if c.Compared != nil {
		if _, err := fmt.Fprintf(w, "%s of the log in %d tables were read again, and are the same; contents: %d bytes\n",
			plural(int(c.Compared.Rows), "row", "rows"), c.Compared.Tables, c.ContentBytes); err != nil {
			return err
		}
		if len(c.Compared.Others) > 0 {
			if _, err := fmt.Fprintf(w, "not copied, because they are not bridge's: the tables %s\n", strings.Join(c.Compared.Others, ", ")); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s can only be read from now on.\nNext: bridge verify --config %s, then bridge serve --config %[2]s.\n", c.From, config)
	return err
}
