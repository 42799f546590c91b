package content

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pmh-bridge/bridge/internal/database"
)

// FileName is the name of the store's file in the data folder, unless it is on a server.
const FileName = "content.db"

// schemaEnding makes the name of the store's schema of that of the log.
const schemaEnding = "_contents"

// Owner is the event log whose contents a store has. Where the log is decides where the store
// is.
type Owner struct {
	Folder   string // the data folder
	URL      string // of the log on a PostgreSQL server; "" is a log in the folder
	Identity string // of the log there
	Named    bool   // the log names contents, so that there is a store
}

// Locate finds out where the store of a log is, or is to be if there is none: on the server that
// has the log if it is there already, or if there is to be a bucket, which other machines reach
// too; else in the data folder. A new store on a server never takes the place of one with
// contents in the folder, nor the other way round: that is an error.
func Locate(ctx context.Context, o Owner, bucket string) (path string, err error) {
	file := filepath.Join(o.Folder, FileName)
	if o.URL == "" {
		return file, nil
	}
	url, err := PlaceBeside(ctx, o.URL)
	if err != nil {
		return "", err
	}
	is, err := kind().Look(ctx, url)
	if err == nil {
		err = is.Close()
	}
	if err != nil {
		return "", err
	}
	found := is.Exists
	if !found && bucket == "" {
		return file, nil
	}
	if found && is.Identity != o.Identity {
		return "", fmt.Errorf("%s has the contents of another log than %s: put both schemas back from the same backup; if the log is a new one, give it a database or schema of its own, or remove the schema of those contents (DROP SCHEMA)",
			database.Shown(url), database.Shown(o.URL))
	}
	switch full, err := hasContents(ctx, file, found); {
	case err != nil:
		return "", err
	case full && found:
		return "", fmt.Errorf("%s has contents, and so has %s: move away the one of the two that is not the newest", file, database.Shown(url))
	case full:
		return "", fmt.Errorf("%s has the contents, and [store] says that they should be on the server of the log, with a bucket: copy all into another data folder, with a database or schema of its own (bridge copy), or take contents out of [store]", file)
	case !found && o.Named:
		return "", fmt.Errorf("%s has no contents, although the log names some: put that schema back from a backup; without one, bridge gc --adopt makes it anew of what is in the bucket, and bridge harvest --full fetches the rest", database.Shown(url))
	}
	return url, nil
}

// PlaceBeside returns where the store is, or would be, of a log at the URL of a server.
func PlaceBeside(ctx context.Context, log string) (string, error) {
	return database.Beside(ctx, log, schemaEnding)
}

// Vacant returns an error when there is a store already beside a log at the URL of a server.
func Vacant(ctx context.Context, log string) error {
	url, err := PlaceBeside(ctx, log)
	if err != nil {
		return err
	}
	found, err := kind().Find(ctx, url)
	if err == nil && found {
		err = fmt.Errorf("%s has contents already: %w", database.Shown(url), database.ErrTaken)
	}
	return err
}

// hasContents reports whether there is a store in a file that has contents. An empty file is
// none, where the store is on a server: a copy of a file that was not there has made it.
func hasContents(ctx context.Context, file string, onServer bool) (bool, error) {
	switch at, err := os.Stat(file); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil && onServer && at.Size() == 0:
		return false, nil
	}
	s, err := Open(ctx, file, Options{ReadOnly: true})
	if err != nil {
		return false, err
	}
	has, err := s.Stats(ctx)
	return has.Count > 0, errors.Join(err, s.Close())
}

// Name returns where the store is, as messages show it.
func (s *Store) Name() string {
	if database.OnServer(s.path) {
		return s.name
	}
	return filepath.Base(s.path)
}

// OnServer reports whether the store is on a PostgreSQL server.
func (s *Store) OnServer() bool { return database.OnServer(s.path) }

// Size returns how many bytes a store on a server takes there, with its indexes.
func (s *Store) Size(ctx context.Context) (n int64, err error) {
	err = s.query.QueryRowContext(ctx, "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND relnamespace = quote_ident(current_schema())::regnamespace").Scan(&n)
	return n, s.coded(err)
}
