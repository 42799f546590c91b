package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/sip"
)

// unusedServer is the ingest server of a target that has nothing to send.
const unusedServer = "http://127.0.0.1:9/sip"

// postFrom lets many clients post n messages of each kind to a server, one kind after
// the other. It returns what the clients have measured of each, and the last word
// of the server.
func (b *bench) postFrom(server job, n int, kinds ...string) (posted []result, end result, err error) {
	p, at, err := b.serve(server)
	if err != nil {
		return nil, end, err
	}
	for _, kind := range kinds {
		r, e := b.do(job{Name: "post", URL: at.URL, Path: kind, Number: n, Repeat: connections})
		if err = e; err != nil {
			break
		}
		posted = append(posted, r)
	}
	end, ended := p.end()
	return posted, end, errors.Join(err, ended)
}

// answers says how fast, and how soon.
func answers(r result, unit string) string {
	return fmt.Sprintf("%s; half within %s, 99 %% within %s", perSecond(rate(r.Count, r.Took), unit), short(r.Half), short(r.Tail))
}

// ingests: many submitters at once to a library, with records that are new to it,
// then as many of which half are known. The rival has the same handler, and keeps
// each record in a file that is on the disk before it answers.
func (b *bench) ingests() error {
	n := b.scaled(60_000)
	ours, rival, library, err := b.posted("library", n, n+n/2, newRecords, halfRecords)
	if err != nil {
		return err
	}
	first, second := ours[0], ours[1]
	have := rate(first.Count, first.Took)
	row{name: fmt.Sprintf("ingest of %s new records of 2 KB, library mode, %d clients, durable", thousands(float64(n)), connections), ours: answers(first, "submissions"),
		rival: "a file with fsync for each: " + answers(rival, "submissions"), ratio: ratioOf(rival.Took, first.Took),
		peak: library.Peak, bars: []bar{atLeast("3,000/s", have, 3000)}}.print()
	row{name: "as many again, half of them other versions of those (CPU: of both)", ours: answers(second, "submissions"), peak: library.Peak, cpu: library.CPU,
		bars: []bar{atLeast("3,000/s", rate(second.Count, second.Took), 3000)}}.print()
	return nil
}

// notifies: ultimate dispositions of submissions that wait for one, from many
// clients at once.
func (b *bench) notifies() error {
	n := b.scaled(60_000)
	ours, rival, server, err := b.posted("target", n, n, dispositions)
	if err != nil {
		return err
	}
	row{name: fmt.Sprintf("notifications of %s open submissions, by token, %d clients, durable", thousands(float64(n)), connections), ours: answers(ours[0], "notifications"),
		rival: "a file with fsync for each: " + answers(rival, "notifications"), ratio: ratioOf(rival.Took, ours[0].Took), peak: server.Peak, cpu: server.CPU}.print()
	return nil
}

// posted posts n messages of each kind to a server, which must have counted so many
// in the end, and those of the first kind to the rival, which writes a file for each.
func (b *bench) posted(server string, n, want int, kinds ...string) (ours []result, rival, end result, err error) {
	ours = make([]result, len(kinds))
	err = b.repeatedly(server, func(folder string) error {
		if server == "target" { // it has to have submissions
			if _, err := b.do(job{Name: "submissions", Folder: folder, Number: n}); err != nil {
				return err
			}
		}
		each, last, err := b.postFrom(job{Name: server, Folder: folder}, n, kinds...)
		if err == nil && last.Count != int64(want) {
			err = fmt.Errorf("%s has counted %d of %d", server, last.Count, want)
		}
		if err != nil {
			return err
		}
		for i := range ours {
			ours[i] = faster(ours[i], each[i])
		}
		if end.CPU == 0 || last.CPU < end.CPU {
			end = last
		}
		return b.in("files", func(folder string) error {
			files, last, err := b.postFrom(job{Name: "sink", Folder: folder}, n, kinds[0])
			if err == nil && last.Count != int64(n) {
				err = fmt.Errorf("the rival has %d records of %d", last.Count, n)
			}
			if err == nil {
				rival = faster(rival, files[0])
			}
			return err
		})
	})
	return ours, rival, end, err
}

// buildSubmissions makes Number records of the set main, and a provisionally
// accepted submission of each.
func buildSubmissions(ctx context.Context, j job, _ func(result)) (r result, err error) {
	j.Content = config.Mirror
	b, err := newBuilder(ctx, j, "main", 0)
	if err != nil {
		return r, err
	}
	for err == nil && b.next < j.Number {
		_, err = b.add(ctx, min(batchSize, j.Number-b.next))
	}
	if err == nil {
		err = b.submit(ctx, j.Number)
	}
	return r, errors.Join(err, b.log.Close())
}

// submit appends a submission of each of the first n records.
func (b *builder) submit(ctx context.Context, n int) error {
	target, err := b.log.EnsureSource(ctx, "main", eventlog.Target, unusedServer, 1<<20)
	if err != nil {
		return err
	}
	deadline := event.MicrosOf(time.Now().Add(24 * time.Hour))
	for from := 0; from < n; from += batchSize {
		steps := make([]submission.Update, min(batchSize, n-from))
		for i := range steps {
			o := observation(from + i)
			s := &steps[i].Submission
			*s = submission.Submission{Source: target, State: submission.StateProvisional, Token: token(from + i), Seq: event.Seq(from + i + 1),
				SourceXML: sip.AppendSource(nil, sourceOfRecord(from+i)), SourceIdentifier: identifier(from + i), Record: o.Record, Title: o.Title,
				Length: recordSize, Type: "application/xml", Due: deadline, Deadline: deadline, Tries: 1}
		}
		if _, err := store.New(b.log).Write(ctx, &submission.Batch{Source: target, URL: unusedServer, Updates: steps}); err != nil {
			return err
		}
	}
	return nil
}
