package main

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

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
