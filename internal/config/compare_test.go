package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// What a running bridge cannot take over is named: keys of the process, and sets that use
// SIP with all that their requests depend on. Sets without SIP, alerts, and what people read
// about a set are taken over, and described.
func TestFixedAndChanges(t *testing.T) {
	const maps = "[[set]]\nname = \"maps\"\n[[set.source]]\nurl = \"http://a.example/\"\n[[set.source]]\nurl = \"http://b.example/\"\n"
	deposits := set("deposits", takes(keeps))
	const everySource = "allow_hosts, contact or proxy has changed, and counts for every Source"
	for name, row := range map[string]struct {
		was, is        string
		fixed, changes []string
	}{
		"nothing":                              {maps + deposits, maps + deposits, nil, nil},
		"keys of a process":                    {maps, "listen = \"127.0.0.1:9\"\n[mail]\nfrom = \"a@b.example\"\n[limits]\ndepth = 9\n" + maps, []string{"listen", "base_url", "mail", "limits"}, nil},
		"a log elsewhere":                      {maps, "[store]\nlog = \"postgres://db.example/bridge\"\n" + maps, []string{"store"}, nil},
		"contents elsewhere":                   {"[store]\ncontents = \"s3://library/a\"\n" + maps, "[store]\ncontents = \"s3://library/b\"\n" + maps, []string{"store"}, nil},
		"the same contents, written otherwise": {"[store]\ncontents = \"s3://library/a\"\n" + maps, "[store]\ncontents = \"s3://library/a/\"\n" + maps, nil, nil},
		"a host, no SIP":                       {maps, "allow_hosts = [\"a.example\"]\n" + maps, nil, []string{everySource}},
		"hosts and SIP": {deposits, "allow_hosts = [\"a.example\"]\ncontact = \"a@b.example\"\nproxy = \"http://p.example:80\"\n" + deposits,
			[]string{"allow_hosts (of a bridge that uses SIP)", "contact (of a bridge that uses SIP)", "proxy (of a bridge that uses SIP)"}, []string{everySource}},
		"a title of a set with SIP": {deposits, strings.Replace(deposits, "[[set]]", "[[set]]\ntitle = \"Gifts\"", 1), nil, []string{"set deposits has other settings"}},
		"what a set with SIP publishes": {deposits, strings.Replace(deposits, "[[set]]", "[[set]]\nrobots = false\nfeeds = false\ndumps = true\nhistory = true\nkeep_lists = 3\nkeep_lists_for = \"48h\"\nsegment_events = 7\nsegment_hours = 3", 1),
			nil, []string{"set deposits has other settings"}},
		"a Source beside SIP":        {deposits, deposits + harvests("http://a.example/"), nil, []string{"set deposits: Source http://a.example/ is added"}},
		"a mode of SIP":              {deposits, strings.Replace(deposits, "library", "review", 1), []string{`set "deposits": what it has to do with SIP`}, []string{"set deposits: Source /sip/deposits has other settings"}},
		"a set with SIP is new":      {maps, maps + deposits, []string{`set "deposits": what it has to do with SIP`}, []string{"set deposits is added", "set deposits: Source /sip/deposits is added"}},
		"a set with SIP is gone":     {deposits, "", []string{`set "deposits": what it has to do with SIP`}, []string{"set deposits is removed: it is kept, and not published any more"}},
		"a set submits":              {set("a"), set("a", submits("https://s.example/")), []string{`set "a": what it has to do with SIP`}, []string{"set a has other settings"}},
		"an alert":                   {maps, "[[alert]]\non = [\"held\"]\ncommand = [\"/bin/true\"]\n" + maps, nil, []string{"who is told of alerts has changed"}},
		"a Source is gone":           {maps, set("maps", harvests("http://b.example/")), nil, []string{"set maps: Source http://a.example/ is removed; its records stay", "set maps: Source http://b.example/ has another place"}},
		"a named Source has moved":   {maps + "name = \"b\"\n", strings.Replace(maps, "b.example", "c.example", 1) + "name = \"b\"\n", nil, []string{"set maps: Source b has another URL: http://c.example/"}},
		"another name, another URL":  {maps + "name = \"b\"\n", strings.Replace(maps, "b.example", "c.example", 1) + "name = \"c\"\n", nil, []string{"set maps: Source http://b.example/ is removed; its records stay", "set maps: Source http://c.example/ is added"}},
		"Sources in another order":   {maps, set("maps", harvests("http://b.example/"), harvests("http://a.example/")), nil, []string{"set maps: Source http://b.example/ has another place", "set maps: Source http://a.example/ has another place"}},
		"a Source has other setting": {maps, maps + "every = \"2h\"\n", nil, []string{"set maps: Source http://b.example/ has other settings"}},
	} {
		folder := t.TempDir()
		was, err := Load(write(t, folder, "bridge.toml", row.was))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		is, err := Load(write(t, folder, "bridge.toml", row.is))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if fixed, changes := was.Fixed(is), was.Changes(is); !slices.Equal(fixed, row.fixed) || !slices.Equal(changes, row.changes) {
			t.Errorf("%s: fixed %q, changes %q\nwant  %q, %q", name, fixed, changes, row.fixed, row.changes)
		}
	}
}

// What it takes to compare two configurations grows with their sets and Sources, and not with the
// square of their numbers.
func TestChangesOfThousands(t *testing.T) {
	const n = 5000
	thousands := func(every time.Duration) *Config {
		c := Default()
		c.Sets = make([]Set, n)
		for i := range c.Sets {
			c.Sets[i].Name = fmt.Sprint("set-", i)
		}
		c.Sets[0].Sources = make([]Source, n)
		for i := range c.Sets[0].Sources {
			c.Sets[0].Sources[i] = Source{URL: fmt.Sprint("http://h.example/", i), Every: every}
		}
		return c
	}
	was, is := thousands(time.Hour), thousands(time.Minute)
	testenv.Affordable(t, 4*n, func() {
		if all := was.Changes(is); len(all) != n {
			t.Errorf("%d changes", len(all))
		}
	})
}

// A set has its new name wherever the configuration uses the old one, and the configuration
// that was loaded is left alone.
func TestRenamed(t *testing.T) {
	text := func(name string) string {
		return set(name, takes(keeps)) + set("all", harvests("set:"+name)) + set("out", "[[set.submit]]\nurl = \"https://s.example/\"\n", into(name))
	}
	folder := t.TempDir()
	was, err := Load(write(t, folder, "bridge.toml", text("a")))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Load(write(t, folder, "bridge.toml", text("b")))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(write(t, folder, "bridge.toml", text("a")))
	if err != nil {
		t.Fatal(err)
	}
	if is := was.Renamed("a", "b"); len(want.Changes(is)) > 0 || len(want.Fixed(is)) > 0 || was.Sets[0].Name != "a" || len(was.Changes(again)) > 0 {
		t.Errorf("%q, %q; the first is now %+v", want.Changes(is), want.Fixed(is), was.Sets)
	}
	for name, valid := range map[string]bool{"a-1": true, strings.Repeat("x", 63): true, strings.Repeat("x", 64): false, "": false, "-a": false, "A": false, "a_b": false} {
		if IsSetName(name) != valid {
			t.Errorf("%q: %t", name, !valid)
		}
	}
}
