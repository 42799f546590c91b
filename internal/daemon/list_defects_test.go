package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// defectCase is a defect of a Source, what is said of it, and when the changes that it
// touches arrive: in the next harvest, unless something else is said.
type defectCase struct {
	defect fixtures.Defect
	// said is what the report, what waits, the quarantine or the log says; "" when
	// nothing is wrong that could be told from a Source as it should be.
	said string
	// on is the resource that has it; "" is everything.
	on      string
	options fixtures.SourceOptions
	// modes in which it matters, by default reference alone.
	modes []string
	// late: it comes up after the first harvest.
	late bool
	// full: with --full from then on.
	full bool
	// arrives says when all changes have arrived.
	arrives string
}

// When the changes of a Source with a defect have arrived.
const (
	atOnce        = ""
	aHarvestLater = "a harvest later"
	withFull      = "with --full"
	onceMended    = "once the Source is mended, and publishes that as a change"
)

// defectCases is the table: one row a defect.
func defectCases() []defectCase {
	type o = fixtures.SourceOptions
	mirror, both := []string{config.Mirror}, []string{config.Mirror, config.Reference}
	lists, parts, carry := o{PerList: 3}, o{PerList: 3, PerPart: 2}, o{PerList: 3, Carry: true}
	return []defectCase{
		{defect: fixtures.NewestFirst, said: "rs-order", options: lists},
		{defect: fixtures.OffsetTimes, said: "rs-utc", options: lists},
		{defect: fixtures.NaiveTimes, said: "rs-naive", options: lists},
		{defect: fixtures.LocalTimesWithZ, said: "late", options: o{PerList: 3, Clock: time.Now}},
		{defect: fixtures.DateOnly, said: "rs-utc", options: lists},
		{defect: fixtures.MissingDatetime, said: "rs-datetime", options: lists, modes: both},
		{defect: fixtures.MissingFrom, said: "rs-from", options: lists},
		{defect: fixtures.MissingUntil, options: lists}, // until is optional
		{defect: fixtures.MissingAt, said: "rs-at", options: parts},
		{defect: fixtures.WrongNamespace, said: "rs-namespace", options: parts},
		{defect: fixtures.NestedIndex, said: "rs-nested", options: parts},
		{defect: fixtures.EmptyResourceList, said: "rs-empty", late: true, full: true, options: lists},
		// An empty Change List is that of a Source without changes; and who never
		// tells deletions seems to have none. A baseline shows both.
		{defect: fixtures.EmptyChangeLists, late: true, options: lists, arrives: withFull},
		{defect: fixtures.NoDeletions, options: lists, arrives: withFull},
		{defect: fixtures.Capped, said: "rs-full", options: lists},                        // see TestList_Capped
		{defect: fixtures.MovingLists, options: lists, modes: both},                       // URLs may change
		{defect: fixtures.StaleOnce, options: lists, arrives: aHarvestLater, modes: both}, // an old list is a good list
		{defect: fixtures.PartsMove, said: "rs-stable", full: true, options: parts},
		{defect: fixtures.DuplicateLoc, said: "twice", options: lists},
		{defect: fixtures.LocWhitespace, said: "rs-loc", options: lists, modes: both},
		{defect: fixtures.LocRelative, said: "rs-loc", options: lists, modes: both},
		{defect: fixtures.LocElsewhere, options: carry, modes: both}, // other ports of the host are the Source's
		{defect: fixtures.LocDotDot, said: "rs-loc", on: "d", options: carry, arrives: onceMended, modes: mirror},
		{defect: fixtures.LocFile, said: "local", on: "d", options: carry, arrives: onceMended, modes: both},
		{defect: fixtures.LocCredentials, said: "user name or password", options: carry, modes: both},
		{defect: fixtures.WrongHash, said: "its SHA-256 is", on: "d", options: lists, arrives: onceMended, modes: mirror},
		{defect: fixtures.HashBase64, said: "rs-hash", options: lists, modes: both},
		{defect: fixtures.HashBase64URL, said: "rs-hash", options: lists, modes: both},
		{defect: fixtures.HashUpper, options: lists, modes: both},     // hex has both cases
		{defect: fixtures.HashUnknown, options: lists, modes: mirror}, // and is kept, unchecked
		{defect: fixtures.WrongLength, said: "bytes, the Source says", on: "d", options: lists, arrives: onceMended, modes: mirror},
		{defect: fixtures.ShortContent, said: "unexpected EOF", on: "d", options: lists, arrives: onceMended, modes: mirror},
		{defect: fixtures.ShortDocuments, said: "unexpected EOF", options: lists, arrives: onceMended},
		{defect: fixtures.BusyContent, said: "trying again", options: o{RetryAfter: "0"}, modes: mirror},
		{defect: fixtures.BusyDocuments, said: "trying again", options: o{RetryAfter: "0"}},
		{defect: fixtures.RedirectContent, options: lists, modes: mirror}, // redirects are allowed
		{defect: fixtures.RedirectDocuments, options: parts},
		{defect: fixtures.GzipEncoding, options: parts}, // as is gzip
		{defect: fixtures.GzipFiles, options: parts},
	}
}

// TestList_Defects: a Source with any defect of the real testNetwork is followed without
// a lost change, nothing is deleted that lives, and the defect is named.
func TestList_Defects(t *testing.T) {
	testenv.Heavy(t)
	rows := defectCases()
	for _, d := range fixtures.Defects() {
		if !slices.ContainsFunc(rows, func(f defectCase) bool { return f.defect == d }) {
			t.Errorf("no row for %s", d)
		}
	}
	for _, f := range rows {
		if f.modes == nil {
			f.modes = []string{config.Reference}
		}
		for _, mode := range f.modes {
			t.Run(string(f.defect)+", "+mode, func(t *testing.T) {
				t.Parallel()
				f.check(t, mode)
			})
		}
	}
}

// defectRun is a harness with what is said of its Source.
type defectRun struct {
	*listHarness
	defectCase
	log   bytes.Buffer
	spoke strings.Builder
}

func (f defectCase) check(t *testing.T, mode string) {
	if f.defect == fixtures.Capped {
		manyInOneList(t)
		return
	}
	b := &defectRun{defectCase: f}
	b.start(t, mode)
	if !f.late {
		b.misbehave()
	}
	b.create("a", "b", "c")
	b.follow("created")
	b.misbehave()
	b.apart()
	b.update("a")
	b.remove("b")
	b.create("d")
	b.follow("changed")
	b.apart()
	b.recreate("b")
	b.update("c", "a", "a")
	b.follow("changed again")
	if f.said != "" && !strings.Contains(b.spoke.String(), f.said) {
		t.Errorf("nothing says %q in\n%s", f.said, b.spoke.String())
	}
	if f.said == "" && f.arrives == atOnce && strings.Contains(b.spoke.String(), ": ") {
		t.Errorf("something is said:\n%s", b.spoke.String())
	}
	for _, event := range b.eventsAfter(0) {
		if strings.HasPrefix(event, "deleted ") && event != "deleted b" {
			t.Errorf("%s, which lives", event)
		}
	}
}

// start opens a bridge over a Source, and another server for what it keeps
// elsewhere: a twin without defects.
func (b *defectRun) start(t *testing.T, mode string) {
	twin := fixtures.NewSource(b.options)
	server := httptest.NewServer(twin)
	t.Cleanup(server.Close)
	o := b.options
	o.Elsewhere = server.URL
	b.listHarness = newListHarness(t, o, content(mode))
	b.twin = twin
	twin.SetBase(b.server.URL)
	b.quick(func(o *fetch.Options) { o.Log = slog.New(slog.NewTextHandler(&b.log, nil)) })
}

func (b *defectRun) misbehave() {
	if b.on == "" {
		b.origin.Behave()
		b.origin.Misbehave(b.defect)
	} else {
		b.origin.MisbehaveOn(b.on, b.defect)
	}
}

// follow harvests until all changes have to have arrived.
func (b *defectRun) follow(what string) {
	b.t.Helper()
	b.pass(harvest.Options{Full: b.full})
	switch b.arrives {
	case aHarvestLater:
		b.pass(harvest.Options{})
	case withFull:
		b.pass(harvest.Options{Full: true})
	case onceMended:
		b.pass(harvest.Options{AllPending: true}) // the second time tells what lasts
		b.origin.Behave()
		b.apart()
		for _, c := range b.origin.Live() {
			b.origin.Touch(c.Name)
		}
		r := b.pass(harvest.Options{AllPending: true})
		defer b.misbehave()
		if r.Error != "" {
			b.t.Error(r.Error)
		}
	}
	b.wantSame(what)
	if n := b.stored().Held; n > 0 && b.defect != fixtures.EmptyResourceList {
		b.t.Errorf("%s: %d deletions are held", what, n)
	}
}

// pass harvests once and notes what is said.
func (b *defectRun) pass(o harvest.Options) harvest.Report {
	b.t.Helper()
	r, err := b.try(o)
	if err != nil && b.arrives != onceMended {
		b.t.Errorf("%v", err)
	}
	for _, e := range r.Examples {
		fmt.Fprintf(&b.spoke, "%s: %s\n", e.Rule, e.First)
	}
	for _, w := range append(r.Warnings, r.Gap, r.Error) {
		fmt.Fprintln(&b.spoke, w)
	}
	kept, err := b.bridge.Log.Pending(b.t.Context(), b.source().ID, math.MaxInt64, 0, 100)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, k := range kept {
		fmt.Fprintln(&b.spoke, k.Reason)
	}
	for _, q := range b.quarantined() {
		fmt.Fprintf(&b.spoke, "%s: %s\n", q.Rule, q.Reason)
	}
	b.spoke.Write(b.log.Bytes())
	b.log.Reset()
	return r
}

// manyInOneList: a Resource List that ends at 50,000 entries is no enumeration:
// what it leaves out is not deleted.
func manyInOneList(t *testing.T) {
	testenv.Heavy(t)
	b := newListHarness(t, fixtures.SourceOptions{ChangeLists: fixtures.NoChangeLists, PerPart: 40_000}, content(config.Reference))
	for i := range 50_002 {
		b.origin.Create(fixtures.Resource{Name: fmt.Sprintf("r%05d", i), Body: []byte("x")})
	}
	if r := b.harvest(); r.Created != 50_002 {
		t.Fatalf("%+v", r)
	}
	b.origin.Misbehave(fixtures.Capped)
	b.apart()
	b.origin.Update(fixtures.Resource{Name: "r00007"})
	b.origin.Delete("r00008")
	before := b.last()
	r := b.harvest()
	b.want("capped", b.eventsAfter(before), "updated r00007 2")
	if first := reported(r, "rs-full"); !strings.Contains(first, "50000 entries") {
		t.Errorf("not reported: %s", said(r))
	}
}

// A change with a word that nobody knows is kept back whole: whether the
// resource is there cannot be told. Put right, it can be taken in after all.
func TestListQuarantine_UnknownChange(t *testing.T) {
	b := newListHarness(t, fixtures.SourceOptions{Carry: true, ChangeLists: fixtures.SingleChangeList})
	b.create("a")
	b.expect("baseline", "created a 1")
	b.origin.SetHook(fixtures.ChangeList, fixtures.Hook{Body: func(body []byte) []byte {
		return bytes.Replace(body, []byte(`change="updated"`), []byte(`change="moved"`), 1)
	}})
	b.update("a")
	b.create("b")
	r := b.expect("one change of two", "created b 1")
	list := b.quarantined()
	if r.Quarantined != 1 || len(list) != 1 || list[0].Rule != "change" || list[0].Record != "urn:a" || !strings.Contains(list[0].Reason, `"moved"`) {
		t.Fatalf("in quarantine %+v", list)
	}
	if _, err := b.replay(list[0]); !errors.Is(err, harvest.ErrStillBad) {
		t.Errorf("replayed as it was: %v", err)
	}
	b.origin.ClearHook(fixtures.ChangeList)
	b.expect("the Source has put it right", "updated a 2")
}
