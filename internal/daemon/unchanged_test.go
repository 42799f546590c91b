package daemon_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// D151: a Source without validators answers with all that it has each time. Where
// nothing has changed but the time nothing is written.
func TestD151_UnchangedWithoutValidators(t *testing.T) {
	provider := func(complete bool) http.Handler {
		p := fixtures.New(fixtures.Options{Complete: complete, PerArchive: 3})
		for i := range 8 {
			p.Create(record(fmt.Sprintf("r%d", i)))
		}
		return p
	}
	lists := func(changes fixtures.ChangeLists) http.Handler {
		s := fixtures.NewSource(fixtures.SourceOptions{ChangeLists: changes})
		for i := range 5 {
			s.Create(fixtures.Resource{Name: fmt.Sprintf("r%d.txt", i), Type: "text/plain", Body: []byte("x")})
		}
		return s
	}
	for _, c := range []struct {
		name, source string
		origin       http.Handler
	}{
		{"an Atom-PMH feed", "atompmh:/feed.atom", provider(false)},
		{"a complete feed", "atompmh:/feed.atom", provider(true)},
		{"lists", "resourcesync:" + fixtures.CapabilityList, lists(fixtures.IndexedChangeLists)},
		{"a Resource List alone", "resourcesync:" + fixtures.CapabilityList, lists(fixtures.NoChangeLists)},
		{"a legacy feed that says when it was asked", "feed:/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `<rss version="2.0"><channel><title>t</title><lastBuildDate>%s</lastBuildDate><item><guid>a</guid><title>a</title><link>http://h.example/a</link></item></channel></rss>`,
				time.Now().Format(time.RFC1123Z))
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newHarness(t, withoutValidators(c.origin), func(cfg *config.Config) {
				src := &cfg.Sets[0].Sources[0]
				kind, path, _ := strings.Cut(c.source, ":")
				src.Kind, src.URL = kind, strings.TrimSuffix(src.URL, "/feed.atom")+path
				cfg.Sets[0].Content = config.Reference
			})
			if r := b.harvest(); r.Created == 0 {
				t.Fatalf("%+v", r)
			}
			b.harvest() // may learn something of the Source
			before := b.commits()
			for range 5 {
				if r := b.harvest(); r.NotModified || r.Entries == 0 || r.Events() > 0 || r.Partial() {
					t.Fatalf("it was not read, or is not the same: %+v", r)
				}
			}
			if after := b.commits(); after != before {
				t.Errorf("5 harvests without a change took %d transactions", after-before)
			}
			if r, err := b.try(harvest.Options{Full: true}); err != nil || r.Events() > 0 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// commits counts the transactions that have changed the log.
func (b *harness) commits() (n int64) {
	b.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.config.Data, eventlog.FileName)+"?mode=ro")
	if err != nil {
		b.t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(b.t.Context(), "SELECT commits FROM log").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// withoutValidators serves like another handler, but never says whether something
// has changed.
func withoutValidators(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("If-None-Match")
		r.Header.Del("If-Modified-Since")
		h.ServeHTTP(&unvalidated{ResponseWriter: w}, r)
	})
}

type unvalidated struct {
	http.ResponseWriter
}

func (u *unvalidated) WriteHeader(status int) {
	u.Header().Del("ETag")
	u.Header().Del("Last-Modified")
	u.ResponseWriter.WriteHeader(status)
}

func (u *unvalidated) Write(b []byte) (int, error) {
	u.Header().Del("ETag")
	u.Header().Del("Last-Modified")
	return u.ResponseWriter.Write(b)
}
