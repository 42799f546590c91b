package oaipmh

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func identifyAnswer(base string) string {
	return `<?xml version="1.0" encoding="UTF-8"?>
<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-10T00:00:00Z</responseDate><request verb="Identify">` + base + `</request>
<Identify><repositoryName>R</repositoryName><baseURL>` + base + `</baseURL><protocolVersion>2.0</protocolVersion><adminEmail>a@b.c</adminEmail>
<earliestDatestamp>2020-01-01T00:00:00Z</earliestDatestamp><deletedRecord>persistent</deletedRecord><granularity>YYYY-MM-DDThh:mm:ssZ</granularity></Identify></OAI-PMH>`
}

func TestWalkPlain(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		switch {
		case r.FormValue("verb") == "Identify":
			fmt.Fprint(w, identifyAnswer("http://"+r.Host+"/oai"))
		case r.FormValue("from") != "":
			fmt.Fprint(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-01-03T00:00:00Z</responseDate><request/><error code="noRecordsMatch"/></OAI-PMH>`)
		default:
			token := `<resumptionToken>a&amp;b +%</resumptionToken>`
			n := 1
			if r.FormValue("resumptionToken") != "" {
				token, n = "<resumptionToken/>", 2
			}
			fmt.Fprintf(w, `<OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/" xmlns:dc="urn:dc"><responseDate>2026-01-02T00:00:00Z</responseDate><request/><ListRecords>
<record><header><identifier>oai:x:%d</identifier><datestamp>2025-01-01T00:00:00Z</datestamp><setSpec>a:b</setSpec></header><metadata><dc:a>x</dc:a></metadata></record>%s</ListRecords></OAI-PMH>`, n, token)
		}
	}))
	defer s.Close()
	w := Walk{Client: s.Client(), URL: s.URL + "/oai?verb=Identify", Report: func(p Problem) { t.Log(p) }}
	var got []string
	for range 2 {
		for doc, err := range w.Documents(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			for rec, bad := range doc.Entries() {
				if bad != nil {
					t.Fatal(bad)
				}
				got = append(got, rec.Identifier, string(rec.Metadata))
			}
			if _, ok := doc.State(); !ok {
				t.Fatal("no state")
			}
		}
		w.State = w.Result().State
	}
	if want := `[oai:x:1 <dc:a xmlns:dc="urn:dc">x</dc:a> oai:x:2 <dc:a xmlns:dc="urn:dc">x</dc:a>]`; fmt.Sprint(got) != want {
		t.Error(got)
	}
	if r := w.Result(); !r.Whole || !r.Empty || r.Identity == nil {
		t.Errorf("%+v", r)
	}
	want := []string{"verb=Identify", "verb=ListRecords&metadataPrefix=oai_dc", "verb=ListRecords&resumptionToken=a%26b%20%2B%25",
		"verb=Identify", "verb=ListRecords&metadataPrefix=oai_dc&from=2026-01-09T23:59:59Z"}
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked %q", asked)
	}
}
