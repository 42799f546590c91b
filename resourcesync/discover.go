package resourcesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// Tried is a place where discovery looked in vain.
type Tried struct {
	Place, URL string
	// Answer says what was there instead.
	Answer string
}

// NoSourceError tells that an address leads to no document of the framework and
// to no sitemap.
type NoSourceError struct {
	URL   string
	Tried []Tried
}

// Error names each place that was tried and what it answered.
func (e *NoSourceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: no ResourceSync Source and no sitemap found; give the address of one of its documents. Tried: ", e.URL)
	for i, t := range e.Tried {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s %s: %s", t.Place, t.URL, t.Answer)
	}
	return b.String()
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
	p, err := newPass(ctx, w)
	if err != nil {
		return Found{}, err
	}
	defer p.close()
	d := newDiscovery(p)
	err = d.run()
	return d.found, err
}

// discovery is one search for the lists of a Source.
type discovery struct {
	p            *pass
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

func newDiscovery(p *pass) *discovery {
	return &discovery{p: p, seen: map[string]bool{}, validators: map[string]follow.Validators{}}
}

// page is what a look has shown.
type page struct {
	list   *List    // a document of the framework or a sitemap
	links  []string // rel="resourcesync"
	answer string   // what it is, if it is none
}

// look asks for a document and tells what it is. An error may pass, or is the
// operator's to solve.
func (d *discovery) look(to string) (page, error) {
	d.seen[follow.Key(to)] = true
	if most := d.p.most(); len(d.seen) > most+len(knownPlaces) {
		return page{}, fmt.Errorf("%s: %w: discovery has looked at %d; if the Source is that large, raise the cap", to, ErrTooManyDocuments, most)
	}
	a, err := d.p.get(to, follow.Validators{})
	if s := follow.Status(err); s != 0 && s != 429 && s < 500 {
		return page{answer: fmt.Sprintf("HTTP status %d", s)}, nil
	}
	if err != nil {
		return page{}, err
	}
	in := unpacked(a.Body)
	links := linkHeader(a)
	if isHTML(a, in) {
		defer a.Close()
		more, err := htmlLinks(in, a.URL)
		return page{links: append(links, more...), answer: "an HTML page"}, err
	}
	l, err := newList(d.p, a, in)
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
	w := d.p.w
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
		return &StatusError{URL: d.p.w.URL, Status: http.StatusUnauthorized}
	}
	for _, g := range d.missing {
		d.fail("named there,", g.URL, g.Reason)
	}
	return &NoSourceError{URL: d.p.w.URL, Tried: d.tried}
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
	if err := d.p.client.Allowed(at); err != nil {
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
		d.fail("a link of the page", d.p.w.URL, "no Link header and no link of relation resourcesync")
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
	u, err := url.Parse(d.p.w.URL)
	if err != nil {
		return path
	}
	u.Path, u.RawPath, u.RawQuery, u.Fragment, u.RawFragment = path, "", "", "", ""
	return u.String()
}
