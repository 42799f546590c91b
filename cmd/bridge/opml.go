package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/opml"
)

func sourceImportCommand() *cobra.Command {
	cmd := command("source import")
	in := newInputs(cmd)
	set := cmd.Flags().String("set", "", "the set with this `name` gets all of them, whatever their folders")
	dry := cmd.Flags().Bool("dry-run", false, "print what would be written, and write nothing")
	cmd.Args = takes(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := in.resolveFile("add them to")
		if err != nil {
			return err
		}
		file := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usage(err)
			}
			defer f.Close()
			file = f
		}
		feeds, err := opml.Read(file, args[0])
		if err != nil {
			return usage(err)
		}
		w := cmd.OutOrStdout()
		all, skipped := additionsOf(c, feeds, *set)
		for _, s := range skipped {
			fmt.Fprintf(w, "skipped: %s:%d: %s\n", args[0], s.line, daemon.Redact(oneLine(s.why)))
		}
		if len(all) == 0 {
			return usage(fmt.Errorf("%s has nothing to add: %s", args[0], plural(len(skipped), "outline was skipped", "outlines were skipped")))
		}
		change := func(e *config.Edit) error { return e.Add(all...) }
		if *dry {
			return in.printEdit(cmd, c, change)
		}
		return in.edit(cmd, c, change, func(w io.Writer, serving bool) {
			next := "bridge serve harvests them when it is started"
			if serving {
				next = "they are being harvested; see bridge status"
			}
			fmt.Fprintf(w, "added %s; next: %s\n", plural(len(all), "Source", "Sources"), next)
		})
	}
	return cmd
}

// printEdit prints what a change would write.
func (in *inputs) printEdit(cmd *cobra.Command, c *config.Config, change func(*config.Edit) error) error {
	e, err := config.NewEdit(cmd.Context(), c.File, in.flags)
	if err != nil {
		return usage(err)
	}
	defer e.Close()
	if err = change(e); err == nil {
		_, err = e.Check()
	}
	if err != nil {
		return refusedEdit(cmd, err)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), e.ByHand())
	return err
}

// skippedFeed is an outline that is not added, with the reason.
type skippedFeed struct {
	line int
	why  string
}

// additionsOf returns the Sources to add for feeds. If set is given, all are added to it.
// Otherwise each is added to a set named like its folders, or to the default set without
// any folder.
func additionsOf(c *config.Config, feeds []opml.Feed, set string) (all []config.Addition, skipped []skippedFeed) {
	have, names := map[string]string{}, map[[2]string]bool{}
	for _, s := range c.Sets {
		for _, src := range s.Sources {
			have[src.URL] = "is a Source of set " + s.Name + " already"
			names[[2]string{s.Name, src.Name}] = true
		}
	}
	for _, f := range feeds {
		skip := func(why string) { skipped = append(skipped, skippedFeed{f.Line, config.Shown(f.URL) + " " + why}) }
		at := f.URL
		if rest, ok := strings.CutPrefix(at, "feed:"); ok { // feed://host/x or feed:https://host/x
			if at = rest; strings.HasPrefix(rest, "//") {
				at = "http:" + rest
			}
		}
		lower := strings.ToLower(at)
		if !strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://") { // a list from elsewhere must not name our files
			skip("is not the URL of a web server")
			continue
		}
		if _, _, err := config.ParseSource(config.Feed + ":" + at); err != nil {
			skip("is no Source: " + err.Error())
			continue
		}
		if have[at] != "" {
			skip(have[at])
			continue
		}
		a := config.Addition{Set: set, Source: []config.Setting{{Key: "url", Value: at}}}
		if set == "" && len(f.Folder) > 0 {
			a.Set = config.SetNameOf(f.Folder...)
			a.New = []config.Setting{{Key: "title", Value: cmp.Or(f.Title, strings.Join(f.Folder, ", "))}}
			if a.New[0].Value == a.Set {
				a.New = nil
			}
		}
		a.Set = cmp.Or(a.Set, "main")
		have[at] = "is there twice"
		if key := [2]string{a.Set, f.Name}; f.Name != "" && f.Name != f.URL && len(f.Name) <= 100 && !names[key] {
			names[key] = true
			a.Source = append(a.Source, config.Setting{Key: "name", Value: f.Name})
		}
		if slices.Contains([]string{config.AtomPMH, config.ResourceSync, config.OAIPMH, config.Feed, config.CSV, config.Sitemap}, f.Type) {
			a.Source = append(a.Source, config.Setting{Key: "kind", Value: f.Type})
		}
		all = append(all, a)
	}
	return all, skipped
}

func sourceExportCommand() *cobra.Command {
	cmd := command("source export")
	in := newInputs(cmd)
	queries := cmd.Flags().Bool("with-queries", false, "also those whose URL has a query, which may hold a key")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := in.resolve(nil)
		if err != nil {
			return err
		}
		var feeds []opml.Feed
		left := 0
		for _, s := range c.Sets {
			for _, src := range s.Sources {
				why := ""
				switch {
				case src.Kind == config.KindSIP:
					continue // it is not harvested
				case !strings.HasPrefix(strings.ToLower(src.URL), "http"):
					why = "is not on the web"
				case strings.Contains(src.URL, "?") && !*queries:
					why = "has a query, which may hold a key; --with-queries exports it too"
				}
				if why != "" {
					left++
					fmt.Fprintf(cmd.ErrOrStderr(), "left out: %s: %s %s\n", s.Name, daemon.Redact(src.URL), why)
					continue
				}
				kind := src.Kind
				if kind == config.Feed {
					kind = "rss"
				}
				feeds = append(feeds, opml.Feed{URL: src.URL, Name: src.Name, Type: kind, Folder: []string{s.Name}, Title: s.Title})
			}
		}
		if err := opml.Write(unescaped(cmd.OutOrStdout()), "Sources of bridge", feeds); err != nil {
			return err
		}
		if left > 0 {
			return partFailure(fmt.Errorf("%s left out", plural(left, "Source was", "Sources were")))
		}
		return nil
	}
	return cmd
}
