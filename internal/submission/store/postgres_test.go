package store_test

import (
	"os"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.WithPostgres(m).Run()) }

// TestOnServer: with the log on a PostgreSQL server all is as in a file. Plans are SQLite's
// own.
func TestOnServer(t *testing.T) {
	testenv.Heavy(t)
	server = testenv.SharedPostgres(t)
	defer func() { server = nil }()
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Updates", TestUpdates}, {"Do", TestDo}, {"Hook", TestHook}, {"Do_Group", TestDo_Group}, {"Submissions", TestSubmissions},
		{"SubmissionsDue", TestSubmissionsDue}, {"HasNewerVersion", TestHasNewerVersion}, {"Incoming", TestIncoming},
		{"IncomingOfWithdrawn", TestIncomingOfWithdrawn}, {"Anonymous", TestAnonymous},
		{"Verify_Columns", TestVerify_Columns}, {"Verify_Values", TestVerify_Values}, {"Verify_Source", TestVerify_Source},
	} {
		t.Run(c.name, c.test)
	}
	if testenv.Soaking() { // they make dozens of logs
		t.Run("Verify", TestVerify)
		t.Run("Verify_AnyHistory", TestVerify_AnyHistory)
	}
}

// checks is testenv.Checks, with fewer cases on a server, where a new log takes longer.
func checks(t *testing.T, n int) {
	t.Helper()
	if server != nil {
		n /= 5
	}
	testenv.Checks(t, n)
}
