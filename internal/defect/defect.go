// Package defect ends a job where a panic would end the process. Whatever a peer
// sends may hit a defect of ours; the work for all others goes on. It belongs at
// the border of a job: where a goroutine begins, and where one job of many is done.
package defect

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is a panic that was made the error of the job in which it happened.
type Error struct {
	Value any
	Stack []byte
}

func (e *Error) Error() string {
	return fmt.Sprintf("defect in bridge, please report it: panic: %v", e.Value)
}

// Unwrap returns what the job panicked with, where that is an error.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Recover makes a panic the error of the function that defers it; it must be
// deferred itself.
func Recover(err *error) {
	if p := recover(); p != nil {
		*err = &Error{Value: p, Stack: debug.Stack()}
	}
}

// Log says where the defect is, if err is of one: its message does not.
func Log(log *slog.Logger, err error) {
	var e *Error
	if errors.As(err, &e) {
		log.Error("where the defect of bridge is: please report it", "panic", fmt.Sprint(e.Value), "stack", string(e.Stack))
	}
}

// Guard calls do and makes an error of its panic.
func Guard(do func() error) (err error) {
	defer Recover(&err)
	return do()
}
