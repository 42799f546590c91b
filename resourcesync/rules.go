package resourcesync

import "fmt"

// RuleError tells that a document would break the specification. The Writer
// returns it instead of writing such a document.
type RuleError struct {
	Clause string // of ANSI/NISO Z39.99-2017
	Place  string // head, or the entry's loc
	Broken string // what is wrong
}

// Error names the place, what is wrong there and the clause.
func (e *RuleError) Error() string {
	return fmt.Sprintf("resourcesync: %s: %s (ResourceSync 1.1, %s)", e.Place, e.Broken, e.Clause)
}

// check applies the rules for the head of a document.
func (d *Document) check() error {
	broken := func(clause, format string, args ...any) error {
		return &RuleError{Clause: clause, Place: "head", Broken: fmt.Sprintf(format, args...)}
	}
	switch c := d.Capability; {
	case c == Description || c == CapabilityList:
		if !d.At.IsZero() || !d.From.IsZero() {
			return broken("Appendix A", "a %s has no at and no from", c)
		}
		if d.Index && c == CapabilityList {
			return broken("clause 9", "there is no index of Capability Lists")
		}
	case c.state():
		if d.At.IsZero() || !d.From.IsZero() || !d.Until.IsZero() {
			return broken("Appendix A", "a %s has at, and no from or until", c)
		}
	case c.changes():
		if d.From.IsZero() || !d.At.IsZero() || !d.Completed.IsZero() {
			return broken("Appendix A", "a %s has from, and no at or completed", c)
		}
		if !d.Until.IsZero() && d.Until.before(d.From) {
			return broken("clause 12.1", "until %v is earlier than from %v", d.Until, d.From)
		}
	default:
		return broken("clause 7", "capability %q is none of the specification's", c)
	}
	up := false
	for i := range d.Links {
		if err := d.Links[i].check("head"); err != nil {
			return err
		}
		up = up || d.Links[i].Rel == RelUp
	}
	if !up && d.Capability != Description {
		return broken("clauses 9 to 13", "the link up is missing")
	}
	return nil
}

// check applies the rules for an entry of document d. after is the datetime of
// the change before it.
func (e *Entry) check(d *Document, after Datetime) error {
	broken := func(clause, format string, args ...any) error {
		return &RuleError{Clause: clause, Place: "entry " + e.Loc, Broken: fmt.Sprintf(format, args...)}
	}
	md := &e.Metadata
	if e.Loc == "" {
		return &RuleError{Clause: "clause 7", Place: "entry", Broken: "loc is missing"}
	}
	if d.Capability == CapabilityList && md.Capability == "" {
		return broken("clause 9", "capability is missing")
	}
	if d.Capability.changes() && !d.Index && d.Capability != ChangeDump {
		switch md.Change {
		case Created, Updated, Deleted:
		default:
			return broken("clause 12.1", "change is %q, not created, updated or deleted", md.Change)
		}
		if t := md.Datetime; !t.IsZero() {
			if t.before(d.From) || !d.Until.IsZero() && d.Until.before(t) {
				return broken("clause 7", "datetime %v lies outside from %v and until %v", t, d.From, d.Until)
			}
			if !after.IsZero() && t.before(after) {
				return broken("clause 12.1", "datetime %v comes after %v: changes go forward in time", t, after)
			}
		}
	}
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == "" || l.Href == "" {
			return l.check("entry " + e.Loc)
		}
	}
	return nil
}

// check applies the rules for a link.
func (l *Link) check(place string) error {
	if l.Rel == "" || l.Href == "" {
		return &RuleError{Clause: "clause 7", Place: place,
			Broken: fmt.Sprintf("link with rel %q and href %q: both are mandatory", l.Rel, l.Href)}
	}
	return nil
}
