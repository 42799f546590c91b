package daemon_test

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// sipCycle is two bridges in a cycle: a ResourceSync Source and an Atom-PMH feed are
// followed by bridge one, whose set main is submitted to bridge two, a library;
// what two accepts goes into one's set kept, and is published by two.
type sipCycle struct {
	t                  *testing.T
	maps               *fixtures.Source
	papers             *fixtures.Provider
	mapsURL, papersURL string
	one, two           *sipBridge
}

// The library wants a name and a title of its records.
const recordSchema = `<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="record"><xs:complexType><xs:sequence>
<xs:element name="name" type="xs:string"/><xs:element name="title" type="xs:string"/><xs:element name="version" type="xs:int" minOccurs="0"/>
</xs:sequence></xs:complexType></xs:element></xs:schema>`

const sipCycleFormats = `formats = { "record" = "http://schemas.example/record.xsd", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF" = "http://schemas.example/rdf.xsd"`

func newSIPCycle(t *testing.T) *sipCycle {
	testenv.Need(t, "xmllint", "libxml2-utils")
	c := &sipCycle{t: t, maps: fixtures.NewSource(fixtures.SourceOptions{Carry: true}), papers: fixtures.New(fixtures.Options{PerArchive: 3})}
	mapsServer, papersServer := httptest.NewServer(c.maps), httptest.NewServer(c.papers)
	t.Cleanup(mapsServer.Close)
	t.Cleanup(papersServer.Close)
	c.mapsURL, c.papersURL = mapsServer.URL, papersServer.URL
	c.maps.SetBase(mapsServer.URL)
	c.papers.SetBase(papersServer.URL)
	for i := range 4 {
		c.maps.Create(fixtures.Resource{Name: fmt.Sprint("map-", i), ID: []string{"", "urn:map:" + fmt.Sprint(i)}[i%2], Title: fmt.Sprint("Map ", i)})
		c.papers.Create(fixtures.Record{Name: fmt.Sprint("paper-", i), Title: fmt.Sprint("Paper ", i), Formats: []fixtures.Format{fixtures.RDF()}})
	}
	c.maps.Create(fixtures.Resource{Name: "untitled", Body: []byte("<record><name>untitled</name></record>")})
	c.maps.Create(fixtures.Resource{Name: "broken", Body: []byte("<record><name>broken</name>")})
	c.maps.Create(fixtures.Resource{Name: "table", Type: "text/csv", Body: []byte("a,b\n")})
	c.papers.Create(fixtures.Record{Name: "entry", Formats: []fixtures.Format{fixtures.Atom()}})
	c.papers.Create(fixtures.Record{Name: "registered", Formats: []fixtures.Format{fixtures.RIFCS()}})
	c.papers.Create(fixtures.Record{Name: "both", Formats: []fixtures.Format{fixtures.Atom(), fixtures.RDF()}})

	schema := filepath.Join(t.TempDir(), "record.xsd")
	if err := os.WriteFile(schema, []byte(recordSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	c.two = newSIPBridge(t, "allow_hosts = [\"127.0.0.1\"]\n"+sipSet("main", `mode = "library"`, sipCycleFormats+" }",
		fmt.Sprintf(`schemas = { "http://schemas.example/record.xsd" = %q }`, schema)))
	c.one = newSIPBridge(t, fmt.Sprintf(`
[[set]]
name = "main"
segment_events = 4
prefer = ["application/rdf+xml"]
[[set.source]]
kind = "resourcesync"
url = %q
overlap = "0s"
[[set.source]]
kind = "atompmh"
url = %q
overlap = "0s"
[[set.submit]]
url = %q
import_accepted_to = "kept"
submitter_name = "Ann"
submitter_email = "ann@one.example"
%s, "{http://www.w3.org/2005/Atom}entry" = "http://schemas.example/atom.xsd" }
`, mapsServer.URL+fixtures.CapabilityList, papersServer.URL+fixtures.Subscription, c.two.base+"/sip/main", sipCycleFormats)+sipSet("kept"))
	return c
}

// harvest has bridge one look at both Sources.
func (c *sipCycle) harvest() {
	c.t.Helper()
	for _, s := range c.one.bridge.Sources() {
		var err error
		for range 100 { // serve looks too, and who comes second begins anew
			if s.Kind == config.KindSIP {
				break
			}
			if _, err = c.one.bridge.Harvest(c.t.Context(), s, harvest.Options{}); err == nil {
				break
			}
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// submitted returns the newest submission of each record of set main, once
// nothing is under way any more.
func (c *sipCycle) submitted() map[string]submission.Submission {
	c.t.Helper()
	newest := map[string]submission.Submission{}
	var missing string
	defer func() {
		if c.t.Failed() {
			c.t.Log("not submitted: ", missing)
		}
	}()
	eventually(c.t, "all is submitted", func() bool {
		missing = ""
		all, err := c.one.bridge.SIP.Submissions(context.Background(), submission.Query{Set: "main"})
		if err != nil {
			c.t.Fatal(err)
		}
		clear(newest)
		for i := range all {
			newest[all[i].Record] = all[i]
			if !all[i].State.Final() && all[i].State != submission.StateUnsent {
				missing = all[i].Record
			}
		}
		for _, ev := range c.one.logged(allAfter(0)) {
			if ev.Kind != event.Rejected && newest[ev.Record].Seq < ev.Seq {
				missing = ev.Record
			}
		}
		return missing == ""
	})
	return newest
}

// called is what the Sources call a record.
func (c *sipCycle) called(id string) string {
	for _, ch := range c.maps.History() {
		if ch.ID == id {
			return ch.Name
		}
	}
	for _, ch := range c.papers.History() {
		if ch.ID == id {
			return ch.Name
		}
	}
	c.t.Fatalf("no Source has a record %q", id)
	return ""
}

// wantStates fails unless just these submissions are the newest of their records:
// "name state", and what its reason must hold after a colon.
func (c *sipCycle) wantStates(submitted map[string]submission.Submission, want ...string) {
	c.t.Helper()
	got := map[string]string{}
	for id, s := range submitted {
		got[c.called(id)+" "+s.State.String()] = s.Reason
	}
	for _, w := range want {
		key, reason, _ := strings.Cut(w, ": ")
		if has, ok := got[key]; !ok || !strings.Contains(has, reason) || has != "" && reason == "" {
			c.t.Errorf("want %s, and the newest submissions are %q", w, got)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		c.t.Errorf("there are %q too", got)
	}
}

// original is a record as its Source serves it.
type original struct{ url, body string }

// original returns that of a live record.
func (c *sipCycle) original(name string) original {
	c.t.Helper()
	url := ""
	for _, ch := range c.maps.Live() {
		if ch.Name == name {
			url = c.mapsURL + ch.Loc
		}
	}
	for _, ch := range c.papers.Live() {
		for _, a := range ch.Alternates {
			if ch.Name == name && a.Type == fixtures.RDF().Type {
				url = c.papersURL + a.Href
			}
		}
	}
	if url == "" {
		c.t.Fatalf("no Source has a live record %q", name)
	}
	return original{url, string(c.two.get(url).body)}
}

// element returns the root element of a document of the Sources alone, which is
// what a request has room for.
func element(document string) string {
	if _, rest, ok := strings.Cut(document, "?>"); ok {
		document = rest
	}
	return strings.TrimSpace(document)
}

// published reads what a set publishes: its records by their identifiers, with
// what each is served as and where its original is. Change Lists and Resource
// List must agree, and the Change Lists have every event but the rejections.
func (h *sipBridge) published(set string) map[string]original {
	h.t.Helper()
	r := &relay{harness: h.harness}
	read := func(e *carryingEntry) original {
		via := linked(e.Links, "via")
		served := h.get(e.Loc)
		if len(via) > 1 || "sha-256:"+served.sum() != e.Meta.Hash {
			h.t.Errorf("set %s: %+v is served as %q", set, e, served.body)
			return original{}
		}
		if len(via) == 0 { // D23: it was handed in here
			return original{"", string(served.body)}
		}
		return original{via[0].Href, string(served.body)}
	}
	last := map[string]carryingEntry{}
	var changes []string
	for _, list := range h.list(h.base+"/sets/"+set+"/changelist-index.xml", "sitemapindex", "changelist").Maps {
		for _, e := range r.entries(h.t, list.Loc) {
			changes = append(changes, e.Meta.Change+" "+e.record())
			last[e.record()] = e
		}
	}
	events := slices.DeleteFunc(h.told(set), func(s string) bool { return strings.HasPrefix(s, "rejected") })
	h.want("the Change Lists of set "+set, changes, events...)
	records := map[string]original{}
	for id, e := range last {
		if e.Meta.Change != "deleted" {
			records[id] = read(&e)
		}
	}
	listed := map[string]original{}
	for _, e := range r.entries(h.t, h.base+"/sets/"+set+"/resourcelist.xml") {
		listed[e.record()] = read(&e)
	}
	if !maps.Equal(records, listed) {
		h.t.Errorf("set %s: the Change Lists come to\n%q\nthe Resource List has\n%q", set, records, listed)
	}
	return records
}

// wantPublished fails unless the library lists just the records that it has
// accepted, and set kept too, each under the one identifier that was assigned to
// it and in the form that was accepted last. The names are the Sources'.
func (c *sipCycle) wantPublished(accepted map[string]original) {
	c.t.Helper()
	all, err := c.one.bridge.SIP.Submissions(context.Background(), submission.Query{Set: "main", States: []submission.State{submission.StateAccepted}})
	if err != nil {
		c.t.Fatal(err)
	}
	assigned, submitter := map[string]string{}, map[string]string{}
	for i := range all {
		name := c.called(all[i].Record)
		if was := assigned[name]; was != "" && was != all[i].Assigned {
			c.t.Errorf("%s was accepted as %s and as %s", name, was, all[i].Assigned)
		}
		assigned[name] = all[i].Assigned
		if strings.HasPrefix(all[i].Record, "http") { // D23: the submitter's URL
			submitter[name] = all[i].Record
		}
	}
	published, kept := map[string]original{}, map[string]original{}
	for name, o := range accepted {
		published[assigned[name]] = original{submitter[name], element(o.body)}
		kept[assigned[name]] = o
	}
	if got := c.two.published("main"); !maps.Equal(got, published) || len(assigned) != len(accepted) {
		c.t.Errorf("the library publishes\n%q\nand has accepted\n%q", got, published)
	}
	c.one.kept()
	if got := c.one.published("kept"); !maps.Equal(got, kept) {
		c.t.Errorf("set kept is\n%q, want\n%q", got, kept)
	}
}

// rejections are the rejected events of set main, by what the Source calls the
// record; the library tells the same of each.
func (c *sipCycle) rejections() []string {
	c.t.Helper()
	var here, there []string
	for _, ev := range c.one.logged(allAfter(0)) {
		if ev.Kind == event.Rejected {
			here = append(here, c.called(ev.Record)+": "+ev.Origin.Reason)
		}
	}
	for _, ev := range c.two.logged(allAfter(0)) {
		if ev.Kind == event.Rejected {
			there = append(there, c.called(ev.Origin.SourceIdentifier)+": "+ev.Origin.Reason)
		}
	}
	slices.Sort(here)
	slices.Sort(there)
	c.one.want("what is rejected at both ends", here, there...)
	for i := range here {
		here[i], _, _ = strings.Cut(here[i], ":")
	}
	return here
}

// TestSIPCycle: what two Sources publish is submitted to a library, and comes
// back as what it has accepted.
func TestSIPCycle(t *testing.T) {
	testenv.Heavy(t)
	c := newSIPCycle(t)
	c.harvest()
	c.wantStates(c.submitted(), "map-0 accepted", "map-1 accepted", "map-2 accepted", "map-3 accepted",
		"paper-0 accepted", "paper-1 accepted", "paper-2 accepted", "paper-3 accepted", "both accepted",
		"untitled rejected: title", "broken unsent: the record cannot be read", "table unsent: no representation of it is XML",
		"entry unsent: does not accept the format http://schemas.example/atom.xsd", "registered unsent: its format is not known")
	accepted := map[string]original{}
	for _, name := range []string{"map-0", "map-1", "map-2", "map-3", "paper-0", "paper-1", "paper-2", "paper-3", "both"} {
		accepted[name] = c.original(name)
	}
	c.wantPublished(accepted)
	c.one.want("the rejections", c.rejections(), "untitled")
	c.one.shows("main", "the record cannot be read", "no representation of it is XML", "does not accept the format", "its format is not known", "rejected")
	c.two.shows("main", "rejected", "title")
	third := c.third()

	// Everything moves on.
	before := c.two.last()
	c.maps.Update(fixtures.Resource{Name: "map-0", Title: "Map 0, second edition"})
	c.maps.Update(fixtures.Resource{Name: "untitled", Body: []byte("<record><name>untitled</name><title>found</title></record>")})
	c.maps.Update(fixtures.Resource{Name: "map-1", Body: []byte("<record><title>upside down</title></record>")})
	c.maps.Delete("map-2")
	c.maps.Delete("table")
	c.papers.Update(fixtures.Record{Name: "paper-0", Summary: "revised"})
	c.papers.Touch("paper-1")
	c.papers.Delete("paper-2")
	c.papers.Bury("paper-3")
	c.maps.Create(fixtures.Resource{Name: "map-4"})
	c.papers.Create(fixtures.Record{Name: "paper-4", Formats: []fixtures.Format{fixtures.RDF()}})
	c.harvest()
	c.wantStates(c.submitted(), "map-0 accepted", "map-1 rejected: title", "map-2 unsent: a deletion: SIP has none", "map-3 accepted", "map-4 accepted",
		"paper-0 accepted", "paper-1 accepted", "paper-2 unsent: a deletion: SIP has none", "paper-3 unsent: a deletion: SIP has none", "paper-4 accepted", "both accepted",
		"untitled accepted", "broken unsent: the record cannot be read", "table unsent: a deletion: SIP has none",
		"entry unsent: does not accept the format", "registered unsent: its format is not known")
	// The library keeps what was deleted, and what was accepted of what it rejects
	// now.
	for _, name := range []string{"map-0", "map-4", "untitled", "paper-0", "paper-1", "paper-4"} {
		accepted[name] = c.original(name)
	}
	c.wantPublished(accepted)
	c.one.want("the rejections", c.rejections(), "map-1", "untitled")
	var kinds []string
	for _, ev := range c.two.logged(event.Range{After: before, Upto: c.two.last()}) {
		kinds = append(kinds, ev.Kind.String()+" "+c.called(ev.Origin.SourceIdentifier))
	}
	slices.Sort(kinds)
	c.two.want("what happened at the library", kinds, "created map-4", "created paper-4", "created untitled", "rejected map-1", "updated map-0", "updated paper-0")
	c.one.shows("main", "a deletion: SIP has none")

	third()
	c.restarted()
	c.wantPublished(accepted)
	c.one.verified()
	c.two.verified()
}

// third has a third bridge harvest the library, and compares the two, now and when
// it is called.
func (c *sipCycle) third() (again func()) {
	c.t.Helper()
	third := newRelay(c.t)
	third.run(pool{sources: []string{"resourcesync:" + c.two.setURL("capabilitylist.xml")}})
	again = func() {
		c.t.Helper()
		third.take(c.t, third.source(), harvest.Options{})
		want := c.two.published("main")
		for id, o := range want {
			if o.url == "" { // the library is the original
				want[id] = original{c.two.setURL("records/" + event.Key(id)), o.body}
			}
		}
		got := (&sipBridge{harness: third.harness}).published("main")
		if !maps.Equal(got, want) {
			c.t.Errorf("the third bridge has\n%q, want\n%q", got, want)
		}
	}
	again()
	return again
}

// restarted ends both bridges and starts them again; nothing is submitted twice.
func (c *sipCycle) restarted() {
	c.t.Helper()
	before := []string{c.one.state(), c.two.state()}
	c.one.restart(nil)
	c.two.restart(nil)
	c.harvest()
	c.submitted()
	c.one.want("the logs after a restart", []string{c.one.state(), c.two.state()}, before...)
}
