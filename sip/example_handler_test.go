package sip_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pmh-bridge/bridge/sip"
)

// archive is an ingest server that takes maps and nothing else. It embeds a nil
// Backend, because it offers no other operation.
type archive struct{ sip.Backend }

func (archive) Admit(context.Context, sip.Caller) error { return nil }

func (archive) GetProperties(context.Context, sip.Caller) (*sip.Properties, error) {
	return &sip.Properties{Style: sip.Synchronous, Formats: []string{"https://example.org/map.xsd"}}, nil
}

func (archive) Ingest(_ context.Context, _ sip.Caller, r *sip.Request) (*sip.Disposition, error) {
	if r.Record.Root.Local != "map" {
		return &sip.Disposition{Source: r.Source, Outcome: sip.Rejected, Reason: "only maps are taken"}, nil
	}
	return &sip.Disposition{Source: r.Source, Outcome: sip.Accepted, AssignedIdentifier: "urn:x:1"}, nil // once r.Record.XML is stored
}

// Serve an ingest server.
func ExampleHandler() {
	mux := http.NewServeMux()
	mux.Handle("/sip", &sip.Handler{Backend: archive{}, Offers: sip.Operations{Ingest: true}, Location: "https://example.org/sip"})
	server := httptest.NewServer(mux) // in a program http.ListenAndServe
	defer server.Close()

	const message = `<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body>
	  <ingest-request xmlns="http://www.alexandria.ucsb.edu"><record><globe xmlns=""/></record></ingest-request>
	</Body></Envelope>`
	resp, err := http.Post(server.URL+"/sip", "text/xml; charset=utf-8", strings.NewReader(message))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer))

	// Output:
	// <?xml version="1.0" encoding="UTF-8"?>
	// <soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><sip:ingest-disposition xmlns:sip="http://www.alexandria.ucsb.edu"><sip:rejected><sip:reason>only maps are taken</sip:reason></sip:rejected></sip:ingest-disposition></soap:Body></soap:Envelope>
}
