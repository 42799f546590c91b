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

// Found is what discovery came to.
type Found struct {
	// URL is the document of the framework, or the sitemap, that discovery met
	// first, and Route how: "the address itself", "the well-known address", "a
	// link of the page" or "robots.txt".
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
// A document of the framework is taken as what it is. A Source Description leads
// to all its Capability Lists, and a Capability List to its lists. A single list
// leads up to its Capability List, from a part through its index, if that names
// it; else it stands alone, like a plain sitemap. Dumps and archives lead up.
//
// Any other answer, and an address without a path, leads on by four routes: the
// well-known address of the host, the Link header and the links of the page
// itself, and the Sitemap lines of robots.txt. The first that leads anywhere
// counts; for an address with a path, what the page itself says comes first. Of
// robots.txt, plain sitemaps count only where there is no Resource List.
//
// The error is a *NoSourceError when there is nothing, ErrOnlyDumps when there
// are no lists, ErrNoBaseline when a dump stands for the Resource List, and else
// one that may pass.
func (w *Walk) Discover(ctx context.Context) (Found, error) {
	k, err := newWalker(ctx, w)
	if err != nil {
		return Found{}, err
	}
	defer k.close()
	d := newDiscovery(k)
	err = d.run()
	return d.found, err
}

// discovery is one search for the lists of a Source.
type discovery struct {
	walker       *walker
	found        Found
	descriptions []naming
	validators   map[string]follow.Validators // of Capability Lists, by URL
	missing      []Gap                        // documents that are named and not there
	tried        []Tried
	seen         map[string]bool // documents looked at
	dumps        []string
	unlisted     string // a Capability List with a Resource Dump and no Resource List
	partial      bool   // some set is left out
	entry        bool   // the last answer is that of the Walk's URL
	locked       bool   // the Walk's URL wants a login
}

func newDiscovery(k *walker) *discovery {
	return &discovery{walker: k, seen: map[string]bool{}, validators: map[string]follow.Validators{}}
}

// page is what an address answered.
type page struct {
	list   *List    // a document of the framework or a sitemap
	links  []string // rel="resourcesync"
	answer string   // what it is, if it is none
}

// look asks for a document and finds out what it is. An error may pass, or is the
// operator's to solve.
func (d *discovery) look(to string) (page, error) {
	d.seen[follow.Key(to)] = true
	if most := d.walker.most(); len(d.seen) > most+len(knownPlaces) {
		return page{}, fmt.Errorf("%s: %w: discovery has looked at %d; if the Source is that large, raise the cap", to, ErrTooManyDocuments, most)
	}
	a, err := d.walker.get(to, follow.Validators{})
	if s := follow.Status(err); s != 0 && s != 429 && s < 500 {
		return page{answer: fmt.Sprintf("HTTP status %d", s)}, nil
	}
	if err != nil {
		return page{}, err
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
	var fault *DocumentError
	if errors.As(err, &fault) {
		return page{links: links, answer: fault.Reason}, nil
	}
	return page{}, err
}

// knownPlaces are asked besides what documents name.
var knownPlaces = [...]string{"/.well-known/resourcesync", "/robots.txt"}

func (d *discovery) run() error {
	w := d.walker.w
	d.entry = true
	first, err := d.look(w.URL)
	if err != nil {
		return err
	}
	if first.answer == "HTTP status 410" {
		return &StatusError{URL: w.URL, Status: 410}
	}
	d.entry = false
	d.locked = first.answer == "HTTP status 401"
	if first.list != nil {
		if err := d.take(first.list, "the address itself"); err != nil {
			return err
		}
		return d.verdict()
	}
	d.fail("the address itself", w.URL, first.answer)
	routes := []func() error{
		func() error { return d.wellKnown() },
		func() error { return d.pageLinks(first.links) },
		func() error { return d.robots() },
	}
	u, err := url.Parse(w.URL)
	if err != nil {
		return err
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
	return d.verdict()
}

// verdict is the error when nothing was found.
func (d *discovery) verdict() error {
	switch {
	case len(d.found.Sets) > 0:
		return nil
	case d.unlisted != "":
		return fmt.Errorf("%s: %w", d.unlisted, ErrNoBaseline)
	case len(d.dumps) > 0:
		return fmt.Errorf("%s: %w", d.dumps[0], ErrOnlyDumps)
	}
	if d.locked {
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

// take enters the first document of a route.
func (d *discovery) take(l *List, route string) error {
	head := l.Head()
	found := Found{URL: l.Requested, Route: route, Capability: head.Capability, Index: head.Index, Dialect: head.Dialect}
	before := len(d.found.Sets)
	if err := d.enter(l, 0); err != nil {
		return err
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
	if d.seen[follow.Key(at)] {
		return nil
	}
	if err := d.walker.client.Allowed(at); err != nil {
		d.fail(place, at, err.Error())
		return nil
	}
	got, err := d.look(at)
	switch {
	case err != nil:
		return err
	case got.list == nil:
		d.fail(place, at, got.answer)
		return nil
	}
	return d.take(got.list, place)
}

func (d *discovery) wellKnown() error {
	return d.try("the well-known address", d.atHost(knownPlaces[0]))
}

func (d *discovery) pageLinks(links []string) error {
	if len(links) == 0 {
		d.fail("a link of the page", d.walker.w.URL, "no Link header and no link of relation resourcesync")
	}
	for _, to := range links {
		if err := d.try("a link of the page", to); err != nil {
			return err
		}
	}
	return nil
}

// atHost returns an address at the root of the host.
func (d *discovery) atHost(path string) string {
	u, err := url.Parse(d.walker.w.URL)
	if err != nil {
		return path
	}
	u.Path, u.RawPath, u.RawQuery, u.Fragment, u.RawFragment = path, "", "", "", ""
	return u.String()
}

// enter takes in a document that discovery has come to. It closes l, or holds it
// for the walk.
func (d *discovery) enter(l *List, depth int) error {
	switch c := l.Head().Capability; {
	case c == CapabilityList && !l.Head().Index:
		return d.capabilityList(l)
	case c.lists():
		return d.names(l, depth)
	case c == ResourceList, c == ChangeList, c == "":
		return d.list(l)
	case c == ResourceDump, c == ChangeDump, c.archive():
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
	var sum digest
	_, err := l.entries(func(e *Entry) {
		sum.add(e.Loc)
		locs = append(locs, e.Loc)
	})
	if missing(err) {
		d.noteMissing(l.Requested, err)
		return nil
	}
	if err != nil {
		return err
	}
	d.descriptions = append(d.descriptions, naming{URL: l.Requested, Validators: l.answer.Validators, Sum: sum.String()})
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

// capabilityList takes a set of resources.
func (d *discovery) capabilityList(l *List) error {
	set := Lists{CapabilityList: l.Requested}
	found, err := set.read(l, nil)
	if missing(err) {
		d.noteMissing(l.Requested, err)
		return nil
	}
	if err != nil {
		return err
	}
	d.add(set, found, l.answer.Validators)
	return nil
}

// add takes a set, unless it has no lists or is known already. v are the
// Validators of its Capability List.
func (d *discovery) add(set Lists, also dumps, v follow.Validators) {
	switch {
	case set.ResourceList == "" && set.ChangeList != "" && also.resources != "":
		d.partial, d.unlisted = true, set.CapabilityList
		d.walker.report(Problem{Rule: ruleNames, URL: set.CapabilityList, Found: "the Resource Dump " + also.resources + " and no Resource List",
			Expected: "a Resource List; the set is left out, since its Change Lists do not tell what was there before"}, false)
	case set.ResourceList != "" || set.ChangeList != "":
		if !slices.ContainsFunc(d.found.Sets, func(o Lists) bool { return (&stream{Lists: o}).same(set) }) {
			d.found.Sets = append(d.found.Sets, set)
			d.validators[set.CapabilityList] = v
		}
	default:
		d.partial = true
		found := "a Capability List without a list"
		if also != (dumps{}) {
			d.dumps = append(d.dumps, set.CapabilityList)
			found = "a Capability List with nothing but dumps"
		}
		d.walker.report(Problem{Rule: ruleNames, URL: set.CapabilityList, Found: found, Expected: "a Resource List or a Change List; the set is left out"}, false)
	}
}

// dumps are the first of each kind that a Capability List names.
type dumps struct{ resources, changes string }

// read reads a Capability List (clause 9) into what it names, and returns its
// dumps besides. Every loc goes into locs, if that is not nil.
func (s *Lists) read(l *List, locs map[string]bool) (found dumps, err error) {
	_, err = l.entries(func(e *Entry) {
		if locs != nil {
			locs[follow.Key(e.Loc)] = true
		}
		var list *string
		switch e.Metadata.Capability {
		case ResourceList:
			list = &s.ResourceList
		case ChangeList:
			list = &s.ChangeList
		case ResourceDump:
			found.resources = cmp.Or(found.resources, e.Loc)
			return
		case ChangeDump:
			found.changes = cmp.Or(found.changes, e.Loc)
			return
		default:
			return
		}
		if *list == "" {
			*list = e.Loc
		} else if *list != e.Loc {
			l.problem(Problem{Rule: ruleNames, URL: l.URL, Line: e.Line, Column: e.Column,
				Found: "a second " + string(e.Metadata.Capability) + ", " + e.Loc, Expected: "one; it is not followed"})
		}
	})
	return found, err
}

// list takes a list that was reached without its Capability List: that of its
// link up, if it names the list or the index that names the list; else the list
// stands alone.
func (d *discovery) list(l *List) error {
	head := l.Head()
	urls := []string{follow.Key(l.Requested), follow.Key(l.URL)}
	alone := l.Requested
	up, index := head.Up(), head.Link(RelIndex)
	if index != "" && !head.Index {
		i, err := d.above(l, index)
		if err != nil {
			l.close()
			return err
		}
		if i != nil && i.list.Head().Index && i.names(urls) {
			alone = index
			urls = append(urls, follow.Key(index), follow.Key(i.list.URL))
			if u := i.list.Head().Up(); u != "" {
				up = u
			}
		}
	}
	if up != "" {
		set, err := d.setOf(l, up, urls)
		if err != nil || set {
			l.close()
			return err
		}
	}
	set := Lists{ResourceList: alone}
	if head.Capability == ChangeList {
		set = Lists{ChangeList: alone}
	}
	if alone == l.Requested {
		d.walker.hold(l)
	} else {
		l.close()
	}
	d.add(set, dumps{}, follow.Validators{})
	return nil
}

// setOf takes the Capability List that a list's link up leads to, if that names
// the list.
func (d *discovery) setOf(l *List, up string, urls []string) (bool, error) {
	c, err := d.above(l, up)
	if err != nil || c == nil {
		return false, err
	}
	if c.list.Head().Capability == CapabilityList && c.names(urls) {
		d.add(c.set, c.dumps, c.list.answer.Validators)
		return true, nil
	}
	l.broken(ruleNames, "a link up to "+up+", which does not name it", "its Capability List; it is followed alone")
	return false, nil
}

// above is a document that was read on the way up.
type above struct {
	list  *List
	locs  map[string]bool
	set   Lists
	dumps dumps
}

func (a *above) names(urls []string) bool {
	return slices.ContainsFunc(urls, func(u string) bool { return a.locs[u] })
}

// above reads a document that l points up to; nil when it is missing,
// which is reported.
func (d *discovery) above(l *List, at string) (*above, error) {
	if err := d.walker.client.Allowed(at); err != nil {
		l.broken(ruleMissing, err.Error(), "a link upwards that may be followed")
		return nil, nil
	}
	up, err := d.walker.open(at, follow.Validators{})
	if err == nil {
		a := &above{list: up, locs: map[string]bool{}, set: Lists{CapabilityList: at}}
		if a.dumps, err = a.set.read(up, a.locs); err == nil {
			return a, nil
		}
	}
	if s := follow.Status(err); missing(err) || s == 401 || s == 403 {
		l.broken(ruleMissing, err.Error(), "a document that the link upwards leads to")
		return nil, nil
	}
	return nil, err
}

// upward takes the Capability List that a dump or an archive leads up to.
func (d *discovery) upward(l *List) error {
	defer l.close()
	c := l.Head().Capability
	if up := l.Head().Up(); up != "" {
		a, err := d.above(l, up)
		if err != nil {
			return err
		}
		if a != nil && a.list.Head().Capability == CapabilityList {
			d.add(a.set, a.dumps, a.list.answer.Validators)
			return nil
		}
	}
	if !c.archive() {
		d.dumps = append(d.dumps, l.Requested)
	}
	d.noteMissing(l.Requested, fmt.Errorf("a %s without a Capability List above it", c))
	return nil
}
