package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// Problem is one error in a configuration.
type Problem struct {
	// File and Line are the place; "" and 0 for flags and arguments, and Line 0 for missing
	// keys.
	File string
	Line int
	// Key is the wrong key, with its table: set "campus": content.
	Key string
	// Text describes what is wrong and what to write.
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

// Error has all errors in a configuration, in the order of the file.
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

// document is a TOML file with the line of each key, and its problems. Without a file it
// only collects problems.
type document struct {
	file     string
	folder   string // of the file; absolute
	layout          // of its text
	readFile func(file string) ([]byte, error)
	problems []Problem
	// withoutSecrets and withoutCredentials are those of Flags.
	withoutSecrets, withoutCredentials bool
	unread                             []string       // credentials that were not read
	useless                            []string       // warnings of keys that do nothing
	exposed                            []string       // files with secrets that others may read
	defaults                           map[string]any // of Sources that are harvested, from [defaults]
	// The parts of the Simple Ingest Protocol, for crossCheck.
	services []configured[SIP]
	targets  []configured[Target]
	members  []configured[Source] // of kind KindSet
}

// configured is a part of a set with its table.
type configured[T any] struct {
	in  table
	set string
	it  *T
}

// err returns the problems, sorted by line.
func (d *document) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		switch {
		case a.File == b.File || a.File == "" || b.File == "":
			return cmp.Compare(a.Line, b.Line)
		case a.File == d.file: // the main file comes first
			return -1
		case b.File == d.file:
			return 1
		}
		return cmp.Compare(a.File, b.File)
	})
	return &Error{Problems: d.problems}
}

// path returns a path of the file, absolute.
func (d *document) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(d.folder, p)
}

// parse reads a TOML file. It stops at the first syntax error.
func parse(file string, data []byte) (*document, table, error) {
	d := &document{file: file}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return nil, table{}, &Error{Problems: []Problem{{File: file, Line: 1, Text: "it begins with a byte order mark; save it as UTF-8 without one"}}}
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, table{}, &Error{Problems: []Problem{{File: file, Line: 1, Text: "it is in UTF-16; save it as UTF-8 without a byte order mark"}}}
	}
	root := map[string]any{}
	if err := toml.Unmarshal(data, &root); err != nil {
		p := Problem{File: file, Text: err.Error()}
		if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
			p.Line, _ = wrong.Position()
		}
		return nil, table{}, &Error{Problems: []Problem{p}}
	}
	d.layout = layoutOf(data)
	return d, table{doc: d, values: root}, nil
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// table is one table of the file.
type table struct {
	doc    *document
	path   string
	label  string // for messages: set "campus"
	values map[string]any
}

func (t table) report(key, format string, args ...any) {
	line := t.doc.line(join(t.path, key))
	if line == 0 {
		line = t.doc.line(t.path) // for a missing key: the line of its table
	}
	t.doc.problems = append(t.doc.problems, Problem{File: t.doc.file, Line: line, Key: t.called(key), Text: fmt.Sprintf(format, args...)})
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

// empty reports whether a key is missing, or an empty string or list.
func (t table) empty(key string) bool {
	list, isList := t.values[key].([]any)
	return !t.has(key) || t.values[key] == "" || isList && len(list) == 0
}

// decode reads the keys of a struct's fields, which their tags describe. A field keeps
// its value when its key is absent or wrong, which is then reported.
//
//	toml:"every"      the key
//	default:"1h"      what the value is without the key; see defaults
//	range:"1s 1h"     the least and the most; a duration is one second at least, and a hundred
//	                  years at most
//	oneof:"ask skip"  the only words
//	form:"host"       the form of a text; see form
//
// An int64 is a size in bytes. Fields of other types, such as Sets, and lists without a
// form are left to the caller.
func (t table) decode(pointer any) {
	for f, v := range reflect.ValueOf(pointer).Elem().Fields() {
		key := f.Tag.Get("toml")
		if key == "" {
			continue
		}
		switch to := v.Addr().Interface().(type) {
		case *bool:
			if b, ok := typed[bool](t, key, "true or false"); ok {
				*to = b
			}
		case *string:
			t.text(key, f.Tag, to)
		case *int:
			t.number(key, f.Tag, to)
		case *int64:
			t.size(key, to)
		case *time.Duration:
			t.duration(key, f.Tag, to)
		case *time.Time:
			t.moment(key, to)
		case *[]string:
			if name := f.Tag.Get("form"); name != "" {
				*to = t.texts(key, form(name))
			}
		case *[]netip.Prefix:
			for _, network := range t.texts(key, checkNetwork) {
				*to = append(*to, netip.MustParsePrefix(network)) // checkNetwork has checked it
			}
		case *Secret:
			*to = t.secret(key)
		case *Store, *Mail, *Snapshot, *Limits:
			in := t.table(key)
			in.decode(to)
			in.reportUnknown(keysOf(to))
		}
	}
}

// typed returns the value of a key when it is there and of the type T.
func typed[T any](t table, key, want string) (T, bool) {
	v, ok := t.values[key]
	got, isT := v.(T)
	if ok && !isT {
		t.report(key, "is %s; write %s", typeName(v), want)
	}
	return got, isT
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

func (t table) text(key string, tag reflect.StructTag, to *string) {
	s, ok := typed[string](t, key, `a string: `+key+` = "..."`)
	if !ok {
		return
	}
	if words := strings.Fields(tag.Get("oneof")); len(words) > 0 && !slices.Contains(words, s) {
		t.report(key, "%q is not one of its values; write %s", s, list(words))
		return
	}
	if s != "" { // "" is handled as an absent key
		var err error
		if s, err = form(tag.Get("form"))(s); err != nil {
			t.report(key, "%v", err)
		}
	}
	*to = s
}

func (t table) number(key string, tag reflect.StructTag, to *int) {
	var least, most int64
	_, _ = fmt.Sscan(tag.Get("range"), &least, &most)
	if f, ok := t.values[key].(float64); ok {
		t.report(key, "%v is not a whole number; write one from %d to %d", f, least, most)
		return
	}
	n, ok := typed[int64](t, key, fmt.Sprintf("a number: %s = %d", key, *to))
	switch {
	case !ok:
	case n < least || n > most:
		t.report(key, "%d is out of range; write a number from %d to %d", n, least, most)
	default:
		*to = int(n)
	}
}

func (t table) duration(key string, tag reflect.StructTag, to *time.Duration) {
	s, ok := typed[string](t, key, fmt.Sprintf(`a duration in quotes, like %s = "90s" or "1h"`, key))
	if !ok {
		return
	}
	words := strings.Fields(cmp.Or(tag.Get("range"), "1s"))
	if len(words) == 1 {
		words = append(words, "36500d") // more than three times that is no duration
	}
	least, _ := parseDuration(words[0])
	most, _ := parseDuration(words[1])
	d, ok := parseDuration(s)
	switch {
	case !ok:
		t.report(key, `%q is not a duration; write a number and a unit, like "90s", "10m", "1h" or "90d"`, s)
	case d < least:
		t.report(key, "%s is too short; write %s or more", s, words[0])
	case d > most:
		t.report(key, "%s is too long; write %s or less", s, words[1])
	default:
		*to = d
	}
}

// parseDuration reads a duration as Go writes it, or a number of days.
func parseDuration(s string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 64); err == nil {
			return time.Duration(min(n, 100*366)) * 24 * time.Hour, true // longer ones are too long, too
		}
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}

// moment reads a point in time, or the beginning of a day in UTC: a date or time of TOML,
// or one in quotes.
func (t table) moment(key string, to *time.Time) {
	switch v := t.values[key].(type) {
	case nil:
		return
	case time.Time:
		*to = v.UTC()
		return
	case toml.LocalDate:
		*to = v.AsTime(time.UTC)
		return
	case string:
		for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
			if m, err := time.Parse(layout, v); err == nil {
				*to = m.UTC()
				return
			}
		}
	}
	t.report(key, `%v is not a date with an offset; write %s = "2026-01-31" or "2026-01-31T12:00:00Z"`, t.values[key], key)
}

// mostBytes bounds sizes, so that what is added to them or multiplied by little still fits.
const mostBytes = 1 << 60

// size reads a number of bytes, with or without a unit.
func (t table) size(key string, to *int64) {
	v, ok := t.values[key]
	if !ok {
		return
	}
	shift := 0
	n, isNumber := v.(int64)
	if s, isText := v.(string); isText {
		for i, unit := range []string{"KiB", "MiB", "GiB"} {
			if before, ok := strings.CutSuffix(s, unit); ok {
				s, shift = before, 10*(i+1)
			}
		}
		var err error
		n, err = strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		isNumber = err == nil
	}
	switch {
	case !isNumber || n < 1:
		t.report(key, `%v is not a size; write a number of bytes, or like "64 MiB"`, v)
	case n > mostBytes>>shift:
		t.report(key, `%v is too large; write "%d GiB" or less`, v, int64(mostBytes>>30))
	default:
		*to = n << shift
	}
}

// texts reads a list of strings, each of which check must accept.
func (t table) texts(key string, check func(string) (string, error)) []string {
	values, _ := typed[[]any](t, key, fmt.Sprintf(`a list: %s = ["...", "..."]`, key))
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
			t.report(key, "%q appears twice; write it once", s)
		default:
			all = append(all, s)
		}
	}
	return all
}

// textMap reads a table of strings with free keys: check gets each key with its value and
// returns the value to keep. It returns nil for an empty or absent table.
func (t table) textMap(key, example string, check func(word, text string) (string, error)) map[string]string {
	values, _ := typed[map[string]any](t, key, "a table: "+example)
	in := t.inside(key, values)
	var all map[string]string
	for _, word := range slices.Sorted(maps.Keys(values)) {
		text, ok := typed[string](in, word, "a string, as in "+example)
		if !ok {
			continue
		}
		text, err := check(word, text)
		if err != nil {
			in.report(word, "%v", err)
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[word] = text
	}
	return all
}

// table returns a table inside this one; an absent one is empty.
func (t table) table(key string) table {
	values, _ := typed[map[string]any](t, key, "a table: ["+join(t.path, key)+"]")
	return t.inside(key, values)
}

func (t table) inside(key string, values map[string]any) table {
	return table{doc: t.doc, path: join(t.path, key), label: t.called(key), values: values}
}

// tables returns an array of tables.
func (t table) tables(key, header string) []table {
	values, _ := typed[[]any](t, key, "a table with two brackets: [["+header+"]]")
	var all []table
	for i, v := range values {
		in := table{doc: t.doc, path: element(join(t.path, key), i), label: t.called(fmt.Sprintf("%s %d", key, i+1))}
		var ok bool
		if in.values, ok = v.(map[string]any); !ok {
			in.report("", "is %s; write a table: [[%s]]", typeName(v), header)
			continue
		}
		all = append(all, in)
	}
	return all
}

// environment is the only allowed form of a secret in the file.
var environment = pattern.Of(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)

// secret reads KEY = "${NAME}" or KEY_file = "path". Its problems never show the value.
func (t table) secret(key string) Secret {
	for _, k := range []string{key, key + "_file"} {
		if t.has(k) && t.empty(k) {
			t.report(k, `is empty; write %s = "${NAME}" or %s_file = "path", or leave it out`, key, key)
		}
	}
	text, _ := typed[string](t, key, "a string: "+key+` = "${NAME}"`)
	path, _ := typed[string](t, key+"_file", "a string: "+key+`_file = "path"`)
	switch {
	case text != "" && path != "":
		t.report(key, "is given beside %s_file; write one of the two", key)
	case text != "":
		if !environment().MatchString(text) {
			t.report(key, `must not stand in this file; write %s = "${NAME}" for an environment variable, or %s_file = "path"`, key, key)
			return Secret{}
		}
		secret, err := t.doc.orUnread(fromEnvironment(text))
		if err != nil {
			t.report(key, "%v", err)
		}
		return secret
	case path != "":
		secret, err := t.doc.orUnread(t.doc.secretFile(path))
		if err != nil {
			t.report(key+"_file", "%v", err)
		}
		return secret
	}
	return Secret{}
}

// fromEnvironment returns the value of the variable in "${NAME}". As that of a file, it may end
// with a line end: what gives secrets to containers often reads them from files.
func fromEnvironment(text string) (Secret, error) {
	name := environment().FindStringSubmatch(text)[1]
	secret := strings.TrimSpace(os.Getenv(name))
	if secret == "" {
		return Secret{}, fmt.Errorf("the environment variable %s is not set", name)
	}
	return Secret{secret}, nil
}

// errUnread: only the service has a credential, and none is needed here.
var errUnread = errors.New("not read")

// orUnread returns unread for a secret that cannot be read, where no secret is needed.
func (d *document) orUnread(s Secret, err error) (Secret, error) {
	if err != nil && d.withoutSecrets || errors.Is(err, errUnread) {
		return unread(), nil
	}
	return s, err
}

// unread is in the place of a secret that was not read. It has the form of a token.
func unread() Secret { return Secret{"unread-by-this-command"} }

// secretFile returns the secret in a file, and notes the file if others may read it.
func (d *document) secretFile(path string) (Secret, error) {
	file, err := d.secretPath(path)
	if err != nil {
		return Secret{}, err
	}
	secret, err := ReadSecret(file)
	if err == nil {
		d.noteExposed(file)
	}
	return secret, err
}

// ReadSecret returns the secret in a file: its only line, without white space around it, and
// without the byte order mark that some editors put before it.
func ReadSecret(file string) (Secret, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Secret{}, err
	}
	secret := strings.TrimSpace(strings.TrimPrefix(string(data), "\ufeff"))
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return Secret{}, fmt.Errorf("%s must hold one line, the secret", file)
	}
	return Secret{secret}, nil
}

// noteExposed notes a file with a secret if others may read it.
func (d *document) noteExposed(file string) {
	if st, err := os.Stat(file); err == nil && st.Mode().Perm()&0o077 != 0 && !slices.Contains(d.exposed, file) {
		d.exposed = append(d.exposed, file)
	}
}

// secretPath returns the path of the file of a secret. path is relative to the
// configuration, or credential:NAME, which systemd provides to the service.
func (d *document) secretPath(path string) (string, error) {
	name, ok := strings.CutPrefix(path, "credential:")
	if !ok {
		return d.path(path), nil
	}
	folder := os.Getenv("CREDENTIALS_DIRECTORY")
	switch {
	case name == "" || name != filepath.Base(name):
		return "", fmt.Errorf("%q is no credential; write credential: and the name that LoadCredential= gives it", path)
	case folder == "" && d.withoutCredentials:
		d.unread = append(d.unread, path)
		return "", errUnread
	case folder == "":
		return "", fmt.Errorf("there are no credentials of systemd ($CREDENTIALS_DIRECTORY is not set); write LoadCredential=%s:/path into the unit, or the path of a file here", name)
	}
	return filepath.Join(folder, name), nil
}

// defaults returns a struct with the default values of its tags.
func defaults[T any]() T {
	var to T
	table{doc: &document{}, values: defaultValues(reflect.TypeFor[T]())}.decode(&to)
	return to
}

// defaultValues returns the defaults of a struct's keys, and of the tables in it, as the
// file would have them.
func defaultValues(t reflect.Type) map[string]any {
	values := map[string]any{}
	for f := range t.Fields() {
		key, text := f.Tag.Get("toml"), f.Tag.Get("default")
		switch {
		case text != "" && f.Type.Kind() == reflect.Int:
			n, _ := strconv.ParseInt(text, 10, 64)
			values[key] = n
		case f.Type.Kind() == reflect.Bool && text != "":
			values[key] = text == "true"
		case text != "":
			values[key] = text
		case key != "" && f.Type.Kind() == reflect.Struct:
			if inside := defaultValues(f.Type); len(inside) > 0 {
				values[key] = inside
			}
		}
	}
	return values
}

// keysOf returns the keys of structs.
func keysOf(structs ...any) map[string]bool {
	keys := map[string]bool{}
	for _, s := range structs {
		for f := range reflect.Indirect(reflect.ValueOf(s)).Type().Fields() {
			if key := f.Tag.Get("toml"); key != "" {
				keys[key] = true
				if f.Type == reflect.TypeFor[Secret]() {
					keys[key+"_file"] = true
				}
			}
		}
	}
	return keys
}

// among returns those of keys that the table has.
func (t table) among(keys string) []string {
	return slices.DeleteFunc(strings.Fields(keys), func(key string) bool { return !t.has(key) })
}

// formerKeys returns removed keys with what to write instead.
func formerKeys() map[string]string {
	return map[string]string{
		"guard_wait":      "is called hold_deletions now; write that",
		"hello":           "is called helo now; write that",
		"into":            "is called import_accepted_to now; write that",
		"resend_in_doubt": "is no longer a key: bridge never repeats a submission in doubt by itself; remove the key, and enter the ingest server's answer with bridge submission settle",
	}
}

// reportUnknown reports the keys of the table that are not in known.
func (t table) reportUnknown(known map[string]bool) {
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if known[key] {
			continue
		}
		if text := formerKeys()[key]; text != "" {
			t.report(key, "%s", text)
		} else if header := headerOf(key); header != "" {
			t.report(key, "does not belong here; write it %s", header)
		} else {
			t.report(key, "there is no such key; the nearest is %q", nearest(key, known))
		}
	}
}

// headerOf returns the header of the table in which a key belongs, "" when there is no such
// key.
func headerOf(key string) string {
	for _, place := range []struct {
		header string
		keys   map[string]bool
	}{
		{"before the first [[set]]", keysOf(Config{})},
		{"under [[set]]", keysOf(Set{})},
		{"under a [[set.source]] that is harvested", keysOf(Source{})},
		{`under a [[set.source]] of kind "sip"`, keysOf(SIP{}, Access{})},
		{"under [[set.submit]]", keysOf(Target{})},
		{"under [store]", keysOf(Store{})},
		{"under [mail]", keysOf(Mail{})},
		{"under [[alert]]", keysOf(Alert{})},
		{"under [snapshot]", keysOf(Snapshot{})},
		{"under [limits]", keysOf(Limits{})},
	} {
		if place.keys[key] {
			return place.header
		}
	}
	return ""
}

// nearest returns the word of known with the smallest edit distance from key.
func nearest(key string, known map[string]bool) string {
	return slices.MinFunc(slices.Sorted(maps.Keys(known)), func(a, b string) int { return distance(key, a) - distance(key, b) })
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
