package sip

import (
	"bytes"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// go test ./sip -update writes the golden files anew.
var update = flag.Bool("update", false, "write the golden files anew")

// full is a source with everything, and with what has to be escaped.
func full() *Source {
	return &Source{
		Submitter:  &Submitter{Name: " Stanford <DL> & \"Project\"\t", EmailAddress: "dl@stanford.example"},
		Sequence:   new("Campus\r\nBuildings"),
		Identifier: new("145"),
	}
}

func gazetteer() Record {
	return Record{Root: xml.Name{Space: "urn:example:gazetteer", Local: "entry"},
		XML: []byte("<g:entry xmlns:g=\"urn:example:gazetteer\"\r\n  a = '1'><!-- as it came --><g:name>Stra\u00dfe</g:name><![CDATA[<&]]>&#xE4;</g:entry>")}
}

// samples has messages of every kind, with each choice that there is.
func samples() map[string]*Message {
	plain := Record{Root: xml.Name{Local: "r"}, XML: []byte("<r/>")}
	disposition := func(d Disposition) *Message { return &Message{Kind: KindDisposition, Disposition: &d} }
	return map[string]*Message{
		"get-properties": {Kind: KindGetProperties},
		"properties": {Kind: KindProperties, Properties: &Properties{Style: Asynchronous,
			Formats: []string{"http://example.org/a.xsd?b&c='d'", "urn:example:e"}}},
		"properties-one": {Kind: KindProperties, Properties: &Properties{Style: Synchronous, Formats: []string{"http://example.org/a.xsd"}}},
		"request": {Kind: KindRequest, Request: &Request{Source: full(),
			Recipient: "http://example.org/notify?a=1&b=2", Record: gazetteer()}},
		"request-least":   {Kind: KindRequest, Request: &Request{Record: plain}},
		"request-empty":   {Kind: KindRequest, Request: &Request{Source: &Source{}, Record: plain}},
		"accepted":        disposition(Disposition{Source: full(), Outcome: Accepted, AssignedIdentifier: "urn:x:1 <&>\n2"}),
		"provisional":     disposition(Disposition{Outcome: ProvisionallyAccepted}),
		"provisional-for": disposition(Disposition{Source: &Source{Sequence: new("")}, Outcome: ProvisionallyAccepted}),
		"rejected":        disposition(Disposition{Source: &Source{Submitter: &Submitter{}, Identifier: new("")}, Outcome: Rejected}),
		"rejected-why":    disposition(Disposition{Outcome: Rejected, Reason: "Data value out of range:\n\"\u20ac\""}),
		"fault":           {Kind: KindFault, Fault: &Fault{Code: Server, Text: "The disk is full."}},
		"fault-place": {Kind: KindFault, Fault: &Fault{Code: Client, Text: `found <b>, expected <"a">`,
			Path: "ingest-request/source", Line: 3, Column: 14}},
	}
}

// describe writes a message down for a failure.
func describe(m *Message) string {
	if m == nil {
		return "nothing"
	}
	return string(AppendDocument(nil, m))
}

// TestGolden: the bytes of every document are what they were, and read as what
// was written.
func TestGolden(t *testing.T) {
	for name, m := range samples() {
		path := filepath.Join("testdata", name+".xml")
		got := AppendMessage([]byte("before"), m)[len("before"):]
		testenv.Golden(t, *update, path, got)
		back, err := ReadMessage(bytes.NewReader(got), ReadOptions{})
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: read as %s, %v", path, describe(back), err)
		}
		document := AppendDocument(nil, m)
		if back, err = ReadDocument(document); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: its document alone is read as %s, %v", path, describe(back), err)
		}
		if back, err = ReadMessage(bytes.NewReader(document), ReadOptions{Plain: true}); err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s: its document alone is read as %s, %v", path, describe(back), err)
		}
		if _, err = ReadMessage(bytes.NewReader(document), ReadOptions{}); err == nil || !strings.Contains(err.Error(), "expected a SOAP 1.1 <Envelope>") {
			t.Errorf("%s: its document alone is taken for a message: %v", path, err)
		}
	}
}

func TestSourceAlone(t *testing.T) {
	for _, s := range []*Source{full(), {}, {Sequence: new("")}, {Identifier: new(" 1 ")}, {Submitter: &Submitter{Name: "n"}}} {
		doc := AppendSource(nil, s)
		back, err := ParseSource(doc)
		if err != nil || !reflect.DeepEqual(back, s) {
			t.Errorf("%s: read as %+v, %v", doc, back, err)
		}
	}
	for doc, want := range map[string]string{
		"":          "SOAP fault Client: the document is empty; want a message of the Simple Ingest Protocol",
		"<source/>": `SOAP fault Client at source: found <source> without a namespace, expected <source> in namespace "http://www.alexandria.ucsb.edu"`,
		"<sequence xmlns='http://www.alexandria.ucsb.edu'/>":     `SOAP fault Client at sequence: found <sequence> in namespace "http://www.alexandria.ucsb.edu", expected <source> in namespace "http://www.alexandria.ucsb.edu"`,
		"<source xmlns='http://www.alexandria.ucsb.edu'/><a/>":   "SOAP fault Client: a second root element <a>",
		"<source xmlns='http://www.alexandria.ucsb.edu' a='b'/>": "SOAP fault Client at source: found the attribute a, expected none",
		"<source xmlns='http://www.alexandria.ucsb.edu'><a/>":    "SOAP fault Client at source/a: found <a>, expected <submitter> or <sequence> or <source-identifier> or </source>",
	} {
		if s, err := ParseSource([]byte(doc)); err == nil || err.Error() != want {
			t.Errorf("%s: %+v, %v, want %s", doc, s, err, want)
		}
	}
}

// TestUnholdable: what XML cannot hold does not make a broken document.
func TestUnholdable(t *testing.T) {
	d := &Disposition{Outcome: Rejected, Reason: "\x00\xff\uffff"}
	back, err := ReadDocument(AppendDocument(nil, &Message{Kind: KindDisposition, Disposition: d}))
	if err != nil || back.Disposition.Reason != "\ufffd\ufffd\ufffd" {
		t.Errorf("%s, %v", describe(back), err)
	}
}

// TestKinds: every kind has a name, and others say that they have none.
func TestKinds(t *testing.T) {
	for k, want := range map[Kind]string{0: "kind(0)", KindGetProperties: "get-properties", KindProperties: "ingest-properties",
		KindRequest: "ingest-request", KindDisposition: "ingest-disposition", KindFault: "Fault", 6: "kind(6)"} {
		if k.String() != want {
			t.Errorf("%d: %s, want %s", uint8(k), k, want)
		}
	}
}

// TestOutcomes: every outcome is called as its element, and others say that they have none.
func TestOutcomes(t *testing.T) {
	for o, want := range map[Outcome]string{0: "outcome(0)", Accepted: "accepted", ProvisionallyAccepted: "provisionally-accepted", Rejected: "rejected", 4: "outcome(4)"} {
		if o.String() != want {
			t.Errorf("%d: %s, want %s", uint8(o), o, want)
		}
	}
}

// TestFaultWithoutCode: SOAP 1.1, 4.4, wants a faultcode; a fault that names no code is the server's.
func TestFaultWithoutCode(t *testing.T) {
	back, err := ReadMessage(bytes.NewReader(AppendMessage(nil, &Message{Kind: KindFault, Fault: &Fault{Text: "broken"}})), ReadOptions{})
	if err != nil || back.Kind != KindFault || back.Fault.Code != Server || back.Fault.Text != "broken" {
		t.Errorf("%s, %v", describe(back), err)
	}
}

// TestSchemas: what we write is valid by our schema, and by one that was written
// by others.
func TestSchemas(t *testing.T) {
	testenv.Heavy(t)
	xmllint := testenv.Need(t, "xmllint", "libxml2-utils")
	ours := filepath.Join(t.TempDir(), "sip.xsd")
	if err := os.WriteFile(ours, Schema(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("ours", func(t *testing.T) {
		validate(t, xmllint, ours)
		for name, doc := range invalid() {
			if out, err := xmlValid(t, xmllint, ours, doc); err == nil {
				t.Errorf("%s is valid: %s", name, out)
			}
		}
	})
	t.Run("theirs", func(t *testing.T) { validate(t, xmllint, testenv.Shared(t, "schemas/sip.xsd")) })
}

func validate(t *testing.T, xmllint, schema string) {
	for name, m := range samples() {
		if m.Kind == KindFault {
			continue
		}
		if out, err := xmlValid(t, xmllint, schema, AppendDocument(nil, m)); err != nil {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// invalid has documents that the reader refuses and the schema has to refuse too.
func invalid() map[string][]byte {
	docs := map[string][]byte{}
	for _, c := range structural() {
		if !strings.HasPrefix(c.doc, "<soap:") && !c.readerOnly {
			docs[c.doc] = []byte(declareSIP(c.doc))
		}
	}
	return docs
}

func xmlValid(t *testing.T, xmllint, schema string, doc []byte) (output []byte, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), xmllint, "--nonet", "--noout", "--schema", schema, "-")
	cmd.Stdin = bytes.NewReader(doc)
	return cmd.CombinedOutput()
}

// TestWSDL: the description is well-formed and has the operations that are
// offered, notify without an output, and the location escaped.
func TestWSDL(t *testing.T) {
	const location = `http://example.org/sip?a=1&b="2"`
	for _, c := range []struct {
		offered Operations
		want    string
	}{
		{Operations{}, ""},
		{Operations{Ingest: true}, "get-properties:io ingest:io"},
		{Operations{Notify: true}, "notify:i"},
		{Operations{Ingest: true, Notify: true}, "get-properties:io ingest:io notify:i"},
	} {
		var d struct {
			Import struct {
				Location string `xml:"schemaLocation,attr"`
			} `xml:"types>schema>import"`
			Messages []struct {
				Name string `xml:"name,attr"`
				Part struct {
					Element string `xml:"element,attr"`
				} `xml:"part"`
			} `xml:"message"`
			Ports []wsdlOperation `xml:"portType>operation"`
			Bound []wsdlOperation `xml:"binding>operation"`
			Port  struct {
				Address struct {
					Location string `xml:"location,attr"`
				} `xml:"address"`
			} `xml:"service>port"`
		}
		if err := xml.Unmarshal(WSDL(c.offered, location), &d); err != nil {
			t.Fatal(err)
		}
		if d.Import.Location != location+"?xsd" || d.Port.Address.Location != location {
			t.Errorf("%+v: %q, %q", c.offered, d.Import.Location, d.Port.Address.Location)
		}
		elements := map[string]string{}
		for _, m := range d.Messages {
			elements["tns:"+m.Name] = m.Part.Element
		}
		if got := wsdlOperations(d.Ports); got != c.want {
			t.Errorf("%+v: the port type has %s, want %s", c.offered, got, c.want)
		}
		if got := wsdlOperations(d.Bound); got != c.want {
			t.Errorf("%+v: the binding has %s, want %s", c.offered, got, c.want)
		}
		for i, op := range d.Ports {
			if want := "http://www.alexandria.ucsb.edu/" + op.Name; d.Bound[i].SOAP.Action != want {
				t.Errorf("%s: SOAPAction %s, want %s", op.Name, d.Bound[i].SOAP.Action, want)
			}
			want := map[string]string{"get-properties": "sip:get-properties sip:ingest-properties",
				"ingest": "sip:ingest-request sip:ingest-disposition", "notify": "sip:ingest-disposition "}[op.Name]
			got := elements[op.Input.Message] + " "
			if op.Output != nil {
				got += elements[op.Output.Message]
			}
			if got != want {
				t.Errorf("%s: %s, want %s", op.Name, got, want)
			}
		}
	}
}

type wsdlOperation struct {
	Name string `xml:"name,attr"`
	SOAP struct {
		Action string `xml:"soapAction,attr"`
	} `xml:"http://schemas.xmlsoap.org/wsdl/soap/ operation"`
	Input  wsdlMessage  `xml:"input"`
	Output *wsdlMessage `xml:"output"`
	Fault  *wsdlMessage `xml:"fault"`
}

type wsdlMessage struct {
	Message string `xml:"message,attr"`
}

func wsdlOperations(list []wsdlOperation) string {
	var names []string
	for _, op := range list {
		name := op.Name + ":i"
		if op.Output != nil {
			name += "o"
		}
		if op.Fault != nil {
			name += "f"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// declareSIP declares the prefix sip on the first element, and the prefix soap.
func declareSIP(doc string) string {
	end := strings.IndexAny(doc, " />")
	return fmt.Sprintf(`%s xmlns:sip="%s" xmlns:soap="%s"%s`, doc[:end], Namespace, soapNamespace, doc[end:])
}
