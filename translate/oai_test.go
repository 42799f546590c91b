package translate

import (
	"bytes"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/oaipmh"
)

const (
	oaiBase = "https://repository.example/oai"
	dcOf    = `<oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/">`
)

func TestFromOAI(t *testing.T) {
	at := time.Date(2002, 5, 1, 14, 16, 12, 0, time.UTC)
	stamp, _ := event.StampOf(at)
	day, _ := event.StampOf(time.Date(2001, 3, 4, 0, 0, 0, 0, time.UTC))
	metadata := []byte(dcOf + "<dc:title>A  map\n</dc:title></oai_dc:dc>")
	const href = oaiBase + "?verb=GetRecord&identifier=oai:x:1&metadataPrefix=oai_dc"
	record := func(change func(*oaipmh.Record)) *oaipmh.Record {
		r := &oaipmh.Record{Header: oaipmh.Header{Identifier: "oai:x:1", Datestamp: at}, Metadata: metadata, Root: xml.Name{Space: oaipmh.DCNamespace, Local: "dc"}}
		if change != nil {
			change(r)
		}
		return r
	}
	rep := event.Representation{Href: href, Type: "application/xml", Length: int64(len(metadata)), Hash: event.HashOf(sha256.Sum256(metadata)), Profile: oaipmh.DCNamespace}
	plain := func(change func(*event.Observation)) event.Observation {
		o := event.Observation{Record: "oai:x:1", Order: stamp, Modified: stamp, Title: "A map", Representations: []event.Representation{rep}, Inline: metadata,
			Links: []event.Link{{Rel: event.RelProfile, Href: oaipmh.DCNamespace, Length: event.NoLength}}}
		if change != nil {
			change(&o)
		}
		return o
	}
	from := OAISource{BaseURL: oaiBase, Prefix: "oai_dc", Namespace: oaipmh.DCNamespace}
	for _, c := range []struct {
		name string
		rec  *oaipmh.Record
		from OAISource
		sel  Selection
		want event.Observation
		err  error
	}{
		{"as it is", record(nil), from, Selection{}, plain(nil), nil},
		{"sets", record(func(r *oaipmh.Record) { r.Sets = []string{"a:b", "c", "a:b", "", "source:1"} }), from, Selection{},
			plain(func(o *event.Observation) {
				o.Categories = []event.Category{{Term: "a:b", Scheme: SetScheme}, {Term: "c", Scheme: SetScheme}, {Term: "source:1", Scheme: SetScheme}}
			}), nil},
		{"deleted", record(func(r *oaipmh.Record) { r.Deleted, r.Sets = true, []string{"a"} }), from, Selection{},
			event.Observation{Record: "oai:x:1", Deleted: true, Order: stamp, Modified: stamp}, nil},
		{"others are sent there", record(nil), from, Selection{Published: true},
			plain(func(o *event.Observation) {
				o.Representations = []event.Representation{{Href: href, Type: "application/xml", Length: event.NoLength, Profile: oaipmh.DCNamespace}}
				o.Inline = nil
			}), nil},
		{"a header alone", record(func(r *oaipmh.Record) { r.Metadata, r.Root = nil, xml.Name{} }), from, Selection{},
			plain(func(o *event.Observation) {
				o.Representations = []event.Representation{{Href: href, Type: "application/xml", Length: event.NoLength, Profile: oaipmh.DCNamespace}}
				o.Title, o.Inline = "", nil
			}), nil},
		{"further formats", record(nil), OAISource{BaseURL: oaiBase + "?a=b", Prefix: "oai_dc", Also: []oaipmh.Format{{Prefix: "m(1)", Namespace: "urn:m"}, {Prefix: "n", Namespace: "no IRI"}}}, Selection{},
			plain(func(o *event.Observation) {
				first := rep
				first.Href = oaiBase + "?a=b&verb=GetRecord&identifier=oai:x:1&metadataPrefix=oai_dc"
				o.Representations = []event.Representation{first,
					{Href: oaiBase + "?a=b&verb=GetRecord&identifier=oai:x:1&metadataPrefix=m%281%29", Type: "application/xml", Length: event.NoLength, Profile: "urn:m"},
					{Href: oaiBase + "?a=b&verb=GetRecord&identifier=oai:x:1&metadataPrefix=n", Type: "application/xml", Length: event.NoLength}}
			}), nil},
		{"harvested from elsewhere", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "http://between.example/oai", Identifier: "oai:between:1", Datestamp: "2002-01-01",
				Origin: &oaipmh.Provenance{BaseURL: "http://first.example/oai", Identifier: "oai:first:1", Datestamp: "2001-03-04", MetadataNamespace: oaipmh.DCNamespace}}
		}), from, Selection{},
			plain(func(o *event.Observation) {
				o.Via = event.Link{Href: "http://first.example/oai?verb=GetRecord&identifier=oai:first:1&metadataPrefix=oai_dc", Length: event.NoLength, Modified: day}
				o.Modified, o.CopyModified = day, stamp
			}), nil},
		{"harvested in the same format, of an unknown namespace", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "http://first.example/oai", Identifier: "oai:first:1", MetadataNamespace: oaipmh.DCNamespace}
		}), OAISource{BaseURL: oaiBase, Prefix: "dc2"}, Selection{},
			plain(func(o *event.Observation) {
				o.Representations[0].Href = oaiBase + "?verb=GetRecord&identifier=oai:x:1&metadataPrefix=dc2"
				o.Via = event.Link{Href: "http://first.example/oai?verb=GetRecord&identifier=oai:first:1&metadataPrefix=dc2", Length: event.NoLength}
			}), nil},
		{"harvested in another format, at an unknown time", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "http://first.example/oai", Identifier: "oai:first:1", Datestamp: "once", MetadataNamespace: "urn:m"}
		}), OAISource{BaseURL: oaiBase, Prefix: "dc2", Namespace: oaipmh.DCNamespace}, Selection{},
			plain(func(o *event.Observation) {
				o.Representations[0].Href = oaiBase + "?verb=GetRecord&identifier=oai:x:1&metadataPrefix=dc2"
				o.Via = event.Link{Href: "http://first.example/oai?verb=GetRecord&identifier=oai:first:1&metadataPrefix=oai_dc", Length: event.NoLength}
			}), nil},
		{"an original of another protocol, and the sets of a bridge", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "https://first.example/1?a=b", Identifier: "https://first.example/1?a=b", Datestamp: "2001-03-04T00:00:00Z"}
			r.Sets = []string{"source:12", "source:x", "source:"}
		}), from, Selection{},
			plain(func(o *event.Observation) {
				o.Via = event.Link{Href: "https://first.example/1?a=b", Length: event.NoLength, Modified: day}
				o.Modified, o.CopyModified = day, stamp
				o.Categories = []event.Category{{Term: "source:x", Scheme: SetScheme}, {Term: "source:", Scheme: SetScheme}}
			}), nil},
		{"a provenance that names nothing", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "file:///etc/passwd", Identifier: "file:///etc/passwd", Datestamp: "2001-03-04"}
		}), from, Selection{}, plain(nil), nil},
		{"identifiers of its own", record(nil), from, Selection{Name: "maps"},
			plain(func(o *event.Observation) { o.Record, o.SourceIdentifier = ownIdentifier("maps", "oai:x:1"), "oai:x:1" }), nil},
		{"not wanted", record(func(r *oaipmh.Record) { r.Sets = []string{"a"} }), from, Selection{Formats: []string{"text/plain"}},
			event.Observation{Record: "oai:x:1", Deleted: true, Order: stamp, Modified: stamp, Title: "A map"}, nil},
		{"our own", record(func(r *oaipmh.Record) {
			r.Provenance = &oaipmh.Provenance{BaseURL: "https://bridge.example/sets/main/oai", Identifier: "oai:x:1", Datestamp: "2001-03-04", MetadataNamespace: oaipmh.DCNamespace}
		}), from, Selection{Own: []string{"https://bridge.example/sets/main/"}}, event.Observation{}, ErrOwn},
		{"older than what is selected", record(nil), from, Selection{Since: stamp.Add(1)}, event.Observation{}, ErrUnselected},
		{"elsewhere than what is selected", record(nil), from, Selection{Prefixes: []string{"https://other.example/"}}, event.Observation{}, ErrUnselected},
		{"too much", record(func(r *oaipmh.Record) { r.Identifier = strings.Repeat("x", event.MaxIdentifier+1) }), from, Selection{}, event.Observation{}, event.ErrTooMuch},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromOAI(c.rec, c.from, &c.sel)
			if !errors.Is(err, c.err) {
				t.Fatalf("err = %v, want %v", err, c.err)
			}
			if err == nil && !reflect.DeepEqual(got, c.want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestSetSpec(t *testing.T) {
	long := strings.Repeat("ä", 100)
	for _, c := range []struct {
		category event.Category
		want     string
	}{
		{event.Category{}, ""},
		{event.Category{Term: "maps"}, "maps"},
		{event.Category{Term: "maps", Scheme: "urn:s", Label: "Maps"}, "maps"},
		{event.Category{Term: "ddc:004"}, "ddc:004"},
		{event.Category{Term: "old-maps"}, "old-maps"},
		{event.Category{Term: "old maps, 1/2"}, "old-20maps-2C-201-2F2"},
		{event.Category{Term: "ü"}, "-C3-BC"},
		{event.Category{Term: ":a::b:"}, "-3Aa-3A:b-3A"},
		{event.Category{Term: ":"}, "-3A"},
		{event.Category{Term: "::"}, "-3A-3A"},
		{event.Category{Term: "a-20b"}, "a-2D20b"},
		{event.Category{Term: "a-20b", Scheme: SetScheme}, "a-20b"},
		{event.Category{Term: "a b", Scheme: SetScheme}, "a-20b"},
		{event.Category{Term: strings.Repeat("a:", 200) + "b", Scheme: SetScheme}, strings.Repeat("a:", 200) + "b"},
		{event.Category{Term: long}, strings.Repeat("-C3-A4", 28) + "-C3-A.rsfzafouorlfwkrd2xs36ciakf"},
	} {
		got := SetSpec(c.category)
		if got != c.want {
			t.Errorf("setSpec of %+v is %q, want %q", c.category, got, c.want)
		}
	}
}

// Different terms have different setSpecs, which follow the grammar.
func TestSetSpecsDiffer(t *testing.T) {
	terms := rapid.OneOf(rapid.StringOf(rapid.RuneFrom([]rune("aA2D0-:%ü /"))), rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		a, b := terms.Draw(t, "a"), terms.Draw(t, "b")
		x, y := SetSpec(event.Category{Term: a, Scheme: "urn:s"}), SetSpec(event.Category{Term: b})
		if (a == b) != (x == y) {
			t.Fatalf("setSpecs of %q and %q: %q and %q", a, b, x, y)
		}
		if x != "" && (!oaipmh.CanBeSet(x) || len(x) > maxSetSpec) {
			t.Fatalf("the setSpec of %q is %q", a, x)
		}
		if again := SetSpec(event.Category{Term: x, Scheme: SetScheme}); again != x {
			t.Fatalf("the setSpec %q becomes %q", x, again)
		}
		if len(x) < maxSetSpec && unescapeSet(x) != a {
			t.Fatalf("the setSpec %q of %q reads %q", x, a, unescapeSet(x))
		}
	})
}

// unescapeSet is how a setSpec that is made of a term is read.
func unescapeSet(s string) string {
	var b bytes.Buffer
	for i := 0; i < len(s); i++ {
		const digits = "0123456789ABCDEF"
		if s[i] == '-' && i+2 < len(s) {
			if h, l := strings.IndexByte(digits, s[i+1]), strings.IndexByte(digits, s[i+2]); h >= 0 && l >= 0 {
				b.WriteByte(byte(h<<4 | l))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func TestOAIIdentifiers(t *testing.T) {
	o := NewOAIEncoder("https://bridge.example:8443/x", &event.Set{Name: "main", Content: event.Mirror}, nil)
	for _, c := range []struct{ record, want string }{
		{"oai:x:1", "oai:x:1"},
		{"urn:x:ä", "urn:x:ä"},
		{"10.1234/a b", "oai:bridge.example:main/10.1234%2Fa%20b"},
		{"", "oai:bridge.example:main/"},
		{"oai:bridge.example:main/10.1234%2Fa%20b", "oai:bridge.example:main/oai%3Abridge.example%3Amain%2F10.1234%252Fa%2520b"},
		{"oai:bridge.example:main/10.1234%2fa", "oai:bridge.example:main/10.1234%2fa"},
		{"oai:bridge.example:main/urn%3Ax", "oai:bridge.example:main/urn%3Ax"},
	} {
		got := o.Identifier(c.record)
		if got != c.want {
			t.Errorf("record %q is %q, want %q", c.record, got, c.want)
		}
		if back := o.Record(got); back != c.record {
			t.Errorf("%q is record %q, want %q", got, back, c.record)
		}
		if back := identifierFromOAI(&OAISource{BaseURL: "http://10.0.0.1/x/sets/main/oai?a=b"}, got); back != c.record {
			t.Errorf("from a bridge, %q is record %q, want %q", got, back, c.record)
		}
		if back := identifierFromOAI(&OAISource{BaseURL: "http://10.0.0.1/x/sets/maps/oai", Named: "main"}, got); back != c.record {
			t.Errorf("from a bridge whose set was renamed, %q is record %q, want %q", got, back, c.record)
		}
		for _, from := range []OAISource{{BaseURL: "http://10.0.0.1/oai"}, {BaseURL: "http://10.0.0.1/oai", Named: "main"}, {BaseURL: "http://10.0.0.1/x/sets/maps/oai"}} {
			if other := identifierFromOAI(&from, got); other != got {
				t.Errorf("from %+v, %q is record %q", from, got, other)
			}
		}
	}
	for _, other := range []string{"oai:bridge.example:main/urn%3Ax", "oai:bridge.example:main/%zz", "oai:bridge.example:main/a%2fb", "oai:bridge.example:other/a%2Fb"} {
		if got := o.Record(other); got != other {
			t.Errorf("%q is record %q", other, got)
		}
	}
}

func TestFormatOf(t *testing.T) {
	const mods = "http://www.loc.gov/mods/v3"
	at := func(base, prefix string) string { return getRecordURL(base, prefix, "oai:x:1") }
	rep := func(href, profile string) []event.Representation {
		return []event.Representation{{Href: href, Profile: profile}, {Href: "https://bridge.example/2.xml", Profile: mods}, {Href: "https://bridge.example/3.xml", Profile: "urn:p"}}
	}
	profile := []event.Link{{Rel: event.RelLicense, Href: "urn:l"}, {Rel: event.RelProfile, Href: "urn:p"}}
	for _, c := range []struct {
		name              string
		e                 event.Event
		i                 int
		prefix, namespace string
	}{
		{"where it was harvested", event.Event{Representations: rep(at(oaiBase, "x"), "urn:p"), Via: event.Link{Href: at(oaiBase, "y")}}, 0, "x", "urn:p"},
		{"at the origin", event.Event{Representations: rep("https://bridge.example/1.xml", ""), Links: profile, Via: event.Link{Href: at(oaiBase+"?a=b", "y")}}, 0, "y", "urn:p"},
		{"not the preferred one", event.Event{Representations: rep("https://bridge.example/1.xml", ""), Preferred: 2, Links: profile, Via: event.Link{Href: at(oaiBase, "y")}}, 0, "", ""},
		{"not oai_dc, which stands for any format", event.Event{Representations: rep("https://bridge.example/1.xml", "urn:p"), Via: event.Link{Href: at(oaiBase, oaipmh.DC)}}, 0, "", "urn:p"},
		{"by its namespace", event.Event{Representations: rep("https://bridge.example/1.xml", "urn:p")}, 1, "mods", mods},
		{"unknown", event.Event{Representations: rep("https://bridge.example/1.xml", "")}, 0, "", ""},
	} {
		if prefix, namespace := FormatOf(&c.e, c.i); prefix != c.prefix || namespace != c.namespace {
			t.Errorf("%s: %q and %q, want %q and %q", c.name, prefix, namespace, c.prefix, c.namespace)
		}
	}
}

func TestGetRecordURLs(t *testing.T) {
	text := rapid.StringN(1, -1, -1)
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]string{oaiBase, oaiBase + "?a=b%20c", oaiBase + "?", oaiBase + "?a=b&"}).Draw(t, "base")
		prefix, id := text.Draw(t, "prefix"), text.Draw(t, "identifier")
		gotBase, gotPrefix, gotID, ok := parseGetRecordURL(getRecordURL(base, prefix, id))
		if !ok || gotBase != strings.TrimRight(base, "?&") || gotPrefix != prefix || gotID != id {
			t.Fatalf("%q, %q, %q becomes %q, %q, %q, %v", base, prefix, id, gotBase, gotPrefix, gotID, ok)
		}
		if got := PrefixOf(getRecordURL(base, prefix, id)); got != prefix && !strings.Contains(prefix, "&") {
			t.Fatalf("prefix %q becomes %q", prefix, got)
		}
	})
	const start = oaiBase + "?verb=GetRecord&"
	for _, other := range []string{"", oaiBase, start + "metadataPrefix=b&identifier=a", start + "identifier=a%3aa&metadataPrefix=b", start + "identifier=%zz&metadataPrefix=b",
		start + "identifier=a&metadataPrefix=b&x=y", start + "identifier=a&metadataPrefix=b#c", "ftp" + start[len("https"):] + "identifier=a&metadataPrefix=b"} {
		if base, prefix, id, ok := parseGetRecordURL(other); ok {
			t.Errorf("%s is %q, %q, %q", other, base, prefix, id)
		}
	}
}

// What a repository says comes back from the repository of a bridge: identifier, bytes,
// deletion, sets and original.
func TestOAIPassesThrough(t *testing.T) {
	specs := rapid.StringMatching(`[a-z\-]{1,3}(:[a-z\-0-9]{1,3}){0,2}`)
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom([]event.Content{event.Mirror, event.Redirect, event.Reference}).Draw(t, "content")
		prefix := rapid.SampledFrom([]string{oaipmh.DC, "mods", "x.y"}).Draw(t, "prefix")
		namespace := "urn:p"
		if prefix == oaipmh.DC {
			namespace = oaipmh.DCNamespace
		}
		rec := &oaipmh.Record{Header: oaipmh.Header{Identifier: rapid.SampledFrom([]string{"oai:x:1", "10.1234/<&ä> b", "urn:a:%20"}).Draw(t, "identifier"),
			Datestamp: time.Unix(rapid.Int64Range(0, 2e9).Draw(t, "datestamp"), 0).UTC(), Deleted: rapid.Bool().Draw(t, "deleted")}}
		if !rec.Deleted {
			rec.Metadata, rec.Root = []byte(`<m xmlns="`+namespace+`"><title>`+rapid.SampledFrom([]string{"", "A", "B"}).Draw(t, "title")+`</title></m>`), xml.Name{Space: namespace, Local: "m"}
			rec.Sets = rapid.SliceOfNDistinct(specs, 0, 4, rapid.ID[string]).Draw(t, "sets")
		}
		first, err := FromOAI(rec, OAISource{BaseURL: oaiBase, Prefix: prefix, Namespace: namespace}, &Selection{})
		if err != nil {
			t.Fatal(err)
		}
		e := eventOf(&first, content)
		o := NewOAIEncoder("https://bridge.example", &event.Set{Name: "main", Content: content}, []string{"https://other.example/", "https://source.example/feed"})
		out := o.Encode(e, rec.Metadata)
		if out.Deleted != rec.Deleted || !bytes.Equal(out.Metadata, rec.Metadata) || !out.Datestamp.Equal(e.Observed.Time().Truncate(time.Second)) {
			t.Fatalf("got\n%+v\nof\n%+v", out, e)
		}
		if p := out.Provenance; p != nil && (p.Altered || p.MetadataNamespace != namespace || p.Datestamp != oaipmh.Second.Format(rec.Datestamp)) {
			t.Fatalf("provenance %+v", p)
		}
		if !rec.Deleted {
			if got, _ := FormatOf(e, 0); got != prefix {
				t.Fatalf("prefix %q, want %q", got, prefix)
			}
		}
		second, err := FromOAI(out, OAISource{BaseURL: "http://10.0.0.1/sets/main/oai", Prefix: prefix, Namespace: namespace}, &Selection{})
		if err != nil {
			t.Fatal(err)
		}
		if second.Record != first.Record || second.Deleted != first.Deleted || !slices.Equal(second.Categories, first.Categories) || second.Title != first.Title || !bytes.Equal(second.Inline, first.Inline) {
			t.Fatalf("got\n%+v\nwant\n%+v", second, first)
		}
		if !second.Deleted && (second.Via.Href != first.ViaHref() || second.Modified != first.Modified || second.Via.Modified != first.Modified) {
			t.Fatalf("original %+v at %v, want %s at %v", second.Via, second.Modified, first.ViaHref(), first.Modified)
		}
	})
}

// eventOf is the event that the log makes of the first observation of a record.
func eventOf(o *event.Observation, content event.Content) *event.Event {
	e := &event.Event{Seq: 1, Set: "main", Record: o.Record, Kind: event.Created, Observed: 1_700_000_000_123_456, Modified: o.Modified, CopyModified: o.CopyModified, Title: o.Title,
		Categories: o.Categories, Details: o.Details, Representations: slices.Clone(o.Representations), Preferred: o.Preferred, Via: o.Via, Links: o.Links,
		Origin: event.Origin{Protocol: "oai-pmh", Source: "https://source.example/feed"}}
	if o.Deleted {
		e.Kind = event.Deleted
		return e
	}
	if r := e.Representations[e.Preferred]; e.Via.Href == "" {
		e.Via = event.Link{Href: r.Href, Type: r.Type, Length: r.Length, Hash: r.Hash, Modified: o.Modified}
	}
	if content == event.Reference {
		e.Loc = e.Representations[e.Preferred].Href
	}
	event.NameRepresentations(e.Representations, nil)
	return e
}

// Records without an original elsewhere are their own; what has nothing else has no
// provenance.
func TestOAIProvenance(t *testing.T) {
	base := func() *event.Event {
		o, err := FromOAI(&oaipmh.Record{Header: oaipmh.Header{Identifier: "oai:x:1", Datestamp: time.Unix(1e9, 0)}, Metadata: []byte("<m/>")}, OAISource{BaseURL: oaiBase, Prefix: "m"}, &Selection{})
		if err != nil {
			t.Fatal(err)
		}
		return eventOf(&o, event.Mirror)
	}
	loc := RecordURL("https://bridge.example", "main", "oai:x:1")
	for _, c := range []struct {
		name                        string
		change                      func(*event.Event)
		baseURL, identifier, atTime string
	}{
		{"a repository", func(*event.Event) {}, oaiBase, "oai:x:1", "2001-09-09T01:46:40Z"},
		{"another protocol", func(e *event.Event) { e.Via.Href = "https://o.example/1" }, "https://o.example/1", "https://o.example/1", "2001-09-09T01:46:40Z"},
		{"an identifier that is no URI", func(e *event.Event) { e.Via.Href = getRecordURL(oaiBase, "m", "a b") },
			getRecordURL(oaiBase, "m", "a b"), getRecordURL(oaiBase, "m", "a b"), "2001-09-09T01:46:40Z"},
		{"a local file", func(e *event.Event) { e.Via.Href = "file:///1.xml" }, loc, loc, "2001-09-09T01:46:40Z"},
		{"nothing to name", func(e *event.Event) { e.Via.Href = "urn:x y" }, loc, loc, "2001-09-09T01:46:40Z"},
		{"at an unknown time", func(e *event.Event) { e.Modified, e.Via.Modified = event.Stamp{}, event.Stamp{} }, oaiBase, "oai:x:1", "2023-11-14T22:13:20Z"},
		{"submitted", func(e *event.Event) { e.Origin.Protocol, e.Via.Href = "sip", "urn:x-bridge:sip:1" }, loc, loc, "2001-09-09T01:46:40Z"},
	} {
		e := base()
		c.change(e)
		o := NewOAIEncoder("https://bridge.example", &event.Set{Name: "main", Content: event.Mirror}, nil)
		p := o.Encode(e, nil).Provenance
		if p == nil || p.BaseURL != c.baseURL || p.Identifier != c.identifier || p.Datestamp != c.atTime || !p.Altered || p.MetadataNamespace == "" || p.Harvested.IsZero() {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
	e := base()
	e.Via.Href, e.Loc = "file:///1.xml", "file:///1.xml"
	if p := NewOAIEncoder("https://bridge.example", &event.Set{Name: "main", Content: event.Reference}, nil).Encode(e, nil).Provenance; p != nil {
		t.Errorf("nothing may be named: %+v", p)
	}
}

// A record is in the set of its Source where there are several, and a deleted one in
// those that it was in.
func TestOAISetsOfSources(t *testing.T) {
	sources := []string{"https://a.example/", "https://source.example/feed", "https://source.example/feed"}
	for n, want := range []string{"", "", "source:2", "source:2"} {
		for _, kind := range []event.Kind{event.Created, event.Deleted} {
			e := listed(kind, event.Mirror)
			e.Origin.Source, e.Categories = "https://source.example/feed", []event.Category{{Term: "a"}, {Term: "a", Scheme: "urn:s"}, {}, {Term: "source:2"}}
			o := NewOAIEncoder("https://bridge.example", &event.Set{Name: "main"}, sources[:n])
			got := o.Header(e)
			if spec := []string{"a", "source:2"}; !slices.Equal(got.Sets, spec) || got.Deleted != (kind == event.Deleted) {
				t.Errorf("%d Sources: %+v", n, got)
			}
			e.Categories = nil
			if got := o.SetSpecs(e); want == "" && got != nil || want != "" && !slices.Equal(got, []string{want}) {
				t.Errorf("%d Sources: sets %q, want %q", n, got, want)
			}
		}
	}
}

// Categories cost time in proportion to how many there are, in and out.
func TestCategoriesCost(t *testing.T) {
	const n = 50_000
	entry := &atompmh.Entry{ID: "urn:x:1", Links: []atompmh.Link{{Rel: "alternate", Href: "https://origin.example/1.xml"}}}
	e := listed(event.Created, event.Mirror)
	for i := range n {
		entry.Categories = append(entry.Categories, atompmh.Category{Term: fmt.Sprintf("%07d", i)})
	}
	testenv.Affordable(t, n*len(`<category term="0000000"/>`), func() {
		o, _ := FromEntry(entry, &Selection{}) // more than a record may have
		if e.Categories = o.Categories; len(o.Categories) != n {
			t.Errorf("%d categories in", len(o.Categories))
		}
		if specs := NewOAIEncoder("https://bridge.example", &event.Set{Name: "main"}, nil).SetSpecs(e); len(specs) != n {
			t.Errorf("%d sets out", len(specs))
		}
	})
}

// What is made of a record is well-formed, whatever it says of itself.
func TestDublinCore(t *testing.T) {
	e := listed(event.Created, event.Mirror)
	e.Title, e.Categories = "A <map> & \"plan\"\x00", []event.Category{{Term: "maps", Label: "Maps & plans"}, {Term: "old"}}
	e.Details = &event.Details{Language: "fr", Authors: []event.Person{{Name: "A <B>"}}, Contributors: []event.Person{{Name: "C"}}, Rights: event.Text{Value: "all", Language: "no tag!"}}
	var got struct {
		XMLName xml.Name
		Fields  []struct {
			XMLName xml.Name
			Lang    string `xml:"lang,attr"`
			Text    string `xml:",chardata"`
		} `xml:",any"`
	}
	if err := xml.Unmarshal(DublinCore(e), &got); err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, f := range got.Fields {
		if f.XMLName.Space != "http://purl.org/dc/elements/1.1/" {
			t.Errorf("%s is of namespace %s", f.XMLName.Local, f.XMLName.Space)
		}
		fields = append(fields, strings.TrimSuffix(f.XMLName.Local+" "+f.Lang, " ")+": "+f.Text)
	}
	want := []string{"title fr: A <map> & \"plan\"\ufffd", "creator: A <B>", "subject: Maps & plans", "subject: old", "contributor: C"}
	if got.XMLName != (xml.Name{Space: oaipmh.DCNamespace, Local: "dc"}) || len(fields) < len(want) || !slices.Equal(fields[:len(want)], want) || !slices.Contains(fields, "rights: all") {
		t.Errorf("got %v %q", got.XMLName, fields)
	}
	e.Title = " "
	if !bytes.Contains(DublinCore(e), []byte("<dc:title xml:lang=\"fr\">"+e.Record+"<")) {
		t.Errorf("without a title: %s", DublinCore(e))
	}
}

func FuzzFromOAI(f *testing.F) {
	f.Add(oaiBase, "oai_dc", "oai:x:1", "a:b", "http://o.example/oai", "oai:o:1", "2002-01-01", []byte(dcOf+"<dc:title>t</dc:title></oai_dc:dc>"), false)
	f.Add("https://b.example/sets/main/oai", "m", "oai:b.example:main/a%20b", "source:1", "x", "x", "", []byte("<r><title"), true)
	f.Fuzz(func(t *testing.T, base, prefix, id, spec, origin, originID, stamp string, metadata []byte, deleted bool) {
		rec := &oaipmh.Record{Header: oaipmh.Header{Identifier: id, Deleted: deleted, Sets: []string{spec, spec}}, Metadata: metadata,
			Provenance: &oaipmh.Provenance{BaseURL: origin, Identifier: originID, Datestamp: stamp}}
		o, err := FromOAI(rec, OAISource{BaseURL: base, Prefix: prefix}, &Selection{})
		if err != nil {
			return
		}
		e := eventOf(&o, event.Mirror)
		out := NewOAIEncoder(strings.TrimSuffix(base, "/sets/main/oai"), &event.Set{Name: "main", Content: event.Mirror}, nil).Encode(e, nil)
		if out.Deleted {
			return
		}
		for d := xml.NewDecoder(bytes.NewReader(out.Metadata)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v: %s", err, out.Metadata)
			}
		}
		for _, s := range out.Sets {
			if !oaipmh.CanBeSet(s) {
				t.Fatalf("setSpec %q of %q", s, spec)
			}
		}
	})
}
