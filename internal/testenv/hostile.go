package testenv

import (
	"fmt"
	"strings"
)

// Hostile returns XML elements that are expensive to read for their length, which is about
// n bytes each, by the kind of expense. They may be used wherever any element may.
func Hostile(n int) map[string]string {
	fill := func(open, each, shut string) string {
		return open + strings.Repeat(each, max(1, (n-len(open)-len(shut))/len(each))) + shut
	}
	numbered := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	long := func(n int) string { return strings.Repeat("b", max(n, 1)) }
	const deep = 200
	return map[string]string{
		"a long base, inherited by elements with one": `<a xml:base="http://h.example/` + long(n-deep*22) + `/">` +
			strings.Repeat(`<a xml:base="x/">`, deep) + strings.Repeat("</a>", deep) + "</a>",
		"a long base, and short ones beside each other":   fill(`<a xml:base="http://h.example/`+long(n/2)+`/">`, `<a xml:base="x/"/>`, "</a>"),
		"a base as long as one may be, and short ones":    fill(`<a xml:base="http://h.example/`+long(8000)+`/">`, `<a xml:base="x/"/>`, "</a>"),
		"declarations, nested, and prefixes from outside": ManyPrefixes(deep, n),
		"a default namespace, declared again and again":   fill("<a>", `<b xmlns="urn:x"><c xmlns=""/></b>`, "</a>"),
		"attributes, as many as there may be":             "<a>" + strings.Repeat("<b"+attributes(250)+"/>", max(1, n/2000)) + "</a>",
		"attributes with prefixes of one namespace":       `<a xmlns:p="urn:x" xmlns:q="urn:x">` + fill("", `<b p:a="" q:b="" p:c="" q:d=""/>`, "") + "</a>",
		"names that are all different":                    "<a>" + numbered("<b%d/>") + "</a>",
		"names that are not in ASCII, all different":      "<a>" + numbered("<\u00e9%d/>") + "</a>",
		"one long name":                                      "<a><" + long(n) + "/></a>",
		"elements, as deep as they may be":                   "<a>" + strings.Repeat(strings.Repeat("<a>", deep)+strings.Repeat("</a>", deep), max(1, n/deep/7)) + "</a>",
		"character references":                               fill("<a>", "&#x26;", "</a>"),
		"comments between the letters of a text":             fill("<a>", "x<!---->", "</a>"),
		"CDATA sections":                                     fill("<a>", "<![CDATA[]]>", "</a>"),
		"line breaks of two characters":                      fill("<a>", "\r\n", "</a>"),
		"a text of colons":                                   fill("<a>", "p:", "</a>"),
		"a value of colons":                                  fill(`<a b="`, "p:", `"/>`),
		"a comment that does not end":                        fill("<a><!--", "- ", ""),
		"a text that is too long for a title or an href":     fill("<a>", "lorem ipsum ", "</a>"),
		"dot segments":                                       fill(`<a href="`, "../", `"/>`),
		"white space in a tag":                               fill("<a", " ", "/>"),
		"processing instructions":                            fill("<a>", "<?x?>", "</a>"),
		"quotes of the other kind":                           fill("<a b='", `"`, "'/>"),
		"brackets that might end a CDATA section":            fill("<a><![CDATA[", "]]", "]]></a>"),
		"angle brackets of HTML, as in a title":              fill("<a>", "&lt;b&gt;", "</a>"),
		"angle brackets that open and do not close, in HTML": fill("<a>", "&lt;", "</a>"),
	}
}

// ManyPrefixes nests elements each of which declares 250 prefixes of its own, and
// fills the innermost with elements whose prefix was declared first.
func ManyPrefixes(deep, n int) string {
	var b strings.Builder
	b.WriteString(`<p:r xmlns:p="urn:p">`)
	depth := 0
	for ; depth < deep && b.Len() < n/2; depth++ {
		b.WriteString("<p:d")
		for j := range 250 {
			fmt.Fprintf(&b, ` xmlns:p%x="u"`, depth*250+j)
		}
		b.WriteByte('>')
	}
	for b.Len() < n-depth*6 {
		b.WriteString("<p:e/>")
	}
	b.WriteString(strings.Repeat("</p:d>", depth) + "</p:r>")
	return b.String()
}

func attributes(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " a%d=''", i)
	}
	return b.String()
}
