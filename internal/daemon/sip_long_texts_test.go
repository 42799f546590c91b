package daemon_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// A stranger's long texts are stored once; whoever looks at a page later does not
// pay for them again and again.
func TestLongTextsOnPages(t *testing.T) {
	testenv.Heavy(t)
	h := newSIPBridge(t, sipSet("main"))
	long := strings.Repeat("x", 4<<20-2000)
	for i := range 6 {
		h.notify("/sip/main", sourceOf(fmt.Sprint(i))+rejectedFor(fmt.Sprint(i)+long))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.shows("main", "5xxx")
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(long)) {
		t.Errorf("a page takes %d bytes of memory, and one of the texts on it has %d", took, len(long))
	}
}
