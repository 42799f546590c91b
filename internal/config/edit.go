package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Edit changes the files of a configuration as a person would: it changes only the lines
// concerned, and all comments, the order and the rest stay byte for byte. Its methods
// collect changes, Save writes all or none of them, and Undo reverts what Save wrote. While
// an Edit is open, another one of the same configuration waits. Use it from one goroutine.
type Edit struct {
	path    string // of the main file, symbolic links resolved
	flags   Flags
	locks   []*os.File
	config  *Config
	files   []table // the main one first
	sets    []place // in the order of the configuration
	byName  map[string]place
	changes []change // of all files, relative to the texts that were read
	effects []func(to, loaded *Config) error
	written []written
}

// change replaces a part of a file.
type change struct {
	file int
	span
	text string
}

// written is a file that Save has replaced.
type written struct {
	file     string
	old, new []byte
}

// ByHandError means that a file cannot be changed, so that a person has to do it.
type ByHandError struct {
	Err error
	// Do describes what to write, and where, in several lines. It may contain secrets from
	// the arguments of a command.
	Do string
}

// Error returns the reason.
func (e *ByHandError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ByHandError) Unwrap() error { return e.Err }

// Setting is a key with its value, a string, []string, bool or int.
type Setting struct {
	Key   string
	Value any
}

// Addition is a Source that Add adds.
type Addition struct {
	// Set is the set's name, and New its other keys if there is no such set yet.
	Set string
	New []Setting
	// Source has the keys of the Source, url among them.
	Source []Setting
}

// NewEdit reads a configuration as LoadWith does, to change it. It waits while another
// process changes it, until ctx ends. The caller closes the Edit.
func NewEdit(ctx context.Context, path string, flags Flags) (*Edit, error) {
	if _, err := LoadWith(path, flags); err != nil { // it has the best error messages
		return nil, err
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	lock, err := lockConfig(ctx, target)
	if err != nil {
		return nil, err
	}
	e := &Edit{path: path, flags: flags, locks: []*os.File{lock}}
	if e.config, e.files, err = loadFrom(path, flags, os.ReadFile); err != nil {
		e.Close()
		return nil, err
	}
	e.path = target
	e.findSets()
	return e, nil
}

// Close ends the Edit, so that others can change the configuration.
func (e *Edit) Close() {
	for _, f := range e.locks {
		_ = f.Close()
	}
	e.locks = nil
}

// Config returns the configuration as it was read.
func (e *Edit) Config() *Config { return e.config }

// place is a set in a file.
type place struct {
	file int
	path string // set[0], for example
	in   map[string]any
}

// findSets finds the places of the sets, in the order of Config.Sets.
func (e *Edit) findSets() {
	e.byName = map[string]place{}
	for i, file := range e.files {
		list, _ := file.values["set"].([]any)
		for n, set := range list {
			in, _ := set.(map[string]any)
			p := place{i, element("set", n), in}
			name, _ := in["name"].(string)
			e.sets, e.byName[name] = append(e.sets, p), p
		}
	}
}

// set returns the place of a set.
func (e *Edit) set(name string) (place, error) {
	p, ok := e.byName[name]
	if !ok {
		return place{}, fmt.Errorf("%s has no set %q", e.config.File, name)
	}
	return p, nil
}

// has reports whether the text of a file has a header with the path.
func (l *layout) has(path string) bool {
	return slices.ContainsFunc(l.blocks, func(b block) bool { return b.path == path })
}

// inside reports whether a path is that of a table, or of something in it.
func inside(path, table string) bool {
	rest, ok := strings.CutPrefix(path, table)
	return ok && (rest == "" || rest[0] == '.')
}

// Add adds Sources, each at the end of its set, and new sets at the end of the main file.
// The error is a ByHandError when a set is written in a form to which no Source can be
// added.
func (e *Edit) Add(all ...Addition) error {
	fresh := map[string]*strings.Builder{} // text of new sets
	texts := map[string]*strings.Builder{} // text to add to existing sets
	var order []string
	counts := map[string]int{}
	for _, a := range all {
		counts[a.Set]++
		_, err := e.set(a.Set)
		if err == nil && texts[a.Set] == nil {
			texts[a.Set] = &strings.Builder{}
			order = append(order, a.Set)
		}
		if err != nil && fresh[a.Set] == nil {
			b := &strings.Builder{}
			fresh[a.Set] = b
			order = append(order, a.Set)
			b.WriteString("[[set]]\n")
			writeSettings(b, append([]Setting{{"name", a.Set}}, a.New...))
		}
		b := cmp.Or(texts[a.Set], fresh[a.Set])
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString("[[set.source]]\n")
		writeSettings(b, a.Source)
	}
	sets := &strings.Builder{}
	for _, name := range order {
		if b := fresh[name]; b != nil {
			if sets.Len() > 0 {
				sets.WriteString("\n")
			}
			sets.WriteString(b.String())
			continue
		}
		p, _ := e.set(name)
		doc := e.files[p.file].doc
		if !doc.has(p.path) || p.in["source"] != nil && !doc.has(p.path+".source[0]") {
			return &ByHandError{fmt.Errorf("set %q is written on one line, in %s:%d, and cannot be added to", name, doc.file, doc.line(p.path)), "write into it what these lines say:\n\n" + texts[name].String()}
		}
		at := 0
		for _, b := range doc.blocks {
			if inside(b.path, p.path) {
				at = b.to
			}
		}
		e.changes = append(e.changes, change{p.file, span{at, at}, doc.insertion(at, texts[name].String())})
	}
	main := e.files[0]
	if sets.Len() > 0 {
		if main.has("set") && !main.doc.has("set[0]") {
			return &ByHandError{fmt.Errorf("the sets of %s are written in one list, in line %d, and none can be added", main.doc.file, main.doc.line("set")), "write into it what these lines say:\n\n" + sets.String()}
		}
		at := len(main.doc.data)
		e.changes = append(e.changes, change{0, span{at, at}, main.doc.insertion(at, sets.String())})
	}
	e.effects = append(e.effects, func(to, loaded *Config) error {
		for _, name := range order {
			i := slices.IndexFunc(loaded.Sets, func(s Set) bool { return s.Name == name })
			if i < 0 || i > len(to.Sets) && fresh[name] != nil || to.Set(name) == nil && fresh[name] == nil {
				return fmt.Errorf("set %q is not where it was written", name)
			}
			is := loaded.Sets[i]
			n := len(is.Sources) - counts[name]
			switch {
			case n < 0:
				return fmt.Errorf("set %q lacks a Source", name)
			case fresh[name] != nil:
				to.Sets = slices.Insert(to.Sets, i, is)
			case fresh[name] == nil:
				was := to.Set(name)
				was.Sources = append(was.Sources, is.Sources[n:]...)
			}
		}
		return nil
	})
	return nil
}

// writeSettings writes a line for each key.
func writeSettings(b *strings.Builder, settings []Setting) {
	for _, s := range settings {
		fmt.Fprintf(b, "%s = %s\n", s.Key, tomlValue(s.Value))
	}
}

// tomlValue returns a value in TOML syntax.
func tomlValue(value any) string {
	switch v := value.(type) {
	case []string:
		words := make([]string, len(v))
		for i, s := range v {
			words[i] = tomlValue(s)
		}
		return "[" + strings.Join(words, ", ") + "]"
	case string:
		var b strings.Builder
		b.WriteByte('"')
		for _, r := range v {
			switch {
			case r == '"' || r == '\\':
				b.WriteByte('\\')
				b.WriteRune(r)
			case r < ' ' || r == 0x7f || r == utf8.RuneError:
				fmt.Fprintf(&b, "\\u%04X", r)
			default:
				b.WriteRune(r)
			}
		}
		return b.String() + `"`
	}
	return fmt.Sprint(value)
}

// RemoveSource removes a Source from a set: its table, with the comment that belongs to it. url
// is that of Config.
func (e *Edit) RemoveSource(set, url string) error {
	p, err := e.set(set)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(e.config.Set(set).Sources, func(s Source) bool { return s.URL == url })
	if n < 0 {
		return fmt.Errorf("set %q has no Source %s", set, redact(url))
	}
	if err := e.remove(p.file, element(p.path+".source", n), fmt.Sprintf("Source %d of set %q", n+1, set)); err != nil {
		return err
	}
	e.effects = append(e.effects, func(to, _ *Config) error {
		s := to.Set(set)
		if s == nil {
			return nil
		}
		s.Sources = slices.DeleteFunc(s.Sources, func(s Source) bool { return s.URL == url })
		if len(s.Sources) == 0 {
			s.Sources = nil
		}
		return nil
	})
	return nil
}

// RemoveSet removes a set with all its tables.
func (e *Edit) RemoveSet(name string) error {
	p, err := e.set(name)
	if err != nil {
		return err
	}
	if err := e.remove(p.file, p.path, fmt.Sprintf("set %q", name)); err != nil {
		return err
	}
	e.effects = append(e.effects, func(to, _ *Config) error {
		to.Sets = slices.DeleteFunc(to.Sets, func(s Set) bool { return s.Name == name })
		if len(to.Sets) == 0 {
			to.Sets = nil
		}
		return nil
	})
	return nil
}

// remove removes a table and the tables in it.
func (e *Edit) remove(file int, path, what string) error {
	doc := e.files[file].doc
	if !doc.has(path) {
		return &ByHandError{fmt.Errorf("%s is written on one line, in %s:%d, and cannot be taken out of it", what, doc.file, doc.line(path)), "take it out of that line by hand"}
	}
	for _, s := range doc.removals(func(at string) bool { return inside(at, path) }) {
		e.changes = append(e.changes, change{file: file, span: s})
	}
	return nil
}

// RenameSet gives a set another name, also where the configuration refers to it.
func (e *Edit) RenameSet(name, newName string) error {
	if !setName().MatchString(newName) {
		return fmt.Errorf("%q is not a name of a set; write 1 to 63 of a-z, 0-9 and -, not beginning with -", newName)
	}
	if _, err := e.set(newName); err == nil {
		return fmt.Errorf("there is another set %q; give each its own name", newName)
	}
	p, err := e.set(name)
	if err != nil {
		return err
	}
	renamed := func(file int, path, to string) {
		if at, ok := e.files[file].doc.texts[path]; ok {
			e.changes = append(e.changes, change{file, at, tomlValue(to)})
		}
	}
	renamed(p.file, p.path+".name", newName)
	for _, p := range e.sets {
		submit, _ := p.in["submit"].([]any)
		for i, target := range submit {
			if t, _ := target.(map[string]any); t["import_accepted_to"] == name {
				renamed(p.file, element(p.path+".submit", i)+".import_accepted_to", newName)
			}
		}
		sources, _ := p.in["source"].([]any)
		for i, source := range sources {
			switch s, _ := source.(map[string]any); {
			case s["url"] == memberURL+name:
				renamed(p.file, element(p.path+".source", i)+".url", memberURL+newName)
			case s["kind"] == KindSet && s["url"] == name:
				renamed(p.file, element(p.path+".source", i)+".url", newName)
			}
		}
	}
	e.effects = append(e.effects, func(to, _ *Config) error {
		*to = *to.Renamed(name, newName)
		return nil
	})
	return nil
}

// Places returns the places of the changes after Save, as file and line.
func (e *Edit) Places() (all []string) {
	shift, file := 0, 0
	for _, c := range e.sorted() {
		if c.file != file {
			shift, file = 0, c.file
		}
		doc := e.files[c.file].doc
		blank := c.text[:len(c.text)-len(strings.TrimLeft(c.text, "\r\n"))]
		all = append(all, fmt.Sprintf("%s:%d", doc.file, doc.lineAt(c.from)+shift+strings.Count(blank, "\n")))
		shift += strings.Count(c.text, "\n") - bytes.Count(doc.data[c.from:c.to], []byte("\n"))
	}
	return all
}

// sorted returns the changes in the order of the files, and of their places there.
func (e *Edit) sorted() []change {
	return slices.SortedStableFunc(slices.Values(e.changes), func(a, b change) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.from, b.from))
	})
}

// texts returns the new texts of the files, by the number of the file.
func (e *Edit) texts() (map[int][]byte, error) {
	all, last := map[int][]byte{}, map[int]int{}
	for _, c := range e.sorted() {
		data := e.files[c.file].doc.data
		if c.from < last[c.file] {
			return nil, errors.New("two of the changes concern the same lines")
		}
		all[c.file] = append(append(all[c.file], data[last[c.file]:c.from]...), c.text...)
		last[c.file] = c.to
	}
	for file := range all {
		all[file] = append(all[file], e.files[file].doc.data[last[file]:]...)
	}
	return all, nil
}

// reader returns a function that reads files: the configuration's as they were read, or as
// texts has them.
func (e *Edit) reader(texts map[int][]byte) func(string) ([]byte, error) {
	return func(file string) ([]byte, error) {
		for i, f := range e.files {
			if f.doc.file != file && (i > 0 || e.config.File != file) {
				continue
			}
			if text, changed := texts[i]; changed {
				return text, nil
			}
			return f.doc.data, nil
		}
		return os.ReadFile(file)
	}
}

// Check returns the configuration after the changes. It must differ from the present one
// only by them: the error is an *Error, or a ByHandError when something else would change
// too. Nothing is written.
func (e *Edit) Check() (*Config, error) {
	texts, err := e.texts()
	if err != nil {
		return nil, err
	}
	c, err := e.check(texts)
	if err == nil || errors.As(err, new(*Error)) {
		return c, err
	}
	return nil, &ByHandError{fmt.Errorf("the files are written in a way that bridge does not change safely (%w)", err), e.ByHand()}
}

func (e *Edit) check(texts map[int][]byte) (*Config, error) {
	loaded, _, err := loadFrom(e.config.File, e.flags, e.reader(texts))
	if err != nil {
		return nil, fmt.Errorf("nothing has changed, since the configuration would be wrong:\n%w", err)
	}
	want, _, err := loadFrom(e.config.File, e.flags, e.reader(nil)) // e.config must not be modified
	if err != nil {
		return nil, err
	}
	for _, effect := range e.effects {
		if err := effect(want, loaded); err != nil {
			return nil, err
		}
	}
	is := *loaded
	is.exposed, want.exposed = nil, nil
	if !reflect.DeepEqual(&is, want) {
		return nil, errors.New("the change would have changed something else too")
	}
	return loaded, nil
}

// Save writes the changes and returns the new configuration. If that would have a problem,
// nothing is written, and the error names it; if a file cannot be written, the error is a
// ByHandError. Each file is replaced as a whole: a crash leaves the old one or the new one.
func (e *Edit) Save() (*Config, error) {
	c, err := e.Check()
	if err != nil {
		return nil, err
	}
	texts, err := e.texts()
	if err != nil {
		return nil, err
	}
	for i := range e.files {
		text, changed := texts[i]
		if !changed {
			continue
		}
		file, err := filepath.EvalSymlinks(e.files[i].doc.file)
		if i == 0 {
			file, err = e.path, nil
		}
		if err == nil {
			err = e.replace(file, e.files[i].doc.data, text, i == 0)
		}
		if err != nil {
			return nil, &ByHandError{errors.Join(fmt.Errorf("cannot write %s: %w", e.files[i].doc.file, err), e.Undo()), e.ByHand()}
		}
		e.written = append(e.written, written{file, e.files[i].doc.data, text})
	}
	return c, nil
}

// Undo reverts what Save wrote, unless a file was changed since.
func (e *Edit) Undo() error {
	var err error
	for _, w := range e.written {
		if failed := e.replace(w.file, w.new, w.old, w.file == e.path); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s keeps the change: %w", w.file, failed))
		}
	}
	e.written = nil
	return err
}

// ByHand describes, in several lines, how a person makes the changes.
func (e *Edit) ByHand() string {
	var b strings.Builder
	for _, c := range e.sorted() {
		doc := e.files[c.file].doc
		line := doc.lineAt(c.from)
		switch was := string(doc.data[c.from:c.to]); {
		case c.from == c.to && c.from == len(doc.data):
			fmt.Fprintf(&b, "add at the end of %s:\n\n%s\n", doc.file, strings.TrimSpace(c.text))
		case c.from == c.to:
			fmt.Fprintf(&b, "add in %s after line %d:\n\n%s\n", doc.file, line-1, strings.TrimSpace(c.text))
		case c.text == "":
			from := c.from + len(was) - len(strings.TrimLeft(was, " \t\r\n"))
			fmt.Fprintf(&b, "remove from %s the lines %d to %d\n", doc.file, doc.lineAt(from), doc.lineAt(max(from, c.to-1)))
		default:
			fmt.Fprintf(&b, "write in %s, line %d, %s instead of %s\n", doc.file, line, c.text, was)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
