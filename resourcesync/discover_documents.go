package resourcesync

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/pmh-bridge/bridge/internal/follow"
)

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
		d.lack(l.Requested, fmt.Errorf("a document of capability %q, which leads to no list", c))
		return nil
	}
}

// lack takes note of a document that is named and is not to be had.
func (d *discovery) lack(at string, why error) {
	d.missing = append(d.missing, Gap{URL: at, Reason: why.Error()})
	d.p.report(Problem{Rule: ruleMissing, URL: at, Found: why.Error(), Expected: "a document of the Source"}, false)
}

// names follows a Source Description, or an index of these or of Capability
// Lists, to all that it names.
func (d *discovery) names(l *List, depth int) error {
	if depth >= maxIndexes {
		l.close()
		d.lack(l.Requested, fmt.Errorf("it is nested more than %d deep", maxIndexes))
		return nil
	}
	var locs []string
	var sum digest
	_, err := l.entries(func(e *Entry) {
		sum.add(e.Loc)
		locs = append(locs, e.Loc)
	})
	if missing(err) {
		d.lack(l.Requested, err)
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
		if slices.Contains(d.p.w.Accepted, to) {
			d.partial = true
			continue
		}
		got, err := d.look(to)
		switch {
		case err != nil:
			return err
		case got.list == nil:
			d.lack(to, errors.New(got.answer))
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
		d.lack(l.Requested, err)
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
		d.p.report(Problem{Rule: ruleNames, URL: set.CapabilityList, Found: "the Resource Dump " + also.resources + " and no Resource List",
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
		d.p.report(Problem{Rule: ruleNames, URL: set.CapabilityList, Found: found, Expected: "a Resource List or a Change List; the set is left out"}, false)
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
		d.p.hold(l)
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

// above reads a document that l points up to; nil when it is not to be had,
// which is reported.
func (d *discovery) above(l *List, at string) (*above, error) {
	if err := d.p.client.Allowed(at); err != nil {
		l.broken(ruleMissing, err.Error(), "a link upwards that may be followed")
		return nil, nil
	}
	up, err := d.p.open(at, follow.Validators{})
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
	d.lack(l.Requested, fmt.Errorf("a %s without a Capability List above it", c))
	return nil
}
