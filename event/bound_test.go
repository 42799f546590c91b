package event_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// D67, D102: each thing that a Source says may be as long as that and no longer.
func TestBound(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	reps := func(n int) []event.Representation {
		out := make([]event.Representation, n)
		for i := range out {
			out[i].Href = fmt.Sprint(i)
		}
		return out
	}
	for name, c := range map[string]struct {
		most int
		set  func(o *event.Observation, n int)
	}{
		"record":            {event.MaxIdentifier, func(o *event.Observation, n int) { o.Record = x(n) }},
		"source identifier": {event.MaxIdentifier, func(o *event.Observation, n int) { o.SourceIdentifier = x(n) }},
		"loc":               {event.MaxHref, func(o *event.Observation, n int) { o.Loc = x(n) }},
		"via":               {event.MaxHref, func(o *event.Observation, n int) { o.Via.Href = x(n) }},
		"type of the via":   {event.MaxType, func(o *event.Observation, n int) { o.Via.Type = x(n) }},
		"representation":    {event.MaxHref, func(o *event.Observation, n int) { o.Representations[1].Href = x(n) }},
		"type":              {event.MaxType, func(o *event.Observation, n int) { o.Representations[1].Type = x(n) }},
		"hash":              {event.MaxHash, func(o *event.Observation, n int) { o.Representations[1].Hash = x(n) }},
		"content coding":    {event.MaxType, func(o *event.Observation, n int) { o.Representations[1].Encoding = x(n) }},
		"representations":   {event.MaxRepresentations, func(o *event.Observation, n int) { o.Representations = reps(n) }},
		"links":             {event.MaxLinks, func(o *event.Observation, n int) { o.Links = make([]event.Link, n) }},
		"link":              {event.MaxHref, func(o *event.Observation, n int) { o.Links = []event.Link{{}, {Href: x(n)}} }},
		"relation":          {event.MaxType, func(o *event.Observation, n int) { o.Links = []event.Link{{Rel: x(n)}} }},
		"linked record":     {event.MaxIdentifier, func(o *event.Observation, n int) { o.Links = []event.Link{{Record: x(n)}} }},
	} {
		for _, over := range []int{0, 1} {
			o := observation()
			c.set(o, c.most+over)
			if err := o.Bound(); errors.Is(err, event.ErrTooMuch) != (over > 0) || err != nil && len(err.Error()) > 200 {
				t.Errorf("%s of %d: %v", name, c.most+over, err)
			}
		}
	}
}

// D67: a title that is too long is cut between characters, says so, and stays as
// it is when it is cut again.
func TestCutTitle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		title := strings.Repeat(rapid.StringN(1, 20, -1).Draw(t, "title"), rapid.IntRange(1, 1000).Draw(t, "times"))
		cut := event.CutTitle(title)
		switch {
		case len(title) <= event.MaxTitle && cut != title:
			t.Fatalf("%q was cut to %q", title, cut)
		case len(title) > event.MaxTitle && (len(cut) > event.MaxTitle || !strings.HasSuffix(cut, " …") || !utf8.ValidString(cut)):
			t.Fatalf("%q was cut to %q", title, cut)
		case event.CutTitle(cut) != cut:
			t.Fatalf("%q was cut again", cut)
		}
	})
}

// D102: of representations with one Href the first counts.
func TestDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reps := append(representations(t, "reps"), representations(t, "more")...)
		var want []event.Representation
		for _, r := range reps {
			there := false
			for _, w := range want {
				there = there || w.Href == r.Href
			}
			if !there {
				want = append(want, r)
			}
		}
		if got := event.Distinct(reps); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// D102: naming costs time in proportion to how many there are, whatever they are.
func TestNameCost(t *testing.T) {
	const n = 8000
	for name, href := range map[string]func(int) string{
		"equal":    func(int) string { return "http://h.example/r" },
		"distinct": func(i int) string { return fmt.Sprintf("http://h.example/%d", i) },
	} {
		reps, before := make([]event.Representation, n), make([]event.Representation, n)
		for i := range reps {
			reps[i] = event.Representation{Href: href(i), Type: "text/xml"}
			before[i] = event.Representation{Href: href(i + n/2), Type: "text/xml"}
		}
		testenv.Affordable(t, n*40, func() {
			event.NameRepresentations(before, nil)
			event.NameRepresentations(reps, before)
		})
		seen := map[string]bool{}
		for _, r := range reps {
			if seen[r.Name] {
				t.Fatalf("%s: %s twice", name, r.Name)
			}
			seen[r.Name] = true
		}
	}
}

// D110: lists and feeds have room for what is said of one record in all.
func TestBoundOfAll(t *testing.T) {
	o := &event.Observation{Details: &event.Details{Authors: []event.Person{{Name: strings.Repeat("a", event.MaxMetadata-1000)}}}}
	if err := o.Bound(); err != nil {
		t.Error(err)
	}
	o.Details.Authors[0].Name += strings.Repeat("a", 1000)
	if err := o.Bound(); !errors.Is(err, event.ErrTooMuch) {
		t.Errorf("got %v", err)
	}
}
