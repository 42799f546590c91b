package resourcesync

import (
	"slices"
	"strings"
	"testing"
)

// Each rule that no Destination depends on is reported by a strict Reader at the element that
// breaks it, or for the document as a whole, and by no other. What can be read is the same.
func TestStrict(t *testing.T) {
	const (
		t0, t1 = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
		about  = `<rs:ln rel="describedby" href="http://example.org/about"/>`
	)
	// Each entry stands at the start of a line; the first is in line 2.
	of := func(md string, entries ...string) string {
		return openList + `<rs:md capability="` + md + `"/>` + "\n" + strings.Join(entries, "\n") + `</urlset>`
	}
	entry := func(md string, inner ...string) string {
		if md != "" {
			md = "<rs:md " + md + "/>"
		}
		return "<url><loc>http://a.example/1</loc>" + md + strings.Join(inner, "") + "</url>"
	}
	index := func(doc string) string {
		return strings.NewReplacer("urlset", "sitemapindex", "url>", "sitemap>").Replace(doc)
	}
	link := func(attrs string) string { return `<rs:ln href="http://a.example/2" ` + attrs + "/>" }
	const changed = `change="updated" datetime="` + t1 + `"`
	resources := func(entries ...string) string { return of(`resourcelist" at="`+t0, entries...) }
	changes := func(entries ...string) string { return of(`changelist" from="`+t0, entries...) }
	for _, c := range []struct {
		name, doc string
		want      []string // problems without the URL in front
	}{
		{"nothing", resources(entry(`type="text/html; charset=utf-8" length="1"`, "<lastmod>"+t0+"</lastmod>", link(`rel="alternate" type="a/b"`), link(`rel="duplicate" pri="1"`),
			link(`rel="memento" type="a/b"`), link(`rel="timegate"`), link(`rel="timemap"`), link(`rel="via" type="a/b"`), link(`rel="License author"`), link(`rel="urn:x:rel"`))), nil},

		{"times of a list", resources(entry(`at="`+t0+`"`), entry(`until="`+t0+`"`)), []string{
			":2:1: rs-entry-times: found at or completed on entries of a resourcelist, expected neither; the document itself has them",
			":3:1: rs-entry-times: found from or until on entries of a resourcelist, expected neither; the document itself has them"}},
		{"times of an index", index(resources(entry(`at="`+t0+`" completed="`+t1+`"`), entry(`from="`+t0+`"`))), []string{
			":3:1: rs-entry-times: found from or until on entries of an index of resourcelist, expected neither; the document itself has them"}},
		{"times of a dump", of(`changedump" from="`+t0, entry(`type="application/zip" length="1" from="`+t0+`" at="`+t0+`"`)), []string{
			":2:1: rs-entry-times: found at or completed on entries of a changedump, expected neither; the document itself has them"}},
		{"times of an archive", of(`resourcelist-archive`, entry(`at="`+t0+`" completed="`+t1+`" from="`+t0+`" until="`+t1+`"`)), nil},
		{"the end before the begin", index(of(`resourcelist" at="`+t1+`" completed="`+t0, entry(`completed="`+t0+`"`), entry(`at="`+t1+`" completed="`+t0+`"`))), []string{
			":2:1: rs-completed: found completed without at, expected at beside it",
			":3:1: rs-completed: found completed " + t0 + " before at " + t1 + ", expected completed at at or later",
			": rs-completed: found completed " + t0 + " before at " + t1 + ", expected completed at at or later"}},
		{"until before from", index(changes(entry(`from="` + t1 + `" until="` + t0 + `"`))), []string{
			":2:1: rs-until: found until " + t0 + " before from " + t1 + ", expected until at from or later"}},
		{"no from", index(changes(entry(``))), []string{
			":2:1: rs-entry-from: found no from on entries of an index of changelist, expected the from of the document or package at loc"}},
		{"attributes of others", resources(entry(changed + ` path="/a" capability="changelist"`)), []string{
			":2:1: rs-entry-attributes: found change on entries of a resourcelist, expected none",
			":2:1: rs-entry-attributes: found datetime on entries of a resourcelist, expected none",
			":2:1: rs-entry-attributes: found path on entries of a resourcelist, expected none",
			":2:1: rs-entry-attributes: found capability on entries of a resourcelist, expected none"}},

		{"a Source Description", of(`description`, entry(`capability="capabilitylist"`), entry(`capability="resourcelist"`, about, "<lastmod>"+t0+"</lastmod>"), entry("", about)), []string{
			":2:1: rs-describedby: found no link describedby on an entry, expected a link to a document about the set of resources",
			`:3:1: rs-described: found capability "resourcelist", expected "capabilitylist"`,
			":3:1: rs-lastmod: found a lastmod on entries of a description, expected none, unless every change of the document at loc changes this one",
			": rs-describedby: found no link describedby on a description, expected a link to a document about the Source, or about the set of resources"}},
		{"a Capability List", strings.Replace(of(`capabilitylist`, entry(`capability="resourcelist"`), entry(`capability="changelist"`), entry(`capability="resourcelist"`)), "<rs:ln", about+"<rs:ln", 1), []string{
			`:4:1: rs-capabilities: found a second entry for "resourcelist", expected one; several documents of a capability have an index`}},
		{"a dump", of(`resourcedump" at="`+t0, entry(`type="application/zip" length="0"`), entry(`type="application/x-tar"`), entry(`type="Application/ZIP" length="1"`)), []string{
			":3:1: rs-package: found a package without type or length, expected both",
			":3:1: rs-packages: found a package of type application/x-tar beside one of type application/zip, expected packages of one format"}},
		{"a manifest", of(`changedump-manifest" from="`+t0, entry(changed+` path="/1"`), entry(`change="deleted" datetime="`+t1+`"`)), []string{
			":2:1: rs-type: found a bitstream without type, expected its media type"}},

		{"types", resources(entry(`type="html"`, link(`rel="via" type="text/"`))), []string{
			`:2:1: rs-media-type: found type "html", expected a media type, such as text/html`,
			`:2:1: rs-media-type: found type "text/" on a link via, expected a media type, such as text/html`}},
		{"relations", strings.Replace(resources(entry("", link(`rel="license mine"`), link(`rel="latest-version"`), link(`rel="license Original"`))), "<rs:md", link(`rel="theirs"`)+"<rs:md", 1), []string{
			`:2:1: rs-relation: found relation "license mine", expected a relation that is registered with IANA, or a URI`,
			`: rs-relation: found relation "theirs", expected a relation that is registered with IANA, or a URI`}},
		{"a path of a link", changes(entry(changed, link(`rel="via" path="/a"`))), []string{
			":2:1: rs-entry-attributes: found path on a link via of a changelist, expected none; only manifests have paths"}},
		{"alternates and duplicates", resources(entry("", link(`rel="alternate"`), link(`rel="duplicate" length="1"`), link(`rel="duplicate" modified="`+t0+`"`))), []string{
			":2:1: rs-alternate: found an alternate link without type to http://a.example/2, expected the media type of the representation",
			":2:1: rs-duplicate: found a duplicate link with encoding, hash, length or type, expected none of them: they are those of the entry"}},
		{"versions", resources(entry("", link(`rel="memento"`), link(`rel="memento"`), link(`rel="timegate" type="a/b"`), link(`rel="via"`), link(`rel="via"`))), []string{
			":2:1: rs-timegate: found a timegate link with attributes beside rel and href, expected none: they have no meaning for a TimeGate",
			":2:1: rs-memento: found 2 links memento, expected one, to the version of lastmod; a timemap names all of them",
			":2:1: rs-via: found 2 links via, expected one, to the original Source"}},
		{"patches", changes(entry(changed, link(`rel="`+RelPatch+`"`)), entry(changed, link(`rel="`+RelPatch+`" type="a/b"`))), []string{
			":2:1: rs-patch: found a patch link without type, expected the media type of the description of changes"}},
		{"a patch of a state", resources(entry("", link(`rel="`+RelPatch+`" type="a/b"`))), []string{
			":2:1: rs-patch: found a patch link in a resourcelist, expected none; patches lead from one state of a resource to the next"}},
		{"patches in a package", of(`changedump-manifest" from="`+t0, entry(changed+` path="/1" type="a/b"`, link(`rel="`+RelPatch+`" type="a/b"`), link(`rel="`+RelPatch+`" type="a/b" path="/2"`))), []string{
			":2:1: rs-patch: found a patch link without path in a manifest, expected the path of the description of changes in the package"}},

		{"a draft", of(`resourcelist" modified="`+t0, entry(`type="html" path="a"`)), nil},
		{"a sitemap", `<urlset xmlns="` + SitemapNamespace + `"><url><loc>http://a.example/1</loc></url></urlset>`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var problems []string
			d, bad, err := readDocument(strings.NewReader(c.doc), ReadOptions{URL: docURL, Strict: true, Report: func(p Problem) {
				problems = append(problems, strings.TrimPrefix(p.String(), docURL))
			}})
			usual := readAll(t, []byte(c.doc))
			if err != nil || len(bad)+len(usual.bad) > 0 || len(d.Entries) != len(usual.doc.Entries) || len(d.Entries) == 0 {
				t.Fatalf("%v, bad %v and %v", err, bad, usual.bad)
			}
			for _, p := range usual.problems { // some drafts break other rules
				if i := slices.Index(problems, strings.TrimPrefix(p.String(), docURL)); i >= 0 {
					problems = slices.Delete(problems, i, i+1)
				} else {
					t.Errorf("a strict Reader does not report %v", p)
				}
			}
			if !slices.Equal(problems, c.want) {
				t.Errorf("a strict Reader alone reports\n%s\nwant\n%s", strings.Join(problems, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// A strict Reader reports every place, also of the rules that another one reports once.
func TestStrictReportsAll(t *testing.T) {
	doc := listOf(strings.Repeat("<url><loc>http://a.example/1</loc><lastmod>2026-01-02T03:04:05</lastmod></url>", 3))
	for strict, want := range map[bool]int{false: 1, true: 3} {
		n := 0
		_, _, err := readDocument(strings.NewReader(doc), ReadOptions{URL: docURL, Strict: strict, Report: func(p Problem) {
			if p.Rule == ruleNaive {
				n++
			}
		}})
		if err != nil || n != want {
			t.Errorf("strict %t: reported %d times, want %d, %v", strict, n, want, err)
		}
	}
}

// How two documents fit together: what an entry or a link up leads to is what the document
// says of it, and says the same of the document.
func TestNamed(t *testing.T) {
	const here, there = "http://a.example/here", "http://a.example/there"
	t0, t1 := Seconds(moment), Seconds(moment.Add(1e9))
	named := func(d Document) Named { return Named{&d, here + "?asked", here} }
	leads := func(d Document) Named { return Named{&d, there, there} }
	rel := func(rel, href string) []Link { return []Link{{Rel: rel, Href: href}} }
	entry := Entry{Loc: there, Line: 4, Column: 5}
	states := func(m Metadata) *Entry { e := entry; e.Metadata = m; return &e }
	entries := func(d Named, e *Entry, to Named) func(func(Problem)) {
		return func(report func(Problem)) { d.CheckEntry(e, to, report) }
	}
	up := func(d, to Capability, dialect Dialect) func(func(Problem)) {
		return func(report func(Problem)) {
			named(Document{Capability: d, Dialect: dialect}).CheckUp(leads(Document{Capability: to}), report)
		}
	}
	place := func(requested string, d Document) func(func(Problem)) {
		return func(report func(Problem)) { Named{&d, requested, here}.CheckPlace(report) }
	}
	lists := Document{Capability: CapabilityList, Dialect: Dialect11}
	index := func(c Capability) Named { return named(Document{Capability: c, Index: true, Dialect: Dialect11}) }
	part := func(c Capability, until Datetime) Named {
		return leads(Document{Capability: c, Until: until, Dialect: Dialect11, Links: rel(RelIndex, here)})
	}
	for _, c := range []struct {
		name  string
		check func(func(Problem))
		want  string // the problem, "" is none
	}{
		{"an entry", entries(named(lists), states(Metadata{Capability: ResourceList}), leads(Document{Capability: ResourceList})), ""},
		{"an entry that says nothing", entries(named(lists), &entry, leads(Document{Capability: ResourceList})), ""},
		{"an entry to something else", entries(named(lists), states(Metadata{Capability: ResourceList}), leads(Document{Capability: ChangeList})),
			here + `:4:5: rs-missing: found a document of capability "changelist" at ` + there + `, expected one of capability "resourcelist"`},
		{"a part of an index", entries(index(ResourceList), &entry, part(ResourceList, Datetime{})), ""},
		{"a part that names the address that was asked for", entries(index(ResourceList), &entry, leads(Document{Capability: ResourceList, Links: rel(RelIndex, here+"?asked")})), ""},
		{"a part that is an index", entries(index(ResourceList), &entry, leads(Document{Capability: ResourceList, Index: true})), ""},
		{"a part of a draft", entries(index(ResourceList), &entry, leads(Document{Capability: ResourceList, Dialect: Dialect091})), ""},
		{"a part of a Source Description", entries(index(Description), &entry, leads(Document{Capability: Description})), ""},
		{"a part that is a sitemap", entries(index(ResourceList), &entry, leads(Document{Dialect: DialectSitemap})),
			here + `:4:5: rs-missing: found a document of capability "" at ` + there + `, expected one of capability "resourcelist"`},
		{"a part that names no index", entries(index(ResourceList), &entry, leads(Document{Capability: ResourceList})),
			there + ": rs-index-link: found no link with rel=index, expected one to " + here + "?asked, which names this document"},
		{"a part of another index", entries(index(ResourceList), &entry, leads(Document{Capability: ResourceList, Links: rel(RelIndex, there)})),
			there + ": rs-index-link: found a link with rel=index to " + there + ", expected one to " + here + "?asked, which names this document"},
		{"a closed list", entries(index(ChangeList), states(Metadata{Until: t0}), part(ChangeList, t1)), ""},
		{"an open list", entries(index(ChangeList), &entry, part(ChangeList, Datetime{})), ""},
		{"a closed list that is said to be open", entries(index(ChangeList), &entry, part(ChangeList, t1)),
			here + ":4:5: rs-index-until: found no until of " + there + ", which is closed, expected until " + t1.String()},
		{"an open list that is said to be closed", entries(index(ChangeList), states(Metadata{Until: t0}), part(ChangeList, Datetime{})),
			here + ":4:5: rs-index-until: found until " + t0.String() + " of " + there + ", which is open, expected no until"},

		{"up", up(ResourceList, CapabilityList, Dialect11), ""},
		{"up from a Capability List", up(CapabilityList, Description, Dialect11), ""},
		{"up to an index", up(ResourceList, ResourceList, Dialect11), ""},
		{"up in a draft", up(ResourceList, Description, Dialect091), ""},
		{"up too far", up(ResourceList, Description, Dialect11),
			here + `: rs-names: found a link with rel=up to a document of capability "description", expected one to a capabilitylist`},
		{"up from a Capability List, not far enough", up(CapabilityList, ResourceList, Dialect11),
			here + `: rs-names: found a link with rel=up to a document of capability "resourcelist", expected one to a description`},

		{"at its place", place("http://a.example/.well-known/resourcesync", Document{Capability: Description}), ""},
		{"a part of one", place("http://a.example/1.xml", Document{Capability: Description, Links: rel(RelIndex, there)}), ""},
		{"a file", place("file:///1.xml", Document{Capability: Description}), ""},
		{"a list", place("http://a.example/1.xml", lists), ""},
		{"anywhere", place("http://a.example/1.xml", Document{Capability: Description}),
			here + ": rs-well-known: found a Source Description at /1.xml, expected it at /.well-known/resourcesync"},
		{"nowhere", func(report func(Problem)) { report(Missing(here, 4, 5, there, "HTTP 404")) }, here + ":4:5: rs-missing: found " + there + ": HTTP 404, expected a document"},
	} {
		var got []string
		c.check(func(p Problem) { got = append(got, p.String()) })
		if g := strings.Join(got, "\n"); g != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, g, c.want)
		}
	}
}
