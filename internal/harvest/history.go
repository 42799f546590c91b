package harvest

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/pmh-bridge/bridge/atompmh"
	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/follow"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/oaipmh"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// The kinds of errors with which harvests end.
const (
	KindNetwork     = "network"     // no answer: name, connection, TLS, time
	KindHTTP        = "http"        // an answer with an error status
	KindLogin       = "login"       // 401
	KindWait        = "wait"        // the Source wants no request yet
	KindRefused     = "refused"     // an address that the configuration does not allow
	KindDocument    = "document"    // a document that cannot be read
	KindLimit       = "limit"       // larger, deeper or longer than the configuration allows
	KindSpent       = "spent"       // its own time or bytes are used up; the next one goes on
	KindLocal       = "local"       // our own disk, log or clock
	KindInterrupted = "interrupted" // bridge ended meanwhile
	KindDefect      = "defect"      // of bridge
	KindOther       = "other"
)

// Classify returns the kind of an error with which a harvest has ended, and the rule
// that the Source has broken, "" when it is none.
func Classify(err error) (kind, rule string) {
	status := follow.Status(err)
	switch {
	case as[*defect.Error](err):
		return KindDefect, ""
	case errors.Is(err, eventlog.ErrFull), errors.Is(err, content.ErrFull), errors.Is(err, eventlog.ErrStopped), errors.Is(err, event.ErrClock):
		return KindLocal, ""
	case errors.Is(err, fetch.ErrWait):
		return KindWait, ""
	case errors.Is(err, fetch.ErrAddress), errors.Is(err, fetch.ErrHost), errors.Is(err, fetch.ErrPort), errors.Is(err, follow.ErrRefused):
		return KindRefused, ""
	case errors.Is(err, ErrSpent):
		return KindSpent, ""
	case errors.Is(err, fetch.ErrTooLarge), as[*tooManyError](err), exceeded(err):
		return KindLimit, ""
	case status == http.StatusUnauthorized:
		return KindLogin, ""
	case status != 0:
		return KindHTTP, ""
	case as[*fs.PathError](err): // before net.Error, which the errors of the system are too
		return KindLocal, ""
	case as[*fetch.Error](err), as[net.Error](err):
		return KindNetwork, ""
	}
	if rule, ok := brokenRule(err); ok {
		return KindDocument, rule
	}
	return KindOther, ""
}

func as[T error](err error) bool {
	return errors.As(err, new(T))
}

// exceeded reports whether a document has too much of something.
func exceeded(err error) bool {
	var (
		feed *strictxml.DocumentError
		atom *atompmh.DocumentError
		list *resourcesync.DocumentError
		oai  *oaipmh.DocumentError
		dump *resourcesync.DumpError
	)
	return errors.As(err, &feed) && feed.Cap != "" || errors.As(err, &atom) && atom.Cap != "" || errors.As(err, &list) && list.Cap != "" || errors.As(err, &oai) && oai.Cap != "" || errors.As(err, &dump) && dump.Cap != ""
}

// brokenRule returns the rule that an error names; ok: the error is one of a document.
func brokenRule(err error) (rule string, ok bool) {
	var (
		entry  *atompmh.EntryError
		listed *resourcesync.EntryError
		record *oaipmh.RecordError
		answer *oaipmh.Error
		row    *rowFault
	)
	switch {
	case errors.As(err, &entry):
		return entry.Rule, true
	case errors.As(err, &listed):
		return listed.Rule, true
	case errors.As(err, &record):
		return record.Rule, true
	case errors.As(err, &answer):
		return string(answer.Code), true
	case errors.As(err, &row):
		return row.rule, true
	}
	return "", as[*strictxml.DocumentError](err) || as[*atompmh.DocumentError](err) || as[*resourcesync.DocumentError](err) || as[*oaipmh.DocumentError](err) || as[*resourcesync.DumpError](err) ||
		as[*resourcesync.NoSourceError](err) || as[*kindError](err)
}

// Texts of a row of the history are cut after so many bytes.
const (
	rowError    = 1000
	rowExample  = 300
	rowExamples = 50
)

// Row returns the row that a harvest is in the history of its Source.
func (r *Report) Row() event.Harvest {
	h := event.Harvest{Started: event.MicrosOf(r.Started), Ended: event.MicrosOf(r.Ended), Result: r.Result(),
		Documents: r.Documents, Entries: r.Entries, Bytes: r.Bytes, Contents: r.Fetched, Created: r.Created, Updated: r.Updated, Deleted: r.Deleted,
		Pending: r.Pending, Held: r.Held, Quarantined: r.Quarantined}
	for _, e := range r.Examples[:min(len(r.Examples), rowExamples)] {
		h.Problems = append(h.Problems, event.BrokenRule{Rule: e.Rule, Count: e.Count, First: cut(e.First, rowExample)})
	}
	if h.Result == event.ResultFailed {
		h.Error = r.Failure()
	}
	return h
}

// Result says how the harvest has ended. One that has reached its limit goes on in the
// next one.
func (r *Report) Result() event.Result {
	switch {
	case r.Error != "" && r.ErrorKind != KindSpent:
		return event.ResultFailed
	case r.Partial() || r.Withheld:
		return event.ResultPartial
	}
	return event.ResultOK
}

// Failure is the error with which the harvest has ended.
func (r *Report) Failure() event.Failure {
	return event.Failure{At: event.MicrosOf(r.Ended), Text: cut(r.Error, rowError), Kind: r.ErrorKind, Rule: r.ErrorRule}
}

// SameAs reports whether the harvest has found nothing new since the one before,
// whose report is was, and has ended in the same way.
func (r *Report) SameAs(was *Report) bool {
	return r.Result() != event.ResultFailed && r.Events() == 0 && r.Quarantined == 0 && r.Result() == was.Result() &&
		r.Pending == was.Pending && r.Held == was.Held && r.Gap == was.Gap && r.Moved == was.Moved
}

// cut cuts a text after so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
