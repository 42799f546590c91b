package strictxml

import (
	"encoding/xml"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestBeginningsOfNames: whatever XML allows at the beginning of a name is one here.
func TestBeginningsOfNames(t *testing.T) {
	begin := 0
	for r := rune(utf8.RuneSelf); r <= 0xFFFF; r++ {
		c := string(r)
		if !utf8.ValidString(c) {
			continue
		}
		if _, err := xml.NewDecoder(strings.NewReader("<" + c + "/>")).RawToken(); err == nil {
			if begin++; !beginsName(r) {
				t.Errorf("%U begins no name", r)
			}
		}
	}
	if begin < 30_000 {
		t.Errorf("encoding/xml allows %d characters at the beginning of names", begin)
	}
}

// An element that is nested deeper than it may be, or breaks off, is an error of the document.
func TestElementFails(t *testing.T) {
	for doc, want := range map[string]string{
		"<X><a><b/></a></X>": "document:1:7: the record's elements are nested deeper than 2",
		"<l><X><a/>":         "document:1:11: the document is cut off inside <X>",
	} {
		s := New(strings.NewReader(doc), Options{})
		tag(t, s, "X")
		if got, _, err := s.Element(2); err == nil || err.Error() != want || got != nil {
			t.Errorf("%s: %s, %v, want %s", doc, got, err, want)
		}
	}
}

// Whatever may be the prefix of a name is found in front of its colon, also behind a quote that
// is not ASCII.
func TestPrefixes(t *testing.T) {
	for doc, want := range map[string]string{
		`<a>b</a>`:                     "",
		`<p:a q.1:b="r_:c">-s:t</p:a>`: "p q.1 r_ s p",
		"\u201cp:a":                    "p",
		"x\u201cp:a":                   "x\u201cp p",
		"\u00e9:a \u00e91:b":           "\u00e9 \u00e91",
		": 1:2 :":                      "",
	} {
		var got []string
		Prefixes([]byte(doc), func(p []byte) { got = append(got, string(p)) })
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", doc, got, want)
		}
	}
}

// What an element inherits is declared on it, where its names and values have the prefix.
func TestElementInherits(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`<X>p:1</X>`, `<X>p:1</X>`},
		{`<X xmlns="u" xmlns:p="v">p:1</X>`, `<X xmlns="u" xmlns:p="v">p:1</X>`},
		{`<a xmlns="u"><X/></a>`, `<X xmlns="u"/>`},
		{`<a xmlns:q="v" xmlns="u" xmlns:p="w" xml:lang="en"><X q:a="p:1" xml:lang="de">q:1</X></a>`, `<X xmlns="u" xmlns:p="w" xmlns:q="v" q:a="p:1" xml:lang="de">q:1</X>`},
		{`<a xmlns="u" xmlns:p="w" xmlns:q="v"><X>p</X></a>`, `<X xmlns="u">p</X>`},
		{`<a xmlns="u" xmlns:p="w"><b xmlns="" xmlns:p="v"><X>p:1</X></b></a>`, `<X xmlns:p="v">p:1</X>`},
		{`<a xmlns="u" xmlns:p="w" xmlns:q="v"><X xmlns="" p:b="" xmlns:q="v">q:1</X></a>`, `<X xmlns:p="w" xmlns="" p:b="" xmlns:q="v">q:1</X>`},
		{`<a xmlns:p="w"><b xmlns:q="v"/><X>p:1 q:1</X></a>`, `<X xmlns:p="w">p:1 q:1</X>`},
		{`<a xmlns:p="w"><X><p:b xmlns:p="v"><p:c xmlns:p="u"/></p:b></X></a>`, `<X xmlns:p="w"><p:b xmlns:p="v"><p:c xmlns:p="u"/></p:b></X>`},
		{`<a xmlns:p="own"><X>p:1</X></a>`, `<X>p:1</X>`},
		{`<a xmlns:p="own"><X><p:b/></X></a>`, `<X xmlns:p="own"><p:b/></X>`},
		{`<a xmlns:xml="http://www.w3.org/XML/1998/namespace"><X>xml:1</X></a>`, `<X>xml:1</X>`},
	} {
		s := New(strings.NewReader(c.doc), Options{})
		for s.Local != "X" {
			if err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if got, _, err := s.Element(100, "own"); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.doc, got, err, c.want)
		}
	}
}
