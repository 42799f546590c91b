package content

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// execute executes SQL at a URL.
func execute(t *testing.T, at, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// schemaOf returns the schema of a URL, as SQL writes it.
func schemaOf(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("search_path")
}

// TestLocate: the store is on the server of the log if it is there already, or has a bucket. No
// store takes the place of another one.
func TestLocate(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.SharedPostgres(t)
	log, folder := postgres.NewSchema(t), t.TempDir()
	file := filepath.Join(folder, FileName)
	const bucket = "s3://library?endpoint=https://s3.example.org"
	o := Owner{Folder: folder, URL: log, Identity: "of the log"}
	locate := func(o Owner, bucket, want string) string {
		t.Helper()
		got, err := Locate(t.Context(), o, bucket)
		switch {
		case err != nil && (want == "" || !strings.Contains(err.Error(), want)):
			t.Fatalf("%v, want %q", err, want)
		case err == nil && want != "" && got != want:
			t.Fatalf("it is in %s, want %s", got, want)
		}
		return got
	}
	locate(Owner{Folder: folder}, "", file)
	locate(Owner{Folder: folder}, bucket, file)
	locate(o, "", file)
	place := locate(o, bucket, "")
	if name := schemaOf(t, log) + schemaEnding; schemaOf(t, place) != `"`+name+`"` {
		t.Errorf("the schema is %s, want %s", schemaOf(t, place), name)
	}
	named := o
	named.Named = true
	locate(named, bucket, "has no contents, although the log names some")

	f := openStore(t, file, Options{})
	locate(o, bucket, place) // the file has nothing
	put(t, f, []byte("here"))
	closed(t, f)
	locate(o, "", file)
	locate(o, bucket, "bridge copy")
	closed(t, f)

	o.Folder = t.TempDir()
	if _, err := Open(t.Context(), place, Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is none yet: %v", err)
	}
	s := openStore(t, place, Options{Log: o.Identity})
	put(t, s, []byte("there"))
	for _, bucket := range []string{"", bucket} {
		locate(o, bucket, place)
		o.Folder = folder
		locate(o, bucket, "and so has")
		o.Folder = t.TempDir()
		other := o
		other.Identity = "of another log"
		locate(other, bucket, "the contents of another log")
	}
	if n, err := s.Size(t.Context()); err != nil || n < 8192 {
		t.Errorf("it takes %d bytes, %v", n, err)
	}
	strange := postgres.NewSchema(t)
	execute(t, strange, `CREATE SCHEMA "`+schemaOf(t, strange)+schemaEnding+`"; CREATE TABLE "`+schemaOf(t, strange)+schemaEnding+`".boat (id int)`)
	locate(Owner{Folder: folder, URL: strange}, "", "no content store")
	long := strings.Repeat("x", 60)
	execute(t, strange, `CREATE SCHEMA "`+long+`"`)
	locate(Owner{Folder: folder, URL: strings.ReplaceAll(strange, schemaOf(t, strange), long)}, bucket, "too long")
}

// TestSchemaRights: a role that may not make the schema, or not use it, is told what to do.
func TestSchemaRights(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.Postgres(t)
	log := postgres.NewSchema(t)
	schema := schemaOf(t, log)
	execute(t, log, `CREATE ROLE guest LOGIN; ALTER SCHEMA `+schema+` OWNER TO guest; REVOKE CREATE ON DATABASE postgres FROM PUBLIC`)
	guest := strings.Replace(log, "postgres://bridge@", "postgres://guest@", 1)
	place, err := Locate(t.Context(), Owner{Folder: t.TempDir(), URL: guest}, "s3://library")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(want string) {
		t.Helper()
		if s, err := Open(t.Context(), place, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q (%v)", err, want, s)
		}
	}
	refused(`may not make the schema "` + schema + `_contents": as the administrator of the server: CREATE SCHEMA "` + schema + `_contents" AUTHORIZATION guest`)
	execute(t, log, `CREATE SCHEMA "`+schema+`_contents"`)
	refused(`ALTER SCHEMA "` + schema + `_contents" OWNER TO guest`)
	execute(t, log, `ALTER SCHEMA "`+schema+`_contents" OWNER TO guest`)
	s := openStore(t, place, Options{})
	put(t, s, []byte("kept"))
}

// TestServerAway: while the server of the store is away its contents are unavailable, and not
// damaged or missing. Afterwards all goes on, with what was acknowledged.
func TestServerAway(t *testing.T) {
	testenv.Heavy(t)
	postgres := testenv.Postgres(t)
	s := openStore(t, postgres.NewSchema(t), Options{})
	small, large := noise(1, 5000), noise(2, 9*chunkSize)
	put(t, s, small, large)
	for _, how := range []testenv.Shutdown{testenv.FastShutdown, testenv.ImmediateShutdown} {
		b, err := s.Open(t.Context(), sumOf(large))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, chunkSize)); err != nil {
			t.Fatal(err)
		}
		postgres.Stop(t, how)
		for name, do := range map[string]func() error{
			"put":     func() error { return s.Put(t.Context(), NewDraft(noise(3, 100))) },
			"replace": func() error { return s.Replace(t.Context(), NewDraft(small)) },
			"remove":  func() error { return s.Remove(t.Context(), sumOf(small)) },
			"open":    func() error { _, err := s.Open(t.Context(), sumOf(small)); return err },
			"read":    func() error { _, err := io.ReadAll(b); return err },
			"small":   func() error { _, err := s.Small(t.Context(), []Sum{sumOf(small)}); return err },
			"check":   func() error { return s.Check(t.Context(), sumOf(large)) },
			"missing": func() error { _, err := s.Missing(t.Context(), []Sum{sumOf(small)}); return err },
			"stats":   func() error { _, err := s.Stats(t.Context()); return err },
			"verify":  func() error { _, err := s.Verify(t.Context(), true, func(Sum, error) {}); return err },
			"size":    func() error { _, err := s.Size(t.Context()); return err },
		} {
			if err := do(); !errors.Is(err, event.ErrUnavailable) || errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, without the server: %v", name, err)
			}
		}
		postgres.Start(t)
		if _, err := b.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, large) {
			t.Errorf("with the server again: %d bytes, %v", len(got), err)
		}
		closed(t, b)
		mustHold(t, s, small)
		put(t, s, small, noise(4, 100))
		mustVerify(t, s, Stats{Count: 3, Bytes: int64(len(small) + len(large) + 100)})
		must(t, s.Remove(t.Context(), sumOf(noise(4, 100))))
	}
}

// A store is copied to a server and back with all that is in it, in the place of an earlier copy
// alone. Beside a log that has one there is no place for another.
func TestCopy(t *testing.T) {
	testenv.Heavy(t)
	log := testenv.SharedPostgres(t).NewSchema(t)
	if err := Vacant(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	there, err := PlaceBeside(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	file, back := filepath.Join(t.TempDir(), FileName), filepath.Join(t.TempDir(), FileName)
	s := openStore(t, file, Options{})
	all := [][]byte{[]byte("small"), {}, noise(1, 3*chunkSize+1)}
	put(t, s, all...)
	closed(t, s)
	for range 2 { // the second replaces the first
		for _, way := range [][2]string{{file, there}, {there, back}} {
			if n, err := Copy(t.Context(), way[0], way[1], "a log"); err != nil || n < int64(len(all[2])) {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		if err := Vacant(t.Context(), log); !errors.Is(err, database.ErrTaken) || !strings.Contains(err.Error(), "has contents already") {
			t.Errorf("there are contents already: %v", err)
		}
	}
	for _, path := range []string{there, back} {
		s := openStore(t, path, Options{})
		mustHold(t, s, all...)
		if on := database.OnServer(path); on != s.OnServer() || on == (s.Name() == FileName) {
			t.Errorf("%s is on a server: %v", s.Name(), s.OnServer())
		}
		closed(t, s)
	}
	if err := RemoveFile(back); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(back)); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A snapshot has what was stored before it, and not what was stored later.
func TestTakeSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s := openStore(t, path, Options{})
	put(t, s, []byte("before"))
	snapshot, err := TakeSnapshot(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, snapshot)
	put(t, s, []byte("later"))
	copied := filepath.Join(t.TempDir(), FileName)
	f, err := os.Create(copied)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(snapshot.WriteTo(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	c := openStore(t, copied, Options{ReadOnly: true})
	mustHold(t, c, []byte("before"))
	if has, err := c.Has(t.Context(), sumOf([]byte("later"))); err != nil || has {
		t.Errorf("it has what was stored later: %v", err)
	}
}
