package eventlog_test

import (
	"testing"

	"github.com/pmh-bridge/bridge/internal/eventlog/eventlogtest"
)

func TestConform(t *testing.T) { eventlogtest.Test(t, raced) }

func TestLaws(t *testing.T) {
	heavy(t)
	eventlogtest.Laws(t)
}

func TestLinkLaws(t *testing.T) {
	heavy(t)
	eventlogtest.LinkLaws(t)
}
