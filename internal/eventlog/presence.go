package eventlog

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pmh-bridge/bridge/event"
)

const selectPresenceOf = `SELECT r.id, r.identifier, t.said, p.said, p.shadow, EXISTS (SELECT 1 FROM pending w WHERE w.source = src.id AND w.record = r.id)
FROM source src JOIN record_key k ON k.key = $1 AND k.record > src.set_id << 32 AND k.record < (src.set_id + 1) << 32
JOIN record r ON r.id = k.record
LEFT JOIN state t ON t.record = r.id LEFT JOIN presence p ON p.record = r.id AND p.source = src.id WHERE src.id = $2`

// Presence returns what a Source has of the record of its set with that
// identifier, whichever Source speaks for the record.
func (l *Log) Presence(ctx context.Context, source event.SourceID, identifier string) (holds event.Presence, err error) {
	err = l.prepared(ctx, selectPresenceOf, []any{event.KeyBits(identifier), int64(source)}, func(rows *sql.Rows) error {
		var id int64
		var name string
		var first, other, shadow []byte
		var pending bool
		if err := rows.Scan(&id, &name, &first, &other, &shadow, &pending); err != nil || name != identifier {
			return err
		}
		if pending {
			holds = event.Present
			return nil
		}
		// One of them has the speaker's word, or that of the last who spoke.
		for _, word := range [][2][]byte{{first, nil}, {other, shadow}} {
			if word[0] == nil {
				continue
			}
			s, err := readSourceState(word[0], word[1], id)
			switch {
			case err != nil:
				return fmt.Errorf("what Source %d says of record %q: %w: run bridge verify", source, identifier, err)
			case s.source != source:
			case s.alive:
				holds = event.Present
			default:
				holds = event.Withdrawn
			}
		}
		return nil
	})
	return holds, err
}
