// Package pattern compiles regular expressions when they are first used.
package pattern

import (
	"regexp"
	"sync"
)

// Of returns a function that returns the regular expression of text. It is compiled by the
// first call: a command uses few of all there are, and compiling them all is most of what
// its start takes. A text that is no regular expression makes each call panic.
func Of(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
