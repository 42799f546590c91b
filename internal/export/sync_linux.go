package export

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncAll makes durable all that was written to the file system of an open folder.
func syncAll(folder *os.File) error { return unix.Syncfs(int(folder.Fd())) }
