package sip_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/pmh-bridge/bridge/sip"
)

// Submit a record to an ingest server.
func ExampleHTTPClient() {
	server := httptest.NewServer(&sip.Handler{Backend: archive{}, Offers: sip.Operations{Ingest: true}})
	defer server.Close()

	// In a program the record is a file.
	record, err := sip.ReadRecord(strings.NewReader("<map><title>Port Averil</title></map>"), sip.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	identifier := "map 1"
	client := sip.HTTPClient{URL: server.URL}
	d, err := client.Ingest(context.Background(), &sip.Request{Source: &sip.Source{Identifier: &identifier}, Record: record})
	if err != nil {
		log.Fatalf("%v; sent: %v, worth a repeat: %v", err, sip.Sent(err), sip.Temporary(err))
	}
	switch d.Outcome {
	case sip.Accepted:
		fmt.Printf("%s is there as %s\n", *d.Source.Identifier, d.AssignedIdentifier)
	case sip.ProvisionallyAccepted:
		fmt.Println("the outcome will be sent to Request.Recipient")
	case sip.Rejected:
		fmt.Println("not wanted:", d.Reason)
	}

	// Output: map 1 is there as urn:x:1
}
