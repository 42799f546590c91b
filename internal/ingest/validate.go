package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/limit"
	"github.com/pmh-bridge/bridge/internal/submission"
)

const (
	// lintTime is how long one validation may take.
	lintTime = 30 * time.Second
	// lintOutput is how many bytes of a validator's output are read, and lintLines how
	// many of its complaints a submitter gets.
	lintOutput = 64 << 10
	lintLines  = 3
)

// NewXMLLint returns a function that validates records (Server.Validate) with the program
// xmllint at path. schemas has the paths of local files by the URL of the schema; a
// record of another schema is not validated. xmllint gets no network and 30 seconds, and
// as many run at once as Go uses processors. If the result is neither "valid" nor
// "invalid" it returns an error: the program or the schema is missing, it crashed, or it
// took too long.
func NewXMLLint(path string, schemas map[string]string) func(ctx context.Context, schema string, record []byte) (reason string, err error) {
	running := make(chan struct{}, runtime.GOMAXPROCS(0))
	return func(ctx context.Context, schema string, record []byte) (string, error) {
		file, ok := schemas[schema]
		if !ok {
			return "", nil
		}
		select {
		case running <- struct{}{}:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		defer func() { <-running }()
		return lint(ctx, path, file, record)
	}
}

// lint runs the program on one record.
func lint(ctx context.Context, path, schema string, record []byte) (string, error) {
	limited, cancel := context.WithTimeout(ctx, lintTime)
	defer cancel()
	said := limit.Output{Most: lintOutput}
	cmd := exec.CommandContext(limited, path, "--noout", "--nonet", "--schema", schema, "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(record), &said, &said
	cmd.Env = []string{"LC_ALL=C", "XML_CATALOG_FILES="} // no catalog from outside the schema's folder is used
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case limited.Err() != nil:
		return "", fmt.Errorf("%s took more than %v over one record", path, lintTime)
	case !errors.As(err, &exit):
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	// 1: it could not be parsed; 3 and 4: not valid (xmllint(1)). Only its output about
	// its standard input is about the record.
	if code := exit.ExitCode(); code == 1 || code == 3 || code == 4 {
		if reason := complaints(said.String()); reason != "" {
			return reason, nil
		}
	}
	return "", fmt.Errorf("%s ended with %w: %s", path, err, firstLine(said.String()))
}

// complaint matches a line of xmllint about its standard input.
var complaint = regexp.MustCompile(`(?m)^-:(\d+): (?:element [^:\s]+(?::[^:\s]+)?: )?(.+)$`)

// complaints returns the first errors that xmllint reports about a record.
func complaints(said string) string {
	var lines []string
	for _, m := range complaint.FindAllStringSubmatch(said, lintLines) {
		lines = append(lines, "line "+m[1]+": "+submission.Clip(strings.ToValidUTF8(m[2], "\uFFFD")))
	}
	return strings.Join(lines, "; ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return submission.Clip(line)
}
