package config

import (
	"fmt"
	"reflect"
	"slices"
)

// Empties returns an error where another configuration has no set, and this one has: an editor may
// have emptied the file, to write it anew, or the included ones are on a disk that is not mounted.
func (c *Config) Empties(other *Config) error {
	if len(other.Sets) > 0 || len(c.Sets) == 0 {
		return nil
	}
	return fmt.Errorf("%s has no [[set]] any more: without any, all that the data folder has is published, also sets that were taken out: write one, or restart bridge serve if you want that", other.File)
}

// Fixed returns the keys that have another value in another configuration and cannot be
// changed while bridge runs: those of the process, its addresses and its files, and those
// of the Simple Ingest Protocol.
func (c *Config) Fixed(other *Config) []string {
	var keys []string
	mine, theirs := reflect.ValueOf(*c), reflect.ValueOf(*other)
	for f := range mine.Type().Fields() {
		key := f.Tag.Get("toml")
		if key == "" || slices.Contains([]string{"set", "alert", "allow_hosts", "contact", "proxy"}, key) {
			continue
		}
		if !reflect.DeepEqual(mine.FieldByIndex(f.Index).Interface(), theirs.FieldByIndex(f.Index).Interface()) {
			keys = append(keys, key)
		}
	}
	ours, others := exchanges(c), exchanges(other)
	if !reflect.DeepEqual(ours, others) {
		for _, s := range slices.Concat(ours, others) {
			key := "set \"" + s.Name + "\": what it has to do with SIP"
			same := func(o Set) bool { return reflect.DeepEqual(o, s) }
			if (!slices.ContainsFunc(ours, same) || !slices.ContainsFunc(others, same)) && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		return keys
	}
	if len(ours) > 0 { // requests to recipients use these
		for _, x := range []struct {
			key  string
			same bool
		}{{"allow_hosts", slices.Equal(c.AllowHosts, other.AllowHosts)}, {"contact", c.Contact == other.Contact}, {"proxy", c.Proxy == other.Proxy}} {
			if !x.same {
				keys = append(keys, x.key+" (of a bridge that uses SIP)")
			}
		}
	}
	return keys
}

// exchanges returns the sets that use the Simple Ingest Protocol, with only the settings
// that concern it.
func exchanges(c *Config) (all []Set) {
	for _, s := range c.Sets {
		sip := slices.Collect(func(yield func(Source) bool) {
			for _, src := range s.Sources {
				if src.SIP != nil && !yield(src) {
					return
				}
			}
		})
		if len(sip) > 0 || len(s.Submit) > 0 {
			s.Title, s.Description, s.Licence, s.OAIPage, s.OAIFormats, s.Hub, s.Sources = "", "", "", 0, nil, nil, sip
			s.SegmentEvents, s.SegmentHours, s.KeepLists, s.KeepListsFor = 0, 0, 0, 0
			s.Robots, s.Feeds, s.Dumps, s.History = false, false, false, false
			all = append(all, s)
		}
	}
	return all
}

// Changes describes the differences of another configuration that can take effect while
// bridge runs, a sentence each.
func (c *Config) Changes(other *Config) (all []string) {
	before, after := c.setsByName(), other.setsByName()
	for i := range c.Sets {
		if name := c.Sets[i].Name; after[name] == nil {
			all = append(all, "set "+name+" is removed: it is kept, and not published any more")
		}
	}
	for i := range other.Sets {
		is := &other.Sets[i]
		was := before[is.Name]
		if was == nil {
			all = append(all, "set "+is.Name+" is added")
			was = &Set{}
		} else {
			mine, theirs := *was, *is
			mine.Sources, theirs.Sources = nil, nil
			if !reflect.DeepEqual(mine, theirs) {
				all = append(all, "set "+is.Name+" has other settings")
			}
		}
		all = append(all, was.sourceChanges(is)...)
	}
	if !reflect.DeepEqual(c.Alerts, other.Alerts) {
		all = append(all, "who is told of alerts has changed")
	}
	if !slices.Equal(c.AllowHosts, other.AllowHosts) || c.Contact != other.Contact || c.Proxy != other.Proxy {
		all = append(all, "allow_hosts, contact or proxy has changed, and counts for every Source")
	}
	return all
}

// setsByName returns the sets by their names: there may be thousands.
func (c *Config) setsByName() map[string]*Set {
	all := make(map[string]*Set, len(c.Sets))
	for i := range c.Sets {
		all[c.Sets[i].Name] = &c.Sets[i]
	}
	return all
}

// Set returns the set with a name, nil when there is none.
func (c *Config) Set(name string) *Set {
	for i := range c.Sets { // documents ask for each request
		if c.Sets[i].Name == name {
			return &c.Sets[i]
		}
	}
	return nil
}

func (s *Set) sourceChanges(other *Set) (all []string) {
	mine, theirs := s.sourcesByURL(), other.sourcesByURL()
	moved := map[string]string{} // by their names, the URLs of Sources that are new here
	for i := range other.Sources {
		is := &other.Sources[i]
		if _, known := mine[is.URL]; !known && is.Name != "" && is.Kind != KindSet {
			moved[is.Name] = is.URL
		}
	}
	said := map[string]bool{} // the names of Sources that have another URL, and stay what they are
	for i := range s.Sources {
		was := &s.Sources[i]
		if _, stays := theirs[was.URL]; stays {
			continue
		}
		url, ok := moved[was.Name]
		if !ok || was.Kind == KindSet {
			all = append(all, "set "+other.Name+": Source "+was.URL+" is removed; its records stay")
			continue
		}
		said[was.Name] = true
		all = append(all, "set "+other.Name+": Source "+was.Name+" has another URL: "+url)
	}
	for i := range other.Sources {
		is := &other.Sources[i]
		switch n, ok := mine[is.URL]; {
		case !ok && said[is.Name]:
		case !ok:
			all = append(all, "set "+other.Name+": Source "+is.URL+" is added")
		case !reflect.DeepEqual(&s.Sources[n], is):
			all = append(all, "set "+other.Name+": Source "+is.URL+" has other settings")
		case n != i:
			all = append(all, "set "+other.Name+": Source "+is.URL+" has another place")
		}
	}
	return all
}

// sourcesByURL returns the places of the Sources by their URLs: there may be thousands.
func (s *Set) sourcesByURL() map[string]int {
	all := make(map[string]int, len(s.Sources))
	for i := range s.Sources {
		all[s.Sources[i].URL] = i
	}
	return all
}
