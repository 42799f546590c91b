package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	mods      = "{http://www.loc.gov/mods/v3}mods"
	modsXSD   = "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd"
	recordURL = "https://library.example.org/records/{assigned-identifier}"
)

// The keys of SIP that the template shows exist, and what it shows for a default
// is the default.
func TestTemplateSIP(t *testing.T) {
	folder := templateFolder(t)
	c, err := Load(write(t, folder, "bridge.toml", uncomment()))
	if err != nil {
		t.Fatal(err)
	}
	sip := defaultSIPSource("deposits")
	sip.Name, sip.URL = "library", "https://library.example.org/"
	sip.SIP.Mode, sip.SIP.RecordURL = Library, recordURL
	sip.SIP.Formats = map[string]string{mods: modsXSD}
	sip.SIP.Schemas = map[string]string{modsXSD: filepath.Join(folder, "mods-3-8.xsd")}
	sip.SIP.SMTPListen, sip.SIP.Mailbox = "127.0.0.1:2525", "deposits@bridge.example.org"
	target := defaults[Target]()
	target.URL, target.Formats = "https://archive.example.org/sip", sip.SIP.Formats
	target.SubmitterName, target.SubmitterEmail = "Example Bridge", "metadata@example.org"
	target.Recipient = "http://bridge.example.org"
	target.User, target.Password = "bridge", Secret{"open-sesame-open"}
	want := defaults[Set]()
	want.Name, want.Sources, want.Submit = "deposits", []Source{sip}, []Target{target}
	if !reflect.DeepEqual(c.Sets[1], want) {
		t.Errorf("set  %+v\nwant %+v", c.Sets[1], want)
	}
	if want := (Mail{From: "bridge@bridge.example.org", Relay: "smtp.example.org:25", HELO: "bridge.example.org"}); c.Mail != want {
		t.Errorf("mail %+v", c.Mail)
	}
}

// The template's lines for a gateway and for each kind of access are right as
// well.
func TestTemplateGateways(t *testing.T) {
	folder := templateFolder(t)
	for kind, want := range map[string]Access{
		AccessToken:     {Kind: AccessToken, Token: Secret{"open-sesame-open"}},
		AccessBasic:     {Kind: AccessBasic, User: "submitter", Password: Secret{"open-sesame-open"}},
		AccessAddresses: {Kind: AccessAddresses, Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}},
	} {
		text := regexp.MustCompile(`(?m)^access = .*$`).ReplaceAllString(uncomment(), "")
		text = strings.Replace(text, `mode = "library"`, `mode = "gateway"`, 1)
		keys := `(access = "` + kind + `"|` + map[string]string{
			AccessToken: "access_token", AccessBasic: "access_(user|password)", AccessAddresses: "access_addresses",
		}[kind] + `|upstream|user|password|recipient|deadline|resend)`
		text = regexp.MustCompile(`(?m)^# # `+keys).ReplaceAllString(text, "$1")
		c, err := Load(write(t, folder, "bridge.toml", text))
		if err != nil {
			t.Errorf("%s: %v\n%s", kind, err, text)
			continue
		}
		got := c.Sets[1].Sources[0].SIP
		if !reflect.DeepEqual(got.Access, want) {
			t.Errorf("access %+v, want %+v", got.Access, want)
		}
		if got.Upstream != "https://ingest.example.org/sip" || got.User != "bridge" || got.Password.Reveal() != "open-sesame-open" ||
			got.Recipient != "http://bridge.example.org" || got.Deadline != 168*time.Hour {
			t.Errorf("gateway %+v", got)
		}
	}
}

// Every key that there is stands in the template.
func TestTemplateHasEveryKey(t *testing.T) {
	keys := keysOf(Config{}, Set{}, Source{}, SIP{}, Access{}, Target{}, Mail{}, Snapshot{}, Limits{})
	for _, table := range []string{"set", "source", "submit", "mail", "snapshot", "limits"} {
		delete(keys, table)
	}
	if len(keys) < 80 {
		t.Fatalf("only %d keys", len(keys))
	}
	for key := range keys {
		if !regexp.MustCompile(`(?m)^(# )*(.*# or )?` + key + ` = `).MatchString(Template()) {
			t.Errorf("the template does not show %s", key)
		}
	}
}

func TestLoadReadsEveryKeyOfSIP(t *testing.T) {
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

// Everything that is wrong with SIP is said at once, with its line and what to
// write; here word for word.
func TestAllProblemsOfSIP(t *testing.T) {
	t.Setenv("BRIDGE_TEST_SHORT", "hunter2")
	folder := t.TempDir()
	path := write(t, folder, "bridge.toml", `base_url = "https://bridge.example"
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
`)
	_, err := Load(path)
	var all *Error
	if !errors.As(err, &all) {
		t.Fatalf("error %T: %v", err, err)
	}
	want := []string{
		`:2: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
		`:4: mail: from: "bridge" is no mail address; write it like "box@example.org", in ASCII`,
		`:5: mail: relay: "smtp.example" is no server; write host:port, like "smtp.example.org:25"`,
		`:6: mail: helo: "no name" is no name of a host; write it like "bridge.example.org"`,
		`:8: limits: sip_message: none is no size; write a number of bytes, or like "64 MiB"`,
		`:12: set "a": workers: does not belong here; write it under [[set.submit]]`,
		`:13: set "a": source 1: formats: must say which records mode = "library" accepts; write formats = { "{namespace}root" = "URL of the schema" }`,
		`:13: set "a": source 1: mailbox: goes with smtp_listen; write both or none`,
		`:15: set "a": source 1: url: "feed.atom" is no URL of a web server; write a whole one, like "https://library.example.org/sip"`,
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
		`:25: set "a": source 1: smtp_listen: "25" is no address; write host:port, like "127.0.0.1:8080"`,
		`:26: set "a": source 1: fromats: there is no such key; the nearest is "formats"`,
		`:28: set "a": source 2: kind: is the second "sip" in the set; one takes everything, so leave this [[set.source]] out`,
		`:29: set "a": source 2: record_url: {assigned-identifier} stands in the host of the URL; write it behind the host and a slash`,
		`:30: set "a": source 2: formats: is for an ingest server, and without mode the set takes notifications only; write mode, or leave this out`,
		`:31: set "a": source 2: access: "addresses" needs access_addresses = ["192.0.2.0/24"] as well`,
		`:33: set "a": source 2: mailbox: goes with smtp_listen; write both or none`,
		`:36: set "b": source 1: upstream: is missing; with mode = "gateway" write the URL of the ingest server behind it`,
		`:36: set "b": source 1: recipient: is missing: the base URL is https, and the draft wants http or smtp; write ` + wantedOfGateway,
		`:39: set "b": source 1: resend_in_doubt: is no key any more: what is in doubt is never sent again by itself; leave it out, and say with bridge submission settle what the ingest server has done`,
		`:40: set "b": source 1: formats: a:b: is no name of a root element; write "{namespace}name", or "name" for one without a namespace`,
		`:40: set "b": source 1: formats: y: "y.xsd" is no absolute URL; write that of the schema, like "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd"`,
		`:40: set "b": source 1: formats: z: is a number; write a string, as in formats = { "{namespace}root" = "URL of the schema" }`,
		`:40: set "b": source 1: formats: {}x: is no name of a root element; write "{namespace}name", or "name" for one without a namespace`,
		`:41: set "b": source 1: schemas: urn:none: is the schema of none of the formats; write it as it stands there`,
		`:41: set "b": source 1: schemas: urn:s: there is no file ` + folder + `/x.xsd; write the path of the schema's copy, relative to this file`,
		`:42: set "b": source 1: access: "basic" needs access_user and access_password_file as well`,
		`:43: set "b": source 1: access_token: the token is too short, or has a character that URLs do not take as it is; make it of 16 or more of A-Z, a-z, 0-9, _ and -`,
		`:43: set "b": source 1: access_token: is only for access = "token"; write that, or leave it out`,
		`:44: set "b": source 1: access_addresses: "192.0.2.1/24" is an address with the length of a network; write "192.0.2.0/24" for the network, or "192.0.2.1"`,
		`:44: set "b": source 1: access_addresses: "::ffff:192.0.2.1" is no network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
		`:44: set "b": source 1: access_addresses: "fe80::1%eth0" is no network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
		`:44: set "b": source 1: access_addresses: "10.0.0.0/33" is no network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
		`:44: set "b": source 1: access_addresses: is only for access = "addresses"; write that, or leave it out`,
		`:45: set "b": source 1: user: has a colon, which no user name may have (RFC 7617)`,
		`:46: set "b": source 1: password: is empty; write password = "${NAME}" or password_file = "path", or leave it out`,
		`:48: set "b": source 1: mailbox: "b+c@b.example" does not leave room for the token in box+token@domain; write a box of at most 37 letters, digits, dots, _ and -, without a plus`,
		`:51: set "b": source 2: plain_post: does not belong here; write it under a [[set.source]] of kind "sip"`,
		`:52: set "b": source 2: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
		`:53: set "b": source 2: formats: does not belong here; write it under [[set]]`,
		`:55: set "b": submit 1: url: https://archive.example/sip stands twice in the set; write it once`,
		`:56: set "b": submit 1: recipient: https://bridge.example/ is https, and the draft wants http or smtp; write ` + wanted,
		`:57: set "b": submit 1: submitter_name: goes with submitter_email; write both or none`,
		`:58: set "b": submit 1: every: 2h is too long; write 1h or less`,
		`:59: set "b": submit 1: workers: 65 is out of range; write a number from 1 to 64`,
		`:60: set "b": submit 1: import_accepted_to: is the set itself; write the name of another set`,
		`:61: set "b": submit 1: mode: does not belong here; write it under a [[set.source]] of kind "sip"`,
		`:62: set "b": submit 2: url: is missing; write the URL of the ingest server: url = "https://..."`,
		`:63: set "b": submit 2: recipient: "mailto:b@b.example?subject=x" has a query or a fragment; write ` + wanted,
		`:65: set "b": submit 2: submitter_email: "me at home" is no mail address; write it like "box@example.org", in ASCII`,
		`:66: set "b": submit 2: import_accepted_to: there is no set "c"; write the name of one with a [[set.source]] of kind "sip"`,
		`:70: set "d": submit 1: submits the content of records; write content = "mirror" in the set`,
		`:71: set "d": submit 1: url: https://bridge.example/sip/d/ is this set's own service, and what it accepts would be submitted again; write that of another set or server`,
		`:72: set "d": submit 1: recipient: is a mailbox, and nothing takes its mail; write a [[set.source]] with kind = "sip", smtp_listen and mailbox in set "d"`,
		`:73: set "d": submit 1: import_accepted_to: set "a" does not keep records; write content = "mirror" in it`,
		`:74: set "d": submit 2: submits the content of records; write content = "mirror" in the set`,
		`:74: set "d": submit 2: recipient: is missing: the base URL is https, and the draft wants http or smtp; write ` + wanted,
		`:76: set "d": submit 2: import_accepted_to: set "e" does not keep records; write content = "mirror" in it`,
		`:86: set "f": source 1: recipient: is missing: the base URL is https, and the draft wants http or smtp; write ` + wantedOfGateway,
		`:89: set "f": source 1: upstream: https://bridge.example/sip/f is this very service; write the URL of the ingest server behind it`,
		`:91: set "f": source 1: mailbox: F@f.example is that of set "e"; write another, or another smtp_listen`,
		`:95: set "f": submit 1: import_accepted_to: set "d" does not take records in; give it a [[set.source]] with kind = "sip"`,
		`:100: set "g": source 1: mode: "libary" is none of its values; write "library", "gateway" or "review"`,
	}
	said := err.Error()
	for _, p := range all.Problems {
		if line := strings.TrimPrefix(p.String(), path); !slices.Contains(want, line) {
			t.Errorf("said: %s", line)
		}
	}
	for _, w := range want {
		if !strings.Contains(said+"\n", path+w+"\n") {
			t.Errorf("not said: %s", w)
		}
	}
	if len(all.Problems) != len(want) {
		t.Errorf("%d problems, want %d", len(all.Problems), len(want))
	}
	if strings.Contains(said, "hunter2") {
		t.Error("a secret is shown")
	}
}
