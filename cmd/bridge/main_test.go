package main

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// In scripts, and for tests that kill it, "bridge" is this program, a process of
// its own.
func TestMain(m *testing.M) {
	testscript.Main(testenv.WithS3(testenv.WithPostgres(waiting{m})), map[string]func(){"bridge": main})
}

// waiting runs the tests.
type waiting struct{ *testing.M }

// Run runs twice as many tests at a time as there are processors: they mostly wait
// for the processes that they start. A soak says how long these take, and runs one.
func (w waiting) Run() int {
	if err := os.Unsetenv("GOGC"); err != nil { // it is for the tests: a bridge has its own way to collect
		panic(err)
	}
	atOnce := 2 * runtime.GOMAXPROCS(0)
	if testenv.Soaking() {
		atOnce = 1
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set(strconv.Itoa(atOnce)); err != nil {
			panic(err)
		}
	}
	return w.M.Run()
}
