package daemon

import "strings"

// DiffLine is a line of two texts that are compared. Sign is "+" when only the later one
// has it, "-" when only the earlier one has it, and " " when both have.
type DiffLine struct{ Sign, Text string }

// mostCompared bounds the work of Diff: a larger range between the first and the last
// difference is shown as changed as a whole.
const mostCompared = 4_000_000

// Diff compares two texts of XML by lines, and finds the most lines in common.
func Diff(before, after string) (out []DiffLine) {
	add := func(sign string, lines ...string) {
		for _, line := range lines {
			out = append(out, DiffLine{sign, line})
		}
	}
	a, b := elements(before), elements(after)
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	add(" ", a[:same]...)
	a, b = a[same:], b[same:]
	end := 0
	for end < len(a) && end < len(b) && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	tail := a[len(a)-end:]
	a, b = a[:len(a)-end], b[:len(b)-end]
	i, j := 0, 0
	if len(a)*len(b) <= mostCompared {
		common := commonLines(a, b)
		for i < len(a) && j < len(b) {
			switch {
			case a[i] == b[j]:
				add(" ", a[i])
				i, j = i+1, j+1
			case common[i+1][j] >= common[i][j+1]:
				add("-", a[i])
				i++
			default:
				add("+", b[j])
				j++
			}
		}
	}
	add("-", a[i:]...)
	add("+", b[j:]...)
	add(" ", tail...)
	return out
}

// commonLines returns how many lines a[i:] and b[j:] have in common, in their order.
func commonLines(a, b []string) [][]int32 {
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}

// elements splits XML into lines: at its line breaks, and before a start tag that directly
// follows another tag.
func elements(xml string) []string {
	if len(xml) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(strings.ReplaceAll(strings.ReplaceAll(xml, "\r\n", "\n"), "><", ">\n<"), "\n"), "\n")
}
