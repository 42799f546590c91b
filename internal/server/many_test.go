package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
)

// The page of all sets has a part of very many, with links to the others.
func TestPageOfManySets(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, "", nil)
	for n := range 401 {
		h.set(fmt.Sprintf("set-%03d", n), "", event.Reference)
	}
	for _, part := range []struct {
		path, says, before, after string
		first, sets               int
	}{
		{"/", "Sets 1 to 200 of 401", "", "200", 0, 200},
		{"/?from=200", "Sets 201 to 400 of 401", "0", "400", 200, 200},
		{"/?from=400", "Sets 401 to 401 of 401", "200", "", 400, 1},
		{"/?from=401", "Sets 1 to 200 of 401", "", "200", 0, 200},
		{"/?from=-1", "Sets 1 to 200 of 401", "", "200", 0, 200},
	} {
		body := h.get(part.path).want(t, 200).body
		if n := strings.Count(body, `<h2><a href="sets/`); n != part.sets || !strings.Contains(body, fmt.Sprintf(`href="sets/set-%03d/"`, part.first)) || !strings.Contains(body, part.says) {
			t.Errorf("%s has %d sets; want %d from set-%03d, and %q", part.path, n, part.sets, part.first, part.says)
		}
		for rel, from := range map[string]string{"prev": part.before, "next": part.after} {
			link := fmt.Sprintf(`<a href="./?from=%s" rel="%s">`, from, rel)
			if strings.Contains(body, `rel="`+rel+`"`) != (from != "") || from != "" && !strings.Contains(body, link) {
				t.Errorf("%s: want %s, or no such link", part.path, link)
			}
		}
	}
}
