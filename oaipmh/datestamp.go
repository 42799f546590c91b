package oaipmh

import (
	"bytes"
	"strings"
	"time"
)

// parseDatestamp reads a datestamp in one of the two forms of the protocol (3.3).
func parseDatestamp(b []byte) (t time.Time, day, ok bool) {
	if len(b) != len("2006-01-02") && len(b) != len("2006-01-02T15:04:05Z") || b[4] != '-' || b[7] != '-' {
		return t, false, false
	}
	year, month, date := digits(b[:4]), digits(b[5:7]), digits(b[8:10])
	var hour, minute, second int
	if day = len(b) == 10; !day {
		if b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[19] != 'Z' {
			return t, false, false
		}
		hour, minute, second = digits(b[11:13]), digits(b[14:16]), digits(b[17:19])
	}
	if year < 0 || month < 1 || month > 12 || date < 1 || date > 31 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 {
		return t, false, false
	}
	t = time.Date(year, time.Month(month), date, hour, minute, second, 0, time.UTC)
	return t, day, t.Day() == date
}

// digits returns the number that b is, -1 when it is none.
func digits(b []byte) (n int) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return -1
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// oddDatestamps are other forms in which repositories write datestamps (O7).
var oddDatestamps = []string{
	"2006-01-02T15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04:05.999999999Z07", "2006-01-02T15:04:05.999999999",
	"2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02T15", "2006-01-02Z07:00", "2006-01-02", "20060102T150405Z", "20060102", "2006-1-2", "2006-01", "2006",
}

// guessDatestamp reads a datestamp in whatever form. One without an offset is in UTC.
func guessDatestamp(b []byte) (t time.Time, day, ok bool) {
	s := strings.ToUpper(strings.TrimSpace(string(bytes.ToValidUTF8(b, nil))))
	if len(s) > len("2006-01-02") && s[len("2006-01-02")] == ' ' {
		s = s[:len("2006-01-02")] + "T" + strings.TrimLeft(s[len("2006-01-02"):], " ")
	}
	s = strings.ReplaceAll(s, " ", "") // "… +02:00", "… Z"
	s = strings.TrimSuffix(strings.TrimSuffix(s, "UTC"), "GMT")
	var leap time.Duration // a second, which is that of the next minute
	if at := len("2006-01-02T15:04"); len(s) > at && strings.HasPrefix(s[at:], ":60") {
		s, leap = s[:at]+":59"+s[at+len(":60"):], time.Second
	}
	for _, form := range oddDatestamps {
		if t, err := time.Parse(form, s); err == nil {
			return t.Add(leap).UTC(), !strings.Contains(form, "T"), true
		}
	}
	return time.Time{}, false, false
}
