//go:build unix

package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/database"
)

// A log is copied from one data folder to another. Two small files see to it that at no
// moment, and after no crash, both folders can be used, since then there would be two logs
// of different events under the same addresses.
const (
	// CopyingName is the name of a file in a data folder into which one is being copied. It
	// has the path of that one.
	CopyingName = "copying"
	// MovedName is the name of a file in a data folder that was copied to another one, whose
	// path it has. Such a folder can be read. A log on a server, which has other folders too,
	// says so itself.
	MovedName = "moved"
)

// ConfigurationName is the name of a file in a data folder that has the path of the configuration
// with which its Sources were last opened. Their settings are in no other place.
const ConfigurationName = "configuration"

// ErrLost means that a log that is to be copied has lost its end.
var ErrLost = errors.New("the log has lost its end: start bridge serve once, which begins a new epoch, stop it, and copy then")

// Reserve chooses the identity of a copy that CopyTo is to make at the URL of a server, so that
// what belongs to it can be copied before. Each call for a folder returns the same.
func Reserve(folder, url string) (identity string, err error) {
	noted, err := readURL(folder)
	if err != nil {
		return "", err
	}
	p := place{url, cmp.Or(noted.identity, strings.TrimPrefix(newUUID(), "urn:uuid:"))}
	if p != noted {
		err = writeURL(folder, p)
	}
	return p.identity, err
}

// CopyTo copies the log, which the caller has opened for writing, to another data folder,
// or to the PostgreSQL server at a URL that is not "". That folder has the file CopyingName
// and no log. All rows stay as they are, so that everything that is published does too.
// After an error, HasCopy finds out whether the copy is there.
func (l *Log) CopyTo(ctx context.Context, folder, url string, progress func(rows int64)) (database.Copied, error) {
	path, err := pathOf(folder, url)
	if err != nil {
		return database.Copied{}, err
	}
	noted, err := readURL(folder)
	if err != nil {
		return database.Copied{}, err
	}
	return kind().Copy(ctx, l.path, path, database.CopyOptions{Progress: progress, Identity: noted.identity, Before: func(identity string) error {
		return enterFolder(folder, place{path, identity}, l.headNow())
	}})
}

// Vacant returns an error when there is a log where a data folder, or a URL, is to have one.
func Vacant(ctx context.Context, folder, url string) error {
	path, err := pathOf(folder, url)
	if err != nil {
		return err
	}
	found, err := kind().Find(ctx, path)
	if err == nil && found {
		err = fmt.Errorf("%s has a log already: %w", database.Shown(path), database.ErrTaken)
	}
	return err
}

// HasCopy reports whether a data folder has a copy of this log, which CopyTo was to make at
// a URL, or in the folder. wentOn: the copy may have been used since. It is an error if there
// is another log.
func (l *Log) HasCopy(ctx context.Context, folder, url string, wentOn bool) (is bool, err error) {
	noted, err := readURL(folder)
	if err != nil {
		return false, err
	}
	path := filepath.Join(folder, FileName)
	if noted.path != "" {
		path = noted.path
	}
	if noted.path != "" && !wentOn { // its COMMIT may be under way
		if err := kind().Settle(ctx, path); err != nil {
			return false, err
		}
	}
	found, err := kind().Look(ctx, path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if !found.Exists || noted.path != "" && found.Identity != noted.identity { // it is of somebody else
		return false, nil
	}
	if wanted := cmp.Or(url, path); wanted != path {
		return false, fmt.Errorf("%s has its log in %s already, from an earlier copy, and not in %s: name that place under [store], or remove the copy", folder, database.Shown(path), database.Shown(wanted))
	}
	other, err := found.Readers(ctx, 1)
	if err != nil {
		return false, err
	}
	defer other.Close()
	now, err := l.top(ctx)
	if err != nil {
		return false, err
	}
	upto := now.Seq
	if !wentOn {
		upto = maxSeq
	}
	has, err := topOf(ctx, other, upto)
	if err != nil {
		return false, err
	}
	if has.Seq != now.Seq || has.Hash != now.Hash || has.Commits < now.Commits || !wentOn && has.Commits > now.Commits {
		return false, fmt.Errorf("%s and %s have logs of which neither is a copy of the other, as when one was written since: decide which one counts; to copy again, remove the files of the other folder, and its tables if it is on a server", l.folder, folder)
	}
	return true, nil
}

func (l *Log) headNow() head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head.now
}

// top is how far the log has come, whatever its head knows of what was lost.
func (l *Log) top(ctx context.Context) (now head, err error) {
	err = l.read(ctx, func(q database.Querier) (err error) {
		now, err = topOf(ctx, q, maxSeq)
		return err
	})
	return now, err
}

// End returns the last event of the log, and when it was observed; 0 when there is none.
func (l *Log) End(ctx context.Context) (event.Seq, event.Micros, error) {
	now, err := l.top(ctx)
	return now.Seq, now.Observed, err
}

// ClearCopy removes what a CopyTo that was not completed has left in a data folder. What is
// noted of the URL to which it is to go stays.
func ClearCopy(folder, url string) error {
	noted, err := readURL(folder)
	if err != nil {
		return err
	}
	names := []string{HeadName, URLName + ".new"}
	if noted.path != url {
		names = append(names, URLName)
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(database.RemoveCopy(filepath.Join(folder, FileName)), database.SyncDir(folder))
}

// MarkMoved notes that the log was copied to another place, where it goes on: on the server, so that
// no other node writes it, and in the data folder. It is an ErrInUse when another node has written it
// since it was opened.
func (l *Log) MarkMoved(ctx context.Context, to string) error {
	if err := l.explain(l.writer.MarkMoved(ctx, to)); err != nil {
		return err
	}
	return WriteMark(l.folder, MovedName, to)
}

// WriteMark writes CopyingName or MovedName into a data folder: it is copied from, or has
// moved to, the other one; or ConfigurationName.
func WriteMark(folder, name, other string) error {
	return writeWhole(filepath.Join(folder, name), other+"\n")
}

// RemoveMark removes a file that WriteMark has written.
func RemoveMark(folder, name string) error {
	if err := os.Remove(filepath.Join(folder, name)); err != nil {
		return err
	}
	return database.SyncDir(folder)
}

// ReadMark returns what a file that WriteMark has written names, "" when the file is not there.
func ReadMark(folder, name string) (other string, err error) {
	b, err := os.ReadFile(filepath.Join(folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if other = strings.TrimSpace(string(b)); err == nil && other == "" {
		other = "another folder"
	}
	return other, err
}

// refuseMarked returns why a data folder must not be used: it is a copy that is not
// complete, or was copied. One that was copied to the folder copyingTo is being copied.
func refuseMarked(folder string, readOnly bool, copyingTo string) error {
	from, err := ReadMark(folder, CopyingName)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this user may not read the data folder %s: run the command as the user whom it belongs to: %w", folder, err)
	}
	if err != nil {
		return err
	}
	if from != "" {
		return fmt.Errorf("%s is to be a copy of %s, and is not complete: run that bridge copy again, or, to give it up, empty the folder", folder, from)
	}
	if readOnly {
		return nil
	}
	to, err := ReadMark(folder, MovedName)
	if err != nil || to == "" || to == copyingTo {
		return err
	}
	return fmt.Errorf("%s was copied to %s, where it goes on: use that one. If it was never used, and never will be, remove it (on a server its tables too), and then %s; else copy it back: bridge copy",
		folder, to, filepath.Join(folder, MovedName))
}
