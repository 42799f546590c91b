package sip

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// TestCutAnywhere: no beginning of a message is taken for the message.
func TestCutAnywhere(t *testing.T) {
	for name, m := range samples() {
		doc := strings.TrimSuffix(string(AppendMessage(nil, m)), "\n")
		for cut := range doc {
			got, err := ReadMessage(strings.NewReader(doc[:cut]), ReadOptions{})
			if f := new(Fault); !errors.As(err, &f) || f.Code != Client || got != nil {
				t.Fatalf("%s cut at %d: %s, %v", name, cut, describe(got), err)
			}
			_, err = ReadMessage(&failing{strings.NewReader(doc[:cut]), io.ErrUnexpectedEOF}, ReadOptions{})
			if f := new(Fault); !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &f) {
				t.Fatalf("%s broken off at %d: %v", name, cut, err)
			}
		}
	}
}

// TestHostile: what asks for more than its due is refused before it is stored.
func TestHostile(t *testing.T) {
	const (
		open  = `<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body>`
		shut  = `</soap:Body></soap:Envelope>`
		begin = open + `<s:ingest-request xmlns:s="http://www.alexandria.ucsb.edu"><s:record>`
		end   = `</s:record></s:ingest-request>` + shut
	)
	attributes := strings.Repeat(" a=''", 1_000_000)
	var laughs strings.Builder
	laughs.WriteString(`<!DOCTYPE a [<!ENTITY a0 "ha">`)
	for i := range 30 {
		fmt.Fprintf(&laughs, `<!ENTITY a%d "&a%d;&a%d;">`, i+1, i, i)
	}
	laughs.WriteString("]>")
	for _, c := range []struct{ name, doc, text string }{
		{"depth", begin + strings.Repeat("<a>", 100_000) + strings.Repeat("</a>", 100_000) + end, "nested deeper than 256"},
		{"depth of the header", strings.Replace(open, "<soap:Body>", "<soap:Header>", 1) + strings.Repeat("<a>", 100_000), "nested deeper than 256"},
		{"attributes of the record", begin + "<a" + attributes[:4_000_000] + "/>" + end, "more than 256 attributes"},
		{"attributes of the envelope", "<Envelope" + attributes + "/>", "more than 256 attributes"},
		{"a billion laughs", laughs.String() + begin + "<a>&a30;</a>" + end, "DOCTYPE is refused"},
		{"an external entity", `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>` + begin + "<a>&x;</a>" + end, "DOCTYPE is refused"},
		{"a document type in the body", open + "<!DOCTYPE a>" + shut, "DOCTYPE is refused"},
		{"an undeclared entity", begin + "<a>&x;</a>" + end, "invalid character entity &x;"},
		{"a control character", begin + "<a>&#0;</a>" + end, "illegal character"},
		{"a NUL", begin + "<a>\x00</a>" + end, "illegal character"},
		{"a long name", open + "<" + strings.Repeat("x", 1_000_000) + "/>" + shut, "without a namespace"},
	} {
		_, err := ReadMessage(strings.NewReader(c.doc), ReadOptions{Limits: Limits{Document: 64 << 20}})
		var f *Fault
		if !errors.As(err, &f) || f.Code != Client || !strings.Contains(f.Text, c.text) || len(f.Error()) > 2000 {
			t.Errorf("%s: %.500v, want %s", c.name, err, c.text)
		}
	}
}

// TestTooLarge: a message of exactly the limit is read, one byte more is too
// large; the limit is 4 MiB where none is given.
func TestTooLarge(t *testing.T) {
	doc := string(AppendMessage(nil, samples()["request"]))
	for _, c := range []struct {
		given, limit int
		ok           bool
	}{
		{len(doc), len(doc), true}, {len(doc), len(doc) - 1, false}, {len(doc) + 1, len(doc), false},
		{4 << 20, 0, true}, {4<<20 + 1, 0, false},
	} {
		padded := doc + strings.Repeat(" ", c.given-len(doc))
		_, err := ReadMessage(strings.NewReader(padded), ReadOptions{Limits: Limits{Document: int64(c.limit)}})
		var f *Fault
		if (err == nil) != c.ok || !c.ok && (!errors.Is(err, ErrTooLarge) || errors.As(err, &f)) {
			t.Errorf("%d bytes of %d: %v", c.given, c.limit, err)
		}
	}
	// A reader that never ends.
	_, err := ReadMessage(io.MultiReader(strings.NewReader(doc[:len(doc)-20]), spaces{}), ReadOptions{})
	if !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// TestManyPrefixes: a record that mentions very many prefixes, ours among them, is
// read and written in time that grows with its length only.
func TestManyPrefixes(t *testing.T) {
	testenv.Heavy(t)
	var text, outside strings.Builder
	for i := range 250_000 {
		fmt.Fprintf(&text, "sip%d:", i)
	}
	for i := range 200 {
		fmt.Fprintf(&outside, " xmlns:sip%d='urn:a'", i)
	}
	doc := declareSIP("<sip:ingest-request><sip:record" + outside.String() + "><r>" + text.String() + "</r></sip:record></sip:ingest-request>")
	m, err := ReadDocument([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadMessage(strings.NewReader(string(AppendMessage(nil, m))), ReadOptions{Limits: Limits{Document: 64 << 20}})
	if err != nil || string(again.Request.Record.XML) != string(m.Request.Record.XML) {
		t.Errorf("%v", err)
	}
}
