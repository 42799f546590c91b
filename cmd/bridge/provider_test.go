package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pmh-bridge/bridge/fixtures"
)

// upstream is a Source of a script, of any kind.
type upstream interface {
	http.Handler
	SetHook(path string, h fixtures.Hook)
	ClearHook(path string)
	Requests(path string) int
	ForgetRequests()
}

// provider is a command of the scripts, a Source on loopback:
//
//	provider catalogue|instruments|empty [VARIABLE]   serves an Atom-PMH feed; $FEED is its URL
//	provider maps|sitemap [VARIABLE]                  serves a ResourceSync Source or a plain sitemap; $FEED is its host
//	provider museum [VARIABLE]                        serves an OAI-PMH repository; $FEED is its base URL
//	provider news [VARIABLE]                          serves an RSS feed; $FEED is its URL
//	provider site FOLDER [VARIABLE]                   serves the files of a folder; $FEED is their host
//	provider use VARIABLE                             goes back to one that was started before
//	provider create|update|delete|touch NAME          changes a record
//	provider delete-all                               deletes every record
//	provider close                                    closes an archive, or a Change List
//	provider bad TEXT                                 adds an entry as it stands
//	provider pin                                      the Resource List stays as it is now
//	provider roll-off N                               withdraws the N oldest Change Lists
//	provider misbehave DEFECT [NAME]                  has a defect (fixtures.Defect), or one record has
//	provider behave                                   has none any more
//	provider answer PATH STATUS | PATH ok             answers so, until ok
//	provider hang PATH                                never answers the next request
//	provider wait                                     waits for that request
//	provider files FOLDER                             writes everything as files
//	provider forget                                   forgets the requests
//	provider asked PATH N                             N requests since the last time
//
// What changes is the one that was started last, or that use names.
func provider(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: provider WHAT ARGUMENT...")
	}
	s := scriptOf(ts)
	what, args := args[0], append(args[1:], "", "")
	if s.begin(ts, what, args) || s.answers(ts, what, args) {
		return
	}
	changed := false
	switch u := s.upstream.(type) {
	case *fixtures.Provider:
		changed = changeProvider(ts, u, what, args[0])
	case *fixtures.Source:
		changed = changeSource(ts, u, what, args)
	case *fixtures.Blog:
		changed = changeBlog(u, what, args[0])
	case *fixtures.Inventory:
		changed = changeInventory(u, what, args[0])
	}
	if !changed {
		ts.Fatalf("provider %s: there is no such thing for %T", what, s.upstream)
	}
}

// begin starts a Source, or goes back to one.
func (s *scriptState) begin(ts *testscript.TestScript, what string, args []string) bool {
	switch what {
	case "catalogue":
		s.serve(ts, fixtures.Catalogue(nil), args[0], fixtures.Subscription)
	case "instruments":
		s.serve(ts, fixtures.Instruments(nil), args[0], fixtures.Subscription)
	case "empty":
		s.serve(ts, fixtures.New(fixtures.Options{}), args[0], fixtures.Subscription)
	case "maps":
		s.serve(ts, fixtures.Maps(nil), args[0], "")
	case "sitemap":
		s.serve(ts, fixtures.NewSource(fixtures.SourceOptions{Dialect: fixtures.PlainSitemap}), args[0], "")
	case "museum":
		s.serve(ts, fixtures.Museum(nil), args[0], fixtures.MuseumOAI)
	case "news":
		s.serve(ts, fixtures.News(), args[0], fixtures.NewsFeed)
	case "site":
		s.publish(ts, http.FileServer(http.Dir(ts.MkAbs(args[0]))), args[1], "")
	case "use":
		if s.upstream = s.upstreams[args[0]]; s.upstream == nil {
			ts.Fatalf("no Source was started as %s", args[0])
		}
	default:
		return false
	}
	return true
}

func (s *scriptState) serve(ts *testscript.TestScript, u upstream, variable, path string) {
	s.upstream = u
	s.upstreams[s.publish(ts, u, variable, path)] = u
}

// publish serves a Source and sets its variable, whose name it returns.
func (s *scriptState) publish(ts *testscript.TestScript, h http.Handler, variable, path string) string {
	server := httptest.NewServer(h)
	ts.Defer(server.Close)
	if variable == "" {
		variable = "FEED"
	}
	ts.Setenv(variable, server.URL+path)
	return variable
}

// answers does what concerns requests.
func (s *scriptState) answers(ts *testscript.TestScript, what string, args []string) bool {
	switch what {
	case "answer":
		code, err := strconv.Atoi(args[1])
		if args[1] != "ok" {
			ts.Check(err)
		}
		s.upstream.ClearHook(args[0])
		if code != 0 {
			s.upstream.SetHook(args[0], fixtures.Hook{Status: code})
		}
	case "hang":
		asked := make(chan struct{})
		s.asked = asked
		s.upstream.SetHook(args[0], fixtures.Hook{Before: func(*http.Request) { close(asked) }, Wait: make(chan struct{}), Times: 1})
	case "wait":
		<-s.asked
	case "forget":
		s.upstream.ForgetRequests()
	case "asked":
		if got := strconv.Itoa(s.upstream.Requests(args[0])); got != args[1] {
			ts.Fatalf("%s requests for %s, want %s", got, args[0], args[1])
		}
		s.upstream.ForgetRequests()
	default:
		return false
	}
	return true
}

func changeProvider(ts *testscript.TestScript, p *fixtures.Provider, what, name string) bool {
	switch what {
	case "create":
		p.Create(fixtures.Record{Name: name, Title: "Record " + name})
	case "update":
		p.Update(fixtures.Record{Name: name})
	case "delete":
		p.Delete(name)
	case "touch":
		p.Touch(name)
	case "delete-all":
		for _, r := range p.Live() {
			p.Delete(r.Name)
		}
	case "close":
		p.CloseArchive()
	case "bad":
		p.Edit(fixtures.Subscription, func(d *fixtures.Document) {
			d.Entries = append([]fixtures.Entry{{Raw: name}}, d.Entries...)
		})
	case "files":
		ts.Check(p.WriteFiles(ts.MkAbs(name)))
	default:
		return false
	}
	return true
}

func changeSource(ts *testscript.TestScript, s *fixtures.Source, what string, args []string) bool {
	name := args[0]
	switch what {
	case "create":
		s.Create(fixtures.Resource{Name: name, Title: "Record " + name})
	case "update":
		s.Update(fixtures.Resource{Name: name})
	case "delete":
		s.Delete(name)
	case "touch":
		s.Touch(name)
	case "delete-all":
		for _, r := range s.Live() {
			s.Delete(r.Name)
		}
	case "close":
		s.CloseChangeList()
	case "pin":
		s.PinResourceList()
	case "roll-off":
		n, err := strconv.Atoi(name)
		ts.Check(err)
		s.RollOff(n)
	case "misbehave":
		if args[1] == "" {
			s.Misbehave(fixtures.Defect(name))
		} else {
			s.MisbehaveOn(args[1], fixtures.Defect(name))
		}
	case "behave":
		s.Behave()
	default:
		return false
	}
	return true
}

func changeBlog(b *fixtures.Blog, what, slug string) bool {
	switch what {
	case "create":
		b.Publish(fixtures.Post{Slug: slug, Title: "Post " + slug})
	case "update":
		b.Revise(fixtures.Post{Slug: slug, Summary: "Revised."})
	default:
		return false
	}
	return true
}

func changeInventory(inv *fixtures.Inventory, what, name string) bool {
	switch what {
	case "create", "update":
		inv.Put(fixtures.Item{Name: name, Set: "objects", Title: "Record " + name, Stamp: time.Now()})
	case "delete":
		inv.Put(fixtures.Item{Name: name, Deleted: true, Stamp: time.Now()})
	default:
		return false
	}
	return true
}
