package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

func serveCommand() *cobra.Command {
	cmd := command("serve")
	var acceptClock, newData, verbose bool
	var format, role string
	in := newAsking(cmd)
	cmd.Flags().StringVar(&in.flags.Listen, "listen", "", "`address` of the server (default "+config.Default().Listen+")")
	cmd.Flags().StringVar(&in.flags.BaseURL, "base-url", "", "the `URL` under which others reach the server (default http:// and the address)")
	cmd.Flags().BoolVar(&acceptClock, "accept-clock", false, "accept the time of a clock that has jumped ahead")
	cmd.Flags().BoolVar(&newData, "new-data", false, "create a new log in a data folder that was used before")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also log every request, and harvests that found nothing new")
	cmd.Flags().StringVar(&format, "log-format", "", "how lines are logged: `text` or json (default text on a terminal, else json)")
	cmd.Flags().StringVar(&role, "role", roleAll, "what this process does: `all`, or as one of several nodes web or worker")
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if format != "" && format != "text" && format != "json" {
			return usage(fmt.Errorf(`--log-format: %q is no format; write text or json`, format))
		}
		if role != roleAll && role != roleWeb && role != roleWorker {
			return usage(fmt.Errorf(`--role: %q is no role; write all, web or worker`, role))
		}
		// From here on a hangup does not end the process. One that arrives during the start
		// is handled when there is a configuration to reload.
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		c, err := in.resolve(args)
		if err != nil {
			return err
		}
		level := slog.LevelInfo
		if verbose {
			level = slog.LevelDebug
		}
		stderr := unescaped(cmd.ErrOrStderr())
		_, terminal := stderr.(*escaping)
		log := daemon.NewLogger(stderr, level, format == "json" || format == "" && !terminal)
		o := daemon.Options{AcceptClock: acceptClock, NewData: newData, Command: "bridge serve", Logger: log}
		if role == roleAll {
			return serve(cmd.Context(), c, hangups, o, cmd.OutOrStdout())
		}
		if err := checkNode(c, role); err != nil {
			return err
		}
		o.Command += " --role " + role
		n := &node{role: role, hangups: hangups, options: o, out: cmd.OutOrStdout(), reload: func() (*config.Config, error) { return in.resolve(args) }}
		return n.serve(cmd.Context(), c)
	}
	return cmd
}

// serve harvests and publishes until ctx ends. The end of ctx is no error, even during the
// start.
func serve(ctx context.Context, c *config.Config, hangups <-chan os.Signal, o daemon.Options, out io.Writer) error {
	if !anySource(c, func(*config.Source) bool { return true }) && !daemon.HasLog(c.Data) {
		if c.File != "" {
			return usage(fmt.Errorf("%s is empty, and there is no Source in %s: add a [[set]] with a [[set.source]], as this does:\n  bridge source add https://data.example.org/feed.atom", c.Data, c.File))
		}
		return usage(fmt.Errorf("%s is empty and no Source is given: name one, like:\n  bridge serve https://data.example.org/feed.atom\nor write a bridge.toml with: bridge init", c.Data))
	}
	_, err := serveOn(ctx, c, hangups, o, out, nil)
	return err
}

// serveOn is serve on a listener; nil opens the one that is configured. It returns the
// configuration that was in force last.
func serveOn(ctx context.Context, c *config.Config, hangups <-chan os.Signal, o daemon.Options, out io.Writer, listener net.Listener) (*config.Config, error) {
	// Open the data folder first: an error about its lock is more useful than one about the
	// port.
	h, err := openBridge(ctx, c, o)
	if err != nil {
		if listener != nil {
			err = errors.Join(err, listener.Close())
		}
		return c, unlessEnded(ctx, err)
	}
	if listener == nil {
		if listener, err = listen(ctx, c); err != nil {
			return c, errors.Join(err, h.Close())
		}
	}
	if err := h.ListenMail(ctx); err != nil {
		return c, errors.Join(unlessEnded(ctx, err), listener.Close(), h.Close())
	}
	if err := openConsole(ctx, h, h.Base(listener), out, o.Logger); err != nil {
		return c, errors.Join(unlessEnded(ctx, err), listener.Close(), h.Close())
	}
	end := reloadOnHangup(ctx, h, hangups)
	if err := printServing(ctx, out, h, h.Base(listener), listener.Addr()); err != nil {
		end()
		return c, errors.Join(unlessEnded(ctx, err), listener.Close(), h.Close())
	}
	err = h.Serve(ctx, listener, nil)
	end()
	return h.FileConfig(), errors.Join(err, h.Close())
}

// listen listens on the address of the server.
func listen(ctx context.Context, c *config.Config) (net.Listener, error) {
	return daemon.Listen(ctx, c.Listen, "", "choose another with --listen")
}

// openConsole adds the console to a bridge, if it is configured, and prints its address.
func openConsole(ctx context.Context, h *daemon.Bridge, base string, out io.Writer, log *slog.Logger) error {
	c := h.Config()
	if c.ConsoleListen == "" && c.ConsoleToken.Reveal() == "" {
		return nil
	}
	o := console.Options{Bridge: h, Base: base, Token: c.ConsoleToken.Reveal(), Version: version(), Logger: log}
	if c.ConsoleListen == "" {
		o.Secure = strings.HasPrefix(base, "https:")
		h.SetConsole(console.New(o), nil)
		fmt.Fprintf(out, "console: %s%s\n", base, console.Path)
		return nil
	}
	l, err := daemon.Listen(ctx, c.ConsoleListen, " for the console", "choose another console_listen")
	if err != nil {
		return err
	}
	h.SetConsole(console.New(o), l)
	fmt.Fprintf(out, "console: http://%s%s\n", l.Addr(), console.Path)
	return nil
}

// reloadOnHangup reads the configuration again on each hangup until end is called.
func reloadOnHangup(ctx context.Context, b *daemon.Bridge, hangups <-chan os.Signal) (end func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-hangups:
				_, _ = b.Reload(ctx) // Reload logs the result
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// printServing prints what is served and what to do next.
func printServing(ctx context.Context, out io.Writer, h *daemon.Bridge, base string, address net.Addr) error {
	fmt.Fprintf(out, `serving %s on %s
  %[1]s/                            a page of what there is
  %[1]s/.well-known/resourcesync    for ResourceSync
  %[1]s/sets/SET/feed.atom          for Atom-PMH, one feed for each set
  %[1]s/sets/SET/oai                for OAI-PMH, one repository for each set
`, base, address)
	for _, s := range h.Sources() {
		if s.Kind == harvest.SIP {
			continue
		}
		if s.Kind == harvest.Set {
			fmt.Fprintf(out, "%s: taking what set %s has, as soon as it has it\n", s.Set, harvest.MemberOf(s.URL))
			continue
		}
		first := "now"
		switch wait, err := h.DueIn(ctx, s); {
		case err != nil:
			return err
		case wait > 365*24*time.Hour:
			first = "once it is resumed"
		case wait > 0:
			first = "in " + short(wait.Round(time.Second))
		}
		fmt.Fprintf(out, "%s: harvesting %s %s, then every %s\n", s.Set, daemon.Redact(s.URL), first, short(s.Every))
	}
	for _, s := range h.Templates() {
		fmt.Fprintf(out, "%s: asking %s for its sets now, then every %s; each becomes a set\n", s.Set, daemon.Redact(s.URL), short(s.Every))
	}
	printSIP(out, h, base)
	if len(h.Sources())+len(h.Templates()) == 0 {
		fmt.Fprintf(out, "no Source is given: publishing what %s has, harvesting nothing\n", h.Config().Data)
	}
	if w := h.PathWarning(); w != "" {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	for _, n := range h.Config().Notes() {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	for _, w := range h.Config().Warnings() {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	fmt.Fprintf(out, "bridge status --data %s shows the progress; stop with Ctrl-C\n", h.Config().Data)
	return nil
}

// printSIP prints the SIP services and targets.
func printSIP(out io.Writer, h *daemon.Bridge, base string) {
	for _, s := range h.SIPSets() {
		token, mailbox := "", s.Mailbox
		if s.Token {
			token, mailbox = "/TOKEN", strings.Replace(mailbox, "@", "+TOKEN@", 1)
		}
		fmt.Fprintf(out, "%s: %s/sip/%s%s %s (description: ?wsdl)\n", s.Set, base, s.Set, token, roleOf(s.Mode))
		if s.Mailbox != "" {
			fmt.Fprintf(out, "%s: mail to %s is accepted at %s\n", s.Set, mailbox, s.SMTPListen)
		}
		for _, url := range s.Targets {
			fmt.Fprintf(out, "%s: submitting records to %s\n", s.Set, url)
		}
	}
}
