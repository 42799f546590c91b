package audit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/eventlog"
	"github.com/pmh-bridge/bridge/internal/fetch"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/translate"
)

// compareDigests compares hashes of other algorithms than SHA-256 that the Source states with
// our copies, of which the log has the SHA-256 alone.
func (s *sourceAudit) compareDigests(ctx context.Context, c *compared) error {
	if c.content != event.Mirror || s.Contents == nil || len(c.found) > 0 && c.found[0].Kind == Stale {
		return nil
	}
	for _, there := range c.there.Observation.Representations {
		if there.Hash == "" || there.Encoding != "" || there.SHA256() != "" {
			continue
		}
		there.Length = event.NoLength // which was compared
		for _, here := range c.here.Observation.Representations {
			if here.Href != there.Href {
				continue
			}
			body, err := s.open(ctx, &here)
			if err != nil {
				break // compareHere finds that
			}
			_, _, why, err := harvest.CompareContent(&there, body)
			if err := errors.Join(err, body.Close()); err != nil && !errors.Is(err, content.ErrDamaged) {
				return err
			}
			if why != "" {
				c.add(Hash, there.Href, why, there.Hash)
			}
			break
		}
	}
	return nil
}

// open opens our copy of a representation.
func (s *sourceAudit) open(ctx context.Context, r *event.Representation) (*content.Blob, error) {
	sum, err := content.ParseSum(r.SHA256())
	if err != nil {
		return nil, err
	}
	return s.Contents.OpenPatiently(ctx, sum)
}

// checkContents checks the copies and the published entries of those records of a page that are
// published from this Source.
func (s *sourceAudit) checkContents(ctx context.Context, all []eventlog.SourceRecord) error {
	list := translate.NewListEncoder("http://localhost", s.src.Set, s.src.Content)
	var wrong []Difference
	var ids []string
	var originals []*eventlog.SourceRecord
	note := func(here *eventlog.SourceRecord, found ...Finding) {
		if len(found) == 0 {
			return
		}
		d := Difference{Findings: found, Content: true, Repair: harvest.RepairOf(here)}
		for i := range found {
			found[i].Record = here.Record
			if kind := found[i].Kind; kind != ContentMissing && kind != ContentDamaged {
				d.Content, d.Repair.NeedsEvent = false, true
			}
		}
		wrong, ids = append(wrong, d), append(ids, here.Record)
	}
	for i := range all {
		here := &all[i]
		if !here.Authority || !here.Alive || here.Seq > s.start {
			continue
		}
		s.report.Served++
		found, err := s.checkPublished(ctx, list, here)
		if err != nil {
			return err
		}
		note(here, found...)
		if s.Origin != nil && s.leadsElsewhere(here) {
			originals = append(originals, here)
		}
	}
	for _, o := range s.askOriginals(ctx, originals) {
		if o.why != "" {
			s.unchecked(o.why)
		} else if !o.left {
			note(o.here, o.found...)
		}
	}
	if len(wrong) == 0 {
		return ctx.Err()
	}
	there := make([]eventlog.SourceRecord, len(wrong))
	if s.read {
		var err error
		if there, err = s.there.SourceRecordsOf(ctx, s.id, ids); err != nil {
			return err
		}
	}
	for i := range wrong {
		switch d := &wrong[i]; {
		case there[i].Alive: // its state at the Source is fetched anew
			d.Repair.Observation = there[i].Observation
		case d.Content: // the same bytes can be asked for all the same
			d.Repair.Observation = event.Observation{Record: ids[i]}
		default:
			d.Repair = nil
		}
		s.add(wrong[i])
	}
	return ctx.Err()
}

// checkPublished reads our copies of a record, and compares what its URLs answer with
// its entry in our lists.
func (s *sourceAudit) checkPublished(ctx context.Context, list *translate.ListEncoder, here *eventlog.SourceRecord) (found []Finding, err error) {
	o := &here.Observation
	ev := event.Event{Seq: here.Seq, Set: s.src.Set, Record: here.Record, Kind: event.Updated, Modified: o.Modified, Title: o.Title,
		Representations: o.Representations, Preferred: o.Preferred, Via: event.Link{Href: o.ViaHref()}, Loc: o.Loc}
	pref, ok := ev.Pref()
	switch {
	case s.src.Content == event.Reference:
		return nil, nil // its entry names the original itself
	case !ok:
		return []Finding{{Kind: Published, Found: "404: no representation is preferred", Expected: "the record"}}, nil
	case s.src.Content == event.Redirect:
		if !event.OnTheWeb(pref.Href) {
			found = append(found, Finding{Kind: Published, URL: pref.Href, Found: "404: the original is not on the web", Expected: "a redirect"})
		}
		return found, nil
	}
	entry := list.ResourceEntry(&ev)
	for i := range o.Representations {
		r := &o.Representations[i]
		length := r.Length
		if i == o.Preferred {
			if n, known := entry.Metadata.Length.Bytes(); known {
				length = n
			}
			if served := translate.ServedType(r.Type); entry.Metadata.Type != "" && entry.Metadata.Type != served {
				found = append(found, Finding{Kind: Published, URL: r.Href, Found: served, Expected: entry.Metadata.Type})
			}
		}
		f, err := s.checkCopy(ctx, r, length)
		if err != nil {
			return nil, err
		}
		if f.Kind != "" {
			f.URL = r.Href
			found = append(found, f)
		}
	}
	return found, nil
}

// checkCopy reads our copy of a representation to its end. length is that of its entry.
func (s *sourceAudit) checkCopy(ctx context.Context, r *event.Representation, length int64) (Finding, error) {
	if _, err := content.ParseSum(r.SHA256()); err != nil {
		return Finding{Kind: Published, Found: "500: the copy has no SHA-256", Expected: "the record"}, nil
	}
	if s.Contents == nil {
		return Finding{Kind: ContentMissing, Found: "none: there is no content.db", Expected: r.Hash}, nil
	}
	body, err := s.open(ctx, r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Finding{Kind: ContentMissing, Found: "none", Expected: r.Hash}, nil
	case errors.Is(err, content.ErrDamaged):
		return Finding{Kind: ContentDamaged, Found: err.Error(), Expected: r.Hash}, nil
	case err != nil:
		return Finding{}, err
	}
	s.report.Contents++
	unsized := *r
	unsized.Length = event.NoLength
	_, size, why, err := harvest.CompareContent(&unsized, body)
	err = errors.Join(err, body.Close())
	switch {
	case errors.Is(err, content.ErrDamaged):
		return Finding{Kind: ContentDamaged, Found: err.Error(), Expected: r.Hash}, nil
	case err != nil:
		return Finding{}, err
	case why != "":
		return Finding{Kind: ContentDamaged, Found: why, Expected: r.Hash}, nil
	case length != event.NoLength && length != size:
		return Finding{Kind: Published, Found: bytesText(size), Expected: bytesText(length) + " by its entry in our lists"}, nil
	}
	return Finding{}, nil
}

// leadsElsewhere reports whether the original of a record is on another server than
// where its Source has it.
func (s *sourceAudit) leadsElsewhere(here *eventlog.SourceRecord) bool {
	o := &here.Observation
	if o.Via.Href == "" || !event.OnTheWeb(o.Via.Href) || o.Preferred >= len(o.Representations) {
		return false
	}
	via, err := url.Parse(o.Via.Href)
	copied, err2 := url.Parse(o.Representations[o.Preferred].Href)
	return err == nil && err2 == nil && !strings.EqualFold(via.Host, copied.Host)
}

// original is the result of a request for an original: the differences, or why it could not be
// compared.
type original struct {
	here   *eventlog.SourceRecord
	found  []Finding
	why    string
	failed bool // its server did
	left   bool // it was not asked for
}

// mostFailures is how many requests to a server of originals fail one after the other until it
// is asked no more: each may take a minute.
const mostFailures = 8

// originServer is a server of originals, as the requests of this audit found it.
type originServer struct {
	failed int   // requests one after the other
	left   int64 // originals that it was not asked for
}

// originServers has the servers of originals by host, for any goroutine.
type originServers struct {
	sync.Mutex
	all map[string]*originServer
}

// next begins a page: a server that failed may be back, and is asked once more.
func (s *originServers) next() {
	for _, server := range s.all {
		server.failed = min(server.failed, mostFailures-1)
	}
}

// of returns a server. The caller holds the lock.
func (s *originServers) of(host string) *originServer {
	if s.all == nil {
		s.all = map[string]*originServer{}
	}
	if s.all[host] == nil {
		s.all[host] = &originServer{}
	}
	return s.all[host]
}

// mayAsk reports whether a server is asked for one more original.
func (s *originServers) mayAsk(host string) bool {
	s.Lock()
	defer s.Unlock()
	server := s.of(host)
	if server.failed < mostFailures {
		return true
	}
	server.left++
	return false
}

// note notes whether a server has failed.
func (s *originServers) note(host string, failed bool) {
	s.Lock()
	defer s.Unlock()
	server := s.of(host)
	if server.failed++; !failed {
		server.failed = 0
	}
}

// askOriginals asks for the originals of records, some at a time.
func (s *sourceAudit) askOriginals(ctx context.Context, all []*eventlog.SourceRecord) []original {
	workers := cmp.Or(s.Workers, 8)
	s.servers.next()
	out, slots := make([]original, len(all)), make(chan struct{}, workers)
	var group sync.WaitGroup
	for i, here := range all {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			host := hostOf(here.Observation.Via.Href)
			if !s.servers.mayAsk(host) {
				out[i] = original{here: here, left: true}
				return
			}
			out[i] = s.askOriginal(ctx, here)
			s.servers.note(host, out[i].failed)
		})
	}
	group.Wait()
	for i := range out {
		if !out[i].left {
			s.report.Originals++
		}
	}
	return out
}

// noteServers notes the servers that were not asked for all originals.
func (s *sourceAudit) noteServers() {
	for _, host := range slices.Sorted(maps.Keys(s.servers.all)) {
		if left := s.servers.all[host].left; left > 0 {
			s.unchecked(fmt.Sprintf("%d originals at %s: the last %d requests there failed, and these were not made; run it again when the server answers", left, host, mostFailures))
		}
	}
}

// hostOf returns the host of a URL, in lower case.
func hostOf(href string) string {
	u, err := url.Parse(href)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// askOriginal compares the original of a record with what its via states, or where that
// states no hash, with our copy.
func (s *sourceAudit) askOriginal(ctx context.Context, here *eventlog.SourceRecord) original {
	o := &here.Observation
	out := original{here: here}
	fail := func(err error) original {
		out.why = fmt.Sprintf("record %q: its original could not be read: %v", here.Record, err)
		return out
	}
	serverFails := func(err error) original {
		out.failed = true
		return fail(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, event.URI(o.Via.Href), nil)
	if err != nil {
		return fail(err)
	}
	resp, err := s.Origin.Do(req)
	if err != nil {
		return serverFails(err)
	}
	defer resp.Body.Close()
	stated := event.Representation{Hash: o.Via.Hash, Length: event.NoLength}
	if stated.Hash == "" {
		stated.Hash = o.Representations[o.Preferred].Hash
	}
	switch {
	case fetch.Gone(resp.StatusCode):
		out.found = []Finding{{Kind: Original, URL: o.Via.Href, Found: stated.Hash, Expected: "nothing: it answers " + resp.Status}}
		return out
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= http.StatusInternalServerError:
		return serverFails(errors.New("it answers " + resp.Status))
	case resp.StatusCode != http.StatusOK:
		return fail(errors.New("it answers " + resp.Status))
	}
	limit := cmp.Or(s.src.Limits.Record, 64<<20)
	body := io.Reader(fetch.Limit(resp.Body, limit, "an original"))
	if translate.PrefixOf(o.Via.Href) != "" { // it is in an answer of OAI-PMH
		metadata, err := harvest.ReadOriginal(resp, body, o.Via.Href, &s.src.Limits)
		if errors.Is(err, harvest.ErrGone) {
			out.found = []Finding{{Kind: Original, URL: o.Via.Href, Found: stated.Hash, Expected: "nothing: the repository does not have it"}}
			return out
		} else if err != nil {
			return fail(err)
		}
		body = bytes.NewReader(metadata)
	}
	sum, _, why, err := harvest.CompareContent(&stated, body)
	if errors.Is(err, fetch.ErrTooLarge) {
		return fail(err)
	} else if err != nil {
		return serverFails(err)
	}
	if why != "" {
		out.found = []Finding{{Kind: Original, URL: o.Via.Href, Found: stated.Hash, Expected: event.HashOf(sum)}}
	}
	return out
}
