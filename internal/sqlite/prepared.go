//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	modernc "modernc.org/sqlite"
)

// keptStatements is how many queries a connection keeps prepared. The queries of a package
// are fewer; those whose text depends on values may be more.
const keptStatements = 100

// openPrepared opens connections that keep their queries prepared: to parse one takes
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

// preparedConn is a connection that prepares each query once. Only database/sql calls it, and one
// goroutine at a time.
type preparedConn struct {
	driverConn
	stmts map[string]*preparedStmt // by their text
}

type preparedStmt struct {
	driver.Stmt
	busy bool // its rows are being read
}

func (c *preparedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s := c.stmts[query]
	if s != nil && s.busy {
		return c.driverConn.QueryContext(ctx, query, args)
	}
	if s == nil {
		if err := c.forget(keptStatements - 1); err != nil {
			return nil, err
		}
		stmt, err := c.PrepareContext(ctx, query)
		if err != nil {
			return nil, err
		}
		s = &preparedStmt{Stmt: stmt}
		c.stmts[query] = s
	}
	rows, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.busy = true
	return &preparedRows{rows, s}, nil
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
