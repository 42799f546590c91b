package strictxml

import (
	"bytes"
	"encoding/xml"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

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

// What is held comes back as it was; what is not held comes back changed.
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
		if same := got.Attr == s && got.Text == s; same != Holds(s) {
			t.Fatalf("%q became %q and %q, and Holds says %v", s, got.Attr, got.Text, Holds(s))
		}
	})
}
