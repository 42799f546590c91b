package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const (
	mods      = "{http://www.loc.gov/mods/v3}mods"
	recordURL = "https://library.example.org/records/{assigned-identifier}"
)

// write makes a file below a folder of the test's own.
func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Load(write(t, t.TempDir(), "bridge.toml", text))
}

// uncomment returns the template with all that it shows at once, for a folder
// with feed.atom. The login of a local file, and the like, is left out.
func uncomment() string {
	text := regexp.MustCompile(`(?m)^# (\[\[|[a-z_]+ = )`).ReplaceAllString(Template(), "$1")
	text = strings.Replace(text, `url = "https://data.example.org/feed.atom"`, `url = "feed.atom"`, 1)
	return regexp.MustCompile(`(?m)^(user = "harvester"|password_file = "source.password"|token_file|headers|ca_file|timeout).*$`).ReplaceAllString(text, "")
}

// The template is the defaults as it is, and right with all that it shows, whatever the
// mode of its ingest server and the access to it.
func TestTemplate(t *testing.T) {
	c, err := load(t, Template())
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File, want.Data = c.File, filepath.Join(filepath.Dir(c.File), "bridge-data")
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the template says\n%+v\nthe defaults are\n%+v", c, want)
	}
	folder := t.TempDir()
	for _, name := range []string{"feed.atom", "mods-3-8.xsd", "archive.password", "upstream.password", "submitter.password", "sip.token", "console.token"} {
		write(t, folder, name, "open-sesame-open\n")
	}
	write(t, folder, "chat-webhook", "https://chat.example.org/hooks/17\n")
	for access, keys := range map[string]string{
		"": "nothing", AccessNone: "nothing", AccessToken: "access_token", AccessBasic: "access_(user|password)", AccessAddresses: "access_addresses",
	} {
		text := uncomment()
		if access != "" {
			text = regexp.MustCompile(`(?m)^access = .*$`).ReplaceAllString(text, "")
			text = strings.Replace(text, `mode = "library"`, `mode = "gateway"`, 1)
			text = regexp.MustCompile(`(?m)^# # (access = "`+access+`"|`+keys+`|upstream|user|password|recipient|deadline)`).ReplaceAllString(text, "$1")
		}
		c, err := Load(write(t, folder, "bridge.toml", text))
		if err != nil {
			t.Errorf("access %s: %v\n%s", access, err, text)
			continue
		}
		sip := c.Sets[slices.IndexFunc(c.Sets, func(s Set) bool { return s.Name == "deposits" })].Sources[0].SIP
		if access != "" && (sip.Mode != Gateway || sip.Access.Kind != access || sip.Password.Reveal() == "") || sip.Formats[mods] == "" || sip.Schemas[sip.Formats[mods]] == "" {
			t.Errorf("access %s: %+v", access, sip)
		}
	}
}

// Every key stands in the template, with its default when it has one, and is called as
// its field is.
func TestKeys(t *testing.T) {
	testenv.Heavy(t)
	otherwise := map[string]string{
		"TrustedProxies": "trusted_proxies", "AllowHosts": "allow_hosts", "Prefixes": "prefix", "CA": "ca_file", "Sets": "set", "Sources": "source", "Alerts": "alert",
		"Access.Kind": "access", "Access.Token": "access_token", "Access.User": "access_user", "Access.Password": "access_password", "Access.Addresses": "access_addresses",
		"BaseURL": "base_url", "PublicURL": "public_url", "RecordURL": "record_url", "URL": "url", "HELO": "helo", "OAISet": "oai_set", "OAIPage": "oai_page", "OAIFormats": "format", "SMTPListen": "smtp_listen", "SIPMessage": "sip_message",
	}
	keys := 0
	for _, table := range []any{Config{}, Set{}, Format{}, Source{}, SIP{}, Access{}, Target{}, Store{}, Mail{}, Alert{}, Snapshot{}, Limits{}} {
		for f := range reflect.TypeOf(table).Fields() {
			key := f.Tag.Get("toml")
			if key == "" {
				continue
			}
			keys++
			snake := strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(f.Name, "${1}_$2"))
			if name := reflect.TypeOf(table).Name() + "." + f.Name; key != snake && key != otherwise[f.Name] && key != otherwise[name] {
				t.Errorf("%s has the key %s", name, key)
			}
			if slices.Contains([]string{"set", "source", "submit", "store", "mail", "alert", "snapshot", "limits"}, key) {
				continue
			}
			shown := regexp.MustCompile(`(?m)^(# )*(.*# or )?`+key+` = (.*)$`).FindAllStringSubmatch(Template(), -1)
			isDefault := func(m []string) bool {
				value, _, _ := strings.Cut(m[3], "  ")
				return strings.TrimPrefix(strings.Trim(value, `"`), "./") == f.Tag.Get("default")
			}
			if len(shown) == 0 || f.Tag.Get("default") != "" && !slices.ContainsFunc(shown, isDefault) {
				t.Errorf("the template shows %s as %q, want default %q", key, shown, f.Tag.Get("default"))
			}
		}
	}
	if keys < 80 {
		t.Fatalf("only %d keys", keys)
	}
}

func TestConsoleToken(t *testing.T) {
	const text = "console_listen = \"0.0.0.0:8081\"\nconsole_token = \"${BRIDGE_TEST_TOKEN}\"\n"
	t.Setenv("BRIDGE_TEST_TOKEN", "rosebud")
	if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), "bridge.toml:2: console_token: the token is too short to be safe; make it of 16 characters or more") || strings.Contains(err.Error(), "rosebud") {
		t.Errorf("a short token: %v", err)
	}
	t.Setenv("BRIDGE_TEST_TOKEN", "rosebud-rosebud-rosebud")
	if c, err := load(t, text); err != nil || c.ConsoleToken.Reveal() != "rosebud-rosebud-rosebud" || c.ConsoleListen != "0.0.0.0:8081" {
		t.Errorf("a long token: %v, %v", c, err)
	}
}

func TestLoad(t *testing.T) {
	t.Setenv("BRIDGE_TEST_PASSWORD", "rosebud")
	folder := t.TempDir()
	write(t, folder, "local.atom", "<feed/>")
	write(t, folder, "secret", " swordfish \n")
	c, err := Load(write(t, folder, "bridge.toml", `
listen = "0.0.0.0:80"
base_url = "https://bridge.example.org/pmh/"
data = "store"
trusted_proxies = ["127.0.0.1", "2001:db8::/32"]
allow_hosts = ["Inner.example", "10.0.0.7", "[::1]"]
contact = "ops@example.org"
proxy = "http://proxy.example:3128"
snapshot = { after_deletion = "5s", after_change = "1h", keep = "2h", keep_size = "7 MiB", dump_every = "48h" }
[limits]
feed_document = "1 MiB"
record = 1000
header = "4KiB"
text = "2 GiB"
depth = 100
rate = 7
connect_timeout = "1s"
open_address_messages = 0
[[set]]
name = "campus"
title = "Campus"
description = "All of it"
content = "redirect"
prefer = ["application/rdf+xml"]
formats = ["application/rdf+xml", "text/html"]
segment_events = 50000
segment_hours = 1
identity = "per-source"
history = false
robots = false
feeds = false
keep_lists = 30
keep_lists_for = "90d"
dumps = false
[[set.source]]
url = "https://A.example:8443/feed.atom?x=1"
kind = "atompmh"
every = "10m"
full_every = "0s"
overlap = "0s"
max_documents = 5
hold_deletions = "1h"
user = "me"
password = "${BRIDGE_TEST_PASSWORD}"
[[set.source]]
name = "local"
url = "local.atom"
public_url = "https://files.example/x"
[[set]]
name = "other"
[[set.source]]
url = "http://b.example/"
kind = "resourcesync"
prefix = ["http://b.example/x", "https://c.example/"]
since = 2026-02-03T04:05:06+01:00
user = "you"
password_file = "secret"
`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "0.0.0.0:80" || c.BaseURL != "https://bridge.example.org/pmh" || c.Data != filepath.Join(folder, "store") ||
		c.Contact != "ops@example.org" || c.Proxy != "http://proxy.example:3128" {
		t.Errorf("%+v", c)
	}
	if want := []string{"inner.example", "10.0.0.7", "::1"}; !reflect.DeepEqual(c.AllowHosts, want) {
		t.Errorf("allow_hosts %v", c.AllowHosts)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("2001:db8::/32")}; !slices.Equal(c.TrustedProxies, want) {
		t.Errorf("trusted_proxies %v", c.TrustedProxies)
	}
	if want := (Snapshot{5 * time.Second, time.Hour, 2 * time.Hour, 7 << 20, 48 * time.Hour}); c.Snapshot != want {
		t.Errorf("snapshot %v", c.Snapshot)
	}
	limits := Default().Limits
	limits.FeedDocument, limits.Record, limits.Header, limits.Text, limits.Depth, limits.Rate, limits.ConnectTimeout, limits.OpenAddressMessages = 1<<20, 1000, 4<<10, 2<<30, 100, 7, time.Second, 0
	if c.Limits != limits {
		t.Errorf("limits %+v", c.Limits)
	}
	local := defaults[Source]()
	local.Name, local.URL, local.PublicURL = "local", "file://"+folder+"/local.atom", "https://files.example/x/"
	other := defaults[Set]()
	other.Name = "other"
	b := defaults[Source]()
	b.Kind, b.URL, b.User, b.Password = ResourceSync, "http://b.example/", "you", Secret{"swordfish"}
	b.Prefixes, b.Since = []string{"http://b.example/x", "https://c.example/"}, time.Date(2026, 2, 3, 3, 5, 6, 0, time.UTC)
	other.Sources = []Source{b}
	want := []Set{{
		Name: "campus", Title: "Campus", Description: "All of it", Content: Redirect,
		Prefer: []string{"application/rdf+xml"}, Formats: []string{"application/rdf+xml", "text/html"},
		SegmentEvents: 50_000, SegmentHours: 1, OAIPage: 100, Identity: PerSource, KeepLists: 30, KeepListsFor: 90 * 24 * time.Hour,
		Sources: []Source{{
			Kind: AtomPMH, URL: "https://A.example:8443/feed.atom?x=1", Sets: OneSet, Every: 10 * time.Minute,
			MaxDocuments: 5, HoldDeletions: time.Hour, User: "me", Password: Secret{"rosebud"},
		}, local},
	}, other}
	if !reflect.DeepEqual(c.Sets, want) {
		t.Errorf("sets\n%+v\nwant\n%+v", c.Sets, want)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprintf("%v", c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), string(asJSON)} {
		if strings.Contains(shown, "rosebud") || strings.Contains(shown, "swordfish") || !strings.Contains(shown, "***") {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
}

func TestLoadSIP(t *testing.T) {
	t.Setenv("BRIDGE_TEST_TOKEN", "0123456789_abc-DEF")
	t.Setenv("BRIDGE_TEST_PASSWORD", "rosebud")
	folder := t.TempDir()
	xsd := write(t, folder, "dc.xsd", "<schema/>")
	c, err := Load(write(t, folder, "bridge.toml", `
base_url = "https://bridge.example.org"
[mail]
relay = "Relay.example:587"
helo = "[192.0.2.1]"
[[set]]
name = "gate"
[[set.source]]
kind = "sip"
mode = "gateway"
upstream = "https://Ingest.example/sip"
user = "me"
password = "${BRIDGE_TEST_PASSWORD}"
deadline = "1s"
recipient = "http://plain.example/"
access = "token"
access_token = "${BRIDGE_TEST_TOKEN}"
plain_post = true
smtp_listen = ":25"
mailbox = "gate@Bridge.Example"
[set.source.schemas]
"urn:dc" = "dc.xsd"
[set.source.formats]
record = "urn:dc"
"{urn:x.y}données" = "http://x.example/y.xsd"
[[set.submit]]
name = "archive"
url = "http://archive.example/"
sequence = "2026"
recipient = "smtp://mail.example:2525/gate@bridge.example"
deadline = "24h"
every = "10s"
workers = 64
properties = "skip"
import_accepted_to = "kept"
user = "you"
password = "${BRIDGE_TEST_PASSWORD}"
[[set.submit]]
url = "http://other.example/"
recipient = "none"
[[set]]
name = "kept"
[[set.source]]
kind = "sip"
name = "disposer"
record_url = "https://library.example.org/records/{assigned-identifier}"
smtp_listen = ":25"
mailbox = "kept@bridge.example"
`))
	if err != nil {
		t.Fatal(err)
	}
	gate := defaultSIPSource("gate")
	*gate.SIP = SIP{
		Mode: Gateway, Upstream: "https://Ingest.example/sip", User: "me", Password: Secret{"rosebud"},
		Formats: map[string]string{"record": "urn:dc", "{urn:x.y}données": "http://x.example/y.xsd"}, Schemas: map[string]string{"urn:dc": xsd},
		Deadline: time.Second, Recipient: "http://plain.example", Access: Access{Kind: AccessToken, Token: Secret{"0123456789_abc-DEF"}},
		PlainPost: true, SMTPListen: ":25", Mailbox: "gate@bridge.example",
	}
	kept := defaultSIPSource("kept")
	kept.Name, kept.SIP.RecordURL, kept.SIP.SMTPListen, kept.SIP.Mailbox = "disposer", recordURL, ":25", "kept@bridge.example"
	other := defaults[Target]()
	other.URL, other.Recipient = "http://other.example/", NoRecipient
	want := []Set{defaults[Set](), defaults[Set]()}
	want[0].Name, want[0].Sources, want[0].Submit = "gate", []Source{gate}, []Target{{
		Name: "archive", URL: "http://archive.example/", Sequence: "2026", Recipient: "smtp://mail.example:2525/gate@bridge.example",
		Deadline: 24 * time.Hour, Every: 10 * time.Second, Workers: 64, Properties: SkipProperties, ImportAcceptedTo: "kept", User: "you", Password: Secret{"rosebud"},
	}, other}
	want[1].Name, want[1].Sources = "kept", []Source{kept}
	if !reflect.DeepEqual(c.Sets, want) {
		t.Errorf("sets\n%+v\nwant\n%+v", c.Sets, want)
	}
	if gate.URL != "/sip/gate" || gate.Every != 0 {
		t.Errorf("a Source of our own: %+v", gate)
	}
	if want := (Mail{From: "bridge@bridge.example.org", Relay: "Relay.example:587", HELO: "[192.0.2.1]"}); c.Mail != want {
		t.Errorf("mail %+v", c.Mail)
	}
	if shown := fmt.Sprintf("%+v %#v", gate.SIP, want[0].Submit); strings.Contains(shown, "rosebud") || strings.Contains(shown, "0123456789") {
		t.Errorf("a secret is shown: %s", shown)
	}
}

// Everything that is wrong is said at once, with its line and what to write.
func TestAllProblemsAtOnce(t *testing.T) {
	t.Setenv("BRIDGE_TEST_SHORT", "hunter2")
	folder := t.TempDir()
	write(t, folder, "short", "rosebud\n")
	write(t, folder, "local.atom", "<feed/>")
	path := filepath.Join(folder, "bridge.toml")
	for name, row := range map[string]struct {
		file string
		want []string // how each problem begins
	}{
		"content of entries": {`[[set]]
name = "sent"
content = "redirect"
inline = "take"
[[set.source]]
url = "http://h.example/1"
[[set]]
name = "odd"
inline = "give"
[[set.source]]
url = "http://h.example/2"
`, []string{`:4: set "sent": inline: needs content = "mirror"`, `:9: set "odd": inline: "give" is not one of its values; write "take"`}},
		"alerts": {`[[alert]]
on = ["held", "fire"]
command = ["/bin/notify"]
[[alert]]
command = ["/bin/notify"]
[[alert]]
on = ["held"]
[[alert]]
on = ["held"]
command = ["/bin/notify"]
mail = "box@example.org"
[[alert]]
on = ["held"]
command = ["notify"]
[[alert]]
on = ["held"]
mail = "box@example.org"
[[alert]]
on = ["held"]
webhook = "${BRIDGE_TEST_SHORT}"
[[alert]]
on = ["held"]
mail = "ops@[192.0.2.1]"
`, []string{
			`:2: alert 1: on: "fire" is not a condition; write "failing:24h"`,
			`:4: alert 2: on: is missing; write what the alert is on`,
			`:6: alert 3: tells nobody; write command = ["/path"]`,
			`:11: alert 4: mail: is given beside command; write an [[alert]] for each`,
			`:14: alert 5: command: must begin with an absolute path`,
			`:17: alert 6: mail: cannot be sent: no address is known that mail could come from`,
			`:20: alert 7: webhook: is not a URL of a web server`,
			`:23: alert 8: mail: "ops@[192.0.2.1]" has no domain name behind the @`,
			`:23: alert 8: mail: cannot be sent`,
		}},
		"values and their types": {`listen = []
contact = 2026-01-01
console_listen = "0.0.0.0:8081"
console_token_file = "short"
[[set]]
name = "links"
content = "redirect"
dumps = true
[[set.source]]
name = "one"
url = "http://h.example/1"
user = "u"
password = "${BRIDGE_TEST_SHORT}"
password_file = "short"
[[set.source]]
name = "one"
url = "local.atom"
public_url = "files.example"
[[set]]
name = "deposits"
[[set.source]]
kind = "sip"
url = "https://library.example/{assigned-identifier}"
access = "token"
access_token_file = "short"
[[set]]
name = "gate"
[[set.source]]
kind = "sip"
mode = "gateway"
upstream = "https://ingest.example/sip"
recipient = "smtp:box@h.example"
formats = { x = "urn:x" }
schemas = { "urn:x" = "." }
`, []string{
			`:1: listen: is a list; write a string`, `:2: contact: is a date or time; write a string`,
			`:4: console_token_file: the token is too short to be safe`,
			`:8: set "links": dumps: needs content = "mirror"`,
			`:13: set "links": source 1: password: is given beside password_file; write one of the two`,
			`:16: set "links": source 2: name: another Source of the set is called "one"`,
			`:18: set "links": source 2: public_url: "files.example" is not a public address`,
			`:23: set "deposits": source 1: url: is the library itself; where it publishes its records is record_url`,
			`:25: set "deposits": source 1: access_token_file: the token is too short, or has a character`,
			`:32: set "gate": source 1: recipient: is a mailbox, and nothing takes its mail`,
			`:34: set "gate": source 1: schemas: urn:x: ` + folder + ` is not a file; write the path of the schema's copy`,
		}},
		"formats of a repository": {`[[set]]
name = "maps"
oai_page = 1001
[[set.format]]
prefix = "mods"
namespace = "http://www.loc.gov/mods/v3"
schema = "mods.xsd"
type = "mods"
kind = "x"
[[set.format]]
prefix = "mods"
namespace = "urn:x"
[[set.format]]
namespace = "urn:x"
[[set.format]]
prefix = "a b"
[[set.format]]
prefix = "none"
[[set.format]]
prefix = "relative"
namespace = "mods"
[[set.format]]
prefix = "oai_dc"
namespace = "urn:x"
[[set]]
name = "links"
content = "redirect"
[[set.format]]
prefix = "mods"
namespace = "urn:x"
`, []string{
			`:3: set "maps": oai_page: 1001 is out of range; write a number from 1 to 1000`,
			`:7: set "maps": format 1: schema: `, `:8: set "maps": format 1: type: "mods" is not a media type`, `:9: set "maps": format 1: kind: does not belong here`,
			`:11: set "maps": format 2: prefix: another format of the set is called "mods"`, `:13: set "maps": format 3: prefix: is missing`, `:16: set "maps": format 4: prefix: `,
			`:17: set "maps": format 5: namespace: is missing`, `:21: set "maps": format 6: namespace: "mods" is no URI`, `:23: set "maps": format 7: prefix: oai_dc is the prefix of`,
			`:28: set "links": format 1: needs content = "mirror"`,
		}},
		"harvests": {`listen = "0.0.0.0:8080"
lisen = "x"
every = "1h"
allow_hosts = ["ok.example", "http://no/", 5]
[limits]
record = "many"
depth = 3
[[set]]
name = "Campus"
content = "mirrored"
segment_events = 50001
history = "true"
prefer = "text/xml"
formats = ["xml", "a/b", "a/b"]
[[set.source]]
kind = "atom"
every = "soon"
overlap = 5
urll = "x"
[[set.source]]
url = "http://u:hunter2@h.example/f"
password = "hunter2"
user = "u"
[[set]]
content = "mirror"
source = [{ url = "http://h.example/#x", public_url = "https://x.example/" },
 { every = "1ms", url = "ftp://h.example/" }, "x"]
[[set]]
name = "twice"
[[set]]
name = "twice"
identity = "per-source"
[[set.source]]
url = "http://h.example/1"
[[set.source]]
url = "http://h.example/1"
public_url = "http://h.example/"
password_file = "missing"
prefix = ["maps/"]
since = 2026-01-01T00:00:00
`, []string{
			`:1: listen: 0.0.0.0:8080 can be reached from other machines`,
			`:2: lisen: there is no such key; the nearest is "listen"`,
			`:3: every: does not belong here; write it under a [[set.source]] that is harvested`,
			`:4: allow_hosts: "http://no/" is not a host`,
			`:4: allow_hosts: has a number in its list`,
			`:6: limits: record: many is not a size`,
			`:7: limits: depth: 3 is out of range; write a number from 8 to 10000`,
			`:9: set 1: name: "Campus" is not a name of a set`,
			`:10: set 1: content: "mirrored" is not one of its values; write "mirror", "redirect" or "reference"`,
			`:11: set 1: segment_events: 50001 is out of range; write a number from 1 to 50000`,
			`:12: set 1: history: is a string`,
			`:13: set 1: prefer: is a string; write a list`,
			`:14: set 1: formats: "xml" is not a media type`,
			`:14: set 1: formats: "a/b" appears twice`,
			`:15: set 1: source 1: url: is missing`,
			`:16: set 1: source 1: kind: "atom" is not one of its values; write "atompmh", "resourcesync", "oaipmh", "feed", "folder", "csv", "sitemap", "set" or "sip"`,
			`:17: set 1: source 1: every: "soon" is not a duration`,
			`:18: set 1: source 1: overlap: is a number; write a duration in quotes`,
			`:19: set 1: source 1: urll: there is no such key; the nearest is "url"`,
			`:21: set 1: source 2: url: http://h.example/f holds a user or password`,
			`:22: set 1: source 2: password: must not stand in this file`,
			`:24: set 2: name: is missing`,
			`:26: set 2: source 1: url: http://h.example/#x has a fragment`,
			`:26: set 2: source 3: is a string; write a table`,
			`:27: set 2: source 2: every: 1ms is too short; write 1s or more`,
			`:27: set 2: source 2: url: cannot harvest from ftp://`,
			`:31: set 4: name: there is another set "twice"`,
			`:36: set "twice": source 2: url: http://h.example/1 appears twice`,
			`:35: set "twice": source 2: name: is missing; with identity = "per-source"`,
			`:37: set "twice": source 2: public_url: is only for a Source that is a local file`,
			`:38: set "twice": source 2: password_file: `,
			`:39: set "twice": source 2: prefix: "maps/" is not how a URL begins`,
			`:40: set "twice": source 2: since: 2026-01-01T00:00:00 is not a date with an offset`,
			`:35: set "twice": source 2: user: goes with password or password_file`,
		}},
		"SIP": {`base_url = "https://bridge.example"
mode = "library"
[mail]
from = "bridge"
relay = "smtp.example"
helo = "no name"
[limits]
sip_message = "none"
[[set]]
name = "a"
content = "redirect"
workers = 4
[[set.source]]
kind = "sip"
url = "feed.atom"
mode = "library"
every = "1h"
public_url = "https://x.example/"
record_url = "https://library.example/{id}"
upstream = "https://u:hunter2@ingest.example/"
deadline = "1h"
access = "token"
access_user = "me"
access_password = "${BRIDGE_TEST_SHORT}"
smtp_listen = "25"
fromats = {}
[[set.source]]
kind = "sip"
record_url = "https://x.{assigned-identifier}.example/"
formats = { mods = "urn:mods" }
access = "addresses"
access_addresses = []
mailbox = "a@b.example"
[[set]]
name = "b"
[[set.source]]
kind = "sip"
mode = "gateway"
resend_in_doubt = "yes"
formats = { "{}x" = "http://x.example/x.xsd", y = "y.xsd", "a:b" = "urn:x", z = 5, "{urn:n}r" = "urn:s" }
schemas = { "urn:none" = "x.xsd", "urn:s" = "x.xsd" }
access = "basic"
access_token = "${BRIDGE_TEST_SHORT}"
access_addresses = ["192.0.2.1/24", "::ffff:192.0.2.1", "fe80::1%eth0", "10.0.0.0/33"]
user = "a:b"
password = ""
smtp_listen = ":25"
mailbox = "b+c@b.example"
[[set.source]]
url = "https://archive.example/sip"
plain_post = true
mode = "review"
formats = ["a/b"]
[[set.submit]]
url = "https://archive.example/sip"
recipient = "https://bridge.example/"
submitter_name = "me"
every = "2h"
workers = 65
import_accepted_to = "b"
mode = "review"
[[set.submit]]
recipient = "mailto:b@b.example?subject=x"
submitter_name = "me"
submitter_email = "me at home"
import_accepted_to = "c"
[[set]]
name = "d"
content = "reference"
[[set.submit]]
url = "https://bridge.example/sip/d/"
recipient = "smtp:box@d.example"
import_accepted_to = "a"
[[set.submit]]
url = "https://two.example/"
import_accepted_to = "e"
[[set]]
name = "e"
content = "redirect"
[[set.source]]
kind = "sip"
smtp_listen = ":25"
mailbox = "f@f.example"
[[set]]
name = "f"
[[set.source]]
kind = "sip"
mode = "gateway"
upstream = "https://bridge.example/sip/f"
smtp_listen = ":25"
mailbox = "F@f.Example"
[[set.submit]]
url = "https://three.example/"
recipient = "none"
import_accepted_to = "d"
[[set]]
name = "g"
[[set.source]]
kind = "sip"
mode = "libary"
upstream = "https://ingest.example/"
`, []string{
			`:2: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
			`:4: mail: from: "bridge" is not a mail address; write it like "box@example.org", in ASCII`,
			`:5: mail: relay: "smtp.example" is not a server; write host:port, like "smtp.example.org:25"`,
			`:6: mail: helo: "no name" is not a name of a host; write it like "bridge.example.org"`,
			`:8: limits: sip_message: none is not a size; write a number of bytes, or like "64 MiB"`,
			`:12: set "a": workers: does not belong here; write it under [[set.submit]]`,
			`:13: set "a": source 1: formats: must say which records mode = "library" accepts; write formats = { "{namespace}root" = "URL of the schema" }`,
			`:13: set "a": source 1: mailbox: goes with smtp_listen; write both or none`,
			`:15: set "a": source 1: url: "feed.atom" is not a URL of a web server; write a whole one, like "https://library.example.org/sip"`,
			`:16: set "a": source 1: mode: "library" keeps the records that it is sent; write content = "mirror" in the set`,
			`:17: set "a": source 1: every: does not belong here; write it under a [[set.source]] that is harvested`,
			`:18: set "a": source 1: public_url: does not belong here; write it under a [[set.source]] that is harvested`,
			`:19: set "a": source 1: record_url: has {assigned-identifier} 0 times; write it once, like "https://library.example.org/records/{assigned-identifier}"`,
			`:20: set "a": source 1: upstream: https://ingest.example/ holds a user or password; write the URL without it, and user and password_file in the configuration`,
			`:20: set "a": source 1: upstream: is only for mode = "gateway"; leave it out`,
			`:21: set "a": source 1: deadline: is only for mode = "gateway"; leave it out`,
			`:22: set "a": source 1: access: "token" needs access_token_file as well`,
			`:23: set "a": source 1: access_user: is only for access = "basic"; write that, or leave it out`,
			`:24: set "a": source 1: access_password: is only for access = "basic"; write that, or leave it out`,
			`:25: set "a": source 1: smtp_listen: "25" is not an address; write host:port, like "127.0.0.1:8080"`,
			`:26: set "a": source 1: fromats: there is no such key; the nearest is "formats"`,
			`:28: set "a": source 2: kind: is the second "sip" in the set; one takes everything, so leave this [[set.source]] out`,
			`:29: set "a": source 2: record_url: {assigned-identifier} is in the host of the URL; write it after the host and a slash`,
			`:30: set "a": source 2: formats: is for an ingest server, and without mode the set takes notifications only; write mode, or leave this out`,
			`:31: set "a": source 2: access: "addresses" needs access_addresses = ["192.0.2.0/24"] as well`,
			`:33: set "a": source 2: mailbox: goes with smtp_listen; write both or none`,
			`:36: set "b": source 1: upstream: is missing; with mode = "gateway" write the URL of the ingest server behind it`,
			`:36: set "b": source 1: recipient: is missing: the base URL is https, and SIP takes http or smtp; write ` + wantedOfGateway,
			`:39: set "b": source 1: resend_in_doubt: is no longer a key: bridge never repeats a submission in doubt by itself; remove the key, and enter the ingest server's answer with bridge submission settle`,
			`:40: set "b": source 1: formats: a:b: is not a name of a root element; write "{namespace}name", or "name" for one without a namespace`,
			`:40: set "b": source 1: formats: y: "y.xsd" is not an absolute URL; write that of the schema, like "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd"`,
			`:40: set "b": source 1: formats: z: is a number; write a string, as in formats = { "{namespace}root" = "URL of the schema" }`,
			`:40: set "b": source 1: formats: {}x: is not a name of a root element; write "{namespace}name", or "name" for one without a namespace`,
			`:41: set "b": source 1: schemas: urn:none: is the schema of no format; write the URL as in formats`,
			`:41: set "b": source 1: schemas: urn:s: there is no file ` + folder + `/x.xsd; write the path of the schema's copy, relative to this file`,
			`:42: set "b": source 1: access: "basic" needs access_user and access_password_file as well`,
			`:43: set "b": source 1: access_token: the token is too short, or has a character that URLs do not take as it is; make it of 16 or more of A-Z, a-z, 0-9, _ and -`,
			`:43: set "b": source 1: access_token: is only for access = "token"; write that, or leave it out`,
			`:44: set "b": source 1: access_addresses: "192.0.2.1/24" is an address with the length of a network; write "192.0.2.0/24" for the network, or "192.0.2.1"`,
			`:44: set "b": source 1: access_addresses: "::ffff:192.0.2.1" is not a network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
			`:44: set "b": source 1: access_addresses: "fe80::1%eth0" is not a network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
			`:44: set "b": source 1: access_addresses: "10.0.0.0/33" is not a network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
			`:44: set "b": source 1: access_addresses: is only for access = "addresses"; write that, or leave it out`,
			`:45: set "b": source 1: user: has a colon, which no user name may have (RFC 7617)`,
			`:46: set "b": source 1: password: is empty; write password = "${NAME}" or password_file = "path", or leave it out`,
			`:48: set "b": source 1: mailbox: "b+c@b.example" does not leave room for the token in box+token@domain; write a box of at most 37 letters, digits, dots, _ and -, without a plus`,
			`:51: set "b": source 2: plain_post: does not belong here; write it under a [[set.source]] of kind "sip"`,
			`:52: set "b": source 2: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
			`:53: set "b": source 2: formats: does not belong here; write it under [[set]]`,
			`:55: set "b": submit 1: url: https://archive.example/sip appears twice in the set; write it once`,
			`:56: set "b": submit 1: recipient: https://bridge.example/ is https, and SIP takes http or smtp; write ` + wanted,
			`:57: set "b": submit 1: submitter_name: goes with submitter_email; write both or none`,
			`:58: set "b": submit 1: every: 2h is too long; write 1h or less`,
			`:59: set "b": submit 1: workers: 65 is out of range; write a number from 1 to 64`,
			`:60: set "b": submit 1: import_accepted_to: is the set itself; write the name of another set`,
			`:61: set "b": submit 1: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
			`:62: set "b": submit 2: url: is missing; write the URL of the ingest server: url = "https://..."`,
			`:63: set "b": submit 2: recipient: "mailto:b@b.example?subject=x" has a query or a fragment; write ` + wanted,
			`:65: set "b": submit 2: submitter_email: "me at home" is not a mail address; write it like "box@example.org", in ASCII`,
			`:66: set "b": submit 2: import_accepted_to: there is no set "c"; write the name of one with a [[set.source]] of kind "sip"`,
			`:70: set "d": submit 1: submits the content of records; write content = "mirror" in the set`,
			`:71: set "d": submit 1: url: https://bridge.example/sip/d/ is this set's own service, and what it accepts would be submitted again; write that of another set or server`,
			`:72: set "d": submit 1: recipient: is a mailbox, and nothing takes its mail; write a [[set.source]] with kind = "sip", smtp_listen and mailbox in set "d"`,
			`:73: set "d": submit 1: import_accepted_to: set "a" does not keep records; write content = "mirror" in it`,
			`:74: set "d": submit 2: submits the content of records; write content = "mirror" in the set`,
			`:74: set "d": submit 2: recipient: is missing: the base URL is https, and SIP takes http or smtp; write ` + wanted,
			`:76: set "d": submit 2: import_accepted_to: set "e" does not keep records; write content = "mirror" in it`,
			`:86: set "f": source 1: recipient: is missing: the base URL is https, and SIP takes http or smtp; write ` + wantedOfGateway,
			`:89: set "f": source 1: upstream: https://bridge.example/sip/f is this very service; write the URL of the ingest server behind it`,
			`:91: set "f": source 1: mailbox: F@f.example is that of set "e"; write another, or another smtp_listen`,
			`:95: set "f": submit 1: import_accepted_to: set "d" does not take records in; give it a [[set.source]] with kind = "sip"`,
			`:100: set "g": source 1: mode: "libary" is not one of its values; write "library", "gateway" or "review"`,
		}},
	} {
		_, err := Load(write(t, folder, "bridge.toml", row.file))
		var all *Error
		if !errors.As(err, &all) {
			t.Errorf("%s: error %T: %v", name, err, err)
			continue
		}
		for _, w := range row.want {
			if !slices.ContainsFunc(all.Problems, func(p Problem) bool { return strings.HasPrefix(p.String(), path+w) }) {
				t.Errorf("%s: not said: %s", name, w)
			}
		}
		if len(all.Problems) != len(row.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %d problems, want %d, and no secret:\n%v", name, len(all.Problems), len(row.want), err)
		}
	}
}

func TestLoadFails(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"syntax":          {"data = \"x\"\n[[set]\n", "bridge.toml:2:"},
		"twice":           {"data = \"x\"\ndata = \"y\"\n", "bridge.toml:"},
		"variable":        {"[[set]]\nname=\"a\"\n[[set.source]]\nurl=\"http://h.example\"\nuser=\"u\"\npassword=\"${BRIDGE_TEST_UNSET}\"", "environment variable BRIDGE_TEST_UNSET is not set"},
		"no port":         {`listen = "localhost"`, `"localhost" is not an address`},
		"port":            {`listen = "localhost:http8"`, `"http8" is not a port`},
		"base relative":   {`base_url = "bridge.example.org"`, "is not absolute"},
		"base scheme":     {`base_url = "ftp://h.example"`, `base_url: "ftp://h.example" does not begin with http:// or https://`},
		"proxy scheme":    {`proxy = "socks5://h.example:1080"`, `proxy: "socks5://h.example:1080" does not begin with http:// or https://`},
		"base query":      {`base_url = "http://h.example/?a"`, "has a query"},
		"base user":       {`base_url = "http://u:hunter2@h.example/"`, "holds a user"},
		"base empty":      {`base_url = ""`, "is not absolute"},
		"data empty":      {`data = ""`, "bridge.toml:1: data: is empty"},
		"data in a file":  {`data = "bridge.toml"`, `/bridge.toml is a file, or below one; write the path of a folder`},
		"data below one":  {`data = "bridge.toml/data"`, `bridge.toml:1: data: `},
		"data at home":    {`data = "~/bridge"`, `bridge.toml:1: data: "~/bridge" begins with ~, which only a shell reads as your home; write the whole path, or ./~/bridge`},
		"set is no array": {"[set]\nname = \"a\"", "is a table; write a table with two brackets: [[set]]"},
		"byte order mark": {"\ufefflisten = \"127.0.0.1:0\"\n", "bridge.toml:1: it begins with a byte order mark"},
		"UTF-16":          {"\xff\xfel\x00i\x00", "bridge.toml:1: it is in UTF-16; save it as UTF-8"},
		"of the top":      {"[[set]]\nname = \"a\"\ntrusted_proxies = []\n", `bridge.toml:3: set "a": trusted_proxies: does not belong here; write it before the first [[set]]`},
		"console for all": {`console_listen = "0.0.0.0:8081"`, "write console_token_file as well"},
		"console there":   {`console_listen = "127.0.0.1:8080"`, "is the same as listen"},
		"mail there":      {"[[set]]\nname=\"a\"\nsource=[{kind=\"sip\", smtp_listen=\"127.0.0.1:8080\", mailbox=\"a@b.example\"}]", "bridge.toml:3: set \"a\": source 1: smtp_listen: is the same as listen; write another port"},
		"mail at console": {"console_listen = \"127.0.0.1:8081\"\n[[set]]\nname=\"a\"\nsource=[{kind=\"sip\", smtp_listen=\"127.0.0.1:8081\", mailbox=\"a@b.example\"}]", "is the same as console_listen"},
		"console address": {`console_listen = "8081"`, "is not an address"},
		"for ever":        {set("a", harvests("http://h.example/"), "every = \"2500000h\"\n"), "every: 2500000h is too long; write 36500d or less"},
		"days for ever":   {set("a", harvests("http://h.example/"), "every = \"100000d\"\n"), "every: 100000d is too long; write 36500d or less"},
		"half a number":   {"[limits]\nrate = 0.5\n", "bridge.toml:2: limits: rate: 0.5 is not a whole number; write one from 0 to "},
		"overflow":        {"[limits]\nrecord = 9223372036854775807\n", `record: 9223372036854775807 is too large; write "1073741824 GiB" or less`},
		"overflow of GiB": {"[limits]\nrecord = \"1073741825 GiB\"\n", "is too large"},
		"below zero":      {"[limits]\nrecord = \"-9223372036854775807 KiB\"\n", "is not a size"},
		"contact":         {`contact = "a (b)"`, "has a bracket"},
		"no scheme":       {"[[set]]\nname=\"a\"\nsource=[{url=\"data.example.org/feed.atom\"}]", "for a server write http://data.example.org/feed.atom or https://"},
		"folder":          {"[[set]]\nname=\"a\"\nsource=[{url=\".\", kind=\"feed\"}]", "is a folder"},
		"folder of data":  {"data = \"x\"\n[[set]]\nname=\"a\"\nsource=[{url=\".\"}]", "lies in the folder"},
		"folder at space": {"[[set]]\nname=\"a\"\nsource=[{url=\"x/r\", kind=\"folder\", public_url=\"https://h.example/my files\"}]", "has a space in it; write %20 instead"},
		"folders at one":  {"[[set]]\nname=\"a\"\nsource=[{url=\"x/r\", kind=\"folder\", public_url=\"https://h.example/r\"}, {url=\"y/r\", kind=\"folder\", public_url=\"https://h.example/r/\"}]", "the same identifiers to different files"},
		"folders alike":   {"[[set]]\nname=\"a\"\nsource=[{url=\"x/r\", kind=\"folder\"}, {url=\"y/r\", kind=\"folder\"}]", "the same identifiers to different files"},
		"identifier":      {"[[set]]\nname=\"a\"\nsource=[{url=\"http://h.example\", identifier=\"name\"}]", `is only for a Source of kind "folder"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, row.text)
			if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
	if _, err := FromArguments(Flags{Data: "~/bridge"}, nil); err == nil || !strings.HasPrefix(err.Error(), `--data: "~/bridge" begins with ~`) { // as of a shell that is given --data=~/bridge
		t.Errorf("a data folder at home: %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.toml")); err == nil || !strings.Contains(err.Error(), "bridge init") {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "configuration: ") || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a folder: %v", err)
	}
}

// A harvest begins at a point in time, or at the beginning of a day in UTC, quoted or not.
func TestSince(t *testing.T) {
	day := time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC)
	for written, want := range map[string]time.Time{
		"2026-02-03": day, `"2026-02-03"`: day, "2026-02-03T01:00:00+01:00": day, `"2026-02-02T23:00:00-01:00"`: day,
	} {
		c, err := load(t, set("a", harvests("http://a.example/"), "since = "+written+"\n"))
		if err != nil || !c.Sets[0].Sources[0].Since.Equal(want) {
			t.Errorf("%s: %+v, %v", written, c, err)
		}
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	path := write(t, t.TempDir(), "bridge.toml", "listen = \"0.0.0.0:80\"\ndata = \"store\"\n")
	c, err := LoadWith(path, Flags{Data: "here", Listen: "[::1]:9000"})
	if err != nil {
		t.Fatal(err)
	}
	working, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "[::1]:9000" || c.BaseURL != "http://[::1]:9000" || c.Data != filepath.Join(working, "here") {
		t.Errorf("%+v", c)
	}
	if c, err = LoadWith(path, Flags{BaseURL: "https://h.example/"}); err != nil || c.BaseURL != "https://h.example" {
		t.Errorf("base_url %v, %v", c, err)
	}
	if _, err = LoadWith(path, Flags{Listen: "nine", BaseURL: "https://h.example/?"}); err == nil ||
		err.Error() != `--listen: "nine" is not an address; write host:port, like "127.0.0.1:8080"` {
		t.Errorf("error %v", err)
	}
}

func TestFromArguments(t *testing.T) {
	c, err := FromArguments(Flags{Listen: "localhost:0"}, []string{"http://a.example/", "b=atompmh:http://b.example/", "http://c.example/"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Sets) != 2 || c.Sets[0].Name != "main" || len(c.Sets[0].Sources) != 2 || c.Sets[1].Name != "b" || c.Sets[1].Sources[0].Kind != AtomPMH {
		t.Errorf("sets %+v", c.Sets)
	}
	if c.BaseURL != "" || !filepath.IsAbs(c.Data) || c.File != "" || c.Sets[0].SegmentEvents != 10_000 {
		t.Errorf("%+v", c)
	}
	_, err = FromArguments(Flags{Listen: "0.0.0.0:1"}, []string{"http://a.example/", "http://a.example/", "rss:http://b.example/"})
	if all, ok := errors.AsType[*Error](err); !ok || len(all.Problems) != 3 {
		t.Errorf("error %v", err)
	}
}

func TestNearest(t *testing.T) {
	known := map[string]bool{"listen": true, "data": true, "base_url": true, "every": true}
	for key, want := range map[string]string{"evrey": "every", "Listen": "listen", "baseurl": "base_url", "dat": "data", "date": "data"} {
		if got := nearest(key, known); got != want {
			t.Errorf("nearest to %q: %q, want %q", key, got, want)
		}
	}
	if distance("evrey", "every") != 1 || distance("", "abc") != 3 || distance("kitten", "sitting") != 3 {
		t.Error("distances are wrong")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(Template())
	f.Add("[[set]]\nname=\"a\"\nsource=[{url=\"http://h.example\"}]\n[[set.source]]\n")
	f.Add(uncomment())
	f.Add("a.b.c = {d = [[1, {e = 2}], 3]}\n[limits]\nx.\"y\".z = 1")
	f.Fuzz(func(t *testing.T, text string) {
		doc, root, err := parse("f", []byte(text))
		if err == nil {
			doc.folder = t.TempDir()
			_, _, err = doc.read(root, Flags{})
		}
		if err != nil && err.Error() == "" {
			t.Error("an error that says nothing")
		}
	})
}

// D62: where the contents of a Source may come from, and hosts with a port.
func TestContentHosts(t *testing.T) {
	const source = "[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"https://a.example/\"\n"
	for value, want := range map[string]struct {
		only  bool
		hosts []string
	}{
		`"public"`: {}, `"same"`: {true, nil}, `[]`: {true, nil}, `["CDN.example", "10.0.0.7:8080", "[::1]", "[::1]:80"]`: {true, []string{"cdn.example", "10.0.0.7:8080", "::1", "[::1]:80"}},
	} {
		c, err := load(t, source+"content_hosts = "+value+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Sets[0].Sources[0]; got.OwnContents != want.only || !reflect.DeepEqual(got.ContentHosts, want.hosts) {
			t.Errorf("%s: %t %q", value, got.OwnContents, got.ContentHosts)
		}
	}
	for value, wrong := range map[string]string{
		`"any"`: `content_hosts: "any" is not one of its values; write "public" or "same"`, `true`: "content_hosts: is true or false", `["http://a.example/"]`: "is not a host",
	} {
		if _, err := load(t, source+"content_hosts = "+value+"\n"); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// A history is served from the contents that a set keeps.
func TestHistoryNeedsContents(t *testing.T) {
	folder := t.TempDir()
	for content, ok := range map[string]bool{"mirror": true, "redirect": false, "reference": false} {
		c, err := Load(write(t, folder, "bridge.toml", "[[set]]\nname = \"a\"\ncontent = \""+content+"\"\nhistory = true\n"))
		switch {
		case ok && (err != nil || !c.Sets[0].History):
			t.Errorf("%s: %v", content, err)
		case !ok && (err == nil || !strings.Contains(err.Error(), `:4: set "a": history: needs content = "mirror"`)):
			t.Errorf("%s: %v", content, err)
		}
	}
}

// TestPushKeys: a hub is a URL, or a list of them; push needs an address that a hub reaches.
func TestPushKeys(t *testing.T) {
	set, source, base := "[[set]]\nname = \"main\"\n", "[[set.source]]\nurl = \"http://a.example/\"\n", "base_url = \"https://bridge.example\"\n"
	for hub, want := range map[string][]string{`"https://hub.example"`: {"https://hub.example"}, `["https://a.example/?x=1", "http://b.example/"]`: {"https://a.example/?x=1", "http://b.example/"}, `""`: nil, "[]": nil} {
		c, err := load(t, set+"hub = "+hub+"\n"+source)
		if err != nil || !slices.Equal(c.Sets[0].Hub, want) {
			t.Errorf("hub = %s: %v", hub, err)
		}
	}
	for text, wrong := range map[string]string{
		set + "hub = \"hub.example\"\n" + source:                            "is not the URL of a hub",
		set + "hub = [\"https://u:p@hub.example/\"]\n" + source:             "is not the URL of a hub",
		set + "hub = \"https://hub.example/?a=b c\"\n" + source:             "has a character that no URL has; write it with %, like %20 for a space",
		set + "hub = [\"https://hub.example/?a>b\"]\n" + source:             "has a character that no URL has",
		set + "hub = \"https://hüb.example/\"\n" + source:                   "has a character that no URL has",
		set + "hub = true\n" + source:                                       "hub: is true or false",
		set + source + "push = true\n":                                      "base_url: is missing: a Source has push = true",
		"[defaults]\npush = true\n" + set + source:                          "base_url: is missing: a Source has push = true",
		base + set + "[[set.source]]\nurl = \"bridge.toml\"\npush = true\n": "push: is of no use with a local file",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), "u:p@") {
			t.Errorf("%q: %v, want %q", text, err, wrong)
		}
	}
	c, err := load(t, base+"[defaults]\npush = true\n"+set+source+"[[set.source]]\nurl = \"bridge.toml\"\n[[set.source]]\nurl = \"http://b.example/\"\npush = false\n")
	if err != nil || !c.Sets[0].Sources[0].Push || c.Sets[0].Sources[1].Push || c.Sets[0].Sources[2].Push {
		t.Errorf("%v", err)
	}
}

// TestUselessKeys: a key that does nothing for a Source is no error, since it may have been there
// for long, and is warned of; the same in [defaults] is for other Sources.
func TestUselessKeys(t *testing.T) {
	text := "[defaults]\nfull_every = \"24h\"\n[[set]]\nname = \"main\"\nsource = [{kind = \"feed\", url = \"http://a.example/?key\", full_every = \"48h\"}, " +
		"{kind = \"feed\", url = \"http://b.example/\"}, {kind = \"feed\", url = \"http://c.example/\", full_every = \"0s\"}, {kind = \"atompmh\", url = \"http://d.example/\", full_every = \"48h\"}]\n"
	folder := t.TempDir()
	write(t, folder, "sets.toml", strings.NewReplacer("[defaults]\nfull_every = \"24h\"\n", "", "main", "more").Replace(text))
	c, err := Load(write(t, folder, "bridge.toml", "include = [\"sets.toml\"]\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	const of = `: source http://a.example/?***: full_every does nothing for a Source of kind "feed", of which only bridge harvest --full reads all pages again: leave it out`
	if got, want := c.Warnings(), []string{`set "main"` + of, `set "more"` + of}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
