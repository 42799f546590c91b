package daemon_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// A Source that names ever more sets gets no more than so many made of it.
func TestDerivedSetsAreLimited(t *testing.T) {
	testenv.Heavy(t)
	const most = 1000
	serve := func(w http.ResponseWriter, r *http.Request) {
		write := func(capability, entries string) {
			fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s"/>%s</urlset>`, capability, entries)
		}
		if r.URL.Path == "/sd" {
			var all strings.Builder
			for i := range 4 {
				fmt.Fprintf(&all, `<url><loc>http://%s/new-%d/cap</loc><rs:md capability="capabilitylist"/></url>`, r.Host, i)
			}
			write("description", all.String())
			return
		}
		write("capabilitylist", fmt.Sprintf(`<url><loc>http://%s%s/../rl</loc><rs:md capability="resourcelist"/></url>`, r.Host, r.URL.Path))
	}
	warned := &testenv.Log{}
	b := newHarnessWith(t, daemon.Options{Logger: slog.New(slog.NewTextHandler(warned, nil))}, http.HandlerFunc(serve), resourceSync, entry("/sd"))
	b.close()
	log, err := eventlog.Open(t.Context(), b.config.Data, eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range most - 2 {
		if _, err := log.DeriveSet(t.Context(), "many", fmt.Sprintf("%s/%d/cap", b.server.URL, i), []string{fmt.Sprintf("many-%d", i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	b.config.Sets[0].Name, b.config.Sets[0].Sources[0].Sets = "many", config.EachSet
	all, err := config.FromArguments(config.Flags{Data: b.config.Data}, []string{"all=set:many"})
	if err != nil {
		t.Fatal(err)
	}
	b.config.Sets = append(b.config.Sets, all.Sets...)
	b.open()
	for _, want := range []int{2, 0} {
		found, err := b.bridge.DeriveSets(t.Context())
		if err != nil || len(found) != want {
			t.Errorf("%d sets were made, want %d: %v", len(found), want, err)
		}
	}
	members := 0
	for _, src := range b.bridge.Sources() {
		if src.Kind == config.KindSet {
			members++
		}
	}
	if members != most {
		t.Errorf("a set of all of them has %d, want %d", members, most)
	}
	if !strings.Contains(warned.String(), "more sets than are made of one template, 1000") {
		t.Errorf("it says %s", warned)
	}
}

// A set of a template that could not be opened when it was found, as on a full disk, is opened
// the next time that the Source is asked for its sets.
func TestDerivedSetIsOpenedLater(t *testing.T) {
	t.Parallel()
	serve := func(w http.ResponseWriter, r *http.Request) {
		write := func(capability, entry string) {
			fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="%s"/>%s</urlset>`, capability, entry)
		}
		if r.URL.Path == "/sd" {
			write("description", fmt.Sprintf(`<url><loc>http://%s/maps/cap</loc><rs:md capability="capabilitylist"/></url>`, r.Host))
			return
		}
		write("capabilitylist", fmt.Sprintf(`<url><loc>http://%s/maps/rl</loc><rs:md capability="resourcelist"/></url>`, r.Host))
	}
	b := newHarnessWith(t, daemon.Options{}, http.HandlerFunc(serve), resourceSync, entry("/sd"), func(c *config.Config) {
		c.Sets[0].Name, c.Sets[0].Sources[0].Sets = "many", config.EachSet
	})
	log := filepath.Join(b.config.Data, "log.db")
	tamper(t, log, "CREATE TRIGGER broken BEFORE INSERT ON sets BEGIN SELECT RAISE(ABORT, 'the disk is on fire'); END")
	if found, err := b.bridge.DeriveSets(t.Context()); err == nil || len(found) > 0 {
		t.Fatalf("%d sets are opened, %v", len(found), err)
	}
	tamper(t, log, "DROP TRIGGER broken")
	for _, want := range []int{1, 0} {
		found, err := b.bridge.DeriveSets(t.Context())
		if err != nil || len(found) != want {
			t.Errorf("%d sets are opened, want %d: %v", len(found), want, err)
		}
	}
	if n := len(b.bridge.Sources()); n != 1 {
		t.Errorf("%d Sources are harvested, want 1", n)
	}
}
