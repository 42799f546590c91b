package oaipmh

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// readWhole reads an answer to its end.
func readWhole(in io.Reader, o ReadOptions) (records []*Record, inputs [][]byte, bad []*RecordError, err error) {
	r := NewReader(in, o)
	for {
		rec, err := r.Next()
		var no *RecordError
		switch {
		case errors.As(err, &no):
			bad = append(bad, no)
		case err != nil:
			return records, inputs, bad, err
		default:
			records, inputs = append(records, rec), append(inputs, r.Input())
		}
	}
}

// FuzzReader: nothing panics, every error has a place, what a strict Reader takes a
// lenient one reads in the same way, and every record, good or bad, can be read again
// from its Input.
func FuzzReader(f *testing.F) {
	files, err := filepath.Glob("testdata/golden/*.xml")
	if err != nil || len(files) == 0 {
		f.Fatal("no fixtures", err)
	}
	for _, file := range files {
		doc, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc, "")
	}
	f.Add([]byte(list(record(1)+"<record/>"+record(2)+"<record><header status='deleted'/></record>", "<resumptionToken expirationDate='x'> a </resumptionToken>")), "text/xml; charset=utf-8")
	f.Add([]byte(`<?xml version="1.0" encoding="iso-8859-1"?>`+"<p:OAI-PMH xmlns:p='"+Namespace+"'><p:ListIdentifiers><p:header><p:identifier>\xfc</p:identifier></p:header></p:ListIdentifiers></p:OAI-PMH>"), "")
	f.Add([]byte(list(`<record><header><identifier>a:b</identifier></header><metadata><a>&nbsp; & &#0;`+"\x01"+`</b></metadata></record>`+record(3), "")+"garbage <"), "")
	f.Add([]byte(list(`<record><about><p:provenance xmlns:p="`+ProvenanceNamespace+`"><p:originDescription altered="1"><p:baseURL>x</p:baseURL></p:originDescription></p:provenance></about></record>`, "")), "")
	f.Add([]byte(answerTo(`<ListSets><set><setSpec>a</setSpec><setDescription><x/></setDescription></set></ListSets>`)), "")
	f.Add([]byte(identifyAnswer("http://a.example/")), "")
	limits := Limits{Document: 64 << 10, Depth: 20, Attributes: 10, Text: 10_000}
	f.Fuzz(func(t *testing.T, doc []byte, contentType string) {
		const url = "http://h.example/oai"
		strict, _, _, end := readWhole(bytes.NewReader(doc), ReadOptions{URL: url, ContentType: contentType, Limits: limits, Strict: true, Report: func(Problem) {}})
		var fault *DocumentError
		var refused *Error
		if end != io.EOF && !errors.As(end, &refused) && (!errors.As(end, &fault) || fault.Line < 1 || fault.Column < 1 || fault.Reason == "") {
			t.Fatalf("%#v", end)
		}
		lenient, inputs, bad, err := readWhole(bytes.NewReader(doc), ReadOptions{URL: url, ContentType: contentType, Limits: limits, Lenient: true})
		if end == io.EOF && (err != io.EOF || !reflect.DeepEqual(strict, lenient)) {
			t.Fatalf("%v\n%+v\n%+v", err, strict, lenient)
		}
		// The document that Input makes may be a little longer than the one that
		// it was cut from, and so may its tags.
		wider := ReadOptions{URL: url, Limits: Limits{Document: 1 << 24, Depth: 20, Attributes: 11, Text: 1 << 22}, Lenient: true}
		for i, rec := range lenient {
			again, _, no, err := readWhole(bytes.NewReader(inputs[i]), wider)
			if err != io.EOF || len(again) != 1 {
				t.Fatalf("%q: %v %v", inputs[i], err, no)
			}
			a, b := *rec, *again[0]
			a.Line, a.Column, b.Line, b.Column, a.Mended = 0, 0, 0, 0, b.Mended
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%+v\n%+v\n%q", a, b, inputs[i])
			}
			if rec.Metadata == nil {
				continue
			}
			// What is cut out is a document, and well-formed.
			if doc, root, err := ReadMetadata(rec.Metadata, ""); err != nil || root != rec.Root || !bytes.Equal(doc, rec.Metadata) {
				t.Fatalf("%q: %v, %v", rec.Metadata, root, err)
			}
		}
		for _, no := range bad {
			again, _, twice, _ := readWhole(bytes.NewReader(no.Input), wider)
			if len(again) != 0 || len(twice) != 1 || twice[0].Rule != no.Rule || twice[0].Header.Identifier != no.Header.Identifier {
				t.Fatalf("%v\n%q: %v", no, no.Input, twice)
			}
		}
	})
}

// FuzzURL: what is made of a request is read again as the same.
func FuzzURL(f *testing.F) {
	f.Add("http://a.example/oai", "a&b=c+d%20 e", "set:x")
	f.Add("http://a.example/oai?x=1&&y", "", "\x00\xff")
	f.Add("https://a.example?", "t", "")
	f.Fuzz(func(t *testing.T, base, token, set string) {
		base, _, err := ParseURL(base)
		if err != nil {
			return
		}
		again, q, err := ParseURL((&Request{Verb: ListRecords, Prefix: DC, Set: set}).URL(base))
		if err != nil || again != base || q.Prefix != DC || q.Set != set {
			t.Fatalf("%q became %q with %+v, %v", base, again, q, err)
		}
		if to := (&Request{Verb: ListRecords, Token: token, Set: set}).URL(base); token != "" && (strings.Contains(to, "set=") && !strings.Contains(base, "set=") && !strings.Contains(token, "set=") || strings.ContainsAny(to[len(base):], " \x00#<>\"")) {
			t.Fatalf("%q", to)
		}
	})
}
