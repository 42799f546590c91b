package atompmh

import (
	"errors"
	"fmt"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const accept = "application/atom+xml, application/xml;q=0.9, text/xml;q=0.8, */*;q=0.1"

func newClient(w *Walk) (*follow.Client, error) {
	o := follow.Options{HTTP: w.Client, Start: w.URL, AllowHost: w.AllowHost, Accept: accept, Now: w.Now}
	if w.Resume != nil {
		o.Led = w.Resume.Hosts
	}
	c, err := follow.New(o)
	if err != nil {
		return nil, fmt.Errorf("subscription document: %w", err)
	}
	return c, nil
}

// get asks for a document and reads its head. The document holds its connection
// until it is closed.
func (c *climb) get(to string, v Validators) (*Document, error) {
	answer, err := c.client.Get(c.ctx, to, v)
	c.cur.Hosts = c.client.Led()
	if err != nil {
		return nil, err
	}
	doc, err := open(answer, Options{Limits: c.w.Limits})
	if err != nil {
		answer.Close()
		return nil, err
	}
	return doc, nil
}

// missing tells whether an archive document is not to be had (A8): it is gone,
// or is no document. 403 is the one status of S9 that counts for an entry's own
// URI and not here.
func missing(err error) bool {
	var fault *DocumentError
	return follow.Missing(err) || errors.As(err, &fault)
}
