//go:build unix

package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"

	modernc "modernc.org/sqlite"
)

// keptStatements is how many statements a connection keeps prepared. Those of a package
// are fewer; those whose text depends on values may be more.
const keptStatements = 300

// openPrepared opens connections that keep their statements prepared: to parse one takes
// longer than to run most of them.
func openPrepared(dsn string) (*sql.DB, error) {
	inner, err := modernc.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(preparedConnector{inner}), nil
}

type preparedConnector struct{ driver.Connector }

func (c preparedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &preparedConn{driverConn: opened.(driverConn), stmts: map[string]*preparedStmt{}}, nil
}

// driverConn is what a connection of the driver can do.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

// preparedConn is a connection that prepares each statement once. One goroutine at a time
// calls it.
type preparedConn struct {
	driverConn
	stmts map[string]*preparedStmt // by their text
}

type preparedStmt struct {
	driverStmt
	busy bool // its rows are being read
}

// driverStmt is what a statement of the driver can do.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

func (c *preparedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.prepared(ctx, query)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return c.driverConn.QueryContext(ctx, query, args)
	}
	rows, err := s.QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.busy = true
	return &preparedRows{rows, s}, nil
}

func (c *preparedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.prepared(ctx, text)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return c.driverConn.ExecContext(ctx, text, args)
	}
	return s.ExecContext(ctx, args)
}

// prepared returns the statement for a text; nil while its rows are being read, and if the
// text may be several statements, which only the driver can take apart.
func (c *preparedConn) prepared(ctx context.Context, text string) (*preparedStmt, error) {
	if s := c.stmts[text]; s != nil {
		if s.busy {
			return nil, nil
		}
		return s, nil
	}
	if strings.Contains(text, ";") {
		return nil, nil
	}
	if err := c.forget(keptStatements - 1); err != nil {
		return nil, err
	}
	stmt, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	s := &preparedStmt{driverStmt: stmt.(driverStmt)}
	c.stmts[text] = s
	return s, nil
}

// forget closes all statements but busy ones, if there are more than most.
func (c *preparedConn) forget(most int) (err error) {
	if len(c.stmts) <= most {
		return nil
	}
	for text, s := range c.stmts {
		if !s.busy {
			delete(c.stmts, text)
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// Close ends the connection. No rows are being read any more.
func (c *preparedConn) Close() error {
	return errors.Join(c.forget(0), c.driverConn.Close())
}

// preparedRows are the rows of a preparedStmt, which is free again once they are closed.
type preparedRows struct {
	driver.Rows
	stmt *preparedStmt
}

func (r *preparedRows) Close() error {
	r.stmt.busy = false
	return r.Rows.Close()
}
