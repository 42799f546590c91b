package publish

import (
	"os"
	"path/filepath"
)

// disk makes every change of this package to the file system, one method for each
// step. A test sets fault, which wraps each step and can make it fail: before it took
// effect, or although it did.
type disk struct {
	fault func(op, path string, step func() error) error
}

func (d disk) do(op, path string, step func() error) error {
	if d.fault == nil {
		return step()
	}
	return d.fault(op, path, step)
}

func (d disk) mkdir(path string) error {
	return d.do("mkdir", path, func() error { return os.MkdirAll(path, 0o777) })
}

func (d disk) rename(from, to string) error {
	return d.do("rename", to, func() error { return os.Rename(from, to) })
}

// remove removes path and what is below it; that it is not there is no error.
func (d disk) remove(path string) error {
	return d.do("remove", path, func() error { return os.RemoveAll(path) })
}

// syncDir makes the names in a folder durable.
func (d disk) syncDir(path string) error {
	return d.do("syncdir", path, func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

// create makes a new file, which takes the place of an old one.
func (d disk) create(path string) (*file, error) {
	return d.open(path, func() (*os.File, error) { return os.Create(path) })
}

// temp creates a file beside path, under a unique name.
func (d disk) temp(path string) (*file, error) {
	return d.open(path, func() (*os.File, error) {
		return os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	})
}

func (d disk) open(path string, create func() (*os.File, error)) (*file, error) {
	f := &file{disk: d}
	err := d.do("create", path, func() (err error) {
		f.f, err = create()
		return err
	})
	if err != nil {
		f.abandon()
		return nil, err
	}
	return f, nil
}

// file is a file being written.
type file struct {
	disk disk
	f    *os.File
}

func (f *file) Write(b []byte) (n int, err error) {
	err = f.disk.do("write", f.f.Name(), func() (err error) {
		n, err = f.f.Write(b)
		return err
	})
	return n, err
}

// finish makes the file durable and closes it.
func (f *file) finish() error {
	if err := f.disk.do("sync", f.f.Name(), f.f.Sync); err != nil {
		return err
	}
	return f.Close()
}

// Close closes the file; a second call is no error.
func (f *file) Close() error {
	if f.f == nil {
		return nil
	}
	open := f.f
	f.f = nil
	return f.disk.do("close", open.Name(), open.Close)
}

// abandon closes and removes an unfinished file. If that fails the file stays, and is
// never read.
func (f *file) abandon() {
	if f.f != nil {
		name := f.f.Name()
		f.f.Close()
		_ = os.Remove(name)
		f.f = nil
	}
}

// writeFile writes a small file.
func (d disk) writeFile(path string, data []byte, durable bool) error {
	f, err := d.create(path)
	if err != nil {
		return err
	}
	defer f.abandon()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if durable {
		return f.finish()
	}
	return f.Close()
}
