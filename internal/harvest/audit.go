package harvest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// surveyTimes is how many times the time and the bytes of one harvest a survey may take: it
// cannot go on where it was left, as harvests do.
const surveyTimes = 4

// Survey is the result of a harvest into an empty log, which shows what a Source has.
type Survey struct {
	Report
	// Whole: all that the Source has was read, without a gap.
	Whole bool
	// Complete: all records of the Source were enumerated, and no entry was bad: a record
	// that was not among them has been deleted (I6). At is the time whose state the
	// enumeration shows; it may be unknown.
	Complete bool
	At       event.Stamp
}

// Survey reads all of a Source into the Harvester's log, which is empty but for the
// Source. It asks for documents alone, and trusts what they state of contents. known is
// what the log that is audited keeps of the Source: another feed at its URL is an error
// (A7), documents whose absence was accepted are not missed, sets of resources have the
// numbers that they have there, and files are claimed as there.
func (h *Harvester) Survey(ctx context.Context, src *Source, known event.Progress, o Options) (Survey, error) {
	var was memory
	if err := unmarshal(known.Memory, &was); err != nil {
		return Survey{}, fmt.Errorf("the state of the last harvest cannot be read (%w): run bridge source reset %s", err, src.Set)
	}
	data, err := json.Marshal(memory{walkMemory: walkMemory{FeedID: was.FeedID, Folder: folderMemory{Base: was.Folder.Base, Round: was.Folder.Round}, OAI: oaiMemory{Named: was.OAI.Named}, Lists: was.Lists.Numbered()}, Accepted: was.Accepted})
	if err != nil {
		return Survey{}, err
	}
	if _, err := h.Log.Append(ctx, &event.Batch{Source: src.ID, Progress: &event.Progress{Memory: data}}); err != nil {
		return Survey{}, err
	}
	survey := *src
	survey.statedOnly = true
	survey.Limits.Time *= surveyTimes
	survey.Limits.Bytes *= surveyTimes
	survey.Found = func(ctx context.Context, kind string) error {
		_, err := h.Log.EnsureSource(ctx, src.Set, kind, src.URL, -1)
		return err
	}
	o.Full = true
	r, err := h.Run(ctx, &survey, o)
	whole := err == nil && (r.Full || r.complete) && r.Gap == ""
	return Survey{Report: r, Whole: whole, Complete: whole && r.complete && r.Quarantined == 0, At: r.at}, err
}

// Repair is a record for which an audit has found that its Source and the log differ.
type Repair struct {
	// Observation is what the Source states now, and Document where it does so.
	Observation event.Observation
	Document    event.Document
	// Absent: a complete enumeration does not have the record; of Observation only its
	// identifier counts.
	Absent bool
	// Seq was that of the record's last event when it was audited. A record that has
	// another one by now is left alone.
	Seq event.Seq
	// Order, Place and Claim are those of the Source's last statement, as the log kept
	// them then. A change that states the same again logs no event, but changes these.
	Order event.Stamp
	Place event.Place
	Claim int64
	// NeedsEvent: the last event of the record is wrong, although the Source may state the
	// same: only another event repairs the record.
	NeedsEvent bool
}

// RepairOf returns a Repair of a record with what the log keeps of it; the caller adds
// the rest.
func RepairOf(here *eventlog.SourceRecord) *Repair {
	o := &here.Observation
	return &Repair{Seq: here.Seq, Order: o.Order, Place: o.Place, Claim: o.Claim}
}

// Repairs are records of one Source that are to be repaired.
type Repairs struct {
	Records []Repair
	// Absent, Have and Active count, of the whole audit, the records that the Source does
	// not have any more, those that it had, and those that it has: the guard decides by
	// these (A6).
	Absent, Have, Active int64
	// Began is how far the harvests were when the audit began to read the Source.
	Began Began
}

// Began is a moment between the harvests of a Source.
type Began struct {
	At time.Time
	// State is a digest of what the last walk has left. It shows walks of another process,
	// which At does not.
	State [sha256.Size]byte
}

// BeganAt returns the moment at which the log keeps this progress of a Source.
func BeganAt(at time.Time, p *event.Progress) Began {
	return Began{At: at, State: sha256.Sum256(fmt.Appendf(nil, "%v|%q|%s", p.Mark, p.Gap, p.Memory))}
}

// walkedSince reports whether a walk of the Source may have ended since, and whether one
// did that read all: that leaves no trace of a record that it finds unchanged.
func (r *run) walkedSince(b *Began) (some, whole bool) {
	since := func(ended any, ok bool) bool { return ok && ended.(time.Time).After(b.At) }
	some = since(r.h.walked.Load(r.src.ID)) || BeganAt(b.At, &r.saved).State != b.State
	return some, since(r.h.walkedWhole.Load(r.src.ID))
}

// Repair brings records to what their Source states now, logs the events for that, and
// changes nothing else: mark and walk stay as they are. It fetches the contents that it
// needs; those that cannot be had are pending. left has for each record why it is not
// repaired, "" if it is.
func (h *Harvester) Repair(ctx context.Context, src *Source, in *Repairs) (left []string, report Report, err error) {
	report, err = h.report(ctx, src, func(r *run) error {
		return defect.Guard(func() (err error) {
			left, err = r.repair(ctx, in)
			return err
		})
	})
	return left, report, err
}

func (r *run) repair(ctx context.Context, in *Repairs) ([]string, error) {
	ids := make([]string, len(in.Records))
	for i := range in.Records {
		ids[i] = in.Records[i].Observation.Record
	}
	now, err := r.h.Log.SourceRecordsOf(ctx, r.src.ID, ids)
	if err != nil {
		return nil, err
	}
	left := make([]string, len(ids))
	walked, whole := r.walkedSince(&in.Began)
	var absent []string
	b := event.Batch{Mode: event.ModeRepair}
	for i := range in.Records {
		x := &in.Records[i]
		switch {
		case now[i].Seq != x.Seq:
			left[i] = "the record has changed since it was audited"
		case !x.isUnchanged(&now[i].Observation):
			left[i] = "the Source has listed the record again since it was audited"
		case whole, x.Absent && walked:
			left[i] = "the Source was harvested since the audit has read it: audit it again"
		case x.Observation.Place.Part > 0 && x.Observation.Place.Part >= r.memory.Lists.Numbers():
			left[i] = "it is in a set of resources of the Source that no harvest has met: harvest the Source"
		case x.Absent:
			absent = append(absent, ids[i])
		default:
			if x.Document.URL == "" {
				x.Document = event.Document{URL: r.src.URL, FeedID: r.memory.FeedID}
			}
			b.Documents = append(b.Documents, x.Document)
			b.Items = append(b.Items, r.itemAgain(x.Observation, len(b.Documents)-1))
		}
	}
	for part := range slices.Chunk(b.Items, r.batchSize()) {
		if err := r.fetchAndCommit(ctx, &event.Batch{Mode: b.Mode, Next: r.data, Documents: b.Documents, Items: part}); err != nil {
			return nil, err
		}
	}
	if len(absent) > 0 {
		r.active = in.Active
		mode, person := r.guardDeletions(in.Absent, in.Have)
		if err := r.deleteAbsent(ctx, absent, mode, person, r.data); err != nil {
			return nil, err
		}
		if err := r.askDoubted(ctx); err != nil {
			return nil, err
		}
	}
	if now, err = r.h.Log.SourceRecordsOf(ctx, r.src.ID, ids); err != nil {
		return nil, err
	}
	for i := range in.Records {
		if left[i] == "" {
			left[i] = in.Records[i].left(&now[i])
		}
	}
	return left, nil
}

// isUnchanged reports whether the log still keeps what it kept when the record was audited.
func (x *Repair) isUnchanged(o *event.Observation) bool {
	return o.Order == x.Order && o.Place == x.Place && o.Claim == x.Claim
}

// left returns why a record is not repaired, "" if it is.
func (x *Repair) left(now *eventlog.SourceRecord) string {
	gone := x.Absent || x.Observation.Deleted
	switch {
	case now.Held:
		return "its deletion is held"
	case now.Pending != "":
		return "pending: " + now.Pending
	case x.NeedsEvent && now.Seq == x.Seq:
		return "the Source has the same content: tell its operator"
	case gone == now.Alive:
		return "another bridge still lists it, or the answer of its URL is awaited"
	}
	return ""
}

// CompareContent reads a content to its end. why is how it differs from the hashes that
// are stated of it, without a coding, and from the length, unless that is
// event.NoLength; "" if it does not.
func CompareContent(rep *event.Representation, body io.Reader) (sum [sha256.Size]byte, size int64, why string, err error) {
	check, whole := newHashCheck(rep), sha256.New()
	if size, err = io.Copy(io.MultiWriter(whole, check), body); err != nil {
		return sum, size, "", err
	}
	got := contentJob{sum: [sha256.Size]byte(whole.Sum(nil)), size: size}
	return got.sum, size, check.compare(&got, rep.Length), nil
}
