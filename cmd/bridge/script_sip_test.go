package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// await is a command of the scripts: await PATTERN PROGRAM ARGUMENT... runs a
// program, again and again, until its standard output has that. stdout is that
// output.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await PATTERN PROGRAM ARGUMENT...")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for limit := time.Now().Add(patience); ; <-tick.C {
		ts.Check(ts.Exec(args[1], args[2:]...))
		switch said := ts.ReadFile("stdout"); {
		case re.MatchString(said):
			return
		case time.Now().After(limit):
			ts.Fatalf("%q never says %q, but:\n%s", args[1:], args[0], said)
		}
	}
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
