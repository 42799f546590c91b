package patch

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

const (
	jsonType = "application/json-patch+json"
	xmlType  = "application/xml-patch+xml"
)

// same wants exactly these bytes, as a hash does.
func same(want string) func([]byte) bool {
	return func(got []byte) bool { return string(got) == want }
}

func TestJSON(t *testing.T) {
	for name, c := range map[string]struct{ base, diff, want string }{
		"compact":       {`{"b":1,"a":[1,2]}`, `[{"op":"replace","path":"/b","value":"x"},{"op":"add","path":"/a/-","value":3}]`, `{"b":"x","a":[1,2,3]}`},
		"final newline": {"{\"a\":1}\n", `[{"op":"remove","path":"/a"}]`, "{}\n"},
		"two spaces":    {"{\n  \"a\": 1,\n  \"b\": [\n    1\n  ]\n}\n", `[{"op":"replace","path":"/a","value":2}]`, "{\n  \"a\": 2,\n  \"b\": [\n    1\n  ]\n}\n"},
		"three spaces":  {"{\n   \"a\": 1\n}", `[{"op":"replace","path":"/a","value":2}]`, "{\n   \"a\": 2\n}"},
		"tabs":          {"{\n\t\"a\": 1\n}", `[{"op":"copy","from":"/a","path":"/b"}]`, "{\n\t\"a\": 1,\n\t\"b\": 1\n}"},
		"not escaped":   {`{"a":"<&>"}`, `[{"op":"add","path":"/b","value":"<b>"}]`, `{"a":"<&>","b":"<b>"}`},
		"tested":        {`{"a":1}`, `[{"op":"test","path":"/a","value":1},{"op":"move","from":"/a","path":"/b"}]`, `{"b":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Apply(jsonType, []byte(c.base), []byte(c.diff), same(c.want)); err != nil {
				t.Error(err)
			}
			if got, err := Apply(jsonType, []byte(c.base), []byte(c.diff), same("else")); !errors.Is(err, ErrUnmatched) || got != nil {
				t.Errorf("another hash: %q, %v", got, err)
			}
		})
	}
}

func TestXML(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	diff := func(operations string) string {
		return `<p:patch xmlns:p="urn:ietf:rfc:7351">` + operations + `</p:patch>`
	}
	for name, c := range map[string]struct{ base, diff, want string }{
		// The examples of RFC 5261 4 and A.
		"add an element":      {head + `<doc><note>This is a sample document</note></doc>`, `<diff><add sel="doc"><foo id="ert4773">This is a new child</foo></add></diff>`, head + `<doc><note>This is a sample document</note><foo id="ert4773">This is a new child</foo></doc>`},
		"add an attribute":    {head + `<doc><note>x</note><foo id="ert4773">y</foo></doc>`, `<diff><add sel="doc/foo[@id='ert4773']" type="@user">Bob</add></diff>`, head + `<doc><note>x</note><foo id="ert4773" user="Bob">y</foo></doc>`},
		"add a declaration":   {`<doc><foo/></doc>`, `<diff><add sel="doc" type="namespace::pref">urn:ns:xxx</add></diff>`, `<doc xmlns:pref="urn:ns:xxx"><foo/></doc>`},
		"add a comment":       {`<doc><foo id="ert4773">y</foo></doc>`, `<diff><add sel="doc/foo[@id='ert4773']" pos="before"><!-- comment --></add></diff>`, `<doc><!-- comment --><foo id="ert4773">y</foo></doc>`},
		"add several nodes":   {`<doc><foo id="a">y</foo></doc>`, "<diff><add sel=\"doc/foo[@id='a']\" pos=\"after\">\n  <bar id=\"b\">x</bar></add></diff>", "<doc><foo id=\"a\">y</foo>\n  <bar id=\"b\">x</bar></doc>"},
		"replace an element":  {`<doc><foo a="1">This is a sample document</foo></doc>`, `<diff><replace sel="doc/foo[@a='1']"><bar a="2"/></replace></diff>`, `<doc><bar a="2"/></doc>`},
		"replace a value":     {`<doc a='test'/>`, `<diff><replace sel="doc/@a">new value</replace></diff>`, `<doc a='new value'/>`},
		"replace a comment":   {`<doc a="test"><!-- This is a comment --></doc>`, `<diff><replace sel="doc/comment()[1]"><!-- This is the new content --></replace></diff>`, `<doc a="test"><!-- This is the new content --></doc>`},
		"replace an instr":    {`<doc><?foo bar="foobar"?></doc>`, `<diff><replace sel='doc/processing-instruction("foo")'><?bar foo="foobar"?></replace></diff>`, `<doc><?bar foo="foobar"?></doc>`},
		"replace a text":      {`<doc><foo>This is the text content</foo></doc>`, `<diff><replace sel="doc/foo/text()[1]">This is the new text content</replace></diff>`, `<doc><foo>This is the new text content</foo></doc>`},
		"remove an element":   {"<doc>\n<foo a=\"1\"><bar>x</bar></foo>\n</doc>", `<diff><remove sel="doc/foo[@a='1']" ws="after"/></diff>`, "<doc>\n</doc>"},
		"remove a value":      {`<doc a="foo" b="c"/>`, `<diff><remove sel="doc/@a"/></diff>`, `<doc b="c"/>`},
		"remove a comment":    {`<doc><!-- x --><a/></doc>`, `<diff><remove sel="doc/comment()[1]"/></diff>`, `<doc><a/></doc>`},
		"with space":          {"<d>\n <a/>\n <b/>\n</d>", diff(`<p:remove sel="d/b" ws="both"/>`), "<d>\n <a/></d>"},
		"into an empty one":   {`<d x="1"><a b='2' /></d>`, diff(`<p:add sel="d/a"><c/></p:add>`), `<d x="1"><a b='2' ><c/></a></d>`},
		"in front":            {`<d><a/></d>`, diff(`<p:add sel="d" pos="prepend"><c/></p:add>`), `<d><c/><a/></d>`},
		"by a child":          {`<d><e><i>1</i>a</e><e><i>2</i>b</e></d>`, diff(`<p:remove sel="/d/e[i='2']"/>`), `<d><e><i>1</i>a</e></d>`},
		"by its text":         {`<d><e>1</e><e>2</e></d>`, diff(`<p:remove sel="d/e[.='1']"/>`), `<d><e>2</e></d>`},
		"by any name":         {`<d><e/><f/></d>`, diff(`<p:remove sel="*/*[2]"/>`), `<d><e/></d>`},
		"one after the other": {`<d><a/></d>`, diff(`<p:add sel="d"><b/></p:add><p:add sel="d/b"><c/></p:add>`), `<d><a/><b><c/></b></d>`},
		"by another prefix":   {`<d xmlns:x="urn:x"><x:a>1</x:a><a>2</a></d>`, `<diff xmlns:y="urn:x"><replace sel="d/y:a/text()">3</replace></diff>`, `<d xmlns:x="urn:x"><x:a>3</x:a><a>2</a></d>`},
		"default namespace":   {`<d xmlns="urn:x"><a>1</a></d>`, `<diff xmlns="urn:x"><replace sel="d/a/text()">3</replace></diff>`, `<d xmlns="urn:x"><a>3</a></d>`},
		"text in parts":       {`<d>a<![CDATA[b]]>c</d>`, diff(`<p:replace sel="d/text()">x</p:replace>`), `<d>x</d>`},
		"a slash in quotes":   {`<d><e u="a/b"/><e u="c"/></d>`, diff(`<p:remove sel="d/e[@u='a/b']"/>`), `<d><e u="c"/></d>`},
	} {
		t.Run(name, func(t *testing.T) {
			var got []byte
			if _, err := Apply(xmlType, []byte(c.base), []byte(c.diff), func(b []byte) bool { got = b; return string(b) == c.want }); err != nil {
				t.Errorf("%v: %s, want %s", err, got, c.want)
			}
		})
	}
}

// What cannot be applied, or would cost too much, is refused in good time.
func TestRefused(t *testing.T) {
	many := func(n int, s string) string { return strings.Repeat(s, n) }
	list := "[" + many(100_000, "0,") + "0]"
	var declared []byte
	for i := range 20_000 {
		declared = fmt.Appendf(declared, ` xmlns:a%d="u"`, i)
	}
	bomb := `[{"op":"add","path":"/a","value":"` + many(1000, "x") + `"}` + many(40, `,{"op":"copy","from":"","path":"/b"}`) + `]`
	for name, c := range map[string]struct{ kind, base, diff string }{
		"no such type":         {"text/plain", "a", "b"},
		"no type":              {"", "a", "b"},
		"no JSON":              {jsonType, "{", "[]"},
		"no patch":             {jsonType, "{}", "{}"},
		"no such path":         {jsonType, "{}", `[{"op":"remove","path":"/a"}]`},
		"a failed test":        {jsonType, `{"a":1}`, `[{"op":"test","path":"/a","value":2}]`},
		"a copy bomb":          {jsonType, `{"a":1}`, bomb},
		"a long JSON base":     {jsonType, many(MaxBase+1, " "), "[]"},
		"a long patch":         {jsonType, "{}", many(MaxDescription+1, " ")},
		"many operations":      {jsonType, list, "[" + many(9_999, `{"op":"add","path":"/0","value":1},`) + `{"op":"add","path":"/0","value":1}]`},
		"a deep base":          {jsonType, many(100_000, "[") + many(100_000, "]"), `[{"op":"add","path":"/0","value":1}]`},
		"a deep patch":         {jsonType, "{}", `[{"op":"add","path":"/a","value":` + many(100_000, "[") + many(100_000, "]") + `}]`},
		"no XML":               {xmlType, "<a>", `<diff><remove sel="a"/></diff>`},
		"no XML patch":         {xmlType, "<a/>", "x"},
		"nothing":              {xmlType, "<a/>", ""},
		"no such node":         {xmlType, "<a/>", `<diff><remove sel="a/b"/></diff>`},
		"two nodes":            {xmlType, "<a><b/><b/></a>", `<diff><remove sel="a/b"/></diff>`},
		"no selector":          {xmlType, "<a/>", `<diff><remove/></diff>`},
		"no such attribute":    {xmlType, "<a/>", `<diff><remove sel="a/@b"/></diff>`},
		"no such operation":    {xmlType, "<a/>", `<diff><move sel="a"/></diff>`},
		"an axis":              {xmlType, "<a><b/></a>", `<diff><remove sel="a/descendant::b"/></diff>`},
		"anywhere":             {xmlType, "<a><b/></a>", `<diff><remove sel="//b"/></diff>`},
		"a function":           {xmlType, "<a><b/></a>", `<diff><remove sel="a/b[last()]"/></diff>`},
		"an unknown prefix":    {xmlType, "<a/>", `<diff><remove sel="x:a"/></diff>`},
		"no space":             {xmlType, "<a>x<b/></a>", `<diff><remove sel="a/b" ws="before"/></diff>`},
		"another charset":      {xmlType, `<?xml version="1.0" encoding="ISO-8859-1"?><a/>`, `<diff><remove sel="a"/></diff>`},
		"entities":             {xmlType, `<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx">]><a>&x;</a>`, `<diff><remove sel="a"/></diff>`},
		"deep XML":             {xmlType, many(100_000, "<a>") + many(100_000, "</a>"), `<diff><remove sel="a"/></diff>`},
		"many nodes":           {xmlType, "<a>" + many(200_000, "<b/>") + "</a>", `<diff><remove sel="a/b[1]"/></diff>`},
		"many XML operations":  {xmlType, "<a>" + many(1_000_000, "x") + "</a>", "<diff>" + many(10_000, `<add sel="a" pos="prepend">y</add>`) + "</diff>"},
		"a long selector":      {xmlType, "<a/>", `<diff><remove sel="a` + many(10_000, "[1]") + `"/></diff>`},
		"many predicates":      {xmlType, "<a>" + many(90_000, "<b/>") + "</a>", "<diff>" + many(80, `<replace sel="a/b`+many(160, "[.='']")+`[1]"><b/></replace>`) + "</diff>"},
		"many declarations":    {xmlType, "<a/>", "<diff" + string(declared) + ">" + many(10_000, `<add sel="a">y</add>`) + "</diff>"},
		"growth by operations": {xmlType, "<a/>", "<diff>" + many(3, `<add sel="a">`+many(300_000, "x")+"</add>") + many(10_000, `<add sel="a">yyyy</add>`) + "</diff>"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []byte
			var err error
			testenv.Affordable(t, len(c.base)+len(c.diff), func() {
				got, err = Apply(c.kind, []byte(c.base), []byte(c.diff), func([]byte) bool { return false })
			})
			if err == nil || errors.Is(err, ErrUnmatched) && !strings.Contains(name, "copy bomb") || got != nil {
				t.Errorf("%.100q, %v", got, err)
			}
		})
	}
}

// The forms of a JSON document that is nested deeply cost no more than its length allows.
func TestDeepIndent(t *testing.T) {
	const deep = 900
	base := []byte("[\n" + strings.Repeat(" ", 16) + strings.Repeat("[", deep) + strings.Repeat("0,", 100_000) + "0" + strings.Repeat("]", deep) + "]")
	testenv.Affordable(t, len(base), func() {
		if _, err := Apply(jsonType, base, []byte(`[{"op":"add","path":"/-","value":1}]`), func([]byte) bool { return false }); !errors.Is(err, ErrUnmatched) {
			t.Error(err)
		}
	})
}

// Nothing panics, and what an operation does not name stays as it is.
func FuzzXML(f *testing.F) {
	f.Add(`<a b="c"><d>e</d><!--f--><?g h?></a>`, `<diff><replace sel="a/d/text()">x</replace></diff>`)
	f.Add(`<a><b/></a>`, `<diff xmlns="urn:x"><add sel="*/*[1]" type="@y">z"</add><remove sel="*/*/@y"/></diff>`)
	f.Add("<d>\n <a/>\n</d>", `<p><remove sel="d/a" ws="both"/></p>`)
	f.Fuzz(func(t *testing.T, base, diff string) {
		if len(base)+len(diff) > 10_000 {
			return
		}
		before := bytes.Clone([]byte(base))
		result, err := applyXML(before, []byte(diff))
		if string(before) != base {
			t.Fatalf("the base was changed to %q", before)
		}
		if err == nil && len(result) > len(base)+len(diff)*8+100 {
			t.Fatal(fmt.Sprint("it grew from ", len(base), " and ", len(diff), " to ", len(result)))
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"a":[1,2]}`, `[{"op":"add","path":"/a/-","value":3},{"op":"copy","from":"/a","path":"/b"}]`)
	f.Fuzz(func(t *testing.T, base, diff string) {
		if len(base)+len(diff) > 10_000 {
			return
		}
		_, _ = Apply(jsonType, []byte(base), []byte(diff), func([]byte) bool { return false }) // it must only not panic
	})
}
