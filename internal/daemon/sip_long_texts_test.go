package daemon_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/internal/peer"
)

// A stranger's long texts are stored once; whoever looks at a page later does not
// pay for them again and again.
func TestLongTextsOnPages(t *testing.T) {
	peer.Heavy(t)
	h := newSoapHouse(t, soapSet("main"))
	long := strings.Repeat("x", 4<<20-2000)
	began := time.Now()
	for i := range 6 {
		h.notify("/sip/main", sourceOf(fmt.Sprint(i))+rejectedFor(fmt.Sprint(i)+long))
	}
	taken := time.Since(began)
	began = time.Now()
	h.shows("main", "5xxx")
	if looked := time.Since(began); looked > taken/2 {
		t.Errorf("a page takes %v, where to store what is on it took %v", looked, taken)
	}
}
