package content

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadOnly(t *testing.T) {
	path := newPlace(t)
	if _, err := Open(context.Background(), path, Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no file: %v", err)
	}
	w := openStore(t, path, Options{})
	put(t, w, []byte("first"))
	r := openStore(t, path, Options{ReadOnly: true})
	mustHold(t, r, []byte("first"))
	put(t, w, []byte("second")) // beside the reader
	mustHold(t, r, []byte("second"))
	if err := r.Put(context.Background(), NewDraft(nil)); !errors.Is(err, errReadOnly) {
		t.Errorf("Put: %v", err)
	}
	if _, err := r.Draft(strings.NewReader(""), 1); !errors.Is(err, errReadOnly) {
		t.Errorf("Draft: %v", err)
	}
	mustVerify(t, r, Stats{Count: 2, Bytes: 11})
}

func TestDryRun(t *testing.T) {
	ctx := context.Background()
	path := newPlace(t)
	w := openStore(t, path, Options{})
	put(t, w, []byte("kept"))
	closed(t, w)
	contents := func() []byte {
		if server != nil {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	before := contents()

	large := noise(1, 5<<20)
	d := openStore(t, path, Options{DryRun: true})
	draft, err := d.Draft(bytes.NewReader(large), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	must(t, d.Put(ctx, draft, NewDraft([]byte("tried"))))
	for _, c := range [][]byte{[]byte("kept"), []byte("tried"), large} {
		mustHold(t, d, c)
	}
	mustVerify(t, d, Stats{Count: 3, Bytes: 9 + 5<<20})
	must(t, errors.Join(draft.Close(), d.Close()))
	if !bytes.Equal(before, contents()) {
		t.Error("the file has changed")
	}
	mustVerify(t, openStore(t, path, Options{}), Stats{Count: 1, Bytes: 4})
}

func TestDryRunWithoutStore(t *testing.T) {
	dir := t.TempDir()
	d := openStore(t, filepath.Join(dir, "not", "yet", "content.db"), Options{DryRun: true})
	put(t, d, []byte("tried"), noise(1, 1<<20))
	mustHold(t, d, []byte("tried"))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("made %v, %v", entries, err)
	}
}

// After a failure SQLite may be out of the transaction, where a statement would
// be committed: nothing more is taken.
func TestDryRunEndsWithFirstFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "content.db")
	w := openStore(t, path, Options{})
	put(t, w, []byte("kept"))
	closed(t, w)
	d := openStore(t, path, Options{DryRun: true})
	must(t, script(d, `PRAGMA max_page_count = 40`))
	if err := d.Put(context.Background(), NewDraft(noise(1, 1<<20))); !errors.Is(err, ErrFull) {
		t.Fatalf("full: %v", err)
	}
	if err := d.Put(context.Background(), NewDraft([]byte("tried"))); err == nil {
		t.Error("stored after a failure")
	}
	closed(t, d)
	mustVerify(t, openStore(t, path, Options{}), Stats{Count: 1, Bytes: 4})
}

func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	make := func(name, text string) string {
		path := filepath.Join(dir, name)
		s, err := Open(ctx, path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		must(t, errors.Join(script(s, text), s.Close()))
		return path
	}
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte(strings.Repeat("no database ", 1000)), 0o644))
	for _, c := range []struct{ path, want string }{
		{text, "restore it from a backup"},
		{make("newer", `PRAGMA user_version = 999`), "version 999"},
		{make("other", `PRAGMA application_id = 7`), "no content store"},
		{filepath.Join(dir, "no", "folder"), "no/folder"},
	} {
		for _, o := range []Options{{}, {ReadOnly: true}} {
			s, err := Open(ctx, c.path, o)
			if err == nil {
				err = s.Close()
				t.Errorf("%s, %+v: opened (%v)", c.path, o, err)
			} else if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %+v: %v, want %q in it", c.path, o, err, c.want)
			}
		}
	}
	if _, err := Open(ctx, filepath.Join(dir, "x"), Options{ReadOnly: true, DryRun: true}); err == nil {
		t.Error("opened read-only for a dry run")
	}
}
