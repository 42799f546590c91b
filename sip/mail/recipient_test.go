package mail

import (
	"strings"
	"testing"
)

func TestParseRecipient(t *testing.T) {
	for url, want := range map[string]Recipient{
		"smtp:box@lib.example":                       {"", "box@lib.example"},
		"SMTP:box@LIB.Example":                       {"", "box@lib.example"},
		"mailto:Box+t.k-1@lib.example":               {"", "Box+t.k-1@lib.example"},
		"mailto:box%2Btoken@lib.example":             {"", "box+token@lib.example"},
		"mailto:a%2Fb%3Fc%25@lib.example":            {"", "a/b?c%@lib.example"},
		"mailto:box%40lib.example":                   {"", "box@lib.example"},
		"smtp:box@localhost":                         {"", "box@localhost"},
		"smtp://mx.lib.example/box@lib.example":      {"mx.lib.example", "box@lib.example"},
		"smtp://mx.lib.example:2525/box@lib.example": {"mx.lib.example:2525", "box@lib.example"},
		"smtp://192.0.2.1/box@lib.example":           {"192.0.2.1", "box@lib.example"},
		"smtp://[2001:db8::1]/box@lib.example":       {"2001:db8::1", "box@lib.example"},
		"smtp://[2001:db8::1]:25/box@lib.example":    {"[2001:db8::1]:25", "box@lib.example"},
		"smtp://mx.lib.example/a/b%2bt@lib.example":  {"mx.lib.example", "a/b+t@lib.example"},
		"smtp:box@xn--bcher-kva.example":             {"", "box@xn--bcher-kva.example"},
	} {
		if got, err := ParseRecipient(url); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", url, got, err, want)
		}
	}

	long := strings.Repeat("a", 65)
	for url, reason := range map[string]string{
		"":                                                  "scheme",
		"box@lib.example":                                   "scheme",
		"http://lib.example/box":                            "scheme",
		"smtps://mx.example/box@x":                          "scheme",
		"mailto:":                                           "expected smtp://host/box@domain",
		"smtp:":                                             "expected smtp://host/box@domain",
		"smtp:/box@lib.example":                             "expected smtp://host/box@domain",
		"smtp:///box@lib.example":                           "expected smtp://host/box@domain",
		"smtp://box@lib.example":                            "smtp:box@domain",
		"smtp://u:p@mx.example/box@x":                       "expected smtp://host/box@domain",
		"mailto://mx.example/box@x":                         "expected smtp://host/box@domain",
		"smtp://mx.example":                                 "is no mail address",
		"smtp://mx.example/":                                "is no mail address",
		"smtp://mx.example/box":                             "is no mail address",
		"smtp://mx.example:0/box@x":                         "is no port",
		"smtp://mx.example:65536/box@x":                     "is no port",
		"smtp://mx.example:/box@x\n":                        "control character",
		"smtp://m_x.example/box@x":                          "no host name",
		"smtp://-mx.example/box@x":                          "no host name",
		"smtp://[fe80::1%25eth0]/box@x":                     "no host name",
		"smtp://b\u00fccher.example/b@x":                    "no host name",
		"mailto:box@x.example?subject=a":                    "header fields",
		"mailto:box@x.example?":                             "header fields",
		"smtp:box@x.example#":                               "fragments",
		"mailto:a@x.example,b@x.example":                    "no domain",
		"mailto:a@x.example%0D%0ABcc:b@x":                   "no domain",
		"mailto:a%0d%0aRCPT@x.example":                      "local part",
		"mailto:a%00@x.example":                             "local part",
		"mailto:a%20b@x.example":                            "local part",
		"mailto:%22a%20b%22@x.example":                      "local part",
		"mailto:a%3Eb@x.example":                            "local part",
		"mailto:b%C3%B6x@x.example":                         "local part",
		"mailto:.a@x.example":                               "local part",
		"mailto:a..b@x.example":                             "local part",
		"mailto:@x.example":                                 "local part",
		"mailto:" + long + "@x.example":                     "local part",
		"mailto:a%2@x.example":                              "invalid URL escape",
		"mailto:a@b\u00fccher.example":                      "xn--",
		"mailto:a@b%C3%BCcher.example":                      "xn--",
		"mailto:a@[192.0.2.1]":                              "name the server",
		"mailto:a@192.0.2.1":                                "name the server",
		"mailto:a@":                                         "no domain",
		"mailto:a@b@x.example":                              "no domain",
		"mailto:a@x.example.":                               "no domain",
		"mailto:a@-x.example":                               "no domain",
		"mailto:a@x..example":                               "no domain",
		"mailto:a@" + strings.Repeat("b.", 130) + "example": "no domain",
	} {
		got, err := ParseRecipient(url)
		switch {
		case err == nil:
			t.Errorf("%q is taken as %+v", url, got)
		case !strings.Contains(err.Error(), reason):
			t.Errorf("%q: %v, want a reason with %q", url, err, reason)
		case !Permanent(err) || got != (Recipient{}) || strings.ContainsAny(err.Error(), "\r\n\x00"):
			t.Errorf("%q: %+v, permanent: %v, %q", url, got, Permanent(err), err)
		}
	}
}
