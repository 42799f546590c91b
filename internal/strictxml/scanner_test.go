package strictxml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// tracer writes tokens down.
type tracer struct {
	strings.Builder
	held []byte // text, which may come in pieces
}

func (b *tracer) start(line, column int, name xml.Name, attrs []xml.Attr) {
	b.flush()
	fmt.Fprintf(b, "%d:%d<{%s}%s", line, column, name.Space, name.Local)
	for _, a := range attrs {
		fmt.Fprintf(b, " {%s}%s=%q", a.Name.Space, a.Name.Local, a.Value)
	}
	b.WriteByte('>')
}

func (b *tracer) end(depth int) {
	b.flush()
	fmt.Fprintf(b, "</%d>", depth)
}

func (b *tracer) text(data []byte) { b.held = append(b.held, data...) }

func (b *tracer) flush() {
	if len(b.held) > 0 {
		fmt.Fprintf(b, "%q", b.held)
		b.held = nil
	}
}

// trace writes down all tokens of a document, and how it ended.
func trace(doc string, o Options) (tokens string, err error) {
	return traced(New(strings.NewReader(doc), o))
}

func traced(s *Scanner) (tokens string, err error) {
	var b tracer
	for {
		if err := s.Next(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return b.String(), err
		}
		switch s.Kind {
		case StartTag:
			b.start(s.Line, s.Column, xml.Name{Space: s.Space, Local: s.Local}, s.Attrs)
		case EndTag:
			b.end(s.Depth())
		case Text:
			b.text(s.Data)
		}
	}
}

func TestTokens(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`<a/>`, `1:1<{}a></0>`},
		{"\ufeff<?xml version='1.0'?>\n<!-- c --><a>x<b/>&amp;</a>\n<?pi?>", `2:11<{}a>"x"2:15<{}b></1>"&"</0>`},
		{"<p:a xmlns:p='u'>\n <p:b p:c='1' c='2'/></p:a>", `1:1<{u}a>"\n "2:2<{u}b {u}c="1" {}c="2"></1></0>`},
		{`<a xmlns="u"><b xmlns="" c="1"><d/></b><e/></a>`, `1:1<{u}a>1:14<{}b {}c="1">1:32<{}d></2></1>1:40<{u}e></1></0>`},
		{"<a xmlns:p='u'><b\nxmlns:p='v'><p:c/></b\n><p:c/></a>", `1:1<{}a>1:16<{}b>2:13<{v}c></2></1>3:2<{u}c></1></0>`},
		{"<a b='&#x20ac;&lt;'>\r\n&#13;\u00fc<![CDATA[<&]]></a>", `1:1<{}a {}b="\u20ac<">"\n\r\u00fc<&"</0>`},
	} {
		want := strings.NewReplacer(`\u20ac`, "\u20ac", `\u00fc`, "\u00fc").Replace(c.want)
		if got, err := trace(c.doc, Options{}); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", c.doc, got, err, want)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct{ doc, reason string }{
		{"", "1:1: the document is empty; want a list"},
		{"{}", "perhaps JSON, not a list"},
		{"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", "1:1: a gzip file, and no Content-Encoding that says so"},
		{"x", "1:1: text outside of the root element"},
		{"<a/><b/>", "1:5: a second root element <b>"},
		{"<a/>\n x", "text outside"},
		{"<a/><![CDATA[ ]]>", "text outside"},
		{"<a>\n<b></a>", "2:4: <b> is closed by </a>"},
		{"<a>", "cut off inside <a>"},
		{"<a", "cut off"},
		{"</a>", "without a start tag"},
		{"<p:a/>", "prefix that is not declared"},
		{"<a p:b='1'/>", "prefix that is not declared"},
		{"<a xmlns:p='u' xmlns:q='u' p:b='1' q:b='2'/>", "attribute u:b occurs twice"},
		{"<a xmlns='u' xmlns='v'/>", "attribute xmlns occurs twice"},
		{"<a xmlns:p=''/>", "is not allowed"},
		{"<a xmlns:xml='u'/>", "is not allowed"},
		{"<a>&#xD800;</a>", "&#xD800; is not a character"},
		{"<a b='&#xDFFF;'/>", "&#xDFFF; is not a character"},
		{"<!doctype html><html/>", "an HTML page, not a list (DOCTYPE is refused)"},
		{"<!DOCTYPE a><a/>", "DOCTYPE is refused"},
		{"<a/><?xml version='1.0'?>", "the XML declaration is not at the start"},
		{"<?xml version='1.0' encoding='nonsense'?><a/>", `unknown charset "nonsense"`},
		{"<a><b><c><d/></c></b></a>", `nested deeper than 3 (cap "depth")`},
		{"<a b='' c='' d='' e='' f=''/>", `more than 4 attributes (cap "attributes")`},
		{"<a>" + strings.Repeat("x", 101) + "</a>", `longer than 100 bytes (cap "text")`},
		{"<a>" + strings.Repeat("x", 90) + "<!-- -->" + strings.Repeat("x", 90) + "</a>" + strings.Repeat(" ", 900), `longer than 1000 bytes (cap "document")`},
	} {
		_, err := trace(c.doc, Options{URL: "u", Want: "a list", Limits: Limits{Document: 1000, Depth: 3, Attributes: 4, Text: 100}})
		var fault *DocumentError
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), c.reason) || fault.Line < 1 || fault.Column < 1 {
			t.Errorf("%s: got %v, want %s", c.doc, err, c.reason)
		}
	}
}

// TestCharactersCapped: the text of an element is capped as a whole, not only
// piece by piece.
func TestCharactersCapped(t *testing.T) {
	doc := "<a>" + strings.Repeat("xxxxxxxx<!-- -->", 20) + "</a>"
	s := New(strings.NewReader(doc), Options{Limits: Limits{Text: 100}})
	if err := s.Next(); err != nil {
		t.Fatal(err)
	}
	var fault *DocumentError
	if _, _, err := s.Characters(); !errors.As(err, &fault) || fault.Cap != CapText {
		t.Error(err)
	}
}

func TestElements(t *testing.T) {
	const doc = `<p:r xmlns:p="u" xmlns="d&quot;" xml:base="sub/" v="1"><p:e>a<b>c</b></p:e><skipped><x/></skipped><k n="1">kept</k></p:r>`
	s := New(strings.NewReader(doc), Options{URL: "http://h/x/y", Namespaces: []string{"u"}})
	next := func() {
		t.Helper()
		if err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	next()
	before, after, err := s.Frame()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(before)+after, `<p:r xmlns:p="u" xmlns="d&quot;" xml:base="http://h/x/sub/"></p:r>`; got != want {
		t.Errorf("frame %s, want %s", got, want)
	}
	next()
	if text, markup, err := s.Characters(); string(text) != "ac" || !markup || err != nil || s.Depth() != 1 {
		t.Errorf("%q %v %v", text, markup, err)
	}
	next()
	if err := s.Skip(); err != nil || s.Depth() != 1 {
		t.Error(err)
	}
	next()
	from := s.Start
	s.Keep(from)
	if v, ok := s.Attr("", "n"); !ok || v != "1" || resolvedAt(s, "") != "http://h/x/sub/" {
		t.Errorf("%q %v", v, resolvedAt(s, ""))
	}
	if err := s.Skip(); err != nil || string(s.Slice(from, s.Offset())) != `<k n="1">kept</k>` {
		t.Errorf("%v %s", err, s.Slice(from, s.Offset()))
	}
}

// resolvedAt resolves a reference at the current token.
func resolvedAt(s *Scanner, ref string) string {
	to, err := s.Resolve(s.Base(), ref)
	if err != nil {
		return err.Error()
	}
	return to
}

func TestNotices(t *testing.T) {
	var got []Notice
	doc := `<?xml version="1.0" encoding="utf-8"?><a xml:base=":"/>`
	_, err := trace(doc, Options{ContentType: "text/xml; charset=iso-8859-1", Report: func(n Notice) { got = append(got, n) }})
	if err != nil || len(got) != 2 || got[0].About != AboutCharset || got[1].About != AboutBase {
		t.Errorf("%+v %v", got, err)
	}
	for _, n := range got {
		if n.Line != 1 || n.Column < 1 || n.Found == "" || n.Expected == "" {
			t.Errorf("%+v", n)
		}
	}
}

func TestWhat(t *testing.T) {
	for doc, want := range map[string]string{
		`<feed xmlns="http://www.w3.org/2005/Atom"/>`:                    "an Atom Feed Document",
		`<entry xmlns="http://www.w3.org/2005/Atom"/>`:                   "an Atom Entry Document",
		`<feed xmlns="http://purl.org/atom/ns#"/>`:                       "an Atom 0.3 feed",
		`<rss version="0.92"/>`:                                          "RSS 0.92",
		`<rss/>`:                                                         "RSS",
		`<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>`: "RDF, perhaps RSS 1.0",
		`<HTML/>`:    "an HTML page",
		`<urlset/>`:  "a sitemap or ResourceSync document <urlset>",
		`<OAI-PMH/>`: "an OAI-PMH response",
		`<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"/>`: "a SOAP message",
		`<x/>`:               "<x> without a namespace",
		`<x xmlns="urn:x"/>`: `<x> in namespace "urn:x"`,
	} {
		s := New(strings.NewReader(doc), Options{})
		if err := s.Next(); err != nil || s.What() != want {
			t.Errorf("%s: %q, %v, want %q", doc, s.What(), err, want)
		}
	}
}

func TestResolve(t *testing.T) {
	s := New(strings.NewReader("<a/>"), Options{URL: "http://h/p/q?r"})
	for ref, want := range map[string]string{
		" x\n": "http://h/p/x", "": "http://h/p/q?r", "#f": "http://h/p/q?r#f", "../y": "http://h/y",
		"http://o/a b": "http://o/a b", "http://o/a/../b": "http://o/b", "urn:x:Y": "urn:x:Y", "//o/z": "http://o/z",
	} {
		if got, err := s.Resolve(s.Base(), ref); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", ref, got, err, want)
		}
	}
	base := &url.URL{Scheme: "http", Host: "h", Path: "/p/q"}
	for _, c := range []struct{ ref, alone, based string }{
		{" x", "x", "http://h/p/x"},
		{"http://o/a/../b", "http://o/a/../b", "http://o/b"},
		{"http://o/a b", "http://o/a b", "http://o/a b"},
		{"http://o/%zz/../b", "", ""},
		{"x/" + strings.Repeat("y", MaxReference), "", ""},
		{"urn:" + strings.Repeat("y", MaxReference), "", ""},
	} {
		nowhere := New(strings.NewReader("<a/>"), Options{})
		alone, err := Resolve(nil, c.ref)
		scanned, scannedErr := nowhere.Resolve(nowhere.Base(), c.ref)
		based, basedErr := Resolve(base, c.ref)
		if c.alone == "" && (err == nil || scannedErr == nil || basedErr == nil) ||
			c.alone != "" && (err != nil || scannedErr != nil || basedErr != nil || alone != c.alone || scanned != c.alone || based != c.based) {
			t.Errorf("%.50q: %.50q, %v; %.50q, %v; against the base %.50q, %v", c.ref, alone, err, scanned, scannedErr, based, basedErr)
		}
	}
	if _, err := s.Resolve(s.Base(), "%zz"); err == nil {
		t.Error("%zz was resolved")
	}
	for scheme, want := range map[string]bool{"a:": true, "a+b-c.d:x": true, "1a:": false, ":": false, "a": false, "a/b:c": false, "": false} {
		if HasScheme(scheme) != want {
			t.Errorf("%q: %v", scheme, !want)
		}
	}
}

// TestLenient: what legacy feeds get wrong most often is read as it was meant, and
// reported once; all else that is not well-formed is refused.
func TestLenient(t *testing.T) {
	const ampersand, entity = `1:4 "&" that does not begin a reference, read as "&"`, "1:4 HTML entities, which XML does not define"
	for _, c := range []struct {
		doc, text string // text is "" when the document is refused
		reported  []string
	}{
		{"<a>b &amp; c &lt;&#65;</a>", "b & c <A", nil},
		{"<a>b & c&d &= &;&</a>", "b & c&d &= &;&", []string{ampersand}},
		{"<a>&nbsp;&hellip;&NotEqualTilde;</a>", "\u00a0\u2026\u2242\u0338", []string{entity}},
		{"<a>&bogus;&AMP;</a>", "&bogus;&AMP;", []string{"1:4 references to undefined entities, read as text"}},
		{"<a>&#8;&#xD800;&#x;</a>", "&#8;&#xD800;&#x;", []string{"1:4 references to characters that XML does not allow, read as text"}},
		{"<a>x\n\x01y\x02z</a>", "x\nyz", []string{"2:1 control characters, which XML does not allow, left out"}},
		{"<a><![CDATA[\xe9\x80 &]]></a>", "\u00e9\u20ac &", []string{"1:13 bytes that are not UTF-8, read as windows-1252"}},
		{"\n\n<?xml version='1.0' encoding='iso-8859-5'?><a>\xd0</a>", "\u0430", []string{"3:1 white space before the XML declaration"}},
		{"\ufeff <?xml version='1.0'?><a>b</a>", "b", []string{"1:2 white space before the XML declaration"}},
		{"\ufeff\ufeff\n\ufeff<?xml version='1.0' encoding='iso-8859-5'?><a>b</a>", "b", []string{"1:1 a byte order mark that is not at the start", "2:4 white space before the XML declaration"}},
		{"\n\ufeff<a>b</a>", "b", []string{"1:1 a byte order mark that is not at the start"}},
		{"<a>b</a>\ufeff", "", nil},
		{"\ufeff\ufeefx<a>b</a>", "", nil},
		{"<a><b:c/>x<b:c d:e=''/></a>", "x", []string{"1:4 undeclared prefixes, read with their usual namespaces"}},
		{"<a>b<?xml version='1.0'?></a>", "", nil},
		{"<a>b & c", "", nil},
		{"<a><b></a></b>", "", nil},
		{"<a b=&amp;>c</a>", "", nil},
		{"<!DOCTYPE a><a>b</a>", "", nil},
	} {
		var reported []string
		got, err := textOf(strings.NewReader(c.doc), Options{Lenient: true, Report: func(n Notice) {
			reported = append(reported, fmt.Sprintf("%d:%d %s", n.Line, n.Column, n.Found))
		}})
		if got != c.text || (err == nil) != (c.text != "") || !slices.Equal(reported, c.reported) {
			t.Errorf("%q: %q, %v, reported %q; want %q, reported %q", c.doc, got, err, reported, c.text, c.reported)
		}
	}
}

// TestLenientCharset: what might be read in another charset than its own is refused.
func TestLenientCharset(t *testing.T) {
	const declaration = "<?xml version='1.0' encoding='iso-8859-5'?>"
	for doc, want := range map[string]string{
		"<!-- -->" + declaration + "<a>\xd0</a>":                     `encoding "iso-8859-5" is declared too late`,
		strings.Repeat(" ", head) + declaration + "<a>\xd0</a>":      `encoding "iso-8859-5" is declared too late`,
		"<?xml version='1.0' encoding='iso-8859-\x015'?><a>\xd0</a>": `encoding "iso-8859-5" is declared too late`,
		" \x00<\x00a\x00>\x00\x05\x01<\x00/\x00a\x00>\x00":           "zero bytes at the start",
		"<?\xe9ml version='1.0' encoding='iso-8859-5'?><a>\xd0</a>":  "name with bytes that are not UTF-8",
		"<a b\xe9='x'>c</a>": "name with bytes that are not UTF-8",
		"<a>x<\xe9/></a>":    "name with bytes that are not UTF-8",
		"<!-- --><?xml version='1.0' encoding='UTF-8'?><a>x</a>":            "",
		"\ufeff<!-- --><?xml version='1.0' encoding='utf-8'?><a>\u0430</a>": "",
		"<\u00e9>x</\u00e9>": "",
	} {
		if got, err := textOf(strings.NewReader(doc), Options{Lenient: true}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %q, %v; want %q", doc, got, err, want)
		}
	}
	// A strict Scanner refuses bytes that are no UTF-8 anyway.
	const utf16 = "text/xml; charset=utf-16" // which it is not
	if got, err := textOf(strings.NewReader("<?xml version='1.0' encoding='iso-8859-5'?><a>b</a>"), Options{ContentType: utf16}); got != "b" || err != nil {
		t.Errorf("strict: %q, %v", got, err)
	}
}

// TestLenientPrefixes: an undeclared prefix has the namespace that the caller gives it,
// else one of its own.
func TestLenientPrefixes(t *testing.T) {
	got, err := trace(`<a><p:b q:c="1"/><p:b xmlns:p="urn:p"/></a>`, Options{Lenient: true, Prefixes: map[string]string{"p": "urn:usual"}})
	const want = `1:1<{}a>1:4<{urn:usual}b {urn:undeclared:q}c="1"></1>1:18<{urn:p}b></1></0>`
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// TestLenientBytes: different bytes are different characters.
func TestLenientBytes(t *testing.T) {
	seen := map[string]int{}
	for c := 0x80; c <= 0xff; c++ {
		got, err := textOf(strings.NewReader("<a>"+string([]byte{byte(c)})+"</a>"), Options{Lenient: true})
		if before, again := seen[got]; again || err != nil || got == "\ufffd" {
			t.Errorf("%#x is %q like %#x, %v", c, got, before, err)
		}
		seen[got] = c
	}
}
