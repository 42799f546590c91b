package strictxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// padded makes all of a document be read in pieces, if it comes in pieces: the
// character set is looked for in the first 1,024 bytes at once.
func padded(doc string) string { return strings.Repeat(" ", 1024) + doc }

// pieces reads at the most n bytes at a time.
type pieces struct {
	r io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(p.n, len(b))]) }

// inPieces is trace of a document that arrives n bytes at a time.
func inPieces(doc string, n int, o Options) (string, error) {
	return traced(New(pieces{strings.NewReader(doc), n}, o))
}

// wellFormed returns what we and encoding/xml read alike.
func wellFormed() []string {
	return []string{
		"<a/>", "<a />", "<a\t\r\n/>", "<a></a >", "<a></a\n>", "<a><a><a/></a></a>",
		"<a-b.c_d1/>", "<_/>", "<\u00e9\u00e9/>", "<a \u00e9='1'></a>", "<a\u0661/>", "<p:a xmlns:p='u'></p:a>", "<p:\u00e9 xmlns:p='u'/>",
		"<a b='1' c=\"2\"\td \r\n = \n '3'/>", `<a b="'" c='"'/>`, "<a b=''/>", "<a b='>'/>", "<a b='/>'></a>", "<a b=']]>'/>",
		"<a b=' x  y '/>", "<a b='\t\n\r\r\n\n\r'/>", "<a b='&#9;&#10;&#13;&#13;\n\r&#10;'/>", "<a b='&lt;&gt;&amp;&apos;&quot;&amp;lt;'/>",
		"<a b='" + strings.Repeat("x", 3000) + "' c='y'/>", "<a b='\u00e9\u20ac\U0001f600'/>",
		"<a>\r</a>", "<a>\r\n\r\r\n\n</a>", "<a>\r&#10;</a>", "<a>&#13;\n</a>", "<a>x\r<b/>\n</a>", "<a>\r<![CDATA[\n]]></a>",
		"<a>&#x41;&#65;&#0065;&#x10FFFF;&#x1f600;&#xd7ff;&#xE000;&#xfffd;</a>", "<a>&amp;&lt;</a>", "<a>\ufffd &#xfffd;</a>",
		"<a>]</a>", "<a>]]</a>", "<a>]] ></a>", "<a>]]&gt;</a>", "<a>]&#93;></a>", "<a>></a>", "<a>\"'</a>",
		"<a>\x7f\u0080\u0085\u009f\u2028\ud7ff\ue000\ufffd\U0010ffff</a>", "<a>a\ufeffb</a>", "<a>1234567\u00e98</a>",
		"<a><![CDATA[]]></a>", "<a><![CDATA[]]]></a>", "<a><![CDATA[]]]]></a>", "<a><![CDATA[<b>&amp;&#x;]]></a>", "<a><![CDATA[\r\n\r]]]]><![CDATA[>]]></a>",
		"<a><![CDATA[\ufffd &#xD800;]]></a>", "<a><![CDATA[ ]] > ]]></a>",
		"<a><!----></a>", "<a><!-- - - > <b> & ]]> --></a>", "<a><!-->--></a>", "<a><!-- \r\n\u00e9 --></a>", "<!-- --><a/><!-- --> \n",
		"<a><?b?></a>", "<a><?b ?></a>", "<a><?b ? > ?></a>", "<a><?b <c> & ??></a>", "<?b c?><a/><?xml-stylesheet href='x'?>",
		"<a xmlns='u'><b xmlns=''/></a>", "<xml:a/>", "<a xml:lang='de' lang='en'/>", "<a xmlns:xml='http://www.w3.org/XML/1998/namespace'/>",
		"<a xmlns:p='u' p:b='1' b='2' xmlns:q='v' q:b='3'/>", "<a p:b='1' xmlns:p='u'/>", "<a xmlns:p='u'><b xmlns:p='v' p:c=''/><p:c/></a>",
		"<a xmlns='&lt;u&gt;'/>", "<a" + strings.Repeat("\n", 70) + "/>",
	}
}

// declared returns documents with an XML declaration, which has to be at the start.
func declared() []string {
	return []string{
		"<?xml version='1.0'?><a/>", "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\" ?>\r\n<a/>",
		"<?xml\tversion\n=\r'1.0' encoding = 'ISO_8859-1:1987'?><a>x</a>", "<?xml version='1.0' standalone='no'?><a/>", "\ufeff<?xml version='1.0'?><a/>",
	}
}

func TestWellFormed(t *testing.T) {
	check := func(doc string) {
		ours, err := trace(doc, Options{})
		if err != nil {
			t.Errorf("%.100q is refused: %v", doc, err)
			return
		}
		theirs, err := rival(strings.NewReader(strings.TrimPrefix(doc, "\ufeff")))
		if err != nil || ours != theirs {
			t.Errorf("%.100q: ours %s, theirs %s, %v", doc, ours, theirs, err)
		}
	}
	for _, doc := range wellFormed() {
		check(doc)
		check(padded(doc))
	}
	for _, doc := range declared() {
		check(doc)
	}
}

// TestIllFormed: places are where the reading ended, or those of the token when
// it was read.
func TestIllFormed(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		// Characters.
		{"<a>\x00</a>", "1:4: broken XML: illegal character code U+0000"},
		{"<a>x\n12345678\x1f</a>", "2:9: broken XML: illegal character code U+001F"},
		{"<a>\u00e9\ufffe</a>", "1:6: broken XML: illegal character code U+FFFE"},
		{"<a>\uffff</a>", "U+FFFF"},
		{"<a b='\x0b'/>", "1:7: broken XML: illegal character code U+000B"},
		{"<a><![CDATA[\x01]]></a>", "1:13: broken XML: illegal character code U+0001"},
		{"<a><!--\x01--></a>", "1:8: broken XML: illegal character code U+0001"},
		{"<a><?b \ufffe?></a>", "illegal character code U+FFFE"},
		{"<a>\xff</a>", "1:4: broken XML: invalid UTF-8"},
		{"<a>\xc0\x80</a>", "invalid UTF-8"},
		{"<a>\xe0\x80\xaf</a>", "invalid UTF-8"},
		{"<a>\xed\xa0\x80</a>", "invalid UTF-8"},
		{"<a>\xf4\x90\x80\x80</a>", "invalid UTF-8"},
		{"<a>\xc3</a>", "invalid UTF-8"},
		{"<a b='\x80'/>", "invalid UTF-8"},
		{"<a><!--\xff--></a>", "invalid UTF-8"},
		{"\ufeff\ufeff<a/>", "text outside of the root element"},
		{"<a/>\ufeff", "text outside of the root element"},
		{"<a/>\x00", "text outside of the root element"},
		// References.
		{"<a>&</a>", "1:5: broken XML: invalid character entity & (no semicolon)"},
		{"<a>& b;</a>", "invalid character entity & (no semicolon)"},
		{"<a>&;</a>", "invalid character entity &;"},
		{"<a>&lt</a>", "1:7: broken XML: invalid character entity &lt (no semicolon)"},
		{"<a>&nbsp;</a>", "1:10: broken XML: invalid character entity &nbsp;"},
		{"<a>&LT;</a>", "invalid character entity &LT;"},
		{"<a b='&x;'/>", "invalid character entity &x;"},
		{"<a b='&amp'/>", "invalid character entity &amp (no semicolon)"},
		{"<a>&#;</a>", "invalid character entity &#;"},
		{"<a>&#x;</a>", "invalid character entity &#x;"},
		{"<a>&#X41;</a>", "invalid character entity &#X41;"},
		{"<a>&#4A;</a>", "invalid character entity"},
		{"<a>&#-1;</a>", "invalid character entity"},
		{"<a>&#+1;</a>", "invalid character entity"},
		{"<a>&# 1;</a>", "invalid character entity"},
		{"<a>&#1_0;</a>", "invalid character entity"},
		{"<a>&#x110000;</a>", "invalid character entity &#x110000;"},
		{"<a>&#99999999999999999999999999;</a>", "invalid character entity"},
		{"<a>&#x10000000000000041;</a>", "invalid character entity"},
		{"<a>&#0;</a>", "illegal character code U+0000"},
		{"<a>&#x1f;</a>", "illegal character code U+001F"},
		{"<a>&#xfffe;</a>", "illegal character code U+FFFE"},
		{"<a>&#xd800;</a>", "&#xd800; is not a character"},
		{"<a b='&#57343;'/>", "&#57343; is not a character"},
		{"&#32;<a/>", "text outside of the root element"},
		{"<a/>&#10;", "text outside of the root element"},
		// Text, sections, comments, processing instructions.
		{"<a>]]></a>", "1:7: broken XML: unescaped ]]> not in CDATA section"},
		{"<a>x]]]></a>", "unescaped ]]> not in CDATA section"},
		{"<a><![CDATA[x]]>]]></a>", "unescaped ]]> not in CDATA section"},
		{"<a><![cdata[x]]></a>", "1:8: broken XML: invalid <![ sequence"},
		{"<a><![CDATA [x]]></a>", "invalid <![ sequence"},
		{"<![CDATA[x]]><a/>", "text outside of the root element"},
		{"<a><!-x--></a>", "invalid sequence <!- not part of <!--"},
		{"<a><!-- -- --></a>", `1:12: broken XML: invalid sequence "--" not allowed in comments`},
		{"<a><!-- ---></a>", `invalid sequence "--" not allowed in comments`},
		{"<a><? b?></a>", "1:6: broken XML: expected target name after <?"},
		{"<a><??></a>", "expected target name after <?"},
		{"<a><?1?></a>", "invalid XML name: 1"},
		{"<a><?b=c?></a>", "no white space after <?b"},
		{"<a><?xml version='1.0'?></a>", "1:4: the XML declaration is not at the start"},
		{"<a><?XmL?></a>", "the XML declaration is not at the start"},
		{"<a/><!ELEMENT a EMPTY>", "1:5: DOCTYPE is refused"},
		{"<a><!doctype x></a>", "DOCTYPE is refused"},
		{"<!>", "DOCTYPE is refused"},
		{"<!DOCTYPE a [<!ENTITY b '>'> ]><a/>", "1:1: DOCTYPE is refused"},
		{"<!DOCTYPE", "1:10: the document is cut off"},
		// Tags.
		{"< a/>", "1:2: broken XML: expected element name after <"},
		{"<>", "expected element name after <"},
		{"<a></ a>", "1:6: broken XML: expected element name after </"},
		{"<a></>", "expected element name after </"},
		{"<a></a b='1'>", "1:9: broken XML: invalid characters between </a and >"},
		{"<a></a/>", "invalid characters between </a and >"},
		{"<1a/>", "1:4: broken XML: invalid XML name: 1a"},
		{"<-a/>", "invalid XML name: -a"},
		{"<.a/>", "invalid XML name"},
		{"<a\u00d7/>", "invalid XML name"},
		{"<\u00b7/>", "invalid XML name"},
		{"<\u0661/>", "invalid XML name"},
		{"<\U0001f600/>", "invalid XML name"},
		{"<a\xff/>", "invalid XML name"},
		{"<:a/>", "prefix that is not declared"},
		{"<a :b=''/>", "prefix that is not declared"},
		{"<a:/>", "prefix that is not declared"},
		{"<a:b:c/>", "invalid XML name"},
		{"<p:1 xmlns:p='u'/>", "invalid XML name"},
		{"<a><p:-/></a>", "invalid XML name"},
		{"<a/ >", "1:5: broken XML: expected /> in element"},
		{"<a/b/>", "expected /> in element"},
		{"<a =''/>", "1:4: broken XML: expected attribute name in element"},
		{"<a ''/>", "expected attribute name in element"},
		{"<a\"b\"/>", "expected attribute name in element"},
		{"<a <b/></a>", "expected attribute name in element"},
		{"<a b/>", "1:6: broken XML: attribute name without = in element"},
		{"<a b c='1'/>", "attribute name without = in element"},
		{"<a b=c/>", "1:7: broken XML: unquoted or missing attribute value in element"},
		{"<a b=/>", "unquoted or missing attribute value in element"},
		{"<a b='1'c='2'/>", "1:9: broken XML: no white space before an attribute"},
		{"<a b='<'/>", "1:8: broken XML: unescaped < in an attribute value"},
		{"<a b='1><c d='2'/></a>", "1:10: broken XML: unescaped < in an attribute value"},
		{"<a b='1><c/></a>", "1:10: broken XML: unescaped < in an attribute value"},
		{"<a b='1' b='1'/>", "1:1: attribute b occurs twice"},
		{"<a></b>", "1:4: <a> is closed by </b>"},
		{"<a></A>", "<a> is closed by </A>"},
		{"<a></aa>", "<a> is closed by </aa>"},
		{"<p:a xmlns:p='u' xmlns:q='u'></q:a>", "<p:a> is closed by </q:a>"},
		{"<a></a></a>", "1:8: </a> without a start tag"},
		{"<a/>x", "1:5: text outside of the root element"},
		// Namespaces.
		{"<a><p:b/></a>", "prefix that is not declared"},
		{"<a><b xmlns:p='u'/><p:b/></a>", "prefix that is not declared"},
		{"<xmlns:a/>", "prefix that is not declared"},
		{"<a xmlns:xmlns='u'/>", "is not allowed"},
		{"<a xmlns:p='http://www.w3.org/XML/1998/namespace'/>", "is not allowed"},
		{"<a xmlns='http://www.w3.org/XML/1998/namespace'/>", "is not allowed"},
		{"<a xmlns:p='http://www.w3.org/2000/xmlns/'/>", "is not allowed"},
		{"<a xmlns='http://www.w3.org/2000/xmlns/'/>", "is not allowed"},
		// Cut off anywhere.
		{"<a>x", "1:5: the document is cut off inside <a>"},
		{"<a>&am", "1:7: the document is cut off inside <a>"},
		{"<a>\n\u00e9\xc3", "2:4: the document is cut off inside <a>"},
		{"<", "1:2: the document is cut off"},
		{"<a ", "1:4: the document is cut off"},
		{"<a b", "the document is cut off"},
		{"<a b=", "the document is cut off"},
		{"<a b='x", "the document is cut off"},
		{"<a b='x'", "the document is cut off"},
		{"<a/", "the document is cut off"},
		{"<a></", "the document is cut off"},
		{"<a></a", "the document is cut off"},
		{"<a></a ", "the document is cut off"},
		{"<a><!", "the document is cut off"},
		{"<a><!-", "the document is cut off"},
		{"<a><!-- -", "the document is cut off"},
		{"<a><!-- --", "the document is cut off"},
		{"<a><![CDA", "the document is cut off"},
		{"<a><![CDATA[ ]]", "the document is cut off"},
		{"<a><?", "the document is cut off"},
		{"<a><?b", "the document is cut off"},
		{"<a><?b ?", "the document is cut off"},
		{" \n ", "2:2: the document is empty"},
		{"<!-- -->", "the document is empty"},
	} {
		_, whole := trace(c.doc, Options{})
		var fault *DocumentError
		if !errors.As(whole, &fault) || !strings.Contains(whole.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.doc, whole, c.want)
			continue
		}
		_, whole = trace(padded(c.doc), Options{})
		for _, n := range []int{1, 2, 3, 7} {
			if _, err := inPieces(padded(c.doc), n, Options{}); err == nil || whole == nil || err.Error() != whole.Error() {
				t.Errorf("%q in pieces of %d: %v, as a whole: %v", c.doc, n, err, whole)
			}
		}
	}
}

func TestXMLDeclaration(t *testing.T) {
	for doc, want := range map[string]string{
		"<?xml version='1.1'?><a/>":                                  `1:1: XML version "1.1" is not supported; want 1.0`,
		"<?xml version=''?><a/>":                                     `XML version "" is not supported`,
		"<?xml?><a/>":                                                "broken XML declaration",
		"<?XML version='1.0'?><a/>":                                  "broken XML declaration",
		"<?xml encoding='utf-8'?><a/>":                               "broken XML declaration",
		"<?xml version='1.0\"?><a/>":                                 "broken XML declaration",
		"<?xml version='1.0'encoding='utf-8'?><a/>":                  "broken XML declaration",
		"<?xml version='1.0' standalone='maybe'?><a/>":               "broken XML declaration",
		"<?xml version='1.0' standalone='no' encoding='utf-8'?><a/>": "broken XML declaration",
		"<?xml version='1.0' x='y'?><a/>":                            "broken XML declaration",
		" <?xml version='1.0'?><a/>":                                 "1:2: the XML declaration is not at the start",
		"<?xml version='1.0'?><?xml version='1.0'?><a/>":             "1:22: the XML declaration is not at the start",
		"<?xml version='1.0'":                                        "the document is cut off",
	} {
		if _, err := trace(doc, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", doc, err, want)
		}
	}
}

func TestInstructions(t *testing.T) {
	const (
		none    = "<?xml version='1.0'?><a>&lt;?b?></a>"
		before  = "<?xml version='1.0'?>\n<?xml-stylesheet href='a'?><a/>"
		inside  = "<a>\n<?b?></a>"
		after   = "<a/><?b c?>"
		refused = ": the processing instruction <?"
	)
	for _, c := range []struct {
		where     Instructions
		doc, want string
	}{
		{InstructionsAnywhere, none, ""}, {InstructionsAnywhere, before, ""}, {InstructionsAnywhere, inside, ""}, {InstructionsAnywhere, after, ""},
		{InstructionsOutside, none, ""}, {InstructionsOutside, before, ""}, {InstructionsOutside, inside, "2:1" + refused + "b is refused"}, {InstructionsOutside, after, ""},
		{InstructionsNowhere, none, ""}, {InstructionsNowhere, before, "2:1" + refused + "xml-stylesheet is refused"},
		{InstructionsNowhere, inside, "2:1" + refused + "b is refused"}, {InstructionsNowhere, after, "1:5" + refused + "b is refused"},
	} {
		_, err := trace(c.doc, Options{Instructions: c.where})
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != "document:"+c.want) {
			t.Errorf("%d, %q: got %v, want %s", c.where, c.doc, err, c.want)
		}
	}
}

func TestPlain8(t *testing.T) {
	for c := range 256 {
		want := c >= 0x20 && c < 0x80 && !strings.ContainsRune(`&<>"'`, rune(c))
		for at := range 8 {
			for _, around := range []byte{'a', ' ', 0x7f, '!', '=', '?', '%', '('} {
				b := bytes.Repeat([]byte{around}, 8)
				b[at] = byte(c)
				if plain8(string(b)) != want {
					t.Fatalf("byte %#x at %d among %q: got %v", c, at, around, !want)
				}
			}
		}
	}
}

// What cannot stand for itself is written as a reference, or as U+FFFD.
func TestAppendEscaped(t *testing.T) {
	const want = "a&amp;&lt;&gt;&quot;&apos;&#9;&#10;&#13;\uFFFD\uFFFD\uFFFD\u00e9]"
	if got := AppendEscaped([]byte("a"), "&<>\"'\t\n\r\x00\xff\uffff\u00e9]"); string(got) != want {
		t.Errorf("got %s", got)
	}
}

// What is held comes back as it was; of what is not held each character that XML cannot
// have comes back as U+FFFD. No byte becomes more than six.
func TestHolds(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune("ab<&\"'\t\n\r\x00\x1f\u007f\ufffd\ufffe\uffff"))),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		s := text.Draw(t, "s")
		doc := append(AppendEscaped(AppendAttr([]byte("<x"), ` a="`, s), ""), '>')
		doc = append(AppendEscaped(doc, s), "</x>"...)
		var got struct {
			Attr string `xml:"a,attr"`
			Text string `xml:",chardata"`
		}
		if err := xml.Unmarshal(doc, &got); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		want := strings.Map(func(r rune) rune {
			if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF {
				return 0xFFFD
			}
			return r
		}, string([]rune(s)))
		if got.Attr != want || got.Text != want || Holds(s) != (s == want) {
			t.Fatalf("%q became %q and %q, want %q, and Holds says %v", s, got.Attr, got.Text, want, Holds(s))
		}
		if n := len(AppendEscaped(nil, s)); n > 6*len(s) {
			t.Fatalf("%d bytes became %d", len(s), n)
		}
	})
}
