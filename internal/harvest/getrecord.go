package harvest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/oaipmh"
)

var (
	// ErrGone: a repository does not have a record (any more).
	ErrGone = errors.New("the repository does not have the record")
	// errNoFormat: it has the record, and not in the format that was asked for.
	errNoFormat = errors.New("the repository does not have the record in this format")
)

// headerRule is the rule of oaipmh that a record breaks which has no metadata and is not
// deleted, and identifierRule the one that a header breaks whose identifier is not known.
const headerRule, identifierRule = "oai-header", "oai-identifier"

// fetchRecord asks a repository for a record in one format, and takes that out of its
// envelope. It cannot be compared with what the list of the record had: the bytes may
// be written in another way there.
func (r *run) fetchRecord(ctx context.Context, j contentJob, rep *event.Representation, keep *contentWriter) contentJob {
	rec, err := r.getRecord(ctx, &j, rep.Href)
	switch {
	case j.err != nil: // there was no answer
		return j
	case errors.Is(err, errNoFormat):
		j.err, j.never = err, true
		return j
	case err != nil:
		j.err, j.final = err, errors.Is(err, ErrGone) || j.status != 0 && !fetch.TransientStatus(j.status)
		return j
	}
	j.status = 0
	return r.keepContent(ctx, j, rep, rep.Href, bytes.NewReader(rec.Metadata), newHashCheck(&event.Representation{}), keep)
}

// getRecord makes a GetRecord request. j gets the status of an answer with another one
// than 200, and why there was no answer.
func (r *run) getRecord(ctx context.Context, j *contentJob, href string) (*oaipmh.Record, error) {
	resp, err := r.getContent(ctx, j, href)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		j.status = resp.StatusCode
	}
	return readRecord(resp, resp.Body, href, &r.src.Limits)
}

// ReadOriginal reads the record in an answer to a GetRecord request, whose body may be
// another reader. The error is ErrGone where there is no such record, or no longer.
func ReadOriginal(resp *http.Response, body io.Reader, href string, l *Limits) (metadata []byte, err error) {
	rec, err := readRecord(resp, body, href, l)
	if err != nil {
		return nil, err
	}
	return rec.Metadata, nil
}

// readRecord reads the record in an answer to a GetRecord request.
func readRecord(resp *http.Response, body io.Reader, href string, l *Limits) (*oaipmh.Record, error) {
	rd := oaipmh.NewReader(body, oaipmh.ReadOptions{URL: href, ContentType: resp.Header.Get("Content-Type"), Lenient: true,
		Limits: oaipmh.Limits(l.document())})
	rec, err := rd.Next()
	if err == nil {
		switch _, end := rd.Next(); {
		case end == nil:
			err = fmt.Errorf("%s: the answer has more than one record", href)
		case !errors.Is(end, io.EOF): // a cut answer is never applied (O1)
			err = end
		}
	}
	var refused *oaipmh.Error
	var bad *oaipmh.RecordError
	about := "" // which record
	if err == nil && rec != nil {
		about = rec.Identifier
	} else if errors.As(err, &bad) {
		about = bad.Header.Identifier
	}
	switch {
	case about != "" && about != identifierOf(href):
		return nil, fmt.Errorf("%s: the answer is about another record, %q", href, strictxml.Clip(about))
	case errors.As(err, &bad) && bad.Rule == headerRule && bad.Header.Identifier != "" && !bad.Header.Datestamp.IsZero():
		// EPrints has the header alone for a record that is not in a format.
		return nil, fmt.Errorf("%s: %w", href, errNoFormat)
	case errors.As(err, &refused) && refused.Code == oaipmh.IDDoesNotExist, err == nil && rec.Deleted:
		return nil, fmt.Errorf("%s: %w", href, ErrGone)
	case errors.As(err, &refused) && refused.Code == oaipmh.CannotDisseminateFormat:
		return nil, fmt.Errorf("%s: %w", href, errNoFormat)
	case errors.As(err, &refused):
		return nil, err
	case fetch.Gone(resp.StatusCode):
		return nil, fmt.Errorf("%s answered %s: %w", href, resp.Status, ErrGone)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answered %s", href, resp.Status)
	case err == nil && rec.Metadata == nil:
		return nil, fmt.Errorf("%s: the record has no metadata", href)
	}
	return rec, err
}

// identifierOf returns the identifier that a GetRecord request asks for.
func identifierOf(href string) string {
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	return u.Query().Get("identifier")
}

// askRecord finds out whether a repository has a record.
func (r *run) askRecord(ctx context.Context, j contentJob, href string) contentJob {
	_, err := r.getRecord(ctx, &j, href)
	if j.gone = errors.Is(err, ErrGone); j.err == nil && !errors.Is(err, errNoFormat) {
		j.err = err
	}
	return j
}

// client returns a client for single requests to the repository.
func (w *oaiWalk) client() *oaipmh.Client {
	r, l := w.r, &w.r.src.Limits
	return &oaipmh.Client{HTTP: r.documentClient(), URL: w.base, AllowHost: r.src.AllowHost,
		Limits: oaipmh.Limits(l.document())}
}

// maxFormats is how many formats of a repository are remembered.
const maxFormats = 1000

// checkFormats asks the repository for its formats, and returns an error when it does
// not have one of Also: no list would ever show that. If it does not answer, that is no
// error, since it may list records all the same.
func (w *oaiWalk) checkFormats(ctx context.Context) error {
	formats, err := w.client().Formats(ctx, "")
	if err != nil || len(formats) == 0 {
		return context.Cause(ctx)
	}
	w.r.memory.OAI.Formats = formats[:min(len(formats), maxFormats)]
	for _, prefix := range w.r.src.Repository.Also {
		if !hasFormat(formats, prefix) && !w.hasNone(ctx) {
			return fmt.Errorf("%s: the repository has no format %q, which is under also; it has %s", w.base, prefix, listOfFormats(formats))
		}
	}
	return nil
}

// KnownFormats returns the formats of a repository, as the last harvest has stored
// them; none where they cannot be read, which the next harvest reports.
func KnownFormats(p *event.Progress) []oaipmh.Format {
	var m memory
	if unmarshal(p.Memory, &m) != nil {
		return nil
	}
	return m.OAI.Formats
}

func hasFormat(formats []oaipmh.Format, prefix string) bool {
	return slices.ContainsFunc(formats, func(f oaipmh.Format) bool { return f.Prefix == prefix })
}

func listOfFormats(formats []oaipmh.Format) string {
	names := make([]string, len(formats))
	for i := range formats {
		names[i] = formats[i].Prefix
	}
	return listOf(names)
}

// listOf writes names for people, the first ones of very many.
func listOf(names []string) string {
	const most = 50
	more := ""
	if n := len(names); n > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", n-most)
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%q", strictxml.Clip(name))
	}
	return strings.Join(quoted, ", ") + more
}

// explainSelection returns what is wrong with what the repository was asked for, when
// its first list was an error or empty: a format or a set that it does not have (O11).
// nil when no reason is known.
func (w *oaiWalk) explainSelection(ctx context.Context) error {
	if w.hasNone(ctx) {
		return nil
	}
	if formats := w.r.memory.OAI.Formats; formats != nil && !hasFormat(formats, w.asked.Prefix) {
		return fmt.Errorf("%s: the repository has no format %q; it has %s: write one of them as format under this [[set.source]], or as metadataPrefix in the url", w.base, w.asked.Prefix, listOfFormats(formats))
	}
	if w.asked.Set == "" {
		return nil
	}
	sets, err := w.client().Sets(ctx)
	var refused *oaipmh.Error
	switch {
	case errors.As(err, &refused) && refused.Code == oaipmh.NoSetHierarchy:
		return fmt.Errorf("%s: the repository has no sets, and was asked for set %q: leave oai_set out, or set in the url", w.base, w.asked.Set)
	case err != nil:
		return nil
	}
	specs := make([]string, len(sets))
	for i := range sets {
		if specs[i] = sets[i].Spec; specs[i] == w.asked.Set {
			return nil
		}
	}
	return fmt.Errorf("%s: the repository has no set %q; it has %s: write one of them as oai_set under this [[set.source]], or as set in the url", w.base, w.asked.Set, listOf(specs))
}

// hasNone reports whether the repository has no record at all. Then it may have no
// formats and sets either: a bridge has only those of its records.
func (w *oaiWalk) hasNone(ctx context.Context) bool {
	walk := w.newWalk(oaipmh.ListIdentifiers, oaipmh.State{}, true)
	walk.Prefix, walk.Set, walk.From, walk.Until, walk.Window = oaipmh.DC, "", time.Time{}, time.Time{}, 0
	for _, err := range walk.Documents(ctx) {
		if err != nil { // nothing is known then
			return false
		}
		break // it has some
	}
	return walk.Result().Empty
}
