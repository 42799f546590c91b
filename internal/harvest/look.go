package harvest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// Look is the result of looking at a Source without harvesting it: at its first
// documents, and at its description of itself. Nothing is stored.
type Look struct {
	// Kind is that of the Source, "" when it could not be found out; Detected: the
	// configuration leaves it open.
	Kind     string `json:"kind,omitempty"`
	Detected bool   `json:"detected,omitempty"`
	// Title is the title that the Source has for itself.
	Title string `json:"title,omitempty"`
	// Moved is where its URL has moved permanently (301 or 308), "" when it has not.
	Moved string `json:"moved,omitempty"`
	// Read are the documents that were counted.
	Read []LookedAt `json:"read,omitempty"`
	// Total is how many records the Source claims to have, -1 when it does not say;
	// TotalFrom names where it claims that, and whether it is an estimate.
	Total     int64  `json:"total"`
	TotalFrom string `json:"total_from,omitempty"`
	// Notes are sentences on what a harvest can do with it.
	Notes []string `json:"notes,omitempty"`
	// Problems are broken rules of these documents.
	Problems []Example `json:"problems,omitempty"`
	// Bad counts entries that would be quarantined.
	Bad int64 `json:"bad,omitempty"`
	// Requests are those that were made, in their order.
	Requests []LookRequest `json:"requests"`
	// Error is why a harvest would fail, "" when it would not; ErrorKind and ErrorRule are
	// those of Classify.
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
	ErrorRule string `json:"error_rule,omitempty"`
}

// LookedAt is a document that was counted.
type LookedAt struct {
	URL string `json:"url"`
	// What says what it is, for people.
	What string `json:"what"`
	// Records are those that are there, Deletions those that are stated as deleted.
	Records   int64 `json:"records"`
	Deletions int64 `json:"deletions"`
	// Parts are those of an index, of which the first was read.
	Parts int `json:"parts,omitempty"`
	// Formats counts representations by media type or, of a repository, records by
	// metadataPrefix; "" is not said.
	Formats map[string]int64 `json:"formats,omitempty"`
	// Complete: it has all records there are.
	Complete bool `json:"complete,omitempty"`
}

// LookRequest is a request, up to the header of its answer.
type LookRequest struct {
	URL    string  `json:"url"`
	Status int     `json:"status,omitempty"` // 0: no answer
	Millis float64 `json:"millis"`
}

// looker is a look under way.
type looker struct {
	src  *Source
	look *Look
	mu   sync.Mutex // guards Requests and Moved
	next http.RoundTripper
	led  []string // hosts that the URL leads to
	// allowed returns an error if the document that was read last may not lead to a URL.
	allowed func(url string) error
}

// LookAt looks at a Source: it asks for what a harvest would ask for first, by the same client
// and within the same limits. What is wrong with the Source is in the Look.
func LookAt(ctx context.Context, src *Source) *Look {
	mine := *src
	l := &looker{src: &mine, look: &Look{Kind: src.Kind, Total: -1}}
	client := *src.Client
	l.next = cmp.Or(client.Transport, http.DefaultTransport)
	client.Transport = l
	mine.Client = &client
	if err := l.source(ctx); err != nil {
		err = mine.explainRefusal(err)
		if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		l.look.Error = err.Error()
		l.look.ErrorKind, l.look.ErrorRule = Classify(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.look
}

// RoundTrip makes a request and notes it.
func (l *looker) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := l.next.RoundTrip(req)
	l.mu.Lock()
	defer l.mu.Unlock()
	asked := LookRequest{URL: fetch.Plain(req.URL), Millis: float64(time.Since(began).Microseconds()) / 1000}
	if err == nil {
		asked.Status = resp.StatusCode
		if to, err := resp.Location(); err == nil && asked.URL == cmp.Or(l.look.Moved, l.src.URL) &&
			(resp.StatusCode == http.StatusMovedPermanently || resp.StatusCode == http.StatusPermanentRedirect) {
			l.look.Moved = fetch.Plain(to)
		}
	}
	l.look.Requests = append(l.look.Requests, asked)
	return resp, err
}

// source finds out the kind, and looks at what that has.
func (l *looker) source(ctx context.Context) (err error) {
	if l.src.Kind == "" {
		if l.src.Kind, err = detect(ctx, l.src); err != nil {
			return err
		}
		l.look.Kind, l.look.Detected = l.src.Kind, true
	}
	switch l.src.Kind {
	case AtomPMH:
		return l.atom(ctx)
	case Feed:
		return l.feed(ctx)
	case ResourceSync:
		return l.lists(ctx)
	case OAIPMH:
		return l.repository(ctx)
	case Folder:
		return l.folder(ctx)
	case CSV, Sitemap:
		return l.rows(ctx)
	case Set:
		l.note("it is a set of this bridge, of which nothing is fetched: see bridge set show %s", MemberOf(l.src.URL))
	case SIP:
		l.note("it calls bridge; nothing is harvested")
	}
	return nil
}

func (l *looker) note(format string, args ...any) {
	l.look.Notes = appendNew(l.look.Notes, fmt.Sprintf(format, args...))
}

// problem counts a broken rule and keeps the first place.
func (l *looker) problem(rule, text string) {
	l.look.Problems = addExample(l.look.Problems, rule, text)
}

// bad counts an entry that would be quarantined.
func (l *looker) bad(err error) {
	l.look.Bad++
	rule, _ := brokenRule(err)
	l.problem(cmp.Or(rule, ruleOf(err)), err.Error())
}

// get asks for a document and calls read with the answer.
func (l *looker) get(ctx context.Context, at, accept string, read func(*follow.Answer) error) error {
	o := follow.Options{HTTP: l.src.Client, Start: l.src.URL, AllowHost: l.src.AllowHost, Accept: accept, Hosts: l.led}
	if l.src.Kind == OAIPMH { // errors of the protocol may come with a status
		o.Queries, o.Documents = true, func(status int) bool { return status/100 == 4 }
	}
	client, err := follow.New(o)
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := client.Get(ctx, at, follow.Validators{})
	if err != nil {
		return err
	}
	defer answer.Close()
	l.allowed = client.Allowed
	err = read(answer)
	if answer.Status != http.StatusOK && !errors.As(err, new(*oaipmh.Error)) {
		return &follow.StatusError{URL: at, Status: answer.Status}
	}
	return err
}

// atom looks at the first document of an Atom-PMH feed.
func (l *looker) atom(ctx context.Context) error {
	return l.get(ctx, l.src.URL, "application/atom+xml, application/xml;q=0.9, */*;q=0.1", func(a *follow.Answer) error {
		r := atompmh.NewReader(a.Body, atompmh.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Content: l.src.Selection.Inline,
			Limits: atompmh.Limits(l.src.Limits.document()),
			Report: func(p atompmh.Problem) { l.problem(p.Rule, p.String()) }})
		doc := LookedAt{URL: a.URL, What: "feed document", Formats: map[string]int64{}}
		for {
			e, err := r.Next()
			var bad *atompmh.EntryError
			switch {
			case errors.As(err, &bad):
				l.bad(err)
				continue
			case errors.Is(err, io.EOF):
				f := r.Feed()
				next := ""
				if i := slices.IndexFunc(f.Links, func(l atompmh.Link) bool { return l.Rel == "next" }); i >= 0 && f.PrevArchive == "" && !f.Archive {
					next = f.Links[i].Href
				}
				l.look.Title, doc.Complete = f.Title, f.Complete && next == ""
				switch {
				case next != "":
					l.note("the feed has pages instead of archives: the first harvest reads them all, from %s on; how many there are no document says", next)
				case f.Complete:
					l.total(doc.Records, "the feed is complete")
					l.note("the feed is complete (fh:complete): a record that is missing from it is deleted")
				case f.PrevArchive != "":
					l.note("the feed has archives: the first harvest reads them all, from %s back; how many there are no document says", f.PrevArchive)
				default:
					l.note("the feed has neither archives nor fh:complete: older records than those in it are not seen")
				}
				if f.TotalResults > 0 && !doc.Complete {
					l.total(f.TotalResults, "totalResults of the feed")
				}
				l.look.Read = append(l.look.Read, doc)
				if older := cmp.Or(f.PrevArchive, next); older != "" && !doc.Complete {
					return l.allowed(older)
				}
				return nil
			case err != nil:
				return err
			case e.Tombstone || e.Kind == atompmh.Deletion:
				doc.Deletions++
				continue
			}
			doc.Records++
			links := e.Alternates()
			for i := range links {
				doc.Formats[links[i].Type]++
			}
			if len(links) == 0 && e.Content != nil {
				doc.Formats[e.Content.MediaType]++
			}
		}
	})
}

func (l *looker) total(n int64, from string) { l.look.Total, l.look.TotalFrom = n, from }

// feed looks at a legacy feed.
func (l *looker) feed(ctx context.Context) error {
	return l.get(ctx, l.src.URL, "application/atom+xml, application/rss+xml, application/rdf+xml, application/feed+json, application/xml;q=0.9, text/xml;q=0.9, application/json;q=0.8, */*;q=0.1", func(a *follow.Answer) error {
		limits := &l.src.Limits
		body, err := io.ReadAll(fetch.Limit(a.Body, cmp.Or(limits.Document, 64<<20), "a feed document"))
		if err != nil {
			return fmt.Errorf("%s: %w", a.URL, err)
		}
		r := &feedReader{url: a.URL, contentType: a.Header.Get("Content-Type"), report: l.problem, inline: l.src.Selection.Inline,
			limits: limits.document()}
		feed, err := r.read(body)
		if err != nil {
			return err
		}
		doc, counts := LookedAt{URL: a.URL, What: "feed", Formats: map[string]int64{}}, feed.latestItems(a.URL, l.problem)
		for i := range feed.items {
			it := &feed.items[i]
			switch {
			case it.rule != "":
				l.look.Bad++
				l.problem(it.rule, strictxml.Place(a.URL, it.entry.Line, it.entry.Column)+": "+it.reason)
			case counts[it.entry.ID] != it: // another one of the same record counts
			case it.entry.Kind == atompmh.Deletion:
				doc.Deletions++
			default:
				doc.Records++
				for _, link := range it.entry.Alternates() {
					doc.Formats[link.Type]++
				}
			}
		}
		l.look.Title = feed.Title
		l.look.Read = append(l.look.Read, doc)
		if feed.results > 0 {
			l.total(feed.results, "totalResults of the feed")
		}
		if err := l.allowed(feed.older); feed.older != "" && err != nil {
			l.note("it has older items that no harvest reads: %s", err)
		} else if feed.older != "" {
			l.note("it has older items at %s, which the first harvest reads too", feed.older)
		}
		if feed.protocol {
			l.note(`it has archives or is complete, as in Atom-PMH: kind = "atompmh" would see its deletions and all that it holds`)
		}
		if feed.ended {
			l.note("it says that it has ended")
		}
		l.note("a feed says nothing of deletions: records that leave it stay")
		return nil
	})
}

// lists looks at the lists of a ResourceSync Source: at the first of its sets.
func (l *looker) lists(ctx context.Context) error {
	found, err := l.src.lists().Discover(ctx)
	if err != nil {
		return err
	}
	if u, err := url.Parse(found.URL); err == nil {
		l.led = []string{u.Hostname()}
	}
	if found.Route != "" && found.URL != l.src.URL {
		l.note("its documents were found by %s: %s", found.Route, found.URL)
	}
	if n := len(found.Sets); n > 1 {
		l.note(`it has %d sets of resources, and all are harvested into one set; with sets = "each" every one becomes a set of its own. Only the first was looked at`, n)
	}
	set := found.Sets[0]
	if set.CapabilityList != "" {
		var has []string
		for _, x := range []struct{ name, at string }{{"a Resource List", set.ResourceList}, {"a Resource Dump", set.ResourceDump}, {"a Change List", set.ChangeList}, {"a Change Dump", set.ChangeDump}} {
			if x.at != "" {
				has = append(has, x.name)
			}
		}
		l.note("the Capability List %s has %s", set.CapabilityList, strings.Join(has, ", "))
	}
	if at := cmp.Or(set.ResourceList, set.ResourceDump); at != "" {
		if err := l.list(ctx, at, true); err != nil {
			return err
		}
	} else {
		l.note("it has no list of what there is, only changes: older records than those in them are not seen")
	}
	if at := cmp.Or(set.ChangeList, set.ChangeDump); at != "" {
		return l.list(ctx, at, false)
	}
	l.note("it has no list of changes: each harvest reads all of what there is, and what is missing from it is deleted")
	return nil
}

// list reads a list or, of an index, its first part.
func (l *looker) list(ctx context.Context, at string, whole bool) error {
	doc, part, parts, err := l.listDocument(ctx, at)
	if err != nil {
		return err
	}
	of := "the list has all"
	if part != "" {
		doc.Parts = parts
		l.look.Read = append(l.look.Read, doc)
		if doc, _, _, err = l.listDocument(ctx, part); err != nil {
			return err
		}
		of = fmt.Sprintf("estimate: %d parts like the first", parts)
	}
	doc.Complete = whole && part == ""
	l.look.Read = append(l.look.Read, doc)
	if whole {
		l.total(doc.Records*int64(max(parts, 1)), of)
	}
	return nil
}

// listDocument reads a document; of an index it returns the first part, and how many there are.
func (l *looker) listDocument(ctx context.Context, at string) (doc LookedAt, part string, parts int, err error) {
	err = l.get(ctx, at, "application/xml, text/xml;q=0.9, */*;q=0.1", func(a *follow.Answer) error {
		r := resourcesync.NewReader(a.Body, resourcesync.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"),
			Limits: resourcesync.Limits(l.src.Limits.list()),
			Report: func(p resourcesync.Problem) { l.problem(p.Rule, p.String()) }})
		head, err := r.Head()
		if err != nil {
			return err
		}
		doc = LookedAt{URL: a.URL, What: cmp.Or(string(head.Capability), "sitemap"), Formats: map[string]int64{}}
		if head.Index {
			doc.What += " index"
		}
		for {
			e, err := r.Next()
			var bad *resourcesync.EntryError
			switch {
			case errors.As(err, &bad):
				l.bad(err)
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return err
			case head.Index:
				parts++
				part = cmp.Or(part, e.Loc)
			case e.Metadata.Change == resourcesync.Deleted:
				doc.Deletions++
			default:
				doc.Records++
				doc.Formats[e.Metadata.Type]++
			}
		}
	})
	return doc, part, parts, err
}

// repository looks at an OAI-PMH repository: at its Identity, and at the first answer
// with records.
func (l *looker) repository(ctx context.Context) error {
	base, asked, err := l.src.repository()
	if err != nil {
		return err
	}
	id, err := l.answer(ctx, (&oaipmh.Request{Verb: oaipmh.Identify}).URL(base), nil)
	if err != nil {
		return err
	}
	if i := id.Identity; i != nil {
		l.look.Title = i.Name
		switch i.Deleted {
		case oaipmh.DeletedPersistent:
			l.note("it tells of all deletions")
		case oaipmh.DeletedTransient:
			l.note("it tells of deletions for some time: full_every compares the headers of all records")
		default:
			l.note("it does not tell of deletions: full_every compares the headers of all records, and deletes what is missing")
		}
	}
	harvested := strings.Join(append([]string{asked.Prefix}, l.src.Repository.Also...), ", ")
	formats, err := l.answer(ctx, (&oaipmh.Request{Verb: oaipmh.ListMetadataFormats}).URL(base), nil)
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil: // a harvest goes on without them
		l.note("its formats are not listed (%v); %s is harvested", err, harvested)
	default:
		var prefixes []string
		for _, f := range formats.Formats {
			prefixes = append(prefixes, f.Prefix)
		}
		l.note("its formats are %s; %s is harvested", listOf(prefixes), harvested)
	}
	asked.Verb = oaipmh.ListRecords
	doc := LookedAt{What: "first answer of ListRecords", Formats: map[string]int64{}}
	list, err := l.answer(ctx, asked.URL(base), func(at string, r *oaipmh.Record) {
		doc.URL = at
		if r.Deleted {
			doc.Deletions++
			return
		}
		doc.Records++
		doc.Formats[asked.Prefix]++
	})
	if refused, ok := errors.AsType[*oaipmh.Error](err); ok && refused.Code == oaipmh.NoRecordsMatch {
		l.note("no record matches: the repository is empty, or the selection is")
		l.total(0, "noRecordsMatch")
		return nil
	}
	if err != nil {
		return err
	}
	doc.Complete = list.Token == nil || list.Token.Value == ""
	switch {
	case list.Token != nil && list.Token.Size >= 0:
		l.total(list.Token.Size, "completeListSize of the repository")
	case doc.Complete:
		l.total(doc.Records+doc.Deletions, "the first answer has all")
	}
	l.look.Read = append(l.look.Read, doc)
	return nil
}

// answer asks a repository and calls record with each record of the answer.
func (l *looker) answer(ctx context.Context, at string, record func(at string, r *oaipmh.Record)) (answer *oaipmh.Answer, err error) {
	err = l.get(ctx, at, "text/xml, application/xml;q=0.9, */*;q=0.1", func(a *follow.Answer) error {
		r := oaipmh.NewReader(a.Body, oaipmh.ReadOptions{URL: a.URL, ContentType: a.Header.Get("Content-Type"), Lenient: true,
			Limits: oaipmh.Limits(l.src.Limits.document()),
			Report: func(p oaipmh.Problem) { l.problem(p.Rule, p.String()) }})
		for {
			rec, err := r.Next()
			var bad *oaipmh.RecordError
			switch {
			case errors.As(err, &bad):
				l.bad(err)
			case errors.Is(err, io.EOF):
				answer = r.Answer()
				return nil
			case err != nil:
				return err
			case record != nil:
				record(a.URL, rec)
			}
		}
	})
	return answer, err
}

// folder looks through a folder, and opens no file.
func (l *looker) folder(ctx context.Context) error {
	root, err := l.src.openFolder()
	if err != nil {
		return err
	}
	defer root.Close()
	doc := LookedAt{URL: l.src.URL, What: "folder", Formats: map[string]int64{}}
	names := map[string]bool{} // of records that may have several files
	found, err := scanFolder(ctx, root, time.Now(), func(f *folderFile) error {
		doc.Formats[fetch.MediaType(f.Path)]++
		if f.Size == 0 {
			l.problem(ruleChanging, shown(f.Path)+" is empty: it waits until something is in it")
		}
		if l.src.Folder.ByName {
			names[l.src.Folder.nameOf(f.Path)] = true
		} else {
			doc.Records++
		}
		return nil
	}, l.problem)
	if err != nil {
		return folderMissing(err)
	}
	doc.Records += int64(len(names))
	doc.Complete = found.unread == nil
	l.look.Read = append(l.look.Read, doc)
	l.total(doc.Records, "a look through the folder")
	if l.src.Folder.ByName {
		l.note("files of one folder whose names differ in the extension only are one record")
	} else {
		l.note("each file is a record, called by its path")
	}
	if doc.Records == 0 {
		l.note("no file in it can be a record: is its disk or server mounted?")
	}
	l.note("a file that is gone is deleted, behind the guard")
	return nil
}

// rows looks at a list in plain text, all of it.
func (l *looker) rows(ctx context.Context) error {
	return l.get(ctx, l.src.URL, acceptRows, func(a *follow.Answer) error {
		rd, err := newRowReader(fetch.Limit(a.Body, cmp.Or(l.src.Limits.List, maxList), "a list"), l.src.Kind)
		if err != nil {
			return fmt.Errorf("%s: %w", a.URL, err)
		}
		what := map[string]string{CSV: "table", Sitemap: "text sitemap"}[l.src.Kind]
		doc := LookedAt{URL: a.URL, What: what, Formats: map[string]int64{}}
		met := map[string]bool{}
		bad := 0
		for {
			e, err := rd.row()
			var wrong *rowFault
			switch {
			case errors.Is(err, io.EOF):
				if why := rd.doubt(bad, a.Delimited); why != "" {
					l.problem(ruleRowEnd, fmt.Sprintf("%s: %s: nothing is deleted because it is absent", a.URL, why))
				} else {
					doc.Complete = true
				}
				l.look.Read = append(l.look.Read, doc)
				l.total(doc.Records, "the list has all")
				l.note("a record whose row is gone is deleted, behind the guard")
				return nil
			case errors.As(err, &wrong):
				bad++
				l.look.Bad++
				l.problem(wrong.rule, fmt.Sprintf("%s: %s", strictxml.Place(a.URL, rd.line, 1), wrong.reason))
				continue
			case err != nil:
				return fmt.Errorf("%s: %w", a.URL, err)
			}
			switch id := cmp.Or(e.Metadata.ID, e.Loc); {
			case met[id]:
				l.problem(ruleRowTwice, fmt.Sprintf("%s: record %q is in the list twice; the first row counts", a.URL, id))
			case e.Metadata.Change == resourcesync.Deleted:
				met[id] = true
				doc.Deletions++
			default:
				met[id] = true
				doc.Records++
				doc.Formats[e.Metadata.Type]++
			}
		}
	})
}
