// Package harvest harvests Sources into the log. An entry, for example of Atom-PMH,
// passes these functions:
//
//   - [Harvester.Run] in harvest.go detects the kind of the Source. walkSource in
//     walk.go resumes an unfinished walk, then starts a new one.
//   - [atompmh.Walk.Documents] yields the documents. readDocument in walk.go reads
//     each to its end before anything of it counts.
//   - [translate.FromEntry] makes an observation of each entry (atom.go).
//   - pipeline.write (pipeline.go), in a goroutine of its own, gathers the observations
//     of several documents in a batch. pipeline.commit fetches the contents that the set
//     keeps (fetchAndCommit in fetch.go), and passes the batch to
//   - [eventlog.Log.Append], which decides which events they cause, and stores them
//     with the cursor of the walk in one transaction.
//
// The end of a walk (walk.go) applies what only all documents together show: records
// with an earlier stamp than before, deletions by absence, and the new mark.
//
// The lists of a ResourceSync Source (lists.go), its dumps (dump.go), those of an OAI-PMH
// repository (oai.go, getrecord.go), whose contents come along (arrivals.go), the pages
// of a legacy feed (feed.go), the files of a folder (folder.go), the rows of a list in
// plain text (rows.go) and the events of another set (set.go) pass the same functions; each
// protocol has a walker. operator.go executes
// commands of the operator, audit.go reads a Source for an audit and repairs what that has
// found, report.go reports a harvest, and capacity.go limits the memory of all harvests.
package harvest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/translate"
)

// Limits caps what a harvest takes. Zero values are the defaults.
type Limits struct {
	Document   int64 // bytes of a feed document, 64 MiB
	List       int64 // bytes of a ResourceSync document, 256 MiB
	Package    int64 // bytes of a package of a dump, 16 GiB
	Record     int64 // bytes of a representation, 64 MiB
	Text       int   // bytes of one text or attribute value, 8 MiB
	Depth      int   // of XML elements, 256
	Attributes int   // of one element, namespaces included, 256

	Time  time.Duration // of one harvest; 0 is no limit
	Bytes int64         // of the documents of one harvest; 0 is no limit
}

// document returns the limits of a document, list those of one that is a list.
func (l Limits) document() strictxml.Limits {
	return strictxml.Limits{Document: l.Document, Text: l.Text, Depth: l.Depth, Attributes: l.Attributes}
}

func (l Limits) list() strictxml.Limits {
	l.Document = l.List
	return l.document()
}

// Source is one upstream server and what a set wants of it.
type Source struct {
	ID   event.SourceID
	Set  string
	Kind string // one of the constants; "" when it is to be detected, and then the log has it
	// Found is called with the kind that was found out for a Source without one; nil
	// is allowed.
	Found   func(ctx context.Context, kind string) error
	URL     string
	Content event.Content
	// Client asks for documents, ContentClient for contents; nil is Client.
	Client, ContentClient *http.Client
	// Repository is what the set wants of an OAI-PMH repository.
	Repository Repository
	// Folder is how the records of a folder are identified.
	Folder FolderNames
	// User is the name with which Client logs in at the URL's own host; "" for none.
	// Token: it has a token instead.
	User  string
	Token bool
	// From is the log that a Source of kind Set is read from; nil is the Harvester's.
	From *eventlog.Log
	// Epoch identifies the present epoch of the set: a walk in another one does not count
	// (see memory.Whole).
	Epoch string
	// AllowHost reports whether the chain may lead to a host other than URL's.
	AllowHost    func(host string) bool
	Selection    translate.Selection
	Overlap      time.Duration
	MaxDocuments int
	// HoldDeletions is how long a deletion by absence is held before it is applied
	// by itself; 0 is 24 hours.
	HoldDeletions time.Duration
	// FullEvery is how often a walk reads all that the Source has, without being asked
	// to; 0 is never.
	FullEvery time.Duration
	Limits    Limits

	// statedOnly trusts what documents state: neither contents nor media types are asked
	// for (see Survey).
	statedOnly bool
}

// mirrors reports whether the contents of records are fetched.
func (src *Source) mirrors() bool { return src.Content == event.Mirror && !src.statedOnly }

// Harvester harvests Sources. Its methods may be called from any goroutine, but
// for one Source only one at a time.
type Harvester struct {
	Log      *eventlog.Log
	Contents *content.Store // of sets that mirror
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// BatchSize is how many observations commit at once; 0 is 20,000.
	BatchSize int
	// BacklogMemory is how many observations of one document are kept in memory until
	// its end, 0 is 65,536, and 4,096 at most where contents are to be fetched; more are kept in
	// a temporary file in Folder, "" being the system's folder for such files.
	BacklogMemory int
	Folder        string
	capacity      capacity
	// Workers is how many representations are fetched at once, 0 is 32.
	Workers int
	// patching is held while a description of changes is applied: each takes memory.
	patching sync.Mutex
	// walked is when the last walk of a Source has ended in this process, by SourceID, and
	// walkedWhole when the last one that read all that the Source has.
	walked, walkedWhole sync.Map
}

// Options are what a caller wants of one harvest.
type Options struct {
	// Full reads all that the Source has.
	Full bool
	// AllPending asks for everything pending, due or not.
	AllPending bool
	// Begin is called when the harvest begins to work: others may have to end first; nil
	// is allowed.
	Begin func()
	// Progress is called with how far the harvest has come; nil is allowed. It is
	// called from several goroutines, never at the same time.
	Progress func(Progress)
}

// Progress is how far a harvest has come.
type Progress struct {
	// Documents and Entries count what was read, Events what was logged, Fetched the
	// contents that were fetched of the Wanted ones.
	Documents, Entries, Events, Fetched, Wanted int64
	// Created, Updated and Deleted are the Events by their kinds.
	Created, Updated, Deleted int64
	// Doing says what the harvest does or waits for, and Until how long, if known.
	Doing string
	Until time.Time
}

// The kinds of Sources that can be harvested.
const (
	AtomPMH      = "atompmh"
	ResourceSync = "resourcesync"
	OAIPMH       = "oaipmh"
	Feed         = "feed"
	Folder       = "folder"  // of this machine, whose files are records
	CSV          = "csv"     // a table of URLs
	Sitemap      = "sitemap" // a sitemap in plain text; one in XML is of kind ResourceSync
	Set          = "set"     // another set of the log, at the URL "set:" and its name
	SIP          = "sip"     // whose records submit takes in
)

// errKind: Sources of this kind cannot be harvested.
var errKind = errors.New("this kind of Source cannot be harvested by this version")

// run is one harvest of one Source.
type run struct {
	h   *Harvester
	src *Source
	opt Options
	// slot is that of a harvest; nil when only what waits is asked for.
	slot *slot

	stored  event.Progress
	saved   event.Progress // as the log has it
	memory  memory
	version int64  // of the stored cursor
	data    []byte // the stored cursor
	// absenceSeen: the Source was read whole in this harvest, and does not have the
	// records whose deletion is held (A6).
	absenceSeen bool
	// confirmed: the Source states nothing newer about the pending contents.
	confirmed bool
	// mismatched are the records whose content differed from what its list states when the
	// walk began.
	mismatched map[int64]bool
	walking    bool // a walk is under way, which does not wait for slow contents
	unasked    int  // contents that were needed, and not asked for to the end
	// active counts the records that are there by the last document of the walk, or by
	// all documents of its baseline.
	active          int64
	memberPartial   bool // the Source is a set of which not all Sources were walked whole
	absencesDoubted bool // some deletion by absence waits for the answer of its URL
	doubtful        bool // see walkResult.Doubtful and Unsure
	emptyList       bool // see walkResult.Empty
	// bad has the digests of bad inputs that were counted. It is of the walk's goroutine.
	bad map[[sha256.Size]byte]bool
	// flush waits until all that the walk has sent so far is durable.
	flush func() error
	// pack is the package that was downloaded for the document under way; nil for none.
	pack atomic.Pointer[resourcesync.Package]

	mu         sync.Mutex // guards report and hosts
	report     Report
	progressMu sync.Mutex // held while Options.Progress is called

	hosts                                                  map[string]*hostState // of contents
	documents, entries, created, updated, deleted, fetched atomic.Int64
	needed                                                 atomic.Int64 // contents, fetched or not
	bytes                                                  atomic.Int64 // of the documents
	activity                                               atomic.Pointer[activity]
}

// newRun returns a run over its own copy of a Source: a kind that is detected does not
// change the Source, which others read meanwhile.
func newRun(h *Harvester, src *Source) *run {
	own := *src
	return &run{h: h, src: &own}
}

// Run harvests a Source once. The report is filled as far as it came, with an error
// too.
func (h *Harvester) Run(ctx context.Context, src *Source, o Options) (Report, error) {
	r := newRun(h, src)
	r.opt = o
	var err error
	if r.slot, err = h.capacity.acquire(ctx); err != nil {
		return r.finalReport(err), err
	}
	defer r.slot.close()
	if o.Begin != nil {
		o.Begin()
	}
	r.report.Started = h.now().UTC()
	ctx = follow.WithWait(fetch.WithRedirects(ctx, r.redirected), func(do func()) { r.slot.whileServerAnswers(ctx, do) })
	err = src.explainRefusal(r.harvestOnce(ctx))
	r.reportProgress()
	return r.finalReport(err), err
}

// harvestOnce walks over the Source, then asks for the contents that are pending, from
// earlier harvests too, and applies deletions that were held for long enough.
func (r *run) harvestOnce(ctx context.Context) (err error) {
	defer defect.Recover(&err)
	if err = r.load(ctx); err != nil {
		return err
	}
	r.startAnewIfMoved()
	r.walking = true
	err = r.dispatch(ctx)
	r.walking = false
	if errors.As(err, new(*appendError)) || ctx.Err() != nil {
		return err
	}
	var status *follow.StatusError
	waited := r.memory.Waiting
	r.memory.Waiting = nil
	switch {
	case errors.As(err, &status) && status.Partial != "":
		r.noteWithheld(status.Partial)
		err = nil
	case err == nil && r.data == nil && r.stored.Gap == "" && !r.memberPartial:
		r.memory.Whole = r.src.Epoch
		if r.memory.Waiting = waited; waited != nil && waited.Over.IsZero() {
			waited.Over = r.h.now()
		}
	}
	if err == nil || r.report.RetryAfter.IsZero() { // after an error the Source may want no requests
		var waits error
		r.slot.whileWaiting(ctx, func() { waits = r.fetchPending(ctx) })
		if waits == nil && r.confirmed {
			waits = r.mismatches(ctx, r.data)
		}
		err = errors.Join(err, waits)
	}
	if errors.As(err, new(*appendError)) || ctx.Err() != nil || r.src.Kind == SIP {
		return err // nothing was asked, so nothing is to be kept
	}
	return errors.Join(err, r.overdue(ctx), r.remember(ctx))
}

// load reads what is stored of the Source.
func (r *run) load(ctx context.Context) (err error) {
	if r.stored, err = r.h.Log.Progress(ctx, r.src.ID); err != nil {
		return err
	}
	r.version, r.data, r.saved, r.memory = r.stored.Cursor.Version, r.stored.Cursor.Data, r.stored, memory{}
	if err := unmarshal(r.stored.Memory, &r.memory); err != nil {
		return fmt.Errorf("the state of the last harvest cannot be read (%w): run bridge source reset %s", err, r.src.Set)
	}
	if r.src.Kind == "" { // detected since the Source was opened, perhaps
		r.src.Kind, err = r.h.Log.SourceKind(ctx, r.src.ID)
	}
	return err
}

// startAnewIfMoved begins anew where the configuration has another URL for a Source of this
// name. Which feed it is, and what is known of its records, stays.
func (r *run) startAnewIfMoved() {
	m := &r.memory
	if was := m.URL; was != "" && was != r.src.URL && r.src.Kind != SIP && r.src.Kind != Set { // a set is known by its feed
		r.warn(fmt.Sprintf("the Source's url was %s before: it is read whole", was))
		r.startAnew()
	}
	if m.Asked != r.src.asks() && m.URL != "" && r.src.Kind == OAIPMH {
		if m.Asked != "" { // else the kind was not known before
			r.warn("the formats or the set that the repository is asked for have changed: it is read whole")
		}
		r.startAnew()
	}
	if m.URL == "" && m.Lists.Numbers() > 0 { // after Reset
		r.opt.Full = true
	}
	m.URL, m.Asked = r.src.URL, r.src.asks()
}

// startAnew forgets how far the Source was read.
func (r *run) startAnew() {
	m := &r.memory
	*m = memory{URL: m.URL, walkMemory: walkMemory{FeedID: m.FeedID, Folder: folderMemory{Base: m.Folder.Base}, OAI: oaiMemory{Named: m.OAI.Named}}, Complete: m.Complete}
	r.data, r.stored.Gap, r.opt.Full = nil, "", true
}

// dispatch walks over the Source with the walker of its kind, which it finds out where
// it is not known.
func (r *run) dispatch(ctx context.Context) error {
	if r.src.Kind == "" {
		asked := *r.src
		asked.Client = r.documentClient()
		kind, err := detect(ctx, &asked)
		if err == nil && r.src.Found != nil {
			err = r.src.Found(ctx, kind)
		}
		if err != nil {
			return err
		}
		r.src.Kind = kind
		if err := r.load(ctx); err != nil { // another kind begins anew
			return err
		}
		r.startAnewIfMoved()
	}
	switch r.src.Kind {
	case AtomPMH:
		return walkSource(ctx, r, &atomWalk{r: r})
	case ResourceSync:
		return walkSource(ctx, r, &listWalk{r: r})
	case OAIPMH:
		return walkSource(ctx, r, &oaiWalk{r: r})
	case Feed:
		return walkSource(ctx, r, &feedWalk{r: r})
	case Folder:
		return walkSource(ctx, r, &folderWalk{r: r})
	case CSV, Sitemap:
		return walkSource(ctx, r, &rowWalk{r: r})
	case Set:
		err := walkSource(ctx, r, &setWalk{r: r})
		r.absenceSeen = err == nil && r.memory.Set.Complete // a record that is back is held no more
		return err
	case SIP:
		return nil // its records are submitted to us: only pending contents are to be asked for
	}
	return fmt.Errorf("%s: kind %q: %w", r.src.URL, r.src.Kind, errKind)
}

// noteWithheld takes note that the Source is a bridge that has not walked all its own
// Sources yet. That is no failure.
func (r *run) noteWithheld(header string) {
	r.updateReport(func(p *Report) { p.Withheld = true })
	r.warn("the Source is a bridge that has not walked all its own Sources yet; it is asked again soon")
	if r.memory.Whole != r.src.Epoch {
		r.memory.Waiting = follow.ParseWaits(header, r.h.now())
	}
}

// explainRefusal adds to an error that the Source wants a login, or another one, what to
// do about it.
func (src *Source) explainRefusal(err error) error {
	switch {
	case follow.Status(err) != http.StatusUnauthorized:
		return err
	case src.Token:
		return fmt.Errorf("%w; the server refuses the token: check token_file of this [[set.source]], which goes to its url's own scheme, host and port only", err)
	case src.User == "":
		return fmt.Errorf("%w; the server wants a login: write user and password_file, or token_file, under this [[set.source]]", err)
	}
	return fmt.Errorf("%w; the server refuses the login of %q: check user and password_file of this [[set.source]], which go to its url's own scheme, host and port only", err, src.User)
}

func (h *Harvester) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

func (h *Harvester) batchSize() int {
	if h.BatchSize > 0 {
		return h.BatchSize
	}
	return 20_000
}

func (h *Harvester) workers() int {
	if h.Workers > 0 {
		return h.Workers
	}
	return 32
}
