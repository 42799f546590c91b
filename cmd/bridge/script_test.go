package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestScripts runs the scripts of testdata/script: one for each promise. What races inside of
// one program is tested by the packages that it is made of, and by TestNodes.
func TestScripts(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(scripts) == 0 {
		t.Fatal("there are no scripts")
	}
	runFiles(t, scripts, nil)
}

// TestScriptOnServer runs a script whose log is on a PostgreSQL server, in schemas of its
// own that the variables LOG and LOG2 name. What races with a server, TestNodes tells too.
func TestScriptOnServer(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	t.Parallel()
	runFiles(t, []string{"testdata/postgres.txtar"}, map[string]string{"LOG": server.NewSchema(t), "LOG2": server.NewSchema(t)})
}

// TestScriptInBucket runs a script whose contents are in buckets of an S3 server, that the
// variables CONTENTS and CONTENTS2 name, and its snapshots below FILES, which is the folder
// FILES_FOLDER.
func TestScriptInBucket(t *testing.T) {
	testenv.Heavy(t)
	runFiles(t, []string{"testdata/bucket.txtar"}, inBuckets(t, "CONTENTS", "CONTENTS2"))
}

// TestScriptTogether runs a script with both.
func TestScriptTogether(t *testing.T) {
	testenv.Heavy(t)
	server := testenv.SharedPostgres(t)
	variables := inBuckets(t, "CONTENTS", "CONTENTS2", "CONTENTS3")
	for _, name := range []string{"LOG", "LOG2", "LOG3", "LOG4"} {
		variables[name] = server.NewSchema(t)
	}
	runFiles(t, []string{"testdata/together.txtar"}, variables)
}

// inBuckets returns variables of scripts: the addresses of new buckets, and what is needed to
// use them.
func inBuckets(t *testing.T, names ...string) map[string]string {
	t.Helper()
	server := testenv.SharedS3(t)
	server.Setenv(t)
	variables := map[string]string{}
	for _, name := range names {
		bucket := server.NewBucket(t)
		variables[name] = server.Address(bucket, "bridge")
		if name == "CONTENTS" {
			variables["FILES"], variables["FILES_FOLDER"] = server.Address(bucket, "files"), filepath.Join(server.Folder(), bucket, "files")
		}
	}
	for _, v := range server.Env() {
		name, value, _ := strings.Cut(v, "=")
		variables[name] = value
	}
	return variables
}

// runFiles runs scripts with more variables.
func runFiles(t *testing.T, scripts []string, variables map[string]string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Files:               scripts,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(e *testscript.Env) error {
			for name, value := range variables {
				e.Setenv(name, value)
			}
			w, err := startWorker(e.Vars)
			if err != nil {
				return err
			}
			e.Defer(w.end)
			e.Values[stageKey{}] = &scriptState{worker: w, upstreams: map[string]upstream{}, children: map[string]*child{}}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"run":         runToEnd,
			"status":      exitStatus,
			"provider":    provider,
			"start":       startChild,
			"expect":      expectOutput,
			"end":         endChild,
			"hangup":      hangUpChild,
			"get":         get,
			"redirects":   redirects,
			"identifiers": identifiers,
			"post":        post,
			"await":       await,
			"shape":       shape,
			"flip":        flip,
			"fill":        fillIn,
			"records":     records,
		},
	})
}

// scriptState is what a script has around the commands that it runs.
type scriptState struct {
	worker    *worker
	upstreams map[string]upstream // by the variable of their URL
	upstream  upstream            // that commands change
	children  map[string]*child
	asked     <-chan struct{} // closed when the path that hangs is asked for
}

type stageKey struct{}

func scriptOf(ts *testscript.TestScript) *scriptState { return ts.Value(stageKey{}).(*scriptState) }

// bridge runs bridge with the words of a command, "bridge ARGUMENT...".
func bridge(ts *testscript.TestScript, words []string) *result {
	if len(words) == 0 || words[0] != "bridge" {
		ts.Fatalf("%q is not bridge", words)
	}
	r, err := scriptOf(ts).worker.do(job{ts.MkAbs("."), words[1:]})
	ts.Check(err)
	return r
}

// say makes the output of bridge that of the command.
func (r *result) say(ts *testscript.TestScript) {
	_, errOut := ts.Stdout().Write(r.Stdout)
	_, errErr := ts.Stderr().Write(r.Stderr)
	ts.Check(errors.Join(errOut, errErr))
}

// runToEnd is a command of the scripts: run bridge ARGUMENT... runs bridge in the script's
// folder, which must do all; "exec bridge" starts a process for it.
func runToEnd(ts *testscript.TestScript, neg bool, args []string) {
	r := bridge(ts, args)
	r.say(ts)
	if neg != (r.Status != exitDone) {
		ts.Fatalf("exit status %d", r.Status)
	}
}

// exitStatus is a command of the scripts: status N bridge ARGUMENT... is run, but for the exit
// status that is wanted.
func exitStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args[0]) != 1 {
		ts.Fatalf("usage: status N bridge ARGUMENT...")
	}
	r := bridge(ts, args[1:])
	r.say(ts)
	if want := int(args[0][0] - '0'); r.Status != want {
		ts.Fatalf("exit status %d, want %d", r.Status, want)
	}
}

// startChild is a command of the scripts: start NAME PROGRAM ARGUMENT... runs a
// program that goes on while the script does.
func startChild(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME PROGRAM ARGUMENT...")
	}
	c, err := start(ts.MkAbs("."), []string{"TMPDIR=" + ts.Getenv("TMPDIR")}, args[1], args[2:]...)
	ts.Check(err)
	ts.Defer(c.kill)
	scriptOf(ts).children[args[0]] = c
}

// expectOutput is a command of the scripts: expect NAME PATTERN [VARIABLE] waits
// until the program has written that, and sets the variable to the first group.
func expectOutput(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: expect NAME PATTERN [VARIABLE]")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	c := scriptOf(ts).children[args[0]]
	m, err := c.stdout.expect(re)
	if err != nil {
		ts.Fatalf("%v\n%s", err, c.stderr.String())
	}
	if len(args) > 2 {
		ts.Setenv(args[2], m[1])
	}
}

// endChild is a command of the scripts: end NAME STATUS ends a program as
// Ctrl-C does and checks its exit status. NAME.out and NAME.err are what it
// wrote.
func endChild(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: end NAME STATUS")
	}
	c := scriptOf(ts).children[args[0]]
	ts.Check(c.cmd.Process.Signal(syscall.SIGINT))
	got, err := c.status()
	ts.Check(err)
	for ext, text := range map[string]string{".out": c.stdout.String(), ".err": c.stderr.String()} {
		ts.Check(os.WriteFile(ts.MkAbs(args[0]+ext), []byte(text), 0o600))
	}
	if strconv.Itoa(got) != args[1] {
		ts.Fatalf("exit status %d, want %s; it wrote:\n%s%s", got, args[1], c.stdout.String(), c.stderr.String())
	}
}

// hangUpChild is a command of the scripts: hangup NAME PATTERN sends SIGHUP to a program and
// waits until it has logged that.
func hangUpChild(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: hangup NAME PATTERN")
	}
	c := scriptOf(ts).children[args[0]]
	ts.Check(c.cmd.Process.Signal(syscall.SIGHUP))
	_, err := c.stderr.expect(regexp.MustCompile(args[1]))
	ts.Check(err)
}

// get is a command of the scripts: get URL FILE [STATUS] asks for a URL; 200 is
// the status to be had.
func get(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: get URL FILE [STATUS]")
	}
	want := append(args, "200")[2]
	resp, err := http.Get(args[0])
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if strconv.Itoa(resp.StatusCode) != want {
		ts.Fatalf("%s: %s, want %s: %s", args[0], resp.Status, want, body)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), body, 0o600))
}

// redirects is a command of the scripts: redirects URL PATH wants the URL to lead to a path
// of the same server for good, whatever the client has kept of it.
func redirects(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: redirects URL PATH")
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		req, err := http.NewRequest(method, args[0], nil)
		ts.Check(err)
		req.Header.Set("If-None-Match", "*")
		req.Header.Set("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")
		resp, err := client.Do(req)
		ts.Check(err)
		resp.Body.Close()
		if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusMovedPermanently || to != args[1] {
			ts.Fatalf("%s %s: %s, to %q, want %q", method, args[0], resp.Status, to, args[1])
		}
	}
}

// identifiers is a command of the scripts: identifiers FROM FILE copies the identifiers of
// an OAI-PMH list.
func identifiers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: identifiers FROM FILE")
	}
	all := regexp.MustCompile(`<identifier>[^<]+</identifier>`).FindAllString(ts.ReadFile(args[0]), -1)
	if len(all) == 0 {
		ts.Fatalf("%s has no identifiers", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Join(all, "\n")), 0o600))
}

// shape is a command of the scripts: shape FROM FILE copies with what differs
// from run to run replaced by a word.
func shape(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: shape FROM FILE")
	}
	text := ts.ReadFile(args[0])
	for _, r := range [][2]string{
		// Of these all digits are written but zeros at the end: now and then as many
		// as a moment of the log has.
		{`"(started|ended)":"20[^"]+Z"`, `"$1":"NOW"`},
		{`127\.0\.0\.1:\d+`, "HOST"},
		{regexp.QuoteMeta(ts.Getenv("WORK")), "WORK"},
		{`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`, "OBSERVED"},
		{`20(2[6-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "NOW"},
		{`20(2[6-9]|[3-9]\d)-\d\d-\d\d \d\d:\d\d(:\d\d)?Z?`, "NOW"},
		{`\b\d+(\.\d+)?(ms|s)\b`, "DURATION"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// flip is a command of the scripts: flip FILE TEXT turns over a bit wherever the
// file has the text. (One place might be of a page that is no longer used.)
func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE TEXT")
	}
	name, old := ts.MkAbs(args[0]), []byte(args[1])
	data, err := os.ReadFile(name)
	ts.Check(err)
	if !bytes.Contains(data, old) {
		ts.Fatalf("%s has no %q", args[0], old)
	}
	flipped := bytes.Clone(old)
	flipped[0] ^= 1
	ts.Check(os.WriteFile(name, bytes.ReplaceAll(data, old, flipped), 0o600))
}

// fillIn is a command of the scripts: fill FILE puts variables into a file, where
// it has ${NAME}.
func fillIn(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: fill FILE")
	}
	name := ts.MkAbs(args[0])
	text, err := os.ReadFile(name)
	ts.Check(err)
	ts.Check(os.WriteFile(name, []byte(os.Expand(string(text), ts.Getenv)), 0o600))
}

// records is a command of the scripts: records DATA SET FILE writes what the log
// has of the live records of a set, sorted: identifier, title, stamp, and the
// type and the SHA-256 of each representation.
func records(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: records DATA SET FILE")
	}
	r := bridge(ts, []string{"bridge", "log", "--data", args[0], "--set", args[1], "--json"})
	if r.Status != exitDone {
		ts.Fatalf("bridge log: exit status %d\n%s", r.Status, r.Stderr)
	}
	live := map[string]string{}
	for line := range bytes.Lines(r.Stdout) {
		var ev api.Event
		ts.Check(json.Unmarshal(line, &ev))
		text := []string{ev.Record, ev.Title, ev.Modified}
		for _, r := range ev.Representations {
			text = append(text, r.Type+" "+r.SHA256)
		}
		if delete(live, ev.Record); ev.Kind != event.Deleted.String() {
			live[ev.Record] = strings.Join(text, " | ")
		}
	}
	if len(live) == 0 {
		ts.Fatalf("%s: set %s has no records", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(strings.Join(slices.Sorted(maps.Values(live)), "\n")), 0o600))
}

// await is a command of the scripts: await PATTERN PROGRAM ARGUMENT... runs a
// program, again and again, until its standard output has that. stdout is that
// output.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await PATTERN PROGRAM ARGUMENT...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		said := look(ts, args[1:])
		switch {
		case re.MatchString(said):
			_, err := io.WriteString(ts.Stdout(), said)
			ts.Check(err)
			return
		case time.Now().After(limit):
			ts.Fatalf("%q never says %q, but:\n%s", args[1:], args[0], said)
		}
	}
}

// look runs a program that reads something, and returns its standard output.
func look(ts *testscript.TestScript, words []string) string {
	if words[0] != "bridge" {
		ts.Check(ts.Exec(words[0], words[1:]...))
		return ts.ReadFile("stdout")
	}
	r := bridge(ts, words)
	if r.Status != exitDone && r.Status != exitPartly { // as of bridge status while something fails
		ts.Fatalf("exit status %d\n%s", r.Status, r.Stderr)
	}
	return string(r.Stdout)
}

// post is a command of the scripts: post URL MESSAGE ANSWER [STATUS] sends a file
// to a SIP service and writes what it answers into another; 200 is the status to
// be had.
func post(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: post URL MESSAGE ANSWER [STATUS]")
	}
	want := append(args, "200")[3]
	resp, err := http.Post(args[0], "text/xml; charset=utf-8", strings.NewReader(ts.ReadFile(args[1])))
	ts.Check(err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if strconv.Itoa(resp.StatusCode) != want {
		ts.Fatalf("%s: %s, want %s: %s", args[0], resp.Status, want, answer)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), answer, 0o600))
}
