package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// File and Line are where; "" and 0 for flags and arguments, and 0 for
	// what is missing altogether.
	File string
	Line int
	// Key is the key that is wrong, with its table: set "campus": content.
	Key string
	// Text says what is wrong and what to write.
	Text string
}

// String returns the problem in one line.
func (p Problem) String() string {
	s := p.Text
	if p.Key != "" {
		s = p.Key + ": " + s
	}
	switch {
	case p.File != "" && p.Line > 0:
		s = fmt.Sprintf("%s:%d: %s", p.File, p.Line, s)
	case p.File != "":
		s = p.File + ": " + s
	}
	return s
}

// Error is everything that is wrong with a configuration, in the order of the
// file.
type Error struct {
	Problems []Problem
}

// Error returns a line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// document is a TOML file with the line of each key, and its problems. Without a file
// it only collects problems.
type document struct {
	file     string
	lines    map[string]int // by path: set[0].source[1].url
	problems []Problem
}

func (d *document) report(path, key, format string, args ...any) {
	d.problems = append(d.problems, Problem{File: d.file, Line: d.lines[path], Key: key, Text: fmt.Sprintf(format, args...)})
}

// err returns what was found, by line.
func (d *document) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return a.Line - b.Line })
	return &Error{Problems: d.problems}
}

// parse reads a TOML file. It stops at the first syntax error.
func parse(file string, data []byte) (*document, table, error) {
	d := &document{file: file, lines: map[string]int{}}
	root := map[string]any{}
	if err := toml.Unmarshal(data, &root); err != nil {
		p := Problem{File: file, Text: err.Error()}
		var wrong *toml.DecodeError
		if errors.As(err, &wrong) {
			p.Line, _ = wrong.Position()
		}
		return nil, table{}, &Error{Problems: []Problem{p}}
	}
	d.index(data)
	return d, table{doc: d, values: root, known: map[string]bool{}}, nil
}

// index notes the line of every key. The decoder has accepted the data, so
// there is nothing to report here.
func (d *document) index(data []byte) {
	var p unstable.Parser
	p.Reset(data)
	line := func(n *unstable.Node) int { return 1 + bytes.Count(data[:n.Raw.Offset], []byte("\n")) }
	tables := map[string]int{} // elements of each array of tables so far
	prefix := ""
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.KeyValue {
			d.indexValue(prefix, e, line)
			continue
		}
		prefix = ""
		for key := e.Key(); key.Next(); {
			prefix = join(prefix, string(key.Node().Data))
			if e.Kind == unstable.ArrayTable && key.IsLast() {
				tables[prefix]++
			}
			if n := tables[prefix]; n > 0 {
				prefix = element(prefix, n-1)
			}
			if d.lines[prefix] == 0 {
				d.lines[prefix] = line(key.Node())
			}
		}
	}
}

func (d *document) indexValue(prefix string, e *unstable.Node, line func(*unstable.Node) int) {
	path, at := prefix, 0
	for key := e.Key(); key.Next(); {
		path, at = join(path, string(key.Node().Data)), line(key.Node())
		d.lines[path] = at
	}
	d.indexInside(path, at, e.Value(), line)
}

// indexInside notes the keys of inline tables, in arrays as well.
func (d *document) indexInside(path string, at int, value *unstable.Node, line func(*unstable.Node) int) {
	switch value.Kind {
	case unstable.InlineTable:
		for inside := value.Children(); inside.Next(); {
			d.indexValue(path, inside.Node(), line)
		}
	case unstable.Array:
		i := 0
		for inside := value.Children(); inside.Next(); {
			n := inside.Node()
			if n.Kind == unstable.Comment {
				continue
			}
			d.lines[element(path, i)] = at
			d.indexInside(element(path, i), at, n, line)
			i++
		}
	}
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// table is one table of the file. Each of its methods reads a key: the value, or
// the default when the key is absent or wrong, which is then reported.
type table struct {
	doc    *document
	path   string
	label  string // what people call it: set "campus"
	values map[string]any
	known  map[string]bool // the keys that were asked for
}

func (t table) report(key, format string, args ...any) {
	path := join(t.path, key)
	if _, ok := t.doc.lines[path]; !ok {
		path = t.path // a key that is missing: its table
	}
	t.doc.report(path, t.called(key), format, args...)
}

// called returns a key with its table, for messages.
func (t table) called(key string) string {
	if t.label == "" {
		return key
	}
	return strings.TrimSuffix(t.label+": "+key, ": ")
}

func (t table) has(key string) bool {
	_, ok := t.values[key]
	return ok
}

// empty reports whether a key is missing or an empty string, which mean the same.
func (t table) empty(key string) bool { return !t.has(key) || t.values[key] == "" }

// value returns the value of a key when it is there and of the type T.
func value[T any](t table, key, want string) (T, bool) {
	t.known[key] = true
	var none T
	v, ok := t.values[key]
	if !ok {
		return none, false
	}
	got, ok := v.(T)
	if !ok {
		t.report(key, "is %s; write %s", typeName(v), want)
	}
	return got, ok
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64, float64:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	}
	return "a date or time"
}

func (t table) text(key, byDefault string) string {
	if s, ok := value[string](t, key, `a string: `+key+` = "..."`); ok {
		return s
	}
	return byDefault
}

func (t table) oneOf(key, byDefault string, words ...string) string {
	s := t.text(key, byDefault)
	if !slices.Contains(words, s) && t.has(key) {
		t.report(key, "%q is none of its values; write %s", s, list(words))
		return byDefault
	}
	return s
}

func (t table) number(key string, byDefault, least, most int) int {
	n, ok := value[int64](t, key, fmt.Sprintf("a number: %s = %d", key, byDefault))
	if !ok {
		return byDefault
	}
	if n < int64(least) || n > int64(most) {
		t.report(key, "%d is out of range; write a number from %d to %d", n, least, most)
		return byDefault
	}
	return int(n)
}

func (t table) duration(key string, byDefault, least time.Duration) time.Duration {
	s, ok := value[string](t, key, fmt.Sprintf(`a duration in quotes, like %s = "90s" or "1h"`, key))
	if !ok {
		return byDefault
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		t.report(key, `%q is no duration; write a number and a unit, like "90s", "10m" or "1h"`, s)
		return byDefault
	}
	if v < least {
		t.report(key, "%s is too short; write %s or more", s, least)
		return byDefault
	}
	return v
}

// moment reads a point in time, or the beginning of a day in UTC: a date or time of
// TOML, or one in quotes. An absent one is the zero time.
func (t table) moment(key string) time.Time {
	t.known[key] = true
	switch v := t.values[key].(type) {
	case nil:
		return time.Time{}
	case time.Time:
		return v.UTC()
	case toml.LocalDate:
		return v.AsTime(time.UTC)
	case string:
		for _, form := range []string{time.RFC3339Nano, time.DateOnly} {
			if m, err := time.Parse(form, v); err == nil {
				return m.UTC()
			}
		}
	}
	t.report(key, `%v is no date with an offset; write %s = "2026-01-31" or "2026-01-31T12:00:00Z"`, t.values[key], key)
	return time.Time{}
}

// size reads a number of bytes, with or without a unit.
func (t table) size(key string, byDefault int64) int64 {
	t.known[key] = true
	v, ok := t.values[key]
	if !ok {
		return byDefault
	}
	n, isNumber := v.(int64)
	if s, isText := v.(string); isText {
		n, isNumber = parseSize(s)
	}
	if !isNumber || n < 1 {
		t.report(key, `%v is no size; write a number of bytes, or like "64 MiB"`, v)
		return byDefault
	}
	return n
}

func parseSize(s string) (int64, bool) {
	s = strings.TrimSpace(s)
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if before, ok := strings.CutSuffix(s, unit); ok {
			s, shift = strings.TrimSpace(before), 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n << shift, err == nil && n > 0 && n <= 1<<62>>shift
}

// texts reads a list of strings, each of which check must accept.
func (t table) texts(key string, check func(string) (string, error)) []string {
	values, ok := value[[]any](t, key, fmt.Sprintf(`a list: %s = ["...", "..."]`, key))
	if !ok {
		return nil
	}
	var all []string
	for _, v := range values {
		s, ok := v.(string)
		if !ok {
			t.report(key, "has %s in its list; write strings only", typeName(v))
			continue
		}
		s, err := check(s)
		switch {
		case err != nil:
			t.report(key, "%v", err)
		case slices.Contains(all, s):
			t.report(key, "%q stands twice; write it once", s)
		default:
			all = append(all, s)
		}
	}
	return all
}

// textMap reads a table of strings with free keys: check gets each key with its value
// and returns the value to keep. nil is none.
func (t table) textMap(key, example string, check func(word, text string) (string, error)) map[string]string {
	values, _ := value[map[string]any](t, key, "a table: "+example)
	if len(values) == 0 {
		return nil
	}
	in := table{doc: t.doc, path: join(t.path, key), label: t.called(key), values: values, known: map[string]bool{}}
	all := map[string]string{}
	for _, word := range slices.Sorted(maps.Keys(values)) {
		typed, ok := value[string](in, word, "a string, as in "+example)
		if !ok {
			continue
		}
		text, err := check(word, typed)
		if err != nil {
			in.report(word, "%v", err)
			continue
		}
		all[word] = text
	}
	return all
}

// table reads a table inside this one; an absent one is empty.
func (t table) table(key string) table {
	values, _ := value[map[string]any](t, key, "a table: ["+join(t.path, key)+"]")
	return table{doc: t.doc, path: join(t.path, key), label: t.called(key), values: values, known: map[string]bool{}}
}

// tables reads an array of tables.
func (t table) tables(key, header string) []table {
	values, _ := value[[]any](t, key, "a table with two brackets: [["+header+"]]")
	var all []table
	for i, v := range values {
		in := table{doc: t.doc, path: element(join(t.path, key), i), label: t.called(fmt.Sprintf("%s %d", key, i+1)), known: map[string]bool{}}
		values, ok := v.(map[string]any)
		if !ok {
			in.report("", "is %s; write a table: [[%s]]", typeName(v), header)
			continue
		}
		in.values = values
		all = append(all, in)
	}
	return all
}

// reportUnknown reports the keys that were not read. elsewhere are keys of other
// tables, with the header under which they belong.
func (t table) reportUnknown(elsewhere map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if t.known[key] {
			continue
		}
		if now := renamedKeys()[key]; now != "" {
			t.report(key, "is called %s now; write that", now)
			continue
		}
		if header := elsewhere[key]; header != "" {
			t.report(key, "does not belong here; write it %s", header)
			continue
		}
		t.report(key, "there is no such key; the nearest is %q", nearest(key, t.known))
	}
}

// renamedKeys returns the present names of keys that were called otherwise.
func renamedKeys() map[string]string {
	return map[string]string{"guard_wait": "hold_deletions", "hello": "helo", "into": "import_accepted_to"}
}

// nearest returns the word of known with the smallest edit distance from key.
func nearest(key string, known map[string]bool) string {
	best, fewest := "", 1<<30
	for word := range known {
		if n := distance(key, word); n < fewest || n == fewest && word < best {
			best, fewest = word, n
		}
	}
	return best
}

// distance returns the edit distance of two words: insertions, deletions, replacements
// and exchanges of neighbours.
func distance(a, b string) int {
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := row[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			next[j] = min(replaced, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// list writes words as "a", "b" or "c".
func list(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}
	if n := len(quoted); n > 1 {
		return strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return strings.Join(quoted, "")
}
