//go:build linux || darwin || freebsd

package limit

import "syscall"

// disk returns what is free for us and what there is in all of a folder's disk.
func disk(folder string) (free, total int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(folder, &st); err != nil {
		return 0, 0, err
	}
	size := int64(st.Bsize)
	return int64(st.Bavail) * size, int64(st.Blocks) * size, nil
}
