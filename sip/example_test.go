package sip_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/pmh-bridge/bridge/sip"
)

// archive is an ingest server that accepts every record. It embeds a nil Backend,
// because it offers no other operation.
type archive struct{ sip.Backend }

func (archive) Admit(context.Context, sip.Caller) error { return nil }

func (archive) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Synchronous, Formats: []string{"https://example.org/dc.xsd"}}, nil
}

func (archive) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "urn:x:" + r.Record.Root.Local}, nil
}

// Submit a record to an ingest server.
func ExampleHTTPClient() {
	server := httptest.NewServer(&sip.Handler{Backend: archive{}, Offers: sip.Operations{Ingest: true}})
	defer server.Close()

	record, err := sip.ReadRecord(strings.NewReader("<map><title>Port Averil</title></map>"), sip.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	client := sip.HTTPClient{URL: server.URL}
	identifier := "map 1"
	disposition, err := client.Ingest(context.Background(), &sip.Request{
		Source: &sip.Source{Identifier: &identifier},
		Record: record,
	})
	if err != nil {
		log.Fatalf("%v; sent: %v, worth a repeat: %v", err, sip.Sent(err), sip.Temporary(err))
	}
	fmt.Println(disposition.Outcome, disposition.AssignedIdentifier, *disposition.Source.Identifier)

	// Output: accepted urn:x:map map 1
}
