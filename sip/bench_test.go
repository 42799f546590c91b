package sip

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"testing"
)

// request2K is a message with a record of two kilobytes.
func request2K() []byte {
	var b bytes.Buffer
	b.WriteString(`<g:entry xmlns:g="urn:example:gazetteer">`)
	for n := 0; b.Len() < 2000; n++ {
		fmt.Fprintf(&b, "\n  <g:place id=\"p%d\"><g:name xml:lang=\"de\">M\u00fchle &amp; Bach %d</g:name><g:at>%d.5 %d.25</g:at></g:place>", n, n, n, n)
	}
	b.WriteString("\n</g:entry>")
	return AppendMessage(nil, &Message{Kind: KindRequest, Request: &Request{Source: full(), Recipient: "http://example.org/notify/0123456789abcdef",
		Record: Record{Root: xml.Name{Space: "urn:example:gazetteer", Local: "entry"}, XML: b.Bytes()}}})
}

// BenchmarkReadMessage: a request with a record of 2 KB, beside encoding/xml, which
// checks neither order nor names and forgets the record's namespaces.
func BenchmarkReadMessage(b *testing.B) {
	doc := request2K()
	b.Run("ours", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ReadMessage(bytes.NewReader(doc), ReadOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding-xml", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			var m struct {
				Name    xml.Name `xml:"http://schemas.xmlsoap.org/soap/envelope/ Envelope"`
				Request struct {
					Source struct {
						Submitter struct {
							Name  string `xml:"name"`
							Email string `xml:"email-address"`
						} `xml:"submitter"`
						Sequence   string `xml:"sequence"`
						Identifier string `xml:"source-identifier"`
					} `xml:"source"`
					Recipient string `xml:"notification-recipient"`
					Record    struct {
						XML []byte `xml:",innerxml"`
					} `xml:"record"`
				} `xml:"Body>ingest-request"`
			}
			if err := xml.Unmarshal(doc, &m); err != nil {
				b.Fatal(err)
			}
			if len(m.Request.Record.XML) < 2000 {
				b.Fatal("no record")
			}
		}
	})
}

// BenchmarkAppendMessage writes the same request.
func BenchmarkAppendMessage(b *testing.B) {
	doc := request2K()
	m, err := ReadMessage(bytes.NewReader(doc), ReadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	var to []byte
	for b.Loop() {
		to = AppendMessage(to[:0], m)
	}
}
