package validate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// chain checks a feed from the target back to its oldest document.
func (r *run) chain(ctx context.Context) error {
	w := atompmh.Walk{Client: r.client, URL: r.at, Full: true, Strict: true, MaxDocuments: r.o.MaxDocuments, AllowHost: r.allowHost, Report: r.atomProblem}
	last := r.at
	for doc, err := range w.Documents(ctx) {
		if err != nil {
			var fault *atompmh.DocumentError
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, atompmh.ErrLoop):
				r.atomProblem(atompmh.Unreachable(last, err.Error()))
			case errors.As(err, &fault):
				r.broken(atomDocument, fault.URL, fault.Cap, fault.Line, fault.Column, fault.Reason)
			default:
				r.unread(last, err)
			}
			break
		}
		d := r.begin(doc.URL)
		var all newest
		for e, bad := range doc.Entries() {
			if e == nil {
				r.entryError(d, doc.URL, bad)
			} else {
				d.Entries++
				r.addNewest(&all, doc.URL, e)
			}
		}
		r.noteAlternates(&all)
		d.Kind = feedKind(doc.Feed())
		last = doc.URL
	}
	if gap := w.Result().Gap; gap != nil {
		r.atomProblem(atompmh.Unreachable(last, gap.String()))
	}
	return nil
}

// source checks the Source to which the target belongs.
func (r *run) source(ctx context.Context) error {
	walk := resourcesync.Walk{Client: r.client, URL: r.at, Full: true, MaxDocuments: r.o.MaxDocuments, AllowHost: r.allowHost}
	if !r.o.Contents {
		walk.MaxPackage = 1 // it downloads no package
	}
	found, err := walk.Discover(ctx)
	start := r.at
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case found.URL != "":
		start = found.URL
	default:
		if _, ok := errors.AsType[*resourcesync.NoSourceError](err); ok && !r.isList(ctx) {
			if r.isRepository(ctx) {
				return r.repository(ctx)
			}
			r.unread(r.typed, fmt.Errorf("%w; nor is it the base URL of an OAI-PMH repository, whose path is like /oai/request (DSpace), /cgi/oai2 (EPrints) or /index.php/NAME/oai (OJS): check the URL", err))
			return nil
		}
	}
	c := crawl{run: r, docs: map[string]resourcesync.Named{}, asked: map[string]bool{}}
	if c.client, err = follow.New(follow.Options{HTTP: r.client, Start: r.at, AllowHost: r.allowHost, Accept: accept}); err != nil {
		r.unread(r.typed, err)
		return nil
	}
	c.add(named{url: start})
	if err := c.all(ctx); err != nil {
		return err
	}
	return r.walk(ctx, &walk)
}

// isList reports whether the target is a ResourceSync document, even if it links to no
// list.
func (r *run) isList(ctx context.Context) bool {
	c, err := follow.New(follow.Options{HTTP: r.client, Start: r.at, AllowHost: r.allowHost, Accept: accept})
	if err != nil {
		return false
	}
	a, err := c.Get(ctx, r.at, follow.Validators{})
	if err != nil {
		return false
	}
	defer a.Close()
	_, err = resourcesync.NewReader(resourcesync.Unpack(a.URL, a.Body), resourcesync.ReadOptions{URL: a.URL}).Head()
	return err == nil
}

// walk reads the Source as a Destination does, for faults in how its lists fit together.
// The crawl has reported the faults of single documents, and missing documents.
func (r *run) walk(ctx context.Context, w *resourcesync.Walk) error {
	several := map[string]bool{}
	for _, rule := range resourcesync.Rules() {
		several[rule.ID] = rule.Several && rule.ID != "rs-missing"
	}
	w.Report = func(p resourcesync.Problem) {
		if several[p.Rule] {
			r.listProblem(p)
		}
	}
	for list, err := range w.Documents(ctx) {
		if err != nil {
			break // the crawl has found the same error
		}
		for _, bad := range list.Entries() {
			_ = bad // the crawl has reported it
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// crawl reads all documents of a Source.
type crawl struct {
	*run
	client *follow.Client
	queue  []named
	docs   map[string]resourcesync.Named // by the key of the URL that was asked for
	asked  map[string]bool               // those that are in queue, by the same
	pairs  []pair
}

// named is a document to be read, and the place where it is named.
type named struct {
	url    string
	by     string // "" for the first
	line   int
	column int
	up     bool // by a link up
}

// pair is two documents of which one links to the other: by an entry, or by a link up.
type pair struct {
	from, to string
	entry    *resourcesync.Entry // nil for a link up
}

// add adds a document to the queue, unless it was added before or the queue is too long.
func (c *crawl) add(n named) {
	if key := follow.Key(n.url); !c.asked[key] && len(c.queue) <= c.o.MaxDocuments {
		c.asked[key] = true
		c.queue = append(c.queue, n)
	}
}

// all reads the queue to its end, and then compares the documents.
func (c *crawl) all(ctx context.Context) error {
	for i := 0; i < len(c.queue); i++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if i == c.o.MaxDocuments {
			c.unread(c.queue[i].url, fmt.Errorf("%d documents were checked; raise --max-documents for the others", i))
			break
		}
		c.document(ctx, c.queue[i])
	}
	for _, p := range c.pairs {
		from, to := c.docs[follow.Key(p.from)], c.docs[follow.Key(p.to)]
		switch {
		case to.Document == nil: // reported already
		case p.entry != nil:
			from.CheckEntry(p.entry, to, c.listProblem)
		default:
			from.CheckUp(to, c.listProblem)
		}
	}
	return nil
}

// document reads one document and adds those that it links to.
func (c *crawl) document(ctx context.Context, n named) {
	a, err := c.client.Get(ctx, n.url, follow.Validators{})
	var refused *follow.StatusError
	switch {
	case err == nil:
	case errors.As(err, &refused) && refused.Status != 429 && refused.Status < 500 && n.by != "":
		c.listProblem(resourcesync.Missing(n.by, n.line, n.column, n.url, fmt.Sprintf("HTTP status %d", refused.Status)))
		return
	default:
		c.unread(n.url, err)
		return
	}
	defer a.Close()
	d := c.begin(a.URL)
	d.Kind = "ResourceSync document"
	rd := resourcesync.NewReader(resourcesync.Unpack(a.URL, a.Body), resourcesync.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Strict: true, Report: c.listProblem})
	head, err := rd.Head()
	if err != nil {
		c.entryError(d, a.URL, err)
		return
	}
	// A document with a link up to the Source Description belongs to one set: the other
	// sets are not checked.
	down := leads(head) && (!n.up || head.Capability != resourcesync.Description)
	for {
		e, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if stop := c.entryError(d, a.URL, err); stop {
			return
		}
		if e == nil {
			continue
		}
		c.noteEntry(head, a.URL, e)
		if len(c.queue) > c.o.MaxDocuments {
			continue
		}
		for i := range e.Links {
			if e.Links[i].Rel == resourcesync.RelContents {
				c.add(named{url: e.Links[i].Href, by: a.URL, line: e.Line, column: e.Column})
			}
		}
		if down {
			c.add(named{url: e.Loc, by: a.URL, line: e.Line, column: e.Column})
			c.pairs = append(c.pairs, pair{n.url, e.Loc, e})
		}
	}
	doc := rd.Document()
	d.Kind = listKind(doc)
	is := resourcesync.Named{Document: doc, Requested: n.url, URL: a.URL}
	is.CheckPlace(c.listProblem)
	c.docs[follow.Key(n.url)] = is
	if up := doc.Up(); up != "" {
		c.add(named{url: up, by: a.URL, up: true})
		c.pairs = append(c.pairs, pair{n.url, up, nil})
	}
	if index := doc.Link(resourcesync.RelIndex); index != "" {
		c.add(named{url: index, by: a.URL})
	}
}

// leads reports whether the entries of a document are documents themselves.
func leads(d *resourcesync.Document) bool {
	switch d.Capability {
	case resourcesync.Description, resourcesync.CapabilityList:
		return true
	case resourcesync.ResourceListArchive, resourcesync.ChangeListArchive, resourcesync.ResourceDumpArchive, resourcesync.ChangeDumpArchive:
		return true
	}
	return d.Index
}
