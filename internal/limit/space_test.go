package limit_test

import (
	"errors"
	"math"
	"testing"

	"github.com/pmh-bridge/bridge/internal/limit"
)

// D69: a disk is nearly full below the floor, and who is told of it is told once.
func TestSpace(t *testing.T) {
	dir := t.TempDir()
	roomy := &limit.Space{Folder: dir, Floor: 1}
	if err := roomy.Low(); err != nil {
		t.Errorf("a byte is not free: %v", err)
	}
	var told []error
	narrow := &limit.Space{Folder: dir, Floor: math.MaxInt64, Changed: func(why error) { told = append(told, why) }}
	for range 3 {
		var low *limit.LowError
		if err := narrow.Low(); !errors.As(err, &low) || low.Free <= 0 || low.Floor != math.MaxInt64 {
			t.Errorf("got %v", err)
		}
	}
	if len(told) != 1 || told[0] == nil {
		t.Errorf("told %v", told)
	}
	if err := roomy.Room(1); err != nil {
		t.Errorf("two bytes are not free: %v", err)
	}
	var low *limit.LowError
	if err := roomy.Room(math.MaxInt64); !errors.As(err, &low) {
		t.Errorf("got %v", err)
	}
	if err := (&limit.Space{Folder: dir + "/gone", Floor: math.MaxInt64}).Low(); err != nil {
		t.Errorf("of no disk: %v", err)
	}
}

// The free share of a disk is a percentage, below 0 where it is unknown, and a LowError
// says in MiB what is free and what is kept.
func TestSpaceSaysHowMuchIsFree(t *testing.T) {
	dir := t.TempDir()
	if free := (&limit.Space{Folder: dir}).Free(); !(0 < free && free <= 100) {
		t.Errorf("%v %% are free", free)
	}
	if free := (&limit.Space{Folder: dir + "/gone"}).Free(); free >= 0 {
		t.Errorf("%v %% of no disk are free", free)
	}
	low := &limit.LowError{Folder: "/data", Free: 3 << 20, Floor: 1 << 30}
	if want := "the disk of /data is nearly full: 3 MiB are free, and 1024 MiB are kept for what must be written"; low.Error() != want {
		t.Errorf("got %s", low)
	}
}
