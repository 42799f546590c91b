package event_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/event"
)

var keyForm = regexp.MustCompile(`^([a-z0-9_-]{1,60}-)?[a-z2-7]{26}$`)

func TestKey(t *testing.T) {
	for id, want := range map[string]string{
		"urn:x:A":                             "urn-x-a-",
		"https://a.example/Record 1?x=1&y=%2": "https-a-example-record-1-x-1-y-2-",
		"":                                    "",
		"\u65e5\u672c":                        "",
		strings.Repeat("x", 200):              strings.Repeat("x", 60) + "-",
	} {
		if got := event.Key(id); got[:len(got)-event.KeyLength] != want {
			t.Errorf("Key(%q) = %q, want %q in front of the digits", id, got, want)
		}
	}
}

// A key has the form of the URL table, leads back to the identifier's bits, and
// is no key of another identifier.
func TestKeyLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, other := rapid.String().Draw(t, "id"), rapid.String().Draw(t, "other")
		key := event.Key(id)
		if !keyForm.MatchString(key) {
			t.Fatalf("key %q", key)
		}
		if bits, ok := event.KeyBitsOf(key); !ok || bits != event.KeyBits(id) {
			t.Fatalf("key %q has bits %x, %v; the identifier %x", key, bits, ok, event.KeyBits(id))
		}
		if !event.IsKeyOf(key, id) || id != other && event.IsKeyOf(key, other) {
			t.Fatalf("key %q of %q and %q", key, id, other)
		}
	})
}

func TestKeyBitsOfRefuses(t *testing.T) {
	for _, key := range []string{"", "short", strings.Repeat("1", 26), strings.Repeat("A", 26), strings.Repeat("a", 10) + "." + strings.Repeat("a", 15)} {
		if bits, ok := event.KeyBitsOf(key); ok {
			t.Errorf("%q has bits %x", key, bits)
		}
	}
}

func representations(t *rapid.T, label string) []event.Representation {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) event.Representation {
		return event.Representation{
			Href:   "https://a.example/" + rapid.StringMatching(`[a-d]{1,2}`).Draw(t, "href"),
			Type:   rapid.SampledFrom([]string{"", "text/xml", "application/xml", "application/rdf+xml", "text/html; charset=utf-8", "x/\u00f6"}).Draw(t, "type"),
			Length: rapid.Int64Range(-1, 3).Draw(t, "length"),
			Hash:   rapid.SampledFrom([]string{"", "sha-256:00", "sha-256:01"}).Draw(t, "hash"),
		}
	}), 0, 6).Draw(t, label)
}

var nameForm = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9]+)?\.)?[a-z0-9]+$`)

// A name is unique in its record, and a representation keeps it for as long as
// the record has it.
func TestNameLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := representations(t, "before"), representations(t, "after")
		event.NameRepresentations(before, nil)
		event.NameRepresentations(after, before)
		for _, reps := range [][]event.Representation{before, after} {
			seen := map[string]bool{}
			for _, r := range reps {
				if seen[r.Name] || !nameForm.MatchString(r.Name) {
					t.Fatalf("names of %+v", reps)
				}
				seen[r.Name] = true
			}
		}
		for _, r := range after {
			was := slices.IndexFunc(before, func(b event.Representation) bool { return b.Href == r.Href })
			once := func(reps []event.Representation) bool {
				n := 0
				for _, x := range reps {
					if x.Href == r.Href {
						n++
					}
				}
				return n == 1
			}
			if was >= 0 && once(before) && once(after) && before[was].Name != r.Name {
				t.Fatalf("%s was %s and is %s", r.Href, before[was].Name, r.Name)
			}
		}
	})
}

func observation(change ...func(*event.Observation)) *event.Observation {
	o := &event.Observation{Title: "A", Modified: event.StampFromNanos(1), Representations: []event.Representation{
		{Href: "https://a.example/1", Type: "text/xml", Length: 1, Hash: "sha-256:00"},
		{Href: "https://a.example/2", Type: "text/html", Length: 2, Hash: "sha-256:01"},
	}}
	for _, f := range change {
		f(o)
	}
	return o
}

// What counts as the state of a record (I5), and what does not.
func TestDigest(t *testing.T) {
	unhashed := func(o *event.Observation) { o.Representations[1].Hash = "" }
	maps := []event.Category{{Term: "maps", Scheme: "urn:scheme", Label: "Maps"}, {Term: "old"}}
	for name, c := range map[string]struct {
		a, b *event.Observation
		same bool
	}{
		"nothing":                    {observation(), observation(), true},
		"title":                      {observation(), observation(func(o *event.Observation) { o.Title = "B" }), false},
		"stamp":                      {observation(), observation(func(o *event.Observation) { o.Modified = event.StampFromNanos(2) }), true},
		"stamp without hash":         {observation(unhashed), observation(unhashed, func(o *event.Observation) { o.Modified = event.StampFromNanos(2) }), false},
		"hash":                       {observation(), observation(func(o *event.Observation) { o.Representations[0].Hash = "sha-256:02" }), false},
		"length":                     {observation(), observation(func(o *event.Observation) { o.Representations[0].Length = 9 }), false},
		"type":                       {observation(), observation(func(o *event.Observation) { o.Representations[1].Type = "text/plain" }), false},
		"href of a hashed one":       {observation(), observation(func(o *event.Observation) { o.Representations[1].Href = "https://b.example/" }), true},
		"href of one without a hash": {observation(unhashed), observation(unhashed, func(o *event.Observation) { o.Representations[1].Href = "https://b.example/" }), false},
		"the original's place":       {observation(), observation(func(o *event.Observation) { o.Representations[0].Href = "https://b.example/" }), false},
		"inherited via":              {observation(), observation(func(o *event.Observation) { o.Via.Href = "https://o.example/" }), false},
		"language (D16)":             {observation(), observation(func(o *event.Observation) { o.Representations[0].Hreflang = "de" }), false},
		"profile (D24)":              {observation(), observation(func(o *event.Observation) { o.Representations[0].Profile = "urn:p" }), false},
		"category (D15)":             {observation(), observation(func(o *event.Observation) { o.Categories = maps }), false},
		"another order of categories": {observation(func(o *event.Observation) { o.Categories = maps }),
			observation(func(o *event.Observation) { o.Categories = []event.Category{maps[1], maps[0]} }), true},
		"details (D15)": {observation(), observation(func(o *event.Observation) { o.Details = &event.Details{Language: "de"} }), true},
		"link to a record of the set (D7)": {observation(func(o *event.Observation) { o.Links = []event.Link{{Rel: "describes", Record: "a"}} }),
			observation(func(o *event.Observation) { o.Links = []event.Link{{Rel: "describes", Record: "a", InSet: true}} }), false},
		"link that is not published (D7)": {observation(), observation(func(o *event.Observation) { o.Links = []event.Link{{Rel: "collection", Href: "https://b.example/"}} }), true},
		"details of a later time": {observation(), observation(func(o *event.Observation) {
			o.Details = &event.Details{EntryLanguage: "de", Published: event.StampFromNanos(1), Edited: event.StampFromNanos(2)}
		}), true},
		"licence":                  {observation(), observation(func(o *event.Observation) { o.Links = []event.Link{{Rel: "license", Href: "https://l.example/"}} }), false},
		"priority of an alternate": {observation(), observation(func(o *event.Observation) { o.Representations[1].Pri = 1 }), true},
		"another order": {observation(), observation(func(o *event.Observation) {
			slices.Reverse(o.Representations)
			o.Preferred = 1
		}), true},
	} {
		if same := c.a.Digest(event.Mirror) == c.b.Digest(event.Mirror); same != c.same {
			t.Errorf("%s: the same state: %v", name, same)
		}
	}
}

// D111: where others are sent to the originals, their addresses count.
func TestDigestOfAddresses(t *testing.T) {
	moved := observation(func(o *event.Observation) { o.Representations[1].Href = "https://b.example/" })
	for _, content := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		if same := observation().Digest(content) == moved.Digest(content); same != (content == event.Mirror) {
			t.Errorf("mode %v: another href, the same state: %v", content, same)
		}
	}
}

// What a Source states of its own copy counts where others are sent to that.
func TestDigestOfCopies(t *testing.T) {
	mirrored := func(pri int) *event.Observation {
		return observation(func(o *event.Observation) {
			o.Links = []event.Link{{Rel: "duplicate", Href: "https://m.example/1", Pri: pri, Modified: event.StampFromNanos(int64(pri))}, {Rel: "collection", Href: "urn:c"}}
		})
	}
	for _, content := range []event.Content{event.Mirror, event.Redirect, event.Reference} {
		if same := observation().Digest(content) == mirrored(1).Digest(content); same != (content != event.Reference) {
			t.Errorf("mode %v: a mirror, the same state: %v", content, same)
		}
		if same := mirrored(2).Digest(content) == mirrored(1).Digest(content); same != (content != event.Reference) {
			t.Errorf("mode %v: another priority, the same state: %v", content, same)
		}
	}
	if mirrored(1).ClaimOf() == mirrored(2).ClaimOf() {
		t.Error("another priority makes the same claim")
	}
}

func TestStamps(t *testing.T) {
	unknown, epoch := event.Stamp{}, event.StampFromNanos(0)
	if !unknown.Before(epoch) || epoch.Before(unknown) || unknown.Compare(event.Stamp{}) != 0 || epoch.String() != "1970-01-01T00:00:00Z" || unknown.String() != "" {
		t.Error("an unknown stamp is earlier than every known one, and prints as nothing")
	}
	// D89: what is too early has the earliest stamp; no time, and what is too late, none.
	earliest, _ := event.StampOf(time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC))
	for year, want := range map[int]event.Stamp{-1: earliest, 1: earliest, 1600: earliest, 1677: earliest, 2262: unknown, 9999: unknown} {
		if s, ok := event.StampOf(time.Date(year, 5, 1, 0, 0, 0, 0, time.UTC)); s != want || ok != want.Known() {
			t.Errorf("year %d: %v, %t, want %v", year, s, ok, want)
		}
	}
	if s, ok := event.StampOf(time.Time{}); ok || s.Known() {
		t.Errorf("no time at all: %v", s)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 1000, time.FixedZone("", 3600))
	if got := event.MicrosOf(at).String(); got != "2026-01-02T02:04:05.000001Z" {
		t.Error(got)
	}
	if s, ok := event.StampOf(at); !ok || s.String() != "2026-01-02T02:04:05.000001Z" || !s.Add(time.Hour).After(s) {
		t.Error(s)
	}
}

func TestOriginal(t *testing.T) {
	for href, want := range map[string]string{
		"":                                     "",
		"https://a.example/1?metadataPrefix=x": "https://a.example/1?metadataPrefix=x",
		"https://a.example/oai?verb=GetRecord&identifier=oai:a:1&metadataPrefix=mods":     "https://a.example/oai?verb=GetRecord&identifier=oai:a:1",
		"https://a.example/oai?x=y&verb=GetRecord&metadataPrefix=mods&identifier=oai:a:1": "https://a.example/oai?x=y&verb=GetRecord&identifier=oai:a:1",
		"https://a.example/oai?verb=ListRecords&metadataPrefix=mods":                      "https://a.example/oai?verb=ListRecords&metadataPrefix=mods",
		"https://a.example/a b[1]?ü":                                                      "https://a.example/a%20b%5B1%5D?%C3%BC",
		"https://a.example/a%20b%5B1%5D?%C3%BC":                                           "https://a.example/a%20b%5B1%5D?%C3%BC",
	} {
		if got := event.Original(href); got != want {
			t.Errorf("%q becomes %q, want %q", href, got, want)
		}
	}
}
