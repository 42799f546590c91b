package validate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"mime"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
)

const (
	// maxContents is how many resources, representations and packages are fetched for
	// one target.
	maxContents = 100_000
	// maxPackage is how many bytes a package may have.
	maxPackage = 64 << 30
	// silentAfter is how many contents of one host in a row have to go without an answer
	// before it is asked for no other: each may take as long as a request may.
	silentAfter = 8
)

// The rules that only a content shows.
const (
	rulePackageFile = "rs-package-file"
	ruleBitstream   = "rs-bitstream"
	ruleContents    = "rs-contents"
	ruleResource    = "rs-resource"
	ruleResolves    = "pmh-resolves"
)

// content is a resource, a representation or a package to be fetched, with the statements
// of the document about it.
type content struct {
	url, document, record string
	line, column          int

	typ, hash string
	length    resourcesync.Length
	coded     bool   // hash and length may be of the body with its content coding
	rule      string // the broken rule, if it is not as stated
	packed    bool   // it is a package
	manifest  string // URL of a copy of its manifest, "" when it has none
}

// note adds a content to those to be fetched, if contents are wanted.
func (r *run) note(c content) {
	if !r.o.Contents || len(r.contents) > maxContents || r.noted[c.url] {
		return
	}
	if r.noted == nil {
		r.noted = map[string]bool{}
	}
	r.noted[c.url] = true
	r.contents = append(r.contents, c)
}

// noteEntry notes the content of an entry of a ResourceSync document: a package, or a
// resource of a Resource List. An entry of a Change List may be out of date already.
func (r *run) noteEntry(head *resourcesync.Document, at string, e *resourcesync.Entry) {
	md := &e.Metadata
	c := content{url: e.Loc, document: at, record: e.Loc, line: e.Line, column: e.Column, typ: md.Type, hash: md.Hash, length: md.Length, coded: md.Encoding != "", rule: ruleResource}
	switch {
	case head.Index:
		return
	case head.Capability == resourcesync.ResourceDump, head.Capability == resourcesync.ChangeDump:
		c.packed = true
		for i := range e.Links {
			if e.Links[i].Rel == resourcesync.RelContents {
				c.manifest = e.Links[i].Href
			}
		}
	case head.Capability != resourcesync.ResourceList:
		return
	}
	r.note(c)
}

// newest has the newest entries of the records of an Atom Feed Document, whose entries are in no
// order.
type newest struct {
	ids     []string // in the order of the document
	entries map[string]newestEntry
}

type newestEntry struct {
	updated    time.Time
	alternates []content // none of a deletion
}

// addNewest adds an entry, if contents are wanted. A deletion wins over an active entry of the same time.
func (r *run) addNewest(to *newest, at string, e *atompmh.Entry) {
	if !r.o.Contents {
		return
	}
	was, met := to.entries[e.ID]
	switch {
	case !met:
		if to.entries == nil {
			to.entries = map[string]newestEntry{}
		}
		to.ids = append(to.ids, e.ID)
	case e.Updated.Before(was.updated), e.Updated.Equal(was.updated) && e.Kind == atompmh.Active:
		return
	}
	is := newestEntry{updated: e.Updated}
	if e.Kind == atompmh.Active {
		for _, l := range e.Alternates() {
			is.alternates = append(is.alternates, content{url: l.Href, document: at, record: e.ID, line: e.Line, column: e.Column, typ: l.Type, rule: ruleResolves})
		}
	}
	to.entries[e.ID] = is
}

// noteAlternates notes the representations of the active entries of a document, unless a newer
// document has an entry of the record.
func (r *run) noteAlternates(of *newest) {
	for _, id := range of.ids {
		if len(r.contents) > maxContents || r.noted["record "+id] {
			continue
		}
		if r.noted == nil {
			r.noted = map[string]bool{}
		}
		r.noted["record "+id] = true
		for _, c := range of.entries[id].alternates {
			r.note(c)
		}
	}
}

// fetch fetches the noted contents, and compares them with the statements of the documents.
// The contents of a host that has not answered for several in a row are only counted.
func (r *run) fetch(ctx context.Context) error {
	failed, left, first := map[string]int{}, map[string]int{}, map[string]string{}
	for i, c := range r.contents {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if i == maxContents {
			r.unread(c.url, fmt.Errorf("%d resources and packages were fetched; no more are", i))
			break
		}
		host := hostOf(c.url)
		if failed[host] == silentAfter {
			first[host] = cmp.Or(first[host], c.url)
			left[host]++
			continue
		}
		err := r.fetchOne(ctx, c)
		if err != nil {
			r.unread(c.url, err)
		}
		if fetch.Transient(err) {
			failed[host]++
		} else {
			failed[host] = 0
		}
	}
	for _, host := range slices.Sorted(maps.Keys(left)) {
		r.sum.Unread += left[host] - 1
		r.unread(first[host], fmt.Errorf("%d contents in a row had no answer, so the others of %s were not asked for: %d", silentAfter, host, left[host]))
	}
	return nil
}

// hostOf returns the host and port of a URL.
func hostOf(at string) string {
	u, err := url.Parse(at)
	if err != nil {
		return ""
	}
	return u.Host
}

// fetchOne fetches a content, and compares it. The error says why that could not be done.
func (r *run) fetchOne(ctx context.Context, c content) error {
	broken := func(rule, found, expected string) {
		r.found(Finding{Rule: rule, URL: c.document, Line: c.line, Column: c.column, Record: c.record, Found: found, Expected: expected})
	}
	a, err := r.get.Get(ctx, c.url, follow.Validators{})
	switch status := follow.Status(err); {
	case status == 403 || follow.Missing(err):
		broken(c.rule, fmt.Sprintf("%s, which answers HTTP status %d", c.url, status), "a URI that resolves")
		return nil
	case err != nil:
		return err
	}
	defer a.Close()
	check := resourcesync.NewHashCheck(resourcesync.Hashes(c.hash))
	var n int64
	if c.packed {
		n, err = r.fetchPackage(ctx, c, io.TeeReader(a.Body, check), a.URL)
	} else {
		n, err = io.Copy(check, a.Body)
	}
	if err != nil {
		return err
	}
	if length, known := c.length.Bytes(); known && length != n && !c.coded {
		broken(c.rule, fmt.Sprintf("%d bytes at %s", n, c.url), fmt.Sprintf("%d, as stated", length))
	}
	if differs := check.Differs(); differs != "" && !c.coded {
		broken(c.rule, c.url+": "+differs, "the hash that is stated")
	}
	if served := a.Header.Get("Content-Type"); c.typ != "" && served != "" && essence(served) != essence(c.typ) && !strings.HasPrefix(a.URL, "file:") {
		broken(c.rule, "Content-Type "+served+" at "+c.url, c.typ+", as stated")
	}
	return nil
}

// essence returns a media type without its parameters.
func essence(typ string) string {
	t, _, err := mime.ParseMediaType(typ)
	if err != nil {
		return strings.ToLower(strings.TrimSpace(typ))
	}
	return t
}

// fetchPackage checks a package of a dump, and compares its manifest with the copy.
func (r *run) fetchPackage(ctx context.Context, c content, body io.Reader, at string) (int64, error) {
	f, n, err := spool(body)
	if err != nil {
		return 0, err
	}
	defer discard(f)
	magic := make([]byte, 2)
	if _, err := f.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if !bytes.Equal(magic, []byte("PK")) && essence(c.typ) != "application/zip" {
		return n, nil // the specification allows other formats
	}
	inside := r.zip(f, n, at)
	if inside == nil || c.manifest == "" {
		return n, nil
	}
	a, err := r.get.Get(ctx, c.manifest, follow.Validators{})
	if err != nil {
		return n, nil //nolint:nilerr // the missing copy was reported
	}
	defer a.Close()
	copied := sha256.New()
	rd := resourcesync.NewReader(resourcesync.Unpack(a.URL, a.Body), resourcesync.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type")})
	for {
		e, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if e == nil {
			return n, nil //nolint:nilerr // the faults of the copy were reported
		}
		sumEntry(copied, e)
	}
	if !bytes.Equal(copied.Sum(nil), inside) {
		r.found(Finding{Rule: ruleContents, URL: c.document, Line: c.line, Column: c.column, Record: c.record,
			Found: "a manifest at " + c.manifest + " that lists other bitstreams than the one in " + c.url, Expected: "a copy of the manifest in the package"})
	}
	return n, nil
}

// sumEntry adds the parts of an entry that must be equal in two copies of a manifest.
func sumEntry(to hash.Hash, e *resourcesync.Entry) {
	n, known := e.Metadata.Length.Bytes()
	_, _ = fmt.Fprintf(to, "%q %q %q %q %d %t\n", e.Loc, e.Metadata.Change, strings.TrimPrefix(e.Metadata.Path, "/"), resourcesync.Hashes(e.Metadata.Hash), n, known) // a hash accepts all writes
}

// zip checks a package, and returns a hash of its manifest's entries; nil when the manifest
// could not be read to its end.
func (r *run) zip(in io.ReaderAt, size int64, at string) []byte {
	d := r.begin(at)
	d.Kind = "ResourceSync package"
	head, opened := map[resourcesync.Problem]bool{}, false
	p, err := resourcesync.NewDumpReader(in, size, resourcesync.DumpOptions{URL: at, Strict: true, Report: func(p resourcesync.Problem) {
		if opened && head[p] {
			return // the manifest is read from its beginning again
		}
		head[p] = !opened
		r.listProblem(p)
	}})
	if err != nil {
		r.zipError(d, at, err)
		return nil
	}
	opened = true
	d.Kind = "package with a " + listKind(p.Manifest())
	sum := sha256.New()
	for e, err := range p.Entries() {
		if stop := r.entryError(d, at, err); stop {
			return nil
		}
		if e == nil {
			continue
		}
		sumEntry(sum, e)
		r.bitstream(p, d, at, &e.Metadata)
		for i := range e.Links {
			if l := &e.Links[i]; l.Path != "" {
				r.bitstream(p, d, at, &resourcesync.Metadata{Path: l.Path, Hash: l.Hash, Length: l.Length, Encoding: l.Encoding})
			}
		}
	}
	return sum.Sum(nil)
}

// bitstream reads a file of a package to its end.
func (r *run) bitstream(p *resourcesync.DumpReader, d *document, at string, md *resourcesync.Metadata) {
	if md.Path == "" {
		return // a deletion, or reported
	}
	f, err := p.Open(md)
	if err == nil {
		_, err = io.Copy(io.Discard, f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		r.zipError(d, at, err)
	}
}

// zipError adds a finding for an error in a package or a file in it.
func (r *run) zipError(d *document, at string, err error) {
	var bad *resourcesync.DumpError
	switch {
	case !errors.As(err, &bad):
		r.entryError(d, at, err)
	case bad.Cap != "":
		r.unread(at, err)
	case bad.Path != "" && bad.Path != "/"+resourcesync.ManifestName:
		r.found(Finding{Rule: ruleBitstream, URL: at, Record: bad.Path, Found: bad.Reason, Expected: "the bitstream that the manifest states"})
	default:
		r.found(Finding{Rule: rulePackageFile, URL: at, Found: bad.Reason, Expected: "a ZIP file with a manifest.xml at its top level"})
	}
}

// spool writes a package to a temporary file, since a ZIP file is read from its end.
func spool(body io.Reader) (*os.File, int64, error) {
	f, err := os.CreateTemp("", "bridge-package-")
	if err != nil {
		return nil, 0, err
	}
	n, err := io.Copy(f, io.LimitReader(body, maxPackage+1))
	if err == nil && n > maxPackage {
		err = fmt.Errorf("the package has more than %d bytes", int64(maxPackage))
	}
	if err != nil {
		discard(f)
		return nil, 0, err
	}
	return f, n, nil
}

func discard(f *os.File) {
	_, _ = f.Close(), os.Remove(f.Name()) // nothing depends on it, and the folder is for temporary files
}
