package sip

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// texts draws what XML can hold, often what is special in it.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringOf(rapid.RuneFrom([]rune("<>&\"'\t\r\n ]-ab:\u00e4\u20ac\U0001f600\ufffd"))),
		rapid.String().Filter(strictxml.Holds),
		rapid.Just(""),
	)
}

// trimmedTexts draws what is more than white space, with none around it.
func trimmedTexts() *rapid.Generator[string] {
	return rapid.Map(texts(), strictxml.Trim).Filter(func(s string) bool { return s != "" })
}

func maybe(t *rapid.T, label string) *string {
	return rapid.Ptr(texts(), true).Draw(t, label)
}

func drawSource(t *rapid.T) *Source {
	if rapid.Bool().Draw(t, "no source") {
		return nil
	}
	s := &Source{Sequence: maybe(t, "sequence"), Identifier: maybe(t, "identifier")}
	if rapid.Bool().Draw(t, "submitter") {
		s.Submitter = &Submitter{Name: texts().Draw(t, "name"), EmailAddress: texts().Draw(t, "email")}
	}
	return s
}

// drawElement draws XML in which names have prefixes of those declared outside,
// or of none.
func drawElement(t *rapid.T, depth int) string {
	prefix := func() string {
		return rapid.SampledFrom([]string{"", "", "p:", "q:", "sip:", "soap:"}).Draw(t, "prefix")
	}
	name := prefix() + rapid.SampledFrom([]string{"a", "b", "sip", "r\u00e4"}).Draw(t, "name")
	var b strings.Builder
	b.WriteString("<" + name)
	declared := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", ":p", ":sip"}), 0, 2, rapid.ID).Draw(t, "declared")
	for _, d := range declared {
		value := rapid.SampledFrom([]string{"urn:1", "urn:2", "urn:p:&amp;"}).Draw(t, "namespace")
		if d == "" && rapid.Bool().Draw(t, "undeclared") {
			value = ""
		}
		fmt.Fprintf(&b, " xmlns%s='%s'", d, value)
	}
	if rapid.Bool().Draw(t, "attribute") {
		fmt.Fprintf(&b, "\r\n%sx = \"p:%s\"", prefix(), rapid.SampledFrom([]string{"", "&#10;", "q:", "'>"}).Draw(t, "value"))
	}
	if rapid.Bool().Draw(t, "empty") {
		return b.String() + " />"
	}
	b.WriteString(">")
	for range rapid.IntRange(0, 3).Draw(t, "children") {
		if depth > 0 && rapid.Bool().Draw(t, "deeper") {
			b.WriteString(drawElement(t, depth-1))
		}
		b.WriteString(rapid.SampledFrom([]string{"", "\r\n", "-q:x", "<!-- sip:c -->", "<![CDATA[<p:]]>", "&lt;&#x20AC;", "soap:sip1:"}).Draw(t, "text"))
	}
	return b.String() + "</" + name + ">"
}

// drawRecord draws a record as it comes out of a document with namespaces in
// scope.
func drawRecord(t *rapid.T) (Record, string) {
	element := drawElement(t, 3)
	outside := rapid.SampledFrom([]string{"", " xmlns='urn:d'", " xmlns='urn:&lt;'"}).Draw(t, "outside")
	doc := fmt.Sprintf("<S:ingest-request xmlns:S='%s' xmlns:p='urn:p' xmlns:q='urn:q:\"' xmlns:sip='urn:sip' xmlns:soap='urn:soap'%s><S:record>%s</S:record></S:ingest-request>",
		Namespace, outside, element)
	m, err := ReadDocument([]byte(doc))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return m.Request.Record, element
}

// TestRecordLaws: a record has all its bytes, is a document of its own, and is the
// same through any number of messages.
func TestRecordLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec, element := drawRecord(t)
		name := strings.IndexAny(element, " />\r")
		if !strings.HasPrefix(string(rec.XML), element[:name]) || !strings.HasSuffix(string(rec.XML), element[name:]) {
			t.Fatalf("of %s came %s", element, rec.XML)
		}
		alone, err := ReadRecord(bytes.NewReader(rec.XML), Limits{})
		if err != nil || !reflect.DeepEqual(alone, rec) {
			t.Fatalf("alone %s is %s, %v", rec.XML, alone.XML, err)
		}
		q := &Request{Record: rec}
		for range 2 {
			back, err := ReadMessage(bytes.NewReader(AppendMessage(nil, &Message{Kind: KindRequest, Request: q})), ReadOptions{})
			if err != nil || !reflect.DeepEqual(back.Request.Record, rec) {
				t.Fatalf("%s came back as %s, %v", rec.XML, describe(back), err)
			}
			q = back.Request
		}
	})
}

// TestRoundTrip: what was written is read as it was, in an envelope, alone, and
// wherever it is cut while it arrives; and what was read is written as it was.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		message, document := AppendMessage(nil, m), AppendDocument(nil, m)
		cut := rapid.IntRange(0, len(message)).Draw(t, "cut")
		back, err := ReadMessage(&inTwo{message, cut}, ReadOptions{ContentType: "text/xml; charset=utf-8"})
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%s\nread as %s, %v", message, describe(back), err)
		}
		if again := AppendMessage(nil, back); !bytes.Equal(again, message) {
			t.Fatalf("%s\nwritten again %s", message, again)
		}
		back, err = ReadDocument(document)
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%s\nread as %s, %v", document, describe(back), err)
		}
	})
}

// TestAssignedIdentifierAlone: white space around an assigned identifier is none of
// it, however it is written.
func TestAssignedIdentifierAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &Disposition{Outcome: Accepted, AssignedIdentifier: trimmedTexts().Draw(t, "assigned")}
		white := rapid.StringMatching(`(&#x20;|&#10;|&#xd;|&#9;|[ \t\r\n])*`)
		document := AppendDocument(nil, &Message{Kind: KindDisposition, Disposition: want})
		document = bytes.Replace(document, []byte("identifier>"), []byte("identifier>"+white.Draw(t, "before")), 1)
		document = bytes.Replace(document, []byte("</sip:assigned"), []byte(white.Draw(t, "after")+"</sip:assigned"), 1)
		back, err := ReadDocument(document)
		if err != nil || !reflect.DeepEqual(back.Disposition, want) {
			t.Fatalf("%s\nread as %s, %v", document, describe(back), err)
		}
	})
}

func drawMessage(t *rapid.T) *Message {
	m := &Message{Kind: rapid.SampledFrom([]Kind{KindGetProperties, KindProperties, KindRequest, KindDisposition, KindFault}).Draw(t, "kind")}
	switch m.Kind {
	case KindProperties:
		m.Properties = &Properties{Style: rapid.SampledFrom([]Style{Synchronous, Asynchronous}).Draw(t, "style"),
			Formats: rapid.SliceOfN(trimmedTexts(), 1, 4).Draw(t, "formats")}
	case KindRequest:
		rec, _ := drawRecord(t)
		m.Request = &Request{Source: drawSource(t), Record: rec}
		if rapid.Bool().Draw(t, "recipient") {
			m.Request.Recipient = trimmedTexts().Draw(t, "recipient's URL")
		}
	case KindDisposition:
		d := &Disposition{Source: drawSource(t), Outcome: rapid.SampledFrom([]Outcome{Accepted, ProvisionallyAccepted, Rejected}).Draw(t, "outcome")}
		switch d.Outcome {
		case Accepted:
			d.AssignedIdentifier = trimmedTexts().Draw(t, "assigned")
		case Rejected:
			d.Reason = texts().Draw(t, "reason")
		}
		m.Disposition = d
	case KindFault:
		m.Fault = &Fault{Code: rapid.SampledFrom([]Code{VersionMismatch, MustUnderstand, Client, Server}).Draw(t, "code"), Text: texts().Draw(t, "text"),
			Path: texts().Draw(t, "path"), Line: rapid.IntRange(0, 1000).Draw(t, "line"), Column: rapid.IntRange(0, 1000).Draw(t, "column")}
		if !m.Fault.aboutBody() { // there is no place for it (D42)
			m.Fault.Path, m.Fault.Line, m.Fault.Column = "", 0, 0
		}
	}
	return m
}

// inTwo brings a document in two pieces.
type inTwo struct {
	doc []byte
	cut int
}

func (r *inTwo) Read(b []byte) (int, error) {
	rest := r.doc
	if r.cut > 0 {
		rest = rest[:r.cut]
	}
	n, err := bytes.NewReader(rest).Read(b)
	r.doc, r.cut = r.doc[n:], r.cut-n
	return n, err
}
