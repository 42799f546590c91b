package event

// Schedule is when a Source is asked next, and how its harvests have fared.
type Schedule struct {
	Next     Micros // 0: no harvest is planned
	Failures int    // failed harvests in a row
	Report   []byte // of the last harvest, as the harvest writes it; nil when there was none

	LastSuccess  Micros  // when the last harvest without an error ended; 0: never
	FailingSince Micros  // when the first of the harvests in a row ended that failed; 0: the last one did not
	LastError    Failure // the newest, which may be long ago
	// Harvests is the number of the newest row of the Source's history, and Quiet
	// counts the harvests since that have found nothing new.
	Harvests int64
	Quiet    Quiet
}

// Failure is why a harvest failed. The zero value is none.
type Failure struct {
	At   Micros
	Text string
	// Kind is a word for a group of reasons, which the harvest chooses; Rule is the rule
	// that the Source has broken, "" when it was none.
	Kind, Rule string
}

// Quiet counts harvests in a row that have found nothing new.
type Quiet struct {
	Count       int64
	First, Last Micros // when the first and the last of them ended
}

// Add counts one more harvest, which ended at a time.
func (u *Quiet) Add(ended Micros) {
	if u.Count == 0 {
		u.First = ended
	}
	u.Count, u.Last = u.Count+1, ended
}

// Result is how a harvest has ended.
type Result uint8

// The results of harvests. One that is unchanged is counted, and is no row of the
// history.
const (
	// ResultOK: all was read and taken in.
	ResultOK Result = iota
	// ResultPartial: something was left undone: pending, held, quarantined, missing.
	ResultPartial
	// ResultFailed: it has ended with an error.
	ResultFailed
)

// String returns the word for people and JSON.
func (r Result) String() string {
	switch r {
	case ResultOK:
		return "ok"
	case ResultPartial:
		return "partial"
	case ResultFailed:
		return "failed"
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Harvest is a row of the history of a Source: a harvest that has found something new,
// failed, or ended otherwise than the one before.
type Harvest struct {
	Number         int64 // of the Source's harvests with a row, from 1
	Started, Ended Micros
	Result         Result
	// Documents and Entries count what was read, Bytes are those of the documents, and
	// Contents the representations that were fetched.
	Documents, Entries, Bytes, Contents int64
	// Created, Updated and Deleted count the events.
	Created, Updated, Deleted int64
	// Pending, Held and Quarantined count what was put off, held back, or bad.
	Pending, Held, Quarantined int64
	Problems                   []BrokenRule
	Error                      Failure // the zero value unless the result is failed
	// Before counts the harvests between the row before and this one.
	Before Quiet
}

// BrokenRule is a rule that a Source has broken: how often, and the first place.
type BrokenRule struct {
	Rule  string `json:"rule"`
	Count int64  `json:"count"`
	First string `json:"first,omitempty"`
}

// Day sums up the history of a day in UTC.
type Day struct {
	Start                     Micros // of the day
	Harvests, Failed          int64  // those with a row
	Created, Updated, Deleted int64
}
