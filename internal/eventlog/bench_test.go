package eventlog_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"golang.org/x/sys/unix"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// items are n records as a harvest finds them: identifiers in no order, one
// representation without a hash.
func items(from, n int) []*event.Item {
	out := make([]*event.Item, n)
	for i := range out {
		id := fmt.Sprintf("urn:uuid:%08x-8000-4000-8000-%012x", uint32(from+i)*2654435761, from+i)
		out[i] = &event.Item{}
		o := &out[i].Observation
		*o = event.Observation{
			Record: id, Title: fmt.Sprintf("Record number %d of the catalogue", from+i),
			Order:           event.StampFromNanos(int64(1_700_000_000_000_000_000 + from + i)),
			Modified:        event.StampFromNanos(int64(1_700_000_000_000_000_000 + from + i)),
			Representations: []event.Representation{{Href: fmt.Sprintf("https://repository.example/records/%d.xml", from+i), Type: "application/xml", Length: event.NoLength}},
		}
		o.Claim = o.ClaimOf() // as a harvest does while the log writes the batch before
	}
	return out
}

const (
	benchBatch   = 50_000
	benchRecords = 1_000_000
)

// batches calls do with benchRecords records in pieces; only do is timed.
func batches(b *testing.B, do func(from int, items []*event.Item)) {
	b.Helper()
	var spent, cpu time.Duration
	for from := 0; from < benchRecords; from += benchBatch {
		piece := items(from, benchBatch)
		begin, used := time.Now(), processor(b)
		do(from, piece)
		spent, cpu = spent+time.Since(begin), cpu+processor(b)-used
	}
	b.ReportMetric(benchRecords/spent.Seconds(), "records/s")
	b.ReportMetric(float64(cpu.Microseconds())/benchRecords, "cpu-us/record")
	b.ReportMetric(0, "ns/op")
}

// processor is the time that all cores have worked for this process: what can be
// compared on a machine that others use too.
func processor(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend appends a million new records of a set in mode reference, in
// batches of 50,000, then compares them unchanged.
func BenchmarkAppend(b *testing.B) { benchmarkAppend(b, b.TempDir()) }

// BenchmarkAppendOnServer is BenchmarkAppend on PostgreSQL, BenchmarkBareOnServer its rival.
func BenchmarkAppendOnServer(b *testing.B) {
	folder := b.TempDir()
	l := mustOpen(b, folder, eventlog.Options{URL: testenv.DefaultPostgres(b).NewSchema(b)})
	closed(b, l)
	benchmarkAppend(b, folder)
}

func benchmarkAppend(b *testing.B, folder string) {
	l, src := filled(b, folder, event.Reference)
	defer l.Close()
	ctx := context.Background()
	must(b, l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Reference}))
	var version int64
	for _, pass := range []string{"new", "unchanged"} {
		b.Run(pass, func(b *testing.B) {
			batches(b, func(from int, items []*event.Item) {
				out, err := l.Append(ctx, &event.Batch{Source: src, Cursor: version, Start: from == 0, Next: []byte("x"),
					Documents: []event.Document{{URL: "https://repository.example/feed.atom"}}, Items: items})
				if err != nil {
					b.Fatal(err)
				}
				version = out.Cursor
			})
		})
	}
	for name, set := range map[string]string{"read": "main", "read all sets": ""} {
		b.Run(name, func(b *testing.B) {
			n := 0
			begin, used := time.Now(), processor(b)
			for _, err := range l.Events(ctx, set, event.Range{Upto: math.MaxInt64}) {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
			b.ReportMetric(float64(n)/time.Since(begin).Seconds(), "records/s")
			b.ReportMetric(float64((processor(b)-used).Nanoseconds())/1000/float64(n), "cpu-us/record")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkSetsOnServer appends 400,000 new records to one set and, a quarter to each, to four
// sets at once. One node writes (docs/decisions/nodes.md), so four are not expected to be faster.
func BenchmarkSetsOnServer(b *testing.B) {
	const records = 8 * benchBatch
	server := testenv.DefaultPostgres(b)
	for _, sets := range []int{1, 4} {
		b.Run(fmt.Sprint(sets), func(b *testing.B) {
			ctx := b.Context()
			l := mustOpen(b, b.TempDir(), eventlog.Options{URL: server.NewSchema(b)})
			defer l.Close()
			var pieces [][]*event.Batch // of each set
			for n := range sets {
				name := fmt.Sprint("set", n)
				err := l.EnsureSet(ctx, eventlog.SetConfig{Name: name, Content: event.Reference})
				if err != nil {
					b.Fatal(err)
				}
				src, err := l.EnsureSource(ctx, name, "atompmh", "https://repository.example/"+name, 0)
				if err != nil {
					b.Fatal(err)
				}
				var of []*event.Batch
				for from := 0; from < records/sets; from += benchBatch {
					of = append(of, &event.Batch{Source: src, Start: from == 0, Next: []byte("x"), Items: items(n*records+from, benchBatch)})
				}
				pieces = append(pieces, of)
			}
			began := time.Now()
			var all sync.WaitGroup
			for _, of := range pieces {
				all.Go(func() {
					var version int64
					for _, batch := range of {
						batch.Cursor = version
						out, err := l.Append(ctx, batch)
						if err != nil {
							b.Error(err)
							return
						}
						version = out.Cursor
					}
				})
			}
			all.Wait()
			b.ReportMetric(records/time.Since(began).Seconds(), "records/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkBareOnServer inserts rows of the same tables, widths and indexes on PostgreSQL, in
// the same order, and does nothing else: what the server takes in at best.
func BenchmarkBareOnServer(b *testing.B) {
	ctx := context.Background()
	url := testenv.DefaultPostgres(b).NewSchema(b)
	l := mustOpen(b, b.TempDir(), eventlog.Options{URL: url})
	closed(b, l)
	db, err := sql.Open("pgx", url)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	b.Run("new", func(b *testing.B) {
		rival := map[string]*rows{}
		for text, width := range map[string]int{"record (id, identifier, seq, digest, source_state)": 5, "record_key (key, record)": 2, "event (id, record, kind, observed, body)": 5, "loc (key, owner, others)": 3} {
			rival[strings.Fields(text)[0]] = prepare(b, conn, text, width)
		}
		batches(b, func(from int, items []*event.Item) { bare(b, conn, rival, from, items) })
	})
}

func bare(b *testing.B, conn *sql.Conn, rival map[string]*rows, from int, items []*event.Item) {
	type row struct {
		id, key, loc int64
		identifier   string
	}
	ctx := context.Background()
	all := make([]row, len(items))
	for i := range items {
		// Keys as random as a hash, for next to nothing.
		n := uint64(from+i+1) * 0x9e3779b97f4a7c15
		all[i] = row{int64(1)<<32 | int64(from+i+1), int64(n ^ n>>31), int64(n*3 ^ n>>29), items[i].Record}
	}
	body, state := make([]byte, 190), make([]byte, 23)
	exec := func(text string) {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			b.Fatal(err)
		}
	}
	exec("BEGIN")
	for i := range all {
		r := &all[i]
		seq := int64(from + i + 1)
		rival["event"].add(b, int64(1)<<40|seq, r.id, int64(1), 1_700_000_000_000_000+seq, body)
		rival["record"].add(b, r.id, r.identifier, seq, r.key, state)
	}
	slices.SortFunc(all, func(x, y row) int { return cmp.Compare(x.key, y.key) })
	for i := range all {
		rival["record_key"].add(b, all[i].key, all[i].id)
	}
	slices.SortFunc(all, func(x, y row) int { return cmp.Compare(x.loc, y.loc) })
	for i := range all {
		rival["loc"].add(b, all[i].loc, all[i].id, 0)
	}
	exec("COMMIT")
}

// rows inserts fifty rows at a time.
type rows struct {
	stmt  *sql.Stmt
	width int
	args  []any
}

func prepare(b *testing.B, conn *sql.Conn, table string, width int) *rows {
	b.Helper()
	var all []string
	for row := range 50 {
		var one []string
		for i := range width {
			one = append(one, fmt.Sprintf("$%d", row*width+i+1))
		}
		all = append(all, "("+strings.Join(one, ", ")+")")
	}
	stmt, err := conn.PrepareContext(context.Background(), "INSERT INTO "+table+" VALUES "+strings.Join(all, ", "))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stmt.Close() })
	return &rows{stmt: stmt, width: width}
}

func (r *rows) add(b *testing.B, values ...any) {
	if r.args = append(r.args, values...); len(r.args) == 50*r.width {
		if _, err := r.stmt.ExecContext(context.Background(), r.args...); err != nil {
			b.Fatal(err)
		}
		r.args = r.args[:0]
	}
}
