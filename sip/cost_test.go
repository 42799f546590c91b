package sip

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// requestOf is a message that asks for a record to be ingested, which declares
// prefixes that the record inherits.
func requestOf(record string) []byte {
	return []byte(`<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/" xmlns:p="urn:p"><soap:Body><s:ingest-request xmlns:s="http://www.alexandria.ucsb.edu"><s:record>` +
		record + `</s:record></s:ingest-request></soap:Body></soap:Envelope>`)
}

// readAndWrite does with a message what a server does with one, and hands it on.
func readAndWrite(doc []byte) {
	m, err := ReadMessage(bytes.NewReader(doc), ReadOptions{Places: Places{}})
	if err != nil {
		return
	}
	if m.Request != nil {
		m.Request.Record.Locations()
	}
	AppendMessage(nil, m)
}

// D60, D61, D77: whatever is in a message, reading it and handing it on costs time
// and memory in proportion to its length.
func TestCost(t *testing.T) {
	for name, record := range testenv.Hostile(1 << 20) {
		t.Run(name, func(t *testing.T) {
			doc := requestOf(record)
			testenv.Affordable(t, len(doc), func() { readAndWrite(doc) })
		})
	}
}

// FuzzCost: the same of any message.
func FuzzCost(f *testing.F) {
	for _, record := range testenv.Hostile(16 << 10) {
		f.Add(requestOf(record))
	}
	for _, m := range samples() {
		f.Add(AppendMessage(nil, m))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		testenv.Affordable(t, len(doc), func() { readAndWrite(doc) })
	})
}

// turnsWatched refuses what it is asked, and counts how many turns are taken
// meanwhile.
type turnsWatched struct {
	Backend
	turns chan struct{}
	calls []int
}

func (b *turnsWatched) Admit(context.Context, Caller) error { return nil }

func (b *turnsWatched) Ingest(context.Context, Caller, *Request) (*Disposition, error) {
	b.calls = append(b.calls, len(b.turns))
	return nil, &Fault{Code: Client, Text: "no"}
}

// D61: a message is read when its turn has come, and the turn is over before the
// Backend is asked. Who does not wait for it is not read.
func TestTurns(t *testing.T) {
	turns := make(chan struct{}, 1)
	b := &turnsWatched{turns: turns}
	h := &Handler{Backend: b, Offers: Operations{Ingest: true}, Slots: turns}
	post := func(ctx context.Context, body string) {
		r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "text/xml")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	post(t.Context(), string(requestOf("<r/>")))
	post(t.Context(), "<broken")
	turns <- struct{}{}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	post(gone, string(requestOf("<r/>")))
	<-turns
	post(t.Context(), string(requestOf("<r/>")))
	if len(b.calls) != 2 || b.calls[0] != 0 || b.calls[1] != 0 {
		t.Errorf("%v", b.calls)
	}
}

// D60: a record's xml:base is the record's own affair, however long it is.
func TestLongBase(t *testing.T) {
	record := `<r xml:base="http://h.example/` + strings.Repeat("b", 2*strictxml.MaxReference) + `"><a xml:base="x"/></r>`
	m, err := ReadMessage(bytes.NewReader(requestOf(record)), ReadOptions{})
	if err != nil || string(m.Request.Record.XML) != record {
		t.Errorf("%v", err)
	}
}
