//go:build unix && !linux

package testenv

import "syscall"

// childAttributes returns the attributes of a process that runs as a user, or as the caller
// if that is nil. A signal from the terminal does not reach it. A PostgreSQL server whose
// caller was killed notices within a minute that its folder is gone, and ends; a versitygw
// does not.
func childAttributes(user *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: user, Setpgid: true}
}
