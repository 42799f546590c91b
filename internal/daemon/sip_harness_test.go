package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/xml"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sipBridge is a bridge whose sets are SIP services, served whole on loopback.
// Its set main is what the methods of harness ask for.
type sipBridge struct {
	*harness
	said *testenv.Log // at every level
}

// newSIPBridge serves what a configuration file says that goes on with this
// text. In it {base} stands for the bridge's own URL.
func newSIPBridge(t *testing.T, text string) *sipBridge {
	t.Helper()
	h := &sipBridge{harness: newRelay(t).harness, said: &testenv.Log{}}
	address := strings.TrimPrefix(h.base, "http://")
	text = fmt.Sprintf("data = \"data\"\nlisten = %q\nbase_url = %q\n", address, h.base) + strings.ReplaceAll(text, "{base}", h.base)
	file := filepath.Join(t.TempDir(), "bridge.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.config, err = config.Load(file); err != nil {
		t.Fatal(err)
	}
	h.options = daemon.Options{StatusAge: 1, Network: daemon.Unresolved, Logger: slog.New(slog.NewTextHandler(h.said, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	h.run()
	return h
}

// run opens the bridge and serves it. The Sources know its URL when run returns.
func (h *sipBridge) run() {
	h.t.Helper()
	h.open()
	h.start(func(ctx context.Context, l net.Listener) error { return h.bridge.Serve(ctx, l, nil) })
	h.get("/healthz") // then it has begun to
}

// sub is a subtest, in which the bridge fails the subtest.
func (h *sipBridge) sub(name string, do func(t *testing.T)) {
	outer := h.t
	defer func() { h.t = outer }()
	outer.Run(name, func(t *testing.T) {
		h.t = t
		do(t)
	})
}

// sipSet is a set with a SIP Source, as a part of a configuration file. Callers on
// this machine are known to it, unless the keys say whom it lets in.
func sipSet(name string, keys ...string) string {
	all := strings.Join(keys, "\n")
	if !strings.Contains(all, "access = ") {
		all = knownHere + "\n" + all
	}
	return fmt.Sprintf("[[set]]\nname = %q\nsegment_events = 3\n[[set.source]]\nkind = \"sip\"\n%s\n", name, all)
}

// knownHere lets in whoever calls from this machine.
const knownHere = "access = \"addresses\"\naccess_addresses = [\"127.0.0.1\", \"::1\"]"

const (
	libraryMode = `mode = "library"
formats = { "{urn:r}r" = "http://schemas.example/r.xsd", "{http://www.w3.org/1999/xhtml}html" = "http://schemas.example/xhtml.xsd" }`
	reviewMode = `mode = "review"
formats = { "{urn:r}r" = "http://schemas.example/r.xsd" }`

	envelopeSpace = "http://schemas.xmlsoap.org/soap/envelope/"
	sipSpace      = "http://www.alexandria.ucsb.edu"
)

const (
	inSOAPHead = `<e:Envelope xmlns:e="` + envelopeSpace + `"><e:Body>`
	inSOAPTail = `</e:Body></e:Envelope>`
)

// inSOAP puts documents into an envelope.
func inSOAP(documents string) string { return inSOAPHead + documents + inSOAPTail }

// sipDoc is a document whose elements have the prefix i.
func sipDoc(name, content string) string {
	return "<i:" + name + ` xmlns:i="` + sipSpace + `">` + content + "</i:" + name + ">"
}

// The parts of documents, with what is written in XML as it is given.
func sourceOf(identifier string) string {
	return "<i:source><i:source-identifier>" + identifier + "</i:source-identifier></i:source>"
}
func recipientAt(url string) string {
	return "<i:notification-recipient>" + url + "</i:notification-recipient>"
}
func recordOf(xml string) string { return "<i:record>" + xml + "</i:record>" }
func acceptedAs(identifier string) string {
	return "<i:accepted><i:assigned-identifier>" + identifier + "</i:assigned-identifier></i:accepted>"
}
func rejectedFor(reason string) string {
	return "<i:rejected><i:reason>" + reason + "</i:reason></i:rejected>"
}

// ingestOf is a message that submits a record of the format {urn:r}r.
func ingestOf(identifier, text string) string {
	return inSOAP(sipDoc("ingest-request", sourceOf(identifier)+recordOf(`<r xmlns="urn:r">`+text+`</r>`)))
}

// notifyOf is a message that tells a disposition.
func notifyOf(content string) string { return inSOAP(sipDoc("ingest-disposition", content)) }

// curl sends a message as curl does, or asks when it is "". A path is one below
// the base URL.
func (h *sipBridge) curl(path, message string, args ...string) webReply {
	h.t.Helper()
	full := []string{"-sS", "--noproxy", "*", "-i"}
	if message != "" {
		full = append(full, "--data-binary", "@-")
	}
	for _, usual := range []string{"Content-Type: text/xml", "Expect:"} { // curl acts on the first of a name
		name, _, _ := strings.Cut(usual, ":")
		if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, name) }) {
			full = append(full, "-H", usual)
		}
	}
	cmd := exec.Command(testenv.Need(h.t, "curl", "curl"), append(append(full, args...), h.base+path)...)
	cmd.Stdin = strings.NewReader(message)
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if err != nil {
		h.t.Fatalf("curl %q: %v\n%s", args, err, wrong.String())
	}
	asked := &http.Request{Method: http.MethodGet}
	if slices.Contains(args, "--head") {
		asked.Method = http.MethodHead
	}
	lines := bufio.NewReader(bytes.NewReader(out))
	res, err := http.ReadResponse(lines, asked)
	for err == nil && res.StatusCode == http.StatusContinue {
		res, err = http.ReadResponse(lines, asked)
	}
	if err != nil {
		h.t.Fatalf("curl %q: %v\n%s", args, err, out)
	}
	defer res.Body.Close()
	return webReply{h.base + path, res.StatusCode, res.Header, readAll(h.t, res.Body)}
}

// post sends a message with net/http, for other goroutines than the test's own
// too.
func (h *sipBridge) post(path, message string) (webReply, error) {
	res, err := h.client.Post(h.base+path, "text/xml", strings.NewReader(message))
	if err != nil {
		return webReply{}, err
	}
	defer res.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(res.Body)
	return webReply{h.base + path, res.StatusCode, res.Header, body.Bytes()}, err
}

// send posts what must be answered with a status.
func (h *sipBridge) send(path, message string, status int) webReply {
	h.t.Helper()
	r, err := h.post(path, message)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.want(h.t, status)
}

// notify sends a disposition that must be taken.
func (h *sipBridge) notify(path, content string) {
	h.t.Helper()
	h.send(path, notifyOf(content), http.StatusAccepted)
}

// soapAnswer is an answer as this test reads it, with encoding/xml and nothing
// of ours.
type soapAnswer struct {
	XMLName xml.Name
	Body    struct {
		Fault *struct {
			Code    string `xml:"faultcode"`
			Text    string `xml:"faultstring"`
			Problem struct {
				Path string `xml:"path,attr"`
			} `xml:"detail>problem"`
		} `xml:"http://schemas.xmlsoap.org/soap/envelope/ Fault"`
		Properties *struct {
			Style   string   `xml:"notification-style"`
			Formats []string `xml:"formats>format"`
		} `xml:"http://www.alexandria.ucsb.edu ingest-properties"`
		Disposition *disposed `xml:"http://www.alexandria.ucsb.edu ingest-disposition"`
	} `xml:"http://schemas.xmlsoap.org/soap/envelope/ Body"`
}

// disposed is a disposition in an answer.
type disposed struct {
	Identifier  string    `xml:"source>source-identifier"`
	Assigned    string    `xml:"accepted>assigned-identifier"`
	Provisional *struct{} `xml:"provisionally-accepted"`
	Rejected    *struct {
		Reason string `xml:"reason"`
	} `xml:"rejected"`
}

// soap reads an answer.
func (r webReply) soap(t testing.TB) *soapAnswer {
	t.Helper()
	a := &soapAnswer{}
	if err := xml.Unmarshal(r.body, a); err != nil || a.XMLName != (xml.Name{Space: envelopeSpace, Local: "Envelope"}) {
		t.Fatalf("%s: %d, no SOAP: %v in %.500q", r.url, r.status, err, r.body)
	}
	return a
}

// disposition reads an answer that must be one.
func (r webReply) disposition(t testing.TB) *disposed {
	t.Helper()
	d := r.want(t, http.StatusOK).soap(t).Body.Disposition
	if d == nil {
		t.Fatalf("%s: no disposition in %s", r.url, r.body)
	}
	return d
}

// wantFault fails unless an answer is a fault of that code, path and text.
func (r webReply) wantFault(t testing.TB, code, path, text string) {
	t.Helper()
	r.want(t, http.StatusInternalServerError).field(t, "Content-Type", "text/xml; charset=utf-8")
	f := r.soap(t).Body.Fault
	if f == nil || f.Code != "soap:"+code || f.Problem.Path != path || !strings.Contains(f.Text, text) {
		t.Errorf("fault %+v, want %s at %q with %q", f, code, path, text)
	}
}

// state is all that the log knows of events and submissions, to be compared.
func (h *sipBridge) state() string {
	h.t.Helper()
	ctx := context.Background()
	sets, err := h.bridge.Log.Sets(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range sets {
		fmt.Fprintf(&b, "%+v\n", s)
		sources, err := h.bridge.Log.Sources(ctx, s.Name)
		if err != nil {
			h.t.Fatal(err)
		}
		for i := range sources {
			counts, err := h.bridge.SIP.Counts(ctx, sources[i].ID)
			if err != nil {
				h.t.Fatal(err)
			}
			fmt.Fprintf(&b, "%+v pending %d\n", counts, sources[i].Pending)
		}
		for _, n := range h.notifications(s.Name) {
			fmt.Fprintf(&b, "%+v\n", n)
		}
	}
	return b.String()
}

func (h *sipBridge) notifications(set string) []submission.IncomingNotification {
	h.t.Helper()
	all, err := h.bridge.SIP.Incoming(context.Background(), set, 0, 0, 10_000)
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// submissions returns those of a set: "state own -> recipient".
func (h *sipBridge) submissions(set string) []string {
	h.t.Helper()
	all, err := h.bridge.SIP.Submissions(context.Background(), submission.Query{Set: set})
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for i := range all {
		out = append(out, fmt.Sprintf("%s %s -> %s", all[i].State, all[i].SourceIdentifier, all[i].Recipient))
	}
	return out
}

// told returns the events of a set: "created id", or "rejected own: reason".
func (h *sipBridge) told(set string) []string {
	h.t.Helper()
	var out []string
	for ev := range h.eventsOf(set, 0) {
		if ev.Kind == event.Rejected {
			out = append(out, fmt.Sprintf("rejected %s: %s", ev.Origin.SourceIdentifier, ev.Origin.Reason))
			continue
		}
		out = append(out, ev.Kind.String()+" "+ev.Record)
	}
	return out
}

// kept returns what was told of set kept, once it has taken all that was accepted.
func (h *sipBridge) kept() []string {
	h.t.Helper()
	eventually(h.t, "set kept has what was accepted", func() bool {
		owed, err := h.bridge.SIP.Submissions(context.Background(), submission.Query{Set: "main", ImportPending: true})
		return err == nil && len(owed) == 0
	})
	return h.told("kept")
}

// verdicts says what became of the notifications of a set: "verdict own outcome
// assigned-or-reason times", sorted.
func (h *sipBridge) verdicts(set string) []string {
	h.t.Helper()
	var out []string
	for _, n := range h.notifications(set) {
		out = append(out, fmt.Sprintf("%s %s: %s %s%s x%d", n.Verdict, n.SourceIdentifier, n.Outcome, n.Assigned, n.Reason, n.Times))
	}
	slices.Sort(out)
	return out
}

// await waits until the log has so many events in all.
func (h *sipBridge) await(events int) {
	h.t.Helper()
	for limit := time.After(patience); ; {
		changed := h.bridge.Log.Changed()
		if int(h.last()) >= events {
			return
		}
		select {
		case <-changed:
		case <-limit:
			h.t.Fatalf("%d events, want %d", h.last(), events)
		}
	}
}

// verified fails unless the data folder agrees with itself.
func (h *sipBridge) verified() {
	h.t.Helper()
	if _, err := h.bridge.Verify(context.Background(), true, func(f daemon.Finding) { h.t.Errorf("verify: %+v", f) }); err != nil {
		h.t.Error(err)
	}
}

// breaks lets every INSERT into a table of one of the two databases fail, until
// heal is called.
func (h *sipBridge) breaks(file, table string) (heal func()) {
	h.t.Helper()
	do := func(text string) {
		h.t.Helper()
		db, err := sql.Open("sqlite", "file:"+filepath.Join(h.config.Data, file)+"?_pragma=busy_timeout(60000)")
		if err != nil {
			h.t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(text); err != nil {
			h.t.Fatal(err)
		}
	}
	do("CREATE TRIGGER broken BEFORE INSERT ON " + table + " BEGIN SELECT RAISE(FAIL, 'the disk is on fire'); END")
	return func() { do("DROP TRIGGER broken") }
}

// recipient is a notification recipient of the test's own.
type recipient struct {
	*httptest.Server
	t    *testing.T
	told chan *disposed
}

func newRecipient(t *testing.T) *recipient {
	r, ended := &recipient{t: t, told: make(chan *disposed, 16)}, make(chan struct{})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		a := &soapAnswer{}
		if err := xml.NewDecoder(q.Body).Decode(a); err != nil {
			select {
			case <-ended: // who closes a server breaks off what it is being sent
			default:
				t.Error(err)
			}
			return
		}
		select {
		case r.told <- a.Body.Disposition:
			w.WriteHeader(http.StatusAccepted)
		case <-ended: // nobody asks for more than the channel holds
		}
	}))
	t.Cleanup(func() {
		close(ended)
		r.Close()
	})
	return r
}

// next returns the next disposition that it is told of.
func (r *recipient) next() *disposed {
	r.t.Helper()
	select {
	case d := <-r.told:
		if d == nil {
			r.t.Fatal("a message without a disposition")
		}
		return d
	case <-time.After(patience):
		r.t.Fatal("no notification comes")
	}
	return nil
}
