package config

import (
	"net/netip"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

// said compares an error with what it must contain; "" is none.
func said(err error, want string) bool {
	return err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want)
}

// What the forms accept, and how it is kept; and what is wrong with others. No secret is
// ever shown.
func TestForms(t *testing.T) {
	long := strings.Repeat("a", 63)
	for name, rows := range map[string]struct{ kept, wrong map[string]string }{
		"base": {
			kept: map[string]string{
				"HTTPS://Bridge.Example:8443/Pmh//":     "HTTPS://Bridge.Example:8443/Pmh",
				"https://[::1]:80/":                     "https://[::1]:80",
				"https://b\u00fccher.example":           "https://xn--bcher-kva.example",
				"https://B%C3%BCcher.example:8443/":     "https://xn--bcher-kva.example:8443",
				"https://h.example/br\u00fccke/%7e/":    "https://h.example/br%C3%BCcke/~",
				"https://[2001:db8::1]:80/br\u00fccke":  "https://[2001:db8::1]:80/br%C3%BCcke",
				"https://h.example/br%C3%BCcke/a%20b/c": "https://h.example/br%C3%BCcke/a%20b/c",
				"https://h.example/my path/a\"b":        "https://h.example/my%20path/a%22b",
			},
			wrong: map[string]string{
				"https://b\u00fc_cher.example": "has no form in ASCII",
				"https://u:hunter2@b\u00fc/":   "holds a user",
				"https:///x":                   "is not absolute",
				"https://h.example:99999":      "has a port that no server has",
				"https://h.example/a/../b":     "has . or .. in its path",
				"https://h.example/a ":         "ends with a space",
			},
		},
		"record": {
			kept: map[string]string{
				recordURL: recordURL,
				"HTTP://h.example:8080/{assigned-identifier}/mods.xml":      "HTTP://h.example:8080/{assigned-identifier}/mods.xml",
				"https://h.example/get?id={assigned-identifier}&as=xml":     "https://h.example/get?id={assigned-identifier}&as=xml",
				"https://h.example/{assigned-identifier}{id}":               "https://h.example/{assigned-identifier}{id}",
				"https://h.example/a?b={assigned-identifier}&c=https://x/#": "https://h.example/a?b={assigned-identifier}&c=https://x/#",
			},
			wrong: map[string]string{
				"https://h.example/a/b/":                                "has {assigned-identifier} 0 times",
				"https://h/{assigned-identifier}/{assigned-identifier}": "2 times; write it once",
				"https://h.example/my records/{assigned-identifier}":    "has a space in it; write %20",
				"https://h.example{assigned-identifier}":                "is in the host",
				"https://h.example:{assigned-identifier}/":              "is in the host",
				"https://{assigned-identifier}/":                        "is in the host",
				"https://{assigned-identifier}@h.example/":              "is in the host",
				"https://u{assigned-identifier}@h.example/":             "is in the host",
				"https://u:hunter2@h.example/{assigned-identifier}":     "holds a user",
				"https://h.example/#{assigned-identifier}":              "has a fragment",
				"https://h.example/{assigned-identifier}#x":             "has a fragment",
				"{assigned-identifier}":                                 "not a URL of a web server",
				"/records/{assigned-identifier}":                        "not a URL of a web server",
				"ftp://h.example/{assigned-identifier}":                 "not a URL of a web server",
				"https://h.example?id={assigned-identifier}":            "is in the host",
				"https://h.example/%zz/{assigned-identifier}":           "is not a URL",
				"https://h.example/{assigned-identifier}/%zz":           "is not a URL",
				"https://h.example/{Assigned-Identifier}":               "0 times",
				"https://h.example/\n{assigned-identifier}":             "is not a URL",
				"https://h.example/%7Bassigned-identifier%7D":           "0 times",
			},
		},
		"network": {
			kept: map[string]string{"192.0.2.7": "192.0.2.7/32", "0.0.0.0/0": "0.0.0.0/0", "2001:DB8::/32": "2001:db8::/32", "::1": "::1/128"},
			wrong: map[string]string{
				"": "is not a network", "localhost": "is not a network", "192.0.2": "is not a network", "192.0.2.0/-1": "is not a network", "127.0.0.1:8080": "is not a network",
				"::ffff:127.0.0.1": "is not a network", "::ffff:192.0.2.0/120": "is not a network", "fe80::1%eth0": "is not a network",
				"10.0.0.1/8": `is an address with the length of a network; write "10.0.0.0/8" for the network, or "10.0.0.1"`, "2001:db8::1/64": `write "2001:db8::/64" for the network, or "2001:db8::1"`,
			},
		},
		"recipient": {
			kept: map[string]string{
				"none":                                   "none",
				"http://h.example:8080/base//":           "http://h.example:8080/base",
				"HTTP://H.example/":                      "http://H.example",
				"SMTP:box@h.example":                     "smtp:box@h.example",
				"smtp://mail.example/box@h.example":      "smtp://mail.example/box@h.example",
				"smtp://[::1]:2525/box@localhost":        "smtp://[::1]:2525/box@localhost",
				"smtp://192.0.2.1/box@h.example":         "smtp://192.0.2.1/box@h.example",
				"smtp://Mail.example/box@h.example":      "smtp://Mail.example/box@h.example",
				"smtp:box.x_1-2@h.example":               "smtp:box.x_1-2@h.example",
				"smtp:" + strings.Repeat("b", 37) + "@h": "smtp:" + strings.Repeat("b", 37) + "@h",
			},
			wrong: map[string]string{
				"None":                                   "is not a recipient",
				"h.example":                              "is not a recipient",
				"http:///x":                              "is not a recipient",
				"http://h.example/?x":                    "has a query or a fragment",
				"http://h.example/?":                     "has a query or a fragment",
				"http://h.example/#x":                    "has a query or a fragment",
				"https://h.example/":                     "SIP takes http or smtp",
				"ftp://h.example/":                       "is not a recipient",
				"http://u:hunter2@h.example/":            "is not a recipient",
				"smtp://box@h.example":                   "is not a recipient",
				"smtp:/box@h.example":                    "is not a recipient",
				"smtp://h.example:0x/box@h":              "is not a recipient",
				"smtp://h.example:65536/box@h":           "is not a recipient",
				"smtp://h.example":                       "is not a mail address",
				"smtp://h.example/box":                   "is not a mail address",
				"smtp://h.example/a/box@h":               "a box of at most 37",
				"mailto://h.example/box@h":               "is not a recipient",
				"mailto:a@h,b@h":                         "is not a mail address",
				"mailto:box@h?subject=x":                 "has a query or a fragment",
				"smtp:box+tag@h.example":                 "without a plus",
				"smtp:b%40x@h.example":                   "a box of at most 37",
				"smtp:b..x@h.example":                    "is not a mail address",
				"smtp:box@h example":                     "is not a mail address",
				"smtp:box@[192.0.2.1]":                   "has no domain name behind the @",
				"mailto:box@[IPv6:::1]":                  "has no domain name behind the @",
				"smtp://h.example/box@192.0.2.1":         "has no domain name behind the @",
				"smtp://a_b/box@h.example":               "is no host name and no address",
				"smtp://a..b:25/box@h.example":           "is no host name and no address",
				"smtp://bücher.example/box@h.example":    "is no host name and no address",
				"smtp://[fe80::1%25eth0]/box@h.example":  "is no host name and no address",
				"mailto:box@a_b.example":                 "has no domain name behind the @",
				"smtp:" + strings.Repeat("b", 38) + "@h": "a box of at most 37",
			},
		},
		"mailbox": {
			kept: map[string]string{
				"Bridge+x@Example.ORG": "Bridge+x@example.org", "o'neill@h": "o'neill@h", "a@[192.0.2.1]": "a@[192.0.2.1]", "a@[IPv6:2001:db8::1]": "a@[IPv6:2001:db8::1]",
			},
			wrong: map[string]string{
				"": "is not a mail address", "@": "is not a mail address", "a@": "is not a mail address", "@h": "is not a mail address", "a b@h": "is not a mail address",
				"a@b@h": "is not a mail address", ".a@h": "is not a mail address", "a.@h": "is not a mail address", "<a@h>": "is not a mail address", "A <a@h>": "is not a mail address",
				"ä@h": "is not a mail address", "a@h..": "is not a mail address", "a@-h": "is not a mail address", "a@[h]": "is not a mail address", "a@[::1]": "is not a mail address",
				"a@[IPv6:192.0.2.1]": "is not a mail address", "a@[192.0.2.1": "is not a mail address", "a@h\r\nX: y": "is not a mail address",
				strings.Repeat("a", 65) + "@h": "is not a mail address", "a@" + strings.Repeat("h", 256): "is not a mail address",
			},
		},
		"from": {
			kept: map[string]string{"Box@C.Example": "Box@c.example", "a.b+c@localhost": "a.b+c@localhost", "a@" + long + ".example": "a@" + long + ".example"},
			wrong: map[string]string{
				"box@[192.0.2.1]": "has no domain name behind the @", "box@[IPv6:::1]": "has no domain name", "box@192.0.2.1": "has no domain name", "a@h.": "is not a mail address",
				"a@a_b.example": "has no domain name", "a@a..b": "has no domain name", "a@a-.b": "has no domain name", "a@" + long + "a.example": "has no domain name",
				"a@" + strings.Repeat(long+".", 3) + strings.Repeat("e", 61): "has no domain name", "box": "is not a mail address",
			},
		},
		"contact": {kept: map[string]string{"ops@example.org": "ops@example.org"}, wrong: map[string]string{"a (b)": "has a bracket", "a\nb": "a line break", "a\x00b": "control character", "a\x7fb": "control character"}},
		"server":  {kept: map[string]string{"Relay.example:587": "Relay.example:587"}, wrong: map[string]string{"smtp.example": "is not a server", ":25": "is not a server", "h:0": "is not a server", "h:x": "is not a server"}},
		"host": {
			kept:  map[string]string{"CDN.example": "cdn.example", "10.0.0.7:8080": "10.0.0.7:8080", "[::1]": "::1", "[::1]:80": "[::1]:80", "B\u00fccher.example": "xn--bcher-kva.example", "b\u00fccher.example:8080": "xn--bcher-kva.example:8080"},
			wrong: map[string]string{"http://a.example/": "is not a host", "a.example:0": "is not a host", "a.example:70000": "is not a host", "a.example:http": "is not a host", ":80": "is not a host", "b\u00fc cher": "is not a host", "b\u00fc:0": "is not a host"},
		},
	} {
		accept := form(name)
		if name == "network" { // the only form that its type has
			accept = checkNetwork
		}
		for typed, want := range rows.kept {
			if got, err := accept(typed); err != nil || got != want {
				t.Errorf("%s: %q: %q, %v, want %q", name, typed, got, err, want)
			}
		}
		for typed, want := range rows.wrong {
			if got, err := accept(typed); !said(err, want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %q: %q, error %v, want %q", name, typed, got, err, want)
			}
		}
	}
}

func TestRootName(t *testing.T) {
	for name, want := range map[string]bool{
		"mods": true, "_x-1.y": true, mods: true, "{urn:a b}x": false, "données": true, "{http://h/?a#b}名": true, "x·y": true,
		"": false, "1x": false, "-x": false, "a:b": false, "{}x": false, "{u}": false, "{{u}}x": false, "{u}x y": false, "x\n": false, "×": false,
	} {
		if rootName().MatchString(name) != want {
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
		{`base_url = "https://b\u00fccher.example"`, Flags{}, "bridge@xn--bcher-kva.example"},
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
	if _, err := load(t, "[mail]\nfrom = \"bridge@[192.0.2.1]\"\n"); !said(err, `:2: mail: from: "bridge@[192.0.2.1]" has no domain name behind the @, and mail servers would not take it; write it like "bridge@example.org"`) {
		t.Errorf("error %v", err)
	}
}

// Each condition has its threshold, or the default one of its kind, and anything else is
// refused with what may be written.
func TestConditions(t *testing.T) {
	c := func(kind string) Condition { return Condition{Kind: kind, For: 24 * time.Hour, Count: 1, Share: 10} }
	for text, want := range map[string]Condition{
		"failing": c(OnFailing), "failing:90m": {OnFailing, 90 * time.Minute, 1, 10}, "failing:7d": {OnFailing, 7 * 24 * time.Hour, 1, 10},
		"held": c(OnHeld), "gap": c(OnGap), "log": c(OnLog), "quarantine": c(OnQuarantine), "review": c(OnReview), "disk": c(OnDisk),
		"quarantine:100": {OnQuarantine, 24 * time.Hour, 100, 10}, "review:2": {OnReview, 24 * time.Hour, 2, 10}, "disk:2.5%": {OnDisk, 24 * time.Hour, 1, 2.5},
	} {
		if got, err := parseCondition(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "fails", "failing:", "failing:soon", "failing:-24h", "held:1", "log:", "quarantine:0", "review:many", "disk:0%", "disk:100%", "disk:x"} {
		if _, err := parseCondition(text); !said(err, " is not a condition; write ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
