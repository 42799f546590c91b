package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Flags are the settings of the command line, which win over the file; "" is not
// given.
type Flags struct {
	Data    string // relative to the working folder
	Listen  string
	BaseURL string
}

// Load reads a file. The error is an *Error with all problems, or with the first one of
// TOML's syntax.
func Load(path string) (*Config, error) { return LoadWith(path, Flags{}) }

// LoadWith is Load with flags that win over the file.
func LoadWith(path string, flags Flags) (*Config, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	data, err := os.ReadFile(absolute)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration file %s: name one with --config, or make one with bridge init", path)
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	doc, root, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	r := reader{doc: doc, folder: filepath.Dir(absolute)}
	c, err := r.read(root, flags)
	if err != nil {
		return nil, err
	}
	c.File = absolute
	return c, nil
}

// FromArguments returns the configuration of a run without a file: the defaults,
// flags, and the Sources, each in the form that ParseSource reads.
func FromArguments(flags Flags, sources []string) (*Config, error) {
	c := Default()
	doc := &document{}
	at := map[string]int{} // place of each set
	for _, argument := range sources {
		name, source, err := ParseSource(argument)
		if err != nil {
			doc.report("", "", "%v", err)
			continue
		}
		i, ok := at[name]
		if !ok {
			i = len(c.Sets)
			at[name] = i
			set := defaultSet()
			set.Name = name
			c.Sets = append(c.Sets, set)
		}
		for _, other := range c.Sets[i].Sources {
			switch {
			case other.SIP != nil && source.SIP != nil:
				doc.report("", "source "+argument, "is the second of kind \"sip\" in set %q; one takes everything, so leave this out", name)
			case other.URL == source.URL:
				doc.report("", "source "+argument, "stands twice in set %q; write it once", name)
			}
		}
		c.Sets[i].Sources = append(c.Sets[i].Sources, source)
	}
	root := table{doc: doc, known: map[string]bool{}}
	if err := doc.reach(c, root, flags); err != nil {
		return nil, err
	}
	if err := doc.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// reach puts the flags over the file and checks what depends on both: where our
// data is, and where others reach us. The flags speak of themselves, without the
// file's lines.
func (d *document) reach(c *Config, root table, flags Flags) error {
	listen, base := root, root
	c.Listen = root.text("listen", c.Listen)
	given := root.text("base_url", "")
	listenKey, baseKey := "listen", "base_url"
	arguments := table{doc: &document{}}
	if flags.Listen != "" {
		c.Listen, listen, listenKey = flags.Listen, arguments, "--listen"
	}
	if flags.BaseURL != "" {
		given, base, baseKey = flags.BaseURL, arguments, "--base-url"
	}
	if flags.Data != "" {
		c.Data = flags.Data
	}
	absolute, err := filepath.Abs(c.Data)
	if err != nil {
		return fmt.Errorf("data folder %s: %w", c.Data, err)
	}
	c.Data = absolute

	loopback, port, err := checkListen(c.Listen)
	switch {
	case err != nil:
		listen.report(listenKey, "%v", err)
	case given != "" || base.has(baseKey):
		if c.BaseURL, err = checkBaseURL(given); err != nil {
			base.report(baseKey, "%v", err)
		}
	case !loopback:
		listen.report(listenKey, "%s can be reached from other machines, which need to know our address; write base_url (or --base-url), like \"https://bridge.example.org\"", c.Listen)
	case port == 0:
		c.BaseURL = ""
	default:
		c.BaseURL = "http://" + c.Listen
	}
	if u, err := url.Parse(cmp.Or(c.BaseURL, "http://"+c.Listen)); err == nil && c.Mail.From == "" {
		c.Mail.From = fromHost(u.Hostname())
	}
	d.problems = append(d.problems, arguments.doc.problems...)
	return nil
}

// reader makes a Config of tables.
type reader struct {
	doc    *document
	folder string // of the file; absolute
	// What was read of the Simple Ingest Protocol, for together.
	services []configuredService
	targets  []configuredTarget
	exposed  []string // files with secrets that others may read
}

// oneSecond is the shortest pause between two harvests and the like.
const oneSecond = time.Second

// read returns the configuration, or everything that is wrong with it.
func (r *reader) read(root table, flags Flags) (*Config, error) {
	c := r.config(root)
	c.exposed = r.exposed
	if err := r.doc.reach(c, root, flags); err != nil {
		return nil, err
	}
	r.crossCheck(c)
	return c, r.doc.err()
}

func (r *reader) config(t table) *Config {
	c := Default()
	// listen and base_url are read by reach, where flags may replace them.
	t.known["listen"], t.known["base_url"] = true, true
	c.TrustedProxies = t.networks("trusted_proxies")
	c.Data = r.path(t.text("data", c.Data))
	c.AllowHosts = t.texts("allow_hosts", checkHost)
	c.Contact = t.text("contact", "")
	if strings.ContainsAny(c.Contact, "()\r\n") {
		t.report("contact", "has a bracket or a line break; write a mail address or a URL")
	}
	if t.has("proxy") {
		var err error
		if c.Proxy, err = checkBaseURL(t.text("proxy", "")); err != nil {
			t.report("proxy", "%v", err)
		}
	}
	t.known["proxy"] = true
	c.Mail = r.mail(t.table("mail"))
	snapshot := t.table("snapshot")
	c.Snapshot.AfterDeletion = snapshot.duration("after_deletion", c.Snapshot.AfterDeletion, oneSecond)
	c.Snapshot.AfterChange = snapshot.duration("after_change", c.Snapshot.AfterChange, oneSecond)
	c.Snapshot.Keep = snapshot.duration("keep", c.Snapshot.Keep, oneSecond)
	c.Snapshot.KeepSize = snapshot.size("keep_size", c.Snapshot.KeepSize)
	snapshot.reportUnknown(nil)
	limits := t.table("limits")
	c.Limits = r.limits(limits, c.Limits)
	limits.reportUnknown(nil)

	names := map[string]bool{}
	for _, in := range t.tables("set", "set") {
		set := r.set(in)
		if names[set.Name] && set.Name != "" {
			in.report("name", "there is another set %q; give each its own name", set.Name)
		}
		names[set.Name] = true
		c.Sets = append(c.Sets, set)
	}
	t.reportUnknown(keyTables())
	return c
}

func (r *reader) limits(t table, l Limits) Limits {
	const most = 1 << 20
	l.FeedDocument = t.size("feed_document", l.FeedDocument)
	l.ListDocument = t.size("list_document", l.ListDocument)
	l.Record = t.size("record", l.Record)
	l.SIPMessage = t.size("sip_message", l.SIPMessage)
	l.Header = t.size("header", l.Header)
	l.Text = t.size("text", l.Text)
	l.Depth = t.number("depth", l.Depth, 8, 10_000)
	l.Attributes = t.number("attributes", l.Attributes, 8, most)
	l.Ratio = t.number("ratio", l.Ratio, 1, most)
	l.Redirects = t.number("redirects", l.Redirects, 1, 50)
	l.Connections = t.number("connections", l.Connections, 1, 1024)
	l.Rate = t.number("rate", l.Rate, 0, most)
	l.ConnectTimeout = t.duration("connect_timeout", l.ConnectTimeout, oneSecond)
	l.HeaderTimeout = t.duration("header_timeout", l.HeaderTimeout, oneSecond)
	l.IdleTimeout = t.duration("idle_timeout", l.IdleTimeout, oneSecond)
	l.HarvestTime = t.duration("harvest_time", l.HarvestTime, oneSecond)
	l.HarvestSize = t.size("harvest_size", l.HarvestSize)
	l.Cache = t.size("cache", l.Cache)
	l.FreeSpace = t.size("free_space", l.FreeSpace)
	l.OpenAddressMessages = t.number("open_address_messages", l.OpenAddressMessages, 0, 1<<30)
	l.OpenAddressSize = t.size("open_address_size", l.OpenAddressSize)
	l.OpenSetMessages = t.number("open_set_messages", l.OpenSetMessages, 0, 1<<30)
	l.OpenSetSize = t.size("open_set_size", l.OpenSetSize)
	return l
}

// setName is the form of a set's name.
var setName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func (r *reader) set(t table) Set {
	s := defaultSet()
	s.Name = t.text("name", "")
	switch {
	case !t.has("name"):
		t.report("name", `is missing; write name = "main" or the like`)
	case !setName.MatchString(s.Name):
		t.report("name", "%q is no name of a set; write 1 to 63 of a-z, 0-9 and -, not beginning with -", s.Name)
	default:
		t.label = fmt.Sprintf("set %q", s.Name)
	}
	s.Title = t.text("title", "")
	s.Description = t.text("description", "")
	s.Content = t.oneOf("content", s.Content, Mirror, Redirect, Reference)
	s.Prefer = t.texts("prefer", checkMediaType)
	s.Formats = t.texts("formats", checkMediaType)
	s.SegmentEvents = t.number("segment_events", s.SegmentEvents, 1, 50_000)
	s.SegmentHours = t.number("segment_hours", s.SegmentHours, 1, 24*366)
	s.Identity = t.oneOf("identity", s.Identity, Shared, PerSource)
	if kept, _ := value[bool](t, "history", "true or false"); kept {
		t.report("history", "serving earlier versions is not built into this version of bridge; write false or leave it out")
	}
	names, urls := map[string]bool{}, map[string]bool{}
	for i, in := range t.tables("source", "set.source") {
		source := r.source(in, s.Name)
		once(in, source.Name, source.URL, names, urls)
		if source.SIP != nil && slices.ContainsFunc(s.Sources, func(other Source) bool { return other.SIP != nil }) {
			in.report("kind", `is the second "sip" in the set; one takes everything, so leave this [[set.source]] out`)
		}
		if s.Identity == PerSource && i > 0 && source.Name == "" {
			in.report("name", `is missing; with identity = "per-source" every Source but the first needs a name, which becomes part of its records' identifiers`)
		}
		s.Sources = append(s.Sources, source)
	}
	for _, in := range t.tables("submit", "set.submit") {
		target := r.target(in, s.Name)
		once(in, target.Name, target.URL, names, urls)
		s.Submit = append(s.Submit, target)
	}
	t.reportUnknown(keyTables())
	return s
}

// once checks that a name and a URL are those of one Source or target of a set:
// the log knows them by the one, people by the other.
func once(in table, name, address string, names, urls map[string]bool) {
	if name != "" && names[name] {
		in.report("name", "another Source of the set is called %q; give each its own name", name)
	}
	if address != "" && urls[address] && in.has("url") {
		in.report("url", "%s stands twice in the set; write it once", address)
	}
	names[name], urls[address] = true, true
}

func (r *reader) source(t table, set string) Source {
	name, kind := t.text("name", ""), t.oneOf("kind", "", kinds()...)
	var s Source
	if kind == KindSIP {
		s = r.sipSource(t, set)
	} else {
		for _, key := range misplacedKeys(t, sipKeys) {
			t.report(key, `is for a Source of kind "sip"; write kind = "sip", or leave it out`)
		}
		s = r.harvested(t)
	}
	s.Name, s.Kind = name, kind
	t.reportUnknown(keyTables())
	return s
}

// harvestKeys are the keys that only a Source has that we harvest.
const harvestKeys = "public_url every full_every overlap max_documents hold_deletions prefix since content_hosts"

func (r *reader) harvested(t table) Source {
	s := defaultSource()
	typed := t.text("url", "")
	if u, err := sourceURL(typed, r.folder); typed != "" && err != nil {
		t.report("url", "%v", err)
	} else if typed != "" {
		s.URL = u
	} else {
		t.report("url", `is missing; write url = "https://..." or a path`)
	}
	if t.has("public_url") {
		var err error
		if s.PublicURL, err = checkPublicURL(t.text("public_url", ""), s.URL); err != nil {
			t.report("public_url", "%v", err)
		}
	}
	t.known["public_url"] = true
	s.Every = t.duration("every", s.Every, oneSecond)
	s.FullEvery = t.duration("full_every", s.FullEvery, 0)
	s.Overlap = t.duration("overlap", s.Overlap, 0)
	s.MaxDocuments = t.number("max_documents", s.MaxDocuments, 1, 100_000_000)
	s.HoldDeletions = t.duration("hold_deletions", s.HoldDeletions, 0)
	s.Prefixes = t.texts("prefix", checkPrefix)
	s.Since = t.moment("since")
	s.OwnContents, s.ContentHosts = t.contentHosts()
	s.User, s.Password = r.login(t, "user", "password")
	if s.User != "" && strings.HasPrefix(s.URL, "file:") {
		t.report("user", "is of no use with a local file; leave it out")
	}
	return s
}

// contentHosts reads where contents may come from: "public", the default, "same",
// or a list of hosts.
func (t table) contentHosts() (only bool, hosts []string) {
	const key = "content_hosts"
	if _, isList := t.values[key].([]any); isList {
		return true, t.texts(key, checkHost)
	}
	return t.oneOf(key, "public", "public", "same") == "same", nil
}

// login reads a user, and the password under its key or in a file.
func (r *reader) login(t table, user, password string) (string, Secret) {
	name, secret := t.text(user, ""), r.secret(t, password)
	switch {
	case (name != "") != (t.has(password) || t.has(password+"_file")):
		t.report(user, "goes with %s or %s_file; write both or none", password, password)
	case strings.Contains(name, ":"):
		t.report(user, "has a colon, which no user name may have (RFC 7617)")
	}
	return name, secret
}

// environment is the only form of a secret in the file.
var environment = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)

// secret reads KEY = "${NAME}" or KEY_file = "path". What it reports never
// shows what was written.
func (r *reader) secret(t table, key string) Secret {
	text, path := t.text(key, ""), t.text(key+"_file", "")
	for _, k := range []string{key, key + "_file"} {
		if t.has(k) && t.empty(k) {
			t.report(k, `is empty; write %s = "${NAME}" or %s_file = "path", or leave it out`, key, key)
		}
	}
	switch {
	case text != "" && path != "":
		t.report(key, "stands beside %s_file; write one of the two", key)
	case text != "":
		m := environment.FindStringSubmatch(text)
		if m == nil {
			t.report(key, `must not stand in this file; write %s = "${NAME}" for an environment variable, or %s_file = "path"`, key, key)
		} else if secret := os.Getenv(m[1]); secret == "" {
			t.report(key, "the environment variable %s is not set", m[1])
		} else {
			return Secret{secret}
		}
	case path != "":
		data, err := os.ReadFile(r.path(path))
		secret := strings.TrimSpace(string(data))
		if err != nil {
			t.report(key+"_file", "%v", err)
		} else if secret == "" || strings.ContainsAny(secret, "\r\n") {
			t.report(key+"_file", "%s must hold one line, the secret", path)
		} else {
			if st, err := os.Stat(r.path(path)); err == nil && st.Mode().Perm()&0o077 != 0 {
				r.exposed = append(r.exposed, r.path(path))
			}
			return Secret{secret}
		}
	}
	return Secret{}
}

func (r *reader) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(r.folder, p)
}

// keyTables says of keys that are easily put into the wrong table where to write
// them.
func keyTables() map[string]string {
	where := map[string]string{}
	for header, keys := range map[string]string{
		"before the first [[set]]":             "listen base_url trusted_proxies data allow_hosts contact proxy",
		"under [[set]]":                        "title description content prefer formats segment_events segment_hours identity history",
		"under [[set.source]]":                 "kind url user password password_file " + harvestKeys,
		`under a [[set.source]] of kind "sip"`: sipKeys,
		"under [[set.submit]]":                 "submitter_name submitter_email sequence recipient workers properties import_accepted_to",
		"under [mail]":                         "from relay helo",
		"under [limits]":                       "sip_message",
	} {
		for key := range strings.FieldsSeq(keys) {
			where[key] = header
		}
	}
	return where
}

// checkListen reports whether an address is on the loopback interface only.
func checkListen(address string) (loopback bool, port int, err error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return false, 0, fmt.Errorf(`%q is no address; write host:port, like "127.0.0.1:8080"`, address)
	}
	port, err = net.LookupPort("tcp", service)
	if err != nil {
		return false, 0, fmt.Errorf("%q: %q is no port; write a number from 0 to 65535 after the last colon", address, service)
	}
	return isLoopback(host), port, nil
}

// isLoopback reports whether a host is reached from its own machine only.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
