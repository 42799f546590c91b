package atompmh

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits caps what a document may ask for. The zero value of each field means
// its default.
type Limits struct {
	// Document is the length of a document in bytes as it arrives, 64 MiB.
	Document int64
	// Depth of nested elements, 256.
	Depth int
	// Attributes of one element, namespace declarations counted, 256.
	Attributes int
	// Text is the length in bytes of one text, attribute value, tag or comment,
	// 8 MiB.
	Text int
}

func (l Limits) withDefaults() Limits {
	if l.Document == 0 {
		l.Document = 64 << 20
	}
	if l.Depth == 0 {
		l.Depth = 256
	}
	if l.Attributes == 0 {
		l.Attributes = 256
	}
	if l.Text == 0 {
		l.Text = 8 << 20
	}
	return l
}

// Options says what a Reader has to know besides the bytes. The zero value is
// valid.
type Options struct {
	// URL is the document's final URL, against which links are resolved and
	// which errors name. Without it relative links stay relative.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	Limits      Limits
	// Report is told of each place where the document breaks a rule and can be
	// read all the same; nil is allowed. It is called from within Head and Next.
	Report func(Problem)
}

// Reader reads one Atom Feed Document, one entry at a time. It holds one entry
// in memory, never the document. It is not safe for concurrent use.
type Reader struct {
	in   io.Reader
	o    Options
	scan *scanner
	feed Feed
	err  error // what ended the reading

	headed bool // Head has been read
	begun  bool // the current token starts the next entry
	// from and to are the last entry's place in the document.
	from, to int64
	prologue []byte // the root's start tag, for Input
	epilogue string
	text     []byte // scratch for character data
	links    []Link // scratch for an entry's links
	seen     counts
}

// counts is what the rules need to know about the whole document.
type counts struct {
	feedIDs, feedTitles, feedUpdates int
	author                           bool     // the feed has one
	authorless                       *Problem // the first entry without one
	latest                           *Problem // the latest entry before feed/updated was known (S1)
	latestAt                         time.Time
	deletion                         *Problem // the first deletion entry (S7)
}

// NewReader returns a reader of the document in r. Nothing is read before Head
// or Next is called.
func NewReader(r io.Reader, o Options) *Reader {
	o.Limits = o.Limits.withDefaults()
	return &Reader{in: r, o: o}
}

// Head reads up to the first entry and returns what the feed has said by then.
// Errors are those of Next, but never an *EntryError and never io.EOF.
func (r *Reader) Head() (*Feed, error) {
	if err := r.readHead(); err != nil && err != io.EOF {
		return nil, err
	}
	return r.Feed(), nil
}

// Feed returns what the feed has said so far; once Next has returned io.EOF that
// is everything.
func (r *Reader) Feed() *Feed {
	f := r.feed
	f.Links = slices.Clone(f.Links)
	return &f
}

// Next returns the next entry. An *EntryError stands for one entry that cannot
// be taken; the reading goes on after it. A *DocumentError ends it: the document
// is at fault. Any other error comes from below and ends it too. io.EOF is
// returned only once every byte has been read, the root was closed and nothing
// but comments and white space followed.
func (r *Reader) Next() (*Entry, error) {
	if err := r.readHead(); err != nil {
		return nil, err
	}
	if !r.begun {
		if r.err = r.advance(); r.err != nil {
			return nil, r.err
		}
	}
	r.begun = false
	e, err := r.entry()
	if _, bad := err.(*EntryError); err != nil && !bad { //nolint:errorlint // entry returns it bare
		r.err = err
	}
	return e, err
}

// Input returns the entry that Next returned last, whole: a document of its own
// in UTF-8, which a Reader with the same URL reads in the same way. It is nil
// before the first entry.
func (r *Reader) Input() []byte {
	if r.to == 0 {
		return nil
	}
	return r.AppendInput(make([]byte, 0, len(r.prologue)+int(r.to-r.from)+len(r.epilogue)))
}

// AppendInput appends what Input returns to b.
func (r *Reader) AppendInput(b []byte) []byte {
	if r.to == 0 {
		return b
	}
	b = append(b, r.prologue...)
	b = append(b, r.scan.src.slice(r.from, r.to)...)
	return append(b, r.epilogue...)
}

func (r *Reader) readHead() error {
	if r.err != nil || r.headed {
		return r.err
	}
	r.headed = true
	if r.err = r.start(); r.err == nil {
		r.err = r.advance()
	}
	return r.err
}

// start sets up the decoding and reads the root's start tag.
func (r *Reader) start() error {
	whole := &capped{r: r.in, left: r.o.Limits.Document, cap: r.o.Limits.Document}
	in, note, err := decoded(bufio.NewReader(whole), r.o.ContentType)
	if err != nil {
		// The scanner knows how to say it.
		in = errorReader{err}
	}
	r.scan = newScanner(newSource(in, r.o.Limits), r.o.Limits, r.o.URL)
	r.scan.report = func(rule string, line, column int, found, expected string) {
		r.problem(Problem{Rule: rule, Line: line, Column: column, Found: found, Expected: expected})
	}
	if note != "" {
		r.problem(Problem{Rule: ruleCharset, Line: 1, Column: 1, Found: note, Expected: "one charset; that of Content-Type is taken"})
	}
	if err := r.scan.next(); err != nil {
		if err == io.EOF {
			return r.scan.fail("the document is empty; want an Atom Feed Document")
		}
		return err
	}
	if r.scan.space != Namespace || r.scan.local != "feed" {
		return r.scan.fail("%s; want an Atom Feed Document, with root {%s}feed", whatRoot(r.scan), Namespace)
	}
	r.keepRoot()
	return nil
}

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

// whatRoot says what a document is that is no feed.
func whatRoot(s *scanner) string {
	name := strings.ToLower(s.local)
	switch {
	case s.space == Namespace && s.local == "entry":
		return "an Atom Entry Document"
	case s.local == "feed" && s.space == "http://purl.org/atom/ns#":
		return "an Atom 0.3 feed"
	case name == "feed" && strings.Contains(strings.ToLower(s.space), "w3.org/2005/atom"):
		return fmt.Sprintf("<%s> in namespace %q, which is nearly Atom's", s.local, clip(s.space))
	case s.local == "feed" && s.space == "":
		return "<feed> without a namespace"
	case name == "rss":
		v, _ := s.attr("", "version")
		return strings.TrimSpace("RSS " + clip(v))
	case s.local == "RDF":
		return "RDF, perhaps RSS 1.0"
	case name == "html":
		return "an HTML page"
	case s.local == "urlset", s.local == "sitemapindex":
		return "a sitemap or ResourceSync document <" + s.local + ">"
	case s.local == "OAI-PMH":
		return "an OAI-PMH response"
	}
	return fmt.Sprintf("<%s> in namespace %q", clip(s.local), clip(s.space))
}

// keepRoot makes the frame that Input puts around an entry: the root's name,
// namespaces and base, and nothing that changes from harvest to harvest.
func (r *Reader) keepRoot() {
	s := r.scan
	root := s.stack[0]
	var b bytes.Buffer
	name := qname(root.name)
	b.WriteString("<" + name)
	declare := func(attr, value string) {
		b.WriteString(" " + attr + `="`)
		// Writing to a bytes.Buffer cannot fail.
		_ = xml.EscapeText(&b, []byte(value))
		b.WriteByte('"')
	}
	for _, n := range s.ns[root.ns:] {
		if n.prefix == "" {
			declare("xmlns", n.space)
		} else if n.prefix != "xml" {
			declare("xmlns:"+n.prefix, n.space)
		}
	}
	if _, ok := s.attr(xmlNamespace, "base"); ok && root.base != nil {
		declare("xml:base", root.base.String())
	}
	b.WriteByte('>')
	r.prologue = b.Bytes()
	r.epilogue = "</" + name + ">"
}

// advance reads what the feed says until the next entry starts or the document
// has ended.
func (r *Reader) advance() error {
	s := r.scan
	s.src.keep = -1
	r.to = 0
	for {
		if err := s.next(); err != nil {
			if err == io.EOF {
				r.finish()
			}
			return err
		}
		if s.kind != startTag {
			continue
		}
		if s.space == Namespace && s.local == "entry" || s.space == TombstonesNamespace && s.local == "deleted-entry" {
			r.begun = true
			r.from = s.start
			s.src.keep = s.start
			return nil
		}
		if err := r.feedElement(); err != nil {
			return err
		}
	}
}

// feedElement reads one child of the feed that is no entry.
func (r *Reader) feedElement() error {
	s := r.scan
	line, column := s.line, s.column
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Line: line, Column: column, Found: found, Expected: expected})
	}
	var err error
	switch {
	case s.space == HistoryNamespace && s.local == "archive":
		r.feed.Archive = true
	case s.space == HistoryNamespace && s.local == "complete":
		r.feed.Complete = true
	case s.space != Namespace:
	case s.local == "author":
		r.seen.author = true
	case s.local == "link":
		return r.feedLink(report)
	case s.local == "id":
		var id string
		if id, _, err = r.characters(); err != nil {
			return err
		}
		if r.seen.feedIDs++; r.seen.feedIDs > 1 {
			report(ruleFeed, "a second atom:id", "one; the first is taken")
			return nil
		}
		r.feed.ID = id
		r.checkID(id, report)
		return nil
	case s.local == "title":
		var title string
		if title, err = r.textConstruct(); err != nil {
			return err
		}
		if r.seen.feedTitles++; r.seen.feedTitles > 1 {
			report(ruleFeed, "a second atom:title", "one; the first is taken")
			return nil
		}
		r.feed.Title = title
		return nil
	case s.local == "updated":
		return r.feedUpdated(report)
	}
	return r.skip()
}

type reporter func(rule, found, expected string)

func (r *Reader) feedUpdated(report reporter) error {
	raw, _, err := r.characters()
	if err != nil {
		return err
	}
	if r.seen.feedUpdates++; r.seen.feedUpdates > 1 {
		report(ruleFeed, "a second atom:updated", "one; the first is taken")
		return nil
	}
	r.feed.UpdatedRaw = raw
	t, err := r.date(raw, report)
	if err != nil {
		report(ruleDate, strconv.Quote(clip(raw)), err.Error())
		return nil
	}
	r.feed.Updated = t
	return nil
}

func (r *Reader) feedLink(report reporter) error {
	l, ok, err := r.link(report)
	if err != nil || !ok {
		return err
	}
	r.feed.Links = append(r.feed.Links, l)
	var to *string
	switch l.Rel {
	case relPrevArchive:
		to = &r.feed.PrevArchive
		if *to != "" && *to != l.Href {
			report(ruleArchive, "a second prev-archive link to "+clip(l.Href), "one; the first is taken")
		}
	case "next-archive":
		to = &r.feed.NextArchive
	case "current":
		to = &r.feed.Current
	case "self":
		to = &r.feed.Self
	default:
		return nil
	}
	if *to == "" {
		*to = l.Href
	}
	return nil
}

// finish reports what shows only at the end.
func (r *Reader) finish() {
	missing := func(n int, name string) {
		if n == 0 {
			r.problem(Problem{Rule: ruleFeed, Found: "no " + name + " in the feed", Expected: "exactly one"})
		}
	}
	missing(r.seen.feedIDs, "atom:id")
	missing(r.seen.feedTitles, "atom:title")
	missing(r.seen.feedUpdates, "atom:updated")
	if p := r.seen.latest; p != nil && !r.feed.Updated.IsZero() && r.seen.latestAt.After(r.feed.Updated) {
		p.Expected = r.notLater()
		r.problem(*p)
	}
	if r.seen.authorless != nil && !r.seen.author {
		r.problem(*r.seen.authorless)
	}
	if r.seen.deletion != nil && r.feed.Complete {
		r.problem(*r.seen.deletion)
	}
}

func (r *Reader) notLater() string {
	return "not later than feed/updated " + r.feed.UpdatedRaw
}

func (r *Reader) problem(p Problem) {
	if r.o.Report != nil {
		p.URL = r.o.URL
		r.o.Report(p)
	}
}
