package resourcesync

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
)

// What a Source of another hand publishes is read without a complaint, in each
// dialect, and the dialect is known where the markup shows it.
func TestFixtures(t *testing.T) {
	const changeList = "/changelist/1.xml"
	for dialect, want := range map[fixtures.Dialect]map[string]Dialect{
		fixtures.ResourceSync11: {fixtures.SourceDescription: Dialect11, fixtures.CapabilityList: Dialect11, fixtures.ResourceList: Dialect11,
			fixtures.ChangeListIndex: Dialect11, changeList: Dialect11},
		fixtures.ResourceSync10:  {fixtures.CapabilityList: Dialect11, changeList: Dialect10},
		fixtures.ResourceSync091: {fixtures.SourceDescription: Dialect091, fixtures.CapabilityList: Dialect11, changeList: Dialect10},
		fixtures.Beta2013: {fixtures.SourceDescription: DialectBeta, fixtures.CapabilityList: DialectBeta, fixtures.ResourceList: DialectBeta,
			fixtures.ChangeListIndex: DialectBeta, changeList: DialectBeta},
		fixtures.PlainSitemap: {fixtures.Sitemap: DialectSitemap},
	} {
		s := fixtures.NewSource(fixtures.SourceOptions{Dialect: dialect, Carry: true})
		for _, name := range []string{"a", "b"} {
			s.Create(fixtures.Resource{Name: name})
		}
		s.Delete("a")
		for path, want := range want {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil))
			if w.Code != http.StatusOK {
				t.Errorf("%s: %s: %d", dialect, path, w.Code)
				continue
			}
			rules := ""
			if want == Dialect10 {
				rules = ruleDatetime
			}
			if got := readAll(t, w.Body.Bytes()); got.doc.Dialect != want || len(got.doc.Entries) == 0 || len(got.bad) > 0 || got.rules() != rules {
				t.Errorf("%s: %s is %s with %d entries: %v %v", dialect, path, got.doc.Dialect, len(got.doc.Entries), got.bad, got.problems)
			}
		}
	}
}
