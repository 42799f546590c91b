package sip_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/sip"
)

// memoryServer is an ingest server and notification recipient that keeps everything in
// memory. What it does with a record hangs on the name of its root: refused and
// later are words, everything else is accepted.
type memoryServer struct {
	admit func(sip.Caller) error // nil lets everybody in
	fail  error                  // of each operation

	mu           sync.Mutex
	asked        []sip.Caller // Admit's
	callers      []sip.Caller // those of operations
	requests     []*sip.Request
	dispositions []*sip.Disposition
}

func (d *memoryServer) Admit(_ context.Context, c sip.Caller) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, c)
	if d.admit == nil {
		return nil
	}
	return d.admit(c)
}

func (d *memoryServer) enter(c sip.Caller) error {
	d.callers = append(d.callers, c)
	return d.fail
}

func (d *memoryServer) GetProperties(_ context.Context, c sip.Caller) (*sip.Properties, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.enter(c); err != nil {
		return nil, err
	}
	return &sip.Properties{Style: sip.Asynchronous, Formats: []string{"http://example.org/a.xsd", "http://example.org/b.xsd?x=1&y=2"}}, nil
}

func (d *memoryServer) Ingest(_ context.Context, c sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.enter(c); err != nil {
		return nil, err
	}
	d.requests = append(d.requests, r)
	answer := &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: fmt.Sprintf("lib/%d", len(d.requests))}
	switch r.Record.Root.Local {
	case "refused":
		answer = &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: "no <room> & no time"}
	case "later":
		answer = &sip.Disposition{Source: r.Source, Outcome: sip.ProvisionallyAccepted}
	}
	return answer, nil
}

func (d *memoryServer) Notify(_ context.Context, c sip.Caller, n *sip.Disposition) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.enter(c); err != nil {
		return err
	}
	d.dispositions = append(d.dispositions, n)
	return nil
}

// counts returns how often anybody was asked for, and how often an operation ran.
func (d *memoryServer) counts() (asked, ran int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.asked), len(d.callers)
}

// notified and ingested return what has arrived, in its order.
func (d *memoryServer) notified() []*sip.Disposition {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.dispositions)
}

func (d *memoryServer) ingested() []*sip.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.requests)
}

// serveBackend serves a handler at the returned URL. What follows its path is the
// token.
func serveBackend(t testing.TB, h *sip.Handler) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/sip", h)
	mux.HandleFunc("/sip/{token}", func(w http.ResponseWriter, r *http.Request) { h.Serve(w, r, r.PathValue("token")) })
	server := httptest.NewUnstartedServer(mux)
	h.Location = "http://" + server.Listener.Addr().String() + "/sip"
	server.Start()
	t.Cleanup(server.Close)
	return h.Location
}

func everything() sip.Operations { return sip.Operations{Ingest: true, Notify: true} }

const (
	soapSpace     = "http://schemas.xmlsoap.org/soap/envelope/"
	docProperties = `<get-properties xmlns="http://www.alexandria.ucsb.edu"/>`
	docRequest    = `<ingest-request xmlns="http://www.alexandria.ucsb.edu"><record><r xmlns="urn:r">x</r></record></ingest-request>`
	docAccepted   = `<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><accepted><assigned-identifier>7</assigned-identifier></accepted></ingest-disposition>`
	docLater      = `<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><provisionally-accepted/></ingest-disposition>`
	docAnswer     = `<ingest-properties xmlns="http://www.alexandria.ucsb.edu"><notification-style>synchronous</notification-style><formats><format>http://x/</format></formats></ingest-properties>`
	docFault      = `<S:Fault><faultcode>S:Server</faultcode><faultstring>x</faultstring></S:Fault>`
)

// inEnvelope puts a document into an envelope of SOAP 1.1.
func inEnvelope(document string) string {
	return `<S:Envelope xmlns:S="` + soapSpace + `"><S:Body>` + document + `</S:Body></S:Envelope>`
}

func sipDocument(name, inside string) string {
	return inEnvelope(`<` + name + ` xmlns="http://www.alexandria.ucsb.edu">` + inside + `</` + name + `>`)
}

// faultSeen is a fault as encoding/xml reads it, which knows nothing of ours.
type faultSeen struct {
	XMLName xml.Name `xml:"http://schemas.xmlsoap.org/soap/envelope/ Envelope"`
	Fault   struct {
		Code    string `xml:"faultcode"`
		Text    string `xml:"faultstring"`
		Problem struct {
			Path string `xml:"path,attr"`
		} `xml:"detail>problem"`
	} `xml:"http://schemas.xmlsoap.org/soap/envelope/ Body>Fault"`
}

// readFault returns code, text and path of a fault. The code's prefix has to be
// that of the envelope's namespace.
func readFault(t *testing.T, body []byte) (code, text, path string) {
	t.Helper()
	var f faultSeen
	if err := xml.Unmarshal(body, &f); err != nil {
		t.Fatalf("no fault: %v in %q", err, body)
	}
	prefix, code, _ := strings.Cut(f.Fault.Code, ":")
	if !bytes.Contains(body, []byte(`xmlns:`+prefix+`="`+soapSpace+`"`)) {
		t.Errorf("the prefix of %q is not declared in %s", f.Fault.Code, body)
	}
	return code, f.Fault.Text, f.Fault.Problem.Path
}

// answerSeen is an answer, read to its end.
type answerSeen struct {
	status int
	head   http.Header
	length int64 // as announced
	body   []byte
}

// ask makes a request by net/http, without following redirects.
func ask(t *testing.T, r *http.Request) answerSeen {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answerSeen{resp.StatusCode, resp.Header, resp.ContentLength, body}
}

// handlerCall is one request by net/http, and what has to come of it.
type handlerCall struct {
	name   string
	method string // "" is POST
	behind string // of the URL
	head   string // "Name: value" lines; Content-Type is text/xml if they have none
	body   string

	handler sip.Handler   // what differs: Offers (zero is everything), MaxBytes, Plain
	backend *memoryServer // nil is one that does everything

	status   int
	mediaOut string // "" is what the status suggests: a fault or plain text
	code     sip.Code
	path     string
	headOut  string // "Name: value"
	says     string // what the body contains
	ran      int    // operations that ran
}

func (c *handlerCall) request(t *testing.T, base string) *http.Request {
	t.Helper()
	method := c.method
	if method == "" {
		method = http.MethodPost
	}
	r, err := http.NewRequest(method, base+c.behind, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "text/xml")
	for line := range strings.Lines(c.head) {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); value == "" {
			r.Header.Del(name)
		} else if name == "Transfer-Encoding" {
			r.ContentLength = -1
		} else {
			r.Header.Set(name, value)
		}
	}
	return r
}

func (c *handlerCall) run(t *testing.T) {
	backend := c.backend
	if backend == nil {
		backend = &memoryServer{}
	}
	h := c.handler
	h.Backend = backend
	if h.Offers == (sip.Operations{}) {
		h.Offers = everything()
	}
	base := serveBackend(t, &h)
	got := ask(t, c.request(t, base))
	if got.status != c.status {
		t.Errorf("status %d, want %d: %s", got.status, c.status, got.body)
	}
	media := c.mediaOut
	switch {
	case media == "" && c.code != "":
		media = "text/xml; charset=utf-8"
	case media == "":
		media = "text/plain; charset=utf-8"
	case media == "none":
		media = ""
	}
	if typ := got.head.Get("Content-Type"); typ != media {
		t.Errorf("Content-Type %q, want %q", typ, media)
	}
	if c.code != "" {
		code, text, path := readFault(t, got.body)
		if code != string(c.code) || path != c.path || text == "" {
			t.Errorf("fault %s at %q: %s; want %s at %q", code, path, text, c.code, c.path)
		}
	}
	if !bytes.Contains(got.body, []byte(c.says)) {
		t.Errorf("%q is not in %s", c.says, got.body)
	}
	if name, want, ok := strings.Cut(c.headOut, ": "); ok && got.head.Get(name) != want {
		t.Errorf("%s is %q, want %q", name, got.head.Get(name), want)
	}
	if _, ran := backend.counts(); ran != c.ran {
		t.Errorf("%d operations ran, want %d", ran, c.ran)
	}
}

func runCalls(t *testing.T, calls []handlerCall) {
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

// Wrong method, wrong Content-Type, too big: the first row of the table.
func TestHandlerRefusesByHeaders(t *testing.T) {
	big := inEnvelope(docRequest) + strings.Repeat(" ", 2000)
	runCalls(t, []handlerCall{
		{name: "GET", method: "GET", status: 405, headOut: "Allow: POST"},
		{name: "HEAD", method: "HEAD", status: 405, headOut: "Allow: POST"},
		{name: "PUT", method: "PUT", body: inEnvelope(docRequest), status: 405, headOut: "Allow: POST"},
		{name: "OPTIONS", method: "OPTIONS", status: 405, headOut: "Allow: POST"},
		{name: "DELETE of the description", method: "DELETE", behind: "?wsdl", status: 405, headOut: "Allow: GET, HEAD, POST"},
		{name: "GET of what is not there", method: "GET", behind: "?disco", status: 404, says: "?wsdl and ?xsd"},

		{name: "no type", head: "Content-Type: ", body: inEnvelope(docRequest), status: 415, says: "text/xml"},
		{name: "JSON", head: "Content-Type: application/json", body: "{}", status: 415, says: `"application/json"`},
		{name: "plain text", head: "Content-Type: text/plain", body: inEnvelope(docRequest), status: 415},
		{name: "SOAP 1.2", head: "Content-Type: application/soap+xml", body: inEnvelope(docRequest), status: 415, says: "SOAP 1.1"},
		{name: "SOAP with attachments", head: "Content-Type: multipart/related; boundary=x", body: inEnvelope(docRequest), status: 415},
		{name: "type with two charsets", head: "Content-Type: text/xml; charset=utf-8; charset=iso-8859-1", body: inEnvelope(docRequest), status: 415},
		{name: "two types", head: "Content-Type: text/xml, text/xml", body: inEnvelope(docRequest), status: 415},
		{name: "gzip", head: "Content-Encoding: gzip", body: inEnvelope(docRequest), status: 415, headOut: "Accept-Encoding: identity"},
		{name: "identity and gzip", head: "Content-Encoding: identity, gzip", body: inEnvelope(docRequest), status: 415, headOut: "Accept-Encoding: identity"},

		{name: "too big", body: big, handler: sip.Handler{MaxBytes: 1000}, status: 413, says: "1000 bytes"},
		{name: "too big in chunks", head: "Transfer-Encoding: chunked", body: big, handler: sip.Handler{MaxBytes: 1000}, status: 413, says: "1000 bytes"},
		{name: "too big by default", body: strings.Repeat(" ", 4<<20+1), status: 413, says: "4194304 bytes"},
		{name: "as big as may be", body: big, handler: sip.Handler{MaxBytes: int64(len(big))}, status: 200, mediaOut: "text/xml; charset=utf-8", ran: 1},
		{name: "beyond what is usual", body: big + strings.Repeat(" ", 5<<20), handler: sip.Handler{MaxBytes: 6 << 20}, status: 200, mediaOut: "text/xml; charset=utf-8", ran: 1},
		{name: "one more than may be", body: big, handler: sip.Handler{MaxBytes: int64(len(big)) - 1}, status: 413},
		{name: "one more in chunks", head: "Transfer-Encoding: chunked", body: big, handler: sip.Handler{MaxBytes: int64(len(big)) - 1}, status: 413},
	})
}

// Not allowed, too many: the rest of that row. It does not matter where the
// Backend says so.
func TestHandlerDenies(t *testing.T) {
	for _, denied := range []struct {
		status, want int
		head         string
	}{
		{401, 401, `WWW-Authenticate: Basic realm="SIP", charset="UTF-8"`},
		{403, 403, ""},
		{429, 429, "Retry-After: 60"},
		{0, 403, ""},
		{200, 403, ""},
	} {
		err := &sip.Denied{Status: denied.status, Reason: "you may not"}
		wrapped := fmt.Errorf("somewhere: %w", err)
		atTheDoor := func() *memoryServer { return &memoryServer{admit: func(sip.Caller) error { return wrapped }} }
		runCalls(t, []handlerCall{
			{name: "at the door", body: inEnvelope(docAccepted), backend: atTheDoor(), status: denied.want, headOut: denied.head, says: "you may not"},
			{name: "description", method: "GET", behind: "?wsdl", backend: atTheDoor(), status: denied.want, headOut: denied.head, says: "you may not"},
			{name: "before the type", head: "Content-Type: image/png", backend: atTheDoor(), status: denied.want},
			{name: "before the length", body: inEnvelope(docAccepted), handler: sip.Handler{MaxBytes: 10}, backend: atTheDoor(), status: denied.want},
			{name: "behind the method", method: "GET", backend: atTheDoor(), status: 405},
			{name: "get-properties", body: inEnvelope(docProperties), backend: &memoryServer{fail: wrapped}, status: denied.want, headOut: denied.head, says: "you may not", ran: 1},
			{name: "ingest", body: inEnvelope(docRequest), backend: &memoryServer{fail: err}, status: denied.want, headOut: denied.head, says: "you may not", ran: 1},
			{name: "notify", body: inEnvelope(docAccepted), backend: &memoryServer{fail: err}, status: denied.want, headOut: denied.head, says: "you may not", ran: 1},
		})
	}
}

// Malformed messages, other envelopes, headers, wrong documents: the rows in the
// middle. Nothing has happened when a fault is answered.
func TestHandlerFaults(t *testing.T) {
	header := func(attrs string) string {
		return `<S:Envelope xmlns:S="` + soapSpace + `"><S:Header><x:token xmlns:x="urn:x" ` + attrs + `/></S:Header><S:Body>` + docAccepted + `</S:Body></S:Envelope>`
	}
	calls := []handlerCall{
		{name: "no body", body: "", code: sip.Client},
		{name: "malformed", body: "<S:Envelope", code: sip.Client},
		{name: "not XML", body: `{"a": 1}`, code: sip.Client},
		{name: "cut off", body: inEnvelope(docAccepted)[:200], code: sip.Client, path: "ingest-disposition"},
		{name: "two roots", body: inEnvelope(docAccepted) + "<x/>", code: sip.Client},
		{name: "DOCTYPE", body: `<!DOCTYPE x [<!ENTITY e "x">]>` + inEnvelope(docAccepted), code: sip.Client},
		{name: "processing instruction", body: `<?x y?>` + inEnvelope(docAccepted), code: sip.Client},
		{name: "processing instruction inside", body: inEnvelope(`<?x y?>` + docAccepted), code: sip.Client, path: "Envelope/Body"},
		{name: "no child", body: inEnvelope(""), code: sip.Client, path: "Envelope/Body"},
		{name: "two children", body: inEnvelope(docAccepted + docAccepted), code: sip.Client, path: "Envelope/Body/ingest-disposition"},
		{name: "no Body", body: `<S:Envelope xmlns:S="` + soapSpace + `"/>`, code: sip.Client, path: "Envelope"},
		{name: "no envelope", body: docAccepted, code: sip.Client, path: "ingest-disposition"},

		{name: "SOAP 1.2", body: strings.ReplaceAll(inEnvelope(docAccepted), soapSpace, "http://www.w3.org/2003/05/soap-envelope"), code: sip.VersionMismatch, path: ""},
		{name: "envelope without a namespace", body: "<Envelope><Body>" + docAccepted + "</Body></Envelope>", code: sip.VersionMismatch, path: ""},

		{name: "header to be understood", body: header(`S:mustUnderstand="1"`), code: sip.MustUnderstand, path: ""},
		{name: "header for the next", body: header(`S:mustUnderstand="1" S:actor="http://schemas.xmlsoap.org/soap/actor/next"`), code: sip.MustUnderstand, path: ""},

		{name: "unknown document", body: sipDocument("ingest", ""), code: sip.Client, path: "ingest"},
		{name: "document of another namespace", body: inEnvelope("<get-properties/>"), code: sip.Client, path: "get-properties"},
		{name: "unknown element", body: sipDocument("ingest-disposition", "<accepted><assigned-identifier>7</assigned-identifier><when/></accepted>"), code: sip.Client, path: "ingest-disposition/accepted/when"},
		{name: "wrong order", body: sipDocument("ingest-request", "<record><x/></record><source/>"), code: sip.Client, path: "ingest-request/source"},
		{name: "missing", body: sipDocument("ingest-request", "<source><submitter><name>n</name></submitter></source><record><x/></record>"), code: sip.Client, path: "ingest-request/source/submitter"},
		{name: "no record", body: sipDocument("ingest-request", "<record/>"), code: sip.Client, path: "ingest-request/record"},
		{name: "two outcomes", body: sipDocument("ingest-disposition", "<rejected/><rejected/>"), code: sip.Client, path: "ingest-disposition/rejected"},

		{name: "provisional notification", body: inEnvelope(docLater), code: sip.Client, path: "ingest-disposition/provisionally-accepted"},
		{name: "an answer", body: inEnvelope(docAnswer), code: sip.Client, path: "ingest-properties", says: "offered: get-properties, ingest, notify"},
		{name: "a fault", body: inEnvelope(docFault), code: sip.Client, path: "Fault", says: "offered: get-properties, ingest, notify"},
	}
	ingest, notify := sip.Handler{Offers: sip.Operations{Ingest: true}}, sip.Handler{Offers: sip.Operations{Notify: true}}
	calls = append(calls,
		handlerCall{name: "notify is not offered", body: inEnvelope(docAccepted), handler: ingest, code: sip.Client, path: "ingest-disposition", says: "offered: get-properties, ingest<"},
		handlerCall{name: "nor when it is provisional", body: inEnvelope(docLater), handler: ingest, code: sip.Client, path: "ingest-disposition", says: "notify is not offered"},
		handlerCall{name: "get-properties is not offered", body: inEnvelope(docProperties), handler: notify, code: sip.Client, path: "get-properties", says: "offered: notify<"},
		handlerCall{name: "ingest is not offered", body: inEnvelope(docRequest), handler: notify, code: sip.Client, path: "ingest-request", says: "offered: notify<"},
	)
	for i := range calls {
		calls[i].status = 500
	}
	runCalls(t, calls)
	runCalls(t, []handlerCall{
		{name: "header for somebody else", body: header(`S:mustUnderstand="1" S:actor="urn:somebody"`), status: 202, mediaOut: "none", ran: 1},
		{name: "header that need not be understood", body: header(`S:mustUnderstand="0"`), status: 202, mediaOut: "none", ran: 1},
	})
}

// What a Backend returns: faults as they are, wrapped or not, and everything else
// without its text, which the log gets.
func TestHandlerAnswersErrors(t *testing.T) {
	recipient := &sip.Fault{Code: sip.Client, Text: "the recipient may not be used", Path: "ingest-request/notification-recipient", Line: 3, Column: 9}
	secret := errors.New("disk /srv/secret is full")
	var log bytes.Buffer
	loud := sip.Handler{Log: slog.New(slog.NewTextHandler(&log, nil))}
	runCalls(t, []handlerCall{
		{name: "recipient", body: inEnvelope(docRequest), backend: &memoryServer{fail: recipient}, handler: loud, status: 500, code: sip.Client, path: recipient.Path, says: recipient.Text, ran: 1},
		{name: "wrapped", body: inEnvelope(docRequest), backend: &memoryServer{fail: fmt.Errorf("x: %w", recipient)}, handler: loud, status: 500, code: sip.Client, path: recipient.Path, ran: 1},
	})
	if log.Len() > 0 {
		t.Errorf("a fault is the caller's affair, but the log says: %s", log.String())
	}
	for name, document := range map[string]string{"get-properties": docProperties, "ingest": docRequest, "notify": docAccepted} {
		log.Reset()
		runCalls(t, []handlerCall{{name: "storing fails at " + name, behind: "/s3cret", body: inEnvelope(document), backend: &memoryServer{fail: secret}, handler: loud, status: 500, code: sip.Server, says: "try again later", ran: 1}})
		if !strings.Contains(log.String(), "disk /srv/secret is full") || strings.Contains(log.String(), "s3cret ") {
			t.Errorf("%s: the log says: %s", name, log.String())
		}
	}
	quiet := &handlerCall{name: "without a log", body: inEnvelope(docAccepted), backend: &memoryServer{admit: func(sip.Caller) error { return secret }}, status: 500, code: sip.Server}
	t.Run(quiet.name, quiet.run)
}

// thoughtless returns what it was made with, whether or not that can be written.
type thoughtless struct {
	sip.Backend
	properties  *sip.Properties
	disposition *sip.Disposition
}

func (thoughtless) Admit(context.Context, sip.Caller) error { return nil }

func (b thoughtless) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return b.properties, nil
}

func (b thoughtless) Ingest(context.Context, sip.Caller, *sip.Request) (*sip.Disposition, error) {
	return b.disposition, nil
}

// A result of a Backend that has no document is a fault, and only the log says why.
func TestHandlerRefusesResults(t *testing.T) {
	style, formats := sip.Synchronous, []string{"http://example.org/a.xsd"}
	for _, c := range []struct {
		backend                thoughtless
		ofProperties, ofIngest string // what the log says; "" when the result can be written
	}{
		{thoughtless{}, "no properties", "no disposition"},
		{thoughtless{properties: &sip.Properties{Formats: formats}, disposition: &sip.Disposition{AssignedIdentifier: "1"}}, "with style", "without an outcome"},
		{thoughtless{properties: &sip.Properties{Style: style}, disposition: &sip.Disposition{Outcome: sip.Rejected + 1}}, "without formats", "without an outcome"},
		{thoughtless{properties: &sip.Properties{Style: style, Formats: formats}, disposition: &sip.Disposition{Outcome: sip.Accepted, AssignedIdentifier: " "}}, "", "without an assigned identifier"},
		{thoughtless{properties: &sip.Properties{Style: style, Formats: formats}, disposition: &sip.Disposition{Outcome: sip.Rejected}}, "", ""},
	} {
		var log bytes.Buffer
		client := sip.HTTPClient{URL: serveBackend(t, &sip.Handler{Backend: c.backend, Offers: everything(), Log: slog.New(slog.NewTextHandler(&log, nil))})}
		check := func(err error, want string) {
			t.Helper()
			var fault *sip.Fault
			if failed := errors.As(err, &fault) && fault.Code == sip.Server; failed != (want != "") || !failed && err != nil {
				t.Errorf("%+v: %v", c.backend, err)
			}
			if !strings.Contains(log.String(), want) || want == "" && log.Len() > 0 {
				t.Errorf("the log says %q, want %q", log.String(), want)
			}
			log.Reset()
		}
		_, err := client.GetProperties(t.Context())
		check(err, c.ofProperties)
		_, err = client.Ingest(t.Context(), &sip.Request{Record: sip.Record{XML: []byte("<x/>")}})
		check(err, c.ofIngest)
	}
}

// The answers when all is well.
func TestHandlerAnswers(t *testing.T) {
	const xmlOut = "text/xml; charset=utf-8"
	root := func(name string) string {
		return strings.Replace(docRequest, `<r xmlns="urn:r">x</r>`, `<`+name+` xmlns="urn:r"/>`, 1)
	}
	runCalls(t, []handlerCall{
		{name: "get-properties", body: inEnvelope(docProperties), status: 200, mediaOut: xmlOut, says: "http://example.org/b.xsd?x=1&amp;y=2", ran: 1},
		{name: "accepted", body: inEnvelope(docRequest), status: 200, mediaOut: xmlOut, says: ">lib/1</", ran: 1},
		{name: "rejected", body: inEnvelope(root("refused")), status: 200, mediaOut: xmlOut, says: "no &lt;room", ran: 1},
		{name: "provisional", body: inEnvelope(root("later")), status: 200, mediaOut: xmlOut, says: "provisionally-accepted", ran: 1},
		{name: "notify", body: inEnvelope(docAccepted), status: 202, mediaOut: "none", headOut: "Content-Length: 0", ran: 1},
		{name: "SOAPAction of another operation", head: `SOAPAction: "http://www.alexandria.ucsb.edu/ingest"`, body: inEnvelope(docAccepted), status: 202, mediaOut: "none", ran: 1},
		{name: "application/xml", head: "Content-Type: Application/XML;charset=utf-8", body: inEnvelope(docAccepted), status: 202, mediaOut: "none", ran: 1},
		{name: "identity", head: "Content-Encoding: identity", body: inEnvelope(docAccepted), status: 202, mediaOut: "none", ran: 1},
		{name: "identity twice", head: "Content-Encoding: identity, Identity,", body: inEnvelope(docAccepted), status: 202, mediaOut: "none", ran: 1},
		{name: "to the description's URL", behind: "?wsdl", body: inEnvelope(docAccepted), status: 202, mediaOut: "none", ran: 1},
	})
}

// An empty Content-Encoding, which some frameworks send, names no encoding (RFC 9110, 5.6.1.2).
func TestHandlerEmptyEncoding(t *testing.T) {
	base := serveBackend(t, &sip.Handler{Backend: &memoryServer{}, Offers: everything()})
	r := (&handlerCall{body: inEnvelope(docAccepted)}).request(t, base)
	r.Header.Set("Content-Encoding", "")
	if got := ask(t, r); got.status != 202 {
		t.Errorf("status %d: %s", got.status, got.body)
	}
}

// A parameter of the Content-Type that cannot be read does not hide the media type. The
// charset is then that of the message itself.
func TestHandlerBrokenParameter(t *testing.T) {
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	latin := `<?xml version="1.0" encoding="iso-8859-1"?>` + strings.Replace(inEnvelope(docAccepted), "7<", "M\xfcnchen<", 1)
	utf8 := strings.Replace(inEnvelope(docAccepted), "7<", "München<", 1)
	sent := 0
	for _, contentType := range []string{"text/xml; charset", "text/xml; charset=", "text/xml; charset=\"", "text/xml; action=; charset=utf-8", "application/xml; charset=utf-8, q"} {
		for _, body := range []string{latin, utf8} {
			if body == latin && strings.Contains(contentType, "utf-8") {
				continue
			}
			resp, err := http.Post(base, contentType, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusAccepted {
				t.Errorf("%s: %s", contentType, resp.Status)
			}
			sent++
		}
	}
	got := backend.notified()
	for _, d := range got {
		if d.AssignedIdentifier != "München" {
			t.Errorf("identifier %q", d.AssignedIdentifier)
		}
	}
	if len(got) != sent {
		t.Errorf("%d dispositions of %d", len(got), sent)
	}
}

// The charset of the Content-Type is honoured.
func TestHandlerCharset(t *testing.T) {
	backend := &memoryServer{}
	base := serveBackend(t, &sip.Handler{Backend: backend, Offers: everything()})
	for contentType, body := range map[string]string{
		"text/xml; charset=iso-8859-1": strings.Replace(inEnvelope(docAccepted), "7<", "M\xfcnchen<", 1),
		"text/xml; charset=utf-8":      strings.Replace(inEnvelope(docAccepted), "7<", "München<", 1),
		"application/xml":              `<?xml version="1.0" encoding="windows-1252"?>` + strings.Replace(inEnvelope(docAccepted), "7<", "M\xfcnchen<", 1),
	} {
		resp, err := http.Post(base, contentType, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Errorf("%s: %s", contentType, resp.Status)
		}
	}
	got := backend.notified()
	for _, d := range got {
		if d.AssignedIdentifier != "München" {
			t.Errorf("identifier %q", d.AssignedIdentifier)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d dispositions", len(got))
	}
}
