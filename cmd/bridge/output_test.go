package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"Straße 漢字　“x” \\n\u00a0é😀": "Straße 漢字　“x” \\n\u00a0é😀", // seen as it is
		"\ufffd":                   "\ufffd",
		"a\tb\r\nc\x00":            `a\tb\r\nc\x00`,
		"\x1b[2J\x7f\u009b2J":      `\x1b[2J\x7f\u009b2J`,
		"invoice\u202efdp.exe":     `invoice\u202efdp.exe`,
		"\u2066a\u2069":            `\u2066a\u2069`,
		"\u200b\u200f\ufeff\u00ad": `\u200b\u200f\ufeff\u00ad`,
		"a\u2028b\u2029c":          `a\u2028b\u2029c`,
		"\U000e0041":               `\U000e0041`,
		"\xffa\xc3":                `\xffa\xc3`,
		"\"\u202e\\":               `"\u202e\`,
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%+q: %+q, want %+q", text, got, want)
		}
	}
}

// randomTexts returns a thousand texts, of what is special and of runes of each length. Not
// rapid's: its tables would be made by each process that tests start, as that is this program.
func randomTexts(t *testing.T, special string) iter.Seq2[*rand.Rand, string] {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	r, runes := rand.New(rand.NewPCG(seed, 0)), []rune(special)
	return func(yield func(*rand.Rand, string) bool) {
		for range 1000 {
			text := make([]rune, r.IntN(30))
			for i := range text {
				if text[i] = runes[r.IntN(len(runes))]; r.IntN(2) == 0 {
					text[i] = r.Int32N(unicode.MaxRune+1) >> r.IntN(15)
				}
			}
			if !yield(r, string(text)) {
				return
			}
		}
	}
}

// D70: whatever a command prints, in whatever pieces, nothing hidden gets through.
func TestEscaping(t *testing.T) {
	for r, text := range randomTexts(t, "\x00\t\n\r\x1b\x7f\u0085\u009b\u202e\u2028\ufeff\U000e0001\u00e9\u6f22\U0001f600\ufffd") {
		var out strings.Builder
		w := &escaping{out: &out}
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + r.IntN(min(4, len(rest)))
			if m, err := w.Write(rest[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		got := out.String()
		if want := escapeText(text); got != want {
			t.Fatalf("%+q is printed as %+q, want %+q", text, got, want)
		}
		for _, r := range got {
			if r != '\n' && r != '\t' && isHidden(r) {
				t.Fatalf("%+q is printed as %+q", text, got)
			}
		}
	}
}

// Whatever stands in a text, nothing of what is printed of it is hidden; as JSON it
// is the same text.
func TestNothingHidden(t *testing.T) {
	for _, text := range randomTexts(t, "\x00\t\n\x1b \x7f\u0085\u009b\u00ad\u061c\u200b\u200e\u202a\u202e\u2028\u2029\u2066\ufeff\U0001d173\U000e0001\"\\<&é漢😀\ue000") {
		unseen := func(r rune) bool { return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) }
		if got := oneLine(text + "\xff"); strings.ContainsFunc(got, unseen) || !utf8.ValidString(got) {
			t.Fatalf("%+q is printed as %+q", text, got)
		}
		var out strings.Builder
		was := api.Submission{ID: 1, Set: "main", Title: text, Reason: text}
		if err := printJSON(&out, was); err != nil {
			t.Fatal(err)
		}
		line, ended := strings.CutSuffix(out.String(), "\n")
		var is api.Submission
		if err := json.Unmarshal([]byte(line), &is); err != nil || !reflect.DeepEqual(is, was) || !ended || strings.ContainsFunc(line, unseen) {
			t.Fatalf("%+q is printed as %+q: %v", text, line, err)
		}
	}
}

// What a server says beyond the end of its answer is no line of ours.
func TestAnswerThatGoesOn(t *testing.T) {
	const feed = `<rss version="2.0"><channel><title>t</title><item><guid>1</guid><link>/1</link></item></channel></rss>`
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, to, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(to, "HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n%sbeyond its end", len(feed), feed)
		_ = to.Flush()
		_, _ = io.Copy(io.Discard, c) // until the client closes the connection
	}))
	defer source.Close()
	c, err := start(t.TempDir(), nil, "bridge", "harvest", "--quiet", "feed:"+source.URL)
	if err != nil {
		t.Fatal(err)
	}
	<-c.ended
	if got := c.stdout.String() + c.stderr.String(); got != "" {
		t.Errorf("bridge harvest --quiet says %s", got)
	}
}

// What others write into an identifier, a title or a reason moves nothing of
// the line that it stands in, in any form, and makes no line of its own.
func TestNothingHiddenInLines(t *testing.T) {
	const evil = "x\u202etxet\u009b2J\n       9  2026-01-01 00:00:00Z  deleted   main  y"
	var out strings.Builder
	rejected := &event.Event{Kind: event.Rejected, Origin: event.Origin{SourceIdentifier: evil, Reason: evil}}
	for _, asJSON := range []bool{false, true} {
		for _, ev := range []*event.Event{{Kind: event.Created, Record: evil, Title: evil}, rejected} {
			if err := printEvent(&out, ev, asJSON); err != nil {
				t.Fatal(err)
			}
		}
		s := &submission.Submission{State: submission.StateRejected, SourceIdentifier: evil, Reason: evil}
		line, err := api.SubmissionOf(t.Context(), nil, s, nil)
		if err == nil {
			err = printSubmission(&out, s, &line, nil, &listing{asJSON: asJSON})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), `x\u202etxet\u009b2J\n `); n != 12 || strings.ContainsAny(out.String(), "\u202e\u009b") || strings.Count(out.String(), "\n") != 6 {
		t.Errorf("%d times, want 12 in 6 lines:\n%+q", n, out.String())
	}
}

// D70: the status line of a Source is text of others, and goes to the
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

// What a Source writes into its errors, identifiers and stamps makes no line of its own, in what
// harvest prints and in what tells of it later.
func TestSourceMakesNoLines(t *testing.T) {
	t.Parallel()
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/oai" {
			fmt.Fprint(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-01T00:00:00Z</responseDate><request>http://x.example/</request><error code="badArgument">no&#10;main: ok</error></OAI-PMH>`)
			return
		}
		fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author>
<entry><id>urn:a&#10;main: ok</id><title>t</title><updated>2025&#10;main: ok</updated><link rel="alternate" href="r"/></entry></feed>`)
	}))
	defer source.Close()
	folder := t.TempDir()
	for _, args := range [][]string{
		{"harvest", "--data", folder, "oaipmh:" + source.URL + "/oai", "atompmh:" + source.URL + "/feed"},
		{"status", "--data", folder}, {"source", "show", "main", source.URL + "/oai", "--data", folder}, {"quarantine", "ls", "--data", folder},
	} {
		var out, errs bytes.Buffer
		run(t.Context(), args, nil, &out, &errs)
		if text := out.String() + errs.String(); strings.Contains(text, "\nmain: ok") || !strings.Contains(text, `\nmain: ok`) {
			t.Errorf("%q prints\n%s", args, text)
		}
	}
}

// The first line about a harvest is written before there is anything that it does.
func TestUnderwayLine(t *testing.T) {
	s := &status.Source{Underway: &status.Underway{Progress: harvest.Progress{Documents: 1}}}
	const want = "harvested since never: read 1 document, 0 entries; logged 0 events"
	if got := sourceLine(s); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s.Underway.Doing = "reading"; sourceLine(s) != want+"; reading" {
		t.Errorf("%q, want it to say that it is reading", sourceLine(s))
	}
}

// Where there is no terminal progress is one line in ten seconds at most, for all
// Sources together, with what is counted and what is waited for (D52, D53); while
// nothing happens, and with --json, it is none.
func TestMeterLines(t *testing.T) {
	for name, row := range map[string]struct {
		quiet bool
		lines int
	}{"text": {false, 10}, "json": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				m := newMeter(&out, row.quiet)
				one, oneEnded := m.source("http://one.example/")
				two, _ := m.source("http://user:secret@two.example/")
				for i := range int64(99) {
					time.Sleep(time.Second) // of the bubble's clock
					one(harvest.Progress{Entries: 100 * i})
					two(harvest.Progress{Documents: 2, Entries: 900 * i, Events: 7, Fetched: 3, Wanted: 9, Doing: "waiting for an answer: http://two.example/a"})
				}
				oneEnded()
				time.Sleep(time.Minute)
				synctest.Wait()
				m.stop()
				if got := strings.Count(out.String(), "\n"); got != row.lines {
					t.Errorf("%d lines in 99 s and a minute of silence, want %d:\n%s", got, row.lines, out.String())
				}
				const last = "read 2 documents, 98000 entries; logged 7 events; fetched 3 of 9 contents; http://two.example/: waiting for an answer: http://two.example/a ("
				if !row.quiet && (!strings.Contains(out.String(), last) || strings.Contains(out.String(), "secret")) {
					t.Errorf("no %q in:\n%s", last, out.String())
				}
			})
		})
	}
}

// TestStatusLineHasReason: the line of a Source whose server is not there has room for the reason,
// whichever of its documents was asked for.
func TestStatusLineHasReason(t *testing.T) {
	const source = "http://127.0.0.1:8000/oai"
	for _, asked := range []string{source, source + "?***", "http://127.0.0.1:8000/a-list-that-the-source-names.xml"} {
		sets := []status.Set{{Name: "articles", Sources: []status.Source{{
			Set: "articles", Name: "repository", URL: source, State: status.Failing, Failures: 12, FailingSince: status.Time{Time: time.Date(2026, 11, 24, 0, 6, 0, 0, time.UTC)},
			LastError: &status.HarvestError{Text: `Get "` + asked + `": tried 4 times: dial tcp 127.0.0.1:8000: connect: connection refused; try again later, and check the address and the server`},
		}}}}
		var out strings.Builder
		printSourceLines(&out, sets)
		if want := "failing  articles/repository  since 2026-11-24 00:06Z, 12 in a row: 127.0.0.1:8000: connect: connection refused; try ag…\n"; out.String() != want {
			t.Errorf("%swant\n%s", out.String(), want)
		}
	}
}
