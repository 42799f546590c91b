//go:build unix

package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// URLName is the name of the file in the data folder that says on which PostgreSQL server
// the log is. It has the server's URL, and in a second line which log it is there. A
// folder has it or log.db, not both.
const URLName = "log.url"

// place is what log.url says.
type place struct {
	path     string // the URL
	identity string // of the log there, "" when it is not known yet
}

// pathOf finds out where the log of a data folder is: at a URL that is not "", or where
// log.url says, or in log.db.
func pathOf(folder, url string) (string, error) {
	file := filepath.Join(folder, FileName)
	noted, err := readURL(folder)
	if err != nil {
		return "", err
	}
	path := cmp.Or(url, noted.path)
	if path == "" {
		return file, nil
	}
	if _, err := os.Stat(file); err == nil {
		return "", fmt.Errorf("%s has its log in %s, and it should be on a server (%s): take the address away; or copy the log there, into another data folder: bridge copy",
			folder, FileName, database.Shown(path))
	}
	return path, nil
}

// readURL reads log.url. The zero place is none.
func readURL(folder string) (place, error) {
	b, err := os.ReadFile(filepath.Join(folder, URLName))
	if errors.Is(err, fs.ErrNotExist) {
		return place{}, nil
	}
	if err != nil {
		return place{}, err
	}
	lines := strings.Fields(string(b))
	if len(lines) == 0 || len(lines) > 2 || !database.OnServer(lines[0]) {
		return place{}, fmt.Errorf("%s does not name a PostgreSQL server: write its URL into it, as in postgres://bridge@db.example.org/bridge, or put it back from a backup", filepath.Join(folder, URLName))
	}
	p := place{path: lines[0]}
	if len(lines) == 2 {
		p.identity = lines[1]
	}
	return p, nil
}

// writeURL writes log.url, whole or not at all.
func writeURL(folder string, p place) error {
	text := p.path + "\n"
	if p.identity != "" {
		text += p.identity + "\n"
	}
	return writeWhole(filepath.Join(folder, URLName), text)
}

// enterFolder notes in a data folder how far its log has come, and which one that is on a server. The
// head comes first: with the address alone the folder would be one that has lost it.
func enterFolder(folder string, p place, now head) error {
	h, err := openHead(folder, 0, now)
	if err != nil {
		return err
	}
	if err := h.close(); err != nil || p.identity == "" {
		return err
	}
	return writeURL(folder, p)
}

// begun reports whether a data folder was to get a new log and has seen no commit of it: maybe it
// was not made.
func begun(folder string) bool {
	h, _, err := readHead(folder)
	return err == nil && h.Commits == 0
}

// writeWhole writes a small file, whole or not at all, durably.
func writeWhole(path, text string) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // it may have a password
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return database.Explain(tmp, err)
	}
	return errors.Join(os.Rename(tmp, path), database.SyncDir(filepath.Dir(path)))
}

// OnServer reports whether the log of a data folder is on a PostgreSQL server.
func OnServer(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, URLName))
	return err == nil
}

// Server returns the URL of the log on a PostgreSQL server, and its identity there; "" for a
// log in the data folder.
func (l *Log) Server() (url, identity string) {
	if l.owned == "" {
		return "", ""
	}
	return l.path, l.owned
}

// NamesContents reports whether the log has events that name contents, so that there is a
// content store.
func (l *Log) NamesContents(ctx context.Context) (bool, error) {
	sets, err := l.Sets(ctx)
	return namesContents(sets), err
}

// NamesContents is Log.NamesContents.
func (s *Snapshot) NamesContents() bool { return namesContents(s.Sets) }

func namesContents(sets []event.Set) bool {
	return slices.ContainsFunc(sets, func(s event.Set) bool { return s.Content == event.Mirror && s.Events > 0 })
}

// recognize makes sure that a log that was found on a server is the one of this folder.
func (l *Log) recognize(found *database.Found) error {
	if !database.OnServer(l.path) {
		return nil
	}
	has := found.Identity
	l.owned = has
	noted, err := readURL(l.folder)
	switch {
	case err != nil:
		return err
	case noted.path == "":
		return fmt.Errorf("%s %w %s: give a database or schema of its own; if that folder is lost, write the address into %s to take the log over",
			database.Shown(l.path), ErrOthers, l.folder, filepath.Join(l.folder, URLName))
	case noted.identity != "" && noted.identity != has:
		return fmt.Errorf("%s has another log than the one of %s: give the address of that one; if it was replaced on purpose, remove the second line of %s",
			database.Shown(l.path), l.folder, filepath.Join(l.folder, URLName))
	}
	if now := (place{l.path, has}); noted != now && !l.opt.ReadOnly && !l.opt.DryRun {
		return writeURL(l.folder, now)
	}
	return nil
}

// Size returns how many bytes the log takes where it is kept, with its indexes.
func (l *Log) Size(ctx context.Context) (n int64, err error) {
	if !database.OnServer(l.path) {
		for _, name := range []string{l.path, l.path + "-wal"} {
			st, err := os.Stat(name)
			if err == nil {
				n += st.Size()
			} else if !errors.Is(err, fs.ErrNotExist) {
				return 0, err
			}
		}
		return n, nil
	}
	return n, l.read(ctx, func(q database.Querier) error {
		return q.QueryRowContext(ctx, "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND relnamespace = quote_ident(current_schema())::regnamespace").Scan(&n)
	})
}
