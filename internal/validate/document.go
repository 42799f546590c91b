package validate

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
	"github.com/pmh-bridge/bridge/sip"
)

// The rules that are broken by a document that cannot be read to its end.
const (
	atomDocument = "4287-document"
	listDocument = "rs-document"
)

// broken adds a finding for the error that has ended the reading of a document. Our own
// limits are no rules; errors of the transport are no fault of the document.
func (r *run) broken(rule, at, cap string, line, column int, reason string) {
	if cap != "" {
		r.unread(at, errors.New(reason))
		return
	}
	r.found(Finding{Rule: rule, URL: at, Line: line, Column: column, Found: reason, Expected: "a document that can be read to its end"})
}

// feed checks an Atom Feed Document.
func (r *run) feed(in input) {
	d := r.begin(in.url)
	d.Kind = "Atom Feed Document"
	rd := atompmh.NewReader(in.body, atompmh.ReadOptions{URL: in.url, ContentType: in.contentType, Strict: true, Report: r.atomProblem})
	var all newest
	defer func() { r.noteAlternates(&all) }()
	for {
		e, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if stop := r.entryError(d, in.url, err); stop {
			return
		}
		if e != nil {
			r.addNewest(&all, in.url, e)
		}
	}
	d.Kind = feedKind(rd.Feed())
}

// feedKind returns which document of a logical feed it is.
func feedKind(f *atompmh.Feed) string {
	switch {
	case f.Complete:
		return "Atom-PMH complete feed"
	case f.Archive || f.NextArchive != "":
		return "Atom-PMH archive document"
	}
	return "Atom-PMH subscription document"
}

func (r *run) atomProblem(p atompmh.Problem) {
	r.found(Finding{Rule: p.Rule, URL: p.URL, Line: p.Line, Column: p.Column, Record: p.Record, Found: p.Found, Expected: p.Expected})
}

// entryError counts an entry and adds findings for its error, or for the error that ends the
// document.
func (r *run) entryError(d *document, at string, err error) (stop bool) {
	var atom *atompmh.EntryError
	var list *resourcesync.EntryError
	var oai *oaipmh.RecordError
	var atomEnd *atompmh.DocumentError
	var listEnd *resourcesync.DocumentError
	var oaiEnd *oaipmh.DocumentError
	bad := func(rule string, line, column int, record, reason string) {
		d.Entries++
		found, expected := split(reason)
		r.found(Finding{Rule: rule, URL: at, Line: line, Column: column, Record: record, Found: found, Expected: expected})
	}
	switch {
	case err == nil:
		d.Entries++
		return false
	case errors.As(err, &atom):
		bad(atom.Rule, atom.Line, atom.Column, atom.ID, atom.Reason)
		return false
	case errors.As(err, &list):
		bad(list.Rule, list.Line, list.Column, list.Loc, list.Reason)
		return false
	case errors.As(err, &oai):
		bad(oai.Rule, oai.Line, oai.Column, oai.Header.Identifier, oai.Reason)
		return false
	case errors.As(err, &atomEnd):
		r.broken(atomDocument, at, atomEnd.Cap, atomEnd.Line, atomEnd.Column, atomEnd.Reason)
	case errors.As(err, &listEnd):
		r.broken(listDocument, at, listEnd.Cap, listEnd.Line, listEnd.Column, listEnd.Reason)
	case errors.As(err, &oaiEnd):
		r.broken(oaiDocument, at, oaiEnd.Cap, oaiEnd.Line, oaiEnd.Column, oaiEnd.Reason)
	default:
		d.Kind = ""
		r.unread(at, err)
	}
	return true
}

// split splits a reason into what was found and what is expected.
func split(reason string) (found, expected string) {
	found, expected, ok := strings.Cut(reason, "; want ")
	if !ok {
		expected = "what the rule says"
	}
	return found, expected
}

// list checks a ResourceSync document.
func (r *run) list(in input) {
	d := r.begin(in.url)
	d.Kind = "ResourceSync document"
	rd := resourcesync.NewReader(in.body, resourcesync.ReadOptions{URL: in.url, ContentType: in.contentType, Strict: true, Report: r.listProblem})
	head, _ := rd.Head() // Next returns the same error
	for {
		e, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if stop := r.entryError(d, in.url, err); stop {
			return
		}
		if e != nil {
			r.noteEntry(head, in.url, e)
		}
	}
	d.Kind = listKind(rd.Document())
}

// listKind returns the name of a ResourceSync document in the specification.
func listKind(d *resourcesync.Document) string {
	name := map[resourcesync.Capability]string{
		resourcesync.Description: "Source Description", resourcesync.CapabilityList: "Capability List",
		resourcesync.ResourceList: "Resource List", resourcesync.ChangeList: "Change List",
		resourcesync.ResourceDump: "Resource Dump", resourcesync.ChangeDump: "Change Dump",
		resourcesync.ResourceDumpManifest: "Resource Dump Manifest", resourcesync.ChangeDumpManifest: "Change Dump Manifest",
		resourcesync.ResourceListArchive: "Resource List Archive", resourcesync.ChangeListArchive: "Change List Archive",
		resourcesync.ResourceDumpArchive: "Resource Dump Archive", resourcesync.ChangeDumpArchive: "Change Dump Archive",
		resourcesync.ChangeNotification: "Change Notification",
	}[d.Capability]
	switch {
	case d.Dialect == resourcesync.DialectSitemap:
		name = "sitemap"
	case name == "":
		name = "ResourceSync document of unknown capability"
	}
	if d.Index {
		name += " Index"
	}
	if d.Dialect != resourcesync.DialectSitemap {
		name += " (" + string(d.Dialect) + ")"
	}
	return name
}

func (r *run) listProblem(p resourcesync.Problem) {
	r.found(Finding{Rule: p.Rule, URL: p.URL, Line: p.Line, Column: p.Column, Found: p.Found, Expected: p.Expected})
}

// message checks a SIP message, in an envelope or without one.
func (r *run) message(ctx context.Context, in input) {
	d := r.begin(in.url)
	d.Kind = "SIP message"
	places := sip.Places{}
	m, err := sip.ReadMessage(in.body, sip.ReadOptions{URL: in.url, ContentType: in.contentType, Plain: true, Context: ctx, Places: places})
	var fault *sip.Fault
	switch {
	case errors.As(err, &fault) && fault.Rule == "":
		d.Kind = ""
		r.unread(in.url, fault)
	case errors.As(err, &fault):
		found, expected, ok := strings.Cut(strings.TrimPrefix(fault.Text, "found "), ", expected ")
		if !ok {
			expected = "a message that can be read to its end"
		}
		r.found(Finding{Rule: fault.Rule, URL: in.url, Line: fault.Line, Column: fault.Column, Record: fault.Path, Found: found, Expected: expected})
	case err != nil:
		d.Kind = ""
		r.unread(in.url, err)
	default:
		d.Kind, d.Entries = "SIP "+m.Kind.String(), 1
		m.Check(places, func(p sip.Problem) {
			r.found(Finding{Rule: p.Rule, URL: in.url, Line: p.Line, Column: p.Column, Record: p.Path, Found: p.Found, Expected: p.Expected})
		})
	}
}
