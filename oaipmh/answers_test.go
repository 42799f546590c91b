package oaipmh

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// answerTo writes an answer with some content.
func answerTo(content string) string {
	return `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + `<OAI-PMH xmlns="` + Namespace + `"><responseDate>2026-01-02T00:00:00Z</responseDate><request>http://example.org/oai</request>` + content + `</OAI-PMH>`
}

func refusal(code Code, text string) string {
	return answerTo(`<error code="` + string(code) + `">` + text + `</error>`)
}

// list writes a document of ListRecords.
func list(records, token string) string {
	return answerTo("<ListRecords>" + records + token + "</ListRecords>")
}

// record writes a record with a number.
func record(n int) string {
	return fmt.Sprintf(`<record><header><identifier>oai:x:%d</identifier><datestamp>2025-01-01T00:00:00Z</datestamp></header><metadata><a xmlns="urn:a">%d</a></metadata></record>`, n, n)
}

func escapeText(s string) string { return string(strictxml.AppendEscaped(nil, s)) }

// serveList serves a repository whose lists a test writes.
func serveList(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("verb") == "Identify" {
			fmt.Fprint(w, identifyAnswer("http://"+r.Host+r.URL.Path))
			return
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// walkAll walks, and returns the identifiers of the documents that were whole.
func walkAll(w *Walk) (ids []string, failed error) {
	for doc, err := range w.Documents(context.Background()) {
		if err != nil {
			return ids, err
		}
		var page []string
		for rec, bad := range doc.Entries() {
			if bad == nil {
				page = append(page, rec.Identifier)
			}
		}
		if doc.Whole() {
			ids = append(ids, page...)
		}
	}
	return ids, nil
}

// readOne reads the one record of a list, and returns the rules that are reported.
func readOne(t *testing.T, record string) (rec *Record, rules string) {
	t.Helper()
	var reported []string
	r := NewReader(strings.NewReader(list(record, "")), ReadOptions{Lenient: true, Report: func(p Problem) { reported = append(reported, p.Rule) }})
	rec, err := r.Next()
	if err != nil {
		reported = append(reported, err.Error())
	}
	if _, end := r.Next(); end != io.EOF {
		t.Error(end)
	}
	return rec, strings.Join(reported, " ")
}
