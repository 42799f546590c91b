package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/audit"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// AuditOptions are the options of an audit.
type AuditOptions struct {
	// Origin also requests the originals that are on other servers than the Source.
	Origin bool
	// Repair: what is found is to be repaired.
	Repair bool
	// Begin is called before each Source with its URL. It returns two functions: progress
	// is called with the progress of reading the Source, and ended at the end.
	Begin func(source string) (progress func(harvest.Progress), ended func())
	// Found is called with the differences, a page at a time. It may set Finding.Repair.
	Found func(ctx context.Context, p *audit.Page) error
}

// AuditedSet is the result of the audit of a set.
type AuditedSet struct {
	Set string `json:"set"`
	// BaseURL is the start of the URLs of its documents, "" when it is not configured.
	BaseURL string `json:"base_url,omitempty"`
	// Records is the number of its live records, Listed of those in its Resource List.
	Records int64 `json:"records"`
	Listed  int64 `json:"listed"`
	// Sources are in the order of their rank.
	Sources []*audit.Report `json:"sources"`
}

const (
	// originsAtOnce and originsRate bound the requests for originals to one server: how
	// many at the same time, and how many a second. These servers did not agree to be
	// harvested.
	originsAtOnce = 2
	originsRate   = 5
)

// Audit compares a set with its Sources. The Bridge is open for reading; another process
// may be writing to the data folder.
func (b *Bridge) Audit(ctx context.Context, set string, o AuditOptions) (*AuditedSet, error) {
	stored, err := b.Log.Set(ctx, set)
	if err != nil {
		return nil, err
	}
	if b.generation.Load().guard == nil {
		if err := b.openGuard(ctx, nil); err != nil {
			return nil, err
		}
		g := *b.generation.Load()
		if _, err := b.expand(ctx, &g, nil); err != nil {
			return nil, err
		}
		b.generation.Store(&g)
	}
	out := &AuditedSet{Set: set}
	if b.Config().File != "" {
		out.BaseURL = b.Config().BaseURL
	}
	all, err := b.Log.Sources(ctx, set)
	if err != nil {
		return nil, err
	}
	configured, err := b.sourcesToRead(&stored, all)
	if err != nil {
		return nil, err
	}
	pauses, err := b.pauseStatus(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		at := slices.IndexFunc(configured, func(s *Source) bool { return s.ID == all[i].ID })
		var src *Source
		unread := ""
		if at >= 0 {
			src = configured[at]
		} else if src, err = b.unconfigured(ctx, set, &all[i]); err != nil {
			return nil, err
		} else if unread, err = b.unread(src, &all[i], o.Repair); err != nil {
			return nil, err
		}
		if pauses[all[i].ID] != nil {
			unread = "the Source is paused, and not asked for anything: " + howToResume
		}
		report, err := b.auditSource(ctx, src, unread, o)
		if err != nil {
			return nil, fmt.Errorf("set %s, %s: %w", set, Redact(src.URL), err)
		}
		out.Sources = append(out.Sources, report)
	}
	for _, src := range configured {
		if src.ID == 0 {
			out.Sources = append(out.Sources, b.emptyReport(set, src.URL, src.Kind))
		}
	}
	if stored, err = b.Log.Set(ctx, set); err != nil {
		return nil, err
	}
	out.Records = stored.Live
	for _, err := range b.Log.Listed(ctx, set, stored.Last) {
		if err != nil {
			return nil, err
		}
		out.Listed++
	}
	return out, nil
}

// NeverHarvested returns the configured sets of which the log has nothing, as audits that could
// compare nothing. A template is one of them while no set was derived from it.
func (b *Bridge) NeverHarvested(ctx context.Context) ([]*AuditedSet, error) {
	stored, err := b.Log.Sets(ctx)
	if err != nil {
		return nil, err
	}
	var out []*AuditedSet
	for _, s := range b.FileConfig().Sets {
		known := slices.ContainsFunc(stored, func(set event.Set) bool { return set.Name == s.Name })
		if s.IsTemplate() {
			derived, err := b.Log.DerivedSets(ctx, s.Name)
			if err != nil {
				return nil, err
			}
			known = len(derived) > 0
		}
		if known {
			continue
		}
		set := &AuditedSet{Set: s.Name, BaseURL: b.FileConfig().BaseURL}
		for _, src := range s.Sources {
			if src.Kind != config.KindSIP { // it calls us
				set.Sources = append(set.Sources, b.emptyReport(s.Name, src.URL, src.Kind))
			}
		}
		if len(set.Sources) > 0 {
			out = append(out, set)
		}
	}
	return out, nil
}

const howToResume = "resume it with bridge source resume"

// emptyReport is the report on a Source that was never harvested.
func (b *Bridge) emptyReport(set, url, kind string) *audit.Report {
	return &audit.Report{Set: set, Source: url, Kind: kind, Started: b.now().UTC(), Ended: b.now().UTC(), Unchecked: []string{"the Source was never harvested"}}
}

// unread says why a Source that is not configured is not read: with other settings than it was
// harvested with it has other records and representations, and to repair these would damage them.
// Where no Source is configured it was named on a command line, without settings, unless it has
// a name, which only a configuration gives, or the folder was last used with one.
func (b *Bridge) unread(src *Source, stored *eventlog.Source, repair bool) (string, error) {
	if stored.Former || !b.hasNoSet() {
		return "the Source is no longer configured, so its settings are not known, and it is not read: configure it again, or end it with bridge source forget", nil
	}
	if asked, err := src.AskedBefore(&stored.Progress); err != nil {
		return "", err
	} else if !asked {
		return "the Source was harvested with settings that are not known here, and is not read: name the configuration that it stands in with --config", nil
	}
	file, err := eventlog.ReadMark(b.Config().Data, eventlog.ConfigurationName)
	if err == nil && repair && (stored.Name != "" || file != "") {
		return strings.TrimSpace("the Source stands in a configuration, whose settings are not known here, and nothing of it is repaired without them: name that configuration with --config " + file), nil
	}
	return "", err
}

func (b *Bridge) auditSource(ctx context.Context, src *Source, unread string, o AuditOptions) (*audit.Report, error) {
	a := audit.Auditor{Log: b.Log, Contents: b.Contents, Folder: b.Config().Data, Now: b.opt.Now, Unread: unread}
	if o.Origin {
		a.Origin = b.originClient(src)
	}
	progress, ended := o.Begin(src.URL)
	defer ended()
	return a.Source(ctx, &src.Source, progress, o.Found)
}

// originClient returns the client that requests the originals of a Source's records. It
// reaches public addresses and those of allow_hosts, and sends no login.
func (b *Bridge) originClient(src *Source) *http.Client {
	options := b.fetchOptions(b.Config())
	options.Reach = fetch.Reach{Typed: []string{src.URL}, Allowed: b.Config().AllowHosts}
	options.PerHost = originsAtOnce
	if options.Rate == 0 || options.Rate > originsRate {
		options.Rate = originsRate
	}
	g := fetch.New(options)
	b.guards = append(b.guards, g)
	return g.Client("")
}

// sourcesToRead returns the configured Sources of a set. The log is open for reading, and
// all are its Sources of the set. A Source that the log does not have gets no ID.
func (b *Bridge) sourcesToRead(set *event.Set, all []eventlog.Source) ([]*Source, error) {
	s := b.Config().Set(set.Name)
	if s == nil {
		return nil, nil
	}
	in, err := b.setConfig(s)
	if err != nil {
		return nil, err
	}
	in.Content = set.Content
	for i := range all {
		found := &all[i]
		if in.First == 0 || found.ID < in.First {
			in.First = found.ID
		}
		for j := range in.Sources {
			if c := &in.Sources[j]; c.URL == found.URL || c.Name != "" && c.Name == found.Name {
				c.ID, c.Kind = found.ID, found.Kind
			}
		}
	}
	b.base = b.Config().BaseURL
	return b.openSources(b.generation.Load(), s, &in, set.Feed)
}

// Repair is a request to repair some records of one Source in which an audit found
// differences.
type Repair struct {
	Set    string `json:"set"`
	Source string `json:"source"` // its URL
	// Records is harvest.Repairs in encoded form, with a flag for each record: whether
	// fetching its contents again may be enough.
	Records []byte `json:"records"`
}

// RepairedAtOnce is how many differences a Repair may be of: so many of the largest records fit
// into one request to the process that has the data folder.
const RepairedAtOnce = 100

type repairs struct {
	harvest.Repairs
	Contents []bool
}

// NewRepair returns the decision to repair the findings of a page, and the index in the
// page of each of its records; nil when nothing can be repaired.
func NewRepair(p *audit.Page) (*Repair, []int, error) {
	all := repairs{Repairs: harvest.Repairs{Absent: p.Absent, Have: p.Have, Active: p.Active, Began: p.Began}}
	var of []int
	r := &Repair{}
	for i := range p.Differences {
		d := &p.Differences[i]
		if d.Repair == nil {
			continue
		}
		of = append(of, i)
		all.Records, all.Contents = append(all.Records, *d.Repair), append(all.Contents, d.Content)
		r.Set, r.Source = d.Findings[0].Set, d.Findings[0].Source
	}
	if len(of) == 0 {
		return nil, nil, nil
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&all)
	r.Records = b.Bytes()
	return r, of, err
}

// repair repairs records, in the process that holds the data folder.
func (b *Bridge) repair(ctx context.Context, in *Repair) ([]string, error) {
	var all repairs
	if err := gob.NewDecoder(bytes.NewReader(in.Records)).Decode(&all); err != nil || len(all.Contents) != len(all.Records) {
		return nil, errors.Join(errors.New("what is to be repaired cannot be read"), err)
	}
	src, err := b.Find(ctx, in.Set, in.Source)
	if err != nil {
		return nil, err
	}
	ctx, leave := src.turn.take(ctx)
	defer leave()
	left := make([]string, len(all.Records))
	paused, err := b.paused(ctx, src.ID)
	if err != nil {
		return nil, err
	}
	if paused != nil {
		for i := range left {
			left[i] = "the Source is paused: " + howToResume
		}
		return left, nil
	}
	var of []int // the indexes of the records that need more than their contents
	rest := all.Repairs
	rest.Records = nil
	for i := range all.Records {
		x := &all.Records[i]
		if all.Contents[i] {
			why, err := b.repairContents(ctx, src, x)
			if err != nil {
				return nil, err
			}
			if why == "" || len(x.Observation.Representations) == 0 {
				left[i] = why
				continue
			}
		}
		of, rest.Records = append(of, i), append(rest.Records, *x)
	}
	if len(of) == 0 {
		return left, nil
	}
	done, report, err := b.harvest.Repair(ctx, &src.Source, &rest)
	if err != nil {
		return nil, err
	}
	for n, i := range of {
		left[i] = done[n]
	}
	b.opt.Logger.Info("repaired what an audit has found", "set", src.Set, "source", src.URL, "records", len(of),
		"created", report.Created, "updated", report.Updated, "deleted", report.Deleted, "pending", report.Pending, "held", report.Held)
	return left, nil
}

// repairContents fetches the contents of a record again. It returns the reason why that was
// not enough, "" if it was.
func (b *Bridge) repairContents(ctx context.Context, src *Source, x *harvest.Repair) (string, error) {
	ev, err := b.Log.Record(ctx, src.Set, event.Key(x.Observation.Record))
	if errors.Is(err, fs.ErrNotExist) || err == nil && ev.Seq != x.Seq {
		return "the record has changed since it was audited", nil
	}
	if err != nil {
		return "", err
	}
	if src.Kind == config.KindSIP {
		return "its content came with a request: " + restore, nil
	}
	var did restored
	if err := b.restoreRecord(ctx, src, &namedContents{ev.Record, ev.Representations}, &did); err != nil || did.failed == 0 {
		return "", err
	}
	return did.first.Error(), nil
}

// SettleRepair sets the outcome of a repair on the findings of a page. NewRepair has
// returned of, the indexes of the findings; left has the outcome of each.
func SettleRepair(p *audit.Page, of []int, left []string) {
	for i := range p.Differences {
		for j := range p.Differences[i].Findings {
			f := &p.Differences[i].Findings[j]
			if n := slices.Index(of, i); n >= 0 && n < len(left) {
				f.Repair = cmp.Or(left[n], audit.Done)
			} else {
				f.Repair = byHand(f)
			}
		}
	}
}

// byHand says what a person can do about a finding that a repair leaves.
func byHand(f *audit.Finding) string {
	switch f.Kind {
	case audit.Extra:
		return "its absence alone does not delete it: bridge harvest --full does, or holds the deletion, if the Source lists all its records"
	case audit.Held:
		return "a person decides: bridge source release " + f.Set
	case audit.Quarantined:
		return "the entry is bad: tell the Source's operator"
	}
	return "it has to be done by hand"
}
