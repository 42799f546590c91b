package atompmh

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ReadOptions is what a Reader needs besides the bytes of the document. The zero value
// is valid.
type ReadOptions struct {
	// URL is the document's final URL, against which links are resolved and
	// which errors name. Without it relative links stay relative.
	URL string
	// ContentType is the value of the header field, for its charset.
	ContentType string
	Limits      Limits
	// Content: the atom:content of an entry is its record, inline or at its src,
	// whatever alternate links the entry has. The draft does not define that.
	Content bool
	// Strict checks also the rules that no consumer depends on. It costs time, and up to
	// 50 MB of memory in a document of a million entries.
	Strict bool
	// Report is called with each place where the document breaks a rule and can be
	// read all the same; nil is allowed. It is called from within Head and Next.
	Report func(Problem)
}

// Reader reads one Atom Feed Document, one entry at a time. It holds one entry
// in memory, never the document. It is not safe for concurrent use.
type Reader struct {
	in   io.Reader
	o    ReadOptions
	scan *strictxml.Scanner
	feed Feed
	err  error // what ended the reading

	headed bool // Head has been read
	begun  bool // the current token starts the next entry
	// from and to are the last entry's place in the document.
	from, to int64
	prologue []byte // the root's start tag, for Frame
	epilogue string
	framed   int64  // how many bytes of prologue Frame has given
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
	once                             uint     // elements of the feed that a strict Reader has met
	stamps                           map[[16]byte]bool
	nested                           int // entries inside of other elements
}

// NewReader returns a reader of the document in r. Nothing is read before Head
// or Next is called.
func NewReader(r io.Reader, o ReadOptions) *Reader {
	return &Reader{in: r, o: o}
}

// Head reads up to the first entry and returns the metadata of the feed that it has met
// by then. Errors are those of Next, but never an *EntryError and never io.EOF.
func (r *Reader) Head() (*Feed, error) {
	if err := r.readHead(); err != nil && err != io.EOF {
		return nil, err
	}
	return r.Feed(), nil
}

// Feed returns the metadata of the feed that was read so far; once Next has returned
// io.EOF that is all of it.
func (r *Reader) Feed() *Feed {
	f := r.feed
	f.Links = slices.Clone(f.Links)
	return &f
}

// Next returns the next entry, which the caller may keep. An *EntryError stands for one
// entry that cannot be taken; the reading goes on after it. A *DocumentError ends it:
// the document is at fault. Any other error is one of the underlying reader and ends it
// too. io.EOF is returned only once every byte has been read, the root was closed and
// nothing but comments and white space followed.
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

// Input returns the entry that Next returned last, whole: a document of its own in
// UTF-8, which a Reader with the same URL reads in the same way. It is nil before the
// first entry. See Frame for its limit.
func (r *Reader) Input() []byte {
	if r.to == 0 {
		return nil
	}
	return r.Frame(r.scan.Slice(r.from, r.to))
}

// AppendEntry appends the bytes of the entry that Next returned last to b, for
// Frame.
func (r *Reader) AppendEntry(b []byte) []byte {
	if r.to == 0 {
		return b
	}
	return append(b, r.scan.Slice(r.from, r.to)...)
}

// Frame makes a document of entries of this one: it puts a root element with the root's
// namespaces and base around them. That may be far longer than the entries. Once a
// Reader has added far more bytes in this way than it has read, Frame returns the
// entries alone, without these namespaces.
func (r *Reader) Frame(entries ...[]byte) []byte {
	before, after := r.prologue, r.epilogue
	if r.framed += int64(len(before)); r.framed > strictxml.FrameBudget(r.scan.Offset()) {
		before, after = nil, ""
	}
	size := len(before) + len(after)
	for _, e := range entries {
		size += len(e)
	}
	b := append(make([]byte, 0, size), before...)
	for _, e := range entries {
		b = append(b, e...)
	}
	return append(b, after...)
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

// start reads the root's start tag.
func (r *Reader) start() error {
	r.scan = strictxml.New(r.in, strictxml.Options{
		URL: r.o.URL, ContentType: r.o.ContentType, Limits: strictxml.Limits(r.o.Limits), Want: "an Atom Feed Document",
		Namespaces: []string{Namespace, HistoryNamespace, TombstonesNamespace, PublishingNamespace, LinkExtensionsNamespace, CarriedNamespace},
		Report:     r.notice,
	})
	s := r.scan
	if err := s.Next(); err != nil {
		return err
	}
	if s.Space != Namespace || s.Local != "feed" {
		what := s.What()
		if strings.EqualFold(s.Local, "feed") && strings.Contains(strings.ToLower(s.Space), "w3.org/2005/atom") {
			what = fmt.Sprintf("<%s> in namespace %q, which is nearly Atom's", s.Local, clip(s.Space))
		}
		return s.Fail("%s; want an Atom Feed Document, with root {%s}feed", what, Namespace)
	}
	var err error
	r.prologue, r.epilogue, err = s.Frame()
	return err
}

// notice makes a Problem of a defect that the scanner has tolerated.
func (r *Reader) notice(n strictxml.Notice) {
	rule := ruleBase
	if n.About == strictxml.AboutCharset {
		rule = ruleCharset
	}
	r.problem(Problem{Rule: rule, Line: n.Line, Column: n.Column, Found: n.Found, Expected: n.Expected})
}

// advance reads the metadata of the feed until the next entry starts or the document
// has ended.
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
		if s.Space == Namespace && s.Local == "entry" || s.Space == TombstonesNamespace && s.Local == "deleted-entry" || misplaced(s.Space, s.Local) {
			r.begun = true
			r.from = s.Start
			s.Keep(s.Start)
			return nil
		}
		if err := r.feedElement(); err != nil {
			return err
		}
	}
}

// misplaced reports whether an element is an entry in no namespace, or a deletion in none or in that
// of Atom, as programs write them that leave the namespace out. To pass over it would make its record
// absent.
func misplaced(space, local string) bool {
	return space == "" && local == "entry" || (space == "" || space == Namespace) && local == "deleted-entry"
}

// feedElement reads one child of the feed that is no entry.
func (r *Reader) feedElement() error {
	s := r.scan
	line, column := s.Line, s.Column
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Line: line, Column: column, Found: found, Expected: expected})
	}
	if r.o.Strict && s.Space == Namespace {
		r.strictElement(&r.seen.once, "", ruleFeed)
	}
	var err error
	switch {
	case s.Space == HistoryNamespace && s.Local == "archive":
		r.feed.Archive = true
	case s.Space == HistoryNamespace && s.Local == "complete":
		r.feed.Complete = true
	case IsTotalResults(s.Space, s.Local):
		var text string
		text, _, err = r.characters()
		r.feed.TotalResults = TotalResults(text)
		return err
	case s.Space != Namespace:
	case s.Local == "generator":
		r.feed.Generator, err = r.textConstruct()
		return err
	case s.Local == "link":
		return r.feedLink(report)
	case s.Local == "id":
		var id string
		if id, _, err = r.characters(); err != nil {
			return err
		}
		if r.seen.feedIDs++; r.seen.feedIDs > 1 {
			report(ruleFeed, "a second atom:id", "one; the first is used")
			return nil
		}
		if len(id) > strictxml.MaxReference { // every cursor of the walk stores it
			report(ruleID, fmt.Sprintf("an id of %d bytes", len(id)), fmt.Sprintf("at most %d; it is ignored", strictxml.MaxReference))
			return nil
		}
		r.feed.ID = id
		r.checkID(id, report)
		return nil
	case s.Local == "title":
		var title string
		language := s.Lang()
		if title, err = r.textConstruct(); err != nil {
			return err
		}
		if r.seen.feedTitles++; r.seen.feedTitles > 1 {
			report(ruleFeed, "a second atom:title", "one; the first is used")
			return nil
		}
		r.feed.Title, r.feed.Language = title, language
		return nil
	case s.Local == "updated":
		var raw string
		if raw, _, err = r.characters(); err != nil {
			return err
		}
		if r.seen.feedUpdates++; r.seen.feedUpdates > 1 {
			report(ruleFeed, "a second atom:updated", "one; the first is used")
			return nil
		}
		t, bad := r.date(raw, report)
		if bad != nil {
			report(ruleDate, strconv.Quote(clip(raw)), bad.Error())
		}
		r.feed.Updated, r.feed.UpdatedRaw = t, raw
		return nil
	default:
		r.seen.author = r.seen.author || s.Local == "author"
		if ok, err := r.metadata(&r.feed.Metadata); ok {
			return err
		}
	}
	return r.pass()
}

// pass passes over an element that the reader does not know. An entry inside of it is reported:
// its record is not absent.
func (r *Reader) pass() error {
	s := r.scan
	for depth := s.Depth(); s.Depth() >= depth; {
		if s.Kind == strictxml.StartTag && (s.Space == Namespace && s.Local == "entry" || s.Space == TombstonesNamespace && s.Local == "deleted-entry") {
			r.seen.nested++
			r.problem(Problem{Rule: ruleEntry, Line: s.Line, Column: s.Column, Found: "<" + s.Local + "> inside of another element", Expected: "an entry right in the feed; it is left out"})
		}
		if err := s.Next(); err != nil {
			return err
		}
	}
	return nil
}

type reporter func(rule, found, expected string)

func (r *Reader) feedLink(report reporter) error {
	l, ok, err := r.link(report)
	if err != nil || !ok {
		return err
	}
	if len(r.feed.Links) < maxLinks {
		r.feed.Links = append(r.feed.Links, l)
	}
	var to *string
	switch l.Rel {
	case relPrevArchive:
		to = &r.feed.PrevArchive
		if *to != "" && *to != l.Href {
			report(ruleArchive, "a second prev-archive link to "+clip(l.Href), "one; the first is used")
		}
	case relNextArchive:
		to = &r.feed.NextArchive
	case relCurrent:
		to = &r.feed.Current
	case relSelf:
		to = &r.feed.Self
	default:
		return nil
	}
	if *to == "" {
		*to = l.Href
	}
	return nil
}

// finish reports the broken rules that show only at the end of the document.
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
	if r.o.Strict {
		r.strictFeed()
	}
}

func (r *Reader) notLater() string {
	return "not later than feed/updated " + clip(r.feed.UpdatedRaw)
}

func (r *Reader) problem(p Problem) {
	if r.o.Report != nil {
		p.URL = r.o.URL
		r.o.Report(p)
	}
}

// metadata reads the current child of a feed, an entry or an atom:source, if it is
// one of these; ok is false when it is not, and nothing was read.
func (r *Reader) metadata(m *Metadata) (ok bool, err error) {
	s := r.scan
	switch s.Local {
	case "author":
		return true, r.person(&m.Authors)
	case "contributor":
		return true, r.person(&m.Contributors)
	case "rights":
		language := s.Lang()
		text, err := r.textConstruct()
		if m.Rights.Value == "" && text != "" {
			m.Rights = Text{text, language}
		}
		return true, err
	case "category":
		var c Category
		c.Term, _ = s.Attr("", "term")
		c.Scheme, _ = s.Attr("", "scheme")
		c.Label, _ = s.Attr("", "label")
		if c.Term = strictxml.Trim(c.Term); c.Term != "" && len(m.Categories) <= maxCategories {
			c.Scheme = strictxml.Trim(c.Scheme)
			m.Categories = append(m.Categories, c)
		}
		return true, s.Skip()
	}
	return false, nil
}

// person reads a Person construct. One without a name has the address instead.
func (r *Reader) person(to *[]Person) error {
	var p Person
	var names, uris, emails int
	s := r.scan
	line, column := s.Line, s.Column
	if err := s.Children(func() (err error) {
		if s.Space == Namespace {
			switch s.Local {
			case "name":
				names++
			case "uri":
				uris++
			case "email":
				emails++
			}
		}
		switch {
		case s.Space == Namespace && s.Local == "name" && p.Name == "":
			p.Name, err = r.textConstruct()
		case s.Space == Namespace && s.Local == "uri" && p.URI == "":
			p.URI, err = r.reference()
		case s.Space == Namespace && s.Local == "email" && p.Email == "":
			p.Email, err = r.textConstruct()
		default:
			err = s.Skip()
		}
		return err
	}); err != nil {
		return err
	}
	if r.o.Strict {
		r.strictPerson(&p, names, uris, emails, line, column)
	}
	if p.Name == "" {
		p.Name = p.Email
	}
	if p.Name == "" {
		p.Name = p.URI
	}
	if p.Name != "" && len(*to) <= maxPersons {
		*to = append(*to, p)
	}
	return nil
}

// reference reads an IRI reference that is the text of an element.
func (r *Reader) reference() (string, error) {
	base := r.scan.Base()
	text, _, err := r.characters()
	if err != nil {
		return "", err
	}
	resolved, bad := r.scan.Resolve(base, text)
	if bad != nil {
		return "", nil
	}
	return resolved, nil
}
