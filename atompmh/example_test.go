package atompmh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/fixtures"
)

// Harvest a feed whole, and later only what is new in it.
func ExampleWalk() {
	provider := fixtures.Catalogue(nil)
	server := httptest.NewServer(provider)
	defer server.Close()
	one := provider.Live()[0] // a record

	var state atompmh.State // keep it between the walks: its MarshalText is for a file
	for range 2 {
		walk := atompmh.Walk{URL: server.URL + fixtures.Subscription, State: state}
		latest := map[string]*atompmh.Entry{} // by record
		for doc, err := range walk.Documents(context.Background()) {
			if err != nil {
				log.Fatal(err)
			}
			for entry, bad := range doc.Entries() {
				if bad != nil {
					log.Print(bad)
				} else if known := latest[entry.Record()]; known == nil || entry.Updated.After(known.Updated) {
					latest[entry.Record()] = entry
				}
			}
		}
		result := walk.Result()
		state = result.State
		fmt.Printf("documents: %d, records: %d, missing: %v; %s: %v\n", result.Documents, len(latest), result.Gap, one.Name, latest[one.ID].Kind)
		provider.Delete(provider.Live()[0].Name)
	}

	// Output:
	// documents: 4, records: 29, missing: <nil>; estuary-salinity: active
	// documents: 1, records: 8, missing: <nil>; estuary-salinity: deletion
}

// Read one document.
func ExampleReader() {
	const doc = `<feed xmlns="http://www.w3.org/2005/Atom">
	  <id>urn:x:feed</id><title>Records</title><updated>2026-01-02T00:00:00Z</updated>
	  <entry><id>urn:x:1</id><title>One</title><updated>2026-01-02T00:00:00Z</updated>
	    <link type="application/rdf+xml" href="records/1.rdf"/></entry>
	  <entry><id>urn:x:2</id><title>Two</title><updated>2026-01-01T00:00:00Z</updated><content/></entry>
	  <entry><id>urn:x:3</id><title>Three</title><updated>last week</updated><content/></entry>
	</feed>`
	r := atompmh.NewReader(strings.NewReader(doc), atompmh.ReadOptions{URL: "https://example.org/feed"})
	for {
		e, err := r.Next()
		var bad *atompmh.EntryError
		switch {
		case errors.As(err, &bad):
			fmt.Println("bad:", bad.ID, bad.Rule)
		case err == io.EOF:
			return
		case err != nil:
			log.Fatal(err)
		case e.Kind == atompmh.Deletion:
			fmt.Println("deleted:", e.ID)
		default:
			fmt.Println("there:", e.ID, e.Alternates()[0].Href)
		}
	}
	// Output:
	// there: urn:x:1 https://example.org/records/1.rdf
	// deleted: urn:x:2
	// bad: urn:x:3 4287-date
}

// Write a feed of one document.
func ExampleWriter() {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	w := atompmh.NewWriter(os.Stdout, &atompmh.Feed{
		ID: "urn:x:feed", Title: "Records", Updated: now, Complete: true,
		Metadata: atompmh.Metadata{Authors: []atompmh.Person{{Name: "The library"}}},
	})
	err := w.Entry(&atompmh.Entry{
		Kind: atompmh.Active, ID: "urn:x:1", Title: "One", Updated: now,
		Links: []atompmh.Link{{Rel: "alternate", Href: "https://example.org/1.rdf", Type: "application/rdf+xml", Length: atompmh.NoLength}},
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// <?xml version="1.0" encoding="UTF-8"?>
	// <feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0">
	//  <id>urn:x:feed</id>
	//  <title>Records</title>
	//  <updated>2026-01-02T00:00:00Z</updated>
	//  <author><name>The library</name></author>
	//  <fh:complete/>
	//  <entry>
	//   <id>urn:x:1</id>
	//   <title>One</title>
	//   <updated>2026-01-02T00:00:00Z</updated>
	//   <link rel="alternate" href="https://example.org/1.rdf" type="application/rdf+xml"/>
	//  </entry>
	// </feed>
}
