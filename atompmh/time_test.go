package atompmh

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	tests := []struct{ in, want string }{ // want "": an error
		{"2003-12-13T18:30:02Z", "2003-12-13T18:30:02Z"},
		{"2003-12-13t18:30:02z", "2003-12-13T18:30:02Z"},
		{"2003-12-13T18:30:02.25Z", "2003-12-13T18:30:02.25Z"},
		{"2003-12-13T18:30:02+01:00", "2003-12-13T17:30:02Z"},
		{"2003-12-13T18:30:02-00:00", "2003-12-13T18:30:02Z"},
		{"2003-12-31T23:30:02.123456789987-01:30", "2004-01-01T01:00:02.123456789Z"},
		{"2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"},
		{"2000-02-29T00:00:00Z", "2000-02-29T00:00:00Z"},
		{"1678-01-01T00:00:00Z", "1678-01-01T00:00:00Z"},
		{"2261-12-31T23:59:59.999999999Z", "2261-12-31T23:59:59.999999999Z"},
		{"2262-01-01T00:30:00+01:00", "2261-12-31T23:30:00Z"},
		{"1678-01-01T00:00:00+00:01", "1678-01-01T00:00:00Z"}, // D89
		{"0001-01-01T00:00:00Z", "1678-01-01T00:00:00Z"},
		{"0000-01-01T00:00:00+01:00", "1678-01-01T00:00:00Z"},
		{"2262-01-01T00:00:00Z", ""},
		{"1900-02-29T00:00:00Z", ""},
		{"2003-04-31T00:00:00Z", ""},
		{"2003-00-13T18:30:02Z", ""},
		{"2003-13-13T18:30:02Z", ""},
		{"2003-12-00T18:30:02Z", ""},
		{"2003-12-00T18:30:02." + strings.Repeat("0", 1000) + "Z", ""},
		{"2003-12-13T24:00:00Z", ""},
		{"2003-12-13T18:60:02Z", ""},
		{"2003-12-13T18:30:61Z", ""},
		{"2003-12-13T18:30:02", ""},
		{"2003-12-13T18:30:02.Z", ""},
		{"2003-12-13T18:30:02,5Z", ""},
		{"2003-12-13 18:30:02Z", ""},
		{"2003-12-13T18:30Z", ""},
		{"2003-12-13T18:30:02+0100", ""},
		{"2003-12-13T18:30:02+01", ""},
		{"2003-12-13T18:30:02+24:00", ""},
		{"2003-12-13T18:30:02+01:60", ""},
		{"2003-12-13T18:30:02 01:00", ""},
		{"+003-12-13T18:30:02Z", ""},
		{"2003-12-13T18:30:02ZZ", ""},
		{"", ""},
	}
	for _, tt := range tests {
		got, err := ParseTime(tt.in)
		if tt.want == "" {
			if err == nil || len(err.Error()) > 300 {
				t.Errorf("%q is %v, %v", tt.in, got, err)
			}
			continue
		}
		if err != nil || got.Format(time.RFC3339Nano) != tt.want || got.Location() != time.UTC {
			t.Errorf("%q is %v, %v", tt.in, got, err)
		}
	}
}

// rfc3339 is its grammar: the standard library takes a one-digit hour, a comma
// and any offset as well.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// FuzzTime compares with the standard library, whose reading differs only where
// ParseTime's comment says so.
func FuzzTime(f *testing.F) {
	for _, s := range []string{"2003-12-13T18:30:02Z", "2003-12-13T18:30:02.25+01:00", "2016-12-31T23:59:60Z", "1677-01-01T00:00:00-23:59", "2262-04-11T23:47:16Z", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTime(s)
		want, other := time.Parse(time.RFC3339Nano, s)
		switch {
		case err == nil && other == nil:
			if want.Before(earliest()) {
				want = earliest()
			}
			if !got.Equal(want) {
				t.Errorf("%q is %v, not %v", s, got, want)
			}
		case err == nil:
			if !strings.ContainsAny(s, "tz") && s[17:19] != "60" {
				t.Errorf("%q passed: %v", s, other)
			}
		case other == nil:
			if y := want.UTC().Year(); y < 2262 && rfc3339.MatchString(s) {
				t.Errorf("%q refused: %v", s, err)
			}
		}
		if err == nil {
			if back := time.Unix(0, got.UnixNano()); !back.Equal(got) {
				t.Errorf("%v does not fit int64 nanoseconds", got)
			}
			if again, err := ParseTime(got.Format(time.RFC3339Nano)); err != nil || !again.Equal(got) {
				t.Errorf("%v read again is %v, %v", got, again, err)
			}
		}
	})
}
