package daemon_test

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// TestSIPPage_WhoHasRejected: a page says of a rejection whether it was decided
// here, by the ingest server behind us, or told by one that somebody else has
// submitted to.
func TestSIPPage_WhoHasRejected(t *testing.T) {
	up := testserver.NewIngestServer(t, testserver.Defers)
	h := newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+
		sipSet("told")+
		sipSet("review", reviewMode)+
		sipSet("gate", fmt.Sprintf("mode = \"gateway\"\nupstream = %q", up.URL))+
		sipSet("both", libraryMode)+fmt.Sprintf("[[set.submit]]\nurl = %q\n", up.URL)+
		sipSet("main"))
	record := sourceOf("1") + recipientAt(h.base+"/sip/main") + recordOf(`<r xmlns="urn:r">x</r>`)

	h.notify("/sip/told", sourceOf("1")+rejectedFor("out of range"))
	h.notify("/sip/both", sourceOf("1")+rejectedFor("out of range"))
	h.send("/sip/both", inSOAP(sipDoc("ingest-request", sourceOf("2")+recordOf(`<q xmlns="urn:q"/>`))), 200)
	h.send("/sip/review", inSOAP(sipDoc("ingest-request", record)), 200)
	if _, err := h.bridge.Decide(t.Context(), daemon.Decision{ID: 1, Reason: "no coordinates"}); err != nil {
		t.Fatal(err)
	}
	h.send("/sip/review", inSOAP(sipDoc("ingest-request", sourceOf("2")+recordOf(`<q xmlns="urn:q"/>`))), 200)
	h.send("/sip/gate", inSOAP(sipDoc("ingest-request", record)), 200)
	h.notify(recipientAfter(t, up, h.base), sourceOf("1")+rejectedFor("not wanted"))
	h.notify("/sip/gate", sourceOf("7")+rejectedFor("too long"))

	wantProblems := func() {
		t.Helper()
		for set, want := range map[string][]string{
			"told":   {`1: rejected, reported by an ingest server: out of range`},
			"both":   {`2: rejected, decided here: the format {urn:q}q is not accepted`, `1: rejected, reported by an ingest server: out of range`},
			"review": {`2: rejected, decided here: the format {urn:q}q is not accepted`, `1: rejected, decided here: no coordinates`},
			"gate":   {`7: rejected, reported by an ingest server: too long`, `1: rejected, submitted to this service: not wanted`},
		} {
			page := regexp.MustCompile(` since <time.*?</time>|<[^>]*>`).ReplaceAllString(string(h.get("/sets/"+set+"/").body), "")
			_, problems, _ := strings.Cut(page, "Newest submissions that need attention")
			lines := strings.Split(strings.TrimSpace(problems), "\n")
			if len(lines) != len(want) {
				t.Errorf("%s: %q, want %q", set, lines, want)
				continue
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, want[i]) {
					t.Errorf("%s: %q, want %q", set, line, want[i])
				}
			}
		}
	}
	wantProblems()
	h.restart(func() { // it does not change who has decided when the modes do
		for set, mode := range map[string]string{"review": "library", "gate": "review"} {
			for i := range h.config.Sets {
				if s := &h.config.Sets[i]; s.Name == set {
					s.Sources[0].SIP.Mode = mode
				}
			}
		}
	})
	wantProblems()
}

// A Source is found by its URL as it is and as it is shown, if that is only one.
func TestFindTakesWhatIsShown(t *testing.T) {
	folder := t.TempDir()
	c, err := config.FromArguments(config.Flags{Data: folder}, []string{
		"one=http://a.example/feed?key=secret", "one=http://a.example/plain",
		"two=http://a.example/feed?key=secret", "two=http://a.example/feed?key=other",
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, q := range []struct{ set, typed, want string }{
		{"one", "http://a.example/feed?key=secret", "http://a.example/feed?key=secret"},
		{"one", "http://a.example/feed?***", "http://a.example/feed?key=secret"},
		{"one", "http://a.example/plain", "http://a.example/plain"},
		{"one", "http://a.example/feed?key=guess", ""},
		{"one", "", ""},
		{"two", "http://a.example/feed?key=other", "http://a.example/feed?key=other"},
		{"two", "http://a.example/feed?***", ""},
	} {
		found, err := h.Find(t.Context(), q.set, q.typed)
		if q.want == "" && err == nil || q.want != "" && (err != nil || found.URL != q.want) {
			t.Errorf("%s %s: %+v, %v", q.set, q.typed, found, err)
		}
	}
}

// What a set tells of its last event is of one that is in no segment, too.
func TestSIPNewestEvent(t *testing.T) {
	h := newSIPBridge(t, sipSet("main"))
	h.notify("/sip/main", sourceOf("1")+rejectedFor("no title"))
	set, err := h.bridge.Log.Set(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	events := 0
	for ev := range h.eventsOf("main", 0) {
		events++
		if ev.Observed != set.Newest || set.Newest <= set.Created || set.LastObserved != set.Created {
			t.Errorf("the event is of %v; the set says %v, and was made at %v", ev.Observed, set.Newest, set.Created)
		}
	}
	if events != 1 {
		t.Errorf("%d events, want 1", events)
	}
	h.shows("main", set.Newest.Time().Format("2006-01-02 15:04:05 UTC"))
}

// A caller's long texts are stored once; whoever looks at a page later does not
// pay for them again and again.
func TestLongTextsOnPages(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main"))
	long := strings.Repeat("x", 4<<20-2000)
	for i := range 6 {
		h.notify("/sip/main", sourceOf(fmt.Sprint(i))+rejectedFor(fmt.Sprint(i)+long))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.shows("main", "5xxx")
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(long)) {
		t.Errorf("a page takes %d bytes of memory, and one of the texts on it has %d", took, len(long))
	}
}
