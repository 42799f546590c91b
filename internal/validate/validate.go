// Package validate checks documents of Atom-PMH, ResourceSync, OAI-PMH and SIP against
// their specifications. The protocol packages have the rules: they read each document. This
// package detects what a document is, follows a chain or a Source, and reports all problems
// in one form, the Finding.
package validate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/sip"
)

// Protocol is the protocol of a document.
type Protocol string

// The protocols.
const (
	AtomPMH      Protocol = "atom-pmh"
	ResourceSync Protocol = "resourcesync"
	OAIPMH       Protocol = "oai-pmh"
	SIP          Protocol = "sip"
)

// Severities of a Finding: those of the rules, and Unread for documents and contents that
// could not be checked.
const (
	Must   = resourcesync.Must
	Should = resourcesync.Should
	Note   = resourcesync.Note
	Unread = "unread"
)

// Finding is one place where a document breaks a rule, or a document or content that could
// not be read.
type Finding struct {
	// Rule is the id of the rule, "" when Severity is Unread.
	Rule string `json:"rule,omitempty"`
	// Severity is Must, Should, Note or Unread.
	Severity string `json:"severity"`
	// URL is that of the document, or the path as it was typed.
	URL string `json:"url"`
	// Line and Column are from 1; 0 when the place is the document as a whole.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Record is the identifier of the entry, or the path of elements in a SIP message; ""
	// when the finding is about the document.
	Record string `json:"record,omitempty"`
	// Found is what is there, and Expected is what the rule requires and how a reader
	// handles it.
	Found    string `json:"found"`
	Expected string `json:"expected,omitempty"`
	// Clause names the specification and the section in it.
	Clause string `json:"clause,omitempty"`
	// More is how many more places in the same document, above the limit, break the rule.
	// Then the Finding has no place.
	More int `json:"more,omitempty"`
}

// String returns the finding in one line.
func (f Finding) String() string {
	at := f.URL
	if f.Line > 0 {
		at = strictxml.Place(f.URL, f.Line, f.Column)
	}
	if f.Severity == Unread {
		return fmt.Sprintf("%s: not checked: %s", at, f.Found)
	}
	if f.More > 0 {
		return fmt.Sprintf("%s: %s %s: %d more places (%s)", at, f.Severity, f.Rule, f.More, f.Clause)
	}
	record := ""
	if f.Record != "" {
		record = " " + strictxml.Clip(f.Record) + ":"
	}
	return fmt.Sprintf("%s: %s %s:%s found %s; expected %s (%s)", at, f.Severity, f.Rule, record, f.Found, f.Expected, f.Clause)
}

// Document is a document that was checked.
type Document struct {
	URL string `json:"document"`
	// Kind describes the document for people.
	Kind string `json:"kind"`
	// Entries counts its entries, bad ones included.
	Entries int `json:"entries"`
	// Musts, Shoulds and Notes count the findings in it.
	Musts   int `json:"must"`
	Shoulds int `json:"should"`
	Notes   int `json:"notes"`
}

// Options are what to check and the receivers of findings.
type Options struct {
	// As is the protocol that every document must have; "" detects it from its root
	// element.
	As Protocol
	// Follow reads all documents that belong together: the chain of a feed, the Source of a
	// ResourceSync document, or the repository of an OAI-PMH response.
	Follow bool
	// Contents fetches the resources of Resource Lists, the representations of active
	// entries and the packages of dumps, and compares them with the statements about them.
	Contents bool
	// Base is the URL that is assumed for a file or standard input; "" means that of the
	// file.
	Base string
	// AllowHosts are further hosts, besides that of a document, to which its links may
	// lead, whatever their addresses are. They may have a port.
	AllowHosts []string
	// MaxDocuments caps the documents that are followed from one; 0 is 10,000.
	MaxDocuments int
	// MaxFindings caps the findings of one rule in one document; 0 is 20. Further ones are
	// counted.
	MaxFindings int
	// Stdin is the input for the target "-".
	Stdin io.Reader
	// Version is that of the program, for the User-Agent of its requests.
	Version string
	// Report is called with each finding, and Checked after each document.
	Report  func(Finding)
	Checked func(Document)
}

// Summary is the result of a Run.
type Summary struct {
	Documents int `json:"documents"`
	Entries   int `json:"entries"`
	Musts     int `json:"must"`
	Shoulds   int `json:"should"`
	Notes     int `json:"notes"`
	// Unread counts the documents and contents that could not be read, and so were not
	// checked.
	Unread int `json:"unread"`
}

// Run checks targets, which are URLs, paths, and "-" for Options.Stdin. The error is that
// of ctx, or means that a target is invalid.
func Run(ctx context.Context, o Options, targets []string) (Summary, error) {
	r := &run{o: o, rules: ruleTable()}
	r.o.MaxDocuments, r.o.MaxFindings = cmp.Or(o.MaxDocuments, 10_000), cmp.Or(o.MaxFindings, 20)
	for _, target := range targets {
		if err := r.target(ctx, target); err != nil {
			return r.sum, err
		}
		if err := context.Cause(ctx); err != nil {
			return r.sum, err
		}
	}
	return r.sum, nil
}

// run is one Run.
type run struct {
	o     Options
	rules map[string]rule
	sum   Summary

	// typed is the target as the user typed it, and at its URL.
	typed, at string
	client    *http.Client

	// docs are the documents under check, by the name that findings use; order is the order
	// in which their checks began.
	docs  map[string]*document
	order []*document

	// get fetches the contents in noted.
	get      *follow.Client
	contents []content
	noted    map[string]bool
}

// rule has the fields of a Finding that depend only on the rule.
type rule struct{ severity, clause string }

// Clause returns the severity of a rule of the protocols, and its clause; "" for other
// rules.
func Clause(id string) (severity, clause string) {
	r := ruleTable()[id]
	return r.severity, r.clause
}

// ruleTable joins the tables of the protocol packages.
func ruleTable() map[string]rule {
	table := map[string]rule{}
	for _, r := range atompmh.Rules() {
		table[r.ID] = rule{r.Severity, r.Clause}
	}
	for _, r := range resourcesync.Rules() {
		table[r.ID] = rule{r.Severity, r.Clause}
	}
	for _, r := range oaipmh.Rules() {
		table[r.ID] = rule{r.Severity, oaiClause(r)}
	}
	for _, r := range sip.Rules() {
		table[r.ID] = rule{r.Severity, r.Clause}
	}
	return table
}

// target checks one target, and the documents that it leads to.
func (r *run) target(ctx context.Context, typed string) error {
	r.typed, r.at, r.client, r.docs, r.order = typed, "", nil, map[string]*document{}, nil
	r.get, r.contents, r.noted = nil, nil, nil
	defer r.end()
	if typed == "-" {
		if r.o.Stdin == nil {
			return errors.New("-: there is no standard input")
		}
		r.typed = "standard input"
		return r.one(ctx, input{url: r.o.Base, body: r.o.Stdin})
	}
	u, err := url.Parse(typed)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file" {
		if u, err = fileURL(typed); err != nil {
			r.unread(typed, err)
			return nil
		}
	}
	reach := fetch.Reach{Allowed: r.o.AllowHosts}
	if u.User != nil {
		reach.User = u.User
		u.User = nil
		r.typed = u.String()
	}
	r.at, reach.Origin = u.String(), u.String()
	root := ""
	if u.Scheme == "file" {
		root = filepath.Dir(filepath.FromSlash(u.Path))
	}
	guard := fetch.New(fetch.Options{UserAgent: "bridge/" + r.o.Version, Reach: reach})
	defer guard.Close()
	r.client = guard.Client(root)
	if r.o.Base != "" && u.Scheme == "file" && !r.o.Follow {
		f, err := os.Open(filepath.FromSlash(u.Path))
		if err != nil {
			r.unread(r.typed, err)
			return nil
		}
		defer f.Close()
		return r.one(ctx, input{url: r.o.Base, body: f})
	}
	c, err := follow.New(follow.Options{HTTP: r.client, Start: r.at, AllowHost: r.allowHost, Accept: accept})
	if err != nil {
		r.unread(r.typed, err)
		return nil
	}
	r.get = c
	if err := r.first(ctx); err != nil {
		return err
	}
	return r.fetch(ctx)
}

// first checks the document at the target's URL.
func (r *run) first(ctx context.Context) error {
	if r.o.Follow && r.o.As == OAIPMH && !strings.HasPrefix(r.at, "file:") {
		return r.repository(ctx) // without a verb the base URL may return a page
	}
	a, err := r.get.Get(ctx, r.at, follow.Validators{})
	if err != nil {
		if r.o.Follow && (r.o.As == "" || r.o.As == ResourceSync) && follow.Missing(err) {
			return r.source(ctx)
		}
		if r.o.Follow && r.isRepository(ctx) {
			return r.repository(ctx)
		}
		r.unread(r.typed, err)
		return nil
	}
	defer a.Close()
	return r.one(ctx, input{url: a.URL, contentType: a.Header.Get("Content-Type"), body: a.Body, get: true})
}

const accept = "application/atom+xml, application/xml, text/xml;q=0.9, */*;q=0.1"

// fileURL returns the URL of a file.
func fileURL(path string) (*url.URL, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(absolute)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, errors.New("there is no such file; a URL begins with http:// or https://")
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("it is a folder; name a document in it")
	}
	return &url.URL{Scheme: "file", Path: filepath.ToSlash(absolute)}, nil
}

func (r *run) allowHost(host string) bool { return follow.Among(r.o.AllowHosts, host) }

// input is a document of a protocol that is not yet known.
type input struct {
	url, contentType string
	body             io.Reader
	get              bool // it can be requested again, by run.at
}

// sniffed is how many bytes of a document may precede its root element.
const sniffed = 64 << 10

// one checks a document, and follows it if Options.Follow is set.
func (r *run) one(ctx context.Context, in input) error {
	packed := bufio.NewReaderSize(in.body, sniffed)
	if magic, _ := packed.Peek(4); string(magic) == "PK\x03\x04" || string(magic) == "PK\x05\x06" {
		f, size, err := spool(packed)
		if err != nil {
			r.unread(r.typed, err)
			return nil
		}
		defer discard(f)
		r.zip(f, size, in.url)
		return nil
	}
	unpacked := bufio.NewReaderSize(resourcesync.Unpack(in.url, packed), sniffed)
	in.body = unpacked
	as, what := r.o.As, ""
	if as == "" {
		head, err := unpacked.Peek(sniffed)
		as, what = recognise(head, in)
		if as == "" && err != nil && !errors.Is(err, io.EOF) {
			r.unread(r.typed, err)
			return nil
		}
	}
	if r.o.Follow && in.get {
		switch as {
		case AtomPMH:
			return r.chain(ctx)
		case OAIPMH:
			return r.repository(ctx)
		case ResourceSync, "":
			return r.source(ctx)
		}
	}
	switch as {
	case AtomPMH:
		r.feed(in)
	case ResourceSync:
		r.list(in)
	case OAIPMH:
		r.answer(in)
	case SIP:
		r.message(ctx, in)
	default:
		r.unread(r.typed, fmt.Errorf("%s; want a document of Atom-PMH, ResourceSync, OAI-PMH or SIP. If it is meant to be one, say which with --as", what))
	}
	return nil
}

// recognise detects the protocol of a document from its root element; for a document of no
// protocol it returns "" and a description.
func recognise(head []byte, in input) (Protocol, string) {
	s := strictxml.New(bytes.NewReader(head), strictxml.Options{ContentType: in.contentType, Lenient: true})
	if err := s.Next(); err != nil {
		if fault, ok := errors.AsType[*strictxml.DocumentError](err); ok {
			return "", fault.Reason
		}
		return "", err.Error()
	}
	switch name := strings.ToLower(s.Local); {
	case name == "urlset", name == "sitemapindex", resourcesync.IsConsidered(s.Space, s.Local, s.Attrs):
		return ResourceSync, ""
	case name == "feed" && strings.Contains(strings.ToLower(s.Space), "w3.org/2005/atom"):
		return AtomPMH, ""
	case s.Local == "OAI-PMH", s.Space == oaipmh.Namespace:
		return OAIPMH, ""
	case s.Local == "Envelope", s.Space == sip.Namespace:
		return SIP, ""
	}
	return "", "found " + s.What()
}

// document collects the findings in one document.
type document struct {
	Document
	counted map[string]int // places that break a rule
}

// begin starts to collect the findings for a URL.
func (r *run) begin(url string) *document {
	name := r.name(url)
	d := r.docs[name]
	if d == nil {
		d = &document{Document: Document{URL: name}, counted: map[string]int{}}
		r.docs[name] = d
		r.order = append(r.order, d)
	}
	return d
}

// name returns the name of a document in findings: the target as it was typed, another
// local file by its path, and anything else by its URL.
func (r *run) name(at string) string {
	switch {
	case at == "" || at == r.at || at == r.o.Base:
		return r.typed
	case strings.HasPrefix(at, "file://"):
		if u, err := url.Parse(at); err == nil {
			return filepath.FromSlash(u.Path)
		}
	}
	return at
}

// found adds a finding whose Rule, URL, place, Found and Expected are set.
func (r *run) found(f Finding) {
	d := r.begin(f.URL)
	f.URL = d.URL
	f.Severity, f.Clause = r.rules[f.Rule].severity, r.rules[f.Rule].clause
	switch f.Severity {
	case Must:
		d.Musts++
		r.sum.Musts++
	case Should:
		d.Shoulds++
		r.sum.Shoulds++
	default:
		d.Notes++
		r.sum.Notes++
	}
	if d.counted[f.Rule]++; d.counted[f.Rule] <= r.o.MaxFindings && r.o.Report != nil {
		r.o.Report(f)
	}
}

// end finishes the documents that were begun: it reports the findings that were only
// counted, and each document. This waits until all are read, since a document may get
// findings after others were read.
func (r *run) end() {
	for _, d := range r.order {
		for _, id := range slices.Sorted(maps.Keys(d.counted)) {
			if more := d.counted[id] - r.o.MaxFindings; more > 0 && r.o.Report != nil {
				r.o.Report(Finding{Rule: id, Severity: r.rules[id].severity, Clause: r.rules[id].clause, URL: d.URL, More: more,
					Found: fmt.Sprintf("%d more places that break the rule", more)})
			}
		}
		if d.Kind == "" {
			continue // it could not be read
		}
		r.sum.Documents++
		r.sum.Entries += d.Entries
		if r.o.Checked != nil {
			r.o.Checked(d.Document)
		}
	}
	r.order = nil
}

// unread adds a finding for what could not be read.
func (r *run) unread(at string, err error) {
	r.sum.Unread++
	found := err.Error()
	if errors.Is(err, follow.ErrRefused) || errors.Is(err, fetch.ErrAddress) {
		found += "; --allow-host lets bridge ask a host"
	}
	if r.o.Report != nil {
		r.o.Report(Finding{Severity: Unread, URL: r.name(at), Found: found})
	}
}
