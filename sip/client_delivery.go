package sip

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"sync"
)

// delivery is the message of one call on its way. It tells for certain whether
// the message may have left, whatever carries it: as long as nobody has taken a
// byte of the body it has not, and once sealed it cannot any more, even if a
// goroutine of the transport is about to.
type delivery struct {
	message []byte

	mu     sync.Mutex
	taken  bool
	sealed bool
}

var errSealed = errors.New("the call has ended")

// open returns a body, from the start. The transport calls it again when it is
// sure that nothing has arrived.
func (d *delivery) open() (io.ReadCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = false
	return io.NopCloser(&deliveryBody{delivery: d, rest: bytes.NewReader(d.message)}), nil
}

type deliveryBody struct {
	delivery *delivery
	rest     *bytes.Reader
}

func (b *deliveryBody) Read(p []byte) (int, error) {
	b.delivery.mu.Lock()
	defer b.delivery.mu.Unlock()
	if b.delivery.sealed {
		return 0, errSealed
	}
	b.delivery.taken = true
	return b.rest.Read(p)
}

// failed seals the message and returns the error of a call without an answer.
func (d *delivery) failed(operation string, to *url.URL, err error) error {
	d.mu.Lock()
	d.sealed = true
	taken := d.taken
	d.mu.Unlock()
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &callError{operation: operation, url: to.String(), err: err, unsent: !taken, unanswered: true}
}
