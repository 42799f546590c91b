package websub_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // WebSub 7.1 has it
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pmh-bridge/bridge/internal/websub"
)

// TestDiscover: hubs and topic are found in headers first, then in the head of a document of
// each kind (WebSub 4), and nowhere else.
func TestDiscover(t *testing.T) {
	t.Parallel()
	const hub = "https://hub.example/"
	for name, c := range map[string]struct {
		links []string
		body  string
		hubs  []string
		self  string // "" is the URL itself
	}{
		"header": {[]string{`<https://hub.example/>; rel="hub", <https://topic.example/feed>; rel="self"`}, `<feed><link rel="hub" href="https://other.example/"/></feed>`, []string{hub}, "https://topic.example/feed"},
		"headers, with parameters": {[]string{`</x>; title="a, <b>; rel=hub"; rel=alternate`, `<https://hub.example/>;rel=hub`, `<https://second.example/>; type="a;b"; rel="preload HUB"`}, "",
			[]string{hub, "https://second.example/"}, ""},
		"Atom":                     {nil, `<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><title/><link rel="hub" href="https://hub.example/"/><link rel="self" href="/feed"/><entry><link rel="hub" href="https://no.example/"/></entry></feed>`, []string{hub}, "/feed"},
		"RSS":                      {nil, `<rss xmlns:a="http://www.w3.org/2005/Atom"><channel><image><url>https://i.example/</url></image><link>https://x.example/</link><a:link rel="hub" href="https://hub.example/"/><item><link rel="hub" href="https://no.example/"/></item></channel></rss>`, []string{hub}, ""},
		"ResourceSync":             {nil, `<urlset><rs:ln rel="hub" href="https://hub.example/"/><rs:md/><url><rs:ln rel="hub" href="https://no.example/"/></url></urlset>`, []string{hub}, ""},
		"HTML":                     {nil, `<!doctype html><title>a</title><LINK rel=hub href=https://hub.example/><body><link rel=hub href=https://no.example/>`, []string{hub}, ""},
		"JSON Feed":                {nil, "\ufeff" + `{"version":"https://jsonfeed.org/version/1.1","title":7,"items":[{"hubs":[{"type":"WebSub","url":"https://no.example/"}]}],"hubs":[{"type":"rssCloud","url":"https://no.example/"},{"type":"WebSub","url":"https://hub.example/"}],"feed_url":"/feed"}`, []string{hub}, "/feed"},
		"JSON that is cut off":     {nil, `{"feed_url":"/feed","hubs":[{"type":"websub","url":"https://hub.example/"}],"items":[{`, []string{hub}, "/feed"},
		"other JSON":               {nil, `{"hubs":"none","feed_url":[1]}`, nil, ""},
		"the self of the header":   {[]string{`<https://topic.example/feed>; rel="self"`}, `<feed><link rel="hub" href="https://hub.example/"/><link rel="self" href="/no"/></feed>`, []string{hub}, "https://topic.example/feed"},
		"none":                     {nil, `<feed/>`, nil, ""},
		"no document":              {nil, "\x00\xff<<<", nil, ""},
		"no hub that can be asked": {[]string{`<ftp://hub.example/>; rel=hub, <javascript:x>; rel=hub, <https://u:p@hub.example/>; rel=hub, <https://>; rel=hub, <`, `<a`, `<b>; rel="hub`}, "", nil, ""},
		"too long":                 {[]string{`<https://hub.example/?` + strings.Repeat("a", 9000) + `>; rel="hub"`}, `<feed><link rel="hub" href="https://hub.example/"/><link rel="self" href="/` + strings.Repeat("a", 9000) + `"/></feed>`, []string{hub}, ""},
		"many":                     {nil, "<feed>" + strings.Repeat(`<link rel="hub" href="https://hub.example/"/>`, 9) + `<link rel="hub" href="https://2.example/"/><link rel="hub" href="https://3.example/"/><link rel="hub" href="https://4.example/"/></feed>`, []string{hub, "https://2.example/", "https://3.example/"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, l := range c.links {
					w.Header().Add("Link", l)
				}
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			got, err := websub.Discover(t.Context(), server.Client(), server.URL+"/asked")
			want := websub.Links{Hubs: c.hubs, Self: c.self}
			switch {
			case c.self == "":
				want.Self = server.URL + "/asked"
			case strings.HasPrefix(c.self, "/"):
				want.Self = server.URL + c.self
			}
			if name == "no hub that can be asked" { // the last is one, of our own
				want.Hubs = []string{server.URL + "/b"}
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// TestAsk: what hubs are sent, which redirects are followed, and how a refusal is told.
func TestAsk(t *testing.T) {
	t.Parallel()
	var got url.Values
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		got = r.PostForm
		w.WriteHeader(http.StatusAccepted)
	})
	mux.Handle("/moved", http.RedirectHandler("/ok", http.StatusPermanentRedirect))
	mux.Handle("/elsewhere", http.RedirectHandler("/ok", http.StatusFound))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusTemporaryRedirect))
	mux.HandleFunc("/no", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		http.Error(w, " the topic\n is not ours ", http.StatusNotFound)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	r := &websub.Request{Mode: websub.Subscribe, Topic: "https://t.example/?a=1&b", Callback: "https://c.example/x", Secret: "s", Lease: time.Hour}
	for _, path := range []string{"/ok", "/moved"} {
		got = nil
		if err := websub.Ask(t.Context(), server.Client(), server.URL+path, r); err != nil {
			t.Fatal(err)
		}
		want := url.Values{"hub.mode": {"subscribe"}, "hub.topic": {r.Topic}, "hub.callback": {r.Callback}, "hub.secret": {"s"}, "hub.lease_seconds": {"3600"}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	r.Mode = websub.Unsubscribe
	if err := websub.Ask(t.Context(), server.Client(), server.URL+"/ok", r); err != nil || got.Has("hub.secret") {
		t.Errorf("%v, %v", got, err)
	}
	if err := websub.Publish(t.Context(), server.Client(), server.URL+"/ok", r.Topic); err != nil || got.Get("hub.mode") != "publish" || got.Get("hub.url") != r.Topic {
		t.Errorf("%v, %v", got, err)
	}
	var refused *websub.StatusError
	err := websub.Publish(t.Context(), server.Client(), server.URL+"/no", r.Topic)
	if !errors.As(err, &refused) || refused.Status != 404 || refused.RetryAfter != 2*time.Minute || !strings.HasSuffix(err.Error(), "answers 404: the topic is not ours") {
		t.Errorf("%v", err)
	}
	for path, status := range map[string]int{"/elsewhere": 302, "/loop": 307} {
		if err := websub.Publish(t.Context(), server.Client(), server.URL+path, r.Topic); !errors.As(err, &refused) || refused.Status != status {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := websub.Publish(context.Background(), server.Client(), "://", r.Topic); err == nil {
		t.Error("a hub without a URL is asked")
	}
}

// TestReadVerification: what counts as a question of a hub (WebSub 5.2, 5.3).
func TestReadVerification(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]*websub.Verification{
		"hub.mode=subscribe&hub.topic=t&hub.challenge=c&hub.lease_seconds=90":         {Mode: "subscribe", Topic: "t", Challenge: "c", Lease: 90 * time.Second},
		"hub.mode=subscribe&hub.topic=t&hub.challenge=c":                              {Mode: "subscribe", Topic: "t", Challenge: "c"},
		"hub.mode=subscribe&hub.topic=t&hub.challenge=c&hub.lease_seconds=9999999999": {Mode: "subscribe", Topic: "t", Challenge: "c", Lease: 366 * 24 * time.Hour},
		"hub.mode=unsubscribe&hub.topic=t&hub.challenge=c":                            {Mode: "unsubscribe", Topic: "t", Challenge: "c"},
		"hub.mode=unsubscribe&hub.topic=t&hub.challenge=c&hub.lease_seconds=0":        {Mode: "unsubscribe", Topic: "t", Challenge: "c"}, // it is to be ignored
		"hub.mode=denied&hub.topic=t&hub.reason=no":                                   {Mode: "denied", Topic: "t", Reason: "no"},
		"hub.mode=subscribe&hub.topic=t":                                              nil,
		"hub.mode=subscribe&hub.challenge=c":                                          nil,
		"hub.mode=publish&hub.topic=t&hub.challenge=c":                                nil,
		"hub.mode=subscribe&hub.topic=t&hub.challenge=c&hub.lease_seconds=0":          nil,
		"hub.mode=subscribe&hub.topic=t&hub.challenge=c&hub.lease_seconds=1.5":        nil,
		"hub.mode=subscribe&hub.topic=t&hub.challenge=" + strings.Repeat("c", 5000):   nil,
		"": nil,
	} {
		q, _ := url.ParseQuery(query)
		if got, err := websub.ReadVerification(q); !reflect.DeepEqual(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%.60s: %+v, %v", query, got, err)
		}
	}
}

// TestCheckSignature: each method of the Recommendation, and what is none (WebSub 7.1).
func TestCheckSignature(t *testing.T) {
	t.Parallel()
	const body, secret = "what has changed", "a secret"
	sum := func(name string) string {
		mac := hmac.New(sha1.New, []byte(secret))
		if name == "sha512" {
			mac = hmac.New(sha512.New, []byte(secret))
		}
		mac.Write([]byte(body))
		return name + "=" + hex.EncodeToString(mac.Sum(nil))
	}
	for header, want := range map[string]bool{
		sum("sha1"): true, sum("sha512"): true, strings.ToUpper(sum("sha1")): true,
		"sha256=" + strings.TrimPrefix(sum("sha1"), "sha1="): false, sum("sha1")[:20]: false, sum("sha1") + "00": false, "sha1=": false, "": false, "sha1": false, "md5=00": false,
	} {
		if got, err := websub.CheckSignature(strings.NewReader(body), header, secret); got != want || err != nil {
			t.Errorf("%s: %v, %v", header, got, err)
		}
	}
	if got, _ := websub.CheckSignature(strings.NewReader(body+"!"), sum("sha1"), secret); got {
		t.Error("another body has the same signature")
	}
	if got, err := websub.CheckSignature(iotest.TimeoutReader(strings.NewReader(body+strings.Repeat(" ", 99))), sum("sha1"), secret); got || err == nil {
		t.Errorf("half a body: %v, %v", got, err)
	}
}

func ExampleReadVerification() {
	q, _ := url.ParseQuery("hub.mode=subscribe&hub.topic=https://data.example.org/feed&hub.challenge=abc&hub.lease_seconds=864000")
	v, _ := websub.ReadVerification(q)
	fmt.Println(v.Mode, v.Topic, v.Challenge, v.Lease)
	// Output: subscribe https://data.example.org/feed abc 240h0m0s
}

// A redirect leads a request, with its secret, neither out of https nor where the client does
// not go.
func TestAskRedirected(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 9)
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	t.Cleanup(plain.Close)
	var to string
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			return
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(hub.Close)
	client := hub.Client()
	ask := func(where string) error {
		to = where
		return websub.Ask(t.Context(), client, hub.URL, &websub.Request{Mode: websub.Subscribe, Topic: "http://t.example/", Callback: "http://c.example/", Secret: "s"})
	}
	var refused *websub.StatusError
	if err := ask(plain.URL); !errors.As(err, &refused) || refused.Status != http.StatusTemporaryRedirect || !strings.Contains(err.Error(), plain.URL) {
		t.Errorf("out of https: %v", err)
	}
	if err := ask(hub.URL + "/moved"); err != nil {
		t.Errorf("within https: %v", err)
	}
	no := errors.New("not there")
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return no }
	if err := ask(hub.URL + "/moved"); !errors.Is(err, no) {
		t.Errorf("where the client does not go: %v", err)
	}
	if len(reached) > 0 {
		t.Error("the form was sent without encryption")
	}
}
