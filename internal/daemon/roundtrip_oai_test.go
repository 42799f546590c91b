package daemon_test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// oaiState is what must survive of a record of an OAI-PMH repository on its way through
// bridges, whatever they speak.
type oaiState struct {
	deleted bool
	bytes   string // of the metadata
	sets    string // in the order of their bytes
	// What the provenance says of the origin.
	baseURL, identifier, datestamp string
}

func (s oaiState) String() string {
	if s.deleted {
		return "deleted"
	}
	return fmt.Sprintf("%q in %q, from %s of %s at %s", s.bytes, s.sets, s.identifier, s.baseURL, s.datestamp)
}

// oaiStates is what somebody has of each record, by its identifier.
type oaiStates map[string]oaiState

// observe is what becomes of it when all is looked at: the datestamp is that of the last
// change (I5), and a record that was never seen alive is not known.
func (b oaiStates) observe(of oaiStates) {
	for id, now := range of {
		old, known := b[id]
		switch {
		case now.deleted && !known:
		case now.deleted:
			b[id] = oaiState{deleted: true}
		case !known || old.deleted || old.bytes != now.bytes || old.sets != now.sets:
			b[id] = now
		}
	}
}

// The answers of a repository as this test reads them, with encoding/xml and nothing of
// ours.
type (
	oaiAnswer struct {
		XMLName xml.Name
		Date    string `xml:"http://www.openarchives.org/OAI/2.0/ responseDate"`
		Errors  []struct {
			Code string `xml:"code,attr"`
			Text string `xml:",chardata"`
		} `xml:"http://www.openarchives.org/OAI/2.0/ error"`
		Records []oaiRecord `xml:"http://www.openarchives.org/OAI/2.0/ ListRecords>record"`
		Token   string      `xml:"http://www.openarchives.org/OAI/2.0/ ListRecords>resumptionToken"`
	}
	oaiRecord struct {
		Header struct {
			Status     string   `xml:"status,attr"`
			Identifier string   `xml:"identifier"`
			Datestamp  string   `xml:"datestamp"`
			Sets       []string `xml:"setSpec"`
		} `xml:"http://www.openarchives.org/OAI/2.0/ header"`
		Metadata struct {
			Inner string `xml:",innerxml"`
		} `xml:"http://www.openarchives.org/OAI/2.0/ metadata"`
		About []struct {
			Origin struct {
				Altered    string `xml:"altered,attr"`
				BaseURL    string `xml:"baseURL"`
				Identifier string `xml:"identifier"`
				Datestamp  string `xml:"datestamp"`
				Namespace  string `xml:"metadataNamespace"`
			} `xml:"http://www.openarchives.org/OAI/2.0/provenance provenance>originDescription"`
		} `xml:"http://www.openarchives.org/OAI/2.0/ about"`
	}
)

// oai is the repository of set main, by the URL at which others harvest a format of it.
func (r *relay) oai(prefix string) string {
	return "oaipmh:" + r.setURL("oai") + "?metadataPrefix=" + prefix
}

// oaiList reads a list to its end, page by page. It returns the records in their order, and
// the responseDate of the first answer.
func (o *harness) oaiList(t faults, arguments string) (all []oaiRecord, date string) {
	t.Helper()
	for request := "verb=ListRecords&" + arguments; request != ""; {
		r := o.get(o.setURL("oai?" + request))
		var a oaiAnswer
		if err := xml.Unmarshal(r.body, &a); err != nil {
			t.Fatalf("%s: %v", r.url, err)
		}
		date = cmp.Or(date, a.Date)
		if len(a.Errors) == 1 && a.Errors[0].Code == "noRecordsMatch" && len(all) == 0 {
			return nil, date
		}
		if len(a.Errors) > 0 || len(a.Records) == 0 {
			t.Fatalf("%s: %d records, errors %+v", r.url, len(a.Records), a.Errors)
		}
		all = append(all, a.Records...)
		if request = ""; a.Token != "" {
			request = "verb=ListRecords&resumptionToken=" + url.QueryEscape(a.Token)
		}
	}
	return all, date
}

// readOAI reads the repository of set main whole, as any harvester may.
func (o *harness) readOAI(t faults, prefix string) oaiStates {
	t.Helper()
	all, _ := o.oaiList(t, "metadataPrefix="+prefix)
	got := oaiStates{}
	for i := range all {
		rec := &all[i]
		if _, again := got[rec.Header.Identifier]; again {
			t.Errorf("%s: record %s is there twice", o.base, rec.Header.Identifier)
		}
		got[rec.Header.Identifier] = rec.state(t)
	}
	return got
}

// state is what a record says.
func (rec *oaiRecord) state(t faults) oaiState {
	t.Helper()
	s := oaiState{deleted: rec.Header.Status == "deleted"}
	if s.deleted {
		return s
	}
	s.bytes, s.sets = strings.TrimSpace(rec.Metadata.Inner), setsOf(rec.Header.Sets)
	if len(rec.About) != 1 || rec.About[0].Origin.Altered != "false" {
		t.Errorf("record %s has about containers %+v; want one provenance of what is not altered", rec.Header.Identifier, rec.About)
		return s
	}
	from := rec.About[0].Origin
	s.baseURL, s.identifier, s.datestamp = from.BaseURL, from.Identifier, from.Datestamp
	return s
}

func setsOf(specs []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(specs))), " ")
}

// oaiOrigin is an OAI-PMH repository that goes through whatever it likes, in a time of
// its own.
type oaiOrigin struct {
	*testserver.Repository
	rt     *rapid.T
	prefix string
	base   string
	count  int

	mu  sync.Mutex
	now time.Time
}

// otherFormat is a format beside oai_dc.
var otherFormat = testserver.ItemFormat{Prefix: "letters", Schema: "http://schema.example/letters.xsd", Namespace: "http://schema.example/letters"}

func newOAIOrigin(t *testing.T, rt *rapid.T) *oaiOrigin {
	o := &oaiOrigin{Repository: testserver.NewRepository(), rt: rt, prefix: rapid.SampledFrom([]string{"oai_dc", otherFormat.Prefix}).Draw(rt, "prefix"), now: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)}
	o.Formats = append(o.Formats, otherFormat)
	o.Days = rapid.Bool().Draw(rt, "days")
	o.PageSize = rapid.IntRange(1, 5).Draw(rt, "page")
	o.Scattered = rapid.Bool().Draw(rt, "scattered")
	o.Now = func() time.Time {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.now
	}
	server := httptest.NewServer(o.Repository)
	t.Cleanup(server.Close)
	o.base = server.URL + "/oai"
	o.write("oai:x.example:anchor")
	return o
}

func (o *oaiOrigin) source() string { return "oaipmh:" + o.base + "?metadataPrefix=" + o.prefix }

// write creates a record, changes it, or brings it back.
func (o *oaiOrigin) write(id string) {
	o.count++
	title := rapid.SampledFrom([]string{fmt.Sprint("Letter ", o.count), `<b>"Tom" & 'Jerry'</b> ]]>`, "Żółw ☃ 𝄞", ""}).Draw(o.rt, "title")
	metadata := testserver.DublinCore(title, fmt.Sprint(o.count))
	if o.prefix != "oai_dc" {
		metadata = fmt.Sprintf("<l:letter xmlns:l=\"%s\"\n number='%d'><!-- & --><l:title>%s</l:title><![CDATA[<&]]></l:letter>", otherFormat.Namespace, o.count, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(title))
	}
	o.Put(testserver.Item{Identifier: id, Sets: o.sets(), Metadata: map[string]string{o.prefix: metadata}})
}

func (o *oaiOrigin) sets() []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"maps", "maps:old", "a-20b", "source:1x", "(x)*!~'._-"}), 0, 3, rapid.ID[string]).Draw(o.rt, "sets")
}

// change makes one thing happen.
func (o *oaiOrigin) change() {
	o.mu.Lock()
	o.now = o.now.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, 25 * time.Hour}).Draw(o.rt, "later"))
	o.mu.Unlock()
	items := o.Items()[:]
	slices.SortFunc(items, func(a, b testserver.Item) int { return strings.Compare(a.Identifier, b.Identifier) })
	pick := func(deleted bool) *testserver.Item {
		some := slices.DeleteFunc(slices.Clone(items), func(it testserver.Item) bool {
			return it.Deleted != deleted || it.Identifier == "oai:x.example:anchor"
		})
		if len(some) == 0 {
			return nil
		}
		it := rapid.SampledFrom(some).Draw(o.rt, "record")
		return &it
	}
	what := rapid.SampledFrom([]string{"create", "create", "write", "move", "touch", "delete", "delete", "recreate", "restore"}).Draw(o.rt, "change")
	it := pick(what == "recreate" || what == "restore")
	if it != nil {
		it.Datestamp = time.Time{}
	}
	switch {
	case what == "create":
		name := fmt.Sprint("r", len(items))
		o.write(rapid.SampledFrom([]string{"oai:x.example:" + name, "http://x.example/" + name + "?a=1&b=2", "10.1234/" + name, "no IRI & <" + name + ">", "urn:x:ä%20" + name}).Draw(o.rt, "identifier"))
	case it == nil:
	case what == "write", what == "recreate":
		o.write(it.Identifier)
	case what == "move": // between sets
		it.Sets = o.sets()
		o.Put(*it)
	case what == "touch":
		o.Put(*it)
	case what == "restore": // as it was
		it.Deleted = false
		o.Put(*it)
	case what == "delete":
		o.Delete(it.Identifier)
	}
}

// states are what the origin says now.
func (o *oaiOrigin) states() oaiStates {
	out := oaiStates{}
	for _, it := range o.Items() {
		stamp := it.Datestamp
		if o.Days {
			stamp = stamp.Truncate(24 * time.Hour)
		}
		out[it.Identifier] = oaiState{bytes: it.Metadata[o.prefix], sets: setsOf(it.Sets), baseURL: o.base, identifier: it.Identifier, datestamp: stamp.Format("2006-01-02T15:04:05Z")}
		if it.Deleted {
			out[it.Identifier] = oaiState{deleted: true}
		}
	}
	return out
}

// recordOf is the identifier of the record that the repository of the bridge calls so.
// Those that are no URIs are part of one that it makes of them.
func (r *relay) recordOf(id string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(r.base, "http://"), ":")
	if escaped, ok := strings.CutPrefix(id, "oai:"+host+":main/"); ok {
		if record, err := url.PathUnescape(escaped); err == nil {
			return record
		}
	}
	return id
}

// inProvenance is the state as a provenance can say it: an identifier that is no URI
// cannot stand there, so the URL of the record does.
func (s oaiState) inProvenance(prefix string) oaiState {
	if strings.HasPrefix(s.identifier, "10.") || strings.HasPrefix(s.identifier, "no IRI") {
		s.baseURL += "?verb=GetRecord&identifier=" + strings.NewReplacer("+", "%20", "%3A", ":").Replace(url.QueryEscape(s.identifier)) + "&metadataPrefix=" + prefix
		s.identifier = s.baseURL
	}
	return s
}

// wantOAI fails unless the repository of a bridge has just these records.
func (r *relay) wantOAI(t faults, prefix string, want oaiStates) {
	t.Helper()
	got := oaiStates{}
	for id, s := range r.readOAI(t, prefix) {
		got[r.recordOf(id)] = s
	}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[id]; !ok || g != want[id].inProvenance(prefix) {
			t.Errorf("the repository of %s: record %q is\n got %s (%v)\nwant %s", r.base, id, g, ok, want[id])
		}
	}
	for id := range got {
		if _, ok := want[id]; !ok {
			t.Errorf("the repository of %s has a record %q too", r.base, id)
		}
	}
}

// OAI-PMH -> bridge -> ResourceSync, Atom-PMH or OAI-PMH -> bridge -> OAI-PMH, and a third
// bridge behind that: identifiers, bytes, datestamps of the origin, deletions and sets.
func TestRoundTripOfRepositories(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		o := newOAIOrigin(t, rt)
		row, from := []*relay{newRelay(t)}, []string{o.source()}
		for i := range 2 {
			before := row[i]
			from = append(from, rapid.SampledFrom([]string{before.lists(), before.archived(), before.oai(o.prefix), before.oai(o.prefix)}).Draw(rt, "protocol"))
			row = append(row, newRelay(t))
		}
		has := make([]oaiStates, len(row))
		for i, r := range row {
			has[i] = oaiStates{}
			r.run(pool{segment: rapid.IntRange(3, 10).Draw(rt, "events a segment"), sources: from[i : i+1]})
			defer r.end()
		}
		rounds := rapid.IntRange(2, 4).Draw(rt, "rounds")
		for round := 1; round <= rounds; round++ {
			for range rapid.IntRange(0, 8).Draw(rt, "changes") {
				o.change()
			}
			for i, r := range row {
				if round < rounds && i > 0 && rapid.IntRange(0, 3).Draw(rt, "misses this one") == 0 {
					break
				}
				options := harvest.Options{Full: rapid.IntRange(0, 4).Draw(rt, "full") == 0}
				if i == 0 {
					r.take(rt, r.source(), options)
					has[0].observe(o.states())
				} else {
					r.takeBridge(rt, options.Full)
					has[i].observe(has[i-1])
				}
				r.wantOAI(rt, o.prefix, has[i])
			}
		}
	})
}

// A cycle of bridges over all three protocols adds nothing to what a repository has.
func TestCyclesOfRepositoriesAddNothing(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		o := newOAIOrigin(t, rt)
		g := newCycle(t, rt, o.source(), func(before *relay) []string {
			return []string{before.lists(), before.archived(), before.oai(o.prefix), before.oai(o.prefix)}
		}, config.Mirror)
		defer g.end()
		g.run(o.change, func() {
			for _, r := range g.row {
				r.wantOrigin(rt, o)
			}
		})
	})
}

// wantOrigin fails unless the bridge has just what the repository has. Deletions of records
// that it never had need not be there, and the datestamp may be one of before the last
// change that changed nothing.
func (r *relay) wantOrigin(t faults, o *oaiOrigin) {
	t.Helper()
	got := oaiStates{}
	for id, s := range r.readOAI(t, o.prefix) {
		specs := slices.DeleteFunc(strings.Fields(s.sets), func(spec string) bool { return spec == "source:1" || spec == "source:2" })
		s.sets, s.datestamp = strings.Join(specs, " "), ""
		got[r.recordOf(id)] = s
	}
	want := o.states()
	for id, s := range want {
		s.datestamp = ""
		s = s.inProvenance(o.prefix)
		if g, ok := got[id]; g != s && (ok || !s.deleted) {
			t.Errorf("the repository of %s: record %q is\n got %s (%v)\nwant %s", r.base, id, g, ok, s)
		}
	}
	for id := range got {
		if _, ok := want[id]; !ok {
			t.Errorf("the repository of %s has a record %q that the origin never had", r.base, id)
		}
	}
}

// A bridge behind a new one asks for a format and a set that this does not have yet, and
// for the deletions of a format whose last record has gone.
func TestFormatsAndSetsThatNoRecordHas(t *testing.T) {
	repository := testserver.NewRepository()
	repository.Formats = append(repository.Formats, otherFormat)
	repository.Fill(1)
	server := httptest.NewServer(repository)
	t.Cleanup(server.Close)
	put := func(id string) {
		repository.Put(testserver.Item{Identifier: id, Sets: []string{"a:b"}, Metadata: map[string]string{otherFormat.Prefix: fmt.Sprintf("<letter xmlns=%q/>", otherFormat.Namespace)}})
	}
	a, b := newRelay(t), newRelay(t)
	from := pool{sources: []string{"oaipmh:" + server.URL + "/oai?metadataPrefix=" + otherFormat.Prefix}}
	a.run(from)
	b.run(pool{sources: []string{a.oai(otherFormat.Prefix) + "&set=a"}})
	pass := func(what string, want ...string) {
		t.Helper()
		for _, r := range []*relay{a, b} {
			r.take(t, r.source(), harvest.Options{})
			var got []string
			for _, e := range r.logged(allAfter(0)) {
				got = append(got, e.Kind.String()+" "+e.Record)
			}
			r.want(what, got, want...)
		}
	}
	pass("none yet")
	put("oai:x:1")
	pass("one", "created oai:x:1")
	repository.Delete("oai:x:1")
	a.take(t, a.source(), harvest.Options{})
	a.again(from)
	pass("deleted, and the bridge began anew", "created oai:x:1", "deleted oai:x:1")
	put("oai:x:1")
	pass("back", "created oai:x:1", "deleted oai:x:1", "created oai:x:1")
}

// Bridges that harvest each other's repositories add nothing, in whatever formats and over
// whatever other protocols. Each set that has several Sources is a repository with a set
// for each, which is nobody's category.
func TestBridgesHarvestEachOther(t *testing.T) {
	testenv.Heavy(t)
	letters := otherFormat.Prefix
	for _, c := range []struct {
		name    string
		sources func(origin string, a, b, c *relay) [][]string
	}{
		{"two", func(origin string, a, b, _ *relay) [][]string {
			return [][]string{{origin, b.oai(letters)}, {a.oai(letters)}}
		}},
		{"two, the other one first", func(origin string, a, b, _ *relay) [][]string {
			return [][]string{{b.oai(letters), origin}, {a.oai(letters)}}
		}},
		{"two that have the origin", func(origin string, a, b, _ *relay) [][]string {
			return [][]string{{origin, b.oai(letters)}, {a.oai(letters), origin}}
		}},
		{"two, in another format", func(origin string, a, b, _ *relay) [][]string {
			return [][]string{{origin, b.oai("oai_dc")}, {a.oai("oai_dc")}}
		}},
		{"three over three protocols", func(origin string, a, b, c *relay) [][]string {
			return [][]string{{origin, c.archived()}, {a.oai(letters)}, {b.lists()}}
		}},
		{"three, and a short cut", func(origin string, a, b, c *relay) [][]string {
			return [][]string{{origin, c.oai(letters)}, {a.lists(), c.archived()}, {b.archived(), a.oai(letters)}}
		}},
	} {
		harvestEachOther(t, c.name, "oai:x.example:1", c.sources)
		harvestEachOther(t, c.name+", no URI", "10.1234/no URI", c.sources)
	}
}

// harvestEachOther has a record with an identifier created, changed, deleted and brought
// back at a repository, and bridges harvest it and each other.
func harvestEachOther(t *testing.T, name, id string, between func(origin string, a, b, c *relay) [][]string) {
	t.Run(name, func(t *testing.T) {
		repository := testserver.NewRepository()
		repository.Formats = append(repository.Formats, otherFormat)
		server := httptest.NewServer(repository)
		t.Cleanup(server.Close)
		row := []*relay{newRelay(t), newRelay(t), newRelay(t)}
		sources := between("oaipmh:"+server.URL+"/oai?metadataPrefix="+otherFormat.Prefix, row[0], row[1], row[2])
		row = row[:len(sources)]
		for i, r := range row {
			r.run(pool{sources: sources[i]})
			defer r.end()
		}
		put := func(id, title string) {
			repository.Put(testserver.Item{Identifier: id, Sets: []string{"a:b"}, Metadata: map[string]string{otherFormat.Prefix: fmt.Sprintf("<letter xmlns=%q><title>%s</title></letter>", otherFormat.Namespace, title)}})
		}
		settle := func(what string, want ...string) {
			t.Helper()
			for rounds := 0; passAround(t, row) > 0 || rounds < 2; rounds++ {
				if rounds == 8 {
					t.Fatalf("%s: there is always something new", what)
				}
			}
			for _, r := range row {
				var got []string
				for _, e := range r.logged(allAfter(0)) {
					if e.Record != id {
						continue
					}
					got = append(got, e.Kind.String()+" "+e.Title)
					if specs := fmt.Sprint(e.Categories); specs != "[{a:b http://www.openarchives.org/OAI/2.0/ }]" {
						t.Errorf("%s: in %s it is in %s", what, r.base, specs)
					}
					if want := server.URL + "/oai?"; !strings.HasPrefix(e.Via.Href, want) {
						t.Errorf("%s: in %s its original is %s, want one below %s", what, r.base, e.Via.Href, want)
					}
				}
				r.want(what, got, want...)
				if n := len(r.titles()); len(want) > 0 && n != 1 && !strings.HasPrefix(want[len(want)-1], "deleted") {
					t.Errorf("%s: %s has %d records besides the one that stays", what, r.base, n)
				}
			}
		}
		put(id, "v1")
		settle("created", "created v1")
		put(id, "v2")
		settle("updated", "created v1", "updated v2")
		repository.Delete(id)
		settle("deleted", "created v1", "updated v2", "deleted v2")
		put(id, "v3")
		settle("back", "created v1", "updated v2", "deleted v2", "created v3")
	})
}

// An audit of a repository, and of bridges behind, finds what has changed there and nothing
// else. The original of a record is in an answer of OAI-PMH, whoever passed it on.
func TestAuditsOfRepositories(t *testing.T) {
	testenv.Heavy(t)
	repository := testserver.NewRepository()
	repository.Fill(3)
	server := httptest.NewServer(repository)
	t.Cleanup(server.Close)
	a, b, c := newRelay(t), newRelay(t), newRelay(t)
	a.run(pool{sources: []string{"oaipmh:" + server.URL + "/oai"}})
	b.run(pool{sources: []string{a.oai("oai_dc")}})
	c.run(pool{sources: []string{a.lists()}})
	row := []*relay{a, b, c}
	audited := func(what string, want ...string) {
		t.Helper()
		for i, r := range row {
			found, _ := r.auditWith(func(*audit.Page) error { return nil })
			if got := strings.Join(found, ", "); got != want[i] {
				t.Errorf("%s: of %s it finds %s, want %s", what, r.base, got, want[i])
			}
		}
	}
	for _, r := range row {
		r.take(t, r.source(), harvest.Options{})
	}
	audited("harvested", "", "", "")
	repository.Put(testserver.Item{Identifier: "oai:repository.example:1", Metadata: map[string]string{"oai_dc": testserver.DublinCore("Another one")}})
	repository.Delete("oai:repository.example:2")
	repository.Put(testserver.Item{Identifier: "oai:repository.example:4", Metadata: map[string]string{"oai_dc": testserver.DublinCore("A new one")}})
	const originals = "original oai:repository.example:1, original oai:repository.example:2"
	audited("changed", "deleted-there oai:repository.example:2, missing oai:repository.example:4, stale oai:repository.example:1", originals, originals)
}

// A set that keeps no contents is a repository in oai_dc alone, made of what is known: with
// the sets, the deletions and the origin of its records, which are said to be altered.
func TestRepositoriesWithoutContents(t *testing.T) {
	for _, content := range []string{config.Redirect, config.Reference} {
		t.Run(content, func(t *testing.T) {
			repository := testserver.NewRepository()
			repository.Formats = append(repository.Formats, otherFormat)
			server := httptest.NewServer(repository)
			t.Cleanup(server.Close)
			stamp := time.Date(2021, 3, 1, 0, 0, 0, 0, time.UTC)
			for _, id := range []string{"oai:x.example:1", "oai:x.example:2"} {
				repository.Put(testserver.Item{Identifier: id, Datestamp: stamp, Sets: []string{"a:b"}, Metadata: map[string]string{otherFormat.Prefix: fmt.Sprintf("<letter xmlns=%q><title>A letter</title></letter>", otherFormat.Namespace)}})
			}
			a, b := newRelay(t), newRelay(t)
			a.run(pool{content: content, sources: []string{"oaipmh:" + server.URL + "/oai?metadataPrefix=" + otherFormat.Prefix}})
			b.run(pool{sources: []string{a.oai("oai_dc")}})
			a.take(t, a.source(), harvest.Options{})
			b.take(t, b.source(), harvest.Options{})
			repository.Delete("oai:x.example:2")
			a.take(t, a.source(), harvest.Options{})
			b.take(t, b.source(), harvest.Options{})
			all, _ := a.oaiList(t, "metadataPrefix=oai_dc&set=a")
			if len(all) != 2 || all[0].Header.Identifier != "oai:x.example:1" || all[1].Header.Identifier != "oai:x.example:2" || all[1].Header.Status != "deleted" {
				t.Fatalf("it has %+v", all)
			}
			if !strings.Contains(all[0].Metadata.Inner, "<dc:title>A letter</dc:title>") || len(all[0].About) != 1 {
				t.Fatalf("the record is %+v", all[0])
			}
			if p := all[0].About[0].Origin; p.Altered != "true" || p.BaseURL != server.URL+"/oai" || p.Identifier != "oai:x.example:1" || p.Datestamp != "2021-03-01T00:00:00Z" || p.Namespace != otherFormat.Namespace {
				t.Errorf("its provenance is %+v", p)
			}
			var got []string
			for _, e := range b.logged(allAfter(0)) {
				got = append(got, fmt.Sprint(e.Kind, " ", e.Record, " ", e.Title, " ", e.Categories, " ", e.Via.Href))
			}
			// The format of the origin is not the one that was harvested; every repository has oai_dc.
			const sets = " A letter [{a:b http://www.openarchives.org/OAI/2.0/ }] "
			at := func(n string) string {
				return server.URL + "/oai?verb=GetRecord&identifier=oai:x.example:" + n + "&metadataPrefix=oai_dc"
			}
			b.want("behind it", got, "created oai:x.example:1"+sets+at("1"), "created oai:x.example:2"+sets+at("2"), "deleted oai:x.example:2"+sets+at("2"))
			if answer := a.ask("GET", a.setURL("oai?verb=ListRecords&metadataPrefix="+otherFormat.Prefix)); !strings.Contains(string(answer.body), "cannotDisseminateFormat") {
				t.Errorf("it disseminates what it does not have:\n%s", answer.body)
			}
		})
	}
}

// TestSourceOfAnotherKind: a repository that is harvested in another way from now on leaves what
// is published as it was (I1), although the links to its records are made otherwise.
func TestSourceOfAnotherKind(t *testing.T) {
	museum := httptest.NewServer(fixtures.Museum(nil))
	t.Cleanup(museum.Close)
	o := &harness{t: t}
	o.openFor(harvest.OAIPMH+":"+museum.URL+fixtures.MuseumOAI, segments(2), func(c *config.Config) { c.Sets[0].Sources[0].Name = "museum" })
	newPublisher(o)
	o.harvest()
	was := map[string]webReply{}
	for _, name := range []string{"changelist/1.xml", "feed/1.atom"} {
		was[name] = o.get(o.setURL(name))
	}
	if n := strings.Count(string(was["changelist/1.xml"].body), `rel="via"`); n != 2 {
		t.Fatalf("the Change List has %d links to the originals:\n%s", n, was["changelist/1.xml"].body)
	}
	o.restart(func() {
		src := &o.config.Sets[0].Sources[0]
		src.Kind, src.URL = config.ResourceSync, museum.URL+"/resourcesync"
	})
	if src := o.source(); src.Kind != config.ResourceSync || src.Name != "museum" {
		t.Fatalf("the Source is %+v", src.Source)
	}
	for _, cached := range []bool{true, false} {
		for name, want := range was {
			if now := o.get(o.setURL(name)); string(now.body) != string(want.body) || now.header.Get("Etag") != want.header.Get("Etag") {
				t.Errorf("%s, cached: %v: its bytes or its entity tag are others:\n%s\n%s", name, cached, want.body, now.body)
			}
		}
		if _, err := o.bridge.Verify(t.Context(), true, func(f daemon.Finding) { t.Errorf("verify: %+v", f) }); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(o.config.Data, "cache")); err != nil {
			t.Fatal(err)
		}
	}
}
