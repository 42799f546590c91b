package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
)

// setsSource is a Source with a set of resources for each letter, and a resource in each.
// A letter in upper case has other content.
type setsSource struct{ letters atomic.Pointer[string] }

func (s *setsSource) set(letters string) { s.letters.Store(&letters) }

func (s *setsSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	base, letters := "http://"+r.Host, *s.letters.Load()
	write := func(md string, entries string) {
		fmt.Fprintf(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md %s/>%s</urlset>`, md, entries)
	}
	letter := r.URL.Path[len(r.URL.Path)-1:]
	there := strings.Contains(strings.ToLower(letters), letter)
	switch kind := strings.TrimSuffix(r.URL.Path, letter); {
	case r.URL.Path == "/sd":
		var all strings.Builder
		for _, l := range strings.ToLower(letters) {
			fmt.Fprintf(&all, `<url><loc>%s/cap/%c</loc><rs:md capability="capabilitylist"/></url>`, base, l)
		}
		write(`capability="description"`, all.String())
	case kind == "/cap/" && there:
		write(`capability="capabilitylist"`, fmt.Sprintf(`<url><loc>%s/rl/%s</loc><rs:md capability="resourcelist"/></url>`, base, letter))
	case kind == "/rl/" && there:
		hash := strings.Repeat("0", 32)
		if strings.Contains(letters, strings.ToUpper(letter)) {
			hash = strings.Repeat("1", 32)
		}
		write(fmt.Sprintf(`capability="resourcelist" at="%s"`, auditDay(2)), fmt.Sprintf(`<url><loc>%s/res/%s</loc><rs:md hash="md5:%s"/></url>`, base, letter, hash))
	case kind == "/res/" && there:
		fmt.Fprint(w, letter)
	default:
		http.NotFound(w, r)
	}
}

// The sets of a Source keep their numbers in an audit, also when the first one is gone: a
// repair places a record in its own set. One in a set that no harvest knows is left.
func TestAuditKeepsNumbersOfSets(t *testing.T) {
	s := &setsSource{}
	s.set("ab")
	b := newHarness(t, s, resourceSync, entry("/sd"), func(c *config.Config) { c.Sets[0].Content = config.Reference })
	b.quick()
	if r := b.harvest(); r.Created != 2 {
		t.Fatalf("%+v", r)
	}
	part := func() int {
		said, err := b.bridge.Log.SourceRecordsOf(t.Context(), b.source().ID, []string{b.server.URL + "/res/b"})
		if err != nil {
			t.Fatal(err)
		}
		return said[0].Observation.Place.Part
	}
	if part() != 1 {
		t.Fatalf("b is in set %d", part())
	}
	s.set("Bc")
	found, _ := b.audit(true)
	b.want("it finds", found, "extra a done", "hash b done", "missing c it is in a set of resources of the Source that no harvest has met: harvest the Source")
	if part() != 1 {
		t.Errorf("after the repair b is in set %d", part())
	}
}
