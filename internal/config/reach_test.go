package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestTrustedProxies(t *testing.T) {
	c, err := load(t, "# in front\ntrusted_proxies = [\"127.0.0.1\", \"::1\", \"10.0.0.0/8\", \"2001:db8::/32\"]\n")
	if err != nil {
		t.Fatal(err)
	}
	var want []netip.Prefix
	for _, s := range []string{"127.0.0.1/32", "::1/128", "10.0.0.0/8", "2001:db8::/32"} {
		want = append(want, netip.MustParsePrefix(s))
	}
	if !reflect.DeepEqual(c.TrustedProxies, want) {
		t.Errorf("%v", c.TrustedProxies)
	}
	for value, wrong := range map[string]string{
		`["localhost"]`:              `bridge.toml:2: trusted_proxies: "localhost" is no network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`,
		`["127.0.0.1:8080"]`:         `bridge.toml:2: trusted_proxies: "127.0.0.1:8080" is no network`,
		`["::ffff:127.0.0.1"]`:       `bridge.toml:2: trusted_proxies: "::ffff:127.0.0.1" is no network`,
		`["10.0.0.1/8"]`:             `bridge.toml:2: trusted_proxies: "10.0.0.1/8" is an address with the length of a network; write "10.0.0.0/8" for the network, or "10.0.0.1"`,
		`["127.0.0.1", "127.0.0.1"]`: `bridge.toml:2: trusted_proxies: "127.0.0.1/32" stands twice; write it once`,
		`"127.0.0.1"`:                `bridge.toml:2: trusted_proxies: is a string; write a list: trusted_proxies = ["...", "..."]`,
		`[1]`:                        `bridge.toml:2: trusted_proxies: has a number in its list; write strings only`,
	} {
		if _, err := load(t, "# in front\ntrusted_proxies = "+value+"\n"); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", value, err)
		}
	}
	if _, err := load(t, "[[set]]\nname = \"a\"\ntrusted_proxies = []\n"); err == nil ||
		!strings.Contains(err.Error(), `bridge.toml:3: set "a": trusted_proxies: does not belong here; write it before the first [[set]]`) {
		t.Errorf("%v", err)
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
		passed  = `set "deposits": anybody who reaches https://bridge.example/sip/deposits may submit records, in our name, to the ingest server behind it: write `
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
