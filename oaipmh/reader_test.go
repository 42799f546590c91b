package oaipmh

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const header1 = `<header><identifier>oai:x:1</identifier><datestamp>2025-01-01</datestamp></header>`

// TestReader reads one answer with everything in it.
func TestReader(t *testing.T) {
	doc := `<?xml version="1.0" encoding="UTF-8"?>
<o:OAI-PMH xmlns:o="` + Namespace + `" xmlns:dc="urn:dc" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
 <o:responseDate>2026-01-02T03:04:05Z</o:responseDate>
 <o:request verb="ListRecords" metadataPrefix="p" set="a" from="2020-01-01" until="2021-01-01">http://r.example/oai</o:request>
 <o:ListRecords>
  <o:record>
   <o:header><o:identifier>oai:r:1&amp;</o:identifier><o:datestamp>2025-06-07T08:09:10Z</o:datestamp><o:setSpec>a</o:setSpec><o:setSpec>b:c</o:setSpec></o:header>
   <o:metadata>
     <dc:a xsi:type="dc:T">  x&#xA;<b/><!-- c --><![CDATA[<]]></dc:a>
   </o:metadata>
   <o:about><p:provenance xmlns:p="` + ProvenanceNamespace + `"><p:originDescription harvestDate="2024-01-01T00:00:00Z" altered="true">
     <p:baseURL>http://o.example/</p:baseURL><p:identifier>oai:o:1</p:identifier><p:datestamp>2023-01-01</p:datestamp><p:metadataNamespace>urn:dc</p:metadataNamespace>
     <p:originDescription><p:baseURL>http://oo.example/</p:baseURL></p:originDescription></p:originDescription></p:provenance></o:about>
   <o:about><rights xmlns="urn:r">free</rights></o:about>
  </o:record>
  <o:record><o:header status="deleted"><o:identifier>oai:r:2</o:identifier><o:datestamp>2025-06-07</o:datestamp></o:header></o:record>
  <o:resumptionToken expirationDate="2026-01-03T00:00:00Z" completeListSize="12" cursor="3">t</o:resumptionToken>
 </o:ListRecords>
</o:OAI-PMH>`
	r := NewReader(strings.NewReader(doc), ReadOptions{URL: "http://r.example/oai?x", Report: func(p Problem) { t.Error(p) }})
	if a := r.Answer(); a.Verb != ListRecords || a.BaseURL != "http://r.example/oai" || a.Token != nil {
		t.Errorf("%+v", a)
	}
	var got []Record
	for {
		rec, err := r.Next()
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			break
		}
		got = append(got, *rec)
	}
	at := func(s string) time.Time { at, _ := time.Parse(time.RFC3339, s); return at }
	first := got[0]
	want := []Record{{
		Header:   Header{Identifier: "oai:r:1&", Datestamp: at("2025-06-07T08:09:10Z"), Sets: []string{"a", "b:c"}},
		Metadata: []byte(`<dc:a xmlns:dc="urn:dc" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="dc:T">  x&#xA;<b/><!-- c --><![CDATA[<]]></dc:a>`),
		Root:     first.Root, Line: 6, Column: 3,
		Provenance: &Provenance{BaseURL: "http://o.example/", Identifier: "oai:o:1", Datestamp: "2023-01-01", MetadataNamespace: "urn:dc", Harvested: at("2024-01-01T00:00:00Z"), Altered: true,
			Origin: &Provenance{BaseURL: "http://oo.example/"}},
		About: [][]byte{[]byte(`<rights xmlns="urn:r">free</rights>`)},
	}, {
		Header: Header{Identifier: "oai:r:2", Datestamp: at("2025-06-07T00:00:00Z"), Day: true, Deleted: true}, Line: 16, Column: 3,
	}}
	if first.Root.Space != "urn:dc" || first.Root.Local != "a" || !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v\n%s", got, want, got[0].Metadata)
	}
	a := r.Answer()
	q := Request{Verb: ListRecords, Prefix: "p", Set: "a", From: at("2020-01-01T00:00:00Z"), Until: at("2021-01-01T00:00:00Z")}
	if !a.ResponseDate.Equal(at("2026-01-02T03:04:05Z")) || a.Request != q || *a.Token != (Token{Value: "t", Size: 12, Cursor: 3, Expires: at("2026-01-03T00:00:00Z")}) {
		t.Errorf("%+v, %+v", a, a.Token)
	}
}

// O8: a page that is not well-formed is read as it was meant, and says so; of a record
// that cannot be read the bytes are kept.
func TestO8(t *testing.T) {
	in := func(metadata string) string {
		return list(record(1)+`<record><header><identifier>oai:x:2</identifier><datestamp>2025-01-01</datestamp></header><metadata>`+metadata+`</metadata></record>`+record(3), "<resumptionToken>t</resumptionToken>")
	}
	for name, tt := range map[string]struct {
		doc  string
		want string // the metadata of record 2; "" is a bad record
		rule string // that is reported
	}{
		"well-formed":              {in("<a/>"), "<a xmlns=\"" + Namespace + "\"/>", ""},
		"a control character":      {in("<a xmlns=''>x\x0by</a>"), "<a xmlns=''>x\uFFFDy</a>", ruleCharacters},
		"a reference to it":        {in("<a xmlns='' b='&#11;'/>"), "<a xmlns='' b='\uFFFD'/>", ruleCharacters},
		"an entity of HTML":        {in("<a xmlns=''>&nbsp;</a>"), "<a xmlns=''>\u00a0</a>", ruleCharacters},
		"an ampersand":             {in("<a xmlns=''>A & B</a>"), "<a xmlns=''>A &amp; B</a>", ruleCharacters},
		"Latin-1 that says UTF-8":  {in("<a xmlns=''>\xfc</a>"), "<a xmlns=''>\uFFFD</a>", ruleCharset},
		"Latin-1 that says so":     {strings.Replace(in("<a xmlns=''>\xfc</a>"), "UTF-8", "ISO-8859-1", 1), "<a xmlns=''>\u00fc</a>", ruleCharset},
		"UTF-8 that says Latin-1":  {strings.Replace(in("<a xmlns=''>\u00fc</a>"), "UTF-8", "ISO-8859-1", 1), "<a xmlns=''>\u00fc</a>", ruleCharset},
		"garbage behind the root":  {in("<a xmlns=''/>") + "\nWarning: <b>x & y", "<a xmlns=''/>", ruleTrailing},
		"a second root":            {in("<a xmlns=''/>") + "<OAI-PMH/>", "<a xmlns=''/>", ruleTrailing},
		"a DOCTYPE":                {strings.Replace(in("<a xmlns=''/>"), "<OAI", "<!DOCTYPE OAI-PMH>\n<OAI", 1), "<a xmlns=''/>", ruleCharacters},
		"a blank line at first":    {"\n" + in("<a xmlns=''/>"), "<a xmlns=''/>", ruleCharacters},
		"an element without end":   {in("<a><b></a>"), "", ""},
		"a prefix without meaning": {in("<p:a/>"), "", ""},
		"an attribute twice":       {in("<a b='' b=''/>"), "", ""},
		"inside of a MARC record":  {in("<record xmlns='http://www.loc.gov/MARC21/slim'><leader>a < b</leader></record>\n"), "", ""},
		"a record inside":          {in("<a></record>"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var reported []string
			o := ReadOptions{URL: "http://x.example/", Lenient: true, Report: func(p Problem) {
				if reported = append(reported, p.Rule); p.Found == "" || p.Expected == "" && p.Rule != ruleCharacters && p.Rule != ruleCharset {
					t.Errorf("%+v", p)
				}
			}}
			if name == "a record inside" {
				// What follows shows that the end tag was not the record's.
				if _, _, _, err := readWhole(strings.NewReader(tt.doc), o); err == io.EOF {
					t.Error("it is read")
				}
				return
			}
			got, _, bad, err := readWhole(strings.NewReader(tt.doc), o)
			if err != io.EOF || len(got)+len(bad) != 3 || got[0].Identifier != "oai:x:1" || got[len(got)-1].Identifier != "oai:x:3" {
				t.Fatalf("%v, %v, %v", got, bad, err)
			}
			if tt.want == "" {
				if len(bad) != 1 || bad[0].Header.Identifier != "oai:x:2" || bad[0].Rule != ruleDocument || !bytes.Contains(bad[0].Input, []byte("<identifier>oai:x:2</identifier>")) || bytes.Contains(bad[0].Input, []byte("oai:x:3")) {
					t.Errorf("%v\n%s", bad, bad[0].Input)
				}
				return
			}
			whole := tt.rule == ruleCharset && !strings.Contains(tt.doc, "UTF-8") || tt.rule == ruleTrailing || !strings.ContainsAny(tt.want, "\uFFFD\u00a0&")
			if string(got[1].Metadata) != tt.want || got[1].Mended == whole || got[0].Mended || got[2].Mended {
				t.Errorf("%q, mended %t %t %t", got[1].Metadata, got[0].Mended, got[1].Mended, got[2].Mended)
			}
			if tt.rule == "" && reported != nil || tt.rule != "" && !slices.Equal(reported, []string{tt.rule}) {
				t.Errorf("reported %q", reported)
			}
			// Without Lenient it is refused, but for what is only said wrongly.
			if _, _, _, err := readWhole(strings.NewReader(tt.doc), ReadOptions{}); (err == io.EOF) != (tt.rule == "" || whole && tt.rule == ruleCharset) {
				t.Errorf("strictly: %v", err)
			}
		})
	}
}

// O8: a record, or a header, that was cut off has no identifier where the next one is in it.
func TestO8CutOff(t *testing.T) {
	for _, p := range []string{"", "o:"} {
		in := func(verb, content string) string {
			content = regexp.MustCompile(`<(/?)`).ReplaceAllString(content, "<${1}"+p)
			return strings.Replace(answerTo("<"+verb+">"+content+"</"+verb+">"), "<OAI-PMH", "<OAI-PMH xmlns:o='"+Namespace+"'", 1)
		}
		header := func(n int) string {
			return fmt.Sprintf("<header><identifier>oai:x:%d</identifier><datestamp>2025-01-01</datestamp></header>", n)
		}
		for doc, want := range map[string]string{
			in("ListRecords", "<record>"+header(1)+"<metadata><a></b><record>"+header(2)+"</record>"):                   "",
			in("ListRecords", "<record>"+header(1)+"<metadata><a></b><identifier>x</identifier></metadata></record>"):   "oai:x:1",
			in("ListIdentifiers", strings.Replace(header(1), "</datestamp></header>", "</date", 1)+header(2)):           "",
			in("ListIdentifiers", strings.Replace(header(1), "</datestamp></header>", "</date></header>", 1)+header(2)): "oai:x:1",
		} {
			_, _, bad, err := readWhole(strings.NewReader(doc), ReadOptions{Lenient: true})
			if err != io.EOF || len(bad) != 1 || bad[0].Rule != ruleDocument || bad[0].Header.Identifier != want {
				t.Errorf("%s\n%v, %v", doc, err, bad)
			}
		}
	}
}

// O9, O10: which records are bad, and which of them say what they are about.
func TestO9(t *testing.T) {
	for _, tt := range []struct {
		name, record string
		bad          string // its rule; "" is none
		id           string
		deleted      bool
		rules        string
	}{
		{"neither metadata nor status", "<record>" + header1 + "</record>", ruleHeader, "oai:x:1", false, ""},
		{"deleted", strings.Replace("<record>"+header1+"</record>", "<header", "<header status='deleted'", 1), "", "oai:x:1", true, ""},
		{"deleted with metadata", strings.Replace("<record>"+header1+"<metadata><a/></metadata></record>", "<header", "<header status='deleted'", 1), "", "oai:x:1", true, ruleDeleted},
		{"deleted with bad metadata and about", strings.Replace("<record>"+header1+"<metadata/><about><a/></about></record>", "<header", "<header status=' deleted '", 1), "", "oai:x:1", true, ruleDeleted},
		{"another status", strings.Replace("<record>"+header1+"<metadata><a/></metadata></record>", "<header", "<header status='gone'", 1), "", "oai:x:1", false, ruleDeleted},
		{"a status in capitals", strings.Replace("<record>"+header1+"</record>", "<header", "<header status='Deleted'", 1), "", "oai:x:1", true, ruleDeleted},
		{"no header", "<record><metadata><a/></metadata></record>", ruleHeader, "", false, ruleDatestamp},
		{"in no namespace", "<record xmlns=''>" + header1 + "<metadata><a/></metadata></record>", ruleOrder, "", false, ruleOrder + " " + ruleOrder + " " + ruleDatestamp},
		{"two headers", "<record>" + header1 + header1 + "<metadata><a/></metadata></record>", ruleHeader, "", false, ruleDatestamp},
		{"no identifier", "<record><header><datestamp>2025-01-01</datestamp></header><metadata><a/></metadata></record>", ruleIdentifier, "", false, ""},
		{"an empty identifier", "<record><header status='deleted'><identifier> </identifier><datestamp>2025-01-01</datestamp></header></record>", ruleIdentifier, "", true, ruleIdentifier},
		{"two identifiers", "<record><header><identifier>a:b</identifier><identifier>a:c</identifier><datestamp>2025-01-01</datestamp></header><metadata><a/></metadata></record>", ruleIdentifier, "", false, ""},
		{"a very long identifier", "<record><header><identifier>a:" + strings.Repeat("b", 9000) + "</identifier><datestamp>2025-01-01</datestamp></header><metadata><a/></metadata></record>", ruleIdentifier, "", false, ""},
		{"no datestamp", "<record><header><identifier>oai:x:1</identifier></header><metadata><a/></metadata></record>", "", "oai:x:1", false, ruleDatestamp},
		{"empty metadata", "<record>" + header1 + "<metadata> <!-- --> </metadata></record>", ruleMetadata, "oai:x:1", false, ""},
		{"text", "<record>" + header1 + "<metadata>x</metadata></record>", ruleMetadata, "oai:x:1", false, ""},
		{"text beside an element", "<record>" + header1 + "<metadata><a/>x</metadata></record>", ruleMetadata, "oai:x:1", false, ""},
		{"two elements", "<record>" + header1 + "<metadata><a/><b/></metadata></record>", ruleMetadata, "oai:x:1", false, ""},
		{"two metadata", "<record>" + header1 + "<metadata><a/></metadata><metadata><a/></metadata></record>", ruleMetadata, "oai:x:1", false, ""},
		{"an empty about", "<record>" + header1 + "<metadata><a/></metadata><about/></record>", "", "oai:x:1", false, ruleAbout},
		{"what has no place there", "<record>" + header1 + "<x xmlns='urn:x'><identifier/></x><y/><metadata><a/></metadata></record>", "", "oai:x:1", false, ruleOrder + " " + ruleOrder},
		{"a bad setSpec", "<record><header><identifier>oai:x:1</identifier><datestamp>2025-01-01</datestamp><setSpec>a b</setSpec></header><metadata><a/></metadata></record>", "", "oai:x:1", false, ruleSetSpec},
		{"a bad date of a harvest", "<record>" + header1 + "<metadata><a/></metadata><about><provenance xmlns='" + ProvenanceNamespace + "'><originDescription harvestDate='2024-01-01'/></provenance></about></record>", "", "oai:x:1", false, ruleProvenance},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var rules []string
			doc := list(tt.record+record(7), "")
			got, _, bad, err := readWhole(strings.NewReader(doc), ReadOptions{Report: func(p Problem) { rules = append(rules, p.Rule) }})
			if err != io.EOF || len(got)+len(bad) != 2 || got[len(got)-1].Identifier != "oai:x:7" {
				t.Fatalf("%v, %v, %v", got, bad, err)
			}
			if strings.Join(rules, " ") != tt.rules {
				t.Errorf("reported %q", rules)
			}
			if tt.bad == "" {
				if len(bad) > 0 || got[0].Identifier != tt.id || got[0].Deleted != tt.deleted || tt.deleted && (got[0].Metadata != nil || got[0].About != nil) {
					t.Errorf("%+v, %v", got[0], bad)
				}
				return
			}
			if len(bad) != 1 || bad[0].Rule != tt.bad || bad[0].Header.Identifier != tt.id || bad[0].Header.Deleted != tt.deleted || bad[0].Line == 0 {
				t.Fatalf("%+v", bad)
			}
			_, _, again, _ := readWhole(bytes.NewReader(bad[0].Input), ReadOptions{})
			if len(again) != 1 || again[0].Rule != bad[0].Rule || !reflect.DeepEqual(again[0].Header, bad[0].Header) {
				t.Errorf("%s: %v", bad[0].Input, again)
			}
		})
	}
}

// What a repository says of itself is kept with each state of a walk: it may not be long.
func TestLongFields(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	for _, doc := range []string{
		"<Identify><baseURL>" + long + "</baseURL></Identify>",
		"<ListMetadataFormats><metadataFormat><metadataPrefix>a</metadataPrefix><schema>" + long + "</schema><metadataNamespace>" + long + "</metadataNamespace></metadataFormat></ListMetadataFormats>",
		"<ListSets><set><setSpec>a</setSpec><setName>" + long + "</setName></set></ListSets>",
	} {
		reported := 0
		r := NewReader(strings.NewReader(answerTo(doc)), ReadOptions{Report: func(p Problem) {
			if strings.Contains(p.Found, "of 10240 bytes") {
				reported++
			}
		}})
		if _, err := r.Next(); !errors.Is(err, io.EOF) || reported == 0 || strings.Contains(fmt.Sprintf("%+v %v %v", r.Answer().Identity, r.Answer().Formats, r.Answer().Sets), "xxx") {
			t.Errorf("%.60s: %v, %d reported", doc, err, reported)
		}
	}
}

// What is no answer of the protocol is said to be what it is.
func TestNoAnswer(t *testing.T) {
	for doc, want := range map[string]string{
		"": "the document is empty", "{}": "perhaps JSON", "<!DOCTYPE html><html></html>": "an HTML page", "<html/>": "an HTML page",
		"<OAI-PMH/>": `<OAI-PMH> in namespace ""`, `<feed xmlns="http://www.w3.org/2005/Atom"/>`: "an Atom Feed Document",
		`<ListRecords xmlns="http://www.openarchives.org/OAI/1.1/OAI_ListRecords"/>`: "an answer of OAI-PMH 1",
		answerTo(""): "neither an error nor an element named as the verb", answerTo("<ListThings/>"): "neither an error nor",
		answerTo("<ListRecords>"): "is closed by", "PK\x03\x04": "text outside", "\x00\x01": "zero bytes",
		list(record(1), "<resumptionToken>a</resumptionToken><resumptionToken>b</resumptionToken>"): "a second resumptionToken",
		list(record(1), "<resumptionToken><a/></resumptionToken>"):                                  "elements in it",
		list(record(1), "<resumptionToken>"+strings.Repeat("x", 5000)+"</resumptionToken>"):         "5000 bytes",
	} {
		_, _, _, err := readWhole(strings.NewReader(doc), ReadOptions{URL: "http://x.example/", Lenient: true})
		var fault *DocumentError
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "http://x.example/:") {
			t.Errorf("%.60q: %v", doc, err)
		}
	}
}

// TestStrict: which rules a strict Reader reports of an answer, and which it does not when it is right.
func TestStrict(t *testing.T) {
	for _, tt := range []struct{ name, doc, rules string }{
		{"a plain list", string(plainList(3)), ""},
		{"no schema", strings.Replace(string(plainList(1)), "xsi:schemaLocation", "xsi:nothing", 1), ruleSchema},
		{"an identifier that is none", strings.Replace(string(plainList(1)), "oai:example.org:000000000", "1", 1), ruleIdentifier},
		{"an identifier twice", strings.Replace(string(plainList(2)), "oai:example.org:000000001", "oai:example.org:000000000", 1), ruleTwice},
		{"another schema of Dublin Core", strings.ReplaceAll(string(plainList(1)), "/oai_dc.xsd", "/dc.xsd"), ruleSchema},
		{"no responseDate", strings.Replace(string(plainList(1)), "<responseDate>2026-01-02T00:00:00Z</responseDate>", "", 1), ruleResponseDate},
		{"no request", strings.Replace(string(plainList(1)), `<request verb="ListRecords" metadataPrefix="oai_dc">https://example.org/oai</request>`, "", 1), ruleRequest},
		{"no element", strings.Replace(string(plainList(0)), "next/1000?a=b&amp;c", "", 1), ruleEmpty},
		{"an error beside it", strings.Replace(string(plainList(1)), "</ListRecords>", `</ListRecords><error code="mine"/>`, 1), ruleOrder + " " + ruleErrors + " " + ruleErrors},
	} {
		var rules []string
		_, _, bad, err := readWhole(strings.NewReader(tt.doc), ReadOptions{Strict: true, Report: func(p Problem) { rules = append(rules, p.Rule) }})
		var refused *Error
		if strings.Join(rules, " ") != tt.rules || bad != nil || err != io.EOF && !errors.As(err, &refused) {
			t.Errorf("%s: reported %q, %v, %v", tt.name, rules, bad, err)
		}
	}
}

// TestRules: every rule is there once, with all that it needs.
func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if r.ID == "" || r.Title == "" || r.Clause == "" || seen[r.ID] || r.Severity != Must && r.Severity != Should && r.Severity != Note {
			t.Errorf("%+v", r)
		}
		seen[r.ID] = true
	}
	p := Problem{Rule: ruleSize, URL: "http://x/", Line: 1, Column: 2, Record: "r", Found: "f", Expected: "e"}
	if got := fmt.Sprint(p); got != `http://x/:1:2: oai-size: record "r": found f, expected e` {
		t.Error(got)
	}
}
