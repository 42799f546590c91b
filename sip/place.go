package sip

import (
	"errors"
	"strings"
)

// Places are where the elements of a message start, by their paths as they stand
// in Fault.Path. Of elements with the same path it is the first; headers and what
// is in a record are not among them.
type Places map[string]Place

// Place is a place in a message. Line and Column are from 1; the column counts
// bytes of UTF-8.
type Place struct{ Line, Column int }

// Locate returns err. When that is, or wraps, a *Fault with the path of an element
// in the message, and without line and column, these are added in a copy of the
// *Fault.
func (p Places) Locate(err error) error {
	var f *Fault
	if !errors.As(err, &f) || f.Line > 0 {
		return err
	}
	at, ok := p[f.Path]
	if !ok {
		return err
	}
	located := *f
	located.Line, located.Column = at.Line, at.Column
	return &located
}

// note keeps the place of the current start tag, if anybody wants to know it.
func (r *reader) note() {
	if r.places == nil {
		return
	}
	path := strings.Join(r.path, "/")
	if _, ok := r.places[path]; !ok {
		r.places[path] = Place{r.s.Line, r.s.Column}
	}
}
