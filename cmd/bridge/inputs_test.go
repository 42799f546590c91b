package main

import (
	"slices"
	"testing"
)

// A list has what was asked for, each once, however many pages of the log it takes.
func TestNewest(t *testing.T) {
	const there = 2500
	for limit, want := range map[int]int{0: there, 1: 1, 1000: 1000, 1001: 1001, 2000: 2000, there: there, 9000: there} {
		var got []int64
		err := newest(limit, func(after int64, most int) (page []int64, err error) {
			if after == 0 {
				after = there + 1
			}
			for id := after - 1; id > 0 && len(page) < most; id-- {
				page = append(page, id)
			}
			return page, nil
		}, func(id *int64) (int64, error) {
			got = append(got, *id)
			return *id, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		falls := slices.IsSortedFunc(got, func(a, b int64) int { return int(b - a) })
		if len(got) != want || got[0] != there || got[want-1] != int64(there-want+1) || !falls {
			t.Errorf("limit %d: %d, from %d to %d", limit, len(got), got[0], got[len(got)-1])
		}
	}
}
