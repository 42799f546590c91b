package harvest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/websub"
)

// TestTopics: the topics of a ResourceSync Source are the channels that its Capability List
// names, else its Change Lists. A channel without a URL that can be asked is none.
func TestTopics(t *testing.T) {
	t.Parallel()
	const hub = `<rs:ln rel="hub" href="https://hub.example/"/>`
	for name, c := range map[string]struct{ channel, changes, topic string }{
		"channel":               {"<url><loc>BASE/channel.xml</loc><rs:md capability=\"change-notification\"/>" + hub + "</url>", hub, "/channel.xml"},
		"no channel":            {"", hub, "/changelist.xml"},
		"a channel with no URL": {"<url><loc>https://user:secret@a.example/channel.xml</loc><rs:md capability=\"change-notification\"/>" + hub + "</url>", hub, "/changelist.xml"},
		"nothing":               {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var server *httptest.Server
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				list := func(capability, entries string) {
					_, _ = io.WriteString(w, `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/"><rs:md capability="`+capability+`"/>`+
						strings.ReplaceAll(entries, "BASE", server.URL)+"</urlset>")
				}
				switch r.URL.Path {
				case "/capabilitylist.xml":
					list("capabilitylist", `<url><loc>BASE/changelist.xml</loc><rs:md capability="changelist"/></url>`+c.channel)
				case "/changelist.xml":
					list("changelist", c.changes)
				default:
					http.NotFound(w, r)
				}
			}))
			t.Cleanup(server.Close)
			src := Source{Kind: ResourceSync, URL: server.URL + "/capabilitylist.xml", Client: server.Client()}
			var want []websub.Links
			if c.topic != "" {
				want = []websub.Links{{Hubs: []string{"https://hub.example/"}, Self: server.URL + c.topic}}
			}
			if got, err := src.Topics(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		})
	}
}
