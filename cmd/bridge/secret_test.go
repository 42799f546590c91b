package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// secret is in every secret of the test.
const secret = "s3cret"

// peers are the servers whose URLs hold secrets: a Source; one that is gone; and
// ingest servers and a notification recipient, which cut every connection, but
// one that tells its properties.
type peers struct {
	*httptest.Server
	cut chan string // the paths that were asked for and cut
	// locked has the header of each request for a Source that wants a login.
	locked chan http.Header
}

func newPeers(t *testing.T) *peers {
	p := &peers{cut: make(chan string, 1000), locked: make(chan http.Header, 1000)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/locked.atom":
			p.locked <- r.Header.Clone()
			http.Error(w, "no", http.StatusUnauthorized)
		case r.URL.Path == "/feed.atom" && r.URL.Query().Get("key") == secret+"-of-the-source":
			fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:x:feed</id><title>Campus</title>`+
				`<updated>2025-01-02T00:00:00Z</updated><fh:complete/><author><name>A</name></author><link rel="self" href="https://museum.example/feed.atom"/>`+
				`<entry><id>urn:x:145</id><title>Storke Tower</title><updated>2025-01-01T00:00:00Z</updated><link rel="alternate" type="application/xml" href="145.xml"/></entry></feed>`)
		case r.URL.Path == "/145.xml":
			fmt.Fprint(w, placeRecord)
		case strings.HasPrefix(r.URL.Path, "/sip/archive/") && strings.Contains(string(body), "get-properties"):
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprint(w, enveloped(`<ingest-properties xmlns="http://www.alexandria.ucsb.edu"><notification-style>synchronous</notification-style>`+
				`<formats><format>http://places.example/1/place.xsd</format></formats></ingest-properties>`))
		case r.Method == http.MethodPost:
			p.cut <- r.URL.Path
			panic(http.ErrAbortHandler)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// await returns when a path was cut so many times.
func (p *peers) await(t *testing.T, path string, times int) {
	t.Helper()
	for limit := time.After(patience); times > 0; {
		select {
		case got := <-p.cut:
			if got == path {
				times--
			}
		case <-limit:
			t.Fatalf("%s was not asked for", path)
		}
	}
}

const placeRecord = `<place xmlns="http://places.example/1"><name>Storke Tower</name></place>`

func enveloped(document string) string {
	return `<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>` + document + `</e:Body></e:Envelope>`
}

// transcript is everything that bridge has let people see, by what said it.
type transcript struct {
	*folder
	by map[string]string
}

// run runs a command to its end and keeps what it prints.
func (o *transcript) run(want int, args ...string) string {
	o.t.Helper()
	c := o.folder.run(want, args...)
	text := c.stdout + c.stderr
	o.by["bridge "+strings.ReplaceAll(strings.Join(args, " "), secret, "")] = text
	return text
}

// post sends a message and returns the answer's status.
func (o *transcript) post(url, document string, want int) {
	o.t.Helper()
	res, err := http.Post(url, "text/xml", strings.NewReader(enveloped(document)))
	if err != nil {
		o.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		o.t.Fatalf("status %d, want %d: %v %s", res.StatusCode, want, err, answer)
	}
	o.by["answer to "+document] = strings.ReplaceAll(string(answer), document, "")
}

func (o *transcript) page(url string) {
	o.t.Helper()
	o.by["page "+url] = o.folder.page(url)
}

// TestSecretsOfURLsStayHidden: what stands in the query or behind the service's
// path of a URL that the operator or a submitter has typed is used, and shows
// nowhere.
func TestSecretsOfURLsStayHidden(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	far := newPeers(t)
	feed, recipient := far.URL+"/feed.atom?key="+secret+"-of-the-source", far.URL+"/sip/told/"+secret+"-of-the-submitter"
	archive := far.URL + "/sip/archive/" + secret + "-of-the-archive"
	o := &transcript{by: map[string]string{}, folder: newFolder(t, fmt.Sprintf(`
allow_hosts = ["127.0.0.1"]
console_listen = "localhost:0"
[[set]]
name = "campus"
[[set.source]]
kind = "atompmh"
url = %q
[[set.source]]
kind = "atompmh"
url = "%s/gone.atom?key=%s"
[[set.source]]
kind = "atompmh"
url = "%s/locked.atom"
token_file = "source.token"
headers = { "X-Api-Key" = "file:source.key", "X-Literal" = "%s-of-a-header" }
[[set.submit]]
url = %q
every = "1s"
formats = { "{http://places.example/1}place" = "http://places.example/1/place.xsd" }
[[set]]
name = "gate"
[[set.source]]
kind = "sip"
mode = "gateway"
upstream = "%s/sip/real/%s-of-the-upstream"
access = "addresses"
access_addresses = ["127.0.0.1", "::1"]
[[set]]
name = "review"
[[set.source]]
kind = "sip"
mode = "review"
formats = { "{http://places.example/1}place" = "http://places.example/1/place.xsd" }
access = "token"
access_token_file = "sip.token"
`, feed, far.URL, secret, far.URL, secret, archive, far.URL, secret), "sip.token", secret+"-of-the-service", "source.token", secret+"-of-bearer", "source.key", secret+"-of-a-key", "145.xml", placeRecord)}
	o.run(exitDone, "config", "check")
	serve, base := o.serve("--verbose", "--listen", "127.0.0.1:0")
	far.await(t, "/sip/archive/"+secret+"-of-the-archive", 3) // as many failures as make it known
	select {
	case h := <-far.locked:
		if h.Get("Authorization") != "Bearer "+secret+"-of-bearer" || h.Get("X-Api-Key") != secret+"-of-a-key" || h.Get("X-Literal") != secret+"-of-a-header" {
			t.Fatalf("the Source was asked with %v", h)
		}
	case <-time.After(patience):
		t.Fatal("the Source with a token was not asked")
	}

	request := func(id string) string {
		return `<ingest-request xmlns="http://www.alexandria.ucsb.edu"><source><source-identifier>` + id + `</source-identifier></source><notification-recipient>` +
			recipient + `</notification-recipient><record>` + placeRecord + `</record></ingest-request>`
	}
	o.post(base+"/sip/gate", `<get-properties xmlns="http://www.alexandria.ucsb.edu"/>`, http.StatusInternalServerError)
	o.post(base+"/sip/gate", request("1"), http.StatusInternalServerError)
	o.post(base+"/sip/gate/"+secret+"-of-nobody", `<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><source><source-identifier>9</source-identifier></source>`+
		`<rejected><reason>ask http://far.example/sip/x/`+secret+`</reason></rejected></ingest-disposition>`, http.StatusAccepted)
	o.post(base+"/sip/review/"+secret+"-of-the-service", request("2"), http.StatusOK)
	ls := o.run(exitDone, "submission", "ls")
	m := regexp.MustCompile(`(?m)^ +(\d+) .* provisional `).FindStringSubmatch(ls)
	if m == nil {
		t.Fatalf("nothing is under review:\n%s", ls)
	}
	o.run(exitDone, "submission", "accept", m[1])
	for _, line := range []string{`a notification was not delivered`, `the ingest server fails; no request is sent`, `"msg":"harvest failed"`, `"path":"/sip/review/\*\*\*"`} {
		if _, err := serve.stderr.expect(regexp.MustCompile(line)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"status", "status --set campus", "status --failing", "status --json"} { // one of the Sources fails
		o.run(exitPartly, strings.Fields(args)...)
	}
	for _, args := range []string{"log", "log --json", "submission ls", "submission ls --json", "submission show 1", "submission show 2", "submission show 3",
		"notification ls --sent", "notification ls --sent --json", "notification ls --received", "notification ls --received --json", "submission show --json 1", "source ls", "source ls --json", "source history gate", "source show gate", "quarantine ls", "verify", "verify --json"} {
		o.run(exitDone, strings.Fields(args)...)
	}
	o.run(exitDone, "reload")
	o.run(exitDone, "source", "show", "campus", far.URL+"/locked.atom")
	o.run(exitDone, "source", "history", "campus", far.URL+"/locked.atom")
	console, err := serve.stdout.expect(regexp.MustCompile(`console: (http://\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/sets/campus", "/metrics"} {
		o.page(console[1] + path)
	}
	for _, path := range []string{"/", "/sets/campus/", "/sets/gate/", "/sets/review/"} {
		o.page(base + path)
	}
	o.end(serve, os.Interrupt)
	o.by["serve's output"], o.by["serve's log"] = serve.stdout.String(), serve.stderr.String()

	o.run(exitPartly, "harvest", "--config", "bridge.toml")
	o.run(exitPartly, "harvest", "--config", "bridge.toml", "--json")
	o.run(exitFailed, "submit", "--server", archive, "--format", "http://places.example/1/place.xsd", "145.xml")
	// Keys that select by URL take the URL as it is, and as it is shown.
	for _, url := range []string{feed, far.URL + "/feed.atom?***"} {
		if got := o.run(exitDone, "source", "reset", "campus", url); !strings.HasPrefix(got, "campus: "+far.URL+"/feed.atom?*** is read from the beginning") {
			t.Errorf("%s", got)
		}
		if got := o.run(exitDone, "source", "show", "campus", url); !strings.Contains(got, "atompmh "+far.URL+"/feed.atom?***\n") {
			t.Errorf("%s", got)
		}
	}
	o.run(exitDone, "validate", feed)
	o.run(exitDone, "validate", "--follow", "--json", feed)
	o.run(exitPartly, "validate", far.URL+"/gone.atom?"+secret, far.URL+"/gone.atom?verb=Identify&x="+secret)
	o.run(exitFailed, "source", "reset", "campus", far.URL+"/other.atom?key="+secret)
	o.hasNoSecret()
}

// hasNoSecret fails when a secret was told, or where nothing was hidden that
// should have been told of.
func (o *transcript) hasNoSecret() {
	o.t.Helper()
	for what, text := range o.by {
		if i := strings.Index(text, secret); i >= 0 {
			o.t.Errorf("%s tells a secret: ...%s...", what, text[max(0, i-200):min(len(text), i+50)])
		}
	}
	for _, what := range []string{"config check", "status", "status --json", "log", "log --json", "submission ls", "submission ls --json", "submission show 1", "submission show 2",
		"notification ls --sent", "notification ls --sent --json", "notification ls --received", "notification ls --received --json", "submission show --json 1", "source ls", "harvest --config bridge.toml", "harvest --config bridge.toml --json"} {
		if !strings.Contains(o.by["bridge "+what], "***") {
			o.t.Errorf("bridge %s names no URL with a secret, so nothing was hidden:\n%s", what, o.by["bridge "+what])
		}
	}
	for what, parts := range map[string][]string{
		"serve's output": {"/feed.atom?***", "/sip/archive/***", "/sip/review/TOKEN"},
		"serve's log":    {"/feed.atom?***", "/gone.atom?***", "/sip/archive/***", "/sip/real/***"},
		"bridge status":  {"/feed.atom?***", "/gone.atom?***", "campus to http://", "/sip/archive/***"},
	} {
		for _, part := range parts {
			if !strings.Contains(o.by[what], part) {
				o.t.Errorf("%s does not have %s:\n%s", what, part, o.by[what])
			}
		}
	}
}
