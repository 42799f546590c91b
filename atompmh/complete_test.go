package atompmh

import (
	"errors"
	"strings"
	"testing"
)

func TestA5_Complete(t *testing.T) {
	const fh = "<fh:complete/>"
	tests := []struct {
		name          string
		sub, archive  page // archive: served at /1, named by sub when it has entries or a head
		paths         string
		complete      bool
		rule          string
		archiveIsLast bool
	}{
		{"subscription document", page{head: fh, entries: []string{alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"after the entries", page{entries: []string{alive("a", 2)}, tail: fh}, page{}, "/feed", true, "", false},
		{"any prefix", page{head: `<h:complete xmlns:h="http://purl.org/syndication/history/1.0"/>`, entries: []string{alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"prefix fh of another namespace", page{head: `<fh:complete xmlns:fh="urn:x"/>`, entries: []string{alive("a", 2)}}, page{}, "/feed", false, "", false},
		{"not in the feed itself", page{head: "<author>" + fh + "</author>", entries: []string{alive("a", 2)}}, page{}, "/feed", false, "", false},
		{"no entries", page{head: fh}, page{}, "/feed", true, "", false},
		{"prev-archive beside it", page{prev: "/1", head: fh, entries: []string{alive("a", 2)}}, page{updated: 2}, "/feed", true, ruleS11, false},
		{"prev-archive beside it, both at the end", page{entries: []string{alive("a", 2)}, tail: `<link rel="prev-archive" href="/1"/>` + fh}, page{updated: 2}, "/feed", true, ruleS11, false},
		{"S8: in an archive behind an empty document", page{prev: "/1"}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", true, "", true},
		{"S8: behind deletions", page{prev: "/1", entries: []string{gone("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", true, "", true},
		{"behind an active entry", page{prev: "/1", entries: []string{alive("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"behind a bad entry", page{prev: "/1", entries: []string{undefined("a", 3)}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"a bad entry with an id", page{head: fh, entries: []string{undefined("a", 2), alive("b", 2)}}, page{}, "/feed", true, "", false},
		{"an entry in no namespace", page{head: fh, entries: []string{`<entry xmlns=""><id>b</id></entry>`, alive("a", 2)}}, page{}, "/feed", false, ruleS8, false},
		{"an entry in no namespace, its id in Atom's", page{head: fh, entries: []string{`<entry xmlns=""><a:id xmlns:a="` + Namespace + `">b</a:id></entry>`, alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"behind an entry in no namespace", page{prev: "/1", entries: []string{`<entry xmlns=""/>`}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"an entry of another namespace", page{head: fh, entries: []string{`<entry xmlns="urn:x"/>`, alive("a", 2)}}, page{}, "/feed", true, "", false},
		{"an entry in another element", page{head: fh, entries: []string{`<x:list xmlns:x="urn:x">` + alive("b", 2) + `</x:list>`, alive("a", 2)}}, page{}, "/feed", false, ruleS8, false},
		{"an entry in an entry", page{head: fh, entries: []string{strings.Replace(alive("a", 2), "</entry>", alive("b", 2)+"</entry>", 1)}}, page{}, "/feed", false, ruleS8, false},
		{"behind an entry in another element", page{prev: "/1", entries: []string{`<x:list xmlns:x="urn:x">` + alive("b", 2) + `</x:list>`}}, page{updated: 2, head: fh, entries: []string{alive("a", 2)}}, "/feed /1", false, ruleS8, true},
		{"a bad entry without an id", page{head: fh, entries: []string{"<entry/>", alive("b", 2)}}, page{}, "/feed", false, ruleS8, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			tt.sub.updated = 4
			s.put("/feed", tt.sub.String())
			s.put("/1", tt.archive.String())
			got := s.run(s.walk())
			got.expect(t, tt.paths, "*")
			if got.Complete != tt.complete || got.complete[len(got.complete)-1] != tt.complete || !got.Oldest {
				t.Errorf("complete %v %v, oldest %v", got.Complete, got.complete, got.Oldest)
			}
			if asked := s.requests(); asked != tt.paths {
				t.Errorf("asked for %s", asked)
			}
			if tt.archiveIsLast && got.complete[0] {
				t.Error("the subscription document counts")
			}
			var rules []string
			for _, p := range got.problems {
				if p.Rule == ruleS8 || p.Rule == ruleS11 {
					rules = append(rules, p.Rule)
				}
			}
			if strings.Join(rules, " ") != tt.rule {
				t.Errorf("reported %v, want %s", got.problems, tt.rule)
			}
		})
	}
}

// TestA5_CompleteIsStrict: a complete document counts only once its end is read.
func TestA5_CompleteIsStrict(t *testing.T) {
	whole := page{updated: 4, head: "<fh:complete/>", entries: []string{alive("a", 2)}}.String()
	for _, doc := range []string{
		strings.TrimSuffix(whole, "</feed>"),
		whole + "<x/>",
		strings.Replace(whole, "2005/Atom", "2005/Atom/", 1),
	} {
		s := newSite(t)
		s.put("/feed", doc)
		got := s.run(s.walk())
		var fault *DocumentError
		if !errors.As(got.err, &fault) || got.Complete || got.Oldest || len(got.complete) != 0 {
			t.Errorf("%v, %+v", got.err, got.Result)
		}
	}
}

func TestA5_CompleteIsNotLost(t *testing.T) {
	s := newSite(t)
	s.put("/feed", page{updated: 4, head: "<fh:complete/>", entries: []string{alive("a", 4)}}.String())
	w := s.walk()
	w.State = marked(day(2))
	if got := s.run(w); got.Lost || got.err != nil || !got.Complete {
		t.Errorf("%+v", got.Result)
	}
}

func TestA7_FeedID(t *testing.T) {
	sub := page{updated: 20, prev: "/1", entries: []string{alive("a", 20)}}
	archive := page{updated: 10, entries: []string{alive("b", 10)}}
	tests := []struct {
		name            string
		want, sub, arch string
		refused, rule   bool
	}{
		{"same", "urn:x:feed", "", "", false, false},
		{"any", "", "", "", false, false},
		{"changed", "urn:x:old", "", "", true, false},
		{"byte for byte", "urn:X:feed", "", "", true, false},
		{"missing", "urn:x:feed", "-", "", false, false},
		{"archive differs", "urn:x:feed", "", "urn:x:other", false, true},
		{"archive differs, first walk", "", "", "urn:x:other", false, true},
		{"archive without", "urn:x:feed", "", "-", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			sub.id, archive.id = tt.sub, tt.arch
			s.put("/feed", sub.String())
			s.put("/1", archive.String())
			w := s.walk()
			w.FeedID = tt.want
			got := s.run(w)
			if tt.refused {
				if !errors.Is(got.err, ErrFeedID) || len(got.paths) != 0 || !strings.Contains(got.err.Error(), tt.want) {
					t.Errorf("error %v, visited %v", got.err, got.paths)
				}
				return
			}
			got.expect(t, "/feed /1", "aa ab")
			if got.reported(ruleFeedID) != tt.rule {
				t.Errorf("problems %v", got.problems)
			}
		})
	}
	t.Run("id after the entries", func(t *testing.T) {
		s := newSite(t)
		s.put("/feed", page{id: "-", updated: 20, entries: []string{alive("a", 20)}, tail: "<id>urn:x:new</id>"}.String())
		w := s.walk()
		w.FeedID = "urn:x:feed"
		if got := s.run(w); !errors.Is(got.err, ErrFeedID) {
			t.Error(got.err)
		}
		w.FeedID = "urn:x:new"
		if got := s.run(w); got.err != nil || got.FeedID != "urn:x:new" || got.states[0].m.Walk.FeedID != "urn:x:new" {
			t.Errorf("%+v %v", got.Result, got.err)
		}
	})
}
