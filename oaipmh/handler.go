package oaipmh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// Handler serves a Repository over HTTP: GET and POST (3.1.1), all verbs, all errors.
// Answers are streamed, in memory that does not grow with them. When something fails
// after a part was sent, the connection is cut, so that no client takes it for the
// whole. Register it for the path of BaseURL; it does not look at the path.
//
// A resumptionToken holds the whole state of its list, so the Handler keeps nothing
// between two requests, and tokens never expire.
type Handler struct {
	Repository Repository
	// BaseURL is where harvesters reach the handler, without a query.
	BaseURL string
	// TokenBase distinguishes its tokens from those of another repository; "" is BaseURL. One that
	// has moved writes its first BaseURL here, so that its tokens stay good.
	TokenBase string
	// SetsPage is how many sets one answer has; 0 is 500.
	SetsPage int
	// Fail answers a request that failed with an error of the Repository which is no
	// *Error, before anything was sent; nil answers as documented at Repository.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Log gets the reason when a request fails here; nil logs nothing.
	Log *slog.Logger
	// Now is the clock; nil is the system's.
	Now func() time.Time
}

const (
	typeXML = "text/xml; charset=utf-8" // 3.1.2.1
	// maxArguments is how many bytes the arguments of a request may have.
	maxArguments = 16 << 10
	formType     = "application/x-www-form-urlencoded"
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &handling{Handler: h, w: w, r: r, now: time.Now}
	if h.Now != nil {
		x.now = h.Now
	}
	args, err := x.arguments()
	if err != nil {
		x.fail(err)
		return
	}
	if args == nil { // answered
		return
	}
	q, problems := parseArguments(args)
	if len(problems) == 0 {
		problems = x.checkDates(q)
	}
	w.Header().Set("Content-Type", typeXML)
	w.Header().Set("Cache-Control", "no-cache")
	if len(problems) > 0 {
		x.errors(nil, problems...)
		return
	}
	if err := x.serve(q); err != nil {
		x.fail(err)
	}
}

// handling is one request.
type handling struct {
	*Handler
	w      http.ResponseWriter
	r      *http.Request
	now    func() time.Time
	answer *Writer // nil before it is begun
}

// plainError is an answer in plain text, which the protocol does not define.
type plainError struct {
	status int
	text   string
}

func (e *plainError) Error() string { return e.text }

// arguments returns those of the query, or of the form that was posted.
func (x *handling) arguments() (url.Values, error) {
	query := x.r.URL.RawQuery
	switch x.r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != formType {
			return nil, &plainError{http.StatusUnsupportedMediaType, "POST the arguments as " + formType + " (3.1.1.2)"}
		}
		body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, maxArguments))
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			return nil, tooLong(http.StatusRequestEntityTooLarge)
		case err != nil:
			return nil, &plainError{http.StatusBadRequest, "the form was not sent whole"}
		case query != "":
			query += "&"
		}
		query += string(body)
	default:
		x.w.Header().Set("Allow", "GET, HEAD, POST")
		return nil, &plainError{http.StatusMethodNotAllowed, "ask with GET or POST"}
	}
	if len(query) > maxArguments {
		return nil, tooLong(http.StatusRequestURITooLong)
	}
	args, err := url.ParseQuery(query)
	if err != nil {
		x.w.Header().Set("Content-Type", typeXML)
		x.errors(nil, &Error{Code: BadArgument, Text: "the arguments cannot be read: " + err.Error()})
		return nil, nil
	}
	return args, nil
}

func tooLong(status int) error {
	return &plainError{status, fmt.Sprintf("the arguments have more than %d bytes", maxArguments)}
}

// verbArguments are the arguments that each verb takes; those that end in ! are required
// unless there is a resumptionToken, which stands alone (4).
func verbArguments(v Verb) (names []string, known bool) {
	switch v {
	case Identify:
		return nil, true
	case ListMetadataFormats:
		return []string{"identifier"}, true
	case ListSets:
		return []string{"resumptionToken"}, true
	case GetRecord:
		return []string{"identifier!", "metadataPrefix!"}, true
	case ListIdentifiers, ListRecords:
		return []string{"metadataPrefix!", "from", "until", "set", "resumptionToken"}, true
	}
	return nil, false
}

// parseArguments reads a request (3.1.1, 4), or returns all that is wrong with it.
func parseArguments(args url.Values) (*Request, []*Error) {
	var bad []*Error
	wrong := func(format string, a ...any) {
		bad = append(bad, &Error{Code: BadArgument, Text: fmt.Sprintf(format, a...)})
	}

	q := &Request{Verb: Verb(args.Get("verb"))}
	names, known := verbArguments(q.Verb)
	switch verbs := args["verb"]; {
	case len(verbs) == 0:
		return nil, []*Error{{Code: BadVerb, Text: "the argument verb is missing: ask with verb=Identify, ListMetadataFormats, ListSets, GetRecord, ListIdentifiers or ListRecords"}}
	case len(verbs) > 1:
		return nil, []*Error{{Code: BadVerb, Text: "the argument verb is there more than once"}}
	case !known:
		return nil, []*Error{{Code: BadVerb, Text: fmt.Sprintf("%q is no verb of OAI-PMH 2.0, where upper and lower case count", strictxml.Clip(verbs[0]))}}
	}
	for _, name := range sortedNames(args) {
		switch {
		case name == "verb":
		case !slices.ContainsFunc(names, func(n string) bool { return strings.TrimSuffix(n, "!") == name }):
			wrong("%s takes no argument %q", q.Verb, strictxml.Clip(name))
		case len(args[name]) > 1:
			wrong("the argument %s is there more than once", name)
		case args.Get(name) == "":
			wrong("the argument %s is empty", name)
		case name != "resumptionToken" && args.Has("resumptionToken"):
			wrong("a resumptionToken stands alone with the verb, without %s", name)
		}
	}
	for _, name := range names {
		if required, ok := strings.CutSuffix(name, "!"); ok && !args.Has(required) && !args.Has("resumptionToken") {
			wrong("%s needs the argument %s", q.Verb, required)
		}
	}
	if bad != nil {
		return nil, bad
	}
	q.Identifier, q.Prefix, q.Set, q.Token = args.Get("identifier"), args.Get("metadataPrefix"), args.Get("set"), args.Get("resumptionToken")
	if q.Prefix != "" && !CanBePrefix(q.Prefix) {
		wrong("metadataPrefix %q has characters that none may have", strictxml.Clip(q.Prefix))
	}
	if q.Set != "" && !CanBeSet(q.Set) {
		wrong("set %q is no setSpec", strictxml.Clip(q.Set))
	}
	form := map[string]Granularity{}
	for _, d := range [...]struct {
		name string
		to   *time.Time
	}{{"from", &q.From}, {"until", &q.Until}} {
		text := args.Get(d.name)
		if text == "" {
			continue
		}
		t, g, ok := parseDate(text)
		if !ok {
			wrong("%s=%q is neither YYYY-MM-DD nor YYYY-MM-DDThh:mm:ssZ", d.name, strictxml.Clip(text))
			continue
		}
		if t.IsZero() { // which is no limit
			t = t.Add(time.Nanosecond)
		}
		*d.to, form[d.name], q.Granularity = t, g, g
	}
	switch {
	case bad != nil:
	case len(form) == 2 && form["from"] != form["until"]:
		wrong("from and until have different granularities")
	case len(form) == 2 && q.Until.Before(q.From):
		wrong("until is earlier than from")
	}
	return q, bad
}

func sortedNames(args url.Values) []string {
	names := make([]string, 0, len(args))
	for name := range args {
		names = append(names, name)
	}
	slices.Sort(names)
	return names[:min(len(names), 20)] // as many problems are enough
}

// parseDate reads a datestamp of an argument (3.3).
func parseDate(s string) (time.Time, Granularity, bool) {
	for g, form := range map[Granularity]string{Day: time.DateOnly, Second: "2006-01-02T15:04:05Z"} {
		if t, err := time.Parse(form, s); err == nil && len(s) == len(form) && dated(t) {
			return t, g, true
		}
	}
	return time.Time{}, 0, false
}

// checkDates refuses dates that are finer than the repository's (3.3).
func (x *handling) checkDates(q *Request) []*Error {
	if q.Granularity == Day {
		return nil
	}
	id, err := x.Repository.Identity(x.r.Context())
	if err != nil || id.Granularity == Second { // the request itself will return the error
		return nil
	}
	return []*Error{{Code: BadArgument, Text: "from and until are finer than the granularity of this repository, " + id.Granularity.String()}}
}

// serve answers a request whose arguments are good.
func (x *handling) serve(q *Request) error {
	ctx, written := context.WithCancel(x.r.Context())
	defer written()
	switch q.Verb {
	case Identify:
		id, err := x.Repository.Identity(ctx)
		if err != nil {
			return x.refuse(q, err)
		}
		return x.whole(q, func(w *Writer) error { return w.Identity(id) })
	case ListMetadataFormats:
		formats, err := x.Repository.Formats(ctx, q.Identifier)
		if err == nil && len(formats) == 0 {
			err = &Error{Code: NoMetadataFormats, Text: "there are no formats of it"}
		}
		if err != nil {
			return x.refuse(q, err)
		}
		return x.whole(q, func(w *Writer) (err error) {
			for i := 0; i < len(formats) && err == nil; i++ {
				err = w.Format(&formats[i])
			}
			return err
		})
	case GetRecord:
		rec, err := x.Repository.Record(ctx, q.Identifier, q.Prefix)
		if err != nil {
			return x.refuse(q, err)
		}
		return x.whole(q, func(w *Writer) error { return w.Record(rec) })
	case ListSets:
		return x.sets(q)
	}
	return x.list(q)
}

// begin begins the answer.
func (x *handling) begin(date time.Time, q *Request) *Writer {
	x.answer = NewWriter(x.w, date, x.BaseURL, q)
	return x.answer
}

func (x *handling) whole(q *Request, write func(*Writer) error) error {
	w := x.begin(x.now(), q)
	if err := write(w); err != nil {
		return err
	}
	return w.Close()
}

// refuse answers an *Error of the repository. It returns other errors.
func (x *handling) refuse(q *Request, err error) error {
	var e *Error
	if errors.As(err, &e) && e.Code.known() {
		x.errors(q, e)
		return nil
	}
	return err
}

// errors answers with errors. An answer about a wrong request does not repeat its
// arguments (3.6).
func (x *handling) errors(q *Request, errs ...*Error) {
	if errs[0].Code == BadArgument || errs[0].Code == BadVerb {
		q = nil
	}
	if err := x.whole(q, func(w *Writer) error { return w.Errors(errs...) }); err != nil {
		x.fail(err)
	}
}

func (x *handling) sets(q *Request) error {
	c := &continuation{Query: Query{Verb: ListSets}}
	if q.Token != "" {
		var err error
		if c, err = x.continuation(q); err != nil {
			return x.refuse(q, err)
		}
	}
	page := cmp.Or(x.SetsPage, 500)
	sets, err := x.Repository.Sets(x.r.Context(), string(c.Position), page+1)
	switch {
	case err == nil && len(sets) == 0 && q.Token != "": // the other sets were removed since
		err = &Error{Code: BadResumptionToken, Text: "there are no further sets: ask for the list anew"}
	case err == nil && len(sets) == 0:
		err = &Error{Code: NoSetHierarchy, Text: "this repository has no sets"}
	}
	if err != nil {
		return x.refuse(q, err)
	}
	more := len(sets) > page
	sets = sets[:min(len(sets), page)]
	return x.whole(q, func(w *Writer) error {
		for i := range sets {
			if err := w.Set(&sets[i]); err != nil {
				return err
			}
		}
		t := Token{Cursor: -1}
		switch {
		case more:
			c.Position = []byte(sets[len(sets)-1].Spec)
			t.Value = c.token(x.tokenBase())
		case q.Token == "":
			return nil
		}
		return w.Token(&t)
	})
}

func (h *Handler) tokenBase() string { return cmp.Or(h.TokenBase, h.BaseURL) }

// continuation reads the token of a request.
func (x *handling) continuation(q *Request) (*continuation, error) {
	c, err := parseToken(x.tokenBase(), q.Token)
	if err == nil && c.Verb != q.Verb {
		err = fmt.Errorf("it is one of a list of %s", c.Verb)
	}
	if err != nil {
		return nil, &Error{Code: BadResumptionToken, Text: "the resumptionToken cannot be used: " + err.Error() + "; ask for the list anew"}
	}
	return c, nil
}

func (x *handling) list(q *Request) error {
	c := &continuation{Query{Verb: q.Verb, Prefix: q.Prefix, Set: q.Set, From: q.From, Until: q.Until}, q.Granularity}
	if q.Token != "" {
		var err error
		if c, err = x.continuation(q); err != nil {
			return x.refuse(q, err)
		}
	}
	ask := c.Query
	if !ask.Until.IsZero() && c.granularity == Day {
		ask.Until = ask.Until.Add(24*time.Hour - time.Second)
	}
	l, err := x.Repository.List(x.r.Context(), &ask)
	if err != nil {
		return x.refuse(q, err)
	}
	date := l.Date
	if date.IsZero() {
		date = x.now()
	}
	w := x.begin(date, q)
	for rec, err := range l.Records {
		if err == nil {
			err = w.Record(rec)
		}
		if err != nil {
			return err
		}
	}
	c.Position = l.Next()
	switch {
	case w.Elements() == 0 && c.Position == nil:
		return w.errorsAlone(&Error{Code: NoRecordsMatch, Text: "no record matches"})
	case c.Position != nil || q.Token != "":
		t := Token{Size: l.Size, Cursor: l.Cursor}
		if c.Position != nil {
			t.Value = c.token(x.tokenBase())
		}
		if err := w.Token(&t); err != nil {
			return err
		}
	}
	return w.Close()
}

func (w *Writer) errorsAlone(e *Error) error {
	if err := w.Errors(e); err != nil {
		return err
	}
	return w.Close()
}

// fail answers with an HTTP error. Where a part of an answer was sent already, it cuts
// the connection.
func (x *handling) fail(err error) {
	var status *plainError
	var wait *UnavailableError
	switch {
	case x.answer != nil && x.answer.Sent():
		x.logFailure(err)
		panic(http.ErrAbortHandler)
	case errors.As(err, &status):
		x.text(status.status, status.text)
	case x.Fail != nil:
		x.Fail(x.w, x.r, err)
	case errors.As(err, &wait):
		x.w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((wait.RetryAfter+time.Second-1)/time.Second)), 10))
		x.text(http.StatusServiceUnavailable, wait.Reason)
	case x.r.Context().Err() != nil: // the client has gone; to return would answer 200
		panic(http.ErrAbortHandler)
	default:
		x.logFailure(err)
		x.text(http.StatusInternalServerError, "the server failed to make this answer; its log says why")
	}
}

func (x *handling) logFailure(err error) {
	if x.Log != nil && x.r.Context().Err() == nil {
		x.Log.Error("an OAI-PMH request failed", "base", x.BaseURL, "error", err)
	}
}

func (x *handling) text(status int, text string) {
	h := x.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	x.w.WriteHeader(status)
	_, _ = io.WriteString(x.w, text+"\n") // if it fails, the client has gone
}
