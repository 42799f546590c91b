package console

import (
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
	"github.com/pmh-bridge/bridge/internal/submission"
)

// The advice follows from what the error says, and from no number of an address.
func TestAdvice(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"http://127.0.0.1:43401/feed.atom: HTTP status 404 Not Found: check the URL", "whether it has moved"},
		{"file:///srv/feed.atom: there is no such file: check the path", "whether it has moved"},
		{"https://a.example/list?n=404: HTTP status 401 Unauthorized: check the credentials", "wants a login"},
		{"https://a.example/503: HTTP status 403 Forbidden", "ask its operators"},
		{"https://a.example/: HTTP status 500 Internal Server Error: try again later", "Its server fails"},
		{"https://a.example/: HTTP status 429 Too Many Requests", "patience"},
		{"tried 4 times: dial tcp 127.0.0.1:40401: connect: connection refused", "Nothing answers"},
		{`Get "https://xml.example/timeout": tls: failed to verify certificate: x509: certificate signed by unknown authority`, "certificate is not accepted"},
		{"https://a.example/refused: the server did not begin to answer in time (header_timeout); try again later: deadline exceeded", "too slowly"},
		{"7:1: <channel> is closed by </rss>: XML is not well-formed", "cannot be read"},
		{"something else at http://127.0.0.1:50401/", "tries again by itself. If this goes on"},
	} {
		if got := advice(c.text); !strings.Contains(got, c.want) {
			t.Errorf("%s:\n%s\nwant %q", c.text, got, c.want)
		}
	}
}

// Each kind of Source has a name.
func TestProtocols(t *testing.T) {
	unknown := sourceRow{Source: &status.Source{}}.Protocol()
	for _, kind := range []string{harvest.AtomPMH, harvest.ResourceSync, harvest.OAIPMH, harvest.Feed, harvest.Folder, harvest.CSV, harvest.Sitemap, harvest.Set, harvest.SIP} {
		if name := (sourceRow{Source: &status.Source{Kind: kind}}).Protocol(); name == unknown {
			t.Errorf("%s: %s", kind, name)
		}
	}
}

// What has bridge status exit with 3 needs a person at the console too.
func TestMatters(t *testing.T) {
	s := &status.Status{Sets: []status.Set{{Name: "maps", Dumps: &status.Dumps{Faults: []string{"no space left on device"}}}, {Name: "books", Dumps: &status.Dumps{}}}}
	if s.Summary = status.Summarize(s.Sets); !s.Summary.Fails() {
		t.Fatal("nothing fails")
	}
	if all := matters(s, nil); len(all) != 1 || all[0].Where != "maps" || all[0].Class != "bad" || !strings.Contains(all[0].Why, "no space left on device") {
		t.Errorf("%+v", all)
	}
	s.Sets[1].Hubs = []status.Hub{{URL: "https://hub.example/"}, {URL: "https://away.example/", FailingSince: status.Time{Time: time.Now()}, Error: "answers 503"}}
	if all := matters(s, nil); len(all) != 2 || all[1].Where != "books / away.example" || !strings.Contains(all[1].Why, "answers 503") {
		t.Errorf("%+v", all)
	}
	// A submitter that does not know its decision.
	s.Sets[1].Submissions = []status.Peer{{Direction: status.Received, URL: "/sip/books",
		NotificationsSent: status.Counts[submission.DeliveryState]{submission.DeliveryRefused: 1, submission.DeliveryExpired: 2, submission.DeliveryWaiting: 4, submission.DeliveryDone: 8}}}
	if all := matters(s, nil); len(all) != 3 || all[2].Where != "books / /sip/books" || all[2].Why != "3 notifications could not be delivered to submitters" {
		t.Errorf("%+v", all)
	}
	if got := status.Summarize(s.Sets).Undelivered; got != 3 {
		t.Errorf("%d notifications were not delivered", got)
	}
	s.Sets[1].Submissions = nil
	// bridge verify has nothing to say of most warnings.
	s.Warnings = []string{"template maps: its sets cannot be found out: answers 404"}
	if all := matters(s, nil); len(all) != 3 || !strings.Contains(all[0].Why, "answers 404") || strings.Contains(all[0].Do, "verify") {
		t.Errorf("%+v", all)
	}
}
