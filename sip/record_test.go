package sip

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"
)

// TestRecordInMessage: the record is what it was, byte for byte, with the
// namespaces that it needs.
func TestRecordInMessage(t *testing.T) {
	const head = `<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/" %s><soap:Body>
		<s:ingest-request xmlns:s="http://www.alexandria.ucsb.edu" xmlns:e="urn:e"><s:record%s>
		%s
		</s:record></s:ingest-request></soap:Body></soap:Envelope>`
	for _, c := range []struct {
		name                    string
		envelope, record, given string // attributes outside, and the element
		want                    string // "" is given
		space                   string // of the root, r
	}{
		{name: "nothing", given: `<r/>`},
		{name: "untouched", given: "<r  b = 'x&#10;\ty'\r\n a=\"'\"  ><!-- c --><![CDATA[<]]]]><![CDATA[>]]>&#x3c;&amp;\r\n\r<c ></c ><d  /></r >"},
		{name: "own", given: `<r xmlns="urn:r" xmlns:e="urn:other"><e:a/></r>`, space: "urn:r"},
		{name: "default", envelope: `xmlns="urn:d"`, given: `<r/>`, want: `<r xmlns="urn:d"/>`, space: "urn:d"},
		{name: "default between", envelope: `xmlns="urn:d"`, record: ` xmlns="urn:&lt;&amp;&quot;'>"`, given: `<r>a</r>`,
			want: `<r xmlns="urn:&lt;&amp;&quot;&apos;&gt;">a</r>`, space: `urn:<&"'>`},
		{name: "default taken away", envelope: `xmlns="urn:d"`, record: ` xmlns=""`, given: `<r><a xmlns="urn:d"/></r>`},
		{name: "default taken away here", envelope: `xmlns="urn:d"`, given: `<r xmlns=""/>`},
		{name: "prefix of the root", given: `<e:r a="b"/>`, want: `<e:r xmlns:e="urn:e" a="b"/>`, space: "urn:e"},
		{name: "prefix inside", given: `<r><a e:b=""/></r>`, want: `<r xmlns:e="urn:e"><a e:b=""/></r>`},
		{name: "prefix declared inside", given: `<r><e:a xmlns:e="urn:x"/></r>`, want: `<r xmlns:e="urn:e"><e:a xmlns:e="urn:x"/></r>`},
		{name: "prefix in a value", given: `<r a="e:b"/>`, want: `<r xmlns:e="urn:e" a="e:b"/>`},
		{name: "prefix in a path", given: "<r>-e:b</r>", want: `<r xmlns:e="urn:e">-e:b</r>`},
		{name: "prefix behind a quote", given: "<r>\u201ce:b</r>", want: "<r xmlns:e=\"urn:e\">\u201ce:b</r>"},
		{name: "prefix in a comment", given: `<r><!--e:b--></r>`, want: `<r xmlns:e="urn:e"><!--e:b--></r>`},
		{name: "end of another prefix", given: `<r>tree:b e.e:c e_e:d</r>`},
		{name: "in the order of prefixes", envelope: `xmlns:z="urn:z" xmlns="urn:d" xmlns:a="urn:a"`, given: `<r z:b="" a:c="" e:d=""/>`,
			want: `<r xmlns="urn:d" xmlns:a="urn:a" xmlns:e="urn:e" xmlns:z="urn:z" z:b="" a:c="" e:d=""/>`, space: "urn:d"},
		{name: "the innermost", envelope: `xmlns:e="urn:outer"`, record: ` xmlns:e="urn:inner"`, given: `<e:r/>`, want: `<e:r xmlns:e="urn:inner"/>`, space: "urn:inner"},
		{name: "a message in the record", given: `<r><soap:Body/></r>`, want: `<r xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body/></r>`},
		{name: "a list of prefixes", envelope: `xmlns:w14="urn:w14" xmlns:wp14="urn:wp14"`, given: `<r e:Ignorable="w14 wp14">w14</r>`,
			want: `<r xmlns:e="urn:e" e:Ignorable="w14 wp14">w14</r>`},
		{name: "prefix in a CDATA section", given: `<r><![CDATA[e:b]]></r>`, want: `<r xmlns:e="urn:e"><![CDATA[e:b]]></r>`},
		{name: "a value is no name", given: `<r a='soap:Body=" s:x=' s='1'>s:record</r>`},
		{name: "our own as an attribute", given: `<r soap:encodingStyle="x"/>`, want: `<r xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/" soap:encodingStyle="x"/>`},
		{name: "foreign letters", envelope: "xmlns:\u00e9\u0301='urn:accent' xmlns:\u4e2d='urn:middle' xmlns:x\u00b7y='urn:dot'",
			given: "<r a='\u201c\u00e9\u0301:a\u201d \u300c\u4e2d:b\u300d \u00b7x\u00b7y:c'/>",
			want:  "<r xmlns:x\u00b7y=\"urn:dot\" xmlns:\u00e9\u0301=\"urn:accent\" xmlns:\u4e2d=\"urn:middle\" a='\u201c\u00e9\u0301:a\u201d \u300c\u4e2d:b\u300d \u00b7x\u00b7y:c'/>"},
		{name: "our own in prose", given: `<r>soap, s: soap</r>`},
		{name: "default not needed", envelope: `xmlns="urn:d"`, given: `<e:r e:a=" 1.0, *:-5 "><!--a--> 2026 <e:b/></e:r>`,
			want: `<e:r xmlns:e="urn:e" e:a=" 1.0, *:-5 "><!--a--> 2026 <e:b/></e:r>`, space: "urn:e"},
		{name: "default for an element", envelope: `xmlns="urn:d"`, given: `<e:r><b/></e:r>`, want: `<e:r xmlns="urn:d" xmlns:e="urn:e"><b/></e:r>`, space: "urn:e"},
		{name: "no default for a word", envelope: `xmlns="urn:d"`, given: `<e:r type="T">T</e:r>`, want: `<e:r xmlns:e="urn:e" type="T">T</e:r>`, space: "urn:e"},
		{name: "xml", envelope: `xmlns:xml="http://www.w3.org/XML/1998/namespace"`, given: `<r xml:lang="en"/>`},
	} {
		given := fmt.Sprintf(head, c.envelope, c.record, c.given)
		m, err := ReadMessage(strings.NewReader(given), ReadOptions{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want := c.want
		if want == "" {
			want = c.given
		}
		rec := m.Request.Record
		if string(rec.XML) != want || rec.Root != (xml.Name{Space: c.space, Local: "r"}) {
			t.Errorf("%s: %s %v, want %s in %q", c.name, rec.XML, rec.Root, want, c.space)
		}
		alone, err := ReadRecord(strings.NewReader(string(rec.XML)), Limits{})
		if err != nil || string(alone.XML) != want || alone.Root != rec.Root {
			t.Errorf("%s: alone %s %v, %v", c.name, alone.XML, alone.Root, err)
		}
		again, err := ReadMessage(strings.NewReader(string(AppendMessage(nil, m))), ReadOptions{})
		if err != nil || string(again.Request.Record.XML) != want || again.Request.Record.Root != rec.Root {
			t.Errorf("%s: again %s, %v", c.name, describe(again), err)
		}
	}
}

// TestTwoClients: the same record arrives as the same bytes, whatever the
// prefixes of the client's envelope are (D36).
func TestTwoClients(t *testing.T) {
	const record = `<g:entry xmlns:g="urn:g" t="xsi">about soap: and sip:x and a:b, b: xsi</g:entry>`
	var first string
	for _, p := range [][2]string{{"soap", "sip"}, {"SOAP-ENV", "ns0"}, {"a", "b"}} {
		doc := strings.NewReplacer("S:", p[0]+":", "I:", p[1]+":", "xmlns:S", "xmlns:"+p[0], "xmlns:I", "xmlns:"+p[1]).Replace(
			`<S:Envelope xmlns:S="` + soapNamespace + `" xmlns:xsi="` + xsiNamespace + `"><S:Body><I:ingest-request xmlns:I="` + Namespace +
				`"><I:record>` + record + `</I:record></I:ingest-request></S:Body></S:Envelope>`)
		m, err := ReadMessage(strings.NewReader(doc), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(m.Request.Record.XML)
		}
		if got := string(m.Request.Record.XML); got != first || got != record {
			t.Errorf("%v: %s", p, got)
		}
	}
}

// TestTwoStyles: the same holds when one client uses the default namespace for the
// protocol (D36).
func TestTwoStyles(t *testing.T) {
	const record = `<p:r xmlns:p="urn:r" p:height="high"><p:at>words, and no names</p:at></p:r>`
	for _, doc := range []string{
		declareSIP("<sip:ingest-request><sip:record>" + record + "</sip:record></sip:ingest-request>"),
		`<ingest-request xmlns="` + Namespace + `"><record>` + record + "</record></ingest-request>",
	} {
		m, err := ReadDocument([]byte(doc))
		if err != nil || string(m.Request.Record.XML) != record {
			t.Errorf("%s: %s, %v", doc, describe(m), err)
		}
	}
}

// TestPrefixesOfOurs: a record that mentions our prefixes gets none of them.
func TestPrefixesOfOurs(t *testing.T) {
	rec := Record{Root: xml.Name{Local: "r"}, XML: []byte("<r>soap:a sip:b sip1:c -sip2:d \u00fcsip3:e</r>")}
	doc := string(AppendMessage(nil, &Message{Kind: KindRequest, Request: &Request{Record: rec}}))
	if !strings.Contains(doc, "<soap1:Envelope") || !strings.Contains(doc, "<sip4:record>") {
		t.Error(doc)
	}
	back, err := ReadMessage(strings.NewReader(doc), ReadOptions{})
	if err != nil || string(back.Request.Record.XML) != string(rec.XML) {
		t.Errorf("%s, %v", describe(back), err)
	}

}

func TestReadRecord(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("<a>", n) + strings.Repeat("</a>", n) }
	attributes := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, " a%d=''", i)
		}
		return "<r" + b.String() + "/>"
	}
	for _, c := range []struct{ doc, want, fault string }{
		{doc: "<r/>", want: "<r/>"},
		{doc: "<?xml version='1.0' encoding='iso-8859-1'?><!-- a --><?b c?>\n<r>\xfc</r><!-- d --><?e?>\n", want: "<r>\u00fc</r>"},
		{doc: "\ufeff<r\r\n>\r</r >", want: "<r\r\n>\r</r >"},
		{doc: "\xff\xfe<\x00r\x00/\x00>\x00", want: "<r/>"},
		{doc: deep(252), want: deep(252)},
		{doc: attributes(256), want: attributes(256)},
		{doc: "", fault: "document:1:1: the document is empty; want a record"},
		{doc: "text", fault: "text outside of the root element"},
		{doc: "<r", fault: "cut off"},
		{doc: "<r/><s/>", fault: "a second root element <s>"},
		{doc: "<r/>s", fault: "text outside of the root element"},
		{doc: "<r><?a b?></r>", fault: "document:1:4: the processing instruction <?a is refused"},
		{doc: "<!DOCTYPE r><r/>", fault: "DOCTYPE is refused"},
		{doc: "<r>&a;</r>", fault: "invalid character entity &a;"},
		{doc: deep(253), fault: "document:1:757: the record's elements are nested deeper than 252"},
		{doc: attributes(257), fault: "an element has more than 256 attributes"},
		{doc: "<r>\xfc</r>", fault: "invalid UTF-8"},
	} {
		rec, err := ReadRecord(strings.NewReader(c.doc), Limits{})
		var broken *DocumentError
		switch {
		case c.fault == "" && (err != nil || string(rec.XML) != c.want || rec.Root.Local == ""):
			t.Errorf("%.100q: %s %v", c.doc, rec.XML, err)
		case c.fault != "" && (!errors.As(err, &broken) || !strings.Contains(err.Error(), c.fault) || rec.XML != nil):
			t.Errorf("%.100q: got %v, want %s", c.doc, err, c.fault)
		}
	}
	for length, tooLarge := range map[int64]bool{10: false, 9: true} {
		_, err := ReadRecord(strings.NewReader("<r>abc</r>"), Limits{Document: length})
		if errors.Is(err, ErrTooLarge) != tooLarge || (err != nil) != tooLarge {
			t.Errorf("10 bytes of %d: %v", length, err)
		}
	}
}

// TestDeclarationsCount: what is declared on a record may not make more of it than
// the limits allow, or nobody could read it again.
func TestDeclarationsCount(t *testing.T) {
	var outside, inside strings.Builder
	for i := range 200 {
		fmt.Fprintf(&outside, " xmlns:p%d='urn:p'", i)
		fmt.Fprintf(&inside, " p%d:a%d=''", i, i)
	}
	doc := declareSIP("<sip:ingest-request" + outside.String() + "><sip:record>\n<r" + inside.String() + "/></sip:record></sip:ingest-request>")
	_, err := ReadDocument([]byte(doc))
	expectFault(t, doc, err, Client, "ingest-request/record/r", "the record's start tag has too much in it, together with the namespaces in scope")
	if f, ok := err.(*Fault); !ok || f.Line != 2 || f.Column != 1 {
		t.Errorf("%#v", err)
	}
}

// TestRecordDepth: a record that fits into no envelope is refused without one.
func TestRecordDepth(t *testing.T) {
	for depth, ok := range map[int]bool{252: true, 253: false} {
		doc := declareSIP("<sip:ingest-request><sip:record>" + strings.Repeat("<a>", depth) + strings.Repeat("</a>", depth) + "</sip:record></sip:ingest-request>")
		m, err := ReadDocument([]byte(doc))
		if !ok {
			expectFault(t, doc, err, Client, "ingest-request/record/a", "the record's elements are nested deeper than 252")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadMessage(strings.NewReader(string(AppendMessage(nil, m))), ReadOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestLocations(t *testing.T) {
	const xsi = " xmlns:x='http://www.w3.org/2001/XMLSchema-instance' "
	for doc, want := range map[string]map[string]string{
		"<r/>":                                  {},
		"<r schemaLocation='a b'/>":             {},
		"<r" + xsi + "x:schemaLocation='a b'/>": {"a": "b"},
		"<r" + xsi + "x:schemaLocation=' a  b\n\tc d a z e'/>":                               {"a": "b", "c": "d"},
		"<r" + xsi + "x:noNamespaceSchemaLocation=' a.xsd '><a x:schemaLocation='a b'/></r>": {"": "a.xsd"},
		"<r": nil,
	} {
		rec := Record{XML: []byte(doc)}
		if got := rec.Locations(); !maps.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", doc, got, want)
		}
	}
}

// What is read in pieces is what came, at every border of a piece; of what breaks off
// there are the beginning and the length (D35).
func TestReadPieces(t *testing.T) {
	broken := errors.New("broken")
	for _, n := range []int{0, 1, 4<<10 - 1, 4 << 10, 4<<10 + 1, 12 << 10, 12<<10 + 1, 1 << 20, 1<<20 + 4095} {
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i * 31 >> 3)
		}
		for _, stated := range []int64{-1, int64(n)} {
			for name, r := range map[string]io.Reader{"whole": bytes.NewReader(want), "in halves": iotest.HalfReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want))} {
				if got, k, err := readPieces(r, stated); err != nil || k != n || !bytes.Equal(got, want) {
					t.Errorf("%d bytes %s, stated as %d: got %d and %d, %v", n, name, stated, len(got), k, err)
				}
			}
		}
		got, k, err := readPieces(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken)), int64(n))
		if !errors.Is(err, broken) || k != n || !bytes.HasPrefix(want, got) || n > 0 && len(got) == 0 {
			t.Errorf("%d bytes that break off: got %d and %d, %v", n, len(got), k, err)
		}
	}
}
