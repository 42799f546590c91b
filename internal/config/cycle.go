package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// address is one at which our server is reached: a host as hostOf returns it, and the path
// before the paths of our documents.
type address struct{ host, path string }

// addresses returns the addresses of our server that the configuration contains.
func (d *document) addresses(c *Config) []address {
	typed := []string{c.BaseURL}
	for _, s := range d.services {
		typed = append(typed, s.it.Recipient)
	}
	for _, o := range d.targets {
		typed = append(typed, o.it.Recipient)
	}
	if _, port, err := checkListen(c.Listen); err == nil && port != 0 {
		host, _, _ := net.SplitHostPort(c.Listen) // checkListen has checked it
		typed = append(typed, "http://"+net.JoinHostPort(host, strconv.Itoa(port)))
	}
	var all []address
	for _, t := range typed {
		if u, err := url.Parse(t); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			all = append(all, address{hostOf(u), u.Path})
		}
	}
	return all
}

// hostOf returns the host of a URL, with its port unless it is the default of the scheme.
// It returns localhost for all names of this machine.
func hostOf(u *url.URL) string {
	host := follow.Host(u.Hostname())
	if a, err := netip.ParseAddr(host); host == "" || isLoopback(host) || err == nil && a.IsUnspecified() {
		host = "localhost"
	}
	port := u.Port()
	if scheme := strings.ToLower(u.Scheme); port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return host // http and https lead to the same server
	}
	return net.JoinHostPort(host, port)
}

// setAt returns the set to which a URL below /sip/ or /sets/ at one of our addresses
// belongs; "" means none.
func setAt(places []address, folder, typed string) string {
	u, err := url.Parse(typed)
	if err != nil || u.Host == "" {
		return ""
	}
	host := hostOf(u)
	for _, p := range places {
		if rest, ok := strings.CutPrefix(u.Path, p.path+folder); ok && host == p.host {
			set, _, _ := strings.Cut(rest, "/")
			return set
		}
	}
	return ""
}

// node is a state of a record at a set: it was submitted to the set's service, or it is one
// of the set's own.
type node struct {
	set       string
	submitted bool
}

// edge is a configured step that moves records from one node to another.
type edge struct {
	from, to node
	how      string // "set FROM ... set TO"; "" is not described
	in       table  // the table with the step
	key      string // "" means that no cycle begins here, see checkCycles
}

// checkCycles reports submissions that return to the set where they began. Each set would
// assign a new identifier, so there would be new records without end. Sets that only
// harvest each other cannot cause this: a record that was harvested from a bridge is
// identified by its original.
func (d *document) checkCycles(c *Config, services map[string]*SIP) {
	known := map[int]bool{} // edges of the reported cycles
	moves := d.edges(c, services)
	for i, m := range moves {
		if m.key == "" || known[i] {
			continue
		}
		if way := shortestCycle(moves, i); way != nil {
			for _, j := range way {
				known[j] = true
			}
			m.in.report(m.key, "closes a cycle, in which records would be submitted for ever: %s; leave one of these out, or write another", describeCycle(moves, way))
		}
	}
}

// edges returns all edges of the configuration, and reports those from a set to
// itself.
func (d *document) edges(c *Config, services map[string]*SIP) []edge {
	places := d.addresses(c)
	takes := func(set string) bool { return services[set] != nil && services[set].Mode != "" }
	var all []edge
	for _, s := range d.services {
		all = append(all, edge{from: node{s.set, true}, to: node{s.set, false}})
		switch to := setAt(places, "/sip/", s.it.Upstream); {
		case to == "":
		case to == s.set:
			s.in.report("upstream", "%s is this very service; write the URL of the ingest server behind it", s.it.Upstream)
		case takes(to):
			all = append(all, edge{node{s.set, true}, node{to, true}, "passes on to", s.in, "upstream"})
		}
	}
	for _, o := range d.targets {
		switch to := setAt(places, "/sip/", o.it.URL); {
		case to == "":
		case to == o.set:
			o.in.report("url", "%s is this set's own service, and what it accepts would be submitted again; write that of another set or server", o.it.URL)
		case takes(to):
			all = append(all, edge{node{o.set, false}, node{to, true}, "submits to", o.in, "url"})
		}
		if into := o.it.ImportAcceptedTo; into != o.set && services[into] != nil {
			all = append(all, edge{node{o.set, false}, node{into, false}, "gives what is accepted to", o.in, "import_accepted_to"})
		}
	}
	for _, m := range d.members {
		all = append(all, edge{from: node{m.it.Member(), false}, to: node{m.set, false}, how: "is part of"})
	}
	for i := range c.Sets {
		for _, s := range c.Sets[i].Sources {
			if from := setAt(places, "/sets/", s.URL); from != "" && from != c.Sets[i].Name {
				all = append(all, edge{from: node{from, false}, to: node{c.Sets[i].Name, false}, how: "is harvested by"})
			}
		}
	}
	return all
}

// checkMembers checks the sets that are Sources of others: they exist, keep contents if
// those do, and no set is part of itself.
func (d *document) checkMembers(c *Config, content map[string]string) {
	var parts []edge
	for _, m := range d.members {
		parts = append(parts, edge{node{m.it.Member(), false}, node{m.set, false}, "is part of", m.in, "url"})
	}
	known := map[int]bool{} // parts of the reported cycles
	for i, m := range d.members {
		name := m.it.Member()
		has, ok := content[name]
		if !ok { // sets made by sets = "each" have no table
			for j := range c.Sets {
				if s := &c.Sets[j]; s.IsTemplate() && strings.HasPrefix(name, s.Name+"-") {
					has, ok = s.Content, true
				}
			}
		}
		switch {
		case name == "": // reported already
		case !ok:
			m.in.report("url", "there is no set %q; write the name of another [[set]]", name)
		case name == m.set:
			m.in.report("url", "is the set itself; write the name of another [[set]]")
		case (has == Mirror) != (content[m.set] == Mirror):
			m.in.report("url", "set %q has content = %q, and this one %q: a set fetches nothing for another one, so both keep contents, or neither; write content = %q here", name, has, content[m.set], has)
		case known[i]:
		default:
			way := shortestCycle(parts, i)
			if way == nil {
				continue
			}
			for _, j := range way {
				known[j] = true
			}
			m.in.report("url", "closes a cycle, in which no set has records of its own: %s; leave one of these out", describeCycle(parts, way))
		}
	}
}

// shortestCycle returns the shortest cycle of edges that begins with one of them, nil
// when there is none.
func shortestCycle(moves []edge, first int) []int {
	ways := map[node][]int{moves[first].to: {first}} // paths, by their last node
	for next := []node{moves[first].to}; len(next) > 0; next = next[1:] {
		for i, m := range moves {
			if m.from != next[0] {
				continue
			}
			way := append(slices.Clone(ways[next[0]]), i)
			if m.to == moves[first].from {
				return way
			}
			if ways[m.to] == nil {
				ways[m.to] = way
				next = append(next, m.to)
			}
		}
	}
	return nil
}

// describeCycle describes a cycle.
func describeCycle(moves []edge, way []int) string {
	text := fmt.Sprintf("set %q", moves[way[0]].from.set)
	for _, i := range way {
		if m := moves[i]; m.how != "" {
			text += fmt.Sprintf(" %s set %q, which", m.how, m.to.set)
		}
	}
	return strings.TrimSuffix(text, ", which")
}
