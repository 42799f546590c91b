package harvest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// A change with a datetime in the far future does not make a list, whose other changes are too few
// to show its order, one that begins with the newest. A list of a clock that is a little ahead is one.
func TestChangeInTheFarFuture(t *testing.T) {
	ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, tt := range []struct {
		name    string
		changes []string
		news    string
	}{
		{"a deletion behind it", []string{"/a created 2099-02-01T00:00:00Z", "/a deleted 2026-02-02T00:00:00Z"}, "deleted /a"},
		{"two at the same time behind it", []string{"/a created 2099-02-01T00:00:00Z", "/a deleted 2026-02-02T00:00:00Z", "/b created 2026-02-02T00:00:00Z"}, "created /b, deleted /a"},
		{"the newest first behind it", []string{"/a created 2099-02-01T00:00:00Z", "/b created 2026-02-03T00:00:00Z", "/b deleted 2026-02-02T00:00:00Z"}, "created /b"},
		{"a clock that is ahead", []string{"/b created " + ahead, "/b deleted 2026-02-03T00:00:00Z"}, "created /b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newShelf(t, t.TempDir(), event.Redirect)
			var list string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, list)
			}))
			t.Cleanup(server.Close)
			put := func(changes ...string) {
				var b strings.Builder
				b.WriteString(`<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="changelist" from="2026-01-01T00:00:00Z"/>`)
				for _, c := range changes {
					f := strings.Fields(c)
					fmt.Fprintf(&b, `<url><loc>%s%s</loc><rs:md change="%s" datetime="%s" type="text/html"/></url>`, server.URL, f[0], f[1], f[2])
				}
				list = b.String() + "</urlset>"
			}
			s.from(harvest.ResourceSync, server.URL+"/cl", server.Client())
			put("/a created 2099-02-01T00:00:00Z")
			s.run()
			s.news()
			put(tt.changes...)
			s.run()
			if got := strings.ReplaceAll(s.news(), server.URL, ""); got != tt.news {
				t.Errorf("%q, want %q", got, tt.news)
			}
		})
	}
}
