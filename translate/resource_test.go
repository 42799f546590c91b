package translate

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

const listerBase = "https://bridge.example"

// listed is an event of a record with three representations, the second of
// which is preferred.
func listed(kind event.Kind, content event.Content) *event.Event {
	observed := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	modified, _ := event.StampOf(observed.Add(-time.Hour + 7))
	e := &event.Event{Seq: 9, Set: "main", Record: "urn:x:Record-1", Kind: kind, Title: "A & B",
		Observed: event.MicrosOf(observed), Modified: modified, Preferred: 1,
		Via: event.Link{Href: "https://origin.example/1.xml", Type: "text/xml", Length: 7, Hash: "md5:0f", Modified: modified}}
	if kind != event.Deleted {
		e.Representations = []event.Representation{
			{Href: "https://origin.example/1.html", Type: "text/html", Length: event.NoLength, Name: "html"},
			{Href: "https://origin.example/1.xml", Type: "text/xml", Length: 0, Hash: "sha-256:" + strings.Repeat("ab", 32), Name: "xml"},
			{Href: "https://origin.example/1.json", Type: "application/json", Length: 3, Hash: "md5:00", Name: "12345678.json"},
		}
	}
	if content == event.Reference {
		e.Loc = "https://origin.example/1.xml"
	}
	return e
}

// lines gives each entry as it is written, without its indentation.
func lines(t *testing.T, capability resourcesync.Capability, entries ...resourcesync.Entry) string {
	t.Helper()
	head := resourcesync.Document{Capability: capability, Links: []resourcesync.Link{{Rel: resourcesync.RelUp, Href: "u"}}, Entries: entries}
	if capability == resourcesync.ChangeList {
		head.From = resourcesync.Seconds(time.Unix(0, 0))
	} else {
		head.At = resourcesync.Seconds(time.Unix(0, 0))
	}
	var b bytes.Buffer
	if _, err := head.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(b.String(), " <url>\n")
	body = strings.TrimSuffix(body, "</urlset>\n")
	var out strings.Builder
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "<url>" && line != "</url>" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

func TestListerChangeEntries(t *testing.T) {
	record := RecordURL(listerBase, "main", "urn:x:Record-1")
	hash := "sha-256:" + strings.Repeat("ab", 32)
	via := `<rs:ln rel="via" href="https://origin.example/1.xml" modified="2026-01-02T02:04:05.000006007Z" hash="md5:0f" length="7" type="text/xml"/>` + "\n"
	const carried = ` b:id="urn:x:Record-1" b:title="A &amp; B"/>` + "\n"
	const carriedModified = ` b:id="urn:x:Record-1" b:title="A &amp; B" b:modified="2026-01-02T02:04:05.000006007Z"/>` + "\n"
	own := `<loc>` + record + "</loc>\n<lastmod>2026-01-02T03:04:05Z</lastmod>\n"
	ownAlternates := `<rs:ln rel="alternate" href="` + record + `.html" type="text/html"/>` + "\n" +
		`<rs:ln rel="alternate" href="` + record + `.12345678.json" hash="md5:00" length="3" type="application/json"/>` + "\n"
	theirs := "<loc>https://origin.example/1.xml</loc>\n<lastmod>2026-01-02T02:04:05Z</lastmod>\n"
	theirAlternates := `<rs:ln rel="alternate" href="https://origin.example/1.html" type="text/html"/>` + "\n" +
		`<rs:ln rel="alternate" href="https://origin.example/1.json" hash="md5:00" length="3" type="application/json"/>` + "\n"
	md := func(change string) string {
		s := `<rs:md change="` + change + `" datetime="2026-01-02T03:04:05.000006Z"`
		if change != "deleted" {
			s += ` hash="` + hash + `" length="0" type="text/xml"`
		}
		return s + carried
	}
	gone := "<loc>https://origin.example/old</loc>\n<lastmod>2026-01-02T02:04:05Z</lastmod>\n" + md("deleted") +
		`<rs:ln rel="via" href="https://origin.example/old" modified="2026-01-02T02:04:05.000006007Z"/>` + "\n"

	for _, c := range []struct {
		name    string
		content event.Content
		kind    event.Kind
		edit    func(*event.Event)
		want    string
	}{
		{"created in a mirror", event.Mirror, event.Created, nil, own + md("created") + via + ownAlternates},
		{"updated by redirect", event.Redirect, event.Updated, nil, own + md("updated") + via + ownAlternates},
		{"deleted", event.Mirror, event.Deleted, nil, own + md("deleted") + via},
		{"rejected", event.Mirror, event.Rejected, nil, ""},
		{"created by reference", event.Reference, event.Created, nil, theirs + md("created") + via + theirAlternates},
		{"D109: created at a loc that another record owns", event.Reference, event.Created, func(e *event.Event) { e.Unlisted = true }, ""},
		{"D109: deleted there", event.Reference, event.Deleted, func(e *event.Event) { e.Unlisted = true }, ""},
		{"moved", event.Reference, event.Updated, func(e *event.Event) { e.Gone, e.Arrived = "https://origin.example/old", true },
			gone + theirs + md("created") + via + theirAlternates},
		{"D109: moved to a loc that another record owns", event.Reference, event.Updated, func(e *event.Event) {
			e.Gone, e.Unlisted = "https://origin.example/old", true
		}, gone},
		{"D109: it comes to own its loc", event.Reference, event.Updated, func(e *event.Event) { e.Arrived = true },
			theirs + md("created") + via + theirAlternates},
		{"modified in the future", event.Reference, event.Created, func(e *event.Event) {
			e.Modified, _ = event.StampOf(e.Observed.Time().Add(1))
			e.Representations = e.Representations[1:2]
			e.Preferred = 0
			e.Via.Modified = e.Modified
		}, "<loc>https://origin.example/1.xml</loc>\n" + md("created") + strings.Replace(via, "02T02:04:05.000006007Z", "02T03:04:05.000006001Z", 1)},
		{"D12: an inherited via without its own stamp", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Modified = event.Stamp{} },
			own + strings.Replace(md("deleted"), carried, carriedModified, 1) + strings.Replace(via, ` modified="2026-01-02T02:04:05.000006007Z"`, "", 1)},
		{"D11: the copy has a stamp of its own", event.Reference, event.Created, func(e *event.Event) {
			e.CopyModified, e.Via.Href = event.StampFromNanos(1e18), "https://elsewhere.example/1.xml"
		}, strings.Replace(theirs, "2026-01-02T02:04:05Z", "2001-09-09T01:46:40Z", 1) + md("created") + strings.Replace(via, "origin", "elsewhere", 1) + theirAlternates},
		{"D11: the copy's stamp is not known", event.Reference, event.Created, func(e *event.Event) { e.Via.Href = "https://elsewhere.example/1.xml" },
			"<loc>https://origin.example/1.xml</loc>\n" + md("created") + strings.Replace(via, "origin", "elsewhere", 1) + theirAlternates},
		{"D11: the copy alone has a stamp", event.Reference, event.Created, func(e *event.Event) {
			e.Via.Href, e.Via.Modified = "https://elsewhere.example/1.xml", event.Stamp{}
		}, theirs + strings.Replace(md("created"), carried, carriedModified, 1) +
			strings.NewReplacer("origin", "elsewhere", ` modified="2026-01-02T02:04:05.000006007Z"`, "").Replace(via) + theirAlternates},
		{"D16, D24: languages, profiles, changefreq", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[0].Hreflang, e.Representations[1].Hreflang, e.Representations[2].Profile = "no tag", "de-AT", "urn:p"
			e.Details = &event.Details{ChangeFreq: "weekly"}
			e.Links = []event.Link{{Rel: "profile", Href: "https://profile.example/"}, {Rel: "related", Href: "urn:isbn:1", Type: "pdf"}, {Rel: "related", Href: "https://elsewhere.example/"}}
		}, strings.Replace(own, "</lastmod>\n", "</lastmod>\n<changefreq>weekly</changefreq>\n", 1) + strings.Replace(md("created"), "/>", ` b:hreflang="de-AT"/>`, 1) + via +
			strings.Replace(ownAlternates, `application/json"`, `application/json" profile="urn:p"`, 1) +
			`<rs:ln rel="profile" href="https://profile.example/"/>` + "\n" + `<rs:ln rel="related" href="urn:isbn:1"/>` + "\n"},
		{"D24: no word of sitemaps", event.Mirror, event.Created, func(e *event.Event) { e.Details = &event.Details{ChangeFreq: "often"} }, own + md("created") + via + ownAlternates},
		{"D90: types that are none", event.Mirror, event.Created, func(e *event.Event) {
			e.Representations[1].Type, e.Representations[2].Type, e.Via.Type = "pdf", "", "xml"
		}, own + strings.Replace(md("created"), "text/xml", "application/octet-stream", 1) + strings.Replace(via, ` type="text/xml"`, "", 1) +
			strings.Replace(ownAlternates, "application/json", "application/octet-stream", 1)},
		{"D90: types that are none, by reference", event.Reference, event.Created, func(e *event.Event) {
			e.Representations[1].Type, e.Representations[2].Type = "pdf", ""
		}, theirs + strings.Replace(md("created"), ` type="text/xml"`, "", 1) + via + strings.Replace(theirAlternates, ` type="application/json"`, "", 1)},
		{"D23: handed in to us", event.Mirror, event.Created, func(e *event.Event) {
			e.Via, e.Origin.Protocol = event.Link{Href: "urn:x:Record-1", Length: event.NoLength, Modified: e.Modified}, "sip"
		}, own + strings.Replace(md("created"), carried, carriedModified, 1) + ownAlternates},
		{"D23: handed in to us, with the submitter's URL", event.Mirror, event.Deleted, func(e *event.Event) {
			e.Via = event.Link{Href: "urn:x:Record-1", Length: event.NoLength, Modified: e.Modified}
			e.Origin.Protocol, e.Origin.SourceIdentifier = "sip", "https://submitter.example/1"
		}, own + strings.Replace(md("deleted"), carried, carriedModified, 1) + `<rs:ln rel="via" href="https://submitter.example/1"/>` + "\n"},
		{"no stamp at all", event.Mirror, event.Deleted, func(e *event.Event) { e.Modified, e.Via.Modified = event.Stamp{}, event.Stamp{} },
			own + md("deleted") + strings.Replace(via, ` modified="2026-01-02T02:04:05.000006007Z"`, "", 1)},
		{"via in a local file", event.Mirror, event.Deleted, func(e *event.Event) { e.Via.Href = "FILE:///etc/passwd" }, own + strings.Replace(md("deleted"), carried, carriedModified, 1)},
		{"nothing preferred", event.Mirror, event.Created, func(e *event.Event) { e.Representations, e.Preferred = nil, -1 },
			own + strings.Replace(md("created"), ` hash="`+hash+`" length="0" type="text/xml"`, "", 1) + via},
		{"describes another record", event.Mirror, event.Created, func(e *event.Event) {
			e.Links = []event.Link{{Rel: "describes", Href: "https://origin.example/2", Type: "text/html", Record: "urn:x:2", InSet: true},
				{Rel: "describedby", Href: "https://elsewhere.example/"}, {Rel: "collection", Href: "https://origin.example/all", Record: "urn:x:3"}}
		}, own + md("created") + via + ownAlternates +
			`<rs:ln rel="describes" href="` + RecordURL(listerBase, "main", "urn:x:2") + `" type="text/html" b:id="urn:x:2"/>` + "\n"},
		{"is described, by reference", event.Reference, event.Created, func(e *event.Event) {
			e.Links = []event.Link{{Rel: "describedby", Href: "urn:x:2", Record: "urn:x:2", InSet: true}, {Rel: "describedby", Href: "file:///3", Record: "urn:x:3", InSet: true}}
		}, theirs + md("created") + via + theirAlternates + `<rs:ln rel="describedby" href="urn:x:2"/>` + "\n"},
		{"id is the loc", event.Reference, event.Deleted, func(e *event.Event) { e.Record, e.Title = e.Loc, "" },
			theirs + strings.Replace(md("deleted"), carried, "/>\n", 1) + via},
	} {
		e := listed(c.kind, c.content)
		if c.edit != nil {
			c.edit(e)
		}
		l := NewListEncoder(listerBase, "main", c.content)
		l.ChangeEntries(listed(event.Created, c.content)) // what it remembers must not show
		entries := l.ChangeEntries(e)
		if len(entries) != e.Entries() {
			t.Errorf("%s: %d entries, the event says %d", c.name, len(entries), e.Entries())
		}
		if got := lines(t, resourcesync.ChangeList, entries...); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
}

func TestListerResourceEntry(t *testing.T) {
	l := NewListEncoder(listerBase, "main", event.Mirror)
	e := listed(event.Updated, event.Mirror)
	change := lines(t, resourcesync.ChangeList, l.ChangeEntries(e)...)
	want := strings.Replace(change, ` change="updated" datetime="2026-01-02T03:04:05.000006Z"`, "", 1)
	if got := lines(t, resourcesync.ResourceList, *l.ResourceEntry(e)); got != want || got == change {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestRecordURLs(t *testing.T) {
	record := RecordURL(listerBase, "main", "urn:x:Record-1")
	if want := listerBase + "/sets/main/records/" + event.Key("urn:x:Record-1"); record != want {
		t.Errorf("got %s, want %s", record, want)
	}
}
