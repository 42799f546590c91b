package strictxml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// D17: an IRI is checked whole, not by its scheme alone.
func TestIsIRI(t *testing.T) {
	for s, want := range map[string]bool{
		"urn:uuid:1225c695-cfb8-4ebb-aaaa-80da344efa6a":  true,
		"https://a.example":                              true,
		"https://user:pw@a.example:8080/a/b;c=1?d=e/?#f": true,
		"http://[2001:db8::1]:80/":                       true,
		"http://[2001:db8::1]x/":                         false,
		"https://a.example/%C3%A9":                       true,
		"https://a.example/%C":                           false,
		"https://a.example/%zz":                          false,
		"https://żółw.example/日本":                        true,
		"tag:a.example,2020:x":                           true,
		"x:":                                             true,
		"":                                               false,
		"relative/path":                                  false,
		"//a.example/":                                   false,
		"Post: my first one":                             false,
		"urn:a b":                                        false,
		"urn:<a>":                                        false,
		"urn:a#b#c":                                      false,
		"urn:a[1]":                                       false,
		"urn:a|b":                                        false,
		"urn:a\nb":                                       false,
		"urn:a\\b":                                       false,
		"urn:\u0085":                                     false,
		"urn:a?\ue000":                                   true,
		"urn:\ue000":                                     false,
		"urn:\ufffe":                                     false,
		"urn:\xff":                                       false,
		"http://a.example:80a/":                          false,
		"1urn:a":                                         false,
		"http://a.example@b.example/":                    true,
		"http://a b@c.example/":                          false,
	} {
		if got := IsIRI(s); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

// tag reads on to the start tag of an element.
func tag(t *testing.T, s *Scanner, name string) {
	t.Helper()
	for s.Kind != StartTag || s.Local != name {
		if err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// D60: a base that is too long is one for its element alone, and only for what is
// relative to it.
func TestLongBase(t *testing.T) {
	long := "http://h/" + strings.Repeat("x", MaxReference) + "/"
	longest := "http://h/" + strings.Repeat("x", MaxReference-len("http://h//rr")) + "/"
	doc := fmt.Sprintf(`<r><a xml:base=%q><in xml:base="y/"/><out xml:base="http://o/"/></a><b xml:base=%q/><c/></r>`, long, longest)
	var notices []Notice
	s := New(strings.NewReader(doc), Options{URL: "http://h/d/", Report: func(n Notice) { notices = append(notices, n) }})
	for _, c := range []struct{ name, ref, want string }{
		{"r", "r", "http://h/d/r"},
		{"a", "r", errLongBase.Error()},
		{"a", "http://o/x", "http://o/x"},
		{"a", "http://o/./x", "http://o/x"},
		{"in", "r", errLongBase.Error()},
		{"out", "r", "http://o/r"},
		{"b", "rr", longest + "rr"},
		{"b", "rrr", errTooLong.Error()},
		{"c", "r", "http://h/d/r"},
		{"c", strings.Repeat("r", MaxReference+1), errTooLong.Error()},
		{"c", "http://o/" + strings.Repeat("r", MaxReference), errTooLong.Error()},
	} {
		tag(t, s, c.name)
		if got := resolvedAt(s, c.ref); got != c.want {
			t.Errorf("<%s>: %.40s... is %.80s, want %.80s", c.name, c.ref, got, c.want)
		}
	}
	if len(notices) != 1 || notices[0].About != AboutBase {
		t.Errorf("%+v", notices)
	}
}

// The name of a namespace may be that of each attribute, which are compared with each other.
func TestLongNamespace(t *testing.T) {
	for n, want := range map[int]string{MaxReference: "EOF", MaxReference + 1: "document:1:1: a namespace of 8193 bytes; want at most 8192"} {
		err := New(strings.NewReader("<a xmlns:p='"+strings.Repeat("n", n)+"'/>"), Options{}).skipAll()
		if err.Error() != want {
			t.Errorf("%d bytes: %v, want %s", n, err, want)
		}
	}
}

// skipAll reads to the end of the document, or to what is wrong with it.
func (s *Scanner) skipAll() (err error) {
	for err == nil {
		err = s.Next()
	}
	return err
}

// D60: relative bases add up, and each of them is resolved once.
func TestNestedBases(t *testing.T) {
	const deep = 100
	doc := strings.Repeat(`<a xml:base="`+strings.Repeat("x", 99)+`/">`, deep) + "<e/>" + strings.Repeat("</a>", deep)
	s := New(strings.NewReader(doc), Options{URL: "http://h/"})
	for depth := 1; depth <= deep; depth++ {
		if err := s.Next(); err != nil {
			t.Fatal(err)
		}
		want := "http://h/" + strings.Repeat(strings.Repeat("x", 99)+"/", depth)
		if len(want) > MaxReference {
			want = errLongBase.Error()
		}
		if got := resolvedAt(s, "."); got != want {
			t.Fatalf("at depth %d: %.80s, want %.80s", depth, got, want)
		}
	}
	tag(t, s, "e")
	if s.spent > 2*deep*MaxReference {
		t.Errorf("bases were resolved anew: %d bytes", s.spent)
	}
}

// D60: a document is not made far longer than it is by resolving its references.
func TestExpansion(t *testing.T) {
	base := "http://h/" + strings.Repeat("x", 4000) + "/"
	doc := `<a xml:base="` + base + `">` + strings.Repeat("<b/>", 100_000) + "</a>"
	s := New(strings.NewReader(doc), Options{})
	total, refused := 0, 0
	for s.Next() == nil {
		if s.Kind != StartTag {
			continue
		}
		to, err := s.Resolve(s.Base(), "r")
		if total += len(to); errors.Is(err, errExpansion) {
			refused++
		} else if err != nil || to != base+"r" {
			t.Fatal(to, err)
		}
	}
	if most := freeResolving + (resolvingRatio+1)*len(doc); refused == 0 || total > most {
		t.Errorf("%d bytes of references from a document of %d, %d refused", total, len(doc), refused)
	}
}

// D61: there are 1,024 declarations in scope and no more, wherever they stand.
func TestManyDeclarations(t *testing.T) {
	declare := func(from, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, " xmlns:p%d='u%d'", from+i, from+i)
		}
		return b.String()
	}
	nested := func(last int) string {
		return "<a" + declare(0, 256) + "><b" + declare(256, 256) + "><c" + declare(512, 256) + "/><d" + declare(512, 256) + "><e" + declare(768, last) + "/></d></b></a>"
	}
	if _, err := trace(nested(256), Options{}); err != nil {
		t.Error(err)
	}
	over := strings.Replace(nested(256), "/></d>", "><f xmlns:q='u'/></e></d>", 1)
	var fault *DocumentError
	if _, err := trace(over, Options{}); !errors.As(err, &fault) || fault.Cap != capNamespaces {
		t.Errorf("%v", err)
	}
}

// D61: a prefix means what the innermost declaration says, and what it meant
// outside of it again behind its element.
func TestScopes(t *testing.T) {
	const doc = `<p:a xmlns:p="1" xmlns="d"><p:b xmlns:p="2"><p:c p:x=""/><p:c xmlns:p="3" p:x=""/><p:c/></p:b><p:e/><f xmlns=""/><f/></p:a>`
	s := New(strings.NewReader(doc), Options{})
	var got []string
	for s.Next() == nil {
		if s.Kind != StartTag {
			continue
		}
		of := s.Space
		for _, a := range s.Attrs {
			of += "@" + a.Name.Space
		}
		got = append(got, s.Local+of)
	}
	if want := "a1 b2 c2@2 c3@3 c2 e1 f fd"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if _, err := trace(`<a><p:b xmlns:p="1"/><p:b/></a>`, Options{}); err == nil {
		t.Error("a prefix counts behind its element")
	}
}

// D61: a document in memory is not read to its end when nobody waits for it any
// more.
func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := New(strings.NewReader("<a>"+strings.Repeat("<b/>", 10*contextTokens)+"</a>"), Options{Context: ctx})
	var err error
	read := 0
	for ; err == nil; read++ {
		if read == contextTokens {
			cancel()
		}
		err = s.Next()
	}
	if !errors.Is(err, context.Canceled) || read > 3*contextTokens {
		t.Errorf("%d tokens, %v", read, err)
	}
}

// D103: what is put in front of a child has the namespaces that count, whatever
// others there are.
func TestLongFrame(t *testing.T) {
	var others strings.Builder
	for i := range 200 {
		fmt.Fprintf(&others, " xmlns:o%d='urn:%s'", i, strings.Repeat("n", 1000))
	}
	doc := "<p:r" + others.String() + " xmlns:p='u' xml:base='b/'><p:c/></p:r>"
	s := New(strings.NewReader(doc), Options{URL: "http://h/", Namespaces: []string{"u"}})
	if err := s.Next(); err != nil {
		t.Fatal(err)
	}
	before, after, err := s.Frame()
	if err != nil || len(before) > longestFrame+100 || len(before) < longestFrame/2 {
		t.Fatalf("%d bytes, %v", len(before), err)
	}
	got, err := trace(string(before)+"<p:c/>"+after, Options{})
	if err != nil || !strings.Contains(got, "u") {
		t.Errorf("%v\n%s", err, got)
	}
	// One whose value is too long only as it is written is left out as well.
	s = New(strings.NewReader("<r xmlns:o='"+strings.Repeat("&amp;", longestFrame/4)+"' xmlns:p='u'/>"), Options{Namespaces: []string{"u"}})
	if err := s.Next(); err != nil {
		t.Fatal(err)
	}
	if before, after, err := s.Frame(); err != nil || string(before)+after != `<r xmlns:p="u"></r>` {
		t.Errorf("%.80s %s, %v", before, after, err)
	}
	for _, doc := range []string{
		"<" + strings.Repeat("r", longestFrame) + "/>",
		"<r xml:base='" + strings.Repeat("b", MaxReference+1) + "'/>",
	} {
		s := New(strings.NewReader(doc), Options{URL: "http://h/"})
		if err := s.Next(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Frame(); err == nil {
			t.Errorf("%.40s... has a frame", doc)
		}
	}
}
