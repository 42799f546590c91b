package resourcesync

import (
	"cmp"
	"time"
)

// Datetime is a W3C Datetime in UTC, written YYYY-MM-DDThh:mm:ss[.s]Z as clause 7 recommends.
// Its fraction has as many digits as its constructor has chosen or as were read. The zero
// Datetime is absent, and so is one outside the years 0 to 9999, which has no such form. Two
// Datetimes of one moment with different numbers of digits are not equal by ==; use Compare.
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

// below is how many nanoseconds one unit of the last digit has, by the number of digits.
var below = [...]int{1e9, 1e8, 1e7, 1e6, 1e5, 1e4, 1e3, 100, 10, 1}

// IsZero reports whether the datetime is absent.
func (d Datetime) IsZero() bool { return !d.known }

// Time returns the datetime in UTC; the zero time when it is absent.
func (d Datetime) Time() time.Time {
	if !d.known {
		return time.Time{}
	}
	return time.Unix(d.sec, int64(d.nano)).UTC()
}

// Compare returns -1 when d is earlier than o, +1 when it is later, and 0 when both are the
// same moment. An absent datetime comes first.
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

// before reports whether d is earlier than o. An absent datetime comes first.
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

// timeForm is the form in which a datetime was written, from good to bad.
type timeForm uint8

const (
	asRecommended timeForm = iota // complete, in UTC
	otherwise                     // legal: an offset, or less than seconds
	lenient                       // no W3C Datetime, but it is clear what is meant
	naive                         // without a zone
	noTime
)

// readTime reads a W3C Datetime of any precision: a year, month or day (which means its first
// moment in UTC), minutes, seconds, and a fraction of any length, cut to the nanosecond; Z or
// an offset. It also accepts, and reports in form: a blank or a lower-case t for the T, a
// lower-case z, a comma for the point, an offset without colon or minutes, and a time without
// any zone, as UTC.
func readTime[T string | []byte](s T) (d Datetime, form timeForm) {
	p := timeParser[T]{s: s}
	year := p.number(4)
	month, day, hour, minute, second := 1, 1, 0, 0, 0
	nano, digits, offset := 0, 0, 0
	if p.sign('-') {
		month = p.number(2)
		if p.sign('-') {
			day = p.number(2)
		}
	}
	if p.at == len(s) {
		p.atLeast(otherwise)
	} else {
		if !p.sign('T') {
			p.bad = p.bad || !p.sign('t') && !p.sign(' ')
			p.atLeast(lenient)
		}
		hour = p.number(2)
		p.bad = !p.sign(':') || p.bad
		minute = p.number(2)
		if p.sign(':') {
			second = p.number(2)
			nano, digits = p.fraction()
		} else {
			p.atLeast(otherwise)
		}
		offset = p.zone()
	}
	// The last day of a month is the one before the first of the next.
	if p.bad || p.at != len(s) || month < 1 || month > 12 || day < 1 || day > time.Date(year, time.Month(month+1), 0, 0, 0, 0, 0, time.UTC).Day() ||
		hour > 23 || minute > 59 || second > 60 {
		return Datetime{}, noTime
	}
	t := time.Date(year, time.Month(month), day, hour, minute-offset, second, 0, time.UTC)
	if y := t.Year(); y < 0 || y > 9999 {
		return Datetime{}, noTime
	}
	return Datetime{sec: t.Unix(), nano: int32(nano), digits: int8(digits), known: true}, p.form
}

// openIn returns how much later than d the time may be that was read as d from s: a date means any
// time of its day.
func openIn(s string, d Datetime) time.Duration {
	t := d.Time()
	end := t.Add(time.Minute)
	switch {
	case d.IsZero():
		return 0
	case len(s) > 16 && s[16] == ':':
		return time.Duration(below[d.digits]) - 1
	case len(s) == len("2026"):
		end = t.AddDate(1, 0, 0)
	case len(s) == len("2026-01"):
		end = t.AddDate(0, 1, 0)
	case len(s) == len(time.DateOnly):
		end = t.AddDate(0, 0, 1)
	}
	return end.Sub(t) - 1
}

// timeParser reads a datetime from left to right. After the first character that does not fit,
// bad is set and the returned values have no meaning.
type timeParser[T string | []byte] struct {
	s    T
	at   int
	bad  bool
	form timeForm
}

// atLeast notes that the form is no better than f.
func (p *timeParser[T]) atLeast(f timeForm) { p.form = max(p.form, f) }

// number reads n digits.
func (p *timeParser[T]) number(n int) int {
	if p.at+n > len(p.s) {
		p.bad = true
		return 0
	}
	v := 0
	for range n {
		c := p.s[p.at] - '0'
		if c > 9 {
			p.bad = true
		}
		v = v*10 + int(c)
		p.at++
	}
	return v
}

// sign steps over c when it comes next.
func (p *timeParser[T]) sign(c byte) bool {
	if p.at < len(p.s) && p.s[p.at] == c {
		p.at++
		return true
	}
	return false
}

// fraction reads the fraction of the seconds, if there is one.
func (p *timeParser[T]) fraction() (nano, digits int) {
	switch {
	case p.sign('.'):
	case p.sign(','):
		p.atLeast(lenient)
	default:
		return 0, 0
	}
	from := p.at
	for ; p.at < len(p.s) && p.s[p.at]-'0' <= 9; p.at++ {
		if digits < 9 {
			digits++
			nano += int(p.s[p.at]-'0') * below[digits]
		}
	}
	p.bad = p.bad || p.at == from
	return nano, digits
}

// zone reads Z or an offset, which it returns in minutes east of UTC.
func (p *timeParser[T]) zone() (offset int) {
	east := false
	switch {
	case p.sign('Z'):
		return 0
	case p.sign('z'):
		p.atLeast(lenient)
		return 0
	case p.sign('+'):
		east = true
	case p.sign('-'):
	default:
		p.atLeast(naive)
		return 0
	}
	p.atLeast(otherwise)
	hours, minutes := p.number(2), 0
	colon := p.sign(':')
	if !colon {
		p.atLeast(lenient)
	}
	if colon || p.at < len(p.s) {
		minutes = p.number(2)
	}
	p.bad = p.bad || hours > 23 || minutes > 59
	if offset = hours*60 + minutes; !east {
		offset = -offset
	}
	return offset
}
