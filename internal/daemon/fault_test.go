package daemon_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestFault_RetryAfterLongerThanWeWait: the host is left alone altogether.
func TestFault_RetryAfterLongerThanWeWait(t *testing.T) {
	b := newHarness(t, fixtures.New(fixtures.Options{}))
	b.quick()
	b.provider.Create(record("a", fixtures.Atom()))
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Status: 503, Header: http.Header{"Retry-After": {"3600"}}})
	b.want("logged", b.wantError("503"))
	b.provider.ForgetRequests()
	b.want("logged", b.wantError("not to be asked"))
	b.wantAsked(map[string]int{})
	b.provider.ClearHook(fixtures.Subscription)
	b.quick() // as after a restart
	b.harvest()
	b.wantLive()
}

// TestFault_StepThatCannotBeStored: whatever fails, a harvest says so,
// and the next one takes in what is missing, once.
func TestFault_StepThatCannotBeStored(t *testing.T) {
	testenv.Heavy(t)
	const onFire = "the disk is on fire"
	// breakTable lets the nth change of a table fail.
	breakTable := func(file, change string) func(b *harness, n int) (context.Context, harvest.Options, func()) {
		return func(b *harness, n int) (context.Context, harvest.Options, func()) {
			path := filepath.Join(b.config.Data, file)
			tamper(b.t, path, fmt.Sprintf("CREATE TABLE allowed (n INTEGER); INSERT INTO allowed VALUES (%d); "+
				"CREATE TRIGGER broken BEFORE %s BEGIN UPDATE allowed SET n = n - 1; SELECT RAISE(ABORT, '%s') FROM allowed WHERE n <= 0; END", n, change, onFire))
			return b.t.Context(), harvest.Options{}, func() { tamper(b.t, path, "DROP TRIGGER broken; DROP TABLE allowed") }
		}
	}
	for _, c := range []struct {
		name string
		want string
		fail func(b *harness, n int) (context.Context, harvest.Options, func())
	}{
		{"contents fail", onFire, breakTable("content.db", "INSERT ON content")},
		{"the log fails once contents are stored", onFire, breakTable("log.db", "UPDATE ON source")},
		{"the harvest ends once the log has events", context.Canceled.Error(), func(b *harness, n int) (context.Context, harvest.Options, func()) {
			ctx, cancel := context.WithCancel(b.t.Context())
			events := int64(0)
			return ctx, harvest.Options{Progress: func(p harvest.Progress) {
				if p.Events > events {
					events = p.Events
					if n--; n == 0 {
						cancel()
					}
				}
			}}, cancel
		}},
	} {
		t.Run(c.name, func(t *testing.T) { failEverywhere(t, c.want, c.fail) })
	}
}

// failEverywhere lets every single step fail in turn, until a harvest gets through.
func failEverywhere(t *testing.T, want string, fail func(b *harness, n int) (context.Context, harvest.Options, func())) {
	for n := 1; ; n++ {
		p := fixtures.New(fixtures.Options{PerArchive: 3})
		b := newHarness(t, p, content(config.Mirror))
		b.bridge.Harvester().BatchSize = 2
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			p.Create(record(name, fixtures.Atom()))
		}
		ctx, options, undo := fail(b, n)
		_, err := b.bridge.Harvest(ctx, b.source(), options)
		undo()
		if err == nil {
			if n < 4 {
				t.Errorf("only %d steps", n)
			}
			return
		}
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("step %d: %v", n, err)
		}
		if mark := b.stored().Mark; mark.Known() {
			b.wantLive() // the walk had ended; only the report was lost
		}
		b.harvest()
		b.wantLive()
		b.wantBytes()
		if got := len(b.events(0)); got != 7 {
			t.Errorf("call %d: %d events, want 7: %q", n, got, b.events(0))
		}
		b.close()
	}
}

// TestFault_Caps: the limits of the configuration are those of the reader.
func TestFault_Caps(t *testing.T) {
	entry := func(inside string) string {
		return `<feed xmlns="http://www.w3.org/2005/Atom"><title>f</title><updated>2025-01-02T00:00:00Z</updated><entry><id>urn:x</id><title>x</title>` +
			`<updated>2025-01-01T00:00:00Z</updated><link href="/x"/>` + inside + `</entry></feed>`
	}
	b := newCompleteHarness(t, 2)
	b.source().Limits.Document = 300
	b.want("logged", b.wantErrorFull(`"document"`))
	b = newEntryHarness(t, fixtures.Options{})
	b.source().Limits.Text, b.source().Limits.Attributes = 100, 5
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Body: fixed(entry("<summary>" + strings.Repeat("x", 200) + "</summary>"))})
	b.want("logged", b.wantErrorFull(`"text"`))
	b.provider.SetHook(fixtures.Subscription, fixtures.Hook{Body: fixed(entry("<summary " + attributes(6) + "/>"))})
	b.want("logged", b.wantErrorFull(`"attributes"`))
}

func attributes(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, ` a%d=""`, i)
	}
	return s.String()
}

func TestFault_LocalLinksOutOfTheFolder(t *testing.T) {
	p := fixtures.New(fixtures.Options{})
	b, folder := newFolderHarness(t, p)
	secret := filepath.Join(filepath.Dir(folder), "secret.xml")
	if err := os.WriteFile(secret, []byte("<secret/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder, "link.xml")); err != nil {
		t.Fatal(err)
	}
	for i, href := range []string{"../secret.xml", "file://" + secret, "%2e%2e/secret.xml", "link.xml", "file:///etc/passwd", "file://elsewhere/x"} {
		p.Create(record(fmt.Sprintf("r%d", i), fixtures.Format{Ext: "xml", Type: "application/xml", Href: href}))
	}
	p.Create(record("good", fixtures.Atom()))
	write := func() {
		t.Helper()
		if err := p.WriteFiles(folder); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if r := b.harvest(); r.Pending != 6 {
		t.Errorf("report %+v", r)
	}
	b.want("only what lies in the folder", b.events(0), "created good [atom]")

	p.Edit(fixtures.Subscription, func(d *fixtures.Document) { d.Prev = "../feed.atom" })
	write()
	b.want("prev-archive", b.wantError("refused"))
	if err := os.WriteFile(filepath.Join(filepath.Dir(folder), "feed.atom"), []byte("<feed/>"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.want("prev-archive that exists", b.wantError("refused"))
}

func TestFault_LocalFilesInModeReference(t *testing.T) {
	p := fixtures.New(fixtures.Options{})
	p.Create(record("good", fixtures.Atom()))
	p.Create(record("out", fixtures.Format{Ext: "xml", Type: "application/xml", Href: "../secret.xml"}))
	p.Create(record("escaped", fixtures.Format{Ext: "xml", Type: "application/xml", Href: "%2e%2e/secret.xml"}))
	b, _ := newFolderHarness(t, p, content(config.Reference), func(c *config.Config) {
		c.Sets[0].Sources[0].PublicURL = "https://data.example/feeds/"
	})
	r := b.harvest()
	if r.Quarantined != 2 || len(b.quarantined()) != 2 {
		t.Errorf("what nobody could reach was not quarantined: %+v", r)
	}
	b.want("logged", b.events(0), "created good [atom]")
	if dump := b.dump(); strings.Contains(dump, `"Loc":"file:`) || !strings.Contains(dump, `"Loc":"https://data.example/feeds/records/good.atom"`) {
		t.Errorf("the published place is wrong: %s", dump)
	}
}
