package oaipmh

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testserver"
)

// O11: what a repository has can be listed, for whoever has asked for something else.
func TestO11(t *testing.T) {
	ctx := context.Background()
	h := newHarvester(t, 3)
	h.repo.Formats = append(h.repo.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://x.example/mods.xsd", Namespace: "http://www.loc.gov/mods/v3"})
	for i := range 25 {
		h.repo.Sets = append(h.repo.Sets, testserver.ItemSet{Spec: fmt.Sprintf("a:%d", i), Name: fmt.Sprintf("Set %d", i)})
	}
	c := Client{HTTP: h.walk.Client, URL: h.walk.URL + "?verb=ListRecords&metadataPrefix=x"}
	id, err := c.Identify(ctx)
	if err != nil || id.Name != "Example Repository" || id.Granularity != Second || id.Deleted != DeletedPersistent || id.ProtocolVersion != "2.0" || id.Earliest.Year() != 2020 {
		t.Errorf("%+v, %v", id, err)
	}
	formats, err := c.Formats(ctx, "")
	if err != nil || fmt.Sprint(formats) != "[{oai_dc http://www.openarchives.org/OAI/2.0/oai_dc.xsd http://www.openarchives.org/OAI/2.0/oai_dc/} {mods http://x.example/mods.xsd http://www.loc.gov/mods/v3}]" {
		t.Errorf("%v, %v", formats, err)
	}
	if formats, err = c.Formats(ctx, "oai:repository.example:1"); err != nil || len(formats) != 1 {
		t.Errorf("%v, %v", formats, err)
	}
	sets, err := c.Sets(ctx)
	if err != nil || len(sets) != 25 || sets[24].Spec != "a:24" || sets[24].Name != "Set 24" {
		t.Errorf("%v, %v", sets, err)
	}
	rec, err := c.Record(ctx, "oai:repository.example:1", DC)
	if err != nil || rec.Identifier != "oai:repository.example:1" || !strings.Contains(string(rec.Metadata), "Letter 1") {
		t.Errorf("%+v, %v", rec, err)
	}
	h.repo.Put(testserver.Item{Identifier: "oai:x:bad", Metadata: map[string]string{DC: testserver.DublinCore("x")}, Lies: []testserver.Lie{testserver.TwoElements}})
	var bad *RecordError
	if _, err := c.Record(ctx, "oai:x:bad", DC); !errors.As(err, &bad) || bad.Header.Identifier != "oai:x:bad" {
		t.Error(err)
	}
	h.repo.Sets = nil
	for want, ask := range map[Code]func() error{
		IDDoesNotExist:          func() error { _, err := c.Record(ctx, "oai:x:none", DC); return err },
		CannotDisseminateFormat: func() error { _, err := c.Record(ctx, "oai:repository.example:1", "mods"); return err },
		NoSetHierarchy:          func() error { _, err := c.Sets(ctx); return err },
	} {
		var e *Error
		if err := ask(); !errors.As(err, &e) || e.Code != want {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// What answers something else than it was asked is an error, and lists of sets end.
func TestClientErrors(t *testing.T) {
	ctx := context.Background()
	answer, status := "", 200
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	c := Client{HTTP: server.Client(), URL: server.URL}
	for _, tt := range []struct {
		answer string
		status int
		want   string
	}{
		{answerTo("<Identify/>"), 200, "an answer to Identify; want one to ListSets"},
		{answerTo("<ListSets><set><setSpec>a</setSpec></set><resumptionToken>t</resumptionToken></ListSets>"), 200, "goes round in a loop"},
		{answerTo("<ListSets><resumptionToken>t</resumptionToken></ListSets>"), 200, "goes round in a loop"},
		{"<html/>", 200, "an HTML page; want an answer of OAI-PMH"},
		{"<html/>", 404, "HTTP status 404"},
		{answerTo("<ListSets/>"), 500, "HTTP status 500"},
		{"", 503, "HTTP status 503"},
	} {
		answer, status = tt.answer, tt.status
		if _, err := c.Sets(ctx); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v", tt.answer, err)
		}
	}
	// Sets without end, each with a long name.
	pages := 0
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		pages++
		fmt.Fprint(w, answerTo("<ListSets>"+strings.Repeat("<set><setSpec>a</setSpec><setName>"+strings.Repeat("x", 8000)+"</setName></set>", 500)+fmt.Sprintf("<resumptionToken>%d</resumptionToken></ListSets>", pages)))
	}))
	defer endless.Close()
	if sets, err := (&Client{HTTP: endless.Client(), URL: endless.URL}).Sets(ctx); err != nil || pages > 10 {
		t.Errorf("%d sets of %d pages, %v", len(sets), pages, err)
	}
	answer, status = answerTo("<GetRecord/>"), 200
	if _, err := c.Record(ctx, "x", DC); err == nil || !strings.Contains(err.Error(), "no record; want one") {
		t.Error(err)
	}
	answer = answerTo("<GetRecord>" + record(1) + "</GetRecord>")
	if _, err := c.Record(ctx, "x", DC); err == nil || !strings.Contains(err.Error(), `want "x"`) {
		t.Error(err)
	}
	c.URL = "gopher://x"
	if _, err := c.Identify(ctx); err == nil {
		t.Error("gopher is asked")
	}
}
