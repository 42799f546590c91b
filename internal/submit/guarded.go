package submit

import (
	"fmt"
	"runtime/debug"
)

// guarded calls do, and makes an error of a panic: what a stranger has sent may hit a
// defect of ours, and that ends the one job, not the process.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return do()
}

// PanicError is a defect of ours that ended a job.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("a defect of bridge: %v\n%s", e.Value, e.Stack)
}
