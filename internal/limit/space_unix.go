//go:build linux || darwin || freebsd

package limit

import "syscall"

// disk returns the free bytes (for this process) and the total bytes of the disk of a
// folder.
func disk(folder string) (free, total int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(folder, &st); err != nil {
		return 0, 0, err
	}
	size := int64(st.Bsize)
	return int64(st.Bavail) * size, int64(st.Blocks) * size, nil
}
