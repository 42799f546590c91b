package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
)

func configCommand() *cobra.Command {
	return group("config", configCheckCommand())
}

func configCheckCommand() *cobra.Command {
	cmd := command("config check")
	var in inputs
	in.addFile(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(cmp.Or(in.file, defaultFile))
		if err != nil {
			return usage(err)
		}
		return printConfig(cmd.OutOrStdout(), c)
	}
	return cmd
}

func printConfig(w io.Writer, c *config.Config) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: no errors\n", c.File)
	reached := cmp.Or(c.BaseURL, "the port that it gets")
	fmt.Fprintf(&b, "listen %s, reached as %s\ndata %s\n", c.Listen, reached, c.Data)
	if len(c.Sets) == 0 {
		fmt.Fprintf(&b, "no sets: serve publishes what the data folder has, and harvests nothing\n")
	}
	for _, set := range c.Sets {
		fmt.Fprintf(&b, "set %s: %s, %s\n", set.Name, set.Content, counted(len(set.Sources), "Source", "Sources"))
		for _, s := range set.Sources {
			switch {
			case s.SIP == nil:
				fmt.Fprintf(&b, "  %s, every %s\n", s.URL, short(s.Every))
			case s.SIP.Mode == "":
				fmt.Fprintf(&b, "  /sip/%s takes notifications\n", set.Name)
			default:
				fmt.Fprintf(&b, "  /sip/%s is an ingest server, mode %s\n", set.Name, s.SIP.Mode)
			}
		}
		for _, t := range set.Submit {
			fmt.Fprintf(&b, "  submits to %s\n", t.URL)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// short writes a duration as people do: 1h, not 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
