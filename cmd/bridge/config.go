package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

func configCommand() *cobra.Command {
	return group("config", configCheckCommand())
}

func configCheckCommand() *cobra.Command {
	cmd := command("config check")
	var in inputs
	in.addFile(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.LoadWith(cmp.Or(in.file, defaultFile), config.Flags{WithoutCredentials: true})
		if err == nil && anySource(c, func(s *config.Source) bool { return s.SIP != nil && len(s.SIP.Schemas) > 0 }) {
			_, err = daemon.Validator()
		}
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
	fmt.Fprintf(&b, "listen %s, reached as %s\n", c.Listen, reached)
	if len(c.TrustedProxies) > 0 {
		fmt.Fprintf(&b, "trusted proxies %s\n", networks(c.TrustedProxies))
	}
	fmt.Fprintf(&b, "data %s\n", c.Data)
	if c.Store.Log != "" {
		fmt.Fprintf(&b, "log %s\n", daemon.Redact(c.Store.Log))
	}
	if c.Store.Contents != "" {
		fmt.Fprintf(&b, "contents %s\n", c.Store.Contents)
	}
	if c.Store.Files != "" {
		fmt.Fprintf(&b, "files %s\n", c.Store.Files)
	}
	if len(c.Sets) == 0 {
		fmt.Fprintf(&b, "no sets: serve publishes what the data folder has, and harvests nothing\n")
	}
	if c.Mail.From != "" && anySource(c, func(s *config.Source) bool { return s.SIP != nil }) {
		fmt.Fprintf(&b, "mail from %s, by %s\n", c.Mail.From, cmp.Or(c.Mail.Relay, "the mail servers of its recipients"))
	}
	for _, set := range c.Sets {
		if set.IsTemplate() {
			fmt.Fprintf(&b, "sets %s-...: %s, one for each set of the Source\n", set.Name, set.Content)
		} else {
			fmt.Fprintf(&b, "set %s: %s, %s\n", set.Name, set.Content, plural(len(set.Sources), "Source", "Sources"))
		}
		for _, s := range set.Sources {
			if s.Kind == config.KindSet {
				fmt.Fprintf(&b, "  what set %s has\n", s.Member())
				continue
			}
			if s.SIP == nil {
				fmt.Fprintf(&b, "  %s, every %s\n", daemon.Redact(s.URL), short(s.Every))
				continue
			}
			fmt.Fprintf(&b, "  /sip/%s %s, access %s\n", set.Name, roleOf(s.SIP.Mode), accessOf(&s.SIP.Access))
			if s.SIP.Mailbox != "" {
				fmt.Fprintf(&b, "  mail to %s is accepted at %s\n", s.SIP.Mailbox, s.SIP.SMTPListen)
			}
		}
		for _, t := range set.Submit {
			fmt.Fprintf(&b, "  submits to %s\n", daemon.Redact(t.URL))
		}
	}
	for _, note := range c.Notes() {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	for _, warning := range c.Warnings() {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// roleOf describes what a SIP service does in a mode.
func roleOf(mode string) string {
	if mode == "" {
		return "takes notifications"
	}
	return "is an ingest server, mode " + mode
}

// accessOf describes who may call a service, without secrets.
func accessOf(a *config.Access) string {
	switch a.Kind {
	case config.AccessBasic:
		return a.Kind + ", user " + a.User
	case config.AccessAddresses:
		return a.Kind + ", " + networks(a.Addresses)
	}
	return a.Kind
}

// networks writes networks as they may be typed: a single address without its prefix
// length.
func networks(all []netip.Prefix) string {
	words := make([]string, len(all))
	for i, p := range all {
		words[i] = p.String()
		if p.IsSingleIP() {
			words[i] = p.Addr().String()
		}
	}
	return strings.Join(words, ", ")
}

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

// writeTemplate never replaces an existing file: it may be the only copy of somebody's
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
