package daemon

import (
	"testing"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// TestHubStatus: a hub fails since the first of its failures that goes on, whatever the order
// of documents.
func TestHubStatus(t *testing.T) {
	t.Parallel()
	var b Bridge
	b.generation.Store(&generation{config: &config.Config{Sets: []config.Set{{Name: "main", Hub: []string{"h"}}}}})
	told := []eventlog.HubTopic{{Hub: "h", Topic: "a", Since: 3, Error: "c"}, {Hub: "h", Topic: "b", Since: 1, Error: "d"}, {Hub: "h", Topic: "c", Told: 9}, {Hub: "h", Topic: "d", Since: 2, Error: "e"}}
	if all := hubStatus(b.hubsOf("main"), told); len(all) != 1 || all[0].FailingSince != timeOf(1) || all[0].Error != "d" || all[0].Told != timeOf(9) {
		t.Errorf("%+v", all)
	}
}
