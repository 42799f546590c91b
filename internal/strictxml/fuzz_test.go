package strictxml

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"testing"
)

// FuzzScanner: the scanner never panics, every fault has a place, and whatever it
// accepts encoding/xml accepts too and reads in the same way, and so does a lenient
// scanner. It makes no difference in which pieces the document arrives, or what the
// scanner has read before.
func FuzzScanner(f *testing.F) {
	for _, doc := range []string{
		`<a/>`,
		`<?xml version="1.0" encoding="iso-8859-1"?><p:a xmlns:p="urn:p" p:b="&lt;&#xe4;"><c xmlns="urn:c">x<![CDATA[y]]></c><!-- z --></p:a>`,
		`<a xmlns="u"><b xmlns=""/><xml:c xml:base="d/"/></a>`,
		"\xff\xfe<\x00a\x00/\x00>\x00",
		`<a><?pi x?></a> `,
		`<a>&#xD800;</a>`,
		`<a b="1" b="2"/>`,
		`<a b="1"c="2"/>`,
		`<a b="]]>">]]></a>`,
		`<a:b:c/>`,
		`<a b:c:d="1"/>`,
		"<a>\r\n<b c=\"\r\"/>]]&gt;</a>",
		`<a><b c="&lt;&#10;&#x20AC;&amp;amp;" d='"'/>&gt;]] &gt;ü</a >`,
	} {
		f.Add([]byte(doc), "")
	}
	for _, doc := range append(wellFormed(), declared()...) {
		f.Add([]byte(doc), "")
	}
	f.Add([]byte("<\x00/\x00\x00\xd8"), "") // broken twice: as XML, and then as UTF-16
	f.Add([]byte("<a>\xfc</a>"), "text/xml; charset=iso-8859-1")
	f.Add([]byte("<a>\xfc</a>"), "text/xml; charset=us-ascii")
	f.Add([]byte("\xfe\xff\x00<\x00a\x00>\xd8\x35\xdd\x1e\xff\xfd\x00<\x00/\x00a\x00>"), "")
	f.Fuzz(func(t *testing.T, doc []byte, contentType string) {
		o := Options{URL: "http://a/", ContentType: contentType,
			Limits: Limits{Document: 64 << 10, Depth: 20, Attributes: 10, Text: 10_000}}
		whole, err := trace(padded(string(doc)), o)
		if cut, bad := inPieces(padded(string(doc)), 1, o); (bad == nil) != (err == nil) || err == nil && cut != whole {
			t.Fatalf("as a whole %s, %v\nbyte by byte %s, %v", whole, err, cut, bad)
		}
		ours, err := trace(string(doc), o)
		used := new(Scanner)
		used.Reset([]byte(`<p:a xmlns:p="urn:x" xmlns:xml="http://www.w3.org/XML/1998/namespace" xml:base="b/"><p:b>&lt;`), Options{}) // and what comes is another document
		_, _ = traced(used)
		given := bytes.Clone(doc)
		used.Reset(given, o)
		if again, bad := traced(used); again != ours || fmt.Sprint(bad) != fmt.Sprint(err) || !bytes.Equal(given, doc) {
			t.Fatalf("new %s, %v\nreset %s, %v", ours, err, again, bad)
		}
		if err != nil {
			var fault *DocumentError
			if !errors.As(err, &fault) || fault.Line < 1 || fault.Column < 1 || fault.Reason == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		if o.ContentType == "" && bytes.HasPrefix(doc, []byte("<a")) { // in UTF-8
			o.Lenient, o.Report = true, func(n Notice) { t.Errorf("reported: %v", n) }
			if lenient, err := trace(string(doc), o); err != nil || lenient != ours {
				t.Fatalf("strict %s\nlenient %s, %v", ours, lenient, err)
			}
			o.Lenient, o.Report = false, nil
		}
		in, _, _, err := decoded(bufio.NewReader(bytes.NewReader(doc)), &o)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := rival(in)
		if err != nil || ours != theirs {
			t.Fatalf("ours %s\ntheirs %s, %v", ours, theirs, err)
		}
	})
}

// rival is trace by encoding/xml.
func rival(in io.Reader) (string, error) {
	var b tracer
	d := xml.NewDecoder(in)
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	depth := 0
	for {
		line, column := d.InputPos()
		token, err := d.Token()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return b.String(), err
		}
		switch token := token.(type) {
		case xml.StartElement:
			depth++
			var attrs []xml.Attr
			for _, a := range token.Attr {
				if a.Name.Space != "xmlns" && (a.Name != xml.Name{Local: "xmlns"}) {
					attrs = append(attrs, a)
				}
			}
			b.start(line, column, token.Name, attrs)
		case xml.EndElement:
			depth--
			b.end(depth)
		case xml.CharData:
			if depth > 0 {
				b.text(token)
			}
		}
	}
}
