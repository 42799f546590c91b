package content

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/defect"
)

// A store may have a bucket of an S3 server, to which its contents are moved by and by.
// They are committed to the store's own database first, so nobody who stores waits for the
// bucket, or fails because it is away. The packer puts them together into packs, and the
// newest packs are kept in the database too: it is a cache of what is asked for most.
//
// A bucket, or a prefix in it, is of one store: an object in it says which.

// markKey is the key of the object that says of which store the packs are.
const markKey = "store.txt"

// ErrBucket: the bucket, or what is in it, is not what the store needs. Somebody has to act.
var ErrBucket = errors.New("the bucket of the contents cannot be used")

// packs is what a store has of its bucket.
type packs struct {
	store       *Store
	bucket      *bucket.Bucket
	keep        int64         // bytes of packs that are in the database too
	full        int64         // bytes of a pack
	largeAtOnce int           // large contents that are looked for before the first is moved
	unneeded    time.Duration // how long a pack stays that nothing needs
	now         func() (time.Time, error)
	report      func(error)
	failed      atomic.Bool // contents could not be moved
	awayFor     time.Duration
	away        atomic.Int64 // until when the server counts as away, as Unix nanoseconds
	answered    atomic.Bool  // the server has answered since the store was opened
	recent      recent
	wholes      chan struct{} // has a token for each pack that is being read whole

	open    context.Context // ends when the store is closed
	stop    context.CancelFunc
	working sync.Mutex    // held by what writes packs or removes them
	kick    chan struct{} // wakes the packer
	ended   chan struct{} // closed when the packer has ended; nil without one
	arrived atomic.Int64  // bytes that were stored since the packer looked last
}

// openBucket opens the bucket that is configured, else the one that the store has.
func (s *Store) openBucket(ctx context.Context, o Options) error {
	var stored, identity string
	if err := s.query.QueryRowContext(ctx, "SELECT address, identity FROM bucket").Scan(&stored, &identity); err != nil {
		return s.coded(err)
	}
	raw := stored
	if o.Bucket != "" {
		raw = o.Bucket
	}
	if raw == "" {
		return nil
	}
	address, err := bucket.Parse(raw)
	if err != nil {
		return err
	}
	b, err := bucket.Open(address)
	if err != nil {
		return err
	}
	s.packs = &packs{store: s, bucket: b, keep: cmp.Or(o.Keep, keptBytes), full: cmp.Or(o.packBytes, packBytes), largeAtOnce: cmp.Or(o.largeAtOnce, largeAtOnce), unneeded: cmp.Or(o.KeepUnneeded, keepUnneeded), now: o.Now, awayFor: cmp.Or(o.awayFor, awayFor), report: o.Report, kick: make(chan struct{}, 1), wholes: make(chan struct{}, recentWhole)}
	s.packs.open, s.packs.stop = context.WithCancel(context.Background())
	if s.packs.report == nil {
		s.packs.report = func(error) {}
	}
	if s.packs.now == nil {
		s.packs.now = func() (time.Time, error) { return time.Now(), nil }
	}
	if o.ReadOnly || o.DryRun {
		return nil
	}
	if address.String() != stored {
		if err := s.packs.claim(ctx, address.String(), stored, identity, o.Adopt); err != nil {
			return err
		}
	}
	if !o.Idle {
		s.packs.start()
	}
	return nil
}

// claim makes a bucket that of the store. One that another store has is refused, and one
// without the packs that this store has already.
func (p *packs) claim(ctx context.Context, address, stored, identity string, adopt bool) error {
	if err := p.bucket.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrBucket, err)
	}
	if identity == "" { // durable before the mark is: else a kill in between would leave that of nobody
		identity = rand.Text()
		if err := p.moveTo(ctx, stored, identity); err != nil {
			return err
		}
	}
	mark, err := p.bucket.Get(ctx, markKey, 0, -1)
	switch {
	case errors.Is(err, fs.ErrNotExist) && stored != "":
		return fmt.Errorf("%w: the contents of this data folder are in %s, and %s has no %s: copy all objects there first, or write the former address into the configuration", ErrBucket, stored, address, markKey)
	case errors.Is(err, fs.ErrNotExist):
		body := markText + identity + "\n"
		if err := p.bucket.PutNew(ctx, markKey, strings.NewReader(body), int64(len(body))); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		mark, err = p.bucket.Get(ctx, markKey, 0, -1) // somebody else may have come first
	}
	if err != nil {
		return err
	}
	of, isMark := strings.CutPrefix(string(mark), markText)
	switch of = strings.TrimSpace(of); {
	case !isMark || of == "":
		return fmt.Errorf("%w: %s in %s is not of bridge: give another prefix or bucket", ErrBucket, markKey, address)
	case of != identity && adopt && stored == "":
		identity = of
	case of != identity:
		return fmt.Errorf("%w: %s has the contents of another data folder: give another prefix or bucket; if that folder is lost, and this one is in its place: bridge gc --adopt", ErrBucket, address)
	}
	if stored != "" {
		v := verification{store: p.store}
		if err := v.lookForPacks(ctx); err != nil {
			return err
		}
		if n := len(v.bad); n > 0 {
			return fmt.Errorf("%w: the contents of this data folder are in %s, and of its packs %d are missing in %s, or have another length: copy all objects there first, or write the former address into the configuration", ErrBucket, stored, n, address)
		}
	}
	return p.moveTo(ctx, address, identity)
}

// markText is what a mark has before the identity of its store.
const markText = "The contents of one data folder of bridge. Nothing but that bridge may write or remove here.\nstore: "

// moveTo notes where the packs are, and which store they are of.
func (p *packs) moveTo(ctx context.Context, address, identity string) error {
	return p.do(ctx, func(ctx context.Context, tx *database.Tx) error {
		return tx.Exec(ctx, "UPDATE bucket SET address = $1, identity = $2", address, identity)
	})
}

// Bucket returns the address of the store's bucket, "" if it has none.
func (s *Store) Bucket() string {
	if s.packs == nil {
		return ""
	}
	return s.packs.bucket.String()
}

func (p *packs) close() error {
	p.stop()
	if p.ended != nil {
		<-p.ended
	}
	p.working.Lock() // what works ends soon
	defer p.working.Unlock()
	return p.bucket.Close()
}

// work runs do, which writes packs or removes them, unless the store is closed. Its context
// ends then.
func (p *packs) work(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.open, cancel)()
	p.working.Lock()
	defer p.working.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return unavailable(defect.Guard(func() error { return do(ctx) }))
}

// place is where a content is: in a pack.
type place struct {
	key    string // of the pack; "" is nowhere
	length int64  // of the pack
	at     int64
}

// placeOf returns where a content is, false if it is not in a pack.
func (s *Store) placeOf(ctx context.Context, id int64) (at place, found bool, err error) {
	err = s.query.QueryRowContext(ctx, "SELECT p.key, p.length, l.at FROM place l JOIN pack p ON p.id = l.pack WHERE l.content = $1", id).
		Scan(&at.key, &at.length, &at.at)
	if errors.Is(err, sql.ErrNoRows) {
		return at, false, nil
	}
	return at, err == nil, err
}

// errMoved: a content is not where it was a moment ago.
var errMoved = errors.New("the content has moved")

// small returns the bytes of a content of at most 256 KiB that are in a pack, checked.
func (s *Store) small(ctx context.Context, row packedContent) ([]byte, error) {
	at, found, err := s.placeOf(ctx, row.id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: read content %s: %w", s.name, row.sum, s.coded(err))
	case !found || s.packs == nil:
		return nil, errMoved
	}
	return s.packs.small(ctx, at, row)
}

func (p *packs) small(ctx context.Context, at place, row packedContent) ([]byte, error) {
	body, err := p.read(ctx, at, row.size)
	if err == nil && sumOf(body) != row.sum { // as it was once; it may have been put back since
		p.recent.forget(at.key)
		body, err = p.get(ctx, at.key, at.at, row.size)
		if err == nil && sumOf(body) != row.sum {
			err = p.damage(row, at.key)
		}
	}
	return body, err
}

const (
	// getFirst is how long a small part of an object may take: somebody waits for it.
	getFirst = 15 * time.Second
	// awayFor is how long the server is not asked again when it was away.
	awayFor = 2 * time.Second
)

// errAway: the server was away a moment ago.
var errAway = fmt.Errorf("%w: the S3 server did not answer a moment ago", event.ErrUnavailable)

// get reads a part of an object. While the server is away nobody waits for it again and again.
func (p *packs) get(ctx context.Context, key string, at, n int64) ([]byte, error) {
	if left := p.away.Load() - time.Now().UnixNano(); left > 0 && left <= int64(p.awayFor) { // else the clock was ahead
		return nil, errAway
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if n <= chunkSize {
		limited, cancel = context.WithTimeout(ctx, getFirst)
	}
	defer cancel()
	body, err := p.bucket.Get(limited, key, at, n)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: it did not answer in time: %s of %s", bucket.ErrAway, key, p.bucket)
	}
	switch {
	case err == nil:
		p.away.Store(0)
		p.answered.Store(true)
	case errors.Is(err, bucket.ErrAway):
		p.away.Store(time.Now().Add(p.awayFor).UnixNano())
	}
	return body, p.coded(err)
}

const (
	// patience is how long a long job waits for a server that is away, mostAtOnce how long before
	// it tries again.
	patience, mostAtOnce = time.Hour, time.Minute
)

// patiently calls read, a step of a long job, and while the server is away calls it again, with
// longer and longer pauses: else a moment without it would cost all that was done before. It does
// not wait for a server that has not answered yet, or that refuses: somebody has to act.
func (s *Store) patiently(ctx context.Context, read func() error) error {
	var waited time.Duration
	for n := 0; ; n++ {
		err := read()
		if !errors.Is(err, event.ErrUnavailable) || errors.Is(err, bucket.ErrRefused) || s.packs == nil || !s.packs.answered.Load() || waited >= patience {
			return err
		}
		pause := min(s.packs.awayFor<<min(n, 10), mostAtOnce)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			waited += pause
		}
	}
}

func (p *packs) damage(row packedContent, key string) error {
	return fmt.Errorf("content %s is %w (its bytes in %s of %s do not have its hash): restore the object from a backup", row.sum, ErrDamaged, key, p.bucket)
}

// coded wraps an error of reading an object with what a caller decides by.
func (p *packs) coded(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %v: put the object back from a backup of the bucket, or have its contents fetched again with bridge harvest --full", ErrDamaged, err) //nolint:errorlint // the content is known
	}
	return unavailable(err)
}

// unavailable wraps an error of a bucket that is away, or refuses.
func unavailable(err error) error {
	if errors.Is(err, bucket.ErrAway) || errors.Is(err, bucket.ErrRefused) {
		return fmt.Errorf("%w: %w", event.ErrUnavailable, err)
	}
	return err
}
