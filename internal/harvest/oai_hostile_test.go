package harvest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// What a hostile repository sends is bounded, and reported: records that cannot be taken
// cost themselves, pages that cannot be read the harvest, with few requests; the records
// that came before stay.
func TestHostileRepository(t *testing.T) {
	testenv.Heavy(t)
	many := func(n int, part func(int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(part(i))
		}
		return b.String()
	}
	for _, c := range []struct {
		name, metadata, want string
	}{
		{"deep elements", strings.Repeat("<a>", 100_000) + strings.Repeat("</a>", 100_000), ""},
		{"many attributes", "<a " + many(50_000, func(i int) string { return fmt.Sprintf(`a%d="" `, i) }) + "/>", ""},
		{"many namespaces", "<a " + many(50_000, func(i int) string { return fmt.Sprintf(`xmlns:n%d="urn:%d" `, i, i) }) + "/>", ""},
		{"a long text", "<a>" + strings.Repeat("x", 2<<20) + "</a>", ""},
		{"a document type", `<!DOCTYPE a [<!ENTITY e "eeeeeeee">]><a>&e;</a>`, ""},
		{"a long page", "<a>" + strings.Repeat("<b>x</b>", 1<<18) + "</a>", "longer than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.put("a", "a1")
			a.put("b", "b1")
			a.run()
			a.news()
			requests, bomb := 0, []byte(`<?xml version="1.0"?><OAI-PMH xmlns="http://www.openarchives.org/OAI/2.0/"><responseDate>2026-05-02T00:00:00Z</responseDate><request>http://x</request><ListRecords><record><header><identifier>oai:x:bomb</identifier><datestamp>2026-05-02T00:00:00Z</datestamp></header><metadata>`+
				c.metadata+`</metadata></record></ListRecords></OAI-PMH>`)
			hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests++; r.URL.Query().Get("verb") == "ListRecords" {
					_, _ = w.Write(bomb)
					return
				}
				a.repo.ServeHTTP(w, r)
			}))
			defer hostile.Close()
			a.src.Limits.Document = 1 << 20
			a.src.Client = &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				r = r.Clone(r.Context())
				r.URL.Host = strings.TrimPrefix(hostile.URL, "http://")
				return http.DefaultTransport.RoundTrip(r)
			})}
			r, err := a.try(harvest.Options{})
			took := fmt.Sprint(err, r.Examples)
			if err == nil && r.Quarantined == 0 || !strings.Contains(took, c.want) {
				t.Errorf("%v, %+v", err, r)
			}
			if requests > 25 {
				t.Errorf("%d requests", requests)
			}
			a.want("events", a.news(), "")
		})
	}
}

// Tokens without end are read up to max_documents in each harvest, which says so.
func TestEndlessTokens(t *testing.T) {
	a := newArchive(t, event.Mirror)
	a.repo.Lie(testserver.EndlessTokens)
	a.put("a", "a1")
	a.src.MaxDocuments = 20
	for range 2 {
		r := a.run()
		if r.Documents != 20 || !strings.Contains(r.Gap, "too many documents in one walk") {
			t.Errorf("%+v", r)
		}
	}
}
