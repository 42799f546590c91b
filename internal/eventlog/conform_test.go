package eventlog_test

import (
	"testing"

	"github.com/pmh-bridge/bridge/internal/eventlog/eventlogtest"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestConform(t *testing.T) {
	testenv.Heavy(t)
	eventlogtest.Test(t)
}

func TestLaws(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 30)
	eventlogtest.Laws(t)
}

func TestLinkLaws(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 30)
	eventlogtest.LinkLaws(t)
}

func TestBatchLaws(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 25)
	eventlogtest.BatchLaws(t)
}

func TestPartLaws(t *testing.T) {
	testenv.Heavy(t)
	testenv.Checks(t, 25)
	eventlogtest.PartLaws(t)
}
