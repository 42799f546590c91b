// Command bench runs the big cases of the speed bars and prints each as a row of a Markdown
// table: our figure, that of a rival run in the same minute, their ratio, the bar, and the
// peak memory and processor time of the process that did the work.
//
// Every measured piece runs in a child process of its own, so that its peak memory is its
// own, and a provider runs in another one. Nothing here is a test: a figure below its bar
// is reported, and the exit status is still 0.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are the flags of the command line.
type settings struct {
	only    string
	quick   bool
	runs    int
	soak    int // millions of events of the long log
	outbox  int // records of the long outbox
	patient time.Duration
	folder  string
	profile string
	binary  string // bridge, of the hostile cases
	attack  string // run only this one of the hostile cases
}

func main() {
	// This same program has started a child; see child.go.
	if len(os.Args) == 3 && os.Args[1] == childArgument {
		os.Exit(child(os.Args[2]))
	}
	var s settings
	flag.StringVar(&s.only, "only", "", "run only the cases whose name begins so")
	flag.BoolVar(&s.quick, "quick", false, "a tenth of everything, once: to see that it works, not to quote")
	flag.IntVar(&s.runs, "runs", 3, "how often a case is measured; the best counts")
	flag.IntVar(&s.soak, "soak", 10, "size of the long log in millions of events")
	flag.IntVar(&s.outbox, "outbox", million, "records of the long outbox")
	flag.DurationVar(&s.patient, "patience", 4*time.Minute, "how long the long log may grow; then it is measured as it is")
	flag.StringVar(&s.folder, "dir", "", "where to work; a new folder there is made and removed (default: the system's folder for temporary files)")
	flag.StringVar(&s.profile, "profile", "", "folder for CPU and heap profiles of the measured processes")
	flag.StringVar(&s.binary, "binary", "", "the bridge that the case hostile attacks (default: it is built)")
	flag.StringVar(&s.attack, "attack", "", "of the case hostile only the attacks of this defect, such as D60")
	flag.Parse()
	if s.quick {
		s.runs, s.soak = 1, 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of this command.
type bench struct {
	settings
	ctx context.Context
}

func run(ctx context.Context, s settings) (err error) {
	parent := s.folder
	if s.folder, err = os.MkdirTemp(parent, "bridge-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.folder)) }()
	if s.profile != "" {
		if s.profile, err = filepath.Abs(s.profile); err == nil {
			err = os.MkdirAll(s.profile, 0o755)
		}
		if err != nil {
			return err
		}
	}
	b := &bench{settings: s, ctx: ctx}
	fmt.Printf("%s\n\n", machine())
	fmt.Printf("%s, best of %d; load %s when it began.\n\n", time.Now().UTC().Format(time.DateOnly), s.runs, load())
	fmt.Println("| case | ours | rival | ratio | bar | peak memory | CPU | |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	return b.runCases()
}

// runCases runs the selected cases.
func (b *bench) runCases() error {
	ran := false
	for cases := b.cases(); len(cases) > 0; {
		n := 1
		for n < len(cases) && cases[n].name == cases[0].name {
			n++
		}
		one := cases[:n]
		if cases = cases[n:]; !strings.HasPrefix(one[0].name, b.only) {
			continue
		}
		ran = true
		start := time.Now()
		if err := b.runCase(one); err != nil {
			return fmt.Errorf("%s: %w", one[0].name, err)
		}
		b.say("%s took %.0f s, load %s", one[0].name, time.Since(start).Seconds(), load())
	}
	if !ran {
		return fmt.Errorf("-only %s: there is no such case", b.only)
	}
	return nil
}

// runCase does the measurements of a case, and prints their rows.
func (b *bench) runCase(all []measurement) error {
	if all[0].own != nil {
		return b.in(all[0].name, all[0].own)
	}
	results, err := b.measure(all)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].rows == nil {
			continue
		}
		rows, err := all[i].rows(results[:i+1])
		for _, r := range rows {
			r.print()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// say prints progress for a person, apart from the table.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// scaled returns n, or a tenth of it in a quick run.
func (b *bench) scaled(n int) int {
	if b.quick {
		return n / 10
	}
	return n
}

// in calls measure with a new folder, which is removed afterwards.
func (b *bench) in(name string, measure func(folder string) error) error {
	folder, err := os.MkdirTemp(b.folder, name+"-")
	if err != nil {
		return err
	}
	return errors.Join(measure(folder), os.RemoveAll(folder))
}

// machine describes what all figures depend on: processor, cores, memory, system and Go. It
// leaves out what the system does not report.
func machine() string {
	cpu := cmp.Or(field("/proc/cpuinfo", "model name"), runtime.GOARCH)
	parts := []string{cpu, fmt.Sprintf("%d cores", runtime.NumCPU())}
	if kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GB", float64(kb)/(1<<20)))
	}
	return strings.Join(append(parts, runtime.GOOS, runtime.Version()), ", ")
}

// load returns the system's load of the last minute, "unknown" if the system does not
// report it.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

// memory returns a line of a process's status, in bytes: VmHWM is the peak of its resident
// memory, VmRSS its present one. It returns 0 if the system does not report it. (The peak
// of getrusage includes that of the parent.)
func memory(process, name string) int64 {
	kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/"+process+"/status", name), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}

// processorTime returns the time that this process has used on all processors, in user and
// system mode.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// field returns the value of the first "name: value" line of a file.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
