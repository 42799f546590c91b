package fetch

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"
)

// What the operator gives for a Source goes to its own scheme, host and port alone: its
// header fields, the authorities of its certificate, and the time it has for an answer.
func TestAccessIsForItsOriginOnly(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string]http.Header{}
	note := func(name string, w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[name+r.URL.Path] = r.Header.Clone()
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
		}
	}
	home := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { note("home", w, r) }))
	t.Cleanup(home.Close)
	// The thieves have another port, one of them with a certificate of the same authority.
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { note("tls", w, r) }))
	t.Cleanup(tls.Close)
	plain, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { note("plain", w, r) })
	roots := x509.NewCertPool()
	roots.AddCert(home.Certificate())
	g := newGuard(t, Options{Reach: Reach{Origin: home.URL, Allowed: []string{"127.0.0.1"}, Roots: roots,
		Header: http.Header{"Authorization": {"Bearer s3cret"}, "X-Api-Key": {"s3cret"}, "User-Agent": {"library"}}}})
	mustGet(t, g.Client(""), home.URL+"/own")
	mustGet(t, g.Client(""), plain.URL+"/direct")
	mustGet(t, g.Client(""), home.URL+"/?to="+url.QueryEscape(plain.URL+"/redirected"))
	mustGet(t, g.Client(""), plain.URL+"/?to="+url.QueryEscape(home.URL+"/back"))
	for _, to := range []string{tls.URL + "/direct", home.URL + "/?to=" + url.QueryEscape(tls.URL+"/redirected")} {
		_, _, err := get(g.Client(""), to)
		if !errors.As(err, new(x509.UnknownAuthorityError)) {
			t.Errorf("%s: %v; want an unknown authority", to, err)
		}
	}
	// Without the authority not even the Source is believed, and the advice says so.
	if _, _, err := get(newGuard(t, Options{Reach: Reach{Origin: home.URL}}).Client(""), home.URL); err == nil || !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Errorf("without ca_file: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for name, want := range map[string]string{"home/own": "s3cret", "home/back": "s3cret", "plain/direct": "", "plain/redirected": "", "plain/": ""} {
		h := got[name]
		if h == nil || h.Get("X-Api-Key") != want || (h.Get("Authorization") == "Bearer s3cret") != (want != "") || (h.Get("User-Agent") == "library") != (want != "") {
			t.Errorf("%s got %v", name, h)
		}
	}
	if len(got) != 6 { // and home/ once more
		t.Errorf("asked: %v", got)
	}
}

// The login of a Source is sent however its name is written.
func TestLoginOfAnInternationalName(t *testing.T) {
	t.Parallel()
	user := ""
	s, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { user, _, _ = r.BasicAuth() })
	g := newGuard(t, Options{Reach: Reach{Origin: named(t, s, "bücher.example"), User: url.UserPassword("jane", "s3cret"), Allowed: []string{"bücher.example"}},
		Network: Network{Resolver: nameServer("127.0.0.1")}})
	for _, host := range []string{"bücher.example", "xn--bcher-kva.example", "BÜCHER.example"} {
		user = ""
		if mustGet(t, g.Client(""), named(t, s, host)); user != "jane" {
			t.Errorf("%s: the server got the user %q", host, user)
		}
	}
}

// A Source's own server is waited for as long as the operator says, others as long as
// for every Source.
func TestHeaderTimeoutOfOrigin(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	slow := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}
	own, _ := serve(t, slow)
	other, _ := serve(t, slow)
	g := newGuard(t, Options{Attempts: 3, Reach: Reach{Origin: own.URL, HeaderTimeout: 20 * time.Millisecond, Allowed: []string{"127.0.0.1"}}})
	var e *Error
	if _, _, err := get(g.Client(""), own.URL); !errors.As(err, &e) || e.Attempts != 1 {
		t.Errorf("the Source's own server: %v; want one attempt", err)
	}
	close(answer)
	mustGet(t, g.Client(""), other.URL)
}
