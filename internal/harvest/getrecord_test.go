package harvest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// A record that does not exist in one of the further formats goes without it, whether the
// repository says so with an error or with a header alone, as EPrints does; and nothing
// waits for it.
func TestFurtherFormats(t *testing.T) {
	for name, lies := range map[string][]testserver.Lie{"honest": nil, "header alone": {testserver.HeaderForFormat}} {
		t.Run(name, func(t *testing.T) {
			a := newArchive(t, event.Mirror)
			a.repo.Formats = append(a.repo.Formats, testserver.ItemFormat{Prefix: "mods", Schema: "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd", Namespace: "http://www.loc.gov/mods/v3"})
			a.repo.Lie(lies...)
			a.src.Repository = harvest.Repository{Also: []string{"mods"}}
			a.put("1", "One")
			a.repo.Put(testserver.Item{Identifier: "oai:x:2", Metadata: map[string]string{"oai_dc": testserver.DublinCore("Two"),
				"mods": `<mods xmlns="http://www.loc.gov/mods/v3"><titleInfo><title>Two</title></titleInfo></mods>`}})
			if r := a.run(); r.Created != 2 || r.Partial() {
				t.Errorf("%+v", r)
			}
			said, err := a.log.SourceRecordsOf(context.Background(), a.src.ID, []string{"oai:x:1", "oai:x:2"})
			a.must(err)
			for i, want := range []string{"oai_dc", "oai_dc mods"} {
				var got []string
				for _, rep := range said[i].Observation.Representations {
					_, prefix, _ := strings.Cut(rep.Href, "metadataPrefix=")
					got = append(got, prefix)
				}
				a.want("formats of record", strings.Join(got, " "), want)
			}
		})
	}
}
