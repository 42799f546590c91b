package mail

import "strings"

// clip shortens what somebody else said to what fits into a message.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// line makes one line of printable ASCII of a text, at most most bytes long, as
// replies and header fields need it: other characters become "?", white space
// and line ends single spaces.
func line(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.Join(strings.Fields(s), " "))
	if len(s) > most {
		return s[:most-3] + "..."
	}
	return s
}
