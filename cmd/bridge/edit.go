package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
)

// Commands that change the configuration file, and make a running bridge serve read it
// again.

func sourceAddCommand() *cobra.Command {
	cmd := command("source add")
	in := newInputs(cmd)
	patience := addTimeout(cmd)
	flags := cmd.Flags()
	set := flags.String("set", "", "the `name` of the set, which may be new (default: the only one, or main)")
	content := flags.String("content", "", "of a new set, its `mode`: mirror, redirect or reference (default mirror)")
	title := flags.String("title", "", "of a new set, its `title`")
	noTest := flags.Bool("no-test", false, "do not ask the Source first")
	keys := map[string]*string{}
	for _, k := range sourceKeys() {
		keys[k.key] = flags.String(strings.ReplaceAll(k.key, "_", "-"), "", k.use)
	}
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := in.resolveFile("add it to")
		if err != nil {
			return err
		}
		a, err := additionOf(c, args[0], *set, keys)
		if err != nil {
			return usage(err)
		}
		isNew := c.Set(a.Set) == nil
		for _, s := range []config.Setting{{Key: "title", Value: *title}, {Key: "content", Value: *content}} {
			if s.Value == "" {
				continue
			}
			if !isNew {
				return usage(fmt.Errorf("--%s is for a new set, and set %q is there: write it into %s", s.Key, a.Set, c.File))
			}
			a.New = append(a.New, s)
		}
		if !*noTest {
			if err := testAddition(cmd, in, c, a, *patience); err != nil {
				return err
			}
		}
		return in.edit(cmd, c, func(e *config.Edit) error { return e.Add(a) }, func(w io.Writer, serving bool) {
			fmt.Fprintf(w, "next: %s\n", map[bool]string{
				true:  "it is being harvested; see bridge source ls " + a.Set,
				false: "bridge serve harvests it when it is started, or bridge harvest now",
			}[serving])
		})
	}
	return cmd
}

// sourceKeys are the keys of a Source that bridge source add can write, with the help text
// of their flags.
func sourceKeys() []struct{ key, use string } {
	return []struct{ key, use string }{
		{"name", "a `name` for the Source, for people and commands"},
		{"kind", "its `kind`: atompmh, resourcesync, oaipmh, feed, folder, csv or sitemap (default: found out)"},
		{"sets", "each: every set of a ResourceSync Source becomes a `set`"},
		{"every", "the `time` between two harvests (default 1h)"},
		{"format", "of an OAI-PMH repository, the `metadataPrefix` (default oai_dc)"},
		{"oai_set", "of an OAI-PMH repository, only the records of this `setSpec`"},
		{"user", "a `user` for a login at the Source; with --password-file"},
		{"password_file", "the `file` with the password"},
	}
}

// resolveFile is resolve for a command that changes the file, which must exist.
func (in *inputs) resolveFile(what string) (*config.Config, error) {
	c, err := in.resolve(nil)
	if err == nil && c.File == "" {
		err = usage(fmt.Errorf("there is no configuration file to %s: name one with --config, or make one with bridge init; what bridge serve was given on its command line only another command line changes", what))
	}
	return c, err
}

// additionOf returns the Source to add for an argument, [set=][kind:]URL-or-path, and
// flags.
func additionOf(c *config.Config, argument, set string, keys map[string]*string) (a config.Addition, err error) {
	named, source, err := config.ParseSource(argument)
	if err != nil {
		return a, err
	}
	switch inArgument := strings.HasPrefix(argument, named+"="); {
	case inArgument && set != "" && set != named:
		return a, fmt.Errorf("the argument says set %q, and --set %q: say it once", named, set)
	case inArgument:
		set = named
	case set == "" && len(c.Sets) == 1:
		set = c.Sets[0].Name
	case set == "" && len(c.Sets) > 1:
		var names []string
		for _, s := range c.Sets {
			names = append(names, s.Name)
		}
		return a, fmt.Errorf("say with --set which set it is for, a new one or one of %s", strings.Join(names, ", "))
	}
	a.Set = cmp.Or(set, "main")
	kind := *keys["kind"]
	switch {
	case kind != "" && source.Kind != "" && kind != source.Kind:
		return a, fmt.Errorf("the argument says kind %q, and --kind %q: say it once", source.Kind, kind)
	case cmp.Or(kind, source.Kind) == config.KindSIP:
		return a, errors.New("a Source of kind sip calls bridge, and has keys of its own: write it into the file, see docs/sip.md, and restart bridge serve")
	}
	*keys["kind"] = cmp.Or(kind, source.Kind)
	if file := *keys["password_file"]; file != "" && !strings.HasPrefix(file, "credential:") {
		if *keys["password_file"], err = filepath.Abs(file); err != nil { // the file would resolve a relative path against its own folder
			return a, err
		}
		if _, err := os.Stat(*keys["password_file"]); err != nil {
			return a, fmt.Errorf("--password-file: %w", err)
		}
	}
	at := source.URL
	if u, err := url.Parse(at); err == nil && u.Scheme == "file" && utf8.ValidString(u.Path) { // TOML cannot express other paths
		at = filepath.FromSlash(u.Path)
	}
	a.Source = []config.Setting{{Key: "url", Value: at}}
	for _, k := range sourceKeys() {
		if value := *keys[k.key]; value != "" {
			a.Source = append(a.Source, config.Setting{Key: k.key, Value: value})
		}
	}
	return a, nil
}

// testAddition tests a Source before it is added.
func testAddition(cmd *cobra.Command, in *inputs, c *config.Config, a config.Addition, patience time.Duration) error {
	e, err := config.NewEdit(cmd.Context(), c.File, in.flags)
	if err != nil {
		return usage(err)
	}
	err = e.Add(a)
	var with *config.Config
	if err == nil {
		with, err = e.Check()
	}
	e.Close()
	if err != nil {
		return refusedEdit(cmd, err)
	}
	sources := with.Set(a.Set).Sources
	if !sources[len(sources)-1].Password.IsRead() {
		return usage(errors.New("this user cannot read the password, so the Source cannot be asked: run the command as a user who can, or add --no-test"))
	}
	at := sources[len(sources)-1].URL
	look, err := lookAt(cmd, with, a.Set, at, patience)
	if err != nil {
		return err
	}
	if err := printLook(cmd.OutOrStdout(), at, look); err != nil {
		return err
	}
	if look.Error != "" {
		return fmt.Errorf("not added, since it cannot be harvested: %s\nadd it all the same with --no-test", look.Error)
	}
	return nil
}

func sourceRemoveCommand() *cobra.Command {
	cmd := command("source rm")
	var keep, remove bool
	in := newInputs(cmd)
	cmd.Flags().BoolVar(&keep, "keep", false, "forget the Source, and keep the records that only it has")
	cmd.Flags().BoolVar(&remove, "delete", false, "forget the Source, and delete the records that only it has")
	cmd.Args = takes(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if keep && remove {
			return usage(errors.New("--keep and --delete exclude each other"))
		}
		c, err := in.resolveFile("take it out of")
		if err != nil {
			return err
		}
		found, err := configuredSource(c, args)
		if errors.Is(err, errNotConfigured) {
			err = fmt.Errorf("%w; what bridge serve was given on its command line only another command line changes, and what is no longer configured ends with bridge source forget", err)
		}
		if err != nil {
			return usage(err)
		}
		set := c.Set(found.set)
		forget := (keep || remove) && !set.IsTemplate() && daemon.HasLog(c.Data)
		if err := in.edit(cmd, c, func(e *config.Edit) error { return e.RemoveSource(found.set, found.url) }, func(w io.Writer, _ bool) {
			switch {
			case forget:
			case !daemon.HasLog(c.Data):
				fmt.Fprintf(w, "next: nothing; it was never harvested into %s\n", c.Data)
			case set.IsTemplate():
				fmt.Fprintf(w, "next: the sets made of it are kept, and not published any more\n")
			default:
				fmt.Fprintf(w, "next: its records stay as they are; end it with: bridge source forget %s %s --keep or --delete\n", found.set, quoted(daemon.Redact(found.url)))
			}
		}); err != nil {
			return err
		}
		if !forget {
			return nil
		}
		return in.decide(cmd, []daemon.Decision{{Action: &daemon.SourceAction{Do: "forget", Set: found.set, Source: found.url, Keep: keep, Delete: remove}}}, func(w io.Writer, _ int, done daemon.DecisionResult) {
			fmt.Fprintln(w, done.Result)
		})
	}
	return cmd
}

// edit changes the configuration file, makes a running bridge serve read it again, and
// prints what was done; then next prints what to do next. If bridge serve refuses the
// change, it is undone.
func (in *inputs) edit(cmd *cobra.Command, c *config.Config, change func(*config.Edit) error, next func(w io.Writer, serving bool)) error {
	e, err := config.NewEdit(cmd.Context(), c.File, in.flags)
	if err != nil {
		return usage(err)
	}
	defer e.Close()
	if err = change(e); err == nil {
		_, err = e.Save()
	}
	if err != nil {
		return refusedEdit(cmd, err)
	}
	w, places := cmd.OutOrStdout(), e.Places()
	said, refused := "", ""
	err = sendReload(cmd.Context(), c.Data, func(done daemon.DecisionResult) { said, refused = done.Result, done.Error })
	switch serving := !errors.Is(err, daemon.ErrNotServing); {
	case refused != "":
		return usage(errors.Join(fmt.Errorf("nothing has changed, since bridge serve refuses it: %s", refused), e.Undo()))
	case err != nil && serving:
		return fmt.Errorf("%s is changed, and whether bridge serve has read it shows bridge source ls: %w", c.File, err)
	case !serving:
		fmt.Fprintf(w, "changed: %s\nno bridge serve has the data folder %s\n", strings.Join(places, ", "), c.Data)
		next(w, false)
	case said == "nothing has changed":
		fmt.Fprintf(w, "changed: %s\n", strings.Join(places, ", "))
		return partFailure(fmt.Errorf("bridge serve has read its configuration again, and nothing has changed there: does it read %s?", c.File))
	default:
		fmt.Fprintf(w, "changed: %s\nbridge serve has read it: %s\n", strings.Join(places, ", "), inOneLine(strings.Split(said, "\n")))
		next(w, true)
	}
	return nil
}

// refusedEdit returns the error of a command whose change was not made, and prints what a
// person has to write instead.
func refusedEdit(cmd *cobra.Command, err error) error {
	var byHand *config.ByHandError
	switch {
	case errors.As(err, &byHand):
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", strings.TrimSuffix(byHand.Do, "\n"))
		return fmt.Errorf("nothing has changed: %w; make the change by hand, as printed, and then: bridge reload", err)
	case errors.As(err, new(*config.Error)):
		return usage(err)
	}
	return err
}
