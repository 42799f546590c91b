package config

import (
	"cmp"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/bucket"
)

// both reports a key without the other, or the other without the key.
func (t table) both(key, other string) {
	if t.empty(key) != t.empty(other) {
		t.report(key, "goes with %s; write both or none", other)
	}
}

// login checks a user, with the password under its key or in a file.
func (t table) login(user, password string) {
	name, _ := t.values[user].(string)
	switch {
	case t.empty(user) == (t.has(password) || t.has(password+"_file")):
		t.report(user, "goes with %s or %s_file; write both or none", password, password)
	case strings.Contains(name, ":"):
		t.report(user, "has a colon, which no user name may have (RFC 7617)")
	}
}

// repository checks the keys that only an OAI-PMH repository has, and sets that kind for a
// Source with one of them.
func (t table) repository(s *Source) {
	keys := t.among("format also oai_set window")
	if s.Kind == "" && len(keys) > 0 {
		s.Kind = OAIPMH
	}
	if s.Kind != OAIPMH {
		for _, key := range keys {
			t.report(key, "is only for a Source of kind %q; leave it out", OAIPMH)
		}
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return // reported already
	}
	if u.Scheme == "file" {
		t.report("url", "is a local file, and an OAI-PMH repository answers requests; write its base URL, like %q", "https://repository.example.org/oai")
	}
	asked := u.Query()
	for _, x := range []struct{ key, argument, value string }{{"format", "metadataPrefix", s.Format}, {"oai_set", "set", s.OAISet}} {
		if in := asked.Get(x.argument); in != "" && x.value != "" && in != x.value {
			t.report(x.key, "is %q, and the url says %s=%s; write it in one place", x.value, x.argument, in)
		}
	}
	t.dates(asked)
	if slices.Contains(s.Also, cmp.Or(s.Format, asked.Get("metadataPrefix"), "oai_dc")) {
		t.report("also", "has the format that is harvested anyway; leave that out")
	}
	if s.Window > 0 && s.Window < 24*time.Hour {
		t.report("window", `is shorter than a day, the datestamp of many repositories; write "1d" or more`)
	}
}

// dates checks the dates by which the URL of a repository selects records.
func (t table) dates(asked url.Values) {
	var at [2]time.Time
	for i, name := range [...]string{"from", "until"} {
		text := asked.Get(name)
		if text == "" {
			continue
		}
		day, err := time.Parse(time.DateOnly, text)
		if at[i] = day; err == nil && name == "until" {
			at[i] = day.Add(24*time.Hour - time.Second) // all of the day
		}
		if err != nil {
			if at[i], err = time.Parse("2006-01-02T15:04:05Z", text); err != nil {
				t.report("url", "says %s=%s, which is no date; write one like 2020-01-31 or 2020-01-31T00:00:00Z", name, text)
				return
			}
		}
	}
	if asked.Get("from") != "" && asked.Get("until") != "" && at[1].Before(at[0]) {
		t.report("url", "says until=%s, which is earlier than from=%s, so that no record is selected; exchange them, or leave one out", asked.Get("until"), asked.Get("from"))
	}
}

// folders checks the Sources that are folders: none may contain our own data, and no two of
// a set may give the same identifiers to different files.
func (t table) folders(c *Config) {
	for i := range c.Sets {
		named := map[string]string{}
		for j := range c.Sets[i].Sources {
			s := &c.Sets[i].Sources[j]
			u, err := url.Parse(s.URL)
			if s.Kind != Folder || err != nil || u.Path == "" {
				continue
			}
			at := filepath.Clean(filepath.FromSlash(u.Path))
			if inside, err := filepath.Rel(at, c.Data); err == nil && filepath.IsLocal(inside) {
				t.report("", "set %q: the data folder %s lies in the folder %s, whose files would be records; write another one (data, --data), or the path of a folder with nothing but records", c.Sets[i].Name, c.Data, at)
			}
			base := cmp.Or(strings.TrimSuffix(s.PublicURL, "/"), s.Name, filepath.Base(at))
			if other, again := named[base]; again {
				t.report("", "set %q: the folders %s and %s would give the same identifiers to different files; write a name, or a public_url, for each", c.Sets[i].Name, other, at)
			}
			named[base] = at
		}
	}
}

// checkService checks the keys of a SIP service against each other.
func checkService(t table, s *Source) {
	c := s.SIP
	if strings.ContainsAny(s.URL, "{}") {
		t.report("url", "is the library itself; where it publishes its records is record_url, like %q", "https://library.example.org/records/"+AssignedIdentifier)
	}
	t.login("user", "password")
	if c.Recipient == NoRecipient {
		t.report("recipient", "must be one: a gateway receives dispositions later; write its address, or leave this out")
	}
	wrongMode := c.Mode == "" && t.has("mode") // reported already
	if c.Mode == Gateway {
		if t.empty("upstream") {
			t.report("upstream", `is missing; with mode = "gateway" write the URL of the ingest server behind it`)
		}
	} else if !wrongMode {
		for _, key := range t.among("upstream user password password_file recipient deadline") {
			t.report(key, `is only for mode = "gateway"; leave it out`)
		}
	}
	values, _ := t.values["formats"].(map[string]any)
	if c.Mode == "" && !wrongMode {
		for _, key := range t.among("formats schemas") {
			t.report(key, "is for an ingest server, and without mode the set takes notifications only; write mode, or leave this out")
		}
	} else if (c.Mode == Library || c.Mode == Review) && len(values) == 0 {
		t.report("formats", `must say which records mode = %q accepts; write formats = { "{namespace}root" = "URL of the schema" }`, c.Mode)
	}
	t.both("mailbox", "smtp_listen")
	checkAccess(t, &c.Access)
}

// console checks the access to the console.
func (t table) console(c *Config) {
	if secret := c.ConsoleToken.text; secret != "" && len(secret) < consoleTokenBytes {
		key := "console_token"
		if t.has("console_token_file") {
			key = "console_token_file"
		}
		t.report(key, "the token is too short to be safe; make it of %d characters or more, like: openssl rand -hex 16", consoleTokenBytes)
	}
	if c.ConsoleListen == "" {
		return
	}
	loopback, _, err := checkListen(c.ConsoleListen)
	switch {
	case err != nil: // reported already
	case !loopback && c.ConsoleToken.text == "":
		t.report("console_listen", "%s can be reached from other machines, and whoever reaches the console without a token may do everything; write console_token_file as well", c.ConsoleListen)
	case c.ConsoleListen == c.Listen && !strings.HasSuffix(c.Listen, ":0"): // with port 0 they are two different ports
		t.report("console_listen", "is the same as listen; leave it out, and with console_token_file the console is at /console there")
	}
}

// store checks that contents and files have a place of their own in a bucket.
func (t table) store(c *Config) {
	contents, err := bucket.Parse(c.Store.Contents)
	files, other := bucket.Parse(c.Store.Files)
	if err != nil || other != nil || contents.Bucket != files.Bucket || contents.Endpoint != files.Endpoint {
		return
	}
	a, b := contents.Prefix+"/", files.Prefix+"/"
	if contents.Prefix == "" || files.Prefix == "" || strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
		t.table("store").report("files", "is in the place of contents, or the other way round; write another prefix for each, like s3://%s/contents and s3://%s/files", files.Bucket, files.Bucket)
	}
}

// consoleTokenBytes is the least length of the token of a console.
const consoleTokenBytes = 16

func checkAccess(t table, a *Access) {
	if s := a.Token.text; s != "" && !token().MatchString(s) {
		key := "access_token"
		if t.has("access_token_file") {
			key = "access_token_file"
		}
		t.report(key, "the token is too short, or has a character that URLs do not take as it is; make it of 16 or more of A-Z, a-z, 0-9, _ and -")
	}
	t.login("access_user", "access_password")
	for _, group := range []struct{ kind, keys, needs string }{
		{AccessToken, "access_token access_token_file", "access_token_file"},
		{AccessBasic, "access_user access_password access_password_file", "access_user and access_password_file"},
		{AccessAddresses, "access_addresses", `access_addresses = ["192.0.2.0/24"]`},
	} {
		given := t.among(group.keys)
		if a.Kind != group.kind {
			for _, key := range given {
				t.report(key, "is only for access = %q; write that, or leave it out", group.kind)
			}
		} else if len(given) == 0 || t.empty(given[0]) || a.Kind == AccessBasic && t.empty("access_user") {
			t.report("access", "%q needs %s as well", group.kind, group.needs)
		}
	}
}

// crossCheck checks the sets against each other and against the base URL.
func (d *document) crossCheck(c *Config) {
	content := map[string]string{} // of each set
	for _, set := range c.Sets {
		content[set.Name] = cmp.Or(content[set.Name], set.Content)
	}
	plain := !strings.HasPrefix(c.BaseURL, "https:") // SIP notifications come over http
	services := map[string]*SIP{}
	boxes := map[[2]string]string{} // set by listener and mailbox
	for _, s := range d.services {
		services[s.set] = s.it
		at := [2]string{s.it.SMTPListen, strings.ToLower(s.it.Mailbox)}
		if other, ok := boxes[at]; ok && s.it.Mailbox != "" {
			s.in.report("mailbox", "%s is that of set %q; write another, or another smtp_listen", s.it.Mailbox, other)
		}
		boxes[at] = s.set
		for key, other := range map[string]string{"listen": c.Listen, "console_listen": c.ConsoleListen} {
			if s.it.SMTPListen != "" && s.it.SMTPListen == other && !strings.HasSuffix(other, ":0") {
				s.in.report("smtp_listen", "is the same as %s; write another port, for mail alone", key)
			}
		}
		if s.it.Mode != "" && content[s.set] != Mirror {
			s.in.report("mode", `%q keeps the records that it is sent; write content = "mirror" in the set`, s.it.Mode)
		}
		if s.it.Mode == Gateway && s.in.empty("recipient") && !plain {
			s.in.report("recipient", "is missing: the base URL is https, and SIP takes http or smtp; write %s", wantedOfGateway)
		}
		if isMailbox(s.it.Recipient) && s.it.Mailbox == "" {
			s.in.report("recipient", "is a mailbox, and nothing takes its mail; write smtp_listen and mailbox")
		}
	}
	for _, o := range d.targets {
		if content[o.set] != Mirror {
			o.in.report("", `submits the content of records; write content = "mirror" in the set`)
		}
		switch to := o.it.ImportAcceptedTo; {
		case to == "":
		case to == o.set:
			o.in.report("import_accepted_to", "is the set itself; write the name of another set")
		case content[to] == "":
			o.in.report("import_accepted_to", "there is no set %q; write the name of one with a [[set.source]] of kind \"sip\"", to)
		case services[to] == nil:
			o.in.report("import_accepted_to", "set %q does not take records in; give it a [[set.source]] with kind = \"sip\"", to)
		case content[to] != Mirror:
			o.in.report("import_accepted_to", `set %q does not keep records; write content = "mirror" in it`, to)
		}
		if own := services[o.set]; isMailbox(o.it.Recipient) && (own == nil || own.Mailbox == "") {
			o.in.report("recipient", `is a mailbox, and nothing takes its mail; write a [[set.source]] with kind = "sip", smtp_listen and mailbox in set %q`, o.set)
		}
		if o.in.empty("recipient") && !plain {
			o.in.report("recipient", "is missing: the base URL is https, and SIP takes http or smtp; write %s", wanted)
		}
	}
	d.checkMembers(c, content)
	d.checkCycles(c, services)
}
