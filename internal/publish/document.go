package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Meta has the header values of a document.
type Meta struct {
	// ContentType of the document; with gzip it is that of what is compressed.
	ContentType string
	// ETag is strong and quoted. It differs between a document and its
	// compressed form.
	ETag string
	// LastModified is given for closed documents only, in whole seconds of UTC.
	// The same URL has answered open documents before, without it, so a server
	// must answer 304 to If-Modified-Since only when both are equal: a client
	// that sends the Date of an open document instead would miss its end.
	LastModified time.Time
	// Immutable: the document will never change at this URL.
	Immutable bool
	// Permanent: it is immutable, and there while the set is published, whatever settings the
	// set gets.
	Permanent bool
	// Gzip: the bytes are compressed, to be sent with Content-Encoding.
	Gzip bool
	// Hubs are the WebSub hubs that are notified when the document changes, and Self is its
	// URL, the topic there; none, and "", where no hub is notified.
	Hubs []string
	Self string
}

// Document is a document as it was when it was requested, even if the log has grown
// since.
type Document struct {
	Meta
	open func() (io.ReadSeekCloser, int64, error)
	// write is how Write makes the document; nil where it reads what open returns.
	write func(ctx context.Context, plain, packed io.Writer) error
}

// Open returns the document's bytes and their number, and renders them first if
// need be; the context is the one that Document was called with. A document
// that is a file is an *os.File, which a server can pass to sendfile.
func (d *Document) Open() (body io.ReadSeekCloser, size int64, err error) { return d.open() }

// Write writes a document that was requested without gzip to plain, and compressed to
// packed unless that is nil, in one pass over the log. What has to be rendered for it
// does not go into the cache. After an error both hold a part of a document.
func (d *Document) Write(ctx context.Context, plain, packed io.Writer) error {
	if d.write != nil {
		return d.write(ctx, plain, packed)
	}
	body, _, err := d.open()
	if err != nil {
		return err
	}
	defer body.Close()
	return writeBoth(plain, packed, func(w io.Writer) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// writeBoth passes what write writes to plain and, compressed, to packed, which may be
// nil.
func writeBoth(plain, packed io.Writer, write func(io.Writer) error) error {
	if packed == nil {
		return write(plain)
	}
	return compress(packed, func(w io.Writer) error { return write(io.MultiWriter(plain, w)) })
}

// Document returns the document at a path that begins with a slash and follows
// the base URL, compressed if gzip is set. The error is ErrNotFound, a
// *NotReadyError, a *TooManyError (which Document.Open may return too), or a fault
// of the log or the disk.
func (p *Publisher) Document(ctx context.Context, path string, gzip bool) (*Document, error) {
	switch path {
	case "/.well-known/resourcesync", "/robots.txt":
		sets, err := p.log.Sets(ctx)
		if err != nil {
			return nil, err
		}
		for _, it := range PlanSite(sets) {
			if it.Path == path {
				return p.document(ctx, it, gzip), nil
			}
		}
	}
	rest, ok := strings.CutPrefix(path, "/sets/")
	if !ok {
		return nil, ErrNotFound
	}
	name, rest, ok := strings.Cut(rest, "/")
	if !ok || rest == "" {
		return nil, ErrNotFound
	}
	if numbers, ok := strings.CutPrefix(rest, "resourcelist/"); ok {
		return p.partDocument(ctx, name, numbers, gzip)
	}
	if rest == "resourcelist.xml" {
		return p.resourceList(ctx, name, gzip)
	}
	if strings.HasPrefix(rest, "resourcedump/") || strings.HasPrefix(rest, "changedump/") {
		return p.dumpFile(ctx, name, rest, gzip)
	}
	if numbers, ok := strings.CutPrefix(rest, string(resourcesync.ResourceListArchive)+"/"); ok {
		return p.keptDocument(ctx, name, numbers, gzip)
	}
	it, err := p.item(ctx, name, rest)
	if err != nil {
		return nil, err
	}
	if it.Kind == Complete {
		st, err := p.state(ctx, name)
		if err != nil {
			return nil, err
		}
		return p.completeDocument(ctx, st, it, gzip)
	}
	return p.document(ctx, it, gzip), nil
}

// item finds a document of the set that is not a Resource List.
func (p *Publisher) item(ctx context.Context, name, rest string) (Item, error) {
	st, err := p.state(ctx, name)
	if err != nil {
		return Item{}, err
	}
	switch rest {
	case ".well-known/resourcesync":
		return setDescription(st.fixed), nil
	}
	if list, ok := strings.CutPrefix(rest, "changelist/"); ok {
		return p.changeList(ctx, st, fileNumber(list, ".xml")) // 0 is no segment
	}
	set, segments, err := p.segments(ctx, st)
	if err != nil {
		return Item{}, err
	}
	if set.NoFeeds && (strings.HasPrefix(rest, "feed") || rest == "complete.atom") {
		return Item{}, ErrNotFound
	}
	if feed, ok := strings.CutPrefix(rest, "feed/"); ok {
		return p.archive(ctx, st, fileNumber(feed, ".atom"))
	}
	switch rest {
	case notificationName:
		if len(p.hubs(name)) == 0 {
			return Item{}, ErrNotFound
		}
		return notification(set, segments), nil
	case "feed.atom":
		return subscription(set, segments), nil
	case "complete.atom":
		return p.complete(set)
	case "changelist.xml":
		return changeListWindow(set, segments), nil
	case "changelist-index.xml":
		return changeListIndex(st.fixed, segments, p.limits.Entries), nil
	}
	archives := listArchives(set, segments, p.limits.Entries)
	dumps := p.dumps(st, set, segments)
	if rest == "capabilitylist.xml" {
		return capabilityList(st.fixed, append(named(archives), capabilitiesOf(dumps)...)...), nil
	}
	it, err := find(append(archives, dumps...), setPath(name, rest))
	for _, se := range []*series{&st.resourceDumps, &st.changeDumps} {
		if err != nil && (rest == string(se.dump)+".xml" || rest == string(se.dump)+"-archive.xml") && set.Dumps && !set.Partial && p.awaited(&set, se, 0) {
			return it, &NotReadyError{setPath(name, rest), snapshotWait, ""}
		}
	}
	return it, err
}

// changeList finds a set's Change List n.
func (p *Publisher) changeList(ctx context.Context, st *state, n int64) (Item, error) {
	segment, err := p.segment(ctx, st, n)
	if err == nil && segment.From < st.fixed.Created {
		err = ErrNotFound // of an epoch that has ended
	}
	if err != nil || !segment.Open() {
		return changeList(st.fixed, segment), err
	}
	set, err := p.set(ctx, st.fixed.Name)
	return changeList(set, segment), err
}

// fileNumber reads "12.xml", 0 if it is none. There is one name for each number.
func fileNumber(s, extension string) int64 {
	s, ok := strings.CutSuffix(s, extension)
	if !ok {
		return 0
	}
	return number(s)
}

// number reads a number from 1, 0 if it is none.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != s {
		return 0
	}
	return n
}

// inlineEntries is how many entries a document may have that is made on each request;
// longer ones go into the cache.
const inlineEntries = 1_000

// document returns a document that is rendered from the log, or its last rendering
// while that is recent.
func (p *Publisher) document(ctx context.Context, it Item, gzip bool) *Document {
	p.addHubs(&it)
	if last, ok := p.recent(&it); ok {
		it = last
	}
	doc := &Document{Meta: p.meta(&it, gzip)}
	kept := len(it.sets)+len(it.segments)+len(it.packages) > inlineEntries
	switch it.Kind {
	case ChangeList, ChangeListWindow, ResourceList, Subscription, Archive, Complete, Notification:
		kept = true
	}
	switch {
	case kept:
		doc.open = func() (io.ReadSeekCloser, int64, error) { return p.cached(ctx, it, gzip) }
	default:
		doc.open = func() (io.ReadSeekCloser, int64, error) { return p.inline(it, gzip) }
	}
	if !gzip {
		doc.write = func(ctx context.Context, plain, packed io.Writer) error {
			return writeBoth(plain, packed, func(w io.Writer) error { return p.render(it, false)(ctx, w) })
		}
	}
	return doc
}

func (p *Publisher) meta(it *Item, gzip bool) Meta {
	m := Meta{ContentType: "application/xml", ETag: it.Tag(p.base, gzip), Immutable: it.Closed, Permanent: it.Closed && it.Kind == ChangeList, Gzip: gzip}
	if len(it.hubs) > 0 {
		m.Hubs, m.Self = it.hubs, p.base+it.Path
	}
	switch {
	case it.Kind == Robots:
		m.ContentType = "text/plain; charset=utf-8"
	case it.isFeed():
		m.ContentType = "application/atom+xml"
	}
	if it.Closed {
		end := it.Until
		switch it.Kind {
		case ResourceListPart, ResourceListIndex, ResourceDump:
			end = it.At
		case Archive:
			end = it.Next
		}
		m.LastModified = end.Time().Truncate(time.Second)
	}
	return m
}

// cached opens a list in the cache, which renders it when it is not there. The cache
// keeps only the last rendering of an open list.
func (p *Publisher) cached(ctx context.Context, it Item, gzip bool) (io.ReadSeekCloser, int64, error) {
	name := cacheName(&it, p.base, gzip)
	body, size, err := p.cache.open(ctx, name, p.render(it, gzip))
	if err != nil || it.Closed {
		return body, size, err
	}
	plain, key := openDocument{set: it.Set.Name, kind: it.Kind}, it.key(p.base, false)
	slot := plain
	slot.gzip = gzip
	p.mu.Lock()
	old := p.latest[slot]
	p.latest[slot] = name
	if last := p.openDocs[plain]; last.key != key && (last.it.Path != it.Path || last.it.At <= it.At) {
		p.openDocs[plain] = openRendering{it, key, p.opts.Now()}
	}
	p.mu.Unlock()
	if old != "" && old != name {
		p.cache.forget(old)
	}
	return body, size, nil
}

// recent returns the last rendering of an open document while it is younger than
// MinAge allows. Without it a client that asks after each change would have the
// whole document rendered each time.
func (p *Publisher) recent(it *Item) (Item, bool) {
	if it.Closed || p.opts.MinAge == 0 {
		return Item{}, false
	}
	p.mu.Lock()
	last, ok := p.openDocs[openDocument{set: it.Set.Name, kind: it.Kind}]
	p.mu.Unlock()
	if !ok || last.it.Path != it.Path {
		return Item{}, false
	}
	entries := last.it.Entries
	if entries < 0 { // not known before it is made
		entries = int(min(last.it.Set.Live, int64(last.it.Events.Upto-last.it.Events.After)))
	}
	age := p.opts.Now().Sub(last.at)
	return last.it, age >= 0 && age < time.Duration(entries/1000)*p.opts.MinAge
}

func cacheName(it *Item, base string, gzip bool) string {
	folder := "open"
	if it.Closed {
		folder = "closed"
	}
	return fmt.Sprintf("%s/%s/%d-%d-%s.xml", folder, it.Set.Name, it.Kind, it.N, it.key(base, gzip))
}

// resourceList returns the set's Resource List, or the index of its snapshot.
func (p *Publisher) resourceList(ctx context.Context, name string, gzip bool) (*Document, error) {
	set, err := p.set(ctx, name)
	if err != nil {
		return nil, err
	}
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := requireComplete(&set, setPath(name, "resourcelist.xml")); err != nil {
		return nil, err
	}
	if p.isOneDocument(st, set) {
		if doc, err := p.wholeList(ctx, st, set, gzip); err != nil || doc != nil {
			return doc, err
		}
		p.wake()
	}
	current := st.current()
	if current == nil {
		return nil, &NotReadyError{setPath(name, "resourcelist.xml"), snapshotWait, ""}
	}
	return p.document(ctx, resourceListIndex(st.fixed, current.Snapshot), gzip), nil
}

// wholeList returns the set's Resource List as one document, nil if it is too large for that,
// which is noted.
func (p *Publisher) wholeList(ctx context.Context, st *state, set event.Set, gzip bool) (*Document, error) {
	doc := p.document(ctx, resourceList(set), gzip)
	if fits, err := p.fitsOneDocument(ctx, st, doc); err != nil || fits {
		return doc, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tooLarge = true
	return nil, nil
}

// fitsOneDocument reports whether a Resource List keeps to the size of one document.
// It does where everything that was ever logged fits; otherwise it is rendered to find
// out.
func (p *Publisher) fitsOneDocument(ctx context.Context, st *state, doc *Document) (bool, error) {
	set, segments, err := p.segments(ctx, st)
	if err != nil {
		return false, err
	}
	bytes := int64(headRoom)
	for i := range segments {
		bytes += maxBytes(&set, &segments[i])
	}
	if bytes <= resourcesync.MaxBytes {
		return true, nil
	}
	body, _, err := doc.Open()
	if errors.Is(err, resourcesync.ErrFull) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, body.Close()
}

// partDocument returns a snapshot's part by its "{seq}/{part}.xml".
func (p *Publisher) partDocument(ctx context.Context, name, numbers string, gzip bool) (*Document, error) {
	seqText, file, ok := strings.Cut(numbers, "/")
	seq, n := seqOf(seqText), fileNumber(file, ".xml")
	if !ok || n == 0 {
		return nil, ErrNotFound
	}
	st, err := p.state(ctx, name)
	if err != nil {
		return nil, err
	}
	set, err := p.set(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := requireComplete(&set, setPath(name, "resourcelist.xml")); err != nil {
		return nil, err
	}
	switch s := st.named(seqText); {
	case s != nil && n <= int64(len(s.Files)):
		return p.storedPart(ctx, st, &st.series, s, int(n), gzip)
	case seq != 0 && st.find(seq) == nil && event.Seq(seq) <= set.Last && p.awaited(&set, &st.series, seq):
		return nil, &NotReadyError{setPath(name, "resourcelist/"+numbers), snapshotWait, ""}
	}
	return nil, ErrNotFound
}

// ServedType is the media type under which a copy of what has this type is
// served, and which the documents give it.
func ServedType(stated string) string { return translate.ServedType(stated) }
