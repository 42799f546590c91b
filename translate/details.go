package translate

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/resourcesync"
)

// carriedDetails is the metadata of a record that Atom has and ResourceSync does not.
// Bridges pass it on as one JSON object, in the attribute details of
// resourcesync.CarriedNamespace.
type carriedDetails struct {
	event.Details
	Categories []event.Category `json:"categories,omitempty"`
}

// appendDetails returns the details of an event as another bridge reads them, "" if
// there are none, or far too many.
func appendDetails(e *event.Event) string {
	var c carriedDetails
	if e.Details != nil {
		c.Details = *e.Details
		c.ChangeFreq = "" // ResourceSync has its own place for it
	}
	if e.Live() {
		c.Categories = e.Categories
	}
	if c.IsZero() && len(c.Categories) == 0 {
		return ""
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)                                                    // the attribute is escaped as a whole
	if err := enc.Encode(&c); err != nil || b.Len() > resourcesync.MaxDetails { // such values can always be encoded
		return ""
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// readDetails reads what appendDetails has written. What does not fit is left out.
func readDetails(stated string, deleted bool) (*event.Details, []event.Category) {
	if stated == "" {
		return nil, nil
	}
	var c carriedDetails
	_ = json.Unmarshal([]byte(stated), &c) // it goes on after a value of another type
	categories := distinct(slices.DeleteFunc(c.Categories, func(c event.Category) bool { return c.Term == "" }))
	d := c.Details
	d.Authors, d.Contributors, d.ChangeFreq = named(d.Authors), named(d.Contributors), ""
	if !deleted {
		d.DeletedBy, d.Comment = event.Person{}, event.Text{}
	}
	if d.Source != nil {
		d.Source.Authors, d.Source.Contributors = named(d.Source.Authors), named(d.Source.Contributors)
		boundFeed(d.Source)
	}
	if d.IsZero() {
		return nil, categories
	}
	return &d, categories
}

// named leaves out persons without a name; nil when none is left.
func named(persons []event.Person) []event.Person {
	if persons = slices.DeleteFunc(persons, func(p event.Person) bool { return p.Name == "" }); len(persons) == 0 {
		return nil
	}
	return persons
}
