// Package api is the HTTP API for operators' programs, below /api/v1: it returns the state
// that commands and the console show, as JSON, and runs the same actions. It has no logic
// of its own: each request is one call of the daemon.Bridge, and each object is what a
// command prints with --json (objects.go, record.go). openapi.json describes all of it;
// tests compare it with the handlers. The console, which shares its address, decides before
// who may send requests.
package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/server"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Path is the path of the API.
const Path = "/api/v1"

// Description is the OpenAPI document of the API.
//
//go:embed openapi.json
var Description []byte

const (
	// defaultItems and mostItems are the default and the largest number of items of a page.
	defaultItems, mostItems = 100, 1000
	// bodyBytes bounds the body of a request.
	bodyBytes = 64 << 10
)

// Options are the options of an API.
type Options struct {
	Bridge *daemon.Bridge
	// Base is the start of published URLs.
	Base string
	// Status returns the state of everything, which may be some seconds old. Forget drops
	// that state after an action, so that the next call of Status reads it again.
	Status func(context.Context) (*status.Status, error)
	Forget func()
	// Logger gets failures, and the actions that were done.
	Logger *slog.Logger
}

// API is the handler of the API. Its methods may be called from any goroutine.
type API struct {
	Options
	mux *http.ServeMux
}

// Routes returns the patterns of all requests that an API handles.
func Routes() []string { return slices.Sorted(maps.Keys((&API{}).handlers())) }

// handler handles one request. It returns a value that is encoded as JSON, or raw bytes.
type handler func(r *http.Request) (any, error)

// raw is a response that is not JSON.
type raw struct {
	kind  string
	bytes []byte
}

// list is a page of a list. Next is the cursor of the next page, absent at the end.
type list struct {
	Items any    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// done is the response to an action.
type done struct {
	Said string `json:"said"`
}

func (a *API) handlers() map[string]handler {
	return map[string]handler{
		"GET /api/v1/openapi.json":              func(*http.Request) (any, error) { return raw{"application/json", Description}, nil },
		"GET /api/v1/status":                    func(r *http.Request) (any, error) { return a.Status(r.Context()) },
		"GET /api/v1/sources":                   a.sources,
		"GET /api/v1/sources/{id}":              func(r *http.Request) (any, error) { return a.source(r) },
		"GET /api/v1/sources/{id}/history":      a.history,
		"GET /api/v1/sources/{id}/held":         a.held,
		"POST /api/v1/sources/{id}/{action}":    a.actOnSource,
		"GET /api/v1/sets":                      a.sets,
		"GET /api/v1/sets/{set}":                func(r *http.Request) (any, error) { return a.set(r) },
		"GET /api/v1/sets/{set}/events":         a.eventsOfSet,
		"GET /api/v1/sets/{set}/records":        a.records,
		"GET /api/v1/sets/{set}/records/{key}":  a.record,
		"GET /api/v1/events":                    a.events,
		"GET /api/v1/quarantine":                a.quarantine,
		"GET /api/v1/quarantine/{id}":           a.quarantined,
		"GET /api/v1/quarantine/{id}/input":     a.input,
		"POST /api/v1/quarantine/{id}/{action}": a.actOnInput,
		"GET /api/v1/submissions":               a.submissions,
		"GET /api/v1/submissions/{id}":          a.submission,
		"GET /api/v1/submissions/{id}/record":   a.submittedRecord,
		"POST /api/v1/submissions/{id}/{verb}":  a.decide,
		"POST /api/v1/reload":                   a.reload,
	}
}

// New returns an API.
func New(o Options) *API {
	a := &API{o, http.NewServeMux()}
	for pattern, h := range a.handlers() {
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			var value any
			if err := defect.Guard(func() (err error) { value, err = h(r); return err }); err != nil {
				a.fail(w, r, err)
				return
			}
			write(w, r, value)
		})
	}
	return a
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// http.ServeMux would redirect to a clean path without what a proxy has cut off.
	if _, pattern := a.mux.Handler(r); pattern == "" || path.Clean(r.URL.Path) != r.URL.Path {
		if methods := a.methods(r); pattern == "" && len(methods) > 0 {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			server.Problem{Status: http.StatusMethodNotAllowed, Detail: "This address takes " + strings.Join(methods, ", ") + "."}.Write(w)
			return
		}
		server.Problem{Status: http.StatusNotFound, Detail: "There is nothing at this address: see " + Path + "/openapi.json."}.Write(w)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, bodyBytes)
	a.mux.ServeHTTP(w, r)
}

// methods returns the methods that the path of a request allows.
func (a *API) methods(r *http.Request) (all []string) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.mux.Handler(other); pattern != "" {
			all = append(all, method)
		}
	}
	return all
}

// write writes a response with a value. Its entity tag is that of its bytes.
func write(w http.ResponseWriter, r *http.Request, value any) {
	h := w.Header()
	out, ok := value.(raw)
	if !ok {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(value); err != nil {
			panic(err) // all our values can be encoded
		}
		out = raw{"application/json", b.Bytes()}
	}
	h.Set("Content-Type", out.kind)
	if out.kind != "application/json" {
		h.Set("Content-Disposition", "attachment")
	}
	if r.Method == http.MethodPost {
		_, _ = w.Write(out.bytes) // the client may have disconnected
		return
	}
	sum := sha256.Sum256(out.bytes)
	h.Set("ETag", fmt.Sprintf(`"%x"`, sum[:16]))
	h.Set("Cache-Control", "private, no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(out.bytes))
}

// refusedError means that an action cannot be done, or not now.
type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &refusedError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	var refused *refusedError
	p := server.Problem{Status: http.StatusInternalServerError, Detail: daemon.Redact(err.Error())}
	switch {
	case r.Context().Err() != nil:
		return // the client has disconnected
	case errors.As(err, &refused):
		p.Status = refused.status
	case errors.Is(err, fs.ErrNotExist):
		p.Status, p.Detail = http.StatusNotFound, "There is nothing of this name or number. It may have been renamed, removed or decided on since."
	default:
		a.Logger.Error("a request to the API failed", "path", r.URL.Path, "error", err)
		defect.Log(a.Logger, err)
	}
	p.Write(w)
}

// page returns the position at which a page begins, and its number of items.
func page(r *http.Request) (cursor int64, limit int, err error) {
	q := r.URL.Query()
	if text := q.Get("cursor"); text != "" {
		if cursor, err = strconv.ParseInt(text, 10, 64); err != nil || cursor < 0 || cursor == math.MaxInt64 {
			return 0, 0, badRequest("cursor: %.50q is none: write the next of the page before", text)
		}
	}
	limit, err = limitOf(q)
	return cursor, limit, err
}

// limitOf returns how many items a page has at most.
func limitOf(q url.Values) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return defaultItems, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > mostItems {
		return 0, badRequest("limit: %.50q is no number from 1 to %d", text, mostItems)
	}
	return limit, nil
}

// number returns the number in the path.
func number(r *http.Request) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || n < 1 {
		return 0, fs.ErrNotExist
	}
	return n, nil
}

// flag returns a query argument that is true or false.
func flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	set, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%s: %.50q is not true or false", name, text)
	}
	return set, nil
}

// body reads the JSON object of a request; no body is an object without members.
func body(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return badRequest("The body is not the JSON object that this takes: %v", err)
	}
	return nil
}

// setOf returns the set that a request asks for, "" for all. A name that no set has is an error:
// as an empty list it would say that there is nothing wrong with the set.
func (a *API) setOf(r *http.Request) (string, error) {
	set := r.URL.Query().Get("set")
	if set == "" {
		return "", nil
	}
	_, err := a.Bridge.Log.Set(r.Context(), set)
	return set, err
}

func (a *API) sources(r *http.Request) (any, error) {
	s, err := a.Status(r.Context())
	if err != nil {
		return nil, err
	}
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	gap, err := flag(r, "gap")
	if err != nil {
		return nil, err
	}
	held, err := flag(r, "held")
	if err != nil {
		return nil, err
	}
	set, err := a.setOf(r)
	if err != nil {
		return nil, err
	}
	state, out, next := r.URL.Query().Get("state"), []Source{}, ""
	if state != "" && !status.State(state).Known() {
		return nil, badRequest("state: %.50q is none: write failing, waiting, paused, former or ok", state)
	}
	var all []Source
	for src := range s.Sources() {
		all = append(all, SourceOf(src))
	}
	slices.SortFunc(all, func(a, b Source) int { return int(a.ID - b.ID) })
	for _, src := range all {
		if int64(src.ID) <= cursor || set != "" && src.Set != set || state != "" && string(src.State) != state || gap && src.Gap == "" || held && src.Held == 0 {
			continue
		}
		if len(out) == limit {
			next = strconv.FormatInt(int64(out[limit-1].ID), 10)
			break
		}
		out = append(out, src)
	}
	return list{out, next}, nil
}

func (a *API) source(r *http.Request) (Source, error) {
	id, err := number(r)
	if err != nil {
		return Source{}, err
	}
	s, err := a.Status(r.Context())
	if err != nil {
		return Source{}, err
	}
	for src := range s.Sources() {
		if int64(src.ID) == id {
			return SourceOf(src), nil
		}
	}
	return Source{}, fs.ErrNotExist
}

func (a *API) history(r *http.Request) (any, error) {
	src, err := a.source(r)
	if err != nil {
		return nil, err
	}
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	rows, err := a.Bridge.History(r.Context(), src.ID, cursor, limit+1)
	next := ""
	if len(rows) > limit {
		rows = rows[:limit]
		next = strconv.FormatInt(rows[limit-1].Number, 10)
	}
	return list{rows, next}, err
}

// Held is a deletion on hold.
type Held struct {
	Record string `json:"record"`
	Title  string `json:"title,omitempty"`
	Since  string `json:"since"`
	// Person reports that only a person may release it.
	Person bool `json:"person"`
}

// heldList is a page of held deletions. Until is the time since which the newest of them is
// held: a release with this time releases none that is held since later.
type heldList struct {
	Items []Held       `json:"items"`
	Until event.Micros `json:"until"`
	Next  string       `json:"next,omitempty"`
}

func (a *API) held(r *http.Request) (any, error) {
	src, err := a.source(r)
	if err != nil {
		return nil, err
	}
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	out := heldList{Items: []Held{}}
	if out.Until, err = a.Bridge.Log.HeldUntil(r.Context(), src.ID); err != nil {
		return nil, err
	}
	all, err := a.Bridge.Log.HeldDeletions(r.Context(), src.ID, cursor, limit+1)
	for i := range all {
		if i == limit {
			out.Next = strconv.FormatInt(all[limit-1].Number, 10)
			break
		}
		one := Held{Record: all[i].Record, Since: all[i].Since.String(), Person: all[i].Person}
		if ev, err := a.Bridge.Log.Record(r.Context(), src.Set, event.Key(one.Record)); err == nil {
			one.Title = ev.Title
		}
		out.Items = append(out.Items, one)
	}
	return out, err
}

// Act is the body of an action on a Source.
type Act struct {
	Reason string    `json:"reason"` // of a pause
	Until  time.Time `json:"until"`  // of a pause; the zero time means until it is resumed
	// Since is Until of the list of held deletions: those that are held since later are not
	// released.
	Since event.Micros `json:"since"`
	// Gap is the gap to accept, exactly as the Source states it.
	Gap    string `json:"gap"`
	Keep   bool   `json:"keep"` // of forget, as Delete is
	Delete bool   `json:"delete"`
}

// sourceActions are the actions on a Source.
var sourceActions = []string{"harvest", "pause", "resume", "release", "keep", "accept-gap", "reset", "forget"}

func (a *API) actOnSource(r *http.Request) (any, error) {
	a.Forget()
	src, err := a.source(r)
	if err != nil {
		return nil, err
	}
	var in Act
	if err := body(r, &in); err != nil {
		return nil, err
	}
	do := r.PathValue("action")
	switch {
	case !slices.Contains(sourceActions, do):
		return nil, fs.ErrNotExist
	case do == "release" && in.Since == 0:
		return nil, badRequest("since is missing: write the until of the held deletions that you have seen")
	case do == "accept-gap" && in.Gap == "":
		return nil, badRequest("gap is missing: write the gap of the Source, as you have seen it")
	case do == "accept-gap" && in.Gap != src.Gap:
		return nil, &refusedError{http.StatusConflict, "gap is not the gap that the Source has: look at it, and write it as it is there"}
	}
	url, err := SourceURL(r.Context(), a.Bridge, src.Set, src.ID)
	if err != nil {
		return nil, err
	}
	return a.do(r, daemon.Decision{Action: &daemon.SourceAction{Do: do, Set: src.Set, Source: url, Reason: in.Reason, Until: in.Until, Since: in.Since, Keep: in.Keep, Delete: in.Delete}})
}

// SourceURL returns the URL of a Source from the log: the status has it without secrets.
func SourceURL(ctx context.Context, b *daemon.Bridge, set string, id event.SourceID) (string, error) {
	all, err := b.Log.Sources(ctx, set)
	for i := range all {
		if all[i].ID == id {
			return all[i].URL, err
		}
	}
	return "", errors.Join(err, fs.ErrNotExist)
}

// do applies a decision, even if the client does not wait for the result.
func (a *API) do(r *http.Request, d daemon.Decision) (any, error) {
	out, err := a.Bridge.Decide(context.WithoutCancel(r.Context()), d)
	a.Forget()
	a.Logger.Info("a program has acted through the API", "path", r.URL.Path, "client", r.RemoteAddr, "error", err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, &refusedError{http.StatusConflict, err.Error()}
	}
	return done{out.Result}, nil
}

func (a *API) reload(r *http.Request) (any, error) {
	if err := body(r, &struct{}{}); err != nil {
		return nil, err
	}
	return a.do(r, daemon.Decision{Reload: true})
}

// sets returns the sets by their names. The cursor is a name, so that sets that are added or
// removed between two pages move no other one.
func (a *API) sets(r *http.Request) (any, error) {
	s, err := a.Status(r.Context())
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	limit, err := limitOf(q)
	if err != nil {
		return nil, err
	}
	cursor := q.Get("cursor")
	all := slices.DeleteFunc(slices.Clone(s.Sets), func(set status.Set) bool { return set.Name <= cursor })
	slices.SortFunc(all, func(a, b status.Set) int { return strings.Compare(a.Name, b.Name) })
	out := list{Items: all[:min(limit, len(all))]}
	if len(all) > limit {
		out.Next = all[limit-1].Name
	}
	return out, nil
}

func (a *API) set(r *http.Request) (*status.Set, error) {
	s, err := a.Status(r.Context())
	if err != nil {
		return nil, err
	}
	for i := range s.Sets {
		if s.Sets[i].Name == r.PathValue("set") {
			return &s.Sets[i], nil
		}
	}
	return nil, fs.ErrNotExist
}

// kinds are the kinds by which a request may select events.
var kinds = []string{"", "created", "updated", "deleted", "rejected"}

// events returns the events of a set, or of all, after a Seq, as bridge log prints them.
func (a *API) events(r *http.Request) (any, error) {
	ctx, q := r.Context(), r.URL.Query()
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	set, err := a.setOf(r)
	if err != nil {
		return nil, err
	}
	kind, out := q.Get("kind"), []Event{}
	if !slices.Contains(kinds, kind) {
		return nil, badRequest("kind: %.50q is none: write created, updated, deleted or rejected", kind)
	}
	if cursor > 0 {
		switch lost, err := a.Bridge.Log.Forgotten(ctx, event.Seq(cursor)); {
		case err != nil:
			return nil, err
		case lost:
			return nil, &refusedError{http.StatusGone, fmt.Sprintf("cursor: %d is no place of this log, which has lost events that you may have seen, or was made anew: read it from the beginning, without a cursor", cursor)}
		}
	}
	until, looked := time.Now().Add(SearchTime), 0
	for ev, err := range a.Bridge.Log.Events(ctx, set, event.Range{After: event.Seq(cursor), Upto: math.MaxInt64}) {
		if err != nil {
			return nil, err
		}
		if looked++; len(out) == limit || looked%64 == 0 && time.Now().After(until) {
			return list{out, strconv.FormatInt(cursor, 10)}, nil
		}
		cursor = int64(ev.Seq)
		if kind == "" || ev.Kind.String() == kind {
			out = append(out, EventOf(ev))
		}
	}
	return list{Items: out}, nil
}

// eventsOfSet returns the events of a set before a Seq, the newest first.
func (a *API) eventsOfSet(r *http.Request) (any, error) {
	set, err := a.Bridge.Log.Set(r.Context(), r.PathValue("set"))
	if err != nil {
		return nil, err
	}
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	out, next := []Event{}, ""
	last, err := a.Bridge.Log.Back(r.Context(), set.Name, event.Seq(cursor), func(e *event.Event) bool {
		out = append(out, EventOf(e))
		return len(out) < limit
	})
	if last > 1 && len(out) == limit {
		next = strconv.FormatInt(int64(last), 10)
	}
	return list{out, next}, err
}

func (a *API) records(r *http.Request) (any, error) {
	set, err := a.Bridge.Log.Set(r.Context(), r.PathValue("set"))
	if err != nil {
		return nil, err
	}
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	found, err := Search(r.Context(), a.Bridge, set.Name, text[:min(len(text), event.MaxIdentifier)], event.Seq(cursor), limit, func(e *event.Event) RecordLine {
		return RecordLine{e.Record, event.Key(e.Record), e.Title, e.Kind.String(), e.Seq, e.Observed.String()}
	})
	out := list{Items: found.Rows}
	if found.Next > 0 {
		out.Next = strconv.FormatInt(int64(found.Next), 10)
	}
	return out, err
}

func (a *API) record(r *http.Request) (any, error) {
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	ev, err := a.Bridge.Log.Record(r.Context(), r.PathValue("set"), r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	return RecordOf(r.Context(), a.Bridge, a.Base, ev, event.Seq(cursor), limit)
}

func (a *API) quarantine(r *http.Request) (any, error) {
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	replayed, err := flag(r, "replayed")
	if err != nil {
		return nil, err
	}
	set, err := a.setOf(r)
	if err != nil {
		return nil, err
	}
	all, err := a.Bridge.Log.QuarantinePage(r.Context(), event.QuarantineQuery{Set: set, Rule: r.URL.Query().Get("rule"), Waiting: !replayed, Newest: true, After: cursor, Limit: limit + 1})
	out, next := []Quarantined{}, ""
	for i := range all {
		if i == limit {
			next = strconv.FormatInt(all[limit-1].ID, 10)
			break
		}
		out = append(out, QuarantinedOf(&all[i]))
	}
	return list{out, next}, err
}

// badInput returns the bad input that a request names.
func (a *API) badInput(r *http.Request) (event.Quarantined, error) {
	id, err := number(r)
	if err != nil {
		return event.Quarantined{}, err
	}
	return a.Bridge.Log.QuarantinedInput(r.Context(), id)
}

func (a *API) quarantined(r *http.Request) (any, error) {
	q, err := a.badInput(r)
	return QuarantinedOf(&q), err
}

func (a *API) input(r *http.Request) (any, error) {
	q, err := a.badInput(r)
	return raw{"application/octet-stream", q.Input}, err
}

func (a *API) actOnInput(r *http.Request) (any, error) {
	var in struct {
		First string `json:"first"`
	}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	q, err := a.badInput(r)
	if err != nil {
		return nil, err
	}
	do := r.PathValue("action")
	switch {
	case do != "replay" && do != "discard":
		return nil, fs.ErrNotExist
	case in.First != q.First.String():
		return nil, &refusedError{http.StatusConflict, "first is not that of this input: its number may have been another's before; look at it, and write its first"}
	}
	return a.do(r, daemon.Decision{ID: q.ID, Quarantine: do})
}

func (a *API) submissions(r *http.Request) (any, error) {
	ctx, values := r.Context(), r.URL.Query()
	cursor, limit, err := page(r)
	if err != nil {
		return nil, err
	}
	review, err := flag(r, "review")
	if err != nil {
		return nil, err
	}
	set, err := a.setOf(r)
	if err != nil {
		return nil, err
	}
	q := submission.Query{Set: set, UnderReview: review, Newest: true, After: cursor, Limit: limit + 1, Damaged: true}
	if word := values.Get("state"); word != "" {
		state := submission.ParseState(word)
		if state == 0 {
			return nil, badRequest("state: there is no state %.50q", word)
		}
		q.States = []submission.State{state}
	}
	peers, err := Partners(ctx, a.Bridge)
	if err != nil {
		return nil, err
	}
	found, err := a.Bridge.SIP.Submissions(ctx, q)
	if err != nil {
		return nil, err
	}
	out := []Submission{}
	for i := range found {
		if i == limit {
			return list{out, strconv.FormatInt(out[limit-1].ID, 10)}, nil
		}
		line, err := SubmissionOf(ctx, a.Bridge, &found[i], peers)
		if err != nil {
			return nil, err
		}
		out = append(out, line)
	}
	return list{Items: out}, nil
}

// submitted returns the submission that a request names.
func (a *API) submitted(r *http.Request) (*submission.Submission, error) {
	id, err := number(r)
	if err != nil {
		return nil, err
	}
	return a.Bridge.SIP.Submission(r.Context(), id)
}

func (a *API) submission(r *http.Request) (any, error) {
	s, err := a.submitted(r)
	if err != nil {
		return nil, err
	}
	peers, err := Partners(r.Context(), a.Bridge)
	if err != nil {
		return nil, err
	}
	return SubmissionOf(r.Context(), a.Bridge, s, peers)
}

func (a *API) submittedRecord(r *http.Request) (any, error) {
	s, err := a.submitted(r)
	if err != nil {
		return nil, err
	}
	if s.Content == [32]byte{} {
		return nil, fs.ErrNotExist
	}
	text, err := a.Bridge.Record(r.Context(), s)
	return raw{"application/octet-stream", text}, err
}

// Verdict is the body of a decision on a submission under review.
type Verdict struct {
	Assigned string `json:"assigned-identifier"` // of an acceptance; "" lets the set assign one
	Replace  bool   `json:"replace"`             // of an acceptance: may replace another submitter's record
	Reason   string `json:"reason"`              // of a rejection
}

func (a *API) decide(r *http.Request) (any, error) {
	var in Verdict
	if err := body(r, &in); err != nil {
		return nil, err
	}
	s, err := a.submitted(r)
	if err != nil {
		return nil, err
	}
	d := daemon.Decision{ID: s.ID, Assigned: in.Assigned, Replace: in.Replace, Reason: in.Reason}
	switch r.PathValue("verb") {
	case "accept":
		d.Accept, d.Reason = true, ""
	case "reject":
	default:
		return nil, fs.ErrNotExist
	}
	return a.do(r, d)
}
