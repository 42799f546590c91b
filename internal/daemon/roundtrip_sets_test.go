package daemon_test

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// mixed is one set with three Sources of three kinds, and some records that two
// or all of them have.
type mixed struct {
	*relay
	catalogue *fixtures.Provider
	maps      *fixtures.Source
	news      *fixtures.Blog
	pool      pool
	post      string // identifier of a post that the other two have as well
}

// both is a record that the catalogue and the map collection have.
const both = "urn:x-test:both"

func newMixed(t *testing.T, identity string) *mixed {
	m := &mixed{relay: newRelay(t), catalogue: fixtures.Catalogue(nil), maps: fixtures.Maps(nil), news: fixtures.News()}
	first, second, third := httptest.NewServer(m.catalogue), httptest.NewServer(m.maps), httptest.NewServer(m.news)
	for _, s := range []*httptest.Server{first, second, third} {
		t.Cleanup(s.Close)
	}
	m.post = m.news.Posts()[0].GUID()
	for name, id := range map[string]string{"both": both, "post": m.post} {
		m.catalogue.Create(fixtures.Record{Name: name, ID: id, Title: name + " in the catalogue"})
		m.maps.Create(fixtures.Resource{Name: name, ID: id, Title: name + " among the maps"})
	}
	m.pool = pool{identity: identity, segment: 50, sources: []string{
		"atompmh:" + first.URL + fixtures.Subscription, "resourcesync:" + second.URL, "feed:" + third.URL + fixtures.NewsFeed}}
	m.run(m.pool)
	return m
}

// harvestAll harvests the three, in an order.
func (m *mixed) harvestAll(order ...int) {
	m.t.Helper()
	for _, i := range order {
		m.take(m.t, m.bridge.Sources()[i], harvest.Options{})
	}
}

// wantTitle fails unless both protocols tell of a record with this title; "" is
// a deleted one.
func (m *mixed) wantTitle(what, id, want string) {
	m.t.Helper()
	feeds, lists := m.readFeeds(m.t), m.readLists(m.t)
	for how, got := range map[string]recordStates{"feeds": feeds, "lists": lists} {
		if p, there := got[id]; !there || p.alive != (want != "") || p.alive && p.title != want {
			m.t.Errorf("%s: the %s say of %s %s, want the title %q", what, how, id, p.describe(there), want)
		}
	}
}

// A set with three Sources of three kinds: who is first in the configuration
// speaks, and a record goes when the last one that had it has dropped it. A blog
// drops nothing.
func TestA15_ThreeKindsShareRecords(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	order := []int{2, 1, 0}
	m := newMixed(t, config.Shared)
	post := m.news.Posts()[0]
	m.harvestAll(order...)
	set, err := m.bridge.Log.Set(t.Context(), "main")
	// The set has the shared ones once.
	if want := len(m.catalogue.Live()) + len(m.maps.Live()) + len(m.news.Posts()) - 3; err != nil || set.Live != int64(want) {
		t.Fatalf("%d records, %v, want %d", set.Live, err, want)
	}
	m.wantTitle("all have it", m.post, "post in the catalogue")
	m.wantTitle("two have it", both, "both in the catalogue")
	m.catalogue.Delete("post")
	m.catalogue.Delete("both")
	m.harvestAll(order...)
	m.wantTitle("the first has dropped it", m.post, "post among the maps")
	m.wantTitle("the first has dropped it", both, "both among the maps")
	m.catalogue.Recreate(fixtures.Record{Name: "both", Title: "back"})
	m.maps.Delete("post")
	m.maps.Delete("both")
	m.harvestAll(order...)
	m.wantTitle("the blog still has it", m.post, post.Title)
	m.wantTitle("the first has it again", both, "back")
	m.catalogue.Delete("both")
	for i := range m.news.Posts() {
		m.news.Publish(fixtures.Post{Slug: fmt.Sprint("more-", i), Title: "More"}) // the shared one falls off the end
	}
	m.harvestAll(order...)
	m.wantTitle("the last has dropped it", both, "")
	m.wantTitle("a blog drops nothing", m.post, post.Title)
	before := m.last()
	m.harvestAll(order...)
	if after := m.last(); after != before {
		t.Errorf("nothing has changed, and the log has %d more events", after-before)
	}
}

// With identity = "per-source" the first Source's identifiers stay, and the others'
// become urn:uuid of the Source's name and the identifier, everywhere; nothing is
// shared, and each Source deletes its own.
func TestA15_ThreeKindsOfTheirOwn(t *testing.T) {
	testenv.Heavy(t)
	m := newMixed(t, config.PerSource)
	m.harvestAll(0, 1, 2)
	want := map[string]string{} // identifiers at the Sources
	for _, c := range m.catalogue.Live() {
		want[c.ID] = ""
	}
	for _, c := range m.maps.Live() {
		want[ownIdentifier("s1", c.ID)] = c.ID
	}
	for _, p := range m.news.Posts() {
		want[ownIdentifier("s2", p.GUID())] = p.GUID()
	}
	if n := len(m.catalogue.Live()) + len(m.maps.Live()) + len(m.news.Posts()); len(want) != n {
		t.Fatalf("%d identifiers of %d records", len(want), n)
	}
	m.wantIdentifiers(want)
	m.wantTitle("its own", ownIdentifier("s1", both), "both among the maps")
	m.catalogue.Delete("both")
	m.harvestAll(0, 1, 2)
	m.wantTitle("deleted by its Source", both, "")
	m.wantTitle("the other's stays", ownIdentifier("s1", both), "both among the maps")
	m.maps.Delete("both")
	m.harvestAll(2, 1, 0)
	m.wantTitle("deleted by its Source too", ownIdentifier("s1", both), "")
}

// wantIdentifiers compares the identifiers in the log, in the feeds and in the
// lists of what lives.
func (m *mixed) wantIdentifiers(want map[string]string) {
	m.t.Helper()
	got := map[string]string{}
	for _, e := range m.logged(event.Range{Upto: m.last()}) {
		if e.Live() {
			got[e.Record] = e.Origin.SourceIdentifier
		}
	}
	if !maps.Equal(got, want) {
		m.t.Errorf("the log has\n%q\nwant\n%q", got, want)
	}
	ids := slices.Sorted(maps.Keys(want))
	for how, has := range map[string]recordStates{"feeds": m.readFeeds(m.t), "lists": m.readLists(m.t)} {
		var alive []string
		for id, p := range has {
			if p.alive {
				alive = append(alive, id)
			}
		}
		if slices.Sort(alive); !slices.Equal(alive, ids) {
			m.t.Errorf("the %s have\n%q\nwant\n%q", how, alive, ids)
		}
	}
}

// ownIdentifier is the urn:uuid, version 5, in the namespace of URLs (RFC 9562
// 5.5 and 6.6), of a Source's name and an identifier there.
func ownIdentifier(source, id string) string {
	space, _ := hex.DecodeString("6ba7b8119dad11d180b400c04fd430c8") // a constant
	sum := sha1.Sum(append(space, url.QueryEscape(source)+"?"+id...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	h := hex.EncodeToString(sum[:16])
	return "urn:uuid:" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
