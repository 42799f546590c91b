package main

import (
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/internal/config"
)

const (
	million    = 1_000_000
	fewRecords = 100 // of a small append
	manyAtOnce = 2000
	dumped     = 200_000 // records of a Resource Dump
	share      = 20      // a slow rival is given 1/share of the work
)

// cases are all measurements, in the order in which they are done and printed. The bars are
// those of docs/performance.md.
func (b *bench) cases() []measurement {
	entries, records, long, posts := b.scaled(10_000), b.scaled(million), b.scaled(3*million), b.scaled(60_000)
	const reference, mirror = config.Reference, config.Mirror
	chain, source := chainOf(100, entries, 0), sourceOf(records, 0, 0, 0)
	first := []job{{Name: "harvest", Content: reference}, {Name: "insert"},
		{Name: "harvest", Content: reference, Repeat: 3}, {Name: "harvest", Content: reference, Full: true}}
	takeLong := job{Name: "harvest", Content: reference}
	longLists := func(capability string) measurement {
		server, take := sourceOf(long, 0, 0, 0), takeLong
		server.LongList, take.LongList = capability, capability
		return measurement{name: "longlist", server: server, jobs: []job{take}, once: true, rows: longListRow(capability, long)}
	}
	twoSegments := []job{{Name: "build", Content: mirror, Number: 2 * segment, Segment: segment}}
	harvestRecords := []job{{Name: "harvest", Content: reference}}
	polls := []job{{Name: "follow", Content: reference, Changes: fewRecords}, {Name: "follow", Content: reference}}
	atOnce := func(documents, entries, sources int) measurement {
		return measurement{name: "sources", once: true, server: chainOf(documents, entries, 0),
			jobs: []job{{Name: "sources", Number: sources, Content: reference}}, rows: sourcesRow(sources, entries)}
	}
	post := func(kind string) job { return job{Name: "post", Kind: kind, Number: posts, Repeat: connections} }
	files := job{Name: "sink", Number: posts}
	outbox := b.scaled(b.outbox)
	small, large, mirrored := b.scaled(20_000), b.scaled(1100), []job{{Name: "harvest", Content: mirror}}

	return []measurement{
		// New records, with bare INSERTs of the same rows as the rival, the same records
		// again, and again with a full harvest; then twice as many, for the memory.
		{name: "harvest", server: chain, jobs: first, rows: harvestRows(100 * entries)},
		{name: "harvest", server: chainOf(200, entries, 0), jobs: first[:1], once: true, rows: twiceRow("harvest of %s entries (once)", "entries", 200*entries)},
		{name: "baseline", server: source, jobs: first, rows: baselineRows(records)},
		{name: "baseline", server: sourceOf(2*records, 0, 0, 0), jobs: first[:1], once: true, rows: twiceRow("baseline of %s resources (once)", "resources", 2*records)},

		// Contents too; the rival fetches as many and discards them.
		{name: "mirror", server: chainOf(2, entries, mirrorBody), rows: mirrorRow(2 * entries),
			jobs: []job{{Name: "harvest", Content: mirror}, {Name: "fetch", Path: "/records/%08d.xml", Number: 2 * entries, Repeat: connections}}},
		// A Source that is slow for each resource. The rival requests one after the other;
		// it is given a part of them and its time is multiplied, since each response takes
		// the same time.
		{name: "follow", server: sourceOf(b.scaled(2000), 0, mirrorBody, 20*time.Millisecond), rows: followRow(b.scaled(2000)),
			jobs: []job{{Name: "harvest", Content: mirror}, {Name: "fetch", Path: "/res/%08d.xml", Number: b.scaled(2000) / share, Repeat: 1}}},
		// Many small records in a package, and the same ones requested one by one from a
		// Source that takes 5 ms for each. Then more of them, and a package of over 4 GiB,
		// for the memory.
		{name: "packages", server: dumpOf(small, smallBody), jobs: mirrored},
		{name: "packages", server: sourceOf(small, 0, smallBody, 5*time.Millisecond), jobs: mirrored, rows: dumpedRow(small)},
		{name: "packages", server: dumpOf(10*small, smallBody), jobs: mirrored, once: true, rows: dumpMemoryRow("package", 10*small, smallBody)},
		{name: "packages", server: dumpOf(large, largeBody), jobs: mirrored, once: true, rows: dumpMemoryRow("package", large, largeBody)},
		// A whole OAI-PMH repository, and again unchanged; then one with twice as many
		// records, for the memory.
		{name: "oaiharvest", server: recordsOf(records), once: true, rows: oaiRows(records),
			jobs: []job{{Name: "harvest", Content: mirror}, {Name: "harvest", Content: mirror}, {Name: "savepages"}}},
		{name: "oaiharvest", server: recordsOf(2 * records), jobs: mirrored, once: true, rows: oaiMemoryRow(2 * records)},
		// The longest allowed Change List. Rivals read the same file: the tokens of
		// encoding/xml alone, and a client like the reference client.
		{name: "readlist", server: sourceOf(0, segment, 0, 0), same: true, build: []job{{Name: "savelist"}}, rows: b.readListRow,
			jobs: []job{{Name: "readlist", Repeat: 5}, {Name: "tokens", Repeat: 3}, {Name: "python"}}},
		// Lists that are sixty times as long as allowed. The memory is measured.
		longLists("resourcelist"),
		longLists("changelist"),

		// What we publish, from the log to compressed bytes in the cache. An archive
		// document has its last form only when the next one has closed too.
		{name: "changelist", same: true, build: twoSegments, rows: renderRow("cold Change List of 50,000 events, log to gzip", "urls", 400_000),
			jobs: []job{{Name: "render", Path: "/sets/main/changelist/1.xml", Repeat: 5}, {Name: "changelist", Repeat: 2}}},
		{name: "feedout", same: true, build: twoSegments, rows: renderRow("cold archive document of 50,000 events, log to gzip", "entries", 300_000),
			jobs: []job{{Name: "render", Path: "/sets/main/feed/1.atom", Repeat: 5}, {Name: "feed", Repeat: 2}}},
		// A Resource Dump, with its contents.
		{name: "dump", same: true, build: []job{{Name: "build", Content: mirror, Number: b.scaled(dumped), Body: mirrorBody}}, jobs: []job{{Name: "dump"}}, rows: dumpRow(b.scaled(dumped))},
		{name: "snapshot", same: true, build: []job{{Name: "build", Content: mirror, Number: records}}, jobs: []job{{Name: "snapshot"}}, rows: snapshotRow(records)},
		// Everything as files, and again after a few changes.
		{name: "export", once: true, build: []job{{Name: "build", Content: reference, Number: records}}, rows: exportRows(records, reference, true),
			jobs: []job{{Name: "export"}, {Name: "export", Content: reference, Changes: fewRecords}}},
		{name: "export", once: true, build: []job{{Name: "build", Content: mirror, Number: records / 5, Body: recordSize}}, rows: exportRows(records/5, mirror, false),
			jobs: []job{{Name: "export"}, {Name: "export", Content: mirror, Changes: fewRecords, Body: recordSize}}},
		{name: "get", own: b.gets},
		{name: "oailist", own: b.oaiList},
		{name: "growth", own: b.growth},
		// A poll of a Source that brings a few changes, and one that brings none, with a
		// tenth of the records and with all.
		{name: "poll", server: sourceOf(records/10, 1, 0, 0), same: true, build: harvestRecords, jobs: polls},
		{name: "poll", server: sourceOf(records, 1, 0, 0), same: true, build: harvestRecords, jobs: polls, rows: pollRows(records/10, records)},

		// One Source for comparison; then a few with one large document each, and many with
		// a small one; and the time to open so many.
		atOnce(10, b.scaled(100_000), 1),
		atOnce(1, b.scaled(100_000), 40),
		atOnce(1, entries, 1000),
		{name: "sources", jobs: []job{{Name: "open", URL: "http://127.0.0.1:9", Number: manyAtOnce, Content: reference}}, rows: openRow},

		// Many submitters at once to a library, with records that are new to it, then as
		// many of which half are known; and the ultimate dispositions of submissions that
		// wait for one. The rival has the same handler, and writes each message durably to
		// a file before it responds.
		{name: "ingest", server: job{Name: "library", Number: posts + posts/2}, inside: true, jobs: []job{post(newRecords), post(halfRecords)}},
		{name: "ingest", server: files, inside: true, jobs: []job{post(newRecords)}, rows: ingestRows(posts)},
		{name: "notify", server: job{Name: "target", Number: posts}, inside: true, jobs: []job{post(dispositions)},
			build: []job{{Name: "build", Content: mirror, Number: posts}, {Name: "submissions", Number: posts}}},
		{name: "notify", server: files, inside: true, jobs: []job{post(dispositions)}, rows: notifyRow(posts)},
		// A set of many records whose target has just been configured, and a server that
		// accepts everything at once.
		{name: "drain", server: job{Name: "sink"}, once: true, build: []job{{Name: "build", Content: mirror, Number: outbox, Body: recordSize}},
			jobs: []job{{Name: "postbare", Number: outbox, Repeat: outboxWorkers}, {Name: "drain", Number: outbox}}, rows: drainRows(outbox)},
		{name: "hostile", own: b.hostile},
	}
}

type rowsOf = func(all []results) ([]row, error)

func last(all []results) results { return all[len(all)-1] }

// newRow is a harvest of new records, beside its rival.
func newRow(name, unit string, r []result) row {
	have, bare := rate(r[0].Count, r[0].Took), rate(r[1].Count, r[1].Took)
	return row{name: name, ours: perSecond(have, unit), rival: "the same rows, bare INSERTs: " + perSecond(bare, unit),
		ratio: have / bare, peak: r[0].Peak, cpu: r[0].CPU,
		bars: []bar{atLeast("75,000/s", have, 75_000), under(200, r[0].Peak)}}
}

// againRows are two harvests of known records: one that requests changes only, and a full
// one.
func againRows(unit, requests string, again, full result) []row {
	return []row{
		{name: "harvested again, unchanged", ours: fmt.Sprintf("%s, %d %s, %d events", short(again.Took), again.Requests, requests, again.Events),
			peak: again.Peak, bars: []bar{exactly("0 events", again.Events, 0)}},
		{name: "harvested again with --full", ours: fmt.Sprintf("%s, %d events", perSecond(rate(full.Count, full.Took), unit), full.Events),
			peak: full.Peak, cpu: full.CPU, bars: []bar{exactly("0 events", full.Events, 0)}},
	}
}

func harvestRows(n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs
		first := newRow("harvest of "+thousands(n)+" entries, mode reference", "entries", r)
		first.bars = append(first.bars, atLeast("ratio 0.7", first.ratio, 0.7))
		rows := againRows("entries", "request", r[2], r[3])
		rows[0].bars = append([]bar{below("10 ms", r[2].Took.Seconds(), 0.010), exactly("1 request", r[2].Requests, 1)}, rows[0].bars...)
		rows[1].bars = append([]bar{atLeast("130,000/s", rate(r[3].Count, r[3].Took), 130_000)}, rows[1].bars...)
		return append([]row{first}, rows...), nil
	}
}

func baselineRows(n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs
		return append([]row{newRow("baseline of "+thousands(n)+" resources, mode reference", "resources", r)}, againRows("resources", "requests", r[2], r[3])...), nil
	}
}

// twiceRow is a harvest of twice the number of records, for its memory.
func twiceRow(name, unit string, n int) rowsOf {
	return func(all []results) ([]row, error) {
		once, r := all[0].jobs[0], last(all).jobs[0]
		growth := float64(r.Peak) / float64(once.Peak)
		return []row{{name: fmt.Sprintf(name, thousands(n)), ours: perSecond(rate(r.Count, r.Took), unit), rival: "memory of half as many: " + megabytes(once.Peak),
			ratio: growth, peak: r.Peak, cpu: r.CPU, bars: []bar{under(200, r.Peak), below("memory within 1.1", growth, 1.1)}}}, nil
	}
}

func mirrorRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		ours, rival := last(all).jobs[0], last(all).jobs[1]
		have, bare := rate(ours.Count, ours.Took), rate(rival.Count, rival.Took)
		return []row{{name: "mirror of " + thousands(n) + " records of 2 KB, durable", ours: perSecond(have, "records"),
			rival: "http.Client, 32 workers, bodies thrown away: " + perSecond(bare, "records"), ratio: have / bare, peak: ours.Peak, cpu: ours.CPU,
			bars: []bar{atLeast("12,000/s", have, 12_000)}}}, nil
	}
}

func followRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		ours, rival := last(all).jobs[0], last(all).jobs[1]
		if ours.Events != int64(n) {
			return nil, fmt.Errorf("%d of %d resources were taken", ours.Events, n)
		}
		one := rival.Took * share
		return []row{{name: "baseline of " + thousands(n) + " resources behind a server that takes 20 ms for each, mirror", ours: short(ours.Took),
			rival: fmt.Sprintf("one after the other, bodies thrown away: %s (%d asked for, times %d)", short(one), n/share, share),
			ratio: ratioOf(one, ours.Took), peak: ours.Peak, cpu: ours.CPU, bars: []bar{below("under 1.4 s", ours.Took.Seconds(), 1.4)}}}, nil
	}
}

const (
	smallBody = 512
	largeBody = 4 << 20
)

// dumpedRow compares a harvest of a dump with the harvest before it.
func dumpedRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		dumped, single := all[len(all)-2].jobs[0], last(all).jobs[0]
		if dumped.Events != int64(n) || single.Events != int64(n) {
			return nil, fmt.Errorf("%d and %d of %d resources were taken", dumped.Events, single.Events, n)
		}
		return []row{{name: "Resource Dump of " + thousands(n) + " small resources, mirror", ours: fmt.Sprintf("%s, %d requests", short(dumped.Took), dumped.Requests),
			rival: fmt.Sprintf("by single GETs at 5 ms each, %s and %d requests; one after the other at least %s", short(single.Took), single.Requests, short(time.Duration(n)*5*time.Millisecond)),
			ratio: ratioOf(single.Took, dumped.Took), peak: dumped.Peak, cpu: dumped.CPU}}, nil
	}
}

// dumpMemoryRow is the memory of a harvest of a dump.
func dumpMemoryRow(what string, n, body int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs[0]
		if r.Events != int64(n) {
			return nil, fmt.Errorf("%d of %d resources were taken", r.Events, n)
		}
		return []row{{name: fmt.Sprintf("%s of %s resources of %s bytes, %.1f GB (once)", what, thousands(n), thousands(body), float64(n)*float64(body)/1e9),
			ours: short(r.Took), peak: r.Peak, cpu: r.CPU, bars: []bar{under(300, r.Peak)}}}, nil
	}
}

func (b *bench) readListRow(all []results) ([]row, error) {
	ours, tokens, python := last(all).jobs[0], last(all).jobs[1], last(all).jobs[2]
	out := row{name: "reading a Change List of 50,000 urls", ours: fmt.Sprintf("%s (%s)", short(ours.Took), perSecond(rate(segment, ours.Took), "urls")), peak: ours.Peak,
		rival: "encoding/xml's tokens alone: " + perSecond(rate(segment, tokens.Took), "urls"), ratio: ratioOf(tokens.Took, ours.Took)}
	if missing := pythonMissing(); missing != nil {
		b.say("readlist goes without the Python client: %v", missing)
		return []row{out}, nil
	}
	out.ratio = ratioOf(python.Took, ours.Took)
	out.rival = fmt.Sprintf("the reference client's way in Python: %s (%s); %s", short(python.Took), perSecond(rate(segment, python.Took), "urls"), out.rival)
	out.bars = []bar{atLeast("15 times the Python client", out.ratio, 15)}
	return []row{out}, nil
}

func longListRow(capability string, n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs[0]
		if r.Count != int64(n) || r.Events != int64(n) {
			return nil, fmt.Errorf("%s of %d entries: %d were read, and %d events logged", capability, n, r.Count, r.Events)
		}
		return []row{{name: fmt.Sprintf("%s of %s entries in one document, mode reference (once)", capability, thousands(n)),
			ours: perSecond(rate(r.Count, r.Took), "entries"), peak: r.Peak, cpu: r.CPU, bars: []bar{under(250, r.Peak)}}}, nil
	}
}

func renderRow(name, unit string, want int) rowsOf {
	return func(all []results) ([]row, error) {
		ours, rival := last(all).jobs[0], last(all).jobs[1]
		have, bare := rate(segment, ours.Took), rate(segment, rival.Took)
		return []row{{name: name, ours: perSecond(have, unit), rival: "encoding/xml and compress/gzip: " + perSecond(bare, unit), ratio: have / bare, peak: ours.Peak,
			bars: []bar{atLeast(thousands(want)+"/s", have, float64(want)), under(32, ours.Peak)}}}, nil
	}
}

func snapshotRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs[0]
		return []row{{name: "snapshot of " + thousands(n) + " records, gzip, durable", ours: fmt.Sprintf("%s (%s)", short(r.Took), perSecond(rate(int64(n), r.Took), "urls")),
			peak: r.Peak, cpu: r.CPU, bars: []bar{below("under 4 s", r.Took.Seconds(), 4), under(100, r.Peak)}}}, nil
	}
}

func dumpRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		r := last(all).jobs[0]
		return []row{{name: "Resource Dump of " + thousands(n) + " records of 2 KB, durable", ours: fmt.Sprintf("%s (%s)", short(r.Took), perSecond(rate(int64(n), r.Took), "records")),
			peak: r.Peak, cpu: r.CPU, bars: []bar{under(128, r.Peak)}}}, nil
	}
}

func pollRows(small, large int) rowsOf {
	return func(all []results) ([]row, error) {
		var rows []row
		for i, name := range []string{
			fmt.Sprintf("poll of a Change List with %d new resources", fewRecords),
			fmt.Sprintf("poll of a Change List that has nothing new (%d requests)", all[1].jobs[1].Requests),
		} {
			few, many := all[0].jobs[i], all[1].jobs[i]
			ratio := ratioOf(many.Took, few.Took)
			rows = append(rows, row{name: name + ", " + thousands(large) + " records", ours: short(many.Took), rival: thousands(small) + " records: " + short(few.Took),
				ratio: ratio, peak: many.Peak, bars: []bar{below("within 1.5", ratio, 1.5)}})
		}
		return rows, nil
	}
}

func sourcesRow(n, entries int) rowsOf {
	return func(all []results) ([]row, error) {
		one, r := all[0].jobs[0], last(all).jobs[0]
		if n == 1 {
			return nil, nil
		}
		have, alone := rate(r.Count, r.Took), rate(one.Count, one.Took)
		return []row{{name: fmt.Sprintf("%s Sources of %s entries at once", thousands(n), thousands(entries)),
			ours:  fmt.Sprintf("%s, %s; the first after %s, half of them after %s; %d harvested whole", short(r.Took), perSecond(have, "entries"), short(r.First), short(r.Half), r.Events),
			rival: fmt.Sprintf("one Source of %s: %s", thousands(one.Count), perSecond(alone, "entries")), ratio: have / alone, peak: r.Peak, cpu: r.CPU,
			bars: []bar{under(400, r.Peak), exactly("all done", r.Events, int64(n)), atLeast("ratio 0.8", have/alone, 0.8),
				{"the first within 1/20", r.First > 0 && r.First <= r.Took/20}}}}, nil
	}
}

func openRow(all []results) ([]row, error) {
	r := last(all).jobs[0]
	return []row{{name: "opening " + thousands(manyAtOnce) + " new Sources", ours: short(r.Took), rival: "again: " + short(r.Other), peak: r.Peak, cpu: r.CPU,
		bars: []bar{below("1 s", r.Took.Seconds(), 1)}}}, nil
}

// answers describes the rate and the latency of responses.
func answers(r result, unit string) string {
	return fmt.Sprintf("%s; half within %s, 99 %% within %s", perSecond(rate(r.Count, r.Took), unit), short(r.Half), short(r.Tail))
}

func ingestRows(n int) rowsOf {
	return func(all []results) ([]row, error) {
		first, second, rival, library := all[0].jobs[0], all[0].jobs[1], all[1].jobs[0], all[0].server
		have, ratio := rate(first.Count, first.Took), ratioOf(rival.Took, first.Took)
		return []row{
			{name: fmt.Sprintf("ingest of %s new records of 2 KB, library mode, %d clients, durable", thousands(n), connections), ours: answers(first, "submissions"),
				rival: "a file with fsync for each: " + answers(rival, "submissions"), ratio: ratio,
				peak: library.Peak, bars: []bar{atLeast("6,000/s", have, 6000), atLeast("ratio 1.5", ratio, 1.5)}},
			{name: "as many again, half of them other versions of those (CPU: of both)", ours: answers(second, "submissions"), peak: library.Peak, cpu: library.CPU,
				bars: []bar{atLeast("6,000/s", rate(second.Count, second.Took), 6000)}},
		}, nil
	}
}

func notifyRow(n int) rowsOf {
	return func(all []results) ([]row, error) {
		ours, rival, server := all[0].jobs[0], all[1].jobs[0], all[0].server
		return []row{{name: fmt.Sprintf("notifications of %s open submissions, by token, %d clients, durable", thousands(n), connections), ours: answers(ours, "notifications"),
			rival: "a file with fsync for each: " + answers(rival, "notifications"), ratio: ratioOf(rival.Took, ours.Took), peak: server.Peak, cpu: server.CPU}}, nil
	}
}

func drainRows(n int) rowsOf {
	return func(all []results) ([]row, error) {
		bare, r := last(all).jobs[0], last(all).jobs[1]
		tenth := int64(n / tenths)
		firstTenth, lastTenth := r.Tenths[0].At-r.Other, r.Took-r.Tenths[tenths-2].At
		early, late := r.Tenths[0].Resident, r.Tenths[tenths-2].Resident
		growth := float64(late) / float64(early)
		return []row{
			{name: fmt.Sprintf("outbox of %s records of 2 KB drains, %d workers (once)", thousands(n), outboxWorkers), ours: perSecond(rate(r.Count, r.Took), "records"),
				rival: "bare POSTs of the same records: " + perSecond(rate(bare.Count, bare.Took), "records"), ratio: ratioOf(bare.Took, r.Took), peak: r.Peak, cpu: r.CPU},
			{name: "its last tenth", ours: perSecond(rate(tenth, lastTenth), "records"), rival: "its first tenth: " + perSecond(rate(tenth, firstTenth), "records"),
				ratio: ratioOf(firstTenth, lastTenth), bars: []bar{below("slower by less than 1.5", ratioOf(lastTenth, firstTenth), 1.5)}},
			{name: "its memory when 90 % have been sent", ours: megabytes(late), rival: "at 10 %: " + megabytes(early), ratio: growth,
				bars: []bar{below("flat, within 1.25", growth, 1.25)}},
			{name: "from the start of bridge serve to the first record at the server", ours: short(r.Other)},
		}, nil
	}
}
