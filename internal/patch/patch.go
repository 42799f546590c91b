// Package patch applies the descriptions of changes that ResourceSync has in place of a
// whole new version (Z39.99 14.4): JSON Patch (RFC 6902) and XML Patch (RFC 5261, RFC
// 7351).
//
// A result counts only if it has, byte for byte, the hash that its Source states. So the
// bytes around a change must stay unchanged, and a mistake only costs one request for the
// whole version. The cost of applying a description is bounded: it comes from outside.
package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
)

const (
	// MaxBase is the length of the longest version that is patched, in bytes, and of the
	// longest result: a tree of it takes fifty times as much memory.
	MaxBase = 2 << 20
	// MaxDescription is the length of the longest description of changes, in bytes.
	MaxDescription = 1 << 20
	// maxWork bounds the work in bytes: each operation counts as the length of the whole
	// version. Each operation of an XML Patch parses the version again, each predicate with a
	// value may look through it, and the declarations of the root are read for each.
	maxWork    = 128 << 20
	maxXMLWork = 32 << 20
	// maxDepth bounds the nesting of JSON and XML.
	maxDepth = 1000
)

// ErrUnmatched means that the description was applied, and the result does not have the
// wanted hash.
var ErrUnmatched = errors.New("the result does not have the stated hash")

// errTooMuch means that applying it would cost too much.
var errTooMuch = errors.New("it is too large, or has too many operations, to be applied")

// Known reports whether descriptions of a media type can be applied. Z39.99 names the media
// type of a draft for JSON Patch, and that of error documents for XML Patch.
func Known(mediaType string) bool { return kindOf(mediaType) != none }

type kind uint8

const (
	none kind = iota
	jsonKind
	xmlKind
)

func kindOf(mediaType string) kind {
	parsed, _, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return none
	}
	switch parsed {
	case "application/json-patch+json", "application/json-patch":
		return jsonKind
	case "application/xml-patch+xml", "application/patch-ops-error+xml":
		return xmlKind
	}
	return none
}

// Apply applies a description of changes to the version base, and returns the version for
// which wanted is true: wanted compares hashes. JSON has no single form, so several are
// tried. The error is the reason why there is no such version.
func Apply(mediaType string, base, description []byte, wanted func([]byte) bool) ([]byte, error) {
	if len(base) > MaxBase || len(description) > MaxDescription {
		return nil, errTooMuch
	}
	switch kindOf(mediaType) {
	case jsonKind:
		return applyJSON(base, description, wanted)
	case xmlKind:
		result, err := applyXML(base, description)
		if err == nil && !wanted(result) {
			result, err = nil, ErrUnmatched
		}
		return result, err
	}
	return nil, fmt.Errorf("%q is not the type of a known description of changes", mediaType)
}

func applyJSON(base, description []byte, wanted func([]byte) bool) ([]byte, error) {
	for _, doc := range [][]byte{base, description} {
		if depth, _ := depthOf(doc); depth > maxDepth {
			return nil, errTooMuch
		}
	}
	operations, err := jsonpatch.DecodePatch(description)
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	if len(operations)*(len(base)+len(description)) > maxWork {
		return nil, errTooMuch
	}
	compact, err := operations.ApplyWithOptions(base, &jsonpatch.ApplyOptions{AccumulatedCopySizeLimit: MaxBase})
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	forms := [][]byte{compact}
	_, steps := depthOf(compact)
	for _, indent := range []string{indentOf(base), "  ", "    ", "\t"} {
		if len(compact)+steps*len(indent) > 2*MaxBase {
			continue
		}
		var b bytes.Buffer
		if err := json.Indent(&b, compact, "", indent); err != nil {
			return nil, fmt.Errorf("JSON Patch: %w", err)
		}
		forms = append(forms, b.Bytes())
	}
	for _, form := range forms {
		for _, end := range []string{"", "\n"} {
			if result := append(form[:len(form):len(form)], end...); wanted(result) {
				return result, nil
			}
		}
	}
	return nil, ErrUnmatched
}

// indentOf returns the indent of the second line of a JSON document.
func indentOf(doc []byte) string {
	_, rest, _ := strings.Cut(string(doc[:min(len(doc), 1000)]), "\n")
	if indent := rest[:len(rest)-len(strings.TrimLeft(rest, " \t"))]; len(indent) <= 16 {
		return indent
	}
	return ""
}

// depthOf returns how deep JSON is nested, and how many steps all its lines together are
// indented if each value has its own. Brackets and commas in strings do not count.
func depthOf(doc []byte) (deepest, steps int) {
	depth, inString := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			depth++
			deepest, steps = max(deepest, depth), steps+depth
		case c == ',':
			steps += depth
		case c == ']' || c == '}':
			depth--
			steps += depth
		}
	}
	return deepest, steps
}
