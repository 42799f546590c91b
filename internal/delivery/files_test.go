package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testserver"
	"github.com/pmh-bridge/bridge/sip"
)

// file is one with an identifier and a text.
func file(id, text string) File {
	return File{Name: id + ".xml", Identifier: &id, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
}

// submitFiles returns the results as "name state: identifier or reason".
func submitFiles(ctx context.Context, f Files, files ...File) (out []string, err error) {
	err = f.Submit(ctx, files, func(r FileResult) {
		line := r.Name + " " + r.State.String()
		if said := r.Assigned + r.Reason; said != "" {
			line += ": " + said
		}
		out = append(out, line)
	})
	return out, err
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("results:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// Every outcome, in the order of the files, whatever the order of the answers.
func TestFilesOutcomes(t *testing.T) {
	_, lost := callFailures(t)
	synctest.Test(t, func(t *testing.T) {
		library := &ingestServer{formats: []string{bookFormat}}
		tries := map[string]int{}
		library.answer = func(n int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			id := *r.Source.Identifier
			library.mu.Lock()
			tries[id]++
			try := tries[id]
			library.mu.Unlock()
			switch {
			case id == "slow":
				time.Sleep(time.Minute)
			case id == "rejected":
				return &sip.Disposition{Outcome: sip.Rejected, Reason: "no"}, nil
			case id == "provisional":
				return &sip.Disposition{Outcome: sip.ProvisionallyAccepted}, nil
			case id == "refused":
				return nil, &sip.Fault{Code: sip.Client, Text: "what is that?"}
			case id == "lost", id == "shaky" && try < 4:
				return nil, lost
			case id == "busy":
				return nil, &sip.StatusError{Status: 503, RetryAfter: 2 * time.Minute}
			}
			return keep(), nil
		}
		missing := File{Name: "gone.xml", Open: func() (io.ReadCloser, error) { return nil, fs.ErrNotExist }}
		lines, err := submitFiles(t.Context(), Files{Server: library},
			file("slow", book("")), file("good", book("")), file("rejected", book("")), file("provisional", book("")), file("refused", book("")),
			file("lost", book("")), file("shaky", book("")), file("busy", book("")), file("broken", "<book>"), missing)
		if err != nil {
			t.Fatal(err)
		}
		wantLines(t, lines, "slow.xml accepted: library:slow", "good.xml accepted: library:good", "rejected.xml rejected: no", "provisional.xml provisional",
			"refused.xml unsent: SOAP fault Client: what is that?", "lost.xml unresolved: "+lost.Error(), "shaky.xml accepted: library:shaky",
			"busy.xml unsent: HTTP 503 Service Unavailable; wants to be asked again in 2m0s",
			"broken.xml unsent: document:1:7: the document is cut off inside <book>", "gone.xml unsent: file does not exist")
		if tries["lost"] != 4 || tries["shaky"] != 4 || tries["busy"] != 1 || tries["refused"] != 1 {
			t.Errorf("tries: %v", tries)
		}
		if library.together > 4 {
			t.Errorf("%d requests at a time", library.together)
		}
	})
}

// The waits between tries are those of a harvest: 1, 2 and 4 seconds, or what the
// server asks for.
func TestFilesWaits(t *testing.T) {
	for name, c := range map[string]struct {
		asks time.Duration
		want []time.Duration
	}{
		"of its own":    {0, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}},
		"as asked":      {3 * time.Second, []time.Duration{3 * time.Second, 3 * time.Second, 4 * time.Second}},
		"a minute, yes": {time.Minute, []time.Duration{time.Minute, time.Minute, time.Minute}},
		"more, no":      {61 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				library := &ingestServer{formats: []string{bookFormat}}
				library.answer = func(int, *sip.Request, func() *sip.Disposition) (*sip.Disposition, error) {
					return nil, &sip.StatusError{Status: 429, RetryAfter: c.asks}
				}
				if _, err := submitFiles(t.Context(), Files{Server: library}, file("a", book(""))); err != nil {
					t.Fatal(err)
				}
				var waits []time.Duration
				for i, at := range library.at[1:] {
					waits = append(waits, at.Sub(library.at[i]))
				}
				if !slices.Equal(waits, c.want) {
					t.Errorf("waits %v, want %v", waits, c.want)
				}
			})
		})
	}
}

// Nothing is sent to a server that does not say what it accepts, and no more to
// one that has gone.
func TestFilesServerGone(t *testing.T) {
	down, _ := callFailures(t)
	synctest.Test(t, func(t *testing.T) {
		library := &ingestServer{formats: []string{bookFormat}, broken: func() error { return down }}
		var waits []string
		lines, err := submitFiles(t.Context(), Files{Server: library, Waits: func(err error, wait time.Duration) { waits = append(waits, fmt.Sprint(wait, " ", err)) }}, file("a", book("")))
		if !errors.Is(err, down) || len(lines) != 0 || library.asked != 4 {
			t.Errorf("%v after %d tries, results %q", err, library.asked, lines)
		}
		if want := []string{"1s " + down.Error(), "2s " + down.Error(), "4s " + down.Error()}; !slices.Equal(waits, want) {
			t.Errorf("told of the waits %q, want %q", waits, want)
		}
		library.broken = nil
		library.answer = func(int, *sip.Request, func() *sip.Disposition) (*sip.Disposition, error) { return nil, down }
		var many []File
		for i := range 50 {
			many = append(many, file(fmt.Sprint(i), book("")))
		}
		lines, err = submitFiles(t.Context(), Files{Server: library}, many...)
		if err != nil || len(lines) != 50 {
			t.Fatalf("%v, %d results", err, len(lines))
		}
		for i, want := range map[int]string{0: "0.xml unsent: " + down.Error(), 49: "49.xml unsent: not tried, since the server has not answered for the last 3"} {
			if lines[i] != want {
				t.Errorf("result %d: %q, want %q", i, lines[i], want)
			}
		}
		if n := len(library.got); n > 4*6 {
			t.Errorf("%d requests to a server that has gone", n)
		}
	})
}

// Records that the server fails on do not keep those after them from being sent.
func TestFilesServerFails(t *testing.T) {
	for state, fails := range map[string]error{"unsent": &sip.Fault{Code: sip.Server, Text: "no"}, "unresolved": &sip.StatusError{Status: 500}} {
		t.Run(fails.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				library := &ingestServer{formats: []string{bookFormat}}
				library.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
					if *r.Source.Identifier < "3" {
						return nil, fails
					}
					return keep(), nil
				}
				var files []File
				var want []string
				for i := range 10 {
					line := fmt.Sprintf("%d.xml accepted: library:%d", i, i)
					if i < 3 {
						line = fmt.Sprintf("%d.xml %s: %v", i, state, fails)
					}
					files, want = append(files, file(fmt.Sprint(i), book(""))), append(want, line)
				}
				lines, err := submitFiles(t.Context(), Files{Server: library, Workers: 1}, files...)
				if err != nil {
					t.Fatal(err)
				}
				wantLines(t, lines, want...)
			})
		})
	}
}

// What the request says of its source, and of the notification recipient.
func TestFilesRequest(t *testing.T) {
	library := &ingestServer{formats: []string{bookFormat}}
	var got []sip.Request
	server := &anonymous{library, &got}
	nameless := file("x", book("two"))
	nameless.Identifier = nil
	f := Files{Server: server, Recipient: "smtp:box@books.example", Submitter: &sip.Submitter{Name: "Books", EmailAddress: "b@books.example"}, Sequence: "Novels", Workers: 1}
	if _, err := submitFiles(t.Context(), f, file("a", `<?xml version="1.0"?><!-- a --> `+book("one"))); err != nil {
		t.Fatal(err)
	}
	if _, err := submitFiles(t.Context(), Files{Server: server}, nameless); err != nil {
		t.Fatal(err)
	}
	id, sequence := "a", "Novels"
	if s := string(sip.AppendSource(nil, got[0].Source)); s != string(sip.AppendSource(nil, &sip.Source{Submitter: f.Submitter, Sequence: &sequence, Identifier: &id})) ||
		got[0].Recipient != f.Recipient || string(got[0].Record.XML) != book("one") {
		t.Errorf("sent %s, %+v", s, got[0])
	}
	if got[1].Source != nil || got[1].Recipient != "" {
		t.Errorf("sent %+v", got[1])
	}
}

// anonymous takes records from whoever does not say who he is.
type anonymous struct {
	*ingestServer
	got *[]sip.Request
}

func (s *anonymous) Ingest(_ context.Context, r *sip.Request) (*sip.Disposition, error) {
	*s.got = append(*s.got, *r)
	return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "1"}, nil
}

// A format that the server does not list is sent by force only.
func TestFilesFormats(t *testing.T) {
	plain, foreign := `<book/>`, strings.ReplaceAll(book(""), bookFormat, "https://schemas.example/x.xsd")
	for _, c := range []struct {
		name, text string
		files      Files
		want       submission.State
		reason     string
	}{
		{"named by the record", book(""), Files{}, submission.StateAccepted, ""},
		{"not known", plain, Files{}, submission.StateUnsent, "its format is not known: the record names no schema for its root book; the server accepts " + bookFormat},
		{"not listed", foreign, Files{}, submission.StateUnsent, "the server does not accept the format https://schemas.example/x.xsd; it accepts " + bookFormat},
		{"said by hand", plain, Files{Format: bookFormat}, submission.StateAccepted, ""},
		{"said by hand, and otherwise by the record", foreign, Files{Format: bookFormat}, submission.StateUnsent, "the server does not accept the format https://schemas.example/x.xsd; it accepts " + bookFormat},
		{"said by hand, not listed", plain, Files{Format: "https://schemas.example/x.xsd"}, submission.StateUnsent, "the server does not accept the format https://schemas.example/x.xsd; it accepts " + bookFormat},
		{"forced", plain, Files{Force: true}, submission.StateAccepted, ""},
	} {
		c.files.Server = &ingestServer{formats: []string{bookFormat}}
		var got []FileResult
		if err := c.files.Submit(t.Context(), []File{file("a", c.text)}, func(r FileResult) { got = append(got, r) }); err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", c.name, got, err)
		}
		if r := got[0]; r.State != c.want || r.Reason != c.reason || r.Unlisted != (c.want == submission.StateUnsent) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

// A source-identifier with characters that XML does not hold is not sent: written
// otherwise, two of them would be one, and the second file would replace the first.
func TestFilesIdentifiers(t *testing.T) {
	library := testserver.NewIngestServer(t, testserver.Accepts)
	f := Files{Server: &sip.HTTPClient{URL: library.URL, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, Force: true}
	lines, err := submitFiles(t.Context(), f, file("M\xfcller", book("1")), file("M\xf6ller", book("2")), file("a\x01", book("3")), file("M\u00fcller", book("4")))
	if err != nil {
		t.Fatal(err)
	}
	const reason = " unsent: its source-identifier has characters that XML does not hold: "
	wantLines(t, lines, "M\xfcller.xml"+reason+`"M\xfcller"`, "M\xf6ller.xml"+reason+`"M\xf6ller"`, "a\x01.xml"+reason+`"a\x01"`, "M\u00fcller.xml accepted: "+testserver.AssignedTo("M\u00fcller"))
	if n := len(library.Requests("M\ufffdller")); n != 0 {
		t.Errorf("%d requests with an identifier that nobody gave", n)
	}
}

// A long list of formats is cut short.
func TestUnlistedIsShort(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("https://schemas.example/%d.xsd", i))
	}
	got := unlisted(&sip.Record{}, "https://schemas.example/x.xsd", many)
	if !strings.HasSuffix(got, "https://schemas.example/4.xsd and 35 more") {
		t.Error(got)
	}
}

// Whoever interrupts gets what was done, and no more is begun.
func TestFilesInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		library := &ingestServer{formats: []string{bookFormat}}
		library.answer = func(n int, _ *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			if n == 2 {
				cancel()
			}
			return keep(), nil
		}
		lines, err := submitFiles(ctx, Files{Server: library, Workers: 1}, file("a", book("")), file("b", book("")), file("c", book("")), file("d", book("")))
		if !errors.Is(err, context.Canceled) || len(lines) < 2 || len(lines) > 3 || lines[1] != "b.xml accepted: library:b" {
			t.Errorf("%v: %q", err, lines)
		}
	})
}

// D39: by force files go to a server that does not know our get-properties.
func TestFilesForcedOnAServerWithoutProperties(t *testing.T) {
	library := &ingestServer{broken: func() error { return &sip.Fault{Code: sip.Client, Text: "what is get-properties?"} }}
	lines, err := submitFiles(t.Context(), Files{Server: library, Force: true}, file("a", `<book/>`))
	if err != nil || !slices.Equal(lines, []string{"a.xml accepted: library:a"}) || library.asked != 0 {
		t.Errorf("%q, %v, asked %d times", lines, err, library.asked)
	}
	if _, err = submitFiles(t.Context(), Files{Server: library}, file("a", `<book/>`)); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("without force: %v", err)
	}
}

// D43: without an identifier what may have arrived is not sent again: it would be
// another record. What certainly has not is.
func TestFilesWithoutIdentifierAreNotRepeated(t *testing.T) {
	lost, refused := errors.New("cut off"), &sip.StatusError{Status: 503}
	for _, c := range []struct {
		fails      error
		identifier bool
		sent       int
		want       submission.State
	}{
		{&sip.StatusError{Status: 502}, true, attempts, submission.StateUnresolved},
		{&sip.StatusError{Status: 502}, false, 1, submission.StateUnresolved},
		{refused, false, attempts, submission.StateUnsent},
		{lost, false, 1, submission.StateUnresolved},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			f := file("a", book(""))
			if !c.identifier {
				f.Identifier = nil
			}
			server := upstreamFunc(func(*sip.Request) (*sip.Disposition, error) { sent++; return nil, c.fails })
			var got FileResult
			if err := (&Files{Server: server, Force: true}).Submit(t.Context(), []File{f}, func(r FileResult) { got = r }); err != nil {
				t.Fatal(err)
			}
			if sent != c.sent || got.State != c.want {
				t.Errorf("%v, identifier %v: sent %d times, %+v", c.fails, c.identifier, sent, got)
			}
		})
	}
}

// upstreamFunc is an ingest server that is a function.
type upstreamFunc func(*sip.Request) (*sip.Disposition, error)

func (f upstreamFunc) GetProperties(context.Context) (*sip.Properties, error) {
	return nil, errors.New("nobody asks")
}

func (f upstreamFunc) Ingest(_ context.Context, r *sip.Request) (*sip.Disposition, error) {
	return f(r)
}
