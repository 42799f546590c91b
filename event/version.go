package event

import "strconv"

// Version is one version of a record: one of its events, deletions among them.
type Version struct {
	Number   int // from 1, in the order of the log
	Seq      Seq
	Observed Micros
	Kind     Kind
	// Withdrawn: it is a deletion that somebody has decided on.
	Withdrawn bool
}

// Versions is a version of a record, and those beside it. What is not there is zero.
type Versions struct {
	Version
	Event                       *Event
	First, Previous, Next, Last Version
}

// The URLs of a record's versions follow from the URL of the record, or of one of its
// representations.

// MementoURL returns the URL of the version that an event has made.
func MementoURL(record string, seq Seq) string {
	return record + "/at/" + strconv.FormatInt(int64(seq), 10)
}

// TimeGateURL returns the URL of the TimeGate, which leads to the version of a time.
func TimeGateURL(record string) string { return record + "/timegate" }

// TimeMapURL returns the URL of the TimeMap, which lists the versions.
func TimeMapURL(record string) string { return record + "/timemap" }
