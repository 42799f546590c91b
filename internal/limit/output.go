package limit

import "bytes"

// Output keeps the beginning of what a program writes, and takes the rest without keeping it:
// the program neither waits nor fails.
type Output struct {
	Most int // bytes that are kept
	kept bytes.Buffer
}

// Write is io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	if room := o.Most - o.kept.Len(); room > 0 {
		o.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// String returns what was kept.
func (o *Output) String() string { return o.kept.String() }
