package sip_test

import (
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
)

// words are texts as XML can hold them, white space and markup included.
func words() *rapid.Generator[string] {
	return rapid.StringOf(rapid.SampledFrom([]rune("aZ09 <>&\"'\t\nü€\U0001F600]-")))
}

func sources() *rapid.Generator[*sip.Source] {
	return rapid.Custom(func(t *rapid.T) *sip.Source {
		if rapid.Bool().Draw(t, "none") {
			return nil
		}
		s := &sip.Source{
			Sequence:   rapid.Ptr(words(), true).Draw(t, "sequence"),
			Identifier: rapid.Ptr(words(), true).Draw(t, "identifier"),
		}
		if rapid.Bool().Draw(t, "submitter") {
			s.Submitter = &sip.Submitter{Name: words().Draw(t, "name"), EmailAddress: words().Draw(t, "email")}
		}
		return s
	})
}

// What a client sends arrives as it was sent, and what the server answers comes
// back: the disposition repeats the source.
func TestClientAndHandler(t *testing.T) {
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	client := &sip.HTTPClient{URL: base}
	last := func() *sip.Request { r := backend.ingested(); return r[len(r)-1] }
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"taken", "refused", "later"}).Draw(rt, "name")
		sent := &sip.Request{
			Source:    sources().Draw(rt, "source"),
			Recipient: rapid.SampledFrom([]string{"", "http://example.org/n?a=1&b=2", "smtp:box@example.org"}).Draw(rt, "recipient"),
			Record: sip.Record{
				Root: xml.Name{Space: "urn:x", Local: name},
				XML:  []byte(`<p:` + name + ` xmlns:p="urn:x" a='1'><![CDATA[ <x> ]]>&#10;<!-- c --></p:` + name + `>`),
			},
		}
		d, err := client.Ingest(t.Context(), sent)
		if err != nil {
			rt.Fatal(err)
		}
		if got := last(); !reflect.DeepEqual(got, sent) {
			rt.Fatalf("sent %+v, arrived %+v", sent, got)
		}
		if !reflect.DeepEqual(d.Source, sent.Source) {
			rt.Fatalf("the source came back as %+v", d.Source)
		}
		if want := map[string]sip.Outcome{"taken": sip.Accepted, "refused": sip.Rejected, "later": sip.ProvisionallyAccepted}[name]; d.Outcome != want {
			rt.Fatalf("%v, want %v", d.Outcome, want)
		}
		if d.Outcome == sip.ProvisionallyAccepted {
			return
		}
		if err := client.Notify(t.Context(), d); err != nil {
			rt.Fatal(err)
		}
		n := backend.notified()
		if got := n[len(n)-1]; !reflect.DeepEqual(got, d) {
			rt.Fatalf("notified %+v, arrived %+v", d, got)
		}
	})
	p, err := client.GetProperties(t.Context())
	want := &sip.Properties{Style: sip.Asynchronous, Formats: []string{"http://example.org/a.xsd", "http://example.org/b.xsd?x=1&y=2"}}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("%+v, %v", p, err)
	}
	err = client.Notify(t.Context(), &sip.Disposition{Outcome: sip.ProvisionallyAccepted})
	var fault *sip.Fault
	if !errors.As(err, &fault) || fault.Code != sip.Client || fault.Path != "ingest-disposition/provisionally-accepted" {
		t.Errorf("a provisional notification: %v", err)
	}
	if !strings.HasPrefix(fmt.Sprint(err), "notify at "+base+": SOAP fault Client at ") {
		t.Errorf("the error does not say where: %v", err)
	}
}

// A recipient that was named with http, and whose web server takes nothing there, is notified
// at the same URL with https. No other redirect is followed.
func TestClientNotifiesOverTLS(t *testing.T) {
	var taken atomic.Int32
	var location atomic.Value
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m, err := sip.ReadMessage(r.Body, sip.ReadOptions{}); err != nil || m.Kind != sip.KindDisposition || !strings.HasSuffix(location.Load().(string), r.RequestURI) {
			t.Errorf("%s got %v, %v", r.URL, m, err)
		}
		taken.Add(1)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer secure.Close()
	for _, c := range []struct {
		from     string
		status   int
		location string
		taken    bool
	}{
		{"example.com/sip/box?a=b", 301, "https://example.com/sip/box?a=b", true},
		{"example.com/sip/box?a=b", 302, "https://example.com/sip/box?a=b", true},
		{"example.com/sip/box?a=b", 307, "https://example.com/sip/box?a=b", true},
		{"example.com/sip/box?a=b", 308, "https://example.com/sip/box?a=b", true},
		{"Example.com/sip/box?a=b", 308, "https://example.com/sip/box?a=b", true},
		{"example.com:80/sip/box?a=b", 308, "https://example.com/sip/box?a=b", true},
		{"example.com/sip/box?a=b", 308, "https://example.com:443/sip/box?a=b", true},
		{"example.com:8080/sip/box?a=b", 308, "https://example.com:8080/sip/box?a=b", true},
		{"example.com:8080/sip/box?a=b", 308, "https://example.com/sip/box?a=b", false},
		{"example.com", 308, "https://example.com/", true},
		{"example.com/sip/box?a=b", 303, "https://example.com/sip/box?a=b", false}, // asks for a GET
		{"example.com/sip/box?a=b", 308, "http://example.com/sip/box?a=b", false},
		{"example.com/sip/box?a=b", 308, "https://example.com/sip/other?a=b", false},
		{"example.com/sip/box?a=b", 308, "https://example.org/sip/box?a=b", false},
		{"example.com/sip/box?a=b", 308, "https://example.com:8443/sip/box?a=b", false},
		{"example.com/sip/box?a=b", 308, "https://example.com/sip/box", false},
		{"example.com/sip/box?a=b", 308, "/sip/box?a=b", false},
	} {
		location.Store(c.location)
		var redirected atomic.Bool
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			redirected.Store(true)
			w.Header().Set("Location", c.location)
			w.WriteHeader(c.status)
		}))
		transport := secure.Client().Transport.(*http.Transport).Clone()
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			to := plain.Listener.Addr().String()
			if strings.HasSuffix(address, ":443") || strings.HasSuffix(address, ":8080") && redirected.Load() {
				to = secure.Listener.Addr().String()
			}
			return new(net.Dialer).DialContext(ctx, network, to)
		}
		client := &sip.HTTPClient{HTTP: &http.Client{Transport: transport}, URL: "http://" + c.from}
		taken.Store(0)
		err := client.Notify(t.Context(), &sip.Disposition{Outcome: sip.Rejected})
		var status *sip.StatusError
		if c.taken != (err == nil) || c.taken != (taken.Load() == 1) || !c.taken && (!errors.As(err, &status) || status.Status != c.status) {
			t.Errorf("%s: %d to %s: %v, taken %d times", c.from, c.status, c.location, err, taken.Load())
		}
		transport.CloseIdleConnections()
		plain.Close()
	}
}

// The headers of a call: what SOAP 1.1 wants, and a login for that URL alone.
func TestClientRequest(t *testing.T) {
	var mu sync.Mutex
	var seen []*http.Request
	backend := &memoryServer{}
	h := &sip.Handler{Backend: backend, Offers: everything()}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Clone(context.Background()))
		mu.Unlock()
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/sip", http.StatusTemporaryRedirect)
			return
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	c := &sip.HTTPClient{URL: strings.Replace(server.URL, "://", "://typed:pw@", 1) + "/sip#part"}
	if _, err := c.GetProperties(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.User, c.Password = "ann", "a:b"
	if err := c.Notify(t.Context(), &sip.Disposition{Outcome: sip.Rejected}); err != nil {
		t.Fatal(err)
	}
	c.URL = server.URL + "/moved"
	_, err := c.Ingest(t.Context(), &sip.Request{Record: sip.Record{Root: xml.Name{Local: "r"}, XML: []byte("<r/>")}})
	var status *sip.StatusError
	if !errors.As(err, &status) || status.Status != 307 || !strings.Contains(status.Text, "moved to /sip") || sip.Temporary(err) {
		t.Errorf("a redirect: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 {
		t.Fatalf("%d requests: a redirect was followed", len(seen))
	}
	for i, want := range []struct{ action, user, password string }{
		{`"http://www.alexandria.ucsb.edu/get-properties"`, "", ""},
		{`"http://www.alexandria.ucsb.edu/notify"`, "ann", "a:b"},
		{`"http://www.alexandria.ucsb.edu/ingest"`, "ann", "a:b"},
	} {
		user, password, _ := seen[i].BasicAuth()
		if user != want.user || password != want.password || seen[i].Header.Get("SOAPAction") != want.action ||
			seen[i].Header.Get("Content-Type") != "text/xml; charset=utf-8" || seen[i].ContentLength <= 0 {
			t.Errorf("call %d: %v", i, seen[i].Header)
		}
	}
	if _, ran := backend.counts(); ran != 2 {
		t.Errorf("%d operations ran", ran)
	}
}

func TestClientsAtOnce(t *testing.T) {
	const calls = 1000
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	pool := &http.Transport{MaxIdleConnsPerHost: 32, MaxConnsPerHost: 32}
	defer pool.CloseIdleConnections()
	client := &sip.HTTPClient{URL: base, HTTP: &http.Client{Transport: pool}}
	assigned := make([]string, calls)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			id := fmt.Sprint(i)
			d, err := client.Ingest(t.Context(), &sip.Request{
				Source: &sip.Source{Identifier: &id},
				Record: sip.Record{Root: xml.Name{Local: "r"}, XML: []byte("<r>" + id + "</r>")},
			})
			if err != nil || d.Source == nil || d.Source.Identifier == nil || *d.Source.Identifier != id {
				t.Errorf("%d: %+v, %v", i, d, err)
				return
			}
			assigned[i] = d.AssignedIdentifier
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, id := range assigned {
		seen[id] = true
	}
	if len(seen) != calls {
		t.Errorf("%d different answers to %d calls", len(seen), calls)
	}
	arrived := map[string]bool{}
	for _, r := range backend.ingested() {
		arrived[string(r.Record.XML)] = true
	}
	if len(arrived) != calls {
		t.Errorf("%d different records of %d arrived", len(arrived), calls)
	}
}

// carrier is a transport that does with a request what a test wants.
type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

// Sent is false only when the message cannot have left.
func TestClientSent(t *testing.T) {
	secret := httptest.NewUnstartedServer(&sip.Handler{Backend: &memoryServer{}, Offers: everything()})
	secret.Config.ErrorLog = silent()
	secret.StartTLS()
	defer secret.Close()
	refused := errors.New("the address is not public")
	var late io.ReadCloser
	for _, c := range []struct {
		name      string
		url       string
		carry     http.RoundTripper // nil is one of net/http
		temporary bool
		sent      bool
		says      string
	}{
		{name: "nobody there", url: "http://" + testenv.Nobody(t), temporary: true, says: "nothing was sent"},
		{name: "certificate", url: secret.URL, temporary: true, says: "nothing was sent"},
		{name: "TLS to one that has none", url: strings.Replace(serveBackend(t, &sip.Handler{Backend: &memoryServer{}}), "http:", "https:", 1), temporary: true, says: "nothing was sent"},
		{name: "no such host", url: "http://nowhere.example/", temporary: true, says: "nothing was sent", carry: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere.example", IsNotFound: true}}
			}}},
		{name: "address refused", url: "http://192.0.2.1/", temporary: true, says: "not public; nothing was sent",
			carry: carrier(func(*http.Request) (*http.Response, error) { return nil, refused })},
		{name: "taken in part", url: "http://192.0.2.1/", temporary: true, sent: true, says: "not known",
			carry: carrier(func(r *http.Request) (*http.Response, error) {
				_, err := r.Body.Read(make([]byte, 1))
				return nil, errors.Join(err, io.ErrUnexpectedEOF)
			})},
		{name: "taken again", url: "http://192.0.2.1/", temporary: true, sent: true, says: "not known",
			carry: carrier(func(r *http.Request) (*http.Response, error) {
				first, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				again, err := r.GetBody()
				if err != nil {
					return nil, err
				}
				second, err := io.ReadAll(again)
				if err == nil && (string(first) != string(second) || int64(len(first)) != r.ContentLength) {
					t.Errorf("%q and then %q", first, second)
				}
				return nil, io.ErrUnexpectedEOF
			})},
		{name: "nothing has arrived, and then no connection", url: "http://192.0.2.1/", temporary: true, says: "nothing was sent",
			carry: carrier(func(r *http.Request) (*http.Response, error) {
				if _, err := io.ReadAll(r.Body); err != nil {
					return nil, err
				}
				_, err := r.GetBody()
				return nil, errors.Join(err, refused)
			})},
		{name: "too late", url: "http://192.0.2.1/", temporary: true, says: "nothing was sent",
			carry: carrier(func(r *http.Request) (*http.Response, error) { late = r.Body; return nil, refused })},
		{name: "no URL", url: "http://a b/", says: "address cannot be used"},
		{name: "no http", url: "smtp:box@example.org", says: "no http or https URL"},
		{name: "no host", url: "http:///x", says: "no http or https URL"},
		{name: "nothing", url: "", says: "no http or https URL"},
	} {
		carry := c.carry
		if carry == nil {
			own := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
			defer own.CloseIdleConnections()
			carry = own
		}
		client := &sip.HTTPClient{URL: c.url, HTTP: &http.Client{Transport: carry}}
		_, err := client.GetProperties(t.Context())
		if err == nil || sip.Sent(err) != c.sent || sip.Temporary(err) != c.temporary || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: sent %t, temporary %t: %v", c.name, sip.Sent(err), sip.Temporary(err), err)
		}
	}
	if own := errors.New("no call"); sip.Temporary(own) || !sip.Sent(own) {
		t.Error("an error of no call may go away, or nothing was sent")
	}
	if n, err := late.Read(make([]byte, 10)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("after the call has ended the message can be taken: %d, %v", n, err)
	}
}

// Under the guarded client of the daemon: what it refuses was not sent, and it
// leaves a server alone that has asked for it.
func TestClientUnderGuard(t *testing.T) {
	backend := &memoryServer{fail: &sip.Denied{Status: 429, Reason: "slowly"}}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	for _, c := range []struct {
		options fetch.Options
		is      []error // of each call
		ran     int
	}{
		{fetch.Options{}, []error{fetch.ErrAddress, fetch.ErrAddress}, 0},
		{fetch.Options{Reach: fetch.Reach{Origin: base}, MaxWait: time.Second}, []error{nil, fetch.ErrWait}, 1},
	} {
		guard := fetch.New(c.options)
		defer guard.Close()
		client := &sip.HTTPClient{URL: base, HTTP: guard.Client("")}
		for i, want := range c.is {
			err := client.Notify(t.Context(), &sip.Disposition{Outcome: sip.Rejected})
			var status *sip.StatusError
			switch {
			case want != nil && (!errors.Is(err, want) || sip.Sent(err) || !sip.Temporary(err)):
				t.Errorf("call %d: %v, want %v; sent %t", i, err, want, sip.Sent(err))
			case want == nil && (!errors.As(err, &status) || status.RetryAfter != time.Minute || !sip.Sent(err) || !sip.Temporary(err)):
				t.Errorf("call %d: %v", i, err)
			}
		}
		if _, ran := backend.counts(); ran != c.ran {
			t.Errorf("%d operations ran, want %d", ran, c.ran)
		}
	}
}
