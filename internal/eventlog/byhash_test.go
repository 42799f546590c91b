package eventlog

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// However keys lie, byHash has the order of a sort.
func TestByHash(t *testing.T) {
	key := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-3, 3), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64}))
	rows := rapid.SliceOf(rapid.Custom(func(t *rapid.T) recordKey {
		return recordKey{key.Draw(t, "key"), rapid.Int64Range(1, 9).Draw(t, "record")}
	}))
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rows).Draw(t, "parts")
		want := slices.Concat(parts...)
		slices.SortFunc(want, compareRecordKeys)
		if got := byHash(recordKey.hash, compareRecordKeys, parts...); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// BenchmarkByHash puts the keys of a transaction of a harvest in order; the rival sorts them.
func BenchmarkByHash(b *testing.B) {
	parts := make([][]locUse, 5)
	for i := range parts {
		for range 20_000 {
			parts[i] = append(parts[i], locUse{key: int64(rand.Uint64()), batch: i}) //nolint:gosec // it need not be secret, and any bits will do
		}
	}
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			byHash(locUse.hash, compareLocUses, parts...)
		}
	})
	b.Run("sort", func(b *testing.B) {
		for b.Loop() {
			slices.SortFunc(slices.Concat(parts...), compareLocUses)
		}
	})
}
