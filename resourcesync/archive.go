package resourcesync

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

// A Change List Archive names Change Lists that the index of the Change Lists has dropped (the
// Archives specification). It is a urlset, or an index of further ones; in the paper of 2013 it
// is an index of the Change Lists themselves. A walk reads it when its mark lies before the
// oldest change that the index reaches, and before it compares a baseline. Archives of Resource
// Lists and of dumps hold earlier states; no walk reads them.

// addArchived plans those Change Lists of a stream's archive that have changes between since
// and oldest, where the oldest list of the index begins. It returns the moment from which on
// all changes can be read: oldest, if the archive adds nothing before it. covered is the moment
// up to which changes have been read, zero if none were. indexed are the lists of the index,
// which are to be read too.
func (k *walker) addArchived(stream int, since, covered, oldest time.Time, indexed []step) (reaches time.Time, err error) {
	url := k.stream(stream).ChangeListArchive
	if url == "" {
		return oldest, nil
	}
	most := k.most() - k.cur.Documents - len(indexed)
	a := archiveReader{walker: k, stream: stream, since: since, most: most, seen: map[string]bool{}}
	others := k.cur.Others
	lists, err := a.read(url, 0)
	if err != nil && k.ends(err) {
		return oldest, err
	}
	// Any other error may be permanent, and a baseline replaces the archive.
	if err != nil {
		k.cur.Others = others // what was read in vain leaves room for the baseline
		k.report(Problem{Rule: ruleMissing, URL: url, Found: err.Error(), Expected: "the archive that the Capability List names"}, false)
		return oldest, nil
	}
	listed := map[string]bool{}
	for i := range indexed {
		listed[indexed[i].URL] = true
	}
	lists = slices.DeleteFunc(chronological(lists), func(s step) bool { return listed[s.URL] || !s.From.IsZero() && !s.From.Before(oldest) })
	reach(lists)
	n := len(lists)
	if n == 0 {
		return oldest, nil
	}
	if lists[n-1].Until.IsZero() {
		lists[n-1].Until = oldest
	}
	if until := lists[n-1].Until; until.Before(oldest) {
		k.report(Problem{Rule: ruleHole, URL: url, Found: fmt.Sprintf("an archive that reaches to %s, and Change Lists that begin at %s", stamp(until), stamp(oldest)),
			Expected: "no time between them"}, false)
		return oldest, nil
	}
	reaches = lists[0].From
	if !covered.IsZero() && reaches.After(covered) {
		return reaches, nil // a baseline is due in any case: it replaces what is in the archive
	}
	first := slices.IndexFunc(lists, func(s step) bool { return s.Until.IsZero() || !s.Until.Before(since) })
	wanted := lists[max(first, 0):]
	if len(wanted) > most {
		return oldest, nil
	}
	slices.Reverse(wanted)
	k.cur.Steps = merge(wanted, k.cur.Steps)
	return reaches, nil
}

// archiveReader reads the documents of one archive.
type archiveReader struct {
	walker *walker
	stream int
	since  time.Time // lists that end before it are not needed
	needed int       // lists found so far that end at it or later
	most   int       // the largest value of needed
	seen   map[string]bool
}

// errNoArchive: the document is a Change List.
var errNoArchive = errors.New("no archive")

// read returns the Change Lists that a document of the archive names or, of an index, those
// that its parts name.
func (a *archiveReader) read(url string, depth int) ([]step, error) {
	k := a.walker
	if key := follow.Key(url); a.seen[key] {
		return nil, nil
	} else if a.seen[key] = true; depth >= maxIndexes {
		return nil, &DocumentError{URL: url, Line: 1, Column: 1, Reason: fmt.Sprintf("archives are nested more than %d deep", maxIndexes)}
	}
	l, err := k.open(url, follow.Validators{})
	if err != nil {
		return nil, err
	}
	switch c := l.Head().Capability; {
	case c == ChangeList && depth > 0:
		l.close()
		return nil, errNoArchive
	case c != ChangeListArchive && c != ChangeList && c != "":
		l.close()
		return nil, &DocumentError{URL: l.URL, Line: 1, Column: 1, Reason: fmt.Sprintf("it is a %s, want a %s", c, ChangeListArchive)}
	}
	index := l.Head().Index
	var named []step
	if _, err := l.entries(func(e *Entry) {
		m := &e.Metadata
		named = append(named, step{Stream: a.stream, URL: e.Loc, Depth: 1, From: m.From.Time(), Until: l.until(e)})
	}); err != nil {
		return nil, err
	}
	if err := k.countOther(l.URL); err != nil {
		return nil, err
	}
	if index {
		return a.parts(named, depth)
	}
	named = chronological(named)
	reach(named)
	first := slices.IndexFunc(named, func(s step) bool { return s.Until.IsZero() || !s.Until.Before(a.since) })
	if first < 0 {
		first = len(named)
	}
	if a.needed += len(named) - first; a.needed > a.most { // a baseline costs less
		return nil, fmt.Errorf("%s: %w: %d are needed of the archive, and more", l.URL, ErrTooManyDocuments, a.needed)
	}
	// The newest list that is not needed shows that the archive reaches far enough.
	return slices.Clone(named[max(first-1, 0):]), nil
}

// parts returns the Change Lists of the parts that an index names, oldest first. If the index
// names Change Lists themselves, it returns those.
func (a *archiveReader) parts(named []step, depth int) ([]step, error) {
	sorted := chronological(named)
	reach(sorted)
	var found [][]step // newest first
	for i := range slices.Backward(sorted) {
		s := &sorted[i]
		if !s.Until.IsZero() && s.Until.Before(a.since) {
			// The begin of this part shows how far back the archive reaches.
			found = append(found, []step{*s})
			break
		}
		lists, err := a.read(s.URL, depth+1)
		if errors.Is(err, errNoArchive) {
			return named, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, lists)
	}
	slices.Reverse(found)
	return slices.Concat(found...), nil
}
