package oaipmh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// draftRecord is a record while it is being read, with what it breaks.
type draftRecord struct {
	Record
	identifiers, datestamps int
	headers, metadatas      int
	garbled                 bool   // the identifier has characters that cannot be known
	rule, reason            string // why it is bad; the first reason stands
}

func (d *draftRecord) bad(rule, format string, args ...any) {
	if d.rule == "" {
		d.rule, d.reason = rule, fmt.Sprintf(format, args...)
	}
}

// record reads the record, or the header alone, whose start tag is the current token.
func (r *Reader) record() (*Record, error) {
	s := r.scan
	d := &draftRecord{}
	d.Line, d.Column = s.Line, s.Column
	mended := s.Mended()
	r.seen.records++
	alone, depth := s.Local == "header", s.Depth()
	if s.Space != Namespace { // to leave it out would make the record absent
		d.bad(ruleOrder, "<%s> is in %s; want that of the protocol, %s", s.Local, inNamespace(s.Space), Namespace)
	}
	var err error
	if alone {
		err = r.header(d)
	} else {
		err = r.children(d)
	}
	if err != nil {
		if !r.o.Lenient || !s.Recover(depth) {
			return nil, err
		}
		r.recovered = true
		what := "it is not well-formed"
		if fault, ok := errors.AsType[*strictxml.DocumentError](err); ok && fault.Cap != "" {
			what = "it exceeds a limit"
		}
		d.bad(ruleDocument, "%s: %v", what, err)
		if hasAnother(s.Slice(r.from, s.Offset()), alone) { // it was cut off
			d.identifiers = 0
		}
	}
	r.to = s.Offset()
	d.Mended = s.Mended() > mended
	r.check(d, alone)
	if d.rule == "" {
		return &d.Record, nil
	}
	if d.identifiers != 1 {
		d.Identifier = ""
	}
	return nil, &RecordError{Rule: d.rule, URL: r.o.URL, Line: d.Line, Column: d.Column, Header: d.Header, Reason: d.reason, Input: r.Input()}
}

func inNamespace(space string) string {
	if space == "" {
		return "no namespace"
	}
	return fmt.Sprintf("namespace %q", clip(space))
}

// hasAnother reports whether a record, or a header alone, that is not well-formed may have
// another one in it, by its text.
func hasAnother(record []byte, alone bool) bool {
	name := record[1:]
	name = name[:bytes.IndexAny(name, "> \t\r\n/")]
	end := "header>"
	if alone {
		end = "identifier>"
	}
	return bytes.Count(record, slices.Concat([]byte("</"), name[:bytes.IndexByte(name, ':')+1], []byte(end))) > 1
}

// children reads the elements of a record.
func (r *Reader) children(d *draftRecord) error {
	s := r.scan
	last := 0
	for depth := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		if s.Kind == strictxml.EndTag && s.Depth() < depth {
			return nil
		}
		if s.Kind != strictxml.StartTag {
			continue
		}
		r.strictOrder(&last)
		var err error
		switch {
		case s.Space != Namespace:
			err = r.leaveOut()
		case s.Local == "header":
			err = r.header(d)
		case s.Local == "metadata":
			err = r.metadata(d)
		case s.Local == "about":
			err = r.about(d)
		default:
			err = r.leaveOut()
		}
		if err != nil {
			return err
		}
	}
}

// check finds what is wrong with a record that was read (O9, O10).
func (r *Reader) check(d *draftRecord, alone bool) {
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Line: d.Line, Column: d.Column, Record: d.Identifier, Found: found, Expected: expected})
	}
	switch {
	case d.headers != 1:
		d.bad(ruleHeader, "%d headers; want one", d.headers)
	case d.identifiers != 1:
		d.bad(ruleIdentifier, "%d identifiers; want one", d.identifiers)
	case d.Identifier == "":
		d.bad(ruleIdentifier, "an empty identifier")
	case d.garbled: // others may look the same
		d.identifiers = 0
		d.bad(ruleIdentifier, "an identifier with bytes or characters that XML in UTF-8 does not allow, %q; want one that can be read", clip(d.Identifier))
	case len(d.Identifier) > strictxml.MaxReference:
		d.identifiers = 0
		d.bad(ruleIdentifier, "an identifier of %d bytes; want at most %d", len(d.Identifier), strictxml.MaxReference)
	}
	if d.datestamps != 1 {
		report(ruleDatestamp, fmt.Sprintf("%d datestamps", d.datestamps), "one")
	}
	switch {
	case d.Deleted && (d.metadatas > 0 || d.About != nil || d.Provenance != nil):
		report(ruleDeleted, "a deleted record with metadata or about", "none; it is deleted")
		d.Metadata, d.Root, d.About, d.Provenance = nil, xml.Name{}, nil, nil
		if d.rule == ruleMetadata {
			d.rule = ""
		}
	case alone || d.Deleted:
	case d.metadatas == 0:
		d.bad(ruleHeader, "neither metadata nor status deleted; want one of them")
	case d.metadatas > 1:
		d.bad(ruleMetadata, "%d metadata; want one", d.metadatas)
	}
	if r.o.Strict {
		r.strictRecord(d, report)
	}
}

// header reads a header (2.5).
func (r *Reader) header(d *draftRecord) error {
	s := r.scan
	d.headers++
	if status, ok := s.Attr("", "status"); ok {
		trimmed, expected := strictxml.Trim(status), "deleted, or no status; it is ignored"
		if strings.EqualFold(trimmed, "deleted") {
			d.Deleted, expected = true, "deleted; it is taken for that"
		}
		if trimmed != "deleted" {
			r.report(ruleDeleted, "status "+strconv.Quote(clip(status)), expected)
		}
	}
	r.specs, r.ends = r.specs[:0], r.ends[:0]
	last := 0
	for depth := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		if s.Kind == strictxml.EndTag && s.Depth() < depth {
			break
		}
		if s.Kind != strictxml.StartTag {
			continue
		}
		if s.Space != Namespace {
			r.unknown()
			if err := s.Skip(); err != nil {
				return err
			}
			continue
		}
		r.strictOrder(&last)
		local, mended := s.Local, s.Mended()
		text, _, err := s.Characters()
		if err != nil {
			return err
		}
		trimmed := bytes.Trim(text, " \t\r\n")
		switch local {
		case "identifier":
			// The type is anyURI, of which white space around it is no part.
			if len(trimmed) < len(text) {
				r.report(ruleIdentifier, "white space around an identifier", "none; it is left out")
			}
			if d.identifiers++; d.identifiers == 1 {
				d.Identifier = string(trimmed)
				d.garbled = s.Mended() > mended && bytes.ContainsRune(trimmed, utf8.RuneError)
			}
		case "datestamp":
			if d.datestamps++; d.datestamps == 1 {
				r.datestamp(d, trimmed)
			}
		case "setSpec":
			if len(trimmed) > 0 && len(r.ends) < maxSpecs {
				r.specs = append(r.specs, trimmed...)
				r.ends = append(r.ends, len(r.specs))
			}
		default:
			r.report(ruleOrder, "<"+clip(local)+"> in a header", "an element of the schema")
		}
	}
	if d.headers == 1 {
		d.Sets = r.setsOf()
	}
	return nil
}

// maxSpecs is how many setSpecs of a header are kept.
const maxSpecs = 10_000

// datestamp reads a datestamp, in the form of the protocol or another one (O7). Without
// one the record is taken all the same, with a zero Datestamp.
func (r *Reader) datestamp(d *draftRecord, text []byte) {
	var ok bool
	if d.Datestamp, d.Day, ok = parseDatestamp(text); ok {
		return
	}
	d.Datestamp, d.Day, ok = guessDatestamp(text)
	expected := "YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ; it is taken as "
	if ok {
		expected += d.stamp()
	} else {
		expected += "unknown"
	}
	r.problem(Problem{Rule: ruleDatestamp, Line: d.Line, Column: d.Column, Record: d.Identifier, Found: "datestamp " + strconv.Quote(clip(string(text))), Expected: expected})
}

// stamp returns the datestamp in the form of the protocol.
func (h *Header) stamp() string {
	if h.Day {
		return Day.Format(h.Datestamp)
	}
	return Second.Format(h.Datestamp)
}

// setsOf makes strings of the setSpecs that were read. Most records have those of the
// record before.
func (r *Reader) setsOf() []string {
	same, start := len(r.ends) == len(r.sets), 0
	for i := 0; same && i < len(r.ends); i++ {
		same = string(r.specs[start:r.ends[i]]) == r.sets[i]
		start = r.ends[i]
	}
	if same {
		return r.sets
	}
	sets := make([]string, len(r.ends))
	start = 0
	for i, end := range r.ends {
		spec := r.specs[start:end]
		known, ok := r.strings[string(spec)]
		if !ok {
			known = string(spec)
			r.checkSetSpec(known)
			if r.strings == nil || len(r.strings) == 1024 {
				r.strings = map[string]string{}
			}
			r.strings[known] = known
		}
		sets[i], start = known, end
	}
	r.sets = sets
	if len(sets) == 0 {
		r.sets = nil
	}
	return r.sets
}

// checkSetSpec reports a setSpec that is not valid.
func (r *Reader) checkSetSpec(spec string) {
	if !CanBeSet(spec) {
		r.report(ruleSetSpec, "setSpec "+strconv.Quote(clip(spec)), "names of letters, digits and -_.!~*'() with colons between them")
	}
}

// metadata reads the metadata of a record: the one element in it (O10).
func (r *Reader) metadata(d *draftRecord) error {
	s := r.scan
	d.metadatas++
	elements := 0
	for outer := s.Depth(); ; {
		if err := s.Next(); err != nil {
			return err
		}
		switch s.Kind {
		case strictxml.EndTag:
			if s.Depth() < outer {
				if elements != 1 {
					d.bad(ruleMetadata, "metadata with %d elements; want one", elements)
				}
				return nil
			}
		case strictxml.Text:
			if !blank(s.Data) {
				d.bad(ruleMetadata, "metadata with text beside an element")
			}
		case strictxml.StartTag:
			if elements++; elements > 1 || d.metadatas > 1 {
				if err := s.Skip(); err != nil {
					return err
				}
				continue
			}
			if r.o.Strict && s.Space == DCNamespace {
				r.strictSchema(DCNamespace)
			}
			d.Root = xml.Name{Space: s.Space, Local: s.Local}
			var err error
			if d.Metadata, _, err = s.Element(depth(r.o.Limits), Namespace, schemaInstance); err != nil {
				return err
			}
		}
	}
}

func blank(text []byte) bool { return len(bytes.Trim(text, " \t\r\n")) == 0 }

// maxAbout is how many about containers of a record are kept.
const maxAbout = 100

// about reads an about container.
func (r *Reader) about(d *draftRecord) error {
	s := r.scan
	elements := 0
	if err := s.Children(func() error {
		if elements++; elements > 1 || len(d.About) == maxAbout {
			return s.Skip()
		}
		if s.Space == ProvenanceNamespace && s.Local == "provenance" && d.Provenance == nil {
			return r.provenance(d)
		}
		doc, _, err := s.Element(depth(r.o.Limits), Namespace, schemaInstance)
		d.About = append(d.About, doc)
		return err
	}); err != nil {
		return err
	}
	if elements != 1 {
		r.report(ruleAbout, fmt.Sprintf("about with %d elements", elements), "one")
	}
	return nil
}

// provenance reads where a record was harvested from (guideline on provenance).
func (r *Reader) provenance(d *draftRecord) error {
	s := r.scan
	return s.Children(func() error {
		if s.Space != ProvenanceNamespace || s.Local != "originDescription" || d.Provenance != nil {
			return s.Skip()
		}
		var err error
		d.Provenance, err = r.origin()
		return err
	})
}

// origin reads an originDescription, and those inside of it. The cap on depth limits
// how deep they go.
func (r *Reader) origin() (*Provenance, error) {
	s := r.scan
	p := &Provenance{}
	altered, _ := s.Attr("", "altered")
	p.Altered = strictxml.Trim(altered) == "true" || strictxml.Trim(altered) == "1"
	if value, ok := s.Attr("", "harvestDate"); ok {
		at, day, ok := parseDatestamp([]byte(strictxml.Trim(value)))
		if !ok || day {
			r.report(ruleProvenance, "harvestDate "+strconv.Quote(clip(value)), "YYYY-MM-DDThh:mm:ssZ")
			at, _, _ = guessDatestamp([]byte(value))
		}
		p.Harvested = at
	}
	err := s.Children(func() (err error) {
		if s.Space != ProvenanceNamespace {
			return s.Skip()
		}
		switch s.Local {
		case "baseURL":
			p.BaseURL, err = r.field(ruleProvenance)
		case "identifier":
			p.Identifier, err = r.field(ruleProvenance)
		case "datestamp":
			p.Datestamp, err = r.field(ruleProvenance)
		case "metadataNamespace":
			p.MetadataNamespace, err = r.field(ruleProvenance)
		case "originDescription":
			if p.Origin != nil {
				return s.Skip()
			}
			p.Origin, err = r.origin()
		default:
			err = s.Skip()
		}
		return err
	})
	return p, err
}
