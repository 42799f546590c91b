package strictxml

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// TestContent: an atom:content is read as its type says (RFC 4287 4.1.3.3), and what is not
// in the form of its type is said to be bad. What follows it can be read in any case.
func TestContent(t *testing.T) {
	const (
		text  = "text/plain; charset=utf-8"
		html  = "text/html; charset=utf-8"
		xhtml = "application/xhtml+xml"
		div   = `<div xmlns="http://www.w3.org/1999/xhtml">`
	)
	for _, c := range []struct{ content, data, kind, bad string }{
		{`<content> a &lt; b</content>`, " a < b", text, ""},
		{`<content type=" Text ">a<![CDATA[&]]></content>`, "a&", text, ""},
		{`<content type="text">a<b/></content>`, "a", text, "it holds elements, and its type is text"},
		{`<content type="HTML">&lt;br></content>`, "<br>", html, ""},
		{`<content type="html"><br/></content>`, "", html, "it holds elements, and its type is text"},
		{`<content type="xhtml"> ` + div + `a<b/></div> </content>`, div + `a<b/></div>`, xhtml, ""},
		{`<content type="xhtml" xmlns:h="http://www.w3.org/1999/xhtml"><h:div p:a="q:b"/></content>`,
			`<h:div xmlns:h="http://www.w3.org/1999/xhtml" xmlns:p="urn:p" xmlns:q="urn:q" p:a="q:b"/>`, xhtml, ""},
		{`<content type="xhtml"><div/></content>`, `<div xmlns="own"/>`, xhtml, `it holds <div> in namespace "own" in place of a div of XHTML`},
		{`<content type="xhtml"><p xmlns="http://www.w3.org/1999/xhtml"/></content>`, `<p xmlns="http://www.w3.org/1999/xhtml"/>`, xhtml,
			`it holds <p> in namespace "http://www.w3.org/1999/xhtml" in place of a div of XHTML`},
		{`<content type="xhtml">` + div + `</div>` + div + `1</div></content>`, div + `1</div>`, xhtml, "it holds more than one element"},
		{`<content type="xhtml">a</content>`, "", xhtml, "it holds text beside an element"},
		{`<content type="application/Atom+XML; charset=iso-8859-1; type=entry"><p:e/></content>`, `<p:e xmlns:p="urn:p"/>`,
			"application/atom+xml; type=entry", ""},
		{`<content type="text/xml"><e/></content>`, `<e xmlns="own"/>`, "text/xml", ""},
		{`<content type="text/xml">a<e/></content>`, `<e xmlns="own"/>`, "text/xml", "it holds text beside an element"},
		{`<content type="text/xml"/>`, "", "text/xml", ""},
		{`<content type="text/CSV; header=absent; charset=latin1">a,b</content>`, "a,b", "text/csv; charset=utf-8; header=absent", ""},
		{`<content type="image/png"> aGVs
			bG8= </content>`, "hello", "image/png", ""},
		{`<content type="image/png">aGVsbG8</content>`, "hel", "image/png", "it is not Base64, which its type image/png wants"},
		{`<content type="image/png">aGVs<b/></content>`, "aGVs", "image/png", "it holds elements in place of Base64, which its type image/png wants"},
		{`<content type="picture">aGVsbG8=</content>`, "", "", "its type picture is no media type"},
		{`<content type="image/"><b>c</b></content>`, "", "", "its type image/ is no media type"},
	} {
		s := New(strings.NewReader(`<e xmlns="own" xmlns:p="urn:p" xmlns:q="urn:q">`+c.content+`<next/></e>`), Options{})
		tag(t, s, "content")
		got, err := s.Content("own")
		if err != nil || string(got.Data) != c.data || got.Type != c.kind || got.Bad != c.bad {
			t.Errorf("%s\ngot  %q as %q, bad %q, %v\nwant %q as %q, bad %q", c.content, got.Data, got.Type, got.Bad, err, c.data, c.kind, c.bad)
			continue
		}
		if err := s.Next(); err != nil || s.Kind != StartTag || s.Local != "next" {
			t.Errorf("%s: it is followed by %s, %v", c.content, s.Local, err)
		}
	}
}

// TestCutContent: a content that breaks off, or exceeds a limit, is an error of the document,
// whatever its type.
func TestCutContent(t *testing.T) {
	for content, want := range map[string]string{
		`type="text">a`:           "cut off inside <content>",
		`type="xhtml">`:           "cut off inside <content>",
		`type="text/xml"><a>`:     "cut off inside <a>",
		`type="image/png">aGVs`:   "cut off inside <content>",
		`type="none">a`:           "cut off inside <content>",
		`type="image/png"><a><b>`: "nested deeper than 2",
	} {
		s := New(strings.NewReader("<content "+content), Options{Limits: Limits{Depth: 2}})
		tag(t, s, "content")
		var fault *DocumentError
		if _, err := s.Content("own"); !errors.As(err, &fault) || !strings.Contains(fault.Reason, want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
}

// TestChildren: read is called at each child, and an error of it, or of the document, ends
// the reading.
func TestChildren(t *testing.T) {
	stop := errors.New("enough")
	for _, c := range []struct {
		doc, want string
		err       string
	}{
		{"<a>x<b/>y<c><d/></c><!-- --></a>", "b c", ""},
		{"<a/>", "", ""},
		{"<a><b/><stop/><c/></a>", "b", "enough"},
		{"<a><b/>", "b", "cut off inside <a>"},
		{"<a><b/><c><d></c></a>", "b", "<d> is closed by </c>"},
	} {
		s := New(strings.NewReader(c.doc), Options{})
		tag(t, s, "a")
		var got []string
		err := s.Children(func() error {
			name := s.Local
			if name == "stop" {
				return stop
			}
			if err := s.Skip(); err != nil {
				return err
			}
			got = append(got, name)
			return nil
		})
		if strings.Join(got, " ") != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.doc, got, err)
		}
		if err == nil && s.Depth() != 0 {
			t.Errorf("%s: the reading ended at depth %d", c.doc, s.Depth())
		}
	}
}

// TestOutput: an Output counts what was appended and what its writer has taken, hands on all
// of it in order, and says when the writer takes less.
func TestOutput(t *testing.T) {
	var doc strings.Builder
	o := NewOutput(&doc)
	want := ""
	for i, piece := range []string{strings.Repeat("a", PieceSize-1), "b", "c"} {
		o.Buf = append(o.Buf, piece...)
		want += piece
		if o.Len() != int64(len(want)) || o.Passed() != int64(doc.Len()) || o.Full() != (i == 1) {
			t.Errorf("after %d bytes: counted %d, passed on %d of %d, full %t", len(want), o.Len(), o.Passed(), doc.Len(), o.Full())
		}
		if o.Full() {
			if err := o.Flush(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := o.Flush(); err != nil || doc.String() != want || o.Passed() != o.Len() || o.Len() != int64(len(want)) {
		t.Errorf("%d of %d bytes were passed on, counted %d, %v", doc.Len(), len(want), o.Passed(), err)
	}

	full := errors.New("the disk is full")
	for _, c := range []struct {
		to   short
		want error
	}{{short{3, full}, full}, {short{3, nil}, io.ErrShortWrite}} {
		o := NewOutput(c.to)
		o.Buf = append(o.Buf, "abcdef"...)
		if err := o.Flush(); !errors.Is(err, c.want) || o.Passed() != 3 {
			t.Errorf("%v after %d bytes, want %v after 3", err, o.Passed(), c.want)
		}
	}
}

// short is a writer that takes n bytes of what it is given.
type short struct {
	n   int
	err error
}

func (s short) Write(b []byte) (int, error) { return min(s.n, len(b)), s.err }
