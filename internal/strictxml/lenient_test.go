package strictxml

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLenient: what legacy feeds get wrong most often is read as it was meant, and
// reported once; all else that is not well-formed is refused.
func TestLenient(t *testing.T) {
	const ampersand, entity = `1:4 "&" that begins no reference, taken as itself`, "1:4 entities of HTML, which XML does not know"
	for _, c := range []struct {
		doc, text string // text is "" when the document is refused
		reported  []string
	}{
		{"<a>b &amp; c &lt;&#65;</a>", "b & c <A", nil},
		{"<a>b & c&d &= &;&</a>", "b & c&d &= &;&", []string{ampersand}},
		{"<a>&nbsp;&hellip;&NotEqualTilde;</a>", "\u00a0\u2026\u2242\u0338", []string{entity}},
		{"<a>&bogus;&AMP;</a>", "&bogus;&AMP;", []string{"1:4 references to entities that nothing defines, taken as text"}},
		{"<a>&#8;&#xD800;&#x;</a>", "&#8;&#xD800;&#x;", []string{"1:4 references to what is no character in XML, taken as text"}},
		{"<a>x\n\x01y\x02z</a>", "x\nyz", []string{"2:1 control characters, which XML does not allow, left out"}},
		{"<a><![CDATA[\xe9\x80 &]]></a>", "\u00e9\u20ac &", []string{"1:13 bytes that are no UTF-8, taken as windows-1252"}},
		{"\n\n<?xml version='1.0' encoding='iso-8859-5'?><a>\xd0</a>", "\u0430", []string{"3:1 white space before the XML declaration"}},
		{"\ufeff <?xml version='1.0'?><a>b</a>", "b", []string{"1:2 white space before the XML declaration"}},
		{"<a><b:c/>x<b:c d:e=''/></a>", "x", []string{"1:4 prefixes that are not declared, taken as usual"}},
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
