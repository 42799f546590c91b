package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// write makes a file below a folder of the test's own.
func write(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Load(write(t, t.TempDir(), "bridge.toml", text))
}

func TestTemplateLoadsAsItIs(t *testing.T) {
	c, err := load(t, Template())
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File, want.Data = c.File, filepath.Join(filepath.Dir(c.File), "bridge-data")
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the template says\n%+v\nthe defaults are\n%+v", c, want)
	}
}

// uncomment returns the template with all that it shows at once, for a folder
// with feed.atom. The login of a local file is left out.
func uncomment() string {
	text := regexp.MustCompile(`(?m)^# (\[\[|[a-z_]+ = )`).ReplaceAllString(Template(), "$1")
	text = strings.Replace(text, `url = "https://data.example.org/feed.atom"`, `url = "feed.atom"`, 1)
	return regexp.MustCompile(`(?m)^(user = "harvester"|password_file = "source.password").*$`).ReplaceAllString(text, "")
}

// templateFolder has the files that the template names.
func templateFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"feed.atom", "mods-3-8.xsd"} {
		write(t, folder, name, "<x/>")
	}
	for _, name := range []string{"archive.password", "upstream.password", "submitter.password", "sip.token"} {
		write(t, folder, name, "open-sesame-open\n")
	}
	return folder
}

// Every key that the template shows exists, and every value that it shows for a
// default is the default.
func TestTemplateUncommented(t *testing.T) {
	folder := templateFolder(t)
	text := uncomment()
	c, err := Load(write(t, folder, "bridge.toml", text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(c.Sets) != 2 || len(c.Sets[0].Sources) != 1 {
		t.Fatalf("sets: %+v", c.Sets)
	}
	if c.Limits != Default().Limits || c.Snapshot != Default().Snapshot {
		t.Errorf("limits %+v, snapshot %+v", c.Limits, c.Snapshot)
	}
	source := c.Sets[0].Sources[0]
	want := defaults[Source]()
	want.Kind, want.URL, want.PublicURL = AtomPMH, "file://"+folder+"/feed.atom", "https://www.example.org/feeds/"
	want.Prefixes, want.Since = []string{"https://data.example.org/maps/"}, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	if !reflect.DeepEqual(source, want) {
		t.Errorf("source %+v\nwant   %+v", source, want)
	}
	set := c.Sets[0]
	if set.Content != Mirror || set.SegmentEvents != 10_000 || set.SegmentHours != 24 || set.Identity != Shared || len(set.Formats) != 2 {
		t.Errorf("set %+v", set)
	}
}

func TestLoadReadsEveryKey(t *testing.T) {
	t.Setenv("BRIDGE_TEST_PASSWORD", "rosebud")
	folder := t.TempDir()
	write(t, folder, "local.atom", "<feed/>")
	write(t, folder, "secret", " swordfish \n")
	c, err := Load(write(t, folder, "bridge.toml", `
listen = "0.0.0.0:80"
base_url = "https://bridge.example.org/pmh/"
data = "store"
allow_hosts = ["Inner.example", "10.0.0.7", "[::1]"]
contact = "ops@example.org"
proxy = "http://proxy.example:3128"
snapshot = { after_deletion = "5s", after_change = "1h", keep = "2h", keep_size = "7 MiB" }
[limits]
feed_document = "1 MiB"
list_document = "3 MiB"
record = 1000
sip_message = "5 MiB"
header = "4KiB"
text = "2 GiB"
depth = 100
attributes = 50
ratio = 20
redirects = 3
connections = 4
rate = 7
connect_timeout = "1s"
header_timeout = "2s"
idle_timeout = "3s"
harvest_time = "4h"
harvest_size = "1 GiB"
cache = "9 MiB"
free_space = "2 GiB"
open_address_messages = 0
open_address_size = "5 MiB"
open_set_messages = 77
open_set_size = "6 MiB"
[[set]]
name = "campus"
title = "Campus"
description = "All of it"
content = "redirect"
prefer = ["application/rdf+xml"]
formats = ["application/rdf+xml", "text/html"]
segment_events = 50000
segment_hours = 1
identity = "per-source"
history = false
[[set.source]]
url = "https://A.example:8443/feed.atom?x=1"
kind = "atompmh"
every = "10m"
full_every = "0s"
overlap = "0s"
max_documents = 5
hold_deletions = "1h"
user = "me"
password = "${BRIDGE_TEST_PASSWORD}"
[[set.source]]
name = "local"
url = "local.atom"
public_url = "https://files.example/x"
[[set]]
name = "other"
[[set.source]]
url = "http://b.example/"
kind = "resourcesync"
prefix = ["http://b.example/x", "https://c.example/"]
since = 2026-02-03T04:05:06+01:00
user = "you"
password_file = "secret"
`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "0.0.0.0:80" || c.BaseURL != "https://bridge.example.org/pmh" || c.Data != filepath.Join(folder, "store") ||
		c.Contact != "ops@example.org" || c.Proxy != "http://proxy.example:3128" {
		t.Errorf("%+v", c)
	}
	if want := []string{"inner.example", "10.0.0.7", "::1"}; !reflect.DeepEqual(c.AllowHosts, want) {
		t.Errorf("allow_hosts %v", c.AllowHosts)
	}
	if want := (Snapshot{5 * time.Second, time.Hour, 2 * time.Hour, 7 << 20}); c.Snapshot != want {
		t.Errorf("snapshot %v", c.Snapshot)
	}
	if want := (Limits{1 << 20, 3 << 20, 1000, 5 << 20, 4 << 10, 2 << 30, 100, 50, 20, 3, 4, 7, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Hour, 1 << 30, 9 << 20, 2 << 30, 0, 5 << 20, 77, 6 << 20}); c.Limits != want {
		t.Errorf("limits %+v", c.Limits)
	}
	local := defaults[Source]()
	local.Name, local.URL, local.PublicURL = "local", "file://"+folder+"/local.atom", "https://files.example/x/"
	other := defaults[Set]()
	other.Name = "other"
	b := defaults[Source]()
	b.Kind, b.URL, b.User, b.Password = ResourceSync, "http://b.example/", "you", Secret{"swordfish"}
	b.Prefixes, b.Since = []string{"http://b.example/x", "https://c.example/"}, time.Date(2026, 2, 3, 3, 5, 6, 0, time.UTC)
	other.Sources = []Source{b}
	want := []Set{{
		Name: "campus", Title: "Campus", Description: "All of it", Content: Redirect,
		Prefer: []string{"application/rdf+xml"}, Formats: []string{"application/rdf+xml", "text/html"},
		SegmentEvents: 50_000, SegmentHours: 1, Identity: PerSource,
		Sources: []Source{{
			Kind: AtomPMH, URL: "https://A.example:8443/feed.atom?x=1", Every: 10 * time.Minute,
			MaxDocuments: 5, HoldDeletions: time.Hour, User: "me", Password: Secret{"rosebud"},
		}, local},
	}, other}
	if !reflect.DeepEqual(c.Sets, want) {
		t.Errorf("sets\n%+v\nwant\n%+v", c.Sets, want)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprintf("%v", c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), string(asJSON)} {
		if strings.Contains(shown, "rosebud") || strings.Contains(shown, "swordfish") || !strings.Contains(shown, "***") {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
}

// Everything that is wrong is said at once, with its line and what to write.
func TestAllProblemsAtOnce(t *testing.T) {
	folder := t.TempDir()
	path := write(t, folder, "bridge.toml", `listen = "0.0.0.0:8080"
lisen = "x"
every = "1h"
allow_hosts = ["ok.example", "http://no/", 5]
[limits]
record = "many"
depth = 3
[[set]]
name = "Campus"
content = "mirrored"
segment_events = 50001
history = true
prefer = "text/xml"
formats = ["xml", "a/b", "a/b"]
[[set.source]]
kind = "atom"
every = "soon"
overlap = 5
urll = "x"
[[set.source]]
url = "http://u:hunter2@h.example/f"
password = "hunter2"
user = "u"
[[set]]
content = "mirror"
source = [{ url = "http://h.example/#x" },
 { every = "1ms", url = "ftp://h.example/" }, "x"]
[[set]]
name = "twice"
[[set]]
name = "twice"
identity = "per-source"
[[set.source]]
url = "http://h.example/1"
[[set.source]]
url = "http://h.example/1"
public_url = "http://h.example/"
password_file = "missing"
prefix = ["maps/"]
since = 2026-01-01T00:00:00
`)
	_, err := Load(path)
	var all *Error
	if !errors.As(err, &all) {
		t.Fatalf("error %T: %v", err, err)
	}
	want := []string{
		`:1: listen: 0.0.0.0:8080 can be reached from other machines`,
		`:2: lisen: there is no such key; the nearest is "listen"`,
		`:3: every: does not belong here; write it under a [[set.source]] that is harvested`,
		`:4: allow_hosts: "http://no/" is no host`,
		`:4: allow_hosts: has a number in its list`,
		`:6: limits: record: many is no size`,
		`:7: limits: depth: 3 is out of range; write a number from 8 to 10000`,
		`:9: set 1: name: "Campus" is no name of a set`,
		`:10: set 1: content: "mirrored" is none of its values; write "mirror", "redirect" or "reference"`,
		`:11: set 1: segment_events: 50001 is out of range; write a number from 1 to 50000`,
		`:12: set 1: history: serving earlier versions is not built`,
		`:13: set 1: prefer: is a string; write a list`,
		`:14: set 1: formats: "xml" is no media type`,
		`:14: set 1: formats: "a/b" stands twice`,
		`:15: set 1: source 1: url: is missing`,
		`:16: set 1: source 1: kind: "atom" is none of its values; write "atompmh", "resourcesync", "feed" or "sip"`,
		`:17: set 1: source 1: every: "soon" is no duration`,
		`:18: set 1: source 1: overlap: is a number; write a duration in quotes`,
		`:19: set 1: source 1: urll: there is no such key; the nearest is "url"`,
		`:21: set 1: source 2: url: http://h.example/f holds a user or password`,
		`:22: set 1: source 2: password: must not stand in this file`,
		`:24: set 2: name: is missing`,
		`:26: set 2: source 1: url: http://h.example/#x has a fragment`,
		`:26: set 2: source 3: is a string; write a table`,
		`:27: set 2: source 2: every: 1ms is too short; write 1s or more`,
		`:27: set 2: source 2: url: cannot harvest from ftp://`,
		`:31: set 4: name: there is another set "twice"`,
		`:36: set "twice": source 2: url: http://h.example/1 stands twice`,
		`:35: set "twice": source 2: name: is missing; with identity = "per-source"`,
		`:37: set "twice": source 2: public_url: is only for a Source that is a local file`,
		`:38: set "twice": source 2: password_file: `,
		`:39: set "twice": source 2: prefix: "maps/" is not how a URL begins`,
		`:40: set "twice": source 2: since: 2026-01-01T00:00:00 is no date with an offset`,
		`:35: set "twice": source 2: user: goes with password or password_file`,
	}
	said := err.Error()
	for _, w := range want {
		if strings.HasPrefix(w, ":") {
			w = path + w
		}
		if !strings.Contains(said, w) {
			t.Errorf("not said: %s", w)
		}
	}
	if len(all.Problems) != len(want) {
		t.Errorf("%d problems, want %d", len(all.Problems), len(want))
	}
	if strings.Contains(said, "hunter2") {
		t.Error("a secret is shown")
	}
	if t.Failed() {
		t.Log(said)
	}
}

func TestLoadFails(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"syntax":          {"data = \"x\"\n[[set]\n", "bridge.toml:2:"},
		"twice":           {"data = \"x\"\ndata = \"y\"\n", "bridge.toml:"},
		"variable":        {"[[set]]\nname=\"a\"\n[[set.source]]\nurl=\"http://h.example\"\nuser=\"u\"\npassword=\"${BRIDGE_TEST_UNSET}\"", "environment variable BRIDGE_TEST_UNSET is not set"},
		"no port":         {`listen = "localhost"`, `"localhost" is no address`},
		"port":            {`listen = "localhost:http8"`, `"http8" is no port`},
		"base relative":   {`base_url = "bridge.example.org"`, "is not absolute"},
		"base query":      {`base_url = "http://h.example/?a"`, "has a query"},
		"base user":       {`base_url = "http://u:hunter2@h.example/"`, "holds a user"},
		"base empty":      {`base_url = ""`, "is not absolute"},
		"set is no array": {"[set]\nname = \"a\"", "is a table; write a table with two brackets: [[set]]"},
		"renamed guard":   {"[[set]]\nname=\"a\"\nsource=[{url=\"http://h.example\", guard_wait=\"1h\"}]", `guard_wait: is called hold_deletions now; write that`},
		"renamed hello":   {"[mail]\nhello=\"h.example\"", `bridge.toml:2: mail: hello: is called helo now; write that`},
		"renamed into":    {"[[set]]\nname=\"a\"\nsubmit=[{url=\"http://h.example\", into=\"b\"}]", `into: is called import_accepted_to now; write that`},
		"contact":         {`contact = "a (b)"`, "has a bracket"},
		"path":            {"[[set]]\nname=\"a\"\nsource=[{url=\"no.atom\"}]", "there is no file "},
		"folder":          {"[[set]]\nname=\"a\"\nsource=[{url=\".\"}]", "is a folder"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, row.text)
			if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.toml")); err == nil || !strings.Contains(err.Error(), "bridge init") {
		t.Errorf("no file: %v", err)
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	path := write(t, t.TempDir(), "bridge.toml", "listen = \"0.0.0.0:80\"\ndata = \"store\"\n")
	c, err := LoadWith(path, Flags{Data: "here", Listen: "[::1]:9000"})
	if err != nil {
		t.Fatal(err)
	}
	working, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "[::1]:9000" || c.BaseURL != "http://[::1]:9000" || c.Data != filepath.Join(working, "here") {
		t.Errorf("%+v", c)
	}
	if c, err = LoadWith(path, Flags{BaseURL: "https://h.example/"}); err != nil || c.BaseURL != "https://h.example" {
		t.Errorf("base_url %v, %v", c, err)
	}
	if _, err = LoadWith(path, Flags{Listen: "nine", BaseURL: "https://h.example/?"}); err == nil ||
		err.Error() != `--listen: "nine" is no address; write host:port, like "127.0.0.1:8080"` {
		t.Errorf("error %v", err)
	}
}

func TestFromArguments(t *testing.T) {
	c, err := FromArguments(Flags{Listen: "localhost:0"}, []string{"http://a.example/", "b=atompmh:http://b.example/", "http://c.example/"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Sets) != 2 || c.Sets[0].Name != "main" || len(c.Sets[0].Sources) != 2 || c.Sets[1].Name != "b" || c.Sets[1].Sources[0].Kind != AtomPMH {
		t.Errorf("sets %+v", c.Sets)
	}
	if c.BaseURL != "" || !filepath.IsAbs(c.Data) || c.File != "" || c.Sets[0].SegmentEvents != 10_000 {
		t.Errorf("%+v", c)
	}
	_, err = FromArguments(Flags{Listen: "0.0.0.0:1"}, []string{"http://a.example/", "http://a.example/", "rss:http://b.example/"})
	var all *Error
	if !errors.As(err, &all) || len(all.Problems) != 3 {
		t.Errorf("error %v", err)
	}
}

func TestNearest(t *testing.T) {
	known := map[string]bool{"listen": true, "data": true, "base_url": true, "every": true}
	for key, want := range map[string]string{"evrey": "every", "Listen": "listen", "baseurl": "base_url", "dat": "data", "date": "data"} {
		if got := nearest(key, known); got != want {
			t.Errorf("nearest to %q: %q, want %q", key, got, want)
		}
	}
	if distance("evrey", "every") != 1 || distance("", "abc") != 3 || distance("kitten", "sitting") != 3 {
		t.Error("distances are wrong")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(Template())
	f.Add("[[set]]\nname=\"a\"\nsource=[{url=\"http://h.example\"}]\n[[set.source]]\n")
	f.Add(uncomment())
	f.Add("a.b.c = {d = [[1, {e = 2}], 3]}\n[limits]\nx.\"y\".z = 1")
	f.Fuzz(func(t *testing.T, text string) {
		doc, root, err := parse("f", []byte(text))
		if err == nil {
			doc.folder = t.TempDir()
			_, err = doc.read(root, Flags{})
		}
		if err != nil && err.Error() == "" {
			t.Error("an error that says nothing")
		}
	})
}

// D62: where the contents of a Source may come from, and hosts with a port.
func TestContentHosts(t *testing.T) {
	const source = "[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"https://a.example/\"\n"
	for value, want := range map[string]struct {
		only  bool
		hosts []string
	}{
		`"public"`: {}, `"same"`: {true, nil}, `[]`: {true, nil}, `["CDN.example", "10.0.0.7:8080", "[::1]", "[::1]:80"]`: {true, []string{"cdn.example", "10.0.0.7:8080", "::1", "[::1]:80"}},
	} {
		c, err := load(t, source+"content_hosts = "+value+"\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Sets[0].Sources[0]; got.OwnContents != want.only || !reflect.DeepEqual(got.ContentHosts, want.hosts) {
			t.Errorf("%s: %t %q", value, got.OwnContents, got.ContentHosts)
		}
	}
	for value, wrong := range map[string]string{
		`"any"`: `content_hosts: "any" is none of its values; write "public" or "same"`, `true`: "content_hosts: is true or false", `["http://a.example/"]`: "is no host",
		`["a.example:0"]`: "is no host", `["a.example:70000"]`: "is no host", `["a.example:http"]`: "is no host", `[":80"]`: "is no host",
	} {
		if _, err := load(t, source+"content_hosts = "+value+"\n"); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// D73: a file with a secret that others may read is warned of, wherever we listen.
func TestExposedSecret(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	secret := filepath.Join(folder, "password")
	text := "[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"https://data.example.org/\"\nuser = \"me\"\npassword_file = \"password\"\n"
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(secret, []byte("hush\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]int{0o600: 0, 0o640: 1, 0o604: 1} {
		if err := os.Chmod(secret, mode); err != nil {
			t.Fatal(err)
		}
		c, err := Load(file)
		if err != nil {
			t.Fatal(err)
		}
		if all := c.Warnings(); len(all) != want || want == 1 && !strings.Contains(all[0], secret+" holds a secret and others may read it") {
			t.Errorf("mode %v: %q", mode, all)
		}
	}
}
