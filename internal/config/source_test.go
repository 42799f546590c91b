package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseSource(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	if err := os.Mkdir("feeds", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("records", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"feed.atom", "a=b.atom", "b.atom", "x:y.atom", filepath.Join("feeds", "index.atom")} {
		write(t, folder, name, "<feed/>")
	}
	file := "file://" + folder + "/"
	for argument, want := range map[string][3]string{
		"https://h.example/feed.atom":        {"main", "", "https://h.example/feed.atom"},
		"campus=https://h.example/f":         {"campus", "", "https://h.example/f"},
		"campus=atompmh:https://h.example/f": {"campus", AtomPMH, "https://h.example/f"},
		"atompmh:http://h.example:80/?a=b":   {"main", AtomPMH, "http://h.example:80/?a=b"},
		"http://h.example/?set=a":            {"main", "", "http://h.example/?set=a"},
		"HTTP://H.example/":                  {"main", "", "HTTP://H.example/"},
		"feed.atom":                          {"main", "", file + "feed.atom"},
		"feeds/index.atom":                   {"main", "", file + "feeds/index.atom"},
		folder + "/feed.atom":                {"main", "", file + "feed.atom"},
		"file://" + folder + "/feed.atom":    {"main", "", file + "feed.atom"},
		"atompmh:feed.atom":                  {"main", AtomPMH, file + "feed.atom"},
		"x:y.atom":                           {"main", "", file + "x:y.atom"},
		"a=b.atom":                           {"a", "", file + "b.atom"},
		"./a=b.atom":                         {"main", "", file + "a=b.atom"},
		"main=a=b.atom":                      {"main", "", file + "a=b.atom"},
		"records":                            {"main", Folder, file + "records/"},
		"s=./records/":                       {"s", Folder, file + "records/"},
		"file://" + folder + "/records":      {"main", Folder, file + "records/"},
		"folder:feeds":                       {"main", Folder, file + "feeds/"},
		"folder:later/":                      {"main", Folder, file + "later/"},
		"csv:https://h.example/list":         {"main", CSV, "https://h.example/list"},
	} {
		set, s, err := ParseSource(argument)
		if got := [3]string{set, s.Kind, s.URL}; err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", argument, got, err, want)
		}
		wantSource := defaults[Source]()
		wantSource.Kind, wantSource.URL = s.Kind, s.URL
		if err == nil && !reflect.DeepEqual(s, wantSource) {
			t.Errorf("%s: defaults are missing: %+v", argument, s)
		}
	}
	for argument, want := range map[string]string{
		"":                             "there is no URL and no path",
		"campus=":                      "there is no URL and no path",
		"Campus=feed.atom":             "the name of a set is written in lower case: campus=",
		"Library=sip:":                 "the name of a set is written in lower case: library=",
		"Library=http://h.example/":    "the name of a set is written in lower case: library=",
		"main=a=none.atom":             "a=none.atom",
		"mus eum=http://h.example/":    `; "mus eum" is no name of a set, which has letters a to z, digits and -`,
		"musée=https://h.example/":     `; "musée" is no name of a set`,
		"library=sipp:":                `sipp:, and no kind "sipp": the kinds are "atompmh", "resourcesync", "oaipmh", "feed", "folder", "csv", "sitemap", "set" or "sip"`,
		"rss:feed.xml":                 `, and no kind "rss": the kinds are `,
		"sip":                          "; a kind is written with a colon: sip:",
		"library=feed":                 "; a kind is written with a colon: feed:",
		"-a=feed.atom":                 "there is no file ",
		"feeds":                        "feeds has index.atom, which may be a Source itself: write the path of that",
		"feed:feeds":                   "feeds is a folder; write the path of the document in it",
		"folder:feed.atom":             "feed.atom is no folder of this machine",
		"folder:http://h.example/":     "http://h.example/ is no folder of this machine",
		"no.atom":                      "there is no file ",
		"x:y.atom/part":                "x:y.atom/part: not a directory",
		"set:Maps":                     `"Maps" is not a name of a set; write it like "set:main"`,
		`C:\feeds\feed.atom`:           "there is no file ",
		"C:/feeds/feed.atom":           "there is no file ",
		"localhost:8080/feed.atom":     "for a server write http://localhost:8080/feed.atom",
		"data.example.org/feed":        "for a server write http://data.example.org/feed",
		"rss:http://h.example/":        `there is no kind "rss"; write "atompmh", "resourcesync", "oaipmh", "feed", "folder", "csv", "sitemap", "set" or "sip"`,
		"ftp://h.example/":             "cannot harvest from ftp://; write http://",
		"http:///feed.atom":            "names no host",
		"http://h.example/#top":        "has a fragment",
		"http://h.example/?a hunter2":  "http://h.example/?*** has a space in it; write %20",
		"http://h.example/a b?hunter2": "http://h.example/a b?*** has a space in it; write %20",
		"http://u:hunter2@h.example/":  "http://h.example/ holds a user or password",
		"http://u:hunter2@h.example/%": "is not a URL",
		"http://u:hunter/2@h.example/": "http://h.example/ is not a URL; write it without user and password",
		"file://other.example/f.atom":  "is not a URL of a local file",
	} {
		_, _, err := ParseSource(argument)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: error %v, want %q", argument, err, want)
		}
	}
}

// A file of the configuration may be on a disk that is not mounted yet: the other Sources are
// harvested meanwhile, and a warning says what is missing. On the command line it is a mistake.
func TestAbsentFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := write(t, folder, "bridge.toml", "[[set]]\nname = \"a\"\nsource = [{url = \"disk/feed.atom\"}, {url = \"disk/records/\"}, {url = \"./bridge.toml/part\", name = \"odd\"}, {url = \"bridge.toml\"}]\n")
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	at := "file://" + folder
	for i, want := range []string{"/disk/feed.atom", "/disk/records/", "/bridge.toml/part", "/bridge.toml"} {
		if got := c.Sets[0].Sources[i].URL; got != at+want {
			t.Errorf("%s, want %s", got, at+want)
		}
	}
	all := c.Warnings()
	if len(all) != 3 || !strings.HasPrefix(all[0], `set "a": source `+at+"/disk/feed.atom: ") || !strings.HasSuffix(all[0], "no such file or directory: its harvests fail until it is there") ||
		!strings.HasPrefix(all[2], `set "a": source odd: `) {
		t.Errorf("%q", all)
	}
	if _, _, err := ParseSource(folder + "/disk/feed.atom"); err == nil || !strings.Contains(err.Error(), "there is no file ") {
		t.Errorf("on the command line: %v", err)
	}
}

// A Source may be another set; a name that is none gets no further.
func TestSetOnTheCommandLine(t *testing.T) {
	for argument, name := range map[string]string{"all=set:maps": "all", "set:maps": "main"} {
		set, s, err := ParseSource(argument)
		want := Source{Kind: KindSet, URL: "set:maps", Sets: OneSet, Every: time.Hour}
		if err != nil || set != name || !reflect.DeepEqual(s, want) || s.Member() != "maps" {
			t.Errorf("%s: %q, %+v, %v", argument, set, s, err)
		}
	}
	if name := (&Source{Kind: Feed, URL: "set:maps"}).Member(); name != "" {
		t.Errorf("a feed is set %q", name)
	}
}

func TestSIPOnTheCommandLine(t *testing.T) {
	for argument, want := range map[string]struct{ set, url, record string }{
		"sip:":                    {"main", "/sip/main", ""},
		"campus=sip:":             {"campus", "/sip/campus", ""},
		"campus=sip:/sip/campus":  {"campus", "/sip/campus", ""},
		"campus=sip:" + recordURL: {"campus", "/sip/campus", recordURL},
	} {
		wantSource := defaultSIPSource(want.set)
		wantSource.URL, wantSource.SIP.RecordURL = want.url, want.record
		set, s, err := ParseSource(argument)
		if err != nil || set != want.set || !reflect.DeepEqual(s, wantSource) {
			t.Errorf("%s: %q %+v, %v", argument, set, s, err)
		}
	}
	for argument, want := range map[string]string{
		"sip:http://127.0.0.1:9/{x}":                           "has {assigned-identifier} 0 times",
		"sip:http://h.example/records/":                        "record_url: has {assigned-identifier} 0 times; write it once, like ",
		"sip:feed.atom":                                        "has {assigned-identifier} 0 times",
		"sip:/sip/other":                                       "has {assigned-identifier} 0 times",
		"sip:records/{assigned-identifier}":                    `"records/" is not a URL of a web server`,
		"sip:http://u:hunter2@h.example/{assigned-identifier}": "holds a user",
		"sip:https://{assigned-identifier}.example/":           "is in the host",
	} {
		if _, _, err := ParseSource(argument); !said(err, want) || !strings.HasPrefix(err.Error(), "source "+strings.Replace(argument, "u:hunter2@", "", 1)+": ") {
			t.Errorf("%s: error %v, want %q", argument, err, want)
		}
	}
	c, err := FromArguments(Flags{}, []string{"sip:" + recordURL, "atompmh:http://a.example/"})
	if err != nil || len(c.Sets) != 1 || c.Sets[0].Sources[0].SIP.RecordURL != recordURL {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = FromArguments(Flags{}, []string{"sip:" + recordURL, "sip:", "b=sip:"})
	var all *Error
	if !errors.As(err, &all) || len(all.Problems) != 1 ||
		err.Error() != `source sip:: is the second of kind "sip" in set "main"; one takes everything, so leave this out` {
		t.Errorf("error %v", err)
	}
}

// The keys of an OAI-PMH repository belong to its kind, which they tell too.
func TestRepositoryKeys(t *testing.T) {
	const set = "[[set]]\nname = \"a\"\n[[set.source]]\n"
	for name, tt := range map[string]struct{ source, want string }{
		"all keys":            {"url = \"http://h.example/oai\"\nformat = \"mods\"\nalso = [\"oai_dc\"]\noai_set = \"a:b\"\nwindow = \"30d\"", ""},
		"a request":           {"url = \"http://h.example/oai?verb=ListRecords&metadataPrefix=mods&set=x\"\nformat = \"mods\"", ""},
		"another kind":        {"kind = \"feed\"\nurl = \"http://h.example/oai\"\nformat = \"mods\"", `set "a": source 1: format: is only for a Source of kind "oaipmh"`},
		"two formats":         {"url = \"http://h.example/oai?metadataPrefix=mods\"\nformat = \"marc\"", `the url says metadataPrefix=mods`},
		"two sets":            {"url = \"http://h.example/oai?set=x\"\noai_set = \"y\"", `the url says set=x`},
		"a format twice":      {"url = \"http://h.example/oai\"\nalso = [\"oai_dc\"]", "harvested anyway"},
		"no prefix":           {"url = \"http://h.example/oai\"\nformat = \"oai dc\"", "is not a metadataPrefix"},
		"no setSpec":          {"url = \"http://h.example/oai\"\noai_set = \"a b\"", "is not a setSpec"},
		"an hour's window":    {"url = \"http://h.example/oai\"\nwindow = \"1h\"", "shorter than a day"},
		"a file":              {"kind = \"oaipmh\"\nurl = \"FILE\"", "a local file"},
		"until before from":   {"url = \"http://h.example/oai?from=2021-03-02&until=2021-03-01\"\nformat = \"mods\"", "until=2021-03-01, which is earlier than from=2021-03-02"},
		"until before a time": {"url = \"http://h.example/oai?until=2021-03-01&from=2021-03-02T00:00:00Z\"\nformat = \"mods\"", "earlier than from=2021-03-02T00:00:00Z"},
		"no date":             {"url = \"http://h.example/oai?from=2021-02-30\"\nformat = \"mods\"", "from=2021-02-30, which is no date"},
		"a day of hours":      {"url = \"http://h.example/oai?from=2021-03-01T18:00:00Z&until=2021-03-01\"\nformat = \"mods\"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			file := write(t, folder, "oai.xml", "<x/>")
			c, err := Load(write(t, folder, "bridge.toml", set+strings.Replace(tt.source, "FILE", file, 1)))
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s := c.Sets[0].Sources[0]
			if s.Kind != OAIPMH || s.Format != "mods" || s.FullEvery != 7*24*time.Hour {
				t.Errorf("%+v", s)
			}
			if name == "all keys" && (len(s.Also) != 1 || s.OAISet != "a:b" || s.Window != 30*24*time.Hour) {
				t.Errorf("%+v", s)
			}
		})
	}
	name, s, err := ParseSource("x=oaipmh:http://h.example/oai?verb=Identify")
	if err != nil || name != "x" || s.Kind != OAIPMH || s.URL != "http://h.example/oai?verb=Identify" {
		t.Errorf("%s %+v %v", name, s, err)
	}
}

// A name stands in the lines that commands print, and makes none.
func TestNameInOneLine(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{
		"a Source":    "[[set.source]]\nurl = \"http://h.example/f\"\nname = \"a\\nok b\"\n",
		"a set":       "[[set.source]]\nurl = \"set:b\"\nname = \"a\\tb\"\n[[set]]\nname = \"b\"\n",
		"a service":   "[[set.source]]\nkind = \"sip\"\nname = \"a\\u0085b\"\n",
		"a recipient": "[[set.submit]]\nurl = \"http://h.example/sip\"\nname = \"a\\rb\"\n",
	} {
		_, err := Load(write(t, t.TempDir(), "bridge.toml", "[[set]]\nname = \"a\"\n"+source))
		if !said(err, "; write a name in one line") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
