package eventlog_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A set that gets other names keeps its events, its Sources and the name in its identifiers; its
// former names lead to it, also after the log was opened again, until they are freed or another
// set takes them.
func TestRenameSet(t *testing.T) {
	t.Parallel()
	ctx, folder := t.Context(), t.TempDir()
	l, src := filled(t, folder, event.Reference)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(add(l, src, 0, 3))
	was, err := all(l)
	must(err)
	sets := []eventlog.SetConfig{
		{Name: "main", Content: event.Reference, Sources: []eventlog.SourceConfig{{Kind: "atompmh", URL: "https://repository.example/feed.atom"}, {Kind: "sip", URL: "/sip/main"}}},
		{Name: "all", Title: "Everything", Content: event.Reference, Sources: []eventlog.SourceConfig{{Kind: "set", URL: "set:main"}, {Kind: eventlog.Target, URL: "https://ingest.example/"}}},
	}
	_, err = l.Configure(ctx, sets)
	must(err)
	_, err = l.DeriveSet(ctx, "copy", "https://maps.example/capabilitylist.xml", []string{"copy-a"}, nil)
	must(err)
	must(l.EnsureSet(ctx, eventlog.SetConfig{Name: "copy-a", Content: event.Reference}))

	must(l.RenameSet(ctx, "main", "maps", false))
	must(l.RenameSet(ctx, "maps", "charts", false))
	must(l.Close())
	l, err = eventlog.Open(ctx, folder, eventlog.Options{})
	must(err)
	names := func() (out string) {
		t.Helper()
		all, err := l.FormerNames(ctx)
		must(err)
		for _, f := range all {
			if f.Since == 0 {
				t.Errorf("%+v has no time", f)
			}
			out += f.Name + ">" + f.Now + " "
		}
		return out
	}
	if got := names(); got != "main>charts maps>charts " {
		t.Errorf("former names %q", got)
	}
	set, err := l.Set(ctx, "charts")
	if err != nil || set.Named != "main" || set.Title != "charts" {
		t.Errorf("%+v, %v", set, err)
	}
	if is, err := all(l); err != nil || strings.ReplaceAll(strings.Join(is, "\n"), `"charts"`, `"main"`) != strings.Join(was, "\n") {
		t.Errorf("%v, events\n%s\nwere\n%s", err, is, was)
	}
	for set, want := range map[string]string{"charts": "https://repository.example/feed.atom /sip/charts", "all": "set:charts"} {
		sources, err := l.Sources(ctx, set)
		var urls []string
		for _, s := range sources {
			urls = append(urls, s.URL)
		}
		if err != nil || strings.Join(urls, " ") != want {
			t.Errorf("set %s has the Sources %q, %v, want %s", set, urls, err, want)
		}
	}
	if targets, err := l.Targets(ctx, "all"); err != nil || len(targets) != 1 || targets[0].URL != "https://ingest.example/" {
		t.Errorf("targets %+v, %v", targets, err)
	}

	var former *eventlog.FormerNameError
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"no such set":       {l.RenameSet(ctx, "none", "x", false), `no set "none" in this data folder`},
		"another set":       {l.RenameSet(ctx, "all", "charts", true), `there is another set "charts" in this data folder`},
		"a derived set":     {l.RenameSet(ctx, "copy-a", "x", false), "one of them is derived from a template"},
		"a derived name":    {l.RenameSet(ctx, "all", "copy-a", false), "one of them is derived from a template"},
		"a former name":     {l.RenameSet(ctx, "all", "maps", false), `set "maps" is called "charts" since `},
		"a new set":         {l.EnsureSet(ctx, eventlog.SetConfig{Name: "main"}), "end that with: bridge set free main"},
		"free no name":      {l.FreeName(ctx, "charts"), `"charts" is no former name of a set`},
		"a content changed": {l.EnsureSet(ctx, eventlog.SetConfig{Name: "charts", Content: event.Mirror}), `set charts was made with content = "reference", which cannot be changed to "mirror"`},
	} {
		if row.err == nil || !strings.Contains(row.err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, row.err, row.want)
		}
		if strings.Contains(name, "former") && (!errors.As(row.err, &former) || former.Now != "charts") {
			t.Errorf("%s: %v", name, row.err)
		}
	}
	if err := l.RenameSet(ctx, "none", "x", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such set: %v", err)
	}

	must(l.RenameSet(ctx, "all", "maps", true)) // takes the name
	must(l.FreeName(ctx, "main"))
	must(l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Reference})) // its identifiers cannot have the name
	if fresh, err := l.Set(ctx, "main"); err != nil || fresh.Named != "main-2" || fresh.Events != 0 {
		t.Errorf("the new set main: %+v, %v", fresh, err)
	}
	must(l.RenameSet(ctx, "maps", "all", false)) // back
	if back, err := l.Set(ctx, "all"); err != nil || back.Named != "" || back.Title != "Everything" {
		t.Errorf("%+v, %v", back, err)
	}
	if got := names(); got != "maps>all " {
		t.Errorf("former names %q", got)
	}
	sound(t, l)

	must(l.Exec(ctx, "UPDATE former_name SET since = since + 1"))
	if _, err := l.FormerNames(ctx); err == nil || !strings.Contains(err.Error(), `former name "maps": `) {
		t.Errorf("a damaged name is read: %v", err)
	}
	found := ""
	must(l.Verify(context.WithoutCancel(ctx), func(f eventlog.Finding) { found += f.Where + ": " + f.What + "\n" }))
	if !strings.Contains(found, "maps") {
		t.Errorf("verify finds %q", found)
	}
	must(l.Close())
	if !eventlog.Exists(folder) || eventlog.Exists(filepath.Join(folder, "other")) {
		t.Error("the log exists where it does not, or the other way round")
	}
}
