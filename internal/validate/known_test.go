package validate

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files and docs/conformance.md anew")

// The examples of the specifications and documents of other people's software give known
// results.
func TestKnownDocuments(t *testing.T) {
	for name, pattern := range map[string]string{
		"atom-pmh":     "../../atompmh/testdata/draft/*",
		"resourcesync": "../../resourcesync/testdata/examples/*",
		"considered":   "../../resourcesync/testdata/considered/*",
		"oai-pmh":      "../../oaipmh/testdata/golden/*.xml",
		"sip":          "../../sip/testdata/*.xml",
		"samples":      "../../../shared/samples/*/*",
	} {
		t.Run(name, func(t *testing.T) {
			files, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			if len(files) == 0 {
				if name == "samples" {
					t.Skip("the folder of samples is not there")
				}
				t.Fatalf("no file %s", pattern)
			}
			var got strings.Builder
			for _, file := range files {
				count, kind := map[string]int{}, "not checked"
				findings, _ := check(t, Options{Base: "http://example.org/dir/document", Checked: func(d Document) { kind = d.Kind }}, file)
				for _, f := range findings {
					count[strings.TrimSpace(f.Severity+" "+f.Rule)] += max(f.More, 1)
				}
				fmt.Fprintf(&got, "%s: %s\n", filepath.Base(file), kind)
				for _, rule := range slices.Sorted(maps.Keys(count)) {
					fmt.Fprintf(&got, "    %s: %d\n", rule, count[rule])
				}
			}
			testenv.Golden(t, *update, "testdata/known-"+name+".golden", []byte(got.String()))
		})
	}
}

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
