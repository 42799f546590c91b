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
		Reach: Reach{Origin: a.URL + "/feed", User: url.UserPassword("ann", "secret"), Typed: []string{"127.0.0.1"}},
		Log:   slog.New(slog.NewTextHandler(&log, nil)),
	})
	ann := basic(url.UserPassword("ann", "secret"))
	for _, c := range []struct{ what, url, want string }{
		{"typed, with its user", withUser(t, a.URL, "ann:secret"), ann},
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
	if strings.Count(log.String(), "was not sent") != 4 || strings.Contains(log.String(), "secret") || strings.Contains(log.String(), "token@") {
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
	g := newGuard(t, Options{Reach: Reach{Origin: first.URL, User: url.UserPassword("ann", "secret"), Typed: []string{"127.0.0.1", "localhost"}}})
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

// A login is for the very origin that was typed: not for TLS on the same host,
// nor for another port or a name below.
func TestLoginIsForItsOriginOnly(t *testing.T) {
	g := New(Options{Reach: Reach{Origin: "http://up.example/", User: url.UserPassword("u", "p")}})
	for raw, want := range map[string]bool{
		"http://up.example/": true, "http://UP.example:80/x": true, "https://up.example/": false, "http://up.example:8080/": false,
		"http://sub.up.example/": false, "http://up.example.evil.example/": false, "http://down.example/": false,
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
	g := newGuard(t, Options{Reach: Reach{Origin: s.URL, User: u.User}})
	_, _, broken := get(g.Client(""), Plain(u))
	_, _, refused := get(newGuard(t, Options{}).Client(""), Plain(u))
	for _, err := range []error{broken, refused} {
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "ann") || !strings.Contains(err.Error(), s.URL+"/x") {
			t.Errorf("error %v", err)
		}
	}
}
