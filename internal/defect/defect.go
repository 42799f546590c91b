// Package defect ends a job where a panic would end the process. Input from a peer may
// cause a panic in our code; the work for all others continues. Use it at the border of a
// job: where a goroutine begins, and where one job of many is done.
package defect

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is a panic as the error of the job in which it happened.
type Error struct {
	Value any
	Stack []byte
}

func (e *Error) Error() string {
	return fmt.Sprintf("defect in bridge, please report it: panic: %v", e.Value)
}

// Unwrap returns the value of the panic, if that is an error.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Recover converts a panic to the error of the function that defers it; it must be deferred
// itself.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Error{Value: p, Stack: debug.Stack()}
	}
}

// Log logs the stack of the panic, if err is an Error: its message does not have it.
func Log(log *slog.Logger, err error) {
	if e, ok := errors.AsType[*Error](err); ok {
		log.Error("panic in bridge: please report it", "panic", fmt.Sprint(e.Value), "stack", string(e.Stack))
	}
}

// Guard calls do and converts a panic to an error.
func Guard(do func() error) (err error) {
	defer Recover(&err)
	return do()
}
