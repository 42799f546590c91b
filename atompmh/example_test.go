package atompmh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
)

func ExampleReader() {
	const doc = `<feed xmlns="http://www.w3.org/2005/Atom">
	  <id>urn:x:feed</id><title>Records</title><updated>2026-01-02T00:00:00Z</updated>
	  <entry><id>urn:x:1</id><title>One</title><updated>2026-01-02T00:00:00Z</updated>
	    <link type="application/rdf+xml" href="records/1.rdf"/></entry>
	  <entry><id>urn:x:2</id><title>Two</title><updated>2026-01-01T00:00:00Z</updated><content/></entry>
	  <entry><id>urn:x:3</id><title>Three</title><updated>last week</updated><content/></entry>
	</feed>`
	r := atompmh.NewReader(strings.NewReader(doc), atompmh.Options{URL: "https://example.org/feed"})
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

func ExampleWalk() {
	walk := atompmh.Walk{URL: "https://example.org/feed"}
	for d, err := range walk.Documents(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.URL)
	}
}
