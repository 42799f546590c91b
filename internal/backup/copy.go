//go:build unix

package backup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/content"
	"github.com/pmh-bridge/bridge/internal/database"
	"github.com/pmh-bridge/bridge/internal/eventlog"
)

// A data folder is copied to another one while nobody writes it. These steps, each durable
// before the next, let at most one of the two be used at any moment, and let a copy that was
// killed, or has failed, be begun again:
//
//  1. The new folder gets the file copying. With it, nobody opens the folder.
//  2. The contents are copied. On a server they get the identity of the log before it is there,
//     which the new folder notes, so that nobody takes them for anything else.
//  3. The log is copied. With its last step, the copy is complete.
//  4. The old log, if it is on a server, gets a mark, and then the old folder the file moved.
//     With them, nobody writes them.
//  5. The file copying goes.

// Place is a data folder, with the URL of the PostgreSQL server that has its log, and the
// address of the bucket that has its contents. A URL that is "" is where log.url in the folder
// says, or log.db in it; a bucket that is "" is that where a copy is to be there is none.
type Place struct{ Folder, URL, Bucket string }

// Copied describes a copy of a data folder.
type Copied struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Last is the last event, LastObserved when it was observed; nil when there is none.
	Last         int64      `json:"last"`
	LastObserved *time.Time `json:"last_observed,omitempty"`
	Sets         []Set      `json:"sets"`
	// Compared is what was copied of the log, and then read again; nil when an earlier Copy
	// did that.
	Compared *database.Copied `json:"compared,omitempty"`
	// ContentBytes is the size of the copied content.db, or of its rows on a server.
	ContentBytes int64 `json:"content_bytes"`
}

// InputError means that a folder cannot be copied to where it is to be.
type InputError struct{ error }

func (e *InputError) Unwrap() error { return e.error }

// Copy copies a data folder, and all of its log, to another one, new or empty. Either log
// may be in the folder or on a PostgreSQL server. Nobody may write the folder meanwhile; an
// eventlog.LockedError is that somebody does. Afterwards the old folder can only be read.
// A Copy that was interrupted, or has ended, can be called again.
func Copy(ctx context.Context, from, to Place, progress func(rows int64)) (c Copied, err error) {
	if c.From, err = filepath.Abs(from.Folder); err != nil {
		return c, err
	}
	if c.To, err = filepath.Abs(to.Folder); err != nil {
		return c, err
	}
	if inside(c.From, c.To) || inside(c.To, c.From) {
		return c, &InputError{fmt.Errorf("the copy needs a data folder of its own, outside of %s", c.From)}
	}
	log, err := eventlog.Open(ctx, c.From, eventlog.Options{Holder: copyHolder, URL: from.URL, CopyingTo: c.To})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := c.describe(ctx, log); err != nil {
		return c, err
	}
	begun, err := eventlog.ReadMark(c.To, eventlog.CopyingName)
	if err == nil && begun == "" {
		var done bool
		if done, err = endedBefore(ctx, log, &c, to); done {
			return c, err
		}
	}
	if err != nil {
		return c, err
	}
	if begun != "" && begun != c.From {
		return c, &InputError{fmt.Errorf("%s is to be a copy of %s, and is not complete: complete that one, or empty the folder", c.To, begun)}
	}
	if err := os.MkdirAll(c.To, 0o700); err != nil {
		return c, fmt.Errorf("data folder: %w", err)
	}
	release, err := eventlog.Hold(c.To, copyHolder)
	if err != nil {
		return c, err
	}
	if begun == "" { // somebody may have come first
		err = refuseFull(c.To)
	}
	if err == nil {
		err = copyHeld(ctx, log, to, &c, progress)
	}
	if err = errors.Join(err, release()); err != nil {
		return c, err
	}
	opened, err := eventlog.Open(ctx, c.To, eventlog.Options{Holder: copyHolder, URL: to.URL})
	if err != nil {
		return c, fmt.Errorf("the data folder was copied, but the copy cannot be opened: %w", err)
	}
	return c, opened.Close()
}

// copyHolder is the command that the locks of both folders name meanwhile.
const copyHolder = "bridge copy"

// inside reports whether a folder is another one, or in it.
func inside(folder, other string) bool {
	a, err := os.Stat(folder)
	b, err2 := os.Stat(other)
	return strings.HasPrefix(folder+string(filepath.Separator), other+string(filepath.Separator)) || err == nil && err2 == nil && os.SameFile(a, b)
}

// endedBefore reports whether an earlier Copy has ended. If none has, the place of the copy
// must be empty.
func endedBefore(ctx context.Context, log *eventlog.Log, c *Copied, to Place) (bool, error) {
	moved, err := eventlog.ReadMark(c.From, eventlog.MovedName)
	if err != nil {
		return false, err
	}
	if moved != "" {
		is, err := log.HasCopy(ctx, c.To, to.URL, true)
		if err == nil && !is {
			err = fmt.Errorf("%s was copied to %s, and there is no log any more: put that back from a backup; if it was never used, remove %s, and copy again", c.From, c.To, filepath.Join(c.From, eventlog.MovedName))
		}
		return true, err
	}
	if err := refuseFull(c.To); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = eventlog.Vacant(ctx, c.To, to.URL)
	if err == nil && to.URL != "" {
		err = content.Vacant(ctx, to.URL)
	}
	if errors.Is(err, database.ErrTaken) {
		err = &InputError{err}
	}
	return false, err
}

// copyHeld copies a data folder to one whose lock the caller holds.
func copyHeld(ctx context.Context, log *eventlog.Log, to Place, c *Copied, progress func(rows int64)) error {
	if err := eventlog.WriteMark(c.To, eventlog.CopyingName, c.From); err != nil {
		return err
	}
	done, err := log.HasCopy(ctx, c.To, to.URL, false)
	if err != nil {
		return err
	}
	// Contents once more if an earlier Copy did it: one may have been put back since.
	if err = c.copyContents(ctx, log, to); err == nil && !done {
		err = c.copyLog(ctx, log, to, progress)
	}
	if err == nil {
		err = log.MarkMoved(ctx, c.To)
	}
	if err != nil { // without moved, copying has to stay: else both folders could be written
		return fmt.Errorf("%w\n%s is not complete: run the same bridge copy again, or, to give it up, empty it", err, c.To)
	}
	return eventlog.RemoveMark(c.To, eventlog.CopyingName)
}

func (c *Copied) copyLog(ctx context.Context, log *eventlog.Log, to Place, progress func(rows int64)) error {
	if err := eventlog.ClearCopy(c.To, to.URL); err != nil {
		return err
	}
	compared, err := log.CopyTo(ctx, c.To, to.URL, progress)
	if err == nil {
		c.Compared = &compared
	}
	return err
}

// describe says what the log, and so its copy, has.
func (c *Copied) describe(ctx context.Context, log *eventlog.Log) error {
	sets, err := log.Sets(ctx)
	if err != nil {
		return err
	}
	c.Sets = []Set{}
	for i := range sets {
		c.Sets = append(c.Sets, Set{sets[i].Name, int64(sets[i].Live), int64(sets[i].Events)})
	}
	last, observed, err := log.End(ctx)
	if c.Last = int64(last); last > 0 {
		at := observed.Time()
		c.LastObserved = &at
	}
	return err
}

// wantContents is an error when the log names contents, of which none were found.
func (c *Copied) wantContents(ctx context.Context, log *eventlog.Log) error {
	if named, err := log.NamesContents(ctx); err != nil || !named {
		return err
	}
	return fmt.Errorf("the log of %s names contents, and %s is not there, nor are they on a server of the log: put them back from a backup first", c.From, content.FileName)
}

// copyContents copies the content store to where the copy is to have it. A folder may have
// none, if no set needed it.
func (c *Copied) copyContents(ctx context.Context, log *eventlog.Log, to Place) error {
	owner := content.Owner{Folder: c.From}
	owner.URL, owner.Identity = log.Server()
	from, err := content.Locate(ctx, owner, "")
	if err != nil {
		return err
	}
	inFile := from == filepath.Join(c.From, content.FileName)
	if _, err := os.Stat(from); inFile && errors.Is(err, fs.ErrNotExist) {
		return c.wantContents(ctx, log)
	}
	o := content.Options{Idle: true, Spool: c.To}
	path := filepath.Join(c.To, content.FileName)
	if to.URL != "" && to.Bucket != "" {
		if path, err = content.PlaceBeside(ctx, to.URL); err != nil {
			return err
		}
		if o.Log, err = eventlog.Reserve(c.To, to.URL); err != nil {
			return err
		}
	}
	if inFile && o.Log == "" {
		c.ContentBytes, err = copyFile(ctx, from, path)
	} else {
		c.ContentBytes, err = content.Copy(ctx, from, path, o.Log)
	}
	if err != nil {
		return err
	}
	return placeContents(ctx, path, to.Bucket, o)
}

// copyFile copies a content store from a file to another, and returns its size.
func copyFile(ctx context.Context, from, to string) (size int64, err error) {
	s, err := content.TakeSnapshot(ctx, from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	f, err := os.OpenFile(to+partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, database.Explain(to, err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err = s.WriteTo(ctx, w); err == nil {
		err = errors.Join(w.Flush(), f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(to + partial) // the other error is reported
		return 0, database.Explain(to, err)
	}
	if err := content.RemoveFile(to); err != nil {
		return 0, err
	}
	return s.Size(), errors.Join(os.Rename(to+partial, to), database.SyncDir(filepath.Dir(to)))
}

// placeContents takes the contents of a copy back from the bucket that has them, if the copy
// is to have none. A copy that is to have another one moves its contents there when it is used.
func placeContents(ctx context.Context, path, bucket string, o content.Options) (err error) {
	s, err := content.Open(ctx, path, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	switch has := s.Bucket(); {
	case bucket == "":
		return s.Unpack(ctx)
	case has != "" && has != bucket:
		return fmt.Errorf("its contents are in %s, and the copy is to have them in %s: copy the objects there with a tool for S3, write the new address into the configuration of now, start bridge serve once, and copy then", has, bucket)
	}
	return nil
}
