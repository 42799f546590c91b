// Package audit compares the log with its Sources as they are now (ANSI/NISO Z39.99 5.2), and
// the contents with their hashes, their list entries and their originals.
//
//   - [Auditor.Source] in audit.go reads the Source into an empty log of its own, by
//     the same walk as a harvest ([harvest.Harvester.Survey]).
//   - Auditor.compareThere goes through the records that the Source has stated, and
//     looks each up in the log. compared.compare (compare.go) compares two states of a
//     record. It is pure.
//   - Auditor.compareHere goes through the records that the log has of the Source: those
//     that the Source does not name, and their contents (content.go).
//   - Differences are passed to the caller a page at a time, with what
//     [harvest.Harvester.Repair] needs to repair them, and are counted (report.go).
//
// Each step reads a page of records at a time, so memory does not grow with their number,
// but for one bit of each.
package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// pageSize is how many records are looked up at once.
const pageSize = 500

// Auditor audits the Sources of a log, which it only reads: another process may write it
// meanwhile. Records that change then are not judged. It is for one goroutine at a time.
type Auditor struct {
	Log      *eventlog.Log
	Contents *content.Store // of sets that mirror; nil when there is none
	// Origin asks for the originals of records whose via leads to another server than
	// their Source; nil does not ask.
	Origin *http.Client
	// Folder is where the log of the Source is kept during the audit, if it can be written;
	// else, and where it is "", that is the system's folder for temporary files.
	Folder string
	// Unread is why Sources are not read; "" reads them. Our copies of their records are checked.
	Unread string
	// Workers is how many originals are asked for at once; 0 is 8.
	Workers int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Difference is a record with all that differs, and how that is repaired.
type Difference struct {
	Findings []Finding
	// Repair is what makes the log agree with the Source; nil where nothing can be done here.
	Repair *harvest.Repair
	// Content: it may be enough to fetch missing or damaged contents again.
	Content bool
}

// Page has some differences of one Source.
type Page struct {
	Source      event.SourceID
	Differences []Difference
	// Absent, Have, Active and Began are those of harvest.Repairs.
	Absent, Have, Active int64
	Began                harvest.Began
}

// sourceAudit is the audit of one Source.
type sourceAudit struct {
	*Auditor
	src    *harvest.Source
	tell   func(context.Context, *Page) error
	report *Report

	survey harvest.Survey
	there  *eventlog.Log  // the log into which the Source was read
	id     event.SourceID // of the Source there
	read   bool           // the Source was read

	start event.Seq // the last event when the audit began
	end   int64     // the number of the last record that the log had of the Source then
	seen  ordinals  // records of the log that the Source has stated
	// badHere and badThere are why records are in quarantine.
	badHere, badThere map[string]string
	servers           originServers
	page              Page
}

// Source audits one Source of a set. found is called with the differences, a page at a time,
// and may repair them. The report counts all; its Unchecked has the reason if the Source could
// not be read. An error is one of this side: of the log, the disk, or found.
func (a *Auditor) Source(ctx context.Context, src *harvest.Source, progress func(harvest.Progress), found func(context.Context, *Page) error) (*Report, error) {
	s := &sourceAudit{Auditor: a, src: src, tell: found, report: &Report{Set: src.Set, Source: src.URL, Kind: src.Kind, Started: a.now().UTC()}}
	s.page.Source = src.ID
	defer func() {
		s.report.Ended = a.now().UTC()
		s.noteChanges()
	}()
	var err error
	if s.start, err = a.Log.LastSeq(ctx); err != nil {
		return s.report, err
	}
	if err := s.countHere(ctx); err != nil {
		return s.report, err
	}
	if s.badHere, err = s.quarantined(ctx, a.Log, src.ID); err != nil {
		return s.report, err
	}
	if src.Kind == harvest.SIP { // it calls us: there is nothing to read
		return s.report, s.compareHere(ctx)
	}
	if a.Unread != "" {
		s.unchecked(a.Unread)
		return s.report, s.compareHere(ctx)
	}
	dir, done, err := makeFolder(a.Folder)
	if err != nil {
		return s.report, fmt.Errorf("an audit needs disk space for a copy of the Source's records: %w", err)
	}
	err = s.readSource(ctx, dir, progress)
	if err == nil && s.read {
		err = s.compareThere(ctx)
	}
	if err == nil {
		err = s.compareHere(ctx)
	}
	if s.there != nil {
		err = errors.Join(err, s.there.Close())
	}
	return s.report, errors.Join(err, done())
}

// readSource reads the Source into an empty log in a folder.
func (s *sourceAudit) readSource(ctx context.Context, dir string, progress func(harvest.Progress)) error {
	known, err := s.Log.Progress(ctx, s.src.ID)
	if err != nil {
		return err
	}
	s.page.Began = harvest.BeganAt(s.now(), &known)
	if s.there, err = eventlog.Open(ctx, dir, eventlog.Options{Holder: "bridge audit"}); err != nil {
		return err
	}
	sets := []eventlog.SetConfig{{Name: s.src.Set, Content: s.src.Content, Sources: []eventlog.SourceConfig{{Kind: s.src.Kind, URL: s.src.URL}}}}
	if _, err := s.there.Configure(ctx, sets); err != nil {
		return err
	}
	src := *s.src
	src.ID = sets[0].Sources[0].ID
	s.id = src.ID
	h := harvest.Harvester{Log: s.there, Now: s.Now, Folder: dir}
	s.survey, err = h.Survey(ctx, &src, known, harvest.Options{Progress: func(p harvest.Progress) {
		p.Events = 0 // nothing is logged
		progress(p)
	}})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, eventlog.ErrFull), errors.Is(err, eventlog.ErrStopped):
		return err
	case err != nil:
		s.unchecked("the Source could not be read: " + err.Error())
		return nil
	case s.survey.Withheld:
		s.unchecked("the Source is a bridge that has not walked all its own Sources yet")
		return nil
	case s.survey.Documents == 0:
		s.unchecked("the Source gave no document")
	}
	s.read = s.survey.Documents > 0
	s.report.Documents, s.report.Complete, s.report.Part = s.survey.Documents, s.survey.Complete, !s.survey.Whole
	if s.survey.At.Known() {
		s.report.At = s.survey.At.Time()
	}
	if s.survey.Gap != "" {
		s.unchecked("a document of the Source is missing: " + s.survey.Gap)
	}
	for _, w := range s.survey.Warnings {
		s.unchecked(w)
	}
	s.badThere, err = s.quarantined(ctx, s.there, s.id)
	return err
}

// unchecked notes what could not be checked, and why.
func (s *sourceAudit) unchecked(why string) { s.report.Unchecked = append(s.report.Unchecked, why) }

// noteChanges notes what was not judged because the log was written meanwhile: then the audit is
// no proof.
func (s *sourceAudit) noteChanges() {
	const again = ": harvest, and run it again"
	if n := max(s.report.Changed, s.report.ChangedHere); n > 0 {
		s.unchecked(fmt.Sprintf("records that were changed here during the audit (%d)%s", n, again))
	} else if err := s.report.Sums(); err != nil {
		s.unchecked("the numbers do not add up (" + err.Error() + "), since the log was written during the audit" + again)
	}
}

// quarantined returns why records of the Source are in quarantine. Input of no record is
// counted, where it is the Source's own log.
func (s *sourceAudit) quarantined(ctx context.Context, log *eventlog.Log, source event.SourceID) (map[string]string, error) {
	all, err := log.QuarantinePage(ctx, event.QuarantineQuery{Set: s.src.Set, Source: source, Waiting: true})
	why := map[string]string{}
	for i := range all {
		q := &all[i]
		switch q.Record {
		case "":
			if log == s.there {
				s.report.AtSource++
				s.report.Quarantined++
				s.add(Difference{Findings: []Finding{{Kind: Quarantined, URL: q.URL, Found: "none", Expected: fmt.Sprintf("an entry that can be read; line %d, %s: %s", q.Line, q.Rule, q.Reason)}}})
			}
		default:
			record, _ := s.src.Selection.Identifier(q.Record)
			why[record] = q.Rule + ": " + q.Reason
		}
	}
	return why, err
}

// countHere counts the records that the log has of the Source.
func (s *sourceAudit) countHere(ctx context.Context) error {
	return s.eachHere(ctx, math.MaxInt64, true, func(all []eventlog.SourceRecord) error {
		for i := range all {
			s.end = all[i].Number
			if all[i].Alive {
				s.report.Here++
			}
		}
		return nil
	})
}

// eachHere calls do with the records that the log has of the Source, up to a number, a page at
// a time.
func (s *sourceAudit) eachHere(ctx context.Context, end int64, statesOnly bool, do func([]eventlog.SourceRecord) error) error {
	for after := int64(0); ; {
		all, err := s.Log.SourceHas(ctx, s.src.ID, after, pageSize, statesOnly)
		if err != nil || len(all) == 0 {
			return err
		}
		after = all[len(all)-1].Number
		for len(all) > 0 && all[len(all)-1].Number > end {
			all = all[:len(all)-1]
		}
		if err := do(all); err != nil || after >= end {
			return err
		}
	}
}

// compareThere compares the records that the Source has stated with the log.
func (s *sourceAudit) compareThere(ctx context.Context) error {
	for after := int64(0); ; {
		there, err := s.there.SourceRecords(ctx, s.id, after, pageSize)
		if err != nil {
			return err
		}
		if len(there) == 0 {
			return s.flush(ctx)
		}
		after = there[len(there)-1].Number
		ids := make([]string, len(there))
		for i := range there {
			ids[i] = there[i].Record
		}
		here, err := s.Log.SourceRecordsOf(ctx, s.src.ID, ids)
		if err != nil {
			return err
		}
		for i := range there {
			// A record that the configuration does not select counts as absent.
			if here[i].Number != 0 && (there[i].Known || s.badThere[there[i].Record] != "") {
				s.seen.add(here[i].Number)
			}
			found, err := s.classify(ctx, &here[i], &there[i])
			if err != nil {
				return err
			}
			if len(found) > 0 {
				d := Difference{Findings: found}
				if kind := found[0].Kind; kind != Held && kind != Quarantined {
					d.Repair = s.repairOf(&here[i], &there[i])
				}
				s.add(d)
			}
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
}

// classify counts a record that the Source has stated, and returns how it differs.
func (s *sourceAudit) classify(ctx context.Context, here, there *eventlog.SourceRecord) ([]Finding, error) {
	r := s.report
	changed := here.Seq > s.start
	old := here.Alive && here.Number <= s.end // it was counted
	one := func(kind Kind, found, expected string) ([]Finding, error) {
		return []Finding{{Record: there.Record, Kind: kind, Found: found, Expected: expected}}, nil
	}
	switch why := s.badThere[there.Record]; {
	case !there.Known && why == "":
		return nil, nil // not selected
	case !there.Known:
		r.AtSource++
		r.Quarantined++
		r.count(old, &r.NotRead)
		return one(Quarantined, presence(here), "an entry that can be read; "+why)
	case !there.Alive:
		r.DeletedAtSource++
		switch {
		case !here.Alive:
		case changed:
			r.count(old, &r.ChangedHere)
		case here.Held:
			r.Held++
			return one(Held, "alive; its deletion is held", "deleted"+s.at(there))
		default:
			r.ToDelete++
			return one(DeletedThere, "alive", "deleted"+s.at(there))
		}
		return nil, nil
	}
	r.AtSource++
	switch {
	case changed:
		r.Changed++
		r.count(old, &r.ChangedHere)
		return nil, nil
	case here.Alive:
		if here.Authority {
			r.Published++
		} else {
			r.OtherSource++
		}
		c := compared{kind: s.report.Kind, content: s.src.Content, here: here, there: there}
		c.compare()
		err := s.compareDigests(ctx, &c)
		for i := range c.found {
			c.found[i].Record = there.Record
		}
		return c.found, err
	case here.Pending != "":
		r.Pending++
		return one(Pending, "waits for its content since "+here.PendingSince.String()+": "+here.Pending, "a record")
	case !here.Known && here.Live: // a bridge gives back what the set has from another Source
		r.GivenBack++
		return nil, nil
	}
	bad := ""
	if why := s.badHere[there.Record]; why != "" {
		bad = "; an entry of it is in quarantine: " + why
	}
	if here.Known || here.Seq != 0 {
		r.DeletedHere++
		return one(DeletedHere, "deleted"+bad, "a record"+modified(there))
	}
	r.Missing++
	return one(Missing, "none"+bad, "a record"+modified(there))
}

// at returns when the Source has stated the present state of a record, as a text, "" if it is
// not known. The order of another set of the log is no time.
func (s *sourceAudit) at(there *eventlog.SourceRecord) string {
	if o := there.Observation.Order; o.Known() && s.src.Kind != harvest.Set {
		return " " + o.String()
	}
	return ""
}

// modified returns when a record was modified, as a text, "" if its Source does not state it.
func modified(there *eventlog.SourceRecord) string {
	if m := there.Observation.Modified; m.Known() {
		return ", modified " + m.String()
	}
	return ""
}

// presence describes in a word what the log has of a record.
func presence(here *eventlog.SourceRecord) string {
	switch {
	case here.Alive:
		return "alive, as it was before"
	case here.Known:
		return "deleted"
	}
	return "none"
}

// repairOf returns the repair that makes the log agree with the Source on a record.
func (s *sourceAudit) repairOf(here, there *eventlog.SourceRecord) *harvest.Repair {
	r := harvest.RepairOf(here)
	r.Observation = there.Observation
	if r.Observation.Deleted && s.src.Kind != harvest.Set {
		r.Observation.Modified = r.Observation.Order
	}
	return r
}

// compareHere goes through the records that the log has of the Source: those that the Source
// has not stated, and what is served of all.
func (s *sourceAudit) compareHere(ctx context.Context) error {
	if err := s.countAbsent(ctx); err != nil {
		return err
	}
	defer s.noteServers()
	return s.eachHere(ctx, s.end, false, func(all []eventlog.SourceRecord) error {
		for i := range all {
			if here := &all[i]; here.Alive && s.read && !s.seen.has(here.Number) {
				s.judgeAbsent(here)
			}
		}
		if err := s.checkContents(ctx, all); err != nil {
			return err
		}
		return s.flush(ctx)
	})
}

// isJudged reports whether absence at the Source means anything for a record: the Source was
// read whole, and has not changed the record after the moment that it enumerates.
func (s *sourceAudit) isJudged(here *eventlog.SourceRecord) bool {
	order := here.Observation.Order
	return s.survey.Whole && (!s.survey.At.Known() || !order.After(s.survey.At))
}

// countAbsent counts the records that the Source does not name, before any of them is
// deleted: how many they are decides whether that is held (A6).
func (s *sourceAudit) countAbsent(ctx context.Context) error {
	if !s.survey.Complete {
		return nil
	}
	s.page.Have, s.page.Active = s.report.Here, s.report.AtSource
	return s.eachHere(ctx, s.end, true, func(all []eventlog.SourceRecord) error {
		for i := range all {
			if here := &all[i]; here.Alive && here.Seq <= s.start && !s.seen.has(here.Number) && s.isJudged(here) {
				s.page.Absent++
			}
		}
		return nil
	})
}

// judgeAbsent counts a record that the Source has not stated, and adds it to the differences.
// Only a complete enumeration deletes it (I6).
func (s *sourceAudit) judgeAbsent(here *eventlog.SourceRecord) {
	r := s.report
	f := Finding{Record: here.Record, Kind: Extra, Found: "alive", Expected: "none: the Source does not name it"}
	switch {
	case here.Seq > s.start:
		r.ChangedHere++
	case here.Held:
		r.Held++
		f.Kind, f.Found = Held, "alive; its deletion is held"
		s.add(Difference{Findings: []Finding{f}})
	case !s.isJudged(here):
		r.NotJudged++
	default:
		r.Extra++
		d := Difference{Findings: []Finding{f}}
		if s.survey.Complete {
			d.Repair = harvest.RepairOf(here)
			d.Repair.Observation, d.Repair.Absent = event.Observation{Record: here.Record}, true
		}
		s.add(d)
	}
}

// add adds a difference to the page.
func (s *sourceAudit) add(d Difference) {
	for i := range d.Findings {
		d.Findings[i].Set, d.Findings[i].Source = s.src.Set, s.src.URL
	}
	s.page.Differences = append(s.page.Differences, d)
}

// flush passes the page on.
func (s *sourceAudit) flush(ctx context.Context) error {
	if len(s.page.Differences) == 0 {
		return nil
	}
	for i := range s.page.Differences {
		d := &s.page.Differences[i]
		s.report.Differences += int64(len(d.Findings))
		if err := s.completeRepair(ctx, d.Repair); err != nil {
			return err
		}
	}
	err := s.tell(ctx, &s.page)
	for i := range s.page.Differences {
		for _, f := range s.page.Differences[i].Findings {
			if f.Repair == Done {
				s.report.Repaired++
			}
		}
	}
	s.page.Differences = nil
	return err
}

// completeRepair adds the document that describes a record, from the event of the record.
func (s *sourceAudit) completeRepair(ctx context.Context, r *harvest.Repair) error {
	if r == nil || r.Absent || r.Observation.Deleted || len(r.Observation.Representations) == 0 {
		return nil
	}
	ev, err := s.there.Record(ctx, s.src.Set, event.Key(r.Observation.Record))
	if err != nil {
		return err
	}
	o := &ev.Origin
	r.Document = event.Document{URL: o.Document, FeedID: o.FeedID, FeedTitle: o.FeedTitle, FeedUpdated: o.FeedUpdated, Feed: o.Feed}
	return nil
}

func (a *Auditor) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// ordinals is a set of record numbers: a bit for each ordinal up to the largest.
type ordinals []uint64

func (o *ordinals) add(number int64) {
	n := uint32(number)
	for len(*o) <= int(n/64) {
		*o = append(*o, make([]uint64, len(*o)+64)...)
	}
	(*o)[n/64] |= 1 << (n % 64)
}

func (o ordinals) has(number int64) bool {
	n := uint32(number)
	return int(n/64) < len(o) && o[n/64]&(1<<(n%64)) != 0
}
