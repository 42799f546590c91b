package limit

import (
	"fmt"
	"sync"
	"time"
)

// Space reserves a part of a disk for the log: submissions and the cache are refused
// before the disk is full. Its methods may be called from any goroutine.
type Space struct {
	// Folder is any folder on the disk.
	Folder string
	// Floor is how many bytes are kept free at least. The Share-th part of the disk, up to
	// 50 GiB, is also kept free; a Share of 0 means no share.
	Floor, Share int64
	// Changed, if not nil, is called with the reason when the disk becomes nearly full,
	// and with nil when that ends.
	Changed func(why error)

	mu    sync.Mutex
	asked time.Time
	why   error
}

// LowError means that less of a disk is free than is reserved.
type LowError struct {
	Folder      string
	Free, Floor int64
}

func (e *LowError) Error() string {
	return fmt.Sprintf("the disk of %s is nearly full: %d MiB are free, and %d MiB are kept for what must be written", e.Folder, e.Free>>20, e.Floor>>20)
}

// Free returns the free share of the disk in percent, below 0 where it is unknown.
func (s *Space) Free() float64 {
	free, total, err := disk(s.Folder)
	if err != nil || total == 0 {
		return -1
	}
	return 100 * float64(free) / float64(total)
}

// Low returns a *LowError while the disk is nearly full, and nil otherwise, also where the
// free space is unknown. The result is up to a second old.
func (s *Space) Low() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.asked.IsZero() || now.Sub(s.asked) > time.Second {
		s.asked = now
		before := s.why
		s.why = nil
		// A disk whose free space is unknown counts as having room.
		if free, floor, err := s.measure(); err == nil && free < floor {
			s.why = &LowError{Folder: s.Folder, Free: free, Floor: floor}
		}
		if s.Changed != nil && (before == nil) != (s.why == nil) {
			s.Changed(s.why)
		}
	}
	return s.why
}

// Room returns an error, a *LowError in it, if the disk would be nearly full with so many bytes
// more, and nil otherwise, also where the free space is unknown.
func (s *Space) Room(bytes int64) error {
	free, floor, err := s.measure()
	if err != nil || free-bytes >= floor {
		return nil
	}
	return fmt.Errorf("%d MiB more do not fit: %w", bytes>>20, &LowError{Folder: s.Folder, Free: free, Floor: floor})
}

// measure returns how many bytes are free, and how many are kept free.
func (s *Space) measure() (free, floor int64, err error) {
	free, total, err := disk(s.Folder)
	floor = s.Floor
	if s.Share > 0 {
		floor = max(floor, min(total/s.Share, 50<<30))
	}
	return free, floor, err
}
