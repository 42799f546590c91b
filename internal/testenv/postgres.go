//go:build unix

package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresServer is a PostgreSQL server on loopback, with one superuser who needs no
// password. Its methods but NewSchema and URL are for one goroutine at a time.
type PostgresServer struct {
	service // its folder is "" for a server that is not ours
	url     string
	port    string
	bin     string // the folder of its programs
	user    *syscall.Credential

	// A connection makes the server start a process. The shared server keeps one for
	// NewSchema.
	mu   sync.Mutex
	kept *pgconn.PgConn // nil: each statement has a connection of its own
}

// Postgres starts a server of the test's own, which stops and whose data goes when the test
// ends. That takes a second or two, so a test that does not stop the server or change its
// settings better uses SharedPostgres. Without PostgreSQL the test is skipped, as by Need.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	p, err := startPostgres(needPostgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("postgres said:\n%s", p.said())
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// shared is the server of this process.
var shared struct {
	sync.Mutex
	server *PostgresServer
	err    error
}

// DefaultPostgres is Postgres of a server as it is set up by default, to measure it.
func DefaultPostgres(t testing.TB) *PostgresServer {
	p := Postgres(t)
	for _, setting := range []string{"shared_buffers = '128MB'", "max_wal_size = '1GB'", "autovacuum = on"} {
		if err := p.execute("ALTER SYSTEM SET " + setting); err != nil {
			t.Fatal(err)
		}
	}
	p.Stop(t, FastShutdown)
	p.Start(t)
	if err := p.execute(`DO $$ BEGIN
ASSERT current_setting('shared_buffers') || ' ' || current_setting('max_wal_size') || ' ' || current_setting('autovacuum') = '128MB 1GB on';
END $$`); err != nil {
		t.Fatal(err)
	}
	return p
}

// SharedPostgres returns the server that all tests of this process share: the one that
// BRIDGE_POSTGRES names with a URL, else one that the first call starts. Each test needs a
// schema of its own: NewSchema. WithPostgres stops the server in TestMain, before a search
// for goroutines that are left; at the latest it stops, and its data goes, when the process
// ends, however it ends. The first call must not be in a synctest bubble. Without
// PostgreSQL the test is skipped, as by Need.
func SharedPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	if running := os.Getenv("BRIDGE_POSTGRES"); running != "" {
		return &PostgresServer{url: running, service: service{lasting: true}}
	}
	bin := needPostgres(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		if shared.server, shared.err = startPostgres(bin); shared.err == nil {
			shared.server.lasting = true
			shared.server.kept, shared.err = shared.server.connect(context.Background())
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

func stopSharedPostgres() error {
	shared.Lock()
	defer shared.Unlock()
	p := shared.server
	shared.server = nil
	if p == nil {
		return nil
	}
	return p.Close()
}

// WithPostgres makes m, a *testing.M or what wraps one, stop the shared server when it has
// run:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithPostgres(m)) }
func WithPostgres(m interface{ Run() int }) interface{ Run() int } {
	return withServer{m, stopSharedPostgres}
}

// needPostgres returns the folder of PostgreSQL's programs.
func needPostgres(t testing.TB) (bin string) {
	t.Helper()
	bin = findPostgres()
	if bin == "" {
		Missing(t, "postgres", "postgresql")
	}
	return bin
}

// postgresFolders is where Debian has the programs of each version; they are not in PATH.
var postgresFolders = "/usr/lib/postgresql/*/bin"

// findPostgres returns the folder with the programs of the PostgreSQL that PATH names, else
// of the newest version in postgresFolders; or "".
func findPostgres() (bin string) {
	complete := func(dir string) bool {
		for _, program := range [...]string{"initdb", "postgres"} {
			if _, err := exec.LookPath(filepath.Join(dir, program)); err != nil {
				return false
			}
		}
		return true
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && complete(filepath.Dir(path)) {
			return filepath.Dir(path)
		}
	}
	folders, _ := filepath.Glob(postgresFolders) // the pattern is well formed
	newest := 0.0
	for _, dir := range folders {
		version, err := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
		if err == nil && version > newest && complete(dir) {
			bin, newest = dir, version
		}
	}
	return bin
}

// startPostgres makes a cluster and starts its server.
func startPostgres(bin string) (_ *PostgresServer, err error) {
	p := &PostgresServer{bin: bin, service: service{name: "postgres"}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.user, err = unprivileged(); err != nil {
		return nil, err
	}
	if err := p.settle(temporary(p.user)); err != nil {
		return nil, err
	}
	_, p.port, _ = strings.Cut(p.address, ":")
	p.url = "postgres://bridge@" + p.address + "/postgres"
	if p.user != nil {
		if err := os.Chown(p.folder, int(p.user.Uid), int(p.user.Gid)); err != nil {
			return nil, err
		}
	}
	if err := p.initialize(); err != nil {
		return nil, err
	}
	return p, p.start()
}

// initialize makes a cluster. Where BRIDGE_CLUSTERS names a folder the first is kept there,
// for others to be copies of it: a copy takes a twentieth of the time.
func (p *PostgresServer) initialize() error {
	folder := os.Getenv("BRIDGE_CLUSTERS")
	if folder == "" {
		return p.initdb()
	}
	lock, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	kept := filepath.Join(folder, url.PathEscape(p.bin))
	if _, err := os.Stat(kept); err == nil {
		return copyFolder(kept, p.data())
	}
	if err := p.initdb(); err != nil {
		return err
	}
	part := kept + ".part"
	if err := errors.Join(os.RemoveAll(part), copyFolder(p.data(), part)); err != nil {
		return err
	}
	return os.Rename(part, kept)
}

// copyFolder copies a folder with the owners and the rights of its files.
func copyFolder(from, to string) error {
	if out, err := exec.Command("cp", "-Rp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	return nil
}

func (p *PostgresServer) initdb() error {
	initdb := p.command("initdb", "--pgdata="+p.data(), "--encoding=UTF8", "--locale=C", "--auth=trust", "--username=bridge", "--no-sync")
	runtime.LockOSThread() // the system may end a child with the thread that has started it
	out, err := initdb.CombinedOutput()
	runtime.UnlockOSThread()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	// In the file, where ALTER SYSTEM overrides them, and not on the command line. fsync stays
	// on: bridge refuses a server without it.
	settings, err := os.OpenFile(filepath.Join(p.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = settings.WriteString("\nmax_connections = 200\nshared_buffers = 16MB\nmax_wal_size = 256MB\nautovacuum = off\n")
		err = errors.Join(err, settings.Close())
	}
	return err
}

// unprivileged returns the user that runs the server when the caller is root, whom
// PostgreSQL refuses; nil is the caller.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var missing error
	for _, name := range [...]string{"nobody", "postgres"} {
		u, err := user.Lookup(name)
		if err != nil {
			missing = err
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("root needs another user to run postgres: %w", missing)
}

// temporary returns the folder for temporary files, or /tmp if another user cannot reach it.
func temporary(other *syscall.Credential) string {
	dir, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil || other == nil {
		return os.TempDir()
	}
	for at := dir; ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err != nil || info.Mode()&1 == 0 {
			return "/tmp"
		}
		if at == filepath.Dir(at) {
			return dir
		}
	}
}

// command returns a command for a program of PostgreSQL, with nothing of the environment
// that changes what it does.
func (p *PostgresServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.folder
	// LD_BIND_NOW resolves symbols once and not in the process of each connection.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "LD_BIND_NOW=1"}
	// A SIGKILL would leave the server's shared memory.
	cmd.SysProcAttr = childAttributes(p.user, syscall.SIGQUIT)
	return cmd
}

func (p *PostgresServer) data() string { return filepath.Join(p.folder, "data") }

// URL returns the URL of the database postgres.
func (p *PostgresServer) URL() string { return p.url }

// NewSchema makes an empty schema with a name of its own, and returns the URL of the
// database with this schema as search_path. In a server that BRIDGE_POSTGRES names the
// schema goes when the test ends, with that of the contents of a log in it.
func (p *PostgresServer) NewSchema(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(p.url)
	if err != nil || u.Host == "" {
		t.Fatal("BRIDGE_POSTGRES is not a URL") // which may have a password
	}
	name := "test_" + strings.ToLower(rand.Text())
	if err := p.execute("CREATE SCHEMA " + name); err != nil {
		t.Fatal(err)
	}
	if p.folder == "" {
		t.Cleanup(func() {
			if err := p.execute("SET lock_timeout = '10s'; DROP SCHEMA " + name + " CASCADE; DROP SCHEMA IF EXISTS " + name + "_contents CASCADE"); err != nil {
				t.Errorf("the schema %s stays: %v", name, err)
			}
		})
	}
	// Not by url.Values, which write a space as a plus; PostgreSQL's clients read that as one.
	parts := slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(part string) bool {
		return part == "" || strings.HasPrefix(part, "search_path=")
	})
	if p.folder != "" {
		// Ours has no TLS. To ask for it first takes a process of the server for each connection.
		parts = append(parts, "sslmode=disable")
	}
	u.RawQuery = strings.Join(append(parts, "search_path="+name), "&")
	return u.String()
}

// CopySchema copies all tables of a schema into an empty one; both are given by their URLs.
func (p *PostgresServer) CopySchema(t testing.TB, from, to string) {
	t.Helper()
	if err := p.execute(fmt.Sprintf(`DO $$ DECLARE name text; BEGIN
FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '%[1]s' LOOP
EXECUTE format('CREATE TABLE %[2]s.%%I (LIKE %[1]s.%%I INCLUDING ALL)', name, name);
EXECUTE format('INSERT INTO %[2]s.%%I SELECT * FROM %[1]s.%%I', name, name);
END LOOP; END $$`, schemaOf(from), schemaOf(to))); err != nil {
		t.Fatal(err)
	}
}

func schemaOf(url string) string {
	return url[strings.LastIndex(url, "search_path=")+len("search_path="):]
}

// EndWriter ends the session that holds a lock of a schema, which is given by its URL.
func (p *PostgresServer) EndWriter(t testing.TB, url string) {
	t.Helper()
	if err := p.execute(fmt.Sprintf(`SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND objid = '%s'::regnamespace`, schemaOf(url))); err != nil {
		t.Fatal(err)
	}
}

func (p *PostgresServer) execute(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), servicePatience)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept != nil && !p.kept.IsClosed() {
		_, err := p.kept.Exec(ctx, sql).ReadAll()
		return err
	}
	c, err := p.connect(ctx)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql).ReadAll()
	return errors.Join(err, c.Close(ctx))
}

func (p *PostgresServer) connect(ctx context.Context) (*pgconn.PgConn, error) {
	c, err := pgconn.ParseConfig(p.url)
	if err != nil {
		return nil, err
	}
	if p.folder != "" {
		c.TLSConfig, c.Fallbacks = nil, nil
	}
	return pgconn.ConnectConfig(ctx, c)
}

// Shutdown is a way to stop a PostgresServer.
type Shutdown uint8

// The ways to stop.
const (
	// FastShutdown rolls back what is open, ends the connections and writes everything to the
	// data files.
	FastShutdown Shutdown = iota
	// ImmediateShutdown is like a crash: the next start recovers from the write-ahead log.
	ImmediateShutdown
)

// signal returns the signal for it.
func (s Shutdown) signal() syscall.Signal {
	if s == ImmediateShutdown {
		return syscall.SIGQUIT
	}
	return syscall.SIGINT
}

// Stop stops the server and waits until it has ended. A shared server is not stopped.
func (p *PostgresServer) Stop(t testing.TB, how Shutdown) {
	t.Helper()
	if p.lasting {
		t.Fatal("a shared server is stopped: take one of the test's own")
	}
	if err := p.stop(how.signal()); err != nil {
		t.Fatal(err)
	}
}

// Start starts a stopped server again, at the same address and with the same data, and
// waits until it takes connections.
func (p *PostgresServer) Start(t testing.TB) {
	t.Helper()
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
}

// Close stops the server and removes its data. It does nothing to a server that
// BRIDGE_POSTGRES names.
func (p *PostgresServer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept != nil {
		_ = p.kept.Conn().Close() // the server does not go on
		p.kept = nil
	}
	return p.close(ImmediateShutdown.signal())
}

func (p *PostgresServer) start() error {
	args := []string{"-D", p.data()}
	for _, setting := range [...]string{"listen_addresses=127.0.0.1", "port=" + p.port, "unix_socket_directories="} {
		args = append(args, "-c", setting)
	}
	return p.run(p.command("postgres", args...), func(ctx context.Context) error {
		if !p.up() {
			return errors.New("it does not take connections yet")
		}
		c, err := p.connect(ctx)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	}, ImmediateShutdown.signal())
}

// up reports whether the server says in its lock file that it takes connections. A connection
// would tell too, but each one that is refused costs the server a process.
func (p *PostgresServer) up() bool {
	text, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > 7 && lines[0] == strconv.Itoa(p.cmd.Process.Pid) && strings.TrimSpace(lines[7]) == "ready"
}
