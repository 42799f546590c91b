package oaipmh

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// The rules of this file are checked by a strict Reader alone: every harvester can read
// an answer that breaks them.

// schema returns the URL of the schema that the specification names for a namespace
// (3.2, 2.5).
func schema(namespace string) string {
	if namespace == DCNamespace {
		return "http://www.openarchives.org/OAI/2.0/oai_dc.xsd"
	}
	return "http://www.openarchives.org/OAI/2.0/OAI-PMH.xsd"
}

// strictOrder checks that the current element does not stand behind one that has to
// follow it. last is the place of the one before in the schema.
func (r *Reader) strictOrder(last *int) {
	if !r.o.Strict {
		return
	}
	place := 1 + slices.Index([]string{
		"responseDate", "request", "error", "Identify", "ListMetadataFormats", "ListSets", "GetRecord", "ListIdentifiers", "ListRecords",
		"repositoryName", "baseURL", "protocolVersion", "adminEmail", "earliestDatestamp", "deletedRecord", "granularity", "compression", "description",
		"header", "metadata", "about",
		"identifier", "datestamp", "setSpec", "setName", "setDescription",
	}, r.scan.Local)
	if place > 0 && place < *last {
		r.report(ruleOrder, "<"+r.scan.Local+"> behind an element that has to follow it", "the order of OAI-PMH.xsd")
	}
	*last = max(*last, place)
}

// strictAnswer checks an answer that was read to its end.
func (r *Reader) strictAnswer() {
	a, q := &r.answer, &r.answer.Request
	report := func(rule, found, expected string) {
		r.problem(Problem{Rule: rule, Found: found, Expected: expected})
	}
	asked := *q != Request{}
	wrong := slices.ContainsFunc(r.errs, func(err error) bool { return has(err, BadVerb) || has(err, BadArgument) })
	switch {
	case r.seen.requests == 0: // reported
	case a.BaseURL == "":
		report(ruleRequest, "a request without a text", "the base URL")
	case wrong && asked:
		report(ruleRequest, "a request with attributes beside badVerb or badArgument", "none of them")
	case a.Verb != "" && q.Verb != a.Verb:
		report(ruleRequest, "a request with verb "+strconv.Quote(clip(string(q.Verb)))+" in an answer to "+string(a.Verb), "the verb of the answer")
	}
	if t := a.Token; t != nil {
		if t.Size == 0 {
			report(ruleToken, "completeListSize 0", "the number of all records of the list, or no completeListSize")
		}
		if t.Cursor > 0 && q.Token == "" && q.Verb != "" {
			report(ruleToken, fmt.Sprintf("cursor %d in the first answer of a list", t.Cursor), "0")
		}
	}
	for _, f := range a.Formats {
		if f.Prefix != "" && !CanBePrefix(f.Prefix) {
			report(ruleFormats, "metadataPrefix "+strconv.Quote(clip(f.Prefix)), "letters, digits and -_.!~*'()")
		}
		for _, uri := range []string{f.Schema, f.Namespace} {
			if uri != "" && !strictxml.HasScheme(uri) {
				report(ruleFormats, strconv.Quote(clip(uri))+" of format "+clip(f.Prefix), "a URI")
			}
		}
	}
	if id := a.Identity; id != nil {
		for _, email := range id.AdminEmails {
			if !CanBeAdminEmail(email) {
				report(ruleIdentify, "adminEmail "+strconv.Quote(clip(email)), "an address of mail")
			}
		}
		if !id.Earliest.IsZero() && r.seen.earliestDay != (id.Granularity == Day) {
			report(ruleIdentify, "earliestDatestamp in another granularity than "+id.Granularity.String(), "the granularity that Identify says")
		}
	}
}

// strictSchema checks the xsi:schemaLocation of the current element.
func (r *Reader) strictSchema(namespace string) {
	want := namespace + " " + schema(namespace)
	location, ok := r.scan.Attr(schemaInstance, "schemaLocation")
	if !ok {
		r.report(ruleSchema, "no xsi:schemaLocation on <"+r.scan.Local+">", want)
		return
	}
	pairs := strings.Fields(location)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == namespace && strings.TrimPrefix(pairs[i+1], "https:") == strings.TrimPrefix(schema(namespace), "http:") ||
			pairs[i] == namespace && pairs[i+1] == schema(namespace) {
			return
		}
	}
	r.report(ruleSchema, "xsi:schemaLocation "+strconv.Quote(clip(location)), want)
}

// maxTwice is how many identifiers strictRecord remembers.
const maxTwice = 1_000_000

// strictRecord checks a record that was read.
func (r *Reader) strictRecord(d *draftRecord, report func(rule, found, expected string)) {
	if d.Identifier == "" {
		return
	}
	if !strictxml.HasScheme(d.Identifier) {
		report(ruleIdentifier, "an identifier that is no URI", "a URI, such as oai:example.org:1")
	}
	if r.seen.twice[d.Identifier] {
		report(ruleTwice, "a second record with the identifier", "one; of several the latest datestamp counts")
	}
	if len(r.seen.twice) < maxTwice {
		if r.seen.twice == nil {
			r.seen.twice = map[string]bool{}
		}
		r.seen.twice[d.Identifier] = true
	}
}
