package strictxml

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime"
	"regexp"
	"strings"

	"golang.org/x/net/html/charset"
	"golang.org/x/text/transform"
)

var declaredEncoding = regexp.MustCompile(`^<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._:-]*)["']`)

// head is how much of a document is looked at for its charset.
const head = 1024

// decoded returns r as UTF-8 without a byte order mark. By RFC 7303 3 the mark
// decides, else the charset of the Content-Type, else the XML declaration, else
// it is UTF-8. note is set when the Content-Type overrules a declaration.
func decoded(r *bufio.Reader, contentType string) (out io.Reader, note string, err error) {
	first, err := r.Peek(head)
	if err != nil && err != io.EOF {
		return nil, "", err
	}
	label, marked := marks(first)
	if marked > 0 {
		if _, err := r.Discard(marked); err != nil {
			return nil, "", err
		}
	}
	if label == "" {
		label, note = named(first, contentType)
	}
	switch strings.ToLower(label) {
	case "", "utf-8", "utf8":
		return r, note, nil
	}
	enc, name := charset.Lookup(label)
	switch {
	case enc == nil, name == "replacement":
		return nil, "", &fault{reason: fmt.Sprintf("charset %q is not known; want UTF-8, UTF-16 or one of the WHATWG Encoding Standard", Clip(label))}
	case name == "utf-8":
		return r, note, nil
	}
	return &whole{r: transform.NewReader(r, enc.NewDecoder()), charset: name}, note, nil
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
	if m := declaredEncoding.FindSubmatch(head); m != nil && !bytes.HasPrefix(bytes.ToLower(m[1]), []byte("utf-16")) {
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

// whole refuses what the decoder below could not convert: U+FFFD in its place
// would make one identifier of two.
type whole struct {
	r       io.Reader
	charset string
	tail    [2]byte // the last two bytes of the read before
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	bad := bytes.Contains(p[:n], []byte("\uFFFD"))
	if n > 0 {
		seam := append(w.tail[:], p[:min(n, 2)]...)
		bad = bad || bytes.Contains(seam, []byte("\uFFFD"))
		if n >= 2 {
			seam = p[:n]
		}
		copy(w.tail[:], seam[len(seam)-2:])
	}
	if bad {
		return 0, &fault{reason: fmt.Sprintf("bytes that are no %s", w.charset)}
	}
	return n, err
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
