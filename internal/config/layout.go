package config

import (
	"bytes"
	"sort"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// layout has the places of keys, tables and strings in a TOML text. A path is that of a key
// or a table, like set[0].source[1].url.
type layout struct {
	data     []byte
	newlines []int           // places of the line feeds
	keys     map[string]int  // places of keys and headers, by path
	texts    map[string]span // strings with their quotes, by path
	blocks   []block         // in the order of the text
}

// span is a part of a text: the bytes from from up to, but not including, to.
type span struct{ from, to int }

// block is a table in whole lines: from the comment that belongs to its header to its last
// key, and the comment right below; a table that is commented out is not part of it.
type block struct {
	path string // "" of the keys before the first header
	span
	header int // where the line of the header begins
}

// layoutOf returns the layout of a text that the decoder has accepted, so no error is
// possible.
func layoutOf(data []byte) layout {
	l := layout{data: data, keys: map[string]int{}, texts: map[string]span{}, blocks: []block{{}}}
	for i, c := range data {
		if c == '\n' {
			l.newlines = append(l.newlines, i)
		}
	}
	var p unstable.Parser
	p.Reset(data)
	tables := map[string]int{} // elements of each array of tables so far
	prefix := ""
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.KeyValue {
			l.addValue(prefix, e)
			l.blocks[len(l.blocks)-1].to = l.lineEnd(int(e.Raw.Offset + e.Raw.Length))
			continue
		}
		prefix = ""
		at := 0
		for key := e.Key(); key.Next(); {
			prefix = join(prefix, string(key.Node().Data))
			if e.Kind == unstable.ArrayTable && key.IsLast() {
				tables[prefix]++
			}
			if n := tables[prefix]; n > 0 {
				prefix = element(prefix, n-1)
			}
			at = int(key.Node().Raw.Offset)
			if _, known := l.keys[prefix]; !known {
				l.keys[prefix] = at
			}
		}
		start := l.lineStart(at)
		l.blocks = append(l.blocks, block{path: prefix, span: span{start, l.lineEnd(at)}, header: start})
	}
	l.addComments()
	return l
}

func (l *layout) addValue(prefix string, e *unstable.Node) {
	path, at := prefix, 0
	for key := e.Key(); key.Next(); {
		path, at = join(path, string(key.Node().Data)), int(key.Node().Raw.Offset)
		l.keys[path] = at
	}
	l.addInside(path, at, e.Value())
}

// addInside adds strings, and the keys of inline tables, in arrays too.
func (l *layout) addInside(path string, at int, value *unstable.Node) {
	if value.Kind == unstable.String {
		l.texts[path] = span{int(value.Raw.Offset), int(value.Raw.Offset + value.Raw.Length)}
	}
	i := 0
	for children := value.Children(); children.Next(); {
		switch n := children.Node(); {
		case value.Kind == unstable.InlineTable:
			l.addValue(path, n)
		case value.Kind == unstable.Array && n.Kind != unstable.Comment:
			l.keys[element(path, i)] = at
			l.addInside(element(path, i), at, n)
			i++
		}
	}
}

// commentedOut matches a comment that is not prose: an empty one, a key or a header.
var commentedOut = pattern.Of(`^[ \t]*#[# \t]*(\r?\n?$|\[|["'A-Za-z0-9_.-]+[ \t]*=)`)

// headerOut matches a header that is commented out: it begins a table that somebody may
// want to restore.
var headerOut = pattern.Of(`^[ \t]*#[# \t]*\[`)

// addComments adds to each block the comments that belong to it. Only comments and empty
// lines are between two blocks.
func (l *layout) addComments() {
	comment := func(line []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(line, " \t"), []byte("#")) }
	for i := range l.blocks {
		end := len(l.data) // end of what may belong to this block
		if i+1 < len(l.blocks) {
			next := &l.blocks[i+1]
			for end = next.header; end > l.blocks[i].to; {
				above := l.lineStart(end - 1)
				if line := l.data[above:end]; !comment(line) || commentedOut().Match(line) {
					break
				}
				end = above
			}
			next.from = end
		}
		for b := &l.blocks[i]; b.to < end; {
			below := l.lineEnd(b.to)
			if line := l.data[b.to:below]; !comment(line) || headerOut().Match(line) {
				break
			}
			b.to = below
		}
	}
}

// line returns the line of a path, 0 when it is not there.
func (l *layout) line(path string) int {
	at, ok := l.keys[path]
	if !ok {
		return 0
	}
	return l.lineAt(at)
}

// lineAt returns the line of a place, from 1 on.
func (l *layout) lineAt(place int) int { return 1 + sort.SearchInts(l.newlines, place) }

// lineStart returns where the line of a place begins.
func (l *layout) lineStart(place int) int {
	if n := sort.SearchInts(l.newlines, place); n > 0 {
		return l.newlines[n-1] + 1
	}
	return 0
}

// lineEnd returns where the line after that of a place begins.
func (l *layout) lineEnd(place int) int {
	if n := sort.SearchInts(l.newlines, place); n < len(l.newlines) {
		return l.newlines[n] + 1
	}
	return len(l.data)
}

// blank reports whether a line is empty or only white space; no line at all is not blank.
func (l *layout) blank(from, to int) bool {
	return from < to && len(bytes.TrimSpace(l.data[from:to])) == 0
}

// newline returns the line end that the text uses.
func (l *layout) newline() string {
	if len(l.newlines) > 0 && l.newlines[0] > 0 && l.data[l.newlines[0]-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// insertion returns a text of lines as it stands behind an empty line at a place, which is the
// end of a line, and written as other lines are.
func (l *layout) insertion(place int, lines string) string {
	if place > 0 {
		lines = "\n" + lines
	}
	if place == len(l.data) && place > 0 && l.data[place-1] != '\n' { // an unfinished line stays the last one
		lines = "\n" + lines[:len(lines)-1]
	}
	return string(bytes.ReplaceAll([]byte(lines), []byte("\n"), []byte(l.newline())))
}

// removals returns the spans to remove for the blocks for which gone is true: runs of them
// with the text between, and the empty line above, which insertion writes.
func (l *layout) removals(gone func(path string) bool) (all []span) {
	for i := 0; i < len(l.blocks); i++ {
		if !gone(l.blocks[i].path) {
			continue
		}
		s := l.blocks[i].span
		for i+1 < len(l.blocks) && gone(l.blocks[i+1].path) {
			i++
			s.to = l.blocks[i].to
		}
		switch above := l.lineStart(max(s.from-1, 0)); {
		case l.blank(above, s.from):
			s.from = above
		case s.from == 0 && l.blank(s.to, l.lineEnd(s.to)):
			s.to = l.lineEnd(s.to)
		}
		if s.to == len(l.data) && s.from > 0 && l.data[s.to-1] != '\n' { // so that the text ends without a line end as before
			s.from--
			if s.from > 0 && l.data[s.from-1] == '\r' {
				s.from--
			}
		}
		all = append(all, s)
	}
	return all
}
