package main

import (
	"bytes"
	"cmp"
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

// isHidden reports whether a character is invisible: it may break a line, move other text,
// or control a terminal.
func isHidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// escaping is the writer that commands print to. It escapes all hidden characters except
// line ends and tabs, so no text of a Source controls a terminal.
type escaping struct {
	out  io.Writer
	part []byte // the first bytes of an incomplete character
	err  error  // the first one of out
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
		w.err = cmp.Or(w.err, err)
		return 0, err
	}
	return len(p), nil
}

// partial returns the number of bytes at the end of a text that are the start of an
// incomplete character.
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

// unescaped returns the writer below an escaping one, unless that is a terminal.
func unescaped(w io.Writer) io.Writer {
	e, ok := w.(*escaping)
	if !ok || isTerminal(e.out) {
		return w
	}
	return e.out
}

// isTerminal reports whether a writer, or the one below an escaping one, is a terminal.
func isTerminal(w io.Writer) bool {
	if e, ok := w.(*escaping); ok {
		w = e.out
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// escapeText escapes the hidden characters in lines of text.
func escapeText(text string) string {
	return escape(text, func(r rune) bool { return r != '\n' && r != '\t' && isHidden(r) })
}

// oneLine escapes the hidden characters of a text as Go does, and bytes that are not
// UTF-8.
func oneLine(text string) string { return escape(text, isHidden) }

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

// printJSON prints a value as one line, without HTML escapes, and with hidden
// characters escaped.
func printJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	text := line.Bytes()
	if bytes.ContainsFunc(text[:len(text)-1], isHidden) {
		text = escapeJSON(text)
	}
	_, err := w.Write(text)
	return err
}

// escapeJSON escapes the hidden characters in a line of JSON. The encoder writes them only
// in strings, except the line's end, and escapes those below U+0020 itself.
func escapeJSON(line []byte) []byte {
	var out []byte
	for _, r := range string(line) {
		switch {
		case r < ' ' || !isHidden(r):
			out = utf8.AppendRune(out, r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
	}
	return out
}

// stamp formats a time for people, in UTC.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// printReport prints the report of one harvest of a Source.
func printReport(to io.Writer, src *daemon.Source, r *harvest.Report, dry bool) error {
	var w strings.Builder
	url, r := daemon.Redact(src.URL), daemon.RedactReport(r)
	fmt.Fprintf(&w, "%s: %s%s\n", src.Set, strings.TrimSpace(src.Name+" "+url), inBrackets(r.Kind))
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
		fmt.Fprintf(&w, "  read %s, %s; fetched %s; %s\n", plural(int(r.Documents), "document", "documents"), plural(int(r.Entries), "entry", "entries"), plural(int(r.Fetched), "representation", "representations"), took)
	}
	printFindings(&w, "  ", r)
	if r.Quarantined > 0 {
		fmt.Fprintf(&w, "  quarantined: %s; see bridge quarantine ls\n", plural(int(r.Quarantined), "entry", "entries"))
	}
	if r.Pending > 0 {
		fmt.Fprintf(&w, "  pending: %s whose content could not be fetched yet; bridge tries again\n", plural(int(r.Pending), "record", "records"))
	}
	if r.Held > 0 {
		fmt.Fprintf(&w, "  HELD: %s\n", plural(int(r.Held), "deletion", "deletions"))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&w, "  warning: %s\n", oneLine(warning))
	}
	if r.Gap != "" {
		fmt.Fprintf(&w, "  GAP: %s\n  %s", oneLine(dropRepeat(r.Gap)), gapMeans(r.Kind))
		if r.Kind != harvest.OAIPMH {
			fmt.Fprintf(&w, "; if it will not come back: bridge source accept-gap %s %s", src.Set, quoted(url))
		}
		fmt.Fprintln(&w)
	}
	if r.Error != "" {
		fmt.Fprintf(&w, "  FAILED: %s\n", oneLine(dropRepeat(r.Error)))
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

// gapMeans describes the consequence of a missing document.
func gapMeans(kind string) string {
	switch kind {
	case harvest.ResourceSync:
		return "the other lists were harvested, and nothing was deleted by absence"
	case harvest.OAIPMH:
		return "what came before was harvested; the next harvest goes on there, as far as max_documents lets it"
	}
	return "newer documents were harvested, older ones were not read"
}

// missingDocument describes what is missing in a gap.
func missingDocument(kind string) string {
	switch kind {
	case harvest.ResourceSync:
		return "a list is missing"
	case harvest.OAIPMH:
		return "the rest of a long list was not read yet"
	}
	return "an archive document is missing"
}

// printFindings prints what a harvest has found about the form of the Source: older
// dialects of its protocol, skipped entries, and broken rules with the first place of each.
func printFindings(w io.Writer, indent string, r *harvest.Report) {
	if r.Moved != "" {
		fmt.Fprintf(w, "%smoved permanently to %s: change url\n", indent, r.Moved)
	}
	for _, d := range r.Dialects {
		fmt.Fprintf(w, "%swritten as %s\n", indent, dialect(d))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(w, "%sskipped: %s, not selected by prefix or since, or given back by another bridge\n", indent, plural(int(r.Skipped), "entry", "entries"))
	}
	if r.About > 0 {
		fmt.Fprintf(w, "%sleft out: %s, which stand beside the metadata\n", indent, plural(int(r.About), "about container", "about containers"))
	}
	for _, e := range r.Examples {
		first := strings.Replace(e.First, ": "+e.Rule+": ", ": ", 1)
		fmt.Fprintf(w, "%s%s, %s: %s\n", indent, e.Rule, plural(int(e.Count), "place", "places"), oneLine(first))
	}
}

// dropRepeat removes the URL at the start of an error if the error then begins with the
// same URL again.
func dropRepeat(text string) string {
	if front, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(rest, front+": ") {
		return rest
	}
	return text
}

// dialect returns the name of a dialect of ResourceSync.
func dialect(d string) string {
	if d == "sitemap" {
		return "a plain sitemap"
	}
	return "ResourceSync " + d
}

func plural(n int, one, many string) string {
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

// namedInLine is how many Sources, or changes of them, a line names where there may be thousands.
const namedInLine = 20

// inOneLine joins sentences: the first ones, and the number of the others.
func inOneLine(all []string) string {
	text := strings.Join(all[:min(len(all), namedInLine)], "; ")
	if more := len(all) - namedInLine; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
