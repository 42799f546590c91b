package resourcesync

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// history is a Source of one set: changes a minute apart, in lists that close,
// roll off and are shown in every way that Sources have.
type history struct {
	s    *site
	next int // minute of the next change
	// lists hold minutes; the last list is open. starts are when they begin.
	lists  [][]int
	starts []int
	gone   int // lists that have rolled off

	single, nested, reversed bool
	noUntil, noFrom          bool
	// archive is the form in which lists that have rolled off are named; "" for none.
	archive string
}

// archiveForms are the forms of archives: a urlset, an index of urlsets, the index of
// lists of the paper of 2013, and one that names the lists of the index too.
var archiveForms = []string{"", "list", "parts", "paper", "all"}

func minute(m int) float64 { return 2 + float64(m)/24/60 }

func (h *history) publish() {
	capabilities := []string{lists("/cl", "changelist"), lists("/rl", "resourcelist"), lists("/rla", "resourcelist-archive")}
	if h.archive != "" && h.gone > 0 {
		capabilities = append(capabilities, lists("/cla", "changelist-archive"))
	}
	h.s.put("/cap", urlset(attrs("capability", "capabilitylist"), capabilities...))
	h.s.put("/rl", resources(minute(h.next), res("x")))
	var entries, archived []string
	for i := range h.lists {
		from, until := minute(h.starts[i]), 0.0
		if i+1 < len(h.lists) {
			until = minute(h.starts[i+1])
		}
		var all []string
		for _, m := range h.lists[i] {
			all = append(all, change(fmt.Sprint(m), minute(m)))
		}
		path := fmt.Sprintf("/cl%d", i)
		if h.single {
			path = "/cl"
		}
		h.s.put(path, changes(from, until, all...))
		says := []any{}
		if !h.noFrom {
			says = append(says, "from", from)
		}
		if !h.noUntil {
			says = append(says, "until", until)
		}
		if i < h.gone {
			archived = append(archived, named(path, says...))
		} else {
			entries = append(entries, named(path, says...))
		}
	}
	if h.single {
		return
	}
	h.publishArchive(archived, entries)
	if h.nested && len(entries) > 2 {
		half := len(entries) / 2
		h.s.put("/old", sitemapindex(attrs("capability", "changelist", "from", minute(h.starts[h.gone])), entries[:half]...))
		says := attrs("from", minute(h.starts[h.gone]), "until", minute(h.starts[h.gone+half]))
		entries = append([]string{fmt.Sprintf("<sitemap><loc>{}/old</loc><rs:md%s/></sitemap>", says)}, entries[half:]...)
	}
	if h.reversed {
		slices.Reverse(entries)
	}
	h.s.put("/cl", sitemapindex(attrs("capability", "changelist", "from", minute(h.starts[h.gone])), entries...))
}

// publishArchive writes the archive, which names what the index does not.
func (h *history) publishArchive(archived, indexed []string) {
	head := attrs("capability", "changelist-archive")
	asURL := func(entries []string) string {
		return urlset(head, strings.NewReplacer("<sitemap>", "<url>", "</sitemap>", "</url>").Replace(strings.Join(entries, "")))
	}
	switch half := len(archived) / 2; h.archive {
	case "list":
		h.s.put("/cla", asURL(archived))
	case "all":
		h.s.put("/cla", asURL(append(archived, indexed[:len(indexed)-1]...)))
	case "paper":
		h.s.put("/cla", sitemapindex(head, archived...))
	case "parts":
		h.s.put("/cla1", asURL(archived[:half]))
		h.s.put("/cla2", asURL(archived[half:]))
		border := 0.0
		if half > 0 {
			border = minute(h.starts[half])
		}
		parts := []string{named("/cla2", "from", border, "until", minute(h.starts[h.gone]))}
		if half > 0 {
			parts = append([]string{named("/cla1", "from", minute(0), "until", border)}, parts...)
		}
		h.s.put("/cla", sitemapindex(head, parts...))
	}
}

// grow makes some changes, closes some lists, and drops some.
func (h *history) grow(t *rapid.T) {
	for range rapid.IntRange(0, 6).Draw(t, "changes") {
		last := len(h.lists) - 1
		if !h.single && rapid.IntRange(0, 2).Draw(t, "close") == 0 {
			h.lists, h.starts = append(h.lists, nil), append(h.starts, h.next)
			last++
		}
		h.lists[last] = append(h.lists[last], h.next+1)
		h.next++
	}
	if n := len(h.lists) - 1; h.gone < n {
		h.gone += rapid.IntRange(0, min(3, n-h.gone)).Draw(t, "rolled off")
	}
}

// begins is the first list that can be read.
func (h *history) begins() int {
	if h.archive != "" {
		return 0
	}
	return h.gone
}

// shown are the minutes of the changes that can be read now.
func (h *history) shown() []int {
	var all []int
	for _, l := range h.lists[h.begins():] {
		all = append(all, l...)
	}
	return all
}

// Every walk, in whatever state, sees each change later than its mark exactly
// once, newest list first, and says so when some cannot be had; and a walk that
// was broken off goes on without missing or repeating a list.
func TestEachChangeOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{s: newSite(t), lists: [][]int{nil}, starts: []int{0}}
		defer h.s.Close()
		flag := func(name string) bool { return rapid.Bool().Draw(rt, name) }
		h.s.tags, h.single = flag("tags"), flag("single")
		h.nested, h.reversed = flag("nested"), flag("reversed")
		h.noUntil, h.noFrom = flag("no until"), flag("no from")
		h.archive = rapid.SampledFrom(archiveForms).Draw(rt, "archive")
		if h.reversed && h.noFrom && h.noUntil {
			h.reversed = false // nothing tells their order
		}
		var w *Walk
		var state State
		mark := -1
		for range rapid.IntRange(2, 5).Draw(rt, "walks") {
			h.grow(rt)
			h.publish()
			w = h.s.walk("/cap")
			w.State = state
			w.Full = rapid.IntRange(0, 5).Draw(rt, "full") == 0
			got := h.s.run(w)
			if at := rapid.IntRange(0, 4).Draw(rt, "break off"); at < len(got.states) {
				got = h.resume(t, w, got, at)
			}
			h.judge(rt, got, mark, !state.IsZero())
			state = stored(t, got.State)
			if shown := h.shown(); len(shown) > 0 {
				mark = max(mark, slices.Max(shown))
			}
		}
	})
}

// resume goes on after the list of a whole walk, and puts both halves together.
func (h *history) resume(t *testing.T, w *Walk, whole *walked, at int) *walked {
	again := *w
	again.State = stored(t, whole.states[at])
	rest := h.s.run(&again)
	for i, n := 0, 0; ; i++ {
		if whole.entries[i] == "|" {
			if n++; n > at {
				rest.entries = append(slices.Clone(whole.entries[:i+1]), rest.entries...)
				break
			}
		}
	}
	rest.lists = append(slices.Clone(whole.lists[:at+1]), rest.lists...)
	return rest
}

func (h *history) judge(t *rapid.T, got *walked, mark int, known bool) {
	if got.err != nil || got.Gap != nil || !got.whole {
		t.Fatalf("gap %v, error %v", got.Gap, got.err)
	}
	seen := map[int]int{}
	newest := h.next + 1
	for _, list := range strings.Split(strings.Join(got.entries, " "), "|") {
		last := -1
		for _, name := range strings.Fields(list) {
			var m int
			if name == "x" {
				continue
			}
			if _, err := fmt.Sscan(name, &m); err != nil {
				t.Fatal(err)
			}
			seen[m]++
			last = max(last, m)
		}
		if last > newest {
			t.Fatalf("%d is in a list after that of %d: %v", last, newest, got.lists)
		}
		if last >= 0 {
			newest = last
		}
	}
	at := -1
	if got.Baseline && !known {
		at = h.next // nothing of before the Resource List's at is wanted
	}
	for _, m := range h.shown() {
		switch n := seen[m]; {
		case n > 1:
			t.Fatalf("change %d was seen %d times in %v", m, n, got.lists)
		case n == 0 && m > mark && m > at:
			t.Fatalf("change %d was not seen in %v; the mark was %d", m, got.lists, mark)
		}
	}
	begins := h.starts[h.begins()]
	if lost := known && begins > max(mark, 0) && mark >= 0; lost && got.Lost == "" && !h.covered(begins, mark) {
		t.Fatalf("nothing is said to be lost, though the lists begin at %d and the mark was %d", begins, mark)
	}
	if got.Lost != "" && !got.Baseline {
		t.Fatalf("changes are lost (%s) and no baseline was read", got.Lost)
	}
	if got.Lost != "" && mark >= begins {
		t.Fatalf("%s, though the lists begin at %d and the mark was %d", got.Lost, begins, mark)
	}
}

// covered reports whether no change lies between the mark and where the lists
// begin.
func (h *history) covered(begins, mark int) bool {
	for _, l := range h.lists[:h.gone] {
		for _, m := range l {
			if m > mark && m <= begins {
				return false
			}
		}
	}
	return true
}
