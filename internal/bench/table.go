package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// row is one line of the table.
type row struct {
	name  string
	ours  string
	rival string // with its name
	ratio float64
	bars  []bar
	peak  int64         // bytes, 0 if unknown
	cpu   time.Duration // of the process, 0 if it did other things too
}

// bar is one demand and whether it is met.
type bar struct {
	text string
	met  bool
}

func atLeast(text string, have, want float64) bar { return bar{text, have >= want} }
func below(text string, have, want float64) bar   { return bar{text, have < want} }
func exactly(text string, have, want int64) bar   { return bar{text, have == want} }

// under requires that the memory of a process stays below mb megabytes.
func under(mb int, peak int64) bar {
	return below(fmt.Sprintf("under %d MB", mb), float64(peak)/1e6, float64(mb))
}

// print writes the row, with "pass" or the bars that it misses.
func (r row) print() {
	ratio, peak, cpu, verdict := "", "", "", "pass"
	if r.ratio > 0 {
		ratio = fmt.Sprintf("%.2f", r.ratio)
	}
	if r.peak > 0 {
		peak = megabytes(r.peak)
	}
	if r.cpu > 0 {
		cpu = fmt.Sprintf("%.1f s", r.cpu.Seconds())
	}
	var texts, missed []string
	for _, b := range r.bars {
		texts = append(texts, b.text)
		if !b.met {
			missed = append(missed, b.text)
		}
	}
	switch {
	case len(r.bars) == 0:
		verdict = ""
	case len(missed) > 0:
		verdict = "**below** (" + strings.Join(missed, ", ") + ")"
	}
	fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.name, r.ours, r.rival, ratio, strings.Join(texts, ", "), peak, cpu, verdict)
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }

// rate returns the number a second.
func rate(n int64, d time.Duration) float64 {
	if d <= 0 {
		return math.NaN()
	}
	return float64(n) / d.Seconds()
}

// perSecond writes a rate.
func perSecond(v float64, unit string) string { return thousands(v) + " " + unit + "/s" }

// thousands writes a whole number with commas.
func thousands[N int | int64 | float64](n N) string {
	s := fmt.Sprintf("%.0f", float64(n))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short writes a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func ratioOf(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }
