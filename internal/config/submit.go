package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Mail is how notifications are sent by mail, to recipients that are mailboxes.
type Mail struct {
	// From is the address that mails come from, its domain a name; default
	// "bridge@" and the host of the base URL. "" is none, and no mail can be sent:
	// that host is an IP address, or a name that other machines do not know.
	From string
	// Relay is the server that takes all mail, host:port; "" asks the domain of
	// each recipient.
	Relay string
	// HELO is our name in EHLO; "" is the domain of From.
	HELO string
}

// NoRecipient as a Target's Recipient: no notification recipient is named, so the
// server must answer synchronously.
const NoRecipient = "none"

// Target is an ingest server that a set's records are submitted to (Simple
// Ingest Protocol).
type Target struct {
	// Name is for people; "" is the URL.
	Name string
	// URL of the ingest server: http or https, and none of the set's Sources'.
	URL string
	// Formats say which schema URL among the server's properties stands for the
	// records with a root element; see SIP.Formats. Without an entry the record's
	// own xsi:schemaLocation tells.
	Formats map[string]string
	// SubmitterName and SubmitterEmail go into the source of each request; both
	// are "" when none is configured.
	SubmitterName, SubmitterEmail string
	// Sequence goes into the source as well; "" is the set's name.
	Sequence string
	// Recipient is where the server may send its dispositions: NoRecipient; an
	// http URL without trailing slash, below which our /sip/{set} is reached; a
	// mailbox of ours as smtp://host/box@domain, smtp:box@domain or
	// mailto:box@domain; or "", our own address below the base URL, which is http
	// then.
	Recipient string
	// Deadline is how long a record may stay without its ultimate disposition;
	// default 168 h.
	Deadline time.Duration
	// Every is the first wait before a failed request is sent again, which doubles
	// up to 1 h; default 1 min.
	Every time.Duration
	// Workers is the number of requests at a time; default 4.
	Workers int
	// SkipProperties: the server is not asked for its properties, and gets records
	// of every format.
	SkipProperties bool
	// ImportAcceptedTo is the set with a SIP Source that gets the accepted records, "" none.
	ImportAcceptedTo string
	// User and Password log us in at the URL, and nowhere else; "" is no login.
	User     string
	Password Secret
}

// The values of a target's key properties.
const (
	askProperties  = "ask"
	skipProperties = "skip"
)

func defaultTarget() Target {
	return Target{Deadline: 168 * time.Hour, Every: time.Minute, Workers: 4}
}

func (r *reader) target(t table, set string) Target {
	s := defaultTarget()
	s.Name = t.text("name", "")
	s.URL = t.web("url")
	if t.empty("url") {
		t.report("url", `is missing; write the URL of the ingest server: url = "https://..."`)
	}
	s.Formats = t.formats()
	s.SubmitterName = t.text("submitter_name", "")
	s.SubmitterEmail = t.mailbox("submitter_email", checkMailbox)
	if t.empty("submitter_name") != t.empty("submitter_email") {
		t.report("submitter_name", "goes with submitter_email; write both or none")
	}
	s.Sequence = t.text("sequence", "")
	typed := t.text("recipient", "")
	recipient, err := checkRecipient(typed, wanted)
	if err != nil {
		t.report("recipient", "%v", err)
	}
	s.Recipient = recipient
	s.Deadline = t.duration("deadline", s.Deadline, oneSecond)
	s.Every = t.duration("every", s.Every, oneSecond)
	if s.Every > time.Hour {
		t.report("every", "%s is too long; write 1h or less, which is as long as a wait becomes", s.Every)
	}
	s.Workers = t.number("workers", s.Workers, 1, 64)
	s.SkipProperties = t.oneOf("properties", askProperties, askProperties, skipProperties) == skipProperties
	s.ImportAcceptedTo = t.text("import_accepted_to", "")
	s.User, s.Password = r.login(t, "user", "password")
	t.reportUnknown(keyTables())
	r.targets = append(r.targets, configuredTarget{in: t, set: set, target: s, mailed: err == nil && isMailbox(typed)})
	return s
}

// What a recipient may be, of a gateway and of a Target.
const (
	wantedOfGateway = `"http://..." below which our /sip/SET is reached, "smtp://HOST/BOX@DOMAIN", "smtp:BOX@DOMAIN" or "mailto:BOX@DOMAIN"`
	wanted          = `"http://..." below which our /sip/SET is reached, "smtp://HOST/BOX@DOMAIN", "smtp:BOX@DOMAIN", "mailto:BOX@DOMAIN" or "none"`
)

// checkRecipient returns what a Recipient becomes. What it wants is one of the
// above.
func checkRecipient(typed, wanted string) (string, error) {
	if typed == "" || typed == NoRecipient {
		return typed, nil
	}
	u, err := url.Parse(typed)
	if err != nil || u.User != nil {
		return "", fmt.Errorf("%q is no recipient; write %s", redact(typed), wanted)
	}
	if u.Scheme != "" {
		typed = u.Scheme + typed[len(u.Scheme):] // in lower case
	}
	switch {
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%q has a query or a fragment; write %s", typed, wanted)
	case u.Scheme == "http" && u.Hostname() != "":
		return strings.TrimRight(typed, "/"), nil
	case u.Scheme == "https":
		return "", fmt.Errorf("%s is https, and the draft wants http or smtp; write %s", typed, wanted)
	case !isMailbox(typed) || u.Scheme == "mailto" && u.Opaque == "" || u.Opaque == "" && u.Hostname() == "" || u.Port() != "" && !isPort(u.Port()):
		return "", fmt.Errorf("%q is no recipient; write %s", typed, wanted)
	}
	_, err = checkBox(u.Opaque + strings.TrimPrefix(u.Path, "/"))
	return typed, err
}

func isMailbox(recipient string) bool {
	front, _, _ := strings.Cut(recipient, ":")
	return strings.EqualFold(front, "smtp") || strings.EqualFold(front, "mailto")
}

func (r *reader) mail(t table) Mail {
	m := Mail{From: t.mailbox("from", checkFrom), Relay: t.text("relay", ""), HELO: t.text("helo", "")}
	if m.Relay != "" {
		if host, port, err := net.SplitHostPort(m.Relay); err != nil || host == "" || port == "0" || !isPort(port) {
			t.report("relay", `%q is no server; write host:port, like "smtp.example.org:25"`, m.Relay)
		}
	}
	if m.HELO != "" && !isDomain(m.HELO) {
		t.report("helo", `%q is no name of a host; write it like "bridge.example.org"`, m.HELO)
	}
	t.reportUnknown(keyTables())
	return m
}

func isPort(service string) bool {
	_, err := net.LookupPort("tcp", service)
	return err == nil
}

// fromHost returns the default of Mail.From for the host of the base URL, "" when
// that makes none.
func fromHost(host string) string {
	from, err := checkFrom("bridge@" + host)
	if err != nil || isLoopback(host) {
		return ""
	}
	return from
}

// checkFrom is checkMailbox for an address that mails come from: servers ask its
// domain back, so that has to be a name (RFC 5321, 2.3.5).
func checkFrom(s string) (string, error) {
	address, err := checkMailbox(s)
	_, domain, _ := strings.Cut(address, "@")
	if _, notIP := netip.ParseAddr(domain); err == nil && (notIP == nil || !domainName.MatchString(domain) || len(address) > 254) {
		return "", fmt.Errorf("%q has no domain name behind the @, and mail servers would not take it; write it like %q", s, "bridge@example.org")
	}
	return address, err
}

// mailbox reads a mail address; "" is none.
func (t table) mailbox(key string, check func(string) (string, error)) string {
	typed := t.text(key, "")
	if typed == "" {
		return ""
	}
	address, err := check(typed)
	if err != nil {
		t.report(key, "%v", err)
	}
	return address
}

var (
	// localPart is the Dot-string of RFC 5321, 4.1.2.
	localPart = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*$")
	// box is a local part that means the same in a URL, and leaves the plus to
	// what follows it. With a plus and the 26 letters of a token it is no longer
	// than the 64 that servers must take (RFC 5321, 4.5.3.1.1).
	box = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,36}$`)
	// domainName is the Domain of RFC 5321, 4.1.2, in lower case.
	domainName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
)

// checkMailbox accepts a mail address and returns it with its domain in lower
// case.
func checkMailbox(s string) (string, error) {
	at := strings.LastIndexByte(s, '@')
	if at < 0 || at > 64 || !localPart.MatchString(s[:at]) || !isDomain(s[at+1:]) {
		return "", fmt.Errorf("%q is no mail address; write it like %q, in ASCII", s, "box@example.org")
	}
	domain := s[at+1:]
	if !strings.HasPrefix(domain, "[") {
		domain = strings.ToLower(domain)
	}
	return s[:at+1] + domain, nil
}

// checkBox is checkMailbox for a mailbox of ours, to which tokens are added.
func checkBox(s string) (string, error) {
	address, err := checkMailbox(s)
	if err == nil && !box.MatchString(address[:strings.LastIndexByte(address, '@')]) {
		return "", fmt.Errorf("%q does not leave room for the token in box+token@domain; write a box of at most 37 letters, digits, dots, _ and -, without a plus", s)
	}
	return address, err
}

// isDomain accepts a domain, and an address literal in brackets.
func isDomain(s string) bool {
	if inside, ok := strings.CutPrefix(s, "["); ok {
		inside, ok = strings.CutSuffix(inside, "]")
		v6, isV6 := strings.CutPrefix(inside, "IPv6:")
		a, err := netip.ParseAddr(v6)
		return ok && err == nil && a.Zone() == "" && a.Is6() == isV6
	}
	return len(s) < 256 && hostName.MatchString(strings.ToLower(s))
}

// configuredService and configuredTarget are a SIP Source and a Target with their
// tables, for checks that need the whole file.
type configuredService struct {
	in  table
	set string
	sip *SIP
}

type configuredTarget struct {
	in     table
	set    string
	target Target
	mailed bool // its recipient is a mailbox
}

// crossCheck checks the sets against each other and against the base URL.
func (r *reader) crossCheck(c *Config) {
	services := map[string]*SIP{}
	boxes := map[[2]string]string{} // set by listener and mailbox
	submits := map[string]bool{}
	for _, o := range r.targets {
		submits[o.set] = true
	}
	for _, s := range r.services {
		services[s.set] = s.sip
		at := [2]string{s.sip.SMTPListen, strings.ToLower(s.sip.Mailbox)}
		if other, ok := boxes[at]; ok && s.sip.Mailbox != "" {
			s.in.report("mailbox", "%s is that of set %q; write another, or another smtp_listen", s.sip.Mailbox, other)
		}
		boxes[at] = s.set
		s.checkMailbox(submits[s.set])
		if s.sip.Mode != "" && content(c, s.set) != Mirror {
			s.in.report("mode", `%q keeps the records that it is sent; write content = "mirror" in the set`, s.sip.Mode)
		}
		if s.sip.Mode == Gateway && s.in.empty("recipient") && strings.HasPrefix(c.BaseURL, "https:") {
			s.in.report("recipient", "is missing: the base URL is https, and the draft wants http or smtp; write %s", wantedOfGateway)
		}
		if isMailbox(s.sip.Recipient) && s.sip.Mailbox == "" {
			s.in.report("recipient", "is a mailbox, and nothing takes its mail; write smtp_listen and mailbox")
		}
	}
	for _, o := range r.targets {
		if content(c, o.set) != Mirror {
			o.in.report("", `submits the content of records; write content = "mirror" in the set`)
		}
		if err := o.checkImport(c, services); err != nil {
			o.in.report("import_accepted_to", "%v", err)
		}
		own := services[o.set]
		if o.mailed && (own == nil || own.Mailbox == "") {
			o.in.report("recipient", `is a mailbox, and nothing takes its mail; write a [[set.source]] with kind = "sip", smtp_listen and mailbox in set %q`, o.set)
		}
		if o.in.empty("recipient") && strings.HasPrefix(c.BaseURL, "https:") {
			o.in.report("recipient", "is missing: the base URL is https, and the draft wants http or smtp; write %s", wanted)
		}
	}
	r.checkCycles(c, services)
}

// checkMailbox reports a mailbox that could receive no mail.
func (s *configuredService) checkMailbox(submits bool) {
	switch {
	case s.sip.Mailbox == "" || submits || s.sip.Mode == Gateway || wrongMode(s.in, s.sip):
	case s.sip.Mode != "":
		s.in.report("mailbox", "could take no mail: mode = %q decides here, and without a [[set.submit]] there is nobody who could notify the set; leave mailbox and smtp_listen out", s.sip.Mode)
	case s.sip.Access.Kind == AccessBasic:
		s.in.report("mailbox", `could take no mail: access = "basic" wants a password, and mail has none; write access = "token" or "addresses", or leave mailbox and smtp_listen out`)
	}
}

func (o *configuredTarget) checkImport(c *Config, services map[string]*SIP) error {
	switch into := o.target.ImportAcceptedTo; {
	case into == "":
		return nil
	case into == o.set:
		return errors.New("is the set itself; write the name of another set")
	case content(c, into) == "":
		return fmt.Errorf("there is no set %q; write the name of one with a [[set.source]] of kind \"sip\"", into)
	case services[into] == nil:
		return fmt.Errorf("set %q does not take records in; give it a [[set.source]] with kind = \"sip\"", into)
	case content(c, into) != Mirror:
		return fmt.Errorf(`set %q does not keep records; write content = "mirror" in it`, into)
	}
	return nil
}

// content returns the content mode of a set, "" when there is no such set.
func content(c *Config, set string) string {
	for i := range c.Sets {
		if c.Sets[i].Name == set {
			return c.Sets[i].Content
		}
	}
	return ""
}
