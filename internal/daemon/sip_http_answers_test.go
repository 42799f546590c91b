package daemon_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sipCase is a row of the table of answers: a call, its answer, and whether the
// log has changed.
type sipCase struct {
	name, path, message string
	args                []string // of curl
	status              int
	media               string // "" is a fault, or plain text where there is no code
	code, where, says   string // of a fault; says of any answer
	changes             bool
}

func (h *sipBridge) check(rows []sipCase) {
	for _, row := range rows {
		h.sub(row.name, func(t *testing.T) {
			before := h.state()
			r := h.curl(row.path, row.message, row.args...).want(t, row.status)
			switch {
			case row.code != "":
				r.wantFault(t, row.code, row.where, row.says)
			case row.media == "none":
				r.field(t, "Content-Type", "")
				r.field(t, "Content-Length", "0")
			case row.media != "":
				r.field(t, "Content-Type", row.media)
			default:
				r.field(t, "Content-Type", "text/plain; charset=utf-8")
			}
			if !strings.Contains(string(r.body), row.says) && row.code == "" {
				t.Errorf("answered %q, want %q", r.body, row.says)
			}
			r.field(t, "X-Content-Type-Options", "nosniff")
			if after := h.state(); (after != before) != row.changes {
				t.Errorf("the log was\n%sand is\n%s", before, after)
			}
		})
	}
}

// newAnswersBridge has a service of every mode, and one of each access.
func newAnswersBridge(t *testing.T) *sipBridge {
	t.Setenv("SIP_TOKEN", "an-access-token-0123456789")
	t.Setenv("SIP_PASSWORD", "open sesame")
	return newSIPBridge(t, "allow_hosts = [\"10.9.8.7\", \"inside.example\"]\n[limits]\nsip_message = \"64 KiB\"\n[mail]\nfrom = \"notes@bridge.example\"\n"+
		sipSet("main", libraryMode)+
		sipSet("review", reviewMode)+
		sipSet("box", `record_url = "http://library.invalid/records/{assigned-identifier}"`)+
		sipSet("plain", libraryMode, "plain_post = true")+
		sipSet("plainbox", "plain_post = true")+
		sipSet("token", libraryMode, `access = "token"`, `access_token = "${SIP_TOKEN}"`)+
		sipSet("basic", libraryMode, `access = "basic"`, `access_user = "ann"`, `access_password = "${SIP_PASSWORD}"`)+
		sipSet("near", libraryMode, `access = "addresses"`, `access_addresses = ["127.0.0.0/8"]`))
}

// TestSIPAnswers_Taken: what is taken, with and without an envelope.
func TestSIPAnswers_Taken(t *testing.T) {
	testenv.Heavy(t)
	h := newAnswersBridge(t)
	const out = "text/xml; charset=utf-8"
	plain := func(message string) string {
		return strings.NewReplacer(inSOAPHead, "", inSOAPTail, "").Replace(message)
	}
	notify := notifyOf(sourceOf("1") + rejectedFor("no room"))
	unknown := strings.Replace(ingestOf("odd", "x"), "urn:r", "urn:other", 1)
	h.check([]sipCase{
		{name: "get-properties", path: "/sip/main", message: inSOAP(sipDoc("get-properties", "")), status: 200, media: out, says: "<sip:notification-style>synchronous<"},
		{name: "get-properties, review", path: "/sip/review", message: inSOAP(sipDoc("get-properties", "")), status: 200, media: out, says: "<sip:notification-style>asynchronous<"},
		{name: "ingest", path: "/sip/main", message: ingestOf("1", "x"), status: 200, media: out, says: "assigned-identifier>urn:uuid:", changes: true},
		{name: "ingest, again", path: "/sip/main", message: ingestOf("1", "x"), status: 200, media: out, says: "assigned-identifier>urn:uuid:"},
		{name: "application/xml", path: "/sip/main", message: ingestOf("2", "x"), args: []string{"-H", "Content-Type: Application/XML"}, status: 200, media: out, says: "accepted", changes: true},
		{name: "any SOAPAction", path: "/sip/main", message: ingestOf("3", "x"), args: []string{"-H", `SOAPAction: "urn:notify"`}, status: 200, media: out, says: "accepted", changes: true},
		{name: "a header that need not be understood", path: "/sip/main", message: strings.Replace(ingestOf("4", "x"), "<e:Body>", `<e:Header><t xmlns="urn:t" e:mustUnderstand="0"/><t xmlns="urn:t" e:mustUnderstand="1" e:actor="urn:somebody"/></e:Header><e:Body>`, 1),
			status: 200, media: out, says: "accepted", changes: true},
		{name: "a format that is none of ours", path: "/sip/main", message: unknown, status: 200, media: out, says: "{urn:other}r is not accepted", changes: true},
		{name: "the same once more", path: "/sip/main", message: unknown, status: 200, media: out, says: "{urn:other}r is not accepted"},
		{name: "notify", path: "/sip/box", message: notify, status: 202, media: "none", changes: true},
		{name: "the description", path: "/sip/box?wsdl", status: 200, media: out, says: h.base + "/sip/box?xsd"},
		{name: "the schema", path: "/sip/box?xsd", status: 200, media: out, says: "ingest-disposition"},
		{name: "from an address that may", path: "/sip/near", message: ingestOf("1", "x"), status: 200, media: out, says: "accepted", changes: true},
		{name: "with the login", path: "/sip/basic", message: ingestOf("1", "x"), args: []string{"--user", "ann:open sesame"}, status: 200, media: out, says: "accepted", changes: true},
		{name: "with the token", path: "/sip/token/an-access-token-0123456789", message: ingestOf("1", "x"), status: 200, media: out, says: "accepted", changes: true},

		{name: "without an envelope, which is off", path: "/sip/main", message: plain(ingestOf("5", "x")), status: 500, code: "Client", where: "ingest-request", says: "Envelope"},
		{name: "without an envelope", path: "/sip/plain", message: plain(ingestOf("1", "x")), status: 200, media: out, says: "<sip:ingest-disposition", changes: true},
		{name: "with one all the same", path: "/sip/plain", message: ingestOf("2", "x"), status: 200, media: out, says: ":Envelope", changes: true},
		{name: "plain and wrong", path: "/sip/plain", message: sipDoc("ingest-request", ""), status: 400, says: "ingest-request"},
		{name: "a plain notification", path: "/sip/plainbox", message: plain(notify), status: 202, media: "none", changes: true},
		{name: "a plain provisional one", path: "/sip/plainbox", message: sipDoc("ingest-disposition", "<i:provisionally-accepted/>"), status: 400, says: "provisionally"},
	})
	if r := h.get("/sip/main?xsd"); !strings.Contains(string(r.body), "ingest-request") {
		t.Errorf("%s", r.body)
	}
	h.verified()
}

// TestSIPAnswers_StoringFails: nothing is acknowledged that is not there, reading
// goes on, and what has failed works once the disk does.
func TestSIPAnswers_StoringFails(t *testing.T) {
	testenv.Heavy(t)
	h := newAnswersBridge(t)
	recipient := recipientAt("http://10.9.8.7/n")
	record := recordOf(`<r xmlns="urn:r">x</r>`)
	for i, row := range []struct{ name, file, table, path, message string }{
		{"the contents", "content.db", "content", "/sip/main", "<i:source/>" + record},
		{"the events", "log.db", "event", "/sip/main", "<i:source/>" + recordOf(`<r xmlns="urn:r">2</r>`)},
		{"a rejection", "log.db", "event", "/sip/main", sourceOf("5") + recordOf("<s/>")},
		{"the submissions", "log.db", "submission", "/sip/review", sourceOf("6") + recipient + record},
		{"the notifications", "log.db", "incoming_notification", "/sip/box", sourceOf("7") + acceptedAs("7")},
		{"a rejection that we are told of", "log.db", "event", "/sip/box", sourceOf("9") + rejectedFor("no room")},
	} {
		h.sub(row.name, func(t *testing.T) {
			message, status := inSOAP(sipDoc("ingest-request", row.message)), http.StatusOK
			if strings.HasSuffix(row.path, "box") {
				message, status = notifyOf(row.message), http.StatusAccepted
			}
			before := h.state()
			heal := h.breaks(row.file, row.table)
			for range 2 {
				r := h.curl(row.path, message)
				r.wantFault(t, "Server", "", "try again later")
				if strings.Contains(string(r.body), "fire") {
					t.Errorf("the answer tells of our disk: %s", r.body)
				}
			}
			if after := h.state(); after != before {
				t.Errorf("the log was\n%sand is\n%s", before, after)
			}
			h.get(h.setURL("changelist.xml"))
			heal()
			h.curl(row.path, message).want(t, status)
			if after := h.state(); after == before {
				t.Errorf("nothing came of it: %s", after)
			}
			if n := strings.Count(h.said.String(), "a SIP call failed"); n != 2*(i+1) {
				t.Errorf("%d failures were logged, want %d", n, 2*(i+1))
			}
		})
	}
	h.verified()
}
