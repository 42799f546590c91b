package sip

import (
	"errors"
	"strings"
	"testing"
)

// ruleCase is a document, of which declareSIP makes a whole one, in the Body of an envelope,
// and the rule that it breaks: by the Fault of ReadMessage (refused), or by a Problem of Check.
type ruleCase struct {
	doc, rule       string
	refused         bool
	path            string
	line, column    int
	found, expected string // of a Problem
}

// Each rule of the table has a message that breaks it: the first ten are refused by
// ReadMessage with the rule in the Fault, and Check finds the others with their place, what
// stands there and what was expected.
func TestRules(t *testing.T) {
	properties := func(formats string) string {
		return "<sip:ingest-properties><sip:notification-style>synchronous</sip:notification-style>\n<sip:formats>" + formats + "</sip:formats></sip:ingest-properties>"
	}
	request := func(inner string) string {
		return "<sip:ingest-request>" + inner + "<sip:record><r/></sip:record></sip:ingest-request>"
	}
	source := func(address string) string {
		return "<sip:source><sip:submitter><sip:name/>\n<sip:email-address>" + address + "</sip:email-address></sip:submitter></sip:source>"
	}
	recipient := func(url string) string {
		return request("\n <sip:notification-recipient>" + url + "</sip:notification-recipient>")
	}
	const (
		anAddress = "an address such as name@example.org"
		toRequest = "ingest-request/source/submitter/email-address"
		toward    = "ingest-request/notification-recipient"
		format    = "ingest-properties/formats/format"
	)
	cases := []ruleCase{
		{doc: "<sip:get-properties>&nbsp;</sip:get-properties>", rule: "sip-document", refused: true, path: "get-properties"},
		{doc: "<sip:get-properties/><sip:get-properties/>", rule: "sip-envelope", refused: true, path: "Envelope/Body/get-properties"},
		{doc: "<soap:Header/>", rule: "sip-element", refused: true, path: "Header"},
		{doc: "<sip:get-properties>a</sip:get-properties>", rule: "sip-text", refused: true, path: "get-properties"},
		{doc: "<sip:get-properties a='b'/>", rule: "sip-attribute", refused: true, path: "get-properties"},
		{doc: properties("<sip:format/>"), rule: "sip-value", refused: true, path: format},
		{doc: "<sip:ingest-properties><sip:notification-style/></sip:ingest-properties>", rule: "sip-style", refused: true,
			path: "ingest-properties/notification-style"},
		{doc: "<sip:ingest-request><sip:record/></sip:ingest-request>", rule: "sip-record", refused: true, path: "ingest-request/record"},
		{doc: "<sip:ingest-disposition><sip:provisionally-accepted> </sip:provisionally-accepted></sip:ingest-disposition>", rule: "sip-empty",
			refused: true, path: "ingest-disposition/provisionally-accepted"},

		{doc: properties("<sip:format>http://example.org/a.xsd</sip:format><sip:format>urn:b</sip:format>")},
		{doc: properties("<sip:format>a.xsd</sip:format>"), rule: "sip-format", path: format, line: 4, column: 14,
			found: `"a.xsd"`, expected: "the URL of an XML schema"},
		{doc: properties("<sip:format>http://[/</sip:format>"), rule: "sip-format", path: format, line: 4, column: 14,
			found: `"http://[/"`, expected: "the URL of an XML schema"},
		// The place of a later format is not known.
		{doc: properties("<sip:format>urn:a</sip:format><sip:format>b</sip:format>"), rule: "sip-format", path: format,
			found: `"b"`, expected: "the URL of an XML schema"},
		{doc: request("")},
		{doc: recipient("http://example.org/")},
		{doc: recipient("SMTP:box@example.org")},
		{doc: recipient("https://example.org/"), rule: "sip-recipient", path: toward, line: 4, column: 2,
			found: `"https://example.org/"`, expected: "a URL of http or smtp"},
		{doc: recipient("box@example.org"), rule: "sip-recipient", path: toward, line: 4, column: 2,
			found: `"box@example.org"`, expected: "a URL of http or smtp"},
		{doc: recipient(":"), rule: "sip-recipient", path: toward, line: 4, column: 2, found: `":"`, expected: "a URL of http or smtp"},
		{doc: request("<sip:source/>")},
		{doc: request(source("name@example.org"))},
		{doc: request(source("nobody")), rule: "sip-email", path: toRequest, line: 4, column: 1, found: `"nobody"`, expected: anAddress},
		{doc: request(source("")), rule: "sip-email", path: toRequest, line: 4, column: 1, found: `""`, expected: anAddress},
		{doc: "<sip:ingest-disposition>" + source("a@") + "<sip:rejected/></sip:ingest-disposition>", rule: "sip-email",
			path: "ingest-disposition/source/submitter/email-address", line: 4, column: 1, found: `"a@"`, expected: anAddress},
	}
	broken := map[string]bool{}
	for _, c := range cases {
		message := "<soap:Envelope xmlns:soap='" + soapNamespace + "' xmlns:sip='" + Namespace + "'>\n<soap:Body>\n" + c.doc + "</soap:Body></soap:Envelope>"
		places := Places{}
		m, err := ReadMessage(strings.NewReader(message), ReadOptions{Places: places})
		broken[c.rule] = true
		if c.refused {
			var f *Fault
			if !errors.As(err, &f) || f.Rule != c.rule || f.Path != c.path {
				t.Errorf("%s: %#v, want %s at %s", c.doc, err, c.rule, c.path)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.doc, err)
			continue
		}
		var got []Problem
		m.Check(places, func(p Problem) { got = append(got, p) })
		want := Problem{Rule: c.rule, Path: c.path, Line: c.line, Column: c.column, Found: c.found, Expected: c.expected}
		if c.rule == "" && len(got) > 0 || c.rule != "" && (len(got) != 1 || got[0] != want) {
			t.Errorf("%s\ngot  %+v\nwant %+v", c.doc, got, want)
		}
		// Without places the same is found.
		want.Line, want.Column = 0, 0
		m.Check(nil, func(p Problem) {
			if p != want {
				t.Errorf("%s without places: %+v, want %+v", c.doc, p, want)
			}
		})
	}

	header := `<soap:Envelope><soap:Header><x:h xmlns:x="urn:x" soap:mustUnderstand="1"/></soap:Header><soap:Body/></soap:Envelope>`
	_, err := ReadMessage(strings.NewReader(declareSIP(header)), ReadOptions{})
	if f := new(Fault); !errors.As(err, &f) || f.Rule != "sip-header" {
		t.Errorf("a header that has to be understood: %#v", err)
	}
	broken["sip-header"] = true

	seen := map[string]bool{}
	for _, r := range Rules() {
		if seen[r.ID] || r.Title == "" || r.Clause == "" || r.Severity != Must && r.Severity != Should && r.Severity != Note {
			t.Errorf("the rule %+v is stated twice or in part", r)
		}
		seen[r.ID] = true
		if !broken[r.ID] {
			t.Errorf("no message here breaks %s", r.ID)
		}
	}
	for id := range broken {
		if id != "" && !seen[id] {
			t.Errorf("%s is not in the table", id)
		}
	}
}
