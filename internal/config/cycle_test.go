package config

import (
	"errors"
	"strings"
	"testing"
)

// set writes a set with what stands in it.
func set(name string, parts ...string) string {
	return "[[set]]\nname = \"" + name + "\"\n" + strings.Join(parts, "")
}

// The parts of a set.
func takes(keys string) string { return "[[set.source]]\nkind = \"sip\"\n" + keys }

func submits(url string) string {
	return "[[set.submit]]\nrecipient = \"none\"\nurl = \"" + url + "\"\n"
}

func into(set string) string { return "import_accepted_to = \"" + set + "\"\n" }

func passes(upstream string) string {
	return takes("mode = \"gateway\"\nrecipient = \"http://bridge.example\"\nupstream = \"" + upstream + "\"\n")
}

func harvests(url string) string { return "[[set.source]]\nurl = \"" + url + "\"\n" }

const (
	keeps   = "mode = \"library\"\nformats = { r = \"urn:r\" }\n"
	told    = ""
	public  = "base_url = \"https://bridge.example/base\"\n"
	ours    = "https://bridge.example/base/sip/"
	other   = "https://ingest.example/sip/"
	endless = "closes a cycle, in which records would be submitted for ever: "
)

// What is submitted may not come back to where it began.
func TestCircles(t *testing.T) {
	for name, row := range map[string]struct {
		file string
		want []string // each problem, without its place; "KEY: ..."
	}{
		"two sets": {
			public + set("a", takes(keeps), submits(ours+"b")) + set("b", takes(keeps), submits(ours+"a")),
			[]string{`set "a": submit 1: url: ` + endless + `set "a" submits to set "b", which submits to set "a"; leave one of these out, or write another`},
		},
		"three sets, and one that only leads there": {
			public + set("x", submits(ours+"a")) + set("a", takes(keeps), submits(ours+"b")) + set("b", takes(keeps), submits(ours+"c")) + set("c", takes(keeps), submits(ours+"a")),
			[]string{`set "a": submit 1: url: ` + endless + `set "a" submits to set "b", which submits to set "c", which submits to set "a"; leave`},
		},
		"two cycles with one set in common": {
			public + set("a", takes(keeps), submits(ours+"b"), submits(ours+"c")) + set("b", takes(keeps), submits(ours+"a")) + set("c", takes(keeps), submits(ours+"a")),
			[]string{`set "a": submit 1: url: ` + endless, `set "a": submit 2: url: ` + endless + `set "a" submits to set "c", which submits to set "a"`},
		},
		"into": {
			public + set("a", takes(told), submits(other), into("b")) + set("b", takes(told), submits(other), into("a")),
			[]string{`set "a": submit 1: import_accepted_to: ` + endless + `set "a" gives what is accepted to set "b", which gives what is accepted to set "a"; leave`},
		},
		"url and into": {
			public + set("a", takes(keeps), submits(other), into("b")) + set("b", takes(told), submits(ours+"a")),
			[]string{`set "a": submit 1: import_accepted_to: ` + endless + `set "a" gives what is accepted to set "b", which submits to set "a"; leave`},
		},
		"gateways": {
			public + set("a", passes(ours+"b")) + set("b", passes(ours+"a")),
			[]string{`set "a": source 1: upstream: ` + endless + `set "a" passes on to set "b", which passes on to set "a"; leave`},
		},
		"by a gateway": {
			public + set("a", takes(keeps), submits(ours+"g")) + set("g", passes(ours+"c")) + set("c", takes(keeps), submits(ours+"a")),
			[]string{`set "g": source 1: upstream: ` + endless + `set "g" passes on to set "c", which submits to set "a", which submits to set "g"; leave`},
		},
		"by a harvest": {
			public + set("a", harvests("https://bridge.example/base/sets/b/feed.atom"), submits(ours+"b")) + set("b", takes(keeps)),
			[]string{`set "a": submit 1: url: ` + endless + `set "a" submits to set "b", which is harvested by set "a"; leave`},
		},
		"a set and itself": {
			public + set("a", takes(keeps), submits(ours+"a/")) + set("g", passes(ours+"g")) + set("n", submits("http://bridge.example/base/sip/n/0123456789abcdef?x")),
			[]string{`set "a": submit 1: url: ` + ours + `a/ is this set's own service`, `set "g": source 1: upstream: ` + ours + `g is this very service`,
				`set "n": submit 1: url: http://bridge.example/base/sip/n/0123456789abcdef?x is this set's own service`},
		},
		"other names of ours": {
			"listen = \":8080\"\n" + public + set("a", takes(keeps), submits("HTTP://BRIDGE.example.:80/base/sip/b/0123456789abcdef")) + set("b", takes(keeps), submits("http://localhost:8080/sip/c")) +
				set("c", takes(keeps), submits("http://[::1]:8080/sip/d")) + set("d", takes(keeps), submits("http://plain.example/sip/e")) +
				set("e", takes(keeps), "[[set.submit]]\nurl = \"http://127.0.0.2:8080/sip/a/\"\nrecipient = \"http://plain.example/\"\n"),
			[]string{endless + `set "a" submits to set "b", which submits to set "c", which submits to set "d", which submits to set "e", which submits to set "a"; leave`},
		},
		"without base_url": {
			"listen = \"localhost:80\"\n" + set("a", takes(keeps), submits("http://127.0.0.1/sip/b")) + set("b", takes(keeps), submits("http://[::ffff:127.0.0.1]:80/sip/a")),
			[]string{endless},
		},

		"a line":                         {public + set("a", submits(ours+"b")) + set("b", takes(keeps), submits(ours+"c")) + set("c", takes(keeps)), nil},
		"two ways to one set":            {public + set("a", submits(ours+"b"), submits(ours+"c"), into("d")) + set("b", takes(keeps), submits(ours+"d")) + set("c", takes(keeps)) + set("d", takes(keeps)), nil},
		"the answers come back":          {public + set("a", takes(told), submits(ours+"b"), into("c")) + set("b", takes(keeps)) + set("c", takes(told)), nil},
		"a recipient takes no records":   {public + set("a", takes(keeps), submits(ours+"b")) + set("b", takes(told), submits(ours+"a")), nil},
		"into a gateway is not upstream": {public + set("x", takes(keeps), submits(other), into("g")) + set("g", passes(ours+"c")) + set("c", takes(keeps), submits(ours+"x")), nil},
		"sets that harvest each other":   {public + set("a", harvests("https://bridge.example/base/sets/b/feed.atom")) + set("b", harvests("https://bridge.example/base/sets/a/feed.atom")), nil},
		"set or server of another name": {
			public + set("a", takes(keeps), submits("https://bridge.example/sip/b"), submits("https://bridge.example/base/sip/"), submits("https://bridge.example:8443/base/sip/b"), submits("https://bridge2.example/base/sip/b"), submits(ours+"bb")) +
				set("b", takes(keeps), submits(ours+"a")), nil,
		},
		"a port that is known later": {"listen = \"127.0.0.1:0\"\n" + set("a", takes(keeps), submits("http://127.0.0.1/sip/b")) + set("b", takes(keeps), submits("http://127.0.0.1/sip/a")), nil},
	} {
		_, err := load(t, row.file)
		var all *Error
		if len(row.want) == 0 && err == nil {
			continue
		}
		if !errors.As(err, &all) || len(all.Problems) != len(row.want) {
			t.Errorf("%s: error %v, want %d problems", name, err, len(row.want))
			continue
		}
		for i, p := range all.Problems {
			if !strings.Contains(p.String(), row.want[i]) || p.Line == 0 {
				t.Errorf("%s: %s, want %s", name, p, row.want[i])
			}
		}
	}
}
