package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The modes of a SIP Source that is an ingest server.
const (
	// Library assigns identifiers and keeps the records.
	Library = "library"
	// Gateway sends each request on to another ingest server.
	Gateway = "gateway"
	// Review leaves each record to an operator.
	Review = "review"
)

// AssignedIdentifier stands in SIP.RecordURL for what a library has assigned.
const AssignedIdentifier = "{assigned-identifier}"

// SIP is our own side of a Source of kind KindSIP: a notification recipient and,
// with a mode, an ingest server (Simple Ingest Protocol).
type SIP struct {
	// Mode is Library, Gateway, Review, or "" for a notification recipient only.
	Mode string
	// RecordURL is where the library publishes a record: an http or https URL
	// with AssignedIdentifier in it exactly once, behind scheme, host and at
	// least one slash; "" is unknown.
	RecordURL string
	// Formats are the records that are accepted: the name of the root element,
	// "{namespace}name" or "name", and the URL of the schema that stands for it
	// among the ingest properties. A gateway may do without.
	Formats map[string]string
	// Schemas are local files, absolute, for the validation of records by the URL
	// of their schema.
	Schemas map[string]string
	// Upstream is the URL of the ingest server behind a gateway, and User and
	// Password are our login there; "" is no login.
	Upstream string
	User     string
	Password Secret
	// Deadline is how long a provisional answer from upstream may stay the last
	// word; default 168 h.
	Deadline time.Duration
	// Recipient is where upstream may send its dispositions (gateway): "", our own
	// address below the base URL, which is http then, or as a Target's.
	Recipient string
	Access    Access
	// PlainPost: documents are also taken without a SOAP envelope.
	PlainPost bool
	// SMTPListen is the address, host:port, where notifications are taken by
	// mail, "" none. Several sets may have the same.
	SMTPListen string
	// Mailbox is box@domain, the domain in lower case and no plus in the box: the
	// mail at SMTPListen to it, and to box+anything@domain, is for this set.
	Mailbox string
}

// The kinds of Access.
const (
	AccessNone      = "none" // every client
	AccessToken     = "token"
	AccessBasic     = "basic"
	AccessAddresses = "addresses"
)

// Access says who may call a SIP service.
type Access struct {
	// Kind is one of the constants; default AccessNone.
	Kind string
	// Token stands behind the service's URL: at least 16 of A-Z, a-z, 0-9, _ and
	// -.
	Token Secret
	// User and Password are for HTTP's basic authentication (RFC 7617).
	User     string
	Password Secret
	// Addresses are the networks that callers come from, none of them an IPv4
	// network in IPv6's form.
	Addresses []netip.Prefix
}

// sipKeys are the keys that only a Source of kind KindSIP has. Formats, which a
// set has as well, is another thing there.
const sipKeys = "mode record_url schemas upstream recipient deadline plain_post smtp_listen mailbox " +
	"access access_token access_token_file access_user access_password access_password_file access_addresses"

// defaultSIPSource is also what "sip:" means on the command line. It is not harvested,
// so the settings of a harvest are all zero.
func defaultSIPSource(set string) Source {
	return Source{Kind: KindSIP, URL: servicePath(set), SIP: &SIP{Deadline: 168 * time.Hour, Access: Access{Kind: AccessNone}}}
}

// servicePath is where a set's SIP service is, below the base URL.
func servicePath(set string) string { return "/sip/" + set }

// sipSource reads a Source of kind KindSIP. Its name and kind have been read.
func (r *reader) sipSource(t table, set string) Source {
	s := defaultSIPSource(set)
	for _, key := range misplacedKeys(t, harvestKeys) {
		t.report(key, `is for a Source that we harvest, and one of kind "sip" calls us; leave it out`)
	}
	if u := t.web("url"); u != "" {
		s.URL = u
	}
	if strings.ContainsAny(s.URL, "{}") {
		t.report("url", "is the library itself; where it publishes its records is record_url, like %q", "https://library.example.org/records/"+AssignedIdentifier)
	}
	c := s.SIP
	c.Mode = t.oneOf("mode", "", Library, Gateway, Review)
	c.RecordURL = t.text("record_url", "")
	if err := checkRecordURL(c.RecordURL); c.RecordURL != "" && err != nil {
		t.report("record_url", "%v", err)
	}
	c.Formats = t.formats()
	c.Schemas = r.schemas(t, c.Formats)
	r.upstream(t, c)
	r.onlyServer(t, c)
	c.Access = r.access(t)
	c.PlainPost, _ = value[bool](t, "plain_post", "true or false")
	c.SMTPListen = t.text("smtp_listen", "")
	if c.SMTPListen != "" {
		if _, _, err := checkListen(c.SMTPListen); err != nil {
			t.report("smtp_listen", "%v", err)
		}
	}
	c.Mailbox = t.mailbox("mailbox", checkBox)
	if t.empty("smtp_listen") != t.empty("mailbox") {
		t.report("mailbox", "goes with smtp_listen; write both or none")
	}
	r.services = append(r.services, configuredService{in: t, set: set, sip: c})
	return s
}

// misplacedKeys returns which of keys the table has, and takes them for known.
func misplacedKeys(t table, keys string) []string {
	var found []string
	for key := range strings.FieldsSeq(keys) {
		if t.has(key) {
			t.known[key] = true
			found = append(found, key)
		}
	}
	return found
}

// web reads the URL of a server; "" is none.
func (t table) web(key string) string {
	typed := t.text(key, "")
	if typed == "" {
		return ""
	}
	u, err := checkWeb(typed)
	if err != nil {
		t.report(key, "%v", err)
	}
	return u
}

// upstream reads what only a gateway has.
func (r *reader) upstream(t table, c *SIP) {
	c.Upstream = t.web("upstream")
	c.User, c.Password = r.login(t, "user", "password")
	c.Deadline = t.duration("deadline", c.Deadline, oneSecond)
	for _, key := range misplacedKeys(t, "resend_in_doubt") {
		t.report(key, "is no key any more: what is in doubt is never sent again by itself; leave it out, and say with bridge submission settle what the ingest server has done")
	}
	var err error
	if c.Recipient, err = checkRecipient(t.text("recipient", ""), wantedOfGateway); err != nil {
		t.report("recipient", "%v", err)
	} else if c.Recipient == NoRecipient {
		t.report("recipient", "must be one: a gateway is told later what became of a request; write where it is reached, or leave this out")
	}
	if c.Mode == Gateway && t.empty("upstream") {
		t.report("upstream", `is missing; with mode = "gateway" write the URL of the ingest server behind it`)
	}
	if c.Mode == Gateway || wrongMode(t, c) {
		return
	}
	for _, key := range misplacedKeys(t, "upstream user password password_file recipient deadline") {
		t.report(key, `is only for mode = "gateway"; leave it out`)
	}
}

// onlyServer checks that formats are there where the mode needs them, and only
// where there is a mode.
func (r *reader) onlyServer(t table, c *SIP) {
	switch {
	case c.Mode == "" && !wrongMode(t, c):
		for _, key := range misplacedKeys(t, "formats schemas") {
			t.report(key, "is for an ingest server, and without mode the set takes notifications only; write mode, or leave this out")
		}
	case c.Mode == Library || c.Mode == Review:
		if values, _ := t.values["formats"].(map[string]any); len(values) == 0 {
			t.report("formats", `must say which records mode = %q accepts; write formats = { "{namespace}root" = "URL of the schema" }`, c.Mode)
		}
	}
}

// wrongMode reports whether a mode was written that is none, which is reported.
func wrongMode(t table, c *SIP) bool { return c.Mode == "" && t.has("mode") }

// formats reads the root elements and schema URLs of the records that an ingest
// server takes.
func (t table) formats() map[string]string {
	return t.textMap("formats", `formats = { "{namespace}root" = "URL of the schema" }`, func(root, schema string) (string, error) {
		if !rootName.MatchString(root) {
			return "", errors.New(`is no name of a root element; write "{namespace}name", or "name" for one without a namespace`)
		}
		if u, err := url.Parse(schema); err != nil || !u.IsAbs() || u.Host+u.Opaque == "" || u.User != nil || strings.ContainsAny(schema, " \t\r\n") {
			return "", fmt.Errorf("%q is no absolute URL; write that of the schema, like %q", redact(schema), "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd")
		}
		return schema, nil
	})
}

// rootName is "{namespace}" and an NCName (Namespaces in XML 1.0, 4), or an
// NCName alone.
var rootName = regexp.MustCompile(`^(\{[^{}\s]+\})?[` + nameStart + `][` + nameStart + `\-.0-9\x{B7}\x{300}-\x{36F}\x{203F}-\x{2040}]*$`)

// nameStart is NameStartChar without the colon (XML 1.0, production 4), inside
// the brackets of a pattern.
const nameStart = `A-Z_a-z\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{2FF}\x{370}-\x{37D}\x{37F}-\x{1FFF}\x{200C}-\x{200D}\x{2070}-\x{218F}` +
	`\x{2C00}-\x{2FEF}\x{3001}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFFD}\x{10000}-\x{EFFFF}`

func (r *reader) schemas(t table, formats map[string]string) map[string]string {
	var urls []string
	for _, schema := range formats {
		urls = append(urls, schema)
	}
	return t.textMap("schemas", `schemas = { "URL of the schema" = "file.xsd" }`, func(schema, file string) (string, error) {
		if !slices.Contains(urls, schema) {
			return "", errors.New("is the schema of none of the formats; write it as it stands there")
		}
		path := r.path(file)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist) || file == "":
			return "", fmt.Errorf("there is no file %s; write the path of the schema's copy, relative to this file", path)
		case err != nil:
			return "", err
		case !info.Mode().IsRegular():
			return "", fmt.Errorf("%s is no file; write the path of the schema's copy", path)
		}
		return path, nil
	})
}

// checkRecordURL accepts a template with which no identifier can lead to another host,
// or out of the path in front of it.
func checkRecordURL(template string) error {
	if n := strings.Count(template, AssignedIdentifier); n != 1 {
		return fmt.Errorf("has %s %d times; write it once, like %q", AssignedIdentifier, n, "https://library.example.org/records/"+AssignedIdentifier)
	}
	before, after, _ := strings.Cut(template, AssignedIdentifier)
	if before != "" && scheme.FindString(before) == before {
		return fmt.Errorf("%s stands in the host of the URL; write it behind the host and a slash", AssignedIdentifier)
	}
	front, err := checkWeb(before)
	if err != nil {
		return err
	}
	if u, err := url.Parse(front); err != nil || u.Path == "" {
		return fmt.Errorf("%s stands in the host of the URL; write it behind the host and a slash", AssignedIdentifier)
	}
	_, err = checkWeb(before + "x" + after)
	return err
}

// token is the form of an access token. It stands in a URL.
var token = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)

func (r *reader) access(t table) Access {
	a := Access{Kind: t.oneOf("access", AccessNone, AccessNone, AccessToken, AccessBasic, AccessAddresses)}
	a.Token = r.secret(t, "access_token")
	if s := a.Token.text; s != "" && !token.MatchString(s) {
		key := "access_token"
		if t.has("access_token_file") {
			key = "access_token_file"
		}
		t.report(key, "the token is too short, or has a character that URLs do not take as it is; make it of 16 or more of A-Z, a-z, 0-9, _ and -")
	}
	a.User, a.Password = r.login(t, "access_user", "access_password")
	a.Addresses = t.networks("access_addresses")
	for _, group := range []struct{ kind, keys, needs string }{
		{AccessToken, "access_token access_token_file", "access_token_file"},
		{AccessBasic, "access_user access_password access_password_file", "access_user and access_password_file"},
		{AccessAddresses, "access_addresses", `access_addresses = ["192.0.2.0/24"]`},
	} {
		given := misplacedKeys(t, group.keys)
		if a.Kind != group.kind {
			for _, key := range given {
				t.report(key, "is only for access = %q; write that, or leave it out", group.kind)
			}
		} else if len(given) == 0 || emptyList(t.values[given[0]]) || a.Kind == AccessBasic && t.values["access_user"] == "" {
			t.report("access", "%q needs %s as well", group.kind, group.needs)
		}
	}
	return a
}

func emptyList(v any) bool {
	values, ok := v.([]any)
	return ok && len(values) == 0
}

// networks reads a list of addresses and networks.
func (t table) networks(key string) []netip.Prefix {
	var all []netip.Prefix
	for _, network := range t.texts(key, checkNetwork) {
		if p, err := netip.ParsePrefix(network); err == nil { // as checkNetwork has written it
			all = append(all, p)
		}
	}
	return all
}

// checkNetwork accepts an address or a network, and returns the network.
func checkNetwork(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()).String(), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return "", fmt.Errorf(`%q is no network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`, s)
	case p != p.Masked():
		return "", fmt.Errorf("%q is an address with the length of a network; write %q for the network, or %q", s, p.Masked(), p.Addr())
	}
	return p.String(), nil
}
