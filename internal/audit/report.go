package audit

import (
	"fmt"
	"time"
)

// Report is the result of an audit of one Source, and the proof that what the Source has is
// published. Its counts are of records. Each record that the Source has is in one of those up
// to Changed; each that the log has of the Source in Published, OtherSource or one of those
// from ToDelete on.
type Report struct {
	Set    string `json:"set"`
	Source string `json:"source"` // its URL
	Kind   string `json:"kind"`
	// Started and Ended are when it was audited, At the moment that its lists show, zero when
	// they state none. Documents of the Source were read; Complete: these enumerate all its
	// records. Part: it may have others, as a legacy feed, which gives its newest entries.
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	At        time.Time `json:"at,omitzero"`
	Documents int64     `json:"documents"`
	Complete  bool      `json:"complete"`
	Part      bool      `json:"part,omitempty"`

	// AtSource counts the records that the Source has.
	AtSource    int64 `json:"at_source"`
	Published   int64 `json:"published"`    // from this Source
	OtherSource int64 `json:"other_source"` // published from an earlier Source of the set (A15)
	GivenBack   int64 `json:"given_back"`   // published; this Source has it from us, or from the same origin
	Pending     int64 `json:"pending"`      // waits for its content
	Quarantined int64 `json:"quarantined"`  // its present state at the Source cannot be read
	DeletedHere int64 `json:"deleted_here"` // and is there at the Source
	Missing     int64 `json:"missing"`      // has never been here
	Changed     int64 `json:"changed"`      // here, during the audit: not judged

	// Here counts the records that the log has of the Source.
	Here        int64 `json:"here"`
	ToDelete    int64 `json:"to_delete"`    // deleted at the Source
	Held        int64 `json:"held"`         // not at the Source, and the deletion is held
	Extra       int64 `json:"extra"`        // not named by the Source
	NotJudged   int64 `json:"not_judged"`   // not named, which means nothing: see isJudged
	NotRead     int64 `json:"not_read"`     // one of Quarantined
	ChangedHere int64 `json:"changed_here"` // during the audit

	// DeletedAtSource counts the deletions that the Source states.
	DeletedAtSource int64 `json:"deleted_at_source"`
	// Served counts the records that are published from this Source, Contents our copies that
	// were read, and Originals those that were requested.
	Served    int64 `json:"served"`
	Contents  int64 `json:"contents"`
	Originals int64 `json:"originals"`
	// Differences counts the findings, Repaired those of them that were repaired.
	Differences int64 `json:"differences"`
	Repaired    int64 `json:"repaired"`
	// Unchecked are sentences about what could not be checked.
	Unchecked []string `json:"unchecked,omitempty"`
}

// count adds one where that is to be counted.
func (r *Report) count(counts bool, n *int64) {
	if counts {
		*n++
	}
}

// Sums returns an error if the counts do not add up. They do, unless another process has
// changed the log without an event while it was audited.
func (r *Report) Sums() error {
	if r.Documents == 0 {
		return nil // there is one side only
	}
	there := r.Published + r.OtherSource + r.GivenBack + r.Pending + r.Quarantined + r.DeletedHere + r.Missing + r.Changed
	if there != r.AtSource {
		return fmt.Errorf("the Source has %d records, and %d were judged", r.AtSource, there)
	}
	if here := r.Published + r.OtherSource + r.ToDelete + r.Held + r.Extra + r.NotJudged + r.NotRead + r.ChangedHere; here != r.Here {
		return fmt.Errorf("the log has %d records of the Source, and %d were judged", r.Here, here)
	}
	return nil
}

// Whole reports whether all that the Source has is published, and nothing else; with Part,
// whether all that it gives is published.
func (r *Report) Whole() bool {
	return r.Documents > 0 && len(r.Unchecked) == 0 && r.Differences == r.Repaired && r.Changed == 0
}
