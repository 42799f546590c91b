package harvest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// A record may name any number of mirrors. The best of them are asked for, so that one record
// does not keep all others of its Source waiting.
func TestMirrorsOfARecordAreBounded(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	s := newShelf(t, t.TempDir(), event.Mirror)
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/list":
			var links strings.Builder
			for n := range 1000 {
				fmt.Fprintf(&links, `<rs:ln rel="duplicate" pri="%d" href="%s/m/%d"/>`, n+1, server.URL, n)
			}
			_, _ = fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="resourcelist" at="2026-01-01T00:00:00Z"/>`+
				`<url><loc>%s/a</loc>%s</url><url><loc>%[1]s/b</loc><rs:ln rel="duplicate" href="%[1]s/m/0"/><rs:ln rel="duplicate" href="%[1]s/good"/></url></urlset>`, server.URL, &links)
		case "/good":
			_, _ = fmt.Fprint(w, "good")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.src.Kind, s.src.URL, s.src.Client, s.src.Selection.PublicURL = harvest.ResourceSync, server.URL+"/list", server.Client(), ""
	var err error
	s.src.ID, err = s.log.EnsureSource(context.Background(), "main", s.src.Kind, s.src.URL, 0)
	s.must(err)
	s.run()
	if news := s.news(); !strings.Contains(news, "/b") || strings.Contains(news, "/a") {
		t.Errorf("events %s", news)
	}
	mu.Lock()
	defer mu.Unlock()
	mirrors := 0
	for path, n := range asked {
		if strings.HasPrefix(path, "/m/") {
			mirrors += n
		}
	}
	if mirrors > 50 || asked["/m/9"] == 0 {
		t.Errorf("asked %d times for mirrors, and %d times for the tenth best", mirrors, asked["/m/9"])
	}
}
