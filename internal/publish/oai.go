package publish

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"iter"
	"maps"
	"mime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/translate"
)

// RepositoryLog is the event log as a Repository reads it; eventlog.Log is one.
type RepositoryLog interface {
	// Set returns one set; the error is fs.ErrNotExist when there is none.
	Set(ctx context.Context, name string) (event.Set, error)
	// Record returns the last event of the record whose key it is, see event.Key;
	// fs.ErrNotExist when the set has never had it.
	Record(ctx context.Context, set, key string) (*event.Event, error)
	// Events yields the set's events in a range, in order.
	Events(ctx context.Context, set string, r event.Range) iter.Seq2[*event.Event, error]
	// Newest calls do for the events of a range that are the last ones of their records,
	// until do returns false. It looks at so many events at most, and returns the Seq of
	// the last one, r.Upto when these were all.
	Newest(ctx context.Context, set string, r event.Range, most int, do func(*event.Event) bool) (event.Seq, error)
	// FirstAt returns the first event that was observed at a time or later, 0 for none.
	FirstAt(ctx context.Context, set string, at event.Micros) (event.Seq, error)
	// Settled returns a time that every event which cannot be read yet is observed at or
	// after; 0 when it is not known.
	Settled() event.Micros
}

// RepositoryOptions are what a Repository needs. Log, BaseURL, Set and AdminEmail must be
// given.
type RepositoryOptions struct {
	Log     RepositoryLog
	BaseURL string // what all published URLs begin with
	Set     string
	// Content opens a content of a set in mode mirror by its SHA-256.
	Content func(ctx context.Context, sum [32]byte) (io.ReadSeekCloser, int64, error)
	// SmallContents returns those contents that are small, by their SHA-256, and leaves out
	// the others; nil opens all of them one by one.
	SmallContents func(ctx context.Context, sums [][32]byte) (map[[32]byte][]byte, error)
	// Lost is called with the error of a content that cannot be read, and reports whether the
	// error concerns that record alone: a list of what has changed then leaves the record out.
	// With nil no error does.
	Lost       func(identifier string, err error) bool
	AdminEmail string
	// Sources are those of the set, in order. Where there are several, the records of each
	// are a set of the repository.
	Sources []RepositorySource
	// Formats are the formats of representations besides those that they were harvested in over
	// OAI-PMH; only a set in mode mirror offers any.
	Formats []RepositoryFormat
	// Known returns the formats of the repositories that the set is harvested from. They have
	// the schemas of formats that are not in Formats; nil: none.
	Known func(ctx context.Context) ([]oaipmh.Format, error)
	// Page is how many records one answer has; 0 is 100.
	Page int
}

// RepositorySource is a Source of a set.
type RepositorySource struct {
	URL  string // as events have it
	Name string // for people; "" is "Source" and its number
}

// RepositoryFormat is a format, and which representations are in it: those whose profile is the
// namespace, and those of the media type that have no profile.
type RepositoryFormat struct {
	oaipmh.Format
	Type string // "" is none
}

// Repository is one set as an OAI-PMH repository. Its methods may be called from any
// goroutine.
//
// A list is in the order of the log, and pinned when it begins: it is a scan of the set's
// events up to the last one, without those that are not the last of their records. A record
// that changes meanwhile is passed over, and has a datestamp no earlier than the list's
// responseDate (see moment). The record that a resumptionToken leads to is listed nevertheless
// where no other is left, so that no answer is empty.
type Repository struct {
	o       RepositoryOptions
	base    string // the repository's own base URL
	sources []string
	index   repositoryIndex
	// large limits how much of long contents is in memory at a time: it has a place for each
	// largeContent bytes. Whose turn it is takes all of its places before another does.
	large, turn chan struct{}
	// scanning limits how many answers look at more than scanEvents at a time.
	scanning chan struct{}
	// scanStep is how many events are looked at in one go, while one of the log's
	// connections is in use; after scanEvents an answer ends with what it has.
	scanStep, scanEvents int
	// blockEvents is how many events one block of the index has.
	blockEvents event.Seq
}

const (
	repositoryPage = 100
	// pageBytes is how long the records of one answer are at most, but for a single one.
	pageBytes = 5_000_000
	// largeContent is how long a content is that counts among those of which largeBytes are in
	// memory at a time.
	largeContent, largeBytes = 1 << 20, 256 << 20
	// longScans is how many answers at a time may look at many events.
	longScans = 2
)

// NewRepository returns a Repository. It reads nothing.
func NewRepository(o RepositoryOptions) *Repository {
	o.Page = cmp.Or(o.Page, repositoryPage)
	o.BaseURL = strings.TrimRight(o.BaseURL, "/")
	r := &Repository{o: o, base: RepositoryURL(o.BaseURL, o.Set), large: make(chan struct{}, largeBytes/largeContent), turn: make(chan struct{}, 1), scanning: make(chan struct{}, longScans), scanStep: 5_000, scanEvents: 50_000, blockEvents: 1 << 15}
	for _, s := range o.Sources {
		r.sources = append(r.sources, s.URL)
	}
	return r
}

// RepositoryURL returns the base URL of a set's repository.
func RepositoryURL(base, set string) string {
	return strings.TrimRight(base, "/") + setPath(set, "oai")
}

// Now is the responseDate of an answer that is no list: the present as far as it is
// settled, so that a harvester which asks from then on misses nothing (see moment). While the
// set cannot be read it is still earlier.
func (r *Repository) Now(ctx context.Context) time.Time {
	settled := r.o.Log.Settled()
	set, _ := r.o.Log.Set(ctx, r.o.Set) // after an error it is the zero Set, which has nothing new
	return moment(settled, &set)
}

// Identity implements oaipmh.Repository.
func (r *Repository) Identity(ctx context.Context) (*oaipmh.Identity, error) {
	set, err := r.o.Log.Set(ctx, r.o.Set)
	if err != nil {
		return nil, err
	}
	earliest := set.Created
	for e, err := range r.o.Log.Events(ctx, r.o.Set, event.Range{Upto: set.Last}) {
		if err != nil {
			return nil, err
		}
		earliest = min(earliest, e.Observed) // in a new epoch the set is created anew, and its events are not
		break
	}
	return &oaipmh.Identity{Name: cmp.Or(set.Title, set.Name), BaseURL: r.base, AdminEmails: []string{r.o.AdminEmail}, Earliest: earliest.Time(),
		Deleted: oaipmh.DeletedPersistent, Granularity: oaipmh.Second, Compression: []string{"gzip"}}, nil
}

// dublinCore is the format that every record has.
func dublinCore() oaipmh.Format {
	return oaipmh.Format{Prefix: oaipmh.DC, Schema: "http://www.openarchives.org/OAI/2.0/oai_dc.xsd", Namespace: oaipmh.DCNamespace}
}

// Formats implements oaipmh.Repository.
func (r *Repository) Formats(ctx context.Context, identifier string) ([]oaipmh.Format, error) {
	formats, err := r.formats(ctx, identifier)
	if err != nil || r.o.Known == nil || !slices.ContainsFunc(formats, func(f oaipmh.Format) bool { return f.Schema == "" }) {
		return formats, err
	}
	known, err := r.o.Known(ctx)
	if err != nil {
		return nil, err
	}
	for i := range formats {
		f := &formats[i]
		for j := range known {
			// What a Source states may be no URL, which no answer can have.
			if f.Schema == "" && known[j].Namespace == f.Namespace && oaipmh.CanBeIdentifier(known[j].Schema) {
				f.Schema = known[j].Schema
			}
		}
	}
	return formats, nil
}

// formats returns those of an item, or of all items, as far as they are known.
func (r *Repository) formats(ctx context.Context, identifier string) ([]oaipmh.Format, error) {
	set, err := r.o.Log.Set(ctx, r.o.Set)
	if err != nil {
		return nil, err
	}
	formats := []oaipmh.Format{dublinCore()}
	if identifier == "" {
		if set.Content != event.Mirror {
			return formats, nil
		}
		for i := range r.o.Formats {
			if r.o.Formats[i].Prefix != oaipmh.DC {
				formats = append(formats, r.o.Formats[i].Format)
			}
		}
		if err := r.update(ctx, &set); err != nil {
			return nil, err
		}
		return append(formats, r.index.formatsBut(formats)...), nil
	}
	e, err := r.event(ctx, &set, identifier)
	if err != nil {
		return nil, err
	}
	if !e.Live() {
		return nil, &oaipmh.Error{Code: oaipmh.NoMetadataFormats, Text: "this record was deleted"}
	}
	for i := range e.Representations {
		f, _ := r.formatOf(&set, e, i)
		if f.Prefix != "" && !slices.ContainsFunc(formats, func(g oaipmh.Format) bool { return g.Prefix == f.Prefix }) {
			formats = append(formats, f)
		}
	}
	return formats, nil
}

// formatOf returns the format in which a representation is disseminated; its Prefix is "" when
// there is none. stated: its namespace is known, and not only its media type.
func (r *Repository) formatOf(set *event.Set, e *event.Event, i int) (f oaipmh.Format, stated bool) {
	if set.Content != event.Mirror {
		return f, false
	}
	prefix, namespace := translate.FormatOf(e, i)
	for j := range r.o.Formats {
		f := &r.o.Formats[j]
		if namespace == f.Namespace || namespace == "" && f.Type != "" && sameType(f.Type, e.Representations[i].Type) {
			return f.Format, namespace != ""
		}
	}
	switch {
	case namespace == oaipmh.DCNamespace && oaipmh.CanBePrefix(prefix):
		return dublinCore(), true
	case prefix == oaipmh.DC, !oaipmh.CanBePrefix(prefix), !oaipmh.CanBeIdentifier(namespace):
		return f, false
	}
	return oaipmh.Format{Prefix: prefix, Namespace: namespace}, true
}

func sameType(a, b string) bool {
	a, _, errA := mime.ParseMediaType(a)
	b, _, errB := mime.ParseMediaType(b)
	return errA == nil && errB == nil && a == b
}

// event returns the last event of the record that an OAI identifier names.
func (r *Repository) event(ctx context.Context, set *event.Set, identifier string) (*event.Event, error) {
	record := r.encoder(set).Record(identifier)
	e, err := r.o.Log.Record(ctx, set.Name, event.Key(record))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && e.Record != record:
		return nil, &oaipmh.Error{Code: oaipmh.IDDoesNotExist, Text: "this repository has never had such a record"}
	case err != nil:
		return nil, err
	}
	return e, nil
}

func (r *Repository) encoder(set *event.Set) *translate.OAIEncoder {
	return translate.NewOAIEncoder(r.o.BaseURL, set, r.sources)
}

// Record implements oaipmh.Repository.
func (r *Repository) Record(ctx context.Context, identifier, prefix string) (*oaipmh.Record, error) {
	set, err := r.o.Log.Set(ctx, r.o.Set)
	if err != nil {
		return nil, err
	}
	e, err := r.event(ctx, &set, identifier)
	if err != nil {
		return nil, err
	}
	if !e.Live() {
		return r.encoder(&set).Encode(e, nil), r.knownFormat(ctx, &set, prefix)
	}
	p := r.page(&set, prefix)
	it := p.item(e, p.own(e))
	if it.own.length > largeContent {
		free, err := p.room(ctx, it.own.length)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, free) // it is in memory until it has been written
	}
	if err := p.fill(ctx, &it); err != nil {
		return nil, err
	}
	if it.lacks {
		return nil, &oaipmh.Error{Code: oaipmh.CannotDisseminateFormat, Text: fmt.Sprintf("this record is not available as %s: ask with verb=ListMetadataFormats", prefix)}
	}
	return it.rec, nil
}

// knownFormat returns an error for a format that the repository does not have. While the set
// has no records it accepts any.
func (r *Repository) knownFormat(ctx context.Context, set *event.Set, prefix string) error {
	if prefix == oaipmh.DC {
		return nil
	}
	if set.Content == event.Mirror {
		if set.Live == 0 || slices.ContainsFunc(r.o.Formats, func(f RepositoryFormat) bool { return f.Prefix == prefix }) {
			return nil
		}
		if err := r.update(ctx, set); err != nil {
			return err
		}
		if r.index.hasFormat(prefix) {
			return nil
		}
	}
	return &oaipmh.Error{Code: oaipmh.CannotDisseminateFormat, Text: "this repository has no format " + prefix + ": ask with verb=ListMetadataFormats"}
}

// position is where a list continues.
type position struct {
	log  uint64 // logID of the log that the numbers are of
	next event.Seq
	end  event.Seq // the pin: no later event counts
	date int64     // responseDate of the first answer, in seconds since 1970
	told int64     // records so far
}

// logID distinguishes the numbers of a log from those of another one, after the data folder was
// made anew or events were lost.
func logID(set *event.Set) uint64 {
	h := fnv.New32a()
	fmt.Fprint(h, set.Feed, set.Created)
	return uint64(h.Sum32())
}

func (p *position) bytes() []byte {
	var b []byte
	for _, n := range [...]uint64{p.log, uint64(p.next), uint64(p.end - p.next), uint64(p.date), uint64(p.told)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// parsePosition reads a position in the log of a set.
func parsePosition(b []byte, set *event.Set) (position, error) {
	var n [5]uint64
	ok := true
	for i := range n {
		size := 0
		if n[i], size = binary.Uvarint(b); size <= 0 || n[i] > 1<<48 {
			ok = false
			break
		}
		b = b[size:]
	}
	p := position{n[0], event.Seq(n[1]), event.Seq(n[1] + n[2]), int64(n[3]), int64(n[4])}
	if !ok || len(b) > 0 || p.log != logID(set) || p.next < 1 || p.end > set.Last || time.Unix(p.date, 0).UTC().Year() > 9999 {
		return p, &oaipmh.Error{Code: oaipmh.BadResumptionToken, Text: "the list that the resumptionToken goes on with is not there any more: ask for it anew"}
	}
	return p, nil
}

// moment is the responseDate of a list that is pinned to a state of the set: the second of the
// last moment up to which the list has all events. Events that are not in the list have no
// earlier datestamp. Of that second itself the list may have a part only; a harvester that asks
// from then on gets that second again (2.7.1: from is inclusive).
//
// settled must have been read before set: an event that set does not show is then
// observed at settled or later, and in any case after the set's newest event.
func moment(settled event.Micros, set *event.Set) time.Time {
	return (max(settled, set.Newest+1) - 1).Time().Truncate(time.Second)
}

// List implements oaipmh.Repository.
func (r *Repository) List(ctx context.Context, q *oaipmh.Query) (*oaipmh.List, error) {
	settled := r.o.Log.Settled()
	set, err := r.o.Log.Set(ctx, r.o.Set)
	if err != nil {
		return nil, err
	}
	if err := r.knownFormat(ctx, &set, q.Prefix); err != nil {
		return nil, err
	}
	p := r.page(&set, q.Prefix)
	p.spec, p.headers, p.changes = q.Set, q.Verb == oaipmh.ListIdentifiers, !q.From.IsZero() && q.Until.IsZero()
	at := position{log: logID(&set), next: 1, end: set.Last, date: moment(settled, &set).Unix()}
	if q.Set != "" || q.Prefix != oaipmh.DC {
		if err := r.update(ctx, &set); err != nil {
			return nil, err
		}
		if q.Set != "" && q.Position == nil && set.Live > 0 && len(r.index.setsAfter("", 1)) == 0 {
			return nil, &oaipmh.Error{Code: oaipmh.NoSetHierarchy, Text: "this repository has no sets"}
		}
		p.blocks = r.index.blocksOf(q.Set, q.Prefix)
	}
	if q.Position != nil {
		at, err = parsePosition(q.Position, &set)
	} else {
		if q.From.IsZero() {
			if err := requireComplete(&set, setPath(set.Name, "oai")); err != nil {
				return nil, err
			}
		}
		err = r.bound(ctx, q, &set, &at)
	}
	if err != nil {
		return nil, err
	}
	begin := at.next
	if err := p.gather(ctx, &at); err != nil {
		return nil, err
	}
	if q.Position != nil && len(p.items) == 0 {
		if err := p.pending(ctx, begin); err != nil {
			return nil, err
		}
	}
	l := &oaipmh.List{Date: time.Unix(at.date, 0).UTC(), Cursor: at.told, Next: func() []byte { return nil }}
	if p.more {
		next := at
		next.told += int64(len(p.items))
		l.Next = func() []byte { return next.bytes() }
	}
	l.Records = func(yield func(*oaipmh.Record, error) bool) { p.each(ctx, yield) }
	return l, nil
}

// bound narrows the range of a list to what was observed between from and until.
func (r *Repository) bound(ctx context.Context, q *oaipmh.Query, set *event.Set, at *position) error {
	if !q.From.IsZero() {
		first, err := r.o.Log.FirstAt(ctx, set.Name, event.MicrosOf(q.From))
		if err != nil {
			return err
		}
		if first == 0 {
			at.end = 0
		}
		at.next = max(at.next, first)
	}
	if !q.Until.IsZero() {
		after, err := r.o.Log.FirstAt(ctx, set.Name, event.MicrosOf(q.Until.Add(time.Second)))
		if err != nil {
			return err
		}
		if after != 0 {
			at.end = min(at.end, after-1)
		}
	}
	return nil
}

// repositoryPageOf is one answer's part of a list while it is gathered.
type repositoryPageOf struct {
	*Repository
	set     *event.Set
	enc     *translate.OAIEncoder
	prefix  string
	spec    string // a setSpec, "" is all
	headers bool   // nothing but headers is wanted
	changes bool   // what has changed is wanted, and absence from the list means nothing
	blocks  blocks // of the log that have such records; nil may be all
	// metadata reads the contents.
	metadata oaipmh.MetadataReader
	items    []repositoryItem
	bytes    int64
	more     bool // there is a further record, at the position's next
}

// repositoryItem is a record of an answer.
type repositoryItem struct {
	rec *oaipmh.Record
	// own has the content that is the metadata, and which is read when it is its turn; it
	// is zero where there is none, or where that is made.
	own ownContent
	doc []byte    // the content, where it was read with others
	seq event.Seq // of the event
	// lacks: the record is not in the format, and is answered as deleted.
	lacks bool
}

// ownContent is the content of a representation that is in a format.
type ownContent struct {
	there  bool
	sum    [32]byte
	length int64
	kind   string // media type
	// namespace and name are those that its element must have; "" is any.
	namespace, name string
}

func (r *Repository) page(set *event.Set, prefix string) *repositoryPageOf {
	return &repositoryPageOf{Repository: r, set: set, enc: r.encoder(set), prefix: prefix}
}

// own returns the content of a record in the format, the preferred one first.
func (p *repositoryPageOf) own(e *event.Event) (c ownContent) {
	if p.set.Content != event.Mirror {
		return c
	}
	for n := range e.Representations {
		i := (e.Preferred + n) % len(e.Representations)
		rep := &e.Representations[i]
		f, stated := p.formatOf(p.set, e, i)
		if f.Prefix != p.prefix {
			continue
		}
		digits := rep.SHA256()
		if size, err := hex.Decode(c.sum[:], []byte(digits)); err != nil || size != len(c.sum) {
			continue
		}
		c.there, c.length, c.kind = true, max(rep.Length, 0), rep.Type
		if !stated { // nothing but its media type is known
			c.namespace = f.Namespace
		}
		if p.prefix == oaipmh.DC {
			c.namespace, c.name = oaipmh.DCNamespace, "dc"
		}
		return c
	}
	return c
}

// item returns a record of an answer, still without its content.
func (p *repositoryPageOf) item(e *event.Event, own ownContent) repositoryItem {
	it := repositoryItem{seq: e.Seq}
	switch {
	case e.Live() && !own.there && p.prefix != oaipmh.DC:
		it.rec, it.lacks = deletedRecord(p.enc.Header(e)), true
	case p.headers:
		it.rec = &oaipmh.Record{Header: p.enc.Header(e)}
		if p.prefix != oaipmh.DC { // the content decides whether it is in the format
			it.own = own
		}
	case own.there:
		it.rec, it.own = p.enc.Encode(e, []byte{}), own
	default: // made, or a deletion
		it.rec = p.enc.Encode(e, nil)
	}
	return it
}

func deletedRecord(h oaipmh.Header) *oaipmh.Record {
	h.Deleted = true
	return &oaipmh.Record{Header: h}
}

// add adds the record of an event to the page. A live record that is not in this format is
// answered as deleted if it may have been in it before, and otherwise left out. add returns
// false, and sets more, when the page is full and the record is for the next one.
func (p *repositoryPageOf) add(e *event.Event) bool {
	if p.spec != "" && !slices.ContainsFunc(p.enc.SetSpecs(e), func(spec string) bool { return within(spec, p.spec) }) {
		return true
	}
	var own ownContent
	if e.Live() {
		own = p.own(e)
		if !own.there && p.prefix != oaipmh.DC && !e.Again {
			return true
		}
	}
	if len(p.items) < p.o.Page {
		it := p.item(e, own)
		size := own.length + it.size()
		if len(p.items) == 0 || p.bytes+size <= pageBytes {
			p.items, p.bytes = append(p.items, it), p.bytes+size
			return true
		}
	}
	p.more = true
	return false
}

// size is about how many bytes the record has in the answer besides its content.
func (it *repositoryItem) size() int64 {
	const perSet = len("<setSpec></setSpec>")
	n := len(it.rec.Identifier) + len(it.rec.Metadata)
	for _, spec := range it.rec.Sets {
		n += perSet + len(spec)
	}
	return int64(n)
}

// within reports whether a set is another one, or below it (2.6).
func within(spec, of string) bool {
	rest, ok := strings.CutPrefix(spec, of)
	return ok && (rest == "" || rest[0] == ':')
}

// pending adds the record that the position leads to, although it has changed since the
// resumptionToken was issued: no other one is left.
func (p *repositoryPageOf) pending(ctx context.Context, next event.Seq) error {
	var record string
	for e, err := range p.o.Log.Events(ctx, p.set.Name, event.Range{After: next - 1, Upto: next}) {
		if err != nil {
			return err
		}
		record = e.Record
	}
	if record == "" {
		return nil
	}
	e, err := p.o.Log.Record(ctx, p.set.Name, event.Key(record))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case e.Seq == next:
		return nil
	}
	var own ownContent
	if e.Live() {
		own = p.own(e)
	}
	p.items, p.bytes = append(p.items, p.item(e, own)), own.length
	return nil
}

// gather fills the page, and moves next to where the next one begins.
func (p *repositoryPageOf) gather(ctx context.Context, at *position) error {
	last := at.next
	long := false
	for scanned := 0; at.next <= at.end && !p.more; scanned += p.scanStep {
		if n := len(p.items); scanned >= p.scanEvents && n > 1 {
			// Enough for one answer. The last record begins the next one, which so is
			// not empty.
			p.items, p.more, at.next = p.items[:n-1], true, last
			return nil
		}
		if scanned >= p.scanEvents && !long {
			select {
			case p.scanning <- struct{}{}:
				defer func() { <-p.scanning }()
				long = true
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(indexTime):
				return &NotReadyError{setPath(p.set.Name, "oai"), indexWait, ""}
			}
		}
		if p.blocks != nil {
			n, ok := p.blocks.from(at.next / p.blockEvents)
			if at.next = max(at.next, n*p.blockEvents); !ok || at.next > at.end {
				return nil
			}
		}
		looked, err := p.o.Log.Newest(ctx, p.set.Name, event.Range{After: at.next - 1, Upto: at.end}, p.scanStep, func(e *event.Event) bool {
			n := len(p.items)
			if !p.add(e) {
				at.next = e.Seq
				return false
			}
			if len(p.items) > n {
				last = e.Seq
			}
			return true
		})
		if err != nil {
			return err
		}
		if !p.more {
			at.next = looked + 1
		}
	}
	return nil
}

// readAhead bounds how many contents, of how many bytes together, are read at once.
const readAhead, readAheadBytes = 32, 256 << 10

// readSmall reads the contents of the first items that have one, as far as they are small.
func (p *repositoryPageOf) readSmall(ctx context.Context, items []repositoryItem) error {
	if p.o.SmallContents == nil {
		return nil
	}
	var sums [][32]byte
	var of []*repositoryItem
	for i, bytes := 0, int64(0); i < len(items) && len(sums) < readAhead; i++ {
		it := &items[i]
		if bytes += it.own.length; bytes > readAheadBytes {
			break
		}
		if it.own.there {
			sums, of = append(sums, it.own.sum), append(of, it)
		}
	}
	if len(sums) == 0 {
		return nil
	}
	small, err := p.o.SmallContents(ctx, sums)
	if err != nil {
		return err
	}
	for i, it := range of {
		it.doc = small[sums[i]]
	}
	return nil
}

// each yields the records of the page, with their contents. A long content is in memory only
// while its record is written. For headers it reads the contents as well, so that a list of
// headers and one of records agree on which are deleted.
func (p *repositoryPageOf) each(ctx context.Context, yield func(*oaipmh.Record, error) bool) {
	var lost error
	passed, together := 0, true
	for i := range p.items {
		it := &p.items[i]
		if it.own.there && it.doc == nil && together { // else one by one, to see which fails
			together = p.readSmall(ctx, p.items[i:]) == nil
		}
		switch next, err := p.pass(ctx, it, yield); {
		case err != nil:
			lost = err
		case !next:
			return
		default:
			passed++
		}
		*it = repositoryItem{}
	}
	if passed == 0 && lost != nil { // no answer is empty
		yield(nil, lost)
	}
}

// pass yields a record; next reports whether more are wanted. lost is the error of a content
// without which the record was not yielded. A header is yielded without it.
func (p *repositoryPageOf) pass(ctx context.Context, it *repositoryItem, yield func(*oaipmh.Record, error) bool) (next bool, lost error) {
	if it.own.length > largeContent {
		free, err := p.room(ctx, it.own.length)
		if err != nil {
			return yield(nil, err), nil
		}
		defer free()
	}
	err := p.fill(ctx, it)
	if err != nil && (p.headers || p.changes) && p.o.Lost != nil && p.o.Lost(it.rec.Identifier, err) {
		if !p.headers {
			return true, err
		}
		err = nil
	}
	return yield(it.rec, err) && err == nil, nil
}

// room waits until a long content may be in memory, which it may until free is called. The
// longest ones get all the room that there is.
func (r *Repository) room(ctx context.Context, length int64) (free func(), err error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	taken := 0
	free = func() {
		for range taken {
			<-r.large
		}
	}
	for most := min((length-1)/largeContent+1, largeBytes/largeContent); int64(taken) < most; taken++ {
		select {
		case r.large <- struct{}{}:
		case <-ctx.Done():
			free()
			return nil, ctx.Err()
		}
	}
	return free, nil
}

// fill reads the content of a record. If that cannot be metadata, the metadata is made from the
// event (oai_dc), or the record is answered as deleted (other formats).
func (p *repositoryPageOf) fill(ctx context.Context, it *repositoryItem) error {
	if !it.own.there {
		return nil
	}
	if it.doc == nil {
		body, size, err := p.o.Content(ctx, it.own.sum)
		if err != nil {
			return fmt.Errorf("record %q of set %s: its content cannot be served: %w; run bridge verify", it.rec.Identifier, p.o.Set, err)
		}
		it.doc = make([]byte, size)
		_, err = io.ReadFull(body, it.doc)
		if err = errors.Join(err, body.Close()); err != nil {
			return fmt.Errorf("record %q of set %s: its content cannot be read: %w; run bridge verify", it.rec.Identifier, p.o.Set, err)
		}
	}
	own := &it.own
	element, root, err := p.metadata.Read(it.doc, own.kind)
	if err == nil && root.Space != "" && root.Space != oaipmh.Namespace && (own.namespace == "" || own.namespace == root.Space) && (own.name == "" || own.name == root.Local) {
		it.rec.Metadata, it.rec.Root = element, root
		if it.rec.Provenance != nil && own.namespace != "" { // which the event does not have
			it.rec.Provenance.MetadataNamespace = root.Space
		}
		return nil
	}
	if p.prefix != oaipmh.DC {
		it.rec, it.lacks = deletedRecord(it.rec.Header), true
		return nil
	}
	for e, err := range p.o.Log.Events(ctx, p.set.Name, event.Range{After: it.seq - 1, Upto: it.seq}) {
		if err != nil {
			return err
		}
		it.rec = p.enc.Encode(e, nil)
	}
	return nil
}

// Sets implements oaipmh.Repository.
func (r *Repository) Sets(ctx context.Context, after string, most int) ([]oaipmh.Set, error) {
	set, err := r.o.Log.Set(ctx, r.o.Set)
	if err != nil {
		return nil, err
	}
	if err := r.update(ctx, &set); err != nil {
		return nil, err
	}
	return r.index.setsAfter(after, most), nil
}

// repositoryIndex is what only all events together show: the sets and formats of the
// repository. It is built when it is first needed; after that only new events are read. A set
// or format without records stays in it until the process ends.
type repositoryIndex struct {
	mu      sync.Mutex
	log     uint64
	upto    event.Seq
	sets    map[string]repositorySet
	formats map[string]repositoryFormatAt
	lacking blocks // of records that are listed in any format: they were deleted, or have lost one
	bytes   int    // of the names of sets
	full    bool   // there are more sets than it holds
	// fullFormats: there are more formats than it holds.
	fullFormats bool
}

// repositorySet is a set of the repository and where in the log it is.
type repositorySet struct {
	name   string
	blocks blocks
}

// repositoryFormatAt is a format and where in the log it is.
type repositoryFormatAt struct {
	oaipmh.Format
	blocks blocks
}

// blocks has a bit for each block of events that may have something: a list of few
// records among many events passes over the others.
type blocks []uint64

func (b *blocks) add(n event.Seq) {
	for int(n/64) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

// from returns the first block from n on that has a bit; ok is false for none.
func (b blocks) from(n event.Seq) (_ event.Seq, ok bool) {
	for ; int(n/64) < len(b); n++ {
		if b[n/64]&(1<<(n%64)) != 0 {
			return n, true
		}
	}
	return 0, false
}

const (
	// indexedSets and indexedFormats are how many the index holds at most: any Source may state
	// as many as it likes, and one answer has all formats.
	indexedSets, indexedFormats = 20_000, 200
	// indexedBytes is how long their names may be, together. A setSpec with more colons than
	// deepest is no hierarchy: the sets that would be above it are left out.
	indexedBytes, deepest = 8 << 20, 64
	// indexTime is how long one request waits for the index, and indexWait when to ask
	// again: what was read until then is kept.
	indexTime, indexWait = 10 * time.Second, 2 * time.Second
)

// update reads into the index what the set has by now.
func (r *Repository) update(ctx context.Context, set *event.Set) error {
	x := &r.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if id := logID(set); x.log != id {
		x.log, x.upto, x.bytes, x.full, x.fullFormats = id, 0, 0, false, false
		x.sets, x.formats, x.lacking = map[string]repositorySet{}, map[string]repositoryFormatAt{}, nil
		if len(r.sources) > 1 {
			for i, s := range r.o.Sources {
				x.sets[translate.SourceSetSpec(i+1)] = repositorySet{name: cmp.Or(s.Name, fmt.Sprintf("Source %d", i+1))}
			}
		}
	}
	enc := r.encoder(set)
	for began := time.Now(); x.upto < set.Last; {
		if time.Since(began) > indexTime {
			return &NotReadyError{setPath(set.Name, "oai"), indexWait, ""}
		}
		looked, err := r.o.Log.Newest(ctx, set.Name, event.Range{After: x.upto, Upto: set.Last}, r.scanStep, func(e *event.Event) bool {
			x.add(r, set, enc, e)
			return true
		})
		if err != nil {
			return err
		}
		x.upto = looked
	}
	return nil
}

func (x *repositoryIndex) add(r *Repository, set *event.Set, enc *translate.OAIEncoder, e *event.Event) {
	block := e.Seq / r.blockEvents
	for i := range e.Representations {
		if f, _ := r.formatOf(set, e, i); f.Prefix != "" {
			x.addFormat(f, block)
		}
	}
	if prefix := translate.PrefixOf(e.Via.Href); !e.Live() && set.Content == event.Mirror && prefix != "" {
		x.addFormat(oaipmh.Format{Prefix: prefix}, block) // there may be no record in it any more
	}
	if !e.Live() || e.Again {
		x.lacking.add(block)
	}
	labels := map[string]string{}
	for _, c := range e.Categories {
		labels[translate.SetSpec(c)] = cmp.Or(c.Label, c.Term)
	}
	for _, spec := range enc.SetSpecs(e) {
		x.addSet(spec, cmp.Or(labels[spec], spec), block)
		if labels[spec] == "" || strings.Count(spec, ":") > deepest {
			continue
		}
		for i := strings.LastIndexByte(spec, ':'); i > 0; i = strings.LastIndexByte(spec[:i], ':') {
			x.addSet(spec[:i], spec[:i], block)
		}
	}
}

func (x *repositoryIndex) addFormat(f oaipmh.Format, block event.Seq) {
	at, ok := x.formats[f.Prefix]
	switch {
	case !ok && len(x.formats) >= indexedFormats:
		x.fullFormats = true
		return
	case !ok || at.Namespace == "" && f.Namespace != "":
		at.Format = oaipmh.Format{Prefix: strings.Clone(f.Prefix), Schema: f.Schema, Namespace: strings.Clone(f.Namespace)}
	}
	at.blocks.add(block)
	x.formats[at.Prefix] = at
}

func (x *repositoryIndex) addSet(spec, name string, block event.Seq) {
	s, ok := x.sets[spec]
	size := len(spec) + len(name)
	switch room := x.bytes+size <= indexedBytes; {
	case !ok && (len(x.sets) >= indexedSets || !room):
		x.full = true
		return
	case !ok:
		spec, s.name = strings.Clone(spec), strings.Clone(name)
		x.bytes += size
	case s.name == spec && name != spec && room: // known only from a set below it so far
		s.name = strings.Clone(name)
		x.bytes += size
	}
	s.blocks.add(block)
	x.sets[spec] = s
}

// blocksOf returns where records of a set in a format are, as far as is known; nil is
// anywhere.
func (x *repositoryIndex) blocksOf(spec, prefix string) blocks {
	x.mu.Lock()
	defer x.mu.Unlock()
	var b blocks
	if s, ok := x.sets[spec]; spec != "" && (ok || !x.full) {
		b = append(blocks{}, s.blocks...)
	}
	f, ok := x.formats[prefix]
	if prefix == oaipmh.DC || !ok && x.fullFormats {
		return b
	}
	in := make(blocks, max(len(f.blocks), len(x.lacking)))
	for i := range in {
		for _, of := range [...]blocks{f.blocks, x.lacking} {
			if i < len(of) {
				in[i] |= of[i]
			}
		}
		switch {
		case b == nil:
		case i < len(b):
			in[i] &= b[i]
		default:
			in[i] = 0
		}
	}
	return in
}

func (x *repositoryIndex) setsAfter(after string, most int) []oaipmh.Set {
	x.mu.Lock()
	defer x.mu.Unlock()
	specs := slices.Sorted(maps.Keys(x.sets))
	at, found := slices.BinarySearch(specs, after)
	if found {
		at++
	}
	var sets []oaipmh.Set
	for _, spec := range specs[at:min(at+most, len(specs))] {
		sets = append(sets, oaipmh.Set{Spec: spec, Name: x.sets[spec].name})
	}
	return sets
}

func (x *repositoryIndex) hasFormat(prefix string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.formats[prefix]
	return ok || x.fullFormats
}

// formatsBut returns the formats of live records in the index that are not among those.
func (x *repositoryIndex) formatsBut(known []oaipmh.Format) (out []oaipmh.Format) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, prefix := range slices.Sorted(maps.Keys(x.formats)) {
		if f := x.formats[prefix].Format; f.Namespace != "" && !slices.ContainsFunc(known, func(f oaipmh.Format) bool { return f.Prefix == prefix }) {
			out = append(out, f)
		}
	}
	return out
}
