package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
		"two forms of a name": {
			"base_url = \"https://b\u00fccher.example\"\n" + set("a", takes(keeps), submits("https://B\u00fccher.example./sip/b")) + set("b", takes(keeps), submits("https://xn--bcher-kva.example:443/sip/a")),
			[]string{`set "a": submit 1: url: ` + endless},
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

// A set is part of others that exist and keep contents as it does, and never of itself.
func TestSetsOfSets(t *testing.T) {
	member := func(name string) string { return "[[set.source]]\nkind = \"set\"\nurl = \"" + name + "\"\n" }
	const links, each = "content = \"redirect\"\n", "[[set.source]]\nurl = \"http://h.example/\"\nsets = \"each\"\n"
	for name, row := range map[string]struct{ file, want string }{
		"both forms":                {set("all", member("a"), harvests("set:b")) + set("a") + set("b"), ""},
		"both keep none":            {set("all", links, member("a")) + set("a", links), ""},
		"a template":                {set("all", member("copy")) + set("copy", each), ""},
		"a set of a template":       {set("all", member("copy-maps")) + set("copy", each), ""},
		"part of two, no cycle":     {set("all", member("a"), member("b")) + set("a", member("b")) + set("b"), ""},
		"no such set":               {set("all", member("a")), `:5: set "all": source 1: url: there is no set "a"`},
		"no name":                   {set("all", member("A")), `url: "A" is not a name of a set; write it like "set:main"`},
		"itself":                    {set("all", member("all")), `url: is the set itself`},
		"contents only here":        {set("all", member("a")) + set("a", links), `set "a" has content = "redirect", and this one "mirror"`},
		"contents only there":       {set("all", links, member("copy-maps")) + set("copy", each), `set "copy-maps" has content = "mirror", and this one "redirect"`},
		"a cycle":                   {set("a", member("b")) + set("b", member("c")) + set("c", member("a")), `set "a": source 1: url: closes a cycle, in which no set has records of its own: set "b" is part of set "a", which is part of set "c", which is part of set "b"; leave one of these out`},
		"another kind":              {set("all", "[[set.source]]\nkind = \"feed\"\nurl = \"set:a\"\n") + set("a"), `kind: is not the kind of set:a, which is a set of this file`},
		"a key that it cannot have": {set("all", member("a"), "every = \"2h\"\n") + set("a"), `every: `},
	} {
		_, err := load(t, row.file)
		var all *Error
		if !said(err, row.want) || errors.As(err, &all) && len(all.Problems) != 1 {
			t.Errorf("%s: error %v, want %q alone", name, err, row.want)
		}
	}
}

// A gateway is never told that it could do without a recipient.
func TestRecipientOfGateway(t *testing.T) {
	const gateway = "[[set]]\nname = \"a\"\n[[set.source]]\nkind = \"sip\"\nmode = \"gateway\"\nupstream = \"https://ingest.example\"\n"
	for keys, want := range map[string]string{
		"": "is missing: the base URL is https", "recipient = \"x\"\n": "is not a recipient", "recipient = \"https://bridge.example\"\n": "is https, and SIP takes http or smtp",
		"recipient = \"none\"\n": "must be one: a gateway receives dispositions later",
	} {
		_, err := load(t, "base_url = \"https://bridge.example\"\n"+gateway+keys)
		if !said(err, want) || strings.Contains(err.Error(), `or "none"`) || keys != "recipient = \"none\"\n" && !said(err, wantedOfGateway) {
			t.Errorf("%s: error %v, want %q", keys, err, want)
		}
	}
}

// A mailbox that takes nothing but what ingest servers owe is warned of, and not refused: a set
// that has lost its last target needs it for that.
func TestMailboxForNobody(t *testing.T) {
	t.Setenv("BRIDGE_TEST_SECRET", "0123456789_abc-DEF")
	const (
		target  = "[[set.submit]]\nurl = \"https://archive.example\"\n"
		formats = "formats = { r = \"urn:r\" }\n"
		library = "mode = \"library\"\n" + formats
		review  = "mode = \"review\"\n" + formats
		gateway = "mode = \"gateway\"\nupstream = \"https://ingest.example\"\n"
		basic   = "access = \"basic\"\naccess_user = \"a\"\naccess_password = \"${BRIDGE_TEST_SECRET}\"\n"
		token   = "access = \"token\"\naccess_token = \"${BRIDGE_TEST_SECRET}\"\n"
		decides = `mode = "%s" decides here, and without a [[set.submit]] nobody else has anything to notify the set of; leave mailbox and smtp_listen out when all of that has come`
		locked  = `access = "basic" wants a password, and mail has none; write access = "token" or "addresses", or leave mailbox and smtp_listen out when all of that has come`
	)
	for _, row := range []struct{ source, target, want string }{
		{"", "", ""}, {token, "", ""}, {"access = \"addresses\"\naccess_addresses = [\"192.0.2.1\"]\n", "", ""},
		{basic, "", locked}, {basic, target, ""}, {gateway, "", ""}, {gateway + basic, "", ""},
		{library, "", fmt.Sprintf(decides, "library")}, {library + basic, "", fmt.Sprintf(decides, "library")}, {library, target, ""}, {library + basic, target, ""},
		{review, "", fmt.Sprintf(decides, "review")}, {review, target, ""},
	} {
		c, err := load(t, "[[set]]\nname = \"a\"\n[[set.source]]\nkind = \"sip\"\nsmtp_listen = \"127.0.0.1:25\"\nmailbox = \"a@b.example\"\n"+row.source+row.target)
		if err != nil {
			t.Fatalf("%s%s: %v", row.source, row.target, err)
		}
		var want []string
		if row.want != "" {
			want = []string{`set "a": mailbox a@b.example takes only what ingest servers still have to say about records that were submitted to them before: ` + row.want}
		}
		if got := c.Warnings(); !slices.Equal(got, want) {
			t.Errorf("%s%s: warnings %q, want %q", row.source, row.target, got, want)
		}
	}
}

// A set may submit without a Source of its own, and a flag decides whether it
// must say where answers go.
func TestSubmitWithoutSources(t *testing.T) {
	path := write(t, t.TempDir(), "bridge.toml", "[[set]]\nname = \"a\"\n[[set.submit]]\nurl = \"https://archive.example/\"\n")
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults[Target]()
	want.URL = "https://archive.example/"
	if !reflect.DeepEqual(c.Sets[0].Submit, []Target{want}) || c.Sets[0].Sources != nil {
		t.Errorf("set %+v", c.Sets[0])
	}
	if _, err = LoadWith(path, Flags{BaseURL: "https://b.example"}); !said(err, path+`:3: set "a": submit 1: recipient: is missing: the base URL is https`) {
		t.Errorf("error %v", err)
	}
}

// An alert whose program is not there reaches nobody.
func TestAlertWithoutProgram(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"/bin/sh": "", filepath.Join(t.TempDir(), "notify"): "alert 1: command: "} {
		c, err := load(t, fmt.Sprintf("[[alert]]\non = [\"held\"]\ncommand = [%q]\n", path))
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(c.Warnings(), "\n"); !strings.HasPrefix(all, want) || want == "" && all != "" || want != "" && !strings.HasSuffix(all, ": nothing is sent until it is there") {
			t.Errorf("%s: %q", path, all)
		}
	}
}

// Who may write is asked about only where others can come in, of every service that
// is open (D69).
func TestWarnings(t *testing.T) {
	t.Setenv("BRIDGE_TEST_TOKEN", "0123456789_abc-DEF")
	const (
		library = "mode = \"library\"\nformats = { r = \"urn:r\" }\n"
		review  = "mode = \"review\"\nformats = { r = \"urn:r\" }\n"
		gateway = "mode = \"gateway\"\nupstream = \"https://ingest.example\"\nrecipient = \"http://bridge.example\"\n"
		public  = "base_url = \"https://bridge.example\"\n"
		mailbox = "mailbox = \"box@lib.example\"\n"
		open    = `set "deposits": anybody who reaches https://bridge.example/sip/deposits may submit records: write access = "token", "basic" or "addresses"`
		passed  = `set "deposits": anybody who reaches https://bridge.example/sip/deposits may submit records, in the name of this bridge, to the ingest server behind it: write `
	)
	for _, c := range []struct{ server, source, want string }{
		{"", library, ""},
		{"listen = \"localhost:80\"\n", library, ""},
		{"listen = \"[::1]:0\"\n", library, ""},
		{"base_url = \"http://LOCALHOST:9000/x\"\n", library, ""},
		{"base_url = \"http://[::1]:9000\"\n", library, ""},
		{public, library, open},
		{public, review, open},
		{public, library + "access = \"none\"\n", open},
		{"listen = \":8080\"\n" + public, library, open},
		{"listen = \"0.0.0.0:8080\"\nbase_url = \"http://127.0.0.1:8080\"\n", library, `set "deposits": anybody who reaches http://127.0.0.1:8080/sip/deposits may submit records`},
		{public, "", `set "deposits": anybody who reaches https://bridge.example/sip/deposits may send notifications: write `},
		{public, "record_url = \"https://lib.example/{assigned-identifier}\"\n", `set "deposits": anybody who reaches https://bridge.example/sip/deposits may send notifications, and so have records fetched from https://lib.example/{assigned-identifier}: write `},
		{"", "smtp_listen = \"127.0.0.1:25\"\n" + mailbox, ""},
		{"", "smtp_listen = \":25\"\n" + mailbox, `set "deposits": anybody who reaches port :25 may send notifications by mail: write access = "token" or "addresses"`},
		{"", "smtp_listen = \":25\"\n" + mailbox + "access = \"token\"\naccess_token = \"${BRIDGE_TEST_TOKEN}\"\n", ""},
		{public, gateway, passed},
		{"", gateway, ""},
		{public, gateway + "access = \"token\"\naccess_token = \"${BRIDGE_TEST_TOKEN}\"\n", ""},
		{public, library + "access = \"token\"\naccess_token = \"${BRIDGE_TEST_TOKEN}\"\n", ""},
		{public, review + "access = \"basic\"\naccess_user = \"a\"\naccess_password = \"${BRIDGE_TEST_TOKEN}\"\n", ""},
		{public, library + "access = \"addresses\"\naccess_addresses = [\"192.0.2.1\"]\n", ""},
	} {
		loaded, err := load(t, c.server+"[[set]]\nname = \"deposits\"\n[[set.source]]\nkind = \"sip\"\n"+c.source)
		if err != nil {
			t.Fatal(err)
		}
		all := loaded.Warnings()
		if c.want == "" {
			if len(all) > 0 {
				t.Errorf("%s%s: %q", c.server, c.source, all)
			}
			continue
		}
		if len(all) != 1 || !strings.HasPrefix(all[0], c.want) || strings.Contains(all[0], "\n") ||
			!strings.HasSuffix(all[0], ` in its [[set.source]], see docs/sip.md#who-may-call`) {
			t.Errorf("%s%s: %q, want %q", c.server, c.source, all, c.want)
		}
	}
	two, err := load(t, public+"[[set]]\nname = \"a\"\n[[set.source]]\nkind = \"sip\"\n"+library+"[[set]]\nname = \"b\"\n[[set.source]]\nkind = \"sip\"\n"+review)
	if err != nil {
		t.Fatal(err)
	}
	if all := two.Warnings(); len(all) != 2 {
		t.Errorf("%q", all)
	}
	if all := Default().Warnings(); len(all) > 0 {
		t.Errorf("%q", all)
	}
}

// Without an address that mail could come from, who submits is told to name no
// mailbox: where somebody may have to be notified, this is said beforehand.
func TestNotes(t *testing.T) {
	const (
		formats = "formats = { r = \"urn:r\" }\n"
		review  = "mode = \"review\"\n" + formats
		gateway = "mode = \"gateway\"\nupstream = \"https://ingest.example\"\nrecipient = \"http://bridge.example\"\n"
	)
	for _, row := range []struct {
		server, source string
		noted          bool
	}{
		{"", review, true}, {"", gateway, true}, {"base_url = \"https://192.0.2.1\"\n", review, true}, {"listen = \"127.0.0.1:0\"\n", review, true},
		{"[mail]\nfrom = \"box@mail.example\"\n", review, false}, {"base_url = \"https://bridge.example\"\n", gateway, false},
		{"", "", false}, {"", "mode = \"library\"\n" + formats, false},
	} {
		c, err := load(t, row.server+"[[set]]\nname = \"deposits\"\n[[set.source]]\nkind = \"sip\"\n"+row.source)
		if err != nil {
			t.Fatal(err)
		}
		all := c.Notes()
		if !row.noted && len(all) > 0 || row.noted && (len(all) != 1 || strings.Contains(all[0], "\n") ||
			!strings.HasPrefix(all[0], "no mail can be sent") || !strings.HasSuffix(all[0], `write from = "bridge@example.org" under [mail]`)) {
			t.Errorf("%s%s: %q", row.server, row.source, all)
		}
	}
	if all := Default().Notes(); len(all) > 0 {
		t.Errorf("%q", all)
	}
}

// D73: a file with a secret that others may read is warned of, wherever we listen.
func TestExposedSecret(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "bridge.toml")
	secret := filepath.Join(folder, "password")
	for _, text := range []string{
		"[[set]]\nname = \"main\"\n[[set.source]]\nurl = \"https://data.example.org/\"\nuser = \"me\"\npassword_file = \"password\"\n",
		"[[alert]]\non = [\"held\"]\nwebhook_file = \"password\"\n",
	} {
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(secret, []byte("https://chat.example.org/hush\n"), 0o600)); err != nil {
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
				t.Errorf("%smode %v: %q", text, mode, all)
			}
		}
	}
}
