package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/testenv"
	"github.com/pmh-bridge/bridge/internal/testserver"
)

// changing is a bridge whose records change while others read its repository.
type changing struct {
	*relay
	repository *testserver.Repository
	random     *rand.Rand
	round      int
}

const changingRecords = 250

func newChanging(t *testing.T) *changing {
	c := &changing{relay: newRelay(t), repository: testserver.NewRepository(), random: rand.New(rand.NewPCG(12, 3))}
	server := httptest.NewServer(c.repository)
	t.Cleanup(server.Close)
	for i := range changingRecords {
		c.put(i)
	}
	c.run(pool{sources: []string{"oaipmh:" + server.URL + "/oai"}, page: 10})
	c.take(t, c.source(), harvest.Options{})
	return c
}

func (c *changing) put(i int) {
	id := fmt.Sprintf("oai:x.example:%d", i)
	c.repository.Put(testserver.Item{Identifier: id, Sets: []string{fmt.Sprint("s", c.random.IntN(3))},
		Metadata: map[string]string{"oai_dc": testserver.DublinCore(fmt.Sprintf("Letter %d of round %d", i, c.round))}})
}

// change changes, deletes, brings back and creates 50 records, and harvests them.
func (c *changing) change() error {
	c.round++
	for range 50 {
		// Some records change far more often than others.
		i := c.random.IntN(1 + c.random.IntN(changingRecords+c.round))
		if c.random.IntN(5) == 0 && i < changingRecords {
			c.repository.Delete(fmt.Sprintf("oai:x.example:%d", i))
		} else {
			c.put(i)
		}
	}
	report, err := c.bridge.Harvest(c.t.Context(), c.source(), harvest.Options{})
	if err == nil && report.Partial() {
		err = fmt.Errorf("something is left undone: %+v", report)
	}
	return err
}

// harvester is one of the plainest sort: it reads a list whole, and later what has
// changed from the responseDate of its first answer on.
type harvester struct {
	c     *changing
	date  string
	has   oaiStates
	lists int
}

// follow reads one list.
func (f *harvester) follow() {
	t := f.c.t
	t.Helper()
	arguments := "metadataPrefix=oai_dc"
	if f.date != "" {
		arguments += "&from=" + url.QueryEscape(f.date)
	}
	all, date := f.c.oaiList(t, arguments)
	seen := map[string]bool{}
	for i := range all {
		id := all[i].Header.Identifier
		if seen[id] {
			t.Errorf("list %d has record %s twice", f.lists, id)
		}
		seen[id] = true
		f.has[id] = all[i].state(t)
	}
	f.date = date
	f.lists++
}

// wantAll fails unless it has what the repository has, and that what the bridge
// harvested.
func (f *harvester) wantAll() {
	t := f.c.t
	t.Helper()
	published := f.c.readOAI(t, "oai_dc")
	for id, s := range published {
		if f.has[id] != s {
			t.Errorf("after %d lists record %s is\n got %s\nwant %s", f.lists, id, f.has[id], s)
		}
	}
	if len(f.has) != len(published) {
		t.Errorf("after %d lists there are %d records, want %d", f.lists, len(f.has), len(published))
	}
	for _, it := range f.c.repository.Items() {
		if s, ok := published[it.Identifier]; it.Deleted != s.deleted && (ok || !it.Deleted) || !it.Deleted && s.bytes != it.Metadata["oai_dc"] {
			t.Errorf("record %s is %s, want %+v", it.Identifier, s, it)
		}
	}
}

// Lists are read while records change at any time, also in the middle of an answer: no
// record is in one twice, and what it has not told is in the next one.
// TestRepositoryUnderChange of publish does the same between any two pages.
func TestListsUnderConstantChange(t *testing.T) {
	testenv.Heavy(t)
	c := newChanging(t)
	harvesters := make([]*harvester, 3)
	for i := range harvesters {
		harvesters[i] = &harvester{c: c, has: oaiStates{}}
	}
	stop, done, began := make(chan struct{}), make(chan error, 1), time.Now()
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := c.change(); err != nil {
				done <- err
				return
			}
		}
	}()
	for range testenv.Rounds(t, 2, 50) {
		for _, f := range harvesters {
			f.follow()
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f changes a second", 50*float64(c.round)/time.Since(began).Seconds())
	for _, f := range harvesters {
		f.follow()
		f.wantAll()
	}
	if c.round < 2 {
		t.Errorf("records have changed in %d rounds only", c.round)
	}
}
