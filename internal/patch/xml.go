package patch

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pmh-bridge/bridge/internal/pattern"
)

// maxNodes bounds the elements, texts, comments and instructions of a document.
const maxNodes = 100_000

// maxSelector bounds the length of a selector in bytes: a step of it may search the whole
// document.
const maxSelector = 1000

// node is a piece of an XML document, with its place in the bytes.
type node struct {
	kind       nodeKind
	name       xml.Name // of an element; Local of an instruction is its target
	start, end int      // of the whole node
	// For an element: the content between its tags. from is 0 if it closes itself.
	from, to int
	attrs    []attr
	text     []byte // of a text, with its references resolved
	children []*node
}

type nodeKind uint8

const (
	documentNode nodeKind = iota
	elementNode
	textNode
	commentNode
	instructionNode
)

// attr is an attribute of an element. Its place begins with the space before it.
type attr struct {
	name               xml.Name
	value              string
	start, end         int
	valueFrom, valueTo int
	declares           string // the prefix that it declares
	isDeclaration      bool
}

// parseXML parses a document into a tree. It accepts only UTF-8, and only the five
// predefined entities of XML.
func parseXML(doc []byte) (*node, error) {
	d := xml.NewDecoder(bytes.NewReader(doc))
	top := &node{end: len(doc), to: len(doc)}
	open := []*node{top}
	nodes := 0
	for {
		start := int(d.InputOffset())
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			if len(open) > 1 {
				return nil, io.ErrUnexpectedEOF
			}
			return top, nil
		}
		if err != nil {
			return nil, err
		}
		end := int(d.InputOffset())
		parent := open[len(open)-1]
		var n *node
		switch t := token.(type) {
		case xml.StartElement:
			n = &node{kind: elementNode, name: t.Name, start: start, end: end, from: end, to: end}
			if doc[end-2] == '/' {
				n.from, n.to = 0, 0
			}
			if n.attrs, err = attributes(doc, start, end, t.Attr); err != nil {
				return nil, err
			}
			if open = append(open, n); len(open) > maxDepth {
				return nil, errTooMuch
			}
		case xml.EndElement:
			if parent.from != 0 {
				parent.to = start
			}
			parent.end = end
			open = open[:len(open)-1]
			continue
		case xml.CharData:
			if k := len(parent.children); k > 0 && parent.children[k-1].kind == textNode && parent.children[k-1].end == start {
				parent.children[k-1].end, parent.children[k-1].text = end, append(parent.children[k-1].text, t...)
				continue
			}
			n = &node{kind: textNode, start: start, end: end, text: bytes.Clone(t)}
		case xml.Comment:
			n = &node{kind: commentNode, start: start, end: end}
		case xml.ProcInst:
			n = &node{kind: instructionNode, name: xml.Name{Local: t.Target}, start: start, end: end}
		default:
			continue
		}
		if nodes++; nodes > maxNodes {
			return nil, errTooMuch
		}
		parent.children = append(parent.children, n)
	}
}

// attributePattern matches one attribute in a start tag that has been parsed already.
var attributePattern = pattern.Of(`[ \t\r\n]+([^ \t\r\n=/>]+)[ \t\r\n]*=[ \t\r\n]*("[^"]*"|'[^']*')`)

// attributes finds the places of the attributes of a start tag.
func attributes(doc []byte, start, end int, parsed []xml.Attr) ([]attr, error) {
	places := attributePattern().FindAllSubmatchIndex(doc[start:end], -1)
	if len(places) != len(parsed) {
		return nil, errors.New("a start tag that cannot be read")
	}
	out := make([]attr, len(places))
	for i, p := range places {
		out[i] = attr{name: parsed[i].Name, value: parsed[i].Value, start: start + p[0], end: start + p[1], valueFrom: start + p[4] + 1, valueTo: start + p[5] - 1}
		switch name := string(doc[start+p[2] : start+p[3]]); {
		case name == "xmlns":
			out[i].isDeclaration = true
		case strings.HasPrefix(name, "xmlns:"):
			out[i].isDeclaration, out[i].declares = true, name[len("xmlns:"):]
		}
	}
	return out, nil
}

// stringValue is the string-value of XPath: all text in the node.
func (n *node) stringValue() string {
	if n.kind == textNode {
		return string(n.text)
	}
	var b strings.Builder
	n.writeText(&b)
	return b.String()
}

func (n *node) writeText(b *strings.Builder) {
	for _, c := range n.children {
		b.Write(c.text)
		c.writeText(b)
	}
}

func (n *node) attr(local string) string {
	for i := range n.attrs {
		if n.attrs[i].name.Space == "" && n.attrs[i].name.Local == local {
			return n.attrs[i].value
		}
	}
	return ""
}

// applyXML applies the operations of an XML Patch one after the other, each to the result
// of the one before (RFC 5261 4). It changes only the bytes that an operation names.
func applyXML(base, description []byte) ([]byte, error) {
	top, err := parseXML(description)
	if err != nil {
		return nil, fmt.Errorf("XML Patch: %w", err)
	}
	var root *node
	for _, n := range top.children {
		if n.kind == elementNode {
			root = n
		}
	}
	if root == nil {
		return nil, errors.New("XML Patch: it has no element")
	}
	prefixes := root.declared(map[string]string{"xml": "http://www.w3.org/XML/1998/namespace"})
	doc, work := base, 0
	for _, n := range root.children {
		if n.kind != elementNode {
			continue
		}
		if work += len(doc)*(1+strings.Count(n.attr("sel"), "=")) + n.end - n.start + root.from - root.start; work > maxXMLWork || len(doc) > MaxBase {
			return nil, errTooMuch
		}
		op := operation{node: n, description: description, prefixes: n.declared(prefixes)}
		if doc, err = op.apply(doc); err != nil {
			return nil, fmt.Errorf("XML Patch, %s of %q: %w", n.name.Local, n.attr("sel"), err)
		}
	}
	return doc, nil
}

// declared returns the prefixes in the scope of an element, of those around it.
func (n *node) declared(around map[string]string) map[string]string {
	if !slices.ContainsFunc(n.attrs, func(a attr) bool { return a.isDeclaration }) {
		return around
	}
	in := maps.Clone(around)
	for i := range n.attrs {
		if a := &n.attrs[i]; a.isDeclaration {
			in[a.declares] = a.value
		}
	}
	return in
}

// operation is one add, replace or remove.
type operation struct {
	*node
	description []byte
	prefixes    map[string]string // in the scope of its sel
}

// content returns the content of the operation, as it is written.
func (o *operation) content() []byte { return o.description[o.from:o.to] }

// apply returns the document after the operation.
func (o *operation) apply(doc []byte) ([]byte, error) {
	top, err := parseXML(doc)
	if err != nil {
		return nil, err
	}
	at, attribute, err := o.locate(top, o.attr("sel"))
	if err != nil {
		return nil, err
	}
	splice := func(from, to int, with ...string) ([]byte, error) {
		return append(append(append(make([]byte, 0, len(doc)+len(o.content())+64), doc[:from]...), strings.Join(with, "")...), doc[to:]...), nil
	}
	switch o.name.Local {
	case "add":
		return o.add(doc, at, attribute, splice)
	case "replace":
		switch {
		case attribute != nil:
			return splice(attribute.valueFrom, attribute.valueTo, quoted(o.content(), doc[attribute.valueTo]))
		case at.kind == textNode:
			return splice(at.start, at.end, string(o.content()))
		}
		return splice(at.start, at.end, strings.TrimSpace(string(o.content())))
	case "remove":
		if attribute != nil {
			return splice(attribute.start, attribute.end)
		}
		from, to := at.start, at.end
		if ws := o.attr("ws"); ws == "before" || ws == "both" {
			if from, err = space(top, at, -1); err != nil {
				return nil, err
			}
		}
		if ws := o.attr("ws"); ws == "after" || ws == "both" {
			if to, err = space(top, at, 1); err != nil {
				return nil, err
			}
		}
		return splice(from, to)
	}
	return nil, errors.New("it is no add, replace or remove")
}

func (o *operation) add(doc []byte, at *node, attribute *attr, splice func(from, to int, with ...string) ([]byte, error)) ([]byte, error) {
	content := string(o.content())
	switch kind, pos := o.attr("type"), o.attr("pos"); {
	case attribute != nil:
		return nil, errors.New("nothing is added to an attribute")
	case kind != "":
		name, ok := strings.CutPrefix(kind, "@")
		if prefix, is := strings.CutPrefix(kind, "namespace::"); is {
			name, ok = "xmlns:"+prefix, true
		}
		if !ok || at.kind != elementNode {
			return nil, fmt.Errorf("type %q adds nothing", kind)
		}
		after := tagNameEnd(doc, at)
		if n := len(at.attrs); n > 0 {
			after = at.attrs[n-1].end
		}
		return splice(after, after, " ", name, `="`, quoted([]byte(content), '"'), `"`)
	case pos == "before":
		return splice(at.start, at.start, content)
	case pos == "after":
		return splice(at.end, at.end, content)
	case at.kind != elementNode || pos != "" && pos != "prepend":
		return nil, errors.New("nothing can be added there")
	case at.from == 0: // <a/>
		slash := bytes.LastIndexByte(doc[at.start:at.end], '/') + at.start
		return splice(slash, at.end, ">", content, "</", string(doc[at.start+1:tagNameEnd(doc, at)]), ">")
	case pos == "prepend":
		return splice(at.from, at.from, content)
	}
	return splice(at.to, at.to, content)
}

// tagNameEnd returns where the name in a start tag ends.
func tagNameEnd(doc []byte, n *node) int {
	return n.start + bytes.IndexAny(doc[n.start:n.end], " \t\r\n/>")
}

// quoted returns text as the value of an attribute between these quotes.
func quoted(text []byte, quote byte) string {
	if quote == '\'' {
		return strings.ReplaceAll(string(text), "'", "&apos;")
	}
	return strings.ReplaceAll(string(text), `"`, "&quot;")
}

// space returns where the white space before or after a node begins or ends. It is removed
// with the node.
func space(top, at *node, side int) (int, error) {
	parent := parentOf(top, at)
	for i, c := range parent.children {
		if c != at {
			continue
		}
		if i += side; i < 0 || i >= len(parent.children) || parent.children[i].kind != textNode || len(bytes.Trim(parent.children[i].text, " \t\r\n")) != 0 {
			return 0, errors.New("there is no white space beside it")
		}
		if side < 0 {
			return parent.children[i].start, nil
		}
		return parent.children[i].end, nil
	}
	return 0, errors.New("there is no white space beside it")
}

func parentOf(in, of *node) *node {
	for in.start <= of.start {
		var next *node
		for _, c := range in.children {
			if c == of {
				return in
			}
			if c.start <= of.start && of.end <= c.end {
				next = c
			}
		}
		if next == nil {
			break
		}
		in = next
	}
	return in
}

// The steps of selectors: the restricted XPath of RFC 5261 4.1, without id().
var (
	stepPattern      = pattern.Of(`^(@?[^\[\]@/'"()]+|\.|(?:text|comment|processing-instruction)\((?:'[^']*'|"[^"]*")?\))((?:\[[^\[\]'"]*\]|\[[^\[\]'"=]*=\s*(?:'[^']*'|"[^"]*")\s*\])*)$`)
	predicatePattern = pattern.Of(`\[\s*(?:(\d+)|(\.|@?[^\[\]@='"\s]+)\s*=\s*('[^']*'|"[^"]*"))\s*\]`)
)

// locate returns the one node, or the attribute of a node, that a selector names.
func (o *operation) locate(top *node, sel string) (*node, *attr, error) {
	sel = strings.TrimPrefix(strings.TrimSpace(sel), "/")
	if sel == "" {
		return nil, nil, errors.New("a selector has to name a node")
	}
	if len(sel) > maxSelector {
		return nil, nil, errTooMuch
	}
	at := []*node{top}
	steps := splitSteps(sel)
	for i, step := range steps {
		m := stepPattern().FindStringSubmatch(step)
		if m == nil {
			return nil, nil, fmt.Errorf("the selector has the step %q, which is not known", step)
		}
		if name, is := strings.CutPrefix(m[1], "@"); is {
			if i != len(steps)-1 || m[2] != "" || len(at) != 1 {
				return nil, nil, errors.New("the selector names no single attribute")
			}
			want, err := o.expand(name, false)
			if err != nil {
				return nil, nil, err
			}
			for j := range at[0].attrs {
				if a := &at[0].attrs[j]; !a.isDeclaration && a.name == want {
					return at[0], a, nil
				}
			}
			return nil, nil, errors.New("there is no such attribute")
		}
		var next []*node
		for _, n := range at {
			found, err := o.step(n, m[1], m[2])
			if err != nil {
				return nil, nil, err
			}
			next = append(next, found...)
		}
		at = next
	}
	if len(at) != 1 {
		return nil, nil, fmt.Errorf("it names %d nodes, and has to name one", len(at))
	}
	return at[0], nil, nil
}

// splitSteps splits a selector at its slashes, except those in quotes.
func splitSteps(sel string) []string {
	var out []string
	from, quote := 0, byte(0)
	for i := range len(sel) {
		switch c := sel[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '/':
			out = append(out, sel[from:i])
			from = i + 1
		}
	}
	return append(out, sel[from:])
}

// expand resolves the prefix of a name. A name without one is in the default namespace
// of the description, if it is that of an element (RFC 5261 4.2.2).
func (o *operation) expand(name string, element bool) (xml.Name, error) {
	prefix, local, prefixed := strings.Cut(strings.TrimSpace(name), ":")
	switch space, known := o.prefixes[prefix]; {
	case prefixed && !known:
		return xml.Name{}, fmt.Errorf("the prefix %q is not declared", prefix)
	case prefixed:
		return xml.Name{Space: space, Local: local}, nil
	case element:
		return xml.Name{Space: o.prefixes[""], Local: prefix}, nil
	}
	return xml.Name{Local: prefix}, nil
}

// step returns the children of a node that a step of a selector selects.
func (o *operation) step(of *node, test, predicates string) ([]*node, error) {
	var found []*node
	wanted, name, err := o.test(test)
	if err != nil {
		return nil, err
	}
	for _, c := range of.children {
		if c.kind == wanted && (name == (xml.Name{}) || c.name == name) {
			found = append(found, c)
		}
	}
	for _, p := range predicatePattern().FindAllStringSubmatch(predicates, -1) {
		var kept []*node
		for i, c := range found {
			ok := p[1] == strconv.Itoa(i+1)
			if p[1] == "" {
				if ok, err = o.holds(c, p[2], p[3][1:len(p[3])-1]); err != nil {
					return nil, err
				}
			}
			if ok {
				kept = append(kept, c)
			}
		}
		found = kept
	}
	if rest := predicatePattern().ReplaceAllString(predicates, ""); rest != "" {
		return nil, fmt.Errorf("the selector has the predicate %s, which is not known", rest)
	}
	return found, nil
}

// test returns the kind and the name that the node test of a step requires.
func (o *operation) test(test string) (nodeKind, xml.Name, error) {
	switch word, argument, isCall := strings.Cut(test, "("); {
	case test == "*":
		return elementNode, xml.Name{}, nil
	case !isCall:
		name, err := o.expand(test, true)
		return elementNode, name, err
	case word == "text":
		return textNode, xml.Name{}, nil
	case word == "comment":
		return commentNode, xml.Name{}, nil
	default:
		return instructionNode, xml.Name{Local: strings.Trim(argument, `'")`)}, nil
	}
}

// holds reports whether a predicate with a value holds for a node.
func (o *operation) holds(n *node, of, value string) (bool, error) {
	if of == "." {
		return n.stringValue() == value, nil
	}
	name, is := strings.CutPrefix(of, "@")
	want, err := o.expand(name, !is)
	if err != nil {
		return false, err
	}
	if is {
		for i := range n.attrs {
			if n.attrs[i].name == want && n.attrs[i].value == value {
				return true, nil
			}
		}
		return false, nil
	}
	for _, c := range n.children {
		if c.kind == elementNode && c.name == want && c.stringValue() == value {
			return true, nil
		}
	}
	return false, nil
}
