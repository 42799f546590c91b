package testenv

import "syscall"

// childAttributes returns the attributes of a process that runs as a user, or as the caller
// if that is nil. A signal from the terminal does not reach it. When the thread that starts
// it ends, it gets the given signal.
func childAttributes(user *syscall.Credential, end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: user, Setpgid: true, Pdeathsig: end}
}
