package main

import (
	"bytes"
	"net"
	"strings"
	"testing"
)

// D70: the status line of a Source is text of a stranger, and goes to the
// operator's terminal in no other form than escaped: neither in what harvest
// prints, nor in its errors, nor in status.
func TestSourceTellsTheTerminalNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 404 \x1b]0;owned\x07\x1b[2J\u202e\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
			c.Close()
		}
	}()
	folder := t.TempDir()
	for _, args := range [][]string{{"harvest", "--data", folder, "atompmh:http://" + l.Addr().String() + "/feed.atom"}, {"status", "--data", folder}} {
		var out, errs bytes.Buffer
		run(t.Context(), args, nil, &out, &errs)
		both := out.String() + errs.String()
		if strings.ContainsAny(both, "\x1b\x07\u202e") {
			t.Errorf("%s prints %q", args[0], both)
		}
		if !strings.Contains(both, "404") {
			t.Errorf("%s does not say what is wrong: %q", args[0], both)
		}
	}
}
