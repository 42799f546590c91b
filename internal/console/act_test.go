package console_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sourceOf returns the number of the only Source of a set, as paths have it.
func (s *site) sourceOf(set string) string {
	s.t.Helper()
	all, err := s.bridge.Log.Sources(s.t.Context(), set)
	if err != nil || len(all) != 1 {
		s.t.Fatalf("Sources of %s: %v, %v", set, all, err)
	}
	return fmt.Sprint(all[0].ID)
}

// act sends a form, and returns what the page says then that it leads to.
func (s *site) act(path string, pairs ...string) (said string, failed bool) {
	s.t.Helper()
	a := s.post(path, pairs...)
	if a.StatusCode != http.StatusSeeOther {
		s.t.Fatalf("POST %s: %s\n%s", path, a.Status, text(a.root))
	}
	to, err := a.Location()
	if err != nil {
		s.t.Fatal(err)
	}
	page := s.page(strings.TrimPrefix(to.Path, "/console") + "?" + to.RawQuery)
	for _, n := range elements(page.root, "p") {
		if role := attr(n, "role"); role == "status" || role == "alert" {
			return text(n), role == "alert"
		}
	}
	s.t.Fatalf("POST %s led to %s, which says nothing of it", path, to)
	return "", false
}

func TestActOnSource(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	held, failing := "/sources/"+s.sourceOf("instruments"), "/sources/"+s.sourceOf("failing")
	broken := s.bridge.Sources()[slices.IndexFunc(s.bridge.Sources(), func(src *daemon.Source) bool { return src.Set == "failing" })]
	plan, err := s.bridge.Log.Schedule(t.Context(), broken.ID)
	if plan.Failures = 0; err == nil { // as after a reset
		err = s.bridge.Log.SaveSchedule(t.Context(), broken.ID, plan, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	if page := text(s.page(failing).root); !strings.Contains(page, "It has failed since") || strings.Contains(page, "in a row.") {
		t.Errorf("not tried since a reset: %s", page)
	}
	if said, failed := s.act(failing+"/pause", "reason", "moves house "+evil, "for", "24h", "to", failing[1:]); failed || !strings.Contains(said, "is paused until 20") {
		t.Errorf("pause: %s", said)
	}
	if page := text(s.page(failing).root); !strings.Contains(page, "Paused") || !strings.Contains(page, "moves house") {
		t.Errorf("paused: %s", page)
	}
	if said, failed := s.act(failing+"/harvest", "to", failing[1:]); !failed || !strings.Contains(said, "is paused") {
		t.Errorf("harvest a paused Source: %s", said)
	}
	if said, failed := s.act(failing+"/pause", "for", "-1h"); !failed || !strings.Contains(said, "choose how long") {
		t.Errorf("pause for a time before: %s", said)
	}
	if said, failed := s.act(failing + "/resume"); failed || !strings.Contains(said, "is resumed") {
		t.Errorf("resume: %s", said)
	}
	s.broken.Store(false)
	if said, failed := s.act(failing + "/harvest"); failed || !strings.Contains(said, "harvested") {
		t.Errorf("retry: %s", said)
	}
	for _, action := range []string{"release", "accept-gap", "reset"} {
		if said, failed := s.act(held + "/" + action); !failed || !strings.Contains(said, "tick the box") {
			t.Errorf("%s without saying so: %s", action, said)
		}
	}
	if page := text(s.page(held + "/held").root); !strings.Contains(page, "a person, or time") || !strings.Contains(page, "deleted 24 h after") {
		t.Errorf("held: %s", page)
	}
	if n, err := s.bridge.Log.Has(t.Context(), 3); err != nil || n != 12 { // those that are held, too
		t.Errorf("the Source has %d records, %v", n, err)
	}
	if said, failed := s.act(held+"/keep", "to", held[1:]+"/held"); failed || !strings.Contains(said, "11 held deletions kept") {
		t.Errorf("keep: %s", said)
	}
	if page := text(s.page(held + "/held").root); !strings.Contains(page, "a person alone") || strings.Contains(page, "a person, or time") {
		t.Errorf("kept: %s", page)
	}
	if err := s.bridge.Log.Verify(t.Context(), func(f eventlog.Finding) { t.Errorf("verify: %v", f) }); err != nil {
		t.Error(err)
	}
	until := ""
	for _, n := range elements(s.page(held+"/held").root, "input") {
		if attr(n, "name") == "until" {
			until = attr(n, "value")
		}
	}
	src, err := strconv.ParseInt(s.sourceOf("instruments"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	newest, err := s.bridge.Log.HeldUntil(t.Context(), event.SourceID(src))
	if err != nil || until != strconv.FormatInt(int64(newest), 10) {
		t.Errorf("the form releases what is held since %s, the newest is since %d, %v", until, newest, err)
	}
	for _, before := range []string{"", strconv.FormatInt(int64(newest)-1, 10)} { // as if all were held since the page was shown
		_, _ = s.act(held+"/release", "sure", "1", "until", before)
		if n, err := s.bridge.Log.Held(t.Context(), event.SourceID(src), true, newest); err != nil || len(n) != 11 {
			t.Errorf("what the page has not shown is released: %d left, %v", len(n), err)
		}
	}
	if said, failed := s.act(held+"/accept-gap", "sure", "1", "gap", "another"); !failed || !strings.Contains(said, "has changed meanwhile") {
		t.Errorf("accept a gap that the page has not shown: %s", said)
	}
	if said, failed := s.act(held+"/release", "sure", "1", "until", until); failed || !strings.Contains(said, "11 held deletions applied") {
		t.Errorf("release: %s", said)
	}
	if set, err := s.bridge.Log.Set(t.Context(), "instruments"); err != nil || set.Live != 1 {
		t.Errorf("released: %d live, %v", set.Live, err)
	}
	if said, failed := s.act(held+"/reset", "sure", "1"); failed || !strings.Contains(said, "from the beginning") {
		t.Errorf("reset: %s", said)
	}
	if a := s.post(held + "/nothing"); a.StatusCode != http.StatusNotFound {
		t.Errorf("no action: %s", a.Status)
	}
	if a := s.post("/sources/9999/harvest"); a.StatusCode != http.StatusNotFound {
		t.Errorf("no Source: %s", a.Status)
	}
}

func TestActOnQuarantine(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	s := newSite(t, func(o *console.Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	all, err := s.bridge.Log.Quarantined(t.Context(), "hostile")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	id := fmt.Sprint(all[0].ID)
	shown := fmt.Sprintf("%s.%d", id, all[0].First)
	for _, path := range []string{"/quarantine", "/quarantine/" + id} {
		if page := s.page(path); !strings.Contains(page.body, `name="shown" value="`+shown+`"`) {
			t.Errorf("the form of %s does not say which input it has shown:\n%s", path, page.body)
		}
	}
	if said, failed := s.act("/quarantine", "do", "discard", "id", id, "shown", fmt.Sprintf("%s.%d", id, all[0].First-1), "to", "quarantine"); !failed || !strings.Contains(said, "another one than the page has shown") {
		t.Errorf("discard an input that has the number of one that was shown: %s", said)
	}
	if page := text(s.page("/quarantine/" + id).root); !strings.Contains(page, "RFC 4287 4.1.2") || !strings.Contains(page, "<title>") {
		t.Errorf("the page of a bad input shows no clause, or no bytes: %s", page)
	}
	if said, failed := s.act("/quarantine", "do", "replay", "to", "quarantine"); !failed || !strings.Contains(said, "choose at least one") {
		t.Errorf("replay nothing: %s", said)
	}
	if said, failed := s.act("/quarantine", "do", "replay", "id", id, "shown", shown, "to", "quarantine/"+id); !failed || !strings.Contains(said, "still bad") {
		t.Errorf("replay what is still bad: %s", said)
	}
	if said, failed := s.act("/quarantine", "do", "discard", "id", id, "id", "77", "shown", shown, "to", "quarantine"); !failed || !strings.Contains(said, "1 input discarded.") || !strings.Contains(said, "1 input could not be decided") {
		t.Errorf("discard one that is there and one that is not: %s", said)
	}
	if all, err := s.bridge.Log.Quarantined(t.Context(), "hostile"); err != nil || len(all) != 0 {
		t.Errorf("discarded: %v, %v", all, err)
	}
	for _, decided := range []string{"replayed", "discarded"} {
		if !strings.Contains(logged.String(), "decided="+decided+" inputs=1 client=127.0.0.1:") {
			t.Errorf("the log does not say who has %s an input:\n%s", decided, &logged)
		}
	}
}

// Many submissions are decided at once, each as a command would decide it.
func TestActOnReviews(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	s := newSite(t)
	const many = 500
	form := []string{"do", "accept", "to", "reviews"}
	for n := range many {
		s.submit(n, fmt.Sprintf("Place %d", n))
		form = append(form, "id", fmt.Sprint(n+1))
	}
	if rows := elements(s.page("/reviews?many=1").root, "tr"); len(rows) != many+1 {
		t.Errorf("%d rows, want %d", len(rows), many+1)
	}
	if said, failed := s.act("/reviews", form...); failed || !strings.Contains(said, "500 submissions accepted.") {
		t.Errorf("accept: %s", said)
	}
	if set, err := s.bridge.Log.Set(t.Context(), "deposits"); err != nil || set.Live != many {
		t.Errorf("accepted: %d records, %v", set.Live, err)
	}
	s.submit(7, "Place 7, renovated")
	page := s.page("/reviews/501")
	var changed []string
	for _, n := range elements(page.root, "") {
		if n.Data == "ins" || n.Data == "del" {
			changed = append(changed, text(n))
		}
	}
	if want := []string{"- <title>Place 7</title>", "+ <title>Place 7, renovated</title>"}; !slices.Equal(changed, want) || !strings.Contains(text(page.root), "it replaces") {
		t.Errorf("the changes are %q, want %q", changed, want)
	}
	if said, failed := s.act("/reviews", "do", "reject", "id", "501", "id", "1", "reason", "no source", "to", "reviews"); !failed || !strings.Contains(said, "1 submission rejected.") ||
		!strings.Contains(said, "submission 1 has been accepted already") {
		t.Errorf("reject one, and one that was accepted: %s", said)
	}
	if got, err := s.bridge.SIP.Submission(t.Context(), 501); err != nil || got.State != submission.StateRejected || got.Reason != "no source" {
		t.Errorf("rejected: %+v, %v", got, err)
	}
}

// Who types a reason and presses Enter has a browser press the first button of the form:
// nothing is accepted so.
func TestReasonOfAcceptance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.submit(1, "Place")
	if said, failed := s.act("/reviews", "do", "accept", "id", "1", "reason", "no title", "to", "reviews"); !failed || !strings.Contains(said, "Nothing was decided: a reason is for a rejection.") {
		t.Errorf("accept with a reason: %s", said)
	}
	if got, err := s.bridge.SIP.Submission(t.Context(), 1); err != nil || !got.UnderReview() {
		t.Errorf("it is decided: %+v, %v", got, err)
	}
}

// Another web site can make a browser send a form, and nothing is done.
func TestForeignForms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	held := "/sources/" + s.sourceOf("instruments")
	for name, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.console+held+"/release", strings.NewReader(url.Values{"sure": {"1"}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set(name, value)
		if a := s.do(req); a.StatusCode != http.StatusForbidden || !strings.Contains(text(a.root), "Another web site has sent this form") {
			t.Errorf("%s: %s: %s", name, value, a.Status)
		}
	}
	if set, err := s.bridge.Log.Set(t.Context(), "instruments"); err != nil || set.Live == 0 {
		t.Errorf("%d live, %v", set.Live, err)
	}
	if a := s.page("/?note=" + url.QueryEscape("call this number")); strings.Contains(a.body, "call this number") {
		t.Error("a link puts words into the console")
	}
}
