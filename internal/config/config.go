// Package config reads the configuration: one strict TOML file, or Sources named on the
// command line, and the flags that take precedence over both.
//
// A Config is checked and complete: every default is filled in, paths are absolute, secrets
// are read. All problems are reported at once, each with its line and a correction.
//
// The tags of the structs give each key, its default and its values; decode reads them.
// check.go checks keys against each other.
package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

//go:embed template.toml
var template string

// Template returns the commented file that "bridge init" writes. It can be loaded
// unchanged, and has every key with its default.
func Template() string { return template }

// Config is a complete configuration. The zero value is not usable; see Default.
type Config struct {
	// File is the absolute path of the file that was read, "" without one.
	File    string
	flags   Flags    // with which it was read
	exposed []string // files with secrets that others may read
	useless []string // warnings of keys that do nothing
	unread  []string // credentials that were not read, see Flags.WithoutCredentials
	// Listen is the address of the server, host:port.
	Listen string `toml:"listen" default:"127.0.0.1:8080"`
	// BaseURL is where others reach the server: absolute, http or https, without
	// trailing slash, query or user. It is http://Listen unless given, and ""
	// when Listen leaves the port to the system (port 0): then it is
	// http:// and the address that the server got.
	BaseURL string `toml:"base_url"`
	// TrustedProxies are the networks of the web servers in front of us: their
	// X-Forwarded-For is trusted. None of them is an IPv4 network in IPv6 form. The default
	// is none.
	TrustedProxies []netip.Prefix `toml:"trusted_proxies"`
	// ConsoleListen is the address of the console, host:port. With "" the console is below
	// BaseURL if there is a ConsoleToken, else there is none. ConsoleToken is the token to
	// sign in with; it is required for an address that other machines reach.
	ConsoleListen string `toml:"console_listen" form:"listen"`
	ConsoleToken  Secret `toml:"console_token"`
	// Data is the absolute path of the data folder.
	Data string `toml:"data" default:"bridge-data"`
	// AllowHosts are host names and IP addresses, in lower case and with or without a
	// port, that the documents of every Source may lead to, also in private networks.
	AllowHosts []string `toml:"allow_hosts" form:"host"`
	// Contact is a mail address or URL for the User-Agent of requests; "" means none.
	Contact string `toml:"contact" form:"contact"`
	// Proxy is the URL of an HTTP proxy for our requests, "" means none. The proxy of the
	// environment is not used.
	Proxy    string   `toml:"proxy" form:"base"`
	Store    Store    `toml:"store"`
	Mail     Mail     `toml:"mail"`
	Snapshot Snapshot `toml:"snapshot"`
	Limits   Limits   `toml:"limits"`
	// Alerts are sent to operators.
	Alerts []Alert `toml:"alert"`
	// Sets in the order of the file. Without any, only the sets in the data folder are
	// published.
	Sets []Set `toml:"set"`
}

// Store says where the data is that need not be in the data folder.
type Store struct {
	// Log is the URL of a database on a PostgreSQL server, which has the event log: it names
	// a host and the database, and may have a password. "" means log.db in the data folder.
	Log string `toml:"log" form:"log"`
	// Contents is the address of a bucket on an S3 server, as bucket.Address writes it, to which
	// the contents of records are moved. It has no secret. "" means that they stay in content.db
	// in the data folder. With both Log and Contents the places of contents are on the server.
	Contents string `toml:"contents" form:"contents"`
	// ContentsCache is how many bytes of the newest contents stay in content.db, or on the
	// server, too.
	ContentsCache int64 `toml:"contents_cache" default:"1 GiB"`
	// ContentsKeep is how long objects stay in the bucket after nothing needed them any more.
	ContentsKeep time.Duration `toml:"contents_keep" default:"720h"`
	// Files is the address of a bucket, or of another prefix in the same one, where snapshots and
	// dumps are put for other nodes. It has no secret. "" means that they are in the data folder
	// alone.
	Files string `toml:"files" form:"files"`
}

// Mail configures notifications by mail, to recipients that are mailboxes.
type Mail struct {
	// From is the sender address of mails; its domain is a name. The default is "bridge@"
	// and the host of the base URL. If that host is an IP address, or a name that other
	// machines do not know, the default is "" and no mail can be sent.
	From string `toml:"from" form:"from"`
	// Relay is the server to which all mail is sent, host:port; "" means the servers of
	// each recipient's domain.
	Relay string `toml:"relay" form:"server"`
	// HELO is our name in EHLO; "" is the domain of From.
	HELO string `toml:"helo" form:"domain"`
}

// Snapshot says how long after a change a new snapshot of a large set is made.
type Snapshot struct {
	AfterDeletion time.Duration `toml:"after_deletion" default:"1m"`
	AfterChange   time.Duration `toml:"after_change" default:"10m"`
	Keep          time.Duration `toml:"keep" default:"24h"`        // after its successor was made
	KeepSize      int64         `toml:"keep_size" default:"4 GiB"` // bytes of all snapshots of a set
	DumpEvery     time.Duration `toml:"dump_every" default:"24h"`  // between two Resource Dumps of a set
}

// Limits bound what other servers and clients can send. Sizes are in bytes.
type Limits struct {
	FeedDocument   int64         `toml:"feed_document" default:"64 MiB"`             // of one feed document
	ListDocument   int64         `toml:"list_document" default:"256 MiB"`            // of one ResourceSync document
	DumpPackage    int64         `toml:"dump_package" default:"16 GiB"`              // of one package of a dump
	Record         int64         `toml:"record" default:"64 MiB"`                    // of one representation
	SIPMessage     int64         `toml:"sip_message" default:"4 MiB"`                // of one SOAP message
	Header         int64         `toml:"header" default:"64 KiB"`                    // of the header of a response
	Text           int64         `toml:"text" default:"8 MiB"`                       // of one text or attribute value
	Depth          int           `toml:"depth" default:"256" range:"8 10000"`        // of XML elements
	Attributes     int           `toml:"attributes" default:"256" range:"8 1048576"` // of one element, namespaces included
	Ratio          int           `toml:"ratio" default:"100" range:"1 1048576"`      // of the decompressed to the compressed size
	Redirects      int           `toml:"redirects" default:"5" range:"1 50"`         // of one request
	Connections    int           `toml:"connections" default:"32" range:"1 1024"`    // to one host at the same time
	Rate           int           `toml:"rate" default:"0" range:"0 1048576"`         // of requests to one host, a second; 0 is no limit
	ConnectTimeout time.Duration `toml:"connect_timeout" default:"15s"`
	HeaderTimeout  time.Duration `toml:"header_timeout" default:"1m"`   // from the request to the header of the response
	IdleTimeout    time.Duration `toml:"idle_timeout" default:"1m"`     // while less than 1 KiB of the body arrives a second
	HarvestTime    time.Duration `toml:"harvest_time" default:"12h"`    // of one harvest of a Source
	HarvestSize    int64         `toml:"harvest_size" default:"64 GiB"` // of the documents of one harvest
	Cache          int64         `toml:"cache" default:"1 GiB"`         // of rendered documents
	FreeSpace      int64         `toml:"free_space" default:"1 GiB"`    // of the disk, kept free by submissions and the cache

	// What clients of a service with AccessNone may store in a day; 0 messages means no
	// limit.
	OpenAddressMessages int   `toml:"open_address_messages" default:"10000" range:"0 1073741824"` // of one address
	OpenAddressSize     int64 `toml:"open_address_size" default:"1 GiB"`
	OpenSetMessages     int   `toml:"open_set_messages" default:"100000" range:"0 1073741824"` // of all of them, in one set
	OpenSetSize         int64 `toml:"open_set_size" default:"8 GiB"`
}

// The content modes of a set.
const (
	Mirror    = "mirror"
	Redirect  = "redirect"
	Reference = "reference"
)

// The ways to identify records of several Sources of a set (rule A15).
const (
	Shared    = "shared"
	PerSource = "per-source"
)

// Take is the value of a set's Inline.
const Take = "take"

// Set is a set of records that are republished together.
type Set struct {
	// Name has the form [a-z0-9][a-z0-9-]{0,62}.
	Name string `toml:"name"`
	// Title and Description are for readers; "" means those in the data folder and, in a
	// new one, the name.
	Title       string `toml:"title"`
	Description string `toml:"description"`
	// Licence is that of the records, for readers: a URL or a text; "" states none.
	Licence string `toml:"licence"`
	// Content is Mirror, Redirect or Reference.
	Content string `toml:"content" default:"mirror" oneof:"mirror redirect reference"`
	// Prefer orders media types: the first one that a record has is that of its preferred
	// representation.
	Prefer []string `toml:"prefer" form:"media type"`
	// Formats are the media types that are kept; none means all.
	Formats []string `toml:"formats" form:"media type"`
	// A segment closes after SegmentEvents events, or SegmentHours hours after its first
	// event.
	SegmentEvents int `toml:"segment_events" default:"10000" range:"1 50000"`
	SegmentHours  int `toml:"segment_hours" default:"24" range:"1 8784"`
	// Identity is Shared or PerSource.
	Identity string `toml:"identity" default:"shared" oneof:"shared per-source"`
	// Inline is Take if the record of a feed entry is the content of the entry, inline or
	// at its src; else "".
	Inline string `toml:"inline" oneof:"take"`
	// History publishes earlier versions of records, and names them in lists; only with
	// Content Mirror.
	History bool `toml:"history"`
	// KeepLists is the number of past Resource Lists to keep, one a day, and KeepListsFor
	// how long to keep them. If one of them is 0 only the other applies; if both are, none
	// is kept.
	KeepLists    int           `toml:"keep_lists" range:"0 10000"`
	KeepListsFor time.Duration `toml:"keep_lists_for" range:"0s"`
	// Robots adds the set's Resource List to robots.txt. Feeds publishes the set as feeds
	// too: for Atom-PMH and for people.
	Robots bool `toml:"robots" default:"true"`
	Feeds  bool `toml:"feeds" default:"true"`
	// Dumps publishes the contents in dumps too; only with Content Mirror.
	Dumps bool `toml:"dumps"`
	// Hub has the URLs of WebSub hubs that are notified when the set's documents change,
	// and that these documents name.
	Hub []string `toml:"hub"`
	// OAIPage is the largest number of records in a response of the set's OAI-PMH
	// repository.
	OAIPage int `toml:"oai_page" default:"100" range:"1 1000"`
	// OAIFormats are formats of that repository, besides oai_dc and those in which records
	// were harvested by OAI-PMH; only with Content Mirror.
	OAIFormats []Format `toml:"format"`
	// Template is the configured set that this one was derived from, "" means none.
	Template string
	// Sources are in the order of the configuration: a record is published as reported by
	// the first Source that has it. At most one is of kind KindSIP.
	Sources []Source `toml:"source"`
	// Submit are the ingest servers that the records are submitted to.
	Submit []Target `toml:"submit"`
}

// Format selects the representations that an OAI-PMH repository has in a format: those
// whose profile is Namespace, and those of the media type Type without a profile.
type Format struct {
	Prefix    string `toml:"prefix" form:"metadataPrefix"` // metadataPrefix
	Namespace string `toml:"namespace"`                    // of their root element
	Schema    string `toml:"schema" form:"web"`            // URL of the XML Schema, "" none
	Type      string `toml:"type" form:"media type"`       // "" none
}

// The kinds of Sources. An empty kind is detected from the document.
const (
	AtomPMH      = "atompmh"
	ResourceSync = "resourcesync"
	OAIPMH       = "oaipmh"
	Feed         = "feed"
	Folder       = "folder"
	CSV          = "csv"
	Sitemap      = "sitemap"
	KindSIP      = "sip"
	KindSet      = "set"
)

// The values of Source.Identifier.
const (
	ByPath = "path"
	ByName = "name"
)

// The values of Source.Sets.
const (
	OneSet  = "one"
	EachSet = "each"
)

// Source is an upstream server, or another set of the log. In a Source of kind KindSIP,
// which is not harvested, the fields from PublicURL to Timeout are zero; in one of kind
// KindSet all of these but Every are.
type Source struct {
	// Name is for people, and part of identifiers with Identity PerSource; "" means the
	// URL.
	Name string `toml:"name" form:"name"`
	Kind string `toml:"kind" oneof:"atompmh resourcesync oaipmh feed folder csv sitemap set sip"`
	// URL is as it was typed (http, https), or the file URL of a path; that of a folder
	// ends with a slash. For a Source of kind KindSIP it is the peer's, for people and for
	// trust, or else the path of our own service, /sip/{set}. For one of kind KindSet it is
	// "set:" and the name of that set; see Member.
	URL string `toml:"url"`
	// Origin is set in a Source that was derived from a template: it is the URL of the
	// template's Source. Only URLs that an operator has typed are trusted, and get the
	// login. "" means the URL itself.
	Origin string
	// Sets is OneSet or EachSet. With EachSet the set is a template: each set of resources
	// of the Source becomes a set of ours with its settings; see Derive.
	Sets string `toml:"sets" default:"one" oneof:"one each"`
	// PublicURL is where the folder of a local file is published, "" if it is not.
	PublicURL string `toml:"public_url" form:"folder"`
	// Every is the time between two harvests.
	Every time.Duration `toml:"every" default:"1h"`
	// FullEvery is the time between two harvests that read everything that the Source has:
	// the whole chain, to find archive documents that have changed (rule A12), or the
	// Resource Lists, to compare them with the known records, or the headers of all records
	// (ListIdentifiers); 0 means never.
	FullEvery time.Duration `toml:"full_every" default:"168h" range:"0s"`
	// Overlap is how much time before its mark a harvest reads again (rule A2).
	Overlap time.Duration `toml:"overlap" default:"1h" range:"0s"`
	// MaxDocuments is the most documents that one harvest reads.
	MaxDocuments int `toml:"max_documents" default:"10000" range:"1 100000000"`
	// HoldDeletions is how long deletions by absence are held (rule A6).
	HoldDeletions time.Duration `toml:"hold_deletions" default:"24h" range:"0s"`
	// Prefixes select records by the start of their URL; none select all. Since selects
	// those that were modified at that time or later, or at an unknown time; the zero time
	// selects all.
	Prefixes []string  `toml:"prefix" form:"prefix"`
	Since    time.Time `toml:"since"`
	// Identifier is for kind Folder alone: what the identifier of a record is made from,
	// the path of its file in the folder ("" too), or the file's name without its
	// extension.
	Identifier string `toml:"identifier" oneof:"path name"`
	// Format, Also, OAISet and Window are for kind OAIPMH alone. Format is the
	// metadataPrefix that is listed; "" means that of URL, else oai_dc. Also are further
	// ones, which are requested record by record. OAISet is the setSpec of the records; ""
	// means that of URL, else all. Window divides a long list by datestamps; 0 does not.
	Format string        `toml:"format" form:"metadataPrefix"`
	Also   []string      `toml:"also" form:"metadataPrefix"`
	OAISet string        `toml:"oai_set" form:"setSpec"`
	Window time.Duration `toml:"window" range:"0s"`
	// OwnContents restricts the contents of records to the URL's own host, ContentHosts and
	// AllowHosts. Otherwise any public address is allowed too. ContentHosts are written as
	// AllowHosts are.
	OwnContents  bool
	ContentHosts []string `toml:"content_hosts"`
	// User and Password are the login for the URL's scheme, host and port, and are sent
	// nowhere else (RFC 7617); "" means no login.
	User     string `toml:"user"`
	Password Secret `toml:"password"`
	// Token is sent as a bearer token (RFC 6750) and Headers by their canonical names, to
	// the URL's scheme, host and port, and nowhere else. Token and User are not both set.
	Token   Secret            `toml:"token"`
	Headers map[string]Secret `toml:"headers"`
	// CA has certificates in PEM: authorities for the certificate of the URL's scheme, host
	// and port, besides those of the system; nil means none.
	CA []byte `toml:"ca_file"`
	// Timeout is how long the URL's scheme, host and port may take until the response
	// begins; 0 means Limits.HeaderTimeout.
	Timeout time.Duration `toml:"timeout" range:"1s 1h"`
	// Push subscribes to the Source at the WebSub hub that it names: a push from the hub
	// starts a harvest.
	Push bool `toml:"push"`
	// SIP configures a Source of kind KindSIP; nil for other kinds.
	SIP *SIP
}

// Member returns the name of the set that a Source of kind KindSet reads, "" for other
// kinds.
func (s *Source) Member() string {
	if s.Kind != KindSet {
		return ""
	}
	return strings.TrimPrefix(s.URL, memberURL)
}

// AsMember returns the Source for a set that was made from the template that the Source
// names. Its name ends with the part of the set's name that follows the template's, so that
// it is unique.
func (s *Source) AsMember(set string) Source {
	one := *s
	one.URL = memberURL + set
	if s.Name != "" {
		one.Name = s.Name + strings.TrimPrefix(set, s.Member())
	}
	return one
}

// memberURL is the start of the URL of a Source of kind KindSet.
const memberURL = KindSet + ":"

// memberEvery is how often a Source that is a set is harvested, besides after each new
// event of that set.
const memberEvery = time.Hour

// The modes of a SIP Source that is an ingest server.
const (
	// Library assigns identifiers and stores the records.
	Library = "library"
	// Gateway forwards each request to another ingest server.
	Gateway = "gateway"
	// Review lets an operator decide on each record.
	Review = "review"
)

// AssignedIdentifier is the placeholder in SIP.RecordURL for the identifier that a library
// has assigned.
const AssignedIdentifier = "{assigned-identifier}"

// SIP is our own side of a Source of kind KindSIP: a notification recipient and,
// with a mode, an ingest server (Simple Ingest Protocol).
type SIP struct {
	// Mode is Library, Gateway, Review, or "" for a notification recipient only.
	Mode string `toml:"mode" oneof:"library gateway review"`
	// RecordURL is where the library publishes a record: an http or https URL with
	// AssignedIdentifier in it exactly once, after scheme, host and at least one slash; ""
	// means unknown.
	RecordURL string `toml:"record_url" form:"record"`
	// Formats are the formats of accepted records: the name of the root element,
	// "{namespace}name" or "name", and the URL of the schema that names the format in the
	// ingest properties. A gateway may have none.
	Formats map[string]string `toml:"formats"`
	// Schemas are local files, absolute, to validate records, by the URL of their schema.
	Schemas map[string]string `toml:"schemas"`
	// Upstream is the URL of the ingest server behind a gateway, and User and Password are
	// our login there; "" means no login.
	Upstream string `toml:"upstream" form:"web"`
	User     string `toml:"user"`
	Password Secret `toml:"password"`
	// Deadline is how long a submission may stay provisional at the upstream server.
	Deadline time.Duration `toml:"deadline" default:"168h"`
	// Recipient is where the upstream server may send its dispositions (gateway): "" means
	// our own URL below the base URL, which is http then; other values are as for a Target.
	Recipient string `toml:"recipient" form:"gateway recipient"`
	Access    Access
	// PlainPost also accepts documents without a SOAP envelope.
	PlainPost bool `toml:"plain_post"`
	// SMTPListen is the address, host:port, where notifications are received by mail, ""
	// means none. Several sets may have the same.
	SMTPListen string `toml:"smtp_listen" form:"listen"`
	// Mailbox is box@domain, the domain in lower case and no plus in the box: mail that
	// arrives at SMTPListen for it, or for box+anything@domain, is for this set.
	Mailbox string `toml:"mailbox" form:"box"`
}

// The kinds of Access.
const (
	AccessNone      = "none" // every client
	AccessToken     = "token"
	AccessBasic     = "basic"
	AccessAddresses = "addresses"
)

// Access configures who may call a SIP service.
type Access struct {
	// Kind is one of the constants.
	Kind string `toml:"access" default:"none" oneof:"none token basic addresses"`
	// Token is the last part of the service's URL: at least 16 of A-Z, a-z, 0-9, _ and -.
	Token Secret `toml:"access_token"`
	// User and Password are for HTTP's basic authentication (RFC 7617).
	User     string `toml:"access_user"`
	Password Secret `toml:"access_password"`
	// Addresses are the networks of allowed callers. None of them is an IPv4 network in
	// IPv6 form.
	Addresses []netip.Prefix `toml:"access_addresses"`
}

// NoRecipient as a Target's Recipient: no notification recipient is named, so the
// server must answer synchronously.
const NoRecipient = "none"

// Target is an ingest server that a set's records are submitted to (Simple
// Ingest Protocol).
type Target struct {
	// Name is for people; "" means the URL.
	Name string `toml:"name" form:"name"`
	// URL is that of the ingest server: http or https, and not that of a Source of the set.
	URL string `toml:"url" form:"web"`
	// Formats give the schema URL, among the server's properties, of the records with a
	// root element; see SIP.Formats. Without an entry the record's own xsi:schemaLocation
	// applies.
	Formats map[string]string `toml:"formats"`
	// SubmitterName and SubmitterEmail are in the source element of each request; both are
	// "" when none is configured.
	SubmitterName  string `toml:"submitter_name"`
	SubmitterEmail string `toml:"submitter_email" form:"mailbox"`
	// Sequence is in the source element too; "" means the set's name.
	Sequence string `toml:"sequence"`
	// Recipient is where the server may send its dispositions: NoRecipient; an http URL
	// without trailing slash, below which our /sip/{set} is reached; a mailbox of ours as
	// smtp://host/box@domain, smtp:box@domain or mailto:box@domain; or "", our own URL
	// below the base URL, which is http then.
	Recipient string `toml:"recipient" form:"recipient"`
	// Deadline is how long a record may stay without its ultimate disposition.
	Deadline time.Duration `toml:"deadline" default:"168h"`
	// Every is the delay before the first retry of a failed request. It doubles up to 1 h.
	Every time.Duration `toml:"every" default:"1m" range:"1s 1h"`
	// Workers is the number of requests at a time.
	Workers int `toml:"workers" default:"4" range:"1 64"`
	// Properties is AskProperties or SkipProperties. With the latter the server is not
	// asked for its properties, and gets records of every format.
	Properties string `toml:"properties" default:"ask" oneof:"ask skip"`
	// ImportAcceptedTo is the set with a SIP Source into which accepted records are
	// imported, "" means none.
	ImportAcceptedTo string `toml:"import_accepted_to"`
	// User and Password are the login at the URL, and are sent nowhere else; "" means no
	// login.
	User     string `toml:"user"`
	Password Secret `toml:"password"`
}

// The values of Target.Properties.
const (
	AskProperties  = "ask"
	SkipProperties = "skip"
)

// Secret is a text that is printed as stars.
type Secret struct{ text string }

// Reveal returns the secret itself; "" when there is none.
func (s Secret) Reveal() string { return s.text }

// IsRead reports whether the secret could be read: see Flags.WithoutSecrets.
func (s Secret) IsRead() bool { return s != unread() }

// String hides the secret, also for %v and %s; GoString does for %#v.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return "***"
}

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret, in JSON and elsewhere.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Default returns the configuration without any file, flag or Source. Its data folder is
// relative: ./bridge-data.
func Default() *Config {
	c := defaults[Config]()
	c.BaseURL = "http://" + c.Listen
	return &c
}

// Warnings returns likely mistakes that are no errors, a line each, with what to do.
func (c *Config) Warnings() []string {
	var all []string
	for _, path := range c.exposed {
		all = append(all, fmt.Sprintf("%s holds a secret and others may read it: chmod 600 %[1]s", path))
	}
	all = append(all, c.useless...)
	for i := range c.Alerts {
		if a := &c.Alerts[i]; len(a.Command) > 0 {
			if _, err := os.Stat(a.Command[0]); err != nil {
				all = append(all, fmt.Sprintf("alert %d: command: %v: nothing is sent until it is there", i+1, err))
			}
		}
	}
	here, _, _ := checkListen(c.Listen) // checked already
	u, err := url.Parse(cmp.Or(c.BaseURL, "http://"+c.Listen))
	web := !here || err != nil || !isLoopback(u.Hostname())
	for _, set := range c.Sets {
		for _, s := range set.Sources {
			if err := s.absent(); err != nil {
				all = append(all, fmt.Sprintf("set %q: source %s: %v: its harvests fail until it is there", set.Name, cmp.Or(s.Name, s.URL), err))
			}
			if s.SIP != nil && s.SIP.Mailbox != "" && len(set.Submit) == 0 {
				if why := s.SIP.noMail(); why != "" {
					all = append(all, fmt.Sprintf("set %q: mailbox %s takes only what ingest servers still have to say about records that were submitted to them before: %s", set.Name, s.SIP.Mailbox, why))
				}
			}
			if s.SIP == nil || s.SIP.Access.Kind != AccessNone {
				continue
			}
			if web {
				all = append(all, fmt.Sprintf(`set %q: anybody who reaches %s may %s: write access = "token", "basic" or "addresses" in its [[set.source]], see docs/sip.md#who-may-call`,
					set.Name, c.BaseURL+servicePath(set.Name), s.SIP.allowsAll()))
			}
			if here, _, err := checkListen(s.SIP.SMTPListen); s.SIP.SMTPListen != "" && (!here || err != nil) {
				all = append(all, fmt.Sprintf(`set %q: anybody who reaches port %s may send notifications by mail: write access = "token" or "addresses" in its [[set.source]], see docs/sip.md#who-may-call`,
					set.Name, s.SIP.SMTPListen))
			}
		}
	}
	return all
}

// noMail returns why no other mail is taken for the mailbox of a set that has no targets, and
// what to do; "" if some is.
func (s *SIP) noMail() string {
	switch {
	case s.Mode == Library || s.Mode == Review:
		return fmt.Sprintf("mode = %q decides here, and without a [[set.submit]] nobody else has anything to notify the set of; leave mailbox and smtp_listen out when all of that has come", s.Mode)
	case s.Mode == "" && s.Access.Kind == AccessBasic:
		return `access = "basic" wants a password, and mail has none; write access = "token" or "addresses", or leave mailbox and smtp_listen out when all of that has come`
	}
	return ""
}

// allowsAll describes what any client may do at a service with AccessNone.
func (s *SIP) allowsAll() string {
	switch {
	case s.Mode == Gateway:
		return "submit records, in the name of this bridge, to the ingest server behind it"
	case s.Mode != "":
		return "submit records"
	case s.RecordURL != "":
		return "send notifications, and so have records fetched from " + s.RecordURL
	}
	return "send notifications"
}

// Notes returns consequences of a correct configuration that may surprise, a line each,
// with what to do.
func (c *Config) Notes() (all []string) {
	for _, name := range c.unread {
		all = append(all, name+": systemd gives it to the service alone, so it was not read here")
	}
	notifies := func(s Source) bool { return s.SIP != nil && (s.SIP.Mode == Review || s.SIP.Mode == Gateway) }
	if c.Mail.From != "" || !slices.ContainsFunc(c.Sets, func(s Set) bool { return slices.ContainsFunc(s.Sources, notifies) }) {
		return all
	}
	return append(all, `no mail can be sent, since the host of the base URL makes no mail address: who submits must name an http or https URL as notification-recipient; to take mailboxes too, write from = "bridge@example.org" under [mail]`)
}
