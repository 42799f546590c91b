package sip

import (
	"bytes"
	"encoding/xml"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// structureCase is a document, of which declareSIP makes a whole one, and the
// Fault of code Client that it gets.
type structureCase struct {
	doc  string
	path string
	text string // a part of it
	// readerOnly: a schema cannot know it, or xmllint does not.
	readerOnly bool
}

// structural has every way in which the structure of a document can be wrong.
func structural() []structureCase {
	const (
		alexandria = ` in namespace "http://www.alexandria.ucsb.edu"`
		documents  = "expected <get-properties>, <ingest-properties>, <ingest-request> or <ingest-disposition>" + alexandria
	)
	properties := func(inner string) string { return "<sip:ingest-properties>" + inner + "</sip:ingest-properties>" }
	style := "<sip:notification-style>synchronous</sip:notification-style>"
	formats := "<sip:formats><sip:format>urn:f</sip:format></sip:formats>"
	request := func(inner string) string { return "<sip:ingest-request>" + inner + "</sip:ingest-request>" }
	record := "<sip:record><r/></sip:record>"
	source := func(inner string) string { return request("<sip:source>" + inner + "</sip:source>" + record) }
	submitter := func(inner string) string { return source("<sip:submitter>" + inner + "</sip:submitter>") }
	disposition := func(inner string) string { return "<sip:ingest-disposition>" + inner + "</sip:ingest-disposition>" }
	accepted := "<sip:accepted><sip:assigned-identifier>1</sip:assigned-identifier></sip:accepted>"

	return []structureCase{
		// Roots.
		{doc: "<get-properties/>", path: "get-properties", text: "found <get-properties> without a namespace, " + documents},
		{doc: "<x:get-properties xmlns:x='urn:x'/>", path: "get-properties", text: `found <get-properties> in namespace "urn:x", ` + documents},
		{doc: "<sip:Ingest-Request/>", path: "Ingest-Request", text: documents},
		{doc: "<sip:source/>", path: "source", text: documents},
		{doc: "<soap:Body/>", path: "Body", text: documents},
		// get-properties.
		{doc: "<sip:get-properties><sip:a/></sip:get-properties>", path: "get-properties/a", text: "found <a>, expected </get-properties>"},
		{doc: "<sip:get-properties>a</sip:get-properties>", path: "get-properties", text: `found the text "a", expected elements only`},
		{doc: "<sip:get-properties a='b'/>", path: "get-properties", text: "found the attribute a, expected none"},
		// ingest-properties.
		{doc: "<sip:ingest-properties/>", path: "ingest-properties", text: "found </ingest-properties>, expected <notification-style>"},
		{doc: properties(style), path: "ingest-properties", text: "found </ingest-properties>, expected <formats>"},
		{doc: properties(formats + style), path: "ingest-properties/formats", text: "found <formats>, expected <notification-style>"},
		{doc: properties(style + style + formats), path: "ingest-properties/notification-style", text: "found <notification-style>, expected <formats>"},
		{doc: properties(style + formats + formats), path: "ingest-properties/formats", text: "found <formats>, expected </ingest-properties>"},
		{doc: properties(strings.Replace(style, "syn", "Syn", 1) + formats), path: "ingest-properties/notification-style",
			text: `found the text "Synchronous", expected synchronous or asynchronous`},
		{doc: properties("<sip:notification-style/>" + formats), path: "ingest-properties/notification-style",
			text: `found the text "", expected synchronous or asynchronous`},
		{doc: properties(strings.Replace(style, ">syn", "><sip:a/>syn", 1) + formats), path: "ingest-properties/notification-style/a",
			text: "found <a>, expected only text in <notification-style>"},
		{doc: properties(style + "<sip:formats/>"), path: "ingest-properties/formats", text: "found </formats>, expected <format>"},
		{doc: properties(style + "<sip:formats><sip:format/></sip:formats>"), path: "ingest-properties/formats/format", text: "found nothing in <format>"},
		{doc: properties(style + "<sip:formats><sip:format> \n</sip:format></sip:formats>"), path: "ingest-properties/formats/format",
			text: "found nothing in <format>, expected a text"},
		{doc: properties(style + "<sip:formats><sip:format>a</sip:format><sip:schema/></sip:formats>"), path: "ingest-properties/formats/schema",
			text: "found <schema>, expected <format> or </formats>"},
		{doc: properties(style + "<sip:formats>urn:f<sip:format>a</sip:format></sip:formats>"), path: "ingest-properties/formats",
			text: `found the text "urn:f"`},
		{doc: properties(style + "<sip:formats><sip:format><b/></sip:format></sip:formats>"), path: "ingest-properties/formats/format/b",
			text: "found <b>, expected only text in <format>"},
		// ingest-request.
		{doc: "<sip:ingest-request/>", path: "ingest-request",
			text: "found </ingest-request>, expected <source> or <notification-recipient> or <record>"},
		{doc: request("<sip:source/>"), path: "ingest-request", text: "found </ingest-request>, expected <notification-recipient> or <record>"},
		{doc: request("<sip:notification-recipient>urn:a</sip:notification-recipient><sip:source/>" + record), path: "ingest-request/source",
			text: "found <source>, expected <record>"},
		{doc: request(record + "<sip:source/>"), path: "ingest-request/source", text: "found <source>, expected </ingest-request>"},
		{doc: request(record + record), path: "ingest-request/record", text: "found <record>, expected </ingest-request>"},
		{doc: request("<sip:source/><sip:source/>" + record), path: "ingest-request/source",
			text: "found <source>, expected <notification-recipient> or <record>"},
		{doc: request("<sip:notification-recipient><a/></sip:notification-recipient>" + record), path: "ingest-request/notification-recipient/a",
			text: "expected only text"},
		{doc: request("<record><r/></record>"), path: "ingest-request/record",
			text: "found <record> without a namespace, expected <source> or <notification-recipient> or <record>" + alexandria},
		{doc: request("<sip:record/>"), path: "ingest-request/record", text: "found </record>, expected the record, which is one element"},
		{doc: request("<sip:record>\n<!-- --></sip:record>"), path: "ingest-request/record", text: "found </record>, expected the record"},
		{doc: request("<sip:record>a<r/></sip:record>"), path: "ingest-request/record", text: `found the text "a"`},
		{doc: request("<sip:record><r/>a</sip:record>"), path: "ingest-request/record", text: `found the text "a"`},
		{doc: request("<sip:record><![CDATA[<r/>]]></sip:record>"), path: "ingest-request/record", text: `found the text "<r/>"`},
		{doc: request("<sip:record><r/><s/></sip:record>"), path: "ingest-request/record/s", text: "found <s>, expected </record>: a request has one record"},
		{doc: request("<sip:record a='b'><r/></sip:record>"), path: "ingest-request/record", text: "found the attribute a, expected none"},
		// source.
		{doc: source("<sip:a/>"), path: "ingest-request/source/a",
			text: "found <a>, expected <submitter> or <sequence> or <source-identifier> or </source>"},
		{doc: source("<sip:sequence/><sip:submitter><sip:name/><sip:email-address/></sip:submitter>"), path: "ingest-request/source/submitter",
			text: "found <submitter>, expected <source-identifier> or </source>"},
		{doc: source("<sip:source-identifier/><sip:sequence/>"), path: "ingest-request/source/sequence", text: "found <sequence>, expected </source>"},
		{doc: source("<sip:sequence/><sip:sequence/>"), path: "ingest-request/source/sequence",
			text: "found <sequence>, expected <source-identifier> or </source>"},
		{doc: source("a"), path: "ingest-request/source", text: `found the text "a", expected elements only`},
		{doc: source("<sip:sequence><sip:a/></sip:sequence>"), path: "ingest-request/source/sequence/a", text: "expected only text in <sequence>"},
		{doc: source("<sip:sequence a='b'/>"), path: "ingest-request/source/sequence", text: "found the attribute a"},
		{doc: submitter(""), path: "ingest-request/source/submitter", text: "found </submitter>, expected <name>"},
		{doc: submitter("<sip:name/>"), path: "ingest-request/source/submitter", text: "found </submitter>, expected <email-address>"},
		{doc: submitter("<sip:email-address/>"), path: "ingest-request/source/submitter/email-address",
			text: "found <email-address>, expected <name>"},
		{doc: submitter("<sip:email-address/><sip:name/>"), path: "ingest-request/source/submitter/email-address",
			text: "found <email-address>, expected <name>"},
		{doc: submitter("<sip:name/><sip:name/><sip:email-address/>"), path: "ingest-request/source/submitter/name",
			text: "found <name>, expected <email-address>"},
		{doc: submitter("<sip:name/><sip:email-address/><sip:phone/>"), path: "ingest-request/source/submitter/phone",
			text: "found <phone>, expected </submitter>"},
		{doc: submitter("<sip:name><sip:b>n</sip:b></sip:name><sip:email-address/>"), path: "ingest-request/source/submitter/name/b",
			text: "found <b>, expected only text in <name>"},
		{doc: submitter("<sip:name><sip:b>n</sip:b></sip:name>"), path: "ingest-request/source/submitter/name/b", text: "expected only text"},
		// ingest-disposition.
		{doc: "<sip:ingest-disposition/>", path: "ingest-disposition",
			text: "found </ingest-disposition>, expected <source> or <accepted> or <provisionally-accepted> or <rejected>"},
		{doc: disposition("<sip:source/>"), path: "ingest-disposition", text: "expected <accepted> or <provisionally-accepted> or <rejected>"},
		{doc: disposition(accepted + "<sip:source/>"), path: "ingest-disposition/source", text: "found <source>, expected </ingest-disposition>"},
		{doc: disposition(accepted + accepted), path: "ingest-disposition/accepted", text: "found <accepted>, expected </ingest-disposition>"},
		{doc: disposition(accepted + "<sip:rejected/>"), path: "ingest-disposition/rejected", text: "found <rejected>, expected </ingest-disposition>"},
		{doc: disposition("<sip:provisionally-accepted/>" + accepted), path: "ingest-disposition/accepted",
			text: "found <accepted>, expected </ingest-disposition>"},
		{doc: disposition("<sip:pending/>"), path: "ingest-disposition/pending",
			text: "found <pending>, expected <source> or <accepted> or <provisionally-accepted> or <rejected>"},
		{doc: disposition("<sip:accepted/>"), path: "ingest-disposition/accepted", text: "found </accepted>, expected <assigned-identifier>"},
		{doc: disposition("<sip:accepted><sip:assigned-identifier/></sip:accepted>"), path: "ingest-disposition/accepted/assigned-identifier",
			text: "found nothing in <assigned-identifier>"},
		{doc: disposition("<sip:accepted><sip:assigned-identifier> </sip:assigned-identifier></sip:accepted>"),
			path: "ingest-disposition/accepted/assigned-identifier", text: "found nothing in <assigned-identifier>", readerOnly: true},
		{doc: disposition("<sip:accepted>1</sip:accepted>"), path: "ingest-disposition/accepted", text: `found the text "1"`},
		{doc: disposition(strings.Replace(accepted, "</sip:accepted>", "<sip:reason/></sip:accepted>", 1)), path: "ingest-disposition/accepted/reason",
			text: "found <reason>, expected </accepted>"},
		{doc: disposition("<sip:provisionally-accepted> </sip:provisionally-accepted>"), path: "ingest-disposition/provisionally-accepted",
			text: "found something in <provisionally-accepted>, expected nothing at all", readerOnly: true},
		{doc: disposition("<sip:provisionally-accepted><!-- --></sip:provisionally-accepted>"), path: "ingest-disposition/provisionally-accepted",
			text: "found something in", readerOnly: true},
		{doc: disposition("<sip:provisionally-accepted><![CDATA[]]></sip:provisionally-accepted>"), path: "ingest-disposition/provisionally-accepted",
			text: "found something in", readerOnly: true},
		{doc: disposition("<sip:provisionally-accepted>a</sip:provisionally-accepted>"), path: "ingest-disposition/provisionally-accepted",
			text: "found something in"},
		{doc: disposition("<sip:provisionally-accepted><sip:a/></sip:provisionally-accepted>"), path: "ingest-disposition/provisionally-accepted",
			text: "found something in"},
		{doc: disposition("<sip:provisionally-accepted a='b'/>"), path: "ingest-disposition/provisionally-accepted", text: "found the attribute a"},
		{doc: disposition("<sip:rejected>why</sip:rejected>"), path: "ingest-disposition/rejected", text: `found the text "why", expected elements only`},
		{doc: disposition("<sip:rejected><sip:reason/><sip:reason/></sip:rejected>"), path: "ingest-disposition/rejected/reason",
			text: "found <reason>, expected </rejected>"},
		{doc: disposition("<sip:rejected><sip:because/></sip:rejected>"), path: "ingest-disposition/rejected/because",
			text: "found <because>, expected <reason> or </rejected>"},
		{doc: disposition("<sip:rejected><sip:reason><i/></sip:reason></sip:rejected>"), path: "ingest-disposition/rejected/reason/i",
			text: "found <i>, expected only text in <reason>"},
		// Fault, as the answer of others.
		{doc: "<soap:Fault/>", path: "Fault", text: "found </Fault>, expected a <faultcode> before it"},
		{doc: "<soap:Fault><faultcode>soap:</faultcode></soap:Fault>", path: "Fault", text: "expected a <faultcode>"},
		{doc: "<soap:Fault><faultcode>.Client</faultcode></soap:Fault>", path: "Fault", text: "expected a <faultcode>"},
		{doc: "<soap:Fault>a</soap:Fault>", path: "Fault", text: `found the text "a"`},
	}
}

// TestStructure: each fault of structure has its place, alone and in an envelope.
func TestStructure(t *testing.T) {
	for _, c := range structural() {
		doc := declareSIP(c.doc)
		_, err := ReadDocument([]byte(doc))
		expectFault(t, doc, err, Client, c.path, c.text)
		inside := `<soap:Envelope xmlns:soap="` + soapNamespace + `">` + "\n<soap:Body>\n" + doc + "</soap:Body></soap:Envelope>"
		_, err = ReadMessage(strings.NewReader(inside), ReadOptions{})
		expectFault(t, inside, err, Client, c.path, c.text)
		if f := new(Fault); errors.As(err, &f) && (f.Line < 3 || f.Column < 1) {
			t.Errorf("%s: at %d:%d", inside, f.Line, f.Column)
		}
	}
}

func expectFault(t *testing.T, doc string, err error, code Code, path, text string) {
	t.Helper()
	f, ok := err.(*Fault)
	if !ok || f.Code != code || f.Path != path || !strings.Contains(f.Text, text) || f.Line < 1 || f.Column < 1 {
		t.Errorf("%s\ngot  %#v\nwant %s at %s: %s", doc, err, code, path, text)
	}
}

// TestEnvelope has what can be wrong outside of the document.
func TestEnvelope(t *testing.T) {
	const get = "<sip:get-properties/>"
	header := func(attrs string) string {
		return "<soap:Envelope><soap:Header><x:h xmlns:x='urn:x' " + attrs + "><y/></x:h></soap:Header><soap:Body>" + get + "</soap:Body></soap:Envelope>"
	}
	const next = "soap:actor='http://schemas.xmlsoap.org/soap/actor/next'"
	for _, c := range []struct {
		doc  string
		code Code // "": it is read
		path string
		text string
	}{
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body></soap:Envelope>", "", "", ""},
		{"<soap:Envelope soap:encodingStyle='urn:x' a='b'><!-- --><soap:Header/>\n<soap:Body c='d' soap:encodingStyle=''>\n" + get + "\n</soap:Body>\n</soap:Envelope>\n<!-- -->", "", "", ""},
		{"<soap:Envelope><soap:Body><sip:get-properties soap:encodingStyle='' sip:a='b' xml:id='c'> <!-- --> </sip:get-properties></soap:Body></soap:Envelope>", "", "", ""},
		// Headers.
		{header(""), "", "", ""},
		{header("soap:mustUnderstand='0'"), "", "", ""},
		{header("mustUnderstand='1'"), "", "", ""},
		{header("soap:mustUnderstand='1' soap:actor='urn:somebody'"), "", "", ""},
		{header("soap:mustUnderstand='1'"), MustUnderstand, "Envelope/Header/h", `the header <h> in namespace "urn:x" is not understood here`},
		{header("soap:mustUnderstand=' true '"), MustUnderstand, "Envelope/Header/h", "not understood"},
		{header("soap:mustUnderstand='1' soap:actor=''"), MustUnderstand, "Envelope/Header/h", "not understood"},
		{header("soap:mustUnderstand='1' " + next), MustUnderstand, "Envelope/Header/h", "not understood"},
		{header(next), "", "", ""},
		{"<soap:Envelope><soap:Header>a</soap:Header><soap:Body>" + get + "</soap:Body></soap:Envelope>", Client, "Envelope/Header", `found the text "a"`},
		{"<soap:Envelope><soap:Header/><soap:Header/><soap:Body>" + get + "</soap:Body></soap:Envelope>", Client, "Envelope/Header", "found <Header>, expected <Body>"},
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body><soap:Header/></soap:Envelope>", Client, "Envelope/Header", "found <Header>, expected </Envelope>"},
		// The body.
		{"<soap:Envelope/>", Client, "Envelope", "found </Envelope>, expected <Header> or <Body>"},
		{"<soap:Envelope><soap:Header/></soap:Envelope>", Client, "Envelope", "found </Envelope>, expected <Body>"},
		{"<soap:Envelope><soap:Body/></soap:Envelope>", Client, "Envelope/Body", "found </Body>, expected one document"},
		{"<soap:Envelope><soap:Body>a</soap:Body></soap:Envelope>", Client, "Envelope/Body", `found the text "a"`},
		{"<soap:Envelope><soap:Body>" + get + get + "</soap:Body></soap:Envelope>", Client, "Envelope/Body/get-properties", "expected </Body>: a message has one document"},
		{"<soap:Envelope><soap:Body>" + get + "<y/></soap:Body></soap:Envelope>", Client, "Envelope/Body/y", "found <y>, expected </Body>"},
		{"<soap:Envelope><soap:Body>" + get + "a</soap:Body></soap:Envelope>", Client, "Envelope/Body", `found the text "a"`},
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body><y xmlns='urn:y'/></soap:Envelope>", Client, "Envelope/y", `found <y> in namespace "urn:y", expected </Envelope>`},
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body><soap:Body>" + get + "</soap:Body></soap:Envelope>", Client, "Envelope/Body", "found <Body>, expected </Envelope>"},
		{"<soap:Envelope><sip:Body>" + get + "</sip:Body></soap:Envelope>", Client, "Envelope/Body",
			`found <Body> in namespace "http://www.alexandria.ucsb.edu", expected <Header> or <Body> in namespace "http://schemas.xmlsoap.org/soap/envelope/"`},
		{"<soap:Envelope>a<soap:Body>" + get + "</soap:Body></soap:Envelope>", Client, "Envelope", `found the text "a"`},
		// Other roots.
		{"<Envelope xmlns='http://www.w3.org/2003/05/soap-envelope'/>", VersionMismatch, "Envelope",
			`found an envelope in namespace "http://www.w3.org/2003/05/soap-envelope", expected one of SOAP 1.1 in namespace "http://schemas.xmlsoap.org/soap/envelope/"`},
		{"<Envelope/>", VersionMismatch, "Envelope", "found an envelope without a namespace"},
		{"<soap:envelope/>", Client, "envelope", "expected a SOAP 1.1 <Envelope>"},
		{get, Client, "get-properties", "expected a SOAP 1.1 <Envelope>"},
		{"<html/>", Client, "html", "found <html> without a namespace, expected a SOAP 1.1 <Envelope>"},
		// What is no XML, or more than SOAP allows.
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body></soap:Envelope><a/>", Client, "", "a second root element <a>"},
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body></soap:Envelope>a", Client, "", "text outside of the root element"},
		{"<soap:Envelope><soap:Body>" + get + "</soap:Body></soap:Envelope><?a b?>", Client, "", "the processing instruction <?a is refused"},
		{"<soap:Envelope><?a b?><soap:Body>" + get + "</soap:Body></soap:Envelope>", Client, "Envelope", "the processing instruction <?a is refused"},
		{"<soap:Envelope><soap:Body><sip:ingest-request><sip:record><r><?a?></r></sip:record></sip:ingest-request></soap:Body></soap:Envelope>",
			Client, "ingest-request/record/r", "the processing instruction <?a is refused"},
		{"<soap:Envelope><soap:Body><sip:get-properties a='b' a='c'/></soap:Body></soap:Envelope>", Client, "Envelope/Body", "attribute a occurs twice"},
		{"<soap:Envelope><soap:Body>&nbsp;" + get + "</soap:Body></soap:Envelope>", Client, "Envelope/Body", "invalid character entity &nbsp;"},
		{"<soap:Envelope><y:a/></soap:Envelope>", Client, "Envelope", "prefix that is not declared"},
	} {
		doc := declareSIP(c.doc)
		for _, plain := range []bool{false, true} {
			if plain && c.code == Client && strings.HasSuffix(c.text, "expected a SOAP 1.1 <Envelope>") {
				continue // without an envelope it is another fault, or none
			}
			m, err := ReadMessage(strings.NewReader(doc), ReadOptions{Plain: plain})
			if c.code == "" {
				if err != nil || m.Kind != KindGetProperties {
					t.Errorf("%s: %s, %v", doc, describe(m), err)
				}
				continue
			}
			expectFault(t, doc, err, c.code, c.path, c.text)
		}
	}
	for doc, text := range map[string]string{"": "the document is empty", "\ufeff \n": "the document is empty", "a": "text outside of the root element",
		"{}": "perhaps JSON", "<!DOCTYPE html><html/>": "an HTML page, not a message of the Simple Ingest Protocol",
		"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>": "DOCTYPE is refused", "<?a b?><c/>": "the processing instruction <?a is refused"} {
		_, err := ReadMessage(strings.NewReader(doc), ReadOptions{})
		expectFault(t, doc, err, Client, "", text)
		_, err = ReadDocument([]byte(doc))
		expectFault(t, doc, err, Client, "", text)
	}
	doc := declareSIP("<sip:get-properties/>") + "<a/>"
	_, err := ReadDocument([]byte(doc))
	expectFault(t, doc, err, Client, "", "a second root element <a>")
}

// TestTolerance: what may differ from what we write.
func TestTolerance(t *testing.T) {
	const xsi = ` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" `
	for _, c := range []struct {
		doc  string
		want *Message
	}{
		{`<ingest-properties xmlns="http://www.alexandria.ucsb.edu"` + xsi + `xsi:schemaLocation="a b">
			<notification-style xml:lang="en">
				asynchronous
			</notification-style><!-- -->
			<formats> <format xsi:type="a"> http://example.org/<![CDATA[a?b&c]]>
			</format> <format>&#117;rn:b</format></formats>
		</ingest-properties>`,
			&Message{Kind: KindProperties, Properties: &Properties{Style: Asynchronous, Formats: []string{"http://example.org/a?b&c", "urn:b"}}}},
		{`<q:ingest-request xmlns:q="http://www.alexandria.ucsb.edu"` + xsi + `>
			<q:source xsi:nil="false">
				<q:submitter><q:name> a<!-- -->b </q:name><q:email-address/></q:submitter>
				<q:source-identifier></q:source-identifier>
			</q:source>
			<q:notification-recipient>
				smtp:box@example.org </q:notification-recipient>
			<q:record> <r/> <!-- one --> </q:record>
		</q:ingest-request>`,
			&Message{Kind: KindRequest, Request: &Request{Recipient: "smtp:box@example.org",
				Source: &Source{Submitter: &Submitter{Name: " ab "}, Identifier: new("")},
				Record: Record{Root: xml.Name{Local: "r"}, XML: []byte("<r/>")}}}},
		{`<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><source/><provisionally-accepted></provisionally-accepted></ingest-disposition>`,
			&Message{Kind: KindDisposition, Disposition: &Disposition{Source: &Source{}, Outcome: ProvisionallyAccepted}}},
		{`<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><provisionally-accepted
			/></ingest-disposition>`, &Message{Kind: KindDisposition, Disposition: &Disposition{Outcome: ProvisionallyAccepted}}},
		{`<ingest-disposition xmlns="http://www.alexandria.ucsb.edu"><rejected><reason/></rejected></ingest-disposition>`,
			&Message{Kind: KindDisposition, Disposition: &Disposition{Outcome: Rejected}}},
		{`<Fault xmlns="http://schemas.xmlsoap.org/soap/envelope/"><faultstring xml:lang="en">no <b>way</b></faultstring><a/>
			<faultcode> SOAP-ENV:Client.Authentication.Basic </faultcode><faultactor>urn:a</faultactor><detail>a<b>c</b></detail></Fault>`,
			&Message{Kind: KindFault, Fault: &Fault{Code: ClientAuthentication, Text: "no way"}}},
		{`<Fault xmlns="http://schemas.xmlsoap.org/soap/envelope/"><faultcode>a:Client.Authentications.X</faultcode></Fault>`,
			&Message{Kind: KindFault, Fault: &Fault{Code: Client}}},
		{`<s:Fault xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><faultcode>Other</faultcode><detail><a>
			<problem xmlns="urn:x-bridge:terms:1" path="a/b" line="-1" column="x"/></a></detail></s:Fault>`,
			&Message{Kind: KindFault, Fault: &Fault{Code: "Other", Path: "a/b"}}},
	} {
		got, err := ReadDocument([]byte(c.doc))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s\ngot  %s, %v\nwant %s", c.doc, describe(got), err, describe(c.want))
		}
	}
}

// TestReaderFails: an error of the transport is no fault of the message.
func TestReaderFails(t *testing.T) {
	gone := errors.New("gone")
	_, err := ReadMessage(&failing{strings.NewReader("<a>\n<b"), gone}, ReadOptions{URL: "http://example.org/sip"})
	var f *Fault
	if !errors.Is(err, gone) || errors.As(err, &f) || !strings.HasPrefix(err.Error(), "http://example.org/sip:1:1: ") {
		t.Errorf("%v", err)
	}
	_, err = ReadRecord(&failing{strings.NewReader("<a>"), gone}, Limits{})
	if !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// failing brings what r has, and then an error.
type failing struct {
	r   *strings.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	if f.r.Len() == 0 {
		return 0, f.err
	}
	return f.r.Read(b)
}

// TestCharsets: UTF-16, Latin-1 and a byte order mark are read; what contradicts
// itself is not.
func TestCharsets(t *testing.T) {
	m := &Message{Kind: KindDisposition, Disposition: &Disposition{Outcome: Rejected, Reason: "gr\u00fcn"}}
	doc := string(bytes.TrimPrefix(AppendMessage(nil, m), []byte("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")))
	latin := strings.ReplaceAll(doc, "\u00fc", "\xfc")
	var utf16 strings.Builder
	utf16.WriteString("\xfe\xff")
	for _, r := range doc {
		utf16.WriteByte(byte(r >> 8))
		utf16.WriteByte(byte(r))
	}
	for _, c := range []struct{ doc, contentType, fault string }{
		{doc, "text/xml", ""},
		{doc, "text/xml; charset=utf-8", ""},
		{"\ufeff" + doc, "", ""},
		{"\ufeff" + doc, "text/xml; charset=iso-8859-1", ""},
		{"<?xml version='1.0' encoding='iso-8859-1'?>" + latin, "text/xml", ""},
		{latin, "text/xml; charset=ISO-8859-1", ""},
		{"<?xml version='1.0' encoding='utf-8'?>" + latin, "text/xml; charset=iso-8859-1", ""},
		{utf16.String(), "text/xml; charset=utf-16", ""},
		{utf16.String(), "", ""},
		{latin, "text/xml", "invalid UTF-8"},
		{utf16.String()[:101], "", "bytes that are not utf-16be"},
		{doc, "text/xml; charset=klingon", `unknown charset "klingon"`},
	} {
		got, err := ReadMessage(strings.NewReader(c.doc), ReadOptions{ContentType: c.contentType})
		switch {
		case c.fault != "":
			var f *Fault
			if !errors.As(err, &f) || f.Code != Client || !strings.Contains(f.Text, c.fault) {
				t.Errorf("%q as %s: %s, %v, want %s", c.doc, c.contentType, describe(got), err, c.fault)
			}
		case err != nil || !reflect.DeepEqual(got, m):
			t.Errorf("%q as %s: %s, %v", c.doc, c.contentType, describe(got), err)
		}
	}
}
