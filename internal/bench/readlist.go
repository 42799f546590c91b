package main

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// listFile is the list that is read, in the folder of a job.
const listFile = "changelist.xml"

// saveList fetches the list from the provider of a job.
func saveList(ctx context.Context, j job, _ func(result)) (result, error) {
	body, err := get(ctx, j.URL+fixtures.ChangeList)
	if err != nil {
		return result{}, err
	}
	return result{}, os.WriteFile(filepath.Join(j.Folder, listFile), body, 0o600)
}

// readList reads the list to its end; Took is the best time.
func readList(_ context.Context, j job, _ func(result)) (result, error) {
	return readings(j, func(in io.Reader) (n int, err error) {
		for r := resourcesync.NewReader(in, resourcesync.ReadOptions{}); ; n++ {
			if _, err := r.Next(); err != nil {
				return n, err
			}
		}
	})
}

// readTokens is a rival: it reads the tokens with encoding/xml, and does nothing with them.
func readTokens(_ context.Context, j job, _ func(result)) (result, error) {
	return readings(j, func(in io.Reader) (n int, err error) {
		for d := xml.NewDecoder(bufio.NewReader(in)); ; {
			t, err := d.RawToken()
			if err != nil {
				return n, err
			}
			if end, ok := t.(xml.EndElement); ok && end.Name.Local == "url" {
				n++
			}
		}
	})
}

// readings calls read, which counts the urls of the list, several times.
func readings(j job, read func(io.Reader) (int, error)) (best result, err error) {
	for range j.Repeat {
		f, err := os.Open(filepath.Join(j.Folder, listFile))
		if err != nil {
			return best, err
		}
		start := time.Now()
		n, err := read(f)
		took := time.Since(start)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err == nil && n != segment {
			err = fmt.Errorf("%d urls were read, not %d", n, segment)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return best, err
		}
		best = faster(best, result{Took: took, Count: int64(n)})
	}
	return best, nil
}

// pythonClient is a Destination that works like the most used one.
const pythonClient = "testdata/resync_client.py"

// pythonRead prints the seconds that the client takes for a downloaded list, and the number
// of entries that it found.
const pythonRead = `
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("client", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
client = module.Client(sys.argv[3], "", "")
with open(sys.argv[2], "rb") as f:
    body = f.read()
client.get = lambda url: body
start = time.perf_counter()
_, entries = client.document("changelist.xml", "changelist")
print(time.perf_counter() - start, len(entries))
`

// pythonMissing returns the reason why the client cannot run here, nil if it can.
func pythonMissing() error {
	if _, err := os.Stat(pythonClient); err != nil {
		return fmt.Errorf("%w: run this in the project's own folder", err)
	}
	_, err := exec.LookPath("python3")
	return err
}

// readWithPython is a rival: the Python client reads the list; Took is 0 if it cannot run.
func readWithPython(ctx context.Context, j job, _ func(result)) (result, error) {
	if pythonMissing() != nil {
		return result{}, nil
	}
	cmd := exec.CommandContext(ctx, "python3", "-B", "-c", pythonRead, pythonClient, filepath.Join(j.Folder, listFile), j.URL)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("python3: %w", err)
	}
	seconds, entries, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	took, err := strconv.ParseFloat(seconds, 64)
	if err == nil && entries != strconv.Itoa(segment) {
		err = fmt.Errorf("the Python client found %s entries, not %d", entries, segment)
	}
	return result{Took: time.Duration(took * float64(time.Second))}, err
}
