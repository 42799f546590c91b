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

// follows: the baseline of a Source that takes its time for each resource. The
// rival asks for one after the other, on a connection each; it is given a part
// and its time multiplied, as its answers cost it the same each.
func (b *bench) follows() error {
	const latency, share = 20 * time.Millisecond, 20
	resources := b.scaled(2000)
	ours, rival, err := b.mirrored(sourceOf(resources, 0, mirrorBody, latency), job{Path: "/res/%08d.xml", Number: resources / share, Repeat: 1})
	if err == nil && int(ours.Bytes) != resources {
		err = fmt.Errorf("%d of %d resources were taken", ours.Bytes, resources)
	}
	one := rival.Took * share
	return show(err, row{name: fmt.Sprintf("baseline of %s resources behind a server that takes 20 ms for each, mirror", thousands(float64(resources))), ours: short(ours.Took),
		rival: fmt.Sprintf("one after the other, bodies thrown away: %s (%d asked for, times %d)", short(one), resources/share, share),
		ratio: ratioOf(one, ours.Took), peak: ours.Peak, cpu: ours.CPU, bars: []bar{below("under 2.5 s", ours.Took.Seconds(), 2.5)}})
}

// baselines: a Resource List Index of a million resources, new, unchanged, and
// read again whole; then one of two million, for its memory.
func (b *bench) baselines() error {
	resources := b.scaled(million)
	p, err := b.harvestMany(sourceOf(resources, 0, 0, 0))
	if err != nil {
		return err
	}
	p.row("baseline of "+thousands(float64(resources))+" resources, mode reference", "resources").print()
	row{name: "harvested again, unchanged", ours: fmt.Sprintf("%s, %d requests, %d events", short(p.again.Took), p.again.Count, p.again.Bytes), peak: p.again.Peak,
		bars: []bar{atLeast("0 events", -float64(p.again.Bytes), 0)}}.print()
	row{name: "harvested again with --full", ours: fmt.Sprintf("%s, %d events", perSecond(rate(p.full.Count, p.full.Took), "resources"), p.full.Bytes),
		peak: p.full.Peak, cpu: p.full.CPU, bars: []bar{atLeast("0 events", -float64(p.full.Bytes), 0)}}.print()
	return b.twice("baseline of "+thousands(float64(2*resources))+" resources (once)", "resources", sourceOf(2*resources, 0, 0, 0), p.first)
}

// readLists: the longest Change List that there is, read to its end. Rivals read
// the same file: the way of the reference client, and what encoding/xml takes for
// its tokens alone.
func (b *bench) readLists() error {
	return b.in("readlist", b.readListIn)
}

func (b *bench) readListIn(folder string) error {
	file, base := filepath.Join(folder, "changelist.xml"), ""
	err := b.beside(sourceOf(0, segment, 0, 0), func(url string) error {
		base = url
		body, err := get(b.ctx, url+fixtures.ChangeList)
		if err != nil {
			return err
		}
		return os.WriteFile(file, body, 0o600)
	})
	if err != nil {
		return err
	}
	missing := pythonMissing()
	if missing != nil {
		b.say("readlist goes without the Python client: %v", missing)
	}
	var ours, tokens, python result
	for range b.runs {
		err := errors.Join(b.try(&ours, job{Name: "readlist", Folder: folder, Repeat: 5}), b.try(&tokens, job{Name: "tokens", Folder: folder, Repeat: 3}))
		if err == nil && missing == nil {
			var r result
			r, err = b.pythonReads(file, base)
			python = faster(python, r)
		}
		if err != nil {
			return err
		}
	}
	have := rate(segment, ours.Took)
	out := row{name: "reading a Change List of 50,000 urls", ours: fmt.Sprintf("%s (%s)", short(ours.Took), perSecond(have, "urls")), peak: ours.Peak,
		rival: "encoding/xml's tokens alone: " + perSecond(rate(segment, tokens.Took), "urls"), ratio: ratioOf(tokens.Took, ours.Took)}
	if missing == nil {
		out.ratio = ratioOf(python.Took, ours.Took)
		out.rival = fmt.Sprintf("the reference client's way in Python: %s (%s); %s", short(python.Took), perSecond(rate(segment, python.Took), "urls"), out.rival)
		out.bars = []bar{atLeast("10 times the Python client", out.ratio, 10)}
	}
	out.print()
	return nil
}

// readList reads the list in a folder; Took is the best time.
func readList(_ context.Context, j job, _ func(result)) (result, error) {
	return readings(j, func(in io.Reader) (n int, err error) {
		for r := resourcesync.NewReader(in, resourcesync.ReadOptions{}); ; n++ {
			if _, err := r.Next(); err != nil {
				return n, err
			}
		}
	})
}

// readTokens is a rival: encoding/xml's tokens, and nothing made of them.
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

// readings lets read count the urls of the list to its end, several times.
func readings(j job, read func(io.Reader) (int, error)) (best result, err error) {
	for range j.Repeat {
		f, err := os.Open(filepath.Join(j.Folder, "changelist.xml"))
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

// pythonClient is a Destination that works as the most used one does.
const pythonClient = "testdata/resync_client.py"

// pythonRead prints how many seconds that client takes for a list that it has
// got, and how many entries it found.
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

// pythonMissing returns why that client cannot run here, nil if it can.
func pythonMissing() error {
	if _, err := os.Stat(pythonClient); err != nil {
		return fmt.Errorf("%w: run this in the project's own folder", err)
	}
	_, err := exec.LookPath("python3")
	return err
}

// pythonReads lets that client read a list that was served below base.
func (b *bench) pythonReads(file, base string) (result, error) {
	cmd := exec.CommandContext(b.ctx, "python3", "-B", "-c", pythonRead, pythonClient, file, base)
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
