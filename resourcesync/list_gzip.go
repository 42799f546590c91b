package resourcesync

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
)

const (
	// maxRatio is how many bytes one byte of a gzip file may become, judged from
	// ratioFloor bytes on: short lists compress well.
	maxRatio   = 100
	ratioFloor = 1 << 20
)

// unpacked returns a body as it is, or what is in it when it is a gzip file:
// sitemaps often are, and no header field says so.
func unpacked(r io.Reader) *bufio.Reader {
	raw := &tally{r: r}
	in := bufio.NewReader(raw)
	// What keeps two bytes from being read shows again when they are wanted.
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" {
		return in
	}
	return bufio.NewReader(&unpacker{in: in, raw: raw})
}

// packedError tells what is wrong with a gzip file that arrived whole.
type packedError struct{ reason string }

func (e *packedError) Error() string { return e.reason }

// tally counts what it has read, and remembers what kept it from reading on.
type tally struct {
	r   io.Reader
	n   int64
	err error
}

func (t *tally) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// unpacker undoes a gzip file.
type unpacker struct {
	in  *bufio.Reader
	raw *tally
	z   *gzip.Reader
	out int64
}

func (u *unpacker) Read(p []byte) (int, error) {
	if u.z == nil {
		z, err := gzip.NewReader(u.in)
		if err != nil {
			return 0, u.fault(err)
		}
		u.z = z
	}
	n, err := u.z.Read(p)
	if u.out += int64(n); u.out > ratioFloor && u.out > maxRatio*u.raw.n {
		return 0, &packedError{reason: fmt.Sprintf("the gzip file unpacks to more than %d times its size", maxRatio)}
	}
	if err != nil && err != io.EOF {
		err = u.fault(err)
	}
	return n, err
}

// fault tells a broken file from a broken connection.
func (u *unpacker) fault(err error) error {
	if u.raw.err != nil {
		return u.raw.err
	}
	return &packedError{reason: "the gzip file cannot be unpacked: " + err.Error()}
}
