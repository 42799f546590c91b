package delivery

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// answerFrom lets a real client ask a real server that answers with a status and a
// body, and returns what came of it.
func answerFrom(t *testing.T, r *sip.Request, status int, body string) Reply {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	return Ask(context.Background(), plainClient(server.URL), r)
}

// accepting is a disposition as a message.
func accepting(identifier string, source *sip.Source) string {
	d := &sip.Disposition{Source: source, Outcome: sip.Accepted, AssignedIdentifier: identifier}
	return string(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindDisposition, Disposition: d}))
}

// What an answer leads to is the same for a gateway, a target and files: who may
// have sent twice what was taken, or given up what was not, is in one place. A
// redirection is a refusal (D33).
func TestAnswerMeansTheSameEverywhere(t *testing.T) {
	const page = "<html>no message</html>"
	fault := func(code sip.Code) string {
		return string(sip.AppendMessage(nil, &sip.Message{Kind: sip.KindFault, Fault: &sip.Fault{Code: code, Text: "no"}}))
	}
	r := request("1", "map")
	other, long := *r.Source, *r.Source
	two, far := "2", strings.Repeat("x", submission.MaxText+1)
	other.Identifier, long.Sequence = &two, &far
	for _, c := range []struct {
		name                   string
		status                 int
		body                   string
		gateway, target, files submission.State
		says                   string // in the reason
	}{
		{"a disposition", 200, accepting("7", r.Source), submission.StateAccepted, submission.StateAccepted, submission.StateAccepted, ""},
		{"a disposition, created", 201, accepting("7", r.Source), submission.StateAccepted, submission.StateAccepted, submission.StateAccepted, ""},
		{"a disposition, taken", 202, accepting("7", r.Source), submission.StateAccepted, submission.StateAccepted, submission.StateAccepted, ""},
		{"a disposition, changed", 203, accepting("7", r.Source), submission.StateAccepted, submission.StateAccepted, submission.StateAccepted, ""},
		{"no source", 200, accepting("7", nil), submission.StateAccepted, submission.StateAccepted, submission.StateAccepted, ""},

		{"another source", 200, accepting("7", &other), submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, `source-identifier is "2", and "1" was sent`},
		{"a long source", 200, accepting("7", &long), submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "sequence: it has 8193 bytes"},
		{"a long identifier", 200, accepting(far, r.Source), submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "assigned-identifier: it has 8193 bytes"},
		{"nothing", 200, "", submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "cannot be read"},
		{"a page", 200, page, submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "cannot be read"},
		{"taken", 202, "", submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "HTTP 202"},
		{"taken, in words", 202, page, submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "HTTP 202"},
		{"no content", 204, "", submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "HTTP 204"},
		{"partial content", 206, accepting("7", r.Source), submission.StateInDoubt, submission.StateUnresolved, submission.StateUnresolved, "HTTP 206"},
		{"moved", 301, "", submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 301"},
		{"see other", 303, "", submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 303"},
		{"not modified", 304, "", submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 304"},
		{"moved for now", 307, "", submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 307"},

		{"out of order", 500, page, submission.StateInDoubt, submission.StateWaiting, submission.StateUnresolved, "HTTP 500"},
		{"bad gateway", 502, page, submission.StateInDoubt, submission.StateWaiting, submission.StateUnresolved, "HTTP 502"},
		{"too late", 504, page, submission.StateInDoubt, submission.StateWaiting, submission.StateUnresolved, "HTTP 504"},

		{"not here", 501, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 501"},
		{"busy", 503, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 503"},
		{"too slow", 408, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 408"},
		{"too many", 429, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 429"},
		{"password", 401, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 401"},
		{"password, in a fault", 500, fault("Client.Authentication"), submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "SOAP fault Client.Authentication: no"},
		{"address", 404, page, submission.StateUnsent, submission.StateWaiting, submission.StateUnsent, "HTTP 404"},

		{"bad request, in a fault", 500, fault("Client.Order"), submission.StateUnsent, submission.StateUnsent, submission.StateUnsent, "SOAP fault Client: no"},
		{"bad request", 400, page, submission.StateUnsent, submission.StateUnsent, submission.StateUnsent, "HTTP 400"},
		{"too long", 413, page, submission.StateUnsent, submission.StateUnsent, submission.StateUnsent, "HTTP 413"},
		{"unprocessable", 422, page, submission.StateUnsent, submission.StateUnsent, submission.StateUnsent, "HTTP 422"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := answerFrom(t, r, c.status, c.body)
			now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
			gateway := submission.Submission{State: submission.StateForwarding}
			if got.Err != nil {
				gateway, _ = submission.Apply(gateway, submission.Failure{Class: got.Failure(), Reason: FailureText(got.Err)}, now)
			} else {
				gateway.State = submission.StateAfter(got.Disposition)
			}
			o := (&Submitter{Now: func() time.Time { return now }}).withDefaults()
			step, _ := o.update(&report{Submission: submission.Submission{State: submission.StateWaiting, Seq: 1}, Reply: got})
			target := step.Submission
			file := fileAnswered(t, got)
			if gateway.State != c.gateway || target.State != c.target || file.State != c.files {
				t.Errorf("gateway %v, target %v, files %v; want %v, %v, %v (%v)", gateway.State, target.State, file.State, c.gateway, c.target, c.files, got.Err)
			}
			for _, reason := range []string{gateway.Reason, target.Reason, file.Reason} {
				if !strings.Contains(reason, c.says) {
					t.Errorf("the reason is %q, and %q is not in it", reason, c.says)
				}
			}
			// D31: only what may have arrived is awaited.
			if awaited := target.Deadline != 0; target.State == submission.StateWaiting && awaited != (c.gateway == submission.StateInDoubt) {
				t.Errorf("the target's deadline is %v", target.Deadline)
			}
			if again := target.Due != 0; again != (c.target == submission.StateWaiting) {
				t.Errorf("the target is due at %v", target.Due)
			}
		})
	}
}

// fileAnswered is what becomes of a file whose requests are all answered so.
func fileAnswered(t *testing.T, r Reply) (result FileResult) {
	synctest.Test(t, func(t *testing.T) {
		library := &ingestServer{formats: []string{bookFormat}, answer: func(int, *sip.Request, func() *sip.Disposition) (*sip.Disposition, error) {
			if r.Err != nil {
				return nil, r.Err
			}
			return &sip.Disposition{Outcome: r.Disposition.Outcome, AssignedIdentifier: r.Disposition.AssignedIdentifier}, nil
		}}
		f := Files{Server: library}
		if err := f.Submit(t.Context(), []File{file("1", book(""))}, func(r FileResult) { result = r }); err != nil {
			t.Error(err)
		}
	})
	return result
}

// Which sources are the same, by the texts that both have.
func TestOtherSource(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SampledFrom([]string{"a", "b", ""})
		maybe := func(label string) *string { return rapid.Ptr(text, true).Draw(rt, label) }
		draw := func(label string) *sip.Source {
			s := &sip.Source{Sequence: maybe(label + " sequence"), Identifier: maybe(label + " identifier")}
			if rapid.Bool().Draw(rt, label+" submitter") {
				s.Submitter = &sip.Submitter{Name: text.Draw(rt, label+" name"), EmailAddress: text.Draw(rt, label+" email")}
			}
			return s
		}
		sent, repeated := draw("sent"), draw("repeated")
		theirs, ours := submission.SourceTexts(repeated), submission.SourceTexts(sent)
		same := true
		for path := range theirs {
			same = same && (theirs[path] == "" || theirs[path] == ours[path])
		}
		got := otherSource(sent, repeated)
		if (got == "") != same {
			rt.Fatalf("%v and %v: %q", ours, theirs, got)
		}
		if otherSource(sent, sent) != "" || otherSource(sent, nil) != "" {
			rt.Fatal("what repeats all, or nothing, is not another source")
		}
		if padded := spaced(repeated); otherSource(sent, padded) != got {
			rt.Fatalf("white space makes a difference: %q, %q", otherSource(sent, padded), got)
		}
	})
}

// spaced is a source with white space around each of its texts.
func spaced(s *sip.Source) *sip.Source {
	wide := func(s *string) *string {
		if s == nil {
			return nil
		}
		w := "\n  " + *s + " "
		return &w
	}
	out := &sip.Source{Sequence: wide(s.Sequence), Identifier: wide(s.Identifier)}
	if s.Submitter != nil {
		out.Submitter = &sip.Submitter{Name: *wide(&s.Submitter.Name), EmailAddress: *wide(&s.Submitter.EmailAddress)}
	}
	return out
}

// A target does not send again what may have been taken, and a late notification
// still counts.
func TestSubmitterUndecided(t *testing.T) {
	odd := map[string]Reply{}
	for _, status := range []int{200, 202, 204} {
		odd[fmt.Sprintf("urn:%d", status)] = answerFrom(t, request("1", ""), status, "")
	}
	inBubble(t, func(t *testing.T, h *harness) {
		h.server.answer = func(_ int, r *sip.Request, keep func() *sip.Disposition) (*sip.Disposition, error) {
			id := *r.Source.Identifier
			d := keep()
			if id == "urn:other" {
				d.Source = &sip.Source{Identifier: new(string)}
				*d.Source.Identifier = "urn:else"
				return d, nil
			}
			return nil, odd[id].Err
		}
		h.keep([2]string{"urn:200", ""}, [2]string{"urn:202", ""}, [2]string{"urn:204", ""}, [2]string{"urn:other", ""})
		h.run(func(o *Submitter) { o.Workers = 1 })
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		rows := h.rows()
		for _, s := range rows {
			if s.State != submission.StateUnresolved || s.Tries != 1 || s.Due != 0 || s.Deadline != 0 || s.Reason == "" {
				t.Errorf("%s: %+v", s.Record, s)
			}
		}
		if n := len(h.server.requests()); n != len(rows) {
			t.Errorf("%d requests for %d records", n, len(rows))
		}
		h.do(h.notify(rows[1].Token, &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: "library:202"}))
		if s := h.rows()[1]; s.State != submission.StateAccepted || !s.Late {
			t.Errorf("after the notification: %+v", s)
		}
	})
}
