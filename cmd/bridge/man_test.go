package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// The manual pages have no fault that mandoc or groff knows.
func TestManuals(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "man")
	newFolder(t, "").run(exitDone, "man", folder)
	pages, err := filepath.Glob(filepath.Join(folder, "*.[15]"))
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "bridge-backup.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH \"BRIDGE-BACKUP\" \"1\"", ".SH OPTIONS\n", "\\fB\\-\\-data\\fR \\fIfolder\\fR\n", ".nf\n  bridge backup \\-\\-config /etc/bridge/bridge.toml "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	t.Run("mandoc", func(t *testing.T) {
		t.Parallel()
		lint := exec.Command(testenv.Need(t, "mandoc", "mandoc"), append([]string{"-Tlint", "-Wwarning"}, pages...)...)
		if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v\n%.3000s", err, out)
		}
	})
	t.Run("groff", func(t *testing.T) {
		t.Parallel()
		lint := exec.Command(testenv.Need(t, "groff", "groff-base"), append([]string{"-man", "-ww", "-z", "-Tutf8", "-K", "utf8"}, pages...)...)
		if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v\n%.3000s", err, out)
		}
	})
}

// bash completes commands, below groups too, and flags.
func TestCompletion(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const library = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(library); err != nil {
		testenv.Missing(t, library, "bash-completion")
	}
	bash := testenv.Need(t, "bash", "bash")
	for line, want := range map[string]string{"bridge sta": "status", "bridge backup --con": "--config", "bridge config c": "check", "bridge completion f": "fish"} {
		script := `source ` + library + `
source <(bridge completion bash)
read -ra COMP_WORDS <<<"$1"
COMP_LINE=$1 COMP_POINT=${#1} COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_TYPE=9
__start_bridge 2>/dev/null # compopt wants a completion that bash has begun
printf '%s\n' "${COMPREPLY[@]}"`
		out, err := exec.Command(bash, "-c", script, "bash", line).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q: completed to %q, %v, want %q", line, got, err, want)
		}
	}
	for shell, want := range map[string]string{"zsh": "#compdef bridge\n", "fish": "# fish completion for bridge"} {
		out := newFolder(t, "").run(exitDone, "completion", shell).stdout
		if !strings.HasPrefix(out, want) {
			t.Errorf("%s: %.100s", shell, out)
		}
	}
}
