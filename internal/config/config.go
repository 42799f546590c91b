// Package config reads the configuration: one strict TOML file, or Sources named on
// the command line, and the flags that win over both.
//
// A Config is checked and complete: every default is filled in, paths are absolute,
// secrets are read. All problems are reported at once, each with its line and what to
// write instead.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"
)

// Config is a complete configuration. A zero value is none; see Default.
type Config struct {
	// File is the absolute path of the file that was read, "" without one.
	File    string
	exposed []string // files with secrets that others may read
	// Listen is the address of the server, host:port.
	Listen string
	// BaseURL is where others reach the server: absolute, http or https, without
	// trailing slash, query or user. It is http://Listen unless given, and ""
	// when Listen leaves the port to the system (port 0): then it is
	// http:// and the address that the server got.
	BaseURL string
	// TrustedProxies are the networks of the web servers in front of us, none of
	// them an IPv4 network in IPv6's form: their X-Forwarded-For is believed. The
	// default is none.
	TrustedProxies []netip.Prefix
	// Data is the absolute path of the data folder.
	Data string
	// AllowHosts are host names and IP addresses, in lower case and with or without a
	// port, that the documents of every Source may lead to, also in private networks.
	AllowHosts []string
	// Contact is a mail address or URL that requests name in User-Agent; ""
	// names none.
	Contact string
	// Proxy is the URL of an HTTP proxy for what we fetch, "" none. The
	// environment's is not used.
	Proxy    string
	Mail     Mail
	Snapshot Snapshot
	Limits   Limits
	// Sets in the order of the file. Without any, only the sets in the data folder are
	// published.
	Sets []Set
}

// Snapshot says how long after a change a new snapshot of a large set is made.
type Snapshot struct {
	AfterDeletion time.Duration // default 60 s
	AfterChange   time.Duration // default 10 min
	Keep          time.Duration // after its successor was made; default 24 h
	KeepSize      int64         // of all snapshots of a set; default 4 GiB
}

// Limits bound what peers can send. Sizes are in bytes.
type Limits struct {
	FeedDocument   int64         // of one feed document; default 64 MiB
	ListDocument   int64         // of one ResourceSync document; default 256 MiB
	Record         int64         // of one representation; default 64 MiB
	SIPMessage     int64         // of one SOAP message; default 4 MiB
	Header         int64         // of an answer's header; default 64 KiB
	Text           int64         // of one text or attribute value; default 8 MiB
	Depth          int           // of XML elements; default 256
	Attributes     int           // of one element, namespaces included; default 256
	Ratio          int           // of decompression, to one; default 100
	Redirects      int           // that one request follows; default 5
	Connections    int           // to one host at the same time; default 32
	Rate           int           // of requests to one host, a second; default 0, none
	ConnectTimeout time.Duration // default 15 s
	HeaderTimeout  time.Duration // from the request to the answer's header; default 60 s
	IdleTimeout    time.Duration // with under 1 KiB of the body a second; default 60 s
	HarvestTime    time.Duration // of one harvest of a Source; default 12 h
	HarvestSize    int64         // of the documents of one harvest; default 64 GiB
	Cache          int64         // of rendered documents; default 1 GiB
	FreeSpace      int64         // of the disk, at least, for what strangers do not send; default 1 GiB

	// What clients of a service with AccessNone may have stored in a day; 0 messages is
	// no limit.
	OpenAddressMessages int   // of one address; default 10,000
	OpenAddressSize     int64 // default 1 GiB
	OpenSetMessages     int   // of all of them, in one set; default 100,000
	OpenSetSize         int64 // default 8 GiB
}

// The content modes of a set.
const (
	Mirror    = "mirror"
	Redirect  = "redirect"
	Reference = "reference"
)

// The ways in which a set names records of several Sources (rule A15).
const (
	Shared    = "shared"
	PerSource = "per-source"
)

// Set is the records that are republished together.
type Set struct {
	// Name has the form [a-z0-9][a-z0-9-]{0,62}.
	Name string
	// Title and Description are for readers; "" is those in the data folder and, in a
	// new one, the name.
	Title       string
	Description string
	// Content is Mirror, Redirect or Reference.
	Content string
	// Prefer orders media types: the first that a record has is its preferred
	// representation.
	Prefer []string
	// Formats are the media types that are wanted; none means all.
	Formats []string
	// SegmentEvents and SegmentHours say when a segment closes: with so many
	// events (1 to 50,000, default 10,000), or so long after its first (default
	// 24).
	SegmentEvents int
	SegmentHours  int
	// Identity is Shared or PerSource.
	Identity string
	// Sources in the order of the configuration: a record is published as the first
	// Source that has it reports it. At most one is of kind KindSIP.
	Sources []Source
	// Submit are the ingest servers that the records are submitted to.
	Submit []Target
}

// The kinds of Sources. An empty kind is detected from the document.
const (
	AtomPMH      = "atompmh"
	ResourceSync = "resourcesync"
	Feed         = "feed"
	KindSIP      = "sip"
)

// Source is an upstream server. One of kind KindSIP is not harvested: from Every
// to Since all is zero.
type Source struct {
	// Name is for people, and part of identifiers with Identity PerSource; "" is the
	// URL.
	Name string
	Kind string
	// URL is as it was typed (http, https), or the file URL of a path. Of a
	// Source of kind KindSIP it is the peer's, for people and for trust, or else
	// the path of our own service, /sip/{set}.
	URL string
	// PublicURL is where the folder of a local file is published, "" nowhere.
	PublicURL string
	// Every is the time between two harvests; default 1 h.
	Every time.Duration
	// FullEvery is the time between two harvests that read all that the Source
	// has: the whole chain, to find archive documents that have changed (rule
	// A12), or the Resource Lists, to compare them with what is known; default
	// 168 h, 0 never.
	FullEvery time.Duration
	// Overlap is how far below its mark a harvest reads (rule A2); default 1 h.
	Overlap time.Duration
	// MaxDocuments is how many documents one harvest may read; default 10,000.
	MaxDocuments int
	// HoldDeletions is how long deletions by absence are held (rule A6); default
	// 24 h.
	HoldDeletions time.Duration
	// Prefixes select records by how their URL begins; none select all. Since
	// selects those that were modified no earlier, or at an unknown time; the
	// zero time selects all.
	Prefixes []string
	Since    time.Time
	// OwnContents: the contents of records come from the URL's own host, from
	// ContentHosts and from AllowHosts alone; otherwise from any public address
	// too. ContentHosts are written as AllowHosts are.
	OwnContents  bool
	ContentHosts []string
	// User and Password log us in at the URL's scheme, host and port, and
	// nowhere else (RFC 7617); "" is no login.
	User     string
	Password Secret
	// SIP is our side of a Source of kind KindSIP, nil of another.
	SIP *SIP
}

// Secret is a text that prints as stars.
type Secret struct{ text string }

// Reveal returns the secret itself; "" when there is none.
func (s Secret) Reveal() string { return s.text }

// String hides the secret. It also serves %v, %s and, by GoString, %#v.
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

// Default returns the configuration without any file, flag or Source, but for
// the data folder, which is relative: ./bridge-data.
func Default() *Config {
	return &Config{
		Listen:   "127.0.0.1:8080",
		BaseURL:  "http://127.0.0.1:8080",
		Data:     "bridge-data",
		Snapshot: Snapshot{AfterDeletion: time.Minute, AfterChange: 10 * time.Minute, Keep: 24 * time.Hour, KeepSize: 4 << 30},
		Limits: Limits{
			FeedDocument: 64 << 20, ListDocument: 256 << 20, Record: 64 << 20, SIPMessage: 4 << 20, Header: 64 << 10, Text: 8 << 20,
			Depth: 256, Attributes: 256, Ratio: 100, Redirects: 5, Connections: 32,
			ConnectTimeout: 15 * time.Second, HeaderTimeout: time.Minute, IdleTimeout: time.Minute,
			HarvestTime: 12 * time.Hour, HarvestSize: 64 << 30,
			Cache: 1 << 30, FreeSpace: 1 << 30,
			OpenAddressMessages: 10_000, OpenAddressSize: 1 << 30, OpenSetMessages: 100_000, OpenSetSize: 8 << 30,
		},
	}
}

func defaultSet() Set {
	return Set{Content: Mirror, SegmentEvents: 10_000, SegmentHours: 24, Identity: Shared}
}

func defaultSource() Source {
	return Source{
		Every: time.Hour, FullEvery: 168 * time.Hour, Overlap: time.Hour,
		MaxDocuments: 10_000, HoldDeletions: 24 * time.Hour,
	}
}

// Warnings returns likely mistakes that are no errors, a line each, with what to do.
func (c *Config) Warnings() []string {
	var all []string
	for _, path := range c.exposed {
		all = append(all, fmt.Sprintf("%s holds a secret and others may read it: chmod 600 %[1]s", path))
	}
	here, _, _ := checkListen(c.Listen) // it has been checked
	u, err := url.Parse(cmp.Or(c.BaseURL, "http://"+c.Listen))
	web := !here || err != nil || !isLoopback(u.Hostname())
	for _, set := range c.Sets {
		for _, s := range set.Sources {
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

// allowsAll says what anybody may do who reaches a service with AccessNone.
func (s *SIP) allowsAll() string {
	switch {
	case s.Mode == Gateway:
		return "submit records, in our name, to the ingest server behind it"
	case s.Mode != "":
		return "submit records"
	case s.RecordURL != "":
		return "send notifications, and so have records fetched from " + s.RecordURL
	}
	return "send notifications"
}

// Notes returns consequences of a correct configuration that may surprise, a line each,
// with what to do.
func (c *Config) Notes() []string {
	notifies := func(s Source) bool { return s.SIP != nil && (s.SIP.Mode == Review || s.SIP.Mode == Gateway) }
	if c.Mail.From != "" || !slices.ContainsFunc(c.Sets, func(s Set) bool { return slices.ContainsFunc(s.Sources, notifies) }) {
		return nil
	}
	return []string{`no mail can be sent, since the host of the base URL makes no mail address: who submits must name an http or https URL as notification-recipient; to take mailboxes too, write from = "bridge@example.org" under [mail]`}
}
