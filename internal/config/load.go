package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// Flags are the settings of the command line, which take precedence over the file; "" means
// not given.
type Flags struct {
	Data    string // relative to the working folder
	Listen  string
	BaseURL string
	// WithoutSecrets: the command needs no secret, so that one that it cannot read is no problem.
	WithoutSecrets bool
	// WithoutCredentials: those of systemd, which only the service has, are not read; Notes names
	// them.
	WithoutCredentials bool
}

// Load reads a file. The error is an *Error with all problems, or with the first TOML
// syntax error.
func Load(path string) (*Config, error) { return LoadWith(path, Flags{}) }

// LoadWith is Load with flags that take precedence over the file.
func LoadWith(path string, flags Flags) (*Config, error) {
	c, _, err := loadFrom(path, flags, os.ReadFile)
	return c, err
}

// loadFrom is LoadWith with a way to read files. It also returns the files, the main one first.
func loadFrom(path string, flags Flags, readFile func(string) ([]byte, error)) (*Config, []table, error) {
	absolute, doc, root, err := readMain(path, readFile)
	if err != nil {
		return nil, nil, err
	}
	doc.readFile, doc.withoutSecrets, doc.withoutCredentials = readFile, flags.WithoutSecrets, flags.WithoutCredentials
	c, files, err := doc.read(root, flags)
	if err != nil {
		return nil, nil, err
	}
	c.File, c.flags = absolute, flags
	return c, files, nil
}

// DataFolder returns the data folder that a file names, as Load does, and reads nothing else
// of it: secrets may be for the service alone.
func DataFolder(path string) (string, error) {
	_, doc, root, err := readMain(path, os.ReadFile)
	if err != nil {
		return "", err
	}
	folder, ok := typed[string](root, "data", `a string: data = "folder"`)
	switch {
	case !ok:
		folder = Default().Data
	default:
		root.dataFolder("data", folder)
	}
	return doc.path(folder), doc.err()
}

// dataFolder reports a data folder that is not meant as it is typed: "" would be the folder of
// the file, and "~/bridge" a folder that is called "~" in it.
func (t table) dataFolder(key, typed string) {
	switch {
	case typed == "":
		t.report(key, `is empty; write the path of a folder, or leave it out`)
	case typed == "~" || strings.HasPrefix(typed, "~/"):
		t.report(key, "%q begins with ~, which only a shell reads as your home; write the whole path, or ./%[1]s", typed)
	}
}

// readMain reads the main file, and returns its absolute path.
func readMain(path string, readFile func(string) ([]byte, error)) (absolute string, doc *document, root table, err error) {
	if absolute, err = filepath.Abs(path); err != nil {
		return "", nil, table{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	data, err := readFile(absolute)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil, table{}, fmt.Errorf("there is no configuration file %s: name one with --config, or make one with bridge init", path)
	}
	if err != nil {
		return "", nil, table{}, fmt.Errorf("configuration: %w", err)
	}
	if doc, root, err = parse(path, data); err != nil {
		return "", nil, table{}, err
	}
	doc.folder = filepath.Dir(absolute)
	return absolute, doc, root, nil
}

// Reload reads the file again, with the same flags.
func (c *Config) Reload() (*Config, error) { return LoadWith(c.File, c.flags) }

// FromArguments returns the configuration of a run without a file: the defaults,
// flags, and the Sources, each in the form that ParseSource reads.
func FromArguments(flags Flags, sources []string) (*Config, error) {
	c := Default()
	root := table{doc: &document{}}
	at := map[string]int{} // place of each set
	for _, argument := range sources {
		name, source, err := ParseSource(argument)
		if err != nil {
			root.report("", "%v", err)
			continue
		}
		i, ok := at[name]
		if !ok {
			i = len(c.Sets)
			at[name] = i
			set := defaults[Set]()
			set.Name = name
			c.Sets = append(c.Sets, set)
		}
		for _, other := range c.Sets[i].Sources {
			switch {
			case other.SIP != nil && source.SIP != nil:
				root.report("source "+Shown(argument), "is the second of kind \"sip\" in set %q; one takes everything, so leave this out", name)
			case other.URL == source.URL:
				root.report("source "+Shown(argument), "appears twice in set %q; write it once", name)
			}
		}
		c.Sets[i].Sources = append(c.Sets[i].Sources, source)
	}
	if err := reach(c, root, flags); err != nil {
		return nil, err
	}
	if err := root.doc.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// pushes reports whether a Source of the configuration has Push.
func (c *Config) pushes() bool {
	return slices.ContainsFunc(c.Sets, func(s Set) bool { return slices.ContainsFunc(s.Sources, func(s Source) bool { return s.Push }) })
}

// reach applies the flags and checks what depends on both flags and file: the place of our
// data, and our URL. Problems of flags name the flag, not a line of the file.
func reach(c *Config, root table, flags Flags) error {
	listen, base, given := root, root, c.BaseURL
	listenKey, baseKey := "listen", "base_url"
	if !root.has(baseKey) {
		given = ""
	}
	arguments := table{doc: &document{}, values: map[string]any{}}
	if flags.Listen != "" {
		c.Listen, listen, listenKey = flags.Listen, arguments, "--listen"
	}
	if flags.BaseURL != "" {
		given, base, baseKey = flags.BaseURL, arguments, "--base-url"
	}
	data, dataKey := root, "data"
	if flags.Data != "" {
		c.Data, data, dataKey = flags.Data, arguments, "--data"
		arguments.dataFolder("--data", flags.Data)
	}
	absolute, err := filepath.Abs(c.Data)
	if err != nil {
		return fmt.Errorf("data folder %s: %w", c.Data, err)
	}
	c.Data = absolute
	switch info, err := os.Stat(c.Data); {
	case err == nil && !info.IsDir(), errors.Is(err, syscall.ENOTDIR):
		data.report(dataKey, "%s is a file, or below one; write the path of a folder", c.Data)
	}
	root.folders(c)
	root.store(c)

	loopback, port, err := checkListen(c.Listen)
	switch {
	case err != nil:
		listen.report(listenKey, "%v", err)
	case given != "" || base.has(baseKey):
		if c.BaseURL, err = checkBaseURL(given); err != nil {
			base.report(baseKey, "%v", err)
		}
	case c.pushes():
		base.report(baseKey, "is missing: a Source has push = true, and its hub calls bridge there; write base_url (or --base-url), like \"https://bridge.example.org\"")
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
	root.doc.problems = append(root.doc.problems, arguments.doc.problems...)
	return nil
}

// read returns the configuration and its files, or all their problems.
func (d *document) read(t table, flags Flags) (*Config, []table, error) {
	c := Default()
	t.decode(c)
	t.dataFolder("data", c.Data)
	c.Data = d.path(c.Data)
	names := map[string]bool{}
	d.defaults = t.sourceDefaults()
	files := append([]table{t}, t.included()...)
	for _, file := range files {
		file.doc.defaults = d.defaults
		for _, in := range file.tables("set", "set") {
			set := file.doc.set(in)
			if names[set.Name] && set.Name != "" {
				in.report("name", "there is another set %q; give each its own name", set.Name)
			}
			names[set.Name] = true
			c.Sets = append(c.Sets, set)
		}
	}
	for _, file := range files[1:] {
		file.reportOutside(t)
		d.members = append(d.members, file.doc.members...)
		d.services, d.targets, d.exposed = append(d.services, file.doc.services...), append(d.targets, file.doc.targets...), append(d.exposed, file.doc.exposed...)
		d.unread, d.useless = append(d.unread, file.doc.unread...), append(d.useless, file.doc.useless...)
	}
	known := keysOf(c)
	known["defaults"], known["include"] = true, true
	t.reportUnknown(known)
	if hasPassword(c.Store.Log) {
		d.noteExposed(filepath.Join(d.folder, filepath.Base(d.file)))
	}
	if err := reach(c, t, flags); err != nil {
		return nil, nil, err
	}
	t.console(c)
	for _, in := range t.tables("alert", "alert") {
		c.Alerts = append(c.Alerts, in.alert(c))
	}
	c.exposed, c.unread, c.useless = d.exposed, d.unread, d.useless
	d.crossCheck(c)
	for _, file := range files[1:] {
		d.problems = append(d.problems, file.doc.problems...)
	}
	return c, files, d.err()
}

// ofPattern matches what means something in a pattern.
var ofPattern = pattern.Of(`[*?\[\\]`)

// included returns the files that the key include names, in the order of the patterns and
// of their names. They may contain only sets. Patterns do not find hidden files.
func (t table) included() (all []table) {
	for _, pattern := range t.texts("include", form("")) {
		at := pattern
		if !filepath.IsAbs(at) {
			at = filepath.Join(ofPattern().ReplaceAllString(t.doc.folder, `\$0`), at) // the folder's name is no pattern
		}
		found, err := filepath.Glob(at)
		switch {
		case err != nil || len(found) > 0:
		case !strings.ContainsAny(pattern, `*?[\`):
			err = errors.New("there is no such file")
		default: // Glob finds nothing in a folder that it cannot read
			if _, err = os.ReadDir(filepath.Dir(t.doc.path(pattern))); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		if err != nil {
			t.report("include", "%q: %v; write the path of a file relative to this one, or a pattern like \"conf.d/*.toml\"", pattern, err)
		}
		for _, file := range found {
			hidden := strings.HasPrefix(filepath.Base(file), ".") && !strings.HasPrefix(filepath.Base(pattern), ".") // as in a shell: editors and Edit create such files
			// A pattern like "*.toml" finds the main file too.
			main := file == filepath.Join(t.doc.folder, filepath.Base(t.doc.file))
			if hidden || main || slices.ContainsFunc(all, func(other table) bool { return other.doc.file == file }) {
				continue
			}
			data, err := t.doc.readFile(file)
			if err != nil {
				t.report("include", "%v", err)
				continue
			}
			doc, in, err := parse(file, data)
			if wrong, ok := errors.AsType[*Error](err); ok {
				t.doc.problems = append(t.doc.problems, wrong.Problems...)
				continue
			}
			doc.folder, doc.withoutSecrets, doc.withoutCredentials = filepath.Dir(file), t.doc.withoutSecrets, t.doc.withoutCredentials
			all = append(all, in)
		}
	}
	return all
}

// reportOutside reports the keys of an included file outside of its sets. main is the main file.
func (t table) reportOutside(main table) {
	known := keysOf(Config{})
	known["defaults"], known["include"] = true, true
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if known[key] && key != "set" {
			t.report(key, "does not belong here; an included file has [[set]]s and nothing else, so write it into %s", main.doc.file)
		}
	}
	t.reportUnknown(known)
}

// defaultKeys are the keys of a Source that [defaults] may have.
const defaultKeys = "every full_every overlap max_documents hold_deletions content_hosts push"

// sourceDefaults returns the values of [defaults] for all Sources that are harvested.
// Problems with them are reported only here.
func (t table) sourceDefaults() map[string]any {
	in := t.table("defaults")
	known := map[string]bool{}
	for key := range strings.FieldsSeq(defaultKeys) {
		known[key] = true
	}
	before := len(t.doc.problems)
	in.reportUnknown(known)
	s := defaults[Source]()
	in.decode(&s)
	in.contentHosts()
	if len(t.doc.problems) > before {
		return nil
	}
	return in.values
}

// setName is the form of a set's name.
var setName = pattern.Of(`^[a-z0-9][a-z0-9-]{0,62}$`)

func (d *document) set(t table) Set {
	switch name, isText := t.values["name"].(string); {
	case !t.has("name"):
		t.report("name", `is missing; write name = "main" or the like`)
	case isText && !setName().MatchString(name):
		t.report("name", "%q is not a name of a set; write 1 to 63 of a-z, 0-9 and -, not beginning with -", name)
	case isText:
		t.label = fmt.Sprintf("set %q", name)
	}
	s := defaults[Set]()
	t.decode(&s)
	if s.Dumps && s.Content != Mirror {
		t.report("dumps", "needs content = %q: bridge can pack only what it keeps", Mirror)
	}
	if s.History && s.Content != Mirror {
		t.report("history", "needs content = %q: bridge has no versions of what it does not keep", Mirror)
	}
	s.Hub = t.hubs()
	if s.Inline != "" && s.Content != Mirror {
		t.report("inline", `needs content = "mirror": nobody can be sent to content that stands in a feed`)
	}
	for _, in := range t.tables("format", "set.format") {
		s.OAIFormats = append(s.OAIFormats, in.format(&s))
	}
	names, urls := map[string]bool{}, map[string]bool{}
	for i, in := range t.tables("source", "set.source") {
		source := d.source(in, s.Name)
		once(in, source.Name, source.URL, names, urls)
		if source.SIP != nil && slices.ContainsFunc(s.Sources, func(other Source) bool { return other.SIP != nil }) {
			in.report("kind", `is the second "sip" in the set; one takes everything, so leave this [[set.source]] out`)
		}
		if s.Identity == PerSource && i > 0 && source.Name == "" {
			in.report("name", `is missing; with identity = "per-source" every Source but the first needs a name, which becomes part of its records' identifiers`)
		}
		s.Sources = append(s.Sources, source)
	}
	if s.IsTemplate() {
		template := t.tables("source", "set.source")[0]
		switch {
		case len(s.Sources) > 1:
			template.report("sets", `is "each", so this must be the only [[set.source]] of the set; write the others in sets of their own`)
		case t.has("submit"):
			template.report("sets", `is "each", and no set that is made so can have a [[set.submit]]; leave one of them out`)
		case len(s.Name) > maxTemplateName:
			t.report("name", `has more than %d characters; the names of the sets that sets = "each" makes begin with it`, maxTemplateName)
		}
	}
	for _, in := range t.tables("submit", "set.submit") {
		target := d.target(in, s.Name)
		once(in, target.Name, target.URL, names, urls)
		s.Submit = append(s.Submit, target)
	}
	t.reportUnknown(keysOf(s))
	return s
}

// format reads a format of the set's OAI-PMH repository.
func (t table) format(s *Set) Format {
	f := Format{}
	t.decode(&f)
	t.reportUnknown(keysOf(f))
	u, err := url.Parse(f.Namespace)
	switch same := func(o Format) bool { return o.Prefix == f.Prefix }; {
	case s.Content != Mirror:
		t.report("", "needs content = %q: bridge can hand out only what it keeps", Mirror)
	case f.Prefix == "" && !t.empty("prefix"): // reported already
	case f.Prefix == "":
		t.report("prefix", `is missing; write the metadataPrefix, like prefix = "mods"`)
	case slices.ContainsFunc(s.OAIFormats, same):
		t.report("prefix", "another format of the set is called %q; give each its own prefix", f.Prefix)
	case f.Namespace == "":
		t.report("namespace", `is missing; write that of the records' root element, like namespace = "http://www.loc.gov/mods/v3"`)
	case err != nil || !u.IsAbs():
		t.report("namespace", `%q is no URI; write that of the records' root element, like "http://www.loc.gov/mods/v3"`, f.Namespace)
	case (f.Prefix == "oai_dc") != (f.Namespace == "http://www.openarchives.org/OAI/2.0/oai_dc/"):
		t.report("prefix", `oai_dc is the prefix of the namespace "http://www.openarchives.org/OAI/2.0/oai_dc/", and of no other; write another prefix, or that namespace`)
	}
	return f
}

// once reports a name or a URL that two Sources or targets of a set share: the log
// identifies them by the URL, people by the name.
func once(in table, name, address string, names, urls map[string]bool) {
	if name != "" && names[name] {
		in.report("name", "another Source of the set is called %q; give each its own name", name)
	}
	if address != "" && urls[address] && in.has("url") {
		in.report("url", "%s appears twice in the set; write it once", address)
	}
	names[name], urls[address] = true, true
}

// source reads a Source. One of kind "sip" has other keys than those that are harvested.
func (d *document) source(t table, set string) Source {
	if t.values["kind"] == KindSIP {
		return d.service(t, set)
	}
	if address, _ := t.values["url"].(string); t.values["kind"] == KindSet || strings.HasPrefix(address, memberURL) {
		return d.member(t, set)
	}
	t.reportUnknown(keysOf(Source{}))
	own := t.values
	t.values = map[string]any{}
	maps.Copy(t.values, d.defaults)
	maps.Copy(t.values, own)
	s := defaults[Source]()
	t.decode(&s)
	if s.URL == "" {
		t.report("url", `is missing; write url = "https://..." or a path`)
	} else {
		if err := s.locate(s.URL, d.folder, true); err != nil {
			t.report("url", "%v", err)
		}
	}
	local := strings.HasPrefix(s.URL, "file:")
	if s.PublicURL != "" && s.URL != "" && !local {
		t.report("public_url", "is only for a Source that is a local file; leave it out")
	}
	if s.Push && local {
		if _, own := own["push"]; own {
			t.report("push", "is of no use with a local file; leave it out")
		}
		s.Push = false
	}
	if _, given := own["full_every"]; given && s.Kind == Feed && s.FullEvery > 0 {
		d.useless = append(d.useless, fmt.Sprintf("set %q: source %s: full_every does nothing for a Source of kind %q, of which only bridge harvest --full reads all pages again: leave it out", set, redact(cmp.Or(s.Name, s.URL)), Feed))
	}
	if s.Sets == EachSet {
		if s.Kind != "" && s.Kind != ResourceSync {
			t.report("sets", `is "each", which only a Source of kind "resourcesync" has; leave it out`)
		}
		s.Kind = ResourceSync
	}
	t.repository(&s)
	t.access(&s, local)
	if s.Kind != Folder && t.has("identifier") {
		t.report("identifier", "is only for a Source of kind %q; leave it out", Folder)
	}
	s.OwnContents, s.ContentHosts = t.contentHosts()
	return s
}

// hubs reads the URL of a hub, or a list of them.
func (t table) hubs() []string {
	const key = "hub"
	if _, isList := t.values[key].([]any); isList {
		return t.texts(key, checkHub)
	}
	hub := ""
	if t.text(key, "", &hub); hub == "" {
		return nil
	}
	hub, err := checkHub(hub)
	if err != nil {
		t.report(key, "%v", err)
		return nil
	}
	return []string{hub}
}

// checkHub accepts the URL of a hub. It is published, so it must have no login.
func checkHub(typed string) (string, error) {
	u, err := url.Parse(typed)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return "", fmt.Errorf("%q is not the URL of a hub; write a whole one without a login, like %q", redact(typed), "https://hub.example.org/")
	}
	address := u.String()
	if !isURI(address + u.Host) { // it is part of a header field of each answer
		return "", fmt.Errorf("%q has a character that no URL has; write it with %%, like %%20 for a space, and the name of a host in ASCII, like %q", redact(typed), "xn--bcher-kva.example")
	}
	return address, nil
}

// contentHosts reads the hosts of contents: "public", the default, "same", or a list of
// hosts.
func (t table) contentHosts() (only bool, hosts []string) {
	const key = "content_hosts"
	if _, isList := t.values[key].([]any); isList {
		return true, t.texts(key, checkHost)
	}
	where := "public"
	t.text(key, `oneof:"public same"`, &where)
	return where == "same", nil
}

// member reads a Source of kind KindSet: another set, for which no request is sent.
func (d *document) member(t table, set string) Source {
	t.reportUnknown(map[string]bool{"name": true, "kind": true, "url": true})
	var address string
	t.text("url", "", &address)
	s, err := parseMember(address)
	if err != nil {
		t.report("url", "%v", err)
	}
	if kind := t.values["kind"]; kind != nil && kind != KindSet {
		t.report("kind", "is not the kind of %s, which is a set of this file; leave it out", s.URL)
	}
	t.text("name", `form:"name"`, &s.Name)
	d.members = append(d.members, configured[Source]{t, set, &s})
	return s
}

// service reads a Source of kind KindSIP.
func (d *document) service(t table, set string) Source {
	known := keysOf(SIP{}, Access{})
	known["name"], known["kind"], known["url"] = true, true, true
	t.reportUnknown(known)
	s := defaultSIPSource(set)
	t.text("name", `form:"name"`, &s.Name)
	t.text("url", `form:"web"`, &s.URL)
	if t.empty("url") {
		s.URL = servicePath(set)
	}
	t.decode(s.SIP)
	t.decode(&s.SIP.Access)
	s.SIP.Formats = t.formats()
	s.SIP.Schemas = t.schemas(s.SIP.Formats)
	checkService(t, &s)
	d.services = append(d.services, configured[SIP]{t, set, s.SIP})
	return s
}

// defaultSIPSource is also the meaning of "sip:" on the command line. It is not harvested,
// so the settings of a harvest are all zero.
func defaultSIPSource(set string) Source {
	service := defaults[SIP]()
	service.Access = defaults[Access]()
	return Source{Kind: KindSIP, URL: servicePath(set), SIP: &service}
}

// servicePath returns the path of a set's SIP service, below the base URL.
func servicePath(set string) string { return "/sip/" + set }

func (d *document) target(t table, set string) Target {
	o := defaults[Target]()
	t.decode(&o)
	o.Formats = t.formats()
	t.reportUnknown(keysOf(o))
	if t.empty("url") {
		t.report("url", `is missing; write the URL of the ingest server: url = "https://..."`)
	}
	t.both("submitter_name", "submitter_email")
	t.login("user", "password")
	d.targets = append(d.targets, configured[Target]{t, set, &o})
	return o
}

// formats reads the root elements of records with the URLs of their schemas.
func (t table) formats() map[string]string {
	return t.textMap("formats", `formats = { "{namespace}root" = "URL of the schema" }`, checkFormat)
}

// schemas reads the schema files of formats.
func (t table) schemas(formats map[string]string) map[string]string {
	urls := slices.Collect(maps.Values(formats))
	return t.textMap("schemas", `schemas = { "URL of the schema" = "file.xsd" }`, func(schema, file string) (string, error) {
		if !slices.Contains(urls, schema) {
			return "", errors.New("is the schema of no format; write the URL as in formats")
		}
		path := t.doc.path(file)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist) || file == "":
			return "", fmt.Errorf("there is no file %s; write the path of the schema's copy, relative to this file", path)
		case err != nil:
			return "", err
		case !info.Mode().IsRegular():
			return "", fmt.Errorf("%s is not a file; write the path of the schema's copy", path)
		}
		return path, nil
	})
}
