package eventlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/pmh-bridge/bridge/event"
)

// sumOf is the sum column of a row: a CRC-32C over its other columns, each with
// its kind and length, so that no two rows look alike.
func sumOf(columns ...any) int64 {
	var b []byte
	for _, c := range columns {
		switch v := c.(type) {
		case nil:
			b = append(b, 0)
		case int64:
			b = binary.AppendVarint(append(b, 1), v)
		case int:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case event.Micros:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case event.SourceID:
			b = binary.AppendVarint(append(b, 1), int64(v))
		case bool:
			b = binary.AppendVarint(append(b, 1), boolArg(v))
		case event.Stamp:
			b = appendStamp(append(b, 2), v)
		case string:
			b = appendString(append(b, 3), v)
		case []byte:
			if len(v) == 0 { // an empty blob is read back as NULL
				b = append(b, 0)
				continue
			}
			b = append(binary.AppendUvarint(append(b, 4), uint64(len(v))), v...)
		default:
			panic(fmt.Sprintf("eventlog: a column of type %T", c))
		}
	}
	return int64(crc32.Checksum(b, castagnoli))
}

func boolArg(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
