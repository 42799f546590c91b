package delivery

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// row makes a new submission of an event, with the XML of its record: the preferred
// representation if it is XML, else the first that is.
func (o *Submitter) row(ev *event.Event) submission.Submission {
	s := submission.Submission{Source: o.Source, Seq: ev.Seq, Record: ev.Record, SourceIdentifier: ev.Record, Title: ev.Title}
	var content *event.Representation
	for i := range ev.Representations {
		r := &ev.Representations[i]
		if isXML(r.Type) && (content == nil || i == ev.Preferred) {
			content = r
		}
	}
	var sum []byte
	if content != nil {
		sum, _ = hex.DecodeString(content.SHA256())
	}
	var in submission.Input = submission.Enqueue{}
	switch {
	case ev.Kind == event.Deleted:
		in = submission.Unsendable{Reason: "a deletion: SIP has none"}
	case content == nil:
		in = submission.Unsendable{Reason: "no representation of it is XML"}
	case len(sum) != len(s.Content):
		in = submission.Unsendable{Reason: `its content is not kept here: only the records of a set with content = "mirror" can be submitted`}
	default:
		s.Content, s.Length, s.Type = [32]byte(sum), content.Length, content.Type
		s.SourceXML = sip.AppendSource(nil, sourceElement(o.Submitter, o.Sequence, &s.Record))
		if o.Recipient != nil {
			s.Token = NewToken()
		}
	}
	s, _ = submission.Apply(s, in, o.Now())
	return s
}

// isXML reports whether a media type is one of XML (RFC 7303).
func isXML(mediaType string) bool {
	t, _, _ := strings.Cut(strings.ToLower(mediaType), ";")
	t = strings.TrimSpace(t)
	return t == "application/xml" || t == "text/xml" || strings.HasSuffix(t, "+xml")
}

// request makes the request of a submission; nil when it is not to be sent, and then r
// has the reason.
func (o *Submitter) request(ctx context.Context, r *report, formats []string) *sip.Request {
	stored, err := o.content(ctx, r.Content)
	if err != nil {
		r.local, r.Err = true, fmt.Errorf("its content cannot be read here: %w", err)
		return nil
	}
	record, err := sip.ReadRecord(bytes.NewReader(stored), sip.ReadOptions{}.Limits)
	if err != nil {
		r.unsent = "the record cannot be read: " + submission.Clip(err.Error())
		return nil
	}
	format := formatOf(&record, o.Formats[record.Root], formats)
	if !o.SkipProperties {
		r.unsent = unlisted(&record, format, formats)
	}
	if r.unsent != "" {
		if format == "" {
			r.unsent += "; name its schema under formats of the target"
		}
		return nil
	}
	source := sourceElement(o.Submitter, o.Sequence, &r.Record)
	if r.unsent = unwritable(source); r.unsent != "" {
		return nil
	}
	request := &sip.Request{Source: source, Record: record}
	if o.Recipient != nil && r.Token != "" {
		request.Recipient = o.Recipient(r.Token)
	}
	return request
}

// unwritable returns why a source element cannot be sent: XML does not hold a text of it.
// The writer replaces such characters, which would make one record of several.
func unwritable(s *sip.Source) string {
	if s == nil {
		return ""
	}
	read, err := sip.ParseSource(sip.AppendSource(nil, s))
	if err != nil {
		return "its source element cannot be written: " + submission.Clip(err.Error())
	}
	texts, held := submission.SourceTexts(s), submission.SourceTexts(read)
	for _, path := range slices.Sorted(maps.Keys(texts)) {
		if texts[path] != held[path] {
			return fmt.Sprintf("its %s has characters that XML does not hold: %q", strings.TrimPrefix(path, "source/"), submission.Clip(texts[path]))
		}
	}
	return ""
}

func (o *Submitter) content(ctx context.Context, sum [32]byte) ([]byte, error) {
	r, err := o.Contents.Open(ctx, sum)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	stored := make([]byte, r.Size())
	_, err = io.ReadFull(r, stored)
	return stored, err
}

// formatOf is the schema that a record names itself, if the server lists it, else
// the one that was configured for it, if any.
func formatOf(record *sip.Record, configured string, listed []string) string {
	own := record.Locations()[record.Root.Space]
	if own != "" && (configured == "" || slices.Contains(listed, own)) {
		return own
	}
	return configured
}

// unlisted returns why a record is not sent to a server that lists these formats; "" when
// it may be sent.
func unlisted(record *sip.Record, format string, listed []string) string {
	const shown = 5
	if format != "" && slices.Contains(listed, format) {
		return ""
	}
	var urls []string
	for _, url := range listed[:min(len(listed), shown)] {
		urls = append(urls, submission.Clip(url))
	}
	accepts := strings.Join(urls, ", ")
	if more := len(listed) - shown; more > 0 {
		accepts += fmt.Sprintf(" and %d more", more)
	}
	if format == "" {
		return fmt.Sprintf("its format is not known: the record names no schema for its root %s; the server accepts %s", submission.Clip(submission.QualifiedName(record.Root)), accepts)
	}
	return fmt.Sprintf("the server does not accept the format %s; it accepts %s", submission.Clip(format), accepts)
}
