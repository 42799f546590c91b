package oaipmh_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/oaipmh"
)

// memory is a repository of records in unqualified Dublin Core, without sets.
type memory []oaipmh.Record

func (memory) Identity(context.Context) (*oaipmh.Identity, error) {
	return &oaipmh.Identity{Name: "Maps", BaseURL: "https://maps.example/oai", AdminEmails: []string{"maps@maps.example"},
		Earliest: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), Deleted: oaipmh.DeletedNo, Granularity: oaipmh.Second}, nil
}

func (memory) Formats(context.Context, string) ([]oaipmh.Format, error) {
	return []oaipmh.Format{{Prefix: oaipmh.DC, Schema: oaipmh.Namespace + "oai_dc.xsd", Namespace: oaipmh.DCNamespace}}, nil
}

func (memory) Sets(context.Context, string, int) ([]oaipmh.Set, error) { return nil, nil }

func (m memory) Record(_ context.Context, identifier, _ string) (*oaipmh.Record, error) {
	if i := slices.IndexFunc(m, func(r oaipmh.Record) bool { return r.Identifier == identifier }); i >= 0 {
		return &m[i], nil
	}
	return nil, &oaipmh.Error{Code: oaipmh.IDDoesNotExist, Text: "there is no such map"}
}

func (m memory) List(_ context.Context, q *oaipmh.Query) (*oaipmh.List, error) {
	return &oaipmh.List{Next: func() []byte { return nil }, Records: func(yield func(*oaipmh.Record, error) bool) {
		for i := range m {
			if at := m[i].Datestamp; !at.Before(q.From) && (q.Until.IsZero() || !at.After(q.Until)) && !yield(&m[i], nil) {
				return
			}
		}
	}}, nil
}

// Serve a repository in memory.
func ExampleHandler() {
	maps := memory{{Header: oaipmh.Header{Identifier: "oai:maps.example:1", Datestamp: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
		Metadata: []byte(`<dc xmlns="http://www.openarchives.org/OAI/2.0/oai_dc/"/>`)}}
	server := httptest.NewServer(&oaipmh.Handler{Repository: maps, BaseURL: "https://maps.example/oai"}) // in a program http.ListenAndServe
	defer server.Close()

	for _, query := range []string{"?verb=ListRecords&metadataPrefix=oai_dc", "?verb=GetRecord&metadataPrefix=oai_dc&identifier=oai:maps.example:2"} {
		answer, err := server.Client().Get(server.URL + query)
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err := answer.Body.Close(); err != nil {
			log.Fatal(err)
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(strings.Split(string(body), "\n")[5])
	}
	// Output:
	//   <record><header><identifier>oai:maps.example:1</identifier><datestamp>2026-01-01T00:00:00Z</datestamp></header><metadata><dc xmlns="http://www.openarchives.org/OAI/2.0/oai_dc/"/></metadata></record>
	// </OAI-PMH>
}
