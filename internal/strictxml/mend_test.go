package strictxml

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// With Options.Mend a document that is not well-formed is, in what the Scanner tells and
// in the bytes that it returns.
func TestMend(t *testing.T) {
	for _, tt := range []struct {
		name, doc, want string // the bytes of the root
		mended          int
		about           string // what is reported
	}{
		{"well-formed", "<a b='&amp;'>\u00fc&#10;<![CDATA[&x;]]><!-- &y --></a>", "<a b='&amp;'>\u00fc&#10;<![CDATA[&x;]]><!-- &y --></a>", 0, ""},
		{"a control character", "<a>x\x1fy</a>", "<a>x\uFFFDy</a>", 1, "characters that XML does not allow"},
		{"one in a value", "<a b='\x01'/>", "<a b='\uFFFD'/>", 1, "characters that XML does not allow"},
		{"one in a comment", "<a><!--\x01--></a>", "<a><!--\uFFFD--></a>", 1, "characters that XML does not allow"},
		{"a reference to one", "<a>x&#x1F;&#0;y</a>", "<a>x\uFFFD\uFFFDy</a>", 1, "references to characters"},
		{"a reference in a section", "<a><![CDATA[&#0;]]></a>", "<a><![CDATA[&#0;]]></a>", 0, ""},
		{"a noncharacter", "<a>\uFFFE</a>", "<a>\uFFFD</a>", 1, "characters that XML does not allow"},
		{"a surrogate", "<a>&#xD800;\xed\xa0\x80</a>", "<a>\uFFFD\uFFFD\uFFFD\uFFFD</a>", 1, "references to characters"},
		{"bytes of Latin-1", "<a>gr\xfcn</a>", "<a>gr\uFFFDn</a>", 1, "bytes that are not of the charset"},
		{"an ampersand", "<a b='x&y'>A & B &amp; C&D</a>", "<a b='x&amp;y'>A &amp; B &amp; C&amp;D</a>", 2, `"&" that does not begin`},
		{"an entity of HTML", "<a>caf&eacute; &LT;b></a>", "<a>caf\u00e9 &lt;b></a>", 1, "HTML entities"},
		{"an entity that nobody knows", "<a>&xyz; &#xZ;</a>", "<a>&amp;xyz; \uFFFD</a>", 1, `"&" that does not begin`},
		{"the end of a section outside", "<a>x]]>y</a>", "<a>x]]&gt;y</a>", 1, "]]> outside"},
		{"white space before the declaration", " \n<?xml version='1.0'?><a/>", "<a/>", 0, "white space before"},
		{"XML 1.1", "<?xml version='1.1'?><a/>", "<a/>", 0, "XML 1.1"},
		{"a DOCTYPE", "<!DOCTYPE a SYSTEM 'http://127.0.0.1:9/x.dtd'><a>&b;</a>", "<a>&amp;b;</a>", 1, "DOCTYPE"},
		{"two texts", "<a>\x01<b>\x02</b>\x03</a>", "<a>\uFFFD<b>\uFFFD</b>\uFFFD</a>", 3, "characters"},
		{"across windows", "<a>" + strings.Repeat("x\x02", 40_000) + "<b/>" + strings.Repeat("y", 40_000) + "</a>",
			"<a>" + strings.Repeat("x\uFFFD", 40_000) + "<b/>" + strings.Repeat("y", 40_000) + "</a>", 1, "characters"},
		{"Latin-1 that says so", "<?xml version='1.0' encoding='iso-8859-1'?><a>gr\xfcn</a>", "<a>gr\u00fcn</a>", 0, `charset "iso-8859-1"`},
		{"UTF-8 that says Latin-1", "<?xml version='1.0' encoding='iso-8859-1'?><a>gr\u00fcn</a>", "<a>gr\u00fcn</a>", 0, `charset "iso-8859-1"`},
		{"UTF-8 that says ASCII", "<?xml version='1.0' encoding='us-ascii'?><a>gr\u00fcn \xfc</a>", "<a>gr\u00fcn \uFFFD</a>", 1, `charset "us-ascii"`},
		{"UTF-8 that says what nobody knows", "<?xml version='1.0' encoding='utf-88'?><a>gr\u00fcn</a>", "<a>gr\u00fcn</a>", 0, `charset "utf-88"`},
		{"half a character of another charset", "<?xml version='1.0' encoding='shift_jis'?><a>\x93\xfa\x81</a>", "<a>\u65e5\uFFFD</a>", 1, "bytes that are not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var said []string
			s := New(strings.NewReader(tt.doc), Options{Mend: true, UTF8: true, Report: func(n Notice) { said = append(said, n.Found) }})
			if err := s.Next(); err != nil {
				t.Fatal(err)
			}
			got, _, err := s.Element(100)
			if err != nil || string(got) != tt.want || s.Mended() != tt.mended {
				t.Errorf("%q, mended %d, %v", got, s.Mended(), err)
			}
			if err := s.Next(); err != io.EOF {
				t.Error(err)
			}
			if all := strings.Join(said, "|"); (tt.about == "") != (all == "") || !strings.Contains(all, tt.about) {
				t.Errorf("reported %q", said)
			}
			// What was mended is well-formed, and stays as it is.
			again := New(bytes.NewReader(got), Options{})
			if err := again.Next(); err != nil {
				t.Fatal(err)
			}
			if twice, _, err := again.Element(100); err != nil || !bytes.Equal(twice, got) {
				t.Errorf("%q, %v", twice, err)
			}
		})
	}
}

// What cannot be mended is refused as ever.
func TestMendRefuses(t *testing.T) {
	testenv.Heavy(t)
	for name, doc := range map[string]string{
		"cut off":                    "<a>x",
		"crossed tags":               "<a><b></a></b>",
		"an entity that is defined":  `<!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>`,
		"a DOCTYPE inside":           "<a><!DOCTYPE a></a>",
		"an HTML page":               "<!DOCTYPE html><html/>",
		"< in a value":               "<a b='<'/>",
		"a name that is none":        "<a\x01/>",
		"too many places":            "<a>" + strings.Repeat("<b>\x01</b>", maxMended+1) + "</a>",
		"a prefix that is not there": "<a><b:c/></a>",
	} {
		s := New(strings.NewReader(doc), Options{Mend: true})
		var err error
		for err == nil {
			err = s.Next()
		}
		if !errors.As(err, new(*DocumentError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Recover passes over an element that cannot be read, and restores what was in scope.
func TestRecover(t *testing.T) {
	for _, tt := range []struct {
		name, bad string
		want      bool
	}{
		{"an open tag", "<x>", true},
		{"a prefix", "<y:x/>", true},
		{"a value", "<x y='<'/>", true},
		{"inside of what hides the end tag", "<x xmlns='urn:3' xmlns:p='urn:4'><p:y></x>", true},
		{"a name", "<1/>", true},
		{"another end tag that is longer", "<x></p:recorder>", true},
		{"inside of one of the same name", "<x><p:record><1/></p:record > </x >", true},
		{"inside of two of the same name", "<p:record><x><p:record><1/></p:record></x></p:record>", true},
		{"inside of one of the same name that does not end", "<x><p:record><1/></x>", true},
		{"a comment that does not end", "<x/><!-- ", false},
		{"an end tag that does not end", "<1/></p:record ", false},
	} {
		doc := "<l xmlns:p='urn:1'>\n<p:record xmlns:p='urn:2'><p:a/>" + tt.bad + "</p:record >\n<p:b/></l>"
		if !tt.want {
			doc = "<l xmlns:p='urn:1'>\n<p:record>" + tt.bad
		}
		s := New(strings.NewReader(doc), Options{})
		var err error
		for err == nil && s.Local != "record" {
			err = s.Next()
		}
		depth := s.Depth()
		for err == nil {
			err = s.Next()
		}
		if got := s.Recover(depth); got != tt.want {
			t.Errorf("%s: recovered %t from %v", tt.name, got, err)
			continue
		}
		if !tt.want {
			continue
		}
		if s.Depth() != 1 || s.Kind != EndTag {
			t.Errorf("%s: depth %d", tt.name, s.Depth())
		}
		for err = nil; err == nil && s.Local != "b"; {
			err = s.Next()
		}
		if s.Space != "urn:1" || s.Line != 3 || s.Column != 1 {
			t.Errorf("%s: %q at %d:%d, %v", tt.name, s.Space, s.Line, s.Column, err)
		}
		for err == nil {
			err = s.Next()
		}
		if err != io.EOF {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Recover stays where it is without an error of the document inside of the element.
func TestRecoverNothing(t *testing.T) {
	gone := errors.New("gone")
	for _, tt := range []struct {
		name  string
		in    io.Reader
		depth int
	}{
		{"no error", strings.NewReader("<l><a/></l>"), 1},
		{"an error of the transport", io.MultiReader(strings.NewReader(padded("<l><a/>")), broken{gone}), 1},
		{"an element that is not open", strings.NewReader("<l><a/><1/></l>"), 2},
		{"no element", strings.NewReader("<l><a/><1/></l>"), 0},
	} {
		s := New(tt.in, Options{})
		tag(t, s, "a")
		var err error
		for err == nil {
			if err = s.Next(); s.Depth() == 0 {
				break
			}
		}
		if s.Recover(tt.depth) {
			t.Errorf("%s: recovered from %v", tt.name, err)
		}
		if again := s.Next(); err != nil && again != err || err == nil && again != io.EOF {
			t.Errorf("%s: after %v comes %v", tt.name, err, again)
		}
	}
}
