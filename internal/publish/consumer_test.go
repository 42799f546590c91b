package publish_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"
)

// Consumers that are written from the texts of the specifications alone, with encoding/xml and
// nothing of ours. Each has a copy of a set, by loc or identifier, and a mark: up to when the
// copy shows the set.

// errGone: a document is not there any more. The consumer begins anew.
var errGone = errors.New("it is not there")

const (
	sitemap = "http://www.sitemaps.org/schemas/sitemap/0.9"
	atom    = "http://www.w3.org/2005/Atom"
)

type (
	list struct {
		XMLName xml.Name
		Meta    meta   `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links   []link `xml:"http://www.openarchives.org/rs/terms/ ln"`
		URLs    []item `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 url"`
		Maps    []item `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 sitemap"`
	}
	item struct {
		Loc   string `xml:"http://www.sitemaps.org/schemas/sitemap/0.9 loc"`
		Meta  meta   `xml:"http://www.openarchives.org/rs/terms/ md"`
		Links []link `xml:"http://www.openarchives.org/rs/terms/ ln"`
	}
	meta struct {
		Capability string `xml:"capability,attr"`
		At         stamp  `xml:"at,attr"`
		From       stamp  `xml:"from,attr"`
		Until      stamp  `xml:"until,attr"`
		Change     string `xml:"change,attr"`
		Datetime   stamp  `xml:"datetime,attr"`
		Hash       string `xml:"hash,attr"`
		Path       string `xml:"path,attr"`
	}
	link struct {
		Rel  string `xml:"rel,attr"`
		Href string `xml:"href,attr"`
		Path string `xml:"path,attr"`
		Hash string `xml:"hash,attr"`
	}
	feed struct {
		XMLName  xml.Name
		ID       string    `xml:"http://www.w3.org/2005/Atom id"`
		Updated  stamp     `xml:"http://www.w3.org/2005/Atom updated"`
		Links    []link    `xml:"http://www.w3.org/2005/Atom link"`
		Complete *struct{} `xml:"http://purl.org/syndication/history/1.0 complete"`
		Entries  []entry   `xml:"http://www.w3.org/2005/Atom entry"`
	}
	entry struct {
		ID      string    `xml:"http://www.w3.org/2005/Atom id"`
		Title   string    `xml:"http://www.w3.org/2005/Atom title"`
		Updated stamp     `xml:"http://www.w3.org/2005/Atom updated"`
		Links   []link    `xml:"http://www.w3.org/2005/Atom link"`
		Content *struct{} `xml:"http://www.w3.org/2005/Atom content"`
	}
)

// stamp is a time in a document, the zero time where it is not stated.
type stamp struct{ time.Time }

func (s *stamp) UnmarshalText(b []byte) (err error) {
	s.Time, err = time.Parse(time.RFC3339Nano, string(b))
	return err
}

func to(links []link, rel string) string {
	for _, l := range links {
		if l.Rel == rel {
			return l.Href
		}
	}
	return ""
}

// consumer keeps a copy of a set.
type consumer interface {
	// visit brings the copy up to date. It may break off: then more is true.
	visit() (more bool, err error)
	// state returns the copy, and the mark.
	state() (copy map[string]string, mark time.Time)
}

// destination follows ResourceSync. By how it begins with a Resource List, a Resource Dump, or
// one of the past; and goes on with all Change Lists, the one list of recent changes, or packages.
type destination struct {
	*browser
	how     string // "lists", "window", "dumps", "past"
	set     string
	mark    time.Time
	copy    map[string]string // hash by loc
	patient bool              // never breaks off
}

func (d *destination) state() (map[string]string, time.Time) { return d.copy, d.mark }

func (d *destination) read(url, capability string) (*list, error) {
	body, err := d.get(url)
	if err != nil {
		return nil, err
	}
	var l list
	if err := xml.Unmarshal(body, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if l.XMLName.Space != sitemap || l.Meta.Capability != capability {
		return nil, fmt.Errorf("%s is a %v with capability %q, want %q", url, l.XMLName, l.Meta.Capability, capability)
	}
	return &l, nil
}

// capabilities goes from the Source Description to the Capability List of the set.
func (d *destination) capabilities() (map[string]string, error) {
	source, err := d.read(siteBase+"/.well-known/resourcesync", "description")
	if err != nil {
		return nil, err
	}
	for _, e := range source.URLs {
		if e.Loc != siteBase+"/sets/"+d.set+"/capabilitylist.xml" {
			continue
		}
		l, err := d.read(e.Loc, "capabilitylist")
		if err != nil {
			return nil, err
		}
		all := map[string]string{}
		for _, e := range l.URLs {
			all[e.Meta.Capability] = e.Loc
		}
		return all, nil
	}
	return nil, fmt.Errorf("the Source Description does not name set %s", d.set)
}

// lists returns what a document names, or the document itself if it is no index.
func (d *destination) lists(url, capability string) ([]item, *list, error) {
	l, err := d.read(url, capability)
	if err != nil {
		return nil, nil, err
	}
	if l.XMLName.Local == "sitemapindex" {
		return l.Maps, l, nil
	}
	return []item{{Loc: url, Meta: l.Meta}}, l, nil
}

func (d *destination) visit() (more bool, err error) {
	caps, err := d.capabilities()
	if err != nil {
		return false, err
	}
	if d.mark.IsZero() {
		if err := d.baseline(caps); err != nil {
			d.mark, d.copy = time.Time{}, nil
			return false, err
		}
	}
	if url, ok := caps["changedump"]; ok && d.how == "dumps" {
		dump, err := d.read(url, "changedump")
		if err != nil {
			return false, err
		}
		if !dump.Meta.From.After(d.mark) {
			for _, e := range dump.URLs {
				if e.Meta.Until.After(d.mark) {
					if err := d.packageOf(e, "changedump-manifest"); err != nil {
						return false, err
					}
				}
			}
		}
	}
	if d.how == "window" {
		url := siteBase + "/sets/" + d.set + "/changelist.xml"
		l, err := d.read(url, "changelist")
		if err != nil {
			return false, err
		}
		if !l.Meta.From.After(d.mark) {
			return false, d.take(url, l)
		}
	}
	return d.changes(caps)
}

// changes reads the Change Lists that do not end before the mark.
func (d *destination) changes(caps map[string]string) (more bool, err error) {
	named, index, err := d.lists(caps["changelist"], "changelist")
	if err != nil {
		return false, err
	}
	if index.Meta.From.After(d.mark) { // the lists before are in the archive
		var older []item
		archive, l, err := d.lists(caps["changelist-archive"], "changelist-archive")
		if err != nil {
			return false, err
		}
		if l.XMLName.Local == "urlset" {
			older = l.URLs
		} else {
			for _, part := range archive {
				l, err := d.read(part.Loc, "changelist-archive")
				if err != nil {
					return false, err
				}
				older = append(older, l.URLs...)
			}
		}
		named = append(older, named...)
	}
	for _, e := range named {
		if !e.Meta.Until.IsZero() && !e.Meta.Until.After(d.mark) {
			continue
		}
		l, err := d.read(e.Loc, "changelist")
		if err != nil {
			return false, err
		}
		if err := d.take(e.Loc, l); err != nil {
			return false, err
		}
		if !d.patient && d.rnd.IntN(8) == 0 {
			return true, nil
		}
	}
	return false, nil
}

// take applies the changes of a list that are later than the mark.
func (d *destination) take(url string, l *list) error {
	if l.Meta.From.After(d.mark) {
		return fmt.Errorf("%s begins at %v, after the mark %v", url, l.Meta.From, d.mark)
	}
	begun := d.mark
	for _, e := range l.URLs {
		if e.Meta.Datetime.Before(d.mark) && d.mark.After(begun) {
			return fmt.Errorf("%s: %s of %v comes after one of %v", url, e.Loc, e.Meta.Datetime, d.mark)
		}
		if !e.Meta.Datetime.After(begun) {
			continue
		}
		d.mark = e.Meta.Datetime.Time
		_, has := d.copy[e.Loc]
		switch {
		case e.Meta.Change == "created" && !has, e.Meta.Change == "updated" && has:
			d.copy[e.Loc] = e.Meta.Hash
		case e.Meta.Change == "deleted" && has:
			delete(d.copy, e.Loc)
		default:
			return fmt.Errorf("%s: %s is %s at %v, and the copy has it: %v", url, e.Loc, e.Meta.Change, e.Meta.Datetime, has)
		}
	}
	if l.Meta.Until.After(d.mark) { // it has all changes until then
		d.mark = l.Meta.Until.Time
	}
	return nil
}

// baseline begins the copy.
func (d *destination) baseline(caps map[string]string) error {
	d.copy = map[string]string{}
	url, ok := caps["resourcelist"], false
	switch d.how {
	case "dumps":
		var dumps string
		if dumps, ok = caps["resourcedump"]; !ok {
			break
		}
		dump, err := d.read(dumps, "resourcedump")
		if err != nil {
			return err
		}
		for _, e := range dump.URLs {
			if err := d.packageOf(e, "resourcedump-manifest"); err != nil {
				return err
			}
		}
		d.mark = dump.Meta.At.Time
		return nil
	case "past":
		var archive string
		if archive, ok = caps["resourcelist-archive"]; !ok {
			break
		}
		l, err := d.read(archive, "resourcelist-archive")
		if err != nil {
			return err
		}
		url = l.URLs[d.rnd.IntN(len(l.URLs))].Loc
	}
	parts, whole, err := d.lists(url, "resourcelist")
	if err != nil {
		return err
	}
	for _, part := range parts {
		l := whole
		if part.Loc != url {
			if l, err = d.read(part.Loc, "resourcelist"); err != nil {
				return err
			}
		}
		if !l.Meta.At.Equal(whole.Meta.At.Time) {
			return fmt.Errorf("%s is of %v, its index of %v", part.Loc, l.Meta.At, whole.Meta.At)
		}
		for _, e := range l.URLs {
			if _, twice := d.copy[e.Loc]; twice {
				return fmt.Errorf("%s has %s twice", part.Loc, e.Loc)
			}
			d.copy[e.Loc] = e.Meta.Hash
		}
	}
	d.mark = whole.Meta.At.Time
	return nil
}

// packageOf takes a package: its manifest is a list, and each file has the hash that it states.
func (d *destination) packageOf(e item, capability string) error {
	body, err := d.get(e.Loc)
	if err != nil {
		return err
	}
	if hashOf(body) != e.Meta.Hash {
		return fmt.Errorf("%s has the hash %s, the dump says %s", e.Loc, hashOf(body), e.Meta.Hash)
	}
	z, err := zip.NewReader(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return fmt.Errorf("%s: %w", e.Loc, err)
	}
	file := func(path string) ([]byte, error) {
		f, err := z.Open(strings.TrimPrefix(path, "/"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Loc, err)
		}
		defer f.Close()
		return io.ReadAll(f)
	}
	manifest, err := file("manifest.xml")
	if err != nil {
		return err
	}
	copied, err := d.get(to(e.Links, "contents"))
	if err != nil {
		return err
	}
	if !bytes.Equal(copied, manifest) {
		return fmt.Errorf("%s: contents leads to another manifest", e.Loc)
	}
	var l list
	if err := xml.Unmarshal(manifest, &l); err != nil || l.Meta.Capability != capability {
		return fmt.Errorf("%s: the manifest has capability %q: %w", e.Loc, l.Meta.Capability, err)
	}
	for _, e := range l.URLs {
		files := []link{{Path: e.Meta.Path, Hash: e.Meta.Hash}}
		for _, l := range append(files, e.Links...) {
			if l.Path == "" {
				continue
			}
			if body, err := file(l.Path); err != nil || hashOf(body) != l.Hash {
				return fmt.Errorf("%s: %s has the hash %s, want %s: %w", e.Loc, l.Path, hashOf(body), l.Hash, err)
			}
		}
		if capability == "resourcedump-manifest" {
			d.copy[e.Loc] = e.Meta.Hash
		}
	}
	if capability == "changedump-manifest" {
		return d.take(e.Loc, &l)
	}
	return nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha-256:" + hex.EncodeToString(sum[:])
}

// reader follows an Atom-PMH feed: the complete one, or the archived one back to the document
// that is not later than what it has read last.
type reader struct {
	*browser
	complete bool
	set      string
	id       string
	mark     time.Time
	copy     map[string]string // title by identifier
}

func (r *reader) state() (map[string]string, time.Time) { return r.copy, r.mark }

func (r *reader) read(url string) (*feed, error) {
	body, err := r.get(url)
	if err != nil {
		return nil, err
	}
	var f feed
	if err := xml.Unmarshal(body, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if f.XMLName.Space != atom || r.id != "" && r.id != f.ID {
		return nil, fmt.Errorf("%s is a %v with id %s, want %s", url, f.XMLName, f.ID, r.id)
	}
	r.id = f.ID
	return &f, nil
}

func (r *reader) visit() (more bool, err error) {
	name := "feed.atom"
	if r.complete {
		name = "complete.atom"
	}
	newest, mark, updated := map[string]entry{}, time.Time{}, time.Time{}
	for url := siteBase + "/sets/" + r.set + "/" + name; url != ""; {
		f, err := r.read(url)
		if err != nil {
			return false, err
		}
		if (f.Complete != nil) != r.complete {
			return false, fmt.Errorf("%s: complete is %v", url, f.Complete != nil)
		}
		if mark.IsZero() {
			mark = f.Updated.Time
		} else if f.Updated.After(updated) {
			return false, fmt.Errorf("%s is of %v, the document that leads to it of %v", url, f.Updated, updated)
		}
		updated = f.Updated.Time
		for _, e := range f.Entries {
			if e.Updated.After(f.Updated.Time) {
				return false, fmt.Errorf("%s has an entry of %v, and is of %v", url, e.Updated, f.Updated)
			}
			if old, ok := newest[e.ID]; !ok || e.Updated.After(old.Updated.Time) {
				newest[e.ID] = e
			}
		}
		if url = to(f.Links, "prev-archive"); !f.Updated.After(r.mark) {
			break // up to and including the time of the last visit
		}
	}
	if r.copy == nil || r.complete {
		r.copy = map[string]string{}
	}
	for id, e := range newest {
		switch active := to(e.Links, "alternate") != ""; {
		case active && e.Content == nil:
			r.copy[id] = e.Title
		case !active && e.Content != nil && !r.complete:
			delete(r.copy, id)
		default:
			return false, fmt.Errorf("entry %s is neither active nor a deletion", id)
		}
	}
	r.mark = mark
	return false, nil
}

// harvester follows an OAI-PMH repository: all records at first, then those from the responseDate of
// the first answer on.
type harvester struct {
	*browser
	set, verb string
	from      string            // the responseDate
	copy      map[string]string // title by identifier
}

// state has no mark: of its last second a list may have a part.
func (h *harvester) state() (map[string]string, time.Time) { return h.copy, time.Time{} }

type (
	oaiAnswer struct {
		Date    string      `xml:"http://www.openarchives.org/OAI/2.0/ responseDate"`
		Errors  []oaiError  `xml:"http://www.openarchives.org/OAI/2.0/ error"`
		Records []oaiRecord `xml:"http://www.openarchives.org/OAI/2.0/ ListRecords>record"`
		Headers []oaiHeader `xml:"http://www.openarchives.org/OAI/2.0/ ListIdentifiers>header"`
		One     []oaiRecord `xml:"http://www.openarchives.org/OAI/2.0/ GetRecord>record"`
		Token   string      `xml:"http://www.openarchives.org/OAI/2.0/ ListRecords>resumptionToken"`
		Next    string      `xml:"http://www.openarchives.org/OAI/2.0/ ListIdentifiers>resumptionToken"`
	}
	oaiError struct {
		Code string `xml:"code,attr"`
	}
	oaiHeader struct {
		Status     string `xml:"status,attr"`
		Identifier string `xml:"http://www.openarchives.org/OAI/2.0/ identifier"`
		Datestamp  stamp  `xml:"http://www.openarchives.org/OAI/2.0/ datestamp"`
	}
	oaiRecord struct {
		Header oaiHeader `xml:"http://www.openarchives.org/OAI/2.0/ header"`
		DC     struct {
			Titles []string `xml:"http://purl.org/dc/elements/1.1/ title"`
		} `xml:"metadata>dc"`
	}
)

func (h *harvester) ask(q url.Values) (*oaiAnswer, error) {
	body, err := h.get(siteBase + "/sets/" + h.set + "/oai?" + q.Encode())
	if err != nil {
		return nil, err
	}
	var a oaiAnswer
	if err := xml.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("%v: %w", q, err)
	}
	return &a, nil
}

func (h *harvester) visit() (more bool, err error) {
	q := url.Values{"verb": {h.verb}, "metadataPrefix": {"oai_dc"}}
	first := h.copy == nil
	if !first {
		q.Set("from", h.from)
	}
	date, met := "", map[string]oaiRecord{}
	for {
		a, err := h.ask(q)
		if err != nil {
			return false, err
		}
		if date == "" {
			date = a.Date
		}
		if len(a.Errors) > 0 {
			if a.Errors[0].Code == "noRecordsMatch" && len(met) == 0 && !q.Has("resumptionToken") {
				break
			}
			return false, fmt.Errorf("%v: %v", q, a.Errors)
		}
		for _, header := range a.Headers {
			a.Records = append(a.Records, oaiRecord{Header: header})
		}
		if len(a.Records) == 0 {
			return false, fmt.Errorf("%v: no records", q)
		}
		for _, rec := range a.Records {
			id := rec.Header.Identifier
			if _, twice := met[id]; twice {
				return false, fmt.Errorf("%v: %s comes twice", q, id)
			}
			met[id] = rec
		}
		token := a.Token + a.Next
		if token == "" {
			break
		}
		q = url.Values{"verb": {h.verb}, "resumptionToken": {token}}
	}
	for id, rec := range met {
		if h.verb == "ListIdentifiers" && rec.Header.Status == "" {
			a, err := h.ask(url.Values{"verb": {"GetRecord"}, "metadataPrefix": {"oai_dc"}, "identifier": {id}})
			if err != nil {
				return false, err
			}
			if len(a.One) != 1 || a.One[0].Header.Identifier != id {
				return false, fmt.Errorf("GetRecord %s: %+v", id, a)
			}
			met[id] = a.One[0]
		}
	}
	if first {
		h.copy = map[string]string{}
	}
	for id, rec := range met {
		switch {
		case rec.Header.Status == "deleted":
			delete(h.copy, id)
		case len(rec.DC.Titles) == 0:
			return false, fmt.Errorf("%s has no title", id)
		default:
			h.copy[id] = rec.DC.Titles[0]
		}
	}
	h.from = date
	return false, nil
}
