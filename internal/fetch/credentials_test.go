package fetch

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	for raw, want := range map[string]string{
		"http://u:secret@h.example/a?b=c#d": "http://h.example/a?b=c",
		"http://token@h.example/":           "http://h.example/",
		"https://h.example/a%2Fb":           "https://h.example/a%2Fb",
		"urn:x:y":                           "urn:x:y",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := Plain(u); got != want {
			t.Errorf("Plain(%s) = %s, want %s", raw, got, want)
		}
	}
}

// withUser adds userinfo to a URL.
func withUser(t *testing.T, raw, user string) string {
	t.Helper()
	return strings.Replace(raw, "://", "://"+user+"@", 1)
}

func TestCredentials(t *testing.T) {
	var got string
	h := func(w http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }
	a, _ := serve(t, h)
	b, _ := serve(t, h)
	var log bytes.Buffer
	g := newGuard(t, Options{
		Trusted: []string{withUser(t, a.URL, "ann:secret") + "/feed", withUser(t, a.URL, "bob:other"), b.URL, "ftp://x:y@127.0.0.1/"},
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
	})
	ann, bob := basic(url.UserPassword("ann", "secret")), basic(url.UserPassword("bob", "other"))
	for _, c := range []struct{ what, url, want string }{
		{"typed, with its user", withUser(t, a.URL, "ann:secret"), ann},
		{"the other user of the host", withUser(t, a.URL, "bob:other"), bob},
		{"a link on the same host", a.URL + "/archive/3", ann},
		{"another port", b.URL, ""},
		{"another user out of a document", withUser(t, a.URL, "eve:x"), ann},
		{"a user for another host", withUser(t, b.URL, "ann:secret"), ""},
		{"a bare token", withUser(t, b.URL, "token"), ""},
	} {
		got = "nothing"
		mustGet(t, g.Client(""), c.url)
		if got != c.want {
			t.Errorf("%s: sent %q, want %q", c.what, got, c.want)
		}
	}
	if strings.Count(log.String(), "was not sent") != 3 || strings.Contains(log.String(), "secret") || strings.Contains(log.String(), "token@") {
		t.Errorf("log %s", log.String())
	}
}

// What the caller sets for a request stays, and goes nowhere else.
func TestCredentialsOnRedirect(t *testing.T) {
	got := map[string]http.Header{}
	record := func(_ http.ResponseWriter, r *http.Request) { got[r.Host] = r.Header.Clone() }
	other, _ := serve(t, record)
	var target string
	first, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/start" {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		record(w, r)
	})
	g := newGuard(t, Options{Trusted: []string{"127.0.0.1", "localhost", withUser(t, first.URL, "ann:secret")}})
	host := func(raw string) string { u, _ := url.Parse(raw); return u.Host }
	for _, c := range []struct {
		what, target string
		want         bool
	}{
		{"same host, another path", first.URL + "/next", true},
		{"relative", "/next", true},
		{"another port", other.URL + "/next", false},
		{"another name", named(t, other, "localhost") + "/next", false},
		{"a user name in Location", withUser(t, other.URL, "ann:secret") + "/next", false},
	} {
		for _, own := range []string{"", "Bearer of-the-caller"} {
			clear(got)
			target = c.target
			req, _ := http.NewRequest("GET", first.URL+"/start?token=1", nil)
			if own != "" {
				req.Header.Set("Authorization", own)
			}
			req.Header.Set("Cookie", "a=b")
			resp, err := g.Client("").Do(req)
			if err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			resp.Body.Close()
			h := got[host(resp.Request.URL.String())]
			if h == nil {
				t.Fatalf("%s: ended at %s", c.what, resp.Request.URL)
			}
			want := ""
			switch {
			case c.want && own != "":
				want = own
			case c.want:
				want = basic(url.UserPassword("ann", "secret"))
			}
			if h.Get("Authorization") != want || (h.Get("Cookie") != "") != c.want || h.Get("Referer") != "" {
				t.Errorf("%s: Authorization %q (want %q), Cookie %q, Referer %q", c.what, h.Get("Authorization"), want, h.Get("Cookie"), h.Get("Referer"))
			}
			if resp.Request.URL.User != nil {
				t.Errorf("%s: the answer's URL is %s", c.what, resp.Request.URL)
			}
		}
	}
}

func TestSameOwner(t *testing.T) {
	for _, c := range []struct {
		given, to string
		want      bool
	}{
		{"http://a.example/", "http://A.example:80/x", true},
		{"http://a.example/", "https://a.example/", true},
		{"http://[::1]/", "https://[::1]/", true},
		{"https://a.example/", "http://a.example/", false},
		{"https://a.example/", "https://a.example:8443/", false},
		{"http://a.example:8080/", "https://a.example/", false},
		{"https://a.example/", "https://sub.a.example/", false},
		{"https://a.example/", "https://a.example.evil.example/", false},
	} {
		given, _ := url.Parse(c.given)
		to, _ := url.Parse(c.to)
		if got := sameOwner(given, to); got != c.want {
			t.Errorf("credentials for %s to %s: %t", c.given, c.to, got)
		}
	}
}

// The typed credentials of http are sent over https, never the other way.
func TestCredentialsOverTLS(t *testing.T) {
	g := New(Options{Trusted: []string{"http://u:p@up.example/", "https://u:p@down.example/"}})
	for raw, want := range map[string]bool{
		"http://up.example/": true, "https://up.example/": true, "https://up.example:444/": false,
		"https://down.example/": true, "http://down.example/": false,
	} {
		r := g.prepare(httptest.NewRequest("GET", raw, nil))
		if got := r.Header.Get("Authorization") != ""; got != want {
			t.Errorf("%s: credentials sent: %t", raw, got)
		}
	}
}

func TestNoSecretsInErrors(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.Write([]byte("short"))
	})
	typed := withUser(t, s.URL, "ann:secret") + "/x"
	u, _ := url.Parse(typed)
	g := newGuard(t, Options{Trusted: []string{typed}})
	_, _, broken := get(g.Client(""), Plain(u))
	_, _, refused := get(newGuard(t, Options{}).Client(""), Plain(u))
	for _, err := range []error{broken, refused} {
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "ann") || !strings.Contains(err.Error(), s.URL+"/x") {
			t.Errorf("error %v", err)
		}
	}
}
