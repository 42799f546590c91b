package validate

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
)

// The example providers conform to what they say they are.
func TestFixtures(t *testing.T) {
	maps := func(d fixtures.Dialect) http.Handler {
		s := fixtures.NewSource(fixtures.SourceOptions{Dialect: d})
		for _, name := range []string{"a", "b", "c"} {
			s.Create(fixtures.Resource{Name: name})
		}
		s.Update(fixtures.Resource{Name: "b"})
		if d != fixtures.PlainSitemap {
			s.Delete("c")
		}
		return s
	}
	for name, c := range map[string]struct {
		provider  http.Handler
		path      string
		documents int
	}{
		"catalogue":   {fixtures.Catalogue(nil), fixtures.Subscription, 4},
		"instruments": {fixtures.Instruments(nil), fixtures.Subscription, 1},
		"maps":        {fixtures.Maps(nil), "", 6},
		"1.0":         {maps(fixtures.ResourceSync10), "", 4},
		"0.9.1":       {maps(fixtures.ResourceSync091), "", 4},
		"2013 beta":   {maps(fixtures.Beta2013), fixtures.CapabilityList, 3},
		"sitemap":     {maps(fixtures.PlainSitemap), "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.provider)
			defer server.Close()
			findings, sum := check(t, Options{Follow: true}, server.URL+c.path)
			for _, f := range findings {
				if f.Severity == Must || f.Severity == Unread {
					t.Error(f)
				}
			}
			if sum.Documents < c.documents {
				t.Errorf("%+v", sum)
			}
		})
	}
}
