package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/emersion/go-smtp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/pmh-bridge/bridge/internal/alert"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// inbox is a mail server that keeps what it gets.
type inbox struct {
	mu    sync.Mutex
	mails []string
}

func (in *inbox) NewSession(*smtp.Conn) (smtp.Session, error) { return mailSession{in}, nil }

// listen serves it until the test ends, and returns its address.
func (in *inbox) listen(t *testing.T) (address string) {
	t.Helper()
	server := smtp.NewServer(in)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(l) }()
	return l.Addr().String()
}

func (in *inbox) all() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.mails...)
}

type mailSession struct{ in *inbox }

func (mailSession) Mail(string, *smtp.MailOptions) error { return nil }
func (mailSession) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (mailSession) Reset()                               {}
func (mailSession) Logout() error                        { return nil }
func (s mailSession) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.in.mails = append(s.in.mails, string(data))
	return err
}

// TestAlertOnceOnOnceOff: a Source that fails for long is told of once by command,
// webhook and mail, and once that it is over, also when bridge restarts in between.
func TestAlertOnceOnOnceOff(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	broken.Store(true)
	feed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, smallFeed)
	}))
	defer feed.Close()
	var posted []string
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		posted = append(posted, string(data)) // one request at a time
	}))
	defer hook.Close()
	in := &inbox{}
	relay := in.listen(t)

	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "hook"), []byte(hook.URL+"/secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed := filepath.Join(folder, "printed")
	c := loadText(t, folder, fmt.Sprintf(`
data = "data"
base_url = "https://bridge.example.org"
[mail]
relay = "%s"
[[alert]]
on = ["failing:12h"]
command = ["/bin/sh", "-c", "cat >> \"$0\"", "%s"]
[[alert]]
on = ["failing:12h"]
webhook_file = "hook"
[[alert]]
on = ["failing:12h"]
mail = "ops@example.org"
[[set]]
name = "main"
content = "reference"
[[set.source]]
name = "campus"
kind = "feed"
url = "%s"
`, relay, printed, feed.URL))
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	// round harvests, restarts, and looks for alerts twice.
	round := func(later time.Duration) {
		t.Helper()
		now = now.Add(later)
		for range 2 {
			h := openBridge(t, c, Options{Now: func() time.Time { return now }, Network: Unresolved})
			h.setBaseURL(c.BaseURL)
			if _, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{}); (err != nil) != broken.Load() {
				t.Fatal(err)
			}
			if err := h.alerter().Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			closeBridge(t, h)
		}
	}
	told := func() (byCommand, byHook []string, byMail []string) {
		data, _ := os.ReadFile(printed)
		return strings.Split(strings.TrimSpace(string(data)), "\n"), posted, in.all()
	}
	round(0)
	if _, byHook, byMail := told(); len(byHook)+len(byMail) != 0 {
		t.Fatalf("told too early: %q %q", byHook, byMail)
	}
	round(13 * time.Hour)
	broken.Store(false)
	round(time.Hour)
	round(time.Hour)

	byCommand, byHook, byMail := told()
	if len(byCommand) != 2 || len(byHook) != 2 || len(byMail) != 2 {
		t.Fatalf("told %d, %d and %d times:\n%q\n%q\n%q", len(byCommand), len(byHook), len(byMail), byCommand, byHook, byMail)
	}
	for _, texts := range [][]string{byCommand, byHook} {
		for i, text := range texts {
			var m alert.Message
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			on, off := m.On, m.Off
			if i == 1 {
				on, off = off, on
			}
			if len(on) != 1 || len(off) != 0 || on[0].Source != "campus" || on[0].Set != "main" || !strings.Contains(on[0].Text, "404") || m.Bridge != "https://bridge.example.org" {
				t.Errorf("%s", text)
			}
		}
	}
	for i, subject := range []string{"bridge: 1 new: failing", "bridge: 1 over: failing"} {
		m, err := mail.ReadMessage(strings.NewReader(byMail[i]))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get("Subject"); got != subject || !strings.HasPrefix(m.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%q", m.Header)
		}
	}
}

// TestAlertOfEachWarning: what is told of the log for a long time does not keep what comes later
// from being told, and each is over by itself.
func TestAlertOfEachWarning(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	told := filepath.Join(folder, "told")
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	// round restarts with some sets after a time, and returns what was told: what has begun, and
	// what is over.
	round := func(later time.Duration, sets ...string) (on, off []string) {
		t.Helper()
		text := fmt.Sprintf("data = \"data\"\nbase_url = \"https://bridge.example.org\"\n[[alert]]\non = [\"log\"]\ncommand = [\"/bin/sh\", \"-c\", \"cat > \\\"$0\\\"\", %q]\n", told)
		for _, set := range sets {
			text += fmt.Sprintf("[[set]]\nname = %q\n[[set.source]]\nurl = \"https://%s.example/\"\n", set, set)
		}
		c := loadText(t, folder, text)
		now = now.Add(later)
		h := openBridge(t, c, Options{Now: func() time.Time { return now }, Network: Unresolved})
		defer closeBridge(t, h)
		_ = os.Remove(told)
		if err := h.alerter().Round(t.Context()); err != nil {
			t.Fatal(err)
		}
		var m alert.Message
		if data, err := os.ReadFile(told); err == nil {
			if err := json.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range m.On {
			on = append(on, a.Text)
		}
		for _, a := range m.Off {
			off = append(off, a.Text)
		}
		return on, off
	}
	one := func(list []string, text string) bool { return len(list) == 1 && strings.Contains(list[0], text) }
	if on, off := round(0, "maps", "old"); len(on)+len(off) != 0 {
		t.Fatalf("at the start: %q, %q", on, off)
	}
	if on, off := round(time.Hour, "maps"); !one(on, "set old:") || len(off) != 0 {
		t.Errorf("with a set that is not configured any more: %q, %q", on, off)
	}
	if on, off := round(400*24*time.Hour, "maps"); !one(on, "clock") || len(off) != 0 {
		t.Errorf("with a clock that has jumped as well: %q, %q", on, off)
	}
	if on, off := round(time.Hour, "maps"); len(on)+len(off) != 0 {
		t.Errorf("an hour later: %q, %q", on, off)
	}
	if on, off := round(-400*24*time.Hour, "maps"); len(on) != 0 || !one(off, "clock") {
		t.Errorf("with the right clock: %q, %q", on, off)
	}
}

// TestAlertIsTold: a command that leaves something in the background has been told, one
// that fails has not; nor has a webhook that leads elsewhere, and the error does not name its URL.
func TestAlertIsTold(t *testing.T) {
	t.Parallel()
	if err := runAlert(t.Context(), []string{"/bin/sh", "-c", "sleep 5 & cat"}, &alert.Message{}); err != nil {
		t.Error(err)
	}
	if err := runAlert(t.Context(), []string{"/bin/sh", "-c", "echo no mailbox; exit 3"}, &alert.Message{}); err == nil || !strings.Contains(err.Error(), "no mailbox") {
		t.Error(err)
	}
	// What it writes is cut between two characters.
	err := runAlert(t.Context(), []string{"/bin/sh", "-c", "printf x; yes ü | tr -d '\\n' | head -c 10000000; exit 3"}, &alert.Message{})
	if err == nil || !strings.Contains(err.Error(), ": xüü") || !strings.HasSuffix(err.Error(), "üü...") || !utf8.ValidString(err.Error()) || len(err.Error()) > 500 {
		t.Errorf("a command that writes much: %v", err)
	}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/login" {
			http.Redirect(w, r, "/login", http.StatusFound)
		}
	}))
	defer hook.Close()
	b := openFeeds(t, t.TempDir(), hook, "/")
	defer closeBridge(t, b)
	if err := b.postAlert(t.Context(), hook.URL+"/secret", &alert.Message{}); err == nil || !strings.Contains(err.Error(), "302") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestWebhookOfManySources: a webhook gets some of the alerts about very many Sources, and the
// number of the others; a command gets all.
func TestWebhookOfManySources(t *testing.T) {
	bodies := make(chan []byte, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- body
	}))
	defer hook.Close()
	folder := t.TempDir()
	told := filepath.Join(folder, "told")
	t.Setenv("HOOK", hook.URL)
	c := loadText(t, folder, fmt.Sprintf(`
data = "data"
allow_hosts = ["127.0.0.1"]
[[alert]]
on = ["failing:1h"]
webhook = "${HOOK}"
[[alert]]
on = ["failing:1h"]
command = ["/bin/sh", "-c", "cat > \"$0\"", %q]
[[set]]
name = "main"
[[set.source]]
url = "https://a.example/"
`, told))
	h := openBridge(t, c, Options{})
	defer closeBridge(t, h)
	var all alert.Message
	for i := range 1000 {
		all.On = append(all.On, alert.Alert{Condition: config.OnFailing, Source: fmt.Sprint(i), Text: strings.Repeat("no ", 100)})
	}
	a := h.alerter()
	for i := range c.Alerts {
		if err := a.Send(t.Context(), &c.Alerts[i], &all); err != nil {
			t.Fatal(err)
		}
	}
	var posted, given alert.Message
	body := <-bodies
	if err := json.Unmarshal(body, &posted); err != nil || len(body) > 30_000 || len(posted.On) != 50 || posted.MoreOn[config.OnFailing] != 950 {
		t.Errorf("%d bytes with %d alerts and %v more, %v", len(body), len(posted.On), posted.MoreOn, err)
	}
	body, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &given); err != nil || len(given.On) != 1000 || len(given.MoreOn) != 0 {
		t.Errorf("the command was given %d alerts, %v", len(given.On), err)
	}
}

// loadText returns the configuration that a text makes in a folder.
func loadText(t *testing.T, folder, text string) *config.Config {
	t.Helper()
	file := filepath.Join(folder, "bridge.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAlertsThatCannotBeSent: a receiver that two rounds could not tell is a warning, of which the
// others are told, until it can be told.
func TestAlertsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	told, works := filepath.Join(folder, "told"), filepath.Join(folder, "works")
	text := fmt.Sprintf(`
data = "data"
[[alert]]
on = ["failing:1h"]
command = ["/bin/sh", "-c", "test -e \"$0\" || { echo no line; exit 1; }", %q]
[[alert]]
on = ["log"]
command = ["/bin/sh", "-c", "cat >> \"$0\"", %q]
[[set]]
name = "main"
[[set.source]]
kind = "feed"
url = "https://a.example/"
`, works, told)
	c := loadText(t, folder, text)
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	h := openBridge(t, c, Options{Now: func() time.Time { return now }, Network: Unresolved})
	defer closeBridge(t, h)
	if _, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{}); err == nil {
		t.Fatal("it was harvested")
	}
	now = now.Add(2 * time.Hour)
	a := h.alerter()
	round := func(want string) {
		t.Helper()
		a.Ended(a.Round(t.Context()))
		warnings, err := h.Warnings(t.Context())
		if got := strings.Join(warnings, "\n"); err != nil || (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("warned of %q, want %q: %v", got, want, err)
		}
	}
	const trouble = "alerts cannot be sent: the command /bin/sh: exit status 1: no line"
	round("")
	round(trouble)
	round(trouble)
	if text, err := os.ReadFile(told); err != nil || strings.Count(string(text), trouble) != 1 {
		t.Errorf("the other receiver was told %q, %v", text, err)
	}
	if err := os.WriteFile(works, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	round("")
	round("")
	if text, err := os.ReadFile(told); err != nil || strings.Count(string(text), trouble) != 2 {
		t.Errorf("the other receiver was told %q, %v", text, err)
	}
}

// TestAlertsAfterRestart: what is noticed only some minutes after a start is not told as over by
// each start, and is over once it has not been noticed for long enough.
func TestAlertsAfterRestart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	told := filepath.Join(folder, "told")
	text := fmt.Sprintf(`
data = "data"
[[alert]]
on = ["log"]
command = ["/bin/sh", "-c", "cat >> \"$0\"", %q]
[[set]]
name = "main"
[[set.source]]
kind = "feed"
url = "https://a.example/"
`, told)
	c := loadText(t, folder, text)
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	// start opens it anew, has rounds of which some find the trouble, and returns how often it was
	// told that something has begun, and that it is over.
	start := func(rounds ...bool) (on, off int) {
		t.Helper()
		h := openBridge(t, c, Options{Now: func() time.Time { return now }, Network: Unresolved})
		defer closeBridge(t, h)
		_ = os.Remove(told)
		a := h.alerter()
		for _, found := range rounds {
			if found {
				h.reportFiles(io.ErrUnexpectedEOF)
			}
			if err := a.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			now = now.Add(time.Minute)
		}
		data, err := os.ReadFile(told)
		if err != nil {
			return 0, 0
		}
		for d := json.NewDecoder(bytes.NewReader(data)); d.More(); {
			var m alert.Message
			if err := d.Decode(&m); err != nil {
				t.Fatal(err)
			}
			on, off = on+len(m.On), off+len(m.Off)
		}
		return on, off
	}
	if on, off := start(false, true, true); on != 1 || off != 0 {
		t.Errorf("at the beginning: %d begun, %d over", on, off)
	}
	if on, off := start(false, false, true, true); on+off != 0 {
		t.Errorf("after a restart: %d begun, %d over", on, off)
	}
	if on, off := start(make([]bool, 7)...); on != 0 || off != 1 {
		t.Errorf("after another one, without the trouble: %d begun, %d over", on, off)
	}
}

// TestAlertMailAfterReload: a mail goes where the allow_hosts of the configuration in force
// lets it, as the error advises.
func TestAlertMailAfterReload(t *testing.T) {
	t.Parallel()
	feed := httptest.NewServer(http.NotFoundHandler())
	defer feed.Close()
	in := &inbox{}
	_, port, _ := net.SplitHostPort(in.listen(t))
	folder := t.TempDir()
	load := func(allow string) *config.Config {
		t.Helper()
		return loadText(t, folder, fmt.Sprintf(`
data = "data"
base_url = "https://bridge.example.org"
allow_hosts = [%s]
[mail]
relay = "mail.example:%s"
[[alert]]
on = ["failing:1h"]
mail = "ops@example.org"
[[set]]
name = "main"
content = "reference"
[[set.source]]
kind = "feed"
url = "%s"
`, allow, port, feed.URL))
	}
	c := load("")
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	names := testserver.Names(func(name string, _ dnsmessage.Type) string {
		if name != "mail.example" {
			return ""
		}
		return "127.0.0.1"
	})
	h := openBridge(t, c, Options{Now: func() time.Time { return now }, Network: fetch.Network{Resolver: names}})
	defer closeBridge(t, h)
	if _, err := h.Harvest(t.Context(), h.Sources()[0], harvest.Options{}); err == nil {
		t.Fatal("it was harvested")
	}
	now = now.Add(2 * time.Hour)
	a := h.alerter()
	if err := a.Round(t.Context()); err == nil || !strings.Contains(err.Error(), `add "mail.example" to allow_hosts`) {
		t.Errorf("before: %v", err)
	}
	load(`"mail.example"`)
	if said, err := h.Reload(t.Context()); err != nil || len(said) != 1 {
		t.Fatal(said, err)
	}
	if err := a.Round(t.Context()); err != nil || len(in.all()) != 1 {
		t.Errorf("after: %v, %q", err, in.all())
	}
}

// TestAlertMailToASlowServer: a mail server may take minutes with its answers, the last of which
// is about a mail that it has: it gets each alert once.
func TestAlertMailToASlowServer(t *testing.T) {
	for name, slow := range map[string]map[string]time.Duration{
		"it scans the mail":   {"DATA": 3 * time.Minute},
		"it delays strangers": {"": 25 * time.Second, "EHLO": 25 * time.Second, "MAIL": 25 * time.Second, "RCPT": 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				testenv.ThisDecade()
				var got int
				dial := func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						c := textproto.NewConn(theirs)
						answer := func(to, line string) error {
							time.Sleep(slow[to])
							return c.PrintfLine("%s", line)
						}
						for err := answer("", "220 mail.example"); err == nil; {
							var line string
							if line, err = c.ReadLine(); err != nil {
								return
							}
							switch word := strings.ToUpper(line[:4]); word {
							case "DATA":
								_ = c.PrintfLine("354 go on")
								if _, err = c.ReadDotBytes(); err == nil {
									got++
									err = answer(word, "250 it is here")
								}
							case "QUIT":
								_ = c.PrintfLine("221 bye")
								return
							default:
								err = answer(word, "250 fine")
							}
						}
					}()
					return ours, nil
				}
				c := loadText(t, folder, `
data = "data"
[mail]
relay = "127.0.0.1:25"
from = "bridge@example.org"
[[alert]]
on = ["failing:1h"]
mail = "ops@example.org"
[[set]]
name = "main"
[[set.source]]
kind = "feed"
url = "http://127.0.0.1:9/feed"
`)
				h := openBridge(t, c, Options{Network: fetch.Network{Dial: dial}})
				defer closeBridge(t, h)
				a := h.alerter()
				m := &alert.Message{At: time.Now(), On: []alert.Alert{{Condition: "failing", Since: time.Now()}}}
				if err := a.Send(t.Context(), &c.Alerts[0], m); err != nil || got != 1 {
					t.Errorf("%d mails, %v", got, err)
				}
				time.Sleep(10 * time.Minute) // so that a server that answers too late ends
			})
		})
	}
}
