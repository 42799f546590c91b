package strictxml

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"mime"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/transform"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// source is a window on the document. Tokens are found in it and left where they
// are: it holds the whole of the current one, and what Keep asked for.
type source struct {
	r   io.Reader
	buf []byte
	// pos and token are places in buf: where the reading is, and where the
	// current token starts.
	pos, token int
	// base and keep are offsets in the document: of buf[0], and of the first
	// byte that must stay (-1: none but the token's).
	base, keep int64
	limits     Limits
	step       int   // how much is read at a time
	err        error // of r, or that the token is too long; it stays
}

// chunk is how many bytes are read at a time at most, shortest how many at least.
const chunk, shortest = 32 << 10, 512

// newSource returns the window on a document that comes from in. Of one in memory
// the length is known, and a short one gets no more room than it needs.
func newSource(in io.Reader, limits Limits) source {
	s := source{keep: -1, limits: limits, step: chunk}
	if whole, ok := in.(interface{ Len() int }); ok {
		s.step = min(chunk, max(shortest, whole.Len()+1)) // at the end, one byte is asked for in vain
	}
	return s
}

// offset is the place of pos in the document.
func (s *source) offset() int64 { return s.base + int64(s.pos) }

// ahead returns the byte that is n behind pos.
func (s *source) ahead(n int) (byte, error) {
	if s.pos+n < len(s.buf) {
		return s.buf[s.pos+n], nil
	}
	return s.outOfSight(n)
}

func (s *source) outOfSight(n int) (byte, error) {
	for s.pos+n >= len(s.buf) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	return s.buf[s.pos+n], nil
}

// find returns where in buf the next mark is, from pos on.
func (s *source) find(mark string) (int, error) {
	for searched := 0; ; {
		rest := s.buf[s.pos+searched:]
		if i := bytes.Index(rest, []byte(mark)); i >= 0 {
			return s.pos + searched + i, nil
		}
		// The end may be the beginning of the mark.
		searched += max(0, len(rest)-len(mark)+1)
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

// fill reads on. What is in buf may move, and pos and token with it: other places
// are to be taken anew. A token that is too long is refused here, before more
// of it is stored.
func (s *source) fill() error {
	if s.err == nil && len(s.buf)-s.token > s.limits.Text {
		s.err = tooLong(s.limits)
	}
	if s.err != nil {
		return s.err
	}
	s.makeRoom()
	for range 100 {
		n, err := s.r.Read(s.buf[len(s.buf) : len(s.buf)+s.step])
		s.buf = s.buf[:len(s.buf)+n]
		if err != nil {
			s.err = err
		}
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	s.err = io.ErrNoProgress
	return s.err
}

// makeRoom drops the bytes that are no longer needed, and grows the window when that is
// not enough.
func (s *source) makeRoom() {
	if cap(s.buf)-len(s.buf) >= s.step {
		return
	}
	from := s.token
	if s.keep >= 0 {
		from = min(from, int(s.keep-s.base))
	}
	rest := s.buf[from:]
	to := s.buf[:0]
	if cap(s.buf)-len(rest) < s.step {
		to = make([]byte, 0, max(2*s.step, 2*cap(s.buf)))
	}
	s.base += int64(from)
	s.pos -= from
	s.token -= from
	s.buf = append(to, rest...)
}

// slice returns the bytes of the document between two offsets that are kept.
func (s *source) slice(from, to int64) []byte {
	return s.buf[from-s.base : to-s.base]
}

func tooLong(l Limits) *fault {
	return &fault{cap: CapText, reason: fmt.Sprintf("one text, attribute or tag is longer than %d bytes", l.Text)}
}

var declaredEncoding = pattern.Of(`^<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._:-]*)["']`)

// head is how many bytes of a document are looked at for its charset.
const head = 1024

// peeker is a document of which the beginning can be looked at; bufio.Reader is one.
type peeker interface {
	io.Reader
	Peek(n int) ([]byte, error)
	Discard(n int) (int, error)
}

// memory is what is left of a document that is in memory.
type memory struct{ rest []byte }

func (m *memory) Peek(n int) ([]byte, error) {
	if n > len(m.rest) {
		return m.rest, io.EOF
	}
	return m.rest[:n], nil
}

func (m *memory) Discard(n int) (int, error) {
	m.rest = m.rest[n:]
	return n, nil
}

func (m *memory) Read(p []byte) (int, error) {
	if len(m.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, m.rest)
	return m.Discard(n)
}

// decoded returns r as UTF-8 without a byte order mark. By RFC 7303 3 the mark decides,
// else the charset of the Content-Type, else the XML declaration, else it is UTF-8.
// stated: one of the three has named a charset. note is set when the Content-Type
// overrules a declaration.
func decoded(r peeker, o *Options) (out io.Reader, stated bool, note string, err error) {
	first, err := r.Peek(head)
	if err != nil && err != io.EOF {
		return nil, false, "", err
	}
	if bytes.HasPrefix(first, []byte("\x1F\x8B")) {
		return nil, false, "", &fault{reason: "a gzip file, and no Content-Encoding that says so; tell the server's operator"}
	}
	label, marked := marks(first)
	if marked > 0 {
		if _, err := r.Discard(marked); err != nil {
			return nil, false, "", err
		}
	}
	if o.Lenient || o.Mend {
		if label == "" && bytes.IndexByte(first[:min(4, len(first))], 0) >= 0 {
			return nil, false, "", &fault{reason: "zero bytes at the start; want UTF-8, or UTF-16 with a byte order mark"}
		}
		first = bytes.TrimLeft(first[marked:], white+byteOrderMark)
	}
	if label == "" {
		label, note = named(first, o.ContentType)
		if declared, _ := named(first, ""); o.UTF8 && declared != "" {
			label = declared
		}
	}
	label = strings.ToLower(Trim(label))
	if stated = label != ""; o.Lenient && isASCII(label) {
		label = "utf-8" // of which it is a part
	}
	if !stated || label == "utf-8" || label == "utf8" {
		return r, stated, note, nil
	}
	enc, name := charset.Lookup(label)
	if o.UTF8 && (enc != nil && singleByte().MatchString(name) || enc == nil && o.Mend) {
		if isASCII(label) {
			enc = nil
		}
		return transform.NewReader(r, newUTF8OrByte(enc)), true, fmt.Sprintf("charset %q", Clip(label)), nil
	}
	switch {
	case enc == nil, name == "replacement":
		return nil, false, "", &fault{reason: fmt.Sprintf("unknown charset %q; want UTF-8, UTF-16 or one of the WHATWG Encoding Standard", Clip(label))}
	case name == "utf-8":
		return r, true, note, nil
	}
	return transform.NewReader(r, decoder(label, name, enc, o)), true, note, nil
}

// decoder returns a decoder from a charset to UTF-8. label is its name in the document,
// name and enc are what the WHATWG Encoding Standard takes that for. The standard takes
// some names for Windows code pages that share most of their characters; only for a
// lenient Scanner does decoder do the same.
func decoder(label, name string, enc encoding.Encoding, o *Options) transform.Transformer {
	codePage, windows := strings.CutPrefix(name, "windows-")
	switch {
	case name == "utf-16le":
		return utf16Text{order: binary.LittleEndian, charset: name}
	case name == "utf-16be":
		return utf16Text{order: binary.BigEndian, charset: name}
	case o.Lenient || !windows || strings.HasSuffix(label, codePage):
	case isASCII(label):
		return ascii{}
	case codePage == "1252":
		name, enc = "iso-8859-1", charmap.ISO8859_1
	case codePage == "1254":
		name, enc = "iso-8859-9", charmap.ISO8859_9
	}
	return faultChecker{Transformer: enc.NewDecoder(), charset: name, mend: o.Mend}
}

func isASCII(label string) bool {
	return strings.HasSuffix(label, "ascii") || label == "ansi_x3.4-1968"
}

// marks looks at the first bytes: a byte order mark, or UTF-16 without one.
func marks(head []byte) (label string, length int) {
	switch {
	case bytes.HasPrefix(head, []byte("\x00\x00\xFE\xFF")), bytes.HasPrefix(head, []byte("\xFF\xFE\x00\x00")),
		bytes.HasPrefix(head, []byte("\x00\x00\x00<")), bytes.HasPrefix(head, []byte("<\x00\x00\x00")):
		return "utf-32", 0
	case bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")):
		return "utf-8", 3
	case bytes.HasPrefix(head, []byte("\xFE\xFF")):
		return "utf-16be", 2
	case bytes.HasPrefix(head, []byte("\xFF\xFE")):
		return "utf-16le", 2
	case bytes.HasPrefix(head, []byte("\x00<")):
		return "utf-16be", 0
	case bytes.HasPrefix(head, []byte("<\x00")):
		return "utf-16le", 0
	}
	return "", 0
}

// named finds the charset's name in the Content-Type or the XML declaration. A
// declaration that could be read as ASCII is not in UTF-16, whatever it says.
func named(head []byte, contentType string) (label, note string) {
	declared := ""
	if bytes.HasPrefix(head, []byte(usualDeclaration)) {
		declared = "UTF-8"
	} else if m := declaredEncoding().FindSubmatch(head); m != nil && !bytes.HasPrefix(bytes.ToLower(m[1]), []byte("utf-16")) {
		declared = string(m[1])
	}
	if _, params, err := mime.ParseMediaType(contentType); err == nil && params["charset"] != "" {
		label = params["charset"]
		if strings.HasPrefix(strings.ToLower(label), "utf-16") {
			return "", "" // marks has seen no UTF-16
		}
		if declared != "" && !strings.EqualFold(declared, label) {
			note = fmt.Sprintf("Content-Type says %s, the XML declaration %s", Clip(label), declared)
		}
		return label, note
	}
	return declared, ""
}

// foreign is the fault of bytes that a charset does not have. U+FFFD in their
// place would make one identifier of two.
func foreign(name string) error {
	return &fault{reason: "bytes that are not " + name}
}

// faultChecker refuses what the decoder below could not convert, together with what was
// converted at the same time: the place of the fault is somewhat before it.
type faultChecker struct {
	transform.Transformer
	charset string
	mend    bool // leave it to the Scanner, as a byte that is not UTF-8
}

func (s faultChecker) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	nDst, nSrc, err = s.Transformer.Transform(dst, src, atEOF)
	if bad := []byte("\uFFFD"); bytes.Contains(dst[:nDst], bad) {
		if s.mend {
			return copy(dst, bytes.ReplaceAll(dst[:nDst], bad, []byte{0xFF})), nSrc, err
		}
		return 0, nSrc, foreign(s.charset)
	}
	return nDst, nSrc, err
}

// singleByte matches the names of charsets whose characters are single bytes.
var singleByte = pattern.Of(`^(windows|iso-8859|koi8|x-mac)-|^(macintosh|ibm866)$`)

// utf8OrByte passes on UTF-8, and takes a byte that is none for one of a charset of single
// bytes. What that does not have, utf8.RuneError, it leaves to the Scanner to refuse.
type utf8OrByte struct {
	transform.NopResetter
	upper [128]rune // of the bytes that are not ASCII
}

// newUTF8OrByte returns a utf8OrByte for the charset enc; with nil no byte stands for a
// character.
func newUTF8OrByte(enc encoding.Encoding) *utf8OrByte {
	e := new(utf8OrByte)
	for i := range e.upper {
		e.upper[i] = utf8.RuneError
		if enc != nil {
			b, _ := enc.NewDecoder().Bytes([]byte{byte(i + 128)}) // a single byte cannot be cut off
			e.upper[i], _ = utf8.DecodeRune(b)
		}
	}
	return e
}

func (e *utf8OrByte) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	for nSrc < len(src) {
		r, n := utf8.DecodeRune(src[nSrc:])
		switch {
		case r == utf8.RuneError && n == 1 && !atEOF && !utf8.FullRune(src[nSrc:]):
			return nDst, nSrc, transform.ErrShortSrc
		case nDst+utf8.UTFMax > len(dst):
			return nDst, nSrc, transform.ErrShortDst
		case r == utf8.RuneError && n == 1:
			if r = e.upper[src[nSrc]-128]; r == utf8.RuneError {
				dst[nDst] = 0xFF
				nDst++
				nSrc++
				continue
			}
		}
		nDst += utf8.EncodeRune(dst[nDst:], r)
		nSrc += n
	}
	return nDst, nSrc, nil
}

// ascii passes on US-ASCII and nothing else.
type ascii struct{ transform.NopResetter }

func (ascii) Transform(dst, src []byte, _ bool) (nDst, nSrc int, err error) {
	n := copy(dst, src)
	if i := bytes.IndexFunc(src[:n], func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
		return i, i, foreign("us-ascii")
	}
	if n < len(src) {
		err = transform.ErrShortDst
	}
	return n, n, err
}

// utf16Text decodes UTF-16. It refuses half a surrogate pair and half a unit,
// which golang.org/x/text makes U+FFFD of, as if that had been meant.
type utf16Text struct {
	transform.NopResetter
	order   binary.ByteOrder
	charset string
}

func (u utf16Text) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	for nSrc < len(src) {
		r, n := u.first(src[nSrc:])
		switch {
		case n == 0 && !atEOF:
			return nDst, nSrc, transform.ErrShortSrc
		case r < 0:
			return nDst, nSrc, foreign(u.charset)
		case nDst+utf8.RuneLen(r) > len(dst):
			return nDst, nSrc, transform.ErrShortDst
		}
		nDst += utf8.EncodeRune(dst[nDst:], r)
		nSrc += n
	}
	return nDst, nSrc, nil
}

// first returns the character that src begins with, -1 when that is none, and its
// length, 0 when src ends inside of it.
func (u utf16Text) first(src []byte) (r rune, n int) {
	if len(src) < 2 {
		return -1, 0
	}
	r = rune(u.order.Uint16(src))
	if !utf16.IsSurrogate(r) {
		return r, 2
	}
	const low = 0xDC00
	switch {
	case r >= low:
		return -1, 2
	case len(src) < 4:
		return -1, 0
	}
	if r = utf16.DecodeRune(r, rune(u.order.Uint16(src[2:]))); r == utf8.RuneError {
		return -1, 2
	}
	return r, 4
}

// notUTF8 is what mender reports of bytes.
const notUTF8 = "bytes that are not UTF-8, read as windows-1252"

// mender passes on UTF-8 without the control characters that XML does not allow. Bytes
// that are no UTF-8 it takes as windows-1252, where different bytes are different
// characters.
type mender struct {
	transform.NopResetter
	report       func(about About, line, column int, what string)
	line, column int
}

func (m *mender) Transform(dst, src []byte, atEOF bool) (nDst, nSrc int, err error) {
	for nSrc < len(src) {
		r, n := utf8.DecodeRune(src[nSrc:])
		switch {
		case r == utf8.RuneError && n == 1 && !atEOF && !utf8.FullRune(src[nSrc:]):
			return nDst, nSrc, transform.ErrShortSrc
		case nDst+utf8.UTFMax > len(dst):
			return nDst, nSrc, transform.ErrShortDst
		case r == utf8.RuneError && n == 1:
			m.report(AboutCharset, m.line, m.column, notUTF8)
			if r = charmap.Windows1252.DecodeByte(src[nSrc]); r == utf8.RuneError { // none is there
				r = rune(src[nSrc])
			}
		}
		m.column += n
		nSrc += n
		switch {
		case r == '\n':
			m.line, m.column = m.line+1, 1
		case r < ' ' && r != '\t' && r != '\r':
			m.report(AboutMarkup, m.line, m.column-n, "control characters, which XML does not allow, left out")
			continue
		}
		nDst += utf8.EncodeRune(dst[nDst:], r)
	}
	return nDst, nSrc, nil
}

// capped counts the bytes of a document and ends one that is too long.
type capped struct {
	r    io.Reader
	left int64
	cap  int64
}

func (c *capped) Read(p []byte) (int, error) {
	// One byte more than allowed is asked for, to tell a document of exactly
	// the cap from a longer one.
	if int64(len(p)) > c.left+1 {
		p = p[:c.left+1]
	}
	n, err := c.r.Read(p)
	if int64(n) > c.left {
		return 0, &fault{cap: CapDocument, reason: fmt.Sprintf("the document is longer than %d bytes", c.cap)}
	}
	c.left -= int64(n)
	return n, err
}
