package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestExitStatus(t *testing.T) {
	inner := errors.New("inner words")
	for name, row := range map[string]struct {
		args   []string
		err    error
		status int
		stderr string
	}{
		"done":          {[]string{"version"}, nil, exitDone, ""},
		"failed":        {[]string{"version"}, inner, exitFailed, "bridge: inner words\n"},
		"usage":         {[]string{"version"}, usage(fmt.Errorf("outer: %w", inner)), exitUsage, "bridge: outer: inner words\n"},
		"partly":        {[]string{"version"}, partFailure(inner), exitPartly, "bridge: inner words\n"},
		"wrapped":       {[]string{"version"}, fmt.Errorf("outer: %w", partFailure(inner)), exitPartly, "bridge: outer: inner words\n"},
		"said already":  {[]string{"version"}, &exitError{status: exitPartly}, exitPartly, ""},
		"usage nil":     {[]string{"version"}, usage(nil), exitDone, ""},
		"partly nil":    {[]string{"version"}, partFailure(nil), exitDone, ""},
		"too many":      {[]string{"version", "x"}, nil, exitUsage, "More: bridge version --help\n"},
		"required flag": {[]string{"needs"}, nil, exitUsage, `required flag(s) "this" not set`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command("version")
			cmd.RunE = func(*cobra.Command, []string) error { return row.err }
			needs := &cobra.Command{Use: "needs", RunE: cmd.RunE}
			needs.Flags().String("this", "", "")
			if err := needs.MarkFlagRequired("this"); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			got := execute(t.Context(), []*cobra.Command{cmd, needs}, row.args, nil, &stdout, &stderr)
			if got != row.status || !strings.Contains(stderr.String(), row.stderr) || row.stderr == "" && stderr.Len() > 0 {
				t.Errorf("status %d, stderr %q; want %d, %q", got, stderr.String(), row.status, row.stderr)
			}
		})
	}
}

// Every command has a text that says what it does, and every text fits on a
// terminal.
func TestHelpTexts(t *testing.T) {
	texts := 0
	err := fs.WalkDir(helpTexts, "help", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		texts++
		name := strings.TrimSuffix(strings.TrimPrefix(path, "help/"), ".txt")
		words := strings.Split(name, "/")
		cmd := command(strings.Join(words, " "))
		if cmd.Name() != words[len(words)-1] || cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: name %q, short text %q", path, cmd.Name(), cmd.Short)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len(line) > 100 {
				t.Errorf("%s: a line of %d characters: %s", path, len(line), line)
			}
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  bridge "+strings.Join(words, " ")) {
				t.Errorf("%s: an example of something else: %s", path, line)
			}
		}
		return nil
	})
	if err != nil || texts < 10 {
		t.Errorf("%d help texts, %v", texts, err)
	}
}

func TestResolve(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"with/bridge.toml": "data = \"from-default\"\n",
		"with/other.toml":  "data = \"from-other\"\nlisen = \"x\"\n",
		"with/third.toml":  "data = \"from-third\"\nlisten = \"0.0.0.0:80\"\n",
		"with/feed.atom":   "<feed/>",
		"without/empty":    "",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, row := range map[string]struct {
		folder  string
		in      inputs
		sources []string
		data    string // below the folder
		sets    int
		base    string
		err     string
	}{
		"nothing at all":       {folder: "without", data: "bridge-data", base: "http://127.0.0.1:8080"},
		"./bridge.toml":        {folder: "with", data: "from-default", base: "http://127.0.0.1:8080"},
		"--data ends it":       {folder: "with", in: inputs{flags: config.Flags{Data: "d"}}, data: "d", base: "http://127.0.0.1:8080"},
		"a SOURCE ends it":     {folder: "with", sources: []string{"feed.atom"}, data: "bridge-data", sets: 1, base: "http://127.0.0.1:8080"},
		"--listen does not":    {folder: "with", in: inputs{flags: config.Flags{Listen: "localhost:1"}}, data: "from-default", base: "http://localhost:1"},
		"--config":             {folder: "with", in: inputs{file: "third.toml", flags: config.Flags{BaseURL: "https://h.example"}}, data: "from-third", base: "https://h.example"},
		"--config and --data":  {folder: "with", in: inputs{file: "bridge.toml", flags: config.Flags{Data: "d"}}, data: "d", base: "http://127.0.0.1:8080"},
		"--data and SOURCEs":   {folder: "with", in: inputs{flags: config.Flags{Data: "d"}}, sources: []string{"a=feed.atom", "b=feed.atom"}, data: "d", sets: 2, base: "http://127.0.0.1:8080"},
		"--config and SOURCEs": {folder: "with", in: inputs{file: "bridge.toml"}, sources: []string{"feed.atom"}, err: "exclude each other"},
		"a bad file":           {folder: "with", in: inputs{file: "other.toml"}, err: `other.toml:2: lisen: there is no such key; the nearest is "listen"`},
		"no base_url":          {folder: "with", in: inputs{file: "third.toml"}, err: "third.toml:2: listen: 0.0.0.0:80 can be reached"},
		"no such file":         {folder: "without", in: inputs{file: "bridge.toml"}, err: "there is no configuration file bridge.toml"},
		"a bad SOURCE":         {folder: "without", sources: []string{"feed.atom"}, err: "there is no file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(filepath.Join(folder, row.folder))
			c, err := row.in.resolve(row.sources)
			if row.err != "" {
				if exit, ok := errors.AsType[*exitError](err); !ok || exit.status != exitUsage || !strings.Contains(err.Error(), row.err) {
					t.Errorf("error %v, want %q and status 2", err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.Data != filepath.Join(folder, row.folder, row.data) || len(c.Sets) != row.sets || c.BaseURL != row.base {
				t.Errorf("data %s, %d sets, base_url %s", c.Data, len(c.Sets), c.BaseURL)
			}
		})
	}
}

func TestDescribe(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26"}
	info.Main.Version = "v1.2.3"
	if got := describe(info); !strings.HasPrefix(got, "bridge v1.2.3, go1.26 ") {
		t.Error(got)
	}
	if got := named(info); got != "v1.2.3" {
		t.Error(got)
	}
	info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-23T19:00:00Z"}, {Key: "vcs.modified", Value: "true"}}
	if got := describe(info); !strings.HasPrefix(got, "bridge v1.2.3 commit 0123456789ab of 2026-11-23 with changes, go1.26 ") {
		t.Error(got)
	}
}

// The user agent names the version alone, and no brackets, which would be a
// comment there (RFC 9110 10.1.5).
func TestRelease(t *testing.T) {
	if got := release(); got == "" || strings.ContainsAny(got, " ()/") {
		t.Errorf("%q", got)
	}
}

// A list has what was asked for, each once, however many pages of the log it takes.
func TestNewest(t *testing.T) {
	const there = 2500
	for limit, want := range map[int]int{0: there, 1: 1, 1000: 1000, 1001: 1001, 2000: 2000, there: there, 9000: there} {
		var got []int64
		err := newest(limit, func(after int64, most int) (page []int64, err error) {
			if after == 0 {
				after = there + 1
			}
			for id := after - 1; id > 0 && len(page) < most; id-- {
				page = append(page, id)
			}
			return page, nil
		}, func(id *int64) (int64, error) {
			got = append(got, *id)
			return *id, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		falls := slices.IsSortedFunc(got, func(a, b int64) int { return int(b - a) })
		if len(got) != want || got[0] != there || got[want-1] != int64(there-want+1) || !falls {
			t.Errorf("limit %d: %d, from %d to %d", limit, len(got), got[0], got[len(got)-1])
		}
	}
}

// What has serve end at once is an error of the configuration already: schemas
// that nothing here can check records against.
func TestConfigCheckWithoutXMLLint(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	schema := filepath.Join(folder, "place.xsd")
	for _, f := range [][2]string{
		{schema, `<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"/>`},
		{filepath.Join(folder, "bridge.toml"), `[[set]]
name = "deposits"
[[set.source]]
kind = "sip"
mode = "library"
formats = { "place" = "urn:place.xsd" }
schemas = { "urn:place.xsd" = "place.xsd" }
`},
	} {
		if err := os.WriteFile(f[0], []byte(f[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"config", "check", "--config", filepath.Join(folder, "bridge.toml")}, nil, &stdout, &stderr)
	if status != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "xmllint, which checks records against them, is not installed: install it") {
		t.Errorf("status %d\n%s%s", status, stdout.String(), stderr.String())
	}
	if err := os.WriteFile(filepath.Join(folder, "xmllint"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	status = run(t.Context(), []string{"config", "check", "--config", filepath.Join(folder, "bridge.toml")}, nil, &stdout, &stderr)
	if status != exitDone || !strings.Contains(stdout.String(), "bridge.toml: no errors\n") {
		t.Errorf("with it: status %d\n%s%s", status, stdout.String(), stderr.String())
	}
}

// A path that is not in UTF-8, which TOML cannot have, is written as a URL.
func TestAddOddPath(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "caf\xe9")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if code := run(t.Context(), []string{"source", "add", "--no-test", "--config", file, folder}, strings.NewReader(""), &said, &said); code != 0 {
		t.Fatalf("exit status %d: %s", code, said.String())
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := url.Parse(c.Sets[0].Sources[0].URL); err != nil || u.Path != folder+"/" {
		t.Errorf("it has become %s", c.Sets[0].Sources[0].URL)
	}
}

// newDataFolder harvests a folder with a file into a data folder of this user. What it returns
// runs a command on it.
func newDataFolder(t *testing.T) (data, source string, bridge func(args ...string) (status int, said string)) {
	t.Helper()
	data, source = filepath.Join(t.TempDir(), "data"), t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "a.xml"), []byte("<a/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	bridge = func(args ...string) (int, string) {
		var out bytes.Buffer
		return run(t.Context(), append(args, "--data", data), nil, &out, &out), out.String()
	}
	if status, said := bridge("harvest", source); status != exitDone {
		t.Fatalf("harvest: status %d\n%s", status, said)
	}
	return data, source, bridge
}

// What a signal has ended says so, in no words of a programmer.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	data, _, _ := newDataFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"verify"}, {"audit"}, {"export", "--base-url", "http://x.example", "--out", filepath.Join(t.TempDir(), "out")}} {
		var out, said bytes.Buffer
		status := run(ctx, append(args, "--data", data), nil, &out, &said)
		if status != exitFailed || !strings.Contains(said.String(), "interrupted") || strings.Contains(said.String(), "context") {
			t.Errorf("%s: status %d\n%s", args, status, said.String())
		}
	}
}

// A command whose output cannot be written, as to a full disk, has failed.
func TestOutputThatFails(t *testing.T) {
	t.Parallel()
	data, _, _ := newDataFolder(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"status"}, {"log"}, {"source", "show", "main"}, {"set", "ls"}, {"set", "show", "main"}} {
		var said bytes.Buffer
		if status := run(t.Context(), append(args, "--data", data), nil, full, &said); status != exitFailed || strings.Count(said.String(), "no space left on device") != 1 {
			t.Errorf("%s: status %d\n%s", args, status, said.String())
		}
	}
}

// A data folder that this user may not read is not taken for one without a log, nor its bridge
// serve for one that does not run.
func TestUnreadableDataFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may read every folder")
	}
	data, source, bridge := newDataFolder(t)
	if err := os.Chmod(data, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(data, 0o700) //nolint:errcheck // so that it can be removed
	for _, args := range [][]string{{"status"}, {"serve"}, {"harvest", source}, {"reload"}, {"source", "pause", "main"}, {"backup", filepath.Join(source, "b")}} {
		if status, said := bridge(args...); status != exitFailed || !strings.Contains(said, "run the command as the user whom it belongs to: ") {
			t.Errorf("%s: status %d\n%s", args, status, said)
		}
	}
}

// A file of the data folder that this user may not use, as one that root has made there, is
// named.
func TestForeignFileInDataFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may use every file")
	}
	for name, mode := range map[string]os.FileMode{"log.db": 0o400, "log.db-wal": 0, "content.db": 0o400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, source, bridge := newDataFolder(t)
			path := filepath.Join(data, name)
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
			if err := errors.Join(err, f.Close(), os.Chmod(path, mode), os.WriteFile(filepath.Join(source, "b.xml"), []byte("<b/>"), 0o600)); err != nil {
				t.Fatal(err)
			}
			if status, said := bridge("harvest", source); status != exitFailed || !strings.Contains(said, path+": permission denied: give the file to the user who runs bridge") {
				t.Errorf("status %d\n%s", status, said)
			}
		})
	}
}

// Of a database that was cut off, as by a copy that has failed, every command says what to do.
func TestTruncatedDatabase(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"log.db", "content.db"} {
		data, source, bridge := newDataFolder(t)
		path := filepath.Join(data, name)
		if err := os.Truncate(path, 20_000); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"status"}, {"verify"}, {"harvest", source}, {"backup", filepath.Join(source, "b")}} {
			if status, said := bridge(args...); status != exitFailed || strings.Count(said, "restore it from a backup") != 1 || !strings.Contains(said, path) {
				t.Errorf("%s, %s: status %d\n%s", name, args, status, said)
			}
		}
	}
}

// Whichever page of the log is damaged, a command that fails at it names the file, and says what
// to do, also where the harvest itself succeeded and its outcome could not be stored.
func TestDamagedPage(t *testing.T) {
	t.Parallel()
	data, source, bridge := newDataFolder(t)
	path := filepath.Join(data, "log.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size, failed := int(binary.BigEndian.Uint16(whole[16:])), 0
	for at := size; at < len(whole); at += size {
		damaged := slices.Clone(whole)
		for i := at; i < at+size; i++ {
			damaged[i] = 0xff
		}
		for _, args := range [][]string{{"status"}, {"harvest", source}, {"harvest", "--quiet", source}} {
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, kept := range []string{path + "-wal", path + "-shm"} { // after a failure
				if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
			status, said := bridge(args...)
			if status == exitDone {
				continue
			}
			failed++
			if (strings.Count(said, path) != 1 || strings.Count(said, "restore it from a backup") != 1) && !strings.Contains(said, ": run bridge verify") {
				t.Errorf("page %d, %s: status %d\n%s", at/size+1, args, status, said)
			}
		}
	}
	if failed == 0 {
		t.Error("no command has failed")
	}
}

// A bridge serve that is starting is waited for: it may have read its configuration already.
func TestReloadWaitsForTheStart(t *testing.T) {
	t.Parallel()
	for holder, want := range map[string]string{"bridge serve": "context deadline exceeded", "bridge harvest": "no bridge serve has the data folder"} {
		folder := t.TempDir()
		release, err := eventlog.Hold(folder, holder)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var said bytes.Buffer
		if status := run(ctx, []string{"reload", "--data", folder}, nil, &said, &said); status != exitFailed || !strings.Contains(said.String(), want) {
			t.Errorf("%s: status %d\n%s", holder, status, said.String())
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	}
}

// In scripts, and for tests that kill it, "bridge" is this program, a process of
// its own.
func TestMain(m *testing.M) {
	testscript.Main(testenv.WithS3(testenv.WithPostgres(waiting{m})), map[string]func(){"bridge": main, "bridge-worker": work})
}

// waiting runs the tests.
type waiting struct{ *testing.M }

// Run runs twice as many tests at a time as there are processors: they mostly wait
// for the processes that they start. A soak says how long these take, and runs one.
func (w waiting) Run() int {
	if err := os.Unsetenv("GOGC"); err != nil { // it is for the tests: a bridge has its own way to collect
		panic(err)
	}
	atOnce := 2 * runtime.GOMAXPROCS(0)
	if testenv.Soaking() {
		atOnce = 1
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set(strconv.Itoa(atOnce)); err != nil {
			panic(err)
		}
	}
	return w.M.Run()
}

// A time may be typed as bridge prints it, in UTC; without a zone it is that of the machine.
func TestTimeOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 1, 12, 0, 0, 0, time.FixedZone("", 9*60*60))
	for typed, want := range map[string]string{
		"2026-01-31 18:00:05Z": "2026-01-31T18:00:05Z", "2026-01-31 18:00Z": "2026-01-31T18:00:00Z", "2026-01-31T18:00:05Z": "2026-01-31T18:00:05Z",
		"2026-01-31 18:00:05": "2026-01-31T09:00:05Z", "2026-01-31 18:00": "2026-01-31T09:00:00Z", "2026-01-31": "2026-01-30T15:00:00Z",
		"2d": "2026-01-30T03:00:00Z", "90m": "2026-02-01T01:30:00Z",
	} {
		if got, err := timeOf(typed, now, -1); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%q is %v, %v, want %s", typed, got, err, want)
		}
	}
	for _, typed := range []string{"soon", "18:00", "2026-13-01", "-2d", "0s"} {
		if got, err := timeOf(typed, now, -1); err == nil || !got.IsZero() {
			t.Errorf("%q is %v", typed, got)
		}
	}
}
