package strictxml

import (
	"fmt"
	"strings"
	"testing"
)

func TestInherited(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{`<X/>`, "[]"},
		{`<X xmlns="u" xmlns:p="v"/>`, "[]"},
		{`<a xmlns="u"><X/></a>`, "[{ u}]"},
		{`<a xmlns:q="v" xmlns="u" xmlns:p="w" xml:lang="en"><X/></a>`, "[{ u} {p w} {q v}]"},
		{`<a xmlns="u" xmlns:p="w"><b xmlns="" xmlns:p="v"><X/></b></a>`, "[{p v}]"},
		{`<a xmlns="u" xmlns:p="w" xmlns:q="v"><X xmlns="" p:b="" xmlns:q="v"/></a>`, "[{p w}]"},
		{`<a xmlns:p="w"><b xmlns:q="v"/><X/></a>`, "[{p w}]"},
		{`<a xmlns:xml="http://www.w3.org/XML/1998/namespace"><X/></a>`, "[]"},
	} {
		s := New(strings.NewReader(c.doc), Options{})
		for s.Local != "X" {
			if err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(s.Inherited()); got != c.want {
			t.Errorf("%s: %s, want %s", c.doc, got, c.want)
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
