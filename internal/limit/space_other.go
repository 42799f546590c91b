//go:build !(linux || darwin || freebsd)

package limit

import "errors"

func disk(string) (free, total int64, err error) { return 0, 0, errors.ErrUnsupported }
