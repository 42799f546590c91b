package testserver

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Repository is an OAI-PMH 2.0 repository under the control of a test: as NewRepository
// returns it, it obeys the protocol; a test switches lies and failures on. It responds at
// every path; its base URL is the URL without the query.
//
// Set the fields before the first request. The methods may be called at any time, and from
// OnPage.
type Repository struct {
	// Days sets the granularity to a day; otherwise it is a second.
	Days bool
	// Deleted is deletedRecord: persistent (the default), transient or no. With no, Delete
	// is Forget.
	Deleted string
	// Earliest is earliestDatestamp; zero is 2020-01-01.
	Earliest time.Time
	// Formats are the metadata formats; NewRepository sets oai_dc.
	Formats []ItemFormat
	// Sets are the sets; none means no set hierarchy.
	Sets []ItemSet
	// PageSize is the number of records, headers or sets of a page; 0 is 100.
	PageSize int
	// Stateless: a token has the place at which to continue in the list as it is then.
	// Otherwise it names a list that was pinned at its first request, and becomes invalid
	// with Restart.
	Stateless bool
	// TokenLife is how long a token is valid; 0 means without end. It is announced in
	// expirationDate.
	TokenLife time.Duration
	// Scattered: lists are in an arbitrary order; otherwise by datestamp.
	Scattered bool
	// Gzip: a response is compressed if the request accepts that.
	Gzip bool
	// RetryAfter is the Retry-After of 503 and 429, in seconds.
	RetryAfter int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// OnPage is called before a response is made, without any lock; page is 1 for the first
	// page of a list and for responses that are no list.
	OnPage func(verb string, page int)
	// Rewrite, if not nil, returns the body to send in place of body.
	Rewrite func(verb string, page int, body []byte) []byte

	mu       sync.Mutex
	items    map[string]*Item
	puts     int
	lies     map[Lie]bool
	failures []*Failure
	tokens   map[string]*place // of pinned lists
	used     map[string]bool
	calls    []Call
}

// Item has the data of one record in all formats.
type Item struct {
	Identifier string
	// Datestamp is when it changed; zero means the time of Put.
	Datestamp time.Time
	Sets      []string
	// Metadata is an XML element for each format, by prefix.
	Metadata map[string]string
	// About are XML elements.
	About   []string
	Deleted bool
	Lies    []Lie

	put int
}

// ItemFormat is a metadata format of a Repository.
type ItemFormat struct{ Prefix, Schema, Namespace string }

// ItemSet is a set of a Repository.
type ItemSet struct{ Spec, Name string }

// Call is a request to a Repository.
type Call struct {
	Method, Path string
	// Args are the arguments of the query or of the form.
	Args   url.Values
	Header http.Header
	// Page is 1 for the first page of a list and for requests of no list; 0 for an unknown
	// token.
	Page int
}

// Verb returns the requested verb.
func (c *Call) Verb() string { return c.Args.Get("verb") }

// place is a place in a list, and the list itself if it is pinned.
type place struct {
	Verb, Prefix, Set, From, Until string
	Page                           int    // the next page
	After                          string // sort key of the last record that was sent
	Offset                         int    // number of records that were sent
	Expires                        int64  // Unix seconds; 0 never
	First                          string // the token of the second page
	pinned                         []*Item
}

// NewRepository returns a repository without records that obeys the protocol, and whose
// format is oai_dc.
func NewRepository() *Repository {
	return &Repository{
		Formats: []ItemFormat{{"oai_dc", "http://www.openarchives.org/OAI/2.0/oai_dc.xsd", "http://www.openarchives.org/OAI/2.0/oai_dc/"}},
		items:   map[string]*Item{}, lies: map[Lie]bool{}, tokens: map[string]*place{}, used: map[string]bool{},
	}
}

// DublinCore returns an oai_dc element with a title and identifiers.
func DublinCore(title string, identifiers ...string) string {
	var b bytes.Buffer
	b.WriteString(`<oai_dc:dc xmlns:oai_dc="http://www.openarchives.org/OAI/2.0/oai_dc/" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.openarchives.org/OAI/2.0/oai_dc/ http://www.openarchives.org/OAI/2.0/oai_dc.xsd">`)
	element(&b, "\n  ", "dc:title", title)
	for _, id := range identifiers {
		element(&b, "\n  ", "dc:identifier", id)
	}
	b.WriteString("\n</oai_dc:dc>")
	return b.String()
}

// Fill adds n records oai:repository.example:1 and up, in oai_dc. Their datestamps are a
// second apart and begin at 2021-03-01T00:00:00Z.
func (r *Repository) Fill(n int) {
	for i := 1; i <= n; i++ {
		r.Put(Item{Identifier: fmt.Sprintf("oai:repository.example:%d", i), Datestamp: time.Date(2021, 3, 1, 0, 0, i-1, 0, time.UTC),
			Metadata: map[string]string{"oai_dc": DublinCore(fmt.Sprintf("Letter %d", i), fmt.Sprintf("https://repository.example/%d", i))}})
	}
}

// Put creates the item, or replaces the one with its identifier.
func (r *Repository) Put(it Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if it.Datestamp.IsZero() {
		it.Datestamp = r.now()
	}
	it.Datestamp = it.Datestamp.UTC().Truncate(time.Second)
	r.puts++
	it.put = r.puts
	r.items[it.Identifier] = &it
}

// Delete marks an item as deleted now; if Deleted is no, it removes it.
func (r *Repository) Delete(identifier string) {
	r.mu.Lock()
	old := r.items[identifier]
	r.mu.Unlock()
	switch {
	case old == nil:
		panic("testserver: no item " + identifier)
	case r.Deleted == "no":
		r.Forget(identifier)
	default:
		gone := *old
		gone.Deleted, gone.Datestamp = true, time.Time{}
		r.Put(gone)
	}
}

// Forget removes an item without a trace.
func (r *Repository) Forget(identifier string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.items, identifier)
}

// Items returns the items in the order in which they were put.
func (r *Repository) Items() []Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Item
	for _, it := range r.items {
		all = append(all, *it)
	}
	slices.SortFunc(all, func(a, b Item) int { return a.put - b.put })
	return all
}

// Lie switches lies on for everything.
func (r *Repository) Lie(lies ...Lie) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lies {
		r.lies[l] = true
	}
}

// Honest switches off all lies and failures, except those of items.
func (r *Repository) Honest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.lies)
	r.failures = nil
}

// Fail makes responses fail.
func (r *Repository) Fail(f Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, &f)
}

// Restart drops all pinned lists: their tokens are then a badResumptionToken.
func (r *Repository) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.tokens)
}

// Calls returns the requests so far, and drops them.
func (r *Repository) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *Repository) now() time.Time {
	if r.Now != nil {
		return r.Now().UTC()
	}
	return time.Now().UTC()
}

// ServeHTTP answers GET and POST.
func (r *Repository) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodGet && q.Method != http.MethodPost {
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "GET or POST", http.StatusMethodNotAllowed)
		return
	}
	_ = q.ParseForm() // the rest of an invalid form leads to badVerb or badArgument
	args := q.Form
	c := Call{Method: q.Method, Path: q.URL.Path, Args: args, Header: q.Header.Clone(), Page: 1}
	r.mu.Lock()
	if t := args.Get("resumptionToken"); t != "" {
		c.Page = 0
		if p := r.place(t); p != nil {
			c.Page = p.Page
		}
	}
	r.calls = append(r.calls, c)
	moved := r.lies[Redirected] && !strings.HasPrefix(q.URL.Path, "/moved/")
	r.mu.Unlock()
	if moved {
		http.Redirect(w, q, "/moved"+q.URL.RequestURI(), http.StatusMovedPermanently)
		return
	}
	if r.OnPage != nil {
		r.OnPage(c.Verb(), c.Page)
	}
	r.mu.Lock()
	how := r.failure(&c)
	a := answer{r: r, args: args, base: "http://" + q.Host + q.URL.Path, now: r.now(), refuse: how == TokenRefused}
	body := a.write()
	r.mu.Unlock()
	if r.Rewrite != nil {
		body = r.Rewrite(c.Verb(), c.Page, body)
	}
	r.send(w, q, how, body)
}

// failure returns how the answer to a call fails, "" when it does not.
func (r *Repository) failure(c *Call) How {
	if r.lies[NoIdentify] && c.Verb() == "Identify" {
		return ServerError
	}
	for i, f := range r.failures {
		if f.Verb != "" && f.Verb != c.Verb() || f.Page != 0 && f.Page != c.Page {
			continue
		}
		if f.Times--; f.Times == 0 {
			r.failures = slices.Delete(r.failures, i, i+1)
		}
		return f.How
	}
	return ""
}

// send sends a body, or the failure that replaces it.
func (r *Repository) send(w http.ResponseWriter, q *http.Request, how How, body []byte) {
	head := w.Header()
	status := http.StatusOK
	switch how {
	case NotFound:
		status = http.StatusNotFound
	case ServerError:
		status = http.StatusInternalServerError
	case Unavailable, TooMany:
		head.Set("Retry-After", strconv.Itoa(r.RetryAfter))
		status = map[How]int{Unavailable: http.StatusServiceUnavailable, TooMany: http.StatusTooManyRequests}[how]
	case HTMLPage:
		head.Set("Content-Type", "text/html; charset=utf-8")
		body = []byte("<!DOCTYPE html>\n<html><head><title>Repository</title><body><p>Please log in.<br></p></html>\n")
	case CutPage, Broken:
		if how == Broken {
			head.Set("Content-Length", strconv.Itoa(len(body)))
		}
		body = body[:len(body)/2]
	case NoEndTag:
		body = body[:bytes.LastIndex(body, []byte("</OAI-PMH>"))]
	case EmptyBody:
		body = nil
	}
	if status != http.StatusOK {
		http.Error(w, http.StatusText(status), status)
		return
	}
	r.mu.Lock()
	html, always := r.lies[HTMLType], r.lies[GzipAlways]
	r.mu.Unlock()
	if html {
		head.Set("Content-Type", "text/html; charset=utf-8")
	}
	if head.Get("Content-Type") == "" {
		head.Set("Content-Type", "text/xml; charset=utf-8")
	}
	if how != Broken && (always || r.Gzip && strings.Contains(q.Header.Get("Accept-Encoding"), "gzip")) {
		head.Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(body)
		_ = z.Close()
		return
	}
	_, _ = w.Write(body) // a client may disconnect; a short body cuts the connection
}

// place returns the place that a token names, or nil.
func (r *Repository) place(token string) *place {
	if r.lies[OddTokens] {
		before, after, _ := strings.Cut(token, oddToken)
		token = before + after
	}
	if !r.Stateless {
		return r.tokens[token]
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	var p place
	if err != nil || json.Unmarshal(raw, &p) != nil {
		return nil
	}
	return &p
}

// oddToken is inside every token when OddTokens is on.
const oddToken = ` a&b=c+d%20"e'  f;`

func (r *Repository) token(p *place) string {
	var t string
	if r.Stateless {
		raw, err := json.Marshal(p)
		if err != nil {
			panic(err)
		}
		t = base64.RawURLEncoding.EncodeToString(raw)
	} else {
		t = fmt.Sprintf("list-%d-page-%d", len(r.tokens)+1, p.Page)
		r.tokens[t] = p
	}
	if r.lies[OddTokens] {
		t = t[:len(t)/2] + oddToken + t[len(t)/2:]
	}
	return t
}
