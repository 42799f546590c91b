package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
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
