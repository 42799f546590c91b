package console_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// Who reads the list of sets page by page gets each set once, by its name, also when another
// one is added or removed meanwhile.
func TestAPISetsPaged(t *testing.T) {
	t.Parallel()
	clock := testenv.NewClock()
	s := newSite(t, func(o *console.Options) { o.Now = clock.Now })
	page := func(cursor string) (names []string, next string) {
		t.Helper()
		a := s.ask(strings.TrimSuffix(s.console, console.Path) + api.Path + "/sets?limit=2&cursor=" + url.QueryEscape(cursor))
		var in struct {
			Items []struct{ Name string }
			Next  string
		}
		if a.StatusCode != 200 || json.Unmarshal([]byte(a.body), &in) != nil {
			t.Fatalf("%s: %s", a.Status, a.body)
		}
		for _, set := range in.Items {
			names = append(names, set.Name)
		}
		return names, in.Next
	}
	first, next := page("")
	if err := s.bridge.Log.RemoveSet(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute) // else the status is that of before
	got := first
	for next != "" {
		var more []string
		more, next = page(next)
		got = append(got, more...)
	}
	if want := []string{"catalogue", "deposits", "failing", "hostile", "inbox", "instruments"}; !slices.Equal(got, want) {
		t.Errorf("the sets, page by page, are %q, want %q", got, want)
	}
}
