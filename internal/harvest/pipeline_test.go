package harvest

import (
	"context"
	"database/sql"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

// fill gives everything in a value that is not zero.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		if n < 3 { // an observation may hold another one
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), n+1)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[event.Stamp]() {
			v.Set(reflect.ValueOf(event.StampFromNanos(int64(n) - 7)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n+i)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("text ", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(n))
	default:
		v.SetInt(int64(n) + 1)
	}
}

// D64: what waits in a file comes back as it was, all of it, in its order, and with
// what else is said of its record.
func TestEntryFile(t *testing.T) {
	testenv.Heavy(t)
	s, err := newEntryFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const records = 5000
	want := map[string][]event.Item{}
	for i := range 3 * records {
		var it event.Item
		if i%2 == 0 {
			fill(reflect.ValueOf(&it).Elem(), i%100)
		}
		it.Record = fmt.Sprint("urn:", i%records)
		want[it.Record] = append(want[it.Record], it)
		if err := s.add(it.Record, &it); err != nil {
			t.Fatal(err)
		}
	}
	var bad event.Quarantined
	fill(reflect.ValueOf(&bad).Elem(), 1)
	if err := s.bad.add(s, &bad); err != nil {
		t.Fatal(err)
	}
	for part := range fileParts {
		items, err := valuesOf[event.Item](s, part)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]event.Item{}
		for _, it := range items {
			got[it.Record] = append(got[it.Record], it)
		}
		for record, items := range got {
			if !reflect.DeepEqual(items, want[record]) {
				t.Fatalf("%s: %+v, want %+v", record, items, want[record])
			}
			delete(want, record)
		}
		if len(got) > 3*records/fileParts {
			t.Errorf("%d records in part %d", len(got), part)
		}
	}
	if len(want) > 0 {
		t.Errorf("%d records did not come back", len(want))
	}
	n := 0
	err = s.bad.each(s, func(d *gob.Decoder) error {
		var q event.Quarantined
		if err := d.Decode(&q); err != nil {
			return err
		}
		if n++; !reflect.DeepEqual(q, bad) {
			t.Errorf("%+v, want %+v", q, bad)
		}
		return nil
	})
	if err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A host that nothing answers on is given up, and keeps no media type of another host
// back. What is no request says nothing about the host.
func TestTypesBesideDeadHost(t *testing.T) {
	asked := map[string]int{}
	r := feedRun()
	r.h.Workers = 1 // one request to a host at a time
	var mu sync.Mutex
	r.src.Client = &http.Client{Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[q.Method+" "+q.URL.Host]++
		if q.URL.Host == "dead.example" {
			return nil, &net.OpError{Op: "dial", Err: errors.New("no route")}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{"Content-Type": {"text/xml"}}, Request: q}, nil
	})}
	b := &event.Batch{Mode: event.ModeReplay}
	for i := range 60 {
		href := fmt.Sprintf([]string{"http://dead.example/%d", "ftp://dead.example/%d", "http://good.example/%d"}[i%3], i)
		b.Items = append(b.Items, &event.Item{Observation: event.Observation{Record: href, Representations: []event.Representation{{Href: href}}}})
	}
	if err := r.fetchTypes(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	types := map[string]int{}
	for i := range b.Items {
		types[b.Items[i].Representations[0].Type]++
	}
	same(t, "media types", types, map[string]int{"text/xml": 20, untyped: 40})
	same(t, "requests", asked, map[string]int{"HEAD dead.example": troubleAfter, "HEAD good.example": 20})
}

// together runs a walk of one document for each item, each of which is a batch. All of
// them are appended in one transaction.
func together(t *testing.T, r *run, items ...*event.Item) {
	t.Helper()
	if err := r.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	begun, sent := make(chan struct{}), make(chan struct{})
	before := make(chan error)
	go func() {
		before <- r.h.Log.Do(context.Background(), func(context.Context, *eventlog.Tx) error { close(begun); <-sent; return nil })
	}()
	<-begun
	p := newPipeline(t.Context(), r, true)
	walked, written := p.run(func() error {
		for i, it := range items {
			p.ch <- docBatch{doc: event.Document{URL: fmt.Sprint("https://repository.example/", i)}, items: []*event.Item{it}, last: true, cursor: fmt.Appendf(nil, `{"active":%d}`, i)}
		}
		close(sent)
		return nil
	})
	if err := errors.Join(walked, written, <-before); err != nil {
		t.Fatal(err)
	}
}

// newTestRun is a run over a Source of a new log.
func newTestRun(t *testing.T, kind string) *run {
	t.Helper()
	const url = "https://repository.example/"
	ctx := t.Context()
	l, err := eventlog.Open(ctx, t.TempDir(), eventlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.EnsureSet(ctx, eventlog.SetConfig{Name: "main", Content: event.Redirect}); err != nil {
		t.Fatal(err)
	}
	id, err := l.EnsureSource(ctx, "main", kind, url, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &run{h: &Harvester{Log: l}, src: &Source{ID: id, Kind: kind, Set: "main", URL: url, Content: event.Redirect}}
}

// A submission that shares a transaction is committed before a long batch is appended.
func TestLongBatchMakesNobodyWait(t *testing.T) {
	for n, want := range map[int]int64{1: 1, manyItems: 2} {
		ctx, r := t.Context(), newTestRun(t, AtomPMH)
		l := r.h.Log
		commits := func() (n int64) {
			if err := l.Each(ctx, "SELECT commits FROM log", nil, func(rows *sql.Rows) error { return rows.Scan(&n) }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := commits()
		b := &event.Batch{Items: make([]*event.Item, n)}
		for i := range b.Items {
			b.Items[i] = &event.Item{Observation: event.Observation{Record: fmt.Sprint("urn:", i)}}
		}
		begun, done := make(chan struct{}), make(chan error)
		go func() {
			done <- l.Do(ctx, func(ctx context.Context, tx *eventlog.Tx) error {
				close(begun)
				for !tx.Awaited() {
					runtime.Gosched()
				}
				return tx.Exec(ctx, "UPDATE sets SET partial = partial")
			})
		}()
		<-begun
		if err := errors.Join(r.commit(ctx, b), <-done); err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("transactions with a batch of ", n), commits()-before, want)
	}
}

// What only the log finds to need an answer is asked for after the transaction, whose last
// batch says how far the walk has come.
func TestCursorAfterDoubt(t *testing.T) {
	r := newTestRun(t, ResourceSync)
	r.h.BatchSize = 1
	change := func(record string, list int64, deleted bool) *event.Item {
		return &event.Item{Observation: event.Observation{Record: record, Deleted: deleted, Title: record, Place: event.Place{List: list, Position: 1}}}
	}
	together(t, r, change("a", 1, false), change("b", 1, false))
	together(t, r, change("a", 2, true), change("b", 2, false), change("c", 2, false))
	p, err := r.h.Log.Progress(t.Context(), r.src.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "cursor", string(p.Cursor.Data), `{"active":2}`)
	same(t, "created and deleted", [2]int64{r.report.Created, r.report.Deleted}, [2]int64{3, 1})
}
