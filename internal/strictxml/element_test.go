package strictxml

import (
	"encoding/xml"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestBeginningsOfNames: whatever XML allows at the beginning of a name is one here.
func TestBeginningsOfNames(t *testing.T) {
	begin := 0
	for r := rune(utf8.RuneSelf); r <= 0xFFFF; r++ {
		c := string(r)
		if !utf8.ValidString(c) {
			continue
		}
		if _, err := xml.NewDecoder(strings.NewReader("<" + c + "/>")).RawToken(); err == nil {
			if begin++; !beginsName(r) {
				t.Errorf("%U begins no name", r)
			}
		}
	}
	if begin < 30_000 {
		t.Errorf("encoding/xml allows %d characters at the beginning of names", begin)
	}
}
