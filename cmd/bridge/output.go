package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// hidden reports whether a character is not to be seen, and may break a line, move
// what stands beside it, or tell a terminal something.
func hidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// escaping is what commands print to: of all that they write, whoever has written
// it, nothing hidden gets through but ends of lines and tabs. So no text of a
// Source tells a terminal anything.
type escaping struct {
	out  io.Writer
	part []byte // the beginning of a character
}

// Write implements io.Writer.
func (w *escaping) Write(p []byte) (int, error) {
	text := append(w.part, p...)
	w.part = nil
	if end := len(text) - partial(text); end < len(text) {
		w.part = append([]byte(nil), text[end:]...)
		text = text[:end]
	}
	if _, err := io.WriteString(w.out, escapeText(string(text))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// partial returns how many bytes at the end of a text begin a character whose rest
// may follow.
func partial(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if rest := text[len(text)-n:]; utf8.RuneStart(rest[0]) {
			if utf8.FullRune(rest) {
				return 0
			}
			return n
		}
	}
	return 0
}

// unescaped returns where bytes go as they are: what a command prints to, unless
// that is a terminal.
func unescaped(w io.Writer) io.Writer {
	e, ok := w.(*escaping)
	if !ok || isTerminal(e.out) {
		return w
	}
	return e.out
}

// isTerminal reports whether text that is written is shown to a person at once.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// escapeText escapes what is hidden in lines of text.
func escapeText(text string) string {
	return escape(text, func(r rune) bool { return r != '\n' && r != '\t' && hidden(r) })
}

// oneLine escapes what is hidden in a stranger's text, as Go writes it, and bytes
// that are no UTF-8.
func oneLine(text string) string { return escape(text, hidden) }

func escape(text string, hidden func(rune) bool) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		char := text[:n]
		if hidden(r) || r == utf8.RuneError && n == 1 {
			quoted := strconv.QuoteToASCII(char)
			char = quoted[1 : len(quoted)-1]
		}
		b.WriteString(char)
		text = text[n:]
	}
	return b.String()
}

// printJSON prints a value as one line, with URLs as they are, and what is hidden
// in texts escaped.
func printJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	text := line.Bytes()
	if bytes.ContainsFunc(text[:len(text)-1], hidden) {
		text = escapeJSON(text)
	}
	_, err := w.Write(text)
	return err
}

// escapeJSON escapes what is hidden in a line of JSON. The encoder writes none of
// it outside of strings but the line's end, and escapes what is below U+0020.
func escapeJSON(line []byte) []byte {
	var out []byte
	for _, r := range string(line) {
		switch {
		case r < ' ' || !hidden(r):
			out = utf8.AppendRune(out, r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
	}
	return out
}

// printReport prints what one harvest of a Source was worth.
func printReport(to io.Writer, src *daemon.Source, r *harvest.Report, dry bool) error {
	var w strings.Builder
	url, r := daemon.Redact(src.URL), daemon.RedactReport(r)
	fmt.Fprintf(&w, "%s: %s%s\n", src.Set, strings.TrimSpace(src.Name+" "+url), inBrackets(src.Kind))
	took := r.Ended.Sub(r.Started).Round(time.Millisecond)
	switch {
	case r.NotModified && r.Events() == 0:
		fmt.Fprintf(&w, "  not modified since the last harvest (%s)\n", took)
	case r.Error == "" || r.Documents > 0:
		would := ""
		if dry {
			would = "would log: "
		}
		fmt.Fprintf(&w, "  %s%d created, %d updated, %d deleted (%d unchanged, %d historical)\n", would, r.Created, r.Updated, r.Deleted, r.Unchanged, r.Historical)
		fmt.Fprintf(&w, "  read %s, %s; fetched %s; %s\n", counted(int(r.Documents), "document", "documents"), counted(int(r.Entries), "entry", "entries"), counted(int(r.Fetched), "representation", "representations"), took)
	}
	printFindings(&w, "  ", r)
	if r.Quarantined > 0 {
		fmt.Fprintf(&w, "  quarantined: %s; see bridge quarantine ls\n", counted(int(r.Quarantined), "entry", "entries"))
	}
	if r.Pending > 0 {
		fmt.Fprintf(&w, "  pending: %s whose content could not be had yet; it is asked for again\n", counted(int(r.Pending), "record", "records"))
	}
	if r.Held > 0 {
		fmt.Fprintf(&w, "  HELD: %s\n", counted(int(r.Held), "deletion", "deletions"))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&w, "  warning: %s\n", warning)
	}
	if r.Gap != "" {
		fmt.Fprintf(&w, "  GAP: %s\n  %s; when it is gone for good: bridge source accept-gap %s %s\n", dropRepeat(r.Gap), gapMeans(src.Kind), src.Set, quoted(url))
	}
	if r.Error != "" {
		fmt.Fprintf(&w, "  FAILED: %s\n", dropRepeat(r.Error))
	}
	_, err := io.WriteString(to, w.String())
	return err
}

func inBrackets(kind string) string {
	if kind == "" {
		return ""
	}
	return " (" + kind + ")"
}

// gapMeans says what a missing document costs.
func gapMeans(kind string) string {
	if kind == harvest.ResourceSync {
		return "the other lists were taken in, and nothing was deleted because it is listed nowhere"
	}
	return "what is newer was taken in; what is older was not seen"
}

// missingDocument names what is missing in a gap.
func missingDocument(kind string) string {
	if kind == harvest.ResourceSync {
		return "a list is missing"
	}
	return "an archive document is missing"
}

// printFindings prints what a harvest has found out about how the Source says
// things: older forms of its protocol, what was left alone, broken rules with
// the first place of each.
func printFindings(w io.Writer, indent string, r *harvest.Report) {
	if r.Moved != "" {
		fmt.Fprintf(w, "%smoved permanently to %s: change url\n", indent, r.Moved)
	}
	for _, d := range r.Dialects {
		fmt.Fprintf(w, "%swritten as %s\n", indent, dialect(d))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(w, "%sskipped: %s, not selected by prefix or since, or given back by another bridge\n", indent, counted(int(r.Skipped), "entry", "entries"))
	}
	for _, e := range r.Examples {
		first := strings.Replace(e.First, ": "+e.Rule+": ", ": ", 1)
		fmt.Fprintf(w, "%s%s, %s: %s\n", indent, e.Rule, counted(int(e.Count), "place", "places"), first)
	}
}

// dropRepeat drops the URL in front of an error that begins with it as well.
func dropRepeat(text string) string {
	if front, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(rest, front+": ") {
		return rest
	}
	return text
}

// dialect calls a dialect of ResourceSync by its name.
func dialect(d string) string {
	if d == "sitemap" {
		return "a plain sitemap"
	}
	return "ResourceSync " + d
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// short writes a duration as people do: 1h, not 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
