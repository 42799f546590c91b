package console_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/api/testdata/client"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// description reads the OpenAPI document.
func description(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Description)
	if err == nil {
		err = doc.Validate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// The OpenAPI document has every request that is answered, and no other, and the client in
// testdata was generated from it.
func TestAPIDescription(t *testing.T) {
	t.Parallel()
	var described []string
	for path, item := range description(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+api.Path+path)
		}
	}
	slices.Sort(described)
	if got, want := strings.Join(described, "\n"), strings.Join(api.Routes(), "\n"); got != want {
		t.Errorf("described are\n%s\nand answered are\n%s", got, want)
	}
	generated, err := os.ReadFile("../api/testdata/client/client.go")
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(api.Description)); !bytes.Contains(generated[:300], []byte(sum)) {
		t.Errorf("openapi.json has changed, and has the SHA-256 %s: generate internal/api/testdata/client/client.go anew with what its first line names", sum)
	}
}

// validated is a transport that holds each answer against the OpenAPI document.
type validated struct {
	t      testing.TB
	router routers.Router
	next   http.RoundTripper
	asked  map[string]bool
}

func (v *validated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := v.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close() // read to its end
	resp.Body = io.NopCloser(bytes.NewReader(body))
	route, arguments, err := v.router.FindRoute(r)
	if err != nil {
		v.t.Errorf("%s %s is not in the document: %v", r.Method, r.URL, err)
		return resp, nil
	}
	v.asked[r.Method+" "+route.Path] = true
	input := &openapi3filter.ResponseValidationInput{RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: arguments, Route: route}, Status: resp.StatusCode, Header: resp.Header}
	if err := openapi3filter.ValidateResponse(context.Background(), input.SetBodyBytes(body)); err != nil {
		v.t.Errorf("%s %s: %s answers what the document does not say: %v\n%.2000s", r.Method, r.URL, resp.Status, err, body)
	}
	return resp, nil
}

// programOf returns a generated client of a site, whose answers are validated.
func programOf(t testing.TB, s *site, token string) (*client.ClientWithResponses, *validated) {
	t.Helper()
	root := strings.TrimSuffix(s.console, console.Path) + api.Path
	doc := description(t)
	doc.Servers = openapi3.Servers{{URL: root}}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	v := &validated{t, router, s.client.Transport, map[string]bool{}}
	if v.next == nil {
		v.next = http.DefaultTransport
	}
	c, err := client.NewClientWithResponses(root, client.WithHTTPClient(&http.Client{Transport: v}), client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	return c, v
}

// A client that a generator has made of the document reads everything and does everything, at a
// bridge with Sources of all sorts; every answer is as the document says.
func TestAPI(t *testing.T) {
	testenv.Heavy(t)
	t.Parallel()
	const token = "0123456789abcdef-token"
	s := newSite(t, func(o *console.Options) { o.Token = token })
	for n := range 3 {
		s.submit(n, fmt.Sprintf("Tower %d", n))
	}
	c, v := programOf(t, s, token)
	ctx := t.Context()
	ptr := func(text string) *string { return &text }

	status, err := c.GetStatusWithResponse(ctx)
	if err != nil || status.JSON200 == nil || len(status.JSON200.Sets) != 6 {
		t.Fatalf("%+v, %v", status, err)
	}
	sources := map[string]client.Source{}
	one := 1
	for cursor := ptr(""); cursor != nil; {
		page, err := c.ListSourcesWithResponse(ctx, &client.ListSourcesParams{Cursor: cursor, Limit: &one})
		if err != nil || page.JSON200 == nil || len(page.JSON200.Items) != 1 {
			t.Fatalf("%+v, %v", page, err)
		}
		src := page.JSON200.Items[0]
		sources[src.Set] = src
		if got, err := c.GetSourceWithResponse(ctx, src.Id); err != nil || got.JSON200 == nil || got.JSON200.Url != src.Url {
			t.Errorf("Source %d: %+v, %v", src.Id, got, err)
		}
		if got, err := c.ListHarvestsWithResponse(ctx, src.Id, &client.ListHarvestsParams{}); err != nil || got.JSON200 == nil {
			t.Errorf("the harvests of Source %d: %+v, %v", src.Id, got, err)
		}
		cursor = page.JSON200.Next
	}
	if len(sources) != 6 {
		t.Fatalf("Sources of %d sets", len(sources))
	}
	sets, err := c.ListSetsWithResponse(ctx, &client.ListSetsParams{})
	if err != nil || sets.JSON200 == nil || len(sets.JSON200.Items) != 6 {
		t.Fatalf("%+v, %v", sets, err)
	}
	seen := 0
	for _, set := range sets.JSON200.Items {
		if got, err := c.GetSetWithResponse(ctx, set.Name); err != nil || got.JSON200 == nil {
			t.Errorf("set %s: %+v, %v", set.Name, got, err)
		}
		events, err := c.ListEventsOfSetWithResponse(ctx, set.Name, &client.ListEventsOfSetParams{})
		if err != nil || events.JSON200 == nil || len(events.JSON200.Items) == 0 && set.Events > 0 {
			t.Errorf("events of set %s: %+v, %v", set.Name, events, err)
			continue
		}
		seen += len(events.JSON200.Items)
		records, err := c.ListRecordsWithResponse(ctx, set.Name, &client.ListRecordsParams{})
		if err != nil || records.JSON200 == nil {
			t.Errorf("records of set %s: %+v, %v", set.Name, records, err)
			continue
		}
		for _, r := range records.JSON200.Items {
			got, err := c.GetRecordWithResponse(ctx, set.Name, r.Key, &client.GetRecordParams{Limit: &one})
			if err != nil || got.JSON200 == nil || got.JSON200.Identifier != r.Identifier || len(got.JSON200.Events) != 1 || len(got.JSON200.Sources) == 0 {
				t.Errorf("record %s: %+v, %v", r.Key, got, err)
			}
			if found, err := c.ListRecordsWithResponse(ctx, set.Name, &client.ListRecordsParams{Q: &r.Identifier}); err != nil || found.JSON200 == nil || len(found.JSON200.Items) != 1 || found.JSON200.Items[0].Key != r.Key {
				t.Errorf("record %s is not found: %+v, %v", r.Identifier, found, err)
			}
		}
	}
	logged := 0
	for cursor, three := ptr("0"), 3; cursor != nil; {
		page, err := c.ListEventsWithResponse(ctx, &client.ListEventsParams{Cursor: cursor, Limit: &three})
		if err != nil || page.JSON200 == nil {
			t.Fatalf("%+v, %v", page, err)
		}
		logged += len(page.JSON200.Items)
		cursor = page.JSON200.Next
	}
	if logged != seen || logged == 0 {
		t.Errorf("%d events page by page, %d by sets", logged, seen)
	}

	// Act on Sources.
	held, failing := sources["instruments"], sources["failing"]
	deletions, err := c.ListHeldWithResponse(ctx, held.Id, &client.ListHeldParams{})
	if err != nil || deletions.JSON200 == nil || len(deletions.JSON200.Items) == 0 || deletions.JSON200.Items[0].Title == nil {
		t.Fatalf("%+v, %v", deletions, err)
	}
	until := deletions.JSON200.Until
	for _, x := range []struct {
		id     int64
		do     client.ActOnSourceParamsAction
		body   client.ActOnSourceJSONRequestBody
		status int
		said   string
	}{
		{failing.Id, "pause", client.Act{Reason: ptr("moves " + evil)}, 200, "is paused"},
		{failing.Id, "harvest", client.Act{}, 409, "is paused"},
		{failing.Id, "resume", client.Act{}, 200, "is resumed"},
		{failing.Id, "reset", client.Act{}, 200, "from the beginning"},
		{failing.Id, "accept-gap", client.Act{Gap: ptr("another")}, 409, "not the gap"},
		{failing.Id, "accept-gap", client.Act{}, 400, "gap is missing"},
		{failing.Id, "forget", client.Act{}, 409, "is configured"},
		{failing.Id, "eat", client.Act{}, 404, ""},
		{held.Id, "release", client.Act{}, 400, "since is missing"},
		{held.Id, "keep", client.Act{}, 200, "kept until a person"},
		{held.Id, "release", client.Act{Since: &until}, 200, "applied"},
		{99999, "harvest", client.Act{}, 404, ""},
	} {
		got, err := c.ActOnSourceWithResponse(ctx, x.id, x.do, x.body)
		if err != nil || got.StatusCode() != x.status || !strings.Contains(string(got.Body), x.said) {
			t.Errorf("%s: %v, %s", x.do, err, got.Body)
		}
	}

	// Bad input.
	bad, err := c.ListQuarantineWithResponse(ctx, &client.ListQuarantineParams{})
	if err != nil || bad.JSON200 == nil || len(bad.JSON200.Items) == 0 {
		t.Fatalf("%+v, %v", bad, err)
	}
	first := bad.JSON200.Items[0]
	input, err := c.GetInputWithResponse(ctx, first.Id)
	if err != nil || len(input.Body) == 0 || input.HTTPResponse.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%+v, %v", input, err)
	}
	if got, err := c.GetQuarantinedWithResponse(ctx, first.Id); err != nil || got.JSON200 == nil || got.JSON200.Rule != first.Rule {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.ActOnInputWithResponse(ctx, first.Id, "discard", client.Input{First: "then"}); err != nil || got.StatusCode() != 409 {
		t.Errorf("another input: %s, %v", got.Body, err)
	}
	if got, err := c.ActOnInputWithResponse(ctx, first.Id, "discard", client.Input{First: first.First.Format("2006-01-02T15:04:05.000000Z")}); err != nil || got.JSON200 == nil {
		t.Errorf("discard: %s, %v", got.Body, err)
	}
	if got, err := c.GetQuarantinedWithResponse(ctx, first.Id); err != nil || got.StatusCode() != 404 {
		t.Errorf("it is still there: %s, %v", got.Body, err)
	}

	// Submissions.
	review := true
	waiting, err := c.ListSubmissionsWithResponse(ctx, &client.ListSubmissionsParams{Review: &review})
	if err != nil || waiting.JSON200 == nil || len(waiting.JSON200.Items) != 3 {
		t.Fatalf("%+v, %v", waiting, err)
	}
	for i, sub := range waiting.JSON200.Items {
		if got, err := c.GetSubmissionWithResponse(ctx, sub.Id); err != nil || got.JSON200 == nil || got.JSON200.Set != "deposits" {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := c.GetSubmittedRecordWithResponse(ctx, sub.Id); err != nil || !strings.Contains(string(got.Body), "Tower") {
			t.Errorf("%s, %v", got.Body, err)
		}
		verb := []client.DecideSubmissionParamsVerb{"accept", "reject", "accept"}[i]
		if got, err := c.DecideSubmissionWithResponse(ctx, sub.Id, verb, client.Verdict{}); err != nil || got.JSON200 == nil && (verb == "accept" || got.StatusCode() != 409) {
			t.Errorf("%s: %s, %v", verb, got.Body, err)
		}
	}
	if got, err := c.ReloadWithResponse(ctx, client.Nothing{}); err != nil || got.JSON200 == nil || got.JSON200.Said != "nothing has changed" {
		t.Errorf("reload: %s, %v", got.Body, err)
	}
	if got, err := c.GetDescriptionWithResponse(ctx); err != nil || got.JSON200 == nil {
		t.Errorf("%s, %v", got.Body, err)
	}
	for _, lost := range []string{"1000000", "9223372036854775806"} {
		if got, err := c.ListEventsWithResponse(ctx, &client.ListEventsParams{Cursor: &lost}); err != nil || got.StatusCode() != 410 || !strings.Contains(string(got.Body), "from the beginning") {
			t.Errorf("cursor %s, which this log has never given out: %s, %v", lost, got.Body, err)
		}
	}
	for _, bad := range []string{"x", "-1"} {
		if got, err := c.ListEventsWithResponse(ctx, &client.ListEventsParams{Cursor: &bad}); err != nil || got.StatusCode() != 400 {
			t.Errorf("cursor %s: %s, %v", bad, got.Body, err)
		}
	}
	for state, want := range map[string]int{"failing": 200, "former": 200, "attention": 400, "Failing": 400} {
		if got, err := c.ListSourcesWithResponse(ctx, &client.ListSourcesParams{State: &state}); err != nil || got.StatusCode() != want {
			t.Errorf("state %s: %s, %v", state, got.Body, err)
		}
	}
	for _, route := range api.Routes() {
		if method, path, _ := strings.Cut(route, " "); !v.asked[method+" "+strings.TrimPrefix(path, api.Path)] {
			t.Errorf("the test does not ask %s", route)
		}
	}
}

// Nobody gets anything, or does anything, without the token; and at a console without one, no
// web page and nobody behind a proxy does.
func TestAPIAccess(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef-token"
	open, locked := newSite(t), newSite(t, func(o *console.Options) { o.Token = token })
	for name, c := range map[string]struct {
		site   *site
		method string
		path   string
		header []string
		status int
	}{
		"read":                       {open, "GET", "/status", nil, 200},
		"two slashes":                {open, "GET", "//status", nil, 404},
		"a dot":                      {open, "GET", "/./status", nil, 404},
		"Sources of no set":          {open, "GET", "/sources?set=none", nil, 404},
		"events of no set":           {open, "GET", "/events?set=none", nil, 404},
		"bad inputs of no set":       {open, "GET", "/quarantine?set=none", nil, 404},
		"submissions to no set":      {open, "GET", "/submissions?set=none", nil, 404},
		"act":                        {open, "POST", "/reload", []string{"Content-Type", "application/json; charset=utf-8"}, 200},
		"a form":                     {open, "POST", "/reload", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		"nothing said":               {open, "POST", "/reload", nil, 415},
		"another site":               {open, "POST", "/reload", []string{"Content-Type", "application/json", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, 403},
		"a proxy":                    {open, "GET", "/status", []string{"X-Forwarded-For", "192.0.2.1"}, 403},
		"another host":               {open, "GET", "/status", []string{"Host", "evil.example"}, 403},
		"no token":                   {locked, "GET", "/status", nil, 401},
		"no token for the document":  {locked, "GET", "/openapi.json", nil, 401},
		"no token for nothing":       {locked, "GET", "/nothing", nil, 401},
		"a wrong token":              {locked, "GET", "/status", []string{"Authorization", "Bearer wrong"}, 401},
		"no token to act":            {locked, "POST", "/reload", []string{"Content-Type", "application/json"}, 401},
		"the token":                  {locked, "GET", "/status", []string{"Authorization", "Bearer " + token}, 200},
		"the token, and another way": {locked, "DELETE", "/status", []string{"Authorization", "Bearer " + token}, 405},
		"the token, and nothing":     {locked, "GET", "/nothing", []string{"Authorization", "Bearer " + token}, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, strings.TrimSuffix(c.site.console, console.Path)+api.Path+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(c.header); i += 2 {
			if req.Header.Set(c.header[i], c.header[i+1]); c.header[i] == "Host" {
				req.Host = c.header[i+1]
			}
		}
		a := c.site.do(req)
		var p struct {
			Status int
			Detail string
		}
		if a.StatusCode != c.status || a.StatusCode != 200 && (json.Unmarshal([]byte(a.body), &p) != nil || p.Status != c.status || p.Detail == "" || a.Header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %s\n%s", name, a.Status, a.body)
		}
	}
	a := open.ask(strings.TrimSuffix(open.console, console.Path) + api.Path + "/sets/hostile/records/" + event.Key(evilLink))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.Request.URL.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if req.Header.Set("If-None-Match", a.Header.Get("Etag")); a.StatusCode != 200 || open.do(req).StatusCode != http.StatusNotModified {
		t.Errorf("the same again: %s", a.Status)
	}
}

// Who reads the list of sets page by page gets each set once, by its name, also when another
// one is added or removed meanwhile.
func TestAPISetsPaged(t *testing.T) {
	t.Parallel()
	clock := testenv.NewClock()
	s := newSite(t, func(o *console.Options) { o.Now = clock.Now })
	page := func(cursor string) (names []string, next string) {
		t.Helper()
		a := s.ask(strings.TrimSuffix(s.console, console.Path) + api.Path + "/sets?limit=2&cursor=" + url.QueryEscape(cursor))
		var in struct {
			Items []struct{ Name string }
			Next  string
		}
		if a.StatusCode != 200 || json.Unmarshal([]byte(a.body), &in) != nil {
			t.Fatalf("%s: %s", a.Status, a.body)
		}
		for _, set := range in.Items {
			names = append(names, set.Name)
		}
		return names, in.Next
	}
	first, next := page("")
	if err := s.bridge.Log.RemoveSet(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute) // else the status is that of before
	got := first
	for next != "" {
		var more []string
		more, next = page(next)
		got = append(got, more...)
	}
	if want := []string{"catalogue", "deposits", "failing", "hostile", "inbox", "instruments"}; !slices.Equal(got, want) {
		t.Errorf("the sets, page by page, are %q, want %q", got, want)
	}
}

// A console at an address of its own, behind a trusted web server, counts wrong tokens for each
// client of that server: nobody locks out the others. Who has to wait is told so, and not that
// the token is missing.
func TestWrongTokensBehindAProxy(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	public, private := listen(t), listen(t)
	s := &site{t: t, bridge: openBridge(t, daemon.Options{}, "data = \"data\"\ntrusted_proxies = [\"127.0.0.1\"]\n")}
	s.bridge.SetConsole(console.New(console.Options{Bridge: s.bridge, Token: token}), private)
	s.serve(public)
	ask := func(client, token, path string) *answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+private.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", client)
		req.Header.Set("Authorization", "Bearer "+token)
		return s.do(req)
	}
	const status, metrics = "/api/v1/status", "/console/metrics"
	for range 10 {
		if got := ask("203.0.113.7", "a wrong token", status); got.StatusCode != http.StatusUnauthorized {
			t.Fatalf("a wrong token: %s", got.Status)
		}
	}
	for _, path := range []string{status, metrics} {
		for _, token := range []string{token, "a wrong token"} {
			if got := ask("203.0.113.7", token, path); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
				t.Errorf("%s with %q after ten wrong ones of its address: %s %v", path, token, got.Status, got.Header)
			}
		}
		if got := ask("203.0.113.8", token, path); got.StatusCode != http.StatusOK {
			t.Errorf("%s with the token from another address: %s", path, got.Status)
		}
	}
}

// fill gives all fields of a value something that is not left out of its JSON. Texts are
// moments, since many of them have to be.
func fill(v reflect.Value) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = at
		return
	case *event.Stamp:
		*p = event.StampFromNanos(at.UnixNano())
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString(at.Format(time.RFC3339))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	}
}

// The OpenAPI document has each field that an object of the API may have, and no other: also
// those that few objects have.
func TestAPIObjects(t *testing.T) {
	t.Parallel()
	schemas := description(t).Components.Schemas
	for name, object := range map[string]any{
		"Status": new(status.Status), "Set": new(status.Set), "SourceState": new(status.Source), "Source": &api.Source{Source: new(status.Source)}, "Harvest": new(status.Harvest),
		"HarvestRow": new(status.HarvestRow), "Peer": new(status.Peer), "Event": new(api.Event), "Record": new(api.Record), "RecordLine": new(api.RecordLine),
		"Held": new(api.Held), "Quarantined": new(api.Quarantined), "Submission": new(api.Submission), "Act": new(api.Act), "Verdict": new(api.Verdict),
	} {
		for _, err := range all(schemas[name].Value.VisitJSON(decoded(t, object), openapi3.MultiErrors())) {
			if wrong, ok := errors.AsType[*openapi3.SchemaError](err); ok && wrong.SchemaField == "required" {
				t.Errorf("%s: may lack at /%s: %s", name, strings.Join(wrong.JSONPointer(), "/"), wrong.Reason)
			}
		}
		fill(reflect.ValueOf(object).Elem())
		value := decoded(t, object)
		for _, err := range all(schemas[name].Value.VisitJSON(value, openapi3.MultiErrors())) {
			if wrong, ok := errors.AsType[*openapi3.SchemaError](err); !ok {
				t.Errorf("%s: %v", name, err)
			} else if wrong.SchemaField != "enum" { // our texts are moments
				t.Errorf("%s: at /%s %s", name, strings.Join(wrong.JSONPointer(), "/"), wrong.Reason)
			}
		}
		for _, path := range lacks(schemas[name].Value, value, "") {
			t.Errorf("%s has no field %s", name, path)
		}
	}
}

// decoded returns an object as a client reads it.
func decoded(t testing.TB, object any) (value any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// all are the errors of which one is made.
func all(err error) (out []error) {
	var several openapi3.MultiError
	if !errors.As(err, &several) {
		return slices.DeleteFunc([]error{err}, func(err error) bool { return err == nil })
	}
	for _, err := range several {
		out = append(out, all(err)...)
	}
	return out
}

// lacks returns the described fields that a value does not have.
func lacks(schema *openapi3.Schema, value any, path string) (out []string) {
	if list, ok := value.([]any); ok && len(list) > 0 && schema.Items != nil {
		return lacks(schema.Items.Value, list[0], path+"[]")
	}
	object, _ := value.(map[string]any)
	for name, property := range schema.Properties {
		inside, ok := object[name]
		if !ok {
			out = append(out, path+"."+name)
			continue
		}
		out = append(out, lacks(property.Value, inside, path+"."+name)...)
	}
	return out
}
