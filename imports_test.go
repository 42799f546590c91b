package bridge_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pmh-bridge/bridge"

// rule is what a package may import besides the standard library.
type rule struct {
	ours  []string // packages of this module; a trailing /... takes in what is below
	third []string // modules, or a part of one
	why   string
}

// rules is the whole table: a package that is not in it is a failure. Imports of
// test files are free.
var rules = map[string]rule{
	"": {why: "the root holds no code"},

	"event": {why: "event is the bottom: standard library only"},

	"atompmh": {
		ours:  []string{"internal/strictxml", "internal/follow"},
		third: []string{"golang.org/x/net/html"},
		why:   "a protocol package knows only its specification and how to read XML",
	},
	"resourcesync": {
		ours:  []string{"internal/strictxml", "internal/follow"},
		third: []string{"golang.org/x/net/html"},
		why:   "a protocol package knows only its specification and how to read XML",
	},
	"oaipmh": {
		ours: []string{"internal/strictxml", "internal/follow"},
		why:  "a protocol package knows only its specification and how to read XML",
	},
	"sip": {
		ours: []string{"internal/strictxml"},
		why:  "a protocol package knows only its specification and how to read XML",
	},
	"sip/mail": {
		ours:  []string{"sip"},
		third: []string{"github.com/emersion/go-smtp"},
		why:   "SIP over SMTP is SIP and mail, nothing else",
	},
	"translate": {
		ours: []string{"event", "atompmh", "resourcesync", "oaipmh", "sip"},
		why:  "translate is pure: protocol values and events, no I/O, no other code",
	},
	"fixtures": {why: "the example providers are written by hand, so that what reads them is tested against something else"},

	"internal/defect":  {why: "defect knows panics and nothing else"},
	"internal/pattern": {why: "pattern knows regular expressions and nothing else"},
	"internal/patch":   {ours: []string{"internal/pattern"}, third: []string{"github.com/evanphx/json-patch/v5"}, why: "patch knows bytes and what changes them, and no protocol"},
	"internal/follow":  {ours: []string{"internal/defect"}, third: []string{"golang.org/x/net/idna"}, why: "follow knows HTTP and where links may lead, and no protocol"},
	"internal/limit":   {why: "limit knows connections, bytes and lines of a log, and no protocol"},
	"internal/websub":  {third: []string{"golang.org/x/net/html"}, why: "websub knows only its specification, and how links stand in documents"},
	"internal/strictxml": {
		ours:  []string{"internal/pattern"},
		third: []string{"golang.org/x/net/html", "golang.org/x/text"},
		why:   "strictxml knows XML and character sets, and no protocol",
	},
	"internal/fetch": {
		ours:  []string{"internal/defect", "internal/follow"},
		third: []string{"github.com/klauspost/compress"},
		why:   "the guarded HTTP client knows HTTP only",
	},
	"internal/database": {
		third: []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5", "golang.org/x/sys"},
		why:   "database opens databases and knows nothing of what is in them",
	},
	"internal/eventlog": {
		ours:  []string{"event", "internal/database", "internal/defect"},
		third: []string{"golang.org/x/sys"},
		why:   "the log knows events and its database (and the system's file lock)",
	},
	"internal/eventlog/eventlogtest": {
		ours:  []string{"event", "internal/eventlog"},
		third: []string{"pgregory.net/rapid"},
		why:   "the suite tests the log by what it exports",
	},
	"internal/bucket": {
		ours:  []string{"internal/pattern"},
		third: []string{"github.com/minio/minio-go/v7"},
		why:   "bucket knows S3, and nothing of what the objects are",
	},
	"internal/content": {
		ours: []string{"event", "internal/bucket", "internal/database", "internal/defect", "internal/pattern"},
		why:  "the content store knows SQLite and a bucket",
	},
	"internal/publish": {
		ours:  []string{"event", "translate", "atompmh", "resourcesync", "oaipmh", "internal/bucket", "internal/defect"},
		third: []string{"github.com/klauspost/compress"},
		why:   "plan and render are pure, and know no protocol's harvest, no log and no server; snapshots may be in a bucket",
	},
	"internal/harvest": {
		ours: []string{"event", "translate", "atompmh", "resourcesync", "oaipmh", "internal/eventlog", "internal/content",
			"internal/fetch", "internal/follow", "internal/patch", "internal/pattern", "internal/strictxml", "internal/defect", "internal/websub"},
		third: []string{"github.com/mmcdole/gofeed"},
		why:   "harvest reads the protocols and writes the log and the content store; it knows nothing of what is published",
	},
	"internal/validate": {
		ours: []string{"atompmh", "resourcesync", "oaipmh", "sip", "internal/strictxml", "internal/follow", "internal/fetch"},
		why:  "validate reads documents of the protocols, and knows no log and nothing of what is published",
	},
	"internal/audit": {
		ours: []string{"event", "translate", "internal/eventlog", "internal/content", "internal/fetch", "internal/harvest"},
		why:  "an audit reads the log, the contents and a Source, and compares; it writes nothing",
	},
	"internal/submission": {
		ours: []string{"event", "sip"},
		why:  "the states of a submission, and what is kept of a disposition, are pure: no log, no clock",
	},
	"internal/submission/store": {
		ours: []string{"event", "internal/eventlog", "internal/database", "internal/submission"},
		why:  "the store keeps submissions in the log's database and its transactions, and knows no protocol",
	},
	"internal/delivery": {
		ours: []string{"event", "sip", "sip/mail", "internal/submission", "internal/submission/store", "internal/content", "internal/defect"},
		why:  "delivery sends what the log says; it knows nothing of the server side",
	},
	"internal/ingest": {
		ours: []string{"event", "translate", "sip", "internal/submission", "internal/submission/store", "internal/delivery", "internal/limit", "internal/defect"},
		why:  "ingest works in the transactions of the store",
	},
	"internal/status": {
		ours: []string{"event", "internal/harvest", "internal/submission"},
		why:  "status is the one form in which the state of all is reported: it reads nothing itself",
	},
	"internal/alert": {
		ours: []string{"internal/config", "internal/status"},
		why:  "alerts are found in the status and told by what the daemon hands in",
	},
	"internal/metrics": {
		ours:  []string{"internal/harvest", "internal/status"},
		third: []string{"github.com/prometheus/client_golang"},
		why:   "metrics count what they are told, and read the status",
	},
	"internal/server": {
		ours:  []string{"event", "oaipmh", "sip", "internal/publish", "internal/harvest", "internal/status", "internal/submission", "internal/limit", "internal/pattern", "internal/server/...", "internal/defect"},
		third: []string{"github.com/labstack/echo"},
		why:   "the server knows what is published, not how it is stored",
	},
	"internal/server/...": {
		ours:  []string{"event", "sip", "internal/publish", "internal/harvest", "internal/server/..."},
		third: []string{"github.com/labstack/echo"},
		why:   "the server knows what is published, not how it is stored",
	},
	"internal/backup": {
		ours:  []string{"internal/eventlog", "internal/content", "internal/database"},
		third: []string{"github.com/klauspost/compress", "golang.org/x/sys"},
		why:   "a backup is a copy of two databases; it knows nothing of what is in them but the sets of the log",
	},
	"internal/api": {
		ours: []string{"event", "sip", "internal/daemon", "internal/defect", "internal/server", "internal/status", "internal/submission"},
		why:  "the API shows a daemon.Bridge to programs, and keeps no state of its own",
	},
	"internal/console": {
		ours: []string{"event", "internal/api", "atompmh", "resourcesync", "oaipmh", "sip", "internal/content", "internal/daemon", "internal/defect", "internal/harvest", "internal/limit", "internal/pattern", "internal/server", "internal/status", "internal/submission"},
		why:  "the console shows a daemon.Bridge to people, and keeps no state of its own",
	},
	"internal/export": {
		ours:  []string{"event", "internal/eventlog", "internal/content", "internal/pattern", "internal/publish", "internal/server"},
		third: []string{"golang.org/x/sys"},
		why:   "export writes as files what publish and server answer",
	},
	"internal/config": {
		ours:  []string{"event", "internal/bucket", "internal/follow", "internal/pattern"},
		third: []string{"github.com/pelletier/go-toml", "golang.org/x/sys", "golang.org/x/text"},
		why:   "the configuration knows words and TOML, and locks its file while it changes it",
	},
	"internal/opml": {
		ours: []string{"internal/strictxml"},
		why:  "a list of feeds is XML, and knows nothing of Sources",
	},
	"internal/daemon": {
		ours: []string{"event", "atompmh", "resourcesync", "oaipmh", "sip/...", "translate", "fixtures", "internal/..."},
		why:  "the daemon ties together what is internal; it needs no library of its own",
	},
	"internal/testserver": {
		ours:  []string{"fixtures", "sip"},
		third: []string{"golang.org/x/net/dns/dnsmessage"},
		why:   "testserver writes what it serves by hand, so that what reads it is tested against something else; answers about names are read by Go",
	},
	"internal/testenv": {
		third: []string{"github.com/jackc/pgx/v5/pgconn"},
		why:   "testenv helps tests and knows none of the packages that they test; it asks PostgreSQL whether it is ready",
	},
	"internal/release": {why: "release reads what Go has recorded in a binary; nothing imports it"},
	"internal/bench": {
		ours:  []string{"..."},
		third: []string{"modernc.org/sqlite"},
		why:   "the bench builds big cases and its rivals; nothing imports it",
	},

	"cmd/bridge": {
		ours: []string{"event", "atompmh", "resourcesync", "oaipmh", "sip", "fixtures",
			"internal/api", "internal/audit", "internal/backup", "internal/daemon", "internal/config", "internal/console", "internal/eventlog", "internal/export", "internal/harvest", "internal/opml", "internal/status", "internal/submission", "internal/validate"},
		third: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/schollz/progressbar", "golang.org/x/term"},
		why:   "the command parses, prints and calls the daemon; of other packages it imports only those whose words it prints",
	},
}

// forTests are imported by tests alone, and by the bench, which is none of what is
// installed.
var forTests = []string{"internal/testenv", "internal/testserver"}

type listed struct {
	ImportPath string
	Name       string
	Imports    []string
	Standard   bool
	Error      *struct{ Err string }
}

// list returns what go list says of packages, or of standard packages.
func list(t *testing.T, args ...string) []listed {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Imports,Standard,Error"}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	var packages []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			if len(packages) == 0 {
				t.Fatalf("go list %s: no package", strings.Join(args, " "))
			}
			return packages
		case err != nil:
			t.Fatal(err)
		case p.Error != nil:
			t.Fatalf("%s: %s", p.ImportPath, p.Error.Err)
		}
		packages = append(packages, p)
	}
}

// The packages import what the table allows and nothing else.
func TestImports(t *testing.T) {
	standard := map[string]bool{"C": true}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	for _, p := range list(t, "./...") {
		name := local(p.ImportPath)
		r, ok := ruleOf(name)
		if !ok {
			t.Errorf("package %q is not in the table of imports: give it a rule there", name)
			continue
		}
		for _, imported := range p.Imports {
			if !standard[imported] {
				if problem := check(r, imported); problem != "" {
					t.Errorf("package %q imports %s: %s (%s)", name, imported, problem, r.why)
				}
			}
		}
	}
}

// check returns why a package may not have an import, or "".
func check(r rule, imported string) string {
	if imported != module && !strings.HasPrefix(imported, module+"/") {
		for _, prefix := range r.third {
			if within(imported, prefix) {
				return ""
			}
		}
		return "a package from elsewhere that its rule does not name"
	}
	name := local(imported)
	if slices.Contains(forTests, name) && !slices.Contains(r.ours, "...") {
		return "only tests import it"
	}
	for _, pattern := range r.ours {
		if matches(name, pattern) {
			return ""
		}
	}
	return "a package of ours that its rule does not name"
}

// ruleOf returns the rule of a package: its own, else that of the nearest
// pattern above it.
func ruleOf(name string) (rule, bool) {
	if r, ok := rules[name]; ok {
		return r, true
	}
	for dir := name; ; {
		i := strings.LastIndexByte(dir, '/')
		if i < 0 {
			return rule{}, false
		}
		dir = dir[:i]
		if r, ok := rules[dir+"/..."]; ok {
			return r, true
		}
	}
}

func local(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func matches(name, pattern string) bool {
	if pattern == "..." {
		return true
	}
	if above, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(name, above)
	}
	return name == pattern
}

// The check itself refuses what it should.
func TestImportRules(t *testing.T) {
	for _, c := range []struct {
		name, imported string
		allowed        bool
	}{
		{"event", module + "/translate", false},
		{"event", "golang.org/x/net/html", false},
		{"translate", module + "/event", true},
		{"translate", module + "/internal/fetch", false},
		{"internal/publish", module + "/internal/eventlog", false},
		{"internal/server", "github.com/labstack/echo/v4", true},
		{"internal/server", "modernc.org/sqlite", false},
		{"internal/server/dashboard", "github.com/labstack/echo/v4/middleware", true},
		{"internal/daemon", module + "/internal/eventlog", true},
		{"internal/daemon", module + "/internal/testenv", false},
		{"internal/daemon", module + "/internal/testserver", false},
		{"internal/bench", module + "/internal/testserver", true},
		{"internal/daemon", module + "/internalnot", false},
		{"internal/content", "modernc.org/sqlite", false},
		{"internal/content", "github.com/minio/minio-go/v7", false},
		{"internal/bucket", "github.com/minio/minio-go/v7/pkg/s3utils", true},
		{"internal/harvest", module + "/internal/bucket", false},
		{"internal/database", "modernc.org/sqlite/lib", true},
		{"internal/database", "modernc.org/sqlitenot", false},
		{"sip/mail", module + "/sip", true},
		{"sip/mail", module, false},
	} {
		r, ok := ruleOf(c.name)
		if !ok {
			t.Errorf("%s has no rule", c.name)
			continue
		}
		if problem := check(r, c.imported); (problem == "") != c.allowed {
			t.Errorf("%s imports %s: %q, want allowed = %v", c.name, c.imported, problem, c.allowed)
		}
	}
	for _, name := range []string{"internal/other", "util", "sip/soap", "cmd/other"} {
		if _, ok := ruleOf(name); ok {
			t.Errorf("%s has a rule, though the table does not name it", name)
		}
	}
}
