package oaipmh_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/oaipmh"
)

// Harvest a repository whole, and later only what has changed in it.
func ExampleWalk() {
	museum := fixtures.Museum(time.Now)
	server := httptest.NewServer(museum)
	defer server.Close()

	var state oaipmh.State               // keep it between the walks: its MarshalText is for a file
	known := map[string]*oaipmh.Record{} // by identifier
	for range 2 {
		walk := oaipmh.Walk{URL: server.URL + fixtures.MuseumOAI, Prefix: oaipmh.DC, State: state}
		for doc, err := range walk.Documents(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			var records []*oaipmh.Record
			for rec, bad := range doc.Entries() {
				if bad != nil {
					log.Print(bad)
				} else {
					records = append(records, rec)
				}
			}
			for _, rec := range records {
				if old := known[rec.Identifier]; doc.Whole() && (old == nil || !rec.Datestamp.Before(old.Datestamp)) {
					known[rec.Identifier] = rec
				}
			}
		}
		result := walk.Result()
		state = result.State
		fmt.Printf("%s: whole: %t, records: %d\n", result.Identity.Name, result.Whole, len(known))
		museum.Put(fixtures.Item{Name: "sampler", Title: "Sampler by Ann Combe"})
	}

	// Output:
	// Combe Village Museum: whole: true, records: 16
	// Combe Village Museum: whole: true, records: 17
}
