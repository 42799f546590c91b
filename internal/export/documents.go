package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/server"
)

// rank is the place of a document in the order in which drafts are moved: what leads to
// others comes after them.
type rank uint8

const (
	rankClosed     rank = iota // never changes again
	rankOpen                   // a list or feed that grows, a page
	rankIndex                  // leads to lists
	rankCapability             // a Capability List, or the Source Description of one set
	rankSite                   // of all sets
)

// rankOf returns the rank of a document. One of a kind that is not known here may lead
// to others.
func rankOf(it *publish.Item) rank {
	switch it.Kind {
	case publish.CapabilityList, publish.SourceDescription:
		return rankCapability
	case publish.ResourceListIndex:
		if it.Closed { // of the past: it leads to its parts, and the archive to it
			return rankOpen
		}
	case publish.Archive: // of a closed segment, even while it lacks its link to the next
		return rankClosed
	case publish.ResourceList, publish.ChangeList, publish.ChangeListWindow, publish.ChangeListArchivePart,
		publish.Subscription, publish.Complete:
		if !it.Closed {
			return rankOpen
		}
	}
	if it.Closed {
		return rankClosed
	}
	return rankIndex
}

// replacement is a draft with the place that it will have.
type replacement struct {
	draft
	to   string
	rank rank
}

// listAge is how old the Resource List of a large set in mode reference may become
// before it is made anew although Change Lists lead on from it.
const listAge = 24 * time.Hour

// plan returns the documents of a set, all of the same moment.
//
// The Resource List of a large set may be that of an earlier export in mode reference:
// to make it anew takes longer than everything else, and a Destination goes on with the
// Change Lists from its time. In other modes files of records change, and the list must
// have their hashes.
func (x *exporter) plan(ctx context.Context, set *event.Set) ([]publish.Item, error) {
	// Only a request for the list shows that it is too large for one document.
	_, err := x.publisher.Document(ctx, "/sets/"+set.Name+"/resourcelist.xml", false)
	if _, ok := errors.AsType[*publish.NotReadyError](err); ok {
		err = x.publisher.Snapshot(ctx, set.Name)
	}
	if err == nil {
		err = x.publisher.KeepLists(ctx, set.Name)
	}
	if err != nil {
		return nil, err
	}
	items, err := x.publisher.Plan(ctx, set.Name)
	if err != nil {
		return nil, err
	}
	var list, window *publish.Item
	for i := range items {
		switch it := &items[i]; {
		case it.Kind == publish.ResourceListIndex && !it.Closed: // else a list of the past
			list = it
		case it.Kind == publish.ChangeListWindow:
			window = it
		}
	}
	if list == nil || list.Events.Upto == set.Last ||
		set.Content == event.Reference && window != nil && list.At >= window.From && set.LastObserved.Time().Sub(list.At.Time()) < listAge {
		return items, nil
	}
	if err := x.publisher.Snapshot(ctx, set.Name); err != nil {
		return nil, err
	}
	return x.publisher.Plan(ctx, set.Name)
}

// exportDocuments writes the documents and pages of a set that have changed.
func (x *exporter) exportDocuments(ctx context.Context, set *event.Set) error {
	if err := x.publisher.MakeDumps(ctx, *set); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		x.problem("set %s: its dumps stay as they were: %v", set.Name, err)
	}
	items, err := x.plan(ctx, set)
	if err != nil {
		return err
	}
	for i := range items {
		if err := x.exportDocument(ctx, items[i].Path, rankOf(&items[i])); err != nil {
			return err
		}
	}
	return x.exportPages(ctx, rankOpen, server.Pages(set.Name)...)
}

// exportSite writes the documents of all sets together that have changed.
func (x *exporter) exportSite(ctx context.Context) error {
	for _, it := range publish.PlanSite(x.moment.sets) {
		if err := x.exportDocument(ctx, it.Path, rankSite); err != nil {
			return err
		}
	}
	return x.exportPages(ctx, rankSite, "/")
}

// exportDocument writes a document to a draft if it has changed, which its tag shows without
// rendering it.
func (x *exporter) exportDocument(ctx context.Context, path string, at rank) error {
	name := strings.TrimPrefix(path, "/")
	old := x.old.Documents[name]
	doc, err := x.publisher.Document(ctx, path, false)
	if err != nil {
		return x.lacks(name, old, err)
	}
	entry := &document{Tag: doc.ETag, Type: doc.ContentType, Closed: doc.Immutable}
	if x.unchanged(name, entry, old) {
		entry.sum, entry.Gzip = old.sum, old.Gzip
		x.add(name, entry, true)
		return nil
	}
	if doc.ContentType == "application/zip" {
		d, err := x.stagePackage(doc)
		if err != nil {
			return x.lacks(name, old, err)
		}
		return x.addDraft(name, at, entry, d, nil)
	}
	plain, err := x.create()
	if err != nil {
		return err
	}
	packed, err := x.create()
	if err != nil {
		return err
	}
	d, err := plain.end(doc.Write(ctx, plain, packed))
	p, err := packed.end(err)
	if err != nil {
		return x.lacks(name, old, err)
	}
	return x.addDraft(name, at, entry, d, &p)
}

// stagePackage makes a draft of the package of a dump, which is a file already: a link to
// it, where the file system has links.
func (x *exporter) stagePackage(doc *publish.Document) (draft, error) {
	body, size, err := doc.Open()
	if err != nil {
		return draft{}, err
	}
	defer body.Close()
	if f, ok := body.(*os.File); ok {
		to := x.newName()
		from, err := filepath.Rel(x.path, f.Name())
		if err == nil && x.folder(to) == nil && x.root.Link(from, to) == nil {
			h := publish.NewHashWriter(io.Discard)
			_, err := io.CopyBuffer(h, readOnly{f}, x.copied[:])
			is := sumOf(h)
			if err == nil && is.Length != size {
				err = fmt.Errorf("%s has %d bytes, expected %d", f.Name(), is.Length, size)
			}
			return draft{is, to}, err
		}
	}
	return x.stage(func(w io.Writer) error {
		_, err := io.CopyBuffer(w, readOnly{body}, x.copied[:])
		return err
	})
}

// unchanged reports whether the tree has a document already.
func (x *exporter) unchanged(name string, entry, old *document) bool {
	return old != nil && !x.doubtful && old.Tag == entry.Tag && old.Type == entry.Type &&
		x.size(name) == old.Length && (old.Gzip == nil || x.size(name+".gz") == old.Gzip.Length)
}

// lacks handles a document that cannot be written. One that is not there any more is
// removed; one that is not there yet stays as it was.
func (x *exporter) lacks(name string, old *document, err error) error {
	var notReady *publish.NotReadyError
	var tooMany *publish.TooManyError
	switch {
	case errors.Is(err, publish.ErrNotFound), errors.As(err, &tooMany):
		return nil
	case errors.As(err, &notReady):
		if x.moved { // the former one is for another base URL
			x.problem("%s: it is not ready yet, and is missing", name)
			return nil
		}
		x.problem("%s: it is not ready yet, and is left as it was", name)
		if old != nil {
			x.add(name, old, true)
		}
		return nil
	}
	return err
}

// add adds a document to the new state, and counts it.
func (x *exporter) add(name string, entry *document, unchanged bool) {
	x.new.Documents[name] = entry
	x.report.Documents++
	if unchanged {
		x.report.Unchanged++
	}
}

// addDraft adds a document with drafts of it and of its compressed copy; it discards those of
// which the tree has the same bytes already.
func (x *exporter) addDraft(name string, at rank, entry *document, plain draft, packed *draft) error {
	entry.sum = plain.sum
	same, err := x.keepOrMove(name, at, plain)
	if err != nil {
		return err
	}
	if packed != nil {
		entry.Gzip = &packed.sum
		samePacked, err := x.keepOrMove(name+".gz", at, *packed)
		if err != nil {
			return err
		}
		same = same && samePacked
	}
	x.add(name, entry, same)
	return nil
}

func (x *exporter) keepOrMove(name string, at rank, d draft) (same bool, err error) {
	if same, err = x.holds(name, d.sum); err != nil {
		return false, err
	}
	if same {
		return true, x.discard(d)
	}
	x.drafts = append(x.drafts, replacement{d, name, at})
	return false, nil
}

// exportPages writes what the server answers at some paths besides documents.
func (x *exporter) exportPages(ctx context.Context, at rank, paths ...string) error {
	handler := server.New(server.Options{Documents: x.publisher, Log: x.moment, BaseURL: x.base, Static: true, About: x.About, Logger: x.Logger, Now: x.Now}).Handler()
	for _, path := range paths {
		a := answer{header: http.Header{}}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, x.base+path, nil)
		if err != nil {
			return err
		}
		r.RemoteAddr = "192.0.2.1:1" // for documentation (RFC 5737)
		handler.ServeHTTP(&a, r)
		switch a.status {
		case http.StatusOK:
		case http.StatusNotFound:
			continue
		default:
			return fmt.Errorf("%s: status %d: %s", path, a.status, bytes.TrimSpace(a.body.Bytes()))
		}
		name := strings.TrimPrefix(path, "/")
		if name == "" || strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		entry := &document{Type: a.header.Get("Content-Type")}
		plain, err := x.stage(func(w io.Writer) error {
			_, err := w.Write(a.body.Bytes())
			return err
		})
		if err != nil {
			return err
		}
		packed, err := x.stage(func(w io.Writer) error { return publish.Compress(w, a.body.Bytes()) })
		if err != nil {
			return err
		}
		if err := x.addDraft(name, at, entry, plain, &packed); err != nil {
			return err
		}
	}
	return nil
}

// answer keeps what a handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// unnamed finds the documents of the former state that this one lacks, and returns the files
// that must be removed: a reader of an open document must not find one of an earlier state. A
// document that never changes only becomes stale, like one of a set that the log does not have;
// a set that was not exported now stays as it was.
func (x *exporter) unnamed() (remove []string) {
	exported := x.exported()
	for name, old := range x.old.Documents {
		if x.new.Documents[name] != nil {
			continue
		}
		set, of := setOf(name)
		switch {
		case of && !exported[set] && x.new.Sets[set] != nil:
			x.new.Documents[name] = old
		case old.Closed || old.Stale || of && x.new.Sets[set] == nil:
			stale := *old
			stale.Stale = true
			x.new.Documents[name] = &stale
			x.report.Stale++
		default:
			remove = append(remove, name, name+".gz")
		}
	}
	return remove
}

// exported has the names of the sets that are exported now.
func (x *exporter) exported() map[string]bool {
	names := map[string]bool{}
	for i := range x.sets {
		names[x.sets[i].Name] = true
	}
	return names
}

// setOf returns the set that a file belongs to.
func setOf(name string) (set string, ok bool) {
	rest, ok := strings.CutPrefix(name, "sets/")
	if !ok {
		return "", false
	}
	set, _, ok = strings.Cut(rest, "/")
	return set, ok
}

// prune removes the files below sets/ that are no part of the tree, and what is known of them.
// Files beside sets/ may be anybody's. A set of the log that was not exported now stays as it
// was, even if the state does not list its files: that may be damaged.
func (x *exporter) prune() error {
	exported := x.exported()
	stays := func(set string) bool { return x.moment.byName[set] != nil && !exported[set] }
	x.report.Stale = 0
	for name, d := range x.new.Documents {
		switch set, of := setOf(name); {
		case !d.Stale:
		case of && stays(set):
			x.report.Stale++
		default:
			delete(x.new.Documents, name)
		}
	}
	skip := func(name string) bool {
		set, _ := setOf(name + "/")
		return stays(set) || name == "sets/"+set+"/records" && x.new.Sets[set] != nil && x.new.Sets[set].Content == event.Mirror.String()
	}
	err := x.files("sets", skip, func(name string) error {
		if x.new.Documents[name] != nil {
			return nil
		}
		if plain, ok := strings.CutSuffix(name, ".gz"); ok && x.new.Documents[plain] != nil && x.new.Documents[plain].Gzip != nil {
			return nil
		}
		return x.remove(name)
	})
	if err == nil {
		err = x.removeEmpty("sets", skip)
	}
	if err != nil {
		return err
	}
	const snapshots = own + "/snapshots"
	for _, folder := range []string{own + "/records", snapshots} {
		ofSets, err := fs.ReadDir(x.root.FS(), folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, of := range ofSets {
			set := of.Name()
			if x.new.Sets[set] != nil || stays(set) {
				continue
			}
			if err := errors.Join(x.removeAll(listPath(set)), x.removeAll(sumsPath(set)), x.removeAll(snapshots+"/"+set)); err != nil {
				return err
			}
		}
	}
	return nil
}
