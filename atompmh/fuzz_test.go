package atompmh

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzReader: nothing panics, every error has a place, and every entry, good or
// bad, can be read again from its Input.
func FuzzReader(f *testing.F) {
	files, err := filepath.Glob("testdata/draft/*.atom")
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
	f.Add([]byte(feedOf(`<entry/><at:deleted-entry ref="a:1" when="2020-01-01T00:00:00Z"/>`)), "text/xml; charset=utf-8")
	f.Add([]byte(`<?xml version="1.0" encoding="iso-8859-1"?>`+"<p:feed xmlns:p='http://www.w3.org/2005/Atom' xml:base='a/b'><p:entry><p:id>\xfc</p:id></p:entry></p:feed>"), "")
	limits := Limits{Document: 64 << 10, Depth: 20, Attributes: 10, Text: 10_000}
	f.Fuzz(func(t *testing.T, doc []byte, contentType string) {
		got := readAll(bytes.NewReader(doc), ReadOptions{URL: docURL, ContentType: contentType, Limits: limits})
		var fault *DocumentError
		if got.err != nil && (!errors.As(got.err, &fault) || fault.Line < 1 || fault.Column < 1 || fault.Reason == "") {
			t.Fatalf("%#v", got.err)
		}
		// The document that Input makes may be a little longer than the one that
		// it was cut from, and so may its tags.
		wider := ReadOptions{URL: docURL, Limits: Limits{Document: 1 << 24, Depth: 20, Attributes: 11, Text: 1 << 22}}
		for i, e := range got.entries {
			again := readAll(bytes.NewReader(got.inputs[i]), wider)
			if again.err != nil || len(again.entries) != 1 {
				t.Fatalf("%q: %v %v", got.inputs[i], again.err, again.bad)
			}
			a, b := *e, *again.entries[0]
			a.Line, a.Column, b.Line, b.Column = 0, 0, 0, 0
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%+v\n%+v", a, b)
			}
		}
		for _, bad := range got.bad {
			again := readAll(bytes.NewReader(bad.Input), wider)
			if again.err != nil || len(again.bad) != 1 || again.bad[0].Rule != bad.Rule || again.bad[0].ID != bad.ID {
				t.Fatalf("%q: %v %v", bad.Input, again.err, again.bad)
			}
		}
	})
}

// FuzzWriter: what was read and can be written is read again in the same way.
func FuzzWriter(f *testing.F) {
	head := sampleHead()
	head.Archive, head.PrevArchive = true, "https://a.example/1"
	doc, err := write(head, activeEntry(), deletionEntry())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(doc))
	f.Add(feedOf(`<entry b:id=" 7&#10;" xmlns:b="` + CarriedNamespace + `"><id>urn:x</id><title type="html">&lt;b&gt;A</title><updated>2026-01-02T03:04:05+02:00</updated><link href="a"/></entry>`))
	f.Fuzz(func(t *testing.T, doc string) {
		got := readString(doc)
		for _, e := range got.entries {
			head := sampleHead()
			head.Updated = e.Updated
			again, err := write(head, *e)
			if errors.As(err, new(*RuleError)) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			back, err := NewReader(bytes.NewReader(again), ReadOptions{}).Next()
			if err != nil {
				t.Fatalf("%v\n%s", err, again)
			}
			if a, b := meaning(e), meaning(back); !reflect.DeepEqual(a, b) {
				t.Fatalf("read\n%+v\nwritten\n%s\nread again\n%+v", a, again, b)
			}
		}
	})
}

// meaning is what a Writer keeps of an entry.
func meaning(e *Entry) Entry {
	m := Entry{Kind: e.Kind, ID: e.ID, Updated: e.Updated, Title: e.Title, CarriedModified: e.CarriedModified, Metadata: e.Metadata}
	if e.CarriedID != e.ID {
		m.CarriedID = e.CarriedID
	}
	for _, l := range e.Links {
		kept := l
		kept.Other = nil
		for _, a := range l.Other {
			switch a.Name.Local {
			case "id", "modified", "hash", "length":
				if a.Name.Space == CarriedNamespace && a.Value != "" {
					kept.Other = append(kept.Other, a)
				}
			}
		}
		m.Links = append(m.Links, kept)
	}
	if s := e.Source; s != nil {
		m.Source = &Source{ID: s.ID, Title: s.Title, Updated: s.Updated, Metadata: s.Metadata}
		if m.Source.Title == "" { // which would have the language
			m.Source.Language = ""
		}
	}
	return m
}
