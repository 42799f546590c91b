package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// make release sets these with -ldflags -X. Where they are "", the program prints what Go
// has recorded about its build.
var releaseVersion, releaseCommit, releaseDate string

func versionCommand() *cobra.Command {
	cmd := command("version")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
		return err
	}
	return cmd
}

// version describes in one line what this program was built from.
func version() string { return describe(buildInfo()) }

// release is only the version, as in the user agent: "v1.2.3", or "devel" for a build that
// has none.
func release() string { return named(buildInfo()) }

func buildInfo() *debug.BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	info.Main.Version = cmp.Or(releaseVersion, info.Main.Version)
	for key, value := range map[string]string{"vcs.revision": releaseCommit, "vcs.time": releaseDate} {
		if value != "" { // the last one counts
			info.Settings = append(info.Settings, debug.BuildSetting{Key: key, Value: value})
		}
	}
	return info
}

func named(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "devel"
}

// builtOn returns the day of the commit that the program was built from, or else today.
func builtOn() string {
	for _, s := range slices.Backward(buildInfo().Settings) {
		if day, _, _ := strings.Cut(s.Value, "T"); s.Key == "vcs.time" && day != "" {
			return day
		}
	}
	return time.Now().UTC().Format(time.DateOnly)
}

func describe(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	text := "bridge " + cmp.Or(info.Main.Version, "(unknown version)")
	if revision := settings["vcs.revision"]; revision != "" {
		text += " commit " + revision[:min(12, len(revision))]
		if date := settings["vcs.time"]; date != "" {
			text += " of " + date[:min(10, len(date))]
		}
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
