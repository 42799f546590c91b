package console_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/console"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// axe returns the source of axe-core, an independent judge of pages.
func axe(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), ".tools", "axe-core", "package", "axe.min.js"))
	switch {
	case err == nil:
		return string(text)
	case testenv.Required():
		t.Fatalf("peer axe-core is missing: make deps installs it: %v", err)
	}
	t.Log("peer axe-core is missing, so it judges no page: make deps installs it")
	return ""
}

// Chromium shows every page in light, dark and on a phone, without a complaint of its own,
// of its policy or of axe-core; and everything can be done by clicking, without a
// script. BRIDGE_SCREENSHOTS names a folder for pictures of all that.
func TestChromium(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	judge, c := axe(t), newChromium(t)
	s := newSite(t)
	for n := range 3 {
		s.submit(n, fmt.Sprintf("Tower %d", n))
	}
	if said, failed := s.act("/reviews", "do", "accept", "id", "1", "to", "reviews"); failed {
		t.Fatal(said)
	}
	s.submit(0, "Tower 0, renovated")
	held, failing, hostile := "/sources/"+s.sourceOf("instruments"), "/sources/"+s.sourceOf("failing"), "/sources/"+s.sourceOf("hostile")
	pages := map[string]string{
		"overview": "/", "source": "/sources/1", "source-failing": failing, "source-hostile": hostile, "held": held + "/held", "sets": "/sets", "set": "/sets/catalogue", "set-deposits": "/sets/deposits",
		"events": "/sets/catalogue/events", "records": "/sets/catalogue/records", "record": "/sets/hostile/records/" + event.Key(evilLink),
		"quarantine": "/quarantine", "quarantined": "/quarantine/1", "reviews": "/reviews", "review": "/reviews/4", "nothing": "/nothing",
		"public": s.base + "/", "public-set": s.base + "/sets/catalogue/",
	}
	tab := c.newTab()
	folder := os.Getenv("BRIDGE_SCREENSHOTS")
	looks := []struct {
		name          string
		width, height int
		scheme        string
		rules         string // of axe-core; in dark the colours alone are others
	}{
		{"light", 1280, 900, "light", `["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]`},
		{"dark", 1280, 900, "dark", `{ type: "rule", values: ["color-contrast", "link-in-text-block"] }`},
		{"phone", 390, 844, "light", ""},
	}
	for name, path := range pages {
		if strings.HasPrefix(path, "/") {
			path = s.console + path
		}
		tab.look(looks[0].width, looks[0].height, looks[0].scheme)
		tab.open(path)
		for i, look := range looks { // at the page that is loaded
			tab.look(look.width, look.height, look.scheme)
			var width, wide int
			tab.eval("window.innerWidth", &width)
			tab.eval("document.documentElement.scrollWidth", &wide)
			if wide > max(width, look.width) {
				t.Errorf("%s, %s: %d wide where there are %d", name, look.name, wide, look.width)
			}
			complaints := tab.complaints()
			if name == "nothing" { // a 404 is an error to the browser
				complaints = nil
			}
			if len(complaints) > 0 {
				t.Errorf("%s, %s: the browser complains: %q", name, look.name, complaints)
			}
			if folder != "" {
				tab.screenshot(folder, name+"-"+look.name)
			}
			if judge == "" || look.rules == "" {
				continue
			}
			if i == 0 {
				tab.eval(judge, nil)
			}
			var violations []string
			tab.eval(`axe.run(document, { resultTypes: ["violations"], runOnly: `+look.rules+` })
.then(found => found.violations.map(v => v.impact + " " + v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + " " + n.failureSummary).join("; ")))`, &violations)
			for _, v := range violations {
				t.Errorf("%s, %s: %s", name, look.name, v)
			}
			tab.complaints() // the judge may try what the policy forbids
		}
	}
	t.Run("without scripts", func(t *testing.T) { s.clickAll(t, tab, held, failing) })
	t.Run("with scripts", func(t *testing.T) {
		tab.scripts(true)
		tab.look(1280, 900, "light")
		s.submit(8, "Tower 8")
		s.submit(9, "Tower 9")
		tab.open(s.console + "/reviews")
		tab.click("input[data-all]", false)
		tab.click("button[value=accept]", true)
		said := tab.note(t)
		if !strings.Contains(said, "2 submissions accepted") {
			t.Errorf("all chosen at once: %s", said)
		}
		tab.open(s.console + "/")
		var refreshed bool // as when somebody comes back to the page
		tab.eval(`new Promise(done => { const part = document.getElementById("summary"); part.replaceChildren();
new MutationObserver(() => done(part.children.length > 0)).observe(part, { childList: true }); document.dispatchEvent(new Event("visibilitychange")) })`, &refreshed)
		if !refreshed {
			t.Error("the overview is not refreshed")
		}
		if complaints := tab.complaints(); len(complaints) > 0 {
			t.Errorf("the browser complains: %q", complaints)
		}
	})
	t.Run("signing in", func(t *testing.T) {
		const token = "0123456789abcdef-token"
		locked := newSite(t, func(o *console.Options) { o.Token = token })
		tab.open(locked.console + "/sets")
		tab.complaints() // 401 is an error to the browser
		if folder != "" {
			tab.screenshot(folder, "sign-in-light")
		}
		tab.click("input[name=token]", false)
		tab.enter(token)
		tab.click("main button", true)
		var title string
		tab.eval("document.title", &title)
		if title != "Sets · bridge console" {
			t.Errorf("signed in, and at %q", title)
		}
		tab.click("header button", true)
		tab.eval("document.title", &title)
		if title != "Sign in · bridge console" {
			t.Errorf("signed out, and at %q", title)
		}
	})
}

// note returns what a page says of what was done.
func (p *tab) note(t *testing.T) (said string) {
	t.Helper()
	p.eval(`document.querySelector("main > [role=status], main > [role=alert]")?.textContent ?? "(nothing)"`, &said)
	return said
}

// clickAll does by clicking what can be done at the console, while pages run no script.
func (s *site) clickAll(t *testing.T, tab *tab, held, failing string) {
	tab.scripts(false)
	tab.look(1280, 900, "light")
	var got string
	for _, step := range []struct {
		at     string
		first  []string // clicked before
		button string
		want   string // in the note, or "": in the title
	}{
		{"/", nil, "th a[href*='sort=set']", ""},
		{"/", nil, "form.filter button", ""},
		{failing, []string{".actions details summary"}, "form[action$='/pause'] button", "is paused"},
		{failing, nil, "form[action$='/resume'] button", "is resumed"},
		{failing, nil, "form[action$='/harvest'] button", "harvested"},
		{"/", nil, "form[action$='/harvest'] button", "harvested"},
		{failing, []string{".actions details:nth-of-type(2) summary", "form[action$='/reset'] input[name=sure]"}, "form[action$='/reset'] button", "read from the beginning"},
		{held + "/held", nil, "form[action=keep] button", "11 held deletions kept"},
		{held + "/held", []string{"input[name=sure]"}, "form[action=release] button", "11 held deletions applied"},
		{"/quarantine", []string{"tbody input[name=id]"}, "button[value=replay]", "still bad"},
		{"/quarantine/1", nil, "button[value=discard]", "1 input discarded"},
		{"/reviews", []string{"tbody input[name=id]"}, "button[value=accept]", "1 submission accepted"},
		{"/reviews", []string{"tbody input[name=id]"}, "button[value=reject]", "1 submission rejected"},
		{"/reviews/4", nil, "button[value=accept]", "1 submission accepted"},
	} {
		tab.open(s.console + step.at)
		for _, selector := range step.first {
			tab.click(selector, false)
		}
		tab.click(step.button, true)
		if step.want == "" {
			tab.eval("document.title", &got)
			if got != "Overview · bridge console" {
				t.Errorf("%s, %s: at %q", step.at, step.button, got)
			}
			continue
		}
		if got = tab.note(t); !strings.Contains(got, step.want) {
			t.Errorf("%s, %s: it says %q, want %q", step.at, step.button, got, step.want)
		}
	}
	if complaints := tab.complaints(); len(complaints) > 0 {
		t.Errorf("the browser complains: %q", complaints)
	}
}
