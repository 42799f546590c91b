package atompmh

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

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
			var rule *RuleError
			if errors.As(err, &rule) {
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
