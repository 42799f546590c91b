//go:build unix

package database

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// A database on a PostgreSQL server has a URL for its path. One schema of one database on
// the server holds one database of ours: the first of the search_path.
//
// What is different there: the server keeps the log of its transactions itself, so there
// is nothing to checkpoint; the writer is known by an advisory lock of its connection; and
// a connection that breaks during a COMMIT leaves open whether it has happened, until the
// server is asked.

const (
	// postgresMin is the oldest version that is supported: pg_current_xact_id came with it.
	postgresMin = 130000
	// lockWait is how long to wait for the lock of a writer that is gone: the server may
	// not have noticed that yet.
	lockWait = 10 * time.Second
	// outcomeWait is how long to ask a server for the outcome of a COMMIT.
	outcomeWait = time.Minute
	// lockKey is the first half of the lock's key, the schema's number is the other.
	lockKey = 0x62726467
)

// ErrInUse: another process writes the database. Only a server can tell it: files are
// locked by their folder.
var ErrInUse = errors.New("another process writes the database")

// ErrMoved: the database on a server was copied to another place, where it goes on.
var ErrMoved = errors.New("was copied, and goes on, in")

// OnServer reports whether a path is the URL of a database on a PostgreSQL server.
func OnServer(path string) bool {
	return strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://")
}

// Shown returns a path as messages show it: without a password.
func Shown(path string) string {
	if !OnServer(path) {
		return path
	}
	u, err := url.Parse(path)
	if err != nil {
		return "the PostgreSQL server"
	}
	q := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if q.Has(name) {
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}

// openPostgres returns connections to a server, with its parameters for each session.
func (k *Kind) openPostgres(path string, params map[string]string) (*sql.DB, error) {
	c, err := pgx.ParseConfig(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no URL of a PostgreSQL server, as in postgres://bridge@db.example.org/bridge: %w", Shown(path), err)
	}
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	c.DialFunc = dialer().DialContext
	if c.RuntimeParams["application_name"] == "" {
		host, _ := os.Hostname()
		c.RuntimeParams["application_name"] = fmt.Sprintf("bridge %s %d", host, os.Getpid())
	}
	// To compile a statement takes longer than ours run: the events of all sets were read
	// eighty times as slowly.
	c.RuntimeParams["jit"] = "off"
	maps.Copy(c.RuntimeParams, params)
	if _, reads := params[readOnly]; reads {
		// Later than the parameters of the start, with which no server would be the one that
		// target_session_attrs=read-write asks for.
		delete(c.RuntimeParams, readOnly)
		c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			return conn.Exec(ctx, "SET "+readOnly+" = on").Close()
		}
	}
	if c.ValidateConnect == nil && slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port }) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // the others may lack what was committed last
	}
	return sql.OpenDB(postgresConnector{stdlib.GetConnector(*c), strings.NewReplacer(append([]string{"INSERT OR FAIL INTO", "INSERT INTO"}, k.Rewrite...)...)}), nil
}

// lookOnServer is Look for a URL.
func (k *Kind) lookOnServer(ctx context.Context, path string) (*Found, error) {
	f := &Found{kind: k, path: path}
	var err error
	if f.db, err = k.openPostgres(path, sessionOfReaders); err != nil {
		return nil, err
	}
	f.db.SetMaxOpenConns(1)
	if err := f.again(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// again looks whether the database is there by now.
func (f *Found) again(ctx context.Context) (err error) {
	if f.Exists, err = f.kind.lookFor(ctx, f.db); err == nil && f.Exists {
		var is format
		is, err = f.kind.formatOnServer(ctx, f.db)
		f.Identity = is.identity
	}
	if err != nil {
		return fmt.Errorf("opening %s: %w", Shown(f.path), Explain(f.path, err))
	}
	return nil
}

func (k *Kind) lookFor(ctx context.Context, db *sql.DB) (found bool, err error) {
	if err := checkServer(ctx, db); err != nil {
		return false, err
	}
	var schema sql.NullString
	if err := db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return false, err
	}
	if !schema.Valid {
		return false, k.noSchema(ctx, db)
	}
	if err := db.QueryRowContext(ctx, "SELECT to_regclass(quote_ident($1) || '.format') IS NOT NULL", schema.String).Scan(&found); err != nil {
		return false, err
	}
	if found {
		return k.isKind(ctx, db)
	}
	var others bool
	if err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_class WHERE relkind = 'r' AND relnamespace = quote_ident($1)::regnamespace)", schema.String).Scan(&others); err != nil {
		return false, err
	}
	if others {
		return false, k.foreign()
	}
	return false, nil
}

// noSchema returns why a session has no schema, nil if Create makes it.
func (k *Kind) noSchema(ctx context.Context, db *sql.DB) error {
	if !k.OwnSchema {
		return errNoSchema
	}
	schema, role, found, err := ownSchema(ctx, db)
	if err == nil && found {
		err = fmt.Errorf("the role %s may not use the schema %s, which is there: as the administrator of the server: ALTER SCHEMA %[2]s OWNER TO %[1]s", role, schema)
	}
	return err
}

var errNoSchema = errors.New("there is no schema of the search_path: make it with CREATE SCHEMA")

// ownSchema returns the schema of a search_path that has just one, and the role, both as SQL
// writes them, and whether the schema is there.
func ownSchema(ctx context.Context, db *sql.DB) (schema, role string, found bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT current_setting('search_path'), quote_ident(current_user), to_regnamespace(current_setting('search_path')) IS NOT NULL").Scan(&schema, &role, &found)
	return schema, role, found, err
}

// makeSchema makes the schema of a URL, if it is missing.
func (k *Kind) makeSchema(ctx context.Context, path string) error {
	db, err := k.openPostgres(path, nil)
	if err != nil {
		return err
	}
	schema, role, found, err := ownSchema(ctx, db)
	if err == nil && !found {
		_, err = db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+schema)
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42501" {
		err = fmt.Errorf("the role %s may not make the schema %s: as the administrator of the server: CREATE SCHEMA %[2]s AUTHORIZATION %[1]s (%[3]w)", role, schema, err)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("making the schema of %s: %w", Shown(path), Explain(path, err))
	}
	return nil
}

// Beside returns the URL of another schema beside that of a URL, with an ending added to its
// name. Nothing need be there.
func Beside(ctx context.Context, path, ending string) (string, error) {
	db, err := new(Kind).openPostgres(path, nil)
	if err != nil {
		return "", err
	}
	var schema sql.NullString
	err = db.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema)
	if err == nil && !schema.Valid {
		err = errNoSchema
	}
	name := schema.String + ending
	if len(name) > 63 {
		err = fmt.Errorf("the name of the schema %s is too long, since another one has the name %s: ALTER SCHEMA renames it", schema.String, name)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return "", fmt.Errorf("opening %s: %w", Shown(path), Explain(path, err))
	}
	u, err := url.Parse(path)
	if err != nil {
		return "", err // the driver has read it
	}
	q := u.Query()
	q.Set("search_path", pgx.Identifier{name}.Sanitize())
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // as all clients read it
	return u.String(), nil
}

func (k *Kind) foreign() error {
	return fmt.Errorf("the schema has tables, but no %s: it belongs to something else: give a database of its own, or another schema with ?search_path=", k.Name)
}

// isKind reports whether the schema, which has a table format, holds a database of the
// kind. If it does not, it has to be an error: a new database must not take its place.
func (k *Kind) isKind(ctx context.Context, db *sql.DB) (bool, error) {
	_, err := k.formatOnServer(ctx, db)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42703" { // no such column
		return false, k.foreign()
	}
	return err == nil, err
}

// checkServer returns why a server must not keep a database.
func checkServer(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) error {
	var version int64
	var encoding, fsync, pages string
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::bigint, current_setting('server_encoding'), current_setting('fsync'), current_setting('full_page_writes')").
		Scan(&version, &encoding, &fsync, &pages); err != nil {
		return err
	}
	switch {
	case version < postgresMin:
		return fmt.Errorf("the server is PostgreSQL %d: bridge needs %d or later", version/10000, postgresMin/10000)
	case encoding != "UTF8":
		return fmt.Errorf("the database has the encoding %s: make one with ENCODING 'UTF8'", encoding)
	case fsync != "on" || pages != "on":
		return errors.New("the server has fsync or full_page_writes off, and would lose what is committed when its machine stops: set both on in postgresql.conf")
	}
	return nil
}

// createOnServer is Create for a URL. All of it is one transaction, of the only connection that
// writes: nobody else creates it meanwhile.
func (k *Kind) createOnServer(ctx context.Context, path, identity string, before func(identity string) error) error {
	s, err := k.serverTarget(ctx, path, CopyOptions{Identity: identity})
	if err != nil {
		return err
	}
	return Explain(path, errors.Join(s.finish(ctx, before), s.close()))
}

// references matches what no file checks, since foreign_keys is off, and a server would.
var references = regexp.MustCompile(` REFERENCES \w+ \(id\)`)

// postgresSteps translates the migrations that bring a database of a version up to date; 0 is
// none yet. Such a new one gets an identity; "" is one of its own. The collation "C" compares
// bytes, as SQLite does.
func (k *Kind) postgresSteps(version int, identity string) (text string, err error) {
	types := strings.NewReplacer("INTEGER", "BIGINT", "TEXT", `TEXT COLLATE "C"`, "BLOB", "BYTEA", ") STRICT, WITHOUT ROWID;", ");", ") STRICT;", ");")
	for n := version + 1; n <= k.Version(); n++ {
		step, err := fs.ReadFile(k.Migrations, fmt.Sprintf("%d.sql", n))
		if err != nil {
			return "", err
		}
		text += types.Replace(references.ReplaceAllString(string(step), "")) + "\n" + k.Postgres[n] + "\n"
	}
	if version == 0 {
		is := "gen_random_uuid()::text"
		if identity != "" {
			is = "'" + strings.ReplaceAll(identity, "'", "''") + "'"
		}
		return text + fmt.Sprintf("CREATE TABLE format (kind BIGINT NOT NULL, version BIGINT NOT NULL, identity TEXT NOT NULL, last TEXT NOT NULL DEFAULT '');\nINSERT INTO format (kind, version, identity) VALUES (%d, %d, %s);\n", k.ID, k.Version(), is), nil
	}
	return text + fmt.Sprintf("UPDATE format SET version = %d;\n", k.Version()), nil
}

// serverEngine is PostgreSQL.
type serverEngine struct {
	kind    *Kind
	url     string
	movedTo string // see WriterOptions
	session string // the last that had the lock: its sessionName; "" before the first
	opened  bool   // a connection was opened before
	last    string // the mark of the last transaction, as far as it is known
	trying  string // that of a COMMIT whose outcome is not known, "" when there is none
}

// sessionOfWriter has the parameters of a session that writes.
var sessionOfWriter = map[string]string{
	"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0",
	// The lock of a machine that has vanished ends after two minutes, not after hours.
	"tcp_keepalives_idle": "60", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "6", "tcp_user_timeout": "120000",
}

// sessionName distinguishes a session of a server from all others, also from those before
// a restart.
const sessionName = "pid || ' ' || extract(epoch FROM backend_start)"

// open also takes the lock.
func (e *serverEngine) open(ctx context.Context) (*sql.DB, *sql.Conn, error) {
	return e.connect(ctx, e.prepareWriting)
}

// connect opens a connection and prepares it.
func (e *serverEngine) connect(ctx context.Context, prepare func(ctx context.Context, conn *sql.Conn) error) (*sql.DB, *sql.Conn, error) {
	db, err := e.kind.openPostgres(e.url, sessionOfWriter)
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err == nil {
		if err = prepare(ctx, conn); err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening %s: %w", Shown(e.url), Explain(e.url, err)), db.Close())
	}
	return db, conn, nil
}

// lockServer opens a connection that is the only one that writes, where there may be no
// database yet.
func (k *Kind) lockServer(ctx context.Context, path string) (*sql.DB, *sql.Conn, error) {
	e := &serverEngine{kind: k, url: path}
	return e.connect(ctx, e.becomeWriter)
}

// Settle waits until nobody writes the database at a URL, and no COMMIT is under way of one
// who is gone. It is an ErrInUse when that takes long.
func (k *Kind) Settle(ctx context.Context, path string) error {
	db, conn, err := k.lockServer(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(conn.Close(), db.Close())
}

// begin: a dry run whose transaction is gone has no connection either.
func (e *serverEngine) begin(ctx context.Context, conn *sql.Conn, dryRun bool) error {
	if dryRun {
		return nil
	}
	_, err := conn.ExecContext(ctx, "BEGIN")
	return err
}

func (e *serverEngine) changes(_ context.Context, conn *sql.Conn) (n int64, err error) {
	err = conn.Raw(func(c any) error {
		n = c.(*postgresConn).changed //nolint:forcetypeassert // as openPostgres opens it
		return nil
	})
	return n, err
}

// checkpoint: the server does that by itself.
func (e *serverEngine) checkpoint(context.Context, *sql.Conn) error { return nil }

// becomeWriter makes a connection the only one that writes.
func (e *serverEngine) becomeWriter(ctx context.Context, conn *sql.Conn) error {
	if err := checkServer(ctx, conn); err != nil {
		return err
	}
	if err := takesWrites(ctx, conn); err != nil {
		return err
	}
	if err := unlimited(ctx, conn); err != nil {
		return err
	}
	if err := e.takeLock(ctx, conn); err != nil {
		return err
	}
	// An acknowledgement is worth what the COMMIT before it is.
	_, err := conn.ExecContext(ctx, "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')")
	return err
}

// takesWrites returns an error for a server that is only read. A standby gives the lock too, which
// says nothing about the server that is written, and may lack what that one has.
func takesWrites(ctx context.Context, conn *sql.Conn) error {
	var only string
	err := conn.QueryRowContext(ctx, "SELECT current_setting('transaction_read_only')").Scan(&only)
	if err == nil && only == "on" {
		err = fmt.Errorf("%w: the server can only be read, as a standby, or default_transaction_read_only is on: give the address of the one that is written", ErrCannotOpen)
	}
	return err
}

// unlimited lets transactions take as long as they take, and a session wait as long, also on
// PostgreSQL 17 and 14 and later: an older one would not know the parameters.
func unlimited(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT set_config(name, '0', false) FROM (VALUES ('transaction_timeout'), ('idle_session_timeout')) AS s (name) WHERE current_setting(name, true) IS NOT NULL")
	return err
}

func (e *serverEngine) prepareWriting(ctx context.Context, conn *sql.Conn) error {
	if err := e.becomeWriter(ctx, conn); err != nil {
		return err
	}
	f, err := e.kind.formatOnServer(ctx, conn)
	if err != nil {
		return err
	}
	version, last := f.version, f.last
	if f.moved != "" && f.moved != e.movedTo {
		return movedTo(e.url, f.moved)
	}
	if e.opened && last != e.last && (e.trying == "" || last != e.trying) {
		return fmt.Errorf("%w, or has while this one had no connection; or the server has lost what was committed last, as a standby may that was behind: the next start begins a new epoch if events are lost", ErrInUse)
	}
	e.opened, e.last, e.trying = true, last, ""
	if err := e.kind.newer(version); err != nil || version == e.kind.Version() {
		return err
	}
	text, err := e.kind.postgresSteps(version, "")
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN;\n"+text+"COMMIT;"); err != nil {
		return fmt.Errorf("bringing it to version %d: %w", e.kind.Version(), err) // closing undoes it
	}
	return nil
}

// format is what a server keeps of a database as a whole.
type format struct {
	version int
	last    string // the mark of the last transaction
	// identity distinguishes the database from all others: a UUID that it was given when it was
	// created. One that belongs to another has that of the other.
	identity string
	moved    string // where the database was copied, to go on there
}

// formatOnServer returns the format of a database of the kind. The column moved is there only
// where Writer.MarkMoved has needed it.
func (k *Kind) formatOnServer(ctx context.Context, db Querier) (f format, err error) {
	var id int64
	err = db.QueryRowContext(ctx, "SELECT kind, version, last, identity, coalesce(to_jsonb(format) ->> 'moved', '') FROM format").Scan(&id, &f.version, &f.last, &f.identity, &f.moved)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = fmt.Errorf("%w: the table format is empty: restore it from a backup", ErrDamaged)
	case err == nil && id != int64(k.ID):
		err = fmt.Errorf("the schema holds a database, but no %s (kind %#x)", k.Name, id)
	}
	return f, err
}

// MarkMoved notes on the server that a database goes on somewhere else: nobody opens it for writing
// any more, but with WriterOptions.MovedTo. In a file, which has one data folder, that is for the
// folder to say. The connection that has the lock writes it. So it is an ErrInUse when another process
// has written since the Writer was opened, and none can before it is there.
func (w *Writer) MarkMoved(ctx context.Context, to string) error {
	if !OnServer(w.path) {
		return nil
	}
	return w.Use(ctx, func(ctx context.Context, tx *Tx) error {
		if err := tx.Exec(ctx, "ALTER TABLE format ADD COLUMN IF NOT EXISTS moved TEXT"); err != nil {
			return err
		}
		return tx.Exec(ctx, "UPDATE format SET moved = $1", to)
	})
}

// Refuse returns an ErrMoved when a database on a server was marked as moved, and an error when a newer
// version has changed its format since it was opened. q is a connection to it.
func (k *Kind) Refuse(ctx context.Context, q Querier, path string) error {
	f, err := k.formatOnServer(ctx, q)
	if err == nil && f.moved != "" {
		err = movedTo(path, f.moved)
	}
	if err == nil {
		err = k.newer(f.version)
	}
	return err
}

func movedTo(path, to string) error {
	return fmt.Errorf("%s %w %s: use that one. If it was never used, and never will be, remove it, and then, on the server of the old one: UPDATE format SET moved = NULL", Shown(path), ErrMoved, to)
}

// takeLock makes the connection the only one that writes. The lock ends with it. A session
// of ours whose connection has broken, which the server need not have noticed, is ended.
func (e *serverEngine) takeLock(ctx context.Context, conn *sql.Conn) error {
	if e.session != "" {
		if err := conn.QueryRowContext(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "+sessionName+" = $1", e.session).Scan(new(int64)); err != nil {
			return err
		}
	}
	until := time.Now().Add(cmp.Or(e.kind.lockWait, lockWait))
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		var mine bool
		if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1::int, (SELECT oid::bigint::bit(32)::int FROM pg_namespace WHERE nspname = current_schema()))", lockKey).Scan(&mine); err != nil {
			return err
		}
		if mine {
			// Not of the view pg_stat_activity, whose plan alone takes as long as all else here.
			return conn.QueryRowContext(ctx, "SELECT "+sessionName+" FROM pg_stat_get_activity(pg_backend_pid())").Scan(&e.session)
		}
		if time.Now().After(until) {
			break
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
	holder, _, _ := WriterOf(ctx, conn) // a better message is all that it is for
	return fmt.Errorf("%w: %s has locked it: stop that one first, or give another database or schema", ErrInUse, cmp.Or(holder, "it"))
}

// WriterOf returns how the session calls itself that may write the database of a connection
// to a server, "" when none may, and what distinguishes the server's process from others.
func WriterOf(ctx context.Context, q Querier) (holder, server string, err error) {
	err = q.QueryRowContext(ctx, `SELECT pg_postmaster_start_time()::text || ' ' || coalesce(inet_server_addr()::text, ''), coalesce((
SELECT coalesce(nullif(a.application_name, ''), 'another process') || coalesce(' at ' || host(a.client_addr), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = $1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND l.objid = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) LIMIT 1), '')`, lockKey).Scan(&server, &holder)
	return holder, server, err
}

// pause waits, or returns the error of a context that ends meanwhile.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const readOnly = "default_transaction_read_only"

// sessionOfReaders has the parameters of a session that reads.
var sessionOfReaders = map[string]string{readOnly: "on"}

// serverReaders makes the connection that has looked the first of those that read.
func (f *Found) serverReaders(ctx context.Context, connections int) (*Readers, error) {
	f.db.SetMaxOpenConns(connections)
	f.db.SetMaxIdleConns(connections)
	is, err := f.kind.formatOnServer(ctx, f.db)
	if err == nil {
		err = errors.Join(f.kind.newer(is.version), f.kind.older(is.version))
	}
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", Shown(f.path), Explain(f.path, err))
	}
	r := &Readers{DB: f.db, path: f.path}
	f.db = nil
	return r, nil
}

// commit leaves a mark in the transaction. If the connection breaks during the COMMIT, the
// mark tells on another connection whether it has happened. The number of the transaction
// could not: after a crash the server gives it to another one.
func (e *serverEngine) commit(ctx context.Context, w *Writer, _ int64) error {
	// Not crypto/rand: the mark has to differ, and nobody gains by guessing it.
	before, mark := e.last, fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	marked, err := w.conn.ExecContext(ctx, "UPDATE format SET last = $1 WHERE pg_current_xact_id_if_assigned() IS NOT NULL", mark)
	if err != nil {
		return err
	}
	n, err := marked.RowsAffected()
	if err != nil {
		return err
	}
	e.trying = mark
	_, err = w.conn.ExecContext(ctx, "COMMIT")
	if err == nil && n > 0 {
		e.last = mark
	}
	if err == nil || n == 0 || !e.lost(w.conn) {
		e.trying = ""
		return err
	}
	err = Explain(e.url, err)
	wait := cmp.Or(e.kind.outcomeWait, outcomeWait)
	for until := time.Now().Add(wait); ; {
		// The new connection has the lock: so the old one has ended, and with it the
		// transaction.
		asked := errors.Join(w.disconnect(), w.open(ctx))
		switch {
		case asked == nil && e.last == mark:
			return nil
		case asked == nil && e.last == before:
			return err
		case errors.Is(asked, ErrDamaged), errors.Is(asked, ErrInUse), time.Now().After(until):
			return fmt.Errorf("%w: the connection was lost during a COMMIT, and the server has not said whether it has happened: %v", errors.Join(ErrDisk, inUse(asked)), errors.Join(err, asked)) //nolint:errorlint // ErrCannotOpen would say that nothing has happened
		}
		if err := pause(ctx, min(200*time.Millisecond, wait/10)); err != nil {
			return err
		}
	}
}

// inUse returns ErrInUse if an error is one.
func inUse(err error) error {
	if errors.Is(err, ErrInUse) {
		return ErrInUse
	}
	return nil
}

func (e *serverEngine) lost(conn *sql.Conn) (closed bool) {
	if conn == nil {
		return true
	}
	err := conn.Raw(func(c any) error {
		closed = c.(*postgresConn).inner.Conn().IsClosed() //nolint:forcetypeassert // as openPostgres opens it
		return nil
	})
	return closed || err != nil
}

// alive does nothing in a dry run: what it has written is gone with its connection.
func (e *serverEngine) alive(ctx context.Context, w *Writer) error {
	if w.conn == nil || w.opt.DryRun || w.conn.PingContext(ctx) == nil {
		return nil
	}
	return w.disconnect()
}

// failed: work that goes on after an error would fail those who share the transaction.
func (e *serverEngine) failed(conn *sql.Conn) error {
	return conn.Raw(func(c any) error {
		if c.(*postgresConn).inner.Conn().PgConn().TxStatus() == 'E' { //nolint:forcetypeassert // as openPostgres opens it
			return errors.New("a statement had failed, and the work went on")
		}
		return nil
	})
}

// explainServer is Explain for errors of a server, and of the way to it.
func explainServer(err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if _, ok := errors.AsType[wayToServer](err); ok || errors.Is(err, driver.ErrBadConn) {
			return fmt.Errorf("%w: %w", ErrCannotOpen, err)
		}
		return err
	}
	class := server.Code[:min(len(server.Code), 2)]
	switch {
	case server.Code == "53100":
		return fmt.Errorf("%w: %w", ErrFull, err)
	case server.Code == "XX001", server.Code == "XX002":
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case class == "58":
		return fmt.Errorf("%w: %w", ErrDisk, err)
	case class == "08", class == "53", class == "57", class == "28", class == "3D", server.Code == "25006":
		// Lost or refused connections, no memory, a shutdown, a standby.
		return fmt.Errorf("%w: %w", ErrCannotOpen, err)
	}
	return err
}

// postgresConnector opens connections of postgresConn.
type postgresConnector struct {
	driver.Connector
	rewrite *strings.Replacer
}

func (c postgresConnector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, wayToServer{err}
	}
	return &postgresConn{inner: opened.(*stdlib.Conn), rewrite: c.rewrite, texts: map[statement]string{}}, nil
}

// wayToServer is an error that no server has made: it could not be reached, or the
// connection has ended.
type wayToServer struct{ error }

// Unwrap: that the file of a socket or of a certificate is not there does not mean that what
// was asked for is not there.
func (e wayToServer) Unwrap() error {
	if errors.Is(e.error, fs.ErrNotExist) {
		return nil
	}
	return e.error
}
