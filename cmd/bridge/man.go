package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pmh-bridge/bridge/internal/config"
)

func manCommand() *cobra.Command {
	cmd := command("man")
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // everybody may read a manual
			return err
		}
		return writeManuals(cmd.Root(), args[0])
	}
	return cmd
}

// writeManuals writes the pages of a command and of its subcommands; with the first command
// it also writes that of the configuration.
func writeManuals(cmd *cobra.Command, folder string) error {
	pages := map[string]string{manualName(cmd) + ".1": manual(cmd)}
	if !cmd.HasParent() {
		pages["bridge.toml.5"] = configManual()
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil { //nolint:gosec // see above
			return err
		}
	}
	for _, sub := range documented(cmd) {
		if err := writeManuals(sub, folder); err != nil {
			return err
		}
	}
	return nil
}

// documented returns the subcommands of a command that have a page.
func documented(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(c *cobra.Command) bool {
		return c.Hidden || c.Name() == "help"
	})
}

func manualName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// roff builds a manual page in the macros of man(7).
type roff struct{ strings.Builder }

// manual returns the page of a command.
func manual(cmd *cobra.Command) string {
	r := new(roff)
	r.title(manualName(cmd), "1", "User Commands")
	r.section("NAME")
	r.line(`%s \- %s`, roffText(manualName(cmd)), roffText(cmd.Short))
	r.section("SYNOPSIS")
	r.line(`\fB%s\fR %s`, roffText(cmd.CommandPath()), roffText(strings.TrimSpace(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()))))
	if cmd.Long != "" {
		r.section("DESCRIPTION")
		r.paragraphs(cmd.Long)
	}
	if subs := documented(cmd); len(subs) > 0 {
		r.section("COMMANDS")
		for _, sub := range subs {
			r.line(".TP\n\\fB%s\\fR(1)\n%s", roffText(manualName(sub)), roffText(sub.Short))
		}
	}
	if cmd.HasAvailableLocalFlags() {
		r.section("OPTIONS")
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			value, does := pflag.UnquoteUsage(f)
			names := `\fB\-\-` + roffText(f.Name) + `\fR`
			if f.Shorthand != "" {
				names = `\fB\-` + f.Shorthand + `\fR, ` + names
			}
			if value != "" {
				names += ` \fI` + roffText(value) + `\fR`
			}
			r.line(".TP\n%s\n%s", names, roffText(does))
		})
	}
	if !cmd.HasParent() {
		r.section("FILES")
		r.line(".TP\n\\fI./bridge.toml\\fR, \\fI/etc/bridge/bridge.toml\\fR\nthe configuration: see \\fBbridge.toml\\fR(5)")
		r.line(".TP\n\\fI./bridge\\-data\\fR, \\fI/var/lib/bridge\\fR\nthe data folder")
	}
	if cmd.Example != "" {
		r.section("EXAMPLES")
		r.verbatim(cmd.Example)
	}
	r.section("SEE ALSO")
	others := []string{"bridge.toml(5)"}
	if parent := cmd.Parent(); parent != nil {
		others = []string{manualName(parent) + "(1)"}
	}
	r.line("%s", roffText(strings.Join(others, ", ")))
	return r.String()
}

// configManual returns the page of the configuration file, which is its template.
func configManual() string {
	r := new(roff)
	r.title("bridge.toml", "5", "File Formats")
	r.section("NAME")
	r.line(`bridge.toml \- the configuration of bridge`)
	r.section("DESCRIPTION")
	r.line("This is the file that \\fBbridge init\\fR writes, with every key and its default. \\fBbridge config check\\fR\nreports all that is wrong with a file.")
	r.section("THE FILE")
	r.verbatim(config.Template())
	r.section("SEE ALSO")
	r.line(`bridge(1), bridge\-init(1), bridge\-config\-check(1)`)
	return r.String()
}

func (r *roff) title(name, section, manual string) {
	version, _, _ := strings.Cut(version(), ", ")
	r.line(`.TH %q %q %q %q %q`, strings.ToUpper(name), section, builtOn(), version, manual)
}

func (r *roff) section(name string) { r.line(".SH %s", name) }

// paragraphs writes a text whose paragraphs are separated by empty lines. Those with
// lines that begin with a space are kept as they are.
func (r *roff) paragraphs(text string) {
	for i, p := range strings.Split(text, "\n\n") {
		if i > 0 {
			r.line(".PP")
		}
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") {
			r.verbatim(p)
			continue
		}
		r.line("%s", roffText(p))
	}
}

func (r *roff) verbatim(text string) {
	r.line(".nf\n%s\n.fi", roffText(strings.Trim(text, "\n")))
}

func (r *roff) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

// roffText escapes a text: hyphens stay hyphens, and no line is read as a macro.
func roffText(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
