package resourcesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// Found is the result of Discover.
type Found struct {
	// URL is the document of the framework, or the sitemap, that was found first, and Route is
	// how: "the address itself", "the well-known address", "a link of the page" or
	// "robots.txt".
	URL, Route string
	// Capability, Index and Dialect are those of that document. Capability is ""
	// in a plain sitemap.
	Capability Capability
	Index      bool
	Dialect    Dialect
	// Sets are the sets of resources that it leads to, with at least one list
	// each.
	Sets []Lists
}

// Discover finds out what the Walk's URL leads to (clause 6.3).
//
// A document of the framework is used directly. A Source Description leads to all its
// Capability Lists, and a Capability List to its lists. A single list or dump leads to the
// Capability List at its link up (from a part through its index), if that names it; otherwise
// it is used alone, like a plain sitemap. An archive leads to the Capability List at its link
// up.
//
// Any other answer, and an address without a path, leads on by four routes: the well-known
// address of the host, the Link header and the links of the page itself, and the Sitemap lines
// of robots.txt. The first that leads to a list counts; for an address with a path or a query,
// the links of the page come first. Of robots.txt, plain sitemaps count only where there is no
// Resource List.
//
// The error is a *NoSourceError when nothing was found, and a *StatusError when the URL itself
// answered 401 or 410. Any other error may be temporary; if it is that of one of several documents
// that a Source Description names, Found has the sets that the others lead to.
func (w *Walk) Discover(ctx context.Context) (Found, error) {
	k, err := newWalker(ctx, w)
	if err != nil {
		return Found{}, err
	}
	defer k.close()
	d := discovery{walker: k}
	if err = d.run(); err == nil {
		err = d.failed
	}
	return d.found, err
}

// discovery is one search for the lists of a Source.
type discovery struct {
	walker       *walker
	found        Found
	descriptions []naming
	validators   map[string]follow.Validators // of Capability Lists, by URL
	missing      []Gap                        // documents that are named and not there
	absent       []Gap                        // what the user, a page or robots.txt names, and is no document
	tried        []Tried
	seen         map[string]bool // documents looked at
	partial      bool            // some set is left out
	ended        bool            // the Walk's URL answered 410
	failed       error           // the first document that is named and fails, or may not be asked
}

// page is what an address answered.
type page struct {
	list   *List    // a document of the framework or a sitemap
	links  []string // rel="resourcesync"
	answer string   // a description of any other answer
}

// ask requests a document. answer is set when the document is not there; an error may be
// temporary, or one that the operator has to solve.
func (d *discovery) ask(to string) (a *follow.Answer, answer string, err error) {
	a, err = d.walker.get(to, follow.Validators{})
	if s := follow.Status(err); s != 0 && s != 429 && s < 500 {
		return nil, fmt.Sprintf("HTTP status %d", s), nil
	}
	return a, "", err
}

// look asks for a document and finds out what it is.
func (d *discovery) look(to string) (page, error) {
	d.seen[follow.Key(to)] = true
	if most := d.walker.most(); len(d.seen) > most+len(knownPlaces) {
		return page{}, fmt.Errorf("%s: %w: discovery has looked at %d; if the Source is that large, raise the cap", to, ErrTooManyDocuments, most)
	}
	a, answer, err := d.ask(to)
	if a == nil {
		return page{answer: answer}, err
	}
	in := unpacked(a)
	links := linkHeader(a)
	if isHTML(a, in) {
		defer a.Close()
		more, err := htmlLinks(in, a.URL)
		return page{links: append(links, more...), answer: "an HTML page"}, err
	}
	l, err := newList(d.walker, a, in)
	if err == nil {
		return page{list: l}, nil
	}
	a.Close()
	if fault, ok := errors.AsType[*DocumentError](err); ok {
		return page{links: links, answer: fault.Reason}, nil
	}
	return page{}, err
}

// knownPlaces are requested in addition to the documents that others name.
var knownPlaces = [...]string{"/.well-known/resourcesync", "/robots.txt"}

func (d *discovery) run() error {
	d.seen, d.validators = map[string]bool{}, map[string]follow.Validators{}
	w := d.walker.w
	first, err := d.look(w.URL)
	if err != nil {
		return err
	}
	if first.answer == "HTTP status 410" {
		d.ended = true
		return &StatusError{URL: w.URL, Status: http.StatusGone}
	}
	if first.list != nil {
		if err := d.addRoute(first.list, "the address itself"); err != nil {
			return err
		}
		return d.verdict(first)
	}
	d.fail("the address itself", w.URL, first.answer)
	if !slices.Contains(w.Accepted, w.URL) {
		d.absent = append(d.absent, Gap{URL: w.URL, Reason: first.answer})
	}
	u, err := url.Parse(w.URL)
	if err != nil {
		return err
	}
	atHost := func(path string) string {
		return (&url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: path}).String()
	}
	routes := []func() error{
		func() error { return d.try("the well-known address", atHost(knownPlaces[0])) },
		func() error {
			if len(first.links) == 0 {
				d.fail("a link of the page", w.URL, "no Link header and no link of relation resourcesync")
			}
			for _, to := range first.links {
				if err := d.try("a link of the page", to); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return d.robots(atHost(knownPlaces[1])) },
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		routes[0], routes[1] = routes[1], routes[0]
	}
	if u.Scheme == "file" {
		routes = routes[:1] // a folder has no host
	}
	for _, route := range routes {
		if err := route(); err != nil || len(d.found.Sets) > 0 {
			return err
		}
	}
	return d.verdict(first)
}

// verdict is the error when nothing was found. first is what the Walk's URL answered.
func (d *discovery) verdict(first page) error {
	switch {
	case len(d.found.Sets) > 0:
		return nil
	case first.answer == "HTTP status 401":
		return &StatusError{URL: d.walker.w.URL, Status: http.StatusUnauthorized}
	}
	for _, g := range d.missing {
		d.fail("named there,", g.URL, g.Reason)
	}
	return &NoSourceError{URL: d.walker.w.URL, Tried: d.tried}
}

func (d *discovery) fail(place, at, answer string) {
	d.tried = append(d.tried, Tried{place, at, answer})
}

// addRoute adds what the first document of a route leads to.
func (d *discovery) addRoute(l *List, route string) error {
	head := l.Head()
	found := Found{URL: l.Requested, Route: route, Capability: head.Capability, Index: head.Index, Dialect: head.Dialect}
	before := len(d.found.Sets)
	if err := d.enter(l, 0); err != nil {
		return err
	}
	if len(d.found.Sets) == before && d.failed != nil {
		return d.failed // another route may lead elsewhere
	}
	if len(d.found.Sets) == before {
		d.fail(route, found.URL, "a "+cmp.Or(string(found.Capability), "sitemap")+" that leads to no list")
		return nil
	}
	if before == 0 {
		found.Sets = d.found.Sets
		d.found = found
	}
	return nil
}

// try looks at a place and takes what is there.
func (d *discovery) try(place, at string) error {
	l, err := d.lookAt(place, at)
	if l == nil {
		return err
	}
	return d.addRoute(l, place)
}

// lookAt looks at a place, unless it was looked at before or may not be; nil when it is
// no document of the framework and no sitemap.
func (d *discovery) lookAt(place, at string) (*List, error) {
	if d.seen[follow.Key(at)] {
		return nil, nil
	}
	if err := d.walker.client.Allowed(at); err != nil {
		d.fail(place, at, err.Error())
		return nil, nil
	}
	if slices.Contains(d.walker.w.Accepted, at) {
		d.partial = d.partial || !strings.HasSuffix(at, knownPlaces[0]) // which nobody has named
		return nil, nil
	}
	got, err := d.look(at)
	if err == nil && got.list == nil {
		d.fail(place, at, got.answer)
		d.absent = append(d.absent, Gap{URL: at, Reason: got.answer})
	}
	return got.list, err
}

// enter adds the sets that a document leads to. It closes l, or keeps it open for the walk.
func (d *discovery) enter(l *List, depth int) error {
	switch c := l.Head().Capability; {
	case c == CapabilityList && !l.Head().Index:
		named, err := readContents(l)
		if missing(err) {
			d.noteMissing(l.Requested, err)
			return nil
		}
		if err == nil {
			d.add(named)
		}
		return err
	case c.lists():
		return d.names(l, depth)
	case c == ResourceList, c == ChangeList, c == ResourceDump, c == ChangeDump, c == "":
		return d.list(l)
	case c.archive():
		return d.upward(l)
	default:
		l.close()
		d.noteMissing(l.Requested, fmt.Errorf("a document of capability %q, which leads to no list", c))
		return nil
	}
}

// noteMissing notes a document that is named and missing.
func (d *discovery) noteMissing(at string, why error) {
	d.missing = append(d.missing, Gap{URL: at, Reason: why.Error()})
	d.walker.report(Problem{Rule: ruleMissing, URL: at, Found: why.Error(), Expected: "a document of the Source"}, false)
}

// names follows a Source Description, or an index of these or of Capability
// Lists, to all that it names.
func (d *discovery) names(l *List, depth int) error {
	if depth >= maxIndexes {
		l.close()
		d.noteMissing(l.Requested, fmt.Errorf("it is nested more than %d deep", maxIndexes))
		return nil
	}
	var locs []string
	_, err := l.entries(func(e *Entry) { locs = append(locs, e.Loc) })
	if missing(err) {
		d.noteMissing(l.Requested, err)
		return nil
	}
	if err != nil {
		return err
	}
	d.descriptions = append(d.descriptions, naming{URL: l.Requested, Validators: l.answer.Validators, Sum: digest(locs)})
	for _, to := range locs {
		if d.seen[follow.Key(to)] {
			continue
		}
		if slices.Contains(d.walker.w.Accepted, to) {
			d.partial = true
			continue
		}
		got, err := d.look(to)
		switch {
		case err != nil && !d.walker.ends(err) && !withheld(err) && (follow.Status(err) >= http.StatusInternalServerError || errors.Is(err, ErrRefused)):
			d.failed = cmp.Or(d.failed, err)
			d.noteMissing(to, err) // the others are read
		case err != nil:
			return err
		case got.list == nil:
			d.noteMissing(to, errors.New(got.answer))
		default:
			if err := d.enter(got.list, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// add takes the set of a Capability List, or a list that stands alone, unless it has no
// lists or is known already.
func (d *discovery) add(named *contents) {
	set := named.Lists
	if set.baseline() == "" && set.changes() == "" {
		d.partial = true
		d.walker.report(Problem{Rule: ruleNames, URL: set.CapabilityList, Found: "a Capability List without a list", Expected: "lists or dumps; the set is left out"}, false)
		return
	}
	d.partial = d.partial || named.partial
	if !slices.ContainsFunc(d.found.Sets, set.same) {
		d.found.Sets = append(d.found.Sets, set)
		if named.list != nil {
			d.validators[set.CapabilityList] = named.list.answer.Validators
		}
	}
}

// contents is what a Capability List, or an index, names: its lists and dumps, and every
// loc.
type contents struct {
	Lists
	list    *List
	locs    map[string]bool // by follow.Key
	partial bool            // it names resources that are not followed
}

// readContents reads a Capability List (clause 9), or another document that a list points up
// to.
func readContents(l *List) (*contents, error) {
	c := &contents{Lists: Lists{CapabilityList: l.Requested}, list: l, locs: map[string]bool{}}
	dumps := false // there are several Resource Dumps
	_, err := l.entries(func(e *Entry) {
		c.locs[follow.Key(e.Loc)] = true
		var list *string
		switch e.Metadata.Capability {
		case ResourceList:
			list = &c.ResourceList
		case ChangeList:
			list = &c.ChangeList
		case ChangeListArchive:
			list = &c.ChangeListArchive
		case ResourceDump:
			list = &c.ResourceDump
		case ChangeDump:
			list = &c.ChangeDump
		default:
			return
		}
		if *list == "" {
			*list = e.Loc
		} else if *list != e.Loc {
			expected := "one; it is not followed"
			if e.Metadata.Capability == ResourceList {
				c.partial, expected = true, expected+", and nothing counts as deleted because the first does not have it"
			}
			dumps = dumps || e.Metadata.Capability == ResourceDump
			l.problem(Problem{Rule: ruleNames, URL: l.URL, Line: e.Line, Column: e.Column,
				Found: "a second " + string(e.Metadata.Capability) + ", " + e.Loc, Expected: expected})
		}
	})
	c.partial = c.partial || dumps && c.ResourceList == ""
	return c, err
}

func (c *contents) has(urls []string) bool {
	return slices.ContainsFunc(urls, func(u string) bool { return c.locs[u] })
}

// list adds the set of a list that was reached without its Capability List: that of its link
// up, if it names the list or the index of the list; otherwise the list alone.
func (d *discovery) list(l *List) error {
	held := false
	defer func() {
		if !held {
			l.close()
		}
	}()
	head := l.Head()
	urls := []string{follow.Key(l.Requested), follow.Key(l.URL)}
	alone := l.Requested
	up, index := head.Up(), head.Link(RelIndex)
	if index != "" && !head.Index {
		i, err := d.above(l, index)
		if err != nil {
			return err
		}
		if i != nil && i.list.Head().Index && i.has(urls) {
			alone = index
			urls = append(urls, follow.Key(index), follow.Key(i.list.URL))
			up = cmp.Or(i.list.Head().Up(), up)
		}
	}
	if up != "" {
		c, err := d.above(l, up)
		switch {
		case err != nil:
			return err
		case c == nil:
		case c.list.Head().Capability == CapabilityList && c.has(urls):
			d.add(c)
			return nil
		default:
			l.broken(ruleNames, "a link with rel=up to "+up+", which does not name this list", "the Capability List that names it; it is read alone")
		}
	}
	set := Lists{ResourceList: alone}
	switch head.Capability {
	case ChangeList:
		set = Lists{ChangeList: alone}
	case ResourceDump:
		set = Lists{ResourceDump: alone}
	case ChangeDump:
		set = Lists{ChangeDump: alone}
	}
	if held = alone == l.Requested; held {
		d.walker.hold(l)
	}
	d.add(&contents{Lists: set})
	return nil
}

// above reads a document that l points up to; nil when it is missing,
// which is reported.
func (d *discovery) above(l *List, at string) (*contents, error) {
	if err := d.walker.client.Allowed(at); err != nil {
		l.broken(ruleMissing, err.Error(), "a link upwards that may be followed")
		return nil, nil
	}
	up, err := d.walker.open(at, follow.Validators{})
	if err == nil {
		var c *contents
		if c, err = readContents(up); err == nil {
			return c, nil
		}
	}
	if s := follow.Status(err); missing(err) || s == 401 || s == 403 {
		l.broken(ruleMissing, err.Error(), "a document that the link upwards leads to")
		return nil, nil
	}
	return nil, err
}

// upward adds the set of the Capability List that an archive leads up to.
func (d *discovery) upward(l *List) error {
	defer l.close()
	c := l.Head().Capability
	if up := l.Head().Up(); up != "" {
		a, err := d.above(l, up)
		if err != nil {
			return err
		}
		if a != nil && a.list.Head().Capability == CapabilityList {
			d.add(a)
			return nil
		}
	}
	d.noteMissing(l.Requested, fmt.Errorf("a %s without a Capability List above it", c))
	return nil
}
