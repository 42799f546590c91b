//go:build unix

package testenv

// What only tests of this package need.
var (
	NeedPostgres = needPostgres
	NeedS3       = needS3
	FindPostgres = findPostgres
	Temporary    = temporary
	ThreadTime   = threadTime
)

// SetPostgresFolders sets where PostgreSQL is looked for besides PATH, until it is restored.
func SetPostgresFolders(pattern string) (restore func()) {
	before := postgresFolders
	postgresFolders = pattern
	return func() { postgresFolders = before }
}
