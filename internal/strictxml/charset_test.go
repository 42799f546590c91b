package strictxml

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"
)

// textOf returns the text of a document's root.
func textOf(in io.Reader, o Options) (string, error) {
	s := New(in, o)
	if err := s.Next(); err != nil {
		return "", err
	}
	text, _, err := s.Characters()
	if err != nil {
		return "", err
	}
	if err := s.Next(); err != io.EOF {
		return "", err
	}
	return string(text), nil
}

// TestCharsetNames: a charset is what its name says; on the web some names mean
// more.
func TestCharsetNames(t *testing.T) {
	const all = "\x80\x85\x93\xe9\xfd"
	for _, c := range []struct{ labels, bytes, text, web string }{
		{"us-ascii US-ASCII ascii ANSI_X3.4-1968", "A~", "A~", "A~"},
		{"us-ascii ascii ANSI_X3.4-1968", all, "", "\u20ac\u2026\u201c\u00e9\u00fd"},
		{"iso-8859-1 ISO_8859-1:1987 latin1 Latin1 l1 cp819 IBM819 csISOLatin1 iso-ir-100 iso8859-1 iso88591", all,
			"\u0080\u0085\u0093\u00e9\u00fd", "\u20ac\u2026\u201c\u00e9\u00fd"},
		{"windows-1252 cp1252 x-cp1252", all, "\u20ac\u2026\u201c\u00e9\u00fd", "\u20ac\u2026\u201c\u00e9\u00fd"},
		{"iso-8859-9 latin5 l5 iso_8859-9:1989", all, "\u0080\u0085\u0093\u00e9\u0131", "\u20ac\u2026\u201c\u00e9\u0131"},
		{"windows-1254 cp1254", all, "\u20ac\u2026\u201c\u00e9\u0131", "\u20ac\u2026\u201c\u00e9\u0131"},
		{"windows-1251 cp1251", "\x80\xe9", "\u0402\u0439", "\u0402\u0439"},
		{"iso-8859-2", "\xe6", "\u0107", "\u0107"},
		{"shift_jis", "\x83\x65", "\u30c6", "\u30c6"},
	} {
		for label := range strings.FieldsSeq(c.labels) {
			doc := "<a>" + c.bytes + "</a>"
			for _, by := range []struct{ doc, contentType string }{
				{doc, "text/xml; charset=" + label}, {doc, `application/xml; charset=" ` + label + `"`},
				{"<?xml version='1.0' encoding='" + label + "'?>" + doc, "text/xml"},
			} {
				if strings.Contains(label, ":") && !strings.Contains(by.contentType, `"`) {
					by.contentType = "text/xml"
					by.doc = "<?xml version='1.0' encoding='" + label + "'?>" + doc
				}
				got, err := textOf(strings.NewReader(by.doc), Options{ContentType: by.contentType})
				if got != c.text || (err == nil) != (c.text != "") {
					t.Errorf("%q as %s: %q, %v, want %q", by.doc, by.contentType, got, err, c.text)
				}
				got, err = textOf(strings.NewReader(by.doc), Options{ContentType: by.contentType, Lenient: true})
				if got != c.web || err != nil {
					t.Errorf("%q as %s on the web: %q, %v, want %q", by.doc, by.contentType, got, err, c.web)
				}
			}
		}
	}
}

// TestCharset: the byte order mark decides, else the Content-Type, else the XML
// declaration, else it is UTF-8 (RFC 7303 3).
func TestCharset(t *testing.T) {
	as := func(enc string) string { return "<?xml version='1.0' encoding='" + enc + "'?><a>gr\u00fcn-\u20ac</a>" }
	latin := strings.NewReplacer("\u00fc", "\xfc", "\u20ac", "\x80").Replace
	const mark = "\ufeff"
	for _, c := range []struct {
		doc, contentType string
		notices          int
	}{
		{as("utf-8"), "", 0},
		{as("utf-8"), "application/atom+xml; charset=UTF-8", 0},
		{as("unicode-1-1-utf-8"), "", 0},
		{mark + as("UTF-8"), "", 0},
		{mark + as("iso-8859-1"), "text/xml; charset=iso-8859-1", 0},
		{latin(as("windows-1252")), "application/atom+xml", 0},
		{latin(as("windows-1252")), `text/xml; charset="windows-1252"`, 0},
		{latin(as("utf-8")), "text/xml; charset=windows-1252", 1},
		{as("utf-16"), "", 0}, // it cannot be
		{as("utf-8"), "text/xml; charset=utf-16", 0},
		{inUTF16(mark + as("utf-16")), "", 0},
		{swapped(inUTF16(mark + as("utf-16"))), "", 0},
		{inUTF16(as("utf-16be")), "", 0},
		{swapped(inUTF16(as("utf-16le"))), "application/atom+xml", 0},
	} {
		notices := 0
		got, err := textOf(strings.NewReader(c.doc), Options{ContentType: c.contentType, Report: func(Notice) { notices++ }})
		if err != nil || got != "gr\u00fcn-\u20ac" || notices != c.notices {
			t.Errorf("%q as %s: %q, %v, %d notices", c.doc, c.contentType, got, err, notices)
		}
	}
}

// inUTF16 has the units of a text, the high byte first.
func inUTF16(text string, more ...uint16) string {
	var b strings.Builder
	for _, u := range append(utf16.Encode([]rune(text)), more...) {
		b.WriteByte(byte(u >> 8))
		b.WriteByte(byte(u))
	}
	return b.String()
}

// swapped has the low byte of each unit first.
func swapped(units string) string {
	b := []byte(units)
	for i := 0; i+1 < len(b); i += 2 {
		b[i], b[i+1] = b[i+1], b[i]
	}
	return string(b)
}

// TestUTF16: all characters are read, U+FFFD among them, and cut anywhere.
func TestUTF16(t *testing.T) {
	for _, text := range []string{"", "\ufffd", "a\u00e9\ufffd\U0001d11e\ufffd\U0010fffd\ud7ff\ue000", strings.Repeat("\U0001d11e\ufffd", 5000), "x" + strings.Repeat("\U0001d11e", 5000)} {
		units := inUTF16("<a>" + text + "</a>")
		for _, doc := range []string{units, swapped(units), "\xfe\xff" + units, "\xff\xfe" + swapped(units)} {
			for name, in := range map[string]io.Reader{
				"whole": strings.NewReader(doc), "byte by byte": iotest.OneByteReader(strings.NewReader(doc)), "with the end": iotest.DataErrReader(strings.NewReader(doc)),
			} {
				if got, err := textOf(in, Options{}); err != nil || got != text {
					t.Errorf("%.40q, %s: %.40q, %v", doc, name, got, err)
				}
			}
		}
	}
}

// TestLongTexts: a text of more bytes than are decoded at a time, of which some have to be
// decoded anew, is one and the same however it arrives.
func TestLongTexts(t *testing.T) {
	const n = 5000
	for _, c := range []struct {
		name, piece, text string
		o                 Options
	}{
		{"UTF-8 that says that it is Latin-1", "\u00e9\u20ac", "\u00e9\u20ac", Options{UTF8: true, ContentType: "text/xml; charset=iso-8859-1"}},
		{"Latin-1 among UTF-8", "\u20ac\xe9x", "\u20ac\u00e9x", Options{UTF8: true, ContentType: "text/xml; charset=iso-8859-1"}},
		{"windows-1252 among UTF-8", "\u20ac\x93x", "\u20ac\u201cx", Options{Lenient: true}},
		{"US-ASCII", "xyz", "xyz", Options{ContentType: "text/xml; charset=us-ascii"}},
	} {
		doc := "<a>" + strings.Repeat(c.piece, n) + "</a>"
		for _, size := range []int{1, 3, len(doc)} {
			got, err := textOf(pieces{strings.NewReader(doc), size}, c.o)
			if want := strings.Repeat(c.text, n); err != nil || got != want {
				t.Errorf("%s in pieces of %d: %d bytes %.30q, %v, want %d", c.name, size, len(got), got, err, len(want))
			}
		}
	}
}

// TestUTF32: XML may be in UTF-32, which no charset of the WHATWG Encoding Standard is: the
// document says what it is in, and is refused.
func TestUTF32(t *testing.T) {
	for _, doc := range []string{"\x00\x00\xfe\xff\x00\x00\x00<", "\xff\xfe\x00\x00<\x00\x00\x00", "\x00\x00\x00<\x00\x00\x00a", "<\x00\x00\x00a\x00\x00\x00"} {
		var fault *DocumentError
		if _, err := textOf(strings.NewReader(doc), Options{}); !errors.As(err, &fault) || !strings.Contains(fault.Reason, `unknown charset "utf-32"`) {
			t.Errorf("%q: %v", doc, err)
		}
	}
}

// TestForeignBytes: what a charset does not have is a fault of the document, in
// ASCII and UTF-16 at its place.
func TestForeignBytes(t *testing.T) {
	long := strings.Repeat("x\n", 9000)
	for _, c := range []struct{ doc, contentType, fault string }{
		{"<a>" + "\u00e9</a>", "text/xml; charset=us-ascii", "u:1:4: bytes that are not us-ascii"},
		{"<a>\n<b/>b\x80</a>", "text/xml; charset=ascii", "u:2:6: bytes that are not us-ascii"},
		{"<?xml version='1.0' encoding='us-ascii'?>\n<a b='\xff'/>", "", "u:2:7: bytes that are not us-ascii"},
		{"<a>" + long + "yz\xe9</a>", "text/xml; charset=us-ascii", "u:9001:3: bytes that are not us-ascii"},
		{inUTF16("<a>\ufffd\n\ufffd", 0xd800) + inUTF16("</a>"), "", "u:2:4: bytes that are not utf-16be"},
		{inUTF16("<a>", 0xd800, 0xd834, 0xdd1e) + inUTF16("</a>"), "", "u:1:4: bytes that are not utf-16be"},
		{inUTF16("<a>", 0xdc00, 0xd800) + inUTF16("</a>"), "", "u:1:4: bytes that are not utf-16be"},
		{swapped(inUTF16("<a>x", 0xd800, 0xfffd) + inUTF16("</a>")), "", "u:1:5: bytes that are not utf-16le"},
		{swapped(inUTF16("<a>", 0xd834)), "", "u:1:4: bytes that are not utf-16le"},
		{inUTF16("<a/>") + "\x00", "", "u:1:5: bytes that are not utf-16be"},
		{inUTF16("<a>"+long, 0xdfff), "", "u:9001:1: bytes that are not utf-16be"},
		{"<a>\x83\x65\x83\x00</a>", "text/xml; charset=shift_jis", "u:1:1: bytes that are not shift_jis"},
		{"<a>\xa5</a>", "text/xml; charset=iso-8859-3", "u:1:1: bytes that are not iso-8859-3"},
	} {
		_, err := textOf(strings.NewReader(c.doc), Options{URL: "u", ContentType: c.contentType})
		var fault *DocumentError
		if !errors.As(err, &fault) || err.Error() != c.fault {
			t.Errorf("%.60q as %s: %v, want %s", c.doc, c.contentType, err, c.fault)
		}
	}
}
