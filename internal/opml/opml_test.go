package opml

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Feeds are read with their folders, from what feed readers write and people mistype.
func TestRead(t *testing.T) {
	t.Parallel()
	const doc = `<?xml version="1.0" encoding="ISO-8859-1"?>
<opml version="1.1"><head><title>Mine</title><outline xmlUrl="http://no.example/"/></head><body>
<outline text="One" type="rss" xmlUrl=" http://a.example/?x=1&y=2 " htmlUrl="http://a.example/"/>
<outline text="Sciences" title="The sciences"><outline title="Physics"><outline text="&lt;Deep&gt;" xmlUrl="http://b.example/" type="atompmh"/></outline>
<outline xmlUrl="http://c.example/"/><outline><outline xmlUrl="http://d.example/"/></outline></outline>
<outline text="only a folder"/><other><outline xmlUrl="http://e.example/"/></other></body></opml>`
	all, err := Read(strings.NewReader(doc), "mine.opml")
	want := []Feed{
		{URL: "http://a.example/?x=1&y=2", Name: "One", Type: "rss", Line: 3},
		{URL: "http://b.example/", Name: "<Deep>", Type: "atompmh", Folder: []string{"Sciences", "Physics"}, Line: 4},
		{URL: "http://c.example/", Folder: []string{"Sciences"}, Title: "The sciences", Line: 5},
		{URL: "http://d.example/", Folder: []string{"Sciences"}, Title: "The sciences", Line: 5},
	}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, all, want)
	}
}

// What is hostile or no OPML is refused, and the error says where.
func TestReadHostile(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ doc, want string }{
		"nothing":     {"", "x.opml:1:1"},
		"a feed":      {"<rss/>", "want an OPML document"},
		"a page":      {"<!doctype html><html><body>", "x.opml:1:"},
		"entities":    {`<!DOCTYPE opml [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><opml><body><outline xmlUrl="&b;"/></body></opml>`, "x.opml:1:"},
		"a file":      {`<!DOCTYPE opml [<!ENTITY a SYSTEM "file:///etc/passwd">]><opml><body><outline xmlUrl="&a;"/></body></opml>`, "x.opml:1:"},
		"depth":       {"<opml><body>" + strings.Repeat("<outline text='a'>", 1_000_000), "cap \"depth\""},
		"attributes":  {"<opml><body><outline " + strings.Repeat("a='b' ", 100_000), "x.opml:1:"},
		"a long text": {"<opml><body><outline text='" + strings.Repeat("a", 1<<20) + "'/></body></opml>", "cap \"text\""},
		"a rest":      {"<opml><body><outline xmlUrl='http://a.example/'", "x.opml:1:"},
		"two roots":   {"<opml/><opml/>", "x.opml:1:"},
		"too many":    {"<opml><body>" + strings.Repeat("<outline xmlUrl='http://a.example/'/>", MaxFeeds+1) + "</body></opml>", "more than 50000 feeds"},
	} {
		if all, err := Read(strings.NewReader(x.doc), "x.opml"); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %d feeds, %v; want %q", name, len(all), err, x.want)
		}
	}
}

// Folders of one name with different titles stay two.
func TestTitleOfTheSecond(t *testing.T) {
	t.Parallel()
	feeds := []Feed{
		{URL: "http://a.example/", Name: "a", Type: "rss", Folder: []string{"maps"}},
		{URL: "http://b.example/", Name: "b", Type: "rss", Folder: []string{"maps"}, Title: "The maps"},
		{URL: "http://c.example/", Name: "c", Type: "rss", Folder: []string{"maps", "old"}},
	}
	var b strings.Builder
	if err := Write(&b, "All", feeds); err != nil {
		t.Fatal(err)
	}
	is, err := Read(strings.NewReader(b.String()), "x.opml")
	for i := range is {
		is[i].Line = 0
	}
	if err != nil || !reflect.DeepEqual(is, feeds) || strings.Count(b.String(), `text="maps"`) != 2 {
		t.Errorf("%v\n%s\n%+v", err, b.String(), is)
	}
}

// Law: what is written is read as it was.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`[a-zA-Zäß&<>"'\]]{1,8}( [a-z]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		var feeds []Feed
		for i := range rapid.IntRange(0, 6).Draw(t, "feeds") {
			f := Feed{URL: fmt.Sprintf("http://%d.example/?a=b&c=\"%s\"", i, word.Draw(t, "query")), Name: word.Draw(t, "name"), Type: rapid.SampledFrom([]string{"rss", "oaipmh"}).Draw(t, "type")}
			f.Folder = rapid.SliceOfN(word, 0, 3).Draw(t, "folder")
			if len(f.Folder) == 0 {
				f.Folder = nil
			} else if rapid.Bool().Draw(t, "titled") {
				f.Title = "The title of " + f.Folder[len(f.Folder)-1]
			}
			if i > 0 && rapid.Bool().Draw(t, "same") {
				f.Folder, f.Title = feeds[i-1].Folder, feeds[i-1].Title
			}
			feeds = append(feeds, f)
		}
		var b strings.Builder
		if err := Write(&b, "All & more", feeds); err != nil {
			t.Fatal(err)
		}
		is, err := Read(strings.NewReader(b.String()), "x.opml")
		for i := range is {
			is[i].Line = 0
		}
		if err != nil || !reflect.DeepEqual(is, feeds) {
			t.Fatalf("%v: %s\n%+v\nnot\n%+v", err, b.String(), is, feeds)
		}
	})
}
