package config

import (
	"errors"
	"fmt"
	"mime"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/pattern"
)

// form returns the function that checks a text of a form, and returns the text in its
// stored form.
func form(name string) func(string) (string, error) {
	if name == "" { // most have none, and there may be thousands of Sources
		return func(s string) (string, error) { return s, nil }
	}
	accept := map[string]func(string) (string, error){
		"argument":          func(s string) (string, error) { return s, nil },
		"base":              checkBaseURL,
		"box":               checkBox,
		"contact":           checkContact,
		"contents":          checkContents,
		"domain":            checkDomain,
		"files":             checkFiles,
		"folder":            checkPublicURL,
		"from":              checkFrom,
		"gateway recipient": func(s string) (string, error) { return checkRecipient(s, wantedOfGateway) },
		"host":              checkHost,
		"log":               checkLog,
		"listen":            func(s string) (string, error) { _, _, err := checkListen(s); return s, err },
		"mailbox":           checkMailbox,
		"metadataPrefix":    checkPrefixOfFormat,
		"media type":        checkMediaType,
		"name":              checkName,
		"prefix":            checkPrefix,
		"recipient":         func(s string) (string, error) { return checkRecipient(s, wanted) },
		"record":            checkRecordURL,
		"server":            checkServer,
		"setSpec":           checkSetSpec,
		"web":               checkWeb,
	}[name]
	if accept == nil {
		return func(s string) (string, error) { return s, nil }
	}
	return accept
}

// checkName checks the name of a Source, which commands print in a line.
func checkName(s string) (string, error) {
	if strings.ContainsFunc(s, unicode.IsControl) {
		return "", fmt.Errorf("%q has a line end, a tab or another control character; write a name in one line", s)
	}
	return s, nil
}

func checkContact(s string) (string, error) {
	if strings.ContainsAny(s, "()") || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) { // it is part of a header field
		return "", errors.New("has a bracket, a line break or another control character; write a mail address or a URL")
	}
	return s, nil
}

func checkDomain(s string) (string, error) {
	if !isDomain(s) {
		return "", fmt.Errorf(`%q is not a name of a host; write it like "bridge.example.org"`, s)
	}
	return s, nil
}

func checkServer(s string) (string, error) {
	if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "0" || !isPort(port) {
		return "", fmt.Errorf(`%q is not a server; write host:port, like "smtp.example.org:25"`, s)
	}
	return s, nil
}

// checkLog accepts the URL of a database on a PostgreSQL server. Its errors do not repeat the
// text, which may have a password in any place.
func checkLog(typed string) (string, error) {
	const example = `write it like "postgres://bridge@db.example.org/bridge"`
	switch {
	case !strings.HasPrefix(typed, "postgres://") && !strings.HasPrefix(typed, "postgresql://"):
		return "", errors.New("is not the URL of a PostgreSQL server; " + example + ", or leave it out to keep the log in the data folder")
	case strings.ContainsFunc(typed, unicode.IsSpace):
		return "", errors.New("has a space or a line break, which no URL has; leave it out, or write %20 for a space")
	}
	u, err := url.Parse(typed)
	if err != nil || u.Fragment != "" || strings.HasSuffix(typed, "#") {
		return "", errors.New("cannot be read as a URL; a user or password with : / ? # @ or % in it is written with %3A %2F %3F %23 %40 or %25, and a folder of sockets like \"postgres:///bridge?host=/run/postgresql\"")
	}
	q, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return "", errors.New("has a part behind the ? that cannot be read; write name=value, with & between two of them, like ?sslmode=verify-full")
	case u.Host == "" && q.Get("host") == "":
		return "", errors.New("names no host; " + example + ", or for a server on this machine \"postgres:///bridge?host=/run/postgresql\"")
	case strings.Trim(u.Path, "/") == "" && q.Get("dbname") == "":
		return "", errors.New("names no database; " + example)
	}
	return typed, nil
}

func checkContents(typed string) (string, error) { return checkBucket(typed, "the contents") }

func checkFiles(typed string) (string, error) { return checkBucket(typed, "snapshots and dumps") }

// checkBucket accepts the address of a bucket, and returns it in its one form. Its errors
// do not repeat the text, where somebody may have written credentials.
func checkBucket(typed, what string) (string, error) {
	a, err := bucket.Parse(typed)
	switch {
	case err != nil && !strings.HasPrefix(typed, "s3://"):
		return "", fmt.Errorf("%w, or leave it out to keep %s in the data folder", err, what)
	case err != nil:
		return "", err
	}
	return a.String(), nil
}

// hasPassword reports whether the URL of a log has a password.
func hasPassword(log string) bool {
	u, err := url.Parse(log)
	if err != nil {
		return false
	}
	password, _ := u.User.Password()
	q := u.Query()
	return password != "" || q.Get("password") != "" || q.Get("sslpassword") != ""
}

// scheme matches the scheme of a URL, or an unknown kind before a URL. A single letter and
// a colon is a drive.
var scheme = pattern.Of(`^[A-Za-z][A-Za-z0-9+.:-]+://`)

// checkWeb accepts a URL that we can send requests to, and returns it unchanged.
func checkWeb(typed string) (string, error) {
	if front := strings.ToLower(scheme().FindString(typed)); front != "http://" && front != "https://" {
		return "", fmt.Errorf(`%q is not a URL of a web server; write a whole one, like "https://library.example.org/sip"`, redact(typed))
	}
	u, err := url.Parse(typed)
	switch {
	case err != nil && strings.Contains(typed, "@"): // what is wrong with it may show a password
		return "", fmt.Errorf("%s is not a URL; write it without user and password, which have keys of their own in the configuration", redact(typed))
	case err != nil:
		return "", fmt.Errorf("%s is not a URL: %w", redact(typed), errors.Unwrap(err))
	case u.Host == "":
		return "", fmt.Errorf("%s names no host", typed)
	case u.User != nil:
		return "", fmt.Errorf("%s holds a user or password; write the URL without it, and user and password_file in the configuration", redact(typed))
	case u.Fragment != "":
		return "", fmt.Errorf("%s has a fragment, which is never sent; leave out what begins with #", redact(typed))
	case u.RawQuery != "" && strings.ContainsFunc(typed, unicode.IsSpace):
		// Servers refuse a query with one, and in a message a secret would begin behind what
		// looks like the end of the URL.
		return "", fmt.Errorf("%s has a space in it; write %%20 instead", redact(typed))
	}
	return typed, nil
}

// redact removes everything from a URL that may be a secret.
func redact(typed string) string {
	front := scheme().FindString(typed)
	rest := typed[len(front):]
	rest = rest[strings.LastIndex(rest, "@")+1:]
	if before, _, ok := strings.Cut(rest, "?"); ok {
		rest = before + "?***"
	}
	return front + rest
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

// isURI reports whether a text has only characters that a URI may have (RFC 3986 2).
func isURI(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= unicode.MaxASCII || strings.ContainsRune("\"<>\\^`{|}", r) })
}

// checkBaseURL returns base without its trailing slash, and as a URI if it was an IRI, or has a
// space: it is published, and requests name an internationalized host by its form in ASCII.
func checkBaseURL(base string) (string, error) {
	u, err := url.Parse(base)
	switch {
	case err == nil && u.Hostname() != "" && u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q does not begin with http:// or https://; write one that does", redact(base))
	case err != nil || u.Scheme == "" || u.Hostname() == "":
		return "", fmt.Errorf(`%q is not absolute; write a whole URL, like "https://www.example.org"`, redact(base))
	case u.User != nil:
		return "", fmt.Errorf("%s holds a user or password; leave it out", redact(base))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%s has a query or a fragment; leave out what begins with ? or #", redact(base))
	case u.Port() != "" && !isPort(u.Port()):
		return "", fmt.Errorf("%s has a port that no server has; write one up to 65535, or none", base)
	case slices.ContainsFunc(strings.Split(u.Path, "/"), func(part string) bool { return part == "." || part == ".." }):
		return "", fmt.Errorf("%s has . or .. in its path, which clients resolve; write the address that they ask for", base)
	case strings.TrimSpace(base) != base:
		return "", fmt.Errorf("%q ends with a space; leave it out", base)
	}
	if !isURI(base + u.Host) {
		name := follow.Host(u.Hostname())
		if !isASCII(name) {
			return "", fmt.Errorf("%q has no form in ASCII; write the name of the host in that form, like %q", u.Hostname(), "xn--bcher-kva.example")
		}
		u.Host = strings.Replace(u.Host, u.Hostname(), name, 1)
		base = u.String()
	}
	return strings.TrimRight(base, "/"), nil
}

// checkPublicURL returns the URL of a folder with one trailing slash: relative
// references resolve against a folder only then.
func checkPublicURL(public string) (string, error) {
	u, err := url.Parse(public)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not a public address; write the URL of the folder, like %q", redact(public), "https://www.example.org/feeds/")
	}
	if strings.ContainsFunc(public, unicode.IsSpace) { // it is part of the identifiers and URLs of records
		return "", fmt.Errorf("%q has a space in it; write %%20 instead", public)
	}
	return strings.TrimRight(public, "/") + "/", nil
}

// checkRecordURL accepts a template for which no identifier can change the host, or the
// path before the identifier.
func checkRecordURL(template string) (string, error) {
	if n := strings.Count(template, AssignedIdentifier); n != 1 {
		return "", fmt.Errorf("has %s %d times; write it once, like %q", AssignedIdentifier, n, "https://library.example.org/records/"+AssignedIdentifier)
	}
	if strings.Contains(template, " ") { // these URLs are published
		return "", fmt.Errorf("%q has a space in it; write %%20 instead", redact(template))
	}
	before, after, _ := strings.Cut(template, AssignedIdentifier)
	if before != "" && scheme().FindString(before) == before {
		return "", fmt.Errorf("%s is in the host of the URL; write it after the host and a slash", AssignedIdentifier)
	}
	front, err := checkWeb(before)
	if err != nil {
		return "", err
	}
	if u, err := url.Parse(front); err != nil || u.Path == "" {
		return "", fmt.Errorf("%s is in the host of the URL; write it after the host and a slash", AssignedIdentifier)
	}
	_, err = checkWeb(before + "x" + after)
	return template, err
}

// The forms of a recipient, of a gateway and of a Target.
const (
	wantedOfGateway = `"http://..." below which our /sip/SET is reached, "smtp://HOST/BOX@DOMAIN", "smtp:BOX@DOMAIN" or "mailto:BOX@DOMAIN"`
	wanted          = `"http://..." below which our /sip/SET is reached, "smtp://HOST/BOX@DOMAIN", "smtp:BOX@DOMAIN", "mailto:BOX@DOMAIN" or "none"`
)

// checkRecipient returns the stored form of a Recipient. wanted is one of the texts above.
func checkRecipient(typed, wanted string) (string, error) {
	if typed == NoRecipient {
		return typed, nil
	}
	u, err := url.Parse(typed)
	if err != nil || u.User != nil {
		return "", fmt.Errorf("%q is not a recipient; write %s", redact(typed), wanted)
	}
	if u.Scheme != "" {
		typed = u.Scheme + typed[len(u.Scheme):] // the scheme in lower case
	}
	switch {
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%q has a query or a fragment; write %s", typed, wanted)
	case u.Scheme == "http" && u.Hostname() != "":
		return strings.TrimRight(typed, "/"), nil
	case u.Scheme == "https":
		return "", fmt.Errorf("%s is https, and SIP takes http or smtp; write %s", typed, wanted)
	case !isMailbox(typed) || u.Scheme == "mailto" && u.Opaque == "" || u.Opaque == "" && u.Hostname() == "" || u.Port() != "" && !isPort(u.Port()):
		return "", fmt.Errorf("%q is not a recipient; write %s", typed, wanted)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Opaque == "" && (err != nil && !isMailDomain(u.Hostname()) || ip.Zone() != "") {
		return "", fmt.Errorf("%q has a host that is no host name and no address, and ingest servers would not send mail there; write %s", typed, wanted)
	}
	address := u.Opaque + strings.TrimPrefix(u.Path, "/")
	if _, err = checkBox(address); err == nil {
		_, err = checkFrom(address)
	}
	return typed, err
}

// isMailDomain reports whether a name is a Domain of RFC 5321, 4.1.2.
func isMailDomain(name string) bool {
	return len(name) < 254 && domainName().MatchString(strings.ToLower(name))
}

func isMailbox(recipient string) bool {
	front, _, _ := strings.Cut(recipient, ":")
	return strings.EqualFold(front, "smtp") || strings.EqualFold(front, "mailto")
}

// token is the form of an access token. It is part of a URL.
var token = pattern.Of(`^[A-Za-z0-9_-]{16,}$`)

// rootName is "{namespace}" and an NCName (Namespaces in XML 1.0, 4), or an
// NCName alone.
var rootName = pattern.Of(`^(\{[^{}\s]+\})?[` + nameStart + `][` + nameStart + `\-.0-9\x{B7}\x{300}-\x{36F}\x{203F}-\x{2040}]*$`)

// nameStart is NameStartChar without the colon (XML 1.0, production 4), inside
// the brackets of a pattern.
const nameStart = `A-Z_a-z\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{2FF}\x{370}-\x{37D}\x{37F}-\x{1FFF}\x{200C}-\x{200D}\x{2070}-\x{218F}` +
	`\x{2C00}-\x{2FEF}\x{3001}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFFD}\x{10000}-\x{EFFFF}`

// checkFormat accepts the root element of a record and the URL of its schema.
func checkFormat(root, schema string) (string, error) {
	if !rootName().MatchString(root) {
		return "", errors.New(`is not a name of a root element; write "{namespace}name", or "name" for one without a namespace`)
	}
	if u, err := url.Parse(schema); err != nil || !u.IsAbs() || u.Host+u.Opaque == "" || u.User != nil || strings.ContainsAny(schema, " \t\r\n") {
		return "", fmt.Errorf("%q is not an absolute URL; write that of the schema, like %q", redact(schema), "http://www.loc.gov/standards/mods/v3/mods-3-8.xsd")
	}
	return schema, nil
}

func checkMediaType(s string) (string, error) {
	if mediaType, _, err := mime.ParseMediaType(s); err != nil || !strings.Contains(mediaType, "/") || strings.Contains(mediaType, "*") {
		return "", fmt.Errorf("%q is not a media type; write it like %q", s, "application/rdf+xml")
	}
	return s, nil
}

var (
	// metadataPrefix and setSpec consist of characters that URLs need not escape (OAI-PMH
	// 3.4 and 2.6); a setSpec has colons between its names. Some repositories use other
	// characters.
	metadataPrefix = pattern.Of(`^[^\s&?#"<>]+$`)
	setSpec        = pattern.Of(`^[^\s?#"<>]+$`)
)

func checkPrefixOfFormat(s string) (string, error) {
	if !metadataPrefix().MatchString(s) {
		return "", fmt.Errorf(`%q is not a metadataPrefix; write it like "oai_dc", as the repository's ?verb=ListMetadataFormats has it`, s)
	}
	return s, nil
}

func checkSetSpec(s string) (string, error) {
	if !setSpec().MatchString(s) {
		return "", fmt.Errorf(`%q is not a setSpec; write it like "physics:hep", as the repository's ?verb=ListSets has it`, s)
	}
	return s, nil
}

// checkPrefix accepts a possible start of the URLs of records.
func checkPrefix(s string) (string, error) {
	if !scheme().MatchString(s) {
		return "", fmt.Errorf("%q is not how a URL begins; write it like %q", s, "https://data.example.org/maps/")
	}
	return s, nil
}

// hostName is a name without port, scheme or path.
var hostName = pattern.Of(`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$`)

// checkHost accepts a host, or host:port, and returns it in lower case, and an internationalized
// name in its form in ASCII. An IPv6 address has brackets only with a port.
func checkHost(s string) (string, error) {
	host := strings.ToLower(s)
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		host = strings.Trim(host, "[]")
		name, port = host, "1"
	}
	if !isASCII(name) {
		ascii := follow.Host(name)
		host, name = strings.Replace(host, name, ascii, 1), ascii
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || net.ParseIP(name) == nil && !hostName().MatchString(name) {
		return "", fmt.Errorf(`%q is not a host; write a host name or an IP address, like "files.example.org" or "10.0.0.7:8080", without scheme or path`, s)
	}
	return host, nil
}

// checkNetwork accepts an address or a network, and returns the network.
func checkNetwork(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()).String(), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.Addr().Is4In6():
		return "", fmt.Errorf(`%q is not a network; write it like "192.0.2.0/24" or "2001:db8::/32", or one address`, s)
	case p != p.Masked():
		return "", fmt.Errorf("%q is an address with the length of a network; write %q for the network, or %q", s, p.Masked(), p.Addr())
	}
	return p.String(), nil
}

// checkListen reports whether an address is on the loopback interface only.
func checkListen(address string) (loopback bool, port int, err error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return false, 0, fmt.Errorf(`%q is not an address; write host:port, like "127.0.0.1:8080"`, address)
	}
	port, err = net.LookupPort("tcp", service)
	if err != nil {
		return false, 0, fmt.Errorf("%q: %q is not a port; write a number from 0 to 65535 after the last colon", address, service)
	}
	return isLoopback(host), port, nil
}

// isLoopback reports whether a host can be reached only from its own machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func isPort(service string) bool {
	_, err := net.LookupPort("tcp", service)
	return err == nil
}

// fromHost returns the default of Mail.From for the host of the base URL, "" when that is
// no valid domain.
func fromHost(host string) string {
	from, err := checkFrom("bridge@" + host)
	if err != nil || isLoopback(host) {
		return ""
	}
	return from
}

// checkFrom is checkMailbox for the sender address of mails: servers look up its domain, so
// that must be a name (RFC 5321, 2.3.5).
func checkFrom(s string) (string, error) {
	address, err := checkMailbox(s)
	_, domain, _ := strings.Cut(address, "@")
	if _, notIP := netip.ParseAddr(domain); err == nil && (notIP == nil || !domainName().MatchString(domain) || len(address) > 254) {
		return "", fmt.Errorf("%q has no domain name behind the @, and mail servers would not take it; write it like %q", s, "bridge@example.org")
	}
	return address, err
}

var (
	// localPart is the Dot-string of RFC 5321, 4.1.2.
	localPart = pattern.Of("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*$")
	// box is a local part that needs no escaping in a URL and has no plus, which separates
	// a token. With a plus and the 26 letters of a token it is not longer than the 64
	// characters that servers must accept (RFC 5321, 4.5.3.1.1).
	box = pattern.Of(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,36}$`)
	// domainName is the Domain of RFC 5321, 4.1.2, in lower case.
	domainName = pattern.Of(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
)

// checkMailbox accepts a mail address and returns it with its domain in lower
// case.
func checkMailbox(s string) (string, error) {
	at := strings.LastIndexByte(s, '@')
	if at < 0 || at > 64 || !localPart().MatchString(s[:at]) || !isDomain(s[at+1:]) {
		return "", fmt.Errorf("%q is not a mail address; write it like %q, in ASCII", s, "box@example.org")
	}
	domain := s[at+1:]
	if !strings.HasPrefix(domain, "[") {
		domain = strings.ToLower(domain)
	}
	return s[:at+1] + domain, nil
}

// checkBox is checkMailbox for one of our mailboxes, to which tokens are added.
func checkBox(s string) (string, error) {
	address, err := checkMailbox(s)
	if err == nil && !box().MatchString(address[:strings.LastIndexByte(address, '@')]) {
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
	return len(s) < 256 && hostName().MatchString(strings.ToLower(s))
}
