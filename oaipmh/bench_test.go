package oaipmh

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
)

const benchRecords = 1000

// plainList writes an answer with n records of some 1.6 KB, as repositories have them.
func plainList(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/ http://www.openarchives.org/OAI/2.0/OAI-PMH.xsd">
<responseDate>2026-01-02T00:00:00Z</responseDate><request verb="ListRecords" metadataPrefix="oai_dc">https://example.org/oai</request>
<ListRecords>
`)
	for i := range n {
		fmt.Fprintf(&b, `<record><header><identifier>oai:example.org:%09d</identifier><datestamp>2025-%02d-%02dT10:%02d:00Z</datestamp><setSpec>physics:optics</setSpec><setSpec>thesis</setSpec></header>
<metadata><oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/" xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/oai_dc/ http://www.openarchives.org/OAI/2.0/oai_dc.xsd">
<dc:title>Record %d of a collection, über das Licht &amp; seine Brechung</dc:title>
<dc:creator>Müller, Anna</dc:creator><dc:creator>Doe, Jane</dc:creator><dc:subject>Optics</dc:subject><dc:subject>Light</dc:subject>
<dc:description>%s</dc:description>
<dc:date>2025-01-01</dc:date><dc:type>Text</dc:type><dc:identifier>https://example.org/item/%d</dc:identifier><dc:language>en</dc:language>
</oai_dc:dc></metadata></record>
`, i, i%12+1, i%28+1, i%60, i, strings.Repeat("Light bends where it passes from one medium into another one. ", 11), i)
	}
	b.WriteString(`<resumptionToken completeListSize="1000000" cursor="0">next/1000?a=b&amp;c</resumptionToken></ListRecords></OAI-PMH>`)
	return b.Bytes()
}

func perSecond(b *testing.B, doc []byte) {
	b.SetBytes(int64(len(doc)))
	b.ReportMetric(float64(benchRecords)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkReader(b *testing.B) {
	doc := plainList(benchRecords)
	b.ReportAllocs()
	for b.Loop() {
		r := NewReader(bytes.NewReader(doc), ReadOptions{URL: "http://example.org/oai", Lenient: true})
		n := 0
		for ; ; n++ {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
		if n != benchRecords || r.Answer().Token == nil {
			b.Fatalf("%d records", n)
		}
	}
	perSecond(b, doc)
}

// BenchmarkEncodingXML is the rival: encoding/xml, which cuts nothing out for itself.
func BenchmarkEncodingXML(b *testing.B) {
	doc := plainList(benchRecords)
	b.ReportAllocs()
	for b.Loop() {
		var answer struct {
			Records []struct {
				Identifier string   `xml:"header>identifier"`
				Datestamp  string   `xml:"header>datestamp"`
				Sets       []string `xml:"header>setSpec"`
				Metadata   struct {
					Inner []byte `xml:",innerxml"`
				} `xml:"metadata"`
			} `xml:"ListRecords>record"`
			Token string `xml:"ListRecords>resumptionToken"`
		}
		if err := xml.Unmarshal(doc, &answer); err != nil || len(answer.Records) != benchRecords || answer.Token == "" {
			b.Fatal(err)
		}
	}
	perSecond(b, doc)
}
