package eventlog

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// A set keeps its number when it gets another name, and with it its events, records,
// Sources and submissions. Its former names stay with it, so that their addresses lead to
// it, and identifiers that are made of its name keep the first one.

// FormerNameError: a name was that of another set, whose addresses under it still lead to
// that set.
type FormerNameError struct {
	Name, Now string
	Since     event.Micros
}

func (e *FormerNameError) Error() string {
	return fmt.Sprintf("set %q is called %q since %v, and the addresses of %[1]q lead there: choose another name, or end that with: bridge set free %[1]s", e.Name, e.Now, e.Since)
}

// RenameSet gives a set another name. A name that was another set's is a
// *FormerNameError, unless take is set: then addresses under that name no longer lead to
// the other set. If a set has the new name now, or the set was derived from a template,
// that is an error.
func (l *Log) RenameSet(ctx context.Context, name, newName string, take bool) error {
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error {
		set, err := l.findSet(ctx, tx, name)
		if err != nil {
			return err
		}
		if set.id == 0 {
			return noSet(name)
		}
		derived := false
		if err := tx.Each(ctx, selectDerived+" WHERE name IN ($1, $2)", []any{name, newName}, func(*sql.Rows) error {
			derived = true
			return nil
		}); err != nil {
			return err
		}
		other, err := l.findSet(ctx, tx, newName)
		switch {
		case err != nil:
			return err
		case derived:
			return fmt.Errorf("sets %q and %q: one of them is derived from a template, which gives it its name", name, newName)
		case other.id != 0:
			return fmt.Errorf("there is another set %q in this data folder: choose another name, or remove that set with: bridge set rm %[1]s", newName)
		}
		if err := freeName(ctx, tx, newName, set.id, take); err != nil {
			return err
		}
		now, err := l.now()
		if err != nil {
			return err
		}
		if err := tx.Exec(ctx, "INSERT INTO former_name (name, set_id, since, sum) VALUES ($1, $2, $3, $4)", name, set.id, int64(now), sumOf(name, set.id, now)); err != nil {
			return err
		}
		if set.Title == name {
			set.Title = newName
		}
		if set.Named = cmp.Or(set.Named, name); set.Named == newName {
			set.Named = ""
		}
		set.Name = newName
		if err := tx.Exec(ctx, "UPDATE sets SET name = $2, named = $3, title = $4, sum = $5 WHERE id = $1", set.id, set.Name, set.Named, set.Title, set.sum()); err != nil {
			return err
		}
		return l.renameAddresses(ctx, tx, map[string]string{"/sip/" + name: "/sip/" + newName, "set:" + name: "set:" + newName})
	})
}

// renameAddresses changes the URLs of Sources that are made of the name of a set: of its
// SIP service, and of the set as a Source of others. A Source that has the new URL there
// was a set that was removed: it gets the URL of a set that there is not.
func (l *Log) renameAddresses(ctx context.Context, tx *database.Tx, urls map[string]string) error {
	for _, url := range slices.Sorted(maps.Keys(urls)) {
		found, err := database.All(ctx, tx.Each, selectConfigs+" WHERE url = $1", []any{url}, func(h *sourceConfig, rows *sql.Rows) error { return h.scan(rows) })
		if err != nil {
			return err
		}
		for _, was := range found {
			stored, err := l.sourceConfigs(ctx, tx, was.set)
			if err != nil {
				return err
			}
			h := was
			h.url = urls[url]
			if removed, ok := stored[h.url]; ok {
				left := removed
				left.url = fmt.Sprintf("%.50s-removed-%d", h.url, left.id) // no longer than a name may be
				if err := l.saveSource(ctx, tx, &left, removed); err != nil {
					return err
				}
			}
			if err := l.saveSource(ctx, tx, &h, was); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeName makes a former name free for a set; 0 is a new one. A former name of the set
// itself always is.
func freeName(ctx context.Context, tx *database.Tx, name string, set int64, take bool) error {
	var has formerRow
	if err := tx.Each(ctx, selectFormerNames+" WHERE f.name = $1", []any{name}, has.scan); err != nil || has.set == 0 {
		return err
	}
	if has.set != set && !take {
		return &FormerNameError{has.Name, has.Now, has.Since}
	}
	return tx.Exec(ctx, "DELETE FROM former_name WHERE name = $1", name)
}

// FreeName frees a former name: its addresses no longer lead to the set that had it.
func (l *Log) FreeName(ctx context.Context, name string) error {
	all, err := l.FormerNames(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(f FormerName) bool { return f.Name == name }) {
		return fmt.Errorf("%q is no former name of a set: see bridge set ls", name)
	}
	return l.write(ctx, func(ctx context.Context, tx *database.Tx) error { return freeName(ctx, tx, name, 0, true) })
}

// identifierNames are what the identifiers of sets have for the names of their sets. It is read
// when the first set of a transaction is made: there may be thousands.
type identifierNames map[string]bool

// give returns what identifiers of a new set have for its name: "" for the name itself, or the
// name with a number if the identifiers of a renamed set have the name.
func (n *identifierNames) give(ctx context.Context, tx *database.Tx, name string) (string, error) {
	if *n == nil {
		*n = identifierNames{}
		if err := tx.Each(ctx, "SELECT CASE named WHEN '' THEN name ELSE named END FROM sets", nil, func(rows *sql.Rows) error {
			var taken string
			err := rows.Scan(&taken)
			(*n)[taken] = true
			return err
		}); err != nil {
			return "", err
		}
	}
	named := name
	for i := 2; (*n)[named]; i++ {
		named = name + "-" + strconv.Itoa(i)
	}
	(*n)[named] = true
	if named == name {
		return "", nil
	}
	return named, nil
}

// FormerName is a name that a set had before.
type FormerName struct {
	Name, Now string
	Since     event.Micros // when the set got another one
}

// formerRow is a row of table former_name, with the name of the set.
type formerRow struct {
	FormerName
	set int64
}

const selectFormerNames = "SELECT f.name, f.set_id, f.since, f.sum, coalesce(s.name, '') FROM former_name f LEFT JOIN sets s ON s.id = f.set_id"

func (f *formerRow) scan(rows *sql.Rows) error {
	var sum int64
	err := rows.Scan(&f.Name, &f.set, &f.Since, &sum, &f.Now)
	if err == nil && (sum != sumOf(f.Name, f.set, f.Since) || f.Now == "") {
		err = fmt.Errorf("former name %q: %w: run bridge verify", f.Name, ErrDamaged)
	}
	return err
}

// FormerNames returns the names that sets had before, in their order.
func (l *Log) FormerNames(ctx context.Context) ([]FormerName, error) {
	return database.All(ctx, l.Each, selectFormerNames+" ORDER BY f.name", nil, func(name *FormerName, rows *sql.Rows) error {
		var f formerRow
		err := f.scan(rows)
		*name = f.FormerName
		return err
	})
}
