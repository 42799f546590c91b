package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// hidden tells whether a character is not to be seen, and may break a line, move
// what stands beside it, or tell a terminal something.
func hidden(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// oneLine escapes what is hidden in a stranger's text, as Go writes it, and bytes
// that are no UTF-8.
func oneLine(text string) string {
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
