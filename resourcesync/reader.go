package resourcesync

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// maxRead is the default of Limits.Document: more than the 50 MB of clause 7, as
// Sources do not keep to them.
const maxRead = 256 << 20

// ReadOptions are the options of a Reader. The zero value is valid.
type ReadOptions struct {
	// URL is the document's final URL, against which references are resolved and
	// which errors name. Without it an entry with a relative loc is bad.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	Limits      Limits
	// Strict checks the rules that no Destination depends on too, and reports every place
	// that breaks a rule. It costs time and, in Capability Lists and dumps, memory.
	Strict bool
	// Report is called with each place where the document breaks a rule and can be
	// read all the same; nil is allowed. It is called from within Head and Next.
	Report func(Problem)
}

// Reader reads one document of the framework or one sitemap, one entry at a time.
// It holds one entry in memory, never the document. It is not safe for concurrent
// use.
//
// It reads what is nearly right as what was meant, and reports it: namespaces and capabilities
// with a slash or letter case wrong, references that are relative, times with an offset or
// without a zone, two locs, hashes in other forms.
type Reader struct {
	in   io.Reader
	o    ReadOptions
	scan *strictxml.Scanner
	doc  Document
	err  error // what ended the reading

	headed bool // Head has been read
	begun  bool // the current token starts the next entry
	// from and to are the last entry's place in the document.
	from, to int64
	frame    []byte // the root's start tag, for Input
	end      string
	framed   int64         // how many bytes of frame Input has given
	links    []Link        // scratch for an entry's links
	openTime time.Duration // of the last entry, see OpenTime
	// openBorder is the same of the from and until that were read last, of the head until there
	// is an entry.
	openBorder time.Duration

	sitemaps string // the namespace of the root
	folded   bool   // element names are in other letter case
	// foreign is the other namespace that was read last, and taken is the one that it is read
	// as.
	foreign, taken string
	once           map[string]bool // rules that are reported once, and whether they were
	seen           counts
}

// counts is what the rules and the dialect need to know about the whole document.
type counts struct {
	heads, entries, good int
	terms, beta, draft   bool                // elements of ResourceSync; of the beta; signs of a draft
	last                 Datetime            // the latest moment, see Entry.moment
	dated                bool                // a change with a datetime
	undated              *Problem            // the first change without one
	lastmod              Datetime            // the latest lastmod
	backwards            *Problem            // the first lastmod that is earlier than one before it
	capabilities         map[Capability]bool // of the entries, in a Capability List that is checked strictly
	packageType          string              // the first of a dump that is checked strictly
}

// NewReader returns a reader of the document in r. Nothing is read before Head
// or Next is called.
func NewReader(r io.Reader, o ReadOptions) *Reader {
	if o.Limits.Document == 0 {
		o.Limits.Document = maxRead
	}
	once := map[string]bool{}
	for _, rule := range Rules() {
		if rule.Once {
			once[rule.ID] = false
		}
	}
	return &Reader{in: r, o: o, once: once}
}

// Head reads up to the first entry and returns the head as far as it was read by then: Document
// after io.EOF returns the complete one. Errors are those of Next, but never an *EntryError and
// never io.EOF.
func (r *Reader) Head() (*Document, error) {
	if err := r.readHead(); err != nil && err != io.EOF {
		return nil, err
	}
	return r.Document(), nil
}

// Document returns the head as far as it was read, without entries. Once Next has returned
// io.EOF it is complete: a head that stands behind entries counts too, and only then Dialect10
// and Dialect11 are distinguished.
func (r *Reader) Document() *Document {
	d := r.doc
	d.Links = slices.Clone(d.Links)
	d.Extra = slices.Clone(d.Extra)
	return &d
}

// Next returns the next entry; it is the caller's to keep. An *EntryError stands for one entry
// that cannot be taken; the reading goes on after it. A *DocumentError ends it: the document is
// at fault. Any other error comes from the underlying reader and ends it too. io.EOF is
// returned only once every byte has been read, the root was closed and nothing but comments and
// white space followed.
func (r *Reader) Next() (*Entry, error) {
	if err := r.readHead(); err != nil {
		return nil, err
	}
	if !r.begun {
		if r.err = documentError(r.advance()); r.err != nil {
			return nil, r.err
		}
	}
	r.begun = false
	e, err := r.entry()
	if _, bad := err.(*EntryError); err != nil && !bad { //nolint:errorlint // entry returns it bare
		r.err = documentError(err)
		return nil, r.err
	}
	return e, err
}

// OpenTime returns how much later than the datetime of the entry that Next returned last its change
// may have been, by the form of that datetime: a date means any time of its day.
func (r *Reader) OpenTime() time.Duration { return r.openTime }

// Input returns the entry that Next returned last, whole: a document of its own in UTF-8, which
// a Reader with the same URL reads in the same way. Of the head it has only what is the same in
// every harvest: the capability. It is nil before the first entry. The root's start tag may be
// far longer than an entry: once Input has returned it so often that this is far more than the
// Reader has read, it returns the entry alone.
func (r *Reader) Input() []byte {
	if r.to == 0 {
		return nil
	}
	entry := r.scan.Slice(r.from, r.to)
	if r.framed += int64(len(r.frame)); r.framed > strictxml.FrameBudget(r.scan.Offset()) {
		return slices.Clone(entry)
	}
	b := append(make([]byte, 0, len(r.frame)+len(entry)+len(r.end)+128), r.frame...)
	if r.doc.Capability != "" && !r.doc.Dialect.considered() {
		b = strictxml.AppendAttr(append(b, "<md"...), ` xmlns="`, r.doc.Dialect.namespace())
		b = append(strictxml.AppendAttr(b, ` capability="`, string(r.doc.Capability)), "/>"...)
	}
	return append(append(b, entry...), r.end...)
}

func (r *Reader) readHead() error {
	if r.err != nil || r.headed {
		return r.err
	}
	r.headed = true
	if r.err = r.start(); r.err == nil {
		r.err = r.advance()
	}
	r.err = documentError(r.err)
	return r.err
}

const wanted = "a ResourceSync document or a sitemap"

// start reads the root's start tag.
func (r *Reader) start() error {
	r.scan = strictxml.New(r.in, strictxml.Options{
		URL: r.o.URL, ContentType: r.o.ContentType, Limits: strictxml.Limits(r.o.Limits), Want: wanted,
		Namespaces: []string{SitemapNamespace, Namespace, BetaNamespace, CarriedNamespace},
		Report:     r.notice,
	})
	s := r.scan
	if err := s.Next(); err != nil {
		return err
	}
	if ok, err := r.startConsidered(); ok || err != nil {
		return err
	}
	name := strings.ToLower(s.Local)
	if name != "urlset" && name != "sitemapindex" || s.Space != "" && knownNamespace(s.Space) != SitemapNamespace {
		return s.Fail("%s; want %s, with root {%s}urlset or sitemapindex", s.What(), wanted, SitemapNamespace)
	}
	if s.Space != SitemapNamespace || name != s.Local {
		r.problem(ruleRoot, s.Line, s.Column, fmt.Sprintf("<%s> in namespace %q", s.Local, strictxml.Clip(s.Space)),
			name+" in "+SitemapNamespace+"; it is read as that")
	}
	r.sitemaps, r.folded = s.Space, name != s.Local
	r.doc.Index = name == "sitemapindex"
	r.doc.Dialect = DialectSitemap
	var err error
	r.frame, r.end, err = s.Frame()
	return err
}

// notice makes a Problem of a fault that the scanner has tolerated.
func (r *Reader) notice(n strictxml.Notice) {
	rule := ruleBase
	if n.About == strictxml.AboutCharset {
		rule = ruleCharset
	}
	r.problem(rule, n.Line, n.Column, n.Found, n.Expected)
}

// element returns the name of the current start tag: rs:md, rs:ln, or that of an
// element of sitemaps. It is "" in any other namespace.
func (r *Reader) element() string {
	s := r.scan
	name, space := s.Local, s.Space
	if r.folded {
		name = strings.ToLower(name)
	}
	if space != SitemapNamespace && space != Namespace && space != BetaNamespace {
		space = r.otherwise(space)
	}
	switch {
	case space == SitemapNamespace:
		return name
	case space != Namespace && space != BetaNamespace:
		return ""
	case name == "md":
		name = "rs:md"
	case name == "ln":
		name = "rs:ln"
	default:
		return ""
	}
	r.seen.terms = true
	r.seen.beta = r.seen.beta || space == BetaNamespace
	r.name()
	return name
}

// otherwise returns what a namespace that is not one of the framework's was meant
// to be.
func (r *Reader) otherwise(space string) string {
	if space == r.sitemaps {
		return SitemapNamespace
	}
	if space != r.foreign {
		r.foreign, r.taken = space, knownNamespace(space)
	}
	if r.taken != space {
		r.problem(ruleNamespace, r.scan.Line, r.scan.Column, strconv.Quote(strictxml.Clip(space)), r.taken+"; it is read as that")
	}
	return r.taken
}

// name sets the dialect from what was read so far.
func (r *Reader) name() {
	switch {
	case r.seen.beta:
		r.doc.Dialect = DialectBeta
	case r.seen.draft:
		r.doc.Dialect = Dialect091
	case r.seen.terms:
		r.doc.Dialect = Dialect11
	}
}

// advance reads the head until the next entry starts or the document has ended.
func (r *Reader) advance() error {
	s := r.scan
	s.Keep(-1)
	r.to = 0
	for {
		if err := s.Next(); err != nil {
			if err == io.EOF {
				r.finish()
			}
			return err
		}
		if s.Kind != strictxml.StartTag {
			continue
		}
		if r.doc.Dialect.considered() {
			entry, err := r.headConsidered()
			if err != nil {
				return err
			}
			if entry {
				r.begun, r.from = true, s.Start
				s.Keep(s.Start)
				return nil
			}
			continue
		}
		var err error
		switch e := r.element(); e {
		case "url", "sitemap":
			r.begun = true
			r.from = s.Start
			s.Keep(s.Start)
			if (e == "sitemap") != r.doc.Index {
				r.problem(ruleEntry, s.Line, s.Column, "<"+s.Local+">", "url in a urlset, sitemap in a sitemapindex; it is read as an entry")
			}
			return nil
		case "rs:md", "rs:ln":
			if r.seen.entries > 0 {
				r.problem(rulePosition, s.Line, s.Column, "<"+s.Local+"> after an entry", "it before all entries; it is read all the same")
			}
			if e == "rs:md" {
				r.headMetadata()
			} else if l, ok := r.link(); ok && len(r.doc.Links) < maxLinks {
				r.doc.Links = append(r.doc.Links, l)
				r.seen.draft = r.seen.draft || l.Rel == draftDescription
			}
			r.name()
			err = s.Skip()
		default:
			err = s.Skip()
		}
		if err != nil {
			return err
		}
	}
}

// headMetadata reads the root's rs:md.
func (r *Reader) headMetadata() {
	if r.seen.heads++; r.seen.heads > 1 {
		r.problem(ruleHead, r.scan.Line, r.scan.Column, "a second rs:md", "one; it only adds what the first leaves out")
	}
	d := &r.doc
	m := d.metadata()
	r.metadata(&m, headAttr)
	d.Capability, d.At, d.Completed, d.From, d.Until, d.Modified, d.Extra = m.Capability, m.At, m.Completed, m.From, m.Until, m.Modified, m.Extra
	if d.Capability == draftDescription {
		d.Capability = Description
		r.seen.draft = true
	}
}

// draftDescription is the capability of a Source Description in the drafts up to 0.9.1, and
// their relation for up.
const draftDescription = "resourcesync"

// finish reports the problems that show only at the end.
func (r *Reader) finish() {
	d := &r.doc
	if d.Dialect == Dialect11 && d.changelog() && r.seen.good > 0 && !r.seen.dated {
		d.Dialect = Dialect10
	}
	whole := r.whole
	if d.changelog() && !d.draft() {
		r.again(r.seen.undated)
	}
	if d.Dialect == Dialect10 {
		r.again(r.seen.backwards)
	}
	if d.Dialect != DialectSitemap && r.seen.heads == 0 {
		whole(ruleHead, "no rs:md in the root", "one with a capability")
	}
	d.check(func(rule, found, expected string) {
		// Links were checked when they were read, and a missing rs:md was reported above.
		if rule != ruleLink && (rule != ruleHead || r.seen.heads > 0) {
			whole(rule, found, expected)
		}
	})
	if r.o.Strict {
		r.strictHead()
	}
	if r.seen.entries > MaxEntries {
		whole(ruleEntries, strconv.Itoa(r.seen.entries)+" entries", "at most 50,000; all were read")
	}
	if size := r.scan.Offset(); size > MaxBytes {
		whole(ruleSize, strconv.FormatInt(size, 10)+" bytes", "at most 50 MB; all were read")
	}
}

// whole reports a rule that the document as a whole breaks.
func (r *Reader) whole(rule, found, expected string) { r.problem(rule, 0, 0, found, expected) }

// again reports a problem that was kept back until it was known to be one.
func (r *Reader) again(p *Problem) {
	if p != nil {
		r.problem(p.Rule, p.Line, p.Column, p.Found, p.Expected)
	}
}

// place is where something stands in the document.
type place struct{ line, column int }

// here is the place of the current token.
func (r *Reader) here() place { return place{r.scan.Line, r.scan.Column} }

func (r *Reader) problem(rule string, line, column int, found, expected string) {
	if done, limited := r.once[rule]; limited && !r.o.Strict {
		if done {
			return
		}
		r.once[rule] = true
	}
	if r.o.Report != nil {
		r.o.Report(Problem{Rule: rule, URL: r.o.URL, Line: line, Column: column, Found: found, Expected: expected})
	}
}

const (
	// maxRatio is how many bytes one byte of a gzip file may become, counted from
	// ratioFloor bytes on: short lists compress well.
	maxRatio   = 100
	ratioFloor = 1 << 20
)

// unpacked returns the body of an answer as Unpack does.
func unpacked(a *follow.Answer) *bufio.Reader { return Unpack(a.URL, a.Body) }

// Unpack returns a document as it is, or what is in it when it is a gzip file: sitemaps
// often are, and no header field says so. One that unpacks to more than 100 times its
// size is a *DocumentError of the Reader.
func Unpack(url string, document io.Reader) *bufio.Reader {
	raw := &countingReader{r: document}
	in := bufio.NewReader(raw)
	// A read error is returned again by the next read.
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" {
		return in
	}
	return bufio.NewReader(&unpacker{url: url, in: in, raw: raw})
}

// countingReader counts the bytes that it has read, and keeps the error of its reader.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (t *countingReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// unpacker undoes a gzip file. A broken file is a fault of the document, a broken
// connection is not.
type unpacker struct {
	url string
	in  *bufio.Reader
	raw *countingReader
	z   *gzip.Reader // nil before its header was read
	out int64
}

func (u *unpacker) Read(p []byte) (n int, err error) {
	if u.z == nil {
		z, err := gzip.NewReader(u.in)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // before the file has begun it cannot have ended
		}
		if err != nil {
			return 0, u.fault(err)
		}
		u.z = z
	}
	n, err = u.z.Read(p)
	if u.out += int64(n); u.out > ratioFloor && u.out > maxRatio*u.raw.n {
		return 0, u.broken(fmt.Sprintf("the gzip file unpacks to more than %d times its size", maxRatio))
	}
	if err != nil && err != io.EOF {
		err = u.fault(err)
	}
	return n, err
}

// fault returns what an error means: a broken connection, or a broken file.
func (u *unpacker) fault(err error) error {
	if u.raw.err != nil {
		return u.raw.err
	}
	return u.broken("the gzip file cannot be unpacked: " + err.Error())
}

func (u *unpacker) broken(reason string) error {
	return &strictxml.DocumentError{URL: u.url, Line: 1, Column: 1, Reason: reason}
}
