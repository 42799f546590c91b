package config

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
)

// said compares an error with what it must contain; "" is none.
func said(err error, want string) bool {
	return err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want)
}

func TestCheckRecordURL(t *testing.T) {
	for template, want := range map[string]string{
		recordURL: "",
		"HTTP://h.example:8080/{assigned-identifier}/mods.xml":      "",
		"https://h.example/get?id={assigned-identifier}&as=xml":     "",
		"https://h.example/a/b/":                                    "has {assigned-identifier} 0 times",
		"https://h.example/{assigned-identifier}/":                  "",
		"https://h.example/{assigned-identifier}{id}":               "",
		"https://h/{assigned-identifier}/{assigned-identifier}":     "2 times; write it once",
		"https://h.example{assigned-identifier}":                    "stands in the host",
		"https://h.example:{assigned-identifier}/":                  "stands in the host",
		"https://{assigned-identifier}/":                            "stands in the host",
		"https://{assigned-identifier}@h.example/":                  "stands in the host",
		"https://u{assigned-identifier}@h.example/":                 "stands in the host",
		"https://u:hunter2@h.example/{assigned-identifier}":         "holds a user",
		"https://h.example/#{assigned-identifier}":                  "has a fragment",
		"https://h.example/{assigned-identifier}#x":                 "has a fragment",
		"{assigned-identifier}":                                     "no URL of a web server",
		"/records/{assigned-identifier}":                            "no URL of a web server",
		"ftp://h.example/{assigned-identifier}":                     "no URL of a web server",
		"https://h.example?id={assigned-identifier}":                "stands in the host",
		"https://h.example/%zz/{assigned-identifier}":               "is no URL",
		"https://h.example/{assigned-identifier}/%zz":               "is no URL",
		"https://h.example/{Assigned-Identifier}":                   "0 times",
		"https://h.example/\n{assigned-identifier}":                 "is no URL",
		"https://h.example/%7Bassigned-identifier%7D":               "0 times",
		"https://h.example/a?b={assigned-identifier}&c=https://x/#": "",
	} {
		if _, err := checkRecordURL(template); !said(err, want) || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want %q", template, err, want)
		}
	}
}

func TestCheckNetwork(t *testing.T) {
	for typed, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "0.0.0.0/0": "0.0.0.0/0", "2001:DB8::/32": "2001:db8::/32", "::1": "::1/128",
	} {
		if got, err := checkNetwork(typed); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", typed, got, err, want)
		}
	}
	for typed, want := range map[string]string{
		"": "is no network", "localhost": "is no network", "192.0.2": "is no network", "192.0.2.0/-1": "is no network",
		"::ffff:192.0.2.0/120": "is no network", "2001:db8::1/64": `write "2001:db8::/64" for the network, or "2001:db8::1"`,
	} {
		if _, err := checkNetwork(typed); !said(err, want) {
			t.Errorf("%s: error %v, want %q", typed, err, want)
		}
	}
}

func TestCheckRecipient(t *testing.T) {
	for typed, want := range map[string]string{
		"none":                                   "none",
		"http://h.example:8080/base//":           "http://h.example:8080/base",
		"HTTP://H.example/":                      "http://H.example",
		"SMTP:box@h.example":                     "smtp:box@h.example",
		"smtp://mail.example/box@h.example":      "smtp://mail.example/box@h.example",
		"smtp://[::1]:2525/box@localhost":        "smtp://[::1]:2525/box@localhost",
		"smtp:box.x_1-2@h.example":               "smtp:box.x_1-2@h.example",
		"mailto:box@[IPv6:::1]":                  "mailto:box@[IPv6:::1]",
		"smtp:" + strings.Repeat("b", 37) + "@h": "smtp:" + strings.Repeat("b", 37) + "@h",
	} {
		if got, err := checkRecipient(typed, wanted); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", typed, got, err, want)
		}
	}
	for typed, want := range map[string]string{
		"None":                                   "is no recipient",
		"h.example":                              "is no recipient",
		"http:///x":                              "is no recipient",
		"http://h.example/?x":                    "has a query or a fragment",
		"http://h.example/?":                     "has a query or a fragment",
		"http://h.example/#x":                    "has a query or a fragment",
		"https://h.example/":                     "the draft wants http or smtp",
		"ftp://h.example/":                       "is no recipient",
		"http://u:hunter2@h.example/":            "is no recipient",
		"smtp://box@h.example":                   "is no recipient",
		"smtp:/box@h.example":                    "is no recipient",
		"smtp://h.example:0x/box@h":              "is no recipient",
		"smtp://h.example:65536/box@h":           "is no recipient",
		"smtp://h.example":                       "is no mail address",
		"smtp://h.example/box":                   "is no mail address",
		"smtp://h.example/a/box@h":               "a box of at most 37",
		"mailto://h.example/box@h":               "is no recipient",
		"mailto:a@h,b@h":                         "is no mail address",
		"mailto:box@h?subject=x":                 "has a query or a fragment",
		"smtp:box+tag@h.example":                 "without a plus",
		"smtp:b%40x@h.example":                   "a box of at most 37",
		"smtp:b..x@h.example":                    "is no mail address",
		"smtp:box@h example":                     "is no mail address",
		"smtp:" + strings.Repeat("b", 38) + "@h": "a box of at most 37",
	} {
		if _, err := checkRecipient(typed, wanted); !said(err, want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want %q", typed, err, want)
		}
	}
}

// A gateway is never told that it could do without a recipient.
func TestRecipientOfGateway(t *testing.T) {
	const gateway = "[[set]]\nname = \"a\"\n[[set.source]]\nkind = \"sip\"\nmode = \"gateway\"\nupstream = \"https://ingest.example\"\n"
	for keys, want := range map[string]string{
		"": "is missing: the base URL is https", "recipient = \"x\"\n": "is no recipient", "recipient = \"https://bridge.example\"\n": "is https, and the draft wants http or smtp",
		"recipient = \"none\"\n": "must be one: a gateway is told later",
	} {
		_, err := load(t, "base_url = \"https://bridge.example\"\n"+gateway+keys)
		if !said(err, want) || strings.Contains(err.Error(), `or "none"`) || keys != "recipient = \"none\"\n" && !said(err, wantedOfGateway) {
			t.Errorf("%s: error %v, want %q", keys, err, want)
		}
	}
}

func TestCheckMailbox(t *testing.T) {
	for typed, want := range map[string]string{
		"Bridge+x@Example.ORG": "Bridge+x@example.org", "o'neill@h": "o'neill@h", "a@[192.0.2.1]": "a@[192.0.2.1]", "a@[IPv6:2001:db8::1]": "a@[IPv6:2001:db8::1]",
	} {
		if got, err := checkMailbox(typed); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", typed, got, err, want)
		}
	}
	for _, typed := range []string{
		"", "@", "a@", "@h", "a b@h", "a@b@h", ".a@h", "a.@h", "<a@h>", "A <a@h>", "ä@h", "a@h..", "a@-h", "a@[h]", "a@[::1]", "a@[IPv6:192.0.2.1]",
		"a@[192.0.2.1", "a@h\r\nX: y", strings.Repeat("a", 65) + "@h", "a@" + strings.Repeat("h", 256),
	} {
		if got, err := checkMailbox(typed); err == nil {
			t.Errorf("%q is taken for %q", typed, got)
		}
	}
}

func TestRootName(t *testing.T) {
	for name, want := range map[string]bool{
		"mods": true, "_x-1.y": true, mods: true, "{urn:a b}x": false, "données": true, "{http://h/?a#b}名": true, "x·y": true,
		"": false, "1x": false, "-x": false, "a:b": false, "{}x": false, "{u}": false, "{{u}}x": false, "{u}x y": false, "x\n": false, "×": false,
	} {
		if rootName.MatchString(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// The address that mail comes from follows from the base URL, wherever that
// comes from, unless nobody could answer to it.
func TestMailFromBaseURL(t *testing.T) {
	for _, row := range []struct {
		text  string
		flags Flags
		want  string
	}{
		{"", Flags{}, ""},
		{"", Flags{Listen: "[::1]:80"}, ""},
		{"", Flags{Listen: "localhost:0"}, ""},
		{`base_url = "http://LOCALHOST"`, Flags{}, ""},
		{`base_url = "https://192.0.2.1:8443"`, Flags{}, ""},
		{`base_url = "https://[2001:db8::1]"`, Flags{}, ""},
		{`base_url = "https://b\u00fccher.example"`, Flags{}, ""},
		{`base_url = "https://a_b.example"`, Flags{}, ""},
		{`base_url = "http://intranet"`, Flags{}, "bridge@intranet"},
		{`base_url = "https://A.example:8443/x"`, Flags{}, "bridge@a.example"},
		{`base_url = "https://a.example/"`, Flags{BaseURL: "http://b.example"}, "bridge@b.example"},
		{"[mail]\nfrom = \"Box@C.example\"", Flags{BaseURL: "http://b.example"}, "Box@c.example"},
	} {
		c, err := LoadWith(write(t, t.TempDir(), "bridge.toml", row.text), row.flags)
		if err != nil || c.Mail.From != row.want {
			t.Errorf("%q, %+v: %+v, %v, want %s", row.text, row.flags, c, err, row.want)
		}
		if row.text == "" {
			if c, err = FromArguments(row.flags, nil); err != nil || c.Mail.From != row.want {
				t.Errorf("%+v: %+v, %v, want %s", row.flags, c, err, row.want)
			}
		}
	}
	if err := quick.Check(func(ip [16]byte) bool {
		a := netip.AddrFrom16(ip)
		return fromHost(a.String()) == "" && fromHost(netip.AddrFrom4([4]byte(ip[:4])).String()) == ""
	}, nil); err != nil {
		t.Error(err)
	}
	long := strings.Repeat("a", 63)
	for typed, want := range map[string]string{
		"Box@C.Example": "", "a.b+c@localhost": "", "a@" + long + ".example": "",
		"box@[192.0.2.1]": "has no domain name behind the @", "box@[IPv6:::1]": "has no domain name", "box@192.0.2.1": "has no domain name", "a@h.": "is no mail address",
		"a@a_b.example": "has no domain name", "a@a..b": "has no domain name", "a@a-.b": "has no domain name", "a@" + long + "a.example": "has no domain name",
		"a@" + strings.Repeat(long+".", 3) + strings.Repeat("e", 61): "has no domain name", "box": "is no mail address",
	} {
		if _, err := checkFrom(typed); !said(err, want) {
			t.Errorf("%s: error %v, want %q", typed, err, want)
		}
	}
	if _, err := load(t, "[mail]\nfrom = \"bridge@[192.0.2.1]\"\n"); !said(err, `:2: mail: from: "bridge@[192.0.2.1]" has no domain name behind the @, and mail servers would not take it; write it like "bridge@example.org"`) {
		t.Errorf("error %v", err)
	}
}

// A mailbox to which no mail could be let in is none.
func TestMailboxForNobody(t *testing.T) {
	t.Setenv("BRIDGE_TEST_SECRET", "0123456789_abc-DEF")
	const (
		target  = "[[set.submit]]\nurl = \"https://archive.example\"\n"
		formats = "formats = { r = \"urn:r\" }\n"
		library = "mode = \"library\"\n" + formats
		review  = "mode = \"review\"\n" + formats
		gateway = "mode = \"gateway\"\nupstream = \"https://ingest.example\"\n"
		basic   = "access = \"basic\"\naccess_user = \"a\"\naccess_password = \"${BRIDGE_TEST_SECRET}\"\n"
		token   = "access = \"token\"\naccess_token = \"${BRIDGE_TEST_SECRET}\"\n"
		decides = `could take no mail: mode = "%s" decides here, and without a [[set.submit]] there is nobody who could notify the set; leave mailbox and smtp_listen out`
		locked  = `could take no mail: access = "basic" wants a password, and mail has none; write access = "token" or "addresses", or leave mailbox and smtp_listen out`
	)
	for _, row := range []struct{ source, target, want string }{
		{"", "", ""}, {token, "", ""}, {"access = \"addresses\"\naccess_addresses = [\"192.0.2.1\"]\n", "", ""},
		{basic, "", locked}, {basic, target, ""}, {gateway, "", ""}, {gateway + basic, "", ""},
		{library, "", fmt.Sprintf(decides, "library")}, {library + basic, "", fmt.Sprintf(decides, "library")}, {library, target, ""}, {library + basic, target, ""},
		{review, "", fmt.Sprintf(decides, "review")}, {review, target, ""},
	} {
		_, err := load(t, "[[set]]\nname = \"a\"\n[[set.source]]\nkind = \"sip\"\nsmtp_listen = \":25\"\nmailbox = \"a@b.example\"\n"+row.source+row.target)
		want := row.want
		if want != "" {
			want = `:6: set "a": source 1: mailbox: ` + want
		}
		if !said(err, want) {
			t.Errorf("%s%s: error %v, want %q", row.source, row.target, err, want)
		}
	}
}

// A set may submit without a Source of its own, and a flag decides whether it
// must say where answers go.
func TestSubmitWithoutSources(t *testing.T) {
	path := write(t, t.TempDir(), "bridge.toml", "[[set]]\nname = \"a\"\n[[set.submit]]\nurl = \"https://archive.example/\"\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults[Target]()
	want.URL = "https://archive.example/"
	if !reflect.DeepEqual(c.Sets[0].Submit, []Target{want}) || c.Sets[0].Sources != nil {
		t.Errorf("set %+v", c.Sets[0])
	}
	if _, err = LoadWith(path, Flags{BaseURL: "https://b.example"}); !said(err, path+`:3: set "a": submit 1: recipient: is missing: the base URL is https`) {
		t.Errorf("error %v", err)
	}
}

func TestSIPOnTheCommandLine(t *testing.T) {
	for argument, want := range map[string]struct{ set, url, record string }{
		"sip:":                    {"main", "/sip/main", ""},
		"campus=sip:":             {"campus", "/sip/campus", ""},
		"campus=sip:/sip/campus":  {"campus", "/sip/campus", ""},
		"campus=sip:" + recordURL: {"campus", "/sip/campus", recordURL},
	} {
		wantSource := defaultSIPSource(want.set)
		wantSource.URL, wantSource.SIP.RecordURL = want.url, want.record
		set, s, err := ParseSource(argument)
		if err != nil || set != want.set || !reflect.DeepEqual(s, wantSource) {
			t.Errorf("%s: %q %+v, %v", argument, set, s, err)
		}
	}
	for argument, want := range map[string]string{
		"sip:http://127.0.0.1:9/{x}":                           "has {assigned-identifier} 0 times",
		"sip:http://h.example/records/":                        "record_url: has {assigned-identifier} 0 times; write it once, like ",
		"sip:feed.atom":                                        "has {assigned-identifier} 0 times",
		"sip:/sip/other":                                       "has {assigned-identifier} 0 times",
		"sip:records/{assigned-identifier}":                    `"records/" is no URL of a web server`,
		"sip:http://u:hunter2@h.example/{assigned-identifier}": "holds a user",
		"sip:https://{assigned-identifier}.example/":           "stands in the host",
	} {
		if _, _, err := ParseSource(argument); !said(err, want) || !strings.HasPrefix(err.Error(), "source "+argument+": ") {
			t.Errorf("%s: error %v, want %q", argument, err, want)
		}
	}
	c, err := FromArguments(Flags{}, []string{"sip:" + recordURL, "atompmh:http://a.example/"})
	if err != nil || len(c.Sets) != 1 || c.Sets[0].Sources[0].SIP.RecordURL != recordURL {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = FromArguments(Flags{}, []string{"sip:" + recordURL, "sip:", "b=sip:"})
	var all *Error
	if !errors.As(err, &all) || len(all.Problems) != 1 ||
		err.Error() != `source sip:: is the second of kind "sip" in set "main"; one takes everything, so leave this out` {
		t.Errorf("error %v", err)
	}
}
