package resourcesync

import (
	"cmp"
	"time"
)

// Datetime is a W3C Datetime in UTC, written YYYY-MM-DDThh:mm:ss[.s]Z as clause
// 7 recommends, with a fraction of as many digits as its maker has chosen or as
// were read. The zero Datetime is absent, and so is one outside the years 0 to
// 9999, which has no such form. Two that are the same moment with another number
// of digits differ by ==; Compare tells that they are the same.
type Datetime struct {
	sec    int64
	nano   int32
	digits int8 // of the fraction, 0 to 9; exact: as many as needed
	known  bool
}

const exact = -1

// Seconds cuts t to the second.
func Seconds(t time.Time) Datetime { return datetime(t, 0) }

// Micros cuts t to the microsecond and is always written with six digits.
func Micros(t time.Time) Datetime { return datetime(t, 6) }

// Exact is t with as many digits as it needs, up to nine.
func Exact(t time.Time) Datetime { return datetime(t, exact) }

func datetime(t time.Time, digits int8) Datetime {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return Datetime{}
	}
	nano := t.Nanosecond()
	if digits != exact {
		nano -= nano % below[digits]
	}
	return Datetime{sec: t.Unix(), nano: int32(nano), digits: digits, known: true}
}

// below has the nanoseconds that one unit of the last digit is made of, by the
// number of digits.
var below = [...]int{1e9, 1e8, 1e7, 1e6, 1e5, 1e4, 1e3, 100, 10, 1}

// IsZero tells whether the datetime is absent.
func (d Datetime) IsZero() bool { return !d.known }

// Time returns the datetime in UTC; the zero time when it is absent.
func (d Datetime) Time() time.Time {
	if !d.known {
		return time.Time{}
	}
	return time.Unix(d.sec, int64(d.nano)).UTC()
}

// Compare returns -1 when d is earlier than o, +1 when it is later, and 0 when
// both are the same moment. What is absent comes first.
func (d Datetime) Compare(o Datetime) int {
	switch {
	case d.known != o.known && o.known:
		return -1
	case d.known != o.known:
		return 1
	case d.sec != o.sec:
		return cmp.Compare(d.sec, o.sec)
	}
	return cmp.Compare(d.nano, o.nano)
}

// before orders two datetimes that are there.
func (d Datetime) before(o Datetime) bool { return d.Compare(o) < 0 }

// String returns the form of Append.
func (d Datetime) String() string { return string(d.Append(nil)) }

// Append appends the datetime's W3C form to b; nothing when it is absent.
func (d Datetime) Append(b []byte) []byte {
	if !d.known {
		return b
	}
	t := time.Unix(d.sec, 0).UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = appendDigits(b, year, 4)
	b = appendDigits(append(b, '-'), int(month), 2)
	b = appendDigits(append(b, '-'), day, 2)
	b = appendDigits(append(b, 'T'), hour, 2)
	b = appendDigits(append(b, ':'), minute, 2)
	b = appendDigits(append(b, ':'), second, 2)
	switch {
	case d.digits > 0:
		b = appendDigits(append(b, '.'), int(d.nano)/below[d.digits], int(d.digits))
	case d.digits == exact && d.nano != 0:
		b = appendDigits(append(b, '.'), int(d.nano), 9)
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return append(b, 'Z')
}

// appendDigits appends n with leading zeros.
func appendDigits(b []byte, n, digits int) []byte {
	end := len(b) + digits
	b = append(b, "000000000"[:digits]...)
	for i := end - 1; n > 0 && i >= end-digits; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}
