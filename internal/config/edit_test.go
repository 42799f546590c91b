package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// edit changes a configuration and returns its text.
func edit(t rapid.TB, path string, change func(*Edit) error) (string, error) {
	t.Helper()
	e, err := NewEdit(context.Background(), path, Flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err = change(e); err == nil {
		_, err = e.Save()
	}
	text, readErr := os.ReadFile(path)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(text), err
}

func addition(set, url string) Addition {
	return Addition{Set: set, Source: []Setting{{"url", url}, {"every", "2h"}}}
}

// What is added stands at the end of its set, and nothing else changes; what is removed goes
// with its own comment and leaves the others.
func TestEdit(t *testing.T) {
	t.Parallel()
	const text = `# Everything. Ask Ann.
listen = "127.0.0.1:8080"   # here

# The first one
[[set]]
name = 'first'  # called so since 2019
description = """
[[set]]
name = "no set at all"
# no comment
"""

[[set.source]]
url = "http://a.example/"
# every = "3h"
# [[set.source]]
# url = "http://out.example/"

# From Bob,
# who is away.
[[set.source]]
url = "http://b.example/"
content_hosts = [
  "c.example", # of Bob
]

[[set.submit]]
url = "http://s.example/"
import_accepted_to = "second"
recipient = "none"

# Limits that are in between.
[limits]
depth = 99
[[set.source]]
"url" = "http://late.example/"

# The second one
[[ "set" ]]
name = "second"
[["set".source]]
kind = "sip"
mode = "library"
[set.source.formats]
"{urn:x}r" = "urn:x"
# The end.
`
	without := func(part string) string {
		if strings.Count(text, part) != 1 {
			t.Fatalf("%q is not there once", part)
		}
		return strings.Replace(text, part, "", 1)
	}
	with := func(before, more string) string {
		if strings.Count(text, before) != 1 {
			t.Fatalf("%q is not there once", before)
		}
		return strings.Replace(text, before, before+more, 1)
	}
	const source = "\n[[set.source]]\nurl = \"http://new.example/?a=\\\"b\\\"\\\\\"\nevery = \"2h\"\n"
	for name, x := range map[string]struct {
		change func(*Edit) error
		want   string
	}{
		"nothing":         {func(*Edit) error { return nil }, text},
		"add":             {func(e *Edit) error { return e.Add(addition("first", `http://new.example/?a="b"\`)) }, with("\"url\" = \"http://late.example/\"\n", source)},
		"add to the last": {func(e *Edit) error { return e.Add(addition("second", `http://new.example/?a="b"\`)) }, text + source},
		"add a set":       {func(e *Edit) error { return e.Add(addition("third", `http://new.example/?a="b"\`)) }, text + "\n[[set]]\nname = \"third\"\n" + source},
		"add two sets": {func(e *Edit) error {
			words := []Setting{{"title", "A\tB \x7f \"C\""}, {"prefer", []string{"a/b", "c/d"}}, {"history", false}, {"keep_lists", 3}}
			return e.Add(Addition{Set: "third", New: words[:1], Source: []Setting{{"url", "http://m.example/"}}}, Addition{Set: "fourth", New: words[1:], Source: []Setting{{"url", "http://n.example/"}}})
		}, text + "\n[[set]]\nname = \"third\"\ntitle = \"A\\u0009B \\u007F \\\"C\\\"\"\n\n[[set.source]]\nurl = \"http://m.example/\"\n" +
			"\n[[set]]\nname = \"fourth\"\nprefer = [\"a/b\", \"c/d\"]\nhistory = false\nkeep_lists = 3\n\n[[set.source]]\nurl = \"http://n.example/\"\n"},
		"remove the first": {func(e *Edit) error { return e.RemoveSource("first", "http://a.example/") }, without("\n[[set.source]]\nurl = \"http://a.example/\"\n# every = \"3h\"\n")},
		"remove the second": {func(e *Edit) error { return e.RemoveSource("first", "http://b.example/") },
			without("\n# From Bob,\n# who is away.\n[[set.source]]\nurl = \"http://b.example/\"\ncontent_hosts = [\n  \"c.example\", # of Bob\n]\n")},
		"remove the late one": {func(e *Edit) error { return e.RemoveSource("first", "http://late.example/") }, without("[[set.source]]\n\"url\" = \"http://late.example/\"\n")},
		"remove the first set": {func(e *Edit) error { return e.RemoveSet("first") },
			text[:strings.Index(text, "\n# The first one")] + "\n# Limits that are in between.\n[limits]\ndepth = 99\n" + text[strings.Index(text, "\n# The second one"):]},
		"remove the second set": {func(e *Edit) error {
			return errors.Join(e.RemoveSet("second"), e.RemoveSet("first"))
		}, text[:strings.Index(text, "\n# The first one")] + "\n# Limits that are in between.\n[limits]\ndepth = 99\n"},
		"rename": {func(e *Edit) error { return e.RenameSet("second", "2nd") },
			strings.Replace(strings.Replace(text, `name = "second"`, `name = "2nd"`, 1), `import_accepted_to = "second"`, `import_accepted_to = "2nd"`, 1)},
		"rename the first": {func(e *Edit) error { return e.RenameSet("first", "1st") }, strings.Replace(text, `name = 'first'  # called`, `name = "1st"  # called`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, newline := range []string{"\n", "\r\n"} {
				folder := t.TempDir()
				old, want := strings.ReplaceAll(text, "\n", newline), strings.ReplaceAll(x.want, "\n", newline)
				is, err := edit(t, write(t, folder, "bridge.toml", old), x.change)
				if err != nil || is != want {
					t.Errorf("%v, it is\n%s\nnot\n%s", err, is, want)
				}
				if _, err := Load(filepath.Join(folder, "bridge.toml")); err != nil {
					t.Errorf("it does not load any more: %v", err)
				}
				if left, _ := filepath.Glob(filepath.Join(folder, ".*")); len(left) > 0 {
					t.Errorf("%v is left behind", left)
				}
			}
		})
	}
}

// What is refused leaves the file as it is, and says what is in the way or what to write by hand.
func TestEditRefused(t *testing.T) {
	t.Parallel()
	const set = "[[set]]\nname = \"s\"\n[[set.source]]\nurl = \"http://a.example/\"\n"
	add := func(e *Edit) error { return e.Add(addition("s", "http://b.example/")) }
	for name, x := range map[string]struct {
		text   string
		change func(*Edit) error
		want   string
		byHand string
	}{
		"a Source twice":          {set, func(e *Edit) error { return e.Add(addition("s", "http://a.example/")) }, "nothing has changed, since the configuration would be wrong:\n", ""},
		"a wrong URL":             {set, func(e *Edit) error { return e.Add(addition("s", "ftp://a.example/")) }, "bridge.toml:7: set \"s\": source 2: url: cannot harvest from ftp://", ""},
		"a wrong name":            {set, func(e *Edit) error { return e.Add(addition("S", "http://a.example/")) }, `"S" is not a name of a set`, ""},
		"no such set":             {set, func(e *Edit) error { return e.RemoveSet("x") }, `has no set "x"`, ""},
		"no such Source":          {set, func(e *Edit) error { return e.RemoveSource("s", "http://x.example/") }, `set "s" has no Source http://x.example/`, ""},
		"no such set to rename":   {set, func(e *Edit) error { return e.RenameSet("x", "y") }, `has no set "x"`, ""},
		"no such set of a Source": {set, func(e *Edit) error { return e.RemoveSource("x", "http://a.example/") }, `has no set "x"`, ""},
		"a set by two names": {set, func(e *Edit) error {
			return errors.Join(e.RenameSet("s", "t"), e.RemoveSource("s", "http://a.example/"))
		}, "does not change safely", "bridge.toml, line 2, \"t\" instead of \"s\"\nremove from "},
		"a name that is there":       {set + "[[set]]\nname = \"t\"\n", func(e *Edit) error { return e.RenameSet("s", "t") }, `there is another set "t"`, ""},
		"a name that is none":        {set, func(e *Edit) error { return e.RenameSet("s", "T") }, `"T" is not a name of a set`, ""},
		"an inline set":              {"set = [{name = \"s\"}]\n", add, "bridge.toml:1, and cannot be added to", "[[set.source]]\nurl = \"http://b.example/\"\nevery = \"2h\"\n"},
		"an inline set removed":      {"set = [{name = \"s\"}]\n", func(e *Edit) error { return e.RemoveSet("s") }, "bridge.toml:1, and cannot be taken out of it", "take it out of that line by hand"},
		"an inline list of sets":     {"set = []\n", add, "are written in one list, in line 1", "[[set]]\nname = \"s\"\n"},
		"an inline list of Sources":  {"[[set]]\nname = \"s\"\nsource = [{url = \"http://a.example/\"}]\n", add, "bridge.toml:1, and cannot be added to", "[[set.source]]\n"},
		"an inline Source":           {"[[set]]\nname = \"s\"\nsource = [{url = \"http://a.example/\"}]\n", func(e *Edit) error { return e.RemoveSource("s", "http://a.example/") }, "Source 1 of set \"s\" is written on one line, in ", "by hand"},
		"the same Source twice gone": {set, func(e *Edit) error { return errors.Join(e.RemoveSet("s"), e.RemoveSource("s", "http://a.example/")) }, "concern the same lines", ""},
		"a set that takes records": {"[[set]]\nname = \"s\"\n[[set.source]]\nkind = \"sip\"\nmode = \"library\"\nformats = { x = \"urn:x\" }\n[[set]]\nname = \"t\"\n[[set.submit]]\nurl = \"http://s.example/\"\nimport_accepted_to = \"s\"\n",
			func(e *Edit) error { return e.RemoveSet("s") }, `import_accepted_to: there is no set "s"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is, err := edit(t, write(t, t.TempDir(), "bridge.toml", x.text), x.change)
			var byHand *ByHandError
			switch {
			case err == nil || !strings.Contains(err.Error(), x.want):
				t.Errorf("%v, want %q", err, x.want)
			case errors.As(err, &byHand) != (x.byHand != ""):
				t.Errorf("%v: what to do by hand is %v", err, byHand)
			case byHand != nil && !strings.Contains(byHand.Do, x.byHand):
				t.Errorf("by hand: %q, want %q", byHand.Do, x.byHand)
			}
			if is != x.text {
				t.Errorf("it is %q now", is)
			}
		})
	}
}

// Sets are found in every form in which they may be written, and so is what refers to them.
func TestEditForms(t *testing.T) {
	t.Parallel()
	rename := func(e *Edit) error { return e.RenameSet("s", "new") }
	for name, x := range map[string]struct {
		text   string
		change func(*Edit) error
		want   string
	}{
		"inline": {
			"set = [ # all\n {\"name\" = '''s''', source = [{kind = \"sip\", mode = \"library\", formats = {x = \"urn:x\"}}]}, {name = \"t\", submit = [{url = \"http://s.example/\", import_accepted_to = \"s\"}]} ]", rename,
			"set = [ # all\n {\"name\" = \"new\", source = [{kind = \"sip\", mode = \"library\", formats = {x = \"urn:x\"}}]}, {name = \"t\", submit = [{url = \"http://s.example/\", import_accepted_to = \"new\"}]} ]",
		},
		"part of another": {set("s") + set("all", harvests("set:s")), rename, set("new") + set("all", harvests("set:new"))},
		"part of another by its name": {
			set("s") + set("all", "[[set.source]]\nkind = \"set\"\nurl = \"s\"\n"), rename,
			set("new") + set("all", "[[set.source]]\nkind = \"set\"\nurl = \"new\"\n"),
		},
		"removed from the beginning": {set("s", harvests("http://a.example/")) + "\n# Deep.\n[limits]\ndepth = 9\n", func(e *Edit) error { return e.RemoveSet("s") }, "# Deep.\n[limits]\ndepth = 9\n"},
	} {
		if is, err := edit(t, write(t, t.TempDir(), "bridge.toml", x.text), x.change); err != nil || is != x.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, is, x.want)
		}
	}
}

// Sets in included files are changed there; a set that is new comes into the main file. Mode and
// symbolic links stay.
func TestEditIncluded(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"conf.d", "real"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	real := write(t, folder, "real/b.toml", "[[set]]\nname = \"b\"\n[[set.source]]\nurl = \"http://b.example/\"")
	if err := errors.Join(os.Chmod(real, 0o640), os.Symlink("../real/b.toml", filepath.Join(folder, "conf.d/b.toml"))); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "conf.d/a.toml", "[[set]]\nname = \"a\"\nsource = []\n")
	main := write(t, folder, "bridge.toml", "include = [\"conf.d/*\"]\n")
	is, err := edit(t, main, func(e *Edit) error {
		return e.Add(addition("b", "http://b2.example/"), addition("new", "http://n.example/"), addition("b", "http://b3.example/"), addition("new", "http://n2.example/"))
	})
	if want := "include = [\"conf.d/*\"]\n\n[[set]]\nname = \"new\"\n\n[[set.source]]\nurl = \"http://n.example/\"\nevery = \"2h\"\n\n[[set.source]]\nurl = \"http://n2.example/\"\nevery = \"2h\"\n"; err != nil || is != want {
		t.Fatalf("%v\n%s", err, is)
	}
	text, _ := os.ReadFile(real)
	if want := "[[set]]\nname = \"b\"\n[[set.source]]\nurl = \"http://b.example/\"\n\n[[set.source]]\nurl = \"http://b2.example/\"\nevery = \"2h\"\n\n[[set.source]]\nurl = \"http://b3.example/\"\nevery = \"2h\""; string(text) != want {
		t.Errorf("it is\n%s", text)
	}
	if info, err := os.Lstat(real); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := os.Readlink(filepath.Join(folder, "conf.d/b.toml")); err != nil {
		t.Error(err)
	}
	e, err := NewEdit(t.Context(), main, Flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.RemoveSource("b", "http://b.example/"); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveSet("new"); err != nil {
		t.Fatal(err)
	}
	c, err := e.Save()
	if err != nil || len(c.Sets) != 2 || len(c.Sets[1].Sources) != 2 || len(e.Config().Sets) != 3 {
		t.Fatalf("%v, %v", c, err)
	}
	if want := []string{main + ":2", filepath.Join(folder, "conf.d/b.toml") + ":3"}; !slices.Equal(e.Places(), want) {
		t.Errorf("changed %q, want %q", e.Places(), want)
	}
	if err := e.Undo(); err != nil {
		t.Fatal(err)
	}
	again, _ := os.ReadFile(real)
	mainAgain, _ := os.ReadFile(main)
	if string(again) != string(text) || string(mainAgain) != is {
		t.Errorf("after Undo:\n%s\n%s", again, mainAgain)
	}
}

// A file that cannot be written stays as it is, and so do the others: the error says what to do.
func TestEditUnwritable(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	folder := t.TempDir()
	conf := filepath.Join(folder, "conf.d")
	if err := os.Mkdir(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, conf, "a.toml", "[[set]]\nname = \"a\"\n[[set.source]]\nurl = \"http://a.example/\"\n\n[[set.source]]\nurl = \"http://b.example/\"\n")
	text := "include = [\"conf.d/*.toml\"]\n"
	main := write(t, folder, "bridge.toml", text)
	if err := os.Chmod(conf, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(conf, 0o700) //nolint:errcheck // so that it can be removed
	is, err := edit(t, main, func(e *Edit) error {
		return errors.Join(e.Add(addition("new", "http://n.example/?key=secret"), addition("a", "http://c.example/")), e.RemoveSource("a", "http://a.example/"))
	})
	var byHand *ByHandError
	if !errors.As(err, &byHand) || !strings.Contains(err.Error(), "cannot write ") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("%v", err)
	}
	want := fmt.Sprintf("add at the end of %s:\n\n[[set]]\nname = \"new\"\n\n[[set.source]]\nurl = \"http://n.example/?key=secret\"\nevery = \"2h\"\nremove from %[2]s the lines 3 to 4\nadd at the end of %[2]s:\n\n[[set.source]]\nurl = \"http://c.example/\"\nevery = \"2h\"",
		main, filepath.Join(conf, "a.toml"))
	if byHand.Do != want || is != text {
		t.Errorf("%s\n----\n%s\n----\n%s", byHand.Do, want, is)
	}
}

// Whoever may write into a folder, but not list it, cannot sync it either: what was written is
// no error then, and stays.
func TestEditInUnlistedFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may list every folder")
	}
	folder := t.TempDir()
	main := write(t, folder, "bridge.toml", "[[set]]\nname = \"a\"\n")
	if err := os.Chmod(folder, 0o300); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(folder, 0o700) //nolint:errcheck // so that it can be removed
	is, err := edit(t, main, func(e *Edit) error { return e.Add(addition("a", "http://c.example/")) })
	if err != nil || !strings.Contains(is, "http://c.example/") {
		t.Errorf("%v:\n%s", err, is)
	}
}

// Who changes a file between the reading and the writing of an Edit loses nothing: no file keeps
// a part of the changes, and the error says how to make them.
func TestEditOvertaken(t *testing.T) {
	t.Parallel()
	const text = "include = [\"b.toml\", \"more*\"]\n[[set]]\nname = \"s\"\n"
	other := set("t", harvests("http://a.example/")) + "\n[[set.source]]\nurl = \"http://b.example/\"\n" + set("old") + set("u")
	open := func() (main, b string, e *Edit) {
		folder := t.TempDir()
		main, b = write(t, folder, "bridge.toml", text), write(t, folder, "b.toml", other)
		e, err := NewEdit(t.Context(), main, Flags{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		if err := errors.Join(e.Add(addition("t", "http://c.example/"), addition("u", "http://d.example/"), addition("s", "http://e.example/")), e.RenameSet("old", "new"), e.RemoveSource("t", "http://b.example/")); err != nil {
			t.Fatal(err)
		}
		return main, b, e
	}
	read := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	const byEditor = "# by an editor\n"
	main, b, e := open()
	write(t, filepath.Dir(b), "b.toml", byEditor)
	_, err := e.Save()
	var byHand *ByHandError
	if !errors.As(err, &byHand) || !said(err, "cannot write "+b+": it has been changed by somebody else meanwhile: try again") || read(main) != text || read(b) != byEditor {
		t.Fatalf("%v, and the files are\n%s\n%s", err, read(main), read(b))
	}
	source := "\n\n[[set.source]]\nurl = \"http://%s.example/\"\nevery = \"2h\"\n"
	want := fmt.Sprintf("add at the end of "+main+":"+source+"remove from "+b+" the lines 6 to 7\nadd in "+b+" after line 7:"+source+"write in "+b+", line 9, \"new\" instead of \"old\"\nadd at the end of "+b+":"+source, "e", "c", "d")
	if byHand.Do != strings.TrimSuffix(want, "\n") {
		t.Errorf("by hand\n%s\nwant\n%s", byHand.Do, want)
	}

	main, b, e = open()
	if err := os.Remove(main); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Save(); !errors.As(err, &byHand) || !errors.Is(err, os.ErrNotExist) || read(b) != other {
		t.Errorf("the main file is gone: %v", err)
	}

	// A file that is new meanwhile counts. What is changed after Save stays when that is undone.
	main, b, e = open()
	write(t, filepath.Dir(main), "more.toml", set("w"))
	if c, err := e.Save(); err != nil || len(c.Sets) != 5 || c.Sets[4].Name != "w" {
		t.Fatalf("%v, %v", c, err)
	}
	write(t, filepath.Dir(b), "b.toml", byEditor)
	if err := e.Undo(); !said(err, b+" keeps the change: it has been changed by somebody else meanwhile") || read(main) != text || read(b) != byEditor {
		t.Errorf("%v", err)
	}
	if _, err := NewEdit(t.Context(), write(t, t.TempDir(), "bridge.toml", "depth = 9\n"), Flags{}); !said(err, "bridge.toml:1: depth: ") {
		t.Errorf("a wrong configuration: %v", err)
	}
}

// A file that another user owns is still theirs after a change.
func TestEditKeepsOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	path := write(t, t.TempDir(), "bridge.toml", "")
	if err := os.Chown(path, 4711, 4712); err != nil {
		t.Fatal(err)
	}
	if _, err := edit(t, path, func(e *Edit) error { return e.Add(addition("s", "http://a.example/")) }); err != nil {
		t.Fatal(err)
	}
	var is unix.Stat_t
	if err := unix.Stat(path, &is); err != nil || is.Uid != 4711 || is.Gid != 4712 || is.Size == 0 {
		t.Errorf("%d:%d, %d bytes, %v", is.Uid, is.Gid, is.Size, err)
	}
}

// Of commands at the same time none loses what another has written, and what is taken back is
// gone before the next one reads.
func TestEditConcurrent(t *testing.T) {
	t.Parallel()
	main := write(t, t.TempDir(), "bridge.toml", "")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			e, err := NewEdit(t.Context(), main, Flags{})
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			if err := e.Add(addition("s", fmt.Sprintf("http://%d.example/", i))); err != nil {
				t.Error(err)
			}
			if _, err := e.Save(); err != nil {
				t.Error(err)
			}
			if i%4 == 0 {
				if err := e.Undo(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	c, err := Load(main)
	if err != nil || len(c.Sets[0].Sources) != 15 {
		t.Errorf("%v, %v", c, err)
	}

	e, err := NewEdit(t.Context(), main, Flags{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no more patience"))
	if _, err := NewEdit(ctx, main, Flags{}); err == nil || !strings.Contains(err.Error(), "is being changed by another bridge command: no more patience") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(e.RemoveSet("s"), os.WriteFile(main, []byte("# by an editor\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Save(); err == nil || !strings.Contains(err.Error(), "has been changed by somebody else meanwhile: try again") {
		t.Errorf("%v", err)
	}
}

// Law: what is added and removed again leaves the bytes as they were, and either changes of the
// configuration what it is for, and nothing else.
func TestEditLaw(t *testing.T) {
	t.Parallel()
	testenv.Heavy(t)
	folder := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		newline := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "newline")
		line := rapid.SampledFrom([]string{"", "", "  \t", "# a comment", "# key = 1", "  # [[set]]", "#"})
		var b strings.Builder
		between := func() {
			for range rapid.IntRange(0, 3).Draw(t, "lines") {
				b.WriteString(line.Draw(t, "line") + newline)
			}
		}
		put := func(words ...string) {
			b.WriteString(rapid.SampledFrom(words).Draw(t, "words") + rapid.SampledFrom([]string{"", " ", " # at the end"}).Draw(t, "end") + newline)
		}
		var names []string
		between()
		put(`contact = "a@b.example"`, `data = '''[[set]]`+newline+`[[set.source]]'''`, "[limits]", "  [ limits ]")
		for i := range rapid.IntRange(0, 4).Draw(t, "sets") {
			between()
			put("[[set]]", `[["set"]]`, " [[ 'set' ]]")
			between()
			names = append(names, fmt.Sprintf("s%d", i))
			put(fmt.Sprintf("name = \"s%d\"", i), fmt.Sprintf("\"na\\u006de\" = 's%d'", i))
			put("", "description = \"\"\"\n[[set]]\n# x\n\n\"\"\"", "prefer = [\"a/b\",\n # [[set.source]]\n\n\"c/d\"]")
			for j := range rapid.IntRange(0, 3).Draw(t, "Sources") {
				between()
				put("[[set.source]]", `[["set" . 'source']]`)
				between()
				put(fmt.Sprintf("url = \"http://%d-%d.example/\"", i, j))
				put("", "", fmt.Sprintf("[mail]%srelay = \"r.example:25\"%[1]s[snapshot]", newline))
				between()
				if strings.Contains(b.String(), "[mail]") { // once
					break
				}
			}
			if strings.Contains(b.String(), "[mail]") {
				break
			}
		}
		text := b.String()
		if rapid.Bool().Draw(t, "unfinished") {
			text = strings.TrimSuffix(text, newline)
		}
		main := filepath.Join(folder, "bridge.toml")
		if err := os.WriteFile(main, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before, err := Load(main)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		set := rapid.SampledFrom(append(names, "new")).Draw(t, "set")
		added, err := edit(t, main, func(e *Edit) error { return e.Add(addition(set, "http://added.example/")) })
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		after, err := Load(main)
		if err != nil {
			t.Fatal(err)
		}
		for i := range after.Sets {
			if s := &after.Sets[i]; s.Name == set {
				last := len(s.Sources) - 1
				if s.Sources[last].URL != "http://added.example/" {
					t.Fatalf("%q: it is not the last Source", added)
				}
				if s.Sources = s.Sources[:last]; last == 0 {
					s.Sources = nil
				}
			}
		}
		if set == "new" {
			if after.Sets = after.Sets[:len(after.Sets)-1]; len(after.Sets) == 0 {
				after.Sets = nil
			}
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q: more has changed", added)
		}
		again, err := edit(t, main, func(e *Edit) error {
			if set == "new" {
				return e.RemoveSet(set)
			}
			return e.RemoveSource(set, "http://added.example/")
		})
		if err != nil || again != text {
			t.Fatalf("%v: it was %q, became %q and is %q", err, text, added, again)
		}
		for _, name := range names { // the check of Save says that nothing else is gone
			if _, err := edit(t, main, func(e *Edit) error { return e.RenameSet(name, "renamed-"+name) }); err != nil {
				t.Fatal(err)
			}
			if is, err := edit(t, main, func(e *Edit) error { return e.RemoveSet("renamed-" + name) }); err != nil {
				t.Fatalf("%q: %v", is, err)
			}
		}
	})
}
