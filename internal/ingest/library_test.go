package ingest

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/submission/store"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/sip"
	"github.com/pmh-bridge/bridge/translate"
)

func TestLibraryFollowsARecord(t *testing.T) {
	h := newHarness(t, Library, nil)
	first := h.ingest(request("1", "a"))
	want := &sip.Disposition{Source: request("1", "a").Source, Outcome: sip.Accepted, AssignedIdentifier: translate.AssignedIdentifier(h.server.Feed, request("1", "").Source)}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("the first: %+v, want %+v", first, want)
	}
	id := first.AssignedIdentifier
	for range 3 {
		if again := h.ingest(request("1", "a")); !reflect.DeepEqual(again, want) {
			t.Errorf("again: %+v, want %+v", again, want)
		}
	}
	h.wantEvents("created " + id)
	if changed := h.ingest(request("1", "b")); !reflect.DeepEqual(changed, want) {
		t.Errorf("changed: %+v, want %+v", changed, want)
	}
	h.wantEvents("created "+id, "updated "+id)
	other := request("1", "a")
	other.Source.Submitter = nil
	if disp := h.ingest(other); disp.AssignedIdentifier == id {
		t.Error("two submitters share a record because they count alike")
	}
	h.verified()
}

// What is published is what came, byte for byte.
func TestLibraryKeepsBytesAndTitle(t *testing.T) {
	h := newHarness(t, Library, nil)
	r := request("1", `<!-- é --><dc:title xmlns:dc='http://purl.org/dc/elements/1.1/'>Ein  Blatt</dc:title><![CDATA[<]]>&#65;`)
	disp := h.ingest(r)
	e, err := h.log.Record(t.Context(), "maps", event.Key(disp.AssignedIdentifier))
	h.do(err)
	rep := e.Representations[0]
	if e.Title != "Ein Blatt" || e.Origin.Protocol != "sip" || e.Origin.Document != "/sip/maps" || e.Origin.SourceIdentifier != "1" ||
		rep.Type != "application/xml" || rep.Length != int64(len(r.Record.XML)) || rep.Href != disp.AssignedIdentifier || !e.Modified.Known() {
		t.Errorf("logged %+v", e)
	}
	sum, err := content.ParseSum(rep.SHA256())
	h.do(err)
	if got := read(t, h.contents, sum); !bytes.Equal(got, r.Record.XML) {
		t.Errorf("kept %s\nwant %s", got, r.Record.XML)
	}
}

// A record whose titles are in each other, and have no text, costs no more than others,
// accepted or not.
func TestLibraryTitleCost(t *testing.T) {
	const deep = 200
	h := newHarness(t, Library, nil)
	r := request("1", strings.Repeat(`<dc:title xmlns:dc="http://purl.org/dc/elements/1.1/">`, deep)+strings.Repeat("<a/>", 64<<10)+strings.Repeat("</dc:title>", deep))
	testenv.Affordable(t, len(r.Record.XML), func() {
		if disp := h.ingest(r); disp.Outcome != sip.Accepted {
			t.Errorf("the answer is %+v", disp)
		}
	})
	r.Record.Root.Local = "other"
	testenv.Affordable(t, len(r.Record.XML), func() {
		if disp := h.ingest(r); disp.Outcome != sip.Rejected {
			t.Errorf("the answer is %+v", disp)
		}
	})
}

// Nothing tells which record it is, so each request is a new one, and only the
// same whole request within a day is not.
func TestLibraryWithoutIdentifier(t *testing.T) {
	empty := ""
	for name, source := range map[string]*sip.Source{
		"no source": nil, "an empty source": {}, "a sequence": {Sequence: &empty}, "an empty source-identifier": {Identifier: &empty},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Library, nil)
			make := func(text string) *sip.Request {
				r := request("", text)
				r.Source = source
				return r
			}
			first := h.ingest(make("a"))
			if !reflect.DeepEqual(first.Source, source) {
				t.Errorf("the source comes back as %+v, want %+v", first.Source, source)
			}
			again := h.ingest(make("a"))
			if !reflect.DeepEqual(again, first) {
				t.Errorf("the same request: %+v, then %+v", first, again)
			}
			named := make("a")
			named.Recipient = "http://maps.example/sip"
			others := []*sip.Disposition{h.ingest(make("b")), h.ingest(named)}
			h.ahead.Add(int64(24*time.Hour + time.Minute))
			others = append(others, h.ingest(make("a")))
			seen := map[string]bool{first.AssignedIdentifier: true}
			for i, o := range others {
				if seen[o.AssignedIdentifier] {
					t.Errorf("request %d got an identifier that another has", i)
				}
				seen[o.AssignedIdentifier] = true
			}
			if got := h.events(); len(got) != 4 {
				t.Errorf("events %q, want four creations", got)
			}
		})
	}
}

func TestLibraryRejects(t *testing.T) {
	crash := errors.New("signal: killed")
	h := newHarness(t, Library, func(_ *harness, d *Server) {
		d.Formats[xml.Name{Local: "plain"}] = "https://schemas.example/plain.xsd"
		d.Validate = func(_ context.Context, schema string, record []byte) (string, error) {
			switch {
			case bytes.Contains(record, []byte("crash")):
				return "", crash
			case bytes.Contains(record, []byte("bad")):
				return "line 1: bad under " + schema, nil
			}
			return "", nil
		}
	})
	unknown := request("1", "x")
	unknown.Record.Root = xml.Name{Space: "urn:other", Local: "map"}
	for range 2 {
		disp := h.ingest(unknown)
		want := &sip.Disposition{Source: unknown.Source, Outcome: sip.Rejected, Reason: "the format {urn:other}map is not accepted; accepted are: plain, {urn:maps}map"}
		if !reflect.DeepEqual(disp, want) {
			t.Errorf("unknown format: %+v, want %+v", disp, want)
		}
	}
	if disp := h.ingest(request("2", "bad")); disp.Outcome != sip.Rejected || disp.Reason != "line 1: bad under "+mapFormat {
		t.Errorf("invalid: %+v", disp)
	}
	if _, err := h.server.Ingest(t.Context(), sip.Caller{}, request("3", "crash")); !errors.Is(err, crash) {
		t.Errorf("a crash of the validator: %v", err)
	}
	h.wantEvents("kept 1: the format {urn:other}map is not accepted; accepted are: plain, {urn:maps}map", "kept 2: line 1: bad under "+mapFormat)
	set, err := h.log.Set(t.Context(), "maps")
	h.do(err)
	if set.Last != 0 || set.Live != 0 {
		t.Errorf("a rejection is in a segment: %+v", set)
	}
	stats, err := h.contents.Stats(t.Context())
	h.do(err)
	if stats.Count != 0 {
		t.Errorf("%d rejected records are kept", stats.Count)
	}
	h.verified()
}

// A record that was rejected can be submitted again once there is no reason any
// more; a repeat of that is the accepted one.
func TestLibraryRejectionEndsWithItsReason(t *testing.T) {
	for _, identifier := range []string{"1", ""} {
		reason := "not yet"
		h := newHarness(t, Library, func(_ *harness, d *Server) {
			d.Validate = func(context.Context, string, []byte) (string, error) { return reason, nil }
		})
		if disp := h.ingest(request(identifier, "a")); disp.Reason != "not yet" {
			t.Errorf("identifier %q: first %+v", identifier, disp)
		}
		reason = ""
		first, again := h.ingest(request(identifier, "a")), h.ingest(request(identifier, "a"))
		if first.Outcome != sip.Accepted || !reflect.DeepEqual(first, again) {
			t.Errorf("identifier %q: then %+v and %+v", identifier, first, again)
		}
		h.wantEvents("kept "+identifier+": not yet", "created "+first.AssignedIdentifier)
	}
}

func TestRecipientIsChecked(t *testing.T) {
	h := newHarness(t, Review, func(_ *harness, d *Server) {
		d.Recipient = func(_ context.Context, url string) error {
			if strings.Contains(url, "127.0.0.1") {
				return errors.New("its address is not public")
			}
			return nil
		}
	})
	for recipient, reason := range map[string]string{
		"":                                     "",
		"http://maps.example/sip":              "",
		"https://maps.example:8443/s?a=b":      "",
		"HTTP://maps.example/":                 "",
		"smtp://mail.example/sip@maps.example": "",
		"smtp:sip@maps.example":                "",
		"mailto:sip@maps.example":              "",
		"http://127.0.0.1/":                    "its address is not public",
		"ftp://maps.example/":                  "it must be an http:, https:, smtp: or mailto: URL",
		"maps.example":                         "it must be",
		"/sip":                                 "it must be",
		"javascript:alert(1)":                  "it must be",
		"http:///sip":                          "it names no host",
		"http:maps.example":                    "it names no host",
		"http://maps.example:port/":            "it is no URL",
		"http://maps example/":                 "it is no URL",
		"mailto:":                              "",
		"smtp:nobody":                          "",
	} {
		r := request("1", "a")
		r.Recipient = recipient
		_, err := h.server.Ingest(t.Context(), sip.Caller{}, r)
		fine := reason == "" && recipient != "mailto:" && recipient != "smtp:nobody"
		if fine {
			h.do(err)
			continue
		}
		isFault(t, err, sip.Client, "ingest-request/notification-recipient")
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v, want %q in it", recipient, err, reason)
		}
	}
	h.wantEvents("kept 1: needs a notification-recipient")
}

// A thousand of the same at once are one event, whatever makes them the same.
func TestConcurrentDuplicates(t *testing.T) {
	unknown := request("1", "x")
	unknown.Record.Root.Local = "other"
	for name, r := range map[string]*sip.Request{"identified": request("1", "a"), "anonymous": request("", "a"), "rejected": unknown} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, Library, nil)
			var wait sync.WaitGroup
			answers := make([]*sip.Disposition, 1000)
			for i := range answers {
				wait.Go(func() {
					own := *r
					var err error
					if answers[i], err = h.server.Ingest(context.Background(), sip.Caller{}, &own); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
			for i, a := range answers {
				if !reflect.DeepEqual(a, answers[0]) {
					t.Fatalf("answer %d is %+v, the first %+v", i, a, answers[0])
				}
			}
			if got := h.events(); len(got) != 1 {
				t.Errorf("%d events, want one", len(got))
			}
		})
	}
}

// heldContents waits before it keeps records until it is told to, or to panic.
type heldContents struct {
	put   func(context.Context, ...[]byte) error
	hold  chan bool
	sizes []int // of what was given at once
}

func (c *heldContents) Put(ctx context.Context, records ...[]byte) error {
	c.sizes = append(c.sizes, len(records))
	if !<-c.hold {
		panic("a defect")
	}
	return c.put(ctx, records...)
}

// The first request is committed at once, and those that come meanwhile together, as many
// as a group takes. One that panics fails, and the next one goes on; so do the others of
// a group when somebody has left.
func TestLibraryGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldContents{hold: make(chan bool)}
		h := newHarness(t, Library, func(_ *harness, d *Server) { held.put, d.Keep = d.Keep, held.Put })
		var wait sync.WaitGroup
		var answered, failed atomic.Int32
		n := 0
		ingest := func(ctx context.Context, more int) {
			for range more {
				n++
				r := request(fmt.Sprint(n), "a")
				wait.Go(func() {
					disp, err := h.server.Ingest(ctx, sip.Caller{}, r)
					if err != nil {
						failed.Add(1)
					} else if disp.Outcome == sip.Accepted {
						answered.Add(1)
					}
				})
				synctest.Wait()
			}
		}
		commit := func(well bool, wantAnswered, wantFailed int32) {
			t.Helper()
			held.hold <- well
			synctest.Wait()
			if a, f := answered.Load(), failed.Load(); a != wantAnswered || f != wantFailed {
				t.Fatalf("%d are answered, and %d have failed; want %d and %d", a, f, wantAnswered, wantFailed)
			}
		}
		gone, leave := context.WithCancel(t.Context())
		ingest(t.Context(), 1)
		ingest(gone, 1)
		ingest(t.Context(), groupLimit+43)
		leave()
		commit(true, 1, 0)
		commit(false, 1, groupLimit)
		commit(true, 45, groupLimit)
		wait.Wait()
		if want := []int{1, groupLimit, 44}; !slices.Equal(held.sizes, want) {
			t.Errorf("groups of %v, want %v", held.sizes, want)
		}
		if got := h.events(); len(got) != 45 {
			t.Errorf("%d events", len(got))
		}
	})
}

// The contents of a group are written while the log writes the rows that name them,
// but nobody sees an event, or is answered, before they are durable.
func TestLibraryCommitsContentsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldContents{hold: make(chan bool)}
		h := newHarness(t, Library, func(_ *harness, d *Server) { held.put, d.Keep = d.Keep, held.Put })
		for _, well := range []bool{false, true} {
			answer := make(chan error, 1)
			go func() {
				_, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "a"))
				answer <- err
			}()
			synctest.Wait()
			h.wantEvents()
			select {
			case err := <-answer:
				t.Fatalf("answered before the content is durable: %v", err)
			default:
			}
			held.hold <- well
			if err := <-answer; well != (err == nil) {
				t.Errorf("contents kept %v: %v", well, err)
			}
			if got := len(h.events()); well != (got == 1) {
				t.Errorf("contents kept %v: %d events", well, got)
			}
		}
	})
}

// Of versions of a record in one group the last is in force; repeats in it are answered
// like the first, as if each had come alone.
func TestLibraryVersionsInOneGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldContents{hold: make(chan bool)}
		h := newHarness(t, Library, func(_ *harness, d *Server) { held.put, d.Keep = d.Keep, held.Put })
		var wait sync.WaitGroup
		ingest := func(r *sip.Request) *sip.Disposition {
			out := new(sip.Disposition)
			wait.Go(func() {
				disp, err := h.server.Ingest(t.Context(), sip.Caller{}, r)
				if err != nil {
					t.Error(err)
				} else {
					*out = *disp
				}
			})
			synctest.Wait()
			return out
		}
		ingest(request("0", "a"))
		unknown := request("2", "x")
		unknown.Record.Root.Local = "other"
		var versions, unnamed, rejections []*sip.Disposition
		for i := range 20 {
			versions = append(versions, ingest(request("1", fmt.Sprint(i/2%5)))) // each twice
			unnamed, rejections = append(unnamed, ingest(request("", "a"))), append(rejections, ingest(unknown))
		}
		held.hold <- true
		held.hold <- true
		wait.Wait()
		for _, answers := range [][]*sip.Disposition{versions, unnamed, rejections} {
			for i, a := range answers {
				if !reflect.DeepEqual(a, answers[0]) {
					t.Errorf("answer %d is %+v, the first %+v", i, a, answers[0])
				}
			}
		}
		e, err := h.log.Record(t.Context(), "maps", event.Key(versions[0].AssignedIdentifier))
		h.do(err)
		sum, err := content.ParseSum(e.Representations[0].SHA256())
		h.do(err)
		if got := read(t, h.contents, sum); !bytes.Equal(got, request("1", "4").Record.XML) {
			t.Errorf("the record is %s", got)
		}
		// The one that stood alone, ten versions, one without an identifier, one rejection.
		if got := h.events(); len(got) != 13 || h.faults.Calls.Load() != 2 {
			t.Errorf("%d events in %d transactions: %q", len(got), h.faults.Calls.Load(), got)
		}
		h.verified()
	})
}

// A request that meets a damaged row fails alone, and not the others of its group.
func TestLibraryDamageFailsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := &heldContents{hold: make(chan bool)}
		h := newHarness(t, Library, func(_ *harness, d *Server) { held.put, d.Keep = d.Keep, held.Put })
		var wait sync.WaitGroup
		failed := map[string]error{}
		var mu sync.Mutex
		ingest := func(identifier, text string) {
			wait.Go(func() {
				_, err := h.server.Ingest(t.Context(), sip.Caller{}, request(identifier, text))
				mu.Lock()
				defer mu.Unlock()
				failed[identifier] = err
			})
			synctest.Wait()
		}
		ingest("damaged", "a")
		held.hold <- true
		wait.Wait()
		h.do(h.log.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return tx.Exec(ctx, "UPDATE record SET source_state = x'00'")
		}))
		ingest("0", "a")
		for _, identifier := range []string{"1", "damaged", "2"} {
			ingest(identifier, "b")
		}
		held.hold <- true
		held.hold <- true
		wait.Wait()
		for identifier, err := range failed {
			if (identifier == "damaged") != (err != nil) {
				t.Errorf("%s: %v", identifier, err)
			}
		}
		if len(failed) != 4 {
			t.Errorf("answered: %v", failed)
		}
	})
}

// Whoever was answered commits nothing more: that would wait for the log's writer once
// again, which a large harvest may have for a while.
func TestLibraryCommitsOnce(t *testing.T) {
	h := newHarness(t, Library, nil)
	for i := range 30 {
		h.ingest(request(fmt.Sprint(i), "a"))
	}
	if n := h.faults.Calls.Load(); n != 30 {
		t.Errorf("30 requests, one after the other, have made %d transactions", n)
	}
}

// A group waits for as many requests as the last one had, but not for long.
func TestLibraryWaitsForExpectedRequests(t *testing.T) {
	h := newHarness(t, Library, nil)
	h.server.expected, h.server.patience = 3, time.Hour
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() { h.ingest(request(fmt.Sprint(i), "a")) })
	}
	all.Wait()
	if n := h.faults.Calls.Load(); n != 1 {
		t.Errorf("three expected requests have made %d transactions", n)
	}
	if h.server.expected != 3 || h.server.patience > maxPatience {
		t.Errorf("%d requests are expected, for %v", h.server.expected, h.server.patience)
	}
	h.ingest(request("3", "a")) // the others do not come again
	if h.server.expected != 1 {
		t.Errorf("%d requests are expected", h.server.expected)
	}
	h.verified()
}

// What has been answered is not kept in memory: the budget of requests does not count
// it any more.
func TestLibraryLetsGoOfRequests(t *testing.T) {
	h := newHarness(t, Library, nil)
	h.server.waiting = make([]*conclusion, 0, 8) // as after many at once
	all := h.server.waiting[:8]
	for i := range 5 {
		h.ingest(request(fmt.Sprint(i), "a"))
	}
	for i, c := range all {
		if c != nil {
			t.Errorf("request %d is kept", i)
		}
	}
}

// A failing commit fails those that are in it, and no others; a repeat of the
// request has the effect once, even if the commit had taken effect.
func TestFailuresOfTheLog(t *testing.T) {
	unknown := request("3", "x")
	unknown.Record.Root.Local = "other"
	for name, fail := range map[string]func(h *harness){
		"before": func(h *harness) { h.faults.Before.Store(1) },
		"after":  func(h *harness) { h.faults.After.Store(1) },
	} {
		for _, r := range []*sip.Request{request("1", "a"), request("", "a"), unknown} {
			h := newHarness(t, Library, nil)
			h.ingest(request("0", "before"))
			fail(h)
			if _, err := h.server.Ingest(t.Context(), sip.Caller{}, r); !errors.Is(err, testenv.ErrBroken) {
				t.Fatalf("%s: %v", name, err)
			}
			first, again := h.ingest(r), h.ingest(r)
			if !reflect.DeepEqual(first, again) {
				t.Errorf("%s: %+v, then %+v", name, first, again)
			}
			if got := h.events(); len(got) != 2 {
				t.Errorf("%s: events %q, want two", name, got)
			}
			h.verified()
		}
	}
	h := newHarness(t, Library, nil)
	h.server.Keep = noRoom
	if _, err := h.server.Ingest(t.Context(), sip.Caller{}, request("1", "a")); !errors.Is(err, testenv.ErrBroken) {
		t.Errorf("the content store is full: %v", err)
	}
	h.wantEvents()
}

func noRoom(context.Context, ...[]byte) error { return testenv.ErrBroken }

// The service through its own protocol: what a submitter sees, and what is
// published of it.
func TestLibraryOverHTTP(t *testing.T) {
	h := newHarness(t, Library, nil)
	server := httptest.NewServer(&sip.Handler{Backend: h.server, Offers: h.server.Offers()})
	defer server.Close()
	client := &sip.HTTPClient{HTTP: server.Client(), URL: server.URL}
	p, err := client.GetProperties(t.Context())
	if err != nil || p.Style != sip.Synchronous || len(p.Formats) != 1 || p.Formats[0] != mapFormat {
		t.Errorf("properties %+v, %v", p, err)
	}
	disp, err := client.Ingest(t.Context(), request("1", "<name>a</name>"))
	if err != nil || disp.Outcome != sip.Accepted || !reflect.DeepEqual(disp.Source, request("1", "").Source) {
		t.Fatalf("accepted: %+v, %v", disp, err)
	}
	h.wantEvents("created " + disp.AssignedIdentifier)
	unknown := &sip.Request{Record: sip.Record{Root: xml.Name{Local: "map"}, XML: []byte("<map/>")}}
	if disp, err := client.Ingest(t.Context(), unknown); err != nil || disp.Outcome != sip.Rejected || disp.Source != nil {
		t.Errorf("rejected: %+v, %v", disp, err)
	}
	never := request("1", "a") // D41: nobody will ever be notified
	never.Recipient = "ftp://maps.example/"
	if disp, err := client.Ingest(t.Context(), never); err != nil || disp.Outcome != sip.Accepted {
		t.Errorf("with a recipient: %+v, %v", disp, err)
	}
	isFault(t, client.Notify(t.Context(), &sip.Disposition{Outcome: sip.Rejected}), sip.Client, "ingest-disposition")
}
