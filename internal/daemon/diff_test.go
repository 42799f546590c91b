package daemon

import (
	"strings"
	"testing"
)

// A comparison has all lines of both texts, each once and in its order, and as many in common as
// there are; a text too large to compare is shown as changed as a whole.
func TestDiff(t *testing.T) {
	t.Parallel()
	large := func(mark string) string { return "<a>\n" + strings.Repeat(mark+"\n", 2100) + "</a>\n" }
	for name, row := range map[string]struct{ before, after, want string }{
		"nothing":           {"", "", ""},
		"the same":          {"<a>\n<b/>\n</a>\n", "<a>\r\n<b/>\r\n</a>", " <a>| <b/>| </a>"},
		"all new":           {"", "<a/>", "+<a/>"},
		"all gone":          {"<a/>", "", "-<a/>"},
		"one line":          {"<a><b>1</b><c/></a>", "<a><b>2</b><c/></a>", " <a>|-<b>1</b>|+<b>2</b>| <c/>| </a>"},
		"a line more":       {"<a><b/></a>", "<a><b/><c/></a>", " <a>| <b/>|+<c/>| </a>"},
		"most in common":    {"a\nb\nc\nd\ne", "x\nb\nd\nc\nd\ny", "-a|+x| b|+d| c| d|-e|+y"},
		"a line that moved": {"a\nb\nc", "c\na\nb", "+c| a| b|-c"},
		"too large":         {large("1"), large("2"), " <a>|" + strings.Repeat("-1|", 2100) + strings.Repeat("+2|", 2100) + " </a>"},
	} {
		var lines []string
		for _, l := range Diff(row.before, row.after) {
			lines = append(lines, l.Sign+l.Text)
		}
		if got := strings.Join(lines, "|"); got != row.want {
			t.Errorf("%s: %.200s, want %.200s", name, got, row.want)
		}
	}
}
