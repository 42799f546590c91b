package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	cmd := command("version")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
		return err
	}
	return cmd
}

// version says what this program was built from, in one line.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "bridge (unknown version) " + runtime.Version()
	}
	return describe(info)
}

// release is the version alone, as the user agent names it: "v1.2.3", or "devel"
// for a build that has none.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return named(info)
	}
	return "devel"
}

func named(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "devel"
}

func describe(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	text := "bridge " + info.Main.Version
	if revision := settings["vcs.revision"]; revision != "" {
		text += " commit " + revision[:min(12, len(revision))]
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
