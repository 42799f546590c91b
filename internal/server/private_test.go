package server_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/server"
)

func TestPrivate(t *testing.T) {
	for text, want := range map[string]string{
		"https://library.example/sip/main/Secret_0-1":                                 "https://library.example/sip/main/***",
		"https://library.example:8443/bridge/SIP/main/secret/more?wsdl":               "https://library.example:8443/bridge/SIP/main/***?***",
		"https://ann:secret@library.example/feed.atom?key=secret&x=1#top":             "https://library.example/feed.atom?***#top",
		"https://library.example/?secret":                                             "https://library.example/?***",
		"https://library.example/feed?":                                               "https://library.example/feed?***",
		`Post "http://h.example/sip/a/secret": EOF`:                                   `Post "http://h.example/sip/a/***": EOF`,
		"ingest at http://h.example/sip/a/secret: HTTP 503; http://b.example/?secret": "ingest at http://h.example/sip/a/***: HTTP 503; http://b.example/?***",
		"see http://h.example/sip/a/secret.":                                          "see http://h.example/sip/a/***.",
		"/sip/main/secret":                                                            "/sip/main/***",
		"smtp://mail.example/box+abcdefghijklmnopqrstuvwxyz@example.org":              "smtp://mail.example/box+***@example.org",
		"smtp:box+0123456789abcdef@example.org, mailto:x+0123456789ABCDEF@a.example":  "smtp:box+***@example.org, mailto:x+***@a.example",
		// What holds no secret stays.
		"https://library.example/sip":                            "https://library.example/sip",
		"https://library.example/sip/main takes it":              "https://library.example/sip/main takes it",
		"http://127.0.0.1:8080/sip/library (description: ?wsdl)": "http://127.0.0.1:8080/sip/library (description: ?wsdl)",
		"https://library.example/records/{assigned-identifier}":  "https://library.example/records/{assigned-identifier}",
		"file:///srv/feeds/feed.atom":                            "file:///srv/feeds/feed.atom",
		"ann+list@example.org wrote what? 1+1@2":                 "ann+list@example.org wrote what? 1+1@2",
		"does not leave room for the token in box+token@domain":  "does not leave room for the token in box+token@domain",
		"": "",
	} {
		if got := server.Redact(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// A secret is in no text that a URL with it is a part of, and what was made
// private once is private.
func TestPrivateHidesItAnywhere(t *testing.T) {
	const secret = "Secret-0123456789_abc"
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.SampledFrom([]string{"library.example", "127.0.0.1:8080", "[::1]:80", "LIBRARY.example"}).Draw(t, "host")
		url := rapid.SampledFrom([]string{"http://", "https://", "HTTPS://"}).Draw(t, "scheme") + host + rapid.SampledFrom([]string{
			"/sip/main/" + secret, "/a/b/sip/main/" + secret, "/feed?key=" + secret, "/feed?a=1&key=" + secret + "&b=2", "?" + secret, "/sip/main/" + secret + "?wsdl",
		}).Draw(t, "place")
		if rapid.Bool().Draw(t, "with a login") {
			url = strings.Replace(url, "://", "://ann:"+secret+"@", 1)
		}
		around := rapid.SampledFrom([]string{"", " ", `"`, "'", "(", ")", "<", ">", ": ", ", ", ".", ";", "; see ", "\n", "\u00e9 "})
		text := around.Draw(t, "before") + url + around.Draw(t, "behind") + url
		got := server.Redact(text)
		if strings.Contains(got, secret) || !strings.Contains(got, host) {
			t.Fatalf("%q becomes %q", text, got)
		}
		if again := server.Redact(got); again != got {
			t.Fatalf("%q becomes %q again", got, again)
		}
		anything := rapid.StringMatching(`(https?://|/sip/|[a-c?@+#.,:* ]|a{16}){0,14}`).Draw(t, "anything")
		if once := server.Redact(anything); server.Redact(once) != once {
			t.Fatalf("%q becomes %q, and then %q", anything, once, server.Redact(once))
		}
	})
}
