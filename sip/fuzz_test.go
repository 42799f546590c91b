package sip

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzMessage: reading never panics; what is read is the same when it was written
// and is read again; what is not read is a Fault with its place, or too large.
func FuzzMessage(f *testing.F) {
	golden, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(golden) == 0 {
		f.Fatalf("no golden files: %v", err)
	}
	for _, path := range golden {
		doc, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc, "text/xml; charset=utf-8", false)
	}
	for _, c := range structural() {
		f.Add([]byte(declareSIP(c.doc)), "", true)
	}
	f.Add([]byte("\xff\xfe<\x00a\x00/\x00>\x00"), "text/xml", true)
	f.Add([]byte(declareSIP("<sip:ingest-request xmlns='urn:d' xmlns:p='urn:p'><sip:record><p:r a='sip:b'/></sip:record></sip:ingest-request>")), "", true)
	limits := Limits{Document: 64 << 10, Depth: 20, Attributes: 20, Text: 32 << 10}
	f.Fuzz(func(t *testing.T, doc []byte, contentType string, plain bool) {
		m, err := ReadMessage(bytes.NewReader(doc), ReadOptions{ContentType: contentType, Plain: plain, Limits: limits})
		if err != nil {
			if fault, ok := err.(*Fault); ok {
				if m != nil || fault.Text == "" || fault.Line < 1 || fault.Column < 1 {
					t.Fatalf("%#v", fault)
				}
			} else if !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			return
		}
		written := AppendMessage(nil, m)
		again, err := ReadMessage(bytes.NewReader(written), ReadOptions{Limits: Limits{Document: 1 << 20}})
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%s\nread as %s, %v", written, describe(again), err)
		}
		if twice := AppendMessage(nil, again); !bytes.Equal(twice, written) {
			t.Fatalf("%s\nwritten again %s", written, twice)
		}
	})
}

// FuzzRecord: a file that is taken for a record is in its message what it was,
// and alone again as well.
func FuzzRecord(f *testing.F) {
	for _, doc := range []string{"<r/>", "<?xml version='1.0'?><!-- --><?a?><p:r xmlns:p='u' a = 'soap:b'>\r\n<![CDATA[<]]>&amp;</p:r ><!-- -->",
		"<r xmlns='u'><s xmlns=''/>sip:</r>", "\xfe\xff\x00<\x00r\x00/\x00>", "<r><?a?></r>", "<!DOCTYPE r><r/>", string(gazetteer().XML)} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		rec, err := ReadRecord(bytes.NewReader(doc), Limits{Document: 64 << 10, Depth: 20})
		if err != nil {
			var broken *DocumentError
			if !errors.As(err, &broken) || len(rec.XML) > 0 {
				t.Fatalf("%#v", err)
			}
			return
		}
		rec.Locations()
		again, err := ReadRecord(bytes.NewReader(rec.XML), Limits{})
		if err != nil || !reflect.DeepEqual(again, rec) {
			t.Fatalf("%s is %s alone, %v", rec.XML, again.XML, err)
		}
		m := &Message{Kind: KindRequest, Request: &Request{Record: rec}}
		back, err := ReadMessage(strings.NewReader(string(AppendMessage(nil, m))), ReadOptions{})
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%s is %s in its message, %v", rec.XML, describe(back), err)
		}
	})
}
