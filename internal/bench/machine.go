package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine describes what all figures depend on: processor, cores, memory, system and Go. It
// leaves out what the system does not report.
func machine() string {
	cpu := field("/proc/cpuinfo", "model name")
	if cpu == "" {
		cpu = runtime.GOARCH
	}
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
