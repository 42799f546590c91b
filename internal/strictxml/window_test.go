package strictxml

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestPieces: what a document is cut into while it arrives makes no difference.
func TestPieces(t *testing.T) {
	docs := append([]string{string(list(3)), string(feed(3))}, wellFormed()...)
	for _, doc := range docs {
		doc = strings.TrimPrefix(doc, `<?xml version="1.0" encoding="UTF-8"?>`)
		doc = padded(strings.TrimPrefix(doc, `<?xml version="1.0" encoding="utf-8"?>`))
		want, err := trace(doc, Options{})
		if err != nil {
			t.Fatalf("%q: %v", doc, err)
		}
		for _, n := range []int{1, 2, 3, 7} {
			if got, err := inPieces(doc, n, Options{}); err != nil || got != want {
				t.Errorf("%q in pieces of %d: got %s, %v, want %s", doc, n, got, err, want)
			}
		}
	}
}

// TestWindowMoves: the window has to move at each byte of a piece of XML.
func TestWindowMoves(t *testing.T) {
	const piece = "<p:b xmlns:p='u&#x20;v' c=\"\u00e9\r\n&lt;\"\n d = '1'>x\r\n&amp;\u20ac]]<!-- - --><?q r?><![CDATA[]]\r\n]]]></p:b\n><b/>"
	head := "<a>" + strings.Repeat("<!-- fifteen -->", (chunk+1000)/16)
	doc := head + piece + "</a>"
	want, err := trace(doc, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(head); cut < len(doc); cut++ {
		s := New(io.MultiReader(strings.NewReader(doc[:cut]), strings.NewReader(doc[cut:])), Options{})
		got, err := traced(s)
		if err != nil || got != want {
			t.Fatalf("before %q: %v, got %s, want %s", doc[cut:], err, got, want)
		}
		if s.src.base == 0 {
			t.Fatal("the window has not moved")
		}
	}
}

// TestWindowStays: memory does not grow with the document, but with what is kept.
func TestWindowStays(t *testing.T) {
	testenv.Heavy(t)
	doc := string(list(20_000))
	s := New(strings.NewReader(doc), Options{})
	if _, err := traced(s); err != nil {
		t.Fatal(err)
	}
	if cap(s.src.buf) != 2*chunk {
		t.Errorf("the window has grown to %d bytes", cap(s.src.buf))
	}

	s = New(strings.NewReader(doc), Options{})
	if err := s.Next(); err != nil {
		t.Fatal(err)
	}
	from := s.Start
	s.Keep(from)
	if err := s.Skip(); err != nil {
		t.Fatal(err)
	}
	if got := string(s.Slice(from, s.Offset())); !strings.Contains(doc, got) || !strings.HasSuffix(got, "</urlset>") || !strings.HasPrefix(got, "<urlset") {
		t.Errorf("%d bytes were kept: %.50s", len(got), got)
	}
}

// TestWindowFits: a short document in memory costs little more memory than it has
// bytes, and is read to its end all the same when it grows as it is decoded.
func TestWindowFits(t *testing.T) {
	doc := "<a>" + strings.Repeat("\u00e9", 1000) + "</a>"
	latin := strings.ReplaceAll(doc, "\u00e9", "\xe9")
	for _, c := range []struct {
		name, contentType string
		in                io.Reader
		most              int
	}{
		{"in memory", "", strings.NewReader(doc), 2 * (len(doc) + 1)},
		{"in memory, in another charset", "text/xml; charset=iso-8859-1", strings.NewReader(latin), 4 * (len(latin) + 1)},
		{"of unknown length", "", io.MultiReader(strings.NewReader(doc)), 2 * chunk},
		{"longer than it says", "", lying{strings.NewReader(doc)}, 2 * len(doc)},
	} {
		s := New(c.in, Options{ContentType: c.contentType})
		got, err := traced(s)
		if want, _ := trace(doc, Options{}); err != nil || got != want {
			t.Errorf("%s: %v, got %.50s", c.name, err, got)
		}
		if size := cap(s.src.buf); size > c.most || size < len(doc) {
			t.Errorf("%s: the window of a document of %d bytes has %d", c.name, len(doc), size)
		}
	}
}

// lying has more to read than it says.
type lying struct{ io.Reader }

func (lying) Len() int { return 0 }

// TestCapsWhileReading: what is too long is refused before it is stored, with a
// reader that never ends.
func TestCapsWhileReading(t *testing.T) {
	for _, c := range []struct{ head, more, cap string }{
		{"<a>", "x", CapText},
		{"<a>", "&lt;", CapText},
		{"<a ", " ", CapText},
		{"<a", "x", CapText},
		{"<", "\u00e9", CapText},
		{"<a b='", "x", CapText},
		{"<a b='", ">", CapText},
		{"<a><!--", "x", CapText},
		{"<a><![CDATA[", "]", CapText},
		{"<a><?b ", "?", CapText},
		{"<a></", "x", CapText},
		{"<!DOCTYPE a [", "<!ENTITY b 'c'>", CapText},
		{"", " ", CapText},
		{"<a><b/>", "<!-- -->", CapDocument},
		{"<a", " b='c'", CapAttributes},
		{"<a", " xmlns:p='c'", CapAttributes},
		{"", "<a>", CapDepth},
	} {
		s := New(io.MultiReader(strings.NewReader(c.head), &endless{piece: c.more}), Options{Limits: Limits{Document: 2 << 20, Text: 256 << 10}})
		_, err := traced(s)
		var fault *DocumentError
		if !errors.As(err, &fault) || fault.Cap != c.cap {
			t.Errorf("%s%s...: %v, want the cap %q", c.head, c.more, err, c.cap)
		}
		if size := cap(s.src.buf); size > 1<<20 {
			t.Errorf("%s%s...: %d bytes were stored", c.head, c.more, size)
		}
		if again := s.Next(); again != s.err || again.Error() != err.Error() {
			t.Errorf("the error does not stay: %v, then %v", err, again)
		}
	}
}

// TestResetCapped: a document in memory may have as many bytes as the limit says, and no more.
func TestResetCapped(t *testing.T) {
	var s Scanner
	for more, want := range []string{"", CapDocument, ""} {
		doc := "<a>" + strings.Repeat("x", 93+more%2) + "</a>"
		s.Reset([]byte(doc), Options{Limits: Limits{Document: 100}})
		_, err := traced(&s)
		var fault *DocumentError
		if errors.As(err, &fault) != (want != "") || fault != nil && fault.Cap != want || fault == nil && err != nil {
			t.Errorf("%d bytes: %v", len(doc), err)
		}
	}
}

// endless repeats a piece for ever.
type endless struct {
	piece string
	at    int
}

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = e.piece[e.at]
		e.at = (e.at + 1) % len(e.piece)
	}
	return len(b), nil
}

// TestBroughtBadly: an error of what brings the document is returned as it is, with
// the place that was reached.
func TestBroughtBadly(t *testing.T) {
	gone := errors.New("gone")
	for _, head := range []string{"<a>\n<b/>", "<a>\nxyzv", "<a\nb='c", "<a>\n<!--"} {
		s := New(io.MultiReader(strings.NewReader(padded(head)), broken{gone}), Options{URL: "u"})
		_, err := traced(s)
		var fault *DocumentError
		if !errors.Is(err, gone) || errors.As(err, &fault) || !strings.HasPrefix(err.Error(), "u:2:5: reading the document") {
			t.Errorf("%q: %v", head, err)
		}
	}
	for _, head := range []string{"", padded("<a>")} {
		stuck := New(io.MultiReader(strings.NewReader(head), broken{}), Options{})
		if _, err := traced(stuck); !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("a reader that brings nothing after %d bytes: %v", len(head), err)
		}
	}
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// Documents that are read at the same time, some of them broken, know nothing of each other.
func TestRead(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				name := fmt.Sprintf("d%d", i*100+n)
				doc := fmt.Sprintf(`<p:%[1]s xmlns:p="urn:%[1]s"><p:t>&lt;%[1]s</p:t></p:%[1]s>`, name)
				if n%3 == 0 {
					doc = doc[:len(doc)-n%20-1]
				}
				var space, text string
				err := Read([]byte(doc), Options{}, func(s *Scanner) error {
					for {
						if err := s.Next(); err != nil {
							return err
						}
						switch s.Kind {
						case StartTag:
							space = s.Space
						case Text:
							text += string(s.Data)
						}
					}
				})
				if broken := n%3 == 0; errors.Is(err, io.EOF) == broken || space != "urn:"+name || text != "<"+name && (!broken || !strings.HasPrefix("<"+name, text)) {
					t.Errorf("%s: namespace %q, text %q, %v", doc, space, text, err)
				}
			}
		})
	}
	wg.Wait()
}
