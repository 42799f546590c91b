package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestDerivedNames: each name is one that a set may have, begins with that of the template,
// and tells a person which Capability List it is of.
func TestDerivedNames(t *testing.T) {
	set := Set{Name: "copy"}
	for list, want := range map[string]string{
		"https://h.example/dataset1/capabilitylist.xml":                           "copy-dataset1",
		"https://h.example/sets/Maps/capabilitylist.xml":                          "copy-maps",
		"https://h.example/dataset2/Capability-List.xml?x=1":                      "copy-dataset2",
		"https://h.example/caps/photos.xml":                                       "copy-photos",
		"https://h.example/a_b.c/capabilities.xml":                                "copy-a-b-c",
		"https://h.example/capabilitylist.xml":                                    "copy-capabilitylist",
		"https://h.example/%C3%84%C3%96/capabilitylist.xml":                       "",
		"https://h.example/":                                                      "",
		"https://h.example/" + strings.Repeat("long", 30) + "/capabilitylist.xml": "copy-" + strings.Repeat("long", 30)[:63-4-8-2],
		"https://h.example/" + strings.Repeat("-", 200) + "/capabilitylist.xml":   "",
	} {
		got := set.DerivedNames(list)
		if want != "" && got[0] != want || want == "" && len(got) != 1 {
			t.Errorf("%s: %q, want %q first", list, got, want)
		}
		for _, name := range got {
			if !setName().MatchString(name) || !strings.HasPrefix(name, "copy-") {
				t.Errorf("%s: %q cannot be a set's name", list, name)
			}
		}
		if other := set.DerivedNames(list + "2"); slices.Contains(other, got[len(got)-1]) {
			t.Errorf("%s: %q is the last resort of another list too", list, got[len(got)-1])
		}
	}
	set.Name = strings.Repeat("n", maxTemplateName)
	for _, name := range set.DerivedNames("https://h.example/" + strings.Repeat("x", 100)) {
		if !setName().MatchString(name) {
			t.Errorf("%q cannot be a set's name", name)
		}
	}
}

// TestDerive: a set that is made of a template has the template's settings and one
// Capability List as its Source; where the template is part of a set, it is too.
func TestDerive(t *testing.T) {
	const list = "https://h.example/maps/capabilitylist.xml"
	template := Set{Name: "copy", Title: "Copy", Content: Mirror, Sources: []Source{{Name: "h", Kind: ResourceSync, URL: "https://h.example/", Sets: EachSet, User: "me"}}}
	want := Set{Name: "copy-maps", Template: "copy", Title: "Copy: maps", Content: Mirror,
		Sources: []Source{{Kind: ResourceSync, URL: list, Origin: "https://h.example/", Sets: OneSet, User: "me"}}}
	if got := template.Derive("copy-maps", list); !reflect.DeepEqual(got, want) || template.Sources[0].Name != "h" {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if template.Title = ""; template.Derive("copy-maps", list).Title != "" {
		t.Error("a template without a title gave one")
	}
	for name, want := range map[string]string{"": "", "part": "part-maps"} {
		of := Source{Kind: KindSet, Name: name, URL: "set:copy", Every: memberEvery}
		if got, want := of.AsMember("copy-maps"), (Source{Kind: KindSet, Name: want, URL: "set:copy-maps", Every: memberEvery}); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestTemplateSets: a template has one Source, of the only kind that has sets.
func TestTemplateSets(t *testing.T) {
	for name, row := range map[string]struct{ file, want string }{
		"alone":     {"[[set.source]]\nurl = \"http://h.example/\"\nsets = \"each\"", ""},
		"two":       {"[[set.source]]\nurl = \"http://h.example/\"\nsets = \"each\"\n[[set.source]]\nurl = \"http://h.example/2\"", "must be the only [[set.source]]"},
		"submits":   {"[[set.source]]\nurl = \"http://h.example/\"\nsets = \"each\"\n[[set.submit]]\nurl = \"http://h.example/2\"", "can have a [[set.submit]]"},
		"feed":      {"[[set.source]]\nurl = \"http://h.example/\"\nkind = \"feed\"\nsets = \"each\"", "only a Source of kind \"resourcesync\" has"},
		"no value":  {"[[set.source]]\nurl = \"http://h.example/\"\nsets = \"all\"", `write "one" or "each"`},
		"long name": {"[[set.source]]\nurl = \"http://h.example/\"\nsets = \"each\"", "more than 40 characters"},
	} {
		set := "s"
		if name == "long name" {
			set = strings.Repeat("s", 41)
		}
		path := filepath.Join(t.TempDir(), "bridge.toml")
		if err := os.WriteFile(path, []byte("[[set]]\nname = \""+set+"\"\n"+row.file+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		switch {
		case row.want != "":
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: %v, want %q", name, err, row.want)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case !c.Sets[0].IsTemplate() || c.Sets[0].Sources[0].Kind != ResourceSync:
			t.Errorf("%s: %+v", name, c.Sets[0])
		}
	}
}

// What people call a set becomes a valid name, and different names stay different where letters
// would be lost.
func TestSetNameOf(t *testing.T) {
	t.Parallel()
	for called, want := range map[string]string{
		"News": "news", "Über uns": "uber-uns", " C++ & Go! ": "c-go", "2024/25": "2024-25", "ﬁsh": "fish", "日本": "", "": "",
		"日本 1": "1-", strings.Repeat("long ", 30): strings.Repeat("long-", 10) + "long-", "---": "",
	} {
		name := SetNameOf(called)
		if !setName().MatchString(name) || !strings.HasPrefix(name, want) {
			t.Errorf("%q becomes %q, want %q", called, name, want)
		}
	}
	for _, name := range []string{"main", "a--b", "a-", "0", strings.Repeat("a-", 31) + "b"} { // as bridge source export writes them
		if got := SetNameOf(name); got != name {
			t.Errorf("set %s becomes %s", name, got)
		}
	}
	if a, b := SetNameOf("日本"), SetNameOf("中国"); a == b {
		t.Errorf("both become %s", a)
	}
}
