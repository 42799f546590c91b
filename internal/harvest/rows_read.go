package harvest

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/strictxml"
	"github.com/pmh-bridge/bridge/resourcesync"
)

const (
	// maxRow is how many bytes a row may have, with the line breaks in quotes. An
	// observation has room for all of it (event.MaxMetadata).
	maxRow = 64 << 10
	// rowBytes is how much of a row that is longer is kept.
	rowBytes = 4 << 10
)

// Rules of our own that a row can break.
const (
	ruleRow      = "row"       // it cannot be read
	ruleRowURL   = "row-url"   // it has no URL that can be asked for
	ruleRowTwice = "row-twice" // its record is in the list already
	ruleRowEnd   = "row-end"   // the list may have been cut off
)

// rowReader reads a table of URLs: CSV with a header (RFC 4180), or a sitemap in plain
// text, which has a URL a line and nothing else (sitemaps.org).
type rowReader struct {
	in *bufio.Reader
	// line is that of the row that was read last, from 1, and next that of the one after.
	line, next int
	// ended: the last line that was read has an end, as every line of a whole list.
	ended bool
	raw   []byte
	// header of CSV, as it was read, with separator and columns, each by its meaning.
	header    []byte
	separator rune
	columns   map[string]int
	width     int // how many columns there are
}

// rowFault is a row that cannot be taken; without a rule it is the whole list.
type rowFault struct{ rule, reason string }

func (e *rowFault) Error() string { return e.reason }

// badRow returns a *rowFault.
func badRow(rule, format string, args ...any) error {
	return &rowFault{rule: rule, reason: fmt.Sprintf(format, args...)}
}

// newRowReader returns a reader of a list of a kind, CSV or Sitemap. It reads the header
// of a table; of a list that cannot be read at all the error is a *rowFault.
func newRowReader(in io.Reader, kind string) (*rowReader, error) {
	r := &rowReader{in: bufio.NewReaderSize(in, 64<<10), next: 1, ended: true}
	head, err := r.in.Peek(3)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")):
		_, _ = r.in.Discard(3) // it was peeked at
	case bytes.HasPrefix(head, []byte("\xFF\xFE")), bytes.HasPrefix(head, []byte("\xFE\xFF")):
		return nil, badRow("", "the list is in UTF-16; write it in UTF-8")
	case bytes.HasPrefix(head, []byte("\x1F\x8B")):
		return nil, badRow("", "the list is compressed; publish it as plain text, which HTTP can compress on the way")
	}
	if first, _ := r.in.Peek(64); bytes.HasPrefix(bytes.TrimLeft(first, " \t\r\n"), []byte("<")) {
		return nil, badRow("", "the list is in XML or HTML, and kind %q is plain text; leave the kind out, or for a sitemap in XML write kind %q", kind, ResourceSync)
	}
	if kind == Sitemap {
		return r, nil
	}
	header, err := r.nextLine()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.ContainsRune(bytes.TrimRight(header, "\r\n"), '\r') {
		return nil, badRow("", "the lines of the list end in CR alone; write LF or CR LF")
	}
	r.header = bytes.Clone(header)
	r.separator, r.columns, r.width = readHeader(header)
	if r.columns == nil {
		return nil, badRow("", "line %d: the first line must name the columns, one of them url, like: url,modified,type; it is %q", r.line, strictxml.Clip(string(bytes.TrimSpace(header))))
	}
	return r, nil
}

// columnNames are the names of columns by what they mean. Other columns mean nothing.
var columnNames = map[string]string{
	"url": "url", "loc": "url", "uri": "url",
	"modified": "modified", "lastmod": "modified", "last_modified": "modified", "updated": "modified",
	"type": "type", "media_type": "type", "mime_type": "type",
	"title": "title", "identifier": "identifier", "id": "identifier", "deleted": "deleted", "hash": "hash",
}

// readHeader returns the separator of a table, its columns, nil if none has URLs, and how
// many there are with those that mean nothing.
func readHeader(line []byte) (separator rune, columns map[string]int, width int) {
	for _, separator := range []rune{',', ';', '\t'} {
		names, err := fieldsOf(line, separator)
		if err != nil {
			continue
		}
		columns := map[string]int{}
		for i, name := range names {
			meaning := columnNames[strings.ToLower(strings.NewReplacer(" ", "_", "-", "_").Replace(strings.TrimSpace(name)))]
			if _, again := columns[meaning]; meaning != "" && !again {
				columns[meaning] = i
			}
		}
		if _, ok := columns["url"]; ok {
			return separator, columns, len(names)
		}
	}
	return 0, nil, 0
}

// fieldsOf returns the fields of one row.
func fieldsOf(row []byte, separator rune) ([]string, error) {
	rd := csv.NewReader(bytes.NewReader(row))
	rd.Comma, rd.FieldsPerRecord = separator, -1
	fields, err := rd.Read()
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		err = parse.Err
	}
	return fields, err
}

// row reads the next row that is not blank. Its error is io.EOF after the last, and a
// *rowFault for one that cannot be taken, of which raw has the bytes.
func (r *rowReader) row() (*resourcesync.Entry, error) {
	for {
		var raw []byte
		var err error
		if r.columns != nil {
			raw, err = r.quotedLines()
		} else {
			raw, err = r.nextLine()
		}
		r.raw = raw
		if err != nil && (!errors.Is(err, io.EOF) || len(raw) == 0) || errors.As(err, new(*rowFault)) {
			return nil, err
		}
		if len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		return r.entry(raw)
	}
}

// doubt returns why a list that was read to its end may lack rows, "" when it cannot.
// delimited: its transfer says where it ends.
func (r *rowReader) doubt(bad int, delimited bool) string {
	switch {
	case bad > 0:
		return fmt.Sprintf("%d of its rows cannot be read", bad)
	case !r.ended:
		return "its last line has no end, as if it had been cut off"
	case !delimited:
		return "its server says neither how long it is nor where it ends"
	}
	return ""
}

// nextLine reads a line, with its end. The error is io.EOF with the last line too, if that
// has no end.
func (r *rowReader) nextLine() ([]byte, error) {
	r.line = r.next
	var line []byte
	long := false
	for {
		part, err := r.in.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxRow; !long {
			line = append(line, part...)
		} else if room := rowBytes - len(line); room > 0 {
			line = append(line, part[:min(room, len(part))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case err == nil:
			r.next++
		}
		if len(part) > 0 || len(line) > 0 {
			r.ended = err == nil
		}
		if long {
			return line[:min(len(line), rowBytes)], badRow(ruleTooMuch, "the row has more than %d bytes", maxRow)
		}
		return line, err
	}
}

// quotedLines reads a row of a table, which goes on while a quote is open.
func (r *rowReader) quotedLines() ([]byte, error) {
	row, err := r.nextLine()
	first := r.line
	defer func() { r.line = first }()
	for err == nil && bytes.Count(row, []byte{'"'})%2 == 1 {
		if len(row) > maxRow {
			return row[:rowBytes], badRow(ruleTooMuch, "the row has more than %d bytes: does a quote end that begins in it?", maxRow)
		}
		var more []byte
		more, err = r.nextLine()
		row = append(row, more...)
	}
	return row, err
}

// entry returns what a row says.
func (r *rowReader) entry(raw []byte) (*resourcesync.Entry, error) {
	if !utf8.Valid(raw) {
		return nil, badRow(ruleRow, "the row is not in UTF-8")
	}
	if r.columns == nil {
		return entryOf(map[string]string{"url": string(raw)})
	}
	fields, err := fieldsOf(raw, r.separator)
	if err != nil {
		return nil, badRow(ruleRow, "the row is no CSV: %v", err)
	}
	// A separator that should be in quotes moves all fields behind it.
	if n := len(fields); n > r.width && strings.TrimSpace(strings.Join(fields[r.width:], "")) != "" {
		return nil, badRow(ruleRow, "the row has %d fields, and the header %d: a field with a %q in it must be in quotes", n, r.width, r.separator)
	}
	said := make(map[string]string, len(r.columns))
	for meaning, i := range r.columns {
		if i < len(fields) {
			said[meaning] = fields[i]
		} else if meaning == "url" {
			return nil, badRow(ruleRow, "the row has %d fields, and the url would be field %d", len(fields), i+1)
		}
	}
	return entryOf(said)
}

// entryOf returns what the fields of a row say, by their meaning.
func entryOf(said map[string]string) (*resourcesync.Entry, error) {
	for meaning := range said {
		said[meaning] = strings.TrimSpace(said[meaning])
		if i := strings.IndexFunc(said[meaning], unicode.IsControl); i >= 0 && meaning != "title" && meaning != "url" {
			return nil, badRow(ruleRow, "the %s has a control character: %q", meaning, strictxml.Clip(said[meaning]))
		}
	}
	e := &resourcesync.Entry{Loc: said["url"], Metadata: resourcesync.Metadata{ID: said["identifier"], Type: said["type"], Title: said["title"], Hash: said["hash"]}}
	u, err := url.Parse(e.Loc)
	switch {
	case e.Loc == "":
		return nil, badRow(ruleRowURL, "the row has no url")
	case err != nil || !event.OnTheWeb(e.Loc) || u.Host == "":
		return nil, badRow(ruleRowURL, "%q is no URL that can be asked for; want http:// or https://", strictxml.Clip(e.Loc))
	case u.User != nil:
		return nil, badRow(ruleRowURL, "the url has a user or password, which would be published")
	}
	u.Fragment, u.RawFragment = "", ""
	e.Loc = u.String()
	if id := e.Metadata.ID; id == e.Loc {
		e.Metadata.ID = ""
	}
	if !slices.Contains([]string{"", "0", "false", "no", "n"}, strings.ToLower(said["deleted"])) {
		if !slices.Contains([]string{"1", "true", "yes", "y", "deleted"}, strings.ToLower(said["deleted"])) {
			return nil, badRow(ruleRow, "deleted is %q; want true, or nothing", strictxml.Clip(said["deleted"]))
		}
		e.Metadata.Change = resourcesync.Deleted
	}
	if t := said["modified"]; t != "" {
		at, ok := rowTime(t)
		if !ok {
			return nil, badRow(ruleRow, "modified is %q; want a time like 2026-01-31 or 2026-01-31T12:00:00Z", strictxml.Clip(t))
		}
		e.LastMod = resourcesync.Exact(at)
	}
	return e, nil
}

// rowTime reads a time; one without a zone is in UTC, a date its first moment.
func rowTime(text string) (at time.Time, ok bool) {
	for _, form := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04Z07:00", "2006-01-02 15:04"} {
		if t, err := time.Parse(form, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// sniffRows returns the kind of a list in plain text by its beginning; "" is none.
func sniffRows(head []byte) string {
	line, _, _ := bytes.Cut(head, []byte{'\n'})
	line = bytes.TrimSpace(line)
	if u, err := url.Parse(string(line)); err == nil && event.OnTheWeb(string(line)) && u.Host != "" {
		return Sitemap
	}
	if _, columns, _ := readHeader(line); columns != nil {
		return CSV
	}
	return ""
}
