package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"unique"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/publish"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// Finding is something in the data folder that is wrong.
type Finding struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Do    string `json:"do"`
}

// Verified counts the checked items.
type Verified struct {
	Events    int64 `json:"events"`
	Contents  int64 `json:"contents"`
	Documents int64 `json:"documents"`
}

// Verify checks the data folder: the log, the state of the records, the segments; every
// content against its hash; and that each content exists that is named by an event, or by a
// submission on which something may still be done. It renders the closed documents again
// and compares them with the stored ones. Of contents in a bucket it looks whether their packs
// are there; with packs it reads these too.
func (b *Bridge) Verify(ctx context.Context, packs bool, found func(Finding)) (Verified, error) {
	var v Verified
	report := func(f Finding) {
		if ctx.Err() == nil { // else it is what an interrupted reading takes for damage
			found(f)
		}
	}
	if err := b.Log.Verify(ctx, func(f eventlog.Finding) { report(Finding(f)) }); err != nil {
		return v, err
	}
	if err := b.SIP.Verify(ctx, func(f eventlog.Finding) { report(Finding(f)) }); err != nil {
		return v, err
	}
	sets, err := b.Log.Sets(ctx)
	if err != nil {
		return v, err
	}
	for _, s := range sets {
		v.Events += s.Events
	}
	if err := b.verifyContents(ctx, sets, packs, &v, report); err != nil {
		return v, err
	}
	if err := b.verifyFiles(ctx, report); err != nil {
		return v, err
	}
	return v, cmp.Or(b.verifyDocuments(ctx, sets, &v, report), context.Cause(ctx))
}

// verifyFiles looks whether all that other nodes get from the bucket is there.
func (b *Bridge) verifyFiles(ctx context.Context, report func(Finding)) error {
	files, err := b.openFiles()
	if files == nil || err != nil {
		return err
	}
	defer func() { _ = files.Close() }() // only idle connections
	o := b.publishOptions("")
	o.Files = files
	if o.FilesOwner, err = b.filesOwner(false); err != nil {
		return err
	}
	p, err := publish.New(o)
	if err != nil {
		return err
	}
	incomplete, err := p.VerifyFiles(ctx)
	if err != nil && ctx.Err() == nil {
		report(Finding{files.String(), "what other nodes get from there cannot be checked: " + Redact(err.Error()), "what it says; a damaged index is written anew by the node that writes the log, within a minute"})
		return nil
	}
	for _, folder := range incomplete {
		report(Finding{files.String() + ", " + folder, "objects are missing, or have another length; nodes that have it already still publish it", "nothing: the node that writes the log puts it there again within an hour"})
	}
	return err
}

const (
	restore       = "restore the contents from a backup; without one, harvest into a new data folder"
	restoreRecord = "restore the contents from a backup; without one, reject it if it is under review, and have the record submitted again"
)

// verifyContents reads every content, and then looks up each one that an event or a
// submission names. Findings name the record.
func (b *Bridge) verifyContents(ctx context.Context, sets []event.Set, packs bool, v *Verified, report func(Finding)) error {
	bad := faults{}
	if b.Contents != nil {
		stats, err := b.Contents.Verify(ctx, packs, func(sum content.Sum, err error) {
			if err != nil {
				bad.add(sum, err.Error())
			}
		})
		v.Contents = stats.Count
		if errors.Is(err, content.ErrDamaged) {
			report(Finding{b.Contents.Name(), err.Error(), restore})
		} else if err != nil {
			return err
		}
	}
	unnamed := "no event names it"
	for _, s := range sets {
		if s.Content != event.Mirror || s.Events == 0 {
			continue
		}
		if b.Contents == nil {
			report(Finding{"content.db", "it is not there, and set " + s.Name + " is a mirror", fetchAgain})
			return nil
		}
		whole, err := b.verifyNamed(ctx, s.Name, bad, report)
		if err != nil {
			return err
		}
		if !whole {
			unnamed = "which event names it is not known"
		}
	}
	for sum := range bad {
		if what := bad.take(sum); what != "" {
			report(Finding{"content " + sum.String(), what + "; " + unnamed, restore})
		}
	}
	return b.verifySubmitted(ctx, bad, report)
}

// faults are the faults of bad contents; "" once one was reported. All may be bad, so a text that
// several share is kept once.
type faults map[content.Sum]unique.Handle[string]

func (f faults) add(sum content.Sum, text string) {
	f[sum] = unique.Make(strings.Replace(text, "content "+sum.String(), "it", 1)) // which stands before it
}

// take returns the fault of a content that is to be reported, "" if there is none.
func (f faults) take(sum content.Sum) string {
	what, bad := f[sum]
	if !bad {
		return ""
	}
	f[sum] = unique.Make("")
	return what.Value()
}

// fetchAgain is the advice for contents that the Source may still have.
const fetchAgain = "bridge harvest --full fetches it again, if the Source still has it; else restore the contents from a backup"

// verifyNamed looks up every content that an event of a set names, as far as the events can be
// read. It reports whether that was all of them.
func (b *Bridge) verifyNamed(ctx context.Context, set string, bad faults, report func(Finding)) (whole bool, err error) {
	type naming struct{ who, do string }
	named := map[content.Sum]naming{} // those to look up
	ask := func() error {
		missing, err := b.Contents.Missing(ctx, slices.Collect(maps.Keys(named)))
		for _, m := range missing {
			if _, known := bad[m]; !known {
				bad.add(m, "it is not there")
			}
		}
		for sum, n := range named {
			if what := bad.take(sum); what != "" {
				report(Finding{"content " + sum.String(), what + "; " + n.who, n.do})
			}
		}
		clear(named)
		return err
	}
	whole = true
	var last event.Seq
	for ev, err := range b.Log.Events(ctx, set, event.Range{Upto: math.MaxInt64}) {
		if err != nil { // found by the log's own check
			if _, err := b.Log.Set(ctx, set); errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
				break
			}
			whole = false
			report(Finding{"set " + set, fmt.Sprintf("the contents that its events after event %d name were not looked up: %v", last, err), "see the findings about the events"})
			break
		}
		last = ev.Seq
		for _, r := range ev.Representations {
			sum, err := content.ParseSum(r.SHA256())
			if err != nil {
				report(Finding{fmt.Sprintf("event %d", ev.Seq), "a representation of a mirror has no SHA-256", restore})
				continue
			}
			do := fetchAgain
			if ev.Origin.Protocol == harvest.SIP {
				do = restore // it came with a request, so no Source has it
			}
			named[sum] = naming{fmt.Sprintf("event %d names it, of record %q of set %s, as %s", ev.Seq, ev.Record, set, Redact(r.Href)), do}
		}
		if len(named) >= 1000 {
			if err := ask(); err != nil {
				return false, err
			}
		}
	}
	return whole, ask()
}

// verifySubmitted looks up the record of every submission that is to be sent, to be decided
// or to be sent again. The record of an accepted one is in an event, if the set serves it.
func (b *Bridge) verifySubmitted(ctx context.Context, bad faults, report func(Finding)) error {
	q := submission.Query{Limit: 1000, Damaged: true, States: []submission.State{submission.StateWaiting, submission.StateForwarding, submission.StateInDoubt, submission.StateProvisional,
		submission.StateUnresolved, submission.StateUnsent}}
	for {
		page, err := b.SIP.Submissions(ctx, q)
		if err != nil {
			return ctx.Err() // the log's own check finds it
		}
		for i := range page {
			s := &page[i]
			if _, known := bad[s.Content]; s.Content == [32]byte{} || known {
				continue // without a record, or already reported, or damaged, which the log's own check finds
			}
			if b.Contents == nil {
				report(Finding{"content.db", "it is not there, and the records of submissions are kept in it", restoreRecord})
				return nil
			}
			what, err := b.recordFault(ctx, s)
			if err != nil {
				return err
			}
			if what != "" {
				bad.add(s.Content, "")
				report(Finding{"content " + content.Sum(s.Content).String(), fmt.Sprintf("submission %d of set %s, which is %s, %s", s.ID, s.Set, s.State, what), restoreRecord})
			}
		}
		if len(page) < q.Limit {
			return nil
		}
		q.After = page[len(page)-1].ID
	}
}

// recordFault returns what is wrong with the record of a submission in the store; "" means
// nothing, or damage that verifyContents reports.
func (b *Bridge) recordFault(ctx context.Context, s *submission.Submission) (string, error) {
	record, err := b.Contents.Open(ctx, s.Content)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "keeps its record there, and it is not there", nil
	case errors.Is(err, content.ErrDamaged):
		return "", nil
	case err != nil:
		return "", err
	}
	defer func() { _ = record.Close() }() // it was only read
	if record.Size() != s.Length {
		return fmt.Sprintf("says that its record there has %d bytes, and it has %d", s.Length, record.Size()), nil
	}
	return "", nil
}

func (b *Bridge) verifyDocuments(ctx context.Context, sets []event.Set, v *Verified, report func(Finding)) error {
	// The cache may have another base URL: of another run, where the system chooses the
	// port, or because only --data was given.
	bases := publish.Bases(b.cacheDir(), b.snapshotDir())
	if len(bases) == 0 {
		bases = []string{cmp.Or(b.Config().BaseURL, "http://"+b.Config().Listen)} // any base URL serves for the check
	}
	seen := map[string]bool{} // damaged folders, of whichever base URL
	for i, base := range bases {
		documents, err := b.verifyBase(ctx, base, sets, seen, report)
		if err != nil {
			return err
		}
		if i == 0 {
			v.Documents = documents // each document counts once
		}
	}
	return nil
}

// verifyBase renders the closed documents under a base URL, and returns how many there
// are. seen are the damaged folders that were reported, and the sets that have gone.
func (b *Bridge) verifyBase(ctx context.Context, base string, sets []event.Set, seen map[string]bool, report func(Finding)) (documents int64, err error) {
	p, err := b.Publisher(base)
	if err != nil {
		return 0, err
	}
	for i := range sets {
		s := &sets[i]
		var found []Finding
		n, err := b.verifySet(ctx, p, s.Name, seen, func(f Finding) { found = append(found, f) })
		if now, gone := b.Log.Set(ctx, s.Name); errors.Is(gone, fs.ErrNotExist) || gone == nil && now.Feed != s.Feed {
			// What was found is that nothing, or another set, has its name.
			if where := "set " + s.Name; !seen[where] {
				seen[where] = true
				report(Finding{where, "it was renamed or removed meanwhile, and not all of it was checked", "run bridge verify again"})
			}
			continue
		}
		for _, f := range found {
			report(f)
		}
		if documents += n; err != nil {
			return documents, err
		}
	}
	return documents, nil
}

// verifySet is verifyBase for one set.
func (b *Bridge) verifySet(ctx context.Context, p *publish.Publisher, set string, seen map[string]bool, report func(Finding)) (documents int64, err error) {
	failed := func(what string, err error) {
		if err != nil {
			report(Finding{"set " + set + ", " + what, err.Error(), "see the findings about the events"})
		}
	}
	compared := func(what, do string, checks ...publish.Check) {
		documents += int64(len(checks))
		for _, c := range checks {
			for _, file := range c.Damaged {
				report(Finding{file, what + "; it is never served", do})
			}
		}
	}
	const ofLog, ofSnapshots = "it is not what the log gives", "delete the folder snapshots; serve makes it anew"
	segments, err := b.Log.Segments(ctx, set)
	if err != nil {
		return documents, err
	}
	for _, g := range segments {
		if g.Open() {
			continue
		}
		check, err := p.VerifySegment(ctx, set, g.N)
		if failed(fmt.Sprintf("Change List %d", g.N), err); err != nil {
			check.Damaged = nil // not all of it was compared
		}
		compared(ofLog, "delete it", check)
	}
	archives, err := p.VerifyArchives(ctx, set)
	failed("archives", err)
	compared(ofLog, "delete it", archives...)
	lists, err := p.VerifySnapshot(ctx, set)
	failed("Resource List", err)
	kept, err := p.VerifyLists(ctx, set)
	failed("Resource List Archive", err)
	compared(ofLog, ofSnapshots, append(lists, kept...)...)
	dumps, err := p.VerifyDumps(ctx, set)
	if err != nil {
		return documents, err
	}
	compared("it is not what was written", "delete its folder; serve makes it anew", dumps...)
	folders, err := p.VerifyFolders(ctx, set)
	if err != nil {
		return documents, err
	}
	for _, folder := range folders {
		if !seen[folder] {
			seen[folder] = true
			report(Finding{folder, "it is not what was written; it is never served", "delete it; serve makes it anew"})
		}
	}
	return documents, nil
}
